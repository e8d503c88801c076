//! Whether a connection would be continued, and if not, why.

/// Whether a takeover can continue a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protection {
    /// It can.
    Protected,
    /// Two different copies of the same bytes were seen; nobody can say which one the primary took.
    Ambiguous,
    /// It cannot, for this reason.
    Unprotected(Cause),
}

/// Why a connection is not protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A side acknowledged bytes that are not in the log.
    Hole,
    /// The log would have grown over its limit.
    LogLimit,
    /// Packets passed without being logged, because the agent was away for too long.
    LogGap,
    /// It began before the agent did: nothing is logged of its beginning.
    Older,
    /// The restart policy says so.
    Policy(String),
}

impl std::fmt::Display for Protection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Protected => write!(f, "protected"),
            Self::Ambiguous => write!(f, "conflicting copies of the same bytes were seen"),
            Self::Unprotected(cause) => write!(f, "{cause}"),
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hole => write!(f, "a byte was acknowledged that is not in the log"),
            Self::LogLimit => write!(f, "the log reached its limit"),
            Self::LogGap => write!(f, "packets passed unlogged while the agent was away"),
            Self::Older => write!(f, "older than this agent"),
            Self::Policy(reason) => write!(f, "{reason}"),
        }
    }
}
