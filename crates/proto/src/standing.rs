//! One node's standing in one service: its role, the epoch, how long its lease runs, and whether its right to speak is confirmed
//! (DESIGN.md §4). Whatever decides who speaks is here and in [`crate::role`], and is model-checked
//! (`tests/speaking.rs`); [`crate::node`] does what follows from it.
//!
//! ```text
//!   backup    sent ──▶ echoed by the primary ──▶ the lease runs until sent + lease: it may take over at once
//!   primary                heard ──▶ the lease has surely ended at heard + lease + drift: it may claim
//! ```
//!
//! The lease only covers the first words. To go on, or to begin without it, a node asks the arbiter (a witness, or a fence), which
//! gives each epoch to one node. Without an arbiter silence counts as death (`fail-stop`), and everyone is confirmed.

mod leaving;
mod word;

use std::time::Duration;

use crate::Instant;
use crate::path::Fitness;
use crate::role::{Event, Role};

/// Between two questions to an arbiter that has not answered.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Two clocks differ by less than one part in so many.
const DRIFT: u32 = 16;

/// What a node says of itself in a heartbeat, as far as it concerns who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    /// Its role.
    pub role: Role,
    /// The epoch of that role.
    pub epoch: u64,
    /// It gives up its part.
    pub leaves: bool,
    /// A primary that wants to be taken over: it leaves, hands over, or its application failed and the other's did not.
    pub yields: bool,
    /// When its peer sent the last heartbeat that it has heard, by that peer's clock.
    pub echo: Option<Instant>,
}

/// What an arbiter says to a node that asks for an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The epoch is this node's alone.
    Granted,
    /// This epoch is written down, which is a later one or another node's.
    Refused {
        /// That epoch.
        epoch: u64,
        /// It is this node's.
        is_own: bool,
    },
    /// No answer. The arbiter may have decided all the same; it is asked again.
    Failed,
}

/// A change of role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The role before.
    pub from: Role,
    /// The role now.
    pub to: Role,
    /// Why.
    pub event: Event,
}

/// Who decides between two nodes that do not hear each other (DESIGN.md §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Arbiter {
    /// Nobody: silence counts as death.
    #[default]
    FailStop,
    /// A command that makes sure that the other node is dead. It remembers nothing.
    Fence,
    /// It writes down who has which epoch, for ever.
    Witness,
}

/// What a standing is told at its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StandingConfig {
    /// At the very first meeting this node becomes the primary.
    pub is_primary: bool,
    /// Who decides.
    pub arbiter: Arbiter,
    /// For so long the backup may speak without having asked.
    pub lease: Duration,
    /// Time that this node waits before it has a silent peer fenced, so that of two living nodes the other one is faster.
    pub fence_delay: Duration,
}

/// What an agent that is gone left of a standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// Its role.
    pub role: Role,
    /// The epoch of that role.
    pub epoch: u64,
    /// Its right to speak had no end.
    pub is_confirmed: bool,
}

/// Role, epoch, lease and right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    config: StandingConfig,
    role: Role,
    epoch: u64,
    /// A backup's own lease; or how long a node may speak alone on its peer's promise.
    lease_until: Option<Instant>,
    /// Echoes of what was sent up to then give no lease: the clock stood still since, or this node said that it leaves.
    echoes_after: Instant,
    /// The lease that the other node may have from this one.
    granted_until: Option<Instant>,
    /// The epoch that the arbiter has given to this node.
    confirmed: Option<u64>,
    /// Nobody must be asked before.
    ask_at: Instant,
    /// Until then the primary may speak alone on the word of this backup, which had left: the arbiter is not asked for its epoch.
    promised_until: Instant,
    /// The arbiter was asked in this role: it may have given an epoch without this node knowing.
    has_asked: bool,
    /// The fence's command runs: the peer, which may have come back meanwhile, will be off when it ends.
    is_fencing: bool,
    /// The primary is silent or yields, and the lease was over: the arbiter decides.
    is_wanted: bool,
    /// It knows the last epoch that the witness has written down: a new pair must not begin behind it, and what an agent that died had
    /// asked for may have been given to it.
    knows: bool,
    /// That epoch is this node's, which does not know any more what it has said in it.
    has_forgotten: bool,
    leaves: bool,
    /// This backup had left, and the primary has not confirmed since that it did not go on alone.
    is_unconfirmed: bool,
    /// What this node's path allows it to begin.
    fitness: Fitness,
    /// Clients reach this node, as far as it knows: else it asks no arbiter and takes nobody for dead, since the fault may be its own.
    is_reached: bool,
    /// A step that its role needed failed, and could not be made good yet.
    has_failed: bool,
}

