//! Frames between the agent and the library (`bindings/preload/src/link.rs` has the library's half, and the meanings).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

pub const HELLO: u8 = 1;
pub const ROLE_RECORD: u8 = 2;
pub const ROLE_PLAY: u8 = 3;
pub const ROLE_NONE: u8 = 4;
pub const PART: u8 = 5;
pub const RECEIPT: u8 = 6;
pub const ALONE: u8 = 7;
pub const END: u8 = 8;
pub const REFUSED: u8 = 9;
/// A replica's counts: events that were played and divergences, 8 bytes each (little-endian), then the first divergence as text.
pub const COUNTS: u8 = 10;
pub const VERSION: u8 = 1;

const HEAD: usize = 5;
/// Largest payload of a frame from the library.
const PAYLOAD_MAX: usize = 64 << 20;
/// Sends a frame to the library.
pub fn send(mut stream: &UnixStream, kind: u8, payload: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(HEAD + payload.len());
    frame.push(kind);
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(payload);
    stream.write_all(&frame)
}

/// Receives a frame: its kind and its payload.
pub fn receive(mut stream: &UnixStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    let size = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if size > PAYLOAD_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut payload = vec![0; size];
    stream.read_exact(&mut payload)?;
    Ok((head[0], payload))
}
