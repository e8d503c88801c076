//! What a [`ReplyStage`](super::ReplyStage) exports, and the exchange that it is at.

use super::MARK;
use super::body::Body;
use super::head::{Method, ReplyHead, RequestHead};
use super::lines::Volatile;
use super::reason::HttpMismatch;
use super::section::{HttpFault, take_section};

/// A point of the connection from which the stage on another node goes on. It holds after all input that the stage has read, and before the
/// next output byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StagedPoint {
    /// A request that must not be executed again is given to the application now.
    Executing,
    /// The next reply, complete.
    Reply {
        /// The whole reply, or a refusal. Empty if a reply has left that was longer than the limit.
        bytes: Vec<u8>,
        /// The connection ends with this reply.
        closes: bool,
        /// Input that was read and belongs to later requests.
        input: Vec<u8>,
    },
    /// The next reply is longer than the limit, and streams.
    Told {
        /// Its header section, with the blank line.
        head: Vec<u8>,
        /// The request. `None`: it must not be executed again, or is too long.
        request: Option<Vec<u8>>,
        /// Input that was read and belongs to later requests.
        input: Vec<u8>,
    },
    /// The stage is between two exchanges. This point needs less memory than the reply before it.
    Idle {
        /// Input that was read and belongs to later requests.
        input: Vec<u8>,
    },
    /// The connection changes to another protocol.
    Upgraded,
}

/// First byte of an encoded point: the version of its format.
const VERSION: u8 = 1;

impl StagedPoint {
    /// The point as the state of a snapshot.
    pub fn encode(&self) -> Vec<u8> {
        let (tag, flag, fields): (u8, bool, [&[u8]; 3]) = match self {
            Self::Executing => (0, false, [&[]; 3]),
            Self::Reply { bytes, closes, input } => (1, *closes, [bytes, input, &[]]),
            Self::Told { head, request, input } => {
                let kept = request.as_deref();
                (2, kept.is_some(), [head, input, kept.unwrap_or_default()])
            }
            Self::Idle { input } => (3, false, [input, &[], &[]]),
            Self::Upgraded => (4, false, [&[]; 3]),
        };
        let mut state = Vec::with_capacity(3 + fields.iter().map(|field| 4 + field.len()).sum::<usize>());
        state.extend([VERSION, tag, u8::from(flag)]);
        for field in fields {
            let length = u32::try_from(field.len()).expect("a snapshot has at most 16 MiB");
            state.extend(length.to_le_bytes());
            state.extend_from_slice(field);
        }
        state
    }

    /// The point that was encoded as `state`. `None`: a stage of another version has encoded it, or it is no point.
    pub fn decode(state: &[u8]) -> Option<Self> {
        let (&[VERSION, tag, flag], mut rest) = state.split_first_chunk()? else {
            return None;
        };
        let mut field = || {
            let (length, after) = rest.split_first_chunk()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (bytes, after) = after.split_at_checked(length)?;
            rest = after;
            Some(bytes.to_vec())
        };
        let [first, second, third] = [field()?, field()?, field()?];
        let point = match (tag, flag) {
            (0, 0) => Self::Executing,
            (1, 0 | 1) => Self::Reply {
                bytes: first,
                closes: flag == 1,
                input: second,
            },
            (2, 0 | 1) => Self::Told {
                head: first,
                request: (flag == 1).then_some(third),
                input: second,
            },
            (3, 0) => Self::Idle { input: first },
            (4, 0) => Self::Upgraded,
            _ => return None,
        };
        rest.is_empty().then_some(point)
    }
}

/// A request and its reply.
#[derive(Debug)]
pub(super) struct StagedExchange {
    to_head: bool,
    persists: bool,
    /// The rest of the request's body.
    pub asking: Option<Body>,
    /// The request as far as it was read. `None`: it is not to be executed again, or is longer than the limit.
    pub request: Option<Vec<u8>>,
    /// The client's header of the reply, with [`StagedPoint::Told`].
    told: Option<Vec<u8>>,
    /// The reply's header, while it is incomplete.
    begun: Vec<u8>,
    reply: Option<StagedReply>,
}

/// A reply whose header is complete.
#[derive(Debug)]
pub(super) struct StagedReply {
    pub head: Vec<u8>,
    persists: bool,
    body: Option<Body>,
    /// The reply from its first byte on, without the bytes that have left.
    pub held: Vec<u8>,
    /// The reply leaves as it comes.
    pub streams: bool,
}

/// What became of bytes of the application.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StagedProgress {
    /// All bytes were taken. The reply is not complete.
    Taken,
    /// The reply is complete.
    Complete,
    /// 101: what follows is not HTTP. The header was this.
    Upgraded(Vec<u8>),
}

