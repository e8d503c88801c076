//! Decides which connections a replica follows. This depends on whether the replica's server has the primary's state: it may lack the state
//! from before it was started (`state_sync`), and it may have diverged from the record of the primary's server (docs/recorded-order.md).

use super::Service;
use crate::Instant;
use crate::action::{ApplicationState, ServiceAction};
use crate::connection::{Connection, UnprotectedCause};
use crate::packet::Segment;
use crate::state_sync::{Admission, Decided, StateSyncEvent};
use crate::table::{ConnectionId, Direction, TableChange};

impl Service {
    /// Number of bytes in a released segment that may change the primary's state and that no replica gets.
    pub(super) fn missed_by_replica(&self, direction: Direction, segment: &Segment<'_>) -> u64 {
        if self.sync.is_none() || direction == Direction::Out || segment.payload.is_empty() {
            return 0;
        }
        let connection = self.table.find(segment.source).and_then(|id| self.table.get(id));
        let is_followed = connection.is_some_and(|connection| connection.follower().protection().is_ok());
        if is_followed {
            0
        } else {
            segment.payload.len() as u64
        }
    }

    /// Whether a replica may follow the connection of `change` now. A connection that is opened during the last step of the copying waits
    /// for the outcome of this step. A connection that is opened earlier, or after a failure, is not protected. `missed` is the number of
    /// bytes of the segment that no replica gets. This number is ignored if the segment opens a connection.
    pub(super) fn admits(&mut self, change: TableChange, missed: u64) -> bool {
        if let TableChange::Opened(connection) = change
            && self.has_diverged
        {
            self.refuse_replica(connection, UnprotectedCause::Diverged);
            return false;
        }
        let Some(sync) = &mut self.sync else { return true };
        let TableChange::Opened(connection) = change else {
            sync.on_missed(missed);
            return true;
        };
        match sync.on_opened(connection) {
            Admission::Followed => true,
            Admission::Waits => false,
            Admission::Refused => {
                self.refuse_replica(connection, UnprotectedCause::NotSynced);
                false
            }
        }
    }

    fn refuse_replica(&mut self, id: ConnectionId, cause: UnprotectedCause) {
        self.table.change(id, |connection| connection.unprotect(cause));
    }

    /// The replica's server has left its record, or plays a new one. Its answers may be equal although its data are not, so comparing them
    /// is not enough.
    pub(super) fn on_divergence(&mut self, has_diverged: bool) {
        let is_new = has_diverged && !self.has_diverged;
        self.has_diverged = has_diverged;
        if is_new {
            self.table.distrust(&UnprotectedCause::Diverged);
        }
    }

    /// The hook's run number `run` has ended ([`ServiceAction::RunSync`]). If it failed, `outcome` has the reason.
    pub(super) fn on_synced(&mut self, now: Instant, run: u64, outcome: Result<(), String>) {
        if let Some(sync) = &mut self.sync {
            let decided = sync.on_ended(now, (run, outcome), &mut self.actions);
            self.decide_waiting(decided);
        }
    }

    /// Handles an event of the copying of the primary's state. The copying does not begin while the replica's server is dead.
    pub(super) fn sync(&mut self, now: Instant, event: StateSyncEvent) {
        if event == StateSyncEvent::Begin && self.server == ApplicationState::Dead {
            return;
        }
        if let Some(sync) = &mut self.sync {
            let decided = sync.on_event(now, event, &mut self.actions);
            self.decide_waiting(decided);
        }
    }

    pub(super) fn expire_sync(&mut self, now: Instant) {
        if let Some(sync) = &mut self.sync {
            let decided = sync.on_timeout(now, &mut self.actions);
            self.decide_waiting(decided);
        }
    }

