//! Which datagrams of the peer are new: each counts once, and what was recorded earlier counts never.
//!
//! Within one life of the peer's agent (an *incarnation*) a sliding window over the sequence numbers tells (RFC 4303 §3.4.3,
//! RFC 6479). A new incarnation must first prove that it lives now: it echoes the nonce that this node tells. The nonce is drawn
//! anew for each incarnation that was taken, and with each start of this node; so no recording of an earlier life of either
//! node passes.

/// Numbers below the newest that are told apart; what is older is refused.
const WIDTH: u64 = u128::BITS as u64;

/// What a sequence number is to those that came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is the newest.
    Newest,
    /// It is new, but newer ones came first.
    Late,
    /// It has come already: by another link, or from someone who recorded it.
    Again,
    /// It is too old to tell.
    TooOld,
}

/// The sequence numbers that have come. They count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    newest: u64,
    /// Bit n: `newest` − n has come.
    come: u128,
}

impl Window {
    /// One in which everything up to `sequence` counts as come.
    pub fn from(sequence: u64) -> Self {
        Self {
            newest: sequence,
            come: u128::MAX,
        }
    }

    /// Notes that `sequence` has come.
    pub fn on_sequence(&mut self, sequence: u64) -> Seen {
        if sequence > self.newest {
            let ahead = sequence - self.newest;
            self.come = if ahead < WIDTH { self.come << ahead | 1 } else { 1 };
            self.newest = sequence;
            return Seen::Newest;
        }
        let behind = self.newest - sequence;
        if behind >= WIDTH || sequence == 0 {
            return Seen::TooOld;
        }
        let bit = 1 << behind;
        if self.come & bit != 0 {
            return Seen::Again;
        }
        self.come |= bit;
        Seen::Late
    }
}

/// What is to be thought of a datagram that is the peer's, by its key or by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The peer's agent of now said it.
    Current(Seen),
    /// An agent that was unknown has proved that it lives now: a nonce must be drawn for the next one.
    Proved,
    /// An agent that has proved nothing yet, or a recording.
    Unproved,
}

/// Tells the peer's agent of now from recordings of earlier ones.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    nonce: u64,
    current: Option<(u64, Window)>,
}

impl Replay {
    /// One that has heard nothing. `nonce` must be unpredictable, as all later ones, and not 0.
    pub fn new(nonce: u64) -> Self {
        Self { nonce, current: None }
    }

    /// What the peer's next agent has to echo; to be told in every datagram.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The next agent has to echo `nonce`.
    pub fn set_nonce(&mut self, nonce: u64) {
        self.nonce = nonce;
    }

    /// A datagram of `incarnation` with `sequence` that echoes `echo` has come.
    pub fn on_datagram(&mut self, incarnation: u64, sequence: u64, echo: u64) -> Freshness {
        match &mut self.current {
            Some((current, window)) if *current == incarnation => {
                Freshness::Current(window.on_sequence(sequence))
            }
            _ if echo == self.nonce => {
                self.current = Some((incarnation, Window::from(sequence)));
                Freshness::Proved
            }
            _ => Freshness::Unproved,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_number_counts_once() {
        let mut window = Window::default();
        let heard = [1, 2, 5, 5, 3, 3, 4, 0].map(|sequence| window.on_sequence(sequence));
        use Seen::{Again, Late, Newest, TooOld};
        assert_eq!(heard, [Newest, Newest, Newest, Again, Late, Again, Late, TooOld]);
    }

    #[test]
    fn what_the_window_has_left_behind_is_refused() {
        let mut window = Window::default();
        window.on_sequence(1000);
        assert_eq!(window.on_sequence(1000 - WIDTH), Seen::TooOld);
        assert_eq!(window.on_sequence(1001 - WIDTH), Seen::Late);
        assert_eq!(window.on_sequence(u64::MAX), Seen::Newest);
        assert_eq!(window.on_sequence(u64::MAX - 1), Seen::Late);
        assert_eq!(window.on_sequence(1000), Seen::TooOld);
    }

    proptest! {
        #[test]
        fn as_a_set_would_have_it(sequences in prop::collection::vec(prop_oneof![1u64..300, 1u64..=u64::MAX], 1..400)) {
            let (mut window, mut set) = (Window::default(), BTreeSet::new());
            for sequence in sequences {
                let newest = set.last().copied().unwrap_or(0);
                let expected = if sequence > newest {
                    Seen::Newest
                } else if newest - sequence >= WIDTH {
                    Seen::TooOld
                } else if set.contains(&sequence) {
                    Seen::Again
                } else {
                    Seen::Late
                };
                prop_assert_eq!(window.on_sequence(sequence), expected);
                set.insert(sequence);
            }
        }
    }

    #[test]
    fn a_new_life_begins_with_a_round_trip() {
        let mut replay = Replay::new(7);
        assert_eq!(replay.on_datagram(1, 1, 0), Freshness::Unproved);
        assert_eq!(replay.on_datagram(1, 2, 7), Freshness::Proved);
        replay.set_nonce(8);
        assert_eq!(replay.on_datagram(1, 2, 7), Freshness::Current(Seen::Again));
        assert_eq!(
            replay.on_datagram(1, 1, 0),
            Freshness::Current(Seen::Again),
            "before the proof"
        );
        assert_eq!(replay.on_datagram(1, 3, 0), Freshness::Current(Seen::Newest));
        assert_eq!(
            replay.on_datagram(2, 9, 7),
            Freshness::Unproved,
            "an echo of the old nonce"
        );
        assert_eq!(replay.on_datagram(2, 9, 8), Freshness::Proved);
        replay.set_nonce(9);
        assert_eq!(
            replay.on_datagram(1, 4, 8),
            Freshness::Unproved,
            "the old life is over"
        );
    }

    proptest! {
        /// Nothing of what was recorded passes a second time, whatever is played when, in whatever order, also after this node
        /// was started anew.
        #[test]
        fn no_recording_passes(plays in prop::collection::vec((0usize..60, 0u8..6), 1..300)) {
            let (mut next_nonce, mut passed) = (100, BTreeSet::new());
            let mut replay = Replay::new(next_nonce);
            let mut recorded: Vec<(u64, u64, u64)> = Vec::new();
            let (mut incarnation, mut sequence) = (1, 0);
            for (pick, what) in plays {
                let said = match what {
                    0 => {
                        // The peer's agent is started anew.
                        (incarnation, sequence) = (incarnation + 1, 0);
                        continue;
                    }
                    1 if pick < 5 => {
                        // This node is.
                        next_nonce += 1;
                        replay = Replay::new(next_nonce);
                        continue;
                    }
                    1..=3 => {
                        sequence += 1;
                        recorded.push((incarnation, sequence, replay.nonce()));
                        (incarnation, sequence, replay.nonce())
                    }
                    _ if recorded.is_empty() => continue,
                    _ => recorded[pick % recorded.len()],
                };
                let freshness = replay.on_datagram(said.0, said.1, said.2);
                if freshness == Freshness::Proved {
                    next_nonce += 1;
                    replay.set_nonce(next_nonce);
                }
                let is_new = matches!(
                    freshness,
                    Freshness::Proved | Freshness::Current(Seen::Newest | Seen::Late)
                );
                prop_assert!(!is_new || passed.insert((said.0, said.1)), "{said:?} passed twice");
            }
        }
    }
}
