//! Model check of migrations, on the real [`OutgoingMigrations`] and [`IncomingMigrations`]: within small bounds, all interleavings of two
//! nodes' steps. Connections move from the primary to the backup, which has them as reversed connections, and back. Heartbeats are lost or
//! late, agents die, a node loses its power, and either node takes over, right or wrong, at any moment. What the services and the kernels do
//! with the machines' answers is modelled. (The other explorations of this program ask who may speak for the service. The simulator plays
//! the service's own steps.)
//!
//! Checked: no connection ever has two owners, no socket goes on after the other node has spoken, and each connection has an owner, but for the
//! cases that docs/migration.md names.

use std::net::SocketAddr;

use stateright::{Model, Property};

use crate::bounds::wanted;
use crate::exploration::explore;
use steadfast_proto::Instant;
use steadfast_proto::migration::{
    IncomingMigrations, MigrationOffer, OFFERS_MAX, OfferAnswer, OfferedConnection, OutgoingMigrations,
};

/// Largest number of connections.
const CONNECTIONS: usize = 2;
/// When the operator's time is over.
const UNTIL: Instant = Instant::from_nanos(1000);
/// Exchanges of heartbeats after which every order has ended.
const ROUNDS: usize = 6;

const PRIMARY: usize = 0;
const BACKUP: usize = 1;

fn client(connection: usize) -> SocketAddr {
    ([10, 0, 0, 1], [4000, 4001][connection]).into()
}

fn connection_of(client: SocketAddr) -> usize {
    usize::from(client.port() - 4000)
}

/// What a node has of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NodePart {
    /// Its socket, which speaks. The application has it.
    Owner,
    /// Its socket, which speaks. The application does not have it yet, so no exchange is complete from which the other node could learn the
    /// connection.
    Taking,
    /// A restored socket, which is silent. The node's kernel stops the connection's packets.
    Reserved,
    /// Its socket, which is silent, and its log, which has nothing of the other node's socket. The connection is the other node's.
    Frozen,
    /// Its log. `is_learnt`: the log begins early enough that the node could go on from it. If not, the node has seen the connection only
    /// in its middle, and has still to learn it.
    Follower { is_learnt: bool },
    /// Nothing.
    None,
}

const LEARNT: NodePart = NodePart::Follower { is_learnt: true };
const UNLEARNT: NodePart = NodePart::Follower { is_learnt: false };

/// A heartbeat: what it says of migrations, and what is needed to tell whose it is (`proto::anti_replay`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MigrationWord {
    /// Number of the sender's agent.
    agent: u8,
    /// The receiver's agent that the sender last received a datagram of. Another agent does not accept the heartbeat.
    echo: Option<u8>,
    /// The sender has taken over.
    is_alone: bool,
    offers: Vec<MigrationOffer>,
    answers: Vec<OfferAnswer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OwnershipState {
    nodes: [MigratingNode; 2],
    /// The heartbeat that is on its way to each node.
    words: [Option<MigrationWord>; 2],
    /// The node that has taken over: the other node's packets no longer pass. Leases and epochs allow one node only.
    alone: Option<usize>,
    /// Connections whose owner has failed before the other node had learnt them.
    may_be_lost: [bool; CONNECTIONS],
    /// Connections of which the last frozen socket is old: the other node has spoken since.
    is_old: [bool; CONNECTIONS],
    /// An old socket has gone on.
    is_contradicted: bool,

    orders: u8,
    deaths: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MigratingNode {
    has_power: bool,
    agent: u8,
    /// The other node's agent that this node last received a datagram of.
    received: Option<u8>,
    /// The other node's agent whose heartbeats count.
    accepted: Option<u8>,
    outgoing: OutgoingMigrations,
    incoming: IncomingMigrations,
    parts: [NodePart; CONNECTIONS],
}

/// Each action but `Expire` is of the node with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnershipAction {
    /// The operator orders that a connection moves from this node to the other one.
    Order(usize, usize),
    /// The operator's time is over.
    Expire,
    /// The node sends a heartbeat.
    Speak(usize),
    /// The node hears the heartbeat that is on its way to it. Without this action, the sender's next heartbeat replaces it, so it is lost.
    Hear(usize),

    /// The node learns a connection of the other node, so that it could go on with it.
    Learn(usize, usize),
    /// The node reserves and restores a connection.
    Prepare(usize, usize),
    /// The node reserves a connection, cannot restore it, now or ever (true), and gives it back. The owner is told afterwards.
    Fail(usize, usize, bool),
    /// The node's application gets a connection that the node has taken.
    Decide(usize, usize),
    AgentDies(usize),
    LosesPower(usize),
    /// The node declares the other node dead.
    TakeOver(usize),
}

