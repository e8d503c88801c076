//! Turns a scenario into runs, and a run into rows.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, bail};
use proto::Instant;
use proto::edge::cache::CachePolicy;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use sim::flow::TcpVariant;
use sim::net::TraceEvent;
use sim::scenario::FlowResult;
use sim::scenario::cluster::ClusterScenario;
use sim::scenario::edge::EdgeRecovery as LocalRecovery;
use sim::scenario::multipath::{MultipathPolicy, MultipathTransfer};
use sim::scenario::rate::{RateResult, RateScenario};
use sim::scenario::shared_paths::SharedPaths;
use sim::scenario::timeouts::{FailureDetection, TimeoutScenario, WindowGrowth};

use super::rows::{
    ArrivalRow, BinRow, DetectionRow, FairnessRow, FlowRow, GrowthRow, MemoryRow, MoveRow, MultipathRow,
    QueueRow, Rows, ShareRow, SharedPathsRow, StringsRun, TimeoutPacketRow, TransferRow, WindowRow,
};
use super::scenario::{
    FigureScenario, FlowSweep, MeasuredPaper, MoveSweep, PathSweep, RecoveryPolicy, ScenarioSeconds,
    SharedPathSweep, StreamSweep, StringSweep, TimeoutSweep,
};
use crate::sessions::moves::MovesCell;
use crate::sessions::stream::StreamCell;

/// Bytes on a link per byte of payload. Receivers count payload only, links carry headers too.
const WIRE_BYTES_PER_DATA_BYTE: f64 = 1500.0 / 1460.0;
/// Length of the bins of [`RateResult::flow_bins`], in seconds.
pub const FLOW_BIN_S: f64 = 0.5;

/// One run.
#[derive(Clone, Debug)]
pub struct SweepRun {
    number: u32,
    is_on_kernel: bool,
    what: SweepRunKind,
}

#[derive(Clone, Debug)]
enum SweepRunKind {
    Cluster {
        cluster: Box<ClusterScenario>,
        recovery: RecoveryPolicy,
        window_interval: Option<Duration>,
    },
    Strings {
        rate: Box<RateScenario>,
        run: StringsRun,
        sampled: usize,
    },
    Paths {
        transfer: Box<MultipathTransfer>,
        /// The seed as the figure counts it. The transfer's own seed differs from run to run.
        seed: u64,
    },
    SharedPaths {
        network: Box<SharedPaths>,
    },
    Timeout(TimeoutScenario),
    Detection(FailureDetection),
    Growth(WindowGrowth),
    Moves {
        cell: MovesCell,
        seed: u64,
    },
    Stream {
        cell: StreamCell,
        seed: u64,
    },
    Measurements {
        paper: MeasuredPaper,
        rounds: u32,
        seed: u64,
    },
}

/// The edges' local recovery in a run: the file's parameters with this policy.
fn local_recovery(file: Option<LocalRecovery>, policy: RecoveryPolicy) -> Option<LocalRecovery> {
    let policy = match policy {
        RecoveryPolicy::None => return None,
        RecoveryPolicy::Lowest => CachePolicy::Lowest,
        RecoveryPolicy::Syn => CachePolicy::Syn,
        RecoveryPolicy::All => CachePolicy::All,
    };
    Some(LocalRecovery {
        policy,
        ..file.unwrap_or_default()
    })
}

impl FigureScenario {
    /// The scenario's runs with these seeds, in the order of their numbers.
    pub fn runs(&self, seeds: RangeInclusive<u64>) -> Vec<SweepRun> {
        let mut whats = Vec::new();
        let is_on_kernel = match self {
            Self::Flows(sweep) => {
                sweep.runs(seeds, &mut whats);
                sweep.kernel
            }
            Self::Strings(sweep) => {
                sweep.runs(seeds, &mut whats);
                sweep.kernel
            }
            Self::Paths(sweep) => {
                sweep.runs(seeds, &mut whats);
                false
            }
            Self::SharedPaths(sweep) => {
                sweep.runs(seeds, &mut whats);
                false
            }
            Self::Timeouts(sweep) => {
                // Nothing in these runs depends on a seed.
                sweep.runs(&mut whats);
                false
            }
            Self::UnusedFlowTime(_) => false,
            Self::Moves(sweep) => {
                sweep.runs(seeds, &mut whats);
                true
            }
            Self::Streams(sweep) => {
                sweep.runs(seeds, &mut whats);
                true
            }
            Self::Measurements(sweep) => {
                whats.extend(seeds.map(|seed| SweepRunKind::Measurements {
                    paper: sweep.paper,
                    rounds: sweep.rounds,
                    seed,
                }));
                true
            }
        };
        let numbered = (0..).zip(whats);
        let run = |(number, what)| SweepRun {
            number,
            is_on_kernel,
            what,
        };
        numbered.map(run).collect()
    }
}

