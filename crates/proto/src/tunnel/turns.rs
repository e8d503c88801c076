//! Decides in which order a tunnel's connections read from their programs, and how much each connection reads in its turn. No I/O.
//!
//! The association's send buffer accepts data only as fast as the paths carry it. If one connection could always fill the buffer first, the
//! other connections would starve.

use std::collections::BTreeSet;

use super::{DATA_MAX, TunnelConnectionId};

/// Most bytes that one connection reads in one turn.
const SHARE_MAX: usize = 128 << 10;

/// Turns of connections, round robin.
#[derive(Debug, Default)]
pub struct TunnelTurns {
    /// The connection that was served last.
    last: Option<TunnelConnectionId>,
}

impl TunnelTurns {
    /// The waiting connections in the order of their turns. The order begins after the connection that was served last.
    pub fn order(&self, waiting: &BTreeSet<TunnelConnectionId>) -> Vec<TunnelConnectionId> {
        let (before, behind): (Vec<_>, Vec<_>) = waiting
            .iter()
            .partition(|id| self.last.is_some_and(|last| **id <= last));
        behind.into_iter().chain(before).copied().collect()
    }

    /// Most bytes that one connection reads in its turn: an equal share of `room` bytes among `waiting` connections. A share has room for
    /// one message at least, even if `room` is then not enough for all shares and the last connections get nothing in this turn. It is at
    /// most [`SHARE_MAX`], so that the others do not wait for long, and at most `room`.
    pub fn share(room: usize, waiting: usize) -> usize {
        let equal = room / waiting.max(1);
        equal.clamp(DATA_MAX, SHARE_MAX).min(room)
    }

    /// A connection has read something.
    pub const fn on_served(&mut self, id: TunnelConnectionId) {
        self.last = Some(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u64]) -> BTreeSet<TunnelConnectionId> {
        numbers.iter().map(|number| TunnelConnectionId(*number)).collect()
    }

    #[test]
    fn a_connection_that_always_has_data_does_not_starve_the_others() {
        let mut turns = TunnelTurns::default();
        let waiting = ids(&[3, 5, 9]);
        let mut served = Vec::new();
        // Each time, there is room for one connection only.
        for _ in 0..7 {
            let first = turns.order(&waiting)[0];
            turns.on_served(first);
            served.push(first.0);
        }
        assert_eq!(served, [3, 5, 9, 3, 5, 9, 3]);
        assert_eq!(turns.order(&ids(&[1, 2])), [1, 2].map(TunnelConnectionId));
    }

    #[test]
    fn a_share_is_equal_within_its_bounds() {
        assert_eq!(TunnelTurns::share(1 << 20, 1), SHARE_MAX);
        assert_eq!(TunnelTurns::share(100_000, 4), 25_000);
        assert_eq!(TunnelTurns::share(100_000, 1000), DATA_MAX);
        assert_eq!(TunnelTurns::share(100, 3), 100);
        assert_eq!(TunnelTurns::share(0, 0), 0);
    }
}
