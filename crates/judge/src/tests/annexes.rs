//! Connections that live on annexes.

use super::*;

const MAC_ANNEX: [u8; 6] = [2, 0, 0, 0, 0, 0x12];
/// The wire gets a segment from the annex and sends it on.
const FROM_ANNEX: PacketRoute = &[
    (Point::NodeB, MAC_ANNEX, MAC_B),
    (Point::NodeB, MAC_B, MAC_ROUTER),
    (Point::Router, MAC_B, MAC_ROUTER),
    (Point::Client, [0; 6], [0; 6]),
];

/// The primary serves a connection until it moves to the annex, which sends three more bytes. Returns the run and the time of the move.
fn moved() -> (SyntheticRun, u64) {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    let moved_ns = run.fault();
    run.say(
        true,
        FROM_ANNEX,
        Say {
            at: 3,
            data: b"der",
            ack: 5,
            ..SAY
        },
    );
    (run, moved_ns)
}

fn expected(run: &SyntheticRun, moves_ns: &[u64]) -> Expectations {
    Expectations {
        annexes: vec![MAC_ANNEX],
        role_changes_ns: moves_ns.to_vec(),
        speaking: Speaking::ForEachConnection,
        ..run.expected(None)
    }
}

#[test]
fn an_annex_speaks_through_the_wire_after_a_move() {
    let (mut run, moved_ns) = moved();
    let back_ns = run.fault();
    run.primary(Say {
        at: 6,
        data: b"ful",
        ack: 5,
        ..SAY
    });
    let verdict = run.judge(&expected(&run, &[moved_ns, back_ns]));
    assert_eq!(verdict.violations, Vec::new());
    let reigns: Vec<_> = verdict.reigns.iter().map(|reign| reign.node).collect();
    assert_eq!(reigns, [0, 2, 0]);
    // Without the order to move, the annex is a second voice.
    let verdict = run.judge(&expected(&run, &[]));
    assert_eq!(verdict.violations[0].what, "from annex c while node a spoke");
}

#[test]
fn the_node_that_had_the_connection_must_not_be_heard_any_more() {
    let (mut run, moved_ns) = moved();
    run.primary(Say { at: 6, ack: 5, ..SAY });
    let verdict = run.judge(&expected(&run, &[moved_ns]));
    assert_eq!(verdict.violations[0].rule, JudgeRule::OneVoice);
    assert_eq!(verdict.violations[0].what, "from node a while annex c spoke");
}

/// The wire has failed: the primary sends the annex's segments to the router, and to a new wire when there is one.
#[test]
fn a_primary_that_carries_is_no_second_voice() {
    let alone: PacketRoute = &[
        (Point::NodeA, MAC_ANNEX, MAC_A),
        (Point::NodeA, MAC_A, MAC_ROUTER),
        (Point::Router, MAC_A, MAC_ROUTER),
        (Point::Client, [0; 6], [0; 6]),
    ];
    let with_a_wire: PacketRoute = &[
        (Point::NodeA, MAC_ANNEX, MAC_A),
        (Point::NodeA, MAC_A, MAC_B),
        (Point::NodeB, MAC_A, MAC_B),
        (Point::NodeB, MAC_B, MAC_ROUTER),
        (Point::Router, MAC_B, MAC_ROUTER),
        (Point::Client, [0; 6], [0; 6]),
    ];
    for route in [alone, with_a_wire] {
        let (mut run, moved_ns) = moved();
        let said = Say {
            at: 6,
            data: b"ful",
            ack: 5,
            ..SAY
        };
        run.say(true, route, said);
        let verdict = run.judge(&expected(&run, &[moved_ns]));
        let is_second = |broken: &&Finding| broken.rule == JudgeRule::OneVoice;
        assert_eq!(verdict.violations.iter().find(is_second), None);
        // Without the annex's frame, the segment is the primary's own.
        let (mut run, moved_ns) = moved();
        run.say(true, &route[1..], said);
        let verdict = run.judge(&expected(&run, &[moved_ns]));
        assert!(verdict.violations.iter().any(|broken| is_second(&broken)));
    }
}

#[test]
fn an_annex_must_not_speak_past_the_wire() {
    let (mut run, moved_ns) = moved();
    let past_the_wire: PacketRoute = &[(Point::Router, MAC_ANNEX, MAC_ROUTER)];
    run.say(true, past_the_wire, Say { at: 6, ack: 5, ..SAY });
    let broken = run.broken(&expected(&run, &[moved_ns]));
    assert_eq!(broken, [JudgeRule::ThroughWire]);
}

#[test]
fn the_wire_may_wake_the_client_but_not_acknowledge_more_than_the_annex() {
    let wake = |ack| Say { at: 6, ack, ..SAY };
    for (ack, broken) in [(5, vec![]), (6, vec![JudgeRule::OneVoice])] {
        let (mut run, moved_ns) = moved();
        run.client(Say {
            at: 5,
            data: b"again",
            ack: 6,
            ..SAY
        });
        run.survivor(wake(ack));
        assert_eq!(run.broken(&expected(&run, &[moved_ns])), broken, "{ack}");
    }
}
