//! Both ends of a tunnel on the two hosts.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use linux::netns::Netns;
use nix::sys::signal::Signal;

use super::network::{CUT_FIRST, PathsNetwork};
use crate::edge::fault::nft;
use crate::process::{LoggedProcess, output};

/// Address at which clients connect, on the near host.
pub const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Time limit for the two ends of a tunnel to establish their association.
const JOIN_LIMIT: Duration = Duration::from_secs(60);

/// A tunnel from [`LISTEN`] on the near host to a server on the far host.
pub struct PathsTunnel {
    near: LoggedProcess,
    far: LoggedProcess,
    daemon: PathBuf,
    /// The configuration file of the serving end.
    serving: PathBuf,
}

impl PathsTunnel {
    /// Starts both ends, and waits until clients can connect. The server listens at `port` of the far host's loopback. `watch_ms`:
    /// milliseconds between the heartbeats that find failures (0: no such heartbeats).
    ///
    /// # Errors
    /// The step that failed.
    pub fn start(
        network: &PathsNetwork,
        daemon: &Path,
        directory: &Path,
        (seed, watch_ms): (u64, u64),
        port: u16,
    ) -> Result<Self> {
        let key = directory.join("key");
        write_key(&key, seed)?;
        let start = |host: &Netns, label: &str, last: u8, ends: &str| -> Result<LoggedProcess> {
            let file = directory.join(format!("{label}.toml"));
            let text = format!(
                "name = \"{label}\"\nstate_dir = {:?}\nkey_file = {key:?}\nwatch_ms = {watch_ms}\n\
                 via = [\"10.1.0.{last}\", \"10.2.0.{last}\"]\n{ends}\n",
                directory.join(format!("{label}.state")),
            );
            std::fs::write(&file, text).with_context(|| file.display().to_string())?;
            let mut command = host.command(daemon)?;
            command.args(["tunnel", "--config"]).arg(&file);
            Ok(LoggedProcess::start(label, command, directory)?)
        };
        let service =
            |way: &str, address: SocketAddr| format!("[[service]]\nname = \"lab\"\n{way} = \"{address}\"");
        let server = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let far = start(&network.far, "serving", 2, &service("connect", server))?;
        let opening = format!("to = [\"10.1.0.2:9899\"]\n{}", service("listen", LISTEN));
        let mut near = start(&network.near, "opening", 1, &opening)?;
        near.wait_until("join the other end", JOIN_LIMIT, |process| {
            process.output().contains("an association is established")
        })?;
        Ok(Self {
            near,
            far,
            daemon: daemon.to_owned(),
            serving: directory.join("serving.toml"),
        })
    }

    /// The retransmission timeout of the serving end on the first path.
    ///
    /// # Errors
    /// If the serving end does not report the timeout.
    pub fn rto(&self, network: &PathsNetwork) -> Result<Duration> {
        let mut command = network.far.command(&self.daemon)?;
        let said = output(
            command.args(["status", "--json", "--config"]).arg(&self.serving),
            "steadfast status",
        )?;
        let status: serde_json::Value = serde_json::from_str(&said).context("the status")?;
        let rto = status["associations"][0]["paths"][0]["rto_ms"].as_f64();
        Ok(Duration::from_secs_f64(
            rto.with_context(|| format!("no RTO in {said}"))? / 1e3,
        ))
    }

    /// Number of times that an end declared a path failed.
    pub fn path_switches(&self) -> u32 {
        let switches = |process: &LoggedProcess| process.output().matches("a path has failed").count() as u32;
        switches(&self.near) + switches(&self.far)
    }

    /// Time from `cut_at` until the serving end declared a path failed, by its log. `None` if it declared none.
    pub fn detection(&self, cut_at: SystemTime) -> Option<Duration> {
        let output = self.far.output();
        let line = output.lines().find(|line| line.contains("a path has failed"))?;
        time_since(cut_at, line)
    }

    /// Tells both ends to stop.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn stop(&self) -> Result<()> {
        for process in [&self.near, &self.far] {
            process.signal(Signal::SIGTERM)?;
        }
        Ok(())
    }
}

/// Seconds of a day.
const DAY: f64 = 86_400.0;

/// Time from `since` to the time of day with which a line of a log begins, as in `2026-11-28T02:19:38.123456Z`. Less than a day.
fn time_since(since: SystemTime, line: &str) -> Option<Duration> {
    let clock = line.split_once('T')?.1.split_once('Z')?.0;
    let at = clock.splitn(3, ':').try_fold(0.0, |sum, part| {
        let part: f64 = part.parse().ok()?;
        Some(sum * 60.0 + part)
    })?;
    let since = since.duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Some(Duration::from_secs_f64((at - since % DAY).rem_euclid(DAY)))
}

/// Makes both hosts drop all packets of the first path from now on, without an error at either end.
///
/// # Errors
/// If the rules cannot be set.
pub fn cut_first(network: &PathsNetwork) -> Result<()> {
    nft(&network.near, CUT_FIRST)?;
    nft(&network.far, CUT_FIRST)
}

fn write_key(path: &Path, seed: u64) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    let mut file = file.with_context(|| path.display().to_string())?;
    writeln!(file, "{seed:064x}").with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_line_is_compared_with_a_moment_even_across_midnight() {
        let line = |clock: &str| format!("2026-11-28T{clock}Z  WARN a path has failed path=0");
        let noon = UNIX_EPOCH + Duration::from_secs(20_000 * 86_400 + 43_200);
        let found = time_since(noon, &line("12:01:00.250000")).expect("a time");
        assert!((found.as_secs_f64() - 60.25).abs() < 1e-3, "{found:?}");
        let late = UNIX_EPOCH + Duration::from_secs(20_000 * 86_400 - 1);
        let found = time_since(late, &line("00:00:00.500000")).expect("a time");
        assert!((found.as_secs_f64() - 1.5).abs() < 1e-3, "{found:?}");
        assert_eq!(time_since(noon, "no time"), None);
    }
}
