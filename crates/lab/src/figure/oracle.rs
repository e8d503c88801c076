//! Results of ns-2 for plain TCP (`crates/sim/testdata/ns2`, whose README has the commands).

use std::collections::BTreeMap;

const FLOWS_10: &str = include_str!("../../../sim/testdata/ns2/flows10_minrto1.5_nearsrc.csv");
const TIMEOUTS: &str = include_str!("../../../sim/testdata/ns2/timeouts_case2.csv");
const COMPLETION: &str = include_str!("../../../sim/testdata/ns2/completion_minrto1.5_nearsrc.csv");
const BINS: [(usize, &str); 2] = [
    (750, include_str!("../../../sim/testdata/ns2/rate_b750_bins.csv")),
    (
        1500,
        include_str!("../../../sim/testdata/ns2/rate_b1500_bins.csv"),
    ),
];
const QUEUES: [(usize, &str); 2] = [
    (750, include_str!("../../../sim/testdata/ns2/rate_b750_queue.csv")),
    (
        1500,
        include_str!("../../../sim/testdata/ns2/rate_b1500_queue.csv"),
    ),
];
const JITTERED: &str = include_str!("../../../sim/testdata/ns2/rate_summary_jitter.csv");

/// A row: values by column name.
type Row = BTreeMap<String, String>;

fn rows(text: &str) -> Vec<Row> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader
        .deserialize()
        .collect::<Result<_, _>>()
        .expect("the test `all_tables_are_read` has read these compiled-in tables")
}

fn number(row: &Row, column: &str) -> f64 {
    let text = row.get(column).unwrap_or_else(|| panic!("no column {column}"));
    text.parse().unwrap_or_else(|_| panic!("{column}: {text}"))
}

fn at(failover_s: f64) -> impl Fn(&Row) -> bool {
    move |row| (number(row, "tfailover_s") - failover_s).abs() < 1e-9
}

/// Arrival and completion times, in seconds, of Reno's flows of 10 segments. Empty for a failover that was not simulated in ns-2.
pub fn completions(failover_s: f64) -> Vec<(f64, f64)> {
    let rows = rows(FLOWS_10).into_iter().filter(at(failover_s));
    rows.filter(|row| row["variant"] == "Reno")
        .map(|row| (number(&row, "arrival_s"), number(&row, "completion_s")))
        .collect()
}

/// The place of the cluster, and TCP's least timeout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeoutSetting {
    /// Whether the cluster is next to the sources. Otherwise it is next to the destinations.
    pub is_near_sources: bool,
    /// The least timeout, in seconds.
    pub least_timeout_s: f64,
}

/// The fractions of a variant's flows that had 0, 1, 2, 3, and 4 or more timeouts. Counts only flows that began before the failover (Case 2
/// in docs/model-halr.md).
pub fn timeouts(setting: TimeoutSetting, variant: &str, failover_s: f64) -> Option<[f64; 5]> {
    let placement = if setting.is_near_sources {
        "sources"
    } else {
        "destinations"
    };
    let is_set =
        |row: &Row| row["placement"] == placement && number(row, "minrto_s") == setting.least_timeout_s;
    let mut rows = rows(TIMEOUTS).into_iter().filter(at(failover_s)).filter(is_set);
    let row = rows.find(|row| row["variant"] == variant)?;
    Some(
        ["frac_0_timeouts", "frac_1", "frac_2", "frac_3", "frac_4_or_more"]
            .map(|column| number(&row, column)),
    )
}

/// For each failover: its duration, and the shortest and longest completion time of Reno's disturbed short flows, all in seconds.
pub fn disturbed() -> Vec<[f64; 3]> {
    let rows = rows(COMPLETION).into_iter();
    rows.filter(|row| row["variant"] == "Reno")
        .map(|row| ["tfailover_s", "min_abnormal_s", "max_completion_s"].map(|column| number(&row, column)))
        .collect()
}

fn of_buffer(tables: [(usize, &'static str); 2], buffer_packets: usize) -> Vec<Row> {
    let table = tables.iter().find(|(buffer, _)| *buffer == buffer_packets);
    table.map_or_else(Vec::new, |(_, text)| rows(text))
}

/// For each tenth of a second: the time in seconds, the throughput of all flows in Mb/s, and the number of dropped packets.
pub fn bins(buffer_packets: usize) -> Vec<(f64, f64, f64)> {
    let rows = of_buffer(BINS, buffer_packets);
    let columns = ["time_s", "goodput_mbps_total", "drops_string1"];
    rows.iter()
        .map(|row| columns.map(|column| number(row, column)).into())
        .collect()
}

/// Samples of R1's queue: the time in seconds, and the number of waiting packets.
pub fn queue(buffer_packets: usize) -> Vec<(f64, f64)> {
    let rows = of_buffer(QUEUES, buffer_packets);
    rows.iter()
        .map(|row| (number(row, "time_s"), number(row, "queue_R1_N1_pkts")))
        .collect()
}

/// The values in `column`, one for each run with jittered arrivals and this buffer.
pub fn jittered(buffer_packets: usize, column: &str) -> Vec<f64> {
    let case = format!("Reno_b{buffer_packets}_w64_r");
    let rows = rows(JITTERED).into_iter();
    rows.filter(|row| row["case"].starts_with(&case))
        .map(|row| number(&row, column))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tables_are_read() {
        assert_eq!(completions(3.0).len(), 300);
        assert!(completions(5.0).is_empty());
        let [near, far] = [true, false].map(|is_near_sources| TimeoutSetting {
            is_near_sources,
            least_timeout_s: 1.0,
        });
        let of = |setting| timeouts(setting, "NewReno", 0.05).unwrap();
        assert_eq!(of(far), [0.4490, 0.5510, 0.0, 0.0, 0.0]);
        assert_eq!(of(near), [0.6146, 0.3854, 0.0, 0.0, 0.0]);
        assert_eq!(disturbed().len(), 14);
        assert_eq!((bins(750).len(), queue(1500).len()), (452, 1918));
        assert_eq!(jittered(750, "overflow_surges_8_28s"), [8.0, 7.0, 8.0, 9.0, 8.0]);
    }
}
