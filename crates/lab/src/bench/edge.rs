//! `bench edge`: two edges against the kernel's own forwarding in the same network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use etherparse::PacketBuilder;
use indicatif::ProgressBar;
use linux::netns::Netns;
use linux::packet_socket::{PacketSocket, VIRTIO_HEADER};
use serde::Serialize;

use super::calibration::Calibration;
use super::measure::{self, Bulk, CpuTimes};
use super::options::BenchRunOptions;
use super::target::{self, BenchTarget, BenchVerdict, Bound, median};
use crate::edge::address::SERVER;
use crate::edge::daemon::{EdgeSetup, RecoverySetup, SteeredString};
use crate::edge::fault::nft;
use crate::edge::network::{ClusterPlace, EdgeTopology, EdgeTopologyOptions};
use crate::net::INTERFACE;
use crate::net::congestion::CUBIC;
use crate::node::{PatternFiles, ServerProcess, ServerSoftware};
use crate::process;
use crate::run::{LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;

const SEED: u64 = 1;
/// Bytes of one bulk transfer.
const BULK_BYTES: u64 = 1_000_000_000;
/// Number of bulk transfers in a turn. One transfer takes a third of a CPU second, which is too short for a ratio of 1.1.
const BULKS: usize = 4;
/// Payload bytes of a packet, chosen so that the frame has 64 bytes with its check sequence.
const PADDING: usize = 6;
/// The network of the generated flows' source addresses (RFC 2544 reserves this network for benchmarks). The servers drop these packets.
const SOURCES: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// Number of source ports of each generated address.
const PORTS: u32 = 1000;
const FIRST_PORT: u16 = 10_000;
const PACE: Duration = Duration::from_micros(500);
/// Time between two heartbeats. All processors are busy here, and a false alarm would end the comparison.
const CALM: Duration = Duration::from_millis(200);
/// Wait for the last packets to arrive at the servers.
const REST: Duration = Duration::from_millis(300);

/// CPU time of packets through two edges, against the kernel's own forwarding.
///
/// Three variants take turns in the same network: forwarding by the kernel, edges that are idle, and edges that cache all packets
/// (`caching_after = 0`). In each turn, a generator opens new flows at a fixed rate, then sends packets of 64 bytes over all these
/// flows, then TCP connections transfer 1 GB each, one after the other. The CPU time is that of the whole machine, with hosts and nodes
/// but without other programs, so only ratios mean something. A ratio compares the turns of one round; the result is the median over
/// the rounds. Edges may take 1.1 times the kernel's time for bulk and 1.3 times for small packets. While caching they may take 1.3 and
/// 1.5 times. `other_cpus` is the number of CPUs that other programs used meanwhile: they also take cache and memory bandwidth, which
/// no ratio shows.
#[derive(Clone, Debug, Args)]
pub struct EdgeBenchOptions {
    /// Number of flows.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    flows: u32,
    /// New flows per second.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    new_per_s: u32,
    /// Number of packets of 64 bytes.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..=100_000_000))]
    packets: u32,
    #[command(flatten)]
    common: BenchRunOptions,
}

/// The forwarder between the outside ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EdgeBenchVariant {
    Forwarding,
    Idle,
    Caching,
}

const VARIANTS: [EdgeBenchVariant; 3] = [
    EdgeBenchVariant::Forwarding,
    EdgeBenchVariant::Idle,
    EdgeBenchVariant::Caching,
];

/// Measurements of one turn, or their medians.
#[derive(Clone, Copy, Debug, Serialize)]
struct EdgeBenchSample {
    cpu_s_per_gb: f64,
    gb_per_s: f64,
    cpu_s_per_million_packets: f64,
    packets_per_s: f64,
    /// Fraction of the packets that did not reach the servers.
    packets_lost: f64,
    cpu_s_per_million_new_flows: f64,
    new_flows_per_s: f64,
    /// Fraction of the new flows whose first packet did not reach the servers.
    new_flows_lost: f64,
    /// Flows in R1's table at the end.
    flows_known: f64,
    /// Packets that both edges copied for their caches.
    copies: f64,
    /// Fraction of the copies for which an edge's ring had no room.
    copies_lost: f64,
    /// Number of CPUs that other programs used.
    other_cpus: f64,
}

