//! Decides which datagrams of the peer are new: each datagram counts once, and a replayed recording never counts.
//!
//! Within one life of the peer's agent (an *incarnation*), a sliding window over the sequence numbers decides (RFC 4303 §3.4.3,
//! RFC 6479). A new incarnation must first prove that it lives now, by echoing the nonce that this node sends. The nonce is drawn
//! anew after each incarnation that is accepted, and at each start of this node. So no recording of an earlier life of either
//! node passes.

/// Width of the window, in sequence numbers. Older numbers are refused.
const WIDTH: u64 = u128::BITS as u64;

/// Verdict on a sequence number, compared to those that came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayVerdict {
    /// The number is the newest.
    Newest,
    /// The number is new, but newer numbers came first.
    Late,
    /// The number has come already: by another link, or as a replayed recording.
    Again,
    /// The number is too old to tell whether it has come already.
    TooOld,
}

/// The sequence numbers that have come, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    newest: u64,
    /// Bit n is set if `newest` − n has come.
    come: u128,
}

impl Window {
    /// A window in which every number up to `sequence` counts as received.
    pub fn from(sequence: u64) -> Self {
        Self {
            newest: sequence,
            come: u128::MAX,
        }
    }

    /// Notes that `sequence` has come.
    pub fn on_sequence(&mut self, sequence: u64) -> ReplayVerdict {
        if sequence > self.newest {
            let ahead = sequence - self.newest;
            self.come = if ahead < WIDTH { self.come << ahead | 1 } else { 1 };
            self.newest = sequence;
            return ReplayVerdict::Newest;
        }
        let behind = self.newest - sequence;
        if behind >= WIDTH || sequence == 0 {
            return ReplayVerdict::TooOld;
        }
        let bit = 1 << behind;
        if self.come & bit != 0 {
            return ReplayVerdict::Again;
        }
        self.come |= bit;
        ReplayVerdict::Late
    }
}

/// Verdict on a datagram of the peer. The caller has already checked the sender, by the key or by the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The peer's current agent sent it.
    Current(ReplayVerdict),
    /// An agent that was unknown has proved that it lives now. The caller must draw a new nonce for the next agent.
    Proved,
    /// The sender is an agent that has not yet proved that it lives now, or the datagram is a recording.
    Unproved,
}

/// Distinguishes new datagrams of the peer's current agent from recordings of earlier datagrams.
#[derive(Clone, Copy, Debug)]
pub struct AntiReplay {
    nonce: u64,
    current: Option<(u64, Window)>,
}

impl AntiReplay {
    /// An `AntiReplay` that has heard nothing. Like all later nonces, `nonce` must be unpredictable and not 0.
    pub fn new(nonce: u64) -> Self {
        Self { nonce, current: None }
    }

    /// The nonce that the peer's next agent must echo. Send this nonce in every datagram.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Sets the nonce that the peer's next agent must echo.
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
        use ReplayVerdict::{Again, Late, Newest, TooOld};
        assert_eq!(heard, [Newest, Newest, Newest, Again, Late, Again, Late, TooOld]);
    }

    #[test]
    fn what_the_window_has_left_behind_is_refused() {
        let mut window = Window::default();
        window.on_sequence(1000);
        assert_eq!(window.on_sequence(1000 - WIDTH), ReplayVerdict::TooOld);
        assert_eq!(window.on_sequence(1001 - WIDTH), ReplayVerdict::Late);
        assert_eq!(window.on_sequence(u64::MAX), ReplayVerdict::Newest);
        assert_eq!(window.on_sequence(u64::MAX - 1), ReplayVerdict::Late);
        assert_eq!(window.on_sequence(1000), ReplayVerdict::TooOld);
    }

    proptest! {
        #[test]
        fn as_a_set_would_have_it(sequences in prop::collection::vec(prop_oneof![1u64..300, 1u64..=u64::MAX], 1..400)) {
            let (mut window, mut set) = (Window::default(), BTreeSet::new());
            for sequence in sequences {
                let newest = set.last().copied().unwrap_or(0);
                let expected = if sequence > newest {
                    ReplayVerdict::Newest
                } else if newest - sequence >= WIDTH {
                    ReplayVerdict::TooOld
                } else if set.contains(&sequence) {
                    ReplayVerdict::Again
                } else {
                    ReplayVerdict::Late
                };
                prop_assert_eq!(window.on_sequence(sequence), expected);
                set.insert(sequence);
            }
        }
    }

    #[test]
    fn a_new_life_begins_with_a_round_trip() {
        let mut anti_replay = AntiReplay::new(7);
        assert_eq!(anti_replay.on_datagram(1, 1, 0), Freshness::Unproved);
        assert_eq!(anti_replay.on_datagram(1, 2, 7), Freshness::Proved);
        anti_replay.set_nonce(8);
        assert_eq!(
            anti_replay.on_datagram(1, 2, 7),
            Freshness::Current(ReplayVerdict::Again)
        );
        assert_eq!(
            anti_replay.on_datagram(1, 1, 0),
            Freshness::Current(ReplayVerdict::Again),
            "before the proof"
        );
        assert_eq!(
            anti_replay.on_datagram(1, 3, 0),
            Freshness::Current(ReplayVerdict::Newest)
        );
        assert_eq!(
            anti_replay.on_datagram(2, 9, 7),
            Freshness::Unproved,
            "an echo of the old nonce"
        );
        assert_eq!(anti_replay.on_datagram(2, 9, 8), Freshness::Proved);
        anti_replay.set_nonce(9);
        assert_eq!(
            anti_replay.on_datagram(1, 4, 8),
            Freshness::Unproved,
            "the old life is over"
        );
    }

    proptest! {
        /// No recorded datagram passes a second time, whenever and in whatever order recordings are played, even after this node
        /// was started anew.
        #[test]
        fn no_recording_passes(plays in prop::collection::vec((0usize..60, 0u8..6), 1..300)) {
            let (mut next_nonce, mut passed) = (100, BTreeSet::new());
            let mut anti_replay = AntiReplay::new(next_nonce);
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
                        // This node is started anew.
                        next_nonce += 1;
                        anti_replay = AntiReplay::new(next_nonce);
                        continue;
                    }
                    1..=3 => {
                        sequence += 1;
                        recorded.push((incarnation, sequence, anti_replay.nonce()));
                        (incarnation, sequence, anti_replay.nonce())
                    }
                    _ if recorded.is_empty() => continue,
                    _ => recorded[pick % recorded.len()],
                };
                let freshness = anti_replay.on_datagram(said.0, said.1, said.2);
                if freshness == Freshness::Proved {
                    next_nonce += 1;
                    anti_replay.set_nonce(next_nonce);
                }
                let is_new = matches!(
                    freshness,
                    Freshness::Proved | Freshness::Current(ReplayVerdict::Newest | ReplayVerdict::Late)
                );
                prop_assert!(!is_new || passed.insert((said.0, said.1)), "{said:?} passed twice");
            }
        }
    }
}
