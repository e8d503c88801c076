//! The relay of a restored connection. It copies bytes between the client and the local application. A filter drops the output that the
//! client already has. The relay does what the keeper does with sockets (`linux::keeper`), in the same order.
//!
//! ```text
//!            ┌─ nothing more is to be sent ────────┐
//!            │                                     ▼
//!  adopted ──┼─ idle ────────────▶ relaying ──▶ draining ──▶ ended
//!            │                        ▲
//!            └─ replica, replay ──────┘
//!
//!  idle, relaying ── failure ──▶ delivering ──▶ reset
//! ```

use std::sync::Arc;

use proto::Instant;
use proto::connection::OutputEnd;
use proto::restart::catch_up::CatchUp;
use proto::restart::prefix::{KeptInput, PrefixAnswer, PrefixAsk};
use proto::restart::{http, replay, replica};
use serde::{Deserialize, Serialize};

use super::application::SimApplication;
use super::exports::ConnectionExports;
use crate::host::App;
use crate::tcp::{EndpointState, TcpEndpoint};

/// How the application's side of a connection continues.
#[derive(Serialize, Deserialize)]
pub(super) enum RelayPlan {
    /// A fresh program gets the logged input from the restart point on, then what the client sends.
    Http(http::HttpResume),
    /// A fresh program imports the state, if there is one, and gets the logged input from the restart point on, then what the client
    /// sends. The program repeats the output that the [`Repetition`](replay::Repetition) describes.
    Replay(
        replay::Repetition,
        Option<replay::EarlierOutput>,
        Option<Arc<[u8]>>,
    ),
    /// The replica continues. It gets the logged input that it has not been fed, then what the client sends. A replica cannot move to an
    /// annex.
    #[serde(skip)]
    Replica(replica::ReplicaResume, Box<dyn SimApplication>),
    /// Nothing more is relayed.
    Silent,
}

/// A connection as the relay takes it over.
#[derive(Serialize, Deserialize)]
pub(super) struct RelayAdoption {
    pub plan: RelayPlan,
    /// Logged bytes that the application gets first.
    pub input: Vec<u8>,
    /// The client's stream ends with `input`: its FIN came before the endpoint was made. The endpoint does not know of this FIN.
    pub input_ended: bool,
    /// State of the server's FIN. The endpoint does not know of this FIN either.
    pub output: OutputEnd,
    /// Number of bytes of the application's next output that the endpoint takes as already sent.
    pub sent_before: u64,
}

impl RelayAdoption {
    /// Whether the program goes on from an imported state.
    pub const fn imports(&self) -> bool {
        matches!(self.plan, RelayPlan::Replay(_, _, Some(_)))
    }
}

/// How a relayed connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayEnding {
    /// Closed normally.
    Closed,
    /// Reset, for this reason.
    Reset(String),
}

/// One connection's relay.
pub struct SimRelay {
    /// Policy `snapshot`: the application goes on exporting its state.
    exports: Option<ConnectionExports>,
    /// Policy `replay` with `keep_input`: the whole input.
    kept: Option<KeptInput>,
    /// Bytes that the application has read and written since its last chance to export.
    progress: (usize, usize),
    start: Box<dyn FnOnce() -> Box<dyn SimApplication>>,
    phase: RelayPhase,
    input: Vec<u8>,
    /// The application also gets what the client sends.
    takes_input: bool,
    input_ended: bool,
    output: OutputEnd,
    /// The application has got input.
    has_passed: bool,
    /// The application was told that the client's stream has ended.
    up_ended: bool,
    /// Bytes for the client that the endpoint has not taken yet.
    outgoing: Vec<u8>,
    /// Number of bytes of the next output that the endpoint must take as already sent, and those that are there.
    sent_before: (u64, Vec<u8>),
    catch_up: CatchUp,
    ending: Option<RelayEnding>,
}

enum RelayPhase {
    /// No program runs yet. A program is started when there is input.
    Idle(RelayFilter),
    Relaying(RelayFilter, Box<dyn SimApplication>),
    /// The output has ended. The relay drops what the client still sends.
    Draining,
    /// The relay failed, for this reason. The connection is reset when the client has acknowledged all output that was sent to it.
    Delivering(String),
}

