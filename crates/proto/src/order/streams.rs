//! The records of a server and of its children as one sequence. Each process has a record of its own, its *stream*. The primary's agent
//! appends the streams' parts to the sequence in an order that respects their causes, and the backup's agent splits it again.
//!
//! A child's record depends on its parent's record up to the fork. The two come to the agent over different sockets, so the child's first part
//! waits until the parent's part with the fork is in the sequence. So each cut of the sequence is a state that all processes together had.
//!
//! A part is the stream's number and its length (LEB128), then its bytes. A part of length 0 ends the stream.

use std::collections::{BTreeMap, VecDeque};

use super::encoding::{OrderDecoder, number};

/// The stream of the server itself. Its children's streams have random numbers.
pub const SERVER_STREAM: u32 = 0;
/// Bytes that a child's stream may wait for its parent's part. A child's first write waits for the backup, so a child does not record more.
const WAITING_MAX: usize = 1 << 20;
/// Number of ended streams that are remembered. A process may end just after it has forked, and then its end may come before its child.
const ENDED_MAX: usize = 256;

/// What a child's stream depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCause {
    /// The parent's stream.
    pub parent: u32,
    /// Bytes of the parent's record, up to and including the fork.
    pub len: u64,
}

/// A stream that is open on the primary.
#[derive(Debug, Default)]
struct MergedStream {
    /// Bytes that are in the sequence.
    len: u64,
    cause: Option<StreamCause>,
    /// Bytes that wait for the cause.
    waiting: Vec<u8>,
    has_ended: bool,
}

/// The primary's half: makes one sequence of the streams.
#[derive(Debug)]
pub struct StreamMerger {
    streams: BTreeMap<u32, MergedStream>,
    /// The last streams that have ended.
    ended: VecDeque<u32>,
}

impl Default for StreamMerger {
    fn default() -> Self {
        Self {
            streams: BTreeMap::from([(SERVER_STREAM, MergedStream::default())]),
            ended: VecDeque::new(),
        }
    }
}

impl StreamMerger {
    /// A child has been forked. Returns false if its number is in use, or if its parent has had no stream: the child then has no record.
    #[must_use]
    pub fn open(&mut self, stream: u32, cause: StreamCause) -> bool {
        let has_parent = self.streams.contains_key(&cause.parent) || self.ended.contains(&cause.parent);
        let is_possible = has_parent && !self.streams.contains_key(&stream);
        if is_possible {
            let merged = MergedStream {
                cause: Some(cause),
                ..MergedStream::default()
            };
            self.streams.insert(stream, merged);
        }
        is_possible
    }

    /// A process has recorded these bytes. Returns what is to be appended to the sequence.
    pub fn add(&mut self, stream: u32, bytes: &[u8]) -> Vec<u8> {
        if let Some(merged) = self.streams.get_mut(&stream)
            && !merged.has_ended
        {
            merged.waiting.extend(bytes);
            merged.has_ended = merged.cause.is_some() && merged.waiting.len() > WAITING_MAX;
        }
        self.merge()
    }

    /// A process has ended, or is not recorded any more. Returns what is to be appended to the sequence.
    pub fn end(&mut self, stream: u32) -> Vec<u8> {
        if let Some(merged) = self.streams.get_mut(&stream) {
            merged.has_ended = true;
        }
        self.merge()
    }

    /// Length of a stream: what its process has recorded.
    #[must_use]
    pub fn len(&self, stream: u32) -> u64 {
        let merged = self.streams.get(&stream);
        merged.map_or(0, |merged| merged.len + merged.waiting.len() as u64)
    }

