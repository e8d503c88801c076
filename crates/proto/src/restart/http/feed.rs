//! Which part of the input a new application is given.

use super::MARK;
use crate::Offset;
use crate::spill::LogPart;
use crate::stream::StreamLog;

/// A part of the input, and the header lines that are inserted into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Where the part begins.
    pub from: Offset,
    /// Where the part ends; `None`: it includes all later input.
    pub until: Option<Offset>,
    /// Where [`MARK`] is inserted: after the request line of each request that is executed again.
    pub marks: Vec<Offset>,
    /// Header fields that are inserted after the first [`MARK`]. May be empty.
    pub fields: Vec<u8>,
}

impl Feed {
    /// The logged part before `frontier`, with its marks.
    ///
    /// # Panics
    /// If the log does not have these bytes.
    pub fn logged<'a>(&'a self, log: &'a StreamLog, frontier: Offset) -> Vec<LogPart<'a>> {
        let mut from = self.from.min(frontier);
        let end = self.until.unwrap_or(frontier).clamp(from, frontier);
        let mut parts = Vec::new();
        let mut fields = Some(self.fields.as_slice()).filter(|fields| !fields.is_empty());
        for &mark in self.marks.iter().filter(|&&mark| mark <= end) {
            parts.extend(log.parts(from..mark));
            parts.push(LogPart::Memory(MARK));
            parts.extend(fields.take().map(LogPart::Memory));
            from = mark;
        }
        parts.extend(log.parts(from..end));
        parts
    }
}
