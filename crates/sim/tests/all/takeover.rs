//! Takeovers in pairs whose options are drawn from a seed.

use crate::seeds::*;
use proto::follower::RestartPolicy;
use std::net::SocketAddr;
use std::time::Duration;
use steadfast_sim::pair::application::ReadPace;
use steadfast_sim::pair::{FullLogPolicy, SimClient, SimPair, SimPairConfig, echo};

/// Number of pairs of most tests. The environment variable SEED=N plays only the pair of seed N.
const SEEDS: u64 = 300;

fn any(seed: u64, tweak: impl FnOnce(&mut Draw, &mut SimPairConfig)) -> (SimPair, Draw) {
    let mut draw = Draw::new(seed);
    let policy = draw.pick(&[
        RestartPolicy::Http,
        RestartPolicy::Replica,
        RestartPolicy::Replay,
        RestartPolicy::Snapshot,
    ]);
    let mut config = draw.config(seed, policy);
    tweak(&mut draw, &mut config);
    let count = 1 + draw.below(8);
    let mut pair = drawn_pair(&mut draw, &config, count, 200 * MS);
    if std::env::var_os("SEED").is_some() {
        pair.world.record();
        println!("{config:#?}");
    }
    (pair, draw)
}

#[test]
fn power_off() {
    for_seeds("power_off", 0..SEEDS, |seed, _| {
        let (mut pair, mut draw) = any(seed, |_, _| {});
        let moment = START + draw.time(Duration::from_millis(500));
        pair.power_off(at(moment));
        let complaints = pair.run(at(LIMIT));
        (pair, complaints)
    });
}

/// A replica follows a connection from the point where the connection turns out not to be HTTP.
#[test]
fn opaque() {
    let mut by_replicas = 0;
    for_seeds("opaque", 0..SEEDS / 2, |seed, _| {
        let mut draw = Draw::new(seed);
        let mut config = draw.config(seed, RestartPolicy::Replica);
        config.opaque = true;
        let count = 1 + draw.below(8);
        let mut pair = drawn_pair(&mut draw, &config, count, 200 * MS);
        let moment = at(START + draw.time(Duration::from_millis(500)));
        pair.power_off(moment);
        pair.world.run_until(moment);
        by_replicas += pair.backup().machine().replicas();
        let complaints = pair.run(at(LIMIT));
        (pair, complaints)
    });
    assert!(
        by_replicas > 0 || std::env::var_os("SEED").is_some(),
        "no connection was followed by a replica"
    );
}

/// When a long reply is cut, the survivor's application is asked only for the rest of the reply.
#[test]
fn rests() {
    let mut partial = 0;
    for_seeds("rests", 0..SEEDS / 10, |seed, _| {
        let mut draw = Draw::new(seed);
        let config = draw.config(seed, RestartPolicy::Http);
        let mut pair = SimPair::new(&config);
        for _ in 0..1 + draw.below(3) {
            let begin = at(START + draw.time(200 * MS));
            pair.connect(begin, draw.talk_of(RestartPolicy::Http, 3, 400_000, false));
        }
        pair.power_off(at(START + draw.time(Duration::from_millis(800))));
        let complaints = pair.run(at(LIMIT));
        partial += pair.ledger().partial();
        (pair, complaints)
    });
    assert!(
        partial > 0 || std::env::var_os("SEED").is_some(),
        "no application was asked for the rest of a reply"
    );
}

