//! `steadfast-lab cluster`: several nodes, services that are each protected by two of them, and a witness. One node loses its power.

mod command;
mod daemons;
mod network;
mod options;
mod play;
mod report;

pub use self::options::ClusterOptions;
