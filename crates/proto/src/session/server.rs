//! A session at one server: the owner's side, and that of a server that prepares itself to become the owner.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::frame::{
    AttachRequest, ClientFrame, ReadyOffer, ServerFrame, SessionBasis, SessionBundle, SessionCommit,
    SnapshotMark, StateTransfer,
};
use super::log::SessionLog;
use super::server_phase::{ServerEvent, ServerPhase};
use crate::restart::replay::RepetitionFilter;
use crate::restart::snapshot::Snapshot;
use crate::time::earlier;
use crate::{Instant, Offset};

/// Bytes that one side may send without an acknowledgement.
pub const SESSION_WINDOW: usize = 512 << 10;
/// Bound on the input that is kept for a restart.
pub const SESSION_LOG_MAX: usize = 16 << 20;
/// Bytes of one message with data.
pub const SESSION_DATA_MAX: usize = 32 << 10;
/// Number of snapshots that wait for output.
const WAITING_MAX: usize = 64;

/// Number of a link between a proxy and a server.
pub type SessionLink = u64;

/// Parameters of the sessions of one server.
#[derive(Clone, Copy, Debug)]
pub struct ServerSessionConfig {
    /// For how long the proxy's last answer lets the server own the session.
    pub lease: Duration,
    /// For how long a state is kept that nobody asks for.
    pub keep: Duration,
}

/// What the server has to carry out for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAction {
    /// Send a message to the proxy.
    Send(SessionLink, ServerFrame),
    /// Connect to the application. If it imports a state, it gets this one.
    StartApplication(Option<Arc<[u8]>>),
    /// Write these bytes to the application.
    ToApplication(Vec<u8>),
    /// End the application's input.
    EndApplication,
    /// Abort the connection to the application. Its calls of `export_state` fail with `EMIGRATED`.
    StopApplication,
    /// Push this snapshot to the cooperating servers. The proxy's restart point has the number `point`.
    Push {
        /// The snapshot.
        snapshot: Snapshot,
        /// Number of the proxy's restart point.
        point: u64,
    },
    /// Fetch the state from this server, for this epoch.
    Fetch {
        /// The owner's name.
        owner: String,
        /// The next epoch.
        epoch: u64,
    },
    /// The snapshots up to this number survive a failure of this server.
    Kept(u64),
    /// Forget the session.
    Forget,
}

/// What one server has of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionHolding {
    /// Number of snapshots: the restart point, and those that wait for their output.
    pub snapshots: usize,
    /// Bytes of the snapshots' states.
    pub snapshot_bytes: usize,
    /// Bytes of input and output that are kept.
    pub log_bytes: usize,
    /// End of the input.
    pub input: Offset,
    /// End of the output.
    pub output: Offset,
}

/// A request to prepare this server, and what has come of it.
#[derive(Debug)]
struct Preparation {
    link: SessionLink,
    request: AttachRequest,
    held: Option<Snapshot>,
    /// When the offer was sent, and on what it is based. `None`: the state is being fetched.
    offered: Option<(Instant, SessionBasis)>,
}

/// A session at one server.
#[derive(Debug)]
pub struct ServerSession {
    config: ServerSessionConfig,
    transfer: StateTransfer,
    phase: ServerPhase,
    /// The state is the last one of all epochs up to this one. 0: a copy, or nothing.
    epoch: u64,
    /// The last epoch for which this server offered that state. The proxy cannot have committed another epoch between the two.
    offered_epoch: u64,
    /// The epoch in which this server owns the session, or has owned it last.
    own_epoch: u64,
    /// The highest epoch that anybody has asked for.
    asked: u64,
    link: Option<SessionLink>,
    /// The link on which the proxy was told that this server has released the session.
    released_link: Option<SessionLink>,
    preparation: Option<Preparation>,
    lease_until: Instant,
    pings: VecDeque<(u64, Instant)>,
    next_ping: (u64, Instant),
    /// When the session is forgotten, unless its application runs.
    expires: Instant,
    point: Snapshot,
    waiting: VecDeque<Snapshot>,
    /// Snapshots that were pushed, and that no cooperating server has confirmed yet.
    pushed: VecDeque<SnapshotMark>,
    next_number: u64,
    /// Number of the proxy's restart point.
    proxy_point: u64,
    input: SessionLog,
    input_end: Option<Offset>,
    /// The application's socket has taken the input up to here.
    fed: Offset,
    output: SessionLog,
    output_end: Option<Offset>,
    /// Offset of the application's next byte.
    application_at: Offset,
    /// Offsets at which the application's streams began.
    application_base: (Offset, Offset),
    filter: Option<RepetitionFilter>,
    /// The application has closed its connection. Further input is dropped.
    is_gone: bool,
    actions: VecDeque<ServerAction>,
}

