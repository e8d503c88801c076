//! The failover policies, in conversations (paper, sections II to V; RFC 7829).

use std::net::IpAddr;
use std::time::Duration;

use super::net::{TestNet, is_data, is_heartbeat, message, millis};
use crate::Instant;
use crate::sctp::association::{AssociationEvent, CloseReason};
use crate::sctp::chunk::SctpChunk;
use crate::sctp::failover::FailoverPolicy;
use crate::sctp::failover::quick::Reach;
use crate::sctp::failover::temporary::DormantAction;
use crate::sctp::paths::PathTable;
use crate::sctp::{PathId, SctpConfig};

/// The paper's parameters with another policy and PMR. The first RTO is 1 s.
fn config(failover: FailoverPolicy, path_max_retrans: u32) -> SctpConfig {
    SctpConfig {
        failover,
        path_max_retrans,
        rto_initial: Duration::from_secs(1),
        ..SctpConfig::paper()
    }
}

const fn temporary(dormant: DormantAction, change_over: Option<u32>) -> FailoverPolicy {
    FailoverPolicy::Temporary { dormant, change_over }
}

/// The phase, and the destination of new data.
fn place(net: &mut TestNet) -> (&'static str, u8) {
    let association = net.at(0);
    (association.failover().phase(), association.current().0)
}

/// Sends a message, and lets one timeout pass.
fn time_out(net: &mut TestNet, rto: u64) {
    net.send(0, message(0, 100));
    net.run(Duration::from_secs(rto) + millis(100));
}

/// Both paths fail. Returns the destinations of new data in Phase III, one after the other.
fn dormant(action: DormantAction) -> Vec<u8> {
    let mut net = TestNet::connected(config(temporary(action, None), 0));
    net.lose(|_| true);
    let mut places = Vec::new();
    net.send(0, message(0, 100));
    for _ in 0..150 {
        net.run(millis(100));
        let (phase, current) = place(&mut net);
        if phase == "III" && places.last() != Some(&current) {
            places.push(current);
        }
    }
    places
}

/// Paper, section III.6.
#[test]
fn new_data_moves_in_the_dormant_state_as_the_policy_says() {
    assert_eq!(dormant(DormantAction::LastDest), [1]);
    assert_eq!(dormant(DormantAction::Primary), [0]);
    assert_eq!(dormant(DormantAction::Hop)[..4], [0, 1, 0, 1]);
    assert_eq!(dormant(DormantAction::HopOnce), [0]);
}

#[test]
fn a_dormant_association_wakes_with_the_destination_that_answers() {
    for (working, phase) in [(0, "I"), (1, "II")] {
        let mut net = TestNet::connected(config(temporary(DormantAction::Hop, None), 0));
        net.lose(|_| true);
        time_out(&mut net, 3);
        assert_eq!(place(&mut net).0, "III");
        net.lose(move |leaving| leaving.path != working);
        net.run(Duration::from_secs(20));
        assert_eq!(place(&mut net), (phase, working as u8));
        assert_eq!(net.received[1].len(), 1);
    }
}

/// Paper, Figure 9. The threshold is compared with the errors in a row, as in ns-2: the timeout that caused the failover counts.
#[test]
fn a_failover_is_permanent_after_more_errors_than_the_threshold() {
    let promoted_after = |threshold| {
        let mut net = TestNet::connected(config(temporary(DormantAction::Hop, threshold), 0));
        net.lose(|leaving| leaving.path == 0);
        net.send(0, message(0, 100));
        for tenths in 1..400 {
            net.run(millis(100));
            if net.events[0].contains(&AssociationEvent::PrimaryChanged(PathId(1))) {
                net.lose(|_| false);
                net.run(Duration::from_secs(70));
                assert_eq!(
                    place(&mut net),
                    ("I", 1),
                    "the old primary works again, and is an alternate"
                );
                return Some(tenths);
            }
        }
        None
    };
    // The RTO is 1 s and doubles with each timeout, so the timeouts come after 1, 3, 7 and 15 s.
    assert_eq!(promoted_after(Some(0)), Some(11));
    assert_eq!(promoted_after(Some(1)), Some(31));
    assert_eq!(promoted_after(Some(2)), Some(71));
    assert_eq!(promoted_after(None), None);
}

