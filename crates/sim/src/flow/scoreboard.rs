//! State and sending time of each segment: RACK's loss detection by time (RFC 8985 §6).
//!
//! A segment counts as lost when a segment that was sent later has arrived, and a round trip plus the reordering window has passed since
//! the lost segment was sent.
//!
//! The receivers here send no DSACK, so the reordering window never grows: its multiplier stays 1 (§6.2 step 4).

use std::collections::VecDeque;

use super::config::DUPLICATES;
use super::ranges::Ranges;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentSegmentState {
    InFlight,
    Received,
    Lost,
}

#[derive(Clone, Debug)]
struct SentSegment {
    seq: u64,
    end: u64,
    /// Time of the segment's last transmission in nanoseconds, and the number of that transmission. The numbers order transmissions that
    /// have the same time.
    sent: u64,
    order: u64,
    /// The segment was sent more than once.
    again: bool,
    state: SentSegmentState,
}

/// The segments from the first unacknowledged one on. Times are in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    /// In the order of their sequence numbers, without gaps.
    segments: VecDeque<SentSegment>,
    /// Number of transmissions so far.
    transmissions: u64,
    /// The number of each transmission and the sequence number of its segment, in the order of sending. An entry is out of date if its
    /// segment is not in flight or was sent again since.
    sent: VecDeque<(u64, u64)>,
    received: Ranges,
    in_flight: u64,
    received_count: u64,
    lost: u64,
    /// No segment below this sequence number is lost.
    lost_from: u64,
    /// RACK.min_RTT.
    least_round_trip: Option<u64>,
    /// RACK.segment is the segment that was sent last among those that arrived. `latest` is the number of that segment's transmission, and
    /// `round_trip` is that segment's round trip.
    latest: u64,
    round_trip: u64,
    /// Latest sending time among the segments that the last acknowledgement newly covers. Only segments that were sent once count, because
    /// their round trip is unambiguous.
    sample: Option<u64>,
    /// RACK.fack: the highest end of a segment that arrived.
    highest: u64,
    reordered: bool,
}

/// Result of [`Scoreboard::detect`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Detected {
    /// Whether a new loss was found.
    pub lost: bool,
    /// When to call [`Scoreboard::detect`] again, if at all.
    pub again_at: Option<u64>,
}

impl Scoreboard {
    /// Number of segments in flight: neither received nor lost.
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Number of segments that have arrived and that the cumulative acknowledgement does not cover.
    pub const fn received(&self) -> u64 {
        self.received_count
    }

    /// Latest sending time among the segments that the last [`Scoreboard::on_ack`] newly covered. Only segments that were sent once count
    /// (Karn's algorithm: RFC 6298 §3).
    pub const fn sample(&self) -> Option<u64> {
        self.sample
    }

    /// Number of segments that the cumulative acknowledgement does not cover.
    pub fn outstanding(&self) -> usize {
        self.segments.len()
    }

    /// First sequence number of the last segment.
    pub fn last(&self) -> Option<u64> {
        self.segments.back().map(|segment| segment.seq)
    }

    /// Notes that a segment is sent (§6.1).
    pub fn on_transmit(&mut self, now: u64, seq: u64, end: u64) {
        self.transmissions += 1;
        let order = self.transmissions;
        self.sent.push_back((order, seq));
        if let Some(index) = self.index(seq) {
            let segment = &mut self.segments[index];
            if segment.state == SentSegmentState::Lost {
                segment.state = SentSegmentState::InFlight;
                self.lost -= 1;
                self.in_flight += 1;
            }
            (segment.sent, segment.order, segment.again) = (now, order, true);
        } else {
            self.in_flight += 1;
            self.segments.push_back(SentSegment {
                seq,
                end,
                sent: now,
                order,
                again: false,
                state: SentSegmentState::InFlight,
            });
        }
    }

