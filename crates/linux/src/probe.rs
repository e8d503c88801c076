//! Checks whether other machines' kernels answer: ICMP echo (RFC 792, RFC 4443 §4.1).

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use socket2::{Domain, Protocol, Socket, Type};

use crate::network::packet::checksum;
use crate::process::random_seed;
use crate::repair::set_transparent;

/// Length in bytes of an echo request: type, code, checksum, identifier, sequence number, and the nonce.
const ECHO_LEN: usize = 16;
/// Maximum number of packets that one call reads from a machine, so that a flood of packets cannot block the caller.
const TAKEN_MAX: usize = 64;
/// Number of questions without an answer after which the socket is opened again. With a question every 5 ms, this is after 160 ms.
const UNANSWERED_MAX: u32 = 32;

/// Sends echo requests (questions) to one machine. An answer is an echo reply from that machine's address with our identifier, the
/// sequence number of a question, and our nonce. Only a machine that got a question knows the nonce.
pub struct Prober {
    path: Path,
    /// `None` while no route leads to the machine.
    socket: Option<Socket>,
    /// The identifier of our questions. It distinguishes them from those of other processes.
    id: u16,
    nonce: [u8; 8],
    /// Number of questions asked with this nonce.
    asked: u32,
    /// Number of questions asked since the last answer, or since the socket was opened.
    unanswered: u32,
}

/// The way that the questions take.
struct Path {
    /// The machine that is asked.
    peer: IpAddr,
    /// The interface that the questions leave and the answers arrive by. `None` for any interface.
    interface: Option<String>,
    /// The source address of the questions. `None` if the kernel chooses it.
    source: Option<IpAddr>,
}

