//! Makes live sockets of connections that another machine began (TCP_REPAIR).
//!
//! The kernel prescribes the order of the calls (KERNEL.md; `tcp_repair_*` in `net/ipv4/tcp.c`):
//!
//! ```text
//!  prepare      socket ─ REPAIR ─ mark ─ TRANSPARENT ─ bind ─ LINGER  (in advance, from a pool)
//!  restore      QUEUE_SEQ ×2 ─ MAXSEG ─ connect ─ OPTIONS ─ TIMESTAMP ─ send queue ─ WINDOW
//!  make_ready   change the mark: the wire passes packets to the socket, and the nftables guard passes what the socket sends
//!  feed         receive queue: what the wire logged meanwhile
//!  activate     leave repair (window probe, unless quiet) ─ REUSEADDR
//!
//!     send queue                                   receive side
//!     snd_una            snd_nxt = write_seq       rcv_wup       rcv_nxt        rcv_wup + rcv_wnd
//!     ──┼═════════════════════┼──────              ──┼══════════════┼──────────────────┼──
//!       │ loaded "as sent"    │ written later        │ acknowledged │ in the log,      │ promised
//!                                                    │ by the old   │ acknowledged     │ to the
//!                                                    │ primary      │ by us at once    │ client
//! ```

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use libc::{c_int, c_void, socklen_t};
use proto::Seq;
use proto::connection::{Endpoint, EndpointTimestamps};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use thiserror::Error;

use crate::clock;
use crate::wire::{MARK_RESTORING, MARK_SPEAK};

/// A failed step of a restoration.
#[derive(Debug, Error)]
#[error("{step}: {source}")]
pub struct RestoreError {
    /// The failed call.
    pub step: &'static str,
    /// The kernel's error, or the fault that was found before the call.
    pub source: io::Error,
}

trait At<T> {
    fn at(self, step: &'static str) -> Result<T, RestoreError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, step: &'static str) -> Result<T, RestoreError> {
        self.map_err(|source| RestoreError { step, source })
    }
}

/// Sockets of one service that are made and bound in advance. This saves half of the time at a takeover.
pub struct Pool {
    vip: SocketAddr,
    sockets: Vec<Socket>,
}

impl Pool {
    /// An empty pool for the service at `vip`.
    pub fn new(vip: SocketAddr) -> Self {
        Self {
            vip,
            sockets: Vec::new(),
        }
    }

    /// Makes at most `step_max` sockets, until the pool has `wanted` sockets. Returns the number of sockets in the pool.
    ///
    /// # Errors
    /// The kernel's error. If no descriptors are left, the pool keeps the sockets that it has.
    pub fn fill(&mut self, wanted: usize, step_max: usize) -> Result<usize, RestoreError> {
        for _ in 0..wanted.saturating_sub(self.sockets.len()).min(step_max) {
            self.sockets.push(prepare(self.vip)?);
        }
        Ok(self.sockets.len())
    }

    fn take(&mut self) -> Result<Socket, RestoreError> {
        self.sockets.pop().map_or_else(|| prepare(self.vip), Ok)
    }
}

fn prepare(vip: SocketAddr) -> Result<Socket, RestoreError> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(vip), kind, Some(Protocol::TCP)).at("socket")?;
    set(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, &REPAIR_ON).at("TCP_REPAIR on")?;
    socket.set_mark(MARK_RESTORING).at("SO_MARK")?;
    set_transparent(&socket, vip).at("IP_TRANSPARENT")?;
    socket.bind(&vip.into()).at("bind")?;
    socket.set_tcp_nodelay(true).at("TCP_NODELAY")?;
    // If the process that owns the socket dies, the client gets a RST: a FIN would make the output look complete. In repair mode the
    // socket is closed silently all the same.
    socket.set_linger(Some(Duration::ZERO)).at("SO_LINGER")?;
    select_queue(&socket, RECEIVE_QUEUE)?;
    Ok(socket)
}

fn select_queue(socket: &Socket, queue: c_int) -> Result<(), RestoreError> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, &queue).at("TCP_REPAIR_QUEUE")
}

/// The restored socket of a connection. It is still in repair mode, so it is not live yet.
pub struct RestoredSocket {
    socket: Socket,
    /// Sequence number of the next byte to be fed.
    fed: Cell<Seq>,
    /// The clock of its timestamps.
    clock: Cell<Option<EndpointTimestamps>>,
}

