//! An edge's agent is replaced by another one.

use super::*;

/// If an edge's agent is replaced, only the cache is lost: a failed string stays failed, and windows stay capped, without a gap.
#[test]
fn a_successor_keeps_failed_strings_and_caps() {
    let config = config();
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(3000);
    assert!(world.sides[0].caps[1].is_some());
    world.sides[0].caps[1] = Some(30_000);
    world.sides[0].restart(&config, world.now);
    // The cap stays until the number of connections is known.
    assert_eq!(world.sides[0].edge.view(world.now)[1].cap, Some(30_000));
    for _ in 0..400 {
        world.run(1);
        assert_eq!(world.phases()[0][0], StringPhase::Down);
        assert_eq!(world.sides[0].steering[0], StringSteering::Down);
        assert!(world.sides[0].caps[1].is_some());
    }
    world.passes[0] = [true; 2];
    world.run(3000);
    assert_eq!(world.phases(), [[StringPhase::Up; 2]; 2]);
    assert_eq!(world.sides[0].caps, [None; 2]);
}

/// If a string fails while an edge has no agent, its flows still move only after the delay and the command.
#[test]
fn a_string_that_fails_between_two_agents_waits_for_the_command() {
    let config = EdgeConfig {
        delay: Duration::from_millis(200),
        has_command: true,
        ..config()
    };
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes[0] = [false; 2];
    world.sides[0].restart(&config, world.now);
    world.run(150);
    assert_eq!(world.phases()[0][0], StringPhase::Failing);
    assert_eq!(world.sides[0].commands, [0]);
    world.sides[0].edge.handle_command(world.now, 0, true);
    world.run(20);
    assert_eq!(
        world.phases()[0][0],
        StringPhase::Failing,
        "the delay is not over"
    );
    world.run(100);
    assert_eq!(world.phases()[0][0], StringPhase::Down);
}

/// An agent that ends while a string's packets are held leaves the takeover to its successor.
#[test]
fn a_successor_completes_a_takeover() {
    let config = EdgeConfig {
        has_command: true,
        ..config()
    };
    let mut world = TwoEdges::new(&config);
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(100);
    assert_eq!(world.sides[0].steering[0], StringSteering::Held);
    world.sides[0].commands.clear();
    world.sides[0].restart(&config, world.now);
    world.run(20);
    assert_eq!(world.phases()[0][0], StringPhase::Failing);
    assert_eq!(
        world.sides[0].commands,
        [0],
        "nobody knows whether the first run succeeded"
    );
    world.sides[0].edge.handle_command(world.now, 0, true);
    world.run(20);
    assert_eq!(world.phases()[0][0], StringPhase::Down);
    assert_eq!(world.sides[0].moves, [0]);
}

/// An agent that is configured without rate control removes the caps of an earlier agent.
#[test]
fn a_successor_without_rate_control_caps_nothing() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    world.passes[0] = [false; 2];
    world.run(1000);
    assert!(world.sides[0].caps[1].is_some());
    let config = EdgeConfig {
        cap: None,
        ..config()
    };
    world.sides[0].restart(&config, world.now);
    world.run(1);
    assert_eq!(world.sides[0].caps, [None; 2]);
}

/// The time after which a string returns doubles with each failure, also if an agent is replaced in between.
#[test]
fn a_successor_knows_the_earlier_failures() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    for hold in [1000, 2000, 4000] {
        world.passes[0] = [false; 2];
        world.run(100);
        assert_eq!(world.phases(), [[Down, Up], [Down, Up]]);
        for side in &mut world.sides {
            side.restart(&config(), world.now);
        }
        world.run(100);
        world.passes[0] = [true; 2];
        world.run(hold - 50);
        assert_eq!(world.phases(), [[Down, Up], [Down, Up]], "{hold}");
        world.run(100);
        assert_eq!(world.phases(), [[Up, Up], [Up, Up]], "{hold}");
    }
}

/// An agent that is replaced while all strings work counts no failure.
#[test]
fn a_successor_counts_no_failure_of_its_own() {
    let mut world = TwoEdges::new(&config());
    world.run(500);
    for side in &mut world.sides {
        side.restart(&config(), world.now);
    }
    world.run(500);
    for side in &world.sides {
        assert_eq!(
            side.kept.iter().map(|kept| kept.last_loss).collect::<Vec<_>>(),
            [None; 2]
        );
    }
}
