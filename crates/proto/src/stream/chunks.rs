//! The memory of a log: consecutive chunks of one size.

use std::collections::VecDeque;

use crate::Offset;

/// Size of a chunk, in bytes.
pub(super) const CHUNK: usize = 32 * 1024;
/// Maximum number of chunks that a log keeps for reuse while it is in use.
const SPARE_MAX: usize = 32;
/// Largest size, in bytes, of a chunk that an empty log keeps for reuse. A log that often holds small messages then seldom allocates
/// memory.
const SMALL: usize = 2048;

/// Bytes of a stream, by their offsets. This type does not record which of the bytes were written; the log does.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Chunk `i` holds the bytes from `origin + i * CHUNK` on. As long as the first chunk has at most [`SMALL`] bytes, only these bytes are
    /// allocated. A larger first chunk, and every other chunk, has an allocation of [`CHUNK`] bytes.
    chunks: VecDeque<Vec<u8>>,
    origin: Offset,
    /// Memory of the chunks, in bytes.
    memory: usize,
    /// Freed chunks, kept for reuse. The chunk that was kept last is used first, because its memory may still be in the caches.
    spare: Vec<Vec<u8>>,
}

impl Chunks {
    /// No chunks. The first chunk will begin at `origin`.
    pub fn new(origin: Offset) -> Self {
        Self {
            chunks: VecDeque::new(),
            origin,
            memory: 0,
            spare: Vec::new(),
        }
    }

    /// Memory of the chunks, in bytes. Chunks that are kept for reuse do not count.
    pub fn memory(&self) -> usize {
        self.memory
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The offset at which the first chunk begins.
    pub fn origin(&self) -> Offset {
        self.origin
    }

    /// The offset at which the first chunk ends.
    pub fn first_end(&self) -> Offset {
        self.origin + CHUNK as u64
    }

    /// The first chunk's bytes from `start` on.
    pub fn first_from(&self, start: Offset) -> &[u8] {
        &self.chunks[0][at_index(start.since(self.origin))..]
    }

    /// Sets the offset at which the first chunk will begin. There must be no chunk yet.
    pub fn begin_at(&mut self, origin: Offset) {
        self.origin = origin;
    }

    /// Drops the first chunk.
    pub fn drop_first(&mut self) {
        let Some(mut chunk) = self.chunks.pop_front() else {
            return;
        };
        self.origin += CHUNK as u64;
        self.memory -= chunk.capacity();
        if self.spare.len() < SPARE_MAX {
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    /// Drops the chunks that end at or before `base`.
    pub fn release(&mut self, base: Offset) {
        while !self.is_empty() && self.first_end() <= base {
            self.drop_first();
        }
    }

    /// Drops all chunks. The next chunk will begin at `origin`.
    pub fn clear(&mut self, origin: Offset) {
        self.origin = origin;
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

    /// `len` bytes from `at` on, in order, as slices.
    pub fn pieces(&self, mut at: Offset, mut len: u64) -> impl Iterator<Item = &[u8]> {
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

    /// Whether the bytes from `at` on equal `bytes`.
    pub fn equals(&self, at: Offset, bytes: &[u8]) -> bool {
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

    /// Writes `bytes` from `at` on.
    pub fn write(&mut self, mut at: Offset, mut bytes: &[u8]) {
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

/// A distance inside the log as an index. Every such distance fits `usize`, because the log is in memory.
pub(super) fn at_index(distance: u64) -> usize {
    distance as usize
}
