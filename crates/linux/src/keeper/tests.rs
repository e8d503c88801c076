//! A keeper in a thread of its own, real sockets on loopback, and an application that does as it is told.

mod closing;
mod control;
mod door;
mod endings;
mod lab;
mod messages;
mod relaying;
mod rests;
mod turns;
mod writes;
