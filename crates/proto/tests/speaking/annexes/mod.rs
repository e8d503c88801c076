//! Model check of connections on annexes (docs/annex.md), on the real [`Annexes`] of the wire, `CarriedConnections` of the primary and
//! `AnnexHost` of an annex: within small bounds, all interleavings of the steps of a primary, its wire and an annex with one connection. The
//! connection moves to the annex and back. Then a link is reset, the annex or the wire loses its power, or an agent dies. The primary speaks
//! alone, or a new wire comes before.
//! The steps that services and kernels take at the machines' answers are modelled ([`wire`], [`nodes`]).
//!
//! With several failures, only the safety rules are checked: the connection may end without an owner.
//!
//! Checked: no two nodes speak for the connection, no socket speaks after another one has spoken that was made later or had it meanwhile,
//! and some node speaks for it when all is quiet, but for the cases that docs/annex.md names.

mod link;
mod nodes;
mod steps;
mod wire;

use std::net::SocketAddr;

use proto::Instant;
use proto::annex::{AnnexId, ServingNode};
use steadfast_proto as proto;

use super::bounds::wanted;
use super::exploration::explore;
use link::{LinkPhase, LinkSay, ModelLink};
use nodes::{LeadsTo, ModelAnnex, ModelSocket, PrimaryNode, PrimaryRole};
use wire::{WireEntry, WireNode, index_of, node_of};

/// Number of annexes.
const ANNEXES: usize = 2;
/// The time of all steps but timeouts.
const NOW: Instant = Instant::from_nanos(1);
/// When the time of each step is over.
const LATE: Instant = Instant::from_nanos(3_600_000_000_000);

fn client() -> SocketAddr {
    ([10, 0, 0, 1], 4000).into()
}

/// The identity of the annex with this index.
fn annex_id(index: usize) -> AnnexId {
    AnnexId(u32::try_from(index).expect("few annexes") + 1)
}

