//! Moves bytes from one socket to another. Bytes that the sink does not take at once are kept, and no more are read meanwhile.
//!
//! At most one task waits for each direction of a socket. So it waits in the one slot that the socket has for that (`poll_*_ready`): a
//! place in the socket's list of waiters would take memory for as long as a connection is idle.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;

use tokio::net::TcpStream;

use super::kept::Kept;
use super::turns::Turns;

/// Most bytes read at once. With more, each of hundreds of connections waits longer for its next turn, and nothing is faster.
const BUFFER: usize = 64 * 1024;
/// Most bytes read at once while a client waits for its first byte.
const PORTION: usize = 16 * 1024;

/// Memory for one read and the write after it, never across a wait; all flows share it.
pub(super) struct Scratch {
    pub bytes: RefCell<Box<[u8]>>,
    pub turns: Turns,
}

impl Scratch {
    pub fn new() -> Self {
        Self {
            bytes: RefCell::new(vec![0; BUFFER].into_boxed_slice()),
            turns: Turns::new(),
        }
    }
}

/// Bytes on their way to one socket.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
}

impl Outgoing {
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, written: 0 }
    }

    /// Writes what the socket takes of `bytes` now and keeps the rest. Nothing else may be on its way.
    pub fn start(&mut self, sink: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(self.bytes.is_empty(), "the source was held up");
        let written = match sink.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            outcome => outcome?,
        };
        self.bytes.extend_from_slice(&bytes[written..]);
        Ok(())
    }

    /// Waits until all is written. An idle flow owns no memory.
    pub async fn finish(&mut self, sink: &TcpStream) -> io::Result<()> {
        while self.written < self.bytes.len() {
            poll_fn(|context| sink.poll_write_ready(context)).await?;
            match sink.try_write(&self.bytes[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        *self = Self::default();
        Ok(())
    }

    /// Room for a filter to put bytes in; they are written by [`finish`](Self::finish).
    pub const fn room(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

/// Waits for bytes of the connection `kept`, and until it is its turn, and gives them to `take`, in memory that others use afterwards.
/// `None` at the stream's end.
///
/// # Errors
/// The source failed.
pub(super) async fn read<T>(
    source: &TcpStream,
    scratch: &Scratch,
    kept: &Kept,
    take: impl FnOnce(&[u8]) -> T,
) -> io::Result<Option<T>> {
    loop {
        poll_fn(|context| source.poll_read_ready(context)).await?;
        scratch.turns.give_way(kept).await;
        let turn = if scratch.turns.somebody_waits() {
            PORTION
        } else {
            BUFFER
        };
        let count = source.try_read(&mut scratch.bytes.borrow_mut()[..turn]);
        match count {
            Ok(0) => return Ok(None),
            Ok(count) => {
                let taken = take(&scratch.bytes.borrow()[..count]);
                if count == turn {
                    tokio::task::yield_now().await; // a source that never dries up must not starve the others
                }
                return Ok(Some(taken));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
