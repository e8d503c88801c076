//! Reports of a service's replicas.

use super::*;

impl Node {
    /// A connection's replica was given the input up to `to`, and the end of input too if `ended`.
    pub fn handle_fed(&mut self, index: ServiceIndex, connection: ConnectionId, to: Offset, ended: bool) {
        self.with_replica(index, connection, |replica| replica.on_fed(to, ended));
    }

    /// A connection's replica sent `bytes`, or closed its stream (`None`). Returns how many bytes the replica's output is ahead of the
    /// primary's. The caller must not read from a replica that is far ahead.
    pub fn handle_replica_output(
        &mut self,
        index: ServiceIndex,
        connection: ConnectionId,
        bytes: Option<&[u8]>,
    ) -> usize {
        let mut ahead = 0;
        self.with_replica(index, connection, |replica| {
            match bytes {
                Some(bytes) => replica.on_output(bytes),
                None => replica.on_output_end(),
            }
            ahead = replica.ahead();
        });
        let takeover = self.services[usize::from(index)].takeover.as_mut();
        if let Some(takeover) = takeover.filter(|_| ahead > 0) {
            takeover.hurry(connection);
        }
        ahead
    }

    /// A connection's replica failed: the connection is not protected.
    pub fn handle_replica_failure(&mut self, index: ServiceIndex, connection: ConnectionId, reason: String) {
        self.with_replica(index, connection, |replica| replica.on_failure(reason));
    }

    /// Time has passed: stops waiting for replicas of connections that have been over for long.
    pub(super) fn expire_replicas(&mut self, now: Instant) {
        for index in self.indices() {
            let service = &mut self.services[usize::from(index)];
            let missed = service.table.expire_lingering(now);
            if let Some(sync) = &mut service.sync {
                sync.on_missed(missed);
            }
            self.close_replicas(index);
        }
    }

    /// Closes replicas whose output is no longer needed.
    fn close_replicas(&mut self, service: ServiceIndex) {
        let left = self.services[usize::from(service)].table.take_left();
        let close = |connection| Action::CloseReplica { service, connection };
        self.actions.extend(left.into_iter().map(close));
    }

    fn with_replica(
        &mut self,
        index: ServiceIndex,
        id: ConnectionId,
        change: impl FnOnce(&mut crate::follower::Replica),
    ) {
        let table = &mut self.services[usize::from(index)].table;
        table.change(id, |connection| {
            if let Some(replica) = connection.follower_mut().replica_mut() {
                change(replica);
            }
            connection.release();
        });
        self.close_replicas(index);
        self.tell_wire(index);
    }
}
