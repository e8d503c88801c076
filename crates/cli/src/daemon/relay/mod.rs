//! Hands live sockets over to the keeper, and knows what then becomes of their connections. A separate thread talks to the keeper, so that
//! the takeover of the next connection does not wait for the keeper.

mod serve;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context;
use linux::keeper::{self, KeepInput};
use proto::Instant;
use proto::action::ServiceIndex;
use proto::connection::{Connection, Endpoint};
use proto::restart::prefix::{KeepLimits, PrefixAnswer, PrefixAsk};

use crate::config::{AfterTakeover, AtLimitSetting, Config, ServiceSettings};
use crate::control::RestoredStatus;
use crate::keepers::Keepers;
pub use serve::{Handover, HandoverContent, LoggedContent, PlannedContent, RelayService, WakeLoop};
use serve::{RelayAnswers, RelayOrder, RelayReport};

/// Number of low bits of a connection's number, in which an agent counts its connections. The high bits are random for each agent.
const NUMBERS: u32 = 32;
/// Maximum number of connections that were taken over and are remembered, ended ones included.
const TAKEN_MAX: usize = 1 << 16;
/// Number of connections that the keeper has yet to take, from which it counts as behind. A client that speaks waits for them, so they
/// must take less than a few milliseconds.
const BEHIND: u64 = 64;
/// Why a connection that was taken over is not protected.
pub const RELAYED: &str = "relayed; no backup";

/// A live socket that this process still owns.
pub struct LiveSocket {
    /// Its connection's number among those that were taken over.
    pub number: u64,
    /// The client's connection.
    pub socket: OwnedFd,
}

/// A connection that was taken over.
struct TakenConnection {
    service: ServiceIndex,
    client: SocketAddr,
    live: Instant,
    owner: SocketOwner,
}

impl TakenConnection {
    /// Whether the report may lack the connection, because the keeper got it after the report or has not got it yet.
    const fn may_lack_in(&self, report: &RelayReport) -> bool {
        match self.owner {
            SocketOwner::Agent => true,
            SocketOwner::Relay(number) => number > report.given,
            SocketOwner::Nobody => false,
        }
    }
}

/// The owner of a taken connection's socket.
enum SocketOwner {
    /// This process.
    Agent,
    /// The thread that talks to the keeper. The number is the connection's place among all connections given to the thread, from 1.
    Relay(u64),
    /// No process: the connection was not handed over, and its socket was closed.
    Nobody,
}

/// The connections that were taken over, and the thread that talks to the keepers.
pub struct RelayedConnections {
    /// The number of the next connection. Starts at random, because the keeper may have connections of earlier agents.
    next: u64,
    /// By number, so the oldest comes first.
    taken: BTreeMap<u64, TakenConnection>,
    /// Number of connections given to the thread.
    given: u64,
    names: Vec<String>,
    told: Arc<Mutex<RelayReport>>,
    /// SYN-ACKs of an earlier agent's connections whose clients have not been heard yet.
    unheard: Receiver<(ServiceIndex, Vec<u8>)>,
    /// The keepers' answers to the peer's questions for kept input.
    prefixes: Receiver<(ServiceIndex, PrefixAnswer)>,
    /// Wakes this node's loop.
    wake: Option<WakeLoop>,
    thread: Option<RelayThreadHandle>,
    services: Arc<[RelayService]>,
}

/// The thread that talks to the keepers.
struct RelayThreadHandle {
    orders: Sender<RelayOrder>,
    handle: JoinHandle<Keepers>,
    /// Number of connections that the thread has handed on, and the threads before it.
    passed: Arc<AtomicU64>,
}

impl RelayedConnections {
    /// Makes the relay of a node. It has no keeper until [`start`](Self::start).
    pub fn new(config: &Config) -> Self {
        let services = config.services.iter().map(|service| RelayService {
            name: service.name.clone(),
            application: service.application,
            volatile: service.volatile(),
            closes: service.after_takeover == AfterTakeover::Close,
            keep: service.keep_input.then(|| keep_input(config, service)),
        });
        Self::of(services.collect())
    }

