//! The findings of `edge-failover`: measured values, and whether the run holds.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use serde::Serialize;

use super::gaps::{FlowLoss, HitFlow};
use super::options::{EdgeFailoverOptions, HitEdge};
use crate::client::Spread;
use crate::edge::daemon::{CacheLimits, HEARTBEAT, RecoveryOption, ReportedEdge, SecondOption};
use crate::edge::fault::ClusterFault;
use crate::edge::flows::{FlowPlan, FlowReport};
use crate::edge::network::ClusterPlace;
use crate::edge::trace::EdgeTrace;
use crate::edge::variant::EdgeVariant;
use crate::run::{LabFindings, append};

/// Everything that was measured in one variant of a run.
pub struct FailoverFacts {
    /// When the failure began.
    pub fault: Instant,
    pub plan: FlowPlan,
    pub report: FlowReport,
    pub trace: EdgeTrace,
    pub hit: Vec<HitFlow>,
    /// Indices of the uploads whose file at the server differs from the bytes that the client sent.
    pub differing: Vec<usize>,
    pub detection_ms: Option<f64>,
    pub takeover_ms: Option<f64>,
    pub edges: Vec<ReportedEdge>,
    /// Largest delay that the lab's own emulated cable added to a round trip while the flows restarted.
    pub cable_late: Duration,
}

/// The findings of all variants.
#[derive(Debug, Serialize)]
pub struct EdgeFailoverFindings {
    fault: ClusterFault,
    edges: u8,
    hit: Option<HitEdge>,
    failover_ms: f64,
    rtt_ms: f64,
    policy: RecoveryOption,
    second: SecondOption,
    limits: CacheLimits,
    caching_after: u32,
    cluster: ClusterPlace,
    nat: bool,
    without_conntrackd: bool,
    ipv6: bool,
    connections: u64,
    connections_survived: u64,
    bytes_expected: u64,
    bytes_received: u64,
    /// Whether the server stored all uploads correctly. In spite of the field's name, the lab compares bytes and not hashes.
    sha256_match: bool,
    resets_seen: u64,
    violations: Vec<String>,
    failures: Vec<String>,
    detection_ms: Option<Spread>,
    takeover_ms: Option<Spread>,
    /// Limit for the 99th percentile of the judged restart gaps, in milliseconds. Variant `without` has no limit.
    gap_allowed_ms: f64,
    #[serde(skip)]
    detections: [Vec<f64>; 2],
    with: Option<FailoverSide>,
    without: Option<FailoverSide>,
    baseline: Option<FailoverSide>,
}

/// The findings of one variant.
#[derive(Debug, Default, Serialize)]
pub struct FailoverSide {
    flows_hit: usize,
    /// Number of hit flows in which no new byte came after the failover.
    not_restarted: usize,
    restart_gap_ms_p99: Option<f64>,
    restart_gap_ms: Option<Spread>,
    /// Restart gaps of the flows that lost their SYN or their SYN-ACK.
    restart_gap_syn_ms: Option<Spread>,
    /// Restart gaps of all other hit flows.
    restart_gap_data_ms: Option<Spread>,
    /// The flows with the longest gaps, so that they can be found in the captures.
    latest: Vec<LateFlow>,
    /// Completion times of the flows that were hit.
    completion_hit_ms: Option<Spread>,
    /// Completion times of all flows.
    completion_ms: Option<Spread>,
    /// Restart gaps: of the flows that lost their SYN or SYN-ACK, and of all others.
    #[serde(skip)]
    gaps: [Vec<f64>; 2],
    #[serde(skip)]
    completions: [Vec<f64>; 2],
    /// 99th percentile of the judged restart gaps of the flows that lost their SYN or their SYN-ACK. A judged gap is a measured gap minus
    /// the delay of the lab's own emulated cable within this gap.
    restart_gap_judged_syn_ms_p99: Option<f64>,
    /// The same of all other hit flows.
    restart_gap_judged_data_ms_p99: Option<f64>,
    /// Largest delay, in milliseconds, that the lab's own emulated cable added to a round trip while the flows restarted, because the
    /// machine was busy.
    cable_late_ms: f64,
    /// Judged gaps by [`FlowLoss`], as `gaps`.
    #[serde(skip)]
    judged: [Vec<f64>; 2],
    /// The status of the edges at the end of the last run.
    edges: Vec<ReportedEdge>,
}

