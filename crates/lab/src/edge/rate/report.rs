//! The findings of `edge-rate`.

use serde::Serialize;

use super::options::{CongestionOption, EdgeRateOptions, StringRatio};
use super::shares::FlowShares;
use crate::edge::daemon::ReportedEdge;
use crate::edge::variant::EdgeVariant;
use crate::run::LabFindings;

const JAIN_MIN: f64 = 0.99;
const THROUGHPUT_MIN: f64 = 0.95;
/// Fraction of the buffer that may be used: 600 of 750 packets in the HALR thesis.
const QUEUE_MAX: f64 = 0.8;

/// The findings of all variants. With several runs, each value is that of the worst run.
#[derive(Debug, Serialize)]
pub struct EdgeRateFindings {
    strings: StringRatio,
    /// Rate of the string that does not fail, in Mbit/s.
    mbit: f64,
    buffer_packets: u32,
    flows: u32,
    congestion: CongestionOption,
    failover_ms: f64,
    rtt_ms: f64,
    ipv6: bool,
    large_segments: bool,
    with: Option<RateSide>,
    without: Option<RateSide>,
    baseline: Option<RateSide>,
    /// Throughput of the string with rate control, divided by the throughput without rate control.
    throughput_ratio: Option<f64>,
}

/// The findings of one variant. "The string" is the string that did not fail.
#[derive(Clone, Debug, Serialize)]
pub struct RateSide {
    /// Jain's fairness index of the bytes that the flows received from 2 s after the failover on.
    pub jain: f64,
    /// The flows' shares in detail, of the run with the lowest `jain`.
    pub shares: FlowShares,
    /// Mean of Jain's index in half seconds.
    pub jain_of_bins: f64,
    /// Number of packets in which the edges had lowered the window, at the time of the measurement.
    pub capped: u64,
    /// Packets dropped at the string's full queue from 2 s after the failover on.
    pub drops_after_settling: u64,
    /// Packets dropped at the string's full queue in the first 2 s after the failover.
    pub drops_while_settling: u64,
    /// Largest queue from 2 s after the failover on.
    pub queue_max_packets: usize,
    /// Largest queue in the first 2 s after the failover. It may still contain packets from before the failure.
    pub queue_max_while_settling_packets: usize,
    /// Mbit/s on the string from 2 s after the failover on, with headers.
    pub throughput_mbit: f64,
    /// The status of the edges during the measurement.
    pub edges: Option<[ReportedEdge; 2]>,
}

impl RateSide {
    fn worst(&mut self, other: Self) {
        if other.jain < self.jain {
            (self.jain, self.shares) = (other.jain, other.shares);
        }
        self.jain_of_bins = self.jain_of_bins.min(other.jain_of_bins);
        self.capped = self.capped.min(other.capped);
        self.drops_after_settling = self.drops_after_settling.max(other.drops_after_settling);
        self.drops_while_settling = self.drops_while_settling.max(other.drops_while_settling);
        self.queue_max_packets = self.queue_max_packets.max(other.queue_max_packets);
        self.queue_max_while_settling_packets = self
            .queue_max_while_settling_packets
            .max(other.queue_max_while_settling_packets);
        self.throughput_mbit = self.throughput_mbit.min(other.throughput_mbit);
        self.edges = other.edges;
    }

    /// Whether the shares, the drops and the queue are as rate control promises.
    fn is_controlled(&self, buffer: u32) -> bool {
        self.jain >= JAIN_MIN
            && self.drops_after_settling == 0
            && self.queue_max_packets as f64 <= QUEUE_MAX * f64::from(buffer)
    }

    fn text(&self, name: &str) -> String {
        let [least, most] = self.shares.least_and_most;
        format!(
            "\n  {name}: {:.1} Mbit/s, Jain {:.4} of {} flows (in half seconds {:.4}; shares {least:.2} to {most:.2}), drops {} then {}, \
             queue {} then {}, {} windows lowered",
            self.throughput_mbit,
            self.jain,
            self.shares.flows,
            self.jain_of_bins,
            self.drops_while_settling,
            self.drops_after_settling,
            self.queue_max_while_settling_packets,
            self.queue_max_packets,
            self.capped,
        )
    }
}

impl EdgeRateFindings {
    /// The findings before the first run.
    pub fn empty(options: &EdgeRateOptions) -> Self {
        Self {
            strings: options.strings,
            mbit: options.rates()[1],
            buffer_packets: options.buffer,
            flows: options.flows,
            congestion: options.congestion,
            failover_ms: options.failover.as_secs_f64() * 1e3,
            rtt_ms: f64::from(options.rtt),
            ipv6: options.ipv6,
            large_segments: options.large_segments,
            with: None,
            without: None,
            baseline: None,
            throughput_ratio: None,
        }
    }

