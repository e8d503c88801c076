//! What `bpf/steadfast.bpf.c` does on a node, packet by packet: log, then release; gate; egress guard.

use std::collections::VecDeque;
use std::net::SocketAddr;

use proto::Instant;
use proto::action::Gate;
use proto::packet::{Checksum, Segment};
use proto::table::Direction;

/// A packet in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// When it was logged.
    pub at: Instant,
    pub direction: Direction,
    pub packet: Vec<u8>,
}

/// A bounded log that one reader empties from the front.
#[derive(Debug)]
struct Ring {
    records: VecDeque<Record>,
    bytes: usize,
    capacity: usize,
    /// How many records were ever read.
    read: u64,
}

/// How far both rings were filled at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    connections: u64,
    opening: u64,
}

impl Ring {
    const fn new(capacity: usize) -> Self {
        Self {
            records: VecDeque::new(),
            bytes: 0,
            capacity,
            read: 0,
        }
    }

    fn end(&self) -> u64 {
        self.read + self.records.len() as u64
    }

    /// False if there is no room.
    fn push(&mut self, record: Record) -> bool {
        let bytes = size_in_ring(&record);
        let fits = self.bytes + bytes <= self.capacity;
        if fits {
            self.bytes += bytes;
            self.records.push_back(record);
        }
        fits
    }

    fn pop_before(&mut self, end: u64) -> Option<Record> {
        if self.read >= end {
            return None;
        }
        let record = self.records.pop_front()?;
        self.read += 1;
        self.bytes -= size_in_ring(&record);
        Some(record)
    }
}

/// With the ring's header and the record's, in whole words.
fn size_in_ring(record: &Record) -> usize {
    (8 + 16 + record.packet.len()).next_multiple_of(8)
}

/// What becomes of a packet that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Logged, and sent on to the other side.
    Released,
    /// Goes to the local stack.
    Local,
    /// Logged, and kept from both sides.
    Held,
    /// Gone.
    Dropped,
}

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Clients,
    Peer,
}

/// The wire and the guard of one service.
#[derive(Debug)]
pub(super) struct Wire {
    vip: SocketAddr,
    gate: Gate,
    connections: Ring,
    opening: Ring,
    full: u64,
}

impl Wire {
    /// A wire for the service at `vip` whose gate is off; its rings hold so many bytes.
    pub const fn new(vip: SocketAddr, ring_bytes: usize, opening_bytes: usize) -> Self {
        Self {
            vip,
            gate: Gate::Off,
            connections: Ring::new(ring_bytes),
            opening: Ring::new(opening_bytes),
            full: 0,
        }
    }

    pub const fn set_gate(&mut self, gate: Gate) {
        self.gate = gate;
    }

    /// How many packets were dropped because there was no room for them in the log.
    pub const fn full(&self) -> u64 {
        self.full
    }

    pub fn is_empty(&self) -> bool {
        self.connections.records.is_empty() && self.opening.records.is_empty()
    }

    /// How far the log reaches now.
    pub fn end(&self) -> End {
        End {
            connections: self.connections.end(),
            opening: self.opening.end(),
        }
    }

    /// The next record before `end`, SYNs first.
    pub fn read(&mut self, end: End) -> Option<Record> {
        self.opening
            .pop_before(end.opening)
            .or_else(|| self.connections.pop_before(end.connections))
    }

    /// How many records there are before `end`.
    pub fn unread(&self, end: End) -> u64 {
        end.connections.saturating_sub(self.connections.read) + end.opening.saturating_sub(self.opening.read)
    }

    /// A packet came in. `is_local` tells whether the local stack has a socket for a client that may take it.
    pub fn on_packet(
        &mut self,
        now: Instant,
        side: Side,
        packet: &[u8],
        is_local: impl FnOnce(SocketAddr) -> bool,
    ) -> Fate {
        let Ok(segment) = Segment::parse(packet, Checksum::Trusted) else {
            return Fate::Dropped;
        };
        let direction = if segment.destination == self.vip {
            Direction::In
        } else if segment.source == self.vip {
            Direction::Out
        } else {
            return Fate::Local;
        };
        match (self.gate, direction) {
            (Gate::Off, _) | (Gate::Primary, Direction::In) => Fate::Local,
            (Gate::Mute, _) | (Gate::Primary | Gate::Takeover, Direction::Out) => Fate::Dropped,
            (Gate::Wire, Direction::Out) if side != Side::Peer => Fate::Dropped,
            (Gate::Wire, _) => self.log(now, direction, segment.flags.syn, packet, Fate::Released),
            (Gate::Takeover, Direction::In) if segment.flags.syn || is_local(segment.source) => Fate::Local,
            (Gate::Takeover, Direction::In) => self.log(now, direction, false, packet, Fate::Held),
        }
    }

    fn log(&mut self, at: Instant, direction: Direction, opens: bool, packet: &[u8], fate: Fate) -> Fate {
        let ring = if opens {
            &mut self.opening
        } else {
            &mut self.connections
        };
        if ring.push(Record {
            at,
            direction,
            packet: packet.to_vec(),
        }) {
            fate
        } else {
            self.full += 1;
            Fate::Dropped
        }
    }

    /// Whether the egress guard lets a packet out that the local stack or a raw socket sends.
    pub fn lets_out(&self, packet: &[u8]) -> bool {
        let is_ours =
            Segment::parse(packet, Checksum::Trusted).is_ok_and(|segment| segment.source == self.vip);
        !is_ours || matches!(self.gate, Gate::Off | Gate::Primary | Gate::Takeover)
    }
}
