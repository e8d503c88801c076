//! A connection goes on in another host, in the middle of a transfer.

use std::time::Duration;

use crate::scenario::{MS, RoutedNetwork, any_config, at, exchange, rough_link, wrapping};
use steadfast_sim::exchange::{Close, Exchange};
use steadfast_sim::host::Host;
use steadfast_sim::link::LinkConfig;
use steadfast_sim::tcp::{EndpointState, Restore, TcpConfig, TcpEndpoint};
use steadfast_sim::world::{NodeId, World};

const OUTAGE: Duration = Duration::from_millis(100);
const RUN: Duration = Duration::from_secs(2_000);

/// A change to the exported connection before it is restored.
type RestoreChange = fn(&mut Restore);

/// Lets a transfer run until one side has received `after` bytes, takes the server's connection out, cuts the server's
/// power, and restores the connection in the spare host after `outage`. Packets that were on the way to the server are
/// lost.
fn take_over(scenario: &mut RoutedNetwork, after: u64, outage: Duration, change: RestoreChange) {
    let (client, server, spare) = (scenario.client, scenario.server, scenario.spare);
    let running = scenario.world.run_while(at(RUN), |world| {
        received(world, client).max(received(world, server)) < after
    });
    assert!(!running, "the transfer stopped before {after} bytes");
    let (endpoint, app) = scenario.world.with(server, |host: &mut Host, _| {
        let (id, _) = host.endpoints().next().unwrap();
        host.take(id).unwrap()
    });
    scenario.world.power_off(server);
    scenario.world.run_until(scenario.world.now() + outage);
    let mut restore = endpoint.export(scenario.world.now()).unwrap();
    change(&mut restore);
    let tcp = scenario.config.tcp.clone();
    scenario.switch_to_spare();
    scenario.world.with(spare, |host: &mut Host, now| {
        let restored = TcpEndpoint::restore(tcp, &restore, now).unwrap();
        host.adopt(now, restored, app);
    });
}

/// How many bytes the first application of a host has received.
fn received(world: &World, node: NodeId) -> u64 {
    let host: &Host = world.node(node);
    let id = host.endpoints().next().map(|(id, _)| id);
    id.map_or(0, |id| host.app::<Exchange>(id).unwrap().received())
}

fn assert_complete(scenario: &RoutedNetwork, context: &str) {
    for node in [scenario.client, scenario.spare] {
        let (id, app) = scenario.first::<Exchange>(node);
        let endpoint = scenario.host(node).endpoint(id).unwrap();
        assert!(app.is_complete(), "{app:?} {:?}, {context}", endpoint.state());
    }
}

#[test]
fn transfers_go_on_after_a_restore_whatever_the_network_does() {
    for seed in 0..300 {
        let (wan, tcp) = (rough_link(seed), any_config(seed));
        let initial = seed.is_multiple_of(2).then(wrapping);
        let (up, down) = [(0, 150_000), (150_000, 0), (90_000, 90_000)][usize::try_from(seed % 3).unwrap()];
        let mut scenario = RoutedNetwork::new(seed, &wan, &tcp, initial);
        // Neither end closes the connection, because only an established connection can be exported.
        let (client, server) = exchange(up, down, Close::Never, Close::Never);
        scenario.serve(move || server.clone());
        scenario.connect(client);
        let outage = [Duration::ZERO, 50 * MS, 700 * MS][usize::try_from(seed / 3 % 3).unwrap()];
        take_over(&mut scenario, 10_000 + seed * 200, outage, |_| {});
        scenario.world.run_until(at(RUN));
        assert_complete(&scenario, &format!("seed {seed}, {wan:?}, {tcp:?}"));
    }
}

