//! Fuzz target for an SCTP association. The input is a list of operations on two ends. Packets are delivered, lost, duplicated and
//! reordered, time passes, and messages are sent and read. Forged chunks also arrive: the peer never sent them, but they have the right
//! verification tag. Neither end may panic, answer without bound, or hold more bytes than its windows allow.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use steadfast_proto::Instant;
use steadfast_proto::sctp::chunk::SctpChunk;
use steadfast_proto::sctp::endpoint::{AssociationId, SctpEndpoint};
use steadfast_proto::sctp::packet::SctpPacket;
use steadfast_proto::sctp::{PathId, SctpConfig, SctpMessage, UserData};

use super::sctp::mended;

const PORT: u16 = 5000;
/// Maximum number of packets that one operation may cause to be sent: a few windows, and the answers to a packet's chunks.
const BURST_MAX: usize = 2_000;
/// Maximum number of packets that wait in the network. Further packets are lost.
const WAITING_MAX: usize = 4_000;
/// Packets that are delivered before the operations begin: the handshake.
const HANDSHAKE: usize = 8;
/// Bytes that an end may hold besides its receive buffer: 16 replies of a packet each, 96 gaps and 24 duplicates (docs/sctp.md, invariant 7).
const BESIDE_BUFFER: usize = 16 * 1500 + 96 * 8 + 24 * 4;
/// Length of the largest message in bytes, less 1. With `SctpConfig::default`, such a message takes twelve packets.
const MESSAGE_MAX: u64 = 64 * 255;

/// A packet in the network, with the end that gets it.
#[derive(Clone)]
struct TravellingPacket {
    to: usize,
    from: IpAddr,
    packet: SctpPacket,
}

/// Two ends with two addresses each, and the packets between them.
struct AssociationWorld {
    ends: [SctpEndpoint; 2],
    ids: [Option<AssociationId>; 2],
    /// The verification tag of the last packet that was sent to each end.
    tags: [u32; 2],
    /// The highest TSN that was sent to each end.
    tsns: [u32; 2],
    now: Instant,
    network: VecDeque<TravellingPacket>,
}

fn address(end: usize, path: u8) -> IpAddr {
    IpAddr::from([10, path, 0, end as u8 + 1])
}

fn config() -> SctpConfig {
    SctpConfig {
        receive_buffer: 16_000,
        send_buffer: 16_000,
        ..SctpConfig::default()
    }
}

impl AssociationWorld {
    fn new() -> Self {
        let end = |end: usize| {
            let addresses = vec![address(end, 0), address(end, 1)];
            SctpEndpoint::new(config(), [end as u8 + 1; 32], PORT, addresses, 4).expect("a valid end")
        };
        let mut world = Self {
            ends: [end(0), end(1)],
            ids: [None; 2],
            tags: [0; 2],
            tsns: [0; 2],
            now: Instant::ZERO,
            network: VecDeque::new(),
        };
        world.ids[0] = world.ends[0].connect(world.now, &[address(1, 0)], PORT).ok();
        world.settle();
        for _ in 0..HANDSHAKE {
            world.deliver();
        }
        world
    }

    /// Takes the ends' packets and events. Checks that the number of packets, the unacknowledged bytes and the held bytes are bounded.
    fn settle(&mut self) {
        for end in 0..2 {
            let mut count = 0;
            while let Some(transmit) = self.ends[end].poll_transmit(self.now) {
                count += 1;
                assert!(count <= BURST_MAX, "end {end} sends without bound");
                let path = match transmit.to {
                    IpAddr::V4(to) => to.octets()[1] & 1,
                    IpAddr::V6(_) => continue,
                };
                self.tags[1 - end] = transmit.packet.tag;
                for chunk in &transmit.packet.chunks {
                    match chunk {
                        SctpChunk::Init(init) | SctpChunk::InitAck(init) => {
                            self.tsns[1 - end] = init.first_tsn.0.wrapping_sub(1);
                        }
                        SctpChunk::Data(data) => self.tsns[1 - end] = data.tsn.0,
                        _ => {}
                    }
                }
                if self.network.len() < WAITING_MAX {
                    self.network.push_back(TravellingPacket {
                        to: 1 - end,
                        from: address(end, path),
                        packet: transmit.packet,
                    });
                }
            }
            while let Some((id, _)) = self.ends[end].poll_event() {
                self.ids[end] = Some(id);
            }
            let id = self.ids[end];
            if let Some(association) = id.and_then(|id| self.ends[end].association(id)) {
                let most = config().send_buffer as usize + 2 * MESSAGE_MAX as usize;
                assert!(association.unacknowledged() <= most, "end {end}");
                // The chunk that is next in order may fill the buffer twice (docs/sctp.md, *Where this differs from RFC 9260*).
                let most = 2 * config().receive_buffer as usize + BESIDE_BUFFER;
                let held = association.held_bytes();
                assert!(held <= most, "end {end} holds {held} bytes");
            }
        }
    }

