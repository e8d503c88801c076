//! What an edge's memory takes for the traffic of a trace (HALR thesis §3.4).
//!
//! The thesis ran a 24-hour trace, AUCK-4, which is no longer to be had: one data packet and one acknowledgement per
//! connection were at most 792 Kbytes, 305 bytes per connection. Here the very cache of the edge runs over any trace, as
//! if its memory had no bound, and its peak is what is wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::Instant;
use proto::edge::cache::{Cache, CacheConfig, Policy, Segment, Way};

/// A TCP packet of a trace, as the edge would see it. `F` names its connection, the same for both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<F> {
    /// When it passed; records are in this order.
    pub at: Instant,
    /// Which way.
    pub way: Way,
    /// Of which connection.
    pub flow: F,
    /// Numbers and flags.
    pub segment: Segment,
    /// How long it is on the wire, in bytes.
    pub bytes: usize,
}

/// How the memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// What is held.
    pub policy: Policy,
    /// Caching lasts so long, from the suspicion to the end of the failover; each such piece of the trace is taken for one.
    /// `None`: it never stops, as in the thesis' estimate.
    pub window: Option<Duration>,
    /// Where it never stops, a connection that was silent for so long is forgotten.
    pub idle: Duration,
}

/// What the memory took at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Connections of the trace that were looked at.
    pub flows: usize,
    /// Packets of theirs.
    pub records: u64,
    /// Most packets held at any time.
    pub peak_packets: usize,
    /// Most bytes held at any time.
    pub peak_bytes: usize,
    /// Connections of which something was held then.
    pub peak_connections: usize,
    /// Packets copied.
    pub copied: u64,
}

impl Estimate {
    /// Bytes per connection when most were held.
    pub fn bytes_per_connection(&self) -> f64 {
        self.peak_bytes as f64 / self.peak_connections.max(1) as f64
    }
}

/// The `count` connections with the most bytes; of equal ones the first by name.
pub fn heaviest<F: Copy + Ord>(records: impl Iterator<Item = Record<F>>, count: usize) -> BTreeSet<F> {
    let mut bytes: BTreeMap<F, u64> = BTreeMap::new();
    for record in records {
        *bytes.entry(record.flow).or_default() += record.bytes as u64;
    }
    let mut flows: Vec<_> = bytes.into_iter().collect();
    flows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    flows.into_iter().take(count).map(|(flow, _)| flow).collect()
}

/// What the memory takes for the trace's connections, or for these `only`.
pub fn estimate<F: Copy + Ord>(
    records: impl Iterator<Item = Record<F>>,
    usage: Use,
    only: Option<&BTreeSet<F>>,
) -> Estimate {
    let mut cache = Cache::new(CacheConfig {
        policy: usage.policy,
        max_bytes: usize::MAX,
        max_packets: usize::MAX,
    });
    let mut estimate = Estimate::default();
    let (mut flows, mut silent) = (BTreeMap::new(), BTreeSet::new());
    let mut window_end = None;
    for record in records.filter(|record| only.is_none_or(|only| only.contains(&record.flow))) {
        estimate.records += 1;
        if let Some(before) = flows.insert(record.flow, record.at) {
            silent.remove(&(before, record.flow));
        }
        if let Some(window) = usage.window {
            if record.at >= *window_end.get_or_insert(record.at + window) {
                cache.clear();
                window_end = Some(record.at + window);
            }
        } else {
            silent.insert((record.at, record.flow));
            while let Some((last, flow)) = silent
                .first()
                .copied()
                .filter(|(at, _)| *at + usage.idle < record.at)
            {
                cache.forget(flow);
                silent.remove(&(last, flow));
            }
        }
        match record.way {
            Way::Entering => cache.on_entering(record.flow, &record.segment, record.bytes, || ()),
            Way::Leaving => cache.on_leaving(record.flow, &record.segment, record.bytes, || ()),
        }
        let held = cache.counts();
        if held.bytes > estimate.peak_bytes {
            estimate.peak_bytes = held.bytes;
            estimate.peak_connections = cache.connections();
        }
    }
    let counts = cache.counts();
    Estimate {
        flows: flows.len(),
        peak_packets: counts.peak_packets,
        copied: counts.copied,
        ..estimate
    }
}

