//! Migration: at the operator's order, live connections move from the primary to its backup, which goes on with them as with the connections
//! of a dead worker (docs/migration.md).
//!
//! The primary *offers* connections in its heartbeats, and repeats each offer until the backup has answered it. The backup repeats its
//! answers in the same way, so lost heartbeats do no harm.
//!
//! ```text
//!  primary   Offered ──── answer Prepared: the socket is frozen ─▶ Released ── answer Taken: the socket is destroyed ─▶ moved
//!               └─ answer Refused, or the time is over ─▶ stays ◀──┴─ answer Refused: the socket goes on
//!
//!  backup    Waiting ── reserved ─▶ Preparing ── socket restored ─▶ Prepared ── offer is Released ─▶ Taking ── live ─▶ Taken
//!               ▲                       └── cannot restart now ──┐      │
//!               └────────── given back to the primary ◀──────────┴──────┘ the offer is gone
//! ```
//!
//! At each moment at most one node speaks: the primary until it releases the connection, the backup afterwards. Only the primary decides when
//! that is. The backup prepares the connection before, so that whatever can fail fails while the primary can still go on.
//!
//! A released connection's socket may stay with the primary, *frozen*: it says nothing. Its kernel notices the first segment of the backup's
//! socket. If the backup fails before that, the primary's socket goes on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Instant;
use crate::serving::AnnexId;

/// Maximum number of offers in a heartbeat, which has the offers of one service.
pub const OFFERS_MAX: usize = 48;
/// Maximum number of offers in a heartbeat of a node with more than [`SERVICES_FEW`] services. It is smaller, because the heartbeat also has
/// an entry for each service.
pub const OFFERS_MAX_OF_MANY: usize = 12;
/// Largest number of services with which [`OFFERS_MAX`] offers fit into a heartbeat.
pub const SERVICES_FEW: usize = 32;

/// Maximum number of offers in a heartbeat of a node that has this number of services.
pub const fn offers_max(services: usize) -> usize {
    if services <= SERVICES_FEW {
        OFFERS_MAX
    } else {
        OFFERS_MAX_OF_MANY
    }
}
/// Maximum number of bytes of a reason in an answer.
pub const REASON_MAX: usize = 80;
/// Number of refusals that are kept for the operator.
const REFUSALS_MAX: usize = 16;

/// What a heartbeat says about a service's migrations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationBeat {
    /// The primary's offers, all of them. An offer that is missing has ended.
    pub offers: Vec<MigrationOffer>,
    /// The backup's answers.
    pub answers: Vec<OfferAnswer>,
    /// The sender leads the segments of connections that it takes through the primary before their sockets speak. A sender whose version does not
    /// know this field does so a little later, so the primary may miss that it has spoken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leads_first: bool,
}

impl MigrationBeat {
    /// What a heartbeat says that does not mention migrations.
    pub(crate) fn unmentioned() -> Option<Self> {
        Some(Self::default())
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.offers.is_empty() && self.answers.is_empty()
    }
}

/// A connection that the primary wants to move to its backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MigrationOffer {
    /// The offer's number. A later offer has a higher one, also if it comes from a later agent of the node.
    pub number: u64,
    /// The connection's client.
    pub client: SocketAddr,
    /// The primary's socket says nothing any more: the connection is the backup's.
    pub is_released: bool,
    /// The primary still has the socket of the released connection. It goes on if the backup refuses the connection. A sender whose version does
    /// not know this field has destroyed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_frozen: bool,
    /// The primary will log the connection's segments, so the backup must lead them through the primary (`proto::reversal`). A sender whose
    /// version does not know this field does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reverses: bool,
    /// The connection is to move to this annex of the backup (`proto::annex`). `None`: to the backup itself. A receiver whose version does
    /// not know this field takes the connection itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annex: Option<AnnexId>,
    /// The process that had the connection has died, so the connection cannot stay. A receiver whose version does not know this field may
    /// wait in vain for a moment at which the connection can move without harm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_bereft: bool,
}

