//! One turn of the agent: its steps and their order.

/// A step of a turn. The agent carries out the node's actions after each step, and after each message of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnStep {
    /// Tells the node if this machine was paused. After a pause, earlier leases no longer count. So this comes before any decision that
    /// depends on the clock.
    #[default]
    LookForPause,
    /// Records that an agent is running. Tells the node which packets passed unlogged while no agent was running.
    CheckIn,
    /// Reads the log.
    ReadLog,
    /// Passes the peer's messages to the node, except heartbeats that are superseded ([`is_superseded`]).
    HearPeer,
    /// Tells the node the state of its applications, its arbiter and its network.
    Watch,
    /// Tells the node what time it is.
    PassTime,
    /// Answers the operator's requests.
    AnswerCalls,
    /// Starts the upgrade in place if one was asked for and is possible now.
    LookForUpgrade,
    /// Waits until there may be something to do.
    Rest,
}

impl TurnStep {
    /// All steps, in order.
    pub const ALL: [Self; 9] = [
        Self::LookForPause,
        Self::CheckIn,
        Self::ReadLog,
        Self::HearPeer,
        Self::Watch,
        Self::PassTime,
        Self::AnswerCalls,
        Self::LookForUpgrade,
        Self::Rest,
    ];

    /// The next step. After the last one, a new turn begins.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }
}

/// Whether `message` is a heartbeat, and another heartbeat is among the `later` messages that have arrived. Only the latest heartbeat
/// counts: it has the peer's state, and the node must not act on the states before.
pub fn is_superseded<'a, T: 'a>(
    message: &T,
    later: impl IntoIterator<Item = &'a T>,
    is_heartbeat: impl Fn(&T) -> bool,
) -> bool {
    is_heartbeat(message) && later.into_iter().any(is_heartbeat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_takes_every_step_once() {
        let mut step = TurnStep::default();
        for expected in TurnStep::ALL {
            assert_eq!(step, expected);
            step = step.next();
        }
        assert_eq!(step, TurnStep::default());
    }
}