enum RelayFilter {
    Http(Box<http::HttpResumer>),
    Replica(replica::ReplicaResumer),
    Replay(Box<replay::RepetitionFilter>),
}

impl SimRelay {
    /// The relay of an adopted connection. `start` starts a fresh program.
    pub(super) fn new(
        now: Instant,
        adoption: RelayAdoption,
        exports: Option<ConnectionExports>,
        start: impl FnOnce() -> Box<dyn SimApplication> + 'static,
    ) -> Self {
        let mut start: Box<dyn FnOnce() -> Box<dyn SimApplication>> = Box::new(start);
        let RelayAdoption {
            plan,
            input,
            input_ended,
            output,
            sent_before,
        } = adoption;
        let mut outgoing = Vec::new();
        let mut takes_input = true;
        let phase = match plan {
            RelayPlan::Silent => RelayPhase::Draining,
            RelayPlan::Http(resume) => {
                takes_input = resume.takes_input();
                let (resumer, first) = http::HttpResumer::new(resume);
                outgoing = first;
                if resumer.is_finished() {
                    RelayPhase::Draining
                } else {
                    RelayPhase::Idle(RelayFilter::Http(Box::new(resumer)))
                }
            }
            RelayPlan::Replica(resume, application) => {
                let (resumer, first) = replica::ReplicaResumer::new(resume);
                outgoing = first;
                RelayPhase::Relaying(RelayFilter::Replica(resumer), application)
            }
            RelayPlan::Replay(resume, earlier, state) => {
                let filter = replay::RepetitionFilter::new(resume).after(earlier);
                let filter = RelayFilter::Replay(Box::new(filter));
                let start = std::mem::replace(&mut start, started());
                let mut application = start();
                if let Some(state) = state {
                    application.import_state(now, &state);
                }
                RelayPhase::Relaying(filter, application)
            }
        };
        let missing = missing_of(&phase) + sent_before;
        Self {
            catch_up: CatchUp::new(now, missing),
            start,
            phase,
            input,
            takes_input,
            input_ended,
            output,
            has_passed: false,
            up_ended: false,
            outgoing,
            sent_before: (sent_before, Vec::new()),
            ending: None,
            exports,
            kept: None,
            progress: (0, 0),
        }
    }

    /// Keeps the connection's input from now on.
    pub(super) fn keep(&mut self, kept: KeptInput) {
        self.kept = Some(kept);
    }

    /// The answer to the peer's question for the connection's first input. `None`: the input is not kept.
    pub(super) fn answer(&self, ask: &PrefixAsk) -> Option<PrefixAnswer> {
        let is_new = missing_of(&self.phase) + self.sent_before.0 == 0;
        let kept = self.kept.as_ref().filter(|_| self.ending.is_none())?;
        Some(kept.answer(ask, is_new))
    }

    /// Whether the connection's whole input is kept.
    pub(super) fn keeps_input(&self) -> bool {
        self.ending.is_none() && self.kept.as_ref().is_some_and(KeptInput::is_whole)
    }

    /// How the connection ended, if it has.
    pub const fn ending(&self) -> Option<&RelayEnding> {
        self.ending.as_ref()
    }

    /// Whether the endpoint must be removed without sending anything. The client acknowledged the server's FIN before
    /// the endpoint was made, so closing the endpoint would send a second FIN.
    pub(super) fn is_to_vanish(&self) -> bool {
        self.ending.is_some() && self.output == OutputEnd::FinAcknowledged
    }

    /// Whether the connection is live and the client has sent no input: none was logged, and none was passed to the application.
    pub(super) const fn is_silent(&self) -> bool {
        !self.has_passed && self.input.is_empty() && self.ending.is_none()
    }

