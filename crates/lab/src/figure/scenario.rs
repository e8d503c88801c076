//! Scenario files: a network, and the parameters that vary between runs. A file with an unknown field or an impossible value is
//! refused; the error names the file, the line and the field.

use std::path::Path;
use std::time::Duration;

use proto::session::frame::StateTransfer;
use serde::{Deserialize, Serialize};
use sim::flow::TcpVariant;
use sim::multipath::shared::CoreQueue;
use sim::scenario::InvalidScenario;
use sim::scenario::cluster::ClusterScenario;
use sim::scenario::multipath::{MultipathPolicy, MultipathTransfer};
use sim::scenario::rate::RateScenario;
use sim::scenario::shared_paths::SharedPaths;
use sim::scenario::timeouts::{FailureDetection, TimeoutScenario, WindowGrowth};

use super::oracle::TimeoutSetting;
use super::place::FieldSpans;
use super::playable;
use crate::run::WrongUse;

/// The contents of a scenario file: one table. The table's name selects the variant.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum FigureScenario {
    /// Flows through one cluster before, during and after a failover (HALR thesis §7.2).
    Flows(Box<FlowSweep>),
    /// Two strings, one of which fails (§7.4).
    Strings(Box<StringSweep>),
    /// Transfers between two hosts with several paths (SCTP failover paper).
    Paths(Box<PathSweep>),
    /// Many associations over the same paths (SCTP failover paper, section V).
    SharedPaths(Box<SharedPathSweep>),
    /// Runs without anything random, which the closed forms describe (SCTP failover paper, sections II and III.7).
    Timeouts(TimeoutSweep),
    /// The unused flow time as a function of the down time, from the formula alone, without a network (§5.1). In the unused flow time, the
    /// network works again, but the flow still waits for its timer.
    UnusedFlowTime(Sawtooth),
    /// Moves of sessions between two servers, on this machine's kernel (Migratory TCP paper, Figure 6).
    Moves(MoveSweep),
    /// Streams from servers that become slow, on this machine's kernel (Migratory TCP paper, Figure 7).
    Streams(StreamSweep),
    /// What `bench ft-tcp` or `bench coral` measures on this machine's kernel (FT-TCP paper, CoRAL's evaluation).
    Measurements(MeasurementSweep),
}

/// The measurements of one paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasurementSweep {
    pub paper: MeasuredPaper,
    /// Rounds of the benchmark for each seed. In a round, the variants take turns.
    pub rounds: u32,
}

/// A paper whose measurements are a benchmark of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredPaper {
    FtTcp,
    Coral,
}

impl MeasurementSweep {
    fn check(&self) -> Result<(), Impossible> {
        let is_allowed = (1..=100).contains(&self.rounds);
        must(is_allowed, "measurements.rounds", "must be from 1 to 100")
    }
}

/// Moves with all combinations of round-trip times, transfers and sizes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveSweep {
    /// Round-trip times between any two hosts, in milliseconds. 0: that of the cables.
    pub rtts_ms: Vec<u32>,
    /// What these times are longer for server b, in milliseconds.
    #[serde(default)]
    pub far_ms: u32,
    /// Where the state is kept.
    pub transfers: Vec<StateTransfer>,
    /// Sizes of a snapshot, in KiB.
    pub sizes_kb: Vec<u32>,
    /// Number of moves of each kind with a snapshot of at most 16 KiB. Larger snapshots have fewer: at most 16 MiB of snapshots in all.
    pub moves: u32,
}

/// Streams over plain TCP, and with all sizes of snapshots.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSweep {
    /// Sizes of a snapshot, in KiB.
    pub sizes_kb: Vec<u32>,
    /// KiB of a connection after which a server becomes slow.
    pub fast_kb: u32,
    /// Number of bad samples of the rate that cause a move.
    pub strikes: u32,
}

