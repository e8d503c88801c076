//! Test data that encodes its own position: every byte is a function of `(seed, offset)`.
//!
//! A stream of this data can be checked at any offset without a copy. Bytes at the wrong offset reveal the offset that they belong at,
//! because the 8-byte word at index *i* is a bijection of *i*.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// The first byte that differs from the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, serde::Serialize, serde::Deserialize)]
#[error(
    "byte {offset} is {found:#04x}, expected {expected:#04x}{}",
    describe_origin(*belongs_at)
)]
pub struct PatternMismatch {
    /// Position of the byte in the stream.
    pub offset: u64,
    /// The pattern's byte.
    pub expected: u8,
    /// The byte that was found.
    pub found: u8,
    /// The offset that the found bytes belong at, if they are of the same pattern.
    pub belongs_at: Option<u64>,
}

/// Writes the bytes `offset..offset + out.len()` of the pattern `seed`.
pub fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let key = key(seed);
    let mut index = offset / WORD as u64;
    let (head, rest) = out.split_at_mut(out.len().min(bytes_to_next_word(offset)));
    if !head.is_empty() {
        let skip = offset as usize % WORD;
        head.copy_from_slice(&word(key, index)[skip..skip + head.len()]);
        index += 1;
    }
    let mut words = rest.chunks_exact_mut(WORD);
    for chunk in &mut words {
        chunk.copy_from_slice(&word(key, index));
        index += 1;
    }
    let tail = words.into_remainder();
    tail.copy_from_slice(&word(key, index)[..tail.len()]);
}

/// Compares `bytes` with the pattern `seed` from `offset` on.
///
/// # Errors
/// The first byte that differs.
pub fn check(seed: u64, offset: u64, bytes: &[u8]) -> Result<(), PatternMismatch> {
    let mut expected = [0; BLOCK];
    let mut position = offset;
    for block in bytes.chunks(BLOCK) {
        let expected = &mut expected[..block.len()];
        fill(seed, position, expected);
        if expected != block {
            let at = (0..block.len())
                .find(|&i| expected[i] != block[i])
                .expect("the blocks differ");
            return Err(PatternMismatch {
                offset: position + at as u64,
                expected: expected[at],
                found: block[at],
                belongs_at: origin(seed, &bytes[(position - offset) as usize + at..]),
            });
        }
        position += block.len() as u64;
    }
    Ok(())
}

/// SHA-256, in hexadecimal, of `len` bytes of a stream that repeats the first `period` bytes of the pattern `seed`.
///
/// # Panics
/// If `period` is zero.
pub fn sha256(seed: u64, period: u64, len: u64) -> String {
    let mut hash = Sha256::new();
    feed(seed, period, len, |block| {
        hash.update(block);
        Ok::<_, std::convert::Infallible>(())
    })
    .unwrap_or_else(|never| match never {});
    hex(&hash.finalize())
}

/// Writes the first `len` bytes of the pattern `seed` to `out`, in blocks.
///
/// # Errors
/// Errors of `out`.
pub fn write(seed: u64, len: u64, out: &mut impl io::Write) -> io::Result<()> {
    feed(seed, len.max(1), len, |block| out.write_all(block))
}

/// The name under which lab servers offer the first `len` bytes of the pattern `seed`.
pub fn file_name(seed: u64, len: u64) -> String {
    format!("pattern-{seed:016x}-{len}")
}

/// The bytes in hexadecimal, as `sha256sum` prints them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const WORD: usize = 8;
/// Bytes that are compared at a time, a multiple of [`WORD`]. Two such blocks fit the first-level cache.
const BLOCK: usize = 4096;
/// Multipliers: 2⁶⁴ / φ and the first multiplier of `SplitMix64`. Both are odd, so multiplication by them is invertible.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX: u64 = 0xbf58_476d_1ce4_e5b9;

/// The index at which a seed's words begin. All seeds share one sequence of 2⁶⁴ words, and the indices of different seeds are far apart.
fn key(seed: u64) -> u64 {
    let spread = seed.wrapping_add(1).wrapping_mul(MIX);
    spread ^ (spread >> 31)
}

fn word(key: u64, index: u64) -> [u8; WORD] {
    let mut x = index.wrapping_add(key).wrapping_mul(SPREAD);
    x ^= x >> 32;
    x = x.wrapping_mul(MIX);
    x ^= x >> 32;
    x.to_le_bytes()
}

