//! The timeout scenarios of the SCTP failover paper (section III.7, Figure 8), packet by packet. The tests compare the paper's equations
//! with these packets.

use std::time::Duration;

use model::caro::{packets, scenario_3_round_trips, scenario_4_round_trips, slow_start_round_trips};
use steadfast_sim::scenario::timeouts::{TimeoutScenario, WindowGrowth};

/// A packet of host 0 after the timeout: milliseconds since the timeout, path, and TSN counted from A's. `None` is a heartbeat.
type PacketOfFigure = (u64, usize, Option<u32>);

/// Plays a scenario. After the timeout, the first packet on each path is lost if `lost` says so.
fn play(path_max_retrans: u32, lost: [bool; 2]) -> Vec<PacketOfFigure> {
    let scenario = TimeoutScenario {
        path_max_retrans,
        lost,
        delays: [Duration::from_millis(25); 2],
        initial_window_packets: 1,
    };
    let sent = scenario.run().expect("valid").into_iter();
    sent.map(|packet| (packet.after.as_millis() as u64, packet.path, packet.number))
        .collect()
}

/// Path and number of each packet before `until` milliseconds.
fn early(sent: &[PacketOfFigure], until: u64) -> Vec<(usize, Option<u32>)> {
    let early = sent.iter().take_while(|(at, ..)| *at < until);
    early.map(|(_, path, number)| (*path, *number)).collect()
}

/// The transmissions of A after its timeout: the time in tenths of a second, and the path.
fn ways_of_a(sent: &[PacketOfFigure]) -> Vec<(u64, usize)> {
    let ways = sent.iter().filter(|(_, _, number)| *number == Some(0));
    ways.map(|(at, path, _)| (*at / 100, *path)).collect()
}

/// Number of packets with new data before `until` milliseconds on a path.
fn new_data(sent: &[PacketOfFigure], path: usize, until: u64) -> usize {
    let is_new = |(at, on, number): &&PacketOfFigure| {
        *at < until && *on == path && number.is_some_and(|number| number > 0)
    };
    sent.iter().filter(is_new).count()
}

/// A goes to the alternate. With PMR = 0, the sender fails over and also sends a heartbeat to the primary. With PMR = 1, the sender also
/// sends one new packet to the primary.
#[test]
fn the_first_two_packets_are_those_of_figure_8() {
    for lost in [[false, false], [false, true], [true, false], [true, true]] {
        assert_eq!(early(&play(0, lost), 50), [(0, None), (1, Some(0))]);
        assert_eq!(early(&play(1, lost), 50), [(1, Some(0)), (0, Some(1))]);
    }
}

/// After one round trip, the heartbeat is answered (PMR = 0), or A and the new packet are acknowledged (PMR = 1). Then data continues on
/// the primary.
#[test]
fn scenario_1_goes_on_after_one_round_trip() {
    for path_max_retrans in [0, 1] {
        let sent = play(path_max_retrans, [false, false]);
        assert_eq!(ways_of_a(&sent), [(0, 1)]);
        assert!(new_data(&sent, 0, 500) >= 2, "{:?}", early(&sent, 500));
        assert_eq!(new_data(&sent, 1, 3000), 0);
    }
}

/// One packet at a time goes to the primary until A has timed out on the alternate. Then A goes to the primary, too.
#[test]
fn scenario_2_sends_a_to_the_primary_after_its_second_timeout() {
    for path_max_retrans in [0, 1] {
        let sent = play(path_max_retrans, [false, true]);
        assert_eq!(ways_of_a(&sent), [(0, 1), (10, 0)]);
        // One second is eleven round trips of 91 ms.
        assert!(
            (8..=12).contains(&new_data(&sent, 0, 1000)),
            "{path_max_retrans}: {sent:?}"
        );
        assert!(new_data(&sent, 0, 3000) > 30);
    }
}

