//! The state of a string in the data path, which outlives the agent.

/// How the data path handles the packets of a string's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringSteering {
    /// They are sent into the string.
    Up,
    /// They are dropped, after they were copied.
    Held,
    /// Their flows get another string.
    Down,
}

/// The properties of a string that the data path does not use, and that an agent keeps there for its successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptString {
    /// Number of its failures that the edges have counted.
    pub epoch: u64,
    /// Whether both edges have heard it.
    pub was_up: bool,
}

/// A string as an earlier agent left it in the data path.
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
