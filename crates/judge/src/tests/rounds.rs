//! The wire and the speaker change more than once: node a dies, comes back as the wire, node b dies.

use super::*;
use crate::survey::Passage;

/// Node a is the wire.
const FROM_CLIENT_BY_A: PacketRoute = &[
    (Point::Client, [0; 6], [0; 6]),
    (Point::Router, MAC_ROUTER, MAC_A),
    (Point::NodeA, MAC_ROUTER, MAC_A),
    (Point::NodeA, MAC_A, MAC_B),
    (Point::NodeB, MAC_A, MAC_B),
];
const FROM_B_BY_A: PacketRoute = &[
    (Point::NodeB, MAC_B, MAC_A),
    (Point::NodeA, MAC_B, MAC_A),
    (Point::NodeA, MAC_A, MAC_ROUTER),
    (Point::Router, MAC_A, MAC_ROUTER),
    (Point::Client, [0; 6], [0; 6]),
];
const FROM_A: PacketRoute = PAST_THE_WIRE;
const FROM_B: PacketRoute = FROM_SURVIVOR;

/// A run that goes on after [`SyntheticRun::exchange`]. The wire and the speaker change.
struct SyntheticRounds {
    run: SyntheticRun,
    first_fault: u64,
    returned: u64,
    /// The service's current offset in `run`.
    said: u64,
}

fn says(at: u64, data: &'static [u8]) -> Say {
    Say {
        at,
        data,
        ack: 5,
        ..SAY
    }
}

impl SyntheticRounds {
    /// Node a has died, node b has taken over and said `der`, and node a has just come back.
    fn new() -> Self {
        let mut run = SyntheticRun::new();
        run.open();
        run.exchange();
        let first_fault = run.fault();
        run.survivor(says(3, b"der"));
        run.say(false, TO_SURVIVOR, Say { at: 5, ack: 6, ..SAY });
        Self {
            first_fault,
            returned: run.now_ns,
            run,
            said: 6,
        }
    }

    /// Sends `data`, the service's next bytes, along `way`.
    fn service(&mut self, way: PacketRoute, data: &'static [u8]) {
        self.run.say(true, way, says(self.said, data));
        self.said += data.len() as u64;
    }

    /// Makes node a the wire. Node a forwards one segment in each direction, and 30 ms later another one to the client.
    /// By then, the judge no longer tolerates packets that overtake each other, so everything must go through node a.
    fn becomes_wire(&mut self) {
        self.service(FROM_B_BY_A, b"ful");
        let ack = self.said;
        self.run.say(false, FROM_CLIENT_BY_A, Say { at: 5, ack, ..SAY });
        self.run.now_ns += 30 * MS;
        self.service(FROM_B_BY_A, b"abc");
    }

    fn expected(&self, second_fault: Option<u64>) -> Expectations {
        let mut expected = self.run.expected(Some(self.first_fault));
        expected.role_changes_ns.extend(second_fault);
        let directory = TempDir::new().unwrap();
        let survey = Survey::of(&self.run.write(&directory), &expected).unwrap();
        let returned = NodeChange::Returned {
            node: 0,
            at_ns: self.returned,
        };
        expected.wires = survey.wires(1, &[returned]);
        expected
    }

    fn broken(&self, second_fault: Option<u64>) -> Vec<JudgeRule> {
        self.run.broken(&self.expected(second_fault))
    }
}

#[test]
fn a_node_that_returns_becomes_the_wire_and_takes_over_in_its_turn() {
    let mut rounds = SyntheticRounds::new();
    rounds.becomes_wire();
    let first_forwarded = rounds.returned + 3 * HOP_NS;
    let fault = rounds.run.fault();
    rounds.service(FROM_A, b"xyz");
    let expected = rounds.expected(Some(fault));
    let (old, new) = (expected.wires[0], expected.wires[1]);
    assert_eq!((old.node, old.until_ns), (1, first_forwarded));
    assert_eq!((new.node, new.until_ns), (0, u64::MAX));
    let verdict = rounds.run.judge(&expected);
    assert!(verdict.holds(), "{verdict:#?}");
    let reigns: Vec<_> = verdict
        .reigns
        .iter()
        .map(|one| (one.node, one.taken_over))
        .collect();
    assert_eq!(reigns, [(0, 0), (1, 1), (0, 1)]);
    assert_eq!(verdict.connections_taken_over, 1);
}

