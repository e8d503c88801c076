//! The FT-TCP paper (DSN 2003), sections 5.2 to 5.4: throughput, latency, and failures. Judged on the kernel. `ttcp` is the benchmark's sink,
//! Redis takes the place of Samba, and a paced download that of the streaming server (docs/ft-tcp.md).

use super::claim::{Expected, FigureClaim, FigureClaimResult, OURS, percent};
use super::measured::{MeasuredValues, claim, unmeasured};
use crate::figure::measured::{paced, reply, throughput};
use crate::figure::results::{Results, greatest, least};

/// Each service and direction whose throughput is measured at both rates.
const TRANSFERS: [&str; 4] = ["ttcp in", "ttcp out", "file server in", "file server out"];
/// The rate of the client's link that is next to the paper's 10 Mbit/s.
const MBIT: u32 = 100;
/// All variants with a backup, by commit mode: cold, then hot.
const PAIRS: [[&str; 2]; 3] = [
    ["immediate/cold", "immediate/hot"],
    ["pr/cold", "pr/hot"],
    ["prs/cold", "prs/hot"],
];
const PRS: [&str; 2] = PAIRS[2];
const CLEAN: &str = "clean";
/// Input of the takeovers, in 10⁶ bytes.
const INPUT_MB: [u64; 2] = [16, 144];

const NOTHING_WAITS: &str = "the wire logs a packet while it forwards it, so nothing waits for the backup";
const NO_SAMBA: &str =
    "Samba is not among the servers, and what the wire costs does not depend on system calls";

