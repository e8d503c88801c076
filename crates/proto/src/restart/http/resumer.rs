//! The relay's filter. It drops the part of a regenerated reply that the client already has, passes the rest on, and refuses
//! requests that must not be executed again.

use std::collections::VecDeque;

use super::REFUSAL;
use super::body::Body;
use super::continued::Continued;
use super::head::ReplyHead;
use super::last_reply::LastReply;
use super::lines::Volatile;
use super::reason::HttpMismatch;
use super::resume::{BodyPrefix, HttpResume, PendingRequest, ReplyPrefix};
use super::section::take_section;

/// Status 206, Partial Content (RFC 9110 §15.3.7).
const PARTIAL: u16 = 206;

/// Why a request was answered with [`REFUSAL`], or why its reply was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRefusal {
    /// The request may have been executed and must not be executed again.
    NotRepeatable,
    /// A second server failed while it executed the request, so the request is not executed a third time.
    Quarantined,
    /// The survivor's application cannot be connected to.
    Unreachable,
}

/// Turns regenerated replies into the continuation of a logged stream. After these replies, bytes pass unchanged.
///
/// The filter passes nothing on until it knows that the regenerated reply begins with the part that the client has. It follows each
/// regenerated reply to its end, so that a refusal can take the place of the next reply.
#[derive(Debug)]
pub struct HttpResumer {
    volatile: Volatile,
    /// Requests that are executed again and not yet answered.
    again: VecDeque<PendingRequest>,
    /// The request after `again`, which must not be executed again.
    barred: Option<PendingRequest>,
    refusal: Option<(PendingRequest, RequestRefusal)>,
    /// Set if the client is to reconnect.
    last_reply: Option<LastReply>,
    state: ResumerState,
}

#[derive(Debug)]
enum ResumerState {
    /// Collects the regenerated header that continues the logged one, until it is complete.
    Head {
        said: ReplyPrefix,
        regenerated: Vec<u8>,
    },
    /// Follows the regenerated body to its end. `closes`: the connection ends with the body.
    Body {
        continued: Continued,
        closes: bool,
    },
    Transparent,
    Finished,
    Failed(HttpMismatch),
}

impl ResumerState {
    const fn head(said: ReplyPrefix) -> Self {
        Self::Head {
            said,
            regenerated: Vec::new(),
        }
    }
}

impl HttpResumer {
    /// Returns a filter with the default list of volatile header fields, and the bytes that the client gets first.
    pub fn new(resume: HttpResume) -> (Self, Vec<u8>) {
        Self::with_volatile(resume, Volatile::default())
    }

    /// As [`new`](Self::new), with the given list of volatile header fields.
    pub fn with_volatile(resume: HttpResume, volatile: Volatile) -> (Self, Vec<u8>) {
        let mut to_client = Vec::new();
        let mut resumer = Self {
            volatile,
            again: VecDeque::new(),
            barred: None,
            refusal: None,
            last_reply: None,
            state: ResumerState::Transparent,
        };
        match resume {
            HttpResume::Finished => resumer.state = ResumerState::Finished,
            HttpResume::Idle => {}
            HttpResume::Again {
                said,
                requests,
                refused,
            } => {
                resumer.again = requests.into();
                resumer.barred = refused;
                resumer.state = ResumerState::head(said);
            }
            HttpResume::Refused(request) => {
                resumer.refuse(request, RequestRefusal::NotRepeatable, &mut to_client)
            }
        }
        (resumer, to_client)
    }

    /// Makes the client reconnect: the next reply that can be the last one of the connection says `Connection: close`. Call this
    /// before anything else.
    pub fn close_softly(&mut self) {
        self.last_reply = Some(LastReply::default());
    }

    /// Takes the next bytes for the application. Returns how many of them the application is to get. The caller drops the rest.
    pub fn on_input(&mut self, bytes: &[u8]) -> usize {
        self.last_reply
            .as_mut()
            .map_or(bytes.len(), |last| last.on_input(bytes))
    }

