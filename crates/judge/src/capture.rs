//! The captures that the judge reads.

use std::path::PathBuf;

use serde::Serialize;

/// A capture point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// The client's interface.
    Client,
    /// The router's interface towards the nodes.
    Router,
    /// Node a's interface.
    NodeA,
    /// Node b's interface.
    NodeB,
    /// The interface of the servers behind a cluster of forwarding nodes.
    Server,
}

impl Point {
    /// The points of a pair's network.
    pub const ALL: [Self; 4] = [Self::Client, Self::Router, Self::NodeA, Self::NodeB];

    /// The name of the point's file, without the extension.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Router => "router",
            Self::NodeA => "node-a",
            Self::NodeB => "node-b",
            Self::Server => "server",
        }
    }
}

/// A finished capture: a pcap file with nanosecond times of the wall clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capture {
    /// The place of the capture.
    pub point: Point,
    /// The file.
    pub path: PathBuf,
    /// Number of packets in the file.
    pub packets: u64,
    /// Packets that the kernel dropped because its buffer was full. If there are any, the capture cannot prove that a packet was absent.
    pub dropped: u64,
}