/// What the backup says about an offer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OfferAnswer {
    /// The offer's number.
    pub number: u64,
    /// The answer.
    pub state: OfferState,
}

/// How far the backup is with an offer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OfferState {
    /// The connection cannot move now, for this reason. The backup tries again.
    Waiting(String),
    /// The connection is restored on the backup, and says nothing yet. The primary may release it.
    Prepared,
    /// The backup has had the released connection.
    Taken,
    /// The backup cannot take the connection, for this reason.
    Refused(String),
}

/// What has become of the connections that this node was ordered to move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MigrationReport {
    /// Connections that are still here and are to move.
    pub pending: usize,
    /// Number of connections that have moved.
    pub moved: u64,
    /// Number of connections that have stayed here, because they could not move or the time was over.
    pub stayed: u64,
    /// The latest connections that have stayed, and why.
    pub refusals: VecDeque<(SocketAddr, String)>,
}

impl MigrationReport {
    /// A connection has moved, or stays where it is for a reason.
    pub(crate) fn count(&mut self, client: SocketAddr, reason: Option<String>) {
        let Some(reason) = reason else {
            self.moved += 1;
            return;
        };
        self.stayed += 1;
        self.refusals.truncate(REFUSALS_MAX - 1);
        self.refusals.push_front((client, reason));
    }

    /// Adds what has become of other connections.
    pub(crate) fn add(&mut self, other: Self) {
        self.pending += other.pending;
        self.moved += other.moved;
        self.stayed += other.stayed;
        self.refusals.extend(other.refusals);
        self.refusals.truncate(REFUSALS_MAX);
    }
}

/// What the owner must do after it has heard the other node's answers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HeardAnswers {
    /// Connections that are to be released now.
    pub released: Vec<SocketAddr>,
    /// Released connections that the other node has, or has had.
    pub moved: Vec<SocketAddr>,
    /// Released connections that the other node does not have.
    pub refused: Vec<SocketAddr>,
    /// Whether the offers have changed.
    pub has_changed: bool,
}

/// The primary's side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutgoingMigrations {
    /// Maximum number of offers in a heartbeat.
    offers_max: usize,
    /// Number of the next offer.
    next: u64,
    offers: BTreeMap<u64, OutgoingOffer>,
    /// Clients whose connections are offered, or are to be offered.
    clients: BTreeSet<SocketAddr>,
    /// Connections that are to be offered, in order.
    waiting: VecDeque<OutgoingOffer>,
    report: MigrationReport,
    /// Connections whose process has died, and that have not moved.
    lost: Vec<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OutgoingOffer {
    client: SocketAddr,
    /// When the primary gives the offer up.
    until: Instant,
    is_released: bool,
    /// The annex to which the connection is to move. `None`: to the backup.
    annex: Option<AnnexId>,
    /// Why the connection could not move when it was last offered.
    obstacle: Option<String>,
    /// The process that had the connection has died.
    is_bereft: bool,
}

impl OutgoingMigrations {
    /// The migrations of an agent that starts at `now`. Its offers get higher numbers than those of the node's earlier agents. Otherwise an
    /// answer to an earlier agent's offer, sent before the backup noticed the new agent, would count for another connection.
    /// `offers_max`: maximum number of offers in a heartbeat ([`offers_max`]).
    pub fn new(now: Instant, offers_max: usize) -> Self {
        Self {
            offers_max,
            next: now.as_nanos(),
            offers: BTreeMap::new(),
            clients: BTreeSet::new(),
            waiting: VecDeque::new(),
            report: MigrationReport::default(),
            lost: Vec::new(),
        }
    }

    /// The connections of `clients` are to move before `until`: to the backup, or to one of its annexes.
    pub fn order(
        &mut self,
        clients: impl IntoIterator<Item = SocketAddr>,
        annex: Option<AnnexId>,
        until: Instant,
    ) {
        for client in clients {
            if self.clients.insert(client) {
                self.waiting.push_back(OutgoingOffer {
                    client,
                    until,
                    is_released: false,
                    annex,
                    obstacle: None,
                    is_bereft: false,
                });
            }
        }
        self.fill();
    }

