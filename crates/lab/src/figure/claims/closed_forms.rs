//! SCTP failover paper: detection times (section II), the packets of Figure 8, and Eq. 1 to 10 (section III.7).

use std::collections::BTreeSet;

use model::caro::{
    failure_detection_s, packets, scenario_3_round_trips, scenario_4_round_trips, slow_start_packets,
    slow_start_round_trips,
};

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult, seconds};
use super::paths::claim;
use crate::figure::results::{Results, greatest};
use crate::figure::rows::TimeoutPacketRow;

/// A claim about a closed form, judged by simulation.
const fn equation(
    id: &'static str,
    section: &'static str,
    figure: &'static str,
    statement: &'static str,
    paper: &'static str,
    find: fn(&Results) -> Option<FigureClaimResult>,
) -> FigureClaim {
    FigureClaim {
        id,
        section,
        statement,
        paper,
        figure,
        evidence: ClaimEvidence::Model,
        expected: Expected::Holds,
        find,
    }
}

pub const CLAIMS: &[FigureClaim] = &[
    equation(
        "caro-1a",
        "SCTP II",
        "caro-1",
        "PMR = 5, first timeout of 1 s: a failure is detected after",
        "63 s",
        |results| detected(results, 5, false, 63.0),
    ),
    equation(
        "caro-1b",
        "SCTP II",
        "caro-1",
        "PMR = 5, first timeout of 60 s: a failure is detected after",
        "360 s",
        |results| detected(results, 5, true, 360.0),
    ),
    equation(
        "caro-1c",
        "SCTP III.2",
        "caro-1",
        "PMR = 3: a failure is detected after",
        "15 s",
        |results| detected(results, 3, false, 15.0),
    ),
    equation(
        "caro-1d",
        "SCTP III.2",
        "caro-1",
        "PMR = 6: a failure is detected after",
        "123 s",
        |results| detected(results, 6, false, 123.0),
    ),
    claim!(
        "caro-8a",
        "SCTP III.7",
        "caro-8",
        "After the timeout of packet 1, packet 1 goes to the alternate. To the primary goes a heartbeat (PMR = 0) or packet 2 (PMR = 1)",
        "",
        Expected::Holds,
        |results| {
            let mut holds = true;
            for scenario in 1..=4 {
                for (path_max_retrans, to_primary) in [(0, None), (1, Some(1))] {
                    let sent = sent(results, scenario, path_max_retrans)?;
                    let first = sent.iter().filter(|row| row.after_ms < FIRST_MS);
                    let mut first: Vec<_> = first.map(|row| (row.path, row.number)).collect();
                    first.sort_unstable();
                    holds &= first == [(0, to_primary), (1, Some(0))];
                }
            }
            let here = if holds {
                "in all four scenarios"
            } else {
                "other packets"
            };
            Some(FigureClaimResult::new(here, holds))
        },
    ),
    claim!(
        "caro-8b",
        "SCTP III.7.1",
        "caro-8",
        "Scenario 1: data goes on on the primary after one round trip of 90 ms. PMR = 1 is ahead by one packet",
        "1 packet",
        Expected::Holds,
        |results| {
            let [none, one] = [0, 1].map(|path_max_retrans| sent(results, 1, path_max_retrans));
            let (none, one) = (none?, one?);
            // All new data goes to the primary. Later, other packets of the two senders wait for a delayed SACK.
            let moments = (100..=1000).step_by(100);
            let ahead = moments.map(|at| new_data(&one, 0, at) as i64 - new_data(&none, 0, at) as i64);
            let ahead: BTreeSet<_> = ahead.collect();
            let goes_on = [&none, &one]
                .iter()
                .all(|sent| new_data(sent, 0, 200) >= 2 && new_data(sent, 1, END_MS) == 0);
            let here: Vec<_> = ahead.iter().map(i64::to_string).collect();
            Some(FigureClaimResult::new(
                format!("ahead by {} in the first second", here.join(" or ")),
                goes_on && ahead == BTreeSet::from([1]),
            ))
        },
    ),
    claim!(
        "caro-8c",
        "SCTP III.7.2",
        "caro-8",
        "Scenario 2: one packet per round trip goes to the primary until packet 1 times out again after 1 s and goes to the primary, too",
        "",
        Expected::Holds,
        |results| {
            let [none, one] = [0, 1].map(|path_max_retrans| sent(results, 2, path_max_retrans));
            let (none, one) = (none?, one?);
            let counts = [&none, &one].map(|sent| new_data(sent, 0, 1000));
            let holds = counts.iter().all(|count| (8..=12).contains(count))
                && [&none, &one].iter().all(|sent| is_repeated_after_1_s(sent));
            let here = format!("{} and {} packets in 1 s (11 round trips)", counts[0], counts[1]);
            Some(FigureClaimResult::new(here, holds))
        },
    ),
    claim!(
        "caro-8d",
        "SCTP III.7.3",
        "caro-8",
        "Scenario 3: PMR = 1 sends one packet until the second timeout after 2 s, PMR = 0 sends on the alternate",
        "",
        Expected::Holds,
        |results| {
            let [none, one] = [0, 1].map(|path_max_retrans| sent(results, 3, path_max_retrans));
            let all = |sent: &[&TimeoutPacketRow]| new_data(sent, 0, 1990) + new_data(sent, 1, 1990);
            let (none, one) = (all(&none?), all(&one?));
            Some(FigureClaimResult::new(
                format!("{one} packet and {none} packets"),
                one == 1 && none > 100,
            ))
        },
    ),
    claim!(
        "caro-8e",
        "SCTP III.7.4",
        "caro-8",
        "Scenario 4: packet 1 times out first, after 1 s, and goes to the primary. PMR = 0 is ahead when PMR = 1 has timed out after 2 s",
        "",
        Expected::Holds,
        |results| {
            let [none, one] = [0, 1].map(|path_max_retrans| sent(results, 4, path_max_retrans));
            let (none, one) = (none?, one?);
            let holds = [&none, &one].iter().all(|sent| is_repeated_after_1_s(sent));
            let gained = gained(&none, &one);
            Some(FigureClaimResult::new(
                format!("{gained} packets ahead"),
                holds && gained > (packets(difference(), THRESHOLD) - 1.0) / 3.0,
            ))
        },
    ),
    claim!(
        "caro-8f",
        "SCTP III.7.1",
        "caro-8",
        "Scenario 1 with round trips of 1040 ms on the primary and 90 ms on the alternate: PMR = 0 gets ahead of PMR = 1 (new packets, 2 s \
         after the timeout)",
        "",
        Expected::Holds,
        |results| ahead_on_a_slow_primary(results, "caro-timeouts-1040-90"),
    ),
    claim!(
        "caro-8g",
        "SCTP III.7.1",
        "caro-8",
        "Scenario 1 with round trips of 210 ms on the primary and 90 ms on the alternate: PMR = 0 gets ahead of PMR = 1 (new packets, 2 s \
         after the timeout)",
        "",
        Expected::Differs(
            "packet 1 is alone on the alternate, so its acknowledgement is delayed by 200 ms and comes after the heartbeat's answer; PMR = 0 \
             gets ahead only if the primary's round trip is longer than the alternate's and this delay together",
        ),
        |results| ahead_on_a_slow_primary(results, "caro-timeouts-210-90"),
    ),
    claim!(
        "caro-8h",
        "SCTP III.7.4",
        "caro-8",
        "Scenario 4: after packet 2, PMR = 1 cannot send new data until packet 2 times out after 2 s (new packets before)",
        "none",
        Expected::Differs(
            "packets 1 and 2 together fill the window, so the acknowledgement of packet 1 lets the window grow (RFC 9260 §7.2.1), new data \
             goes on, and packet 2 is fast retransmitted before it times out",
        ),
        |results| {
            let one = sent(results, 4, 1)?;
            let new = new_data(&one, 0, 1990) + new_data(&one, 1, 1990) - 1;
            Some(FigureClaimResult::new(format!("{new} packets"), new == 0))
        },
    ),
    equation(
        "caro-eq-1",
        "SCTP III.7.3",
        "caro-8",
        "Eq. 1, with max where min is printed: in scenario 3, PMR = 0 sends on the alternate for (RTO + RTT) / RTT round trips",
        "23.2",
        |results| {
            let sent = sent(results, 3, 0)?;
            let mut later = sent.iter().filter(|row| row.after_ms > FIRST_MS);
            let Some(back) = later.find(|row| row.path == 0 && row.number.is_some()) else {
                return Some(FigureClaimResult::new(
                    "not back on the primary within 3 s",
                    false,
                ));
            };
            let here = back.after_ms as f64 / 1e3 / ROUND_TRIP_S;
            let modelled = scenario_3_round_trips(2.0, ROUND_TRIP_S, ROUND_TRIP_S);
            let text = format!("{here:.1}, Eq. 1 {modelled:.1}");
            Some(FigureClaimResult::new(text, (here - modelled).abs() < 1.0))
        },
    ),
    equation(
        "caro-eq-2",
        "SCTP III.7.3",
        "caro-equations",
        "Eq. 2 and 3, with min where max is printed: round trips in slow start, which end when the window exceeds ssthresh",
        "",
        |results| {
            let mut far = Vec::new();
            for (threshold, counts) in growths(results)? {
                let left = counts.iter().position(|count| *count > threshold);
                let left = left.unwrap_or(counts.len()) as f64;
                far.push((left - slow_start_round_trips(20.0, f64::from(threshold))).abs());
            }
            let most = greatest(far)?;
            let here =
                format!("at most {most:.1} round trips off the equation (whole packets: up to {AHEAD})");
            Some(FigureClaimResult::new(here, most < AHEAD + 0.5))
        },
    ),
    equation(
        "caro-eq-4",
        "SCTP III.7.3",
        "caro-equations",
        "Eq. 4: packets sent in slow start grow by half in each round trip",
        "",
        |results| {
            // Slow start of the largest threshold lasts eight round trips by Eq. 3.
            let (threshold, counts) = growths(results)?
                .into_iter()
                .max_by_key(|(threshold, _)| *threshold)?;
            let rounds = slow_start_round_trips(20.0, f64::from(threshold)) - AHEAD;
            compared(&[counts[..rounds as usize].to_vec()], |_, round| {
                slow_start_packets(round)
            })
        },
    ),
    equation(
        "caro-eq-5",
        "SCTP III.7.3",
        "caro-equations",
        "Eq. 5 to 7: after slow start, the window grows by one packet per round trip",
        "1",
        |results| {
            let grown = growths(results)?
                .into_iter()
                .map(|(_, counts)| (f64::from(counts[19]) - f64::from(counts[9])) / 10.0);
            let grown: Vec<_> = grown.collect();
            let here: Vec<_> = grown.iter().map(|grown| format!("{grown:.1}")).collect();
            let holds = grown.iter().all(|grown| (grown - 1.0).abs() < 0.3);
            Some(FigureClaimResult::new(here.join(", "), holds))
        },
    ),
    equation(
        "caro-eq-8",
        "SCTP III.7.3",
        "caro-equations",
        "Eq. 8 and 9: packets sent in slow start and after it together, in 1 to 20 round trips",
        "",
        |results| {
            let growths = growths(results)?;
            let thresholds: Vec<_> = growths
                .iter()
                .map(|(threshold, _)| f64::from(*threshold))
                .collect();
            let counts: Vec<_> = growths.into_iter().map(|(_, counts)| counts).collect();
            compared(&counts, |run, round| packets(round, thresholds[run]))
        },
    ),
    equation(
        "caro-eq-9",
        "SCTP III.7.3",
        "caro-8",
        "Eq. 9: packets that PMR = 0 sends in scenario 3 on the alternate",
        "",
        |results| {
            let here = 1 + new_data(&sent(results, 3, 0)?, 1, 2090);
            let modelled = packets(scenario_3_round_trips(2.0, ROUND_TRIP_S, ROUND_TRIP_S), THRESHOLD);
            let part = here as f64 / modelled;
            Some(FigureClaimResult::new(
                format!("{here}, Eq. 9 {modelled:.0}"),
                (0.7..1.1).contains(&part),
            ))
        },
    ),
    FigureClaim {
        expected: Expected::Differs(
            "a timeout on the idle path's small window leaves a low threshold, which the equation does not model",
        ),
        ..equation(
            "caro-eq-10",
            "SCTP III.7.4",
            "caro-8",
            "Eq. 10, with max where min is printed, and with the difference of the timeouts where their sum is printed: packets that PMR = 0 \
         sends in scenario 4 until PMR = 1 times out",
            "",
            |results| {
                // Packet 1, and the new data after it.
                let here = 1 + new_data(&sent(results, 4, 0)?, 0, 2000);
                let printed = packets(scenario_4_round_trips(2.0, 1.0, ROUND_TRIP_S), THRESHOLD);
                let modelled = packets(difference(), THRESHOLD);
                // Acknowledgements of single packets are delayed, which the equations do not model.
                let part = here as f64 / modelled;
                Some(FigureClaimResult::new(
                    format!("{here}, Eq. 9 {modelled:.0}; with the sum {printed:.0}"),
                    (0.5..1.1).contains(&part),
                ))
            },
        )
    },
];