    /// Makes a relay for these services.
    pub fn of(services: Vec<RelayService>) -> Self {
        Self {
            next: (linux::process::random_seed() as u64) << NUMBERS,
            taken: BTreeMap::new(),
            given: 0,
            names: services.iter().map(|service| service.name.clone()).collect(),
            told: Arc::default(),
            unheard: channel().1,
            prefixes: channel().1,
            wake: None,
            thread: None,
            services: services.into(),
        }
    }

    /// How a connection of this node's log goes on elsewhere with the socket that was made from `endpoint`. `None` if it cannot go on.
    pub fn plan_elsewhere(
        &self,
        service: ServiceIndex,
        connection: &Connection,
        endpoint: &Endpoint,
    ) -> Option<std::io::Result<PlannedContent>> {
        let restart = connection.restart_on(endpoint);
        let (mut adoption, input) =
            self.services[usize::from(service)].plan(0, (connection, &restart), endpoint)?;
        adoption.keep = None; // this node's limits are not that node's
        Some(input.read().map(|input| PlannedContent { adoption, input }))
    }

    /// Starts the thread that talks to `keepers`.
    pub fn start(&mut self, keepers: Keepers) -> anyhow::Result<()> {
        let (orders, receiver) = channel();
        let (unheard, found) = channel();
        let (answers, prefixes) = channel();
        (self.unheard, self.prefixes) = (found, prefixes);
        let answers = RelayAnswers {
            unheard,
            prefixes: answers,
            wake: self.wake.clone(),
        };
        let passed = Arc::new(AtomicU64::new(self.given));
        let thread = serve::RelayThread::new(
            keepers,
            answers,
            Arc::clone(&self.services),
            Arc::clone(&self.told),
            Arc::clone(&passed),
        );
        let handle = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || thread.run(&receiver))
            .context("starting a thread")?;
        self.thread = Some(RelayThreadHandle {
            orders,
            handle,
            passed,
        });
        Ok(())
    }

    /// Ends the thread once it has handed over the connections that it was given. The keepers go on.
    pub fn pause(&mut self) -> Option<Keepers> {
        let RelayThreadHandle { orders, handle, .. } = self.thread.take()?;
        drop(orders);
        let keepers = handle.join();
        keepers
            .inspect_err(|_| tracing::error!("the relay's thread panicked"))
            .ok()
    }

    /// Ends the keepers; their connections are reset.
    pub fn stop(&mut self) {
        if let Some(Err(error)) = self.pause().map(Keepers::stop) {
            tracing::error!(%error, "cannot stop all keepers; the connections of a remaining keeper continue");
        }
    }

    /// Whether the keepers have taken or refused every connection that was given to the thread. Also true if the thread has ended.
    pub fn is_settled(&self) -> bool {
        let is_done =
            |thread: &RelayThreadHandle| self.told().settled == self.given || thread.handle.is_finished();
        self.thread.as_ref().is_none_or(is_done)
    }

    /// Whether many connections wait for the keeper.
    pub fn is_behind(&self) -> bool {
        let waiting = |thread: &RelayThreadHandle| self.given - thread.passed.load(Ordering::Relaxed);
        let mut thread = self.thread.iter().filter(|thread| !thread.handle.is_finished());
        thread.any(|thread| waiting(thread) >= BEHIND)
    }

    /// Records that the socket of this client's connection has become live. Returns the connection's number.
    pub fn add_live(&mut self, service: ServiceIndex, client: SocketAddr, live: Instant) -> u64 {
        let number = self.next;
        self.next += 1;
        let owner = SocketOwner::Agent;
        self.taken.insert(
            number,
            TakenConnection {
                service,
                client,
                live,
                owner,
            },
        );
        if self.taken.len() > TAKEN_MAX {
            self.taken.pop_first();
        }
        number
    }

    /// Records that a live socket was closed and not handed over to the keeper.
    pub fn drop_taken(&mut self, id: u64) {
        if let Some(taken) = self.taken.get_mut(&id) {
            taken.owner = SocketOwner::Nobody;
        }
    }

    /// Gives a connection to the keeper.
    pub fn hand_over(&mut self, handover: Handover) {
        let (id, client) = (handover.id, handover.client);
        let sent = self
            .thread
            .as_ref()
            .is_some_and(|thread| thread.orders.send(RelayOrder::Adopt(Box::new(handover))).is_ok());
        if !sent {
            tracing::error!(%client, "no keeper: the connection is lost");
            return;
        }
        self.given += 1;
        if let Some(taken) = self.taken.get_mut(&id) {
            taken.owner = SocketOwner::Relay(self.given);
        }
    }

    /// Sets the function that wakes this node's loop. Call this before [`start`](Self::start).
    pub fn set_wake(&mut self, wake: WakeLoop) {
        self.wake = Some(wake);
    }

    /// Asks the keepers for input that they have kept. The answer comes by [`prefixes`](Self::prefixes). Without a keeper there is none.
    pub fn ask_prefix(&self, service: ServiceIndex, ask: PrefixAsk) {
        if let Some(thread) = &self.thread {
            let _ = thread.orders.send(RelayOrder::Prefix(service, ask)); // fails only if the thread has ended
        }
    }

    /// Answers of the keepers, each returned once.
    pub fn prefixes(&self) -> impl Iterator<Item = (ServiceIndex, PrefixAnswer)> {
        self.prefixes.try_iter()
    }

    /// SYN-ACKs to repeat for an earlier agent's connections, each returned once.
    pub fn unheard(&self) -> impl Iterator<Item = (ServiceIndex, Vec<u8>)> {
        self.unheard.try_iter()
    }

    fn told(&self) -> MutexGuard<'_, RelayReport> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that the keeper relays now.
    pub fn relayed(&self, service: ServiceIndex) -> u64 {
        let told = self.told();
        let sums = told.status.services.get(&self.names[usize::from(service)]);
        sums.map_or(0, |sums| sums.live)
    }

    /// The keepers' counters.
    pub fn counters(&self, service: ServiceIndex) -> BTreeMap<String, u64> {
        let told = self.told();
        let Some(sums) = told.status.services.get(&self.names[usize::from(service)]) else {
            return BTreeMap::new();
        };
        let mut counters: BTreeMap<String, u64> = sums
            .ended
            .iter()
            .map(|(ending, &count)| (format!("relayed_ended_{}", name_of(*ending)), count))
            .collect();
        counters.insert("relayed_adopted".into(), sums.adopted);
        counters.insert("relayed_live".into(), sums.live);
        if self.services[usize::from(service)].keep.is_some() {
            counters.insert("relayed_input_kept".into(), sums.kept);
            counters.insert("relayed_input_given_up".into(), sums.kept_given_up);
        }
        counters.insert("relayed_requests_refused".into(), sums.refused);
        counters.insert("relayed_requests_quarantined".into(), sums.quarantined);
        counters
    }

    /// The clients of `service` whose connections are relayed or about to be relayed, each with the number of bytes passed to the
    /// application and to the client.
    pub fn clients(&self, service: ServiceIndex) -> Vec<(SocketAddr, u64, u64)> {
        let told = self.told();
        let relayed = told.relayed(&self.names[usize::from(service)]);
        let on_the_way = self
            .taken_of(service)
            .filter(|(id, taken)| !relayed.contains_key(id) && taken.may_lack_in(&told))
            .map(|(_, taken)| (taken.client, 0, 0));
        let passed = |one: &&keeper::KeeperConnectionStatus| (one.client, one.to_application, one.to_client);
        relayed.values().map(passed).chain(on_the_way).collect()
    }

    /// The fate of the connections of `service` that this agent has restored, the oldest first.
    pub fn restored(&self, service: ServiceIndex) -> impl Iterator<Item = RestoredStatus> {
        let name = &self.names[usize::from(service)];
        let told = self.told();
        let relayed = told.relayed(name);
        let ended = told.status.ended.iter();
        let reasons: HashMap<u64, &str> = ended.map(|one| (one.id, one.reason.as_str())).collect();
        let restored: Vec<_> = self
            .taken_of(service)
            .map(|(id, taken)| RestoredStatus {
                service: name.clone(),
                client: taken.client,
                live_ns: taken.live.as_nanos(),
                lives: relayed.contains_key(id) || taken.may_lack_in(&told),
                reason: reasons.get(id).copied().unwrap_or_default().to_owned(),
            })
            .collect();
        restored.into_iter()
    }

    fn taken_of(&self, service: ServiceIndex) -> impl Iterator<Item = (&u64, &TakenConnection)> {
        self.taken
            .iter()
            .filter(move |(_, taken)| taken.service == service)
    }
}

