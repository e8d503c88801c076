//! The consequences of the peer's words, of time and of changes of role.

use std::time::Duration;

use super::{Service, Unfollowed};
use crate::Instant;
use crate::action::{ApplicationState, Gate, OperatorReport, ServiceAction, ServiceBeat};
use crate::claim::Claim;
use crate::detector::Detector;
use crate::path::Reachability;
use crate::role::{Role, RoleEvent, RoleSince};
use crate::standing::{Arbiter, ArbiterVerdict, RoleChange, StandingBeat};
use crate::state_sync::StateSyncEvent;
use crate::takeover::Takeover;

/// Time that a wire which is to leave has to bring the connections of annexes back to the primary.
const BRING_BACK_MAX: Duration = Duration::from_secs(3);

impl Service {
    /// The peer's word about this service. `echo` is when this agent sent the last of its heartbeats that the peer has heard.
    pub(crate) fn on_beat(
        &mut self,
        peer: &Detector,
        now: Instant,
        echo: Option<Instant>,
        beat: ServiceBeat,
    ) {
        if self.is_contradicted(&beat) {
            self.peer = Some(beat);
            return;
        }
        self.look_for_two_voices(&beat);
        if echo.is_some() {
            self.hear_of_adopted(now, beat.adopted);
        }
        self.hear_of_orphans(now, &beat);
        self.hear_of_migrations(now, &beat);
        self.hear_of_take_backs(now, &beat);
        let is_bereft = !self.may_speak_beside() && !beat.orphans.clients.is_empty();
        // A peer whose application is in a worse state than this node's counts as one that yields.
        let is_worse =
            (is_bereft || beat.server != ApplicationState::Alive) && self.server == ApplicationState::Alive;
        let mut word = StandingBeat {
            role: beat.role,
            epoch: beat.epoch,
            leaves: beat.leaves,
            // While this node takes over a dead worker's connections, it ignores that the peer yields. The peer will repeat that it yields.
            yields: (beat.leaves || beat.hands_over || is_worse) && !self.is_busy(),
            echo,
            direct: beat.direct,
        };
        self.path.on_word(now, beat.path);
        self.peer = Some(beat);
        self.judge_path(peer, now);
        self.hear_confirmation(&word);
        word.leaves &= !self.waits_for_confirmation(&word);
        if matches!(word.role, Role::Backup | Role::Returning) {
            self.claim_beside_mute(now);
        }
        let before = self.standing.until();
        // A node that is deposed by this word can return on the same word.
        while let Some(change) = self.standing.on_word(now, &word) {
            self.follow(now, Some(change));
        }
        self.hear_after_interruption(&word);
        self.judge_direct(now);
        let (role, until) = (self.standing.role(), self.standing.until());
        // The word may have extended a wire's lease. For a node that speaks alone, the word may have moved or removed the time at
        // which its right to speak ends.
        if role == Role::Backup || role.speaks_alone() && until != before {
            self.actions.push_back(ServiceAction::SetUntil { until });
        }
    }

    fn is_contradicted(&mut self, beat: &ServiceBeat) -> bool {
        let is_contradicted = beat.configured_primary == self.config.is_primary;
        if is_contradicted && !std::mem::replace(&mut self.alarms.is_contradicted, true) {
            let what = "both nodes are, or neither is, the configured primary".into();
            self.report(OperatorReport::Contradiction { what });
        }
        is_contradicted
    }

    fn look_for_two_voices(&mut self, beat: &ServiceBeat) {
        let epoch = self.standing.epoch();
        let are_two = self.role().speaks_alone() && beat.role.speaks_alone() && beat.epoch == epoch;
        if are_two && !std::mem::replace(&mut self.alarms.are_two_voices, true) {
            self.report(OperatorReport::TwoVoices { epoch });
        }
    }

    /// Whether a wire may speak for some connections beside a living primary. The wire's lease gives the wire this right. In a
    /// configuration without leases, the wire takes over all connections instead.
    pub(super) fn may_speak_beside(&self) -> bool {
        !self.standing.config().lease.is_zero()
    }

