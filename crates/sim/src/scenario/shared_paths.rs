//! Many bulk transfers over the same two paths (paper: Caro, Amer, Stewart, section V, global failover synchronization).

use std::time::Duration;

use proto::Instant;
use proto::sctp::association::Association;
use proto::sctp::{SctpMessage, UserData};
use serde::Deserialize;

use super::multipath::MultipathTransfer;
use crate::flow::seconds;
use crate::multipath::InvalidMultipath;
use crate::multipath::shared::{CoreQueue, SharedNetwork};

/// The scenario: each pair of hosts has one association that always has data.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedPaths {
    /// Number of associations.
    pub associations: usize,
    /// The queue of the core links.
    pub queue: CoreQueue,
    /// Length of the warm-up, in seconds. Nothing is counted during the warm-up.
    #[serde(with = "seconds")]
    pub warm_up: Duration,
    /// Everything else: paths, thresholds, policy, the end of the run, and the seed. `bytes` is not used.
    pub transfer: MultipathTransfer,
}

/// Result of a run, after the warm-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPathsResult {
    /// Number of times that a retransmission timer of a primary destination ran out, over all associations, in each second.
    pub timeouts: Vec<u32>,
    /// Bytes delivered to all applications in each second.
    pub delivered: Vec<u64>,
}

impl Default for SharedPaths {
    fn default() -> Self {
        Self {
            associations: 20,
            queue: CoreQueue::DropTail,
            warm_up: Duration::from_secs(20),
            transfer: MultipathTransfer {
                path_max_retrans: 0,
                until: Duration::from_secs(320),
                ..MultipathTransfer::default()
            },
        }
    }
}

impl SharedPaths {
    /// Runs the scenario.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run(&self) -> Result<SharedPathsResult, InvalidMultipath> {
        let transfer = &self.transfer;
        let mut network = SharedNetwork::new(
            transfer.sctp(),
            &transfer.paths,
            self.queue,
            self.associations,
            transfer.seed,
        )?;
        let (begin, until) = (Instant::ZERO + self.warm_up, Instant::ZERO + transfer.until);
        let seconds = usize::try_from(until.since(begin).as_secs()).unwrap_or(usize::MAX);
        let seconds = seconds.min(SECONDS_MAX);
        let mut result = SharedPathsResult {
            timeouts: vec![0; seconds],
            delivered: vec![0; seconds],
        };
        let mut counted = vec![0; self.associations];
        while let Some((pair, host)) = network.step(until) {
            let now = network.now();
            let second = usize::try_from(now.since(begin).as_secs()).ok();
            let second = second.filter(|second| now >= begin && *second < seconds);
            if let Some(association) = network.association(pair, host) {
                let timeouts = association.destinations()[0].counts().timeouts;
                if host == 0 {
                    fill(association, transfer.message_bytes);
                    if let Some(second) = second.filter(|_| timeouts > counted[pair]) {
                        result.timeouts[second] += 1;
                    }
                    counted[pair] = timeouts;
                } else {
                    let bytes = read(association);
                    if let Some(second) = second {
                        result.delivered[second] += bytes;
                    }
                }
            }
            network.settle(pair, host);
        }
        Ok(result)
    }
}

/// Bound on the seconds that are counted.
const SECONDS_MAX: usize = 1_000_000;

/// Fills the send buffer.
fn fill(association: &mut Association, message_bytes: u32) {
    let message = SctpMessage {
        stream: 0,
        protocol: 0,
        is_unordered: false,
        data: UserData::Counted(message_bytes),
    };
    while association.send(message.clone()).is_ok() {}
}

/// Reads everything that has arrived. Returns the number of bytes.
fn read(association: &mut Association) -> u64 {
    let messages = std::iter::from_fn(|| association.receive());
    messages.map(|message| message.data.len() as u64).sum()
}

/// Variance over mean of some counts: 1 if the events are independent, and greater if they come together. `None` without events.
pub fn dispersion(counts: &[u32]) -> Option<f64> {
    let bins = counts.len() as f64;
    let mean = counts.iter().map(|count| f64::from(*count)).sum::<f64>() / bins;
    let squares = counts.iter().map(|count| (f64::from(*count) - mean).powi(2));
    let variance = squares.sum::<f64>() / bins;
    (mean > 0.0).then_some(variance / mean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multipath::PathCutTime;

    #[test]
    fn events_that_come_together_are_dispersed() {
        assert_eq!(dispersion(&[2; 50]), Some(0.0));
        let mut together = [0; 100];
        together[3] = 100;
        assert_eq!(dispersion(&together), Some(99.0));
        assert_eq!((dispersion(&[0; 9]), dispersion(&[])), (None, None));
    }

    /// The links are full, and a cut of the primary makes all senders time out.
    #[test]
    fn associations_share_the_core_links() {
        let mut scenario = SharedPaths {
            associations: 4,
            warm_up: Duration::from_secs(5),
            ..SharedPaths::default()
        };
        scenario.transfer.until = Duration::from_secs(15);
        let whole = scenario.run().unwrap();
        // The bytes that fit in 10 s at 10 Mb/s, without the headers.
        let delivered = whole.delivered.iter().sum::<u64>();
        assert!((11_500_000..12_500_000).contains(&delivered), "{whole:?}");
        scenario.transfer.paths[0].cuts = vec![PathCutTime {
            from: Duration::from_secs(8),
            until: Duration::from_secs(11),
        }];
        let cut = scenario.run().unwrap();
        assert_eq!(whole.timeouts.iter().sum::<u32>(), 0);
        assert!(cut.timeouts.iter().sum::<u32>() >= 4, "{cut:?}");
    }

    /// The primary path fails for all senders for 3 s. Returns the dispersion of the timeouts in the 20 s from the beginning of the outage,
    /// and in the 80 s after these 20 s. Both values are means of four seeds.
    fn after_an_outage(queue: CoreQueue, path_max_retrans: u32) -> [f64; 2] {
        let runs = (1..=4).map(|seed| {
            let outage = PathCutTime {
                from: Duration::from_secs(39),
                until: Duration::from_secs(42),
            };
            let mut scenario = SharedPaths {
                queue,
                warm_up: outage.from,
                ..SharedPaths::default()
            };
            scenario.transfer.path_max_retrans = path_max_retrans;
            scenario.transfer.seed = seed;
            scenario.transfer.until = Duration::from_secs(139);
            scenario.transfer.paths[0].cuts = vec![outage];
            let timeouts = scenario.run().unwrap().timeouts;
            let (soon, later) = timeouts.split_at(20);
            [dispersion(soon).unwrap(), dispersion(later).unwrap()]
        });
        let sums = runs.fold([0.0, 0.0], |[a, b], [soon, later]| [a + soon, b + later]);
        sums.map(|sum| sum / 4.0)
    }

    /// Paper, section V: failovers are at most as synchronized as timeouts, and AQM ends the synchronization of failovers. In this
    /// simulation, failovers do not stay synchronized with either queue, so there is no cycle.
    #[test]
    fn failovers_are_no_more_synchronized_than_timeouts_and_do_not_stay_so() {
        let [failovers, later] = after_an_outage(CoreQueue::DropTail, 0);
        let [timeouts, _] = after_an_outage(CoreQueue::DropTail, 5);
        let [_, later_with_red] = after_an_outage(CoreQueue::Red, 0);
        assert!(failovers > 4.0 && failovers < timeouts, "{failovers}, {timeouts}");
        assert!(later < 1.4 && later_with_red < 1.4, "{later}, {later_with_red}");
    }
}
