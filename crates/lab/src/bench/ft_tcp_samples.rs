//! What `bench ft-tcp` measures, and how: services behind a node that only forwards packets, and behind a pair with each commit mode and with
//! a cold and a hot backup.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use serde::de::DeserializeOwned;

use super::load::{ExchangeTimes, LOAD, Transfer};
use super::outage::{self, OutageTrace};
use super::testbed::{BenchTestbed, BenchVariant, Serving};
use crate::node::PatternFiles;
use crate::run::in_memory;
use crate::teardown::Teardown;
use judge::CommitMode;

/// Rates of the client's link for the transfers.
pub const SHAPES_MBIT: [u32; 2] = [100, 1000];
/// Bytes of one transfer per Mbit/s of that rate, so that a transfer takes about 1.6 s.
const BYTES_PER_MBIT: u64 = 200_000;
/// Short requests of one round. The paper measured 30 in all.
const REQUESTS: u32 = 500;
/// The client's link for the paced clients, in Mbit/s; the rate of each client, in 1000 bytes per second; and for how long they send. With 21
/// clients, the headers fill the rest of the link.
const PACED_MBIT: u32 = 10;
pub const PACED_KILOBYTES: u32 = 50;
const PACED_SECONDS: u32 = 4;
/// Numbers of paced clients.
pub const PACED_CLIENTS: [u32; 4] = [1, 10, 20, 30];
/// Rate and duration of the stream (paper: 20 kB/s).
const STREAM_KILOBYTES: u32 = 20;
const STREAM_SECONDS: u32 = 3;
/// Bytes of input that are in the log at the takeovers: a smaller and a larger number. Their difference gives the time per byte.
pub const REPLAYED: [u64; 2] = [16_000_000, 144_000_000];
/// Heartbeats that must be missing (20 ms each). Benchmarks fill all CPUs, so a node waits longer than by default.
const MISSED: u32 = 25;
/// Time until the backup has followed what the client has sent.
const SETTLE: Duration = Duration::from_secs(1);
const TAKEOVER_LIMIT: Duration = Duration::from_secs(60);

/// The services whose throughput is measured.
pub const SERVICES: [(&str, Serving); 2] = [("ttcp", Serving::Sink), ("file server", Serving::Values)];

/// The paper's variants: *clean*, then each commit mode with a cold and a hot backup.
pub const VARIANTS: [(&str, BenchVariant); VARIANT_COUNT] = [
    ("clean", BenchVariant::Forwarding),
    ("immediate/cold", pair("replay", CommitMode::Immediate)),
    ("immediate/hot", pair("replica", CommitMode::Immediate)),
    ("pr/cold", pair("replay", CommitMode::Pr)),
    ("pr/hot", pair("replica", CommitMode::Pr)),
    ("prs/cold", pair("replay", CommitMode::Prs)),
    ("prs/hot", pair("replica", CommitMode::Prs)),
];
pub const VARIANT_COUNT: usize = 7;
/// Indices in [`VARIANTS`] of the default commit mode, cold and hot. The targets are those of this mode.
pub const PRS: [usize; 2] = [5, 6];

/// The commit modes, with a hot backup and the daemons' default detection, for the stall of a client at a takeover. With the detection of
/// [`VARIANTS`], the primary's lease would be over before the primary is declared dead.
pub const MODES: [(&str, BenchVariant); 3] = [
    ("immediate", quick(CommitMode::Immediate)),
    ("pr", quick(CommitMode::Pr)),
    ("prs", quick(CommitMode::Prs)),
];
/// The daemons' default number of missing heartbeats. Detection takes 80 ms.
const DEFAULT_MISSED: u32 = 4;

const fn quick(commit: CommitMode) -> BenchVariant {
    BenchVariant::Steadfast {
        missed: DEFAULT_MISSED,
        policy: "replica",
        commit,
    }
}

const fn pair(policy: &'static str, commit: CommitMode) -> BenchVariant {
    BenchVariant::Steadfast {
        missed: MISSED,
        policy,
        commit,
    }
}

/// One value for each of [`VARIANTS`].
pub type PerVariant<T> = [T; VARIANT_COUNT];

/// All measurements of one variant.
#[derive(Default)]
pub struct FtTcpSamples {
    /// For each service of [`SERVICES`], for each rate: in and out, in 10⁶ bytes per second.
    pub throughput: [[[Vec<f64>; 2]; SHAPES_MBIT.len()]; SERVICES.len()],
    /// In 10⁶ bytes per second.
    pub stream: Vec<f64>,
    /// The short requests.
    pub exchange: ExchangeTimes,
    /// For each number of clients.
    pub paced: [Vec<f64>; PACED_CLIENTS.len()],
    /// From the fault to the reply, in milliseconds, for each number of bytes of [`REPLAYED`]. Detection is included. Empty for *clean*.
    pub takeover_ms: [Vec<f64>; REPLAYED.len()],
}

