//! The kernel of a modelled node, as far as it sends a primary's output past the wire (commit mode `pr`).

use proto::Instant;
use proto::role::Role;
use proto::standing::{Standing, StandingBeat};
use steadfast_proto as proto;

/// What a node's kernel may send past the wire, and what its agent has heard about that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OutputPastWire {
    /// Until when the kernel sends directly, if the node is the primary.
    until: Option<Instant>,
    /// The epoch in which the other node, as the backup, waits for the end of direct output. `None` if its last word does not say so.
    waiting_in: Option<u64>,
}

impl OutputPastWire {
    /// The other node says `word`.
    pub fn hear(&mut self, word: &StandingBeat) {
        self.waiting_in = (word.role == Role::Backup && word.direct).then_some(word.epoch);
    }

    /// Follows every step of the agent, as `Service::judge_direct` does.
    pub fn follow(&mut self, standing: &mut Standing, now: Instant) {
        standing.set_direct(now, self.waiting_in == Some(standing.epoch()));
        self.until = standing.direct_until();
    }

    /// Whether the kernel sends directly at `now`. `has_no_end`: it ignores the end of its lease.
    pub fn is_sent(&self, standing: &Standing, now: Instant, has_no_end: bool) -> bool {
        let is_primary = matches!(standing.role(), Role::Primary | Role::Claiming);
        is_primary && self.until.is_some_and(|until| now < until || has_no_end)
    }
}
