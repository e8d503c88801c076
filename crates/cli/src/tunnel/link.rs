//! One TCP connection at an end of a tunnel.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::{Buf as _, Bytes};
use socket2::{Domain, SockRef, Socket, Type};

/// Most pieces that one system call writes.
const PIECES: usize = 64;

/// A socket, and the data that it has not taken yet.
pub struct TunnelLink {
    stream: TcpStream,
    /// The connection is being made.
    is_connecting: bool,
    /// Of the peer, for the program. The connection's window bounds it.
    unwritten: VecDeque<Bytes>,
    /// The program ended its direction.
    has_ended: bool,
    /// The peer ended its direction: the program is told behind `unwritten`.
    ends: bool,
    was_told: bool,
}

/// Result of reading a link.
pub enum LinkRead {
    /// Data.
    Data(Bytes),
    /// Nothing now.
    Nothing,
    /// The program has ended its direction.
    End,
}

impl TunnelLink {
    /// A connection that was accepted.
    pub fn accepted(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::new(stream, false)
    }

    /// Begins to connect.
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
            has_ended: false,
            ends: false,
            was_told: false,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub const fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// Whether the socket is to be watched for room.
    pub fn wants_room(&self) -> bool {
        self.is_connecting || !self.unwritten.is_empty()
    }

    /// Whether the program may still send.
    pub const fn can_read(&self) -> bool {
        !self.is_connecting && !self.has_ended
    }

    /// Whether both directions have ended, and the program has everything.
    pub const fn is_over(&self) -> bool {
        self.has_ended && self.was_told
    }

    /// Whether the connection is made now.
    ///
    /// # Errors
    /// Why it cannot be made.
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
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(LinkRead::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    /// Data of the peer.
    pub fn push(&mut self, data: Bytes) {
        self.unwritten.push_back(data);
    }

    /// The peer has ended its direction.
    pub const fn end(&mut self) {
        self.ends = true;
    }

    /// Writes what the socket takes. Returns the number of bytes.
    ///
    /// # Errors
    /// The program has aborted the connection.
    pub fn write(&mut self) -> io::Result<usize> {
        let mut total = 0;
        if self.is_connecting {
            return Ok(0);
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
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
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
            // A program that has closed its socket has no more to be told.
            let _ = self.stream.shutdown(std::net::Shutdown::Write);
        }
        Ok(total)
    }

    /// Ends the connection by a RST.
    pub fn reset(self) {
        let _ = SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO));
    }
}