    /// The process that had the connections of `clients` has died, so they move before `until`, or are lost. They come before all that wait.
    pub fn order_bereft(&mut self, clients: &[SocketAddr], until: Instant) {
        for &client in clients.iter().rev() {
            let is_of = |offer: &&mut OutgoingOffer| offer.client == client;
            if let Some(offer) = self.offers.values_mut().find(is_of) {
                offer.is_bereft = true;
                offer.until = offer.until.max(until);
                continue;
            }
            self.waiting.retain(|waiting| waiting.client != client);
            self.clients.insert(client);
            self.waiting.push_front(OutgoingOffer {
                client,
                until,
                is_released: false,
                annex: None,
                obstacle: None,
                is_bereft: true,
            });
        }
        self.fill();
    }

    /// An earlier agent has released the connections of `clients`. Their sockets are frozen.
    pub fn resume(&mut self, clients: impl IntoIterator<Item = SocketAddr>) {
        for client in clients {
            self.clients.insert(client);
            let offer = OutgoingOffer {
                client,
                until: Instant::ZERO,
                is_released: true,
                annex: None,
                obstacle: None,
                is_bereft: false,
            };
            self.offers.insert(self.next, offer);
            self.next += 1;
        }
    }

    /// The connections whose process has died and that have not moved. Each is returned once.
    pub fn take_lost(&mut self) -> Vec<SocketAddr> {
        std::mem::take(&mut self.lost)
    }

    /// Offers as many of the waiting connections as a heartbeat may name.
    fn fill(&mut self) {
        while self.offers.len() < self.offers_max
            && let Some(offer) = self.waiting.pop_front()
        {
            self.offers.insert(self.next, offer);
            self.next += 1;
        }
    }

    /// The offers for the next heartbeat.
    pub fn offers(&self) -> Vec<MigrationOffer> {
        let offer = |(&number, offer): (&u64, &OutgoingOffer)| MigrationOffer {
            number,
            client: offer.client,
            is_released: offer.is_released,
            is_frozen: false,
            reverses: false,
            annex: offer.annex,
            is_bereft: offer.is_bereft,
        };
        self.offers.iter().map(offer).collect()
    }

    /// The annex to which the offered connection of `client` is to move, if it is not to move to the backup.
    pub fn annex_of(&self, client: &SocketAddr) -> Option<AnnexId> {
        let offer = self.offers.values().find(|offer| offer.client == *client)?;
        offer.annex
    }

    /// Whether the process that had the offered connection of `client` has died.
    pub fn is_bereft(&self, client: &SocketAddr) -> bool {
        let mut offers = self.offers.values();
        offers.any(|offer| offer.client == *client && offer.is_bereft)
    }

    /// The backup has answered.
    pub fn on_answers(&mut self, answers: &[OfferAnswer]) -> HeardAnswers {
        let mut heard = HeardAnswers::default();
        for OfferAnswer { number, state } in answers {
            let Some(offer) = self.offers.get_mut(number) else {
                continue;
            };
            let (client, is_released) = (offer.client, offer.is_released);
            match state {
                OfferState::Waiting(_) if is_released => {}
                OfferState::Waiting(why) => {
                    offer.obstacle = Some(why.clone());
                    heard.has_changed |= self.let_others_pass(*number);
                }
                OfferState::Prepared if is_released => {}
                OfferState::Prepared => {
                    offer.is_released = true;
                    heard.released.push(client);
                    heard.has_changed = true;
                }
                OfferState::Taken => {
                    heard.moved.extend(is_released.then_some(client));
                    heard.has_changed = true;
                    self.end(*number, None);
                }
                OfferState::Refused(why) => {
                    heard.refused.extend(is_released.then_some(client));
                    heard.has_changed = true;
                    self.end(*number, Some(why.clone()));
                }
            }
        }
        self.fill();
        heard
    }

