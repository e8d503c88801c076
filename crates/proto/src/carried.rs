//! Connections of annexes that a primary carries, because their wire has failed (docs/annex.md).
//!
//! While the wire lives, it tells the primary where connections live ([`CarriedConnections::note`]). When the primary speaks alone, it asks each
//! annex for its connections, and passes their packets in both directions: nobody else has a path to them. When there is a wire again, the
//! primary tells it what it carries, and goes on carrying until the wire says that it passes these packets itself.
//!
//! A wire that takes connections back from a silent annex may speak for them, and then fail. The annex must not go on with its old state. So
//! each take-back has a number. The wire speaks for what it has taken back only after the primary has heard the number, and an annex that does
//! not know the number that the primary has heard gives the primary nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Instant;
use crate::serving::{AnnexId, ServingNode};

/// Time that annexes have to answer. Afterwards, what they have not claimed counts as lost.
pub const CLAIM_MAX: Duration = Duration::from_secs(3);

/// The number of a wire's last take-back. In one epoch, only one node is the wire, and its numbers increase, also with a new agent. The numbers
/// of two nodes come from different clocks, so the epoch counts first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TakeBackNumber {
    /// The epoch of the wire.
    pub epoch: u64,
    /// The number that the wire has given, which it also says in its heartbeats of this epoch.
    pub given: u64,
}

impl TakeBackNumber {
    /// A number that no wire gives.
    pub const UNKNOWN: Self = Self {
        epoch: u64::MAX,
        given: u64::MAX,
    };
}

/// Where connections of annexes live, as their primary knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CarriedConnections {
    places: BTreeMap<SocketAddr, AnnexId>,
    /// The annexes whose packets this node passes.
    carried: BTreeSet<AnnexId>,
    /// The annexes whose packets the wire passes, as it has said.
    guided: BTreeSet<AnnexId>,
    /// Until when the annexes can answer.
    asks_until: Option<Instant>,
    /// Number of the wire's last take-back, as the wire has said. `None`: there is no wire with annexes.
    heard: Option<TakeBackNumber>,
    /// The number with which this node asks the annexes.
    number: TakeBackNumber,
}

/// A client, and the node on which its connection lives from now on.
pub type PlaceChange = (SocketAddr, ServingNode);

impl CarriedConnections {
    /// As an earlier agent has left them, at `now`. `is_alone`: this node speaks alone, so the earlier agent has carried them. This one does not
    /// know of the wire's last take-back, so only an annex that has obeyed the earlier agent since may give them.
    pub fn new(
        now: Instant,
        is_alone: bool,
        places: impl IntoIterator<Item = (SocketAddr, AnnexId)>,
    ) -> Self {
        let places: BTreeMap<_, _> = places.into_iter().collect();
        Self {
            asks_until: (is_alone && !places.is_empty()).then(|| now + CLAIM_MAX),
            number: TakeBackNumber::UNKNOWN,
            places,
            ..Self::default()
        }
    }

    /// The number of the wire's last take-back. `None`: this node has heard none.
    pub const fn heard(&self) -> Option<TakeBackNumber> {
        self.heard
    }

    /// The wire has said the number of its last take-back.
    pub const fn hear(&mut self, number: Option<TakeBackNumber>) {
        self.heard = number;
    }

    /// The wire says where connections live. With `is_all`, these are all that do not live on the primary, as far as it knows: a new wire does not
    /// know what this node carries, or asks for. Returns what has changed.
    pub fn note(&mut self, said: &[PlaceChange], is_all: bool) -> Vec<PlaceChange> {
        let mut changes = Vec::new();
        self.guided
            .extend(said.iter().filter_map(|(_, node)| node.annex()));
        if is_all {
            let known = self.places.iter();
            let gone = known.filter(|(client, annex)| {
                !self.may_carry(**annex) && said.iter().all(|(said, _)| said != *client)
            });
            changes.extend(gone.map(|(&client, _)| (client, ServingNode::Primary)));
        }
        for annex in said.iter().filter_map(|(_, node)| node.annex()) {
            self.carried.remove(&annex);
        }
        changes.extend(said);
        changes.retain(|&(client, node)| self.set(client, node));
        if self.carried.is_empty() && self.places.values().all(|annex| self.guided.contains(annex)) {
            self.asks_until = None;
        }
        changes
    }

