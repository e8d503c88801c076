//! When a step that has failed is tried again.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Instant;
use crate::action::ServiceAction;

/// Wait before the first try.
const WAIT: Duration = Duration::from_millis(100);
/// The longest wait. Each wait is twice the previous one.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Time after which a further failure counts as new, and not as a repetition of the previous failure.
const CALM: Duration = Duration::from_secs(60);

/// The step that failed for one service, and when it is tried again.
#[derive(Debug, Default)]
pub(super) struct FailedStep {
    why: Option<String>,
    due: Instant,
    wait: Duration,
    /// When a step failed last.
    last: Option<Instant>,
}

impl FailedStep {
    /// Notes a failure. Returns whether it differs from the failure that is already noted.
    pub(super) fn note(&mut self, now: Instant, why: String) -> bool {
        let is_again = self.last.is_some_and(|last| now.since(last) < CALM);
        self.wait = if is_again {
            (self.wait * 2).min(WAIT_MAX)
        } else {
            WAIT
        };
        (self.last, self.due) = (Some(now), now + self.wait);
        let is_news = self.why.as_ref() != Some(&why);
        self.why = Some(why);
        is_news
    }

    /// The step that failed, and the reason. `None` if no step has failed since the last `make_good`.
    pub(super) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Forgets the failure, because its cause is gone. Returns whether there was a failure.
    pub(super) fn make_good(&mut self) -> bool {
        self.why.take().is_some()
    }

    /// Tries the step again, if a try is due.
    pub(super) fn on_timeout(&mut self, now: Instant, actions: &mut VecDeque<ServiceAction>) {
        if self.poll_timeout().is_some_and(|due| now >= due) {
            self.due = now + WAIT_MAX; // if this try fails, `note` sets the time of the next one
            actions.push_back(ServiceAction::Mend);
        }
    }

    /// When the step is tried again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.why.as_ref().map(|_| self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::fixture::at;

    /// The wait doubles after each failure, up to five seconds. After a calm time, the first wait is short again.
    #[test]
    fn tries_are_bounded() {
        let mut failure = FailedStep::default();
        let mut tries = Vec::new();
        assert!(failure.note(at(0), "why".to_owned()));
        let mut actions = VecDeque::new();
        for millis in (0..30_000).step_by(10) {
            failure.on_timeout(at(millis), &mut actions);
            if actions.pop_front().is_some() {
                tries.push(millis);
                assert!(!failure.note(at(millis), "why".to_owned()), "no news");
            }
        }
        assert_eq!(
            tries,
            [100, 300, 700, 1500, 3100, 6300, 11300, 16300, 21300, 26300]
        );
        failure.why = None;
        failure.note(at(200_000), "why".to_owned());
        assert_eq!(failure.poll_timeout(), Some(at(200_100)));
    }
}
