//! The peer's stream: reassembled, kept for the application, and acknowledged.

use std::collections::{BTreeMap, VecDeque};

use proto::{Offset, Seq};

/// Number of early arrivals that are remembered for SACK blocks. A segment with timestamps has room for three blocks.
const RECENT_ARRIVALS: usize = 8;

/// The receiving half of a connection. Positions count data bytes. The FIN counts as one more byte.
///
/// ```text
///       queue            next                     edge
///  read  │  in order       │ gap │ early │ gap ...   │ not allowed
/// ───────┼─────────────────┼───────────────────────┼──────────────▶
///                          └──── advertised ───────┘
/// ```
#[derive(Clone, Debug)]
pub(super) struct TcpReceiver {
    /// Sequence number of byte 0.
    first: Seq,
    queue: VecDeque<u8>,
    capacity: usize,
    next: Offset,
    /// The right edge of the advertised window. It never moves back.
    edge: Offset,
    /// The last acknowledgement sent.
    acknowledged: Offset,
    /// Pieces that came early, by start. No two of them touch.
    early: BTreeMap<Offset, Vec<u8>>,
    /// Offsets of the early pieces in the order of their arrival, latest first.
    recent: VecDeque<Offset>,
    /// Position of the FIN, once the FIN was seen.
    fin: Option<Offset>,
    /// Shift of the windows that we advertise.
    shift: u8,
    /// Segment size. The edge moves in steps of at least this size, or of half the buffer if that is smaller.
    mss: usize,
}

/// Result of a segment's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentArrival {
    /// Neither data nor FIN, or the stream was complete already.
    Nothing,
    /// The next bytes, and nothing is missing.
    InOrder,
    /// Something that must be acknowledged immediately: a gap, a filled gap, or bytes beyond the window.
    Irregular,
    /// This segment completes the peer's stream, including the FIN.
    Finished,
}

impl TcpReceiver {
    /// A stream whose byte 0 has the number `first`.
    pub const fn new(first: Seq, capacity: usize, mss: u16) -> Self {
        Self {
            first,
            queue: VecDeque::new(),
            capacity,
            next: Offset::ZERO,
            edge: Offset::ZERO,
            acknowledged: Offset::ZERO,
            early: BTreeMap::new(),
            recent: VecDeque::new(),
            fin: None,
            shift: 0,
            mss: mss as usize,
        }
    }

    /// The sequence number of byte 0.
    pub const fn first(&self) -> Seq {
        self.first
    }

    /// Sets the sequence number of byte 0, which is known from the peer's SYN.
    pub const fn set_first(&mut self, first: Seq) {
        self.first = first;
    }

    /// Sets the shift that the handshake agreed.
    pub const fn set_shift(&mut self, shift: u8) {
        self.shift = shift;
    }

    /// Takes bytes that another socket received and acknowledged (TCP_REPAIR). That socket advertised a window of `window` bytes after
    /// its acknowledgement `wup`.
    pub fn load(&mut self, bytes: &[u8], wup: Seq, window: u32) {
        self.queue.extend(bytes);
        self.next += bytes.len() as u64;
        self.acknowledged = Offset::from_seq(wup, self.first, self.next).unwrap_or_default();
        let edge = Offset::from_seq(wup + window, self.first, self.next);
        self.edge = edge.map_or(self.next, |edge| edge.max(self.next)); // an edge before `next`: a closed window, as in Linux
    }

