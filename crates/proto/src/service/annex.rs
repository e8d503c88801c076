//! Connections that move to and from annexes ([`crate::annex`]), on the wire.

use std::net::SocketAddr;

use super::{BrokenRule, Service, ServiceInput};
use crate::Instant;
use crate::action::{AnnexStep, OperatorReport, ServiceAction, ServiceBeat};
use crate::annex::{AnnexId, DoubtedStarts, MovingConnection, Relinked, ServingNode};
use crate::carried::{PlaceChange, TakeBackNumber};
use crate::connection::Connection;
use crate::hosting::Greeting;
use crate::role::Role;
use crate::table::ConnectionId;

/// The reason to take over a connection that was to move back.
const NOT_STARTED: &str = "the primary has not started it";
/// The reason to leave a connection where it is.
const IN_DOUBT: &str = "the primary may speak alone";

impl Service {
    /// The clients whose connections live on annexes, as this wire knows them, or which this primary carries.
    pub fn guests(&self) -> impl Iterator<Item = (SocketAddr, AnnexId)> + '_ {
        self.annexes.guests().chain(self.carried.guests())
    }

    /// The clients whose connections this primary carries or asks for, and their annexes. Its wire is told them when its link begins.
    pub fn offered_guests(&self) -> impl Iterator<Item = (SocketAddr, AnnexId)> + '_ {
        self.carried.offered()
    }

    /// Whether the node can take connections of this service, or this node, the primary, carries its connections.
    pub fn is_up(&self, node: ServingNode) -> bool {
        self.annexes.is_up(node) || node.annex().is_some_and(|annex| self.carried.is_carried(annex))
    }

    /// What this node says first to the nodes that may have connections of this service. `None`: it is neither their wire nor a primary that
    /// asks them, so it has no links to them.
    pub fn greeting(&self) -> Option<Greeting> {
        let (is_wire, asks_with) = (self.role() == Role::Backup, self.asks_with());
        (is_wire || asks_with.is_some()).then(|| Greeting {
            epoch: self.epoch(),
            take_back: asks_with.or_else(|| self.own_take_back()).unwrap_or_default(),
            asks: !is_wire,
        })
    }

    /// What this node learns when a node answers its greeting: `has` are the clients whose connections that node has.
    pub fn on_link(
        &self,
        node: ServingNode,
        has: Vec<SocketAddr>,
    ) -> impl Iterator<Item = ServiceInput> + use<> {
        let is_wire = self.role() == Role::Backup;
        let is_up = (node == ServingNode::Primary || is_wire)
            .then_some(ServiceInput::AnnexIsUp { node, is_up: true });
        let (is_up, has) = match node.annex() {
            Some(annex) if is_wire && self.annexes.is_up(node) => {
                (None, ServiceInput::Relinked { annex, clients: has })
            }
            Some(annex) => (is_up, ServiceInput::Claimed { annex, clients: has }),
            None => (is_up, ServiceInput::Doubted { live: has }),
        };
        is_up.into_iter().chain([has])
    }

    /// The clients of connections that the primary was asked to start, and of which it has not said that it has. The greeting names them.
    pub fn unconfirmed(&self) -> Vec<SocketAddr> {
        self.annexes.unconfirmed().collect()
    }

    /// A node has started a connection.
    pub(super) fn on_speaks_at(&mut self, client: &SocketAddr, node: ServingNode) {
        if node == ServingNode::Primary {
            self.annexes.on_answer(client);
        }
    }

    /// The link to the primary is lost. If it has not started a connection, its stack would answer the client with a RST, so the client's packets
    /// wait until the primary says whether it has.
    fn doubt_starts(&mut self, now: Instant) {
        let clients = self.annexes.doubt(now);
        if !clients.is_empty() {
            self.actions.push_back(ServiceAction::Reserve { clients });
        }
    }

    /// The primary says which connections it has started: they go on there. This wire takes over the others.
    pub(super) fn settle_doubted(&mut self, now: Instant, live: &[SocketAddr]) {
        let DoubtedStarts { live, lost } = self.annexes.settle(live);
        self.guide(live.into_iter().map(|client| (client, ServingNode::Primary)));
        if !lost.is_empty() {
            self.reserve_lost(&lost, NOT_STARTED.to_owned());
            self.adopt_from_annexes(now, lost);
        }
    }

    /// A node can take connections from now on, or not any more.
    pub(super) fn on_annex(&mut self, now: Instant, node: ServingNode, is_up: bool) {
        if let Some(annex) = self.carriable(node) {
            if !is_up {
                self.carried.on_down(now, annex);
            }
            return;
        }
        if is_up {
            self.annexes.on_up(node);
            self.prepare_migrations(now);
            self.move_guests(now);
            return;
        }
        if node == ServingNode::Primary {
            self.doubt_starts(now);
        }
        let (mut lost, ended) = self.annexes.on_down(node);
        for (one, is_released) in ended {
            if is_released {
                lost.push(one.client);
            } else {
                self.stay(now, one, "the node is silent", false);
            }
        }
        if !lost.is_empty() {
            self.take_from_silent(now, lost, "the annex is silent");
        }
    }

    /// The link to an annex has ended, and there is a new one: maybe only this agent stood still, and its kernel went on. So what the annex has
    /// stays there.
    pub(super) fn on_relinked(&mut self, now: Instant, annex: AnnexId, clients: &[SocketAddr]) {
        if self.role() == Role::Backup {
            let Relinked {
                stay,
                dropped,
                undropped,
                lost,
            } = self.annexes.on_relinked(annex, clients);
            for one in stay {
                self.stay(now, one, "the link to the annex has ended", false);
            }
            for client in undropped {
                self.ask_to_drop(now, client, ServingNode::Annex(annex));
            }
            for client in dropped {
                self.release_to_annex(now, client);
            }
            if !lost.is_empty() {
                self.reserve_lost(&lost, "the annex does not have it any more".to_owned());
                self.adopt_from_annexes(now, lost);
            }
        }
        self.on_claimed(now, annex, clients);
        self.prepare_migrations(now);
        self.move_guests(now);
    }

    /// Annexes may still have these connections, but are not to have them any more. This wire takes the connections over when the primary has
    /// heard of it.
    fn take_from_silent(&mut self, now: Instant, clients: Vec<SocketAddr>, reason: &str) {
        self.reserve_lost(&clients, reason.to_owned());
        self.annexes.await_hearing(now, clients);
        self.tell_peer(now);
    }

    /// This wire takes over a connection that no annex has any more.
    fn take_from_annex(&mut self, now: Instant, client: SocketAddr, reason: String) {
        self.reserve_lost(&[client], reason);
        self.adopt_from_annexes(now, vec![client]);
    }

    fn adopt_from_annexes(&mut self, now: Instant, clients: Vec<SocketAddr>) {
        if !clients.is_empty() {
            self.orphans.add(clients);
            self.adopt_orphans(now);
            self.tell_peer(now);
        }
    }

    /// The peer says which take-back it has heard of, or which was the last.
    pub(super) fn hear_of_take_backs(&mut self, now: Instant, beat: &ServiceBeat) {
        if beat.epoch != self.standing.epoch() {
            return;
        }
        match (self.role(), beat.role) {
            (Role::Primary, Role::Backup) => {
                let epoch = beat.epoch;
                let said = beat.take_back.map(|given| TakeBackNumber { epoch, given });
                if self.carried.heard() != said {
                    self.carried.hear(said);
                    self.tell_peer(now);
                }
            }
            (Role::Backup, Role::Primary) => {
                let clients = self.annexes.on_heard(beat.take_back);
                self.adopt_from_annexes(now, clients);
            }
            _ => {}
        }
    }

    /// The primary has lost the process of a connection. Returns whether this wire can adopt the connection: the primary has not released it to
    /// an annex. If it was to move there, it does not.
    pub(super) fn may_adopt(&mut self, client: SocketAddr) -> bool {
        if self.annexes.place(&client) != ServingNode::Primary {
            return false;
        }
        if self.broken == Some(BrokenRule::AdoptMoving) {
            return true;
        }
        if let Some(MovingConnection { to: node, .. }) = self.annexes.give_back(client) {
            self.actions
                .push_back(ServiceAction::Elsewhere(AnnexStep::DropAt { client, node }));
            if let Some(connection) = self.table.find(client) {
                self.table.change(connection, Connection::expect_released);
            }
            self.incoming.on_decided(client);
        }
        !self.annexes.is_moving(&client)
    }

    /// The connections of annexes are not the annexes' any more: nothing of them passes.
    fn reserve_lost(&mut self, clients: &[SocketAddr], reason: String) {
        let connections = clients.len();
        self.report(OperatorReport::LeftAnnex { connections, reason });
        // Nothing of the annex passes any more, before it hears that it is to end its sockets.
        let reserved = clients.to_vec();
        self.actions
            .push_back(ServiceAction::Reserve { clients: reserved });
        for client in clients {
            self.leave_annex(client);
            self.incoming.on_decided(*client);
        }
    }

    /// The annex, if `node` is one and this node is no wire: then it can only carry the annex's connections.
    fn carriable(&self, node: ServingNode) -> Option<AnnexId> {
        node.annex().filter(|_| self.role() != Role::Backup)
    }

    /// Whether the offered connection of `client` can begin to move to `annex`.
    pub(super) fn annex_obstacle(&self, annex: AnnexId) -> Result<(), String> {
        let policy = self.table.config().policy;
        if !policy.moves_to_annex() {
            return Err(format!("connections with policy {policy} do not move to annexes"));
        }
        if self.table.config().sends_directly {
            return Err("the service has commit = \"pr\"".to_owned());
        }
        if !self.annexes.is_up(ServingNode::Annex(annex)) {
            return Err("the annex is not there".to_owned());
        }
        if !self.annexes.has_room() {
            return Err("its turn has not come".to_owned());
        }
        Ok(())
    }

    /// Begins to move connections: reserves them, and reads the log to its end.
    pub(super) fn begin_annex_moves(&mut self, now: Instant, moves: &[(SocketAddr, ServingNode)]) {
        if moves.is_empty() {
            return;
        }
        let drain = self.annexes.ask_drain();
        for &(client, to) in moves {
            self.annexes.begin(now, client, to, drain);
        }
        let clients = moves.iter().map(|&(client, _)| client).collect();
        self.actions.push_back(ServiceAction::Reserve { clients });
        self.actions.push_back(ServiceAction::Drain);
    }

    /// The operator wants guests of `clients` to move.
    pub(super) fn order_guests(
        &mut self,
        now: Instant,
        clients: &[SocketAddr],
        to: ServingNode,
        until: Instant,
    ) {
        self.annexes.order(clients, to, until);
        self.move_guests(now);
    }

    /// Gives up moves that take too long.
    pub(super) fn expire_annex_moves(&mut self, now: Instant) {
        if self.annexes.poll_timeout().is_none_or(|due| now < due) {
            return;
        }
        let live = self.annexes.end_doubt(now);
        self.guide(live.into_iter().map(|client| (client, ServingNode::Primary)));
        for client in self.annexes.late(now) {
            if let Some(one) = self.annexes.give_back(client) {
                self.stay(now, one, "the node does not make the socket in time", true);
            }
        }
        self.move_guests(now);
        self.leave_without_guests(now);
    }

    /// This wire is to leave: the connections of annexes are to move back to the primary first, because they end without their wire.
    pub(super) fn order_all_guests_back(&mut self, now: Instant) {
        if let Some(until) = self.leaving.brings_back_until
            && self.role() == Role::Backup
        {
            let clients: Vec<_> = self.annexes.guests().map(|(client, _)| client).collect();
            self.order_guests(now, &clients, ServingNode::Primary, until);
        }
    }

    /// Whether this wire still brings connections back before it leaves.
    pub(super) fn brings_guests_back(&self, now: Instant) -> bool {
        let may = self.leaving.brings_back_until.is_some_and(|until| now < until);
        may && self.role() == Role::Backup && self.annexes.report().pending > 0
    }

    /// If this wire is to leave, and waited only for connections of annexes, it leaves now.
    fn leave_without_guests(&mut self, now: Instant) {
        if self.leaving.is_withdrawn && !self.standing.leaves() && !self.brings_guests_back(now) {
            self.tell_part(now);
        }
    }

    /// Begins to move guests that are to move and can.
    pub(super) fn move_guests(&mut self, now: Instant) {
        if self.role() != Role::Backup || self.takeover.is_some() {
            return;
        }
        let table = &self.table;
        let moves = self.annexes.take_ordered(now, |client| {
            table
                .find(client)
                .and_then(|id| table.get(id))
                .map_or(Err("it is not in the log".to_owned()), Connection::moves)
        });
        self.begin_annex_moves(now, &moves);
    }

    /// The log was read to its end: asks the new nodes to make the sockets of what was reserved, and to start those of what was released.
    pub(super) fn on_annex_drained(&mut self, now: Instant) {
        let drained = self.annexes.on_drained();
        for one in drained.restore {
            match self.movable(&one) {
                Ok(connection) => {
                    self.table.change(connection, Connection::expect_unreleased);
                    self.actions
                        .push_back(ServiceAction::Elsewhere(AnnexStep::RestoreAt {
                            connection,
                            node: one.to,
                        }));
                }
                Err(why) => {
                    self.annexes.give_back(one.client);
                    self.stay(now, one, &why, false);
                }
            }
        }
        for one in drained.start {
            if let Some(connection) = self.table.find(one.client) {
                self.actions
                    .push_back(ServiceAction::Elsewhere(AnnexStep::StartAt {
                        connection,
                        node: one.to,
                    }));
            }
        }
    }

    /// The connection, if it can move now.
    fn movable(&self, one: &MovingConnection) -> Result<ConnectionId, String> {
        let connection = self.table.find(one.client).ok_or("it is not in the log")?;
        self.table
            .get(connection)
            .ok_or("it is not in the log")?
            .moves()?;
        if self.doubt.exists() {
            return Err(IN_DOUBT.to_owned());
        }
        if !self.annexes.is_up(one.to) {
            return Err("the node is silent".to_owned());
        }
        Ok(connection)
    }

    /// A connection that was to move stays where it is, for this reason. `is_final`: it is not tried again.
    fn stay(&mut self, now: Instant, one: MovingConnection, why: &str, is_final: bool) {
        let MovingConnection { client, from, to } = one;
        self.actions
            .push_back(ServiceAction::Elsewhere(AnnexStep::DropAt { client, node: to }));
        if let Some(connection) = self.table.find(client) {
            self.table.change(connection, Connection::expect_released);
        }
        self.actions
            .push_back(ServiceAction::Elsewhere(AnnexStep::Guide { client, node: from }));
        self.incoming.on_failed(client, why.to_owned(), is_final);
        self.annexes.count_stayed(client, why);
        self.tell_peer(now);
        self.leave_without_guests(now);
    }

    /// A node has made the socket of a connection that moves there.
    pub(super) fn on_restored_at(
        &mut self,
        now: Instant,
        client: SocketAddr,
        (node, exported): (ServingNode, u64),
    ) {
        let Some(one) = self.annexes.on_restored(client, node, exported) else {
            self.actions
                .push_back(ServiceAction::Elsewhere(AnnexStep::DropAt { client, node })); // it is not to move there any more
            return;
        };
        match one.from {
            ServingNode::Primary => {
                self.incoming.on_restored(client);
                self.tell_peer(now);
            }
            ServingNode::Annex(_) => self.ask_to_drop(now, client, one.from),
        }
    }

    /// Asks the annex `node` to drop a connection that is to move on from there.
    fn ask_to_drop(&mut self, now: Instant, client: SocketAddr, node: ServingNode) {
        if !self.doubt.exists() {
            self.actions
                .push_back(ServiceAction::Elsewhere(AnnexStep::DropAt { client, node }));
        } else if let Some(one) = self.annexes.give_back(client) {
            // The primary may speak alone. It could find the connection on the annex only if that has not dropped it.
            self.stay(now, one, IN_DOUBT, false);
        }
    }

    /// An annex has no socket of a connection any more.
    pub(super) fn on_dropped_at(&mut self, now: Instant, client: SocketAddr, node: ServingNode) {
        if node == ServingNode::Primary || self.annexes.place(&client) != node {
            return; // it was to move there, it is another node's, or has ended
        }
        if self.annexes.is_moving(&client) {
            self.release_to_annex(now, client);
        } else if self.table.find(client).is_none() {
            // It had ended before the annex heard of it, and this wire took it for one that the primary has carried.
            self.end_at_annex(client);
        } else {
            // This may also be the late answer to an earlier request: then the annex has the connection.
            self.take_from_silent(now, vec![client], "its new node could not take it");
        }
    }

    /// The connection's node has released it: from now on, another node has it.
    pub(super) fn release_to_annex(&mut self, now: Instant, client: SocketAddr) {
        let Some((MovingConnection { to, .. }, exported)) = self.annexes.on_released(client) else {
            return;
        };
        self.arrivals.forget(&client);
        if let Some(connection) = self.table.find(client) {
            self.table.change(connection, |connection| {
                connection.follower_mut().on_moved(exported);
            });
        }
        if !self.annexes.is_up(to) {
            return self.take_from_annex(now, client, "its new node is silent".to_owned());
        }
        self.actions
            .push_back(ServiceAction::Elsewhere(AnnexStep::Guide { client, node: to }));
        self.annexes.ask_drain();
        self.actions.push_back(ServiceAction::Drain);
    }

    /// The primary keeps a connection that it has offered.
    pub(super) fn keep_from_annex(&mut self, now: Instant, client: SocketAddr) {
        if let Some(one) = self.annexes.give_back(client) {
            self.stay(now, one, "the order was taken back", true);
        }
    }

    /// A connection that was to move to another node cannot. Returns false if this is no such connection.
    pub(super) fn keep_unreserved(&mut self, now: Instant, connection: ConnectionId, reason: &str) -> bool {
        let client = self.client_of(connection);
        let one = client.and_then(|client| self.annexes.give_back(client));
        one.map(|one| self.stay(now, one, reason, true)).is_some()
    }

    /// The primary has a new agent, which knows nothing of its offers.
    pub(super) fn keep_all_from_annexes(&mut self, now: Instant) {
        for client in self.annexes.unreleased_of_primary() {
            self.keep_from_annex(now, client);
        }
    }

    /// A node cannot have a connection, or has lost it.
    pub(super) fn on_refused_at(
        &mut self,
        now: Instant,
        client: SocketAddr,
        node: ServingNode,
        reason: String,
    ) {
        if let Some(annex) = self.carriable(node) {
            let lost = self.carried.lose(client, annex);
            self.guide(lost);
        } else if self.annexes.is_moving_to(&client, node) {
            match self.annexes.give_back(client) {
                Some(one) => self.stay(now, one, &reason, true),
                None => self.take_from_annex(now, client, reason), // nobody else has it any more
            }
        } else if node == ServingNode::Primary && self.annexes.on_answer(&client) {
            self.take_from_annex(now, client, NOT_STARTED.to_owned());
        } else if node != ServingNode::Primary && self.annexes.place(&client) == node {
            self.take_from_annex(now, client, reason);
        }
    }

    /// A connection's new node was asked to let its socket speak. The wire follows the connection as before.
    pub(super) fn on_started_at(&mut self, now: Instant, connection: ConnectionId) {
        let Some(client) = self.client_of(connection) else {
            return;
        };
        if self.annexes.on_started(client).is_some() {
            self.table.change(connection, Connection::expect_released);
            self.incoming.on_decided(client);
            self.tell_peer(now);
        }
        self.move_guests(now);
        self.leave_without_guests(now);
    }

    /// No annex has this client's connection any more: it has ended, or is this node's own from now on.
    pub(super) fn leave_annex(&mut self, client: &SocketAddr) -> bool {
        let client = *client;
        let nodes = self.annexes.forget(&client);
        for &node in &nodes {
            self.actions
                .push_back(ServiceAction::Elsewhere(AnnexStep::DropAt { client, node }));
        }
        !nodes.is_empty()
    }

    /// A connection has ended. If an annex had it, the client's next connection is the primary's.
    pub(super) fn end_at_annex(&mut self, client: SocketAddr) {
        if self.annexes.is_moving(&client) || self.annexes.place(&client) != ServingNode::Primary {
            self.leave_annex(&client);
            let node = ServingNode::Primary;
            self.actions
                .push_back(ServiceAction::Elsewhere(AnnexStep::Guide { client, node }));
        }
    }

    /// This node is no wire any more. If it takes the service over, it has all connections, so the annexes are to drop theirs. If it stands
    /// down, the other node asks the annexes for what they have.
    pub(super) fn leave_annexes(&mut self) {
        let has_all = self.role() == Role::TakingOver;
        for client in self.annexes.end() {
            if has_all {
                self.leave_annex(&client);
            } else {
                self.annexes.forget(&client);
            }
        }
    }

    /// If this primary passes the packets of annexes, or wants to: the number of the take-back with which it asks them for connections.
    pub fn asks_with(&self) -> Option<TakeBackNumber> {
        self.carried.asks_with()
    }

    /// What a heartbeat says of the last take-back from a silent annex: a wire says its own, and a primary what it has heard in this epoch, or 0.
    pub fn take_back(&self) -> Option<u64> {
        let is_of_now = |number: &TakeBackNumber| number.epoch == self.epoch();
        match self.role() {
            Role::Backup => self.annexes.take_back(),
            _ => {
                let heard = self.carried.heard();
                heard.map(|number| if is_of_now(&number) { number.given } else { 0 })
            }
        }
    }

    /// The number of this wire's last take-back.
    fn own_take_back(&self) -> Option<TakeBackNumber> {
        let epoch = self.epoch();
        let given = self.annexes.take_back()?;
        Some(TakeBackNumber { epoch, given })
    }

    pub(super) fn guide(&mut self, changes: impl IntoIterator<Item = PlaceChange>) {
        let guides = changes
            .into_iter()
            .map(|(client, node)| AnnexStep::Guide { client, node });
        self.actions.extend(guides.map(ServiceAction::Elsewhere));
    }

    /// The wire says where connections live.
    pub(super) fn on_live_at(&mut self, places: &[PlaceChange], is_all: bool) {
        if self.role() == Role::Primary {
            let changes = self.carried.note(places, is_all);
            self.guide(changes);
        }
    }

    /// An annex says which connections it has.
    pub(super) fn on_claimed(&mut self, now: Instant, annex: AnnexId, clients: &[SocketAddr]) {
        let node = ServingNode::Annex(annex);
        let (changes, drops) = match self.role() {
            Role::Backup => self.adopt_carried(annex, clients),
            Role::Sole | Role::Primary | Role::Claiming if self.asks_with().is_some() => {
                self.carried.claim(annex, clients, self.role() == Role::Sole)
            }
            _ => (Vec::new(), clients.to_vec()),
        };
        self.guide(changes);
        let drops = drops.into_iter().map(|client| AnnexStep::DropAt { client, node });
        self.actions.extend(drops.map(ServiceAction::Elsewhere));
        self.ask_about_older(now);
    }

    /// An annex has told this wire its connections: those that the wire had given it, and those that the primary has carried. The carried
    /// connections pass this wire from now on. Connections that are not in the log are looked up, so that they can be learnt. Returns the
    /// changes, and the clients whose connections the annex must drop.
    fn adopt_carried(
        &mut self,
        annex: AnnexId,
        clients: &[SocketAddr],
    ) -> (Vec<PlaceChange>, Vec<SocketAddr>) {
        let (mut changes, mut drops) = (Vec::new(), Vec::new());
        for &client in clients {
            let is_logged = self.table.find(client).is_some();
            match self.annexes.place(&client) {
                ServingNode::Annex(place) if place == annex => {}
                // The annex may have been greeted before this wire took the connection over.
                ServingNode::Primary if !is_logged && !self.orphans.has_taken(&client) => {
                    self.annexes.adopt(client, annex);
                    changes.push((client, ServingNode::Annex(annex)));
                }
                // If it is in the log, it has begun after the one that the annex has, or this wire is about to take it over.
                ServingNode::Primary | ServingNode::Annex(_) => {
                    drops.push(client);
                    continue;
                }
            }
            if !is_logged {
                self.table.look_up(client);
            }
        }
        (changes, drops)
    }

    /// Connections that no annex has claimed in time are lost: the clients get a RST.
    pub(super) fn expire_claims(&mut self, now: Instant) {
        let lost = self.carried.on_timeout(now);
        self.guide(lost);
    }

    /// The role has changed. A primary that speaks alone carries what its wire has passed. Another role carries nothing.
    pub(super) fn carry_or_forget(&mut self, now: Instant, from: Role) {
        match self.role() {
            Role::Sole if matches!(from, Role::Primary | Role::Claiming) => self.carried.begin(now),
            Role::Primary | Role::Claiming | Role::Sole => {}
            _ => {
                let places = self.carried.clear();
                self.guide(places);
            }
        }
    }
}
