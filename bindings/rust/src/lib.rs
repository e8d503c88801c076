//! State snapshots of live TCP connections: restart policy `snapshot`, for servers in Rust.
//!
//! A server exports its state for a connection whenever the state agrees with what the server has read from the connection and written to
//! it. The local agent sends each snapshot to the backup. After a takeover, the server on the other node accepts the continued connection
//! and imports the last state. From there, it reads the input after the snapshot again, and repeats the output after the snapshot. The
//! agent compares the repeated output and drops it. So a server must be deterministic from a snapshot on.
//!
//! The calls block. Each thread has a connection of its own to the agent, so threads do not wait for each other. While the agent restarts,
//! a call retries for up to 10 s. If one has retried in vain, exports make one attempt each until the agent answers again.
//!
//! The environment variable `STEADFAST_SNAPSHOTS` is the path of the agent's socket. Its default is `/run/steadfast/snapshots.sock`. If the
//! variable is empty, the server runs without an agent: no snapshot is kept, and all connections are new. The library reads the variable
//! once.
//!
//! # Example
//! A server for one file per connection, as in Figure 4 of Sultan et al., "Migratory TCP". The whole input is the file's name. The state
//! is the name and the number of bytes sent.
//!
//! ```no_run
//! use std::fs::File;
//! use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
//! use std::net::TcpStream;
//!
//! use steadfast_snapshots::{SnapshotError, export_state, import_state};
//!
//! const BLOCK: u64 = 256 << 10;
//!
//! fn serve(mut connection: TcpStream) -> io::Result<()> {
//!     let (name, mut sent) = match import_state(&connection).map_err(io::Error::other)? {
//!         Some(state) => {
//!             let (sent, name) = state.split_first_chunk().expect("a state of this server");
//!             (String::from_utf8_lossy(name).into_owned(), u64::from_le_bytes(*sent))
//!         }
//!         None => {
//!             let mut line = String::new();
//!             BufReader::new(&connection).read_line(&mut line)?;
//!             (line.trim_end().to_owned(), 0)
//!         }
//!     };
//!     let mut file = File::open(&name)?;
//!     file.seek(SeekFrom::Start(sent))?;
//!     loop {
//!         let block = io::copy(&mut Read::by_ref(&mut file).take(BLOCK), &mut connection)?;
//!         if block == 0 {
//!             return Ok(());
//!         }
//!         sent += block;
//!         let state = [&sent.to_le_bytes(), name.as_bytes()].concat();
//!         match export_state(&connection, &state) {
//!             Err(SnapshotError::Emigrated) => return Ok(()), // the other node serves the client now
//!             outcome => drop(outcome.map_err(io::Error::other)?),
//!         }
//!     }
//! }
//! ```

#![forbid(unsafe_code)]

mod agent;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, OnceLock};

use thiserror::Error;

use crate::agent::SnapshotAgent;

/// Largest state in bytes.
pub const SNAPSHOT_MAX: usize = 16 << 20;

/// Size of the buffer that [`import_state`] tries first, in bytes.
const FIRST_BUFFER: usize = 64 << 10;

/// Whether a takeover would go on from an exported snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A backup keeps the snapshot.
    ByBackup,
    /// No backup protects the connection now. The server goes on.
    NoBackup,
}

