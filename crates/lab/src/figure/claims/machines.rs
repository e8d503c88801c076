//! SCTP failover paper: spurious failovers at small losses (section III.2), other networks (III.1, III.5), dormant behaviours (III.6), the
//! policies' state machines of Figures 9 and 13 (IV, V), short transfers and many associations (V). Our own claims about informed failover,
//! a policy that measures the paths, are also here: they concern every point of the paper's grid.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use sim::multipath::shared::CoreQueue;
use sim::scenario::multipath::MultipathPolicy;
use sim::scenario::shared_paths::dispersion;

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult, OURS, percent, seconds};
use super::paths::{
    EQUAL, MeanTime, alternates, at_most_of, claim, rows, saved_by_threshold, thresholds, time,
};
use crate::figure::plot::paths::percent_of;
use crate::figure::results::{Results, least, mean};
use crate::figure::rows::MultipathRow;

const LOW: &str = "caro-spurious-low";
const DORMANT: [MultipathPolicy; 3] = [
    MultipathPolicy::DormantLastDest,
    MultipathPolicy::DormantPrimary,
    MultipathPolicy::DormantHop,
];

pub const CLAIMS: &[FigureClaim] = &[
    claim!(
        "caro-4g",
        "SCTP III.2",
        "caro-4-low",
        "2 % loss, PMR = 0: transfers without a spurious failover",
        "53 %",
        Expected::Holds,
        |results| at_most_of(results, LOW, 2, 0, 0)?.near(0.53, 0.4),
    ),
    claim!(
        "caro-4h",
        "SCTP III.2",
        "caro-4-low",
        "2 % loss, PMR = 0: transfers with at most one spurious failover",
        "84 %",
        Expected::Holds,
        |results| at_most_of(results, LOW, 2, 0, 1)?.near(0.84, 0.7091),
    ),
    claim!(
        "caro-4i",
        "SCTP III.2",
        "caro-4-low",
        "4 % loss, PMR = 1: transfers without a spurious failover",
        "57 %",
        Expected::Holds,
        |results| at_most_of(results, LOW, 4, 1, 0)?.near(0.57, 0.5909),
    ),
    claim!(
        "caro-cross-a",
        "SCTP III.1",
        "caro-cross",
        "Losses by bursts of other traffic lead to the same conclusion: PMR = 0 is no worse than any other PMR (least time saved)",
        "",
        Expected::Holds,
        |results| {
            let others = thresholds(results, "caro-cross")?
                .into_iter()
                .filter(|other| *other > 0);
            let alone = BTreeSet::from([0]);
            let saved =
                others.map(|other| Some(saved_by_threshold(results, "caro-cross", 0, other, &alone)?.part));
            let saved = least(saved.collect::<Option<Vec<_>>>()?)?;
            let has_losses = rows(results, "caro-cross")?.any(|row| row.timeouts > 0);
            Some(FigureClaimResult::new(
                percent(saved),
                has_losses && saved > -chance(results, "caro-cross", 0.05)?,
            ))
        },
    ),
    claim!(
        "caro-three-a",
        "SCTP III.5",
        "caro-three-paths",
        "A second alternate path changes nothing: PMR = 0 saves as much against every other PMR as with two paths (time saved at 8 % and \
         10 % loss with three and with two paths, where they differ most)",
        "",
        Expected::Holds,
        |results| {
            let three = "caro-times-three-paths";
            let losses = &alternates(results, three)? & &alternates(results, EQUAL)?;
            let others = &thresholds(results, three)? & &thresholds(results, EQUAL)?;
            let mut all = Vec::new();
            for other in others.into_iter().filter(|other| *other > 0) {
                let saved = |scenario| {
                    let of = [8, 10]
                        .map(|loss| Some(saved_by_threshold(results, scenario, loss, other, &losses)?.part));
                    mean(of.into_iter().collect::<Option<Vec<_>>>()?)
                };
                all.push((saved(three)?, saved(EQUAL)?));
            }
            let apart = |(three, two): &(f64, f64)| (three - two).abs();
            let most = all
                .into_iter()
                .max_by(|one, other| apart(one).total_cmp(&apart(other)))?;
            let here = format!("{}, {}", percent(most.0), percent(most.1));
            let bound = chance(results, EQUAL, 0.03)?;
            Some(FigureClaimResult::new(here, apart(&most) < bound))
        },
    ),
    claim!(
        "caro-7a",
        "SCTP III.6",
        "caro-7",
        "The dormant behaviour does not affect goodput (by how much the mean times of the three differ, PMR = 0)",
        "",
        Expected::Holds,
        |results| {
            let times = DORMANT.map(|policy| time(results, "caro-dormant", |row| row.policy == policy));
            let spread = spread(times)?;
            let most = chance(results, "caro-dormant", 0.02)?;
            Some(FigureClaimResult::new(percent(spread), spread < most))
        },
    ),
    claim!(
        "caro-7b",
        "SCTP III.6",
        "caro-7-all-fail",
        "All paths fail at 4 s. With LastDest, Primary and Hop the transfer ends after the alternate's return at 10 s, before the primary's at 54 s",
        OURS,
        Expected::Holds,
        |results| {
            let took = |policy| time(results, "caro-all-fail", |row| row.policy == policy);
            let times = DORMANT.map(took).into_iter().collect::<Option<Vec<_>>>()?;
            let here: Vec<_> = times.iter().copied().map(seconds).collect();
            let holds = times.iter().all(|time| (10.0..54.0).contains(time));
            Some(FigureClaimResult::new(here.join(", "), holds))
        },
    ),
    claim!(
        "caro-9a",
        "SCTP IV",
        "caro-9",
        "Failovers become permanent when CPT is exceeded, so rarely with a large CPT, and never without one (changes of the primary per \
         transfer at 8 % loss, for each CPT)",
        "",
        Expected::Holds,
        |results| {
            let of = rows(results, "caro-informed-90-90")?
                .filter(|row| row.policy.has_change_over() && percent_of(row.primary_loss) == 8);
            let mut changes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
            for row in of {
                // No transfer has a CPT of u32::MAX, so "no CPT" comes last.
                let changes = changes.entry(row.change_over.unwrap_or(u32::MAX)).or_default();
                changes.push(f64::from(row.promotions));
            }
            let means = changes.values().map(|changes| mean(changes.iter().copied()));
            let means = means.collect::<Option<Vec<_>>>()?;
            let here: Vec<_> = means.iter().map(|mean| format!("{mean:.1}")).collect();
            let [first, .., last, none] = means[..] else {
                return None;
            };
            // Half a change is chance.
            let is_fewer = means.is_sorted_by(|one, other| one + 0.5 >= *other);
            let holds = is_fewer && first > 10.0 * last && none == 0.0;
            Some(FigureClaimResult::new(here.join(", "), holds))
        },
    ),
    claim!(
        "caro-13a",
        "SCTP V",
        "caro-13",
        "The proposed state machine detects failures as accurately as today's (spurious failovers per transfer, 8 % loss, PMR = 5)",
        "",
        Expected::Holds,
        |results| {
            let of = rows(results, "caro-machines")?.filter(is_proposed);
            let spurious = mean(of.map(|row| f64::from(row.failovers)))?;
            Some(FigureClaimResult::new(format!("{spurious:.2}"), spurious < 0.3))
        },
    ),
    claim!(
        "caro-13b",
        "SCTP V",
        "caro-13",
        "The proposed state machine leaves the path at the first timeout, and so is no slower than today's (time saved, PMR = 5)",
        "",
        Expected::Holds,
        |results| {
            let took = |policy| {
                let is_of = |row: &MultipathRow| row.policy == policy && row.path_max_retrans == 5;
                time(results, "caro-machines", is_of)
            };
            let saved = 1.0 - took(MultipathPolicy::Proposed)? / took(MultipathPolicy::DormantHopOnce)?;
            let least = -chance(results, "caro-machines", 0.01)?;
            Some(FigureClaimResult::new(percent(saved), saved > least))
        },
    ),
    FigureClaim {
        id: "caro-short-a",
        section: "SCTP V",
        statement: "Short transfers may benefit from PMR = 0 even at small losses (time saved in transfers of \
                    100 kB, at 1 to 3 % loss)",
        paper: "",
        figure: "caro-short",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Differs(
            "less than one percent: timeouts are rare in 70 packets, and what they retransmit goes to the other path with any PMR",
        ),
        find: |results| {
            let took = |path_max_retrans| {
                time(results, "caro-short", |row| {
                    row.path_max_retrans == path_max_retrans
                })
            };
            let saved = 1.0 - took(0)? / took(5)?;
            let here = format!("{:.1} %", saved * 100.0);
            Some(FigureClaimResult::new(here, saved > 0.01))
        },
    },
    claim!(
        "caro-sync-a",
        "SCTP V",
        "caro-sync",
        "Synchronized failovers are no worse than synchronized timeouts (dispersion of the timeouts in the 20 s after a failure, PMR = 0 and 5)",
        "",
        Expected::Holds,
        |results| {
            let soon =
                |path_max_retrans| synchronization(results, CoreQueue::DropTail, path_max_retrans, SOON);
            let (failovers, timeouts) = (soon(0)?, soon(5)?);
            let here = format!("{failovers:.1} and {timeouts:.1}");
            Some(FigureClaimResult::new(
                here,
                failovers > 2.0 && failovers < timeouts,
            ))
        },
    ),
    claim!(
        "caro-sync-b",
        "SCTP V",
        "caro-sync",
        "Synchronized failovers may form a cycle (dispersion of the timeouts from 20 s after a failure on, drop-tail, PMR = 0)",
        "",
        Expected::Differs("dispersion 1, as for independent timeouts: the senders do not stay together"),
        |results| {
            let later = synchronization(results, CoreQueue::DropTail, 0, LATER)?;
            Some(FigureClaimResult::new(format!("{later:.2}"), later > CYCLE))
        },
    ),
    claim!(
        "caro-sync-c",
        "SCTP V",
        "caro-sync",
        "With AQM there is no cycle (dispersion of the timeouts from 20 s after a failure on, RED, PMR = 0)",
        "",
        Expected::Holds,
        |results| {
            let later = synchronization(results, CoreQueue::Red, 0, LATER)?;
            Some(FigureClaimResult::new(format!("{later:.2}"), later < CYCLE))
        },
    ),
    claim!(
        "caro-informed-a",
        "SCTP IV.1",
        "caro-informed-90-90",
        "Round trips of 90 and 90 ms: at no point is the informed policy slower than the best CPT, or than no CPT, by more than the \
         larger of 5 % and two standard errors (shown: the worst point)",
        OURS,
        Expected::Holds,
        |results| informed(results, "caro-informed-90-90"),
    ),
    claim!(
        "caro-informed-b",
        "SCTP IV.2",
        "caro-informed-90-210",
        "Round trips of 90 and 210 ms: at no point is the informed policy slower than the best CPT, or than no CPT, by more than the \
         larger of 5 % and two standard errors (shown: the worst point)",
        OURS,
        Expected::Holds,
        |results| informed(results, "caro-informed-90-210"),
    ),
    claim!(
        "caro-informed-c",
        "SCTP IV.2",
        "caro-informed-210-90",
        "Round trips of 210 and 90 ms: at no point is the informed policy slower than the best CPT, or than no CPT, by more than the \
         larger of 5 % and two standard errors (shown: the worst point)",
        OURS,
        Expected::Holds,
        |results| informed(results, "caro-informed-210-90"),
    ),
];

