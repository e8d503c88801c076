//! Numbers of DATA chunks and of messages, which wrap (RFC 9260 §1.6).

use std::fmt;

/// A transmission sequence number. It has no order; compare distances.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tsn(pub u32);

impl Tsn {
    /// Signed distance from `earlier` to `self`, right while the two are less than 2³¹ apart.
    pub const fn distance_from(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// Whether `self` comes after `other`.
    pub const fn is_after(self, other: Self) -> bool {
        self.distance_from(other) > 0
    }

    /// The TSN `count` places later.
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// The TSN `count` places earlier.
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }
}

impl fmt::Debug for Tsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tsn {}", self.0)
    }
}

impl fmt::Display for Tsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A stream sequence number: the place of an ordered message in its stream.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ssn(pub u16);

impl Ssn {
    /// Signed distance from `earlier` to `self`, right while the two are less than 2¹⁵ apart.
    pub const fn distance_from(self, earlier: Self) -> i16 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// The next SSN.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl fmt::Debug for Ssn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ssn {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_across_the_wrap() {
        let last = Tsn(u32::MAX);
        assert!(last.plus(1).is_after(last) && !last.is_after(last.plus(1)));
        assert_eq!(last.plus(3).distance_from(last), 3);
        assert_eq!(last.plus(3).minus(3), last);
        assert_eq!(Ssn(u16::MAX).next(), Ssn(0));
        assert_eq!(Ssn(1).distance_from(Ssn(u16::MAX)), 2);
    }
}
