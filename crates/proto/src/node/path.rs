//! The services' paths: evidence about them, and what a node does when one breaks ([`crate::path`]).

use std::time::Duration;

use super::{Node, Service};
use crate::Instant;
use crate::action::{Action, Server, ServiceIndex};
use crate::path::{self, Outside, PathWord, Step};
use crate::role::Role;

impl Service {
    /// Whether this node and the peer reach the outside. A node whose application does not live counts as cut off, because it could not
    /// serve clients. The application of this node does not matter while the nodes meet.
    fn sides(&self, now: Instant, meet: bool) -> (Outside, Outside) {
        let side = |outside, server| {
            if server == Server::Alive {
                outside
            } else {
                Outside::Lost
            }
        };
        let peer_server = self.peer.as_ref().map_or(Server::Alive, |peer| peer.server);
        let own = self.path.outside(now);
        let peer = side(self.path.peer().outside, peer_server);
        // While the nodes meet, a backup is only the wire, and a wire needs no application.
        (if meet { own } else { side(own, self.server) }, peer)
    }

    fn step(&self, now: Instant) -> Step {
        let meet = self.path.meets(now);
        let (own, peer) = self.sides(now, meet);
        path::step(self.role(), meet, own, peer)
    }
}

impl Node {
    /// A heartbeat or a packet of the service came from the peer through the service's interface, at `at`.
    pub fn handle_sign(&mut self, at: Instant, index: ServiceIndex) {
        self.services[usize::from(index)].path.on_sign(at);
    }

    /// Sets whether one of the links to the peer uses the service's interface.
    pub fn handle_link_of(&mut self, index: ServiceIndex, has_link: bool) {
        self.services[usize::from(index)].path.set_link(has_link);
    }

    /// An outside host has answered a question of [`Action::AskOutside`] that was asked at `asked`.
    pub fn handle_outside(&mut self, now: Instant, index: ServiceIndex, asked: Instant) {
        self.services[usize::from(index)].path.on_answer(now, asked);
        self.judge_path(now, index);
    }

    /// There is no host that [`Action::AskOutside`] could ask.
    pub fn handle_no_outside(&mut self, index: ServiceIndex) {
        self.services[usize::from(index)].path.on_nobody();
    }

    /// Whether this node's cables should be checked now, because a pulled cable may be the reason for silence.
    pub fn wants_link(&self, now: Instant) -> bool {
        let is_in_doubt = |service: &Service| service.path.outside(now) != Outside::Reached;
        self.detector.is_late(now) || self.services.iter().any(is_in_doubt)
    }

    /// Sets whether this node's cable for a service carries a signal. A node without a signal hears nothing, although the peer may live.
    /// When the signal is back, the node gives the peer time to be heard again before it declares the peer dead. Returns whether the signal
    /// has just come back.
    pub fn handle_carrier(&mut self, now: Instant, index: ServiceIndex, has_carrier: bool) -> bool {
        let path = &mut self.services[usize::from(index)].path;
        let is_back = has_carrier && !path.has_carrier();
        path.set_carrier(now, has_carrier);
        if is_back {
            self.detector.excuse(now);
        }
        self.judge_path(now, index);
        is_back
    }

    /// Time has passed: asks outside hosts, and does what the path requires.
    pub(super) fn look_at_path(&mut self, now: Instant, index: ServiceIndex) {
        let is_late = self.detector.is_late(now);
        let path = &mut self.services[usize::from(index)].path;
        path.on_timeout(now, is_late);
        if path.asks(now) {
            let (service, since) = (index, path.distrusts());
            self.actions.push_back(Action::AskOutside { service, since });
        }
        self.judge_path(now, index);
    }

    /// Handles the peer's report about its side of the path.
    pub(super) fn hear_of_path(&mut self, now: Instant, index: ServiceIndex, word: Option<PathWord>) {
        self.services[usize::from(index)].path.on_word(now, word);
        self.judge_path(now, index);
    }

    fn judge_path(&mut self, now: Instant, index: ServiceIndex) {
        let is_alive = self.detector.is_alive(now);
        let service = &mut self.services[usize::from(index)];
        let word = service.path.word(now);
        let is_news = std::mem::replace(&mut service.path_told, word) != word;
        let fitness = service.path.fitness(now);
        let is_reached = service.path.is_reached(now);
        let change = service.standing.set_path(now, fitness, is_reached);
        self.follow(now, index, change);
        let service = &mut self.services[usize::from(index)];
        let serves = |peer: &crate::action::ServiceBeat| matches!(peer.role, Role::Primary | Role::Claiming);
        let is_partner = is_alive && service.peer.as_ref().is_some_and(serves);
        let step = service.step(now);
        match step {
            Step::Stay => {}
            // A wire in doubt waits until the primary has said that it did not go on alone.
            Step::TakeOver if is_partner && !service.is_busy() && service.doubted.is_none() => {
                let change = service.standing.on_handover(now);
                self.follow(now, index, change);
            }
            Step::GiveWay if is_partner && !service.gives_way => self.set_gives_way(now, index, true),
            Step::TakeOver | Step::GiveWay => {}
        }
        let service = &self.services[usize::from(index)];
        let is_over = service.role() != Role::Backup || service.path.is_steady(now) || step == Step::TakeOver;
        if service.gives_way && is_over {
            self.set_gives_way(now, index, false);
        }
        if is_news {
            self.send_heartbeat(now); // at once, not in the usual rhythm
        }
    }

    /// This wire leaves the VIP to the primary, or takes its part again.
    fn set_gives_way(&mut self, now: Instant, index: ServiceIndex, gives_way: bool) {
        let service = &mut self.services[usize::from(index)];
        service.gives_way = gives_way;
        self.tell_part(now, index);
    }

    /// Gives up this node's part in the service, or takes it again, as the operator and the path demand. Tells the peer.
    pub(super) fn tell_part(&mut self, now: Instant, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        let leaves = service.is_withdrawn || service.gives_way;
        let standing = &mut service.standing;
        let left = standing.leaves();
        let change = standing.set_leaves(now, leaves);
        let (role, is_back) = (standing.role(), left && !standing.leaves());
        if role == Role::Backup && is_back {
            // The primary may have gone on alone, because this node had said that it leaves. A heartbeat sent at `now` may still say so.
            self.begin_doubt(now + Duration::from_nanos(1), index);
        }
        if role == Role::Backup {
            // This node must stop speaking before the primary hears that this node leaves, because the primary then goes on alone.
            let (service, until) = (index, self.service(index).standing.until());
            self.actions.push_back(Action::SetUntil { service, until });
        }
        self.follow(now, index, change);
        self.send_heartbeat(now);
    }
}
