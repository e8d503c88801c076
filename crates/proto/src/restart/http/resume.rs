//! The data that a relay needs in order to continue a connection.

use serde::{Deserialize, Serialize};

use super::MARK;
use super::body::BodyPosition;
use super::rest::Rest;
use crate::Offset;
use crate::spill::LogPart;
use crate::stream::StreamLog;

/// How the connection's output goes on after a takeover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HttpResume {
    /// The connection's last reply is complete. The output ends here, even if an application sends more.
    Finished,
    /// No reply is owed: the connection is between two messages. A part of the next request may have arrived.
    Idle,
    /// Requests are to be executed again.
    Again {
        /// The part of the first request's reply that was sent.
        said: ReplyPrefix,
        /// At least one request, in the order of the replies.
        requests: Vec<PendingRequest>,
        /// The request after `requests`, if it must not be executed again. It is refused, and then the output ends.
        refused: Option<PendingRequest>,
    },
    /// The first unanswered request must not be executed again. It is refused, and the output ends.
    Refused(PendingRequest),
}

impl HttpResume {
    /// Whether the application gets the bytes that the client sends after the logged input. After a refused request, no request is
    /// executed.
    pub const fn takes_input(&self) -> bool {
        match self {
            Self::Idle | Self::Again { refused: None, .. } => true,
            Self::Finished | Self::Again { .. } | Self::Refused(_) => false,
        }
    }
}

/// A request whose reply is owed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRequest {
    /// Method and target, printable, cut to [`LABEL_MAX`](super::LABEL_MAX) characters.
    pub label: Box<str>,
    /// The request is a HEAD: its reply has no body, whatever the reply's header says.
    pub to_head: bool,
    /// The client wants the connection to stay open after this exchange.
    pub persists: bool,
}

/// The part of a reply that the client side already has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyPrefix {
    /// Complete interim replies (1xx): for each status, the number of replies.
    pub interim: Vec<(u16, u32)>,
    /// The sent part of the header section that follows the interim replies, with the blank line if the section is complete. It may
    /// also be the header of an interim reply that was sent in part.
    pub head: Vec<u8>,
    /// The part of the body that was sent; `None` while `head` is not complete.
    pub body: Option<BodyPrefix>,
    /// The part of the body for which the repeated request asks. `None`: the whole body.
    pub rest: Option<Rest>,
}

impl ReplyPrefix {
    /// Whether the client already has an interim reply of this status that no regenerated reply has matched yet. If so, decrements the
    /// count.
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
    /// The hash of these payload bytes, big endian. The payload is split into blocks of 16 KiB; the last block may be shorter. The XXH3-128
    /// of each block is hashed together with the hash of all blocks before it.
    pub digest: [u8; 16],
    /// The client's place in the body's framing.
    pub position: BodyPosition,
}

/// A part of the input, and the header lines that are inserted into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Offset at which the part begins.
    pub from: Offset,
    /// Offset at which the part ends. `None`: the part includes all later input.
    pub until: Option<Offset>,
    /// Offsets at which [`MARK`] is inserted: after the request line of each request that is executed again.
    pub marks: Vec<Offset>,
    /// Header fields that are inserted after the first [`MARK`]. May be empty.
    pub fields: Vec<u8>,
}

impl Feed {
    /// The logged part of the input before `frontier`, with the inserted marks and fields.
    ///
    /// # Panics
    /// If the log does not have these bytes.
    pub fn logged<'a>(&'a self, log: &'a StreamLog, frontier: Offset) -> Vec<LogPart<'a>> {
        let mut from = self.from.min(frontier);
        let end = self.until.unwrap_or(frontier).clamp(from, frontier);
        let mut parts = Vec::new();
        let mut fields = Some(self.fields.as_slice()).filter(|fields| !fields.is_empty());
        for &mark in self.marks.iter().filter(|&&mark| mark <= end) {
            parts.extend(log.parts(from..mark));
            parts.push(LogPart::Memory(MARK));
            parts.extend(fields.take().map(LogPart::Memory));
            from = mark;
        }
        parts.extend(log.parts(from..end));
        parts
    }
}
