//! Ending the sockets of a service without a word to its clients.
//!
//! A node that was deposed has live sockets of connections that the survivor goes on with. Their owner would say something
//! sooner or later, a FIN at the latest; so the kernel is told to forget them (SOCK_DESTROY of `linux/sock_diag.h`). It
//! would send a RST for each, which is why the guards must be closed at that time.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rtnetlink::sys::protocols::NETLINK_SOCK_DIAG;
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr};

use super::Error;
use super::message::{NLM_F_ACK, NLM_F_DUMP, NLMSG_DONE, first, message, messages};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;

/// All of the kernel's `tcp_states.h` but CLOSE (7) and LISTEN (10).
const CONNECTED: u32 = 0b1_1011_0111_1110;

/// `struct inet_diag_sockid`: ports and addresses in network byte order, interface, cookie.
const SOCKET_ID: usize = 48;

/// New connections may come in while the present ones are destroyed: so often they are looked for.
const ROUNDS: usize = 8;

/// Destroys all TCP connections whose local end is `vip`, in any state from the handshake to TIME-WAIT, of IPv4 and IPv6
/// sockets. Listeners stay. Their owners get ECONNABORTED. Returns how many there were.
///
/// # Errors
/// What the kernel says: the right to it is CAP_NET_ADMIN, and CONFIG_INET_DIAG_DESTROY must be there.
pub fn destroy(vip: SocketAddr) -> Result<usize, Error> {
    let run = || {
        let diag = SockDiag::open()?;
        let mut destroyed = 0;
        for _ in 0..ROUNDS {
            let mut found = 0;
            for family in [libc::AF_INET, libc::AF_INET6] {
                let family = u8::try_from(family).expect("small");
                for id in diag.connections(family, vip)? {
                    found += 1;
                    destroyed += usize::from(diag.destroy(family, &id)?);
                }
            }
            if found == 0 {
                break;
            }
        }
        Ok(destroyed)
    };
    run().map_err(Error::at("destroy the connections of", vip))
}

/// `NETLINK_SOCK_DIAG` in the calling thread's network namespace.
struct SockDiag {
    socket: Socket,
}

type SocketId = [u8; SOCKET_ID];

impl SockDiag {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddr::new(0, 0))?;
        Ok(Self { socket })
    }

    /// The connections of `family`'s sockets with `vip`.
    fn connections(&self, family: u8, vip: SocketAddr) -> io::Result<Vec<SocketId>> {
        let mut like = [0; SOCKET_ID];
        like[..2].copy_from_slice(&vip.port().to_be_bytes());
        let question = request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, &like);
        self.socket.send(&question, 0)?;
        let mut found = Vec::new();
        loop {
            let (answers, _) = self.socket.recv_from_full()?;
            for answer in messages(&answers) {
                match answer.kind {
                    // `struct inet_diag_msg`: four bytes, the id, numbers.
                    SOCK_DIAG_BY_FAMILY => {
                        let id: SocketId = answer.bytes(4);
                        if local(family, &id) == (vip.ip(), vip.port()) {
                            found.push(id);
                        }
                    }
                    NLMSG_DONE => return Ok(found),
                    _ => answer.outcome()?,
                }
            }
        }
    }

    /// False if it has ended meanwhile.
    fn destroy(&self, family: u8, id: &SocketId) -> io::Result<bool> {
        self.socket
            .send(&request(SOCK_DESTROY, NLM_F_ACK, family, id), 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        match first(&answer)?.outcome() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }
}

/// `struct inet_diag_req_v2`: family, protocol, extensions, states, id.
fn request(kind: u16, flags: u16, family: u8, id: &SocketId) -> Vec<u8> {
    let tcp = u8::try_from(libc::IPPROTO_TCP).expect("6");
    let mut body = vec![family, tcp, 0, 0];
    body.extend(CONNECTED.to_ne_bytes());
    body.extend(id);
    message(kind, flags, &body)
}

/// The local end of a socket. One of IPv6 that serves IPv4 has an IPv4 address.
fn local(family: u8, id: &SocketId) -> (IpAddr, u16) {
    let port = u16::from_be_bytes([id[0], id[1]]);
    let address: [u8; 16] = id[4..20].try_into().expect("16 bytes");
    let address = if i32::from(family) == libc::AF_INET {
        IpAddr::from([address[0], address[1], address[2], address[3]])
    } else {
        Ipv6Addr::from(address).to_canonical()
    };
    (address, port)
}
