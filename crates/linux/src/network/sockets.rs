//! Lists and destroys the kernel's TCP sockets of a service, whichever process owns them, and reads what the kernel knows of them.
//!
//! A deposed node has live sockets of connections that the survivor continues. The processes that own these sockets would send something
//! sooner or later, at the latest a FIN. So this node tells the kernel to destroy the sockets (SOCK_DESTROY of `linux/sock_diag.h`). The
//! kernel sends a RST for each socket, so at that time the guards must drop the VIP's packets.

use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use libc::tcp_info;
use proto::census::{ClientTerms, Terms};
use rtnetlink::sys::protocols::NETLINK_SOCK_DIAG;
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr};

use super::NetworkError;
use super::message::{NLM_F_ACK, NLM_F_DUMP, NLMSG_DONE, first, message, messages};

use crate::wire::{MARK_DYING, MARK_END, MARK_SPEAK};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;

/// Bit set of the states 1 to 12 of the kernel's `tcp_states.h`, except CLOSE (7) and LISTEN (10).
const CONNECTED: u32 = 0b1_1011_0111_1110;
/// ESTABLISHED, and the states of a connection that is being closed: FIN-WAIT-1 and 2, CLOSE-WAIT, LAST-ACK, CLOSING.
const OPEN: u32 = 0b1011_0011_0010;
/// LISTEN.
const LISTENING: u32 = 1 << 10;
/// Size of `struct inet_diag_msg`. The attributes follow it.
const DIAG_MESSAGE: usize = 72;
/// Offset of the receive queue's length in that struct. For a listener: the number of connections that wait to be accepted.
const DIAG_RECEIVE_QUEUE: usize = 56;
/// Offset of the send queue's length. For a listener: the backlog.
const DIAG_SEND_QUEUE: usize = 60;
/// Offset of the socket's inode.
const DIAG_INODE: usize = 68;
/// The attribute with a socket's mark.
const DIAG_MARK: u16 = 15;
/// The attribute with `struct tcp_info`, and the bit that asks for it.
const DIAG_INFO: u16 = 2;
const WITH_INFO: u8 = 1 << (DIAG_INFO - 1);

/// Flags of `tcpi_options` (`linux/tcp.h`). `OPTION_MICROSECONDS`: the timestamps count microseconds. The timestamps of a restored socket
/// never count microseconds.
const OPTION_TIMESTAMPS: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_WINDOW_SCALE: u8 = 4;
const OPTION_MICROSECONDS: u8 = 64;
/// Bytes of each segment that the timestamps option takes (RFC 7323 appendix A).
const TIMESTAMPS_BYTES: u32 = 12;

/// `struct inet_diag_sockid`: ports and addresses in network byte order, interface, cookie.
const SOCKET_ID: usize = 48;

/// Maximum number of times that connections are listed and destroyed. New connections may come in meanwhile.
const ROUNDS: usize = 8;

/// Destroys all TCP connections whose local end is `vip`, in any state from the handshake to TIME-WAIT, of IPv4 and IPv6
/// sockets. The connections' owners get ECONNABORTED. Listeners stay. Returns the number of destroyed connections.
///
/// # Errors
/// The kernel's error. The call needs CAP_NET_ADMIN and a kernel with CONFIG_INET_DIAG_DESTROY.
pub fn destroy(vip: SocketAddr) -> Result<usize, NetworkError> {
    destroy_those(vip, ROUNDS, |_| true)
}

/// Destroys those of these connections whose owner has not read all that has come. It can read nothing more, so it begins no request that the
/// survivor executes. Call this when nothing can come any more. Returns the number of destroyed connections.
///
/// # Errors
/// As [`destroy`].
pub fn destroy_unread(vip: SocketAddr) -> Result<usize, NetworkError> {
    destroy_those(vip, 1, |found| found.unread > 0)
}

/// The families of the sockets that can have connections to `vip`. An IPv6 socket can also have connections to an IPv4 address. The kernel
/// looks through all its sockets for each list, which takes milliseconds if there are thousands.
fn families(vip: SocketAddr) -> impl Iterator<Item = u8> {
    let of_ipv4 = vip.is_ipv4().then_some(libc::AF_INET);
    let all = of_ipv4.into_iter().chain([libc::AF_INET6]);
    all.map(|family| u8::try_from(family).expect("small"))
}

