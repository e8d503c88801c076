//! `steadfast-lab`: tests Steadfast with real processes in network namespaces, real failures, and a judge that reads captures. It also runs
//! simulations, draws the papers' figures, and measures benchmarks.

#![deny(clippy::print_stdout)]

/// Prints a line to stdout. If the reader has closed the pipe, the line is dropped: the run continues and still returns its exit code.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write;
        drop(writeln!(std::io::stdout(), $($line)*));
    }};
}

mod bench;
mod capture;
mod client;
mod clock;
mod cluster;
mod crash;
mod database;
mod demo;
mod edge;
mod edge_memory;
mod emulator;
mod exactly_once;
mod fence;
mod figure;
mod guide;
mod net;
mod newcomer;
mod node;
mod pair;
mod paths;
mod process;
mod programs;
mod recording;
mod run;
mod sessions;
mod split;
mod swarm;
mod teardown;
mod timeline;
mod witness;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use tracing_subscriber::EnvFilter;

use self::run::{LabOutcome, WRONG_USE, exit_code};

/// Injects failures into a network on this machine, and reports whether the connections survived.
///
/// Every lab builds its own network of namespaces and removes it at the end, also after ^C or kill -9; nothing outside
/// is touched. Results go to stdout, everything else to stderr. RUST_LOG=debug shows each step.
///
/// Exit codes: 0 held, 1 did not hold, 2 wrong use or input, 3 cannot run here (says what is missing), 4 the lab itself
/// failed, so the run says nothing.
#[derive(Debug, Parser)]
#[command(version)]
struct LabCli {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    Bench(bench::BenchOptions),
    Cluster(cluster::ClusterOptions),
    Crash(crash::CrashOptions),
    Demo(demo::DemoOptions),
    EdgeFailover(edge::failover::EdgeFailoverOptions),
    EdgeRate(edge::rate::EdgeRateOptions),
    Figure(figure::FigureOptions),
    Guide(guide::GuideOptions),
    Merge(figure::MergeOptions),
    Migrate(sessions::migrate::SessionMigrationOptions),
    #[command(name = "halr-memory")]
    EdgeMemory(edge_memory::EdgeMemoryOptions),
    Network(net::hold::NetworkOptions),
    #[command(name = "paths-cut")]
    PathsCut(paths::cut::PathsCutOptions),
    #[command(name = "paths-programs")]
    PathsPrograms(paths::programs::PathsProgramsOptions),
    /// One end of an SCTP association, for `bench paths`.
    #[command(name = "sctp-peer", hide = true)]
    SctpPeer(paths::peer::SctpPeerOptions),
    /// One end of a TCP connection, for `bench paths`.
    #[command(name = "tcp-peer", hide = true)]
    TcpPeer(paths::tcp::TcpPeerOptions),
    #[command(name = "pg-exactly-once")]
    ExactlyOnce(exactly_once::ExactlyOnceOptions),
    Programs(programs::ProgramsOptions),
    Replay(swarm::ReplayOptions),
    Swarm(swarm::SwarmOptions),
    Split(split::SplitOptions),
    Trace(figure::TraceOptions),
    #[command(name = bench::load::LOAD, hide = true)]
    Load(bench::load::LoadOptions),
    #[command(name = bench::sim::DUMBBELL, hide = true)]
    Dumbbell(bench::sim::DumbbellOptions),
    #[command(name = bench::sim::SCTP, hide = true)]
    Sctp,
    #[command(name = bench::sim::MEASURE, hide = true)]
    Measure(bench::sim::MeasureOptions),
    #[command(name = fence::FENCE, hide = true)]
    Fence(fence::FenceOptions),
    #[command(name = client::CLIENT, hide = true)]
    Client,
    #[command(name = edge::flows::FLOWS, hide = true)]
    Flows,
    #[command(name = teardown::WATCHDOG, hide = true)]
    Watchdog,
}

fn main() -> ExitCode {
    let cli = LabCli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        // By default, tracing would report a failed write to stderr with `eprintln!`, which panics.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    if matches!(cli.command, LabCommand::Watchdog) {
        return ExitCode::from(u8::from(!teardown::watch()));
    }
    if matches!(cli.command, LabCommand::Client) {
        return match client::main() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("steadfast-lab {}: {error:#}", client::CLIENT);
                ExitCode::from(WRONG_USE)
            }
        };
    }
    // If the lab's parent dies, nobody waits for the result. The lab is then torn down as after ^C.
    if let Err(error) = set_pdeathsig(Signal::SIGTERM) {
        tracing::warn!("cannot set the parent-death signal; the lab will go on if its parent dies: {error}");
    }
    let result = match cli.command {
        LabCommand::Bench(options) => bench::run(&options),
        LabCommand::Cluster(options) => run::run(&options),
        LabCommand::Crash(options) => run::run(&options),
        LabCommand::Demo(options) => run::run(&options),
        LabCommand::EdgeFailover(options) => run::run(&options),
        LabCommand::EdgeRate(options) => run::run(&options),
        LabCommand::Flows => edge::flows::main().map(|()| LabOutcome::Held),
        LabCommand::Figure(options) => figure::run(&options),
        LabCommand::Merge(options) => figure::merge(&options),
        LabCommand::Migrate(options) => run::run(&options),
        LabCommand::Replay(options) => swarm::replay(&options),
        LabCommand::Guide(options) => guide::run(&options),
        LabCommand::Swarm(options) => swarm::run(&options),
        LabCommand::Trace(options) => figure::trace(&options),
        LabCommand::EdgeMemory(options) => edge_memory::run(&options),
        LabCommand::Dumbbell(options) => bench::sim::dumbbell(&options).map(|()| LabOutcome::Held),
        LabCommand::Sctp => bench::sim::sctp().map(|()| LabOutcome::Held),
        LabCommand::Measure(options) => bench::sim::measure(&options).map(|()| LabOutcome::Held),
        LabCommand::Load(options) => bench::load::run(&options).map(|()| LabOutcome::Held),
        LabCommand::Network(options) => net::hold::run(&options),
        LabCommand::PathsCut(options) => run::run(&options),
        LabCommand::PathsPrograms(options) => run::run(&options),
        LabCommand::SctpPeer(options) => paths::peer::main(&options).map(|()| LabOutcome::Held),
        LabCommand::TcpPeer(options) => paths::tcp::main(&options).map(|()| LabOutcome::Held),
        LabCommand::ExactlyOnce(options) => run::run(&options),
        LabCommand::Programs(options) => run::run(&options),
        LabCommand::Split(options) => run::run(&options),
        LabCommand::Fence(options) => fence::fence(&options).map(|()| LabOutcome::Held),
        LabCommand::Client | LabCommand::Watchdog => unreachable!("handled above"),
    };
    exit_code(result)
}
