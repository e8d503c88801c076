//! The findings of one run, or of all runs of a command. Scripts rely on their JSON.

use proto::Instant;
use serde::Serialize;

use super::busy_stall::BusyStall;
use super::durations::{Durations, Felt, TakeoverCause};
use super::facts::{AFTER, BEFORE, FAULT, LogAtFault, RETURN, RunFacts};
use super::random::RandomReplies;
use super::round_report::{self, RoundReport};
use crate::client::Spread;
use crate::clock::ms;
use crate::emulator::{Passed, WanOptions};
use crate::node::ServerSoftware;
use crate::pair::expect::wrong_speakers;
use crate::pair::fault::{CrashFault, CrashTarget, Sequel};
use crate::pair::path::PathCut;
use crate::pair::unlogged::UnloggedPackets;
use crate::pair::{LanOptions, NodeLink, PairOptions, PolicyOption, Returning, WorkloadOption};
use crate::run::{LabFindings, SHOWN, append};
use judge::Capture;
use judge::{CommitMode, Finding};

/// The findings. Durations are over all connections of all runs.
#[derive(Debug, Default, Serialize)]
pub struct CrashFindings {
    policy: PolicyOption,
    mode: CommitMode,
    workload: WorkloadOption,
    server: ServerSoftware,
    fault: CrashFault,
    /// The node that the fault hit in the first run.
    node: Option<CrashTarget>,
    /// How the path was broken, with cut-service-path.
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<PathCut>,
    #[serde(flatten)]
    lan: LanOptions,
    /// The network of the cut link, with cut-link.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<NodeLink>,
    first_link: NodeLink,
    /// The number of annexes, if the fault needs some.
    #[serde(skip_serializing_if = "Option::is_none")]
    annexes: Option<u8>,
    registered_annexes: bool,
    stop_etcd: bool,
    then_power_off: bool,
    then_kill_server: bool,
    returning: Returning,
    baseline: bool,
    #[serde(flatten)]
    way: WanOptions,
    bytes_expected: u64,
    bytes_received: u64,
    sha256_match: bool,
    connections: usize,
    connections_survived: usize,
    /// Connections for which node b spoke in the end, as captured.
    connections_taken_over: u64,
    /// Number of connections whose last request was refused, because it must not or cannot be executed again.
    connections_refused: usize,
    /// Number of RSTs, in either direction, as captured at the client.
    resets_seen: u64,
    /// The first few RSTs.
    resets: Vec<Finding>,
    /// The first few violations of the judge's rules.
    violations: Vec<Finding>,
    violations_more: u64,
    /// Statements about the run that the captures cannot prove, with the reasons.
    unproven: Vec<String>,
    /// A connection's longest wait for a byte around the fault.
    stall_ms: Option<Spread>,
    /// A connection's longest wait for a byte around the event after the fault, such as a return or an agent's death.
    second_stall_ms: Option<Spread>,
    /// From the fault (with --then-power-off or --then-kill-server: the second fault) to the declaration of a takeover or the beginning of a claim.
    /// `None` without a takeover or a claim.
    detection_ms: Option<Spread>,
    /// From the declaration until a connection could go on.
    takeover_ms: Option<Spread>,
    /// From the declaration of a run's last takeover until the first connection could go on after it. The longest such time of all runs.
    first_live_ms: Option<f64>,
    /// The part of the stall after the connection could go on. 0 if the stall ended earlier, because bytes arrived that were still on the
    /// way at the fault.
    restart_gap_ms: Option<Spread>,
    /// The longest wait of any connection before the fault. `None` if all waits were too short to be remembered.
    baseline_gap_ms: Option<f64>,
    /// Whether connections at work waited no longer than the limit. `None` if there was no takeover, and no claim after a living wire
    /// gave way.
    busy_stall: Option<BusyStall>,
    /// After a handover or a drain: connections for each second of CPU time that both daemons and their keepers used from the order until
    /// all connections were decided, and the node that gave them up had ended its own. The requests that were relayed meanwhile are included, so idle connections show the cost of a move.
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_per_cpu_s: Option<f64>,
    /// From a returning node's first heartbeat to the first segment that it forwarded, as captured. Over all returns.
    integration_ms: Option<Spread>,
    /// The longest wait of any connection from the return until the pair was whole again. Over all returns.
    integration_gap_ms: Option<Spread>,
    /// How long connections that were moved by order were unprotected: from the order until the new wire protected all of them, over all moves.
    /// `None` if no move was watched, or if they were not protected in time.
    protected_ms: Option<Spread>,
    /// The rounds, with --rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rounds: Vec<RoundReport>,
    /// What random replies show, if the server's replies are random.
    #[serde(skip_serializing_if = "Option::is_none")]
    random: Option<RandomReplies>,
    /// The log just before the fault, for each run that tests the log's limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    log_at_fault: Vec<LogAtFault>,
    /// With pause-agent: what passed unlogged meanwhile, over all runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    unlogged: Option<UnloggedPackets>,
    /// Number of times the speaking node has changed since the fault, over all runs.
    role_changes: u64,
    /// Connections that were under way when the fault hit.
    connections_at_fault: usize,
    /// Connections still under way at the event after the fault. Only such connections can show that the event changes nothing.
    connections_at_second: usize,
    /// The first few reasons why connections did not survive.
    failures: Vec<String>,
    captures: Vec<Capture>,
    #[serde(skip_serializing_if = "Option::is_none")]
    emulated: Option<[Passed; 2]>,
    #[serde(skip)]
    durations: Durations,
}