/// A connection that moves back begins a period of its own, so that each move is counted.
#[test]
fn a_connection_that_moves_back_is_counted_again() {
    let mut rounds = SyntheticRounds::new();
    rounds.becomes_wire();
    let fault = rounds.run.fault();
    rounds.service(FROM_A, b"xyz");
    let expected = Expectations {
        speaking: Speaking::ForEachConnection,
        ..rounds.expected(Some(fault))
    };
    let verdict = rounds.run.judge(&expected);
    assert!(verdict.holds(), "{verdict:#?}");
    let moved: Vec<_> = verdict
        .reigns
        .iter()
        .map(|one| (one.node, one.taken_over))
        .collect();
    assert_eq!(moved, [(0, 0), (1, 1), (0, 1)]);
}

/// A new wire may announce the VIP late, so that clients' packets still bypass it. All output must go through the new wire from its first
/// forwarded segment on. All input must go through the new wire as soon as the router has sent a client's packet to this wire. 20 ms
/// (`Highest::OVERTAKING_NS`) are added to each of these times.
#[test]
fn a_wire_that_hears_nothing_yet_is_one_for_output() {
    let hears = |rounds: &mut SyntheticRounds, way, at| {
        let ack = rounds.said;
        rounds.run.say(
            false,
            way,
            Say {
                at,
                data: b"!",
                ack,
                ..SAY
            },
        );
    };
    let acknowledges = |rounds: &mut SyntheticRounds, data, ack| {
        let said = Say {
            ack,
            ..says(rounds.said, data)
        };
        rounds.run.say(true, FROM_B_BY_A, said);
        rounds.said += data.len() as u64;
    };
    for past in [false, true] {
        let mut rounds = SyntheticRounds::new();
        rounds.service(FROM_B_BY_A, b"ful");
        rounds.run.now_ns += 30 * MS;
        if past {
            rounds.service(FROM_B, b"abc");
        }
        hears(&mut rounds, TO_SURVIVOR, 5);
        acknowledges(&mut rounds, b"def", 6);
        assert_eq!(rounds.broken(None).contains(&JudgeRule::ThroughWire), past);
        hears(&mut rounds, FROM_CLIENT_BY_A, 6);
        rounds.run.now_ns += 30 * MS;
        acknowledges(&mut rounds, b"ghi", 7);
        assert_eq!(rounds.broken(None).is_empty(), !past);
        hears(&mut rounds, TO_SURVIVOR, 7);
        acknowledges(&mut rounds, b"jkl", 8);
        assert!(rounds.broken(None).contains(&JudgeRule::InputCommit));
    }
}

#[test]
fn a_node_that_returns_and_speaks_without_right_is_a_second_voice() {
    let mut rounds = SyntheticRounds::new();
    rounds.service(FROM_A, b"ful");
    let mut broken = rounds.broken(None);
    broken.retain(|&rule| rule == JudgeRule::OneVoice);
    assert_eq!(broken, [JudgeRule::OneVoice]);
    // Node a must not speak as the wire either.
    let mut rounds = SyntheticRounds::new();
    rounds.becomes_wire();
    rounds.service(FROM_A, b"xyz");
    assert_eq!(rounds.broken(None), [JudgeRule::OneVoice]);
    let early = rounds.run.now_ns;
    assert_eq!(rounds.broken(Some(early)), [JudgeRule::OneVoice]);
}

#[test]
fn the_old_wire_must_not_go_past_the_new_one() {
    let mut rounds = SyntheticRounds::new();
    rounds.becomes_wire();
    rounds.service(FROM_B, b"xyz");
    assert_eq!(
        rounds.broken(None),
        [JudgeRule::OutputCommit, JudgeRule::ThroughWire]
    );
    // A segment that was under way when the new wire began is no breach.
    let mut rounds = SyntheticRounds::new();
    rounds.service(FROM_B_BY_A, b"ful");
    rounds.service(FROM_B, b"abc");
    rounds.run.now_ns += 30 * MS;
    rounds.service(FROM_B_BY_A, b"xyz");
    assert_eq!(rounds.broken(None), []);
    // Input that bypassed the new wire is not in its log.
    let mut rounds = SyntheticRounds::new();
    rounds.becomes_wire();
    let ack = rounds.said;
    let more = Say {
        at: 5,
        ack,
        data: b"more",
        ..SAY
    };
    rounds.run.say(false, TO_SURVIVOR, more);
    let acknowledged = Say {
        ack: 9,
        ..says(ack, b"")
    };
    rounds.run.say(true, FROM_B_BY_A, acknowledged);
    assert_eq!(rounds.broken(None), [JudgeRule::InputCommit]);
}