impl FlowSweep {
    fn runs(&self, seeds: RangeInclusive<u64>, whats: &mut Vec<SweepRunKind>) {
        for variant in &self.variants {
            for ScenarioSeconds(failover) in &self.failovers {
                for recovery in &self.recoveries {
                    for seed in seeds.clone() {
                        let mut cluster = ClusterScenario {
                            failover: *failover,
                            seed,
                            ..self.cluster.clone()
                        };
                        cluster.tcp.variant = *variant;
                        // The first seed has the file's arrival times. The other seeds have arrival times between the file's.
                        if seed > 1 {
                            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
                            cluster.first_arrival += cluster.gap.mul_f64(random.random::<f64>());
                        }
                        cluster.recovery = local_recovery(cluster.recovery, *recovery);
                        whats.push(SweepRunKind::Cluster {
                            cluster: Box::new(cluster),
                            recovery: *recovery,
                            window_interval: self.window_interval.map(|ScenarioSeconds(interval)| interval),
                        });
                    }
                }
            }
        }
    }
}

impl StringSweep {
    fn runs(&self, seeds: RangeInclusive<u64>, whats: &mut Vec<SweepRunKind>) {
        for buffer_packets in &self.buffers {
            for rate_control in &self.rate_control {
                for seed in seeds.clone() {
                    let rate = RateScenario {
                        buffer_packets: buffer_packets - 1, // the packet that is being sent is not in the queue
                        sharing: rate_control.then(|| self.rate.sharing.unwrap_or_default()),
                        seed,
                        ..self.rate.clone()
                    };
                    let run = StringsRun {
                        buffer_packets: *buffer_packets,
                        rate_control: *rate_control,
                        seed,
                    };
                    whats.push(SweepRunKind::Strings {
                        rate: Box::new(rate),
                        run,
                        sampled: self.sampled,
                    });
                }
            }
        }
    }
}

impl PathSweep {
    fn runs(&self, seeds: RangeInclusive<u64>, whats: &mut Vec<SweepRunKind>) {
        let machines = self.machines();
        let mut cell = 0;
        for primary_loss in &self.primary_losses {
            for alternate_loss in &self.alternate_losses {
                for path_max_retrans in &self.path_max_retrans {
                    for (policy, change_over) in machines.iter().copied() {
                        for _ in 0..self.transfers {
                            cell += 1;
                            for seed in seeds.clone() {
                                let mut transfer = MultipathTransfer {
                                    path_max_retrans: *path_max_retrans,
                                    policy,
                                    change_over,
                                    // With equal seeds the runs of two combinations would lose the same packets at first.
                                    seed: seed << 32 | cell,
                                    ..self.transfer.clone()
                                };
                                let losses =
                                    std::iter::once(primary_loss).chain(std::iter::repeat(alternate_loss));
                                for (path, loss) in transfer.paths.iter_mut().zip(losses) {
                                    path.loss = *loss;
                                }
                                let transfer = Box::new(transfer);
                                whats.push(SweepRunKind::Paths { transfer, seed });
                            }
                        }
                    }
                }
            }
        }
    }

    /// The failover policies with their thresholds (CPT).
    fn machines(&self) -> Vec<(MultipathPolicy, Option<u32>)> {
        let mut thresholds: Vec<Option<u32>> = self.change_overs.iter().copied().map(Some).collect();
        if thresholds.is_empty() || self.without_change_over {
            thresholds.push(None);
        }
        let own = [self.transfer.policy];
        let policies = if self.policies.is_empty() {
            &own[..]
        } else {
            &self.policies
        };
        let mut machines = Vec::new();
        for policy in policies {
            if policy.has_change_over() {
                machines.extend(thresholds.iter().map(|threshold| (*policy, *threshold)));
            } else {
                machines.push((*policy, None));
            }
        }
        machines
    }
}

