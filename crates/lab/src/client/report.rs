//! The report of a client process.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::progress::{Gap, ProgressSample};
use super::replies::Wrong;

/// The result of one client process. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientReport {
    /// One per connection, in order of index.
    pub connections: Vec<ConnectionReport>,
    /// Round-trip times of requests (workloads `request` and `idle`).
    pub latency: Option<Latency>,
    /// When the first handshake began.
    pub started_ns: u64,
    /// When the last connection ended.
    pub ended_ns: u64,
}

/// One connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// The client's address and port; `None` if the connection was never established.
    pub local: Option<SocketAddr>,
    /// The client's addresses and ports before it connected anew.
    pub earlier: Vec<SocketAddr>,
    /// When the handshake was complete.
    pub connected_ns: Option<u64>,
    /// When the connection ended.
    pub ended_ns: u64,
    /// Content bytes due to the client.
    pub bytes_expected: u64,
    /// Content bytes received, each compared with what it must be.
    pub bytes_received: u64,
    /// Content bytes sent and confirmed by replies.
    pub bytes_sent: u64,
    /// Whether the last request was refused (503). A refusal is allowed if the request must not or cannot be executed again.
    pub was_refused: bool,
    /// SHA-256 of each random content that came; empty if content is not random.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub random: Vec<String>,
    /// Number of requests that were refused and asked again.
    #[serde(default)]
    pub asked_again: u64,
    /// SHA-256 of the content due and of the content received; `None` if the plan did not ask for it.
    pub sha256: Option<Sha256Pair>,
    /// The reason why the connection ended early. `None`: all content was correct, and the connection was closed in order.
    pub failure: Option<Failed>,
    /// The longest wait for a byte.
    pub longest_gap: Option<Gap>,
    /// The longest wait around each time given in a [`ClientOrder::Fault`](super::plan::ClientOrder::Fault), in the order in which these
    /// orders came.
    pub stalls: Vec<Stall>,
    /// Content bytes received, plus content bytes sent and confirmed by replies, over time.
    pub timeline: Vec<ProgressSample>,
}

/// Two hashes that must be equal, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sha256Pair {
    /// Hash of the content that was due, computed only from the pattern.
    pub expected: String,
    /// Hash of the received content.
    pub received: String,
}

/// The longest wait of one connection around one fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// When the fault happened.
    pub fault_ns: u64,
    /// The wait; `None` if the client never waited noticeably around that time.
    pub gap: Option<Gap>,
}

/// The phase in which a connection ended early, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{phase:?}: {failure}")]
pub struct Failed {
    /// The phase in which the connection ended.
    pub phase: ConnectionPhase,
    /// The error that ended the connection.
    #[source]
    pub failure: ClientFailure,
}

/// The phases of a connection, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionPhase {
    /// The handshake.
    Connect,
    /// Preparation of the workload: a value to read, the first exchange of an idle connection.
    Prepare,
    /// The workload.
    Flow,
    /// FIN in both directions.
    Close,
}

/// Why a connection ended early.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientFailure {
    /// A RST to the SYN.
    #[error("connection refused")]
    Refused,
    /// A RST in the middle.
    #[error("connection reset")]
    Reset,
    /// A FIN although replies were due or the client had more requests.
    #[error("end of stream while {due} replies were due")]
    EndOfStream {
        /// Replies due.
        due: usize,
    },
    /// The plan's deadline passed, or the client's kernel gave up.
    #[error("timeout while {due} replies were due")]
    Timeout {
        /// Replies due.
        due: usize,
    },
    /// The bytes are not what they must be.
    #[error(transparent)]
    Wrong(Wrong),
    /// Another error of the client's kernel.
    #[error("{0}")]
    Io(String),
}

/// Round-trip times of the requests of all connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of answered requests.
    pub count: u64,
    /// Microseconds.
    pub mean_us: f64,
    /// Microseconds.
    pub median_us: f64,
    /// Microseconds.
    pub p99_us: f64,
    /// Microseconds.
    pub max_us: f64,
}

/// Distribution of a value over connections. The unit is in the name of the field that has this type.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the values are at most this.
    pub median: f64,
    /// 99 of 100 values are at most this.
    pub p99: f64,
    /// All values are at most this.
    pub max: f64,
}

impl ConnectionReport {
    /// Whether `client` is or was the connection's address.
    pub fn has_been(&self, client: SocketAddr) -> bool {
        self.local == Some(client) || self.earlier.contains(&client)
    }

    /// Whether all content came and was correct, and the connection was closed in order.
    pub fn survived(&self) -> bool {
        self.failure.is_none() && self.bytes_received == self.bytes_expected && self.hash_matches()
    }

    /// Whether the hashes are equal, or the plan did not ask for hashes.
    pub fn hash_matches(&self) -> bool {
        self.sha256
            .as_ref()
            .is_none_or(|pair| pair.expected == pair.received)
    }
}

impl ClientReport {
    /// Content bytes due, over all connections.
    pub fn bytes_expected(&self) -> u64 {
        self.connections.iter().map(|one| one.bytes_expected).sum()
    }

    /// Correct content bytes received, over all connections.
    pub fn bytes_received(&self) -> u64 {
        self.connections.iter().map(|one| one.bytes_received).sum()
    }

    /// Number of connections that survived.
    pub fn survivors(&self) -> usize {
        self.connections.iter().filter(|one| one.survived()).count()
    }

    /// Whether the hashes of all connections that were to be hashed are as expected.
    pub fn sha256_match(&self) -> bool {
        self.connections.iter().all(ConnectionReport::hash_matches)
    }

    /// Stall around fault number `fault` in milliseconds, over connections. A connection that never waited counts
    /// as 0. `None` if there was no such fault.
    pub fn stall_ms(&self, fault: usize) -> Option<Spread> {
        Spread::of(self.connections.iter().filter_map(|one| {
            let stall = one.stalls.get(fault)?;
            Some(stall.gap.map_or(0.0, Gap::ms))
        }))
    }
}

impl Spread {
    /// The spread of `values` (nearest rank). `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let rank = |share: f64| {
            let rank = (values.len() as f64 * share).ceil() as usize;
            values.get(rank.max(1) - 1).copied()
        };
        Some(Self {
            median: rank(0.5)?,
            p99: rank(0.99)?,
            max: rank(1.0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_by_nearest_rank() {
        assert_eq!(Spread::of([]), None);
        let one = Spread::of([3.0]).unwrap();
        assert_eq!((one.median, one.p99, one.max), (3.0, 3.0, 3.0));
        let many = Spread::of((1..=200).rev().map(f64::from)).unwrap();
        assert_eq!((many.median, many.p99, many.max), (100.0, 198.0, 200.0));
    }
}
