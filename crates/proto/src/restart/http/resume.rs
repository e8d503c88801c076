//! What a relay needs to know to continue a connection, and nothing else: it can be sent to another process.

use serde::{Deserialize, Serialize};

use super::Rest;

/// How the output goes on after a takeover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resume {
    /// The connection's last reply is complete: whatever an application might still say, the output ends here.
    Finished,
    /// Nothing is owed: the connection stands between two messages (a request may have begun to arrive).
    Idle,
    /// Requests are to be executed again.
    Again {
        /// What of the first one's reply was said.
        said: Said,
        /// At least one, in the order of the replies.
        requests: Vec<Request>,
        /// The one behind them must not be executed again. It is refused, and the output ends.
        refused: Option<Request>,
    },
    /// The first request that is not answered must not be executed again: it is refused, and the output ends.
    Refused(Request),
}

impl Resume {
    /// Whether the application gets what the client sends behind the logged input. Nothing behind a request that is
    /// refused is executed.
    pub const fn takes_input(&self) -> bool {
        match self {
            Self::Idle | Self::Again { refused: None, .. } => true,
            Self::Finished | Self::Again { .. } | Self::Refused(_) => false,
        }
    }
}

/// A request whose reply is owed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Method and target, printable and at most [`LABEL_MAX`](super::LABEL_MAX) characters of them.
    pub label: Box<str>,
    /// It is a HEAD: its reply has no body whatever its header says.
    pub to_head: bool,
    /// The client does not want the connection to end with this exchange.
    pub persists: bool,
}

/// The part of a reply that the client side already has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// How many interim replies (1xx) of which status were complete.
    pub interim: Vec<(u16, u32)>,
    /// The header section that came after them, an interim one's too if it was cut; with the blank line if it is complete.
    pub head: Vec<u8>,
    /// What was said of the body; `None` as long as `head` is not complete.
    pub body: Option<BodyPrefix>,
    /// The request, when it is executed again, asks for this part of the body.
    pub rest: Option<Rest>,
}

impl Said {
    /// Whether the client has got an interim reply of this status more often than was asked.
    pub(super) fn has_interim(&mut self, status: u16) -> bool {
        let known = self
            .interim
            .iter_mut()
            .find(|(known, left)| *known == status && *left > 0);
        known.map(|(_, left)| *left -= 1).is_some()
    }
}

/// The part of a reply's body that the client side already has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BodyPrefix {
    /// Payload bytes, without framing.
    pub bytes: u64,
    /// The hash of these payload bytes: the XXH3-128, big endian, of each 16 KiB, and of what is left, each hashed together with what
    /// came of those before it.
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
