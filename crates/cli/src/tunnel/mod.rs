//! The daemon of a tunnel: `steadfast tunnel` (docs/tunnel.md). One loop connects the TCP sockets, `proto::tunnel`,
//! `proto::sctp` and the SCTP sockets.

mod link;
mod poller;
mod seal;
mod session;
mod settings;
mod status;

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use linux::sctp::SctpWire;
use proto::Instant;
use proto::sctp::CallKey;
use proto::sctp::association::{Association, AssociationEvent};
use proto::sctp::endpoint::AssociationId;
use proto::tunnel::{ClientVerdict, TunnelReception, TunnelRole};

use link::TunnelLink;
use poller::{PollTarget, TunnelPoller};
use session::{TunnelSession, role_name};
pub use settings::{TunnelFile, TunnelService, TunnelSettings};
use status::TunnelTotals;

use crate::control::{Call, ControlServer};
use crate::metrics;
use crate::wakeup::Wakeup;

/// Maximum number of batches that one turn reads from each SCTP socket.
const BATCHES: usize = 16;
/// Maximum number of clients that one turn accepts from a listener.
const CLIENTS_TURN: usize = 64;
/// Minimum time between two log lines about callers without the key.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A service's listener.
struct TunnelListener {
    name: String,
    socket: TcpListener,
    /// Clients may be waiting: epoll reported some, and accept(2) has not found the queue empty since.
    has_clients: bool,
}

struct TunnelDaemon<'a> {
    settings: &'a TunnelSettings,
    wire: SctpWire,
    sessions: HashMap<AssociationId, TunnelSession>,
    listeners: Vec<TunnelListener>,
    poller: TunnelPoller,
    reception: TunnelReception,
    totals: TunnelTotals,
    /// Number of calls without the key that the log has reported.
    strangers_told: u64,
    /// Earliest time of the log's next report of such calls.
    warns_at: Instant,
    /// Requests from the control socket and from the metrics. `None`: the tunnel has no state directory.
    calls: Option<Receiver<Call>>,
}

/// File that marks a state directory as a tunnel's.
const MARK: &str = "tunnel";

/// Whether `state_dir` is the state directory of a tunnel.
pub fn is_tunnel(state_dir: &Path) -> bool {
    state_dir.join(MARK).exists()
}