/// A flow that continued late, or never.
#[derive(Clone, Debug, Serialize)]
struct LateFlow {
    client: SocketAddr,
    seed: u64,
    lost: FlowLoss,
    /// The restart gap. `None` if the flow never continued.
    gap_ms: Option<f64>,
}

/// The first retransmission timer of a SYN, in milliseconds: one second (RFC 6298), plus an eighth, because Linux's timer wheel rounds up.
const SYN_TIMER_MS: f64 = 1125.0;
/// Maximum number of late flows that are reported.
const LATE_MAX: usize = 3;

/// For each flow of the trace, its index in the plan. `None` if no planned flow is left for its client address.
fn planned(facts: &FailoverFacts) -> Vec<Option<usize>> {
    let mut begun: Vec<_> = (0..facts.report.flows.len()).collect();
    begun.sort_by_key(|&index| facts.report.flows[index].arrived_ns);
    // Several flows may use the same client address and port, one after the other. The trace has them in the order in which they began.
    let mut of_client: HashMap<SocketAddr, VecDeque<usize>> = HashMap::new();
    for index in begun {
        if let Some(client) = facts.report.flows[index].local {
            of_client.entry(client).or_default().push_back(index);
        }
    }
    let flows = facts.trace.flows.iter();
    flows
        .map(|flow| of_client.get_mut(&flow.client)?.pop_front())
        .collect()
}

impl FailoverSide {
    fn of(facts: &FailoverFacts) -> Self {
        let mut side = Self {
            edges: facts.edges.clone(),
            cable_late_ms: facts.cable_late.as_secs_f64() * 1e3,
            ..Self::default()
        };
        let planned = planned(facts);
        let took = |index: usize| {
            let flow = &facts.report.flows[index];
            crate::clock::ms(flow.arrived_ns, flow.ended_ns)
        };
        for hit in &facts.hit {
            side.note_gap(hit);
            side.latest.push(LateFlow {
                client: facts.trace.flows[hit.index].client,
                seed: facts.plan.seed,
                lost: hit.lost,
                gap_ms: hit.gap_ns.map(|gap_ns| gap_ns as f64 / 1e6),
            });
            side.completions[0].extend(planned[hit.index].map(took));
        }
        side.completions[1] = (0..facts.report.flows.len()).map(took).collect();
        side.settle();
        side
    }

    fn note_gap(&mut self, hit: &HitFlow) {
        let Some(gap_ns) = hit.gap_ns else {
            self.not_restarted += 1;
            return;
        };
        let class = usize::from(hit.lost == FlowLoss::Data);
        self.gaps[class].push(gap_ns as f64 / 1e6);
        self.judged[class].push(gap_ns.saturating_sub(hit.cable_late_ns) as f64 / 1e6);
    }

    fn add(&mut self, other: Self) {
        self.not_restarted += other.not_restarted;
        for (own, more) in self.gaps.iter_mut().zip(other.gaps) {
            own.extend(more);
        }
        for (own, more) in self.completions.iter_mut().zip(other.completions) {
            own.extend(more);
        }
        for (own, more) in self.judged.iter_mut().zip(other.judged) {
            own.extend(more);
        }
        self.latest.extend(other.latest);
        self.cable_late_ms = self.cable_late_ms.max(other.cable_late_ms);
        self.edges = other.edges;
        self.settle();
    }

    fn settle(&mut self) {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        let gap = |one: &LateFlow| one.gap_ms.unwrap_or(f64::INFINITY);
        self.latest.sort_by(|one, other| gap(other).total_cmp(&gap(one)));
        self.latest.truncate(LATE_MAX);
        let [syn, data] = &self.gaps;
        self.flows_hit = syn.len() + data.len() + self.not_restarted;
        self.restart_gap_syn_ms = spread(syn);
        self.restart_gap_data_ms = spread(data);
        self.restart_gap_ms = spread(&self.gaps.concat());
        self.restart_gap_ms_p99 = self.restart_gap_ms.map(|gaps| gaps.p99);
        let [syn, data] = [0, 1].map(|class| spread(&self.judged[class]).map(|gaps| gaps.p99));
        (
            self.restart_gap_judged_syn_ms_p99,
            self.restart_gap_judged_data_ms_p99,
        ) = (syn, data);
        self.completion_hit_ms = spread(&self.completions[0]);
        self.completion_ms = spread(&self.completions[1]);
    }

