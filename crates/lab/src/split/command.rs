//! The options of the split experiment, and its cells: each arbiter with each fault.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::cell::{self, Cell};
use super::fault::SplitFault;
use super::picture;
use crate::node::Assume;
use crate::pair::{LanOptions, PairOptions, WorkloadOption};
use crate::run::{Lab, LabFindings, LabRun, RunOptions, append, value_name};

/// Number of connections in each cell.
const CONNECTIONS: u32 = 20;

/// Separate two living nodes, or stop one of them for a while, and show which node spoke for the service when.
///
/// A cell is one fault with one arbiter, which decides which node may speak: fail-stop (no arbiter: a node that is not heard counts as
/// dead), fence (a command that turns the other node's power off), slow-fence (a fence whose command takes two seconds) or etcd. Clients
/// send requests all the time, and in the end a new client must be served. Captures at the router show which node spoke when. With fence
/// and etcd two nodes must never speak at the same time. If only one node can serve the clients, this node must go on before the fault
/// ends, within the time that the configuration promises. No command may fence this node. With fail-stop, these rules do not apply to
/// cells in which a living node is silent to its peer, unless one node is isolated. In such cells the values are only measured and shown.
/// In no cell may a client get a wrong byte.
#[derive(Clone, Debug, Args)]
pub struct SplitOptions {
    /// The faults; default: all, one after the other.
    #[arg(long = "fault", value_enum, value_delimiter = ',')]
    faults: Vec<SplitFault>,
    /// The arbiter; default: each.
    #[arg(long, value_enum, value_delimiter = ',')]
    assume: Vec<Assume>,
    /// Members of etcd.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    members: u8,
    /// Write an HTML page to this file. Its picture shows which node spoke at which time.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    lan: LanOptions,
    #[command(flatten)]
    run: RunOptions,
}

/// All cells. Faults cut only the first network between the nodes, which clients also use.
#[derive(Debug, Serialize)]
pub struct SplitFindings {
    #[serde(flatten)]
    lan: LanOptions,
    connections: usize,
    connections_survived: usize,
    resets_seen: usize,
    /// Times in which both nodes spoke although an arbiter decides which node may, and connections that got a wrong byte.
    violations: Vec<String>,
    /// Time in which both nodes spoke, by `ASSUME/FAULT`. With several runs, the longest of their times.
    two_speakers_ms: BTreeMap<String, f64>,
    cells: Vec<Cell>,
}

impl SplitOptions {
    /// The run of a cell with the arbiter `assume`.
    fn pair(&self, assume: Assume) -> PairOptions {
        PairOptions {
            run: self.run.clone(),
            lan: self.lan,
            assume,
            members: self.members,
            ..PairOptions::new(WorkloadOption::Request, CONNECTIONS)
        }
    }
}

impl Lab for SplitOptions {
    type Part = (Assume, SplitFault);
    type Findings = SplitFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check_machine(&self) -> Result<()> {
        let mut arbiters = self.parts().into_iter().map(|(assume, _)| assume);
        arbiters.try_for_each(|assume| self.pair(assume).check_machine(&[]))
    }

    fn parts(&self) -> Vec<(Assume, SplitFault)> {
        let (assumes, faults) = (or_all(&self.assume), or_all(&self.faults));
        let of = |&assume| faults.iter().map(move |&fault| (assume, fault));
        assumes.iter().flat_map(of).collect()
    }

    fn selection(&self, (assume, fault): (Assume, SplitFault)) -> Vec<(&'static str, String)> {
        vec![("assume", value_name(&assume)), ("fault", value_name(&fault))]
    }

    fn nothing(&self) -> SplitFindings {
        SplitFindings {
            lan: self.lan,
            connections: 0,
            connections_survived: 0,
            resets_seen: 0,
            violations: Vec::new(),
            two_speakers_ms: BTreeMap::new(),
            cells: Vec::new(),
        }
    }

    fn play(
        &self,
        (assume, fault): (Assume, SplitFault),
        run: &LabRun<'_>,
        problems: &mut Vec<String>,
    ) -> Result<SplitFindings> {
        let cell = cell::play(&self.pair(assume), fault, run, problems)?;
        Ok(SplitFindings {
            connections: cell.connections,
            connections_survived: cell.survived,
            resets_seen: cell.reset,
            violations: cell.violations(),
            two_speakers_ms: BTreeMap::from([(cell.key(), cell.two_speakers_ms)]),
            cells: vec![cell],
            ..self.nothing()
        })
    }

    fn conclude(&self, findings: &SplitFindings, _problems: &mut Vec<String>) -> Result<()> {
        match &self.picture {
            Some(path) => {
                fs::write(path, picture::render(&findings.cells)).with_context(|| path.display().to_string())
            }
            None => Ok(()),
        }
    }
}

impl LabFindings for SplitFindings {
    fn holds(&self) -> bool {
        self.cells.iter().all(|cell| cell.ok)
    }

    fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.connections_survived += other.connections_survived;
        self.resets_seen += other.resets_seen;
        append(&mut self.violations, other.violations);
        for (key, ms) in other.two_speakers_ms {
            let longest = self.two_speakers_ms.entry(key).or_default();
            *longest = longest.max(ms);
        }
        self.cells.extend(other.cells);
    }

    fn line(&self) -> String {
        match &self.cells[..] {
            [cell] => cell.line(),
            cells => {
                let held = cells.iter().filter(|cell| cell.ok).count();
                format!("requirements met in {held} of {} cells", cells.len())
            }
        }
    }
}

fn or_all<T: ValueEnum>(chosen: &[T]) -> &[T] {
    if chosen.is_empty() {
        T::value_variants()
    } else {
        chosen
    }
}
