//! The judge's record of a connection, and of a copied server state.

use std::cell::RefCell;
use std::rc::Rc;

use proto::Instant;
use proto::packet::Segment;

use super::state_sync::SimServerState;

/// The bytes of a stream that were seen.
#[derive(Debug, Default)]
pub(super) struct ObservedBytes {
    pub bytes: Vec<Option<u8>>,
    pub contiguous: usize,
    pub fin: Option<u64>,
}

impl ObservedBytes {
    /// Notes a segment's contents. The error is the position of a contradiction: the first byte that differs from the
    /// known byte, or that lies at or past the known FIN. If all bytes fit, the FIN can still contradict the known
    /// bytes or the known FIN.
    pub fn note(&mut self, at: i64, payload: &[u8], fin: bool) -> Result<(), u64> {
        let end = at + payload.len() as i64;
        for (position, byte) in (at..end).zip(payload) {
            let Ok(position) = usize::try_from(position) else {
                continue;
            };
            if position >= self.bytes.len() {
                self.bytes.resize(position + 1, None);
            }
            let known = self.bytes[position].get_or_insert(*byte);
            if known != byte || self.fin.is_some_and(|fin| position as u64 >= fin) {
                return Err(position as u64);
            }
        }
        while self.bytes.get(self.contiguous).is_some_and(Option::is_some) {
            self.contiguous += 1;
        }
        if let Some(end) = u64::try_from(end).ok().filter(|_| fin) {
            let is_first = self.fin.is_none() && end >= self.bytes.len() as u64;
            if !is_first && self.fin != Some(end) {
                return Err(end);
            }
            self.fin = Some(end);
        }
        Ok(())
    }

    /// Forgets all that is behind the first gap.
    pub fn forget_behind_hole(&mut self) {
        self.bytes.truncate(self.contiguous);
        self.fin = self.fin.filter(|&fin| fin <= self.contiguous as u64);
    }

    /// The end of what is known without a gap. The FIN counts as one byte.
    pub fn end(&self) -> u64 {
        let contiguous = self.contiguous as u64;
        contiguous + u64::from(self.fin == Some(contiguous))
    }

    /// Whether a byte or the FIN after a gap is known.
    pub const fn has_hole(&self) -> bool {
        let is_behind = match self.fin {
            Some(fin) => fin > self.contiguous as u64,
            None => false,
        };
        self.bytes.len() > self.contiguous || is_behind
    }

    pub fn has(&self, at: i64, payload: &[u8]) -> bool {
        (at..).zip(payload).all(|(position, byte)| {
            let known = usize::try_from(position).map(|position| self.bytes.get(position).copied().flatten());
            known.is_err() || known == Ok(Some(*byte))
        })
    }
}

/// Offsets of a server's segment: of its first byte in the output, and of its acknowledgement in the input.
#[derive(Clone, Copy)]
pub(super) struct SegmentOffsets {
    pub at: i64,
    pub acknowledges: i64,
}

/// The largest acknowledgement, right edge of the window and timestamp of some segments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Most {
    pub acknowledged: u64,
    pub right_edge: u64,
    pub timestamp: Option<u32>,
}

impl Most {
    /// The values of one segment.
    pub fn of(segment: &Segment<'_>, place: SegmentOffsets, shift: u8) -> Self {
        let acknowledged = u64::try_from(place.acknowledges).unwrap_or(0);
        Self {
            acknowledged,
            right_edge: acknowledged + (u64::from(segment.window) << shift),
            timestamp: segment.options.timestamps.map(|timestamps| timestamps.value),
        }
    }

    /// Describes how `later` falls behind `self`, if it does.
    pub fn is_more_than(self, later: Self, shift: u8) -> Option<String> {
        let is_before = |(now, before): (u32, u32)| now.wrapping_sub(before).cast_signed() < 0;
        let is_less = later.acknowledged < self.acknowledged
            || later.right_edge + (1 << shift) <= self.right_edge // the window field counts whole units of `1 << shift` bytes
            || later.timestamp.zip(self.timestamp).is_some_and(is_before);
        is_less.then(|| format!("{later:?} after {self:?}"))
    }

    pub fn or(self, other: Self) -> Self {
        let timestamp = match (self.timestamp, other.timestamp) {
            (Some(one), Some(other)) if other.wrapping_sub(one).cast_signed() < 0 => Some(one),
            (one, other) => other.or(one),
        };
        Self {
            acknowledged: self.acknowledged.max(other.acknowledged),
            right_edge: self.right_edge.max(other.right_edge),
            timestamp,
        }
    }
}

/// The node that sends a packet, and its right to do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketSpeaker {
    /// Number of the node, 0 or 1.
    pub node: usize,
    /// Epoch of the gate that lets the packet out.
    pub epoch: u64,
    /// The node's gate says that no wire is between the node and the clients.
    pub is_alone: bool,
    /// The node speaks only by a lease, which ends: no arbiter has given the node the epoch yet.
    pub is_lent: bool,
    /// The lease may be over: the node's clock stood still, and the node has not noticed yet.
    pub is_outlasted: bool,
}

/// The copy of a server's state on one node.
#[derive(Debug)]
pub(super) struct ObservedCopy {
    /// The node's server.
    pub server: Rc<RefCell<SimServerState>>,
    /// The state that was copied last. `None`: no copy, or the copy is lost.
    pub copied: Option<SimServerState>,
    /// Start of the present run of the hook's *finish* phase. Connections that are opened later have no input in this
    /// run's copy.
    pub finishing: Option<Instant>,
    /// Start of the *finish* run that made the copy on which the node's agent relies.
    pub covers_from: Option<Instant>,
    /// Time limit of the hold, if input is held. From then on the wire lets input pass, even if the wire's agent is stopped.
    pub held_until: Option<Instant>,
    /// How the primary's state differed from the copy when the hold ended.
    pub difference: Option<String>,
}

impl ObservedCopy {
    pub fn forget(&mut self) {
        (self.copied, self.finishing, self.covers_from, self.difference) = (None, None, None, None);
    }
}
