//! One direction of a connection as it was logged: reassembled, kept from the restart point on.
//!
//! ```text
//!        base               frontier        ahead        ahead
//!  ──────┼───────────────────┼───────────────█████───────███──────▶ offset
//!  given │ kept, contiguous  │ not seen yet  │ seen, out of order
//!  up    │                   │
//! ```
//!
//! What comes in order from a [`Shelf`] stays there until [`StreamLog::keep`]: most of it was acknowledged by then, and is
//! never copied. The oldest of what is kept may be moved to a file ([`StreamLog::spill`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::spill::{Full, Part, Spilled, Spills};
use crate::{Offset, Seq};

const CHUNK: usize = 32 * 1024;
const AHEAD_MAX: usize = 256;
/// Chunks kept for reuse while a log is in use.
const SPARE_MAX: usize = 32;
/// A chunk so small is kept for reuse when a log is empty: small messages come again and again.
const SMALL: usize = 2048;

/// Bytes from a shelf that are fewer than these are copied at once: that costs no more than remembering where they are.
const SHELVED_MIN: usize = 1024;
/// Room for so many pieces on a shelf stays when none is there.
const SHELVED_KEPT: usize = 8;

/// Where bytes that a log was given can be read again, until the log was told to [`keep`](StreamLog::keep) what it needs.
pub trait Shelf {
    /// `len` bytes from `place` on.
    fn bytes(&self, place: u64, len: usize) -> &[u8];
}

/// Where some bytes lie.
#[derive(Clone, Copy)]
pub struct OnShelf<'a> {
    /// On this shelf.
    pub shelf: &'a dyn Shelf,
    /// From here on.
    pub place: u64,
}

impl OnShelf<'_> {
    /// The place `bytes` further on.
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        let place = self.place + bytes as u64;
        Self { place, ..self }
    }
}

/// A piece of the stream that lies on a shelf.
#[derive(Clone, Debug)]
struct Shelved {
    range: Range<Offset>,
    place: u64,
}

/// What became of a piece of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// All of it was known already, with the same contents.
    Known,
    /// At least one new byte was stored.
    Stored,
    /// Bytes that are still kept were different: someone contradicts himself. Nothing was stored.
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
    /// Sorted, disjoint, not adjacent, all behind the frontier.
    ahead: Vec<Range<Offset>>,
    fin: Option<Offset>,
    /// Chunk `i` holds the bytes from `origin + i * CHUNK` on. The first one grows as it is filled, up to that size.
    chunks: VecDeque<Vec<u8>>,
    origin: Offset,
    /// Memory of the chunks, in bytes.
    memory: usize,
    /// What is kept before the first chunk.
    spilled: Option<Box<Spilled>>,
    /// The last pieces before the frontier, in order, while nothing is ahead.
    shelved: VecDeque<Shelved>,
    /// Chunks that were given up last: their memory is still in the caches.
    spare: Vec<Vec<u8>>,
}

impl StreamLog {
    /// An empty log of the stream whose byte 0 has the number `first`. How far ahead it may reach is for its owner to judge.
    pub fn new(first: Seq) -> Self {
        Self::starting(Offset::ZERO, first)
    }

    /// The same of a stream that is learnt in its middle: `first` is the number of [`Offset::LEARNT`], and nothing before it is
    /// known.
    pub fn learnt(first: Seq) -> Self {
        Self::starting(Offset::LEARNT, first)
    }

