//! Messages with sockets and much data, over a Unix SOCK_SEQPACKET socket.
//!
//! ```text
//!  packet    magic │ where │ content                       where = 0: the content follows
//!  content   length of message (u32, little endian) │ message (postcard) │ blob
//!                                                          where = 1: it is in the last descriptor, a memfd
//! ```

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Both ends must be of one version: an agent that finds another one starts a keeper of its own.
const MAGIC: [u8; 4] = *b"SFK3";
const HEADER: usize = MAGIC.len() + 1;
const INLINE: u8 = 0;
const IN_MEMFD: u8 = 1;

/// Larger contents travel in a memfd.
pub(super) const INLINE_MAX: usize = 32 * 1024;

/// Bytes of one message without its blob; the largest is a replica's surplus.
const MESSAGE_MAX: usize = 256 << 20;

/// The client's socket, the replica's, the memfd.
const DESCRIPTORS_MAX: usize = 3;

/// A message from the other end.
pub(super) struct Received<M> {
    pub message: M,
    pub descriptors: Vec<OwnedFd>,
    pub blob: Blob,
}

/// Bytes that belong to a message, to be read once from front to back.
pub(super) struct Blob {
    source: Source,
    /// What is unread of the source.
    at: u64,
    end: u64,
}

enum Source {
    Memory(Vec<u8>),
    /// Shared with the sender, its file offset too.
    File(File),
}

impl Blob {
    fn memory(bytes: Vec<u8>) -> Self {
        let end = bytes.len() as u64;
        Self {
            source: Source::Memory(bytes),
            at: 0,
            end,
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// Reads the next bytes. 0 at the end; the memory is given back then.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let buffer = match left.min(buffer.len()) {
            0 => {
                *self = Self::memory(Vec::new());
                return Ok(0);
            }
            count => &mut buffer[..count],
        };
        let read = match &self.source {
            Source::Memory(bytes) => bytes[bytes.len() - left..].as_ref().read(buffer)?,
            Source::File(file) => file.read_at(buffer, self.at)?,
        };
        self.at += read as u64;
        if read == 0 {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            Ok(read)
        }
    }
}

/// Sends one message. `WouldBlock` if the socket is non-blocking and full.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    blob: &[&[u8]],
) -> io::Result<()> {
    let message = postcard::to_stdvec(message).map_err(invalid)?;
    let length = u32::try_from(message.len()).map_err(invalid)?.to_le_bytes();
    let parts = || {
        [&length, message.as_slice()]
            .into_iter()
            .chain(blob.iter().copied())
    };
    let mut raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let mut packet = MAGIC.to_vec();
    let memfd;
    if parts().map(<[u8]>::len).sum::<usize>() <= INLINE_MAX {
        packet.push(INLINE);
        parts().for_each(|part| packet.extend_from_slice(part));
    } else {
        packet.push(IN_MEMFD);
        let mut file = File::from(memfd_create(c"steadfast", MFdFlags::MFD_CLOEXEC)?);
        parts().try_for_each(|part| file.write_all(part))?;
        memfd = file;
        raw.push(memfd.as_raw_fd());
    }
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&packet)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// Receives one message; `None` if the other end has closed.
pub(super) fn receive<M: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<Received<M>>> {
    let mut packet = vec![0; HEADER + INLINE_MAX];
    let (length, mut descriptors) = receive_packet(socket, &mut packet)?;
    if length == 0 {
        return Ok(None);
    }
    packet.truncate(length);
    let Some((&[where_], content)) = packet
        .strip_prefix(&MAGIC)
        .and_then(|rest| rest.split_first_chunk())
    else {
        return Err(invalid("the other end speaks another version"));
    };
    let (message, blob) = match where_ {
        INLINE => split_memory(content)?,
        IN_MEMFD => split_file(
            descriptors
                .pop()
                .ok_or_else(|| invalid("the content is missing"))?,
        )?,
        _ => return Err(invalid("the other end speaks another version")),
    };
    let message = postcard::from_bytes(&message).map_err(invalid)?;
    Ok(Some(Received {
        message,
        descriptors,
        blob,
    }))
}

fn receive_packet(socket: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut slices = [IoSliceMut::new(packet)];
    let received = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for control in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel has just made these descriptors for us.
            descriptors.extend(raw.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
        }
    }
    if received
        .flags
        .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC)
    {
        return Err(invalid("a packet is too large"));
    }
    Ok((received.bytes, descriptors))
}

fn split_memory(content: &[u8]) -> io::Result<(Vec<u8>, Blob)> {
    let (length, rest) = content
        .split_first_chunk()
        .ok_or_else(|| invalid("a packet is too short"))?;
    let length = message_length(*length, rest.len() as u64)?;
    let (message, blob) = rest.split_at(length);
    Ok((message.to_vec(), Blob::memory(blob.to_vec())))
}

fn split_file(memfd: OwnedFd) -> io::Result<(Vec<u8>, Blob)> {
    let file = File::from(memfd);
    let end = file.metadata()?.len();
    let mut length = [0; size_of::<u32>()];
    file.read_exact_at(&mut length, 0)?;
    let mut message = vec![0; message_length(length, end - length.len() as u64)?];
    file.read_exact_at(&mut message, length.len() as u64)?;
    let at = (length.len() + message.len()) as u64;
    Ok((
        message,
        Blob {
            source: Source::File(file),
            at,
            end,
        },
    ))
}

fn message_length(length: [u8; 4], rest: u64) -> io::Result<usize> {
    let length = u32::from_le_bytes(length);
    match usize::try_from(length) {
        Ok(bytes) if u64::from(length) <= rest && bytes <= MESSAGE_MAX => Ok(bytes),
        _ => Err(invalid("a message's length is wrong")),
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