impl Standing {
    /// A node that knows nothing; or that goes on with what an agent left that died.
    pub fn new(config: StandingConfig, found: Option<Found>, now: Instant) -> Self {
        let (role, epoch) = found.map_or((Role::Joining, 0), |found| (found.role, found.epoch));
        let is_confirmed = found.is_some_and(|found| found.is_confirmed && found.role.speaks_alone());
        let mut standing = Self {
            config,
            role,
            epoch,
            lease_until: None,
            echoes_after: Instant::ZERO,
            granted_until: None,
            confirmed: is_confirmed.then_some(epoch),
            ask_at: now,
            promised_until: Instant::ZERO,
            has_asked: false,
            is_fencing: false,
            is_wanted: false,
            knows: config.arbiter != Arbiter::Witness,
            has_forgotten: false,
            leaves: false,
            is_unconfirmed: false,
            fitness: Fitness::WHOLE,
            is_reached: true,
            has_failed: false,
        };
        standing.grant(now); // what the agent before has granted is not known
        if found.is_some() {
            standing.keep_promise(now); // nor what it has promised
        }
        standing
    }

    /// The role.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The epoch of the role.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// When the right to speak ends: of a node that speaks alone, or of a wire that speaks for connections that it has taken over.
    /// Nothing if it does not end.
    pub fn until(&self) -> Option<Instant> {
        let ends = match self.role {
            // The primary goes on alone after that, whoever decides.
            Role::Backup => true,
            role => role.speaks_alone() && !self.is_confirmed(),
        };
        ends.then(|| self.lease_until.unwrap_or(Instant::ZERO))
    }

    /// Until when a backup may take over unasked.
    pub const fn lease_until(&self) -> Option<Instant> {
        self.lease_until
    }

