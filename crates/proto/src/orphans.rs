//! Connections that have lost their process while the service lives: one worker of several died. The primary tells the backup, by
//! heartbeats, which may be lost or come twice: each is numbered and told again until the backup has said that it took it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::action::in_reach;

/// So many are told in one heartbeat: it stays far below the size of a datagram.
const TOLD_MAX: usize = 256;
/// So many wait to be told: more than a worker has connections.
const WAITING_MAX: usize = 1 << 20;

/// Orphans in a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphans {
    /// The number of the first one; they count up from 0.
    #[serde(deserialize_with = "in_reach")]
    pub first: u64,
    /// Their clients.
    pub clients: Vec<SocketAddr>,
}

/// The primary's side.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    waiting: VecDeque<SocketAddr>,
    first: u64,
}

impl Telling {
    /// A connection has lost its process. False if there is no room to tell it.
    pub(crate) fn add(&mut self, client: SocketAddr) -> bool {
        let fits = self.waiting.len() < WAITING_MAX;
        if fits {
            self.waiting.push_back(client);
        }
        fits
    }

    /// What the next heartbeat tells.
    pub(crate) fn told(&self) -> Orphans {
        Orphans {
            first: self.first,
            clients: self.waiting.iter().take(TOLD_MAX).copied().collect(),
        }
    }

    /// The backup has taken all below `adopted`: those that it had not said so of before.
    pub(crate) fn on_adopted(&mut self, adopted: u64) -> Vec<SocketAddr> {
        let new = adopted.saturating_sub(self.first);
        let new = usize::try_from(new).map_or(self.waiting.len(), |new| new.min(self.waiting.len()));
        self.first += new as u64;
        self.waiting.drain(..new).collect()
    }

    /// Whether there is more to be told.
    pub(crate) fn has_more(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The backup is gone. It may have taken any of these, and have spoken for them.
    pub(crate) fn give_up(&mut self) -> Vec<SocketAddr> {
        self.first += self.waiting.len() as u64;
        self.waiting.drain(..).collect()
    }
}

/// The backup's side.
#[derive(Debug, Default)]
pub(crate) struct Hearing {
    incarnation: u64,
    adopted: u64,
}

impl Hearing {
    /// An agent is heard; a new one counts anew. What is said to it must not be what the one before was to hear.
    pub(crate) fn begin(&mut self, incarnation: u64) {
        if std::mem::replace(&mut self.incarnation, incarnation) != incarnation {
            self.adopted = 0;
        }
    }

    /// The clients that were not heard of before, from a heartbeat of that agent.
    pub(crate) fn take(&mut self, orphans: &Orphans) -> Vec<SocketAddr> {
        let known = self.adopted.saturating_sub(orphans.first);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let new: Vec<_> = orphans.clients.iter().skip(known).copied().collect();
        self.adopted = self.adopted.max(orphans.first + orphans.clients.len() as u64);
        new
    }

    /// So many were taken.
    pub(crate) fn adopted(&self) -> u64 {
        self.adopted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn client(number: u16) -> SocketAddr {
        ([10, 0, 0, 1], number).into()
    }

    proptest! {
        /// Whatever is lost, doubled or overtaken on the way: each orphan is taken once, in order.
        #[test]
        fn each_is_taken_once(count in 1..600_u16, fates in prop::collection::vec((0..3_u8, 0..3_u8), 50)) {
            let (mut telling, mut hearing) = (Telling::default(), Hearing::default());
            let mut taken = Vec::new();
            (0..count).for_each(|number| assert!(telling.add(client(number))));
            let sure = std::iter::repeat_n((1, 1), 4);
            let mut old = telling.told();
            for (there, back) in fates.into_iter().chain(sure) {
                let told = telling.told();
                for _ in 0..there {
                    taken.extend(hearing.take(&told));
                    taken.extend(hearing.take(&old));
                }
                for _ in 0..back {
                    telling.on_adopted(hearing.adopted());
                }
                old = told;
            }
            prop_assert_eq!(taken, (0..count).map(client).collect::<Vec<_>>());
            prop_assert!(telling.told().clients.is_empty());
        }
    }

    #[test]
    fn a_new_agent_counts_anew() {
        let mut hearing = Hearing::default();
        let one = Orphans {
            first: 0,
            clients: vec![client(1)],
        };
        hearing.begin(7);
        assert_eq!(hearing.take(&one).len(), 1);
        hearing.begin(7);
        assert_eq!(hearing.take(&one).len(), 0);
        hearing.begin(8);
        assert_eq!((hearing.adopted(), hearing.take(&one).len()), (0, 1));
    }

    #[test]
    fn there_is_a_bound() {
        let mut telling = Telling::default();
        let told = (0..WAITING_MAX + 10).filter(|_| telling.add(client(1))).count();
        assert_eq!(told, WAITING_MAX);
    }
}