/// All measurements.
#[derive(Default)]
pub struct FtTcpMeasured {
    /// For each of [`VARIANTS`].
    pub samples: PerVariant<FtTcpSamples>,
    /// For each of [`MODES`]: one power-off for each round, with the daemons' default detection.
    pub stalls: [Vec<OutageTrace>; MODES.len()],
    /// An outage of two seconds (Figure 4): what the client sends meanwhile is logged.
    pub outage_logged: OutageTrace,
    /// As [`Self::outage_logged`], but what the client sends meanwhile is lost.
    pub outage_lost: OutageTrace,
}

/// Where the measurements take place.
#[derive(Clone, Copy)]
pub struct FtTcpPlace<'a> {
    /// Begins the names of all networks.
    pub run: &'a str,
    pub daemon: &'a Path,
    pub teardown: &'a Teardown,
}

impl FtTcpPlace<'_> {
    fn set(
        &self,
        serving: Serving,
        variant: BenchVariant,
        name: &str,
        content: &PatternFiles,
    ) -> Result<BenchTestbed> {
        let run = format!("{}{name}", self.run);
        BenchTestbed::set(&run, variant, serving, content, self.daemon, self.teardown)
    }
}

/// Measures all that the benchmark reports, in this number of rounds.
///
/// # Errors
/// If a step fails.
pub fn measure(rounds: u32, place: FtTcpPlace<'_>) -> Result<FtTcpMeasured> {
    let directory = in_memory(&format!("ft-tcp-{}", place.run), place.teardown)?;
    let content = PatternFiles::generate(&directory, &[])?;
    let takeovers = (VARIANTS.len() - 1) * REPLAYED.len();
    let steps = SERVICES.len() * VARIANTS.len() + takeovers + MODES.len();
    let progress = ProgressBar::new(u64::from(rounds) * steps as u64);
    let mut measured = FtTcpMeasured::default();
    for service in 0..SERVICES.len() {
        measure_service(
            rounds,
            service,
            (place, &content),
            &progress,
            &mut measured.samples,
        )?;
    }
    for round in 0..rounds {
        progress.set_message(format!("round {}: takeovers", round + 1));
        measure_takeovers(round, (place, &content), &progress, &mut measured.samples)?;
        progress.set_message(format!("round {}: stalls", round + 1));
        for (mode, (name, variant)) in MODES.into_iter().enumerate() {
            let testbed = place.set(Serving::Sink, variant, &format!("s{mode}{round}"), &content)?;
            let trace = outage::play(&testbed, true, &directory).with_context(|| format!("stall, {name}"))?;
            measured.stalls[mode].push(trace);
            progress.inc(1);
        }
    }
    progress.set_message("outages");
    let outage = |is_fed: bool| {
        let name = if is_fed { "o1" } else { "o0" };
        let testbed = place.set(Serving::Sink, outage::SLOW_TO_NOTICE, name, &content)?;
        outage::play(&testbed, is_fed, &directory)
    };
    (measured.outage_logged, measured.outage_lost) = (outage(true)?, outage(false)?);
    progress.finish_and_clear();
    Ok(measured)
}

