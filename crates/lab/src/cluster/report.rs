//! The findings of a cluster run.

use serde::Serialize;

use super::options::ClusterOptions;
use crate::client::{self, Spread};
use crate::node::Assume;
use crate::run::{LabFindings, SHOWN, append};
use judge::{Finding, JudgeVerdict};

/// The findings of all services.
#[derive(Debug, Serialize)]
pub struct ClusterFindings {
    pub nodes: u8,
    /// The node that was drained and came back before the power failure.
    pub drained: u8,
    /// The node whose power went off.
    pub off: u8,
    pub assume: Assume,
    pub etcd_members: usize,
    pub etcd_members_killed: usize,
    /// Time in milliseconds from the power failure until the last connection could go on. Covers all services whose primary was the failed
    /// node. With several runs, this is the longest time of all runs.
    pub takeover_ms: Option<f64>,
    connections: usize,
    connections_survived: usize,
    sha256_match: bool,
    resets_seen: u64,
    /// The first few violations of the judge's rules.
    violations: Vec<Finding>,
    services: Vec<ClusterServiceReport>,
}

/// Number of etcd members. One of them is killed.
pub const MEMBERS: usize = 3;

/// The role of the failed node in a service, at the power failure.
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
    /// Whether one of the service's nodes was drained.
    pub was_drained: bool,
    /// The role of the failed node in this service. `None` if the node was not in the service's pair.
    pub lost: Option<FailedNodeRole>,
    /// Whether the service's other node had to continue the connections after the drain or the power failure.
    pub has_moved: bool,
}

/// One service.
#[derive(Debug, Serialize)]
pub struct ClusterServiceReport {
    service: usize,
    /// The service's nodes. At the start of the run, the first one was the primary and the second one the backup.
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

impl ClusterFindings {
    /// The findings before the first run.
    pub fn empty(options: &ClusterOptions) -> Self {
        let members = if options.assume == Assume::Etcd {
            MEMBERS
        } else {
            0
        };
        Self {
            nodes: options.nodes,
            drained: options.drain,
            off: options.off,
            assume: options.assume,
            etcd_members: members,
            etcd_members_killed: usize::from(members > 0),
            takeover_ms: None,
            connections: 0,
            connections_survived: 0,
            sha256_match: true,
            resets_seen: 0,
            violations: Vec::new(),
            services: Vec::new(),
        }
    }

    /// Adds a service's findings.
    pub fn add_service(&mut self, service: ClusterServiceReport) {
        self.connections += service.connections;
        self.connections_survived += service.survived;
        self.sha256_match &= service.sha256_match;
        self.resets_seen += service.resets_seen;
        append(&mut self.violations, service.violations.clone());
        self.services.push(service);
    }
}

impl LabFindings for ClusterFindings {
    fn holds(&self) -> bool {
        self.services.iter().all(ClusterServiceReport::holds)
    }

    fn add(&mut self, other: Self) {
        // `None` is less than any value.
        if other.takeover_ms > self.takeover_ms {
            self.takeover_ms = other.takeover_ms;
        }
        other
            .services
            .into_iter()
            .for_each(|service| self.add_service(service));
    }

    fn line(&self) -> String {
        let mut text = format!(
            "{} nodes, node {} was drained and came back, node {} lost its power",
            self.nodes, self.drained, self.off
        );
        if self.etcd_members_killed > 0 {
            text += &format!(
                " ({} of {} members of etcd had been killed)",
                self.etcd_members_killed, self.etcd_members
            );
        }
        text
    }

    fn text(&self) -> String {
        let mut text = self.line();
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
                if one.events.was_drained { "" } else { ", elsewhere" },
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
        text
    }
}
