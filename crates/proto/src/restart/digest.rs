//! Hashes sent output in blocks. With these hashes, the end of the output can be compared without the bytes before it.

use twox_hash::xxhash3_128;

/// Block size in bytes. The last whole block, together with the bytes after it, can be compared without the rest.
pub(super) const BLOCK: usize = 16 * 1024;

/// A chained hash: each block's XXH3-128 is hashed together with the hash of all blocks before it. The last block may be short or
/// empty.
#[derive(Clone)]
pub(super) struct Digest {
    /// The chained hash of all whole blocks.
    blocks: [u8; 16],
    /// The hash of the last whole block alone.
    last: [u8; 16],
    open: xxhash3_128::Hasher,
    bytes: u64,
}

/// The chained hash of no blocks.
const NONE: [u8; 16] = [0; 16];

impl Digest {
    pub fn new() -> Self {
        Self {
            blocks: NONE,
            last: NONE,
            open: xxhash3_128::Hasher::new(),
            bytes: 0,
        }
    }

    /// Adds the next bytes.
    pub fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let in_block = (self.bytes % BLOCK as u64) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - in_block));
            self.bytes += now.len() as u64;
            bytes = later;
            self.open.write(now);
            if in_block + now.len() == BLOCK {
                self.last = self.of_open();
                self.blocks = chain(self.blocks, self.last);
                self.open = xxhash3_128::Hasher::new();
            }
        }
    }

    /// The hash of the last whole block, zero before the first.
    pub const fn last_block(&self) -> [u8; 16] {
        self.last
    }

    /// A hash that begins with these whole blocks and goes on with this one's bytes after its last whole block.
    pub fn with_blocks<'a>(&self, blocks: impl ExactSizeIterator<Item = &'a [u8; 16]>) -> Self {
        let bytes = (blocks.len() * BLOCK) as u64 + self.bytes % BLOCK as u64;
        let (blocks, last) = blocks.fold((NONE, NONE), |(before, _), block| (chain(before, *block), *block));
        let open = self.open.clone();
        Self {
            blocks,
            last,
            open,
            bytes,
        }
    }

    /// Number of bytes so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The hash of all bytes so far.
    pub fn of_all(&self) -> [u8; 16] {
        chain(self.blocks, self.of_open())
    }

    /// Returns the offset of the last whole block, and the hash of all bytes from this offset on. `None` if no block is whole.
    pub fn of_end(&self) -> Option<(u64, [u8; 16])> {
        let from = (self.bytes / BLOCK as u64).checked_sub(1)? * BLOCK as u64;
        Some((from, chain(chain(NONE, self.last), self.of_open())))
    }

    fn of_open(&self) -> [u8; 16] {
        self.open.finish_128().to_be_bytes()
    }
}

/// Extends the chained hash `before` by one block, whose hash is `next`.
fn chain(before: [u8; 16], next: [u8; 16]) -> [u8; 16] {
    let both = [before, next];
    xxhash3_128::Hasher::oneshot(both.as_flattened()).to_be_bytes()
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest of {} bytes", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[&[u8]]) -> Digest {
        let mut digest = Digest::new();
        pieces.iter().for_each(|piece| digest.write(piece));
        digest
    }

    #[test]
    fn the_end_alone_has_the_hash_of_a_body_that_begins_there() {
        let bytes: Vec<u8> = (0..5 * BLOCK as u32).map(|at| (at / 7) as u8).collect();
        for length in [
            BLOCK,
            BLOCK + 1,
            2 * BLOCK - 1,
            2 * BLOCK,
            3 * BLOCK + 77,
            5 * BLOCK,
        ] {
            let (from, end) = of(&[&bytes[..length]]).of_end().expect("a whole block");
            assert_eq!(from, (length / BLOCK - 1) as u64 * BLOCK as u64);
            let alone = &bytes[usize::try_from(from).expect("small")..length];
            assert_eq!(of(&[alone]).of_all(), end, "{length}");
        }
        assert_eq!(of(&[&bytes[..BLOCK - 1]]).of_end(), None);
    }

    #[test]
    fn pieces_do_not_matter_and_every_byte_does() {
        let bytes = vec![7; 2 * BLOCK + 100];
        let whole = of(&[&bytes]).of_all();
        assert_eq!(
            of(&[&bytes[..1], &bytes[1..BLOCK + 5], &bytes[BLOCK + 5..]]).of_all(),
            whole
        );
        for at in [0, BLOCK - 1, BLOCK, 2 * BLOCK, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(of(&[&other]).of_all(), whole, "{at}");
        }
        assert_ne!(of(&[&bytes[1..]]).of_all(), whole);
    }
}
