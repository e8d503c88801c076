//! The connections of one service: handshakes under way, open connections, and connections that ended recently.

mod config;
mod handshakes;
mod learning;
mod limit;
mod lingering;
mod share;
mod slots;
mod vanished;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use rustc_hash::FxSeededState;

use crate::census::Census;
use crate::connection::{CapChange, Connection, Effect, EndpointTimestamps};
use crate::learn::Learner;
use crate::older::Older;
pub use crate::packet::Direction;
use crate::packet::{Flags, Segment, TcpOptions, Timestamps};
use crate::stream::OnShelf;
use crate::{Instant, Seq};
pub use config::TableConfig;
use handshakes::Handshake;
pub use handshakes::{HANDSHAKES_MAX, PENDING_MAX};
use lingering::Lingering;
pub use slots::ConnectionId;
use slots::Slots;
use vanished::SlotCursor;

/// Number of ended connections remembered at a time.
pub const ENDED_MAX: usize = 65_536;
/// How long late segments of an ended connection are answered: twice the maximum segment lifetime, as in Linux.
pub const ENDED_FOR: Duration = Duration::from_secs(60);

/// What a packet did to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// It belongs to this connection.
    Connection(ConnectionId),
    /// It completed this connection's handshake, or was the last packet needed to learn the connection.
    Opened(ConnectionId),
    /// It ended a connection, which is no longer in the table.
    Ended(ConnectionId),
    /// It is part of a handshake.
    Handshake,
    /// It belongs to a connection that ended.
    Old,
    /// The wire did not see the beginning of its connection.
    Unknown,
}

/// An ended connection: what is needed to repeat its last acknowledgement.
#[derive(Clone, Copy, Debug)]
struct EndedConnection {
    at: Instant,
    next: Seq,
    acknowledge: Seq,
    timestamps: Option<EndpointTimestamps>,
}

/// The connections of one service.
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    by_client: Map<ConnectionId>,
    slots: Slots<Connection>,
    memory: u64,
    lingering: Lingering,
    /// The logs are over their memory limit although each connection has freed all it could.
    is_exhausted: bool,
    /// Connections with bytes on a shelf ([`Shelf`](crate::stream::Shelf)).
    shelved: Vec<ConnectionId>,
    /// Pending changes to clients' windows, in order.
    words: VecDeque<(SocketAddr, CapChange)>,
    handshakes: Map<Handshake>,
    handshake_order: VecDeque<(SocketAddr, Seq)>,
    ended: Map<EndedConnection>,
    /// Clients whose connections were handed over to sockets, with the server's timestamp clock.
    handed_over: Map<Option<EndpointTimestamps>>,
    ended_order: VecDeque<(SocketAddr, Instant)>,
    older: Older,
    census: Census,
    learner: Learner,
    /// Learnt connections; some of them may have been proved since.
    on_probation: Vec<ConnectionId>,
    /// All packets of the service pass this node, so connections that are older than the log can be learnt.
    is_wire: bool,
    round: SlotCursor,
    /// Connections that ended without a packet that shows the end.
    gone: Vec<ConnectionId>,
}

/// A hash table by client address. Clients choose their addresses; the seed keeps them from choosing addresses that collide.
type Map<T> = std::collections::HashMap<SocketAddr, T, FxSeededState>;

impl Table {
    /// An empty table.
    pub fn new(config: TableConfig) -> Self {
        let map = FxSeededState::with_seed(config.hash_seed);
        Self {
            older: Older::new(config.hash_seed),
            learner: Learner::new(config.hash_seed),
            config,
            by_client: Map::with_hasher(map.clone()),
            slots: Slots::default(),
            memory: 0,
            lingering: Lingering::default(),
            is_exhausted: false,
            shelved: Vec::new(),
            words: VecDeque::new(),
            handshakes: Map::with_hasher(map.clone()),
            handshake_order: VecDeque::new(),
            ended: Map::with_hasher(map.clone()),
            handed_over: Map::with_hasher(map),
            ended_order: VecDeque::new(),
            census: Census::default(),
            on_probation: Vec::new(),
            is_wire: false,
            round: SlotCursor::default(),
            gone: Vec::new(),
        }
    }