    /// An outside host answered what [`ServiceAction::Announce`] asked, or the wire has given the VIP up and no answer is needed any more.
    pub(super) fn on_reached(&mut self, peer: &Detector, now: Instant) {
        let patience = match self.standing.config().arbiter {
            Arbiter::FailStop => peer.config().patience(),
            // The arbiter has given this node the epoch, so the peer does not speak in it.
            Arbiter::Fence | Arbiter::Witness => Duration::ZERO,
        };
        if self.role() != Role::Claiming {
            return;
        }
        let claim = self.claim.as_mut().filter(|claim| claim.is_begun());
        if claim.is_some_and(|claim| claim.on_answer(now, patience)) {
            let change = self.standing.on_reached(now);
            self.follow(now, change);
        }
    }

    /// The peer is heard as a backup or as a returning node. If an outside host has answered this node's claim, clients' packets bypass the
    /// peer's log, so the peer cannot go on as the wire: completes the claim.
    fn claim_beside_mute(&mut self, now: Instant) {
        if self.claim.as_ref().is_some_and(Claim::is_answered) {
            let change = self.standing.on_reached(now);
            self.follow(now, change);
        }
    }

    /// The arbiter's answer to [`ServiceAction::Confirm`].
    pub(super) fn on_verdict(&mut self, now: Instant, epoch: u64, verdict: ArbiterVerdict) {
        let (had_end, before) = (self.standing.until().is_some(), self.standing.epoch());
        let change = self.standing.on_verdict(now, epoch, verdict);
        if change.is_none() && had_end && self.standing.until().is_none() {
            let until = None; // the gate stays as it is
            self.actions.push_back(ServiceAction::SetUntil { until });
        }
        if change.is_none() && self.role() != Role::Joining && self.standing.epoch() != before {
            self.set_gate(self.gate); // the same gate, in the new epoch
            self.tell_role(now, self.role());
        }
        self.follow(now, change);
    }

    /// The operator wants the nodes to swap roles. The caller has checked that they can.
    pub(crate) fn swap_roles(&mut self, now: Instant) {
        if self.role() == Role::Primary {
            self.leaving.hands_over = true;
            self.tell_peer(now);
        } else {
            let change = self.standing.on_handover(now);
            self.follow(now, change);
        }
    }

    /// The operator wants this node to have no part in the service, or to have one again.
    pub(super) fn on_leave(&mut self, now: Instant, leaves: bool) {
        self.leaving.is_withdrawn = leaves;
        self.leaving.brings_back_until = leaves.then_some(now + BRING_BACK_MAX);
        self.order_all_guests_back(now);
        self.tell_part(now);
    }

    /// The clock stood still until `now`, so this node's lease may have ended unnoticed. This node has a lease again when the peer has
    /// echoed a heartbeat that was sent after `now`. Until then, this node asks the arbiter before it speaks. If this node has granted the
    /// peer a lease, this node now expects the end of that lease later than the peer itself does. That is safe.
    pub(crate) fn on_pause(&mut self, now: Instant) {
        self.standing.on_pause(now);
        self.judge_direct(now);
        let until = self.standing.until();
        if until.is_some() {
            self.actions.push_back(ServiceAction::SetUntil { until });
        }
    }

    /// Time has passed: does all that is due, except what the peer's silence requires ([`on_silent`](Self::on_silent)).
    pub(crate) fn on_timeout(&mut self, peer: &Detector, now: Instant) {
        self.table.prove(now);
        self.ask_about_older(now);
        self.expire_sync(now);
        self.expire_replicas(now);
        self.look_at_path(peer, now);
        self.repeats.on_timeout(now, &mut self.actions);
        self.send_snapshots(now);
        self.expire_migrations(now);
        if let Some(takeover) = &mut self.takeover {
            takeover.on_timeout(now);
        }
        self.failure.on_timeout(now, &mut self.actions);
        self.standing.on_timeout(now);
        let change = self.standing.on_output_ended(now);
        self.follow(now, change);
        self.judge_direct(now);
        self.confirm(now);
        let may_claim = self.standing.may_claim(now);
        if let Some(claim) = self.claim.as_mut().filter(|claim| may_claim || claim.is_begun()) {
            claim.on_timeout(now, &mut self.actions);
        }
        if self.given_at().is_some_and(|at| now >= at) {
            self.on_reached(peer, now);
        }
    }

