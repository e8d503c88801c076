//! Sessions that move between two servers with different addresses (docs/connect.md), on real packets: how long a move takes, and what a
//! client gets from servers that become slow (Sultan et al., "Migratory TCP", Figures 6 and 7).

pub mod bench;
pub mod migrate;
pub mod moves;
mod network;
pub mod stream;
mod testbed;
