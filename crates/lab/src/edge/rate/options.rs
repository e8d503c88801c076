//! Options of the command `steadfast-lab edge-rate`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use proto::Instant;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::edge::address::{CLIENTS, SERVER, client};
use crate::edge::daemon::RecoveryOption;
use crate::edge::flows::{FlowPlan, PlannedFlow, TransferDirection};
use crate::edge::network::{ClusterPlace, EdgeTopologyOptions, StringRate};
use crate::edge::variant::{EdgeVariant, parse_time};
use crate::node::ServerSoftware;
use crate::run::RunOptions;

/// Fail one of two full strings, with and without rate control.
///
/// Each string carries half of the flows, which fill it. The first string loses its power, and after the failover all flows share the
/// second string, whose buffer is finite (section 7.4 of the HALR thesis). Two runs with the same seed are compared: with rate control and
/// without. With rate control, from 2 s after the failover on, no packet may be dropped, the flows' shares must be equal (Jain's index at
/// least 0.99, in the whole time and on average in half seconds; with `--strings 4:1`, 0.98 in half seconds), the queue may hold at most 80 %
/// of the buffer, and the string must carry at least 95 % of what it carries without rate control. The edges must have lowered windows, and
/// without rate control the shares, the drops or the queue must be worse than that.
#[derive(Clone, Debug, Args)]
pub struct EdgeRateOptions {
    /// Ratio of the two strings' rates: the string that fails, to the string that is left.
    #[arg(long, value_enum, default_value_t)]
    pub strings: StringRatio,
    /// Number of flows, on both strings together.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..=2000))]
    pub flows: u32,
    /// Congestion control of clients and servers.
    #[arg(long, value_enum, default_value_t)]
    pub congestion: CongestionOption,
    /// Direction of the flows' data.
    #[arg(long, value_enum, default_value_t)]
    pub workload: TransferDirection,
    /// Rate of the string that fails, in Mbit/s.
    #[arg(long, value_name = "MBIT", default_value_t = 100.0)]
    pub mbit: f64,
    /// Packets that each string's buffer holds.
    #[arg(long, value_name = "PACKETS", default_value_t = 750, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    pub buffer: u32,
    /// Failover time: from the failure until flows are moved, detection included.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_time)]
    pub failover: Duration,
    /// Duration of the measurement, which begins 2 s after the failover.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub measure: Duration,
    /// Packets that the edges cache and send again.
    #[arg(long, value_enum, default_value_t)]
    pub policy: RecoveryOption,
    /// Place of the cluster between clients and servers.
    #[arg(long, value_enum, default_value_t)]
    pub cluster: ClusterPlace,
    /// Use IPv6.
    #[arg(long)]
    pub ipv6: bool,
    /// Round-trip time between clients and servers, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 98, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub rtt: u32,
    /// Let the edges measure the round-trip time. Otherwise their configuration states it.
    #[arg(long)]
    pub measured_rtt: bool,
    /// Let clients and servers send segments of up to 64 KB, which a network card would cut (TSO). The kernel cuts them before each string.
    #[arg(long)]
    pub large_segments: bool,
    /// Without edges: routes are changed when the failover time has passed. This run must fail.
    #[arg(long)]
    pub baseline: bool,
    /// Play only one of the two runs.
    #[arg(long, value_enum, conflicts_with = "baseline")]
    pub only: Option<EdgeVariant>,
    /// When flows begin, and how much they transfer.
    #[arg(skip)]
    pub load: RateLoad,
    #[command(flatten)]
    pub run: RunOptions,
}

/// When the flows of a run begin, and how much they transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateLoad {
    /// The flows begin in the first two seconds, and go on until the run ends.
    #[default]
    Endless,
    /// The flows begin one after the other, before and after the failure. Each transfers `bytes` (section 7.4 of the HALR thesis).
    Arriving {
        /// Time between the beginnings of two flows.
        gap: Duration,
        /// Content bytes of a flow.
        bytes: u64,
        /// Time from the beginning of the first flow to the string's failure.
        failure_at: Duration,
    },
}