    /// Notes that everything below `ack` and in `blocks` has arrived (§6.2 steps 1 to 3). Returns the number of segments whose arrival is
    /// news.
    pub fn on_ack(&mut self, now: u64, ack: u64, blocks: impl Iterator<Item = (u64, u64)>) -> u64 {
        let mut news = 0;
        self.sample = None;
        while self.segments.front().is_some_and(|segment| segment.end <= ack) {
            news += u64::from(self.deliver(now, 0));
            self.segments.pop_front();
            self.received_count -= 1;
        }
        self.received.remove_below(ack);
        // Handles the blocks in ascending order. If the acknowledgements that first reported these blocks were lost, several blocks are new
        // at once. In another order, the blocks would look like reordering.
        let mut sorted = [(0, 0); super::packet::Sack::MAX];
        for (place, block) in sorted.iter_mut().zip(blocks) {
            *place = block;
        }
        sorted.sort_unstable();
        for (left, right) in sorted.into_iter().filter(|block| block.1 > ack) {
            let mut seq = left;
            while seq < right {
                if let Some((_, known)) = self.received.around(seq) {
                    seq = known;
                    continue;
                }
                let Some(index) = self.index(seq) else { break };
                news += u64::from(self.deliver(now, index));
                seq = self.segments[index].end;
            }
            self.received.add(left, right);
        }
        news
    }

    /// Notes that the segment at `index` has arrived. Returns false if its arrival was known.
    fn deliver(&mut self, now: u64, index: usize) -> bool {
        let segment = &mut self.segments[index];
        match segment.state {
            SentSegmentState::Received => return false,
            SentSegmentState::InFlight => self.in_flight -= 1,
            SentSegmentState::Lost => self.lost -= 1,
        }
        segment.state = SentSegmentState::Received;
        self.received_count += 1;
        let SentSegment {
            sent,
            order,
            end,
            again,
            ..
        } = *segment;
        if !again {
            self.sample = self.sample.max(Some(sent));
        }
        let round_trip = now - sent;
        // If a repeated segment's round trip is below the minimum, an earlier transmission of the segment arrived.
        let earlier = again && self.least_round_trip.is_some_and(|least| round_trip < least);
        if !earlier {
            let least = self.least_round_trip.get_or_insert(round_trip);
            *least = round_trip.min(*least);
            if self.latest < order {
                self.latest = order;
                self.round_trip = round_trip;
            }
        }
        self.reordered |= end < self.highest && !again;
        self.highest = self.highest.max(end);
        true
    }

    /// Finds the segments that are lost now (§6.2 steps 4 and 5). `repairing`: fast recovery or the repair after a timeout is under way.
    /// `smoothed`: the smoothed round trip.
    pub fn detect(&mut self, now: u64, repairing: bool, smoothed: u64) -> Detected {
        let patience = self.round_trip + self.window(repairing, smoothed);
        let latest = self.latest;
        let lost = self.lose(|segment| segment.order < latest && segment.sent + patience <= now);
        let before = self.sent.iter().take_while(|(order, _)| *order < latest);
        let waiting = before.filter_map(|(order, seq)| self.current(*order, *seq));
        Detected {
            lost,
            again_at: waiting.last().map(|segment| segment.sent + patience),
        }
    }

    /// The reordering window: how late a segment may be, in nanoseconds (§6.2 step 4).
    fn window(&self, repairing: bool, smoothed: u64) -> u64 {
        if !self.reordered && (repairing || self.received_count >= u64::from(DUPLICATES)) {
            return 0;
        }
        (self.least_round_trip.unwrap_or(0) / 4).min(smoothed)
    }

    /// The retransmission timer expired. Marks as lost the first segment, and every other segment that had enough time to arrive (§6.3).
    pub fn on_timeout(&mut self, now: u64, smoothed: u64) {
        let patience = self.round_trip + self.window(true, smoothed);
        self.lose(|segment| segment.sent + patience <= now);
        let first = self.segments.front();
        let first = first.filter(|first| first.state == SentSegmentState::InFlight);
        if let Some(seq) = first.map(|first| first.seq) {
            self.mark_lost(seq);
        }
    }

    /// Marks segments in flight as lost, in the order of sending, while `is_late` holds. Drops the out-of-date entries of `sent`. Returns
    /// whether a segment was marked.
    fn lose(&mut self, is_late: impl Fn(&SentSegment) -> bool) -> bool {
        let mut found = false;
        while let Some((order, seq)) = self.sent.front().copied() {
            if let Some(segment) = self.current(order, seq) {
                if !is_late(segment) {
                    break;
                }
                self.mark_lost(seq);
                found = true;
            }
            self.sent.pop_front();
        }
        found
    }

    fn mark_lost(&mut self, seq: u64) {
        let Some(index) = self.index(seq) else { return };
        self.segments[index].state = SentSegmentState::Lost;
        self.in_flight -= 1;
        self.lost_from = if self.lost == 0 {
            seq
        } else {
            self.lost_from.min(seq)
        };
        self.lost += 1;
    }

