//! One end of a TCP or Multipath TCP connection, for `bench paths`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use socket2::{Domain, Protocol, Socket, Type};

use super::figures::{PERIOD, PeerFigures, content};

/// TCP port of the end that listens.
pub const TCP_PEER_PORT: u16 = 5001;
/// Time without progress after which an end gives a transfer up.
pub const GIVES_UP: Duration = Duration::from_secs(15);

/// An end that sends or receives a number of bytes.
#[derive(Clone, Debug, Args)]
pub struct TcpPeerOptions {
    /// Number of bytes to send or to receive.
    #[arg(long)]
    bytes: u64,
    /// Largest number of bytes of one write or read.
    #[arg(long)]
    message: usize,
    /// The local address at which a receiver listens. A sender does not use this option.
    #[arg(long)]
    via: IpAddr,
    /// The peer's address. With this option, this end connects to the peer and sends. Without it, this end listens and receives.
    #[arg(long)]
    to: Option<IpAddr>,
    /// The port to connect to. A receiver always listens at the default port.
    #[arg(long, default_value_t = TCP_PEER_PORT)]
    port: u16,
    /// Use Multipath TCP.
    #[arg(long)]
    mptcp: bool,
}

/// Runs the end, and prints its figures. A receiver that gets nothing for [`GIVES_UP`] prints the figures of the bytes that it has received
/// so far.
///
/// # Errors
/// If the connection cannot be made.
pub fn main(options: &TcpPeerOptions) -> Result<()> {
    let protocol = if options.mptcp {
        Protocol::from(nix::libc::IPPROTO_MPTCP)
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).context("a socket")?;
    socket.set_reuse_address(true)?;
    let figures = if let Some(to) = options.to {
        say!("ready");
        let begun = Instant::now();
        socket
            .connect(&SocketAddr::new(to, options.port).into())
            .context("connect")?;
        send(options, socket.into(), begun)
    } else {
        socket
            .bind(&SocketAddr::new(options.via, TCP_PEER_PORT).into())
            .context("bind")?;
        socket.listen(1).context("listen")?;
        say!("ready");
        let (stream, _) = socket.accept().context("accept")?;
        receive(options, stream.into(), Instant::now())
    };
    say!("{}", figures.line()?);
    Ok(())
}

fn send(options: &TcpPeerOptions, mut stream: TcpStream, begun: Instant) -> PeerFigures {
    let content = content(options.message);
    let mut figures = PeerFigures::default();
    let _ = stream.set_write_timeout(Some(GIVES_UP));
    let _ = stream.set_read_timeout(Some(GIVES_UP));
    while figures.moved < options.bytes {
        let length = (options.bytes - figures.moved).min(options.message as u64) as usize;
        let at = figures.moved as usize % PERIOD;
        match stream.write(&content[at..at + length]) {
            Ok(written) => figures.moved += written as u64,
            Err(_) => break,
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read(&mut [0]);
    figures.took = begun.elapsed();
    figures
}

fn receive(options: &TcpPeerOptions, mut stream: TcpStream, begun: Instant) -> PeerFigures {
    let content = content(options.message);
    let mut buffer = vec![0; options.message];
    let mut figures = PeerFigures::default();
    let _ = stream.set_read_timeout(Some(GIVES_UP));
    let mut last = begun;
    while figures.moved < options.bytes {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                let at = figures.moved as usize % PERIOD;
                figures.wrong += u64::from(content[at..at + length] != buffer[..length]);
                figures.moved += length as u64;
                figures.gap = figures.gap.max(last.elapsed());
                last = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => {
                figures.gap = figures.gap.max(last.elapsed());
                break;
            }
        }
    }
    figures.took = begun.elapsed();
    figures
}
