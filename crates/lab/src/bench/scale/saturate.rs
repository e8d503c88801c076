//! Other processes saturate all CPUs. No node may be declared dead because of this.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::bench::load::LOAD;
use crate::bench::testbed::BenchTestbed;
use crate::process::LoggedProcess;

/// Spinning processes per CPU.
const SPINNERS_PER_CPU: usize = 2;
const SAMPLE: Duration = Duration::from_millis(500);

/// Results.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Saturated {
    /// Duration of the run, in minutes.
    pub minutes: f64,
    /// Number of spinning processes.
    pub spinners: usize,
    /// Number of samples in which a node's role, epoch or number of takeovers differed from the node's previous sample.
    pub role_changes: u64,
    /// Number of samples, of both nodes together.
    pub looks: u64,
    /// Number of samples in which a node was simplex.
    pub simplex_seen: u64,
}

/// Saturates all CPUs for `minutes` beside the idle pair of `testbed`. Calls `tell` with the seconds that have passed.
///
/// # Errors
/// If a process cannot be started or a node does not answer.
pub fn run(testbed: &BenchTestbed, minutes: f64, directory: &Path, tell: impl Fn(u64)) -> Result<Saturated> {
    let spinners = SPINNERS_PER_CPU * std::thread::available_parallelism()?.get();
    let spin = |number: usize| -> Result<LoggedProcess> {
        let mut command = testbed.network.client.command(std::env::current_exe()?)?;
        command.args([LOAD, "spin"]);
        Ok(LoggedProcess::start(
            &format!("spin-{number}"),
            command,
            directory,
        )?)
    };
    let mut before = [Look::take(testbed, 0)?, Look::take(testbed, 1)?];
    let _spinning = (0..spinners).map(spin).collect::<Result<Vec<_>>>()?;
    let mut seen = Saturated {
        minutes,
        spinners,
        role_changes: 0,
        looks: 0,
        simplex_seen: 0,
    };
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < minutes * 60.0 {
        std::thread::sleep(SAMPLE);
        tell(start.elapsed().as_secs());
        for (index, before) in before.iter_mut().enumerate() {
            seen.note(before, Look::take(testbed, index)?);
        }
    }
    Ok(seen)
}

/// A sample of a node's status.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    role: String,
    epoch: u64,
    takeovers: usize,
    is_duplex: bool,
}

impl Look {
    fn take(testbed: &BenchTestbed, index: usize) -> Result<Self> {
        let status = testbed.status(index)?;
        Ok(Self {
            role: status.role,
            epoch: status.epoch,
            takeovers: status.takeovers.len(),
            is_duplex: status.mode == "duplex",
        })
    }
}

impl Saturated {
    fn note(&mut self, before: &mut Look, now: Look) {
        self.looks += 1;
        self.simplex_seen += u64::from(!now.is_duplex);
        let is_same =
            before.role == now.role && before.epoch == now.epoch && before.takeovers == now.takeovers;
        self.role_changes += u64::from(!is_same);
        *before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_counted_once_and_being_alone_is_none() {
        let mut seen = Saturated {
            minutes: 1.0,
            spinners: 1,
            role_changes: 0,
            looks: 0,
            simplex_seen: 0,
        };
        let quiet = Look {
            role: "backup".into(),
            epoch: 1,
            takeovers: 0,
            is_duplex: true,
        };
        let mut before = quiet.clone();
        seen.note(
            &mut before,
            Look {
                is_duplex: false,
                ..quiet.clone()
            },
        );
        let speaks = Look {
            role: "primary".into(),
            epoch: 2,
            takeovers: 1,
            is_duplex: false,
        };
        seen.note(&mut before, speaks.clone());
        seen.note(&mut before, speaks);
        assert_eq!((seen.role_changes, seen.looks, seen.simplex_seen), (1, 3, 3));
    }
}
