//! Packets of the wire's log, what a takeover does with the connections, and the windows of clients whose logs grow.

use std::net::SocketAddr;

use super::Service;
use crate::Instant;
use crate::action::{OperatorReport, ServiceAction};
use crate::connection::{CapChange, Endpoint};
use crate::packet::{Checksum, Segment, is_returned};
use crate::role::Role;
use crate::state_sync::StateSyncEvent;
use crate::stream::{OnShelf, Shelf};
use crate::table::{ConnectionId, Direction, TableChange};
use crate::takeover::{self, HandedOver};

impl Service {
    /// If a client speaks on a connection that waits to be taken over, that connection comes next. A segment that the connection would not
    /// accept, for example because of its sequence number, has no effect: anybody can send such a segment.
    fn hurry_speaker(&mut self, now: Instant, direction: Direction, segment: &Segment<'_>) {
        let (Direction::In, Some(takeover)) = (direction, &mut self.takeover) else {
            return;
        };
        let said_on = self.table.find(segment.source);
        let waits = said_on.filter(|&id| takeover.is_unhurried(id));
        let is_taken = |id: &ConnectionId| self.table.get(*id).is_some_and(|entry| entry.takes(segment));
        if let Some(connection) = waits.filter(is_taken) {
            takeover.on_speaker(now, connection);
        }
    }

    /// A packet that the wire logged at `now`, from its IP header on.
    pub(crate) fn on_packet(
        &mut self,
        now: Instant,
        direction: Direction,
        packet: &[u8],
        checksum: Checksum,
        source: Option<OnShelf<'_>>,
    ) {
        let Ok(segment) = Segment::parse(packet, checksum) else {
            self.unfollowed.malformed += 1;
            return;
        };
        let payload_at = (segment.payload.as_ptr() as usize).wrapping_sub(packet.as_ptr() as usize);
        let source = source
            .filter(|_| payload_at < packet.len())
            .map(|source| source.skip(payload_at));
        let is_wire = self.role() == Role::Backup;
        if is_wire && direction == Direction::In {
            self.path.on_client(now);
        }
        if !is_wire && direction == Direction::In && is_returned(packet) {
            return self.take_home(now, segment.source);
        }
        let is_of_before = |client| direction == Direction::In && self.reversed.was_frozen(client);
        if is_of_before(&segment.source) && !segment.flags.syn {
            return;
        }
        self.tell_table();
        let missed = self.missed_by_replica(direction, &segment);
        self.hurry_speaker(now, direction, &segment);
        let change = self.table.on_packet(now, direction, &segment, source);
        self.remove_ended(now);
        if self.config.table.has_replicas() && self.admits(change, missed) {
            super::replica::follow_replica(&mut self.table, change, &mut self.actions);
        }
        match change {
            TableChange::Unknown => {
                self.unfollowed.unknown += 1;
                if self.answers(now, direction, &segment) {
                    let reset = takeover::refuse(&segment).map(|reset| reset.emit());
                    self.actions.extend(reset.map(ServiceAction::Transmit));
                }
                self.ask_about_older(now);
            }
            TableChange::Old if self.answers(now, direction, &segment) => {
                let answer = self.table.answer_to_old(now, &segment);
                let answer = answer.map(|answer| answer.emit());
                self.actions.extend(answer.map(ServiceAction::Transmit));
            }
            // Only the client's old connection lives on the backup. The primary has the new one.
            TableChange::Handshake if direction == Direction::In => {
                self.orphans.forget_taken(&segment.source);
                if is_wire {
                    self.reversed.forget(&[segment.source]);
                } else {
                    self.take_home(now, segment.source);
                }
            }
            TableChange::Ended(connection) => {
                let client = match direction {
                    Direction::In => segment.source,
                    Direction::Out => segment.destination,
                };
                self.end_at_annex(client);
                self.incoming.on_decided(client);
                self.decide(now, connection);
            }
            TableChange::Connection(connection) if direction == Direction::Out => {
                self.tell_reached(connection)
            }
            TableChange::Opened(_) => self.ask_prefixes(now),
            TableChange::Old | TableChange::Handshake | TableChange::Connection(_) => {}
        }
        self.tell_wire();
    }