/// Removes the mark of a tunnel.
///
/// # Errors
/// If the mark is there and cannot be removed.
pub fn leave_nothing(state_dir: &Path) -> io::Result<()> {
    match std::fs::remove_file(state_dir.join(MARK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Runs the tunnel until SIGTERM or SIGINT.
///
/// # Errors
/// The step of the start that failed.
pub fn run(settings: &TunnelSettings) -> anyhow::Result<()> {
    let wakeup = Wakeup::new().context("making the wake-up pipe")?;
    let signals = [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT];
    let stop: Arc<AtomicBool> = wakeup.on_signals(&signals).context("catching signals")?;
    if let Err(error) = linux::process::raise_file_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files; each connection needs one descriptor");
    }
    let (server, calls) = open_control(settings, &wakeup)?;
    let mut wire = SctpWire::open(settings.sctp, &settings.plan)?;
    if let Some(key) = &settings.key {
        wire.endpoint.require_key(CallKey::derive(key));
    }
    let mut poller = TunnelPoller::new().context("making an epoll instance")?;
    poller
        .wake_while_readable(wakeup.fd())
        .context("watching the wake-up pipe")?;
    for fd in wire.fds() {
        poller
            .wake_while_readable(fd)
            .context("watching an SCTP socket")?;
    }
    let mut daemon = TunnelDaemon {
        settings,
        wire,
        sessions: HashMap::new(),
        listeners: listeners(settings, &mut poller)?,
        poller,
        reception: TunnelReception::new(settings.role, linux::clock::now()),
        totals: TunnelTotals::default(),
        strangers_told: 0,
        warns_at: Instant::ZERO,
        calls,
    };
    tracing::info!(role = role_name(settings.role), via = ?settings.plan.addresses, sealed = settings.key.is_some(), "ready");
    while !stop.load(Ordering::Relaxed) {
        daemon.turn(linux::clock::now());
        daemon.answer();
        daemon.rest();
        wakeup.clear();
    }
    daemon.stop();
    drop(server);
    if let Some(state_dir) = &settings.state_dir {
        leave_nothing(state_dir).context("removing the tunnel's mark")?;
    }
    Ok(())
}

/// If the tunnel has a state directory, marks this directory, opens the control socket, and serves the metrics.
fn open_control(
    settings: &TunnelSettings,
    wakeup: &Wakeup,
) -> anyhow::Result<(Option<ControlServer>, Option<Receiver<Call>>)> {
    let Some(state_dir) = &settings.state_dir else {
        return Ok((None, None));
    };
    std::fs::write(state_dir.join(MARK), "").context("marking the state directory")?;
    let (server, asker, calls) = ControlServer::open(state_dir, wakeup.waker())?;
    if let Some(listen) = settings.metrics {
        metrics::serve(listen, move || Ok(metrics::tunnel_exposition(&asker.tunnel()?)))?;
    }
    Ok((Some(server), Some(calls)))
}

/// The listeners of an opening end.
fn listeners(settings: &TunnelSettings, poller: &mut TunnelPoller) -> anyhow::Result<Vec<TunnelListener>> {
    if settings.role == TunnelRole::Serving {
        return Ok(Vec::new());
    }
    let open = |(index, (name, address)): (usize, &(String, std::net::SocketAddr))| {
        let socket =
            TcpListener::bind(address).with_context(|| format!("listening at {address} for {name}"))?;
        socket.set_nonblocking(true)?;
        poller
            .tell_changes(&socket, PollTarget::Listener(index))
            .context("watching a listener")?;
        Ok(TunnelListener {
            name: name.clone(),
            socket,
            has_clients: false,
        })
    };
    settings.services.iter().enumerate().map(open).collect()
}

impl TunnelDaemon<'_> {
    fn turn(&mut self, now: Instant) {
        self.call(now);
        self.wire.receive(now, BATCHES);
        self.warn_of_strangers(now);
        self.wire.endpoint.handle_timeout(now);
        self.accept(now);
        self.serve(now);
        self.wire.flush(now);
        self.take_events(now);
        // A new session may begin with a message.
        self.serve(now);
        self.wire.flush(now);
    }

    fn call(&mut self, now: Instant) {
        if !self.reception.takes_call(now) {
            return;
        }
        let called = self
            .wire
            .endpoint
            .connect(now, &self.settings.peer, self.settings.peer_port);
        if let Err(error) = called {
            tracing::error!(%error, "the serving end cannot be called; trying again");
            self.reception.on_lost(now);
        }
    }

    fn warn_of_strangers(&mut self, now: Instant) {
        let calls = self.wire.endpoint.counts().unproven_cookies;
        if calls > self.strangers_told && now >= self.warns_at {
            let new = calls - self.strangers_told;
            tracing::warn!(
                calls = new,
                "calls are refused: the callers do not have this end's key"
            );
            (self.strangers_told, self.warns_at) = (calls, now + WARN_EVERY);
        }
    }

    /// Tells the reception whether a connection can be opened.
    fn look_for_room(&mut self, now: Instant) {
        let has_room = self.sessions.values().any(TunnelSession::has_room);
        self.reception.on_room(now, has_room);
    }

    /// Accepts the waiting clients, resets them, or leaves them in the queue, as `self.reception` decides.
    fn accept(&mut self, now: Instant) {
        for index in 0..self.listeners.len() {
            for _ in 0..CLIENTS_TURN {
                self.look_for_room(now);
                let verdict = self.reception.verdict(now);
                if verdict == ClientVerdict::Wait || !self.listeners[index].has_clients {
                    break;
                }
                if let Some(link) = self.accept_one(now, index) {
                    self.receive_client(index, link, verdict);
                }
            }
        }
    }

    /// The next client of a listener. `None` if no client waits, or if the client has already closed its connection.
    fn accept_one(&mut self, now: Instant, index: usize) -> Option<TunnelLink> {
        let listener = &mut self.listeners[index];
        match listener.socket.accept() {
            Ok((stream, _)) => {
                self.reception.on_accepted();
                TunnelLink::accepted(stream).ok()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                listener.has_clients = false;
                None
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                ) =>
            {
                None
            }
            Err(error) => {
                if self.reception.on_accept_failed(now) {
                    let service = &listener.name;
                    tracing::error!(service, %error, "clients cannot be accepted; they wait until this succeeds");
                }
                None
            }
        }
    }

    fn receive_client(&mut self, index: usize, link: TunnelLink, verdict: ClientVerdict) {
        let service = &self.listeners[index].name;
        let session = self.sessions.values_mut().find(|session| session.has_room());
        match session {
            Some(session) if verdict == ClientVerdict::Take => {
                session.open(service, link, &mut self.poller);
            }
            _ => {
                self.totals.refused_clients += 1;
                tracing::warn!(
                    service,
                    "a client is refused: the serving end does not answer, or all connections are in use"
                );
                link.reset();
            }
        }
    }

    fn serve(&mut self, now: Instant) {
        let mut broken = Vec::new();
        for (id, session) in &mut self.sessions {
            let Some(association) = self.wire.endpoint.association_mut(*id) else {
                continue;
            };
            let mut done = session
                .receive(association, self.settings, &mut self.poller)
                .and_then(|()| session.pump(association));
            if session.gives_up_at().is_some_and(|at| now >= at) {
                done = Err(anyhow::anyhow!("the handshake takes too long"));
            }
            if let Err(error) = done {
                broken.push(*id);
                tracing::error!(
                    error = format!("{error:#}"),
                    "the association is aborted, and its connections are reset"
                );
                association.abort(Bytes::from(error.to_string()));
            }
        }
        for id in broken {
            self.lose(now, id);
        }
    }

    fn take_events(&mut self, now: Instant) {
        while let Some((id, event)) = self.wire.endpoint.poll_event() {
            match event {
                AssociationEvent::Established => self.begin(now, id),
                AssociationEvent::PathFailed(path) => tracing::warn!(path = path.0, "a path has failed"),
                AssociationEvent::PathRecovered(path) => {
                    tracing::info!(path = path.0, "a path answers again")
                }
                AssociationEvent::PrimaryChanged(path) => {
                    tracing::info!(path = path.0, "another path is primary now")
                }
                // Messages can be lost in each of these cases. A connection must have no gap, so all connections end.
                AssociationEvent::Refused(_)
                | AssociationEvent::Restarted
                | AssociationEvent::PeerShutsDown => {
                    tracing::warn!(
                        ?event,
                        "the peer begins again, stops, or cannot take messages; its connections are reset"
                    );
                    if let Some(association) = self.wire.endpoint.association_mut(id) {
                        association.abort(Bytes::from_static(b"this end resets the association"));
                    }
                    self.lose(now, id);
                }
                AssociationEvent::Closed(reason) => {
                    tracing::warn!(?reason, "the association has ended");
                    self.lose(now, id);
                    // The endpoint keeps a closed association until its last messages are read. Nobody needs these messages: discard them.
                    if let Some(association) = self.wire.endpoint.association_mut(id) {
                        while association.receive().is_some() {}
                    }
                }
            }
        }
    }

    fn begin(&mut self, now: Instant, id: AssociationId) {
        match TunnelSession::new(self.settings, id, now) {
            Ok(session) => {
                tracing::info!("an association is established");
                self.sessions.insert(id, session);
            }
            Err(error) => tracing::error!(%error, "a session cannot begin"),
        }
    }

    fn lose(&mut self, now: Instant, id: AssociationId) {
        if let Some(mut session) = self.sessions.remove(&id) {
            session.reset_all();
            let association = self.wire.endpoint.association(id);
            self.totals
                .on_end(session.counts, association.map(Association::counts));
        }
        if self.sessions.is_empty() {
            self.reception.on_lost(now);
        }
    }

    /// Answers questions.
    fn answer(&self) {
        let calls = self.calls.iter().flat_map(Receiver::try_iter);
        for call in calls {
            if let Call::Tunnel(reply) = call {
                let sessions = self.sessions.iter().filter_map(|(id, session)| {
                    let association = self.wire.endpoint.association(*id)?;
                    Some((session, association))
                });
                reply.send(status::status(self.settings, &self.wire, &self.totals, sessions));
            } // any other call is dropped unanswered, and its sender gets an error
        }
    }

    /// Sleeps until a descriptor is ready or something is due. Records which descriptors are ready.
    fn rest(&mut self) {
        let now = linux::clock::now();
        self.look_for_room(now);
        let sleep = self.sleep(now);
        for (target, readiness) in self.poller.wait(sleep) {
            match target {
                PollTarget::Wake => {}
                PollTarget::Listener(index) => self.listeners[index].has_clients = true,
                PollTarget::Link(session, id) => {
                    if let Some(session) = self.sessions.get_mut(&session) {
                        session.on_ready(id, readiness);
                    }
                }
            }
        }
    }

    /// Time until something is due, at most `SLEEP_MAX`.
    fn sleep(&self, now: Instant) -> Duration {
        let is_busy = self.sessions.iter().any(|(id, session)| {
            let association = self.wire.endpoint.association(*id);
            association.is_some_and(|association| session.is_busy(association))
        });
        let takes_clients = self.reception.verdict(now) != ClientVerdict::Wait
            && self.listeners.iter().any(|listener| listener.has_clients);
        if is_busy || takes_clients {
            return Duration::ZERO;
        }
        let gives_up = self.sessions.values().filter_map(TunnelSession::gives_up_at);
        let due = self
            .wire
            .endpoint
            .poll_timeout()
            .into_iter()
            .chain(self.reception.poll_timeout(now))
            .chain(gives_up)
            .min();
        due.map_or(SLEEP_MAX, |at| at.since(now)).min(SLEEP_MAX)
    }

    /// Tells the peers and the programs that this end stops.
    fn stop(&mut self) {
        let ids: Vec<AssociationId> = self.sessions.keys().copied().collect();
        for id in ids {
            if let Some(association) = self.wire.endpoint.association_mut(id) {
                association.abort(Bytes::from_static(b"the tunnel stops"));
            }
        }
        self.wire.flush(linux::clock::now());
        for session in self.sessions.values_mut() {
            session.reset_all();
        }
    }
}
