//! Progress and waits of a connection over time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proto::Instant;
use serde::{Deserialize, Serialize};

/// A span in which the client waited for a requested reply and not one byte came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gap {
    /// Length in nanoseconds.
    pub length_ns: u64,
    /// Beginning in nanoseconds of `CLOCK_MONOTONIC`.
    pub start_ns: u64,
}

impl Gap {
    /// Length in milliseconds.
    pub fn ms(self) -> f64 {
        self.length_ns as f64 / 1e6
    }
}

/// Bytes transferred by a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressSample {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Content bytes that the client has received, plus content bytes that it has sent and that replies have confirmed, since the
    /// connection began.
    pub bytes: u64,
}

/// The progress of one connection in bounded memory: a thinned timeline, and the longest gaps exactly.
#[derive(Debug)]
pub struct ConnectionProgress {
    points_max: usize,
    samples: Vec<ProgressSample>,
    /// Minimum distance of two samples, in nanoseconds. Samples that come sooner are dropped. Doubles whenever there are too many samples.
    spacing_ns: u64,
    latest: Option<ProgressSample>,
    waiting_since: Option<Instant>,
    longest: BinaryHeap<Reverse<Gap>>,
}

/// Maximum number of gaps kept. The gap that a fault causes is one of the longest gaps of the run, or too short to matter.
const GAPS_MAX: usize = 64;
const SPACING_MIN_NS: u64 = 100_000;

impl ConnectionProgress {
    /// The progress of a new connection. Its timeline will have at most `points_max` points.
    pub fn new(points_max: usize) -> Self {
        Self {
            points_max,
            samples: Vec::new(),
            spacing_ns: SPACING_MIN_NS,
            latest: None,
            waiting_since: None,
            longest: BinaryHeap::with_capacity(GAPS_MAX + 1),
        }
    }

    /// Records that a reply is due from now on. A repeated call changes nothing.
    pub fn on_asked(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    /// Records that bytes came. `bytes`: the new [`ProgressSample::bytes`]. `more_owed`: whether a reply is still due.
    pub fn on_progress(&mut self, now: Instant, bytes: u64, more_owed: bool) {
        self.end_gap(now);
        self.waiting_since = more_owed.then_some(now);
        let sample = ProgressSample {
            at_ns: now.as_nanos(),
            bytes,
        };
        self.latest = Some(sample);
        let due = self
            .samples
            .last()
            .is_none_or(|last| sample.at_ns - last.at_ns >= self.spacing_ns);
        if due {
            self.push(sample);
        }
    }

    /// Records the end of the connection. A reply that is still due makes a last gap.
    pub fn on_end(&mut self, now: Instant) {
        self.end_gap(now);
        self.waiting_since = None;
    }

    /// The longest of all gaps.
    pub fn longest_gap(&self) -> Option<Gap> {
        self.longest.iter().map(|gap| gap.0).max()
    }

    /// The longest gap that began no later than `window_ns` after `at_ns` and did not end before `at_ns`. `None` if there was no such gap,
    /// or if such gaps were too short to be kept.
    pub fn longest_gap_around(&self, at_ns: u64, window_ns: u64) -> Option<Gap> {
        let touches = |gap: &Gap| {
            gap.start_ns <= at_ns.saturating_add(window_ns) && gap.start_ns + gap.length_ns >= at_ns
        };
        self.longest.iter().map(|gap| gap.0).filter(touches).max()
    }

    /// As [`Self::longest_gap_around`], but counts only the part of each gap after `at_ns`.
    pub fn longest_gap_after(&self, at_ns: u64, window_ns: u64) -> Option<Gap> {
        let rest = |gap: Gap| {
            let start_ns = gap.start_ns.max(at_ns);
            let end_ns = gap.start_ns + gap.length_ns;
            let length_ns = end_ns.checked_sub(start_ns)?;
            Some(Gap { length_ns, start_ns })
        };
        let ends = at_ns.saturating_add(window_ns);
        let gaps = self.longest.iter().map(|gap| gap.0);
        gaps.filter(|gap| gap.start_ns <= ends).filter_map(rest).max()
    }

    /// The timeline in order of time. It ends with the last progress.
    pub fn timeline(&self) -> Vec<ProgressSample> {
        let mut timeline = self.samples.clone();
        if timeline.last() != self.latest.as_ref() {
            timeline.extend(self.latest);
        }
        timeline
    }

    fn end_gap(&mut self, now: Instant) {
        let Some(since) = self.waiting_since else {
            return;
        };
        self.longest.push(Reverse(Gap {
            length_ns: now.as_nanos().saturating_sub(since.as_nanos()),
            start_ns: since.as_nanos(),
        }));
        if self.longest.len() > GAPS_MAX {
            self.longest.pop(); // the shortest
        }
    }

    fn push(&mut self, sample: ProgressSample) {
        self.samples.push(sample);
        while self.samples.len() >= self.points_max {
            self.spacing_ns *= 2;
            let (mut next_due, spacing_ns) = (0, self.spacing_ns);
            self.samples.retain(|sample| {
                let keep = sample.at_ns >= next_due;
                if keep {
                    next_due = sample.at_ns + spacing_ns;
                }
                keep
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * MS)
    }

    #[test]
    fn only_waiting_counts_as_a_gap() {
        let mut progress = ConnectionProgress::new(100);
        progress.on_asked(at(10));
        progress.on_asked(at(12));
        progress.on_progress(at(15), 1, true);
        progress.on_progress(at(18), 2, false);
        progress.on_asked(at(500)); // The client did not wait during the silence before this.
        progress.on_progress(at(504), 3, false);
        let longest = progress.longest_gap().unwrap();
        assert_eq!((longest.start_ns, longest.length_ns), (10 * MS, 5 * MS));
    }

    #[test]
    fn the_gap_around_a_fault_is_not_the_longest_of_the_run() {
        let mut progress = ConnectionProgress::new(100);
        progress.on_asked(at(0));
        for ms in [300, 310, 320, 400, 410, 1000] {
            progress.on_progress(at(ms), ms, true);
        }
        progress.on_end(at(1001));
        let gap = progress.longest_gap_around(325 * MS, 50 * MS).unwrap();
        assert_eq!((gap.start_ns, gap.length_ns), (320 * MS, 80 * MS));
        assert_eq!(progress.longest_gap().unwrap().length_ns, 590 * MS);
        assert_eq!(progress.longest_gap_around(1002 * MS, MS), None);
    }

    #[test]
    fn a_reply_that_never_came_is_a_gap_up_to_the_end() {
        let mut progress = ConnectionProgress::new(100);
        progress.on_asked(at(0));
        progress.on_progress(at(1), 1, true);
        progress.on_end(at(5000));
        assert_eq!(progress.longest_gap().unwrap().length_ns, 4999 * MS);
    }

    #[test]
    fn memory_is_bounded_and_the_long_gaps_stay() {
        let mut progress = ConnectionProgress::new(64);
        progress.on_asked(at(0));
        let mut now = 0;
        for step in 0..100_000 {
            now += if step == 300 { 700 } else { 1 };
            progress.on_progress(at(now), step, true);
        }
        let timeline = progress.timeline();
        assert!((32..=65).contains(&timeline.len()), "{}", timeline.len());
        assert_eq!(timeline.last().unwrap().bytes, 99_999);
        assert!(timeline.is_sorted_by_key(|sample| sample.at_ns));
        assert_eq!(progress.longest_gap().unwrap().length_ns, 700 * MS);
        assert!(progress.longest.len() <= GAPS_MAX);
    }
}
