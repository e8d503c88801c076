//! One association with its connections. A session moves data between the association and the TCP sockets; its protocol is `proto::tunnel`.
//! If the tunnel has a key, the seal (`super::seal`) encrypts the association's messages.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use proto::Instant;
use proto::sctp::association::Association;
use proto::sctp::endpoint::AssociationId;
use proto::sctp::{SctpMessage, UserData};
use proto::tunnel::{Tunnel, TunnelConnectionId, TunnelEvent, TunnelRole, TunnelTurns};

use super::link::{LinkRead, TunnelLink};
use super::poller::{PollTarget, Readiness, TunnelPoller};
use super::seal::Seal;
use super::settings::TunnelSettings;

/// Timeout of the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Maximum number of bytes that one call reads from a TCP socket.
const READ_MAX: usize = 128 << 10;
/// Bytes that may wait in the send buffer, however small the congestion window is.
const BACKLOG_MIN: usize = 128 << 10;

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionCounts {
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that ended by a reset.
    pub resets: u64,
    /// Connections of the peer that were refused: the service is unknown, its server cannot be reached, or this end has too many
    /// connections.
    pub refused: u64,
    /// Bytes from local programs.
    pub sent_bytes: u64,
    /// Bytes to local programs.
    pub received_bytes: u64,
}

impl AddAssign for SessionCounts {
    fn add_assign(&mut self, other: Self) {
        // Without `..`, a field that is missing here is a compile error.
        let Self {
            opened,
            resets,
            refused,
            sent_bytes,
            received_bytes,
        } = other;
        self.opened += opened;
        self.resets += resets;
        self.refused += refused;
        self.sent_bytes += sent_bytes;
        self.received_bytes += received_bytes;
    }
}

/// An association that is established.
pub struct TunnelSession {
    id: AssociationId,
    tunnel: Tunnel,
    seal: Seal,
    links: HashMap<TunnelConnectionId, TunnelLink>,
    /// Connections to read from: their programs may have sent data, and there may be credit to forward it.
    readers: BTreeSet<TunnelConnectionId>,
    /// Connections to work on: there may be data to write to the program, a connect to finish, or a failure to notice.
    writers: BTreeSet<TunnelConnectionId>,
    turns: TunnelTurns,
    /// A sealed message that did not fit the send buffer.
    pending: Option<SctpMessage>,
    begun: Instant,
    pub counts: SessionCounts,
    buffer: Vec<u8>,
}

impl TunnelSession {
    /// The session of a new association.
    ///
    /// # Errors
    /// If the handshake cannot be begun.
    pub fn new(settings: &TunnelSettings, id: AssociationId, now: Instant) -> anyhow::Result<Self> {
        let (seal, hello) = Seal::new(settings.key.as_ref(), settings.role, settings.connections)?;
        Ok(Self {
            id,
            tunnel: Tunnel::new(settings.role, settings.window, settings.connections),
            seal,
            links: HashMap::new(),
            readers: BTreeSet::new(),
            writers: BTreeSet::new(),
            turns: TunnelTurns::default(),
            pending: hello.map(|hello| message(0, hello)),
            begun: now,
            counts: SessionCounts::default(),
            buffer: vec![0; READ_MAX],
        })
    }

    /// Whether the handshake is done.
    pub const fn is_ready(&self) -> bool {
        self.seal.is_ready()
    }

    /// Whether a connection can be opened.
    pub fn has_room(&self) -> bool {
        self.is_ready() && !self.tunnel.is_full()
    }

    /// Number of connections with a program at this end.
    pub fn open_connections(&self) -> usize {
        self.links.len()
    }

    /// Time at which this end gives up an incomplete handshake. `None`: the handshake is done.
    pub fn gives_up_at(&self) -> Option<Instant> {
        (!self.is_ready()).then(|| self.begun + HANDSHAKE_MAX)
    }

    /// A client has connected to a service.
    pub fn open(&mut self, service: &str, link: TunnelLink, poller: &mut TunnelPoller) {
        match self.tunnel.open(service.to_owned()) {
            Some(id) => self.insert(id, link, poller),
            None => {
                self.counts.resets += 1;
                link.reset();
            }
        }
    }

