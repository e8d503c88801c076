//! How an endpoint handles a segment (RFC 9293 §3.10.7).

use std::time::Duration;

use proto::packet::Segment;
use proto::{Instant, Offset};

use super::TcpConfig;
use super::endpoint::{TcpEndpoint, TcpFailure};
use super::receiver::SegmentArrival;
use super::sender::ReceivedAck;
use super::state::{EndpointState, TcpEvent};
use super::timers::Timer;

/// Segment size that a peer accepts if its SYN does not say one (RFC 9293 §3.7.1).
const MSS_DEFAULT: u16 = 536;

/// Number of unacknowledged segments that draw an immediate acknowledgement (RFC 9293 §3.8.6.3).
const SEGMENTS_PER_ACK: u32 = 2;

impl TcpEndpoint {
    /// Takes a segment that is already parsed. Segments of other connections are ignored.
    pub fn handle_segment(&mut self, now: Instant, segment: &Segment<'_>) {
        if (segment.source, segment.destination) != (self.remote, self.local) {
            return;
        }
        match self.state {
            EndpointState::Closed => {}
            EndpointState::SynSent => self.handle_in_syn_sent(now, segment),
            EndpointState::SynReceived if segment.flags.syn => self.handle_syn_again(now, segment),
            _ => self.handle_numbered(now, segment),
        }
    }

    /// Adopts the peer's first sequence number, options and window from its SYN. An option that the SYN does not offer is off.
    pub(super) fn negotiate(&mut self, now: Instant, syn: &Segment<'_>) {
        self.receiver.set_first(syn.seq + 1);
        self.sack &= syn.options.sack_permitted;
        match (&mut self.paws, syn.options.timestamps) {
            (Some(paws), Some(theirs)) => paws.on_accepted(now, theirs.value),
            _ => self.paws = None,
        }
        self.window_scale &= syn.options.window_scale.is_some();
        let (ours, theirs) = if self.window_scale {
            // A shift above the maximum counts as the maximum (RFC 7323 §2.3).
            let theirs = syn
                .options
                .window_scale
                .map(|shift| shift.min(TcpConfig::WINDOW_SCALE_MAX));
            (self.config.window_scale.unwrap_or(0), theirs.unwrap_or(0))
        } else {
            (0, 0)
        };
        self.receiver.set_shift(ours);
        // As in Linux, a smaller MSS counts as `MSS_MIN`. Options in a smaller segment would leave no room for data.
        let mss = syn.options.mss.unwrap_or(MSS_DEFAULT).max(TcpConfig::MSS_MIN);
        self.sender.set_peer(mss.min(self.config.mss), theirs);
        self.sender.set_window(u64::from(syn.window), syn.seq, 0); // never scaled in a SYN
    }

    fn handle_in_syn_sent(&mut self, now: Instant, segment: &Segment<'_>) {
        let flags = segment.flags;
        if flags.ack && segment.ack != self.initial + 1 {
            self.reset_stray(segment);
            return;
        }
        if flags.rst {
            if flags.ack {
                self.end(Some(TcpFailure::Refused));
            }
            return;
        }
        if !flags.syn {
            return;
        }
        self.negotiate(now, segment);
        if flags.ack {
            self.open(now, segment);
            self.due.ack = true;
        } else {
            self.state = self.state.after(TcpEvent::PeerSyn);
            self.due.handshake = true;
        }
    }

    /// Handles a SYN after the first: our answer was lost, or both sides opened simultaneously (RFC 9293 §3.5).
    fn handle_syn_again(&mut self, now: Instant, segment: &Segment<'_>) {
        let same = segment.seq + 1 == self.receiver.next_seq() && !segment.flags.rst;
        if same && !segment.flags.ack {
            self.due.handshake = true;
        } else if same && segment.ack == self.initial + 1 {
            self.open(now, segment);
            self.due.ack = true;
        } else {
            self.handle_numbered(now, segment);
        }
    }

    /// The peer acknowledged our SYN.
    fn open(&mut self, now: Instant, segment: &Segment<'_>) {
        let (count, last) = self.handshakes;
        let measured = (count == 1).then(|| now.since(last)); // Karn: no sample if our SYN was sent twice
        if let Some(rtt) = measured.or_else(|| self.echoed_round_trip(now, segment)) {
            self.rto.on_sample(rtt);
        }
        self.rto.on_opened();
        self.retries = 0;
        self.timers.stop(Timer::Retransmit);
        self.due.handshake = false;
        self.state = self.state.after(TcpEvent::Opened);
        if self.sender.is_finished() {
            self.state = self.state.after(TcpEvent::Shutdown);
        }
    }

    /// Handles a segment of a connection whose ends know each other's initial sequence numbers. The checks are in the RFC's order.
    fn handle_numbered(&mut self, now: Instant, segment: &Segment<'_>) {
        let flags = segment.flags;
        let Some(seq) = self.check_numbers(now, segment) else {
            return;
        };
        if flags.rst {
            // Only a RST with exactly the expected number resets the connection. Any other RST in the window draws a challenge (RFC 5961
            // §3.2).
            if self.receiver.is_next(seq) {
                let failure = (self.state != EndpointState::TimeWait).then_some(TcpFailure::Reset);
                self.end(failure);
            } else {
                self.challenge(now);
            }
            return;
        }
        if flags.syn {
            self.challenge(now); // RFC 5961 §4.2
            return;
        }
        if !flags.ack || !self.handle_ack(now, segment) {
            return;
        }
        if let (Some(paws), Some(theirs)) = (&mut self.paws, segment.options.timestamps)
            && self.receiver.is_acknowledged(seq)
        {
            paws.on_accepted(now, theirs.value);
        }
        self.handle_data(now, seq, segment);
    }

