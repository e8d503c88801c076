//! One end of a TCP connection: its interface to the application, and to the caller that passes packets and time to it.

use std::net::SocketAddr;
use std::time::Duration;

use proto::packet::{Checksum, Flags, Malformed, Segment, TcpOptions};
use proto::{Instant, Seq};
use thiserror::Error;

use super::paws::Paws;
use super::receiver::TcpReceiver;
use super::rto::TcpRto;
use super::sender::TcpSender;
use super::state::{EndpointState, TcpEvent};
use super::timers::{Timer, Timers};
use super::{TcpConfig, reset_for};

/// One end of a TCP connection.
///
/// Its methods are of four kinds:
/// * *getters* take `&self`;
/// * *events in*: [`handle_packet`](Self::handle_packet), [`handle_timeout`](Self::handle_timeout);
/// * *requests of the application*: [`write`](Self::write), [`read`](Self::read), [`shutdown`](Self::shutdown),
///   [`abort`](Self::abort);
/// * *outputs*: after any event or request, call [`poll_transmit`](Self::poll_transmit) until it returns `None`, then ask
///   [`poll_timeout`](Self::poll_timeout) when to call `handle_timeout`.
///
/// The times `now` of the calls must never go back.
#[derive(Clone, Debug)]
pub struct TcpEndpoint {
    pub(super) config: TcpConfig,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: EndpointState,
    pub(super) failure: Option<TcpFailure>,
    /// Sequence number of our SYN.
    pub(super) initial: Seq,
    pub(super) sender: TcpSender,
    pub(super) receiver: TcpReceiver,
    pub(super) rto: TcpRto,
    /// `None` if timestamps are neither offered nor agreed.
    pub(super) paws: Option<Paws>,
    /// Whether SACK is offered or agreed.
    pub(super) sack: bool,
    /// Whether window scaling is offered or agreed. `sender` and `receiver` have the shifts.
    pub(super) window_scale: bool,
    pub(super) timers: Timers,
    /// Number of SYNs and SYN-ACKs that were sent, and the time of the last one.
    pub(super) handshakes: (u32, Instant),
    /// Number of retransmission timeouts since the peer last acknowledged something new or answered a window probe.
    pub(super) retries: u32,
    /// Packets that [`poll_transmit`](Self::poll_transmit) must still return.
    pub(super) due: PendingPackets,
    /// Number of segments with data that were received and not yet acknowledged.
    pub(super) unacknowledged: u32,
    /// When this endpoint last sent a challenge ([`challenge`](Self::challenge)).
    pub(super) challenged: Option<Instant>,
}

/// Packets without data that must be sent, in the order of the fields.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingPackets {
    pub reset: Option<Segment<'static>>,
    /// A SYN or SYN-ACK.
    pub handshake: bool,
    /// A window probe: a segment with an old sequence number. The peer answers it with an acknowledgement that has the peer's window.
    pub probe: bool,
    /// A pure acknowledgement. It is left out if a data segment or a probe is sent, which also acknowledges.
    pub ack: bool,
}

/// The initial sequence number and timestamp of an endpoint. A real endpoint draws them at random. Here the caller chooses them, so that a
/// test can choose numbers that soon wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Initial {
    /// Sequence number of the SYN.
    pub seq: Seq,
    /// Value of the timestamp clock at [`Instant::ZERO`]. The clock counts milliseconds.
    pub timestamp: u32,
}

/// Why a connection ended before both sides had closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TcpFailure {
    /// The peer answered our SYN with a reset.
    #[error("connection refused")]
    Refused,
    /// The peer reset the connection.
    #[error("connection reset by peer")]
    Reset,
    /// The peer did not answer for too long.
    #[error("connection timed out")]
    TimedOut,
    /// Our application aborted the connection.
    #[error("connection aborted")]
    Aborted,
}

/// Minimum time between two challenges ([`TcpEndpoint::challenge`]). Without this limit, two ends that disagree about the connection would
/// answer each other forever (RFC 5961 §7; Linux's `tcp_invalid_ratelimit`).
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);

impl TcpEndpoint {
    /// Opens a connection: the first packet is a SYN.
    ///
    /// # Panics
    /// If the configuration is invalid ([`TcpConfig::check`]).
    pub fn connect(config: TcpConfig, local: SocketAddr, remote: SocketAddr, initial: Initial) -> Self {
        config.check().expect("the caller has checked the configuration");
        Self {
            local,
            remote,
            state: EndpointState::SynSent,
            failure: None,
            initial: initial.seq,
            sender: TcpSender::new(initial.seq + 1, config.send_buffer, config.mss),
            receiver: TcpReceiver::new(Seq(0), config.receive_buffer, config.mss),
            rto: TcpRto::new(&config),
            paws: config.timestamps.then(|| Paws::new(initial.timestamp)),
            sack: config.sack,
            window_scale: config.window_scale.is_some(),
            timers: Timers::default(),
            handshakes: (0, Instant::ZERO),
            retries: 0,
            due: PendingPackets {
                handshake: true,
                ..PendingPackets::default()
            },
            unacknowledged: 0,
            challenged: None,
            config,
        }
    }

