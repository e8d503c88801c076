//! `steadfast-lab split`: finds which node speaks when both are alive, but do not hear each other or one of them is stopped.

mod cell;
mod fault;
mod picture;
mod silence;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use self::cell::Cell;
use self::fault::SplitFault;
use super::{CrashOptions, WorkloadOption, preflight};
use crate::LabOutcome;
use crate::node::Assume;

/// Number of connections in each cell.
const CONNECTIONS: u32 = 20;

/// Separate two living nodes, or let one of them sleep, and say who spoke for the service when.
///
/// Each fault is played with each way to decide who may speak: fail-stop (nobody decides: silence is taken for death), fence (a
/// command that turns the other node's power off), slow-fence (one that takes two seconds) and etcd. Clients send requests all the time,
/// and in the end a new one must be served. From captures at the router it is found which node spoke when. With fence and etcd two nodes
/// must never speak at the same time. If only one node can serve the clients, this node must go on before the fault ends, within the time
/// that the configuration promises. No command may fence this node. With fail-stop, these rules do not apply to cells in which a living
/// node is silent to a peer that clients reach: in these cells, the values are only measured and shown. In no cell may a client get a
/// wrong byte.
#[derive(Clone, Debug, Args)]
pub struct SplitOptions {
    /// What happens; default: everything, one after the other.
    #[arg(long = "fault", value_enum, value_delimiter = ',')]
    faults: Vec<SplitFault>,
    /// The arbiter; default: each.
    #[arg(long, value_enum, value_delimiter = ',')]
    assume: Vec<Assume>,
    /// Members of etcd.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    members: u8,
    /// Networks between the nodes that carry heartbeats. Faults cut only the first network, which clients also use.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    links: u8,
    /// Use IPv6.
    #[arg(long)]
    ipv6: bool,
    /// Decides the data; the same in every cell.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw who spoke when into this file (HTML).
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Keep captures and logs in this directory, one subdirectory for each cell.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// The daemon under test; default: `steadfast` beside this program.
    #[arg(long, value_name = "PATH")]
    steadfast: Option<PathBuf>,
}

/// All cells.
#[derive(Debug, Serialize)]
struct SplitReport {
    /// Whether every cell held.
    ok: bool,
    links: u8,
    ipv6: bool,
    /// Time in which both nodes spoke, by `ASSUME/FAULT`.
    two_speakers_ms: BTreeMap<String, f64>,
    cells: Vec<Cell>,
}

impl SplitOptions {
    fn cells(&self) -> Vec<(Assume, SplitFault)> {
        let or_all = |chosen: &[SplitFault]| match chosen {
            [] => SplitFault::value_variants().to_vec(),
            chosen => chosen.to_vec(),
        };
        let faults = or_all(&self.faults);
        let assumes = match &self.assume[..] {
            [] => Assume::value_variants(),
            chosen => chosen,
        };
        let with = |&assume: &Assume| {
            faults
                .iter()
                .map(move |&fault| (assume, fault))
                .collect::<Vec<_>>()
        };
        assumes.iter().flat_map(with).collect()
    }

    /// The same options for `steadfast-lab crash`, with the arbiter `assume`.
    fn of_crash(&self, assume: Assume) -> CrashOptions {
        CrashOptions {
            assume,
            members: self.members,
            links: self.links,
            ipv6: self.ipv6,
            keep: self.keep.clone(),
            ..CrashOptions::single(
                WorkloadOption::Request,
                CONNECTIONS,
                self.seed,
                self.steadfast.clone(),
            )
        }
    }
}

/// Plays all cells and prints their results.
///
/// # Errors
/// If a cell could not be played.
pub fn split(options: &SplitOptions) -> Result<LabOutcome> {
    let chosen = options.cells();
    for &(assume, _) in &chosen {
        preflight::check(&options.of_crash(assume))?;
    }
    let mut cells = Vec::new();
    for (number, &(assume, fault)) in chosen.iter().enumerate() {
        let run = format!("{}-{number}", std::process::id());
        let cell = cell::play(&options.of_crash(assume), fault, options.seed, &run)?;
        if !options.json {
            println!("{}", cell.line());
        }
        cells.push(cell);
    }
    if let Some(path) = &options.picture {
        fs::write(path, picture::render(&cells)).with_context(|| path.display().to_string())?;
    }
    let report = SplitReport {
        ok: cells.iter().all(|cell| cell.ok),
        links: options.links,
        ipv6: options.ipv6,
        two_speakers_ms: cells
            .iter()
            .map(|cell| (cell.key(), cell.two_speakers_ms))
            .collect(),
        cells,
    };
    if options.json {
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    }
    Ok(if report.ok {
        LabOutcome::Held
    } else {
        LabOutcome::DidNotHold
    })
}