    fn insert(&mut self, id: TunnelConnectionId, link: TunnelLink, poller: &mut TunnelPoller) {
        self.counts.opened += 1;
        let told = poller.tell_changes(link.fd(), PollTarget::Link(self.id, id));
        self.links.insert(id, link);
        if let Err(error) = told {
            tracing::error!(%error, "a connection cannot be watched; it is reset");
            self.fail(id);
        }
    }

    /// A program's socket has changed.
    pub fn on_ready(&mut self, id: TunnelConnectionId, readiness: Readiness) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        link.on_ready(readiness);
        if readiness.reads {
            self.readers.insert(id);
        }
        if readiness.writes || readiness.hangs {
            self.writers.insert(id);
        }
    }

    /// The program is gone or cannot be reached, or its socket cannot be watched. Resets the socket and tells the peer.
    fn fail(&mut self, id: TunnelConnectionId) {
        self.tunnel.abort(id);
        if let Some(link) = self.remove(id) {
            self.counts.resets += 1;
            link.reset();
        }
    }

    fn remove(&mut self, id: TunnelConnectionId) -> Option<TunnelLink> {
        self.readers.remove(&id);
        self.writers.remove(&id);
        self.links.remove(&id)
    }

    /// Takes all messages of the peer.
    ///
    /// # Errors
    /// If the peer breaks the protocol or does not have the key.
    pub fn receive(
        &mut self,
        association: &mut Association,
        settings: &TunnelSettings,
        poller: &mut TunnelPoller,
    ) -> anyhow::Result<()> {
        while let Some(message) = association.receive() {
            let UserData::Bytes(data) = message.data else {
                bail!("a message has no payload bytes");
            };
            if message.is_unordered {
                bail!("an unordered message");
            }
            if message.stream == 0 {
                let answer = self.seal.handle_handshake(&data)?;
                self.pending = answer.map(|answer| self::message(0, answer));
                continue;
            }
            let opened = self.seal.open(message.stream, data)?;
            self.tunnel.handle_message(message.stream, &opened)?;
            self.take_events(settings, poller);
        }
        Ok(())
    }

    fn take_events(&mut self, settings: &TunnelSettings, poller: &mut TunnelPoller) {
        while let Some(event) = self.tunnel.poll_event() {
            match event {
                TunnelEvent::Opened(id, service) => self.serve(id, &service, settings, poller),
                TunnelEvent::Data(id, data) => {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.push(data);
                        self.writers.insert(id);
                    }
                }
                TunnelEvent::Writable(id) => {
                    if self.links.get(&id).is_some_and(TunnelLink::can_read) {
                        self.readers.insert(id);
                    }
                }
                TunnelEvent::Ended(id) => {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.end();
                        self.writers.insert(id);
                    }
                }
                TunnelEvent::Reset(id) => {
                    if let Some(link) = self.remove(id) {
                        self.counts.resets += 1;
                        link.reset();
                    }
                }
            }
        }
    }

    fn serve(
        &mut self,
        id: TunnelConnectionId,
        service: &str,
        settings: &TunnelSettings,
        poller: &mut TunnelPoller,
    ) {
        let known = settings.services.iter().find(|(name, _)| name == service);
        let target: Option<SocketAddr> = known.map(|(_, target)| *target);
        // The tunnel may forget a connection before the program has got the last data. So there may be more links than connections.
        let has_room = self.links.len() < 2 * usize::from(settings.connections);
        let link = target.filter(|_| has_room).map(TunnelLink::connect);
        match link {
            Some(Ok(link)) => {
                self.insert(id, link, poller);
                return;
            }
            Some(Err(error)) => {
                tracing::warn!(service, %error, "the server cannot be reached; the connection is reset");
            }
            None => {
                tracing::warn!(
                    service,
                    "there is no such service here, or too many connections; the connection is reset"
                );
            }
        }
        self.counts.refused += 1;
        self.tunnel.abort(id);
    }

    /// Moves data between the programs and the association, as far as there is room.
    ///
    /// # Errors
    /// If a message cannot be sealed.
    pub fn pump(&mut self, association: &mut Association) -> anyhow::Result<()> {
        for id in std::mem::take(&mut self.writers) {
            if self.write(id).is_err() {
                self.fail(id);
            }
            self.remove_if_over(id);
        }
        self.send(association)?;
        let order = self.turns.order(&self.readers);
        for (at, id) in order.iter().enumerate() {
            let room = backlog_room(association);
            if self.pending.is_some() || room == 0 {
                break;
            }
            let share = TunnelTurns::share(room, order.len() - at);
            if self.read(*id, share).is_err() {
                self.fail(*id);
            }
            self.remove_if_over(*id);
            self.send(association)?;
        }
        self.send(association)
    }

    fn remove_if_over(&mut self, id: TunnelConnectionId) {
        if self.links.get(&id).is_some_and(TunnelLink::is_over) {
            self.remove(id);
        }
    }

    fn write(&mut self, id: TunnelConnectionId) -> std::io::Result<()> {
        let Some(link) = self.links.get_mut(&id) else {
            return Ok(());
        };
        if link.is_connecting() {
            if !link.finish_connecting()? {
                return Ok(());
            }
            self.tunnel.accept(id);
        }
        let written = link.write()?;
        if written > 0 {
            self.counts.received_bytes += written as u64;
            self.tunnel.consumed(id, written);
        }
        // Without credit, this socket is not read, so no read notices an abort by the local program. Only `check` notices it.
        if self.tunnel.allowance(id) == 0 || !link.can_read() {
            link.check()?;
        }
        Ok(())
    }

    /// Reads at most `share` bytes from a program. Removes the connection from `readers` if nothing else can be read now.
    fn read(&mut self, id: TunnelConnectionId, share: usize) -> std::io::Result<()> {
        let room = self.tunnel.allowance(id).min(share);
        let link = self.links.get_mut(&id).filter(|link| link.can_read());
        let Some(link) = link.filter(|_| room > 0) else {
            self.readers.remove(&id);
            return self.links.get(&id).map_or(Ok(()), TunnelLink::check);
        };
        match link.read(&mut self.buffer, room)? {
            LinkRead::Data(data) => {
                self.counts.sent_bytes += data.len() as u64;
                self.tunnel.write(id, data);
                self.turns.on_served(id);
            }
            LinkRead::Nothing if link.can_read() => {} // a signal interrupted the read
            LinkRead::Nothing => {
                self.readers.remove(&id);
            }
            LinkRead::End => {
                self.readers.remove(&id);
                self.tunnel.end(id);
            }
        }
        Ok(())
    }

    /// Whether `pump` can do more without waiting.
    pub fn is_busy(&self, association: &Association) -> bool {
        !self.readers.is_empty() && self.pending.is_none() && backlog_room(association) > 0
    }

    fn send(&mut self, association: &mut Association) -> anyhow::Result<()> {
        loop {
            let next = match self.pending.take() {
                Some(message) => message,
                None if !self.seal.is_ready() => return Ok(()),
                None => match self.tunnel.poll_message() {
                    Some((stream, message)) => self::message(stream, self.seal.seal(stream, message.emit())?),
                    None => return Ok(()),
                },
            };
            match association.send(next.clone()) {
                Ok(()) => {}
                Err(proto::sctp::association::SctpSendError::Full) => {
                    self.pending = Some(next);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Resets all connections, because the association is gone.
    pub fn reset_all(&mut self) {
        self.readers.clear();
        self.writers.clear();
        for (_, link) in self.links.drain() {
            self.counts.resets += 1;
            link.reset();
        }
    }
}

/// Returns the number of bytes that may be handed to the association now. The association's queue is limited to two congestion windows of
/// its current path, so that a slow path has a short queue. The limit is at least [`BACKLOG_MIN`].
fn backlog_room(association: &Association) -> usize {
    let path = &association.destinations()[association.current().index()];
    let most = (2 * path.window().window() as usize).max(BACKLOG_MIN);
    most.saturating_sub(association.unacknowledged())
}

fn message(stream: u16, data: Vec<u8>) -> SctpMessage {
    SctpMessage {
        stream,
        protocol: 0,
        is_unordered: false,
        data: UserData::Bytes(Bytes::from(data)),
    }
}

/// The role's name in logs and status.
pub const fn role_name(role: TunnelRole) -> &'static str {
    match role {
        TunnelRole::Opening => "opening",
        TunnelRole::Serving => "serving",
    }
}
