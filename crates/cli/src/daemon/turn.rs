//! One turn of the agent's loop: its steps and their order.

/// Maximum number of log records that one turn reads.
pub(super) const BATCH: usize = 4096;

/// The steps of a turn.
pub(super) trait TurnSteps {
    /// Tells the node if this machine was paused. After a pause, earlier leases no longer count.
    fn look_for_pause(&mut self);
    /// Records that an agent is running. Tells the node which packets passed unlogged while no agent was running.
    fn check_in(&mut self);
    /// Reads up to [`BATCH`] records of the log, and returns their number.
    fn read_log(&mut self) -> usize;
    /// Carries out the node's actions.
    fn carry_out(&mut self);
    /// Passes the peer's messages to the node.
    fn hear_peer(&mut self);
    /// Tells the node the state of its applications, its arbiter and its network.
    fn watch(&mut self);
    /// Tells the node what time it is.
    fn pass_time(&mut self);
    /// Answers the operator's requests.
    fn answer_calls(&mut self);
    /// Starts the upgrade in place if one was asked for and is possible now.
    fn look_for_upgrade(&mut self);
    /// Waits until there may be something to do. This turn read `handled` records.
    fn rest(&mut self, handled: usize);
}

/// Takes one turn.
pub(super) fn take(agent: &mut impl TurnSteps) {
    agent.look_for_pause(); // before any decision that depends on the clock
    agent.check_in();
    let handled = agent.read_log();
    agent.carry_out();
    agent.hear_peer();
    agent.watch();
    agent.pass_time();
    agent.carry_out(); // no action may be pending when the next turn checks in
    agent.answer_calls();
    agent.look_for_upgrade();
    if handled < BATCH {
        agent.rest(handled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the steps that were taken. The log has `records` records.
    struct Recorder {
        records: usize,
        done: Vec<&'static str>,
    }

    impl TurnSteps for Recorder {
        fn look_for_pause(&mut self) {
            self.done.push("look for a pause");
        }
        fn check_in(&mut self) {
            self.done.push("check in");
        }
        fn read_log(&mut self) -> usize {
            self.done.push("read the log");
            self.records
        }
        fn carry_out(&mut self) {
            self.done.push("carry out");
        }
        fn hear_peer(&mut self) {
            self.done.push("hear the peer");
        }
        fn watch(&mut self) {
            self.done.push("watch");
        }
        fn pass_time(&mut self) {
            self.done.push("pass time");
        }
        fn answer_calls(&mut self) {
            self.done.push("answer calls");
        }
        fn look_for_upgrade(&mut self) {
            self.done.push("look for an upgrade");
        }
        fn rest(&mut self, handled: usize) {
            assert_eq!(handled, self.records);
            self.done.push("rest");
        }
    }

    #[test]
    fn a_turn_forgets_nothing() {
        let all = [
            "look for a pause",
            "check in",
            "read the log",
            "carry out",
            "hear the peer",
            "watch",
            "pass time",
            "carry out",
            "answer calls",
            "look for an upgrade",
            "rest",
        ];
        for (records, expected) in [(0, &all[..]), (BATCH - 1, &all[..]), (BATCH, &all[..10])] {
            let mut recorder = Recorder {
                records,
                done: Vec::new(),
            };
            take(&mut recorder);
            assert_eq!(recorder.done, expected, "{records} records");
        }
    }
}
