//! The events of a record, and the calls that play them back.

use std::net::SocketAddr;

/// Number of clocks that a record distinguishes. The first ones have the numbers of `clock_gettime`.
pub const CLOCKS: usize = 16;
/// The coarse clocks (`CLOCK_REALTIME_COARSE`, `CLOCK_MONOTONIC_COARSE`). Allocators read them for work of their own, so the number of calls may
/// differ between the nodes. They stand still between two waits for ready sockets: only a server's first call has an event of its own, and
/// later values come just before [`OrderEvent::Ready`].
pub const COARSE_CLOCKS: [u8; 2] = [5, 6];
/// Largest number of random bytes in one event.
pub const RANDOM_MAX: usize = 64 << 10;

/// What a system call returned: its result, or the number of its error.
pub type Outcome<T> = Result<T, i32>;

/// A socket that a readiness event names. Both nodes count listeners in the order in which the server began to listen, and connections
/// in the order in which the server accepted them. So the numbers are the same on both nodes, although descriptors may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A listening socket.
    Listener(u32),
    /// A connection.
    Connection(u32),
}

/// A result that the server may not derive from its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderEvent {
    /// The server accepted a connection of this client, or found none.
    Accepted {
        /// The listening socket.
        listener: u32,
        /// The client.
        outcome: Outcome<SocketAddr>,
    },
    /// The server waited until sockets were ready. Sockets that no client reaches are not in the list.
    Ready(Outcome<Vec<(Source, u32)>>),
    /// The server read from a connection. The outcome is the number of bytes. 0 is the end of the input.
    Read {
        /// The connection.
        connection: u32,
        /// Bytes that were read.
        outcome: Outcome<u64>,
    },
    /// The server wrote to a connection.
    Written {
        /// The connection.
        connection: u32,
        /// Bytes that the kernel took.
        outcome: Outcome<u64>,
    },
    /// The server asked the kernel about a connection: the number of bytes that wait to be read, the state of TCP, or the error.
    Asked {
        /// The connection.
        connection: u32,
        /// The kernel's answer.
        outcome: Outcome<u64>,
    },
    /// The server read a clock.
    Clock {
        /// Number of the clock, less than [`CLOCKS`].
        clock: u8,
        /// The clock's value in nanoseconds.
        nanos: u64,
    },
    /// The server got random bytes.
    Random(Vec<u8>),
    /// The server asked for its process's number.
    Pid(u32),
    /// The server forked a child, whose own record is this stream.
    Forked {
        /// Number of the child's stream.
        stream: u32,
    },
}

/// A call of the server on the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderCall {
    /// Accept a connection.
    Accept {
        /// The listening socket.
        listener: u32,
    },
    /// Wait until sockets are ready.
    Ready,
    /// Read from a connection.
    Read {
        /// The connection.
        connection: u32,
        /// Largest number of bytes.
        size: u64,
    },
    /// Write to a connection.
    Write {
        /// The connection.
        connection: u32,
        /// Number of bytes.
        size: u64,
    },
    /// Ask the kernel about a connection.
    Ask {
        /// The connection.
        connection: u32,
    },
    /// Read a clock.
    Clock {
        /// Number of the clock.
        clock: u8,
    },
    /// Get random bytes.
    Random {
        /// Number of bytes.
        size: usize,
    },
    /// Ask for the process's number.
    Pid,
    /// Fork a child that has a record of its own.
    Fork,
}

impl OrderCall {
    /// Whether `event` can be the result of this call.
    #[must_use]
    pub fn fits(self, event: &OrderEvent) -> bool {
        match (self, event) {
            (
                Self::Accept { listener },
                OrderEvent::Accepted {
                    listener: recorded, ..
                },
            ) => listener == *recorded,
            (Self::Ready, OrderEvent::Ready(_)) => true,
            (
                Self::Read { connection, size },
                OrderEvent::Read {
                    connection: recorded,
                    outcome,
                },
            )
            | (
                Self::Write { connection, size },
                OrderEvent::Written {
                    connection: recorded,
                    outcome,
                },
            ) => connection == *recorded && !outcome.is_ok_and(|moved| moved > size),
            (
                Self::Ask { connection },
                OrderEvent::Asked {
                    connection: recorded, ..
                },
            ) => connection == *recorded,
            (Self::Clock { clock }, OrderEvent::Clock { clock: recorded, .. }) => clock == *recorded,
            (Self::Random { size }, OrderEvent::Random(bytes)) => size == bytes.len(),
            (Self::Pid, OrderEvent::Pid(_)) | (Self::Fork, OrderEvent::Forked { .. }) => true,
            _ => false,
        }
    }
}
