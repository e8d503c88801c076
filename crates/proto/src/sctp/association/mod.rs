//! One association (RFC 9260 §4–§9). `handle_*` takes packets and time, `poll_*` returns packets, events, and the time of the next timeout.
//!
//! ```text
//!   send ──▶ send_queue ──▶ poll_transmit ──▶ packets ──▶ handle_packet ──▶ arrivals, reassembly ──▶ receive
//!                 ▲              ▲                              │
//!                 └── SACK ──────┼──────────────────────────────┘
//!            destinations: windows, timers, heartbeats
//! ```
//!
//! A packet is built when the caller asks for it, from the state of that moment. So only a few replies wait in a queue, and the configured
//! buffers bound all memory.

mod data;
mod output;
pub(super) mod setup;
mod shutdown;
mod timers;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::AddAssign;

use bytes::Bytes;
use thiserror::Error;

use super::arrivals::Arrivals;
use super::auth::CallKey;
use super::cause::ErrorCause;
use super::chunk::{InitChunk, SctpChunk};
use super::config::SctpConfig;
use super::destination::{Destination, PathId, PathTimeout};
use super::failover::FailoverState;
use super::message::SctpMessage;
use super::packet::SctpPacket;
use super::paths::PathTable;
use super::reassembly::Reassembly;
use super::secret::SctpSecret;
use super::send_queue::{SendQueue, waiting_bytes};
use super::state::{AssociationState, StateEvent};
use super::tsn::Tsn;
use crate::Instant;

/// Maximum number of replies (HEARTBEAT ACK, ERROR, …) that wait to be sent. Further replies are dropped: the peer asks again.
const REPLIES_MAX: usize = 16;
/// A packet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SctpTransmit {
    /// The peer's address.
    pub to: IpAddr,
    /// The packet.
    pub packet: SctpPacket,
    /// If this is not `None`, the IP packet has to be fragmented, into fragments of at most this many bytes: its chunks were made before the
    /// path became smaller.
    pub fragment_size: Option<u32>,
}

/// Why an association ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Both ends shut it down, and all data has arrived.
    ShutDown,
    /// This end aborted it.
    Aborted,
    /// The peer aborted it, for these reasons.
    PeerAborted(Vec<ErrorCause>),
    /// The peer did not answer, or was not heard in too many timeouts.
    Unreachable,
    /// The peer broke the protocol, or its data does not fit the buffer. The peer was told this cause.
    Violated(ErrorCause),
    /// The cookie was stale twice.
    StaleCookie,
}

/// Events for the application. An unread event is removed if a newer one makes it obsolete. So fewer than 16 events wait, whatever the peer
/// does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssociationEvent {
    /// Data may flow.
    Established,
    /// The handshake showed that these messages can never be sent, and none of them was. Either their stream does not exist
    /// ([`Association::outbound_streams`]), or they do not fit the peer's buffer.
    Refused(Vec<SctpMessage>),
    /// The peer restarted. Messages that were not acknowledged are lost. Messages that arrived before can still be read.
    Restarted,
    /// A destination failed.
    PathFailed(PathId),
    /// A destination answers again.
    PathRecovered(PathId),
    /// The policy made this destination the primary one for good.
    PrimaryChanged(PathId),
    /// The peer wants to end the association. It takes no new data.
    PeerShutsDown,
    /// The association has ended. This is the last event.
    Closed(CloseReason),
}

