//! The side of a node that has connections for their wire (docs/annex.md): whom an annex obeys, and which connections it has.
//!
//! ```text
//!  wire ──── greeting: "you have these" ────▶ annex: drops all others, obeys this link only
//!  primary ─ greeting: "what do you have?" ─▶ annex: says it, if it knows the primary's take-back; else it drops everything
//! ```
//!
//! The latest link wins: what an earlier one still says is not obeyed. The caller makes sockets, ends them, and passes messages on.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Instant;
use crate::carried::{CLAIM_MAX, TakeBackNumber};
use crate::export::{ExportOutcome, Exports, SnapshotPart};

/// If the link of a primary that carries connections ends, its next agent has this time to begin another one, before a wire that does not know of
/// the connections may end them.
const RETURN_MAX: Duration = Duration::from_secs(10);

/// What a node wants to say first to the nodes that may have connections of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Greeting {
    /// The service's epoch.
    pub epoch: u64,
    /// The number of the wire's last take-back.
    pub take_back: TakeBackNumber,
    /// The sender is the primary, which asks for connections. Otherwise, it is the wire.
    pub asks: bool,
}

impl Greeting {
    /// The greeting to a node that has the connections of `guests`, as the wire believes.
    pub fn to_host_of(&self, guests: &[SocketAddr]) -> HostGreeting {
        HostGreeting {
            epoch: self.epoch,
            take_back: self.take_back,
            having: if self.asks {
                Having::Asked
            } else {
                Having::Known(guests.to_vec())
            },
        }
    }
}

/// The first message of a link, as the node decides about it that gets it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostGreeting {
    /// The service's epoch. An annex does not obey an earlier one than it has obeyed.
    pub epoch: u64,
    /// The number of the wire's last take-back.
    pub take_back: TakeBackNumber,
    /// What the receiver has.
    pub having: Having,
}

/// What a node that is greeted has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Having {
    /// The connections of these clients. It drops all others. To the primary: the wire has asked it to start these, and does not know whether it
    /// has.
    Known(Vec<SocketAddr>),
    /// The sender is the primary, and its wire has failed. The receiver says what it has, if it knows this take-back.
    Asked,
}

/// A service of an annex.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AnnexHost {
    /// Clients whose connections were started here.
    started: BTreeSet<SocketAddr>,
    /// The number of the link that this node obeys. A later link has a higher one.
    link: u64,
    /// Whether this link is there.
    is_linked: bool,
    /// When the last link ended.
    unlinked_at: Option<Instant>,
    /// The other end is no wire, but the primary, whose wire has failed.
    is_carried: bool,
    /// The epoch of the last greeting that it has obeyed.
    epoch: u64,
    /// The number of the wire's last take-back that it knows.
    take_back: TakeBackNumber,
    /// It gives back what it has, and keeps nothing for a primary that asks.
    stops: bool,
}

