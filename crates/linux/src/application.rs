//! A local application's end of a TCP connection, whose descriptor the application has sent: how far it has read and written, and at which
//! sequence numbers its streams begin.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libbpf_rs::Object;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use proto::Seq;
use socket2::SockRef;

use crate::bpf::error::{WireError, WireStep};
use crate::bpf::object::{Aligned, netns_cookie, netns_cookie_of, open, verified};
use crate::bpf::run::{RunData, run};
use crate::repair::tcp_info;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/numbers.bpf.o")));

/// Maximum number of descriptors that the kernel passes in one message (SCM_MAX_FD). With less room, the kernel would cut the message, and the
/// descriptors that fit would be lost.
const DESCRIPTORS_MAX: usize = 253;

/// Receives bytes from a Unix stream socket, and the descriptor that came with them. If several descriptors came, keeps the last one and
/// closes the others.
///
/// # Errors
/// The kernel's error.
pub fn receive_with_descriptor(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut slices = [IoSliceMut::new(bytes)];
    let received = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut descriptor = None;
    for control in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            for raw in raw {
                // SAFETY: the kernel has just made this descriptor for us.
                descriptor = Some(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
    }
    Ok((received.bytes, descriptor))
}

/// How far an application has used a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplicationProgress {
    /// The application's own address.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// Number of bytes that the application has read, without the end of the stream.
    pub read: u64,
    /// Number of bytes that the application has written.
    pub written: u64,
}

/// Why the progress of a socket cannot be known.
#[derive(Debug, thiserror::Error)]
pub enum ProgressError {
    /// It is not a TCP socket with a connection, or never had one, or belongs to another network namespace.
    #[error("not a TCP connection")]
    NotAConnection,
    /// The connection has ended, or the application has ended its output. The application's own address is this one.
    #[error("the connection at {0} has ended")]
    Ended(SocketAddr),
    /// The values changed during each attempt to read them.
    #[error("the connection's counters do not stand still")]
    Restless,
}

/// Attempts to read values that belong together. Data that arrives between two reads causes another attempt.
const ATTEMPTS: usize = 1_000;

/// Maximum number of bytes that an application with policy `snapshot` can write ahead of what is sent. A snapshot protects its connection once
/// all output before it is sent. The kernel would buffer megabytes, which take seconds on a slow path.
pub const UNSENT_MAX: u32 = 256 * 1024;

/// Bounds the bytes that the kernel takes from the application before it can send them ([`UNSENT_MAX`]). A lower bound that the application has
/// set stays.
///
/// # Errors
/// The kernel's error: this is no TCP connection.
pub fn bound_unsent(connection: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(connection);
    let set = socket.tcp_notsent_lowat()?;
    if set == 0 || set > UNSENT_MAX {
        socket.set_tcp_notsent_lowat(UNSENT_MAX)?;
    }
    Ok(())
}

/// How far the application has used this connection. The application must not use the connection meanwhile.
///
/// # Errors
/// Why this cannot be known.
pub fn progress(connection: &OwnedFd) -> Result<ApplicationProgress, ProgressError> {
    let socket = SockRef::from(connection);
    let is_tcp = socket.protocol().ok().flatten() == Some(socket2::Protocol::TCP);
    let local = socket.local_addr().ok().and_then(|address| address.as_socket());
    let (true, Some(local)) = (is_tcp, local) else {
        return Err(ProgressError::NotAConnection);
    };
    // In a network namespace of its own, anybody can have any address.
    let is_here =
        netns_cookie_of(connection).is_ok_and(|cookie| netns_cookie().is_ok_and(|own| own == cookie));
    if !is_here {
        return Err(ProgressError::NotAConnection);
    }
    for _ in 0..ATTEMPTS {
        let not_known = |_| ProgressError::NotAConnection;
        let before = tcp_info(connection).map_err(not_known)?;
        match before.tcpi_state {
            ESTABLISHED | CLOSE_WAIT => {}
            LISTEN => return Err(ProgressError::NotAConnection),
            _ => return Err(ProgressError::Ended(canonical(local))),
        }
        let unread = queued(connection, libc::FIONREAD).map_err(not_known)?;
        let unacknowledged = queued(connection, libc::TIOCOUTQ).map_err(not_known)?;
        let after = tcp_info(connection).map_err(not_known)?;
        let counters =
            |info: &libc::tcp_info| (info.tcpi_bytes_received, info.tcpi_bytes_acked, info.tcpi_state);
        if counters(&before) != counters(&after) {
            continue;
        }
        let Some(peer) = socket.peer_addr().ok().and_then(|address| address.as_socket()) else {
            continue; // it has just ended
        };
        // The kernel counts the client's FIN as a byte received.
        let fin = u64::from(after.tcpi_state == CLOSE_WAIT);
        return Ok(ApplicationProgress {
            local: canonical(local),
            peer: canonical(peer),
            read: after.tcpi_bytes_received - fin - unread,
            written: after.tcpi_bytes_acked + unacknowledged,
        });
    }
    Err(ProgressError::Restless)
}

