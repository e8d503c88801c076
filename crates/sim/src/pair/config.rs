//! Configuration of a simulated pair: links, endpoints, timers and limits.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proto::detector::DetectorConfig;
use proto::follower::{Opaque, RestartPolicy};
use proto::node::NodeConfig;
use proto::restart::http::{Rules, Volatile};
use proto::service::ServiceConfig;
use proto::standing;
use proto::table::TableConfig;

use super::annex::station::AnnexConfig;
use super::application::{ApplicationFactory, ReadPace, SimApplication};
use super::arbiter::{SimArbiter, SimArbiterKind};
use super::commit::SimCommit;
use super::defect::Defect;
use super::machine::StationConfig;
use super::spill::FullLogPolicy;
use super::state_sync::{SimStateSync, stateful};
use super::thread::Costs;
use super::{echo, http};
use crate::host::HostConfig;
use crate::link::LinkConfig;
use crate::tcp::{Initial, TcpConfig};

/// Address of the service.
pub fn vip() -> SocketAddr {
    SocketAddr::from(([10, 2, 0, 100], 80))
}

/// Configuration of a simulated pair.
#[derive(Clone, Debug)]
pub struct SimPairConfig {
    /// Seed of all random choices.
    pub seed: u64,
    /// The restart policy of the service.
    pub policy: RestartPolicy,
    /// The nodes run the service with policy `http`, but the service's clients speak another protocol, and replicas follow these clients'
    /// connections. Set `policy` to [`RestartPolicy::Replica`] as well, which selects programs that speak such a protocol.
    pub opaque: bool,
    /// Commit mode. Other modes than [`SimCommit::Prs`] need [`RestartPolicy::Replica`] without `opaque`, or [`RestartPolicy::Replay`].
    pub commit: SimCommit,
    /// Link between the clients and the backup.
    pub path: LinkConfig,
    /// Link between the clients and the primary. `None`: the primary cannot claim the VIP.
    pub own_path: Option<LinkConfig>,
    /// Link between the backup and the primary.
    pub lan: LinkConfig,
    /// TCP configuration of the clients' endpoints.
    pub client_tcp: TcpConfig,
    /// TCP configuration of the servers' endpoints.
    pub server_tcp: TcpConfig,
    /// Initial sequence numbers and timestamps. `None` draws them.
    pub initial: Option<Initial>,
    /// Timers of the heartbeats.
    pub detector: DetectorConfig,
    /// Pause of an agent before it reads what was logged.
    pub nap: Duration,
    /// Time that each kind of an agent's work takes.
    pub costs: Costs,
    /// Size of a wire's log, in bytes.
    pub ring_bytes: usize,
    /// Memory limit of one connection's log, in bytes, and what happens beyond the limit.
    pub log_limit: (u64, FullLogPolicy),
    /// How fast the primary's program reads.
    pub pace: Option<ReadPace>,
    /// How fast the backup's replica reads.
    pub replica_pace: Option<ReadPace>,
    /// Longest time that a program takes to prepare a reply.
    pub think: Duration,
    /// Both nodes cut a chunked reply in the same places.
    pub same_chunks: bool,
    /// Arbiter that decides when the nodes do not hear each other, and the time that a decision takes.
    pub arbiter: Option<(SimArbiterKind, Duration)>,
    /// Time that the configured primary waits before it asks the fence to switch off a silent peer.
    pub fence_delay: Duration,
    /// Lease: how long a wire may speak alone without asking the arbiter, counted from when its primary last heard the
    /// wire.
    pub lease: Duration,
    /// Defect of the nodes, in tests.
    pub defect: Option<Defect>,
    /// The agents also hear each other through the service's network.
    pub service_link: bool,
    /// An outside host answers the questions that nodes send from their own addresses.
    pub outside: bool,
    /// How the server's state is copied, if it is. Only with [`RestartPolicy::Replica`], and not with `opaque`.
    pub state_sync: Option<SimStateSync>,
    /// Number of annexes. They take connections only with [`RestartPolicy::Http`] and [`RestartPolicy::Replay`].
    pub annexes: usize,
    /// The survivor of a takeover keeps the input of the connections that it relays. Only with [`RestartPolicy::Replay`].
    pub keep_input: bool,
}

impl SimPairConfig {
    /// A pair on a quiet network, with all optional parts left out.
    pub fn quiet(seed: u64, policy: RestartPolicy) -> Self {
        let path = LinkConfig {
            rate_bits_per_s: Some(50_000_000),
            delay: Duration::from_millis(5),
            ..LinkConfig::default()
        };
        let lan = LinkConfig {
            rate_bits_per_s: Some(1_000_000_000),
            delay: Duration::from_micros(50),
            ..LinkConfig::default()
        };
        Self {
            seed,
            policy,
            opaque: false,
            commit: SimCommit::Prs,
            path,
            own_path: None,
            lan,
            client_tcp: TcpConfig::default(),
            server_tcp: TcpConfig::default(),
            initial: None,
            detector: DetectorConfig {
                interval: Duration::from_millis(10),
                missed: 4,
                agent_timeout: Duration::from_secs(1),
            },
            nap: Duration::from_micros(500),
            costs: Costs::measured(1),
            ring_bytes: 1 << 20,
            log_limit: (16 << 20, FullLogPolicy::Unprotected),
            pace: None,
            replica_pace: None,
            think: Duration::ZERO,
            same_chunks: false,
            arbiter: None,
            fence_delay: Duration::ZERO,
            lease: Duration::from_millis(300),
            defect: None,
            service_link: false,
            outside: false,
            state_sync: None,
            annexes: 0,
            keep_input: false,
        }
    }

