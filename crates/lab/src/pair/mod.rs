//! A run on the pair: client, router, node a (the primary at first) and node b (the wire at first). Every lab that uses
//! the pair describes its run by [`PairOptions`].

pub mod aftermath;
pub mod annex;
mod baseline;
pub mod clients;
pub mod expect;
pub mod fault;
pub mod inject;
pub mod integration;
pub mod judged;
pub mod late;
mod options;
pub mod path;
pub mod protection;
pub mod reboot;
pub mod survive;
pub mod testbed;
pub mod unlogged;
pub mod work;

pub use self::options::{LanOptions, NodeLink, PairOptions, PolicyOption, Returning, WorkloadOption};
