//! Does a service's path work? A node may live although its clients do not reach it, so the path is judged apart from
//! the node (DESIGN.md §3, *The service path fails, and no node does*). For example, a node with a pulled service cable
//! still sends heartbeats over its other links.
//!
//! ```text
//!   outside hosts ─── own ───▶ this node ◀── meet ──▶ peer ◀─── its own ─── outside hosts
//!
//!             proved            late: peer's heartbeats, answers        not proved again in time
//!   Unknown ─────────▶ Reached ────────────────────────────▶ Suspected ─────────────────────────▶ Lost
//!                         ▲                 proved again          │          proved again          │
//!                         └───────────────────────────────────────┴────────────────────────────────┘
//! ```
//!
//! *Own*: an outside host has answered a question that was asked through the service's interface. *Meet*: both nodes hear each other
//! through the service's interfaces, by heartbeats or by the service's packets. If heartbeats arrive over other links only, the nodes do
//! not meet. The backup decides, since it holds the gate: it takes over, or gives way to the primary ([`step`]). When a suspicion begins,
//! earlier answers prove nothing, so the node asks again.

pub(crate) mod damping;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::damping::Damping;
use crate::Instant;
use crate::detector::DetectorConfig;
use crate::role::Role;

/// Time between two questions to outside hosts while nothing is under suspicion. Routers that limit their answers allow five answers per
/// second.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Age of the last proof at which a path is suspected: an answer is missing, not only late.
const PROOF_MAX: Duration = Duration::from_millis(250);
/// Length of a suspicion after which the outside hosts count as lost. Longer than the pause of a router that limits its answers. New
/// trouble prolongs a suspicion to twice this length at most.
const SUSPICION_MAX: Duration = Duration::from_millis(250);
/// Time after which hosts that never answered this node, but answer the peer, are lost to this node.
const NEVER_ANSWERED: Duration = Duration::from_secs(1);

/// Whether a node reaches outside hosts through the service's interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reachability {
    /// No host has ever answered, or there is no host to ask.
    #[default]
    Unknown,
    /// A host has answered since the last suspicion.
    Reached,
    /// Hosts are being asked anew.
    Suspected,
    /// There is no carrier, or no host has answered since the suspicion began.
    Lost,
}

impl Reachability {
    /// All values, for tables.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Reached, Self::Suspected, Self::Lost];
}

impl std::fmt::Display for Reachability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Unknown => "unknown",
            Self::Reached => "reached",
            Self::Suspected => "suspected",
            Self::Lost => "lost",
        })
    }
}

/// A node's report on its side of a service's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PathWord {
    /// Whether the node reaches outside hosts.
    pub outside: Reachability,
    /// Whether the node hears its peer through the service's interface. `None`: no link lies there.
    pub hears: Option<bool>,
}

impl PathWord {
    fn is_troubled(self) -> bool {
        matches!(self.outside, Reachability::Suspected | Reachability::Lost) || self.hears == Some(false)
    }
}

/// Reaction of a backup to a broken path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// Do nothing: the path works, the primary's path is no better, or the evidence does not suffice yet.
    Stay,
    /// Go on with the connections here: the primary is cut off.
    TakeOver,
    /// Leave the VIP to the primary: this node is cut off.
    GiveWay,
}

/// The roles that a mute node may take on, judged by its path alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fitness {
    /// The node may serve.
    pub serves: bool,
    /// The node is to serve even if the other node is the configured primary, because clients do not reach the other node.
    pub begins: bool,
    /// The node may be the wire.
    pub returns: bool,
    /// The node tells its peer not to count on this node.
    pub is_out: bool,
}

impl Fitness {
    /// Everything works.
    pub const WHOLE: Self = Self {
        serves: true,
        begins: false,
        returns: true,
        is_out: false,
    };
}

/// The step of a node in `role`. `own` and `peer` say whether each node reaches outside hosts. `meet` says whether the two nodes reach each
/// other through the service's interfaces. Only a backup acts by itself: its gate decides which node's packets reach clients. Clients hear
/// a primary through the backup, so the primary's own way to the outside does not matter while the nodes meet.
pub const fn step(role: Role, meet: bool, own: Reachability, peer: Reachability) -> PathStep {
    use Reachability::{Lost, Reached, Suspected, Unknown};
    match role {
        Role::Joining
        | Role::Primary
        | Role::Claiming
        | Role::Returning
        | Role::TakingOver
        | Role::Sole
        | Role::Standby => PathStep::Stay,
        Role::Backup => match (meet, own, peer) {
            (true, Unknown | Reached | Suspected, _) | (true, Lost, Suspected | Lost) => PathStep::Stay,
            (true, Lost, Unknown | Reached) => PathStep::GiveWay,

            (false, Reached, _) => PathStep::TakeOver,
            (false, Unknown, Unknown | Lost) => PathStep::TakeOver,
            (false, Unknown, Reached) => PathStep::GiveWay,
            // The peer will soon know more, but this node never will.
            (false, Unknown, Suspected) => PathStep::Stay,
            (false, Suspected | Lost, Unknown | Reached) => PathStep::GiveWay,
            (false, Suspected | Lost, Suspected | Lost) => PathStep::Stay,
        },
    }
}

