//! Who does what: heartbeats, time, the health of the application, and what changes of role bring about.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Node, Service};
use crate::Instant;
use crate::action::{Action, Gate, Heartbeat, Report, Server, ServiceBeat, ServiceIndex};
use crate::claim::Claim;
use crate::role::{Event, Role};
use crate::takeover::Takeover;

/// The role of an agent that left `gate` behind. One that died while it decided connections has lost those; it speaks alone.
pub(super) fn behind(gate: Gate, epoch: u64) -> Role {
    match gate {
        Gate::Off => Role::Joining,
        Gate::Mute if epoch == 0 => Role::Joining,
        Gate::Wire => Role::Backup,
        Gate::Takeover | Gate::Sole => Role::Sole,
        Gate::Primary => Role::Primary,
        Gate::Mute => Role::Standby,
    }
}

impl Node {
    /// The peer's sign of life.
    pub fn handle_heartbeat(&mut self, now: Instant, heartbeat: Heartbeat) {
        self.detector.on_heartbeat(now);
        let incarnation = heartbeat.incarnation;
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
            self.hear_of_orphans(now, index, incarnation, &beat);
            let service = &mut self.services[usize::from(index)];
            let event = event_of(service, &beat);
            service.peer = Some(beat);
            if let Some(event) = event {
                self.transition(now, index, event);
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
        let are_two = service.role.speaks_alone() && beat.role.speaks_alone() && beat.epoch == service.epoch;
        if are_two && !std::mem::replace(&mut service.is_alarmed, true) {
            let epoch = service.epoch;
            let report = Report::TwoVoices {
                service: index,
                epoch,
            };
            self.actions.push_back(Action::Report(report));
        }
    }

    fn hear_of_orphans(&mut self, now: Instant, index: ServiceIndex, incarnation: u64, beat: &ServiceBeat) {
        let service = &mut self.services[usize::from(index)];
        let mut answers = service.telling.on_adopted(beat.adopted);
        if service.role == Role::Backup && beat.role == Role::Primary {
            let new = service.hearing.take(incarnation, &beat.orphans);
            answers |= !new.is_empty();
            service.orphans.extend(new);
        }
        self.adopt_orphans(now, index);
        if answers {
            self.send_heartbeat();
        }
    }

    /// The peer's kernel answered a probe.
    pub fn handle_answer(&mut self, now: Instant) {
        self.detector.on_traffic(now);
    }

    /// An outside host answered what [`Action::Announce`] asked.
    pub fn handle_reached(&mut self, now: Instant, index: ServiceIndex) {
        self.transition(now, index, Event::Reached);
    }

    /// Time has passed: heartbeats are sent and missed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now >= self.beat_due {
            self.beat_due = now + self.config.detector.interval;
            self.send_heartbeat();
        }
        for (index, service) in (0..).zip(&mut self.services) {
            service.repeats.on_timeout(now, &mut self.actions);
            if let Some(claim) = &mut service.claim {
                claim.on_timeout(now, index, &mut self.actions);
            }
        }
        if self.detector.wants_probe(now) {
            self.actions.push_back(Action::Probe);
        }
        let event = if self.detector.is_silent(now) {
            Event::PeerSilent
        } else if self.is_alone(now) {
            Event::Alone
        } else {
            return;
        };
        for index in self.indices() {
            if event != Event::Alone || self.service(index).config.is_primary {
                self.transition(now, index, event);
            }
        }
    }

    /// Whether nobody was heard of since the start, and the operator said that this may be.
    fn is_alone(&self, now: Instant) -> bool {
        self.config.without_peer
            && !self.detector.has_heard()
            && now.since(self.since) >= self.config.detector.patience() + self.config.lease
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Instant {
        let of_service = |service: &Service| {
            let claim = service.claim.as_ref().and_then(Claim::poll_timeout);
            [service.repeats.poll_timeout(), claim]
        };
        let services = self.services.iter().flat_map(of_service).flatten();
        services.fold(self.beat_due.min(self.detector.poll_timeout()), Instant::min)
    }

    /// Whether this node's cables should be looked at now: the peer's silence may be theirs.
    pub fn wants_link(&self, now: Instant) -> bool {
        self.detector.is_late(now) || self.services.iter().any(|service| !service.has_link)
    }

    /// Whether this node's cable for a service carries a signal. Without one it hears nobody, and that is not the others' fault:
    /// it declares nobody dead until it has had the time to hear of them again.
    pub fn handle_link(&mut self, now: Instant, index: ServiceIndex, has_link: bool) {
        let service = &mut self.services[usize::from(index)];
        let had_link = std::mem::replace(&mut service.has_link, has_link);
        if has_link && !had_link {
            self.detector.excuse(now);
        }
    }

    /// How the application on this node is now.
    pub fn handle_server(&mut self, index: ServiceIndex, server: Server) {
        let service = &mut self.services[usize::from(index)];
        if std::mem::replace(&mut service.server, server) != server {
            self.send_heartbeat(); // at once, not in the usual rhythm
        }
    }

    /// The processes of these clients' connections died on this node, but the service lives.
    pub fn handle_orphans(&mut self, index: ServiceIndex, clients: impl IntoIterator<Item = SocketAddr>) {
        let service = &mut self.services[usize::from(index)];
        if service.role != Role::Primary {
            return; // there is no wire that knows them
        }
        let told = clients
            .into_iter()
            .filter(|&client| service.telling.add(client))
            .count();
        if told > 0 {
            self.send_heartbeat();
        }
    }

    /// The operator wants this node to stop: the peer is to go on without it. See [`is_free`](Self::is_free).
    pub fn handle_stop(&mut self) {
        self.leaves = true;
        self.send_heartbeat();
    }

    /// Whether nothing is lost by stopping now that could be kept by waiting.
    pub fn is_free(&self, now: Instant) -> bool {
        let alive = self.detector.is_alive(now);
        self.services.iter().all(|service| match service.role {
            Role::Joining | Role::Standby | Role::Sole => true,
            Role::Primary | Role::Claiming | Role::Backup => !alive,
            Role::TakingOver => false,
        })
    }

    pub(super) fn send_heartbeat(&mut self) {
        self.beat_sequence += 1;
        let services = self
            .services
            .iter()
            .map(|service| ServiceBeat {
                vip: service.table.config().vip,
                role: service.role,
                epoch: service.epoch,
                configured_primary: service.config.is_primary,
                mac: service.config.mac,
                server: service.server,
                leaves: self.leaves,
                orphans: service.telling.told(),
                adopted: service.hearing.adopted(),
            })
            .collect();
        let heartbeat = Heartbeat {
            node: self.config.name.clone(),
            incarnation: self.config.incarnation,
            sequence: self.beat_sequence,
            services,
        };
        self.actions.push_back(Action::Send(heartbeat));
    }

    pub(super) fn transition(&mut self, now: Instant, index: ServiceIndex, event: Event) {
        let service = &mut self.services[usize::from(index)];
        let from = service.role;
        if event == Event::PeerSilent && !service.has_link {
            return;
        }
        let Some(role) = from.after(event) else { return };
        let wants_takeover = role == Role::TakingOver;
        if wants_takeover && (self.leaves || service.takeover.is_some()) {
            return; // it has promised not to; or a few connections first, then it is asked again
        }
        service.role = role;
        match role {
            Role::Primary | Role::Backup => self.pair(index, from),
            Role::Claiming => self.claim(now, index, from, event),
            Role::TakingOver => {
                service.epoch += 1;
                service.taken.clear(); // from now on it answers for all
                let takeover = Takeover::begin(now, index, service.epoch, &mut self.actions);
                service.takeover = Some(takeover);
            }
            Role::Sole if from == Role::Claiming => {
                service.epoch += 1;
                if let Some(claim) = &mut service.claim {
                    claim.on_reached(now);
                }
                self.set_gate(index, Gate::Sole);
            }
            Role::Standby => self.stand_down(index),
            Role::Sole | Role::Joining => {}
        }
        let epoch = self.service(index).epoch;
        let service = index;
        let report = Report::Role {
            service,
            from,
            to: role,
            epoch,
        };
        self.actions.push_back(Action::Report(report));
        self.send_heartbeat(); // the peer should know at once
    }

    fn set_gate(&mut self, index: ServiceIndex, gate: Gate) {
        let (service, epoch) = (index, self.service(index).epoch);
        self.actions.push_back(Action::SetGate { service, gate, epoch });
    }

    /// The pair is whole: network first, then the gate.
    fn pair(&mut self, index: ServiceIndex, from: Role) {
        let service = &mut self.services[usize::from(index)];
        let peer_mac = service.peer.as_ref().expect("paired by its heartbeat").mac;
        let (role, gate) = match service.role {
            Role::Primary => (Role::Primary, Gate::Primary),
            _ => (Role::Backup, Gate::Wire),
        };
        if service.claim.take().is_some_and(|claim| claim.is_begun()) {
            self.actions.push_back(Action::YieldAddress { service: index });
        }
        if from == Role::Joining {
            service.epoch = 1;
        }
        let service = index;
        self.actions.push_back(Action::Assume {
            service,
            role,
            peer_mac,
        });
        self.set_gate(index, gate);
    }

    /// The wire is gone, or never was. Its lease may still run: it may be deciding connections at this moment, unless it said
    /// that it will not.
    fn claim(&mut self, now: Instant, index: ServiceIndex, from: Role, event: Event) {
        let lease = match event {
            Event::PeerSilent => self.config.lease,
            _ => Duration::ZERO,
        };
        self.services[usize::from(index)].claim = Some(Claim::new(now + lease));
        if from == Role::Joining {
            self.actions.push_back(Action::Assume {
                service: index,
                role: Role::Claiming,
                peer_mac: [0; 6],
            });
            self.set_gate(index, Gate::Primary);
        }
    }

    /// The peer speaks alone: whatever was under way here is void.
    fn stand_down(&mut self, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        service.epoch = service.peer.as_ref().map_or(service.epoch, |peer| peer.epoch);
        service.claim = None;
        service.takeover = None;
        service.orphans.clear();
        service.taken.clear();
        self.actions.retain(|action| {
            !matches!(action,
                Action::Restore { service, .. }
                | Action::MakeReady { service, .. }
                | Action::Activate { service, .. }
                | Action::HandOver { service, .. } if *service == index)
        });
        self.set_gate(index, Gate::Mute);
        self.actions.push_back(Action::StandDown { service: index });
    }
}

