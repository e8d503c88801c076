//! The backup's view of one connection: which requests are unanswered, and which part of the first one's reply was sent.

use std::borrow::Cow;

use super::REQUESTS_MAX;
use super::body::{Body, BodyPiece, BodyPosition};
use super::head::{Method, ReplyHead, RequestHead, begins_as_reply, begins_with_method};
use super::reason::HttpReason;
use super::rest::Rest;
use super::resume::{BodyPrefix, Feed, HttpResume, ReplyPrefix};
use super::rules::Rules;
use super::section::{HttpFault, next_section};
use super::unanswered::{RequestQueue, Unanswered};
use crate::Offset;
use crate::restart::digest::Digest;
use crate::spill::LogFull;

/// Follows one connection's two streams from their first byte on.
///
/// Bytes go in by [`on_input`](Self::on_input) and [`on_output`](Self::on_output) in order and in pieces of any size.
/// Give input as soon as it is released to the primary, because the primary may act on input before this node sees the
/// acknowledgement. Give a request before the output that answers it.
///
/// An idle tracker owns almost no memory. While a reply is under way, the tracker owns the reply's header and a hash. Body bytes
/// are hashed, not kept.
#[derive(Debug, Default)]
pub struct Tracker {
    rules: Rules,
    input: Offset,
    input_ended: bool,
    receiving: Receiving,
    unanswered: RequestQueue,
    replying: Replying,
    /// Complete interim replies to the first unanswered request: each status, and the number of replies with this status.
    interim: Vec<(u16, u32)>,
    /// At least one request and its reply are complete.
    has_exchanged: bool,
    state: TrackerState,
}

#[derive(Debug, Default)]
enum TrackerState {
    #[default]
    Following,
    /// The last reply is complete, or the output has ended.
    Finished,
    /// The streams cannot be followed, permanently.
    Refused(HttpReason, Option<Box<Switched>>),
}

#[derive(Debug, Default)]
enum Receiving {
    #[default]
    Between,
    Head {
        start: Offset,
        bytes: Vec<u8>,
    },
    Body(Body),
}

#[derive(Debug, Default)]
enum Replying {
    #[default]
    Between,
    Head(Vec<u8>),
    Body(Box<ReplyBody>),
}

impl Tracker {
    /// A tracker at the start of both streams, with the rules by which requests are executed again.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// A tracker that begins between two exchanges, where the input is at `input`.
    pub fn between(rules: Rules, input: Offset) -> Self {
        Self {
            input,
            ..Self::new(rules)
        }
    }

    /// The next input bytes (client to server) that the primary may have received.
    pub fn on_input(&mut self, bytes: &[u8]) {
        let is_first = self.is_at_start();
        self.input += bytes.len() as u64;
        if matches!(self.state, TrackerState::Following)
            && let Err(reason) = self.receive(bytes)
        {
            // An HTTP request that cannot be followed is still HTTP: a replica must not get it.
            let is_other = matches!(reason, HttpReason::Tls | HttpReason::Http2 | HttpReason::NotHttp);
            let switches = is_first && is_other && self.unanswered.is_empty();
            self.refuse(reason, switches.then(|| Switched::at_start(0)));
        }
    }

    /// The client has ended its stream after the input given so far.
    pub fn on_input_end(&mut self) {
        self.input_ended = true;
    }

    /// The next output bytes (server to client).
    pub fn on_output(&mut self, mut bytes: &[u8]) {
        // An HTTP reply without a request (408) is not another protocol: a replica must not get the client's input.
        let is_first = self.is_at_start() && !begins_as_reply(bytes);
        if let Err(reason) = self.reply(&mut bytes) {
            self.refuse(reason, is_first.then(|| Switched::at_start(bytes.len())));
        }
    }

    /// The server has ended its stream after the output given so far.
    pub fn on_output_end(&mut self) {
        self.end(TrackerState::Finished);
    }

