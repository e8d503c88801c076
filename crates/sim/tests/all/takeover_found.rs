//! Bugs in the protocol core (`proto`) that runs with random seeds found. Each bug has one test here, with as little randomness as
//! possible.

use std::time::Duration;

use crate::seeds::{LIMIT, MS, at};
use proto::Instant;
use proto::detector::DetectorConfig;
use proto::follower::RestartPolicy;
use proto::packet::{Checksum, Segment};
use proto::role::Role;
use steadfast_sim::exchange::SeededStream;
use steadfast_sim::pair::application::ReadPace;
use steadfast_sim::pair::http::{self, HttpRequest};
use steadfast_sim::pair::{Costs, SimClient, SimPair, SimPairConfig, Station, echo};

/// One request, for a reply of `len` bytes.
fn get(len: u64) -> SimClient {
    let planned = http::PlannedRequest {
        request: HttpRequest::get(len, SeededStream::new(1, len)),
        after: Duration::ZERO,
        pipelined: false,
    };
    SimClient::Http(http::HttpClient::new(vec![planned], false, None))
}

/// Messages: (upload, download, pause). Each message is sent when its pause has passed since the reply to the previous message.
fn messages(messages: &[(u32, u32, Duration)], half_closes: bool) -> SimClient {
    let planned = messages
        .iter()
        .zip(1..)
        .map(|(&(upload, download, after), seed)| {
            (
                echo::EchoMessage {
                    upload,
                    download,
                    seed,
                    echo: false,
                    is_last: false,
                },
                after,
            )
        });
    SimClient::Echo(echo::EchoClient::new(planned.collect(), half_closes, None))
}

