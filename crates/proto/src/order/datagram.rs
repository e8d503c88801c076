//! Datagrams with which the library of the primary's server brings its record to the kernel of the backup, and the kernel's receipts.
//! `bpf/order.bpf.c` is the other end. The record goes over TCP, too: a datagram may be lost.
//!
//! Both are words of 8 bytes, little-endian:
//!
//! ```text
//!   kind (4 bytes) and length of the bytes (4) | cookie | position of the first byte, or bytes that the backup has | tag | bytes
//! ```
//!
//! The tag is SipHash-2-4 over all words except itself. The last word of the bytes is filled up with zeroes, which are not sent. The
//! length is among the tagged words, so no two datagrams have the same ones.

/// Kind of a datagram with bytes of the record.
const RECORD: u32 = 0x3144_4653;
/// Kind of a receipt.
const RECEIPT: u32 = 0x3152_4653;
/// Bytes before the bytes of the record.
const HEAD: usize = 32;
/// Bytes of the record in one datagram. So the packet fits an Ethernet frame, also with IPv6. A multiple of 8.
const BYTES_MAX: usize = 1280;
/// Length of a receipt in bytes.
pub const RECEIPT_LEN: usize = HEAD;

/// The names and the secret of one link between the agents, for the datagrams that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramSeal {
    cookie: u64,
    secret: [u8; 16],
}

impl DatagramSeal {
    /// The seal of the link that the backup has named `cookie`.
    #[must_use]
    pub fn new(cookie: u64, secret: [u8; 16]) -> Self {
        Self { cookie, secret }
    }

    /// The link's name.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The key of SipHash: the secret's two words.
    #[must_use]
    pub fn key(&self) -> [u64; 2] {
        let [low, high] = [0, 8].map(|at| self.secret[at..at + 8].try_into().expect("8 bytes"));
        [u64::from_le_bytes(low), u64::from_le_bytes(high)]
    }

    /// The datagrams with these bytes of the record, of which the first has this position.
    pub fn datagrams(&self, from: u64, bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        (from..)
            .step_by(BYTES_MAX)
            .zip(bytes.chunks(BYTES_MAX))
            .map(|(from, bytes)| self.sealed(RECORD, from, bytes))
    }

    /// Number of bytes that the backup has, from its receipt. `None`: this is no receipt of this link.
    #[must_use]
    pub fn receipt(&self, datagram: &[u8]) -> Option<u64> {
        let have = u64::from_le_bytes(*datagram.get(16..)?.first_chunk()?);
        (self.sealed(RECEIPT, have, &[]) == datagram).then_some(have)
    }

    /// The receipt for the first `have` bytes, as the backup's kernel makes it.
    #[must_use]
    pub fn make_receipt(&self, have: u64) -> Vec<u8> {
        self.sealed(RECEIPT, have, &[])
    }

    fn sealed(&self, kind: u32, number: u64, bytes: &[u8]) -> Vec<u8> {
        let head = [u64::from(kind) | (bytes.len() as u64) << 32, self.cookie, number];
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let tag = siphash(self.key(), head.into_iter().chain(words));
        let mut datagram = Vec::with_capacity(HEAD + bytes.len());
        for word in head.into_iter().chain([tag]) {
            datagram.extend(word.to_le_bytes());
        }
        datagram.extend(bytes);
        datagram
    }
}

/// What a datagram says, for somebody who sees it pass without the link's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedDatagram {
    /// Bytes of the record.
    Record {
        /// The position after the last one.
        until: u64,
    },
    /// A receipt of the backup.
    Receipt {
        /// Number of bytes of the record that the backup has.
        have: u64,
    },
}

