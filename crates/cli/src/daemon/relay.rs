//! From live sockets to the keeper. A thread of its own talks to it, so that the next connection's takeover does not wait.

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use linux::keeper::{Adoption, Client, ClientError, Input, Plan, Status};
use proto::Instant;
use proto::action::ServiceIndex;
use proto::connection::{Connection, Endpoint, OutputEnd};
use proto::follower::Restart;
use proto::restart::http::Volatile;
use proto::table::ConnectionId;

use crate::config::{AfterTakeover, Config};
use crate::control::{self, ConnectionStatus};
use crate::keepers::Keepers;

/// Bits of a connection's number that one agent counts with.
const NUMBERS: u32 = 32;
/// How old the keepers' status may be when someone asks.
const REFRESH: Duration = Duration::from_millis(200);
/// Why a connection that was taken over is not protected.
pub const RELAYED: &str = "relayed; no backup";

/// A live connection on its way to the keeper.
pub struct Handover {
    /// Its number among those that were taken over.
    pub id: u64,
    /// Its service.
    pub service: ServiceIndex,
    /// The logs and the restart point.
    pub connection: Box<Connection>,
    /// See [`HandedOver`](proto::takeover::HandedOver).
    pub syn_ack: Option<Vec<u8>>,
    /// Where the socket stands.
    pub endpoint: Endpoint,
    /// The client's connection.
    pub socket: OwnedFd,
    /// The replica's connection to the application.
    pub replica: Option<TcpStream>,
}

/// A live connection that is still this process's.
pub struct Live {
    /// Its number among those that were taken over.
    pub id: u64,
    /// Where it stands.
    pub endpoint: Endpoint,
    /// The client's connection.
    pub socket: OwnedFd,
}

/// A connection that was taken over.
struct Taken {
    service: ServiceIndex,
    client: SocketAddr,
    live: Instant,
}

/// What the thread needs to know of a service.
struct Service {
    name: String,
    application: SocketAddr,
    volatile: Volatile,
    closes: bool,
}

/// The live connections and the way to the keepers.
pub struct Relay {
    live: HashMap<(ServiceIndex, ConnectionId), Live>,
    /// The number of the first of [`taken`](Self::taken): the keeper may have connections of earlier agents.
    first: u64,
    taken: Vec<Taken>,
    names: Vec<String>,
    status: Arc<Mutex<Status>>,
    /// SYN-ACKs of an earlier agent's connections whose clients were not heard yet.
    unheard: Receiver<(ServiceIndex, Vec<u8>)>,
    thread: Option<Thread>,
    services: Arc<[Service]>,
}

/// The thread that talks to the keepers.
struct Thread {
    handovers: Sender<Handover>,
    /// Those that no keeper has taken or refused yet.
    pending: Arc<AtomicUsize>,
    handle: JoinHandle<Keepers>,
}

