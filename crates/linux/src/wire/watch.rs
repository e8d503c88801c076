//! Notices that someone removed our tc filters, for example by `tc qdisc del dev eth0 clsact`. Without the filters, a backup is no wire and
//! a primary has no guard.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_ROUTE;

use super::{WireError, WireStep};
use crate::network::message::messages;

// `linux/rtnetlink.h`.
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_TC: u32 = 4;
const RTM_DELLINK: u16 = 17;
const RTM_DELQDISC: u16 = 37;
const RTM_DELTFILTER: u16 = 45;

/// Maximum number of datagrams that one call reads: a flood of notifications must not keep the caller from its work.
const TAKEN_MAX: usize = 64;

/// Receives the notifications of removed filters, qdiscs and interfaces. The descriptor is readable when a notification has arrived.
pub struct FilterWatch {
    socket: Socket,
    interfaces: Vec<u32>,
}

impl FilterWatch {
    /// Watches the interfaces with these indices, in the calling thread's network namespace. Open the watch before the programs are
    /// attached. Then it misses no removal.
    ///
    /// # Errors
    /// If the kernel refuses the netlink socket.
    pub fn open(interfaces: &[u32]) -> Result<Self, WireError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.set_non_blocking(true)?;
            for group in [RTNLGRP_TC, RTNLGRP_LINK] {
                socket.add_membership(group)?;
            }
            io::Result::Ok(socket)
        };
        Ok(Self {
            socket: open().step(|| "watching the tc filters".into())?,
            interfaces: interfaces.to_vec(),
        })
    }

    /// Watches interface `new` instead of interface `old`, which it has replaced.
    pub fn replace(&mut self, old: u32, new: u32) {
        self.interfaces.retain(|interface| *interface != old);
        self.interfaces.push(new);
    }

    /// The watched interfaces at which something was removed since the last call, not necessarily a filter of ours. Call
    /// [`Wire::reattach`](super::Wire::reattach) for each. That call does no harm if nothing is missing, and fails if the interface itself
    /// is gone.
    pub fn check(&self) -> Vec<u32> {
        let mut concerned = Vec::new();
        for _ in 0..TAKEN_MAX {
            match self.socket.recv_from_full() {
                Ok((messages, _)) => concerned.extend(removals(&messages)),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    concerned.extend(&self.interfaces); // the kernel dropped notifications, of any interface
                }
                Err(_) => break, // nothing more
            }
        }
        let watched = self.interfaces.iter().copied();
        watched
            .filter(|interface| concerned.contains(interface))
            .collect()
    }
}

impl AsFd for FilterWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The interfaces of the removals in a datagram. `struct tcmsg` and `struct ifinfomsg` both have the index in their second
/// word.
fn removals(datagram: &[u8]) -> Vec<u32> {
    messages(datagram)
        .filter(|message| matches!(message.kind, RTM_DELTFILTER | RTM_DELQDISC | RTM_DELLINK))
        .map(|message| u32::from_ne_bytes(message.bytes(4)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::message::message;

    #[test]
    fn only_removals_are_heard() {
        let about = |kind, index: u32| message(kind, 0, &[[0; 4], index.to_ne_bytes()].concat());
        let datagram = [
            about(RTM_DELTFILTER, 7),
            about(RTM_DELTFILTER - 1, 8),
            about(RTM_DELQDISC, 9),
            about(RTM_DELLINK, 10),
        ]
        .concat();
        assert_eq!(removals(&datagram), [7, 9, 10]);
    }
}
