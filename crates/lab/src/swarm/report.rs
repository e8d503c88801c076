//! The report of a swarm.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use sim::swarm::{FaultKind, PairPhase, RunOutcome};

/// The report of a swarm.
#[derive(Clone, Debug, Serialize)]
pub struct SwarmReport {
    pub ok: bool,
    pub runs: u64,
    /// Seed of the first run.
    pub seed: u64,
    pub violations: Vec<Broken>,
    /// How often each fault happened in each phase of the pair. The row `double` counts faults that happened before another fault was
    /// repaired.
    pub coverage: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// Number of cells of `coverage` that are zero.
    pub empty_cells: u64,
    pub runs_per_cpu_second: f64,
    pub connections: u64,
    /// Connections that no node could continue at some time, and that did not complete.
    pub connections_orphaned: u64,
    /// Connections for which a node spoke under its lease, and then failed or was replaced before the other node knew the
    /// sent data.
    pub connections_lent_in_vain: u64,
    /// Connections for which a node spoke after its lease had ended, while the other node spoke. The node could not know this, because its
    /// clock had stood still.
    pub connections_outlasted: u64,
    /// How often both nodes were off because each node's fence had switched off the other node.
    pub mutual_fences: u64,
    /// Snapshots that backups kept (policy `snapshot`).
    pub snapshots_kept: u64,
    /// States from which applications went on after a takeover (policy `snapshot`).
    pub states_imported: u64,
    /// Connections that moved from a living primary to its backup (`migrate`).
    pub connections_migrated: usize,
    /// Sockets that began to speak on annexes (`migrate --to`).
    pub connections_annexed: usize,
    /// Connections that moved back from annexes to the primary.
    pub connections_moved_back: usize,
    /// Packets that passed unlogged: while an agent was away, or with commit mode `immediate`.
    pub packets_unlogged: u64,
    /// Runs in which both nodes spoke, as `assume = "fail-stop"` allows.
    pub runs_split: u64,
    pub simulated_s: f64,
}

/// The first rule that a run broke.
#[derive(Clone, Debug, Serialize)]
pub struct Broken {
    pub seed: u64,
    pub rule: String,
    pub what: String,
    /// The command that replays the run.
    pub replay: String,
}

const DOUBLE: &str = "double";

impl SwarmReport {
    pub fn new(seed: u64, runs: u64) -> Self {
        let phases = || PairPhase::ALL.map(|phase| (phase.name(), 0)).into();
        let rows = FaultKind::ALL.map(FaultKind::name).into_iter().chain([DOUBLE]);
        Self {
            ok: true,
            runs,
            seed,
            violations: Vec::new(),
            coverage: rows.map(|row| (row, phases())).collect(),
            empty_cells: 0,
            runs_per_cpu_second: 0.0,
            connections: 0,
            connections_orphaned: 0,
            connections_lent_in_vain: 0,
            connections_outlasted: 0,
            mutual_fences: 0,
            snapshots_kept: 0,
            connections_migrated: 0,
            connections_annexed: 0,
            connections_moved_back: 0,
            packets_unlogged: 0,
            states_imported: 0,
            runs_split: 0,
            simulated_s: 0.0,
        }
    }

    fn count(&mut self, row: &'static str, phase: PairPhase) {
        *self
            .coverage
            .entry(row)
            .or_default()
            .entry(phase.name())
            .or_default() += 1;
    }

    /// Adds a run's outcome. Only the first broken rule of a run is reported.
    pub fn add(&mut self, seed: u64, outcome: RunOutcome, annexes: bool) {
        for &(kind, phase) in &outcome.injected {
            self.count(kind.name(), phase);
        }
        for &phase in &outcome.doubles {
            self.count(DOUBLE, phase);
        }
        self.connections += outcome.connections as u64;
        self.connections_orphaned += outcome.orphaned as u64;
        self.connections_lent_in_vain += outcome.lent_in_vain as u64;
        self.connections_outlasted += outcome.outlasted as u64;
        self.mutual_fences += outcome.mutual_fences as u64;
        self.snapshots_kept += outcome.snapshots.0;
        self.states_imported += outcome.snapshots.1;
        self.connections_migrated += outcome.migrated;
        self.connections_annexed += outcome.annexed.0;
        self.connections_moved_back += outcome.annexed.1;
        self.packets_unlogged += outcome.unlogged;
        self.runs_split += u64::from(outcome.was_split);
        self.simulated_s += outcome.time.as_secs_f64();
        let option = if annexes { " --annexes" } else { "" };
        let first = outcome.violations.into_iter().next();
        self.violations.extend(first.map(|violation| Broken {
            seed,
            rule: violation.rule,
            what: violation.what,
            replay: format!("steadfast-lab replay --seed {seed}{option}"),
        }));
    }

    pub fn finish(&mut self, cpu_seconds: f64) {
        self.violations.sort_by_key(|broken| broken.seed);
        self.ok = self.violations.is_empty();
        let cells = self.coverage.values().flat_map(BTreeMap::values);
        self.empty_cells = cells.filter(|count| **count == 0).count() as u64;
        if cpu_seconds > 0.0 {
            let runs = self.runs as f64;
            self.runs_per_cpu_second = runs / cpu_seconds;
        }
    }
}

impl fmt::Display for SwarmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:12}", "")?;
        for phase in PairPhase::ALL {
            write!(f, " {:>12}", phase.name())?;
        }
        writeln!(f)?;
        for (fault, cells) in &self.coverage {
            write!(f, "{fault:12}")?;
            for phase in PairPhase::ALL {
                write!(f, " {:12}", cells.get(phase.name()).copied().unwrap_or(0))?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "{} runs from seed {}, {:.0} per CPU second; {} connections, {} orphaned, {} with an unconfirmed lease, {} outlasted; {} mutual fences; \
             {} runs split; {} snapshots kept, {} imported; {} connections migrated, \
             {} to annexes, {} back from there; {} packets unlogged",
            self.runs,
            self.seed,
            self.runs_per_cpu_second,
            self.connections,
            self.connections_orphaned,
            self.connections_lent_in_vain,
            self.connections_outlasted,
            self.mutual_fences,
            self.runs_split,
            self.snapshots_kept,
            self.states_imported,
            self.connections_migrated,
            self.connections_annexed,
            self.connections_moved_back,
            self.packets_unlogged
        )?;
        for broken in &self.violations {
            writeln!(
                f,
                "seed {}: {}: {}\n  {}",
                broken.seed, broken.rule, broken.what, broken.replay
            )?;
        }
        writeln!(f, "{} violations", self.violations.len())
    }
}
