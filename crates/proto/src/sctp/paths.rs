//! All destinations of a peer, and the choice among them (RFC 9260 §6.4). Translates timeouts and answers into events of the failover
//! policy, and carries out the policy's moves.

use std::net::IpAddr;

use super::config::SctpConfig;
use super::destination::{Destination, PathId, PathTimeout};
use super::failover::event::{FailoverEvent, FailoverMove};
use super::failover::quality::is_better;
use super::failover::quick::Reach;
use super::failover::{FailoverPolicy, FailoverState};
use crate::Instant;

/// The destinations. There is at least one.
#[derive(Debug)]
pub(super) struct PathTable {
    all: Vec<Destination>,
    primary: PathId,
    current: PathId,
    failover: FailoverState,
    /// CPT: with more timeouts of the primary in a row than this, a failover is permanent. `None`: no failover is permanent.
    change_over: Option<u32>,
}

impl PathTable {
    /// The peer's addresses. The first one is the primary destination. `threshold`: see [`Destination::new`].
    pub fn new(config: &SctpConfig, addresses: &[IpAddr], threshold: u32, now: Instant) -> Self {
        let destination = |address: &IpAddr| Destination::new(config, *address, threshold, now);
        let change_over = match config.failover {
            FailoverPolicy::Temporary { change_over, .. } => change_over,
            FailoverPolicy::Proposed
            | FailoverPolicy::PotentiallyFailed { .. }
            | FailoverPolicy::Informed => None,
        };
        Self {
            all: addresses.iter().map(destination).collect(),
            primary: PathId(0),
            current: PathId(0),
            failover: FailoverState::new(config.failover),
            change_over,
        }
    }

    /// All destinations.
    pub fn all(&self) -> &[Destination] {
        &self.all
    }

    /// All destinations, to be changed.
    pub fn all_mut(&mut self) -> &mut [Destination] {
        &mut self.all
    }

    /// A destination.
    pub fn get(&self, path: PathId) -> &Destination {
        &self.all[path.index()]
    }

    /// A destination, to be changed.
    pub fn get_mut(&mut self, path: PathId) -> &mut Destination {
        &mut self.all[path.index()]
    }

    /// The numbers of all destinations.
    pub fn ids(&self) -> impl Iterator<Item = PathId> + use<> {
        // `terms::PATHS_MAX` is below 256.
        (0..self.all.len()).map(|index| PathId(index as u8))
    }

    /// The destination with this address.
    pub fn find(&self, address: IpAddr) -> Option<PathId> {
        let index = self.all.iter().position(|path| path.address() == address)?;
        Some(PathId(index as u8))
    }

    /// The primary destination.
    pub const fn primary(&self) -> PathId {
        self.primary
    }

    /// The destination of new data.
    pub const fn current(&self) -> PathId {
        self.current
    }

    /// The state of the failover policy.
    pub const fn failover(&self) -> FailoverState {
        self.failover
    }

    /// It is confirmed that `path` belongs to the peer. `path` becomes the primary destination if the primary is not confirmed. Otherwise,
    /// if data may go to `path` from now on, the policy is told.
    pub fn confirm(&mut self, path: PathId) {
        let was_confirmed = self.get(path).is_confirmed();
        self.get_mut(path).confirm();
        if !self.get(self.primary).is_confirmed() {
            (self.primary, self.current) = (path, path);
        } else if !was_confirmed && path != self.primary && self.get(path).is_usable() {
            self.take(FailoverEvent::AlternateAnswers, path);
        }
    }

    /// Makes `path` the primary destination. New data goes to it if it works.
    pub fn set_primary(&mut self, path: PathId) {
        self.primary = path;
        self.failover = self.failover.restarted();
        self.current = path;
        if !self.get(path).is_usable() {
            let event = if self.has_usable() {
                FailoverEvent::UsedFailed
            } else {
                FailoverEvent::LastFailed
            };
            self.take(event, path);
        }
    }

    /// Whether some destination is usable and its last probe or chunk was answered.
    pub fn has_healthy(&self) -> bool {
        self.all.iter().any(|path| path.is_usable() && path.errors() == 0)
    }

    /// The largest packet size that all usable destinations carry. A chunk keeps its size, whichever destination it goes to.
    pub fn packet_size(&self) -> u32 {
        let sizes = self.all.iter().filter(|path| path.is_usable());
        let least = sizes.map(|path| path.mtu().confirmed()).min();
        least.unwrap_or_else(|| self.get(self.current).mtu().confirmed())
    }

    fn has_usable(&self) -> bool {
        self.all.iter().any(Destination::is_usable)
    }

    /// The next destination after `path`, in a ring.
    pub fn after(&self, path: PathId) -> PathId {
        PathId(((path.index() + 1) % self.all.len()) as u8)
    }

    /// All destinations but `path`, in the order of a ring that begins after `path`.
    fn others(&self, path: PathId) -> impl Iterator<Item = PathId> + use<> {
        let count = self.all.len();
        (1..count).map(move |step| PathId(((path.index() + step) % count) as u8))
    }

    /// Returns the next usable destination after `path`. If no other destination is usable, returns `path` if it is usable. Otherwise
    /// returns the next destination that belongs to the peer.
    pub fn alternate(&self, path: PathId) -> PathId {
        let usable = self.others(path).find(|next| self.get(*next).is_usable());
        usable.unwrap_or_else(|| {
            if self.get(path).is_usable() {
                path
            } else {
                self.hop(path)
            }
        })
    }