    /// Appends bytes that did not come in a segment (TCP_REPAIR), as the next bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.store(self.next, bytes);
        self.edge = self.edge.max(self.next);
    }

    pub const fn next_seq(&self) -> Seq {
        self.next.to_seq(self.first)
    }

    pub const fn acknowledged_seq(&self) -> Seq {
        self.acknowledged.to_seq(self.first)
    }

    pub const fn shift(&self) -> u8 {
        self.shift
    }

    /// The window as the peer knows it, in bytes after the last acknowledgement.
    pub fn window_from_acknowledged(&self) -> u64 {
        self.edge.since(self.acknowledged)
    }

    /// The part of the window that was offered and is not used yet, in bytes.
    pub fn offered(&self) -> u64 {
        self.edge.since(self.next.min(self.edge))
    }

    pub fn readable(&self) -> usize {
        self.queue.len()
    }

    /// The bytes that wait for the application.
    pub fn queued(&self) -> Vec<u8> {
        self.queue.iter().copied().collect()
    }

    /// Whether the whole stream has arrived, including the FIN.
    pub fn is_complete(&self) -> bool {
        self.fin.is_some_and(|fin| self.next > fin)
    }

    /// The position of `seq`; `None` if it lies before the stream.
    pub fn position(&self, seq: Seq) -> Option<Offset> {
        Offset::from_seq(seq, self.first, self.next)
    }

    /// Whether a segment of `len` sequence numbers at `seq` is acceptable (RFC 9293 §3.10.7.4, first check). As in Linux
    /// (`tcp_sequence`), the check is loose at the left edge of the window. A segment that starts at the right edge is accepted, because
    /// a peer that has filled our window sends its acknowledgements with that number. Data beyond the right edge is cut off.
    pub fn is_acceptable(&self, seq: Offset, len: u64) -> bool {
        let may_be_new = if len == 0 {
            seq >= self.next
        } else if self.is_complete() {
            seq + len > self.next
        } else {
            seq + len >= self.acknowledged // old bytes pass too, because the segment's timestamp is still used
        };
        may_be_new && seq <= self.edge
    }

    /// Whether `seq` is exactly the next expected number.
    pub fn is_next(&self, seq: Offset) -> bool {
        seq == self.next
    }

    /// Whether `seq` is at or before the last acknowledgement that we sent.
    pub fn is_acknowledged(&self, seq: Offset) -> bool {
        seq <= self.acknowledged
    }

    /// Takes the part of a segment that is new and within the window.
    pub fn on_data(&mut self, seq: Offset, payload: &[u8], fin: bool) -> SegmentArrival {
        if (payload.is_empty() && !fin) || self.is_complete() {
            return SegmentArrival::Nothing;
        }
        let end = seq + payload.len() as u64;
        if fin && end <= self.edge {
            self.fin.get_or_insert(end);
        }
        let start = seq.max(self.next);
        let stop = end.min(self.fin.unwrap_or(self.edge)).min(self.edge);
        let had_gap = !self.early.is_empty();
        if start < stop {
            let piece = |from: Offset| usize::try_from(from.since(seq)).expect("within the payload");
            self.store(start, &payload[piece(start)..piece(stop)]);
        }
        if self.fin == Some(self.next) {
            self.next += 1;
            self.early.clear();
            return SegmentArrival::Finished;
        }
        let regular = start < stop && !had_gap && self.early.is_empty() && stop == end && !fin;
        if regular {
            SegmentArrival::InOrder
        } else {
            SegmentArrival::Irregular
        }
    }

    /// Hands up to `limit` bytes to the application.
    pub fn read(&mut self, into: &mut Vec<u8>, limit: usize) -> usize {
        let count = limit.min(self.queue.len());
        into.extend(self.queue.drain(..count));
        count
    }

    /// Whether the window can be opened by so much that a window update is worth sending.
    pub fn is_window_update_due(&self) -> bool {
        !self.is_complete()
            && self.room().saturating_sub(self.advertised()) >= (self.capacity / 2).min(2 * self.mss) as u64
    }

    /// Returns the acknowledgement and the window of a segment that is sent now. `scaled` is false for a SYN.
    pub fn advertise(&mut self, scaled: bool) -> (Seq, u16) {
        let shift = if scaled { self.shift } else { 0 };
        let advertised = self.advertised();
        let (room, step) = (self.room(), (self.capacity / 2).min(self.mss) as u64);
        // The edge never moves back, so the window that was already promised is rounded up. The window grows only in large steps
        // (RFC 9293 §3.8.6.2.2).
        let promised = advertised.div_ceil(1 << shift);
        let units = if room >= advertised + step {
            promised.max(room >> shift)
        } else {
            promised
        };
        let window = u16::try_from(units).unwrap_or(u16::MAX); // the field cannot express a larger window
        self.edge = self.edge.max(self.next + (u64::from(window) << shift));
        self.acknowledged = self.next;
        (self.next_seq(), window)
    }

    /// SACK blocks of the early pieces, the latest arrival first (RFC 2018 §4).
    pub fn sack_blocks(&self) -> [Option<(Seq, Seq)>; 4] {
        let mut blocks = [None; 4];
        let mut starts = Vec::with_capacity(3);
        for arrival in &self.recent {
            let Some((start, bytes)) = self.early.range(..=*arrival).next_back() else {
                continue;
            };
            let end = *start + bytes.len() as u64;
            if *arrival < end && !starts.contains(start) && starts.len() < 3 {
                blocks[starts.len()] = Some((start.to_seq(self.first), end.to_seq(self.first)));
                starts.push(*start);
            }
        }
        blocks
    }

    fn advertised(&self) -> u64 {
        self.edge.since(self.next)
    }

    fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.queue.len()) as u64
    }

    /// Stores a piece that is within the window and not before `next`.
    fn store(&mut self, start: Offset, bytes: &[u8]) {
        if start > self.next {
            self.store_early(start, bytes);
            self.recent.push_front(start);
            self.recent.truncate(RECENT_ARRIVALS);
            return;
        }
        self.queue.extend(bytes);
        self.next += bytes.len() as u64;
        while let Some((start, piece)) = self.early.pop_first() {
            if start > self.next {
                self.early.insert(start, piece);
                break;
            }
            let known = usize::try_from(self.next.since(start)).expect("within the window");
            if known < piece.len() {
                self.queue.extend(&piece[known..]);
                self.next += (piece.len() - known) as u64;
            }
        }
        if self.early.is_empty() {
            self.recent.clear();
        }
    }

    /// Stores a piece and merges it with the early pieces that it overlaps or touches. Bytes that are already stored stay.
    fn store_early(&mut self, start: Offset, bytes: &[u8]) {
        let end = start + bytes.len() as u64;
        let before = self.early.range(..=start).next_back();
        let touching = before.filter(|(at, piece)| **at + piece.len() as u64 >= start);
        let (at, mut merged) = match touching.map(|(at, _)| *at) {
            Some(at) => (at, self.early.remove(&at).expect("just found")),
            None => (start, Vec::new()),
        };
        let mut reach = at + merged.len() as u64;
        let mut append = |from: Offset, piece: &[u8]| {
            let known = usize::try_from(reach.since(from)).expect("within the window");
            if known < piece.len() {
                merged.extend_from_slice(&piece[known..]);
                reach += (piece.len() - known) as u64;
            }
        };
        // The stored pieces are appended before the new bytes, so that stored bytes are not replaced.
        let later: Vec<Offset> = self.early.range(start..=end).map(|(at, _)| *at).collect();
        for from in later {
            let piece = self.early.remove(&from).expect("just found");
            let gap = usize::try_from(from.since(start)).expect("within the piece");
            append(start, &bytes[..gap]);
            append(from, &piece);
        }
        append(start, bytes);
        self.early.insert(at, merged);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Seq = Seq(u32::MAX - 40);

    fn receiver(capacity: usize) -> TcpReceiver {
        let mut receiver = TcpReceiver::new(FIRST, capacity, 10);
        receiver.advertise(true);
        receiver
    }

    /// The bytes from `from` up to `to` of a stream in which each byte is its position.
    fn bytes(from: u64, to: u64) -> Vec<u8> {
        (from..to)
            .map(|position| u8::try_from(position).unwrap())
            .collect()
    }

    fn blocks(receiver: &TcpReceiver) -> Vec<(u64, u64)> {
        let offset = |seq| receiver.position(seq).unwrap().0;
        let blocks = receiver.sack_blocks();
        blocks
            .iter()
            .flatten()
            .map(|(left, right)| (offset(*left), offset(*right)))
            .collect()
    }

    #[test]
    fn early_pieces_are_told_of_the_latest_first_and_kept_until_the_gap_is_filled() {
        let mut receiver = receiver(200);
        for (from, to) in [(20, 30), (60, 70), (40, 50), (100, 110), (50, 60)] {
            assert_eq!(
                receiver.on_data(Offset(from), &bytes(from, to), false),
                SegmentArrival::Irregular
            );
        }
        assert_eq!(blocks(&receiver), [(40, 70), (100, 110), (20, 30)]);
        assert_eq!(receiver.readable(), 0);
        assert_eq!(
            receiver.on_data(Offset(0), &bytes(0, 25), false),
            SegmentArrival::Irregular
        );
        assert_eq!(receiver.queued(), bytes(0, 30));
        assert_eq!(
            receiver.on_data(Offset(30), &bytes(30, 120), false),
            SegmentArrival::Irregular
        );
        assert_eq!(receiver.queued(), bytes(0, 120));
        assert_eq!(blocks(&receiver), []);
        assert_eq!(
            receiver.on_data(Offset(120), &bytes(120, 121), false),
            SegmentArrival::InOrder
        );
    }

    #[test]
    fn the_edge_never_goes_back_and_moves_in_steps() {
        let mut receiver = TcpReceiver::new(FIRST, 100, 10);
        receiver.set_shift(3);
        assert_eq!(receiver.advertise(true).1, 12); // 96 bytes: only whole units of 8 bytes
        receiver.on_data(Offset(0), &bytes(0, 50), false);
        let (_, window) = receiver.advertise(true);
        assert_eq!((window, receiver.edge), (6, Offset(98))); // 46 promised, rounded up
        receiver.read(&mut Vec::new(), 5);
        assert!(!receiver.is_window_update_due());
        assert_eq!(receiver.advertise(true).1, 6);
        receiver.read(&mut Vec::new(), 20);
        assert!(receiver.is_window_update_due());
        assert_eq!(receiver.advertise(true).1, 9); // 75 bytes free
    }

    #[test]
    fn a_window_is_not_opened_by_a_few_bytes() {
        let mut receiver = receiver(100);
        receiver.on_data(Offset(0), &bytes(0, 50), false);
        receiver.read(&mut Vec::new(), 9);
        assert_eq!(receiver.advertise(true).1, 50);
        receiver.read(&mut Vec::new(), 1);
        assert_eq!(receiver.advertise(true).1, 60);
    }

    #[test]
    fn a_step_below_one_unit_takes_nothing_back() {
        let mut receiver = TcpReceiver::new(FIRST, 143, 10);
        receiver.set_shift(5);
        assert_eq!(receiver.advertise(true).1, 4); // 128 bytes
        receiver.on_data(Offset(0), &bytes(0, 28), false);
        assert_eq!(receiver.advertise(true).1, 4); // 100 bytes were promised; the 115 free bytes would make only 3 units
    }

    #[test]
    fn what_lies_beyond_the_window_is_cut_off() {
        let mut receiver = receiver(20);
        assert!(receiver.is_acceptable(Offset(20), 0) && !receiver.is_acceptable(Offset(21), 0));
        assert_eq!(
            receiver.on_data(Offset(0), &bytes(0, 30), true),
            SegmentArrival::Irregular
        );
        assert_eq!(receiver.queued(), bytes(0, 20));
        assert!(!receiver.is_complete());
        assert_eq!(
            receiver.on_data(Offset(20), &bytes(20, 25), false),
            SegmentArrival::Irregular
        );
        assert_eq!(receiver.readable(), 20);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Pieces arrive in any order, with any overlaps. The receiver has exactly the bytes that a bitmap of the arrivals marks.
        #[test]
        fn any_pieces_in_any_order_give_the_stream(
            pieces in proptest::collection::vec((0_u64..200, 0_u64..40, proptest::bool::ANY), 1..60),
        ) {
            const LEN: u64 = 180;
            let mut receiver = receiver(150);
            let mut have = [false; LEN as usize];
            let (mut read, mut window_end, mut fin_seen) = (Vec::new(), 150, false);
            for (from, len, reads) in pieces {
                let (from, to) = (from.min(LEN), (from + len).min(LEN));
                if !receiver.is_acceptable(Offset(from), to - from + u64::from(to == LEN)) {
                    continue;
                }
                receiver.on_data(Offset(from), &bytes(from, to), to == LEN);
                have[usize::try_from(from).unwrap()..usize::try_from(to.min(window_end).max(from)).unwrap()]
                    .fill(true);
                fin_seen |= to == LEN && to <= window_end;
                let prefix = have.iter().take_while(|have| **have).count() as u64;
                let complete = fin_seen && prefix == LEN;
                prop_assert_eq!(receiver.next, Offset(prefix + u64::from(complete)));
                prop_assert_eq!(receiver.is_complete(), complete);
                for (left, right) in blocks(&receiver) {
                    prop_assert!(prefix < left && left < right);
                    let block = usize::try_from(left).unwrap()..usize::try_from(right).unwrap();
                    prop_assert!(have[block].iter().all(|have| *have));
                    prop_assert!(!have[usize::try_from(left).unwrap() - 1]);
                }
                if reads {
                    receiver.read(&mut read, 30);
                    receiver.advertise(true);
                    window_end = receiver.edge.0;
                }
            }
            receiver.read(&mut read, usize::MAX);
            let prefix = have.iter().take_while(|have| **have).count() as u64;
            prop_assert_eq!(read, bytes(0, prefix));
        }
    }
}
