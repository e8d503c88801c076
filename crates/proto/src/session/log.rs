//! A part of one stream of a session: contiguous bytes from a base to an end.

use std::collections::VecDeque;

use crate::Offset;

/// The bytes from `base` on.
#[derive(Debug, Default)]
pub(super) struct SessionLog {
    base: Offset,
    bytes: VecDeque<u8>,
}

impl SessionLog {
    /// The log with these bytes from `base` on.
    pub fn with(base: Offset, bytes: Vec<u8>) -> Self {
        Self {
            base,
            bytes: bytes.into(),
        }
    }

    pub const fn base(&self) -> Offset {
        self.base
    }

    pub fn end(&self) -> Offset {
        self.base + self.bytes.len() as u64
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the part of `bytes` that is new. `bytes` begin at `at`. Returns this part. `None`: bytes before `at` are missing.
    pub fn append<'a>(&mut self, at: Offset, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let known = usize::try_from(self.end().0.checked_sub(at.0)?).ok()?;
        let new = bytes.get(known..).unwrap_or_default();
        self.bytes.extend(new);
        Some(new)
    }

    /// Forgets the bytes before `until`.
    pub fn forget(&mut self, until: Offset) {
        let until = until.min(self.end());
        let count = until.0.saturating_sub(self.base.0);
        self.bytes
            .drain(..usize::try_from(count).expect("at most the length"));
        self.base = self.base.max(until);
    }

    /// At most `most` bytes from `from` on, which is not before the base.
    pub fn from(&self, from: Offset, most: usize) -> Vec<u8> {
        let begin = usize::try_from(from.since(self.base))
            .unwrap_or(usize::MAX)
            .min(self.len());
        let end = begin.saturating_add(most).min(self.len());
        self.bytes.range(begin..end).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_once_and_without_gaps() {
        let mut log = SessionLog::default();
        assert_eq!(log.append(Offset(0), b"abc"), Some(&b"abc"[..]));
        assert_eq!(log.append(Offset(1), b"bcde"), Some(&b"de"[..]));
        assert_eq!(log.append(Offset(1), b"bc"), Some(&b""[..]));
        assert_eq!(log.append(Offset(6), b"x"), None);
        log.forget(Offset(2));
        log.forget(Offset(1));
        assert_eq!((log.base(), log.end(), log.len()), (Offset(2), Offset(5), 3));
        assert_eq!(log.from(Offset(3), 9), b"de");
        assert_eq!(log.from(Offset(2), 1), b"c");
        log.forget(Offset(99));
        assert_eq!((log.base(), log.len()), (Offset(5), 0));
    }
}