impl MoveSweep {
    fn check(&self) -> Result<(), Impossible> {
        must(self.moves > 0, "moves.moves", "is 0; allowed: 1 or more")?;
        let fits = self.sizes_kb.iter().all(|kb| *kb <= 16 << 10);
        must(fits, "moves.sizes_kb", "a snapshot has at most 16384 KiB")?;
        let are_known = !self.transfers.contains(&StateTransfer::Client);
        must(are_known, "moves.transfers", "allowed: \"lazy\" and \"eager\"")
    }

    /// Number of moves with snapshots of this size.
    pub fn moves_of(&self, size_kb: u32) -> u32 {
        if size_kb <= 16 {
            return self.moves;
        }
        self.moves.min(((16 << 10) / size_kb).max(5))
    }
}

impl StreamSweep {
    fn check(&self) -> Result<(), Impossible> {
        must(self.strikes > 0, "streams.strikes", "is 0; allowed: 1 or more")?;
        let fits = self.sizes_kb.iter().all(|kb| *kb <= 16 << 10);
        must(fits, "streams.sizes_kb", "a snapshot has at most 16384 KiB")
    }
}

/// Runs of all combinations of variants, failovers and recoveries.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowSweep {
    /// TCP's variants.
    pub variants: Vec<TcpVariant>,
    /// Durations of the failover.
    pub failovers: Vec<ScenarioSeconds>,
    /// Policies that select the packets that the edge remembers, one policy per run.
    pub recoveries: Vec<RecoveryPolicy>,
    /// Time between two samples of the congestion windows. `None`: there are no samples.
    #[serde(default)]
    pub window_interval: Option<ScenarioSeconds>,
    /// Play on this machine's kernel, in network namespaces, and not in the simulator.
    #[serde(default)]
    pub kernel: bool,
    /// All other parameters.
    pub cluster: ClusterScenario,
}

impl FlowSweep {
    /// Whether the SYN and the SYN-ACK of a flow that arrives at `arrival_s` pass the cluster before the failover. Then the failover hits
    /// the flow's data, if the flow is long enough: the thesis' Case 2.
    pub fn is_case_2(&self, arrival_s: f64) -> bool {
        let cluster = &self.cluster;
        let to_r2 = cluster.source_delay + cluster.cluster_delay * 2;
        let back_to_r1 = cluster.destination_delay * 2 + cluster.cluster_delay * 2;
        arrival_s + (to_r2 + back_to_r1).as_secs_f64() < cluster.failover_at.as_secs_f64()
    }

    /// Time in seconds between a segment's passage through the cluster and its answer's passage. The models call this time the answer's
    /// delay.
    pub fn answer_s(&self) -> f64 {
        2.0 * (self.cluster.destination_delay + self.cluster.cluster_delay).as_secs_f64()
    }

    /// Whether the cluster is next to the sources, and TCP's least timeout.
    pub fn timeout_setting(&self) -> TimeoutSetting {
        TimeoutSetting {
            is_near_sources: self.cluster.source_delay < self.cluster.destination_delay,
            least_timeout_s: self.cluster.tcp.rto.min.as_secs_f64(),
        }
    }
}

/// Runs of all combinations of buffers and rate control.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StringSweep {
    /// Sizes of R1's buffer before each string, in packets, including the packet that is being sent.
    pub buffers: Vec<usize>,
    /// Whether the edge controls the rate, one value per run.
    pub rate_control: Vec<bool>,
    /// Number of flows that are shown individually.
    pub sampled: usize,
    /// Play on this machine's kernel, in network namespaces, and not in the simulator.
    #[serde(default)]
    pub kernel: bool,
    /// All other parameters.
    pub rate: RateScenario,
}