    /// The connection of `client` does not live on the backup any more. If there is one, it is an ordinary one of this primary.
    fn take_home(&mut self, now: Instant, client: SocketAddr) {
        self.reversed.forget(&[client]);
        self.table.begin_anew(client);
        self.remove_ended(now);
    }

    /// Copies the bytes that the logs still need from `shelf`. The caller may then clear the shelf.
    pub(crate) fn keep(&mut self, shelf: &dyn Shelf) {
        self.table.keep(shelf);
    }

    pub(super) fn on_drained(&mut self, now: Instant) {
        self.distrust_log();
        self.reversed.on_drained();
        if self.role() == Role::Returning {
            self.begin_log();
        }
        if let Some(takeover) = self.takeover.as_mut() {
            takeover.on_drained(now, &mut self.table, &mut self.actions);
        }
        self.on_annex_drained(now);
        self.sync(now, StateSyncEvent::Drained);
        self.conclude(now);
    }

    pub(super) fn on_unrestorable(&mut self, now: Instant, connection: ConnectionId, reason: String) {
        if !self.keep_at_primary(now, connection, &reason, true)
            && !self.keep_unreserved(now, connection, &reason)
            && let Some(takeover) = self.takeover.as_mut()
        {
            takeover.on_unrestorable(connection, &mut self.table, reason, &mut self.actions);
        }
        self.conclude(now);
    }

    /// Takes a live connection out of the table, with its logs, for the relay. Its socket was made from `endpoint`. Returns `None` if
    /// the connection ended meanwhile, or if the application cannot go on with that socket. In the second case, the service refuses the
    /// connection, unless it is half-open: its client repeats its SYN. In both cases, the caller must close the socket.
    pub(crate) fn hand_over(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        endpoint: &Endpoint,
    ) -> Option<HandedOver> {
        let entry = self.table.get(connection);
        if let Some(Err(reason)) = entry.map(|entry| entry.restarts_on(endpoint)) {
            self.on_unrestorable(now, connection, reason);
            return None;
        }
        let client = self.client_of(connection);
        let taken = self.table.hand_over(connection).map(|taken| {
            let takeover = self.takeover.as_mut();
            let syn_ack = takeover.and_then(|takeover| takeover.half_open(connection, &taken));
            HandedOver {
                connection: taken,
                syn_ack,
            }
        });
        if let Some(syn_ack) = taken.as_ref().and_then(|taken| taken.syn_ack.as_ref()) {
            self.repeats.add(now, syn_ack.clone(), &mut self.actions);
        }
        client
            .into_iter()
            .for_each(|client| self.incoming.on_decided(client));
        self.decide(now, connection);
        taken
    }

    pub(super) fn decide(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(takeover) = &mut self.takeover {
            takeover.on_decided(connection);
        }
        self.conclude(now);
    }

    /// Ends the takeover if all its connections are decided.
    pub(super) fn conclude(&mut self, now: Instant) {
        self.remove_ended(now);
        self.tell_wire();
        let Some(mut takeover) = self.takeover.take_if(|takeover| takeover.is_decided()) else {
            return;
        };
        let is_whole = takeover.is_whole();
        let is_migration = takeover.is_migration();
        let report = takeover.report(now);
        let restored = report.restored;
        if !is_migration {
            self.reports.push(report);
        }
        self.actions.extend(takeover.take_hold());
        self.actions.push_back(ServiceAction::Settle);
        if is_whole {
            self.actions.push_back(ServiceAction::AllowSpeech);
        }
        for refusal in takeover.into_refusals() {
            self.repeats.add(now, refusal, &mut self.actions);
        }
        if is_migration {
            self.report_migrated(now, restored);
        } else {
            self.report(OperatorReport::TakenOver);
        }
        if is_whole {
            let change = self.standing.on_decided(now);
            self.follow(now, change);
        }
        self.adopt_orphans(now);
        self.prepare_migrations(now);
        self.move_guests(now);
    }

    /// Queues the actions that the table wants for clients' windows.
    pub(super) fn tell_wire(&mut self) {
        let words = &mut self.table;
        while let Some((client, word)) = words.poll_word() {
            let cap = match word {
                CapChange::Cap(cap) => Some(cap),
                CapChange::Forget => None,
                CapChange::Update(packet) => {
                    self.actions.push_back(ServiceAction::Transmit(packet));
                    continue;
                }
            };
            self.actions.push_back(ServiceAction::CapWindow { client, cap });
        }
    }
}