    /// Appends what waits for nothing, until nothing more can be appended.
    fn merge(&mut self) -> Vec<u8> {
        let mut sequence = Vec::new();
        loop {
            let lens: BTreeMap<u32, u64> = self
                .streams
                .iter()
                .map(|(&stream, one)| (stream, one.len))
                .collect();
            let before = sequence.len();
            for (&stream, merged) in &mut self.streams {
                let has_cause =
                    |cause: StreamCause| lens.get(&cause.parent).is_none_or(|&len| len >= cause.len);
                if merged.cause.is_some_and(|cause| !has_cause(cause)) {
                    continue;
                }
                merged.cause = None;
                if !merged.waiting.is_empty() {
                    part(stream, &merged.waiting, &mut sequence);
                    merged.len += merged.waiting.len() as u64;
                    merged.waiting.clear();
                }
                if merged.has_ended && stream != SERVER_STREAM {
                    part(stream, &[], &mut sequence);
                }
            }
            let ended = &mut self.ended;
            self.streams.retain(|&stream, merged| {
                let stays = stream == SERVER_STREAM || !merged.has_ended || merged.cause.is_some();
                if !stays {
                    ended.push_back(stream);
                }
                stays
            });
            self.ended.drain(..self.ended.len().saturating_sub(ENDED_MAX));
            if sequence.len() == before {
                return sequence;
            }
        }
    }
}

fn part(stream: u32, bytes: &[u8], sequence: &mut Vec<u8>) {
    number(u64::from(stream), sequence);
    number(bytes.len() as u64, sequence);
    sequence.extend(bytes);
}

/// Splits a sequence into its streams, however it is cut.
#[derive(Debug, Default)]
pub struct StreamSplitter {
    /// The head of a part that has not arrived whole.
    head: Vec<u8>,
    /// The part that has not arrived whole: its stream, and the number of its bytes that are missing.
    current: Option<(u32, u64)>,
    is_bad: bool,
}

/// What a piece of a sequence means for one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPiece<'a> {
    /// The stream's next bytes.
    Bytes(u32, &'a [u8]),
    /// The stream has ended.
    End(u32),
}

impl StreamSplitter {
    /// Takes the next bytes of the sequence. Returns false if they are none: the rest is ignored then.
    pub fn feed<'a>(&mut self, mut bytes: &'a [u8], mut each: impl FnMut(StreamPiece<'a>)) -> bool {
        while !bytes.is_empty() && !self.is_bad {
            if let Some((stream, missing)) = self.current {
                let count = bytes.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
                let (piece, rest) = bytes.split_at(count);
                bytes = rest;
                self.current = (missing > count as u64).then(|| (stream, missing - count as u64));
                each(StreamPiece::Bytes(stream, piece));
                continue;
            }
            self.head.push(bytes[0]);
            bytes = &bytes[1..];
            match part_head(&self.head) {
                Some(Ok((stream, 0))) => {
                    self.head.clear();
                    each(StreamPiece::End(stream));
                }
                Some(Ok(begun)) => {
                    self.head.clear();
                    self.current = Some(begun);
                }
                Some(Err(())) => self.is_bad = true,
                None => {}
            }
        }
        !self.is_bad
    }
}

/// The stream and the length in a part's head. `None`: the head has more bytes.
fn part_head(head: &[u8]) -> Option<Result<(u32, u64), ()>> {
    let mut numbers = [0_u64; 2];
    let mut rest = head;
    for number in &mut numbers {
        let end = rest.iter().position(|byte| byte & 0x80 == 0);
        let Some(end) = end.filter(|&end| end < 9) else {
            return (rest.len() > 9 || end.is_some()).then_some(Err(()));
        };
        for (place, byte) in rest[..=end].iter().enumerate() {
            *number |= u64::from(byte & 0x7f) << (7 * place);
        }
        rest = &rest[end + 1..];
    }
    let [stream, len] = numbers;
    Some(u32::try_from(stream).map(|stream| (stream, len)).map_err(|_| ()))
}

/// Translates receipts for the sequence into receipts for the streams.
#[derive(Debug, Default)]
pub struct StreamReceipts {
    splitter: StreamSplitter,
    arrived: BTreeMap<u32, u64>,
}

impl StreamReceipts {
    /// Bytes of a stream that the backup has.
    #[must_use]
    pub fn arrived(&self, stream: u32) -> u64 {
        self.arrived.get(&stream).copied().unwrap_or(0)
    }

