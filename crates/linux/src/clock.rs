//! The kernel's monotonic clock, which also stamps the wire's records (`bpf_ktime_get_ns`).

use nix::time::{ClockId, clock_gettime};
use proto::Instant;

/// The time now.
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    let nanos = time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs();
    Instant::from_nanos(nanos)
}
