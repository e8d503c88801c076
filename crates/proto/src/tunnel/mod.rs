//! TCP connections over the streams of one SCTP association (docs/tunnel.md). No I/O: the caller moves bytes and messages.
//!
//! ```text
//!   program ── open, write, end, abort, consumed ──▶ Tunnel ── poll_message ──▶ stream of the connection
//!           ◀── poll_event ────────────────────────         ◀── handle_message ──
//! ```

mod message;
mod phase;
mod reception;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use thiserror::Error;

pub use message::{DATA_MAX, MalformedTunnel, SERVICE_MAX, TunnelMessage};
pub use phase::{TunnelPhase, TunnelPhaseEvent};
pub use reception::{CLIENTS_WAIT, ClientVerdict, RECALL, TunnelReception};
pub use turns::TunnelTurns;

/// Identifies a connection at one end. An id is never reused; the connection's stream number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelConnectionId(u64);

/// This end's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelRole {
    /// This end opens connections.
    Opening,
    /// The peer opens connections, and this end answers.
    Serving,
}

/// An event for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelEvent {
    /// The peer opens a connection to a service. Answer by `accept` or `abort`.
    Opened(TunnelConnectionId, String),
    /// Data for the program. Call `consumed` when the program has taken them.
    Data(TunnelConnectionId, Bytes),
    /// More can be sent than before.
    Writable(TunnelConnectionId),
    /// The peer's program has ended its direction.
    Ended(TunnelConnectionId),
    /// The peer's program is gone.
    Reset(TunnelConnectionId),
}

/// The peer broke the protocol. The association is to be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TunnelViolation {
    /// A message that cannot be read.
    #[error(transparent)]
    Malformed(#[from] MalformedTunnel),
    /// A message that does not fit the connection's state.
    #[error("stream {0}: a message does not fit the connection's state")]
    Misplaced(u16),
    /// The peer sent more data than it had credit for, or granted so much credit that more than 1 GiB is unused.
    #[error("stream {0} exceeds its credit")]
    Credit(u16),
}

#[derive(Debug)]
struct TunnelConnection {
    stream: u16,
    phase: TunnelPhase,
    /// Bytes that this end may send.
    credit: u32,
    /// Bytes that the peer may send.
    granted: u32,
    /// Bytes that the program took and for which the peer has not received new credit yet.
    owed: u32,
}

/// All connections of an association at one end.
#[derive(Debug)]
pub struct Tunnel {
    role: TunnelRole,
    window: u32,
    connections: HashMap<TunnelConnectionId, TunnelConnection>,
    by_stream: HashMap<u16, TunnelConnectionId>,
    /// Numbers of free streams. Kept up to date at the opening end only.
    free: BTreeSet<u16>,
    connections_max: usize,
    next: u64,
    messages: VecDeque<(u16, TunnelMessage)>,
    events: VecDeque<TunnelEvent>,
}

