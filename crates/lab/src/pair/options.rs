//! One run on the pair as data: the topology, the programs, the workload, the fault and what comes after it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::fault::{CrashFault, CrashTarget, Sequel};
use super::path::PathCut;
use crate::client::Protocol;
use crate::emulator::WanOptions;
use crate::net::address::{VIP_V4, VIP_V6};
use crate::node::{Assume, AtLimitOption, LogOptions, ServerSoftware};
use crate::run::{LAB_PROGRAMS, Needed, RunOptions, WrongUse, check_machine};
use judge::CommitMode;

/// Options of the pair's networks. Every lab that uses the pair has them.
#[derive(Clone, Copy, Debug, Args, Serialize)]
pub struct LanOptions {
    /// Use IPv6.
    #[arg(long)]
    pub ipv6: bool,
    /// Number of networks between the nodes that carry heartbeats. The first is the service's network. The second
    /// connects only the nodes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub links: u8,
    /// Transport of the messages between the nodes: `[peer] transport`.
    #[arg(long, value_enum, default_value_t)]
    pub transport: LinkTransport,
}

/// `[peer] transport`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkTransport {
    /// Datagrams over every link.
    #[default]
    Datagrams,
    /// An SCTP association whose paths are the links.
    Sctp,
}

impl LinkTransport {
    /// The transport's name in the daemon's configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Datagrams => "datagrams",
            Self::Sctp => "sctp",
        }
    }
}

impl Default for LanOptions {
    fn default() -> Self {
        Self {
            ipv6: false,
            links: 1,
            transport: LinkTransport::default(),
        }
    }
}

/// Default of `--random-kb`.
const RANDOM_KB: u32 = 1000;