/// The [`Fitness`] of a node that does not speak, by the same evidence as in [`step`].
pub const fn fitness(meet: bool, own: Reachability, peer: Reachability) -> Fitness {
    let (own_lost, peer_lost) = (
        matches!(own, Reachability::Lost),
        matches!(peer, Reachability::Lost),
    );
    let serves = !own_lost || peer_lost;
    let returns = meet && serves;
    Fitness {
        serves,
        begins: peer_lost && !own_lost,
        returns,
        is_out: !returns,
    }
}

/// A service's path, as this node sees it.
#[derive(Debug)]
pub(crate) struct ServicePath {
    detector: DetectorConfig,
    has_carrier: bool,
    /// A link to the peer lies on the service's interface.
    has_link: bool,
    /// When the last sign of the peer, a heartbeat or a packet of the service, came in by the service's interface.
    seen: Option<Instant>,
    /// Number of heartbeats that have come since `seen`, over any link.
    missed: u32,
    /// When the peer became late, on every link or on the service's interface; `None` if it is not late.
    late: Option<Instant>,
    checked: Instant,
    /// When an outside host last gave an answer that counted: its question was asked at `distrusts` or later.
    answered: Option<Instant>,
    first_asked: Option<Instant>,
    ask_at: Instant,
    /// When the last packet of any client came in. `None` once hosts have been asked because the clients fell silent.
    client_seen: Option<Instant>,
    /// When hosts were last asked because the clients had fallen silent.
    looked: Option<Instant>,
    suspected: Option<Instant>,
    /// When the last suspicion began, whether it has ended or not. Answers to questions that were asked earlier prove nothing.
    distrusts: Option<Instant>,
    /// Time of the latest question that a host has answered.
    proved: Option<Instant>,
    /// The nodes reach each other through the service's interfaces, and no host answers either node: the hosts are gone, not the paths.
    are_hosts_gone: bool,
    peer: Option<PathWord>,
    /// The last report that was made for the peer.
    told: PathWord,
    damping: Damping,
}

impl ServicePath {
    /// A path of which nothing is known. `has_peer`: an earlier agent was in a pair, so this node assumes at first that it hears the peer.
    pub(crate) fn new(detector: DetectorConfig, has_peer: bool, now: Instant) -> Self {
        Self {
            detector,
            has_carrier: true,
            has_link: false,
            seen: has_peer.then_some(now),
            missed: 0,
            late: None,
            checked: now,
            answered: None,
            first_asked: None,
            ask_at: now,
            client_seen: None,
            looked: None,
            suspected: None,
            distrusts: None,
            proved: None,
            are_hosts_gone: false,
            peer: None,
            told: PathWord::default(),
            damping: Damping::default(),
        }
    }

    /// A heartbeat came, over any link.
    pub(crate) fn on_heartbeat(&mut self) {
        self.missed = self.missed.saturating_add(1);
    }

    /// A sign of the peer came in by the service's interface at `at`, which may be some time ago.
    pub(crate) fn on_sign(&mut self, at: Instant) {
        if self.seen.is_none_or(|seen| at > seen) {
            self.seen = Some(at);
            self.missed = 0;
        }
    }

    /// A client's packet came in by the service's interface.
    pub(crate) fn on_client(&mut self, now: Instant) {
        self.client_seen = Some(now);
    }

    /// Whether a link to the peer lies on the service's interface.
    pub(crate) fn set_link(&mut self, has_link: bool) {
        self.has_link = has_link;
    }

    /// Whether the cable of the service's interface carries a signal.
    pub(crate) fn set_carrier(&mut self, now: Instant, has_carrier: bool) {
        if std::mem::replace(&mut self.has_carrier, has_carrier) != has_carrier {
            self.suspect_anew(now);
        }
    }

    /// Whether the cable carries a signal.
    pub(crate) const fn has_carrier(&self) -> bool {
        self.has_carrier
    }

    /// An outside host has answered a question that was asked at `asked`.
    pub(crate) fn on_answer(&mut self, now: Instant, asked: Instant) {
        if self.distrusts.is_none_or(|since| asked >= since) {
            self.answered = Some(now);
            self.proved = self.proved.max(Some(asked));
            self.suspected = None;
        }
    }