    /// Time has passed: a promise that has ended gives no right to claim.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.role == Role::Claiming && !self.has_lease(now) {
            self.lease_until = None;
        }
    }

    /// Whether this node is the wire of a primary that counts on it: then it may speak for connections that it has taken over, as soon
    /// as that primary has answered this agent, and for as long as it goes on answering.
    pub fn is_counted_on(&self, now: Instant) -> bool {
        self.role == Role::Backup && self.has_lease(now)
    }

    /// When a primary may claim, if the wire is silent from now on: the lease that it granted has ended.
    pub const fn granted_until(&self) -> Option<Instant> {
        self.granted_until
    }

    /// From when on a node that claims may bring the address here; nothing if it has not got the right to.
    pub fn claims_at(&self) -> Option<Instant> {
        let has_right = self.is_confirmed() || self.lease_until.is_some();
        (self.role == Role::Claiming && has_right).then(|| self.granted_until.unwrap_or(Instant::ZERO))
    }

    /// Whether a node that claims may bring the address here now.
    pub fn may_claim(&self, now: Instant) -> bool {
        let has_right = self.is_confirmed() || self.has_lease(now);
        has_right && self.claims_at().is_some_and(|at| now >= at)
    }

    /// Whether the arbiter has given the epoch, in which this node speaks or is going to, to it.
    fn is_confirmed(&self) -> bool {
        self.config.arbiter == Arbiter::FailStop || self.confirmed == self.wanted()
    }

    /// The epoch in which this node speaks alone or wants to; 0 if it only wants to know what is written down.
    fn wanted(&self) -> Option<u64> {
        match self.role {
            Role::Joining | Role::Primary | Role::Claiming | Role::Backup if !self.knows => Some(0),
            Role::TakingOver | Role::Sole => Some(self.epoch),
            Role::Claiming | Role::Backup => Some(self.epoch + 1),
            Role::Joining | Role::Primary | Role::Returning | Role::Standby => None,
        }
    }

    /// The peer is not fenced before `from` and this node's delay.
    fn delay_fence(&mut self, from: Instant) {
        if self.config.arbiter == Arbiter::Fence {
            self.ask_at = self.ask_at.max(from + self.config.fence_delay);
        }
    }

    fn has_lease(&self, now: Instant) -> bool {
        self.lease_until.is_some_and(|until| now < until)
    }

    /// The other node may count on a lease from now on.
    fn grant(&mut self, now: Instant) {
        if self.role == Role::Primary {
            self.granted_until = Some(now + self.config.lease + self.config.lease / DRIFT);
        }
    }

    /// The epoch for which the arbiter is to be asked now, if it is.
    pub fn ask(&mut self, now: Instant) -> Option<u64> {
        self.asks_at().filter(|at| now >= *at)?;
        self.ask_at = now + ASK_AGAIN;
        let wanted = self.wanted();
        self.has_asked |= wanted != Some(0);
        self.is_fencing = self.config.arbiter == Arbiter::Fence;
        wanted
    }

    /// When [`ask`](Self::ask) has something to say.
    pub fn asks_at(&self) -> Option<Instant> {
        if self.is_confirmed() {
            return None;
        }
        match self.role {
            _ if self.wanted() == Some(0) => Some(self.ask_at),
            Role::TakingOver | Role::Sole => Some(self.ask_at),
            Role::Claiming => {
                let at = self.ask_at.max(self.granted_until.unwrap_or(self.ask_at));
                self.is_reached.then_some(at)
            }
            Role::Backup => {
                let at = self.ask_at.max(self.promised_until);
                // One that leaves begins nothing, but must know what it was given.
                let may_ask = !self.leaves() || self.has_asked;
                (self.is_wanted && self.is_reached && may_ask).then_some(at)
            }
            Role::Joining | Role::Primary | Role::Returning | Role::Standby => None,
        }
    }

    /// The arbiter's answer for `epoch`.
    pub fn on_verdict(&mut self, now: Instant, epoch: u64, verdict: Verdict) -> Option<Change> {
        self.is_fencing = false;
        if self.wanted() != Some(epoch) {
            return None; // what it was asked for is not wanted any more
        }
        match verdict {
            Verdict::Failed => {
                // A witness may have decided all the same. A command that failed has switched nobody off.
                self.has_asked &= self.config.arbiter == Arbiter::Witness;
                None
            }
            _ if epoch == 0 => {
                self.on_written(verdict);
                None
            }
            Verdict::Granted => {
                (self.knows, self.confirmed) = (true, Some(epoch));
                if self.role == Role::Backup {
                    // Nobody else can have this epoch any more, so the service would be lost if it did not go on here.
                    return self.change(now, Event::PeerSilent, epoch);
                }
                None
            }
            Verdict::Refused { epoch, .. } => self.change(now, Event::PeerSpeaks, epoch),
        }
    }

    /// What the witness has written down.
    fn on_written(&mut self, verdict: Verdict) {
        self.knows = true;
        let Verdict::Refused { epoch, is_own } = verdict else {
            return;
        };
        if self.role == Role::Joining {
            self.has_forgotten = is_own;
        } else if !is_own {
            return; // the peer has used it, and says so; or goes on in it; or is gone, and this node is refused that epoch
        }
        // A node that begins is not behind what was said. One that goes on was given an epoch that its last agent did not live to use:
        // nothing was said in it, so the pair can go on in it, and the next one is free for either.
        self.epoch = self.epoch.max(epoch);
    }

    /// The peer's word.
    pub fn on_word(&mut self, now: Instant, word: &Word) -> Option<Change> {
        if self.is_wire_of(word) {
            // It is not silent. But the arbiter may have given the epoch, and then nobody else can go on.
            self.is_wanted &= self.has_asked;
        }
        self.spare(word);
        let change = self
            .event_of(word)
            .and_then(|event| self.change_if_allowed(now, event, word.epoch));
        if self.is_wire_of(word) && !self.leaves() {
            self.extend_lease(word);
        }
        self.hear_promise(word);
        self.grant(now);
        change
    }

    /// The peer has answered what this node sent: a lease runs from the sending.
    fn extend_lease(&mut self, word: &Word) {
        let fresh = word.echo.filter(|sent| *sent > self.echoes_after);
        self.is_unconfirmed &= fresh.is_none();
        let until = fresh.map(|sent| sent + self.config.lease);
        self.lease_until = self.lease_until.max(until);
    }

    /// Nobody is to be fenced who says itself that it is mute in this node's epoch.
    fn spare(&mut self, word: &Word) {
        let is_mute = matches!(word.role, Role::Standby | Role::Returning) && word.epoch >= self.epoch;
        if self.config.arbiter == Arbiter::Fence && self.role.speaks_alone() && is_mute {
            self.confirmed = Some(self.epoch);
        }
    }

    fn is_wire_of(&self, word: &Word) -> bool {
        self.role == Role::Backup && word.role == Role::Primary && word.epoch == self.epoch
    }

    /// The clock by which the lease is measured stood still: the lease may have ended.
    pub fn on_pause(&mut self, now: Instant) {
        (self.lease_until, self.echoes_after) = (None, now);
    }

    /// The peer is silent.
    pub fn on_silent(&mut self, now: Instant) -> Option<Change> {
        self.change_if_allowed(now, Event::PeerSilent, 0)
    }

    /// There is no peer, and the operator wants the service all the same.
    pub fn on_alone(&mut self, now: Instant) -> Option<Change> {
        if !self.knows {
            return None;
        }
        self.change(now, Event::Alone, 0)
    }

    /// The step failed that this node's consent to a peer's return needs. The peer has not heard of the consent, so this node goes on alone,
    /// in the epoch from before it.
    pub fn on_consent_failed(&mut self, now: Instant, epoch: u64) -> Option<Change> {
        self.change(now, Event::ConsentFailed, epoch)
    }

    /// Outside hosts reach the VIP here.
    pub fn on_reached(&mut self, now: Instant) -> Option<Change> {
        if !self.may_claim(now) {
            return None;
        }
        self.change(now, Event::Reached, 0)
    }

    /// All connections of a takeover are decided.
    pub fn on_decided(&mut self, now: Instant) -> Option<Change> {
        self.change(now, Event::Decided, 0)
    }

    /// The operator wants this backup to take over from a primary that is well.
    pub fn on_handover(&mut self, now: Instant) -> Option<Change> {
        self.change_if_allowed(now, Event::PeerYields, 0)
    }

    /// The change that `event` brings, if this node has the right to it.
    fn change_if_allowed(&mut self, now: Instant, event: Event, epoch: u64) -> Option<Change> {
        if self.role.after(event) == Some(Role::TakingOver) {
            if self.leaves() {
                return None; // it has promised not to
            }
            if self.is_unconfirmed {
                // A primary that cannot be heard may be serving alone. One that can be heard confirms first.
                let is_silent = event == Event::PeerSilent;
                return is_silent.then(|| self.change(now, Event::Withdrawn, 0)).flatten();
            }
            if event == Event::PeerSilent && !self.is_reached {
                return None; // the silence may be this node's fault
            }
            if self.config.arbiter != Arbiter::FailStop && !self.has_lease(now) && !self.is_confirmed() {
                if !std::mem::replace(&mut self.is_wanted, true) {
                    self.delay_fence(now);
                }
                return None;
            }
        }
        self.change(now, event, epoch)
    }

    /// Carries out `event`, which the peer's word of `epoch` has brought about, if any.
    fn change(&mut self, now: Instant, event: Event, epoch: u64) -> Option<Change> {
        let from = self.role;
        let to = from.after(event)?;
        self.epoch = match (event, to) {
            (Event::Begins | Event::PeerReturns, _) => self.epoch.max(epoch) + 1,
            (Event::PeerServes | Event::Consented | Event::ConsentFailed, _) => epoch,
            (Event::PeerSpeaks | Event::PeerBack, _) => self.epoch.max(epoch),
            (_, Role::TakingOver) | (Event::Reached, _) => self.epoch + 1,
            _ => self.epoch,
        };
        let is_fence = self.config.arbiter == Arbiter::Fence;
        match event {
            Event::PeerSilent if from == Role::Backup => self.delay_fence(now),
            Event::PeerSilent => self.delay_fence(self.granted_until.map_or(now, |free| free.max(now))),
            Event::PeerLeaves => {
                self.granted_until = Some(now); // it has promised to take nothing over
                self.confirmed = is_fence.then_some(self.epoch + 1);
            }
            Event::PeerBack
                if from == Role::Claiming && self.confirmed == Some(self.epoch + 1) && !is_fence =>
            {
                self.epoch += 1; // the arbiter's, in which it has said nothing
            }
            Event::PeerBack => self.confirmed = None, // the promise is over
            // It is well, and will say that it is mute.
            Event::PeerYields if is_fence => self.ask_at = now + self.config.lease / 2,
            _ => {}
        }
        if to != Role::TakingOver && to != Role::Sole {
            self.lease_until = None;
            (self.has_asked, self.is_wanted) = (false, false);
        }
        self.is_unconfirmed = false;
        self.role = to;
        self.grant(now);
        Some(Change { from, to, event })
    }
}