    fn go_on(&mut self, now: Instant, endpoint: &mut TcpEndpoint) -> Result<Option<Instant>, String> {
        if self.output == OutputEnd::FinSent {
            endpoint.shutdown();
        }
        self.leave_idle(endpoint)?;
        match &self.phase {
            RelayPhase::Idle(_) => return Ok(None),
            RelayPhase::Relaying(..) => {
                self.up(now, endpoint);
                self.down(now, endpoint)?;
                self.catch_up
                    .look(now, missing_of(&self.phase) + self.sent_before.0);
                self.catch_up.check(now)?;
                self.export();
            }
            RelayPhase::Draining | RelayPhase::Delivering(_) => {}
        }
        if let RelayPhase::Draining = self.phase {
            self.drain(endpoint);
        }
        Ok(match &self.phase {
            RelayPhase::Relaying(_, application) => {
                let wakes_at = application.wakes_at().filter(|at| *at > now);
                wakes_at.into_iter().chain(self.catch_up.gives_up_at()).min()
            }
            RelayPhase::Idle(_) | RelayPhase::Draining | RelayPhase::Delivering(_) => None,
        })
    }

    fn export(&mut self) {
        if let (Some(exports), RelayPhase::Relaying(_, application)) = (&mut self.exports, &self.phase)
            && !application.is_finished()
        {
            let (read, written) = std::mem::take(&mut self.progress);
            exports.on_progress(read, written, || application.export_state());
        }
    }

    /// Starts a program as soon as there is input.
    fn leave_idle(&mut self, endpoint: &TcpEndpoint) -> Result<(), String> {
        let RelayPhase::Idle(filter) = &self.phase else {
            return Ok(());
        };
        if self.input.is_empty() && !filter.is_transparent() {
            return Err("the unanswered request is not in the log".into());
        }
        let has_input = !self.input.is_empty() || !self.input_ended && endpoint.readable() > 0;
        if has_input {
            let start = std::mem::replace(&mut self.start, started());
            if let RelayPhase::Idle(filter) = std::mem::replace(&mut self.phase, RelayPhase::Draining) {
                self.phase = RelayPhase::Relaying(filter, start());
            }
        } else if self.input_ended || endpoint.is_read_finished() {
            self.phase = RelayPhase::Draining;
        }
        Ok(())
    }

    /// Passes to the application the logged input, then what the client sends, then the end of the client's stream.
    fn up(&mut self, now: Instant, endpoint: &mut TcpEndpoint) {
        let RelayPhase::Relaying(_, application) = &mut self.phase else {
            return;
        };
        let mut bytes = std::mem::take(&mut self.input);
        if !self.input_ended && self.takes_input {
            endpoint.read(&mut bytes, usize::MAX);
        }
        if !bytes.is_empty() {
            self.progress.0 += bytes.len();
            if let Some(kept) = &mut self.kept {
                kept.on_input(&bytes);
            }
            application.on_input(now, &bytes);
            self.has_passed = true;
        }
        let ended = self.takes_input && (self.input_ended || endpoint.is_read_finished());
        if ended && !std::mem::replace(&mut self.up_ended, true) {
            application.on_input_end(now);
        }
    }

    /// Passes to the client the application's output that the client does not have, then the end of the output.
    fn down(&mut self, now: Instant, endpoint: &mut TcpEndpoint) -> Result<(), String> {
        loop {
            self.take_sent_before(endpoint);
            let written = endpoint.write(&self.outgoing);
            self.outgoing.drain(..written);
            let RelayPhase::Relaying(filter, application) = &mut self.phase else {
                return Ok(());
            };
            if !self.outgoing.is_empty() {
                return Ok(());
            }
            if filter.is_finished() {
                self.end_output(endpoint);
                self.phase = RelayPhase::Draining;
                return Ok(());
            }
            let mut said = Vec::new();
            application.speak(now, READ_SIZE, &mut said);
            self.progress.1 += said.len();
            if !said.is_empty() {
                if let Some(kept) = &mut self.kept {
                    kept.on_output(&said);
                }
                filter.on_application(&said, &mut self.outgoing)?;
                if self.output != OutputEnd::Open {
                    self.outgoing.clear();
                }
            } else if application.is_finished() {
                filter.on_application_end(&mut self.outgoing)?;
                if self.sent_before.0 > 0 {
                    return Err("the application ended its output too early".into());
                }
                if filter.is_finished() {
                    continue;
                }
                self.end_output(endpoint);
                if self.up_ended {
                    self.ending = Some(RelayEnding::Closed);
                }
                return Ok(());
            } else {
                return Ok(());
            }
        }
    }

