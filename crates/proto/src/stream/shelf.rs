//! Bytes that stay outside the log until they are needed.

use std::ops::Range;

use crate::Offset;

/// Holds bytes that a log was given, until the log was told to [`keep`](super::StreamLog::keep) what it needs of them.
pub trait Shelf {
    /// `len` bytes from `place` on.
    fn bytes(&self, place: u64, len: usize) -> &[u8];
}

/// The place of some bytes on a shelf.
#[derive(Clone, Copy)]
pub struct OnShelf<'a> {
    /// The shelf.
    pub shelf: &'a dyn Shelf,
    /// Where the bytes begin.
    pub place: u64,
}

impl OnShelf<'_> {
    /// The place `bytes` further on.
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        let place = self.place + bytes as u64;
        Self { place, ..self }
    }
}

/// A piece of the stream that lies on a shelf.
#[derive(Clone, Debug)]
pub(super) struct Shelved {
    pub range: Range<Offset>,
    pub place: u64,
}
