//! The log of one direction of a connection. The log reassembles the bytes, and keeps them from the restart point on.
//!
//! ```text
//!        base               frontier        ahead        ahead
//!  ──────┼───────────────────┼───────────────█████───────███──────▶ offset
//!  gone  │ kept, contiguous  │ not seen yet  │ seen, out of order
//! ```
//!
//! Bytes that come in order may stay in the caller's memory, the shelf ([`Shelf`]), until [`StreamLog::keep`] copies those that the log
//! still needs. Most of them are acknowledged by then, and are never copied. The oldest kept bytes may be moved to a file
//! ([`StreamLog::spill`]).

mod chunks;
mod shelf;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::spill::{LogFull, LogPart, Spilled, Spills};
use crate::{Offset, Seq};
use chunks::{Chunks, at_index};
use shelf::Shelved;
pub use shelf::{OnShelf, Shelf};

const AHEAD_MAX: usize = 256;
/// Smallest payload, in bytes, that is left on the shelf. Copying a smaller payload immediately costs no more than remembering its place on
/// the shelf.
const SHELVED_MIN: usize = 1024;
/// Largest capacity, in pieces, that the empty list of shelved pieces keeps. A larger allocation is freed.
const SHELVED_KEPT: usize = 8;
/// Number of bytes that are read from a file at a time.
const PIECE: usize = 64 * 1024;

/// The result of inserting bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// All bytes were known already. The bytes that are still in memory have the same contents; the others were not compared.
    Known,
    /// At least one new byte was stored.
    Stored,
    /// The bytes differ from bytes that are still in memory, or lie beyond the stream's end: a contradiction. Nothing was stored.
    Conflict,
    /// There are too many holes. Nothing was stored.
    TooManyHoles,
}

/// The log of one stream.
#[derive(Debug)]
pub struct StreamLog {
    first: Seq,
    start: Offset,
    base: Offset,
    frontier: Offset,
    /// Sorted, disjoint, not adjacent, all after the frontier.
    ahead: Vec<Range<Offset>>,
    fin: Option<Offset>,
    chunks: Chunks,
    /// The kept bytes before the first chunk.
    spilled: Option<Box<Spilled>>,
    /// The pieces that lie on a shelf, in order. The last piece ends at the frontier. There are no pieces while a range lies ahead.
    shelved: VecDeque<Shelved>,
}

impl StreamLog {
    /// An empty log of the stream whose byte 0 has the sequence number `first`. The owner decides how far ahead of the frontier bytes may
    /// lie.
    pub fn new(first: Seq) -> Self {
        Self::starting(Offset::ZERO, first)
    }

    /// An empty log of a stream that is learnt in its middle. `first` is the sequence number of the first known byte, at
    /// [`Offset::LEARNT`].
    pub fn learnt(first: Seq) -> Self {
        Self::starting(Offset::LEARNT, first)
    }

    /// An empty log that ends before [`Offset::LEARNT`], for the bytes from `start` to there. `first` is as for [`learnt`](Self::learnt).
    pub(crate) fn before_learnt(start: Offset, first: Seq) -> Self {
        Self::starting(start, first)
    }

    fn starting(start: Offset, first: Seq) -> Self {
        Self {
            first,
            start,
            base: start,
            frontier: start,
            ahead: Vec::new(),
            fin: None,
            chunks: Chunks::new(start),
            spilled: None,
            shelved: VecDeque::new(),
        }
    }

    /// The sequence number of byte 0.
    pub fn first(&self) -> Seq {
        self.first
    }

    /// The first byte of the stream that could be logged: 0, or [`Offset::LEARNT`], or an offset before that.
    pub fn start(&self) -> Offset {
        self.start
    }

    /// The first byte that is kept.
    pub fn base(&self) -> Offset {
        self.base
    }

    /// The frontier: all bytes before this offset were logged.
    pub fn frontier(&self) -> Offset {
        self.frontier
    }

