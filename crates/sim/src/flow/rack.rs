//! A modern sender. RACK finds losses by time, and a tail loss probe (TLP) finds a lost tail. Both follow RFC 8985 with Linux's constants.
//! Recovery runs at the rate of RFC 9937.
//!
//! ```text
//!   acknowledgement ─▶ scoreboard ─▶ lost? ──▶ fast recovery (PRR)
//!                                    perhaps ─▶ reordering timer ─▶ scoreboard
//!   nothing for 2 · SRTT ─▶ probe: a new segment, or the last one again ─▶ its acknowledgement tells what is lost
//!   nothing at all ─▶ retransmission timeout
//! ```
//!
//! Differences from Linux: no F-RTO (RFC 5682), no undoing of a window reduction that proved wrong, no pacing, no HyStart. The initial
//! window is one segment after the first lost SYN (RFC 5681 §3.1). In Linux, it is one segment only after the second lost SYN.

use proto::Instant;

use super::packet::FlowPacket;
use super::prr::Prr;
use super::rack_state::{Early, TailProbe};
use super::sender::{FlowSender, whole};

/// TLP.max_ack_delay in nanoseconds: the longest delay of an acknowledgement. Linux uses its smallest timeout.
const MAX_ACK_DELAY: u64 = 200_000_000;
/// Time until a probe while no round trip is known, in nanoseconds (§7.2).
const UNKNOWN: u64 = 1_000_000_000;

