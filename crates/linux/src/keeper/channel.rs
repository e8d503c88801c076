//! Messages between agent and keeper over a Unix SOCK_SEQPACKET socket. A message can carry sockets and large data.
//!
//! ```text
//!  packet    magic │ where │ content
//!  content   length (u32, little endian) │ stretches, message (postcard): as long as `length` says │ bytes
//!
//!  where = 0: the content follows in the packet
//!  where = 1: the content is in the last descriptor, a memfd
//! ```
//!
//! The data of a message is its blob. The blob consists of stretches. A stretch is either a part of `bytes`, or a part of a file. The file
//! is not copied: the message carries the file's descriptor, before the descriptor of the memfd.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::input::{InputPiece, LoggedInput};

/// Magic number with the protocol's version. Both ends must have the same version. An agent that finds a keeper with another version
/// starts a new keeper.
pub(super) const MAGIC: [u8; 4] = *b"SFKA";
const HEADER: usize = MAGIC.len() + 1;
const INLINE: u8 = 0;
const IN_MEMFD: u8 = 1;

/// Maximum length in bytes of a content that is sent in the packet. A longer content is sent in a memfd.
pub(super) const INLINE_MAX: usize = 32 * 1024;

/// Maximum length in bytes of a message without its blob. The largest field is output that a replica has sent and the primary has not, or
/// the other way round.
const MESSAGE_MAX: usize = 256 << 20;

/// Maximum number of descriptors in a message: the client's socket, the replica's socket, the file, and the memfd.
const DESCRIPTORS_MAX: usize = 4;

/// A message from the other end.
pub(super) struct Received<M> {
    pub message: M,
    pub descriptors: Vec<OwnedFd>,
    pub blob: Blob,
}

/// The description of an [`InputPiece`] in a message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Stretch {
    /// The next `.0` bytes that came with the message.
    Bytes(u64),
    /// `.1` bytes of the file from offset `.0` on.
    InFile(u64, u64),
}

impl Stretch {
    fn of(piece: &InputPiece<'_>) -> Self {
        match *piece {
            InputPiece::Bytes(bytes) => Self::Bytes(bytes.len() as u64),
            InputPiece::InFile { at, len } => Self::InFile(at, len),
        }
    }

    const fn len(self) -> u64 {
        match self {
            Self::Bytes(len) | Self::InFile(_, len) => len,
        }
    }
}

/// Bytes that belong to a message, to be read once from front to back.
#[derive(Default)]
pub(super) struct Blob {
    content: BlobContent,
    file: Option<File>,
    /// The stretches that are not yet read. None of them is empty.
    unread: VecDeque<Stretch>,
}

/// The bytes that came with a message. The bytes from `at` on are not yet read.
enum BlobContent {
    Memory {
        bytes: Vec<u8>,
        at: usize,
    },
    /// The sender has the same open file and shares its file offset, so read at explicit offsets.
    Memfd {
        file: File,
        at: u64,
    },
}

impl Default for BlobContent {
    fn default() -> Self {
        let (bytes, at) = (Vec::new(), 0);
        Self::Memory { bytes, at }
    }
}

impl BlobContent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Memory { bytes, at } => {
                let read = bytes[*at..].as_ref().read(buffer)?;
                *at += read;
                Ok(read)
            }
            Self::Memfd { file, at } => {
                let read = file.read_at(buffer, *at)?;
                *at += read as u64;
                Ok(read)
            }
        }
    }
}

impl Blob {
    pub fn is_empty(&self) -> bool {
        self.unread.is_empty()
    }

    /// Reads the next bytes. Returns their number, 0 at the end. Releases memory and files when the last byte is read.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(&stretch) = self.unread.front() else {
            return Ok(0);
        };
        let wanted = usize::try_from(stretch.len())
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let buffer = &mut buffer[..wanted];
        let (read, rest) = match (stretch, &self.file) {
            (Stretch::Bytes(len), _) => {
                let read = self.content.read(buffer)?;
                (read, Stretch::Bytes(len - read as u64))
            }
            (Stretch::InFile(at, len), Some(file)) => {
                let read = file.read_at(buffer, at)?;
                (read, Stretch::InFile(at + read as u64, len - read as u64))
            }
            (Stretch::InFile(..), None) => return Err(invalid("the file is missing")),
        };
        if read == 0 && wanted > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if rest.len() == 0 {
            self.unread.pop_front();
            if self.unread.is_empty() {
                *self = Self::default();
            }
        } else {
            self.unread[0] = rest;
        }
        Ok(read)
    }
}

