//! Received bytes that stay in the caller's memory until the log needs its own copy.

use std::ops::Range;

use crate::Offset;

/// The caller's memory, in which bytes of a log lie. This memory must stay unchanged until [`keep`](super::StreamLog::keep) has copied the
/// bytes that the log still needs.
pub trait Shelf {
    /// `len` bytes from `place` on.
    fn bytes(&self, place: u64, len: usize) -> &[u8];
}

/// The place of some bytes on a shelf.
#[derive(Clone, Copy)]
pub struct OnShelf<'a> {
    /// The shelf.
    pub shelf: &'a dyn Shelf,
    /// Position at which the bytes begin.
    pub place: u64,
}

impl OnShelf<'_> {
    /// The place that is `bytes` later.
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
