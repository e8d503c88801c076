//! Sends single IP packets out of a port.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::neighbour::link_address;
use crate::network::packet::{Mac, announcements};
use crate::network::{interfaces, packet_socket};

/// Time for which a neighbour's address is used before the kernel is asked again. A failover sends thousands of packets to one neighbour.
const REMEMBERED: Duration = Duration::from_secs(1);
/// Time between two questions to the kernel while it does not know the neighbour's address.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Size of the send buffer, in bytes as the kernel counts them. The buffer holds packets that the interface has not sent yet.
const BUFFER: usize = 8 << 20;

const ETHERTYPE_V4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_V6: [u8; 2] = [0x86, 0xdd];

/// Sends IP packets into a string, or out of any other port.
pub struct Injector {
    socket: Socket,
    ifindex: u32,
    mac: [u8; 6],
    neighbours: Mutex<NeighbourMemory>,
}

/// The kernel's last answers about the neighbours' link-layer addresses.
#[derive(Default)]
struct NeighbourMemory {
    known: HashMap<IpAddr, RememberedNeighbour>,
}

#[derive(Clone, Copy)]
struct RememberedNeighbour {
    mac: Option<[u8; 6]>,
    /// Whether the kernel knew the address when it was last asked.
    is_fresh: bool,
    /// When the kernel was last asked.
    asked: Instant,
}

impl NeighbourMemory {
    /// The link-layer address of a neighbour. `ask` asks the kernel. `ask` is not called if the kernel was asked a short time ago.
    fn address(
        &mut self,
        next_hop: IpAddr,
        now: Instant,
        ask: impl FnOnce() -> io::Result<Option<[u8; 6]>>,
    ) -> io::Result<Option<[u8; 6]>> {
        let before = self.known.get(&next_hop).copied();
        if let Some(before) = before {
            let pause = if before.is_fresh { REMEMBERED } else { ASK_EVERY };
            if now.duration_since(before.asked) < pause {
                return Ok(before.mac);
            }
        }
        let answer = ask();
        let fresh = answer.as_ref().ok().copied().flatten();
        let mac = fresh.or_else(|| before.and_then(|before| before.mac));
        let is_fresh = fresh.is_some();
        self.known.insert(
            next_hop,
            RememberedNeighbour {
                mac,
                is_fresh,
                asked: now,
            },
        );
        answer.map(|_| mac)
    }
}

impl Injector {
    /// An injector for the interface with this index, in the calling thread's network namespace.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface, `Unsupported` if it is not an Ethernet interface, or the kernel's error. Packet sockets
    /// need CAP_NET_RAW.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let interfaces = interfaces().map_err(io::Error::other)?;
        let interface = interfaces
            .into_iter()
            .find(|interface| interface.index == ifindex)
            .ok_or(io::ErrorKind::NotFound)?;
        let mac = interface.mac.ok_or(io::ErrorKind::Unsupported)?.0;
        let socket = packet_socket(ifindex, 0)?; // receives nothing
        let _ = socket.set_send_buffer_size(BUFFER); // the kernel may allow less
        Ok(Self {
            socket,
            ifindex,
            mac,
            neighbours: Mutex::default(),
        })
    }

    /// Sends an IP packet to the neighbour `next_hop`. Does not wait for the neighbour's link-layer address: if the address is not known,
    /// the kernel asks for it, and only a later packet can be sent.
    ///
    /// # Errors
    /// `InvalidInput` if the packet is neither IPv4 nor IPv6, `HostUnreachable` if the address is not known, or the kernel's error.
    pub fn send(&self, packet: &[u8], next_hop: IpAddr) -> io::Result<()> {
        let kind = match packet.first().map(|first| first >> 4) {
            Some(4) => ETHERTYPE_V4,
            Some(6) => ETHERTYPE_V6,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let next_hop = self
            .link_address(next_hop)?
            .ok_or(io::ErrorKind::HostUnreachable)?;
        self.send_frame(&[next_hop, self.mac].concat(), &[&kind, packet])
    }

    /// Tells the neighbours the link-layer address of `own`, an IP address of this port. A neighbour whose cable was pulled has forgotten
    /// the link-layer address, and may take a second until it asks again.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn announce(&self, own: IpAddr) -> io::Result<()> {
        let frames = announcements(Mac(self.mac), own);
        frames.iter().try_for_each(|frame| {
            let (addresses, rest) = frame.split_at(12);
            self.send_frame(addresses, &[rest])
        })
    }

    /// Sends a frame: its two link-layer addresses, and the rest from the type on.
    fn send_frame(&self, addresses: &[u8], rest: &[&[u8]]) -> io::Result<()> {
        let mut frame = addresses.to_vec();
        for part in rest {
            frame.extend(*part);
        }
        self.socket.send(&frame).map(drop)
    }

    /// The link-layer address of the port.
    pub const fn own(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the link-layer address of `next_hop` that the kernel knows. If the kernel knows none, returns the last address that it knew.
    /// The kernel forgets its neighbours when a cable is pulled, but the first packets after the cable is plugged in again need an address.
    /// Does not wait. Asks the kernel at most once per 10 ms, because a failover may send thousands of packets to a neighbour that does not
    /// answer.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn link_address(&self, next_hop: IpAddr) -> io::Result<Option<[u8; 6]>> {
        let mut neighbours = self.neighbours.lock().expect("nobody panics with the lock");
        neighbours.address(next_hop, Instant::now(), || link_address(self.ifindex, next_hop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_that_is_not_known_is_asked_for_at_times() {
        let mut memory = NeighbourMemory::default();
        let (hop, mac, start) = (IpAddr::from([10, 0, 0, 1]), [2, 0, 0, 0, 0, 1], Instant::now());
        let mut asked = 0;
        let mut ask = |millis, answer: io::Result<Option<[u8; 6]>>| {
            let now = start + Duration::from_millis(millis);
            let found = memory.address(hop, now, || {
                asked += 1;
                answer
            });
            (found.map_err(|error| error.kind()), asked)
        };
        for packet in 0..1000 {
            let (found, asked) = ask(packet / 100, Ok(None));
            assert_eq!((found, asked), (Ok(None), 1));
        }
        let broken = || Err(io::ErrorKind::OutOfMemory.into());
        assert_eq!(ask(10, broken()), (Err(io::ErrorKind::OutOfMemory), 2));
        assert_eq!(
            ask(11, broken()),
            (Ok(None), 2),
            "an error is no reason to ask more often"
        );
        assert_eq!(ask(20, Ok(Some(mac))), (Ok(Some(mac)), 3));
        assert_eq!(ask(1019, Ok(None)), (Ok(Some(mac)), 3), "remembered for a second");
        assert_eq!(
            ask(1020, Ok(None)),
            (Ok(Some(mac)), 4),
            "the last known address stays"
        );
        assert_eq!(ask(1025, Ok(None)), (Ok(Some(mac)), 4));
        assert_eq!(ask(1030, Ok(None)), (Ok(Some(mac)), 5));
    }
}
