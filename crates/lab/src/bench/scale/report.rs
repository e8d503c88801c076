//! The report of `bench scale`: results and targets.

use serde::Serialize;

use super::churn::Churn;
use super::idle::Idle;
use super::saturate::Saturated;
use super::short::Shorts;
use crate::bench::calibration::Calibration;
use crate::bench::target::{self, BenchTarget, Bound, median};

/// Measured values. Parts that were not requested are missing.
#[derive(Default)]
pub struct ScaleResults {
    /// Rounds of plain forwarding, then rounds of steadfast.
    pub rounds: [VariantRounds; 2],
    /// Whether both nodes were duplex after each round, and neither node changed its role during the rounds.
    pub is_whole: Option<bool>,
    /// Idle connections and their takeover.
    pub idle: Option<Idle>,
    /// Connections that come and go.
    pub churn: Option<Churn>,
    /// Saturated CPUs.
    pub saturated: Option<Saturated>,
}

/// One variant's rounds.
#[derive(Default)]
pub struct VariantRounds {
    /// Downloads, in 10⁹ bytes per second.
    pub quiet: Vec<f64>,
    /// Downloads during a SYN flood, in 10⁹ bytes per second.
    pub flooded: Vec<f64>,
    /// SYNs per second of the flood.
    pub syns: Vec<f64>,
    /// Downloads during a SYN flood on a link of 10 Gbit/s, in 10⁹ bytes per second.
    pub link_flooded: Vec<f64>,
    /// SYNs per second of the flood on the link of 10 Gbit/s.
    pub link_syns: Vec<f64>,
    /// Downloads during a flood of segments that belong to no connection, on a link of 1 Gbit/s, in 10⁹ bytes per second.
    pub stray_flooded: Vec<f64>,
    /// Segments per second of the flood on the link of 1 Gbit/s.
    pub strays: Vec<f64>,
    /// Results of the short connections.
    pub new: Vec<Shorts>,
}