/// A link of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkName {
    /// Of the wire to a node.
    Wire(usize),
    /// Of the primary to an annex.
    Primary(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnnexAction {
    /// The operator orders the connection to this node.
    Order(usize),
    /// The primary lets go of the connection.
    Release,
    /// The order to the primary is taken back.
    Withdraw,
    /// The wire hears that the primary has let go.
    HearRelease,
    /// A heartbeat of the wire, or of the primary, arrives.
    HearWire,
    HearPrimary,
    /// The wire could go on with the connection from now on.
    Protect,
    /// The caller begins a link.
    Begin(LinkName),
    /// The called node reads a message, the caller an answer.
    Call(LinkName),
    Answer(LinkName),
    /// The called node reads a message of the link before, or its end.
    Old(LinkName),
    /// The caller notices that the called node has died, or does not get an answer any more.
    Notice(LinkName),
    GiveUp(LinkName),
    /// The primary misses its wire, and speaks alone.
    Miss,
    GoAlone,
    /// A new wire, which knows nothing.
    Join,
    /// The time of claims, or of the wire's steps, is over.
    ExpireClaims,
    ExpireSteps,

    Reset(LinkName),
    AnnexDies(usize),
    WireDies,
    WireAgentDies,
    PrimaryAgentDies,
}

/// A broken rule, which the exploration must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnnexDefect {
    /// An annex gives its connections to a primary with any number of a take-back.
    ForgottenNumber,
    /// The wire speaks for what it has taken back before the primary has heard the number.
    Unheard,
    /// The wire starts a connection elsewhere before the annex has dropped it.
    Undropped,
    /// An annex obeys a wire that does not know what the primary carries.
    Unknowing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AnnexedState {
    epoch: u64,
    primary: PrimaryNode,
    wire: Option<WireNode>,
    annexes: [ModelAnnex; ANNEXES],
    /// Number of the wire's agent, also of later wires.
    agent: u64,
    orders: u8,
    faults: u8,
    /// docs/annex.md says that nobody has the connection.
    may_be_lost: bool,
    /// The primary's agent was started again while it carried. Its next wire learns only what the annexes have told the new agent.
    is_asking_again: bool,
    /// The connection has been on an annex.
    has_moved: bool,
    /// A primary has carried it.
    was_carried: bool,
    /// Two nodes have spoken at a time, or a socket after another one.
    had_two_owners: bool,
    had_old_state: bool,
}

#[derive(Clone, Copy, Debug)]
struct AnnexModel {
    /// Number of annexes that are there.
    annexes: usize,
    orders: u8,
    faults: u8,
    defect: Option<AnnexDefect>,
}

impl AnnexedState {
    fn link(&mut self, name: LinkName) -> Option<&mut ModelLink> {
        match name {
            LinkName::Wire(to) => self.wire.as_mut().map(|wire| &mut wire.links[to]),
            LinkName::Primary(to) => Some(&mut self.primary.links[to]),
        }
    }

    fn names() -> impl Iterator<Item = LinkName> {
        let of_wire = (0..=ANNEXES).map(LinkName::Wire);
        of_wire.chain((0..ANNEXES).map(LinkName::Primary))
    }

    /// The index of the annex to which the link leads.
    const fn annex_of(name: LinkName) -> Option<usize> {
        match name {
            LinkName::Wire(to) => to.checked_sub(1),
            LinkName::Primary(to) => Some(to),
        }
    }

    /// A number that no other link of the called node has.
    fn free_number(&mut self, name: LinkName) -> u64 {
        let to = Self::annex_of(name);
        let used: Vec<_> = Self::names()
            .filter(|other| Self::annex_of(*other) == to)
            .filter_map(|other| self.link(other).cloned())
            .flat_map(|link| [Some(link.number), link.old.map(|(number, _)| number)])
            .flatten()
            .collect();
        let host = to.map_or(&self.primary.host, |annex| &self.annexes[annex].host);
        (1..)
            .find(|number| !used.contains(number) && !host.obeys(*number))
            .expect("few links")
    }

    fn begin(&mut self, name: LinkName) {
        let number = self.free_number(name);
        let greeting = match name {
            LinkName::Wire(to) => self.wire.as_ref().map(|wire| {
                let named = wire.names(node_of(to)).then(client);
                wire.greeting.to_host_of(named.as_slice())
            }),
            LinkName::Primary(_) => self.primary.greeting.map(|greeting| greeting.to_host_of(&[])),
        };
        if let (Some(greeting), Some(link)) = (greeting, self.link(name)) {
            (link.number, link.phase) = (number, LinkPhase::Greeting);
            link.to = vec![LinkSay::Hello(greeting)];
        }
    }

    /// Whether the caller may begin the link now: there is none, or the called node has refused its greeting.
    fn may_begin(&mut self, name: LinkName) -> bool {
        let is_wanted = match name {
            LinkName::Wire(_) => true,
            LinkName::Primary(_) => self.primary.greeting.is_some(),
        };
        let is_over = |link: &mut ModelLink| {
            let is_refused = link.phase == LinkPhase::Greeting && link.to.is_empty() && link.from.is_empty();
            link.phase == LinkPhase::Idle || is_refused && !link.is_dead
        };
        is_wanted && self.link(name).is_some_and(is_over)
    }

    /// The called node reads a message of the link with this number.
    fn read(&mut self, name: LinkName, number: u64, word: &LinkSay, model: &AnnexModel) -> Option<LinkSay> {
        let from = match name {
            LinkName::Wire(0) => return self.primary.on_call(number, word),
            LinkName::Wire(_) => LeadsTo::Wire,
            LinkName::Primary(_) => LeadsTo::Primary,
        };
        let annex = Self::annex_of(name).expect("of an annex");
        let before = self.annexes[annex].host.clone();
        let answer = self.annexes[annex].on_call(NOW, (number, from), word, model.defect);
        if let (LinkSay::Hello(_), Some(_)) = (word, &answer) {
            for other in Self::names().filter(|other| Self::annex_of(*other) == Some(annex)) {
                if let Some(link) = self.link(other)
                    && link.number != number
                    && before.obeys(link.number)
                    && link.phase != LinkPhase::Idle
                {
                    link.answer(LinkSay::Superseded);
                }
            }
        }
        answer
    }

    fn call(&mut self, name: LinkName, model: &AnnexModel) {
        let Some(link) = self.link(name).filter(|link| !link.to.is_empty()) else {
            return;
        };
        let (number, word) = (link.number, link.to.remove(0));
        let answer = self.read(name, number, &word, model);
        if let (Some(answer), Some(link)) = (answer, self.link(name)) {
            link.answer(answer);
        }
    }

    /// The called node reads the next message of the link before, or notices its end.
    fn read_old(&mut self, name: LinkName, model: &AnnexModel) {
        let Some((number, words)) = self.link(name).and_then(|link| link.old.as_mut()) else {
            return;
        };
        let number = *number;
        if words.is_empty() {
            self.link(name).expect("it is there").old = None;
            match Self::annex_of(name) {
                None => self.primary.host.on_link_end(NOW, number),
                Some(annex) => self.annexes[annex].host.on_link_end(NOW, number),
            }
        } else {
            let word = words.remove(0);
            self.read(name, number, &word, model);
        }
    }

    fn answer(&mut self, name: LinkName, model: &AnnexModel) {
        let Some(link) = self.link(name).filter(|link| !link.from.is_empty()) else {
            return;
        };
        let word = link.from.remove(0);
        match (name, &mut self.wire) {
            _ if word == LinkSay::Superseded => {
                self.reset(name, model);
                self.give_up(name, model);
            }
            (LinkName::Wire(from), Some(wire)) => wire.on_answer(node_of(from), word, model.defect),
            (LinkName::Wire(_), None) => {}
            (LinkName::Primary(from), _) => self.primary.on_answer(from, &word),
        }
    }

    /// The link is reset. The called node has read what came on the link before that.
    fn reset(&mut self, name: LinkName, model: &AnnexModel) {
        while self.link(name).is_some_and(|link| link.old.is_some()) {
            self.read_old(name, model);
        }
        let Some(link) = self.link(name) else { return };
        let is_known = link.is_called_again;
        if link.reset() || is_known {
            link.is_called_again = true;
            if matches!(name, LinkName::Wire(0) | LinkName::Primary(_)) {
                self.give_up(name, model);
            }
        }
    }

    /// The caller believes that the called node is not there any more. A wire calls an annex again before that.
    fn give_up(&mut self, name: LinkName, model: &AnnexModel) {
        if !self
            .link(name)
            .is_some_and(|link| std::mem::take(&mut link.is_called_again))
        {
            return;
        }
        match (name, &mut self.wire) {
            (LinkName::Wire(to), Some(wire)) => wire.on_down(node_of(to), model.defect),
            (LinkName::Wire(_), None) => {}
            (LinkName::Primary(to), _) => self.primary.carried.on_down(NOW, annex_id(to)),
        }
    }

    /// All links of the wire's or of the primary's agent end, because it has died.
    fn end_links(&mut self, is_of: impl Fn(LinkName) -> bool, model: &AnnexModel) {
        for name in Self::names().filter(|name| is_of(*name)) {
            while self.link(name).is_some_and(|link| link.old.is_some()) {
                self.read_old(name, model);
            }
            if let Some(link) = self.link(name) {
                link.reset();
                if let Some((_, words)) = &mut link.old {
                    words.clear();
                }
            }
            self.read_old(name, model);
        }
    }

    /// The node on which a socket speaks to the client: the primary, an annex, or the wire (`None`).
    fn speakers(&self) -> Vec<Option<ServingNode>> {
        let entry = self
            .wire
            .as_ref()
            .map_or(WireEntry::At(ServingNode::Primary), |wire| wire.entry);
        let is_started = |socket: Option<ModelSocket>| socket.is_some_and(|socket| socket.is_started);
        let passes_primary = entry == WireEntry::At(ServingNode::Primary)
            && (self.wire.is_some() || self.primary.role == PrimaryRole::Alone);
        let mut speakers = Vec::new();
        speakers.extend((entry == WireEntry::Taken).then_some(None));
        let from_primary = passes_primary && self.primary.map.is_none() && is_started(self.primary.socket);
        speakers.extend(from_primary.then_some(Some(ServingNode::Primary)));
        for (index, annex) in self.annexes.iter().enumerate() {
            let node = ServingNode::Annex(annex_id(index));
            let passes = match annex.leads_to {
                Some(LeadsTo::Wire) => entry == WireEntry::At(node),
                Some(LeadsTo::Primary) => passes_primary && self.primary.map == node.annex(),
                None => false,
            };
            speakers.extend((passes && is_started(annex.socket)).then_some(Some(node)));
        }
        speakers
    }

    fn socket(&mut self, node: ServingNode) -> &mut Option<ModelSocket> {
        match index_of(node) {
            0 => &mut self.primary.socket,
            annex => &mut self.annexes[annex - 1].socket,
        }
    }

    /// Each socket that may speak says something.
    fn note_voices(&mut self) {
        let speakers = self.speakers();
        self.had_two_owners |= speakers.len() > 1;
        for &speaker in &speakers {
            if let Some(node) = speaker {
                self.had_old_state |= self.socket(node).is_some_and(|socket| socket.is_old);
                self.has_moved |= node != ServingNode::Primary;
                let is_through_primary = node.annex().is_some_and(|annex| self.primary.map == Some(annex));
                self.was_carried |=
                    is_through_primary && self.wire.is_none() && self.primary.role == PrimaryRole::Alone;
            }
            for other in (0..=ANNEXES).map(node_of) {
                if Some(other) != speaker
                    && let Some(socket) = self.socket(other)
                {
                    socket.is_old = true;
                }
            }
        }
    }
}

/// The connection moves to an annex and back, or to another annex.
#[test]
fn a_connection_on_an_annex_has_one_owner() {
    let model = |annexes, orders, faults| AnnexModel {
        annexes,
        orders,
        faults,
        defect: None,
    };
    assert_eq!(explore(model(1, 2, 1)), [""; 0]);
    if wanted().0 {
        assert_eq!(explore(model(1, 1, 2)), [""; 0], "two failures");
        let of_failures = ["a new wire passes what was carried"];
        assert_eq!(explore(model(2, 2, 0)), of_failures, "from one annex to another");
    }
}

#[test]
fn broken_rules_of_annexes_are_noticed() {
    use AnnexDefect::{ForgottenNumber, Undropped, Unheard, Unknowing};
    let (old, owned) = ("no old state speaks", "each connection has an owner");
    for (defect, rule) in [
        (ForgottenNumber, old),
        (Unheard, old),
        (Undropped, old),
        (Unknowing, owned),
    ] {
        let broken = explore(AnnexModel {
            annexes: 1,
            orders: if defect == Undropped { 2 } else { 1 },
            faults: u8::from(matches!(defect, ForgottenNumber | Unheard)) + 1,
            defect: Some(defect),
        });
        assert!(broken.contains(&rule), "{defect:?}: {broken:?}");
    }
}
