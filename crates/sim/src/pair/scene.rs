//! A pair in a world, with clients that talk to it, and what happens to it.

use std::cell::{Ref, RefCell, RefMut};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proto::Instant;
use proto::detector::DetectorConfig;
use proto::follower::{Opaque, Policy};
use proto::node::{NodeConfig, ServiceConfig};
use proto::restart::http::{Reexecute, Volatile};
use proto::standing;
use proto::table::TableConfig;

use super::agent::Costs;
use super::application::{Application, Pace, Program};
use super::arbiter::{Arbiter, ArbiterKind};
use super::defect::Defect;
use super::judge::Judge;
use super::neighbours::Neighbours;
use super::relay::Ending;
use super::spill::Full;
use super::station::{Station, StationConfig};
use super::talk::Talk;
use super::{echo, http};
use crate::host::{EndpointId, Host, HostConfig};
use crate::link::LinkConfig;
use crate::tcp::{Config, Endpoint, Failure, Initial, State};
use crate::world::{CableId, NodeId, Port, World};

/// What a scene is like.
#[derive(Clone, Debug)]
pub struct SceneConfig {
    /// All chance comes from it.
    pub seed: u64,
    /// The restart policy of the service.
    pub policy: Policy,
    /// With what [`Policy::Replica`] suits, a service of policy `http` that follows other protocols by replicas.
    pub opaque: bool,
    /// Between the clients and the backup.
    pub path: LinkConfig,
    /// Between the clients and the primary; `None`: the primary cannot claim the VIP.
    pub own_path: Option<LinkConfig>,
    /// Between the backup and the primary.
    pub lan: LinkConfig,
    /// The clients' endpoints.
    pub client_tcp: Config,
    /// The servers' endpoints.
    pub server_tcp: Config,
    /// The numbers that endpoints start from; `None` draws them.
    pub initial: Option<Initial>,
    /// Heartbeats.
    pub detector: DetectorConfig,
    /// How long the backup's agent rests before it reads what was logged.
    pub nap: Duration,
    /// What its work costs.
    pub costs: Costs,
    /// Bytes that its log holds.
    pub ring_bytes: usize,
    /// Bytes of memory of one connection's log, and what is done about more.
    pub log_limit: (u64, Full),
    /// How fast the primary's program reads.
    pub pace: Option<Pace>,
    /// How fast the backup's replica reads.
    pub replica_pace: Option<Pace>,
    /// How long programs think at most.
    pub think: Duration,
    /// Both nodes cut a chunked reply in the same places.
    pub same_chunks: bool,
    /// Who decides when the nodes do not hear each other, and how long that takes.
    pub arbiter: Option<(ArbiterKind, Duration)>,
    /// How long a wire may speak alone after its primary heard it last, without having asked.
    pub lease: Duration,
    /// What is broken.
    pub defect: Option<Defect>,
}

