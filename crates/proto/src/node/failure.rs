//! A step that a service needs failed in this node's network: the interface is gone, an address is refused. Only that service is
//! concerned. It is mute here meanwhile, its peer is told as if this node left, and the step is tried again.
//!
//! A primary and a node that returns stand down: the peer goes on, and this node comes back as any other does. A node that claims, or
//! speaks alone, keeps its role and its connections: nobody else may serve. So does one whose consent to a peer's return failed, for
//! that peer has none of its connections.

use std::collections::VecDeque;
use std::time::Duration;

use super::Node;
use crate::Instant;
use crate::action::{Action, Gate, Report, ServiceIndex};
use crate::claim::Claim;
use crate::role::Role;

/// Wait before the first try.
const WAIT: Duration = Duration::from_millis(100);
/// The longest wait; each is twice the one before.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A failure that comes later than this after the last one has nothing to do with it.
const CALM: Duration = Duration::from_secs(60);

/// What failed for one service, and when it is tried again.
#[derive(Debug, Default)]
pub(super) struct Failure {
    why: Option<String>,
    due: Instant,
    wait: Duration,
    /// When a step failed last.
    last: Option<Instant>,
}

impl Failure {
    /// Notes it. Returns whether it is news.
    fn note(&mut self, now: Instant, why: String) -> bool {
        let is_again = self.last.is_some_and(|last| now.since(last) < CALM);
        self.wait = if is_again {
            (self.wait * 2).min(WAIT_MAX)
        } else {
            WAIT
        };
        (self.last, self.due) = (Some(now), now + self.wait);
        let is_news = self.why.as_ref() != Some(&why);
        self.why = Some(why);
        is_news
    }

    /// Which step failed, and why; nothing if none did, or all is well again.
    pub(super) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Tries again, when it is time to.
    pub(super) fn on_timeout(&mut self, now: Instant, service: ServiceIndex, actions: &mut VecDeque<Action>) {
        if self.poll_timeout().is_some_and(|due| now >= due) {
            self.due = now + WAIT_MAX; // the outcome says when sooner
            actions.push_back(Action::Mend { service });
        }
    }

    /// When it is tried again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.why.as_ref().map(|_| self.due)
    }
}

impl Node {
    /// A step for a service failed in this node's network, or cannot be made good: `why` names it. To be called before any further
    /// action is carried out: what was to follow that step is forgotten.
    pub fn handle_failed(&mut self, now: Instant, index: ServiceIndex, why: String) {
        let unheard = self.unheard_consent(index);
        // What the peer was to be told of the service is not so. It is told anew, of the others too.
        self.actions.retain(|action| match action {
            Action::Send(_) => false,
            Action::Assume { service, .. }
            | Action::SetGate { service, .. }
            | Action::TakeAddress { service }
            | Action::Announce { service } => *service != index,
            _ => true,
        });
        let service = &mut self.services[usize::from(index)];
        service.claim = None;
        if service.failure.note(now, why.clone()) {
            let report = Report::Failed { service: index, why };
            self.actions.push_back(Action::Report(report));
        }
        let goes_on = unheard.and_then(|epoch| service.standing.on_consent_failed(now, epoch));
        let change = goes_on.or_else(|| service.standing.set_failed(now, true));
        if goes_on.is_some() {
            service.standing.set_failed(now, true);
        }
        self.follow(now, index, change);
        self.send_heartbeat(now);
    }

    /// The epoch in which this node spoke alone, if it has just consented to its peer's return and the peer has not heard of it: the
    /// gate is not open yet.
    fn unheard_consent(&self, index: ServiceIndex) -> Option<u64> {
        let is_gate = |action: &Action| matches!(action, Action::SetGate { service, gate: Gate::Primary, .. } if *service == index);
        let service = self.service(index);
        let is_untold = service.role() == Role::Primary && self.actions.iter().any(is_gate);
        let before = service.roles.iter().rev().nth(1)?;
        (is_untold && before.role == Role::Sole).then_some(before.epoch)
    }

