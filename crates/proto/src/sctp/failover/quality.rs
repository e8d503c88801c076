//! Measures how good each path is, to find out whether another path should become the primary for good (paper, section IV.2 and its future
//! work).
//!
//! ```text
//!   the path in use:  chunks sent, chunks lost            p: loss rate of one way
//!   an idle path:     heartbeats sent, heartbeats lost    q: loss rate of both ways together; p = 1 − √(1 − q)
//!   each path:        least round-trip time               RTT
//!   seconds per packet:                                   RTT · √(2p/3) + RTO.Min · 32p³   (Padhye et al.)
//! ```
//!
//! The first term alone is the paper's simplified model, but with b = 1 instead of 2 packets per acknowledgement: when packets are lost,
//! every packet is acknowledged by itself. The second term is the time that a path loses in timeouts. Without this term, a slow path with
//! few losses would seem worse than it is, compared with a fast path that loses 5 % and more.
//!
//! Heartbeats of an idle path cost less than [`BUDGET`] of the bytes of data. A path is judged after [`SAMPLES_MIN`] samples. The primary
//! changes only if the other path carries [`MARGIN`] times as much, so noise does not move it back and forth. A path that is much better is
//! recognised earlier: from [`CAUTIOUS_SAMPLES_MIN`] samples on, it is judged by an upper bound of its losses.

use std::time::Duration;

/// Maximum number of bytes that heartbeats may add, as a part of the data's bytes.
pub const BUDGET: f64 = 0.01;
/// Least number of samples of a path before it is judged.
pub const SAMPLES_MIN: f64 = 100.0;
/// Least number of samples of another path after which it may be found to be better.
pub const CAUTIOUS_SAMPLES_MIN: f64 = 20.0;
/// Factor by which another path must carry more than the primary.
pub const MARGIN: f64 = 1.05;
/// Number of samples that the estimate remembers. Older samples fade.
const MEMORY: f64 = 4000.0;
/// A round-trip time measured with data may exceed the least round-trip time. Then the least time rises by the difference divided by this
/// number, because the route may have become longer. It rises slowly, because acknowledgements may be delayed.
const DATA_RTT_RISE: u32 = 256;
/// The same for round-trip times measured with heartbeats. Answers to heartbeats are not delayed, and an idle path has few samples.
const HEARTBEAT_RTT_RISE: u32 = 8;

/// Counts of what was sent on a path and what was lost, fading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossCount {
    sent: f64,
    lost: f64,
}

impl LossCount {
    /// `sent` samples of which `lost` are lost.
    pub fn add(&mut self, sent: u32, lost: u32) {
        self.sent += f64::from(sent);
        self.lost += f64::from(lost);
        if self.sent > MEMORY {
            let fade = MEMORY / self.sent;
            (self.sent, self.lost) = (MEMORY, self.lost * fade);
        }
    }

    /// Number of samples that count.
    pub const fn samples(&self) -> f64 {
        self.sent
    }

    /// The lost part. At least half a loss is assumed: a path without a loss so far is not known to be without losses.
    fn rate(&self) -> f64 {
        (self.lost.max(0.5) / self.sent.max(1.0)).min(1.0)
    }

    /// A lower bound of the lost part: a standard deviation and two losses below the measured losses, but at least a quarter of these
    /// losses. The two losses are subtracted because the first losses come in bunches, at timeouts. As in `rate`, at least half a loss is
    /// assumed.
    fn rate_at_least(&self) -> f64 {
        let lost = self.lost.max(0.5);
        (lost - lost.sqrt() - 2.0).max(0.25 * lost) / self.sent.max(lost)
    }

    /// An upper bound of the lost part: two standard deviations above the measured losses. If nothing was lost, two losses are assumed.
    fn rate_at_most(&self) -> f64 {
        ((self.lost + 2.0 * (self.lost + 1.0).sqrt()) / self.sent.max(1.0)).min(1.0)
    }
}

