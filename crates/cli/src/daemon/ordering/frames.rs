//! Sends and receives the frames of [`proto::order::frames`].

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use proto::order::frames::{HEAD, frame, payload_len};

/// Largest payload of a frame from a library that has a role: what the library has recorded since its last frame.
const PAYLOAD_MAX: usize = 64 << 20;

/// Sends a frame to the library.
pub fn send(mut stream: &UnixStream, kind: u8, payload: &[u8]) -> io::Result<()> {
    stream.write_all(&frame(kind, payload))
}

/// Sends a frame to the library, and with it a copy of a descriptor.
pub fn send_with(
    stream: &UnixStream,
    kind: u8,
    payload: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let frame = frame(kind, payload);
    let descriptors = [descriptor.as_raw_fd()];
    let passed = [ControlMessage::ScmRights(&descriptors)];
    let parts = [IoSlice::new(&frame)];
    let sent = sendmsg::<()>(stream.as_raw_fd(), &parts, &passed, MsgFlags::empty(), None)?;
    (&*stream).write_all(&frame[sent..])
}

/// Waits for a frame from a library that has a role. A thread that slept in `read` would also be woken whenever the library
/// takes a receipt, because that makes room in the socket.
pub fn await_frame(stream: &UnixStream) -> io::Result<(u8, Vec<u8>)> {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    while let Err(error) = poll(&mut polled, PollTimeout::NONE) {
        if error != Errno::EINTR {
            return Err(error.into());
        }
    }
    receive(stream, PAYLOAD_MAX)
}

/// Receives a frame with a payload of at most `max` bytes: its kind and its payload.
pub fn receive(mut stream: &UnixStream, max: usize) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    let len = payload_len(&head);
    if len > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut payload = Vec::new(); // a length alone must not take memory
    stream.take(len as u64).read_to_end(&mut payload)?;
    if payload.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((head[0], payload))
}
