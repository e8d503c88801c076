//! A service's path: the evidence about it, and what a node does when the path breaks ([`crate::path`]).

use std::time::Duration;

use super::Service;
use crate::Instant;
use crate::action::{ApplicationState, ServiceAction, ServiceBeat};
use crate::detector::Detector;
use crate::path::{self, PathStep, Reachability};
use crate::role::Role;

impl Service {
    /// Returns whether this node and the peer reach outside hosts. A node whose application does not live counts as cut off, because it
    /// could not serve clients. If the nodes reach each other (`meet`), the application of this node does not matter.
    fn sides(&self, now: Instant, meet: bool) -> (Reachability, Reachability) {
        let side = |outside, server| {
            if server == ApplicationState::Alive {
                outside
            } else {
                Reachability::Lost
            }
        };
        let peer_server = self
            .peer
            .as_ref()
            .map_or(ApplicationState::Alive, |peer| peer.server);
        let own = self.path.outside(now);
        let peer = side(self.path.peer().outside, peer_server);
        // While the nodes meet, a backup is only the wire, and a wire needs no application.
        (if meet { own } else { side(own, self.server) }, peer)
    }

    fn step(&self, now: Instant) -> PathStep {
        let meet = self.path.meets(now);
        let (own, peer) = self.sides(now, meet);
        path::step(self.role(), meet, own, peer)
    }

    /// Whether this node's cable should be checked now, because a pulled cable may be why no outside host answers.
    pub(crate) fn wants_link(&self, now: Instant) -> bool {
        self.path.outside(now) != Reachability::Reached
    }

    /// Sets whether this node's cable for the service carries a signal. Returns whether the signal has just come back.
    pub(crate) fn set_carrier(&mut self, now: Instant, has_carrier: bool) -> bool {
        let is_back = has_carrier && !self.path.has_carrier();
        self.path.set_carrier(now, has_carrier);
        is_back
    }

    /// Time has passed: asks outside hosts, and does what the path requires.
    pub(super) fn look_at_path(&mut self, peer: &Detector, now: Instant) {
        self.path.on_timeout(now, peer.is_late(now));
        if self.path.asks(now) {
            let since = self.path.distrusts();
            self.actions.push_back(ServiceAction::AskOutside { since });
        }
        self.judge_path(peer, now);
    }

    /// Does what the evidence about the path requires.
    pub(crate) fn judge_path(&mut self, peer: &Detector, now: Instant) {
        let is_alive = peer.is_alive(now);
        let is_news = self.path.renew_word(now);
        let fitness = self.path.fitness(now);
        let is_reached = self.path.is_reached(now);
        let change = self.standing.set_path(now, fitness, is_reached);
        self.follow(now, change);
        let serves = |peer: &ServiceBeat| matches!(peer.role, Role::Primary | Role::Claiming);
        let is_partner = is_alive && self.peer.as_ref().is_some_and(serves);
        let step = self.step(now);
        match step {
            PathStep::Stay => {}
            // A wire in doubt waits until the primary has said that it did not go on alone.
            PathStep::TakeOver if is_partner && !self.is_busy() && !self.doubt.exists() => {
                let change = self.standing.on_handover(now);
                self.follow(now, change);
            }
            PathStep::GiveWay if is_partner && !self.leaving.gives_way => self.set_gives_way(now, true),
            PathStep::TakeOver | PathStep::GiveWay => {}
        }
        let is_over = self.role() != Role::Backup || self.path.is_steady(now) || step == PathStep::TakeOver;
        if self.leaving.gives_way && is_over {
            self.set_gives_way(now, false);
        }
        if is_news {
            self.tell_peer(now); // immediately, not only with the next regular heartbeat
        }
    }

    /// This wire leaves the VIP to the primary, or takes its part again.
    fn set_gives_way(&mut self, now: Instant, gives_way: bool) {
        self.leaving.gives_way = gives_way;
        self.tell_part(now);
    }

    /// Gives up this node's part in the service, or takes it again, as the operator and the path demand. Tells the peer.
    pub(super) fn tell_part(&mut self, now: Instant) {
        let brings_back = self.leaving.is_withdrawn && self.brings_guests_back(now);
        let leaves = self.leaving.is_withdrawn && !brings_back || self.leaving.gives_way;
        let standing = &mut self.standing;
        let left = standing.leaves();
        let change = standing.set_leaves(now, leaves);
        let (role, is_back) = (standing.role(), left && !standing.leaves());
        if role == Role::Backup && is_back {
            // The primary may have gone on alone, because this node had said that it leaves. A heartbeat that this node sent at `now` may
            // still announce this, so an answer to such a heartbeat confirms nothing.
            self.begin_doubt(now + Duration::from_nanos(1));
        }
        if role == Role::Backup {
            // This node must stop speaking before the primary hears that this node leaves, because the primary then goes on alone.
            let until = self.standing.until();
            self.actions.push_back(ServiceAction::SetUntil { until });
        }
        self.follow(now, change);
        self.tell_peer(now);
    }
}
