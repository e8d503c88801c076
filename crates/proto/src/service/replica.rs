//! A service's replicas: what they report, and how they are kept in step with the primary.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::Service;
use crate::action::ServiceAction;
use crate::follower::Replica;
use crate::table::{ConnectionId, Table, TableChange};
use crate::{Instant, Offset};

impl Service {
    /// A connection's replica was given the input up to `to`, and the end of input too if `ended`.
    pub(super) fn on_fed(&mut self, connection: ConnectionId, to: Offset, ended: bool) {
        self.with_replica(connection, |replica| replica.on_fed(to, ended));
    }

    /// A connection's replica sent `bytes`, or closed its stream (`None`). Returns how many bytes the replica's output is ahead of the
    /// primary's. The caller must not read from a replica that is far ahead.
    pub(crate) fn on_replica_output(&mut self, connection: ConnectionId, bytes: Option<&[u8]>) -> usize {
        let mut ahead = 0;
        self.with_replica(connection, |replica| {
            match bytes {
                Some(bytes) => replica.on_output(bytes),
                None => replica.on_output_end(),
            }
            ahead = replica.ahead();
        });
        let takeover = self.takeover.as_mut();
        if let Some(takeover) = takeover.filter(|_| ahead > 0) {
            takeover.hurry(connection);
        }
        ahead
    }

    /// A connection's replica failed: the connection is not protected.
    pub(super) fn on_replica_failure(&mut self, connection: ConnectionId, reason: String) {
        self.with_replica(connection, |replica| replica.on_failure(reason));
    }

    /// Time has passed: stops waiting for replicas of connections that have been over for long.
    pub(super) fn expire_replicas(&mut self, now: Instant) {
        let missed = self.table.expire_lingering(now);
        if let Some(sync) = &mut self.sync {
            sync.on_missed(missed);
        }
        self.close_replicas();
    }

    /// Closes replicas whose output is no longer needed.
    fn close_replicas(&mut self) {
        let left = self.table.take_left();
        let close = |connection| ServiceAction::CloseReplica { connection };
        self.actions.extend(left.into_iter().map(close));
    }

    fn with_replica(&mut self, id: ConnectionId, change: impl FnOnce(&mut Replica)) {
        let table = &mut self.table;
        table.change(id, |connection| {
            if let Some(replica) = connection.follower_mut().replica_mut() {
                change(replica);
            }
            connection.release();
        });
        self.close_replicas();
        self.tell_wire();
    }
}

/// Keeps a connection's replica in step with what the primary has accepted.
pub(crate) fn follow_replica(table: &mut Table, change: TableChange, actions: &mut VecDeque<ServiceAction>) {
    match change {
        TableChange::Ended(connection) if !table.lingers(connection) => {
            actions.push_back(ServiceAction::CloseReplica { connection })
        }
        TableChange::Opened(connection)
        | TableChange::Connection(connection)
        | TableChange::Ended(connection) => {
            let Some(entry) = table.followed_mut(connection) else {
                return;
            };
            let client = entry.client();
            let is_new = matches!(change, TableChange::Opened(_));
            let opens = |replica: &mut Replica| replica.opens() || is_new;
            if entry.follower_mut().replica_mut().is_some_and(opens) {
                actions.push_back(open(connection, client));
            }
            let acknowledged = entry.input_acknowledged();
            let ended = entry.input().fin() == Some(acknowledged);
            if let Some(replica) = entry.follower_mut().replica_mut()
                && replica.wants(acknowledged, ended)
            {
                actions.push_back(ServiceAction::FeedReplica { connection });
            }
        }
        TableChange::Handshake | TableChange::Old | TableChange::Unknown => {}
    }
}

const fn open(connection: ConnectionId, client: SocketAddr) -> ServiceAction {
    ServiceAction::OpenReplica { connection, client }
}
