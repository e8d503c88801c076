//! The source address of a datagram socket.
//!
//! The kernel chooses it once, when the socket is connected. It stays when the interface gets another address, and when another interface
//! was chosen only because the right one had no address yet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::libc;

/// This machine's address towards `to`.
///
/// # Errors
/// If no route leads there.
pub fn own_address(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// Connects a socket, which may be connected already, to `to`. The kernel chooses the source address again. A socket that is bound to a port
/// keeps the port.
///
/// # Errors
/// If no route leads there. The socket is not connected then.
pub fn connect_anew(socket: &UdpSocket, to: SocketAddr) -> io::Result<()> {
    // SAFETY: a sockaddr of zeroes is valid: it has plain integers only.
    let mut nobody: libc::sockaddr = unsafe { std::mem::zeroed() };
    nobody.sa_family = libc::AF_UNSPEC as libc::sa_family_t; // ends the connection: connect(2)
    let len = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and `len` bytes of `nobody` are valid.
    if unsafe { libc::connect(socket.as_raw_fd(), &raw const nobody, len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    socket.connect(to)
}