/// Transfers of one service in all variants, which take turns. The sink's variants also take the stream, the requests and the paced clients.
fn measure_service(
    rounds: u32,
    service: usize,
    (place, content): (FtTcpPlace<'_>, &PatternFiles),
    progress: &ProgressBar,
    samples: &mut PerVariant<FtTcpSamples>,
) -> Result<()> {
    let (name, serving) = SERVICES[service];
    let mut testbeds = Vec::new();
    for (index, (_, variant)) in VARIANTS.into_iter().enumerate() {
        testbeds.push(place.set(serving, variant, &format!("v{index}{service}"), content)?);
    }
    for round in 0..rounds as usize {
        progress.set_message(format!("round {}: {name}", round + 1));
        for turn in 0..testbeds.len() {
            let index = (turn + round) % testbeds.len();
            let (testbed, samples) = (&testbeds[index], &mut samples[index]);
            take_transfers(testbed, serving, &mut samples.throughput[service])
                .and_then(|()| match serving {
                    Serving::Sink => take_others(testbed, samples),
                    Serving::Files | Serving::Values | Serving::OrderedValues | Serving::Random => Ok(()),
                })
                .context(VARIANTS[index].0)?;
            progress.inc(1);
        }
    }
    Ok(())
}

/// A takeover of each variant with a backup, for each number of bytes.
fn measure_takeovers(
    round: u32,
    (place, content): (FtTcpPlace<'_>, &PatternFiles),
    progress: &ProgressBar,
    samples: &mut PerVariant<FtTcpSamples>,
) -> Result<()> {
    for (index, (name, variant)) in VARIANTS.into_iter().enumerate().skip(1) {
        for (size, bytes) in REPLAYED.into_iter().enumerate() {
            let testbed = place.set(Serving::Sink, variant, &format!("t{index}{size}{round}"), content)?;
            let ms = take_over(&testbed, bytes).with_context(|| format!("{name}, {bytes} bytes"))?;
            samples[index].takeover_ms[size].push(ms);
            progress.inc(1);
        }
    }
    Ok(())
}

/// Runs one end of the load at the client, and reads its report.
fn load<T: DeserializeOwned>(testbed: &BenchTestbed, command: &str, arguments: &[String]) -> Result<T> {
    let mut process = testbed.network.client.command(std::env::current_exe()?)?;
    process.args([LOAD, command, &testbed.service.to_string()]);
    let output = process.args(arguments).output().context("start the load")?;
    ensure!(
        output.status.success(),
        "{command} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("the load's report")
}

/// Transfers in both directions at each rate.
fn take_transfers(
    testbed: &BenchTestbed,
    serving: Serving,
    throughput: &mut [[Vec<f64>; 2]; SHAPES_MBIT.len()],
) -> Result<()> {
    for (mbit, rates) in SHAPES_MBIT.into_iter().zip(throughput) {
        let bytes = BYTES_PER_MBIT * u64::from(mbit);
        testbed.shape(Some(mbit))?;
        let transfers: [Transfer; 2] = match serving {
            Serving::Values | Serving::OrderedValues => [
                load(testbed, "store", &[bytes.to_string()])?,
                load(testbed, "fetch", &[])?,
            ],
            Serving::Sink | Serving::Files | Serving::Random => [
                load(testbed, "upload", &[bytes.to_string()])?,
                load(testbed, "download", &[format!("/zeros/{bytes}")])?,
            ],
        };
        testbed.shape(None)?;
        for (rates, transfer) in rates.iter_mut().zip(transfers) {
            rates.push(megabytes_per_s(transfer));
        }
    }
    Ok(())
}

fn megabytes_per_s(transfer: Transfer) -> f64 {
    transfer.bytes as f64 / 1e6 / transfer.seconds
}

/// The stream, the short requests and the paced clients.
fn take_others(testbed: &BenchTestbed, samples: &mut FtTcpSamples) -> Result<()> {
    let arguments = [STREAM_KILOBYTES, STREAM_SECONDS].map(|number| number.to_string());
    let streamed = load(testbed, "stream", &arguments)?;
    samples.stream.push(megabytes_per_s(streamed));
    let times: ExchangeTimes = load(testbed, "exchange", &[REQUESTS.to_string()])?;
    samples.exchange.request_us.extend(times.request_us);
    samples.exchange.packet_us.extend(times.packet_us);
    testbed.shape(Some(PACED_MBIT))?;
    for (clients, rates) in PACED_CLIENTS.into_iter().zip(&mut samples.paced) {
        let arguments = [clients, PACED_KILOBYTES, PACED_SECONDS].map(|number| number.to_string());
        rates.extend(load::<Vec<f64>>(testbed, "paced", &arguments)?);
    }
    testbed.shape(None)
}

/// Lets a client upload `bytes` but for the last byte, turns the primary's power off, and lets the client send the last byte. Returns the
/// time until the survivor has replied, in milliseconds. It replies when its application has read all bytes.
fn take_over(testbed: &BenchTestbed, bytes: u64) -> Result<f64> {
    // At the speed of memory, packets may pass unlogged in mode `immediate`. Then the connection would not be protected.
    testbed.shape(SHAPES_MBIT.into_iter().max())?;
    let mut command = testbed.network.client.command(std::env::current_exe()?)?;
    command.args([LOAD, "hold", &testbed.service.to_string(), &bytes.to_string()]);
    let mut client = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the client")?;
    let mut output = BufReader::new(client.stdout.take().context("a pipe")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(line == "sent\n", "the client has not sent its bytes");
    testbed.shape(None)?;
    wait_protected(testbed)?;
    testbed.power_off_primary()?;
    client.stdin.take().context("a pipe")?.write_all(b"go\n")?;
    line.clear();
    output.read_line(&mut line)?;
    ensure!(client.wait()?.success(), "the client got no reply");
    line.trim().parse().context("the client's time")
}

/// Waits until the backup protects the client's connection.
fn wait_protected(testbed: &BenchTestbed) -> Result<()> {
    std::thread::sleep(SETTLE);
    let deadline = Instant::now() + TAKEOVER_LIMIT;
    loop {
        let status = testbed.status(1)?;
        if status.connections.get("protected") == Some(&1) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the connection is not protected: {:?}",
            status.reasons
        );
        std::thread::sleep(SETTLE / 10);
    }
}
