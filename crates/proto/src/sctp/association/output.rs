//! Packets that leave (RFC 9260 §6.1, §6.10).
//!
//! Order: replies, the repeated chunk, heartbeats, then retransmissions and new data, with a SACK in front if one is due.

use bytes::{BufMut, Bytes};

use super::{Association, SctpTransmit};
use crate::Instant;
use crate::sctp::chunk::{DATA_HEADER, PAD, SctpChunk};
use crate::sctp::config::{RetransmissionPolicy, SctpConfig};
use crate::sctp::destination::PathId;
use crate::sctp::packet::SctpPacket;
use crate::sctp::paths::PathTable;
use crate::sctp::send_queue::RetransmitCause;
use crate::sctp::state::AssociationState;
use crate::sctp::tlv::{TLV_HEADER, padded};

impl Association {
    /// The next packet. To be called after every other call, until it returns `None`.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<SctpTransmit> {
        let transmit = self.next_transmit(now)?;
        if let Some(path) = self.paths.find(transmit.to) {
            self.paths.get_mut(path).counts.sent_bytes += transmit.packet.wire_bytes() as u64;
        }
        Some(transmit)
    }

    fn next_transmit(&mut self, now: Instant) -> Option<SctpTransmit> {
        if let Some((path, chunk)) = self.replies.pop_front() {
            return Some(self.packet(path, vec![chunk]));
        }
        if let Some(repeated) = self.repeated.as_mut().filter(|repeated| repeated.is_due) {
            repeated.is_due = false;
            let (path, mut chunks) = (repeated.path, vec![repeated.chunk.clone()]);
            if let Some(key) = &self.call_key
                && matches!(chunks[..], [SctpChunk::CookieEcho(_)])
            {
                chunks.insert(0, key.prove(&chunks));
            }
            return Some(self.packet(path, chunks));
        }
        if self.state.probes()
            && let Some(path) = self
                .paths
                .ids()
                .find(|path| self.paths.get(*path).wants_probe(now))
        {
            return Some(self.heartbeat(now, path));
        }
        if self.state.probes()
            && let Some(path) = self
                .paths
                .ids()
                .find(|path| self.paths.get(*path).wants_watch(now))
        {
            let nonce = self.secret.draw();
            self.paths.get_mut(path).on_watch_sent(now, nonce);
            return Some(self.packet(path, vec![heartbeat_chunk(path, nonce)]));
        }
        if self.state == AssociationState::Closed {
            return None;
        }
        if self.state.probes()
            && let Some((path, size)) = self.paths.ids().find_map(|path| {
                let size = self.paths.get(path).next_size()?;
                Some((path, size))
            })
        {
            return Some(self.size_probe(now, path, size));
        }
        self.data_packet(now)
    }

    /// A packet to the peer.
    fn packet(&self, path: PathId, chunks: Vec<SctpChunk>) -> SctpTransmit {
        let tag = match chunks.first() {
            Some(SctpChunk::Init(_)) => 0,
            _ => self.peer_tag,
        };
        SctpTransmit {
            to: self.paths.get(path).address(),
            packet: SctpPacket {
                source_port: self.local_port,
                destination_port: self.peer_port,
                tag,
                chunks,
            },
            fragment_size: None,
        }
    }

    fn heartbeat(&mut self, now: Instant, path: PathId) -> SctpTransmit {
        let nonce = self.secret.draw();
        self.paths.get_mut(path).on_probe_sent(now, nonce);
        self.packet(path, vec![heartbeat_chunk(path, nonce)])
    }

    /// A HEARTBEAT in a packet of `size` bytes (RFC 8899 §6.2.1).
    fn size_probe(&mut self, now: Instant, path: PathId, size: u32) -> SctpTransmit {
        let nonce = self.secret.draw();
        let destination = self.paths.get_mut(path);
        let rto = destination.rto();
        destination.mtu.on_probe_sent(now, size, nonce, rto);
        let heartbeat = heartbeat_chunk(path, nonce);
        let padding = self.config.room(size) - padded(heartbeat.wire_bytes()) - TLV_HEADER;
        let pad = SctpChunk::Other {
            kind: PAD,
            flags: 0,
            value: Bytes::from(vec![0; padding]),
        };
        self.packet(path, vec![heartbeat, pad])
    }

    /// A packet with marked chunks, new chunks or a SACK.
    fn data_packet(&mut self, now: Instant) -> Option<SctpTransmit> {
        let mut chunks = Vec::new();
        let mut path = self.heard_on;
        let size = self.config.room(self.paths.packet_size());
        self.sender.set_fragment(size - DATA_HEADER);
        let mut fragment_size = None;
        let chosen = if self.state.sends_data() {
            self.data_path()
        } else {
            None
        };
        let mut room = size;
        // A SACK goes to the source of the data. It is bundled with data that goes to the same destination.
        let has_sack = match chosen {
            Some((to, _)) => self.arrivals.is_waiting() && to == self.heard_on,
            None => self.arrivals.is_due(now),
        };
        if has_sack {
            self.announced = self.buffer.window();
            let sack = SctpChunk::Sack(self.arrivals.take_sack(self.announced));
            room -= padded(sack.wire_bytes());
            chunks.push(sack);
        }
        if let Some((to, is_marked)) = chosen {
            let before = chunks.len();
            if is_marked {
                self.fill_marked(now, to, &mut room, &mut chunks);
                if chunks.len() == before && size < self.config.packet_room() {
                    // The first marked chunk was made when packets were larger.
                    let larger = self.config.packet_room() - size;
                    room += larger;
                    self.fill_marked(now, to, &mut room, &mut chunks);
                    let of_path = self.paths.get(to).mtu().confirmed();
                    let is_larger = size + larger - room > self.config.room(of_path);
                    fragment_size = is_larger.then_some(of_path);
                }
            } else {
                self.fill_new(now, to, &mut room, &mut chunks);
            }
            if chunks.len() > before {
                path = to;
                self.burst = self.burst.saturating_sub(1);
            }
        }
        if chunks.is_empty() {
            return None;
        }
        let packet = self.packet(path, chunks);
        Some(SctpTransmit {
            fragment_size,
            ..packet
        })
    }

    /// Destination of the next packet with data, and whether the packet carries marked chunks. `None` if no data may be sent now.
    fn data_path(&self) -> Option<(PathId, bool)> {
        if self.burst == 0 {
            return None;
        }
        let mut waits = false;
        let marked = self.sender.find_marked(|cause, last| {
            let path = retransmission_path(&self.config, &self.paths, cause, last);
            let destination = self.paths.get(path);
            let has_room = destination.window.has_room() && !self.waits_for_sack;
            let may = self.retransmits_at_once || has_room;
            waits |= !may && destination.errors() == 0;
            may.then_some((path, true))
        });
        // New data waits until the marked chunks were sent (RFC 9260 §6.1 C). It does not wait for marked chunks whose destination does not
        // answer.
        if marked.is_some() || waits {
            return marked;
        }
        if self.waits_for_sack && self.config.holds_new_after_timeout {
            return None;
        }
        let path = self.paths.current();
        let bytes = self.sender.next_new()?;
        let may = self.paths.get(path).window.has_room() && self.sender.fits_window(bytes);
        may.then_some((path, false))
    }

    fn fill_marked(&mut self, now: Instant, path: PathId, room: &mut usize, chunks: &mut Vec<SctpChunk>) {
        let Self {
            config,
            paths,
            sender,
            ..
        } = self;
        let chosen = |cause, last| retransmission_path(config, paths, cause, last);
        let (bytes, is_lowest) = sender.retransmit(path, room, chunks, chosen);
        if bytes > 0 {
            self.retransmits_at_once = false;
            self.was_acknowledged = false;
            let destination = self.paths.get_mut(path);
            destination.window.on_sent(bytes);
            destination.counts.packets += 1;
            destination.counts.retransmissions += 1;
            destination.start_timer(now, is_lowest);
        }
    }

    /// `bytes` bytes of data went to `path`. Probes that measure the other destinations may then use a fraction of this number of bytes.
    fn earn(&mut self, path: PathId, bytes: u32) {
        if self.measures {
            for other in self.paths.ids().filter(|other| *other != path) {
                self.paths.get_mut(other).earn(bytes);
            }
        }
    }

    fn fill_new(&mut self, now: Instant, path: PathId, room: &mut usize, chunks: &mut Vec<SctpChunk>) {
        let destination = self.paths.get_mut(path);
        destination.on_use(now);
        let (mut sent, mut sent_bytes) = (0, 0);
        while let Some(bytes) = self.sender.next_new() {
            let fits = destination.window.has_room() && self.sender.fits_window(bytes);
            let timed_at = (!destination.is_measuring).then_some(now);
            let Some(chunk) = fits.then(|| self.sender.send_new(path, room, timed_at)).flatten() else {
                break;
            };
            destination.is_measuring = true;
            destination.window.on_sent(bytes);
            chunks.push(SctpChunk::Data(chunk));
            sent += 1;
            sent_bytes += bytes;
        }
        if sent > 0 {
            self.earn(path, sent_bytes);
            self.was_acknowledged = false;
            let destination = self.paths.get_mut(path);
            destination.counts.packets += 1;
            destination.counts.chunks += sent;
            destination.start_timer(now, false);
        }
    }
}

fn heartbeat_chunk(path: PathId, nonce: u64) -> SctpChunk {
    let mut info = Vec::with_capacity(9);
    info.put_u8(path.0);
    info.put_u64(nonce);
    SctpChunk::Heartbeat(Bytes::from(info))
}

/// Returns the destination of a marked chunk whose last transmission went to `last` (RFC 9260 §6.4).
fn retransmission_path(
    config: &SctpConfig,
    paths: &PathTable,
    cause: RetransmitCause,
    last: PathId,
) -> PathId {
    match (config.retransmission, cause) {
        (RetransmissionPolicy::FastSame, RetransmitCause::Fast) if paths.get(last).is_usable() => last,
        (RetransmissionPolicy::FastSame, RetransmitCause::Fast) => paths.current(),
        (RetransmissionPolicy::FastSame, RetransmitCause::Timeout) | (RetransmissionPolicy::Alternate, _) => {
            paths.alternate(last)
        }
    }
}