impl CrashFindings {
    /// The findings of one run from its `facts`. Adds to `problems` everything that the daemons failed to do, and the reasons why the run
    /// may prove nothing.
    pub fn new(options: &PairOptions, facts: &RunFacts, problems: &mut Vec<String>) -> Self {
        let (client, verdict) = (&facts.client, &facts.judged.verdict);
        let failures = client.connections.iter().enumerate().filter_map(|(index, one)| {
            let failure = one.failure.as_ref()?;
            let local = one
                .local
                .map_or_else(|| "?".to_owned(), |local| local.to_string());
            Some(format!("connection {index} ({local}): {failure}"))
        });
        let under_way = |at: Instant| {
            let ended = client.connections.iter().map(|one| one.ended_ns);
            ended.filter(|&ended_ns| ended_ns > at.as_nanos()).count()
        };
        problems.extend(facts.aftermath.problems.iter().cloned());
        let reigns: Vec<_> = verdict.reigns.iter().map(|reign| reign.node).collect();
        problems.extend(wrong_speakers(options, &reigns));
        let mut found = Self {
            node: Some(facts.target),
            bytes_expected: client.bytes_expected(),
            bytes_received: client.bytes_received(),
            sha256_match: client.sha256_match(),
            connections: client.connections.len(),
            connections_survived: client.survivors(),
            connections_taken_over: verdict.connections_taken_over,
            connections_refused: client.connections.iter().filter(|one| one.was_refused).count(),
            resets_seen: verdict.resets_seen(),
            resets: verdict.resets.iter().take(SHOWN).cloned().collect(),
            violations_more: verdict.violations_more,
            unproven: verdict.unproven.clone(),
            role_changes: facts.aftermath.role_changes,
            connections_at_fault: under_way(facts.aftermath.fault_at),
            connections_at_second: facts.aftermath.second_at.map_or(0, under_way),
            failures: failures.take(SHOWN).collect(),
            durations: durations(options, facts),
            log_at_fault: facts.log.iter().cloned().collect(),
            random: facts.random.clone(),
            unlogged: facts.aftermath.unlogged,
            moved_per_cpu_s: moved_per_cpu_s(options, facts),
            first_live_ms: facts.aftermath.takeovers.last().and_then(|takeover| {
                let first = takeover.first_live_ns?;
                Some(ms(takeover.declared_ns, first))
            }),
            captures: facts.judged.captures.clone(),
            emulated: facts.judged.emulated,
            ..Self::empty(options)
        };
        if !facts.rounds.is_empty() {
            (found.rounds, found.durations) = round_report::add_to(facts);
            problems.extend(found.rounds.iter().filter_map(RoundReport::problem));
        }
        found.add_violations(verdict.violations.clone());
        problems.extend(found.emptiness(options.sequel(facts.target)).map(str::to_owned));
        if facts.aftermath.second_at.is_some() && found.connections_at_second == 0 && !options.baseline {
            problems.push("no connection was under way at the second event".to_owned());
        }
        if let Some((at_limit, log)) = options.log.at_limit.zip(facts.log.as_ref())
            && !log.shows(at_limit)
        {
            problems.push(format!(
                "no log was at its limit when the fault hit ({} reads of the status found at most {} bytes in memory)",
                log.reads, log.memory_bytes_max
            ));
        }
        if options.mode == CommitMode::Immediate
            && let Some(unlogged) = found.unlogged
        {
            problems.extend(unlogged.problem().map(str::to_owned));
        }
        found.sum_up();
        found
    }

