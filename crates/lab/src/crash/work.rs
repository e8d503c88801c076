//! What the clients are asked to do, and when the fault hits.

use std::net::SocketAddr;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Options, Policy, Workload};
use crate::client::{Plan, Until, Workload as ClientWorkload};
use crate::emulator::Way;
use crate::node::AtLimit;

/// Content of small requests, and of each exchange of an idle connection; the README promises at least 1 KB.
const SMALL: u64 = 1024;
/// How long a download or an upload shall last; and if more than one thing happens.
const DURATION_S: f64 = 3.0;
const DURATION_LONG_S: f64 = 5.0;
/// How long one file of a download in rounds shall last.
const FILE_S: f64 = 0.3;
/// How much longer the clients may take for each round.
const ROUND_DEADLINE: Duration = Duration::from_secs(20);
/// What two cores carry with captures, clients that check, and the wire, in bytes/s.
const MACHINE_HTTP: f64 = 400e6;
/// What is sent is written to files, and most of it twice.
const MACHINE_STORE: f64 = 200e6;
/// Two servers and their clients work on every byte.
const MACHINE_REPLICA: f64 = 150e6;
/// Headers and a few retransmissions use some of a limited rate.
const GOODPUT: f64 = 0.9;
/// What a connection gets in a way with losses: MSS / RTT · C / √p (Mathis et al. 1997, C = 1.2).
const MSS: f64 = 1448.0;
const MATHIS: f64 = 1.2;
/// The fault hits a transfer after this share of its bytes.
const SHARE: std::ops::Range<f64> = 0.15..0.3;
/// The fault hits requests and idle connections after so many milliseconds.
const QUIET_MS: std::ops::Range<u64> = 500..700;
/// Points of all connections' timelines together.
const TIMELINE_POINTS_MAX: usize = 50_000;
/// Of so many connections at work what they receive is hashed. With hundreds the hashes would take the CPU that the connections wait for,
/// and the stall would be the client's own.
const HASHED_MAX: usize = 64;
/// How long any connection may take: many times what is expected, also on a busy machine, so that it ends what hangs.
const DEADLINE: Duration = Duration::from_secs(60);
/// Without steadfast a connection may hang for ever, and that need not be waited for.
const BASELINE_DEADLINE: Duration = Duration::from_secs(12);

/// The work of one run.
#[derive(Clone, Debug)]
pub struct Work {
    /// What the clients do.
    pub plan: Plan,
    /// When the fault hits.
    pub moment: Moment,
}

/// When the fault hits, counted from when every connection flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// When so many content bytes have come or have been confirmed.
    AtBytes(u64),
    /// After so long.
    After(Duration),
}

impl Work {
    /// What `options` ask for, with the chances of `seed`, at `server`.
    #[must_use]
    pub fn new(options: &Options, seed: u64, server: SocketAddr) -> Self {
        let mut chance = Xoshiro256PlusPlus::seed_from_u64(seed);
        let busy = u64::from(options.busy());
        let total = options.megabytes.map_or_else(
            || (throughput(machine(options), options.way, options.busy()) * duration(options)) as u64,
            |megabytes| u64::from(megabytes) * 1_000_000,
        );
        let each = (total / busy).max(SMALL);
        let idle = u64::from(options.connections) - busy;
        let before = idle * Plan::IDLE_SIZE;
        let at_share = |share: f64| Moment::AtBytes(before + (each as f64 * busy as f64 * share) as u64);
        let (workload, moment) = match options.workload {
            // One file after the other: a connection is protected again from its next request on.
            Workload::Download if options.rounds.is_some() => {
                let seconds = total as f64 / duration(options);
                let size = (seconds * FILE_S / busy as f64) as u64;
                let until = Until::Told;
                (
                    ClientWorkload::Request {
                        size: size.max(SMALL),
                        until,
                    },
                    quiet(&mut chance),
                )
            }
            Workload::Download => (
                ClientWorkload::Download { bytes: each },
                at_share(chance.random_range(SHARE)),
            ),
            // It is read back, so each byte passes twice; the fault hits while it is written.
            Workload::Upload => (
                ClientWorkload::Upload { bytes: each / 2 },
                at_share(chance.random_range(SHARE) / 2.0),
            ),
            // As an upload.
            Workload::Post => (
                ClientWorkload::Post {
                    bytes: each / 2,
                    piece: u64::from(options.request_mb) * 1_000_000,
                },
                at_share(chance.random_range(SHARE) / 2.0),
            ),
            Workload::Request => {
                let until = Until::Told;
                (ClientWorkload::Request { size: SMALL, until }, quiet(&mut chance))
            }
            Workload::Idle => (ClientWorkload::Idle { size: SMALL }, quiet(&mut chance)),
        };
        let protocol = options.application().protocol();
        let mut plan = Plan::new(server, protocol, workload);
        plan.connections = options.connections as usize;
        plan.idle = idle as usize;
        plan.refusable = options.log.at_limit == Some(AtLimit::Unprotect);
        plan.hashed = plan.idle + HASHED_MAX;
        plan.timeline_points = (TIMELINE_POINTS_MAX / plan.connections).clamp(2, plan.timeline_points);
        plan.seed = seed;
        let deadline = if options.baseline {
            BASELINE_DEADLINE
        } else {
            DEADLINE
        };
        let deadline = deadline + ROUND_DEADLINE * options.rounds.unwrap_or(0);
        plan.deadline_ms = deadline.as_millis() as u64;
        Self { plan, moment }
    }

