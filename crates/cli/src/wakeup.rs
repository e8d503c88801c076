//! Wakes a daemon's loop from its sleep: for signals, and for other threads.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

/// A pipe. The daemon's loop waits until its reading end is readable.
pub struct Wakeup {
    write: Arc<UnixStream>,
    read: UnixStream,
}

impl Wakeup {
    /// A new pipe.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new() -> io::Result<Self> {
        let (write, read) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        read.set_nonblocking(true)?;
        Ok(Self {
            write: Arc::new(write),
            read,
        })
    }

    /// Returns a flag that each of `signals` sets. Each of these signals also wakes the loop.
    ///
    /// # Errors
    /// If a signal cannot be caught.
    pub fn on_signals(&self, signals: &[i32]) -> io::Result<Arc<AtomicBool>> {
        let flag = Arc::new(AtomicBool::new(false));
        for &signal in signals {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, self.write.try_clone()?)?;
        }
        Ok(flag)
    }

    /// Returns a function that other threads call to wake the loop.
    pub fn waker(&self) -> impl Fn() + Clone + Send + Sync + 'static {
        let write = Arc::clone(&self.write);
        move || {
            let _ = (&*write).write(&[1]); // fails if the pipe is full: then a wake-up is already under way
        }
    }

    /// The descriptor that is readable after a wake-up.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    /// Waits for a wake-up or until one of `fds` is readable, at most for `limit`.
    pub fn wait(&self, fds: &[BorrowedFd<'_>], limit: Duration) {
        let fds = fds.iter().copied().chain([self.read.as_fd()]);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // A signal that interrupts ppoll counts as a wake-up; nothing else can go wrong here.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(limit)), None);
    }

    /// Forgets the wake-ups so far.
    pub fn clear(&self) {
        let mut wakeups = [0; 64];
        while matches!((&self.read).read(&mut wakeups), Ok(count) if count > 0) {}
    }
}