/// The measurements of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathQuality {
    /// Chunks of data: lost on the way there.
    pub data: LossCount,
    /// Heartbeats: lost on the way there or back.
    pub heartbeats: LossCount,
    /// The least round-trip time. Each longer sample raises it a little.
    rtt: Option<Duration>,
}

impl PathQuality {
    /// A chunk of data was acknowledged after `sample`. Paths are compared by their least round-trip times, not by the means:
    /// acknowledgements of data may be delayed, answers to heartbeats are not. By its mean, a path in use would seem to be slower by a
    /// third if its window is small.
    pub fn on_acknowledged(&mut self, sample: Duration) {
        self.on_measured(sample, DATA_RTT_RISE);
    }

    /// A heartbeat was answered after `sample`.
    pub fn on_answered(&mut self, sample: Duration) {
        self.on_measured(sample, HEARTBEAT_RTT_RISE);
    }

    fn on_measured(&mut self, sample: Duration, rise: u32) {
        self.rtt = Some(match self.rtt {
            Some(least) if sample > least => least + (sample - least) / rise,
            _ => sample,
        });
    }

    /// The least round-trip time: without queueing and without delay of the acknowledgement. `None` before it is known.
    pub const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    fn samples(&self) -> f64 {
        self.data.samples() + self.heartbeats.samples()
    }

    /// The loss rate of one way. `rate` gives the estimate that is taken from each kind of samples: the mean, a lower bound or an upper
    /// bound.
    fn one_way(&self, rate: fn(&LossCount) -> f64) -> f64 {
        let one_way = 1.0 - (1.0 - rate(&self.heartbeats)).sqrt();
        // Each kind counts by its number of samples.
        let (data, heartbeats) = (self.data.samples(), self.heartbeats.samples());
        (rate(&self.data) * data + one_way * heartbeats) / self.samples()
    }

    /// The estimated loss rate of one way. `None` before there are enough samples.
    pub fn loss(&self) -> Option<f64> {
        (self.samples() >= SAMPLES_MIN).then(|| self.one_way(LossCount::rate))
    }

    /// Packets per second that the path carries, by the model. `None` before there are enough samples.
    pub fn rate(&self, rtt: Option<Duration>, least_timeout: Duration) -> Option<f64> {
        model(rtt?, least_timeout, self.loss()?)
    }

    /// As [`rate`](Self::rate), for the path in use, from which data may move away. Returns an upper bound, because the losses may be
    /// fewer.
    pub fn held_rate(&self, rtt: Option<Duration>, least_timeout: Duration) -> Option<f64> {
        self.loss()?;
        model(rtt?, least_timeout, self.one_way(LossCount::rate_at_least))
    }

    /// As [`rate`](Self::rate), for a path to which data may move. If the path has only few samples, returns a lower bound.
    pub fn promised_rate(&self, rtt: Option<Duration>, least_timeout: Duration) -> Option<f64> {
        let is_judged = self.samples() >= CAUTIOUS_SAMPLES_MIN;
        let at_most = || is_judged.then(|| self.one_way(LossCount::rate_at_most));
        model(rtt?, least_timeout, self.loss().or_else(at_most)?)
    }
}

/// Packets per second (Padhye et al.). `None` if nothing arrives. As soon as there are losses, every packet is acknowledged by itself
/// (b = 1). A single loss is repaired without a timeout, so only 32p³ of Padhye's p(1 + 32p²) is left: the timeouts after repeated losses.
fn model(rtt: Duration, least_timeout: Duration, loss: f64) -> Option<f64> {
    let in_windows = rtt.as_secs_f64().max(1e-6) * (2.0 * loss / 3.0).sqrt();
    let in_timeouts = least_timeout.as_secs_f64() * 32.0 * loss.powi(3);
    (loss < 1.0).then_some(1.0 / (in_windows + in_timeouts))
}

