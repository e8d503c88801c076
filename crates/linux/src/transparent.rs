//! Connects to the local application from the real client's address.

use std::io;
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Protocol, Socket, Type};

use crate::network::RELAY_MARK;
use crate::repair::set_transparent;

/// Begins a connection to `application` from the address and port of `client`. Uses another port if a program on this machine already has
/// the client's port, or if the kernel still knows an earlier connection between the two addresses. The stream is non-blocking and may not be
/// connected yet. The network must lead the application's replies back ([`Network::prepare`](crate::network::Network::prepare)).
///
/// # Errors
/// The kernel's error.
pub fn connect_as(client: SocketAddr, application: SocketAddr) -> io::Result<TcpStream> {
    match begin(client, application) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            begin(SocketAddr::new(client.ip(), 0), application)
        }
        begun => begun,
    }
}

fn begin(client: SocketAddr, application: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(application),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    socket.set_mark(RELAY_MARK)?;
    set_transparent(&socket, application)?;
    socket.set_reuse_address(true)?;
    match socket.bind(&client.into()) {
        // The client is a program on this node, and has that port itself.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            socket.bind(&SocketAddr::new(client.ip(), 0).into())?;
        }
        bound => bound?,
    }
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&application.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}