fn is_proposed(row: &&MultipathRow) -> bool {
    row.policy == MultipathPolicy::Proposed && row.path_max_retrans == 5
}

/// The seconds after a failure in which synchronized timeouts are an immediate effect of the failure.
const SOON: RangeInclusive<u32> = 1..=20;
/// All later seconds.
const LATER: RangeInclusive<u32> = 21..=u32::MAX;
/// Dispersion above which timeouts count as synchronized. Independent timeouts have a dispersion of 1.
const CYCLE: f64 = 1.5;

/// Mean over the seeds of the dispersion of the timeouts in these seconds after the failure.
fn synchronization(
    results: &Results,
    queue: CoreQueue,
    path_max_retrans: u32,
    seconds: RangeInclusive<u32>,
) -> Option<f64> {
    let (_, rows) = results.scenarios.get("caro-sync")?;
    let mut seeds: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for row in &rows.shared_paths {
        if (row.queue, row.path_max_retrans) == (queue, path_max_retrans) && seconds.contains(&row.end_s) {
            seeds.entry(row.seed).or_default().push(row.timeouts);
        }
    }
    mean(seeds.values().filter_map(|counts| dispersion(counts)))
}

/// `bound`, increased by an allowance for chance. The allowance is larger if there are fewer seeds.
fn chance(results: &Results, scenario: &str, bound: f64) -> Option<f64> {
    let seeds = rows(results, scenario)?.map(|row| row.seed).max()?;
    Some(bound + 0.05 / (seeds as f64).sqrt())
}

