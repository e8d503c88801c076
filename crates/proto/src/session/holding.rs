//! The snapshots that other servers have pushed to this one.

use std::collections::BTreeMap;

use super::certificate::SessionId;
use crate::Instant;
use crate::restart::snapshot::Snapshot;

/// Number of snapshots of one session that are kept.
const OF_ONE_MAX: usize = 64;

/// Snapshots of sessions that other servers own.
#[derive(Debug)]
pub struct HeldSnapshots {
    /// Bound on the bytes of all states.
    bytes_max: usize,
    bytes: usize,
    sessions: BTreeMap<SessionId, HeldSession>,
}

#[derive(Debug)]
struct HeldSession {
    epoch: u64,
    pushed_at: Instant,
    snapshots: Vec<Snapshot>,
}

impl HeldSnapshots {
    /// Holds at most this number of bytes.
    pub const fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            sessions: BTreeMap::new(),
        }
    }

    /// The owner in `epoch` pushes a snapshot, and the proxy's restart point has the number `point`. Returns whether the snapshot is kept.
    pub fn push(
        &mut self,
        now: Instant,
        (session, epoch): (SessionId, u64),
        snapshot: Snapshot,
        point: u64,
    ) -> bool {
        let size = snapshot.state.len();
        let held = self.sessions.entry(session).or_insert(HeldSession {
            epoch,
            pushed_at: now,
            snapshots: Vec::new(),
        });
        if epoch < held.epoch {
            return false; // a later owner has pushed already
        }
        let before: usize = held.snapshots.iter().map(|old| old.state.len()).sum();
        held.snapshots
            .retain(|old| old.number >= point && old.number != snapshot.number);
        let kept: usize = held.snapshots.iter().map(|old| old.state.len()).sum();
        self.bytes -= before - kept;
        (held.epoch, held.pushed_at) = (epoch, now);
        if self.bytes + size > self.bytes_max || held.snapshots.len() >= OF_ONE_MAX {
            return false;
        }
        self.bytes += size;
        held.snapshots.push(snapshot);
        true
    }

    /// The snapshot of a session with this number.
    pub fn find(&self, session: SessionId, number: u64) -> Option<&Snapshot> {
        let held = self.sessions.get(&session)?;
        held.snapshots.iter().find(|snapshot| snapshot.number == number)
    }

    /// Forgets a session.
    pub fn forget(&mut self, session: SessionId) {
        if let Some(held) = self.sessions.remove(&session) {
            self.bytes -= held
                .snapshots
                .iter()
                .map(|snapshot| snapshot.state.len())
                .sum::<usize>();
        }
    }

    /// Forgets the sessions whose last snapshot came before `before`.
    pub fn expire(&mut self, before: Instant) {
        let old = self.sessions.iter().filter(|(_, held)| held.pushed_at < before);
        let old: Vec<_> = old.map(|(session, _)| *session).collect();
        old.into_iter().for_each(|session| self.forget(session));
    }

    /// The sessions with their epochs, and the sizes of their snapshots' states.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, u64, impl Iterator<Item = usize>)> {
        self.sessions.iter().map(|(session, held)| {
            let sizes = held.snapshots.iter().map(|snapshot| snapshot.state.len());
            (*session, held.epoch, sizes)
        })
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Offset;

    const ONE: SessionId = SessionId([1; 16]);

    fn snapshot(number: u64, size: usize) -> Snapshot {
        Snapshot {
            number,
            input: Offset(number),
            output: Offset(number),
            state: vec![0; size].into(),
        }
    }

    #[test]
    fn a_snapshot_that_comes_again_takes_no_more_room() {
        let mut held = HeldSnapshots::new(100);
        for epoch in [1, 2] {
            assert!(held.push(Instant::ZERO, (ONE, epoch), snapshot(1, 60), 1));
        }
        assert_eq!((held.sessions[&ONE].snapshots.len(), held.bytes), (1, 60));
    }

    #[test]
    fn what_the_proxy_may_need_is_kept() {
        let mut held = HeldSnapshots::new(100);
        let now = Instant::ZERO;
        assert!(held.push(now, (ONE, 1), snapshot(1, 40), 0));
        assert!(held.push(now, (ONE, 1), snapshot(2, 40), 1));
        assert!(!held.push(now, (ONE, 1), snapshot(3, 40), 1), "too many bytes");
        assert!(
            held.push(now, (ONE, 1), snapshot(4, 40), 2),
            "the first one is not needed any more"
        );
        assert!(held.find(ONE, 1).is_none() && held.find(ONE, 2).is_some() && held.find(ONE, 4).is_some());
        assert!(held.push(now, (ONE, 3), snapshot(9, 1), 4));
        let sizes = |(session, epoch, sizes): (_, _, _)| (session, epoch, Iterator::sum::<usize>(sizes));
        assert_eq!(held.sessions().map(sizes).collect::<Vec<_>>(), [(ONE, 3, 41)]);
        assert!(
            !held.push(now, (ONE, 2), snapshot(8, 1), 4),
            "of an earlier owner"
        );
        held.expire(Instant::from_nanos(1));
        assert!(held.is_empty() && held.bytes == 0);
    }
}
