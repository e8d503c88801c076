//! Many associations whose paths share the core links (paper: Caro, Amer, Stewart, section V).
//!
//! ```text
//!   host 0 of pair 0 ──╮              ╭── host 1 of pair 0
//!   host 0 of pair 1 ──┤ R ─ core ─ R ├── host 1 of pair 1      the same on each path
//!          …         ──╯              ╰──        …
//! ```
//!
//! A packet's arrival time at the far end is known when the packet reaches the core link. So each packet has two events: one at the core
//! link, and one at the receiving host.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::time::Duration;

use proto::Instant;
use proto::sctp::SctpConfig;
use proto::sctp::association::Association;
use proto::sctp::endpoint::{AssociationId, SctpEndpoint};
use proto::sctp::packet::SctpPacket;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::path::{IP_HEADER, PathConfig, PathCutTime};
use super::red::RedQueue;
use super::{InvalidMultipath, PORT, address};
use crate::link::{Link, LinkConfig, LinkVerdict};

/// How a core link chooses the packets that it drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoreQueue {
    /// Drops packets that find the queue full.
    DropTail,
    /// Also drops packets while the queue has room, by Random Early Detection.
    Red,
}

/// Bits in a full packet.
const PACKET_BITS: f64 = 12_000.0;

/// One direction of a path's core link.
struct CoreLink {
    link: Link,
    red: Option<RedQueue>,
    cuts: Vec<PathCutTime>,
}

impl CoreLink {
    fn new(config: &PathConfig, queue: CoreQueue, seed: u64) -> Result<Self, InvalidMultipath> {
        let link = LinkConfig {
            rate_bits_per_s: Some(config.rate_bits_per_s),
            delay: config.delay,
            queue_packets: Some(config.buffer_packets),
            loss: config.loss,
            ..LinkConfig::default()
        };
        let packet_nanos = PACKET_BITS * 1e9 / config.rate_bits_per_s.max(1) as f64;
        Ok(Self {
            link: Link::new(link, seed)?,
            red: (queue == CoreQueue::Red).then(|| RedQueue::new(packet_nanos, !seed)),
            cuts: config.cuts.clone(),
        })
    }

    /// Time at which a packet that reaches the link at `now` arrives at the link's far end. `None` if the packet is dropped.
    fn cross(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let time = now.since(Instant::ZERO);
        let is_in = |cut: &PathCutTime| cut.from <= time && time < cut.until;
        if self.cuts.iter().any(is_in) {
            return None;
        }
        let waiting = self.link.waiting(now).0;
        if self.red.as_mut().is_some_and(|red| red.drops(now, waiting)) {
            return None;
        }
        match self.link.offer(now, bytes) {
            LinkVerdict::Deliver { at, .. } => Some(at),
            LinkVerdict::Lost | LinkVerdict::QueueFull | LinkVerdict::Down => None,
        }
    }
}

/// Identifies a host: the number of its pair, and its number in the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SharedHostId {
    pair: usize,
    host: usize,
}

/// Kind of an event.
enum SharedEventKind {
    /// Host 0 of the pair begins the association.
    Call,
    /// A timer of the host may have run out.
    Timer,
    /// A packet of the host reaches the core link of a path.
    AtCore(usize, SctpPacket),
    /// A packet reaches the host on a path.
    Arrival(usize, SctpPacket),
}

struct SharedEvent {
    at: Instant,
    /// Events at the same time happen in the order in which they were scheduled.
    number: u64,
    id: SharedHostId,
    what: SharedEventKind,
}

impl PartialEq for SharedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SharedEvent {}

impl PartialOrd for SharedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SharedEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

struct SharedHost {
    endpoint: SctpEndpoint,
    id: Option<AssociationId>,
    /// Time of the next scheduled timer event.
    timer: Option<Instant>,
    /// The edge link of each path, from this host.
    edges: Vec<Link>,
}

/// Pairs of hosts and the core links that they share.
pub struct SharedNetwork {
    now: Instant,
    pairs: Vec<[SharedHost; 2]>,
    /// Each path's two core links, by the host that sends.
    cores: Vec<[CoreLink; 2]>,
    /// Delay from the core link to a host, per pair.
    edge_delays: Vec<Duration>,
    events: BinaryHeap<Reverse<SharedEvent>>,
    number: u64,
}

/// Bound on the number of pairs.
const PAIRS_MAX: usize = 1000;