    /// An offered connection cannot move now. If others wait for their turn, it waits behind them. Returns whether it does.
    fn let_others_pass(&mut self, number: u64) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        self.waiting.extend(self.offers.remove(&number));
        self.fill();
        true
    }

    /// An offer has come to its end: the connection has moved, or stays here for a reason.
    fn end(&mut self, number: u64, reason: Option<String>) {
        if let Some(offer) = self.offers.remove(&number) {
            self.count(&offer, reason);
        }
    }

    fn count(&mut self, offer: &OutgoingOffer, reason: Option<String>) {
        self.clients.remove(&offer.client);
        self.lost
            .extend((offer.is_bereft && reason.is_some()).then_some(offer.client));
        self.report.count(offer.client, reason);
    }

    /// Gives up the connections whose time is over, except those that the backup has. Returns whether an offer has ended.
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return false;
        }
        let is_over = |offer: &OutgoingOffer| !offer.is_released && now >= offer.until;
        let offers = self.offers.iter().filter(|(_, offer)| is_over(offer));
        let late: Vec<u64> = offers.map(|(&number, _)| number).collect();
        let offered = late.iter().filter_map(|number| self.offers.remove(number));
        let mut ended: Vec<_> = offered
            .map(|offer| (offer, "the backup has not answered"))
            .collect();
        let has_changed = !ended.is_empty();
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (over, waiting): (Vec<_>, Vec<_>) = waiting.partition(is_over);
        self.waiting = waiting.into();
        ended.extend(
            over.into_iter()
                .map(|offer| (offer, "its turn had not come when the time was over")),
        );
        for (offer, why) in ended {
            let why = offer.obstacle.clone().unwrap_or_else(|| why.to_owned());
            self.count(&offer, Some(why));
        }
        self.fill();
        has_changed
    }

    /// When the time of an offered connection, or of the next one to be offered, is over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let offers = self.offers.values().filter(|offer| !offer.is_released);
        let next = offers.chain(self.waiting.front());
        next.map(|offer| offer.until).min()
    }

    /// The nodes may change roles, so nothing is offered any more. What was released goes on being said: the backup may have missed it.
    pub fn withdraw(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let (released, offered): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.offers)
            .into_iter()
            .partition(|(_, offer)| offer.is_released);
        self.offers = released;
        for offer in offered.into_values().chain(waiting) {
            self.count(&offer, Some("the nodes' roles have changed".to_owned()));
        }
    }

    /// The nodes' roles have changed. What was released is the other node's.
    pub fn give_up(&mut self) {
        self.withdraw();
        for offer in std::mem::take(&mut self.offers).into_values() {
            self.count(&offer, None);
        }
    }

    /// What becomes of the released connections of `clients` is known without an answer of the other node: they go on here (`stay`), or have moved.
    pub fn settle(&mut self, clients: &[SocketAddr], stay: bool) {
        let is_settled = |offer: &OutgoingOffer| offer.is_released && clients.contains(&offer.client);
        let settled = self.offers.iter().filter(|(_, offer)| is_settled(offer));
        let settled: Vec<u64> = settled.map(|(&number, _)| number).collect();
        for number in settled {
            self.end(number, stay.then(|| "the other node has failed".to_owned()));
        }
    }

    /// What has become of the connections that were to move.
    pub fn report(&self) -> MigrationReport {
        MigrationReport {
            pending: self.clients.len(),
            ..self.report.clone()
        }
    }
}

/// How far the backup is with a connection. The picture is in the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum IncomingPhase {
    /// The owner has released it to an earlier agent of this node. The kernel says whether this node has it.
    Unknown,
    Waiting,
    Preparing,
    Prepared,
    Taking,
    Taken,
    Refused,
}

/// Events that change how far the backup is with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IncomingEvent {
    /// The backup begins to prepare the connection.
    Chosen,
    /// Its socket is restored.
    Restored,
    /// It cannot be restored now.
    Impeded,
    /// It can never be restored.
    Failed,
    /// The primary has destroyed its socket.
    Released,
    /// It lives on the backup, or has ended there.
    Decided,
    /// The kernel does not know it.
    Missing,
}