fn start() -> Snapshot {
    SnapshotMark::default().with_state(Arc::from([]))
}

impl ServerSession {
    /// A session of which this server has nothing yet.
    pub fn empty(now: Instant, config: ServerSessionConfig, transfer: StateTransfer) -> Self {
        Self {
            config,
            transfer,
            phase: ServerPhase::Empty,
            epoch: 0,
            offered_epoch: 0,
            own_epoch: 0,
            asked: 0,
            link: None,
            released_link: None,
            preparation: None,
            lease_until: now,
            pings: VecDeque::new(),
            next_ping: (1, now),
            expires: now + config.keep,
            point: start(),
            waiting: VecDeque::new(),
            pushed: VecDeque::new(),
            next_number: 0,
            proxy_point: 0,
            input: SessionLog::default(),
            input_end: None,
            fed: Offset::ZERO,
            output: SessionLog::default(),
            output_end: None,
            application_at: Offset::ZERO,
            application_base: (Offset::ZERO, Offset::ZERO),
            filter: None,
            is_gone: false,
            actions: VecDeque::new(),
        }
    }

    /// A new session, which this server owns. `opened` is the first message to the proxy.
    pub fn open(
        now: Instant,
        config: ServerSessionConfig,
        transfer: StateTransfer,
        link: SessionLink,
        opened: ServerFrame,
    ) -> Self {
        let mut session = Self::empty(now, config, transfer);
        session.phase = session
            .phase
            .after(ServerEvent::Stocked)
            .after(ServerEvent::Committed);
        (session.epoch, session.own_epoch, session.asked) = (1, 1, 1);
        session.next_number = 1 << 32;
        session.link = Some(link);
        session.lease_until = now + config.lease;
        session.actions.push_back(ServerAction::Send(link, opened));
        session.actions.push_back(ServerAction::StartApplication(None));
        session
    }

    /// State of the session.
    pub const fn phase(&self) -> ServerPhase {
        self.phase
    }

    /// The epoch in which this server owns the session, or has owned it last.
    pub const fn own_epoch(&self) -> u64 {
        self.own_epoch
    }

    /// What this server has of the session.
    pub fn holding(&self) -> SessionHolding {
        let point = (self.point.number > 0).then_some(&self.point);
        let snapshots = || self.waiting.iter().chain(point);
        SessionHolding {
            snapshots: snapshots().count(),
            snapshot_bytes: snapshots().map(|snapshot| snapshot.state.len()).sum(),
            log_bytes: self.input.len() + self.output.len(),
            input: self.input.end(),
            output: self.output.end(),
        }
    }

    /// The link to the proxy.
    pub const fn link(&self) -> Option<SessionLink> {
        self.link
    }

