//! `sendfile`: a write whose bytes come from a file. The record has the number of bytes, and each node reads its own file.

use std::ffi::c_int;

use libc::{off_t, off64_t, size_t, ssize_t};
use proto::order::Outcome;

use crate::calls::size_or_error;
use crate::{system, with_socket};

/// Largest number of bytes that one call reads, if the connection does not get them at once.
const READ_MAX: usize = 256 << 10;

/// The part of a file that a call sends.
pub struct FilePart<'a> {
    file: c_int,
    /// Where the part begins. `None`: at the file's own position.
    offset: Option<&'a mut off_t>,
    size: usize,
}

impl FilePart<'_> {
    /// The part's length in bytes. The file may end before.
    pub fn len(&self) -> usize {
        self.size
    }

    /// Sends the part to a socket, as the kernel does.
    pub fn send(&mut self, to: c_int) -> Outcome<u64> {
        system::send_file(to, self.file, self.offset.as_deref_mut(), self.size)
    }

    /// Reads from the part's beginning, and sends it by `send`.
    pub fn send_by(&mut self, send: impl FnOnce(&[u8]) -> Outcome<u64>) -> Outcome<u64> {
        let (at, bytes) = self.read(self.size.min(READ_MAX))?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let count = send(&bytes)?;
        self.advance(at, count);
        Ok(count)
    }

    /// Reads the part's first `count` bytes, which then count as sent. `None`: the file does not have them.
    pub fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        let (at, bytes) = self.read(count).ok()?;
        if bytes.len() < count {
            return None;
        }
        self.advance(at, count as u64);
        Some(bytes)
    }

    fn read(&self, count: usize) -> Outcome<(off_t, Vec<u8>)> {
        let at = match &self.offset {
            Some(offset) => **offset,
            None => system::position(self.file, 0)?,
        };
        let mut bytes = vec![0; count];
        let mut have = 0;
        while have < count {
            match system::read_at(self.file, &mut bytes[have..], at + have as off_t)? {
                0 => break,
                read => have += read as usize,
            }
        }
        bytes.truncate(have);
        Ok((at, bytes))
    }

    fn advance(&mut self, at: off_t, count: u64) {
        match &mut self.offset {
            Some(offset) => **offset = at + count.cast_signed(),
            // The position was read just now, so it can be set.
            None => drop(system::position(self.file, count.cast_signed())),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, size: size_t) -> ssize_t {
    let mut part = FilePart {
        file: from,
        // SAFETY: the caller's contract: null or valid.
        offset: unsafe { offset.as_mut() },
        size,
    };
    let ordered = with_socket(to, |server| server.send_file(to, &mut part));
    size_or_error(ordered.unwrap_or_else(|| part.send(to)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, size: size_t) -> ssize_t {
    // SAFETY: the caller's contract. Both kinds of offsets have 64 bits here.
    unsafe { sendfile(to, from, offset, size) }
}