impl AssociationEvent {
    /// Whether a newer event makes this one obsolete.
    fn is_obsolete_after(&self, newer: &Self) -> bool {
        match (self, newer) {
            (
                Self::PathFailed(path) | Self::PathRecovered(path),
                Self::PathFailed(newer) | Self::PathRecovered(newer),
            ) => path == newer,
            // After a restart, the numbers of destinations have another meaning.
            (Self::PathFailed(_) | Self::PathRecovered(_) | Self::PrimaryChanged(_), Self::Restarted) => true,
            _ => std::mem::discriminant(self) == std::mem::discriminant(newer),
        }
    }
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SctpSendError {
    /// The association ends or has ended.
    #[error("the association is closing or closed and accepts no messages")]
    Closing,
    /// An empty message cannot be sent (RFC 9260 §3.3.1).
    #[error("the message is empty")]
    Empty,
    /// The stream does not exist.
    #[error("there is no outbound stream {0}")]
    NoStream(u16),
    /// The message is longer than half of this end's send buffer, or than half of the peer's receive buffer.
    #[error("the message exceeds {0} bytes, the limit set by the buffers")]
    TooLarge(usize),
    /// The send buffer is full. Try again after an acknowledgement.
    #[error("the send buffer is full")]
    Full,
}

/// Counters of an association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AssociationCounts {
    /// Packets dropped because of a wrong verification tag, or an address that is not the peer's.
    pub forged: u64,
    /// Chunks dropped because they do not fit the state, or contradict it.
    pub misplaced: u64,
    /// DATA chunks that arrived again.
    pub duplicates: u64,
    /// DATA chunks dropped because the buffer was full.
    pub overflows: u64,
    /// SACKs older than the last one.
    pub old_sacks: u64,
    /// Replies dropped because too many waited.
    pub dropped: u64,
    /// Errors of the peer that were not reported to the peer, because the handshake was not done or the source address was not confirmed.
    pub unreported: u64,
}

impl AddAssign for AssociationCounts {
    fn add_assign(&mut self, other: Self) {
        // The pattern names every field, so the compiler finds a field that is forgotten here.
        let Self {
            forged,
            misplaced,
            duplicates,
            overflows,
            old_sacks,
            dropped,
            unreported,
        } = other;
        self.forged += forged;
        self.misplaced += misplaced;
        self.duplicates += duplicates;
        self.overflows += overflows;
        self.old_sacks += old_sacks;
        self.dropped += dropped;
        self.unreported += unreported;
    }
}

/// A chunk that is repeated until it is answered: INIT, COOKIE ECHO, SHUTDOWN, SHUTDOWN ACK.
#[derive(Debug)]
struct Repeated {
    chunk: SctpChunk,
    /// When it is sent again (T1-init, T1-cookie, T2-shutdown).
    at: Instant,
    /// Its last destination.
    path: PathId,
    /// It is to be sent now.
    is_due: bool,
    repeats: u32,
}

/// One end of an association.
#[derive(Debug)]
pub struct Association {
    config: SctpConfig,
    secret: SctpSecret,
    /// The policy needs measurements of all paths.
    measures: bool,
    state: AssociationState,
    local_port: u16,
    peer_port: u16,
    local_tag: u32,
    /// The tag that packets to the peer carry. 0 until the peer has told it.
    peer_tag: u32,
    local_tsn: Tsn,
    own_addresses: Vec<IpAddr>,
    paths: PathTable,
    sender: SendQueue,
    arrivals: Arrivals,
    buffer: Reassembly,
    /// The peer's first window. It limits the size of messages (`message_max`).
    peer_buffer: u32,
    repeated: Option<Repeated>,
    /// The shared key. With its COOKIE ECHO, this end proves that it knows the key.
    call_key: Option<CallKey>,
    /// When the shutdown is given up (T5-shutdown-guard).
    gives_up_at: Option<Instant>,
    stale_cookies: u32,
    replies: VecDeque<(PathId, SctpChunk)>,
    /// Source of the last packet with data: its SACK goes there (RFC 9260 §6.4).
    heard_on: PathId,
    /// Window in the last SACK.
    announced: u32,
    /// Timeouts in a row, over all destinations.
    errors: u32,
    /// One packet may be retransmitted whatever the window says (RFC 9260 §6.3.3 E3, §7.2.4).
    retransmits_at_once: bool,
    /// A retransmission timer has run out, and no SACK came since. One packet of marked chunks was retransmitted at once. The other marked
    /// chunks, and the new data after them, wait for a SACK (RFC 9260 §6.3.3 E3).
    waits_for_sack: bool,
    /// Packets with data that may be sent before the next event (Max.Burst).
    burst: u32,
    /// A SACK came after the last sending of data and after the last timeout.
    was_acknowledged: bool,
    events: VecDeque<AssociationEvent>,
    /// The association's keys have changed since the endpoint listed it.
    is_renamed: bool,
    /// The endpoint was told that events wait.
    is_news_known: bool,
    /// Unrecognised parameters of the INIT ACK. They are reported when the handshake is done.
    unrecognized: Vec<Bytes>,
    counts: AssociationCounts,
}

impl Association {
    /// State.
    pub const fn state(&self) -> AssociationState {
        self.state
    }

    /// The peer's port.
    pub const fn peer_port(&self) -> u16 {
        self.peer_port
    }

