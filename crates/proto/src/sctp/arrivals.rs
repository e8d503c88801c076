//! TSNs that arrived, and when they are acknowledged (RFC 9260 §6.2).
//!
//! ```text
//!                    cumulative
//!   arrived ……………………… │   gap   │ run │  gap  │ run │        one SACK says all of this
//! ```

use std::time::Duration;

use super::chunk::SackChunk;
use super::config::SctpConfig;
use super::tsn::Tsn;
use crate::Instant;

/// Maximum number of runs. A run is a sequence of arrived TSNs after a gap. A SACK with this many runs and [`DUPLICATES_MAX`] duplicates
/// fits a packet of 576 bytes.
const RUNS_MAX: usize = 96;
/// Maximum number of duplicates that a SACK reports.
const DUPLICATES_MAX: usize = 24;

/// Verdict on a TSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TsnArrival {
    /// It arrives for the first time.
    New,
    /// It has arrived before.
    Duplicate,
    /// It is too far ahead, or would need more than [`RUNS_MAX`] runs. The sender retransmits it.
    TooFar,
}

/// Arrived TSNs, and the acknowledgement that they need.
#[derive(Debug)]
pub(super) struct Arrivals {
    cumulative: Tsn,
    /// First and last TSN of each run, as distances from the cumulative TSN, in order.
    runs: Vec<(u32, u32)>,
    duplicates: Vec<Tsn>,
    /// Packets with data since the last SACK.
    packets: u32,
    is_due: bool,
    /// When a delayed acknowledgement is due.
    due_at: Option<Instant>,
    every: u32,
    delay: Duration,
}

impl Arrivals {
    /// Nothing has arrived. `first` is the peer's first TSN.
    pub fn new(config: &SctpConfig, first: Tsn) -> Self {
        Self {
            cumulative: first.minus(1),
            runs: Vec::new(),
            duplicates: Vec::new(),
            packets: 0,
            is_due: false,
            due_at: None,
            every: config.sack_every,
            delay: config.sack_delay,
        }
    }

    /// The cumulative TSN: all TSNs up to this one have arrived.
    pub const fn cumulative(&self) -> Tsn {
        self.cumulative
    }

    /// Whether a TSN is missing before one that arrived.
    pub const fn has_gaps(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Returns whether `tsn` is new, has arrived before, or is too far ahead.
    pub fn verdict(&self, tsn: Tsn) -> TsnArrival {
        let Ok(distance) = u32::try_from(tsn.distance_from(self.cumulative)) else {
            return TsnArrival::Duplicate;
        };
        let at = self.runs.partition_point(|(_, last)| *last < distance);
        let is_in_run = self.runs.get(at).is_some_and(|(first, _)| *first <= distance);
        let joins = self.runs.get(at).is_some_and(|(first, _)| *first == distance + 1)
            || at > 0 && self.runs[at - 1].1 + 1 == distance;
        match distance {
            0 => TsnArrival::Duplicate,
            _ if is_in_run => TsnArrival::Duplicate,
            1 => TsnArrival::New,
            // The offsets of gap blocks have 16 bits. Only half of that range is accepted: two messages of a stream are at least as far
            // apart by TSN as by SSN, so the signed distance of their 16-bit SSNs is then right.
            2..=0x7fff if joins || self.runs.len() < RUNS_MAX => TsnArrival::New,
            _ => TsnArrival::TooFar,
        }
    }

    /// A new TSN was accepted.
    pub fn on_new(&mut self, tsn: Tsn) {
        let had_gaps = self.has_gaps();
        let distance = tsn.distance_from(self.cumulative).cast_unsigned();
        if distance == 1 && !had_gaps {
            self.cumulative = tsn;
            return;
        }
        let at = self.runs.partition_point(|(_, last)| *last < distance);
        let joins_next = self.runs.get(at).is_some_and(|(first, _)| *first == distance + 1);
        let joins_last = at > 0 && self.runs[at - 1].1 + 1 == distance;
        match (joins_last, joins_next) {
            (true, true) => {
                self.runs[at - 1].1 = self.runs[at].1;
                self.runs.remove(at);
            }
            (true, false) => self.runs[at - 1].1 = distance,
            (false, true) => self.runs[at].0 = distance,
            (false, false) => self.runs.insert(at, (distance, distance)),
        }
        if let Some((1, last)) = self.runs.first().copied() {
            self.runs.remove(0);
            self.cumulative = self.cumulative.plus(last);
            for run in &mut self.runs {
                *run = (run.0 - last, run.1 - last);
            }
        }
        // While there is a gap, the SACK is not delayed (RFC 9260 §6.7). When the last gap closes, the SACK may be delayed.
        self.is_due |= self.has_gaps();
    }

    /// A TSN arrived again.
    pub fn on_duplicate(&mut self, tsn: Tsn) {
        if self.duplicates.len() < DUPLICATES_MAX {
            self.duplicates.push(tsn);
        }
        self.is_due = true;
    }

    /// A packet with data arrived and its chunks were handled.
    pub fn on_packet(&mut self, now: Instant) {
        self.packets += 1;
        self.is_due |= self.packets >= self.every;
        if !self.is_due && self.due_at.is_none() {
            self.due_at = Some(now + self.delay);
        }
    }

    /// An acknowledgement is due now.
    pub const fn acknowledge(&mut self) {
        self.is_due = true;
    }

    /// Bytes of the record of gaps and duplicates.
    pub const fn stored(&self) -> usize {
        size_of::<(u32, u32)>() * self.runs.len() + size_of::<Tsn>() * self.duplicates.len()
    }

    /// Whether an acknowledgement is to be sent now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.is_due || self.due_at.is_some_and(|at| now >= at)
    }

