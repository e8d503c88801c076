//! Roles of the services: heartbeats, time, the application's health, and the consequences of a change of role.

use std::time::Duration;

use super::view::Refusal;
use super::{Node, ROLES_MAX, RoleSince, Unfollowed};
use crate::Instant;
use crate::action::{Action, Echo, Gate, Heartbeat, Report, Server, ServiceBeat, ServiceIndex};
use crate::claim::Claim;
use crate::orphans;
use crate::path::Outside;
use crate::role::{Event, Role};
use crate::standing::{Arbiter, Change, Verdict, Word};
use crate::state_sync;
use crate::takeover::Takeover;

impl Node {
    /// The peer's sign of life.
    pub fn handle_heartbeat(&mut self, now: Instant, heartbeat: Heartbeat) {
        self.look_at_absence(now);
        let incarnation = heartbeat.incarnation;
        let is_known = self.echo.is_some_and(|last| last.incarnation == incarnation);
        if is_known && heartbeat.sequence < self.heard {
            return; // overtaken on its way
        }
        self.detector.on_heartbeat(now);
        for service in &mut self.services {
            service.path.on_heartbeat();
        }
        self.heard = heartbeat.sequence;
        let sent = heartbeat.sent;
        self.echo = Some(Echo { incarnation, sent });
        if !is_known {
            for service in &mut self.services {
                service.hearing.begin(incarnation);
            }
            self.send_heartbeat(now); // a new peer should not have to wait for the next one
        }
        let echo = heartbeat
            .echo
            .filter(|echo| echo.incarnation == self.config.incarnation)
            .map(|echo| Instant::from_nanos(echo.sent))
            .filter(|sent| *sent <= now);
        for beat in heartbeat.services {
            let Some(index) = self
                .indices()
                .find(|&index| self.service(index).table.config().vip == beat.vip)
            else {
                continue;
            };
            if self.is_contradicted(index, &beat) {
                self.services[usize::from(index)].peer = Some(beat);
                continue;
            }
            self.look_for_two_voices(index, &beat);
            if echo.is_some() {
                self.hear_of_adopted(now, index, beat.adopted);
            }
            self.hear_of_orphans(now, index, &beat);
            let is_bereft = !self.may_speak_beside() && !beat.orphans.clients.is_empty();
            let service = &mut self.services[usize::from(index)];
            // Yielding helps only if the application on this node is better.
            let is_worse = (is_bereft || beat.server != Server::Alive) && service.server == Server::Alive;
            let word = Word {
                role: beat.role,
                epoch: beat.epoch,
                leaves: beat.leaves,
                // The connections of a dead worker come first. The peer will repeat that it yields.
                yields: (beat.leaves || beat.hands_over || is_worse) && !service.is_busy(),
                echo,
            };
            let path = beat.path;
            service.peer = Some(beat);
            self.hear_of_path(now, index, path);
            self.hear_confirmation(index, &word);
            if matches!(word.role, Role::Backup | Role::Returning) {
                self.claim_beside_mute(now, index);
            }
            let before = self.services[usize::from(index)].standing.until();
            // A node that is deposed by this word can return on the same word.
            while let Some(change) = self.services[usize::from(index)].standing.on_word(now, &word) {
                self.follow(now, index, Some(change));
            }
            self.hear_after_interruption(index, &word);
            let standing = &self.services[usize::from(index)].standing;
            let (role, until) = (standing.role(), standing.until());
            // The word may have extended a wire's lease. For a node that speaks alone, the word may have moved or removed the time at
            // which its right to speak ends.
            if role == Role::Backup || role.speaks_alone() && until != before {
                let service = index;
                self.actions.push_back(Action::SetUntil { service, until });
            }
        }
    }

    fn is_contradicted(&mut self, index: ServiceIndex, beat: &ServiceBeat) -> bool {
        let service = &mut self.services[usize::from(index)];
        let is_contradicted = beat.configured_primary == service.config.is_primary;
        if is_contradicted && !std::mem::replace(&mut service.is_contradicted, true) {
            let what = "both nodes are, or neither is, the configured primary".into();
            let report = Report::Contradiction { service: index, what };
            self.actions.push_back(Action::Report(report));
        }
        is_contradicted
    }

    fn look_for_two_voices(&mut self, index: ServiceIndex, beat: &ServiceBeat) {
        let service = &mut self.services[usize::from(index)];
        let epoch = service.standing.epoch();
        let are_two = service.role().speaks_alone() && beat.role.speaks_alone() && beat.epoch == epoch;
        if are_two && !std::mem::replace(&mut service.is_alarmed, true) {
            let report = Report::TwoVoices {
                service: index,
                epoch,
            };
            self.actions.push_back(Action::Report(report));
        }
    }

