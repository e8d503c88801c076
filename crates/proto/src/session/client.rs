//! A session at the client's proxy. The proxy decides which server owns the session.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::certificate::{Certificate, Challenge, SessionSecret};
use super::client_phase::{ClientPhase, ClientPhaseEvent};
use super::frame::{
    AttachRequest, ClientFrame, CooperatingServer, ReadyOffer, ServerFrame, SessionBasis, SessionCommit,
    SnapshotMark, StateTransfer,
};
use super::log::SessionLog;
use super::server::{SESSION_DATA_MAX, SESSION_LOG_MAX, SESSION_WINDOW, SessionLink};
use crate::restart::replay::ReplayTracker;
use crate::restart::snapshot::{SnapshotStanding, SnapshotTracker};
use crate::time::earlier;
use crate::{Instant, Offset};

/// Pause after all servers have been asked in vain.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// Lease before the server has told its own.
const FIRST_LEASE: Duration = Duration::from_secs(10);
/// Time for the offer of a server that fetches the state from the owner.
const FETCH_MAX: Duration = Duration::from_secs(6);

/// What the proxy has to carry out for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAction {
    /// Connect to a server. The answer names the attempt.
    Connect {
        /// Number of the attempt.
        attempt: u64,
        /// The server.
        server: CooperatingServer,
    },
    /// The server refuses the new session, for this reason. Connect to another one, and call
    /// [`open_elsewhere`](ClientSession::open_elsewhere) or [`on_refused_everywhere`](ClientSession::on_refused_everywhere).
    OpenElsewhere(String),
    /// Send a message to a server.
    Send(SessionLink, ClientFrame),
    /// Close a link, after all messages were sent.
    CloseLink(SessionLink),
    /// Write these bytes to the client program.
    ToClient(Vec<u8>),
    /// End the output to the client program.
    EndClient,
    /// Abort the connection to the client program.
    ResetClient,
    /// Something that people want to know.
    Report(SessionReport),
}

/// What happens to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionReport {
    /// Another server, or the same one over a new link, owns the session.
    Moved {
        /// The owner before.
        from: String,
        /// The owner now.
        to: String,
        /// Time from the request until data could be exchanged again.
        took: Duration,
    },
    /// A server cannot own the session now, for this reason.
    Failed(String, String),
    /// The owner has too much to do.
    Shed,
    /// No server can go on. The client program's connection is aborted, for this reason.
    Lost(String),
}

/// Why a session cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveObstacle {
    /// The session is moving, has ended, or has no certificate yet.
    #[error("the session is not open yet, is moving already, or has ended")]
    Busy,
    /// There is no such server, or the server owns the session.
    #[error("no other cooperating server has this name")]
    NoServer,
}

/// The server that was asked to own the session.
#[derive(Debug)]
struct MoveTarget {
    server: CooperatingServer,
    epoch: u64,
    since: Instant,
    fetches: bool,
    link: Option<SessionLink>,
    heard: Instant,
    offer: Option<ReadyOffer>,
}

/// A session at the client's proxy.
#[derive(Debug)]
pub struct ClientSession {
    service: String,
    transfer: StateTransfer,
    /// For how long a server is sought.
    patience: Duration,
    phase: ClientPhase,
    /// The last epoch that was asked for, and the last one that was committed.
    epoch: u64,
    current: u64,
    owner: String,
    servers: Vec<CooperatingServer>,
    lease: Duration,
    right: Option<(Certificate, SessionSecret)>,
    link: Option<SessionLink>,
    /// When the owner was heard last.
    heard: Instant,
    target: Option<MoveTarget>,
    /// The server that was wanted by the last order.
    wanted: Option<String>,
    /// The server that could not own the session when it was asked last. The next order without a name begins behind it.
    failed: Option<String>,
    /// The owner is silent, so it is asked last.
    is_silent: bool,
    /// Number of attempts since the session lacks a server, when the next one is made, and when the session is given up.
    attempts: usize,
    next_attempt: Instant,
    seeks_until: Instant,
    input: SessionLog,
    input_end: Option<Offset>,
    acked: Offset,
    tracker: SnapshotTracker,
    /// The snapshot whose state this proxy is to keep and does not have yet.
    stateless: Option<u64>,
    /// Number of the restart point that the owner has been told.
    told_point: u64,
    received: Offset,
    consumed: Offset,
    output_end: Option<Offset>,
    actions: VecDeque<ClientAction>,
}

