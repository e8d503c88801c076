//! One node's standing in one service: its role, the epoch, how long its lease runs, and whether its right to speak is confirmed
//! (DESIGN.md §4). This module and [`crate::role`] decide who speaks, and are model-checked (`tests/speaking/`).
//! [`crate::node`] carries out their decisions.
//!
//! ```text
//!   backup    sent ──▶ echoed by the primary ──▶ the lease runs until sent + lease: it may take over at once
//!   primary                heard ──▶ the lease has surely ended at heard + lease + drift: it may claim
//! ```
//!
//! The lease gives the right to speak for a limited time. To go on speaking, or to begin without a lease, a node asks
//! the arbiter (a witness, or a fence). The arbiter gives each epoch to one node. Without an arbiter (`fail-stop`),
//! silence counts as death and every node is confirmed.

mod direct;
mod leaving;
mod word;

use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::Instant;
use crate::path::Fitness;
use crate::role::{Role, RoleEvent};

/// Time between two questions to an arbiter that has not answered.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// The longest time that a packet needs from one node to the other. A deposed primary waits for this time before it returns. Otherwise, if
/// the nodes swapped roles twice in that time, packets that the node sent before it was deposed would pass the wire as packets of the new
/// primary.
const ON_THE_WAY: Duration = Duration::from_millis(50);
/// Bound on clock drift: two clocks differ by less than 1/16 of the time that passes.
const DRIFT: u32 = 16;

/// The part of a node's heartbeat that concerns the right to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StandingBeat {
    /// Its role.
    pub role: Role,
    /// The epoch of that role.
    pub epoch: u64,
    /// The node gives up its part.
    pub leaves: bool,
    /// The node is a primary that wants to be taken over: it leaves, it hands over, or its application failed and the backup's did not.
    pub yields: bool,
    /// When the receiver of this word sent the last of its heartbeats that the node has heard, by the receiver's clock. `None` if an
    /// earlier agent of the receiver sent that heartbeat, because that agent may have said afterwards that it leaves.
    pub echo: Option<Instant>,
    /// Commit mode `pr`: from a primary, it sends output past the wire; from a backup, it would wait for the end of that.
    pub direct: bool,
}

/// An arbiter's answer to a node that asks for an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ArbiterVerdict {
    /// The epoch is this node's alone.
    Granted,
    /// The arbiter has already written down an epoch that is later, or that belongs to the other node.
    Refused {
        /// The written epoch.
        epoch: u64,
        /// The written epoch belongs to this node.
        is_own: bool,
    },
    /// No answer. The arbiter may have decided all the same, so it is asked again.
    Failed,
}

/// A change of role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleChange {
    /// The role before.
    pub from: Role,
    /// The role now.
    pub to: Role,
    /// The event that caused it.
    pub event: RoleEvent,
}

/// The kind of arbiter, which decides between two nodes that do not hear each other (DESIGN.md §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Arbiter {
    /// Nobody: silence counts as death.
    #[default]
    FailStop,
    /// A command that makes sure that the other node is off. The command remembers nothing.
    Fence,
    /// A store that writes down for ever which node has which epoch.
    Witness,
}

/// Configuration of a standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StandingConfig {
    /// Whether this node becomes the primary when the two nodes first meet.
    pub is_primary: bool,
    /// The arbiter.
    pub arbiter: Arbiter,
    /// How long the backup may speak without having asked the arbiter.
    pub lease: Duration,
    /// Time that this node waits before it has a silent peer fenced. If two living nodes do not hear each other, a delay on one of them
    /// lets the other one fence first.
    pub fence_delay: Duration,
    /// Commit mode `pr`: a primary may send output past the wire.
    pub sends_directly: bool,
}

/// The standing that an earlier agent left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InheritedStanding {
    /// Its role.
    pub role: Role,
    /// The epoch of that role.
    pub epoch: u64,
    /// The right to speak had no end.
    pub is_confirmed: bool,
}