    fn deliver(&mut self) {
        if let Some(TravellingPacket { to, from, packet }) = self.network.pop_front() {
            self.ends[to].handle_packet(self.now, from, packet);
            self.settle();
        }
    }

    /// Delivers a packet with chunks that the other end never sent. The packet has the right ports and the right verification tag.
    fn forge(&mut self, to: usize, path: u8, chunks: &[u8]) {
        let mut bytes = [PORT.to_be_bytes(), PORT.to_be_bytes()].concat();
        bytes.extend(self.tags[to].to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(chunks);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        if let Ok(packet) = SctpPacket::parse(&Bytes::from(mended(&bytes))) {
            self.ends[to].handle_packet(self.now, address(1 - to, path), packet);
            self.settle();
        }
    }

    /// Sends eight DATA chunks, regardless of the window that the end has announced. `kind` says what the chunks are: whole messages, or
    /// fragments of messages that never end, or messages that wait for their turn. With bit 2 of `kind`, every second TSN is missing.
    fn flood(&mut self, to: usize, path: u8, kind: u8) {
        let payload = vec![0; usize::from(kind) * 4 + 4];
        // Bits of a DATA chunk: unordered, begins, ends.
        let flags = match kind % 4 {
            0 => 0b111,
            1 => 0b000,
            2 => 0b010,
            _ => 0b011,
        };
        for _ in 0..8 {
            self.tsns[to] = self.tsns[to].wrapping_add(1 + u32::from(kind >> 2 & 1));
            let mut chunk = vec![0, flags];
            chunk.extend((payload.len() as u16 + 16).to_be_bytes());
            chunk.extend(self.tsns[to].to_be_bytes());
            // Stream 0. The ordered messages of stream 0 come before their turn, unless the peer has sent as many.
            chunk.extend([0, 0]);
            chunk.extend((self.tsns[to] as u16 | 1).to_be_bytes());
            chunk.extend([0; 4]);
            chunk.extend(&payload);
            self.forge(to, path, &chunk);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for end in &mut self.ends {
            end.handle_timeout(self.now);
        }
        self.settle();
    }

    /// One action of the program at an end.
    fn work(&mut self, end: usize, what: u8, argument: u8) {
        let now = self.now;
        let Some(association) = self.ids[end].and_then(|id| self.ends[end].association_mut(id)) else {
            return;
        };
        match what % 8 {
            0..4 => {
                let message = SctpMessage {
                    stream: u16::from(argument % 4),
                    protocol: 0,
                    is_unordered: what & 8 != 0, // the lower bits choose the action
                    data: UserData::Bytes(vec![argument; usize::from(argument) * 64 + 1].into()),
                };
                let _ = association.send(message); // a full buffer refuses it
            }
            4 => {
                let mut bytes = 0;
                while let Some(message) = association.receive() {
                    bytes += message.data.len() as u64;
                }
                let most = u64::from(2 * config().receive_buffer) + MESSAGE_MAX;
                assert!(bytes <= most, "end {end} held {bytes} bytes");
            }
            5 => association.set_primary(PathId(argument & 1)),
            6 => association.shutdown(now),
            _ => association.abort(Bytes::from_static(b"enough")),
        }
        self.settle();
    }
}

/// Plays the operations of an input.
fn play(input: &[u8]) {
    let mut world = AssociationWorld::new();
    let mut rest = input;
    while let Some((&operation, behind)) = rest.split_first() {
        rest = behind;
        let argument = rest.first().copied().unwrap_or_default();
        let end = usize::from(operation >> 7);
        match operation % 10 {
            0..=2 => world.deliver(),
            3 => drop(world.network.pop_front()),
            4 => {
                world.network.extend(world.network.front().cloned());
                world.deliver();
            }
            5 if !world.network.is_empty() => world.network.rotate_left(1),
            6 => {
                let millis = u64::from(argument).pow(2);
                world.pass(Duration::from_millis(millis));
                rest = rest.get(1..).unwrap_or_default();
            }
            7 => {
                world.work(end, argument, operation);
                rest = rest.get(1..).unwrap_or_default();
            }
            8 => {
                let (chunks, behind) = rest
                    .get(1..)
                    .unwrap_or_default()
                    .split_at_checked(argument.into())
                    .unwrap_or((rest, &[]));
                world.forge(end, operation >> 6 & 1, chunks);
                rest = behind;
            }
            9 => {
                world.flood(end, operation >> 6 & 1, argument);
                rest = rest.get(1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    // Finally both ends read everything. `work` checks that neither end held more than its window.
    for end in 0..2 {
        world.work(end, 4, 0);
    }
}

#[test]
fn an_association_survives_every_peer() {
    fuzz::target!("sctp_association", play);
}