impl SharedPathSweep {
    fn runs(&self, seeds: RangeInclusive<u64>, whats: &mut Vec<SweepRunKind>) {
        for queue in &self.queues {
            for path_max_retrans in &self.path_max_retrans {
                for seed in seeds.clone() {
                    let mut network = Box::new(self.network.clone());
                    network.queue = *queue;
                    network.transfer.path_max_retrans = *path_max_retrans;
                    network.transfer.seed = seed;
                    whats.push(SweepRunKind::SharedPaths { network });
                }
            }
        }
    }
}

impl TimeoutSweep {
    fn runs(&self, whats: &mut Vec<SweepRunKind>) {
        whats.extend(self.scenarios().map(SweepRunKind::Timeout));
        whats.extend(self.detections.iter().copied().map(SweepRunKind::Detection));
        whats.extend(self.growths().map(SweepRunKind::Growth));
    }
}

impl MoveSweep {
    fn runs(&self, seeds: RangeInclusive<u64>, whats: &mut Vec<SweepRunKind>) {
        for rtt_ms in &self.rtts_ms {
            for transfer in &self.transfers {
                for size_kb in &self.sizes_kb {
                    for seed in seeds.clone() {
                        let cell = MovesCell {
                            rtt: Duration::from_millis((*rtt_ms).into()),
                            far: Duration::from_millis(self.far_ms.into()),
                            transfer: *transfer,
                            snapshot_bytes: u64::from(*size_kb) << 10,
                            runs: self.moves_of(*size_kb) as usize,
                        };
                        whats.push(SweepRunKind::Moves { cell, seed });
                    }
                }
            }
        }
    }
}

impl StreamSweep {
    fn runs(&self, seeds: RangeInclusive<u64>, whats: &mut Vec<SweepRunKind>) {
        let steady = StreamCell {
            snapshot_bytes: Some(0),
            fast_bytes: None,
            strikes: self.strikes,
        };
        let of_size = |size_kb: Option<u32>| StreamCell {
            snapshot_bytes: size_kb.map(|kb| u64::from(kb) << 10),
            fast_bytes: Some(u64::from(self.fast_kb) << 10),
            ..steady
        };
        let sizes = self.sizes_kb.iter().copied().map(Some);
        let cells = [steady, of_size(None)].into_iter().chain(sizes.map(of_size));
        for cell in cells {
            whats.extend(seeds.clone().map(|seed| SweepRunKind::Stream { cell, seed }));
        }
    }
}

impl SweepRun {
    /// Whether the run is played on this machine's kernel, and so needs the machine for itself.
    pub const fn is_on_kernel(&self) -> bool {
        self.is_on_kernel
    }

    /// Plays the run.
    ///
    /// # Errors
    /// If the scenario is impossible. A checked scenario is possible in the simulator. A run on the kernel may fail for other reasons.
    pub fn play(&self) -> Result<Rows> {
        match &self.what {
            SweepRunKind::Cluster {
                cluster, recovery, ..
            } if self.is_on_kernel => {
                let flows = super::kernel::play_cluster(self.number, cluster, *recovery)?;
                Ok(self.flow_rows(cluster, *recovery, &flows))
            }
            SweepRunKind::Strings { rate, run, sampled } if self.is_on_kernel => {
                let result = super::kernel::play_strings(self.number, rate)?;
                Ok(self.strings_rows(rate, *run, *sampled, &result))
            }
            SweepRunKind::Cluster {
                cluster,
                recovery,
                window_interval,
            } => self.play_cluster(cluster, *recovery, *window_interval),
            SweepRunKind::Strings { rate, run, sampled } => {
                let result = rate.run()?;
                Ok(self.strings_rows(rate, *run, *sampled, &result))
            }
            SweepRunKind::Paths { transfer, seed } => self.play_transfer(transfer, *seed),
            SweepRunKind::SharedPaths { network } => self.play_shared_paths(network),
            SweepRunKind::Timeout(scenario) => self.play_timeout(scenario),
            SweepRunKind::Detection(detection) => self.play_detection(*detection),
            SweepRunKind::Growth(growth) => self.play_growth(*growth),
            SweepRunKind::Moves { cell, seed } => self.play_moves(cell, *seed),
            SweepRunKind::Stream { cell, seed } => self.play_stream(*cell, *seed),
            SweepRunKind::Measurements { paper, rounds, seed } => {
                super::kernel::play_measurements((self.number, *seed), *paper, *rounds)
            }
        }
    }

