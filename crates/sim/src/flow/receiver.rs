//! The receiving end: acknowledges data immediately or after a delay (RFC 5681 §4.2), and reports data that arrived out of order (RFC
//! 2018).

use proto::Instant;

use super::config::{FlowConfig, FlowHandshake, TcpVariant};
use super::packet::{FlowDirection, FlowFlags, FlowId, FlowPacket, Sack};
use super::ranges::Ranges;

/// A SYN or FIN of this end that is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Unheard {
    flags: FlowFlags,
    again_at: u64,
    patience: u64,
}

/// The receiving end of a flow.
#[derive(Clone, Debug)]
pub struct FlowReceiver {
    flow: FlowId,
    full: bool,
    sack: bool,
    window: u32,
    /// Longest time that an acknowledgement waits, in nanoseconds.
    delay: Option<u64>,
    delay_repeated: bool,
    rto_syn: u64,
    rto_max: u64,
    /// The sequence number expected next. 0 means that the SYN is awaited.
    next: u64,
    /// Number of sequence numbers that this end has used: one for the SYN, one for the FIN.
    sent: u64,
    /// Ranges that were received beyond `next`.
    beyond: Ranges,
    /// The blocks that were reported last, the latest first.
    told: [(u64, u64); Sack::MAX],
    fin: Option<u64>,
    unheard: Option<Unheard>,
    /// When the waiting acknowledgement leaves.
    acknowledge_at: Option<u64>,
    delivered: u64,
}

const NO_BLOCK: (u64, u64) = (0, 0);

impl FlowReceiver {
    /// The receiving end of `flow`.
    pub fn new(flow: FlowId, config: &FlowConfig) -> Self {
        let nanos = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self {
            flow,
            full: config.handshake == FlowHandshake::Full,
            sack: matches!(
                config.variant,
                TcpVariant::Sack | TcpVariant::Sack1 | TcpVariant::Rack
            ),
            window: config.max_window * u32::from(config.mss),
            delay: config.delayed_ack.map(nanos),
            delay_repeated: config.departures.delay_repeated,
            rto_syn: nanos(config.rto.syn),
            rto_max: nanos(config.rto.max),
            next: 0,
            sent: 0,
            beyond: Ranges::default(),
            told: [NO_BLOCK; Sack::MAX],
            fin: None,
            unheard: None,
            acknowledge_at: None,
            delivered: 0,
        }
    }

    /// Bytes of data received in order so far.
    pub const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Bytes of data received so far, in any order.
    pub fn received(&self) -> u64 {
        let beyond: u64 = self.beyond.iter().map(|(left, right)| right - left).sum();
        let is_beyond = |fin: u64| fin >= self.next && self.beyond.around(fin).is_some();
        self.delivered + beyond - u64::from(self.fin.is_some_and(is_beyond))
    }