    /// Whether a SACK is to be bundled with a packet that leaves anyway.
    pub const fn is_waiting(&self) -> bool {
        self.is_due || self.due_at.is_some()
    }

    /// When a delayed acknowledgement is due.
    pub const fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// Returns the SACK that announces `window`. Afterwards, no acknowledgement is due.
    pub fn take_sack(&mut self, window: u32) -> SackChunk {
        self.packets = 0;
        self.is_due = false;
        self.due_at = None;
        SackChunk {
            cumulative: self.cumulative,
            window,
            // `verdict` limits distances to 16 bits.
            gaps: self
                .runs
                .iter()
                .map(|(first, last)| (*first as u16, *last as u16))
                .collect(),
            duplicates: std::mem::take(&mut self.duplicates),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn arrivals() -> Arrivals {
        Arrivals::new(&SctpConfig::default(), Tsn(u32::MAX - 5))
    }

    #[test]
    fn every_second_packet_is_acknowledged_at_once_the_first_after_a_delay() {
        let (mut arrived, first) = (arrivals(), Tsn(u32::MAX - 5));
        arrived.on_new(first);
        arrived.on_packet(Instant::ZERO);
        assert!(!arrived.is_due(Instant::ZERO) && arrived.is_waiting());
        assert!(arrived.is_due(Instant::ZERO + Duration::from_millis(200)));
        arrived.on_new(first.plus(1));
        arrived.on_packet(Instant::ZERO);
        assert!(arrived.is_due(Instant::ZERO));
        assert_eq!(arrived.take_sack(7).cumulative, first.plus(1));
        assert!(!arrived.is_waiting());
    }

    #[test]
    fn gaps_and_duplicates_are_acknowledged_at_once() {
        let (mut arrived, first) = (arrivals(), Tsn(u32::MAX - 5));
        for ahead in [2, 3, 9] {
            assert_eq!(arrived.verdict(first.plus(ahead)), TsnArrival::New);
            arrived.on_new(first.plus(ahead));
            assert!(arrived.is_due(Instant::ZERO));
        }
        assert_eq!(arrived.verdict(first.plus(3)), TsnArrival::Duplicate);
        arrived.on_duplicate(first.plus(3));
        let sack = arrived.take_sack(1);
        assert_eq!(sack.gaps, [(3, 4), (10, 10)]);
        assert_eq!(sack.duplicates, [first.plus(3)]);
        assert_eq!(arrived.verdict(first.minus(1)), TsnArrival::Duplicate);
        assert_eq!(arrived.verdict(first.plus(0x7ffe)), TsnArrival::New);
        assert_eq!(arrived.verdict(first.plus(0x7fff)), TsnArrival::TooFar);
    }

    proptest! {
        /// The cumulative TSN and the runs agree with a set of all arrived TSNs.
        #[test]
        fn it_keeps_what_a_set_keeps(tsns in prop::collection::vec(0..60_u32, 0..120)) {
            let (mut arrived, first, mut set) = (arrivals(), Tsn(u32::MAX - 5), BTreeSet::new());
            for ahead in tsns {
                let tsn = first.plus(ahead);
                if arrived.verdict(tsn) == TsnArrival::New {
                    prop_assert!(set.insert(ahead));
                    arrived.on_new(tsn);
                } else {
                    prop_assert!(set.contains(&ahead));
                }
            }
            let whole = (0..).take_while(|ahead| set.contains(ahead)).count() as u32;
            prop_assert_eq!(arrived.cumulative(), first.plus(whole).minus(1));
            let sack = arrived.take_sack(0);
            let mut reported = BTreeSet::from_iter(0..whole);
            for (begin, end) in sack.gaps {
                reported.extend((begin..=end).map(|ahead| whole + u32::from(ahead) - 1));
            }
            prop_assert_eq!(reported, set);
        }
    }
}
