//! Restart policy `http`: the restart point moves at message boundaries.
//!
//! The application runs on the primary only. The backup follows both logged streams with one [`Tracker`] per
//! connection; at a takeover [`Tracker::resume`] says what is owed to the client, the relay feeds the unanswered
//! requests to the local application, and a [`Resumer`] drops the part of the regenerated reply that the client
//! already has, if it is identical.
//!
//! After CoRAL (Aghdaie and Tamir), which logs whole replies before their first byte leaves; here a reply is released
//! as it comes, and one that was cut in the middle is continued. Messages after RFC 9112.

mod body;
mod continued;
mod head;
mod lines;
mod resume;
mod resumer;
#[cfg(test)]
mod tests;
mod tracker;

pub use head::{Fault, Method};
pub use lines::{Cut, Volatile, VolatileError};
pub use resume::{BodyPrefix, ChunkPosition, Position, Reply, Resume};
pub use resumer::{Mismatch, Resumer};
pub use tracker::{REQUESTS_MAX, Reason, Tracker};

/// The longest header section (or chunked trailer) in bytes that is followed; a longer one makes the connection
/// unprotected. Common servers refuse more than 8 to 64 KiB themselves.
pub const HEAD_MAX: usize = 64 * 1024;

/// The longest chunk-size line in bytes, extensions included.
pub const SIZE_LINE_MAX: usize = 1024;
