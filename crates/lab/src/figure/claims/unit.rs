//! Chapters 3 to 5: memory, congestion windows, unused flow time.

use model::cache_memory::{packet_and_ack_bytes, syns_bytes};
use model::failover::FlowRecovery as Modelled;
use model::unused_flow_time::unused_flow_time_s;

use super::claim::{Expected, FigureClaim, FigureClaimResult, seconds};
use crate::figure::results::{Results, greatest};
use crate::figure::rows::WindowRow;
use crate::figure::scenario::RecoveryMode;

pub const CLAIMS: &[FigureClaim] = &[
    FigureClaim {
        id: "3.4a",
        section: "3.4",
        statement: "Memory for one packet of 1514 bytes and one of 64 bytes for each of 10,000 flows",
        paper: "15.78 MB",
        figure: "halr-9",
        expected: Expected::Holds,
        find: |_| {
            let megabytes = packet_and_ack_bytes(10_000.0, 1_514.0, 64.0) / 1e6;
            Some(FigureClaimResult::new(
                format!("{megabytes:.2} MB"),
                (megabytes - 15.78).abs() < 0.005,
            ))
        },
    },
    FigureClaim {
        id: "3.4b",
        section: "3.4",
        statement: "Memory for the SYNs that arrive in 100 ms, at 10,000 connections per second",
        paper: "64 KB",
        figure: "halr-9",
        expected: Expected::Holds,
        find: |_| {
            let kilobytes = syns_bytes(10_000.0, 0.1, 64.0) / 1e3;
            Some(FigureClaimResult::new(
                format!("{kilobytes:.0} KB"),
                (kilobytes - 64.0).abs() < 0.5,
            ))
        },
    },
    FigureClaim {
        id: "7a",
        section: "4.2",
        statement: "After two timeouts in a row the window grows linearly, by a segment per round trip at most",
        paper: "ssthresh 2",
        figure: "halr-7",
        expected: Expected::Holds,
        find: |results| {
            let grown = grown(results, "halr-window-data-loss", RecoveryMode::None, 1.0)?;
            Some(FigureClaimResult::new(
                format!("{grown:.1} segments 1 s (10 round trips) later"),
                grown <= 2.0 + 10.0,
            ))
        },
    },
    FigureClaim {
        id: "7b",
        section: "4.2",
        statement: "HALR ends the idle period: the flow goes on when the failover is over",
        paper: "",
        figure: "halr-7",
        expected: Expected::Holds,
        find: |results| woken(results, "halr-window-data-loss", 5.0),
    },
    FigureClaim {
        id: "8a",
        section: "4.2",
        statement: "A lost SYN waits for a timeout of 3 s, however short the failover",
        paper: "3 s",
        figure: "halr-8",
        expected: Expected::Holds,
        find: |results| {
            let flows = results.flows("halr-window-syn-loss", RecoveryMode::None)?;
            let restart = restart(results, "halr-window-syn-loss", RecoveryMode::None)?;
            let waited = restart - flows.first()?.arrival_s;
            // The timeout of 3 s, then the handshake, the first segment, and its delayed acknowledgement.
            let here = format!("first data acknowledged after {}", seconds(waited));
            Some(FigureClaimResult::new(here, (3.2..3.4).contains(&waited)))
        },
    },
    FigureClaim {
        id: "8b",
        section: "4.2",
        statement: "After it the window grows linearly",
        paper: "ssthresh 2",
        figure: "halr-8",
        expected: Expected::Holds,
        find: |results| {
            let grown = grown(results, "halr-window-syn-loss", RecoveryMode::None, 1.0)?;
            Some(FigureClaimResult::new(
                format!("{grown:.1} segments 1 s (10 round trips) later"),
                grown <= 2.0 + 10.0,
            ))
        },
    },
    FigureClaim {
        id: "8c",
        section: "4.2",
        statement: "With HALR the sender stays in slow start: its window grows exponentially",
        paper: "",
        figure: "halr-8",
        expected: Expected::Holds,
        find: |results| {
            let with = grown(results, "halr-window-syn-loss", RecoveryMode::Lowest, 1.0)?;
            let without = grown(results, "halr-window-syn-loss", RecoveryMode::None, 1.0)?;
            let here = format!("{with:.1} segments 1 s later, without HALR {without:.1}");
            Some(FigureClaimResult::new(here, with > 30.0))
        },
    },
    FigureClaim {
        id: "9a",
        section: "5.1",
        statement: "The unused flow time is a sawtooth: 0 where the timer fires as the failover ends",
        paper: "0 at 1.5, 4.5, 10.5 s",
        figure: "halr-9",
        expected: Expected::Holds,
        find: |_| {
            let at = [1.5, 4.5, 10.5].map(|down_s| unused_flow_time_s(down_s, 1.5, Modelled::Timeout));
            let after = [1.51, 4.51, 10.51].map(|down_s| unused_flow_time_s(down_s, 1.5, Modelled::Timeout));
            let here = format!("0 there; up to {:.1} s just after", greatest(after)?);
            Some(FigureClaimResult::new(
                here,
                at == [0.0; 3] && after.iter().all(|unused_s| *unused_s > 2.9),
            ))
        },
    },
    FigureClaim {
        id: "9b",
        section: "5.1",
        statement: "With HALR there is no unused flow time",
        paper: "0",
        figure: "halr-9",
        expected: Expected::Holds,
        find: |_| {
            let downs = (0..1200).map(|step| f64::from(step) * 0.01);
            let most = greatest(downs.map(|down_s| unused_flow_time_s(down_s, 1.5, Modelled::Local)))?;
            Some(FigureClaimResult::new(seconds(most), most == 0.0))
        },
    },
];

