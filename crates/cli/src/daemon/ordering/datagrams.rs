//! Datagrams with the record of the primary's server. The library of the primary sends them itself, and the backup's kernel answers them
//! ([`linux::order`]). So no thread has to wake up for a receipt.

use std::io;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;

use linux::network::interfaces;
use linux::order::OrderProgram;
use proto::order::{DatagramSeal, OrderArrivals};

/// Number of links of one record whose pieces are taken. Pieces of a link that has ended may still be in the ring.
const COOKIES_MAX: usize = 4;

/// The primary's half: what its library needs to send datagrams over the present link.
pub(super) struct DatagramPath {
    cookie: u64,
    secret: [u8; 16],
    /// Connected to the backup.
    pub socket: UdpSocket,
}

impl DatagramPath {
    /// For the link with this cookie and secret, whose TCP connection is `link`, to this port of the backup.
    pub fn open(cookie: u64, secret: [u8; 16], link: &TcpStream, port: u16) -> io::Result<Self> {
        let (mut own, mut peer) = (link.local_addr()?, link.peer_addr()?);
        own.set_port(0);
        peer.set_port(port);
        let socket = UdpSocket::bind(own)?;
        socket.connect(peer)?;
        Ok(Self {
            cookie,
            secret,
            socket,
        })
    }

    /// The payload of the frame to the library.
    pub fn payload(&self) -> Vec<u8> {
        [&self.cookie.to_le_bytes()[..], &self.secret].concat()
    }
}

/// The backup's half: the kernel's program, and the links whose datagrams belong to the record that this node's server follows.
pub(super) struct KernelArrivals {
    program: OrderProgram,
    cookies: Vec<u64>,
    /// Bytes of the record that came first in datagrams.
    taken: u64,
}

impl KernelArrivals {
    /// Loads the program for datagrams to this port.
    pub fn load(port: u16) -> anyhow::Result<Self> {
        Ok(Self {
            program: OrderProgram::load(port)?,
            cookies: Vec::new(),
            taken: 0,
        })
    }

    /// A descriptor that is readable when the ring has a piece.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.program.descriptor()
    }

    /// Takes datagrams of a new link, which arrive at the interface with this address. The agent has the first `have` bytes of the record.
    pub fn open_link(&mut self, seal: &DatagramSeal, address: IpAddr, have: u64) -> anyhow::Result<()> {
        let all = interfaces()?;
        let arrives = all.iter().find(|one| one.addresses.contains(&address));
        let Some(interface) = arrives else {
            anyhow::bail!("no interface has the address {address}");
        };
        self.program.attach(interface.index)?;
        self.program.open_link(seal, have)?;
        self.cookies.push(seal.cookie());
        self.cookies
            .drain(..self.cookies.len().saturating_sub(COOKIES_MAX));
        Ok(())
    }

    /// The link has ended: the kernel gives no receipts any more.
    pub fn close_link(&self) {
        if let Some(&cookie) = self.cookies.last() {
            self.program.close_link(cookie);
        }
    }

    /// A record begins. Pieces of an earlier record do not count.
    pub fn begin(&mut self) {
        self.close_link();
        self.cookies.clear();
        self.taken = 0;
    }

    /// Moves all that the kernel has taken to the arrivals. Returns whether it was news.
    pub fn drain(&mut self, arrivals: &mut OrderArrivals) -> bool {
        let before = self.taken;
        let (cookies, taken) = (&self.cookies, &mut self.taken);
        self.program.drain(|piece| {
            if cookies.contains(&piece.cookie) {
                *taken += arrivals.add_ahead(piece.from, piece.bytes) as u64;
            }
        });
        self.note(arrivals);
        if arrivals.is_given_up() {
            self.close_link();
        }
        self.taken > before
    }

    /// Tells the program how much of the record has arrived.
    pub fn note(&self, arrivals: &mut OrderArrivals) {
        self.program.set_have(arrivals.streams().server_len());
    }

    /// Bytes of the record that came first in datagrams.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Number of datagrams that the kernel has refused.
    pub fn refused(&self) -> u64 {
        self.program.refused()
    }
}
