//! The results of a scenario's runs, as tables. Each row begins with the number of its run.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use proto::session::frame::StateTransfer;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sim::multipath::shared::CoreQueue;
use sim::scenario::multipath::MultipathPolicy;

use super::scenario::RecoveryPolicy;

/// A flow through the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowRow {
    pub run: u32,
    pub variant: String,
    pub failover_s: f64,
    pub recovery: RecoveryPolicy,
    pub seed: u64,
    pub arrival_s: f64,
    /// None if the flow was not complete when the run ended.
    pub completion_s: Option<f64>,
    pub timeouts: u32,
    /// Timeouts of the SYN. They are also counted in `timeouts`.
    pub syn_timeouts: u32,
    pub retransmitted_segments: u64,
    /// The slow start threshold at the flow's end.
    pub threshold_segments: f64,
}

/// The congestion window and the slow start threshold of the first flow at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowRow {
    pub run: u32,
    pub failover_s: f64,
    pub recovery: RecoveryPolicy,
    pub seed: u64,
    pub time_s: f64,
    pub window_segments: f64,
    pub threshold_segments: f64,
}

/// The varied parameters of a run over the two strings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StringsRun {
    pub buffer_packets: usize,
    pub rate_control: bool,
    pub seed: u64,
}

/// Largest contents of an edge's cache for local recovery at one time. Bytes count from the IP header on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryRow {
    pub run: u32,
    pub failover_s: f64,
    pub recovery: RecoveryPolicy,
    pub seed: u64,
    pub flows: u64,
    /// 1: R1, next to the sources; 2: R2.
    pub edge: u8,
    pub peak_packets: usize,
    pub peak_bytes: usize,
}

/// A flow over the two strings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferRow {
    pub run: u32,
    pub buffer_packets: usize,
    pub rate_control: bool,
    pub seed: u64,
    pub flow: usize,
    /// Whether the flow was on the string that failed.
    pub waited: bool,
    pub start_s: f64,
    pub completion_s: Option<f64>,
    pub timeouts: u32,
    pub retransmitted_segments: u64,
    /// Number of half seconds, from the failover's end on, throughout which the flow was active.
    pub bins: u32,
    /// Number of these half seconds in which the flow got less than half of an equal share.
    pub starved_bins: u32,
}

/// Throughput, including headers, and number of dropped packets in one bin (`bin` in the scenario).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinRow {
    pub run: u32,
    pub buffer_packets: usize,
    pub rate_control: bool,
    pub seed: u64,
    pub end_s: f64,
    /// Throughput of the flows that were never interrupted.
    pub passed_mbps: f64,
    /// Throughput of the flows that were moved to the other string.
    pub failover_mbps: f64,
    /// Rate at which R1 sent into the strings, retransmitted segments included.
    pub wire_mbps: f64,
    pub dropped_packets: u64,
}

/// The queue at R1 before the surviving string.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueRow {
    pub run: u32,
    pub buffer_packets: usize,
    pub rate_control: bool,
    pub seed: u64,
    pub time_s: f64,
    pub packets: usize,
}

/// A sampled flow's throughput in half a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareRow {
    pub run: u32,
    pub buffer_packets: usize,
    pub rate_control: bool,
    pub seed: u64,
    pub end_s: f64,
    pub flow: usize,
    pub mbps: f64,
}

/// A transfer between two hosts with several paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MultipathRow {
    pub run: u32,
    pub policy: MultipathPolicy,
    pub primary_loss: f64,
    pub alternate_loss: f64,
    pub path_max_retrans: u32,
    /// None if no failover is permanent.
    pub change_over: Option<u32>,
    pub seed: u64,
    /// Time from the first INIT to the last byte's delivery. None if the transfer was not complete when the run ended.
    pub completion_s: Option<f64>,
    pub from_data_s: Option<f64>,
    /// Declared failures of the primary destination.
    pub failovers: u32,
    pub promotions: u32,
    pub timeouts: u64,
    pub retransmissions: u64,
}

/// One second of a run with many associations over the same paths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedPathsRow {
    pub run: u32,
    pub queue: CoreQueue,
    pub path_max_retrans: u32,
    pub seed: u64,
    /// End of the second, counted from the end of the warm-up.
    pub end_s: u32,
    /// Timeouts of the primary destinations of all associations.
    pub timeouts: u32,
    pub delivered_bytes: u64,
}

