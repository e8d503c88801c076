//! One address of the peer, with a socket of its own.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::network;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use super::frame;
use crate::control::LinkStatus;

/// Silence of a link after which its source address is checked.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// One address of the peer.
pub(super) struct PeerLink {
    pub(super) address: SocketAddr,
    pub(super) socket: Arc<UdpSocket>,
    /// When a datagram of the peer's current incarnation last arrived. A copy of an earlier datagram counts, too.
    pub(super) heard: Option<Instant>,
    /// Number of the newest of these datagrams. An older datagram does not prove that the link works: it may be a replay.
    pub(super) newest: frame::Number,
}

impl PeerLink {
    /// A link to `address`; `is_shared` if other links have the same port.
    pub(super) fn open(address: SocketAddr, is_shared: bool) -> io::Result<Self> {
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), None)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(is_shared)?;
        tell_interfaces(&socket, address)?;
        socket.bind(&SocketAddr::new(any, address.port()).into())?;
        if let Err(error) = socket.connect(&address.into()) {
            tracing::warn!(%address, %error, "no route to this address of the peer yet; trying again");
        }
        Ok(Self {
            address,
            socket: Arc::new(socket.into()),
            heard: None,
            newest: frame::Number::default(),
        })
    }

    /// Connects the socket again if it has the wrong source address: the right interface had no address before, or has got another one.
    /// The peer sends to the right address, so its datagrams do not arrive at a socket that is connected from another one. A link over
    /// which the peer was heard lately is left alone.
    pub(super) fn follow_own_address(&self) {
        let is_silent = self.heard.is_none_or(|at| at.elapsed() >= SILENCE_MAX);
        let (Ok(new), Ok(old)) = (network::own_address(self.address), self.socket.local_addr()) else {
            return; // no route to the peer now
        };
        if !is_silent || new == old.ip() {
            return;
        }
        match network::connect_anew(&self.socket, self.address) {
            Ok(()) => {
                tracing::info!(address = %self.address, from = %new, "the link to the peer has another source address")
            }
            Err(error) => {
                tracing::warn!(address = %self.address, %error, "the link to the peer cannot be connected; trying again")
            }
        }
    }

    pub(super) fn status(&self) -> LinkStatus {
        let nanos = |age: Duration| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        LinkStatus {
            address: self.address.ip(),
            heard_age_ns: self.heard.map(|at| nanos(at.elapsed())),
        }
    }
}

/// Makes the kernel report the interface by which each datagram came in (`IP_PKTINFO`, RFC 3542 §6.2).
fn tell_interfaces(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    Ok(())
}

/// Receives a datagram. Returns its length, its sender, and the index of the interface by which it came in (0 if the kernel does not say).
pub(super) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, Option<SocketAddr>, u32)> {
    let mut space = nix::cmsg_space!(nix::libc::in6_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::empty();
    let received = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let from = received.address.and_then(|from| {
        let v4 = from.as_sockaddr_in().map(|from| SocketAddr::V4((*from).into()));
        v4.or_else(|| from.as_sockaddr_in6().map(|from| SocketAddr::V6((*from).into())))
    });
    let interface = |message| match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => u32::try_from(info.ipi_ifindex).ok(),
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(info.ipi6_ifindex),
        _ => None,
    };
    let interface = received.cmsgs()?.find_map(interface).unwrap_or(0);
    Ok((received.bytes, from, interface))
}

/// Sends `datagram` over a link. If the link had no route to the peer so far, tries to connect it again.
pub(super) fn send(address: SocketAddr, socket: &UdpSocket, datagram: &[u8]) {
    let mut sent = socket.send(datagram);
    if socket.peer_addr().is_err() {
        sent = socket.connect(address).and_then(|()| socket.send(datagram));
    }
    if let Err(error) = sent {
        tracing::trace!(%error, %address, "not sent"); // a peer that is away is no error
    }
}
