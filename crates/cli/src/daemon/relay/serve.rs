//! The thread that talks to the keepers.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linux::keeper::{self, Adoption, AdoptionPlan, KeepInput, LoggedInput};
use proto::action::ServiceIndex;
use proto::connection::{Connection, Endpoint, OutputEnd};
use proto::follower::Restart;
use proto::restart::http::Volatile;
use proto::restart::prefix::{PrefixAnswer, PrefixAsk};
use proto::stream::StreamLog;
use proto::{Instant, Offset};
use serde::{Deserialize, Serialize};

use crate::keepers::Keepers;

/// Time between two status requests while the keepers relay something.
const REFRESH: Duration = Duration::from_millis(200);
/// Time between two status requests while the keepers relay nothing. A dead keeper is noticed and replaced within this time.
const LOOK: Duration = Duration::from_secs(1);

/// A live connection on its way to the keeper.
pub struct Handover {
    /// Its number among the connections that were taken over.
    pub id: u64,
    pub service: ServiceIndex,
    pub client: SocketAddr,
    /// The client's connection.
    pub socket: OwnedFd,
    pub content: HandoverContent,
}

/// Wakes the agent's loop.
pub type WakeLoop = Arc<dyn Fn() + Send + Sync>;

/// Work for the thread.
pub(super) enum RelayOrder {
    /// Hand this connection over.
    Adopt(Box<Handover>),
    /// Ask the keepers for input that they have kept.
    Prefix(ServiceIndex, PrefixAsk),
}

/// Where the thread sends what it learns.
pub(super) struct RelayAnswers {
    /// See [`RelayThread::tell_unheard`].
    pub unheard: Sender<(ServiceIndex, Vec<u8>)>,
    /// The keepers' answers to [`RelayOrder::Prefix`].
    pub prefixes: Sender<(ServiceIndex, PrefixAnswer)>,
    /// Wakes the agent's loop after an answer.
    pub wake: Option<WakeLoop>,
}

/// What the keeper gets of a connection, besides its socket.
pub enum HandoverContent {
    /// What this node's log has of it.
    Logged(Box<LoggedContent>),
    /// What another node's log has of it (docs/annex.md).
    Planned(Box<PlannedContent>),
}

/// A connection of this node's log.
pub struct LoggedContent {
    /// The logs and the restart point.
    pub connection: Box<Connection>,
    /// See [`HandedOver`](proto::takeover::HandedOver).
    pub syn_ack: Option<Vec<u8>>,
    /// The state from which the socket was restored.
    pub endpoint: Endpoint,
    /// The replica's connection to the application.
    pub replica: Option<TcpStream>,
}

/// How a connection of another node's log goes on.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlannedContent {
    pub adoption: Adoption,
    /// The logged input for the application.
    #[serde(with = "serde_bytes")]
    pub input: Vec<u8>,
}

/// The thread's last report.
#[derive(Default)]
pub(super) struct RelayReport {
    pub status: keeper::KeeperStatus,
    /// Number of connections that the thread had been given when it asked for `status`. `status` also covers the
    /// connections of earlier agents.
    pub given: u64,
    /// Number of connections that the thread was given and the keepers have taken or refused.
    pub settled: u64,
}

/// A service's configuration, for the thread.
pub struct RelayService {
    pub name: String,
    pub application: SocketAddr,
    pub volatile: Volatile,
    pub closes: bool,
    /// How much input the keeper may keep. `None`: none.
    pub keep: Option<KeepInput>,
}

impl RelayReport {
    /// The connections of a service that the keepers relay, by number. It is a map, because searching a list of thousands once for each
    /// connection would delay the agent.
    pub fn relayed(&self, service: &str) -> HashMap<u64, &keeper::KeeperConnectionStatus> {
        let connections = self.status.connections.iter();
        connections
            .filter(|connection| connection.service == service)
            .map(|connection| (connection.id, connection))
            .collect()
    }
}