    /// Makes the endpoint that answers `syn`, which came to a listener. The endpoint's first packet is a SYN-ACK. `None` if `syn` is no
    /// SYN, or also has ACK or RST set.
    ///
    /// # Panics
    /// If the configuration is invalid ([`TcpConfig::check`]).
    pub fn accept(config: TcpConfig, initial: Initial, syn: &Segment<'_>, now: Instant) -> Option<Self> {
        if !syn.flags.syn || syn.flags.ack || syn.flags.rst {
            return None;
        }
        let mut endpoint = Self::connect(config, syn.destination, syn.source, initial);
        endpoint.negotiate(now, syn);
        endpoint.state = endpoint.state.after(TcpEvent::PeerSyn);
        Some(endpoint)
    }

    /// The state of the connection.
    pub const fn state(&self) -> EndpointState {
        self.state
    }

    /// Our address and port.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address and port.
    pub const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Why the connection ended. `None` if both sides have closed it, or if it has not ended.
    pub const fn failure(&self) -> Option<TcpFailure> {
        self.failure
    }

    /// Number of bytes that [`read`](Self::read) would give.
    pub fn readable(&self) -> usize {
        self.receiver.readable()
    }

    /// Whether there is nothing left to read: all input was read, and the peer's stream or the connection has ended.
    pub fn is_read_finished(&self) -> bool {
        self.readable() == 0 && (self.receiver.is_complete() || self.state == EndpointState::Closed)
    }

    /// Number of bytes that [`write`](Self::write) would take.
    pub fn writable(&self) -> usize {
        if self.state == EndpointState::Closed || self.sender.is_finished() {
            return 0;
        }
        self.sender.free()
    }

    /// Whether the peer has acknowledged everything that was written. Also true when the connection is over.
    pub fn is_delivered(&self) -> bool {
        self.state == EndpointState::Closed || self.sender.in_flight() == 0 && !self.sender.is_pending()
    }