/// The results: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
struct EdgeBenchReport {
    ok: bool,
    rounds: u32,
    flows: u32,
    calibration: Calibration,
    cpu_per_gb_ratio_idle: f64,
    cpu_per_gb_ratio_caching: f64,
    cpu_per_packet_ratio_idle: f64,
    cpu_per_packet_ratio_caching: f64,
    cpu_per_new_flow_ratio_idle: f64,
    forwarding: EdgeBenchSample,
    idle: EdgeBenchSample,
    caching: EdgeBenchSample,
    /// Whether other programs used more than [`OTHER_CPUS_MAX`] CPUs in a variant's turns. Then the ratios are those of a busy machine.
    disturbed: bool,
    verdicts: Vec<BenchVerdict>,
    missed: Vec<String>,
    #[serde(skip)]
    targets: Vec<BenchTarget>,
}

/// Share of the new flows' packets that edges may lose, in addition to the share that the kernel loses. It is not zero, because the
/// generator overruns queues on a busy machine.
const LOST_MAX: f64 = 0.001;
/// As [`LOST_MAX`], for packets that are sent as fast as possible. A lost packet costs less CPU time, so a variant that loses more packets
/// would only seem cheaper.
const LOST_AT_ONCE_MAX: f64 = 0.02;
/// Share of the copies that may be lost. A copy that is lost costs less CPU time, too.
const COPIES_LOST_MAX: f64 = 0.01;
/// Number of CPUs that other programs may use without disturbing the measurement.
const OTHER_CPUS_MAX: f64 = 0.2;
/// Share of the required rate of new flows that must be reached.
const RATE_MIN: f64 = 0.95;

/// Runs the benchmark.
///
/// # Errors
/// If a step fails. A missed target is no error.
pub fn run(options: &EdgeBenchOptions) -> Result<LabOutcome> {
    let common = &options.common;
    let daemon = common.daemon.path()?;
    let calibration = Calibration::measure();
    let teardown = Teardown::start()?;
    let samples = measure_all(options, &daemon, &teardown);
    teardown.finish()?;
    let report = EdgeBenchReport::of(options, calibration, &samples?);
    conclude(common.json, report.ok, &report, || report.print())
}

/// The network, the server and the generator's frames.
struct EdgeBench<'a> {
    network: EdgeTopology,
    service: SocketAddr,
    frames: Vec<Vec<u8>>,
    socket: PacketSocket,
    directory: &'a Path,
    daemon: &'a Path,
    teardown: &'a Teardown,
    name: String,
    _server: ServerProcess,
}

