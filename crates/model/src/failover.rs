//! When a failover happens, which flows it hits, and what helps them (HALR thesis, 4.1).

/// A period in which no packet passes the cluster. Its times count from an arbitrary moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failover {
    /// When the failover begins (t2), seconds.
    pub start_s: f64,
    /// How long the failover lasts (T_failover), seconds.
    pub duration_s: f64,
}

impl Failover {
    /// When the failover ends (t3), seconds.
    pub fn end_s(&self) -> f64 {
        self.start_s + self.duration_s
    }

    /// Whether a packet that reaches the cluster at this moment is lost.
    pub fn covers(&self, moment_s: f64) -> bool {
        (self.start_s..self.end_s()).contains(&moment_s)
    }

    /// The case of a flow whose SYN reaches the cluster at `arrival_s` and which takes `normal_s` if undisturbed.
    pub fn case(&self, arrival_s: f64, normal_s: f64) -> FailoverCase {
        if self.covers(arrival_s) {
            FailoverCase::SynLoss
        } else if arrival_s < self.start_s && arrival_s + normal_s > self.start_s {
            FailoverCase::DataLoss
        } else {
            FailoverCase::Undisturbed
        }
    }
}

/// How a failover hits a flow (thesis, 4.1, Figure 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverCase {
    /// Case 1: the flow ends before the failover, or begins after it.
    Undisturbed,
    /// Case 2: the flow begins less than one normal completion time before the failover.
    DataLoss,
    /// Case 3: the flow begins during the failover.
    SynLoss,
}

/// The mechanism that makes an interrupted flow continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowRecovery {
    /// The sender's retransmission timer.
    Timeout,
    /// The edge, which sends the cached packets again as soon as the failover is over (HALR).
    Local,
}

/// Range of the completion times of the flows that one failover disturbs. Its two ends are the lines of Figures 18 and 19.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The shortest completion time, seconds.
    pub min_s: f64,
    /// The longest completion time, seconds.
    pub max_s: f64,
}

impl Range {
    pub(crate) fn of(times_s: impl Iterator<Item = f64>) -> Self {
        let none = Self {
            min_s: f64::INFINITY,
            max_s: f64::NEG_INFINITY,
        };
        times_s.fold(none, |range, time_s| Self {
            min_s: range.min_s.min(time_s),
            max_s: range.max_s.max(time_s),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thesis, 7.2.2: with 0.6 s per flow and a failover of 3 s that begins at 2 s, flows that arrive from 1.4 to 2 s belong to
    /// Case 2. Flows that arrive from 2 to 5 s belong to Case 3.
    #[test]
    fn arrivals_fall_into_three_cases() {
        let failover = Failover {
            start_s: 2.0,
            duration_s: 3.0,
        };
        let cases = [
            (1.39, FailoverCase::Undisturbed),
            (1.41, FailoverCase::DataLoss),
            (1.99, FailoverCase::DataLoss),
            (2.0, FailoverCase::SynLoss),
            (4.99, FailoverCase::SynLoss),
            (5.0, FailoverCase::Undisturbed),
        ];
        for (arrival_s, case) in cases {
            assert_eq!(failover.case(arrival_s, 0.6), case, "arrival at {arrival_s} s");
        }
    }
}
