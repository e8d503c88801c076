//! What a service's operator wants of its connections.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::connection::AtLimit;
use crate::follower::{Opaque, Policy};
use crate::restart::http::Rules;

/// What a table keeps and how much of it.
#[derive(Clone, Debug)]
pub struct TableConfig {
    /// The VIP and port.
    pub vip: SocketAddr,
    /// The restart policy.
    pub policy: Policy,
    /// Policy `http`: how unanswered requests are dealt with.
    pub rules: Rules,
    /// Policy `http`: how a connection is followed that is not HTTP/1; `None`: it is unprotected.
    pub opaque: Option<Arc<Opaque>>,
    /// Log bytes that one connection may hold.
    pub connection_bytes_max: u64,
    /// Log bytes that all connections may hold together.
    pub bytes_max: u64,
    /// What becomes of a connection whose log is full.
    pub at_limit: AtLimit,
    /// Seed of the hash tables: clients choose their addresses.
    pub hash_seed: usize,
}

impl TableConfig {
    /// What tests begin with: policy `http` at 10.0.0.100:80, and room for all they say.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self {
            vip: ([10, 0, 0, 100], 80).into(),
            policy: Policy::Http,
            rules: Rules::default(),
            opaque: None,
            connection_bytes_max: 1 << 20,
            bytes_max: 1 << 30,
            at_limit: AtLimit::Unprotect,
            hash_seed: 1,
        }
    }

    /// Whether replicas follow connections, or may.
    pub fn has_replicas(&self) -> bool {
        self.policy == Policy::Replica || self.opaque.is_some()
    }
}
