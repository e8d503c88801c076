//! The connections of one service: handshakes under way, open connections, and connections that ended recently.

mod config;
mod ended;
mod handshakes;
mod learning;
mod lingering;
mod open;
mod share;
mod slots;

use std::net::SocketAddr;

use crate::Instant;
use crate::census::Census;
use crate::connection::{AtLimit, CapChange, Connection, Effect};
use crate::follower::Follower;
use crate::learn::Learner;
use crate::older::Older;
pub use crate::packet::Direction;
use crate::packet::{Opening, Segment};
use crate::stream::OnShelf;
pub use config::TableConfig;
use ended::EndedConnections;
pub use ended::{ENDED_FOR, ENDED_MAX};
use handshakes::Handshakes;
pub use handshakes::{HANDSHAKES_MAX, PENDING_MAX};
use lingering::Lingering;
use open::OpenConnections;
pub use slots::ConnectionId;

/// The change that a packet made to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// The packet belongs to this connection.
    Connection(ConnectionId),
    /// The packet completed this connection's handshake, or was the last packet needed to learn the connection.
    Opened(ConnectionId),
    /// The packet ended a connection, which is no longer in the table.
    Ended(ConnectionId),
    /// The packet is part of a handshake.
    Handshake,
    /// The packet belongs to a connection that ended.
    Old,
    /// The wire did not see the beginning of the packet's connection.
    Unknown,
}

/// The connections of one service.
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    open: OpenConnections,
    lingering: Lingering,
    /// The logs are over their memory limit although each connection has freed all it could.
    is_exhausted: bool,
    handshakes: Handshakes,
    ended: EndedConnections,
    older: Older,
    census: Census,
    learner: Learner,
    /// Learnt connections; some of them may have been proved since.
    on_probation: Vec<ConnectionId>,
    /// Connections that were learnt and lack their first input ([`crate::restart::prefix`]).
    to_join: Vec<ConnectionId>,
    /// All packets of the connections in question pass this node, so connections that are older than the log can be learnt.
    is_wire: bool,
    /// Clients of new and learnt connections can be slowed.
    slows: bool,
    /// Connections that ended without a packet that shows the end.
    gone: Vec<ConnectionId>,
}

impl Table {
    /// An empty table.
    pub fn new(config: TableConfig) -> Self {
        let (seed, policy) = (config.hash_seed, config.policy);
        Self {
            config,
            open: OpenConnections::new(seed),
            lingering: Lingering::default(),
            is_exhausted: false,
            handshakes: Handshakes::new(seed),
            ended: EndedConnections::new(seed),
            older: Older::new(seed),
            census: Census::default(),
            learner: Learner::new(seed, policy),
            on_probation: Vec::new(),
            to_join: Vec::new(),
            is_wire: false,
            slows: true,
            gone: Vec::new(),
        }
    }

    /// Forgets everything, because a new log begins that does not continue the old one. Input that replicas have not been given yet is
    /// kept. Connection ids stay unique.
    pub fn clear(&mut self) {
        self.open.clear();
        let empty = Self::new(self.config.clone());
        let emptied = std::mem::replace(self, empty);
        (self.open, self.lingering) = (emptied.open, emptied.lingering);
    }

    /// The configuration.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Number of open connections.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether no connection is open.
    pub fn is_empty(&self) -> bool {
        self.open.len() == 0
    }

    /// Number of handshakes remembered.
    pub fn handshakes(&self) -> usize {
        self.handshakes.len()
    }

    /// Memory held by the logs, in bytes.
    pub fn memory(&self) -> u64 {
        self.open.memory() + self.lingering.memory()
    }

