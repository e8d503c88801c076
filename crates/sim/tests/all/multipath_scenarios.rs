//! The timeout scenarios of the SCTP failover paper (section III.7, Figure 8), packet by packet. The tests compare the paper's equations
//! with these packets.
//!
//! A packet A on the primary path is lost and times out. Then:
//!
//! ```text
//!                              first packet to the primary    first packet to the alternate
//!   scenario 1                 arrives                        arrives
//!   scenario 2                 arrives                        is lost
//!   scenario 3                 is lost                        arrives
//!   scenario 4                 is lost                        is lost
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use model::caro::{packets, scenario_3_round_trips, scenario_4_round_trips, slow_start_round_trips};
use proto::Instant;
use proto::sctp::chunk::SctpChunk;
use proto::sctp::{SctpConfig, SctpMessage, Tsn, UserData};
use steadfast_sim::multipath::{MultipathNetwork, PathConfig, SctpDeparture};

/// A packet of host 0 after the timeout: milliseconds since the timeout, path, and TSN counted from A's. `None` is a heartbeat.
type PacketOfFigure = (u64, usize, Option<u32>);

/// The TSN of a packet's data.
fn tsn(departure: &SctpDeparture<'_>) -> Option<Tsn> {
    departure.packet.chunks.iter().find_map(|chunk| match chunk {
        SctpChunk::Data(data) => Some(data.tsn),
        _ => None,
    })
}

fn is_heartbeat(departure: &SctpDeparture<'_>) -> bool {
    matches!(departure.packet.chunks[0], SctpChunk::Heartbeat(_))
}

/// Reads what has arrived at `host`. If `host` is 0, sends at most `most` messages, as long as the send buffer has room.
fn use_host(network: &mut MultipathNetwork, host: usize, most: usize) {
    let Some(association) = network.association(host) else {
        return;
    };
    while association.receive().is_some() {}
    let message = SctpMessage {
        stream: 0,
        protocol: 0,
        is_unordered: false,
        data: UserData::Counted(1452),
    };
    let mut sent = 0;
    while host == 0 && sent < most && association.send(message.clone()).is_ok() {
        sent += 1;
    }
}

/// Runs to `until`. Host 0 sends at most `most` messages at a time.
fn run(network: &mut MultipathNetwork, until: Instant, most: usize) {
    while let Some(host) = network.step(until) {
        use_host(network, host, most);
        network.settle(host);
    }
}

/// Plays a scenario: after a transfer and a pause, packet A leaves alone on the primary path and is lost. More data waits when A times out.
/// After the timeout, the first packet on each path is lost if `lost` says so. Returns what host 0 sends in the three seconds after the
/// timeout.
fn play(path_max_retrans: u32, lost: [bool; 2]) -> Vec<PacketOfFigure> {
    let config = SctpConfig {
        path_max_retrans,
        heartbeat_interval: None,
        // One packet, as in the figure.
        initial_window: 1468,
        // In the figure, new data is sent together with A's retransmission. In ns-2, which gave the paper's numbers, new data waits for
        // a SACK after a timeout.
        holds_new_after_timeout: false,
        ..SctpConfig::paper()
    };
    let paths = [PathConfig::default(), PathConfig::default()];
    let mut network = MultipathNetwork::new([config; 2], &paths, 1).expect("valid");
    network.connect();
    let second = |number| Instant::ZERO + Duration::from_secs(number);
    run(&mut network, second(10), usize::MAX);
    run(&mut network, second(20), 0);
    let begun = network.now();
    let sent = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&sent);
    let (mut a, mut timed_out_at, mut to_lose) = (None::<Tsn>, None::<Instant>, lost);
    network.set_loss(move |departure| {
        let number = tsn(departure);
        if departure.host == 1 || number.is_none() && !is_heartbeat(departure) {
            return false;
        }
        let Some(first) = a else {
            a = number;
            return true;
        };
        let at = *timed_out_at.get_or_insert(departure.at);
        let after = u64::try_from(departure.at.since(at).as_millis()).expect("a short run");
        let number = number.map(|tsn| tsn.distance_from(first).cast_unsigned());
        log.borrow_mut().push((after, departure.path, number));
        std::mem::take(&mut to_lose[departure.path])
    });
    use_host(&mut network, 0, 1);
    network.settle(0);
    run(&mut network, begun + Duration::from_secs(4), usize::MAX);
    sent.take()
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

/// Number of packets with data in each round trip of a transfer whose slow start ends at `threshold` packets.
fn packets_per_round_trip(threshold: u32) -> Vec<usize> {
    let config = SctpConfig {
        initial_window: 1468,
        initial_threshold: Some(threshold * 1468),
        receive_buffer: 1 << 20,
        send_buffer: 2 << 20,
        heartbeat_interval: None,
        // The equations do not model that a SACK waits for a second packet.
        sack_delay: Duration::from_millis(3),
        max_burst: 100,
        ..SctpConfig::paper()
    };
    let mut network = MultipathNetwork::new([config; 2], &[PathConfig::default()], 1).expect("valid");
    let times = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&times);
    network.set_loss(move |departure| {
        if departure.host == 0 && tsn(departure).is_some() {
            log.borrow_mut().push(departure.at);
        }
        false
    });
    network.connect();
    run(&mut network, Instant::ZERO + Duration::from_secs(4), usize::MAX);
    let times = times.take();
    // The round trip of a full packet is 94.5 ms, with its time on the links and the SACK's wait for a second packet.
    let round = |at: &Instant| (at.since(times[0]).as_secs_f64() / 0.0945) as usize;
    let mut counts = vec![0; 20];
    for at in &times {
        if let Some(count) = counts.get_mut(round(at)) {
            *count += 1;
        }
    }
    counts
}

/// Eq. 2 to 9: per round trip, the window grows by half in slow start, and by one packet after slow start. The test compares the total
/// numbers of packets.
#[test]
fn a_transfer_sends_what_the_equations_say() {
    for threshold in [6, 10, 16] {
        let counts = packets_per_round_trip(threshold);
        let mut sum = 0;
        for (round, count) in (1..).zip(&counts) {
            sum += count;
            // The first windows are one, two and three whole packets. The equations allow fractions of a packet, so the transfer is up to
            // three round trips ahead of them.
            let [least, most] =
                [0.0, 3.0].map(|ahead| packets(f64::from(round) + ahead, f64::from(threshold)));
            assert!(
                (least * 0.9..most * 1.1).contains(&(sum as f64)),
                "threshold {threshold}, {round} round trips: {sum} packets, {least} to {most} modelled: {counts:?}"
            );
        }
        // Eq. 5 to 7: the last ten round trips are in congestion avoidance.
        let grown = counts[19] as f64 - counts[9] as f64;
        assert!((7.0..13.0).contains(&grown), "{counts:?}");
        let slow_start = slow_start_round_trips(20.0, f64::from(threshold));
        let left_at = counts
            .iter()
            .position(|count| *count > threshold as usize)
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