#[cfg(test)]
mod tests {
    use proto::Seq;

    use super::*;

    const THESIS: Use = Use {
        policy: Policy::Lowest,
        window: None,
        idle: Duration::from_secs(60),
    };

    fn record(at_us: u64, flow: u32, way: Way, segment: Segment, bytes: usize) -> Record<u32> {
        Record {
            at: Instant::from_nanos(at_us * 1000),
            way,
            flow,
            segment,
            bytes,
        }
    }

    fn data(seq: u32) -> Segment {
        Segment {
            seq: Seq(seq),
            len: 1460,
            ..Segment::default()
        }
    }

    /// Data enter, their first half is acknowledged: `packets` of 1,514 bytes and an acknowledgement of 64.
    fn flow(flow: u32, packets: u32) -> impl Iterator<Item = Record<u32>> {
        let half = Segment {
            ack: Some(Seq(packets / 2 * 1460)),
            ..Segment::default()
        };
        let enter = move |index: u32| record(u64::from(index), flow, Way::Entering, data(index * 1460), 1514);
        (0..packets / 2)
            .map(enter)
            .chain([record(100, flow, Way::Leaving, half, 64)])
            .chain((packets / 2..packets).map(enter))
    }

    /// Thesis §3.4: two packets per connection, 1,514 and 64 bytes: 10,000 flows need 15.78 Mbytes.
    #[test]
    fn ten_thousand_flows_need_15_78_megabytes() {
        let trace = (0..10_000).flat_map(|number| flow(number, 4));
        let estimate = estimate(trace, THESIS, None);
        assert_eq!((estimate.peak_bytes, estimate.peak_packets), (15_780_000, 20_000));
        assert_eq!((estimate.flows, estimate.records), (10_000, 50_000));
        assert_eq!(estimate.bytes_per_connection(), 1578.0);
    }

    /// Thesis §3.4: 10,000 connections per second and a failover of 100 ms need roughly 64 Kbytes of SYNs.
    #[test]
    fn the_syns_of_100_ms_need_64_kilobytes() {
        let syn = Segment {
            syn: true,
            ..Segment::default()
        };
        let trace = (0..10_000).map(|number| record(u64::from(number) * 100, number, Way::Entering, syn, 64));
        let usage = Use {
            policy: Policy::Syn,
            window: Some(Duration::from_millis(100)),
            ..THESIS
        };
        assert_eq!(estimate(trace, usage, None).peak_bytes, 64_000);
    }

    #[test]
    fn the_heaviest_need_less_and_all_packets_need_more() {
        let trace = || (0..500).flat_map(|number| flow(number, if number % 5 == 0 { 40 } else { 4 }));
        let heavy = heaviest(trace(), 100);
        assert_eq!(
            (heavy.len(), heavy.first(), heavy.last()),
            (100, Some(&0), Some(&495))
        );
        let every = estimate(trace(), THESIS, None);
        let some = estimate(trace(), THESIS, Some(&heavy));
        assert_eq!((some.flows, some.peak_bytes * 5), (100, every.peak_bytes));
        let all = Use {
            policy: Policy::All,
            ..THESIS
        };
        assert_eq!(
            estimate(trace(), all, Some(&heavy)).peak_bytes,
            100 * (20 * 1514 + 64)
        );
    }

    #[test]
    fn the_silent_and_the_window_before_are_forgotten() {
        let trace = |apart_us: u64| {
            (0..10)
                .map(move |number| record(apart_us * u64::from(number), number, Way::Entering, data(0), 1514))
        };
        assert_eq!(estimate(trace(1_000_000), THESIS, None).peak_packets, 10);
        assert_eq!(estimate(trace(40_000_000), THESIS, None).peak_packets, 2);
        let usage = Use {
            window: Some(Duration::from_secs(3)),
            ..THESIS
        };
        assert_eq!(estimate(trace(1_000_000), usage, None).peak_packets, 3);
    }
}
