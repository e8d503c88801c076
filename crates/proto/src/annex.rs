//! Annexes: nodes outside of the pair that have some of a service's connections (docs/annex.md).
//!
//! The backup is the wire of all connections, wherever they live. So it alone decides which node a connection's packets go to and come from:
//! the primary, or an annex. It moves a connection by restoring the connection on the other node from its log:
//!
//! ```text
//!   Reserved ── log read ─▶ Restoring ── socket made ─▶ Prepared ── released ─▶ Guided ── log read ─▶ Starting ─▶ lives there
//!      └───────────┴────────────┴─ failure, or the order is taken back: the connection stays where it was
//! ```
//!
//! A connection that the primary has is offered and released as in [`crate::migration`]. A connection that an annex has is released when the
//! annex says that it has dropped it.
//!
//! If an annex is silent, the wire takes its connections over, like those of a dead worker ([`crate::orphans`]). If the primary dies, the wire
//! takes over all connections. If the wire dies, the primary carries them ([`crate::carried`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::Instant;
use crate::migration::MigrationReport;
pub use crate::serving::{AnnexId, ServingNode};

/// Maximum number of annexes of a service.
pub const ANNEXES_MAX: usize = 8;
/// Maximum number of connections that a wire moves at a time.
const MOVES_MAX: usize = 48;
/// Time in which the log must be read and the socket made. Meanwhile the client gets nothing.
pub const RESTORE_MAX: Duration = Duration::from_secs(1);
/// Time that the primary has to say, after its link was lost, whether it has started a connection. Meanwhile the client gets nothing.
pub const DOUBT_MAX: Duration = Duration::from_secs(3);

/// How far a move is. The picture is in the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MovePhase {
    Reserved,
    Restoring,
    Prepared,
    Guided,
    Starting,
}

/// Events that change how far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoveEvent {
    /// The log was read to its end.
    Drained,
    /// The other node has made the connection's socket.
    Restored,
    /// The node that had the connection has destroyed its socket.
    Released,
}

impl MovePhase {
    /// Whether only the new node may have the connection.
    const fn is_released(self) -> bool {
        match self {
            Self::Guided | Self::Starting => true,
            Self::Reserved | Self::Restoring | Self::Prepared => false,
        }
    }

    const fn after(self, event: MoveEvent) -> Self {
        use MoveEvent::{Drained, Released, Restored};
        match (self, event) {
            (Self::Reserved, Drained) => Self::Restoring,
            (Self::Reserved, Restored | Released) => Self::Reserved,
            (Self::Restoring, Restored) => Self::Prepared,
            (Self::Restoring, Drained | Released) => Self::Restoring, // a drain for another connection
            (Self::Prepared, Released) => Self::Guided,
            (Self::Prepared, Drained | Restored) => Self::Prepared,
            (Self::Guided, Drained) => Self::Starting,
            (Self::Guided, Restored | Released) => Self::Guided,
            (Self::Starting, Drained | Restored | Released) => Self::Starting,
        }
    }
}

/// A connection on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AnnexMove {
    from: ServingNode,
    to: ServingNode,
    phase: MovePhase,
    /// When the connection was reserved.
    begun: Instant,
    /// The number of the drain that the next step waits for.
    drain: u64,
    /// The number of the latest snapshot that the new node had exported when it made the socket.
    exported: u64,
}

impl AnnexMove {
    /// Whether the node that has the connection decides what becomes of it: the primary may have released it, and an annex was asked to drop it.
    fn awaits_release(&self) -> bool {
        self.phase == MovePhase::Prepared
    }

    /// Time by which the socket must be made, if it is not made yet.
    fn restores_until(&self) -> Option<Instant> {
        match self.phase {
            MovePhase::Reserved | MovePhase::Restoring => Some(self.begun + RESTORE_MAX),
            MovePhase::Prepared | MovePhase::Guided | MovePhase::Starting => None,
        }
    }
}

/// A connection whose move has come to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovingConnection {
    /// Its client.
    pub client: SocketAddr,
    /// Where it has been.
    pub from: ServingNode,
    /// Where it goes.
    pub to: ServingNode,
}