impl Path {
    /// A socket that sends to the machine, and receives only packets from it. `None` if no route leads to the machine now.
    fn open(&self) -> io::Result<Option<Socket>> {
        let protocol = if self.peer.is_ipv4() {
            Protocol::ICMPV4
        } else {
            Protocol::ICMPV6
        };
        let peer = SocketAddr::new(self.peer, 0);
        let socket = Socket::new(Domain::for_address(peer), Type::RAW, Some(protocol))?;
        socket.set_nonblocking(true)?;
        if let Some(interface) = &self.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        if let Some(source) = self.source {
            let source = SocketAddr::new(source, 0);
            set_transparent(&socket, source)?;
            socket.bind(&source.into())?;
        }
        match socket.connect(&self.destination()?.into()) {
            Ok(()) => Ok(Some(socket)),
            Err(error) if is_without_route(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The socket address of the machine. A link-local address gets the scope of the interface.
    fn destination(&self) -> io::Result<SocketAddr> {
        Ok(match (self.peer, &self.interface) {
            (IpAddr::V6(peer), Some(interface)) if peer.is_unicast_link_local() => {
                let link = nix::net::if_::if_nametoindex(interface.as_str())?;
                SocketAddrV6::new(peer, 0, 0, link).into()
            }
            (peer, _) => SocketAddr::new(peer, 0),
        })
    }
}

impl Prober {
    /// A prober of `peer`.
    ///
    /// # Errors
    /// The error of `socket(2)`, which needs CAP_NET_RAW.
    pub fn open(peer: IpAddr) -> io::Result<Self> {
        Self::over(Path {
            peer,
            interface: None,
            source: None,
        })
    }

    /// A prober that asks from `vip` and receives only packets from `interface`. This node need not have the VIP yet.
    fn open_from(vip: IpAddr, interface: &str, host: IpAddr) -> io::Result<Self> {
        Self::over(Path {
            peer: host,
            interface: Some(interface.to_owned()),
            source: Some(vip),
        })
    }

    /// A prober that asks from the address of `interface`, and receives only packets from that interface.
    fn open_through(interface: &str, host: IpAddr) -> io::Result<Self> {
        Self::over(Path {
            peer: host,
            interface: Some(interface.to_owned()),
            source: None,
        })
    }

    fn over(path: Path) -> io::Result<Self> {
        Ok(Self {
            socket: path.open()?,
            path,
            id: (std::process::id() & 0xffff) as u16,
            nonce: (random_seed() as u64).to_be_bytes(),
            asked: 0,
            unanswered: 0,
        })
    }

    /// Opens the socket again if no route led to the machine, or if the machine has been silent for long. The kernel chooses the source
    /// address once for each socket. If the interface had no address then, or has got another one, the answers would never arrive.
    ///
    /// The new socket receives the answers to the old socket's questions too, because a raw socket has no port.
    fn renew(&mut self) -> io::Result<&Socket> {
        if self.unanswered > UNANSWERED_MAX {
            self.socket = None;
        }
        if self.socket.is_none() {
            self.unanswered = 0;
            self.socket = self.path.open()?;
        }
        self.socket
            .as_ref()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NetworkUnreachable))
    }

    /// Sends the next question.
    ///
    /// # Errors
    /// The error of `send(2)`, for example when the machine cannot be reached.
    pub fn ask(&mut self) -> io::Result<()> {
        self.asked = self.asked.wrapping_add(1);
        let mut echo = [0; ECHO_LEN];
        echo[0] = if self.is_v4() { 8 } else { 128 };
        echo[4..6].copy_from_slice(&self.id.to_be_bytes());
        echo[6..8].copy_from_slice(&low_bits(self.asked).to_be_bytes());
        echo[8..].copy_from_slice(&self.nonce);
        if self.is_v4() {
            let sum = checksum(&[&echo]); // the kernel computes the checksum of ICMPv6
            echo[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        self.unanswered += 1; // also if the kernel refuses: the source address may be gone
        self.renew()?.send(&echo).map(drop)
    }

    fn is_v4(&self) -> bool {
        self.path.peer.is_ipv4()
    }

    /// Whether the machine has answered since the last call.
    pub fn is_answered(&mut self) -> bool {
        self.answered().is_some()
    }

    /// The number of the newest question that the machine has answered since the last call. The first question is number 1.
    fn answered(&mut self) -> Option<u32> {
        let mut newest = None;
        let mut packet = [0; 128];
        for _ in 0..TAKEN_MAX {
            match self.socket.as_ref()?.read(&mut packet) {
                Ok(len) => newest = newest.max(self.question_of(&packet[..len])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {} // an ICMP "unreachable" gives one error, and more packets may follow
            }
        }
        if newest.is_some() {
            self.unanswered = 0;
        }
        newest
    }

    /// The number of the question that `packet` answers.
    fn question_of(&self, packet: &[u8]) -> Option<u32> {
        // A raw IPv4 socket also returns the IP header.
        let header = packet
            .first()
            .filter(|_| self.is_v4())
            .map_or(0, |first| usize::from(first & 15) * 4);
        let echo = packet.get(header..header + ECHO_LEN)?;
        let reply = if self.is_v4() { 0 } else { 129 };
        let sequence = u16::from_be_bytes([echo[6], echo[7]]);
        let asked_since = u32::from(low_bits(self.asked).wrapping_sub(sequence));
        let is_answer = echo[..2] == [reply, 0]
            && echo[4..6] == self.id.to_be_bytes()
            && echo[8..] == self.nonce
            && asked_since < self.asked;
        is_answer.then(|| self.asked - asked_since)
    }
}

/// Whether the error says that no route leads to the machine. For IPv6, the error of a machine without an address of a usable scope is
/// "address not available".
fn is_without_route(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(
        error.kind(),
        AddrNotAvailable | HostUnreachable | NetworkDown | NetworkUnreachable
    )
}

// The sequence number of a question: the low 16 bits of the question's number.
fn low_bits(number: u32) -> u16 {
    number as u16
}

/// Several outside hosts. If this machine asks from a VIP and gets an answer, packets for the VIP come to this machine, so the
/// neighbours' entries are correct. CoRAL verifies the takeover of an address in the same way. If this machine asks from the
/// interface's own address and gets an answer, the path through the interface works.
pub struct OutsideHosts {
    hosts: Vec<Prober>,
}

impl OutsideHosts {
    /// Probers that ask from `vip` through `interface`, one for each host of the VIP's address family. This node need not have the VIP
    /// yet.
    ///
    /// # Errors
    /// If the kernel refuses (CAP_NET_RAW and CAP_NET_ADMIN are needed), or if no host is of that family.
    pub fn open(vip: IpAddr, interface: &str, hosts: &[IpAddr]) -> io::Result<Self> {
        let like = hosts
            .iter()
            .copied()
            .filter(|host| host.is_ipv4() == vip.is_ipv4());
        let hosts: Vec<_> = like
            .map(|host| Prober::open_from(vip, interface, host))
            .collect::<io::Result<_>>()?;
        if hosts.is_empty() {
            let what = format!("no outside host has the address family of {vip}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(Self { hosts })
    }

    /// Probers that ask from the address of `interface`, one for each of `hosts`.
    ///
    /// # Errors
    /// If the kernel refuses (CAP_NET_RAW is needed).
    pub fn through(interface: &str, hosts: &[IpAddr]) -> io::Result<Self> {
        let hosts = hosts.iter().map(|&host| Prober::open_through(interface, host));
        Ok(Self {
            hosts: hosts.collect::<io::Result<_>>()?,
        })
    }

    /// Asks all hosts. Packets may be lost, so the caller repeats this until a host answers.
    ///
    /// # Errors
    /// The error of `send(2)`, if no host could be asked.
    pub fn ask(&mut self) -> io::Result<()> {
        let mut outcome = Ok(());
        let mut is_asked = false;
        for host in &mut self.hosts {
            match host.ask() {
                Ok(()) => is_asked = true,
                Err(error) => outcome = Err(error),
            }
        }
        if is_asked { Ok(()) } else { outcome }
    }

    /// Whether a host has answered since the last call.
    pub fn is_answered(&mut self) -> bool {
        self.answered().is_some()
    }

    /// The number of the newest question that a host has answered since the last call. The first question is number 1.
    pub fn answered(&mut self) -> Option<u32> {
        self.hosts.iter_mut().filter_map(Prober::answered).max() // reads from every host: unread answers would count at the next call
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn waits_for_answer(prober: &mut Prober, patience: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if prober.is_answered() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn a_kernel_answers_who_asks_and_nobody_else() {
        for peer in ["127.0.0.1", "::1"] {
            let peer = peer.parse().unwrap();
            let Ok(mut prober) = Prober::open(peer) else {
                eprintln!("skipped: a_kernel_answers_who_asks_and_nobody_else, {peer} (needs root)");
                continue;
            };
            let mut other = Prober {
                id: !prober.id,
                ..Prober::open(peer).unwrap()
            };
            prober.ask().unwrap();
            assert!(waits_for_answer(&mut prober, Duration::from_secs(10)), "{peer}");
            assert!(!waits_for_answer(&mut other, Duration::from_millis(20)), "{peer}");
        }
    }

    #[test]
    fn only_answers_to_questions_that_count_are_answers() {
        let Ok(mut prober) = Prober::open("::1".parse().unwrap()) else {
            eprintln!("skipped: only_answers_to_questions_that_count_are_answers (needs root)");
            return;
        };
        let answer = |sequence: u16| {
            let [high, low] = prober.id.to_be_bytes();
            let [first, second] = sequence.to_be_bytes();
            [&[129, 0, 0, 0, high, low, first, second], &prober.nonce[..]].concat()
        };
        assert_eq!(prober.question_of(&answer(0)), None, "nothing was asked");
        prober.asked = 2;
        let heard: Vec<_> = (0..5)
            .filter_map(|sequence| prober.question_of(&answer(sequence)))
            .collect();
        assert_eq!(heard, [1, 2]);
        prober.asked = 0x1_0001;
        assert_eq!(prober.question_of(&answer(0xffff)), Some(0xffff));
        assert_eq!(prober.question_of(&answer(1)), Some(0x1_0001));
        let right = answer(1);
        for at in [0, 1, 4, 5, 8, 15] {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            assert_eq!(prober.question_of(&wrong), None, "byte {at}");
        }
        for len in 0..right.len() {
            assert_eq!(prober.question_of(&right[..len]), None, "{len} bytes");
        }
        prober.ask().unwrap();
        assert!(waits_for_answer(&mut prober, Duration::from_secs(10)));
    }

    #[test]
    fn hosts_of_another_family_cannot_be_asked() {
        let v6 = ["2001:db8::1".parse().unwrap()];
        let error = OutsideHosts::open("10.0.0.1".parse().unwrap(), "lo", &v6).err();
        assert_eq!(
            error.map(|error| error.to_string()).as_deref(),
            Some("no outside host has the address family of 10.0.0.1")
        );
    }
}
