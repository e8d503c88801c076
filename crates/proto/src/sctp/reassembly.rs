//! From chunks to messages: fragments are joined (RFC 9260 §6.9), ordered messages wait for their turn (§6.5, §6.6).
//!
//! ```text
//!   chunks ──▶ fragments, by TSN ──▶ complete ──▶ waiting, by stream and SSN ──▶ ready ──▶ the application
//!                                        └────────── unordered ──────────────────▲
//! ```
//!
//! The receive buffer bounds all of this. An accepted chunk is dropped only if the peer restarts, or if the peer uses an SSN twice.

use std::collections::{BTreeMap, VecDeque};

use super::chunk::DataChunk;
use super::config::counted;
use super::data::UserData;
use super::message::SctpMessage;
use super::tsn::{Ssn, Tsn};

/// Verdict on a chunk whose TSN is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkAdmission {
    /// There is room.
    Room,
    /// There is no room until the application reads, or until chunks with lower TSNs arrive.
    Full,
    /// Even a buffer of twice the size has no room for the next chunk in order, because incomplete messages fill it. Nothing can make room.
    Stuck,
}

/// Fragments of one message, with TSNs that follow each other.
#[derive(Clone, Copy, Debug)]
struct FragmentRun {
    /// Number of the last fragment. A chunk's number is its TSN, extended to 64 bits.
    last: u64,
    /// The first fragment begins the message.
    begins: bool,
    /// The last fragment ends the message.
    ends: bool,
}

/// A message with its bytes in the buffer.
#[derive(Debug)]
struct HeldMessage {
    message: SctpMessage,
    bytes: u32,
}

/// A stream's ordered messages.
#[derive(Debug, Default)]
struct InboundStream {
    /// Number of messages that were delivered.
    delivered: u64,
    /// Complete messages that wait for their turn, by the number of messages before them in the stream.
    waiting: BTreeMap<u64, HeldMessage>,
}

/// Chunks and messages that the application has not read yet.
#[derive(Debug)]
pub(super) struct Reassembly {
    /// Fragments of incomplete messages, by their number. The number is the TSN, extended to 64 bits by its distance to `last`.
    fragments: BTreeMap<u64, DataChunk>,
    /// The same fragments as runs, by the number of each run's first fragment.
    runs: BTreeMap<u64, FragmentRun>,
    /// The TSN and the number of the chunk that arrived last. All TSNs in the buffer are less than 2¹⁶ apart.
    last: (Tsn, u64),
    streams: Vec<InboundStream>,
    ready: VecDeque<HeldMessage>,
    held: u32,
    buffer: u32,
    streams_max: u16,
}

impl Reassembly {
    /// An empty buffer. The peer may use `streams` streams.
    pub fn new(buffer: u32, first: Tsn, streams: u16) -> Self {
        Self {
            fragments: BTreeMap::new(),
            runs: BTreeMap::new(),
            last: (first, 1 << 32),
            streams: Vec::new(),
            ready: VecDeque::new(),
            held: 0,
            buffer,
            streams_max: streams,
        }
    }

    /// The peer begins again with TSN `first`. Only messages that are ready to be read stay. Fragments are dropped, and so are complete
    /// messages that wait for their turn.
    pub fn restart(&mut self, first: Tsn, streams: u16) {
        let ready = std::mem::take(&mut self.ready);
        *self = Self::new(self.buffer, first, streams);
        self.held = ready.iter().map(|held| held.bytes).sum();
        self.ready = ready;
    }

    /// Number of streams that the peer may use.
    pub const fn streams(&self) -> u16 {
        self.streams_max
    }

    /// Free buffer: the window to announce.
    pub const fn window(&self) -> u32 {
        self.buffer.saturating_sub(self.held)
    }

    /// The whole buffer.
    pub const fn buffer(&self) -> u32 {
        self.buffer
    }

    /// Bytes of all chunks and messages in the buffer, with a header for each. In contrast to [`window`](Self::window), this adds up what is
    /// there.
    pub fn stored(&self) -> usize {
        let fragments = self.fragments.values().map(|chunk| &chunk.data);
        let waiting = self.streams.iter().flat_map(|stream| stream.waiting.values());
        let messages = waiting.chain(&self.ready).map(|held| &held.message.data);
        fragments
            .chain(messages)
            .map(|data| counted(data.len()) as usize)
            .sum()
    }