    /// Whether the application's output may be read.
    pub fn wants_output(&self) -> bool {
        self.phase.runs() && self.output.len() < SESSION_WINDOW
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<ServerAction> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let has_link = self.link.is_some() || self.preparation.is_some();
        let ping = (has_link && self.phase != ServerPhase::Over).then_some(self.next_ping.1);
        match self.phase {
            ServerPhase::Over => None,
            ServerPhase::Live => earlier(Some(self.lease_until), ping),
            ServerPhase::Empty | ServerPhase::Prepared | ServerPhase::Parked => {
                earlier(Some(self.expires), ping)
            }
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.phase.runs() {
            if now >= self.lease_until {
                self.park(now, ServerEvent::LeaseEnded);
            }
        } else if now >= self.expires {
            self.end();
        }
        if now >= self.next_ping.1 && self.phase != ServerPhase::Over {
            let number = self.next_ping.0;
            self.next_ping = (number + 1, now + self.config.lease / 4);
            let preparing = self.preparation.as_ref().map(|preparation| preparation.link);
            let links: Vec<_> = self.link.into_iter().chain(preparing).collect();
            if !links.is_empty() {
                self.pings.push_back((number, now));
                self.pings.truncate(WAITING_MAX);
            }
            for link in links {
                self.send(link, ServerFrame::Ping(number));
            }
        }
    }

    /// A link is lost.
    pub fn on_link_lost(&mut self, link: SessionLink) {
        if self.link == Some(link) {
            self.link = None;
        }
        self.preparation.take_if(|preparation| preparation.link == link);
    }

    /// A message of the proxy, except `Open` and `Attach`.
    pub fn handle_frame(&mut self, now: Instant, link: SessionLink, frame: ClientFrame) {
        self.handle_timeout(now);
        if self.phase == ServerPhase::Over {
            return;
        }
        match frame {
            ClientFrame::Pong(number) => self.on_pong(link, number),
            ClientFrame::Commit(commit) => self.on_commit(now, link, commit),
            ClientFrame::Close if self.knows(link) || self.released_link == Some(link) => self.end(),
            _ if self.link != Some(link) => {} // of an earlier link
            ClientFrame::Data { at, bytes } => self.on_input(at, &bytes),
            ClientFrame::End(at) => self.on_input_end(at),
            ClientFrame::Ack { output, point } => self.on_ack(output, point),
            ClientFrame::Release => self.on_release(now, link),
            ClientFrame::Open { .. } | ClientFrame::Attach(_) | ClientFrame::Close => {}
        }
    }

    /// The proxy asks this server to prepare itself. The certificate is valid. `held` is the pushed snapshot that the request names.
    pub fn handle_attach(
        &mut self,
        now: Instant,
        link: SessionLink,
        request: AttachRequest,
        held: Option<Snapshot>,
    ) {
        self.handle_timeout(now);
        if self.phase == ServerPhase::Over || request.epoch <= self.asked {
            return self.refuse(link, "the session has ended here, or a later request has come");
        }
        self.asked = request.epoch;
        self.released_link = None; // a late `Close` of that link does not mean the state that is asked for now
        let (current, epoch, owner) = (request.current, request.epoch, request.owner.clone());
        let fetches = request.fetches;
        self.expires = now + self.config.keep;
        self.preparation = Some(Preparation {
            link,
            request,
            held,
            offered: None,
        });
        if self.last_of().is_some_and(|last| last >= current) {
            return self.offer_last(now);
        }
        if self.phase.runs() {
            self.park(now, ServerEvent::Released); // the proxy has committed to another server meanwhile
        }
        if fetches {
            self.actions.push_back(ServerAction::Fetch { owner, epoch });
        } else {
            self.offer_copy(now);
        }
    }

    /// The owner has given the state.
    pub fn on_fetched(&mut self, now: Instant, epoch: u64, bundle: SessionBundle) {
        let is_asked =
            |preparation: &Preparation| preparation.request.epoch == epoch && preparation.offered.is_none();
        let Some(preparation) = self.preparation.as_ref().filter(|one| is_asked(one)) else {
            return;
        };
        if bundle.epoch < preparation.request.current {
            return self.on_fetch_failed(now, epoch, "the owner has an older state");
        }
        self.epoch = bundle.epoch;
        let input = SessionLog::with(bundle.point.input, bundle.input);
        let output = SessionLog::with(bundle.output_from, bundle.output);
        self.stock(bundle.point, input, output);
        (self.input_end, self.output_end) = (bundle.input_end, bundle.output_end);
        self.is_gone = bundle.is_done;
        self.offer_last(now);
    }

    /// The owner does not answer, or refuses. A copy may do.
    pub fn on_fetch_failed(&mut self, now: Instant, epoch: u64, why: &str) {
        let Some(preparation) = &self.preparation else {
            return;
        };
        if preparation.request.epoch != epoch || preparation.offered.is_some() {
            return;
        }
        if self.transfer == StateTransfer::Lazy {
            let link = preparation.link;
            self.preparation = None;
            return self.refuse(link, why);
        }
        self.offer_copy(now);
    }

    /// Another server asks for the state, because it is to own the session from `epoch` on.
    ///
    /// # Errors
    /// Why the state is not given.
    pub fn handle_fetch(&mut self, now: Instant, epoch: u64) -> Result<SessionBundle, String> {
        self.handle_timeout(now);
        if epoch <= self.asked {
            return Err("a later request has come".into());
        }
        let (Some(last), true) = (self.last_of(), self.phase != ServerPhase::Over) else {
            return Err("the session is not known here".into());
        };
        if !self.restarts() {
            return Err(NO_RESTART.into());
        }
        self.asked = epoch;
        self.preparation = None;
        if self.phase.runs() {
            self.park(now, ServerEvent::Released);
        }
        Ok(SessionBundle {
            epoch: last,
            point: self.point.clone(),
            input: self.input.from(self.point.input, usize::MAX),
            input_end: self.input_end,
            output_from: self.output.base(),
            output: self.output.from(self.output.base(), usize::MAX),
            output_end: self.output_end,
            is_done: self.is_done(),
        })
    }

    /// Output of the application.
    pub fn on_application_data(&mut self, now: Instant, bytes: &[u8]) {
        self.handle_timeout(now);
        if !self.phase.runs() {
            return;
        }
        let mut new = Vec::new();
        match &mut self.filter {
            None => new.extend_from_slice(bytes),
            Some(filter) => {
                if filter.on_application(bytes, &mut new).is_err() {
                    return self.abort();
                }
                if filter.is_transparent() {
                    self.filter = None;
                }
            }
        }
        self.application_at += bytes.len() as u64;
        let at = self.output.end();
        self.output.append(at, &new);
        if self.output_end.is_some_and(|end| self.output.end() > end) {
            return self.abort(); // the application before it ended its output earlier
        }
        self.send_output(at);
        self.advance();
    }

    /// The application has ended its output.
    pub fn on_application_end(&mut self, now: Instant) {
        self.handle_timeout(now);
        if !self.phase.runs() {
            return;
        }
        if self.output_end.is_some_and(|end| self.output.end() != end) {
            return self.abort();
        }
        if let Some(filter) = &self.filter
            && filter.on_application_end().is_err()
        {
            return self.abort();
        }
        let end = self.output.end();
        self.output_end = Some(end);
        if let Some(link) = self.link {
            self.send(link, ServerFrame::End(end));
        }
        self.end_if_complete();
    }

    /// The application's socket has failed, or has been closed by the application.
    pub fn on_application_gone(&mut self, now: Instant) {
        self.handle_timeout(now);
        if !self.phase.runs() {
            return;
        }
        if self.output_end != Some(self.output.end()) {
            return self.abort();
        }
        self.is_gone = true;
        self.feed(self.input.end());
    }

    /// The application cannot be connected. Another server may go on.
    pub fn on_start_failed(&mut self, now: Instant) {
        if self.own_epoch == 1 {
            return self.abort();
        }
        self.park(now, ServerEvent::Released);
    }

    /// The application's socket has taken this number of bytes.
    pub fn on_application_took(&mut self, now: Instant, count: usize) {
        self.handle_timeout(now);
        if self.phase.runs() {
            self.feed(self.fed + count as u64);
        }
    }

    /// The application exports its state. It has read and written this many bytes. Returns the snapshot's number. `None`: the session is
    /// not served here any more.
    pub fn on_export(&mut self, now: Instant, state: Arc<[u8]>, (read, written): (u64, u64)) -> Option<u64> {
        self.handle_timeout(now);
        if !self.phase.runs() {
            return None;
        }
        self.next_number += 1;
        let mark = SnapshotMark {
            number: self.next_number,
            input: self.application_base.0 + read,
            output: self.application_base.1 + written,
        };
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_back();
        }
        self.waiting.push_back(mark.with_state(state));
        self.advance();
        Some(mark.number)
    }