/// With PMR = 0, the sender uses the alternate until the second heartbeat is answered. With PMR = 1, the sender sends nothing until its
/// packet times out after two seconds.
#[test]
fn scenario_3_gains_with_pmr_0_what_the_closed_form_says() {
    let (aggressive, patient) = (play(0, [true, false]), play(1, [true, false]));
    assert_eq!(new_data(&patient, 0, 1990) + new_data(&patient, 1, 1990), 1);
    assert_eq!(
        early(&aggressive, 2050)
            .iter()
            .filter(|(path, _)| *path == 0)
            .count(),
        2,
        "two heartbeats"
    );
    let d = 1 + new_data(&aggressive, 1, 2090);
    // The alternate's slow start threshold has its initial value, 65,536 bytes. This is 44 packets, as much as the receiver's buffer holds.
    let round_trips = scenario_3_round_trips(2.0, 0.09, 0.09);
    let modelled = packets(round_trips, 44.0);
    let part = d as f64 / modelled;
    assert!((0.7..1.1).contains(&part), "{d} packets, {modelled} modelled");
    assert!(new_data(&aggressive, 0, 3000) > 0, "back on the primary");
}

/// A times out on the alternate first and goes to the primary. With PMR = 0, the sender continues on the primary. With PMR = 1, the
/// sender's lost packet is in flight until two seconds after the first timeout. The paper says that the sender with PMR = 1 sends nothing
/// meanwhile. But A and the lost packet together fill the window, so the acknowledgement of A lets the window grow (RFC 9260 §7.2.1).
#[test]
fn scenario_4_gains_with_pmr_0_until_the_patient_sender_has_timed_out() {
    let (aggressive, patient) = (play(0, [true, true]), play(1, [true, true]));
    for sent in [&aggressive, &patient] {
        assert_eq!(ways_of_a(sent), [(0, 1), (10, 0)]);
        // With PMR = 0 the alternate has failed and is probed. The answer to the probe may come just before the acknowledgement of A.
        assert!(new_data(sent, 1, 1990) <= 1);
    }
    assert_eq!(new_data(&patient, 0, 1090), 1);
    let gained = new_data(&aggressive, 0, 2000) as f64 - new_data(&patient, 0, 2000) as f64;
    // 2 s less the alternate's timeout of 1 s: eleven round trips of 90 ms.
    let modelled = packets(1.0 / 0.09, 44.0);
    assert!(
        gained > 20.0 && gained < modelled,
        "{gained} packets, at most {modelled}"
    );
}

/// Eq. 2 to 9: per round trip, the window grows by half in slow start, and by one packet after slow start. The test compares the total
/// numbers of packets.
#[test]
fn a_transfer_sends_what_the_equations_say() {
    for threshold in [6, 10, 16] {
        let growth = WindowGrowth {
            threshold_packets: threshold,
            receive_buffer: 1 << 20,
        };
        let counts = growth.run().expect("valid");
        let mut sum = 0;
        for (round, count) in (1..).zip(&counts) {
            sum += count;
            // The first windows are one, two and three whole packets. The equations allow fractions of a packet, so the transfer is up to
            // three round trips ahead of them.
            let [least, most] =
                [0.0, 3.0].map(|ahead| packets(f64::from(round) + ahead, f64::from(threshold)));
            assert!(
                (least * 0.9..most * 1.1).contains(&f64::from(sum)),
                "threshold {threshold}, {round} round trips: {sum} packets, {least} to {most} modelled: {counts:?}"
            );
        }
        // Eq. 5 to 7: the last ten round trips are in congestion avoidance.
        let grown = f64::from(counts[19]) - f64::from(counts[9]);
        assert!((7.0..13.0).contains(&grown), "{counts:?}");
        let slow_start = slow_start_round_trips(20.0, f64::from(threshold));
        let left_at = counts
            .iter()
            .position(|count| *count > threshold)
            .expect("a larger window");
        assert!(
            (left_at as f64 - slow_start).abs() < 3.5,
            "{left_at}, {slow_start}: {counts:?}"
        );
    }
}

/// Eq. 10 adds RTO₁² (the primary's second timeout in a row) and RTO₂¹ (the alternate's first timeout). But the sender with PMR = 1 waits
/// for RTO₁², and the sender with PMR = 0 continues after RTO₂¹, so the gain is the difference. With the minimum values of both timeouts,
/// the sum is three times the difference.
#[test]
fn equation_10_is_an_upper_bound_only() {
    let (aggressive, patient) = (play(0, [true, true]), play(1, [true, true]));
    let gained = new_data(&aggressive, 0, 2000) as f64 - new_data(&patient, 0, 2000) as f64;
    let printed = scenario_4_round_trips(2.0, 1.0, 0.09);
    assert!((printed / (1.0 / 0.09) - 3.0).abs() < 1e-9);
    assert!(gained < 0.2 * packets(printed, 44.0), "{gained}");
}
