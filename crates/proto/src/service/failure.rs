//! A step that a service needs has failed in this node's network: for example, the interface is gone or an address is refused. The
//! failure concerns only that service. This node tells the peer that it leaves the service, and tries the step again.
//!
//! A primary and a returning node stand down: the peer goes on, and this node comes back like any other node. A node that claims or speaks
//! alone keeps its role and its connections, because no other node may serve. A node whose consent to a peer's return failed keeps its
//! connections as well, because the peer has none of its connections.

use super::Service;
use crate::Instant;
use crate::action::{Gate, OperatorReport, ServiceAction};
use crate::claim::Claim;
use crate::role::Role;

impl Service {
    /// A step for a service failed in this node's network, or cannot be made good. `why` names the step and the reason. Call this before
    /// carrying out any further action: the actions that were to follow the step are dropped.
    pub(super) fn on_failed(&mut self, now: Instant, why: String) {
        let unheard = self.unheard_consent();
        self.actions.retain(|action| {
            !matches!(
                action,
                ServiceAction::Assume { .. }
                    | ServiceAction::SetGate { .. }
                    | ServiceAction::TakeAddress
                    | ServiceAction::Announce
            )
        });
        self.claim = None;
        if self.failure.note(now, why.clone()) {
            let report = OperatorReport::Failed { why };
            self.actions.push_back(ServiceAction::Report(report));
        }
        let goes_on = unheard.and_then(|epoch| self.standing.on_consent_failed(now, epoch));
        let failed = self.standing.set_failed(now, true); // it changes nothing for a node that has just gone on alone
        let change = goes_on.or(failed);
        self.follow(now, change);
        self.tell_peer(now);
    }

    /// The epoch in which this node spoke alone, if it has just consented to its peer's return and the peer has not heard of the consent.
    /// In that case the action that opens the gate to the peer is still queued.
    fn unheard_consent(&self) -> Option<u64> {
        let gate = Gate::Primary;
        let is_gate = |action: &ServiceAction| matches!(action, ServiceAction::SetGate { gate: set, .. } if *set == gate);
        let is_untold = self.role() == Role::Primary && self.actions.iter().any(is_gate);
        let before = self.roles.before()?;
        (is_untold && before.role == Role::Sole).then_some(before.epoch)
    }

