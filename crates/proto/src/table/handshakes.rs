//! Handshakes under way: a connection begins when its client has received the SYN-ACK.

use std::net::SocketAddr;

use super::{ConnectionId, Direction, Table, TableChange};
use crate::Instant;
use crate::connection::{Connection, Opening};
use crate::follower::Follower;
use crate::packet::Segment;

/// Number of handshakes remembered. The oldest is forgotten first, which bounds the memory that a flood costs.
pub const HANDSHAKES_MAX: usize = 65_536;
/// Handshakes under way that a takeover continues.
pub const PENDING_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) syn: Opening,
    /// Bytes that came with the SYN (RFC 7413).
    data: u32,
    syn_ack: Option<Opening>,
}

impl Table {
    pub(super) fn on_opening(
        &mut self,
        now: Instant,
        direction: Direction,
        client: SocketAddr,
        segment: &Segment<'_>,
    ) -> TableChange {
        let opening = Opening::of(segment, now);
        match direction {
            Direction::In if segment.flags.ack => return TableChange::Unknown,
            Direction::In => {
                let repeated = self
                    .handshakes
                    .get(&client)
                    .is_some_and(|known| known.syn.seq == segment.seq);
                if !repeated {
                    self.remember_handshake(
                        client,
                        Handshake {
                            syn: opening,
                            data: segment.seq_len() - 1,
                            syn_ack: None,
                        },
                    );
                }
            }
            Direction::Out => {
                if let Some(handshake) = self.handshakes.get_mut(&client) {
                    let data = segment.ack.distance_from(handshake.syn.seq + 1);
                    if data == 0 {
                        handshake.syn_ack = Some(opening);
                    } else if (1..=i64::from(handshake.data)).contains(&i64::from(data)) {
                        self.disown(client);
                    }
                }
            }
        }
        TableChange::Handshake
    }

    /// The server has accepted data in a SYN (Fast Open), and no log has that data.
    fn disown(&mut self, client: SocketAddr) {
        self.handshakes.remove(&client);
        self.begin_anew(client);
    }

    /// The client begins another connection: nothing known of its earlier ones holds for the new one.
    fn begin_anew(&mut self, client: SocketAddr) {
        if let Some(old) = self.find(client) {
            self.discard(old);
        }
        self.ended.remove(&client);
        self.handed_over.remove(&client);
        self.forget_older(client);
    }

    /// The server sends something other than a SYN-ACK to a client that has not answered a SYN-ACK. The segment may show that the
    /// connection was established before the logged SYN came. Then that SYN was a late copy, and the connection is older than the
    /// log. A logged SYN-ACK does not prove the opposite: a node that took the connection over may repeat the SYN-ACK, but no log
    /// here has the data sent since the handshake.
    pub(super) fn on_established(&mut self, client: SocketAddr, segment: &Segment<'_>) {
        let Some(known) = self.handshakes.get(&client) else {
            return;
        };
        let acknowledged = segment.ack.distance_from(known.syn.seq + 1);
        let is_older = match known.syn_ack {
            None => acknowledged >= 0,
            Some(_) => acknowledged > 0 || acknowledged == 0 && segment.seq_len() > 0,
        };
        if is_older && segment.flags.ack && !segment.flags.rst {
            self.handshakes.remove(&client);
        }
    }

    fn remember_handshake(&mut self, client: SocketAddr, handshake: Handshake) {
        while let Some((oldest, seq)) = self.handshake_order.front() {
            let known = self.handshakes.get(oldest);
            if known.is_some_and(|known| known.syn.seq == *seq) {
                let has_room =
                    self.handshakes.len() < HANDSHAKES_MAX && self.handshake_order.len() < 2 * HANDSHAKES_MAX;
                if has_room {
                    break;
                }
                self.handshakes.remove(oldest);
            }
            self.handshake_order.pop_front();
        }
        self.handshake_order.push_back((client, handshake.syn.seq));
        self.handshakes.insert(client, handshake);
    }

    /// Packets passed unlogged: connections whose handshake was under way are now older than the log.
    pub fn forget_handshakes(&mut self) {
        self.handshake_order.clear();
        let answered = |(client, handshake): (SocketAddr, Handshake)| handshake.syn_ack.and(Some(client));
        let clients: Vec<_> = self.handshakes.drain().filter_map(answered).collect();
        clients.into_iter().for_each(|client| self.begin_anew(client));
    }

    /// The SYN and SYN-ACK of the handshake that `segment` completes. The segment shows that the client has received the SYN-ACK.
    pub(super) fn take_completed(
        &mut self,
        client: SocketAddr,
        segment: &Segment<'_>,
    ) -> Option<(Opening, Opening)> {
        if self.handshakes.is_empty() || !segment.flags.ack {
            return None;
        }
        let Handshake { syn, syn_ack, .. } = self.handshakes.get(&client)?;
        let (syn, syn_ack) = (*syn, (*syn_ack)?);
        if segment.ack != syn_ack.seq + 1 {
            return None;
        }
        self.handshakes.remove(&client);
        Some((syn, syn_ack))
    }

    /// Whether the client says that it did not ask for the connection, or no longer wants it: a scanner, or a client that has
    /// closed meanwhile. The server's kernel forgets the handshake by the same segment (RFC 9293 §3.10.7.4, SYN-RECEIVED).
    pub(super) fn is_refused_by(&self, client: SocketAddr, segment: &Segment<'_>) -> bool {
        let is_reset = segment.flags.rst && !segment.flags.ack && !self.handshakes.is_empty();
        let known = self.handshakes.get(&client).filter(|_| is_reset);
        known.is_some_and(|known| known.syn_ack.is_some() && segment.seq == known.syn.seq + 1)
    }

    /// Turns a handshake into a connection. An older connection of this client is over: otherwise the server would not have
    /// answered.
    pub(super) fn open(&mut self, client: SocketAddr, (syn, syn_ack): (Opening, Opening)) -> ConnectionId {
        self.begin_anew(client);
        let bound = usize::try_from(self.config.connection_bytes_max).unwrap_or(usize::MAX);
        let (policy, rules) = (self.config.policy, self.config.rules);
        let follower = Follower::new(policy, rules, self.config.opaque.clone(), bound);
        let connection = Connection::new(
            client,
            self.config.vip,
            &syn,
            &syn_ack,
            follower,
            self.config.connection_bytes_max,
        );
        self.insert(connection)
    }

    /// Opens the connections whose SYN-ACK was sent, but not seen to arrive, and returns them with their SYN and SYN-ACK. In a
    /// flood only the latest [`PENDING_MAX`] are opened: their sockets must not keep the others waiting.
    pub fn open_pending(&mut self) -> Vec<(ConnectionId, SocketAddr, Opening, Opening)> {
        let mut pending = Vec::new();
        for (client, seq) in std::mem::take(&mut self.handshake_order).into_iter().rev() {
            let is_known = |known: &&Handshake| known.syn.seq == seq;
            let known = self.handshakes.get(&client).filter(is_known);
            if let Some((syn, syn_ack)) = known.and_then(|known| Some((known.syn, known.syn_ack?)))
                && pending.len() < PENDING_MAX
            {
                self.handshakes.remove(&client); // the order may list a client twice: its handshake was refused and came again
                pending.push((client, syn, syn_ack));
            }
        }
        self.handshakes.clear();
        let opened = pending.into_iter().rev();
        opened
            .map(|(client, syn, syn_ack)| (self.open(client, (syn, syn_ack)), client, syn, syn_ack))
            .collect()
    }
}