    pub(super) fn annex(&self, number: usize, ledger: &Rc<RefCell<http::Ledger>>) -> AnnexConfig {
        let node = 3 + number as u64;
        AnnexConfig {
            number,
            vip: vip(),
            host: self.host(vip().ip(), &self.server_tcp),
            program: self.program(node, ledger),
            exports: self.policy == RestartPolicy::Snapshot,
            cost: self.costs.restore,
            ahead: Duration::from_secs(100 * node),
            defect: self.defect,
        }
    }

    pub(super) fn core(&self, is_primary: bool) -> NodeConfig {
        let opaque = Opaque {
            bound: usize::try_from(self.log_limit.0).expect("a memory limit fits usize"),
            volatile: Volatile::default(),
        };
        let table = TableConfig {
            vip: vip(),
            policy: if self.opaque {
                RestartPolicy::Http
            } else {
                self.policy
            },
            rules: Rules::default(),
            opaque: self.opaque.then(|| Arc::new(opaque)),
            connection_bytes_max: self.log_limit.0,
            bytes_max: 256 << 20,
            at_limit: self.log_limit.1.of_core(),
            sends_directly: self.commit != SimCommit::Prs,
            is_immediate: self.commit == SimCommit::Immediate,
            keep_input: self.keep_input,
            hash_seed: 7,
        };
        let (name, mac) = if is_primary { ("primary", 1) } else { ("backup", 2) };
        NodeConfig {
            name: name.to_owned(),
            incarnation: 1,
            without_peer: false,
            detector: self.detector,
            lease: self.lease,
            fence_delay: if is_primary {
                self.fence_delay
            } else {
                Duration::ZERO
            },
            arbiter: self
                .arbiter
                .map_or(standing::Arbiter::FailStop, |(kind, _)| kind.of_core()),
            services: vec![ServiceConfig {
                table,
                is_primary,
                mac: [2, 0, 0, 0, 0, mac],
                found: None,
                state_sync: self.state_sync.map(|sync| Duration::from_micros(sync.hold_us)),
            }],
        }
    }

    pub(super) fn host(&self, address: IpAddr, tcp: &TcpConfig) -> HostConfig {
        HostConfig {
            addresses: vec![address],
            tcp: tcp.clone(),
            initial: self.initial,
        }
    }

    pub(super) fn station(
        &self,
        node: usize,
        is_primary: bool,
        ledger: &Rc<RefCell<http::Ledger>>,
        arbiter: Option<&Rc<RefCell<SimArbiter>>>,
    ) -> StationConfig {
        let server = Rc::default();
        let program = self.program(node as u64, ledger);
        let program = if self.state_sync.is_some() {
            stateful(program, &server)
        } else {
            program
        };
        StationConfig {
            number: node - 1,
            core: self.core(is_primary),
            host: self.host(vip().ip(), &self.server_tcp),
            ring_bytes: self.ring_bytes,
            opening_bytes: 64 << 10,
            nap: self.nap,
            costs: self.costs,
            program,
            pace: self.pace.filter(|_| is_primary),
            replica_pace: self.replica_pace,
            ahead: Duration::from_secs(100 * node as u64),
            arbiter: arbiter.map(Rc::clone),
            defect: self.defect,
            service_link: self.service_link,
            outside: self.outside,
            state_sync: self.state_sync,
            server,
            annexes: self.annexes,
        }
    }

    /// The application as one node runs it.
    pub(super) fn program(&self, node: u64, ledger: &Rc<RefCell<http::Ledger>>) -> ApplicationFactory {
        let manner = http::Manner {
            node,
            seed: self.seed ^ node.rotate_left(40),
            chunk_seed: if self.same_chunks { 0 } else { node },
            think: self.think,
            chunk_max: 3000,
        };
        match self.policy {
            RestartPolicy::Http => {
                let ledger = Rc::clone(ledger);
                Rc::new(move |_| Box::new(http::HttpServer::new(manner, Rc::clone(&ledger))))
            }
            RestartPolicy::Replica | RestartPolicy::Replay | RestartPolicy::Snapshot => {
                let think = self.think * u32::try_from(node).expect("fits u32") / 2;
                Rc::new(move |_| -> Box<dyn SimApplication> { Box::new(echo::EchoServer::new(think)) })
            }
        }
    }
}
