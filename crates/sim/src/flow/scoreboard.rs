//! Where each segment is and when it was sent: RACK's loss detection by time (RFC 8985 §6).
//!
//! A segment is lost when one that was sent after it has arrived, and the time for it to arrive too is over.
//!
//! The receivers here send no DSACK, so the reordering window keeps its first size (§6.2 step 4).

use std::collections::VecDeque;

use super::ranges::Ranges;
use super::sender::DUPLICATES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InFlight,
    Received,
    Lost,
}

#[derive(Clone, Debug)]
struct Segment {
    seq: u64,
    end: u64,
    /// The last time, in nanoseconds.
    sent: u64,
    /// More than once.
    again: bool,
    state: State,
}

/// The segments from the first unacknowledged one on. Times are in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    /// In the order of their numbers, without gaps.
    segments: VecDeque<Segment>,
    /// When which segment was sent, in the order of time. What a segment was since, or was sent again, is out of date.
    sent: VecDeque<(u64, u64)>,
    received: Ranges,
    in_flight: u64,
    received_count: u64,
    lost: u64,
    /// No segment below it is lost.
    lost_from: u64,
    /// RACK.min_RTT.
    least_round_trip: Option<u64>,
    /// RACK.segment, the last one sent of those that arrived: when, and its end; and its round trip.
    latest: Option<(u64, u64)>,
    round_trip: u64,
    /// RACK.fack: the highest end that arrived.
    highest: u64,
    reordered: bool,
}

/// What [`Scoreboard::detect`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Detected {
    /// Whether something is lost that was not known to be.
    pub lost: bool,
    /// When to look again.
    pub again_at: Option<u64>,
}

impl Scoreboard {
    /// Segments in flight: neither received nor lost.
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Segments received beyond the first that is not.
    pub const fn received(&self) -> u64 {
        self.received_count
    }

    /// Segments that are not acknowledged by the number.
    pub fn outstanding(&self) -> usize {
        self.segments.len()
    }

    /// The first number of the last segment.
    pub fn last(&self) -> Option<u64> {
        self.segments.back().map(|segment| segment.seq)
    }

    /// A segment leaves (§6.1).
    pub fn on_transmit(&mut self, now: u64, seq: u64, end: u64) {
        self.sent.push_back((now, seq));
        if let Some(index) = self.index(seq) {
            let segment = &mut self.segments[index];
            if segment.state == State::Lost {
                segment.state = State::InFlight;
                self.lost -= 1;
                self.in_flight += 1;
            }
            (segment.sent, segment.again) = (now, true);
        } else {
            self.in_flight += 1;
            self.segments.push_back(Segment {
                seq,
                end,
                sent: now,
                again: false,
                state: State::InFlight,
            });
        }
    }

    /// Everything below `ack` and in `blocks` has arrived (§6.2 steps 1 to 3). How many segments of it are news.
    pub fn on_ack(&mut self, now: u64, ack: u64, blocks: impl Iterator<Item = (u64, u64)>) -> u64 {
        let mut news = 0;
        while self.segments.front().is_some_and(|segment| segment.end <= ack) {
            news += u64::from(self.deliver(now, 0));
            self.segments.pop_front();
            self.received_count -= 1;
        }
        self.received.remove_below(ack);
        // Ascending, so that blocks whose acknowledgements were lost do not look like reordering.
        let mut sorted = [(0, 0); crate::net::Sack::MAX];
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

    /// The segment at `index` has arrived; whether that is news.
    fn deliver(&mut self, now: u64, index: usize) -> bool {
        let segment = &mut self.segments[index];
        match segment.state {
            State::Received => return false,
            State::InFlight => self.in_flight -= 1,
            State::Lost => self.lost -= 1,
        }
        segment.state = State::Received;
        self.received_count += 1;
        let Segment { sent, end, again, .. } = *segment;
        let round_trip = now - sent;
        // Faster than ever: it was an earlier transmission that arrived.
        let earlier = again && self.least_round_trip.is_some_and(|least| round_trip < least);
        if !earlier {
            let least = self.least_round_trip.get_or_insert(round_trip);
            *least = round_trip.min(*least);
            if self.latest.is_none_or(|latest| latest < (sent, end)) {
                self.latest = Some((sent, end));
                self.round_trip = round_trip;
            }
        }
        self.reordered |= end < self.highest && !again;
        self.highest = self.highest.max(end);
        true
    }

    /// Which segments are lost now (§6.2 steps 4 and 5). `repairing`: fast recovery or the repair after a timeout goes on.
    pub fn detect(&mut self, now: u64, repairing: bool, smoothed: u64) -> Detected {
        let Some(latest) = self.latest else {
            return Detected::default();
        };
        let patience = self.round_trip + self.window(repairing, smoothed);
        let lost = self.lose(|sent, end| (sent, end) < latest && sent + patience <= now);
        let before = self.sent.iter().take_while(|(sent, _)| *sent <= latest.0);
        let waiting = before.filter_map(|(sent, seq)| {
            let segment = self.current(*sent, *seq)?;
            ((*sent, segment.end) < latest).then_some(*sent)
        });
        Detected {
            lost,
            again_at: waiting.last().map(|sent| sent + patience),
        }
    }

    /// How long a segment may be late (§6.2 step 4).
    fn window(&self, repairing: bool, smoothed: u64) -> u64 {
        if !self.reordered && (repairing || self.received_count >= u64::from(DUPLICATES)) {
            return 0;
        }
        (self.least_round_trip.unwrap_or(0) / 4).min(smoothed)
    }

    /// The retransmission timer expired: the first segment is lost, and what had time enough to arrive (§6.3).
    pub fn on_timeout(&mut self, now: u64, smoothed: u64) {
        let patience = self.round_trip + self.window(true, smoothed);
        self.lose(|sent, _| sent + patience <= now);
        if let Some(first) = self
            .segments
            .front_mut()
            .filter(|first| first.state == State::InFlight)
        {
            first.state = State::Lost;
            self.in_flight -= 1;
            self.lost += 1;
            self.lost_from = first.seq;
        }
    }

    /// In the order of time: loses what is in flight as long as `is_late` says so, and forgets what is out of date.
    fn lose(&mut self, is_late: impl Fn(u64, u64) -> bool) -> bool {
        let mut found = false;
        while let Some((sent, seq)) = self.sent.front().copied() {
            if let Some(segment) = self.current(sent, seq) {
                if !is_late(sent, segment.end) {
                    break;
                }
                let index = self.index(seq).expect("it was just found");
                self.segments[index].state = State::Lost;
                self.in_flight -= 1;
                self.lost_from = if self.lost == 0 {
                    seq
                } else {
                    self.lost_from.min(seq)
                };
                self.lost += 1;
                found = true;
            }
            self.sent.pop_front();
        }
        found
    }

    /// The first lost segment's number.
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
            .find(|segment| segment.state == State::Lost)?;
        self.lost_from = lost.seq;
        Some(lost.seq)
    }

    /// The segment that was sent then, if it is still in flight and was not sent since.
    fn current(&self, sent: u64, seq: u64) -> Option<&Segment> {
        let segment = &self.segments[self.index(seq)?];
        (segment.state == State::InFlight && segment.sent == sent).then_some(segment)
    }

    fn index(&self, seq: u64) -> Option<usize> {
        let index = self.segments.partition_point(|segment| segment.end <= seq);
        (index < self.segments.len() && self.segments[index].seq <= seq).then_some(index)
    }
}
