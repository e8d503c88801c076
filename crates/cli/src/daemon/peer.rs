//! Heartbeats to and from the peer: one JSON object per UDP datagram.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use proto::action::Heartbeat;

use crate::config::Config;

/// Larger than any heartbeat of 64 services.
const DATAGRAM_MAX: usize = 32 * 1024;

/// The heartbeat socket. It takes datagrams of the peer's address and port only.
pub struct Peer {
    socket: UdpSocket,
    name: String,
}

impl Peer {
    /// Opens the socket.
    pub fn open(config: &Config) -> io::Result<Self> {
        let any: IpAddr = match config.peer.address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, config.peer.port))?;
        socket.connect(SocketAddr::new(config.peer.address, config.peer.port))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, name: config.peer.name.clone() })
    }

    /// Sends a heartbeat. A peer that is away is no error.
    pub fn send(&self, heartbeat: &Heartbeat) {
        let bytes = serde_json::to_vec(heartbeat).expect("a heartbeat has a JSON form");
        if let Err(error) = self.socket.send(&bytes) {
            tracing::trace!(%error, "heartbeat not sent");
        }
    }

    /// The heartbeats that have arrived.
    pub fn receive(&self) -> Vec<Heartbeat> {
        let mut heartbeats = Vec::new();
        let mut buffer = [0; DATAGRAM_MAX];
        // Each error that a UDP socket reports (the peer's port is closed) is taken once; then it goes on.
        for _ in 0..RECEIVE_MAX {
            match self.socket.recv(&mut buffer) {
                Ok(count) => match serde_json::from_slice::<Heartbeat>(&buffer[..count]) {
                    Ok(heartbeat) if heartbeat.node == self.name => heartbeats.push(heartbeat),
                    Ok(heartbeat) => tracing::warn!(from = heartbeat.node, expected = self.name, "foreign heartbeat"),
                    Err(error) => tracing::warn!(%error, "unreadable heartbeat"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
        heartbeats
    }
}

/// Datagrams taken at a time: a flood of them must not keep the agent from its work.
const RECEIVE_MAX: usize = 64;

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