/// Whether data should move for good from a path that carries `primary` packets per second to one that carries `other`.
pub fn is_better(primary: Option<f64>, other: Option<f64>) -> bool {
    matches!((primary, other), (Some(primary), Some(other)) if other > primary * MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn data(sent: u32, lost: u32) -> PathQuality {
        let mut quality = PathQuality::default();
        quality.data.add(sent, lost);
        quality
    }

    /// The packets per second that a path carries if it loses `lost` of 1000 chunks.
    fn rate(lost: u32, rtt: Duration) -> Option<f64> {
        data(1000, lost).rate(Some(rtt), 1000 * MS)
    }

    /// The primary has a round-trip time of 90 ms and loses 5 %. An alternate with 210 ms is better only if it loses less than 1.28 %. The
    /// simplified model of the paper's section IV.2 says 0.92 %, but simulated transfers over an alternate that loses 1 % are faster by a
    /// fifth.
    #[test]
    fn a_slower_path_pays_only_if_it_loses_much_less() {
        let primary = rate(50, 90 * MS);
        assert!(is_better(primary, rate(0, 210 * MS)) && is_better(primary, rate(10, 210 * MS)));
        assert!(!is_better(primary, rate(13, 210 * MS)), "within the margin");
        assert!(!is_better(primary, rate(20, 210 * MS)));
        let faster = rate(50, 45 * MS);
        assert!(is_better(primary, faster) && !is_better(faster, primary));
    }

    #[test]
    fn a_delayed_acknowledgement_does_not_make_a_path_slower() {
        let mut quality = data(1000, 50);
        for _ in 0..100 {
            quality.on_acknowledged(290 * MS);
            quality.on_acknowledged(90 * MS);
        }
        quality.on_acknowledged(290 * MS);
        assert!(quality.rtt().is_some_and(|rtt| rtt < 91 * MS));
        // A longer route is noticed.
        for _ in 0..2000 {
            quality.on_acknowledged(290 * MS);
        }
        assert!(quality.rtt().is_some_and(|rtt| rtt > 289 * MS));
    }

    #[test]
    fn an_idle_path_that_became_longer_is_noticed_after_few_heartbeats() {
        let mut quality = PathQuality::default();
        quality.on_answered(90 * MS);
        for _ in 0..30 {
            quality.on_answered(290 * MS);
        }
        assert!(quality.rtt().is_some_and(|rtt| rtt > 285 * MS));
        quality.on_answered(90 * MS);
        assert_eq!(quality.rtt(), Some(90 * MS));
    }

    #[test]
    fn nothing_is_judged_without_samples() {
        assert_eq!(data(99, 1).loss(), None);
        let few = data(99, 0).rate(Some(90 * MS), 1000 * MS);
        assert!(!is_better(rate(50, 90 * MS), few));
        assert_eq!(data(1000, 1).rate(None, 1000 * MS), None);
    }

    /// With 10 % loss on the primary, 25 heartbeats are enough if all are answered, but not if two of them are lost.
    #[test]
    fn a_much_better_path_is_recognised_early() {
        let primary = rate(100, 90 * MS);
        let heartbeats = |sent, lost| {
            let mut quality = PathQuality::default();
            quality.heartbeats.add(sent, lost);
            quality.promised_rate(Some(90 * MS), 1000 * MS)
        };
        assert_eq!(heartbeats(19, 0), None);
        assert!(is_better(primary, heartbeats(25, 0)));
        assert!(!is_better(primary, heartbeats(25, 2)));
        assert!(!is_better(rate(20, 90 * MS), heartbeats(25, 0)));
        assert_eq!(heartbeats(20, 20), None);
    }

    #[test]
    fn heartbeats_lose_on_both_ways() {
        let mut quality = PathQuality::default();
        quality.heartbeats.add(1000, 190);
        assert!((quality.loss().expect("samples") - 0.1).abs() < 1e-9);
    }

    #[test]
    fn old_samples_fade() {
        let mut quality = data(1000, 500);
        for _ in 0..800 {
            quality.data.add(100, 1);
        }
        assert!((quality.loss().expect("samples") - 0.01).abs() < 1e-6);
    }
}
