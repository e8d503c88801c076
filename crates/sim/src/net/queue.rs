//! The engine's queue of events: a heap that is ordered by time.

/// An event, as a single number. From the highest bits to the lowest, this number contains the time in nanoseconds (64 bits), the kind (2),
/// the rank (38), and the number of the link, flow or switch (24). Events of the same time and kind happen in the order of their ranks. The
/// heap compares and moves only these numbers, and the four children of an entry are as long as one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventKey(u128);

/// Kind of an event. Events of the same time happen in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// The first packet on a link arrives.
    Link,
    /// A timer of a flow's sender expires.
    Sender,
    /// A timer of a flow's receiver expires.
    Receiver,
    /// A timer of a switch's logic expires.
    Switch,
}

impl EventKey {
    /// Later than every event.
    pub const NEVER: Self = Self(u128::MAX);
    /// Largest number of links, flows or switches.
    pub const NUMBERS: u32 = 1 << NUMBER_BITS;

    pub const fn new(nanos: u64, what: EventKind, rank: u64, number: u32) -> Self {
        let rank = rank % (1 << RANK_BITS);
        let low = (what as u64) << (RANK_BITS + NUMBER_BITS) | rank << NUMBER_BITS | number as u64;
        Self((nanos as u128) << 64 | low as u128)
    }

    // The upper 64 bits are the time.
    pub const fn nanos(self) -> u64 {
        (self.0 >> 64) as u64
    }

    // The lowest `NUMBER_BITS` bits.
    pub const fn number(self) -> u32 {
        self.0 as u32 % Self::NUMBERS
    }

    pub const fn what(self) -> EventKind {
        match (self.0 >> (RANK_BITS + NUMBER_BITS)) & 3 {
            0 => EventKind::Link,
            1 => EventKind::Sender,
            2 => EventKind::Receiver,
            _ => EventKind::Switch,
        }
    }
}

const NUMBER_BITS: u32 = 24;
const RANK_BITS: u32 = 38;

/// A heap with four children per entry. It has fewer levels than a binary heap, so each operation touches few cache lines.
///
/// Taking out the first entry leaves a gap at the top, and the next push fills this gap. Most events schedule exactly one other
/// event. So the heap is reordered once per event, not twice.
#[derive(Debug)]
pub(super) struct EventQueue {
    /// The heap, followed by enough [`EventKey::NEVER`] entries to give every entry four children.
    entries: Vec<EventKey>,
    len: usize,
    gap: bool,
}

const CHILDREN: usize = 4;

impl Default for EventQueue {
    fn default() -> Self {
        Self {
            entries: vec![EventKey::NEVER; 1 + CHILDREN],
            len: 0,
            gap: false,
        }
    }
}

impl EventQueue {
    /// Removes and returns the first event, if its time is before `until` (in nanoseconds).
    pub fn pop_before(&mut self, until: u64) -> Option<EventKey> {
        if self.gap {
            self.close();
        }
        let first = self.entries[0];
        if first.nanos() >= until || self.len == 0 {
            return None;
        }
        self.gap = true;
        Some(first)
    }

    pub fn push(&mut self, key: EventKey) {
        if self.gap {
            self.gap = false;
            self.sink(key);
            return;
        }
        let mut at = self.len;
        self.len += 1;
        if self.len * CHILDREN >= self.entries.len() {
            self.entries.resize(2 * self.len * CHILDREN, EventKey::NEVER);
        }
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.entries[parent] <= key {
                break;
            }
            self.entries[at] = self.entries[parent];
            at = parent;
        }
        self.entries[at] = key;
    }

    /// Fills the gap at the top with the last entry.
    fn close(&mut self) {
        self.gap = false;
        self.len -= 1;
        let last = std::mem::replace(&mut self.entries[self.len], EventKey::NEVER);
        if self.len > 0 {
            self.sink(last);
        }
    }

    /// Puts `key` into the gap at the top and moves it down to its place.
    fn sink(&mut self, key: EventKey) {
        let entries = self.entries.as_mut_slice();
        let mut at = 0;
        while let Some([a, b, c, d]) = entries.get(at * CHILDREN + 1..=at * CHILDREN + CHILDREN) {
            // Finds the least child: the lesser of the first two, the lesser of the last two, then the lesser of the results. Finding it
            // takes no branch that depends on the times.
            let left = usize::from(b < a);
            let right = 2 + usize::from(d < c);
            let (left_key, right_key) = (*a.min(b), *c.min(d));
            let is_right = right_key < left_key;
            let least = at * CHILDREN + 1 + if is_right { right } else { left };
            let least_key = if is_right { right_key } else { left_key };
            if key <= least_key {
                break;
            }
            entries[at] = least_key;
            at = least;
        }
        entries[at] = key;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_holds_what_was_put_into_it() {
        for what in [
            EventKind::Link,
            EventKind::Sender,
            EventKind::Receiver,
            EventKind::Switch,
        ] {
            let key = EventKey::new(u64::MAX - 1, what, u64::MAX, EventKey::NUMBERS - 1);
            assert_eq!(
                (key.nanos(), key.what(), key.number()),
                (u64::MAX - 1, what, EventKey::NUMBERS - 1)
            );
            assert!(key < EventKey::NEVER && EventKey::new(1, what, 2, 0) > EventKey::new(1, what, 1, 9));
        }
    }

    proptest! {
        #[test]
        fn it_gives_what_a_sorted_list_gives(steps in prop::collection::vec((any::<bool>(), 0..50_u64), 0..300)) {
            let (mut queue, mut list) = (EventQueue::default(), Vec::new());
            for (order, (push, at)) in (0_u64..).zip(steps) {
                if push {
                    let key = EventKey::new(at, EventKind::Sender, order, 7);
                    queue.push(key);
                    list.push(key);
                    list.sort();
                } else {
                    let first = list.first().copied().filter(|key| key.nanos() < at);
                    prop_assert_eq!(queue.pop_before(at), first);
                    list.drain(..usize::from(first.is_some()));
                }
            }
        }
    }
}