    fn starting(start: Offset, first: Seq) -> Self {
        Self {
            first,
            start,
            base: start,
            frontier: start,
            ahead: Vec::new(),
            fin: None,
            chunks: VecDeque::new(),
            origin: start,
            memory: 0,
            spilled: None,
            shelved: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// The number of byte 0.
    pub fn first(&self) -> Seq {
        self.first
    }

    /// The first byte that was ever to be logged: 0, or [`Offset::LEARNT`].
    pub fn start(&self) -> Offset {
        self.start
    }

    /// The first byte that is kept.
    pub fn base(&self) -> Offset {
        self.base
    }

    /// All bytes before this one were logged.
    pub fn frontier(&self) -> Offset {
        self.frontier
    }

    /// Behind the last byte that was logged, holes or not.
    pub fn end(&self) -> Offset {
        self.ahead.last().map_or(self.frontier, |range| range.end)
    }

    /// How many ranges lie behind a hole.
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

    /// The sequence number that comes after all that is contiguous, the FIN included.
    pub fn next_seq(&self) -> Seq {
        self.frontier.to_seq(self.first) + u32::from(self.is_complete())
    }

    /// The sequence number that comes after all that was logged, holes or not, the FIN included.
    pub fn end_seq(&self) -> Seq {
        self.fin.map_or(self.end(), |fin| fin + 1).to_seq(self.first)
    }

    /// The offset that `seq` means, near the frontier. `None`: before the stream's start.
    pub fn offset_of(&self, seq: Seq) -> Option<Offset> {
        Offset::from_seq(seq, self.first, self.frontier)
    }

    /// Memory held by what is kept, in bytes; not counted is what waits to be used again while the log is in use.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Bytes that its file holds.
    pub fn spilled(&self) -> u64 {
        self.spilled.as_ref().map_or(0, |spilled| spilled.bytes())
    }

    /// The first byte that is kept, but not in a file.
    pub(crate) fn resident(&self) -> Offset {
        self.spilled.as_ref().map_or(self.base, |spilled| spilled.end())
    }

    /// The sender said that its stream ends at `at`. False if it said otherwise before: a contradiction.
    pub fn set_fin(&mut self, at: Offset) -> bool {
        let consistent = at >= self.end() && self.fin.is_none_or(|fin| fin == at);
        if consistent {
            self.fin = Some(at);
        }
        consistent
    }

    /// Forgets the end of a stream of which bytes are missing: it is to be said again.
    pub fn forget_incomplete_fin(&mut self) {
        self.fin = self.fin.filter(|_| self.is_complete());
    }

    /// Stores `bytes`, which stand at `at` in the stream, and perhaps on a shelf.
    ///
    /// # Panics
    /// If pieces of it lie on a shelf, and `bytes` on none.
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
                _ => self.write(at, bytes),
            }
            self.frontier = end;
            return Inserted::Stored;
        }
        if self.is_shelved() {
            self.keep(source.expect("one shelf, or none").shelf);
        }
        self.insert_overlapping(at, bytes)
    }

    /// Whether bytes lie on a shelf: they cannot be read before they are kept.
    pub fn is_shelved(&self) -> bool {
        !self.shelved.is_empty()
    }

    /// Copies what lies on the shelf and is still needed.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        while let Some(Shelved { range, place }) = self.shelved.pop_front() {
            let start = range.start.max(self.base);
            let bytes = shelf.bytes(place + start.since(range.start), at_index(range.end.since(start)));
            self.write(start, bytes);
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
            if overlap.start < overlap.end && !self.equals(overlap.start, part(&overlap)) {
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
            self.write(range.start, part(range));
        }
        self.ahead.extend(unknown);
        self.merge();
        Inserted::Stored
    }

    /// Joins ranges that touch, and moves the frontier over those that reach it.
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
            self.clear();
        }
        while self.origin + CHUNK as u64 <= self.base {
            let Some(chunk) = self.chunks.pop_front() else {
                break;
            };
            self.drop_chunk(chunk);
        }
        if self.chunks.is_empty() {
            self.origin = self.resident();
        }
    }

    /// Of a stream that is not kept any more: bytes up to `end` were seen. What is missing before it never comes.
    pub fn pass(&mut self, end: Offset) {
        self.frontier = self.end().max(end);
        self.ahead.clear();
        self.release(self.frontier);
    }

    /// The first chunk, which was taken out, is not needed any more.
    fn drop_chunk(&mut self, mut chunk: Vec<u8>) {
        self.origin += CHUNK as u64;
        self.memory -= chunk.capacity();
        if self.spare.len() < SPARE_MAX {
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    /// Moves what is kept before `to` to a file, the oldest first and in whole chunks, until no more than `memory` bytes of memory
    /// are held. What is in the file is not compared with copies of it any more: `to` is what the receiver has for certain.
    ///
    /// # Errors
    /// A file cannot be made or written, or may not hold more. What was moved before is moved.
    pub fn spill(&mut self, spills: &Arc<Spills>, to: Offset, memory: usize) -> Result<(), Full> {
        let in_chunks = self
            .shelved
            .front()
            .map_or(self.frontier, |piece| piece.range.start);
        while self.memory > memory && self.origin + CHUNK as u64 <= to.min(in_chunks) {
            let start = self.origin.max(self.base);
            let spilled = match &mut self.spilled {
                Some(spilled) => spilled,
                none => none.insert(Box::new(Spilled::begin(spills, start)?)),
            };
            let written = spilled.append(&self.chunks[0][at_index(start.since(self.origin))..]);
            if spilled.bytes() == 0 {
                self.spilled = None;
            }
            written?;
            let chunk = self.chunks.pop_front().expect("it has just been written");
            self.drop_chunk(chunk);
        }
        Ok(())
    }

    /// Nothing is kept any more: what comes next begins a chunk.
    fn clear(&mut self) {
        self.origin = self.base;
        self.memory = 0;
        if self.chunks.len() == 1 && self.chunks[0].capacity() <= SMALL {
            let mut chunk = self.chunks.pop_front().expect("one is there");
            chunk.clear();
            self.spare = vec![chunk];
        } else if !self.chunks.is_empty() {
            self.chunks = VecDeque::new();
            self.spare = Vec::new();
        }
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
        self.pieces(range.start, range.end.since(range.start))
    }

    /// The kept bytes of `range`, in order, in memory or not.
    ///
    /// # Panics
    /// If the range is not kept and contiguous, or lies on a shelf.
    pub fn parts(&self, range: Range<Offset>) -> impl Iterator<Item = Part<'_>> {
        assert!(self.base <= range.start, "{range:?} of {self:?}");
        let in_file = range.start..range.end.min(self.resident());
        let in_memory = range.start.max(self.resident())..range.end;
        let file = self.spilled.as_ref().filter(|_| !in_file.is_empty());
        let file = file.map(|spilled| spilled.part(in_file.start, in_file.end.since(in_file.start)));
        let memory = (!in_memory.is_empty()).then(|| self.slices(in_memory).map(Part::Memory));
        file.into_iter().chain(memory.into_iter().flatten())
    }

    /// The ranges that lie behind a hole, with their bytes.
    pub fn ahead(&self) -> impl Iterator<Item = (Offset, Vec<u8>)> {
        self.ahead.iter().map(|range| {
            let len = range.end.since(range.start);
            (
                range.start,
                self.pieces(range.start, len).flatten().copied().collect(),
            )
        })
    }

    fn pieces(&self, mut at: Offset, mut len: u64) -> impl Iterator<Item = &[u8]> {
        std::iter::from_fn(move || {
            if len == 0 {
                return None;
            }
            let (chunk, start) = self.locate(at);
            let count = len.min((CHUNK - start) as u64);
            at += count;
            len -= count;
            Some(&self.chunks[chunk][start..start + at_index(count)])
        })
    }

    fn equals(&self, at: Offset, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.pieces(at, bytes.len() as u64).all(|piece| {
            let (head, tail) = rest.split_at(piece.len());
            rest = tail;
            head == piece
        })
    }

    fn locate(&self, at: Offset) -> (usize, usize) {
        let distance = at_index(at.since(self.origin));
        (distance / CHUNK, distance % CHUNK)
    }

    fn write(&mut self, mut at: Offset, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (index, start) = self.locate(at);
            while self.chunks.len() <= index {
                let chunk = self.spare.pop().unwrap_or_default();
                self.memory += chunk.capacity();
                self.chunks.push_back(chunk);
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - start));
            let chunk = &mut self.chunks[index];
            let before = chunk.capacity();
            if start > chunk.len() {
                chunk.resize(start, 0);
            }
            let overwritten = now.len().min(chunk.len() - start);
            chunk[start..start + overwritten].copy_from_slice(&now[..overwritten]);
            if before < start + now.len() {
                let is_small = index == 0 && start + now.len() <= SMALL;
                chunk.reserve_exact(if is_small {
                    now.len() - overwritten
                } else {
                    CHUNK - chunk.len()
                });
            }
            chunk.extend_from_slice(&now[overwritten..]);
            self.memory += chunk.capacity() - before;
            at += now.len() as u64;
            bytes = later;
        }
    }
}

