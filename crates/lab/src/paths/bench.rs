//! `bench paths`: compares one SCTP association of ours with usrsctp, TCP and Multipath TCP, and our tunnel with ssh tunnels, in the same
//! network.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use linux::netns::Netns;
use serde::Serialize;

use super::carrier::{Carrier, CarrierKind, HostsUsage};
use super::figures::PeerFigures;
use super::network::{CUT_FIRST, PathsNetwork};
use super::peer::SCTP_PEER_PORT;
use super::tcp::{GIVES_UP, TCP_PEER_PORT};
use crate::edge::fault::nft;
use crate::process::{self, LoggedProcess};
use crate::run::{DaemonOption, LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;

/// Source text of the program that uses usrsctp.
const USRSCTP: &str = include_str!("../../../linux/tests/kernel/support/usrsctp_peer.c");
/// Time limit for one transfer.
const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of a message.
const MESSAGE: usize = 16_000;
/// Bytes of a transfer during which a path is cut.
const CUT_BYTES: u64 = 50_000_000;
/// Rate of the links during such a transfer.
const CUT_RATE: &str = "200mbit";
/// Time from the start of such a transfer to the cut.
const CUT_AFTER: Duration = Duration::from_millis(500);

/// Largest peak memory of an end of our association: 8 MB of code (a program that only copies to TCP has that much), and the send buffer and the
/// receive buffer of 4 MiB each, twice because of the allocator. Measured: 10 MB.
const MEMORY_MAX_MB: f64 = 24.0;
/// Longest stall of our association after a cut: five of the shortest retransmission timeouts (200 ms). A second timeout in a row would end
/// after three of them; the rest is for a machine that does other work.
const STALL_MAX_MS: u64 = 1000;

/// Compare throughput and CPU time of one SCTP association over UDP with usrsctp, TCP and Multipath TCP, and of a TCP connection through
/// `steadfast tunnel` with one through an ssh tunnel. Also show the effect of a cut path on each of them.
///
/// The stacks take turns in the same network: two namespaces and two veth cables. One end sends messages of 16,000 bytes, and both ends'
/// CPU time counts. The targets compare our medians over the rounds with usrsctp's medians. TCP and Multipath TCP run in the kernel, which
/// moves whole super-packets over a veth cable, so their results show what a local cable allows. `tunnel` is a TCP connection through
/// `steadfast tunnel`, and `ssh` is one through the first of two ssh tunnels, one per path. Both encrypt, and the CPU time of their programs
/// counts. At the end, each stack moves 50 MB over
/// cables of 200 Mbit/s, and the first cable is cut silently after half a second. Our association must survive this with a stall of at most
/// a second, and an end of it may use at most 49 MB of memory.
#[derive(Clone, Debug, Args)]
pub struct PathsBenchOptions {
    /// Megabytes (10⁶ bytes) of each transfer.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    mb: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonOption,
}

/// A stack that takes part in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathsRival {
    Steadfast,
    Usrsctp,
    Tcp,
    Mptcp,
    Tunnel,
    Ssh,
}