    /// A cooperating server keeps the snapshot with this number.
    pub fn on_kept(&mut self, number: u64) {
        if !self.phase.runs() {
            return;
        }
        let known = self.pushed.iter().find(|mark| mark.number == number).copied();
        if let Some(mark) = known {
            self.pushed.retain(|mark| mark.number > number);
            self.announce(mark, None);
        }
    }

    /// The server has too much to do.
    pub fn shed(&mut self) {
        if let (Some(link), true) = (self.link, self.phase.runs()) {
            self.send(link, ServerFrame::Shed);
        }
    }

    fn send(&mut self, link: SessionLink, frame: ServerFrame) {
        self.actions.push_back(ServerAction::Send(link, frame));
    }

    fn refuse(&mut self, link: SessionLink, why: &str) {
        self.send(link, ServerFrame::Refused(why.to_owned()));
    }

    /// Whether the link is the owner's or the one on which this server prepares itself.
    fn knows(&self, link: SessionLink) -> bool {
        let preparing = self.preparation.as_ref().map(|preparation| preparation.link);
        self.link == Some(link) || preparing == Some(link)
    }

    /// Whether the application has closed its connection in order: nobody needs another application.
    const fn is_done(&self) -> bool {
        self.output_end.is_some() && self.is_gone
    }

