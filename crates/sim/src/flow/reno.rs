//! Loss recovery without selective acknowledgements: Tahoe, Reno (RFC 5681 §3.2), NewReno (RFC 6582).

use proto::Instant;

use super::config::DUPLICATES;
use super::config::TcpVariant;
use super::packet::FlowPacket;
use super::sender::FlowSender;

impl FlowSender {
    pub(super) fn handle_ack(&mut self, now: Instant, ack: u64, out: &mut Vec<FlowPacket>) {
        if ack > self.una {
            if self.variant == TcpVariant::NewReno && self.recovering && ack < self.recover {
                self.on_partial(now, ack, out);
            } else {
                self.on_new(now, ack);
            }
        } else if ack == self.una && self.una < self.max {
            self.on_duplicate(now, out);
        }
        match self.variant {
            TcpVariant::NewReno if self.duplicates >= DUPLICATES => {
                let burst = self.departures.recovery_burst.then_some(2);
                self.fill(now, burst, out);
            }
            _ if self.duplicates == 0 || self.duplicates >= DUPLICATES => self.fill(now, None, out),
            TcpVariant::Tahoe => self.fill(now, None, out),
            _ => {}
        }
    }

    /// Handles an acknowledgement of new data that completes a recovery, or that comes outside of one.
    fn on_new(&mut self, now: Instant, ack: u64) {
        if self.recovering {
            self.recovering = false;
            if self.variant == TcpVariant::NewReno && !self.departures.keep_deflated {
                self.cwnd = self.threshold;
            }
        }
        self.inflation = 0;
        self.partial = false;
        self.accept(now, ack, true);
    }

    /// Another segment of the same window was lost (RFC 6582 §3.2 step 3). Only the first partial acknowledgement of a recovery restarts
    /// the timer (the impatient variant), so a window with many losses ends in a timeout.
    fn on_partial(&mut self, now: Instant, ack: u64, out: &mut Vec<FlowPacket>) {
        if !self.partial {
            self.partial = true;
            self.set_timer(now);
        }
        let acked = u32::try_from((ack - self.una).div_ceil(self.mss)).unwrap_or(u32::MAX);
        if self.inflation > acked {
            self.inflation -= acked - 1;
        } else {
            self.cwnd = (self.cwnd - f64::from(acked - self.inflation)).max(1.0);
            self.inflation = 1;
        }
        self.accept_partial(ack);
        self.transmit(now, self.una, out);
    }

    fn on_duplicate(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        self.duplicates += 1;
        if self.duplicates == DUPLICATES {
            self.on_loss(now, out);
        } else if self.duplicates > DUPLICATES {
            self.inflation += u32::from(self.recovering);
        } else if self.limited_transmit {
            self.send_one(now, out);
        }
    }

    /// Handles the third duplicate. A third duplicate shows a new loss only after the acknowledgements have passed `recover`. Before that,
    /// duplicates may come from segments that arrived twice after a timeout (RFC 6582 §3.2 step 2). The first data segment is exempt,
    /// because `recover` starts at its number.
    fn on_loss(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        if self.una <= self.recover && self.una != 1 {
            return;
        }
        self.counts.recoveries += 1;
        self.recover = self.max;
        let (window, threshold) = self.reduced();
        self.threshold = threshold;
        self.timing = None;
        self.set_timer(now);
        if self.variant == TcpVariant::Tahoe {
            self.cwnd = 1.0;
            self.nxt = self.una;
        } else {
            self.recovering = true;
            self.cwnd = window;
            self.inflation = DUPLICATES;
            self.transmit(now, self.una, out);
        }
    }
}
