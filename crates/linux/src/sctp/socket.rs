//! One local address of an SCTP endpoint: a UDP socket (RFC 6951), or a raw socket of protocol 132.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::fragments::{FragmentSocket, datagram};

/// IP protocol number of SCTP.
const IPPROTO_SCTP: libc::c_int = 132;
/// Size of a receive buffer in bytes: room for one datagram, or for all datagrams that the kernel joins for one call (`UDP_GRO`).
pub(super) const DATAGRAM_MAX: usize = 1 << 16;
/// Maximum number of datagrams in one send call. Before Linux 6.9, the kernel's limit (UDP_MAX_SEGMENTS) is 64.
pub(super) const SEGMENTS_MAX: usize = 64;
/// Maximum number of bytes in one send call. With all headers, they must stay below the kernel's limit of 64 KiB.
pub(super) const BATCH_MAX: usize = 65_000;
/// Size of the kernel's receive buffer and of its send buffer, in bytes. Much larger than an association's windows, because the kernel also
/// counts its own memory for each packet.
const BUFFER: libc::c_int = 16 << 20;
/// Time to wait until a full send buffer has room. Packets that still find no room are dropped.
const PATIENCE: Duration = Duration::from_millis(2);

/// A socket that is bound to one local address.
#[derive(Debug)]
pub(super) struct SctpSocket {
    socket: Socket,
    address: IpAddr,
    /// The local UDP port.
    port: u16,
    /// True for a raw IP socket, false for a UDP socket.
    is_raw: bool,
    /// Sends IPv6 packets in fragments. `None`: the address is IPv4, or this process may not open the socket.
    fragments: Option<FragmentSocket>,
    /// The kernel can cut a batch into datagrams (`UDP_SEGMENT`), so one call can send several datagrams. True for UDP sockets, until the
    /// kernel refuses a batch.
    cuts: bool,
}

/// Datagrams of one sender that arrived together.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivedBatch {
    pub from: SocketAddr,
    /// Offset in the buffer at which the first packet begins.
    pub begin: usize,
    /// Offset in the buffer at which the last packet ends.
    pub end: usize,
    /// Length in bytes of each packet except the last one, which may be shorter.
    pub segment: usize,
}