    /// The content that a file server must have: `(seed, length)` of each file.
    #[must_use]
    pub fn files(&self) -> Vec<(u64, u64)> {
        let length = match self.plan.workload {
            ClientWorkload::Download { bytes } => bytes,
            ClientWorkload::Upload { .. } | ClientWorkload::Post { .. } => return Vec::new(),
            ClientWorkload::Request { size, .. } | ClientWorkload::Idle { size } => size,
        };
        let mut lengths = vec![length];
        if self.plan.idle > 0 && length != Plan::IDLE_SIZE {
            lengths.push(Plan::IDLE_SIZE);
        }
        lengths
            .into_iter()
            .map(|length| (self.plan.seed, length))
            .collect()
    }
}

fn duration(options: &Options) -> f64 {
    if options.fault.is_long() {
        DURATION_LONG_S
    } else {
        DURATION_S
    }
}

fn quiet(chance: &mut Xoshiro256PlusPlus) -> Moment {
    Moment::After(Duration::from_millis(chance.random_range(QUIET_MS)))
}

fn machine(options: &Options) -> f64 {
    match (options.policy, options.workload) {
        (Policy::Http, Workload::Post) => MACHINE_STORE,
        (Policy::Http, _) => MACHINE_HTTP,
        (Policy::Replica, _) => MACHINE_REPLICA,
    }
}

/// What all connections together will get of a `machine`, roughly, in bytes/s.
fn throughput(machine: f64, way: Way, connections: u32) -> f64 {
    let rate = way
        .rate_mbit
        .map_or(f64::INFINITY, |mbit| mbit * 1e6 / 8.0 * GOODPUT);
    let lossy = match (way.loss_percent, way.rtt_ms) {
        (Some(percent), Some(ms)) if percent > 0.0 && ms > 0.0 => {
            let each = MSS / (ms / 1e3) * MATHIS / (percent / 100.0).sqrt();
            each * f64::from(connections)
        }
        _ => f64::INFINITY,
    };
    machine.min(rate).min(lossy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(rtt_ms: f64, rate_mbit: Option<f64>, loss_percent: f64) -> Way {
        Way {
            rtt_ms: Some(rtt_ms),
            rate_mbit,
            loss_percent: Some(loss_percent),
        }
    }

    #[test]
    fn the_narrowest_part_decides_how_much_is_sent() {
        let http = |way, connections| throughput(MACHINE_HTTP, way, connections);
        assert_eq!(http(Way::default(), 20), MACHINE_HTTP);
        assert_eq!(http(way(20.0, Some(80.0), 0.0), 20), 9e6);
        let lossy = http(way(20.0, None, 1.0), 1);
        assert!((0.8e6..0.9e6).contains(&lossy), "{lossy}");
    }
}
