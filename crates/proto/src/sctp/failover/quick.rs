//! The states of one destination (RFC 9260 §8.2, RFC 7829 §3).
//!
//! ```text
//!            errors > PFMR                        errors > PMR
//!   Active ─────────────────▶ PotentiallyFailed ─────────────────▶ Failed
//!     ▲ ◀───── Answered ──────────┘                                  │
//!     └──────────────────────── Answered ────────────────────────────┘
//! ```
//!
//! Without RFC 7829 there is no PFMR, and a destination goes from Active to Failed.

/// State of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// It gets new data.
    Active,
    /// It gets new data only if no destination is active, and is probed once per RTO.
    PotentiallyFailed,
    /// It gets new data only if all have failed, and is probed.
    Failed,
}

/// Events of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReachEvent {
    /// A timeout, and the errors in a row exceed no threshold.
    Timeout,
    /// A timeout, and the errors in a row exceed PFMR but not PMR.
    Doubtful,
    /// A timeout, and the errors in a row exceed PMR.
    Exceeded,
    /// Something sent to it was acknowledged.
    Answered,
}

impl Reach {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Active, Self::PotentiallyFailed, Self::Failed];

    /// The state after an event.
    pub const fn after(self, event: ReachEvent) -> Self {
        match (self, event) {
            (Self::Active | Self::PotentiallyFailed | Self::Failed, ReachEvent::Answered) => Self::Active,
            (Self::Active | Self::PotentiallyFailed | Self::Failed, ReachEvent::Exceeded) => Self::Failed,
            (Self::Active, ReachEvent::Timeout) => Self::Active,
            (Self::Active | Self::PotentiallyFailed, ReachEvent::Doubtful) => Self::PotentiallyFailed,
            (Self::PotentiallyFailed, ReachEvent::Timeout) => Self::PotentiallyFailed,
            (Self::Failed, ReachEvent::Timeout | ReachEvent::Doubtful) => Self::Failed,
        }
    }
}

impl ReachEvent {
    /// All events.
    pub const ALL: [Self; 4] = [Self::Timeout, Self::Doubtful, Self::Exceeded, Self::Answered];
}