impl IncomingPhase {
    const fn after(self, event: IncomingEvent) -> Self {
        use IncomingEvent::{Chosen, Decided, Failed, Impeded, Missing, Released, Restored};
        match (self, event) {
            (Self::Unknown, Decided) => Self::Taken,
            (Self::Unknown, Missing) => Self::Refused,
            (Self::Unknown, Chosen | Restored | Impeded | Failed | Released) => Self::Unknown,
            (Self::Waiting, Chosen) => Self::Preparing,
            (Self::Waiting | Self::Preparing | Self::Prepared, Impeded) => Self::Waiting,
            (Self::Waiting | Self::Preparing | Self::Prepared, Failed) => Self::Refused,
            (Self::Waiting, Released) => Self::Refused, // a new agent of the owner has found a socket that an earlier one has frozen
            (Self::Waiting, Restored | Decided | Missing) => Self::Waiting,
            // If it has ended (`Decided`), the client has ended it. The primary has not heard of that, and must destroy its socket.
            (Self::Preparing, Restored | Decided) => Self::Prepared,
            (Self::Preparing, Chosen | Released | Missing) => Self::Preparing,
            (Self::Prepared, Released) => Self::Taking,
            (Self::Prepared, Chosen | Restored | Decided | Missing) => Self::Prepared,
            (Self::Taking, Decided) => Self::Taken,
            // Nobody else has the connection any more, so it cannot be given back.
            (Self::Taking, Chosen | Restored | Impeded | Failed | Released | Missing) => Self::Taking,
            (Self::Taken, Chosen | Restored | Impeded | Failed | Released | Decided | Missing) => Self::Taken,
            (Self::Refused, Chosen | Restored | Impeded | Failed | Released | Decided | Missing) => {
                Self::Refused
            }
        }
    }

    /// Whether the primary cannot use the connection, but still has it.
    const fn is_reserved(self) -> bool {
        match self {
            Self::Preparing | Self::Prepared => true,
            Self::Unknown | Self::Waiting | Self::Taking | Self::Taken | Self::Refused => false,
        }
    }

    /// Whether nothing changes the connection's phase any more.
    const fn is_last(self) -> bool {
        match self {
            Self::Taken | Self::Refused => true,
            Self::Unknown | Self::Waiting | Self::Preparing | Self::Prepared | Self::Taking => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct IncomingOffer {
    client: SocketAddr,
    phase: IncomingPhase,
    annex: Option<AnnexId>,
    /// Why the connection waits, or is refused.
    reason: String,
    is_bereft: bool,
    /// Why this node will end the connection once it has it, if it cannot restart it.
    doomed: Option<String>,
}

/// A connection that is offered, and that this node may prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedConnection {
    /// Its client.
    pub client: SocketAddr,
    /// The annex to which it is to move. `None`: to this node.
    pub annex: Option<AnnexId>,
    /// The process that had it has died.
    pub is_bereft: bool,
}

/// Why an offered connection is not prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferObstacle {
    /// It cannot move now.
    Now(String),
    /// It can never move.
    Ever(String),
}

impl From<String> for OfferObstacle {
    fn from(why: String) -> Self {
        Self::Now(why)
    }
}

/// The backup's side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IncomingMigrations {
    offers: BTreeMap<u64, IncomingOffer>,
    /// The owner has a new agent since the last heartbeat with offers.
    is_unconfirmed: bool,
}

/// The beginning of a reason, as much of it as an answer has room for.
fn shortened(why: &str) -> String {
    let mut ends = (0..=REASON_MAX.min(why.len())).rev();
    let end = ends.find(|&end| why.is_char_boundary(end)).unwrap_or(0);
    why[..end].to_owned()
}

/// What the backup must do after it has heard the primary's offers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HeardOffers {
    /// Connections that the primary no longer offers. It keeps them.
    pub withdrawn: Vec<SocketAddr>,
    /// Connections that the primary has released.
    pub released: Vec<SocketAddr>,
    /// Those of them that are to be reversed.
    pub reversing: Vec<SocketAddr>,
    /// Connections that the primary has released and this agent does not know. The kernel is to be asked whether this node has them.
    pub unknown: Vec<SocketAddr>,
}

