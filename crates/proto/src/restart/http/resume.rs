//! What a relay needs to know to continue a connection, and nothing else: it can be sent to another process.

use serde::{Deserialize, Serialize};

/// How the output goes on after a takeover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resume {
    /// The connection's last reply is complete: whatever an application might still say, the output ends here.
    Finished,
    /// Nothing is owed: the connection stands between two messages (a request may have begun to arrive).
    Idle,
    /// A request is to be executed again, and this of its reply has been said.
    Reply(Reply),
}

/// The part of a reply that the client side already has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The request is a HEAD: its reply has no body whatever its header says.
    pub to_head: bool,
    /// The client does not want the connection to end with this exchange.
    pub request_persists: bool,
    /// The reply's header section (or an interim reply's) as logged, with the blank line if it is complete. Empty if
    /// nothing of it was said. Complete interim replies before it are left out.
    pub head: Vec<u8>,
    /// What was said of the body; `None` as long as `head` is not complete.
    pub body: Option<BodyPrefix>,
}

/// The part of a reply's body that the client side already has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodyPrefix {
    /// Payload bytes, without framing.
    pub bytes: u64,
    /// XXH3-128 of these payload bytes, big endian.
    pub digest: [u8; 16],
    /// Where the client stands in the body's framing.
    pub position: Position,
}

/// A place in a body's framing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Position {
    /// Inside the chunked coding.
    Chunked(ChunkPosition),
    /// Inside a body of a known length.
    Length,
    /// Inside a body that ends with the connection.
    UntilClose,
}

/// A place in the chunked coding (RFC 9112 §7.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChunkPosition {
    /// Inside a chunk's data, at least one byte before its end.
    Data {
        /// Payload bytes up to the chunk's end.
        left: u64,
    },
    /// After a chunk's data, before the end of the CRLF.
    DataEnd {
        /// The CR has been said.
        has_cr: bool,
    },
    /// In or before a size line, with what was said of it.
    SizeLine(Vec<u8>),
    /// After the last chunk's size line, with what was said of the trailer.
    Trailer(Vec<u8>),
}

impl ChunkPosition {
    /// Before the first chunk.
    pub(super) const START: Self = Self::SizeLine(Vec::new());
}