fn feed<E>(seed: u64, period: u64, len: u64, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut block = [0; BLOCK];
    let mut position = 0;
    while position < len {
        let offset = position % period;
        let count = (BLOCK as u64).min(period - offset).min(len - position);
        let block = &mut block[..count as usize];
        fill(seed, offset, block);
        take(block)?;
        position += count;
    }
    Ok(())
}

fn bytes_to_next_word(offset: u64) -> usize {
    (WORD - offset as usize % WORD) % WORD
}

/// The offset below 2⁴⁸ at which the pattern contains `bytes`. `None` if there is no such offset, or too few bytes to
/// be sure.
fn origin(seed: u64, bytes: &[u8]) -> Option<u64> {
    let key = key(seed);
    (0..WORD).find_map(|skip| {
        let whole = bytes.get(skip..skip + WORD)?;
        let mut x = u64::from_le_bytes(whole.try_into().expect("eight bytes"));
        x ^= x >> 32;
        x = x.wrapping_mul(inverse(MIX));
        x ^= x >> 32;
        let index = x.wrapping_mul(inverse(SPREAD)).wrapping_sub(key);
        let offset = index.checked_mul(WORD as u64)?.checked_sub(skip as u64)?;
        (offset < 1 << 48).then_some(offset)
    })
}

/// Multiplicative inverse of an odd number modulo 2⁶⁴ (Newton's iteration doubles the number of correct bits: 3, 6 … 96).
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut round = 0;
    while round < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

fn describe_origin(belongs_at: Option<u64>) -> String {
    belongs_at.map_or_else(String::new, |offset| {
        format!(" (these bytes belong at offset {offset})")
    })
}

/// Length and SHA-256 of the file at `path`.
///
/// # Errors
/// If the file cannot be read.
pub fn digest(path: &Path) -> Result<(u64, String)> {
    let mut hash = Sha256::new();
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let mut block = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match file.read(&mut block)? {
            0 => return Ok((bytes, hex(&hash.finalize()))),
            count => {
                hash.update(&block[..count]);
                bytes += count as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(seed: u64, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(seed, offset, &mut bytes);
        bytes
    }

    #[test]
    fn every_piece_is_a_window_on_one_stream() {
        let whole = pattern(7, 0, 200);
        for start in 0..40 {
            for len in 0..40 {
                assert_eq!(pattern(7, start as u64, len), whole[start..start + len]);
            }
        }
    }

    #[test]
    fn seeds_give_different_streams() {
        assert_ne!(pattern(0, 0, 64), pattern(1, 0, 64));
        assert_ne!(pattern(u64::MAX, 0, 64), pattern(0, 0, 64));
    }

    #[test]
    fn a_changed_byte_is_found_at_its_offset() {
        let offset = (5 << 32) + 3;
        let mut bytes = pattern(1, offset, 10_000);
        assert_eq!(check(1, offset, &bytes), Ok(()));
        bytes[9_000] ^= 1;
        let mismatch = check(1, offset, &bytes).unwrap_err();
        assert_eq!(mismatch.offset, offset + 9_000);
        assert_eq!(mismatch.found, mismatch.expected ^ 1);
        assert_eq!(check(1, offset, &bytes[..9_000]), Ok(()));
    }

    #[test]
    fn displaced_bytes_tell_where_they_belong() {
        for (there, here) in [(1000, 2000), (1003, 2000), (1 << 40, 5), (3, (1 << 33) + 1)] {
            let mismatch = check(9, here, &pattern(9, there, 64)).unwrap_err();
            // If the first bytes match by chance, the mismatch is found later, and both offsets are larger by the same number.
            assert_eq!(
                mismatch.belongs_at,
                Some(there + (mismatch.offset - here)),
                "{mismatch}"
            );
        }
        assert_eq!(check(9, 0, &[0xaa; 64]).unwrap_err().belongs_at, None);
    }

    #[test]
    fn the_hash_is_that_of_the_bytes() {
        let bytes = pattern(3, 0, 3 * BLOCK + 5);
        let len = bytes.len() as u64;
        assert_eq!(sha256(3, len, len), hex(&Sha256::digest(&bytes)));
        let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(3, 1, 0), of_nothing);
        let twice = [&bytes[..5000], &bytes[..5000], &bytes[..17]].concat();
        assert_eq!(sha256(3, 5000, 10_017), hex(&Sha256::digest(&twice)));
        let mut written = Vec::new();
        write(3, len, &mut written).unwrap();
        assert_eq!(written, bytes);
    }
}