/// A broken rule, which the exploration must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnershipDefect {
    /// Each agent numbers its offers from 0.
    SameNumbers,
    /// The owner keeps the socket of a connection that it has released.
    KeptSocket,
    /// A node lets a connection speak as soon as it is restored.
    EarlyVoice,
    /// A node keeps what it has reserved for an offer that is withdrawn.
    Unreturned,
    /// The primary, when it takes over, leaves the reversed connections to the backup.
    Abandoned,
    /// An agent does not give back what its predecessor had reserved, as if it had been released.
    Claimed,
    /// The owner leaves a frozen socket as it is, when the other node refuses the connection.
    Unthawed,
    /// A node's kernel does not notice that the other node speaks.
    Unnoticed,
}

#[derive(Clone, Copy, Debug)]
struct OwnershipModel {
    connections: usize,
    orders: u8,
    deaths: u8,
    /// The operator may order that a connection moves from the primary although it does not live there.
    names_any: bool,
    defect: Option<OwnershipDefect>,
}

impl NodePart {
    const fn has_voice(self) -> bool {
        matches!(self, Self::Owner | Self::Taking)
    }
}

impl MigratingNode {
    fn new(part: NodePart, defect: Option<OwnershipDefect>) -> Self {
        Self {
            has_power: true,
            agent: 0,
            received: Some(0),
            accepted: Some(0),
            outgoing: Self::outgoing(0, defect),
            incoming: IncomingMigrations::default(),
            parts: [part; CONNECTIONS],
        }
    }

    /// The owner's side of an agent's life. The clock goes on from one agent to the next.
    fn outgoing(agent: u8, defect: Option<OwnershipDefect>) -> OutgoingMigrations {
        let same = defect == Some(OwnershipDefect::SameNumbers);
        let began = if same { 0 } else { u64::from(agent) * 100 };
        OutgoingMigrations::new(Instant::from_nanos(began), OFFERS_MAX)
    }

    fn word(&self, is_alone: bool) -> MigrationWord {
        let mut offers = self.outgoing.offers();
        for offer in &mut offers {
            offer.is_frozen = offer.is_released;
        }
        MigrationWord {
            agent: self.agent,
            echo: self.received,
            is_alone,
            offers,
            answers: self.incoming.answers(),
        }
    }

    /// Whether the heartbeat comes from the other node's present agent, and is meant for this one.
    fn accepts(&mut self, word: &MigrationWord) -> bool {
        self.received = self.received.max(Some(word.agent));
        if word.echo != Some(self.agent) || Some(word.agent) < self.accepted {
            return false;
        }
        if self.accepted.replace(word.agent) != Some(word.agent) {
            self.incoming.doubt();
        }
        true
    }

    fn hear_offers(&mut self, offers: &[MigrationOffer], defect: Option<OwnershipDefect>) {
        let heard = self.incoming.hear(offers);
        let withdrawn = heard.withdrawn.into_iter();
        for client in withdrawn.filter(|_| defect != Some(OwnershipDefect::Unreturned)) {
            self.give_back(connection_of(client));
        }
        for client in heard.unknown {
            let is_here = self.parts[connection_of(client)].has_voice();
            self.incoming.on_looked_for(client, is_here);
        }
        for client in heard.released {
            match &mut self.parts[connection_of(client)] {
                part @ NodePart::Reserved => *part = NodePart::Taking,
                NodePart::None
                | NodePart::Follower { .. }
                | NodePart::Taking
                | NodePart::Owner
                | NodePart::Frozen => {
                    self.incoming.on_decided(client);
                }
            }
        }
    }