impl SctpSocket {
    /// Opens a socket and binds it to `address` and `udp_port`. Port 0 means a raw IP socket.
    pub fn open(address: IpAddr, udp_port: u16) -> io::Result<Self> {
        let is_raw = udp_port == 0;
        let domain = if address.is_ipv4() {
            Domain::IPV4
        } else {
            Domain::IPV6
        };
        let (kind, protocol) = if is_raw {
            (Type::RAW, Protocol::from(IPPROTO_SCTP))
        } else {
            (Type::DGRAM, Protocol::UDP)
        };
        let socket = Socket::new(domain, kind.nonblocking().cloexec(), Some(protocol))?;
        if address.is_ipv6() && !is_raw {
            socket.set_only_v6(true)?;
        }
        let fragments = match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => FragmentSocket::open(address).ok(),
        };
        let this = Self {
            socket,
            address,
            port: udp_port,
            is_raw,
            fragments,
            cuts: !is_raw,
        };
        this.set_fragmenting(false)?;
        if !is_raw {
            this.set(libc::SOL_UDP, libc::UDP_GRO, 1)?;
        }
        // SO_…BUFFORCE needs CAP_NET_ADMIN. Without it, the system's limits apply (`net.core.rmem_max` and `wmem_max`).
        for (forced, ordinary) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            let forced = this.set(libc::SOL_SOCKET, forced, BUFFER);
            forced.or_else(|_| this.set(libc::SOL_SOCKET, ordinary, BUFFER))?;
        }
        this.socket.bind(&SocketAddr::new(address, udp_port).into())?;
        Ok(this)
    }

    /// Whether the kernel can cut a batch into datagrams, so that one call can send several datagrams.
    pub const fn cuts(&self) -> bool {
        self.cuts
    }

    /// Sets whether packets that are sent from now on may be fragmented. If not, the kernel refuses to send a packet that is too long for
    /// the interface.
    fn set_fragmenting(&self, may_fragment: bool) -> io::Result<()> {
        let (level, name) = match self.address {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        };
        // The IPV6_PMTUDISC_… constants have the same values.
        let value = if may_fragment {
            libc::IP_PMTUDISC_DONT
        } else {
            libc::IP_PMTUDISC_PROBE
        };
        self.set(level, name, value)
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        // SAFETY: the kernel reads the `c_int` that the pointer and the length describe.
        let done = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if done < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Sends one packet in fragments of at most `mtu` bytes. Routers on the way fragment IPv4 packets. This host fragments IPv6 packets. If
    /// it may not do so itself, its kernel does, but only if an ICMP message has told the path's MTU.
    pub fn send_fragmented(&mut self, to: SocketAddr, packet: &[u8], mtu: u32) -> io::Result<()> {
        if let (Some(fragments), IpAddr::V6(from), SocketAddr::V6(to)) =
            (&mut self.fragments, self.address, to)
        {
            let mtu = mtu as usize;
            if self.is_raw {
                return fragments.send(to, IPPROTO_SCTP as u8, packet, mtu);
            }
            let from = SocketAddrV6::new(from, self.port, 0, 0);
            return fragments.send(to, libc::IPPROTO_UDP as u8, &datagram(from, to, packet), mtu);
        }
        self.set_fragmenting(true)?;
        let sent = self.send_patiently(to, packet, packet.len());
        self.set_fragmenting(false)?;
        sent
    }

    /// Sends the packets in `batch`. Each has `segment` bytes, except the last one, which may be shorter.
    ///
    /// The kernel cannot cut a batch for every route. It then refuses the batch, but it sends single datagrams. So they are sent one by one
    /// from then on.
    pub fn send(&mut self, to: SocketAddr, batch: &[u8], segment: usize) -> io::Result<()> {
        match self.send_patiently(to, batch, segment) {
            Err(error) if batch.len() > segment && is_cutting_refused(&error) => {
                self.cuts = false;
                let mut packets = batch.chunks(segment);
                packets.try_for_each(|packet| self.send_patiently(to, packet, segment))
            }
            done => done,
        }
    }

    fn send_patiently(&self, to: SocketAddr, batch: &[u8], segment: usize) -> io::Result<()> {
        match self.send_once(to, batch, segment) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
                let patience = u16::try_from(PATIENCE.as_millis()).unwrap_or(1);
                let _ = poll(&mut fds, patience); // the next call shows whether there is room now
                self.send_once(to, batch, segment)
            }
            done => done,
        }
    }

    fn send_once(&self, to: SocketAddr, batch: &[u8], segment: usize) -> io::Result<()> {
        let to = SockAddr::from(match (self.is_raw, to) {
            // The address for a raw socket must have port 0.
            (true, to) => SocketAddr::new(to.ip(), 0),
            (false, to) => to,
        });
        let mut part = libc::iovec {
            iov_base: batch.as_ptr().cast_mut().cast(),
            iov_len: batch.len(),
        };
        let mut control = ControlBuffer([0; 64]);
        // SAFETY: a msghdr of zeroes is valid: no address, no parts, no control data.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if batch.len() > segment {
            message.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: CMSG_SPACE computes a number and accesses no memory. `ControlBuffer` has more bytes than this number.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(2) } as usize;
            // SAFETY: the header and its two bytes of data lie in the control buffer, which is aligned for a header.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_UDP;
                (*header).cmsg_type = libc::UDP_SEGMENT;
                (*header).cmsg_len = libc::CMSG_LEN(2) as usize;
                libc::CMSG_DATA(header)
                    .cast::<u16>()
                    .write_unaligned(segment as u16);
            }
        }
        // SAFETY: the message names the address, the batch and the control buffer, which live until the call returns.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, 0) };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Receives the next packets of one sender. Returns `None` if none have arrived. A call that fails loses no packet: it only reports an
    /// error of the kernel, for example after an ICMP message. So the caller may call again.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<ArrivedBatch>> {
        let mut part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut control = ControlBuffer([0; 64]);
        // SAFETY: a sockaddr_storage and a msghdr of zeroes are valid.
        let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = size_of::<ControlBuffer>();
        // SAFETY: the message names the storage, the buffer and the control buffer with their lengths. All live until the call returns.
        let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, 0) };
        let Ok(got) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            };
        };
        let from = match self.address {
            IpAddr::V4(_) => {
                // SAFETY: the socket's family is AF_INET, and the storage has room and alignment for each address.
                let name = unsafe { *(&raw const name).cast::<libc::sockaddr_in>() };
                let address = IpAddr::from(name.sin_addr.s_addr.to_ne_bytes());
                SocketAddr::new(address, u16::from_be(name.sin_port))
            }
            IpAddr::V6(_) => {
                // SAFETY: the socket's family is AF_INET6, and the storage has room and alignment for each address.
                let name = unsafe { *(&raw const name).cast::<libc::sockaddr_in6>() };
                let address = IpAddr::from(name.sin6_addr.s6_addr);
                SocketAddr::new(address, u16::from_be(name.sin6_port))
            }
        };
        // A raw IPv4 socket puts the IP header before the packet.
        let begin = match (self.is_raw, self.address, buffer.first()) {
            (true, IpAddr::V4(_), Some(first)) => (usize::from(first & 15) * 4).min(got),
            _ => 0,
        };
        let segment = joined(&message).unwrap_or(got - begin).max(1);
        Ok(Some(ArrivedBatch {
            from,
            begin,
            end: got,
            segment,
        }))
    }
}

/// Whether the kernel refused a batch because it cannot cut it into datagrams. EIO: the route leads through IPsec, or (before Linux 6.11)
/// through a device that computes no checksums. EINVAL: the socket sends no checksums.
fn is_cutting_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
}

impl AsFd for SctpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Room for one control message, aligned for its header.
#[repr(align(8))]
struct ControlBuffer([u8; 64]);

/// Length in bytes of each datagram that the kernel has joined (`UDP_GRO`). `None` if it has joined none.
fn joined(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has filled the control buffer of this message. The macros stay within its length.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = header.as_ref() {
            if found.cmsg_level == libc::SOL_UDP && found.cmsg_type == libc::UDP_GRO {
                let length = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(length).ok();
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}