    /// The network for a service is whole again; its interface has this MAC address now. What failed is done again.
    pub fn handle_mended(&mut self, now: Instant, index: ServiceIndex, mac: [u8; 6]) {
        let service = &mut self.services[usize::from(index)];
        service.config.mac = mac;
        if service.failure.why.take().is_none() {
            return;
        }
        self.actions
            .push_back(Action::Report(Report::Mended { service: index }));
        let change = service.standing.set_failed(now, false);
        let role = service.role();
        self.follow(now, index, change);
        match role {
            Role::Claiming => {
                self.services[usize::from(index)].claim = Some(Claim::new(now));
                self.assume(index, Gate::Primary);
            }
            Role::Sole => {
                self.services[usize::from(index)].claim = Some(Claim::announcing(now));
                self.actions.push_back(Action::TakeAddress { service: index });
            }
            Role::Joining
            | Role::Primary
            | Role::Returning
            | Role::Backup
            | Role::TakingOver
            | Role::Standby => {}
        }
        self.send_heartbeat(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Heartbeat, Server, ServiceBeat};
    use crate::node::fixture::{at, config};
    use crate::node::view::Simplex;
    use crate::orphans::Orphans;

    const WHY: &str = "interface eth1 is gone";

    /// The configured primary or backup, with two services.
    fn node(is_primary: bool) -> Node {
        let mut config = config(is_primary);
        let mut other = config.services[0].clone();
        other.table.vip.set_port(81);
        config.services.push(other);
        Node::new(config, at(0))
    }

    /// The peer's word: both services are in this role.
    fn hear(node: &mut Node, millis: u64, role: Role, epoch: u64) {
        let beat = |index| ServiceBeat {
            vip: node.vip(index),
            role,
            epoch,
            configured_primary: !node.config().services[0].is_primary,
            mac: [7; 6],
            server: Server::Alive,
            leaves: false,
            hands_over: false,
            orphans: Orphans::default(),
            adopted: 0,
            path: None,
        };
        let heartbeat = Heartbeat {
            node: "other".to_owned(),
            incarnation: 9,
            sequence: millis,
            sent: 0,
            echo: None,
            services: vec![beat(0), beat(1)],
        };
        node.handle_heartbeat(at(millis), heartbeat);
    }

    /// What is done, where each step of the service 0 that can fail does.
    fn carry_out(node: &mut Node, millis: u64) -> Vec<Action> {
        let mut done = Vec::new();
        while let Some(action) = node.poll_action() {
            if matches!(
                action,
                Action::Assume { service: 0, .. } | Action::TakeAddress { service: 0 }
            ) {
                node.handle_failed(at(millis), 0, WHY.to_owned());
            } else {
                done.push(action);
            }
        }
        done
    }

    fn gates(actions: &[Action], index: ServiceIndex) -> Vec<Gate> {
        let gate = |action: &Action| match action {
            Action::SetGate { service, gate, .. } if *service == index => Some(*gate),
            _ => None,
        };
        actions.iter().filter_map(gate).collect()
    }

    fn words(actions: &[Action]) -> Vec<[(Role, bool); 2]> {
        let word = |action: &Action| match action {
            Action::Send(heartbeat) => Some([0, 1].map(|index| {
                let beat: &ServiceBeat = &heartbeat.services[index];
                (beat.role, beat.leaves)
            })),
            _ => None,
        };
        actions.iter().filter_map(word).collect()
    }

    #[test]
    fn a_primary_that_cannot_begin_is_mute_and_says_so_and_the_other_service_begins() {
        let mut node = node(true);
        while node.poll_action().is_some() {}
        hear(&mut node, 10, Role::Joining, 0);
        let done = carry_out(&mut node, 10);
        assert_eq!(gates(&done, 0), [Gate::Mute], "it was never opened");
        assert_eq!(gates(&done, 1), [Gate::Primary]);
        let failed = (Role::Standby, true);
        assert!(
            words(&done).iter().skip(1).all(|word| word[0] == failed),
            "behind its first answer the peer never hears otherwise: {:?}",
            words(&done)
        );
        assert_eq!(words(&done).last(), Some(&[failed, (Role::Primary, false)]));
        assert_eq!(node.failure(0), Some(WHY));
        assert_eq!(node.simplex(at(10), 0), Some(Simplex::Failed));
        assert_eq!(node.failure(1), None);
    }

    #[test]
    fn a_wire_that_cannot_be_set_up_is_not_offered() {
        let mut node = node(false);
        while node.poll_action().is_some() {}
        hear(&mut node, 10, Role::Sole, 3);
        hear(&mut node, 20, Role::Sole, 3);
        let done = carry_out(&mut node, 20);
        assert_eq!(gates(&done, 0), [Gate::Mute, Gate::Mute], "deposed, then failed");
        assert_eq!(node.role(1), (Role::Returning, 3));
        assert!(words(&done).iter().all(|word| word[0].0 != Role::Returning));
        // Until it is mended it does not return.
        hear(&mut node, 40, Role::Sole, 3);
        assert_eq!(gates(&carry_out(&mut node, 40), 0), []);
        node.handle_mended(at(50), 0, [9; 6]);
        hear(&mut node, 60, Role::Sole, 3);
        assert_eq!(node.role(0), (Role::Returning, 3));
        assert_eq!(node.failure(0), None);
        let actions: Vec<_> = std::iter::from_fn(|| node.poll_action()).collect();
        let Some(Action::Send(heartbeat)) = actions.last() else {
            panic!("{actions:?}");
        };
        assert_eq!(heartbeat.services[0].mac, [9; 6]);
        assert_eq!(gates(&actions, 0), [Gate::Wire]);
    }

    /// The peer that returns has none of the connections: they stay here.
    #[test]
    fn a_consent_that_fails_is_taken_back() {
        let mut node = node(true);
        hear(&mut node, 10, Role::Joining, 0);
        hear(&mut node, 15, Role::Returning, 1);
        hear(&mut node, 20, Role::Backup, 2);
        while node.poll_action().is_some() {}
        for millis in (30..800).step_by(10) {
            node.handle_timeout(at(millis));
            while let Some(action) = node.poll_action() {
                if let Action::Announce { service } = action {
                    node.handle_reached(at(millis), service);
                }
            }
        }
        assert_eq!(node.role(0), (Role::Sole, 3));
        hear(&mut node, 800, Role::Returning, 3);
        let done = carry_out(&mut node, 800);
        assert_eq!(gates(&done, 0), [Gate::Sole], "its connections live");
        assert_eq!(gates(&done, 1), [Gate::Primary]);
        assert!(
            !done
                .iter()
                .any(|action| matches!(action, Action::StandDown { .. }))
        );
        assert_eq!(node.role(0), (Role::Sole, 3));
        assert_eq!(
            words(&done).last(),
            Some(&[(Role::Sole, true), (Role::Primary, false)])
        );
        // It consents when the step may be taken again.
        hear(&mut node, 820, Role::Returning, 3);
        assert_eq!(node.role(0), (Role::Sole, 3));
        node.handle_mended(at(900), 0, [0; 6]);
        hear(&mut node, 920, Role::Returning, 3);
        assert_eq!(node.role(0), (Role::Primary, 4));
    }

    #[test]
    fn a_claim_that_fails_is_made_again() {
        let mut node = node(true);
        hear(&mut node, 10, Role::Joining, 0);
        hear(&mut node, 15, Role::Returning, 1);
        hear(&mut node, 20, Role::Backup, 2);
        while node.poll_action().is_some() {}
        for millis in (30..500).step_by(10) {
            node.handle_timeout(at(millis));
            let done = carry_out(&mut node, millis);
            assert_eq!(gates(&done, 0), [], "its connections live");
        }
        assert_eq!(node.role(0).0, Role::Claiming);
        assert_eq!(node.failure(0), Some(WHY));
        node.handle_mended(at(500), 0, [0; 6]);
        node.handle_timeout(at(510));
        let actions: Vec<_> = std::iter::from_fn(|| node.poll_action()).collect();
        assert!(
            actions.contains(&Action::TakeAddress { service: 0 }),
            "{actions:?}"
        );
    }

    /// Twice as long after each failure, up to five seconds; a failure after a calm time is a new one.
    #[test]
    fn tries_are_bounded() {
        let mut failure = Failure::default();
        let mut tries = Vec::new();
        assert!(failure.note(at(0), WHY.to_owned()));
        let mut actions = VecDeque::new();
        for millis in (0..30_000).step_by(10) {
            failure.on_timeout(at(millis), 0, &mut actions);
            if actions.pop_front().is_some() {
                tries.push(millis);
                assert!(!failure.note(at(millis), WHY.to_owned()), "no news");
            }
        }
        assert_eq!(
            tries,
            [100, 300, 700, 1500, 3100, 6300, 11300, 16300, 21300, 26300]
        );
        failure.why = None;
        failure.note(at(200_000), WHY.to_owned());
        assert_eq!(failure.poll_timeout(), Some(at(200_100)));
    }
}