/// One run on the pair.
#[derive(Clone, Debug, Args)]
pub struct PairOptions {
    /// Restart policy of the service: http (nginx, which works on the survivor once the primary is dead), replica
    /// (redis, which works on both nodes) or replay (redis, which gets all input on the survivor).
    #[arg(long, value_enum, default_value_t)]
    pub policy: PolicyOption,
    /// Commit mode of the service (docs/commit-modes.md): prs (everything through the wire), or pr with policy replica or replay (output
    /// straight to the clients), or immediate (as pr, and a full log holds nothing up; for measuring).
    #[arg(long, value_enum, default_value_t)]
    pub mode: CommitMode,
    /// Work of the connections while the fault hits.
    #[arg(long, value_enum, default_value_t)]
    pub workload: WorkloadOption,
    /// The server; default: nginx for http, redis for the others.
    #[arg(long, value_enum)]
    pub server: Option<ServerSoftware>,
    /// The fault to inject.
    #[arg(long, value_enum, default_value_t)]
    pub fault: CrashFault,
    /// Node that the fault hits, if the fault can hit different nodes; default: the seed decides.
    #[arg(long, value_enum)]
    pub node: Option<CrashTarget>,
    /// With --fault cut-service-path: what breaks the path.
    #[arg(long, value_enum, default_value_t)]
    pub how: PathCut,
    /// With --fault cut-link: the network on which the nodes no longer hear each other. `other`: the node's cable on the second network is
    /// pulled. `service`: the switch drops what the daemons send to each other, and everything else passes.
    #[arg(long, value_enum, default_value_t = NodeLink::Other)]
    pub link: NodeLink,
    /// With --links 2: the network whose address comes first in the daemon's `[peer] addresses`.
    #[arg(long, value_enum, default_value_t)]
    pub first_link: NodeLink,
    /// With --fault migrate-annex: number of annexes. With two, all connections move from the primary to the first, to the second, and back.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub annexes: u8,
    /// With a fault with annexes and --assume etcd: the pair's nodes know the annexes only from their entries in etcd.
    #[arg(long)]
    pub registered_annexes: bool,
    /// With --registered-annexes and --fault migrate-annex: etcd is killed when the connections have moved. They move back when both nodes say
    /// that their list of annexes is stale.
    #[arg(long)]
    pub stop_etcd: bool,
    /// After a fault that must lead to no takeover (kill-agent, upgrade, cut-link, flush-tc, migrate-annex), turn the primary's power off as well. Shows
    /// that the pair protects its connections again.
    #[arg(long)]
    pub then_power_off: bool,
    /// After a fault that must lead to no takeover, kill the primary's server as well, and start it again later.
    #[arg(long, conflicts_with = "then_power_off")]
    pub then_kill_server: bool,
    /// How a primary whose power was off comes back when its cable is plugged in again.
    #[arg(long, value_enum, default_value_t)]
    pub returning: Returning,
    /// Number of times that one run plays the fault. When the other node goes on alone, the node that was hit comes
    /// back and becomes the wire. With --fault migrate, a handover follows each move, so the connections move back and
    /// forth. With --fault migrate-back and migrate-annex, they move there and back without a change of roles. Once every connection is protected, the next round begins. The fault then hits the node that has the
    /// targeted role at that time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// With --rounds and --policy replica: do not copy the state to the server that comes back. Shows that `state_sync` is necessary, so
    /// the run is expected to fail (exit code 1).
    #[arg(long)]
    pub without_state_sync: bool,
    /// With --policy replay: the survivor keeps the input of the connections that it relays, so they are protected again when the other node
    /// has come back.
    #[arg(long)]
    pub keep_input: bool,
    /// With recorded order: `on_divergence = "unprotect"` also for a server that diverges.
    #[arg(skip)]
    pub unprotects: bool,
    /// With --policy replica: record the order of the primary's calls, and play it back on the backup. So clients may share keys.
    #[arg(long)]
    pub recorded_order: bool,
    /// The arbiter, which decides which node may speak when the nodes do not hear each other: none, a fence, or etcd.
    #[arg(long, value_enum, default_value_t)]
    pub assume: Assume,
    /// Members of etcd.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    pub members: u8,
    /// Number of connections, all at once.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub connections: u32,
    /// Number of connections at work, limited to --connections; the others are idle. With more connections at work,
    /// each of them is slower and has longer gaps even without a fault.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub busy: u32,
    /// With --workload request: number of requests that all connections at work together begin per second; default: each asks again as soon
    /// as it has its reply.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests_per_s: Option<u32>,
    /// Megabytes (10⁶ bytes) that a download or upload carries over all connections; default: enough for about three
    /// seconds, or five with a fault of several events.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub megabytes: Option<u32>,
    /// Megabytes (10⁶ bytes) of each request of --workload post.
    #[arg(long, value_name = "MB", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub request_mb: u32,
    /// Kilobytes (10³ bytes) of each random reply of --server cgi.
    #[arg(long, value_name = "KB", default_value_t = RANDOM_KB, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub random_kb: u32,
    #[command(flatten)]
    pub log: LogOptions,
    #[command(flatten)]
    pub way: WanOptions,
    /// Without steadfast: the virtual address is an ordinary address of node a, and node b claims it once a is dead.
    /// Shows that connections break without steadfast, so the run is expected to fail (exit code 1).
    #[arg(long)]
    pub baseline: bool,
    #[command(flatten)]
    pub lan: LanOptions,
    #[command(flatten)]
    pub run: RunOptions,
}

impl PairOptions {
    /// A run with nginx in which the primary's power goes off and its server is killed, not frozen.
    pub fn new(workload: WorkloadOption, connections: u32) -> Self {
        Self {
            run: RunOptions::default(),
            lan: LanOptions::default(),
            policy: PolicyOption::default(),
            mode: CommitMode::default(),
            workload,
            server: None,
            fault: CrashFault::default(),
            node: None,
            how: PathCut::default(),
            link: NodeLink::Other,
            first_link: NodeLink::default(),
            annexes: 1,
            registered_annexes: false,
            stop_etcd: false,
            then_power_off: false,
            then_kill_server: false,
            returning: Returning::Killed,
            rounds: None,
            without_state_sync: false,
            keep_input: false,
            unprotects: false,
            recorded_order: false,
            assume: Assume::default(),
            members: 1,
            connections,
            busy: connections,
            requests_per_s: None,
            megabytes: None,
            request_mb: 1,
            random_kb: RANDOM_KB,
            log: LogOptions::default(),
            way: WanOptions::default(),
            baseline: false,
        }
    }