    /// Forgets everything, because a new log begins that does not continue the old one. Input that replicas have not been given yet is
    /// kept. Connection ids stay unique.
    pub fn clear(&mut self) {
        let ids: Vec<ConnectionId> = self.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.remove(id);
        }
        let (slots, words) = (std::mem::take(&mut self.slots), std::mem::take(&mut self.words));
        let lingering = std::mem::take(&mut self.lingering);
        *self = Self {
            slots,
            words,
            memory: lingering.memory(),
            lingering,
            ..Self::new(self.config.clone())
        };
    }

    /// The configuration.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Number of open connections.
    pub fn len(&self) -> usize {
        self.by_client.len()
    }

    /// Whether no connection is open.
    pub fn is_empty(&self) -> bool {
        self.by_client.is_empty()
    }

    /// Number of handshakes remembered.
    pub fn handshakes(&self) -> usize {
        self.handshakes.len()
    }

    /// Memory held by the logs, in bytes.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// The open connections, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        self.slots.iter()
    }

    /// A connection that is still open.
    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.slots.get(id)
    }

    /// A connection that is still open, mutable.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slots.get_mut(id)
    }

    /// The open connection of this client.
    pub fn find(&self, client: SocketAddr) -> Option<ConnectionId> {
        self.by_client.get(&client).copied()
    }

    /// Handles a packet of the service, logged at `now`.
    /// Its payload may lie on a shelf. Then the caller must call [`keep`](Self::keep) before it clears the shelf.
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
            Direction::In => self.take_completed(client, segment),
            Direction::Out => {
                self.on_established(client, segment);
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
        if direction == Direction::In && self.is_refused_by(client, segment) {
            self.handshakes.remove(&client);
            return TableChange::Handshake;
        }
        match self.find(client) {
            Some(id) => self.apply(now, direction, id, segment, source),
            None if self.ended.contains_key(&client) => TableChange::Old,
            // A segment without data that comes when the restored socket has gone. Its sender needs no RST.
            None if segment.payload.is_empty() && self.handed_over.contains_key(&client) => TableChange::Old,
            None => self.on_unknown(now, direction, client, segment),
        }
    }

    fn insert(&mut self, mut connection: Connection) -> ConnectionId {
        connection.set_at_limit(self.config.at_limit.clone());
        let client = connection.client();
        self.memory += connection.memory() as u64;
        let id = self.slots.insert(connection);
        self.by_client.insert(client, id);
        id
    }

    fn apply(
        &mut self,
        now: Instant,
        direction: Direction,
        id: ConnectionId,
        segment: &Segment<'_>,
        source: Option<OnShelf<'_>>,
    ) -> TableChange {
        let changed = self.change_at(id, Some(now), |connection| {
            let was_shelved = connection.is_shelved();
            let effect = match direction {
                Direction::In => connection.on_client(segment, source),
                Direction::Out => connection.on_server(now, segment, source),
            };
            (effect, connection.is_shelved() && !was_shelved)
        });
        let (effect, is_shelved_now) = changed.expect("found by client");
        if is_shelved_now {
            self.shelved.push(id);
        }
        let connection = self.slots.get_mut(id).expect("it was changed");
        connection.prove(now);
        if let Some(reason) = connection.disproof() {
            self.unlearn(now, id, reason);
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
                self.remember_ended(now, id);
                self.let_go(now, id);
                TableChange::Ended(id)
            }
        }
    }

    fn remember_ended(&mut self, now: Instant, id: ConnectionId) {
        let endpoint = self.get(id).expect("still there").endpoint();
        let client = endpoint.client;
        while self.ended_order.len() >= ENDED_MAX
            || self
                .ended_order
                .front()
                .is_some_and(|&(_, at)| now.since(at) > ENDED_FOR)
        {
            let Some((oldest, at)) = self.ended_order.pop_front() else {
                break;
            };
            if self.ended.get(&oldest).is_some_and(|ended| ended.at == at) {
                self.ended.remove(&oldest);
            }
        }
        let ended = EndedConnection {
            at: now,
            next: endpoint.send_unacknowledged,
            acknowledge: endpoint.receive_next,
            timestamps: endpoint.timestamps,
        };
        self.ended_order.push_back((client, now));
        self.ended.insert(client, ended);
    }

    /// The acknowledgement that answers a late segment of an ended connection (TIME-WAIT, RFC 9293 §3.10.7.4). Only segments with
    /// data, SYN or FIN are answered. Once the restored socket of a connection has gone, only a FIN is answered; the answer's numbers
    /// are taken from that FIN.
    pub fn answer_to_old(&self, now: Instant, segment: &Segment<'_>) -> Option<Segment<'static>> {
        if segment.flags.rst || segment.seq_len() == 0 {
            return None;
        }
        let handed_over = self.handed_over.get(&segment.source);
        let (ended, clock) = match (self.ended.get(&segment.source), handed_over) {
            (Some(ended), _) => (Some(ended), ended.timestamps),
            (None, Some(&clock)) if segment.flags.fin => (None, clock),
            (None, _) => return None,
        };
        let timestamps = clock.zip(segment.options.timestamps);
        Some(Segment {
            source: segment.destination,
            destination: segment.source,
            seq: ended.map_or(segment.ack, |ended| ended.next),
            ack: ended.map_or(segment.seq + segment.seq_len(), |ended| ended.acknowledge),
            flags: Flags::ACK,
            window: u16::MAX,
            options: TcpOptions {
                timestamps: timestamps.map(|(clock, theirs)| Timestamps {
                    value: clock.value_at(now),
                    echo: theirs.value,
                }),
                ..TcpOptions::default()
            },
            payload: &[],
        })
    }

    /// Takes a connection out of the table, because a restored socket now has it.
    pub fn hand_over(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        let connection = self.remove(id)?;
        let clock = connection.endpoint().timestamps;
        self.handed_over.insert(connection.client(), clock);
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
        let connection = self.slots.remove(id)?;
        self.memory -= connection.memory() as u64;
        self.by_client.remove(&connection.client());
        if connection.is_capped() {
            self.words.push_back((connection.client(), CapChange::Forget));
        }
        Some(connection)
    }
}

#[cfg(test)]
mod tests;
