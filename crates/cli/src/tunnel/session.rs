//! One association with its connections: between the association, the rules of the tunnel, the seal and the TCP sockets.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use proto::Instant;
use proto::sctp::association::Association;
use proto::sctp::{SctpMessage, UserData};
use proto::tunnel::{Tunnel, TunnelConnectionId, TunnelEvent, TunnelRole};

use super::link::{LinkRead, TunnelLink};
use super::seal::Seal;
use super::settings::TunnelSettings;

/// Timeout of the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Most bytes that one connection sends in one turn, so that all have their turns.
const TURN_BYTES: usize = 128 << 10;
/// Least bytes that may wait in the send buffer.
const BACKLOG_MIN: usize = 128 << 10;

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionCounts {
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that ended by a reset.
    pub resets: u64,
    /// Bytes from local programs.
    pub sent_bytes: u64,
    /// Bytes to local programs.
    pub received_bytes: u64,
}

/// An association that is established.
pub struct TunnelSession {
    tunnel: Tunnel,
    seal: Seal,
    links: HashMap<TunnelConnectionId, TunnelLink>,
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
    pub fn new(settings: &TunnelSettings, now: Instant) -> anyhow::Result<Self> {
        let (seal, hello) = Seal::new(settings.key.as_ref(), settings.role, settings.connections)?;
        Ok(Self {
            tunnel: Tunnel::new(settings.role, settings.window, settings.connections),
            seal,
            links: HashMap::new(),
            pending: hello.map(|hello| message(0, hello)),
            begun: now,
            counts: SessionCounts::default(),
            buffer: vec![0; TURN_BYTES],
        })
    }

    /// Whether connections can be opened.
    pub const fn is_ready(&self) -> bool {
        self.seal.is_ready()
    }

    /// When the handshake is given up.
    pub fn gives_up_at(&self) -> Option<Instant> {
        (!self.is_ready()).then(|| self.begun + HANDSHAKE_MAX)
    }

    /// A client has connected to a service.
    pub fn open(&mut self, service: &str, link: TunnelLink) {
        match self.tunnel.open(service.to_owned()) {
            Some(id) => {
                self.counts.opened += 1;
                self.links.insert(id, link);
            }
            None => {
                self.counts.resets += 1;
                link.reset();
            }
        }
    }

    /// Takes all messages of the peer.
    ///
    /// # Errors
    /// If the peer breaks the protocol or does not have the key.
    pub fn receive(
        &mut self,
        association: &mut Association,
        settings: &TunnelSettings,
    ) -> anyhow::Result<()> {
        while let Some(message) = association.receive() {
            let UserData::Bytes(data) = message.data else {
                bail!("data without bytes");
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
            self.take_events(settings);
        }
        Ok(())
    }

    fn take_events(&mut self, settings: &TunnelSettings) {
        while let Some(event) = self.tunnel.poll_event() {
            match event {
                TunnelEvent::Opened(id, service) => self.serve(id, &service, settings),
                TunnelEvent::Data(id, data) => {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.push(data);
                    }
                }
                TunnelEvent::Writable(_) => {}
                TunnelEvent::Ended(id) => {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.end();
                    }
                }
                TunnelEvent::Reset(id) => {
                    if let Some(link) = self.links.remove(&id) {
                        self.counts.resets += 1;
                        link.reset();
                    }
                }
            }
        }
    }

    fn serve(&mut self, id: TunnelConnectionId, service: &str, settings: &TunnelSettings) {
        let known = settings.services.iter().find(|(name, _)| name == service);
        let target: Option<SocketAddr> = known.map(|(_, target)| *target);
        // Connections whose numbers are free already may still write what they have.
        let has_room = self.links.len() < 2 * usize::from(settings.connections);
        let link = target.filter(|_| has_room).map(TunnelLink::connect);
        match link {
            Some(Ok(link)) => {
                self.counts.opened += 1;
                self.links.insert(id, link);
            }
            Some(Err(error)) => {
                tracing::warn!(service, %error, "the server cannot be reached; the connection is reset");
                self.tunnel.abort(id);
            }
            None => {
                tracing::warn!(
                    service,
                    "there is no such service here, or too many connections; the connection is reset"
                );
                self.tunnel.abort(id);
            }
        }
    }

    /// Moves data between the programs and the association, as far as there is room.
    ///
    /// # Errors
    /// If a message cannot be sealed.
    pub fn pump(&mut self, association: &mut Association) -> anyhow::Result<()> {
        let ids: Vec<TunnelConnectionId> = self.links.keys().copied().collect();
        for id in ids {
            if self.pump_link(id, association).is_err() {
                self.tunnel.abort(id);
                self.counts.resets += 1;
                if let Some(link) = self.links.remove(&id) {
                    link.reset();
                }
            }
            if self.links.get(&id).is_some_and(TunnelLink::is_over) {
                self.links.remove(&id);
            }
            self.send(association)?;
        }
        self.send(association)
    }

    fn pump_link(&mut self, id: TunnelConnectionId, association: &Association) -> std::io::Result<()> {
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
        if self.pending.is_some() || !link.can_read() {
            return Ok(());
        }
        let room = self.tunnel.allowance(id).min(backlog_room(association));
        if room == 0 {
            return Ok(());
        }
        match link.read(&mut self.buffer, room)? {
            LinkRead::Data(data) => {
                self.counts.sent_bytes += data.len() as u64;
                self.tunnel.write(id, data);
            }
            LinkRead::Nothing => {}
            LinkRead::End => self.tunnel.end(id),
        }
        Ok(())
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

    /// The sockets to wait at: for data, for room.
    pub fn interest(
        &self,
        association: &Association,
    ) -> impl Iterator<Item = (std::os::fd::BorrowedFd<'_>, bool, bool)> {
        let has_room = self.pending.is_none() && backlog_room(association) > 0;
        self.links.iter().filter_map(move |(id, link)| {
            let reads = has_room && link.can_read() && self.tunnel.allowance(*id) > 0;
            let writes = link.wants_room();
            (reads || writes).then(|| (link.fd(), reads, writes))
        })
    }

    /// The association is gone: each program is told.
    pub fn reset_all(&mut self) {
        for (_, link) in self.links.drain() {
            self.counts.resets += 1;
            link.reset();
        }
    }
}

/// Bytes that may be handed to the association now: about two windows of what its path carries, so that a slow path has a short queue.
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