    /// The peer reports on its side. When the peer's trouble begins or ends, this node's own path may have changed too, so earlier answers
    /// prove nothing. An answer counts by the time of its question, because the answer may come long after the path broke.
    pub(crate) fn on_word(&mut self, now: Instant, word: Option<PathWord>) {
        let last = std::mem::replace(&mut self.peer, word);
        let was_troubled = last.is_some_and(PathWord::is_troubled);
        let is_troubled = word.is_some_and(PathWord::is_troubled);
        let is_old = |at| now.since(at) >= self.detector.patience() / 2;
        let begins = is_troubled && !was_troubled && self.proved.is_none_or(is_old);
        // The peer's path works again after both were in trouble, so this node's path may work again too.
        let ends = !is_troubled && was_troubled && self.is_suspicion_over(now);
        if begins {
            self.suspect(now);
        } else if ends {
            self.suspect_anew(now);
        }
    }

    /// There is no outside host to ask.
    pub(crate) fn on_nobody(&mut self) {
        self.first_asked = None;
    }

    /// Begins a suspicion, or prolongs the present one because of new trouble. If hosts are being asked already because the
    /// clients fell silent, the suspicion began with that question. [`is_suspicion_over`](Self::is_suspicion_over) limits how long
    /// a suspicion is prolonged, so that lasting trouble cannot keep a lost path under suspicion for ever.
    fn suspect(&mut self, now: Instant) {
        let since = self.suspected.or(self.asked_into_silence()).unwrap_or(now);
        self.suspect_anew(now);
        self.suspected = Some(since);
    }

    /// Begins a new suspicion with its full length, because the path may work again, or may have failed.
    fn suspect_anew(&mut self, now: Instant) {
        (self.suspected, self.distrusts, self.ask_at) = (Some(now), Some(now), now);
    }

    /// If the clients have fallen silent, asks the outside hosts at once, not only when the next question is due. Clients have many reasons
    /// to be silent, so the suspicion begins only after the hosts have had time to answer.
    fn look_into_silence(&mut self, now: Instant) {
        let is_past = |at: Option<Instant>, time| at.is_some_and(|at| now.since(at) >= time);
        let patience = self.detector.patience();
        let may_ask = self.looked.is_none() || is_past(self.looked, ASK_EVERY);
        if is_past(self.client_seen, patience) && may_ask && self.answered.is_some() {
            self.client_seen = None;
            (self.looked, self.ask_at) = (Some(now), now);
        }
        if is_past(self.asked_into_silence(), patience / 2) {
            self.suspect(now);
        }
    }

    /// When hosts were asked because the clients had fallen silent. `None` if a host has answered since, or a client has spoken.
    fn asked_into_silence(&self) -> Option<Instant> {
        self.looked
            .filter(|_| self.client_seen.is_none() && self.proved < self.looked)
    }

    /// Whether the suspicion has used up its time, so that the outside is lost.
    fn is_suspicion_over(&self, now: Instant) -> bool {
        let lasts = |since: Option<Instant>, time| since.is_some_and(|since| now.since(since) >= time);
        let had_time = lasts(self.distrusts, SUSPICION_MAX / 2) || lasts(self.suspected, SUSPICION_MAX * 2);
        lasts(self.suspected, SUSPICION_MAX) && had_time
    }

    /// Time has passed. `peer_is_late` says whether the peer is late on all links. Call this at least once per heartbeat interval. After a
    /// longer gap, heartbeats that came over other links during the gap do not count against the service's interface.
    pub(crate) fn on_timeout(&mut self, now: Instant, peer_is_late: bool) {
        if now.since(self.checked) > self.detector.interval {
            self.missed = 0;
        }
        self.checked = now;
        let is_late = peer_is_late || self.is_overdue(now, 2);
        if !is_late {
            self.late = None;
        } else if self.late.is_none() {
            self.late = Some(now);
            if self.suspected.is_none() {
                self.suspect(now);
            }
        }
        let is_old = self.answered.is_some_and(|at| now.since(at) >= PROOF_MAX);
        if is_old && self.suspected.is_none() {
            self.suspect(now);
        }
        if self.suspected.is_none() {
            self.look_into_silence(now);
        }
        let (is_good, is_known) = (self.is_good(now), self.is_known());
        self.damping.on_look(now, is_good, is_known);
        if !is_late {
            self.are_hosts_gone = self.has_carrier
                && self.meets(now)
                && self.outside(now) == Reachability::Lost
                && self.peer().outside == Reachability::Lost;
        }
    }

    /// Whether outside hosts are to be asked now.
    pub(crate) fn asks(&mut self, now: Instant) -> bool {
        if now < self.ask_at {
            return false;
        }
        let is_fresh = self.suspected.is_some_and(|at| now.since(at) < SUSPICION_MAX);
        let wait = if is_fresh {
            self.detector.interval
        } else {
            ASK_EVERY
        };
        self.ask_at = now + wait;
        self.first_asked.get_or_insert(now);
        true
    }