/// Paper, Figure 13: data leaves the primary at the first timeout. The primary fails after PMR + 1 timeouts.
#[test]
fn the_proposed_mechanism_moves_at_once_and_detects_late() {
    let mut net = TestNet::connected(config(FailoverPolicy::Proposed, 2));
    net.lose(|leaving| leaving.path == 0);
    time_out(&mut net, 1);
    assert_eq!(place(&mut net), ("II", 1));
    assert_eq!(net.at(0).destinations()[0].reach(), Reach::Active);
    assert_eq!(net.received[1].len(), 1);
    net.run(Duration::from_secs(2));
    assert_eq!(
        (place(&mut net), net.at(0).destinations()[0].errors()),
        (("II", 1), 2)
    );
    net.run(Duration::from_secs(4));
    assert_eq!(
        (place(&mut net), net.at(0).destinations()[0].reach()),
        (("III", 1), Reach::Failed)
    );
    net.lose(|_| false);
    net.run(Duration::from_secs(9));
    assert_eq!(place(&mut net), ("I", 0));
}

/// RFC 9260 §8.1: the association ends after Association.Max.Retrans retransmissions in a row, however often the paths are probed
/// meanwhile.
#[test]
fn lost_probes_do_not_end_an_association_that_retransmits() {
    let config = SctpConfig {
        association_max_retrans: 4,
        ..config(FailoverPolicy::Informed, 0)
    };
    let mut net = TestNet::connected(config);
    net.lose(|_| true);
    net.send(0, message(0, 100));
    net.run(Duration::from_secs(200));
    let closed = AssociationEvent::Closed(CloseReason::Unreachable);
    assert_eq!(net.events[0].last(), Some(&closed));
    // The first transmission and four retransmissions.
    assert_eq!(net.sent_with(0, is_data).len(), 5);
    assert!(net.sent_with(0, is_heartbeat).len() > 4);
}

/// Paper, Figure 13: each timeout of the alternate moves data on, here back to the primary, which has not failed yet.
#[test]
fn the_proposed_mechanism_moves_on_with_each_timeout() {
    let mut net = TestNet::connected(SctpConfig {
        association_max_retrans: 100,
        ..config(FailoverPolicy::Proposed, 2)
    });
    net.lose(|_| true);
    let mut places = Vec::new();
    net.send(0, message(0, 100));
    for _ in 0..400 {
        net.run(millis(100));
        let place = place(&mut net);
        if places.last() != Some(&place) {
            places.push(place);
        }
    }
    // Data alternates between the destinations until the primary has three errors in a row. Soon after, all have failed, and data hops.
    assert_eq!(places[..4], [("I", 0), ("II", 1), ("II", 0), ("II", 1)]);
    assert_eq!(places[4..7], [("III", 1), ("III", 0), ("III", 1)]);
}

/// RFC 7829 §3.2: a potentially failed destination gets no data while another one is active. If none is active, data goes to the
/// destination with the fewest errors.
#[test]
fn potentially_failed_destinations_are_ranked() {
    let mut net = TestNet::connected(config(FailoverPolicy::PotentiallyFailed { max_retrans: 0 }, 5));
    net.lose(|leaving| leaving.path == 0);
    time_out(&mut net, 1);
    assert_eq!(net.at(0).destinations()[0].reach(), Reach::PotentiallyFailed);
    assert_eq!(place(&mut net).1, 1);
    assert_eq!(net.events[0].len(), 1, "potentially failed is no failure");
    net.run(Duration::from_secs(8));
    net.lose(|_| true);
    time_out(&mut net, 1);
    let errors: Vec<u32> = net
        .at(0)
        .destinations()
        .iter()
        .map(|path| path.errors())
        .collect();
    assert!(errors[1] < errors[0], "{errors:?}");
    assert_eq!(place(&mut net).1, 1);
    net.lose(|_| false);
    net.run(Duration::from_secs(40));
    assert_eq!(place(&mut net).1, 0);
}

