//! The logged input that goes to the keeper with a connection.

use std::os::fd::{AsFd, BorrowedFd};

use proto::spill::LogPart;

use crate::spill::file_of;

/// Logged bytes, in order. Spilled bytes stay in their file: the keeper gets the file's descriptor.
#[derive(Default)]
pub struct LoggedInput<'a> {
    /// The file that holds the spilled pieces, if there are any.
    pub(super) file: Option<BorrowedFd<'a>>,
    /// The pieces, in order.
    pub(super) pieces: Vec<InputPiece<'a>>,
}

/// A piece of a [`LoggedInput`].
#[derive(Clone, Copy)]
pub(super) enum InputPiece<'a> {
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// Bytes in the input's file.
    InFile { at: u64, len: u64 },
}

impl<'a> FromIterator<LogPart<'a>> for LoggedInput<'a> {
    /// # Panics
    /// If a part is in a file that is not one of [`crate::spill`]'s.
    fn from_iter<I: IntoIterator<Item = LogPart<'a>>>(parts: I) -> Self {
        let mut input = Self::default();
        for part in parts {
            input.pieces.push(match part {
                LogPart::Memory(bytes) => InputPiece::Bytes(bytes),
                LogPart::File(part) => {
                    let file = file_of(part.file).expect("a log's file is made by crate::spill");
                    input.file = Some(file.as_fd()); // a log has at most one file
                    let (at, len) = (part.at, part.len);
                    InputPiece::InFile { at, len }
                }
            });
        }
        input
    }
}

impl<'a> From<&[&'a [u8]]> for LoggedInput<'a> {
    fn from(slices: &[&'a [u8]]) -> Self {
        slices.iter().map(|slice| LogPart::Memory(slice)).collect()
    }
}
