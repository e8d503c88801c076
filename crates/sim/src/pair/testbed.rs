//! A simulated pair with its clients, and the events that a test schedules for it.

use std::cell::{Ref, RefCell, RefMut};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use proto::Instant;
use proto::action::Gate;

use super::annex::station::AnnexStation;
use super::arbiter::SimArbiter;
use super::config::{SimPairConfig, vip};
use super::http;
use super::judge::Judge;
use super::neighbours::Neighbours;
use super::relay::RelayEnding;
use super::station::Station;
use super::talk::SimClient;
use crate::host::{EndpointId, Host};
use crate::link::LinkConfig;
use crate::tcp::{EndpointState, TcpEndpoint, TcpFailure};
use crate::world::{CableId, NodeId, Port, World};

fn client_address() -> IpAddr {
    IpAddr::from([10, 1, 0, 2])
}

/// A pair and its clients.
pub struct SimPair {
    /// The simulated world with the pair and its clients.
    pub world: World,
    /// The clients' host.
    pub client: NodeId,
    /// The backup.
    pub backup: NodeId,
    /// The primary.
    pub primary: NodeId,
    neighbours: NodeId,
    /// Cable between the clients and the backup.
    pub path: CableId,
    /// Cable between the clients and the primary.
    pub own_path: CableId,
    /// Cable between the two nodes' stacks.
    pub lan: CableId,
    /// Cable between the two nodes' agents.
    pub heartbeats: CableId,
    /// The cables' configurations when nothing is wrong.
    links: Vec<(CableId, LinkConfig)>,
    pub(crate) arbiter: Option<Rc<RefCell<SimArbiter>>>,
    judge: Rc<RefCell<Judge>>,
    ledger: Rc<RefCell<http::Ledger>>,
    connections: Rc<RefCell<Vec<Option<EndpointId>>>>,
    /// The annexes, each with its cables to the primary and to the backup.
    pub(crate) annexes: Vec<(NodeId, [CableId; 2])>,
}

/// Names of annexes, in the trace.
const ANNEX_NAMES: [&str; 2] = ["gamma", "delta"];

