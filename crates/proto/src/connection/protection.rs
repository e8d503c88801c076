//! Whether a takeover would continue a connection, and if not, why.

use crate::follower::RestartPolicy;
use crate::spill::LogFull;

/// Whether a takeover can continue a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A takeover can continue the connection.
    Protected,
    /// Two different copies of the same bytes were seen. It is not known which copy the primary took.
    Ambiguous,
    /// A takeover cannot continue the connection, for this reason.
    Unprotected(UnprotectedCause),
}

/// Why a connection is not protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnprotectedCause {
    /// A side acknowledged bytes that are not in the log.
    Hole,
    /// The log would have grown over its limit.
    Full(LogFull),
    /// Packets passed without being logged, because the agent was away for too long.
    LogGap,
    /// Packets passed without being logged, because the log was full and the commit mode is `immediate`.
    LogWasFull,
    /// The connection began before the log. Policy `http` follows it from its next exchange on ([`learn`](crate::learn)).
    Older(RestartPolicy),
    /// As `Older`, and neither side has sent anything since the log began.
    Silent(RestartPolicy),
    /// As `Older`, but the connection cannot be followed from its next exchange on, for this reason.
    NotLearnt(String),
    /// The connection uses Multipath TCP. The log of one path may lack bytes, and no kernel restores such a connection.
    Multipath,
    /// The connection's segments are signed with a key (TCP MD5, TCP-AO) that only the sockets have.
    Signed,
    /// Urgent data was sent. A socket option that no packet shows (SO_OOBINLINE) decides whether the urgent byte is in the stream.
    Urgent,
    /// The connection was opened before the replica's server had the primary's state.
    NotSynced,
    /// The replica's server has diverged from the primary's record.
    Diverged,
    /// The restart policy cannot continue the connection, for this reason.
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

impl std::fmt::Display for UnprotectedCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hole => write!(f, "a byte was acknowledged that is not in the log"),
            Self::Full(full) => write!(f, "{full}"),
            Self::LogGap => write!(f, "packets may have passed unlogged while the agent was away"),
            Self::LogWasFull => write!(
                f,
                "packets may have passed unlogged while the log was full (commit mode immediate)"
            ),
            Self::Older(RestartPolicy::Http) => write!(
                f,
                "older than the wire; protected once its next request is answered"
            ),
            Self::Older(RestartPolicy::Replica) => {
                write!(f, "older than the wire; replicas begin with their connections")
            }
            Self::Older(RestartPolicy::Snapshot) => write!(
                f,
                "older than the wire; protected once its application exports its state"
            ),
            Self::Silent(RestartPolicy::Snapshot) => write!(
                f,
                "older than the wire, and silent; protected once its application exports its state"
            ),
            Self::Older(RestartPolicy::Replay) => {
                write!(
                    f,
                    "older than the wire, which did not see the connection's first bytes"
                )
            }
            Self::Silent(RestartPolicy::Http) => write!(
                f,
                "older than the wire, and silent; protected once its next request is answered"
            ),
            Self::Silent(RestartPolicy::Replica) => write!(
                f,
                "older than the wire, and silent; replicas begin with their connections"
            ),
            Self::Silent(RestartPolicy::Replay) => {
                write!(
                    f,
                    "older than the wire, and silent; the wire did not see the connection's first bytes"
                )
            }
            Self::NotSynced => write!(
                f,
                "opened before the replica had the primary's state (state_sync)"
            ),
            Self::Diverged => write!(
                f,
                "the replica's server has diverged from the record; restart both servers"
            ),
            Self::Multipath => write!(f, "Multipath TCP: its paths cannot be restored"),
            Self::Signed => write!(
                f,
                "its segments are signed (TCP MD5 or TCP-AO), and the keys are not restored"
            ),
            Self::Urgent => write!(
                f,
                "urgent data was sent, and a restored socket cannot tell it from other data"
            ),
            Self::NotLearnt(reason) => write!(f, "older than the wire, and not learnt: {reason}"),
            Self::Policy(reason) => write!(f, "{reason}"),
        }
    }
}
