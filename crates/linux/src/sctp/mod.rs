//! SCTP on real networks: the sockets of an endpoint, over UDP (RFC 6951) or as raw IP. The protocol itself is in `proto::sctp`
//! (docs/tunnel.md).

mod fragments;
mod socket;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use proto::Instant;
use proto::sctp::endpoint::SctpEndpoint;
use proto::sctp::packet::SctpPacket;
use proto::sctp::{InvalidSctp, PathSource, SctpConfig, SourceTable};
use thiserror::Error;

use crate::process::fill_random;

use socket::{BATCH_MAX, DATAGRAM_MAX, SEGMENTS_MAX, SctpSocket};

/// UDP port of encapsulated SCTP (RFC 6951).
pub const SCTP_UDP_PORT: u16 = 9899;
/// Size of the UDP header in bytes.
const UDP_HEADER: u32 = 8;

/// Addresses and ports of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WirePlan {
    /// Local addresses, one socket for each.
    pub addresses: Vec<IpAddr>,
    /// Local UDP port. 0: raw IP.
    pub udp_port: u16,
    /// UDP port of peers that have not sent anything yet.
    pub peer_udp_port: u16,
    /// SCTP port.
    pub port: u16,
    /// The endpoint accepts new associations from peers while it has fewer associations than this.
    pub associations_max: usize,
}

/// Why an endpoint cannot be opened.
#[derive(Debug, Error)]
pub enum WireOpenError {
    /// The socket of an address cannot be opened.
    #[error("opening the SCTP socket of {0}: {1}")]
    Socket(IpAddr, io::Error),
    /// The configuration of the endpoint is invalid.
    #[error("the SCTP configuration: {0}")]
    Config(#[from] InvalidSctp),
    /// The kernel gives no random bytes.
    #[error("reading random bytes: {0}")]
    Random(io::Error),
}

/// Counters of the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounts {
    /// Packets that arrived.
    pub received: u64,
    /// Calls that returned packets. With `UDP_GRO`, one call returns several packets.
    pub received_batches: u64,
    /// Packets that were sent.
    pub sent: u64,
    /// Bytes of the packets that arrived.
    pub received_bytes: u64,
    /// Bytes of the packets that were sent.
    pub sent_bytes: u64,
    /// Packets that could not be read as SCTP, or whose checksum was wrong.
    pub malformed: u64,
    /// Packets that no association took, among them every INIT. Also counts the errors that ICMP messages reported to the sockets.
    pub refused: u64,
    /// Packets that the kernel refused to send.
    pub unsent: u64,
    /// Batches that were sent.
    pub batches: u64,
    /// Sockets that send each packet alone, because the kernel refused a batch.
    pub unbatched: u64,
}

/// A batch of packets to one destination, while it is being collected.
#[derive(Debug)]
struct LeavingBatch {
    bytes: Vec<u8>,
    /// The peer's address, and the socket that sends.
    to: Option<(IpAddr, PathSource)>,
    segment: usize,
    count: usize,
}

/// An endpoint with its sockets.
#[derive(Debug)]
pub struct SctpWire {
    /// The endpoint. After each use, call [`SctpWire::flush`].
    pub endpoint: SctpEndpoint,
    sockets: Vec<SctpSocket>,
    sources: SourceTable,
    buffer: Vec<u8>,
    batch: LeavingBatch,
    counts: WireCounts,
    lower_headers: u32,
}

impl SctpWire {
    /// Bytes of headers in front of SCTP, for [`SctpConfig::lower_headers`].
    pub fn lower_headers(plan: &WirePlan) -> u32 {
        let of_ip = if plan.addresses.iter().any(IpAddr::is_ipv6) {
            40
        } else {
            20
        };
        of_ip + if plan.udp_port == 0 { 0 } else { UDP_HEADER }
    }

    /// Opens the sockets.
    ///
    /// # Errors
    /// The address whose socket cannot be opened, an invalid configuration, or a lack of random bytes.
    pub fn open(config: SctpConfig, plan: &WirePlan) -> Result<Self, WireOpenError> {
        let mut secret = [0; 32];
        fill_random(&mut secret).map_err(WireOpenError::Random)?;
        let endpoint = SctpEndpoint::new(
            config,
            secret,
            plan.port,
            plan.addresses.clone(),
            plan.associations_max,
        )?;
        let open = |address: &IpAddr| {
            SctpSocket::open(*address, plan.udp_port).map_err(|error| WireOpenError::Socket(*address, error))
        };
        Ok(Self {
            endpoint,
            sockets: plan.addresses.iter().map(open).collect::<Result<_, _>>()?,
            sources: SourceTable::new(plan.addresses.clone(), plan.peer_udp_port),
            buffer: vec![0; DATAGRAM_MAX],
            batch: LeavingBatch {
                bytes: Vec::with_capacity(DATAGRAM_MAX),
                to: None,
                segment: 0,
                count: 0,
            },
            counts: WireCounts::default(),
            lower_headers: config.lower_headers,
        })
    }

