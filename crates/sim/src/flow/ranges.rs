//! A set of numbers, kept as ranges. A receiver keeps its out-of-order input in such a set. A sender keeps the numbers
//! that the other end has reported as received.

/// Disjoint ranges `left..right`, ascending, none touching another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Adds `left..right`. Returns whether part of the range was new.
    pub fn add(&mut self, left: u64, right: u64) -> bool {
        let from = self.0.partition_point(|range| range.1 < left);
        let to = from + self.0[from..].partition_point(|range| range.0 <= right);
        if from == to {
            self.0.insert(from, (left, right));
            return true;
        }
        if self.0[from].0 <= left && right <= self.0[from].1 {
            return false;
        }
        let merged = (left.min(self.0[from].0), right.max(self.0[to - 1].1));
        self.0[from] = merged;
        self.0.drain(from + 1..to);
        true
    }

    /// Removes everything below `seq`. Returns whether the set has lost any member.
    pub fn remove_below(&mut self, seq: u64) -> bool {
        let whole = self.0.partition_point(|range| range.1 <= seq);
        self.0.drain(..whole);
        let cut = self.0.first_mut().filter(|range| range.0 < seq);
        let changed = whole > 0 || cut.is_some();
        if let Some(range) = cut {
            range.0 = seq;
        }
        changed
    }

    /// Removes the first range, if it begins at `seq`, and returns its end.
    pub fn take_from(&mut self, seq: u64) -> Option<u64> {
        let (left, right) = *self.0.first()?;
        (left == seq).then(|| {
            self.0.remove(0);
            right
        })
    }

    /// The range that holds `seq`.
    pub fn around(&self, seq: u64) -> Option<(u64, u64)> {
        let index = self.0.partition_point(|range| range.1 <= seq);
        self.0.get(index).copied().filter(|range| range.0 <= seq)
    }

    /// The first number from `seq` on that is not in the set but has a member of the set above it.
    pub fn hole_from(&self, seq: u64) -> Option<u64> {
        let index = self.0.partition_point(|range| range.1 < seq);
        match self.0.get(index) {
            Some(range) if seq < range.0 => Some(seq),
            Some(range) => (index + 1 < self.0.len()).then_some(range.1),
            None => None,
        }
    }

    /// Number of members in `left..right`.
    pub fn count_in(&self, left: u64, right: u64) -> u64 {
        self.iter()
            .map(|range| range.1.min(right).saturating_sub(range.0.max(left)))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(
            adds in prop::collection::vec((0_u64..60, 1_u64..12), 0..25),
            below in 0_u64..70,
            seq in 0_u64..75,
        ) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (left, len) in adds {
                let before = set.len();
                set.extend(left..left + len);
                prop_assert_eq!(ranges.add(left, left + len), set.len() > before);
            }
            let kept: BTreeSet<u64> = set.iter().copied().filter(|number| *number >= below).collect();
            prop_assert_eq!(ranges.remove_below(below), kept.len() < set.len());
            let numbers: Vec<u64> = ranges.iter().flat_map(|(left, right)| left..right).collect();
            prop_assert_eq!(numbers, kept.iter().copied().collect::<Vec<_>>());
            prop_assert!(ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
            prop_assert_eq!(ranges.around(seq).is_some(), kept.contains(&seq));
            let hole = (seq..80).find(|number| !kept.contains(number) && kept.range(number..).next().is_some());
            prop_assert_eq!(ranges.hole_from(seq), hole);
            prop_assert_eq!(ranges.count_in(seq, 60), kept.range(seq..seq.max(60)).filter(|n| **n < 60).count() as u64);
        }
    }
}
