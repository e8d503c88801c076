//! Snapshots of the service's connections: the primary sends them, the backup makes them restart points ([`crate::export`]).

use super::{ExportCall, Service};
use crate::Instant;
use crate::action::{AnnexStep, ServiceAction};
use crate::annex::ServingNode;
use crate::export::{ExportOutcome, PartReceipt, SnapshotPart};
use crate::restart::snapshot::SnapshotStanding;
use crate::role::Role;
use crate::table::ConnectionId;

impl Service {
    /// The number of the latest snapshot that this node has exported.
    pub const fn exported(&self) -> u64 {
        self.exports.last_number()
    }

    /// The application on this node has exported its state for a connection.
    pub(super) fn on_export(&mut self, now: Instant, call: ExportCall) {
        let ExportCall {
            call,
            waits,
            client,
            place,
            state,
        } = call;
        self.exports.begin(now, (call, waits), client, place, state);
        self.send_snapshots(now);
    }

    /// Sends the parts of snapshots that are due, and tells the application the outcomes. A node that speaks without a wire has no one to
    /// send to. While it is not decided whether this node goes on without its wire, everything waits.
    pub(super) fn send_snapshots(&mut self, now: Instant) {
        self.exports.handle_timeout(now);
        match self.role() {
            Role::Primary => self.send_parts(now),
            Role::Joining | Role::Claiming | Role::TakingOver => {}
            Role::Sole => {
                let why = "this node serves without a backup".to_owned();
                self.exports.finish_all(&ExportOutcome::NotKept(why));
            }
            // Of a backup's connections, the primary follows the reversed ones.
            Role::Backup => {
                let reversed = &self.reversed;
                self.exports
                    .finish_unless(|client| reversed.is_here(client), &ExportOutcome::Moved);
                self.send_parts(now);
            }
            Role::Returning | Role::Standby => self.exports.finish_all(&ExportOutcome::Moved),
        }
        while let Some((calls, outcome)) = self.exports.poll_outcome() {
            self.actions.push_back(ServiceAction::Exported { calls, outcome });
        }
    }

    /// Sends what is due. If the other node is about to have a connection, its snapshots wait until it is known who has it.
    fn send_parts(&mut self, now: Instant) {
        let reversed = &self.reversed;
        while let Some(part) = self
            .exports
            .poll_part_unless(now, |client| reversed.is_frozen(client))
        {
            self.actions.push_back(ServiceAction::SendPart(part));
        }
    }

    /// The backup has answered a part of a snapshot.
    pub(super) fn on_receipt(&mut self, now: Instant, receipt: &PartReceipt) {
        self.exports.on_receipt(now, receipt);
        self.send_snapshots(now);
    }

    /// A part of a snapshot came from the primary, or from an annex (`from`). Call this after reading the log.
    pub(super) fn on_part(&mut self, part: SnapshotPart, from: ServingNode) {
        let (number, client, size) = (part.number, part.client, part.size);
        let receipt = |arrived, standing| PartReceipt {
            number,
            client,
            arrived,
            standing,
        };
        if !matches!(self.role(), Role::Primary | Role::Backup) || !self.follows() {
            self.arrivals.clear();
            return; // the primary's role or this one's is about to change, so the primary asks again or stops
        }
        if self.annexes.holder(&client) != Some(from) {
            return; // a node that has the connection no more; it has told its application so
        }
        let known = self.table.find(client);
        let standing = known.and_then(|id| self.table.get(id)?.follower().standing(number));
        let answer = match standing {
            Some(standing) => receipt(size, Some(standing)),
            None => match self.arrivals.on_part(part) {
                Err(answer) => answer,
                Ok(snapshot) => receipt(size, Some(self.table.on_snapshot(client, snapshot))),
            },
        };
        self.send_receipt(answer);
        self.tell_wire();
    }

    /// Answers a part of a snapshot.
    fn send_receipt(&mut self, receipt: PartReceipt) {
        let action = match self.annexes.place(&receipt.client) {
            ServingNode::Primary => ServiceAction::SendReceipt(receipt),
            ServingNode::Annex(annex) => ServiceAction::Elsewhere(AnnexStep::Receipt { annex, receipt }),
        };
        self.actions.push_back(action);
    }

    /// Tells the primary if a snapshot of this connection has become the restart point since the last call.
    pub(super) fn tell_reached(&mut self, connection: ConnectionId) {
        let Some(entry) = self.table.get_mut(connection) else {
            return;
        };
        if let Some(number) = entry.follower_mut().take_reached() {
            let (client, standing) = (entry.client(), Some(SnapshotStanding::Kept));
            self.send_receipt(PartReceipt {
                number,
                client,
                arrived: 0,
                standing,
            });
        }
    }
}