impl RestoredSocket {
    /// Makes the server-side socket of a connection. The socket receives nothing, because the wire holds its packets back. The socket sends
    /// nothing, because it is in repair mode. `unacknowledged` is loaded as already sent.
    ///
    /// # Errors
    /// The step that the kernel refused. The socket is then closed without sending a packet.
    pub fn new<'a>(
        pool: &mut Pool,
        endpoint: &Endpoint,
        unacknowledged: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Self, RestoreError> {
        let restored = Self {
            socket: pool.take()?,
            fed: Cell::new(endpoint.receive_next),
            clock: Cell::new(None),
        };
        let socket = &restored.socket;
        let sent = endpoint.unacknowledged.end.since(endpoint.unacknowledged.start);
        make_room(socket, sent, endpoint.receive_window)?;
        restored.set_queue_seq(endpoint.receive_next)?;
        select_queue(socket, SEND_QUEUE)?; // this queue stays selected for the output that is loaded below
        restored.set_queue_seq(endpoint.send_unacknowledged)?;
        let mss = c_int::from(endpoint.mss.max(MAXSEG_MIN));
        set(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, &mss).at("TCP_MAXSEG")?;
        socket.connect(&endpoint.client.into()).at("connect")?;
        restored.set_options(endpoint)?;
        if let Some(clock) = endpoint.timestamps {
            restored.set_clock(clock)?;
        }
        for slice in unacknowledged {
            load(socket, slice, slice.len()).at("loading the send queue")?;
        }
        restored.set_window(endpoint)?;
        Ok(restored)
    }

    /// Sets the sequence number of the selected queue.
    fn set_queue_seq(&self, seq: Seq) -> Result<(), RestoreError> {
        set(&self.socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &seq.0).at("TCP_QUEUE_SEQ")
    }

    /// The sequence number that follows the last byte of the selected queue.
    fn queue_seq(&self) -> Result<Seq, RestoreError> {
        get_u32(&self.socket, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)
            .map(Seq)
            .at("asking for TCP_QUEUE_SEQ")
    }

    fn set_options(&self, endpoint: &Endpoint) -> Result<(), RestoreError> {
        // The window scale is always set. Otherwise the kernel would keep the scale that it chose at `connect`.
        let (theirs, ours) = endpoint.window_scale.unwrap_or((0, 0));
        let mut options = vec![
            RepairOption {
                code: OPTION_MSS,
                value: endpoint.mss.into(),
            },
            RepairOption {
                code: OPTION_WINDOW_SCALE,
                value: u32::from(theirs) | u32::from(ours) << 16,
            },
        ];
        if endpoint.sack {
            options.push(RepairOption {
                code: OPTION_SACK_PERMITTED,
                value: 0,
            });
        }
        if endpoint.timestamps.is_some() {
            options.push(RepairOption {
                code: OPTION_TIMESTAMP,
                value: 0,
            });
        }
        set_slice(
            &self.socket,
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR_OPTIONS,
            &options,
        )
        .at("TCP_REPAIR_OPTIONS")
    }

    /// Sets the clock of the socket's timestamps. The kernel's clock goes on from the value at the time of the call. An interruption
    /// between reading the clock and the call would make the kernel's clock permanently late, so this function tries again.
    fn set_clock(&self, clock: EndpointTimestamps) -> Result<(), RestoreError> {
        for _ in 0..CLOCK_TRIES {
            let at = clock::now();
            let value = clock.start_value(at);
            set(&self.socket, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &value).at("TCP_TIMESTAMP")?;
            let started = clock.started(value, at);
            self.clock.set(Some(started));
            if started.is_same_tick(clock::now()) {
                break;
            }
        }
        Ok(())
    }

    /// The clock of its timestamps. What somebody else sends for the socket must show the same time: the client takes what is behind for old.
    pub fn clock(&self) -> Option<EndpointTimestamps> {
        self.clock.get()
    }

    fn set_window(&self, endpoint: &Endpoint) -> Result<(), RestoreError> {
        let window = RepairWindow {
            snd_wl1: endpoint.send_window_seq.0,
            snd_wnd: endpoint.send_window,
            max_window: endpoint.send_window_max,
            rcv_wnd: endpoint.receive_window,
            rcv_wup: endpoint.receive_window_from.0,
        };
        set(&self.socket, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &window).at("TCP_REPAIR_WINDOW")
    }

