//! Socket options that std does not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libc::{c_int, socklen_t};
use socket2::SockRef;

/// Makes `close` send a RST and leave no state in the kernel. `shutdown` still sends a FIN.
pub fn abort_on_close(socket: &impl AsFd) {
    SockRef::from(socket)
        .set_linger(Some(Duration::ZERO))
        .expect("SO_LINGER");
}

/// Sets the congestion control to CUBIC, the default of most hosts. The test machine's default may be an algorithm that paces.
pub fn use_cubic(socket: &impl AsFd) {
    SockRef::from(socket)
        .set_tcp_congestion(b"cubic")
        .expect("TCP_CONGESTION");
}

/// The kernel's TCP_INFO of a TCP socket.
pub fn tcp_info(socket: &impl AsRawFd) -> libc::tcp_info {
    // SAFETY: all fields are plain integers, so zero is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = socklen_t::try_from(size_of_val(&info)).expect("small");
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
    assert_eq!(outcome, 0, "TCP_INFO: {}", io::Error::last_os_error());
    info
}

/// All fields of `info`, by name.
pub fn fields_of(info: &libc::tcp_info) -> Vec<(&'static str, u64)> {
    macro_rules! fields {
        ($($name:ident)*) => { vec![$((stringify!($name), u64::from(info.$name))),*] };
    }
    fields! {
        tcpi_state tcpi_ca_state tcpi_retransmits tcpi_probes tcpi_backoff tcpi_options tcpi_snd_rcv_wscale
        tcpi_rto tcpi_ato tcpi_snd_mss tcpi_rcv_mss
        tcpi_unacked tcpi_sacked tcpi_lost tcpi_retrans tcpi_fackets
        tcpi_last_data_sent tcpi_last_ack_sent tcpi_last_data_recv tcpi_last_ack_recv
        tcpi_pmtu tcpi_rcv_ssthresh tcpi_rtt tcpi_rttvar tcpi_snd_ssthresh tcpi_snd_cwnd tcpi_advmss tcpi_reordering
        tcpi_rcv_rtt tcpi_rcv_space tcpi_total_retrans
        tcpi_pacing_rate tcpi_max_pacing_rate tcpi_bytes_acked tcpi_bytes_received tcpi_segs_out tcpi_segs_in
        tcpi_notsent_bytes tcpi_min_rtt tcpi_data_segs_in tcpi_data_segs_out tcpi_delivery_rate
        tcpi_busy_time tcpi_rwnd_limited tcpi_sndbuf_limited tcpi_delivered tcpi_delivered_ce
        tcpi_bytes_sent tcpi_bytes_retrans tcpi_dsack_dups tcpi_reord_seen tcpi_rcv_ooopack tcpi_snd_wnd tcpi_rcv_wnd
        tcpi_rehash tcpi_total_rto tcpi_total_rto_recoveries tcpi_total_rto_time
    }
}

/// Sets an option of the TCP level.
pub fn set_tcp(socket: &impl AsRawFd, option: c_int, value: c_int) {
    set(socket, libc::IPPROTO_TCP, option, value);
}

/// Makes a UDP socket send datagrams without checksums.
pub fn send_no_checksums(socket: &impl AsRawFd) {
    set(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1);
}

/// Sets an option of a packet socket.
pub fn set_packet(socket: &impl AsFd, option: c_int, value: c_int) {
    set(&socket.as_fd(), libc::SOL_PACKET, option, value);
}

fn set(socket: &impl AsRawFd, level: c_int, option: c_int, value: c_int) {
    let len = socklen_t::try_from(size_of_val(&value)).expect("small");
    // SAFETY: the kernel reads `len` bytes of `value`.
    let outcome =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    assert_eq!(
        outcome,
        0,
        "option {option} of level {level}: {}",
        io::Error::last_os_error()
    );
}

/// The value of a socket's timestamp clock with bit 0 cleared, because the kernel returns the clock's unit in this bit.
pub fn timestamp_clock(socket: &impl AsRawFd) -> u32 {
    let mut value = 0_u32;
    let mut len = socklen_t::try_from(size_of_val(&value)).expect("small");
    // SAFETY: the kernel writes at most `len` bytes into `value`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_TIMESTAMP,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    assert_eq!(outcome, 0, "TCP_TIMESTAMP: {}", io::Error::last_os_error());
    value & !1
}

/// Limits a socket's sending rate to `bytes_per_second`.
pub fn pace(socket: &impl AsRawFd, bytes_per_second: u32) {
    let len = socklen_t::try_from(size_of_val(&bytes_per_second)).expect("small");
    // SAFETY: the kernel reads `len` bytes of the number.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const bytes_per_second).cast(),
            len,
        )
    };
    assert_eq!(outcome, 0, "SO_MAX_PACING_RATE: {}", io::Error::last_os_error());
}

/// The parts of a connection's kernel state that the peer can change.
#[derive(Clone, Copy, Debug)]
pub struct TcpState {
    /// The socket has no connection, or its connection is in TIME-WAIT.
    pub closed: bool,
    /// Number of sequence numbers received in order, including the FIN's.
    pub bytes_received: u64,
    /// Number of sequence numbers that the peer has acknowledged.
    pub bytes_acked: u64,
    /// The peer's window in bytes.
    pub send_window: u32,
}

/// Reads [`TcpState`] from the kernel's `struct tcp_info` (`linux/tcp.h`), by the offsets of its fields. The peer's window is in this
/// structure since Linux 5.4.
pub fn tcp_state(socket: &impl AsRawFd) -> TcpState {
    const CLOSE: u8 = 7;
    let mut info = [0_u8; 240];
    let mut len = socklen_t::try_from(info.len()).expect("small");
    // SAFETY: the kernel writes at most `len` bytes into `info`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!(outcome, 0, "TCP_INFO: {}", io::Error::last_os_error());
    assert!(len >= 232, "this kernel does not report the peer's window");
    let long = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().expect("eight bytes"));
    TcpState {
        closed: info[0] == CLOSE,
        bytes_received: long(128),
        bytes_acked: long(120),
        send_window: u32::from_ne_bytes(info[228..232].try_into().expect("four bytes")),
    }
}