    /// Returns the segment's position if the segment may be new (RFC 9293 §3.10.7.4 first check, RFC 7323 §5.3). Otherwise returns `None`,
    /// and the segment draws an acknowledgement unless it is a reset.
    fn check_numbers(&mut self, now: Instant, segment: &Segment<'_>) -> Option<Offset> {
        let timely = match (&self.paws, segment.options.timestamps) {
            (Some(paws), Some(theirs)) => segment.flags.rst || paws.accepts(now, theirs.value),
            _ => true, // as in Linux: a segment without the option is accepted
        };
        let acceptable = self
            .receiver
            .position(segment.seq)
            .filter(|seq| timely && self.receiver.is_acceptable(*seq, u64::from(segment.seq_len())));
        if acceptable.is_some() || segment.flags.rst {
            return acceptable;
        }
        if segment.flags.fin && self.state == EndpointState::TimeWait {
            self.timers.set(Timer::TimeWait, now + self.config.time_wait); // our last ACK was lost
        }
        // Old data or an old FIN is a retransmission, so it is acknowledged immediately. A segment without data may be an answer to our
        // acknowledgement, so the rate of acknowledgements for such segments is limited. Without this limit, both ends might answer each
        // other forever.
        if segment.payload.is_empty() && !segment.flags.fin {
            self.challenge(now);
        } else {
            self.due.ack = true;
        }
        None
    }

    /// The fifth check: the acknowledgement. Returns whether to process the rest of the segment.
    fn handle_ack(&mut self, now: Instant, segment: &Segment<'_>) -> bool {
        let position = self.sender.position(segment.ack);
        if self.state == EndpointState::SynReceived {
            if position != Some(Offset::ZERO) {
                self.reset_stray(segment);
                return false;
            }
            self.open(now, segment);
        }
        let Some(up_to) = position.filter(|ack| !self.sender.is_too_old(*ack)) else {
            self.challenge(now); // RFC 5961 §5.2
            return false;
        };
        if self.sender.is_unsent(up_to) {
            // The segment is ignored silently, as in Linux. So a restored connection is lost if it lacks output that its client has
            // acknowledged.
            return false;
        }
        let acked = self.sender.on_ack(
            now,
            &ReceivedAck {
                up_to,
                seq: segment.seq,
                window: segment.window,
                pure: segment.payload.is_empty() && !segment.flags.fin,
                has_sack: self.sack && segment.options.sack[0].is_some(),
            },
        );
        if acked.advanced {
            let measured = acked.round_trip;
            if let Some(rtt) = measured.or_else(|| self.echoed_round_trip(now, segment)) {
                self.rto.on_sample(rtt);
            }
        }
        self.rearm(now, acked.advanced);
        if acked.fin {
            self.enter(now, TcpEvent::FinAcked);
        }
        self.state != EndpointState::Closed
    }

    fn echoed_round_trip(&self, now: Instant, segment: &Segment<'_>) -> Option<Duration> {
        let theirs = segment.options.timestamps?;
        self.paws.as_ref()?.round_trip(now, theirs.echo)
    }

    /// Sets the retransmission timer after an acknowledgement (RFC 6298 §5.2, §5.3). A peer that answers window probes is alive, so each
    /// answer resets the count of retries. The backoff stays until the window opens, so probes become rarer.
    fn rearm(&mut self, now: Instant, advanced: bool) {
        let waiting = self.sender.in_flight() == 0;
        if advanced || waiting {
            self.retries = 0;
        }
        if advanced || (waiting && self.sender.window() > 0) {
            self.rto.on_progress();
            self.timers.stop(Timer::Retransmit);
        }
        if !waiting {
            self.timers
                .set_if_stopped(Timer::Retransmit, now + self.rto.current());
        }
    }

    /// The seventh and eighth step: data and FIN.
    fn handle_data(&mut self, now: Instant, seq: Offset, segment: &Segment<'_>) {
        match self.receiver.on_data(seq, segment.payload, segment.flags.fin) {
            SegmentArrival::Nothing => {}
            SegmentArrival::InOrder => {
                self.unacknowledged += 1;
                if self.unacknowledged >= SEGMENTS_PER_ACK {
                    self.due.ack = true;
                } else {
                    self.timers
                        .set_if_stopped(Timer::DelayedAck, now + self.config.delayed_ack);
                }
            }
            SegmentArrival::Irregular => self.due.ack = true,
            SegmentArrival::Finished => {
                self.due.ack = true;
                self.enter(now, TcpEvent::PeerFin);
            }
        }
    }

    fn enter(&mut self, now: Instant, event: TcpEvent) {
        self.state = self.state.after(event);
        match self.state {
            EndpointState::TimeWait => {
                self.timers.stop_all();
                self.timers.set(Timer::TimeWait, now + self.config.time_wait);
            }
            EndpointState::Closed => self.end(None),
            _ => {}
        }
    }
}
