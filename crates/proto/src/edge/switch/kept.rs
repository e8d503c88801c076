//! The part of a string's state that is stored in the data path. It outlives the agent.

use std::time::Duration;

use crate::Instant;

/// How the data path handles the packets of a string's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringSteering {
    /// The packets are sent into the string.
    Up,
    /// The packets are copied, then dropped.
    Held,
    /// The flows get another string.
    Down,
}

/// Properties of a string that an agent stores in the data path for its successor. The data path does not use them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptString {
    /// Number of the string's failures that the edges have counted.
    pub epoch: u64,
    /// Whether both edges have ever heard the string.
    pub was_up: bool,
    /// When both edges last ceased to hear the string, and how long they must hear it before it returns. `None` if they always heard it.
    pub last_loss: Option<(Instant, Duration)>,
}

/// The state of a string that an earlier agent left in the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptedString {
    /// The argument of the last `EdgeAction::Keep`.
    pub kept: KeptString,
    /// The argument of the last `EdgeAction::SetSteering`.
    pub steering: StringSteering,
    /// The argument of the last `EdgeAction::SetCap`.
    pub cap: Option<u32>,
}

impl Default for AdoptedString {
    /// A string that no agent has used.
    fn default() -> Self {
        Self {
            kept: KeptString::default(),
            steering: StringSteering::Up,
            cap: None,
        }
    }
}