    /// Whether every hit flow continued, and 99 of 100 judged gaps are at most `allowed_ms`: of the flows that lost their handshake, and of
    /// those that lost only data. If no flow was hit, nothing is shown.
    fn restarts_within(&self, allowed_ms: f64) -> bool {
        let classes = [
            self.restart_gap_judged_syn_ms_p99,
            self.restart_gap_judged_data_ms_p99,
        ];
        let mut p99s = classes.into_iter().flatten().peekable();
        self.not_restarted == 0 && p99s.peek().is_some() && p99s.all(|p99| p99 <= allowed_ms)
    }

    /// Describes the flows whose gap was longer than `allowed_ms`.
    fn late_text(&self, allowed_ms: f64) -> String {
        let late = self
            .latest
            .iter()
            .filter(|one| one.gap_ms.is_none_or(|gap_ms| gap_ms > allowed_ms));
        late.map(|one| {
            let gap = one.gap_ms.map_or("never went on".to_owned(), |gap_ms| {
                format!("went on after {gap_ms:.0} ms")
            });
            let lost = if one.lost == FlowLoss::Syn {
                "its handshake"
            } else {
                "data"
            };
            format!("\n    {} (seed {}) lost {lost} and {gap}", one.client, one.seed)
        })
        .collect()
    }

    fn text(&self, name: &str) -> String {
        let show = |spread: Option<Spread>| {
            spread.map_or("-".to_owned(), |spread| {
                format!("{:.0}/{:.0}/{:.0}", spread.median, spread.p99, spread.max)
            })
        };
        format!(
            "\n  {name}: {} flows hit, restart gap {} ms (SYN {}, data {}), completion {} ms (of all {}); median/p99/max; the lab's cable \
             was up to {:.0} ms late",
            self.flows_hit,
            show(self.restart_gap_ms),
            show(self.restart_gap_syn_ms),
            show(self.restart_gap_data_ms),
            show(self.completion_hit_ms),
            show(self.completion_ms),
            self.cable_late_ms,
        )
    }
}

impl EdgeFailoverFindings {
    /// The findings before the first run.
    pub fn empty(options: &EdgeFailoverOptions) -> Self {
        let rtt_ms = f64::from(options.rtt);
        let restart_ms = match options.cluster {
            ClusterPlace::NearServers => rtt_ms,
            // If the servers are far from the cluster, R1's copy of a SYN needs half a round trip more before data can flow.
            ClusterPlace::NearClients => rtt_ms * 1.5,
        };
        let gap_ms = match options.fault {
            ClusterFault::EdgePowerOff => SYN_TIMER_MS + rtt_ms,
            ClusterFault::EdgeKill | ClusterFault::EdgeUpgrade => 0.0,
            // The gap begins when the cables are plugged in. A string is up again when each edge hears that the other edge hears it.
            ClusterFault::BothReturn => restart_ms + 2.0 * HEARTBEAT.as_secs_f64() * 1e3,
            _ => restart_ms,
        };
        Self {
            fault: options.fault,
            edges: options.edges,
            hit: options.fault.is_of_edge().then_some(options.hit),
            failover_ms: options.failover.as_secs_f64() * 1e3,
            rtt_ms,
            policy: options.policy,
            second: options.second,
            limits: options.limits,
            caching_after: options.caching_after,
            cluster: options.cluster,
            nat: options.nat,
            without_conntrackd: options.without_conntrackd,
            ipv6: options.ipv6,
            connections: 0,
            connections_survived: 0,
            bytes_expected: 0,
            bytes_received: 0,
            sha256_match: true,
            resets_seen: 0,
            violations: Vec::new(),
            failures: Vec::new(),
            detection_ms: None,
            takeover_ms: None,
            gap_allowed_ms: gap_ms + f64::from(options.margin),
            detections: Default::default(),
            with: None,
            without: None,
            baseline: None,
        }
    }

