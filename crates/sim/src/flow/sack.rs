//! Loss recovery with selective acknowledgements: RFC 6675, and ns-2's `Sack1`.

use proto::Instant;

use super::config::DUPLICATES;
use super::packet::FlowPacket;
use super::sender::{FlowSender, whole};

/// RFC 6675.
impl FlowSender {
    pub(super) fn handle_sack(&mut self, now: Instant, packet: &FlowPacket, out: &mut Vec<FlowPacket>) {
        let ack = packet.ack;
        if ack > self.una {
            self.sacked.remove_below(ack);
        }
        let mut news = false;
        for (left, right) in packet.sack.iter(ack) {
            news |= self.sacked.add(left, right);
        }
        if ack > self.una {
            let grow = !self.recovering;
            self.recovering &= ack < self.recover;
            self.accept(now, ack, grow);
        } else if news && self.una < self.max {
            self.duplicates += 1;
        }
        // Until all data that was in flight at a timeout is acknowledged, duplicates do not prove a loss (RFC 6675 §5.1).
        let barred = self.deaf && self.una <= self.recover && self.una != 1;
        let lost = self.duplicates >= DUPLICATES || self.lost_below() > self.una;
        if lost && !self.recovering && !barred {
            self.begin_recovery(now, out);
        }
        if self.recovering {
            self.fill_recovery(now, out);
        } else if self.duplicates == 0 {
            self.fill(now, None, out);
        } else if self.limited_transmit {
            self.send_one(now, out);
        }
    }

    fn begin_recovery(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        self.counts.recoveries += 1;
        self.recovering = true;
        self.deaf = false;
        self.recover = self.max;
        (self.cwnd, self.threshold) = self.reduced();
        self.timing = None;
        self.set_timer(now);
        self.rescued = false;
        self.repaired = self.transmit(now, self.una, out);
    }

    /// Sends as long as the window allows more data in flight (RFC 6675 §5 step C). NextSeg (§4) gives the order of the segments.
    fn fill_recovery(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        let allowed = u64::from(whole(self.cwnd)) * self.mss;
        while self.in_flight() + self.mss <= allowed {
            let hole = self.sacked.hole_from(self.repaired.max(self.una));
            let lost = hole.filter(|hole| *hole < self.lost_below());
            if let Some(seq) = lost {
                self.repaired = self.transmit(now, seq, out);
            } else if self.nxt < self.end && self.within_window(self.nxt) {
                self.nxt = self.transmit(now, self.nxt, out);
            } else if let Some(seq) = hole {
                self.repaired = self.transmit(now, seq, out);
            } else if let Some(seq) = self.rescue() {
                self.rescued = true;
                self.transmit(now, seq, out);
            } else {
                return;
            }
        }
    }

    /// Rule 4 of NextSeg: the last segment, if no block covers it and it was not repeated in this recovery. It is sent again once per
    /// recovery, so that acknowledgements continue even if the tail was lost. This repetition counts neither as a repair nor as data in
    /// flight.
    fn rescue(&self) -> Option<u64> {
        let last = self.max.min(self.data_end).saturating_sub(2) / self.mss * self.mss + 1;
        let silent = !self.rescued && self.sacked.around(self.max - 1).is_none();
        (silent && last >= self.repaired).then_some(last)
    }

    /// Sequence number below which unacknowledged data counts as lost, because enough data above it was received (RFC 6675 §4, IsLost).
    fn lost_below(&self) -> u64 {
        let (mut blocks, mut bytes) = (0, 0);
        for (left, right) in self.sacked.iter().rev() {
            blocks += 1;
            bytes += right - left;
            if blocks >= DUPLICATES || bytes > u64::from(DUPLICATES - 1) * self.mss {
                return left;
            }
        }
        self.una
    }

    /// Bytes in flight: data that is neither received nor lost, and data that was sent again (RFC 6675 §4, SetPipe).
    fn in_flight(&self) -> u64 {
        let unacknowledged =
            |left: u64, right: u64| right.saturating_sub(left) - self.sacked.count_in(left, right.max(left));
        unacknowledged(self.lost_below(), self.nxt) + unacknowledged(self.una, self.repaired)
    }
}

/// ns-2's `Sack1`.
impl FlowSender {
    pub(super) fn handle_sack1(&mut self, now: Instant, packet: &FlowPacket, out: &mut Vec<FlowPacket>) {
        let ack = packet.ack;
        if self.recovering {
            self.pipe -= 1;
            if ack >= self.recover {
                self.recover = 1;
                self.recovering = false;
                self.accept(now, ack, false);
                self.deaf = false;
                self.forget();
            } else if ack > self.una {
                self.accept_partial(ack);
                self.note(packet);
                self.pipe -= 1;
                self.set_timer(now);
                self.end_backoff();
            } else if ack == self.una && !self.deaf {
                self.note(packet);
            }
            self.send(now, out);
            return;
        }
        if ack > self.una {
            self.accept(now, ack, true);
            self.deaf = false;
            self.forget();
        } else if ack == self.una && !self.deaf && self.note(packet) {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES {
                self.on_sack1_loss(now, out);
            } else if self.duplicates < DUPLICATES && self.limited_transmit {
                self.send_one(now, out);
            }
        }
        if self.duplicates == 0 {
            self.send(now, out);
        }
    }

