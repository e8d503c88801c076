//! The daemon of a tunnel: `steadfast tunnel` (docs/tunnel.md). One loop between sockets, `proto::sctp` and `proto::tunnel`.

mod link;
mod seal;
mod session;
mod settings;

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use linux::sctp::SctpWire;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use proto::Instant;
use proto::sctp::association::AssociationEvent;
use proto::sctp::endpoint::AssociationId;
use proto::tunnel::TunnelRole;

use link::TunnelLink;
use session::{TunnelSession, role_name};
pub use settings::{TunnelFile, TunnelService, TunnelSettings};

use crate::wakeup::Wakeup;

/// Batches that one turn reads from each SCTP socket.
const BATCHES: usize = 16;
/// Pause between two calls of the serving end.
const RECALL: Duration = Duration::from_secs(1);
/// Clients wait this long for an association. After that they are refused by a RST.
const CLIENTS_WAIT: Duration = Duration::from_secs(3);
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);

struct TunnelDaemon<'a> {
    settings: &'a TunnelSettings,
    wire: SctpWire,
    sessions: HashMap<AssociationId, TunnelSession>,
    listeners: Vec<(String, TcpListener)>,
    /// When the serving end is called again.
    calls_at: Option<Instant>,
    /// Since when there is no session.
    alone_since: Instant,
}

/// Runs the tunnel until SIGTERM or SIGINT.
///
/// # Errors
/// The step of the start that failed.
pub fn run(settings: &TunnelSettings) -> anyhow::Result<()> {
    let wakeup = Wakeup::new().context("making the wake-up pipe")?;
    let signals = [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT];
    let stop: Arc<AtomicBool> = wakeup.on_signals(&signals).context("catching signals")?;
    let mut listeners = Vec::new();
    if settings.role == TunnelRole::Opening {
        for (name, address) in &settings.services {
            let listener =
                TcpListener::bind(address).with_context(|| format!("listening at {address} for {name}"))?;
            listener.set_nonblocking(true)?;
            listeners.push((name.clone(), listener));
        }
    }
    let now = linux::clock::now();
    let mut daemon = TunnelDaemon {
        settings,
        wire: SctpWire::open(settings.sctp, &settings.plan)?,
        sessions: HashMap::new(),
        listeners,
        calls_at: (settings.role == TunnelRole::Opening).then_some(now),
        alone_since: now,
    };
    tracing::info!(role = role_name(settings.role), via = ?settings.plan.addresses, sealed = settings.key.is_some(), "ready");
    while !stop.load(Ordering::Relaxed) {
        daemon.turn(linux::clock::now());
        daemon.rest(&wakeup);
    }
    daemon.stop();
    Ok(())
}

impl TunnelDaemon<'_> {
    fn turn(&mut self, now: Instant) {
        self.call(now);
        self.wire.receive(now, BATCHES);
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
        if self.calls_at.is_none_or(|at| now < at) {
            return;
        }
        self.calls_at = None;
        let called = self
            .wire
            .endpoint
            .connect(now, &self.settings.peer, self.settings.peer_port);
        if let Err(error) = called {
            tracing::error!(%error, "the serving end cannot be called; trying again");
            self.calls_at = Some(now + RECALL);
        }
    }

    /// Takes new clients, if there is a session for them. After a while without one they are refused, so that they know.
    fn accept(&mut self, now: Instant) {
        let ready = self.sessions.values_mut().find(|session| session.is_ready());
        let Some(session) = ready else {
            if now.since(self.alone_since) > CLIENTS_WAIT {
                for (name, listener) in &self.listeners {
                    while let Some(link) = accept_one(listener) {
                        tracing::warn!(
                            service = name,
                            "a client is refused: the serving end does not answer"
                        );
                        link.reset();
                    }
                }
            }
            return;
        };
        for (name, listener) in &self.listeners {
            while let Some(link) = accept_one(listener) {
                session.open(name, link);
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
                .receive(association, self.settings)
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
                // A missing message would leave a connection with a gap, so it ends all of them.
                AssociationEvent::Refused(_)
                | AssociationEvent::Restarted
                | AssociationEvent::PeerShutsDown => {
                    tracing::warn!(
                        ?event,
                        "the peer begins again, stops, or cannot take messages; its connections are reset"
                    );
                    if let Some(association) = self.wire.endpoint.association_mut(id) {
                        association.abort(Bytes::from_static(b"this end begins again as well"));
                    }
                    self.lose(now, id);
                }
                AssociationEvent::Closed(reason) => {
                    tracing::warn!(?reason, "the association has ended");
                    self.lose(now, id);
                    // Its last messages are not wanted: this lets the endpoint forget it.
                    if let Some(association) = self.wire.endpoint.association_mut(id) {
                        while association.receive().is_some() {}
                    }
                }
            }
        }
    }

    fn begin(&mut self, now: Instant, id: AssociationId) {
        match TunnelSession::new(self.settings, now) {
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
            self.alone_since = now;
        }
        if self.settings.role == TunnelRole::Opening && self.sessions.is_empty() {
            self.calls_at.get_or_insert(now + RECALL);
        }
    }

    /// Sleeps until something happens.
    fn rest(&mut self, wakeup: &Wakeup) {
        let now = linux::clock::now();
        let gives_up = self.sessions.values().filter_map(TunnelSession::gives_up_at);
        let due = self
            .wire
            .endpoint
            .poll_timeout()
            .into_iter()
            .chain(self.calls_at)
            .chain(gives_up)
            .min();
        let sleep = due.map_or(SLEEP_MAX, |at| at.since(now)).min(SLEEP_MAX);
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        fds.extend(
            self.wire
                .fds()
                .into_iter()
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
        );
        fds.push(PollFd::new(wakeup.fd(), PollFlags::POLLIN));
        let takes_clients =
            self.sessions.values().any(TunnelSession::is_ready) || now.since(self.alone_since) > CLIENTS_WAIT;
        if takes_clients {
            fds.extend(
                self.listeners
                    .iter()
                    .map(|(_, listener)| PollFd::new(listener.as_fd(), PollFlags::POLLIN)),
            );
        }
        for (id, session) in &self.sessions {
            let Some(association) = self.wire.endpoint.association(*id) else {
                continue;
            };
            for (fd, reads, writes) in session.interest(association) {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::POLLIN, reads);
                flags.set(PollFlags::POLLOUT, writes);
                fds.push(PollFd::new(fd, flags));
            }
        }
        // A signal that interrupts it counts as a wake-up.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(sleep)), None);
        drop(fds);
        wakeup.clear();
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

/// The next client of a listener.
fn accept_one(listener: &TcpListener) -> Option<TunnelLink> {
    let (stream, _) = listener.accept().ok()?;
    TunnelLink::accepted(stream).ok()
}