impl ClientSession {
    /// A new session with `service` on the server at the other end of `link`.
    pub fn open(
        now: Instant,
        link: SessionLink,
        service: &str,
        transfer: StateTransfer,
        patience: Duration,
    ) -> Self {
        let mut session = Self {
            service: service.to_owned(),
            transfer,
            patience,
            phase: ClientPhase::Served,
            epoch: 1,
            current: 1,
            owner: String::new(),
            servers: Vec::new(),
            lease: FIRST_LEASE,
            right: None,
            link: None,
            heard: now,
            target: None,
            wanted: None,
            failed: None,
            is_silent: false,
            attempts: 0,
            next_attempt: now,
            seeks_until: now,
            input: SessionLog::default(),
            input_end: None,
            acked: Offset::ZERO,
            tracker: SnapshotTracker::default(),
            stateless: None,
            told_point: 0,
            received: Offset::ZERO,
            consumed: Offset::ZERO,
            output_end: None,
            actions: VecDeque::new(),
        };
        session.open_elsewhere(now, link);
        session
    }

    /// Asks the server at the other end of `link` to open the session. No server has opened it yet, so no application has any input.
    pub fn open_elsewhere(&mut self, now: Instant, link: SessionLink) {
        if self.phase == ClientPhase::Over || self.right.is_some() || self.link.is_some() {
            self.actions.push_back(ClientAction::CloseLink(link));
            return;
        }
        (self.link, self.heard) = (Some(link), now);
        let open = ClientFrame::Open {
            service: self.service.clone(),
            transfer: self.transfer,
        };
        self.send(link, open);
        self.send_input(self.input.base());
        if let Some(end) = self.input_end {
            self.send(link, ClientFrame::End(end));
        }
    }

    /// No server opens the session.
    pub fn on_refused_everywhere(&mut self, why: &str) {
        if self.phase != ClientPhase::Over && self.right.is_none() {
            self.lose(why);
        }
    }

    /// State of the session.
    pub const fn phase(&self) -> ClientPhase {
        self.phase
    }

    /// The owner's name. Empty until the owner has told it.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The link to the owner.
    pub const fn link(&self) -> Option<SessionLink> {
        self.link
    }

    /// Whether the session has a certificate.
    pub const fn is_open(&self) -> bool {
        self.right.is_some()
    }

    /// End of the output that has come.
    pub const fn received(&self) -> Offset {
        self.received
    }

    /// End of the client program's input.
    pub fn sent(&self) -> Offset {
        self.input.end()
    }

    /// Whether the client program's input may be read.
    pub fn wants_input(&self) -> bool {
        self.phase != ClientPhase::Over
            && self.input_end.is_none()
            && self.input.end().since(self.acked.min(self.input.end())) < SESSION_WINDOW as u64
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<ClientAction> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let target = self.target.as_ref().map(|target| match &target.offer {
            None => self.offer_due(target),
            Some(_) => (target.heard + self.silence()).min(self.lease_end_after_silence(target)),
        });
        match self.phase {
            ClientPhase::Over => None,
            ClientPhase::Served | ClientPhase::Moving => earlier(target, Some(self.heard + self.silence())),
            ClientPhase::Released | ClientPhase::Seeking => {
                let next = self.target.is_none().then_some(self.next_attempt);
                earlier(earlier(target, next), Some(self.seeks_until))
            }
        }
    }

    fn lease_end_after_silence(&self, target: &MoveTarget) -> Instant {
        match self.phase {
            ClientPhase::Seeking => self.heard + self.silence(),
            _ => target.heard + self.silence(),
        }
    }

    /// Time without a message after which the owner's lease has surely ended: the lease, and 1/16 for clocks that differ.
    fn silence(&self) -> Duration {
        self.lease + self.lease / 16
    }