    /// Notes a packet's SACK blocks. Returns whether this changed the set of received ranges.
    fn note(&mut self, packet: &FlowPacket) -> bool {
        let mut news = self.sacked.remove_below(self.una);
        for (left, right) in packet.sack.iter(packet.ack) {
            news |= self.sacked.add(left, right);
        }
        news
    }

    fn forget(&mut self) {
        self.sacked.clear();
        self.repaired = 0;
    }

    fn on_sack1_loss(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        if self.una <= self.recover && self.una != 1 {
            return;
        }
        self.counts.recoveries += 1;
        self.recover = self.max;
        let sent = (self.max - self.una).div_ceil(self.mss);
        self.pipe = i64::try_from(sent).unwrap_or(i64::MAX) - i64::from(DUPLICATES);
        self.set_timer(now);
        self.timing = None;
        self.recovering = true;
        (self.cwnd, self.threshold) = self.reduced();
        self.repaired = self.transmit(now, self.una, out);
    }

    pub(super) fn fill_sack1(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        while self.una < self.end {
            let open = if self.recovering {
                self.pipe < i64::from(whole(self.cwnd))
            } else {
                self.may_send()
            };
            if !open {
                return;
            }
            let seq = match self.sacked.hole_from(self.repaired.max(self.una)) {
                Some(hole) if self.recover > 1 && self.within_window(hole) => hole,
                None if self.nxt < self.end && self.within_window(self.nxt) => self.nxt,
                _ => return,
            };
            let end = self.transmit(now, seq, out);
            if seq < self.nxt {
                self.repaired = end;
            }
            self.nxt = self.nxt.max(end);
            self.pipe += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::flow::packet::{FlowDirection, FlowFlags, FlowId, Sack};
    use crate::flow::{FlowConfig, FlowHandshake, TcpVariant};

    const MSS: u64 = 1000;

    /// Lets a sender send all of its `segments` segments, then reports the SACK `blocks` to it. Returns the numbers of the segments that
    /// the sender repeats.
    fn repeated(segments: u64, blocks: &[(u64, u64)]) -> Vec<u64> {
        let config = FlowConfig {
            variant: TcpVariant::Sack,
            handshake: FlowHandshake::OneWay,
            mss: 1000,
            initial_window: 20,
            delayed_ack: None,
            ..FlowConfig::default()
        };
        let mut sender = FlowSender::new(FlowId(0), &config, segments * MSS);
        let mut out = Vec::new();
        sender.start(Instant::ZERO, &mut out);
        let mut tell = |block: Option<(u64, u64)>, out: &mut Vec<FlowPacket>| {
            let mut sack = Sack::default();
            if let Some((from, to)) = block {
                sack.push(1, 1 + from * MSS, 1 + to * MSS);
            }
            let packet = FlowPacket {
                flow: FlowId(0),
                direction: FlowDirection::Backward,
                flags: FlowFlags::ACK,
                len: 0,
                seq: 0,
                ack: 1,
                window: 64_000,
                sack,
            };
            sender.handle(Instant::ZERO + Duration::from_millis(100), &packet, out);
        };
        tell(None, &mut out);
        assert_eq!(out.len() as u64, 1 + segments);
        out.clear();
        blocks.iter().for_each(|block| tell(Some(*block), &mut out));
        out.iter().map(|packet| packet.seq / MSS).collect()
    }

    /// RFC 6675 §4, NextSeg rule 4: no block reports the last segment, so it is sent again, once.
    #[test]
    fn a_silent_tail_is_rescued_once_per_recovery() {
        let blocks: Vec<_> = (2..10).map(|right| (1, right)).collect();
        assert_eq!(repeated(11, &blocks), [0, 10]);
    }

    #[test]
    fn a_tail_that_arrived_needs_no_rescue() {
        assert_eq!(repeated(11, &[(1, 11)]), [0]);
    }

    /// Rules 1 and 3 of NextSeg take precedence over rule 4.
    #[test]
    fn known_holes_are_repaired_before_the_tail() {
        let blocks: Vec<_> = (3..=10).map(|right| (2, right)).collect();
        assert_eq!(repeated(11, &blocks), [0, 1, 10]);
    }
}
