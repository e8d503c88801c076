//! A service's path breaks while both nodes live and hear each other: if one of them reaches the clients, it must serve soon.

use std::time::Duration;

use proto::Instant;

use super::fault::{Fault, Kind};
use super::phase::Phase;
use super::scenario::Scenario;
use super::verdict::Violation;
use crate::pair::Scene;

/// Somebody must serve within this time: a doubt is a loss after 250 ms, a router is missed after 500 ms, and a claim takes some 100 ms.
const SERVED_WITHIN: Duration = Duration::from_secs(2);
/// Nothing else has failed for so long before.
const CALM: Duration = Duration::from_secs(1);

/// Watches one break of a path that strikes a whole pair, alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    ends: Instant,
    /// Since then nobody serves, though one node could.
    since: Option<Instant>,
}

impl Watch {
    /// A watch of `fault`, which strikes now, if it strikes a pair that is whole. `last` is when the last of the others ended.
    pub fn of(
        fault: &Fault,
        scenario: &Scenario,
        phase: Phase,
        last: Option<Instant>,
        now: Instant,
    ) -> Option<Self> {
        let is_whole = matches!(phase, Phase::Duplex | Phase::DuplexAgain | Phase::Handshake);
        let is_alone = last.is_none_or(|last| last + CALM <= now);
        let is_one = Kind::PATHS.contains(&fault.kind) && scenario.outside;
        (is_one && is_whole && is_alone).then(|| Self {
            ends: now + fault.length(),
            since: None,
        })
    }

    /// Looks who serves. Returns nothing when there is nothing more to watch; and what is wrong, if it is.
    pub fn look(mut self, scene: &Scene, now: Instant) -> (Option<Self>, Option<Violation>) {
        if now >= self.ends {
            return (None, None);
        }
        if scene.is_served() || !scene.could_be_served() {
            self.since = None;
            return (Some(self), None);
        }
        let since = *self.since.get_or_insert(now);
        if now.since(since) < SERVED_WITHIN {
            return (Some(self), None);
        }
        let what = format!("nobody has served since {since:?}, though a node reaches the clients");
        (None, Some(Violation::new("path", what)))
    }
}