    /// When the server must have made its offer. A server that fetches a large state may take longer, as long as it is heard.
    fn offer_due(&self, target: &MoveTarget) -> Instant {
        let attempt = self.lease.max(Duration::from_secs(1));
        match target.fetches {
            true => (target.heard + attempt).min(target.since + attempt.max(FETCH_MAX)),
            false => target.since + attempt,
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_served = matches!(self.phase, ClientPhase::Served | ClientPhase::Moving);
        if is_served && now >= self.heard + self.silence() {
            self.is_silent = true;
            self.lose_owner(now);
        }
        if let Some(target) = &self.target {
            let is_late = match &target.offer {
                None => now >= self.offer_due(target),
                Some(_) => now >= target.heard + self.silence(),
            };
            if is_late {
                self.fail_target(now, "it does not answer in time");
            } else {
                self.try_commit(now);
            }
        }
        self.seek(now);
    }

    /// The session is to move: to the server with this name, or to the next one of the list.
    ///
    /// # Errors
    /// Why it cannot move.
    pub fn order_move(&mut self, now: Instant, to: Option<&str>) -> Result<(), MoveObstacle> {
        if self.phase != ClientPhase::Served || self.right.is_none() || self.is_complete() {
            return Err(MoveObstacle::Busy);
        }
        let last = self.failed.as_ref().unwrap_or(&self.owner);
        let at = self.servers.iter().position(|server| server.name == *last);
        let turned = (1..=self.servers.len()).map(|by| (at.unwrap_or(0) + by) % self.servers.len());
        let mut others = turned.map(|place| &self.servers[place]);
        let chosen = others.find(|server| server.name != self.owner && to.is_none_or(|to| to == server.name));
        let server = chosen.ok_or(MoveObstacle::NoServer)?.clone();
        self.wanted = Some(server.name.clone());
        self.phase = self.phase.after(ClientPhaseEvent::MoveOrdered);
        self.ask(now, server, self.transfer == StateTransfer::Lazy);
        Ok(())
    }

    /// The attempt to connect has succeeded: the server has sent this challenge.
    pub fn on_linked(&mut self, now: Instant, attempt: u64, link: SessionLink, challenge: &Challenge) {
        let right = self.right.clone();
        let target = self.target.as_mut().filter(|target| target.epoch == attempt);
        let (Some(target), Some((certificate, secret))) = (target, right) else {
            self.actions.push_back(ClientAction::CloseLink(link));
            return;
        };
        (target.link, target.heard) = (Some(link), now);
        let fetches = target.fetches;
        self.tracker.forget_waiting();
        let request = AttachRequest {
            proof: secret.prove(challenge, attempt),
            certificate,
            epoch: attempt,
            current: self.current,
            owner: self.owner.clone(),
            fetches,
            transfer: self.transfer,
            point: SnapshotMark {
                number: self.tracker.number(),
                input: self.tracker.restart_input(),
                output: self.tracker.restart_output(),
            },
        };
        self.send(link, ClientFrame::Attach(request));
        if let (ClientPhase::Moving, false, Some(owner)) = (self.phase, fetches, self.link) {
            self.send(owner, ClientFrame::Release);
        }
    }

    /// The attempt to connect has failed.
    pub fn on_connect_failed(&mut self, now: Instant, attempt: u64, why: &str) {
        if self.target.as_ref().is_some_and(|target| target.epoch == attempt) {
            self.fail_target(now, why);
        }
    }

    /// A link is lost.
    pub fn on_link_lost(&mut self, now: Instant, link: SessionLink) {
        if self.link == Some(link) {
            self.link = None;
            self.lose_owner(now);
        } else if self
            .target
            .as_ref()
            .is_some_and(|target| target.link == Some(link))
        {
            self.fail_target(now, "it has closed the link");
        }
    }

    /// A message of a server.
    pub fn handle_frame(&mut self, now: Instant, link: SessionLink, frame: ServerFrame) {
        if self.phase == ClientPhase::Over {
            return;
        }
        if let ServerFrame::Ping(number) = frame {
            self.hear(now, link);
            return self.send(link, ClientFrame::Pong(number));
        }
        if self.link == Some(link) {
            self.hear(now, link);
            self.on_owner_frame(now, frame);
        } else if self
            .target
            .as_ref()
            .is_some_and(|target| target.link == Some(link))
        {
            self.hear(now, link);
            self.on_target_frame(now, frame);
        }
    }

    /// Records that a server was heard. Its lease can last longer from now on.
    fn hear(&mut self, now: Instant, link: SessionLink) {
        if self.link == Some(link) {
            self.heard = now;
        }
        if let Some(target) = self.target.as_mut().filter(|target| target.link == Some(link)) {
            target.heard = now;
            if target.server.name == self.owner {
                self.heard = now;
            }
        }
    }

    /// Input of the client program.
    pub fn on_client_data(&mut self, bytes: &[u8]) {
        let at = self.input.end();
        self.input.append(at, bytes);
        self.send_input(at);
        self.trim();
    }

    /// The client program has ended its input.
    pub fn on_client_end(&mut self) {
        let end = self.input.end();
        self.input_end = Some(end);
        if let Some(link) = self.serving_link() {
            self.send(link, ClientFrame::End(end));
        }
        self.end_if_complete();
    }

    /// The client program has aborted its connection.
    pub fn on_client_reset(&mut self) {
        self.end();
    }

    /// The client program's socket has taken this number of bytes.
    pub fn on_client_took(&mut self, count: usize) {
        self.consumed += count as u64;
        self.acknowledge();
        self.end_if_complete();
    }

    fn on_owner_frame(&mut self, now: Instant, frame: ServerFrame) {
        match frame {
            ServerFrame::Opened {
                certificate,
                secret,
                servers,
                owner,
                lease_ms,
            } => {
                self.right = Some((certificate, secret));
                (self.servers, self.owner) = (servers, owner);
                self.lease = Duration::from_millis(lease_ms);
            }
            ServerFrame::Data { at, bytes } => self.on_output(now, at, &bytes),
            ServerFrame::End(at) => self.on_output_end(at),
            ServerFrame::Ack(input) => {
                self.acked = self.acked.max(input.min(self.input.end()));
                self.trim();
                self.end_if_complete();
            }
            ServerFrame::Snapshot { mark, state } => self.on_snapshot(mark, state),
            ServerFrame::Released => {
                self.begin_seeking(now);
                self.phase = self.phase.after(ClientPhaseEvent::OwnerReleased);
                self.try_commit(now);
                self.seek(now);
            }
            ServerFrame::Shed => self.report(SessionReport::Shed),
            ServerFrame::Reset => {
                self.actions.push_back(ClientAction::ResetClient);
                self.end();
            }
            ServerFrame::Refused(why) if self.right.is_none() => {
                let refused = self.link.take().map(ClientAction::CloseLink);
                self.actions.extend(refused);
                self.actions.push_back(ClientAction::OpenElsewhere(why));
            }
            ServerFrame::Refused(why) => match self.phase {
                ClientPhase::Moving => self.fail_target(now, &why),
                _ => {
                    // The owner refuses the commit: its lease was over when the commit came.
                    self.link = None;
                    self.lose_owner(now);
                }
            },
            ServerFrame::Ready(_) | ServerFrame::Ping(_) => {}
        }
    }

    fn on_target_frame(&mut self, now: Instant, frame: ServerFrame) {
        match frame {
            ServerFrame::Ready(offer) => {
                if let Some(target) = &mut self.target {
                    if offer.epoch == target.epoch {
                        target.offer = Some(offer);
                    }
                    self.try_commit(now);
                }
            }
            ServerFrame::Refused(why) => self.fail_target(now, &why),
            ServerFrame::Opened { .. }
            | ServerFrame::Data { .. }
            | ServerFrame::End(_)
            | ServerFrame::Ack(_)
            | ServerFrame::Snapshot { .. }
            | ServerFrame::Ping(_)
            | ServerFrame::Released
            | ServerFrame::Shed
            | ServerFrame::Reset => {}
        }
    }

    fn on_output(&mut self, now: Instant, at: Offset, bytes: &[u8]) {
        let Some(known) = self.received.0.checked_sub(at.0) else {
            self.link = None; // a gap: the server breaks the protocol
            return self.lose_owner(now);
        };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let new = bytes.get(known..).unwrap_or_default();
        if new.is_empty() || self.output_end.is_some() {
            return;
        }
        self.received += new.len() as u64;
        self.tracker.on_output(new);
        self.actions.push_back(ClientAction::ToClient(new.to_vec()));
        self.tell_point();
    }

    fn on_output_end(&mut self, at: Offset) {
        if at == self.received && self.output_end.is_none() {
            self.output_end = Some(at);
            self.tracker.on_output_end();
            self.actions.push_back(ClientAction::EndClient);
            self.end_if_complete();
        }
    }

    /// A snapshot can become the restart point. While a server prepares itself, the restart point that it was told stays.
    fn on_snapshot(&mut self, mark: SnapshotMark, state: Option<Arc<[u8]>>) {
        if let Some(state) = state.as_ref().filter(|_| self.stateless == Some(mark.number)) {
            self.tracker.give_state(mark.number, Arc::clone(state));
            self.stateless = None;
        }
        if self.target.is_none() {
            let snapshot = mark.with_state(state.unwrap_or_else(|| Arc::from([])));
            let _ = self.tracker.on_snapshot(snapshot, self.input.end()); // an unfit one changes nothing
            if self
                .stateless
                .is_some_and(|number| number < self.tracker.number())
            {
                self.stateless = None;
            }
            self.tell_point();
        }
    }

    fn tell_point(&mut self) {
        if self.tracker.number() != self.told_point {
            self.acknowledge();
        }
        self.trim();
    }

    fn acknowledge(&mut self) {
        self.told_point = self.tracker.number();
        if let Some(link) = self.serving_link() {
            let (output, point) = (self.consumed, self.told_point);
            self.send(link, ClientFrame::Ack { output, point });
        }
    }

    /// Forgets the input that no server needs any more.
    fn trim(&mut self) {
        let until = match self.transfer {
            StateTransfer::Lazy => self.acked,
            StateTransfer::Eager | StateTransfer::Client => self.acked.min(self.tracker.restart_input()),
        };
        self.input.forget(until);
        let excess = self.input.len().saturating_sub(SESSION_LOG_MAX);
        let until = self.input.base() + excess as u64;
        self.input.forget(until.min(self.acked));
    }

    /// The link to the server that serves the client.
    fn serving_link(&self) -> Option<SessionLink> {
        match self.phase {
            ClientPhase::Served | ClientPhase::Moving => self.link,
            ClientPhase::Released | ClientPhase::Seeking | ClientPhase::Over => None,
        }
    }

    fn send(&mut self, link: SessionLink, frame: ClientFrame) {
        self.actions.push_back(ClientAction::Send(link, frame));
    }

    fn send_input(&mut self, mut from: Offset) {
        let Some(link) = self.serving_link() else {
            return;
        };
        while from < self.input.end() {
            let bytes = self.input.from(from, SESSION_DATA_MAX);
            let at = from;
            from += bytes.len() as u64;
            self.send(link, ClientFrame::Data { at, bytes });
        }
    }

    fn report(&mut self, report: SessionReport) {
        self.actions.push_back(ClientAction::Report(report));
    }

    fn begin_seeking(&mut self, now: Instant) {
        if !self.phase.lacks_server() {
            (self.attempts, self.next_attempt) = (0, now);
            self.seeks_until = now + self.patience;
        }
    }

    fn lose_owner(&mut self, now: Instant) {
        if self.phase == ClientPhase::Over {
            return;
        }
        if self.right.is_none() {
            return self.lose("the link was lost before the session had a certificate");
        }
        self.begin_seeking(now);
        self.phase = self.phase.after(ClientPhaseEvent::OwnerLost);
        self.try_commit(now);
        self.seek(now);
    }

    /// Asks the next server, if the session lacks one and none is asked.
    fn seek(&mut self, now: Instant) {
        if !self.phase.lacks_server() {
            return;
        }
        if now >= self.seeks_until {
            return self.lose("no server has gone on with the session in time");
        }
        if self.target.is_some() || now < self.next_attempt || self.servers.is_empty() {
            return;
        }
        let is_last = self.is_silent || self.phase == ClientPhase::Released;
        let rank = |server: &CooperatingServer| match server.name == self.owner {
            true if is_last => 2,
            true => 0,
            false if self.wanted.as_ref() == Some(&server.name) => 0,
            false => 1,
        };
        let mut order: Vec<_> = self.servers.iter().collect();
        order.sort_by_key(|server| rank(server));
        let (round, place) = (self.attempts / order.len(), self.attempts % order.len());
        let server = order[place].clone();
        self.attempts += 1;
        if self.attempts.is_multiple_of(self.servers.len()) {
            self.next_attempt = now + ROUND_PAUSE;
        }
        self.ask(
            now,
            server,
            self.transfer == StateTransfer::Lazy || round % 2 == 1,
        );
    }

    fn ask(&mut self, now: Instant, server: CooperatingServer, fetches: bool) {
        self.epoch += 1;
        let attempt = self.epoch;
        self.target = Some(MoveTarget {
            server: server.clone(),
            epoch: attempt,
            since: now,
            fetches,
            link: None,
            heard: now,
            offer: None,
        });
        self.actions.push_back(ClientAction::Connect { attempt, server });
    }

    fn fail_target(&mut self, now: Instant, why: &str) {
        if let Some(target) = self.target.take() {
            if let Some(link) = target.link {
                self.actions.push_back(ClientAction::CloseLink(link));
            }
            self.failed = Some(target.server.name.clone());
            self.report(SessionReport::Failed(target.server.name, why.to_owned()));
        }
        self.phase = self.phase.after(ClientPhaseEvent::TargetFailed);
        self.seek(now);
    }

    /// Commits to the server that was asked, if the present owner's application surely does not run any more.
    fn try_commit(&mut self, now: Instant) {
        let Some(target) = &self.target else { return };
        let Some(offer) = target.offer else { return };
        let is_safe = match offer.basis {
            SessionBasis::Last(epoch) if epoch >= self.current => true,
            SessionBasis::Last(_) => return self.fail_target(now, "it has an old state"),
            SessionBasis::Copy => match self.phase {
                ClientPhase::Released => true,
                ClientPhase::Seeking => {
                    target.server.name == self.owner || now >= self.heard + self.silence()
                }
                ClientPhase::Served | ClientPhase::Moving | ClientPhase::Over => false,
            },
        };
        if offer.basis == SessionBasis::Copy && self.stateless.is_some() {
            return self.fail_target(now, "the snapshot's state is not kept here");
        }
        if is_safe {
            match self.rebase(&offer) {
                Ok(()) => self.commit(now, &offer),
                Err(why) => self.fail_target(now, why),
            }
        }
    }

    /// Makes the restart point of an offer this proxy's own.
    fn rebase(&mut self, offer: &ReadyOffer) -> Result<(), &'static str> {
        if self.input.base() > offer.input {
            return Err("the input after its snapshot is not kept any more");
        }
        if offer.output > self.received {
            return Err("it lacks output");
        }
        if offer.runs || offer.point.number == self.tracker.number() {
            return Ok(());
        }
        self.tracker.forget_waiting();
        let snapshot = offer.point.with_state(Arc::from([]));
        if self.transfer == StateTransfer::Client {
            self.stateless = Some(offer.point.number);
        }
        match self.tracker.on_snapshot(snapshot, self.input.end()) {
            SnapshotStanding::Kept if self.tracker.number() == offer.point.number => Ok(()),
            SnapshotStanding::Waits => Ok(()),
            SnapshotStanding::Kept | SnapshotStanding::Unfit(_) | SnapshotStanding::Refused(_) => {
                Err("its snapshot is too old")
            }
        }
    }

