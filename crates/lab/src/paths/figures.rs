//! Results of one end of a transfer of `bench paths`, and the content that it moves.

use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// The content's period in bytes. Byte N is N·7 + N/251, modulo 256.
pub const PERIOD: usize = 251 * 256;

/// One period of the content, plus `message` bytes. So a message of this length can begin at any byte of the period.
pub fn content(message: usize) -> Bytes {
    let bytes = (0..PERIOD + message).map(|at| (at * 7 + at / 251) as u8);
    bytes.collect::<Vec<u8>>().into()
}

/// Results of one end of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PeerFigures {
    /// Bytes sent or received.
    pub moved: u64,
    /// Pieces that differ from the content.
    pub wrong: u64,
    /// Time from the start to the end. A sender starts when it connects, a receiver when the connection is established.
    pub took: Duration,
    /// CPU time of the process. Set when the figures are read.
    pub cpu: Duration,
    /// Longest time between two pieces.
    pub gap: Duration,
    /// Peak memory of the process, in kilobytes. Set when the figures are read.
    pub memory_kb: u64,
}

impl PeerFigures {
    /// The figures as a line, with this process' CPU time and memory: bytes, pieces that differ, milliseconds, CPU milliseconds, longest
    /// gap in milliseconds, kilobytes of memory.
    ///
    /// # Errors
    /// If the kernel does not tell the CPU time.
    pub fn line(&self) -> Result<String> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).context("CPU time")?;
        let cpu = usage.user_time() + usage.system_time();
        let (took, gap) = (self.took.as_millis(), self.gap.as_millis());
        Ok(format!(
            "{} {} {took} {} {gap} {}",
            self.moved,
            self.wrong,
            cpu.num_milliseconds(),
            usage.max_rss()
        ))
    }

    /// The figures in the last line of an output.
    ///
    /// # Errors
    /// If the output does not end with figures. The error has the output.
    pub fn read(output: &str) -> Result<Self> {
        let line = output.lines().last().unwrap_or_default();
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>();
        let six: Option<[u64; 6]> = numbers.ok().and_then(|numbers| numbers.try_into().ok());
        let [moved, wrong, took, cpu, gap, memory_kb] =
            six.with_context(|| format!("the last line has not six numbers: {output:?}"))?;
        let [took, cpu, gap] = [took, cpu, gap].map(Duration::from_millis);
        Ok(Self {
            moved,
            wrong,
            took,
            cpu,
            gap,
            memory_kb,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_last_line() {
        let read = PeerFigures::read("ready\n1000 2 30 4 5 6000\n").unwrap();
        let expected = PeerFigures {
            moved: 1000,
            wrong: 2,
            took: Duration::from_millis(30),
            cpu: Duration::from_millis(4),
            gap: Duration::from_millis(5),
            memory_kb: 6000,
        };
        assert_eq!(read, expected);
        for wrong in [
            "",
            "ready\nconnect: refused\n",
            "ready\n1000 2 30 4 x 5 6000\n",
            "1000 2 30 4 5\n",
        ] {
            let error = PeerFigures::read(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("the last line has not six numbers: {wrong:?}"));
        }
    }
}
