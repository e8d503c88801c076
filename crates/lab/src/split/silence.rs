//! The longest allowed silence towards clients after a fault that leaves one serving node, and the duration of each fault. A fault must
//! last longer than the longest allowed silence. Otherwise a survivor that is silent for too long would not be noticed.

use std::time::Duration;

use super::fault::SplitFault;
use crate::node::{Assume, PairSetup};
use crate::pair::PairOptions;

/// Minimum duration of a fault. Longer than detection, a lease and an agent's timeout together.
const HOLD: Duration = Duration::from_millis(2000);
/// Longest time until two nodes that hear each other find out that one of them has lost the router (docs/paths.md). An answer counts as
/// missing after 250 ms. Then the paths are under suspicion for another 250 ms.
const PATH_LOSS: Duration = Duration::from_millis(500);
/// Time after which a silent agent is declared dead although its kernel still answers, as on a paused node. It is the daemons' default
/// for `agent_timeout_ms`.
const AGENT_TIMEOUT: Duration = Duration::from_millis(1000);
/// Longest time from when a node may claim the VIP until the claim is verified: the interval between the first two announcements.
const CLAIM: Duration = Duration::from_millis(20);
/// First retransmission timeout of Linux.
const RTO: Duration = Duration::from_millis(200);
/// Delay that a busy machine may add.
const MARGIN: Duration = Duration::from_millis(500);

/// Longest time, under these options, from the fault until the survivor has a right to speak that does not expire. `None` if the
/// fault has no survivor.
fn right_after(fault: SplitFault, options: &PairOptions, detection: Duration) -> Option<Duration> {
    let survivor = fault.survivor()?;
    if fault.nodes_hear_each_other(options.lan.links) {
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
        // The backup has a lease of its own, and speaks under this lease until the arbiter has answered. It waits for no lease to end.
        1 => detection + answered,
        // The primary asks the arbiter when the lease of the backup has ended.
        _ => {
            let listens = match assume {
                // Without an arbiter, the primary must hear outside hosts for one detection time before it claims.
                Assume::FailStop => detection,
                Assume::Fence | Assume::SlowFence | Assume::Etcd => Duration::ZERO,
            };
            detection.max(PairSetup::lease_end()) + answered + listens + CLAIM
        }
    })
}

/// Longest allowed time in which no node speaks, from `fault` on. `None` if the fault has no survivor.
///
/// A waiting connection continues at its client's next retransmission. The retransmission timer doubles each time. So if the survivor
/// gets the right to speak at a time t after the fault, the next retransmission comes at most 2t + RTO after the fault.
pub fn silence_max(fault: SplitFault, options: &PairOptions, detection: Duration) -> Option<Duration> {
    let right = right_after(fault, options, detection)?;
    Some(2 * right + RTO + MARGIN)
}

/// Duration of `fault`. It is longer than the longest allowed silence, so a correct survivor serves clients before the fault ends.
pub fn hold(fault: SplitFault, options: &PairOptions, detection: Duration) -> Duration {
    let least = HOLD + options.assume.takes();
    silence_max(fault, options, detection).map_or(least, |silence| least.max(silence + MARGIN))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::pair::{LanOptions, WorkloadOption};

    const DETECTION: Duration = Duration::from_millis(80);

    fn options(assume: Assume, links: u8) -> PairOptions {
        PairOptions {
            assume,
            lan: LanOptions {
                links,
                ..LanOptions::default()
            },
            ..PairOptions::new(WorkloadOption::Request, 1)
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
        // The backup has no fence delay, and need not wait for the end of a lease.
        let backup = right(SplitFault::PrimaryIsolated, Assume::SlowFence, 1);
        assert_eq!(backup.as_millis(), 80 + 2000);
        let paused = right(SplitFault::WirePaused, Assume::SlowFence, 1);
        assert_eq!(paused.as_millis(), 1000 + 2500 + 2000 + 20);
    }
}