impl SceneConfig {
    /// A pair on a quiet network, with everything that can be left out left out.
    pub fn quiet(seed: u64, policy: Policy) -> Self {
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
            path,
            own_path: None,
            lan,
            client_tcp: Config::default(),
            server_tcp: Config::default(),
            initial: None,
            detector: DetectorConfig {
                interval: Duration::from_millis(10),
                missed: 4,
                agent_timeout: Duration::from_secs(1),
            },
            nap: Duration::from_micros(500),
            costs: Costs::measured(1),
            ring_bytes: 1 << 20,
            log_limit: (16 << 20, Full::Unprotected),
            pace: None,
            replica_pace: None,
            think: Duration::ZERO,
            same_chunks: false,
            arbiter: None,
            lease: Duration::from_millis(300),
            defect: None,
        }
    }

    fn core(&self, is_primary: bool) -> NodeConfig {
        let opaque = Opaque {
            bound: usize::try_from(self.log_limit.0).expect("it is of memory"),
            volatile: Volatile::default(),
        };
        let table = TableConfig {
            vip: vip(),
            policy: if self.opaque { Policy::Http } else { self.policy },
            reexecute: Reexecute::IDEMPOTENT,
            opaque: self.opaque.then(|| Arc::new(opaque)),
            connection_bytes_max: self.log_limit.0,
            bytes_max: 256 << 20,
            at_limit: self.log_limit.1.of_core(),
            hash_seed: 7,
        };
        let (name, mac) = if is_primary { ("primary", 1) } else { ("backup", 2) };
        NodeConfig {
            name: name.to_owned(),
            incarnation: 1,
            without_peer: false,
            detector: self.detector,
            lease: self.lease,
            arbiter: self
                .arbiter
                .map_or(standing::Arbiter::FailStop, |(kind, _)| kind.of_core()),
            services: vec![ServiceConfig {
                table,
                is_primary,
                mac: [2, 0, 0, 0, 0, mac],
                found: None,
                state_sync: None,
            }],
        }
    }

    fn host(&self, address: IpAddr, tcp: &Config) -> HostConfig {
        HostConfig {
            addresses: vec![address],
            tcp: tcp.clone(),
            initial: self.initial,
        }
    }

    fn station(
        &self,
        node: usize,
        is_primary: bool,
        ledger: &Rc<RefCell<http::Ledger>>,
        arbiter: Option<&Rc<RefCell<Arbiter>>>,
    ) -> StationConfig {
        StationConfig {
            number: node - 1,
            core: self.core(is_primary),
            host: self.host(vip().ip(), &self.server_tcp),
            ring_bytes: self.ring_bytes,
            opening_bytes: 64 << 10,
            nap: self.nap,
            costs: self.costs,
            program: self.program(node as u64, ledger),
            pace: self.pace.filter(|_| is_primary),
            replica_pace: self.replica_pace,
            ahead: Duration::from_secs(100 * node as u64),
            arbiter: arbiter.map(Rc::clone),
            defect: self.defect,
        }
    }

    /// The application as one node runs it.
    fn program(&self, node: u64, ledger: &Rc<RefCell<http::Ledger>>) -> Program {
        let manner = http::Manner {
            node,
            seed: self.seed ^ node.rotate_left(40),
            chunk_seed: if self.same_chunks { 0 } else { node },
            think: self.think,
            chunk_max: 3000,
        };
        match self.policy {
            Policy::Http => {
                let ledger = Rc::clone(ledger);
                Rc::new(move |_| Box::new(http::Server::new(manner, Rc::clone(&ledger))))
            }
            Policy::Replica => {
                let think = self.think * u32::try_from(node).expect("small") / 2;
                Rc::new(move |_| -> Box<dyn Application> { Box::new(echo::Server::new(think)) })
            }
        }
    }
}

/// The service.
pub fn vip() -> SocketAddr {
    SocketAddr::from(([10, 2, 0, 100], 80))
}

fn client_address() -> IpAddr {
    IpAddr::from([10, 1, 0, 2])
}

/// A pair and its clients.
pub struct Scene {
    /// Where it all happens.
    pub world: World,
    /// The clients' host.
    pub client: NodeId,
    /// The backup.
    pub backup: NodeId,
    /// The primary.
    pub primary: NodeId,
    /// Between the clients and the backup.
    pub path: CableId,
    /// Between the clients and the primary.
    pub own_path: CableId,
    /// Between the two nodes' stacks.
    pub lan: CableId,
    /// Between the two nodes' agents.
    pub heartbeats: CableId,
    /// What these are like when nothing is wrong.
    links: Vec<(CableId, LinkConfig)>,
    pub(crate) arbiter: Option<Rc<RefCell<Arbiter>>>,
    judge: Rc<RefCell<Judge>>,
    ledger: Rc<RefCell<http::Ledger>>,
    connections: Rc<RefCell<Vec<Option<EndpointId>>>>,
}

