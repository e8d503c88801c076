//! User data: bytes, or only their number.

use std::ops::Range;

use bytes::Bytes;

/// The payload of a message or of a DATA chunk. A clone or a slice copies no byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserData {
    /// Bytes.
    Bytes(Bytes),
    /// A number of bytes whose content does not matter. The simulator uses it for bulk data. In an encoded packet, the bytes are zeros.
    Counted(u32),
}

impl UserData {
    /// Number of bytes.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Counted(count) => *count as usize,
        }
    }

    /// Whether there is no byte.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part at `range`, cut at the end of the data.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.slice(start..end)),
            // The difference is at most the count, which is a `u32`.
            Self::Counted(_) => Self::Counted((end - start) as u32),
        }
    }

    /// Appends the bytes to `out`.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Counted(count) => out.resize(out.len() + *count as usize, 0),
        }
    }

    /// The fragments of one message, joined. One fragment is returned as it is. If all fragments are counted, the result is counted.
    pub fn join(fragments: &[Self]) -> Self {
        if let [only] = fragments {
            return only.clone();
        }
        let length = fragments.iter().map(Self::len).sum();
        let is_counted = fragments.iter().all(|part| matches!(part, Self::Counted(_)));
        match u32::try_from(length) {
            Ok(count) if is_counted => Self::Counted(count),
            _ => {
                let mut whole = Vec::with_capacity(length);
                for part in fragments {
                    part.emit(&mut whole);
                }
                Self::Bytes(whole.into())
            }
        }
    }
}

impl From<&'static [u8]> for UserData {
    fn from(bytes: &'static [u8]) -> Self {
        Self::Bytes(Bytes::from_static(bytes))
    }
}

impl From<Vec<u8>> for UserData {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_ends_with_the_data() {
        let bytes = UserData::from(b"abcdef".as_slice());
        assert_eq!(bytes.slice(4..9), UserData::from(b"ef".as_slice()));
        assert_eq!(UserData::Counted(6).slice(4..9), UserData::Counted(2));
        assert_eq!(UserData::Counted(6).slice(7..9), UserData::Counted(0));
    }

    #[test]
    fn counted_fragments_stay_counted_until_bytes_join_them() {
        let counted = UserData::Counted(2);
        assert_eq!(
            UserData::join(&[counted.clone(), counted.clone()]),
            UserData::Counted(4)
        );
        let mixed = UserData::join(&[UserData::from(b"a".as_slice()), counted]);
        assert_eq!(mixed, UserData::from(b"a\0\0".as_slice()));
    }
}
