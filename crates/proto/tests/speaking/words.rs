//! Words on their way between the modelled nodes.

use proto::Instant;
use proto::standing::StandingBeat;
use steadfast_proto as proto;

/// Length of a tick, in nanoseconds.
pub const TICK: u64 = 100_000_000;

/// The origin of a word: the number of the agent that sent it, the tick of its sending, and `is_after`. `is_after` is false if the node
/// became mute later in that tick and is still mute. The origin of a later word compares as greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WordOrigin {
    pub agent: u8,
    pub sent: u64,
    pub is_after: bool,
}

impl WordOrigin {
    /// When the word was sent. If the node became mute later in the same tick, the word counts as sent just before the tick.
    pub fn at(self) -> Instant {
        Instant::from_nanos(self.sent * TICK - u64::from(!self.is_after))
    }
}

/// A word on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SentWord {
    pub made: WordOrigin,
    /// The last word that the sender had heard. The receiver accepts `heard` as an echo only if the receiver's present agent sent that word
    /// (`proto::node` and `proto::anti_replay`).
    pub heard: Option<WordOrigin>,
    pub word: StandingBeat,
}
