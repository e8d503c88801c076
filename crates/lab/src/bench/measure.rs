//! Measures bulk transfers, with the CPU time that the whole machine spends meanwhile, and small requests (wrk).

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use linux::netns::Netns;

use super::load::{LOAD, Transfer};

/// One bulk transfer.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// CPU seconds of the whole machine per 10⁹ bytes.
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
    let before = busy_seconds()?;
    let output = command
        .arg(LOAD)
        .args(arguments)
        .output()
        .context("start the load")?;
    let after = busy_seconds()?;
    ensure!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let transfer: Transfer = serde_json::from_slice(&output.stdout).context("the load's report")?;
    let gigabytes = transfer.bytes as f64 / 1e9;
    Ok(Bulk {
        gb_per_s: gigabytes / transfer.seconds,
        cpu_s_per_gb: (after - before) / gigabytes,
    })
}

/// Busy time of all processors since the machine started, in seconds.
///
/// # Errors
/// If `/proc/stat` cannot be read, or is not in the expected format.
pub fn busy_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq
    let [user, nice, system, _, _, irq, softirq, ..] = ticks[..] else {
        bail!("/proc/stat begins with {line:?}")
    };
    Ok((user + nice + system + irq + softirq) / TICKS_PER_SECOND)
}

/// USER_HZ: 100 on every Linux that Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;

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
        let before = busy_seconds().unwrap();
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 60 {}
        assert!(busy_seconds().unwrap() > before);
    }
}
