//! The retransmission timeout of one destination (RFC 9260 §6.3.1, §6.3.3 E2).

use std::time::Duration;

use super::config::SctpConfig;

/// Estimates the round-trip time of a destination.
#[derive(Clone, Debug)]
pub struct PathRto {
    /// Smoothed round-trip time (SRTT) and its variation (RTTVAR), once there is a measurement.
    smoothed: Option<(Duration, Duration)>,
    rto: Duration,
    min: Duration,
    max: Duration,
}

/// Least variation: the granularity of the clock (RFC 9260 §6.3.1, G1).
const GRANULARITY: Duration = Duration::from_millis(1);

impl PathRto {
    /// The estimate before the first measurement.
    pub const fn new(config: &SctpConfig) -> Self {
        Self {
            smoothed: None,
            rto: config.rto_initial,
            min: config.rto_min,
            max: config.rto_max,
        }
    }

    /// A round-trip time was measured. This ends the backoff.
    pub fn on_measured(&mut self, rtt: Duration) {
        let (srtt, variation) = match self.smoothed {
            None => (rtt, rtt / 2),
            Some((srtt, variation)) => {
                // RTO.Alpha is 1/8, RTO.Beta 1/4.
                let variation = variation * 3 / 4 + srtt.abs_diff(rtt) / 4;
                (srtt * 7 / 8 + rtt / 8, variation)
            }
        };
        self.smoothed = Some((srtt, variation.max(GRANULARITY)));
        self.rto = (srtt + variation.max(GRANULARITY) * 4).clamp(self.min, self.max);
    }

    /// A timer ran out.
    pub fn on_timeout(&mut self) {
        self.rto = (self.rto * 2).min(self.max);
    }

    /// RTO.Min.
    pub const fn least(&self) -> Duration {
        self.min
    }

    /// The timeout now.
    pub const fn get(&self) -> Duration {
        self.rto
    }

    /// The timeout without its bounds: the smoothed round-trip time plus four times its variation. `None` before the first measurement.
    pub fn usual(&self) -> Option<Duration> {
        self.smoothed.map(|(srtt, variation)| srtt + variation * 4)
    }

    /// The smoothed round-trip time.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(|(srtt, _)| srtt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_smooths_bounds_and_backs_off() {
        let mut rto = PathRto::new(&SctpConfig {
            rto_min: 100 * MS,
            ..SctpConfig::default()
        });
        assert_eq!(rto.get(), 1000 * MS);
        rto.on_measured(80 * MS);
        assert_eq!((rto.smoothed(), rto.get()), (Some(80 * MS), 240 * MS));
        rto.on_measured(160 * MS);
        assert_eq!((rto.smoothed(), rto.get()), (Some(90 * MS), 90 * MS + 200 * MS));
        for _ in 0..9 {
            rto.on_timeout();
        }
        assert_eq!(rto.get(), 60_000 * MS);
        rto.on_measured(90 * MS);
        assert_eq!(rto.get(), 90 * MS + 150 * MS);
        for _ in 0..100 {
            rto.on_measured(10 * MS);
        }
        assert_eq!(rto.get(), 100 * MS);
    }
}
