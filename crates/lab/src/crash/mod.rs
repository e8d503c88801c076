//! `steadfast-lab crash`: real clients, a real server, and something fails in the middle.

mod aftermath;
mod baseline;
mod demo;
mod durations;
mod expect;
mod fault;
mod inject;
mod integration;
mod path;
mod play;
mod preflight;
mod programs;
mod promise;
mod reboot;
mod repeat;
mod report;
mod rounds;
mod sample;
mod split;
mod testbed;
mod work;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::capture;
use crate::client::Protocol;
use crate::emulator::WanOptions;
use crate::node::{Assume, LogOptions, ServerSoftware};
use crate::{LabOutcome, WrongUse};

use self::fault::{CrashFault, CrashTarget, Sequel};
use self::path::PathCut;
pub use demo::{DemoOptions, demo};
pub use preflight::{check_machine, missing_programs};
pub use programs::{ProgramsOptions, programs};
pub use sample::{TakeoverSample, sample};
pub use split::{SplitOptions, split};

/// Let something fail under load, and say whether every connection survived.
///
/// Clients talk through a router to a virtual address that two nodes protect: node a, the primary, and node b, the backup. With the
/// default fault node a loses its power; node b must go on with every connection as if nothing had happened. A little later
/// node a's cable is plugged in again, with its old sockets still alive, then its server and its agent start. Node a must become
/// the wire of the connections that go on, and disturb no client. With --rounds the next fault follows then. The other faults
/// and what must follow them are in docs/faults.md. Clients check every byte; a judge reads captures taken at the
/// client, the router and both nodes.
///
/// Prints what was found; with --json one object on stdout, whose `ok` says the same as the exit code. A fault that cannot
/// happen to the server is an exception: printed with its reason, counted, and not a failure. If a run fails, its
/// seed and the command that repeats it are printed, and --keep DIR keeps its captures and logs.
#[derive(Clone, Debug, Args)]
pub struct CrashOptions {
    /// How the server starts again: http (nginx, on the survivor once the primary is dead) or replica (redis, on both).
    #[arg(long, value_enum, default_value_t = PolicyOption::Http)]
    policy: PolicyOption,
    /// What the connections do while the power goes off.
    #[arg(long, value_enum, default_value_t = WorkloadOption::Download)]
    workload: WorkloadOption,
    /// The server; default: nginx for http, redis for replica.
    #[arg(long, value_enum)]
    server: Option<ServerSoftware>,
    /// What fails.
    #[arg(long, value_enum, default_value_t = CrashFault::PowerOff)]
    fault: CrashFault,
    /// Which node fails, if the fault leaves that open; default: the seed decides.
    #[arg(long, value_enum)]
    node: Option<CrashTarget>,
    /// With --fault cut-service-path: what breaks the path.
    #[arg(long, value_enum, default_value_t = PathCut::Cable)]
    how: PathCut,
    /// Number of networks between the nodes that carry heartbeats: the service's, and, with 2, another one that leads nowhere else.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    links: u8,
    /// With --links 2: the network of the first of the peer's addresses in the configuration.
    #[arg(long, value_enum, default_value_t = FirstLink::Service)]
    first_link: FirstLink,
    /// After a fault that must lead to no takeover (kill-agent, upgrade, flush-tc), turn the primary's power off as well. Shows that
    /// the pair protects its connections again.
    #[arg(long)]
    then_power_off: bool,
    /// How a primary whose power was off comes back when its cable is plugged in again.
    #[arg(long, value_enum, default_value_t = Returning::Frozen)]
    returning: Returning,
    /// Number of times that one run plays the fault. When the other node goes on alone, the node that was hit comes back and becomes the
    /// wire. Once every connection is protected, the next round hits the node that has the fault's role then.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// With --rounds and --policy replica: give the server that comes back no state. Shows what the daemon's `state_sync`
    /// is for, so it is expected to fail (exit code 1).
    #[arg(long)]
    without_state_sync: bool,
    /// The arbiter, which decides which node may speak when they do not hear each other: none, a fence, or etcd.
    #[arg(long, value_enum, default_value_t = Assume::FailStop)]
    assume: Assume,
    /// Members of etcd.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    members: u8,
    /// Connections, all at once.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    connections: u32,
    /// Number of connections at work, limited to --connections; the others are idle. The more are at work, the slower each of them is, and
    /// the longer are its gaps without a fault.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    busy: u32,
    /// Megabytes (10⁶ bytes) that a download or upload carries over all connections; default: what takes about three seconds.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    megabytes: Option<u32>,
    /// Megabytes (10⁶ bytes) of each request of --workload post.
    #[arg(long, value_name = "MB", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    request_mb: u32,
    #[command(flatten)]
    log: LogOptions,
    #[command(flatten)]
    way: WanOptions,
    /// Use IPv6.
    #[arg(long)]
    ipv6: bool,
    /// Runs, each with a network of its own and the next seed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    repeat: u32,
    /// A benchmark: also expect that connections at work wait no longer than is promised (`busy_stall`), over all runs. On a machine that does
    /// something else as well this may fail.
    #[arg(long)]
    measure: bool,
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

impl CrashOptions {
    /// The options of one run with nginx in which the primary's power goes off and its server is killed, not frozen.
    fn single(workload: WorkloadOption, connections: u32, seed: u64, steadfast: Option<PathBuf>) -> Self {
        Self {
            policy: PolicyOption::Http,
            workload,
            server: None,
            fault: CrashFault::PowerOff,
            node: None,
            how: PathCut::default(),
            links: 1,
            first_link: FirstLink::Service,
            then_power_off: false,
            returning: Returning::Killed,
            rounds: None,
            without_state_sync: false,
            assume: Assume::FailStop,
            members: 1,
            connections,
            busy: connections,
            megabytes: None,
            request_mb: 1,
            log: LogOptions::default(),
            way: WanOptions::default(),
            ipv6: false,
            repeat: 1,
            measure: false,
            seed: Some(seed),
            json: true,
            baseline: false,
            keep: None,
            snap: capture::SNAP_DEFAULT,
            steadfast,
        }
    }

