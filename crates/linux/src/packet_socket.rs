//! AF_PACKET sockets that carry whole frames of one interface, each with a virtio header (`PACKET_VNET_HDR`).
//!
//! On a veth a frame may be a segment of 64 KB that is not cut into packets yet and has no checksum. The virtio header
//! describes the missing work, and goes with the frame when the frame is sent again.

use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt::ReceiveTimestampns};
use nix::sys::time::TimeSpec;

/// Length of the virtio header in front of every frame (`struct virtio_net_hdr`).
pub const VIRTIO_HEADER: usize = 10;
/// Room for any frame with its virtio header: 64 KB of IP and an Ethernet header with two VLAN tags.
pub const FRAME_MAX: usize = VIRTIO_HEADER + 22 + 65_536;

const GSO_NONE: u8 = 0;
/// Size of the kernel's buffers for received frames and for frames to be sent, in bytes as the kernel counts them.
const BUFFER: libc::c_int = 64 << 20;

/// A step that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("packet socket on {interface}: {step}")]
pub struct PacketSocketError {
    interface: String,
    step: &'static str,
    source: io::Error,
}

/// A non-blocking socket that gets every frame arriving at one interface and can send frames out of it.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket on `interface` in the calling thread's network namespace. The socket does not receive the frames that the interface
    /// sends. The socket's own frames bypass traffic control.
    ///
    /// # Errors
    /// Names the step that failed. The caller needs CAP_NET_RAW, and CAP_NET_ADMIN because the buffers exceed the system's limits.
    pub fn open(interface: &str) -> Result<Self, PacketSocketError> {
        let failed = |step| {
            let source = io::Error::last_os_error();
            let interface = interface.to_owned();
            PacketSocketError {
                interface,
                step,
                source,
            }
        };
        // With protocol 0 the socket receives nothing until `bind` names the interface, so it gets no frame of another interface.
        // SAFETY: socket(2) takes no pointers.
        let fd = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        if fd < 0 {
            return Err(failed("open"));
        }
        // SAFETY: the descriptor is new and nobody else owns it.
        let socket = Self {
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let options = [
            (libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1, "PACKET_VNET_HDR"),
            (
                libc::SOL_PACKET,
                libc::PACKET_IGNORE_OUTGOING,
                1,
                "PACKET_IGNORE_OUTGOING",
            ),
            (
                libc::SOL_PACKET,
                libc::PACKET_QDISC_BYPASS,
                1,
                "PACKET_QDISC_BYPASS",
            ),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER, "SO_RCVBUFFORCE"),
            (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER, "SO_SNDBUFFORCE"),
        ];
        for (level, name, value, step) in options {
            socket.set(level, name, value).map_err(|()| failed(step))?;
        }
        socket.bind(interface).map_err(|()| failed("bind"))?;
        Ok(socket)
    }

    /// Takes the next frame, with its virtio header, into `buffer` (of [`FRAME_MAX`] bytes). Returns the length, or `None` if there is no
    /// frame yet.
    ///
    /// # Errors
    /// The kernel's error, for example that the interface is down.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes there.
        let got = unsafe { libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        // -1 is the only value that does not fit.
        usize::try_from(got).map_or_else(|_| nothing_yet(None), |length| Ok(Some(length)))
    }

    /// Makes the kernel record when each frame arrives, for [`Self::receive_with_age`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn note_arrivals(&self) -> io::Result<()> {
        Ok(setsockopt(&self.fd, ReceiveTimestampns, &true)?)
    }

    /// Like [`Self::receive`]. Also returns how long ago the frame came, if [`Self::note_arrivals`] was called. If the wall clock is set
    /// meanwhile, the age is wrong by that change.
    ///
    /// # Errors
    /// The kernel's error, for example that the interface is down.
    pub fn receive_with_age(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Duration)>> {
        let mut space = nix::cmsg_space!(TimeSpec);
        let mut parts = [IoSliceMut::new(buffer)];
        let got = recvmsg::<()>(
            self.fd.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::empty(),
        );
        let Ok(message) = got else {
            return nothing_yet(None);
        };
        let came = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(came) => Some(UNIX_EPOCH + Duration::from(came)),
            _ => None,
        });
        // If the clock was set back meanwhile, the frame seems to come from the future. Its age is then 0.
        let age = came.and_then(|came| SystemTime::now().duration_since(came).ok());
        Ok(Some((message.bytes, age.unwrap_or_default())))
    }

    /// Sends a frame that begins with its virtio header. Returns false if the kernel has no room for the frame. The frame is lost then, as
    /// on a cable.
    ///
    /// # Errors
    /// The kernel's error, for example that the interface is down.
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        // SAFETY: the kernel reads `frame.len()` bytes from there.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { nothing_yet(false) } else { Ok(true) }
    }

    /// Number of frames that the kernel has dropped since the last call, because this process did not receive them in time.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn drops(&self) -> io::Result<u32> {
        let mut statistics = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut length = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes of the structure that this option returns.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        match result {
            0 => Ok(statistics.tp_drops),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// After a failure, `errno` has the reason.
    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> Result<(), ()> {
        let length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the kernel reads `length` bytes of `value`.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                length,
            )
        };
        if result == 0 { Ok(()) } else { Err(()) }
    }

    /// After a failure, `errno` has the reason.
    fn bind(&self, interface: &str) -> Result<(), ()> {
        // No interface has a name with a zero byte. The empty name replaces such a name, and the kernel refuses the empty name.
        let name = CString::new(interface).unwrap_or_default();
        // SAFETY: `name` ends in a zero byte; an address of zeroes is valid; the kernel reads `length` bytes of it.
        let result = unsafe {
            let index = libc::if_nametoindex(name.as_ptr());
            if index == 0 {
                return Err(());
            }
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            address.sll_ifindex = index.cast_signed();
            let length = size_of_val(&address) as libc::socklen_t;
            libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), length)
        };
        if result == 0 { Ok(()) } else { Err(()) }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns `nothing` if the last system call failed only because the socket was not ready or a signal came. Otherwise returns the error.