    /// Whether a wire may speak for some connections beside a living primary. It does so by its lease. Without a lease it takes over all
    /// connections.
    pub(super) const fn may_speak_beside(&self) -> bool {
        !self.config.lease.is_zero()
    }

    /// The peer's kernel answered a probe.
    pub fn handle_answer(&mut self, now: Instant) {
        self.detector.on_traffic(now);
    }

    /// An outside host answered what [`Action::Announce`] asked.
    pub fn handle_reached(&mut self, now: Instant, index: ServiceIndex) {
        let patience = match self.config.arbiter {
            Arbiter::FailStop => self.config.detector.patience(),
            // The arbiter has given this node the epoch, so the peer does not speak in it.
            Arbiter::Fence | Arbiter::Witness => Duration::ZERO,
        };
        let service = &mut self.services[usize::from(index)];
        if service.role() != Role::Claiming {
            return;
        }
        let claim = service.claim.as_mut().filter(|claim| claim.is_begun());
        if claim.is_some_and(|claim| claim.on_answer(now, patience)) {
            let change = service.standing.on_reached(now);
            self.follow(now, index, change);
        }
    }

    /// The peer is heard, and it is mute. If an outside host has answered, clients' packets bypass the peer's log, so the peer cannot go on
    /// as the wire.
    fn claim_beside_mute(&mut self, now: Instant, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if service.claim.as_ref().is_some_and(Claim::is_answered) {
            let change = service.standing.on_reached(now);
            self.follow(now, index, change);
        }
    }

    /// The arbiter's answer to [`Action::Confirm`].
    pub fn handle_verdict(&mut self, now: Instant, index: ServiceIndex, epoch: u64, verdict: Verdict) {
        let service = &mut self.services[usize::from(index)];
        let (had_end, before) = (service.standing.until().is_some(), service.standing.epoch());
        let change = service.standing.on_verdict(now, epoch, verdict);
        if change.is_none() && had_end && service.standing.until().is_none() {
            let (service, until) = (index, None); // the gate stays as it is
            self.actions.push_back(Action::SetUntil { service, until });
        }
        if change.is_none() && service.role() != Role::Joining && service.standing.epoch() != before {
            let service = self.service(index);
            let (gate, role) = (service.gate, service.role());
            self.set_gate(index, gate); // the same gate, in the new epoch
            self.tell_role(now, index, role);
        }
        self.follow(now, index, change);
    }

    /// The operator wants the nodes to swap roles for a service: this node is its primary and is to become the backup, or the reverse.
    ///
    /// # Errors
    /// Why the roles cannot be swapped.
    pub fn handle_handover(&mut self, now: Instant, index: ServiceIndex) -> Result<(), Refusal> {
        if let Some(why) = self.cannot_hand_over(now, index) {
            return Err(why);
        }
        let service = &mut self.services[usize::from(index)];
        if service.role() == Role::Primary {
            service.hands_over = true;
            self.send_heartbeat(now);
        } else {
            let change = service.standing.on_handover(now);
            self.follow(now, index, change);
        }
        Ok(())
    }

    /// The operator wants this node to have no part in a service, or to have one again.
    pub fn handle_leave(&mut self, now: Instant, index: ServiceIndex, leaves: bool) {
        self.services[usize::from(index)].is_withdrawn = leaves;
        self.tell_part(now, index);
    }

