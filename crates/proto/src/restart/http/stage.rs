//! The stage: a relay in front of an HTTP application that lets no byte of a reply leave before the whole reply is at the backup
//! (docs/restart-staged.md).
//!
//! ```text
//!              request                    ┌ must not be executed again: exported
//!   Idle ───────────────▶ Asking ◀────────┘
//!     ▲                     │ the reply is complete: exported        longer than the limit: its header is exported
//!     └── reply, whole ─────┴──────────────────────────────────────▶ Streaming ──▶ Idle
//! ```
//!
//! The stage is a server with restart policy `snapshot`: its output after a [`StagedPoint`] is the same each time.

use std::collections::VecDeque;

use super::head::{Method, RequestHead};
use super::lines::Volatile;
use super::rules::Reexecute;
use super::section::next_section;
use super::staged::{StagedExchange, StagedPoint, StagedProgress, marked};
use super::{HEAD_MAX, REFUSAL};

/// Reply to a client that waits with its body. The stage sends it, so that it is the same each time.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Reply to input that is no HTTP/1 request, or asks for a tunnel.
const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Length: 0\r\n\
    Connection: close\r\n\
    \r\n";

/// After a longer reply than this, the stage exports [`StagedPoint::Idle`], so that the backup can forget the reply.
const SMALL: usize = 16 << 10;

/// How a stage treats replies and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageRules {
    /// Requests that may be executed again.
    pub reexecute: Reexecute,
    /// Longest reply that is held back, in bytes with its header. A longer one streams.
    pub limit: usize,
}

/// What the stage's process has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageAction {
    /// Send these bytes to the application. If there is no connection to it, open one.
    ToApplication(Vec<u8>),
    /// Close the connection to the application. Its further bytes belong to no request.
    DropApplication,
    /// Export this point, wait until the backup keeps it, and then call [`ReplyStage::on_exported`].
    Export(StagedPoint),
    /// Export this point, and do not wait.
    Note(StagedPoint),
    /// Send these bytes to the client.
    ToClient(Vec<u8>),
    /// Close the client's connection in order.
    Close,
    /// Reset the client's connection.
    Reset,
}

/// One connection of a client through the stage.
#[derive(Debug)]
pub struct ReplyStage {
    rules: StageRules,
    volatile: Volatile,
    /// Input that was read and not given to the application.
    input: Vec<u8>,
    input_ended: bool,
    /// A dead server may have executed the next request.
    repeats: bool,
    exchange: Option<StagedExchange>,
    phase: StagePhase,
    actions: VecDeque<StageAction>,
}

#[derive(Debug)]
enum StagePhase {
    Relaying,
    /// Waits until a point is exported.
    Exporting(AfterExport),
    /// Bytes pass unchanged in both directions: they are not HTTP.
    Opaque,
    Ended,
}

#[derive(Debug)]
enum AfterExport {
    /// The request's header, and its exchange.
    Ask(Vec<u8>),
    /// The whole reply, or a refusal. `closes`: the connection ends with it.
    Answer {
        bytes: Vec<u8>,
        closes: bool,
    },
    Stream,
    Upgrade(Vec<u8>),
}

impl ReplyStage {
    /// The stage of a new connection.
    pub fn new(rules: StageRules) -> Self {
        Self {
            rules,
            volatile: Volatile::default(),
            input: Vec::new(),
            input_ended: false,
            repeats: false,
            exchange: None,
            phase: StagePhase::Relaying,
            actions: VecDeque::new(),
        }
    }