impl Scene {
    /// A pair that has begun to agree on roles.
    ///
    /// # Panics
    /// If the configuration describes no links or endpoints.
    pub fn new(config: &SceneConfig) -> Self {
        let mut world = World::new(config.seed);
        let judge = Rc::new(RefCell::new(Judge::new(vip())));
        let ledger = Rc::default();
        let arbiter = config
            .arbiter
            .map(|(kind, delay)| Rc::new(RefCell::new(Arbiter::new(kind, delay))));
        let seeds = [world.random(), world.random(), world.random()];
        let client = Host::new(config.host(client_address(), &config.client_tcp), seeds[0]);
        let client = world.add("client", Box::new(client));
        let neighbours = Neighbours::new(Port(2), Rc::clone(&judge));
        let neighbours = world.add("neighbours", Box::new(neighbours));
        let [primary, backup] = [(1, true), (2, false)].map(|(node, is_primary)| {
            let station = config.station(node, is_primary, &ledger, arbiter.as_ref());
            let station = Station::new(world.now(), station, seeds[node], Rc::clone(&judge));
            world.add(if is_primary { "primary" } else { "backup" }, Box::new(station))
        });
        let beats = LinkConfig {
            delay: Duration::from_micros(100),
            ..LinkConfig::default()
        };
        let mut plug = |a, b, link: &LinkConfig| {
            world
                .connect(a, b, link)
                .expect("the caller has checked the links")
        };
        plug(client, neighbours, &LinkConfig::default());
        let own_path = plug(
            neighbours,
            primary,
            config.own_path.as_ref().unwrap_or(&config.path),
        );
        let path = plug(neighbours, backup, &config.path);
        let lan = plug(backup, primary, &config.lan);
        let heartbeats = plug(backup, primary, &beats);
        world.set_up(own_path, config.own_path.is_some());
        let links = vec![
            (own_path, config.own_path.clone().unwrap_or_default()),
            (path, config.path.clone()),
            (lan, config.lan.clone()),
            (heartbeats, beats),
        ];
        let connections = Rc::default();
        Self {
            world,
            client,
            backup,
            primary,
            path,
            own_path,
            lan,
            heartbeats,
            links,
            arbiter,
            judge,
            ledger,
            connections,
        }
    }

    /// Opens a connection at `at`; connections are numbered from 0.
    pub fn connect(&mut self, at: Instant, talk: Talk) {
        let (client, connections) = (self.client, Rc::clone(&self.connections));
        let index = connections.borrow().len();
        connections.borrow_mut().push(None);
        let local = Self::client_of(index);
        self.world.at(at, move |world| {
            let id = world.with(client, |host: &mut Host, now| {
                host.connect(now, local, vip(), Box::new(talk))
            });
            connections.borrow_mut()[index] = Some(id);
        });
    }

    /// The primary loses power at `at`.
    pub fn power_off(&mut self, at: Instant) {
        let primary = self.primary;
        self.world.at(at, move |world| world.power_off(primary));
    }

    /// On the primary a worker is killed at `at`, that with the connections of these numbers.
    pub fn kill_worker(&mut self, at: Instant, connections: impl IntoIterator<Item = usize>) {
        let clients: Vec<_> = connections.into_iter().map(Self::client_of).collect();
        let primary = self.primary;
        self.world.at(at, move |world| {
            world.with(primary, |primary: &mut Station, now| {
                primary.kill_worker(now, &clients)
            })
        });
    }

    /// A cable is cut at `at` and mended at `mended`.
    pub fn cut(&mut self, cable: CableId, at: Instant, mended: Instant) {
        self.world.at(at, move |world| world.set_up(cable, false));
        self.world.at(mended, move |world| world.set_up(cable, true));
    }

    /// The backup's agent does not run from `at` for so long.
    pub fn pause_agent(&mut self, at: Instant, time: Duration) {
        let backup = self.backup;
        self.world.at(at, move |world| {
            world.with(backup, |backup: &mut Station, _| backup.pause(at + time))
        });
    }

    /// The client of the connection of this number.
    ///
    /// # Panics
    /// If there are not so many ports.
    pub fn client_of(connection: usize) -> SocketAddr {
        let port = 40_000 + u16::try_from(connection).expect("few connections");
        SocketAddr::new(client_address(), port)
    }

    /// How many connections there are.
    pub fn count(&self) -> usize {
        self.connections.borrow().len()
    }

    /// What is to happen, and who watches.
    pub(crate) fn world_and_judge(&mut self) -> (&mut World, &RefCell<Judge>) {
        (&mut self.world, &self.judge)
    }