/// What the end of a drain means for moves.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DrainedMoves {
    /// These connections are to be restored on their new nodes.
    pub restore: Vec<MovingConnection>,
    /// The sockets of these connections may start on their new nodes.
    pub start: Vec<MovingConnection>,
}

/// The annexes of a service, as its wire knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Annexes {
    /// Nodes that can take connections now.
    up: BTreeSet<ServingNode>,
    moves: BTreeMap<SocketAddr, AnnexMove>,
    /// Where connections live that the primary does not have.
    guests: BTreeMap<SocketAddr, AnnexId>,
    /// Guests that are to move: where, and until when.
    ordered: BTreeMap<SocketAddr, (ServingNode, Instant)>,
    report: MigrationReport,
    /// Number of drains that were asked for, and of those that are over. They are carried out in order.
    drains: (u64, u64),
    /// Number of the last take-back from a silent annex ([`crate::carried`]). A later one has a higher number, also that of a later agent.
    take_back: u64,
    /// Whether this wire has had an annex.
    has_annexes: bool,
    /// What was taken back, until the primary has heard the number.
    unheard: Vec<(u64, Vec<SocketAddr>)>,
    /// Connections that the primary was asked to start, until it says that it has. If the link to it is lost before: since when.
    unconfirmed: BTreeMap<SocketAddr, Option<Instant>>,
}

/// The connections that the primary was asked to start over a link that was lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DoubtedStarts {
    /// The primary has started these.
    pub live: Vec<SocketAddr>,
    /// Nobody has these.
    pub lost: Vec<SocketAddr>,
}

/// What becomes of an annex's connections when there is a new link to it in the place of one that has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Relinked {
    /// These do not move on.
    pub stay: Vec<MovingConnection>,
    /// The annex has dropped these, which are to move on from it.
    pub dropped: Vec<SocketAddr>,
    /// The annex has not dropped these yet, which are to move on from it. It may get the request on the new link, or never.
    pub undropped: Vec<SocketAddr>,
    /// Neither the annex nor another node has these.
    pub lost: Vec<SocketAddr>,
}

impl Annexes {
    /// As an earlier agent has left them, for an agent that starts at `now`.
    pub fn new(now: Instant, guests: impl IntoIterator<Item = (SocketAddr, AnnexId)>) -> Self {
        let guests: BTreeMap<_, _> = guests.into_iter().collect();
        Self {
            take_back: now.as_nanos(),
            has_annexes: !guests.is_empty(),
            guests,
            ..Self::default()
        }
    }

    /// A node can take connections from now on.
    pub fn on_up(&mut self, node: ServingNode) {
        self.up.insert(node);
        self.has_annexes |= node != ServingNode::Primary;
    }

    /// The number of the last take-back. `None`: no annex can have connections.
    pub fn take_back(&self) -> Option<u64> {
        self.has_annexes.then_some(self.take_back)
    }

    /// These connections were taken back from a silent annex. Nobody may speak for them before the primary has heard of it.
    pub fn await_hearing(&mut self, now: Instant, clients: Vec<SocketAddr>) {
        self.take_back = now.as_nanos().max(self.take_back + 1);
        self.unheard.push((self.take_back, clients));
    }

    /// Whether this client's connection was taken back from a silent annex, and the primary has not heard of it yet.
    pub fn is_unheard(&self, client: &SocketAddr) -> bool {
        self.unheard.iter().any(|(_, clients)| clients.contains(client))
    }

    /// The primary has heard this number. `None`: it carries nothing. Returns the clients whose connections this wire may speak for.
    pub fn on_heard(&mut self, number: Option<u64>) -> Vec<SocketAddr> {
        let is_heard = |taken: &mut (u64, Vec<SocketAddr>)| number.is_none_or(|number| taken.0 <= number);
        self.unheard
            .extract_if(.., is_heard)
            .flat_map(|(_, clients)| clients)
            .collect()
    }

