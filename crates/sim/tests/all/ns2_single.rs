//! Compares a single flow over a small buffer with ns-2. The numbers of segments, timeouts and retransmissions must be equal. The
//! completion times may differ by 2 µs.

use crate::ns2::{number, rows, variant};
use steadfast_sim::scenario::dumbbell::Dumbbell;

#[test]
fn a_single_flow_is_the_same_to_the_microsecond() {
    for row in rows("single_flow.csv") {
        let mut dumbbell = Dumbbell {
            segments: row[3].parse().unwrap(),
            buffer_packets: row[1].parse::<usize>().unwrap() - 1,
            rate_bits_per_s: row[4].parse::<u64>().unwrap() * 1_000_000,
            ..Dumbbell::default()
        };
        dumbbell.tcp.variant = variant(&row[0]);
        dumbbell.tcp.max_window = row[2].parse().unwrap();
        let [flow] = dumbbell.run().unwrap()[..] else {
            panic!("one flow")
        };
        let ours = flow.completion_s().unwrap();
        let counts = format!("{},{},{}", flow.segments, flow.timeouts, flow.retransmitted);
        assert!((ours - number(&row[5])).abs() < 2e-6, "{row:?}: {ours}");
        assert_eq!(counts, row[6..].join(","), "{row:?}");
    }
}
