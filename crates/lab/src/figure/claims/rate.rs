//! §7.4: two strings, one of which fails. Numbers are means over the seeds, measured from 8 to 28 s.

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult, percent};
use crate::figure::oracle;
use crate::figure::results::{Results, StringsSummary, greatest, least, mean, surges};

pub const CLAIMS: &[FigureClaim] = &[
    FigureClaim {
        id: "20a",
        section: "7.4.1",
        statement: "Without rate control the throughput after the failover stays at what the string carries",
        paper: "100 Mb/s",
        figure: "halr-20",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let here = of(results, 750, false, |run| run.mean_mbps)?;
            let theirs = oracle::bins(750)
                .into_iter()
                .filter(|(at, ..)| (8.01..28.01).contains(at));
            let theirs = mean(theirs.map(|(_, mbps, _)| mbps))?;
            Some(FigureClaimResult::new(mbps(here), (here - 100.0).abs() < 2.0).beside(mbps(theirs)))
        },
    },
    FigureClaim {
        id: "20b",
        section: "7.4.1",
        statement: "Without rate control some transfers that begin after the failure take longer (the longest)",
        paper: "",
        figure: "halr-20",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let [with, without] = both(results, |run| run.longest_late_s)?;
            let here = format!("{without:.1} s, with rate control {with:.1} s");
            Some(FigureClaimResult::new(here, with < 0.95 * without))
        },
    },
    FigureClaim {
        id: "21a",
        section: "7.4.1",
        statement: "With rate control the throughput is a little lower",
        paper: "",
        figure: "halr-21",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let with = of(results, 750, true, |run| run.mean_mbps)?;
            let without = of(results, 750, false, |run| run.mean_mbps)?;
            Some(FigureClaimResult::new(
                mbps(with),
                with <= without && with > 0.9 * without,
            ))
        },
    },
    FigureClaim {
        id: "22a",
        section: "7.4.1",
        statement: "With rate control the throughput is smoother (what receivers get in order, as ns-2's sinks count it; standard \
                    deviation over tenths of a second)",
        paper: "",
        figure: "halr-22",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let with = of(results, 750, true, |run| run.deviation_mbps)?;
            let without = of(results, 750, false, |run| run.deviation_mbps)?;
            Some(FigureClaimResult::new(
                format!("{with:.1} < {without:.1} Mb/s"),
                with < without,
            ))
        },
    },
    FigureClaim {
        id: "22b",
        section: "7.4.1",
        statement: "The same on the wire: what R1 sends into the string, repeated segments included",
        paper: "",
        figure: "halr-22",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Differs(
            "a full queue keeps the string busy all the time, so nothing is smoother than no control; what fluctuates is \
             what arrives in order, because a repeated segment releases all that waited for it",
        ),
        find: |results| {
            let [with, without] = both(results, |run| run.wire_deviation_mbps)?;
            let here = format!("{with:.2} Mb/s, without rate control {without:.2} Mb/s");
            Some(FigureClaimResult::new(here, with < without))
        },
    },
    FigureClaim {
        id: "23b",
        section: "7.4.2",
        statement: "Without rate control completion is postponed, because flows lose packets and slow down (mean of all flows)",
        paper: "",
        figure: "halr-23",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Differs(
            "the string carries equally much, so with equal shares all flows complete late together, whereas without \
             control those that get more complete early",
        ),
        find: |results| {
            let [with, without] = both(results, |run| run.mean_completion_s)?;
            let here = format!("{without:.1} s, with rate control {with:.1} s");
            Some(FigureClaimResult::new(here, with < without))
        },
    },
    FigureClaim {
        id: "23c",
        section: "7.4.2",
        statement: "Without rate control, flows that begin after the failover suffer most (time with less than half a share)",
        paper: "",
        figure: "halr-23",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Differs("whether a flow loses packets does not depend on when it began"),
        find: |results| {
            let early = of(results, 750, false, |run| run.starved[0])?;
            let late = of(results, 750, false, |run| run.starved[1])?;
            let here = format!("{}, older flows {}", percent(late), percent(early));
            Some(FigureClaimResult::new(here, late > 1.25 * early))
        },
    },
    FigureClaim {
        id: "23a",
        section: "7.4.2",
        statement: "Without rate control some flows do not get their fair share (Jain's index)",
        paper: "",
        figure: "halr-23",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let jain = of(results, 750, false, |run| run.jain)?;
            Some(FigureClaimResult::new(format!("{jain:.2}"), jain < 0.9))
        },
    },
    FigureClaim {
        id: "24a",
        section: "7.4.2",
        statement: "With rate control the shares are fair (Jain's index), from 4 s after the failover on",
        paper: "",
        figure: "halr-24",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let [with, without] = both(results, |run| run.jain_late[0])?;
            let least = of(results, 750, true, |run| run.jain_late[1])?;
            Some(FigureClaimResult::new(
                format!("{with:.2} (least {least:.2}), without {without:.2}"),
                with > 0.95 && with > without,
            ))
        },
    },
    FigureClaim {
        id: "24c",
        section: "7.4.2",
        statement: "The same in the first 4 s after the failover",
        paper: "",
        figure: "halr-24",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Differs(
            "the flows that were moved, and new ones, begin with one segment, and need several round trips until the cap limits \
             them too",
        ),
        find: |results| {
            let [with, without] = both(results, |run| run.jain_early[0])?;
            let least = of(results, 750, true, |run| run.jain_early[1])?;
            Some(FigureClaimResult::new(
                format!("{with:.2} (least {least:.2}), without {without:.2}"),
                with > 0.95,
            ))
        },
    },
    FigureClaim {
        id: "24b",
        section: "7.4.2",
        statement: "and no packet is lost to a full buffer",
        paper: "0 packets",
        figure: "halr-24",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let most = greatest(runs(results, 750, true)?.iter().map(|run| run.dropped))?;
            Some(FigureClaimResult::new(format!("{most:.0} packets"), most == 0.0))
        },
    },
    FigureClaim {
        id: "25a",
        section: "7.4.3",
        statement: "Surges of overflows with a buffer of 1500 packets, without rate control",
        paper: "3",
        figure: "halr-25",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| surges_of(results, 1500, 3.0),
    },
    FigureClaim {
        id: "25b",
        section: "7.4.3",
        statement: "With rate control the queue stays below",
        paper: "600 packets",
        figure: "halr-25",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| queue_at_most(results, 1500),
    },
    FigureClaim {
        id: "26a",
        section: "7.4.3",
        statement: "Surges of overflows with a buffer of 750 packets, without rate control",
        paper: "8",
        figure: "halr-26",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| surges_of(results, 750, 8.0),
    },
    FigureClaim {
        id: "26b",
        section: "7.4.3",
        statement: "With rate control the queue stays below",
        paper: "600 packets",
        figure: "halr-26",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| queue_at_most(results, 750),
    },
    FigureClaim {
        id: "26c",
        section: "7.4.3",
        statement: "Without rate control the smaller buffer overflows more often",
        paper: "8 > 3",
        figure: "halr-26",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let small = of(results, 750, false, |run| run.surges)?;
            let large = of(results, 1500, false, |run| run.surges)?;
            Some(FigureClaimResult::new(
                format!("{small:.1} > {large:.1}"),
                small > large,
            ))
        },
    },
    FigureClaim {
        id: "3000a",
        section: "7.4.3",
        statement: "A buffer of 3000 packets is full later",
        paper: "",
        figure: "halr-buffer-3000",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let first = |buffer| {
                let firsts = runs(results, buffer, false)?.into_iter();
                least(firsts.map(|run| run.first_drop_s.unwrap_or(f64::INFINITY)))
            };
            let (small, large, larger) = (first(750)?, first(1500)?, first(3000)?);
            let at = |moment: f64| {
                if moment.is_finite() {
                    format!("{moment:.1} s")
                } else {
                    "never".into()
                }
            };
            let here = format!(
                "first drop after the failover: {}, {}, {}",
                at(small),
                at(large),
                at(larger)
            );
            Some(FigureClaimResult::new(here, small <= large && large < larger))
        },
    },
    FigureClaim {
        id: "3000b",
        section: "7.4.3",
        statement: "but it is full in the end",
        paper: "",
        figure: "halr-buffer-3000",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let runs = runs(results, 3000, false)?;
            let most = greatest(runs.iter().map(|run| run.queue_max))?;
            Some(FigureClaimResult::new(
                format!("at most {most:.0} packets wait"),
                most >= 2999.0,
            ))
        },
    },
    FigureClaim {
        id: "3000c",
        section: "7.4.3",
        statement: "and its queue makes packets wait longer (mean queue)",
        paper: "",
        figure: "halr-buffer-3000",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let [small, large, larger] =
                [750, 1500, 3000].map(|buffer| of(results, buffer, false, |run| run.queue_mean));
            let (small, large, larger) = (small?, large?, larger?);
            let here = format!("{small:.0} < {large:.0} < {larger:.0} packets");
            Some(FigureClaimResult::new(here, small < large && large < larger))
        },
    },
    FigureClaim {
        id: "3000d",
        section: "7.4.3",
        statement: "and it may make senders repeat packets that are still waiting in it",
        paper: "",
        figure: "halr-buffer-3000",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Differs("3000 packets wait for 0.36 s, and the least timeout is 1 s"),
        find: |results| {
            let most = greatest(
                runs(results, 3000, false)?
                    .iter()
                    .map(|run| run.false_retransmissions),
            )?;
            Some(FigureClaimResult::new(
                format!("{most:.0} segments of flows that lost none"),
                most > 0.0,
            ))
        },
    },
];

