//! Handshakes under way: a connection begins when its client has received the SYN-ACK.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::clients::{ClientMap, client_map};
use crate::packet::{Opening, Segment};
use crate::{Instant, Seq};

/// Maximum number of handshakes remembered, which bounds the memory that a SYN flood costs. The oldest handshake is forgotten first.
pub const HANDSHAKES_MAX: usize = 65_536;
/// Maximum number of handshakes under way that a takeover continues.
pub const PENDING_MAX: usize = 1024;

#[derive(Debug)]
struct Handshake {
    syn: Opening,
    /// Bytes that came with the SYN (RFC 7413).
    data: u32,
    syn_ack: Option<Opening>,
}

/// The handshakes of one table.
#[derive(Debug)]
pub(super) struct Handshakes {
    by_client: ClientMap<Handshake>,
    /// The clients with the sequence numbers of their SYNs, oldest first. Some of these handshakes are over.
    order: VecDeque<(SocketAddr, Seq)>,
}

impl Handshakes {
    pub(super) fn new(seed: usize) -> Self {
        Self {
            by_client: client_map(seed),
            order: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_client.len()
    }

    /// Number of entries of `order`.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.order.len()
    }

    /// A client's SYN.
    pub(super) fn on_syn(&mut self, now: Instant, client: SocketAddr, segment: &Segment<'_>) {
        let known = self.by_client.get(&client);
        if known.is_none_or(|known| known.syn.seq != segment.seq) {
            let handshake = Handshake {
                syn: Opening::of(segment, now),
                data: segment.seq_len() - 1,
                syn_ack: None,
            };
            self.remember(client, handshake);
        }
    }

    /// The server's answer to a SYN. If the server has accepted data in the SYN (Fast Open), no log has this data. Then the handshake is
    /// forgotten, and the result is false.
    pub(super) fn on_syn_ack(&mut self, now: Instant, client: SocketAddr, segment: &Segment<'_>) -> bool {
        let Some(handshake) = self.by_client.get_mut(&client) else {
            return true;
        };
        let data = segment.ack.distance_from(handshake.syn.seq + 1);
        if data == 0 {
            handshake.syn_ack = Some(Opening::of(segment, now));
        } else if (1..=i64::from(handshake.data)).contains(&i64::from(data)) {
            self.by_client.remove(&client);
            return false;
        }
        true
    }

    /// The server sends something other than a SYN-ACK to a client that has not answered a SYN-ACK. The segment may show that the
    /// connection was established before the logged SYN came. Then that SYN was a late copy, and the connection is older than the
    /// log. A logged SYN-ACK does not prove that the connection is new, because a node that took the connection over may
    /// repeat the SYN-ACK. Then data was sent before this node's log began.
    pub(super) fn on_established(&mut self, client: SocketAddr, segment: &Segment<'_>) {
        let Some(known) = self.by_client.get(&client) else {
            return;
        };
        let acknowledged = segment.ack.distance_from(known.syn.seq + 1);
        let is_older = match known.syn_ack {
            None => acknowledged >= 0,
            Some(_) => acknowledged > 0 || acknowledged == 0 && segment.seq_len() > 0,
        };
        if is_older && segment.flags.ack && !segment.flags.rst {
            self.by_client.remove(&client);
        }
    }

    fn remember(&mut self, client: SocketAddr, handshake: Handshake) {
        while let Some((oldest, seq)) = self.order.front() {
            let known = self.by_client.get(oldest);
            if known.is_some_and(|known| known.syn.seq == *seq) {
                let has_room = self.by_client.len() < HANDSHAKES_MAX && self.order.len() < 2 * HANDSHAKES_MAX;
                if has_room {
                    break;
                }
                self.by_client.remove(oldest);
            }
            self.order.pop_front();
        }
        self.order.push_back((client, handshake.syn.seq));
        self.by_client.insert(client, handshake);
    }

    /// Forgets all handshakes. Returns the clients that were answered.
    pub(super) fn take_answered(&mut self) -> Vec<SocketAddr> {
        self.order.clear();
        let answered = |(client, handshake): (SocketAddr, Handshake)| handshake.syn_ack.and(Some(client));
        self.by_client.drain().filter_map(answered).collect()
    }

    /// Removes the handshake that `segment` completes, and returns its SYN and SYN-ACK. A segment completes the handshake if it
    /// acknowledges the SYN-ACK.
    pub(super) fn take_completed(
        &mut self,
        client: SocketAddr,
        segment: &Segment<'_>,
    ) -> Option<(Opening, Opening)> {
        if self.by_client.is_empty() || !segment.flags.ack {
            return None;
        }
        let Handshake { syn, syn_ack, .. } = self.by_client.get(&client)?;
        let (syn, syn_ack) = (*syn, (*syn_ack)?);
        if segment.ack != syn_ack.seq + 1 {
            return None;
        }
        self.by_client.remove(&client);
        Some((syn, syn_ack))
    }

    /// Forgets the client's handshake if `segment` is a RST that refuses the SYN-ACK. Such a RST comes from a scanner, or from a client
    /// that has closed meanwhile. The RST makes the server's kernel forget the handshake, too (RFC 9293 §3.10.7.4, SYN-RECEIVED). Returns
    /// whether there was such a handshake.
    pub(super) fn take_refused(&mut self, client: SocketAddr, segment: &Segment<'_>) -> bool {
        let is_reset = segment.flags.rst && !segment.flags.ack && !self.by_client.is_empty();
        let known = self.by_client.get(&client).filter(|_| is_reset);
        let is_refused =
            known.is_some_and(|known| known.syn_ack.is_some() && segment.seq == known.syn.seq + 1);
        if is_refused {
            self.by_client.remove(&client);
        }
        is_refused
    }

    /// Forgets all handshakes. Returns, oldest first, the SYN and SYN-ACK of each handshake whose SYN-ACK was sent but not yet
    /// acknowledged. In a flood only the latest [`PENDING_MAX`] are returned: sockets for more handshakes would delay the takeover of the
    /// open connections.
    pub(super) fn take_pending(&mut self) -> Vec<(SocketAddr, Opening, Opening)> {
        let mut pending = Vec::new();
        for (client, seq) in std::mem::take(&mut self.order).into_iter().rev() {
            let is_known = |known: &&Handshake| known.syn.seq == seq;
            let known = self.by_client.get(&client).filter(is_known);
            if let Some((syn, syn_ack)) = known.and_then(|known| Some((known.syn, known.syn_ack?)))
                && pending.len() < PENDING_MAX
            {
                self.by_client.remove(&client); // `order` lists a client twice if its handshake was refused and the same SYN came again
                pending.push((client, syn, syn_ack));
            }
        }
        self.by_client.clear();
        pending.reverse();
        pending
    }
}