/// Rates of two strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
pub enum StringRatio {
    /// Equal strings.
    #[default]
    #[value(name = "1:1")]
    #[serde(rename = "1:1")]
    Equal,
    /// Half of the failed string's rate is left.
    #[value(name = "2:1")]
    #[serde(rename = "2:1")]
    Half,
    /// A quarter of the failed string's rate is left.
    #[value(name = "4:1")]
    #[serde(rename = "4:1")]
    Quarter,
}

impl StringRatio {
    fn divisor(self) -> f64 {
        match self {
            Self::Equal => 1.0,
            Self::Half => 2.0,
            Self::Quarter => 4.0,
        }
    }
}

/// A congestion control of Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionOption {
    /// The default of most systems.
    #[default]
    Cubic,
    /// As in the HALR thesis.
    Reno,
    /// Paces by its own estimate of the bandwidth.
    Bbr,
}

impl CongestionOption {
    /// The kernel's name for this congestion control.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Bbr => "bbr",
        }
    }
}

/// Time from the first flow to the failure with [`RateLoad::Endless`].
const BEFORE: Duration = Duration::from_secs(4);
/// Time in which the flows begin with [`RateLoad::Endless`], in microseconds.
const ARRIVALS_US: u64 = 2_000_000;
/// Time after the failover until shares and drops are judged.
pub const SETTLING: Duration = Duration::from_secs(2);
/// Content bytes of an endless flow: more than it can transfer in a run.
const ENDLESS: u64 = 64 << 20;

/// The server of downloads. Uploads go to a sink.
pub const APPLICATION: ServerSoftware = ServerSoftware::Nginx;

impl EdgeRateOptions {
    /// The round-trip time.
    pub fn round_trip(&self) -> Duration {
        Duration::from_millis(self.rtt.into())
    }

    /// The server's address.
    pub fn service(&self) -> SocketAddr {
        let port = match self.workload {
            TransferDirection::Upload => crate::bench::SINK_PORT,
            TransferDirection::Download => APPLICATION.port(),
        };
        SocketAddr::new(SERVER.ip(self.ipv6), port)
    }

    /// Time from the first flow to the failure.
    pub fn before(&self) -> Duration {
        match self.load {
            RateLoad::Endless => BEFORE,
            RateLoad::Arriving { failure_at, .. } => failure_at,
        }
    }

    /// Rate of each string, in Mbit/s.
    pub fn rates(&self) -> [f64; 2] {
        [self.mbit, self.mbit / self.strings.divisor()]
    }

    /// The network.
    pub fn network(&self) -> EdgeTopologyOptions {
        // As in ns-2, the buffer includes the packet that is being sent.
        let queue_packets = self.buffer as usize - 1;
        let string = |mbit| StringRate { mbit, queue_packets };
        EdgeTopologyOptions {
            nodes: 2,
            lanes: 1,
            place: self.cluster,
            rtt: self.round_trip(),
            strings: self.rates().map(string).to_vec(),
            congestion: self.congestion.name().to_owned(),
            single_packets: !self.large_segments,
        }
    }

    /// Bytes of the file that the server must have.
    pub fn file(&self) -> u64 {
        ENDLESS
    }

    /// The flows of a run that begins at `start`.
    pub fn plan(&self, start: Instant, seed: u64) -> FlowPlan {
        let mut chance = Xoshiro256PlusPlus::seed_from_u64(seed);
        let flow = |index: u32| {
            let (at_us, bytes) = match self.load {
                RateLoad::Endless => (chance.random_range(0..ARRIVALS_US), ENDLESS),
                RateLoad::Arriving { gap, bytes, .. } => ((gap * index).as_micros() as u64, bytes),
            };
            PlannedFlow {
                at_us,
                direction: self.workload,
                bytes,
                source: client(index as usize % CLIENTS).ip(self.ipv6),
            }
        };
        let flows = (0..self.flows).map(flow).collect();
        FlowPlan {
            server: self.service(),
            start_ns: start.as_nanos(),
            until_ms: (self.before() + self.failover + SETTLING + self.measure).as_millis() as u64,
            may_stop: true,
            flows,
            seed,
        }
    }
}