/// The congestion windows of the first seed's run.
fn windows<'a>(results: &'a Results, scenario: &str, recovery: RecoveryMode) -> Option<Vec<&'a WindowRow>> {
    let (_, rows) = results.scenarios.get(scenario)?;
    let of = rows
        .windows
        .iter()
        .filter(|row| row.seed == 1 && row.recovery == recovery);
    let of: Vec<_> = of.collect();
    (!of.is_empty()).then_some(of)
}

/// Time in seconds at which the window first grows after the failover began. The first acknowledgement of new data
/// makes it grow.
fn restart(results: &Results, scenario: &str, recovery: RecoveryMode) -> Option<f64> {
    const FAILOVER_AT_S: f64 = 2.0;
    const ROUND_TRIP_S: f64 = 0.1;
    let windows = windows(results, scenario, recovery)?;
    let mut pairs = windows
        .windows(2)
        .skip_while(|pair| pair[0].time_s < FAILOVER_AT_S + ROUND_TRIP_S);
    pairs
        .find(|pair| pair[1].window_segments > pair[0].window_segments)
        .map(|pair| pair[1].time_s)
}

/// The window `after_s` seconds after the restart, in segments.
fn grown(results: &Results, scenario: &str, recovery: RecoveryMode, after_s: f64) -> Option<f64> {
    let at_s = restart(results, scenario, recovery)? + after_s;
    let windows = windows(results, scenario, recovery)?;
    windows
        .iter()
        .find(|row| row.time_s >= at_s)
        .map(|row| row.window_segments)
}

/// Whether the flow continues within 0.3 s after the failover's end with HALR, and later without HALR.
fn woken(results: &Results, scenario: &str, end_s: f64) -> Option<FigureClaimResult> {
    let with = restart(results, scenario, RecoveryMode::Lowest)? - end_s;
    let without = restart(results, scenario, RecoveryMode::None)? - end_s;
    let here = format!("{} after it, without HALR {}", seconds(with), seconds(without));
    Some(FigureClaimResult::new(here, with < 0.3 && without > with))
}