    /// The findings before the first run.
    pub fn empty(options: &PairOptions) -> Self {
        Self {
            policy: options.policy,
            mode: options.mode,
            workload: options.workload,
            server: options.application(),
            fault: options.fault,
            node: options.node,
            how: (options.fault == CrashFault::CutServicePath).then_some(options.how),
            lan: options.lan,
            link: (options.fault == CrashFault::CutLink).then_some(options.link),
            first_link: options.first_link,
            annexes: options.fault.needs_annexes().then_some(options.annexes),
            registered_annexes: options.registered_annexes,
            stop_etcd: options.stop_etcd,
            then_power_off: options.then_power_off,
            then_kill_server: options.then_kill_server,
            returning: options.returning,
            baseline: options.baseline,
            way: options.way,
            sha256_match: true,
            ..Self::default()
        }
    }

    /// Returns the reason if the run proves nothing: no connection was under way, or the required event did not happen.
    fn emptiness(&self, sequel: Sequel) -> Option<&'static str> {
        let must_take_over = match sequel {
            Sequel::Takeover | Sequel::TakeoverOfSome => !self.baseline,
            Sequel::Claim | Sequel::AtMostOne => false,
            Sequel::Nothing => self.then_power_off || self.then_kill_server,
        };
        if self.connections_at_fault == 0 {
            Some("no connection was under way when the fault hit")
        } else if must_take_over && self.connections_taken_over == 0 {
            Some("node b never spoke for any connection")
        } else {
            None
        }
    }

    /// Returns a problem if connections at work waited longer than the limit, or if their waits were not measured.
    pub fn broken_limit(&self) -> Option<String> {
        let is_broken = self.busy_stall.is_none_or(|busy| !busy.kept);
        is_broken.then(|| {
            "connections at work waited longer than the limit, or were not measured: see busy_stall"
                .to_owned()
        })
    }

    fn add_violations(&mut self, more: Vec<Finding>) {
        self.violations_more += append(&mut self.violations, more);
    }

    fn sum_up(&mut self) {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        self.stall_ms = spread(&self.durations.stall);
        self.second_stall_ms = spread(&self.durations.second_stall);
        self.detection_ms = spread(&self.durations.detection);
        self.takeover_ms = spread(&self.durations.takeover);
        self.restart_gap_ms = spread(&self.durations.restart_gap);
        self.integration_ms = spread(&self.durations.integration);
        self.integration_gap_ms = spread(&self.durations.integration_gap);
        self.protected_ms = spread(&self.durations.protected);
        self.baseline_gap_ms = spread(&self.durations.baseline_gap).map(|spread| spread.max);
        // With policy replay, a client waits until the application has got the connection's whole input again. With commit mode pr, the
        // survivor waits for the end of the primary's lease. So no limit applies.
        let is_limited = self.policy != PolicyOption::Replay && self.mode == CommitMode::Prs;
        let busy_stall = BusyStall::of(&self.durations, self.way.rtt_ms.unwrap_or(0.0));
        self.busy_stall = busy_stall.filter(|_| is_limited);
    }
}

impl LabFindings for CrashFindings {
    fn holds(&self) -> bool {
        self.connections_survived == self.connections
            && self.sha256_match
            && self.bytes_received == self.bytes_expected
            && self.resets_seen == 0
            && self.violations.is_empty()
            && self.unproven.is_empty()
    }

    fn add(&mut self, other: Self) {
        self.node = self.node.or(other.node);
        if self.captures.is_empty() {
            self.captures = other.captures;
        }
        self.emulated = self.emulated.or(other.emulated);
        self.bytes_expected += other.bytes_expected;
        self.bytes_received += other.bytes_received;
        self.sha256_match &= other.sha256_match;
        self.connections += other.connections;
        self.connections_survived += other.connections_survived;
        self.connections_refused += other.connections_refused;
        self.role_changes += other.role_changes;
        self.connections_at_fault += other.connections_at_fault;
        self.connections_at_second += other.connections_at_second;
        self.connections_taken_over += other.connections_taken_over;
        self.resets_seen += other.resets_seen;
        append(&mut self.resets, other.resets);
        self.violations_more += other.violations_more;
        self.add_violations(other.violations);
        append(&mut self.unproven, other.unproven);
        append(&mut self.failures, other.failures);
        self.durations.add(other.durations);
        self.moved_per_cpu_s = self.moved_per_cpu_s.or(other.moved_per_cpu_s);
        self.rounds.extend(other.rounds);
        self.log_at_fault.extend(other.log_at_fault);
        if let Some(random) = other.random {
            self.random.get_or_insert_default().add(&random);
        }
        if let Some(unlogged) = other.unlogged {
            self.unlogged.get_or_insert_default().add(unlogged);
        }
        // `None` is less than any value.
        if other.first_live_ms > self.first_live_ms {
            self.first_live_ms = other.first_live_ms;
        }
        self.sum_up();
    }