    fn play_moves(&self, cell: &MovesCell, seed: u64) -> Result<Rows> {
        let measured = super::kernel::play_moves((self.number, seed), cell)?;
        let row = |took: Duration| MoveRow {
            run: self.number,
            rtt_ms: cell.rtt.as_millis() as u32,
            transfer: cell.transfer,
            snapshot_kb: (cell.snapshot_bytes >> 10) as u32,
            seed,
            round_trip_us: measured.round_trip.as_secs_f64() * 1e6,
            took_us: took.as_secs_f64() * 1e6,
        };
        Ok(Rows {
            moves: measured.took.iter().copied().map(row).collect(),
            ..Rows::default()
        })
    }

    fn play_stream(&self, cell: StreamCell, seed: u64) -> Result<Rows> {
        let measured = super::kernel::play_stream((self.number, seed), cell)?;
        let row = |(time, bytes): &(Duration, u64)| ArrivalRow {
            run: self.number,
            snapshot_kb: cell.snapshot_bytes.map(|bytes| (bytes >> 10) as u32),
            decays: cell.fast_bytes.is_some(),
            seed,
            time_s: time.as_secs_f64(),
            bytes: *bytes,
        };
        Ok(Rows {
            arrivals: measured.arrivals.iter().map(row).collect(),
            ..Rows::default()
        })
    }

    fn play_transfer(&self, transfer: &MultipathTransfer, seed: u64) -> Result<Rows> {
        let result = transfer.run()?;
        let row = MultipathRow {
            run: self.number,
            policy: transfer.policy,
            primary_loss: transfer.paths[0].loss,
            alternate_loss: transfer.paths[1].loss,
            path_max_retrans: transfer.path_max_retrans,
            change_over: transfer.change_over,
            seed,
            completion_s: result.from_init_s,
            from_data_s: result.from_data_s,
            failovers: result.failovers,
            promotions: result.promotions,
            timeouts: result.timeouts,
            retransmissions: result.retransmissions,
        };
        Ok(Rows {
            multipath: vec![row],
            ..Rows::default()
        })
    }

    fn play_shared_paths(&self, network: &SharedPaths) -> Result<Rows> {
        let result = network.run()?;
        let seconds = (1..).zip(result.timeouts.into_iter().zip(result.delivered));
        let row = |(end_s, (timeouts, delivered_bytes))| SharedPathsRow {
            run: self.number,
            queue: network.queue,
            path_max_retrans: network.transfer.path_max_retrans,
            seed: network.transfer.seed,
            end_s,
            timeouts,
            delivered_bytes,
        };
        Ok(Rows {
            shared_paths: seconds.map(row).collect(),
            ..Rows::default()
        })
    }

    fn play_timeout(&self, scenario: &TimeoutScenario) -> Result<Rows> {
        let packets = scenario.run()?.into_iter().map(|packet| TimeoutPacketRow {
            run: self.number,
            scenario: scenario.number(),
            path_max_retrans: scenario.path_max_retrans,
            after_ms: packet.after.as_millis() as u64,
            path: packet.path,
            number: packet.number,
        });
        Ok(Rows {
            timeout_packets: packets.collect(),
            ..Rows::default()
        })
    }

    fn play_detection(&self, detection: FailureDetection) -> Result<Rows> {
        let row = DetectionRow {
            run: self.number,
            path_max_retrans: detection.path_max_retrans,
            first_rto_s: detection.rto.as_secs_f64(),
            detected_s: detection.run()?.map(|detected| detected.as_secs_f64()),
        };
        Ok(Rows {
            detections: vec![row],
            ..Rows::default()
        })
    }

    fn play_growth(&self, growth: WindowGrowth) -> Result<Rows> {
        let counts = (1..).zip(growth.run()?);
        let rows = counts.map(|(round_trip, packets)| GrowthRow {
            run: self.number,
            threshold_packets: growth.threshold_packets,
            round_trip,
            packets,
        });
        Ok(Rows {
            growth: rows.collect(),
            ..Rows::default()
        })
    }

