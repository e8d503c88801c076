//! A daemon's status, as far as the lab reads it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proto::Instant;
use serde::{Deserialize, Serialize};

/// The part of `steadfast status --json` that the lab reads. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedStatus {
    /// The services; the lab has one.
    pub services: Vec<ReportedService>,
    /// The other node.
    #[serde(default)]
    pub peer: ReportedPeer,
}

/// The other node in [`ReportedStatus`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReportedPeer {
    /// The SCTP association, with `[peer] transport = "sctp"`.
    #[serde(default)]
    pub channel: Option<ReportedChannel>,
}

/// The association in [`ReportedPeer`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedChannel {
    /// Whether the association is established.
    pub established: bool,
}

/// A service in [`ReportedStatus`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedService {
    /// The node's role for the service.
    #[serde(default)]
    pub role: String,
    /// The role in detail, for example `backup` or `returning`.
    #[serde(default)]
    pub state: String,
    /// Recent states, the latest last.
    #[serde(default)]
    pub history: Vec<ReportedState>,
    /// `duplex` or `simplex`.
    pub mode: String,
    /// Epoch: number of role changes.
    #[serde(default)]
    pub epoch: u64,
    /// Number of connections for each state of protection.
    pub connections: BTreeMap<String, u64>,
    /// Number of unprotected connections for each reason.
    #[serde(default)]
    pub reasons: BTreeMap<String, u64>,
    /// Whether `connections` counts all connections.
    pub connections_complete: bool,
    /// The takeovers so far.
    pub takeovers: Vec<ReportedTakeover>,
    /// Whether the replica's server has the primary's state. Present only on a wire that has to copy this state.
    #[serde(default)]
    pub state_sync: Option<ReportedStateSync>,
    /// What recorded order does on the node.
    #[serde(default)]
    pub recorded_order: Option<ReportedOrder>,
    /// Size of the log in bytes.
    #[serde(default)]
    pub log_bytes: u64,
    /// Bytes of the log that are in files.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// Connections whose clients are slowed.
    #[serde(default)]
    pub slowed: u64,
    /// Unread bytes in both of the wire's rings together, over all services.
    #[serde(default)]
    pub ring_fill_bytes: u64,
    /// The service's annexes, as its wire knows them.
    #[serde(default)]
    pub annexes: Vec<ReportedAnnex>,
    /// The list of annexes that have registered, if they may.
    #[serde(default)]
    pub registry: Option<ReportedRegistry>,
    /// Event counters by name.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
}

/// An annex of a [`ReportedService`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedAnnex {
    /// Its name.
    pub name: String,
    /// Whether it can take connections.
    pub is_up: bool,
    /// Number of connections that it has.
    pub connections: u64,
    /// Whether it has registered.
    #[serde(default)]
    pub is_registered: bool,
}

/// The list of registered annexes of a [`ReportedService`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedRegistry {
    /// Whether it was last read too long ago.
    pub is_stale: bool,
}

/// A state that a node entered for a [`ReportedService`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedState {
    /// Time of the change.
    pub at_ns: u64,
    /// The new state.
    pub state: String,
}

/// Recorded order on one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedOrder {
    /// What the node's server does.
    pub activity: String,
    /// Why there is no record, or what it waits for.
    #[serde(default)]
    pub reason: String,
}

/// The state of a replica's server in [`ReportedService`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedStateSync {
    /// Whether the replica's server has the primary's state.
    pub synced: bool,
    /// Why the replica's server does not have this state, if known.
    pub error: Option<String>,
}

/// A takeover in [`ReportedService`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedTakeover {
    /// When the primary was declared dead.
    pub declared_ns: u64,
    /// When the gate was closed to the primary's packets.
    pub gate_closed_ns: Option<u64>,
    /// When the first connection could go on.
    pub first_live_ns: Option<u64>,
    /// When the last connection could go on.
    pub last_live_ns: Option<u64>,
    /// Number of connections that the takeover must restore or reset.
    pub connections: u64,
    /// Number of connections that go on.
    pub restored: u64,
    /// Number of connections that got a RST.
    pub reset: u64,
}

