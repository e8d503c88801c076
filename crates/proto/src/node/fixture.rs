//! Fixtures for tests that need a node: its configuration, its peer's heartbeats, and times.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Node, NodeConfig};
use crate::Instant;
use crate::action::{Action, ApplicationState, Gate, ServiceBeat};
use crate::detector::DetectorConfig;
use crate::orphans::Orphans;
use crate::role::Role;
use crate::service::{InheritedService, ServiceConfig};
use crate::standing::Arbiter;
use crate::table::TableConfig;

/// Time between two heartbeats. A node counts as silent when four heartbeats in a row are missing.
pub(crate) const BEAT: Duration = Duration::from_millis(20);

/// The time `millis` milliseconds after the clock's origin.
pub(crate) fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

impl InheritedService {
    /// The state in which an earlier agent left a service behind. The service's gate is `gate`, its epoch is `epoch`, and its right to
    /// speak has no end.
    pub(crate) fn sample(gate: Gate, epoch: u64) -> Self {
        Self {
            gate,
            epoch,
            is_consented: true,
            is_confirmed: true,
            doubted: None,
            seen: Instant::ZERO,
            taken: Vec::new(),
            reversed_here: Vec::new(),
            reversed_there: Vec::new(),
            frozen: Vec::new(),
            moved: Vec::new(),
            annexed: Vec::new(),
            orphans: Vec::new(),
        }
    }
}

/// The configuration of a node with one service, policy `http`, fail-stop and a lease of 300 ms. With `is_primary`, the node is the
/// configured primary and is called alpha. Otherwise it is called beta.
pub(crate) fn config(is_primary: bool) -> NodeConfig {
    let table = TableConfig {
        connection_bytes_max: 1000,
        ..TableConfig::sample()
    };
    NodeConfig {
        name: if is_primary { "alpha" } else { "beta" }.to_owned(),
        incarnation: 1,
        without_peer: false,
        detector: DetectorConfig {
            interval: BEAT,
            missed: 4,
            agent_timeout: Duration::from_millis(500),
        },
        lease: Duration::from_millis(300),
        arbiter: Arbiter::FailStop,
        fence_delay: Duration::ZERO,
        services: vec![ServiceConfig {
            table,
            is_primary,
            mac: [0; 6],
            found: None,
            state_sync: None,
        }],
    }
}

/// The part of the peer's heartbeat about the service at `vip`. The peer has `role` in `epoch`, and its application is alive. The peer
/// neither leaves nor hands over.
pub(crate) fn beat(vip: SocketAddr, (role, epoch): (Role, u64), configured_primary: bool) -> ServiceBeat {
    ServiceBeat {
        vip,
        role,
        epoch,
        configured_primary,
        mac: [0; 6],
        server: ApplicationState::Alive,
        leaves: false,
        hands_over: false,
        orphans: Orphans::default(),
        adopted: 0,
        migration: None,
        path: None,
        direct: false,
        immediate: false,
        take_back: None,
    }
}

/// The next action of `node`, as an agent asks for it.
pub(crate) fn next_action(node: &mut Node) -> Option<Action> {
    loop {
        let action = node.poll_action();
        if action.is_some() || !node.handle_idle() {
            return action;
        }
    }
}
