//! `libsteadfast`: restart policy `snapshot` for servers in C and C++. `include/steadfast.h` is generated from this file, and the
//! comments of public items are the header's (`tests/header.rs`).
//!
//! Rust aborts the process if a panic would leave an `extern "C"` function, so no panic unwinds into C.

#![expect(
    clippy::missing_safety_doc,
    reason = "the header states what each pointer must be"
)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::slice;

use libc::EREMCHG;
use nix::errno::Errno;
use snapshots::{Kept, SNAPSHOT_MAX, SnapshotError};

/// Largest state in bytes.
pub const STEADFAST_SNAPSHOT_MAX: usize = 16777216;
/// errno of a call for a connection that another node serves now.
pub const EMIGRATED: c_int = EREMCHG;
const _: () = assert!(STEADFAST_SNAPSHOT_MAX == SNAPSHOT_MAX);

/// Exports the `size` bytes at `state` as the state of the TCP connection `connection`, and waits until the backup keeps them. During
/// the call, no thread reads from the connection or writes to it. An effect outside of the connection that must not happen twice, such as a
/// commit to a database, may follow only this call. If `size` is 0, `state` may be NULL.
///
/// Returns 1 if a backup keeps the snapshot, 0 if no backup protects the connection now, and -1 with errno on failure. After a failure
/// other than EMIGRATED and ENOTCONN, an earlier snapshot stays valid and the server may go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn steadfast_export_state(
    connection: c_int,
    state: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller keeps the contract of this function, which is the same.
    let call = || unsafe { snapshots::export_state(descriptor(connection)?, bytes(state, size)?) };
    result(call().map(|kept| kept == Kept::ByBackup))
}

/// As steadfast_export_state(), but does not wait for the backup. The agent sends the snapshot while the server goes on.
///
/// Returns 0, or -1 with errno on failure, which is never ETIMEDOUT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn steadfast_export_state_nowait(
    connection: c_int,
    state: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller keeps the contract of this function, which is the same.
    let call =
        || unsafe { snapshots::export_state_without_waiting(descriptor(connection)?, bytes(state, size)?) };
    result(call().map(|()| false))
}

/// Imports the last exported state of `connection` into the buffer at `state`, which has `*size` bytes. To be called once for each accepted
/// connection, before its first byte is read. If `*size` is 0, `state` may be NULL.
///
/// Returns 1 if the connection was continued after a takeover: `*size` is then the size of the state in bytes. Returns 0 if the connection
/// is new, or is continued from its first byte: `*size` is then unchanged. Returns -1 with errno on failure. If errno is ENOBUFS, `*size`
/// is the size that the buffer must have, and the call may be repeated: the state is not lost. If errno is ENOTSUP, the server may serve
/// the connection as a new one. After any other failure, it must close the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn steadfast_import_state(
    connection: c_int,
    state: *mut c_void,
    size: *mut usize,
) -> c_int {
    // SAFETY: a pointer of a C caller is null or points to a value of its type.
    let Some(size) = (unsafe { size.as_mut() }) else {
        return failure(Errno::EFAULT as c_int);
    };
    // SAFETY: the caller gives `state` and `size` as this function's comment says.
    let call = || unsafe { snapshots::import_state_into(descriptor(connection)?, bytes_mut(state, *size)?) };
    let outcome = call();
    match outcome {
        Ok(Some(imported)) => *size = imported,
        Err(SnapshotError::BufferTooSmall { needed }) => *size = needed,
        _ => {}
    }
    result(outcome.map(|imported| imported.is_some()))
}

/// # Safety
/// A descriptor that is not negative stays open during the call.
unsafe fn descriptor(connection: c_int) -> io::Result<BorrowedFd<'static>> {
    if connection < 0 {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: the descriptor is not -1. If it is not open, the kernel says so.
    Ok(unsafe { BorrowedFd::borrow_raw(connection) })
}

/// # Safety
/// `state` is null or points to `size` bytes.
unsafe fn bytes<'a>(state: *const c_void, size: usize) -> Result<&'a [u8], SnapshotError> {
    match size {
        0 => Ok(&[]),
        _ if state.is_null() => Err(io::Error::from(Errno::EFAULT).into()),
        // Checked here because a slice must not be longer than half of the address space.
        _ if size > SNAPSHOT_MAX => Err(SnapshotError::TooLarge { limit: SNAPSHOT_MAX }),
        // SAFETY: the caller's contract, and the checks above.
        _ => Ok(unsafe { slice::from_raw_parts(state.cast(), size) }),
    }
}

/// # Safety
/// `state` is null or points to `size` bytes that nothing else uses.
unsafe fn bytes_mut<'a>(state: *mut c_void, size: usize) -> io::Result<&'a mut [u8]> {
    match size {
        0 => Ok(&mut []),
        _ if state.is_null() => Err(Errno::EFAULT.into()),
        // SAFETY: the caller's contract. No state needs more than SNAPSHOT_MAX bytes.
        _ => Ok(unsafe { slice::from_raw_parts_mut(state.cast(), size.min(SNAPSHOT_MAX)) }),
    }
}

/// The return value of a call, with errno set if it failed.
fn result(outcome: Result<bool, SnapshotError>) -> c_int {
    outcome.map_or_else(|error| failure(errno(&error)), c_int::from)
}

fn failure(errno: c_int) -> c_int {
    Errno::set_raw(errno);
    -1
}

fn errno(error: &SnapshotError) -> c_int {
    let errno = match error {
        SnapshotError::Emigrated => Errno::EREMCHG,
        SnapshotError::NotProtected => Errno::ENOTSUP,
        SnapshotError::Closed => Errno::ENOTCONN,
        SnapshotError::TooLarge { .. } => Errno::EMSGSIZE,
        SnapshotError::BufferTooSmall { .. } => Errno::ENOBUFS,
        SnapshotError::TimedOut => Errno::ETIMEDOUT,
        SnapshotError::Protocol => Errno::EPROTO,
        // The end of the agent's stream has no errno.
        SnapshotError::NoAgent(error) | SnapshotError::Io(error) => {
            return error.raw_os_error().unwrap_or(Errno::ECONNRESET as c_int);
        }
    };
    errno as c_int
}