    /// Whether another application can go on from the restart point.
    fn restarts(&self) -> bool {
        self.is_done() || self.input.base() <= self.point.input
    }

    fn on_pong(&mut self, link: SessionLink, number: u64) {
        if !self.knows(link) {
            return;
        }
        if let Some((_, sent)) = self.pings.iter().find(|(sent, _)| *sent == number) {
            self.lease_until = self.lease_until.max(*sent + self.config.lease);
            self.pings.retain(|(sent, _)| *sent > number);
        }
    }

    /// Offers to go on from a copy of the state.
    fn offer_copy(&mut self, now: Instant) {
        let Some(preparation) = &mut self.preparation else {
            return;
        };
        let (link, mark) = (preparation.link, preparation.request.point);
        let point = match self.transfer {
            _ if mark.number == 0 => Some(start()),
            StateTransfer::Lazy => None,
            StateTransfer::Eager => preparation.held.take(),
            StateTransfer::Client => Some(mark.with_state(Arc::from([]))),
        };
        let Some(point) = point else {
            self.preparation = None;
            return self.refuse(link, "the snapshot is not kept here");
        };
        self.epoch = 0;
        (self.input_end, self.output_end, self.is_gone) = (None, None, false);
        let (input, output) = (point.input, point.output);
        self.stock(
            point,
            SessionLog::with(input, Vec::new()),
            SessionLog::with(output, Vec::new()),
        );
        self.offer(now, SessionBasis::Copy);
    }

    /// This server's state is the last one of all epochs up to this one. `None`: it has a copy, or nothing.
    fn last_of(&self) -> Option<u64> {
        (self.epoch > 0).then(|| self.epoch.max(self.offered_epoch))
    }

    fn offer_last(&mut self, now: Instant) {
        let Some(last) = self.last_of() else { return };
        self.offer(now, SessionBasis::Last(last));
        self.offered_epoch = self.asked;
    }

    fn stock(&mut self, point: Snapshot, input: SessionLog, output: SessionLog) {
        self.fed = point.input;
        (self.point, self.input, self.output) = (point, input, output);
        self.waiting.clear();
        self.phase = self.phase.after(ServerEvent::Stocked);
    }

    fn offer(&mut self, now: Instant, basis: SessionBasis) {
        let can_go_on = self.restarts() || self.phase.runs();
        let Some(preparation) = &mut self.preparation else {
            return;
        };
        preparation.offered = Some((now, basis));
        let link = preparation.link;
        let offer = ReadyOffer {
            epoch: preparation.request.epoch,
            basis,
            point: SnapshotMark::of(&self.point),
            input: self.input.end(),
            output: self.output.base(),
            runs: self.phase.runs() || self.is_done(),
        };
        if can_go_on {
            self.send(link, ServerFrame::Ready(offer));
        } else {
            self.refuse(link, NO_RESTART);
        }
    }

