//! When the agent gets the record that the backup's kernel was offered.

/// Longest time in nanoseconds for which the agent does not get what the backup's kernel has. Each part for the agent wakes several threads,
/// on both nodes. The time is long compared with a request, and short compared with the second after which the agents miss receipts.
const DEFER_MAX: u64 = 10_000_000;
/// Number of bytes that are not deferred.
const DEFER_BYTES: usize = 16 << 10;
/// Longest wait in nanoseconds for a receipt of the backup's kernel. Then the record goes over the agents at once, until the kernel answers.
const ANSWER_MAX: u64 = 1_000_000;

/// The record goes to the agent, too, because a datagram may be lost. While the backup's kernel answers, the agent gets it later.
#[derive(Default)]
pub struct Deferral {
    /// Since when a part for the agent is deferred.
    since: Option<u64>,
    /// When the record was last offered to the backup's kernel.
    offered: u64,
}

/// The fate of the part of the record that the agent has not got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deferred {
    /// The agent gets it later.
    Yes,
    /// The agent gets it now.
    No,
    /// The agent gets it now, because the backup's kernel has not answered in time.
    Unanswered,
}

impl Deferral {
    /// The record is offered to the backup's kernel.
    pub fn on_offer(&mut self, now: u64) {
        self.offered = now;
    }

    /// The agent gets all of the record.
    pub fn end(&mut self) {
        self.since = None;
    }

    /// Whether these `unsent` bytes are deferred. `awaits_receipt`: output waits for them.
    pub fn decide(&mut self, now: u64, unsent: usize, awaits_receipt: bool) -> Deferred {
        if unsent == 0 || unsent >= DEFER_BYTES {
            return Deferred::No;
        }
        self.since.get_or_insert(now);
        if awaits_receipt && now >= self.offered + ANSWER_MAX {
            return Deferred::Unanswered;
        }
        if self.due(awaits_receipt).is_some_and(|due| now < due) {
            Deferred::Yes
        } else {
            Deferred::No
        }
    }

    /// When the agent must get the deferred part. `None`: there is none.
    pub fn due(&self, awaits_receipt: bool) -> Option<u64> {
        let due = self.since? + DEFER_MAX;
        Some(if awaits_receipt {
            due.min(self.offered + ANSWER_MAX)
        } else {
            due
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_gets_what_the_kernel_has_a_little_later() {
        let mut deferral = Deferral::default();
        assert_eq!(deferral.due(false), None);
        assert_eq!(deferral.decide(5, 0, false), Deferred::No, "there is nothing");
        assert_eq!(deferral.due(false), None);
        for now in [5, 6, 4 + DEFER_MAX] {
            deferral.on_offer(now);
            assert_eq!(deferral.decide(now, 10, false), Deferred::Yes);
            assert_eq!(deferral.due(false), Some(5 + DEFER_MAX));
        }
        assert_eq!(deferral.decide(5 + DEFER_MAX, 10, false), Deferred::No);
        deferral.end();
        assert_eq!(deferral.due(false), None);
        assert_eq!(
            deferral.decide(6 + DEFER_MAX, 10, false),
            Deferred::Yes,
            "the next part"
        );
        assert_eq!(
            deferral.decide(6 + DEFER_MAX, DEFER_BYTES, false),
            Deferred::No,
            "it is long"
        );
    }

    #[test]
    fn the_agent_gets_at_once_what_the_kernel_does_not_answer() {
        let mut deferral = Deferral::default();
        deferral.on_offer(5);
        assert_eq!(deferral.decide(5, 10, true), Deferred::Yes);
        assert_eq!(deferral.due(true), Some(5 + ANSWER_MAX));
        assert_eq!(deferral.decide(4 + ANSWER_MAX, 10, true), Deferred::Yes);
        assert_eq!(deferral.decide(5 + ANSWER_MAX, 10, true), Deferred::Unanswered);
    }
}
