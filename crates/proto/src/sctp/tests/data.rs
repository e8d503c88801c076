//! Data and acknowledgements (RFC 9260 §6, §7).

use std::time::Duration;

use super::net::{DELAY, TestNet, is_data, is_sack, message, millis};
use crate::sctp::association::{AssociationEvent, SctpSendError};
use crate::sctp::chunk::SctpChunk;
use crate::sctp::{RetransmissionPolicy, SctpConfig, SctpMessage, Tsn, UserData};

/// A configuration with a large window and large bursts, so that neither hides the rule that a test is about.
fn wide() -> SctpConfig {
    SctpConfig {
        initial_window: 60_000,
        max_burst: 100,
        ..SctpConfig::default()
    }
}

/// The place of a DATA chunk: its TSN minus `first`. `None` for other chunks.
fn place(chunk: &SctpChunk, first: Tsn) -> Option<i32> {
    match chunk {
        SctpChunk::Data(data) => Some(data.tsn.distance_from(first)),
        _ => None,
    }
}

/// The first TSN that end 0 sends.
fn first_tsn(net: &mut TestNet) -> Tsn {
    net.at(0).names().0.local_tsn
}

#[test]
fn messages_of_all_sizes_arrive_whole() {
    let mut net = TestNet::connected(SctpConfig::default());
    for (stream, length) in [(0, 1), (1, 1452), (2, 1453), (0, 2904), (15, 60_000)] {
        net.send(0, message(stream, length));
    }
    net.run(Duration::from_secs(2));
    let mut received = net.received[1].clone();
    received.sort_by_key(|message| message.data.len());
    let sizes = [(0, 1), (1, 1452), (2, 1453), (0, 2904), (15, 60_000)];
    assert_eq!(received, sizes.map(|(stream, length)| message(stream, length)));
}

#[test]
fn small_messages_share_a_packet() {
    let mut net = TestNet::connected(SctpConfig::default());
    for _ in 0..10 {
        net.at(0).send(message(0, 100)).expect("room");
    }
    net.settle();
    assert_eq!(net.log.len(), 1);
    net.run(millis(50));
    assert_eq!(net.received[1].len(), 10);
}

#[test]
fn a_message_that_can_never_arrive_is_refused() {
    let mut net = TestNet::connected(SctpConfig::default());
    assert_eq!(net.at(0).send(message(0, 0)), Err(SctpSendError::Empty));
    assert_eq!(net.at(0).send(message(16, 1)), Err(SctpSendError::NoStream(16)));
    let most = 64 << 10;
    assert_eq!(
        net.at(0).send(message(0, most + 1)),
        Err(SctpSendError::TooLarge(most))
    );
    assert_eq!(net.at(0).send(message(0, most)), Ok(()));
    // In the send buffer of 128 KiB, each message counts the 16 bytes of a DATA header, too.
    assert_eq!(net.at(0).send(message(0, most)), Err(SctpSendError::Full));
    assert_eq!(net.at(0).send(message(0, most - 32)), Ok(()));
    assert_eq!(net.at(0).send(message(0, 1)), Err(SctpSendError::Full));
}

#[test]
fn every_second_packet_is_acknowledged_and_the_last_one_after_200_ms() {
    let mut net = TestNet::connected(wide());
    net.send(0, message(0, 5 * 1452));
    let begun = net.now.as_nanos() / 1_000_000;
    net.run(Duration::from_secs(1));
    let sacks: Vec<u64> = net
        .sent_with(1, is_sack)
        .into_iter()
        .map(|(at, _)| at - begun)
        .collect();
    assert_eq!(sacks, [20, 20, 220]);
}

