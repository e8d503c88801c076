//! Positions in a TCP byte stream: [`Seq`]s in packets, [`Offset`]s in logs. A position is converted once, at the border between packets
//! and logs.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Deserializer, Serialize, de};

/// A TCP sequence number: 32 bits that wrap (RFC 9293 §3.4). It has no order; compare [`Offset`]s.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seq(pub u32);

impl Seq {
    /// Signed distance from `earlier` to `self`, right while the two are less than 2³¹ apart.
    pub const fn distance_from(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// Whether `self` is equal to `other` or comes after `other`.
    pub const fn reaches(self, other: Self) -> bool {
        self.distance_from(other) >= 0
    }
}

impl Add<u32> for Seq {
    type Output = Self;

    fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl Sub<u32> for Seq {
    type Output = Self;

    fn sub(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq {}", self.0)
    }
}

/// A byte's position in a stream: 0 is the first byte after the SYN. In a stream that is learnt in its middle, [`LEARNT`](Self::LEARNT) is
/// the first known byte. 64 bits never wrap.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Offset(pub u64);

impl Offset {
    /// The first byte after the SYN.
    pub const ZERO: Self = Self(0);

    /// The first known byte of a stream that is learnt in its middle. It is so far from 0 that earlier bytes have an offset too.
    /// It is a multiple of 2³², so [`LEARNT.to_seq(first)`](Self::to_seq) is `first`. Therefore `first` is the first known byte's number.
    pub const LEARNT: Self = Self(1 << 32);

    /// The offset of the byte numbered `seq` in the stream whose byte 0 has the number `first`. Many offsets have this number; the
    /// result is the one nearest to `near`. `None` if the nearest one lies before the stream's start.
    pub fn from_seq(seq: Seq, first: Seq, near: Self) -> Option<Self> {
        let expected = near.to_seq(first);
        near.0
            .checked_add_signed(i64::from(seq.distance_from(expected)))
            .map(Self)
    }

    /// The sequence number of this byte in the stream whose byte 0 has the number `first`.
    // The cast drops the upper 32 bits on purpose: sequence numbers count modulo 2³².
    pub const fn to_seq(self, first: Seq) -> Seq {
        Seq(first.0.wrapping_add(self.0 as u32))
    }

    /// Bytes from `earlier` up to here; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Offset {
    type Output = Self;

    fn add(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl AddAssign<u64> for Offset {
    fn add_assign(&mut self, count: u64) {
        self.0 += count;
    }
}

impl fmt::Debug for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Deserializes a number that nodes count up from 0, one by one. Refuses a number that no node can have reached: adding to it
/// might overflow.
pub(crate) fn in_reach<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    const REACH: u64 = u64::MAX / 2;
    let number = u64::deserialize(deserializer)?;
    match number {
        0..=REACH => Ok(number),
        _ => Err(de::Error::custom("the count exceeds 2^63 − 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_the_sequence_number_through_many_wraps() {
        let first = Seq(0xffff_fff0);
        let mut near = Offset::ZERO;
        for step in [10_u64, 20, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 7] {
            let next = near + step;
            assert_eq!(Offset::from_seq(next.to_seq(first), first, near), Some(next));
            near = next;
        }
        assert!(near.0 > 1 << 32);
    }

    #[test]
    fn a_number_before_the_stream_has_no_offset() {
        assert_eq!(Offset::from_seq(Seq(99), Seq(100), Offset::ZERO), None);
        assert_eq!(
            Offset::from_seq(Seq(100), Seq(100), Offset(5)),
            Some(Offset::ZERO)
        );
    }
}
