//! §7.2.3: retransmission timeouts of flows of 1000 segments.

use super::claim::{Expected, FigureClaim, FigureClaimResult, percent};
use crate::figure::oracle;
use crate::figure::plot::flows::fractions;
use crate::figure::results::{Results, greatest, mean};
use crate::figure::scenario::RecoveryMode;

const VARIANTS: [(&str, &str); 3] = [
    ("Reno", "halr-timeouts-reno"),
    ("NewReno", "halr-timeouts-newreno"),
    ("SACK", "halr-timeouts-sack"),
];
/// The failovers of the sweep, in seconds.
const FAILOVERS: [f64; 14] = [
    0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0,
];
/// Latest arrival of a flow whose SYN passes the cluster, in seconds: the SYN reaches it 46 ms later, before the failure at 2 s.
const SYN_PASSES_BEFORE_S: f64 = 1.95;

pub const CLAIMS: &[FigureClaim] = &[
    FigureClaim {
        id: "15a",
        section: "7.2.3",
        statement: "Without HALR: fractions of flows by their number of timeouts, for each variant and failover",
        paper: "",
        figure: "halr-15",
        expected: Expected::Holds,
        find: |results| {
            let mut off = Vec::new();
            for (variant, scenario) in VARIANTS {
                for failover_s in FAILOVERS {
                    let here = stack(results, scenario, failover_s, RecoveryMode::None)?;
                    let theirs = oracle::timeouts(variant, failover_s)?;
                    off.extend(
                        here.iter()
                            .zip(theirs)
                            .map(|(here, theirs)| (here - theirs).abs()),
                    );
                }
            }
            let most = greatest(off)?;
            Some(
                FigureClaimResult::new(format!("within {most:.3} of ns-2's"), most <= 0.05)
                    .beside("the same"),
            )
        },
    },
    FigureClaim {
        id: "15b",
        section: "7.2.3",
        statement: "If the failover is longer than the timeout, Reno, NewReno and SACK behave alike",
        paper: "",
        figure: "halr-15",
        expected: Expected::Holds,
        find: |results| {
            let mut off = Vec::new();
            for failover_s in FAILOVERS.into_iter().filter(|failover_s| *failover_s > 1.0) {
                let [reno, newreno, sack] =
                    VARIANTS.map(|(_, scenario)| stack(results, scenario, failover_s, RecoveryMode::None));
                let (reno, newreno, sack) = (reno?, newreno?, sack?);
                for count in 0..reno.len() {
                    off.extend([reno[count] - newreno[count], reno[count] - sack[count]].map(f64::abs));
                }
            }
            let most = greatest(off)?;
            Some(FigureClaimResult::new(
                format!("fractions within {most:.2}"),
                most <= 0.05,
            ))
        },
    },
    FigureClaim {
        id: "16a",
        section: "7.2.3",
        statement: "In failovers below 1 s, HALR avoids timeouts of NewReno and SACK (timeouts per flow)",
        paper: "",
        figure: "halr-16",
        expected: Expected::Holds,
        find: |results| {
            let [_, newreno, sack] = VARIANTS.map(|(_, scenario)| avoided(results, scenario));
            let (newreno, sack) = (newreno?, sack?);
            let here = format!(
                "NewReno {:.2} of {:.2}, SACK {:.2} of {:.2} remain",
                newreno.0, newreno.1, sack.0, sack.1
            );
            Some(FigureClaimResult::new(
                here,
                newreno.0 < newreno.1 && sack.0 < sack.1,
            ))
        },
    },
    FigureClaim {
        id: "16b",
        section: "7.2.3",
        statement: "It helps NewReno more than Reno",
        paper: "",
        figure: "halr-16",
        expected: Expected::Holds,
        find: |results| {
            let [reno, newreno, _] = VARIANTS.map(|(_, scenario)| avoided(results, scenario));
            let saved = |(with, without): (f64, f64)| without - with;
            let (reno, newreno) = (saved(reno?), saved(newreno?));
            Some(FigureClaimResult::new(
                format!("{newreno:.2} > {reno:.2} timeouts per flow saved"),
                newreno > reno,
            ))
        },
    },
    FigureClaim {
        id: "17a",
        section: "7.2.3",
        statement: "In failovers below 1 s, with HALR, SACK has still fewer timeouts than NewReno",
        paper: "",
        figure: "halr-17",
        expected: Expected::Differs(
            "a SACK sender does not count equal acknowledgements without a new block as duplicates (RFC 6675 §2)",
        ),
        find: |results| {
            let [_, newreno, sack] = VARIANTS.map(|(_, scenario)| avoided(results, scenario));
            let (newreno, sack) = (newreno?.0, sack?.0);
            Some(FigureClaimResult::new(
                format!("SACK {sack:.2}, NewReno {newreno:.2} timeouts per flow"),
                sack <= newreno,
            ))
        },
    },
    FigureClaim {
        id: "17b",
        section: "7.2.3",
        statement: "HALR avoids some of the second and third timeouts in a row after a failover of 3 s",
        paper: "",
        figure: "halr-17",
        expected: Expected::Holds,
        find: |results| {
            let mut holds = true;
            let mut here = Vec::new();
            for (variant, scenario) in VARIANTS {
                let per_flow = |recovery| mean_timeouts(results, scenario, 3.0, recovery);
                let (with, without) = (per_flow(RecoveryMode::Lowest)?, per_flow(RecoveryMode::None)?);
                holds &= with < without;
                here.push(format!("{variant} {with:.2} < {without:.2}"));
            }
            Some(FigureClaimResult::new(here.join(", "), holds))
        },
    },
    FigureClaim {
        id: "17c",
        section: "4.2",
        statement: "If the failover is longer than the timeout, every flow has a timeout, even with HALR",
        paper: "100 %",
        figure: "halr-17",
        expected: Expected::Holds,
        find: |results| {
            let mut spared = Vec::new();
            for (_, scenario) in VARIANTS {
                for failover_s in FAILOVERS.into_iter().filter(|failover_s| *failover_s >= 2.0) {
                    let flows = results.flows(scenario, RecoveryMode::Lowest)?.into_iter();
                    let of = flows
                        .filter(|row| row.failover_s == failover_s && row.arrival_s < SYN_PASSES_BEFORE_S);
                    spared.push(fractions(of)[0]);
                }
            }
            let most = greatest(spared)?;
            Some(FigureClaimResult::new(percent(1.0 - most), most == 0.0))
        },
    },
];

/// Fractions of the flows by their number of timeouts.
fn stack(results: &Results, scenario: &str, failover_s: f64, recovery: RecoveryMode) -> Option<[f64; 5]> {
    let flows = results.flows(scenario, recovery)?;
    Some(fractions(
        flows.into_iter().filter(|row| row.failover_s == failover_s),
    ))
}

fn mean_timeouts(results: &Results, scenario: &str, failover_s: f64, recovery: RecoveryMode) -> Option<f64> {
    let flows = results.flows(scenario, recovery)?;
    let of = flows.into_iter().filter(|row| row.failover_s == failover_s);
    mean(of.map(|row| f64::from(row.timeouts)))
}

/// Timeouts per flow with HALR and without, means over the failovers below 1 s.
fn avoided(results: &Results, scenario: &str) -> Option<(f64, f64)> {
    let per_flow = |recovery| {
        let short = FAILOVERS.into_iter().filter(|failover_s| *failover_s < 1.0);
        let means: Option<Vec<f64>> = short
            .map(|failover_s| mean_timeouts(results, scenario, failover_s, recovery))
            .collect();
        mean(means?)
    };
    Some((per_flow(RecoveryMode::Lowest)?, per_flow(RecoveryMode::None)?))
}