/// Round-trip time of both paths, in seconds.
const ROUND_TRIP_S: f64 = 0.09;
/// The alternate's initial slow start threshold, in packets: 65,536 bytes, which is also the receiver's buffer.
const THRESHOLD: f64 = 44.0;
/// Packets that leave this soon after the timeout are the figure's first two.
const FIRST_MS: u64 = 50;
/// End of the runs, in milliseconds after the timeout.
const END_MS: u64 = 3000;
/// Largest number of round trips by which a transfer is ahead of the equations. The first windows are one, two and three whole packets; the
/// equations allow fractions of a packet.
const AHEAD: f64 = 3.0;

/// Compares a detection with the paper and the closed form. `is_slow`: the first timeout takes 10 s or longer.
fn detected(
    results: &Results,
    path_max_retrans: u32,
    is_slow: bool,
    paper_s: f64,
) -> Option<FigureClaimResult> {
    let (_, rows) = results.scenarios.get("caro-timeouts")?;
    let row = rows
        .detections
        .iter()
        .find(|row| row.path_max_retrans == path_max_retrans && (row.first_rto_s >= 10.0) == is_slow)?;
    let modelled = failure_detection_s(path_max_retrans, row.first_rto_s, 60.0);
    let took = row.detected_s.unwrap_or(f64::INFINITY);
    // The first timer began up to a round trip before the cut. The timer also covers a second chunk, whose SACK may be delayed.
    let holds = (took - paper_s).abs() < 0.5 && modelled == paper_s;
    let here = format!("{}, closed form {modelled:.0} s", seconds(took));
    Some(FigureClaimResult::new(here, holds))
}