    /// From now on the wire passes the connection's packets to this socket, and the nftables guard lets its segments out.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn make_ready(&self) -> Result<(), RestoreError> {
        self.socket.set_mark(MARK_SPEAK).at("SO_MARK")
    }

    /// Adds the next bytes of input that were logged after the [`Endpoint`] was read from the log. Leaves out bytes that the client has
    /// repeated since the socket became ready, because the socket has received them itself.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn feed(&self, bytes: &[u8]) -> Result<(), RestoreError> {
        let start = self.fed.get();
        select_queue(&self.socket, RECEIVE_QUEUE)?;
        let received = self.queue_seq()?.distance_from(start);
        let has = usize::try_from(received)
            .map_err(|_| io::ErrorKind::InvalidInput.into())
            .at("feeding out of order")?;
        if let Some(missing) = bytes.get(has..) {
            load(&self.socket, missing, RECEIVE_PIECE).at("loading the receive queue")?;
        }
        self.fed
            .set(start + u32::try_from(bytes.len()).expect("less than a window"));
        Ok(())
    }

    /// The sequence number of the first byte of input that the socket does not have in order.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn receive_next(&self) -> Result<Seq, RestoreError> {
        select_queue(&self.socket, RECEIVE_QUEUE)?;
        self.queue_seq()
    }

    /// Lets the socket speak. Unless `quiet`, it sends a window probe at once.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn activate(self, quiet: bool) -> Result<OwnedFd, RestoreError> {
        let off = if quiet { REPAIR_OFF_QUIETLY } else { REPAIR_OFF };
        set(&self.socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, &off).at("TCP_REPAIR off")?;
        // Without SO_REUSEADDR, an application that starts to listen later gets EADDRINUSE.
        self.socket.set_reuse_address(true).at("SO_REUSEADDR")?;
        Ok(self.socket.into())
    }
}

/// Puts bytes into the selected queue of a socket in repair mode, in pieces that the kernel finds memory for.
fn load(socket: &Socket, mut bytes: &[u8], piece_max: usize) -> io::Result<()> {
    let mut piece = piece_max.max(1);
    while !bytes.is_empty() {
        match socket.send_with_flags(&bytes[..bytes.len().min(piece)], libc::MSG_DONTWAIT) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && piece > PIECE_MIN => piece /= 2,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Adds bytes to a live socket's output as already sent. The socket's next byte follows them. The socket repeats them when its timer ends,
/// unless the peer acknowledges them. All earlier output must have been sent.
///
/// # Errors
/// The kernel's error. The socket may have taken some of the bytes.
pub fn load_as_sent<'a, S>(socket: &'a S, bytes: &[u8]) -> io::Result<()>
where
    SockRef<'a>: From<&'a S>,
{
    let live = SockRef::from(socket);
    let room = c_int::try_from(bytes.len() as u64 + BUFFER_DEFAULT).unwrap_or(c_int::MAX / 2);
    if bytes.len() as u64 > BUFFER_DEFAULT / 4 {
        set(
            &*live,
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            &room.saturating_mul(2),
        )?;
    }
    set(&*live, libc::IPPROTO_TCP, libc::TCP_REPAIR, &REPAIR_ON)?;
    set(&*live, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, &SEND_QUEUE)?;
    let loaded = load(&live, bytes, bytes.len());
    set(&*live, libc::IPPROTO_TCP, libc::TCP_REPAIR, &REPAIR_OFF)?; // its window probe makes the peer tell what it has
    live.set_reuse_address(true)?;
    loaded
}

// Values of <linux/tcp.h>.
const RECEIVE_QUEUE: c_int = 1;
const SEND_QUEUE: c_int = 2;
const REPAIR_ON: c_int = 1;
/// `TCP_REPAIR_OFF`: leaves repair mode and sends a window probe.
const REPAIR_OFF: c_int = 0;
/// `TCP_REPAIR_OFF_NO_WP`: leaves repair mode without a window probe.
const REPAIR_OFF_QUIETLY: c_int = -1;

/// The smallest value that the kernel takes as TCP_MAXSEG (`TCP_MIN_MSS`). A client that asks for smaller segments gets segments of
/// this size. That is safe, because every host takes 536 bytes (RFC 9293 §3.7.1).
const MAXSEG_MIN: u16 = 88;

const OPTION_MSS: u32 = 2;
const OPTION_WINDOW_SCALE: u32 = 3;
const OPTION_SACK_PERMITTED: u32 = 4;
const OPTION_TIMESTAMP: u32 = 8;

/// Maximum number of bytes in one call that loads the receive queue. The kernel needs one buffer for them. In CRIU's experience,
/// allocations of larger buffers fail.
const RECEIVE_PIECE: usize = 32 * 1024;
const PIECE_MIN: usize = 1024;
/// Number of attempts to set the clock without an interruption.
const CLOCK_TRIES: usize = 3;

/// Approximate number of bytes that a new socket's receive buffer has room for (`tcp_rmem`). The send buffer has room for a quarter of them
/// (`tcp_wmem`). A larger size must be set explicitly. Setting a size ends auto-tuning, so a size is set only for a connection that needs
/// more.
const BUFFER_DEFAULT: u64 = 64 * 1024;

/// `struct tcp_repair_opt`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RepairOption {
    code: u32,
    value: u32,
}

