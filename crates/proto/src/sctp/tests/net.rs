//! Two endpoints with several addresses each (two by default), and a network between them whose losses a test chooses.
//!
//! ```text
//!   end 0   10.0.0.1 ───── path 0 ───── 10.0.0.2   end 1
//!           10.1.0.1 ───── path 1 ───── 10.1.0.2
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::Instant;
use crate::sctp::association::{Association, AssociationEvent, SctpTransmit};
use crate::sctp::chunk::SctpChunk;
use crate::sctp::endpoint::{AssociationId, SctpEndpoint};
use crate::sctp::packet::SctpPacket;
use crate::sctp::{SctpConfig, SctpMessage, UserData};

/// One-way delay of the network.
pub const DELAY: Duration = Duration::from_millis(20);
/// Port of both ends.
pub const PORT: u16 = 5000;

/// A packet that leaves.
pub struct LeavingPacket<'a> {
    pub path: usize,
    pub at: Instant,
    pub packet: &'a SctpPacket,
    pub fragment_size: Option<u32>,
}

/// Delays after which copies of a packet arrive. An empty list: the packet is lost.
pub type Delays = Vec<Duration>;
type DelayChoice = Box<dyn FnMut(&LeavingPacket<'_>) -> Delays>;

/// The two ends and the network.
pub struct TestNet {
    pub now: Instant,
    pub ends: [SctpEndpoint; 2],
    /// The association of each end, once there is one.
    pub ids: [Option<AssociationId>; 2],
    pub received: [Vec<SctpMessage>; 2],
    pub events: [Vec<AssociationEvent>; 2],
    /// Every packet that left: time, sending end, path, and the packet.
    pub log: Vec<(Instant, usize, usize, SctpPacket)>,
    /// Ends that do not read their messages.
    pub is_lazy: [bool; 2],
    /// Ends that do not read their events.
    pub is_deaf: [bool; 2],
    fate: DelayChoice,
    on_the_way: BTreeMap<(Instant, u64), (usize, IpAddr, SctpPacket)>,
    sent: u64,
}

pub fn address(end: usize, path: usize) -> IpAddr {
    IpAddr::from([10, path as u8, 0, end as u8 + 1])
}

fn path_of(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(address) => usize::from(address.octets()[1]),
        IpAddr::V6(_) => unreachable!("the test's addresses are IPv4"),
    }
}

/// A packet of one chunk.
pub fn packet(tag: u32, chunk: SctpChunk) -> SctpPacket {
    SctpPacket {
        source_port: PORT,
        destination_port: PORT,
        tag,
        chunks: vec![chunk],
    }
}

/// A message of some length on a stream.
pub fn message(stream: u16, length: usize) -> SctpMessage {
    SctpMessage {
        stream,
        protocol: 9,
        is_unordered: false,
        data: UserData::from((0..length).map(|at| (at % 251) as u8).collect::<Vec<u8>>()),
    }
}