    /// Connections that are at work.
    fn busy(&self) -> u32 {
        self.busy.min(self.connections)
    }

    fn application(&self) -> ServerSoftware {
        self.server.unwrap_or(match self.policy {
            PolicyOption::Http => ServerSoftware::Nginx,
            PolicyOption::Replica => ServerSoftware::Redis,
        })
    }

    /// Checks that the options fit together.
    fn check(&self) -> Result<(), WrongUse> {
        let wrong = |reason: &str| Err(WrongUse(reason.to_owned()));
        let stores = matches!(self.application(), ServerSoftware::Nginx | ServerSoftware::Redis);
        if self.workload == WorkloadOption::Post && !stores {
            return wrong("--workload post needs nginx, which stores what it is sent");
        }
        if (self.policy == PolicyOption::Http) != (self.application().protocol() == Protocol::Http) {
            return wrong("--server: policy http needs one that speaks HTTP, policy replica redis");
        }
        let target = self.fault.target(self.node, 0)?;
        let sequel = self.sequel(target);
        if self.how != PathCut::default() && self.fault != CrashFault::CutServicePath {
            return wrong("--how needs --fault cut-service-path");
        }
        if self.first_link == FirstLink::Other && self.links < 2 {
            return wrong("--first-link other needs --links 2");
        }
        if self.then_power_off && sequel != Sequel::Nothing {
            return wrong(
                "--then-power-off needs a fault that nobody takes over: kill-agent, upgrade or flush-tc",
            );
        }
        if self.baseline && sequel != Sequel::Takeover {
            return wrong("--baseline needs a fault after which the address moves, such as power-off");
        }
        if self.measure
            && sequel != Sequel::Takeover
            && !self.then_power_off
            && !self.is_measured_claim(sequel)
        {
            return wrong(
                "--measure needs a fault after which the other node takes over, such as power-off; or cut-service-path of the backup with \
                 --links 2 and without --rounds",
            );
        }
        if self.rounds.is_some() {
            self.check_rounds()?;
        }
        if self.without_state_sync && (self.rounds.is_none() || self.policy == PolicyOption::Http) {
            return wrong("--without-state-sync needs --rounds and --policy replica");
        }
        Ok(())
    }
}

impl CrashOptions {
    /// What must happen after the fault hits `target`.
    fn sequel(&self, target: CrashTarget) -> Sequel {
        self.fault.sequel(target, self.how)
    }