    /// The next destination after `path` that belongs to the peer.
    fn hop(&self, path: PathId) -> PathId {
        let known = self.others(path).find(|next| self.get(*next).is_confirmed());
        known.unwrap_or(path)
    }

    /// Something sent to `path` was not acknowledged in time.
    pub fn on_error(&mut self, path: PathId) -> PathTimeout {
        let timeout = self.get_mut(path).on_error();
        self.after_error(path, timeout);
        timeout
    }

    /// The watch has found that `path` has failed.
    pub fn on_silence(&mut self, path: PathId) {
        let timeout = self.get_mut(path).fail();
        self.after_error(path, timeout);
    }

    fn after_error(&mut self, path: PathId, timeout: PathTimeout) {
        let (is_used, is_primary) = (path == self.current, path == self.primary);
        let event = match (timeout, is_used, is_primary) {
            (PathTimeout::Failed, ..) if !self.has_usable() => Some(FailoverEvent::LastFailed),
            (PathTimeout::Failed, true, _) => Some(FailoverEvent::UsedFailed),
            (PathTimeout::Same, true, _) => Some(FailoverEvent::UsedTimeout),
            (PathTimeout::Failed, false, true) => Some(FailoverEvent::ProbeFailed),
            (PathTimeout::Same, false, true) => Some(FailoverEvent::ProbeTimeout),
            (_, false, false) => None,
        };
        if let Some(event) = event {
            self.take(event, path);
        }
        // If the primary was in use and has failed, and the policy has moved new data away from it, the policy gets a second event: the
        // primary, which is only probed from now on, has failed.
        if is_primary && is_used && timeout == PathTimeout::Failed && path != self.current {
            self.take(FailoverEvent::ProbeFailed, path);
        }
        let errors = self.get(path).errors();
        if is_primary && self.change_over.is_some_and(|threshold| errors > threshold) {
            self.take(FailoverEvent::ChangeOver, path);
        }
    }

    /// Whether a destination other than `path` is usable and its last probe or chunk was answered.
    pub fn has_other(&self, path: PathId) -> bool {
        let mut others = self.others(path).map(|other| self.get(other));
        others.any(|other| other.is_usable() && other.errors() == 0)
    }

    /// Something sent to `path` was acknowledged. Returns whether the destination had failed, potentially or entirely.
    pub fn on_heard(&mut self, path: PathId) -> bool {
        let had_failed = self.get_mut(path).on_heard();
        if path == self.primary {
            self.take(FailoverEvent::PrimaryAnswers, path);
        } else if had_failed {
            self.take(FailoverEvent::AlternateAnswers, path);
        }
        had_failed
    }

    /// Hands an event about `path` to the policy, and carries out the policy's move.
    fn take(&mut self, event: FailoverEvent, path: PathId) {
        let (next, step) = self.failover.after(event);
        self.failover = next;
        match step {
            FailoverMove::Stay => {}
            FailoverMove::Primary => self.current = self.primary,
            FailoverMove::Next => self.current = self.alternate(self.current),
            FailoverMove::Hop => self.current = self.hop(self.current),
            FailoverMove::Answerer => self.current = path,
            FailoverMove::Promote => self.primary = self.current,
            FailoverMove::Rank => self.rank(),
        }
    }

    /// RFC 7829 §3.2: new data goes to the primary if it is active, else to the current destination if it is active, else to the next
    /// active destination. If no destination is active, data goes to the potentially failed destination with the fewest errors. If all have
    /// failed, data stays.
    fn rank(&mut self) {
        if self.get(self.primary).is_usable() {
            self.current = self.primary;
        } else if !self.get(self.current).is_usable() {
            let next = self.alternate(self.current);
            if self.get(next).is_usable() {
                self.current = next;
                return;
            }
            let doubtful = self
                .ids()
                .filter(|id| self.get(*id).reach() == Reach::PotentiallyFailed);
            let fewest = doubtful.min_by_key(|id| (self.get(*id).errors(), *id != self.current));
            self.current = fewest.unwrap_or(self.current);
        }
    }

    /// Makes the best destination the primary one for good, if it is better than the primary by the margin. Returns whether the primary has
    /// changed ([`FailoverPolicy::Informed`]).
    pub fn promote_best(&mut self) -> bool {
        let rate = |path: &Destination| path.quality().held_rate(path.quality().rtt(), path.rto.least());
        let promised = |path: &Destination| {
            path.quality()
                .promised_rate(path.quality().rtt(), path.rto.least())
        };
        let usable = self.ids().filter(|id| self.get(*id).is_usable());
        let best =
            usable.max_by(|a, b| f64::total_cmp(&rate_or_zero(self.get(*a)), &rate_or_zero(self.get(*b))));
        let Some(best) =
            best.filter(|best| is_better(rate(self.get(self.primary)), promised(self.get(*best))))
        else {
            return false;
        };
        self.set_primary(best);
        true
    }
}

fn rate_or_zero(path: &Destination) -> f64 {
    let promised = path
        .quality()
        .promised_rate(path.quality().rtt(), path.rto.least());
    promised.unwrap_or(0.0)
}
