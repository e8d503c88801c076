//! A flow moves bytes from one socket of a relayed connection to the other, in one direction. It keeps bytes that the sink does not take at
//! once, and stops reading until the sink has taken them.
//!
//! At most one task waits for each direction of a socket. So the task can register in the single waker that tokio has for each direction of
//! a socket (`poll_*_ready`). The alternative (`readable()`, `writable()`) puts an entry in the socket's list of waiters. The entry would
//! take memory for as long as the connection is idle.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;

use tokio::net::TcpStream;

use super::turns::{ClientTurn, Turns};

/// Maximum number of bytes for one read. With longer reads, hundreds of connections wait longer for their turns, and nothing is faster.
const BUFFER: usize = 64 * 1024;
/// Maximum number of bytes for one read while a client waits for its first byte.
const PORTION: usize = 16 * 1024;

/// Memory for one read and the write after it. All flows share it, so no flow may keep bytes in it while waiting.
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

    /// Writes as many of `bytes` as the socket takes now, and keeps the rest. No earlier bytes may be left.
    pub fn start(&mut self, sink: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(
            self.bytes.is_empty(),
            "the source must not be read while bytes are left"
        );
        let written = match sink.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            outcome => outcome?,
        };
        self.bytes.extend_from_slice(&bytes[written..]);
        Ok(())
    }

    /// Writes all bytes that are left, and frees their memory. An idle flow owns no memory.
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

    /// A buffer for bytes that the relay's filter produces. [`finish`](Self::finish) writes them.
    pub const fn room(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

/// Waits until `source` has bytes, then until it is the turn of the connection's client (`client`). Then gives the bytes to `take`.
/// Afterwards other flows reuse the memory of the bytes. Returns the result of `take`, or `None` at the stream's end.
///
/// # Errors
/// The source failed.
pub(super) async fn read<T>(
    source: &TcpStream,
    scratch: &Scratch,
    client: &Cell<ClientTurn>,
    take: impl FnOnce(&[u8]) -> T,
) -> io::Result<Option<T>> {
    loop {
        poll_fn(|context| source.poll_read_ready(context)).await?;
        scratch.turns.give_way(client).await;
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
                    tokio::task::yield_now().await; // a source that always has bytes must not starve the others
                }
                return Ok(Some(taken));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