    /// A node is silent. A move to it goes on if the node that has the connection may have released it already: then only that node knows who
    /// has it.
    /// Returns the clients whose connections it has, and those whose moves to it are over: `true` if nobody else has the
    /// connection. A connection that it had not dropped yet cannot move on.
    pub fn on_down(&mut self, node: ServingNode) -> (Vec<SocketAddr>, Vec<(MovingConnection, bool)>) {
        self.up.remove(&node);
        let lives = |(&client, &annex): (&SocketAddr, &AnnexId)| {
            let is_released = self.moves.get(&client).is_some_and(|one| one.phase.is_released());
            (ServingNode::Annex(annex) == node && !is_released).then_some(client)
        };
        let lost = self.guests.iter().filter_map(lives).collect();
        let ended: Vec<_> = self
            .moves
            .iter()
            .filter(|(_, one)| one.to == node && !one.awaits_release())
            .map(|(&client, one)| (moving(client, one), one.phase.is_released()))
            .collect();
        for (one, _) in &ended {
            self.moves.remove(&one.client);
        }
        (lost, ended)
    }

    /// There is a new link to an annex in the place of one that has ended. What was on its way over the old link may be lost. `has`: the clients
    /// whose connections the annex has. It has dropped the sockets that it had made and not started.
    pub fn on_relinked(&mut self, annex: AnnexId, has: &[SocketAddr]) -> Relinked {
        let node = ServingNode::Annex(annex);
        let has: BTreeSet<_> = has.iter().collect();
        let mut relinked = Relinked::default();
        for (&client, one) in &self.moves {
            let is_there = has.contains(&client);
            match (one.to == node, one.phase) {
                (true, MovePhase::Guided | MovePhase::Starting) if !is_there => relinked.lost.push(client),
                (true, MovePhase::Reserved | MovePhase::Restoring) => relinked.stay.push(moving(client, one)),
                // The annex was asked to drop it.
                (false, MovePhase::Prepared) if one.from == node => {
                    if is_there {
                        relinked.undropped.push(client);
                    } else {
                        relinked.dropped.push(client);
                    }
                }
                _ => {}
            }
        }
        let is_decided = |client: &SocketAddr| {
            let one = self.moves.get(client);
            one.is_some_and(|one| one.phase.is_released()) || relinked.dropped.contains(client)
        };
        let lost = self.guests.iter().filter_map(|(client, &place)| {
            (place == annex && !has.contains(client) && !is_decided(client)).then_some(*client)
        });
        let lost: Vec<_> = lost.collect();
        relinked.lost.extend(lost);
        for one in &relinked.stay {
            self.moves.remove(&one.client);
        }
        relinked
    }

    /// Whether the node can take connections.
    pub fn is_up(&self, node: ServingNode) -> bool {
        self.up.contains(&node)
    }

    /// Whether another connection may begin to move.
    pub fn has_room(&self) -> bool {
        self.moves.len() < MOVES_MAX
    }

    /// Where this client's connection lives.
    pub fn place(&self, client: &SocketAddr) -> ServingNode {
        self.guests
            .get(client)
            .map_or(ServingNode::Primary, |&annex| ServingNode::Annex(annex))
    }

    /// An annex has this client's connection, which the primary has carried, and which passes this wire from now on.
    pub fn adopt(&mut self, client: SocketAddr, annex: AnnexId) {
        self.has_annexes = true;
        self.guests.insert(client, annex);
    }

    /// The node whose application uses this client's connection. `None`: nobody's, while it is on its way and released.
    pub fn holder(&self, client: &SocketAddr) -> Option<ServingNode> {
        let is_released = self.moves.get(client).is_some_and(|one| one.phase.is_released());
        (!is_released).then(|| self.place(client))
    }

