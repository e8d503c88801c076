//! This process among the others of the machine.

use std::io;

/// Raises the process above ordinary ones: its heartbeats must go out, and the ring be read, also when every CPU is busy.
///
/// # Errors
/// What `setpriority(2)` says: the right to it is CAP_SYS_NICE.
pub fn take_precedence() -> io::Result<()> {
    // SAFETY: no memory is involved.
    let outcome = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A number that nobody outside can guess.
pub fn random_seed() -> usize {
    use std::hash::{BuildHasher, RandomState};
    #[allow(clippy::cast_possible_truncation)] // any bits will do
    let seed = RandomState::new().hash_one(0) as usize;
    seed
}