    /// The log may not keep more input, for the reason `why`. Gives up the input of the unanswered requests that would
    /// be executed again. These requests are unprotected until their replies are complete. Returns false if there were
    /// no such requests.
    pub fn shed(&mut self, why: LogFull) -> bool {
        let mut has_shed = false;
        for request in self
            .unanswered
            .iter_mut()
            .filter(|request| request.is_repeatable())
        {
            request.forget(why);
            has_shed = true;
        }
        has_shed
    }

    /// Returns the restart point: input before this offset is no longer needed. The restart point is the start of the first request that
    /// would be executed again. Without such a request, it is the start of a request whose header is incomplete. Without an incomplete
    /// header, it is the end of the input. The restart point never moves back.
    pub fn restart_input(&self) -> Offset {
        if !matches!(self.state, TrackerState::Following) {
            return self.input;
        }
        let first = self.unanswered.iter().find(|request| request.is_repeatable());
        match (first, &self.receiving) {
            (Some(first), _) => first.start,
            (None, Receiving::Head { start, .. }) => *start,
            (None, Receiving::Between | Receiving::Body(_)) => self.input,
        }
    }

    /// Whether the restart point will advance without more input: the request at the restart point is complete and will be
    /// answered.
    pub fn drains(&self) -> bool {
        let first = self.unanswered.iter().position(Unanswered::is_repeatable);
        let is_whole =
            |first| first + 1 < self.unanswered.len() || !matches!(self.receiving, Receiving::Body(_));
        matches!(self.state, TrackerState::Following) && first.is_some_and(is_whole)
    }

    /// Whether a client would not notice a takeover now: no request would be refused and no reply cut.
    ///
    /// # Errors
    /// Why a client would notice the takeover. [`HttpReason`] says which of the reasons are temporary.
    pub fn protection(&self) -> Result<(), HttpReason> {
        match &self.state {
            TrackerState::Finished => return Ok(()),
            TrackerState::Refused(reason, _) => return Err(reason.clone()),
            TrackerState::Following => {}
        }
        let open = self.unanswered.iter().filter(|request| !request.answered);
        open.filter_map(Unanswered::barrier).next().map_or(Ok(()), Err)
    }

    /// Whether the output can go on.
    ///
    /// # Errors
    /// Why the output cannot go on. The client must then see the connection end.
    pub fn resumes(&self) -> Result<(), HttpReason> {
        if let TrackerState::Refused(reason, _) = &self.state {
            return Err(reason.clone());
        }
        let first = self.unanswered.front().filter(|first| !first.answered);
        let has_begun = !matches!(self.replying, Replying::Between);
        let barrier = first.and_then(Unanswered::barrier).filter(|_| has_begun);
        barrier.map_or(Ok(()), Err)
    }

    /// How the output goes on when an application is fed the input that [`feed`](Self::feed) returns.
    ///
    /// # Errors
    /// As [`resumes`](Self::resumes).
    pub fn resume(&self) -> Result<HttpResume, HttpReason> {
        self.resumes()?;
        if matches!(self.state, TrackerState::Finished) {
            return Ok(HttpResume::Finished);
        }
        let Some(first) = self.unanswered.front() else {
            let nothing_comes = self.input_ended && matches!(self.receiving, Receiving::Between);
            return Ok(if nothing_comes {
                HttpResume::Finished
            } else {
                HttpResume::Idle
            });
        };
        if first.answered {
            return Ok(HttpResume::Finished); // nobody reads the rest of the request's body
        }
        if first.barrier().is_some() {
            return Ok(HttpResume::Refused(first.owed()));
        }
        Ok(HttpResume::Again {
            said: self.said(),
            requests: self.again().map(Unanswered::owed).collect(),
            refused: self.barred().map(Unanswered::owed),
        })
    }

    /// The part of the input that a new application is given if [`resume`](Self::resume) succeeds.
    pub fn feed(&self) -> Feed {
        let barred = self.barred();
        Feed {
            from: self.restart_input(),
            until: barred.map(|request| request.start),
            marks: self.again().map(Unanswered::fields).collect(),
            fields: self.rest().map(|rest| rest.fields()).unwrap_or_default(),
        }
    }

    /// The requests that would be executed again.
    fn again(&self) -> impl Iterator<Item = &Unanswered> {
        self.unanswered
            .iter()
            .take_while(|request| request.is_repeatable())
    }