/// A path with a round trip of 10 ms, 50 Mbit/s, and no loss. The receive buffer limits what is in flight, so that all of it has arrived
/// after [`OUTAGE`].
fn steady(up: u64, down: u64, client: Close, server: Close) -> RoutedNetwork {
    let wan = LinkConfig {
        rate_bits_per_s: Some(50_000_000),
        delay: 5 * MS,
        ..LinkConfig::default()
    };
    let tcp = TcpConfig {
        receive_buffer: 150_000,
        ..TcpConfig::default()
    };
    let mut scenario = RoutedNetwork::new(4, &wan, &tcp, None);
    let (client, server) = exchange(up, down, client, server);
    scenario.serve(move || server.clone());
    scenario.connect(client);
    scenario
}

/// Takes over a download after 1.2 MB; returns how many bytes the client gets in `time` after that.
fn downloaded(change: RestoreChange, time: Duration) -> u64 {
    let mut scenario = steady(0, 20_000_000, Close::Never, Close::Never);
    take_over(&mut scenario, 1_200_000, OUTAGE, change);
    let before = received(&scenario.world, scenario.client);
    scenario.world.run_until(scenario.world.now() + time);
    let (_, app) = scenario.first::<Exchange>(scenario.client);
    assert_eq!(app.wrong_at(), None);
    app.received() - before
}

#[test]
fn a_restored_connection_is_closed_in_order() {
    let mut scenario = steady(3_000_000, 3_000_000, Close::AfterPeer, Close::AfterSending);
    take_over(&mut scenario, 100_000, OUTAGE, |_| {});
    scenario.world.run_until(at(Duration::from_secs(30)));
    assert_complete(&scenario, "closing");
    let (id, _) = scenario.first::<Exchange>(scenario.client);
    let client = scenario.host(scenario.client).endpoint(id).unwrap();
    assert_eq!((client.state(), client.failure()), (EndpointState::Closed, None)); // the server ended first
    let (id, _) = scenario.first::<Exchange>(scenario.spare);
    let server = scenario.host(scenario.spare).endpoint(id).unwrap();
    assert_eq!(server.state(), EndpointState::TimeWait);
}

#[test]
fn without_the_window_scale_a_download_crawls() {
    let second = Duration::from_secs(1);
    assert!(downloaded(|_| {}, second) > 20 * downloaded(|restore| restore.window_scale = None, second));
}

#[test]
fn without_the_window_probe_a_restored_download_waits_for_its_timeout() {
    let without: RestoreChange = |restore| restore.window_probe = false;
    assert_eq!(downloaded(without, 2_900 * MS), 0); // the first timeout of a restored endpoint is 3 s
    assert!(downloaded(without, 3_100 * MS) > 0);
    assert!(downloaded(|_| {}, 100 * MS) > 0);
}

#[test]
fn output_that_is_not_loaded_as_sent_leaves_at_once() {
    // The client has everything that was sent, although not all its acknowledgements came back. The change restores the connection as if
    // all these acknowledgements had come.
    let exact: RestoreChange = |restore| {
        restore.snd_una = restore.snd_una + u32::try_from(restore.sent.len()).unwrap();
        restore.sent.clear();
        restore.window_probe = false;
    };
    assert!(downloaded(exact, 12 * MS) > 0);
}

#[test]
fn a_timestamp_behind_the_old_clock_is_dropped_by_the_peer_one_ahead_is_not() {
    let behind: RestoreChange =
        |restore| restore.timestamp = restore.timestamp.map(|value| value.wrapping_sub(10_000));
    let ahead: RestoreChange =
        |restore| restore.timestamp = restore.timestamp.map(|value| value.wrapping_add(100_000));
    assert_eq!(downloaded(behind, Duration::from_secs(8)), 0);
    assert!(downloaded(ahead, Duration::from_secs(1)) > 1_000_000);
}

#[test]
fn a_client_that_is_ahead_of_what_was_loaded_is_lost() {
    let forgets: RestoreChange = |restore| {
        restore.sent.truncate(restore.sent.len() / 4); // the client has more than this
        restore.unsent.clear();
    };
    assert_eq!(downloaded(forgets, Duration::from_secs(60)), 0);
}
