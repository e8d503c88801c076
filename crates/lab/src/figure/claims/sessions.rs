//! The Migratory TCP paper, section 5: the time that a migration takes, and a stream from servers that become slow. Judged on the kernel.

use proto::session::frame::StateTransfer;

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult, OURS};
use crate::bench::target::median;
use crate::figure::results::{Results, greatest, least};
use crate::figure::rows::{ArrivalRow, MoveRow};
use crate::sessions::bench::straight_line;

/// Round-trip time of the claims in round trips, in milliseconds. At the cables' own one, most of a move is the programs' time.
const LONG_MS: u32 = 20;

pub const CLAIMS: &[FigureClaim] = &[
    FigureClaim {
        id: "mtcp-6a",
        section: "5",
        statement: "Without state, a lazy migration at an RTT of 20 ms takes at most 2.6 round trips",
        paper: "387 µs at an RTT of 150 µs",
        figure: "mtcp-6",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| round_trips(results, StateTransfer::Lazy, 2.6),
    },
    FigureClaim {
        id: "mtcp-6b",
        section: "5",
        statement: "and an eager one at most 1.5",
        paper: OURS,
        figure: "mtcp-6",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| round_trips(results, StateTransfer::Eager, 1.5),
    },
    FigureClaim {
        id: "mtcp-6c",
        section: "5",
        statement: "The time of a lazy migration grows linearly with the snapshot, up to 16 MiB, at the cables' RTT (R² ≥ 0.95)",
        paper: "",
        figure: "mtcp-6",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: linear,
    },
    FigureClaim {
        id: "mtcp-7a",
        section: "5",
        statement: "With the policy rate, the client's effective rate is at least 90 % of an unslowed server's, with each size of snapshot",
        paper: "fairly close",
        figure: "mtcp-7",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| rates(results, true),
    },
    FigureClaim {
        id: "mtcp-7b",
        section: "5",
        statement: "Over plain TCP, it is less than half",
        paper: "",
        figure: "mtcp-7",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| rates(results, false),
    },
];

fn moves_of(results: &Results, is_of: impl Fn(&MoveRow) -> bool) -> Option<Vec<&MoveRow>> {
    let (_, rows) = results.scenarios.get("mtcp-moves")?;
    let of: Vec<_> = rows.moves.iter().filter(|row| is_of(row)).collect();
    (!of.is_empty()).then_some(of)
}

fn round_trips(results: &Results, transfer: StateTransfer, most: f64) -> Option<FigureClaimResult> {
    let is_of = |row: &MoveRow| row.rtt_ms == LONG_MS && row.transfer == transfer && row.snapshot_kb == 0;
    let of = moves_of(results, is_of)?;
    let trips = of.iter().map(|row| row.took_us / row.round_trip_us).collect();
    let found = median(trips);
    let base = moves_of(results, |row| {
        row.rtt_ms == 0 && row.transfer == transfer && row.snapshot_kb == 0
    });
    let result = FigureClaimResult::new(format!("{found:.2} round trips"), found <= most);
    Some(match base {
        None => result,
        Some(base) => {
            let took = median(base.iter().map(|row| row.took_us).collect());
            let trip = median(base.iter().map(|row| row.round_trip_us).collect());
            result.beside(format!("{took:.0} µs at {trip:.0} µs"))
        }
    })
}

fn linear(results: &Results) -> Option<FigureClaimResult> {
    let least_ms = moves_of(results, |_| true)?.iter().map(|row| row.rtt_ms).min()?;
    let is_of = |row: &MoveRow| row.rtt_ms == least_ms && row.transfer == StateTransfer::Lazy;
    let of = moves_of(results, is_of)?;
    let sizes: std::collections::BTreeSet<_> = of.iter().map(|row| row.snapshot_kb).collect();
    let point = |size: &u32| {
        let times = of.iter().filter(|row| row.snapshot_kb == *size);
        (f64::from(*size), median(times.map(|row| row.took_us).collect()))
    };
    let points: Vec<_> = sizes.iter().map(point).collect();
    let (at_zero, slope, r_squared) = straight_line(&points);
    let here = format!("{at_zero:.0} µs + {slope:.1} µs/KiB, R² {r_squared:.2}");
    Some(FigureClaimResult::new(here, r_squared >= 0.95))
}

/// The client's rate as a part of the rate from servers that do not become slow: with moves, or over plain TCP.
fn rates(results: &Results, moves: bool) -> Option<FigureClaimResult> {
    let (_, rows) = results.scenarios.get("mtcp-streams")?;
    let rate = |is_of: &dyn Fn(&ArrivalRow) -> bool| {
        let of = rows.arrivals.iter().filter(|row| is_of(row));
        let seeds = of
            .clone()
            .map(|row| row.seed)
            .collect::<std::collections::BTreeSet<_>>();
        let of_seed = |seed: u64| {
            let last = of.clone().rfind(|row| row.seed == seed)?;
            Some(last.bytes as f64 / last.time_s)
        };
        let rates: Option<Vec<_>> = seeds.into_iter().map(of_seed).collect();
        rates.filter(|rates| !rates.is_empty()).map(median)
    };
    let full = rate(&|row| !row.decays)?;
    let sizes = rows
        .arrivals
        .iter()
        .filter(|row| row.decays && row.snapshot_kb.is_some() == moves);
    let sizes: std::collections::BTreeSet<_> = sizes.map(|row| row.snapshot_kb).collect();
    let parts: Option<Vec<f64>> = sizes
        .iter()
        .map(|size| Some(rate(&|row| row.decays && row.snapshot_kb == *size)? / full))
        .collect();
    let parts = parts?;
    let (lowest, highest) = (least(parts.iter().copied())?, greatest(parts)?);
    let here = format!("{:.0} % to {:.0} %", lowest * 100.0, highest * 100.0);
    Some(FigureClaimResult::new(
        here,
        if moves { lowest >= 0.9 } else { highest < 0.5 },
    ))
}