/// The packets that a sender sends in a scenario of Figure 8 after the timeout.
fn sent(results: &Results, scenario: u32, path_max_retrans: u32) -> Option<Vec<&TimeoutPacketRow>> {
    sent_in(results, "caro-timeouts", scenario, path_max_retrans)
}

/// As [`sent`], with the delays of this file.
fn sent_in<'a>(
    results: &'a Results,
    file: &str,
    scenario: u32,
    path_max_retrans: u32,
) -> Option<Vec<&'a TimeoutPacketRow>> {
    let (_, rows) = results.scenarios.get(file)?;
    let of = rows
        .timeout_packets
        .iter()
        .filter(|row| row.scenario == scenario && row.path_max_retrans == path_max_retrans);
    let of: Vec<_> = of.collect();
    (!of.is_empty()).then_some(of)
}

/// Number of packets with new data on a path, before `until_ms`.
fn new_data(sent: &[&TimeoutPacketRow], path: usize, until_ms: u64) -> usize {
    let is_new = |row: &&&TimeoutPacketRow| {
        row.after_ms < until_ms && row.path == path && row.number.is_some_and(|number| number > 0)
    };
    sent.iter().filter(is_new).count()
}

/// Whether packet 1 goes to the alternate at first and, after its second timeout, to the primary.
fn is_repeated_after_1_s(sent: &[&TimeoutPacketRow]) -> bool {
    let of = sent.iter().filter(|row| row.number == Some(0));
    let ways: Vec<_> = of.map(|row| (row.after_ms / 100, row.path)).collect();
    ways == [(0, 1), (10, 0)]
}

