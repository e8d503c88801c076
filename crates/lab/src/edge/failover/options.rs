//! The options of `steadfast-lab edge-failover`, and the flows of its runs.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use proto::Instant;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::edge::address::{CLIENTS, SERVER, STRINGS_MAX, client};
use crate::edge::daemon::{CacheLimits, RecoveryOption, SecondOption};
use crate::edge::fault::ClusterFault;
use crate::edge::flows::{FlowPlan, PlannedFlow, TransferDirection};
use crate::edge::network::{ClusterPlace, EdgeTopologyOptions, LANES_MAX};
use crate::edge::variant::{EdgeVariant, parse_time};
use crate::net::congestion::CUBIC;
use crate::node::ServerSoftware;
use crate::run::RunOptions;

/// Fail a string of a cluster, or an edge, under load, with and without local recovery.
///
/// Short flows of 10 segments begin at regular times, before, during and after the failover, and some long flows are under way when the
/// string fails (chapter 7 of the HALR thesis). Local recovery: the edges cache packets, and send them again after the failover. Two runs
/// with the same seed are compared: with local recovery and without. The restart gap of a flow that was hit is the time from the end of the
/// failover until the next new byte at a receiver. No connection may be lost. With local recovery, 99 of 100 gaps must be at most the
/// round-trip time (1.5 times that with `--cluster near-clients`) plus `--margin`, both of the flows that lost their handshake and of those
/// that lost only data. With `--fault both-return`, the gap begins when the cables
/// are plugged in, and may be two heartbeats longer. Both requirements are judged by captures at the clients and at the servers.
///
/// A failure of an edge is played once, because local recovery has no part in it. If the edge's process is killed or upgraded, 99 of 100
/// gaps must be at most `--margin`. If the edge loses its power, the flows go on over the other edge of its side (`--edges 2`), and lost
/// packets are sent again when their senders' timers expire: 99 of 100 gaps must be at most the sum of a SYN's first timer (1125 ms), the
/// round-trip time and `--margin`.
#[derive(Clone, Debug, Args)]
pub struct EdgeFailoverOptions {
    /// Failover time: from the failure until flows are moved, detection included.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_time)]
    pub failover: Duration,
    /// Milliseconds beyond the round-trip time that 99 of 100 restart gaps may take. On a machine whose CPUs are shared, the lab's hosts
    /// and links add delay as well.
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub margin: u32,
    /// Packets that the edges cache and send again.
    #[arg(long, value_enum, default_value_t)]
    pub policy: RecoveryOption,
    /// Missing heartbeats after which packets are cached; 0: always.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=2))]
    pub caching_after: u32,
    /// Packet that the edges cache of a connection in addition to its lowest packet.
    #[arg(long, value_enum, default_value_t)]
    pub second: SecondOption,
    #[command(flatten)]
    pub limits: CacheLimits,
    /// Milliseconds between the arrivals of two short flows.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub arrivals: u32,
    /// Long flows of 1000 segments that are under way when the string fails.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=200))]
    pub long: u32,
    /// Direction of the flows' data.
    #[arg(long, value_enum, default_value_t)]
    pub workload: TransferDirection,
    /// The failure.
    #[arg(long, value_enum, default_value_t)]
    pub fault: ClusterFault,
    /// The edge that fails, if the failure is one of an edge.
    #[arg(long, value_name = "EDGE", value_enum, default_value_t)]
    pub hit: HitEdge,
    /// Number of edges at each side of the cluster. Routers spread the flows over them, and use no edge whose cable has no signal (ECMP).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=LANES_MAX as i64))]
    pub edges: u8,
    /// Number of strings.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=STRINGS_MAX as i64))]
    pub strings: u8,
    /// Use all strings for new flows. Otherwise all but the first are standby.
    #[arg(long)]
    pub active_active: bool,
    /// Place of the cluster between clients and servers.
    #[arg(long, value_enum, default_value_t)]
    pub cluster: ClusterPlace,
    /// Nodes translate the clients' addresses and refuse packets of connections that they do not know. conntrackd tells each node the other
    /// nodes' connections.
    #[arg(long)]
    pub nat: bool,
    /// With `--nat`, no conntrackd: a node does not know the other node's connections. This run must fail.
    #[arg(long, requires = "nat")]
    pub without_conntrackd: bool,
    /// Use IPv6.
    #[arg(long)]
    pub ipv6: bool,
    /// Round-trip time between clients and servers, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 98, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub rtt: u32,
    /// Let clients and servers send segments of up to 64 KB, which a network card would cut (TSO).
    #[arg(long)]
    pub large_segments: bool,
    /// Without edges: routes are changed when the failover time has passed. This run must fail.
    #[arg(long)]
    pub baseline: bool,
    /// Play only one of the two runs.
    #[arg(long, value_enum, conflicts_with = "baseline")]
    pub only: Option<EdgeVariant>,
    /// Segments of a short flow, the request's or reply's header included.
    #[arg(skip = SHORT_SEGMENTS)]
    pub segments: u64,
    #[command(flatten)]
    pub run: RunOptions,
}

