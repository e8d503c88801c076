//! Requests to the local agent over a Unix SOCK_STREAM socket. One connection serves many requests, one after another.
//!
//! ```text
//!  request  magic u32 │ operation u32 │ size u64 │ state, for an export
//!  answer   status u32 │ flag u32 │ size u64 │ state, for an import of a continued connection
//! ```
//!
//! Integers have the machine's byte order. The descriptor of the TCP connection comes with the first byte of the request. `size` is the
//! size of the state. In the request of an import, it is the size of the caller's buffer. Requests are idempotent.

use std::ffi::OsString;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::{SNAPSHOT_MAX, SnapshotError};

/// First field of a request. It names the protocol and its version.
pub(crate) const MAGIC: u32 = 0x3153_4653;
pub(crate) const EXPORT_AND_WAIT: u32 = 1;
pub(crate) const EXPORT: u32 = 2;
pub(crate) const IMPORT: u32 = 3;
/// Size of a request without its state, and of an answer without its state, in bytes.
pub(crate) const HEADER: usize = 16;

const DONE: u32 = 0;
const EMIGRATED: u32 = 1;
const NOT_PROTECTED: u32 = 2;
const CLOSED: u32 = 3;
const TOO_LARGE: u32 = 4;
const BUFFER_TOO_SMALL: u32 = 5;
const TIMED_OUT: u32 = 6;

const DEFAULT_PATH: &str = "/run/steadfast/snapshots.sock";
/// Interval between two attempts while the agent is away.
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// Default of [`SnapshotAgent::patience`]. A restarted agent needs less.
const PATIENCE: Duration = Duration::from_secs(10);

/// The path of the agent's socket. `None`: no agent is used, because the environment variable is set and empty.
pub(crate) fn path(variable: Option<OsString>) -> Option<PathBuf> {
    let path = variable.unwrap_or_else(|| DEFAULT_PATH.into());
    (!path.is_empty()).then(|| path.into())
}

/// A request, with the memory that the state is read from or written to.
enum SnapshotRequest<'a> {
    Export { state: &'a [u8], waits: bool },
    Import { buffer: &'a mut [u8] },
}

impl SnapshotRequest<'_> {
    /// The bytes that the agent receives.
    fn parts(&self) -> ([u8; HEADER], &[u8]) {
        let (operation, size, state) = match self {
            Self::Export { state, waits } => {
                let operation = if *waits { EXPORT_AND_WAIT } else { EXPORT };
                (operation, state.len(), *state)
            }
            Self::Import { buffer } => (IMPORT, buffer.len(), &[][..]),
        };
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        header[4..8].copy_from_slice(&operation.to_ne_bytes());
        header[8..].copy_from_slice(&(size as u64).to_ne_bytes());
        (header, state)
    }
}

/// An answer without its state.
#[derive(Clone, Copy)]
struct AgentAnswer {
    status: u32,
    flag: bool,
    size: usize,
}

impl AgentAnswer {
    fn read(stream: &mut UnixStream) -> io::Result<Self> {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header)?;
        let [s0, s1, s2, s3, f0, f1, f2, f3, size @ ..] = header;
        Ok(Self {
            status: u32::from_ne_bytes([s0, s1, s2, s3]),
            flag: u32::from_ne_bytes([f0, f1, f2, f3]) != 0,
            size: usize::try_from(u64::from_ne_bytes(size)).unwrap_or(usize::MAX),
        })
    }

    fn outcome(self) -> Result<Self, SnapshotError> {
        Err(match self.status {
            DONE => return Ok(self),
            EMIGRATED => SnapshotError::Emigrated,
            NOT_PROTECTED => SnapshotError::NotProtected,
            CLOSED => SnapshotError::Closed,
            TOO_LARGE => SnapshotError::TooLarge { limit: self.size },
            BUFFER_TOO_SMALL => SnapshotError::BufferTooSmall { needed: self.size },
            TIMED_OUT => SnapshotError::TimedOut,
            _ => SnapshotError::Protocol,
        })
    }
}

/// A connection to the agent, and the process that opened it. After a `fork`, the child must not use the connection of its parent.
struct OpenStream {
    stream: UnixStream,
    process: u32,
}

/// The local agent, as one thread sees it.
pub(crate) struct SnapshotAgent {
    path: Option<PathBuf>,
    /// How long the agent may be away.
    pub(crate) patience: Duration,
    /// Whether a call of this process has waited for the agent in vain, and no call has reached it since. Meanwhile an export makes one
    /// attempt: a server whose agent is gone must not become slow as well.
    is_gone: Arc<AtomicBool>,
    open: Option<OpenStream>,
}