/// Transfers with all combinations of losses and thresholds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSweep {
    /// Losses of the primary path, as probabilities.
    pub primary_losses: Vec<f64>,
    /// Losses of the alternate path.
    pub alternate_losses: Vec<f64>,
    /// Path.Max.Retrans (PMR).
    pub path_max_retrans: Vec<u32>,
    /// Change-over thresholds (CPT). If there is none, no failover is permanent.
    #[serde(default)]
    pub change_overs: Vec<u32>,
    /// Whether there are also runs without a change-over threshold.
    #[serde(default)]
    pub without_change_over: bool,
    /// Failover policies. If the list is empty, the policy of `transfer` is used. Only the policies named `dormant-…` have
    /// a CPT.
    #[serde(default)]
    pub policies: Vec<MultipathPolicy>,
    /// Number of transfers per combination and seed.
    #[serde(default = "one")]
    pub transfers: u32,
    /// All other parameters. The second path and all that follow it are alternates.
    pub transfer: MultipathTransfer,
}

/// Associations over the same paths, with all combinations of queues and thresholds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedPathSweep {
    /// Queues of the core links.
    pub queues: Vec<CoreQueue>,
    /// Path.Max.Retrans (PMR).
    pub path_max_retrans: Vec<u32>,
    /// All other parameters. Events are counted from the end of the warm-up on.
    pub network: SharedPaths,
}

/// Runs for the SCTP failover paper's closed forms.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeoutSweep {
    /// Detections of a cut path.
    pub detections: Vec<FailureDetection>,
    /// Path.Max.Retrans (PMR) in the scenarios of Figure 8.
    pub path_max_retrans: Vec<u32>,
    /// Initial congestion window in these scenarios, in packets.
    pub initial_window_packets: u32,
    /// Delays of the primary's and of the alternate's core link in these scenarios.
    pub delays: [ScenarioSeconds; 2],
    /// Slow start thresholds of transfers without loss, in packets.
    pub thresholds_packets: Vec<u32>,
    /// Receive buffer of these transfers, in bytes.
    pub receive_buffer: u32,
}

impl TimeoutSweep {
    /// The scenarios of Figure 8.
    pub fn scenarios(&self) -> impl Iterator<Item = TimeoutScenario> {
        let lost = [[false, false], [false, true], [true, false], [true, true]];
        self.path_max_retrans.iter().flat_map(move |path_max_retrans| {
            lost.map(|lost| TimeoutScenario {
                path_max_retrans: *path_max_retrans,
                lost,
                delays: self.delays.map(|ScenarioSeconds(delay)| delay),
                initial_window_packets: self.initial_window_packets,
            })
        })
    }

    /// The transfers without loss.
    pub fn growths(&self) -> impl Iterator<Item = WindowGrowth> {
        self.thresholds_packets
            .iter()
            .map(|threshold_packets| WindowGrowth {
                threshold_packets: *threshold_packets,
                receive_buffer: self.receive_buffer,
            })
    }
}

const fn one() -> u32 {
    1
}

/// The parameters of Figure 9.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sawtooth {
    /// First retransmission timeouts, one curve each.
    pub timeouts: Vec<ScenarioSeconds>,
    /// The longest down time.
    pub until: ScenarioSeconds,
    /// Difference in down time between two points of a curve.
    pub step: ScenarioSeconds,
}

/// A number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct ScenarioSeconds(#[serde(with = "sim::flow::seconds")] pub Duration);

/// Packets that the edge remembers during a failover and resends after it (DESIGN §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryPolicy {
    /// Nothing: plain TCP.
    None,
    /// The lowest unacknowledged data and the highest acknowledgement of each connection.
    Lowest,
    /// SYNs only.
    Syn,
    /// Everything unacknowledged.
    All,
}

