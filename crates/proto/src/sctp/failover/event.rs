//! The input and the output of failover policies: events, and moves of new data.

/// Events of an association's destinations. *Used* is the destination of new data. In Phase I it is the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverEvent {
    /// A timeout on the used destination that does not make it fail.
    UsedTimeout,
    /// The used destination fails, and another destination is active.
    UsedFailed,
    /// A timeout on the unused primary that does not make it fail.
    ProbeTimeout,
    /// The unused primary fails, and another destination is active.
    ProbeFailed,
    /// A destination fails, and no destination is active.
    LastFailed,
    /// The primary answers.
    PrimaryAnswers,
    /// An answer came from an alternate that had failed, or that was not known to belong to the peer.
    AlternateAnswers,
    /// The primary has more errors in a row than the change-over threshold.
    ChangeOver,
}

/// Destination of new data after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverMove {
    /// The same destination as before.
    Stay,
    /// The primary.
    Primary,
    /// The next destination in the ring that has not failed. If all have failed, the next destination.
    Next,
    /// The next destination in the ring, failed or not.
    Hop,
    /// The destination that answered.
    Answerer,
    /// The same destination as before, which is the primary from now on.
    Promote,
    /// The best destination, judged by the states of all destinations (RFC 7829 §3.2).
    Rank,
}

impl FailoverEvent {
    /// All events.
    pub const ALL: [Self; 8] = [
        Self::UsedTimeout,
        Self::UsedFailed,
        Self::ProbeTimeout,
        Self::ProbeFailed,
        Self::LastFailed,
        Self::PrimaryAnswers,
        Self::AlternateAnswers,
        Self::ChangeOver,
    ];
}
