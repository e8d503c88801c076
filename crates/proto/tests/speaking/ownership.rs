//! Model check of migrations, on the real [`OutgoingMigrations`] and [`IncomingMigrations`]: within small bounds, all interleavings of two
//! nodes' steps. Heartbeats are lost or late, agents die, a node loses its power, and the backup takes over, right or wrong, at any moment.
//! What the service and the kernels do with the machines' answers is modelled. (The other explorations of this program ask who may speak for
//! the service. The simulator plays the service's own steps.)
//!
//! Checked: no connection ever has two owners, and each has one, but for the cases that docs/migration.md names.

use std::net::SocketAddr;

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::bounds::wanted;
use steadfast_proto::Instant;
use steadfast_proto::migration::{
    IncomingMigrations, MigrationOffer, OFFERS_MAX, OfferAnswer, OutgoingMigrations,
};

/// Number of connections.
const CONNECTIONS: usize = 2;
/// When the operator's time is over.
const UNTIL: Instant = Instant::from_nanos(1000);
/// Exchanges of heartbeats after which every order has ended.
const ROUNDS: usize = 8;

fn client(connection: usize) -> SocketAddr {
    ([10, 0, 0, 1], [4000, 4001][connection]).into()
}

fn connection_of(client: SocketAddr) -> usize {
    usize::from(client.port() - 4000)
}

/// What the backup's kernel does with a connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HeldEntry {
    /// They pass.
    None,
    /// They stop, and the restored socket is silent.
    Reserved,
    /// The restored socket speaks.
    Live,
}