/// The JSON object.
#[derive(Serialize)]
pub struct ScaleBenchReport {
    /// Whether every target is met.
    pub ok: bool,
    rounds: u32,
    calibration: Calibration,
    #[serde(skip_serializing_if = "Option::is_none")]
    flood_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flood_link_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flood: Option<[Flooded; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stray_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strays: Option<[Strays; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_connections_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_connections_failed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_connections: Option<[New; 2]>,
    /// Whether both nodes were duplex after each round, and neither node changed its role during the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    is_whole: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes_per_idle_connection: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_live_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restore_us_per_connection: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<Idle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    churn: Option<Churn>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saturated: Option<Saturated>,
    missed: Vec<String>,
}

/// Medians of one variant's downloads and SYN rates: without a flood, during a SYN flood, and during a SYN flood on a link of 10 Gbit/s.
#[derive(Clone, Copy, Debug, Serialize)]
struct Flooded {
    variant: &'static str,
    syns_per_s: f64,
    download_gb_per_s: f64,
    quiet_gb_per_s: f64,
    link_syns_per_s: f64,
    link_download_gb_per_s: f64,
}

/// Medians of one variant's downloads during a flood of segments that belong to no connection, on a link of 1 Gbit/s.
#[derive(Clone, Copy, Debug, Serialize)]
struct Strays {
    variant: &'static str,
    strays_per_s: f64,
    download_gb_per_s: f64,
}

/// Short connections of one variant: medians, and the sums of completed and failed connections.
#[derive(Clone, Debug, Serialize)]
struct New {
    variant: &'static str,
    per_s: f64,
    p99_ms: f64,
    completed: u64,
    failed: u64,
    first_failure: Option<String>,
}

const VARIANTS: [&str; 2] = ["forwarding", "steadfast"];

impl ScaleBenchReport {
    /// Computes medians, ratios, and the missed targets.
    pub fn of(rounds: u32, calibration: Calibration, found: ScaleResults) -> Self {
        let both = |index: usize| (VARIANTS[index], &found.rounds[index]);
        let flood = (!found.rounds[1].flooded.is_empty()).then(|| [0, 1].map(|index| flooded(both(index))));
        let strays = (!found.rounds[1].strays.is_empty()).then(|| [0, 1].map(|index| strays(both(index))));
        let new = (!found.rounds[1].new.is_empty()).then(|| [0, 1].map(|index| new(both(index))));
        let mut report = Self {
            ok: false,
            rounds,
            calibration,
            flood_ratio: flood.map(|[plain, wire]| wire.download_gb_per_s / plain.download_gb_per_s),
            flood_link_ratio: flood
                .map(|[plain, wire]| wire.link_download_gb_per_s / plain.link_download_gb_per_s),
            flood,
            stray_ratio: strays.map(|[plain, wire]| wire.download_gb_per_s / plain.download_gb_per_s),
            strays,
            new_connections_per_s: new.as_ref().map(|[_, wire]| wire.per_s),
            new_connections_failed: new.as_ref().map(|[_, wire]| wire.failed),
            new_connections: new,
            is_whole: found.is_whole,
            memory_bytes_per_idle_connection: found.idle.map(|idle| idle.agent_bytes_each),
            first_live_ms: found.idle.map(|idle| idle.first_live_ms),
            restore_us_per_connection: found.idle.map(|idle| idle.restore_us_each),
            idle: found.idle,
            churn: found.churn,
            saturated: found.saturated,
            missed: Vec::new(),
        };
        report.missed = target::missed(&report.targets());
        report.ok = report.missed.is_empty();
        report
    }

    fn targets(&self) -> Vec<BenchTarget> {
        use Bound::{AtLeast, AtMost};
        let mut targets = Vec::new();
        let mut target = |name, value, bound| targets.push(BenchTarget { name, value, bound });
        if let (Some(ratio), Some(link_ratio), Some([plain, wire])) =
            (self.flood_ratio, self.flood_link_ratio, self.flood)
        {
            target("download beside a SYN flood, vs forwarding", ratio, AtLeast(0.7));
            let reached = wire.syns_per_s / plain.syns_per_s;
            target("SYNs sent, vs forwarding", reached, AtLeast(0.95));
            let name = "download, SYN flood on 10 Gbit/s, vs forwarding";
            target(name, link_ratio, AtLeast(0.7));
            let reached = wire.link_syns_per_s / plain.link_syns_per_s;
            target("SYNs sent on 10 Gbit/s, vs forwarding", reached, AtLeast(0.95));
        }
        if let (Some(ratio), Some([plain, wire])) = (self.stray_ratio, self.strays) {
            target(
                "download beside strays on 1 Gbit/s, vs forwarding",
                ratio,
                AtLeast(0.9),
            );
            let reached = wire.strays_per_s / plain.strays_per_s;
            target("strays sent on 1 Gbit/s, vs forwarding", reached, AtLeast(0.95));
        }
        if let Some([_, wire]) = &self.new_connections {
            target("new connections, 1/s", wire.per_s, AtLeast(2_950.0));
            target("failed new connections", wire.failed as f64, AtMost(0.0));
        }
        if let Some(is_whole) = self.is_whole.map(u8::from).map(f64::from) {
            target("roles kept, and duplex after each round", is_whole, AtLeast(1.0));
        }
        if let Some(idle) = &self.idle {
            let lost = idle.connections - idle.survived.min(idle.connections);
            target("idle connections lost", lost as f64, AtMost(0.0));
            target(
                "memory of an idle connection, bytes",
                idle.agent_bytes_each,
                AtMost(4_096.0),
            );
            target(
                "keeper memory of a relayed connection, bytes",
                idle.keeper_bytes_each_after.max(idle.keeper_bytes_each_talking),
                AtMost(4_096.0),
            );
            target(
                "declaration to first live connection, ms",
                idle.first_live_ms,
                AtMost(5.0),
            );
            target("restore per connection, µs", idle.restore_us_each, AtMost(20.0));
        }
        if let Some(churn) = &self.churn {
            target("churn: failed connections", churn.failed as f64, AtMost(0.0));
            if churn.is_judged {
                let grown = churn.backup_bytes_per_connection;
                target("churn: growth per connection, bytes", grown, AtMost(1.0));
            }
        }
        if let Some(saturated) = &self.saturated {
            let changes = saturated.role_changes as f64;
            target("saturated CPUs: role changes", changes, AtMost(0.0));
        }
        targets
    }

    /// Prints the report as text.
    pub fn print(&self) {
        say!("{}", self.calibration);
        say!("medians of {} rounds\n", self.rounds);
        target::print(&self.targets());
        say!();
        for one in self.flood.iter().flatten() {
            say!(
                "{:<12} download {:.2} GB/s beside {:.0} SYN/s, {:.2} without; on 10 Gbit/s {:.2} beside {:.0} SYN/s",
                one.variant,
                one.download_gb_per_s,
                one.syns_per_s,
                one.quiet_gb_per_s,
                one.link_download_gb_per_s,
                one.link_syns_per_s
            );
        }
        for one in self.strays.iter().flatten() {
            say!(
                "{:<12} download {:.3} GB/s on 1 Gbit/s beside {:.0} strays/s",
                one.variant,
                one.download_gb_per_s,
                one.strays_per_s
            );
        }
        for one in self.new_connections.iter().flatten() {
            say!(
                "{:<12} {:.0} new connections/s, 99 % within {:.1} ms, {} failed{}",
                one.variant,
                one.per_s,
                one.p99_ms,
                one.failed,
                one.first_failure
                    .as_ref()
                    .map_or_else(String::new, |why| format!(" (first: {why})"))
            );
        }
        if let Some(idle) = &self.idle {
            say!(
                "{} idle connections, bytes each: {:.0} at the backup, {:.0} at the primary; after the takeover: \
                 agent {:.0}, keeper {:.0}, keeper at its peak {:.0}; all live in {:.0} ms; {} entries left in the eBPF maps held and \
                 undecided",
                idle.connections,
                idle.agent_bytes_each,
                idle.primary_agent_bytes_each,
                idle.agent_bytes_each_after,
                idle.keeper_bytes_each_after,
                idle.keeper_bytes_each_talking,
                idle.all_live_ms,
                idle.held_entries_after
            );
        }
        self.churn.iter().for_each(print_churn);
        if let Some(saturated) = &self.saturated {
            say!(
                "saturated, {} min, {} spinners: {} role changes; simplex in {} of {} samples",
                saturated.minutes,
                saturated.spinners,
                saturated.role_changes,
                saturated.simplex_seen,
                saturated.looks
            );
        }
    }
}

fn print_churn(churn: &Churn) {
    say!(
        "churn, {} min, {} connections: {:.0} kB/min at the backup, {:.0} kB/min at the primary, {:.0} table entries/min{}; \
         largest seen: {} entries in the eBPF maps held and undecided, {} kB in the rings, {} kB in the log",
        churn.minutes,
        churn.connections,
        churn.agent_bytes_per_minute[1] / 1e3,
        churn.agent_bytes_per_minute[0] / 1e3,
        churn.table_entries_per_minute,
        if churn.is_judged {
            ""
        } else {
            " (warming up: not judged)"
        },
        churn.held_entries_max,
        churn.ring_fill_bytes_max / 1000,
        churn.log_bytes_max / 1000
    );
}

fn flooded((variant, rounds): (&'static str, &VariantRounds)) -> Flooded {
    Flooded {
        variant,
        syns_per_s: median(rounds.syns.clone()),
        download_gb_per_s: median(rounds.flooded.clone()),
        quiet_gb_per_s: median(rounds.quiet.clone()),
        link_syns_per_s: median(rounds.link_syns.clone()),
        link_download_gb_per_s: median(rounds.link_flooded.clone()),
    }
}

fn strays((variant, rounds): (&'static str, &VariantRounds)) -> Strays {
    Strays {
        variant,
        strays_per_s: median(rounds.strays.clone()),
        download_gb_per_s: median(rounds.stray_flooded.clone()),
    }
}

fn new((variant, rounds): (&'static str, &VariantRounds)) -> New {
    let figure = |of: fn(&Shorts) -> f64| median(rounds.new.iter().map(of).collect());
    New {
        variant,
        per_s: figure(|one| one.per_s),
        p99_ms: figure(|one| one.p99_ms),
        completed: rounds.new.iter().map(|one| one.completed).sum(),
        failed: rounds.new.iter().map(|one| one.failed).sum(),
        first_failure: rounds.new.iter().find_map(|one| one.first_failure.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration() -> Calibration {
        Calibration {
            memcpy_gb_per_s: 1.0,
            syscall_ns: 1.0,
            cpus: 1,
        }
    }

    #[test]
    fn what_was_not_asked_for_is_neither_judged_nor_printed() {
        let report = ScaleBenchReport::of(1, calibration(), ScaleResults::default());
        assert!(report.ok && report.targets().is_empty());
        let json = serde_json::to_value(&report).unwrap();
        assert!(json.get("flood_ratio").is_none(), "{json}");
    }

    #[test]
    fn a_weaker_flood_a_failed_connection_and_a_pair_that_broke_are_misses() {
        let mut found = ScaleResults::default();
        for (rounds, syns) in found.rounds.iter_mut().zip([50_000.0, 30_000.0]) {
            rounds.flooded = vec![1.0];
            rounds.quiet = vec![2.0];
            rounds.syns = vec![syns];
            rounds.link_flooded = vec![1.0];
            rounds.link_syns = vec![50_000.0];
            rounds.new = vec![Shorts {
                per_s: 3_000.0,
                failed: 1,
                ..Shorts::default()
            }];
        }
        found.is_whole = Some(false);
        let report = ScaleBenchReport::of(1, calibration(), found);
        assert_eq!(report.flood_ratio, Some(1.0));
        assert_eq!(report.missed.len(), 3, "{:?}", report.missed);
    }
}