    /// The judge, to be told something.
    pub(crate) fn judge_mut(&self) -> RefMut<'_, Judge> {
        self.judge.borrow_mut()
    }

    /// A node's number.
    pub(crate) fn number_of(&self, id: NodeId) -> usize {
        usize::from(id == self.backup)
    }

    /// The cables of a node: to the clients, to the peer's stack, to its agent.
    pub(crate) fn cables_of(&self, id: NodeId) -> [CableId; 3] {
        let path = if id == self.backup {
            self.path
        } else {
            self.own_path
        };
        [path, self.lan, self.heartbeats]
    }

    /// What a cable is like when nothing is wrong.
    pub(crate) fn link_of(&self, cable: CableId) -> LinkConfig {
        let link = self.links.iter().find(|(one, _)| *one == cable);
        link.map(|(_, link)| link.clone()).unwrap_or_default()
    }

    /// Both nodes.
    pub fn stations(&self) -> impl Iterator<Item = &Station> {
        [self.primary, self.backup]
            .into_iter()
            .map(|id| self.world.node(id))
    }

    /// The judge.
    pub fn judge(&self) -> Ref<'_, Judge> {
        self.judge.borrow()
    }

    /// What was executed.
    pub fn ledger(&self) -> Ref<'_, http::Ledger> {
        self.ledger.borrow()
    }

    /// The backup.
    pub fn backup(&self) -> &Station {
        self.world.node(self.backup)
    }

    /// A connection's client and its endpoint, once it was opened.
    pub fn talk(&self, index: usize) -> Option<(&Talk, &Endpoint)> {
        let id = self.connections.borrow()[index]?;
        let host: &Host = self.world.node(self.client);
        Some((host.app(id)?, host.endpoint(id)?))
    }

    /// Lets it all happen until every connection is closed at its client's end, at most until `limit`; and a little
    /// longer, for what comes after the end. Returns what went wrong.
    pub fn run(&mut self, limit: Instant) -> Vec<String> {
        let (client, connections) = (self.client, Rc::clone(&self.connections));
        let is_over = |world: &World, id: EndpointId| {
            let endpoint = world.node::<Host>(client).endpoint(id);
            endpoint.is_some_and(|endpoint| matches!(endpoint.state(), State::Closed | State::TimeWait))
        };
        let mut asked_at = Instant::ZERO;
        self.world.run_while(limit, |world| {
            if world.now().since(asked_at) < Duration::from_millis(10) {
                return true;
            }
            asked_at = world.now();
            !connections
                .borrow()
                .iter()
                .all(|id| id.is_some_and(|id| is_over(world, id)))
        });
        let after = self.world.now() + Duration::from_secs(1);
        self.world.run_until(after);
        self.complaints()
    }

    /// What is wrong: broken promises, and connections that are not complete.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> = self.judge.borrow().violations().to_vec();
        complaints.extend(self.ledger.borrow().violations());
        let count = self.connections.borrow().len();
        let lost = self.backup().lost();
        let was_reset = self
            .backup()
            .relay_endings()
            .any(|ending| matches!(ending, Ending::Reset(_)));
        for index in 0..count {
            let Some((talk, endpoint)) = self.talk(index) else {
                complaints.push(format!("connection {index} was never opened"));
                continue;
            };
            let client = endpoint.local();
            if lost
                .iter()
                .any(|(lost, reason)| *lost == client && is_excused(reason))
            {
                let is_seen = talk
                    .wrong()
                    .is_none_or(|wrong| wrong.starts_with("the stream ended"));
                if !is_seen || !talk.is_complete() && endpoint.failure() != Some(Failure::Reset) {
                    complaints.push(format!(
                        "connection {index} ({client}) was lost, unseen: {talk:?}"
                    ));
                }
                continue;
            }
            if talk.may_be_cut() && (endpoint.failure() == Some(Failure::Reset) || was_reset) {
                continue; // nobody repeats a reset that is lost on its way
            }
            let failed = endpoint
                .failure()
                .filter(|failure| *failure != Failure::Reset || !talk.is_complete());
            if !talk.is_complete() || failed.is_some() {
                let state = endpoint.state();
                complaints.push(format!(
                    "connection {index} ({client}): {state:?}, {failed:?}, {talk:?}"
                ));
            }
        }
        let others = lost.iter().filter(|(_, reason)| !is_excused(reason));
        complaints.extend(others.map(|(client, reason)| format!("{client} was lost: {reason}")));
        complaints
    }
}

/// Whether a connection may be lost for this reason, as long as its client sees it.
pub(crate) fn is_excused(reason: &str) -> bool {
    reason.starts_with("the client may ") || reason.ends_with("must not be executed again")
}