    /// Whether the tag or the confirmed addresses have changed, or the association has ended, since the last call.
    pub(super) const fn take_renamed(&mut self) -> bool {
        std::mem::replace(&mut self.is_renamed, false)
    }

    /// The tag that packets to this end carry.
    pub(super) const fn local_tag(&self) -> u32 {
        self.local_tag
    }

    /// The peer's addresses, and what is known of the paths to them.
    pub fn destinations(&self) -> &[Destination] {
        self.paths.all()
    }

    /// The primary destination.
    pub const fn primary(&self) -> PathId {
        self.paths.primary()
    }

    /// The state of the failover policy.
    pub const fn failover(&self) -> FailoverState {
        self.paths.failover()
    }

    /// The destination of new data.
    pub const fn current(&self) -> PathId {
        self.paths.current()
    }

    /// Counters.
    pub const fn counts(&self) -> AssociationCounts {
        self.counts
    }

    /// Number of streams on which this end may send.
    pub fn outbound_streams(&self) -> usize {
        self.sender.streams()
    }

    /// Bytes of messages that wait or are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.sender.bytes()
    }

    /// Bytes that this end keeps because of what the peer has sent: fragments, messages that are not read, replies that wait, and the record
    /// of gaps and duplicates. Adds up what is there, so that tests can compare it with the bound.
    pub fn held_bytes(&self) -> usize {
        let replies = self.replies.iter().map(|(_, chunk)| chunk.wire_bytes());
        self.buffer.stored() + self.arrivals.stored() + replies.sum::<usize>()
    }

    /// Maximum length in bytes of a message. Until the peer has told its window, this end's own buffer is the best guess.
    fn message_max(&self) -> usize {
        (self.config.send_buffer.min(self.peer_buffer) as usize) / 2
    }

    /// Takes a message to be sent. Before the handshake is done, the peer's streams and its buffer are not known: messages that turn out to
    /// be impossible come back in [`AssociationEvent::Refused`].
    ///
    /// # Errors
    /// If the message can never be sent, or cannot be sent now ([`SctpSendError::Full`]).
    pub fn send(&mut self, message: SctpMessage) -> Result<(), SctpSendError> {
        let length = message.data.len();
        let most = self.message_max();
        if !self.state.takes_messages() {
            return Err(SctpSendError::Closing);
        }
        if length == 0 {
            return Err(SctpSendError::Empty);
        }
        if usize::from(message.stream) >= self.sender.streams() {
            return Err(SctpSendError::NoStream(message.stream));
        }
        if length > most {
            return Err(SctpSendError::TooLarge(most));
        }
        if self.sender.bytes() + waiting_bytes(length) > self.config.send_buffer as usize {
            return Err(SctpSendError::Full);
        }
        self.sender.push(message);
        self.burst = self.config.max_burst;
        Ok(())
    }

    /// The next message of the peer.
    pub fn receive(&mut self) -> Option<SctpMessage> {
        let message = self.buffer.read()?;
        // The peer may wait until the window opens (RFC 9260 §6.2; silly window syndrome avoidance, RFC 1122 §4.2.3.3).
        let step = self.config.full_packet().min(self.buffer.buffer() / 2);
        if self.announced < step && self.buffer.window() >= step && self.state.takes_data() {
            self.arrivals.acknowledge();
        }
        Some(message)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<AssociationEvent> {
        self.events.pop_front()
    }

    /// Whether the application has not read all messages.
    pub fn has_unread(&self) -> bool {
        self.buffer.is_ready()
    }

    /// Whether the association has ended, its events and messages have been read, and its replies have been sent.
    pub(super) fn is_over(&self) -> bool {
        let has_left = self.replies.is_empty() && !self.has_news() && !self.has_unread();
        self.state == AssociationState::Closed && has_left
    }

    /// Makes `path` the primary destination. Ignored if there is no such destination, or if it is not known to belong to the peer.
    pub fn set_primary(&mut self, path: PathId) {
        let paths = self.paths.all();
        if paths.get(path.index()).is_some_and(Destination::is_confirmed) {
            self.paths.set_primary(path);
        }
    }

    /// Whether `address` is the peer's.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.paths.find(address).is_some()
    }

    /// Whether events wait to be read.
    pub(super) fn has_news(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether events wait that the endpoint does not know of yet. After this call, the endpoint counts as told.
    pub(super) fn take_unknown_news(&mut self) -> bool {
        self.has_news() && !std::mem::replace(&mut self.is_news_known, true)
    }

    /// The endpoint has read all events.
    pub(super) const fn forget_news(&mut self) {
        self.is_news_known = false;
    }

    fn tell(&mut self, mut event: AssociationEvent) {
        if let AssociationEvent::Refused(newer) = &mut event {
            let older = self.events.iter_mut().find_map(|waiting| match waiting {
                AssociationEvent::Refused(messages) => Some(std::mem::take(messages)),
                _ => None,
            });
            drop(newer.splice(..0, older.unwrap_or_default()));
        }
        self.events.retain(|waiting| !waiting.is_obsolete_after(&event));
        self.events.push_back(event);
    }

    /// Reports an error of the peer to the peer. Only a confirmed address gets a report: any other source address may be forged, or the
    /// peer only claims to have it.
    fn report(&mut self, path: PathId, cause: ErrorCause) {
        if self.state.is_setup() || !self.paths.get(path).is_confirmed() {
            self.counts.unreported += 1;
        } else {
            self.reply(path, SctpChunk::Error(vec![cause]));
        }
    }

    fn reply(&mut self, path: PathId, chunk: SctpChunk) {
        if self.replies.len() < REPLIES_MAX {
            self.replies.push_back((path, chunk));
        } else {
            self.counts.dropped += 1;
        }
    }

    /// A packet of the peer, with a valid checksum, that came from `from`. Returns false if the packet was dropped as forged.
    pub fn handle_packet(&mut self, now: Instant, from: IpAddr, packet: SctpPacket) -> bool {
        if !self.trusts(from, &packet) {
            self.counts.forged += 1;
            return false;
        }
        let path = self.paths.find(from).unwrap_or(self.paths.current());
        self.paths.get_mut(path).counts.received_bytes += packet.wire_bytes() as u64;
        let mut has_data = false;
        for chunk in packet.chunks {
            if self.state == AssociationState::Closed {
                return true;
            }
            match chunk {
                SctpChunk::Data(data) => {
                    has_data = true;
                    self.on_data(path, data);
                }
                SctpChunk::Sack(sack) => self.on_sack(now, &sack),
                SctpChunk::InitAck(init) => self.on_init_ack(now, from, &init),
                SctpChunk::CookieAck => self.on_cookie_ack(now),
                SctpChunk::Heartbeat(info) => self.reply(path, SctpChunk::HeartbeatAck(info)),
                SctpChunk::HeartbeatAck(info) => self.on_heartbeat_ack(now, &info),
                SctpChunk::Abort { is_reflected, causes } => self.on_abort(is_reflected, causes),
                SctpChunk::Error(causes) => self.on_errors(now, &causes),
                SctpChunk::Shutdown(cumulative) => self.on_shutdown(now, cumulative),
                SctpChunk::ShutdownAck => self.on_shutdown_ack(path),
                SctpChunk::ShutdownComplete { .. } => self.on_shutdown_complete(),
                // The endpoint has handled these chunks already.
                SctpChunk::Init(_) | SctpChunk::CookieEcho(_) => self.counts.misplaced += 1,
                SctpChunk::Other { .. } => {
                    if !self.on_unknown(path, &chunk) {
                        break;
                    }
                }
            }
        }
        if has_data && !self.state.is_setup() {
            self.on_data_packet(now, path);
        }
        self.burst = self.config.max_burst;
        true
    }

    /// Whether a packet has the right tag and comes from an address of the peer (RFC 9260 §8.5).
    fn trusts(&self, from: IpAddr, packet: &SctpPacket) -> bool {
        let own = packet.tag == self.local_tag;
        let reflected = packet.tag == self.peer_tag && self.peer_tag != 0;
        let has_tag = match packet.chunks.first() {
            Some(
                SctpChunk::Abort {
                    is_reflected: true, ..
                }
                | SctpChunk::ShutdownComplete { is_reflected: true },
            ) => reflected,
            _ => own,
        };
        // The INIT ACK may come from an address that this end does not know yet.
        let is_known = self.has_address(from) || self.state == AssociationState::CookieWait;
        has_tag && is_known && packet.source_port == self.peer_port
    }

    /// A chunk of an unknown type. Returns whether the rest of the packet counts (RFC 9260 §3.2).
    fn on_unknown(&mut self, path: PathId, chunk: &SctpChunk) -> bool {
        let Some(reaction) = chunk.unknown() else {
            return true;
        };
        if reaction.reports {
            let whole = chunk.to_bytes();
            let room = self.config.packet_room() - 2 * super::tlv::TLV_HEADER;
            let reported = whole.slice(..whole.len().min(room));
            self.report(path, ErrorCause::UnrecognizedChunk(reported));
        }
        reaction.continues
    }

    fn on_errors(&mut self, now: Instant, causes: &[ErrorCause]) {
        for cause in causes {
            match cause {
                ErrorCause::StaleCookie(_) => self.on_stale_cookie(now),
                _ => self.counts.misplaced += 1,
            }
        }
    }

    /// Something sent to `path` was acknowledged (RFC 9260 §8.1, §8.2).
    fn on_heard(&mut self, path: PathId) {
        self.errors = 0;
        if self.paths.on_heard(path) {
            self.tell(AssociationEvent::PathRecovered(path));
        }
    }

    /// Something sent to `path` was not acknowledged in time.
    fn on_path_error(&mut self, now: Instant, path: PathId, is_probe: bool) {
        let primary = self.paths.primary();
        let timeout = self.paths.on_error(path);
        self.after_path_error(now, path, primary, timeout);
        // Destinations with errors are probed more often than others, so lost probes must not end the association too early. A lost probe
        // counts only if no destination is healthy and no data is outstanding. Otherwise the healthy destination, or timeouts of the data,
        // show whether the peer answers.
        if !is_probe || (self.sender.is_empty() && !self.paths.has_healthy()) {
            self.errors += 1;
        }
        if self.errors > self.config.association_max_retrans {
            self.end(CloseReason::Unreachable);
        }
    }

    /// The watch has found that `path` does not answer, while another path does.
    fn on_silence(&mut self, now: Instant, path: PathId) {
        let primary = self.paths.primary();
        self.paths.on_silence(path);
        self.after_path_error(now, path, primary, PathTimeout::Failed);
    }

    /// Reports what an error of `path` has changed, and schedules probes of the path. `primary`: the primary destination before the error.
    fn after_path_error(&mut self, now: Instant, path: PathId, primary: PathId, timeout: PathTimeout) {
        if timeout == PathTimeout::Failed {
            self.tell(AssociationEvent::PathFailed(path));
        }
        if primary != self.paths.primary() {
            self.tell(AssociationEvent::PrimaryChanged(self.paths.primary()));
        }
        // Heartbeats notice the recovery of a destination that has failed, and of a primary from which data has moved away.
        let is_left = path == primary && path != self.paths.current();
        if is_left || !self.paths.get(path).is_usable() {
            self.paths.get_mut(path).probe_from(now);
        }
    }

    /// The association has ended. Only replies that wait are still sent.
    fn end(&mut self, reason: CloseReason) {
        self.state = self.state.after(StateEvent::Broken);
        self.is_renamed = true;
        self.repeated = None;
        self.gives_up_at = None;
        for path in self.paths.all_mut() {
            path.stop_timer();
        }
        self.tell(AssociationEvent::Closed(reason));
    }

    /// Ends the association without waiting for data. The peer is told the reason.
    pub fn abort(&mut self, reason: Bytes) {
        let reason = reason.slice(..reason.len().min(self.config.packet_room() / 2));
        self.send_abort(ErrorCause::UserAbort(reason), CloseReason::Aborted);
    }

    /// Tells the peer a cause, and ends the association.
    fn send_abort(&mut self, cause: ErrorCause, reason: CloseReason) {
        if self.state == AssociationState::Closed {
            return;
        }
        self.replies.clear();
        if self.peer_tag != 0 {
            let causes = vec![cause];
            let is_reflected = false;
            let abort = SctpChunk::Abort { is_reflected, causes };
            self.replies.push_back((self.paths.current(), abort));
        }
        self.end(reason);
    }

    /// This end's INIT or INIT ACK, without parameters.
    pub(super) fn own_terms(config: &SctpConfig, tag: u32, first_tsn: Tsn) -> InitChunk {
        InitChunk {
            tag,
            window: config.receive_buffer,
            outbound_streams: config.outbound_streams,
            inbound_streams: config.inbound_streams,
            first_tsn,
            parameters: Vec::new(),
        }
    }
}