/// Runs a pair to its end: everything must be in order.
fn finish(pair: &mut SimPair) {
    let complaints = pair.run(at(LIMIT));
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// As [`finish`], and no connection may be lost.
fn finish_whole(pair: &mut SimPair) {
    finish(pair);
    assert_eq!(pair.backup().machine().lost(), []);
}

/// The wake-up acknowledged input that the primary had not acknowledged, and offered the primary's whole window beyond that input.
#[test]
fn a_wake_up_promises_what_the_primary_did_and_no_more() {
    let mut pair = SimPair::new(&SimPairConfig::quiet(1, RestartPolicy::Replica));
    pair.connect(at(100 * MS), messages(&[(400_000, 10, Duration::ZERO)], false));
    pair.power_off(at(160 * MS));
    finish_whole(&mut pair);
}

/// An acknowledgement and the window update after it reached the wire in the other order, and the primary lost its power. The survivor offered
/// the smaller window, although the client could have had the larger one.
#[test]
fn a_window_update_that_was_overtaken_is_kept() {
    for phase in 0..60 {
        let mut config = SimPairConfig::quiet(phase, RestartPolicy::Replica);
        (config.path.rate_bits_per_s, config.path.delay) = (Some(10_000_000), MS);
        (config.lan.reorder, config.lan.reorder_delay) = (0.3, MS);
        (config.server_tcp.mss, config.server_tcp.receive_buffer) = (536, 3_000);
        config.pace = Some(ReadPace {
            bytes: 2_000,
            every: 4 * MS,
        });
        let mut pair = SimPair::new(&config);
        pair.connect(at(100 * MS), messages(&[(400_000, 10, Duration::ZERO)], false));
        pair.power_off(at(160 * MS + MS / 10 * u32::try_from(phase).expect("small")));
        finish_whole(&mut pair);
    }
}

/// The restored socket's first timeout takes 3 s, so the node must send the lost output earlier.
#[test]
fn what_was_lost_with_the_primary_is_said_again_at_once() {
    for policy in [RestartPolicy::Http, RestartPolicy::Replica] {
        let mut pair = SimPair::new(&SimPairConfig::quiet(2, policy));
        let talk = match policy {
            RestartPolicy::Http => get(9_000),
            RestartPolicy::Replica | RestartPolicy::Replay | RestartPolicy::Snapshot => {
                messages(&[(10, 9_000, Duration::ZERO)], false)
            }
        };
        pair.connect(at(100 * MS), talk);
        let path = pair.path;
        pair.cut(path, at(116 * MS), at(140 * MS)); // the request arrives, the reply does not
        pair.power_off(at(118 * MS));
        pair.world.run_until(at(500 * MS));
        let (talk, _) = pair.talk(0).expect("the connection is open");
        assert!(talk.is_complete(), "{policy:?}: {talk:?}");
        finish_whole(&mut pair);
    }
}

/// The wake-up's timestamp clock was up to two ticks ahead of the socket's clock, so the client dropped the socket's next segments (PAWS).
#[test]
fn the_wake_up_and_the_socket_have_one_clock() {
    for phase in 0..40 {
        let mut config = SimPairConfig::quiet(phase, RestartPolicy::Replica);
        config.costs = Costs::measured(5);
        let mut pair = SimPair::new(&config);
        let begin = 100 * MS + Duration::from_micros(50) * u32::try_from(phase).unwrap();
        pair.connect(at(begin), messages(&[(300_000, 300_000, Duration::ZERO)], false));
        pair.power_off(at(160 * MS));
        finish_whole(&mut pair);
    }
}

/// With policy `replica`, no replica was started for a connection whose SYN-ACK was logged and then lost.
#[test]
fn a_half_open_connection_gets_a_replica() {
    let mut pair = SimPair::new(&SimPairConfig::quiet(3, RestartPolicy::Replica));
    pair.connect(at(100 * MS), messages(&[(10_000, 10_000, Duration::ZERO)], false));
    let path = pair.path;
    pair.cut(path, at(116 * MS), at(140 * MS));
    pair.power_off(at(107 * MS));
    finish_whole(&mut pair);
}

/// A connection whose SYN-ACK is lost. The survivor's first packets are lost too: nothing reaches the client until
/// `heard`.
fn half_open(policy: RestartPolicy, heard: Instant) -> SimPair {
    let mut pair = SimPair::new(&SimPairConfig::quiet(4, policy));
    let talk = match policy {
        RestartPolicy::Http => get(10_000),
        RestartPolicy::Replica | RestartPolicy::Replay | RestartPolicy::Snapshot => {
            messages(&[(10_000, 10_000, Duration::ZERO)], false)
        }
    };
    pair.connect(at(100 * MS), talk);
    pair.cut(pair.path, at(106 * MS), heard);
    pair.power_off(at(107 * MS));
    pair
}

/// The node repeated the SYN-ACK only once. A restored socket does not send a SYN-ACK when the client repeats its SYN.
#[test]
fn a_client_that_waits_for_a_syn_ack_gets_it_though_one_more_is_lost() {
    for policy in [RestartPolicy::Http, RestartPolicy::Replica] {
        let mut pair = half_open(policy, at(250 * MS));
        finish_whole(&mut pair);
        assert!(pair.world.now() < at(Duration::from_secs(4)));
    }
}

/// Only the agent's memory held the SYN-ACK that was to be repeated. After the agent died, the client's repeated SYNs went to an
/// established socket, which never answers with a SYN-ACK.
#[test]
fn a_client_that_waits_for_a_syn_ack_gets_it_though_the_agent_dies() {
    for policy in [RestartPolicy::Http, RestartPolicy::Replica] {
        let mut pair = half_open(policy, at(700 * MS));
        let backup = pair.backup;
        pair.world.at(at(600 * MS), move |world| {
            world.with(backup, |backup: &mut Station, now| {
                backup.kill_agent(now, at(650 * MS))
            })
        });
        pair.cut(pair.path, at(700 * MS), at(800 * MS));
        finish_whole(&mut pair);
    }
}

/// The client repeats its SYN while other connections are being restored, so the survivor's listener answers. Then the client's connection
/// cannot be restored. The bug: the node sent a RST, and the client took the RST for a refusal.
#[test]
fn a_client_that_waits_for_a_syn_ack_is_not_refused() {
    let mut config = SimPairConfig::quiet(5, RestartPolicy::Http);
    config.costs = Costs::measured(2_000);
    let mut pair = SimPair::new(&config);
    pair.connect(at(100 * MS), get(9_000_000));
    pair.connect(at(200 * MS), get(10_000));
    let (path, lan) = (pair.path, pair.lan);
    pair.cut(path, at(206 * MS), at(500 * MS));
    pair.world.at(at(500 * MS), move |world| {
        world.lose(lan, |_, packet| {
            Segment::parse(packet, Checksum::Trusted).is_ok_and(|segment| segment.flags.syn)
        });
    });
    pair.power_off(at(1_150 * MS));
    pair.run(at(LIMIT));
    let (talk, endpoint) = pair.talk(1).unwrap();
    assert!(talk.is_complete(), "{talk:?} {endpoint:?}");
}

/// The first connection's steps take a while, and meanwhile the second connection ends by itself. The takeover waited for the second
/// connection for ever.
#[test]
fn a_takeover_is_complete_though_a_connection_ends_before_its_turn() {
    let mut config = SimPairConfig::quiet(6, RestartPolicy::Http);
    config.path.delay = 50 * MS;
    config.costs = Costs::measured(2_000);
    let mut pair = SimPair::new(&config);
    pair.connect(at(100 * MS), get(2_000_000));
    pair.connect(at(100 * MS), get(1_000));
    // SYN, SYN-ACK, request and reply take 50 ms each. The client's FIN arrives at 350 ms, and its last acknowledgement at 450 ms.
    pair.power_off(at(355 * MS));
    finish_whole(&mut pair);
    assert_eq!(pair.backup().core().service(0).takeovers().len(), 1);
}

/// The wake-up acknowledged a FIN that had come after the socket was made. So the client did not repeat the FIN, and the application
/// waited for the end of the input for ever.
#[test]
fn a_fin_that_comes_while_its_socket_is_being_made_is_left_to_the_client() {
    for late in 0..12 {
        let mut config = SimPairConfig::quiet(7, RestartPolicy::Replica);
        config.costs = Costs::measured(500);
        let mut pair = SimPair::new(&config);
        let pause = 60 * MS + MS * late;
        pair.connect(
            at(100 * MS),
            messages(&[(100, 100, Duration::ZERO), (100, 5_000, pause)], true),
        );
        pair.power_off(at(125 * MS));
        finish_whole(&mut pair);
    }
}

/// In one pass over the log, a connection ended and a new connection got the same number. The node then applied the old
/// connection's pending actions to the new connection.
#[test]
fn what_is_due_to_a_connection_is_not_done_to_its_successor() {
    let mut config = SimPairConfig::quiet(9, RestartPolicy::Replica);
    config.detector = DetectorConfig {
        interval: 400 * MS,
        missed: 3,
        agent_timeout: Duration::from_secs(1),
    };
    config.nap = 150 * MS;
    let mut pair = SimPair::new(&config);
    pair.connect(at(210 * MS), messages(&[(2_000, 0, Duration::ZERO)], false));
    pair.connect(at(240 * MS), messages(&[(2_000, 400_000, Duration::ZERO)], false));
    pair.power_off(at(290 * MS));
    finish_whole(&mut pair);
}

/// The wire took over all connections before it sent or heard anything else, so the primary thought that its wire was dead.
#[test]
fn a_wire_is_heard_while_it_takes_over_many_connections() {
    let mut config = SimPairConfig::quiet(10, RestartPolicy::Replica);
    config.costs = Costs::measured(50); // 1.9 ms for each
    config.own_path = Some(config.path.clone());
    let agent_timeout = 100 * MS;
    config.detector.agent_timeout = agent_timeout;
    let mut pair = SimPair::new(&config);
    for index in 0..200 {
        let begin = 100 * MS + MS / 10 * index;
        let pause = Duration::from_secs(2);
        pair.connect(
            at(begin),
            messages(&[(100, 100, Duration::ZERO), (100, 100, pause)], false),
        );
    }
    pair.kill_worker(at(500 * MS), 0..200);
    pair.world.run_until(at(1500 * MS));
    for (station, role) in pair.stations().zip([Role::Primary, Role::Backup]) {
        let roles = station.core().service(0).roles().filter(|since| since.epoch == 2);
        let roles: Vec<_> = roles.map(|since| since.role).collect();
        assert_eq!(roles, [role], "a node had another role in epoch 2");
    }
    let takeover = &pair.backup().core().service(0).takeovers()[0];
    let lasted = takeover.decided.since(takeover.declared);
    assert!(lasted > 2 * agent_timeout, "{lasted:?}");
    finish_whole(&mut pair);
}

/// A cut of all cables of the primary ended. An outside host answered the primary before the other node's next heartbeat came. So the
/// primary spoke too, in the same epoch, and continued connections that the other node had continued already. A client whose reply was lost
/// then waited for ever.
#[test]
fn a_cut_that_ends_makes_no_second_voice() {
    for phase in 0..20 {
        let mut config = SimPairConfig::quiet(11, RestartPolicy::Http);
        config.own_path = Some(config.lan.clone());
        // With its margin, this lease ends between two heartbeats. The claim's questions then fall between heartbeats.
        config.lease = 294 * MS;
        let mut pair = SimPair::new(&config);
        pair.connect(at(100 * MS), get(3_000_000));
        let (lan, beats, own_path) = (pair.lan, pair.heartbeats, pair.own_path);
        let (begin, end) = (200 * MS, 800 * MS + MS * phase);
        pair.cut(lan, at(begin), at(end));
        pair.cut(beats, at(begin), at(end));
        pair.cut(own_path, at(Duration::ZERO), at(end));
        finish_whole(&mut pair);
        let roles = pair
            .stations()
            .map(|station| station.core().service(0).role_and_epoch());
        let roles: Vec<_> = roles.collect();
        assert_eq!(roles, [(Role::Backup, 4), (Role::Primary, 4)], "{end:?}");
    }
}