    /// The findings of one variant.
    pub fn of(options: &EdgeRateOptions, variant: EdgeVariant, side: RateSide) -> Self {
        let mut found = Self::empty(options);
        match variant {
            EdgeVariant::With => found.with = Some(side),
            EdgeVariant::Without => found.without = Some(side),
            EdgeVariant::Baseline => found.baseline = Some(side),
        }
        found
    }

    fn is_controlled(&self, side: &RateSide) -> bool {
        side.is_controlled(self.buffer_packets)
    }

    /// Whether the edges have lowered windows in each run with rate control. If not, the run shows nothing about rate control.
    fn is_capped(&self) -> bool {
        self.with.as_ref().is_none_or(|side| side.capped > 0)
    }

    /// Whether rate control was needed: without it, the same flows did not share fairly, or lost packets, or filled the queue. Also true if
    /// only one of the two variants was played.
    fn control_helps(&self) -> bool {
        let both = self.with.as_ref().zip(self.without.as_ref());
        both.is_none_or(|(_, without)| !self.is_controlled(without))
    }

    fn head(&self) -> String {
        format!("{} flows, {:.0} Mbit/s left", self.flows, self.mbit)
    }

    fn sides(&self) -> impl Iterator<Item = (&RateSide, &'static str)> {
        [
            (&self.with, "with"),
            (&self.without, "without"),
            (&self.baseline, "baseline"),
        ]
        .into_iter()
        .filter_map(|(side, name)| Some((side.as_ref()?, name)))
    }
}

impl LabFindings for EdgeRateFindings {
    fn holds(&self) -> bool {
        let mut judged = [&self.with, &self.baseline].into_iter().flatten();
        let ratio = self.throughput_ratio;
        judged.all(|side| self.is_controlled(side))
            && self.is_capped()
            && self.control_helps()
            && ratio.is_none_or(|ratio| ratio >= THROUGHPUT_MIN)
    }

    fn add(&mut self, other: Self) {
        for (own, more) in [
            (&mut self.with, other.with),
            (&mut self.without, other.without),
            (&mut self.baseline, other.baseline),
        ] {
            match (own.as_mut(), more) {
                (Some(own), Some(more)) => own.worst(more),
                (None, more) => *own = more,
                (Some(_), None) => {}
            }
        }
        let both = self.with.as_ref().zip(self.without.as_ref());
        self.throughput_ratio = both.map(|(with, without)| with.throughput_mbit / without.throughput_mbit);
    }

    fn line(&self) -> String {
        let sides = self.sides().map(|(side, name)| {
            format!(
                "; {name}: {:.1} Mbit/s, Jain {:.4}, drops {}, queue {}",
                side.throughput_mbit, side.jain, side.drops_after_settling, side.queue_max_packets
            )
        });
        self.head() + &sides.collect::<String>()
    }

    fn text(&self) -> String {
        let sides = self.sides().map(|(side, name)| side.text(name));
        let mut text = self.head() + &sides.collect::<String>();
        if let Some(ratio) = self.throughput_ratio {
            text += &format!("\n  throughput with / without: {ratio:.3}");
        }
        if !self.is_capped() {
            text += "\n    with rate control, the edges lowered no window";
        }
        if !self.control_helps() {
            text += "\n    without rate control, the flows fared as well";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct RateLine {
        #[command(flatten)]
        options: EdgeRateOptions,
    }

    fn side(jain: f64, capped: u64) -> RateSide {
        RateSide {
            jain,
            shares: FlowShares::default(),
            jain_of_bins: jain,
            capped,
            drops_after_settling: 0,
            drops_while_settling: 0,
            queue_max_packets: 100,
            queue_max_while_settling_packets: 100,
            throughput_mbit: 97.0,
            edges: None,
        }
    }

    fn found(arguments: &[&str], with: &RateSide, without: &RateSide) -> EdgeRateFindings {
        let line = [&["edge-rate"], arguments].concat();
        let options = RateLine::parse_from(line).options;
        let mut found = EdgeRateFindings::empty(&options);
        found.add(EdgeRateFindings::of(&options, EdgeVariant::With, with.clone()));
        found.add(EdgeRateFindings::of(
            &options,
            EdgeVariant::Without,
            without.clone(),
        ));
        found
    }

    #[test]
    fn a_run_holds_if_rate_control_worked_and_was_needed() {
        let overflowing = RateSide {
            drops_after_settling: 700,
            ..side(0.9, 0)
        };
        assert!(found(&[], &side(0.998, 5000), &overflowing).holds());
        let idle = found(&[], &side(0.998, 0), &overflowing);
        assert!(!idle.holds() && idle.text().contains("lowered no window"));
        let needless = found(&[], &side(0.998, 5000), &side(0.998, 0));
        assert!(!needless.holds() && needless.text().contains("fared as well"));
        let mut runs = found(&[], &side(0.998, 5000), &overflowing);
        runs.add(found(&[], &side(0.998, 0), &overflowing));
        assert!(!runs.holds(), "no window was lowered in one of two runs");
    }
}