    /// The clients whose connections live on annexes.
    pub fn guests(&self) -> impl Iterator<Item = (SocketAddr, AnnexId)> + '_ {
        self.guests.iter().map(|(&client, &annex)| (client, annex))
    }

    /// Whether the client's connection is on its way to another node.
    pub fn is_moving(&self, client: &SocketAddr) -> bool {
        self.moves.contains_key(client)
    }

    /// Guests of `clients` are to move before `until`.
    pub fn order(&mut self, clients: &[SocketAddr], to: ServingNode, until: Instant) {
        for client in clients {
            if self.guests.contains_key(client) && self.place(client) != to {
                self.ordered.insert(*client, (to, until));
            }
        }
    }

    /// The guests that are to move, and that may begin now: those for which `check` finds no obstacle. The time of the others may be over.
    pub fn take_ordered(
        &mut self,
        now: Instant,
        mut check: impl FnMut(SocketAddr) -> Result<(), String>,
    ) -> Vec<(SocketAddr, ServingNode)> {
        let mut next = Vec::new();
        for (client, (to, until)) in std::mem::take(&mut self.ordered) {
            let place = self.place(&client);
            if place == to {
                continue; // an earlier order has moved it there meanwhile
            }
            if place == ServingNode::Primary {
                self.report
                    .count(client, Some("it is on no annex any more".to_owned()));
                continue;
            }
            let waits = if !self.up.contains(&to) {
                Err("the node is not there".to_owned())
            } else if self.moves.len() + next.len() >= MOVES_MAX || self.moves.contains_key(&client) {
                Err("its turn had not come when the time was over".to_owned())
            } else {
                check(client)
            };
            match waits {
                Ok(()) => next.push((client, to)),
                Err(why) if now >= until => self.report.count(client, Some(why)),
                Err(_) => drop(self.ordered.insert(client, (to, until))),
            }
        }
        next
    }

    /// When the time of the next ordered guest, or of the next socket to be made, is over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ordered = self.ordered.values().map(|&(_, until)| until);
        let doubted = self.unconfirmed.values().flatten();
        ordered
            .chain(self.moves.values().filter_map(AnnexMove::restores_until))
            .chain(doubted.map(|&since| since + DOUBT_MAX))
            .min()
    }

    /// Whether the connection is on its way to `node`.
    pub fn is_moving_to(&self, client: &SocketAddr, node: ServingNode) -> bool {
        self.moves.get(client).is_some_and(|one| one.to == node)
    }

    /// A guest that was to move stays where it is. The primary itself counts the connections that it has offered.
    pub fn count_stayed(&mut self, client: SocketAddr, why: &str) {
        if self.place(&client) != ServingNode::Primary {
            self.report.count(client, Some(why.to_owned()));
        }
    }

    /// What has become of the guests that were to move.
    pub fn report(&self) -> MigrationReport {
        let is_guest = |one: &&AnnexMove| one.from != ServingNode::Primary;
        MigrationReport {
            pending: self.ordered.len() + self.moves.values().filter(is_guest).count(),
            ..self.report.clone()
        }
    }

    /// The wire has reserved the connection, which is to move.
    pub fn begin(&mut self, now: Instant, client: SocketAddr, to: ServingNode, drain: u64) {
        let one = AnnexMove {
            drain,
            exported: 0,
            from: self.place(&client),
            to,
            phase: MovePhase::Reserved,
            begun: now,
        };
        self.unconfirmed.remove(&client); // the primary has it, because it has offered it
        self.moves.insert(client, one);
    }

    /// The moves whose sockets are not made in time.
    pub fn late(&self, now: Instant) -> Vec<SocketAddr> {
        let is_late = |one: &AnnexMove| one.restores_until().is_some_and(|until| now >= until);
        let late = self.moves.iter().filter(|(_, one)| is_late(one));
        late.map(|(&client, _)| client).collect()
    }

    /// A drain is asked for. It is carried out after the actions that were asked for before. Returns its number.
    pub fn ask_drain(&mut self) -> u64 {
        self.drains.0 += 1;
        self.drains.0
    }

    /// The log was read to its end. A drain that was not asked for here comes only when all that were are over.
    pub fn on_drained(&mut self) -> DrainedMoves {
        let mut drained = DrainedMoves::default();
        self.drains.1 = self.drains.0.min(self.drains.1 + 1);
        let over = self.drains.1;
        for (&client, one) in self.moves.iter_mut().filter(|(_, one)| one.drain <= over) {
            let before = one.phase;
            one.phase = before.after(MoveEvent::Drained);
            match before {
                MovePhase::Reserved => drained.restore.push(moving(client, one)),
                MovePhase::Guided => drained.start.push(moving(client, one)),
                MovePhase::Restoring | MovePhase::Prepared | MovePhase::Starting => {}
            }
        }
        drained
    }

    /// `node` has made the connection's socket; it has exported snapshots up to the number `exported`. Returns the connection, if it was to do
    /// so.
    pub fn on_restored(
        &mut self,
        client: SocketAddr,
        node: ServingNode,
        exported: u64,
    ) -> Option<MovingConnection> {
        let one = self.moves.get_mut(&client).filter(|one| one.to == node)?;
        one.exported = exported;
        let before = one.phase;
        one.phase = before.after(MoveEvent::Restored);
        (one.phase != before).then(|| moving(client, one))
    }

    /// The node that had the connection has released it. If another node is prepared for it, returns the connection, and the number of the
    /// latest snapshot which that node had exported.
    pub fn on_released(&mut self, client: SocketAddr) -> Option<(MovingConnection, u64)> {
        let one = self.moves.get_mut(&client)?;
        let before = one.phase;
        one.phase = before.after(MoveEvent::Released);
        if one.phase == before {
            return None;
        }
        one.drain = self.drains.0 + 1; // the drain that the caller asks for once it has guided the packets
        Some((moving(client, one), one.exported))
    }

    /// The connection stays where it is, if it was not released. Returns it.
    pub fn give_back(&mut self, client: SocketAddr) -> Option<MovingConnection> {
        let one = *self.moves.get(&client).filter(|one| !one.phase.is_released())?;
        self.moves.remove(&client);
        Some(moving(client, &one))
    }

    /// The clients whose connections are on their way from the primary, which has not released them.
    pub fn unreleased_of_primary(&self) -> Vec<SocketAddr> {
        let is_unreleased = |one: &AnnexMove| one.from == ServingNode::Primary && !one.phase.is_released();
        let unreleased = self.moves.iter().filter(|(_, one)| is_unreleased(one));
        unreleased.map(|(&client, _)| client).collect()
    }

    /// The connection's socket was started on its new node. Returns the connection, if it was on its way.
    pub fn on_started(&mut self, client: SocketAddr) -> Option<MovingConnection> {
        let one = *self.moves.get(&client).filter(|one| one.phase.is_released())?;
        self.moves.remove(&client);
        if one.from != ServingNode::Primary {
            self.report.count(client, None);
        }
        match one.to {
            ServingNode::Primary => {
                self.unconfirmed.insert(client, None);
                self.guests.remove(&client)
            }
            ServingNode::Annex(annex) => self.guests.insert(client, annex),
        };
        Some(moving(client, &one))
    }

    /// The primary says that it has started the connection, or that it cannot. Returns whether it was asked to, and had not answered.
    pub fn on_answer(&mut self, client: &SocketAddr) -> bool {
        self.unconfirmed.remove(client).is_some()
    }

    /// Whether the primary was asked to start the connection, and has not said that it has.
    pub fn is_unconfirmed(&self, client: &SocketAddr) -> bool {
        self.unconfirmed.contains_key(client)
    }

    /// The clients of the connections that the primary was asked to start, and of which it has not said that it has.
    pub fn unconfirmed(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.unconfirmed.keys().copied()
    }

    /// The link to the primary is lost. Returns the clients whose connections it may have started or not.
    pub fn doubt(&mut self, now: Instant) -> Vec<SocketAddr> {
        self.unconfirmed
            .values_mut()
            .for_each(|since| *since = since.or(Some(now)));
        self.unconfirmed().collect()
    }

    /// There is a link to the primary again, which has `live` of the connections in doubt. It has dropped what it had not started.
    pub fn settle(&mut self, live: &[SocketAddr]) -> DoubtedStarts {
        let live: BTreeSet<_> = live.iter().collect();
        let doubted = std::mem::take(&mut self.unconfirmed).into_keys();
        let (live, lost) = doubted.partition(|client| live.contains(client));
        DoubtedStarts { live, lost }
    }

    /// The clients of the connections that have been in doubt for too long. They are taken for live.
    pub fn end_doubt(&mut self, now: Instant) -> Vec<SocketAddr> {
        let is_over = |since: &Option<Instant>| since.is_some_and(|since| now >= since + DOUBT_MAX);
        let over = self.unconfirmed.iter().filter(|(_, since)| is_over(since));
        let over: Vec<_> = over.map(|(&client, _)| client).collect();
        self.unconfirmed.retain(|_, since| !is_over(since));
        over
    }

    /// The connection has ended, or is this node's own from now on. Returns the nodes that have a socket of it, or may have one.
    pub fn forget(&mut self, client: &SocketAddr) -> Vec<ServingNode> {
        self.ordered.remove(client);
        self.unconfirmed.remove(client);
        let mut nodes: Vec<_> = self
            .guests
            .remove(client)
            .map(ServingNode::Annex)
            .into_iter()
            .collect();
        if let Some(one) = self.moves.remove(client)
            && one.phase != MovePhase::Reserved
        {
            nodes.push(one.to);
        }
        nodes
    }

    /// The node is no wire any more. Nothing is taken back from annexes any more. Returns all clients of guests and moves.
    pub fn end(&mut self) -> Vec<SocketAddr> {
        self.unheard.clear();
        self.unconfirmed.clear();
        self.has_annexes = false;
        self.clients()
    }

    fn clients(&self) -> Vec<SocketAddr> {
        let clients: BTreeSet<_> = self.guests.keys().chain(self.moves.keys()).copied().collect();
        clients.into_iter().collect()
    }
}