    /// The peer is silent. Returns whether the silence counts as the peer's death.
    pub(crate) fn on_silent(&mut self, peer: &Detector, now: Instant) -> bool {
        self.end_interruption(peer);
        let waits_for_agent = self.hears_kernel(peer, now) && self.waits_for_agent(peer, now);
        let may_miss = peer.has_heard() || self.expects_peer();
        // A node that takes over a dead worker's connections ignores the silence. If its lease has ended, it takes over all connections.
        let is_busy = self.is_busy() && !self.is_mute(now);
        let counts = may_miss && self.path.has_carrier() && !waits_for_agent && !is_busy;
        if counts {
            let change = self.standing.on_silent(now);
            self.follow(now, change);
        }
        counts
    }

    /// The peer has not been heard since the start, and the operator has allowed this node to serve without it.
    pub(crate) fn on_alone(&mut self, now: Instant) {
        if self.config.is_primary {
            let change = self.standing.on_alone(now);
            self.follow(now, change);
        }
    }

    /// Asks the arbiter, if a question is due.
    fn confirm(&mut self, now: Instant) {
        if let Some(epoch) = self.standing.ask(now) {
            self.actions.push_back(ServiceAction::Confirm { epoch });
        }
    }

    /// The application on this node is in this state now.
    pub(super) fn on_server(&mut self, now: Instant, server: ApplicationState) {
        let before = std::mem::replace(&mut self.server, server);
        if before == server {
            return;
        }
        self.tell_peer(now);
        if self.role() != Role::Backup {
            return;
        }
        if server == ApplicationState::Dead {
            self.sync(now, StateSyncEvent::Leave); // the copied state died with the server
        } else if before == ApplicationState::Dead {
            self.sync(now, StateSyncEvent::Begin);
        }
    }

    /// Carries out the consequences of a change of role.
    pub(super) fn follow(&mut self, now: Instant, change: Option<RoleChange>) {
        let Some(change) = change else { return };
        let RoleChange { from, to, .. } = change;
        let begins_anew = self.end_doubted(from, to) || from == Role::Joining;
        self.leaving.hands_over = false;
        if matches!(change.event, RoleEvent::Reached | RoleEvent::PeerReturns) {
            let lost = self.orphans.give_up();
            self.destroy(lost);
            self.outgoing.give_up();
        }
        if matches!(from, Role::Primary | Role::Backup) {
            self.outgoing.withdraw();
            self.end_lost();
        }
        if from == Role::Backup {
            self.incoming.clear();
            self.sync(now, StateSyncEvent::Leave);
        }
        match to {
            Role::Primary => {
                self.serve();
                if change.event == RoleEvent::PeerReturns {
                    self.take_reversed(now);
                    self.carried.begin(now);
                }
            }
            Role::Returning => self.offer(),
            Role::Backup => {
                self.claim = Some(Claim::announcing(now));
                self.set_gate(Gate::Wire);
                self.begin_census(now);
                self.sync(now, StateSyncEvent::Begin);
            }
            Role::Claiming => {
                self.claim(now, change);
                if begins_anew {
                    self.assume(Gate::Primary);
                }
            }
            Role::TakingOver => {
                self.orphans.forget_all_taken(); // from now on this node answers for all connections
                let frozen = self.reversed.take_here(); // those that live here go on without the detour
                self.set_gate(Gate::Takeover);
                self.thaw(frozen);
                // Ask now: until the arbiter has recorded the epoch, no other node can know that this node has spoken in it.
                self.confirm(now);
                let adoption = self.takeover.take();
                self.takeover = Some(Takeover::begin(now, adoption));
            }
            Role::Sole if from == Role::Claiming => {
                let claim = self.claim.as_mut().expect("it claimed");
                let is_given = claim.given_at().is_some();
                claim.on_reached(now);
                self.set_gate(Gate::Sole);
                if is_given {
                    self.actions.push_back(ServiceAction::TakeAddress);
                }
                self.take_reversed(now);
            }
            Role::Standby => self.stand_down(from.may_speak()),
            Role::Sole if from == Role::Primary => {
                self.set_gate(Gate::Sole);
                self.take_reversed(now);
            }
            Role::Sole | Role::Joining => {}
        }
        self.carry_or_forget(now, from);
        if from == Role::Backup {
            self.leave_annexes(); // after the gate, because an annex may send a RST when it ends a socket
        }
        self.tell_role(now, from);
    }

