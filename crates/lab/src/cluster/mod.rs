//! `steadfast-lab cluster`: several nodes, services paired across them, a witness, and a node's power goes off.

mod command;
mod network;
mod options;
mod play;
mod report;

pub use self::options::ClusterOptions;