fn measure_all(
    options: &EdgeBenchOptions,
    daemon: &Path,
    teardown: &Teardown,
) -> Result<[Vec<EdgeBenchSample>; 3]> {
    let name = format!("{}e", std::process::id());
    let directory = in_memory(&name, teardown)?;
    let bench = EdgeBench::set(name, options, &directory, daemon, teardown)?;
    let mut samples = [Vec::new(), Vec::new(), Vec::new()];
    let progress = ProgressBar::new(u64::from(options.common.rounds) * VARIANTS.len() as u64);
    for round in 0..options.common.rounds as usize {
        for turn in 0..VARIANTS.len() {
            let index = (turn + round) % VARIANTS.len();
            progress.set_message(format!("{:?}", VARIANTS[index]));
            samples[index].push(bench.measure(VARIANTS[index], options)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(samples)
}

impl<'a> EdgeBench<'a> {
    fn set(
        name: String,
        options: &EdgeBenchOptions,
        directory: &'a Path,
        daemon: &'a Path,
        teardown: &'a Teardown,
    ) -> Result<Self> {
        let topology = EdgeTopologyOptions {
            nodes: 2,
            lanes: 1,
            place: ClusterPlace::NearServers,
            rtt: Duration::ZERO,
            strings: Vec::new(),
            congestion: CUBIC.to_owned(),
            single_packets: false,
        };
        let network = EdgeTopology::build(&name, &topology, teardown).context("build the network")?;
        let content = PatternFiles::generate(directory, &[(SEED, BULK_BYTES)])?;
        let server = ServerProcess::start(
            ServerSoftware::Nginx,
            &network.servers,
            directory,
            "nginx",
            &content,
            1,
        )?;
        nft(
            &network.servers,
            &format!(
                "table ip sources {{ chain early {{ type filter hook prerouting priority -300\nip saddr {SOURCES}/15 drop\n}}\n}}\n"
            ),
        )?;
        let macs = [mac(&network.clients)?, mac(&network.lanes[0][0])?];
        let socket = network.clients.run(|| PacketSocket::open(INTERFACE))??;
        let frames = (0..options.flows).map(|flow| frame(flow, macs));
        Ok(Self {
            frames: frames.collect::<Result<_>>()?,
            socket,
            service: SocketAddr::new(IpAddr::V4(SERVER.v4()), ServerSoftware::Nginx.port()),
            network,
            directory,
            daemon,
            teardown,
            name,
            _server: server,
        })
    }

    fn setup(&self, variant: EdgeBenchVariant) -> EdgeSetup {
        let string = |weight| SteeredString { weight, mbit: 1e5 };
        EdgeSetup {
            binary: self.daemon.to_owned(),
            run: self.name.clone(),
            lane: 0,
            ipv6: false,
            strings: vec![string(1), string(0)],
            heartbeat: CALM,
            delay: Duration::ZERO,
            command: Vec::new(),
            recovery: RecoverySetup {
                caching_after: if variant == EdgeBenchVariant::Caching {
                    0
                } else {
                    2
                },
                ..RecoverySetup::default()
            },
            is_rate_controlled: true,
            rtt: None,
        }
    }

    fn measure(&self, variant: EdgeBenchVariant, options: &EdgeBenchOptions) -> Result<EdgeBenchSample> {
        let edges = match variant {
            EdgeBenchVariant::Forwarding => None,
            variant => Some(
                self.setup(variant)
                    .start(&self.network, self.directory, self.teardown)?,
            ),
        };
        let (before, begun) = (CpuTimes::now()?, Instant::now());
        let opened = self.send(options.flows, Some(options.new_per_s), true)?;
        let passed = self.send(options.packets, None, false)?;
        let path = format!("/{}", pattern::file_name(SEED, BULK_BYTES));
        let bulks = (0..BULKS).map(|_| measure::download(&self.network.clients, self.service, &path));
        let bulks: Vec<_> = bulks.collect::<Result<_>>()?;
        let mean = |value: fn(&Bulk) -> f64| bulks.iter().map(value).sum::<f64>() / BULKS as f64;
        let others_s = CpuTimes::now()?.others_s - before.others_s;
        let other_cpus = others_s / begun.elapsed().as_secs_f64();
        let (mut flows_known, mut copied, mut lost) = (0, 0, 0);
        if let Some(edges) = edges {
            let status = edges.status(&self.network)?;
            flows_known = status[0].flows;
            let counted = |name| status.iter().map(|edge| edge.counter(name)).sum::<u64>();
            (copied, lost) = (counted("copied"), counted("copy_lost"));
            let failures: u64 = status[0].strings.iter().map(|string| string.epoch).sum();
            ensure!(failures == 0, "a false alarm: {status:?}");
            edges.stop()?;
        }
        Ok(EdgeBenchSample {
            cpu_s_per_gb: mean(|bulk| bulk.cpu_s_per_gb),
            gb_per_s: mean(|bulk| bulk.gb_per_s),
            cpu_s_per_million_packets: passed.cpu_s_per_million,
            packets_per_s: passed.per_s,
            packets_lost: passed.lost,
            cpu_s_per_million_new_flows: opened.cpu_s_per_million,
            new_flows_per_s: opened.per_s,
            new_flows_lost: opened.lost,
            flows_known: flows_known as f64,
            copies: copied as f64,
            copies_lost: lost as f64 / (copied + lost).max(1) as f64,
            other_cpus,
        })
    }

    /// Sends `count` packets, one of each flow in turn: `per_s` packets per second, or as fast as possible.
    fn send(&self, count: u32, per_s: Option<u32>, syn: bool) -> Result<Generated> {
        let came = received(&self.network.servers)?;
        let before = CpuTimes::now()?;
        let start = Instant::now();
        let mut sent = 0;
        let mut frame = Vec::new();
        while sent < count {
            let due = per_s.map_or(count, |per_s| {
                count.min((start.elapsed().as_secs_f64() * f64::from(per_s)) as u32)
            });
            while sent < due {
                frame.clone_from(&self.frames[sent as usize % self.frames.len()]);
                if syn {
                    frame[FLAGS] = SYN;
                }
                // If the kernel has no room for the frame, it is sent again.
                sent += u32::from(self.socket.send(&frame).context("send a packet")?);
            }
            if per_s.is_some() {
                std::thread::sleep(PACE);
            }
        }
        let took = start.elapsed();
        std::thread::sleep(REST);
        let busy_s = CpuTimes::now()?.ours_s - before.ours_s;
        let arrived = received(&self.network.servers)? - came;
        Ok(Generated {
            cpu_s_per_million: busy_s / f64::from(count) * 1e6,
            per_s: f64::from(count) / took.as_secs_f64(),
            lost: (1.0 - arrived as f64 / f64::from(count)).max(0.0),
        })
    }
}

/// The cost of a run of the generator.
struct Generated {
    cpu_s_per_million: f64,
    per_s: f64,
    lost: f64,
}

/// Position of the TCP flags in a generated frame.
const FLAGS: usize = VIRTIO_HEADER + 14 + 20 + 13;
const SYN: u8 = 2;

/// A packet of flow number `flow`, behind a virtio header. The checksum becomes wrong when `send` sets the SYN flag, but nobody verifies
/// the checksum.
fn frame(flow: u32, [from, to]: [[u8; 6]; 2]) -> Result<Vec<u8>> {
    let source = Ipv4Addr::from(u32::from(SOURCES) + 1 + flow / PORTS);
    let port = FIRST_PORT + (flow % PORTS) as u16;
    let mut frame = vec![0; VIRTIO_HEADER];
    PacketBuilder::ethernet2(from, to)
        .ipv4(source.octets(), SERVER.v4().octets(), 64)
        .tcp(port, ServerSoftware::Nginx.port(), 1, 64_240)
        .ack(1)
        .write(&mut frame, &[0; PADDING])?;
    Ok(frame)
}

/// The MAC address of the interface [`INTERFACE`] of `host`.
fn mac(host: &Netns) -> Result<[u8; 6]> {
    let mut command = host.command("ip")?;
    command.args(["-j", "link", "show", "dev", INTERFACE]);
    let text = process::output(&mut command, "ip link show")?;
    let links: serde_json::Value = serde_json::from_str(&text)?;
    let address = links[0]["address"]
        .as_str()
        .context("an interface without an address")?;
    let bytes: Vec<u8> = address
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<_, _>>()?;
    bytes.try_into().ok().context("an address of six bytes")
}

/// Number of frames that the interface of `host` has received.
fn received(host: &Netns) -> Result<u64> {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
    let line = text.lines().find_map(|line| line.trim().strip_prefix(INTERFACE));
    let numbers = line.and_then(|line| line.strip_prefix(':')).unwrap_or_default();
    let packets = numbers.split_whitespace().nth(1);
    packets
        .context("no counters of the interface")?
        .parse()
        .context("a counter")
}

impl EdgeBenchSample {
    /// The medians of all samples.
    fn median_of(samples: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| median(samples.iter().map(value).collect());
        Self {
            cpu_s_per_gb: of(|one| one.cpu_s_per_gb),
            gb_per_s: of(|one| one.gb_per_s),
            cpu_s_per_million_packets: of(|one| one.cpu_s_per_million_packets),
            packets_per_s: of(|one| one.packets_per_s),
            packets_lost: of(|one| one.packets_lost),
            cpu_s_per_million_new_flows: of(|one| one.cpu_s_per_million_new_flows),
            new_flows_per_s: of(|one| one.new_flows_per_s),
            new_flows_lost: of(|one| one.new_flows_lost),
            flows_known: of(|one| one.flows_known),
            copies: of(|one| one.copies),
            copies_lost: of(|one| one.copies_lost),
            other_cpus: of(|one| one.other_cpus),
        }
    }
}

/// Median over the rounds of `value` of a variant, divided by that of the kernel's own forwarding in the same round.
fn ratio(
    variant: &[EdgeBenchSample],
    forwarding: &[EdgeBenchSample],
    value: fn(&EdgeBenchSample) -> f64,
) -> f64 {
    let rounds = variant.iter().zip(forwarding);
    median(rounds.map(|(own, kernel)| value(own) / value(kernel)).collect())
}

impl EdgeBenchReport {
    fn of(options: &EdgeBenchOptions, calibration: Calibration, samples: &[Vec<EdgeBenchSample>; 3]) -> Self {
        let [forwarding, idle, caching] = samples
            .each_ref()
            .map(|samples| EdgeBenchSample::median_of(samples));
        let is_disturbed = |one: &EdgeBenchSample| one.other_cpus > OTHER_CPUS_MAX;
        let of = |variant: usize, value| ratio(&samples[variant], &samples[0], value);
        let mut report = Self {
            ok: false,
            rounds: options.common.rounds,
            flows: options.flows,
            calibration,
            cpu_per_gb_ratio_idle: of(1, |one| one.cpu_s_per_gb),
            cpu_per_gb_ratio_caching: of(2, |one| one.cpu_s_per_gb),
            cpu_per_packet_ratio_idle: of(1, |one| one.cpu_s_per_million_packets),
            cpu_per_packet_ratio_caching: of(2, |one| one.cpu_s_per_million_packets),
            cpu_per_new_flow_ratio_idle: of(1, |one| one.cpu_s_per_million_new_flows),
            disturbed: [&forwarding, &idle, &caching].into_iter().any(is_disturbed),
            forwarding,
            idle,
            caching,
            verdicts: Vec::new(),
            missed: Vec::new(),
            targets: Vec::new(),
        };
        report.targets = report.targets(options);
        report.verdicts = report.targets.iter().map(BenchVerdict::from).collect();
        report.missed = target::missed(&report.targets);
        report.ok = report.missed.is_empty();
        report
    }

    fn targets(&self, options: &EdgeBenchOptions) -> Vec<BenchTarget> {
        let Self {
            forwarding,
            idle,
            caching,
            ..
        } = self;
        let lost = |one: &EdgeBenchSample| one.packets_lost - forwarding.packets_lost;
        let new_lost = |one: &EdgeBenchSample| one.new_flows_lost - forwarding.new_flows_lost;
        let rate = Bound::AtLeast(RATE_MIN * f64::from(options.new_per_s));
        let known = Bound::AtLeast(f64::from(options.flows));
        let target = |(name, value, bound)| BenchTarget { name, value, bound };
        [
            (
                "idle: CPU per GB, times the kernel's",
                self.cpu_per_gb_ratio_idle,
                Bound::AtMost(1.1),
            ),
            (
                "idle: CPU per packet, times the kernel's",
                self.cpu_per_packet_ratio_idle,
                Bound::AtMost(1.3),
            ),
            (
                "idle: packets lost, more than the kernel",
                lost(idle),
                Bound::AtMost(LOST_AT_ONCE_MAX),
            ),
            (
                "idle: new flows lost, more than the kernel",
                new_lost(idle),
                Bound::AtMost(LOST_MAX),
            ),
            ("idle: new flows per second", idle.new_flows_per_s, rate),
            ("idle: flows that R1 knows", idle.flows_known, known),
            (
                "caching: CPU per GB, times the kernel's",
                self.cpu_per_gb_ratio_caching,
                Bound::AtMost(1.3),
            ),
            (
                "caching: CPU per packet, times the kernel's",
                self.cpu_per_packet_ratio_caching,
                Bound::AtMost(1.5),
            ),
            (
                "caching: packets lost, more than the kernel",
                lost(caching),
                Bound::AtMost(LOST_AT_ONCE_MAX),
            ),
            (
                "caching: new flows lost, more than the kernel",
                new_lost(caching),
                Bound::AtMost(LOST_MAX),
            ),
            ("caching: new flows per second", caching.new_flows_per_s, rate),
            ("caching: flows that R1 knows", caching.flows_known, known),
            ("caching: copies", caching.copies, known),
            (
                "caching: copies lost",
                caching.copies_lost,
                Bound::AtMost(COPIES_LOST_MAX),
            ),
        ]
        .map(target)
        .into()
    }

    fn print(&self) {
        say!("{}", self.calibration);
        for (name, one) in [
            ("forwarding", &self.forwarding),
            ("idle", &self.idle),
            ("caching", &self.caching),
        ] {
            say!(
                "{name:<11} {:.3} CPU s/GB at {:.2} GB/s, {:.2} CPU s per million packets at {:.0}/s ({:.2} % lost), \
                 {:.2} per million new flows at {:.0}/s ({:.2} % lost), {:.0} flows known, {:.0} copies ({:.2} % lost); other programs used \
                 {:.2} CPUs",
                one.cpu_s_per_gb,
                one.gb_per_s,
                one.cpu_s_per_million_packets,
                one.packets_per_s,
                one.packets_lost * 100.0,
                one.cpu_s_per_million_new_flows,
                one.new_flows_per_s,
                one.new_flows_lost * 100.0,
                one.flows_known,
                one.copies,
                one.copies_lost * 100.0,
                one.other_cpus,
            );
        }
        target::print(&self.targets);
        if self.disturbed {
            say!(
                "  Other programs used the CPUs meanwhile, so the CPU times are those of a busy machine. Measure again."
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARDING: EdgeBenchSample = EdgeBenchSample {
        cpu_s_per_gb: 2.0,
        gb_per_s: 1.0,
        cpu_s_per_million_packets: 4.0,
        packets_per_s: 1e6,
        packets_lost: 0.0,
        cpu_s_per_million_new_flows: 8.0,
        new_flows_per_s: 20_000.0,
        new_flows_lost: 0.0,
        flows_known: 100_000.0,
        copies: 1e6,
        copies_lost: 0.0,
        other_cpus: 0.0,
    };

    #[derive(clap::Parser)]
    struct EdgeBenchLine {
        #[command(flatten)]
        options: EdgeBenchOptions,
    }

    /// The number of missed targets if the edges' sample is `variant`, idle and while caching.
    fn missed(variant: EdgeBenchSample) -> usize {
        let options = <EdgeBenchLine as clap::Parser>::parse_from(["edge"]).options;
        let samples = [vec![FORWARDING], vec![variant], vec![variant]];
        EdgeBenchReport::of(&options, Calibration::measure(), &samples)
            .missed
            .len()
    }

    #[test]
    fn a_cost_or_a_loss_beyond_a_limit_is_missed() {
        let costing = |per_gb, per_packet| EdgeBenchSample {
            cpu_s_per_gb: per_gb,
            cpu_s_per_million_packets: per_packet,
            ..FORWARDING
        };
        assert_eq!(missed(FORWARDING), 0);
        assert_eq!(missed(costing(2.19, 5.19)), 0);
        assert_eq!(missed(costing(2.21, 5.19)), 1);
        assert_eq!(missed(costing(2.21, 5.21)), 2);
        assert_eq!(missed(costing(2.61, 6.01)), 4);
        assert_eq!(
            missed(EdgeBenchSample {
                copies_lost: 0.011,
                ..FORWARDING
            }),
            1
        );
        assert_eq!(
            missed(EdgeBenchSample {
                new_flows_per_s: 18_000.0,
                ..FORWARDING
            }),
            2
        );
    }

    #[test]
    fn ratios_are_those_of_one_round() {
        let slow = EdgeBenchSample {
            cpu_s_per_gb: 20.0,
            ..FORWARDING
        };
        // The machine was slow in the second round.
        let variants = [FORWARDING, slow, FORWARDING];
        assert_eq!(ratio(&variants, &variants, |one| one.cpu_s_per_gb), 1.0);
    }
}