    /// Notes where a connection lives. Returns whether this is a change.
    fn set(&mut self, client: SocketAddr, node: ServingNode) -> bool {
        match node {
            ServingNode::Primary => self.places.remove(&client).is_some(),
            ServingNode::Annex(annex) => self.places.insert(client, annex) != Some(annex),
        }
    }

    /// This node speaks alone, without the wire that passed the annexes' packets.
    pub fn begin(&mut self, now: Instant) {
        self.guided.clear();
        if let Some(number) = self.heard {
            self.number = number;
            self.asks_until = Some(now + CLAIM_MAX);
        }
    }

    /// If this node passes the packets of annexes, or wants to: the number with which it asks them.
    pub fn asks_with(&self) -> Option<TakeBackNumber> {
        let is_active = self.asks_until.is_some() || !self.carried.is_empty();
        is_active.then_some(self.number)
    }

    /// An annex says which connections it has. Returns the changes, and the clients whose connections it must drop: with a wire, only
    /// connections that this node knows can be the annex's.
    pub fn claim(
        &mut self,
        annex: AnnexId,
        clients: &[SocketAddr],
        is_alone: bool,
    ) -> (Vec<PlaceChange>, Vec<SocketAddr>) {
        let node = ServingNode::Annex(annex);
        let (mut has, mut drops) = (Vec::new(), Vec::new());
        for &client in clients {
            if is_alone || self.places.get(&client) == Some(&annex) {
                has.push((client, node));
            } else {
                drops.push(client);
            }
        }
        let known = self.places.iter().filter(|(_, at)| **at == annex);
        let gone = known.filter(|(client, _)| !clients.contains(client));
        let mut changes: Vec<_> = gone.map(|(&client, _)| (client, ServingNode::Primary)).collect();
        changes.extend(has);
        if !clients.is_empty() {
            self.carried.insert(annex);
        }
        for &(client, node) in &changes {
            self.set(client, node);
        }
        self.tidy();
        (changes, drops)
    }

    /// An annex does not have a connection any more. Returns the change.
    pub fn lose(&mut self, client: SocketAddr, annex: AnnexId) -> Option<PlaceChange> {
        let is_there = self.places.get(&client) == Some(&annex) && self.carried.contains(&annex);
        is_there.then(|| self.places.remove(&client));
        self.tidy();
        is_there.then_some((client, ServingNode::Primary))
    }

    /// An annex is silent. It can come back for a while.
    pub fn on_down(&mut self, now: Instant, annex: AnnexId) {
        if self.carried.remove(&annex) {
            self.asks_until = Some(now + CLAIM_MAX);
        }
    }

