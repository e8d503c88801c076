//! The keeper's records of live connections and of connections that have ended.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use proto::Seq;
use proto::restart::http::{PendingRequest, RequestRefusal, Volatile};
use proto::restart::prefix::{PrefixAnswer, PrefixAsk};
use tokio::sync::{Notify, watch};

use super::KeeperOptions;
use super::door::Doors;
use super::flow::Scratch;
use super::message::{Adoption, AdoptionPlan};
use super::news::{ChangingPart, ReportHistory, ToldPart};
use super::prefix::{KeptPrefix, KeptPrefixes};
use super::status::{
    ConnectionEnding, ENDED_MAX, EndedStatus, KeeperConnectionStatus, KeeperServiceStatus, KeeperStatus,
    RelayState, StatusUpdate,
};
use super::turns::ClientTurn;

/// The state that all connections of a keeper share.
pub(super) struct Keeper {
    pub options: KeeperOptions,
    pub scratch: Scratch,
    pub doors: Doors,
    /// Notified when a connection or an agent is gone. The process may then be unused and can end.
    pub changed: Notify,
    pub stop: watch::Sender<bool>,
    pub agents: Cell<usize>,
    live: RefCell<BTreeMap<u64, Rc<KeptConnection>>>,
    /// The header fields that may differ between two executions of a request ([`Volatile`]), as listed for the connection adopted last.
    /// Connections of one service are adopted together, so they can share one list.
    volatile: RefCell<Volatile>,
    services: RefCell<BTreeMap<String, KeeperServiceStatus>>,
    prefixes: RefCell<KeptPrefixes>,
    ended: RefCell<VecDeque<EndedStatus>>,
    reports: ReportHistory,
}

/// The keeper's record of one connection.
pub(super) struct KeptConnection {
    pub adoption: Adoption,
    pub state: Cell<RelayState>,
    pub turn: Cell<ClientTurn>,
    pub to_application: Cell<u64>,
    pub to_client: Cell<u64>,
    /// The connection's input from its start, if it is kept.
    pub prefix: KeptPrefix,
    /// The keeper's end of the connection to the application, as the application sees it.
    pub from: Cell<Option<SocketAddr>>,
    /// What reports have told of the connection.
    told: Cell<ToldPart>,
}

