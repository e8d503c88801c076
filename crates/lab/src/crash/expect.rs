//! What the captures must show if a fault changes nothing for the clients.

use std::time::Duration;

use super::course::Course;
use super::fault::{Fault, Sequel};
use super::stage::service;
use super::{Options, Target, Workload};
use crate::clock::ClockOffset;
use crate::judge::{Closing, CommitMode, Expectations, Speaking, Wire};
use crate::net::address::{CLIENT, NODES, ROUTER_LAN};

/// What the judge has to expect of `course`, in which `detection` is the least time after which a silent node may be
/// declared dead.
pub fn expectations(
    options: &Options,
    target: Target,
    course: &Course,
    clock: ClockOffset,
    detection: Duration,
) -> Expectations {
    let sequel = options.fault.sequel(target);
    let fault_ns = clock.realtime_ns(course.fault_at);
    let node_b = Wire {
        node: 1,
        from_ns: 0,
        until_ns: match sequel {
            // It has said that it leaves.
            Sequel::Claim if options.fault == Fault::Stop => fault_ns,
            // Until node a may declare it dead, nothing goes past it, and what it has sent is on its way.
            Sequel::Claim => fault_ns + detection.as_nanos() as u64 / 2,
            _ => u64::MAX,
        },
    };
    Expectations {
        service: service(options),
        clients: vec![if options.ipv6 {
            CLIENT.v6.into()
        } else {
            CLIENT.v4.into()
        }],
        macs: NODES.map(|node| node.mac),
        router_mac: ROUTER_LAN.mac,
        mode: CommitMode::Prs,
        wires: if options.baseline {
            Vec::new()
        } else {
            vec![node_b]
        },
        role_changes_ns: course
            .deadly_at
            .map(|at| clock.realtime_ns(at))
            .into_iter()
            .collect(),
        speaking: match options.fault {
            // The sockets of a dying process are closed one after the other.
            Fault::CrashWorker | Fault::KillServer => Speaking::ForEachConnection,
            _ => Speaking::ForAll,
        },
        closing: match options.workload {
            Workload::Post => Closing::Either, // a refusal ends the connection
            Workload::Download | Workload::Upload | Workload::Request | Workload::Idle => {
                Closing::ClientFirst
            }
        },
    }
}