pub const CLAIMS: &[FigureClaim] = &[
    claim(
        "ft-tcp-2a",
        "5.2",
        (
            "With PRS, cold and hot, no transfer is slower than clean by more than 2 %",
            "at most 1.8 %",
        ),
        "ft-tcp-2",
        Expected::Holds,
        overhead,
    ),
    claim(
        "ft-tcp-2b",
        "5.2",
        (
            "Cold and hot backups have the same throughput, within 2 %",
            "indistinguishable",
        ),
        "ft-tcp-2",
        Expected::Holds,
        |results| cold_and_hot(results, &TRANSFERS, &[PRS]),
    ),
    claim(
        "ft-tcp-2c",
        "5.2",
        (
            "The stream, which limits itself, is as fast as clean, within 0.5 %",
            "20.12 of 20.13 kB/s",
        ),
        "ft-tcp-2",
        Expected::Holds,
        stream,
    ),
    unmeasured(
        "ft-tcp-2d",
        "5.2",
        (
            "Samba is affected the most, because it makes more system calls",
            "4870 calls; ttcp 2940",
        ),
        "ft-tcp-2",
        NO_SAMBA,
    ),
    claim(
        "ft-tcp-2e",
        "5.2",
        (
            "In and out differ by 5 % and more without a backup, too",
            "10 % for ttcp, 17 % for Samba",
        ),
        "ft-tcp-2",
        Expected::Differs("the paper's hosts differed; here, both ends have the same kernel and CPUs"),
        in_and_out,
    ),
    claim(
        "ft-tcp-2f",
        "5.2",
        (
            "Up to 20 clients get their 50 kB/s each with every variant, and 30 do not with any, because the link is full",
            "20; more than 20",
        ),
        "ft-tcp-clients",
        Expected::Holds,
        clients,
    ),
    claim(
        "ft-tcp-3a",
        "5.2",
        (
            "Incoming file server: cold and hot are the same with immediate and with PRS, within 2 %",
            "indistinguishable",
        ),
        "ft-tcp-3",
        Expected::Holds,
        |results| cold_and_hot(results, &["file server in"], &[PAIRS[0], PRS]),
    ),
    claim(
        "ft-tcp-3b",
        "5.2",
        (
            "Incoming file server, cold: each of clean, immediate, PR and PRS is slower than the one before, by 0.2 % and more",
            "1035.6, 1026.8, 1024.5, 1016.4 kB/s",
        ),
        "ft-tcp-3",
        Expected::Differs(NOTHING_WAITS),
        decreasing,
    ),
    claim(
        "ft-tcp-3c",
        "5.2",
        (
            "and the differences are small: no mode is slower than clean by more than 2 %",
            "at most 1.9 %",
        ),
        "ft-tcp-3",
        Expected::Holds,
        all_modes,
    ),
    unmeasured(
        "ft-tcp-3d",
        "5.2",
        (
            "Hot PR is faster than cold PR",
            "1028.2, 1024.5 kB/s; unexplained",
        ),
        "ft-tcp-3",
        "the difference of 0.4 % is below the noise of hosts that share two CPUs",
    ),
    claim(
        "ft-tcp-1a",
        "5.3",
        (
            "With PRS, a request takes at least twice as long as clean (medians)",
            "2.2 ms; cold 5.8, hot 6.2 ms",
        ),
        "ft-tcp-latency",
        Expected::Differs(NOTHING_WAITS),
        |results| slower(results, "request"),
    ),
    claim(
        "ft-tcp-1b",
        "5.3",
        (
            "and so does a packet until it is acknowledged",
            "0.7 ms; about 2.3 ms",
        ),
        "ft-tcp-latency",
        Expected::Differs(NOTHING_WAITS),
        |results| slower(results, "packet"),
    ),
    claim(
        "ft-tcp-1c",
        "5.3",
        (
            "The latency stays so low that a person does not notice it: at most 10 ms on average",
            "at most 6.2 ms",
        ),
        "ft-tcp-latency",
        Expected::Holds,
        unnoticed,
    ),
    unmeasured(
        "ft-tcp-1d",
        "5.3",
        (
            "A hot backup costs 30 µs more of buffering latency than a cold one",
            "30 µs",
        ),
        "ft-tcp-latency",
        "there is no buffering latency, because nothing waits for the backup",
    ),
    unmeasured(
        "ft-tcp-1e",
        "5.3",
        (
            "Packets of transfers that fill the link take as long with a backup as without",
            "about 6 ms",
        ),
        "ft-tcp-latency",
        "the time of such a packet is that of the link's queue, whose length the lab chooses",
    ),
    claim(
        "ft-tcp-4a",
        "5.4",
        (
            "The takeover of a cold backup takes longer for each MB of input, but at most 20 ms",
            "about 20 ms per MB",
        ),
        "ft-tcp-takeover",
        Expected::Holds,
        cold_replay,
    ),
    claim(
        "ft-tcp-4b",
        "5.4",
        (
            "The takeover of a hot backup is considerably more efficient: at most a fifth of that per MB",
            "considerably more efficient",
        ),
        "ft-tcp-takeover",
        Expected::Holds,
        hot_is_better,
    ),
    claim(
        "ft-tcp-4c",
        "5.4",
        (
            "Detection and retransmission gap are most of a hot backup's stall (PRS: detection is at least three quarters of the time until the connection is live)",
            "dominated by both",
        ),
        "ft-tcp-stall",
        Expected::Holds,
        dominated,
    ),
    claim(
        "ft-tcp-4d",
        "5.4, Figure 4",
        (
            "Without snooping, the client's data waits for its retransmission timer after an outage of 2 s, for 0.5 s and more",
            "a second and more",
        ),
        "ft-tcp-4",
        Expected::Holds,
        |results| gap(results, "lost", |gap_ms| gap_ms >= 500.0),
    ),
    claim(
        "ft-tcp-4e",
        "5.4",
        ("With snooping, it waits for less than 50 ms", ""),
        "ft-tcp-4",
        Expected::Holds,
        |results| gap(results, "logged", |gap_ms| gap_ms < 50.0),
    ),
    claim(
        "ft-tcp-4f",
        "docs/commit-modes.md",
        (
            "With pr and immediate, the connection is live at least 100 ms later than with prs, because the backup waits for the primary's lease",
            OURS,
        ),
        "ft-tcp-stall",
        Expected::Holds,
        lease,
    ),
    claim(
        "ft-tcp-4g",
        "docs/commit-modes.md",
        (
            "So does a cold takeover with immediate and with pr: at most 20 ms per MB",
            OURS,
        ),
        "ft-tcp-takeover",
        Expected::Holds,
        every_cold_replay,
    ),
];