    /// The proxy has decided that this server owns the session.
    fn on_commit(&mut self, now: Instant, link: SessionLink, commit: SessionCommit) {
        let preparation = self.preparation.take_if(|one| one.link == link);
        let offered = preparation
            .filter(|preparation| preparation.request.epoch == commit.epoch && self.asked == commit.epoch);
        let Some((at, basis)) = offered.and_then(|preparation| preparation.offered) else {
            return self.refuse(link, "the offer does not hold any more");
        };
        let until = self.lease_until.max(at + self.config.lease);
        let is_running = self.phase.runs();
        let repeated = commit.repetition.unchecked + commit.repetition.bytes;
        let restarts = !is_running && !self.is_done();
        let repeats = restarts && commit.received > self.point.output;
        let fits = !repeats || commit.received.since(self.point.output) == repeated;
        if now >= until || !fits || commit.received < self.output.base() {
            return self.refuse(link, "the offer does not hold any more");
        }
        self.lease_until = until;
        self.phase = self.phase.after(ServerEvent::Committed);
        (self.epoch, self.own_epoch) = (commit.epoch, commit.epoch);
        self.next_number = self.next_number.max(commit.epoch << 32);
        self.link = Some(link);
        if let (SessionBasis::Copy, Some(state), StateTransfer::Client) =
            (basis, &commit.state, self.transfer)
        {
            self.point.state = Arc::clone(state);
        }
        if restarts {
            // Both go on from this point. Unless the others learn its number, they keep earlier snapshots until they have no room.
            if self.transfer == StateTransfer::Eager {
                self.proxy_point = self.proxy_point.max(self.point.number);
            }
            self.restart(commit);
        } else {
            self.output.forget(commit.received);
            self.send_output(commit.received);
        }
        if let Some(end) = self.output_end.filter(|end| *end == self.output.end()) {
            self.send(link, ServerFrame::End(end));
        }
        if self.is_gone {
            self.feed(self.input.end());
        }
        self.send(link, ServerFrame::Ack(self.fed));
        self.publish_again();
    }

    /// Starts an application that goes on from the restart point.
    fn restart(&mut self, commit: SessionCommit) {
        let point = &self.point;
        let state = (point.number > 0).then(|| Arc::clone(&point.state));
        self.application_base = (point.input, point.output);
        (self.application_at, self.fed) = (point.output, point.input);
        self.is_gone = false;
        self.filter = None;
        if commit.received > point.output {
            self.output = SessionLog::with(commit.received, Vec::new());
            self.filter = Some(RepetitionFilter::new(commit.repetition));
        } else {
            self.output.forget(commit.received);
            self.send_output(commit.received);
        }
        self.actions.push_back(ServerAction::StartApplication(state));
        let input = self.input.from(self.fed, usize::MAX);
        if !input.is_empty() {
            self.actions.push_back(ServerAction::ToApplication(input));
        }
        if self.input_end.is_some() {
            self.actions.push_back(ServerAction::EndApplication);
        }
    }

    /// The application stops here. The state stays for the next owner.
    fn park(&mut self, now: Instant, event: ServerEvent) {
        self.phase = self.phase.after(event);
        self.actions.push_back(ServerAction::StopApplication);
        if !self.is_done() {
            let kept = self.output.base().min(self.point.output);
            let count = usize::try_from(self.point.output.since(kept)).unwrap_or(0);
            let bytes = if self.output.base() < self.point.output {
                self.output.from(kept, count)
            } else {
                Vec::new()
            };
            self.output = SessionLog::with(kept, bytes);
        }
        self.waiting.clear();
        self.pushed.clear();
        self.filter = None;
        self.expires = now + self.config.keep;
        if let Some(link) = self.link.take() {
            self.released_link = Some(link);
            self.send(link, ServerFrame::Released);
        }
    }

    fn on_release(&mut self, now: Instant, link: SessionLink) {
        if !self.restarts() {
            return self.refuse(link, NO_RESTART);
        }
        if self.phase.runs() {
            self.park(now, ServerEvent::Released);
        }
    }

