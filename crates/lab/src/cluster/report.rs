//! The report of a cluster run.

use serde::Serialize;

use crate::client::{self, Spread};
use crate::judge::{Finding, JudgeVerdict};
use crate::node::Assume;

/// The whole report.
#[derive(Debug, Serialize)]
pub struct ClusterReport {
    /// Whether no connection of any service noticed more than a stall.
    pub ok: bool,
    pub nodes: u8,
    /// The node that was drained first, and came back.
    pub drained: u8,
    /// The node whose power went off.
    pub off: u8,
    pub assume: Assume,
    pub etcd_members: usize,
    pub etcd_members_killed: usize,
    /// Time from the power failure until the last connection could go on, of all services whose primary was the failed node.
    pub takeover_ms: Option<f64>,
    pub services: Vec<ClusterServiceReport>,
    /// Things that the daemons failed to do.
    pub problems: Vec<String>,
}

/// The part that the failed node had in a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FailedNodeRole {
    Primary,
    Wire,
}

impl FailedNodeRole {
    fn name(self) -> &'static str {
        match self {
            Self::Primary => "its primary",
            Self::Wire => "its wire",
        }
    }
}

/// Events of a service.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Events {
    /// Whether one of its nodes was drained.
    pub was_drained: bool,
    /// The part that the service lost in the power failure.
    pub lost: Option<FailedNodeRole>,
    /// Whether another node had to go on with its connections, after the drain or the power failure.
    pub has_moved: bool,
}

/// One service.
#[derive(Debug, Serialize)]
pub struct ClusterServiceReport {
    service: usize,
    /// The nodes at first: primary, backup.
    nodes: [usize; 2],
    #[serde(flatten)]
    events: Events,
    connections: usize,
    survived: usize,
    sha256_match: bool,
    /// The clients' longest waits around the power failure.
    stall_ms: Option<Spread>,
    /// The clients' longest waits around the drain.
    drain_stall_ms: Option<Spread>,
    connections_taken_over: u64,
    resets_seen: u64,
    violations: Vec<Finding>,
    unproven: Vec<String>,
    failures: Vec<String>,
}

/// Maximum number of findings of a kind that are printed one by one.
const SHOWN: usize = 10;

impl ClusterServiceReport {
    /// The report of service number `service` on `nodes`, after the events in `events`.
    pub fn new(
        service: usize,
        nodes: [usize; 2],
        events: Events,
        client: &client::ClientReport,
        verdict: JudgeVerdict,
    ) -> Self {
        let failures = client.connections.iter().filter_map(|one| one.failure.as_ref());
        Self {
            service,
            nodes,
            events,
            connections: client.connections.len(),
            survived: client.survivors(),
            sha256_match: client.sha256_match(),
            stall_ms: client.stall_ms(0),
            drain_stall_ms: client.stall_ms(1),
            connections_taken_over: verdict.connections_taken_over,
            resets_seen: verdict.resets_seen(),
            violations: verdict.violations.into_iter().take(SHOWN).collect(),
            unproven: verdict.unproven,
            failures: failures.take(SHOWN).map(ToString::to_string).collect(),
        }
    }

    fn holds(&self) -> bool {
        self.survived == self.connections
            && self.sha256_match
            && self.resets_seen == 0
            && self.violations.is_empty()
            && self.unproven.is_empty()
            && (self.connections_taken_over > 0) == self.events.has_moved
    }
}

fn most(waits: Option<Spread>) -> f64 {
    waits.map_or(0.0, |waits| waits.max)
}

impl ClusterReport {
    /// Sets `ok`.
    pub fn conclude(&mut self) {
        self.ok = self.problems.is_empty() && self.services.iter().all(ClusterServiceReport::holds);
    }

    /// The whole report as text for a person.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} nodes, node {} was drained and came back, node {} lost its power",
            if self.ok { "held" } else { "DID NOT HOLD" },
            self.nodes,
            self.drained,
            self.off
        );
        if self.etcd_members_killed > 0 {
            text += &format!(
                " ({} of {} members of etcd had been killed)",
                self.etcd_members_killed, self.etcd_members
            );
        }
        for one in &self.services {
            text += &format!(
                "\n  service {} (nodes {:?}, lost {}): {} of {} survived, stall max {:.1} ms (drain: {:.1} ms{}), {} taken over, {} violations",
                one.service,
                one.nodes,
                one.events.lost.map_or("nothing", FailedNodeRole::name),
                one.survived,
                one.connections,
                most(one.stall_ms),
                most(one.drain_stall_ms),
                if one.events.was_drained { "" } else { ", of others" },
                one.connections_taken_over,
                one.violations.len(),
            );
            let found = one
                .violations
                .iter()
                .map(|found| format!("{:?}: {}", found.rule, found.what));
            for line in found.chain(one.unproven.clone()).chain(one.failures.clone()) {
                text += &format!("\n    {line}");
            }
        }
        for problem in &self.problems {
            text += &format!("\n  {problem}");
        }
        text + "\n"
    }
}
