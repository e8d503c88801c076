//! One TCP connection at an end of a tunnel.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::{Buf as _, Bytes, BytesMut};
use socket2::{Domain, SockRef, Socket, Type};

use super::poller::Readiness;

/// Maximum number of queued pieces that one writev(2) writes.
const PIECES: usize = 64;
/// Pieces with fewer bytes than this are joined in the queue. Each piece takes some memory besides its bytes, and no window counts this
/// memory.
const SMALL: usize = 4096;

/// A TCP socket, and the data that is still to be written to it.
pub struct TunnelLink {
    stream: TcpStream,
    /// The TCP handshake is not complete yet.
    is_connecting: bool,
    /// Data from the peer that the program's socket has not taken yet. The connection's window bounds its size.
    unwritten: VecDeque<Bytes>,
    /// Small pieces, joined. Their place is after the data in `unwritten`.
    small: BytesMut,
    /// The local program has closed its sending direction.
    has_ended: bool,
    /// The peer has closed its sending direction. The local program gets the FIN after all of `unwritten`.
    ends: bool,
    was_told: bool,
    /// epoll reported the socket as readable or writable, and no read or write has blocked since.
    may_read: bool,
    may_write: bool,
    /// The connection has failed, or both directions have ended.
    hangs: bool,
}

/// Result of reading a link.
pub enum LinkRead {
    /// Data.
    Data(Bytes),
    /// Nothing now.
    Nothing,
    /// The local program has closed its sending direction.
    End,
}

impl TunnelLink {
    /// A connection that was accepted.
    ///
    /// # Errors
    /// The kernel's error: the client is gone already.
    pub fn accepted(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::new(stream, false)
    }

    /// Begins to connect.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn connect(to: SocketAddr) -> io::Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(to), kind, None)?;
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(nix::errno::Errno::EINPROGRESS as i32) => Err(error),
            _ => Self::new(socket.into(), true),
        }
    }

    fn new(stream: TcpStream, is_connecting: bool) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            is_connecting,
            unwritten: VecDeque::new(),
            small: BytesMut::new(),
            has_ended: false,
            ends: false,
            was_told: false,
            may_read: false,
            may_write: false,
            hangs: false,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Records a change that epoll reported.
    pub const fn on_ready(&mut self, readiness: Readiness) {
        self.may_read |= readiness.reads;
        self.may_write |= readiness.writes;
        self.hangs |= readiness.hangs;
    }

    pub const fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// Whether there may be data to read.
    pub const fn can_read(&self) -> bool {
        self.may_read && !self.is_connecting && !self.has_ended
    }

    /// Whether both directions have ended, and the local program has got all data.
    pub const fn is_over(&self) -> bool {
        self.has_ended && self.was_told
    }

    /// Returns whether the TCP handshake is complete now.
    ///
    /// # Errors
    /// The reason why connect(2) has failed.
    pub fn finish_connecting(&mut self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => {
                self.is_connecting = false;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Checks for a failure without reading. Used while the tunnel must not read the socket.
    ///
    /// # Errors
    /// The program has aborted the connection.
    pub fn check(&self) -> io::Result<()> {
        if !self.hangs {
            return Ok(());
        }
        match self.stream.take_error()? {
            Some(error) => Err(error),
            // epoll also reports a hang-up when both directions have ended.
            None if self.was_told => Ok(()),
            None => Err(ErrorKind::ConnectionReset.into()),
        }
    }

    /// Reads at most `room` bytes.
    ///
    /// # Errors
    /// The program has aborted the connection.
    pub fn read(&mut self, buffer: &mut [u8], room: usize) -> io::Result<LinkRead> {
        let room = room.min(buffer.len());
        match self.stream.read(&mut buffer[..room]) {
            Ok(0) => {
                self.has_ended = true;
                Ok(LinkRead::End)
            }
            Ok(length) => Ok(LinkRead::Data(Bytes::copy_from_slice(&buffer[..length]))),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.may_read = false;
                Ok(LinkRead::Nothing)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(LinkRead::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Queues data that came from the peer.
    pub fn push(&mut self, data: Bytes) {
        if data.len() < SMALL {
            self.small.extend_from_slice(&data);
            if self.small.len() < SMALL {
                return;
            }
        }
        if !self.small.is_empty() {
            self.unwritten.push_back(self.small.split().freeze());
        }
        if data.len() >= SMALL {
            self.unwritten.push_back(data);
        }
    }

    /// Records that the peer has closed its sending direction.
    pub const fn end(&mut self) {
        self.ends = true;
    }

    /// Writes as much as the socket takes. Returns the number of written bytes.
    ///
    /// # Errors
    /// The program has aborted the connection.
    pub fn write(&mut self) -> io::Result<usize> {
        let mut total = 0;
        if self.is_connecting || !self.may_write {
            return Ok(0);
        }
        if !self.small.is_empty() {
            self.unwritten.push_back(self.small.split().freeze());
        }
        while !self.unwritten.is_empty() {
            let pieces: Vec<IoSlice<'_>> = self
                .unwritten
                .iter()
                .take(PIECES)
                .map(|piece| IoSlice::new(piece))
                .collect();
            let mut written = match self.stream.write_vectored(&pieces) {
                Ok(written) => written,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.may_write = false;
                    break;
                }
                Err(error) => return Err(error),
            };
            total += written;
            while let Some(first) = self.unwritten.front_mut() {
                let part = written.min(first.len());
                first.advance(part);
                written -= part;
                if !first.is_empty() {
                    break;
                }
                self.unwritten.pop_front();
            }
        }
        if self.ends && self.unwritten.is_empty() && !self.was_told {
            self.was_told = true;
            // An error means that the program has closed its socket. Then there is nothing left to tell it.
            let _ = self.stream.shutdown(std::net::Shutdown::Write);
        }
        Ok(total)
    }

    /// Ends the connection by a RST.
    pub fn reset(self) {
        let _ = SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A link and the program's socket.
    fn pair() -> (TunnelLink, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut link = TunnelLink::accepted(listener.accept().unwrap().0).unwrap();
        link.may_write = true;
        (link, program)
    }

    #[test]
    fn small_pieces_are_joined_and_keep_their_place() {
        let (mut link, mut program) = pair();
        link.may_write = false;
        let mut expected = Vec::new();
        let mut push = |link: &mut TunnelLink, byte, length| {
            let piece = vec![byte; length];
            expected.extend_from_slice(&piece);
            link.push(piece.into());
        };
        for round in 0..1000_u32 {
            push(&mut link, round as u8, 7);
        }
        push(&mut link, 255, 9000);
        push(&mut link, 254, 1);
        assert!(link.unwritten.len() <= 3, "{}", link.unwritten.len());
        link.may_write = true;
        assert_eq!(link.write().unwrap(), expected.len());
        link.end();
        assert_eq!(link.write().unwrap(), 0);
        let mut got = Vec::new();
        program.read_to_end(&mut got).unwrap();
        assert!(got == expected, "the pieces arrive in order");
    }

    #[test]
    fn an_abort_is_noticed_without_reading() {
        let (mut link, program) = pair();
        assert!(link.check().is_ok());
        SockRef::from(&program)
            .set_linger(Some(std::time::Duration::ZERO))
            .unwrap();
        drop(program);
        link.on_ready(Readiness {
            reads: true,
            writes: true,
            hangs: true,
        });
        assert!(link.check().is_err());
    }
}