impl Relay {
    /// No keeper yet.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let mut services = Vec::new();
        for service in &config.services {
            services.push(Service {
                name: service.name.clone(),
                application: service.application,
                volatile: service.volatile(),
                closes: service.after_takeover == AfterTakeover::Close,
            });
        }
        Ok(Self {
            live: HashMap::new(),
            first: (linux::process::random_seed() as u64) << NUMBERS,
            taken: Vec::new(),
            names: config
                .services
                .iter()
                .map(|service| service.name.clone())
                .collect(),
            status: Arc::default(),
            unheard: channel().1,
            thread: None,
            services: services.into(),
        })
    }

    /// Starts the thread that talks to `keepers`.
    pub fn start(&mut self, keepers: Keepers) -> anyhow::Result<()> {
        let (handovers, receiver) = channel();
        let (unheard, found) = channel();
        self.unheard = found;
        let pending = Arc::new(AtomicUsize::new(0));
        let (services, status) = (Arc::clone(&self.services), Arc::clone(&self.status));
        let left = Arc::clone(&pending);
        let handle = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || serve(keepers, &receiver, &unheard, &left, &services, &status))
            .context("starting a thread")?;
        self.thread = Some(Thread {
            handovers,
            pending,
            handle,
        });
        Ok(())
    }

    /// Ends the thread once it has handed over what it was given. The keepers go on.
    pub fn pause(&mut self) -> Option<Keepers> {
        let Thread {
            handovers, handle, ..
        } = self.thread.take()?;
        drop(handovers);
        let keepers = handle.join();
        keepers
            .inspect_err(|_| tracing::error!("the relay's thread panicked"))
            .ok()
    }

    /// Ends the keepers; connections that they have are reset.
    pub fn stop(&mut self) {
        if let Some(Err(error)) = self.pause().map(Keepers::stop) {
            tracing::error!(%error, "a keeper is left");
        }
    }

    /// Whether all that went live is a keeper's.
    pub fn is_settled(&self) -> bool {
        let is_idle =
            |thread: &Thread| thread.pending.load(Ordering::Acquire) == 0 || thread.handle.is_finished();
        self.live.is_empty() && self.thread.as_ref().is_none_or(is_idle)
    }

    /// A connection's socket has become live.
    pub fn add_live(
        &mut self,
        service: ServiceIndex,
        id: ConnectionId,
        socket: OwnedFd,
        endpoint: Endpoint,
        live: Instant,
    ) {
        let number = self.first + self.taken.len() as u64;
        self.taken.push(Taken {
            service,
            client: endpoint.client,
            live,
        });
        self.live.insert(
            (service, id),
            Live {
                id: number,
                endpoint,
                socket,
            },
        );
    }

    /// The socket again.
    pub fn take_live(&mut self, service: ServiceIndex, id: ConnectionId) -> Option<Live> {
        self.live.remove(&(service, id))
    }

    /// Closes the sockets that have not gone to the keeper.
    pub fn drop_live(&mut self, service: ServiceIndex) {
        self.live.retain(|(of, _), _| *of != service);
    }

    /// Gives a connection to the keeper.
    pub fn hand_over(&self, handover: Handover) {
        let client = handover.endpoint.client;
        if let Some(Thread {
            handovers, pending, ..
        }) = &self.thread
        {
            pending.fetch_add(1, Ordering::AcqRel);
            if handovers.send(handover).is_ok() {
                return;
            }
            pending.fetch_sub(1, Ordering::AcqRel);
        }
        tracing::error!(%client, "no keeper: the connection is lost");
    }

    /// SYN-ACKs that are to be repeated for an earlier agent's connections, once each.
    pub fn unheard(&self) -> impl Iterator<Item = (ServiceIndex, Vec<u8>)> {
        self.unheard.try_iter()
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that were ended because their reply could not be continued.
    pub fn ended(&self, service: ServiceIndex) -> u64 {
        let status = self.status();
        let sums = status.services.get(&self.names[usize::from(service)]);
        sums.map_or(0, |sums| {
            sums.ended
                .iter()
                .filter(|(ending, _)| ending.is_reset())
                .map(|(_, count)| count)
                .sum()
        })
    }

    /// Connections that the keeper relays now.
    pub fn relayed(&self, service: ServiceIndex) -> u64 {
        let status = self.status();
        let sums = status.services.get(&self.names[usize::from(service)]);
        sums.map_or(0, |sums| sums.live)
    }

    /// What the keeper has counted.
    pub fn counters(&self, service: ServiceIndex) -> BTreeMap<String, u64> {
        let status = self.status();
        let Some(sums) = status.services.get(&self.names[usize::from(service)]) else {
            return BTreeMap::new();
        };
        let mut counters: BTreeMap<String, u64> = sums
            .ended
            .iter()
            .map(|(ending, &count)| (format!("relayed_ended_{}", name_of(*ending)), count))
            .collect();
        counters.insert("relayed_adopted".into(), sums.adopted);
        counters.insert("relayed_live".into(), sums.live);
        counters.insert("relayed_requests_refused".into(), sums.refused);
        counters.insert("relayed_requests_quarantined".into(), sums.quarantined);
        counters
    }

    /// The connections that were taken over.
    pub fn connections(&self, service: ServiceIndex, name: &str) -> Vec<ConnectionStatus> {
        let status = self.status();
        let ended: HashMap<u64, &str> = status
            .ended
            .iter()
            .map(|ended| (ended.id, ended.reason.as_str()))
            .collect();
        let by_id = status
            .connections
            .iter()
            .map(|connection| (connection.id, connection));
        let relayed: HashMap<u64, _> = by_id.collect(); // to look for each among thousands would hold the agent up
        let taken = (self.first..)
            .zip(&self.taken)
            .filter(|(_, taken)| taken.service == service);
        let ours = self.first..self.first + self.taken.len() as u64;
        let earlier = status
            .connections
            .iter()
            .filter(|connection| connection.service == name && !ours.contains(&connection.id))
            .map(|connection| ConnectionStatus {
                service: name.to_owned(),
                client: connection.client,
                protection: control::Protection::Unprotected,
                reason: RELAYED.to_owned(),
                in_offset: connection.to_application,
                out_offset: connection.to_client,
                log_bytes: 0,
                spilled_bytes: 0,
                lag: control::Lag::default(),
                live_ns: None,
            });
        taken
            .map(|(id, taken)| {
                let passed = relayed.get(&id);
                let reason = match ended.get(&id) {
                    None => RELAYED.to_owned(),
                    Some(&"") => "relayed; closed".to_owned(),
                    Some(reason) => format!("relayed; ended: {reason}"),
                };
                ConnectionStatus {
                    service: name.to_owned(),
                    client: taken.client,
                    protection: control::Protection::Unprotected,
                    reason,
                    in_offset: passed.map_or(0, |passed| passed.to_application),
                    out_offset: passed.map_or(0, |passed| passed.to_client),
                    log_bytes: 0,
                    spilled_bytes: 0,
                    lag: control::Lag::default(),
                    live_ns: Some(taken.live.as_nanos()),
                }
            })
            .chain(earlier)
            .collect()
    }
}

