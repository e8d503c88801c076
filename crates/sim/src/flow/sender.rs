//! The sending end: window, timer, and everything that all variants share.
//!
//! Windows are counted in segments, with a fraction, as in the papers. Positions are counted in bytes.

use proto::Instant;

use super::config::{Departures, FlowConfig, FlowHandshake, Growth, TcpVariant};
use super::cubic::{self, Cubic};
use super::packet::{FlowDirection, FlowFlags, FlowId, FlowPacket, Sack};
use super::rack_state::RackState;
use super::ranges::Ranges;
use super::rto::FlowRto;

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments sent, the SYN and repetitions included.
    pub segments: u64,
    /// Number of repetitions among `segments`.
    pub retransmitted: u64,
    /// Expired retransmission timers, the SYN's included.
    pub timeouts: u32,
    /// Expired retransmission timers of the SYN.
    pub syn_timeouts: u32,
    /// Fast retransmissions begun.
    pub recoveries: u32,
    /// Tail loss probes sent.
    pub probes: u32,
}

/// The sending end of a flow.
#[derive(Clone, Debug)]
pub struct FlowSender {
    flow: FlowId,
    pub(super) variant: TcpVariant,
    pub(super) departures: Departures,
    full: bool,
    pub(super) limited_transmit: bool,
    pub(super) mss: u64,
    initial_window: f64,
    rto_initial: u64,

    /// First sequence number after the data, and first sequence number after the FIN (if there is one).
    pub(super) data_end: u64,
    pub(super) end: u64,
    /// First unacknowledged sequence number (SND.UNA), next sequence number to send (SND.NXT), and end of all data sent so far.
    pub(super) una: u64,
    pub(super) nxt: u64,
    pub(super) max: u64,

    /// Congestion window and slow start threshold, in segments.
    pub(super) cwnd: f64,
    pub(super) threshold: f64,
    /// CUBIC's curve, if the window follows it.
    cubic: Option<Cubic>,
    /// The receiver's window, in segments.
    pub(super) window: u32,
    /// Number of duplicate acknowledgements in a row, and number of segments that left the network during a recovery.
    pub(super) duplicates: u32,
    pub(super) inflation: u32,
    /// Whether a fast recovery is under way, and the end of the data that had been sent when the last loss was found.
    pub(super) recovering: bool,
    pub(super) recover: u64,
    /// Whether this recovery has seen a partial acknowledgement.
    pub(super) partial: bool,

    /// Ranges that the receiver has beyond `una`.
    pub(super) sacked: Ranges,
    /// End of the data that this recovery has sent again.
    pub(super) repaired: u64,
    /// Sack: whether this recovery has sent the last segment again.
    pub(super) rescued: bool,
    /// Sack1: segments in flight during a recovery, and whether duplicates are ignored because of a timeout.
    pub(super) pipe: i64,
    pub(super) deaf: bool,
    /// Rack: each segment in flight, and probes. With Rack, `deaf` means that the losses of a timeout are being repaired.
    pub(super) rack: RackState,

    rto: FlowRto,
    /// The timed segment: its end, and when it was sent. Rack times all segments.
    pub(super) timing: Option<(u64, Instant)>,
    pub(super) deadline: Option<u64>,
    /// Position of `una` at the last timeout.
    timed_out_at: Option<u64>,

    started: Option<Instant>,
    completed: Option<Instant>,
    pub(super) counts: Counts,
}

impl FlowSender {
    /// A sender that will transfer `bytes` bytes.
    pub fn new(flow: FlowId, config: &FlowConfig, bytes: u64) -> Self {
        let full = config.handshake == FlowHandshake::Full;
        Self {
            flow,
            variant: config.variant,
            departures: config.departures,
            full,
            limited_transmit: config.limited_transmit,
            mss: u64::from(config.mss),
            initial_window: f64::from(config.initial_window),
            rto_initial: u64::try_from(config.rto.initial.as_nanos()).unwrap_or(u64::MAX),
            data_end: 1 + bytes,
            end: 1 + bytes + u64::from(full),
            una: 0,
            nxt: 0,
            max: 0,
            cwnd: 1.0,
            threshold: f64::from(config.initial_threshold.unwrap_or(config.max_window)),
            cubic: (config.growth == Growth::Cubic).then(Cubic::default),
            window: config.max_window,
            duplicates: 0,
            inflation: 0,
            recovering: false,
            recover: 1,
            partial: false,
            sacked: Ranges::default(),
            repaired: 0,
            rescued: false,
            pipe: 0,
            deaf: false,
            rack: RackState::default(),
            rto: FlowRto::new(&config.rto),
            timing: None,
            deadline: None,
            timed_out_at: None,
            started: None,
            completed: None,
            counts: Counts::default(),
        }
    }

    /// Opens the connection.
    pub fn start(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        self.started = Some(now);
        self.fill(now, None, out);
    }

    /// The slow start threshold, in segments.
    pub const fn slow_start_threshold(&self) -> f64 {
        self.threshold
    }

    /// When the first SYN left.
    pub const fn started(&self) -> Option<Instant> {
        self.started
    }

