//! One direction of a path: an edge link, the core link, an edge link.

use std::collections::VecDeque;
use std::time::Duration;

use proto::Instant;
use proto::sctp::packet::SctpPacket;
use serde::Deserialize;

use super::cross::{CrossSources, CrossTraffic};
use crate::flow::seconds;
use crate::link::{InvalidLink, Link, LinkConfig, LinkVerdict};

/// A period in which a path carries nothing. Packets that are on the way are lost.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathCutTime {
    /// When the period begins, in seconds.
    #[serde(with = "seconds")]
    pub from: Duration,
    /// When the period ends, in seconds.
    #[serde(with = "seconds")]
    pub until: Duration,
}

/// A path. The default is the paper's primary path.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PathConfig {
    /// Propagation delay of the core link, in seconds.
    #[serde(with = "seconds")]
    pub delay: Duration,
    /// Probability that a packet is lost on the edge link before the core link, in each direction.
    pub loss: f64,
    /// Bits per second of the core link.
    pub rate_bits_per_s: u64,
    /// Number of packets that may wait before the core link.
    pub buffer_packets: usize,
    /// Bits per second of the edge links.
    pub edge_rate_bits_per_s: u64,
    /// Propagation delay of the edge links, in seconds.
    #[serde(with = "seconds")]
    pub edge_delay: Duration,
    /// When the path is cut, in order.
    pub cuts: Vec<PathCutTime>,
    /// Other traffic on the core link, in each direction.
    pub cross: Option<CrossTraffic>,
}

impl Default for PathConfig {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(25),
            loss: 0.0,
            rate_bits_per_s: 10_000_000,
            buffer_packets: 49, // ns-2's limit of 50 counts the packet that is being sent
            edge_rate_bits_per_s: 100_000_000,
            edge_delay: Duration::from_millis(10),
            cuts: Vec::new(),
            cross: None,
        }
    }
}

/// Bytes of an IPv4 header.
pub(super) const IP_HEADER: usize = 20;
/// Index of the core link among a direction's links.
const CORE: usize = 1;

/// The links in one direction, and the packets on them.
pub(super) struct PathDirection {
    links: [Link; 3],
    cuts: VecDeque<(Instant, Instant)>,
    cross: Option<CrossSources>,
    on_the_way: VecDeque<(Instant, SctpPacket)>,
}

impl PathDirection {
    pub fn new(config: &PathConfig, seed: u64) -> Result<Self, InvalidLink> {
        let edge = LinkConfig {
            rate_bits_per_s: Some(config.edge_rate_bits_per_s),
            delay: config.edge_delay,
            ..LinkConfig::default()
        };
        let lossy = LinkConfig {
            loss: config.loss,
            ..edge.clone()
        };
        let core = LinkConfig {
            rate_bits_per_s: Some(config.rate_bits_per_s),
            delay: config.delay,
            queue_packets: Some(config.buffer_packets),
            ..LinkConfig::default()
        };
        // Only the first link makes random choices.
        let links = [Link::new(lossy, seed)?, Link::new(core, 0)?, Link::new(edge, 0)?];
        let cut = |cut: &PathCutTime| (Instant::ZERO + cut.from, Instant::ZERO + cut.until);
        Ok(Self {
            links,
            cuts: config.cuts.iter().map(cut).collect(),
            cross: config.cross.map(|traffic| CrossSources::new(traffic, !seed)),
            on_the_way: VecDeque::new(),
        })
    }

    /// A packet leaves at `now`. `now` never goes back.
    pub fn offer(&mut self, now: Instant, packet: SctpPacket) {
        let bytes = IP_HEADER + packet.wire_bytes();
        let mut at = now;
        for (number, link) in self.links.iter_mut().enumerate() {
            // First offers the cross traffic that reaches the core link before this packet.
            while number == CORE
                && let Some(cross) = &mut self.cross
                && let Some(other) = cross.take(at)
            {
                let _ = link.offer(other, cross.packet_bytes());
            }
            match link.offer(at, bytes) {
                LinkVerdict::Deliver { at: next, .. } => at = next,
                LinkVerdict::Lost | LinkVerdict::QueueFull | LinkVerdict::Down => return,
            }
        }
        while self.cuts.front().is_some_and(|(_, until)| *until <= now) {
            self.cuts.pop_front();
        }
        let is_cut = self.cuts.front().is_some_and(|(from, _)| *from <= at);
        if !is_cut {
            self.on_the_way.push_back((at, packet));
        }
    }

    /// When the next packet arrives.
    pub fn next(&self) -> Option<Instant> {
        self.on_the_way.front().map(|(at, _)| *at)
    }

    /// The packet that arrives next.
    pub fn take(&mut self) -> Option<SctpPacket> {
        self.on_the_way.pop_front().map(|(_, packet)| packet)
    }
}
