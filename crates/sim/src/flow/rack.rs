//! A sender of today: losses are found by time (RACK) and a lost tail by a probe (TLP), RFC 8985, with Linux's constants; recovery at
//! the rate of RFC 9937.
//!
//! ```text
//!   acknowledgement ─▶ scoreboard ─▶ lost? ──▶ fast recovery (PRR)
//!                                    perhaps ─▶ reordering timer ─▶ scoreboard
//!   nothing for 2 · SRTT ─▶ probe: a new segment, or the last one again ─▶ its acknowledgement tells what is lost
//!   nothing at all ─▶ retransmission timeout
//! ```
//!
//! Otherwise than Linux: no F-RTO (RFC 5682), no undoing of a reduction that proved wrong, no pacing, no HyStart; the
//! initial window is one segment already after the first lost SYN (RFC 5681 §3.1), in Linux after the second.

use proto::Instant;

use super::prr::Prr;
use super::scoreboard::Scoreboard;
use super::sender::{Sender, whole};
use crate::net::Packet;

/// TLP.max_ack_delay: an acknowledgement waits no longer. Linux has its least timeout there.
const MAX_ACK_DELAY: u64 = 200_000_000;
/// When to probe before a round trip is known (§7.2).
const UNKNOWN: u64 = 1_000_000_000;

/// What comes before the retransmission timeout. One of them at a time (§8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Early {
    /// A segment that may be late, or lost.
    Reordering,
    /// A tail that may be lost.
    Probe,
}

/// A tail loss probe that nothing is known of yet.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// TLP.end_seq.
    end: u64,
    /// It repeated the last segment.
    again: bool,
}

/// What such a sender has beside the others.
#[derive(Clone, Debug, Default)]
pub(super) struct Rack {
    pub board: Scoreboard,
    prr: Prr,
    early: Option<(u64, Early)>,
    probe: Option<Probe>,
    /// Whether a round trip was measured since the last probe.
    measured: bool,
}

impl Rack {
    /// When the timer that is not the retransmission timeout expires.
    pub fn deadline(&self) -> Option<u64> {
        self.early.map(|(at, _)| at)
    }
}

impl Sender {
    pub(super) fn handle_rack(&mut self, now: Instant, packet: &Packet, out: &mut Vec<Packet>) {
        let ack = packet.ack;
        let (before, outstanding) = (self.una, self.segments(self.nxt - self.una));
        let timed = self.timing;
        let news = self.rack.board.on_ack(now.as_nanos(), ack, packet.sack.iter(ack));
        self.end_probe(packet, news);
        let repaired = self.recovering;
        if ack > self.una {
            self.recovering &= ack < self.recover;
            self.deaf &= ack < self.recover;
            if repaired && !self.recovering {
                self.cwnd = self.threshold;
            }
            self.accept(now, ack, false);
            self.rack.measured |= timed.is_some_and(|(end, _)| ack >= end);
        }
        if self.completed().is_some() {
            self.rack.early = None;
            return;
        }
        if news > 0 && before > 0 && !repaired {
            self.grow_by(now, news as f64, outstanding);
        }
        let lost = self.detect(now, news);
        if self.recovering {
            let in_flight = self.rack.board.in_flight() as f64;
            let safe = ack > before && !lost;
            self.cwnd = self.rack.prr.window(news as f64, in_flight, safe);
        }
        let sent = self.fill_rack(now, out);
        if ack > before || sent {
            self.schedule_probe(now);
        }
    }

    /// Slow start by what arrived (RFC 3465, without its limit, as Linux), and growth at all only if the window was used.
    fn grow_by(&mut self, now: Instant, arrived: f64, outstanding: f64) {
        if self.cwnd < self.threshold {
            if self.cwnd < 2.0 * outstanding {
                self.cwnd = (self.cwnd + arrived).min(self.threshold);
            }
        } else if self.cwnd < outstanding + 1.0 {
            self.grow(now, arrived);
        }
    }

    /// Looks for losses; the first one begins a recovery (§6.2 step 5). Whether there was one.
    fn detect(&mut self, now: Instant, news: u64) -> bool {
        let repairing = self.recovering || self.deaf;
        let found = self
            .rack
            .board
            .detect(now.as_nanos(), repairing, self.round_trip());
        if found.lost && !repairing {
            self.begin_rack_recovery(now, news);
        }
        match found.again_at {
            Some(at) => self.rack.early = Some((at, Early::Reordering)),
            None => self.rack.early = self.rack.early.filter(|(_, early)| *early == Early::Probe),
        }
        if self.recovering || self.deaf {
            self.rack.early = self.rack.early.filter(|(_, early)| *early == Early::Reordering);
        }
        found.lost
    }