impl Tunnel {
    /// An end without connections. Streams 1 to `streams` exist. `window`: bytes of a connection that its program may leave unread.
    pub fn new(role: TunnelRole, window: u32, streams: u16) -> Self {
        Self {
            role,
            window,
            connections: HashMap::new(),
            by_stream: HashMap::new(),
            free: (1..=streams).collect(),
            connections_max: usize::from(streams),
            next: 0,
            messages: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether all streams are in use, so that no connection can be opened. For the opening end only: the serving end does not note which
    /// streams are in use.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Opens a connection to a service. `None` if all streams are in use.
    pub fn open(&mut self, service: String) -> Option<TunnelConnectionId> {
        debug_assert!(
            self.role == TunnelRole::Opening,
            "the serving end opens no connections"
        );
        let stream = self.free.pop_first()?;
        let id = self.insert(stream);
        self.messages.push_back((stream, TunnelMessage::Open(service)));
        self.grant(id);
        Some(id)
    }

    fn insert(&mut self, stream: u16) -> TunnelConnectionId {
        let id = TunnelConnectionId(self.next);
        self.next += 1;
        let connection = TunnelConnection {
            stream,
            phase: TunnelPhase::Live,
            credit: 0,
            granted: 0,
            owed: 0,
        };
        self.connections.insert(id, connection);
        self.by_stream.insert(stream, id);
        id
    }

    /// The service's program was reached: the peer may send.
    pub fn accept(&mut self, id: TunnelConnectionId) {
        self.grant(id);
    }

    fn grant(&mut self, id: TunnelConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.granted = self.window;
            self.messages
                .push_back((connection.stream, TunnelMessage::Credit(self.window)));
        }
    }

    /// Bytes that may be written to a connection now.
    pub fn allowance(&self, id: TunnelConnectionId) -> usize {
        let connection = self.connections.get(&id).filter(|one| one.phase.sends());
        connection.map_or(0, |connection| connection.credit as usize)
    }

    /// The program wrote data: at most `allowance` bytes.
    pub fn write(&mut self, id: TunnelConnectionId, mut data: Bytes) {
        let Some(connection) = self.connections.get_mut(&id).filter(|one| one.phase.sends()) else {
            return;
        };
        debug_assert!(
            data.len() <= connection.credit as usize,
            "more is written than is allowed"
        );
        connection.credit = connection.credit.saturating_sub(data.len() as u32);
        while !data.is_empty() {
            let part = data.split_to(data.len().min(DATA_MAX));
            self.messages
                .push_back((connection.stream, TunnelMessage::Data(part)));
        }
    }

    /// The program has ended its direction.
    pub fn end(&mut self, id: TunnelConnectionId) {
        self.local(id, TunnelPhaseEvent::EndSent);
    }

    /// The program is gone, or cannot be reached.
    pub fn abort(&mut self, id: TunnelConnectionId) {
        self.local(id, TunnelPhaseEvent::Abort);
    }

    fn local(&mut self, id: TunnelConnectionId, event: TunnelPhaseEvent) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let stream = connection.stream;
        let Some(after) = connection.phase.after(event) else {
            return;
        };
        connection.phase = after;
        let message = match event {
            TunnelPhaseEvent::EndSent => TunnelMessage::End,
            _ => TunnelMessage::Reset,
        };
        self.messages.push_back((stream, message));
        self.clear(id);
    }

