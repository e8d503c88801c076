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

use linux::application::{ConnectionProgress, ProgressError, progress, receive_with_descriptor};
use proto::Offset;
use proto::export::{ExportOutcome, STATE_MAX};
use proto::service::ExportCall;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::{OUTCOME_MAX, SnapshotServer};
use crate::control::ExportRequest;
use crate::keepers;

/// Marks a request of this version.
const MAGIC: u32 = 0x3153_4653;
/// Length of a request without its state, and of an answer without its state.
const HEAD: usize = 16;

/// A request without its state.
pub(super) struct RequestHead {
    bytes: [u8; HEAD],
    connection: Option<OwnedFd>,
}

/// What an application asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Export { waits: bool },
    Import,
}

/// Whether a request was carried out, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Status {
    Done = 0,
    /// The connection has moved to another node.
    Moved = 1,
    /// Not a TCP connection of a service with policy `snapshot`.
    NotProtected = 2,
    /// The connection has ended.
    Ended = 3,
    /// The state is larger than [`STATE_MAX`].
    TooLarge = 4,
    /// The state is larger than the application's buffer.
    SmallBuffer = 5,
    /// The backup did not keep the snapshot in time.
    TimedOut = 6,
    /// Not a request, or one of another version.
    Malformed = 7,
}

/// The answer to a request.
pub(super) struct Answer {
    pub status: Status,
    /// An export is kept by the backup; an import has found a state.
    flag: bool,
    size: usize,
    state: Vec<u8>,
}

impl Answer {
    fn of(status: Status) -> Self {
        Self {
            status,
            flag: false,
            size: 0,
            state: Vec::new(),
        }
    }

    fn sized(status: Status, size: usize) -> Self {
        Self {
            size,
            ..Self::of(status)
        }
    }

    fn done(flag: bool) -> Self {
        Self {
            flag,
            ..Self::of(Status::Done)
        }
    }
}

/// Waits for the next request. `None`: the application has disconnected.
pub(super) async fn read_head(stream: &UnixStream) -> io::Result<Option<RequestHead>> {
    let mut head = RequestHead {
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
pub(super) async fn write(stream: &mut UnixStream, answer: Answer) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEAD + answer.state.len());
    bytes.extend((answer.status as u32).to_ne_bytes());
    bytes.extend(u32::from(answer.flag).to_ne_bytes());
    bytes.extend((answer.size as u64).to_ne_bytes());
    bytes.extend(answer.state);
    stream.write_all(&bytes).await
}

impl RequestHead {
    /// The operation, its size and its connection. `None`: not a request of this version.
    fn parse(self) -> Option<(Operation, u64, OwnedFd)> {
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

impl SnapshotServer {
    /// Carries out a request.
    pub(super) async fn answer(&self, stream: &mut UnixStream, head: RequestHead) -> io::Result<Answer> {
        let Some((operation, size, connection)) = head.parse() else {
            return Ok(Answer::of(Status::Malformed));
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        match operation {
            Operation::Import => self.import(size, &connection).await,
            Operation::Export { .. } if size > STATE_MAX => {
                let mut state = stream.take(size as u64);
                tokio::io::copy(&mut state, &mut tokio::io::sink()).await?; // the next request begins behind it
                Ok(Answer::sized(Status::TooLarge, STATE_MAX))
            }
            Operation::Export { waits } => {
                let room = u32::try_from(size).expect("at most STATE_MAX");
                let _room = self
                    .receiving
                    .acquire_many(room)
                    .await
                    .map_err(io::Error::other)?;
                let mut state = vec![0; size];
                stream.read_exact(&mut state).await?;
                self.export(waits, state, &connection).await
            }
        }
    }

    async fn export(&self, waits: bool, state: Vec<u8>, connection: &OwnedFd) -> io::Result<Answer> {
        let progress = match self.progress(connection).await {
            Ok(progress) => progress,
            Err(status) => return Ok(Answer::of(status)),
        };
        let Some((service, is_relayed)) = self.find(progress.local) else {
            return Ok(Answer::of(Status::NotProtected));
        };
        if is_relayed {
            return Ok(Answer::done(false)); // its log begins at the client's next connection
        }
        let call = ExportCall {
            call: 0, // the agent's loop numbers the calls
            client: progress.peer,
            input: Offset(progress.read),
            output: Offset(progress.written),
            state: state.into(),
        };
        let request = ExportRequest {
            service: service.index,
            call,
            waits,
        };
        let outcome = tokio::time::timeout(OUTCOME_MAX, self.asker.export(request)).await;
        Ok(match outcome {
            Ok(Some(ExportOutcome::Kept)) => Answer::done(true),
            Ok(Some(ExportOutcome::NotKept(reason))) => {
                tracing::debug!(client = %progress.peer, reason, "a snapshot is not kept");
                Answer::done(false)
            }
            Ok(Some(ExportOutcome::Moved)) => Answer::of(Status::Moved),
            Ok(Some(ExportOutcome::TimedOut)) | Err(_) => Answer::of(Status::TimedOut),
            Ok(None) => return Err(io::ErrorKind::ConnectionAborted.into()), // the agent stops: its successor is asked again
        })
    }

    /// How far the application has used its connection, or the answer if this is not known.
    async fn progress(&self, connection: &OwnedFd) -> Result<ConnectionProgress, Status> {
        match progress(connection) {
            Ok(progress) => Ok(progress),
            Err(ProgressError::NotAConnection) => Err(Status::NotProtected),
            Err(ProgressError::Restless) => Err(Status::TimedOut),
            Err(ProgressError::Ended(local)) => match self.find(local) {
                Some((service, false)) if self.asker.has_moved(service.index).await => Err(Status::Moved),
                Some(_) => Err(Status::Ended),
                None => Err(Status::NotProtected),
            },
        }
    }

    async fn import(&self, room: usize, connection: &OwnedFd) -> io::Result<Answer> {
        let progress = match self.progress(connection).await {
            Ok(progress) => progress,
            Err(status) => return Ok(Answer::of(status)),
        };
        let service = match self.find(progress.local) {
            None => return Ok(Answer::of(Status::NotProtected)),
            Some((_, false)) => return Ok(Answer::done(false)), // the client's own connection to this node
            Some((service, true)) => service.index,
        };
        let state_dir = self.state_dir.clone();
        let asked = tokio::task::spawn_blocking(move || keepers::import(&state_dir, progress.peer));
        let state = asked.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
        Ok(match state {
            None => Answer::done(false),
            Some(state) if state.len() > room => Answer::sized(Status::SmallBuffer, state.len()),
            Some(state) => {
                self.imported.count(service);
                Answer {
                    status: Status::Done,
                    flag: true,
                    size: state.len(),
                    state: state.to_vec(),
                }
            }
        })
    }
}
