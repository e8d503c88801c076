//! Rules that a node breaks on purpose, so that the simulator can check whether its checkers notice.

use super::Node;

/// Rules that are broken.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// A takeover goes on though the right to speak has ended.
    pub decides_mute: bool,
    /// An agent that was stopped for a long time trusts its gate.
    pub trusts_absence: bool,
    /// A node in doubt takes the silence of the other node's agent for death, although that node's kernel answers.
    pub waits_for_nobody: bool,
}

impl Node {
    /// Breaks these rules from now on.
    #[doc(hidden)]
    pub const fn break_rules(&mut self, broken: Broken) {
        self.broken = broken;
    }
}
