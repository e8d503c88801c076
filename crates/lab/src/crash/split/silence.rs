//! The longest silence that is allowed to a node that alone serves the clients, and the duration of each fault, which must show
//! it.

use std::time::Duration;

use super::fault::SplitFault;
use crate::crash::Options;
use crate::node::{Assume, Pair};

/// Minimum duration of a fault. Longer than detection, a lease and an agent's timeout together.
const HOLD: Duration = Duration::from_millis(2000);
/// Longest time until a node that hears its peer finds out that one of them has lost the router (docs/paths.md): an answer is missing after
/// 250 ms, and a doubt lasts for 250 ms.
const PATH_LOSS: Duration = Duration::from_millis(500);
/// Time after which an agent is declared dead whose kernel still answers, as on a paused node: the daemons' default `agent_timeout_ms`.
const AGENT_TIMEOUT: Duration = Duration::from_millis(1000);
/// Longest time from the right to claim to a verified claim: the time between the first two announcements.
const CLAIM: Duration = Duration::from_millis(20);
/// First retransmission timeout of Linux.
const RTO: Duration = Duration::from_millis(200);
/// Delay that a busy machine may add.
const MARGIN: Duration = Duration::from_millis(500);

/// Longest time from the fault until its survivor may speak without a time limit, as configured. `None` if the fault has no
/// survivor.
fn right_after(fault: SplitFault, options: &Options, detection: Duration) -> Option<Duration> {
    let survivor = fault.survivor()?;
    if fault.nodes_hear_each_other(options.links) {
        // The nodes compare their paths. Neither waits for a lease, and nobody is fenced.
        return Some(detection.max(PATH_LOSS) + CLAIM);
    }
    let assume = options.assume;
    let detection = match fault {
        SplitFault::PrimaryPaused | SplitFault::WirePaused => detection.max(AGENT_TIMEOUT),
        _ => detection,
    };
    let answered = assume.fence_delay(survivor) + assume.takes();
    Some(match survivor {
        // The backup speaks by its lease until the arbiter has answered. It waits for no lease to end.
        1 => detection + answered,
        // The primary asks the arbiter when the lease of the backup has ended.
        _ => {
            let listens = match assume {
                // Without an arbiter, outside hosts must have been heard for the time of a detection.
                Assume::FailStop => detection,
                Assume::Fence | Assume::SlowFence | Assume::Etcd => Duration::ZERO,
            };
            detection.max(Pair::lease_end()) + answered + listens + CLAIM
        }
    })
}

/// Longest time for which neither node may speak in `fault`. `None` if the fault has no survivor.
///
/// A waiting connection goes on at its next retransmission. The retransmission timer doubles each time, so the next one comes at
/// most after the time that the connection has waited, plus one first timeout.
pub fn silence_max(fault: SplitFault, options: &Options, detection: Duration) -> Option<Duration> {
    let right = right_after(fault, options, detection)?;
    Some(2 * right + RTO + MARGIN)
}

/// Duration of `fault`. Long enough that the survivor must go on before the fault ends.
pub fn hold(fault: SplitFault, options: &Options, detection: Duration) -> Duration {
    let least = HOLD + options.assume.takes();
    silence_max(fault, options, detection).map_or(least, |silence| least.max(silence + MARGIN))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::crash::Workload;

    const DETECTION: Duration = Duration::from_millis(80);

    fn options(assume: Assume, links: u8) -> Options {
        Options {
            assume,
            links,
            ..Options::single(Workload::Request, 1, 1, None)
        }
    }

    #[test]
    fn a_survivor_goes_on_before_the_fault_has_ended() {
        for &assume in Assume::value_variants() {
            for &fault in SplitFault::value_variants() {
                for links in [1, 2] {
                    let options = options(assume, links);
                    let hold = hold(fault, &options, DETECTION);
                    let silence = silence_max(fault, &options, DETECTION);
                    assert!(
                        silence.is_none_or(|silence| silence < hold),
                        "{assume:?} {fault:?}"
                    );
                    assert_eq!(silence.is_some(), fault.survivor().is_some());
                }
            }
        }
    }

    #[test]
    fn a_primary_waits_for_the_lease_its_delay_and_the_fence() {
        let right = |fault, assume, links| right_after(fault, &options(assume, links), DETECTION).unwrap();
        let isolated = |assume, links| right(SplitFault::WireIsolated, assume, links).as_millis();
        assert_eq!(isolated(Assume::Fence, 1), 318 + 20);
        assert_eq!(isolated(Assume::SlowFence, 1), 318 + 2500 + 2000 + 20);
        assert_eq!(isolated(Assume::SlowFence, 2), 500 + 20);
        // The backup has no delay, and waits for no lease.
        let backup = right(SplitFault::PrimaryIsolated, Assume::SlowFence, 1);
        assert_eq!(backup.as_millis(), 80 + 2000);
        let paused = right(SplitFault::WirePaused, Assume::SlowFence, 1);
        assert_eq!(paused.as_millis(), 1000 + 2500 + 2000 + 20);
    }
}