fn name_of(ending: linux::keeper::Ending) -> String {
    serde_json::to_value(ending)
        .ok()
        .and_then(|name| name.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Hands connections over until no more can come.
fn serve(
    mut keepers: Keepers,
    handovers: &Receiver<Handover>,
    unheard: &Sender<(ServiceIndex, Vec<u8>)>,
    pending: &AtomicUsize,
    services: &[Service],
    status: &Mutex<Status>,
) -> Keepers {
    let found = keepers.status().unwrap_or_default(); // asked again below, and then it says what is wrong
    for connection in found.connections {
        let service = (0..)
            .zip(services)
            .find(|(_, service)| service.name == connection.service);
        if let (Some((service, _)), Some(syn_ack)) = (service, connection.syn_ack) {
            let _ = unheard.send((service, syn_ack)); // the agent ends
        }
    }
    let mut adopted = !found.services.is_empty();
    let mut refreshed = linux::clock::now();
    loop {
        let since = linux::clock::now().since(refreshed);
        let wait = if adopted {
            REFRESH.saturating_sub(since)
        } else {
            REFRESH
        };
        match handovers.recv_timeout(wait) {
            Ok(handover) => {
                let mut count = 0;
                for handover in std::iter::once(handover).chain(handovers.try_iter()) {
                    count += 1;
                    let service = &services[usize::from(handover.service)];
                    adopt(&mut keepers.current, service, handover);
                }
                settle(&mut keepers.current);
                pending.fetch_sub(count, Ordering::AcqRel);
                adopted = true;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return keepers,
        }
        // It is about all connections: not for each that comes.
        let now = linux::clock::now();
        if !adopted || now.since(refreshed) < REFRESH {
            continue;
        }
        refreshed = now;
        match keepers.status() {
            Ok(now) => *status.lock().unwrap_or_else(PoisonError::into_inner) = now,
            Err(error @ ClientError::Refused(_)) => tracing::error!(%error, "connection lost"),
            Err(error) => {
                tracing::error!(%error, "the keeper is lost, and with it the relayed connections");
                return keepers;
            }
        }
    }
}

/// Waits until the keeper has taken or refused all that was given to it.
fn settle(keeper: &mut Client) {
    while let Err(error) = keeper.settle() {
        tracing::error!(%error, "connection lost");
        if !matches!(error, ClientError::Refused(_)) {
            return; // the next question to it fails too
        }
    }
}

fn adopt(client: &mut Client, service: &Service, handover: Handover) {
    let Handover {
        id,
        connection,
        syn_ack,
        endpoint,
        socket,
        replica,
        ..
    } = handover;
    let restart = connection.follower().restart();
    // What came after the endpoint was taken is in the socket's receive queue.
    let (log, frontier) = (connection.input(), endpoint.input_frontier);
    let (plan, input) = match &restart {
        _ if endpoint.output != OutputEnd::Open => (Plan::Silent, Input::default()),
        Ok(Restart::Http { feed, resume }) => (
            Plan::Http {
                resume: resume.clone(),
                volatile: service.volatile.clone(),
                closes: service.closes,
            },
            feed.logged(log, frontier).into_iter().collect(),
        ),
        Ok(Restart::Replica { input_from, resume }) => {
            let input = log.parts((*input_from).min(frontier)..frontier).collect();
            let resume = resume.clone();
            (Plan::Replica { resume }, input)
        }
        Err(reason) => {
            // It was asked before it was taken out of the table. The socket says a RST when it is closed, as all of these do.
            tracing::warn!(client = %endpoint.client, reason, "connection lost");
            return;
        }
    };
    let adoption = Adoption {
        id,
        service: service.name.clone(),
        client: endpoint.client,
        vip: endpoint.vip,
        application: service.application,
        plan,
        input_ended: endpoint.input_ended,
        output: endpoint.output,
        syn_ack,
    };
    let replica = replica.as_ref().map(AsFd::as_fd);
    if let Err(error) = client.adopt(adoption, socket.as_fd(), replica, &input) {
        tracing::error!(client = %endpoint.client, %error, "connection lost");
    }
}