impl StagedExchange {
    /// An exchange whose request has this header.
    pub fn new(request: RequestHead, kept: Option<Vec<u8>>) -> Self {
        Self {
            to_head: request.method == Method::Head,
            persists: request.persists,
            asking: request.body,
            request: kept,
            told: None,
            begun: Vec::new(),
            reply: None,
        }
    }

    /// The exchange of [`StagedPoint::Told`]: its request is executed again, and the client has the reply's header.
    pub fn told(request: &[u8], told: Vec<u8>) -> Result<Self, HttpFault> {
        let mut rest = request;
        let mut head = Vec::new();
        take_section(&mut head, &mut rest)?;
        let request = RequestHead::parse(&head)?;
        Ok(Self {
            asking: None,
            told: Some(told),
            ..Self::new(request, None)
        })
    }

    /// The reply, once its header is complete.
    pub fn reply(&mut self) -> Option<&mut StagedReply> {
        self.reply.as_mut()
    }

    /// Whether the application has begun to reply, now or on the node that failed.
    pub fn has_reply(&self) -> bool {
        self.told.is_some() || self.reply.is_some() || !self.begun.is_empty()
    }

    /// Whether bytes of the reply have left.
    pub fn has_left(&self) -> bool {
        self.told.is_some() || self.reply.as_ref().is_some_and(|reply| reply.streams)
    }

    /// Bytes of the request and of the reply that are kept.
    pub fn held_bytes(&self) -> usize {
        let request = self.request.as_ref().map_or(0, Vec::len);
        request + self.begun.len() + self.reply.as_ref().map_or(0, |reply| reply.held.len())
    }

    /// Whether the connection ends with this exchange.
    pub fn closes(&self) -> bool {
        let persists = self.reply.as_ref().is_some_and(|reply| reply.persists);
        // The rest of a request's body is not told from the next request.
        !persists || !self.persists || self.asking.is_some()
    }

    /// Takes bytes of the application from the front of `bytes`.
    pub fn take(&mut self, bytes: &mut &[u8], volatile: &Volatile) -> Result<StagedProgress, HttpMismatch> {
        while !bytes.is_empty() && self.reply.is_none() {
            if take_section(&mut self.begun, bytes)? {
                let head = std::mem::take(&mut self.begun);
                let parsed = ReplyHead::parse(&head, self.to_head)?;
                if parsed.status == 101 {
                    return Ok(StagedProgress::Upgraded(head));
                }
                // The stage itself has answered the client that waits. Other interim replies may come out different the second time.
                if !parsed.is_interim() {
                    self.on_head(head, parsed, volatile)?;
                }
            }
        }
        match &mut self.reply {
            Some(reply) => reply.take(bytes),
            None => Ok(StagedProgress::Taken),
        }
    }

    fn on_head(&mut self, head: Vec<u8>, parsed: ReplyHead, volatile: &Volatile) -> Result<(), HttpMismatch> {
        if let Some(told) = &self.told {
            volatile.continue_section(told, &head)?;
            if ReplyHead::parse(told, self.to_head)?.body != parsed.body {
                return Err(HttpMismatch::Framing);
            }
        }
        self.reply = Some(StagedReply {
            held: if self.told.is_some() {
                Vec::new()
            } else {
                head.clone()
            },
            head,
            persists: parsed.persists,
            body: parsed.body,
            streams: self.told.is_some(),
        });
        Ok(())
    }

    /// The application has ended its stream. Returns whether the reply is complete.
    pub fn ends(&self) -> bool {
        let body = self.reply.as_ref().map(|reply| &reply.body);
        matches!(body, Some(Some(Body::UntilClose)))
    }
}

impl StagedReply {
    fn take(&mut self, bytes: &mut &[u8]) -> Result<StagedProgress, HttpMismatch> {
        while let Some(body) = self.body.as_mut().filter(|body| !body.is_complete()) {
            if bytes.is_empty() {
                return Ok(StagedProgress::Taken);
            }
            let before = *bytes;
            body.next(bytes)?;
            self.held.extend_from_slice(&before[..before.len() - bytes.len()]);
        }
        Ok(StagedProgress::Complete)
    }
}

/// A request with the header line that tells the application that the request may have been executed before.
pub(super) fn marked(request: &[u8]) -> Vec<u8> {
    let line = memchr::memchr(b'\n', request).map_or(request.len(), |feed| feed + 1);
    let (line, rest) = request.split_at(line);
    [line, MARK, rest].concat()
}