    /// A name of the run's varied parameters, like `reno-3s-lowest` or `buffer-750-shared`.
    pub fn name(&self) -> String {
        match &self.what {
            SweepRunKind::Cluster {
                cluster, recovery, ..
            } => {
                let (variant, failover_s) = (cluster.tcp.variant, cluster.failover.as_secs_f64());
                format!("{variant:?}-{failover_s}s-{recovery:?}").to_lowercase()
            }
            SweepRunKind::Strings { run, .. } => {
                let control = if run.rate_control { "shared" } else { "plain" };
                format!("buffer-{}-{control}", run.buffer_packets)
            }
            SweepRunKind::Paths { transfer, .. } => {
                let percent = |path: usize| transfer.paths[path].loss * 100.0;
                let (primary, alternate) = (percent(0), percent(1));
                let threshold = transfer
                    .change_over
                    .map_or(String::new(), |threshold| format!("-cpt-{threshold}"));
                format!(
                    "{:?}-loss-{primary:.0}-{alternate:.0}-pmr-{}{threshold}",
                    transfer.policy, transfer.path_max_retrans
                )
            }
            SweepRunKind::SharedPaths { network } => {
                let threshold = network.transfer.path_max_retrans;
                format!("{:?}-pmr-{threshold}", network.queue).to_lowercase()
            }
            SweepRunKind::Timeout(scenario) => {
                format!("scenario-{}-pmr-{}", scenario.number(), scenario.path_max_retrans)
            }
            SweepRunKind::Detection(detection) => {
                let (threshold, rto_s) = (detection.path_max_retrans, detection.rto.as_secs_f64());
                format!("detection-pmr-{threshold}-rto-{rto_s}")
            }
            SweepRunKind::Growth(growth) => format!("growth-threshold-{}", growth.threshold_packets),
            SweepRunKind::Moves { cell, .. } => {
                format!("{:?}-{}-bytes", cell.transfer, cell.snapshot_bytes).to_lowercase()
            }
            SweepRunKind::Stream { cell, .. } => match cell.snapshot_bytes {
                Some(bytes) => format!("stream-{bytes}-bytes"),
                None => "stream-plain".to_owned(),
            },
            SweepRunKind::Measurements { paper, .. } => format!("{paper:?}").to_lowercase(),
        }
    }

    /// Number of flows.
    pub fn flows(&self) -> u64 {
        match &self.what {
            SweepRunKind::Cluster { cluster, .. } => cluster.flows(),
            SweepRunKind::Strings { rate, .. } => u64::from(rate.flows) * 2,
            SweepRunKind::Paths { .. }
            | SweepRunKind::Timeout(_)
            | SweepRunKind::Detection(_)
            | SweepRunKind::Growth(_)
            | SweepRunKind::Moves { .. }
            | SweepRunKind::Stream { .. }
            | SweepRunKind::Measurements { .. } => 1,
            SweepRunKind::SharedPaths { network } => network.associations as u64,
        }
    }

    /// Simulates the run and calls `trace` with every event.
    ///
    /// # Errors
    /// As [`SweepRun::play`].
    pub fn trace(&self, trace: impl FnMut(&TraceEvent) + 'static) -> Result<()> {
        match &self.what {
            SweepRunKind::Cluster { cluster, .. } => drop(cluster.run_traced(trace)?),
            SweepRunKind::Strings { rate, .. } => drop(rate.run_traced(trace)?),
            SweepRunKind::Paths { .. }
            | SweepRunKind::SharedPaths { .. }
            | SweepRunKind::Timeout(_)
            | SweepRunKind::Detection(_)
            | SweepRunKind::Growth(_)
            | SweepRunKind::Moves { .. }
            | SweepRunKind::Stream { .. }
            | SweepRunKind::Measurements { .. } => {
                bail!("a trace shows TCP only, and this scenario's hosts run SCTP")
            }
        }
        Ok(())
    }