impl IncomingMigrations {
    /// The primary's heartbeat has these offers.
    pub fn hear(&mut self, offers: &[MigrationOffer]) -> HeardOffers {
        let mut heard = HeardOffers::default();
        self.is_unconfirmed = false;
        offers.iter().for_each(|offer| self.rename(offer));
        let is_offered = |number: &u64| offers.iter().any(|offer| offer.number == *number);
        self.offers.retain(|number, known| {
            let stays = is_offered(number) || known.phase == IncomingPhase::Taking;
            if !stays && known.phase.is_reserved() {
                heard.withdrawn.push(known.client);
            }
            stays
        });
        for &MigrationOffer {
            number,
            client,
            is_released,
            is_frozen,
            reverses,
            annex,
            is_bereft,
        } in offers.iter().take(OFFERS_MAX)
        {
            // An agent that hears of a released connection first has not prepared it, an earlier agent has.
            let phase = match (is_released, is_frozen) {
                (true, true) => IncomingPhase::Unknown,
                (true, false) => IncomingPhase::Taken, // nobody else has it
                (false, _) => IncomingPhase::Waiting,
            };
            let is_new = !self.offers.contains_key(&number);
            heard
                .unknown
                .extend((is_new && phase == IncomingPhase::Unknown).then_some(client));
            let known = self.offers.entry(number).or_insert(IncomingOffer {
                client,
                phase,
                annex,
                reason: String::new(),
                is_bereft,
                doomed: None,
            });
            known.is_bereft = is_bereft;
            let was = known.phase;
            if is_released {
                known.phase = was.after(IncomingEvent::Released);
            }
            if known.phase == IncomingPhase::Refused && was != known.phase {
                known.reason = "it is not prepared".to_owned();
            } else if known.phase != was {
                heard.released.push(client);
                heard.reversing.extend(reverses.then_some(client));
            }
        }
        heard
    }

    /// A new agent of the owner offers a connection under another number. The earlier agent had released it.
    fn rename(&mut self, offer: &MigrationOffer) {
        if !offer.is_released || self.offers.contains_key(&offer.number) {
            return;
        }
        let is_same =
            |known: &IncomingOffer| known.client == offer.client && known.phase != IncomingPhase::Refused;
        let mut known = self.offers.iter();
        if let Some((&number, _)) = known.find(|(_, known)| is_same(known)) {
            let known = self.offers.remove(&number);
            self.offers.extend(known.map(|known| (offer.number, known)));
        }
    }

    /// Whether this node has a connection that the owner has released to an earlier agent, as the kernel says.
    pub fn on_looked_for(&mut self, client: SocketAddr, is_here: bool) {
        let event = if is_here {
            IncomingEvent::Decided
        } else {
            IncomingEvent::Missing
        };
        let reason = (!is_here).then(|| "its agent was started again".to_owned());
        let of_client =
            |offer: &&mut IncomingOffer| offer.client == client && offer.phase == IncomingPhase::Unknown;
        if let Some(offer) = self.offers.values_mut().find(of_client) {
            offer.phase = offer.phase.after(event);
            offer.reason = reason.unwrap_or_default();
        }
    }

    /// The annex to which the offered connection of `client` is to move, if it is not to move to this node.
    pub fn annex_of(&self, client: &SocketAddr) -> Option<AnnexId> {
        let is_open = |offer: &&IncomingOffer| offer.client == *client && !offer.phase.is_last();
        self.offers.values().find(is_open)?.annex
    }

    /// Whether the process that had the offered connection of `client` has died.
    pub fn is_bereft(&self, client: &SocketAddr) -> bool {
        let is_open = |offer: &&IncomingOffer| offer.client == *client && !offer.phase.is_last();
        self.offers
            .values()
            .find(is_open)
            .is_some_and(|offer| offer.is_bereft)
    }

