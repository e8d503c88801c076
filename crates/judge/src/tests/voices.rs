//! Two nodes that speak at once.

use super::*;

#[test]
fn the_old_primary_must_not_be_heard_after_the_survivor() {
    // The wire's gate was not closed, so the wire releases a segment of the old primary.
    let (mut run, expected) = takeover(false);
    run.primary(Say {
        at: 9,
        ack: 10,
        ..SAY
    });
    assert_eq!(run.broken(&expected), [JudgeRule::OneVoice]);
    // The old primary sends a reset that bypasses the wire.
    let (mut run, expected) = takeover(false);
    run.say(
        true,
        PAST_THE_WIRE,
        Say {
            at: 9,
            flags: Flags::RST,
            ..SAY
        },
    );
    let verdict = run.judge(&expected);
    assert_eq!(verdict.violations[0].rule, JudgeRule::OneVoice);
    assert_eq!(verdict.violations[0].what, "from node a while node b spoke");
    assert_eq!(verdict.resets_to_client, 0, "both had closed");
}

#[test]
fn a_survivor_that_speaks_without_a_fault_is_a_second_voice() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    run.survivor(Say {
        at: 3,
        data: b"d",
        ack: 5,
        ..SAY
    });
    assert_eq!(run.broken(&run.expected(None)), [JudgeRule::OneVoice]);
    let early = run.expected(Some(run.now_ns));
    assert_eq!(run.broken(&early), [JudgeRule::OneVoice]);
}

/// The wire reduced the window in a segment of the primary. Later it sends the segment again with the original window.
#[test]
fn the_primarys_words_said_again_are_no_second_voice() {
    let words = |window| Say {
        at: 3,
        ack: 5,
        window,
        time: Some(100),
        ..SAY
    };
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    run.primary(words(600));
    run.survivor(words(600));
    let slowed = |run: &SyntheticRun| Expectations {
        may_slow: true,
        ..run.expected(None)
    };
    assert_eq!(run.broken(&slowed(&run)), []);
    assert_eq!(
        run.broken(&run.expected(None)),
        [JudgeRule::OneVoice],
        "nobody is to be slowed"
    );
    for other in [
        words(602),
        Say { ack: 6, ..words(600) },
        Say {
            time: Some(101),
            ..words(600)
        },
    ] {
        let mut run = SyntheticRun::new();
        run.open();
        run.exchange();
        run.primary(words(600));
        run.survivor(other);
        assert!(run.broken(&slowed(&run)).contains(&JudgeRule::OneVoice));
    }
}

#[test]
fn output_past_the_wire_is_noticed_except_where_the_mode_allows_it() {
    let mut run = SyntheticRun::new();
    run.open();
    run.client(Say {
        data: b"hello",
        ..SAY
    });
    run.say(true, PAST_THE_WIRE, Say { ack: 5, ..SAY });
    let mut expected = run.expected(None);
    assert_eq!(run.broken(&expected), [JudgeRule::ThroughWire]);
    let direct = [CommitMode::Pr, CommitMode::Immediate];
    for mode in direct {
        expected.mode = mode;
        assert_eq!(run.broken(&expected), []);
    }
    run.say(
        true,
        PAST_THE_WIRE,
        Say {
            flags: Flags::SYN_ACK,
            ..SAY
        },
    );
    for mode in direct {
        expected.mode = mode;
        assert_eq!(run.broken(&expected), [JudgeRule::ThroughWire]);
    }

    let stranger = &[(Point::Router, [9; 6], MAC_ROUTER)];
    let mut run = SyntheticRun::new();
    run.open();
    run.say(true, stranger, SAY);
    assert_eq!(run.broken(&run.expected(None)), [JudgeRule::ThroughWire]);
}

