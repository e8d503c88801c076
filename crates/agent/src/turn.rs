//! One turn of the agent: its steps and their order.

/// A step of a turn. The agent carries out the node's actions after each step, and after each message of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnStep {
    /// Tells the node if this machine was paused. After a pause, earlier leases no longer count. So this step precedes any decision that
    /// depends on the clock.
    #[default]
    LookForPause,
    /// Records that an agent is running. Tells the node whether packets passed unlogged.
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

/// Whether `message` is a heartbeat, and another heartbeat of the same agent is among the `later` messages that have arrived. Only the
/// latest heartbeat of an agent counts: it has the peer's present state, and the node must not act on earlier states. An agent that was
/// started later does not know the states before its start, for example that its node had taken over. So the latest heartbeat of each agent
/// counts, not only the latest of all.
///
/// `agent_of` tells the incarnation of the agent that sent a heartbeat. `None` for other messages.
pub fn is_superseded<'a, T: 'a>(
    message: &T,
    later: impl IntoIterator<Item = &'a T>,
    agent_of: impl Fn(&T) -> Option<u64>,
) -> bool {
    let agent = agent_of(message);
    agent.is_some() && later.into_iter().any(|other| agent_of(other) == agent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_heartbeat_of_each_agent_counts() {
        let arrived = [Some(1), None, Some(1), Some(2), Some(2)]; // incarnations; `None` is another message
        let counts = (0..arrived.len())
            .map(|index| !is_superseded(&arrived[index], &arrived[index + 1..], |agent| *agent));
        assert_eq!(counts.collect::<Vec<_>>(), [false, true, true, false, true]);
    }

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