    fn play_cluster(
        &self,
        cluster: &ClusterScenario,
        recovery: RecoveryPolicy,
        window_interval: Option<Duration>,
    ) -> Result<Rows> {
        let mut rows = Rows::default();
        let (failover_s, seed) = (cluster.failover.as_secs_f64(), cluster.seed);
        let moments: Vec<_> = window_interval.map_or_else(Vec::new, |interval| {
            let times = (1_u32..).map(|count| interval * count);
            times.take_while(|at| *at <= cluster.end).collect()
        });
        let result = cluster.run_watched(&moments, |network| {
            if let Some(sender) = network.flows().next().map(|flow| network.sender(flow))
                && sender.started().is_some()
                && sender.completed().is_none()
            {
                rows.windows.push(WindowRow {
                    run: self.number,
                    failover_s,
                    recovery,
                    seed,
                    time_s: seconds(network.now()),
                    window_segments: sender.congestion_window(),
                    threshold_segments: sender.slow_start_threshold(),
                });
            }
        })?;
        rows.append(self.flow_rows(cluster, recovery, &result.flows));
        let edges = (1..).zip(result.edges.into_iter().flatten());
        rows.memory.extend(edges.map(|(edge, counts)| MemoryRow {
            run: self.number,
            failover_s,
            recovery,
            seed,
            flows: cluster.flows(),
            edge,
            peak_packets: counts.cache.peak_packets,
            peak_bytes: counts.cache.peak_bytes,
        }));
        Ok(rows)
    }

    fn flow_rows(&self, cluster: &ClusterScenario, recovery: RecoveryPolicy, flows: &[FlowResult]) -> Rows {
        let row = |flow: &FlowResult| FlowRow {
            run: self.number,
            variant: variant_name(cluster.tcp.variant).to_owned(),
            failover_s: cluster.failover.as_secs_f64(),
            recovery,
            seed: cluster.seed,
            arrival_s: seconds(flow.start),
            completion_s: flow.completion_s(),
            timeouts: flow.timeouts,
            syn_timeouts: flow.syn_timeouts,
            retransmitted_segments: flow.retransmitted,
            threshold_segments: flow.threshold,
        };
        Rows {
            flows: flows.iter().map(row).collect(),
            ..Rows::default()
        }
    }

    fn strings_rows(&self, rate: &RateScenario, of: StringsRun, sampled: usize, result: &RateResult) -> Rows {
        let run = self.number;
        let StringsRun {
            buffer_packets,
            rate_control,
            seed,
        } = of;
        let counts = starved_bins(rate, result);
        let transfers = result.flows.iter().zip(counts).enumerate();
        let transfers = transfers.map(|(flow, (of, (bins, starved_bins)))| TransferRow {
            run,
            buffer_packets,
            rate_control,
            seed,
            flow,
            waited: of.waited,
            start_s: seconds(of.result.start),
            completion_s: of.result.completion_s(),
            timeouts: of.result.timeouts,
            retransmitted_segments: of.result.retransmitted,
            bins,
            starved_bins,
        });
        let bins = result.bins.iter().map(|bin| BinRow {
            run,
            buffer_packets,
            rate_control,
            seed,
            end_s: seconds(bin.end),
            passed_mbps: mbps(bin.delivered[0], rate.bin.as_secs_f64()),
            failover_mbps: mbps(bin.delivered[1], rate.bin.as_secs_f64()),
            wire_mbps: (bin.sent[0] + bin.sent[1]) as f64 * 8e-6 / rate.bin.as_secs_f64(),
            dropped_packets: bin.overflows,
        });
        let queue = result.queue.iter().map(|(at, packets)| QueueRow {
            run,
            buffer_packets,
            rate_control,
            seed,
            time_s: seconds(*at),
            packets: *packets,
        });
        let (shares, fairness) = self.share_rows(of, sampled, rate.tcp.variant == TcpVariant::Rack, result);
        Rows {
            transfers: transfers.collect(),
            bins: bins.collect(),
            queue: queue.collect(),
            shares,
            fairness,
            ..Rows::default()
        }
    }

    fn share_rows(
        &self,
        of: StringsRun,
        sampled: usize,
        is_today: bool,
        result: &RateResult,
    ) -> (Vec<ShareRow>, Vec<FairnessRow>) {
        let run = self.number;
        let StringsRun {
            buffer_packets,
            rate_control,
            seed,
        } = of;
        let (mut shares, mut fairness) = (Vec::new(), Vec::new());
        for (bin, bytes) in (1_u32..).zip(&result.flow_bins) {
            let end_s = f64::from(bin) * FLOW_BIN_S;
            let got = shares_of(result, bin as usize - 1, is_today);
            let jain_index = jain(got.iter().map(|bytes| *bytes as f64));
            fairness.push(FairnessRow {
                run,
                buffer_packets,
                rate_control,
                seed,
                end_s,
                active_flows: got.len(),
                jain_index,
            });
            for flow in sample(bytes.len(), sampled) {
                shares.push(ShareRow {
                    run,
                    buffer_packets,
                    rate_control,
                    seed,
                    end_s,
                    flow,
                    mbps: mbps(bytes[flow], FLOW_BIN_S),
                });
            }
        }
        (shares, fairness)
    }
}

