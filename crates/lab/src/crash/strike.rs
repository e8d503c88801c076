//! Injects faults.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::getpgid;
use proto::Instant;

use super::fault::{Fault, Target};
use super::stage::Stage;
use super::{Options, Returning};
use crate::clock::monotonic;
use crate::net::INTERFACE;
use crate::process;

/// Time limit for a node's processes to end after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Injects the fault of `options` into `target`. Returns the time just before. If a fault hits the agents of both nodes, this function
/// hits only the first agent.
///
/// # Errors
/// If something cannot be killed, cut or removed.
pub fn strike(stage: &Stage, options: &Options, target: Target) -> Result<Instant> {
    let (first, returning) = (target.nodes()[0], options.returning);
    match options.fault {
        Fault::PowerOff
        | Fault::KillAgentAfterTakeover
        | Fault::UpgradeAfterTakeover
        | Fault::KillBackup
        | Fault::RebootRace => power_off(stage, first, returning),
        Fault::LinkDown | Fault::CutBackup => {
            let moment = monotonic();
            stage.network.cables[first].pull()?;
            Ok(moment)
        }
        Fault::CutServicePath => {
            let moment = monotonic();
            options.how.cut(&stage.network, first)?;
            Ok(moment)
        }
        Fault::KillServer => signal_server(stage, Signal::SIGKILL),
        Fault::HangServer => signal_server(stage, Signal::SIGSTOP),
        Fault::CrashWorker => crash_worker(stage),
        Fault::KillAgent => kill_agent(stage, first),
        Fault::Upgrade => stage.agent(first)?.upgrade(),
        Fault::Stop => {
            let moment = monotonic();
            stage.agent(first)?.stop()?;
            Ok(moment)
        }
        Fault::Handover | Fault::Drain => by_plan(stage, options.fault, first),
        Fault::FlushTc => flush_tc(stage, target),
    }
}

/// Orders a handover or a drain on node `index`. Returns the time just before.
///
/// # Errors
/// If the command fails.
pub fn by_plan(stage: &Stage, fault: Fault, index: usize) -> Result<Instant> {
    let moment = monotonic();
    match fault {
        Fault::Drain => stage.order(index, &["drain", &stage.pair.names[index]])?,
        _ => {
            let (service, node) = (&stage.pair.service_name, &stage.pair.names[index]);
            stage.order(index, &["handover", service, "--node", node])?;
        }
    }
    Ok(moment)
}

/// Turns off the power of node `index`: cuts its cable, then kills all its processes. Two kinds of processes stay alive: the captures,
/// which belong to the lab, and the server if it is to return frozen. Returns the time just before the cut.
///
/// # Errors
/// If the cable cannot be cut or a process cannot be killed.
pub fn power_off(stage: &Stage, index: usize, returning: Returning) -> Result<Instant> {
    let (node, server) = (&stage.network.nodes[index], &stage.servers[index]);
    let spared = stage.captures.pids();
    let moment = monotonic();
    stage.network.cables[index].pull()?;
    let is_frozen = match returning {
        Returning::Frozen => {
            server.signal(Signal::SIGSTOP)?;
            true
        }
        Returning::Killed => false,
    };
    let is_server = |pid| getpgid(Some(pid)).is_ok_and(|group| group == server.pid());
    let spare = |pid| spared.contains(&pid) || (is_frozen && is_server(pid));
    process::kill_inside(&[node.inode()], spare, KILL_LIMIT).context("kill the node's processes")?;
    Ok(moment)
}

/// Kills the agent of node `index`, but not its keeper. Returns the time just before.
///
/// # Errors
/// If the agent cannot be killed.
pub fn kill_agent(stage: &Stage, index: usize) -> Result<Instant> {
    let moment = monotonic();
    stage.agent(index)?.kill()?;
    Ok(moment)
}

fn signal_server(stage: &Stage, signal: Signal) -> Result<Instant> {
    let moment = monotonic();
    stage.servers[0].signal(signal)?;
    Ok(moment)
}

/// Kills the worker that has the most connections.
fn crash_worker(stage: &Stage) -> Result<Instant> {
    let workers = stage.servers[0].workers()?;
    let sockets = |&pid: &_| process::sockets(pid).unwrap_or(0);
    let victim = workers.iter().copied().max_by_key(sockets);
    let victim = victim.context("the server has no workers")?;
    ensure!(workers.len() > 1, "the server has only one worker");
    let moment = monotonic();
    nix::sys::signal::kill(victim, Signal::SIGKILL).context("kill the worker")?;
    Ok(moment)
}

/// Removes the clsact qdisc with its filters, as an administrator's script or another network tool would.
fn flush_tc(stage: &Stage, target: Target) -> Result<Instant> {
    for &index in target.nodes() {
        let bare = hooks_without_filter(stage, index)?;
        ensure!(bare.is_empty(), "node {index} has no filter at its {bare:?}");
    }
    let moment = monotonic();
    for &index in target.nodes() {
        tc(stage, index, &["qdisc", "del", "dev", INTERFACE, "clsact"])?;
    }
    Ok(moment)
}

/// The hooks of the service interface of node `index` that have no eBPF filter.
///
/// # Errors
/// If tc fails.
pub fn hooks_without_filter(stage: &Stage, index: usize) -> Result<Vec<&'static str>> {
    let mut bare = Vec::new();
    for hook in ["ingress", "egress"] {
        if !tc(stage, index, &["filter", "show", "dev", INTERFACE, hook])?.contains(" bpf ") {
            bare.push(hook);
        }
    }
    Ok(bare)
}

fn tc(stage: &Stage, index: usize, arguments: &[&str]) -> Result<String> {
    let mut tc = stage.network.nodes[index].command("tc")?;
    let output = tc.args(arguments).output().context("run tc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "tc {}: {}",
        arguments.join(" "),
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