    /// The first request that would be refused.
    fn barred(&self) -> Option<&Unanswered> {
        self.unanswered.iter().find(|request| request.barrier().is_some())
    }

    fn said(&self) -> ReplyPrefix {
        let (head, body) = match &self.replying {
            Replying::Between => (Vec::new(), None),
            Replying::Head(bytes) => (bytes.clone(), None),
            Replying::Body(reply) => (reply.head.clone(), Some(reply.prefix())),
        };
        ReplyPrefix {
            interim: self.interim.clone(),
            head,
            body,
            rest: self.rest(),
        }
    }

    /// Returns the part of the current reply's body that the first request asks for when it is executed again. `None`: the whole body.
    fn rest(&self) -> Option<Rest> {
        let Replying::Body(reply) = &self.replying else {
            return None;
        };
        let asks = |first: &Unanswered| self.rules.ranges && first.takes_range && first.is_repeatable();
        self.unanswered.front().filter(|first| asks(first))?;
        reply.rest()
    }

    /// Whether at least one request and its reply were completed since the tracker began.
    pub fn has_exchanged(&self) -> bool {
        self.has_exchanged
    }

    /// Returns the reason if the streams can no longer be followed. This state is permanent.
    pub fn refusal(&self) -> Option<&HttpReason> {
        match &self.state {
            TrackerState::Refused(reason, _) => Some(reason),
            TrackerState::Following | TrackerState::Finished => None,
        }
    }

    /// Returns the point at which another protocol has begun, if the other protocol is the reason for the refusal. Later calls return
    /// `None`.
    pub fn take_switched(&mut self) -> Option<Switched> {
        match &mut self.state {
            TrackerState::Refused(_, switched) => switched.take().map(|switched| *switched),
            TrackerState::Following | TrackerState::Finished => None,
        }
    }

    /// Whether the client's input up to `input` ends with a complete request and a reply is owed, so the next output is a reply.
    pub fn is_asked_all(&self, input: Offset) -> bool {
        matches!(self.receiving, Receiving::Between) && self.input == input && !self.unanswered.is_empty()
    }

    /// Whether the body of the connection's last reply is under way and may end after `bytes` more bytes.
    pub fn ends_after(&self, bytes: u64) -> bool {
        let Replying::Body(reply) = &self.replying else {
            return false;
        };
        let request_persists = self.unanswered.front().is_none_or(|first| first.persists);
        !(reply.persists && request_persists) && reply.left().is_none_or(|left| left == bytes)
    }

    /// Number of requests without a complete reply.
    pub fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// Heap memory of the tracker in bytes. Close to 0 while the connection is idle or cannot be restarted.
    pub fn memory(&self) -> usize {
        let receiving = match &self.receiving {
            Receiving::Head { bytes, .. } => bytes.capacity(),
            Receiving::Between | Receiving::Body(_) => 0,
        };
        let replying = match &self.replying {
            Replying::Between => 0,
            Replying::Head(bytes) => bytes.capacity(),
            Replying::Body(reply) => size_of::<ReplyBody>() + reply.head.capacity(),
        };
        let interim = self.interim.capacity() * size_of::<(u16, u32)>();
        receiving + replying + self.unanswered.memory() + interim
    }

    /// Whether no HTTP was exchanged and all of the input is still kept for a restarted application.
    fn is_at_start(&self) -> bool {
        !self.has_exchanged && self.unanswered.is_empty() && self.restart_input() == Offset::ZERO
    }

    fn refuse(&mut self, reason: HttpReason, switched: Option<Switched>) {
        self.end(TrackerState::Refused(reason, switched.map(Box::new)));
    }

