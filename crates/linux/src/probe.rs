//! Asking another machine's kernel whether it is there: ICMP echo (RFC 792, RFC 4443 §4.1).

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

const ECHO_LEN: usize = 8;
/// Packets of the other machine taken at a time: a flood of them must not keep the caller from its work.
const TAKEN_MAX: usize = 64;

/// A way to ask one machine.
pub struct Prober {
    socket: Socket,
    is_v4: bool,
    /// Tells our questions from others'.
    id: u16,
}

impl Prober {
    /// A prober of `peer`.
    ///
    /// # Errors
    /// What `socket(2)` says: the right to it is CAP_NET_RAW.
    pub fn open(peer: IpAddr) -> io::Result<Self> {
        let is_v4 = peer.is_ipv4();
        let protocol = if is_v4 { Protocol::ICMPV4 } else { Protocol::ICMPV6 };
        let address = SocketAddr::new(peer, 0);
        let socket = Socket::new(Domain::for_address(address), Type::RAW, Some(protocol))?;
        socket.set_nonblocking(true)?;
        socket.connect(&address.into())?; // only what comes from there is received
        let id = (std::process::id() & 0xffff) as u16;
        Ok(Self { socket, is_v4, id })
    }

    /// Asks.
    ///
    /// # Errors
    /// What `send(2)` says; a machine that is away is such an error, too.
    pub fn ask(&self) -> io::Result<()> {
        let mut echo = [0; ECHO_LEN];
        echo[0] = if self.is_v4 { 8 } else { 128 };
        echo[4..6].copy_from_slice(&self.id.to_be_bytes());
        if self.is_v4 {
            // One's complement of the sum of 16-bit words, two of which are not 0 (RFC 1071); the kernel does ICMPv6's.
            let (sum, carry) = 0x0800_u16.overflowing_add(self.id);
            echo[2..4].copy_from_slice(&(!(sum + u16::from(carry))).to_be_bytes());
        }
        self.socket.send(&echo).map(drop)
    }

    /// Whether it has answered since the last call.
    pub fn is_answered(&self) -> bool {
        let mut is_answered = false;
        let mut packet = [0; 128];
        for _ in 0..TAKEN_MAX {
            match (&self.socket).read(&mut packet) {
                Ok(len) => is_answered |= self.is_answer(&packet[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {} // "unreachable" is reported once
            }
        }
        is_answered
    }

    fn is_answer(&self, packet: &[u8]) -> bool {
        // An IPv4 raw socket gives the IP header too.
        let header = packet
            .first()
            .filter(|_| self.is_v4)
            .map_or(0, |first| usize::from(first & 15) * 4);
        let reply = if self.is_v4 { 0 } else { 129 };
        packet
            .get(header..header + ECHO_LEN)
            .is_some_and(|echo| echo[0] == reply && echo[4..6] == self.id.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn waits_for_answer(prober: &Prober, patience: Duration) -> bool {
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
            let Ok(prober) = Prober::open(peer) else {
                eprintln!("skipped: a_kernel_answers_who_asks_and_nobody_else, {peer} (needs root)");
                continue;
            };
            let other = Prober {
                id: !prober.id,
                ..Prober::open(peer).unwrap()
            };
            prober.ask().unwrap();
            assert!(waits_for_answer(&prober, Duration::from_secs(10)), "{peer}");
            assert!(!waits_for_answer(&other, Duration::from_millis(20)), "{peer}");
        }
    }
}