    fn give_back(&mut self, connection: usize) {
        let part = &mut self.parts[connection];
        if *part == NodePart::Reserved {
            *part = LEARNT;
        }
    }

    /// Reserves and restores a connection, if it is offered and waits. Returns whether it is.
    fn prepare(&mut self, connection: usize, defect: Option<OwnershipDefect>) -> bool {
        let wanted = client(connection);
        let is_followed = self.parts[connection] == LEARNT;
        let moves = |client| is_followed && client == wanted;
        let check =
            |of: OfferedConnection| moves(of.client).then_some(()).ok_or_else(|| String::new().into());
        let chosen = self.incoming.choose(check);
        if !chosen.is_empty() {
            let speaks = defect == Some(OwnershipDefect::EarlyVoice);
            self.parts[connection] = if speaks {
                NodePart::Taking
            } else {
                NodePart::Reserved
            };
            self.incoming.on_restored(wanted);
        }
        !chosen.is_empty()
    }

    /// A new agent starts. It deletes what its predecessor had reserved. It has not followed any connection: what its predecessor had read of
    /// the log is lost (docs/roles.md, *A new agent*).
    fn restart(&mut self, defect: Option<OwnershipDefect>) {
        self.agent += 1;
        (self.received, self.accepted) = (None, None);
        self.outgoing = Self::outgoing(self.agent, defect);
        self.incoming.clear();
        for part in &mut self.parts {
            *part = match *part {
                NodePart::Reserved if defect == Some(OwnershipDefect::Claimed) => NodePart::Owner,
                NodePart::Reserved | NodePart::Follower { .. } => UNLEARNT,
                NodePart::Taking | NodePart::Owner => NodePart::Owner,
                NodePart::Frozen => NodePart::Frozen,
                NodePart::None => NodePart::None,
            };
        }
        let clients = (0..CONNECTIONS).filter(|&one| self.parts[one] == NodePart::Frozen);
        self.outgoing.resume(clients.map(client));
    }
}

impl OwnershipState {
    /// The node's socket may speak to the client.
    fn speaks(&self, node: usize, connection: usize) -> bool {
        let it = &self.nodes[node];
        it.has_power && it.parts[connection].has_voice() && self.alone.is_none_or(|alone| alone == node)
    }

    /// Whether a node can go on with the connection.
    fn has_owner(&self, connection: usize) -> bool {
        (0..2).any(|node| {
            let it = &self.nodes[node];
            let goes_on = match it.parts[connection] {
                NodePart::Owner | NodePart::Taking | NodePart::Reserved | NodePart::Frozen => {
                    self.alone.is_none_or(|alone| alone == node)
                }
                // The node has not noticed yet that the other node has lost its power.
                NodePart::Follower { is_learnt } => {
                    is_learnt && self.alone.is_none() && !self.nodes[1 - node].has_power
                }
                NodePart::None => false,
            };
            it.has_power && goes_on
        })
    }

    fn hear(&mut self, node: usize, defect: Option<OwnershipDefect>) {
        let Some(word) = self.words[node].take() else {
            return;
        };
        let it = &mut self.nodes[node];
        if !it.has_power || !it.accepts(&word) || self.alone == Some(node) {
            return;
        }
        if word.is_alone {
            it.parts = [NodePart::None; CONNECTIONS];
            it.outgoing.give_up();
            it.incoming.clear();
            return;
        }
        let answered = it.outgoing.on_answers(&word.answers);
        for released in answered.released {
            if defect != Some(OwnershipDefect::KeptSocket) {
                it.parts[connection_of(released)] = NodePart::Frozen;
                self.is_old[connection_of(released)] = false;
            }
        }
        for moved in answered.moved.into_iter().map(connection_of) {
            if it.parts[moved] == NodePart::Frozen {
                it.parts[moved] = UNLEARNT;
            }
        }
        let refused = answered.refused.into_iter();
        for client in refused.filter(|_| defect != Some(OwnershipDefect::Unthawed)) {
            self.thaw(node, connection_of(client));
        }
        self.nodes[node].hear_offers(&word.offers, defect);
        self.notice(defect);
    }

