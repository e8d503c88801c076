//! The judge's memory of a stream: the offsets that were seen, the values of recent bytes, and the highest value of a
//! header field such as the acknowledgement.

use std::collections::{BTreeMap, VecDeque};

/// A set of stream offsets: all offsets below a first hole, and islands (ranges) after it. Memory grows with the number of holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffsetSet {
    /// All offsets below this are in the set.
    contiguous: u64,
    /// The islands, as start → end. They neither overlap nor touch each other, and all are above `contiguous`.
    islands: BTreeMap<u64, u64>,
}

impl OffsetSet {
    /// Adds the offsets `start..end`.
    pub fn add(&mut self, mut start: u64, mut end: u64) {
        if start >= end || end <= self.contiguous {
            return;
        }
        if start <= self.contiguous {
            self.contiguous = end;
            while let Some(island) = self.islands.first_entry() {
                if *island.key() > self.contiguous {
                    return;
                }
                self.contiguous = self.contiguous.max(island.remove());
            }
            return;
        }
        while let Some((&other_start, &other_end)) = self.islands.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.islands.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.islands.insert(start, end);
    }

    /// Adds all offsets of `other`.
    pub fn add_all(&mut self, other: &Self) {
        self.add(0, other.contiguous);
        for (&start, &end) in &other.islands {
            self.add(start, end);
        }
    }

    /// The first offset of `start..end` that is not in the set.
    pub fn first_missing(&self, start: u64, end: u64) -> Option<u64> {
        let mut next = start.max(self.contiguous);
        if let Some((_, &island_end)) = self.islands.range(..=next).next_back() {
            next = next.max(island_end);
        }
        (next < end).then_some(next)
    }
}

/// The first difference between new bytes and the bytes seen before at the same offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differs {
    /// The first offset that differs.
    pub offset: u64,
    /// The byte seen before.
    pub before: u8,
    /// The byte seen now.
    pub now: u8,
}

/// The bytes of a stream that were seen recently.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Pieces of the stream, as offset → bytes. The pieces do not overlap.
    pieces: BTreeMap<u64, Vec<u8>>,
    size: usize,
    /// Number of bytes that were compared with bytes seen before.
    pub compared: u64,
}

impl Contents {
    /// Compares `bytes` at `offset` with the bytes seen before at the same offsets. Remembers the bytes at new offsets. While more than
    /// `size_max` bytes are remembered, forgets the bytes with the lowest offsets. Returns the first difference, if there is one.
    pub fn add(&mut self, offset: u64, bytes: &[u8], size_max: usize) -> Option<Differs> {
        let end = offset + bytes.len() as u64;
        let mut fresh = Vec::new();
        let mut next = offset;
        let mut differs = None;
        let first = self
            .pieces
            .range(..=offset)
            .next_back()
            .map_or(offset, |(&start, _)| start);
        for (&start, piece) in self.pieces.range(first..end) {
            let piece_end = start + piece.len() as u64;
            if piece_end <= offset {
                continue;
            }
            if next < start {
                fresh.push((next, start));
            }
            let (from, to) = (start.max(offset), piece_end.min(end));
            let before = &piece[(from - start) as usize..(to - start) as usize];
            let now = &bytes[(from - offset) as usize..(to - offset) as usize];
            self.compared += to - from;
            if before != now && differs.is_none() {
                let at = before.iter().zip(now).position(|(a, b)| a != b);
                differs = at.map(|at| Differs {
                    offset: from + at as u64,
                    before: before[at],
                    now: now[at],
                });
            }
            next = to;
        }
        if next < end {
            fresh.push((next, end));
        }
        for (from, to) in fresh {
            let piece = bytes[(from - offset) as usize..(to - offset) as usize].to_vec();
            self.size += piece.len();
            self.pieces.insert(from, piece);
        }
        while self.size > size_max {
            let Some((_, piece)) = self.pieces.pop_first() else {
                break;
            };
            self.size -= piece.len();
        }
        differs
    }
}

/// The highest value so far, and the highest settled value.
///
/// Packets of one sender may overtake each other, for example when two processors send them. So a value counts as settled only
/// [`Highest::OVERTAKING_NS`] after it was reached. If a later packet has a value below the settled value, the packet was not overtaken:
/// its sender has gone back to a lower value.
#[derive(Clone, Debug, Default)]
pub struct Highest {
    rising: VecDeque<(u64, u64)>,
    settled: Option<u64>,
}

impl Highest {
    /// Time in nanoseconds within which packets may overtake each other. Longer than the delay of a packet between two capture points of
    /// one machine.
    pub const OVERTAKING_NS: u64 = 20_000_000;

    /// Notes `value` at `at_ns`.
    pub fn note(&mut self, at_ns: u64, value: u64) {
        if self.now().is_none_or(|highest| value > highest) {
            self.rising.push_back((at_ns, value));
        }
    }

    /// The highest value noted.
    pub fn now(&self) -> Option<u64> {
        self.rising.back().map(|&(_, value)| value).or(self.settled)
    }

    /// The highest value that is settled at `at_ns`.
    pub fn settled(&mut self, at_ns: u64) -> Option<u64> {
        while let Some(&(since, value)) = self.rising.front() {
            if since + Self::OVERTAKING_NS > at_ns {
                break;
            }
            self.settled = Some(value);
            self.rising.pop_front();
        }
        self.settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seen_agrees_with_a_plain_set_in_every_order() {
        // A fixed sequence with all kinds of overlap. It is pseudorandom from a constant seed, so all runs are equal.
        let mut state = 1_u64;
        for _ in 0..200 {
            let (mut seen, mut plain) = (OffsetSet::default(), [false; 40]);
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (start, len) = ((state >> 33) % 32, (state >> 40) % 8);
                seen.add(start, start + len);
                plain[start as usize..(start + len) as usize].fill(true);
                for from in 0..40 {
                    let missing = (from..40).find(|&i| !plain[i as usize]);
                    assert_eq!(seen.first_missing(from, 40), missing);
                }
            }
        }
    }

    #[test]
    fn contents_are_compared_across_pieces_and_holes() {
        let mut contents = Contents::default();
        assert_eq!(contents.add(10, b"abcd", 100), None);
        assert_eq!(contents.add(16, b"gh", 100), None);
        assert_eq!(contents.add(8, b"..abcdefgh..", 100), None);
        assert_eq!(contents.compared, 6);
        let differs = Differs {
            offset: 15,
            before: b'f',
            now: b'F',
        };
        assert_eq!(contents.add(14, b"eF", 100), Some(differs));
    }

    #[test]
    fn contents_forget_the_lowest_offsets() {
        let mut contents = Contents::default();
        contents.add(0, b"aaaa", 6);
        contents.add(4, b"bbbb", 6);
        assert_eq!((contents.size, contents.pieces.len()), (4, 1));
        assert_eq!(contents.add(0, b"xxxx", 6), None);
        assert!(contents.add(4, b"xbbb", 6).is_some());
    }

    #[test]
    fn only_what_was_reached_a_while_ago_is_settled() {
        let mut highest = Highest::default();
        highest.note(0, 5);
        highest.note(1, 3);
        highest.note(Highest::OVERTAKING_NS, 9);
        assert_eq!(highest.settled(Highest::OVERTAKING_NS - 1), None);
        assert_eq!(highest.settled(Highest::OVERTAKING_NS), Some(5));
        assert_eq!(highest.now(), Some(9));
        assert_eq!(highest.settled(2 * Highest::OVERTAKING_NS), Some(9));
        assert_eq!(highest.now(), Some(9));
    }
}