#[test]
fn input_that_came_before_the_new_wire_need_not_have_been_logged_by_it() {
    let mut rounds = SyntheticRounds::new();
    let more = Say {
        at: 5,
        ack: 6,
        data: b"more",
        ..SAY
    };
    rounds.run.say(false, TO_SURVIVOR, more);
    rounds.service(FROM_B_BY_A, b"ful");
    rounds.run.now_ns += 30 * MS;
    rounds.run.say(
        true,
        FROM_B_BY_A,
        Say {
            ack: 9,
            ..says(9, b"abc")
        },
    );
    assert_eq!(rounds.broken(None), []);
}

#[test]
fn two_nodes_that_speak_at_the_same_time_are_heard_and_measured() {
    let mut rounds = SyntheticRounds::new();
    rounds.becomes_wire();
    let fault = rounds.run.fault();
    rounds.service(FROM_A, b"xyz");
    let survey = |rounds: &SyntheticRounds| {
        let directory = TempDir::new().unwrap();
        Survey::of(&rounds.run.write(&directory), &rounds.expected(None)).unwrap()
    };
    assert_eq!(survey(&rounds).two_speakers_ns(), 0);
    let entrances: Vec<_> = survey(&rounds).entrances.iter().map(|one| one.node).collect();
    assert_eq!(entrances, [1, 0]);
    // Node b was not dead: it sends one segment between two segments of node a.
    let before = rounds.run.now_ns;
    rounds.service(FROM_B, b"!");
    assert_eq!(
        rounds.broken(Some(fault)),
        [JudgeRule::OutputCommit, JudgeRule::OneVoice]
    );
    let after = rounds.run.now_ns;
    rounds.service(FROM_A, b"?");
    let both = survey(&rounds).two_speakers_ns();
    assert!((1..after - before).contains(&both), "{both}");
    let speakers: Vec<_> = survey(&rounds).speeches().iter().map(|one| one.node).collect();
    assert_eq!(speakers, [0, 1, 0, 1]);
}

fn passage(sender: usize, origin: usize, from_ns: u64, until_ns: u64) -> Passage {
    Passage {
        sender,
        origin,
        from_ns,
        until_ns,
    }
}

#[test]
fn a_wire_that_returned_hears_when_packets_reach_it() {
    let entrance = |node, from_ns, until_ns| Entrance {
        node,
        from_ns,
        until_ns,
    };
    let returned = NodeChange::Returned {
        node: 1,
        at_ns: 100 * MS,
    };
    let begins = |entrances: Vec<Entrance>| {
        let survey = Survey {
            passages: vec![passage(0, 0, 0, 110 * MS), passage(1, 0, 110 * MS, 900 * MS)],
            entrances,
        };
        let wire = survey.wires(0, &[returned])[1];
        assert_eq!(wire.from_ns, 130 * MS);
        wire.hears_from_ns
    };
    let at_once = vec![entrance(0, 0, 109 * MS), entrance(1, 109 * MS, 900 * MS)];
    assert_eq!(begins(at_once), 130 * MS);
    let late = vec![entrance(0, 0, 150 * MS), entrance(1, 150 * MS, 900 * MS)];
    assert_eq!(begins(late), 170 * MS);
    // Input counts as going through the wire as soon as client packets come to it, but no later than 200 ms after the wire's first
    // forwarded segment. If no client packet ever comes, input counts as going through the wire from that segment on. 20 ms
    // (`Highest::OVERTAKING_NS`) are added to each of these times.
    let too_late = vec![entrance(0, 0, 700 * MS), entrance(1, 700 * MS, 900 * MS)];
    assert_eq!(begins(too_late), 330 * MS);
    assert_eq!(begins(Vec::new()), 130 * MS);
}

#[test]
fn a_wire_that_was_lost_is_none_until_it_returns() {
    let survey = Survey {
        passages: vec![
            passage(1, 0, 0, 10 * MS),
            passage(0, 0, 90 * MS, 200 * MS),
            passage(1, 0, 200 * MS, 900 * MS),
        ],
        entrances: Vec::new(),
    };
    let changes = [
        NodeChange::Lost { node: 0, at_ns: 5 },
        NodeChange::Lost {
            node: 1,
            at_ns: 20 * MS,
        },
        NodeChange::Returned {
            node: 1,
            at_ns: 100 * MS,
        },
    ];
    let wire = |from_ns, until_ns| WireSpan {
        node: 1,
        from_ns,
        hears_from_ns: from_ns,
        until_ns,
    };
    let wires = survey.wires(1, &changes);
    assert_eq!(wires, [wire(0, 20 * MS), wire(220 * MS, u64::MAX)]);
    // The node is lost again before it becomes the wire.
    let lost = NodeChange::Lost {
        node: 1,
        at_ns: 210 * MS,
    };
    assert_eq!(
        survey.wires(1, &[&changes[..], &[lost]].concat()),
        [wire(0, 20 * MS)]
    );
}