pub(super) struct RelayThread {
    keepers: Keepers,
    answers: RelayAnswers,
    services: Arc<[RelayService]>,
    told: Arc<Mutex<RelayReport>>,
    /// Number of connections that were handed on so far, by this thread and by the threads before it.
    passed: Arc<AtomicU64>,
    /// When the keepers were asked last.
    asked: Instant,
    /// Whether the keepers relay something, as far as is known.
    relays: bool,
}

impl RelayThread {
    pub fn new(
        keepers: Keepers,
        answers: RelayAnswers,
        services: Arc<[RelayService]>,
        told: Arc<Mutex<RelayReport>>,
        passed: Arc<AtomicU64>,
    ) -> Self {
        Self {
            keepers,
            answers,
            services,
            told,
            passed,
            asked: linux::clock::now(),
            relays: false,
        }
    }

    /// Hands connections over until the channel closes.
    pub fn run(mut self, orders: &Receiver<RelayOrder>) -> Keepers {
        self.ask();
        self.tell_unheard();
        loop {
            let every = if self.relays { REFRESH } else { LOOK };
            let wait = every.saturating_sub(linux::clock::now().since(self.asked));
            match orders.recv_timeout(wait) {
                Ok(order) => self.carry_out(order, orders),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.keepers,
            }
            // A status covers all connections, so it is not requested for each new one.
            if linux::clock::now().since(self.asked) >= every {
                self.ask();
            }
        }
    }

    /// Carries out the orders that have come. Questions for kept input wait until the keepers have the connections.
    fn carry_out(&mut self, first: RelayOrder, more: &Receiver<RelayOrder>) {
        let mut asked = Vec::new();
        let before = self.passed();
        for order in std::iter::once(first).chain(more.try_iter()) {
            match order {
                RelayOrder::Adopt(handover) => {
                    self.adopt(*handover);
                    self.passed.fetch_add(1, Ordering::Relaxed);
                }
                RelayOrder::Prefix(service, ask) => asked.push((service, ask)),
            }
        }
        if self.passed() > before {
            self.settle();
        }
        for (service, ask) in asked {
            self.tell_prefix(service, &ask);
        }
    }

    fn tell_prefix(&mut self, service: ServiceIndex, ask: &PrefixAsk) {
        let name = &self.services[usize::from(service)].name;
        let answer = self.keepers.prefix(name, ask);
        let answer =
            answer.unwrap_or_else(|| PrefixAnswer::refused(ask, "the other node has not kept its input"));
        for answer in answer.split() {
            let _ = self.answers.prefixes.send((service, answer)); // fails only if the agent ends
        }
        if let Some(wake) = &self.answers.wake {
            wake();
        }
    }

    fn settle(&mut self) {
        if let Err(error) = self.keepers.settle() {
            tracing::error!(error = format!("{error:#}"), "no keeper answers or starts");
        }
        self.told().settled = self.passed();
        self.relays = true;
    }

    /// Asks the keepers for their status.
    fn ask(&mut self) {
        self.asked = linux::clock::now();
        match self.keepers.status() {
            Ok(status) => {
                self.relays = !status.connections.is_empty();
                let mut told = self.told();
                told.status = status;
                told.given = self.passed();
            }
            Err(error) => {
                self.relays = false;
                tracing::error!(
                    error = format!("{error:#}"),
                    "no keeper answers or starts: the next takeover could continue no connection"
                );
            }
        }
    }

    /// Sends the agent the SYN-ACKs of an earlier agent's connections whose clients were not heard yet. The agent must
    /// go on repeating these SYN-ACKs.
    fn tell_unheard(&self) {
        for connection in &self.told().status.connections {
            let mut services = (0..).zip(&*self.services);
            let service = services.find(|(_, service)| service.name == connection.service);
            if let (Some((service, _)), Some(syn_ack)) = (service, &connection.syn_ack) {
                let _ = self.answers.unheard.send((service, syn_ack.clone())); // fails only if the agent ends
            }
        }
    }

    fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed) // only this thread changes it
    }

    fn told(&self) -> MutexGuard<'_, RelayReport> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adopt(&mut self, handover: Handover) {
        let Handover {
            id,
            service,
            client,
            socket,
            content,
        } = handover;
        let service = &self.services[usize::from(service)];
        let adopted = match content {
            HandoverContent::Logged(logged) => {
                let LoggedContent {
                    connection,
                    syn_ack,
                    endpoint,
                    replica,
                } = *logged;
                let restart = connection.restart_on(&endpoint);
                let Some((mut adoption, input)) = service.plan(id, (&connection, &restart), &endpoint) else {
                    return; // dropping the socket closes it, which sends a RST
                };
                adoption.syn_ack = syn_ack;
                let is_replica = matches!(adoption.plan, AdoptionPlan::Replica { .. });
                let replica = replica.as_ref().filter(|_| is_replica).map(AsFd::as_fd);
                self.keepers.adopt(&adoption, socket.as_fd(), replica, &input)
            }
            HandoverContent::Planned(planned) => {
                let PlannedContent { mut adoption, input } = *planned;
                adoption.id = id;
                adoption.service.clone_from(&service.name);
                adoption.application = service.application;
                let input = LoggedInput::from(&[&input[..]][..]);
                self.keepers.adopt(&adoption, socket.as_fd(), None, &input)
            }
        };
        if let Err(error) = adopted {
            tracing::error!(service = service.name, %client, error = format!("{error:#}"), "connection lost");
        }
    }
}

impl RelayService {
    /// How the application's side of a connection goes on with the socket that was made from `endpoint`, and the logged input for it. `None`
    /// if it cannot go on.
    pub fn plan<'a>(
        &self,
        id: u64,
        (connection, restart): (&'a Connection, &'a Result<Restart, String>),
        endpoint: &Endpoint,
    ) -> Option<(Adoption, LoggedInput<'a>)> {
        // Input that came after the endpoint was determined is in the socket's receive queue.
        let (log, frontier) = (connection.input(), endpoint.input_frontier);
        let (plan, input) = match restart {
            // A replica reads on even if its output is complete.
            Ok(Restart::Replica { input_from, resume }) => {
                let input = log.parts((*input_from).min(frontier)..frontier).collect();
                let resume = resume.clone();
                (AdoptionPlan::Replica { resume }, input)
            }
            // An application that starts anew reads on, too.
            Ok(Restart::Replay {
                input_from,
                output_from,
                resume,
                earlier,
                state,
            }) => {
                let input = log.parts((*input_from).min(frontier)..frontier).collect();
                let first = |log: &StreamLog, from: &Offset| from.to_seq(log.first());
                let plan = AdoptionPlan::Replay {
                    resume: resume.clone(),
                    earlier: *earlier,
                    state: state.clone(),
                    begins_at: (first(log, input_from), first(connection.output(), output_from)),
                };
                (plan, input)
            }
            _ if endpoint.output != OutputEnd::Open => (AdoptionPlan::Silent, LoggedInput::default()),
            Ok(Restart::Http { feed, resume }) => (
                AdoptionPlan::Http {
                    resume: resume.clone(),
                    volatile: self.volatile.clone(),
                    closes: self.closes,
                },
                feed.logged(log, frontier).into_iter().collect(),
            ),
            Err(reason) => {
                // Not expected: the restart was checked before the connection left the table.
                tracing::warn!(service = self.name, client = %endpoint.client, reason, "connection lost");
                return None;
            }
        };
        let adoption = Adoption {
            id,
            service: self.name.clone(),
            client: endpoint.client,
            vip: endpoint.vip,
            application: self.application,
            plan,
            input_ended: endpoint.input_ended,
            output: endpoint.output,
            sent_before: connection.sent_before(endpoint),
            keep: self.keep.clone(),
            syn_ack: None,
        };
        Some((adoption, input))
    }
}