/// For each flow, two numbers of half seconds after the failover's end. The first number counts the half seconds throughout which the flow
/// was active. The second number counts those in which the flow also got less than half of an equal share of the bytes of all active flows.
fn starved_bins(rate: &RateScenario, result: &RateResult) -> Vec<(u32, u32)> {
    let over_s = (rate.failure_at + rate.failover).as_secs_f64();
    let mut counts = vec![(0, 0); result.flows.len()];
    for (bin, bytes) in (1_u32..).zip(&result.flow_bins) {
        let end_s = f64::from(bin) * FLOW_BIN_S;
        let active = active(result, end_s);
        if end_s - FLOW_BIN_S < over_s || active.len() < 2 {
            continue;
        }
        let all: u64 = active.iter().map(|flow| bytes[*flow]).sum();
        let share = all as f64 / active.len() as f64;
        for flow in active {
            counts[flow].0 += 1;
            counts[flow].1 += u32::from((bytes[flow] as f64) < share / 2.0);
        }
    }
    counts
}

/// Indices of `count` flows, evenly spaced among all `flows` flows. The selected flows alternate between the two strings.
fn sample(flows: usize, count: usize) -> impl Iterator<Item = usize> {
    let even = move |index: usize| (index * flows / count) / 2 * 2;
    (0..count).map(move |index| (even(index) + index % 2).min(flows - 1))
}

/// Bytes that each active flow got in a half second. The thesis counts bytes in order. With today's hosts, bytes count when they arrive, in
/// any order: one retransmitted segment delivers all data that waited for it, so bytes in order say little about a flow's share.
fn shares_of(result: &RateResult, bin: usize, is_today: bool) -> Vec<u64> {
    match result.shares.get(bin).filter(|_| is_today) {
        Some(shares) => shares.iter().flatten().copied().collect(),
        None => {
            let active = active(result, (bin + 1) as f64 * FLOW_BIN_S);
            active.iter().map(|flow| result.flow_bins[bin][*flow]).collect()
        }
    }
}

/// The flows that were active throughout the bin that ends at `end_s`.
fn active(result: &RateResult, end_s: f64) -> Vec<usize> {
    let flows = result.flows.iter().enumerate();
    let throughout = flows.filter(|(_, flow)| {
        seconds(flow.result.start) <= end_s - FLOW_BIN_S
            && flow.result.end.is_none_or(|end| seconds(end) >= end_s)
    });
    throughout.map(|(index, _)| index).collect()
}

/// Jain's index: 1 if all n values are equal, 1/n if all but one are zero, 1 without values.
pub fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, squares) = values.fold((0.0, 0.0, 0.0), |(count, sum, squares), value| {
        (count + 1.0, sum + value, squares + value * value)
    });
    if squares == 0.0 {
        1.0
    } else {
        sum * sum / (count * squares)
    }
}

/// Throughput in Mbit/s, including headers.
fn mbps(bytes: u64, over_s: f64) -> f64 {
    bytes as f64 * WIRE_BYTES_PER_DATA_BYTE * 8e-6 / over_s
}

fn seconds(at: Instant) -> f64 {
    at.since(Instant::ZERO).as_secs_f64()
}

/// A variant's name in the thesis and in ns-2's results.
pub const fn variant_name(variant: TcpVariant) -> &'static str {
    match variant {
        TcpVariant::Tahoe => "Tahoe",
        TcpVariant::Reno => "Reno",
        TcpVariant::NewReno => "NewReno",
        TcpVariant::Sack | TcpVariant::Sack1 => "SACK",
        TcpVariant::Rack => "RACK-TLP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_1_for_equals_and_1_nth_for_one_who_has_all() {
        assert_eq!(jain([3.0; 4].into_iter()), 1.0);
        assert_eq!(jain([5.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
        assert_eq!(jain([].into_iter()), 1.0);
    }

    #[test]
    fn samples_are_of_both_strings() {
        assert_eq!(sample(100, 4).collect::<Vec<_>>(), [0, 25, 50, 75]);
        assert_eq!(sample(2, 2).collect::<Vec<_>>(), [0, 1]);
    }
}