    /// The kernel has noticed nothing of the other node, so the frozen socket goes on.
    fn thaw(&mut self, node: usize, connection: usize) {
        let part = &mut self.nodes[node].parts[connection];
        if *part == NodePart::Frozen {
            *part = NodePart::Owner;
            self.is_contradicted |= self.is_old[connection];
        }
    }

    /// Each node's kernel notices on which connections the other one speaks.
    fn notice(&mut self, defect: Option<OwnershipDefect>) {
        let parts = self.nodes.each_ref().map(|node| node.parts);
        for (it, there) in self.nodes.iter_mut().zip([parts[1], parts[0]]) {
            for ((part, there), is_old) in it.parts.iter_mut().zip(there).zip(&mut self.is_old) {
                if *part == NodePart::Frozen && there.has_voice() {
                    *is_old = true;
                    if defect != Some(OwnershipDefect::Unnoticed) {
                        *part = UNLEARNT;
                    }
                }
            }
        }
    }

    /// An agent dies, and its successor starts.
    fn restart(&mut self, node: usize, defect: Option<OwnershipDefect>) {
        self.deaths += 1;
        self.nodes[node].restart(defect);
    }

    fn take_over(&mut self, node: usize, defect: Option<OwnershipDefect>) {
        self.alone = Some(node);
        (0..CONNECTIONS).for_each(|connection| self.thaw(node, connection));
        let it = &mut self.nodes[node];
        it.outgoing.withdraw();
        it.incoming.clear();
        for (part, may_be_lost) in it.parts.iter_mut().zip(&mut self.may_be_lost) {
            match *part {
                NodePart::Owner | NodePart::None | NodePart::Frozen => {}
                LEARNT if node == PRIMARY && defect == Some(OwnershipDefect::Abandoned) => {}
                NodePart::Taking | NodePart::Reserved | NodePart::Follower { is_learnt: true } => {
                    *part = NodePart::Owner
                }
                NodePart::Follower { is_learnt: false } => *may_be_lost = true,
            }
        }
    }

    fn turn_off(&mut self, node: usize) {
        self.deaths += 1;
        let was_alone = self.alone == Some(node);
        self.nodes[node].has_power = false;
        self.nodes[node].parts = [NodePart::None; CONNECTIONS];
        let rest = &self.nodes[1 - node].parts;
        for (part, may_be_lost) in rest.iter().zip(&mut self.may_be_lost) {
            *may_be_lost |=
                was_alone || matches!(part, NodePart::None | NodePart::Follower { is_learnt: false });
        }
    }

    /// Whether no connection is on its way.
    fn is_settled(&self) -> bool {
        self.nodes.iter().all(|node| {
            let is_on_its_way = |part: &NodePart| matches!(part, NodePart::Reserved | NodePart::Frozen);
            !node.parts.iter().any(is_on_its_way) && node.outgoing.report().pending == 0
        })
    }

    /// Heartbeats arrive, and nothing fails any more. At some time, the operator's time is over. Returns whether all orders end.
    fn settles(&mut self, model: &OwnershipModel) -> bool {
        use OwnershipAction::{Decide, Expire, Hear, Prepare, Speak};
        self.words = [None, None];
        for round in 0..ROUNDS {
            if round == ROUNDS / 3 {
                model.act(self, Expire);
            }
            for node in [BACKUP, PRIMARY] {
                for action in [
                    Speak(1 - node),
                    Hear(node),
                    Prepare(node, 0),
                    Prepare(node, 1),
                    Decide(node, 0),
                    Decide(node, 1),
                ] {
                    model.act(self, action);
                }
            }
            if self.is_settled() {
                return true;
            }
        }
        false
    }
}