    /// The backup has the next bytes of the sequence. Returns the streams of which it has more, with the length that it has.
    pub fn confirm(&mut self, bytes: &[u8]) -> BTreeMap<u32, u64> {
        let mut news = BTreeMap::new();
        let arrived = &mut self.arrived;
        self.splitter.feed(bytes, |piece| match piece {
            StreamPiece::Bytes(stream, bytes) => {
                let len = arrived.entry(stream).or_default();
                *len += bytes.len() as u64;
                news.insert(stream, *len);
            }
            StreamPiece::End(stream) => {
                arrived.remove(&stream);
            }
        });
        news
    }
}

/// A stream on the backup, until a process takes it.
#[derive(Debug, Default)]
struct WaitingStream {
    bytes: Vec<u8>,
    decoder: OrderDecoder,
    has_ended: bool,
    /// Its process on the backup has ended, so nobody takes more.
    is_left: bool,
}

/// The backup's half: the streams until this node's processes take them.
#[derive(Debug, Default)]
pub struct StreamArrivals {
    splitter: StreamSplitter,
    streams: BTreeMap<u32, WaitingStream>,
    waiting: usize,
    /// Bytes of the server's own stream that have arrived, in the sequence or ahead of it.
    server: u64,
    /// Bytes of the server's own stream that have arrived in the sequence.
    server_in_sequence: u64,
}

impl StreamArrivals {
    /// More of the sequence has arrived. Returns false if it is garbled.
    pub fn add(&mut self, bytes: &[u8]) -> bool {
        let (streams, waiting) = (&mut self.streams, &mut self.waiting);
        let (server, server_in_sequence) = (&mut self.server, &mut self.server_in_sequence);
        self.splitter.feed(bytes, |piece| match piece {
            StreamPiece::Bytes(stream, mut bytes) => {
                if stream == SERVER_STREAM {
                    let ahead = server.saturating_sub(*server_in_sequence).min(bytes.len() as u64);
                    *server_in_sequence += bytes.len() as u64;
                    *server = (*server).max(*server_in_sequence);
                    bytes = &bytes[ahead as usize..];
                }
                let stream = streams.entry(stream).or_default();
                if !stream.is_left {
                    stream.bytes.extend(bytes);
                    *waiting += bytes.len();
                }
            }
            StreamPiece::End(number) => {
                let stream = streams.entry(number).or_default();
                stream.has_ended = true;
                if stream.is_left {
                    streams.remove(&number);
                }
            }
        })
    }

    /// A piece of the server's own stream has arrived ahead of the sequence. `from` is the position of its first byte. Bytes that have arrived
    /// before are skipped. Returns how many bytes are new. A piece after a gap has none.
    pub fn add_ahead(&mut self, from: u64, bytes: &[u8]) -> usize {
        let known = self
            .server
            .checked_sub(from)
            .and_then(|known| usize::try_from(known).ok());
        let new = known.and_then(|known| bytes.get(known..)).unwrap_or_default();
        if !new.is_empty() {
            self.server += new.len() as u64;
            self.waiting += new.len();
            self.streams.entry(SERVER_STREAM).or_default().bytes.extend(new);
        }
        new.len()
    }

    /// Bytes of the server's own stream that have arrived.
    #[must_use]
    pub fn server_len(&self) -> u64 {
        self.server
    }

    /// Bytes that no process has taken yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// All bytes of a stream that were not taken yet.
    pub fn take(&mut self, stream: u32) -> Vec<u8> {
        let Some(stream) = self.streams.get_mut(&stream) else {
            return Vec::new();
        };
        self.waiting -= stream.bytes.len();
        std::mem::take(&mut stream.bytes)
    }

    /// The next event of a child's stream, as bytes. A child takes one at a time, because the program that it starts goes on with the next.
    /// Bytes that are no event are returned together.
    pub fn take_event(&mut self, stream: u32) -> Option<Vec<u8>> {
        let stream = self.streams.get_mut(&stream)?;
        let mut rest = &stream.bytes[..];
        let size = match stream.decoder.decode(&mut rest) {
            Ok(Some(_)) => stream.bytes.len() - rest.len(),
            Ok(None) => return None,
            Err(_) => stream.bytes.len(),
        };
        self.waiting -= size;
        Some(stream.bytes.drain(..size).collect())
    }