impl PathsRival {
    const ALL: [Self; 6] = [
        Self::Steadfast,
        Self::Usrsctp,
        Self::Tcp,
        Self::Mptcp,
        Self::Tunnel,
        Self::Ssh,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Steadfast => "steadfast",
            Self::Usrsctp => "usrsctp",
            Self::Tcp => "tcp",
            Self::Mptcp => "mptcp",
            Self::Tunnel => "tunnel",
            Self::Ssh => "ssh",
        }
    }

    /// The programs that carry the connection. `None` if the ends are connected directly.
    const fn carrier(self) -> Option<CarrierKind> {
        match self {
            Self::Steadfast | Self::Usrsctp | Self::Tcp | Self::Mptcp => None,
            Self::Tunnel => Some(CarrierKind::Tunnel),
            Self::Ssh => Some(CarrierKind::Ssh),
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PathsBenchSample {
    mbit_per_s: f64,
    cpu_s_per_gb: f64,
    /// Peak memory of the end that used more, including the program's code.
    memory_mb: f64,
}

/// Effect of a cut path.
#[derive(Clone, Copy, Debug, Serialize)]
struct PathsBenchCut {
    /// Whether all bytes arrived, without a gap of [`GIVES_UP`] or longer.
    survived: bool,
    /// Longest time without data.
    stall_ms: u64,
}

#[derive(Debug, Serialize)]
struct PathsBenchRival {
    name: &'static str,
    median: PathsBenchSample,
    cut: PathsBenchCut,
}

#[derive(Debug, Serialize)]
struct PathsBenchReport {
    ok: bool,
    rounds: u32,
    /// Load average of this machine at the start.
    load: f64,
    throughput_ratio_vs_usrsctp: f64,
    cpu_per_gb_ratio_vs_usrsctp: f64,
    rivals: Vec<PathsBenchRival>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a step fails. A missed target is no error.
pub fn run(options: &PathsBenchOptions) -> Result<LabOutcome> {
    let load = std::fs::read_to_string("/proc/loadavg").context("/proc/loadavg")?;
    let load = load.split(' ').next().and_then(|word| word.parse().ok());
    let teardown = Teardown::start()?;
    let rivals = measure_all(options, &teardown);
    teardown.finish()?;
    let rivals = rivals?;
    let of = |rival: PathsRival| {
        let found = rivals.iter().find(|one| one.name == rival.name());
        found.context("each stack was measured").map(|one| one.median)
    };
    let (own, other) = (of(PathsRival::Steadfast)?, of(PathsRival::Usrsctp)?);
    let throughput = own.mbit_per_s / other.mbit_per_s;
    let cpu = own.cpu_s_per_gb / other.cpu_s_per_gb;
    let survives = rivals.iter().any(|one| {
        one.name == PathsRival::Steadfast.name() && one.cut.survived && one.cut.stall_ms <= STALL_MAX_MS
    });
    let report = PathsBenchReport {
        ok: throughput >= 1.0 && cpu <= 1.0 && own.memory_mb <= MEMORY_MAX_MB && survives,
        rounds: options.rounds,
        load: load.unwrap_or(f64::NAN),
        throughput_ratio_vs_usrsctp: throughput,
        cpu_per_gb_ratio_vs_usrsctp: cpu,
        rivals,
    };
    conclude(options.json, report.ok, &report, || {
        say!(
            "throughput {throughput:.2} times usrsctp's, CPU per GB {cpu:.2} times; load average at the start {:.2}",
            report.load
        );
        for rival in &report.rivals {
            let (median, cut) = (rival.median, rival.cut);
            say!(
                "{:<9} {:>6.0} Mbit/s, {:>5.2} CPU s/GB, {:>4.0} MB; path cut: {}, longest gap {} ms",
                rival.name,
                median.mbit_per_s,
                median.cpu_s_per_gb,
                median.memory_mb,
                if cut.survived { "survived" } else { "LOST" },
                cut.stall_ms
            );
        }
    })
}

/// The network and the programs of the benchmark.
struct PathsBench {
    network: PathsNetwork,
    directory: PathBuf,
    own: PathBuf,
    daemon: PathBuf,
    usrsctp: PathBuf,
}

fn measure_all(options: &PathsBenchOptions, teardown: &Teardown) -> Result<Vec<PathsBenchRival>> {
    let name = format!("{}p", std::process::id());
    let directory = in_memory(&name, teardown)?;
    let network = PathsNetwork::build(&name, teardown)?;
    allow_mptcp(&network)?;
    let bench = PathsBench {
        usrsctp: compile(&directory)?,
        own: std::env::current_exe().context("this program's path")?,
        daemon: options.daemon.path()?,
        network,
        directory,
    };
    let mut samples: [Vec<PathsBenchSample>; 6] = Default::default();
    for round in 0..options.rounds {
        for (rival, samples) in PathsRival::ALL.into_iter().zip(&mut samples) {
            samples.push(bench.sample(rival, round, options.mb)?);
        }
    }
    let finish = |(rival, samples): (PathsRival, Vec<PathsBenchSample>)| -> Result<_> {
        Ok(PathsBenchRival {
            name: rival.name(),
            median: median(&samples),
            cut: bench.cut(rival)?,
        })
    };
    bench.slow_down()?;
    PathsRival::ALL.into_iter().zip(samples).map(finish).collect()
}

/// Sets up Multipath TCP: the far host announces its second address, and the near host opens a subflow to this address.
fn allow_mptcp(network: &PathsNetwork) -> Result<()> {
    for (host, words) in [
        (&network.near, "mptcp limits set subflow 2 add_addr_accepted 2"),
        (&network.far, "mptcp limits set subflow 2 add_addr_accepted 2"),
        (&network.far, "mptcp endpoint add 10.2.0.2 dev p1 signal"),
    ] {
        let mut command = host.command("ip")?;
        process::output(command.args(words.split(' ')), &format!("ip {words}"))?;
    }
    Ok(())
}

/// Compiles the program that uses usrsctp. Returns the path of the executable.
fn compile(directory: &Path) -> Result<PathBuf> {
    let (source, program) = (directory.join("usrsctp.c"), directory.join("usrsctp"));
    std::fs::write(&source, USRSCTP).with_context(|| source.display().to_string())?;
    let mut command = Command::new("cc");
    command
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(&source)
        .args(["-lusrsctp", "-lpthread"]);
    process::output(&mut command, "cc (needs libusrsctp-dev)")?;
    Ok(program)
}

impl PathsBench {
    /// The program and its arguments for one end of a transfer: the receiver if `listens`, otherwise the sender.
    fn program(&self, rival: PathsRival, bytes: u64, listens: bool) -> (&Path, Vec<String>) {
        let (own, to) = if listens { ("2", None) } else { ("1", Some("2")) };
        let text = match rival {
            PathsRival::Usrsctp => {
                let way = if listens { "listen sink" } else { "connect source" };
                format!("{way} {bytes} {MESSAGE} 9899 9899 {SCTP_PEER_PORT} 1 10.1.0.2 10.2.0.2")
            }
            PathsRival::Steadfast => {
                let to = to.map_or_else(String::new, |_| " --to 10.1.0.2".to_owned());
                format!("sctp-peer --bytes {bytes} --message {MESSAGE} --via 10.1.0.{own},10.2.0.{own}{to}")
            }
            PathsRival::Tcp | PathsRival::Mptcp => {
                let to = to.map_or_else(String::new, |_| " --to 10.1.0.2".to_owned());
                let kind = if rival == PathsRival::Mptcp {
                    " --mptcp"
                } else {
                    ""
                };
                // A listener at all addresses also accepts the subflows to the second address.
                let via = if listens { "0.0.0.0" } else { "10.1.0.1" };
                format!("tcp-peer --bytes {bytes} --message {MESSAGE} --via {via}{to}{kind}")
            }
            PathsRival::Tunnel | PathsRival::Ssh => {
                let port = rival.carrier().map_or(TCP_PEER_PORT, CarrierKind::port);
                let to = to.map_or_else(String::new, |_| format!(" --to 127.0.0.1 --port {port}"));
                format!("tcp-peer --bytes {bytes} --message {MESSAGE} --via 127.0.0.1{to}")
            }
        };
        let program: &Path = match rival {
            PathsRival::Usrsctp => &self.usrsctp,
            PathsRival::Steadfast
            | PathsRival::Tcp
            | PathsRival::Mptcp
            | PathsRival::Tunnel
            | PathsRival::Ssh => &self.own,
        };
        (program, text.split(' ').map(str::to_owned).collect())
    }

    fn start(
        &self,
        host: &Netns,
        rival: PathsRival,
        label: &str,
        bytes: u64,
        listens: bool,
    ) -> Result<LoggedProcess> {
        let (program, words) = self.program(rival, bytes, listens);
        let mut command = host.command(program)?;
        command.args(words);
        let role = if listens { "sink" } else { "source" };
        let label = format!("{role}-{}-{label}", rival.name());
        Ok(LoggedProcess::start(&label, command, &self.directory)?)
    }

    /// Measures a transfer of `mb` megabytes.
    fn sample(&self, rival: PathsRival, round: u32, mb: u64) -> Result<PathsBenchSample> {
        let hosts = [&self.network.near, &self.network.far];
        let _carrier = self.carrier(rival)?;
        let before = HostsUsage::of(&hosts)?;
        let (from, to) = self.transfer(rival, &round.to_string(), mb * 1_000_000, || Ok(()))?;
        let from = PeerFigures::read(&from).with_context(|| format!("{}'s sender", rival.name()))?;
        ensure!(to.moved == mb * 1_000_000, "{} lost data: {to:?}", rival.name());
        // Both ends are gone, so these are the programs that carry the connection.
        let carriers = HostsUsage::of(&hosts)?;
        let gb = mb as f64 / 1e3;
        let cpu = from.cpu + to.cpu + carriers.cpu.saturating_sub(before.cpu);
        let memory_kb = from.memory_kb.max(to.memory_kb).max(carriers.memory_kb);
        Ok(PathsBenchSample {
            mbit_per_s: gb * 8e3 / to.took.as_secs_f64(),
            cpu_s_per_gb: cpu.as_secs_f64() / gb,
            memory_mb: memory_kb as f64 / 1e3,
        })
    }

    fn carrier(&self, rival: PathsRival) -> Result<Option<Carrier>> {
        let start = |kind| Carrier::start(kind, &self.network, &self.daemon, &self.directory);
        rival.carrier().map(start).transpose()
    }

    /// Runs a transfer, and calls `meanwhile` once the sender has started. Returns the sender's output and the receiver's figures. If a path
    /// was cut, the sender may have ended without figures.
    fn transfer(
        &self,
        rival: PathsRival,
        label: &str,
        bytes: u64,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<(String, PeerFigures)> {
        let mut sink = self.start(&self.network.far, rival, label, bytes, true)?;
        sink.wait_until("be ready", PATIENCE, |process| process.output().contains("ready"))?;
        let mut source = self.start(&self.network.near, rival, label, bytes, false)?;
        meanwhile()?;
        sink.wait(PATIENCE)?;
        source.wait(PATIENCE)?;
        let to = PeerFigures::read(&sink.output()).with_context(|| format!("{}'s receiver", rival.name()))?;
        ensure!(to.wrong == 0, "the content differs: {to:?}");
        Ok((source.output(), to))
    }

    /// Limits the rate of the cables, so that a transfer takes some seconds.
    fn slow_down(&self) -> Result<()> {
        for host in [&self.network.near, &self.network.far] {
            for device in ["p0", "p1"] {
                let words = format!("qdisc add dev {device} root tbf rate {CUT_RATE} burst 64kb limit 512kb");
                let mut command = host.command("tc")?;
                process::output(command.args(words.split(' ')), &format!("tc {words}"))?;
            }
        }
        Ok(())
    }

    /// Runs a transfer and cuts the first path [`CUT_AFTER`] after its start. Restores the path afterwards.
    fn cut(&self, rival: PathsRival) -> Result<PathsBenchCut> {
        let hosts = [&self.network.near, &self.network.far];
        let _carrier = self.carrier(rival)?;
        let (_, to) = self.transfer(rival, "cut", CUT_BYTES, || {
            std::thread::sleep(CUT_AFTER);
            hosts.iter().try_for_each(|host| nft(host, CUT_FIRST))
        })?;
        for host in hosts {
            nft(host, "delete table inet cut")?;
        }
        Ok(PathsBenchCut {
            survived: to.moved == CUT_BYTES && to.gap < GIVES_UP,
            stall_ms: to.gap.as_millis() as u64,
        })
    }
}

fn median(samples: &[PathsBenchSample]) -> PathsBenchSample {
    let of = |read: fn(&PathsBenchSample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(read).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    PathsBenchSample {
        mbit_per_s: of(|sample| sample.mbit_per_s),
        cpu_s_per_gb: of(|sample| sample.cpu_s_per_gb),
        memory_mb: of(|sample| sample.memory_mb),
    }
}
