//! Orphans: connections that have lost their process while the service lives, because one worker of several died. The primary tells the
//! backup of orphans by heartbeats, which may be lost or come twice. So the primary numbers each orphan, and repeats it until the backup
//! has confirmed the adoption. Until then, the primary's kernel also remembers the orphan, so that a restarted agent can announce it again
//! ([`InheritedService::orphans`](crate::service::InheritedService::orphans)).

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::net::SocketAddr;

use rustc_hash::FxSeededState;
use serde::{Deserialize, Serialize};

use crate::seq::in_reach;

/// Maximum number of orphans in one heartbeat, for all services together. With 64 services such a heartbeat still fits
/// into the datagram that a node receives (`the_largest_heartbeat_fits` in `cli::daemon::peer`).
pub const TOLD_MAX: usize = 128;
/// Maximum number of orphans that wait to be told. One worker has fewer connections.
const WAITING_MAX: usize = 1 << 20;

/// Orphans in a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphans {
    /// The number of the first orphan. Orphans are numbered from 0.
    #[serde(deserialize_with = "in_reach")]
    pub first: u64,
    /// Their clients.
    pub clients: Vec<SocketAddr>,
}

/// The primary's side: orphans that the backup has not reported as adopted yet.
#[derive(Debug, Default)]
struct Telling {
    waiting: VecDeque<SocketAddr>,
    /// The same clients as a set. It keeps an orphan from waiting twice: a restarted agent may learn of an orphan both from the kernel's
    /// memory and from the ring of deaths.
    known: BTreeSet<SocketAddr>,
    first: u64,
}

impl Telling {
    /// A connection has lost its process. Returns false if it is waiting already, or if there is no room for it.
    fn add(&mut self, client: SocketAddr) -> bool {
        let is_new = self.waiting.len() < WAITING_MAX && self.known.insert(client);
        if is_new {
            self.waiting.push_back(client);
        }
        is_new
    }

    /// The orphans for the next heartbeat: the first `count` that wait.
    fn told(&self, count: usize) -> Orphans {
        Orphans {
            first: self.first,
            clients: self.waiting.iter().take(count).copied().collect(),
        }
    }

    /// The backup reports all orphans with numbers below `adopted` as adopted. Returns the orphans that the backup had
    /// not reported before.
    fn on_adopted(&mut self, adopted: u64) -> Vec<SocketAddr> {
        let new = adopted.saturating_sub(self.first);
        let new = usize::try_from(new).map_or(self.waiting.len(), |new| new.min(self.waiting.len()));
        self.take(new)
    }

    /// Removes the first `count` waiting orphans.
    fn take(&mut self, count: usize) -> Vec<SocketAddr> {
        self.first += count as u64;
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        for client in &taken {
            self.known.remove(client);
        }
        taken
    }

    /// Whether orphans still wait to be told.
    fn has_more(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Removes and returns all waiting orphans: the backup is gone. The backup may have adopted any of these orphans, and may have spoken
    /// for them.
    fn give_up(&mut self) -> Vec<SocketAddr> {
        self.take(self.waiting.len())
    }
}

/// Each service's orphans in one heartbeat: at most [`TOLD_MAX`] in all, shared fairly. Later heartbeats tell the rest.
pub(crate) fn share<'a>(services: impl Iterator<Item = &'a ServiceOrphans>) -> Vec<Orphans> {
    let tellings: Vec<_> = services.map(|orphans| &orphans.telling).collect();
    let mut waiting_least: Vec<_> = (0..tellings.len()).collect();
    waiting_least.sort_by_key(|&index| tellings[index].waiting.len());
    let mut shares = vec![Orphans::default(); tellings.len()];
    let mut room = TOLD_MAX;
    for (served, index) in waiting_least.into_iter().enumerate() {
        // A service that needs less than an equal share leaves its remainder to the services that follow.
        shares[index] = tellings[index].told(room / (tellings.len() - served));
        room -= shares[index].clients.len();
    }
    shares
}

/// The backup's side: the orphans that the primary's agent has announced. The backup reports an orphan as adopted once the wire holds its
/// packets. Until then, the primary must keep the dead process's socket: without a socket, its kernel would answer the client with a RST.
#[derive(Debug, Default)]
struct Hearing {
    /// Incarnation of the primary's agent.
    incarnation: u64,
    /// Number of orphans heard of.
    heard: u64,
    /// Number of orphans whose takeover has begun.
    adopted: u64,
}