    /// The smoothed round-trip time, if one was measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.rto.smoothed()
    }

    /// Takes a packet from the network. Segments of other connections are ignored.
    ///
    /// # Errors
    /// If the bytes are no valid TCP segment. The endpoint is then unchanged.
    pub fn handle_packet(&mut self, now: Instant, packet: &[u8]) -> Result<(), Malformed> {
        let segment = Segment::parse(packet, Checksum::Unverified)?;
        self.handle_segment(now, &segment);
        Ok(())
    }

    /// Handles the timers that have expired by `now`. Calls that come too early do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.timers.expire(Timer::DelayedAck, now) {
            self.due.ack = true;
        }
        if self.timers.expire(Timer::TimeWait, now) {
            self.end(None);
        }
        if self.timers.expire(Timer::Retransmit, now) {
            self.on_retransmit_timeout(now);
        }
    }

    /// Puts bytes into the send buffer. Returns the number of bytes for which the buffer had room; 0 after [`shutdown`](Self::shutdown).
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if self.state == EndpointState::Closed {
            return 0;
        }
        self.sender.write(bytes)
    }

    /// Appends up to `limit` received bytes to `into`. Returns their number.
    pub fn read(&mut self, into: &mut Vec<u8>, limit: usize) -> usize {
        let count = self.receiver.read(into, limit);
        if count > 0 && self.state.is_synchronized() && self.receiver.is_window_update_due() {
            self.due.ack = true;
        }
        count
    }

    /// Ends our stream: a FIN follows the bytes that were written. The peer's stream continues.
    pub fn shutdown(&mut self) {
        self.sender.finish();
        self.state = self.state.after(TcpEvent::Shutdown); // no effect before the handshake is complete; `open` repeats the event then
    }

    /// Ends the connection immediately. Sends a reset if the peer knows the connection.
    pub fn abort(&mut self) {
        if self.state.is_synchronized() && self.state != EndpointState::TimeWait {
            let flags = Flags {
                ack: true,
                ..Flags::RST
            };
            let reset = self.segment(self.sender.next_seq(), self.receiver.next_seq(), flags);
            self.end(Some(TcpFailure::Aborted));
            self.due.reset = Some(reset);
        } else if self.state != EndpointState::Closed {
            self.end(Some(TcpFailure::Aborted));
        }
    }

    /// The next packet to be sent. Call until `None` after any other method that takes `&mut self`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if let Some(reset) = self.due.reset.take() {
            return Some(reset.emit());
        }
        match self.state {
            EndpointState::Closed => None,
            EndpointState::SynSent | EndpointState::SynReceived => self.transmit_handshake(now),
            _ => {
                let packet = self.transmit(now);
                // The timer also runs when data waits for the peer's window and nothing is in flight. If the timer expires in this state, a
                // window probe is sent.
                if self.sender.in_flight() > 0 || (packet.is_none() && self.sender.is_pending()) {
                    self.timers
                        .set_if_stopped(Timer::Retransmit, now + self.rto.current());
                }
                packet
            }
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), unless something else happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Ends the connection.
    pub(super) fn end(&mut self, failure: Option<TcpFailure>) {
        self.state = self.state.after(TcpEvent::Ended);
        self.failure = failure;
        self.timers.stop_all();
        self.due = PendingPackets::default();
    }

    /// Sends a challenge, at most once per [`CHALLENGE_INTERVAL`]. A challenge is an acknowledgement that answers a segment that is not
    /// acceptable, for example a SYN. It tells the peer what this endpoint expects.
    pub(super) fn challenge(&mut self, now: Instant) {
        if self
            .challenged
            .is_none_or(|last| now.since(last) >= CHALLENGE_INTERVAL)
        {
            self.challenged = Some(now);
            self.due.ack = true;
        }
    }

    /// Queues the reset that answers `stray`, a segment that does not fit the connection.
    pub(super) fn reset_stray(&mut self, stray: &Segment<'_>) {
        self.due.reset = reset_for(stray);
    }

    fn on_retransmit_timeout(&mut self, now: Instant) {
        let opening = !self.state.is_synchronized();
        let limit = if opening {
            self.config.syn_retries
        } else {
            self.config.retries
        };
        if self.retries >= limit {
            self.end(Some(TcpFailure::TimedOut));
            return;
        }
        self.retries += 1;
        self.rto.on_timeout();
        if opening {
            self.due.handshake = true;
        } else {
            self.due.probe = self.sender.window() == 0;
            self.sender.on_timeout(self.retries > 1);
        }
        self.timers.set(Timer::Retransmit, now + self.rto.current());
    }

    fn transmit_handshake(&mut self, now: Instant) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.due.handshake) {
            return None;
        }
        let flags = if self.state == EndpointState::SynSent {
            Flags::SYN
        } else {
            Flags::SYN_ACK
        };
        let (ack, window) = self.receiver.advertise(false);
        let mut segment = self.segment(self.initial, if flags.ack { ack } else { Seq(0) }, flags);
        segment.window = window;
        segment.options = TcpOptions {
            mss: Some(self.config.mss),
            window_scale: self.config.window_scale.filter(|_| self.window_scale),
            sack_permitted: self.sack,
            timestamps: self.paws.as_ref().map(|paws| paws.option(now)),
            ..TcpOptions::default()
        };
        self.handshakes = (self.handshakes.0 + 1, now);
        self.timers
            .set_if_stopped(Timer::Retransmit, now + self.rto.current());
        Some(segment.emit())
    }

    /// The next packet: a probe, data, or an acknowledgement that is due.
    fn transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        let options = TcpOptions {
            timestamps: self.paws.as_ref().map(|paws| paws.option(now)),
            sack: if self.sack {
                self.receiver.sack_blocks()
            } else {
                [None; 4]
            },
            ..TcpOptions::default()
        };
        let mut payload = Vec::new();
        let (mut seq, mut flags) = (self.sender.next_seq(), Flags::ACK);
        if std::mem::take(&mut self.due.probe) {
            seq = self.sender.una() - 1;
        } else if let Some(chunk) = self
            .sender
            .next_chunk(now, usize::from(self.sender.mss()) - options_len(&options))
        {
            seq = chunk.seq;
            flags.fin = chunk.fin;
            flags.psh = chunk.last && !chunk.payload.is_empty();
            payload = chunk.payload;
        } else if !self.due.ack {
            return None;
        }
        self.due.ack = false;
        self.unacknowledged = 0;
        self.timers.stop(Timer::DelayedAck);
        let (ack, window) = self.receiver.advertise(true);
        let segment = Segment {
            window,
            options,
            payload: &payload,
            ..self.segment(seq, ack, flags)
        };
        Some(segment.emit())
    }

    fn segment(&self, seq: Seq, ack: Seq, flags: Flags) -> Segment<'static> {
        Segment {
            source: self.local,
            destination: self.remote,
            seq,
            ack,
            flags,
            window: 0,
            options: TcpOptions::default(),
            payload: &[],
        }
    }
}

/// Length in bytes of the options of a data segment or acknowledgement, padded to whole 32-bit words.
fn options_len(options: &TcpOptions) -> usize {
    let timestamps = if options.timestamps.is_some() { 10 } else { 0 };
    let blocks = options.sack.iter().flatten().count();
    let sack = if blocks > 0 { 2 + 8 * blocks } else { 0 };
    (timestamps + sack).next_multiple_of(4)
}