/// The kernel's number of a socket. It stays after the socket's connection was destroyed, and no later socket gets it.
///
/// # Errors
/// The kernel's error.
pub fn cookie(socket: &OwnedFd) -> io::Result<u64> {
    SockRef::from(socket).cookie()
}

/// Number of segments that the socket's TCP has sent again.
///
/// # Errors
/// The kernel's error.
pub fn retransmissions(connection: &OwnedFd) -> io::Result<u32> {
    Ok(tcp_info(connection)?.tcpi_total_retrans)
}

/// The round-trip time of a connection as its kernel has measured it: from data segments to their acknowledgements, smoothed (RFC 6298).
///
/// # Errors
/// The kernel's error.
pub fn round_trip(connection: &impl AsRawFd) -> io::Result<Duration> {
    Ok(Duration::from_micros(tcp_info(connection)?.tcpi_rtt.into()))
}

/// States of a socket, as in the kernel's tcp_states.h.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;

/// Number of bytes in one of the socket's queues.
fn queued(connection: &OwnedFd, request: libc::Ioctl) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int.
    let outcome = unsafe { libc::ioctl(connection.as_raw_fd(), request, &raw mut bytes) };
    if outcome == 0 {
        Ok(u64::try_from(bytes).unwrap_or(0))
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Looks up the sequence numbers of local connections. `TCP_INFO` does not contain them.
pub struct SequenceNumbers(Object);

/// Offsets in a `struct numbers_question`.
const IS_IPV6: usize = 14;
const IS_FOUND: usize = 15;
const TUPLE: usize = 16;
const INPUT: usize = TUPLE + 36;
const OUTPUT: usize = INPUT + 4;
const QUESTION: usize = OUTPUT + 4;
/// Length of a `struct __sk_buff`.
const SK_BUFF: usize = 192;

impl SequenceNumbers {
    /// Loads the program that looks them up.
    ///
    /// # Errors
    /// If the kernel refuses the program.
    pub fn load() -> Result<Self, WireError> {
        verified(|| open(&OBJECT.0)).map(Self)
    }

    /// The sequence numbers of the first byte of the input and of the output of the connection between `local`, in the calling thread's
    /// network namespace, and `peer`. `None`: there is no such connection.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn stream_starts(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<Option<(Seq, Seq)>, WireError> {
        let mut last = None;
        // The program does not lock the socket: a segment may change one of two values between its reads. So two answers must be the same.
        for _ in 0..ATTEMPTS {
            let answer = self.ask(local, peer)?;
            if last == Some(answer) {
                return Ok(answer);
            }
            last = Some(answer);
        }
        Ok(None)
    }

    fn ask(&self, local: SocketAddr, peer: SocketAddr) -> Result<Option<(Seq, Seq)>, WireError> {
        let question = question(local, peer);
        let mut answer = vec![0; QUESTION];
        let data = RunData {
            input: &question,
            output: &mut answer,
        };
        run(&self.0, "stream_starts", &mut [0; SK_BUFF], Some(data))
            .step(|| "looking up a connection".into())?;
        let number = |at: usize| {
            Seq(u32::from_ne_bytes(
                answer[at..at + 4].try_into().expect("four bytes"),
            ))
        };
        Ok((answer[IS_FOUND] == 1).then(|| (number(INPUT), number(OUTPUT))))
    }
}

/// A `struct numbers_question`, whose tuple is that of a segment from `peer` to `local`.
fn question(local: SocketAddr, peer: SocketAddr) -> [u8; QUESTION] {
    let mut question = [0; QUESTION];
    question[IS_IPV6] = u8::from(local.is_ipv6());
    let mut tuple = Vec::new();
    for address in [peer.ip(), local.ip()] {
        match address {
            IpAddr::V4(address) => tuple.extend(address.octets()),
            IpAddr::V6(address) => tuple.extend(address.octets()),
        }
    }
    tuple.extend([peer.port(), local.port()].into_iter().flat_map(u16::to_be_bytes));
    question[TUPLE..TUPLE + tuple.len()].copy_from_slice(&tuple);
    question
}

/// The address without the IPv6 form of an IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