impl ReportedTakeover {
    /// Whether every connection has been restored or reset.
    pub fn is_complete(&self) -> bool {
        self.restored + self.reset >= self.connections
    }
}

/// The part of `steadfast connections --restored --json` that the lab reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedConnection {
    /// The client's address.
    pub client: SocketAddr,
    /// When the connection could go on.
    pub live_ns: u64,
}

impl ReportedStatus {
    /// Whether the association with the other node is established.
    pub fn has_channel(&self) -> bool {
        self.peer
            .channel
            .as_ref()
            .is_some_and(|channel| channel.established)
    }

    /// When the node last entered `state` for the lab's service.
    pub fn became(&self, state: &str) -> Option<Instant> {
        let history = &self.services.first()?.history;
        let since = history.iter().rfind(|since| since.state == state)?;
        Some(Instant::from_nanos(since.at_ns))
    }

    /// The states that the node has entered for the lab's service since `since`.
    pub fn states_since(&self, since: Instant) -> impl Iterator<Item = (Instant, &str)> {
        let history = self.services.first().map_or(&[][..], |service| &service.history);
        let entered = history
            .iter()
            .map(|one| (Instant::from_nanos(one.at_ns), &*one.state));
        entered.filter(move |(at, _)| *at >= since)
    }

    /// Epoch of the lab's service.
    pub fn epoch(&self) -> u64 {
        self.services.first().map_or(0, |service| service.epoch)
    }

    /// Whether every service is protected by both nodes.
    pub fn is_duplex(&self) -> bool {
        self.services.iter().all(|service| service.mode == "duplex")
    }

    /// Whether the node is the wire of every service.
    pub fn is_wire(&self) -> bool {
        self.services.iter().all(|service| service.state == "backup")
    }

    /// Whether every replica that needs the primary's state has it.
    pub fn is_synced(&self) -> bool {
        let is_synced =
            |service: &ReportedService| service.state_sync.as_ref().is_none_or(|sync| sync.synced);
        self.services.iter().all(is_synced)
    }

    /// What the server does with the record: `records`, `plays`, `waits` or `off`.
    pub fn order_activity(&self) -> Option<&str> {
        let order = self.services.first()?.recorded_order.as_ref()?;
        Some(&order.activity)
    }

    /// Whether the record is in this state, and its reason contains this text.
    pub fn order_is(&self, activity: &str, reason: &str) -> bool {
        let order = self
            .services
            .first()
            .and_then(|service| service.recorded_order.as_ref());
        order.is_some_and(|order| order.activity == activity && order.reason.contains(reason))
    }

    /// Whether there are connections, all are known, and none is protected, for known reasons.
    pub fn protects_none(&self) -> bool {
        self.services.iter().all(|service| {
            service.connections_complete
                && service
                    .connections
                    .get("protected")
                    .is_none_or(|&count| count == 0)
                && service.reasons.values().any(|&count| count > 0)
        })
    }

    /// Whether there are connections, all are known, and all are protected.
    pub fn protects_all(&self) -> bool {
        let protects = |service: &ReportedService| {
            let mut others = service
                .connections
                .iter()
                .filter(|(kind, _)| *kind != "protected");
            service.connections_complete
                && service.connections.get("protected") > Some(&0)
                && others.all(|(_, count)| *count == 0)
        };
        self.services.iter().all(protects)
    }

    /// Number of protected connections.
    pub fn protected(&self) -> u64 {
        let protected = self
            .services
            .iter()
            .filter_map(|service| service.connections.get("protected"));
        protected.sum()
    }

    /// Number of connections, whatever their protection.
    pub fn connections(&self) -> u64 {
        let counts = self
            .services
            .iter()
            .flat_map(|service| service.connections.values());
        counts.sum()
    }

