//! The kernel's monotonic clock, which also stamps the wire's records (`bpf_ktime_get_ns`).

use nix::time::{ClockId, clock_gettime};
use proto::Instant;
use proto::pause::ClockReading;

/// The time now.
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    let nanos = time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs();
    Instant::from_nanos(nanos)
}

/// The clock, read together with the CPU's time-stamp counter. `None` on CPUs other than x86-64. While a hypervisor pauses the machine, the
/// counters of these CPUs stop, as the clock does. So these counters could not reveal the pause.
pub fn reading() -> Option<ClockReading> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the instruction reads a register. Every x86-64 CPU has this register, and Linux lets user space read it.
        let counter = || unsafe { std::arch::x86_64::_rdtsc() };
        let (before, clock, after) = (counter(), now(), counter());
        Some(ClockReading { before, clock, after })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::reading;

    #[test]
    fn the_counter_goes_on() {
        let [one, other] = [(), ()].map(|()| reading().expect("an x86-64 CPU has a counter"));
        assert!(one.before < one.after && one.after < other.before);
        assert!(one.clock <= other.clock);
    }
}