    fn begin_rack_recovery(&mut self, now: Instant, news: u64) {
        self.counts.recoveries += 1;
        self.recovering = true;
        self.recover = self.max;
        self.rack.probe = None;
        (self.cwnd, self.threshold) = self.reduced();
        let board = &self.rack.board;
        let flight = board.outstanding() as u64 - board.received() + news;
        self.rack.prr = Prr::new(flight as f64, self.threshold);
        self.timing = None;
        self.set_timer(now);
    }

    /// Sends while less is in flight than the window: first what is lost. Whether something new was sent.
    fn fill_rack(&mut self, now: Instant, out: &mut Vec<Packet>) -> bool {
        let before = self.max;
        while self.rack.board.in_flight() < u64::from(whole(self.cwnd)) {
            let lost = self.rack.board.next_lost();
            let fresh =
                (self.una > 0 && self.nxt < self.end && self.within_window(self.nxt)).then_some(self.nxt);
            if let Some(seq) = lost {
                self.send_again(now, seq, out);
            } else if let Some(seq) = fresh {
                self.nxt = self.transmit(now, seq, out);
            } else {
                break;
            }
            self.rack.prr.on_transmit();
        }
        self.max > before
    }

    /// What is sent twice is not timed (Karn's algorithm: RFC 6298 §3).
    fn send_again(&mut self, now: Instant, seq: u64, out: &mut Vec<Packet>) {
        let end = self.transmit(now, seq, out);
        self.timing = self.timing.filter(|(timed, _)| *timed != end);
    }

    /// After new data, and after an acknowledgement of some (§7.2).
    fn schedule_probe(&mut self, now: Instant) {
        let board = &self.rack.board;
        let repairing = self.recovering || self.deaf;
        if repairing
            || board.received() > 0
            || self
                .rack
                .early
                .is_some_and(|(_, early)| early == Early::Reordering)
        {
            return;
        }
        let round_trip = self.round_trip();
        let wait = if round_trip == 0 {
            UNKNOWN
        } else if board.outstanding() == 1 {
            2 * round_trip + MAX_ACK_DELAY
        } else {
            2 * round_trip
        };
        let at = now.as_nanos() + wait;
        self.rack.early = (self.una > 0 && board.outstanding() > 0).then(|| {
            (
                self.deadline.map_or(at, |deadline| at.min(deadline)),
                Early::Probe,
            )
        });
    }

    /// One of the two early timers may have expired; whether it had.
    pub(super) fn handle_early_timeout(&mut self, now: Instant, out: &mut Vec<Packet>) -> bool {
        let due = |(at, _): &mut (u64, Early)| *at <= now.as_nanos();
        let Some((_, early)) = self.rack.early.take_if(due) else {
            return false;
        };
        match early {
            Early::Probe => self.probe(now, out),
            Early::Reordering => {
                let repaired = self.recovering;
                self.detect(now, 0);
                if self.recovering && !repaired {
                    let in_flight = self.rack.board.in_flight() as f64;
                    self.cwnd = self.rack.prr.window(0.0, in_flight, false);
                }
                self.fill_rack(now, out);
            }
        }
        true
    }

    /// Sends a probe, unless there is one already or no round trip was measured since the last (§7.3).
    fn probe(&mut self, now: Instant, out: &mut Vec<Packet>) {
        if self.rack.probe.is_none() && std::mem::take(&mut self.rack.measured) {
            let again = self.nxt >= self.end || !self.within_window(self.nxt);
            if again && let Some(seq) = self.rack.board.last() {
                self.send_again(now, seq, out);
            } else {
                self.nxt = self.transmit(now, self.nxt, out);
            }
            self.counts.probes += 1;
            self.rack.probe = Some(Probe { end: self.nxt, again });
        }
        self.set_timer(now);
    }

    /// What an acknowledgement says about the probe (§7.4.2).
    fn end_probe(&mut self, packet: &Packet, news: u64) {
        let Some(probe) = self.rack.probe.filter(|probe| packet.ack >= probe.end) else {
            return;
        };
        if probe.again && packet.ack > probe.end {
            // The probe repaired a loss, which nothing else told.
            (self.cwnd, self.threshold) = self.reduced();
            self.rack.probe = None;
        } else if !probe.again || (news == 0 && packet.sack.is_empty()) {
            self.rack.probe = None; // new data arrived; or both copies did, and nothing was lost
        }
    }

    /// The retransmission timer expired: the window is one segment already (§6.3).
    pub(super) fn repair_after_timeout(&mut self, now: Instant, out: &mut Vec<Packet>) {
        self.rack.early = None;
        self.rack.probe = None;
        let round_trip = self.round_trip();
        self.rack.board.on_timeout(now.as_nanos(), round_trip);
        self.transmit(now, self.una, out);
    }
}