    fn on_input(&mut self, at: Offset, bytes: &[u8]) {
        let Some(new) = self.input.append(at, bytes).map(<[u8]>::to_vec) else {
            return self.abort(); // the proxy has left a gap
        };
        if self.is_gone {
            self.feed(self.input.end());
        } else if self.phase.runs() && !new.is_empty() {
            self.actions.push_back(ServerAction::ToApplication(new));
        }
        let excess = self.input.len().saturating_sub(SESSION_LOG_MAX);
        let until = self.input.base() + excess as u64;
        self.input.forget(until.min(self.fed));
    }

    fn on_input_end(&mut self, at: Offset) {
        if self.input_end.is_none() && at == self.input.end() {
            self.input_end = Some(at);
            if self.phase.runs() && !self.is_gone {
                self.actions.push_back(ServerAction::EndApplication);
            }
            self.end_if_complete();
        }
    }

    fn on_ack(&mut self, output: Offset, point: u64) {
        self.output.forget(output);
        if point > self.proxy_point {
            self.proxy_point = point;
            if self.transfer != StateTransfer::Lazy {
                self.actions.push_back(ServerAction::Kept(point));
            }
        }
        self.end_if_complete();
    }

    /// The application's socket has taken the input up to here.
    fn feed(&mut self, until: Offset) {
        self.fed = self.fed.max(until);
        if let Some(link) = self.link {
            self.send(link, ServerFrame::Ack(self.fed));
        }
        self.end_if_complete();
    }

    fn send_output(&mut self, mut from: Offset) {
        let Some(link) = self.link else { return };
        while from < self.output.end() {
            let bytes = self.output.from(from, SESSION_DATA_MAX);
            let at = from;
            from += bytes.len() as u64;
            self.send(link, ServerFrame::Data { at, bytes });
        }
    }

    /// Snapshots whose output has come become the restart point, one after another.
    fn advance(&mut self) {
        while let Some(next) = self.waiting.front()
            && next.output <= self.application_at
        {
            self.point = self.waiting.pop_front().expect("there is one");
            self.input.forget(self.point.input);
            self.publish();
        }
    }

    /// Tells the restart point to all that keep it.
    fn publish(&mut self) {
        let mark = SnapshotMark::of(&self.point);
        match self.transfer {
            StateTransfer::Lazy => self.announce(mark, None),
            StateTransfer::Client => self.announce(mark, Some(Arc::clone(&self.point.state))),
            StateTransfer::Eager => {
                if self.pushed.len() == WAITING_MAX {
                    self.pushed.pop_front();
                }
                self.pushed.push_back(mark);
                self.actions.push_back(ServerAction::Push {
                    snapshot: self.point.clone(),
                    point: self.proxy_point,
                });
            }
        }
    }

    fn announce(&mut self, mark: SnapshotMark, state: Option<Arc<[u8]>>) {
        if let Some(link) = self.link {
            self.send(link, ServerFrame::Snapshot { mark, state });
        }
    }

    /// The proxy may have missed the announcement of the restart point. With eager transfer, a server may lack its snapshot, because the owner
    /// that pushed it has stopped meanwhile.
    fn publish_again(&mut self) {
        let may_be_lacking = self.transfer == StateTransfer::Eager && self.point.number > 0;
        if (self.point.number > self.proxy_point || may_be_lacking) && !self.is_done() {
            self.publish();
        }
    }

    fn abort(&mut self) {
        if let Some(link) = self.link {
            self.send(link, ServerFrame::Reset);
        }
        self.end();
    }

    fn end_if_complete(&mut self) {
        let is_sent = self.output_end.is_some_and(|end| self.output.base() >= end);
        let is_fed = self.input_end.is_some_and(|end| self.fed >= end);
        if is_sent && is_fed {
            self.end();
        }
    }

    fn end(&mut self) {
        if self.phase == ServerPhase::Over {
            return;
        }
        if self.phase.runs() {
            let is_complete = self.output_end.is_some() && self.input_end.is_some();
            if !is_complete {
                self.actions.push_back(ServerAction::StopApplication);
            }
        }
        self.phase = self.phase.after(ServerEvent::Ended);
        self.actions.push_back(ServerAction::Forget);
    }
}

/// Why a session cannot go on elsewhere.
const NO_RESTART: &str =
    "the application has read too much since its last snapshot, so no other application can go on";