/// A packet that an SCTP sender sent after a timeout, in a scenario of the paper's Figure 8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeoutPacketRow {
    pub run: u32,
    /// From 1 to 4.
    pub scenario: u32,
    pub path_max_retrans: u32,
    /// Time since the timeout.
    pub after_ms: u64,
    /// 0 is the primary path, 1 the alternate.
    pub path: usize,
    /// Number of the packet, counted from the packet that timed out. None for a heartbeat.
    pub number: Option<u32>,
}

/// The detection of a cut path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetectionRow {
    pub run: u32,
    pub path_max_retrans: u32,
    pub first_rto_s: f64,
    /// Time from the cut to the declared failure. None if the sender declared none.
    pub detected_s: Option<f64>,
}

/// A round trip of a transfer without loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrowthRow {
    pub run: u32,
    pub threshold_packets: u32,
    /// The first one is 1.
    pub round_trip: u32,
    pub packets: u32,
}

/// A move of a session between two servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveRow {
    pub run: u32,
    /// The round-trip time between any two hosts that the scenario asks for. 0: that of the cables.
    pub rtt_ms: u32,
    pub transfer: StateTransfer,
    pub snapshot_kb: u32,
    pub seed: u64,
    /// The measured round-trip time between the client and server a.
    pub round_trip_us: f64,
    /// Time from the request until data could be exchanged again.
    pub took_us: f64,
}

/// What the client of a stream had at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrivalRow {
    pub run: u32,
    /// None: plain TCP.
    pub snapshot_kb: Option<u32>,
    /// Whether the servers become slow.
    pub decays: bool,
    pub seed: u64,
    pub time_s: f64,
    pub bytes: u64,
}

/// A value that a measurement of a paper gave on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasurementRow {
    pub run: u32,
    pub seed: u64,
    /// The quantity, with its unit.
    pub what: String,
    /// What was measured, for example a commit mode.
    pub variant: String,
    pub value: f64,
}

/// A point of a figure that shows one run of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPointRow {
    pub run: u32,
    pub seed: u64,
    pub series: String,
    pub x: f64,
    pub y: f64,
}

/// How evenly flows shared the string in half a second. Only flows that were active throughout this half second count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FairnessRow {
    pub run: u32,
    pub buffer_packets: usize,
    pub rate_control: bool,
    pub seed: u64,
    pub end_s: f64,
    pub active_flows: usize,
    pub jain_index: f64,
}

/// The tables of one scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub flows: Vec<FlowRow>,
    pub windows: Vec<WindowRow>,
    pub memory: Vec<MemoryRow>,
    pub transfers: Vec<TransferRow>,
    pub bins: Vec<BinRow>,
    pub queue: Vec<QueueRow>,
    pub shares: Vec<ShareRow>,
    pub fairness: Vec<FairnessRow>,
    pub multipath: Vec<MultipathRow>,
    pub shared_paths: Vec<SharedPathsRow>,
    pub timeout_packets: Vec<TimeoutPacketRow>,
    pub detections: Vec<DetectionRow>,
    pub growth: Vec<GrowthRow>,
    pub moves: Vec<MoveRow>,
    pub arrivals: Vec<ArrivalRow>,
    pub measurements: Vec<MeasurementRow>,
    pub points: Vec<MeasuredPointRow>,
}

impl Rows {
    /// Adds the rows of other runs.
    pub fn append(&mut self, mut other: Self) {
        self.flows.append(&mut other.flows);
        self.windows.append(&mut other.windows);
        self.memory.append(&mut other.memory);
        self.transfers.append(&mut other.transfers);
        self.bins.append(&mut other.bins);
        self.queue.append(&mut other.queue);
        self.shares.append(&mut other.shares);
        self.fairness.append(&mut other.fairness);
        self.multipath.append(&mut other.multipath);
        self.shared_paths.append(&mut other.shared_paths);
        self.timeout_packets.append(&mut other.timeout_packets);
        self.detections.append(&mut other.detections);
        self.growth.append(&mut other.growth);
        self.moves.append(&mut other.moves);
        self.arrivals.append(&mut other.arrivals);
        self.measurements.append(&mut other.measurements);
        self.points.append(&mut other.points);
    }