    /// The stage of a connection that goes on from `point` after a takeover.
    pub fn restored(rules: StageRules, point: StagedPoint) -> Self {
        let mut stage = Self {
            repeats: true,
            ..Self::new(rules)
        };
        match point {
            StagedPoint::Executing => stage.answer(REFUSAL.to_vec(), true),
            StagedPoint::Reply { bytes, closes, input } => {
                stage.input = input;
                stage.answer(bytes, closes);
            }
            StagedPoint::Told {
                head,
                request: Some(request),
                input,
            } => {
                stage.input = input;
                match StagedExchange::told(&request, head.clone()) {
                    Ok(exchange) => {
                        stage.exchange = Some(exchange);
                        stage.act(StageAction::ToClient(head));
                        stage.act(StageAction::ToApplication(marked(&request)));
                    }
                    Err(_) => stage.reset(),
                }
            }
            StagedPoint::Idle { input } => {
                stage.input = input;
                stage.go_on();
            }
            StagedPoint::Told { request: None, .. } | StagedPoint::Upgraded => stage.reset(),
        }
        stage
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<StageAction> {
        self.actions.pop_front()
    }

    /// Whether the client's bytes are to be read.
    pub const fn wants_client(&self) -> bool {
        let is_open = matches!(self.phase, StagePhase::Relaying | StagePhase::Opaque);
        is_open && !self.input_ended && self.input.len() < HEAD_MAX
    }

    /// Whether the application's bytes are to be read.
    pub const fn wants_application(&self) -> bool {
        matches!(self.phase, StagePhase::Relaying | StagePhase::Opaque)
    }

    /// Whether the application owes something: a reply, or the other half of a conversation that is not HTTP.
    pub const fn wants_reply(&self) -> bool {
        self.exchange.is_some() || matches!(self.phase, StagePhase::Opaque)
    }

    /// Whether the connection is between two requests, with nothing to do: it may be closed in order.
    pub fn is_idle(&self) -> bool {
        let is_relaying = matches!(self.phase, StagePhase::Relaying);
        is_relaying && self.exchange.is_none() && self.input.is_empty() && self.actions.is_empty()
    }

    /// Bytes of the present request and its reply that are kept in memory. Both can grow up to the limit.
    pub fn held_bytes(&self) -> usize {
        self.exchange.as_ref().map_or(0, StagedExchange::held_bytes)
    }

    /// The client's next bytes.
    pub fn on_client(&mut self, bytes: &[u8]) {
        match self.phase {
            StagePhase::Opaque => self.act(StageAction::ToApplication(bytes.to_vec())),
            StagePhase::Ended => {}
            StagePhase::Relaying | StagePhase::Exporting(_) => {
                self.input.extend_from_slice(bytes);
                self.go_on();
            }
        }
    }

    /// The client has ended its stream.
    pub fn on_client_end(&mut self) {
        self.input_ended = true;
        if matches!(self.phase, StagePhase::Opaque) {
            self.close();
        }
        self.go_on();
    }

    /// The application's next bytes. Call this only while [`wants_application`](Self::wants_application).
    pub fn on_application(&mut self, mut bytes: &[u8]) {
        if matches!(self.phase, StagePhase::Opaque) {
            return self.act(StageAction::ToClient(bytes.to_vec()));
        }
        let Some(exchange) = &mut self.exchange else {
            return self.act(StageAction::DropApplication);
        };
        match exchange.take(&mut bytes, &self.volatile) {
            Ok(StagedProgress::Taken) => self.on_part(),
            Ok(StagedProgress::Complete) => self.on_complete(!bytes.is_empty()),
            Ok(StagedProgress::Upgraded(head)) => {
                let after = AfterExport::Upgrade([&head, bytes].concat());
                self.export(StagedPoint::Upgraded, after);
            }
            Err(_) => self.on_lost(),
        }
    }

    /// The application has ended a connection on which it had answered earlier requests. It may have closed the connection before it saw the
    /// present request (RFC 9112 §9.5), so a request that may be repeated is sent again, if nothing of its reply has come. Returns whether it
    /// is. Otherwise, call [`on_application_end`](Self::on_application_end).
    pub fn ask_again(&mut self) -> bool {
        let exchange = self.exchange.as_ref().filter(|exchange| !exchange.has_reply());
        let Some(request) = exchange.and_then(|exchange| exchange.request.as_deref()) else {
            return false;
        };
        let request = marked(request);
        self.act(StageAction::DropApplication);
        self.act(StageAction::ToApplication(request));
        true
    }

    /// The application has ended its stream, or its connection has failed (`is_orderly` is false), or there is none. Returns whether a request
    /// has lost its reply. Call this only while [`wants_application`](Self::wants_application).
    pub fn on_application_end(&mut self, is_orderly: bool) -> bool {
        match &self.exchange {
            _ if matches!(self.phase, StagePhase::Opaque) && is_orderly => self.close(),
            _ if matches!(self.phase, StagePhase::Opaque) => self.reset(),
            Some(exchange) if is_orderly && exchange.ends() => self.on_complete(false),
            Some(_) => {
                self.on_lost();
                return true;
            }
            None => {}
        }
        false
    }

    /// The backup keeps the point that was exported, or there is no backup.
    pub fn on_exported(&mut self) {
        let phase = std::mem::replace(&mut self.phase, StagePhase::Relaying);
        let StagePhase::Exporting(after) = phase else {
            self.phase = phase;
            return;
        };
        match after {
            AfterExport::Ask(head) => self.ask(head),
            AfterExport::Answer { bytes, closes } => self.answer(bytes, closes),
            AfterExport::Stream => {
                if let Some(reply) = self.exchange.as_mut().and_then(StagedExchange::reply) {
                    reply.streams = true;
                }
                self.on_part();
            }
            AfterExport::Upgrade(bytes) => {
                self.phase = StagePhase::Opaque;
                self.act(StageAction::ToClient(bytes));
                let input = std::mem::take(&mut self.input);
                if !input.is_empty() {
                    self.act(StageAction::ToApplication(input));
                }
            }
        }
    }

    fn act(&mut self, action: StageAction) {
        self.actions.push_back(action);
    }

    fn export(&mut self, point: StagedPoint, after: AfterExport) {
        self.phase = StagePhase::Exporting(after);
        self.act(StageAction::Export(point));
    }

    fn close(&mut self) {
        self.phase = StagePhase::Ended;
        self.act(StageAction::Close);
    }

    fn reset(&mut self) {
        self.phase = StagePhase::Ended;
        self.act(StageAction::Reset);
    }

    /// Reads what can be read of the input: the next request, or more of the present one.
    fn go_on(&mut self) {
        if !matches!(self.phase, StagePhase::Relaying) {
            return;
        }
        if self.exchange.is_some() {
            return self.ask_more();
        }
        let blank = self.input.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
        let blank = blank.count();
        self.input.drain(..blank); // RFC 9112 §2.2: ignored before a request
        let mut rest = self.input.as_slice();
        let head = match next_section(&mut Vec::new(), &mut rest) {
            Ok(Some(head)) => head.into_owned(),
            Ok(None) if self.input_ended => return self.close(),
            // No more is read, so the header would never be complete.
            Ok(None) if self.input.len() >= HEAD_MAX => return self.answer(BAD_REQUEST.to_vec(), true),
            Ok(None) => return,
            Err(_) => return self.answer(BAD_REQUEST.to_vec(), true),
        };
        let read = self.input.len() - rest.len();
        self.input.drain(..read);
        match RequestHead::parse(&head) {
            Ok(request) if request.method != Method::Connect => self.on_request(head, request),
            _ => self.answer(BAD_REQUEST.to_vec(), true),
        }
    }

    fn on_request(&mut self, head: Vec<u8>, request: RequestHead) {
        if request.expects_continue {
            self.act(StageAction::ToClient(CONTINUE.to_vec()));
        }
        let may_repeat = self.rules.reexecute.allows(request.method, request.has_key);
        self.exchange = Some(StagedExchange::new(request, may_repeat.then(|| head.clone())));
        if may_repeat {
            self.ask(head);
        } else {
            self.export(StagedPoint::Executing, AfterExport::Ask(head));
        }
    }

    fn ask(&mut self, head: Vec<u8>) {
        let repeats = std::mem::take(&mut self.repeats);
        let head = if repeats { marked(&head) } else { head };
        self.act(StageAction::ToApplication(head));
        self.ask_more();
    }

    /// Passes on the body of the request.
    fn ask_more(&mut self) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        let mut rest = self.input.as_slice();
        let mut is_bad = false;
        while let Some(body) = &mut exchange.asking
            && !rest.is_empty()
            && !is_bad
        {
            is_bad = body.next(&mut rest).is_err();
            if body.is_complete() {
                exchange.asking = None;
            }
        }
        let read = self.input.len() - rest.len();
        let piece: Vec<u8> = self.input.drain(..read).collect();
        let limit = self.rules.limit;
        exchange.request = exchange.request.take().filter(|kept| kept.len() + read <= limit);
        if let Some(kept) = &mut exchange.request {
            kept.extend_from_slice(&piece);
        }
        let is_cut = self.input_ended && exchange.asking.is_some();
        if is_bad || is_cut {
            return self.reset();
        }
        if !piece.is_empty() {
            self.act(StageAction::ToApplication(piece));
        }
    }