    /// When everything was acknowledged.
    pub const fn completed(&self) -> Option<Instant> {
        self.completed
    }

    /// The sender's counters.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The sequence number before which everything is acknowledged.
    pub const fn acknowledged(&self) -> u64 {
        self.una
    }

    /// The congestion window, in segments.
    pub const fn congestion_window(&self) -> f64 {
        self.cwnd
    }

    /// When to call [`FlowSender::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let at = match (self.deadline, self.rack.deadline()) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(Instant::from_nanos(at))
    }

    /// Handles a packet of the receiver.
    pub fn handle(&mut self, now: Instant, packet: &FlowPacket, out: &mut Vec<FlowPacket>) {
        if packet.ack > self.max || !packet.flags.has(FlowFlags::ACK) {
            return; // no acknowledgement, or an acknowledgement of data that was never sent
        }
        let window = u64::from(packet.window) / self.mss;
        self.window = u32::try_from(window).unwrap_or(u32::MAX).max(1);
        if packet.flags.has(FlowFlags::SYN) || packet.flags.has(FlowFlags::FIN) {
            self.acknowledge(packet, out);
        }
        match self.variant {
            TcpVariant::Tahoe | TcpVariant::Reno | TcpVariant::NewReno => {
                self.handle_ack(now, packet.ack, out)
            }
            TcpVariant::Sack => self.handle_sack(now, packet, out),
            TcpVariant::Sack1 => self.handle_sack1(now, packet, out),
            TcpVariant::Rack => self.handle_rack(now, packet, out),
        }
    }

    /// Call this at the time that [`FlowSender::poll_timeout`] returned. A call before that time does nothing.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        if self.handle_early_timeout(now, out)
            || self.deadline.is_none_or(|deadline| deadline > now.as_nanos())
        {
            return;
        }
        self.counts.timeouts += 1;
        self.inflation = 0;
        self.duplicates = 0;
        self.recovering = false;
        self.recover = self.max;
        self.deaf = true;
        self.repaired = self.una;
        if self.variant == TcpVariant::Sack1 {
            self.sacked.clear();
        }
        let again = self.timed_out_at.replace(self.una) == Some(self.una);
        let halve = if self.una == 0 {
            self.counts.syn_timeouts += 1;
            self.initial_window = 1.0; // RFC 5681 §3.1
            self.departures.halve_on_syn
        } else {
            !again || self.departures.halve_again
        };
        if halve {
            self.threshold = self.reduced().1;
        }
        self.cwnd = 1.0;
        self.rto.on_timeout();
        self.set_timer(now);
        self.timing = None;
        if self.variant == TcpVariant::Rack {
            self.repair_after_timeout(now, out);
        } else {
            self.nxt = self.una;
            self.send(now, out);
        }
    }

    /// The window and the threshold after a loss, both in segments.
    pub(super) fn reduced(&mut self) -> (f64, f64) {
        if self.departures.halve_window {
            let allowed = (self.cwnd + f64::from(self.inflation)).min(f64::from(self.window));
            (allowed / 2.0, (allowed / 2.0).trunc().max(2.0))
        } else {
            let kept = match &mut self.cubic {
                Some(cubic) => {
                    cubic.on_loss(self.cwnd.min(f64::from(self.window)));
                    cubic::BETA
                }
                None => 0.5,
            };
            let kept = (self.segments(self.nxt - self.una) * kept).max(2.0);
            (kept, kept)
        }
    }

    /// New data are acknowledged: measures the round trip, and lets the window grow if `grow` is set.
    pub(super) fn accept(&mut self, now: Instant, ack: u64, grow: bool) {
        self.duplicates = 0;
        let acked = self.segments(ack - self.una);
        self.una = ack;
        self.nxt = self.nxt.max(ack);
        if let Some((end, sent)) = self.timing
            && ack >= end
        {
            self.timing = None;
            self.measure(sent, now);
        }
        if ack == 1 {
            self.open();
        } else if grow {
            self.grow(now, acked);
        }
        self.set_timer(now);
        if self.una >= self.end {
            self.deadline = None;
            self.completed = self.completed.or(Some(now));
        }
    }

    /// Lets the window grow: in slow start by RFC 5681 equation 2, in congestion avoidance by equation 3 or by CUBIC.
    pub(super) fn grow(&mut self, now: Instant, acked: f64) {
        if self.cwnd < self.threshold {
            self.cwnd += 1.0;
        } else if let Some(cubic) = &mut self.cubic {
            if self.cwnd < f64::from(self.window) {
                self.cwnd = cubic.grow(now.as_nanos(), self.cwnd, acked, self.rto.round_trip());
            }
        } else {
            self.cwnd += 1.0 / self.cwnd;
        }
    }

    /// Handles the acknowledgement of the SYN.
    fn open(&mut self) {
        const AFTER_LOST_SYN: u64 = 3_000_000_000; // RFC 6298 §5.7
        let lost = self.timed_out_at.is_some();
        let keep = self.departures.keep_syn_backoff;
        let initial = if lost && !keep {
            self.rto_initial.max(AFTER_LOST_SYN)
        } else {
            self.rto_initial
        };
        self.rto.on_opened(initial, keep);
        self.cwnd = self.initial_window;
    }

    /// A partial acknowledgement that covers the timed segment ends the backoff, but yields no round trip.
    pub(super) fn accept_partial(&mut self, ack: u64) {
        self.una = ack;
        self.nxt = self.nxt.max(ack);
        if self.timing.is_some_and(|(end, _)| ack >= end) {
            self.timing = None;
            self.rto.end_backoff();
        }
    }

    /// Ends the backoff, even if the timed segment is not acknowledged.
    pub(super) fn end_backoff(&mut self) {
        self.rto.end_backoff();
    }

    /// A segment that was sent only once, at `sent`, is acknowledged.
    pub(super) fn measure(&mut self, sent: Instant, now: Instant) {
        self.rto.end_backoff();
        self.rto.on_sample(sent, now);
    }

    /// The smoothed round trip, in nanoseconds; 0 if none was measured.
    pub(super) fn round_trip(&self) -> u64 {
        self.rto.round_trip()
    }

    pub(super) fn set_timer(&mut self, now: Instant) {
        self.deadline = Some(now.as_nanos().saturating_add(self.rto.current()));
    }

    /// Whether the receiver's window holds the segment at `seq`.
    pub(super) fn within_window(&self, seq: u64) -> bool {
        self.within(seq, self.window)
    }

    fn within(&self, seq: u64, segments: u32) -> bool {
        seq + self.mss <= self.una + u64::from(segments) * self.mss
    }

    /// Whether the window allows the next segment.
    pub(super) fn may_send(&self) -> bool {
        self.within(
            self.nxt,
            whole(self.cwnd).saturating_add(self.inflation).min(self.window),
        )
    }

    pub(super) fn segments(&self, bytes: u64) -> f64 {
        bytes as f64 / self.mss as f64
    }

    /// Sends what the variant's window allows.
    pub(super) fn send(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        match self.variant {
            TcpVariant::Sack1 if self.una > 0 => self.fill_sack1(now, out),
            _ => self.fill(now, None, out),
        }
    }

    /// Sends what the window allows, at most `burst` segments.
    pub(super) fn fill(&mut self, now: Instant, burst: Option<u32>, out: &mut Vec<FlowPacket>) {
        let mut left = burst.unwrap_or(u32::MAX);
        while left > 0 {
            if self.una == 0 {
                if self.nxt == 0 {
                    self.nxt = self.transmit(now, 0, out);
                }
                return;
            }
            if let Some((_, right)) = self.sacked.around(self.nxt) {
                self.nxt = right;
            }
            if self.nxt >= self.end || !self.may_send() {
                return;
            }
            self.nxt = self.transmit(now, self.nxt, out);
            left -= 1;
        }
    }

    /// Handles a first or second duplicate acknowledgement: sends one new segment, if the receiver's window allows (RFC 3042).
    pub(super) fn send_one(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        let after = self.segments(self.nxt - self.una) + 1.0;
        let allowed = after <= self.cwnd + f64::from(self.duplicates);
        if self.una > 0 && self.nxt < self.end && self.within_window(self.nxt) && allowed {
            self.nxt = self.transmit(now, self.nxt, out);
        }
    }

    /// Sends the segment at `seq` and returns its end.
    pub(super) fn transmit(&mut self, now: Instant, seq: u64, out: &mut Vec<FlowPacket>) -> u64 {
        let (flags, len) = if seq == 0 {
            (FlowFlags::SYN, 0)
        } else {
            let len = self.data_end.saturating_sub(seq).min(self.mss);
            let last = self.full && seq + len >= self.data_end;
            (
                if last {
                    FlowFlags::ACK.and(FlowFlags::FIN)
                } else {
                    FlowFlags::ACK
                },
                len,
            )
        };
        let packet = FlowPacket {
            flow: self.flow,
            direction: FlowDirection::Forward,
            flags,
            len: u16::try_from(len).unwrap_or(u16::MAX),
            seq,
            ack: u64::from(seq > 0),
            window: u32::MAX,
            sack: Sack::default(),
        };
        let end = packet.end();
        let idle = self.una == self.max;
        self.counts.segments += 1;
        if seq < self.max {
            self.counts.retransmitted += 1;
        } else {
            self.max = end;
            if self.timing.is_none() && self.variant != TcpVariant::Rack {
                self.timing = Some((end, now));
            }
        }
        if idle || self.deadline.is_none() {
            self.set_timer(now);
        }
        if self.variant == TcpVariant::Rack {
            self.rack.board.on_transmit(now.as_nanos(), seq, end);
        }
        out.push(packet);
        end
    }

    /// Acknowledges the receiver's SYN or FIN.
    fn acknowledge(&self, packet: &FlowPacket, out: &mut Vec<FlowPacket>) {
        out.push(FlowPacket {
            flow: self.flow,
            direction: FlowDirection::Forward,
            flags: FlowFlags::ACK,
            len: 0,
            seq: packet.ack,
            ack: packet.end(),
            window: u32::MAX,
            sack: Sack::default(),
        });
    }
}

/// Number of whole segments in a window.
pub(super) const fn whole(window: f64) -> u32 {
    window as u32
}
