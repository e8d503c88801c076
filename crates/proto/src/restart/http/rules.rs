//! The operator's rules for replies that a dead server still owes.

use super::Reexecute;
use serde::{Deserialize, Serialize};

/// How unanswered requests are handled after a takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Which unanswered requests are executed again.
    pub reexecute: Reexecute,
    /// If a reply was cut and a strong ETag identifies its content, ask the application only for the rest
    /// ([`Rest`](super::Rest)).
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
