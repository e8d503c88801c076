//! CUBIC's growth of the window (RFC 9438), in segments and seconds.
//!
//! The cube root is computed with the four basic operations, so that the result is the same on every machine.

/// RFC 9438 §4.1: the constant C of the curve.
const C: f64 = 0.4;
/// RFC 9438 §4.1: the part of the window that remains after a loss.
pub(super) const BETA: f64 = 0.7;
/// Factor for the growth of `Cubic::reno`, the estimate of Reno's window (§4.3). With this value the estimate grows as fast as Reno's
/// window, on average.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The curve since the last loss.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// W_max: the window before the last loss, or less (§4.7).
    max: f64,
    /// When congestion avoidance began, in nanoseconds. `k` is how long the curve takes to return to `max`, in seconds.
    epoch: Option<u64>,
    k: f64,
    /// The window that Reno would have.
    reno: f64,
}

impl Cubic {
    /// Handles a loss. `window` is the window before the loss (§4.6, §4.7).
    pub fn on_loss(&mut self, window: f64) {
        let is_lower = window < self.max;
        self.max = if is_lower {
            window * (1.0 + BETA) / 2.0 // fast convergence (§4.7): leaves bandwidth to another flow
        } else {
            window
        };
        self.epoch = None;
    }

    /// The window after an acknowledgement of `acked` segments, in congestion avoidance (§4.2 to §4.5). `now` and `round_trip` are in
    /// nanoseconds.
    pub fn grow(&mut self, now: u64, window: f64, acked: f64, round_trip: u64) -> f64 {
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => self.begin(now, window),
        };
        let curve = |nanos: u64| {
            let past = nanos as f64 / 1e9 - self.k;
            C * past * past * past + self.max
        };
        self.reno += ALPHA * acked / window;
        if curve(now - epoch) < self.reno {
            return self.reno.max(window);
        }
        let target = curve(now - epoch + round_trip).clamp(window, 1.5 * window);
        window + (target - window) / window * acked
    }

    fn begin(&mut self, now: u64, window: f64) -> u64 {
        self.max = self.max.max(window);
        self.k = cube_root((self.max - window) / C);
        self.reno = window;
        self.epoch = Some(now);
        now
    }
}

/// Cube root by Newton's method, from above.
fn cube_root(value: f64) -> f64 {
    let mut root = value.max(1.0);
    for _ in 0..100 {
        let next = (2.0 * root + value / (root * root)) / 3.0;
        if next >= root {
            break;
        }
        root = next;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_cube_roots() {
        for root in [0.01, 0.5, 1.0, 2.0, 7.0, 123.4, 9999.0] {
            let found = cube_root(root * root * root);
            assert!((found / root - 1.0).abs() < 1e-9, "{root} {found}");
        }
        assert!(cube_root(0.0) < 1e-9);
    }

    #[test]
    fn the_window_comes_back_to_where_it_was_after_k_and_then_goes_beyond() {
        const ROUND_TRIP: u64 = 100_000_000;
        let mut cubic = Cubic::default();
        cubic.on_loss(1000.0);
        let mut window = 700.0;
        let k = cube_root(300.0 / C); // 9.09 s
        let mut windows = Vec::new();
        for round in 0..150_u64 {
            for _ in 0..350 {
                window = cubic.grow(round * ROUND_TRIP, window, 2.0, ROUND_TRIP);
            }
            windows.push(window);
        }
        let at = |seconds: f64| windows[(seconds * 10.0).round() as usize];
        assert!((at(k) / 1000.0 - 1.0).abs() < 0.01, "{}", at(k));
        let slow = at(k) - at(k - 1.0);
        assert!(slow < at(1.0) - 700.0 && slow < at(k + 4.0) - at(k + 3.0));
        assert!(at(k + 5.0) > 1040.0);
        cubic.on_loss(900.0);
        assert!((cubic.max - 765.0).abs() < 1e-9);
    }
}