/// What the peer's word about a service means for this node's role.
fn event_of(service: &Service, beat: &ServiceBeat) -> Option<Event> {
    let (role, peer) = (service.role, beat.role);
    if peer.speaks_alone() {
        // Of two that speak in the same epoch the configured primary goes on.
        let yields = role.speaks_alone() && beat.epoch == service.epoch && !service.config.is_primary;
        let is_later = beat.epoch > service.epoch || role == Role::Joining;
        return (is_later || yields).then_some(Event::PeerSpeaks);
    }
    match (role, peer) {
        (Role::Joining, Role::Standby) => None, // it held its tongue for someone who spoke alone: not for us to guess
        (Role::Joining, _) if service.config.is_primary => Some(Event::PairedAsPrimary),
        (Role::Joining, _) => Some(Event::PairedAsBackup),
        (Role::Claiming, Role::Backup) if !beat.leaves => Some(Event::PeerBack),
        (Role::Primary, Role::Backup) if beat.leaves => Some(Event::PeerLeaves),
        (Role::Backup, Role::Primary) if beat.leaves => Some(Event::PeerYields),
        // A server that is no better would not help.
        (Role::Backup, Role::Primary) if beat.server != Server::Alive && service.server == Server::Alive => {
            Some(Event::PeerYields)
        }
        _ => None,
    }
}
