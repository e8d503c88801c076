//! The FT-TCP paper's Figure 4: what a client sends, and what is acknowledged, before, during and after an outage of two seconds. The
//! backup logs what the client sends meanwhile (the paper's *snooping*), or the router drops it, so that the client must send it again.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linux::netns::Netns;
use serde::Serialize;

use super::load::LOAD;
use super::testbed::{BenchTestbed, BenchVariant};
use crate::capture::{CapturedInterface, Captures, SNAP_DEFAULT};
use crate::clock::{ClockOffset, monotonic, ms};
use crate::edge::fault::nft;
use crate::net::INTERFACE;
use judge::Point;
use judge::{CommitMode, for_each_segment};

/// The pair of this measurement: a failure is found after two seconds.
pub const SLOW_TO_NOTICE: BenchVariant = BenchVariant::Steadfast {
    missed: 100,
    policy: "replica",
    commit: CommitMode::Prs,
};
/// Rate of the client, in 1000 bytes per second, and for how long it sends.
const KILOBYTES_PER_S: u32 = 1000;
const SECONDS: u32 = 7;
/// Time from the first byte to the fault.
const BEFORE: Duration = Duration::from_millis(1500);
const TAKEOVER_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// An outage as the client's capture shows it. Times are in seconds since the fault, offsets in bytes since the first byte.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutageTrace {
    /// Ends of the segments that the client sent.
    #[serde(skip)]
    pub sent: Vec<(f64, f64)>,
    /// What the server acknowledged.
    #[serde(skip)]
    pub acknowledged: Vec<(f64, f64)>,
    /// When the primary was declared dead.
    pub declared_s: f64,
    /// When the restored connection was live.
    pub live_s: f64,
    /// From then until the first acknowledgement of new data: the paper's *retransmission gap*, in milliseconds.
    pub retransmission_gap_ms: f64,
    /// The longest time between two acknowledgements of new data, in milliseconds.
    pub stall_ms: f64,
}

/// Lets a client upload at a fixed rate while the primary's power goes off. If `is_fed` is false, the router drops what the client sends until
/// the connection is restored.
///
/// # Errors
/// If the connection does not survive.
pub fn play(testbed: &BenchTestbed, is_fed: bool, directory: &Path) -> Result<OutageTrace> {
    let place = CapturedInterface {
        point: Point::Client,
        name: format!("outage-{is_fed}"),
        namespace: &testbed.network.client,
        interface: INTERFACE,
    };
    let captures = Captures::start_at(&[place], directory, SNAP_DEFAULT)?;
    let mut command = testbed.network.client.command(std::env::current_exe()?)?;
    let numbers = [1, KILOBYTES_PER_S, SECONDS].map(|number| number.to_string());
    command
        .args([LOAD, "paced", &testbed.service.to_string()])
        .args(numbers);
    let mut client = command
        .stdout(Stdio::null())
        .spawn()
        .context("start the client")?;
    std::thread::sleep(BEFORE);
    let router = &testbed.network.router;
    if !is_fed {
        drop_input(router, testbed)?;
    }
    let fault = monotonic();
    testbed.power_off_primary()?;
    let (declared_ns, live_ns) = wait_live(testbed)?;
    if !is_fed {
        nft(router, "delete table inet outage\n")?;
    }
    ensure!(client.wait()?.success(), "the client got no reply");
    let clocks = ClockOffset::measure();
    let fault_ns = clocks.realtime_ns(fault);
    let [capture] = &captures.stop()?[..] else {
        anyhow::bail!("one capture was started")
    };
    let mut trace = OutageTrace {
        declared_s: ms(fault.as_nanos(), declared_ns) / 1e3,
        live_s: ms(fault.as_nanos(), live_ns) / 1e3,
        ..OutageTrace::default()
    };
    let mut first = None;
    for_each_segment(capture, testbed.service, |segment| {
        let at = ms(fault_ns, segment.at_ns) / 1e3;
        if segment.destination == testbed.service {
            let start = *first.get_or_insert(segment.seq);
            let end = segment.seq.0.wrapping_sub(start.0) + segment.payload_len;
            trace.sent.push((at, f64::from(end)));
        } else if let Some(start) = first.filter(|_| segment.has_ack) {
            trace
                .acknowledged
                .push((at, f64::from(segment.ack.0.wrapping_sub(start.0))));
        }
    })?;
    trace.measure();
    Ok(trace)
}

fn drop_input(router: &Netns, testbed: &BenchTestbed) -> Result<()> {
    let vip = testbed.service.ip();
    let chain = "chain forward { type filter hook forward priority 0\n";
    nft(
        router,
        &format!("table inet outage {{ {chain}ip daddr {vip} drop\n}}\n}}\n"),
    )
}

/// Waits until the connection is restored. Returns when the primary was declared dead and when the connection was live, on the monotonic
/// clock.
fn wait_live(testbed: &BenchTestbed) -> Result<(u64, u64)> {
    let deadline = Instant::now() + TAKEOVER_LIMIT;
    loop {
        let last = testbed.status(1)?.takeovers.last().copied();
        let times = last.and_then(|takeover| Some((takeover.declared_ns, takeover.first_live_ns?)));
        if let Some(times) = times {
            return Ok(times);
        }
        ensure!(Instant::now() < deadline, "no takeover: {last:?}");
        std::thread::sleep(POLL);
    }
}

impl OutageTrace {
    /// Takes the gap and the stall from the acknowledgements.
    fn measure(&mut self) {
        let (mut highest, mut last) = (0.0, None);
        for &(at, acknowledged) in &self.acknowledged {
            if acknowledged <= highest {
                continue;
            }
            highest = acknowledged;
            if let Some(last) = last {
                self.stall_ms = f64::max(self.stall_ms, (at - last) * 1e3);
                if last < self.live_s && at >= self.live_s {
                    self.retransmission_gap_ms = (at - self.live_s) * 1e3;
                }
            }
            last = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_begins_when_the_connection_is_live() {
        let mut trace = OutageTrace {
            live_s: 2.0,
            // A repeated acknowledgement (at 2.1 s) is no progress.
            acknowledged: vec![(-0.1, 10.0), (0.0, 20.0), (2.1, 20.0), (2.5, 30.0), (2.6, 40.0)],
            ..OutageTrace::default()
        };
        trace.measure();
        assert!((trace.retransmission_gap_ms - 500.0).abs() < 1e-6);
        assert!((trace.stall_ms - 2500.0).abs() < 1e-6);
    }
}