/// Uploads are longer than the part of a log that memory may hold. The rest goes to files, and the application is fed from these files.
#[test]
fn spilled() {
    const MEMORY: u64 = 150_000;
    let mut spilled = 0;
    for_seeds("spilled", 0..SEEDS / 10, |seed, _| {
        let mut draw = Draw::new(seed);
        let policy = draw.pick(&[
            RestartPolicy::Http,
            RestartPolicy::Replica,
            RestartPolicy::Replay,
            RestartPolicy::Snapshot,
        ]);
        let mut config = draw.config(seed, policy);
        config.log_limit = (MEMORY, FullLogPolicy::Spilled);
        // The bytes under way in either direction may exceed `MEMORY`.
        config.client_tcp.receive_buffer = draw.pick(&[16_384, 1 << 20]);
        config.server_tcp.receive_buffer = draw.pick(&[65_536, 1 << 20]);
        let mut pair = SimPair::new(&config);
        for _ in 0..1 + draw.below(3) {
            let begin = at(START + draw.time(200 * MS));
            pair.connect(begin, draw.talk_of(policy, 2, 1_000_000, false));
        }
        let moment = at(START + draw.time(Duration::from_millis(800)));
        pair.power_off(moment);
        pair.world.run_until(moment);
        spilled += pair.backup().spilled();
        let mut complaints = pair.run(at(LIMIT));
        let lost = pair.backup().machine().lost().iter();
        complaints.extend(
            lost.filter(|(_, reason)| reason.contains("limit"))
                .map(|x| format!("{x:?}")),
        );
        (pair, complaints)
    });
    assert!(
        spilled > 0 || std::env::var_os("SEED").is_some(),
        "nothing was spilled"
    );
}

/// Replicas read more slowly than their clients send. The clients are slowed, and no connection is given up.
#[test]
fn slowed() {
    const MEMORY: u64 = 150_000;
    let mut capped = 0;
    for_seeds("slowed", 0..SEEDS / 10, |seed, _| {
        let mut draw = Draw::new(seed);
        let mut config = draw.config(seed, RestartPolicy::Replica);
        config.log_limit = (MEMORY, FullLogPolicy::Slowed);
        config.server_tcp.receive_buffer = draw.pick(&[30_000, 65_536]);
        config.replica_pace = Some(ReadPace {
            bytes: 1000 + draw.below(3000) as usize,
            every: MS * 2,
        });
        let mut pair = SimPair::new(&config);
        for _ in 0..1 + draw.below(3) {
            let begin = at(START + draw.time(200 * MS));
            let mut messages = draw.messages(3, 1_000_000);
            for (message, _) in &mut messages {
                // Slowing the client does not help if the primary sends more than the replica, so replies are short.
                (message.echo, message.download) = (false, message.download.min(20_000));
            }
            pair.connect(
                begin,
                SimClient::Echo(echo::EchoClient::new(messages, false, None)),
            );
        }
        let moment = at(START + draw.time(Duration::from_millis(800)));
        if draw.below(4) > 0 {
            pair.power_off(moment);
        }
        pair.world.run_until(moment);
        capped += pair.backup().capped();
        let mut complaints = pair.run(at(LIMIT));
        let lost = pair.backup().machine().lost().iter();
        complaints.extend(
            lost.filter(|(_, reason)| reason.contains("limit") || reason.contains("behind"))
                .map(|lost| format!("{lost:?}")),
        );
        (pair, complaints)
    });
    assert!(
        capped > 0 || std::env::var_os("SEED").is_some(),
        "no client was slowed"
    );
}

#[test]
fn cut() {
    for_seeds("cut", 0..SEEDS, |seed, _| {
        let (mut pair, mut draw) = any(seed, |_, config| config.own_path = Some(config.path.clone()));
        let moment = START + draw.time(Duration::from_millis(500));
        let back = draw.time(Duration::from_secs(3)) + MS * 50;
        let (lan, beats) = (pair.lan, pair.heartbeats);
        pair.cut(lan, at(moment), at(moment + back));
        pair.cut(beats, at(moment), at(moment + back));
        // Until the cut ends, the primary cannot claim the VIP. After the cut, it comes back as the wire.
        let own_path = pair.own_path;
        pair.cut(own_path, at(Duration::ZERO), at(moment + back));
        let complaints = pair.run(at(LIMIT));
        (pair, complaints)
    });
}

#[test]
fn false_alarm() {
    for_seeds("false_alarm", 0..SEEDS, |seed, _| {
        let (mut pair, mut draw) = any(seed, |_, config| config.own_path = Some(config.path.clone()));
        let moment = START + draw.time(Duration::from_millis(500));
        let back = draw.time(Duration::from_secs(3)) + MS * 50;
        let beats = pair.heartbeats;
        pair.cut(beats, at(moment), at(moment + back));
        // Until the cut ends, the primary cannot claim the VIP. After the cut, it comes back as the wire.
        let own_path = pair.own_path;
        pair.cut(own_path, at(Duration::ZERO), at(moment + back));
        let complaints = pair.run(at(LIMIT));
        (pair, complaints)
    });
}