impl OwnershipModel {
    fn act(&self, state: &mut OwnershipState, action: OwnershipAction) {
        let defect = self.defect;
        match action {
            OwnershipAction::Order(node, connection) => {
                state.nodes[node]
                    .outgoing
                    .order([client(connection)], None, UNTIL);
                state.orders += 1;
            }
            OwnershipAction::Expire => {
                for node in &mut state.nodes {
                    node.outgoing.on_timeout(UNTIL);
                }
            }
            OwnershipAction::Speak(node) if state.nodes[node].has_power => {
                let word = state.nodes[node].word(state.alone == Some(node));
                state.words[1 - node] = Some(word);
            }
            OwnershipAction::Speak(_) => {}
            OwnershipAction::Hear(node) => state.hear(node, defect),

            OwnershipAction::Learn(node, connection) => state.nodes[node].parts[connection] = LEARNT,
            OwnershipAction::Prepare(node, connection) => {
                state.nodes[node].prepare(connection, defect);
            }
            OwnershipAction::Fail(node, connection, is_final) => {
                let node = &mut state.nodes[node];
                if node.prepare(connection, defect) {
                    node.give_back(connection);
                    let reason = "no socket".to_owned();
                    node.incoming.on_failed(client(connection), reason, is_final);
                }
            }
            OwnershipAction::Decide(node, connection) => {
                let node = &mut state.nodes[node];
                if node.parts[connection] == NodePart::Taking {
                    node.parts[connection] = NodePart::Owner;
                    node.incoming.on_decided(client(connection));
                }
            }
            OwnershipAction::AgentDies(node) => state.restart(node, defect),
            OwnershipAction::LosesPower(node) => state.turn_off(node),
            OwnershipAction::TakeOver(node) => state.take_over(node, defect),
        }
    }

    /// The actions of a node that only a pair can do, or a node that still has its peer.
    fn actions_of(&self, state: &OwnershipState, node: usize, actions: &mut Vec<OwnershipAction>) {
        use OwnershipAction::*;
        let (it, other) = (&state.nodes[node], &state.nodes[1 - node]);
        for connection in 0..self.connections {
            let is_here = it.parts[connection] == NodePart::Owner;
            // The connections differ only in their numbers, so the first order names connection 0.
            let is_next = state.orders < self.orders && usize::from(state.orders) >= connection;
            // A backup moves only what lives on it. A primary offers each connection that is named.
            if is_next && (is_here || node == PRIMARY && self.names_any) {
                actions.push(Order(node, connection));
            }
            if it.parts[connection] == UNLEARNT && other.parts[connection] == NodePart::Owner {
                actions.push(Learn(node, connection));
            }
            let failures = [Fail(node, connection, false), Fail(node, connection, true)];
            actions.extend([Prepare(node, connection), Decide(node, connection)]);
            actions.extend(failures);
        }
        actions.push(TakeOver(node));
    }
}

impl Model for OwnershipModel {
    type State = OwnershipState;
    type Action = OwnershipAction;

    fn init_states(&self) -> Vec<OwnershipState> {
        vec![OwnershipState {
            nodes: [NodePart::Owner, LEARNT].map(|part| MigratingNode::new(part, self.defect)),
            words: [None, None],
            alone: None,
            may_be_lost: [false; CONNECTIONS],
            is_old: [false; CONNECTIONS],
            is_contradicted: false,

            orders: 0,
            deaths: 0,
        }]
    }