    /// The program took `bytes` bytes of the data that it was given.
    pub fn consumed(&mut self, id: TunnelConnectionId, bytes: usize) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.owed = connection.owed.saturating_add(bytes as u32);
        let takes_data = matches!(connection.phase, TunnelPhase::Live | TunnelPhase::SentEnd);
        // A message for each quarter of the window: the peer seldom waits, and few messages are needed.
        if connection.owed >= self.window / 4 && takes_data {
            connection.granted += connection.owed;
            let credit = std::mem::take(&mut connection.owed);
            self.messages
                .push_back((connection.stream, TunnelMessage::Credit(credit)));
        }
    }

    /// A message of the peer.
    ///
    /// # Errors
    /// If the peer breaks the protocol.
    pub fn handle_message(&mut self, stream: u16, bytes: &Bytes) -> Result<(), TunnelViolation> {
        let message = TunnelMessage::parse(bytes)?;
        let known = self.by_stream.get(&stream).copied();
        let Some(id) = known else {
            return self.on_new(stream, message);
        };
        match message {
            TunnelMessage::Open(_) => Err(TunnelViolation::Misplaced(stream)),
            TunnelMessage::Data(data) => self.on_data(id, stream, data),
            TunnelMessage::Credit(bytes) => self.on_credit(id, stream, bytes),
            TunnelMessage::End => self.on_last(id, stream, TunnelPhaseEvent::EndReceived),
            TunnelMessage::Reset => self.on_last(id, stream, TunnelPhaseEvent::ResetReceived),
            TunnelMessage::Closed => self.on_closed(id, stream),
        }
    }

    fn on_new(&mut self, stream: u16, message: TunnelMessage) -> Result<(), TunnelViolation> {
        let TunnelMessage::Open(service) = message else {
            return Err(TunnelViolation::Misplaced(stream));
        };
        if self.role == TunnelRole::Opening || stream == 0 || usize::from(stream) > self.connections_max {
            return Err(TunnelViolation::Misplaced(stream));
        }
        let id = self.insert(stream);
        self.events.push_back(TunnelEvent::Opened(id, service));
        Ok(())
    }

    fn on_data(&mut self, id: TunnelConnectionId, stream: u16, data: Bytes) -> Result<(), TunnelViolation> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        match connection.phase {
            TunnelPhase::GotEnd | TunnelPhase::Over => {
                return Err(TunnelViolation::Misplaced(stream));
            }
            // The peer does not know of the RESET yet.
            TunnelPhase::Resetting => return Ok(()),
            TunnelPhase::Live | TunnelPhase::SentEnd => {}
        }
        let left = connection.granted.checked_sub(data.len() as u32);
        connection.granted = left.ok_or(TunnelViolation::Credit(stream))?;
        self.events.push_back(TunnelEvent::Data(id, data));
        Ok(())
    }

    fn on_credit(&mut self, id: TunnelConnectionId, stream: u16, bytes: u32) -> Result<(), TunnelViolation> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let sum = connection.credit.checked_add(bytes).filter(|sum| *sum <= 1 << 30);
        connection.credit = sum.ok_or(TunnelViolation::Credit(stream))?;
        if connection.phase.sends() {
            self.events.push_back(TunnelEvent::Writable(id));
        }
        Ok(())
    }

    fn on_last(
        &mut self,
        id: TunnelConnectionId,
        stream: u16,
        event: TunnelPhaseEvent,
    ) -> Result<(), TunnelViolation> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let before = connection.phase;
        connection.phase = before.after(event).ok_or(TunnelViolation::Misplaced(stream))?;
        let is_reset = event == TunnelPhaseEvent::ResetReceived;
        if is_reset && before.sends() {
            self.messages.push_back((stream, TunnelMessage::Reset));
        }
        // A RESET is reported even if the connection is already over, because the program may still be reading data that came before the
        // END.
        if before != TunnelPhase::Resetting {
            self.events.push_back(if is_reset {
                TunnelEvent::Reset(id)
            } else {
                TunnelEvent::Ended(id)
            });
        }
        if before != TunnelPhase::Over {
            self.clear(id);
        }
        Ok(())
    }

    /// Sends CLOSED if a connection is over. The peer's credit messages may still be in transit, so the stream's number is not free yet.
    fn clear(&mut self, id: TunnelConnectionId) {
        if let Some(connection) = self.connections.get(&id)
            && connection.phase == TunnelPhase::Over
        {
            self.messages
                .push_back((connection.stream, TunnelMessage::Closed));
        }
    }

    /// Handles CLOSED, the peer's last message on a connection. The peer has got this end's END or RESET, and has sent its own END or RESET
    /// before, so the connection must be over at this end, too.
    fn on_closed(&mut self, id: TunnelConnectionId, stream: u16) -> Result<(), TunnelViolation> {
        if self
            .connections
            .get(&id)
            .is_some_and(|one| one.phase != TunnelPhase::Over)
        {
            return Err(TunnelViolation::Misplaced(stream));
        }
        self.connections.remove(&id);
        self.by_stream.remove(&stream);
        self.free.insert(stream);
        Ok(())
    }

    /// The next message for the association, with its stream.
    pub fn poll_message(&mut self) -> Option<(u16, TunnelMessage)> {
        self.messages.pop_front()
    }

    /// The next event for the caller.
    pub fn poll_event(&mut self) -> Option<TunnelEvent> {
        self.events.pop_front()
    }
}