    fn end(&mut self, state: TrackerState) {
        if matches!(self.state, TrackerState::Following) {
            *self = Self {
                rules: self.rules,
                input: self.input,
                input_ended: self.input_ended,
                has_exchanged: self.has_exchanged,
                state,
                ..Self::default()
            };
        }
    }

    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), HttpReason> {
        while !bytes.is_empty() {
            let here = Offset(self.input.0 - bytes.len() as u64);
            match &mut self.receiving {
                Receiving::Between => match bytes[0] {
                    b'\r' | b'\n' => bytes = &bytes[1..], // RFC 9112 §2.2: ignored before a request
                    0x16 => return Err(HttpReason::Tls),  // the record type of a ClientHello
                    first if first.is_ascii_alphabetic() => {
                        self.receiving = Receiving::Head {
                            start: here,
                            bytes: Vec::new(),
                        };
                    }
                    _ => return Err(HttpReason::NotHttp),
                },
                Receiving::Head { start, bytes: head } => {
                    let start = *start;
                    if !begins_with_method(head, bytes) {
                        return Err(HttpReason::NotHttp);
                    }
                    if let Some(head) = next_section(head, &mut bytes).map_err(HttpReason::Request)? {
                        self.receiving = Receiving::Between;
                        self.on_request(start, &head)?;
                    }
                }
                Receiving::Body(body) => {
                    body.next(&mut bytes).map_err(HttpReason::Request)?;
                    if body.is_complete() {
                        self.receiving = Receiving::Between;
                        self.on_request_end();
                    }
                }
            }
        }
        Ok(())
    }

    fn on_request(&mut self, start: Offset, head: &[u8]) -> Result<(), HttpReason> {
        if head.starts_with(b"PRI * HTTP/2.0\r\n") {
            return Err(HttpReason::Http2);
        }
        let request = RequestHead::parse(head).map_err(HttpReason::Request)?;
        if request.method == Method::Connect {
            return Err(HttpReason::Tunnel);
        }
        if self.unanswered.len() == REQUESTS_MAX {
            return Err(HttpReason::TooManyRequests);
        }
        let (new, body) = Unanswered::new(start, head, request, self.rules.reexecute);
        self.unanswered.push(new);
        match body {
            Some(body) => self.receiving = Receiving::Body(body),
            None => self.on_request_end(),
        }
        Ok(())
    }

    fn on_request_end(&mut self) {
        if self.unanswered.front().is_some_and(|first| first.answered) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        self.unanswered.forget_first();
        self.has_exchanged = true;
    }

    fn reply(&mut self, bytes: &mut &[u8]) -> Result<(), HttpReason> {
        while !bytes.is_empty() && matches!(self.state, TrackerState::Following) {
            match &mut self.replying {
                Replying::Between => {
                    if self.unanswered.front().is_none_or(|first| first.answered) {
                        return Err(HttpReason::UnexpectedReply);
                    }
                    self.replying = Replying::Head(Vec::new());
                }
                Replying::Head(head) => {
                    if let Some(head) = next_section(head, bytes).map_err(HttpReason::Reply)? {
                        self.replying = Replying::Between;
                        self.on_reply_head(head, bytes)?;
                    }
                }
                Replying::Body(reply) => {
                    reply.take(bytes).map_err(HttpReason::Reply)?;
                    if reply.is_complete() {
                        let persists = reply.persists;
                        self.replying = Replying::Between;
                        self.on_reply_end(persists);
                    }
                }
            }
        }
        Ok(())
    }

    /// `rest` is the output after the header. It often has the whole body, so that nothing of the body needs to be remembered.
    fn on_reply_head(&mut self, head: Cow<'_, [u8]>, rest: &mut &[u8]) -> Result<(), HttpReason> {
        let to_head = self
            .unanswered
            .front()
            .is_some_and(|first| first.method == Method::Head);
        let reply = ReplyHead::parse(&head, to_head).map_err(HttpReason::Reply)?;
        match reply.body {
            _ if reply.status == 101 => self.on_upgrade(head.into_owned(), rest.len()),
            _ if reply.is_interim() => self.on_interim(reply.status),
            None => self.on_reply_end(reply.persists),
            Some(Body::Length { left }) if left <= rest.len() as u64 => {
                *rest = &rest[usize::try_from(left).unwrap_or(rest.len())..];
                self.on_reply_end(reply.persists);
            }
            Some(body) => {
                let reply = ReplyBody::new(head.into_owned(), reply.persists, body);
                self.replying = Replying::Body(Box::new(reply));
            }
        }
        Ok(())
    }

    /// The bytes after this reply are not HTTP.
    fn on_upgrade(&mut self, head: Vec<u8>, rest: usize) {
        let said = ReplyPrefix {
            interim: std::mem::take(&mut self.interim),
            head,
            ..ReplyPrefix::default()
        };
        let asked = self.unanswered.front().filter(|first| first.is_repeatable());
        let switched = asked.map(|first| Switched {
            input_from: first.start,
            reply: Some(HttpResume::Again {
                said,
                requests: vec![first.owed()],
                refused: None,
            }),
            rest,
        });
        self.refuse(HttpReason::Upgraded, switched);
    }

    fn on_interim(&mut self, status: u16) {
        match self.interim.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count = count.saturating_add(1),
            None => self.interim.push((status, 1)), // few different statuses are possible: all are below 200
        }
    }

    fn on_reply_end(&mut self, persists: bool) {
        self.interim = Vec::new();
        let Some(first) = self.unanswered.front_mut() else {
            return;
        };
        if !persists || !first.persists {
            return self.end(TrackerState::Finished);
        }
        first.answered = true;
        let is_whole = self.unanswered.len() > 1 || !matches!(self.receiving, Receiving::Body(_));
        if is_whole {
            self.forget_first();
        }
    }
}

