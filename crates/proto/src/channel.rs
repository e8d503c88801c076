//! The channel between the two nodes of a pair: messages over one SCTP association, whose paths are the links between the nodes.
//!
//! ```text
//!   open ── a call every second ──▶ established ── the association ends ──▶ closed ── 1 s ──▶ a call
//! ```
//!
//! One of the two nodes *calls*: it opens the association. If a link is cut, the messages on it arrive over another link, one
//! retransmission timeout later. Messages do not wait for each other. Each message is one question, one answer or one state, and the
//! receiver of an answer can tell which question it answers.
//!
//! The agent authenticates packets before they get here. While there is no association, [`PeerChannel::send`] takes nothing, and the agent
//! sends the message as a datagram.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::Instant;
use crate::sctp::association::{Association, AssociationEvent, SctpTransmit};
use crate::sctp::endpoint::{AssociationId, SctpEndpoint};
use crate::sctp::packet::SctpPacket;
use crate::sctp::{PATHS_MAX, SctpConfig, SctpMessage, UserData};

/// The SCTP port of both nodes.
const PORT: u16 = 9899;
/// Time between the end of an association, or a call that failed, and the next call.
const RECALL: Duration = Duration::from_secs(1);
/// Size of a packet in bytes, with all headers below SCTP. Every IPv6 path carries packets of this size unfragmented (RFC 8200 §5).
const PATH_MTU: u32 = 1280;
/// Longest retransmission timeout: the channel notices within this time that a link is back.
const RTO_MAX: Duration = Duration::from_secs(1);
/// Interval of the heartbeats over idle links.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// If the peer is heard but there is no association for this time (ten calls), the association is overdue.
const OVERDUE: Duration = Duration::from_secs(10);
/// A peer that was silent for longer than this has paused. When the peer is heard again, the time [`OVERDUE`] begins anew.
const PAUSE: Duration = Duration::from_secs(2);

/// Whether this node calls the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelRole {
    /// This node calls.
    Calls,
    /// The other node calls.
    Answers,
}

impl ChannelRole {
    /// The role of the node `own`. The names are compared byte by byte, and the node with the smaller name calls.
    pub fn of(own: &str, peer: &str) -> Self {
        if own < peer { Self::Calls } else { Self::Answers }
    }
}

/// A message of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelMessage {
    /// The kind of the message. The sender chooses it.
    pub kind: u32,
    /// The contents, at least one byte.
    pub contents: Bytes,
}

/// The channel's state, for people and scripts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelView {
    /// Whether messages can be sent.
    pub is_established: bool,
    /// Number of associations so far.
    pub established: u64,
    /// The peer's addresses in the association. `true`: the address answers.
    pub paths: Vec<(IpAddr, bool)>,
    /// Packets with retransmitted data, on all paths of this association.
    pub retransmissions: u64,
}

/// One node's end of the channel.
#[derive(Debug)]
pub struct PeerChannel {
    role: ChannelRole,
    config: SctpConfig,
    /// `None` while this node has no address on any link.
    endpoint: Option<SctpEndpoint>,
    own: Vec<IpAddr>,
    peer: Vec<IpAddr>,
    association: Option<AssociationId>,
    is_established: bool,
    established: u64,
    calls_at: Option<Instant>,
    /// When the peer was last heard, by any message.
    heard_at: Option<Instant>,
    /// Since when the peer has been heard without a pause while there was no association.
    missing_since: Option<Instant>,
    received: VecDeque<ChannelMessage>,
}

impl PeerChannel {
    /// A channel to the node with the addresses `peer`, the first [`PATHS_MAX`] of them. `lower_headers`: bytes of all headers below SCTP.
    pub fn new(role: ChannelRole, peer: &[IpAddr], lower_headers: u32) -> Self {
        let config = SctpConfig {
            path_mtu: PATH_MTU,
            base_mtu: None,
            rto_max: RTO_MAX,
            rto_initial: RTO_MAX,
            heartbeat_interval: Some(HEARTBEAT),
            initial_window: PATH_MTU * 10,
            ..SctpConfig::wire(lower_headers)
        };
        Self {
            role,
            config,
            endpoint: None,
            own: Vec::new(),
            peer: peer.iter().copied().take(PATHS_MAX).collect(),
            association: None,
            is_established: false,
            established: 0,
            calls_at: None,
            heard_at: None,
            missing_since: None,
            received: VecDeque::new(),
        }
    }

    /// Sets this node's addresses on the links. If they have changed, the association with the old addresses ends, and a new association
    /// begins. Only then is `secret` called. It returns 32 random bytes that were never used before.
    ///
    /// # Errors
    /// The error of `secret`. Then nothing has changed.
    pub fn set_addresses<E>(
        &mut self,
        now: Instant,
        own: &[IpAddr],
        secret: impl FnOnce() -> Result<[u8; 32], E>,
    ) -> Result<(), E> {
        let mut own: Vec<_> = own.iter().map(IpAddr::to_canonical).collect();
        own.sort_unstable();
        own.dedup();
        own.truncate(PATHS_MAX);
        if own == self.own {
            return Ok(());
        }
        let secret = secret()?;
        self.drop_association();
        self.endpoint = match own.is_empty() {
            true => None,
            // Room for two associations: one that has ended counts until it is forgotten, and the next one may begin before that.
            false => SctpEndpoint::new(self.config, secret, PORT, own.clone(), 2).ok(),
        };
        self.own = own;
        self.calls_at = (self.role == ChannelRole::Calls).then_some(now);
        Ok(())
    }

