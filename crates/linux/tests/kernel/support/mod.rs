//! Shared parts of the kernel tests: hosts in network namespaces, the wire's log as the agent reads it, frames made by hand.

pub mod bystander;
pub mod edge_net;
pub mod edge_on;
pub mod edge_packet;
pub mod fields;
pub mod frame;
pub mod lan;
pub mod log;
pub mod sctp;
pub mod socket;
pub mod takeover;
pub mod talk;
pub mod testbed;
pub mod tun;
pub mod wire_on;

use std::time::{Duration, Instant};

/// Timeout of all operations. Nothing takes this long, except on an overloaded machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` returns a value. Panics with `what` if `condition` returns none within [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Pins this thread to one CPU, so that its packets are handled in order.
pub fn stay_on_this_cpu() {
    let cpu = nix::sched::sched_getcpu().expect("a CPU");
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu).expect("its number");
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).expect("affinity");
}

/// `len` pseudorandom bytes that `seed` determines.
pub fn stream(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| random.next().to_le_bytes())
        .collect();
    bytes.truncate(len);
    bytes
}

/// Asserts that two streams are equal. The message has the first difference only, because the contents would fill screens.
#[track_caller]
pub fn assert_same_stream(what: &str, got: &[u8], expected: &[u8]) {
    let differs = got.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that differs");
    assert_eq!(got.len(), expected.len(), "{what}: length");
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// One of `choices`.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).expect("an index")]
    }
}
