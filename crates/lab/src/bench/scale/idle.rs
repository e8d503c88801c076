//! Many idle connections: how much memory they cost the backup, and how long their takeover takes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linux::wire::held_entries;
use nix::unistd::Pid;
use serde::Serialize;

use super::content::{SEED, SMALL_BYTES};
use crate::bench::testbed::BenchTestbed;
use crate::client::{ClientOrder, ClientPlan, ClientProcess, Protocol, Workload};
use crate::node::ReportedTakeover;
use crate::process::{self, anonymous_memory};

const READY_LIMIT: Duration = Duration::from_secs(60);
const TAKEOVER_LIMIT: Duration = Duration::from_secs(30);
/// Timeout of a connection's last exchange.
const REPORT_LIMIT: Duration = Duration::from_secs(60);
/// Wait before memory is measured. The agent reads the last logged packets within some milliseconds.
const SETTLE: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(50);
/// Time between two samples of the keeper's memory.
const SAMPLE: Duration = Duration::from_millis(10);

/// Results.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Idle {
    /// Connections before the takeover.
    pub connections: u64,
    /// Connections that exchanged 1 KB after the takeover.
    pub survived: u64,
    /// Growth of the backup's agent per connection, in bytes of RssAnon.
    pub agent_bytes_each: f64,
    /// Growth of the primary's agent per connection, in bytes of RssAnon.
    pub primary_agent_bytes_each: f64,
    /// Growth of the backup's agent per connection after all connections were taken over, in bytes of RssAnon.
    pub agent_bytes_each_after: f64,
    /// Growth of the backup's keepers per connection after all connections were taken over, in bytes of RssAnon.
    pub keeper_bytes_each_after: f64,
    /// Peak growth of the backup's keepers per connection while all connections exchange 1 KB again and close, in bytes of RssAnon.
    pub keeper_bytes_each_talking: f64,
    /// From the declaration to the first live connection, in milliseconds.
    pub first_live_ms: f64,
    /// From the first to the last live connection, in milliseconds.
    pub all_live_ms: f64,
    /// `all_live_ms` divided by the number of connections restored after the first one, in microseconds.
    pub restore_us_each: f64,
    /// Entries of the eBPF maps `held` and `undecided` once the clients are gone.
    pub held_entries_after: u64,
}

/// Memory of the agents and of the backup's keeper.
#[derive(Clone, Copy)]
struct ProcessMemory {
    agents: [u64; 2],
    keeper: u64,
}

/// Opens `connections` connections to `testbed`, then simulates a power failure of node a.
///
/// # Errors
/// If the run could not be made. Lost connections are no error.
pub fn run(testbed: &BenchTestbed, connections: u32) -> Result<Idle> {
    let mut plan = ClientPlan::new(
        testbed.service,
        Protocol::Http,
        Workload::Idle { size: SMALL_BYTES },
    );
    plan.connections = connections as usize;
    plan.seed = SEED;
    plan.timeline_points = 2;
    plan.deadline_ms = (READY_LIMIT + TAKEOVER_LIMIT + REPORT_LIMIT).as_millis() as u64;
    let empty = ProcessMemory::of(testbed)?;
    let mut client = ClientProcess::start_on(&testbed.network.client, &plan)?;
    let flowing = client.wait_ready(READY_LIMIT)?;
    ensure!(
        flowing == plan.connections,
        "{flowing} of {connections} were connected"
    );
    std::thread::sleep(SETTLE);
    let full = ProcessMemory::of(testbed)?;

    let takeover = take_over(testbed)?;
    let after = ProcessMemory::after(testbed)?;
    client.order(ClientOrder::Wake)?;
    let finished = AtomicBool::new(false);
    let (report, talking) = std::thread::scope(|scope| {
        let peak = scope.spawn(|| peak_of_keepers(testbed, &finished));
        let report = client.finish(REPORT_LIMIT + READY_LIMIT);
        finished.store(true, Ordering::Relaxed);
        (report, peak.join().expect("it does not panic"))
    });
    let (report, talking) = (report?, talking?);
    std::thread::sleep(SETTLE);
    let held = held_entries(&testbed.agent(1)?.pins())
        .context("count the entries of the eBPF maps held and undecided")?;
    let each = |before: u64, after: u64| (after as f64 - before as f64) / f64::from(connections);
    let (first, all) = times(&takeover)?;
    Ok(Idle {
        connections: takeover.connections,
        survived: report.survivors() as u64,
        agent_bytes_each: each(empty.agents[1], full.agents[1]),
        primary_agent_bytes_each: each(empty.agents[0], full.agents[0]),
        agent_bytes_each_after: each(empty.agents[1], after.0),
        keeper_bytes_each_after: each(empty.keeper, after.1),
        keeper_bytes_each_talking: each(empty.keeper, talking),
        first_live_ms: first,
        all_live_ms: all,
        restore_us_each: all * 1e3 / takeover.restored.saturating_sub(1).max(1) as f64,
        held_entries_after: held as u64,
    })
}