    /// Time before which a question proves nothing, even if it is answered later.
    pub(crate) fn distrusts(&self) -> Option<Instant> {
        self.distrusts.max(self.asked_into_silence())
    }

    /// When [`asks`](Self::asks) is due.
    pub(crate) const fn asks_at(&self) -> Instant {
        self.ask_at
    }

    /// Whether signs of the peer by the service's interface have been missing for 1/`part` of the patience, while heartbeats came over
    /// other links.
    fn is_overdue(&self, now: Instant, part: u32) -> bool {
        let are_missed = self.missed >= (self.detector.missed / part).max(1);
        let is_old = |seen| now.since(seen) >= self.detector.patience() / part;
        are_missed && self.seen.is_none_or(is_old)
    }

    /// Whether this node hears the peer through the service's interface. Without a carrier, this node does not hear it. `None`: no link to
    /// the peer lies on that interface.
    fn hears(&self, now: Instant) -> Option<bool> {
        self.has_link
            .then(|| self.has_carrier && self.seen.is_some() && !self.is_overdue(now, 1))
    }

    /// Whether there has been time to hear the peer through the service's interface.
    fn is_known(&self) -> bool {
        !self.has_link || self.seen.is_some() || self.missed >= self.detector.missed
    }

    /// Whether this node reaches outside hosts.
    pub(crate) fn outside(&self, now: Instant) -> Reachability {
        let since = |at: Option<Instant>, max| at.is_some_and(|at| now.since(at) >= max);
        let peer_reaches = self
            .peer
            .is_some_and(|peer| peer.outside == Reachability::Reached);
        if !self.has_carrier {
            return Reachability::Lost;
        }
        match (self.answered, self.suspected) {
            (None, _) if peer_reaches && since(self.first_asked, NEVER_ANSWERED) => Reachability::Lost,
            (None, _) => Reachability::Unknown,
            (Some(_), None) => Reachability::Reached,
            (Some(_), Some(_)) if self.is_suspicion_over(now) => Reachability::Lost,
            (Some(_), Some(_)) => Reachability::Suspected,
        }
    }

    /// Whether clients reach this node, as far as it knows. If hosts had stopped answering both nodes before the peer was late, their
    /// silence says nothing about this node's path.
    pub(crate) fn is_reached(&self, now: Instant) -> bool {
        let is_reached = matches!(self.outside(now), Reachability::Unknown | Reachability::Reached);
        is_reached || self.has_carrier && self.are_hosts_gone
    }

    /// Makes this node's report for the peer. Returns whether the report differs from the last report.
    pub(crate) fn renew_word(&mut self, now: Instant) -> bool {
        let word = self.word(now);
        std::mem::replace(&mut self.told, word) != word
    }

    /// The last report that was made for the peer.
    pub(crate) fn last_word(&self) -> PathWord {
        self.told
    }

    /// This node's report on its side.
    pub(crate) fn word(&self, now: Instant) -> PathWord {
        PathWord {
            outside: self.outside(now),
            hears: self.hears(now),
        }
    }

    /// The peer's last report on its side.
    pub(crate) fn peer(&self) -> PathWord {
        self.peer.unwrap_or_default()
    }

    /// Whether the nodes reach each other through the service's interfaces. If neither node has a link there, they are assumed to meet
    /// unless exactly one of them has lost the outside.
    pub(crate) fn meets(&self, now: Instant) -> bool {
        let Some(peer) = self.peer else {
            return true; // the peer runs an earlier version, which neither reports nor judges paths
        };
        if !self.has_carrier {
            return false;
        }
        match (self.hears(now), peer.hears) {
            (Some(false), _) | (_, Some(false)) => false,
            (Some(true), _) | (_, Some(true)) => true,
            (None, None) => (self.outside(now) == Reachability::Lost) == (peer.outside == Reachability::Lost),
        }
    }

    fn is_good(&self, now: Instant) -> bool {
        self.meets(now) && self.outside(now) != Reachability::Lost
    }

    /// This node's fitness. A path that broke counts as broken until it has worked for a while, unless the peer has
    /// lost the outside and so needs this node.
    pub(crate) fn fitness(&self, now: Instant) -> Fitness {
        let fitness = fitness(self.meets(now), self.outside(now), self.peer().outside);
        let is_needed = self.peer().outside == Reachability::Lost;
        let returns = fitness.returns && (is_needed || self.damping.is_steady(now));
        Fitness {
            returns,
            is_out: !returns && self.is_known(),
            ..fitness
        }
    }

    /// Whether a backup that has given way may be counted on again.
    pub(crate) fn is_steady(&self, now: Instant) -> bool {
        self.is_good(now) && self.damping.is_steady(now)
    }

    /// Number of times that the path broke.
    pub(crate) const fn losses(&self) -> u64 {
        self.damping.losses()
    }
}
