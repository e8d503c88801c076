//! The node with a recorder beside it. The recorder gets each input before the node does, so that a run can be replayed elsewhere. It gets
//! the results of [`Node::poll_action`], [`Node::handle_idle`] and [`Node::admit`] after the call. [`Node::break_rule`] is not recorded.

use std::ops::Deref;

use proto::Instant;
use proto::action::{Action, Heartbeat, ServiceIndex};
use proto::connection::Endpoint;
use proto::node::{Node, NodeConfig};
use proto::packet::Checksum;
use proto::service::{BrokenRule, OrderRefusal, ServiceInput};
use proto::stream::{OnShelf, Shelf};
use proto::table::{ConnectionId, Direction};
use proto::takeover::HandedOver;

use crate::LogReader;
use crate::recording::{Entry, EntryRecorder};

/// A node. The methods that change it are those of [`Node`] with the same names. There are two exceptions:
/// [`next_action`](Self::next_action) stands for [`Node::poll_action`] and [`Node::handle_idle`], and [`LogReader::packet`] for
/// [`Node::handle_packet`].
pub struct Core {
    node: Node,
    recorder: Option<Box<dyn EntryRecorder>>,
}

impl Deref for Core {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

#[expect(missing_docs, reason = "they are the methods of `Node`")]
impl Core {
    /// Makes a node. A `recorder` records the node's inputs from the beginning.
    pub fn new(config: NodeConfig, now: Instant, recorder: Option<Box<dyn EntryRecorder>>) -> Self {
        let mut recorder = recorder;
        if let Some(recorder) = &mut recorder {
            recorder.write(&Entry::start(now, &config));
        }
        let node = Node::new(config, now);
        Self { node, recorder }
    }

    /// Breaks a rule on purpose ([`Node::break_rule`]).
    #[doc(hidden)]
    pub fn break_rule(&mut self, rule: BrokenRule) {
        self.node.break_rule(rule);
    }

    fn record(&mut self, entry: impl FnOnce() -> Entry) {
        if let Some(recorder) = &mut self.recorder {
            recorder.write(&entry());
        }
    }

    pub fn handle(&mut self, now: Instant, service: ServiceIndex, input: ServiceInput) {
        self.record(|| Entry::service(now, service, &input));
        self.node.handle(now, service, input);
    }

    pub fn hand_over(
        &mut self,
        now: Instant,
        service: ServiceIndex,
        connection: ConnectionId,
        endpoint: &Endpoint,
    ) -> Option<HandedOver> {
        self.record(|| Entry::hand_over(now, service, connection, endpoint));
        self.node.hand_over(now, service, connection, endpoint)
    }

    pub fn handle_replica_output(
        &mut self,
        service: ServiceIndex,
        connection: ConnectionId,
        bytes: Option<&[u8]>,
    ) -> usize {
        self.record(|| Entry::replica_output(service, connection, bytes));
        self.node.handle_replica_output(service, connection, bytes)
    }

    pub fn handle_carrier(&mut self, now: Instant, service: ServiceIndex, has_carrier: bool) -> bool {
        self.record(|| Entry::Carrier {
            now,
            service,
            has_carrier,
        });
        self.node.handle_carrier(now, service, has_carrier)
    }

    /// As [`Node::handle_handover`].
    ///
    /// # Errors
    /// If the node refuses. The error is the reason.
    pub fn handle_handover(&mut self, now: Instant, service: ServiceIndex) -> Result<(), OrderRefusal> {
        self.record(|| Entry::SwapRoles { now, service });
        self.node.handle_handover(now, service)
    }

    pub fn handle_stop(&mut self, now: Instant) {
        self.record(|| Entry::Stop { now });
        self.node.handle_stop(now);
    }

    pub fn handle_pause(&mut self, now: Instant) {
        self.record(|| Entry::Pause { now });
        self.node.handle_pause(now);
    }

    pub fn handle_answer(&mut self, now: Instant) {
        self.record(|| Entry::Answer { now });
        self.node.handle_answer(now);
    }

    pub fn set_behind(&mut self, is_behind: bool) {
        if self.node.is_behind() != is_behind {
            self.record(|| Entry::Behind { is_behind });
            self.node.set_behind(is_behind);
        }
    }

    pub fn handle_heartbeat(&mut self, now: Instant, heartbeat: Heartbeat) {
        self.record(|| Entry::heartbeat(now, &heartbeat));
        self.node.handle_heartbeat(now, heartbeat);
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.record(|| Entry::Timeout { now });
        self.node.handle_timeout(now);
    }

    /// The next action to carry out. Calls [`Node::poll_action`], and calls [`Node::handle_idle`] whenever no action is left.
    pub fn next_action(&mut self) -> Option<Action> {
        loop {
            let action = self.node.poll_action();
            self.record(|| Entry::polled(action.as_ref()));
            if action.is_some() {
                return action;
            }
            let has_planned = self.node.handle_idle();
            self.record(|| Entry::Idle { has_planned });
            if !has_planned {
                return None;
            }
        }
    }

    pub fn admit(&mut self, now: Instant, action: Action) -> Option<Action> {
        let admitted = self.node.admit(now, action);
        self.record(|| Entry::Admit {
            now,
            is_admitted: admitted.is_some(),
        });
        admitted
    }
}

impl LogReader for Core {
    fn packet(
        &mut self,
        at: Instant,
        service: ServiceIndex,
        direction: Direction,
        packet: &[u8],
        checksum: Checksum,
        source: Option<OnShelf<'_>>,
    ) {
        self.record(|| Entry::Packet {
            at,
            service,
            direction,
            packet: packet.to_vec(),
            checksum,
            is_on_shelf: source.is_some(),
        });
        self.node
            .handle_packet(at, service, direction, packet, checksum, source);
    }

    fn keep(&mut self, shelf: &dyn Shelf) {
        self.record(|| Entry::Keep);
        self.node.keep(shelf);
    }
}