/// An edge of the first lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
pub enum HitEdge {
    /// The edge towards the clients.
    #[default]
    R1,
    /// The edge towards the servers.
    R2,
}

impl HitEdge {
    /// Index of the edge's side: 0 for the clients, 1 for the servers.
    pub const fn side(self) -> usize {
        match self {
            Self::R1 => 0,
            Self::R2 => 1,
        }
    }
}

/// Time from the first flow to the failure.
pub const BEFORE: Duration = Duration::from_secs(1);
/// Time for which flows arrive after the failover.
const AFTER: Duration = Duration::from_secs(1);
/// Flows must be complete by this time: the last arrival, plus one failover time, plus this constant. The failover time is added for timers
/// that were doubled during the failover.
const PATIENCE: Duration = Duration::from_secs(15);
/// Data bytes of a full segment, with timestamps.
const SEGMENT: u64 = 1448;
const SHORT_SEGMENTS: u64 = 10;
/// Bytes that are left for a request's or reply's header.
const HEADER: u64 = 400;
/// Bytes of content of a long flow.
const LONG: u64 = 1000 * SEGMENT;
/// Microseconds by which a long flow arrives before the failure. At the failure, no long flow is complete.
const LONG_BEFORE: std::ops::Range<u64> = 150_000..400_000;
/// The server.
pub const APPLICATION: ServerSoftware = ServerSoftware::Nginx;

impl EdgeFailoverOptions {
    /// The round-trip time.
    pub fn round_trip(&self) -> Duration {
        Duration::from_millis(self.rtt.into())
    }

    /// The server's address.
    pub fn service(&self) -> SocketAddr {
        SocketAddr::new(SERVER.ip(self.ipv6), APPLICATION.port())
    }

    /// The network.
    pub fn network(&self) -> EdgeTopologyOptions {
        EdgeTopologyOptions {
            nodes: usize::from(self.strings),
            lanes: usize::from(self.edges),
            place: self.cluster,
            rtt: self.round_trip(),
            strings: Vec::new(),
            congestion: CUBIC.to_owned(),
            single_packets: !self.large_segments,
        }
    }

    /// Number of short flows.
    fn short(&self) -> u32 {
        let span = BEFORE + self.failover + AFTER;
        (span.as_millis() as u32 / self.arrivals).max(1)
    }

    /// Number of connections.
    pub fn connections(&self) -> u32 {
        self.short() + self.long
    }

    /// Sizes of the files that the server must have.
    pub fn sizes(&self) -> [u64; 2] {
        [self.segments * SEGMENT - HEADER, LONG]
    }

    /// The flows of a run that begins at `start`.
    pub fn plan(&self, start: Instant, seed: u64) -> FlowPlan {
        let mut chance = Xoshiro256PlusPlus::seed_from_u64(seed);
        let gap = u64::from(self.arrivals) * 1000;
        let flow = |index: usize, at_us, bytes| PlannedFlow {
            at_us,
            direction: self.workload,
            bytes,
            source: client(index % CLIENTS).ip(self.ipv6),
        };
        let [short, long] = self.sizes();
        let mut flows = Vec::new();
        for number in 0..u64::from(self.short()) {
            let at_us = number * gap + chance.random_range(0..gap);
            flows.push(flow(flows.len(), at_us, short));
        }
        for _ in 0..self.long {
            let at_us = BEFORE.as_micros() as u64 - chance.random_range(LONG_BEFORE);
            flows.push(flow(flows.len(), at_us, long));
        }
        FlowPlan {
            server: self.service(),
            start_ns: start.as_nanos(),
            until_ms: (BEFORE + self.failover * 2 + AFTER + PATIENCE).as_millis() as u64,
            may_stop: false,
            flows,
            seed,
        }
    }
}
