//! `steadfast-lab crash`: real clients, a real server, and its power goes off in the middle.

mod baseline;
mod demo;
mod fault;
mod play;
mod preflight;
mod repeat;
mod report;
mod sample;
mod stage;
mod work;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::capture;
use crate::emulator::Way;
use crate::node::Application;
use crate::{Outcome, WrongUse};

pub use demo::{DemoOptions, demo};
pub use sample::{Sample, sample};

/// Turn the primary's power off under load, and say whether every connection survived.
///
/// Clients talk through a router to a virtual address that two nodes protect. Node a, the primary, loses its power; node b must go on with
/// every connection as if nothing had happened. A little later node a's cable is plugged in again, with its old
/// sockets still alive, and that must change nothing. Clients check every byte; a judge reads captures taken at the
/// client, the router and both nodes.
///
/// Prints what was found; with --json one object on stdout, whose `ok` says the same as the exit code. If a run fails, its
/// seed and the command that repeats it are printed, and --keep DIR keeps its captures and logs.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// How the server starts again: http (nginx, on the survivor once the primary is dead) or replica (redis, on both).
    #[arg(long, value_enum, default_value_t = Policy::Http)]
    policy: Policy,
    /// What the connections do while the power goes off.
    #[arg(long, value_enum, default_value_t = Workload::Download)]
    workload: Workload,
    /// What happens to the primary.
    #[arg(long, value_enum, default_value_t = Fault::PowerOff)]
    fault: Fault,
    /// How the old primary comes back when its cable is plugged in again.
    #[arg(long, value_enum, default_value_t = Returning::Frozen)]
    returning: Returning,
    /// Connections, all at once.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Megabytes (10⁶ bytes) that a download or upload carries over all connections; default: what takes about three seconds.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    megabytes: Option<u32>,
    #[command(flatten)]
    way: Way,
    /// Use IPv6.
    #[arg(long)]
    ipv6: bool,
    /// Runs, each with a network of its own and the next seed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    repeat: u32,
    /// Decides the data, the losses and the moment of the fault; default: another one each time.
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Without steadfast: the virtual address is a plain one on node a, and node b claims it once a is dead. Shows what is to be
    /// survived, so it is expected to fail (exit code 1).
    #[arg(long)]
    baseline: bool,
    /// Keep captures, logs and findings in this directory, one subdirectory for each run; with --repeat only those of runs that
    /// failed.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Bytes of each packet that the captures keep; 0 keeps all.
    #[arg(long, value_name = "BYTES", default_value_t = capture::SNAP_DEFAULT)]
    snap: u32,
    /// The daemon under test; default: `steadfast` beside this program.
    #[arg(long, value_name = "PATH")]
    steadfast: Option<PathBuf>,
}

impl Options {
    /// One run behind nginx whose primary does not come back with live servers.
    fn single(workload: Workload, connections: u32, seed: u64, steadfast: Option<PathBuf>) -> Self {
        Self {
            policy: Policy::Http,
            workload,
            fault: Fault::PowerOff,
            returning: Returning::Killed,
            connections,
            megabytes: None,
            way: Way::default(),
            ipv6: false,
            repeat: 1,
            seed: Some(seed),
            json: true,
            baseline: false,
            keep: None,
            snap: capture::SNAP_DEFAULT,
            steadfast,
        }
    }
}

/// How the server starts again after a takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Policy {
    Http,
    Replica,
}

impl Policy {
    fn application(self) -> Application {
        match self {
            Self::Http => Application::Nginx,
            Self::Replica => Application::Redis,
        }
    }

    /// As the daemon's configuration spells it.
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Replica => "replica",
        }
    }
}

/// What the connections do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Each fetches a large file or value.
    Download,
    /// Each writes a large value and reads it back (replica only: a POST is not executed twice).
    Upload,
    /// Each asks for 1 KB again and again.
    Request,
    /// Each is silent, and afterwards exchanges 1 KB both ways.
    Idle,
}

/// What happens to the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// Its cable is cut in both directions at once, then all its processes are killed.
    PowerOff,
}

/// How the old primary comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Returning {
    /// The server is stopped instead of killed, so its sockets come back as if connected; it is killed after that.
    Frozen,
    /// The server was killed; its sockets come back as their kernel left them.
    Killed,
}

/// Carries out all runs, and prints what they found.
///
/// # Errors
/// If a run could not be made; [`WrongUse`] if the options do not fit together.
pub fn run(options: &Options) -> Result<Outcome> {
    if options.policy == Policy::Http && options.workload == Workload::Upload {
        let reason = "--workload upload needs --policy replica: this version does not execute a POST again";
        return Err(WrongUse(reason.to_owned()).into());
    }
    preflight::check(options)?;
    repeat::run(options)
}