impl FigureScenario {
    /// Reads and checks a file's text.
    ///
    /// # Errors
    /// `FILE:LINE: FIELD: WHAT` of the first fault.
    pub fn parse(file: &Path, text: &str) -> Result<Self, WrongUse> {
        let places = FieldSpans::of(text);
        let wrong = |line: usize, field: &str, what: &str| {
            let field = if field.is_empty() {
                String::new()
            } else {
                format!("{field}: ")
            };
            WrongUse(format!("{}:{line}: {field}{what}", file.display()))
        };
        if let Some(Impossible { field, what }) = places.tables().and_then(|tables| misplaced(&tables)) {
            return Err(wrong(places.line_of(&field), &field, &what));
        }
        let scenario: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            wrong(places.line_at(at), &places.field_at(at), error.message())
        })?;
        match scenario.check() {
            Ok(()) => Ok(scenario),
            Err(Impossible { field, what }) => Err(wrong(places.line_of(&field), &field, &what)),
        }
    }

    fn check(&self) -> Result<(), Impossible> {
        match self {
            Self::Flows(sweep) => {
                sweep.check()?;
                let can_play = !sweep.kernel || playable::can_play_cluster(&sweep.cluster);
                must(can_play, "flows.kernel", playable::LIMITS)
            }
            Self::Strings(sweep) => {
                sweep.check()?;
                let can_play = !sweep.kernel || playable::can_play_strings(&sweep.rate);
                must(can_play, "strings.kernel", playable::LIMITS)
            }
            Self::Paths(sweep) => sweep.check(),
            Self::SharedPaths(sweep) => sweep.check(),
            Self::Timeouts(sweep) => sweep.check(),
            Self::UnusedFlowTime(sawtooth) => sawtooth.check(),
            Self::Moves(sweep) => sweep.check(),
            Self::Streams(sweep) => sweep.check(),
            Self::Measurements(sweep) => sweep.check(),
        }
    }
}

/// A field with an impossible value.
struct Impossible {
    /// The field's path in the file.
    field: String,
    what: String,
}

fn impossible(field: impl Into<String>, what: impl Into<String>) -> Impossible {
    Impossible {
        field: field.into(),
        what: what.into(),
    }
}

/// Checks that the top level of a file is exactly one known table. Returns the error otherwise.
fn misplaced(tables: &[&str]) -> Option<Impossible> {
    const KINDS: [&str; 9] = [
        "flows",
        "strings",
        "paths",
        "shared-paths",
        "timeouts",
        "unused-flow-time",
        "moves",
        "streams",
        "measurements",
    ];
    let unknown = tables.iter().find(|table| !KINDS.contains(table));
    let wrong = match (unknown, tables) {
        (Some(unknown), _) => unknown,
        (None, []) => "",
        (None, [_]) => return None,
        (None, [_, second, ..]) => second,
    };
    Some(impossible(
        wrong,
        format!(
            "a scenario is one table, which holds all fields and has one of these names: {}",
            KINDS.join(", ")
        ),
    ))
}

fn must(holds: bool, field: &str, what: &str) -> Result<(), Impossible> {
    if holds {
        Ok(())
    } else {
        Err(impossible(field, what))
    }
}

const NOT_EMPTY: &str = "must not be empty";
const POSITIVE: &str = "must be positive";

/// Converts the simulator's error about `table`. The error's message begins with the field's name.
fn in_table(table: &str, error: &InvalidScenario) -> Impossible {
    let message = error.to_string();
    let (field, what) = message.split_once(' ').unwrap_or(("", &message));
    impossible(format!("{table}.{}", field.trim_end_matches(':')), what)
}