#[test]
fn an_unordered_message_overtakes_a_lost_one() {
    let mut net = TestNet::connected(wide());
    let mut is_first = true;
    net.lose(move |leaving| leaving.packet.chunks.iter().any(is_data) && std::mem::take(&mut is_first));
    net.send(0, message(0, 1400));
    net.send(0, message(1, 1400));
    net.send(
        0,
        SctpMessage {
            is_unordered: true,
            ..message(0, 7)
        },
    );
    net.run(millis(50));
    let lengths = |net: &TestNet| {
        net.received[1]
            .iter()
            .map(|message| (message.stream, message.data.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(lengths(&net), [(1, 1400), (0, 7)]);
    net.run(Duration::from_secs(2));
    assert_eq!(lengths(&net)[2..], [(0, 1400)]);
}

/// RFC 9260 §7.2.4: when the third SACK reports a chunk missing, the chunk is sent again, long before the timeout.
#[test]
fn a_lost_packet_is_fast_retransmitted() {
    let mut net = TestNet::connected(wide());
    let first = first_tsn(&mut net);
    let mut losses = 1;
    net.lose(move |leaving| {
        let is_lost = leaving
            .packet
            .chunks
            .iter()
            .any(|chunk| place(chunk, first) == Some(2))
            && losses > 0;
        losses -= i32::from(is_lost);
        is_lost
    });
    net.send(0, message(0, 12 * 1452));
    let begun = net.now;
    net.run(millis(100));
    assert_eq!(net.received[1].len(), 1);
    let resent = net
        .log
        .iter()
        .filter(|(.., packet)| packet.chunks.iter().any(|chunk| place(chunk, first) == Some(2)));
    let at: Vec<_> = resent.map(|(at, ..)| at.since(begun)).collect();
    assert_eq!(at, [Duration::ZERO, DELAY * 2]);
    // Half of the window of 60,000 bytes.
    assert_eq!(net.at(0).destinations()[0].window().threshold(), 30_000);
    assert_eq!(net.at(0).destinations()[0].counts().timeouts, 0);
}

/// RFC 9260 §7.2.4, rule 3: the window is halved, but the retransmission does not wait for room in it.
#[test]
fn a_fast_retransmission_does_not_wait_for_the_window() {
    let mut net = TestNet::connected(SctpConfig {
        initial_window: 20 * 1468,
        retransmission: RetransmissionPolicy::FastSame,
        ..wide()
    });
    let first = first_tsn(&mut net);
    let mut losses = 1;
    net.lose(move |leaving| {
        let is_lost = leaving
            .packet
            .chunks
            .iter()
            .any(|chunk| place(chunk, first) == Some(2))
            && losses > 0;
        losses -= i32::from(is_lost);
        // Of the packets after the lost one, only the first three arrive.
        is_lost
            || leaving
                .packet
                .chunks
                .iter()
                .any(|chunk| place(chunk, first).is_some_and(|place| place > 5))
    });
    net.send(0, message(0, 20 * 1452));
    net.run(DELAY * 2 + millis(1));
    let window = net.at(0).destinations()[0].window().clone();
    assert!(window.flight() > window.window(), "{window:?}");
    assert_eq!(net.sent_with(0, is_data).len(), 21);
}

/// RFC 9260 §7.2.1: the window does not grow in fast recovery, although it is full and the cumulative TSN advances.
#[test]
fn the_window_does_not_grow_in_fast_recovery() {
    let mut net = TestNet::connected(SctpConfig {
        initial_window: 20 * 1468,
        retransmission: RetransmissionPolicy::FastSame,
        ..wide()
    });
    let first = first_tsn(&mut net);
    let mut lost = vec![2, 18];
    net.lose(move |leaving| {
        let place = leaving.packet.chunks.iter().find_map(|chunk| place(chunk, first));
        let before = lost.len();
        lost.retain(|wanted| Some(*wanted) != place);
        lost.len() < before
    });
    net.send(0, message(0, 60_000));
    net.run(DELAY * 4 + millis(1));
    let window = net.at(0).destinations()[0].window().clone();
    assert_eq!(window.window(), window.threshold(), "{window:?}");
}

/// RFC 9260 §6.2.1, iv: the receiver has reported a chunk and then drops it. The next SACK reports a later chunk, but not the dropped one.
#[test]
fn a_chunk_that_the_receiver_drops_leaves_no_bytes_in_flight() {
    let mut net = TestNet::connected(wide());
    let first = first_tsn(&mut net);
    net.lose(|_| true);
    net.send(0, message(0, 10 * 1452));
    let tag = net.at(0).names().0.local_tag;
    let mut sack = |whole: u32, gaps: &[(u16, u16)]| {
        let sack = SctpChunk::Sack(crate::sctp::chunk::SackChunk {
            cumulative: first.plus(whole).minus(1),
            window: 100_000,
            gaps: gaps.to_vec(),
            duplicates: Vec::new(),
        });
        net.inject(0, super::net::address(1, 0), super::net::packet(tag, sack));
        net.at(0).destinations()[0].window().flight() / 1468
    };
    assert_eq!(sack(0, &[(3, 3)]), 9);
    assert_eq!(sack(0, &[(3, 4)]), 8);
    assert_eq!(sack(0, &[(2, 4)]), 7);
    // The receiver has dropped the chunk at offset 2. The first two SACKs had reported this chunk missing.
    assert_eq!(sack(0, &[(3, 5)]), 7);
    assert_eq!(sack(10, &[]), 0);
}

/// Loses the chunk at place 2 twice, while data flows. Returns the number of timeouts, and whether all four messages arrived.
fn lose_a_retransmission(has_multiple_fast_retransmit: bool) -> (u64, bool) {
    let mut net = TestNet::connected(SctpConfig {
        has_multiple_fast_retransmit,
        ..wide()
    });
    let first = first_tsn(&mut net);
    let mut losses = 2;
    net.lose(move |leaving| {
        let is_lost = leaving
            .packet
            .chunks
            .iter()
            .any(|chunk| place(chunk, first) == Some(2))
            && losses > 0;
        losses -= i32::from(is_lost);
        is_lost
    });
    for _ in 0..4 {
        net.at(0).send(message(0, 30_000)).expect("room");
    }
    net.settle();
    net.run(millis(700));
    (
        net.at(0).destinations()[0].counts().timeouts,
        net.received[1].len() == 4,
    )
}

#[test]
fn multiple_fast_retransmit_spares_the_timeout() {
    assert_eq!(lose_a_retransmission(true), (0, true));
    assert_eq!(lose_a_retransmission(false), (0, false));
}

#[test]
fn an_event_lets_out_one_burst() {
    let mut net = TestNet::connected(SctpConfig {
        max_burst: 4,
        ..wide()
    });
    net.send(0, message(0, 30_000));
    assert_eq!(net.log.len(), 4);
}

#[test]
fn the_window_grows_by_a_packet_per_acknowledgement_in_slow_start() {
    let mut net = TestNet::connected(SctpConfig {
        initial_window: 2936,
        ..SctpConfig::default()
    });
    assert_eq!(net.at(0).destinations()[0].window().window(), 2936);
    net.send(0, message(0, 60_000));
    net.run(DELAY * 2 + millis(1));
    assert_eq!(net.at(0).destinations()[0].window().window(), 4404);
}

/// RFC 9260 §6.1 A, §6.2: while the receiver does not read, one chunk at a time probes the closed window, and no message is lost.
#[test]
fn a_closed_window_is_probed_and_opens_again() {
    let mut net = TestNet::connected(SctpConfig {
        receive_buffer: 10_000,
        ..SctpConfig::default()
    });
    net.is_lazy[1] = true;
    for _ in 0..20 {
        net.send(0, message(0, 1400));
    }
    net.run(Duration::from_secs(200));
    assert!(!net.events[0].contains(&AssociationEvent::PathFailed(crate::sctp::PathId(0))));
    assert_eq!(net.at(0).destinations()[0].errors(), 0);
    assert!(net.at(1).counts().overflows > 3);
    net.is_lazy[1] = false;
    net.settle();
    // The receiver announces the open window immediately; the sender's next probe would come much later.
    net.run(millis(300));
    assert_eq!(net.received[1].len(), 20);
}

#[test]
fn counted_data_travels_as_a_number() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.send(
        0,
        SctpMessage {
            data: UserData::Counted(50_000),
            ..message(0, 1)
        },
    );
    net.run(Duration::from_secs(1));
    assert_eq!(net.received[1][0].data, UserData::Counted(50_000));
}

#[test]
fn data_of_a_stream_that_does_not_exist_is_reported_and_acknowledged() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.set_fate(|_| vec![]);
    net.send(0, message(3, 10));
    let (.., mut packet) = net.log.pop().expect("a packet");
    let Some(SctpChunk::Data(data)) = packet.chunks.first_mut() else {
        panic!("{packet:?}");
    };
    data.stream = 16;
    let tsn = data.tsn;
    net.inject(1, super::net::address(0, 0), packet);
    net.run(millis(250));
    let chunks: Vec<_> = net
        .log
        .iter()
        .filter(|(_, end, ..)| *end == 1)
        .flat_map(|(.., packet)| &packet.chunks)
        .collect();
    assert!(
        matches!(chunks[0], SctpChunk::Error(causes) if causes[..] == [crate::sctp::ErrorCause::InvalidStream(16)])
    );
    assert!(matches!(chunks[1], SctpChunk::Sack(sack) if sack.cumulative == tsn));
}
