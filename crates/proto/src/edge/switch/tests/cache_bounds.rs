//! The cache of all strings is bounded, and holds nothing useless for long.

use super::*;

/// Two edges that always cache, after their first heartbeats.
fn caching(change: impl FnOnce(&mut EdgeConfig)) -> TwoEdges {
    let mut config = config();
    config.recovery.caching_after = 0;
    change(&mut config);
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world
}

fn copy(world: &mut TwoEdges, string: usize, client: u16) {
    let now = world.now;
    let edge = &mut world.sides[0].edge;
    edge.handle_copy(now, string, EdgeDirection::Entering, &data(client, 1));
}

/// Packets that the first edge holds of each string.
fn held(world: &TwoEdges) -> Vec<usize> {
    let view = world.sides[0].edge.view(world.now);
    view.iter().map(|string| string.cached_packets).collect()
}

#[test]
fn the_strings_share_one_bound() {
    let mut world = caching(|config| {
        config.recovery.cache.max_packets = 3;
        config.delay = Duration::from_secs(10);
    });
    for (string, client) in [(0, 7), (1, 8), (0, 9), (1, 10)] {
        copy(&mut world, string, client);
    }
    assert_eq!(held(&world), [2, 1]);
    let view = world.sides[0].edge.view(world.now);
    let lost: Vec<_> = view
        .iter()
        .map(|string| (string.cache_lost, string.cache_dropped_connections))
        .collect();
    assert_eq!(lost, [(0, 0), (1, 1)]);
    // A second packet of an older connection: the newest connection, which is of the other string, is dropped.
    world.passes[1] = [false; 2];
    world.run(50);
    assert_eq!(world.sides[0].phases(world.now), [Up, Failing]);
    let now = world.now;
    let edge = &mut world.sides[0].edge;
    edge.handle_copy(now, 1, EdgeDirection::Entering, &data(8, 5));
    assert_eq!(held(&world), [1, 2]);
    assert_eq!(world.sides[0].edge.view(now)[0].cache_dropped_connections, 1);
}

#[test]
fn packets_that_are_never_acknowledged_do_not_stay() {
    let mut world = caching(|_| {});
    copy(&mut world, 0, 7);
    world.run(11_500);
    copy(&mut world, 0, 8);
    world.run(7_900);
    assert_eq!(held(&world), [2, 0]);
    world.run(300);
    assert_eq!(held(&world), [1, 0], "the first has been held since 0.5 s");
    world.run(10_000);
    assert_eq!(held(&world), [0, 0]);
}

#[test]
fn packets_of_a_failing_string_stay() {
    let mut world = caching(|config| config.delay = Duration::from_secs(40));
    copy(&mut world, 0, 7);
    world.passes[0] = [false; 2];
    world.run(100);
    assert_eq!(world.phases(), [[Failing, Up], [Failing, Up]]);
    copy(&mut world, 0, 8);
    copy(&mut world, 1, 9);
    world.run(35_000);
    assert_eq!(held(&world), [2, 0]);
    world.run(6_000);
    assert_eq!(world.sides[0].sent, [(Some(1), 1); 2]);
}