    /// The address of the service.
    pub fn service(&self) -> SocketAddr {
        let address: IpAddr = if self.lan.ipv6 {
            VIP_V6.into()
        } else {
            VIP_V4.into()
        };
        SocketAddr::new(address, self.application().port())
    }

    /// Checks that this machine has everything that the run needs, and `others`.
    ///
    /// # Errors
    /// Names everything that is missing.
    pub fn check_machine(&self, others: &[Needed]) -> Result<()> {
        let of_hook: &[_] = match self.policy {
            PolicyOption::Replica if self.rounds.is_some() => &[("redis-cli", "redis-tools")],
            _ => &[],
        };
        let own = [self.application().needs()];
        let needed = [&LAB_PROGRAMS[..], &own, others, self.assume.needs(), of_hook].concat();
        let daemon = (!self.baseline).then(|| self.run.daemon.path()).transpose()?;
        check_machine(needed, daemon, self.connections)
    }

    /// Connections that are at work.
    pub fn busy(&self) -> u32 {
        self.busy.min(self.connections)
    }

    /// With policy `snapshot`: the socket in `directory` at which the daemon of the node `name` takes snapshots.
    pub fn snapshot_socket(&self, directory: &Path, name: &str) -> Option<PathBuf> {
        let is_used = self.policy == PolicyOption::Snapshot && !self.baseline;
        is_used.then(|| directory.join(format!("snapshots-{name}.sock")))
    }

    /// Number of annexes that the run has.
    pub fn annex_count(&self) -> usize {
        if self.fault.needs_annexes() {
            usize::from(self.annexes)
        } else {
            0
        }
    }

    pub fn application(&self) -> ServerSoftware {
        self.server.unwrap_or(match self.policy {
            PolicyOption::Http => ServerSoftware::Nginx,
            PolicyOption::Replica | PolicyOption::Replay => ServerSoftware::Redis,
            PolicyOption::Snapshot => ServerSoftware::FileServer,
        })
    }

    /// Checks the options of registered annexes.
    fn check_registry(&self) -> Result<(), WrongUse> {
        let wrong = |reason: &str| Err(WrongUse(reason.to_owned()));
        if self.registered_annexes && (!self.fault.needs_annexes() || self.assume != Assume::Etcd) {
            return wrong("--registered-annexes needs --assume etcd and a fault with annexes");
        }
        let is_there_and_back = self.fault == CrashFault::MigrateAnnex && self.then().is_none();
        if self.stop_etcd && (!self.registered_annexes || !is_there_and_back || self.rounds.is_some()) {
            return wrong(
                "--stop-etcd needs --registered-annexes and --fault migrate-annex, without --rounds and without a second fault",
            );
        }
        Ok(())
    }

    fn check_pace(&self) -> Result<(), WrongUse> {
        if self.requests_per_s.is_some() && self.workload != WorkloadOption::Request {
            return Err(WrongUse("--requests-per-s needs --workload request".to_owned()));
        }
        Ok(())
    }