    /// Whether there is room for a chunk. The next chunk in order may exceed the buffer while the application has nothing to read. The peer
    /// may count fewer bytes per chunk than this end does, and without this chunk, the other chunks can never be read.
    pub fn admits(&self, chunk: &DataChunk, is_next: bool) -> ChunkAdmission {
        let held = self.held.saturating_add(counted(chunk.data.len()));
        if held <= self.buffer {
            ChunkAdmission::Room
        } else if !is_next || !self.ready.is_empty() {
            ChunkAdmission::Full
        } else if held <= self.buffer.saturating_mul(2) {
            ChunkAdmission::Room
        } else {
            ChunkAdmission::Stuck
        }
    }

    /// Takes a chunk of an existing stream, for which there is room.
    pub fn accept(&mut self, chunk: DataChunk) {
        self.held += counted(chunk.data.len());
        let ahead = i64::from(chunk.tsn.distance_from(self.last.0));
        let number = self.last.1.saturating_add_signed(ahead);
        self.last = (chunk.tsn, number);
        if chunk.begins && chunk.ends {
            let bytes = counted(chunk.data.len());
            self.complete(
                chunk.ssn,
                bytes,
                SctpMessage {
                    stream: chunk.stream,
                    protocol: chunk.protocol,
                    is_unordered: chunk.is_unordered,
                    data: chunk.data,
                },
            );
            return;
        }
        let run = FragmentRun {
            last: number,
            begins: chunk.begins,
            ends: chunk.ends,
        };
        self.fragments.insert(number, chunk);
        self.join(number, run);
    }

    /// Joins a run that begins at `first` with its neighbours. If the result is a whole message, also joins its fragments to that message.
    fn join(&mut self, mut first: u64, mut run: FragmentRun) {
        let before = self.runs.range(..first).next_back();
        if let Some((begin, before)) = before.map(|(begin, before)| (*begin, *before))
            && before.last + 1 == first
            && !before.ends
            && !run.begins
        {
            (first, run.begins) = (begin, before.begins);
        }
        if let Some(behind) = self.runs.get(&(run.last + 1)).copied()
            && !behind.begins
            && !run.ends
        {
            self.runs.remove(&(run.last + 1));
            (run.last, run.ends) = (behind.last, behind.ends);
        }
        if !(run.begins && run.ends) {
            self.runs.insert(first, run);
            return;
        }
        self.runs.remove(&first);
        let parts: Vec<DataChunk> = (first..=run.last)
            .filter_map(|number| self.fragments.remove(&number))
            .collect();
        let Some(head) = parts.first() else {
            return;
        };
        let (ssn, stream, protocol, is_unordered) = (head.ssn, head.stream, head.protocol, head.is_unordered);
        let bytes = parts.iter().map(|part| counted(part.data.len())).sum();
        let data: Vec<UserData> = parts.into_iter().map(|part| part.data).collect();
        self.complete(
            ssn,
            bytes,
            SctpMessage {
                stream,
                protocol,
                is_unordered,
                data: UserData::join(&data),
            },
        );
    }

    /// A message is complete.
    fn complete(&mut self, ssn: Ssn, bytes: u32, message: SctpMessage) {
        let index = usize::from(message.stream);
        let held = HeldMessage { message, bytes };
        if held.message.is_unordered {
            self.ready.push_back(held);
            return;
        }
        if index >= self.streams.len() {
            self.streams.resize_with(index + 1, InboundStream::default);
        }
        let stream = &mut self.streams[index];
        // The lower 16 bits of the count are the next SSN.
        let ahead = ssn.distance_from(Ssn(stream.delivered as u16));
        let Ok(ahead) = u64::try_from(ahead) else {
            self.held -= bytes; // the message comes after its turn: the peer used the SSN twice
            return;
        };
        if ahead == 0 && stream.waiting.is_empty() {
            stream.delivered += 1;
            self.ready.push_back(held);
            return;
        }
        if let Some(old) = stream.waiting.insert(stream.delivered + ahead, held) {
            self.held -= old.bytes;
        }
        while let Some(held) = stream.waiting.remove(&stream.delivered) {
            stream.delivered += 1;
            self.ready.push_back(held);
        }
    }

