//! An application's request and the answer to it.
//!
//! Numbers are in the machine's byte order: both sides are on one machine. The descriptor of the connection comes with the first byte.
//!
//! ```text
//!   request:  magic u32 | operation u32 | size u64    then, for an export, the state
//!   answer:   status u32 | flag u32 | size u64        then, for an import that has found a state, the state
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use linux::application::receive_with_descriptor;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// Marks a request of this version.
const MAGIC: u32 = 0x3153_4653;
/// Length of a request without its state, and of an answer without its state.
const HEAD: usize = 16;

/// A request without its state.
pub(crate) struct RequestAndConnection {
    bytes: [u8; HEAD],
    connection: Option<OwnedFd>,
}

/// What an application asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Export { waits: bool },
    Import,
}

/// Whether a request was carried out, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Done = 0,
    /// The connection has moved to another node.
    Moved = 1,
    /// Not a TCP connection of a service with policy `snapshot`.
    NotProtected = 2,
    /// The connection has ended.
    Ended = 3,
    /// The state is larger than [`STATE_MAX`](proto::export::STATE_MAX).
    TooLarge = 4,
    /// The state is larger than the application's buffer.
    SmallBuffer = 5,
    /// The backup did not keep the snapshot in time.
    TimedOut = 6,
    /// Not a request, or one of another version.
    Malformed = 7,
}

/// The answer to a request.
pub(crate) struct Answer {
    pub status: Status,
    /// An export is kept by the backup; an import has found a state.
    flag: bool,
    size: usize,
    state: Vec<u8>,
}

impl Answer {
    pub fn of(status: Status) -> Self {
        Self {
            status,
            flag: false,
            size: 0,
            state: Vec::new(),
        }
    }

    pub fn sized(status: Status, size: usize) -> Self {
        Self {
            size,
            ..Self::of(status)
        }
    }

    pub fn with_state(state: &[u8]) -> Self {
        Self {
            size: state.len(),
            state: state.to_vec(),
            ..Self::done(true)
        }
    }

    pub fn done(flag: bool) -> Self {
        Self {
            flag,
            ..Self::of(Status::Done)
        }
    }
}

/// Waits for the next request. `None`: the application has disconnected.
pub(crate) async fn read_head(stream: &UnixStream) -> io::Result<Option<RequestAndConnection>> {
    let mut head = RequestAndConnection {
        bytes: [0; HEAD],
        connection: None,
    };
    let mut have = 0;
    while have < HEAD {
        let rest = &mut head.bytes[have..];
        let received = stream.async_io(Interest::READABLE, || {
            receive_with_descriptor(stream.as_fd(), rest)
        });
        let (count, descriptor) = received.await?;
        if count == 0 {
            return match have {
                0 => Ok(None),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        have += count;
        head.connection = descriptor.or(head.connection);
    }
    Ok(Some(head))
}

/// Sends an answer.
pub(crate) async fn write(stream: &mut UnixStream, answer: Answer) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEAD + answer.state.len());
    bytes.extend((answer.status as u32).to_ne_bytes());
    bytes.extend(u32::from(answer.flag).to_ne_bytes());
    bytes.extend((answer.size as u64).to_ne_bytes());
    bytes.extend(answer.state);
    stream.write_all(&bytes).await
}

impl RequestAndConnection {
    /// The operation, its size and its connection. `None`: not a request of this version.
    pub fn parse(self) -> Option<(Operation, u64, OwnedFd)> {
        let number = |at: usize| u32::from_ne_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"));
        let size = u64::from_ne_bytes(self.bytes[8..].try_into().expect("eight bytes"));
        let operation = match (number(0), number(4)) {
            (MAGIC, 1) => Operation::Export { waits: true },
            (MAGIC, 2) => Operation::Export { waits: false },
            (MAGIC, 3) => Operation::Import,
            _ => return None,
        };
        Some((operation, size, self.connection?))
    }
}
