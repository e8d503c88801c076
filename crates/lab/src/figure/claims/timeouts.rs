//! §4.2 and §7.2.3: retransmission timeouts of flows of 1000 segments in Case 2. The failover may lose packets of a Case 2 flow, but
//! neither its SYN nor its SYN-ACK. The thesis does not say where the cluster is in Figures 15 to 17. So most claims are judged twice: once
//! with the cluster next to the destinations, and once with the cluster next to the sources.

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult, percent, seconds};
use crate::figure::oracle::{self, TimeoutSetting};
use crate::figure::plot::flows::fractions;
use crate::figure::results::{Results, greatest, least, mean};
use crate::figure::rows::FlowRow;
use crate::figure::scenario::{FigureScenario, RecoveryPolicy};

const VARIANTS: [&str; 3] = ["Reno", "NewReno", "SACK"];
/// The failovers of the sweep, in seconds.
const FAILOVERS: [f64; 14] = [
    0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0,
];
const POLICIES: &str = "halr-recovery-policies";

/// Names of the scenarios that share the cluster's place and the least timeout: one scenario per variant, in the order of [`VARIANTS`].
type TimeoutScenarios = [&'static str; 3];

/// Cluster next to the destinations, least timeout 1 s.
const DESTINATIONS: TimeoutScenarios = [
    "halr-timeouts-reno",
    "halr-timeouts-newreno",
    "halr-timeouts-sack",
];
/// Cluster next to the sources, least timeout 1 s.
const SOURCES: TimeoutScenarios = ["halr-timeouts-near-sources"; 3];
/// Table I's least timeout, 1.5 s, with the cluster next to the destinations.
const TABLE_DESTINATIONS: TimeoutScenarios = ["halr-timeouts-1.5s"; 3];
/// Table I's least timeout, 1.5 s, with the cluster next to the sources.
const TABLE_SOURCES: TimeoutScenarios = ["halr-timeouts-1.5s-near-sources"; 3];

pub const CLAIMS: &[FigureClaim] = &[
    FigureClaim {
        id: "15a",
        section: "7.2.3",
        statement: "Without HALR: fractions of flows by their number of timeouts, for each variant and failover",
        paper: "",
        figure: "halr-15",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| is_as_in_ns2(results, DESTINATIONS),
    },
    FigureClaim {
        id: "15b",
        section: "7.2.3",
        statement: "If the failover is longer than the timeout, Reno, NewReno and SACK behave alike",
        paper: "",
        figure: "halr-15",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| is_alike(results, DESTINATIONS),
    },
    FigureClaim {
        id: "16a",
        section: "7.2.3",
        statement: "HALR avoids timeouts, most of all those of NewReno and SACK in failovers below 1 s (avoided share of \
                    the timeouts)",
        paper: "",
        figure: "halr-16",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Differs(
            "SACK gains no more below 1 s than above, because the copies of an acknowledgement are no duplicates to a \
             SACK sender (17a); with the cluster next to the sources it does (16c)",
        ),
        find: |results| gains_most_below_1_s(results, DESTINATIONS),
    },
    FigureClaim {
        id: "16b",
        section: "7.2.3",
        statement: "In failovers below 1 s, it helps NewReno more than Reno",
        paper: "",
        figure: "halr-16",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| helps_newreno_more(results, DESTINATIONS),
    },
    FigureClaim {
        id: "4.2a",
        section: "4.2",
        statement: "A packet that is sent again to a NewReno receiver speeds up the recovery of several losses (mean \
                    completion, failover of 0.5 s, policy lowest)",
        paper: "",
        figure: "halr-16",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Differs(
            "a flow that avoids the timeout repairs a window of 64 lost segments at one segment per round trip; after \
             the timeout, slow start would have repaired it sooner",
        ),
        find: |results| recovers_sooner(results, RecoveryPolicy::Lowest),
    },
    FigureClaim {
        id: "4.2b",
        section: "4.2",
        statement: "The same if all unacknowledged packets are sent again (policy all)",
        paper: "",
        figure: "halr-16",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| recovers_sooner(results, RecoveryPolicy::All),
    },
    FigureClaim {
        id: "17a",
        section: "7.2.3",
        statement: "In failovers below 1 s, with HALR, SACK has still fewer timeouts than NewReno",
        paper: "",
        figure: "halr-17",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Differs(
            "a SACK sender does not count equal acknowledgements without a new block as duplicates (RFC 6675 §2); with \
             the cluster next to the sources few flows need them (17d)",
        ),
        find: |results| has_fewest_with_sack(results, DESTINATIONS),
    },
    FigureClaim {
        id: "17c",
        section: "4.2",
        statement: "If the failover is longer than the timeout, every flow has a timeout, even with HALR",
        paper: "100 %",
        figure: "halr-17",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| spares_nobody(results, DESTINATIONS),
    },
    FigureClaim {
        id: "15c",
        section: "7.2.3",
        statement: "15a with the cluster next to the sources",
        paper: "",
        figure: "halr-15-17-near-sources",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| is_as_in_ns2(results, SOURCES),
    },
    FigureClaim {
        id: "15d",
        section: "7.2.3",
        statement: "15b with the cluster next to the sources",
        paper: "",
        figure: "halr-15-17-near-sources",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| is_alike(results, SOURCES),
    },
    FigureClaim {
        id: "16c",
        section: "7.2.3",
        statement: "16a with the cluster next to the sources",
        paper: "",
        figure: "halr-15-17-near-sources",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| gains_most_below_1_s(results, SOURCES),
    },
    FigureClaim {
        id: "16d",
        section: "7.2.3",
        statement: "16b with the cluster next to the sources",
        paper: "",
        figure: "halr-15-17-near-sources",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| helps_newreno_more(results, SOURCES),
    },
    FigureClaim {
        id: "17d",
        section: "7.2.3",
        statement: "17a with the cluster next to the sources",
        paper: "",
        figure: "halr-15-17-near-sources",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| has_fewest_with_sack(results, SOURCES),
    },
    FigureClaim {
        id: "17e",
        section: "4.2",
        statement: "17c with the cluster next to the sources",
        paper: "100 %",
        figure: "halr-15-17-near-sources",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| spares_nobody(results, SOURCES),
    },
    FigureClaim {
        id: "17b",
        section: "7.2.3",
        statement: "HALR avoids consecutive timeouts, which make ssthresh two, after a failover of 3 s (flows with two or \
                    more timeouts; least timeout 1.5 s as in Table I)",
        paper: "",
        figure: "halr-15-17-1.5s",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| avoids_consecutive_timeouts(results, TABLE_DESTINATIONS),
    },
    FigureClaim {
        id: "15e",
        section: "7.2.3",
        statement: "15a with a least timeout of 1.5 s",
        paper: "",
        figure: "halr-15-17-1.5s",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| is_as_in_ns2(results, TABLE_DESTINATIONS),
    },
    FigureClaim {
        id: "17f",
        section: "7.2.3",
        statement: "17b with the cluster next to the sources",
        paper: "",
        figure: "halr-15-17-1.5s-near-sources",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| avoids_consecutive_timeouts(results, TABLE_SOURCES),
    },
    FigureClaim {
        id: "15f",
        section: "7.2.3",
        statement: "15a with a least timeout of 1.5 s and the cluster next to the sources",
        paper: "",
        figure: "halr-15-17-1.5s-near-sources",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| is_as_in_ns2(results, TABLE_SOURCES),
    },
];

/// The Case 2 flows of one variant with this recovery. `None` if they were not simulated.
fn flows(
    results: &Results,
    scenarios: TimeoutScenarios,
    variant: &str,
    recovery: RecoveryPolicy,
) -> Option<Vec<FlowRow>> {
    let index = VARIANTS.iter().position(|one| *one == variant)?;
    let (scenario, _) = results.scenarios.get(scenarios[index])?;
    let FigureScenario::Flows(sweep) = scenario else {
        return None;
    };
    let flows = results.flows(scenarios[index], recovery)?.into_iter();
    let of = flows.filter(|row| row.variant == variant && sweep.is_case_2(row.arrival_s));
    let of: Vec<_> = of.cloned().collect();
    (!of.is_empty()).then_some(of)
}

fn setting(results: &Results, scenarios: TimeoutScenarios) -> Option<TimeoutSetting> {
    match results.scenarios.get(scenarios[0])? {
        (FigureScenario::Flows(sweep), _) => Some(sweep.timeout_setting()),
        _ => None,
    }
}

/// Fractions of the flows by their number of timeouts.
fn stack(flows: &[FlowRow], failover_s: f64) -> [f64; 5] {
    fractions(flows.iter().filter(|row| row.failover_s == failover_s))
}

/// Timeouts per flow: first the mean over the flows of each failover, then the mean over the failovers that `is_meant` selects.
fn per_flow(flows: &[FlowRow], is_meant: impl Fn(f64) -> bool) -> Option<f64> {
    let means: Option<Vec<f64>> = FAILOVERS
        .into_iter()
        .filter(|failover_s| is_meant(*failover_s))
        .map(|failover_s| {
            let of = flows.iter().filter(|row| row.failover_s == failover_s);
            mean(of.map(|row| f64::from(row.timeouts)))
        })
        .collect();
    mean(means?)
}

fn is_below_1_s(failover_s: f64) -> bool {
    failover_s < 1.0
}

fn is_as_in_ns2(results: &Results, scenarios: TimeoutScenarios) -> Option<FigureClaimResult> {
    let setting = setting(results, scenarios)?;
    let mut off = Vec::new();
    for variant in VARIANTS {
        let flows = flows(results, scenarios, variant, RecoveryPolicy::None)?;
        for failover_s in FAILOVERS {
            let theirs = oracle::timeouts(setting, variant, failover_s)?;
            let here = stack(&flows, failover_s);
            off.extend(
                here.into_iter()
                    .zip(theirs)
                    .map(|(here, theirs)| (here - theirs).abs()),
            );
        }
    }
    let most = greatest(off)?;
    let found = FigureClaimResult::new(format!("within {most:.3} of ns-2's"), most <= 0.05);
    Some(found.beside("the same"))
}

fn is_alike(results: &Results, scenarios: TimeoutScenarios) -> Option<FigureClaimResult> {
    let least_timeout_s = setting(results, scenarios)?.least_timeout_s;
    let all = VARIANTS.map(|variant| flows(results, scenarios, variant, RecoveryPolicy::None));
    let [reno, newreno, sack] = all;
    let (reno, newreno, sack) = (reno?, newreno?, sack?);
    let mut off = Vec::new();
    for failover_s in FAILOVERS
        .into_iter()
        .filter(|failover_s| *failover_s > least_timeout_s)
    {
        let [reno, newreno, sack] = [&reno, &newreno, &sack].map(|flows| stack(flows, failover_s));
        for count in 0..reno.len() {
            off.extend([reno[count] - newreno[count], reno[count] - sack[count]].map(f64::abs));
        }
    }
    let most = greatest(off)?;
    Some(FigureClaimResult::new(
        format!("fractions within {most:.2}"),
        most <= 0.05,
    ))
}

/// The share of the timeouts that HALR avoids: in failovers below 1 s, and in longer failovers.
fn avoided(results: &Results, scenarios: TimeoutScenarios, variant: &str) -> Option<[f64; 2]> {
    let with = flows(results, scenarios, variant, RecoveryPolicy::Lowest)?;
    let without = flows(results, scenarios, variant, RecoveryPolicy::None)?;
    let below = 1.0 - per_flow(&with, is_below_1_s)? / per_flow(&without, is_below_1_s)?;
    let above = |failover_s| !is_below_1_s(failover_s);
    Some([below, 1.0 - per_flow(&with, above)? / per_flow(&without, above)?])
}

fn gains_most_below_1_s(results: &Results, scenarios: TimeoutScenarios) -> Option<FigureClaimResult> {
    let [reno, newreno, sack] = VARIANTS.map(|variant| avoided(results, scenarios, variant));
    let (reno, newreno, sack) = (reno?, newreno?, sack?);
    let line = |name, [below, above]: [f64; 2]| format!("{name} {}, {}", percent(below), percent(above));
    let here = format!(
        "below 1 s and above: {}; {}; {}",
        line("Reno", reno),
        line("NewReno", newreno),
        line("SACK", sack)
    );
    let most = |[below, above]: [f64; 2]| below > reno[0] && below > above;
    Some(FigureClaimResult::new(here, most(newreno) && most(sack)))
}

fn helps_newreno_more(results: &Results, scenarios: TimeoutScenarios) -> Option<FigureClaimResult> {
    let saved = |variant| {
        let of = |recovery| per_flow(&flows(results, scenarios, variant, recovery)?, is_below_1_s);
        Some(of(RecoveryPolicy::None)? - of(RecoveryPolicy::Lowest)?)
    };
    let (reno, newreno) = (saved("Reno")?, saved("NewReno")?);
    Some(FigureClaimResult::new(
        format!("{newreno:.3} > {reno:.3} timeouts per flow saved"),
        newreno > reno,
    ))
}

fn has_fewest_with_sack(results: &Results, scenarios: TimeoutScenarios) -> Option<FigureClaimResult> {
    let of = |variant| {
        per_flow(
            &flows(results, scenarios, variant, RecoveryPolicy::Lowest)?,
            is_below_1_s,
        )
    };
    let (reno, newreno, sack) = (of("Reno")?, of("NewReno")?, of("SACK")?);
    Some(FigureClaimResult::new(
        format!("SACK {sack:.2}, NewReno {newreno:.2}, Reno {reno:.2} timeouts per flow"),
        sack < 0.8 * newreno,
    ))
}

fn spares_nobody(results: &Results, scenarios: TimeoutScenarios) -> Option<FigureClaimResult> {
    let mut spared = Vec::new();
    for variant in VARIANTS {
        let flows = flows(results, scenarios, variant, RecoveryPolicy::Lowest)?;
        let long = FAILOVERS.into_iter().filter(|failover_s| *failover_s >= 2.0);
        spared.extend(long.map(|failover_s| stack(&flows, failover_s)[0]));
    }
    let most = greatest(spared)?;
    Some(FigureClaimResult::new(percent(1.0 - most), most == 0.0))
}

fn avoids_consecutive_timeouts(results: &Results, scenarios: TimeoutScenarios) -> Option<FigureClaimResult> {
    let [mut timeouts, mut thresholds] = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for variant in VARIANTS {
        for (index, recovery) in [RecoveryPolicy::None, RecoveryPolicy::Lowest]
            .into_iter()
            .enumerate()
        {
            let mut hit = flows(results, scenarios, variant, recovery)?;
            hit.retain(|row| row.failover_s == 3.0);
            let share = |of: fn(&FlowRow) -> bool| mean(hit.iter().map(|row| f64::from(u8::from(of(row)))));
            timeouts[index].push(share(|row| row.timeouts >= 2)?);
            thresholds[index].push(share(|row| row.threshold_segments <= 2.0)?);
        }
    }
    let [without, with] = timeouts;
    let (without, with) = (least(without)?, greatest(with)?);
    let [low_without, low_with] = thresholds;
    let (low_without, low_with) = (least(low_without)?, greatest(low_with)?);
    let here = format!(
        "{} of the flows, with HALR {}; ssthresh 2 have {} and {}",
        percent(without),
        percent(with),
        percent(low_without),
        percent(low_with)
    );
    let holds = without == 1.0 && with == 0.0 && low_without == 1.0 && low_with < 0.5;
    Some(FigureClaimResult::new(here, holds))
}

/// Whether NewReno flows complete sooner with this policy than without HALR.
fn recovers_sooner(results: &Results, policy: RecoveryPolicy) -> Option<FigureClaimResult> {
    let of = |recovery| {
        mean(
            results
                .flows(POLICIES, recovery)?
                .into_iter()
                .filter_map(|row| row.completion_s),
        )
    };
    let (with, without) = (of(policy)?, of(RecoveryPolicy::None)?);
    Some(FigureClaimResult::new(
        format!("{}, without HALR {}", seconds(with), seconds(without)),
        with < without,
    ))
}
