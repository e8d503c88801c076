//! Decides when the opening end calls the serving end (starts an association), and how clients that connect are treated. No I/O.
//!
//! ```text
//!   connections can be opened            ──▶ clients are taken
//!   none can be opened, for a short time ──▶ clients wait in the listener's queue
//!   none can be opened, for CLIENTS_WAIT ──▶ clients are refused by a RST, so that they need not wait
//!   accept(2) fails                      ──▶ nothing is accepted for ACCEPT_PAUSE
//! ```

use std::time::Duration;

use super::TunnelRole;
use crate::Instant;

/// Pause between two calls to the serving end.
pub const RECALL: Duration = Duration::from_secs(1);
/// Clients wait this long for an association, or for a free stream. After that they are refused by a RST.
pub const CLIENTS_WAIT: Duration = Duration::from_secs(3);
/// Pause after a failure to accept a client. Most likely there are no file descriptors left, so an immediate retry would not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Treatment of clients that have connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientVerdict {
    /// Accept them, and open a connection for each.
    Take,
    /// Leave them in the listener's queue.
    Wait,
    /// Accept them, and reset them.
    Refuse,
}

/// Calls and clients of an opening end. At a serving end, no call is ever due.
#[derive(Clone, Debug)]
pub struct TunnelReception {
    role: TunnelRole,
    /// When the serving end is called.
    calls_at: Option<Instant>,
    /// Time since which no connection can be opened.
    closed_since: Option<Instant>,
    /// Time until which no client is accepted.
    pauses_until: Option<Instant>,
    /// A failure to accept was reported, and no client was accepted since.
    is_failure_told: bool,
}

impl TunnelReception {
    /// An end that starts: the first call is due.
    pub fn new(role: TunnelRole, now: Instant) -> Self {
        Self {
            role,
            calls_at: (role == TunnelRole::Opening).then_some(now),
            closed_since: Some(now),
            pauses_until: None,
            is_failure_told: false,
        }
    }

    /// Whether the serving end is to be called now. If the call fails, report [`on_lost`](Self::on_lost).
    pub fn takes_call(&mut self, now: Instant) -> bool {
        let is_due = self.calls_at.is_some_and(|at| now >= at);
        if is_due {
            self.calls_at = None;
        }
        is_due
    }

    /// There is no association any more, or a call failed.
    pub fn on_lost(&mut self, now: Instant) {
        if self.role == TunnelRole::Opening {
            self.calls_at.get_or_insert(now + RECALL);
        }
    }

    /// Notes whether a connection can be opened now: an association is ready, and one of its streams is free.
    pub fn on_room(&mut self, now: Instant, has_room: bool) {
        if has_room {
            self.closed_since = None;
        } else {
            self.closed_since.get_or_insert(now);
        }
    }

    /// Treatment of clients now.
    pub fn verdict(&self, now: Instant) -> ClientVerdict {
        if self.pauses_until.is_some_and(|until| now < until) {
            return ClientVerdict::Wait;
        }
        match self.closed_since {
            None => ClientVerdict::Take,
            Some(since) if now >= since + CLIENTS_WAIT => ClientVerdict::Refuse,
            Some(_) => ClientVerdict::Wait,
        }
    }

    /// A client was accepted.
    pub fn on_accepted(&mut self) {
        self.pauses_until = None;
        self.is_failure_told = false;
    }

    /// accept(2) failed. Returns whether to log this failure: only the first one since the last success is logged.
    pub fn on_accept_failed(&mut self, now: Instant) -> bool {
        self.pauses_until = Some(now + ACCEPT_PAUSE);
        !std::mem::replace(&mut self.is_failure_told, true)
    }

    /// When [`verdict`](Self::verdict) or [`takes_call`](Self::takes_call) changes its answer, if nothing happens before.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let refuses_at = self.closed_since.map(|since| since + CLIENTS_WAIT);
        [refuses_at, self.pauses_until]
            .into_iter()
            .flatten()
            .filter(|at| *at > now)
            .chain(self.calls_at)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn the_serving_end_is_called_at_once_and_a_second_after_a_loss() {
        let mut reception = TunnelReception::new(TunnelRole::Opening, at(0));
        assert!(reception.takes_call(at(0)));
        assert!(!reception.takes_call(at(5000)), "one call at a time");
        reception.on_lost(at(6000));
        reception.on_lost(at(6500));
        assert_eq!(reception.poll_timeout(at(6500)), Some(at(7000)));
        assert!(!reception.takes_call(at(6999)));
        assert!(reception.takes_call(at(7000)));
    }

    #[test]
    fn the_serving_end_calls_nobody() {
        let mut reception = TunnelReception::new(TunnelRole::Serving, at(0));
        reception.on_lost(at(0));
        assert!(!reception.takes_call(at(9000)));
    }

    #[test]
    fn clients_wait_for_room_and_are_refused_after_three_seconds_without() {
        let mut reception = TunnelReception::new(TunnelRole::Opening, at(0));
        reception.on_room(at(1000), false);
        assert_eq!(reception.verdict(at(2999)), ClientVerdict::Wait);
        assert!(reception.takes_call(at(2999)));
        assert_eq!(reception.poll_timeout(at(2999)), Some(at(3000)));
        assert_eq!(reception.verdict(at(3000)), ClientVerdict::Refuse);
        reception.on_room(at(4000), true);
        assert_eq!(reception.verdict(at(4000)), ClientVerdict::Take);
        assert_eq!(reception.poll_timeout(at(4000)), None);
        // All streams are in use: the time begins anew.
        reception.on_room(at(5000), false);
        assert_eq!(reception.verdict(at(7999)), ClientVerdict::Wait);
        assert_eq!(reception.verdict(at(8000)), ClientVerdict::Refuse);
    }

    #[test]
    fn a_failure_to_accept_is_told_once_and_pauses() {
        let mut reception = TunnelReception::new(TunnelRole::Opening, at(0));
        reception.on_room(at(0), true);
        assert!(reception.takes_call(at(0)));
        assert!(reception.on_accept_failed(at(10)));
        assert_eq!(reception.verdict(at(109)), ClientVerdict::Wait);
        assert_eq!(reception.poll_timeout(at(10)), Some(at(110)));
        assert_eq!(reception.verdict(at(110)), ClientVerdict::Take);
        assert!(!reception.on_accept_failed(at(110)), "told already");
        assert_eq!(reception.verdict(at(209)), ClientVerdict::Wait);
        reception.on_accepted();
        assert_eq!(reception.verdict(at(210)), ClientVerdict::Take);
        assert!(reception.on_accept_failed(at(300)));
    }
}
