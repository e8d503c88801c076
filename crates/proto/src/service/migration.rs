//! Migration of live connections, at the operator's order ([`crate::migration`]): the primary offers and releases connections, and its
//! backup prepares and takes them.

use std::net::SocketAddr;
use std::time::Duration;

use super::{OrderRefusal, Service};
use crate::Instant;
use crate::action::{ApplicationState, OperatorReport, ServiceAction, ServiceBeat};
use crate::annex::{AnnexId, ServingNode};
use crate::connection::Connection;
use crate::detector::Detector;
use crate::migration::{MigrationBeat, MigrationReport, OfferObstacle, OfferedConnection};
use crate::role::Role;
use crate::table::ConnectionId;
use crate::takeover::Takeover;

/// Time within which the primary must take a reversed connection whose process has died on the backup. Then the connection ends.
const BEREFT_MAX: Duration = Duration::from_secs(3);

impl Service {
    /// Why no connection can move from this node to the other one. `None` if connections can move.
    pub(crate) fn cannot_migrate(&self, peer: &Detector, now: Instant) -> Option<OrderRefusal> {
        let refusal = self.cannot_hand_over(peer, now);
        match self.role() {
            Role::Primary => refusal,
            Role::Backup if self.reversed.has_here() || self.annexes.guests().next().is_some() => refusal,
            role if role.may_speak() => refusal.or(Some(OrderRefusal::NotPrimary)),
            _ => Some(OrderRefusal::NotPrimary),
        }
    }

    /// The operator wants the connections of `clients` to move before `until`: to the other node, or to an annex. Those that have not moved
    /// by then stay.
    pub(super) fn on_migrate(
        &mut self,
        now: Instant,
        mut clients: Vec<SocketAddr>,
        annex: Option<AnnexId>,
        until: Instant,
    ) {
        match self.role() {
            Role::Primary => {}
            Role::Backup => {
                let to = annex.map_or(ServingNode::Primary, ServingNode::Annex);
                self.order_guests(now, &clients, to, until);
                clients.retain(|client| annex.is_none() && self.reversed.is_here(client));
            }
            _ => return,
        }
        self.outgoing.order(clients, annex, until);
        self.tell_peer(now);
    }

    /// Whether connections that move from this node, the primary, go on passing its log.
    fn reverses(&self) -> bool {
        self.role() == Role::Primary && self.table.config().policy.learns()
    }

    /// Tells the table which connections' packets pass this node.
    pub(super) fn tell_table(&mut self) {
        self.table.set_wire(self.follows());
        self.table.set_slows(self.role() == Role::Backup);
    }

    /// Whether this node logs segments of the service's connections: all of them, or the reversed ones.
    pub(super) fn follows(&self) -> bool {
        match self.role() {
            Role::Backup => true,
            Role::Primary | Role::Claiming => self.reversed.has_there(),
            _ => false,
        }
    }

    /// What has become of the connections that were to move from this node.
    pub fn migrations(&self) -> MigrationReport {
        let mut report = self.outgoing.report();
        report.add(self.annexes.report());
        report
    }

    /// What a heartbeat says of this service's migrations.
    pub(crate) fn migration_beat(&self) -> MigrationBeat {
        let (mut offers, reverses) = (self.outgoing.offers(), self.reverses());
        for offer in &mut offers {
            offer.reverses = reverses && offer.annex.is_none();
            offer.is_frozen = offer.is_released && self.reversed.is_frozen(&offer.client);
        }
        let answers = self.incoming.answers();
        MigrationBeat {
            offers,
            leads_first: !answers.is_empty(),
            answers,
        }
    }

    pub(super) fn expire_migrations(&mut self, now: Instant) {
        if self.outgoing.on_timeout(now) {
            self.tell_peer(now);
        }
        self.end_lost();
        self.expire_annex_moves(now);
        self.expire_claims(now);
    }

    /// Takes what the peer says of migrations. Offers and answers count only between a primary and its backup. The backup offers reversed
    /// connections, which are to move back.
    pub(super) fn hear_of_migrations(&mut self, now: Instant, beat: &ServiceBeat) {
        let Some(word) = &beat.migration else { return };
        let is_pair = matches!(
            (self.role(), beat.role),
            (Role::Primary, Role::Backup) | (Role::Backup, Role::Primary)
        );
        if is_pair && beat.epoch == self.standing.epoch() {
            self.on_answers(now, word);
            self.on_offers(now, word);
        } else if self.incoming.is_unconfirmed() {
            self.give_back_all(now);
        }
    }