impl SnapshotAgent {
    /// The agent that listens at `path`. `None`: no agent is used. All threads share `is_gone`.
    pub(crate) const fn new(path: Option<PathBuf>, is_gone: Arc<AtomicBool>) -> Self {
        Self {
            path,
            patience: PATIENCE,
            is_gone,
            open: None,
        }
    }

    /// Exports `state`. Returns the answer's flag: whether a backup keeps the state, or whether the agent has accepted it.
    pub(crate) fn export(
        &mut self,
        connection: BorrowedFd<'_>,
        state: &[u8],
        waits: bool,
    ) -> Result<bool, SnapshotError> {
        if state.len() > SNAPSHOT_MAX {
            return Err(SnapshotError::TooLarge { limit: SNAPSHOT_MAX });
        }
        let answer = self.request(connection, SnapshotRequest::Export { state, waits })?;
        Ok(answer.is_some_and(|answer| answer.flag))
    }

    /// Imports the state of a continued connection into `buffer`. Returns its size.
    pub(crate) fn import(
        &mut self,
        connection: BorrowedFd<'_>,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, SnapshotError> {
        let room = buffer.len();
        match self.request(connection, SnapshotRequest::Import { buffer }) {
            Ok(Some(answer)) if answer.flag && answer.size > room => Err(SnapshotError::Protocol),
            Ok(answer) => Ok(answer.filter(|answer| answer.flag).map(|answer| answer.size)),
            // Otherwise a caller could ask for ever, or for more memory than there is.
            Err(SnapshotError::BufferTooSmall { needed }) if needed <= room || needed > SNAPSHOT_MAX => {
                Err(SnapshotError::Protocol)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a request, as often as needed while the agent is away. `None`: no agent is used.
    fn request(
        &mut self,
        connection: BorrowedFd<'_>,
        mut request: SnapshotRequest<'_>,
    ) -> Result<Option<AgentAnswer>, SnapshotError> {
        let Self {
            path: Some(path),
            patience,
            is_gone,
            open,
        } = self
        else {
            return Ok(None);
        };
        let is_export = matches!(request, SnapshotRequest::Export { .. });
        let patience = if is_export && is_gone.load(Ordering::Relaxed) {
            Duration::ZERO
        } else {
            *patience
        };
        let mut deadline = None;
        loop {
            let error = match attempt(open, path, connection, &mut request) {
                Ok(answer) => {
                    is_gone.store(false, Ordering::Relaxed);
                    return answer.outcome().map(Some);
                }
                Err(error) if is_away(&error) => error,
                Err(error) => return Err(SnapshotError::Io(error)),
            };
            let now = Instant::now();
            if now >= *deadline.get_or_insert(now + patience) {
                is_gone.store(true, Ordering::Relaxed);
                return Err(SnapshotError::NoAgent(error));
            }
            thread::sleep(RETRY_EVERY);
        }
    }
}

/// Makes a request once, on the stream that is `open` or on a new one. The stream stays open if another request may follow on it.
fn attempt(
    open: &mut Option<OpenStream>,
    path: &Path,
    connection: BorrowedFd<'_>,
    request: &mut SnapshotRequest<'_>,
) -> io::Result<AgentAnswer> {
    let process = process::id();
    let mut stream = match open.take() {
        Some(open) if open.process == process => open.stream,
        _ => connect(path)?,
    };
    // An agent that refuses a request may close the stream before it has read the whole state. Its answer counts then.
    let unsent = match send(&stream, connection, request) {
        Ok(()) => None,
        Err(error) if is_away(&error) => Some(error),
        Err(error) => return Err(error),
    };
    let answer = AgentAnswer::read(&mut stream).map_err(|error| unsent.unwrap_or(error))?;
    if let (DONE, true, SnapshotRequest::Import { buffer }) = (answer.status, answer.flag, request) {
        match buffer.get_mut(..answer.size) {
            Some(state) => stream.read_exact(state)?,
            None => return Ok(answer),
        }
    }
    if matches!(answer.status, DONE | BUFFER_TOO_SMALL) {
        *open = Some(OpenStream { stream, process });
    }
    Ok(answer)
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Sends a request. A closed stream is an error, not a SIGPIPE: programs in C do not ignore that signal.
fn send(stream: &UnixStream, connection: BorrowedFd<'_>, request: &SnapshotRequest<'_>) -> io::Result<()> {
    let (header, state) = request.parts();
    let mut unsent: &mut [_] = &mut [IoSlice::new(&header), IoSlice::new(state)];
    let descriptor = [connection.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptor)];
    let mut control = &rights[..];
    while !unsent.is_empty() {
        match sendmsg::<()>(stream.as_raw_fd(), unsent, control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(sent) => IoSlice::advance_slices(&mut unsent, sent),
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        control = &[];
    }
    Ok(())
}

/// Whether the agent may be restarting.
fn is_away(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::UnexpectedEof
    )
}