    fn commit(&mut self, now: Instant, offer: &ReadyOffer) {
        let Some(target) = self.target.take() else { return };
        let Some(link) = target.link else { return };
        let repeats = !offer.runs && self.received >= offer.point.output;
        let commit = SessionCommit {
            epoch: target.epoch,
            received: self.received,
            repetition: if repeats {
                self.tracker.repetition()
            } else {
                ReplayTracker::new().repetition()
            },
            state: match self.transfer {
                StateTransfer::Client => self.tracker.state().cloned(),
                StateTransfer::Lazy | StateTransfer::Eager => None,
            },
        };
        let before = std::mem::replace(&mut self.owner, target.server.name);
        if let Some(old) = self.link.replace(link) {
            if before != self.owner {
                self.send(old, ClientFrame::Close);
            }
            self.actions.push_back(ClientAction::CloseLink(old));
        }
        self.current = target.epoch;
        (self.heard, self.is_silent) = (target.heard, false);
        (self.wanted, self.failed) = (None, None);
        self.phase = self.phase.after(ClientPhaseEvent::Committed);
        self.send(link, ClientFrame::Commit(commit));
        self.send_input(offer.input);
        if let Some(end) = self.input_end {
            self.send(link, ClientFrame::End(end));
        }
        self.acknowledge();
        let (from, to) = (before, self.owner.clone());
        let took = now.since(target.since);
        self.report(SessionReport::Moved { from, to, took });
    }

    fn is_complete(&self) -> bool {
        let is_taken = self.output_end.is_some_and(|end| self.consumed >= end);
        let is_fed = self.input_end.is_some_and(|end| self.acked >= end);
        is_taken && is_fed
    }

    fn end_if_complete(&mut self) {
        if self.is_complete() {
            self.end();
        }
    }

    fn lose(&mut self, why: &str) {
        self.report(SessionReport::Lost(why.to_owned()));
        self.actions.push_back(ClientAction::ResetClient);
        self.end();
    }

    fn end(&mut self) {
        if self.phase == ClientPhase::Over {
            return;
        }
        self.phase = self.phase.after(ClientPhaseEvent::Ended);
        let target = self.target.take().and_then(|target| target.link);
        for link in self.link.take().into_iter().chain(target) {
            self.send(link, ClientFrame::Close);
            self.actions.push_back(ClientAction::CloseLink(link));
        }
    }
}