    /// The reply is not complete. It streams if it is longer than the limit.
    fn on_part(&mut self) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        let is_asked = exchange.asking.is_none();
        let request = exchange.request.clone().filter(|_| is_asked);
        let Some(reply) = exchange.reply() else {
            return;
        };
        if reply.streams {
            let bytes = std::mem::take(&mut reply.held);
            if !bytes.is_empty() {
                self.act(StageAction::ToClient(bytes));
            }
        } else if reply.held.len() > self.rules.limit {
            let head = reply.head.clone();
            let input = self.input.clone();
            let point = StagedPoint::Told { head, request, input };
            self.export(point, AfterExport::Stream);
        }
    }

    /// The reply is complete. `has_more`: the application has sent bytes behind it.
    fn on_complete(&mut self, has_more: bool) {
        let Some(mut exchange) = self.exchange.take() else {
            return;
        };
        let closes = exchange.closes();
        if has_more {
            self.act(StageAction::DropApplication);
        }
        let (bytes, streams) = exchange.reply().map_or((Vec::new(), false), |reply| {
            (std::mem::take(&mut reply.held), reply.streams)
        });
        if streams {
            // The client has it all, so the request must not be executed again.
            self.act(StageAction::ToClient(bytes));
            return self.export_answer(Vec::new(), closes);
        }
        self.export_answer(bytes, closes);
    }

    fn export_answer(&mut self, bytes: Vec<u8>, closes: bool) {
        let point = StagedPoint::Reply {
            bytes: bytes.clone(),
            closes,
            input: self.input.clone(),
        };
        self.export(point, AfterExport::Answer { bytes, closes });
    }

    /// The application does not complete its reply. A client that has nothing of it gets a refusal.
    fn on_lost(&mut self) {
        let has_left = self.exchange.take().is_some_and(|exchange| exchange.has_left());
        self.act(StageAction::DropApplication);
        if has_left {
            self.reset();
        } else {
            self.export_answer(REFUSAL.to_vec(), true);
        }
    }

    /// The exchange ends with these bytes.
    fn answer(&mut self, bytes: Vec<u8>, closes: bool) {
        self.exchange = None;
        let is_large = bytes.len() > SMALL;
        if !bytes.is_empty() {
            self.act(StageAction::ToClient(bytes));
        }
        if closes {
            return self.close();
        }
        if is_large {
            let input = self.input.clone();
            self.act(StageAction::Note(StagedPoint::Idle { input }));
        }
        self.go_on();
    }
}