impl Hearing {
    /// A heartbeat of the primary's agent has come. A new agent numbers its orphans from 0, so the count of the earlier agent's orphans
    /// does not apply to it.
    fn begin(&mut self, incarnation: u64) {
        if std::mem::replace(&mut self.incarnation, incarnation) != incarnation {
            (self.heard, self.adopted) = (0, 0);
        }
    }

    /// Takes the orphans from a heartbeat of the agent that [`begin`](Self::begin) named. Returns the clients that were not heard of
    /// before.
    fn take(&mut self, orphans: &Orphans) -> Vec<SocketAddr> {
        let known = self.heard.saturating_sub(orphans.first);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let new: Vec<_> = orphans.clients.iter().skip(known).copied().collect();
        self.heard = self.heard.max(orphans.first + orphans.clients.len() as u64);
        new
    }

    /// The takeover of all orphans that were heard of begins.
    fn adopt(&mut self) {
        self.adopted = self.heard;
    }

    /// Number of orphans that this node reports as adopted.
    fn adopted(&self) -> u64 {
        self.adopted
    }
}

/// The orphans of a service on one node: as the primary, this node tells the backup of them; as the backup, it adopts them.
#[derive(Debug)]
pub(crate) struct ServiceOrphans {
    telling: Telling,
    hearing: Hearing,
    /// Clients whose connections wait to be taken over.
    waiting: Vec<SocketAddr>,
    /// Clients whose latest connection was taken over alone, without the service.
    taken: HashSet<SocketAddr, FxSeededState>,
}

impl ServiceOrphans {
    /// The orphans as an earlier agent left them: the clients in `told` are to be told again, the clients in `taken` were taken over.
    pub(crate) fn new(
        hash_seed: usize,
        told: impl IntoIterator<Item = SocketAddr>,
        taken: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        let mut orphans = Self {
            telling: Telling::default(),
            hearing: Hearing::default(),
            waiting: Vec::new(),
            taken: HashSet::with_hasher(FxSeededState::with_seed(hash_seed)),
        };
        orphans.tell(told);
        orphans.taken.extend(taken);
        orphans
    }

    /// The backup is to be told of `clients`. Returns whether one of them is new.
    pub(crate) fn tell(&mut self, clients: impl IntoIterator<Item = SocketAddr>) -> bool {
        let is_new = |client| self.telling.add(client);
        clients.into_iter().map(is_new).fold(false, |any, new| any | new)
    }

    /// The backup reports all orphans with numbers below `adopted` as adopted. Returns the clients that it had not reported before, and
    /// whether others still wait to be reported.
    pub(crate) fn on_adopted(&mut self, adopted: u64) -> (Vec<SocketAddr>, bool) {
        let adopted = self.telling.on_adopted(adopted);
        (adopted, self.telling.has_more())
    }

    /// The backup is gone. Returns the orphans that it may have adopted.
    pub(crate) fn give_up(&mut self) -> Vec<SocketAddr> {
        self.telling.give_up()
    }

    /// A heartbeat of the primary's agent has come.
    pub(crate) fn begin(&mut self, incarnation: u64) {
        self.hearing.begin(incarnation);
    }

    /// The primary's heartbeat tells of `orphans`.
    pub(crate) fn hear(&mut self, orphans: &Orphans) {
        self.waiting.extend(self.hearing.take(orphans));
    }

    /// Number of orphans of the primary's agent that this node reports as adopted.
    pub(crate) fn adopted(&self) -> u64 {
        self.hearing.adopted()
    }

    /// The clients whose connections are to be taken over now. They count as taken.
    pub(crate) fn adopt(&mut self) -> Vec<SocketAddr> {
        self.hearing.adopt();
        self.taken.extend(&self.waiting);
        std::mem::take(&mut self.waiting)
    }

    /// The connections of `clients` have lost their node, and wait to be taken over.
    pub(crate) fn add(&mut self, clients: Vec<SocketAddr>) {
        self.waiting.extend(clients);
    }

