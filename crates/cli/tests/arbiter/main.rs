//! Who gets the right to speak: a real etcd is asked, real commands are run.

mod etcd;
mod fence;
mod node;
mod proxy;
mod witness;