    /// End of the last byte that was logged, even if the byte lies behind a hole.
    pub fn end(&self) -> Offset {
        self.ahead.last().map_or(self.frontier, |range| range.end)
    }

    /// Number of ranges that lie behind a hole.
    pub fn holes(&self) -> usize {
        self.ahead.len()
    }

    /// Whether there are holes.
    pub fn has_holes(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// The stream's length, once its FIN was seen.
    pub fn fin(&self) -> Option<Offset> {
        self.fin
    }

    /// Whether the FIN was seen and no byte before it is missing.
    pub fn is_complete(&self) -> bool {
        self.fin == Some(self.frontier)
    }

    /// The sequence number after all contiguous bytes, and after the FIN if no byte before the FIN is missing.
    pub fn next_seq(&self) -> Seq {
        self.frontier.to_seq(self.first) + u32::from(self.is_complete())
    }

    /// The sequence number after all logged bytes, even those behind a hole, and after the FIN if it was seen.
    pub fn end_seq(&self) -> Seq {
        self.fin.map_or(self.end(), |fin| fin + 1).to_seq(self.first)
    }

    /// The offset of the byte with the sequence number `seq`. Of the possible offsets, the result is the one nearest to the frontier.
    /// `None` if this offset lies before the stream's start.
    pub fn offset_of(&self, seq: Seq) -> Option<Offset> {
        Offset::from_seq(seq, self.first, self.frontier)
    }

    /// Memory that the kept bytes use, in bytes. Chunks that wait for reuse do not count.
    pub fn memory(&self) -> usize {
        self.chunks.memory()
    }

    /// Bytes that the log's file holds.
    pub fn spilled(&self) -> u64 {
        self.spilled.as_ref().map_or(0, |spilled| spilled.bytes())
    }

    /// The first kept byte that is not in a file.
    pub(crate) fn resident(&self) -> Offset {
        self.spilled.as_ref().map_or(self.base, |spilled| spilled.end())
    }

    /// Notes that the stream ends at `at`. Returns false if this contradicts what was logged before.
    pub fn set_fin(&mut self, at: Offset) -> bool {
        let consistent = at >= self.end() && self.fin.is_none_or(|fin| fin == at);
        if consistent {
            self.fin = Some(at);
        }
        consistent
    }

    /// Forgets the stream's end if bytes before it are missing. The sender must repeat its FIN.
    pub fn forget_incomplete_fin(&mut self) {
        self.fin = self.fin.filter(|_| self.is_complete());
    }

    /// Stores `bytes`, which stand at `at` in the stream. The bytes may lie on a shelf. If pieces of the log lie on a shelf already, the
    /// bytes must lie on the same shelf.
    ///
    /// # Panics
    /// If pieces of the log lie on a shelf and `bytes` on none, except for bytes at the frontier: there, the mistake is not noticed.
    pub fn insert(&mut self, at: Offset, bytes: &[u8], source: Option<OnShelf<'_>>) -> Inserted {
        let end = at + bytes.len() as u64;
        if self.fin.is_some_and(|fin| end > fin) {
            return Inserted::Conflict;
        }
        if at == self.frontier && self.ahead.is_empty() {
            if bytes.is_empty() {
                return Inserted::Known;
            }
            match source {
                Some(OnShelf { place, .. }) if bytes.len() >= SHELVED_MIN || self.is_shelved() => {
                    let range = at..end;
                    self.shelved.push_back(Shelved { range, place });
                }
                _ => self.chunks.write(at, bytes),
            }
            self.frontier = end;
            return Inserted::Stored;
        }
        if self.is_shelved() {
            self.keep(source.expect("further bytes must lie on the shelf too").shelf);
        }
        self.insert_overlapping(at, bytes)
    }

    /// Whether bytes lie on a shelf. They cannot be read until [`keep`](Self::keep) has copied them.
    pub fn is_shelved(&self) -> bool {
        !self.shelved.is_empty()
    }

    /// Copies the bytes on the shelf that are still needed.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        while let Some(Shelved { range, place }) = self.shelved.pop_front() {
            let start = range.start.max(self.base);
            let bytes = shelf.bytes(place + start.since(range.start), at_index(range.end.since(start)));
            self.chunks.write(start, bytes);
        }
        if self.shelved.capacity() > SHELVED_KEPT {
            self.shelved = VecDeque::new();
        }
    }

    fn insert_overlapping(&mut self, at: Offset, bytes: &[u8]) -> Inserted {
        let end = at + bytes.len() as u64;
        let part =
            |range: &Range<Offset>| &bytes[at_index(range.start.since(at))..at_index(range.end.since(at))];
        let known = std::iter::once(self.resident()..self.frontier).chain(self.ahead.iter().cloned());
        let mut unknown = Vec::new();
        let mut position = at.max(self.resident());
        for range in known {
            let overlap = position.max(range.start)..end.min(range.end);
            if overlap.start < overlap.end && !self.chunks.equals(overlap.start, part(&overlap)) {
                return Inserted::Conflict;
            }
            let gap = position..end.min(range.start);
            if gap.start < gap.end {
                unknown.push(gap);
            }
            position = position.max(range.end);
        }
        if position < end {
            unknown.push(position..end);
        }
        if unknown.is_empty() {
            return Inserted::Known;
        }
        if self.ahead.len() + unknown.len() > AHEAD_MAX {
            return Inserted::TooManyHoles;
        }
        for range in &unknown {
            self.chunks.write(range.start, part(range));
        }
        self.ahead.extend(unknown);
        self.merge();
        Inserted::Stored
    }

    /// Joins ranges that touch each other, and moves the frontier past the ranges that touch the frontier.
    fn merge(&mut self) {
        self.ahead.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<Offset>> = Vec::with_capacity(self.ahead.len());
        for range in self.ahead.drain(..) {
            if range.start <= self.frontier {
                self.frontier = self.frontier.max(range.end);
            } else if let Some(last) = merged.last_mut().filter(|last| last.end >= range.start) {
                last.end = last.end.max(range.end);
            } else {
                merged.push(range);
            }
        }
        self.ahead = merged;
    }

    /// Forgets the bytes before `to` (at most up to the frontier).
    pub fn release(&mut self, to: Offset) {
        self.base = self.base.max(to.min(self.frontier));
        match &mut self.spilled {
            Some(spilled) if spilled.end() > self.base => spilled.release(self.base),
            _ => self.spilled = None,
        }
        while let Some(piece) = self.shelved.front()
            && piece.range.end <= self.base
        {
            self.shelved.pop_front();
        }
        if self.base == self.frontier && self.ahead.is_empty() {
            self.chunks.clear(self.base);
        }
        self.chunks.release(self.base);
        if self.chunks.is_empty() {
            self.chunks.begin_at(self.resident());
        }
    }

    /// Forgets all bytes, also those behind a hole. The log still knows which bytes were seen. [`pass`](Self::pass) notes further
    /// bytes.
    pub fn give_up(&mut self) {
        self.shelved = VecDeque::new();
        self.spilled = None;
        self.chunks = Chunks::new(self.frontier);
        self.base = self.frontier;
    }

    /// Notes that the bytes `seen` passed in a stream whose log is given up. If there are too many holes, the first one counts as filled.
    pub fn pass(&mut self, seen: Range<Offset>) {
        let end = self.fin.map_or(seen.end, |fin| fin.min(seen.end));
        if self.ahead.is_empty() && seen.start <= self.frontier {
            self.frontier = self.frontier.max(end);
        } else if seen.start < end {
            self.ahead.push(seen.start..end);
            self.merge();
        }
        if self.ahead.len() > AHEAD_MAX {
            self.frontier = self.ahead.remove(0).end;
        }
        self.give_up();
    }

    /// Moves kept bytes before `to` to a file, the oldest first and in whole chunks, until at most `memory` bytes of memory are
    /// held. Bytes in the file are not compared with later copies of them: the receiver has everything before `to` for certain.
    ///
    /// # Errors
    /// A file cannot be made or written, or may not hold more. Bytes that were moved before stay moved.
    pub fn spill(&mut self, spills: &Arc<Spills>, to: Offset, memory: usize) -> Result<(), LogFull> {
        let in_chunks = self
            .shelved
            .front()
            .map_or(self.frontier, |piece| piece.range.start);
        while self.memory() > memory && self.chunks.first_end() <= to.min(in_chunks) {
            let start = self.chunks.origin().max(self.base);
            let spilled = match &mut self.spilled {
                Some(spilled) => spilled,
                none => none.insert(Box::new(Spilled::begin(spills, start)?)),
            };
            let written = spilled.append(self.chunks.first_from(start));
            if spilled.bytes() == 0 {
                self.spilled = None;
            }
            written?;
            self.chunks.drop_first();
        }
        Ok(())
    }

    /// Appends all bytes of `later`, whose log begins where this one ends, and its end. `make_room` is called after each piece.
    ///
    /// # Errors
    /// The file of `later` cannot be read.
    pub(crate) fn append(
        &mut self,
        later: &Self,
        mut make_room: impl FnMut(&mut Self),
    ) -> std::io::Result<()> {
        let mut buffer = Vec::new();
        for part in later.parts(later.base..later.frontier) {
            match part {
                LogPart::Memory(bytes) => {
                    self.insert(self.frontier, bytes, None);
                    make_room(self);
                }
                LogPart::File(mut part) => {
                    buffer.resize(PIECE, 0);
                    while part.len > 0 {
                        let count = part.read(&mut buffer)?;
                        self.insert(self.frontier, &buffer[..count], None);
                        make_room(self);
                    }
                }
            }
        }
        for (at, bytes) in later.ahead() {
            self.insert(at, &bytes, None);
        }
        self.fin = later.fin;
        Ok(())
    }

    /// The kept bytes of `range`, in order, as slices.
    ///
    /// # Panics
    /// If the range is not kept and contiguous, or lies on a shelf or in a file.
    pub fn slices(&self, range: Range<Offset>) -> impl Iterator<Item = &[u8]> {
        assert!(
            self.resident() <= range.start && range.end <= self.frontier && !self.is_shelved(),
            "{range:?} of {self:?}"
        );
        self.chunks.pieces(range.start, range.end.since(range.start))
    }

    /// The kept bytes of `range`, in order, from memory and from the file.
    ///
    /// # Panics
    /// If the range is not kept and contiguous, or lies on a shelf.
    pub fn parts(&self, range: Range<Offset>) -> impl Iterator<Item = LogPart<'_>> {
        assert!(self.base <= range.start, "{range:?} of {self:?}");
        let in_file = range.start..range.end.min(self.resident());
        let in_memory = range.start.max(self.resident())..range.end;
        let file = self.spilled.as_ref().filter(|_| !in_file.is_empty());
        let file = file.map(|spilled| spilled.part(in_file.start, in_file.end.since(in_file.start)));
        let memory = (!in_memory.is_empty()).then(|| self.slices(in_memory).map(LogPart::Memory));
        file.into_iter().chain(memory.into_iter().flatten())
    }

    /// The ranges that lie behind a hole, with their bytes.
    pub fn ahead(&self) -> impl Iterator<Item = (Offset, Vec<u8>)> {
        self.ahead.iter().map(|range| {
            let len = range.end.since(range.start);
            (
                range.start,
                self.chunks.pieces(range.start, len).flatten().copied().collect(),
            )
        })
    }
}

#[cfg(test)]
mod tests;
