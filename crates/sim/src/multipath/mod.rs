//! Two multihomed hosts that run SCTP over links (paper: Caro, Amer, Stewart, "Rethinking End-to-End Failover with Transport Layer
//! Multihoming", Figure 2).
//!
//! ```text
//!            edge link      core link      edge link
//!        ┌───────────── R ───────────── R ─────────────┐  path 0
//!   host 0                                           host 1
//!        └───────────── R ───────────── R ─────────────┘  path 1, …
//! ```
//!
//! A path does not reorder packets, and other traffic only occupies its queue. So a packet's arrival time at every link is known when the
//! packet leaves its host. One event per packet is enough, and packets in transit wait in one `VecDeque` per direction. The hosts run the
//! same SCTP code as on a real network.

mod cross;
mod path;
mod red;
pub mod shared;

use std::net::IpAddr;

use proto::Instant;
use proto::sctp::association::{Association, AssociationEvent};
use proto::sctp::endpoint::{AssociationId, SctpEndpoint};
use proto::sctp::packet::SctpPacket;
use proto::sctp::{InvalidSctp, SctpConfig};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use thiserror::Error;

use crate::link::InvalidLink;
pub use cross::CrossTraffic;
use path::PathDirection;
pub use path::{PathConfig, PathCutTime};

/// Port of both hosts.
const PORT: u16 = 5000;

/// Why a network cannot be built from a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum InvalidMultipath {
    /// A field of SCTP's configuration.
    #[error("sctp.{0}")]
    Sctp(#[from] InvalidSctp),
    /// A field of a link.
    #[error("path: {0}")]
    Link(#[from] InvalidLink),
    /// Cross traffic that cannot exist or is too much.
    #[error(
        "path: cross: needs at most 10,000 sources, packets at least 1 ns apart, mean times above 0 and up to 3600 s, \
         and a finite shape above 1"
    )]
    Cross,
    /// No pair of hosts, or too many.
    #[error("there must be 1 to 1000 pairs of hosts, not {0}")]
    Pairs(usize),
    /// No path, or more than SCTP uses.
    #[error("there must be 1 to {most} paths, not {0}", most = proto::sctp::PATHS_MAX)]
    Paths(usize),
}

/// A packet that leaves a host.
#[derive(Clone, Copy, Debug)]
pub struct SctpDeparture<'a> {
    /// When the packet leaves.
    pub at: Instant,
    /// The sending host, 0 or 1.
    pub host: usize,
    /// The path.
    pub path: usize,
    /// The packet.
    pub packet: &'a SctpPacket,
}