/// Simulates the power failure of node a and waits until node b has restored or reset every connection.
fn take_over(testbed: &BenchTestbed) -> Result<ReportedTakeover> {
    testbed.power_off_primary()?;
    let deadline = Instant::now() + TAKEOVER_LIMIT;
    loop {
        let last = testbed.status(1)?.takeovers.last().copied();
        match last {
            Some(takeover) if takeover.is_complete() => return Ok(takeover),
            _ => ensure!(Instant::now() < deadline, "no takeover: {last:?}"),
        }
        std::thread::sleep(POLL);
    }
}

/// Two times in milliseconds: from the declaration to the first live connection, and from the first to the last live connection.
fn times(takeover: &ReportedTakeover) -> Result<(f64, f64)> {
    let (Some(first), Some(last)) = (takeover.first_live_ns, takeover.last_live_ns) else {
        anyhow::bail!("no connection was live: {takeover:?}")
    };
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    Ok((ms(takeover.declared_ns, first), ms(first, last)))
}

impl ProcessMemory {
    fn of(testbed: &BenchTestbed) -> Result<Self> {
        let agent = |index| Ok::<_, anyhow::Error>(anonymous_memory(testbed.agent(index)?.pid())?);
        Ok(Self {
            agents: [agent(0)?, agent(1)?],
            keeper: memory_of(&keepers(testbed)?)?,
        })
    }

    /// Memory of node b's agent and of its keepers, after node a has failed.
    fn after(testbed: &BenchTestbed) -> Result<(u64, u64)> {
        Ok((
            anonymous_memory(testbed.agent(1)?.pid())?,
            memory_of(&keepers(testbed)?)?,
        ))
    }
}

/// Peak memory of node b's keepers until `finished`.
fn peak_of_keepers(testbed: &BenchTestbed, finished: &AtomicBool) -> Result<u64> {
    let keepers = keepers(testbed)?;
    let mut peak = 0;
    while !finished.load(Ordering::Relaxed) {
        peak = peak.max(memory_of(&keepers)?);
        std::thread::sleep(SAMPLE);
    }
    Ok(peak)
}

fn memory_of(processes: &[Pid]) -> Result<u64> {
    processes.iter().map(|&pid| Ok(anonymous_memory(pid)?)).sum()
}

/// Node b's keepers. There may be several: when a keeper is full, another one starts.
fn keepers(testbed: &BenchTestbed) -> Result<Vec<Pid>> {
    let is_keeper = |&pid: &Pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"keeper")
    };
    let processes = process::inside(&[testbed.network.nodes[1].inode()])?;
    Ok(processes.into_iter().filter(is_keeper).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_since_the_declaration() {
        let mut takeover = ReportedTakeover {
            declared_ns: 1_000_000,
            gate_closed_ns: None,
            first_live_ns: Some(4_000_000),
            last_live_ns: Some(14_000_000),
            connections: 1,
            restored: 1,
            reset: 0,
        };
        assert_eq!(times(&takeover).unwrap(), (3.0, 10.0));
        takeover.last_live_ns = None;
        assert!(times(&takeover).is_err());
    }
}