fn values(results: &Results) -> Option<MeasuredValues<'_>> {
    MeasuredValues::of(results, "ft-tcp")
}

/// The lowest throughput of any of these variants in any of these transfers, as a part of clean.
fn worst<'a>(
    values: MeasuredValues<'_>,
    transfers: &[&str],
    variants: impl IntoIterator<Item = &'a str> + Clone,
) -> Option<f64> {
    let of = |transfer: &&str| {
        let what = throughput(transfer, MBIT);
        let ratios = variants.clone().into_iter();
        let ratios: Option<Vec<_>> = ratios
            .map(|variant| values.ratio(&what, variant, CLEAN))
            .collect();
        least(ratios?)
    };
    least(transfers.iter().map(of).collect::<Option<Vec<_>>>()?)
}

fn overhead(results: &Results) -> Option<FigureClaimResult> {
    let worst = worst(values(results)?, &TRANSFERS, PRS)?;
    let here = format!("at most {:.1} %", (1.0 - worst) * 100.0);
    Some(FigureClaimResult::new(here, worst >= 0.98))
}

fn cold_and_hot(results: &Results, transfers: &[&str], pairs: &[[&str; 2]]) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let mut differences = Vec::new();
    for transfer in transfers {
        for [cold, hot] in pairs {
            differences.push((values.ratio(&throughput(transfer, MBIT), cold, hot)? - 1.0).abs());
        }
    }
    let most = greatest(differences)?;
    let here = format!("they differ by at most {:.1} %", most * 100.0);
    Some(FigureClaimResult::new(here, most <= 0.02))
}

fn stream(results: &Results) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let what = "stream out, MB/s";
    let rate = |variant| Some(values.middle(what, variant)? * 1e3);
    let (clean, cold, hot) = (rate(CLEAN)?, rate(PRS[0])?, rate(PRS[1])?);
    let here = format!("cold {cold:.2}, hot {hot:.2} of {clean:.2} kB/s");
    Some(FigureClaimResult::new(here, cold.min(hot) >= 0.995 * clean))
}

fn in_and_out(results: &Results) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let difference = |service: &str| {
        let rate = |direction| values.middle(&throughput(&format!("{service} {direction}"), MBIT), CLEAN);
        Some((rate("in")? / rate("out")? - 1.0).abs())
    };
    let (ttcp, file_server) = (difference("ttcp")?, difference("file server")?);
    let here = format!(
        "{:.1} % for ttcp, {:.1} % for the file server",
        ttcp * 100.0,
        file_server * 100.0
    );
    Some(FigureClaimResult::new(here, ttcp.min(file_server) >= 0.05))
}

fn clients(results: &Results) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let (mut slowest, mut fastest) = (f64::INFINITY, 0.0_f64);
    for variant in [CLEAN].into_iter().chain(PAIRS.into_iter().flatten()) {
        for few in [1, 10, 20] {
            slowest = slowest.min(values.middle(&paced(few), variant)?);
        }
        fastest = fastest.max(values.middle(&paced(30), variant)?);
    }
    let here = format!("up to 20: at least {slowest:.1} kB/s; 30: at most {fastest:.1} kB/s");
    Some(FigureClaimResult::new(here, slowest >= 49.0 && fastest < 47.0))
}

fn decreasing(results: &Results) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let what = throughput("file server in", MBIT);
    let order = [CLEAN, PAIRS[0][0], PAIRS[1][0], PRS[0]];
    let rates: Option<Vec<_>> = order
        .iter()
        .map(|variant| values.middle(&what, variant))
        .collect();
    let rates = rates?;
    let here: Vec<_> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
    let is_decreasing = rates.windows(2).all(|pair| pair[1] <= 0.998 * pair[0]);
    Some(FigureClaimResult::new(
        format!("{} MB/s", here.join(", ")),
        is_decreasing,
    ))
}