    /// Whether the application has something to read.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next message.
    pub fn read(&mut self) -> Option<SctpMessage> {
        let held = self.ready.pop_front()?;
        self.held -= held.bytes;
        Some(held.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(tsn: u32, ssn: u16, begins: bool, ends: bool, text: &'static str) -> DataChunk {
        DataChunk {
            tsn: Tsn(tsn),
            stream: 3,
            ssn: Ssn(ssn),
            protocol: 7,
            is_immediate: false,
            is_unordered: false,
            begins,
            ends,
            data: UserData::from(text.as_bytes()),
        }
    }

    fn texts(buffer: &mut Reassembly) -> Vec<String> {
        let text = |message: SctpMessage| match message.data {
            UserData::Bytes(bytes) => String::from_utf8(bytes.to_vec()).expect("text"),
            UserData::Counted(count) => format!("{count} bytes"),
        };
        std::iter::from_fn(|| buffer.read().map(text)).collect()
    }

    #[test]
    fn fragments_are_joined_in_any_order_across_the_wrap() {
        let mut buffer = Reassembly::new(10_000, Tsn(u32::MAX), 4);
        buffer.accept(chunk(1, 0, false, true, "c"));
        buffer.accept(chunk(u32::MAX, 0, true, false, "a"));
        assert!(!buffer.is_ready());
        buffer.accept(chunk(0, 0, false, false, "b"));
        assert_eq!(texts(&mut buffer), ["abc"]);
        assert_eq!(buffer.window(), 10_000);
    }

    #[test]
    fn fragments_of_two_messages_are_not_joined() {
        let mut buffer = Reassembly::new(10_000, Tsn(1), 4);
        buffer.accept(chunk(1, 0, true, false, "a"));
        buffer.accept(chunk(2, 1, true, false, "b"));
        buffer.accept(chunk(3, 1, false, true, "c"));
        assert!(!buffer.is_ready(), "the second message waits for the first");
        assert_eq!(buffer.window(), 10_000 - 3 * 20);
    }

    #[test]
    fn ordered_messages_wait_for_their_turn_unordered_ones_do_not() {
        let mut buffer = Reassembly::new(10_000, Tsn(1), 4);
        buffer.accept(chunk(2, 1, true, true, "second"));
        buffer.accept(DataChunk {
            is_unordered: true,
            ..chunk(3, 0, true, true, "at once")
        });
        buffer.accept(DataChunk {
            stream: 0,
            ..chunk(4, 0, true, true, "other stream")
        });
        assert_eq!(texts(&mut buffer), ["at once", "other stream"]);
        buffer.accept(chunk(1, 0, true, true, "first"));
        assert_eq!(texts(&mut buffer), ["first", "second"]);
        buffer.accept(chunk(5, 1, true, true, "again"));
        assert_eq!(texts(&mut buffer), [""; 0]);
        assert_eq!(buffer.window(), 10_000);
    }

    /// Each fragment is compared with its neighbours only. Otherwise this takes minutes.
    #[test]
    fn a_message_of_many_fragments_is_cheap() {
        let mut buffer = Reassembly::new(u32::MAX / 2, Tsn(0), 4);
        for tsn in 0..100_000 {
            buffer.accept(chunk(tsn, 0, tsn == 0, false, "a"));
        }
        assert_eq!(buffer.runs.len(), 1);
        buffer.accept(chunk(100_000, 0, false, true, "a"));
        assert_eq!(texts(&mut buffer)[0].len(), 100_001);
        assert!(buffer.fragments.is_empty() && buffer.runs.is_empty() && buffer.held == 0);
    }

    #[test]
    fn whole_messages_move_the_numbers_of_fragments() {
        let mut buffer = Reassembly::new(10_000, Tsn(0), 4);
        let unordered = |tsn, begins, ends| DataChunk {
            is_unordered: true,
            ..chunk(tsn, 0, begins, ends, "a")
        };
        for _ in 0..10 {
            for quarter in 0..4 {
                buffer.accept(unordered(quarter << 30, true, true));
            }
            buffer.accept(unordered((3 << 30) + 1, true, false));
            buffer.accept(unordered((3 << 30) + 2, false, true));
            assert_eq!(texts(&mut buffer), ["a", "a", "a", "a", "aa"]);
        }
        assert_eq!(buffer.window(), 10_000);
    }

    #[test]
    fn a_full_buffer_admits_only_the_chunk_that_helps() {
        let mut buffer = Reassembly::new(40, Tsn(1), 4);
        buffer.accept(chunk(2, 1, true, true, "b"));
        buffer.accept(chunk(3, 2, true, true, "c"));
        let first = chunk(1, 0, true, true, "a");
        assert_eq!(
            buffer.admits(&chunk(4, 3, true, true, "d"), false),
            ChunkAdmission::Full
        );
        assert_eq!(buffer.admits(&first, true), ChunkAdmission::Room);
        buffer.accept(first);
        assert_eq!(
            buffer.admits(&chunk(4, 3, true, true, "d"), true),
            ChunkAdmission::Full
        );
        assert_eq!(texts(&mut buffer), ["a", "b", "c"]);
        for tsn in 4..8 {
            buffer.accept(chunk(tsn, 3, tsn == 4, false, "d"));
        }
        assert_eq!(
            buffer.admits(&chunk(8, 3, false, false, "d"), true),
            ChunkAdmission::Stuck
        );
    }
}