#[test]
fn when_the_wire_dies_the_primary_may_speak_alone() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    let fault = run.fault();
    run.say(
        false,
        STRAIGHT_TO_PRIMARY,
        Say {
            at: 5,
            data: b"again",
            ack: 3,
            ..SAY
        },
    );
    run.say(
        true,
        PAST_THE_WIRE,
        Say {
            at: 3,
            data: b"der",
            ack: 10,
            ..SAY
        },
    );
    let mut expected = run.expected(Some(fault));
    expected.wires[0].until_ns = fault;
    let verdict = run.judge(&expected);
    assert!(verdict.holds(), "{verdict:#?}");
    // Node b comes back as the wire while a segment that bypassed it is still on its way to the client.
    let said = Say {
        at: 6,
        data: b"ful",
        ack: 10,
        ..SAY
    };
    run.say(true, &PAST_THE_WIRE[..2], said);
    expected.wires.push(WireSpan {
        node: 1,
        from_ns: run.now_ns,
        hears_from_ns: run.now_ns,
        until_ns: u64::MAX,
    });
    run.say(true, &PAST_THE_WIRE[2..], said);
    let verdict = run.judge(&expected);
    assert!(verdict.holds(), "{verdict:#?}");
    // Once node b is the wire, its capture must contain every segment that reaches the client.
    run.say(
        true,
        &FROM_PRIMARY[3..],
        Say {
            at: 9,
            data: b"!",
            ack: 10,
            ..SAY
        },
    );
    assert_eq!(run.broken(&expected), [JudgeRule::OutputCommit]);
}

/// A primary whose backup is dead sends to the router directly. It must not do so before it may declare the backup
/// dead.
#[test]
fn a_primary_claims_the_address_when_its_wire_has_ended() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    let fault = run.fault();
    let mut expected = run.expected(None);
    expected.wires[0].until_ns = fault + 50 * MS;
    run.say(false, STRAIGHT_TO_PRIMARY, Say { at: 5, ack: 3, ..SAY });
    run.say(
        true,
        PAST_THE_WIRE,
        Say {
            at: 3,
            data: b"der",
            ack: 5,
            ..SAY
        },
    );
    assert_eq!(run.broken(&expected), []);
    expected.wires[0].until_ns = fault + 500 * MS;
    assert_eq!(
        run.broken(&expected),
        [JudgeRule::OutputCommit, JudgeRule::ThroughWire]
    );
    // The old backup must not speak.
    expected.wires[0].until_ns = fault + 50 * MS;
    run.survivor(Say {
        at: 6,
        data: b"ful",
        ack: 5,
        ..SAY
    });
    assert_eq!(run.broken(&expected), [JudgeRule::OneVoice]);
}

/// A segment that a node sends into a cut cable reaches nobody.
#[test]
fn a_voice_that_the_router_does_not_hear_is_none() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    run.say(
        true,
        &FROM_SURVIVOR[..1],
        Say {
            at: 3,
            data: b"der",
            ack: 5,
            ..SAY
        },
    );
    let verdict = run.judge(&run.expected(None));
    assert_eq!(
        (verdict.violations, verdict.connections_taken_over),
        (Vec::new(), 0)
    );
}

/// A worker died. Its connection moves to the other node. The other connection stays.
#[test]
fn each_connection_may_have_its_own_voice() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    run.port = 40_001;
    run.open();
    run.exchange();
    let fault = run.fault();
    run.survivor(Say {
        at: 3,
        data: b"der",
        ack: 5,
        ..SAY
    });
    run.port = 40_000;
    run.primary(Say {
        at: 3,
        data: b"der",
        ack: 5,
        ..SAY
    });
    let mut expected = run.expected(Some(fault));
    assert_eq!(run.broken(&expected), [JudgeRule::OneVoice]);
    expected.speaking = Speaking::ForEachConnection;
    let verdict = run.judge(&expected);
    assert_eq!(
        (verdict.violations, verdict.connections_taken_over),
        (Vec::new(), 1)
    );
    // Even so, two nodes must not speak for the same connection.
    run.port = 40_001;
    run.primary(Say {
        at: 6,
        data: b"ful",
        ack: 5,
        ..SAY
    });
    assert_eq!(run.broken(&expected), [JudgeRule::OneVoice]);
}

/// A connection that begins long after the fault belongs to the node that first speaks for the connection. The fault does not permit a
/// later change of this node.
#[test]
fn a_connection_that_begins_after_the_fault_does_not_move() {
    for (after_ms, broken) in [(0, vec![]), (1_500, vec![JudgeRule::OneVoice])] {
        let mut run = SyntheticRun::new();
        let fault = run.fault();
        run.now_ns += after_ms * MS;
        run.open();
        run.exchange();
        run.survivor(Say {
            at: 3,
            data: b"der",
            ack: 5,
            ..SAY
        });
        let mut expected = run.expected(Some(fault));
        expected.speaking = Speaking::ForEachConnection;
        assert_eq!(run.broken(&expected), broken, "{after_ms} ms");
    }
}