    fn decide_waiting(&mut self, Decided { followed, refused }: Decided) {
        for connection in refused {
            self.refuse_replica(connection, UnprotectedCause::NotSynced);
        }
        for connection in followed {
            if let Some(client) = self.table.followed(connection).map(Connection::client) {
                self.actions
                    .push_back(ServiceAction::OpenReplica { connection, client });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::Seq;
    use crate::action::StateSyncPhase;
    use crate::action::{Action, Gate};
    use crate::connection::Protection;
    use crate::follower::RestartPolicy;
    use crate::node::Node;
    use crate::node::fixture::{at, config};
    use crate::packet::{Checksum, Flags, TcpOptions};
    use crate::service::{InheritedService, ServiceInput};
    use crate::state_sync::StateSyncProgress;

    fn client(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    /// A wire in epoch 2 that an agent left behind.
    fn wire() -> Node {
        let mut config = config(false);
        let service = &mut config.services[0];
        service.table.policy = RestartPolicy::Replica;
        service.found = Some(InheritedService::sample(Gate::Wire, 2));
        service.state_sync = Some(Duration::from_millis(500));
        Node::new(config, at(0))
    }

    /// The node logs a segment. The client's sequence numbers begin at 0, the server's at 1000.
    fn say(
        node: &mut Node,
        port: u16,
        direction: Direction,
        flags: Flags,
        (seq, ack): (u32, u32),
        payload: &[u8],
    ) {
        let (source, destination) = match direction {
            Direction::In => (client(port), node.service(0).vip()),
            Direction::Out => (node.service(0).vip(), client(port)),
        };
        let segment = Segment {
            source,
            destination,
            seq: Seq(seq),
            ack: Seq(ack),
            flags,
            window: 1000,
            options: TcpOptions::default(),
            payload,
        };
        node.handle_packet(at(1), 0, direction, &segment.emit(), Checksum::Unverified, None);
    }

    fn open(node: &mut Node, port: u16) {
        say(node, port, Direction::In, Flags::SYN, (0, 0), &[]);
        say(node, port, Direction::Out, Flags::SYN_ACK, (1000, 1), &[]);
        say(node, port, Direction::In, Flags::ACK, (1, 1001), &[]);
    }

    fn protection(node: &Node, port: u16) -> Protection {
        let id = node.service(0).table().find(client(port)).expect("open");
        node.service(0).table().get(id).expect("open").protection()
    }

    /// The node's actions, without heartbeats and questions. Reports each drain as done. If `hook` returns an outcome for a run,
    /// reports that the run has ended with this outcome.
    fn carry_out(
        node: &mut Node,
        hook: impl Fn(StateSyncPhase) -> Option<Result<(), String>>,
    ) -> Vec<Action> {
        let mut wanted = Vec::new();
        while let Some(action) = node.poll_action() {
            match action {
                Action::Send(_) | Action::Service(_, ServiceAction::Ask { .. }) => continue,
                Action::Service(service, ServiceAction::Drain) => {
                    node.handle(at(2), service, ServiceInput::Drained)
                }
                Action::Service(_, ServiceAction::RunSync { phase, run, .. }) => {
                    if let Some(outcome) = hook(phase) {
                        node.handle(at(2), 0, ServiceInput::Synced { run, outcome });
                    }
                }
                _ => {}
            }
            wanted.push(action);
        }
        wanted
    }

    fn replicas_of(actions: &[Action]) -> Vec<SocketAddr> {
        let client = |action: &Action| match action {
            Action::Service(_, ServiceAction::OpenReplica { client, .. }) => Some(*client),
            _ => None,
        };
        actions.iter().filter_map(client).collect()
    }

    #[test]
    fn who_was_there_before_the_copy_is_not_protected_and_who_came_after_is() {
        let mut node = wire();
        open(&mut node, 1);
        let finish_takes_long = |phase| (phase == StateSyncPhase::Prepare).then_some(Ok(()));
        let wanted = carry_out(&mut node, finish_takes_long);
        assert_eq!(replicas_of(&wanted), []);
        open(&mut node, 2); // its handshake passes, nothing else does
        let wanted = carry_out(&mut node, |_| None);
        assert_eq!(replicas_of(&wanted), []);
        node.handle(
            at(3),
            0,
            ServiceInput::Synced {
                run: 2,
                outcome: Ok(()),
            },
        );
        let wanted = carry_out(&mut node, |_| None);
        assert_eq!(replicas_of(&wanted), [client(2)]);
        open(&mut node, 3);
        let wanted = carry_out(&mut node, |_| None);
        assert_eq!(replicas_of(&wanted), [client(3)]);
        let protected = [1, 2, 3].map(|port| protection(&node, port) == Protection::Protected);
        assert_eq!(protected, [false, true, true]);
        assert_eq!(
            protection(&node, 1),
            Protection::Unprotected(UnprotectedCause::NotSynced)
        );
    }

    #[test]
    fn a_server_that_has_left_its_record_protects_nothing_until_it_plays_a_new_one() {
        let mut node = wire();
        carry_out(&mut node, |_| Some(Ok(())));
        open(&mut node, 1);
        node.handle(at(3), 0, ServiceInput::ReplicaDiverged(true));
        open(&mut node, 2);
        let wanted = carry_out(&mut node, |_| None);
        assert_eq!(replicas_of(&wanted), [client(1)], "only the one from before");
        for port in [1, 2] {
            let diverged = Protection::Unprotected(UnprotectedCause::Diverged);
            assert_eq!(protection(&node, port), diverged, "port {port}");
        }
        node.handle(at(4), 0, ServiceInput::ReplicaDiverged(false));
        open(&mut node, 3);
        assert_eq!(protection(&node, 3), Protection::Protected);
        let diverged = Protection::Unprotected(UnprotectedCause::Diverged);
        assert_eq!(protection(&node, 1), diverged);
    }

    #[test]
    fn what_no_replica_gets_is_counted() {
        let mut node = wire();
        open(&mut node, 1);
        carry_out(&mut node, |_| Some(Ok(())));
        open(&mut node, 2);
        for (port, missed) in [(2, 0), (1, 3), (9, 6)] {
            say(&mut node, port, Direction::Out, Flags::ACK, (1001, 1), b"you");
            say(&mut node, port, Direction::In, Flags::ACK, (1, 1004), b"set");
            let sync = node.service(0).state_sync().expect("configured");
            assert_eq!(sync.missed(), missed, "port {port}");
        }
    }

    #[test]
    fn a_gap_in_the_log_makes_the_copy_worthless() {
        let mut node = wire();
        carry_out(&mut node, |_| Some(Ok(())));
        open(&mut node, 1);
        node.handle(at(4), 0, ServiceInput::LogGap);
        open(&mut node, 2);
        assert_eq!(
            protection(&node, 2),
            Protection::Unprotected(UnprotectedCause::NotSynced)
        );
        let phases = carry_out(&mut node, |_| None);
        let prepares = |action: &Action| {
            matches!(
                action,
                Action::Service(
                    _,
                    ServiceAction::RunSync {
                        phase: StateSyncPhase::Prepare,
                        ..
                    }
                )
            )
        };
        assert!(phases.iter().any(prepares), "{phases:?}");
    }

    /// A server that was started again lacks the state that was copied to the server before.
    #[test]
    fn a_server_that_died_is_copied_to_again_before_a_replica_follows() {
        let mut node = wire();
        carry_out(&mut node, |_| Some(Ok(())));
        let server = |node: &mut Node, state| node.handle(at(3), 0, ServiceInput::Server(state));
        server(&mut node, ApplicationState::Dead);
        open(&mut node, 1);
        assert_eq!(replicas_of(&carry_out(&mut node, |_| Some(Ok(())))), []);
        server(&mut node, ApplicationState::Alive);
        open(&mut node, 2);
        assert_eq!(replicas_of(&carry_out(&mut node, |_| Some(Ok(())))), []);
        let state = node.service(0).state_sync().expect("configured").state();
        assert_eq!(state, StateSyncProgress::Synced);
        open(&mut node, 3);
        assert_eq!(replicas_of(&carry_out(&mut node, |_| None)), [client(3)]);
        server(&mut node, ApplicationState::Hung);
        server(&mut node, ApplicationState::Alive);
        open(&mut node, 4); // a server that hung has not lost its state
        assert_eq!(replicas_of(&carry_out(&mut node, |_| None)), [client(4)]);
    }

    /// A connection that waited for the copy is not continued by a server that has only a part of the primary's state.
    #[test]
    fn a_takeover_ends_the_copying() {
        let mut node = wire();
        carry_out(&mut node, |phase| {
            (phase == StateSyncPhase::Prepare).then_some(Ok(()))
        });
        open(&mut node, 1);
        for millis in (20..1000).step_by(20) {
            node.handle_timeout(at(millis));
        }
        assert!(node.service(0).role().speaks_alone());
        let wanted = carry_out(&mut node, |_| None);
        let abandons = wanted.iter().position(|action| {
            matches!(
                action,
                Action::Service(
                    _,
                    ServiceAction::RunSync {
                        phase: StateSyncPhase::Abandon,
                        ..
                    }
                )
            )
        });
        assert!(abandons.is_some(), "{wanted:?}");
        assert_eq!(replicas_of(&wanted), []);
        assert_eq!(node.service(0).takeovers()[0].restored, 0);
        assert_eq!(node.service(0).takeovers()[0].reset, 1);
    }
    /// The copying and the takeover ask to read the log in the same turn. The copying needs the log up to now, the takeover needs the log
    /// up to the closing of the gate.
    #[test]
    fn reading_the_log_for_the_copy_is_not_reading_it_for_the_takeover() {
        let mut node = wire();
        open(&mut node, 1);
        let run = std::iter::from_fn(|| node.poll_action()).find_map(|action| match action {
            Action::Service(_, ServiceAction::RunSync { run, .. }) => Some(run),
            _ => None,
        });
        let (run, outcome) = (run.expect("it copies"), Ok(()));
        node.handle(at(2), 0, ServiceInput::Synced { run, outcome });
        for millis in (20..1000).step_by(20) {
            node.handle_timeout(at(millis));
        }
        let mut done = Vec::new();
        while let Some(action) = node.poll_action() {
            match action {
                Action::Service(_, ServiceAction::Drain) => {
                    done.push("drain");
                    node.handle(at(1000), 0, ServiceInput::Drained);
                    done.extend(node.service(0).takeover.is_none().then_some("decided"));
                }
                Action::Service(_, ServiceAction::SetGate { .. }) => done.push("close the gate"),
                _ => {}
            }
        }
        assert_eq!(done, ["drain", "close the gate", "drain", "decided"]);
    }
}
