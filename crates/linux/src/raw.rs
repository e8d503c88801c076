//! Sends single IP packets that belong to no socket of this machine: wake-up acknowledgements and RSTs.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use crate::wire::{MARK_END, MARK_SPEAK};

/// Raw sockets, kept open: closing one costs milliseconds.
pub struct RawSender {
    /// Sends packets other than RSTs.
    words: RawSockets,
    /// Sends RSTs.
    ends: RawSockets,
}

/// A socket for each address family.
struct RawSockets {
    v4: Socket,
    v6: Option<Socket>,
}

impl RawSender {
    /// Opens the sockets. A kernel without IPv6 gets no IPv6 sockets.
    ///
    /// # Errors
    /// If an IPv4 socket cannot be opened, or a socket cannot be marked.
    pub fn open() -> io::Result<Self> {
        let (words, ends) = (RawSockets::open(MARK_SPEAK)?, RawSockets::open(MARK_END)?);
        Ok(Self { words, ends })
    }

    /// Sends one packet. It begins with the IP header, and the TCP header follows.
    ///
    /// # Errors
    /// If `sendto(2)` fails. A packet that is neither IPv4 nor IPv6 is `InvalidInput`.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        if is_reset(packet) {
            self.ends.send(packet)
        } else {
            self.words.send(packet)
        }
    }
}

fn is_reset(packet: &[u8]) -> bool {
    const RST: u8 = 4;
    const FLAGS: usize = 13;
    let transport = match packet.first() {
        Some(first) if first >> 4 == 4 => usize::from(first & 15) * 4,
        _ => 40,
    };
    packet
        .get(transport + FLAGS)
        .is_some_and(|flags| flags & RST != 0)
}

impl RawSockets {
    /// Opens sockets with `mark`, which lets their packets leave though the node has no general right to speak (`bpf/abi.h`).
    fn open(mark: u32) -> io::Result<Self> {
        let raw = Protocol::from(libc::IPPROTO_RAW);
        let v4 = Socket::new(Domain::IPV4, Type::RAW, Some(raw))?;
        let v6 = Socket::new(Domain::IPV6, Type::RAW, Some(raw)).ok();
        for socket in std::iter::once(&v4).chain(&v6) {
            socket.set_nonblocking(true)?;
            socket.set_mark(mark)?;
        }
        Ok(Self { v4, v6 })
    }

    fn send(&self, packet: &[u8]) -> io::Result<()> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not an IP packet");
        let (socket, destination) = match packet.first().map(|first| first >> 4) {
            Some(4) => {
                let octets: [u8; 4] = packet
                    .get(16..20)
                    .ok_or_else(invalid)?
                    .try_into()
                    .expect("4 bytes");
                (&self.v4, IpAddr::from(Ipv4Addr::from(octets)))
            }
            Some(6) => {
                let octets: [u8; 16] = packet
                    .get(24..40)
                    .ok_or_else(invalid)?
                    .try_into()
                    .expect("16 bytes");
                (
                    self.v6.as_ref().ok_or_else(invalid)?,
                    IpAddr::from(Ipv6Addr::from(octets)),
                )
            }
            _ => return Err(invalid()),
        };
        socket
            .send_to(packet, &SocketAddr::new(destination, 0).into())
            .map(drop)
    }
}