/// Fraction by which the longest of `times` exceeds the shortest.
fn spread(times: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let times = times.into_iter().collect::<Option<Vec<_>>>()?;
    let (least, most) = (
        times.iter().copied().reduce(f64::min)?,
        times.iter().copied().reduce(f64::max)?,
    );
    Some(most / least - 1.0)
}

/// Judges the informed policy at each point of the grid, against the best CPT and against no CPT.
fn informed(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    type Machine = (MultipathPolicy, Option<u32>);
    let mut points: BTreeMap<(u32, u32), BTreeMap<Machine, Vec<f64>>> = BTreeMap::new();
    for row in rows(results, scenario)? {
        let point = (percent_of(row.primary_loss), percent_of(row.alternate_loss));
        let times = points.entry(point).or_default();
        let times = times.entry((row.policy, row.change_over)).or_default();
        // A transfer that did not complete counts as 40,000 s, which is longer than any completed transfer.
        times.push(row.completion_s.unwrap_or(40_000.0));
    }
    let (mut worst, mut at, mut behind) = (f64::NEG_INFINITY, (0, 0), BTreeSet::new());
    for (point, machines) in &points {
        let own = MeanTime::of(machines.get(&(MultipathPolicy::Informed, None))?)?;
        let others = machines
            .iter()
            .filter(|((policy, _), _)| *policy != MultipathPolicy::Informed);
        let others: Vec<_> = others.filter_map(|(_, times)| MeanTime::of(times)).collect();
        // `others` includes the best CPT, and the policy without a CPT.
        for other in others {
            let excess = own.mean / other.mean - 1.0;
            if excess > worst {
                (worst, at) = (excess, *point);
            }
            if own.mean - other.mean > own.may_exceed(other) {
                behind.insert(*point);
            }
        }
    }
    let here = format!(
        "{} behind at {} % and {} %; {} of {} points too far",
        percent(worst),
        at.0,
        at.1,
        behind.len(),
        points.len()
    );
    Some(FigureClaimResult::new(here, behind.is_empty()))
}