/// The point in the two streams at which another protocol begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    /// Start of the input that a replica must get in order to speak the new protocol.
    pub input_from: Offset,
    /// The reply by which the connection was upgraded (RFC 9110 §7.8). The replica sends this reply first. `None`: the
    /// connection has no output from before the new protocol.
    pub reply: Option<HttpResume>,
    /// How many bytes at the end of the latest piece of output belong to the new protocol.
    pub rest: usize,
}

impl Switched {
    /// At the connection's first byte.
    pub(super) const fn at_start(rest: usize) -> Self {
        Self {
            input_from: Offset::ZERO,
            reply: None,
            rest,
        }
    }
}

/// A reply whose header is complete and whose body is not.
#[derive(Debug)]
pub(super) struct ReplyBody {
    pub head: Vec<u8>,
    /// Whether the connection stays open after this reply.
    pub persists: bool,
    body: Body,
    said: Digest,
}

impl ReplyBody {
    /// A body at its first byte.
    pub fn new(head: Vec<u8>, persists: bool, body: Body) -> Self {
        Self {
            head,
            persists,
            body,
            said: Digest::new(),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.body.is_complete()
    }

    /// Bytes of the body that have not been sent yet, if the header gives the length.
    pub const fn left(&self) -> Option<u64> {
        match self.body {
            Body::Length { left } => Some(left),
            Body::Chunked(_) | Body::UntilClose => None,
        }
    }

    /// Takes bytes of this body from the front of `bytes`.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<(), HttpFault> {
        if let Body::Length { left } = &mut self.body
            && *left <= bytes.len() as u64
        {
            // The reply is complete now, so its hash is not needed.
            *bytes = &bytes[usize::try_from(*left).unwrap_or(bytes.len())..];
            *left = 0;
        } else if let Some(BodyPiece::Payload(payload)) = self.body.next(bytes)? {
            self.said.write(payload);
        }
        Ok(())
    }

    /// The part of the body that was sent.
    pub fn prefix(&self) -> BodyPrefix {
        let position = match &self.body {
            Body::Chunked(chunked) => BodyPosition::Chunked(chunked.position.clone()),
            Body::Length { .. } => BodyPosition::Length,
            Body::UntilClose => BodyPosition::UntilClose,
        };
        BodyPrefix {
            bytes: self.said.bytes(),
            digest: self.said.of_all(),
            position,
        }
    }

    /// The part of the body for which an application may be asked, instead of the whole body.
    pub fn rest(&self) -> Option<Rest> {
        match self.body {
            Body::Length { left } => Rest::of(&self.head, self.said.bytes() + left, &self.said),
            Body::Chunked(_) | Body::UntilClose => None,
        }
    }
}