    fn on_answers(&mut self, now: Instant, word: &MigrationBeat) {
        let heard = self.outgoing.on_answers(&word.answers);
        if !heard.released.is_empty() {
            self.let_go(heard.released, word.leads_first);
        }
        let moved = self.reversed.melt(heard.moved);
        self.leave(moved);
        let refused = heard.refused.into_iter();
        self.thaw(refused.filter(|client| self.reversed.is_frozen(client)).collect());
        self.send_snapshots(now);
        self.end_lost();
        if heard.has_changed {
            self.tell_peer(now);
        }
    }

    /// The processes of these reversed connections died on this node, the backup. The primary has their logs.
    pub(super) fn offer_bereft(&mut self, now: Instant, clients: impl IntoIterator<Item = SocketAddr>) {
        let clients = clients.into_iter();
        let clients: Vec<_> = clients.filter(|client| self.reversed.is_here(client)).collect();
        if !clients.is_empty() {
            self.outgoing.order_bereft(&clients, now + BEREFT_MAX);
            self.tell_peer(now);
        }
    }

    /// Lets the connections end whose process has died, and that the other node has not taken.
    pub(super) fn end_lost(&mut self) {
        let clients = self.outgoing.take_lost();
        if !clients.is_empty() {
            self.actions.push_back(ServiceAction::ShowEnds { clients });
        }
    }

    /// These connections leave this node: the other node is about to have them. If this node is their wire from now on, it begins to follow
    /// them, and its kernel notices when the other node speaks. Until then, the sockets are frozen. The other sockets are destroyed.
    /// If the other node does not lead its segments through this one before it speaks (`leads_first`), the kernel may miss that, and all sockets
    /// are destroyed.
    fn let_go(&mut self, mut clients: Vec<SocketAddr>, leads_first: bool) {
        for &client in &clients {
            self.orphans.forget_taken(&client);
            self.table.begin_anew(client);
        }
        self.reversed.forget(&clients);
        let (is_backup, reverses) = (self.role() == Role::Backup, self.reverses());
        let outgoing = &self.outgoing;
        let freezes = |client: &mut SocketAddr| {
            (is_backup || reverses) && outgoing.annex_of(client).is_none() && !outgoing.is_bereft(client)
        };
        let frozen: Vec<_> = clients.extract_if(.., freezes).collect();
        self.leave(clients);
        if frozen.is_empty() {
            return;
        }
        let ended = if reverses {
            self.follow_there(&frozen)
        } else {
            Vec::new()
        };
        let clients = frozen.clone();
        self.actions.push_back(ServiceAction::Freeze { clients, ended });
        if is_backup || leads_first {
            self.reversed.freeze(&frozen);
        } else {
            self.leave(frozen);
        }
    }

    /// The connections of `clients` are about to live on the backup, and this node is their wire. Returns earlier clients that need not be
    /// followed any more.
    fn follow_there(&mut self, clients: &[SocketAddr]) -> Vec<SocketAddr> {
        // What the wire says later of these connections' last place on an annex must not end this.
        let home: Vec<_> = clients
            .iter()
            .map(|&client| (client, ServingNode::Primary))
            .collect();
        let changes = self.carried.note(&home, false);
        self.guide(changes);
        let table = &self.table;
        let is_open = |client| table.find(client).is_some() || table.is_older(client);
        self.reversed.follow(clients, is_open)
    }

    /// The connections of `clients` have left this node.
    fn leave(&mut self, clients: Vec<SocketAddr>) {
        if !clients.is_empty() {
            self.exports.finish_moved(&clients);
            self.actions.push_back(ServiceAction::Release { clients });
        }
    }

    /// An earlier agent may have died before it destroyed the sockets of connections that have moved, or before it let those go on that have not.
    pub(super) fn go_on_with_frozen(&mut self, now: Instant) {
        let Some(found) = &self.config.found else { return };
        let moved = found.moved.clone();
        self.leave(moved);
        if self.role() == Role::Sole && self.reversed.has_frozen() {
            self.take_reversed(now);
        }
    }

    /// The other node does not have these released connections. Their frozen sockets go on, unless the kernel has noticed that the other node
    /// has spoken.
    pub(super) fn thaw(&mut self, clients: Vec<SocketAddr>) {
        if !clients.is_empty() {
            self.actions.push_back(ServiceAction::Thaw { clients });
        }
    }