    /// Whether the node reports the role `primary` for the lab's service.
    pub fn speaks(&self) -> bool {
        self.services.iter().any(|service| service.role == "primary")
    }

    /// Number of connections that the node's keeper has received so far.
    pub fn kept(&self) -> u64 {
        let counters = self.services.first().map(|service| &service.counters);
        counters
            .and_then(|counters| counters.get("relayed_adopted"))
            .copied()
            .unwrap_or(0)
    }

    /// Whether `count` annexes of the lab's service can take connections.
    pub fn has_annexes(&self, count: usize) -> bool {
        self.annexes().iter().filter(|annex| annex.is_up).count() == count
    }

    /// Whether the node knows `count` annexes of the lab's service.
    pub fn knows_annexes(&self, count: usize) -> bool {
        self.annexes().len() == count
    }

    /// Whether no annex of the lab's service has an entry in etcd, by a list that is not stale.
    pub fn has_no_entries(&self) -> bool {
        let has_entry = self.annexes().iter().any(|annex| annex.is_registered);
        !has_entry && !self.has_stale_list()
    }

    /// Whether the node's list of registered annexes is stale.
    pub fn has_stale_list(&self) -> bool {
        let registry = self
            .services
            .first()
            .and_then(|service| service.registry.as_ref());
        registry.is_some_and(|registry| registry.is_stale)
    }

    /// Whether all connections live on the annex `name`, and there are some.
    pub fn has_all_on(&self, name: &str) -> bool {
        let on = |annex: &ReportedAnnex| annex.connections > 0 && annex.connections == self.connections();
        self.annexes().iter().any(|annex| annex.name == name && on(annex))
    }

    /// Number of connections that live on the annex `name`, as far as the node knows.
    pub fn connections_on(&self, name: &str) -> u64 {
        let annexes = self.annexes().iter().filter(|annex| annex.name == name);
        annexes.map(|annex| annex.connections).sum()
    }

    /// Whether no connection lives on an annex.
    pub fn has_none_on_annexes(&self) -> bool {
        self.annexes().iter().all(|annex| annex.connections == 0)
    }

    fn annexes(&self) -> &[ReportedAnnex] {
        self.services.first().map_or(&[], |service| &service.annexes)
    }

    /// Whether the node goes on alone, and has claimed the address if necessary.
    pub fn is_alone(&self) -> bool {
        self.services.iter().all(|service| service.state == "sole")
    }

    /// The takeovers of the lab's service, in order of time.
    pub fn takeovers(&self) -> &[ReportedTakeover] {
        self.services.first().map_or(&[], |service| &service.takeovers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(order: &str, connections: &str, reasons: &str) -> ReportedStatus {
        let text = format!(
            r#"{{"services": [{{"mode": "duplex", "connections": {connections}, "reasons": {reasons}, "connections_complete": true,
                "takeovers": [], "recorded_order": {order}}}]}}"#
        );
        serde_json::from_str(&text).expect("a status")
    }

    #[test]
    fn a_record_that_is_off_has_a_reason() {
        let off = status(
            r#"{"activity": "off", "reason": "the server has ended"}"#,
            "{}",
            "{}",
        );
        assert!(off.order_is("off", "has ended"));
        assert!(!off.order_is("waits", "has ended") && !off.order_is("off", "io_uring"));
        let silent = status(r#"{"activity": "off"}"#, "{}", "{}");
        assert!(silent.order_is("off", "") && !silent.order_is("off", "has ended"));
    }

    #[test]
    fn connections_without_protection_have_reasons() {
        let of = |connections, reasons| status("null", connections, reasons).protects_none();
        let reasons = r#"{"the replica's output differs": 2}"#;
        assert!(of(r#"{"protected": 0, "unprotected": 2}"#, reasons));
        assert!(!of(r#"{"protected": 1, "unprotected": 2}"#, reasons));
        assert!(!of(r#"{"protected": 0, "unprotected": 2}"#, "{}"));
    }
}
