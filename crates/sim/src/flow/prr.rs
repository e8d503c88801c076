//! Proportional rate reduction (RFC 9937): how much a sender sends during fast recovery. At the end of the recovery, `threshold` segments
//! are in flight, and the sender has neither paused nor sent a burst. All amounts are in segments.

/// One recovery.
#[derive(Clone, Debug, Default)]
pub(super) struct Prr {
    /// RecoverFS: segments in flight when the recovery began.
    flight: f64,
    threshold: f64,
    delivered: f64,
    sent: f64,
}

impl Prr {
    /// A recovery that begins with `flight` segments in flight, including those that the current acknowledgement delivers.
    pub const fn new(flight: f64, threshold: f64) -> Self {
        Self {
            flight,
            threshold,
            delivered: 0.0,
            sent: 0.0,
        }
    }

    /// A segment leaves.
    pub fn on_transmit(&mut self) {
        self.sent += 1.0;
    }

    /// The window after `delivered` segments arrived, with `in_flight` segments in flight. `safe`: the first hole was filled and no other
    /// loss was found (§6).
    pub fn window(&mut self, delivered: f64, in_flight: f64, safe: bool) -> f64 {
        self.delivered += delivered;
        let mut more = if in_flight > self.threshold {
            (self.delivered * self.threshold / self.flight).ceil() - self.sent
        } else {
            let conserved = (self.delivered - self.sent).max(delivered) + f64::from(u8::from(safe));
            conserved.min(self.threshold - in_flight)
        };
        if self.sent == 0.0 {
            more = more.max(1.0); // the fast retransmission is always allowed
        }
        in_flight + more.max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9937 §6: 20 segments, the first is lost, the threshold is 14 (β = 0.7).
    #[test]
    fn it_sends_seven_for_ten_that_arrive_until_the_threshold_is_in_flight() {
        let mut prr = Prr::new(20.0, 14.0);
        let (mut in_flight, mut sent) = (16.0, 0);
        for _ in 0..16 {
            let window = prr.window(1.0, in_flight, false);
            while in_flight + 1.0 <= window {
                in_flight += 1.0;
                prr.on_transmit();
                sent += 1;
            }
            in_flight -= 1.0;
        }
        assert!((11..=13).contains(&sent), "{sent}");
        assert!((in_flight - 12.0).abs() <= 1.0, "{in_flight}");
    }

    /// §6: most of the window is lost. The sender sends as many segments as arrive. When the first hole is filled, it sends one more.
    #[test]
    fn below_the_threshold_it_conserves_packets_and_then_grows_slowly() {
        let mut prr = Prr::new(20.0, 10.0);
        assert_eq!(prr.window(1.0, 2.0, false), 3.0);
        prr.on_transmit();
        assert_eq!(prr.window(1.0, 2.0, true), 4.0);
        prr.on_transmit();
        prr.on_transmit();
        assert_eq!(prr.window(5.0, 9.0, true), 10.0); // not above the threshold
    }
}
