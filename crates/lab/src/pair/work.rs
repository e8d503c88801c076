//! The work of the clients, and the moment of the fault.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{PairOptions, PolicyOption, WorkloadOption};
use crate::client::{ClientPlan, Until, Workload as ClientWorkload};
use crate::emulator::WanOptions;
use crate::node::{AtLimitOption, ServerSoftware};

/// Content bytes of each exchange of the workloads `request` and `idle`. Also the minimum size of a file, and of a connection's transfer.
const SMALL: u64 = 1024;
/// Intended duration of a download or an upload, in seconds.
const DURATION_S: f64 = 3.0;
/// The same for faults that have more than one event.
const DURATION_LONG_S: f64 = 5.0;
/// The same for faults that come when the connections that have moved are protected again. With policy `snapshot`, a connection that gets a small
/// share of the path needs seconds for it.
const DURATION_AFTER_MOVE_S: f64 = 10.0;
/// Intended duration of one file of a download in rounds, in seconds.
const FILE_S: f64 = 0.3;
/// Additional time limit of the clients for each round.
const ROUND_DEADLINE: Duration = Duration::from_secs(20);
/// Throughput in bytes/s of a machine with two cores. The same cores run the wire, the captures, and the clients, which check every byte.
const MACHINE_HTTP: f64 = 400e6;
/// Throughput of the machine with the workload `post`, in bytes/s. The server writes the content of a PUT to a file once, and the content
/// of a POST twice.
const MACHINE_STORE: f64 = 200e6;
/// Throughput of the machine with the policies `replica` and `replay`, in bytes/s. With a replica, two servers process every byte.
const MACHINE_REPLICA: f64 = 150e6;
/// Share of a limited rate that carries content. Headers and a few retransmissions use the rest.
const GOODPUT: f64 = 0.9;
/// Maximum segment size in bytes. On a path with losses, a connection's throughput is MSS / RTT · C / √p (Mathis et al. 1997).
const MSS: f64 = 1448.0;
/// C in this formula.
const MATHIS: f64 = 1.2;
/// Share of a transfer's bytes after which the fault hits.
const SHARE: std::ops::Range<f64> = 0.15..0.3;
/// Time after which the fault hits requests, idle connections, and downloads in rounds, in milliseconds.
const QUIET_MS: std::ops::Range<u64> = 500..700;
/// Maximum number of points of all connections' timelines together.
const TIMELINE_POINTS_MAX: usize = 50_000;
/// Maximum number of connections at work whose received bytes are hashed. With hundreds of them, hashing would use the CPU time that
/// the connections need, so the client itself would cause stalls.
const HASHED_MAX: usize = 64;
/// Time limit for a connection. Many times the expected duration, also on a busy machine, so that the limit ends only connections that
/// hang.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time limit for a connection without steadfast. Such a connection may hang for ever, so a short limit saves time.
const BASELINE_DEADLINE: Duration = Duration::from_secs(12);

/// The work of one run.
#[derive(Clone, Debug)]
pub struct Work {
    /// The clients' plan.
    pub plan: ClientPlan,
    /// The moment of the fault.
    pub moment: Moment,
}

/// The moment of the fault. The fault comes only after every connection has begun to transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// When the number of content bytes since the run's beginning has reached this value. Bytes count when the clients have received them
    /// or the server has confirmed them.
    AtBytes(u64),
    /// This long after every connection has begun to transfer.
    After(Duration),
}