/// How much input the keeper may keep: as much as the log of the service.
fn keep_input(config: &Config, service: &ServiceSettings) -> KeepInput {
    let log = &config.log;
    KeepInput {
        limits: KeepLimits {
            connection_bytes_max: log.per_connection_bytes,
            bytes_max: log.total_bytes,
        },
        files: (service.at_limit == AtLimitSetting::Spill).then(|| (log.spill_dir.clone(), log.spill_bytes)),
    }
}

fn name_of(ending: keeper::ConnectionEnding) -> String {
    serde_json::to_value(ending)
        .ok()
        .and_then(|name| name.as_str().map(str::to_owned))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use keeper::{ConnectionEnding, EndedStatus, KeeperConnectionStatus, RelayState};

    use super::*;

    const WEB: ServiceIndex = 0;

    fn client(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 9], port))
    }

    /// A relay that has taken over connections of client ports 1, 2, …. `owners` are the owners of their sockets, in this order.
    fn relay(owners: impl IntoIterator<Item = SocketOwner>) -> RelayedConnections {
        let taken = (1..).zip(owners).map(|(id, owner)| {
            let client = client(u16::try_from(id).unwrap());
            let live = Instant::from_nanos(id);
            let taken = TakenConnection {
                service: WEB,
                client,
                live,
                owner,
            };
            (id, taken)
        });
        RelayedConnections {
            next: 100,
            taken: taken.collect(),
            given: 0,
            names: vec!["web".to_owned()],
            told: Arc::default(),
            unheard: channel().1,
            prefixes: channel().1,
            wake: None,
            thread: None,
            services: Arc::new([]),
        }
    }

    fn relayed(id: u64) -> KeeperConnectionStatus {
        KeeperConnectionStatus {
            id,
            service: "web".to_owned(),
            client: client(u16::try_from(id).unwrap()),
            state: RelayState::Relaying,
            to_application: 10,
            to_client: 20,
            syn_ack: None,
        }
    }

    fn ports(relay: &RelayedConnections) -> Vec<u16> {
        let mut ports: Vec<_> = relay
            .clients(WEB)
            .iter()
            .map(|(client, ..)| client.port())
            .collect();
        ports.sort_unstable();
        ports
    }

    fn lives(relay: &RelayedConnections) -> Vec<(bool, String)> {
        relay.restored(WEB).map(|one| (one.lives, one.reason)).collect()
    }

    #[test]
    fn those_that_ended_are_not_shown_as_living_however_many_they_are() {
        let relay = relay([
            SocketOwner::Relay(1),
            SocketOwner::Relay(2),
            SocketOwner::Relay(3),
            SocketOwner::Relay(4),
            SocketOwner::Agent,
            SocketOwner::Nobody,
        ]);
        let none = String::new;
        // The keeper has told nothing yet.
        assert_eq!(ports(&relay), [1, 2, 3, 4, 5]);
        // The keeper reports on three connections. Connection 1 lives. Connections 2 and 3 have ended, and the keeper remembers only the
        // end of connection 2. It also relays connection 50 of an earlier agent.
        *relay.told.lock().unwrap() = RelayReport {
            status: keeper::KeeperStatus {
                connections: vec![relayed(1), relayed(50)],
                ended: vec![EndedStatus {
                    id: 2,
                    service: "web".to_owned(),
                    client: client(2),
                    ending: ConnectionEnding::Mismatch,
                    reason: "another reply".to_owned(),
                    to_application: 0,
                    to_client: 0,
                }],
                ..keeper::KeeperStatus::default()
            },
            given: 3,
            settled: 3,
        };
        assert_eq!(ports(&relay), [1, 4, 5, 50]);
        let ended = (false, "another reply".to_owned());
        let expected = [
            (true, none()),
            ended,
            (false, none()),
            (true, none()),
            (true, none()),
            (false, none()),
        ];
        assert_eq!(lives(&relay), expected);
    }
}