impl SharedNetwork {
    /// A network of `pairs` pairs. Each pair draws one edge delay for all its paths, between once and twice the first path's configured
    /// delay. The edge delays of the other paths in `paths` have no effect. Each pair begins its association within the first second. So
    /// equal round trips do not synchronize the pairs.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn new(
        config: SctpConfig,
        paths: &[PathConfig],
        queue: CoreQueue,
        pairs: usize,
        seed: u64,
    ) -> Result<Self, InvalidMultipath> {
        if paths.is_empty() || paths.len() > proto::sctp::PATHS_MAX {
            return Err(InvalidMultipath::Paths(paths.len()));
        }
        if pairs == 0 || pairs > PAIRS_MAX {
            return Err(InvalidMultipath::Pairs(pairs));
        }
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut cores = Vec::new();
        for path in paths {
            cores.push([
                CoreLink::new(path, queue, rng.next_u64())?,
                CoreLink::new(path, queue, rng.next_u64())?,
            ]);
        }
        let mut network = Self {
            now: Instant::ZERO,
            pairs: Vec::new(),
            cores,
            edge_delays: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
        };
        for pair in 0..pairs {
            let delay = paths[0].edge_delay.mul_f64(1.0 + rng.random::<f64>());
            let hosts = [
                shared_host(config, paths, delay, 0, &mut rng)?,
                shared_host(config, paths, delay, 1, &mut rng)?,
            ];
            network.pairs.push(hosts);
            network.edge_delays.push(delay);
            let at = Instant::ZERO + Duration::from_secs_f64(rng.random::<f64>());
            network.schedule(at, SharedHostId { pair, host: 0 }, SharedEventKind::Call);
        }
        Ok(network)
    }

    fn schedule(&mut self, at: Instant, id: SharedHostId, what: SharedEventKind) {
        self.number += 1;
        let number = self.number;
        self.events.push(Reverse(SharedEvent { at, number, id, what }));
    }

    /// The time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The association of a host, until it has ended.
    pub fn association(&mut self, pair: usize, host: usize) -> Option<&mut Association> {
        let host = &mut self.pairs[pair][host];
        host.endpoint.association_mut(host.id?)
    }

    /// Handles the events before `until`, up to and including the first event at a host. Returns the numbers of the pair and of the host,
    /// or `None` if no host has an event before `until`. Call [`settle`](Self::settle) for this host afterwards, when its application has
    /// read and written.
    pub fn step(&mut self, until: Instant) -> Option<(usize, usize)> {
        loop {
            if self.events.peek()?.0.at >= until {
                return None;
            }
            let Reverse(event) = self.events.pop()?;
            self.now = event.at;
            let SharedHostId { pair, host } = event.id;
            match event.what {
                SharedEventKind::AtCore(path, packet) => self.cross(event.id, path, packet),
                SharedEventKind::Call => {
                    let peer = [address(1, 0)];
                    let caller = &mut self.pairs[pair][host];
                    caller.id = caller.endpoint.connect(self.now, &peer, PORT).ok();
                    return Some((pair, host));
                }
                SharedEventKind::Timer => {
                    let expired = &mut self.pairs[pair][host];
                    expired.timer = None;
                    expired.endpoint.handle_timeout(self.now);
                    return Some((pair, host));
                }
                SharedEventKind::Arrival(path, packet) => {
                    let receiver = &mut self.pairs[pair][host];
                    receiver
                        .endpoint
                        .handle_packet(self.now, address(1 - host, path), packet);
                    return Some((pair, host));
                }
            }
        }
    }

    /// A packet of a host is at the core link.
    fn cross(&mut self, id: SharedHostId, path: usize, packet: SctpPacket) {
        let bytes = IP_HEADER + packet.wire_bytes();
        let Some(at) = self.cores[path][id.host].cross(self.now, bytes) else {
            return;
        };
        let to = SharedHostId {
            host: 1 - id.host,
            ..id
        };
        let at = at + self.edge_delays[id.pair];
        self.schedule(at, to, SharedEventKind::Arrival(path, packet));
    }

    /// Sends what a host has to send.
    pub fn settle(&mut self, pair: usize, host: usize) {
        let id = SharedHostId { pair, host };
        let now = self.now;
        while let Some(transmit) = self.pairs[pair][host].endpoint.poll_transmit(now) {
            let IpAddr::V4(to) = transmit.to else {
                continue; // no host has such an address
            };
            let path = usize::from(to.octets()[1]);
            let bytes = IP_HEADER + transmit.packet.wire_bytes();
            let Some(edge) = self.pairs[pair][host].edges.get_mut(path) else {
                continue;
            };
            if let LinkVerdict::Deliver { at, .. } = edge.offer(now, bytes) {
                self.schedule(at, id, SharedEventKind::AtCore(path, transmit.packet));
            }
        }
        let settled = &mut self.pairs[pair][host];
        while let Some((association, _)) = settled.endpoint.poll_event() {
            settled.id.get_or_insert(association);
        }
        let due = settled.endpoint.poll_timeout();
        if let Some(at) = due.filter(|at| settled.timer.is_none_or(|timer| *at < timer)) {
            settled.timer = Some(at);
            self.schedule(at.max(now), id, SharedEventKind::Timer);
        }
    }
}

fn shared_host(
    config: SctpConfig,
    paths: &[PathConfig],
    delay: Duration,
    number: usize,
    rng: &mut Xoshiro256PlusPlus,
) -> Result<SharedHost, InvalidMultipath> {
    let mut secret = [0; 32];
    rng.fill_bytes(&mut secret);
    let addresses = (0..paths.len()).map(|path| address(number, path)).collect();
    let edge = |path: &PathConfig| {
        let config = LinkConfig {
            rate_bits_per_s: Some(path.edge_rate_bits_per_s),
            delay,
            ..LinkConfig::default()
        };
        Link::new(config, 0)
    };
    Ok(SharedHost {
        endpoint: SctpEndpoint::new(config, secret, PORT, addresses, 1)?,
        id: None,
        timer: None,
        edges: paths.iter().map(edge).collect::<Result<_, _>>()?,
    })
}