    /// The connection of `client` moves here, although its process lives ([`crate::migration`]).
    pub(crate) fn note_taken(&mut self, client: SocketAddr) {
        self.taken.insert(client);
    }

    /// Whether the latest connection of `client` was taken over alone, without the service.
    pub(crate) fn has_taken(&self, client: &SocketAddr) -> bool {
        self.taken.contains(client)
    }

    /// Forgets that the connection of `client` was taken over: the client's next packets belong to the primary.
    pub(crate) fn forget_taken(&mut self, client: &SocketAddr) {
        self.taken.remove(client);
    }

    /// Forgets which connections were taken over: from now on this node answers for all connections.
    pub(crate) fn forget_all_taken(&mut self) {
        self.taken.clear();
    }

    /// Forgets all orphans: this node has no part in the service now.
    pub(crate) fn clear(&mut self) {
        self.telling.give_up();
        self.waiting.clear();
        self.taken.clear();
    }

    /// Whether orphans wait to be told or taken over.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.telling.has_more()
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
        /// Each orphan is taken once and in order, even if heartbeats are lost, doubled or reordered.
        #[test]
        fn each_is_taken_once(count in 1..600_u16, fates in prop::collection::vec((0..3_u8, 0..3_u8), 50)) {
            let (mut telling, mut hearing) = (Telling::default(), Hearing::default());
            let told = |telling: &Telling| telling.told(TOLD_MAX);
            let mut taken = Vec::new();
            (0..count).for_each(|number| assert!(telling.add(client(number))));
            let sure = std::iter::repeat_n((1, 1), 5);
            let mut old = told(&telling);
            for (there, back) in fates.into_iter().chain(sure) {
                let new = told(&telling);
                for _ in 0..there {
                    taken.extend(hearing.take(&new));
                    taken.extend(hearing.take(&old));
                    hearing.adopt();
                }
                for _ in 0..back {
                    telling.on_adopted(hearing.adopted());
                }
                old = new;
            }
            prop_assert_eq!(taken, (0..count).map(client).collect::<Vec<_>>());
            prop_assert!(told(&telling).clients.is_empty());
        }
    }

    proptest! {
        /// A heartbeat tells as many orphans as fit. A service gets less than an equal share only if it needs less. A
        /// service gets more only from the remainders of other services.
        #[test]
        fn a_heartbeat_is_shared_fairly(waiting in prop::collection::vec(0..300_usize, 1..64)) {
            let orphans = |count: usize| ServiceOrphans::new(0, (0_u16..).take(count).map(client), []);
            let services: Vec<_> = waiting.iter().copied().map(orphans).collect();
            let told: Vec<_> = share(services.iter()).iter().map(|orphans| orphans.clients.len()).collect();
            let sum: usize = told.iter().sum();
            prop_assert_eq!(sum, TOLD_MAX.min(waiting.iter().sum()));
            let most = told.iter().max().copied().unwrap_or_default();
            for (told, waiting) in told.iter().zip(&waiting) {
                prop_assert!(*told == *waiting || *told >= TOLD_MAX / services.len() && told + 1 >= most);
            }
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
        assert_eq!(hearing.adopted(), 0, "its takeover has not begun");
        hearing.adopt();
        assert_eq!(hearing.adopted(), 1);
        hearing.begin(7);
        assert_eq!(hearing.take(&one).len(), 0);
        hearing.begin(8);
        assert_eq!((hearing.adopted(), hearing.take(&one).len()), (0, 1));
    }

    #[test]
    fn there_is_a_bound() {
        let mut telling = Telling::default();
        let clients =
            (0..=16).flat_map(|host| (0..=u16::MAX).map(move |port| ([10, 0, 1, host], port).into()));
        let told = clients
            .take(WAITING_MAX + 10)
            .filter(|&client| telling.add(client))
            .count();
        assert_eq!(told, WAITING_MAX);
    }

    #[test]
    fn an_orphan_waits_once() {
        let mut telling = Telling::default();
        assert!(telling.add(client(1)));
        assert!(!telling.add(client(1)), "it waits already");
        assert_eq!(telling.on_adopted(1), [client(1)]);
        assert!(telling.add(client(1)), "its next connection is another orphan");
        assert_eq!(telling.give_up(), [client(1)]);
        assert!(telling.add(client(1)));
    }
}