    /// The findings of one variant.
    pub fn of(options: &EdgeFailoverOptions, variant: EdgeVariant, facts: &FailoverFacts) -> Self {
        let mut found = Self::empty(options);
        let flows = &facts.report.flows;
        let has_survived =
            |index: &usize| flows[*index].failure.is_none() && !facts.differing.contains(index);
        let survivors: Vec<_> = (0..flows.len()).filter(has_survived).collect();
        let bytes = |index: &usize| facts.plan.flows[*index].bytes;
        found.connections = flows.len() as u64;
        found.connections_survived = survivors.len() as u64;
        found.bytes_expected = facts.plan.flows.iter().map(|flow| flow.bytes).sum();
        found.bytes_received = survivors.iter().map(bytes).sum();
        found.sha256_match = facts.differing.is_empty();
        found.resets_seen = facts.trace.resets;
        append(&mut found.violations, facts.trace.violations.clone());
        let failures = flows.iter().filter_map(|flow| {
            let failure = flow.failure.as_ref()?;
            Some(format!("{:?}: {failure}", flow.local))
        });
        append(&mut found.failures, failures.collect());
        found.detections = [facts.detection_ms, facts.takeover_ms].map(|ms| ms.into_iter().collect());
        found.settle();
        *found.side_mut(variant) = Some(FailoverSide::of(facts));
        found
    }

    fn side_mut(&mut self, variant: EdgeVariant) -> &mut Option<FailoverSide> {
        match variant {
            EdgeVariant::With => &mut self.with,
            EdgeVariant::Without => &mut self.without,
            EdgeVariant::Baseline => &mut self.baseline,
        }
    }

    /// Whether the flows continued sooner with local recovery than without it. If not, the run does not show that local recovery helps.
    /// Also true if a flow never continued without local recovery, if only one of the two variants was played, if a variant has no restart
    /// gap, or if the fault hits an edge.
    fn recovery_helps(&self) -> bool {
        let (Some(with), Some(without)) = (&self.with, &self.without) else {
            return true;
        };
        let is_sooner = match (with.restart_gap_ms_p99, without.restart_gap_ms_p99) {
            (Some(with), Some(without)) => with < without,
            _ => true,
        };
        self.fault.is_of_edge() || without.not_restarted > 0 || is_sooner
    }

    fn settle(&mut self) {
        let [detections, takeovers] = &self.detections;
        self.detection_ms = Spread::of(detections.iter().copied());
        self.takeover_ms = Spread::of(takeovers.iter().copied());
    }
}

impl LabFindings for EdgeFailoverFindings {
    fn holds(&self) -> bool {
        // A short failover may hit no flow. This counts as a success only if flows were hit without local recovery, or if the fault hits an
        // edge.
        let would_hit = self.without.as_ref().is_some_and(|side| side.flows_hit > 0);
        let may_hit_none = self.fault.is_of_edge() || would_hit;
        let restarts = [&self.with, &self.baseline]
            .into_iter()
            .flatten()
            .all(|side| may_hit_none && side.flows_hit == 0 || side.restarts_within(self.gap_allowed_ms));
        restarts
            && self.recovery_helps()
            && self.connections_survived == self.connections
            && self.sha256_match
            && self.resets_seen == 0
            && self.violations.is_empty()
    }

    fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.connections_survived += other.connections_survived;
        self.bytes_expected += other.bytes_expected;
        self.bytes_received += other.bytes_received;
        self.sha256_match &= other.sha256_match;
        self.resets_seen += other.resets_seen;
        append(&mut self.violations, other.violations);
        append(&mut self.failures, other.failures);
        for (own, more) in self.detections.iter_mut().zip(other.detections) {
            own.extend(more);
        }
        self.settle();
        for (own, more) in [
            (&mut self.with, other.with),
            (&mut self.without, other.without),
            (&mut self.baseline, other.baseline),
        ] {
            match (own.as_mut(), more) {
                (Some(own), Some(more)) => own.add(more),
                (None, more) => *own = more,
                (Some(_), None) => {}
            }
        }
    }

    fn line(&self) -> String {
        format!(
            "{} of {} connections survived, {} resets, gap allowed {:.0} ms{}",
            self.connections_survived,
            self.connections,
            self.resets_seen,
            self.gap_allowed_ms,
            [
                (&self.with, "with"),
                (&self.without, "without"),
                (&self.baseline, "baseline")
            ]
            .into_iter()
            .filter_map(|(side, name)| {
                let p99 = side.as_ref()?.restart_gap_ms_p99?;
                Some(format!(", gap p99 {name} {p99:.1} ms"))
            })
            .collect::<String>()
        )
    }

    fn text(&self) -> String {
        let mut text = self.line();
        for (side, name) in [
            (&self.with, "with"),
            (&self.without, "without"),
            (&self.baseline, "baseline"),
        ] {
            text += &side.as_ref().map_or_else(String::new, |side| side.text(name));
        }
        for side in [&self.with, &self.baseline].into_iter().flatten() {
            text += &side.late_text(self.gap_allowed_ms);
        }
        if !self.recovery_helps() {
            text += "\n    without local recovery, the flows went on as soon";
        }
        for line in self.violations.iter().chain(&self.failures) {
            text += &format!("\n    {line}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: EdgeFailoverOptions,
    }

    /// A side of flows that lost something: which packets, the gap, and how late the lab's cable was.
    fn side(hit: &[(FlowLoss, u64, u64)]) -> FailoverSide {
        let mut side = FailoverSide::default();
        for &(lost, gap_ms, late_ms) in hit {
            side.note_gap(&HitFlow {
                index: 0,
                lost,
                gap_ns: Some(gap_ms * 1_000_000),
                cable_late_ns: late_ms * 1_000_000,
            });
        }
        side.settle();
        side
    }

    fn found(with_ms: u64, without_ms: u64) -> EdgeFailoverFindings {
        let side = |gap_ms| Some(side(&[(FlowLoss::Syn, gap_ms, 0)]));
        EdgeFailoverFindings {
            with: side(with_ms),
            without: side(without_ms),
            ..EdgeFailoverFindings::empty(&Line::parse_from(["edge-failover"]).options)
        }
    }

    #[test]
    fn a_run_holds_if_flows_go_on_soon_enough_and_sooner_than_without_recovery() {
        assert!(found(20, 360).holds());
        assert!(!found(360, 400).holds());
        assert!(!found(20, 20).holds());
    }

    #[test]
    fn flows_that_lost_their_handshake_are_judged_like_those_that_lost_data() {
        let of = |syn_ms, data_ms| {
            let mut found = found(0, 2000);
            let mut hit = vec![(FlowLoss::Data, data_ms, 0); 400];
            hit.push((FlowLoss::Syn, syn_ms, 0));
            found.with = Some(side(&hit));
            found.holds()
        };
        assert!(of(20, 20));
        assert!(!of(1000, 20), "the only SYN among 401 flows");
        assert!(!of(20, 1000));
    }

    #[test]
    fn what_the_labs_own_cable_was_late_does_not_count() {
        let of = |runs: &[&[(u64, u64)]]| {
            let mut found = found(0, 360);
            let mut sides = runs.iter().map(|flows| {
                let hit: Vec<_> = flows
                    .iter()
                    .map(|&(gap_ms, late_ms)| (FlowLoss::Data, gap_ms, late_ms))
                    .collect();
                side(&hit)
            });
            found.with = sides.next();
            sides.for_each(|side| found.with.as_mut().unwrap().add(side));
            (found.holds(), found.with.unwrap().restart_gap_ms_p99)
        };
        assert_eq!(of(&[&[(115, 10)]]), (true, Some(115.0)));
        assert_eq!(of(&[&[(115, 5)]]), (false, Some(115.0)));
        assert_eq!(
            of(&[&[(115, 5), (200, 100)]]),
            (false, Some(200.0)),
            "in another gap"
        );
        assert_eq!(
            of(&[&[(115, 5)], &[(3, 10)]]),
            (false, Some(115.0)),
            "in another run"
        );
    }

    #[test]
    fn a_run_that_hits_no_flow_shows_nothing_unless_some_are_hit_without_recovery() {
        let nothing = || Some(FailoverSide::default());
        let mut spared = found(20, 360);
        spared.with = nothing();
        assert!(spared.holds());
        spared.without = nothing();
        assert!(!spared.holds());
    }
}