/// Why a state was neither exported nor imported.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The other node serves the client now. The server closes its descriptor and forgets the connection.
    #[error("the connection has moved to another node")]
    Emigrated,
    /// The descriptor is not a TCP connection of a service with restart policy `snapshot`.
    #[error("not a TCP connection of a service with policy snapshot")]
    NotProtected,
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
    /// The exported state is too large.
    #[error("the state is larger than {limit} bytes")]
    TooLarge {
        /// Largest state in bytes.
        limit: usize,
    },
    /// The buffer of [`import_state_into`] is too small. The state is not lost.
    #[error("the state needs a buffer of {needed} bytes")]
    BufferTooSmall {
        /// Size of the state in bytes.
        needed: usize,
    },
    /// The backup does not keep the snapshot yet. An earlier snapshot stays valid.
    #[error("the backup does not keep the snapshot yet")]
    TimedOut,
    /// The agent and this library have different versions.
    #[error("the agent does not speak this version of the protocol")]
    Protocol,
    /// The agent was away for 10 s, or has been away since an earlier call of this process waited in vain. The error is that of the last
    /// attempt.
    #[error("cannot reach the agent")]
    NoAgent(#[source] io::Error),
    /// The request could not be made, for example because the descriptor is not open.
    #[error("cannot ask the agent")]
    Io(#[from] io::Error),
}

/// Exports the state of `connection`, and waits until the backup keeps it. During the call, no thread reads from the connection or writes
/// to it. An effect outside of the connection that must not happen twice, such as a commit to a database, may follow only this call.
///
/// # Errors
/// After an error other than [`SnapshotError::Emigrated`] and [`SnapshotError::Closed`], the server may go on: a takeover would go on from
/// an earlier snapshot.
pub fn export_state(connection: impl AsFd, state: &[u8]) -> Result<Kept, SnapshotError> {
    let is_kept = with_agent(|agent| agent.export(connection.as_fd(), state, true))?;
    Ok(if is_kept { Kept::ByBackup } else { Kept::NoBackup })
}

/// Exports the state of `connection` without waiting for the backup. The agent sends the snapshot while the server goes on.
///
/// # Errors
/// As [`export_state`], but never [`SnapshotError::TimedOut`].
pub fn export_state_without_waiting(connection: impl AsFd, state: &[u8]) -> Result<(), SnapshotError> {
    with_agent(|agent| agent.export(connection.as_fd(), state, false)).map(drop)
}

/// The last exported state of `connection`, if the connection was continued after a takeover. `None`: the connection is new, or was
/// continued from its first byte. To be called once for each accepted connection, before its first byte is read.
///
/// # Errors
/// After [`SnapshotError::NotProtected`], the server may serve the connection as a new one. After any other error, it must close the
/// connection.
pub fn import_state(connection: impl AsFd) -> Result<Option<Vec<u8>>, SnapshotError> {
    with_agent(|agent| import_growing(agent, connection.as_fd()))
}

/// As [`import_state`], into `buffer`. Returns the size of the state in bytes.
///
/// # Errors
/// As [`import_state`], and [`SnapshotError::BufferTooSmall`], after which the call may be repeated with a larger buffer.
pub fn import_state_into(connection: impl AsFd, buffer: &mut [u8]) -> Result<Option<usize>, SnapshotError> {
    with_agent(|agent| agent.import(connection.as_fd(), buffer))
}

fn import_growing(
    agent: &mut SnapshotAgent,
    connection: BorrowedFd<'_>,
) -> Result<Option<Vec<u8>>, SnapshotError> {
    let mut buffer = vec![0; FIRST_BUFFER];
    loop {
        match agent.import(connection, &mut buffer) {
            Err(SnapshotError::BufferTooSmall { needed }) => buffer.resize(needed, 0),
            Err(error) => return Err(error),
            Ok(None) => return Ok(None),
            Ok(Some(size)) => {
                buffer.truncate(size);
                return Ok(Some(buffer));
            }
        }
    }
}

/// The path of the agent's socket. `None`: no agent is used.
static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Uses the agent whose socket is at `path`, whatever `STEADFAST_SNAPSHOTS` says. `None`: the program runs without an agent. To be called
/// before the first export or import.
///
/// # Errors
/// The path that was not taken, because the program uses another one already.
pub fn use_agent(path: Option<PathBuf>) -> Result<(), Option<PathBuf>> {
    PATH.set(path)
}

/// Calls `work` with the agent of this thread.
fn with_agent<T>(work: impl FnOnce(&mut SnapshotAgent) -> T) -> T {
    static IS_GONE: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
    thread_local! {
        static AGENT: RefCell<SnapshotAgent> = RefCell::new(SnapshotAgent::new(
            PATH.get_or_init(|| agent::path(std::env::var_os("STEADFAST_SNAPSHOTS"))).clone(),
            Arc::clone(&IS_GONE),
        ));
    }
    AGENT.with_borrow_mut(work)
}

#[cfg(test)]
mod tests;
