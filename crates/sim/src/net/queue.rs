//! What will happen next: a heap of times.

/// When: nanoseconds, and at the same time the order in which it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u128);

impl Key {
    /// Later than everything.
    pub const NEVER: Self = Self(u128::MAX);

    pub const fn new(nanos: u64, order: u64) -> Self {
        Self((nanos as u128) << 64 | order as u128)
    }

    #[allow(clippy::cast_possible_truncation)] // the upper half
    pub const fn nanos(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

/// What has its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The first packet on a link arrives.
    Link(u32),
    /// A flow's sender wants to be called.
    Sender(u32),
    /// A flow's receiver wants to be called.
    Receiver(u32),
    /// A switch's logic wants to be called.
    Switch(u32),
}

/// A heap with four children per node: flat, so that a deep one costs few cache lines, and the first entry can be
/// given a new time in place, which is what a link with several packets on it does.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: Vec<(Key, What)>,
}

const CHILDREN: usize = 4;

impl Queue {
    pub fn first(&self) -> Option<(Key, What)> {
        self.entries.first().copied()
    }

    pub fn push(&mut self, key: Key, what: What) {
        let mut at = self.entries.len();
        self.entries.push((key, what));
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.entries[parent].0 <= key {
                break;
            }
            self.entries[at] = self.entries[parent];
            at = parent;
        }
        self.entries[at] = (key, what);
    }

    /// Removes the first entry.
    pub fn pop(&mut self) {
        if let Some(last) = self.entries.pop()
            && !self.entries.is_empty()
        {
            self.sink(last);
        }
    }

    /// Gives the first entry another time.
    pub fn replace_first(&mut self, key: Key) {
        let (_, what) = self.entries[0];
        self.sink((key, what));
    }

    /// Puts `entry` where it belongs, from the top on, whose place is free.
    fn sink(&mut self, entry: (Key, What)) {
        let entries = self.entries.as_mut_slice();
        let mut at = 0;
        loop {
            let first = at * CHILDREN + 1;
            let Some(children) = entries.get(first..entries.len().min(first + CHILDREN)) else {
                break;
            };
            let mut least = (entry.0, at);
            for (offset, child) in children.iter().enumerate() {
                if child.0 < least.0 {
                    least = (child.0, first + offset);
                }
            }
            if least.1 == at {
                break;
            }
            entries[at] = entries[least.1];
            at = least.1;
        }
        entries[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u64),
        Pop,
        Replace(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..50_u64).prop_map(Step::Push),
            2 => Just(Step::Pop),
            2 => (0..50_u64).prop_map(Step::Replace),
        ]
    }

    proptest! {
        #[test]
        fn it_gives_what_a_sorted_list_gives(steps in prop::collection::vec(step(), 0..300)) {
            let (mut queue, mut list) = (Queue::default(), Vec::new());
            for (order, step) in (0_u64..).zip(steps) {
                let id = u32::try_from(order).unwrap();
                match step {
                    Step::Push(at) => {
                        queue.push(Key::new(at, order), What::Link(id));
                        list.push((Key::new(at, order), What::Link(id)));
                    }
                    Step::Pop => {
                        queue.pop();
                        if !list.is_empty() {
                            list.remove(0);
                        }
                    }
                    Step::Replace(later) => if let Some((key, _)) = list.first_mut() {
                        *key = Key::new(key.nanos() + later, order);
                        queue.replace_first(*key);
                    }
                }
                list.sort_by_key(|(key, _)| *key);
                prop_assert_eq!(queue.first(), list.first().copied());
            }
        }
    }
}
