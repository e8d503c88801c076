//! A service's configuration of its connections.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::connection::AtLimit;
use crate::follower::{Opaque, RestartPolicy};
use crate::restart::http::Rules;

/// The configuration of a table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableConfig {
    /// The VIP and port.
    pub vip: SocketAddr,
    /// The restart policy.
    pub policy: RestartPolicy,
    /// Policy `http`: how unanswered requests are treated.
    pub rules: Rules,
    /// Policy `http`: how a connection that is not HTTP/1 is followed. If `None`, such a connection is unprotected.
    pub opaque: Option<Arc<Opaque>>,
    /// Log bytes that one connection may hold.
    pub connection_bytes_max: u64,
    /// Log bytes that all connections may hold together.
    pub bytes_max: u64,
    /// Treatment of a connection whose log is full.
    pub at_limit: AtLimit,
    /// Commit modes `pr` and `immediate` (docs/commit-modes.md): the log has the primary's output without its bytes, and perhaps not all of it.
    #[serde(default)]
    pub sends_directly: bool,
    /// Commit mode `immediate`: packets for which the log has no room may pass unlogged. `sends_directly` is set, too.
    #[serde(default)]
    pub is_immediate: bool,
    /// Policy `replay`: the survivor of a takeover keeps the input of the connections that it relays, so the other node can learn them.
    #[serde(default)]
    pub keep_input: bool,
    /// Seed of the hash tables. With a known seed, clients could choose addresses whose hashes collide.
    pub hash_seed: usize,
}

impl TableConfig {
    /// The configuration that tests begin with: policy `http` at 10.0.0.100:80, with enough memory for all bytes that the tests send.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self {
            vip: ([10, 0, 0, 100], 80).into(),
            policy: RestartPolicy::Http,
            rules: Rules::default(),
            opaque: None,
            connection_bytes_max: 1 << 20,
            bytes_max: 1 << 30,
            at_limit: AtLimit::Unprotect,
            sends_directly: false,
            is_immediate: false,
            keep_input: false,
            hash_seed: 1,
        }
    }

    /// Whether a connection that began before the log can be learnt, that is, be protected from some later moment on.
    pub const fn learns(&self) -> bool {
        self.policy.learns() || self.keep_input
    }

    /// Whether replicas follow connections, now or perhaps later.
    pub fn has_replicas(&self) -> bool {
        self.policy == RestartPolicy::Replica || self.opaque.is_some()
    }
}
