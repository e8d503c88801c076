//! Tests of the rules input-commit, output-commit and open-commit.

use super::*;

#[test]
fn an_acknowledgement_before_the_log_breaks_input_commit() {
    let mut run = SyntheticRun::new();
    run.open();
    // The segment bypasses the wire.
    run.hello_past_the_wire();
    run.primary(Say { ack: 5, ..SAY });
    let verdict = run.judge(&run.expected(None));
    let rules: Vec<_> = verdict
        .violations
        .iter()
        .map(|one| (one.rule, one.point))
        .collect();
    assert_eq!(
        rules,
        [
            (JudgeRule::InputCommit, Point::Router),
            (JudgeRule::InputCommit, Point::Client)
        ]
    );
    assert_eq!(
        verdict.violations[0].what,
        "acknowledges 5, but the wire had not seen byte 0"
    );
    assert!(
        verdict.violations[0].packet.contains(" > . 1:1(0) ack 6 win 500"),
        "{verdict:#?}"
    );

    // The wire sees the same bytes, but only after their acknowledgement was sent.
    let mut run = SyntheticRun::new();
    run.open();
    run.hello_past_the_wire();
    run.primary(Say { ack: 5, ..SAY });
    run.say(
        false,
        &FROM_CLIENT[1..],
        Say {
            data: b"hello",
            ..SAY
        },
    );
    assert_eq!(run.broken(&run.expected(None)), [JudgeRule::InputCommit]);
}

#[test]
fn a_fin_is_acknowledged_only_if_the_wire_saw_it() {
    let mut run = SyntheticRun::new();
    run.open();
    run.say(
        false,
        STRAIGHT_TO_PRIMARY,
        Say {
            flags: Flags::FIN_ACK,
            ..SAY
        },
    );
    run.primary(Say { ack: 1, ..SAY });
    assert_eq!(run.broken(&run.expected(None)), [JudgeRule::InputCommit]);
    let mut expected = run.expected(None);
    expected.mode = CommitMode::Pr;
    assert_eq!(run.broken(&expected), [JudgeRule::InputCommit]);
    expected.mode = CommitMode::Immediate;
    assert_eq!(run.broken(&expected), []);
}

#[test]
fn output_that_the_wire_has_not_seen_breaks_output_commit() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    // The segment reaches the router with the wire's address, but the wire's capture does not contain it.
    run.say(
        true,
        &FROM_PRIMARY[3..],
        Say {
            at: 3,
            data: b"der",
            ack: 5,
            ..SAY
        },
    );
    // The primary's capture does not contain the segment either, so the judge concludes that the wire made it.
    assert_eq!(
        run.broken(&run.expected(None)),
        [JudgeRule::OutputCommit, JudgeRule::OneVoice]
    );
    let mut expected = run.expected(None);
    expected.mode = CommitMode::Pr;
    assert_eq!(run.broken(&expected), [JudgeRule::OneVoice]);
}

#[test]
fn a_syn_ack_without_the_syn_breaks_open_commit() {
    let mut run = SyntheticRun::new();
    run.say(
        false,
        STRAIGHT_TO_PRIMARY,
        Say {
            flags: Flags::SYN,
            ..SAY
        },
    );
    run.primary(Say {
        flags: Flags::SYN_ACK,
        ..SAY
    });
    assert_eq!(run.broken(&run.expected(None)), [JudgeRule::OpenCommit]);
    let mut expected = run.expected(None);
    expected.mode = CommitMode::Pr;
    assert_eq!(run.broken(&expected), [JudgeRule::OpenCommit]);
    expected.mode = CommitMode::Immediate;
    assert_eq!(run.broken(&expected), []);
}

#[test]
fn connections_without_their_beginning_are_exempt_from_commits_only() {
    let mut run = SyntheticRun::new();
    run.exchange();
    run.survivor(Say {
        at: 3,
        ack: 5,
        flags: Flags::RST,
        ..SAY
    });
    let verdict = run.judge(&run.expected(None));
    assert_eq!(
        (verdict.connections, verdict.connections_without_beginning),
        (1, 1)
    );
    assert_eq!(verdict.resets_to_client, 1);
    let rules: Vec<_> = verdict.violations.iter().map(|one| one.rule).collect();
    assert_eq!(rules, [JudgeRule::OneVoice]);
}
