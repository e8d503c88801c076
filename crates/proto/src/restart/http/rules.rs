//! What an operator lets be done about replies that a dead server owes.

use super::Reexecute;

/// How unanswered requests are dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which of them are executed again.
    pub reexecute: Reexecute,
    /// Of a reply that was cut, an application is asked for the rest only, where a strong ETag identifies its content ([`Rest`](super::Rest)).
    pub ranges: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            reexecute: Reexecute::default(),
            ranges: true,
        }
    }
}