impl FlowSweep {
    fn check(&self) -> Result<(), Impossible> {
        must(!self.variants.is_empty(), "flows.variants", NOT_EMPTY)?;
        must(!self.failovers.is_empty(), "flows.failovers", NOT_EMPTY)?;
        must(!self.recoveries.is_empty(), "flows.recoveries", NOT_EMPTY)?;
        let interval = self
            .window_interval
            .is_none_or(|ScenarioSeconds(interval)| !interval.is_zero());
        must(interval, "flows.window_interval", POSITIVE)?;
        let cluster = &self.cluster;
        let looks = |ScenarioSeconds(interval)| cluster.end.div_duration_f64(interval);
        must(
            self.window_interval.is_none_or(|interval| looks(interval) <= 1e6),
            "flows.window_interval",
            "must be at least a millionth of the run",
        )?;
        for (field, rate) in [
            ("access_rate_bits_per_s", cluster.access_rate_bits_per_s),
            ("cluster_rate_bits_per_s", cluster.cluster_rate_bits_per_s),
        ] {
            must(rate > 0, &format!("flows.cluster.{field}"), POSITIVE)?;
        }
        must(
            (0.0..=1.0).contains(&cluster.loss),
            "flows.cluster.loss",
            "must be a probability between 0 and 1",
        )?;
        let arrive = cluster
            .last_arrival
            .is_none_or(|last| last > cluster.first_arrival && last <= cluster.end);
        must(
            arrive,
            "flows.cluster.last_arrival",
            "must be after first_arrival and within the run",
        )?;
        must(
            cluster.first_arrival < cluster.end,
            "flows.cluster.first_arrival",
            "must be within the run",
        )?;
        cluster
            .tcp
            .check()
            .map_err(|error| in_table("flows.cluster", &error.into()))?;
        must(
            cluster.failover_at <= cluster.end,
            "flows.cluster.failover_at",
            "must be within the run",
        )?;
        let recovers = self
            .recoveries
            .iter()
            .any(|recovery| *recovery != RecoveryPolicy::None);
        for ScenarioSeconds(failover) in &self.failovers {
            must(
                cluster.failover_at + *failover <= cluster.end,
                "flows.failovers",
                "the failover must end within the run",
            )?;
            let whole = ClusterScenario {
                failover: *failover,
                recovery: recovers.then(|| cluster.recovery.unwrap_or_default()),
                ..cluster.clone()
            };
            // Runs the network without flows, because some errors are found only when the network is built.
            let empty = ClusterScenario {
                last_arrival: Some(cluster.first_arrival),
                ..whole.clone()
            };
            let checked = whole.check().and_then(|()| empty.run());
            checked.map_err(|error| in_table("flows.cluster", &error))?;
        }
        Ok(())
    }
}

impl StringSweep {
    fn check(&self) -> Result<(), Impossible> {
        must(!self.buffers.is_empty(), "strings.buffers", NOT_EMPTY)?;
        must(
            !self.buffers.contains(&0),
            "strings.buffers",
            "a buffer holds at least one packet",
        )?;
        must(!self.rate_control.is_empty(), "strings.rate_control", NOT_EMPTY)?;
        let rate = &self.rate;
        must(
            self.sampled <= rate.flows as usize * 2,
            "strings.sampled",
            "must be at most the number of flows, which is twice `flows`",
        )?;
        must(rate.flows > 0, "strings.rate.flows", POSITIVE)?;
        must(rate.segments > 0, "strings.rate.segments", POSITIVE)?;
        must(
            rate.access_rate_bits_per_s > 0,
            "strings.rate.access_rate_bits_per_s",
            POSITIVE,
        )?;
        must(
            !rate.rate_bits_per_s.contains(&0),
            "strings.rate.rate_bits_per_s",
            "each string's must be positive",
        )?;
        must(
            rate.failure_at <= rate.end,
            "strings.rate.failure_at",
            "must be within the run",
        )?;
        must(
            rate.failure_at + rate.failover <= rate.end,
            "strings.rate.failover",
            "must end within the run",
        )?;
        let whole = RateScenario {
            sharing: self
                .rate_control
                .contains(&true)
                .then(|| rate.sharing.unwrap_or_default()),
            ..rate.clone()
        };
        let least = RateScenario {
            flows: 1,
            segments: 1,
            ..whole.clone()
        };
        let checked = whole.check().and_then(|()| least.run());
        checked
            .map(drop)
            .map_err(|error| in_table("strings.rate", &error))
    }
}

