//! The judge's expectations of a run whose fault must change nothing for the clients.

use std::time::Duration;

use super::aftermath::Aftermath;
use super::fault::{CrashFault, CrashTarget, Sequel};
use super::{PairOptions, WorkloadOption};
use crate::clock::ClockOffset;
use crate::net::address::{ANNEXES, CLIENT, NODES, ROUTER_LAN};
use crate::node::AtLimitOption;
use judge::{Closing, Expectations, NodeChange, Speaking};

/// Number of the node that is the wire at first.
pub const BACKUP: usize = 1;

/// The judge's expectations of `aftermath`. They leave open which node is the wire; see [`changes`].
pub fn expectations(options: &PairOptions, aftermath: &Aftermath, clock: ClockOffset) -> Expectations {
    let deadly = aftermath.moved_at.iter().copied().chain(aftermath.deadly_at);
    let mut deadly: Vec<_> = deadly.map(|at| clock.realtime_ns(at)).collect();
    deadly.sort_unstable();
    Expectations {
        speaking: speaking(options),
        ..of_service(options, deadly)
    }
}

/// Whether all connections change their node at once.
pub fn speaking(options: &PairOptions) -> Speaking {
    match options.fault {
        // The sockets of a dying process are closed one after the other.
        CrashFault::CrashWorker | CrashFault::KillServer => Speaking::ForEachConnection,
        fault if fault.moves_connections() => Speaking::ForEachConnection, // the service's other connections stay
        _ if options.then_kill_server => Speaking::ForEachConnection,
        _ => Speaking::ForAll,
    }
}

/// The changes that decide which node may be the wire. `detection` is the shortest silence after which a node may be declared
/// dead.
pub fn changes(
    options: &PairOptions,
    target: CrashTarget,
    aftermath: &Aftermath,
    clock: ClockOffset,
    detection: Duration,
) -> Vec<NodeChange> {
    let fault_ns = clock.realtime_ns(aftermath.fault_at);
    let lost = NodeChange::Lost {
        node: BACKUP,
        at_ns: lost_at(options.fault, fault_ns, detection),
    };
    let returned = aftermath.integration.iter().map(|one| one.change(clock));
    match options.sequel(target) {
        Sequel::Claim => [lost].into_iter().chain(returned).collect(),
        Sequel::Takeover | Sequel::TakeoverOfSome | Sequel::Nothing => returned.collect(),
        // After the nodes have agreed, either node may be the wire.
        Sequel::AtMostOne => {
            let agreed_ns = aftermath.second_at.map_or(u64::MAX, |at| clock.realtime_ns(at));
            let may_be = [1 - BACKUP, BACKUP].map(|node| NodeChange::Returned {
                node,
                at_ns: agreed_ns,
            });
            [lost].into_iter().chain(may_be).collect()
        }
    }
}

/// Time from which packets need not go through a wire that `fault` has hit.
pub fn lost_at(fault: CrashFault, fault_ns: u64, detection: Duration) -> u64 {
    match fault {
        // The wire has told the primary that it gives up its role, or that clients do not reach the wire.
        CrashFault::Stop | CrashFault::Drain | CrashFault::CutServicePath => fault_ns,
        // The wire's last packets arrive soon after the fault. Packets may bypass the wire once the primary may declare
        // the wire dead. The returned time is halfway between the fault and the earliest declaration.
        _ => fault_ns + detection.as_nanos() as u64 / 2,
    }
}

/// The expectations that are the same for every aftermath. `role_changes_ns`: moments at which another node may begin to speak.
pub fn of_service(options: &PairOptions, role_changes_ns: Vec<u64>) -> Expectations {
    Expectations {
        service: options.service(),
        clients: vec![CLIENT.ip(options.lan.ipv6)],
        macs: NODES.map(|node| node.mac),
        annexes: ANNEXES
            .iter()
            .take(options.annex_count())
            .map(|annex| annex.mac)
            .collect(),
        router_mac: ROUTER_LAN.mac,
        mode: options.mode,
        wires: Vec::new(),
        role_changes_ns,
        speaking: Speaking::ForAll,
        closing: match options.workload {
            _ if options.fault == CrashFault::KillApplication => Closing::Either, // A 503 ends the connection.
            WorkloadOption::Post => Closing::Either, // A refusal ends the connection.
            WorkloadOption::Download
            | WorkloadOption::Upload
            | WorkloadOption::Request
            | WorkloadOption::Idle => Closing::ClientFirst,
        },
        may_slow: options.log.at_limit == Some(AtLimitOption::Slow),
    }
}

/// With annexes: a problem if the captures do not show that the nodes spoke in the expected order. `reigns` are the nodes that spoke.
pub fn wrong_speakers(options: &PairOptions, reigns: &[usize]) -> Option<String> {
    let count = options.annex_count();
    if count == 0 {
        return None;
    }
    let primary = 1 - BACKUP;
    let expected = match options.fault {
        CrashFault::MigrateAnnex if options.then().is_none() => {
            let round = (2..2 + count).chain([primary]);
            let rounds = (0..options.rounds.unwrap_or(1)).flat_map(|_| round.clone());
            [primary].into_iter().chain(rounds).collect()
        }
        CrashFault::KillBackupAfterAnnex | CrashFault::KillAgentAfterAnnex => vec![primary, 2],
        CrashFault::PauseAgentAfterAnnex => vec![primary, 2, primary],
        _ => vec![primary, 2, BACKUP],
    };
    (reigns != expected).then(|| {
        format!("the nodes {reigns:?} spoke for connections, in this order, not {expected:?} (0: a, 1: b, 2: c, 3: d)")
    })
}