/// `struct tcp_repair_window`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RepairWindow {
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}

/// Makes room for the output that will be loaded, and for all input that the old primary promised to take.
fn make_room(socket: &Socket, sent: u64, promised: u32) -> Result<(), RestoreError> {
    let doubled = |bytes: u64| c_int::try_from(bytes.saturating_mul(2)).unwrap_or(c_int::MAX / 2);
    if sent > BUFFER_DEFAULT / 4 {
        set(
            socket,
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            &doubled(sent + BUFFER_DEFAULT),
        )
        .at("SO_SNDBUFFORCE")?;
    }
    if u64::from(promised) > BUFFER_DEFAULT {
        set(
            socket,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            &doubled(promised.into()),
        )
        .at("SO_RCVBUFFORCE")?;
    }
    Ok(())
}

/// The window that a live socket offers now, in bytes; 0 where the kernel does not tell (before Linux 6.2). As soon
/// as a restored socket is live, this window is all of its room. Its client does not know that yet, because clients ignore the segment that
/// announces this window.
///
/// # Errors
/// The error of `getsockopt(2)`.
pub fn offered_window(socket: &impl AsRawFd) -> io::Result<u32> {
    Ok(tcp_info(socket)?.tcpi_rcv_wnd)
}

/// How many bytes the peer has acknowledged, if the socket has more output to deliver. `None`: the peer has acknowledged
/// everything, or the connection is over.
///
/// # Errors
/// The error of `getsockopt(2)`.
pub fn acknowledged_so_far(socket: &impl AsRawFd) -> io::Result<Option<u64>> {
    const CLOSE: u8 = 7; // TCP_CLOSE of the kernel's tcp_states.h
    let info = tcp_info(socket)?;
    let is_delivering = info.tcpi_state != CLOSE && (info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0);
    Ok(is_delivering.then_some(info.tcpi_bytes_acked))
}

pub(crate) fn tcp_info(socket: &impl AsRawFd) -> io::Result<libc::tcp_info> {
    // SAFETY: plain integers, for which zeroes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = socklen_t::try_from(size_of_val(&info)).expect("a few bytes");
    // SAFETY: the kernel writes at most `len` bytes into `info`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if outcome == 0 {
        Ok(info)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Lets a socket use an address that this machine does not have, or not yet. For `bind` alone, IP_FREEBIND would be enough.
///
/// # Errors
/// The error of `setsockopt(2)`, which needs CAP_NET_ADMIN.
pub fn set_transparent(socket: &impl AsRawFd, address: SocketAddr) -> io::Result<()> {
    let one: c_int = 1;
    match address {
        SocketAddr::V4(_) => set(socket, libc::SOL_IP, libc::IP_TRANSPARENT, &one),
        SocketAddr::V6(_) => set(socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, &one),
    }
}

fn get_u32(socket: &impl AsRawFd, level: c_int, option: c_int) -> io::Result<u32> {
    let mut value = 0_u32;
    let mut len = socklen_t::try_from(size_of_val(&value)).expect("a few bytes");
    // SAFETY: the kernel writes at most `len` bytes into `value`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if outcome == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn set<T: Copy>(socket: &impl AsRawFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    set_slice(socket, level, option, std::slice::from_ref(value))
}

fn set_slice<T: Copy>(socket: &impl AsRawFd, level: c_int, option: c_int, values: &[T]) -> io::Result<()> {
    let len = socklen_t::try_from(size_of_val(values)).expect("a few bytes");
    let pointer: *const c_void = values.as_ptr().cast();
    // SAFETY: the kernel reads `len` bytes from `values`.
    let outcome = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer, len) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