pub fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl TestNet {
    /// Two ends that do not know each other. No packet is lost.
    pub fn new(config: SctpConfig) -> Self {
        Self::with_paths(config, 2)
    }

    /// Two ends that do not know each other, with `paths` paths between them. No packet is lost.
    pub fn with_paths(config: SctpConfig, paths: usize) -> Self {
        let end = |end: usize| {
            let addresses = (0..paths).map(|path| address(end, path)).collect();
            SctpEndpoint::new(config, [end as u8 + 1; 32], PORT, addresses, 10)
                .expect("a valid configuration")
        };
        Self {
            now: Instant::ZERO,
            ends: [end(0), end(1)],
            ids: [None; 2],
            received: Default::default(),
            events: Default::default(),
            log: Vec::new(),
            is_lazy: [false; 2],
            is_deaf: [false; 2],
            fate: Box::new(|_| vec![DELAY]),
            on_the_way: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Two ends with an association that is established and idle. Both paths are confirmed.
    pub fn connected(config: SctpConfig) -> Self {
        let mut net = Self::new(config);
        net.call(0);
        net.run(millis(500));
        assert_eq!(
            net.events,
            [[AssociationEvent::Established], [AssociationEvent::Established]]
        );
        net.log.clear();
        net
    }

    /// From now on `fate` decides what happens to each packet.
    pub fn set_fate(&mut self, fate: impl FnMut(&LeavingPacket<'_>) -> Delays + 'static) {
        self.fate = Box::new(fate);
    }

    /// From now on, all packets for which `is_lost` returns true are lost.
    pub fn lose(&mut self, mut is_lost: impl FnMut(&LeavingPacket<'_>) -> bool + 'static) {
        self.set_fate(move |leaving| if is_lost(leaving) { vec![] } else { vec![DELAY] });
    }

    /// `end` calls the other end.
    pub fn call(&mut self, end: usize) {
        let peer = [address(1 - end, 0)];
        self.ids[end] = Some(self.ends[end].connect(self.now, &peer, PORT).expect("a call"));
        self.settle();
    }

    /// The association of an end.
    pub fn at(&mut self, end: usize) -> &mut Association {
        let id = self.ids[end].expect("an association");
        let events = &self.events;
        self.ends[end]
            .association_mut(id)
            .unwrap_or_else(|| panic!("{events:?}"))
    }

    pub fn send(&mut self, end: usize, message: SctpMessage) {
        self.at(end).send(message).expect("room");
        self.settle();
    }

    /// Hands a packet to an end, as if it came from `from`.
    pub fn inject(&mut self, end: usize, from: IpAddr, packet: SctpPacket) {
        self.ends[end].handle_packet(self.now, from, packet);
        self.settle();
    }

    /// Sends what is due, reads what has arrived.
    pub fn settle(&mut self) {
        for end in 0..2 {
            loop {
                let mut is_read = false;
                while let Some(transmit) = self.ends[end].poll_transmit(self.now) {
                    self.put(end, transmit);
                }
                while !self.is_deaf[end]
                    && let Some((id, event)) = self.ends[end].poll_event()
                {
                    self.ids[end].get_or_insert(id);
                    self.events[end].push(event);
                }
                if let Some(id) = self.ids[end].filter(|_| !self.is_lazy[end])
                    && self.ends[end]
                        .association(id)
                        .is_some_and(Association::has_unread)
                    && let Some(association) = self.ends[end].association_mut(id)
                {
                    self.received[end].extend(std::iter::from_fn(|| association.receive()));
                    is_read = true;
                }
                if !is_read {
                    break;
                }
            }
        }
    }

    fn put(&mut self, end: usize, transmit: SctpTransmit) {
        let SctpTransmit {
            to,
            packet,
            fragment_size,
        } = transmit;
        let path = path_of(to);
        self.log.push((self.now, end, path, packet.clone()));
        let at = self.now;
        let leaving = LeavingPacket {
            path,
            at,
            packet: &packet,
            fragment_size,
        };
        for delay in (self.fate)(&leaving) {
            self.sent += 1;
            let arrival = (1 - end, address(end, path), packet.clone());
            self.on_the_way.insert((self.now + delay, self.sent), arrival);
        }
    }

    /// Runs for `time`.
    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
    }

    /// Runs until both associations have ended, for an hour at most. Returns whether both have ended.
    pub fn run_to_the_end(&mut self) -> bool {
        let until = self.now + Duration::from_secs(3600);
        while !self.ends.iter().all(SctpEndpoint::is_empty) {
            if !self.step(until) {
                return false;
            }
        }
        true
    }

    fn step(&mut self, until: Instant) -> bool {
        let arrival = self.on_the_way.keys().next().map(|(at, _)| *at);
        let timer = self.ends.iter().filter_map(SctpEndpoint::poll_timeout).min();
        let Some(at) = arrival.into_iter().chain(timer).min().filter(|at| *at < until) else {
            return false;
        };
        self.now = self.now.max(at);
        if arrival == Some(at)
            && let Some((_, (end, from, packet))) = self.on_the_way.pop_first()
        {
            self.ends[end].handle_packet(self.now, from, packet);
        } else {
            for end in &mut self.ends {
                end.handle_timeout(self.now);
            }
        }
        self.settle();
        true
    }

    /// The packets of an end that have a chunk for which `is` returns true: their times in milliseconds, and their paths.
    pub fn sent_with(&self, end: usize, is: fn(&SctpChunk) -> bool) -> Vec<(u64, usize)> {
        let found = self
            .log
            .iter()
            .filter(|(_, by, _, packet)| *by == end && packet.chunks.iter().any(is));
        found
            .map(|(at, _, path, _)| (at.as_nanos() / 1_000_000, *path))
            .collect()
    }

    /// The kinds of all packets, in their order: end and first chunk.
    pub fn kinds(&self) -> Vec<(usize, u8)> {
        self.log
            .iter()
            .map(|(_, end, _, packet)| (*end, packet.chunks[0].kind()))
            .collect()
    }
}

pub const fn is_data(chunk: &SctpChunk) -> bool {
    matches!(chunk, SctpChunk::Data(_))
}

pub const fn is_sack(chunk: &SctpChunk) -> bool {
    matches!(chunk, SctpChunk::Sack(_))
}

pub const fn is_heartbeat(chunk: &SctpChunk) -> bool {
    matches!(chunk, SctpChunk::Heartbeat(_))
}
