//! Frames between the library in a server and the agent of its node: one byte for the kind, four bytes for the length of the payload
//! (little-endian), and the payload. The library begins with [`HELLO`]; the agent answers with a role.

/// The library's first frame. Its payload is the version of this protocol, one byte.
pub const HELLO: u8 = 1;
/// The library records. The payload is the service's address: 16 bytes and the port (big-endian).
pub const ROLE_RECORD: u8 = 2;
/// The library plays back. The payload is one byte: 1 means `trust-log`.
pub const ROLE_PLAY: u8 = 3;
/// The server runs without a record.
pub const ROLE_NONE: u8 = 4;
/// Bytes of the record.
pub const PART: u8 = 5;
/// The backup has this many bytes of the record (8 bytes, little-endian).
pub const RECEIPT: u8 = 6;
/// No backup takes the record now, so writes do not wait.
pub const ALONE: u8 = 7;
/// The record has ended.
pub const END: u8 = 8;
/// Recording has ended for the reason in the payload.
pub const REFUSED: u8 = 9;
/// A replica's counts: events that were played and divergences, 8 bytes each (little-endian), then the first divergence as text.
pub const COUNTS: u8 = 10;
/// The first frame for a child that its parent is about to fork: the version (1 byte), the child's stream, its parent's stream (4 bytes each),
/// and the bytes of the parent's record up to the fork (8 bytes; all little-endian). The agent sends receipts or the child's record.
pub const CHILD: u8 = 11;
/// A program that a child has started goes on with the child's stream. The agent of a primary answers with [`RESUMED`].
pub const RESUME: u8 = 12;
/// The stream has this many bytes (8 bytes, little-endian).
pub const RESUMED: u8 = 13;
/// The library may offer its record to the backup's kernel. The payload is the link's cookie (8 bytes) and secret (16 bytes). With the frame
/// comes the descriptor of a UDP socket that is connected to the backup. An empty payload, without a descriptor: the library may no more.
pub const DATAGRAMS: u8 = 14;

/// The version of this protocol.
pub const VERSION: u8 = 3;
/// Bytes of a frame before its payload.
pub const HEAD: usize = 5;

/// A frame.
#[must_use]
pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD + payload.len());
    frame.push(kind);
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(payload);
    frame
}

/// The length of the payload of a frame that begins with `head`.
#[must_use]
pub const fn payload_len(head: &[u8; HEAD]) -> usize {
    u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize
}
