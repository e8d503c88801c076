//! What of the input a fresh application is given.

use super::MARK;
use crate::Offset;
use crate::stream::StreamLog;

/// A part of the input, and what is put into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// From here on.
    pub from: Offset,
    /// Up to here, if not all that comes.
    pub until: Option<Offset>,
    /// Where [`MARK`] is put in: behind the request line of each request that is executed again.
    pub marks: Vec<Offset>,
}

impl Feed {
    /// The part that is logged before `frontier`, with its marks.
    ///
    /// # Panics
    /// If the log does not have it.
    pub fn logged<'a>(&self, log: &'a StreamLog, frontier: Offset) -> Vec<&'a [u8]> {
        let mut from = self.from.min(frontier);
        let end = self.until.unwrap_or(frontier).clamp(from, frontier);
        let mut slices = Vec::new();
        for &mark in self.marks.iter().filter(|&&mark| mark <= end) {
            slices.extend(log.slices(from..mark));
            slices.push(MARK);
            from = mark;
        }
        slices.extend(log.slices(from..end));
        slices
    }
}