    fn actions(&self, state: &OwnershipState, actions: &mut Vec<OwnershipAction>) {
        use OwnershipAction::*;
        actions.extend(state.alone.is_none().then_some(Expire));
        let has_both = state.nodes.iter().all(|node| node.has_power);
        for node in [PRIMARY, BACKUP] {
            actions.extend([Speak(node), Hear(node)]);
            if state.nodes[node].has_power && state.alone.is_none() {
                self.actions_of(state, node, actions);
            }
            if state.deaths < self.deaths && has_both {
                actions.extend([AgentDies(node), LosesPower(node)]);
            }
        }
    }

    fn next_state(&self, last: &OwnershipState, action: OwnershipAction) -> Option<OwnershipState> {
        let mut state = last.clone();
        self.act(&mut state, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no connection has two owners", |_, state: &OwnershipState| {
                (0..CONNECTIONS).all(|one| !(state.speaks(PRIMARY, one) && state.speaks(BACKUP, one)))
            }),
            Property::always("each connection has an owner", |_, state: &OwnershipState| {
                (0..CONNECTIONS).all(|one| state.may_be_lost[one] || state.has_owner(one))
            }),
            Property::always("no old socket goes on", |_, state: &OwnershipState| {
                !state.is_contradicted
            }),
            Property::always("every order ends", |model: &Self, state: &OwnershipState| {
                let is_pair = state.alone.is_none() && state.nodes.iter().all(|node| node.has_power);
                !is_pair || state.is_settled() || state.clone().settles(model)
            }),
            Property::sometimes("all connections move", |model: &Self, state: &OwnershipState| {
                state.nodes[PRIMARY].outgoing.report().moved == model.connections as u64
            }),
            Property::sometimes("one moves back", |_, state: &OwnershipState| {
                state.nodes[BACKUP].outgoing.report().moved == 1
            }),
            Property::sometimes(
                "the primary goes on alone with one that had moved",
                |_, state: &OwnershipState| {
                    let node = &state.nodes[PRIMARY];
                    let moved = node.outgoing.report().moved;
                    state.alone == Some(PRIMARY) && moved == 1 && state.speaks(PRIMARY, 0)
                },
            ),
            Property::sometimes(
                "the backup goes on alone with one that has returned",
                |_, state: &OwnershipState| {
                    let moved = state.nodes[BACKUP].outgoing.report().moved;
                    state.alone == Some(BACKUP) && moved == 1 && state.speaks(BACKUP, 0)
                },
            ),
        ]
    }
}

/// Two connections, of which both can move, to the backup and back.
#[test]
fn a_migrating_connection_has_one_owner() {
    let model = OwnershipModel {
        connections: 2,
        orders: 2,
        deaths: if wanted().0 { 2 } else { 1 },
        names_any: true,
        defect: None,
    };
    assert_eq!(explore(model), [""; 0]);
}

/// One connection, which moves to the backup, back, and to the backup again.
#[test]
fn a_connection_that_moves_back_has_one_owner() {
    let model = OwnershipModel {
        connections: 1,
        orders: 3,
        deaths: if wanted().0 { 2 } else { 1 },
        names_any: false,
        defect: None,
    };
    assert_eq!(explore(model), [""; 0]);
}

#[test]
fn broken_rules_of_a_migration_are_noticed() {
    use OwnershipDefect::{
        Abandoned, Claimed, EarlyVoice, KeptSocket, SameNumbers, Unnoticed, Unreturned, Unthawed,
    };
    for (defect, rule) in [
        (KeptSocket, "no connection has two owners"),
        (EarlyVoice, "no connection has two owners"),
        (Claimed, "no connection has two owners"),
        (SameNumbers, "every order ends"),
        (Abandoned, "each connection has an owner"),
        (Unreturned, "every order ends"),
        (Unthawed, "every order ends"),
        (Unnoticed, "no old socket goes on"),
    ] {
        let broken = explore(OwnershipModel {
            connections: 2,
            orders: 2,
            deaths: 1,
            names_any: true,
            defect: Some(defect),
        });
        assert!(broken.contains(&rule), "{defect:?}: {broken:?}");
    }
}