    /// The frozen sockets of the connections of `thawed` go on. The other node has spoken on those of `spoken`.
    pub(super) fn on_thawed(&mut self, now: Instant, thawed: Vec<SocketAddr>, spoken: Vec<SocketAddr>) {
        let is_backup = self.role() == Role::Backup;
        let thawed = self.reversed.thaw(thawed, is_backup);
        self.outgoing.settle(&thawed, true);
        for &client in &thawed {
            self.table.begin_anew(client);
            if is_backup {
                self.orphans.note_taken(client);
            }
        }
        self.remove_ended(now);
        if !thawed.is_empty() {
            self.actions.push_back(ServiceAction::Drain);
        }
        let spoken = self.reversed.melt(spoken);
        self.outgoing.settle(&spoken, false);
        self.leave(spoken);
        self.send_snapshots(now);
        if self.reversed.can_take() {
            self.take_reversed(now);
        }
    }

    fn on_offers(&mut self, now: Instant, word: &MigrationBeat) {
        let heard = self.incoming.hear(&word.offers);
        let has_news = !heard.released.is_empty();
        self.give_back(now, &heard.withdrawn);
        self.reversed.expect(heard.reversing);
        if !heard.unknown.is_empty() {
            let clients = heard.unknown;
            self.actions.push_back(ServiceAction::LookFor { clients });
        }
        self.take_released(now, heard.released);
        self.prepare_migrations(now);
        if has_news {
            self.tell_peer(now);
        }
    }

    /// The primary has destroyed its sockets of these clients' connections.
    fn take_released(&mut self, now: Instant, clients: Vec<SocketAddr>) {
        let (mut held, mut ended, mut doomed) = (Vec::new(), Vec::new(), Vec::new());
        for client in clients {
            if self.annexes.is_moving(&client) {
                self.release_to_annex(now, client);
                continue;
            }
            let connection = self.table.find(client);
            match (connection, &mut self.takeover) {
                (Some(connection), Some(takeover)) if takeover.may_give_back(client, connection) => {
                    match self.incoming.doomed(&client) {
                        Some(why) => doomed.push((connection, client, why)),
                        None => takeover.release(connection, self.reversed.is_due(&client).then_some(client)),
                    }
                    match self.standing.role() {
                        Role::Backup => self.orphans.note_taken(client),
                        _ => self.reversed.forget(&[client]), // the connection is an ordinary one of this primary again
                    }
                    held.push(client);
                }
                _ => ended.push(client), // the client has ended the connection meanwhile
            }
        }
        self.reversed.forget(&ended);
        if !held.is_empty() {
            self.actions.push_back(ServiceAction::Hold { clients: held });
        }
        ended
            .into_iter()
            .for_each(|client| self.incoming.on_decided(client));
        for (connection, client, why) in doomed {
            self.incoming.on_decided(client);
            if let Some(takeover) = &mut self.takeover {
                takeover.on_unrestorable(connection, &mut self.table, why, &mut self.actions);
            }
        }
        self.conclude(now);
    }

    /// Reserves and prepares the offered connections that can move now, if no takeover is under way.
    pub(super) fn prepare_migrations(&mut self, now: Instant) {
        if !matches!(self.role(), Role::Primary | Role::Backup) || self.takeover.is_some() {
            return;
        }
        let obstacle = self.migration_obstacle();
        let (mut incoming, table) = (std::mem::take(&mut self.incoming), &self.table);
        let mut to_annexes = Vec::new();
        let clients = incoming.choose(|offered| {
            let OfferedConnection { client, annex, .. } = offered;
            if self.annexes.place(&client) != ServingNode::Primary {
                return Err("it is on an annex".to_owned().into()); // so the primary does not have what it offers
            }
            if self.annexes.is_unheard(&client) {
                return Err("the other node takes it over from an annex".to_owned().into());
            }
            // Its late answer that it has not started the connection would make this wire take it over once more.
            if self.annexes.is_unconfirmed(&client) {
                return Err("the other node has not said that it has started it"
                    .to_owned()
                    .into());
            }
            match annex {
                Some(annex) => self.annex_obstacle(annex)?,
                None => obstacle.map_or(Ok(()), |why| Err(why.to_owned()))?,
            }
            let connection = table.find(client).and_then(|id| table.get(id));
            let unknown = || "the other node does not follow it".to_owned();
            match connection {
                Some(_) if offered.is_bereft => {} // it can only be restarted or ended
                Some(connection) => connection.moves()?,
                None if offered.is_bereft => return Err(OfferObstacle::Ever(unknown())),
                None => return Err(OfferObstacle::Now(unknown())),
            }
            to_annexes.extend(annex.map(|annex| (client, ServingNode::Annex(annex))));
            Ok(())
        });
        self.incoming = incoming;
        self.begin_annex_moves(now, &to_annexes);
        let mut clients = clients;
        clients.retain(|client| !self.annexes.is_moving(client));
        if !clients.is_empty() {
            self.takeover = Some(Takeover::begin_migration(now, clients, &mut self.actions));
        }
    }