    /// Sequence number of the first lost segment.
    pub fn next_lost(&mut self) -> Option<u64> {
        if self.lost == 0 {
            return None;
        }
        let from = self
            .segments
            .partition_point(|segment| segment.end <= self.lost_from);
        let lost = self
            .segments
            .iter()
            .skip(from)
            .find(|segment| segment.state == SentSegmentState::Lost)?;
        self.lost_from = lost.seq;
        Some(lost.seq)
    }

    /// The segment of a transmission, if the segment is in flight and was not sent again since.
    fn current(&self, order: u64, seq: u64) -> Option<&SentSegment> {
        let segment = &self.segments[self.index(seq)?];
        (segment.state == SentSegmentState::InFlight && segment.order == order).then_some(segment)
    }

    fn index(&self, seq: u64) -> Option<usize> {
        let index = self.segments.partition_point(|segment| segment.end <= seq);
        (index < self.segments.len() && self.segments[index].seq <= seq).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn ack(board: &mut Scoreboard, ms: u64, ack: u64, blocks: &[(u64, u64)]) -> u64 {
        board.on_ack(ms * MS, ack, blocks.iter().copied())
    }

    /// Sends `count` segments of 10 bytes, one each millisecond from 0 ms on. At 100 ms, the first of them (0 to 10) is acknowledged.
    fn board(count: u64) -> Scoreboard {
        let mut board = Scoreboard::default();
        for index in 0..count {
            board.on_transmit(index * MS, index * 10, index * 10 + 10);
        }
        assert_eq!(ack(&mut board, 100, 10, &[]), 1);
        board
    }

    fn lost(board: &Scoreboard) -> Vec<u64> {
        let lost = board
            .segments
            .iter()
            .filter(|segment| segment.state == SentSegmentState::Lost);
        lost.map(|segment| segment.seq).collect()
    }

    /// §6.2 steps 4 and 5: the reordering window is a quarter of the round trip (25 ms) while fewer than three segments were received.
    #[test]
    fn what_was_sent_before_something_that_arrived_is_lost_after_the_reordering_window() {
        let mut board = board(10);
        ack(&mut board, 103, 10, &[(30, 40)]); // sent at 3 ms, so its round trip is 100 ms
        let found = board.detect(103 * MS, false, 100 * MS);
        assert_eq!((found.lost, found.again_at), (false, Some((2 + 100 + 25) * MS)));
        let found = board.detect(126 * MS, false, 100 * MS);
        assert_eq!((lost(&board), found.again_at), (vec![10], Some(127 * MS)));
        assert_eq!(board.detect(127 * MS, false, 100 * MS).again_at, None);
        assert_eq!(lost(&board), [10, 20]);
        assert_eq!(
            (board.in_flight(), board.received(), board.next_lost()),
            (6, 1, Some(10))
        );
    }

    #[test]
    fn with_three_received_or_in_a_recovery_nothing_is_waited_for() {
        let mut three = board(10);
        ack(&mut three, 105, 10, &[(30, 60)]);
        assert!(three.detect(105 * MS, false, 100 * MS).lost);
        assert_eq!(lost(&three), [10, 20]);
        let mut repairing = board(10);
        ack(&mut repairing, 103, 10, &[(30, 40)]);
        assert!(repairing.detect(103 * MS, true, 100 * MS).lost);
    }

    /// §6.2 step 3.
    #[test]
    fn once_segments_were_reordered_three_prove_nothing() {
        let mut board = board(10);
        ack(&mut board, 104, 10, &[(30, 40)]);
        ack(&mut board, 105, 20, &[(30, 40)]); // acknowledges 10 to 20: sent before 30 to 40, arrived after it
        ack(&mut board, 107, 20, &[(30, 70)]);
        let found = board.detect(107 * MS, true, 100 * MS);
        assert!(!found.lost && found.again_at.is_some(), "{found:?}");
        // The window is at most the smoothed round trip.
        assert!(board.detect(113 * MS, true, 10 * MS).lost);
    }

    #[test]
    fn blocks_whose_acknowledgements_were_lost_are_no_reordering() {
        let mut board = board(10);
        ack(&mut board, 106, 10, &[(60, 70), (30, 40)]);
        assert!(!board.reordered);
        assert_eq!(ack(&mut board, 107, 10, &[(60, 80), (30, 40)]), 1);
    }

    /// §6.2 step 2: an acknowledgement that follows a retransmission sooner than the smallest round trip belongs to the first transmission.
    #[test]
    fn a_retransmission_that_arrives_too_soon_tells_no_time() {
        let mut board = board(3);
        board.on_transmit(150 * MS, 10, 20);
        ack(&mut board, 160, 20, &[]);
        assert_eq!((board.latest, board.round_trip), (1, 100 * MS));
        board.on_transmit(170 * MS, 20, 30);
        ack(&mut board, 280, 30, &[]);
        assert_eq!((board.latest, board.round_trip), (5, 110 * MS));
    }

    /// §6.2 step 5: a loss that RFC 6675 cannot find.
    #[test]
    fn a_lost_retransmission_is_lost_when_what_was_sent_after_it_arrives() {
        let mut board = board(10);
        ack(&mut board, 105, 10, &[(20, 60)]);
        assert!(board.detect(105 * MS, false, 100 * MS).lost);
        board.on_transmit(106 * MS, 10, 20);
        board.on_transmit(107 * MS, 100, 110);
        assert_eq!(board.in_flight(), 6);
        ack(&mut board, 206, 10, &[(20, 100)]); // 60 to 100 was sent before the retransmission of 10 to 20
        assert_eq!(board.detect(206 * MS, true, 100 * MS), Detected::default());
        ack(&mut board, 207, 10, &[(20, 110)]);
        assert!(board.detect(207 * MS, true, 100 * MS).lost);
        assert_eq!(lost(&board), [10]);
    }

    /// §6.3.
    #[test]
    fn a_timeout_loses_the_first_and_what_had_its_time() {
        let mut board = board(5);
        board.on_transmit(290 * MS, 50, 60);
        board.on_timeout(300 * MS, 100 * MS);
        assert_eq!((lost(&board), board.in_flight()), (vec![10, 20, 30, 40], 1));
        let mut first = Scoreboard::default();
        first.on_transmit(0, 0, 1);
        first.on_transmit(0, 1, 10);
        first.round_trip = 400 * MS;
        first.on_timeout(300 * MS, 0);
        assert_eq!(lost(&first), [0]);
    }

    /// RFC 8985 as written: looks at all segments every time.
    fn as_written(board: &Scoreboard, now: u64, repairing: bool) -> (Vec<u64>, Option<u64>) {
        let (mut lost, mut again_at) = (Vec::new(), None);
        for segment in board
            .segments
            .iter()
            .filter(|segment| segment.state != SentSegmentState::Received)
        {
            if segment.state == SentSegmentState::Lost {
                lost.push(segment.seq);
            } else if segment.order < board.latest {
                let late_at = segment.sent + board.round_trip + board.window(repairing, 50);
                if late_at <= now {
                    lost.push(segment.seq);
                } else {
                    again_at = again_at.max(Some(late_at));
                }
            }
        }
        (lost, again_at)
    }

    proptest! {
        #[test]
        fn the_order_of_time_finds_what_a_look_at_every_segment_finds(
            steps in prop::collection::vec((0_u8..6, 0_u64..40, 1_u64..6, any::<bool>()), 1..120),
        ) {
            let (mut board, mut now, mut end, mut una) = (Scoreboard::default(), 0, 0, 0);
            for (what, number, count, repairing) in steps {
                now += number;
                match what {
                    0 | 1 => for _ in 0..count {
                        board.on_transmit(now, end, end + 10);
                        end += 10;
                    },
                    2 => while let Some(seq) = board.next_lost() {
                        board.on_transmit(now, seq, seq + 10);
                    },
                    3 => {
                        let left = una + 10 + number / 4 * 10;
                        let right = (left + count * 10).min(end);
                        if left < right {
                            board.on_ack(now, una, [(left, right)].into_iter());
                        }
                    }
                    4 => {
                        una = end.min(una + count / 2 * 10);
                        una = board.received.around(una).map_or(una, |(_, right)| right);
                        board.on_ack(now, una, std::iter::empty());
                    }
                    _ => if una < end { board.on_timeout(now, 50) },
                }
                let expected = as_written(&board, now, repairing);
                let found = board.detect(now, repairing, 50);
                prop_assert_eq!((lost(&board), found.again_at), expected);
                let mut again = board.clone();
                prop_assert_eq!(again.next_lost(), lost(&board).first().copied());
                prop_assert_eq!(board.lost as usize, lost(&board).len());
                let all = board.in_flight + board.received_count + board.lost;
                prop_assert_eq!(all as usize, board.outstanding());
            }
        }
    }
}
