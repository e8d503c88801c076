//! Speed of this machine at the time of the benchmark. The absolute times of different runs can be compared only if these speeds are
//! compared, too.

use std::time::Instant;

use serde::Serialize;

const BUFFER: usize = 64 << 20;
const SYSCALLS: u32 = 200_000;

/// Numbers that describe the machine's speed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Calibration {
    /// Speed of copying memory that does not fit into the caches, in 10⁹ bytes per second.
    pub memcpy_gb_per_s: f64,
    /// Duration of the cheapest system call, in nanoseconds.
    pub syscall_ns: f64,
    /// Number of available processors.
    pub cpus: usize,
}

impl Calibration {
    /// Measures for about a tenth of a second.
    pub fn measure() -> Self {
        let from = vec![1_u8; BUFFER];
        let mut to = vec![0_u8; BUFFER];
        to.copy_from_slice(&from); // makes the kernel allocate the pages before the measurement
        let start = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        let copied = start.elapsed();
        std::hint::black_box(&to);
        let start = Instant::now();
        for _ in 0..SYSCALLS {
            std::hint::black_box(nix::unistd::getppid());
        }
        let called = start.elapsed();
        Self {
            memcpy_gb_per_s: BUFFER as f64 / copied.as_secs_f64() / 1e9,
            syscall_ns: called.as_secs_f64() * 1e9 / f64::from(SYSCALLS),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl std::fmt::Display for Calibration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            memcpy_gb_per_s,
            syscall_ns,
            cpus,
        } = self;
        write!(
            f,
            "this machine: {cpus} CPUs, memcpy {memcpy_gb_per_s:.1} GB/s, system call {syscall_ns:.0} ns"
        )
    }
}
