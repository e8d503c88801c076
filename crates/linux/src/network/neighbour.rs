//! Announces addresses to the neighbours, and asks the neighbours which of them has an address.

use std::io::{self, Read};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, SockFilter, Socket, Type};

use super::{Interface, NetworkError};

pub use super::packet::Mac;
use super::packet::{announcements, claim, question};

/// Number of times that a question is asked within its time limit: any frame may be lost.
const QUESTIONS: u32 = 3;

/// Announces addresses on one interface. Its socket stays open: closing a packet socket takes 8 to 10 ms.
#[derive(Debug)]
pub struct Announcer {
    socket: Socket,
    mac: Mac,
    interface: String,
}

impl Announcer {
    /// An announcer on `interface`.
    ///
    /// # Errors
    /// If `interface` is not an Ethernet interface, or if packet sockets are not allowed (they need CAP_NET_RAW).
    pub fn open(interface: &Interface) -> Result<Self, NetworkError> {
        let at = || interface.name.clone();
        let mac = ethernet(interface)?;
        // Protocol 0: receives nothing.
        let socket =
            packet_socket(interface.index, 0).map_err(NetworkError::at("open a packet socket on", at()))?;
        Ok(Self {
            socket,
            mac,
            interface: at(),
        })
    }

    /// Announces once that `address` is on this interface: by gratuitous ARP in request and reply form, or by an unsolicited neighbour
    /// advertisement. No receiver confirms the frames, and they may be lost, so call this several times.
    ///
    /// # Errors
    /// If the frames cannot be sent.
    pub fn announce(&self, address: IpAddr) -> Result<(), NetworkError> {
        let send = || {
            announcements(self.mac, address)
                .iter()
                .try_for_each(|frame| self.socket.send(frame).map(drop))
        };
        send().map_err(NetworkError::at(
            "announce",
            format!("{address} on {}", self.interface),
        ))
    }
}

/// Asks the neighbours on `interface` for the link-layer address of `address`. The question's source is our own address on `interface`.
/// `None` if nobody answers in time.
///
/// # Errors
/// If the question cannot be asked.
pub fn resolve(
    interface: &Interface,
    address: IpAddr,
    within: Duration,
) -> Result<Option<Mac>, NetworkError> {
    let from = interface.address_like(address);
    Ok(ask(interface, from, address, within, 1)?.first().copied())
}

/// Returns the link-layer addresses, sorted, of all neighbours on `interface` that claim `address` within the time `within`. The question
/// is a probe of duplicate address detection (RFC 5227, RFC 4862), so no neighbour changes its cache. Always waits for the whole time.
///
/// # Errors
/// If the question cannot be asked.
pub fn claimants(interface: &Interface, address: IpAddr, within: Duration) -> Result<Vec<Mac>, NetworkError> {
    ask(interface, None, address, within, usize::MAX)
}

fn ask(
    interface: &Interface,
    from: Option<IpAddr>,
    address: IpAddr,
    within: Duration,
    enough: usize,
) -> Result<Vec<Mac>, NetworkError> {
    let mac = ethernet(interface)?;
    let run = || {
        let protocol = if address.is_ipv4() {
            libc::ETH_P_ARP
        } else {
            libc::ETH_P_IPV6
        };
        let mut socket = packet_socket(
            interface.index,
            u16::try_from(protocol).expect("16 bits on the wire"),
        )?;
        if address.is_ipv6() {
            socket.attach_filter(&advertisements())?;
        }
        let question = question(mac, from, address);
        let mut answers = Vec::new();
        for _ in 0..QUESTIONS {
            socket.send(&question)?;
            let until = Instant::now() + within / QUESTIONS;
            while answers.len() < enough
                && let Some(answer) = answer(&mut socket, address, until)?
            {
                if answer != mac && !answers.contains(&answer) {
                    answers.push(answer);
                }
            }
        }
        answers.sort();
        Ok(answers)
    };
    run().map_err(NetworkError::at(
        "ask the neighbours for",
        format!("{address} on {}", interface.name),
    ))
}

/// A filter that passes only neighbour advertisements. Without it, the other frames of a busy interface could crowd out the answer.
fn advertisements() -> [SockFilter; 6] {
    let load = |offset| SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, offset);
    let skip_unless = |value, skip| {
        SockFilter::new(
            (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            0,
            skip,
            value,
        )
    };
    let verdict = |length| SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, length);
    // Checks IPv6's next header, then the ICMPv6 type. Ethernet's header has 14 bytes, and IPv6's header has 40.
    [
        load(20),
        skip_unless(58, 3),
        load(54),
        skip_unless(136, 1),
        verdict(u32::MAX),
        verdict(0),
    ]
}

/// Waits for a neighbour that claims `address`, and returns its link-layer address. `None` if no neighbour claims `address` before `until`.
fn answer(socket: &mut Socket, address: IpAddr, until: Instant) -> io::Result<Option<Mac>> {
    let mut frame = [0; 2048];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut frame) {
            Ok(length) => match claim(&frame[..length]) {
                Some((mac, claimed)) if claimed == address => return Ok(Some(mac)),
                _ => {}
            },
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
}

fn ethernet(interface: &Interface) -> Result<Mac, NetworkError> {
    let answer = || io::Error::new(io::ErrorKind::Unsupported, "it is not an Ethernet interface");
    interface
        .mac
        .ok_or_else(|| NetworkError::new("use", interface.name.clone(), answer()))
}

/// A packet socket for whole frames of `protocol` (an Ethertype; 0 for none) on the interface with this index.
pub(crate) fn packet_socket(index: u32, protocol: u16) -> io::Result<Socket> {
    // With protocol 0 the socket receives nothing until it is bound. With another protocol it would receive frames of all interfaces.
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
    let index = i32::try_from(index).map_err(io::Error::other)?;
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: a sockaddr_ll is plain data, fits a sockaddr_storage, and all zeroes are a valid one.
    let link: &mut libc::sockaddr_ll = unsafe { storage.view_as() };
    link.sll_family = libc::AF_PACKET as libc::sa_family_t;
    link.sll_protocol = protocol.to_be();
    link.sll_ifindex = index;
    let length = u32::try_from(size_of::<libc::sockaddr_ll>()).expect("20 bytes");
    // SAFETY: the storage holds a sockaddr_ll of this length.
    let address = unsafe { SockAddr::new(storage, length) };
    socket.bind(&address)?;
    Ok(socket)
}
