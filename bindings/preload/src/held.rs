//! Output that the server has written, and that its connection has not got yet: the backup lacks what the output depends on, or the client
//! reads slowly.

use std::collections::VecDeque;
use std::ffi::c_int;

use proto::order::Outcome;
use rustc_hash::FxHashMap;

use crate::system;

/// Bytes of one connection beyond which a write is not held, but refused with EAGAIN.
pub const HOLD_MAX: usize = 1 << 20;
/// Interval in milliseconds at which a slow client is tried again.
pub const SLOW_CLIENT: c_int = 5;

struct HeldWrite {
    /// Number of bytes of the record that the write depends on.
    after: u64,
    bytes: Vec<u8>,
    /// Bytes that the kernel has taken.
    done: usize,
}

#[derive(Default)]
struct HeldStream {
    writes: VecDeque<HeldWrite>,
    bytes: usize,
    /// The server has closed the connection, and this is our own descriptor of it.
    closes: bool,
}

/// The held output of all connections.
#[derive(Default)]
pub struct HeldOutput {
    streams: FxHashMap<c_int, HeldStream>,
    /// A client did not take all of its output at the last flush.
    is_blocked: bool,
}

impl HeldOutput {
    /// Whether all output has gone.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether output waits for a client that reads slowly.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Number of held bytes of a connection.
    pub fn bytes(&self, fd: c_int) -> usize {
        self.streams.get(&fd).map_or(0, |stream| stream.bytes)
    }

    /// Holds a write that depends on the record's first `after` bytes.
    pub fn hold(&mut self, fd: c_int, after: u64, parts: &[&[u8]]) {
        let stream = self.streams.entry(fd).or_default();
        let bytes = parts.concat();
        stream.bytes += bytes.len();
        stream.writes.push_back(HeldWrite {
            after,
            bytes,
            done: 0,
        });
    }

    /// Writes what depends on at most the record's first `released` bytes.
    pub fn flush(&mut self, released: u64) {
        let mut is_blocked = false;
        self.streams.retain(|&fd, stream| {
            match stream.flush(fd, released) {
                Ok(()) => {}
                Err(libc::EAGAIN) => is_blocked = true,
                // The client is gone. The server learns it from its own calls.
                Err(_) => stream.writes.clear(),
            }
            let is_done = stream.writes.is_empty();
            if is_done && stream.closes {
                let _ = system::close(fd);
            }
            !is_done
        });
        self.is_blocked = is_blocked;
    }

    /// This process is a child of the server that holds the output: closes the descriptors of our own.
    pub fn forget(self) {
        for (fd, _) in self.streams.into_iter().filter(|(_, stream)| stream.closes) {
            let _ = system::close(fd);
        }
    }

    /// The server closes a connection. Its held output moves to a descriptor of our own, which is closed after the output.
    pub fn on_close(&mut self, fd: c_int) {
        if let Some(stream) = self.streams.remove(&fd)
            && let Ok(copy) = system::duplicate(fd)
        {
            let closes = true;
            self.streams.insert(copy, HeldStream { closes, ..stream });
        }
    }
}

impl HeldStream {
    fn flush(&mut self, fd: c_int, released: u64) -> Outcome<()> {
        while let Some(write) = self.writes.front_mut() {
            if write.after > released {
                return Ok(());
            }
            let count = system::send_now(fd, &write.bytes[write.done..])? as usize;
            write.done += count;
            self.bytes -= count;
            if write.done == write.bytes.len() {
                self.writes.pop_front();
            }
        }
        Ok(())
    }
}
