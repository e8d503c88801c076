//! Bytes arrive as they were sent, whatever the network does.

use std::time::Duration;

use crate::scenario::{MS, RoutedNetwork, any_config, at, exchange, rough_link, server_socket, wrapping};
use steadfast_sim::exchange::{Close, Exchange};
use steadfast_sim::host::Host;
use steadfast_sim::link::LinkConfig;
use steadfast_sim::tcp::{EndpointState, TcpConfig, TcpFailure};

/// Runs one exchange to its end and checks every byte and both ends' states.
fn transfer(seed: u64, wan: &LinkConfig, tcp: &TcpConfig, up: u64, down: u64) -> RoutedNetwork {
    let initial = seed.is_multiple_of(2).then(wrapping);
    let mut scenario = RoutedNetwork::new(seed, wan, tcp, initial);
    let (client, server) = exchange(up, down, Close::AfterSending, Close::AfterSending);
    scenario.serve(move || server.clone());
    scenario.connect(client);
    // The longest runs are those whose FIN is lost repeatedly. Each timeout of a FIN is at most 120 s.
    scenario.world.run_until(at(Duration::from_secs(2_000)));
    let context = || format!("seed {seed}, {wan:?}, {tcp:?}");
    for node in [scenario.client, scenario.server] {
        let (id, app) = scenario.first::<Exchange>(node);
        assert!(app.is_complete(), "{app:?}, {}", context());
        let endpoint = scenario.host(node).endpoint(id).unwrap();
        assert_eq!(endpoint.state(), EndpointState::Closed, "{}", context());
        // If every copy of the last FIN or of its acknowledgement is lost for a long time, the FIN's receiver has forgotten the connection,
        // and answers the next copy with a RST.
        let forgotten = endpoint.failure();
        assert!(
            matches!(forgotten, None | Some(TcpFailure::Reset)),
            "{forgotten:?}, {}",
            context()
        );
        assert_eq!(scenario.host(node).malformed(), 0);
    }
    scenario
}

#[test]
fn every_byte_arrives_both_ways_under_loss_reordering_and_duplication() {
    for seed in 0..300 {
        transfer(seed, &rough_link(seed), &any_config(seed), 120_000, 150_000);
    }
}

#[test]
fn a_large_transfer_uses_the_rate_of_the_link() {
    let wan = LinkConfig {
        rate_bits_per_s: Some(100_000_000),
        delay: 5 * MS,
        queue_packets: Some(100),
        ..LinkConfig::default()
    };
    // More than the 125 KB that the path holds, less than what would overflow the queue.
    let tcp = TcpConfig {
        receive_buffer: 200_000,
        ..TcpConfig::default()
    };
    let mut scenario = RoutedNetwork::new(3, &wan, &tcp, None);
    let (client, server) = exchange(0, 20_000_000, Close::AfterPeer, Close::AfterSending);
    scenario.serve(move || server.clone());
    let (id, _) = scenario.connect(client);
    let whole = 20_000_000 * 8 / 100; // µs on an empty link
    let node = scenario.client;
    let unfinished = scenario
        .world
        .run_while(at(Duration::from_micros(whole * 11 / 10)), |world| {
            let app: &Exchange = world.node::<Host>(node).app(id).unwrap();
            !app.is_complete()
        });
    let received = scenario.first::<Exchange>(node).1.received();
    assert!(!unfinished, "only {received} bytes in 110 % of the least time");
}

#[test]
fn many_connections_share_a_host() {
    let wan = LinkConfig {
        rate_bits_per_s: Some(50_000_000),
        delay: 2 * MS,
        loss: 0.01,
        ..LinkConfig::default()
    };
    let mut scenario = RoutedNetwork::new(5, &wan, &TcpConfig::default(), None);
    let (client, server) = exchange(5_000, 20_000, Close::AfterSending, Close::AfterSending);
    scenario.serve(move || server.clone());
    for _ in 0..100 {
        scenario.connect(client.clone());
    }
    scenario.world.run_until(at(Duration::from_secs(300)));
    for node in [scenario.client, scenario.server] {
        let host = scenario.host(node);
        assert_eq!(host.endpoints().count(), 100);
        for (id, _) in host.endpoints() {
            let app: &Exchange = host.app(id).unwrap();
            assert!(app.is_complete(), "{id:?} {app:?}");
        }
    }
}

#[test]
fn a_closed_port_refuses_and_a_silent_one_times_out() {
    let quiet = LinkConfig {
        delay: MS,
        ..LinkConfig::default()
    };
    let mut scenario = RoutedNetwork::new(1, &quiet, &TcpConfig::default(), None);
    let (app, _) = exchange(10, 10, Close::AfterSending, Close::AfterSending);
    let (refused, _) = scenario.connect(app.clone());
    scenario.world.run_until(at(10 * MS));
    let failure =
        |scenario: &RoutedNetwork, id| scenario.host(scenario.client).endpoint(id).unwrap().failure();
    assert_eq!(failure(&scenario, refused), Some(TcpFailure::Refused));
    scenario.world.power_off(scenario.server);
    let (silent, local) = scenario.connect(app);
    scenario.world.run_until(at(Duration::from_secs(126))); // the SYN times out after 1 + 2 + 4 + … + 64 = 127 s
    assert_eq!(failure(&scenario, silent), None);
    scenario.world.run_until(at(Duration::from_secs(128)));
    assert_eq!(failure(&scenario, silent), Some(TcpFailure::TimedOut));
    assert_eq!(scenario.host(scenario.client).find(local, server_socket()), None);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let run = |seed| {
        let wan = LinkConfig {
            rate_bits_per_s: Some(10_000_000),
            delay: 3 * MS,
            queue_packets: Some(20),
            loss: 0.03,
            reorder: 0.05,
            reorder_delay: 2 * MS,
            duplicate: 0.02,
            ..LinkConfig::default()
        };
        let mut scenario = RoutedNetwork::new(seed, &wan, &TcpConfig::default(), None);
        scenario.world.record();
        let (client, server) = exchange(30_000, 60_000, Close::AfterSending, Close::AfterPeer);
        scenario.serve(move || server.clone());
        for _ in 0..3 {
            scenario.connect(client.clone());
        }
        scenario.world.run_until(at(Duration::from_secs(100)));
        scenario.world.trace().to_owned()
    };
    let trace = run(11);
    assert!(trace.lines().count() > 1000, "{}", trace.lines().count());
    for word in [
        "[lost]",
        "[twice]",
        " S 0:0(0) win 65535 <mss 1460,sackOK,TS val",
        "sack ",
    ] {
        assert!(trace.contains(word), "no {word} in the trace");
    }
    assert_eq!(trace, run(11));
    assert_ne!(trace, run(12));
}
