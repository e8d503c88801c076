//! The relay's filter: drops what the client already has from a regenerated reply, continues it, and refuses what cannot
//! be executed again.

use std::collections::VecDeque;

use thiserror::Error;

use super::body::Body;
use super::continued::Continued;
use super::head::{Fault, ReplyHead, take_section};
use super::last_reply::LastReply;
use super::resume::{BodyPrefix, Request, Resume, Said};
use super::{REFUSAL, Volatile};

/// The status of a part of what was asked for (RFC 9110 §15.3.7).
const PARTIAL: u16 = 206;

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
    /// Asked for the rest of the body, the application gave another part, or of another one.
    #[error("{asked:?} was to be continued, {regenerated:?} is regenerated")]
    Rest {
        /// The part or the validator that was asked for.
        asked: String,
        /// What came, empty if nothing.
        regenerated: String,
    },
    /// The regenerated reply is not HTTP/1.
    #[error("the regenerated reply cannot be followed: {0}")]
    Malformed(#[from] Fault),
}

/// Why a request was answered with [`REFUSAL`], or its reply cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It may have been executed, and must not be executed again.
    NotRepeatable,
    /// A second server failed while it executed it: it is not executed a third time.
    Quarantined,
    /// There is no second server.
    Unreachable,
}

/// Turns regenerated replies into the continuation of a logged stream, then gets out of the way.
///
/// Nothing is passed on before the part that the client has is known to be the same. Replies to requests that are
/// executed again are followed to their ends, so that a refusal can take the place of the next one.
#[derive(Debug)]
pub struct Resumer {
    volatile: Volatile,
    /// What is executed again and not yet answered.
    again: VecDeque<Request>,
    /// What comes behind it and is not executed.
    barred: Option<Request>,
    refusal: Option<(Request, Refusal)>,
    /// If the client is to come again on a new connection.
    last_reply: Option<LastReply>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Until the regenerated header that continues the logged one is complete.
    Head {
        said: Said,
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

impl State {
    const fn head(said: Said) -> Self {
        Self::Head {
            said,
            regenerated: Vec::new(),
        }
    }
}

impl Resumer {
    /// A filter with the default list of volatile header fields, and what the client gets first.
    pub fn new(resume: Resume) -> (Self, Vec<u8>) {
        Self::with_volatile(resume, Volatile::default())
    }

    /// The same with a list of its own.
    pub fn with_volatile(resume: Resume, volatile: Volatile) -> (Self, Vec<u8>) {
        let mut to_client = Vec::new();
        let mut resumer = Self {
            volatile,
            again: VecDeque::new(),
            barred: None,
            refusal: None,
            last_reply: None,
            state: State::Transparent,
        };
        match resume {
            Resume::Finished => resumer.state = State::Finished,
            Resume::Idle => {}
            Resume::Again {
                said,
                requests,
                refused,
            } => {
                resumer.again = requests.into();
                resumer.barred = refused;
                resumer.state = State::head(said);
            }
            Resume::Refused(request) => resumer.refuse(request, Refusal::NotRepeatable, &mut to_client),
        }
        (resumer, to_client)
    }

    /// The client is to come again on a new connection: a reply says so and is the last one, the next that can. To be called
    /// before anything else.
    pub fn close_softly(&mut self) {
        self.last_reply = Some(LastReply::default());
    }

    /// The next bytes for the application. It is to be given so many of them; the rest is dropped.
    pub fn on_input(&mut self, bytes: &[u8]) -> usize {
        self.last_reply
            .as_mut()
            .map_or(bytes.len(), |last| last.on_input(bytes))
    }

    /// Whether the application has to say something again, so it must be asked again.
    pub const fn awaits_reply(&self) -> bool {
        matches!(self.state, State::Head { .. } | State::Body { .. })
    }

    /// From now on bytes pass as they are: the relay need not ask any more.
    pub const fn is_transparent(&self) -> bool {
        matches!(self.state, State::Transparent) && self.last_reply.is_none()
    }

    /// Whether the filter has nothing more to compare, and nothing to tell: the relay need not keep it.
    pub fn is_over(&self) -> bool {
        self.is_transparent() && self.again.is_empty() && self.refusal.is_none()
    }

    /// The connection's last reply is complete: the relay ends the output, whatever the application does.
    pub const fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// The request that was refused, or whose reply a second server's failure has cut.
    pub const fn refusal(&self) -> Option<&(Request, Refusal)> {
        self.refusal.as_ref()
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

    /// The application has ended its stream: the output ends too, unless this fails. If it owes a reply of which nothing
    /// was said, that is a refusal.
    ///
    /// # Errors
    /// The reply is not complete.
    pub fn on_application_end(&mut self, to_client: &mut Vec<u8>) -> Result<(), Mismatch> {
        let mismatch = match &self.state {
            State::Transparent | State::Finished => return Ok(()),
            State::Failed(mismatch) => mismatch.clone(),
            State::Head { .. } => Mismatch::EndedEarly,
            State::Body { continued, .. } => continued.ended_early(),
        };
        if self.on_application_lost(Refusal::Quarantined, to_client) {
            return Ok(());
        }
        Err(self.fail(mismatch))
    }

    /// The application's connection failed, or there is none. True if the output ends well all the same, since a refusal, which is
    /// for the reason `why`, takes the place of the reply that it owes; else the connection must be reset.
    pub fn on_application_lost(&mut self, why: Refusal, to_client: &mut Vec<u8>) -> bool {
        let is_silent = matches!(&self.state, State::Head { said, .. } if said.head.is_empty());
        match self.again.pop_front() {
            Some(request) if is_silent => self.refuse(request, why, to_client),
            Some(request) => self.refusal = Some((request, why)),
            None => {}
        }
        self.is_finished()
    }

    fn refuse(&mut self, request: Request, why: Refusal, to_client: &mut Vec<u8>) {
        to_client.extend_from_slice(REFUSAL);
        self.refusal = Some((request, why));
        self.state = State::Finished;
    }

    fn fail(&mut self, mismatch: Mismatch) -> Mismatch {
        self.state = State::Failed(mismatch.clone());
        mismatch
    }

    fn step(&mut self, bytes: &mut &[u8], to_client: &mut Vec<u8>) -> Result<(), Mismatch> {
        match &mut self.state {
            State::Head { regenerated, .. } => {
                if take_section(regenerated, bytes)? {
                    self.on_head(to_client)?;
                }
            }
            State::Body { continued, closes } => {
                continued.step(bytes, &self.volatile, to_client)?;
                if continued.is_complete() {
                    let closes = *closes;
                    self.on_reply_end(closes, to_client);
                } else if continued.is_open_ended() {
                    self.go_on_for_ever();
                }
            }
            State::Transparent => self.pass(std::mem::take(bytes), to_client),
            State::Finished => *bytes = &[],
            State::Failed(mismatch) => return Err(mismatch.clone()),
        }
        Ok(())
    }

    /// Compares a whole regenerated header with the logged part of one, and completes that.
    fn on_head(&mut self, to_client: &mut Vec<u8>) -> Result<(), Mismatch> {
        let State::Head { said, regenerated } = &mut self.state else {
            return Ok(());
        };
        let regenerated = std::mem::take(regenerated);
        let request = self.again.front().ok_or(Mismatch::Framing)?;
        let parsed = ReplyHead::parse(&regenerated, request.to_head)?;
        if parsed.status == PARTIAL && said.rest.is_some() {
            let said = std::mem::take(said);
            return self.on_rest(said, &regenerated, parsed.body, to_client);
        }
        let continuation = self.volatile.continue_section(&said.head, &regenerated);
        if parsed.is_interim() {
            if !said.has_interim(parsed.status)
                && said.body.is_none()
                && let Ok(continuation) = continuation
            {
                to_client.extend_from_slice(&continuation);
                said.head.clear();
            }
            return Ok(()); // the client has it, or need not get it; another header follows
        }
        let continuation = continuation?;
        // What the client was told counts, and must be what the application does.
        let told = ReplyHead::parse(&[said.head.as_slice(), &continuation].concat(), request.to_head)?;
        if told.body != parsed.body {
            return Err(Mismatch::Framing);
        }
        let closes = !(told.persists && request.persists);
        let prefix = said.body.take();
        to_client.extend_from_slice(&continuation);
        if parsed.status < 200 {
            self.again.pop_front(); // 101 is its answer, and what follows is not HTTP
            self.go_on_for_ever();
            return Ok(());
        }
        self.on_body(parsed.body, prefix, closes, to_client)
    }

    /// The application was asked for the rest of the body, and gives a part.
    fn on_rest(
        &mut self,
        said: Said,
        regenerated: &[u8],
        body: Option<Body>,
        to_client: &mut Vec<u8>,
    ) -> Result<(), Mismatch> {
        let (Some(rest), Some(prefix), Some(request)) = (said.rest, said.body, self.again.front()) else {
            return Err(Mismatch::Framing);
        };
        rest.check(&said.head, regenerated, body.as_ref(), &self.volatile)?;
        let told = ReplyHead::parse(&said.head, request.to_head)?;
        let closes = !(told.persists && request.persists);
        let again = BodyPrefix {
            bytes: prefix.bytes.checked_sub(rest.from).ok_or(Mismatch::Framing)?,
            digest: rest.digest,
            ..prefix
        };
        self.on_body(body, Some(again), closes, to_client)
    }

    /// Of the reply with this body the client has the header, and `prefix` of the body; `closes` if the connection ends with it.
    fn on_body(
        &mut self,
        body: Option<Body>,
        prefix: Option<BodyPrefix>,
        closes: bool,
        to_client: &mut Vec<u8>,
    ) -> Result<(), Mismatch> {
        match body {
            Some(body) => {
                let continued = Continued::new(body, prefix, to_client)?;
                if continued.is_open_ended() {
                    self.go_on_for_ever();
                } else {
                    self.state = State::Body { continued, closes };
                }
            }
            None if prefix.is_some() => return Err(Mismatch::Framing),
            None => self.on_reply_end(closes, to_client),
        }
        Ok(())
    }

    /// What follows has no end that can be seen.
    fn go_on_for_ever(&mut self) {
        self.last_reply = None;
        self.state = State::Transparent;
    }

    fn pass(&mut self, bytes: &[u8], to_client: &mut Vec<u8>) {
        let Some(last) = &mut self.last_reply else {
            return to_client.extend_from_slice(bytes);
        };
        last.on_output(bytes, to_client);
        if last.is_said() {
            self.state = State::Finished;
        } else if last.is_off() {
            self.last_reply = None;
        }
    }

    fn on_reply_end(&mut self, closes: bool, to_client: &mut Vec<u8>) {
        self.again.pop_front();
        if let Some(last) = &mut self.last_reply {
            last.on_answered();
        }
        self.state = match self.barred.take() {
            _ if closes => State::Finished,
            barred if !self.again.is_empty() => {
                self.barred = barred;
                State::head(Said::default())
            }
            Some(request) => return self.refuse(request, Refusal::NotRepeatable, to_client),
            None => State::Transparent,
        };
    }
}