impl SimPair {
    /// A pair whose nodes have just begun to agree on their roles.
    ///
    /// # Panics
    /// If the configuration of a link or an endpoint is invalid.
    pub fn new(config: &SimPairConfig) -> Self {
        let mut world = World::new(config.seed);
        let judge = Rc::new(RefCell::new(Judge::new(vip())));
        judge.borrow_mut().commit = config.commit;
        let ledger = Rc::default();
        let arbiter = config
            .arbiter
            .map(|(kind, delay)| Rc::new(RefCell::new(SimArbiter::new(kind, delay))));
        let seeds = [world.random(), world.random(), world.random()];
        let client = Host::new(config.host(client_address(), &config.client_tcp), seeds[0]);
        let client = world.add("client", Box::new(client));
        let neighbours = Neighbours::new(Port(2), Rc::clone(&judge));
        let neighbours = world.add("neighbours", Box::new(neighbours));
        let [primary, backup] = [(1, true), (2, false)].map(|(node, is_primary)| {
            let station = config.station(node, is_primary, &ledger, arbiter.as_ref());
            if config.state_sync.is_some() {
                judge.borrow_mut().watch_server(station.number, &station.server);
            }
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
        let mut pair = Self {
            world,
            client,
            backup,
            primary,
            neighbours,
            path,
            own_path,
            lan,
            heartbeats,
            links,
            arbiter,
            judge,
            ledger,
            connections,
            annexes: Vec::new(),
        };
        (0..config.annexes).for_each(|number| pair.add_annex(config, number));
        pair
    }

    fn add_annex(&mut self, config: &SimPairConfig, number: usize) {
        let seed = self.world.random();
        let annex = config.annex(number, &self.ledger);
        let annex = AnnexStation::new(self.world.now(), annex, seed, Rc::clone(&self.judge));
        let annex = self.world.add(ANNEX_NAMES[number], Box::new(annex));
        let cables = [self.primary, self.backup].map(|node| {
            self.world
                .connect(node, annex, &config.lan)
                .expect("the caller has checked the links")
        });
        self.links.extend(cables.map(|cable| (cable, config.lan.clone())));
        self.annexes.push((annex, cables));
    }

    /// Opens a connection at `at`; connections are numbered from 0.
    pub fn connect(&mut self, at: Instant, talk: SimClient) {
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

    /// The primary loses power at `at` and boots at `back`.
    pub fn fail_and_return(&mut self, at: Instant, back: Instant) {
        self.world.run_until(at);
        self.lose_power(self.primary);
        self.world.run_until(back);
        self.boot(self.primary);
    }

    /// The configured backup loses power now.
    pub fn fail_backup(&mut self) {
        self.lose_power(self.backup);
    }

    /// A node loses power now.
    pub(crate) fn lose_power(&mut self, node: NodeId) {
        self.world.power_off(node);
        let now = self.world.now();
        let mut judge = self.judge_mut();
        judge.look_at_clock(now);
        judge.on_power_lost(self.number_of(node));
    }

    /// A node boots.
    pub(crate) fn boot(&mut self, node: NodeId) {
        self.judge_mut().on_power_back(self.number_of(node));
        self.world.power_on(node, Station::boot);
    }

    /// The operator orders at `at` that the connections with these numbers move from the primary to its backup within `patience`.
    pub fn migrate(&mut self, at: Instant, connections: impl IntoIterator<Item = usize>, patience: Duration) {
        let clients: Vec<_> = connections.into_iter().map(Self::client_of).collect();
        let primary = self.primary;
        self.world.at(at, move |world| {
            world.with(primary, |primary: &mut Station, now| {
                primary.order_migrate(now, clients, patience)
            });
        });
    }

    /// The operator orders at `at` that these connections move back from the backup to the primary within `patience`.
    pub fn migrate_back(
        &mut self,
        at: Instant,
        connections: impl IntoIterator<Item = usize>,
        patience: Duration,
    ) {
        let clients: Vec<_> = connections.into_iter().map(Self::client_of).collect();
        let backup = self.backup;
        self.world.at(at, move |world| {
            world.with(backup, |backup: &mut Station, now| {
                backup.order_migrate(now, clients, patience)
            });
        });
    }

    /// The operator orders at `at` on the primary that these connections move to an annex within `patience`.
    pub fn migrate_to(
        &mut self,
        at: Instant,
        connections: impl IntoIterator<Item = usize>,
        annex: usize,
        patience: Duration,
    ) {
        let clients: Vec<_> = connections.into_iter().map(Self::client_of).collect();
        let primary = self.primary;
        self.world.at(at, move |world| {
            world.with(primary, |primary: &mut Station, now| {
                primary.order_migrate_to(now, clients, Some(annex), patience)
            });
        });
    }

    /// The operator orders at `at` on the backup, which is the wire, that these connections move from where they are to another annex, or to
    /// the primary (`None`), within `patience`.
    pub fn migrate_guests(
        &mut self,
        at: Instant,
        connections: impl IntoIterator<Item = usize>,
        annex: Option<usize>,
        patience: Duration,
    ) {
        let clients: Vec<_> = connections.into_iter().map(Self::client_of).collect();
        let backup = self.backup;
        self.world.at(at, move |world| {
            world.with(backup, |backup: &mut Station, now| {
                backup.order_migrate_to(now, clients, annex, patience)
            });
        });
    }

    /// An annex.
    pub fn annex(&self, number: usize) -> &AnnexStation {
        self.world.node(self.annexes[number].0)
    }

    /// An annex loses its power at `at`.
    pub fn lose_annex(&mut self, at: Instant, number: usize) {
        let annex = self.annexes[number].0;
        self.world.at(at, move |world| {
            world.with(annex, |annex: &mut AnnexStation, _| annex.lose_power());
            world.power_off(annex);
        });
    }

    /// Kills a worker of the primary at `at`. The worker serves the connections with these numbers.
    pub fn kill_worker(&mut self, at: Instant, connections: impl IntoIterator<Item = usize>) {
        let clients: Vec<_> = connections.into_iter().map(Self::client_of).collect();
        let primary = self.primary;
        self.world.at(at, move |world| {
            world.with(primary, |primary: &mut Station, now| {
                primary.kill_worker(now, &clients)
            })
        });
    }

    /// Kills the processes of these connections on an annex at `at`.
    pub fn kill_annex_worker(
        &mut self,
        at: Instant,
        number: usize,
        connections: impl IntoIterator<Item = usize>,
    ) {
        let clients: Vec<_> = connections.into_iter().map(Self::client_of).collect();
        let annex = self.annexes[number].0;
        self.world.at(at, move |world| {
            world.with(annex, |annex: &mut AnnexStation, now| {
                annex.kill_worker(now, &clients)
            });
        });
    }

    /// Kills the backup's agent at `at`. A new agent starts at `restart`.
    pub fn kill_backup_agent(&mut self, at: Instant, restart: Instant) {
        let backup = self.backup;
        self.world.at(at, move |world| {
            world.with(backup, |backup: &mut Station, now| {
                backup.kill_agent(now, restart)
            });
        });
    }

    /// The configured backup loses power at `at` and boots at `back`.
    pub fn fail_backup_and_return(&mut self, at: Instant, back: Instant) {
        self.world.run_until(at);
        self.fail_backup();
        self.world.run_until(back);
        self.boot(self.backup);
    }

    /// Cuts a cable at `at` and mends it at `mended`.
    pub fn cut(&mut self, cable: CableId, at: Instant, mended: Instant) {
        self.world.at(at, move |world| world.set_up(cable, false));
        self.world.at(mended, move |world| world.set_up(cable, true));
    }

    /// Pauses the backup's agent at `at` for the duration `time`.
    pub fn pause_agent(&mut self, at: Instant, time: Duration) {
        let backup = self.backup;
        self.world.at(at, move |world| {
            world.with(backup, |backup: &mut Station, _| {
                backup.machine_mut().pause(at + time)
            })
        });
    }

    /// The client's address and port of the connection with this number.
    ///
    /// # Panics
    /// If the number is too large for a port.
    pub fn client_of(connection: usize) -> SocketAddr {
        let port = 40_000 + u16::try_from(connection).expect("few connections");
        SocketAddr::new(client_address(), port)
    }

    /// Number of connections.
    pub fn count(&self) -> usize {
        self.connections.borrow().len()
    }

    /// The world and the judge.
    pub(crate) fn world_and_judge(&mut self) -> (&mut World, &RefCell<Judge>) {
        (&mut self.world, &self.judge)
    }

    /// The judge, for reporting an event to it.
    pub(crate) fn judge_mut(&self) -> RefMut<'_, Judge> {
        self.judge.borrow_mut()
    }

    /// A node's number.
    pub(crate) fn number_of(&self, id: NodeId) -> usize {
        usize::from(id == self.backup)
    }

    /// The cables of a node: to the clients, to the peer's stack, to the peer's agent.
    pub(crate) fn cables_of(&self, id: NodeId) -> [CableId; 3] {
        let path = if id == self.backup {
            self.path
        } else {
            self.own_path
        };
        [path, self.lan, self.heartbeats]
    }

    /// Whether a node is at the second end of `cable`. The cable must be the node's path or the LAN.
    pub(crate) fn is_second_end(&self, cable: CableId, id: NodeId) -> bool {
        // The first end of both paths is at the neighbours. The first end of the LAN is at the backup.
        cable != self.lan || id == self.primary
    }

    /// A cable's configuration when nothing is wrong.
    pub(crate) fn link_of(&self, cable: CableId) -> LinkConfig {
        let link = self.links.iter().find(|(one, _)| *one == cable);
        link.map(|(_, link)| link.clone()).unwrap_or_default()
    }

    /// From now on, no cable loses packets.
    pub(crate) fn end_losses(&mut self) {
        for (cable, link) in self.links.iter_mut().filter(|(_, link)| link.loss > 0.0) {
            link.loss = 0.0;
            self.world.set_link(*cable, link).expect("it was valid before");
        }
    }

    /// Whether clients reach an application now, either on a node that speaks alone, or through a wire and its primary.
    pub(crate) fn is_served(&self) -> bool {
        let nodes = [self.primary, self.backup];
        let neighbours: &Neighbours = self.world.node(self.neighbours);
        let at = neighbours.vip_at();
        let [here, there] = [at, 1 - at].map(|index| self.world.node::<Station>(nodes[index]));
        let reaches = |index: usize| self.world.is_up(self.cables_of(nodes[index])[0]);
        let is_linked = self.world.is_up(self.lan);
        match (here.machine().gate().0, there.machine().gate().0) {
            (Gate::Takeover | Gate::Sole, _) => reaches(at) && here.machine().may_speak_now(self.world.now()),
            (Gate::Wire, Gate::Primary) => {
                let is_direct = there.machine().is_direct(there.machine().time(self.world.now()));
                reaches(at) && is_linked && (reaches(1 - at) || !is_direct)
            }
            // The neighbours still send to the primary, which redirects the packets to the wire.
            (Gate::Primary, Gate::Wire) => reaches(at) && reaches(1 - at) && is_linked,
            _ => false,
        }
    }

    /// Whether both nodes live, their agents hear each other, and one of the nodes reaches the clients.
    pub(crate) fn could_be_served(&self) -> bool {
        let nodes = [self.primary, self.backup];
        let live = nodes.iter().all(|node| self.world.is_powered(*node));
        let reaches = |node: &NodeId| self.world.is_up(self.cables_of(*node)[0]);
        live && self.world.is_up(self.heartbeats) && nodes.iter().any(reaches)
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

    /// The ledger of executed requests.
    pub fn ledger(&self) -> Ref<'_, http::Ledger> {
        self.ledger.borrow()
    }

    /// The primary.
    pub fn primary(&self) -> &Station {
        self.world.node(self.primary)
    }

    /// The backup.
    pub fn backup(&self) -> &Station {
        self.world.node(self.backup)
    }

    /// A connection's client program and TCP endpoint. `None` before the connection is opened.
    pub fn talk(&self, index: usize) -> Option<(&SimClient, &TcpEndpoint)> {
        let id = self.connections.borrow()[index]?;
        let host: &Host = self.world.node(self.client);
        Some((host.app(id)?, host.endpoint(id)?))
    }

    /// Runs the world until every client has closed its connection, or until `limit`. Then runs it for one more second, for packets
    /// that are still on their way. Returns what went wrong.
    pub fn run(&mut self, limit: Instant) -> Vec<String> {
        let (client, connections) = (self.client, Rc::clone(&self.connections));
        let is_over = |world: &World, id: EndpointId| {
            let endpoint = world.node::<Host>(client).endpoint(id);
            endpoint.is_some_and(|endpoint| {
                matches!(endpoint.state(), EndpointState::Closed | EndpointState::TimeWait)
            })
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

    /// The problems so far: broken rules, and connections that did not complete.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> = self.judge.borrow().violations().to_vec();
        complaints.extend(if self.annexes.is_empty() {
            self.ledger.borrow().violations()
        } else {
            self.ledger.borrow().violations_of_many(|_| false)
        });
        let count = self.connections.borrow().len();
        let lost = self.backup().machine().lost();
        let was_reset = self
            .backup()
            .machine()
            .relay_endings()
            .any(|ending| matches!(ending, RelayEnding::Reset(_)));
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
                if !is_seen || !talk.is_complete() && endpoint.failure() != Some(TcpFailure::Reset) {
                    complaints.push(format!(
                        "connection {index} ({client}) was lost, and its client did not notice: {talk:?}"
                    ));
                }
                continue;
            }
            if talk.may_be_cut() && (endpoint.failure() == Some(TcpFailure::Reset) || was_reset) {
                continue; // TCP does not repeat a reset, so a client may never get it
            }
            let failed = endpoint
                .failure()
                .filter(|failure| *failure != TcpFailure::Reset || !talk.is_complete());
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

/// Whether a connection may be lost for this reason. Its client must notice the loss.
fn is_excused(reason: &str) -> bool {
    reason.starts_with("the client may ") || reason.ends_with("must not be executed again")
}
