//! CoRAL's evaluation (Aghdaie and Tamir, PDCS 2003), section 4: throughput, failover and integration of pairs with a stage
//! (docs/restart-staged.md). Judged on the kernel.

use super::claim::{Expected, FigureClaim, FigureClaimResult, percent};
use super::measured::{MeasuredValues, claim, unmeasured};
use crate::bench::coral_samples::SERVERS;
use crate::bench::target::median;
use crate::figure::results::Results;

const PAIR: &str = SERVERS[2];

pub const CLAIMS: &[FigureClaim] = &[
    claim(
        "coral-throughput-a",
        "4.1, Table 3",
        (
            "Duplex costs at most 30 % of the throughput of two plain servers",
            "30 %",
        ),
        "coral-throughput",
        Expected::Holds,
        |results| {
            let part = of_plain(results, SERVERS[1])?;
            let here = format!("{:.0} %", (1.0 - part) * 100.0);
            Some(FigureClaimResult::new(here, part >= 0.7))
        },
    ),
    claim(
        "coral-throughput-b",
        "4.1",
        ("and serves more requests than one plain server", "yes"),
        "coral-throughput",
        Expected::Holds,
        |results| {
            let times = of_plain(results, SERVERS[0])?;
            Some(FigureClaimResult::new(format!("{times:.2} times"), times > 1.0))
        },
    ),
    unmeasured(
        "coral-throughput-c",
        "Table 3",
        (
            "Overheads of other schemes",
            "FT-TCP 28 to 76 %, HotSwap 54.3 %, HydraNet-FT 50 to 90 %",
        ),
        "coral-throughput",
        "these systems are not available; figure ft-tcp has FT-TCP's own claims",
    ),
    claim(
        "coral-2a",
        "4.1, Figure 2",
        (
            "After the failure, throughput is lower than before (at most 90 %)",
            "about half",
        ),
        "coral-2",
        Expected::Differs("all hosts share one machine, so the survivor also gets the other node's CPU time"),
        |results| {
            let part = pair(results, "throughput alone / before")?;
            Some(FigureClaimResult::new(percent(part), part <= 0.9))
        },
    ),
    claim(
        "coral-3a",
        "4.2, Figure 3",
        (
            "The clients' gap at the failure is a fraction of a second",
            "a fraction of a second",
        ),
        "coral-3",
        Expected::Holds,
        |results| {
            let (gap, before) = (pair(results, "stall, ms")?, pair(results, "wait before, ms")?);
            let here = format!("{gap:.0} ms; without a failure {before:.0} ms");
            Some(FigureClaimResult::new(here, gap < 1000.0))
        },
    ),
    claim(
        "coral-3b",
        "4.2",
        (
            "Detection is most of the failover",
            "heartbeats each 100 ms; transition 1.5 ms",
        ),
        "coral-times",
        Expected::Holds,
        |results| {
            let detection = pair(results, "detection, ms")?;
            let all = detection + pair(results, "last connection, ms")?;
            let here = format!("heartbeats each 20 ms: {detection:.1} of {all:.1} ms");
            Some(FigureClaimResult::new(here, detection > 0.5 * all))
        },
    ),
    claim(
        "coral-table-1a",
        "Table 1",
        (
            "From the detection until the service goes on, it takes at most 1.5 ms",
            "1.5 ms",
        ),
        "coral-times",
        Expected::Holds,
        |results| at_most(results, "last connection, ms", 1.5),
    ),
    claim(
        "coral-table-1b",
        "Table 1",
        (
            "Kernel notification and operations take less than 1 ms (here: until the gate is closed)",
            "0.3 ms",
        ),
        "coral-times",
        Expected::Holds,
        |results| at_most(results, "gate, ms", 1.0),
    ),
    unmeasured(
        "coral-table-1c",
        "Table 1",
        ("Notification of the user-level processes", "0.5 ms"),
        "coral-times",
        "there are no such processes: the agent that detects the failure restores the connections",
    ),
    unmeasured(
        "coral-table-1d",
        "Table 1",
        (
            "Gratuitous ARP and the ping of an outside host",
            "0.5 ms and 0.2 ms",
        ),
        "coral-times",
        "the clients' packets pass through the backup before the failure, so its takeover announces no address",
    ),
    claim(
        "coral-table-2a",
        "Table 2",
        ("Integration of a server takes at most 11 ms", "11.0 ms"),
        "coral-times",
        Expected::Holds,
        |results| at_most(results, "integration, ms", 11.0),
    ),
    unmeasured(
        "coral-table-2b",
        "Table 2",
        ("Most of it is forking of processes", "6.8 of 11.0 ms"),
        "coral-times",
        "the agents fork nothing for an integration",
    ),
    unmeasured(
        "coral-table-2c",
        "3.2",
        (
            "Connections from before the integration stay unprotected, and end after their next reply",
            "",
        ),
        "coral-times",
        "they stay open and are protected again, which `crash --policy snapshot --rounds` checks",
    ),
    claim(
        "coral-window",
        "6",
        (
            "Takeover and integration, which prolong the window of vulnerability beyond the detection, take a few milliseconds (at most 20)",
            "few milliseconds",
        ),
        "coral-times",
        Expected::Holds,
        |results| {
            let both = pair(results, "last connection, ms")? + pair(results, "integration, ms")?;
            let back = pair(results, "node's return, ms")?;
            let here = format!("{both:.1} ms; {back:.0} ms from the node's return, before its agent runs");
            Some(FigureClaimResult::new(here, both <= 20.0))
        },
    ),
];

fn values(results: &Results) -> Option<MeasuredValues<'_>> {
    MeasuredValues::of(results, "coral")
}

fn pair(results: &Results, what: &str) -> Option<f64> {
    values(results)?.middle(what, "pair")
}

fn at_most(results: &Results, what: &str, most_ms: f64) -> Option<FigureClaimResult> {
    let found = pair(results, what)?;
    Some(FigureClaimResult::new(format!("{found:.2} ms"), found <= most_ms))
}

/// The pair's throughput as a part of that of `plain` in the same round, because the machine may do other work in another round.
fn of_plain(results: &Results, plain: &str) -> Option<f64> {
    let values = values(results)?;
    let ours = values.all("replies/s", PAIR)?;
    let theirs = values.all("replies/s", plain)?;
    let parts = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs);
    Some(median(parts.collect()))
}