    /// The sockets' descriptors, for `poll(2)`.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd).collect()
    }

    /// Counters.
    pub const fn counts(&self) -> WireCounts {
        self.counts
    }

    /// Hands the packets that have arrived to the endpoint, at most `calls` batches per socket. Returns whether any packet had arrived.
    pub fn receive(&mut self, now: Instant, calls: usize) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut is_any = false;
        for local in 0..self.sockets.len() {
            for _ in 0..calls {
                match self.sockets[local].receive(&mut buffer) {
                    Ok(Some(batch)) => {
                        is_any = true;
                        self.counts.received_batches += 1;
                        let source = PathSource {
                            local,
                            port: batch.from.port(),
                        };
                        let packets = buffer.get(batch.begin..batch.end).unwrap_or_default();
                        for packet in packets.chunks(batch.segment) {
                            self.take(now, batch.from.ip(), source, packet);
                        }
                    }
                    Ok(None) => break,
                    // An ICMP message reported a lost packet. The timers handle the loss.
                    Err(_) => self.counts.refused += 1,
                }
            }
        }
        self.buffer = buffer;
        is_any
    }

    fn take(&mut self, now: Instant, from: IpAddr, source: PathSource, packet: &[u8]) {
        self.counts.received += 1;
        self.counts.received_bytes += packet.len() as u64;
        // A copy: a chunk that waits for others must not keep the whole batch in memory.
        let Ok(packet) = SctpPacket::parse(&Bytes::copy_from_slice(packet)) else {
            self.counts.malformed += 1;
            return;
        };
        if self.endpoint.handle_packet(now, from, packet) {
            self.sources.on_heard(from, source);
        } else {
            self.counts.refused += 1;
            self.answer(now, from, source);
        }
    }

    /// Sends the answers to a packet that no association took. An answer to the packet's sender goes to the sender's UDP port, through the
    /// socket at which the packet arrived. The answer does not change the port and the socket that are used for an existing association
    /// with the sender's address. So a peer that restarts and sends its INIT from another port is not trusted until its COOKIE ECHO has
    /// come.
    fn answer(&mut self, now: Instant, from: IpAddr, source: PathSource) {
        while let Some(answer) = self.endpoint.poll_answer() {
            let source = if answer.to == from.to_canonical() {
                Some(source)
            } else {
                self.sources.source(answer.to)
            };
            match source {
                Some(source) => self.put(now, answer.to, source, &answer.packet),
                None => self.counts.unsent += 1,
            }
        }
    }

    /// Sends all that the endpoint has to send.
    pub fn flush(&mut self, now: Instant) {
        while let Some(transmit) = self.endpoint.poll_transmit(now) {
            let Some(source) = self.sources.source(transmit.to) else {
                self.counts.unsent += 1;
                continue;
            };
            if let Some(size) = transmit.fragment_size {
                self.send_batch(now);
                self.send_fragmented(transmit.to, source, &transmit.packet, size);
                continue;
            }
            self.put(now, transmit.to, source, &transmit.packet);
        }
        self.send_batch(now);
    }

    fn put(&mut self, now: Instant, to: IpAddr, source: PathSource, packet: &SctpPacket) {
        if self.batch.to != Some((to, source)) {
            self.send_batch(now);
        }
        let start = self.batch.bytes.len();
        let length = packet.emit_behind(&mut self.batch.bytes);
        let fits = self.batch.count == 0
            || length <= self.batch.segment && start + length <= BATCH_MAX && self.batch.count < SEGMENTS_MAX;
        if !fits {
            let own = self.batch.bytes.split_off(start);
            self.send_batch(now);
            self.batch.bytes.extend_from_slice(&own);
        }
        if self.batch.count == 0 {
            self.batch.to = Some((to, source));
            self.batch.segment = length;
        }
        self.batch.count += 1;
        // A shorter packet ends a batch.
        if length < self.batch.segment || !self.sockets[source.local].cuts() {
            self.send_batch(now);
        }
    }

    fn send_batch(&mut self, now: Instant) {
        if let Some((to, source)) = self.batch.to.take() {
            let target = SocketAddr::new(to, source.port);
            let (bytes, segment) = (&self.batch.bytes, self.batch.segment);
            self.counts.batches += 1;
            let socket = &mut self.sockets[source.local];
            let could_cut = socket.cuts();
            let sent = socket.send(target, bytes, segment);
            self.counts.unbatched += u64::from(could_cut && !socket.cuts());
            match sent {
                Ok(()) => {
                    self.counts.sent += self.batch.count as u64;
                    self.counts.sent_bytes += bytes.len() as u64;
                }
                Err(error) => {
                    self.counts.unsent += self.batch.count as u64;
                    if error.raw_os_error() == Some(libc::EMSGSIZE) {
                        let size = segment as u32 + self.lower_headers;
                        self.endpoint.handle_too_large(now, to, size);
                    }
                }
            }
        }
        self.batch.bytes.clear();
        (self.batch.segment, self.batch.count) = (0, 0);
    }

    fn send_fragmented(&mut self, to: IpAddr, source: PathSource, packet: &SctpPacket, mtu: u32) {
        let target = SocketAddr::new(to, source.port);
        match self.sockets[source.local].send_fragmented(target, &packet.emit(), mtu) {
            Ok(()) => self.counts.sent += 1,
            Err(_) => self.counts.unsent += 1,
        }
    }
}