fn nothing_yet<T>(nothing: T) -> io::Result<T> {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(nothing),
        _ => Err(error),
    }
}

/// Number of bytes and packets that `frame` (with its virtio header) becomes on a cable, once it is cut into segments. A frame that
/// cannot be parsed counts as one packet.
#[must_use]
pub fn on_the_wire(frame: &[u8]) -> OnTheWire {
    let length = frame.len().saturating_sub(VIRTIO_HEADER);
    let segments = segments(frame).unwrap_or(Segments { count: 1, header: 0 });
    OnTheWire {
        bytes: length + (segments.count - 1) * segments.header,
        packets: segments.count,
    }
}

/// Size of a frame on a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnTheWire {
    /// Bytes, each packet with its own headers.
    pub bytes: usize,
    /// Packets.
    pub packets: usize,
}

struct Segments {
    count: usize,
    /// Bytes of headers that every packet repeats.
    header: usize,
}

/// Number and header size of the packets into which the kernel will cut a TCP segment. The virtio header's `hdr_len` cannot be used: in
/// this field, Linux stores how many bytes of the frame are in the linear part of its buffer.
fn segments(frame: &[u8]) -> Option<Segments> {
    let header = frame.get(..VIRTIO_HEADER)?;
    let field = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let (gso_type, gso_size, checksum_start) = (header[1], field(4), field(6));
    if gso_type == GSO_NONE || gso_size == 0 {
        return None;
    }
    // The checksum of a segment that will be cut is not computed yet, so `checksum_start` is where the TCP header starts.
    let frame = &frame[VIRTIO_HEADER..];
    let data_offset = frame.get(checksum_start + 12)? >> 4;
    let header = checksum_start + usize::from(data_offset) * 4;
    let payload = frame.len().checked_sub(header)?;
    Some(Segments {
        count: payload.div_ceil(gso_size).max(1),
        header,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETHERNET_AND_IP: usize = 34;
    const TCP_WITH_TIMESTAMPS: usize = 32;

    fn frame(gso_type: u8, gso_size: u16, payload: usize) -> Vec<u8> {
        let mut frame = vec![0, gso_type];
        for field in [ETHERNET_AND_IP as u16, gso_size, ETHERNET_AND_IP as u16, 16] {
            frame.extend(field.to_ne_bytes());
        }
        assert_eq!(frame.len(), VIRTIO_HEADER);
        frame.resize(VIRTIO_HEADER + ETHERNET_AND_IP + TCP_WITH_TIMESTAMPS + payload, 0);
        frame[VIRTIO_HEADER + ETHERNET_AND_IP + 12] = 8 << 4;
        frame
    }

    #[test]
    fn every_segment_pays_for_its_headers() {
        let wire = on_the_wire(&frame(1, 1448, 3 * 1448 + 1));
        let headers = ETHERNET_AND_IP + TCP_WITH_TIMESTAMPS;
        assert_eq!((wire.packets, wire.bytes), (4, 3 * 1448 + 1 + 4 * headers));
    }

    #[test]
    fn a_frame_that_is_whole_is_one_packet() {
        let wire = on_the_wire(&frame(GSO_NONE, 0, 100));
        assert_eq!((wire.packets, wire.bytes), (1, 166));
    }

    #[test]
    fn nonsense_counts_as_one_packet() {
        for frame in [vec![], vec![1; 5], frame(1, 1448, 0)[..40].to_vec()] {
            assert_eq!(on_the_wire(&frame).packets, 1);
        }
    }

    #[test]
    fn a_missing_interface_is_named() {
        let error = PacketSocket::open("sf-none").unwrap_err().to_string();
        assert!(error.contains("sf-none"), "{error}");
    }
}