    /// The open connections, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        self.open.iter()
    }

    /// A connection that is still open.
    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.open.get(id)
    }

    /// A connection that is still open, mutable.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.open.get_mut(id)
    }

    /// The open connection of this client.
    pub fn find(&self, client: SocketAddr) -> Option<ConnectionId> {
        self.open.find(client)
    }

    /// Handles a packet of the service, logged at `now`. If the payload lies on a shelf, the caller must call [`keep`](Self::keep) before
    /// it clears the shelf.
    pub fn on_packet(
        &mut self,
        now: Instant,
        direction: Direction,
        segment: &Segment<'_>,
        source: Option<OnShelf<'_>>,
    ) -> TableChange {
        let client = match direction {
            Direction::In => segment.source,
            Direction::Out => segment.destination,
        };
        if segment.flags.syn {
            return self.on_opening(now, direction, client, segment);
        }
        let completed = match direction {
            Direction::In => self.handshakes.take_completed(client, segment),
            Direction::Out => {
                self.handshakes.on_established(client, segment);
                None
            }
        };
        if let Some(handshake) = completed {
            let id = self.open(client, handshake);
            // The segment that completes the handshake may be a RST: some health checks send nothing else.
            return match self.apply(now, direction, id, segment, source) {
                TableChange::Ended(id) => TableChange::Ended(id),
                _ => TableChange::Opened(id),
            };
        }
        if direction == Direction::In && self.handshakes.take_refused(client, segment) {
            return TableChange::Handshake;
        }
        match self.find(client) {
            Some(id) => self.apply(now, direction, id, segment, source),
            None if self.ended.is_late(client, segment) => TableChange::Old,
            None => self.on_unknown(now, direction, client, segment),
        }
    }

    /// Handles a SYN or a SYN-ACK.
    fn on_opening(
        &mut self,
        now: Instant,
        direction: Direction,
        client: SocketAddr,
        segment: &Segment<'_>,
    ) -> TableChange {
        match direction {
            Direction::In if segment.flags.ack => return TableChange::Unknown,
            Direction::In => self.handshakes.on_syn(now, client, segment),
            Direction::Out if self.handshakes.on_syn_ack(now, client, segment) => {}
            Direction::Out => self.begin_anew(client),
        }
        TableChange::Handshake
    }

    /// Forgets the client's earlier connections, because the client begins a new one, or because this node knows nothing of its present one.
    pub(crate) fn begin_anew(&mut self, client: SocketAddr) {
        if let Some(old) = self.find(client) {
            self.discard(old);
        }
        self.ended.forget(client);
        self.forget_older(client);
    }

    /// Packets passed unlogged: connections whose handshake was under way are now older than the log.
    pub fn forget_handshakes(&mut self) {
        let clients = self.handshakes.take_answered();
        clients.into_iter().for_each(|client| self.begin_anew(client));
    }

    /// Turns a handshake into a connection. The client's earlier connection is over: otherwise the server would not
    /// have answered the SYN.
    fn open(&mut self, client: SocketAddr, (syn, syn_ack): (Opening, Opening)) -> ConnectionId {
        self.begin_anew(client);
        let bound = usize::try_from(self.config.connection_bytes_max).unwrap_or(usize::MAX);
        let (policy, rules) = (self.config.policy, self.config.rules);
        let follower = Follower::new(policy, rules, self.config.opaque.clone(), bound);
        let connection = Connection::new(
            client,
            self.config.vip,
            &syn,
            &syn_ack,
            follower,
            self.config.connection_bytes_max,
        );
        self.insert(connection)
    }

    /// Opens a connection for each handshake whose SYN-ACK was sent but not acknowledged. Returns the connections with their SYN and
    /// SYN-ACK. In a flood only the latest [`PENDING_MAX`] are opened.
    pub fn open_pending(&mut self) -> Vec<(ConnectionId, SocketAddr, Opening, Opening)> {
        let pending = self.handshakes.take_pending().into_iter();
        pending
            .map(|(client, syn, syn_ack)| (self.open(client, (syn, syn_ack)), client, syn, syn_ack))
            .collect()
    }

    fn insert(&mut self, mut connection: Connection) -> ConnectionId {
        connection.set_at_limit(match &self.config.at_limit {
            AtLimit::Slow if !self.slows => AtLimit::Unprotect,
            at_limit => at_limit.clone(),
        });
        if self.config.sends_directly {
            connection.set_sends_directly();
        }
        self.open.insert(connection)
    }

    fn apply(
        &mut self,
        now: Instant,
        direction: Direction,
        id: ConnectionId,
        segment: &Segment<'_>,
        source: Option<OnShelf<'_>>,
    ) -> TableChange {
        let changed = self.change_at(id, Some(now), |connection| match direction {
            Direction::In => connection.on_client(segment, source),
            Direction::Out => connection.on_server(now, segment, source),
        });
        let effect = changed.expect("found by client");
        let connection = self.open.get_mut(id).expect("it was changed");
        connection.prove(now);
        if let Some(reason) = connection.disproof() {
            self.unlearn(now, id, reason);
            return TableChange::Ended(id);
        }
        if self.is_wire && connection.must_be_learnt_again() {
            self.learn_again(now, id);
            return TableChange::Ended(id);
        }
        match effect {
            Effect::Taken | Effect::Rejected(_) => TableChange::Connection(id),
            Effect::Reset => {
                self.remember_reset(now, id);
                self.let_go(now, id);
                TableChange::Ended(id)
            }
            Effect::Closed => {
                let endpoint = self.get(id).expect("still there").endpoint();
                self.ended.add(now, &endpoint);
                self.let_go(now, id);
                TableChange::Ended(id)
            }
        }
    }

    /// The acknowledgement that answers a late segment. The segment's connection has ended, or was handed over to a
    /// restored socket.
    pub fn answer_to_old(&self, now: Instant, segment: &Segment<'_>) -> Option<Segment<'static>> {
        self.ended.answer(now, segment)
    }

    /// Takes a connection out of the table, because a restored socket now has it.
    pub fn hand_over(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        let connection = self.remove(id)?;
        let clock = connection.endpoint().timestamps;
        self.ended.hand_over(connection.client(), clock);
        Some(connection)
    }

    /// Removes a connection that has ended without a packet that shows the end.
    pub(crate) fn discard(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        let connection = self.remove(id)?;
        self.gone.push(id);
        Some(connection)
    }

    /// The connections that [`discard`](Self::discard) has taken out since the last call.
    pub(crate) fn take_gone(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.gone)
    }

    /// Takes a connection out of the table.
    pub fn remove(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        self.open.remove(id)
    }

    /// Takes an ended connection out of the table, and keeps it as a lingering one while its replica is behind.
    fn let_go(&mut self, now: Instant, id: ConnectionId) {
        if let Some(connection) = self.remove(id) {
            self.lingering.add(now, id, connection);
        }
    }

    /// The next change to a client's window.
    pub(crate) fn poll_word(&mut self) -> Option<(SocketAddr, CapChange)> {
        self.open.poll_word()
    }

    /// The restored socket that had this client's last connection is gone, so no socket answers this client.
    pub(crate) fn forget_socket(&mut self, client: SocketAddr) {
        self.ended.forget_socket(client);
    }

    /// A connection that may have a replica: open or lingering.
    pub fn followed(&self, id: ConnectionId) -> Option<&Connection> {
        self.open.get(id).or_else(|| self.lingering.get(id))
    }

    /// A connection that may have a replica, for changes that do not affect its memory.
    pub(crate) fn followed_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.open.get_mut(id).or_else(|| self.lingering.get_mut(id))
    }

    /// Whether this ended connection waits for its replica.
    pub fn lingers(&self, id: ConnectionId) -> bool {
        self.lingering.get(id).is_some()
    }

    /// Forgets connections that have lingered too long or hold too much memory. Returns the bytes that their replicas did not get.
    pub fn expire_lingering(&mut self, now: Instant) -> u64 {
        self.lingering.expire(now, self.config.bytes_max)
    }

    /// The connections that have stopped lingering since the last call. Their replicas are no longer needed.
    pub(crate) fn take_left(&mut self) -> Vec<ConnectionId> {
        self.lingering.take_left()
    }
}

#[cfg(test)]
mod tests;