    /// Whether the application must repeat a reply. If so, the logged request must be sent to it again.
    pub const fn awaits_reply(&self) -> bool {
        matches!(self.state, ResumerState::Head { .. } | ResumerState::Body { .. })
    }

    /// Whether bytes pass unchanged from now on, so the relay need not call the filter.
    pub const fn is_transparent(&self) -> bool {
        matches!(self.state, ResumerState::Transparent) && self.last_reply.is_none()
    }

    /// Whether the filter has nothing left to compare or report, so the relay need not keep it.
    pub fn is_over(&self) -> bool {
        self.is_transparent() && self.again.is_empty() && self.refusal.is_none()
    }

    /// Whether the connection's last reply is complete. If so, the relay ends the output, whatever the application does.
    pub const fn is_finished(&self) -> bool {
        matches!(self.state, ResumerState::Finished)
    }

    /// The request that was refused, or whose reply was cut because a second server failed.
    pub const fn refusal(&self) -> Option<&(PendingRequest, RequestRefusal)> {
        self.refusal.as_ref()
    }

    /// Takes the application's next bytes. Appends to `to_client` the bytes that the client is to get.
    ///
    /// # Errors
    /// The regenerated reply differs from the logged one. The call that finds the difference appends only bytes that are known to
    /// be right. Every later call fails too.
    pub fn on_application(&mut self, mut bytes: &[u8], to_client: &mut Vec<u8>) -> Result<(), HttpMismatch> {
        while !bytes.is_empty() {
            self.step(&mut bytes, to_client)
                .map_err(|mismatch| self.fail(mismatch))?;
        }
        Ok(())
    }

    /// The application has ended its stream. On success, the caller ends the output too. If the application owes a reply of which
    /// nothing was sent, a refusal takes the reply's place.
    ///
    /// # Errors
    /// The reply is not complete.
    pub fn on_application_end(&mut self, to_client: &mut Vec<u8>) -> Result<(), HttpMismatch> {
        let mismatch = match &self.state {
            ResumerState::Transparent | ResumerState::Finished => return Ok(()),
            ResumerState::Failed(mismatch) => mismatch.clone(),
            ResumerState::Head { .. } => HttpMismatch::EndedEarly,
            ResumerState::Body { continued, .. } => continued.ended_early(),
        };
        if self.on_application_lost(RequestRefusal::Quarantined, to_client) {
            return Ok(());
        }
        Err(self.fail(mismatch))
    }

    /// The application's connection failed, or there is none. If the application owes a reply of which nothing was sent, a
    /// refusal for the reason `why` takes the reply's place. Returns true if the output ends cleanly. Otherwise the connection must be
    /// reset.
    pub fn on_application_lost(&mut self, why: RequestRefusal, to_client: &mut Vec<u8>) -> bool {
        let is_silent = matches!(&self.state, ResumerState::Head { said, .. } if said.head.is_empty());
        match self.again.pop_front() {
            Some(request) if is_silent => self.refuse(request, why, to_client),
            Some(request) => self.refusal = Some((request, why)),
            None => {}
        }
        self.is_finished()
    }

    fn refuse(&mut self, request: PendingRequest, why: RequestRefusal, to_client: &mut Vec<u8>) {
        to_client.extend_from_slice(REFUSAL);
        self.refusal = Some((request, why));
        self.state = ResumerState::Finished;
    }

    fn fail(&mut self, mismatch: HttpMismatch) -> HttpMismatch {
        self.state = ResumerState::Failed(mismatch.clone());
        mismatch
    }

    fn step(&mut self, bytes: &mut &[u8], to_client: &mut Vec<u8>) -> Result<(), HttpMismatch> {
        match &mut self.state {
            ResumerState::Head { regenerated, .. } => {
                if take_section(regenerated, bytes)? {
                    self.on_head(to_client)?;
                }
            }
            ResumerState::Body { continued, closes } => {
                continued.step(bytes, &self.volatile, to_client)?;
                if continued.is_complete() {
                    let closes = *closes;
                    self.on_reply_end(closes, to_client);
                } else if continued.is_open_ended() {
                    self.go_on_for_ever();
                }
            }
            ResumerState::Transparent => self.pass(std::mem::take(bytes), to_client),
            ResumerState::Finished => *bytes = &[],
            ResumerState::Failed(mismatch) => return Err(mismatch.clone()),
        }
        Ok(())
    }

