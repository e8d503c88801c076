//! Measures bulk transfers, with the CPU time that the machine spends on them, and small requests (wrk).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use linux::netns::Netns;

use super::load::{LOAD, Transfer};
use crate::clock::monotonic;
use crate::process::{ProcessStat, TICKS_PER_S, is_below, processes};

/// One bulk transfer.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// CPU seconds per 10⁹ bytes. See [`CpuTimes::ours_s`].
    pub cpu_s_per_gb: f64,
}

/// Result of a run of small requests.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// Replies per second.
    pub per_s: f64,
    /// Median latency in microseconds.
    pub median_us: f64,
}

/// Downloads `path` once.
///
/// # Errors
/// If the transfer is not complete.
pub fn download(client: &Netns, server: SocketAddr, path: &str) -> Result<Bulk> {
    bulk(client, &["download", &server.to_string(), path])
}

/// Uploads `bytes` once.
///
/// # Errors
/// If the transfer is not complete.
pub fn upload(client: &Netns, server: SocketAddr, bytes: u64) -> Result<Bulk> {
    bulk(client, &["upload", &server.to_string(), &bytes.to_string()])
}

fn bulk(client: &Netns, arguments: &[&str]) -> Result<Bulk> {
    let mut command = client.command(std::env::current_exe()?)?;
    let before = CpuTimes::now()?;
    let output = command
        .arg(LOAD)
        .args(arguments)
        .output()
        .context("start the load")?;
    let after = CpuTimes::now()?;
    ensure!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let transfer: Transfer = serde_json::from_slice(&output.stdout).context("the load's report")?;
    let gigabytes = transfer.bytes as f64 / 1e9;
    Ok(Bulk {
        gb_per_s: gigabytes / transfer.seconds,
        cpu_s_per_gb: (after.ours_s - before.ours_s) / gigabytes,
    })
}

/// Busy time of all processors, counted from an unknown moment. Only differences mean something.
///
/// Forwarding is done in interrupts and kernel threads, so the CPU time of the benchmark's own processes does not include it. The busy time
/// of the whole machine does, but it also includes other programs. Their processes' CPU time is subtracted. A packet that the kernel
/// forwards in an interrupt of another program still counts as that program's time.
#[derive(Clone, Copy, Debug)]
pub struct CpuTimes {
    /// Seconds of the kernel, of this process and of its descendants.
    pub ours_s: f64,
    /// Seconds of all other processes.
    pub others_s: f64,
}

impl CpuTimes {
    /// The times until now.
    ///
    /// # Errors
    /// If `/proc` cannot be read, or is not in the expected format.
    pub fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let is_cpu = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        let cpus = text.lines().filter(is_cpu).count() as f64;
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .filter_map(|word| word.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal
        let [_, _, _, idle, iowait, _, _, steal, ..] = ticks[..] else {
            bail!("/proc/stat begins with {line:?}")
        };
        // The kernel measures idle time exactly, but samples busy time at each tick of its timer.
        let since_start_s = monotonic().as_nanos() as f64 / 1e9;
        let busy_s = since_start_s * cpus - (idle + iowait + steal) / TICKS_PER_S as f64;
        let others_s = of_others(&processes().context("read /proc")?, std::process::id()).as_secs_f64();
        Ok(Self {
            ours_s: busy_s - others_s,
            others_s,
        })
    }
}

/// CPU time of all processes except kernel threads, process `own` and its descendants.
fn of_others(processes: &HashMap<u32, ProcessStat>, own: u32) -> Duration {
    let others = processes
        .iter()
        .filter(|(pid, one)| !one.is_kernel_thread && !is_below(processes, **pid, &[own]));
    others.map(|(_, one)| one.cpu + one.cpu_of_children).sum()
}

/// Runs wrk for `seconds`: small requests over `connections` persistent connections.
///
/// # Errors
/// If wrk or one of its requests fails.
pub fn requests(
    client: &Netns,
    server: SocketAddr,
    path: &str,
    connections: u32,
    seconds: u32,
) -> Result<Requests> {
    let mut command = client.command("wrk")?;
    command.args([
        "--threads",
        "1",
        "--latency",
        "--connections",
        &connections.to_string(),
    ]);
    command.args([
        "--duration",
        &format!("{seconds}s"),
        &format!("http://{server}{path}"),
    ]);
    let output = command.output().context("start wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "wrk: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    ensure!(
        !text.contains("Socket errors") && !text.contains("Non-2xx"),
        "requests failed:\n{text}"
    );
    parse_wrk(&text).with_context(|| format!("wrk's report:\n{text}"))
}

fn parse_wrk(text: &str) -> Option<Requests> {
    let value = |prefix: &str| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(prefix))
            .map(str::trim)
    };
    let latency = value("50%")?;
    let median_us = if let Some(number) = latency.strip_suffix("us") {
        number.parse::<f64>().ok()?
    } else if let Some(number) = latency.strip_suffix("ms") {
        number.parse::<f64>().ok()? * 1e3
    } else {
        latency.strip_suffix('s')?.parse::<f64>().ok()? * 1e6
    };
    Some(Requests {
        per_s: value("Requests/sec:")?.parse().ok()?,
        median_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::KERNEL_THREAD;

    #[test]
    fn wrk_is_understood() {
        let text =
            "  Latency Distribution\n     50%   93.00us\n     75%  111.00us\nRequests/sec:  80123.45\n";
        let requests = parse_wrk(text).unwrap();
        assert_eq!((requests.median_us, requests.per_s), (93.0, 80123.45));
        assert_eq!(
            parse_wrk(&text.replace("93.00us", "1.50ms")).unwrap().median_us,
            1500.0
        );
        assert!(parse_wrk("nothing").is_none());
    }

    #[test]
    fn time_passes() {
        let before = CpuTimes::now().unwrap();
        let start = std::time::Instant::now();
        // On a busy machine, this thread may get no CPU for a while, and what others have used is known late.
        while CpuTimes::now().unwrap().ours_s <= before.ours_s {
            assert!(start.elapsed().as_secs() < 30, "no CPU time is counted");
        }
    }

    #[test]
    fn other_programs_are_processes_that_are_neither_ours_nor_the_kernels() {
        let stat = |pid: u32, parent: u32, flags: u64, ticks: u32| {
            let text =
                format!("{pid} (a) b (c) S {parent} 0 0 0 -1 {flags} 0 0 0 0 {ticks} 0 1000 0 20 0 1 0 5");
            (pid, ProcessStat::parse(&text).unwrap())
        };
        let processes = HashMap::from([
            stat(1, 0, 0, 1),
            stat(2, 0, KERNEL_THREAD, 2),
            stat(10, 1, 0, 10),
            stat(20, 10, 0, 20),
            stat(30, 20, 0, 30),
        ]);
        assert_eq!(of_others(&processes, 20), Duration::from_millis(10_010 + 10_100));
    }
}