/// By how many packets with new data PMR = 0 is ahead of PMR = 1 on the primary path, two seconds after the timeout.
fn gained(none: &[&TimeoutPacketRow], one: &[&TimeoutPacketRow]) -> f64 {
    new_data(none, 0, 2000) as f64 - new_data(one, 0, 2000) as f64
}

/// Judges whether PMR = 0 gets ahead of PMR = 1 in scenario 1, in a file whose primary path is slower than the alternate path.
fn ahead_on_a_slow_primary(results: &Results, file: &str) -> Option<FigureClaimResult> {
    let [none, one] = [0, 1].map(|path_max_retrans| {
        let sent = sent_in(results, file, 1, path_max_retrans)?;
        Some(new_data(&sent, 0, 2000) + new_data(&sent, 1, 2000))
    });
    let (none, one) = (none?, one?);
    Some(FigureClaimResult::new(format!("{none} and {one}"), none > one))
}

/// Eq. 10's round trips, if PMR = 1 waits for RTO₁², and PMR = 0 goes on after RTO₂¹.
fn difference() -> f64 {
    (2.0 - 1.0) / ROUND_TRIP_S
}

/// For each slow start threshold: the number of packets in each round trip.
fn growths(results: &Results) -> Option<Vec<(u32, Vec<u32>)>> {
    let (_, rows) = results.scenarios.get("caro-timeouts")?;
    let mut all: Vec<(u32, Vec<u32>)> = Vec::new();
    for row in &rows.growth {
        match all.last_mut() {
            Some((threshold, counts)) if *threshold == row.threshold_packets => counts.push(row.packets),
            _ => all.push((row.threshold_packets, vec![row.packets])),
        }
    }
    (!all.is_empty()).then_some(all)
}

/// Compares sums of packets with `modelled` (number of the run, round trips). The sums may be up to [`AHEAD`] round trips ahead, and a tenth
/// off.
fn compared(runs: &[Vec<u32>], modelled: impl Fn(usize, f64) -> f64) -> Option<FigureClaimResult> {
    let mut holds = true;
    let mut last = None;
    for (run, counts) in runs.iter().enumerate() {
        let mut sum = 0;
        for (round, count) in (1..).zip(counts) {
            sum += count;
            let [least, most] = [0.0, AHEAD].map(|ahead| modelled(run, f64::from(round) + ahead));
            holds &= (least * 0.9..most * 1.1).contains(&f64::from(sum));
            last = Some((round, sum, least, most));
        }
    }
    let (round, sum, least, most) = last?;
    let here = format!(
        "{sum} in {round} round trips, by the equation {least:.0} ({most:.0} {AHEAD} round trips later)"
    );
    Some(FigureClaimResult::new(here, holds))
}