#[test]
fn paused() {
    for_seeds("paused", 0..SEEDS, |seed, _| {
        let (mut pair, mut draw) = any(seed, |_, _| {});
        let moment = START + draw.time(Duration::from_millis(500)) + 100 * MS;
        pair.power_off(at(moment));
        pair.pause_agent(at(moment - MS * 100 + draw.time(MS * 110)), 100 * MS);
        let complaints = pair.run(at(LIMIT));
        (pair, complaints)
    });
}

#[test]
fn handshake() {
    for_seeds("handshake", 0..SEEDS, |seed, _| {
        let (mut pair, mut draw) = any(seed, |draw, config| {
            config.path.loss = 0.06;
            config.path.delay = draw.pick(&[MS, 10 * MS]);
        });
        let moment = START + draw.time(Duration::from_millis(220));
        pair.power_off(at(moment));
        let complaints = pair.run(at(LIMIT));
        (pair, complaints)
    });
}

#[test]
fn clean_lan() {
    for_seeds("clean_lan", 0..SEEDS, |seed, _| {
        let (mut pair, mut draw) = any(seed, |_, config| {
            config.lan = SimPairConfig::quiet(0, RestartPolicy::Http).lan;
            config.ring_bytes = 64 << 20;
        });
        let moment = START + draw.time(Duration::from_millis(500));
        pair.power_off(at(moment));
        let mut complaints = pair.run(at(LIMIT));
        let lost = pair.backup().machine().lost().iter();
        let cut = |reason: &str| reason.ends_with("must not be executed again");
        complaints.extend(lost.filter(|(_, reason)| !cut(reason)).map(|x| format!("{x:?}")));
        (pair, complaints)
    });
}

/// Some connections lose their server process, and the service goes on. In half of the pairs, the primary loses its power a little later.
#[test]
fn worker() {
    for_seeds("worker", 0..SEEDS, |seed, _| {
        let (mut pair, mut draw) = any(seed, |_, _| {});
        let moment = START + draw.time(Duration::from_millis(500));
        let orphans: Vec<usize> = (0..8).filter(|_| draw.chance(0.5)).collect();
        pair.kill_worker(at(moment), orphans);
        if draw.chance(0.5) {
            pair.power_off(at(moment + draw.time(Duration::from_millis(200))));
        }
        let complaints = pair.run(at(LIMIT));
        (pair, complaints)
    });
}

/// Some connections move from the living primary to its backup. In half of the pairs, the primary loses its power at about the same time.
#[test]
fn migration() {
    let mut moved = 0;
    for_seeds("migration", 0..SEEDS, |seed, _| {
        let (mut pair, mut draw) = any(seed, |_, _| {});
        let moment = START + draw.time(Duration::from_millis(500));
        let movers: Vec<usize> = (0..8).filter(|_| draw.chance(0.5)).collect();
        pair.migrate(at(moment), movers, Duration::from_millis(300));
        if draw.chance(0.5) {
            pair.power_off(at(moment + draw.time(Duration::from_millis(20))));
        }
        let complaints = pair.run(at(LIMIT));
        moved += pair.backup().machine().migrated();
        (pair, complaints)
    });
    println!("{moved} connections moved");
    assert!(
        moved > 0 || std::env::var_os("SEED").is_some(),
        "no connection moved"
    );
}

/// Some connections move to the backup. In half of the pairs, the primary loses its power later, and in the others, connections move back.
#[test]
fn migration_there_and_back() {
    let (mut there, mut back) = (0, 0);
    for_seeds("migration_there_and_back", 0..SEEDS, |seed, _| {
        let (mut pair, mut draw) = any(seed, |_, _| {});
        let moment = START + draw.time(Duration::from_millis(400));
        let movers: Vec<usize> = (0..8).filter(|_| draw.chance(0.7)).collect();
        pair.migrate(at(moment), movers.clone(), Duration::from_millis(300));
        let later = moment + draw.time(Duration::from_millis(200));
        if draw.chance(0.5) {
            pair.power_off(at(later));
        } else {
            pair.migrate_back(at(later), movers.clone(), Duration::from_millis(300));
            pair.migrate(at(later + 100 * MS), movers, Duration::from_millis(300));
        }
        let complaints = pair.run(at(LIMIT));
        there += pair.backup().machine().migrated();
        back += pair.primary().machine().migrated();
        (pair, complaints)
    });
    println!("{there} connections moved, {back} moved back");
    assert!(
        there > 0 && back > 0 || std::env::var_os("SEED").is_some(),
        "{there} {back}"
    );
}