impl Work {
    /// The work that `options` describe. `seed` decides the random choices.
    pub fn new(options: &PairOptions, seed: u64) -> Self {
        let mut chance = Xoshiro256PlusPlus::seed_from_u64(seed);
        let busy = u64::from(options.busy());
        let total = options.megabytes.map_or_else(
            || (throughput(machine(options), options.way, options.busy()) * duration(options)) as u64,
            |megabytes| u64::from(megabytes) * 1_000_000,
        );
        let each = (total / busy).max(SMALL);
        let idle = u64::from(options.connections) - busy;
        let before = idle * ClientPlan::IDLE_SIZE;
        let is_random = options.application() == ServerSoftware::Cgi;
        let at_share = |share: f64| Moment::AtBytes(before + (each as f64 * busy as f64 * share) as u64);
        let (workload, moment) = match options.workload {
            // Many small files in sequence, because a connection is protected again only from its next request on.
            WorkloadOption::Download if options.rounds.is_some() => {
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
            WorkloadOption::Download => (
                ClientWorkload::Download { bytes: each },
                at_share(chance.random_range(SHARE)),
            ),
            // The value is read back, so each byte passes twice. The fault hits during the write.
            WorkloadOption::Upload => (
                ClientWorkload::Upload { bytes: each / 2 },
                at_share(chance.random_range(SHARE) / 2.0),
            ),
            // The content is read back, as with an upload.
            WorkloadOption::Post => (
                ClientWorkload::Post {
                    bytes: each / 2,
                    piece: u64::from(options.request_mb) * 1_000_000,
                },
                // The reply to a large request confirms many bytes at once. By then, a log may never reach its limit again.
                if options.log.at_limit.is_some() {
                    quiet(&mut chance)
                } else {
                    at_share(chance.random_range(SHARE) / 2.0)
                },
            ),
            WorkloadOption::Request => {
                let until = Until::Told;
                let size = if is_random {
                    u64::from(options.random_kb) * 1000
                } else {
                    SMALL
                };
                (ClientWorkload::Request { size, until }, quiet(&mut chance))
            }
            WorkloadOption::Idle => (ClientWorkload::Idle { size: SMALL }, quiet(&mut chance)),
        };
        let protocol = options.application().protocol();
        let mut plan = ClientPlan::new(options.service(), protocol, workload);
        plan.connections = options.connections as usize;
        plan.idle = idle as usize;
        plan.refusable = options.log.at_limit == Some(AtLimitOption::Unprotect);
        plan.random = is_random;
        // Random content has a hash for each reply.
        plan.hashed = if is_random { 0 } else { plan.idle + HASHED_MAX };
        plan.timeline_points = (TIMELINE_POINTS_MAX / plan.connections).clamp(2, plan.timeline_points);
        plan.seed = seed;
        if let (Some(per_s), ClientWorkload::Request { size, .. }) = (options.requests_per_s, workload) {
            plan.bytes_per_second = Some((u64::from(per_s) * size / busy).max(1));
        }
        plan.deadline_ms = deadline(options).as_millis() as u64;
        Self { plan, moment }
    }

    /// The files that a file server must have: `(seed, length)` of each.
    pub fn files(&self) -> Vec<(u64, u64)> {
        if self.plan.random {
            return Vec::new();
        }
        let length = match self.plan.workload {
            ClientWorkload::Download { bytes } => bytes,
            ClientWorkload::Upload { .. } | ClientWorkload::Post { .. } => return Vec::new(),
            ClientWorkload::Request { size, .. } | ClientWorkload::Idle { size } => size,
        };
        let mut lengths = vec![length];
        if self.plan.idle > 0 && length != ClientPlan::IDLE_SIZE {
            lengths.push(ClientPlan::IDLE_SIZE);
        }
        lengths
            .into_iter()
            .map(|length| (self.plan.seed, length))
            .collect()
    }
}

fn duration(options: &PairOptions) -> f64 {
    if options.fault.follows_a_move() {
        DURATION_AFTER_MOVE_S
    } else if options.fault.is_long() {
        DURATION_LONG_S
    } else {
        DURATION_S
    }
}

fn deadline(options: &PairOptions) -> Duration {
    let once = if options.baseline {
        BASELINE_DEADLINE
    } else {
        DEADLINE
    };
    once + ROUND_DEADLINE * options.rounds.unwrap_or(0)
}

fn quiet(chance: &mut Xoshiro256PlusPlus) -> Moment {
    Moment::After(Duration::from_millis(chance.random_range(QUIET_MS)))
}

fn machine(options: &PairOptions) -> f64 {
    match (options.policy, options.workload) {
        (PolicyOption::Http, WorkloadOption::Post) => MACHINE_STORE,
        (PolicyOption::Http, _) => MACHINE_HTTP,
        (PolicyOption::Replica | PolicyOption::Replay | PolicyOption::Snapshot, _) => MACHINE_REPLICA,
    }
}

/// Approximate throughput of all connections together, in bytes/s. `machine` is the limit of the machine.
fn throughput(machine: f64, way: WanOptions, connections: u32) -> f64 {
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

    fn way(rtt_ms: f64, rate_mbit: Option<f64>, loss_percent: f64) -> WanOptions {
        WanOptions {
            rtt_ms: Some(rtt_ms),
            rate_mbit,
            loss_percent: Some(loss_percent),
        }
    }

    #[test]
    fn the_narrowest_part_decides_how_much_is_sent() {
        let http = |way, connections| throughput(MACHINE_HTTP, way, connections);
        assert_eq!(http(WanOptions::default(), 20), MACHINE_HTTP);
        assert_eq!(http(way(20.0, Some(80.0), 0.0), 20), 9e6);
        let lossy = http(way(20.0, None, 1.0), 1);
        assert!((0.8e6..0.9e6).contains(&lossy), "{lossy}");
    }
}
