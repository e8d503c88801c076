//! The retransmission timeout (RFC 6298).

use std::time::Duration;

use super::TcpConfig;

/// Retransmission timeout after a handshake that measured no round trip (RFC 6298 §5.7). Linux also uses it for a restored
/// socket.
pub(super) const RTO_UNMEASURED: Duration = Duration::from_secs(3);

/// Clock granularity G of RFC 6298 §2.
const GRANULARITY: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(super) struct TcpRto {
    /// Smoothed round-trip time and its variation.
    measured: Option<(Duration, Duration)>,
    base: Duration,
    backoff: u32,
    min: Duration,
    max: Duration,
}

impl TcpRto {
    pub fn new(config: &TcpConfig) -> Self {
        Self {
            measured: None,
            base: config.rto_initial,
            backoff: 0,
            min: config.rto_min,
            max: config.rto_max,
        }
    }

    /// A round trip took `rtt` (RFC 6298 §2.2, §2.3).
    pub fn on_sample(&mut self, rtt: Duration) {
        let (smoothed, variation) = match self.measured {
            None => (rtt, rtt / 2),
            Some((smoothed, variation)) => (
                (smoothed * 7 + rtt) / 8,
                (variation * 3 + smoothed.abs_diff(rtt)) / 4,
            ),
        };
        self.measured = Some((smoothed, variation));
        self.base = smoothed + GRANULARITY.max(variation * 4);
    }

    /// The handshake is over. If it gave no sample, our SYN was sent twice, so the first timeout was too short
    /// (RFC 6298 §5.7).
    pub fn on_opened(&mut self) {
        if self.measured.is_none() {
            self.base = RTO_UNMEASURED;
        }
        self.backoff = 0;
    }

    pub fn on_timeout(&mut self) {
        self.backoff += 1;
    }

    /// New data was acknowledged, or the window opened: the backoff starts anew, as in Linux.
    pub fn on_progress(&mut self) {
        self.backoff = 0;
    }

    /// Current retransmission timeout, within the configured bounds (RFC 6298 §2.4, §2.5).
    pub fn current(&self) -> Duration {
        let base = self.base.max(self.min);
        let factor = 1_u32.checked_shl(self.backoff).unwrap_or(u32::MAX);
        base.saturating_mul(factor).min(self.max)
    }

    /// The smoothed round-trip time, if one was measured.
    pub fn smoothed(&self) -> Option<Duration> {
        self.measured.map(|(smoothed, _)| smoothed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_timeout_follows_the_measured_round_trips() {
        let mut rto = TcpRto::new(&TcpConfig::default());
        assert_eq!(rto.current(), 1000 * MS);
        rto.on_sample(300 * MS);
        assert_eq!(rto.current(), 900 * MS); // 300 + 4 · 150
        rto.on_sample(380 * MS);
        assert_eq!(rto.smoothed(), Some(310 * MS)); // (7 · 300 + 380) / 8
        assert_eq!(rto.current(), 840 * MS); // 310 + 4 · (3 · 150 + 80) / 4
        for _ in 0..1000 {
            rto.on_sample(MS);
        }
        assert_eq!(rto.current(), 200 * MS);
    }

    #[test]
    fn it_doubles_until_the_largest_and_starts_anew_with_progress() {
        let mut rto = TcpRto::new(&TcpConfig::default());
        for seconds in [2, 4, 8, 16, 32, 64, 120, 120] {
            rto.on_timeout();
            assert_eq!(rto.current(), Duration::from_secs(seconds));
        }
        for _ in 0..40 {
            rto.on_timeout();
        }
        assert_eq!(rto.current(), Duration::from_secs(120));
        rto.on_progress();
        assert_eq!(rto.current(), Duration::from_secs(1));
    }

    #[test]
    fn a_handshake_without_a_sample_makes_it_careful() {
        let mut rto = TcpRto::new(&TcpConfig::default());
        rto.on_timeout();
        rto.on_opened();
        assert_eq!(rto.current(), RTO_UNMEASURED);
        let mut rto = TcpRto::new(&TcpConfig::default());
        rto.on_sample(10 * MS);
        rto.on_opened();
        assert_eq!(rto.current(), 200 * MS);
    }
}