    /// Checks that the options fit together.
    ///
    /// # Errors
    /// If they do not.
    pub fn check(&self) -> Result<(), WrongUse> {
        let wrong = |reason: &str| Err(WrongUse(reason.to_owned()));
        let stores = matches!(self.application(), ServerSoftware::Nginx | ServerSoftware::Redis);
        if self.workload == WorkloadOption::Post && !stores {
            return wrong("--workload post needs nginx, which stores what it is sent");
        }
        let fits = match self.policy {
            PolicyOption::Http => self.application().protocol() == Protocol::Http,
            PolicyOption::Replica | PolicyOption::Replay => self.application() == ServerSoftware::Redis,
            PolicyOption::Snapshot => self.application().exports_state(),
        };
        if !fits {
            return wrong(
                "--server: policy http needs an HTTP server, replica and replay need redis, snapshot needs file-server or cgi",
            );
        }
        self.check_mode()?;
        if self.application() == ServerSoftware::Cgi
            && (self.workload != WorkloadOption::Request || self.busy() < self.connections)
        {
            return wrong("--server cgi needs --workload request, and no idle connections");
        }
        let target = self.fault.target(self.node, 0)?;
        let sequel = self.sequel(target);
        if self.how != PathCut::default() && self.fault != CrashFault::CutServicePath {
            return wrong("--how needs --fault cut-service-path");
        }
        if self.first_link == NodeLink::Other && self.lan.links < 2 {
            return wrong("--first-link other needs --links 2");
        }
        if self.fault == CrashFault::CutLink && self.lan.links < 2 {
            return wrong("--fault cut-link needs --links 2");
        }
        if self.link != NodeLink::Other && self.fault != CrashFault::CutLink {
            return wrong("--link needs --fault cut-link");
        }
        if self.annexes > 1 && self.fault != CrashFault::MigrateAnnex {
            return wrong("--annexes needs --fault migrate-annex");
        }
        self.check_registry()?;
        self.check_pace()?;
        if self.then().is_some() && sequel != Sequel::Nothing {
            return wrong(
                "--then-power-off and --then-kill-server need a fault that nobody takes over: kill-agent, upgrade, cut-link, flush-tc or migrate-annex",
            );
        }
        if self.baseline && self.application() == ServerSoftware::Cgi {
            return wrong("--baseline does not go with --server cgi");
        }
        if self.baseline && sequel != Sequel::Takeover {
            return wrong("--baseline needs a fault after which the address moves, such as power-off");
        }
        if self.rounds.is_some() {
            self.check_rounds()?;
        }
        if self.without_state_sync && (self.rounds.is_none() || self.policy != PolicyOption::Replica) {
            return wrong("--without-state-sync needs --rounds and --policy replica");
        }
        if self.keep_input && (self.policy != PolicyOption::Replay || self.mode != CommitMode::Prs) {
            return wrong("--keep-input needs --policy replay and --mode prs");
        }
        if self.recorded_order
            && (self.policy != PolicyOption::Replica || self.rounds.is_some() || self.baseline)
        {
            return wrong("--recorded-order needs --policy replica, and neither --rounds nor --baseline");
        }
        Ok(())
    }

    /// Checks that the other options allow the commit mode.
    fn check_mode(&self) -> Result<(), WrongUse> {
        let wrong = |reason: &str| Err(WrongUse(reason.to_owned()));
        let regenerates = matches!(self.policy, PolicyOption::Replica | PolicyOption::Replay);
        match self.mode {
            CommitMode::Prs => Ok(()),
            _ if !regenerates => wrong("--mode pr or immediate needs --policy replica or replay"),
            _ if self.log.at_limit == Some(AtLimitOption::Slow) => {
                wrong("--mode pr or immediate does not go with --at-limit slow")
            }
            _ if self.fault.moves_connections() => {
                wrong("--mode pr or immediate does not go with --fault migrate")
            }
            CommitMode::Immediate if self.fault == CrashFault::PauseAgent && self.then().is_some() => wrong(
                "--then-power-off and --then-kill-server do not go with --mode immediate and --fault pause-agent, which leaves connections \
                 unprotected",
            ),
            CommitMode::Pr | CommitMode::Immediate => Ok(()),
        }
    }

    /// The fault that follows a fault after which both nodes go on. It hits the primary, and node b must take over.
    pub const fn then(&self) -> Option<CrashFault> {
        match (self.then_power_off, self.then_kill_server) {
            (true, _) => Some(CrashFault::PowerOff),
            (false, true) => Some(CrashFault::KillServer),
            (false, false) => None,
        }
    }

    /// The required consequence of the fault if it hits `target`.
    pub fn sequel(&self, target: CrashTarget) -> Sequel {
        self.fault.sequel(target, self.how)
    }