    /// The network for a service works again, and its interface now has the address `mac`. Takes the failed step again.
    pub(super) fn on_mended(&mut self, now: Instant, mac: [u8; 6]) {
        self.config.mac = mac;
        if !self.failure.make_good() {
            return;
        }
        self.actions
            .push_back(ServiceAction::Report(OperatorReport::Mended));
        let change = self.standing.set_failed(now, false);
        let role = self.role();
        self.follow(now, change);
        match role {
            Role::Claiming => {
                self.claim = Some(Claim::new(now));
                self.assume(Gate::Primary);
            }
            Role::Sole => {
                self.claim = Some(Claim::announcing(now));
                self.actions.push_back(ServiceAction::TakeAddress);
            }
            Role::Joining
            | Role::Primary
            | Role::Returning
            | Role::Backup
            | Role::TakingOver
            | Role::Standby => {}
        }
        self.tell_peer(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Action, Echo, Heartbeat, ServiceBeat, ServiceIndex};
    use crate::node::Node;
    use crate::node::fixture::{at, beat, config};
    use crate::service::{ServiceInput, Simplex};

    const WHY: &str = "interface eth1 is gone";

    /// The configured primary or backup, with two services.
    fn node(is_primary: bool) -> Node {
        let mut config = config(is_primary);
        let mut other = config.services[0].clone();
        other.table.vip.set_port(81);
        config.services.push(other);
        Node::new(config, at(0))
    }

    /// The node hears a heartbeat of its peer: both services have `role` in `epoch`.
    fn hear(node: &mut Node, millis: u64, role: Role, epoch: u64) {
        let is_primary = !node.config().services[0].is_primary;
        let beat = |index| ServiceBeat {
            mac: [7; 6],
            ..beat(node.service(index).vip(), (role, epoch), is_primary)
        };
        let heartbeat = Heartbeat {
            node: "other".to_owned(),
            incarnation: 9,
            sequence: millis,
            sent: 0,
            echo: Some(Echo {
                incarnation: node.config().incarnation,
                sent: at(millis).as_nanos(),
            }),
            services: vec![beat(0), beat(1)],
        };
        node.handle_heartbeat(at(millis), heartbeat);
    }

    /// The primary of both services, with a wire.
    fn paired() -> Node {
        let mut node = node(true);
        hear(&mut node, 10, Role::Joining, 0);
        hear(&mut node, 15, Role::Returning, 1);
        hear(&mut node, 20, Role::Backup, 2);
        while node.poll_action().is_some() {}
        node
    }

    /// Polls the node's actions. Reports a failure of each step of service 0 that can fail, and returns all other actions.
    fn carry_out(node: &mut Node, millis: u64) -> Vec<Action> {
        let mut done = Vec::new();
        while let Some(action) = node.poll_action() {
            if matches!(
                action,
                Action::Service(0, ServiceAction::Assume { .. })
                    | Action::Service(0, ServiceAction::TakeAddress)
            ) {
                node.handle(at(millis), 0, ServiceInput::Failed { why: WHY.to_owned() });
            } else {
                done.push(action);
            }
        }
        done
    }

    fn gates(actions: &[Action], index: ServiceIndex) -> Vec<Gate> {
        let gate = |action: &Action| match action {
            Action::Service(service, ServiceAction::SetGate { gate, .. }) if *service == index => Some(*gate),
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
            "after the first word the peer hears nothing else: {:?}",
            words(&done)
        );
        assert_eq!(words(&done).last(), Some(&[failed, (Role::Primary, false)]));
        assert_eq!(node.service(0).failure(), Some(WHY));
        assert_eq!(node.simplex(at(10), 0), Some(Simplex::Failed));
        assert_eq!(node.service(1).failure(), None);
    }

    #[test]
    fn a_wire_that_cannot_be_set_up_is_not_offered() {
        let mut node = node(false);
        while node.poll_action().is_some() {}
        hear(&mut node, 10, Role::Sole, 3);
        hear(&mut node, 20, Role::Sole, 3);
        let done = carry_out(&mut node, 20);
        assert_eq!(gates(&done, 0), [Gate::Mute, Gate::Mute], "deposed, then failed");
        assert_eq!(node.service(1).role_and_epoch(), (Role::Returning, 3));
        assert!(words(&done).iter().all(|word| word[0].0 != Role::Returning));
        // The node does not return until the step is made good.
        hear(&mut node, 40, Role::Sole, 3);
        assert_eq!(gates(&carry_out(&mut node, 40), 0), []);
        node.handle(at(50), 0, ServiceInput::Mended { mac: [9; 6] });
        hear(&mut node, 60, Role::Sole, 3);
        assert_eq!(node.service(0).role_and_epoch(), (Role::Returning, 3));
        assert_eq!(node.service(0).failure(), None);
        let actions: Vec<_> = std::iter::from_fn(|| node.poll_action()).collect();
        let Some(Action::Send(heartbeat)) = actions.last() else {
            panic!("{actions:?}");
        };
        assert_eq!(heartbeat.services[0].mac, [9; 6]);
        assert_eq!(gates(&actions, 0), [Gate::Wire]);
    }

    /// The connections stay on this node, since the returning peer has none of them.
    #[test]
    fn a_consent_that_fails_is_taken_back() {
        let mut node = paired();
        for millis in (30..800).step_by(10) {
            node.handle_timeout(at(millis));
            while let Some(action) = node.poll_action() {
                if let Action::Service(service, ServiceAction::Announce) = action {
                    node.handle(at(millis), service, ServiceInput::Reached);
                }
            }
        }
        assert_eq!(node.service(0).role_and_epoch(), (Role::Sole, 3));
        hear(&mut node, 800, Role::Returning, 3);
        let done = carry_out(&mut node, 800);
        assert_eq!(gates(&done, 0), [Gate::Sole], "its connections live");
        assert_eq!(gates(&done, 1), [Gate::Primary]);
        assert!(
            !done
                .iter()
                .any(|action| matches!(action, Action::Service(_, ServiceAction::StandDown { .. })))
        );
        assert_eq!(node.service(0).role_and_epoch(), (Role::Sole, 3));
        assert_eq!(
            words(&done).last(),
            Some(&[(Role::Sole, true), (Role::Primary, false)])
        );
        // The node consents again once the step is made good.
        hear(&mut node, 820, Role::Returning, 3);
        assert_eq!(node.service(0).role_and_epoch(), (Role::Sole, 3));
        node.handle(at(900), 0, ServiceInput::Mended { mac: [0; 6] });
        hear(&mut node, 920, Role::Returning, 3);
        assert_eq!(node.service(0).role_and_epoch(), (Role::Primary, 4));
    }

    #[test]
    fn a_claim_that_fails_is_made_again() {
        let mut node = paired();
        for millis in (30..500).step_by(10) {
            node.handle_timeout(at(millis));
            let done = carry_out(&mut node, millis);
            assert_eq!(gates(&done, 0), [], "its connections live");
        }
        assert_eq!(node.service(0).role(), Role::Claiming);
        assert_eq!(node.service(0).failure(), Some(WHY));
        node.handle(at(500), 0, ServiceInput::Mended { mac: [0; 6] });
        node.handle_timeout(at(510));
        let actions: Vec<_> = std::iter::from_fn(|| node.poll_action()).collect();
        assert!(
            actions.contains(&Action::Service(0, ServiceAction::TakeAddress)),
            "{actions:?}"
        );
    }
}