/// A distance inside the log, which memory bounds.
#[allow(clippy::cast_possible_truncation)]
fn at_index(distance: u64) -> usize {
    distance as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::gather;
    use crate::spill::tests::Memory;
    use proptest::prelude::*;

    impl Shelf for Vec<u8> {
        fn bytes(&self, place: u64, len: usize) -> &[u8] {
            &self[at_index(place)..][..len]
        }
    }

    fn contents(log: &StreamLog) -> Vec<u8> {
        gather(log.parts(log.base()..log.frontier())).expect("memory can be read")
    }

    fn spills() -> Arc<Spills> {
        Spills::new(Box::new(Memory::default()), u64::MAX)
    }

    #[test]
    fn a_hole_is_filled_and_conflicts_are_seen_on_both_sides_of_it() {
        let mut log = StreamLog::new(Seq(0));
        assert_eq!(log.insert(Offset(0), b"abc", None), Inserted::Stored);
        assert_eq!(log.insert(Offset(6), b"ghi", None), Inserted::Stored);
        assert_eq!(
            (log.frontier(), log.end(), log.has_holes()),
            (Offset(3), Offset(9), true)
        );
        assert_eq!(log.insert(Offset(1), b"bX", None), Inserted::Conflict);
        assert_eq!(log.insert(Offset(7), b"X", None), Inserted::Conflict);
        assert_eq!(log.insert(Offset(2), b"cdefg", None), Inserted::Stored);
        assert_eq!(contents(&log), b"abcdefghi");
        assert_eq!(log.insert(Offset(0), b"abcdefghi", None), Inserted::Known);
    }

    #[test]
    fn released_bytes_are_neither_kept_nor_compared() {
        let mut log = StreamLog::new(Seq(0));
        log.insert(Offset(0), &[1; 100_000], None);
        log.release(Offset(99_990));
        assert!(log.memory() <= CHUNK, "{}", log.memory());
        assert_eq!(log.insert(Offset(0), &[9; 99_990], None), Inserted::Known);
        assert_eq!(log.insert(Offset(99_990), &[9], None), Inserted::Conflict);
        log.release(Offset(200_000));
        assert_eq!((log.base(), log.memory()), (Offset(100_000), 0));
        assert_eq!(log.insert(Offset(100_000), b"on", None), Inserted::Stored);
        assert_eq!(contents(&log), b"on");
    }

    #[test]
    fn a_stream_has_one_end() {
        let mut log = StreamLog::new(Seq(0));
        log.insert(Offset(0), b"abc", None);
        assert!(!log.set_fin(Offset(2)));
        assert!(log.set_fin(Offset(5)));
        assert!(!log.set_fin(Offset(6)));
        assert!(!log.is_complete());
        assert_eq!(log.insert(Offset(3), b"def", None), Inserted::Conflict);
        assert_eq!(log.insert(Offset(3), b"de", None), Inserted::Stored);
        assert!(log.is_complete());
        assert_eq!(log.next_seq(), Seq(6));
    }

    #[test]
    fn holes_are_bounded() {
        let mut log = StreamLog::new(Seq(0));
        for at in (0..AHEAD_MAX as u64).map(|hole| Offset(2 * hole + 1)) {
            assert_eq!(log.insert(at, b"x", None), Inserted::Stored);
        }
        let at = Offset(2 * AHEAD_MAX as u64 + 1);
        assert_eq!(log.insert(at, b"x", None), Inserted::TooManyHoles);
    }

    #[test]
    fn what_was_acknowledged_on_the_shelf_is_never_copied() {
        let shelf = vec![7; 100_000];
        let mut log = StreamLog::new(Seq(0));
        for at in (0..100_000).step_by(10_000) {
            let source = Some(OnShelf {
                shelf: &shelf,
                place: at,
            });
            assert_eq!(log.insert(Offset(at), &shelf[..10_000], source), Inserted::Stored);
        }
        assert_eq!((log.frontier(), log.memory()), (Offset(100_000), 0));
        log.release(Offset(95_000));
        log.keep(&shelf);
        assert_eq!(contents(&log), [7; 5000]);
        assert!(log.memory() <= CHUNK, "{}", log.memory());
    }

    #[test]
    fn what_is_spilled_holds_no_memory_and_is_given_up_with_what_is_released() {
        let spills = spills();
        let mut log = StreamLog::new(Seq(0));
        let stream: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        log.insert(Offset(0), &stream, None);
        log.release(Offset(40_000));
        log.spill(&spills, Offset(150_000), 0).expect("memory");
        let spilled = 4 * CHUNK as u64 - 40_000;
        assert_eq!(
            (log.spilled(), spills.bytes()),
            (spilled, spilled),
            "whole chunks before 150,000"
        );
        assert!(log.memory() <= 200_000 - 3 * CHUNK, "{}", log.memory());
        assert_eq!(log.insert(Offset(200_000), b"more", None), Inserted::Stored);
        assert_eq!(contents(&log), [&stream[40_000..], b"more"].concat());
        let parts: Vec<_> = log.parts(Offset(131_000)..Offset(131_100)).collect();
        assert!(matches!(parts[..], [Part::File(_), Part::Memory(_)]), "{parts:?}");
        assert_eq!(gather(parts).expect("memory"), stream[131_000..131_100]);
        assert_eq!(
            log.insert(Offset(130_000), &[255; 5], None),
            Inserted::Known,
            "not compared"
        );
        assert_eq!(log.insert(Offset(140_000), &[255; 5], None), Inserted::Conflict);
        log.release(Offset(131_072));
        assert_eq!((log.spilled(), spills.bytes()), (0, 0));
        assert_eq!(contents(&log), [&stream[131_072..], b"more"].concat());
    }

    proptest! {
        /// Any order of any overlapping pieces gives the stream, with releases in between.
        #[test]
        fn pieces_in_any_order_give_the_stream(
            pieces in prop::collection::vec((0_u64..90_000, 1_u64..20_000), 1..60),
            first: u32,
            shelf: bool,
            spilled_every in 1_usize..8,
            released_every in 2_usize..10,
        ) {
            let spills = spills();
            let stream: Vec<u8> = (0..120_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let mut log = StreamLog::new(Seq(first));
            let mut seen = vec![false; stream.len()];
            for (index, (start, len)) in pieces.into_iter().enumerate() {
                let range = start as usize..(start + len) as usize;
                let source = shelf.then_some(OnShelf { shelf: &stream, place: start });
                prop_assert_ne!(log.insert(Offset(start), &stream[range.clone()], source), Inserted::Conflict);
                seen[range].fill(true);
                let frontier = seen.iter().position(|seen| !seen).unwrap_or(seen.len());
                prop_assert_eq!(log.frontier(), Offset(frontier as u64));
                if index % released_every == 1 {
                    log.release(Offset(frontier as u64 / 2));
                }
                if index % spilled_every == 0 {
                    log.spill(&spills, Offset(frontier as u64 / 4 * 3), CHUNK).expect("memory");
                    prop_assert_eq!(log.spilled(), spills.bytes());
                }
                if shelf && index % 4 < 3 {
                    continue;
                }
                log.keep(&stream);
                prop_assert_eq!(contents(&log), &stream[log.base().0 as usize..frontier]);
            }
            log.keep(&stream);
            for (start, bytes) in log.ahead() {
                prop_assert_eq!(&bytes, &stream[start.0 as usize..start.0 as usize + bytes.len()]);
            }
        }
    }
}