    /// Whether `sequel` is a claim to which the limit for the stalls of busy connections (docs/faults.md) applies. A wire that is still
    /// heard over another link gives way at once, so the limit applies. If the wire is silent, its lease must end first, so the limit does
    /// not apply.
    pub fn is_measured_claim(&self, sequel: Sequel) -> bool {
        let gives_way = self.fault == CrashFault::CutServicePath && self.lan.links > 1;
        sequel == Sequel::Claim && gives_way && self.rounds.is_none()
    }

    /// The reason why this combination of policy, workload and fault cannot be played, if it cannot.
    pub fn exception(&self) -> Option<&'static str> {
        match (self.policy, self.workload) {
            (PolicyOption::Http, WorkloadOption::Upload) => {
                Some("not applicable: what is written to an HTTP server is a request; see --workload post")
            }
            (PolicyOption::Snapshot, WorkloadOption::Upload | WorkloadOption::Post) => {
                Some("not applicable: the file server stores nothing")
            }
            (PolicyOption::Replica | PolicyOption::Replay, WorkloadOption::Post) => {
                Some("not applicable: the server speaks no HTTP; see --workload upload")
            }
            (PolicyOption::Replica | PolicyOption::Replay, _) if self.fault.follows_a_move() => Some(
                "not applicable: with this policy, a connection that has moved to the backup is not protected there",
            ),
            (PolicyOption::Replica, _) if self.fault.needs_annexes() => {
                Some("not applicable: connections with this policy do not move to annexes")
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
                "--rounds needs a fault after which a node comes back, or the nodes change places: power-off, link-down, kill-server, hang-server, \
                 kill-backup, cut-backup, cut-service-path (but not how = router or flicker), stop, handover, migrate, migrate-back, migrate-annex, \
                 drain",
            );
        }
        let goes_on = match self.policy {
            PolicyOption::Http => matches!(self.workload, WorkloadOption::Request | WorkloadOption::Download),
            PolicyOption::Snapshot => {
                matches!(self.workload, WorkloadOption::Request | WorkloadOption::Download)
            }
            PolicyOption::Replica => self.workload == WorkloadOption::Request,
            PolicyOption::Replay => self.keep_input && self.workload != WorkloadOption::Idle,
        };
        // A connection that moves to an annex stays protected.
        if !goes_on && self.fault != CrashFault::MigrateAnnex {
            return wrong(
                "--rounds needs --workload request with --policy http, replica or snapshot, or download with --policy http or snapshot, or \
                 --keep-input and a workload other than idle: a connection is protected again at its next request, snapshot or exchange, \
                 or when it is opened anew",
            );
        }
        if self.busy() < self.connections {
            return wrong("--rounds needs every connection at work, but --connections is above --busy");
        }
        if self.baseline || self.then().is_some() {
            return wrong("--rounds goes with neither --baseline, --then-power-off nor --then-kill-server");
        }
        Ok(())
    }
}

/// The network of a link between the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeLink {
    /// The service's network.
    #[default]
    Service,
    /// The second network, which connects only the nodes.
    Other,
}

/// Restart policy of the service: how an application continues its connections after a takeover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyOption {
    #[default]
    Http,
    Replica,
    Replay,
    Snapshot,
}

impl PolicyOption {
    /// The policy's name in the daemon's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Replica => "replica",
            Self::Replay => "replay",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Work of the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkloadOption {
    /// Each connection fetches a large file or value.
    #[default]
    Download,
    /// Each connection writes a large value and reads it back (replica and replay only; see post).
    Upload,
    /// Each connection stores content by PUT and POST, and reads the content back (http only). Every fourth connection sends only POSTs
    /// that must not be repeated. The service may refuse these POSTs.
    Post,
    /// Each connection asks for 1 KB again and again.
    Request,
    /// Each connection is silent during the fault, and afterwards exchanges 1 KB both ways.
    Idle,
}

/// How the old primary comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Returning {
    /// The server is stopped instead of killed, so its sockets come back as if connected. The server is killed after the node's return.
    #[default]
    Frozen,
    /// The server was killed. Its sockets come back in the state in which the node's kernel has left them.
    Killed,
}