    /// An authenticated packet of the peer came from its address `from`. Returns false if the packet is malformed. Without an endpoint the
    /// packet is ignored, and the result is true.
    pub fn handle_packet(&mut self, now: Instant, from: IpAddr, packet: &Bytes) -> bool {
        let Some(endpoint) = &mut self.endpoint else {
            return true;
        };
        match SctpPacket::parse(packet) {
            Ok(packet) => {
                endpoint.handle_packet(now, from, packet);
                true
            }
            Err(_) => false,
        }
    }

    /// The peer's agent was heard on any link, by a message of the channel or by any other message.
    pub fn on_heard(&mut self, now: Instant) {
        let has_paused = self.heard_at.is_none_or(|at| now.since(at) > PAUSE);
        self.heard_at = Some(now);
        if self.is_established {
            self.missing_since = None;
        } else if has_paused || self.missing_since.is_none() {
            self.missing_since = Some(now);
        }
    }

    /// Whether the peer has been heard for long, and there is still no association. Then the peer is not configured for a channel, or the
    /// packets of the channel do not get through.
    pub fn is_overdue(&self, now: Instant) -> bool {
        let is_heard = self.heard_at.is_some_and(|at| now.since(at) <= PAUSE);
        let is_late = self
            .missing_since
            .is_some_and(|since| now.since(since) >= OVERDUE);
        !self.is_established && is_heard && is_late
    }

    /// Sends a message. Returns whether the channel has taken the message. The channel must be established, and its buffer must have room.
    pub fn send(&mut self, kind: u32, contents: Bytes) -> bool {
        if !self.is_established {
            return false;
        }
        let message = SctpMessage {
            stream: 0,
            protocol: kind,
            is_unordered: true,
            data: UserData::Bytes(contents),
        };
        self.association_mut()
            .is_some_and(|association| association.send(message).is_ok())
    }

    /// The next message of the peer.
    pub fn receive(&mut self) -> Option<ChannelMessage> {
        if let Some(message) = self.received.pop_front() {
            return Some(message);
        }
        // Asks `has_unread` before it calls `association_mut`, because each call of `association_mut` makes the endpoint check whether the
        // association has something to send.
        let id = self.association?;
        let is_unread = self.endpoint.as_ref()?.association(id)?.has_unread();
        is_unread
            .then(|| self.association_mut()?.receive().and_then(read))
            .flatten()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let endpoint = self.endpoint.as_ref()?;
        endpoint.poll_timeout().into_iter().chain(self.calls_at).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some(endpoint) = &mut self.endpoint else {
            return;
        };
        endpoint.handle_timeout(now);
        if self.calls_at.is_some_and(|at| now >= at) {
            self.calls_at = None;
            match endpoint.connect(now, &self.peer, PORT) {
                Ok(id) => self.association = Some(id),
                Err(_) => self.calls_at = Some(now + RECALL),
            }
        }
    }

    /// The next packet, and the peer's address to which it goes. After a call of any other function, call this one until it returns `None`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(IpAddr, SctpPacket)> {
        loop {
            if let Some(SctpTransmit { to, packet, .. }) = self.endpoint.as_mut()?.poll_transmit(now) {
                return Some((to, packet));
            }
            let (id, event) = self.endpoint.as_mut()?.poll_event()?;
            self.on_event(now, id, event);
        }
    }

    fn on_event(&mut self, now: Instant, id: AssociationId, event: AssociationEvent) {
        match event {
            AssociationEvent::Established | AssociationEvent::Restarted => {
                self.association = Some(id);
                self.is_established = true;
                self.established += 1;
            }
            // The peer takes no further messages.
            AssociationEvent::PeerShutsDown => self.is_established &= self.association != Some(id),
            AssociationEvent::Closed(_) => self.on_closed(now, id),
            AssociationEvent::PathFailed(_)
            | AssociationEvent::PathRecovered(_)
            | AssociationEvent::PrimaryChanged(_)
            // All messages use the one stream and fit the buffer, so none is refused. A question without an answer is asked again.
            | AssociationEvent::Refused(_) => {}
        }
    }

    /// Moves the last messages to `received`, because later calls of `receive` do not look for them in the ended association. The endpoint
    /// keeps an ended association until its messages have been read.
    fn on_closed(&mut self, now: Instant, id: AssociationId) {
        let association = self.endpoint.as_mut().and_then(|all| all.association_mut(id));
        if let Some(association) = association {
            self.received
                .extend(std::iter::from_fn(|| association.receive()).filter_map(read));
        }
        if self.association == Some(id) {
            self.association = None;
            self.is_established = false;
            if self.role == ChannelRole::Calls {
                self.calls_at = Some(now + RECALL);
            }
        }
    }

    /// Drops the association without sending anything. The peer notices, because no packet with the old verification tags is answered.
    fn drop_association(&mut self) {
        self.association = None;
        self.is_established = false;
    }

    fn association_mut(&mut self) -> Option<&mut Association> {
        self.endpoint.as_mut()?.association_mut(self.association?)
    }

    /// The channel's state.
    pub fn view(&self) -> ChannelView {
        let association = self
            .association
            .and_then(|id| self.endpoint.as_ref()?.association(id));
        let paths = association.map(Association::destinations).unwrap_or_default();
        ChannelView {
            is_established: self.is_established,
            established: self.established,
            paths: paths
                .iter()
                .map(|path| (path.address(), path.is_usable()))
                .collect(),
            retransmissions: paths.iter().map(|path| path.counts().retransmissions).sum(),
        }
    }
}

/// The channel's form of a message. `None` for data without bytes, which only a simulation has.
fn read(message: SctpMessage) -> Option<ChannelMessage> {
    match message.data {
        UserData::Bytes(contents) => Some(ChannelMessage {
            kind: message.protocol,
            contents,
        }),
        UserData::Counted(_) => None,
    }
}

#[cfg(test)]
mod tests;
