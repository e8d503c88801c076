//! A service's path breaks while both nodes live and hear each other. If clients reach one of the nodes, the pair must serve them soon.

use std::time::Duration;

use proto::Instant;

use super::fault::{FaultKind, PlannedFault};
use super::outcome::Violation;
use super::phase::PairPhase;
use super::scenario::Scenario;
use crate::pair::SimPair;

/// A node must serve within this time. A path under suspicion counts as lost after 250 ms, and a silent router after 500 ms. A
/// claim takes about 100 ms.
const SERVED_WITHIN: Duration = Duration::from_secs(2);
/// A break is watched only if every other failure had ended at least this long before the break.
const CALM: Duration = Duration::from_secs(1);

/// Watches one break of a path in a whole pair, while nothing else fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathWatch {
    ends: Instant,
    /// Since when no node has served the clients, although the pair could serve them.
    since: Option<Instant>,
}

impl PathWatch {
    /// `fault` is injected now. Returns a watch if `fault` is a path fault, outside hosts answer, the pair is whole, and no other fault
    /// lasts or has just ended. `last` is when the last other fault ends.
    pub fn of(
        fault: &PlannedFault,
        scenario: &Scenario,
        phase: PairPhase,
        last: Option<Instant>,
        now: Instant,
    ) -> Option<Self> {
        let is_whole = matches!(
            phase,
            PairPhase::Duplex | PairPhase::DuplexAgain | PairPhase::Handshake
        );
        let is_alone = last.is_none_or(|last| last + CALM <= now);
        let is_one = FaultKind::PATHS.contains(&fault.kind) && scenario.outside;
        (is_one && is_whole && is_alone).then(|| Self {
            ends: now + fault.length(),
            since: None,
        })
    }

    /// Checks whether a node serves. Returns itself while there is more to watch, and the violation, if there is one.
    pub fn look(mut self, pair: &SimPair, now: Instant) -> (Option<Self>, Option<Violation>) {
        if now >= self.ends {
            return (None, None);
        }
        if pair.is_served() || !pair.could_be_served() {
            self.since = None;
            return (Some(self), None);
        }
        let since = *self.since.get_or_insert(now);
        if now.since(since) < SERVED_WITHIN {
            return (Some(self), None);
        }
        let what = format!("no node has served since {since:?}, although clients reach a node");
        (None, Some(Violation::new("path", what)))
    }
}