    /// Time has passed: sends heartbeats, notices missing ones, and does all else that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.turn.renew(now);
        self.look_at_absence(now);
        if now >= self.beat_due {
            self.beat_due = now + self.config.detector.interval;
            self.send_heartbeat(now);
        }
        for index in self.indices() {
            self.services[usize::from(index)].table.prove(now);
            self.ask_about_older(now, index);
        }
        self.expire_syncs(now);
        self.expire_replicas(now);
        for index in self.indices() {
            self.look_at_path(now, index);
            let service = &mut self.services[usize::from(index)];
            service.repeats.on_timeout(now, &mut self.actions);
            if let Some(takeover) = &mut service.takeover {
                takeover.on_timeout(now);
            }
            service.failure.on_timeout(now, index, &mut self.actions);
            service.standing.on_timeout(now);
            self.confirm(now, index);
            let service = &mut self.services[usize::from(index)];
            let may_claim = service.standing.may_claim(now);
            if let Some(claim) = service
                .claim
                .as_mut()
                .filter(|claim| may_claim || claim.is_begun())
            {
                claim.on_timeout(now, index, &mut self.actions);
            }
            if service.given_at().is_some_and(|at| now >= at) {
                self.handle_reached(now, index);
            }
        }
        let waits = self.indices().any(|index| self.waits_for_agent(now, index));
        if self.detector.wants_probe(now) || waits && self.detector.wants_answer(now) {
            self.actions.push_back(Action::Probe);
        }
        let hears_kernel = self.detector.hears_kernel(now);
        let (is_silent, is_alone) = (self.detector.is_silent(now), self.is_alone(now));
        let has_heard = self.detector.has_heard();
        for index in self.indices() {
            if is_silent {
                self.end_interruption(index);
            }
            let waits_for_agent = hears_kernel && self.waits_for_agent(now, index);
            let service = &mut self.services[usize::from(index)];
            let may_miss = has_heard || service.expects_peer();
            // A takeover of a dead worker's connections that has lost its lease does not keep the node from taking over all.
            let is_busy = service.is_busy() && !service.is_mute(now);
            let is_missed = is_silent && may_miss && service.path.has_carrier() && !waits_for_agent;
            let change = if is_missed && !is_busy {
                service.standing.on_silent(now)
            } else if is_alone && service.config.is_primary {
                service.standing.on_alone(now)
            } else {
                continue;
            };
            self.follow(now, index, change);
        }
    }

    /// Asks the arbiter, if a question is due.
    fn confirm(&mut self, now: Instant, index: ServiceIndex) {
        if let Some(epoch) = self.services[usize::from(index)].standing.ask(now) {
            let service = index;
            self.actions.push_back(Action::Confirm { service, epoch });
        }
    }

    /// Whether the peer has not been heard since the start, and the operator has allowed this node to serve without it.
    fn is_alone(&self, now: Instant) -> bool {
        self.config.without_peer
            && !self.detector.has_heard()
            && now.since(self.since) >= self.config.detector.patience() + self.config.lease
    }

    /// The application on this node is in this state now.
    pub fn handle_server(&mut self, now: Instant, index: ServiceIndex, server: Server) {
        let service = &mut self.services[usize::from(index)];
        if std::mem::replace(&mut service.server, server) != server {
            self.send_heartbeat(now); // at once, not in the usual rhythm
        }
    }

    /// The operator wants this node to stop, so the peer is to go on without it. See [`is_free`](Self::is_free).
    pub fn handle_stop(&mut self, now: Instant) {
        for index in self.indices() {
            self.handle_leave(now, index, true);
        }
    }

    /// Whether this node can stop now without losing anything that waiting could keep.
    pub fn is_free(&self, now: Instant) -> bool {
        let alive = self.detector.is_alive(now);
        self.services.iter().all(|service| match service.role() {
            Role::Joining | Role::Returning | Role::Standby | Role::Sole => true,
            Role::Primary | Role::Claiming | Role::Backup => !alive,
            Role::TakingOver => false,
        })
    }

    pub(super) fn send_heartbeat(&mut self, now: Instant) {
        self.beat_sequence += 1;
        let orphans = orphans::share(self.services.iter().map(|service| &service.telling));
        let services = self
            .services
            .iter()
            .zip(orphans)
            .map(|(service, orphans)| ServiceBeat {
                vip: service.table.config().vip,
                role: service.role(),
                epoch: service.standing.epoch(),
                configured_primary: service.config.is_primary,
                mac: service.config.mac,
                server: service.server,
                leaves: service.standing.says_that_it_leaves(),
                hands_over: service.hands_over,
                orphans,
                adopted: service.hearing.adopted(),
                path: Some(service.path_told),
            })
            .collect();
        let heartbeat = Heartbeat {
            node: self.config.name.clone(),
            incarnation: self.config.incarnation,
            sequence: self.beat_sequence,
            sent: now.as_nanos(),
            echo: self.echo,
            services,
        };
        self.actions.push_back(Action::Send(heartbeat));
    }

    /// Carries out the consequences of a change of role.
    pub(super) fn follow(&mut self, now: Instant, index: ServiceIndex, change: Option<Change>) {
        let Some(change) = change else { return };
        let Change { from, to, .. } = change;
        let begins_anew = self.end_doubted(index, from, to) || from == Role::Joining;
        let service = &mut self.services[usize::from(index)];
        service.hands_over = false;
        if matches!(change.event, Event::Reached | Event::PeerReturns) {
            let lost = service.telling.give_up();
            self.destroy(index, lost);
        }
        if from == Role::Backup {
            self.sync(now, index, state_sync::Event::Leave);
        }
        let service = &mut self.services[usize::from(index)];
        match to {
            Role::Primary => self.serve(index),
            Role::Returning => self.offer(index),
            Role::Backup => {
                service.claim = Some(Claim::announcing(now));
                self.set_gate(index, Gate::Wire);
                self.begin_census(now, index);
                self.sync(now, index, state_sync::Event::Begin);
            }
            Role::Claiming => {
                self.claim(now, index, change);
                if begins_anew {
                    self.assume(index, Gate::Primary);
                }
            }
            Role::TakingOver => {
                service.taken.clear(); // from now on this node answers for all connections
                let begun = self.set_aside_steps(index);
                self.set_gate(index, Gate::Takeover);
                self.confirm(now, index); // at once: if this node dies before the answer, no other node knows what it has said
                let adoption = self.services[usize::from(index)].takeover.take();
                let takeover = Takeover::begin(now, index, adoption, &begun, &mut self.actions);
                self.services[usize::from(index)].takeover = Some(takeover);
                self.actions.extend(begun);
            }
            Role::Sole if from == Role::Claiming => {
                let claim = service.claim.as_mut().expect("it claimed");
                let is_given = claim.given_at().is_some();
                claim.on_reached(now);
                self.set_gate(index, Gate::Sole);
                if is_given {
                    self.actions.push_back(Action::TakeAddress { service: index });
                }
            }
            Role::Standby => self.stand_down(index, from.may_speak()),
            Role::Sole if from == Role::Primary => self.set_gate(index, Gate::Sole),
            Role::Sole | Role::Joining => {}
        }
        self.tell_role(now, index, from);
    }

    /// The role or the epoch has just changed: records, reports and announces it.
    fn tell_role(&mut self, now: Instant, index: ServiceIndex, from: Role) {
        let service = &mut self.services[usize::from(index)];
        let epoch = service.standing.epoch();
        if service.roles.len() == ROLES_MAX {
            service.roles.pop_front();
        }
        let (at, role) = (now, service.role());
        service.roles.push_back(RoleSince { at, role, epoch });
        let report = Report::Role {
            service: index,
            from,
            to: role,
            epoch,
        };
        self.actions.push_back(Action::Report(report));
        self.send_heartbeat(now); // the peer should know at once
    }

    pub(super) fn set_gate(&mut self, index: ServiceIndex, gate: Gate) {
        let service = &mut self.services[usize::from(index)];
        service.gate = gate;
        let (epoch, until) = (service.standing.epoch(), service.standing.until());
        self.actions.push_back(Action::SetGate {
            service: index,
            gate,
            epoch,
            until,
        });
    }

    /// Sets up the network, then sets the gate.
    pub(super) fn assume(&mut self, index: ServiceIndex, gate: Gate) {
        let peer = self.service(index).peer.as_ref();
        let peer_mac = peer.map_or([0; 6], |peer| peer.mac);
        self.actions.push_back(Action::Assume {
            service: index,
            gate,
            peer_mac,
        });
        self.set_gate(index, gate);
    }

    /// Serves through the peer's wire from now on.
    fn serve(&mut self, index: ServiceIndex) {
        self.services[usize::from(index)].claim = None;
        self.assume(index, Gate::Primary);
    }

    /// Becomes a wire that the peer does not use yet. The log begins anew, with what the peer says from now on.
    fn offer(&mut self, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        service.table.clear();
        service.unfollowed = Unfollowed::default();
        self.tell_wire(index);
        self.assume(index, Gate::Wire);
    }

    /// Begins a claim, because there is no wire. If the wire only fell silent, the claim may have to wait: that wire may still have a
    /// lease, and may be deciding connections at this moment.
    fn claim(&mut self, now: Instant, index: ServiceIndex, change: Change) {
        let peer = self.service(index).path.peer();
        let claim = match change.event {
            // The wire passes nothing on, so waiting gains nothing, and outside hosts can be asked at once.
            Event::PeerLeaves if peer.outside == Outside::Lost || peer.hears == Some(false) => {
                Claim::of_lost(now)
            }
            Event::PeerLeaves => Claim::of_given(now),
            _ => Claim::new(now),
        };
        self.services[usize::from(index)].claim = Some(claim);
    }

    /// Gives the service up to the peer: everything that is under way here is void.
    pub(super) fn stand_down(&mut self, index: ServiceIndex, is_deposed: bool) {
        let service = &mut self.services[usize::from(index)];
        service.claim = None;
        service.takeover = None;
        service.orphans.clear();
        service.telling.give_up(); // the orphans' sockets are destroyed with all others
        service.taken.clear();
        service.repeats.clear();
        self.actions.retain(|action| {
            !matches!(action,
                Action::Restore { service, .. }
                | Action::MakeReady { service, .. }
                | Action::Activate { service, .. }
                | Action::HandOver { service, .. } if *service == index)
        });
        self.set_gate(index, Gate::Mute);
        self.actions.push_back(Action::StandDown {
            service: index,
            is_deposed,
        });
    }
}