/// Sends one message. `WouldBlock` if the socket is non-blocking and full.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    input: &LoggedInput<'_>,
) -> io::Result<()> {
    let stretches = input.pieces.iter().map(Stretch::of);
    let stretches: Vec<_> = stretches.filter(|stretch| stretch.len() > 0).collect();
    let message = postcard::to_stdvec(&(stretches, message)).map_err(invalid)?;
    let length = u32::try_from(message.len()).map_err(invalid)?.to_le_bytes();
    let parts = || {
        let bytes = input.pieces.iter().filter_map(|piece| match piece {
            InputPiece::Bytes(bytes) => Some(*bytes),
            InputPiece::InFile { .. } => None,
        });
        [&length, message.as_slice()].into_iter().chain(bytes)
    };
    let descriptors = descriptors.iter().chain(&input.file);
    let mut raw: Vec<RawFd> = descriptors.map(AsRawFd::as_raw_fd).collect();
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

/// A buffer with room for any packet, reused for each packet.
#[derive(Debug)]
pub(super) struct Room(Box<[u8]>);

impl Default for Room {
    fn default() -> Self {
        Self(vec![0; HEADER + INLINE_MAX].into_boxed_slice())
    }
}

/// Receives one message; `None` if the other end has closed.
pub(super) fn receive<M: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    room: &mut Room,
) -> io::Result<Option<Received<M>>> {
    let (length, mut descriptors) = receive_packet(socket, &mut room.0)?;
    if length == 0 {
        return Ok(None);
    }
    let Some((&[where_], content)) = room.0[..length]
        .strip_prefix(&MAGIC)
        .and_then(|rest| rest.split_first_chunk())
    else {
        return Err(invalid("protocol version mismatch"));
    };
    let (message, content, left) = match where_ {
        INLINE => split_memory(content)?,
        IN_MEMFD => split_memfd(
            descriptors
                .pop()
                .ok_or_else(|| invalid("the content is missing"))?,
        )?,
        _ => return Err(invalid("protocol version mismatch")),
    };
    let (unread, message): (VecDeque<Stretch>, M) = postcard::from_bytes(&message).map_err(invalid)?;
    let mut bytes = 0_u64;
    let mut has_file = false;
    for stretch in &unread {
        match *stretch {
            Stretch::Bytes(len) => bytes = bytes.saturating_add(len),
            Stretch::InFile(..) => has_file = true,
        }
    }
    if bytes != left || unread.iter().any(|stretch| stretch.len() == 0) {
        return Err(invalid("the stretches do not fit the content"));
    }
    let file = has_file.then(|| descriptors.pop().ok_or_else(|| invalid("the file is missing")));
    let file = file.transpose()?.map(File::from);
    Ok(Some(Received {
        message,
        descriptors,
        blob: Blob {
            content,
            file,
            unread,
        },
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

/// A content, split into its message, the bytes after the message, and their number.
type Split = (Vec<u8>, BlobContent, u64);

fn split_memory(content: &[u8]) -> io::Result<Split> {
    let (length, rest) = content
        .split_first_chunk()
        .ok_or_else(|| invalid("a packet is too short"))?;
    let length = message_length(*length, rest.len() as u64)?;
    let (message, bytes) = rest.split_at(length);
    let (bytes, at) = (bytes.to_vec(), 0);
    let left = bytes.len() as u64;
    Ok((message.to_vec(), BlobContent::Memory { bytes, at }, left))
}

fn split_memfd(memfd: OwnedFd) -> io::Result<Split> {
    let file = File::from(memfd);
    let end = file.metadata()?.len();
    let mut length = [0; size_of::<u32>()];
    file.read_exact_at(&mut length, 0)?;
    let mut message = vec![0; message_length(length, end - length.len() as u64)?];
    file.read_exact_at(&mut message, length.len() as u64)?;
    let at = (length.len() + message.len()) as u64;
    Ok((message, BlobContent::Memfd { file, at }, end - at))
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::super::input::InputPiece;
    use super::*;

    /// Memory must be released early, because a connection may live for hours after its logged input was read.
    #[test]
    fn memory_and_files_are_given_back_with_the_last_byte() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (here, there) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"spilled").unwrap();
        let in_memory = vec![7; 2 * INLINE_MAX];
        let input = LoggedInput {
            file: Some(file.as_fd()),
            pieces: vec![
                InputPiece::InFile { at: 0, len: 7 },
                InputPiece::Bytes(&in_memory),
            ],
        };
        send(here.as_fd(), &1_u8, &[], &input).unwrap();
        let mut blob = receive::<u8>(there.as_fd(), &mut Room::default())
            .unwrap()
            .unwrap()
            .blob;
        let mut read = Vec::new();
        let mut buffer = [0; 10_000];
        while !blob.is_empty() {
            let count = blob.read(&mut buffer).unwrap();
            read.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(read, [b"spilled".as_slice(), &in_memory].concat());
        assert!(blob.file.is_none());
        assert!(matches!(blob.content, BlobContent::Memory { bytes, .. } if bytes.capacity() == 0));
    }
}