    /// Sorts the rows by their runs.
    pub fn sort(&mut self) {
        self.flows.sort_by_key(|row| row.run);
        self.windows.sort_by_key(|row| row.run);
        self.memory.sort_by_key(|row| row.run);
        self.transfers.sort_by_key(|row| row.run);
        self.bins.sort_by_key(|row| row.run);
        self.queue.sort_by_key(|row| row.run);
        self.shares.sort_by_key(|row| row.run);
        self.fairness.sort_by_key(|row| row.run);
        self.multipath.sort_by_key(|row| row.run);
        self.shared_paths.sort_by_key(|row| row.run);
        self.timeout_packets.sort_by_key(|row| row.run);
        self.detections.sort_by_key(|row| row.run);
        self.growth.sort_by_key(|row| row.run);
        self.moves.sort_by_key(|row| row.run);
        self.arrivals.sort_by_key(|row| row.run);
        self.measurements.sort_by_key(|row| row.run);
        self.points.sort_by_key(|row| row.run);
    }

    /// Writes each table that has rows as `SCENARIO.TABLE.csv`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, directory: &Path, scenario: &str) -> Result<()> {
        write(directory, scenario, "flows", &self.flows)?;
        write(directory, scenario, "windows", &self.windows)?;
        write(directory, scenario, "memory", &self.memory)?;
        write(directory, scenario, "transfers", &self.transfers)?;
        write(directory, scenario, "bins", &self.bins)?;
        write(directory, scenario, "queue", &self.queue)?;
        write(directory, scenario, "shares", &self.shares)?;
        write(directory, scenario, "fairness", &self.fairness)?;
        write(directory, scenario, "multipath", &self.multipath)?;
        write(directory, scenario, "shared-paths", &self.shared_paths)?;
        write(directory, scenario, "timeout-packets", &self.timeout_packets)?;
        write(directory, scenario, "detections", &self.detections)?;
        write(directory, scenario, "growth", &self.growth)?;
        write(directory, scenario, "moves", &self.moves)?;
        write(directory, scenario, "arrivals", &self.arrivals)?;
        write(directory, scenario, "measurements", &self.measurements)?;
        write(directory, scenario, "points", &self.points)
    }

    /// Reads the tables that [`Rows::write`] wrote. A table without a file is empty.
    ///
    /// # Errors
    /// If a file is not such a table, or cannot be read.
    pub fn read(directory: &Path, scenario: &str) -> Result<Self> {
        Ok(Self {
            flows: read(directory, scenario, "flows")?,
            windows: read(directory, scenario, "windows")?,
            memory: read(directory, scenario, "memory")?,
            transfers: read(directory, scenario, "transfers")?,
            bins: read(directory, scenario, "bins")?,
            queue: read(directory, scenario, "queue")?,
            shares: read(directory, scenario, "shares")?,
            fairness: read(directory, scenario, "fairness")?,
            multipath: read(directory, scenario, "multipath")?,
            shared_paths: read(directory, scenario, "shared-paths")?,
            timeout_packets: read(directory, scenario, "timeout-packets")?,
            detections: read(directory, scenario, "detections")?,
            growth: read(directory, scenario, "growth")?,
            moves: read(directory, scenario, "moves")?,
            arrivals: read(directory, scenario, "arrivals")?,
            measurements: read(directory, scenario, "measurements")?,
            points: read(directory, scenario, "points")?,
        })
    }
}

fn write<T: Serialize>(directory: &Path, scenario: &str, table: &str, rows: &[T]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let path = directory.join(format!("{scenario}.{table}.csv"));
    let mut writer = csv::Writer::from_path(&path).with_context(|| path.display().to_string())?;
    for row in rows {
        writer.serialize(row)?;
    }
    writer.flush().with_context(|| path.display().to_string())
}

fn read<T: DeserializeOwned>(directory: &Path, scenario: &str, table: &str) -> Result<Vec<T>> {
    let path = directory.join(format!("{scenario}.{table}.csv"));
    if !fs::exists(&path)? {
        return Ok(Vec::new());
    }
    let mut reader = csv::Reader::from_path(&path).with_context(|| path.display().to_string())?;
    reader
        .deserialize()
        .collect::<Result<_, _>>()
        .with_context(|| path.display().to_string())
}