    /// Why no connection can move to this node now.
    fn migration_obstacle(&self) -> Option<&'static str> {
        match self.server {
            _ if !self.may_speak_beside() => {
                Some("lease_ms is 0, so no node may speak beside a living primary")
            }
            _ if self.config.table.is_immediate => Some("the service has commit = \"immediate\""),
            _ if self.config.table.sends_directly => Some("the service has commit = \"pr\""),
            ApplicationState::Dead => Some("no process listens on the other node"),
            ApplicationState::Hung => Some("the other node's application hangs"),
            ApplicationState::Alive => None,
        }
    }

    /// The primary keeps these clients' connections.
    fn give_back(&mut self, now: Instant, clients: &[SocketAddr]) {
        for client in clients {
            self.keep_from_annex(now, *client);
            if let (Some(connection), Some(takeover)) = (self.table.find(*client), &mut self.takeover)
                && takeover.may_give_back(*client, connection)
            {
                takeover.give_back(connection, &mut self.table, &mut self.actions);
            }
        }
        self.conclude(now);
    }

    /// The primary has a new agent. It does not know what the earlier one has offered, but for the sockets that are frozen.
    pub(super) fn on_new_offerer(&mut self, now: Instant) {
        self.incoming.doubt();
        self.keep_all_from_annexes(now);
    }

    /// Gives back all connections that the primary has not released.
    fn give_back_all(&mut self, now: Instant) {
        let clients: Vec<_> = self
            .table
            .iter()
            .map(|(_, connection)| connection.client())
            .collect();
        self.incoming.clear();
        if self.takeover.as_ref().is_some_and(Takeover::is_migration) {
            self.give_back(now, &clients);
        }
    }

    /// The kernel says whether this node has a connection that the primary has released to an earlier agent.
    pub(super) fn on_looked_for(&mut self, now: Instant, client: SocketAddr, is_here: bool) {
        self.incoming.on_looked_for(client, is_here);
        if !is_here {
            self.reversed.forget(&[client]);
        }
        if !is_here && self.reverses() {
            self.table.begin_anew(client);
            self.follow_there(&[client]);
        }
        self.tell_peer(now);
    }

    /// A connection of a migration cannot be restored, now or ever (`is_final`), and the primary has not released it, so the primary keeps
    /// it. Returns false if this is no such connection.
    pub(super) fn keep_at_primary(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        reason: &str,
        is_final: bool,
    ) -> bool {
        let (Some(client), Some(takeover)) = (self.client_of(connection), &mut self.takeover) else {
            return false;
        };
        if !takeover.may_give_back(client, connection) {
            return false;
        }
        if self.incoming.is_bereft(&client) {
            self.incoming.doom(client, reason.to_owned());
            self.tell_peer(now);
            return true;
        }
        takeover.give_back(connection, &mut self.table, &mut self.actions);
        self.incoming.on_failed(client, reason.to_owned(), is_final);
        self.tell_peer(now);
        true
    }

    /// A connection's socket is being restored.
    pub(super) fn note_restoring(&mut self, now: Instant, connection: ConnectionId) {
        let is_migration = self.takeover.as_ref().is_some_and(Takeover::is_migration);
        if let Some(client) = self.client_of(connection).filter(|_| is_migration) {
            self.incoming.on_restored(client);
            self.tell_peer(now);
        }
    }

    /// The client of a connection in the table.
    pub(super) fn client_of(&self, connection: ConnectionId) -> Option<SocketAddr> {
        self.table.get(connection).map(Connection::client)
    }

    /// The backup has none of the reversed connections any more, so this node takes them over. Those that were moving here are completed. What
    /// has not moved to the backup yet goes on first.
    pub(super) fn take_reversed(&mut self, now: Instant) {
        let frozen = self.reversed.prepare_to_take();
        if !frozen.is_empty() {
            return self.thaw(frozen);
        }
        let clients = self.reversed.take_there();
        let adoption = self.takeover.take_if(|takeover| takeover.is_migration());
        self.incoming.clear();
        if clients.is_empty() && adoption.is_none() {
            return;
        }
        let takeover = Takeover::begin_reversed(now, clients, adoption, &mut self.actions);
        self.takeover = Some(takeover);
    }

    /// The migrated connections live here. Those that are to be reversed pass the primary.
    pub(super) fn report_migrated(&mut self, now: Instant, connections: usize) {
        self.reversed.begin();
        if connections > 0 {
            self.report(OperatorReport::Migrated { connections });
        }
        self.tell_peer(now);
    }
}