fn runs(results: &Results, buffer: usize, rate_control: bool) -> Option<Vec<StringsSummary>> {
    results.strings(buffer, rate_control)
}

/// The mean over the seeds.
fn of(
    results: &Results,
    buffer: usize,
    rate_control: bool,
    value: fn(&StringsSummary) -> f64,
) -> Option<f64> {
    mean(runs(results, buffer, rate_control)?.iter().map(value))
}

/// The means over the seeds with a buffer of 750 packets: with rate control, and without.
fn both(results: &Results, value: fn(&StringsSummary) -> f64) -> Option<[f64; 2]> {
    Some([of(results, 750, true, value)?, of(results, 750, false, value)?])
}

fn mbps(value: f64) -> String {
    format!("{value:.2} Mb/s")
}

fn surges_of(results: &Results, buffer: usize, paper: f64) -> Option<FigureClaimResult> {
    let here = of(results, buffer, false, |run| run.surges)?;
    let drops = oracle::bins(buffer).into_iter();
    let drops = drops.filter(|(at, _, dropped)| (8.01..28.01).contains(at) && *dropped > 0.0);
    let theirs = surges(drops.map(|(at, ..)| at));
    let others = mean(oracle::jittered(buffer, "overflow_surges_8_28s"))?;
    let found = FigureClaimResult::new(format!("{here:.1}"), (here - paper).abs() <= 1.0);
    Some(found.beside(format!("{theirs:.0}; jittered {others:.1}")))
}

fn queue_at_most(results: &Results, buffer: usize) -> Option<FigureClaimResult> {
    let most = greatest(runs(results, buffer, true)?.iter().map(|run| run.queue_max))?;
    Some(FigureClaimResult::new(
        format!("{most:.0} packets"),
        most <= 600.0,
    ))
}