impl AnnexHost {
    /// Whether this node may obey who greets it at `now`. A new wire must know of all connections that a primary carries.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, now: Instant, greeting: &HostGreeting) -> Result<(), String> {
        if self.is_linked && greeting.epoch < self.epoch {
            return Err(format!("it speaks of the past epoch {}", greeting.epoch));
        }
        let is_current = self.is_linked && greeting.epoch == self.epoch;
        match &greeting.having {
            Having::Asked if is_current && !self.is_carried => {
                Err("it asks for connections, but there is a wire".to_owned())
            }
            Having::Known(known) if self.may_be_carried(now) && !self.all_are_in(known) => {
                Err("the primary carries connections of which this wire does not know yet".to_owned())
            }
            Having::Known(_) if self.may_be_asked(now, greeting) => {
                Err("it is a new wire, and the primary has not asked for the connections yet".to_owned())
            }
            Having::Asked | Having::Known(_) => Ok(()),
        }
    }

    /// Whether a new wire greets this node, and its connections are not the new wire's: the wire before may have taken them back. The primary
    /// can tell.
    fn is_unasked(&self, greeting: &HostGreeting) -> bool {
        greeting.epoch > self.epoch && !self.is_carried
    }

    /// Whether the primary may still ask for connections, before a new wire ends them.
    fn may_be_asked(&self, now: Instant, greeting: &HostGreeting) -> bool {
        let is_recent = |at: Instant| now.since(at) < CLAIM_MAX;
        let may_come = self.is_linked || self.unlinked_at.is_some_and(is_recent);
        self.is_unasked(greeting) && may_come && !self.started.is_empty()
    }

    fn all_are_in(&self, known: &[SocketAddr]) -> bool {
        let known: BTreeSet<_> = known.iter().collect();
        self.started.iter().all(|client| known.contains(client))
    }

    /// Whether a primary carries connections, or may do so again soon: its agent may be starting again.
    fn may_be_carried(&self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.since(at) < RETURN_MAX;
        self.is_carried && (self.is_linked || self.unlinked_at.is_some_and(is_recent))
    }

    /// Whether this node knows the last take-back of which the primary has heard. While the primary carries in an epoch, there is none.
    fn knows(&self, greeting: &HostGreeting) -> bool {
        let is_carried_still = self.is_carried && greeting.epoch == self.epoch;
        is_carried_still || self.take_back >= greeting.take_back
    }

    /// A greeting came that [`check`](Self::check) accepts. Returns the connections that must end now, without a word.
    pub fn take_list(&mut self, greeting: &HostGreeting) -> Vec<SocketAddr> {
        let stays: BTreeSet<_> = match &greeting.having {
            Having::Known(_) if self.is_unasked(greeting) => BTreeSet::new(),
            Having::Known(guests) => guests.iter().copied().collect(),
            Having::Asked if !self.stops && self.knows(greeting) => return Vec::new(),
            Having::Asked => BTreeSet::new(),
        };
        self.retain(|client| stays.contains(client))
    }

    /// From now on this node obeys this link, which has begun with this greeting.
    pub const fn obey(&mut self, link: u64, greeting: &HostGreeting) {
        (self.link, self.is_linked) = (link, true);
        self.is_carried = matches!(greeting.having, Having::Asked);
        self.epoch = greeting.epoch;
        if !self.is_carried {
            self.take_back = greeting.take_back;
        }
    }

    /// Whether this node obeys what comes over this link.
    pub const fn obeys(&self, link: u64) -> bool {
        self.link == link
    }

    /// Whether the primary passes this node's packets, because the wire has failed.
    pub const fn is_carried(&self) -> bool {
        self.is_carried
    }

    /// Whether the link that this node obeys is there.
    pub const fn is_linked(&self) -> bool {
        self.is_linked
    }

    /// The epoch of the last greeting that it has obeyed.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A link has ended.
    pub const fn on_link_end(&mut self, now: Instant, link: u64) {
        if self.link == link {
            self.is_linked = false;
            self.unlinked_at = Some(now);
        }
    }

    /// The wire says the number of its last take-back.
    pub const fn on_take_back(&mut self, number: TakeBackNumber) {
        self.take_back = number;
    }

    /// A connection was started here.
    pub fn on_started(&mut self, client: SocketAddr) {
        self.started.insert(client);
    }

    /// A started connection is not here any more. Returns whether it was.
    pub fn forget(&mut self, client: &SocketAddr) -> bool {
        self.started.remove(client)
    }

    /// Forgets the connections that do not live any more. Returns their clients.
    pub fn retain(&mut self, lives: impl Fn(&SocketAddr) -> bool) -> Vec<SocketAddr> {
        let (stays, gone): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(&mut self.started).into_iter().partition(lives);
        self.started = stays;
        gone.into_iter().collect()
    }

    /// No started connection is here any more.
    pub fn forget_all(&mut self) {
        self.started.clear();
    }

    /// Whether this client's connection was started here and not dropped.
    pub fn has(&self, client: &SocketAddr) -> bool {
        self.started.contains(client)
    }

    /// Number of connections that were started here and not dropped.
    pub fn started(&self) -> usize {
        self.started.len()
    }

    /// The clients whose connections were started here and not dropped.
    pub fn clients(&self) -> Vec<SocketAddr> {
        self.started.iter().copied().collect()
    }

    /// The parts of exported states that this node sends over the link at `now`. The states of connections that have moved away are not sent. While
    /// the primary carries, nobody keeps snapshots. If the link has just failed, the states wait for the next one.
    pub fn poll_parts(&self, now: Instant, exports: &mut Exports) -> Vec<SnapshotPart> {
        exports.handle_timeout(now);
        exports.finish_unless(|client| self.has(client), &ExportOutcome::Moved);
        if self.is_carried {
            let why = "the wire has failed".to_owned();
            exports.finish_all(&ExportOutcome::NotKept(why));
        }
        let mut parts = Vec::new();
        while self.is_linked
            && let Some(part) = exports.poll_part(now)
        {
            parts.push(part);
        }
        parts
    }

    /// This node stops. From now on it keeps nothing for a primary that asks.
    pub const fn stop(&mut self) {
        self.stops = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seq;
    use crate::export::ExportPlace;

    fn client(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    const fn number(given: u64) -> TakeBackNumber {
        TakeBackNumber { epoch: 5, given }
    }

    fn wire(epoch: u64, take_back: u64, guests: &[SocketAddr]) -> HostGreeting {
        let asks = false;
        Greeting {
            epoch,
            take_back: TakeBackNumber {
                epoch,
                given: take_back,
            },
            asks,
        }
        .to_host_of(guests)
    }

    /// It has heard this number of the wire of epoch 5.
    fn primary(epoch: u64, take_back: u64) -> HostGreeting {
        let asks = true;
        Greeting {
            epoch,
            take_back: number(take_back),
            asks,
        }
        .to_host_of(&[])
    }

    /// A node with the connections of clients 1 and 2, whose wire has link 1, epoch 5 and take-back 7.
    fn hosting() -> AnnexHost {
        let mut host = AnnexHost::default();
        let greeting = wire(5, 7, &[]);
        host.check(at(0), &greeting).expect("the first wire");
        assert_eq!(host.take_list(&greeting), []);
        host.obey(1, &greeting);
        host.on_started(client(1));
        host.on_started(client(2));
        host
    }

    #[test]
    fn what_a_wire_does_not_name_ends() {
        let mut host = hosting();
        assert_eq!(host.take_list(&wire(5, 7, &[client(2), client(3)])), [client(1)]);
        assert_eq!(host.clients(), [client(2)]);
    }

    #[test]
    fn the_latest_link_wins() {
        let mut host = hosting();
        host.obey(2, &wire(5, 7, &[]));
        assert!(host.obeys(2) && !host.obeys(1));
        host.on_link_end(at(0), 1);
        assert!(host.check(at(0), &wire(4, 7, &[])).is_err(), "link 2 is there");
        host.on_link_end(at(0), 2);
        assert!(host.check(at(0), &wire(4, 7, &[])).is_ok());
    }

    #[test]
    fn a_primary_gets_nothing_of_before_a_take_back() {
        let mut host = hosting();
        assert_eq!(host.take_list(&primary(6, 7)), [], "it knows this take-back");
        host.on_take_back(number(9));
        assert_eq!(host.take_list(&primary(6, 8)), [], "and a later one");
        assert_eq!(host.take_list(&primary(6, 10)), [client(1), client(2)]);
        assert_eq!(host.started(), 0);
    }

    #[test]
    fn a_primary_does_not_change_the_take_back_that_is_known() {
        let mut host = hosting();
        host.obey(2, &primary(6, 3));
        assert!(host.is_carried());
        assert_eq!(host.take_list(&primary(6, 7)), []);
    }

    #[test]
    fn a_new_wire_must_know_what_is_carried() {
        let mut host = hosting();
        host.obey(2, &primary(6, 7));
        assert!(host.check(at(0), &wire(7, 0, &[])).is_err());
        assert!(host.check(at(0), &wire(7, 0, &[client(1)])).is_err());
        let knowing = wire(7, 0, &[client(1), client(2), client(3)]);
        host.check(at(0), &knowing).expect("it knows all");
        assert_eq!(host.take_list(&knowing), []);
        host.obey(3, &knowing);
        assert!(
            host.check(at(0), &primary(7, 7)).is_err(),
            "a primary with a wire"
        );
        assert!(
            host.check(at(0), &primary(8, 7)).is_ok(),
            "the wire has failed again"
        );
    }

    /// The carrying primary's agent may be starting again.
    #[test]
    fn without_the_primarys_link_a_new_wire_waits_for_a_while() {
        let mut host = hosting();
        host.obey(2, &primary(6, 7));
        host.on_link_end(at(1), 2);
        assert!(host.check(at(10), &wire(7, 0, &[])).is_err());
        assert!(host.check(at(11), &wire(7, 0, &[])).is_ok());
        assert_eq!(host.take_list(&primary(6, u64::MAX)), [], "the same epoch");
        assert_eq!(host.take_list(&primary(7, u64::MAX)), [client(1), client(2)]);
    }

    /// The wire before may have taken the connections back.
    #[test]
    fn a_new_wire_waits_until_the_primary_has_asked() {
        let knowing = wire(6, 0, &[client(1), client(2)]);
        let mut host = hosting();
        assert!(host.check(at(0), &knowing).is_err(), "the last link is there");
        host.on_link_end(at(1), 1);
        assert!(host.check(at(3), &knowing).is_err());
        host.check(at(4), &knowing).expect("nobody has asked");
        assert_eq!(host.take_list(&knowing), [client(1), client(2)]);

        let mut host = hosting();
        let asking = primary(6, 7);
        host.check(at(1), &asking).expect("a primary");
        assert_eq!(host.take_list(&asking), []);
        host.obey(2, &asking);
        host.check(at(1), &knowing).expect("it knows all");
        assert_eq!(host.take_list(&knowing), []);

        let mut host = hosting();
        host.forget_all();
        host.check(at(0), &knowing).expect("there is nothing to ask for");
    }

    #[test]
    fn states_are_sent_to_a_wire_while_their_connections_live_here() {
        let mut host = hosting();
        let mut exports = Exports::new(at(0));
        let place = ExportPlace {
            input: Seq(1),
            output: Seq(1),
        };
        for (call, port) in [(1, 1), (2, 2), (3, 3)] {
            exports.begin(at(1), (call, true), client(port), place, [1].into());
        }
        let parts = host.poll_parts(at(1), &mut exports);
        let clients: Vec<_> = parts.iter().map(|part| part.client).collect();
        assert_eq!(clients, [client(1), client(2)]);
        assert_eq!(exports.poll_outcome(), Some((vec![3], ExportOutcome::Moved)));

        host.on_link_end(at(1), 1);
        exports.begin(at(2), (4, true), client(1), place, [2].into());
        assert_eq!(host.poll_parts(at(2), &mut exports), [], "there is no link");
        assert_eq!(exports.poll_outcome(), None, "there may be one soon");
        host.obey(2, &primary(6, 7));
        assert_eq!(host.poll_parts(at(2), &mut exports), []);
        let outcomes: Vec<_> = std::iter::from_fn(|| exports.poll_outcome()).collect();
        assert_eq!(outcomes.len(), 3, "nobody keeps them: {outcomes:?}");
    }

    #[test]
    fn the_number_of_a_later_wire_is_higher() {
        let mut host = hosting();
        let mut later = primary(8, 3);
        later.take_back.epoch = 7;
        assert_eq!(host.take_list(&later), [client(1), client(2)]);
    }

    #[test]
    fn a_node_that_stops_keeps_nothing_for_a_primary() {
        let mut host = hosting();
        host.stop();
        assert_eq!(host.take_list(&primary(6, 7)), [client(1), client(2)]);
    }
}