fn all_modes(results: &Results) -> Option<FigureClaimResult> {
    let worst = worst(values(results)?, &["file server in"], PAIRS.into_iter().flatten())?;
    let here = format!("at most {:.1} %", (1.0 - worst) * 100.0);
    Some(FigureClaimResult::new(here, worst >= 0.98))
}

fn slower(results: &Results, what: &str) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let name = format!("{what} latency, median, µs");
    let [cold, hot] = PRS.map(|variant| values.middle(&name, variant));
    let (clean, cold, hot) = (values.middle(&name, CLEAN)?, cold?, hot?);
    let here = format!("{clean:.0} µs; cold {cold:.0}, hot {hot:.0} µs");
    Some(FigureClaimResult::new(here, cold.min(hot) >= 2.0 * clean))
}

fn unnoticed(results: &Results) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let means: Option<Vec<_>> = PRS
        .iter()
        .map(|variant| values.middle("request latency, mean, µs", variant))
        .collect();
    let most = greatest(means?)? / 1e3;
    Some(FigureClaimResult::new(
        format!("at most {most:.2} ms"),
        most <= 10.0,
    ))
}

/// Time of a takeover for each MB of input, in milliseconds.
fn per_mb(values: MeasuredValues<'_>, variant: &str) -> Option<f64> {
    let [few, many] = INPUT_MB.map(|megabytes| values.middle(&reply(megabytes), variant));
    Some((many? - few?) / (INPUT_MB[1] - INPUT_MB[0]) as f64)
}

fn cold_replay(results: &Results) -> Option<FigureClaimResult> {
    let cold = per_mb(values(results)?, PRS[0])?;
    let here = format!("{cold:.2} ms per MB");
    Some(FigureClaimResult::new(here, cold > 0.1 && cold <= 20.0))
}

fn hot_is_better(results: &Results) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let (cold, hot) = (per_mb(values, PRS[0])?, per_mb(values, PRS[1])?);
    let here = format!("{hot:.2} ms per MB, cold {cold:.2}");
    Some(FigureClaimResult::new(here, hot <= cold / 5.0))
}

fn dominated(results: &Results) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let time = |what| values.middle(what, "prs");
    let (declared, live) = (time("declared dead, ms")?, time("connection live, ms")?);
    let stall = time("stall, ms")?;
    let here = format!(
        "{} of {live:.1} ms; stall {stall:.0} ms",
        percent(declared / live)
    );
    Some(FigureClaimResult::new(here, declared >= 0.75 * live))
}

fn gap(results: &Results, input: &str, is_right: fn(f64) -> bool) -> Option<FigureClaimResult> {
    let gap_ms = values(results)?.middle("outage, retransmission gap, ms", input)?;
    Some(FigureClaimResult::new(
        format!("{gap_ms:.0} ms"),
        is_right(gap_ms),
    ))
}

fn lease(results: &Results) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let live = |mode| values.middle("connection live, ms", mode);
    let (prs, pr, immediate) = (live("prs")?, live("pr")?, live("immediate")?);
    let stall = |mode| values.middle("stall, ms", mode);
    let here = format!(
        "live after {immediate:.0}, {pr:.0}, prs {prs:.0} ms; stalls {:.0}, {:.0}, {:.0} ms",
        stall("immediate")?,
        stall("pr")?,
        stall("prs")?
    );
    Some(FigureClaimResult::new(here, pr.min(immediate) >= prs + 100.0))
}

fn every_cold_replay(results: &Results) -> Option<FigureClaimResult> {
    let values = values(results)?;
    let all = PAIRS.map(|[cold, _]| per_mb(values, cold));
    let all: Vec<f64> = all.into_iter().collect::<Option<_>>()?;
    let (low, high) = (least(all.iter().copied())?, greatest(all.iter().copied())?);
    let here: Vec<_> = all.iter().map(|per_mb| format!("{per_mb:.2}")).collect();
    Some(FigureClaimResult::new(
        format!("immediate, pr, prs: {} ms per MB", here.join(", ")),
        low > 0.0 && high <= 20.0,
    ))
}