    /// Whether `sequel` is a claim for which the promise about the stalls of busy connections (docs/faults.md) holds. A wire that is still
    /// heard over another link gives way at once, so the promise holds. If the wire is silent, its lease must end first, so the promise
    /// does not hold.
    fn is_measured_claim(&self, sequel: Sequel) -> bool {
        let gives_way = self.fault == CrashFault::CutServicePath && self.links > 1;
        sequel == Sequel::Claim && gives_way && self.rounds.is_none()
    }

    /// The reason why this combination of policy, workload and fault cannot be played, if it cannot.
    fn exception(&self) -> Option<&'static str> {
        match (self.policy, self.workload) {
            (PolicyOption::Http, WorkloadOption::Upload) => {
                Some("not applicable: what is written to an HTTP server is a request; see --workload post")
            }
            (PolicyOption::Replica, WorkloadOption::Post) => {
                Some("not applicable: the replica's server speaks no HTTP; see --workload upload")
            }
            _ => self.fault.exception(self.application()),
        }
    }

    /// Checks that the other options allow rounds.
    fn check_rounds(&self) -> Result<(), WrongUse> {
        let wrong = |reason: &str| Err(WrongUse(reason.to_owned()));
        let may_change_nothing = |&target| self.sequel(target) == Sequel::AtMostOne;
        if !self.fault.has_rounds() || self.fault.targets().iter().any(may_change_nothing) {
            return wrong(
                "--rounds needs a fault after which a node comes back: power-off, link-down, kill-backup, cut-backup, cut-service-path \
                 (but not how = router or flicker), stop, handover, drain",
            );
        }
        let goes_on = match self.policy {
            PolicyOption::Http => matches!(self.workload, WorkloadOption::Request | WorkloadOption::Download),
            PolicyOption::Replica => self.workload == WorkloadOption::Request,
        };
        if !goes_on {
            return wrong(
                "--rounds needs --workload request, or download with --policy http: a connection is protected again at its next \
                 request, or when it is opened anew",
            );
        }
        if self.busy() < self.connections {
            return wrong("--rounds needs every connection at work: --connections above --busy");
        }
        if self.baseline || self.then_power_off {
            return wrong("--rounds goes with neither --baseline nor --then-power-off");
        }
        Ok(())
    }
}

/// Which of the networks between the nodes a daemon's first link to its peer is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum FirstLink {
    /// The service's.
    Service,
    /// The other one.
    Other,
}

/// How the server starts again after a takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum PolicyOption {
    Http,
    Replica,
}

impl PolicyOption {
    /// The policy's name in the daemon's configuration.
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
pub enum WorkloadOption {
    /// Each fetches a large file or value.
    Download,
    /// Each writes a large value and reads it back (replica only; see post).
    Upload,
    /// Each stores what it sends, by PUT and POST, and reads it back (http only); every fourth one by POST that must not be
    /// repeated, and may be refused.
    Post,
    /// Each asks for 1 KB again and again.
    Request,
    /// Each is silent, and afterwards exchanges 1 KB both ways.
    Idle,
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

/// Carries out all runs and prints their results.
///
/// # Errors
/// If a run could not be carried out; [`WrongUse`] if the options do not fit together.
pub fn run(options: &CrashOptions) -> Result<LabOutcome> {
    options.check()?;
    if let Some(reason) = options.exception() {
        return repeat::except(options, reason);
    }
    preflight::check(options)?;
    repeat::run(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_claim_of_what_a_living_wire_gives_up_is_measured() {
        let fits = |fault, node, links, rounds| {
            let options = CrashOptions {
                fault,
                node: Some(node),
                links,
                rounds,
                measure: true,
                ..CrashOptions::single(WorkloadOption::Request, 1, 1, None)
            };
            options.check().is_ok()
        };
        for node in [CrashTarget::Primary, CrashTarget::Backup] {
            assert!(fits(CrashFault::CutServicePath, node, 2, None));
        }
        // A silent wire has a lease, which must end first.
        assert!(!fits(CrashFault::CutServicePath, CrashTarget::Backup, 1, None));
        assert!(!fits(CrashFault::KillBackup, CrashTarget::Backup, 2, None));
        assert!(!fits(CrashFault::CutServicePath, CrashTarget::Backup, 2, Some(2)));
    }
}