    /// Gives the next output to the endpoint as already sent, as `linux::keeper::sent` does.
    fn take_sent_before(&mut self, endpoint: &mut TcpEndpoint) {
        let (left, bytes) = &mut self.sent_before;
        if *left == 0 || self.outgoing.is_empty() {
            return;
        }
        let count = usize::try_from(*left).map_or(self.outgoing.len(), |left| left.min(self.outgoing.len()));
        bytes.extend(self.outgoing.drain(..count));
        *left -= count as u64;
        if *left == 0 {
            endpoint.load_as_sent(&std::mem::take(bytes));
        }
    }

    fn end_output(&mut self, endpoint: &mut TcpEndpoint) {
        if self.output == OutputEnd::Open {
            endpoint.shutdown();
            self.output = OutputEnd::FinSent;
        }
    }

    /// Drops what the client still sends.
    fn drain(&mut self, endpoint: &mut TcpEndpoint) {
        let written = endpoint.write(&self.outgoing);
        self.outgoing.drain(..written);
        if self.outgoing.is_empty() {
            self.end_output(endpoint);
        }
        endpoint.read(&mut Vec::new(), usize::MAX);
        if self.input_ended || endpoint.is_read_finished() {
            self.ending = Some(RelayEnding::Closed);
        }
    }
}

/// Number of bytes that the client has already and the application has yet to repeat.
fn missing_of(phase: &RelayPhase) -> u64 {
    match phase {
        RelayPhase::Relaying(RelayFilter::Replica(resumer), _) => resumer.missing(),
        RelayPhase::Relaying(RelayFilter::Replay(filter), _) => filter.missing(),
        _ => 0,
    }
}

/// Replaces the function that starts the program, after the program has started.
fn started() -> Box<dyn FnOnce() -> Box<dyn SimApplication>> {
    Box::new(|| unreachable!("started once"))
}

/// Maximum number of bytes in one read from the application.
const READ_SIZE: usize = 16 * 1024;

impl RelayFilter {
    fn is_transparent(&self) -> bool {
        match self {
            Self::Http(resumer) => resumer.is_transparent(),
            Self::Replica(resumer) => resumer.is_transparent(),
            Self::Replay(filter) => filter.is_transparent(),
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Self::Http(resumer) => resumer.is_finished(),
            Self::Replica(_) | Self::Replay(_) => false,
        }
    }

    fn on_application(&mut self, bytes: &[u8], to_client: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Http(resumer) => resumer
                .on_application(bytes, to_client)
                .map_err(|error| error.to_string()),
            Self::Replica(resumer) => resumer
                .on_application(bytes, to_client)
                .map_err(|error| error.to_string()),
            Self::Replay(filter) => filter
                .on_application(bytes, to_client)
                .map_err(|error| error.to_string()),
        }
    }

    fn on_application_end(&mut self, to_client: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Http(resumer) => resumer
                .on_application_end(to_client)
                .map_err(|error| error.to_string()),
            Self::Replica(resumer) => resumer.on_application_end().map_err(|error| error.to_string()),
            Self::Replay(filter) => filter.on_application_end().map_err(|error| error.to_string()),
        }
    }
}

impl App for SimRelay {
    fn drive(&mut self, now: Instant, endpoint: &mut TcpEndpoint) -> Option<Instant> {
        if self.ending.is_some() {
            return None;
        }
        if endpoint.state() == EndpointState::Closed {
            self.ending = Some(RelayEnding::Closed); // the client reset the connection, or was silent for too long
            return None;
        }
        let wakes_at = self.go_on(now, endpoint).unwrap_or_else(|reason| {
            self.phase = RelayPhase::Delivering(reason);
            None
        });
        if let RelayPhase::Delivering(reason) = &self.phase
            && endpoint.is_delivered()
        {
            self.ending = Some(RelayEnding::Reset(reason.clone()));
            endpoint.abort();
        }
        wakes_at
    }
}
