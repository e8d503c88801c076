//! A service's doubt whether the other node has gone on alone. `service/doubt.rs` says when it begins, and what it means.

use crate::Instant;

/// A service's doubt on one node.
#[derive(Debug, Default)]
pub(crate) struct ServiceDoubt {
    /// When this node came into doubt. `None` if it is not in doubt.
    since: Option<Instant>,
    /// When the agent came back, if it was away for too long during a takeover. The takeover's steps wait until the other node has said
    /// what that node did meanwhile.
    interrupted: Option<Instant>,
}

impl ServiceDoubt {
    /// Begins a doubt. Only an answer to a heartbeat sent at `since` or later ends it.
    pub(crate) fn begin(&mut self, since: Instant) {
        self.since = Some(since);
    }

    /// When this node came into doubt. `None` if it is not in doubt.
    pub(crate) const fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Whether this node is in doubt.
    pub(crate) const fn exists(&self) -> bool {
        self.since.is_some()
    }

    /// The other node confirms that it has not gone on alone. `echo` is when this node sent the last heartbeat that the other node has
    /// heard. Returns whether that ends the doubt.
    pub(crate) fn confirm(&mut self, echo: Option<Instant>) -> bool {
        let is_answer = |since: &mut Instant| echo.is_some_and(|echo| echo >= *since);
        self.since.take_if(is_answer).is_some()
    }

    /// Ends the doubt without a confirmation. Returns whether there was a doubt.
    pub(crate) fn end(&mut self) -> bool {
        self.since.take().is_some()
    }

    /// The agent came back at `now` during a takeover.
    pub(crate) fn interrupt(&mut self, now: Instant) {
        self.interrupted = Some(now);
    }

    /// Whether a takeover waits for the other node's word.
    pub(crate) const fn is_interrupted(&self) -> bool {
        self.interrupted.is_some()
    }

    /// The other node was heard during a takeover. An answer to a heartbeat sent since the interruption ends the interruption. `echo` is as
    /// in [`confirm`](Self::confirm).
    pub(crate) fn hear(&mut self, echo: Option<Instant>) {
        self.interrupted
            .take_if(|since| echo.is_some_and(|echo| echo >= *since));
    }

    /// Ends the interruption. Returns when it began, if there was one.
    pub(crate) fn end_interruption(&mut self) -> Option<Instant> {
        self.interrupted.take()
    }
}