impl Keeper {
    pub fn new(options: KeeperOptions) -> Self {
        Self {
            options,
            scratch: Scratch::new(),
            doors: Doors::default(),
            changed: Notify::new(),
            stop: watch::Sender::new(false),
            agents: Cell::new(0),
            live: RefCell::default(),
            volatile: RefCell::default(),
            services: RefCell::default(),
            prefixes: RefCell::default(),
            ended: RefCell::default(),
            reports: ReportHistory::default(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.live.borrow().is_empty()
    }

    /// Adds a connection. Returns `None` if a live connection has the same number.
    pub fn enter(&self, mut adoption: Adoption) -> Option<Rc<KeptConnection>> {
        let mut live = self.live.borrow_mut();
        if live.contains_key(&adoption.id) {
            return None;
        }
        let mut services = self.services.borrow_mut();
        let service = services.entry(adoption.service.clone()).or_default();
        service.adopted += 1;
        service.live += 1;
        if let AdoptionPlan::Http { volatile, .. } = &mut adoption.plan {
            let mut known = self.volatile.borrow_mut();
            if *known != *volatile {
                known.clone_from(volatile);
            }
            volatile.clone_from(&known);
        }
        let prefix = self.prefixes.borrow_mut().begin(&adoption);
        let kept = Rc::new(KeptConnection {
            adoption,
            state: Cell::new(RelayState::Idle),
            turn: Cell::default(),
            to_application: Cell::new(0),
            to_client: Cell::new(0),
            prefix,
            from: Cell::new(None),
            told: Cell::default(),
        });
        live.insert(kept.adoption.id, kept.clone());
        Some(kept)
    }

    /// Counts and logs a request that got a refusal instead of its reply, or whose reply was cut.
    pub fn refuse(&self, kept: &KeptConnection, request: &PendingRequest, why: RequestRefusal) {
        let Adoption { service, client, .. } = &kept.adoption;
        let mut services = self.services.borrow_mut();
        let sums = services.entry(service.clone()).or_default();
        let request = &*request.label;
        match why {
            RequestRefusal::NotRepeatable => {
                sums.refused += 1;
                tracing::warn!(service, %client, request, "answered 503: it may have been executed");
            }
            RequestRefusal::Unreachable => {
                sums.refused += 1;
                tracing::warn!(service, %client, request, "answered 503: the application cannot be connected to");
            }
            RequestRefusal::Quarantined => {
                sums.quarantined += 1;
                tracing::warn!(service, %client, request, "quarantined: the application failed on it again");
            }
        }
    }

    /// Moves a connection from the live ones to the ended ones.
    pub fn leave(&self, kept: &KeptConnection, ending: ConnectionEnding, reason: String) {
        self.scratch.turns.end(&kept.turn);
        let Adoption {
            id, service, client, ..
        } = &kept.adoption;
        if ending.is_reset() {
            tracing::warn!(id, service, %client, ?ending, reason, "relayed connection was reset");
        } else {
            tracing::debug!(id, service, %client, ?ending, reason, "relayed connection ended");
        }
        let (to_application, to_client) = (kept.to_application.get(), kept.to_client.get());
        if self.live.borrow_mut().remove(id).is_some()
            && let Some(sums) = self.services.borrow_mut().get_mut(service)
        {
            sums.live -= 1;
            sums.to_application += to_application;
            sums.to_client += to_client;
            *sums.ended.entry(ending).or_default() += 1;
        }
        self.reports.on_end(*id);
        let mut ended = self.ended.borrow_mut();
        if ended.len() == ENDED_MAX {
            ended.pop_front();
        }
        ended.push_back(EndedStatus {
            id: *id,
            service: service.clone(),
            client: *client,
            ending,
            reason,
            to_application,
            to_client,
        });
        self.changed.notify_one();
    }

    /// The state that the application imports for the connection that comes from `peer`. With policy `snapshot`, the keeper keeps it as
    /// long as the connection lasts, because the application may ask again after its agent was restarted.
    pub fn state_for(&self, peer: SocketAddr, application: SocketAddr) -> Option<Arc<[u8]>> {
        match &self.relayed(peer, application)?.adoption.plan {
            AdoptionPlan::Replay { state, .. } => state.clone(),
            AdoptionPlan::Http { .. } | AdoptionPlan::Replica { .. } | AdoptionPlan::Silent => None,
        }
    }

    /// The sequence numbers in the client's streams at which the application began that has the connection from `peer`.
    pub fn begin_of(&self, peer: SocketAddr, application: SocketAddr) -> Option<(Seq, Seq)> {
        match &self.relayed(peer, application)?.adoption.plan {
            AdoptionPlan::Replay { begins_at, .. } => Some(*begins_at),
            AdoptionPlan::Http { .. } | AdoptionPlan::Replica { .. } | AdoptionPlan::Silent => None,
        }
    }

    /// Kept input of a connection of `service`. The client may have an older connection that has not ended here yet.
    pub fn prefix_of(&self, service: &str, ask: &PrefixAsk) -> Option<PrefixAnswer> {
        let live = self.live.borrow();
        let is_meant = |kept: &&Rc<KeptConnection>| {
            kept.adoption.client == ask.client && kept.adoption.service == service
        };
        let kept = live.values().rfind(is_meant)?;
        kept.prefix.answer(ask)
    }

    /// The connection from `peer` to `application`. Connections of two services may come from the same address.
    fn relayed(&self, peer: SocketAddr, application: SocketAddr) -> Option<Rc<KeptConnection>> {
        let is_meant = |kept: &&Rc<KeptConnection>| {
            kept.from.get() == Some(peer) && kept.adoption.application == application
        };
        self.live.borrow().values().find(is_meant).cloned()
    }

    /// The report for an asker that knows the report with the number `known`. 0: it knows none.
    pub fn report(&self, known: u64) -> StatusUpdate {
        let known = if self.reports.tells_all_since(known) {
            known
        } else {
            0
        };
        let number = self.reports.begin();
        let changed = |kept: &&Rc<KeptConnection>| {
            let mut told = kept.told.get();
            told.renew(number, kept.changing_part());
            kept.told.set(told);
            told.is_news(known)
        };
        let live = self.live.borrow();
        let connections = live.values().filter(changed);
        let mut services = self.services.borrow().clone();
        self.prefixes.borrow().count(&mut services);
        StatusUpdate {
            number,
            is_whole: known == 0,
            gone: if known == 0 {
                Vec::new()
            } else {
                self.reports.ends_since(known)
            },
            changed: KeeperStatus {
                services,
                connections: connections.map(|kept| kept.status()).collect(),
                ended: self.ended.borrow().iter().cloned().collect(),
            },
        }
    }
}

impl KeptConnection {
    fn changing_part(&self) -> ChangingPart {
        ChangingPart {
            state: self.state.get(),
            to_application: self.to_application.get(),
            to_client: self.to_client.get(),
        }
    }

    fn status(&self) -> KeeperConnectionStatus {
        let ChangingPart {
            state,
            to_application,
            to_client,
        } = self.changing_part();
        KeeperConnectionStatus {
            id: self.adoption.id,
            service: self.adoption.service.clone(),
            client: self.adoption.client,
            state,
            to_application,
            to_client,
            syn_ack: (to_application == 0)
                .then(|| self.adoption.syn_ack.clone())
                .flatten(),
        }
    }
}