    /// The connections to prepare: those that wait, and for which `check` finds no obstacle.
    pub fn choose(
        &mut self,
        mut check: impl FnMut(OfferedConnection) -> Result<(), OfferObstacle>,
    ) -> Vec<SocketAddr> {
        let mut chosen = Vec::new();
        for offer in self.offers.values_mut() {
            if offer.phase != IncomingPhase::Waiting {
                continue;
            }
            let event = match check(OfferedConnection {
                client: offer.client,
                annex: offer.annex,
                is_bereft: offer.is_bereft,
            }) {
                Ok(()) => {
                    chosen.push(offer.client);
                    IncomingEvent::Chosen
                }
                Err(OfferObstacle::Now(why)) => {
                    offer.reason = why;
                    IncomingEvent::Impeded
                }
                Err(OfferObstacle::Ever(why)) => {
                    offer.reason = why;
                    IncomingEvent::Failed
                }
            };
            offer.phase = offer.phase.after(event);
        }
        chosen
    }

    /// The connection's socket is being restored. If that fails, [`on_failed`](Self::on_failed) follows before the primary is told.
    pub fn on_restored(&mut self, client: SocketAddr) {
        self.change(client, IncomingEvent::Restored, None);
    }

    /// A connection whose process has died cannot be restarted here either. Its owner releases it, so that this node ends it.
    pub fn doom(&mut self, client: SocketAddr, why: String) {
        self.change(client, IncomingEvent::Restored, None);
        let of_client = |offer: &&mut IncomingOffer| offer.client == client && !offer.phase.is_last();
        if let Some(offer) = self.offers.values_mut().find(of_client) {
            offer.doomed = Some(why);
        }
    }

    /// Why the offered connection of `client` is to be ended, if it is.
    pub fn doomed(&self, client: &SocketAddr) -> Option<String> {
        let is_open = |offer: &&IncomingOffer| offer.client == *client && !offer.phase.is_last();
        self.offers.values().find(is_open)?.doomed.clone()
    }

    /// The connection is given back to the primary: it cannot be restored now (`is_final`: or ever), for this reason.
    pub fn on_failed(&mut self, client: SocketAddr, why: String, is_final: bool) {
        let event = if is_final {
            IncomingEvent::Failed
        } else {
            IncomingEvent::Impeded
        };
        self.change(client, event, Some(why));
    }

    /// The released connection lives here, or has ended here.
    pub fn on_decided(&mut self, client: SocketAddr) {
        self.change(client, IncomingEvent::Decided, None);
    }

    fn change(&mut self, client: SocketAddr, event: IncomingEvent, reason: Option<String>) {
        let of_client = |offer: &&mut IncomingOffer| offer.client == client && !offer.phase.is_last();
        if let Some(offer) = self.offers.values_mut().find(of_client) {
            offer.phase = offer.phase.after(event);
            offer.reason = reason.unwrap_or_default();
        }
    }

    /// The answers for the next heartbeat.
    pub fn answers(&self) -> Vec<OfferAnswer> {
        let answer = |(&number, offer): (&u64, &IncomingOffer)| {
            let state = match offer.phase {
                IncomingPhase::Waiting if offer.reason.is_empty() => return None,
                IncomingPhase::Waiting => OfferState::Waiting(shortened(&offer.reason)),
                IncomingPhase::Unknown | IncomingPhase::Preparing | IncomingPhase::Taking => return None,
                IncomingPhase::Prepared => OfferState::Prepared,
                IncomingPhase::Taken => OfferState::Taken,
                IncomingPhase::Refused => OfferState::Refused(shortened(&offer.reason)),
            };
            Some(OfferAnswer { number, state })
        };
        self.offers.iter().filter_map(answer).collect()
    }

    /// The owner has a new agent, which may not repeat the offers of the earlier one.
    pub fn doubt(&mut self) {
        self.is_unconfirmed = !self.offers.is_empty();
    }

    /// Whether these are the offers of an earlier agent of the owner, and the new one has not named its own.
    pub const fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed
    }

    /// Forgets all offers, because the nodes' roles have changed.
    pub fn clear(&mut self) {
        self.is_unconfirmed = false;
        self.offers.clear();
    }
}

#[cfg(test)]
mod tests;