/// The primary fails, comes back as the wire, and learns the connections that the survivor relays. Then the survivor fails.
#[test]
fn kept_input() {
    let mut sums = [0; 4];
    for_seeds("kept_input", 0..SEEDS / 5, |seed, _| {
        let mut draw = Draw::new(seed);
        let mut config = draw.config(seed, RestartPolicy::Replay);
        config.keep_input = true;
        config.own_path = Some(config.path.clone());
        if draw.chance(0.3) {
            config.log_limit = (150_000, FullLogPolicy::Spilled);
        }
        let mut pair = SimPair::new(&config);
        if std::env::var_os("SEED").is_some() {
            pair.world.record();
            println!("{config:#?}");
        }
        for _ in 0..1 + draw.below(5) {
            let begin = at(START + draw.time(200 * MS));
            let (count, len_max) = (20 + draw.below(60), draw.pick(&[300, 5_000, 60_000]));
            pair.connect(begin, draw.talk_of(RestartPolicy::Replay, count, len_max, false));
        }
        let first = START + draw.time(Duration::from_millis(500));
        let back = first + Duration::from_millis(500) + draw.time(500 * MS);
        let second = back + Duration::from_secs(1) + draw.time(Duration::from_secs(2));
        pair.fail_and_return(at(first), at(back));
        pair.world.run_until(at(second));
        let protected = pair.primary().protected();
        let fates = [
            pair.backup().machine().keeps_inputs(),
            usize::try_from(pair.primary().joined()).expect("few"),
            protected.len(),
        ];
        pair.fail_backup();
        pair.run(at(LIMIT));
        let complaints = kept_input_complaints(&pair, &protected);
        let restored = pair.primary().machine().relay_endings().count();
        for (sum, fate) in sums.iter_mut().zip(fates.into_iter().chain([restored])) {
            *sum += fate;
        }
        (pair, complaints)
    });
    let [kept, joined, protected, restored] = sums;
    println!("{kept} kept, {joined} joined, {protected} protected, {restored} relayed a second time");
    assert!(
        std::env::var_os("SEED").is_some() || restored > 80 && protected * 10 > kept * 9,
        "{sums:?}"
    );
}

/// The broken rules of a run with two takeovers. The connections of the clients `protected` must survive. Others may be lost, because they were
/// not protected at the second takeover: they began while a node was alone, or were silent since the other node came back.
fn kept_input_complaints(pair: &SimPair, protected: &[SocketAddr]) -> Vec<String> {
    let mut complaints = pair.judge().violations().to_vec();
    let lost = || pair.stations().flat_map(|station| station.machine().lost());
    for index in 0..pair.count() {
        let client = SimPair::client_of(index);
        let Some((talk, endpoint)) = pair.talk(index) else {
            complaints.push(format!("connection {index} was never opened"));
            continue;
        };
        let cut = "the stream ended";
        if let Some(wrong) = talk.wrong().filter(|wrong| !wrong.starts_with(cut)) {
            complaints.push(format!("{client}: {wrong}"));
        }
        let loss = lost().find(|(lost, _)| *lost == client);
        let is_over = talk.is_complete() || endpoint.failure().is_some();
        match loss {
            Some((_, reason)) if !is_over => complaints.push(format!("{client} waits, lost: {reason}")),
            Some((_, reason)) if protected.contains(&client) && !reason.starts_with("the client may ") => {
                complaints.push(format!("{client} was protected, and was lost: {reason}"));
            }
            None if protected.contains(&client) && !talk.is_complete() => {
                complaints.push(format!("{client} was protected: {:?}", endpoint.state()));
            }
            Some(_) | None => {}
        }
    }
    complaints
}