    /// The role or the epoch has just changed: records, reports and announces it.
    fn tell_role(&mut self, now: Instant, from: Role) {
        let epoch = self.standing.epoch();
        let role = self.role();
        self.roles.push(RoleSince { at: now, role, epoch });
        let report = OperatorReport::Role {
            from,
            to: role,
            epoch,
        };
        self.report(report);
        self.tell_peer(now);
    }

    pub(super) fn set_gate(&mut self, gate: Gate) {
        self.gate = gate;
        let (epoch, until) = (self.standing.epoch(), self.standing.until());
        self.actions
            .push_back(ServiceAction::SetGate { gate, epoch, until });
    }

    /// Sets up the network, then sets the gate.
    pub(super) fn assume(&mut self, gate: Gate) {
        let peer = self.peer.as_ref();
        let peer_mac = peer.map_or([0; 6], |peer| peer.mac);
        self.actions.push_back(ServiceAction::Assume { gate, peer_mac });
        self.set_gate(gate);
    }

    /// Serves through the peer's wire from now on.
    fn serve(&mut self) {
        self.claim = None;
        self.assume(Gate::Primary);
    }

    /// Becomes a wire that the peer does not use yet. The log begins anew, with what the peer says from now on. Records from before may
    /// be unread, because this agent may have been paused after it last read the log. So this node asks for them
    /// ([`ServiceAction::Drain`]), and [`on_drained`](Self::on_drained) forgets them when they have been read.
    fn offer(&mut self) {
        self.begin_log();
        self.actions.push_back(ServiceAction::Drain);
        self.tell_wire();
        self.assume(Gate::Wire);
    }

    /// Forgets everything that was logged.
    pub(super) fn begin_log(&mut self) {
        self.arrivals.clear();
        self.table.clear();
        self.unfollowed = Unfollowed::default();
    }

    /// Begins a claim, because no wire is heard, or the wire gives up its part. A wire that only fell silent may still have a lease, and
    /// may be deciding connections at this moment. So the claim may have to wait.
    fn claim(&mut self, now: Instant, change: RoleChange) {
        let peer = self.path.peer();
        let claim = match change.event {
            // The wire passes nothing on, so waiting gains nothing, and outside hosts can be asked immediately.
            RoleEvent::PeerLeaves if peer.outside == Reachability::Lost || peer.hears == Some(false) => {
                Claim::of_lost(now)
            }
            RoleEvent::PeerLeaves => Claim::of_given(now),
            _ => Claim::new(now),
        };
        self.claim = Some(claim);
    }

    /// Gives the service up to the peer: everything that is under way on this node is void.
    pub(super) fn stand_down(&mut self, is_deposed: bool) {
        self.claim = None;
        self.takeover = None;
        self.outgoing.give_up();
        self.outgoing.take_lost(); // their sockets are destroyed with all others
        self.incoming.clear();
        self.reversed.clear();
        self.orphans.clear(); // as are the orphans'
        self.repeats.clear();
        self.set_gate(Gate::Mute);
        self.actions.push_back(ServiceAction::StandDown { is_deposed });
    }
}