/// A transfer on path 0 of one message of 1,400 bytes per `every`, with each path's `losses` in percent and one-way `delays` in
/// milliseconds.
fn informed(seconds: u64, every: Duration, losses: [u64; 2], delays: [u64; 2]) -> TestNet {
    let mut net = TestNet::connected(config(FailoverPolicy::Informed, 0));
    let mut count = [0_u64; 2];
    net.set_fate(move |leaving| {
        // Losses are evenly spread, so that the estimate of the loss rate is exact.
        let path = leaving.path;
        count[path] += losses[path];
        let is_lost = count[path] >= 100;
        count[path] %= 100;
        if is_lost {
            vec![]
        } else {
            vec![millis(delays[path])]
        }
    });
    let until = net.now + Duration::from_secs(seconds);
    while net.now < until {
        if net.at(0).unacknowledged() < 60_000 {
            net.send(0, message(0, 1400));
        }
        net.run(every);
    }
    net
}

fn promotions(net: &TestNet) -> Vec<u8> {
    let path = |event: &AssociationEvent| match event {
        AssociationEvent::PrimaryChanged(path) => Some(path.0),
        _ => None,
    };
    net.events[0].iter().filter_map(path).collect()
}

/// Paper, section IV.2: losses and round-trip times decide together.
#[test]
fn an_informed_failover_moves_for_good_to_the_better_path_only() {
    let promotions = |losses, delays| promotions(&informed(100, millis(3), losses, delays));
    assert_eq!(promotions([5, 1], [20, 20]), [1]);
    assert_eq!(promotions([1, 5], [20, 20]), [0; 0]);
    assert_eq!(promotions([5, 0], [20, 60]), [1], "slower, but without losses");
    assert_eq!(promotions([5, 5], [20, 60]), [0; 0], "slower, and no better");
}

#[test]
fn measuring_costs_less_than_a_hundredth_of_the_data_and_is_no_error() {
    for every in [millis(3), millis(100)] {
        let net = informed(25, every, [0, 5], [20, 20]);
        let bytes = |is: fn(&SctpChunk) -> bool| {
            let packets = net
                .log
                .iter()
                .filter(|(_, end, _, packet)| *end == 0 && packet.chunks.iter().any(is));
            packets
                .map(|(.., packet)| 20 + packet.wire_bytes())
                .sum::<usize>()
        };
        let (data, heartbeats) = (bytes(is_data), 2 * bytes(is_heartbeat));
        assert!(data > 300_000 && heartbeats > 20 * 104, "{heartbeats} of {data}");
        assert!(heartbeats * 100 < data, "{heartbeats} of {data}");
        assert_eq!(
            net.events[0],
            [AssociationEvent::Established],
            "PMR is 0, and heartbeats were lost"
        );
    }
}

/// Paper, Figure 13: a primary that fails while it is used leaves Phase II, too.
#[test]
fn the_proposed_mechanism_marks_a_used_primary_failed() {
    let mut paths = table(config(FailoverPolicy::Proposed, 1), 3);
    let mut places = Vec::new();
    for path in [0, 1, 2, 0] {
        paths.on_error(PathId(path));
        places.push((paths.failover().phase(), paths.current().0));
    }
    assert_eq!(places, [("II", 1), ("II", 2), ("II", 0), ("III", 1)]);
}

/// Confirmed destinations without an association.
fn table(config: SctpConfig, count: u8) -> PathTable {
    let addresses: Vec<IpAddr> = (0..count).map(|last| IpAddr::from([10, 0, 0, last])).collect();
    let mut paths = PathTable::new(&config, &addresses, 0, Instant::ZERO);
    for path in paths.ids() {
        paths.confirm(path);
    }
    paths
}

#[test]
fn data_goes_round_n_destinations() {
    let mut paths = table(config(temporary(DormantAction::Hop, None), 0), 8);
    for failed in 0..7 {
        assert_eq!(paths.current(), PathId(failed));
        paths.on_error(PathId(failed));
    }
    assert_eq!((paths.current(), paths.failover().phase()), (PathId(7), "II"));
    paths.on_error(PathId(7));
    assert_eq!((paths.current(), paths.failover().phase()), (PathId(0), "III"));
    paths.on_heard(PathId(5));
    assert_eq!((paths.current(), paths.failover().phase()), (PathId(5), "II"));
}
