//! `steadfast-lab cluster`: several nodes, services paired across them, a witness, and a node's power goes off.

mod network;
mod play;
mod report;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use self::report::ClusterReport;
use crate::LabOutcome;
use crate::crash::check_machine;
use crate::node::{Assume, ServerSoftware};
use crate::teardown::Teardown;

/// Pair services across several nodes, and turn one node's power off under load.
///
/// Node k is the primary of service k and the backup of service k−1. Each pair has a LAN of its own and a daemon of its own on both
/// nodes, since a daemon has one peer. Clients send requests to all services. With etcd, of three members one is
/// killed first. Then a node is drained under load and comes back as the wire of what it had; then one loses its power: its peers must take
/// over the services of which it is the primary then, and go on without a wire with the others. No connection of any service may be lost.
#[derive(Clone, Debug, Args)]
pub struct ClusterOptions {
    /// Nodes, each with a service.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=5))]
    nodes: u8,
    /// The node that is drained under load before that, and comes back.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=4))]
    drain: u8,
    /// The node whose power goes off.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=4))]
    off: u8,
    /// The arbiter, which decides which node of a pair may speak when they do not hear each other.
    #[arg(long, value_enum, default_value_t = Assume::Etcd)]
    assume: Assume,
    /// Connections of each service.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=500))]
    connections: u16,
    /// Decides the data.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Keep captures and logs in this directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// The daemon under test; default: `steadfast` beside this program.
    #[arg(long, value_name = "PATH")]
    steadfast: Option<PathBuf>,
}

/// The server on every node.
const APPLICATION: ServerSoftware = ServerSoftware::Nginx;

/// Plays the run and prints its report.
///
/// # Errors
/// If the run could not be played; [`crate::WrongUse`] if the options do not fit together.
pub fn cluster(options: &ClusterOptions) -> Result<LabOutcome> {
    for (option, node) in [("--off", options.off), ("--drain", options.drain)] {
        if node >= options.nodes {
            return Err(crate::WrongUse(format!("{option}: there is no such node")).into());
        }
    }
    if matches!(options.assume, Assume::Fence | Assume::SlowFence) {
        return Err(
            crate::WrongUse("--assume: a cluster is played with fail-stop or etcd".to_owned()).into(),
        );
    }
    let steadfast = check_machine(options.assume, options.steadfast.clone())?;
    let run = std::process::id().to_string();
    let teardown = Teardown::start()?;
    let report = play::play(options, steadfast, &run, &teardown);
    teardown.finish()?;
    let report: ClusterReport = report?;
    let mut stdout = std::io::stdout().lock();
    if options.json {
        writeln!(stdout, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(stdout, "{}", report.text())?;
    }
    Ok(if report.ok {
        LabOutcome::Held
    } else {
        LabOutcome::DidNotHold
    })
}
