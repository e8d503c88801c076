//! Frames of the link for a record between the agents ([`crate::daemon::sealed`]).

/// Marks a link of this version.
pub const MAGIC: [u8; 4] = *b"SFO4";
/// The backup's first frame: the record that its server follows (8 bytes, 0: none yet), how much of it has arrived (8 bytes), then the VIP
/// as text.
pub const HAVE: u8 = 1;
/// Bytes of the record: a piece of the sequence of all streams.
pub const PART: u8 = 2;
/// The backup has this many bytes (8 bytes).
pub const RECEIPT: u8 = 3;
/// The backup's server must go on without a record, for the reason in the payload.
pub const REFUSED: u8 = 4;
/// The primary sends this record (8 bytes).
pub const FOLLOWED: u8 = 5;
/// The primary has no record for the backup now, for the reason in the payload.
pub const NONE: u8 = 6;
/// The record is complete, for the reason in the payload.
pub const ENDED: u8 = 7;
/// The backup's kernel takes datagrams of this link, which the backup has given this cookie (8 bytes).
pub const DATAGRAMS: u8 = 8;