    /// Compares a whole regenerated header with the logged part of the header, and completes the logged part.
    fn on_head(&mut self, to_client: &mut Vec<u8>) -> Result<(), HttpMismatch> {
        let ResumerState::Head { said, regenerated } = &mut self.state else {
            return Ok(());
        };
        let regenerated = std::mem::take(regenerated);
        let request = self.again.front().ok_or(HttpMismatch::Framing)?;
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
            return Ok(()); // the client now has this interim reply, or does not need it; another header follows
        }
        let continuation = continuation?;
        // The header that the client gets must announce the same framing as the application's header.
        let told = ReplyHead::parse(&[said.head.as_slice(), &continuation].concat(), request.to_head)?;
        if told.body != parsed.body {
            return Err(HttpMismatch::Framing);
        }
        let closes = !(told.persists && request.persists);
        let prefix = said.body.take();
        to_client.extend_from_slice(&continuation);
        if parsed.status < 200 {
            self.again.pop_front(); // 101 answers the request, and the bytes that follow are not HTTP
            self.go_on_for_ever();
            return Ok(());
        }
        self.on_body(parsed.body, prefix, closes, to_client)
    }

    /// The application was asked for the rest of the body and replies with a part (206).
    fn on_rest(
        &mut self,
        said: ReplyPrefix,
        regenerated: &[u8],
        body: Option<Body>,
        to_client: &mut Vec<u8>,
    ) -> Result<(), HttpMismatch> {
        let (Some(rest), Some(prefix), Some(request)) = (said.rest, said.body, self.again.front()) else {
            return Err(HttpMismatch::Framing);
        };
        rest.check(&said.head, regenerated, body.as_ref(), &self.volatile)?;
        let told = ReplyHead::parse(&said.head, request.to_head)?;
        let closes = !(told.persists && request.persists);
        let again = BodyPrefix {
            bytes: prefix.bytes.checked_sub(rest.from).ok_or(HttpMismatch::Framing)?,
            digest: rest.digest,
            ..prefix
        };
        self.on_body(body, Some(again), closes, to_client)
    }

    /// Starts to follow `body`. The client already has the reply's header, and `prefix` of the body. `closes`: the connection ends with
    /// the body.
    fn on_body(
        &mut self,
        body: Option<Body>,
        prefix: Option<BodyPrefix>,
        closes: bool,
        to_client: &mut Vec<u8>,
    ) -> Result<(), HttpMismatch> {
        match body {
            Some(body) => {
                let continued = Continued::new(body, prefix, to_client)?;
                if continued.is_open_ended() {
                    self.go_on_for_ever();
                } else {
                    self.state = ResumerState::Body { continued, closes };
                }
            }
            None if prefix.is_some() => return Err(HttpMismatch::Framing),
            None => self.on_reply_end(closes, to_client),
        }
        Ok(())
    }

    /// The bytes that follow have no recognisable end, so they pass unchanged.
    fn go_on_for_ever(&mut self) {
        self.last_reply = None;
        self.state = ResumerState::Transparent;
    }

    fn pass(&mut self, bytes: &[u8], to_client: &mut Vec<u8>) {
        let Some(last) = &mut self.last_reply else {
            return to_client.extend_from_slice(bytes);
        };
        last.on_output(bytes, to_client);
        if last.is_said() {
            self.state = ResumerState::Finished;
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
            _ if closes => ResumerState::Finished,
            barred if !self.again.is_empty() => {
                self.barred = barred;
                ResumerState::head(ReplyPrefix::default())
            }
            Some(request) => return self.refuse(request, RequestRefusal::NotRepeatable, to_client),
            None => ResumerState::Transparent,
        };
    }
}