/// Lists and destroys connections in at most `rounds` rounds. One round leaves those that have come meanwhile.
fn destroy_those(
    vip: SocketAddr,
    rounds: usize,
    is_meant: impl Fn(&ListedSocket) -> bool,
) -> Result<usize, NetworkError> {
    let run = || {
        let diag = SockDiag::open()?;
        let is_one = |found: &ListedSocket| {
            (found.at.ip(), found.at.port()) == (vip.ip(), vip.port()) && is_meant(found)
        };
        let mut destroyed = 0;
        for _ in 0..rounds {
            let mut found = 0;
            for family in families(vip) {
                for ListedSocket { id, .. } in diag
                    .list(family, 0, CONNECTED, vip.port())?
                    .into_iter()
                    .filter(is_one)
                {
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
    run().map_err(NetworkError::at("destroy the connections of", vip))
}

/// Destroys those connections between `clients` and `vip` whose server process has died, or that are relayed to an application. A client
/// may already have a new connection from the same port to the application itself; that connection stays.
///
/// # Errors
/// The kernel's error.
pub fn destroy_dying(vip: SocketAddr, clients: &[SocketAddr]) -> Result<usize, NetworkError> {
    let run = || -> io::Result<usize> {
        let diag = SockDiag::open()?;
        let mut destroyed = 0;
        for &client in clients {
            let (family, id) = connection(vip, client);
            // The found id has the socket's cookie. So only this socket is destroyed, and not a new one with the same addresses.
            if let Some(found) = diag
                .look_up(family, 0, &id)?
                .filter(FoundSocket::is_dying_or_relayed)
            {
                destroyed += usize::from(diag.destroy(found.family, &found.id)?);
            }
        }
        Ok(destroyed)
    };
    run().map_err(NetworkError::at("destroy the connections of", vip))
}

/// Those of `clients` that have no connection with `vip` in this kernel.
///
/// # Errors
/// The kernel's error.
pub fn gone(vip: SocketAddr, clients: &[SocketAddr]) -> Result<Vec<SocketAddr>, NetworkError> {
    let run = || -> io::Result<Vec<SocketAddr>> {
        let diag = SockDiag::open()?;
        let mut gone = Vec::new();
        for &client in clients {
            let (family, id) = connection(vip, client);
            let is_here = |found: &FoundSocket| CONNECTED >> found.state & 1 == 1;
            gone.extend(
                diag.look_up(family, 0, &id)?
                    .filter(is_here)
                    .is_none()
                    .then_some(client),
            );
        }
        Ok(gone)
    };
    run().map_err(NetworkError::at("look for the connections of", vip))
}

/// Destroys the connections between `clients` and `vip`, whoever owns them, without sending anything beyond this node's guards. Returns
/// the kernel's numbers of the destroyed sockets ([`cookie`](crate::application::cookie)).
///
/// # Errors
/// The kernel's error.
pub fn destroy_clients(vip: SocketAddr, clients: &[SocketAddr]) -> Result<Vec<u64>, NetworkError> {
    let run = || -> io::Result<Vec<u64>> {
        let diag = SockDiag::open()?;
        let mut destroyed = Vec::new();
        for &client in clients {
            let (family, id) = connection(vip, client);
            let is_listener = |found: &FoundSocket| LISTENING >> found.state & 1 == 1;
            if let Some(found) = diag.look_up(family, 0, &id)?.filter(|found| !is_listener(found))
                && diag.destroy(found.family, &found.id)?
            {
                destroyed.push(cookie_of(&found.id));
            }
        }
        Ok(destroyed)
    };
    run().map_err(NetworkError::at("destroy the connections of", vip))
}

/// A socket that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListeningSocket {
    /// Its address.
    pub address: SocketAddr,
    /// The kernel's number of the socket. No later socket gets the same number.
    pub cookie: u64,
    /// The socket's inode, by which `/proc` names it.
    pub inode: u32,
}

/// The listeners on `port`, except those of dying processes. The kernel still lists such listeners until it has closed them, but the
/// program `death` has marked them.
///
/// # Errors
/// The kernel's error. Without CAP_NET_ADMIN there is no error, but the kernel does not report marks. Then the listeners of dying processes
/// are listed too.
pub fn listeners(port: u16) -> Result<Vec<ListeningSocket>, NetworkError> {
    let run = || {
        let diag = SockDiag::open()?;
        let mut listeners = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let found = diag.list(u8::try_from(family).expect("small"), 0, LISTENING, port)?;
            let alive = found.into_iter().filter(|found| found.mark != MARK_DYING);
            listeners.extend(alive.map(|found| ListeningSocket {
                address: found.at,
                cookie: cookie_of(&found.id),
                inode: found.inode,
            }));
        }
        Ok(listeners)
    };
    run().map_err(NetworkError::at("list", "listeners"))
}

/// The clients that have an open or half-closed connection to `vip`, each with the connection's terms as the kernel knows them. The list
/// is sorted by the clients' addresses and contains only addresses greater than `after`. Leaves out a connection if its owner has closed it
/// and the client has acknowledged all output.
///
/// # Errors
/// The kernel's error.
pub fn open_behind(
    vip: SocketAddr,
    after: Option<SocketAddr>,
) -> Result<Vec<(SocketAddr, Terms)>, NetworkError> {
    let run = || -> io::Result<Vec<(SocketAddr, Terms)>> {
        let diag = SockDiag::open()?;
        let mut open = Vec::new();
        for family in families(vip) {
            let found = diag.list(family, WITH_INFO, OPEN, vip.port())?;
            let ours = found.into_iter().filter(|found| found.at.ip() == vip.ip());
            open.extend(ours.filter_map(|found| Some((remote(family, &found.id), found.terms?))));
        }
        open.retain(|(client, _)| Some(*client) > after);
        open.sort_unstable_by_key(|(client, _)| *client);
        Ok(open)
    };
    run().map_err(NetworkError::at("list the connections of", vip))
}

/// The terms on which `clients` and `vip` agreed in their handshakes. No later packet shows these terms. `None` for a client without an
/// open or half-closed connection.
///
/// # Errors
/// The kernel's error.
pub fn terms(vip: SocketAddr, clients: &[SocketAddr]) -> Result<Vec<ClientTerms>, NetworkError> {
    let run = || -> io::Result<Vec<ClientTerms>> {
        let diag = SockDiag::open()?;
        let told = |&client: &SocketAddr| Ok((client, diag.terms(vip, client)?));
        clients.iter().map(told).collect()
    };
    run().map_err(NetworkError::at("look up the connections of", vip))
}

/// Number of further connections that fit into the accept queue of a listener at `application`: the listener that would
/// accept a connection from `client`. `None` if there is no such listener.
///
/// # Errors
/// The kernel's error.
pub fn room_in_queue(application: SocketAddr, client: SocketAddr) -> io::Result<Option<u32>> {
    let (family, id) = connection(application, client);
    let known = SockDiag::open()?.look_up(family, 0, &id)?;
    let listener = known.filter(|known| LISTENING >> known.state & 1 == 1);
    Ok(listener.and_then(|listener| {
        let number = |at: usize| Some(u32::from_ne_bytes(*listener.message.get(at..)?.first_chunk()?));
        // The kernel queues one connection more than the backlog. That place is left for a handshake that is not finished yet.
        let (queued, backlog) = (number(DIAG_RECEIVE_QUEUE)?, number(DIAG_SEND_QUEUE)?);
        Some(backlog.max(1).saturating_sub(queued))
    }))
}

/// `NETLINK_SOCK_DIAG` in the calling thread's network namespace.
struct SockDiag {
    socket: Socket,
}

type SocketId = [u8; SOCKET_ID];

struct ListedSocket {
    id: SocketId,
    /// Its local end.
    at: SocketAddr,
    mark: u32,
    inode: u32,
    /// Bytes in the receive queue, and the FIN. For a listener: connections that wait to be accepted.
    unread: u32,
    /// `None` if the terms were not asked for, or if the socket has none.
    terms: Option<Terms>,
}

impl SockDiag {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddr::new(0, 0))?;
        Ok(Self { socket })
    }

    /// Lists the sockets of `family` whose local port is `port` and whose state is in the bit set `states`. `extensions` selects the
    /// attributes that the kernel reports.
    fn list(&self, family: u8, extensions: u8, states: u32, port: u16) -> io::Result<Vec<ListedSocket>> {
        let mut like = [0; SOCKET_ID];
        like[..2].copy_from_slice(&port.to_be_bytes());
        let question = request(
            SOCK_DIAG_BY_FAMILY,
            NLM_F_DUMP,
            (family, extensions),
            states,
            &like,
        );
        self.socket.send(&question, 0)?;
        let mut found = Vec::new();
        loop {
            let (answers, _) = self.socket.recv_from_full()?;
            for answer in messages(&answers) {
                match answer.kind {
                    // `struct inet_diag_msg`: four bytes, the id, numbers.
                    SOCK_DIAG_BY_FAMILY => {
                        let id: SocketId = answer.bytes(4);
                        let at = local(family, &id);
                        if at.port() == port {
                            found.push(ListedSocket {
                                id,
                                at,
                                mark: mark_of(answer.body),
                                inode: u32::from_ne_bytes(answer.bytes(DIAG_INODE)),
                                unread: u32::from_ne_bytes(answer.bytes(DIAG_RECEIVE_QUEUE)),
                                terms: attribute(answer.body, DIAG_INFO).and_then(terms_of),
                            });
                        }
                    }
                    NLMSG_DONE => return Ok(found),
                    _ => answer.outcome()?,
                }
            }
        }
    }

    /// Destroys a socket. False if the socket has ended meanwhile.
    fn destroy(&self, family: u8, id: &SocketId) -> io::Result<bool> {
        self.socket
            .send(&request(SOCK_DESTROY, NLM_F_ACK, (family, 0), CONNECTED, id), 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        match first(&answer)?.outcome() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// The terms of the client's connection. `None` if the connection is neither open nor half closed.
    fn terms(&self, vip: SocketAddr, client: SocketAddr) -> io::Result<Option<Terms>> {
        let (family, id) = connection(vip, client);
        let known = self.look_up(family, WITH_INFO, &id)?;
        let open = known.filter(|known| OPEN >> known.state & 1 == 1);
        Ok(open.and_then(|known| terms_of(attribute(&known.message, DIAG_INFO)?)))
    }

    /// Looks up the socket of a connection by its hash. If there is no such connection, the kernel returns the listener that would take it.
    fn look_up(&self, family: u8, extensions: u8, id: &SocketId) -> io::Result<Option<FoundSocket>> {
        let question = request(SOCK_DIAG_BY_FAMILY, 0, (family, extensions), u32::MAX, id);
        self.socket.send(&question, 0)?;
        let (answers, _) = self.socket.recv_from_full()?;
        let answer = first(&answers)?;
        if answer.kind != SOCK_DIAG_BY_FAMILY {
            return match answer.outcome() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                outcome => outcome.map(|()| None),
            };
        }
        let [family, state] = answer.bytes(0);
        Ok(Some(FoundSocket {
            family,
            state,
            id: answer.bytes(4),
            message: answer.body.to_vec(),
        }))
    }
}

fn cookie_of(id: &SocketId) -> u64 {
    u64::from_ne_bytes(*id.last_chunk().expect("an id ends with the cookie"))
}

/// A socket that was looked up.
struct FoundSocket {
    /// The socket's own family, which is also the form of its id. For an IPv4 connection of an IPv6 socket this is AF_INET6.
    family: u8,
    state: u8,
    id: SocketId,
    message: Vec<u8>,
}

impl FoundSocket {
    /// Whether this is a connection of a dead process, whose socket the program `death` has marked, or a relayed connection.
    fn is_dying_or_relayed(&self) -> bool {
        let marks = [MARK_DYING, MARK_SPEAK, MARK_END];
        CONNECTED >> self.state & 1 == 1 && marks.contains(&mark_of(&self.message))
    }
}

/// Family and id of a connection. The id matches any cookie.
fn connection(vip: SocketAddr, client: SocketAddr) -> (u8, SocketId) {
    let mut id = [0; SOCKET_ID];
    for (end, port, address) in [(vip, 0, 4), (client, 2, 20)] {
        id[port..port + 2].copy_from_slice(&end.port().to_be_bytes());
        match end.ip() {
            IpAddr::V4(ip) => id[address..address + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => id[address..address + 16].copy_from_slice(&ip.octets()),
        }
    }
    id[SOCKET_ID - 8..].fill(0xff);
    let family = if vip.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    (u8::try_from(family).expect("small"), id)
}

/// The terms in a `struct tcp_info`. Path MTU discovery may have made segments smaller than was agreed on; the smaller size is kept.
fn terms_of(info: &[u8]) -> Option<Terms> {
    let number = |at: usize| {
        let bytes = info.get(at..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let options = *info.get(offset_of!(tcp_info, tcpi_options))?;
    let has = |option| options & option != 0;
    let timestamps = has(OPTION_TIMESTAMPS);
    let size = number(offset_of!(tcp_info, tcpi_snd_mss))?.min(number(offset_of!(tcp_info, tcpi_advmss))?);
    let mss = size + if timestamps { TIMESTAMPS_BYTES } else { 0 };
    let shifts = *info.get(offset_of!(tcp_info, tcpi_snd_rcv_wscale))?;
    let (first, second) = (shifts & 0xf, shifts >> 4);
    // Two bit fields of four bits each. Their order is the machine's byte order.
    let scales = if cfg!(target_endian = "little") {
        (first, second)
    } else {
        (second, first)
    };
    Some(Terms {
        mss: mss.try_into().unwrap_or(u16::MAX),
        window_scale: has(OPTION_WINDOW_SCALE).then_some(scales),
        sack: has(OPTION_SACK),
        timestamps,
        microseconds: options & OPTION_MICROSECONDS != 0,
    })
}

/// `struct inet_diag_req_v2`: family, protocol, extensions, states, id.
fn request(kind: u16, flags: u16, (family, extensions): (u8, u8), states: u32, id: &SocketId) -> Vec<u8> {
    let tcp = u8::try_from(libc::IPPROTO_TCP).expect("6");
    let mut body = vec![family, tcp, extensions, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id);
    message(kind, flags, &body)
}

/// The local end of a socket. An IPv6 socket with an IPv4 connection has an IPv4 address here.
fn local(family: u8, id: &SocketId) -> SocketAddr {
    end(family, id, 0, 4)
}

/// The remote end of a socket. An IPv6 socket with an IPv4 connection has an IPv4 address here.
fn remote(family: u8, id: &SocketId) -> SocketAddr {
    end(family, id, 2, 20)
}

/// The end whose port and address are at these offsets of `id`.
fn end(family: u8, id: &SocketId, port: usize, address: usize) -> SocketAddr {
    let port = u16::from_be_bytes([id[port], id[port + 1]]);
    let address: [u8; 16] = id[address..address + 16].try_into().expect("16 bytes");
    let address = if i32::from(family) == libc::AF_INET {
        IpAddr::from([address[0], address[1], address[2], address[3]])
    } else {
        Ipv6Addr::from(address).to_canonical()
    };
    SocketAddr::new(address, port)
}

/// The mark of a socket. 0 if the kernel does not report the mark to this process.
fn mark_of(body: &[u8]) -> u32 {
    let mark = attribute(body, DIAG_MARK).and_then(<[u8]>::first_chunk);
    mark.map_or(0, |&bytes| u32::from_ne_bytes(bytes))
}

/// The value of the attribute of type `wanted` in `body`. The attributes follow the `struct inet_diag_msg`. Each begins with its length and
/// type.
fn attribute(body: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut rest = body.get(DIAG_MESSAGE..)?;
    loop {
        let head: [u8; 4] = rest.first_chunk().copied()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]])).max(head.len());
        if u16::from_ne_bytes([head[2], head[3]]) == wanted {
            return rest.get(4..length);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}
