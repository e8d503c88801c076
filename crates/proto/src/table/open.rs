//! The open connections of a table: by id, by client, and the memory that their logs hold together.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::slots::{ConnectionId, Slots};
use crate::Instant;
use crate::census::QUESTION_MAX;
use crate::clients::{ClientMap, client_map};
use crate::connection::{CapChange, Connection};
use crate::spill::LogFull;

/// Silence after which a connection may be gone. A server that has closed keeps its half (FIN-WAIT-2) for at most this long.
const SILENT: Duration = Duration::from_secs(60);
/// Time between two searches for silent connections. Ten thousand of them are all found within some five minutes.
const EVERY: Duration = Duration::from_secs(1);
/// Number of slots that one search looks at.
const LOOKED_AT_MAX: usize = 4096;

/// The open connections.
#[derive(Debug)]
pub(super) struct OpenConnections {
    by_client: ClientMap<ConnectionId>,
    slots: Slots<Connection>,
    /// Memory held by the connections' logs, in bytes.
    memory: u64,
    /// Connections with bytes on a shelf ([`Shelf`](crate::stream::Shelf)).
    shelved: Vec<ConnectionId>,
    /// Pending changes to clients' windows, in order.
    words: VecDeque<(SocketAddr, CapChange)>,
    search: SilentSearch,
}

/// Progress of the search for silent connections: the time of its last step, and the last slot that it looked at.
#[derive(Debug, Default)]
struct SilentSearch {
    at: Instant,
    slot: usize,
}

impl OpenConnections {
    pub(super) fn new(hash_seed: usize) -> Self {
        Self {
            by_client: client_map(hash_seed),
            slots: Slots::default(),
            memory: 0,
            shelved: Vec::new(),
            words: VecDeque::new(),
            search: SilentSearch::default(),
        }
    }

    /// Removes all connections. Ids stay unique, and pending changes to clients' windows stay.
    pub(super) fn clear(&mut self) {
        let ids: Vec<_> = self.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.remove(id);
        }
        self.shelved.clear();
        self.search = SilentSearch::default();
    }

    pub(super) fn len(&self) -> usize {
        self.by_client.len()
    }

    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    /// The connections, in a fixed order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        self.slots.iter()
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.slots.get(id)
    }

    /// A connection, for changes that do not affect its memory.
    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slots.get_mut(id)
    }

    pub(super) fn find(&self, client: SocketAddr) -> Option<ConnectionId> {
        self.by_client.get(&client).copied()
    }

    pub(super) fn insert(&mut self, connection: Connection) -> ConnectionId {
        let client = connection.client();
        self.memory += connection.memory() as u64;
        let id = self.slots.insert(connection);
        self.by_client.insert(client, id);
        id
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        let connection = self.slots.remove(id)?;
        self.memory -= connection.memory() as u64;
        self.by_client.remove(&connection.client());
        if connection.is_capped() {
            self.words.push_back((connection.client(), CapChange::Forget));
        }
        Some(connection)
    }

    /// Changes a connection, and then accounts for its memory. If a packet causes the change, `now` is the time when the packet was
    /// logged. If the connection may not grow (`may_grow`), and does, its log is reduced to what it was.
    pub(super) fn change<R>(
        &mut self,
        id: ConnectionId,
        now: Option<Instant>,
        may_grow: bool,
        change: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        let connection = self.slots.get_mut(id)?;
        let (before, was_shelved) = (connection.memory(), connection.is_shelved());
        let result = change(connection);
        if connection.is_shelved() && !was_shelved {
            self.shelved.push(id);
        }
        if !may_grow && connection.memory() > before {
            connection.hold(before, LogFull::Memory);
        }
        let client = connection.client();
        connection.judge_window(now, &mut |word| self.words.push_back((client, word)));
        self.memory = self.memory + connection.memory() as u64 - before as u64;
        Some(result)
    }

    /// The connections that have put bytes on a shelf since the last call.
    pub(super) fn take_shelved(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.shelved)
    }

    /// The next change to a client's window.
    pub(super) fn poll_word(&mut self) -> Option<(SocketAddr, CapChange)> {
        self.words.pop_front()
    }

    /// The clients that have been silent for a long time, at most [`QUESTION_MAX`], if it is time to look. Their connections may have ended
    /// without a packet: a client disappears, its server gives up, and no kernel sends anything.
    pub(super) fn poll_silent(&mut self, now: Instant) -> Vec<SocketAddr> {
        let places = self.slots.places();
        if now.since(self.search.at) < EVERY || places == 0 {
            return Vec::new();
        }
        self.search.at = now;
        let mut silent = Vec::new();
        for _ in 0..places.min(LOOKED_AT_MAX) {
            if silent.len() == QUESTION_MAX {
                break;
            }
            self.search.slot = (self.search.slot + 1) % places;
            let there = self.slots.at(self.search.slot);
            silent.extend(there.filter(|it| is_silent(it, now)).map(Connection::client));
        }
        silent
    }
}

/// Whether the server has said nothing on the connection for [`SILENT`] or longer. The connection may then be gone.
pub(super) fn is_silent(connection: &Connection, now: Instant) -> bool {
    now.since(connection.silent_since()) >= SILENT
}