    /// When to call [`FlowReceiver::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let again_at = self.unheard.map(|unheard| unheard.again_at);
        let at = match (self.acknowledge_at, again_at) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(Instant::from_nanos(at))
    }

    /// Call this at the time that [`FlowReceiver::poll_timeout`] returned. A call before that time does nothing.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        let now = now.as_nanos();
        if self.acknowledge_at.is_some_and(|at| at <= now) {
            self.acknowledge(NO_BLOCK, out);
        }
        let rto_max = self.rto_max;
        if let Some(unheard) = self.unheard.as_mut().filter(|unheard| unheard.again_at <= now) {
            unheard.patience = (unheard.patience * 2).min(rto_max);
            unheard.again_at = now + unheard.patience;
            let flags = unheard.flags;
            self.say(flags, out);
        }
    }

    /// Handles a packet of the sender.
    pub fn handle(&mut self, now: Instant, packet: &FlowPacket, out: &mut Vec<FlowPacket>) {
        if packet.flags.has(FlowFlags::SYN) {
            self.on_syn(now, packet, out);
            return;
        }
        if self.next == 0 {
            return; // unexpected: nothing is sent before the SYN is acknowledged
        }
        if packet.flags.has(FlowFlags::ACK) && packet.ack >= self.sent {
            self.unheard = None;
        }
        if packet.flags.has(FlowFlags::FIN) {
            self.fin = Some(packet.end() - 1);
        }
        if packet.seq < packet.end() {
            self.on_data(now, packet, out);
        }
    }

    fn on_syn(&mut self, now: Instant, packet: &FlowPacket, out: &mut Vec<FlowPacket>) {
        self.next = self.next.max(packet.end());
        if !self.full {
            self.acknowledge(NO_BLOCK, out);
        } else if self.sent == 0 || self.unheard.is_some() {
            self.sent = 1;
            self.speak(now, FlowFlags::SYN.and(FlowFlags::ACK), out);
        } else {
            self.acknowledge(NO_BLOCK, out);
        }
    }

    fn on_data(&mut self, now: Instant, packet: &FlowPacket, out: &mut Vec<FlowPacket>) {
        let (seq, end) = (packet.seq, packet.end());
        if seq == self.next && self.beyond.is_empty() {
            self.advance(end);
            if self.fin.is_none_or(|fin| fin >= self.next) {
                self.delay_or_acknowledge(now, out);
                return;
            }
        } else if end > self.next {
            self.beyond.add(seq.max(self.next), end);
            let in_order = self.beyond.take_from(self.next);
            self.advance(in_order.unwrap_or(self.next));
        } else if self.delay_repeated && end == self.next && self.beyond.is_empty() {
            self.delay_or_acknowledge(now, out);
            return;
        }
        let latest = if end > self.next {
            self.beyond.around(seq.max(self.next)).unwrap_or(NO_BLOCK)
        } else {
            NO_BLOCK
        };
        if self.fin.is_some_and(|fin| fin < self.next) && self.sent == 1 {
            self.sent = 2;
            self.speak(now, FlowFlags::FIN.and(FlowFlags::ACK), out);
        } else {
            self.acknowledge(latest, out);
        }
    }

    fn advance(&mut self, next: u64) {
        let fin = u64::from(self.fin.is_some_and(|fin| (self.next..next).contains(&fin)));
        self.delivered += next - self.next - fin;
        self.next = next;
    }

    /// Acknowledges immediately if an acknowledgement is waiting already, or if acknowledgements are not delayed. Otherwise starts the
    /// delay.
    fn delay_or_acknowledge(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        match self.delay {
            Some(delay) if self.acknowledge_at.is_none() => {
                self.acknowledge_at = Some(now.as_nanos() + delay);
            }
            _ => self.acknowledge(NO_BLOCK, out),
        }
    }

    /// Sends a SYN or a FIN, which is repeated until it is acknowledged.
    fn speak(&mut self, now: Instant, flags: FlowFlags, out: &mut Vec<FlowPacket>) {
        self.unheard = Some(Unheard {
            flags,
            again_at: now.as_nanos() + self.rto_syn,
            patience: self.rto_syn,
        });
        self.acknowledge_at = None;
        self.say(flags, out);
    }

    fn say(&self, flags: FlowFlags, out: &mut Vec<FlowPacket>) {
        out.push(FlowPacket {
            flow: self.flow,
            direction: FlowDirection::Backward,
            flags,
            len: 0,
            seq: self.sent.saturating_sub(1),
            ack: self.next,
            window: self.window,
            sack: Sack::default(),
        });
    }

    /// Acknowledges now. `latest` is the block with the segment that has just arrived out of order, or `NO_BLOCK`.
    fn acknowledge(&mut self, latest: (u64, u64), out: &mut Vec<FlowPacket>) {
        self.acknowledge_at = None;
        let sack = if self.sack && !self.beyond.is_empty() {
            self.blocks(latest)
        } else {
            self.told[0] = NO_BLOCK;
            Sack::default()
        };
        out.push(FlowPacket {
            flow: self.flow,
            direction: FlowDirection::Backward,
            flags: FlowFlags::ACK,
            len: 0,
            seq: self.sent,
            ack: self.next,
            window: self.window,
            sack,
        });
    }

    /// The blocks to report: first `latest`, then those of the last report that `latest` does not cover (RFC 2018 §4).
    fn blocks(&mut self, latest: (u64, u64)) -> Sack {
        let told = self.told;
        let mut blocks = [NO_BLOCK; Sack::MAX];
        let mut count = 0;
        if latest != NO_BLOCK {
            blocks[0] = latest;
            count = 1;
        }
        for block in told.into_iter().take_while(|block| *block != NO_BLOCK) {
            let covered = block.0 < self.next || (latest.0 <= block.0 && block.1 <= latest.1);
            if !covered && count < Sack::MAX {
                blocks[count] = block;
                count += 1;
            }
        }
        self.told = blocks;
        let mut sack = Sack::default();
        for (left, right) in &blocks[..count] {
            sack.push(self.next, *left, *right);
        }
        sack
    }
}