/// Reads a datagram without its tag, for measurements: nobody may rely on what it says. `None`: it is no datagram of a record. The datagram may be
/// cut after its head.
#[must_use]
pub fn passed(datagram: &[u8]) -> Option<PassedDatagram> {
    let word = |at: usize| Some(u64::from_le_bytes(*datagram.get(at..)?.first_chunk()?));
    let (kind_and_len, number) = (word(0)?, word(16)?);
    datagram.get(..HEAD)?;
    match u32::try_from(kind_and_len & 0xffff_ffff).ok()? {
        RECORD => Some(PassedDatagram::Record {
            until: number.checked_add(kind_and_len >> 32)?,
        }),
        RECEIPT => Some(PassedDatagram::Receipt { have: number }),
        _ => None,
    }
}

/// SipHash-2-4 of whole words.
fn siphash([low, high]: [u64; 2], words: impl Iterator<Item = u64>) -> u64 {
    let mut state = [
        low ^ 0x736f_6d65_7073_6575,
        high ^ 0x646f_7261_6e64_6f6d,
        low ^ 0x6c79_6765_6e65_7261,
        high ^ 0x7465_6462_7974_6573,
    ];
    let mut take = |word: u64| {
        state[3] ^= word;
        (0..2).for_each(|_| round(&mut state));
        state[0] ^= word;
    };
    let mut len = 0_u64;
    for word in words {
        take(word);
        len += 8;
    }
    take(len << 56);
    state[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut state));
    state.iter().fold(0, |sum, word| sum ^ word)
}

fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *c = c.wrapping_add(*d);
    *b = b.rotate_left(13) ^ *a;
    *d = d.rotate_left(16) ^ *c;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*b);
    *a = a.wrapping_add(*d);
    *b = b.rotate_left(17) ^ *c;
    *d = d.rotate_left(21) ^ *a;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> DatagramSeal {
        DatagramSeal::new(7, std::array::from_fn(|at| at as u8))
    }

    #[test]
    fn the_tag_is_siphash() {
        // The vectors of the paper's authors: the key 00 01 … 0f, and the input 00 01 … of these lengths.
        let vectors = [
            (0, 0x726f_db47_dd0e_0e31),
            (8, 0x93f5_f579_9a93_2462),
            (16, 0x3f2a_cc7f_57c2_9bdb),
        ];
        for (len, expected) in vectors {
            let input: Vec<u8> = (0..len).collect();
            let words = input
                .chunks(8)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            assert_eq!(siphash(seal().key(), words), expected, "{len} bytes");
        }
    }

    #[test]
    fn datagrams_have_all_bytes_in_their_places() {
        let record: Vec<u8> = (0..3000_u32).map(|at| at as u8).collect();
        let datagrams: Vec<_> = seal().datagrams(500, &record).collect();
        let mut at = 0;
        for datagram in &datagrams {
            assert!(datagram.len() <= HEAD + BYTES_MAX);
            assert_eq!(
                datagram[4..8],
                (datagram.len() as u32 - HEAD as u32).to_le_bytes()
            );
            assert_eq!(datagram[16..24], (500 + at as u64).to_le_bytes());
            let bytes = &datagram[HEAD..];
            assert_eq!(bytes, &record[at..at + bytes.len()]);
            at += bytes.len();
        }
        assert_eq!((at, datagrams.len()), (record.len(), 3));
        assert_eq!(seal().datagrams(0, &[]).count(), 0);
    }

    #[test]
    fn only_the_links_own_receipts_count() {
        let receipt = seal().make_receipt(1234);
        assert_eq!(receipt.len(), RECEIPT_LEN);
        assert_eq!(seal().receipt(&receipt), Some(1234));
        for at in 0..receipt.len() {
            let mut wrong = receipt.clone();
            wrong[at] ^= 1;
            assert_eq!(seal().receipt(&wrong), None, "byte {at}");
        }
        assert_eq!(seal().receipt(&receipt[..31]), None);
        assert_eq!(seal().receipt(b""), None);
        let other = DatagramSeal::new(8, seal().secret);
        assert_eq!(other.receipt(&receipt), None);
        let record = seal().datagrams(1234, b"abc").next().unwrap();
        assert_eq!(seal().receipt(&record), None);
    }
}