fn moving(client: SocketAddr, one: &AnnexMove) -> MovingConnection {
    MovingConnection {
        client,
        from: one.from,
        to: one.to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::{arrow, assert_shown, graphviz, matrix};

    const PHASES: [MovePhase; 5] = [
        MovePhase::Reserved,
        MovePhase::Restoring,
        MovePhase::Prepared,
        MovePhase::Guided,
        MovePhase::Starting,
    ];
    const EVENTS: [MoveEvent; 3] = [MoveEvent::Drained, MoveEvent::Restored, MoveEvent::Released];
    const GAMMA: ServingNode = ServingNode::Annex(AnnexId(3));

    fn client(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// With a connection that lives on an annex.
    fn with_guest() -> Annexes {
        let mut annexes = Annexes::new(at(0), [(client(1), AnnexId(3))]);
        annexes.on_up(GAMMA);
        annexes.on_up(ServingNode::Primary);
        annexes
    }

    /// The begun move to `node` goes on until the connection is started there.
    fn complete(annexes: &mut Annexes, node: ServingNode) {
        annexes.on_drained();
        annexes.on_restored(client(1), node, 0);
        annexes.on_released(client(1));
        annexes.ask_drain();
        annexes.on_drained();
        annexes.on_started(client(1)).unwrap();
    }

    #[test]
    fn the_table_of_moves() {
        insta::assert_snapshot!(matrix(&PHASES, &EVENTS, MovePhase::after), @r"
        Reserved: Drained Restoring, Restored Reserved, Released Reserved
        Restoring: Drained Restoring, Restored Prepared, Released Restoring
        Prepared: Drained Prepared, Restored Prepared, Released Guided
        Guided: Drained Starting, Restored Guided, Released Guided
        Starting: Drained Starting, Restored Starting, Released Starting
        ");
    }

    #[test]
    fn the_documents_show_the_table_of_moves() {
        let graph = graphviz("annex", (&PHASES, &[]), &EVENTS, arrow(MovePhase::after));
        assert_shown("annex", &graph);
    }

    #[test]
    fn names_have_numbers() {
        assert_eq!(AnnexId::of(""), AnnexId(0x811c_9dc5));
        assert_eq!(AnnexId::of("a"), AnnexId(0xe40c_292c));
        assert_eq!(AnnexId::of("foobar"), AnnexId(0xbf9c_f968));
    }

    #[test]
    fn an_ordered_guest_waits_for_its_node_until_its_time_is_over() {
        let mut annexes = with_guest();
        annexes.on_down(ServingNode::Primary);
        annexes.order(&[client(1), client(2)], ServingNode::Primary, at(100));
        assert_eq!(annexes.report().pending, 1, "only the guest");
        assert_eq!(annexes.take_ordered(at(50), |_| Ok(())), []);
        annexes.on_up(ServingNode::Primary);
        assert_eq!(annexes.take_ordered(at(60), |_| Err("it writes".to_owned())), []);
        assert_eq!(annexes.poll_timeout(), Some(at(100)));
        assert_eq!(annexes.take_ordered(at(100), |_| Err("it writes".to_owned())), []);
        let report = annexes.report();
        assert_eq!((report.pending, report.stayed), (0, 1));
        assert_eq!(report.refusals, [(client(1), "it writes".to_owned())]);
    }

    #[test]
    fn a_guest_moves_back() {
        let mut annexes = with_guest();
        annexes.order(&[client(1)], ServingNode::Primary, at(100));
        let next = annexes.take_ordered(at(1), |_| Ok(()));
        assert_eq!(next, [(client(1), ServingNode::Primary)]);
        let drain = annexes.ask_drain();
        annexes.begin(at(1), client(1), ServingNode::Primary, drain);
        let one = MovingConnection {
            client: client(1),
            from: GAMMA,
            to: ServingNode::Primary,
        };
        assert_eq!(annexes.on_drained().restore, [one]);
        assert_eq!(annexes.on_drained(), DrainedMoves::default(), "once");
        assert_eq!(annexes.on_restored(client(1), GAMMA, 0), None, "another node");
        assert_eq!(annexes.on_restored(client(1), ServingNode::Primary, 9), Some(one));
        assert_eq!(annexes.late(at(5000)), [], "it was made in time");
        assert_eq!(annexes.on_released(client(1)), Some((one, 9)));
        assert_eq!(annexes.give_back(client(1)), None, "it is too late for that");
        assert_eq!(annexes.on_drained(), DrainedMoves::default(), "an earlier one");
        annexes.ask_drain();
        assert_eq!(annexes.on_drained().start, [one]);
        assert_eq!(annexes.on_started(client(1)), Some(one));
        assert_eq!(annexes.place(&client(1)), ServingNode::Primary);
        assert_eq!((annexes.report().moved, annexes.report().pending), (1, 0));
    }

    /// The operator orders the same move again while the guest is on its way.
    #[test]
    fn a_guest_does_not_move_to_the_node_where_it_is() {
        let delta = ServingNode::Annex(AnnexId(4));
        let mut annexes = with_guest();
        annexes.on_up(delta);
        annexes.order(&[client(1)], delta, at(100));
        let next = annexes.take_ordered(at(1), |_| Ok(()));
        assert_eq!(next, [(client(1), delta)]);
        let drain = annexes.ask_drain();
        annexes.begin(at(1), client(1), delta, drain);
        annexes.order(&[client(1)], delta, at(100));
        assert_eq!(annexes.take_ordered(at(2), |_| Ok(())), []);
        complete(&mut annexes, delta);
        assert_eq!(annexes.place(&client(1)), delta);
        assert_eq!(annexes.take_ordered(at(3), |_| Ok(())), []);
        assert_eq!((annexes.report().moved, annexes.report().pending), (1, 0));
    }

    /// The operator orders another move while a guest moves back to the primary. From there, only the primary can order a move.
    #[test]
    fn what_has_moved_back_is_no_guest() {
        let delta = ServingNode::Annex(AnnexId(4));
        let mut annexes = with_guest();
        annexes.on_up(delta);
        let drain = annexes.ask_drain();
        annexes.begin(at(1), client(1), ServingNode::Primary, drain);
        annexes.order(&[client(1)], delta, at(100));
        assert_eq!(annexes.take_ordered(at(2), |_| Ok(())), []);
        complete(&mut annexes, ServingNode::Primary);
        assert_eq!(annexes.take_ordered(at(3), |_| Ok(())), []);
        let report = annexes.report();
        assert_eq!((report.moved, report.pending, report.stayed), (1, 0, 1));
    }

    /// With a connection that the primary was asked to start.
    fn with_start_at_primary() -> Annexes {
        let mut annexes = with_guest();
        let drain = annexes.ask_drain();
        annexes.begin(at(1), client(1), ServingNode::Primary, drain);
        complete(&mut annexes, ServingNode::Primary);
        annexes
    }

    #[test]
    fn a_start_at_the_primary_is_in_doubt_when_the_link_is_lost() {
        let mut annexes = with_start_at_primary();
        assert_eq!(annexes.unconfirmed().collect::<Vec<_>>(), [client(1)]);
        assert!(annexes.on_answer(&client(1)) && !annexes.on_answer(&client(1)));
        assert_eq!(annexes.doubt(at(10)), [], "the primary has answered");
        for (has, live, lost) in [
            (vec![client(1)], vec![client(1)], vec![]),
            (vec![client(9)], vec![], vec![client(1)]),
        ] {
            let mut annexes = with_start_at_primary();
            assert_eq!(annexes.poll_timeout(), None);
            assert_eq!(annexes.doubt(at(10)), [client(1)]);
            assert_eq!(annexes.settle(&has), DoubtedStarts { live, lost });
            assert_eq!(annexes.settle(&[]), DoubtedStarts::default(), "once");
        }
    }

    #[test]
    fn doubt_about_a_start_ends() {
        let mut annexes = with_start_at_primary();
        annexes.doubt(at(10));
        annexes.doubt(at(20));
        assert_eq!(
            annexes.poll_timeout(),
            Some(at(10) + DOUBT_MAX),
            "the first loss counts"
        );
        assert_eq!(annexes.end_doubt(at(3009)), []);
        assert_eq!(annexes.end_doubt(at(3010)), [client(1)]);
        assert_eq!(annexes.settle(&[]), DoubtedStarts::default());
        let mut annexes = with_start_at_primary();
        annexes.doubt(at(10));
        annexes.begin(at(11), client(1), GAMMA, 9);
        assert_eq!(annexes.settle(&[]).lost, [], "the primary has offered it since");
    }

    #[test]
    fn a_socket_that_is_not_made_in_time_is_late() {
        let mut annexes = with_guest();
        annexes.begin(at(1), client(2), GAMMA, 1);
        assert_eq!(annexes.poll_timeout(), Some(at(1) + RESTORE_MAX));
        assert_eq!(annexes.late(at(1000)), []);
        assert_eq!(annexes.late(at(1001)), [client(2)]);
    }

    /// Each client of a silent node is named once: in the first list if the node has the connection, in the second if it was to have it.
    #[test]
    fn a_silent_node_loses_what_it_has_and_what_it_was_to_have() {
        let mut annexes = with_guest();
        let drain = annexes.ask_drain();
        annexes.begin(at(1), client(2), GAMMA, drain);
        annexes.begin(at(1), client(3), GAMMA, drain);
        annexes.on_drained();
        annexes.on_restored(client(3), GAMMA, 0);
        annexes.on_released(client(3));
        let (lost, ended) = annexes.on_down(GAMMA);
        assert_eq!(lost, [client(1)]);
        let of = |port| MovingConnection {
            client: client(port),
            from: ServingNode::Primary,
            to: GAMMA,
        };
        assert_eq!(ended, [(of(2), false), (of(3), true)]);
        assert!(!annexes.is_up(GAMMA));
    }

    /// Each step waits for the drain that was asked for after the step before: an earlier one has not read what came since.
    #[test]
    fn a_step_waits_for_its_own_drain() {
        let mut annexes = with_guest();
        let first = annexes.ask_drain();
        annexes.begin(at(1), client(2), GAMMA, first);
        let second = annexes.ask_drain();
        annexes.begin(at(1), client(3), GAMMA, second);
        let of = |moves: Vec<MovingConnection>| -> Vec<_> { moves.iter().map(|one| one.client).collect() };
        assert_eq!(of(annexes.on_drained().restore), [client(2)]);
        assert_eq!(of(annexes.on_drained().restore), [client(3)]);
        for port in [2, 3] {
            annexes.on_restored(client(port), GAMMA, 0);
            annexes.on_released(client(port));
            annexes.ask_drain();
        }
        assert_eq!(of(annexes.on_drained().start), [client(2)]);
        assert_eq!(
            of(annexes.on_drained().start),
            [client(3)],
            "and not the other one again"
        );
        assert_eq!(annexes.on_drained(), DrainedMoves::default());
    }
}
