//! The relay's filter: drops what the client already has from a regenerated reply, and continues it.

use thiserror::Error;

use super::Volatile;
use super::continued::Continued;
use super::head::{Fault, ReplyHead, take_section};
use super::resume::{Reply, Resume};

/// Why a regenerated reply cannot continue the logged one. The connection must end so that the client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The body's first bytes are not those that the client has.
    #[error("the first {bytes} bytes of the body differ")]
    Body {
        /// Payload bytes that the client has.
        bytes: u64,
    },
    /// The client was told that the body has ended.
    #[error("the body goes on where the client was told that it ends")]
    BodyTooLong,
    /// The client has, or was told of, more than the regenerated body has.
    #[error("the body ends before the place where the client stands")]
    BodyTooShort,
    /// The log ends inside a chunk extension that was not regenerated.
    #[error("the log ends inside a chunk extension that is not regenerated")]
    ChunkExtension,
    /// The application closed in the middle of the reply.
    #[error("the application closed before the end of its reply")]
    EndedEarly,
    /// The log and the regenerated header do not give one header together.
    #[error("the continued header has another framing than the regenerated one")]
    Framing,
    /// A header line differs and is not volatile.
    #[error("the header differs: {logged:?} was said, {regenerated:?} is regenerated")]
    Header {
        /// The logged line, perhaps cut.
        logged: String,
        /// The regenerated line at its place, empty if there is none.
        regenerated: String,
    },
    /// The regenerated reply is not HTTP/1.
    #[error("the regenerated reply cannot be followed: {0}")]
    Malformed(#[from] Fault),
}

/// Turns a regenerated reply into the continuation of a logged one, then gets out of the way.
///
/// Nothing is passed on before the part that the client has is known to be the same.
#[derive(Debug)]
pub struct Resumer {
    volatile: Volatile,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Until the regenerated header that continues the logged one is complete.
    Head {
        reply: Reply,
        regenerated: Vec<u8>,
    },
    /// Until the end of the regenerated body; `closes` if the connection ends with it.
    Body {
        continued: Continued,
        closes: bool,
    },
    Transparent,
    Finished,
    Failed(Mismatch),
}

impl Resumer {
    /// A filter with the default list of volatile header fields.
    pub fn new(resume: Resume) -> Self {
        Self::with_volatile(resume, Volatile::default())
    }

    /// A filter with a list of its own.
    pub fn with_volatile(resume: Resume, volatile: Volatile) -> Self {
        let state = match resume {
            Resume::Finished => State::Finished,
            Resume::Idle => State::Transparent,
            Resume::Reply(reply) if reply.head.is_empty() => State::Transparent,
            Resume::Reply(reply) => State::Head {
                reply,
                regenerated: Vec::new(),
            },
        };
        Self { volatile, state }
    }

    /// From now on bytes pass as they are: the relay need not ask any more.
    pub const fn is_transparent(&self) -> bool {
        matches!(self.state, State::Transparent)
    }

    /// The connection's last reply is complete: the relay ends the output, whatever the application does.
    pub const fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// The application's next bytes; what of them the client is to get is appended to `to_client`.
    ///
    /// # Errors
    /// The regenerated reply is another one. Nothing is appended by the call that finds out beyond what is known to be
    /// right; every later call fails again.
    pub fn on_application(&mut self, mut bytes: &[u8], to_client: &mut Vec<u8>) -> Result<(), Mismatch> {
        while !bytes.is_empty() {
            self.step(&mut bytes, to_client)
                .map_err(|mismatch| self.fail(mismatch))?;
        }
        Ok(())
    }

    /// The application has ended its stream: the output ends too, unless this fails.
    ///
    /// # Errors
    /// The reply is not complete.
    pub fn on_application_end(&mut self) -> Result<(), Mismatch> {
        let mismatch = match &self.state {
            State::Transparent | State::Finished => return Ok(()),
            State::Failed(mismatch) => mismatch.clone(),
            State::Head { .. } => Mismatch::EndedEarly,
            State::Body { continued, .. } => continued.ended_early(),
        };
        Err(self.fail(mismatch))
    }

    fn fail(&mut self, mismatch: Mismatch) -> Mismatch {
        self.state = State::Failed(mismatch.clone());
        mismatch
    }

    fn step(&mut self, bytes: &mut &[u8], to_client: &mut Vec<u8>) -> Result<(), Mismatch> {
        match &mut self.state {
            State::Head { reply, regenerated } => {
                if take_section(regenerated, bytes)? {
                    let regenerated = std::mem::take(regenerated);
                    if let Some(next) = continue_head(reply, &regenerated, &self.volatile, to_client)? {
                        self.state = next;
                    }
                }
            }
            State::Body { continued, closes } => {
                continued.step(bytes, &self.volatile, to_client)?;
                if continued.is_complete() && *closes {
                    self.state = State::Finished;
                } else if continued.is_complete() || continued.is_open_ended() {
                    self.state = State::Transparent;
                }
            }
            State::Transparent => to_client.extend_from_slice(std::mem::take(bytes)),
            State::Finished => *bytes = &[],
            State::Failed(mismatch) => return Err(mismatch.clone()),
        }
        Ok(())
    }
}

/// Compares a whole regenerated header with the logged part of one, and completes that. `None`: the regenerated one is
/// interim, and the client need not get it; another follows.
fn continue_head(
    reply: &mut Reply,
    regenerated: &[u8],
    volatile: &Volatile,
    to_client: &mut Vec<u8>,
) -> Result<Option<State>, Mismatch> {
    let parsed = ReplyHead::parse(regenerated, reply.to_head)?;
    let continuation = volatile.continue_section(&reply.head, regenerated);
    if parsed.is_interim() && (reply.body.is_some() || continuation.is_err()) {
        return Ok(None);
    }
    let continuation = continuation?;
    // What the client was told counts, and must be what the application does.
    let told = ReplyHead::parse(&[reply.head.as_slice(), &continuation].concat(), reply.to_head)?;
    if told.body != parsed.body {
        return Err(Mismatch::Framing);
    }
    to_client.extend_from_slice(&continuation);
    if parsed.status < 200 {
        return Ok(Some(State::Transparent)); // nothing of what follows has been said
    }
    let closes = !(told.persists && reply.request_persists);
    Ok(Some(match (parsed.body, reply.body.take()) {
        (Some(body), prefix) => {
            let continued = Continued::new(body, prefix, to_client)?;
            if continued.is_open_ended() {
                State::Transparent
            } else {
                State::Body { continued, closes }
            }
        }
        (None, None) if closes => State::Finished,
        (None, None) => State::Transparent,
        (None, Some(_)) => return Err(Mismatch::Framing),
    }))
}
