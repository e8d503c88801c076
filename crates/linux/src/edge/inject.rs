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

/// How long a neighbour's address is used before the kernel is asked again. A failover sends thousands of packets to one neighbour.
const REMEMBERED: Duration = Duration::from_secs(1);
/// Room for packets that the interface has not sent yet, in bytes as the kernel counts them.
const BUFFER: usize = 8 << 20;

const ETHERTYPE_V4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_V6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];

/// Sends IP packets into a string, or out of any other port.
pub struct Injector {
    socket: Socket,
    ifindex: u32,
    vlan: Option<u16>,
    mac: [u8; 6],
    neighbours: Mutex<HashMap<IpAddr, ([u8; 6], Instant)>>,
}

impl Injector {
    /// An injector for the interface with this index, in the calling thread's network namespace. `vlan`: the VLAN id of the frames.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface, `Unsupported` if it is not an Ethernet interface, or the kernel's error. Packet sockets
    /// need CAP_NET_RAW.
    pub fn open(ifindex: u32, vlan: Option<u16>) -> io::Result<Self> {
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
            vlan,
            mac,
            neighbours: Mutex::default(),
        })
    }

    /// Sends an IP packet to the neighbour `next_hop`. Does not wait for the neighbour's link-layer address: if the kernel does not know it,
    /// the kernel asks for it, and a later packet finds it.
    ///
    /// # Errors
    /// `HostUnreachable` if the address is not known, or the kernel's error.
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

    /// Tells the neighbours the link-layer address of `own`, an address of this port. A neighbour whose cable was pulled has forgotten it, and
    /// may wait for a second until it asks again.
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

    /// Sends a frame: its two link-layer addresses, the VLAN tag if there is one, and the rest from the type on.
    fn send_frame(&self, addresses: &[u8], rest: &[&[u8]]) -> io::Result<()> {
        let mut frame = addresses.to_vec();
        if let Some(id) = self.vlan {
            frame.extend(ETHERTYPE_VLAN);
            frame.extend(id.to_be_bytes());
        }
        for part in rest {
            frame.extend(*part);
        }
        self.socket.send(&frame).map(drop)
    }

    /// The link-layer address of the port.
    pub const fn own(&self) -> [u8; 6] {
        self.mac
    }

    /// The link-layer address of `next_hop`, if the kernel knows it, or has known it before: the kernel forgets its neighbours when a cable is
    /// pulled, and the first packets after its return need an address. Does not wait.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn link_address(&self, next_hop: IpAddr) -> io::Result<Option<[u8; 6]>> {
        let now = Instant::now();
        let mut neighbours = self.neighbours.lock().expect("nobody panics with the lock");
        if let Some((mac, since)) = neighbours.get(&next_hop)
            && now.duration_since(*since) < REMEMBERED
        {
            return Ok(Some(*mac));
        }
        if let Some(mac) = link_address(self.ifindex, next_hop)? {
            neighbours.insert(next_hop, (mac, now));
        }
        Ok(neighbours.get(&next_hop).map(|(mac, _)| *mac))
    }
}
