//! Datagrams with the record of the primary's server. The library of the primary sends them itself, and the backup's kernel answers them
//! ([`linux::order`]). So no thread has to wake up for a receipt.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use linux::network::interfaces;
use linux::order::OrderProgram;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proto::order::{DatagramSeal, OrderArrivals};

use super::state::OrderedService;

/// How long pieces of the record wait in the ring. The backup's server gets them together, because it costs the machine more to wake it for
/// each of them.
const BATCH: Duration = Duration::from_millis(1);
/// Number of links of one record whose pieces are taken. Pieces of a link that has ended may still be in the ring.
const COOKIES_MAX: usize = 4;

/// The primary's half: what its library needs to send datagrams over the present link.
pub(super) struct DatagramPath {
    pub seal: DatagramSeal,
    /// Connected to the backup.
    pub socket: UdpSocket,
    /// The link's secret, which the seal has as well.
    pub secret: [u8; 16],
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
            seal: DatagramSeal::new(cookie, secret),
            socket,
            secret,
        })
    }

    /// The payload of the frame to the library.
    pub fn payload(&self) -> Vec<u8> {
        [&self.seal.cookie().to_le_bytes()[..], &self.secret].concat()
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

/// Loads the program, unless that was tried before. Starts the thread that empties its ring.
pub(super) fn prepare(service: &Arc<OrderedService>) {
    if std::mem::replace(&mut service.state().has_tried_datagrams, true) {
        return;
    }
    let prepared = KernelArrivals::load(service.peer.port()).and_then(|kernel| {
        let ring = kernel.descriptor()?;
        let of_thread = Arc::clone(service);
        std::thread::Builder::new()
            .name("order-ring".into())
            .spawn(move || empty_ring(&of_thread, &ring))?;
        Ok(kernel)
    });
    match prepared {
        Ok(kernel) => service.state().kernel = Some(kernel),
        Err(error) => {
            tracing::info!(%error, "the kernel takes no records; the primary's clients wait for this agent's receipts")
        }
    }
}

/// Empties the ring whenever it has pieces, a batch at a time.
fn empty_ring(service: &OrderedService, ring: &OwnedFd) {
    loop {
        let mut polled = [PollFd::new(ring.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return tracing::warn!(%error, "cannot wait for the kernel's records"),
        }
        std::thread::sleep(BATCH);
        if service.state().take_from_kernel() {
            service.notify();
        }
    }
}

/// Takes datagrams of the link that has come up at this address. Returns the link's cookie. `None`: the link goes without.
pub(super) fn begin_link(
    service: &OrderedService,
    own: SocketAddr,
    secret: impl FnOnce(&[u8]) -> [u8; 16],
) -> Option<u64> {
    let mut state = service.state();
    state.inbound.as_ref()?; // the link may have ended meanwhile
    state.take_from_kernel();
    let have = state.arrivals.streams().server_len();
    let kernel = state.kernel.as_mut()?;
    let cookie = linux::process::random_seed() as u64;
    let seal = DatagramSeal::new(cookie, secret(&cookie.to_le_bytes()));
    match kernel.open_link(&seal, own.ip().to_canonical(), have) {
        Ok(()) => Some(cookie),
        Err(error) => {
            tracing::info!(%error, vip = %service.vip, "the kernel takes no record from this link");
            None
        }
    }
}