    /// When the annexes' time is over.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.asks_until
    }

    /// If the annexes' time is over, returns the connections that no annex has claimed. They are lost.
    pub fn on_timeout(&mut self, now: Instant) -> Vec<PlaceChange> {
        if self.asks_until.is_none_or(|until| now < until) {
            return Vec::new();
        }
        self.asks_until = None;
        let unclaimed = |(&client, annex): (&SocketAddr, &AnnexId)| {
            let is_passed = self.carried.contains(annex) || self.guided.contains(annex);
            (!is_passed).then_some((client, ServingNode::Primary))
        };
        let lost: Vec<_> = self.places.iter().filter_map(unclaimed).collect();
        for (client, _) in &lost {
            self.places.remove(client);
        }
        lost
    }

    /// An annex without connections need not be carried.
    fn tidy(&mut self) {
        let places = &self.places;
        self.carried.retain(|annex| places.values().any(|at| at == annex));
    }

    /// The clients whose connections this node carries, and their annexes.
    pub fn guests(&self) -> impl Iterator<Item = (SocketAddr, AnnexId)> + '_ {
        let places = self.places.iter().map(|(&client, &annex)| (client, annex));
        places.filter(|(_, annex)| self.carried.contains(annex))
    }

    /// Whether this node passes the packets of the annex, or waits for its answer.
    fn may_carry(&self, annex: AnnexId) -> bool {
        self.carried.contains(&annex) || self.asks_until.is_some() && !self.guided.contains(&annex)
    }

    /// The clients whose connections this node carries or asks for, and their annexes. A new wire is told them, so that the annexes can obey it.
    pub fn offered(&self) -> impl Iterator<Item = (SocketAddr, AnnexId)> + '_ {
        let places = self.places.iter().map(|(&client, &annex)| (client, annex));
        places.filter(|&(_, annex)| self.may_carry(annex))
    }

    /// Whether this node passes the packets of the annex.
    pub fn is_carried(&self, annex: AnnexId) -> bool {
        self.carried.contains(&annex)
    }

    /// This node is no primary any more. Returns the changes.
    pub fn clear(&mut self) -> Vec<PlaceChange> {
        let places = std::mem::take(self).places.into_keys();
        places.map(|client| (client, ServingNode::Primary)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAMMA: AnnexId = AnnexId(3);
    const DELTA: AnnexId = AnnexId(4);
    const NUMBER: TakeBackNumber = TakeBackNumber { epoch: 2, given: 7 };

    fn client(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    const fn on(client: SocketAddr, annex: AnnexId) -> PlaceChange {
        (client, ServingNode::Annex(annex))
    }

    const fn home(client: SocketAddr) -> PlaceChange {
        (client, ServingNode::Primary)
    }

    /// The wire has said that clients 1 and 2 live on gamma, and 3 on delta.
    fn told() -> CarriedConnections {
        let mut carried = CarriedConnections::default();
        carried.hear(Some(NUMBER));
        let said = [on(client(1), GAMMA), on(client(2), GAMMA), on(client(3), DELTA)];
        assert_eq!(carried.note(&said, false), said);
        assert_eq!(carried.note(&said, true), [], "nothing is new");
        carried
    }

    /// The same, and then the wire has failed.
    fn alone() -> CarriedConnections {
        let mut carried = told();
        carried.begin(at(0));
        carried
    }

    #[test]
    fn a_list_of_all_ends_what_it_does_not_name() {
        let mut carried = told();
        let changes = carried.note(&[on(client(1), DELTA)], true);
        assert_eq!(changes, [home(client(2)), home(client(3)), on(client(1), DELTA)]);
    }

    #[test]
    fn what_is_not_claimed_in_time_is_lost() {
        let mut carried = alone();
        assert_eq!(carried.asks_with(), Some(NUMBER));
        let (changes, drops) = carried.claim(GAMMA, &[client(1), client(4)], true);
        assert_eq!(
            changes,
            [home(client(2)), on(client(1), GAMMA), on(client(4), GAMMA)]
        );
        assert_eq!((drops, carried.guests().count()), (Vec::new(), 2));
        assert_eq!(carried.on_timeout(at(2999)), []);
        assert_eq!(carried.on_timeout(at(3000)), [home(client(3))], "delta is silent");
        assert_eq!(carried.poll_timeout(), None);
        assert_eq!(carried.asks_with(), Some(NUMBER), "gamma's packets still pass");
    }

    /// With a wire, a connection that this node does not know as the annex's may be the wire's.
    #[test]
    fn with_a_wire_only_known_connections_can_be_claimed() {
        let mut carried = alone();
        carried.claim(GAMMA, &[client(1), client(2)], true);
        carried.on_down(at(10), GAMMA);
        let (changes, drops) = carried.claim(GAMMA, &[client(1), client(5)], false);
        assert_eq!(changes, [home(client(2)), on(client(1), GAMMA)]);
        assert_eq!(drops, [client(5)]);
    }

    #[test]
    fn a_silent_annex_has_some_time_to_come_back() {
        let mut carried = alone();
        carried.claim(GAMMA, &[client(1), client(2)], true);
        carried.claim(DELTA, &[client(3)], true);
        carried.on_timeout(at(3000));
        carried.on_down(at(5000), GAMMA);
        assert_eq!(carried.on_timeout(at(7999)), []);
        let lost = carried.on_timeout(at(8000));
        assert_eq!(lost, [home(client(1)), home(client(2))]);
        assert_eq!(carried.guests().count(), 1, "delta's");
    }

    #[test]
    fn an_annex_without_connections_is_not_carried() {
        let mut carried = alone();
        carried.claim(DELTA, &[client(3)], true);
        carried.on_timeout(at(3000));
        assert_eq!(carried.lose(client(3), GAMMA), None, "another annex");
        assert_eq!(carried.lose(client(3), DELTA), Some(home(client(3))));
        assert_eq!(carried.asks_with(), None);
    }

    /// The new wire's list does not name what it does not know.
    #[test]
    fn a_new_wire_does_not_end_what_is_carried() {
        let mut carried = alone();
        carried.claim(GAMMA, &[client(1)], true);
        carried.on_timeout(at(3000));
        let changes = carried.note(&[on(client(9), DELTA)], true);
        assert_eq!(changes, [on(client(9), DELTA)]);
        assert_eq!(carried.guests().count(), 1);
        assert_eq!(carried.clear(), [home(client(1)), home(client(9))]);
    }

    /// The new wire is there before an annex has answered.
    #[test]
    fn a_new_wire_does_not_end_what_is_asked_for() {
        let mut carried = alone();
        let of_delta = [(client(3), DELTA)];
        let changes = carried.note(&[on(client(1), GAMMA)], true);
        assert_eq!(changes, [home(client(2))], "the wire passes the packets of gamma");
        assert_eq!(carried.offered().collect::<Vec<_>>(), of_delta);
        carried.note(&[], true);
        assert_eq!(carried.claim(DELTA, &[client(3)], false).1, []);
        assert_eq!(carried.guests().collect::<Vec<_>>(), of_delta);
    }

    /// Without a number, an annex could have connections for which the wire speaks, or has spoken.
    #[test]
    fn without_a_number_nothing_is_asked() {
        let mut carried = CarriedConnections::default();
        carried.note(&[on(client(1), GAMMA)], false);
        carried.begin(at(0));
        assert_eq!(carried.asks_with(), None);
    }

    /// There is a wire again, which passes what this node has carried.
    #[test]
    fn what_the_wire_passes_is_not_carried_and_not_lost() {
        let mut carried = CarriedConnections::default();
        carried.hear(Some(NUMBER));
        carried.note(&[on(client(1), GAMMA), on(client(2), DELTA)], true);
        carried.begin(at(0));
        carried.claim(GAMMA, &[client(1)], true);
        carried.claim(DELTA, &[client(2)], true);
        carried.note(&[], true);
        assert_eq!(carried.guests().count(), 2, "the wire does not know them yet");
        carried.on_down(at(10), GAMMA);
        carried.note(&[on(client(1), GAMMA)], false);
        assert_eq!(carried.guests().collect::<Vec<_>>(), [(client(2), DELTA)]);
        assert_eq!(carried.on_timeout(at(10) + CLAIM_MAX), [], "the wire has it");
        carried.note(&[on(client(2), DELTA)], false);
        assert_eq!(carried.asks_with(), None);

        carried.begin(at(5000));
        let lost = carried.on_timeout(at(5000) + CLAIM_MAX);
        assert_eq!(lost.len(), 2, "the wire has failed, and nobody has claimed them");
    }

    #[test]
    fn a_new_agent_of_a_primary_that_carries_asks_again() {
        let places = [(client(1), GAMMA)];
        assert_eq!(CarriedConnections::new(at(0), false, places).asks_with(), None);
        let mut carried = CarriedConnections::new(at(0), true, places);
        assert_eq!(carried.asks_with(), Some(TakeBackNumber::UNKNOWN));
        carried.claim(GAMMA, &[client(1)], true);
        assert_eq!(carried.on_timeout(at(0) + CLAIM_MAX), []);
        assert_eq!(carried.guests().count(), 1);
    }
}
