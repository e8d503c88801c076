//! Injects faults.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::getpgid;
use proto::Instant;

use super::fault::{CrashFault, CrashTarget};
use super::testbed::Testbed;
use super::{NodeLink, PairOptions, Returning};
use crate::clock::monotonic;
use crate::net::switch::{self, Lost};
use crate::net::{INTERFACE, NODE_NAMES};
use crate::node::{HEARTBEAT_PORT, ReportedStatus};
use crate::process;

/// Number of the node that is the wire of connections on annexes.
pub const WIRE: usize = 1;
/// Time limit for a node's processes to end after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Injects the fault of `options` into `target`. Returns the time just before the fault. For an upgrade, returns the time at which the new
/// program was first seen running. If a fault hits the agents of both nodes, this function hits only the first agent.
///
/// # Errors
/// If something cannot be killed, cut or removed.
pub fn inject(testbed: &Testbed, options: &PairOptions, target: CrashTarget) -> Result<Instant> {
    let first = target.nodes()[0];
    let returning = match options.rounds {
        // The node boots before the next round. After a boot, a machine has no stopped server.
        Some(_) => Returning::Killed,
        None => options.returning,
    };
    match options.fault {
        CrashFault::PowerOff
        | CrashFault::KillAgentAfterTakeover
        | CrashFault::UpgradeAfterTakeover
        | CrashFault::KillBackup
        | CrashFault::KillBackupAfterMigrate
        | CrashFault::KillBackupAfterAnnex
        | CrashFault::RebootRace => power_off(testbed, first, returning),
        CrashFault::LinkDown | CrashFault::CutBackup => {
            let moment = monotonic();
            testbed.network.cables[first].pull()?;
            Ok(moment)
        }
        CrashFault::CutServicePath => {
            let moment = monotonic();
            options.how.cut(&testbed.network, first)?;
            Ok(moment)
        }
        CrashFault::CutLink => {
            let moment = monotonic();
            cut_link(testbed, options.link, first)?;
            Ok(moment)
        }
        CrashFault::KillServer | CrashFault::KillServerAfterMigrate => {
            signal_server(testbed, first, Signal::SIGKILL)
        }
        CrashFault::KillApplication => {
            let moment = monotonic();
            testbed.servers[0].signal_behind(Signal::SIGKILL)?;
            Ok(moment)
        }
        CrashFault::HangServer => signal_server(testbed, first, Signal::SIGSTOP),
        CrashFault::CrashWorker => crash_worker(testbed),
        // The primary carries the connections of annexes only without a wire.
        CrashFault::KillAgentAfterAnnex if target == CrashTarget::Primary => {
            power_off(testbed, WIRE, returning)
        }
        CrashFault::KillAgent | CrashFault::KillAgentAfterAnnex => kill_agent(testbed, first),
        CrashFault::PauseAgent | CrashFault::PauseAgentAfterAnnex => {
            let moment = monotonic();
            testbed.agent(first)?.pause()?;
            Ok(moment)
        }
        CrashFault::Upgrade => testbed.agent(first)?.upgrade(),
        CrashFault::Stop => {
            let moment = monotonic();
            testbed.agent(first)?.stop()?;
            Ok(moment)
        }
        CrashFault::Handover | CrashFault::Drain => by_plan(testbed, options.fault, first),
        CrashFault::Migrate | CrashFault::MigrateBack => migrate(testbed, first),
        CrashFault::MigrateAnnex => migrate_to(testbed, first, &testbed.annexes[0].name),
        CrashFault::KillAnnex => testbed.annexes[0].power_off(&testbed.captures.pids()),
        CrashFault::KillAnnexServer => testbed.annexes[0].signal_server(Signal::SIGKILL),
        CrashFault::HangAnnexServer => testbed.annexes[0].signal_server(Signal::SIGSTOP),
        CrashFault::StopAnnex => testbed.annexes[0].stop(),
        CrashFault::FlushTc => flush_tc(testbed, target),
    }
}

/// Cuts the link between the nodes on this network, at node `index`.
fn cut_link(testbed: &Testbed, link: NodeLink, index: usize) -> Result<()> {
    match link {
        NodeLink::Service => {
            let [a, b] = NODE_NAMES;
            let both = [Lost::between(a, b), Lost::between(b, a)];
            let control = format!("udp dport {HEARTBEAT_PORT} ");
            switch::lose(&testbed.network.switch, &both, &control)
        }
        NodeLink::Other => {
            let cable = testbed.network.cables[index].second();
            Ok(cable.context("the nodes have no second network")?.pull()?)
        }
    }
}

/// Restores the link that [`CrashFault::CutLink`] cut.
///
/// # Errors
/// If the cable cannot be plugged in, or the switch cannot be told to pass all frames.
pub fn restore_link(testbed: &Testbed, link: NodeLink, index: usize) -> Result<()> {
    match link {
        NodeLink::Service => switch::pass(&testbed.network.switch),
        NodeLink::Other => {
            let cable = testbed.network.cables[index].second();
            Ok(cable.context("the nodes have no second network")?.plug()?)
        }
    }
}

/// Orders a handover or a drain on node `index`. Returns the time just before the order.
///
/// # Errors
/// If the command fails.
pub fn by_plan(testbed: &Testbed, fault: CrashFault, index: usize) -> Result<Instant> {
    let moment = monotonic();
    match fault {
        CrashFault::Drain => testbed.order(index, &["drain", &testbed.pair.names[index]])?,
        _ => {
            let (service, node) = (&testbed.pair.service_name, &testbed.pair.names[index]);
            testbed.order(index, &["handover", service, "--node", node])?;
        }
    }
    Ok(moment)
}