impl PathSweep {
    fn check(&self) -> Result<(), Impossible> {
        must(!self.primary_losses.is_empty(), "paths.primary_losses", NOT_EMPTY)?;
        must(
            !self.alternate_losses.is_empty(),
            "paths.alternate_losses",
            NOT_EMPTY,
        )?;
        must(
            !self.path_max_retrans.is_empty(),
            "paths.path_max_retrans",
            NOT_EMPTY,
        )?;
        for (field, losses) in [
            ("paths.primary_losses", &self.primary_losses),
            ("paths.alternate_losses", &self.alternate_losses),
        ] {
            let are_losses = losses.iter().all(|loss| (0.0..1.0).contains(loss));
            must(are_losses, field, "a loss is a probability from 0 to below 1")?;
        }
        must(self.transfer.bytes > 0, "paths.transfer.bytes", POSITIVE)?;
        must(
            self.transfer.paths.len() >= 2,
            "paths.transfer.paths",
            "there must be at least two: a primary and an alternate",
        )?;
        must(
            (1..=1000).contains(&self.transfers),
            "paths.transfers",
            "must be from 1 to 1000",
        )?;
        let empty = MultipathTransfer {
            until: Duration::ZERO,
            ..self.transfer.clone()
        };
        let checked = empty.run().map(drop);
        checked.map_err(|error| impossible("paths.transfer", error.to_string()))
    }
}

impl SharedPathSweep {
    fn check(&self) -> Result<(), Impossible> {
        const TABLE: &str = "shared-paths";
        must(!self.queues.is_empty(), &format!("{TABLE}.queues"), NOT_EMPTY)?;
        must(
            !self.path_max_retrans.is_empty(),
            &format!("{TABLE}.path_max_retrans"),
            NOT_EMPTY,
        )?;
        let network = &self.network;
        must(
            (1..=1000).contains(&network.associations),
            &format!("{TABLE}.network.associations"),
            "must be from 1 to 1000",
        )?;
        must(
            network.warm_up < network.transfer.until,
            &format!("{TABLE}.network.warm_up"),
            "must be shorter than the run",
        )?;
        let mut empty = network.clone();
        (empty.warm_up, empty.transfer.until) = (Duration::ZERO, Duration::ZERO);
        let checked = empty.run().map(drop);
        checked.map_err(|error| impossible(format!("{TABLE}.network"), error.to_string()))
    }
}

impl TimeoutSweep {
    fn check(&self) -> Result<(), Impossible> {
        for growth in self.growths() {
            let checked = growth.run().map(drop);
            checked.map_err(|error| impossible("timeouts.receive_buffer", error.to_string()))?;
        }
        for scenario in self.scenarios() {
            let checked = scenario.run().map(drop);
            checked.map_err(|error| impossible("timeouts.delays", error.to_string()))?;
        }
        for detection in &self.detections {
            let checked = detection.run().map(drop);
            checked.map_err(|error| impossible("timeouts.detections", error.to_string()))?;
        }
        Ok(())
    }
}

impl Sawtooth {
    fn check(&self) -> Result<(), Impossible> {
        const TABLE: &str = "unused-flow-time";
        let zero = |ScenarioSeconds(time): &ScenarioSeconds| time.is_zero();
        must(!self.timeouts.is_empty(), &format!("{TABLE}.timeouts"), NOT_EMPTY)?;
        must(
            !self.timeouts.iter().any(zero),
            &format!("{TABLE}.timeouts"),
            "a timeout must be positive",
        )?;
        must(!zero(&self.until), &format!("{TABLE}.until"), POSITIVE)?;
        must(!zero(&self.step), &format!("{TABLE}.step"), POSITIVE)?;
        let points = self.until.0.as_secs_f64() / self.step.0.as_secs_f64();
        must(
            points <= 1e6,
            &format!("{TABLE}.step"),
            "must be at least a millionth of `until`",
        )
    }
}