    /// Whether a stream's process on the primary has ended, or is not recorded any more.
    #[must_use]
    pub fn has_ended(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.has_ended)
    }

    /// Whether a child of the server has a stream that has not ended on both nodes.
    #[must_use]
    pub fn has_children(&self) -> bool {
        self.streams.keys().any(|&stream| stream != SERVER_STREAM)
    }

    /// The process on this node that took a stream has ended.
    pub fn leave(&mut self, number: u32) {
        self.take(number);
        let stream = self.streams.entry(number).or_default();
        stream.is_left = true;
        if stream.has_ended {
            self.streams.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHILD: u32 = 700_000;
    const GRANDCHILD: u32 = 5;

    fn cause(parent: u32, len: u64) -> StreamCause {
        StreamCause { parent, len }
    }

    /// The sequence's streams, and whether they have ended.
    fn split(sequence: &[u8], cut: usize) -> BTreeMap<u32, (Vec<u8>, bool)> {
        let mut splitter = StreamSplitter::default();
        let mut streams: BTreeMap<u32, (Vec<u8>, bool)> = BTreeMap::new();
        for bytes in sequence.chunks(cut) {
            let is_good = splitter.feed(bytes, |piece| match piece {
                StreamPiece::Bytes(stream, bytes) => streams.entry(stream).or_default().0.extend(bytes),
                StreamPiece::End(stream) => streams.entry(stream).or_default().1 = true,
            });
            assert!(is_good);
        }
        streams
    }

    #[test]
    fn a_child_waits_for_the_fork_in_its_parents_record() {
        let mut merger = StreamMerger::default();
        assert!(merger.open(CHILD, cause(SERVER_STREAM, 4)));
        assert!(
            !merger.open(CHILD, cause(SERVER_STREAM, 4)),
            "the number is in use"
        );
        assert!(!merger.open(9, cause(8, 0)), "an unknown parent");
        assert!(merger.open(GRANDCHILD, cause(CHILD, 2)));
        assert_eq!(merger.add(GRANDCHILD, b"grand"), b"");
        assert_eq!(merger.add(CHILD, b"c"), b"");
        assert_eq!(merger.end(GRANDCHILD), b"");
        let mut sequence = merger.add(SERVER_STREAM, b"abc");
        assert_eq!(split(&sequence, 1).len(), 1, "the fork is still missing");
        sequence.extend(merger.add(SERVER_STREAM, b"de"));
        assert_eq!(split(&sequence, 1)[&CHILD], (b"c".to_vec(), false));
        assert!(!split(&sequence, 1).contains_key(&GRANDCHILD));
        sequence.extend(merger.add(CHILD, b"h"));
        assert_eq!(split(&sequence, 1)[&GRANDCHILD], (b"grand".to_vec(), true));
        assert_eq!((merger.len(SERVER_STREAM), merger.len(CHILD)), (5, 2));
        assert_eq!(merger.len(GRANDCHILD), 0, "it has ended");
    }

    #[test]
    fn a_child_follows_a_parent_that_has_ended() {
        let mut merger = StreamMerger::default();
        assert!(merger.open(CHILD, cause(SERVER_STREAM, 1)) && merger.open(GRANDCHILD, cause(CHILD, 4)));
        assert_eq!(merger.add(GRANDCHILD, b"grand"), b"");
        assert_eq!(merger.add(CHILD, b"fork"), b"");
        assert_eq!(merger.end(CHILD), b"");
        let streams = split(&merger.add(SERVER_STREAM, b"f"), 3);
        assert_eq!(streams[&CHILD], (b"fork".to_vec(), true));
        assert_eq!(streams[&GRANDCHILD], (b"grand".to_vec(), false));
    }

    /// The two ends come over different sockets.
    #[test]
    fn a_parent_may_end_before_its_child_comes() {
        let mut merger = StreamMerger::default();
        assert!(merger.open(CHILD, cause(SERVER_STREAM, 0)));
        let mut sequence = merger.add(CHILD, b"fork");
        sequence.extend(merger.end(CHILD));
        assert!(merger.open(GRANDCHILD, cause(CHILD, 4)));
        sequence.extend(merger.add(GRANDCHILD, b"grand"));
        assert_eq!(split(&sequence, 4)[&GRANDCHILD], (b"grand".to_vec(), false));
        for other in 0..2 * ENDED_MAX as u32 {
            assert!(merger.open(1_000_000 + other, cause(SERVER_STREAM, 0)));
            merger.end(1_000_000 + other);
        }
        assert!(!merger.open(9, cause(CHILD, 4)), "forgotten");
        assert_eq!(merger.ended.len(), ENDED_MAX);
    }

    #[test]
    fn a_child_whose_fork_never_comes_is_given_up() {
        let mut merger = StreamMerger::default();
        assert!(merger.open(CHILD, cause(SERVER_STREAM, 4)));
        assert_eq!(merger.add(CHILD, &vec![0; WAITING_MAX + 1]), b"");
        assert_eq!(merger.add(CHILD, b"more"), b"");
        assert_eq!(merger.len(CHILD), WAITING_MAX as u64 + 1);
    }

    #[test]
    fn receipts_for_the_sequence_are_receipts_for_its_streams() {
        let mut merger = StreamMerger::default();
        let mut sequence = merger.add(SERVER_STREAM, b"abc");
        assert!(merger.open(CHILD, cause(SERVER_STREAM, 3)));
        sequence.extend(merger.add(CHILD, b"defgh"));
        sequence.extend(merger.end(CHILD));
        let mut receipts = StreamReceipts::default();
        assert_eq!(
            receipts.confirm(&sequence[..4]),
            BTreeMap::from([(SERVER_STREAM, 2)])
        );
        let end = sequence.len() - 6;
        assert_eq!(
            receipts.confirm(&sequence[4..end]),
            BTreeMap::from([(SERVER_STREAM, 3), (CHILD, 3)])
        );
        assert_eq!(receipts.confirm(&sequence[end..]), BTreeMap::from([(CHILD, 5)]));
        assert_eq!(receipts.arrived(SERVER_STREAM), 3);
        assert_eq!(receipts.arrived(CHILD), 0, "it has ended");
    }

    #[test]
    fn processes_of_the_backup_take_their_streams() {
        let mut merger = StreamMerger::default();
        let mut sequence = merger.add(SERVER_STREAM, b"abc");
        assert!(merger.open(CHILD, cause(SERVER_STREAM, 0)) && merger.open(GRANDCHILD, cause(CHILD, 0)));
        // A process number, a part of another, and bytes that are none.
        sequence.extend(merger.add(CHILD, &[11, 1, 11]));
        sequence.extend(merger.add(GRANDCHILD, &[255, 1]));
        let mut arrivals = StreamArrivals::default();
        assert!(arrivals.add(&sequence));
        assert_eq!(arrivals.waiting(), 8);
        assert_eq!(arrivals.take(SERVER_STREAM), b"abc");
        assert_eq!(arrivals.take_event(CHILD), Some(vec![11, 1]));
        assert_eq!(arrivals.take_event(CHILD), None, "the rest is missing");
        assert_eq!(arrivals.take_event(GRANDCHILD), Some(vec![255, 1]));
        assert!(arrivals.add(&merger.add(CHILD, &[2])));
        assert_eq!(arrivals.take_event(CHILD), Some(vec![11, 2]));
        assert!(!arrivals.has_ended(CHILD));
        assert!(arrivals.add(&merger.end(CHILD)));
        assert!(arrivals.has_ended(CHILD));
        arrivals.leave(CHILD);
        arrivals.leave(GRANDCHILD);
        assert!(arrivals.add(&merger.add(GRANDCHILD, b"more")));
        assert_eq!(arrivals.waiting(), 0, "nobody takes it");
        assert!(arrivals.add(&merger.end(GRANDCHILD)));
        assert_eq!(arrivals.streams.keys().collect::<Vec<_>>(), [&SERVER_STREAM]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_splitter_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1..20_usize) {
            let mut arrivals = StreamArrivals::default();
            for part in bytes.chunks(cut) {
                arrivals.add(part);
            }
            while arrivals.take_event(3).is_some() {}
        }

        /// Whatever arrives of the sequence, no stream has more than its parent's part allows, and nothing is lost or reordered.
        #[test]
        fn each_cut_is_a_state_that_the_processes_had(
            parts in prop::collection::vec((0..3_usize, prop::collection::vec(any::<u8>(), 1..6)), 1..30),
            cut in 1..8_usize,
            kept in 0..400_usize,
        ) {
            let streams = [SERVER_STREAM, CHILD, GRANDCHILD];
            let mut merger = StreamMerger::default();
            prop_assert!(merger.open(CHILD, cause(SERVER_STREAM, 3)) && merger.open(GRANDCHILD, cause(CHILD, 4)));
            let (mut sequence, mut recorded) = (Vec::new(), [Vec::new(), Vec::new(), Vec::new()]);
            for (which, bytes) in &parts {
                sequence.extend(merger.add(streams[*which], bytes));
                recorded[*which].extend(bytes.iter().copied());
            }
            let whole = split(&sequence[..kept.min(sequence.len())], cut);
            let len = |stream: u32| whole.get(&stream).map_or(0, |(bytes, _)| bytes.len());
            for (stream, recorded) in streams.iter().zip(&recorded) {
                let empty = (Vec::new(), false);
                prop_assert!(recorded.starts_with(&whole.get(stream).unwrap_or(&empty).0));
            }
            prop_assert!(len(CHILD) == 0 || len(SERVER_STREAM) >= 3);
            prop_assert!(len(GRANDCHILD) == 0 || len(CHILD) >= 4);
        }

        /// The sequence arrives in pieces, and meanwhile other pieces of the server's stream come ahead, again, or after a gap.
        #[test]
        fn pieces_that_come_ahead_fit_into_the_stream(
            parts in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 1..20)), 1..20),
            ahead in prop::collection::vec((0..300_usize, 1..40_usize), 0..40),
            cut in 1..30_usize,
            takes in any::<bool>(),
        ) {
            let mut merger = StreamMerger::default();
            prop_assert!(merger.open(CHILD, cause(SERVER_STREAM, 0)));
            let (mut sequence, mut server) = (Vec::new(), Vec::new());
            for (is_child, bytes) in &parts {
                sequence.extend(merger.add(if *is_child { CHILD } else { SERVER_STREAM }, bytes));
                server.extend(if *is_child { &[][..] } else { bytes });
            }
            let mut arrivals = StreamArrivals::default();
            let mut taken = Vec::new();
            let mut pieces = ahead.iter();
            for part in sequence.chunks(cut) {
                if let Some(&(from, len)) = pieces.next() {
                    let piece = server.get(from..(from + len).min(server.len())).unwrap_or_default();
                    let known = arrivals.server_len() as usize;
                    let new = if from <= known { (from + piece.len()).saturating_sub(known) } else { 0 };
                    prop_assert_eq!(arrivals.add_ahead(from as u64, piece), new);
                }
                prop_assert!(arrivals.add(part));
                if takes {
                    taken.extend(arrivals.take(SERVER_STREAM));
                    prop_assert_eq!(taken.len() as u64, arrivals.server_len());
                }
                prop_assert!(server.starts_with(&taken));
            }
            taken.extend(arrivals.take(SERVER_STREAM));
            prop_assert_eq!(taken, server);
        }
    }

    #[test]
    fn a_piece_after_a_gap_does_not_count() {
        let mut arrivals = StreamArrivals::default();
        assert_eq!(arrivals.add_ahead(0, b"abc"), 3);
        assert_eq!(arrivals.add_ahead(4, b"ef"), 0, "after a gap");
        assert_eq!(arrivals.add_ahead(1, b"bcd"), 1);
        assert_eq!(arrivals.add_ahead(0, b"ab"), 0, "again");
        assert!(arrivals.add(&StreamMerger::default().add(SERVER_STREAM, b"abcdef")));
        assert_eq!(arrivals.add_ahead(u64::MAX, b"x"), 0);
        assert_eq!((arrivals.server_len(), arrivals.waiting()), (6, 6));
        assert_eq!(arrivals.take(SERVER_STREAM), b"abcdef");
    }
}