/// Decides which packets are lost in addition to random losses. The callback sees every packet, so it also serves as a trace.
type LossChoice = Box<dyn FnMut(&SctpDeparture<'_>) -> bool>;

/// One of the two hosts.
struct MultihomedHost {
    endpoint: SctpEndpoint,
    id: Option<AssociationId>,
    timeout: Option<Instant>,
    events: Vec<(Instant, AssociationEvent)>,
}

/// Two hosts and the paths between them.
pub struct MultipathNetwork {
    now: Instant,
    hosts: [MultihomedHost; 2],
    /// Each path's two directions, by the host that sends.
    paths: Vec<[PathDirection; 2]>,
    lose: Option<LossChoice>,
}

/// The address of a host on a path.
fn address(host: usize, path: usize) -> IpAddr {
    // There are at most `PATHS_MAX` paths and two hosts.
    IpAddr::from([10, path as u8, 0, host as u8 + 1])
}

impl MultipathNetwork {
    /// Two hosts with these parameters. All random choices come from the seed.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn new(configs: [SctpConfig; 2], paths: &[PathConfig], seed: u64) -> Result<Self, InvalidMultipath> {
        if paths.is_empty() || paths.len() > proto::sctp::PATHS_MAX {
            return Err(InvalidMultipath::Paths(paths.len()));
        }
        if !paths
            .iter()
            .filter_map(|path| path.cross)
            .all(|cross| cross.is_possible())
        {
            return Err(InvalidMultipath::Cross);
        }
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut host = |number: usize| {
            let mut secret = [0; 32];
            rng.fill_bytes(&mut secret);
            let addresses = (0..paths.len()).map(|path| address(number, path)).collect();
            Ok::<_, InvalidMultipath>(MultihomedHost {
                endpoint: SctpEndpoint::new(configs[number], secret, PORT, addresses, 1)?,
                id: None,
                timeout: None,
                events: Vec::new(),
            })
        };
        let hosts = [host(0)?, host(1)?];
        let mut directions = Vec::new();
        for path in paths {
            directions.push([
                PathDirection::new(path, rng.next_u64())?,
                PathDirection::new(path, rng.next_u64())?,
            ]);
        }
        Ok(Self {
            now: Instant::ZERO,
            hosts,
            paths: directions,
            lose: None,
        })
    }

    /// From now on `lose` decides which packets are lost in addition to random losses.
    pub fn set_loss(&mut self, lose: impl FnMut(&SctpDeparture<'_>) -> bool + 'static) {
        self.lose = Some(Box::new(lose));
    }

    /// The time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Host 0 begins an association with host 1 on path 0.
    pub fn connect(&mut self) {
        let peer = [address(1, 0)];
        self.hosts[0].id = self.hosts[0].endpoint.connect(self.now, &peer, PORT).ok();
        self.settle(0);
    }

    /// The association of a host, until it has ended.
    pub fn association(&mut self, host: usize) -> Option<&mut Association> {
        let host = &mut self.hosts[host];
        host.endpoint.association_mut(host.id?)
    }

    /// The endpoint of a host.
    pub fn endpoint(&self, host: usize) -> &SctpEndpoint {
        &self.hosts[host].endpoint
    }

    /// The events of a host's association, with their times.
    pub fn events(&self, host: usize) -> &[(Instant, AssociationEvent)] {
        &self.hosts[host].events
    }

    /// Handles the next event before `until`. Returns the host that handled the event. `None` if no event comes before `until`. Call
    /// [`settle`](Self::settle) for this host afterwards, when its application has read and written.
    pub fn step(&mut self, until: Instant) -> Option<usize> {
        let mut first = until;
        let mut arrival = None;
        for (number, path) in self.paths.iter().enumerate() {
            for (from, direction) in path.iter().enumerate() {
                if let Some(at) = direction.next().filter(|at| *at < first) {
                    first = at;
                    arrival = Some((number, from));
                }
            }
        }
        let is_timer = |host: &MultihomedHost| host.timeout.is_some_and(|at| at < first);
        let timer = [0, 1].into_iter().filter(|host| is_timer(&self.hosts[*host]));
        if let Some(host) = timer.min_by_key(|host| self.hosts[*host].timeout) {
            self.now = self.now.max(self.hosts[host].timeout?);
            self.hosts[host].endpoint.handle_timeout(self.now);
            return Some(host);
        }
        let (number, from) = arrival?;
        let packet = self.paths[number][from].take()?;
        self.now = first;
        self.hosts[1 - from]
            .endpoint
            .handle_packet(self.now, address(from, number), packet);
        Some(1 - from)
    }

    /// Sends the packets that a host has queued, and records its events.
    pub fn settle(&mut self, host: usize) {
        let MultihomedHost {
            endpoint,
            id,
            timeout,
            events,
        } = &mut self.hosts[host];
        while let Some(transmit) = endpoint.poll_transmit(self.now) {
            let IpAddr::V4(to) = transmit.to else {
                continue; // no host has such an address
            };
            let path = usize::from(to.octets()[1]);
            let departure = SctpDeparture {
                at: self.now,
                host,
                path,
                packet: &transmit.packet,
            };
            let is_lost = self.lose.as_mut().is_some_and(|lose| lose(&departure));
            if let Some([there, back]) = self.paths.get_mut(path).filter(|_| !is_lost) {
                let direction = if host == 0 { there } else { back };
                direction.offer(self.now, transmit.packet);
            }
        }
        while let Some((association, event)) = endpoint.poll_event() {
            id.get_or_insert(association);
            events.push((self.now, event));
        }
        *timeout = endpoint.poll_timeout();
    }
}