/// A heartbeat: what it says of migrations, and what is needed to tell whose it is (`proto::anti_replay`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MigrationWord<T> {
    /// Number of the sender's agent.
    agent: u8,
    /// The receiver's agent that the sender last received a datagram of. Another agent does not accept the heartbeat.
    echo: Option<u8>,
    says: Vec<T>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OwnershipState {
    primary: PrimaryNode,
    backup: BackupNode,
    to_backup: Option<MigrationWord<MigrationOffer>>,
    to_primary: Option<MigrationWord<OfferAnswer>>,
    /// The backup has taken over: the primary's packets no longer pass.
    is_taken_over: bool,
    /// Connections whose owner has failed, or that were between the two nodes when an agent or a node died: docs/migration.md names these
    /// cases.
    may_be_lost: [bool; CONNECTIONS],
    orders: u8,
    deaths: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PrimaryNode {
    has_power: bool,
    agent: u8,
    /// The backup's agent that this node last received a datagram of.
    received: Option<u8>,
    outgoing: OutgoingMigrations,
    sockets: [bool; CONNECTIONS],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BackupNode {
    has_power: bool,
    agent: u8,
    received: Option<u8>,
    /// The primary's agent whose heartbeats count.
    accepted: Option<u8>,
    incoming: IncomingMigrations,
    entries: [HeldEntry; CONNECTIONS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnershipAction {
    /// The operator orders that a connection moves.
    Order(usize),
    /// The operator's time is over.
    Expire,
    Offer,
    HearOffers,
    LoseOffers,
    Answer,
    HearAnswers,
    LoseAnswers,
    /// The backup reserves and restores a connection.
    Prepare(usize),
    /// The backup reserves a connection, cannot restore it, now or ever (true), and gives it back. The primary is told afterwards.
    Fail(usize, bool),
    Decide(usize),
    PrimarysAgentDies,
    BackupsAgentDies,
    PrimaryLosesPower,
    BackupLosesPower,
    /// The backup declares the primary dead.
    TakeOver,
}

/// A broken rule, which the exploration must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnershipDefect {
    /// Each agent numbers its offers from 0.
    SameNumbers,
    /// The primary keeps the socket of a connection that it has released.
    KeptSocket,
    /// The backup lets a connection speak as soon as it is restored.
    EarlyVoice,
    /// The backup keeps what it has reserved for an offer that is withdrawn.
    Unreturned,
}

#[derive(Clone, Copy, Debug)]
struct OwnershipModel {
    orders: u8,
    deaths: u8,
    defect: Option<OwnershipDefect>,
}

impl PrimaryNode {
    /// The primary's side of an agent's life. The clock goes on from one agent to the next.
    fn outgoing(agent: u8, defect: Option<OwnershipDefect>) -> OutgoingMigrations {
        let same = defect == Some(OwnershipDefect::SameNumbers);
        let began = if same { 0 } else { u64::from(agent) * 100 };
        OutgoingMigrations::new(Instant::from_nanos(began), OFFERS_MAX)
    }
}

impl OwnershipState {
    /// The primary's socket may speak to the client.
    fn primary_speaks(&self, connection: usize) -> bool {
        self.primary.has_power && self.primary.sockets[connection] && !self.is_taken_over
    }

    fn backup_speaks(&self, connection: usize) -> bool {
        self.backup.has_power && self.backup.entries[connection] == HeldEntry::Live
    }

    /// Whether a node can go on with the connection.
    fn has_owner(&self, connection: usize) -> bool {
        let is_on_its_way = self.backup.entries[connection] == HeldEntry::Reserved;
        // The backup follows all connections of a primary that has lost its power, and has not noticed yet.
        let follows = !self.primary.has_power && !self.is_taken_over;
        self.primary_speaks(connection)
            || self.backup_speaks(connection)
            || self.backup.has_power && (is_on_its_way || follows)
    }

    /// The primary hears what the backup says.
    fn hear_answers(&mut self, defect: Option<OwnershipDefect>) {
        let Some(beat) = self.to_primary.take().filter(|_| self.primary.has_power) else {
            return;
        };
        let primary = &mut self.primary;
        primary.received = primary.received.max(Some(beat.agent));
        if beat.echo != Some(primary.agent) {
            return;
        }
        if self.is_taken_over {
            primary.sockets = [false; CONNECTIONS];
            primary.outgoing.give_up();
            return;
        }
        let is_of_the_dead = !self.backup.has_power || beat.agent != self.backup.agent;
        for released in primary.outgoing.on_answers(&beat.says).0 {
            self.may_be_lost[connection_of(released)] |= is_of_the_dead;
            if defect != Some(OwnershipDefect::KeptSocket) {
                primary.sockets[connection_of(released)] = false;
            }
        }
    }

    /// The backup hears what the primary offers.
    fn hear_offers(&mut self, defect: Option<OwnershipDefect>) {
        let Some(beat) = self.to_backup.take().filter(|_| self.backup.has_power) else {
            return;
        };
        let backup = &mut self.backup;
        backup.received = backup.received.max(Some(beat.agent));
        if beat.echo != Some(backup.agent) || Some(beat.agent) < backup.accepted || self.is_taken_over {
            return;
        }
        if backup.accepted.replace(beat.agent) != Some(beat.agent) {
            backup.incoming.clear();
            (0..CONNECTIONS).for_each(|connection| self.give_back(connection));
        }
        let heard = self.backup.incoming.hear(&beat.says);
        let withdrawn = heard.withdrawn.into_iter();
        for client in withdrawn.filter(|_| defect != Some(OwnershipDefect::Unreturned)) {
            self.give_back(connection_of(client));
        }
        for client in heard.released {
            match &mut self.backup.entries[connection_of(client)] {
                entry @ HeldEntry::Reserved => *entry = HeldEntry::Live,
                HeldEntry::None | HeldEntry::Live => self.backup.incoming.on_decided(client),
            }
        }
    }

    fn give_back(&mut self, connection: usize) {
        let entry = &mut self.backup.entries[connection];
        if *entry == HeldEntry::Reserved {
            *entry = HeldEntry::None;
        }
    }

    /// The backup reserves and restores a connection, if it is offered and waits. Returns whether it is.
    fn prepare(&mut self, connection: usize, defect: Option<OwnershipDefect>) -> bool {
        let wanted = client(connection);
        // A connection that lives here is no longer followed.
        let is_followed = self.backup.entries[connection] != HeldEntry::Live;
        let moves = |client| is_followed && client == wanted;
        let check = |client| moves(client).then_some(()).ok_or_else(String::new);
        let chosen = self.backup.incoming.choose(check);
        if !chosen.is_empty() {
            let speaks = defect == Some(OwnershipDefect::EarlyVoice);
            self.backup.entries[connection] = if speaks {
                HeldEntry::Live
            } else {
                HeldEntry::Reserved
            };
            self.backup.incoming.on_restored(wanted);
        }
        !chosen.is_empty()
    }

    /// An agent dies, and its successor starts. If a connection is between the two nodes at this moment, nobody has it.
    fn count_death(&mut self) {
        self.deaths += 1;
        for connection in 0..CONNECTIONS {
            let is_between =
                !self.primary.sockets[connection] && self.backup.entries[connection] == HeldEntry::Reserved;
            self.may_be_lost[connection] |= is_between;
        }
    }

    fn restart_primary(&mut self, defect: Option<OwnershipDefect>) {
        self.count_death();
        let primary = &mut self.primary;
        primary.agent += 1;
        (primary.received, primary.outgoing) = (None, PrimaryNode::outgoing(primary.agent, defect));
    }

    /// The backup's new agent deletes what its predecessor had reserved.
    fn restart_backup(&mut self) {
        self.count_death();
        (0..CONNECTIONS).for_each(|connection| self.give_back(connection));
        let backup = &mut self.backup;
        backup.agent += 1;
        (backup.received, backup.accepted) = (None, None);
        backup.incoming.clear();
    }

    fn take_over(&mut self) {
        self.is_taken_over = true;
        self.backup.incoming.clear();
        for connection in 0..CONNECTIONS {
            let is_lost = self.may_be_lost[connection];
            let entry = &mut self.backup.entries[connection];
            if *entry == HeldEntry::Reserved || !is_lost {
                *entry = HeldEntry::Live;
            }
        }
    }

    fn turn_off_backup(&mut self) {
        self.deaths += 1;
        self.backup.has_power = false;
        self.backup.entries = [HeldEntry::None; CONNECTIONS];
        for connection in 0..CONNECTIONS {
            self.may_be_lost[connection] |= !self.primary.sockets[connection] || self.is_taken_over;
        }
    }

    /// Heartbeats arrive, and nothing fails any more. At some time, the operator's time is over.
    fn settle(&mut self, model: &OwnershipModel) {
        use OwnershipAction::{Answer, Decide, Expire, HearAnswers, HearOffers, Offer, Prepare};
        (self.to_backup, self.to_primary) = (None, None);
        for round in 0..ROUNDS {
            if round == ROUNDS / 2 {
                model.act(self, Expire);
            }
            for action in [
                Offer,
                HearOffers,
                Prepare(0),
                Prepare(1),
                Decide(0),
                Decide(1),
                Answer,
                HearAnswers,
            ] {
                model.act(self, action);
            }
        }
    }
}

impl OwnershipModel {
    fn act(&self, state: &mut OwnershipState, action: OwnershipAction) {
        let (primary, backup) = (&mut state.primary, &mut state.backup);
        match action {
            OwnershipAction::Order(connection) => {
                primary.outgoing.order([client(connection)], UNTIL);
                state.orders += 1;
            }
            OwnershipAction::Expire => drop(primary.outgoing.on_timeout(UNTIL)),
            OwnershipAction::Offer if primary.has_power => {
                let (agent, echo, says) = (primary.agent, primary.received, primary.outgoing.offers());
                state.to_backup = Some(MigrationWord { agent, echo, says });
            }
            OwnershipAction::Answer if backup.has_power => {
                let (agent, echo, says) = (backup.agent, backup.received, backup.incoming.answers());
                state.to_primary = Some(MigrationWord { agent, echo, says });
            }
            OwnershipAction::Offer | OwnershipAction::Answer => {}
            OwnershipAction::HearOffers => state.hear_offers(self.defect),
            OwnershipAction::HearAnswers => state.hear_answers(self.defect),
            OwnershipAction::LoseOffers => state.to_backup = None,
            OwnershipAction::LoseAnswers => state.to_primary = None,
            OwnershipAction::Prepare(connection) => drop(state.prepare(connection, self.defect)),
            OwnershipAction::Fail(connection, is_final) => {
                if state.prepare(connection, self.defect) {
                    state.give_back(connection);
                    let incoming = &mut state.backup.incoming;
                    incoming.on_failed(client(connection), "no socket".to_owned(), is_final);
                }
            }
            OwnershipAction::Decide(connection) => {
                if backup.entries[connection] == HeldEntry::Live {
                    backup.incoming.on_decided(client(connection));
                }
            }
            OwnershipAction::PrimarysAgentDies => state.restart_primary(self.defect),
            OwnershipAction::BackupsAgentDies => state.restart_backup(),
            OwnershipAction::PrimaryLosesPower => {
                state.deaths += 1;
                primary.has_power = false;
                primary.sockets = [false; CONNECTIONS];
            }
            OwnershipAction::BackupLosesPower => state.turn_off_backup(),
            OwnershipAction::TakeOver => state.take_over(),
        }
    }
}

impl Model for OwnershipModel {
    type State = OwnershipState;
    type Action = OwnershipAction;

    fn init_states(&self) -> Vec<OwnershipState> {
        vec![OwnershipState {
            primary: PrimaryNode {
                has_power: true,
                agent: 0,
                received: Some(0),
                outgoing: PrimaryNode::outgoing(0, self.defect),
                sockets: [true; CONNECTIONS],
            },
            backup: BackupNode {
                has_power: true,
                agent: 0,
                received: Some(0),
                accepted: Some(0),
                incoming: IncomingMigrations::default(),
                entries: [HeldEntry::None; CONNECTIONS],
            },
            to_backup: None,
            to_primary: None,
            is_taken_over: false,
            may_be_lost: [false; CONNECTIONS],
            orders: 0,
            deaths: 0,
        }]
    }

    fn actions(&self, state: &OwnershipState, actions: &mut Vec<OwnershipAction>) {
        use OwnershipAction::*;
        let (primary, backup) = (&state.primary, &state.backup);
        actions.extend([Expire, Offer, HearOffers, LoseOffers]);
        actions.extend([Answer, HearAnswers, LoseAnswers]);
        for connection in 0..CONNECTIONS {
            if primary.has_power && state.orders < self.orders && !state.is_taken_over {
                actions.push(Order(connection));
            }
            if backup.has_power && !state.is_taken_over {
                let failures = [Fail(connection, false), Fail(connection, true)];
                actions.extend([Prepare(connection), Decide(connection)]);
                actions.extend(failures);
            }
        }
        if backup.has_power && !state.is_taken_over {
            actions.push(TakeOver);
        }
        if state.deaths < self.deaths && primary.has_power && backup.has_power {
            actions.extend([PrimarysAgentDies, BackupsAgentDies]);
            actions.extend([PrimaryLosesPower, BackupLosesPower]);
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
                (0..CONNECTIONS).all(|one| !(state.primary_speaks(one) && state.backup_speaks(one)))
            }),
            Property::always("each connection has an owner", |_, state: &OwnershipState| {
                (0..CONNECTIONS).all(|one| state.may_be_lost[one] || state.has_owner(one))
            }),
            Property::always("every order ends", |model: &Self, state: &OwnershipState| {
                let mut state = state.clone();
                let lives = state.primary.has_power && state.backup.has_power && !state.is_taken_over;
                state.settle(model);
                let is_reserved = state.backup.entries.contains(&HeldEntry::Reserved);
                !lives || !is_reserved && state.primary.outgoing.report().pending == 0
            }),
            Property::sometimes("both connections move", |_, state: &OwnershipState| {
                state.primary.outgoing.report().moved == CONNECTIONS as u64
            }),
            Property::sometimes("one moves, one stays", |_, state: &OwnershipState| {
                let report = state.primary.outgoing.report();
                report.moved == 1 && report.stayed == 1
            }),
        ]
    }
}

/// Explores the model, and returns the names of the broken rules.
fn explore(orders: u8, deaths: u8, defect: Option<OwnershipDefect>) -> Vec<&'static str> {
    let model = OwnershipModel {
        orders,
        deaths,
        defect,
    };
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    let broken = checker.discoveries().into_iter();
    let broken =
        broken.filter(|(name, _)| !matches!(*name, "both connections move" | "one moves, one stays"));
    broken
        .map(|(name, path)| {
            println!("{name}: {:?}", path.into_actions());
            name
        })
        .collect()
}

#[test]
fn a_migrating_connection_has_one_owner() {
    let (orders, deaths) = if wanted().0 { (3, 2) } else { (2, 1) };
    assert_eq!(explore(orders, deaths, None), [""; 0]);
}

#[test]
fn broken_rules_of_a_migration_are_noticed() {
    use OwnershipDefect::{EarlyVoice, KeptSocket, SameNumbers, Unreturned};
    for (defect, rule) in [
        (KeptSocket, "no connection has two owners"),
        (EarlyVoice, "no connection has two owners"),
        (SameNumbers, "each connection has an owner"),
        (Unreturned, "every order ends"),
    ] {
        let broken = explore(2, 1, Some(defect));
        assert!(broken.contains(&rule), "{defect:?}: {broken:?}");
    }
}
