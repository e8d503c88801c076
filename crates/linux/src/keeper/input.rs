//! The logged input that goes to the keeper with a connection.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

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

impl LoggedInput<'_> {
    /// All bytes.
    ///
    /// # Errors
    /// The error of reading the file.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for piece in &self.pieces {
            match *piece {
                InputPiece::Bytes(piece) => bytes.extend_from_slice(piece),
                InputPiece::InFile { at, len } => {
                    let file = self.file.ok_or(io::ErrorKind::NotFound)?;
                    let file = File::from(file.try_clone_to_owned()?);
                    let from = bytes.len();
                    bytes.resize(from + usize::try_from(len).map_err(io::Error::other)?, 0);
                    file.read_exact_at(&mut bytes[from..], at)?;
                }
            }
        }
        Ok(bytes)
    }
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