    fn line(&self) -> String {
        let stall = self.stall_ms.map_or_else(
            || "-".to_owned(),
            |stall| format!("{:.1}/{:.1} ms", stall.median, stall.max),
        );
        let node = self
            .node
            .map_or_else(String::new, |node| format!("{node:?}: ").to_lowercase());
        let refused = match self.connections_refused {
            0 => String::new(),
            count => format!(" ({count} with a last request refused)"),
        };
        format!(
            "{node}{} of {} connections survived{refused}, {} resets, {} violations, stall (median/max) {stall}",
            self.connections_survived,
            self.connections,
            self.resets_seen,
            self.violations.len() as u64 + self.violations_more,
        )
    }

    fn text(&self) -> String {
        let mut text = self.line();
        let parts = [
            ("stall", self.stall_ms),
            ("= detection", self.detection_ms),
            ("+ takeover", self.takeover_ms),
            ("+ restart gap", self.restart_gap_ms),
            ("afterwards", self.second_stall_ms),
            ("integration", self.integration_ms),
            ("its gap", self.integration_gap_ms),
            ("protected", self.protected_ms),
        ];
        for (name, spread) in parts {
            if let Some(Spread { median, p99, max }) = spread {
                text +=
                    &format!("\n  {name:<14} median {median:8.2} ms   p99 {p99:8.2} ms   max {max:8.2} ms");
            }
        }
        if let Some(random) = &self.random {
            text += &format!("\n  {}", random.line());
        }
        if let Some(UnloggedPackets { packets, unprotected }) = self.unlogged {
            text += &format!(
                "\n  {packets} packets passed unlogged, {unprotected} connections are unprotected for this reason"
            );
        }
        if let Some(busy) = self.busy_stall {
            text += &format!("\n  {}", busy.line());
        }
        if let Some(per_s) = self.moved_per_cpu_s {
            text += &format!("\n  {per_s:.0} connections moved for each second of the daemons' CPU time");
        }
        for round in &self.rounds {
            text += &format!("\n  {}", round.line());
        }
        let found = self.resets.iter().chain(&self.violations).map(|found| {
            let at = found.point.name();
            format!(
                "{:?} at {at}, {}: {} ({} times): {}",
                found.rule, found.client, found.what, found.times, found.packet
            )
        });
        let unproven = self.unproven.iter().map(|what| format!("not proven: {what}"));
        for problem in found.chain(unproven).chain(self.failures.iter().cloned()) {
            text += &format!("\n  {problem}");
        }
        text
    }
}

/// Connections that an order moved, for each second of the daemons' CPU time.
fn moved_per_cpu_s(options: &PairOptions, facts: &RunFacts) -> Option<f64> {
    let seconds = facts.aftermath.daemons_cpu.as_secs_f64();
    let is_known = options.fault.is_order() && options.rounds.is_none() && seconds > 0.0;
    is_known.then(|| f64::from(options.connections) / seconds)
}

/// The parts of the stall, for each connection.
fn durations(options: &PairOptions, facts: &RunFacts) -> Durations {
    let felt = Felt {
        client: &facts.client,
        idle: facts.idle,
    };
    let mut durations = Durations {
        stall: felt.waits(FAULT).collect(),
        baseline_gap: felt.gaps(BEFORE).collect(),
        fault_free_gap: felt.waits(BEFORE).collect(),
        protected: facts.aftermath.protected_ms.clone(),
        ..Durations::default()
    };
    if facts.aftermath.second_at.is_some() {
        durations.second_stall = Felt { idle: 0, ..felt }.waits(AFTER).collect();
    }
    if let Some(integration) = &facts.aftermath.integration {
        durations.integration.extend(integration.ms());
        durations
            .integration_gap
            .extend(felt.gaps(RETURN).reduce(f64::max));
    }
    if let Some(deadly_at) = facts.aftermath.deadly_at {
        let cause = TakeoverCause {
            deadly_at,
            told: if facts.aftermath.deadly_at == facts.aftermath.second_at {
                AFTER
            } else {
                FAULT
            },
            takeovers: &facts.aftermath.takeovers,
            taken_over: &facts.aftermath.taken_over,
        };
        durations.add_takeover(felt, cause);
    }
    if options.fault.is_order() {
        durations.add_planned(felt);
    }
    if let Some(claimed_at) = facts.aftermath.claimed_at {
        let is_limited = options.is_measured_claim(options.sequel(facts.target));
        durations.add_claim(felt, facts.aftermath.fault_at, claimed_at, is_limited);
    }
    durations
}