/// Orders all connections to move from node `index` to the other node, and waits until they have. Returns the time just before the order.
///
/// # Errors
/// If the command fails, or if a connection stays.
pub fn migrate(testbed: &Testbed, index: usize) -> Result<Instant> {
    migrate_to(testbed, index, &testbed.pair.names[1 - index])
}

/// Orders node `index` to move all connections to the node or annex `to`, and waits until they have moved: those of node `index` if it is the
/// primary, those of annexes if it is the wire. Returns the time just before the order.
///
/// # Errors
/// If the command fails, or if a connection stays.
pub fn migrate_to(testbed: &Testbed, index: usize, to: &str) -> Result<Instant> {
    let (service, node) = (&testbed.pair.service_name, &testbed.pair.names[index]);
    let moment = monotonic();
    testbed.order(index, &["migrate", service, "--to", to, "--node", node])?;
    Ok(moment)
}

/// Moves all connections from the primary, node a, to the first annex. Adds to `problems` if the wire does not have them there. Returns the
/// time just before the order.
///
/// # Errors
/// If the order fails, or if a connection stays.
pub fn move_to_annex(testbed: &Testbed, problems: &mut Vec<String>) -> Result<Instant> {
    let annex = &testbed.annexes[0].name;
    let moved_at = migrate_to(testbed, 1 - WIRE, annex)?;
    wait_on_annex(testbed, annex, problems)?;
    Ok(moved_at)
}

/// Moves the connections of the first annex to each further annex, and then back to the primary, with `pause` before each move. Returns the
/// times just before the orders.
///
/// # Errors
/// If an order fails, or if a connection stays.
pub fn move_back(testbed: &Testbed, pause: Duration, problems: &mut Vec<String>) -> Result<Vec<Instant>> {
    let mut moved_at = Vec::new();
    for annex in testbed.annexes.iter().skip(1) {
        std::thread::sleep(pause);
        moved_at.push(migrate_to(testbed, WIRE, &annex.name)?);
        wait_on_annex(testbed, &annex.name, problems)?;
    }
    std::thread::sleep(pause);
    moved_at.push(migrate(testbed, WIRE)?);
    let what = "give all connections back to the primary";
    testbed.wait_for(WIRE, what, ReportedStatus::has_none_on_annexes, problems)?;
    Ok(moved_at)
}

fn wait_on_annex(testbed: &Testbed, annex: &str, problems: &mut Vec<String>) -> Result<()> {
    let has_all = |status: &ReportedStatus| status.has_all_on(annex);
    testbed.wait_for(WIRE, "have all connections on the annex", has_all, problems)
}

/// Turns off the power of node `index`: cuts its cable, then kills all its processes. Two kinds of processes stay alive: the captures,
/// which belong to the lab, and the server if it is to return frozen. Returns the time just before the cut.
///
/// # Errors
/// If the cable cannot be cut or a process cannot be killed.
pub fn power_off(testbed: &Testbed, index: usize, returning: Returning) -> Result<Instant> {
    let (node, server) = (&testbed.network.nodes[index], &testbed.servers[index]);
    let spared = testbed.captures.pids();
    let moment = monotonic();
    testbed.network.cables[index].pull()?;
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

/// Kills the agent of node `index`, but not its keeper. Returns the time just before the kill.
///
/// # Errors
/// If the agent cannot be killed.
pub fn kill_agent(testbed: &Testbed, index: usize) -> Result<Instant> {
    let moment = monotonic();
    testbed.agent(index)?.kill()?;
    Ok(moment)
}

/// Sends a signal to all processes of the server of node `index`. Returns the time just before.
///
/// # Errors
/// If the kernel refuses.
pub fn signal_server(testbed: &Testbed, index: usize, signal: Signal) -> Result<Instant> {
    let moment = monotonic();
    testbed.servers[index].signal(signal)?;
    Ok(moment)
}

/// Kills the worker that has the most connections.
fn crash_worker(testbed: &Testbed) -> Result<Instant> {
    let workers = testbed.servers[0].workers()?;
    let sockets = |&pid: &_| process::sockets(pid).unwrap_or(0);
    let victim = workers.iter().copied().max_by_key(sockets);
    let victim = victim.context("the server has no workers")?;
    ensure!(workers.len() > 1, "the server has only one worker");
    let moment = monotonic();
    nix::sys::signal::kill(victim, Signal::SIGKILL).context("kill the worker")?;
    Ok(moment)
}

/// Removes the clsact qdisc with its filters, as an administrator's script or another network tool would.
fn flush_tc(testbed: &Testbed, target: CrashTarget) -> Result<Instant> {
    for &index in target.nodes() {
        let bare = hooks_without_filter(testbed, index)?;
        ensure!(bare.is_empty(), "node {index} has no filter at its {bare:?}");
    }
    let moment = monotonic();
    for &index in target.nodes() {
        tc(testbed, index, &["qdisc", "del", "dev", INTERFACE, "clsact"])?;
    }
    Ok(moment)
}

/// The hooks of the service interface of node `index` that have no eBPF filter.
///
/// # Errors
/// If tc fails.
pub fn hooks_without_filter(testbed: &Testbed, index: usize) -> Result<Vec<&'static str>> {
    let mut bare = Vec::new();
    for hook in ["ingress", "egress"] {
        if !tc(testbed, index, &["filter", "show", "dev", INTERFACE, hook])?.contains(" bpf ") {
            bare.push(hook);
        }
    }
    Ok(bare)
}

fn tc(testbed: &Testbed, index: usize, arguments: &[&str]) -> Result<String> {
    let mut tc = testbed.network.nodes[index].command("tc")?;
    process::output(tc.args(arguments), &format!("tc {}", arguments.join(" ")))
}
