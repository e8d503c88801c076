//! Restart policy `replay` with `keep_input`: a node that has come back becomes the cold backup of connections that the survivor relays.
//!
//! ```text
//!   survivor (keeper)                                  the node that has come back (wire)
//!   input   ━━━━━━━━━━━━━━━━━━━━━━━━━━━━▶ kept          in-log            ┝━━━━━━━━━━━━▶
//!           0                      size                                 size: where it learnt the connection
//!           └──────── prefix ────────┘ ── PrefixPart ──▶ joined below the in-log
//!   output  ━━━━━━━━━━━━━━━━━━━━▶ hashed                out-log       ┝━━━━━━━━━━━━━━━━━▶
//!                               place ──── its hash ──▶ earlier output │ hashed from `place` on
//! ```
//!
//! The survivor keeps the whole input ([`KeptInput`]) and hashes the whole output. The wire learns the connection in its middle
//! ([`crate::learn`]), and asks for the input before that ([`PrefixAsk`]). When the input has come, the wire's log is a log of the
//! connection from its first byte on, as with any other connection of policy `replay`. The output before the log is known by its length and
//! hash only.
//!
//! Questions and answers may be lost or come twice. The wire asks again, and gives up after a time without progress. The survivor remembers
//! no question.

mod joining;
mod kept;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Seq;
use crate::seq::in_reach;

pub(crate) use self::joining::{JoinStep, Joined, Joining};
pub use self::kept::{KeepLimits, KeptInput, KeptInputs};

/// Largest number of input bytes in one part. A part fits into one datagram.
pub const PREFIX_PART_MAX: usize = 16 << 10;
/// Largest number of input bytes that one question asks for. Small enough for the receiver's socket buffer.
pub const PREFIX_WINDOW: usize = 4 * PREFIX_PART_MAX;

/// The output that the survivor of an earlier takeover sent before the log of the output began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierOutput {
    /// Number of bytes, from the connection's first one on.
    pub bytes: u64,
    /// The hash of these bytes.
    pub hash: [u8; 16],
}

/// The wire asks for a connection's first input bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixAsk {
    /// The client of the connection.
    pub client: SocketAddr,
    /// The sequence number at which the wire's log of the input begins.
    pub input: Seq,
    /// Number of input bytes that the wire has already.
    #[serde(deserialize_with = "in_reach")]
    pub from: u64,
}

/// The survivor's answer to a [`PrefixAsk`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixAnswer {
    /// The client of the connection.
    pub client: SocketAddr,
    /// As in the question, to tell the answer from an answer to an earlier question.
    pub input: Seq,
    /// A part of the input, or why the connection cannot be joined.
    pub content: Result<PrefixPart, String>,
}

/// A part of the first input of a connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixPart {
    /// The sequence numbers of the connection's first input and output byte.
    pub begins_at: (Seq, Seq),
    /// Length of all input before the wire's log.
    #[serde(deserialize_with = "in_reach")]
    pub size: u64,
    /// Where this part begins.
    #[serde(deserialize_with = "in_reach")]
    pub at: u64,
    /// Where the last part of the same answer ends.
    #[serde(deserialize_with = "in_reach")]
    pub until: u64,
    /// The part itself.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    /// All output so far. `None`: the survivor's own application still repeats output.
    pub output: Option<EarlierOutput>,
}

impl std::fmt::Debug for PrefixPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (at, end, size) = (self.at, self.at + self.bytes.len() as u64, self.size);
        write!(
            f,
            "bytes {at}..{end} of {size}, after output {:?}",
            self.output.map(|output| output.bytes)
        )
    }
}

impl PrefixAnswer {
    /// An answer that refuses.
    pub fn refused(ask: &PrefixAsk, why: impl Into<String>) -> Self {
        Self {
            client: ask.client,
            input: ask.input,
            content: Err(why.into()),
        }
    }

    /// The same answer in pieces that fit into a datagram each.
    pub fn split(self) -> Vec<Self> {
        let Self {
            client,
            input,
            content,
        } = self;
        let answer = |content| Self {
            client,
            input,
            content,
        };
        let part = match content {
            Ok(part) if part.bytes.len() > PREFIX_PART_MAX => part,
            content => return vec![answer(content)],
        };
        let pieces = part.bytes.chunks(PREFIX_PART_MAX).scan(part.at, |at, bytes| {
            let piece = PrefixPart {
                at: *at,
                bytes: bytes.to_vec(),
                ..part.clone_head()
            };
            *at += bytes.len() as u64;
            Some(answer(Ok(piece)))
        });
        pieces.collect()
    }
}

impl PrefixPart {
    fn clone_head(&self) -> Self {
        Self {
            bytes: Vec::new(),
            ..*self
        }
    }
}