/// Why a backup delays its fence, in the order in which the reasons follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Delay {
    /// The primary has said that it claims the VIP.
    Claims,
    /// The primary is silent.
    Silent,
}

/// What a node knows of output that bypasses the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct DirectOutput {
    /// On the primary: its heartbeats since this time say that it sends directly. Only echoes of these heartbeats count.
    said_since: Option<Instant>,
    /// On the primary: until when it may send directly.
    until: Option<Instant>,
    /// On the backup: when the primary has surely stopped sending directly.
    free_at: Option<Instant>,
    /// On the backup: it was ordered to take over, and waits until the primary has stopped.
    is_ordered: bool,
}

/// Role, epoch, lease and right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    config: StandingConfig,
    role: Role,
    epoch: u64,
    /// End of a backup's own lease, or of the time that a node may speak alone on its peer's promise.
    lease_until: Option<Instant>,
    /// Echoes of heartbeats that this node sent up to this time give no lease. Until this time the clock stood still, or this node said
    /// that it leaves.
    echoes_after: Instant,
    /// End of the lease that the other node may have from this node.
    granted_until: Option<Instant>,
    /// The epoch that the arbiter has given to this node.
    confirmed: Option<u64>,
    /// Earliest time of the next question to the arbiter.
    ask_at: Instant,
    /// Time until which the primary may speak alone, because this backup had said that it leaves. Before this time, the backup does not
    /// ask the arbiter for the next epoch.
    promised_until: Instant,
    /// The arbiter was asked in this role. It may have given an epoch without this node's knowledge.
    has_asked: bool,
    /// The fence's command is running. When the command succeeds, the peer is off, even if the peer has come back meanwhile.
    is_fencing: bool,
    /// The primary is silent or yields, and the lease is over, so the arbiter decides.
    is_wanted: bool,
    /// Why this backup's fence delay began last.
    delayed: Option<Delay>,
    /// This node knows the last epoch that the witness has written down. A new pair must not begin behind that epoch, and the witness
    /// may have given this node an epoch that its earlier agent asked for before it died.
    knows: bool,
    /// The last written epoch is this node's, but this node has forgotten what it said in that epoch.
    has_forgotten: bool,
    /// Since when this node is mute. A joining node sets this again when it learns the last written epoch.
    mute_since: Instant,
    leaves: bool,
    /// This backup had left. Since then, the primary has not confirmed that it did not go on alone.
    is_unconfirmed: bool,
    /// When the last packets that this node sent as a primary have surely arrived.
    arrived_at: Instant,
    /// The roles that this node's path allows the node to begin.
    fitness: Fitness,
    /// Clients reach this node, as far as it knows. If not, it asks no arbiter and does not take the peer for dead, since the fault may
    /// be its own.
    is_reached: bool,
    /// A step that the role needs has failed, and has not been made good yet.
    has_failed: bool,
    direct: DirectOutput,
}

