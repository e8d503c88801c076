//! The descriptors for which the daemon of a tunnel waits (epoll(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use proto::sctp::endpoint::AssociationId;
use proto::tunnel::TunnelConnectionId;

/// Maximum number of events that one wait returns.
const EVENTS_MAX: usize = 256;

/// The purpose of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollTarget {
    /// The descriptor only ends the wait. Used for the SCTP sockets and the wake-up pipe.
    Wake,
    /// The listener with this index.
    Listener(usize),
    /// The TCP socket of a connection.
    Link(AssociationId, TunnelConnectionId),
}

/// Changes of a descriptor since the last wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    pub reads: bool,
    pub writes: bool,
    /// The connection has failed, or both of its directions have ended.
    pub hangs: bool,
}

/// The watched descriptors. The kernel stops watching a descriptor when it is closed.
pub struct TunnelPoller {
    epoll: Epoll,
    /// The purpose of each descriptor, indexed by the descriptor's number.
    targets: Vec<PollTarget>,
    events: Vec<EpollEvent>,
}

impl TunnelPoller {
    /// An epoll instance without descriptors.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            targets: Vec::new(),
            events: vec![EpollEvent::empty(); EVENTS_MAX],
        })
    }

    /// Makes each wait return at once while the descriptor is readable.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn wake_while_readable(&mut self, fd: impl AsFd) -> io::Result<()> {
        self.add(fd, PollTarget::Wake, EpollFlags::EPOLLIN)
    }

    /// Reports each change of the descriptor once (edge-triggered). The caller must remember the change until a call on the descriptor
    /// would block.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn tell_changes(&mut self, fd: impl AsFd, target: PollTarget) -> io::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        self.add(fd, target, flags)
    }

    fn add(&mut self, fd: impl AsFd, target: PollTarget, flags: EpollFlags) -> io::Result<()> {
        let number = fd.as_fd().as_raw_fd();
        self.epoll
            .add(fd, EpollEvent::new(flags, u64::try_from(number).unwrap_or(0)))?;
        let number = usize::try_from(number).unwrap_or(0);
        if self.targets.len() <= number {
            self.targets.resize(number + 1, PollTarget::Wake);
        }
        self.targets[number] = target;
        Ok(())
    }

    /// Waits until something changes, at most for `limit`, and returns the changes.
    pub fn wait(&mut self, limit: Duration) -> Vec<(PollTarget, Readiness)> {
        // Rounded up, so that a timer is due when the wait for it ends.
        let millis = limit.as_micros().div_ceil(1000);
        let limit = EpollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX));
        // A signal that interrupts the wait counts as a wake-up.
        let count = self.epoll.wait(&mut self.events, limit).unwrap_or(0);
        let told = self.events[..count].iter().filter_map(|event| {
            let target = *self.targets.get(usize::try_from(event.data()).ok()?)?;
            let has = |flags: EpollFlags| event.events().intersects(flags);
            let hangs = has(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
            let readiness = Readiness {
                reads: hangs || has(EpollFlags::EPOLLIN),
                writes: hangs || has(EpollFlags::EPOLLOUT),
                hangs,
            };
            (target != PollTarget::Wake).then_some((target, readiness))
        });
        told.collect()
    }
}