impl FlowSender {
    pub(super) fn handle_rack(&mut self, now: Instant, packet: &FlowPacket, out: &mut Vec<FlowPacket>) {
        let ack = packet.ack;
        let (before, outstanding) = (self.una, self.segments(self.nxt - self.una));
        let news = self.rack.board.on_ack(now.as_nanos(), ack, packet.sack.iter(ack));
        self.end_probe(packet, news);
        if let Some(sent) = self.rack.board.sample() {
            self.rack.measured = true;
            self.measure(Instant::from_nanos(sent), now);
        }
        let repaired = self.recovering;
        if ack > self.una {
            self.recovering &= ack < self.recover;
            self.deaf &= ack < self.recover;
            if repaired && !self.recovering {
                self.cwnd = self.threshold;
            }
            self.accept(now, ack, false);
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

    /// Grows the window, but only if the window was used. In slow start, it grows by the segments that arrived (RFC 3465 without its limit,
    /// as in Linux).
    fn grow_by(&mut self, now: Instant, arrived: f64, outstanding: f64) {
        if self.cwnd < self.threshold {
            if self.cwnd < 2.0 * outstanding {
                self.cwnd = (self.cwnd + arrived).min(self.threshold);
            }
        } else if self.cwnd < outstanding + 1.0 {
            self.grow(now, arrived);
        }
    }

    /// Looks for losses. The first loss begins a recovery (§6.2 step 5). Returns whether a new loss was found.
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
        self.set_timer(now);
    }

    /// Sends segments, lost segments first, while fewer segments are in flight than the window allows. If the receiver's window has shrunk,
    /// lost segments beyond the receiver's window have to wait, except for the first one (as in Linux). Returns whether something new was
    /// sent.
    fn fill_rack(&mut self, now: Instant, out: &mut Vec<FlowPacket>) -> bool {
        let before = self.max;
        while self.rack.board.in_flight() < u64::from(whole(self.cwnd)) {
            let lost = self.rack.board.next_lost();
            let lost = lost.filter(|seq| *seq == self.una || self.within_window(*seq));
            let fresh =
                (self.una > 0 && self.nxt < self.end && self.within_window(self.nxt)).then_some(self.nxt);
            if let Some(seq) = lost {
                self.transmit(now, seq, out);
                if seq == self.una {
                    self.set_timer(now); // as in Linux
                }
            } else if let Some(seq) = fresh {
                self.nxt = self.transmit(now, seq, out);
            } else {
                break;
            }
            self.rack.prr.on_transmit();
        }
        self.max > before
    }

    /// Sets the probe's timer. Called after new data was sent, and after an acknowledgement of some data (§7.2).
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

    /// Handles the early timer, if it has expired. Returns whether it had expired.
    pub(super) fn handle_early_timeout(&mut self, now: Instant, out: &mut Vec<FlowPacket>) -> bool {
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

    /// Sends a probe, unless an earlier probe is still unanswered, or no round trip was measured since the last probe (§7.3).
    fn probe(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        if self.rack.probe.is_none() && std::mem::take(&mut self.rack.measured) {
            let again = self.nxt >= self.end || !self.within_window(self.nxt);
            if again && let Some(seq) = self.rack.board.last() {
                self.transmit(now, seq, out);
            } else {
                self.nxt = self.transmit(now, self.nxt, out);
            }
            self.counts.probes += 1;
            self.rack.probe = Some(TailProbe { end: self.nxt, again });
        }
        self.set_timer(now);
    }

    /// Handles what an acknowledgement says about the probe (§7.4.2).
    fn end_probe(&mut self, packet: &FlowPacket, news: u64) {
        let Some(probe) = self.rack.probe.filter(|probe| packet.ack >= probe.end) else {
            return;
        };
        if probe.again && packet.ack > probe.end {
            // The probe repaired a loss, and nothing else showed the loss.
            (self.cwnd, self.threshold) = self.reduced();
            self.rack.probe = None;
        } else if !probe.again || (news == 0 && packet.sack.is_empty()) {
            self.rack.probe = None; // new data arrived; or both copies arrived, and nothing was lost
        }
    }

    /// The retransmission timer expired. The window is one segment already (§6.3).
    pub(super) fn repair_after_timeout(&mut self, now: Instant, out: &mut Vec<FlowPacket>) {
        self.rack.early = None;
        self.rack.probe = None;
        let round_trip = self.round_trip();
        self.rack.board.on_timeout(now.as_nanos(), round_trip);
        self.transmit(now, self.una, out);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::flow::packet::{FlowDirection, FlowFlags, FlowId, Sack};
    use crate::flow::{FlowConfig, FlowHandshake};

    const MSS: u64 = 1000;
    const MS: u64 = 1_000_000;

    /// A sender under test, and the packets that it has sent since the last call of [`sent`](Self::sent).
    struct SenderTest {
        sender: FlowSender,
        now: Instant,
        /// The window that the receiver advertises, in segments.
        window: u32,
        out: Vec<FlowPacket>,
    }

    const NOTHING: [i64; 0] = [];

    impl SenderTest {
        fn new(segments: u64, change: impl FnOnce(&mut FlowConfig)) -> Self {
            let mut config = FlowConfig {
                handshake: FlowHandshake::OneWay,
                mss: u16::try_from(MSS).unwrap(),
                ..FlowConfig::linux()
            };
            config.rto.phase = Some(Duration::ZERO);
            change(&mut config);
            let mut play = Self {
                sender: FlowSender::new(FlowId(0), &config, segments * MSS),
                now: Instant::ZERO,
                window: 2_200,
                out: Vec::new(),
            };
            play.sender.start(Instant::ZERO, &mut play.out);
            assert_eq!(play.sent(), [-1]);
            play
        }

        /// A sender whose SYN was acknowledged after 100 ms.
        fn opened(segments: u64) -> Self {
            let mut play = Self::new(segments, |_| ());
            play.tell(100, 1, &[]);
            play
        }

        /// An acknowledgement of the first `segments` segments. SACK blocks report the segments of `blocks`.
        fn ack(&mut self, ms: u64, segments: u64, blocks: &[(u64, u64)]) -> Vec<i64> {
            self.tell(ms, 1 + segments * MSS, blocks);
            self.sent()
        }

        fn tell(&mut self, ms: u64, ack: u64, blocks: &[(u64, u64)]) {
            self.now = Instant::from_nanos(ms * MS);
            let mut sack = Sack::default();
            for (from, to) in blocks {
                sack.push(ack, 1 + from * MSS, 1 + to * MSS);
            }
            let packet = FlowPacket {
                flow: FlowId(0),
                direction: FlowDirection::Backward,
                flags: FlowFlags::ACK,
                len: 0,
                seq: 0,
                ack,
                window: self.window * 1000,
                sack,
            };
            self.sender.handle(self.now, &packet, &mut self.out);
        }

        /// Lets the next timer expire. Returns its time in milliseconds, and the segments that are sent then.
        fn expire(&mut self) -> (u64, Vec<i64>) {
            self.now = self.sender.poll_timeout().unwrap();
            self.sender.handle_timeout(self.now, &mut self.out);
            (self.now.as_nanos() / MS, self.sent())
        }

        /// The numbers of the segments that left since the last call. The first data segment is 0, and the SYN is -1.
        fn sent(&mut self) -> Vec<i64> {
            let number = |packet: FlowPacket| {
                if packet.seq == 0 {
                    -1
                } else {
                    i64::try_from(packet.seq / MSS).unwrap()
                }
            };
            self.out.drain(..).map(number).collect()
        }
    }

    #[test]
    fn ten_segments_leave_at_first_and_the_window_doubles_each_round_trip() {
        let mut play = SenderTest::opened(1000);
        assert_eq!(play.sent(), (0..10).collect::<Vec<_>>());
        for (acked, expected) in [(10, 20), (30, 40), (70, 80)] {
            for segments in (acked - expected / 2..acked).step_by(2) {
                play.ack(200, segments + 2, &[]);
            }
            assert_eq!(play.sender.congestion_window(), expected as f64);
        }
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut play = SenderTest::opened(1000);
        play.window = 5;
        (1..200).for_each(|segments| drop(play.ack(200, segments, &[])));
        assert!(
            play.sender.congestion_window() <= 20.0,
            "{}",
            play.sender.congestion_window()
        );
    }

    /// As in Linux (`__tcp_retransmit_skb`): if the window has shrunk, segments beyond it are not sent again.
    #[test]
    fn lost_segments_beyond_a_shrunk_window_wait() {
        let mut play = SenderTest::opened(1000);
        play.sent();
        assert_eq!(play.ack(200, 10, &[]), (10..30).collect::<Vec<_>>());
        play.window = 2;
        assert_eq!(play.ack(300, 10, &[(27, 30)]), [10, 11], "of 17 that are lost");
        assert_eq!(play.ack(400, 12, &[(27, 30)]), [12, 13]);
    }

    /// RFC 8985 §7.2: the probe leaves 2 · SRTT after the last acknowledgement. §7.3: it carries new data, if there is some.
    #[test]
    fn a_probe_sends_new_data_two_round_trips_after_the_last_news() {
        let mut play = SenderTest::opened(1000);
        play.sent();
        play.ack(200, 2, &[]);
        assert_eq!(play.expire(), (200 + 2 * 100, vec![12 + 2]));
        assert_eq!(play.sender.counts().probes, 1);
        // Only one probe is sent. The timeout counts from the probe and is 300 ms: SRTT + 200 ms.
        assert_eq!(play.expire(), (400 + 300, vec![2]));
        assert_eq!(play.sender.counts().timeouts, 1);
        assert_eq!(play.sender.congestion_window(), 1.0);
    }

    /// §7.2: if only one segment is in flight, the probe also waits for a delayed acknowledgement, but not longer than the timeout.
    #[test]
    fn a_single_segment_is_probed_when_its_acknowledgement_cannot_be_late() {
        let mut play = SenderTest::opened(1);
        play.sent();
        let (at, sent) = play.expire();
        assert_eq!((at, sent), (100 + 300, vec![0])); // the timeout; 2 · SRTT + 200 ms would be later
        assert_eq!(play.sender.counts().timeouts, 0);
        let mut patient = SenderTest::new(1, |config| config.rto.min = Duration::from_millis(900));
        patient.tell(100, 1, &[]);
        patient.sent();
        assert_eq!(patient.expire().0, 100 + 400);
    }

    /// §7.2: without a measured round trip, the probe is due after a second. A SYN that was sent twice gives no measurement (Karn's
    /// algorithm).
    #[test]
    fn without_a_round_trip_the_probe_is_due_after_a_second_but_not_sent() {
        let mut play = SenderTest::new(5, |_| ());
        assert_eq!(play.expire(), (1000, vec![-1]));
        play.tell(1100, 1, &[]);
        assert_eq!(play.sent(), [0]);
        assert_eq!(play.expire(), (2100, vec![])); // §7.3: nothing was measured
        assert_eq!(
            (play.sender.counts().probes, play.sender.counts().timeouts),
            (0, 1)
        );
        assert_eq!(play.expire(), (5100, vec![0])); // RFC 6298 §5.7: 3 s
    }

    /// §7.4.1: the probe's acknowledgement shows what is lost before it; recovery begins without a timeout.
    #[test]
    fn a_lost_tail_is_repaired_without_a_timeout() {
        let mut play = SenderTest::opened(10);
        assert_eq!(play.sent().len(), 10);
        assert_eq!(play.ack(200, 6, &[]), NOTHING); // 6 to 9 are lost
        assert_eq!(play.expire(), (400, vec![9]));
        assert_eq!(play.ack(500, 6, &[(9, 10)]), [6]); // RFC 9937: one segment for one that arrived
        assert_eq!(play.ack(600, 7, &[(9, 10)]), [7, 8]);
        play.ack(700, 10, &[]);
        assert!(play.sender.completed().is_some());
        assert_eq!(
            (play.sender.counts().timeouts, play.sender.counts().recoveries),
            (0, 1)
        );
        assert_eq!(play.sender.poll_timeout(), None);
    }

    /// §7.4.2: if the probe repaired the only loss, nothing else shows that loss.
    #[test]
    fn a_loss_that_the_probe_repaired_costs_window() {
        let mut play = SenderTest::opened(100);
        play.sent();
        play.window = 2;
        assert_eq!(play.ack(200, 10, &[]), [10, 11]);
        play.window = 1;
        assert_eq!(play.ack(300, 11, &[]), NOTHING);
        assert_eq!(play.expire(), (600, vec![11])); // the receiver has no room for another segment
        play.window = 2;
        let window = play.sender.congestion_window();
        assert_eq!(play.ack(700, 12, &[]), [12, 13]);
        assert_eq!(play.sender.congestion_window(), window);
        play.ack(800, 14, &[]);
        assert_eq!(play.sender.congestion_window(), 2.0);
        assert_eq!(
            (play.sender.counts().timeouts, play.sender.counts().recoveries),
            (0, 0)
        );
    }

    /// §7.4.2: both copies arrived.
    #[test]
    fn a_probe_that_was_not_needed_costs_nothing() {
        let mut play = SenderTest::opened(10);
        play.sent();
        play.ack(200, 9, &[]);
        let window = play.sender.congestion_window();
        let (_, sent) = play.expire();
        assert_eq!(sent, [9]);
        play.ack(520, 10, &[]);
        assert!(play.sender.completed().is_some());
        assert_eq!(play.sender.congestion_window(), window);
    }

    /// RFC 9937: seven segments are sent for ten that arrive, and at the end the window is the threshold.
    #[test]
    fn a_recovery_sends_seven_segments_for_ten_that_arrive() {
        let mut play = SenderTest::opened(1000);
        play.sent();
        for segments in [2, 4, 6, 8, 10] {
            play.ack(200, segments, &[]);
        }
        play.ack(300, 10, &[(11, 12)]);
        play.ack(300, 10, &[(11, 13)]);
        assert_eq!(play.ack(300, 10, &[(11, 14)]), [10]); // 10 to 33 were outstanding, of which 11 to 13 arrived
        let mut sent = 0;
        for right in 15..30 {
            sent += play.ack(300, 10, &[(11, right)]).len();
        }
        assert!((9..=12).contains(&sent), "{sent}");
        play.ack(400, 34, &[]);
        assert_eq!(play.sender.congestion_window(), play.sender.threshold);
        assert_eq!(
            (play.sender.counts().recoveries, play.sender.counts().timeouts),
            (1, 0)
        );
    }

    /// §6.2 step 5: the timer of the reordering window finds the loss if nothing else comes.
    #[test]
    fn one_block_is_enough_after_the_reordering_window() {
        let mut play = SenderTest::opened(3);
        assert_eq!(play.sent(), [0, 1, 2]);
        assert_eq!(play.ack(200, 0, &[(1, 2)]), NOTHING);
        assert_eq!(play.expire(), (225, vec![0]));
        assert_eq!(play.sender.counts().recoveries, 1);
    }
}