impl Standing {
    /// The standing of a node that knows nothing, or that continues from what an earlier agent left (`found`).
    pub fn new(config: StandingConfig, found: Option<InheritedStanding>, now: Instant) -> Self {
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
            delayed: None,
            knows: config.arbiter != Arbiter::Witness,
            has_forgotten: false,
            mute_since: now,
            leaves: false,
            is_unconfirmed: false,
            arrived_at: Instant::ZERO,
            fitness: Fitness::WHOLE,
            is_reached: true,
            has_failed: false,
            direct: DirectOutput::default(),
        };
        standing.grant(now); // the earlier agent may have granted a lease
        if found.is_some() {
            standing.keep_promise(now); // and may have promised to be silent
            standing.expect_direct(now);
            standing.delay_fence(now); // the peer, which has not been heard yet, may be about to fence this node
        }
        standing
    }

    /// Its configuration.
    pub const fn config(&self) -> &StandingConfig {
        &self.config
    }

    /// The role.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The epoch of the role.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// When the right to speak ends, for a node that speaks alone, or for a wire that speaks for connections that it has taken over.
    /// `None` if the right does not end.
    pub fn until(&self) -> Option<Instant> {
        let ends = match self.role {
            // When this backup's lease has ended, the primary may go on alone, with any arbiter.
            Role::Backup => true,
            role => role.speaks_alone() && !self.is_confirmed(),
        };
        ends.then(|| self.lease_until.unwrap_or(Instant::ZERO))
    }

    /// Until when a backup may take over without asking.
    pub const fn lease_until(&self) -> Option<Instant> {
        self.lease_until
    }

    /// Time has passed: a promise that has ended gives no right to claim.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.role == Role::Claiming && !self.has_lease(now) {
            self.lease_until = None;
        }
    }

    /// Whether this node is a wire on which its primary counts. If so, this node may speak for connections that it has taken over. This
    /// begins when the primary has answered this agent, and lasts as long as the primary goes on answering.
    pub fn is_counted_on(&self, now: Instant) -> bool {
        self.role == Role::Backup && self.has_lease(now)
    }

    /// When a primary may claim, if the wire is silent from now on: the end of the lease that the primary granted.
    pub const fn granted_until(&self) -> Option<Instant> {
        self.granted_until
    }

    /// Earliest time at which a claiming node may bring the VIP here. `None` if the node has no right to do so.
    pub fn claims_at(&self) -> Option<Instant> {
        let has_right = self.is_confirmed() || self.lease_until.is_some();
        (self.role == Role::Claiming && has_right).then(|| self.granted_until.unwrap_or(Instant::ZERO))
    }

    /// Whether a claiming node may bring the VIP here now.
    pub fn may_claim(&self, now: Instant) -> bool {
        let has_right = self.is_confirmed() || self.has_lease(now);
        has_right && self.claims_at().is_some_and(|at| now >= at)
    }

    /// Whether the arbiter has given this node the epoch in which it speaks or is going to speak.
    fn is_confirmed(&self) -> bool {
        self.config.arbiter == Arbiter::FailStop || self.confirmed == self.wanted()
    }

    /// Returns the epoch in which this node speaks alone, or wants to speak alone. Returns 0 if the node only wants to know which epoch the
    /// witness has written down.
    fn wanted(&self) -> Option<u64> {
        match self.role {
            Role::Joining | Role::Primary | Role::Claiming | Role::Backup if !self.knows => Some(0),
            Role::TakingOver | Role::Sole => Some(self.epoch),
            Role::Claiming | Role::Backup => Some(self.epoch + 1),
            Role::Joining | Role::Primary | Role::Returning | Role::Standby => None,
        }
    }

    /// The other node may fence this node, for the reason `why`. So this backup begins its fence delay, unless it has
    /// begun one for this reason or a later one.
    fn delay_question(&mut self, now: Instant, why: Delay) {
        if self.delayed < Some(why) {
            self.delayed = Some(why);
            self.delay_fence(now);
        }
    }

    /// Whether this node, mute or new, may be the wire of a peer that serves.
    fn may_return(&self, now: Instant) -> bool {
        !self.leaves() && self.fitness.returns && now >= self.arrived_at
    }

    /// Postpones fencing the peer to `from` plus this node's fence delay.
    fn delay_fence(&mut self, from: Instant) {
        if self.config.arbiter == Arbiter::Fence {
            self.ask_at = self.ask_at.max(from + self.config.fence_delay);
        }
    }

    fn has_lease(&self, now: Instant) -> bool {
        self.lease_until.is_some_and(|until| now < until)
    }

    /// Notes that the other node may count on a lease that begins now.
    fn grant(&mut self, now: Instant) {
        if self.role == Role::Primary {
            self.granted_until = Some(now + self.config.lease + self.config.lease / DRIFT);
        }
    }

    /// The epoch to ask the arbiter for now. `None` if no question is due.
    pub fn ask(&mut self, now: Instant) -> Option<u64> {
        self.asks_at().filter(|at| now >= *at)?;
        self.ask_at = now + ASK_AGAIN;
        let wanted = self.wanted();
        self.has_asked |= wanted != Some(0);
        self.is_fencing = self.config.arbiter == Arbiter::Fence;
        wanted
    }

    /// When [`ask`](Self::ask) is due.
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
                // A backup that leaves asks for no epoch. But if it has asked already, it must learn whether the arbiter gave it the
                // epoch.
                let may_ask = !self.leaves() || self.has_asked;
                (self.is_wanted && self.is_reached && may_ask).then_some(at)
            }
            Role::Joining | Role::Primary | Role::Returning | Role::Standby => None,
        }
    }

    /// The arbiter's answer for `epoch`.
    pub fn on_verdict(&mut self, now: Instant, epoch: u64, verdict: ArbiterVerdict) -> Option<RoleChange> {
        self.is_fencing = false;
        if self.wanted() != Some(epoch) {
            return None; // this node no longer wants the epoch that it asked for
        }
        match verdict {
            ArbiterVerdict::Failed => {
                // A witness may have given the epoch although no answer came. A fence's command that failed has switched no node off.
                self.has_asked &= self.config.arbiter == Arbiter::Witness;
                None
            }
            _ if epoch == 0 => {
                self.on_written(now, verdict);
                None
            }
            ArbiterVerdict::Granted => {
                (self.knows, self.confirmed) = (true, Some(epoch));
                self.end_output();
                if self.role == Role::Backup && !self.waits_for_output(now) {
                    // The other node can no longer get this epoch, so the service would be lost if it did not go on here.
                    return self.change(now, RoleEvent::PeerSilent, epoch);
                }
                None
            }
            ArbiterVerdict::Refused { epoch, .. } => self.change(now, RoleEvent::PeerSpeaks, epoch),
        }
    }

    /// The witness's answer to the question which epoch is written down.
    fn on_written(&mut self, now: Instant, verdict: ArbiterVerdict) {
        self.knows = true;
        if self.role == Role::Joining {
            self.mute_since = now;
        }
        let ArbiterVerdict::Refused { epoch, is_own } = verdict else {
            return;
        };
        if self.role == Role::Joining {
            self.has_forgotten = is_own;
        } else if !is_own {
            // The written epoch is the peer's. If the peer uses the epoch, its word says so. If the peer is gone, the arbiter refuses
            // this node that epoch.
            return;
        }
        // A joining node must not begin in an epoch before one in which a node has spoken. A node in any other role was
        // given the written epoch, but its last agent died before using that epoch. No node has spoken in that epoch,
        // so the pair can go on in it. Either node can get the next epoch.
        self.epoch = self.epoch.max(epoch);
    }

    /// The peer's word.
    pub fn on_word(&mut self, now: Instant, word: &StandingBeat) -> Option<RoleChange> {
        if self.is_wire_of(word) {
            // The primary is not silent, so no arbiter is needed. But if the arbiter was asked, it may have given this node the epoch.
            // Then only this node can go on.
            self.is_wanted &= self.has_asked;
            self.delayed = self.delayed.filter(|_| self.is_wanted);
        }
        if self.role == Role::Backup && word.role == Role::Claiming {
            self.delay_question(now, Delay::Claims);
        }
        self.spare(word);
        self.hear_direct(now, word);
        if self.is_wire_of(word) && !self.leaves() {
            self.extend_lease(word);
        }
        let change = self
            .event_of(now, word)
            .filter(|event| *event != RoleEvent::Begins || self.is_answer_to_mute(word))
            .and_then(|event| self.change_if_allowed(now, event, word.epoch));
        if change.is_some_and(|change| change.event == RoleEvent::PeerSilent) {
            // The peer is mute but alive, and may be about to return. So it is not fenced immediately.
            self.ask_at = self.ask_at.max(now + ASK_AGAIN);
        }
        self.hear_promise(word);
        self.grant(now);
        change
    }

    /// The peer has echoed a heartbeat of this node, so a lease runs from the time when that heartbeat was sent.
    fn extend_lease(&mut self, word: &StandingBeat) {
        let fresh = word.echo.filter(|sent| *sent > self.echoes_after);
        self.is_unconfirmed &= fresh.is_none();
        let until = fresh.map(|sent| sent + self.config.lease);
        self.lease_until = self.lease_until.max(until);
    }

    /// Confirms this node without a fence, if the peer itself says that it is mute in this node's epoch or a later one.
    fn spare(&mut self, word: &StandingBeat) {
        let is_mute = matches!(word.role, Role::Standby | Role::Returning) && word.epoch >= self.epoch;
        if self.config.arbiter == Arbiter::Fence && self.role.speaks_alone() && is_mute {
            self.confirmed = Some(self.epoch);
        }
    }

    fn is_wire_of(&self, word: &StandingBeat) -> bool {
        self.role == Role::Backup && word.role == Role::Primary && word.epoch == self.epoch
    }

    /// The clock that measures the lease stood still, so the lease may have ended.
    pub fn on_pause(&mut self, now: Instant) {
        (self.lease_until, self.echoes_after) = (None, now);
        self.forget_direct(now);
    }

    /// The peer is silent.
    pub fn on_silent(&mut self, now: Instant) -> Option<RoleChange> {
        self.change_if_allowed(now, RoleEvent::PeerSilent, 0)
    }

    /// There is no peer, and the operator has allowed this node to serve without one.
    pub fn on_alone(&mut self, now: Instant) -> Option<RoleChange> {
        if !self.knows {
            return None;
        }
        self.change(now, RoleEvent::Alone, 0)
    }

    /// This node wanted to consent to the peer's return, but a step failed. The peer has not heard of the consent. So this node goes on
    /// alone, in the `epoch` from before the consent.
    pub fn on_consent_failed(&mut self, now: Instant, epoch: u64) -> Option<RoleChange> {
        self.change(now, RoleEvent::ConsentFailed, epoch)
    }

    /// Outside hosts reach the VIP here.
    pub fn on_reached(&mut self, now: Instant) -> Option<RoleChange> {
        if !self.may_claim(now) {
            return None;
        }
        self.change(now, RoleEvent::Reached, 0)
    }

    /// All connections of a takeover are decided.
    pub fn on_decided(&mut self, now: Instant) -> Option<RoleChange> {
        self.change(now, RoleEvent::Decided, 0)
    }

    /// This backup is to take over from a primary that lives: by the operator's order, or because the primary's path is broken.
    pub fn on_handover(&mut self, now: Instant) -> Option<RoleChange> {
        if !self.may_follow(now) {
            return None; // the primary's next heartbeats will show whether it has gone on alone
        }
        if self.waits_for_output(now) {
            self.order_takeover();
            return None;
        }
        self.change_if_allowed(now, RoleEvent::PeerYields, 0)
    }

    /// Whether this backup may believe the word of a primary that yields. The word may be old, and the primary may have gone on alone
    /// since. A lease shows that the primary has not gone on alone. If there is an arbiter, a backup without a lease asks it.
    fn may_follow(&self, now: Instant) -> bool {
        let asks = self.config.arbiter != Arbiter::FailStop;
        !self.is_unconfirmed && (asks || self.config.lease.is_zero() || self.has_lease(now))
    }

    /// Whether a word that lets this node begin is recent enough: before the peer sent the word, it had heard that this node is mute. An
    /// older word may still say that the peer is mute, although by now the peer is this node's wire, or speaks alone.
    fn is_answer_to_mute(&self, word: &StandingBeat) -> bool {
        word.echo.is_some_and(|sent| sent >= self.mute_since)
    }

    /// The change that `event` brings, if this node has the right to it.
    fn change_if_allowed(&mut self, now: Instant, event: RoleEvent, epoch: u64) -> Option<RoleChange> {
        if self.role.after(event) == Some(Role::TakingOver) {
            if self.leaves() {
                return None; // this node has promised not to take over
            }
            if self.is_unconfirmed {
                // The primary may be serving alone, or has done so before it began anew.
                return self.change(now, RoleEvent::Withdrawn, 0);
            }
            if event == RoleEvent::PeerSilent && !self.is_reached {
                return None; // the silence may be this node's fault
            }
            let waits = self.waits_for_output(now);
            let has_lease = self.has_lease(now) && !waits;
            if self.config.arbiter != Arbiter::FailStop && !has_lease && !self.is_confirmed() {
                self.is_wanted |= !waits || event == RoleEvent::PeerSilent;
                // A primary that yields fences nobody, so there is nothing to wait for.
                if event == RoleEvent::PeerSilent {
                    self.delay_question(now, Delay::Silent);
                }
                return None;
            }
            if waits {
                return None;
            }
        }
        self.change(now, event, epoch)
    }

    /// Carries out `event`. `epoch` is the epoch of the peer's word or of the arbiter's answer that caused the event. After a failed
    /// consent, it is the epoch from before the consent. It is 0 if the event needs no epoch.
    fn change(&mut self, now: Instant, event: RoleEvent, epoch: u64) -> Option<RoleChange> {
        let from = self.role;
        let to = from.after(event)?;
        self.epoch = match (event, to) {
            (RoleEvent::Begins | RoleEvent::PeerReturns, _) => self.epoch.max(epoch) + 1,
            (RoleEvent::PeerServes | RoleEvent::Consented | RoleEvent::ConsentFailed, _) => epoch,
            (RoleEvent::PeerSpeaks | RoleEvent::PeerBack, _) => self.epoch.max(epoch),
            (RoleEvent::Reached, _) => self.epoch + 1,
            (
                RoleEvent::Alone
                | RoleEvent::PeerSilent
                | RoleEvent::PeerYields
                | RoleEvent::PeerLeaves
                | RoleEvent::Withdrawn
                | RoleEvent::Failed
                | RoleEvent::Decided,
                to,
            ) => self.epoch + u64::from(to == Role::TakingOver),
        };
        let is_fence = self.config.arbiter == Arbiter::Fence;
        match event {
            RoleEvent::PeerSilent if from == Role::Backup => self.delay_fence(now),
            RoleEvent::PeerSilent => self.delay_fence(self.granted_until.map_or(now, |free| free.max(now))),
            RoleEvent::PeerLeaves => {
                self.granted_until = Some(now); // the wire has promised to take nothing over
                self.confirmed = is_fence.then_some(self.epoch + 1);
            }
            RoleEvent::PeerBack
                if from == Role::Claiming && self.confirmed == Some(self.epoch + 1) && !is_fence =>
            {
                self.epoch += 1; // the epoch that the arbiter gave, in which this node has said nothing
            }
            RoleEvent::PeerBack => self.confirmed = None, // the promise is over
            // The primary is alive and will say that it is mute, so it need not be fenced immediately.
            RoleEvent::PeerYields if is_fence => self.ask_at = now + self.config.lease / 2,
            RoleEvent::Begins
            | RoleEvent::Alone
            | RoleEvent::PeerSpeaks
            | RoleEvent::PeerServes
            | RoleEvent::PeerReturns
            | RoleEvent::Consented
            | RoleEvent::PeerYields
            | RoleEvent::Withdrawn
            | RoleEvent::Failed
            | RoleEvent::ConsentFailed
            | RoleEvent::Reached
            | RoleEvent::Decided => {}
        }
        if to != Role::TakingOver && to != Role::Sole {
            self.lease_until = None;
            (self.has_asked, self.is_wanted, self.delayed) = (false, false, None);
        }
        if from != to {
            self.leave_direct();
        }
        if !from.is_mute() && to.is_mute() {
            self.mute_since = now;
        }
        if matches!(from, Role::Primary | Role::Claiming) && to == Role::Standby {
            self.arrived_at = now + ON_THE_WAY;
        }
        self.is_unconfirmed = false;
        self.role = to;
        self.grant(now);
        Some(RoleChange { from, to, event })
    }
}
