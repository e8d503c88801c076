use std::fmt::Write;

use super::*;

const HOLD: Duration = Duration::from_millis(500);

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// A wire whose hook has been preparing since time 0.
struct StateSyncTestbed {
    sync: StateSync,
    actions: VecDeque<ServiceAction>,
    run: u64,
}

impl StateSyncTestbed {
    fn begin() -> Self {
        let mut testbed = Self {
            sync: StateSync::new(HOLD),
            actions: VecDeque::new(),
            run: 0,
        };
        testbed.event(0, StateSyncEvent::Begin);
        testbed
    }

    fn event(&mut self, millis: u64, event: StateSyncEvent) -> Decided {
        self.sync.on_event(at(millis), event, &mut self.actions)
    }

    fn ends(&mut self, millis: u64, outcome: Result<(), String>) -> Decided {
        let outcome = (self.run, outcome);
        self.sync.on_ended(at(millis), outcome, &mut self.actions)
    }

    /// The queued actions, abbreviated.
    fn wants(&mut self) -> String {
        let mut said = Vec::new();
        for action in std::mem::take(&mut self.actions) {
            said.push(match action {
                ServiceAction::RunSync {
                    phase, run, until, ..
                } => {
                    self.run = run;
                    let until = until.map_or_else(String::new, |until| {
                        format!(" until {}", until.as_nanos() / 1_000_000)
                    });
                    format!("{phase:?}{until}")
                }
                ServiceAction::HoldInput {
                    until: Some(until), ..
                } => format!("hold until {}", until.as_nanos() / 1_000_000),
                ServiceAction::HoldInput { until: None, .. } => "release".into(),
                ServiceAction::Drain => "drain".into(),
                ServiceAction::Report(OperatorReport::Synced { held, .. }) => {
                    format!("synced, held {held:?}")
                }
                ServiceAction::Report(OperatorReport::NotSynced { why, .. }) => format!("not synced: {why}"),
                other => format!("{other:?}"),
            });
        }
        said.join("; ")
    }
}

#[test]
fn the_whole_matrix() {
    let mut table = String::new();
    for state in StateSyncProgress::ALL {
        for event in StateSyncEvent::ALL {
            if let Some(next) = state.after(event) {
                writeln!(table, "{state:?} -- {event:?} --> {next:?}").unwrap();
            }
        }
    }
    insta::assert_snapshot!(table, @r"
    Idle -- Begin --> Preparing
    Preparing -- Leave --> Idle
    Preparing -- Succeeded --> Holding
    Preparing -- Failed --> Abandoning
    Holding -- Begin --> Abandoning
    Holding -- Leave --> Idle
    Holding -- Drained --> Finishing
    Holding -- Expired --> Abandoning
    Finishing -- Begin --> Abandoning
    Finishing -- Leave --> Idle
    Finishing -- Succeeded --> Synced
    Finishing -- Failed --> Abandoning
    Finishing -- Expired --> Abandoning
    Abandoning -- Leave --> Idle
    Abandoning -- Succeeded --> Resting
    Abandoning -- Failed --> Resting
    Resting -- Leave --> Idle
    Resting -- Expired --> Preparing
    Synced -- Begin --> Preparing
    Synced -- Leave --> Idle
    ");
}

/// *Finish* begins only after input was held and the log was read to its end. The copy counts only if *finish* succeeded during the hold.
#[test]
fn input_is_held_for_nothing_else() {
    for state in StateSyncProgress::ALL {
        for event in StateSyncEvent::ALL {
            let Some(next) = state.after(event) else { continue };
            if next == StateSyncProgress::Finishing {
                assert_eq!(
                    state,
                    StateSyncProgress::Holding,
                    "only after the log was read to its end"
                );
            }
            if next == StateSyncProgress::Synced {
                assert_eq!(
                    state,
                    StateSyncProgress::Finishing,
                    "only a copy that was finished during the hold counts"
                );
            }
        }
    }
}

#[test]
fn the_rest_is_copied_while_input_is_held() {
    let mut testbed = StateSyncTestbed::begin();
    assert_eq!(testbed.wants(), "Prepare");
    testbed.ends(3000, Ok(()));
    assert_eq!(testbed.wants(), "hold until 3500; drain");
    assert_eq!(testbed.sync.poll_timeout(), Some(at(3500)));
    testbed.event(3001, StateSyncEvent::Drained);
    assert_eq!(testbed.wants(), "Finish until 3500");
    testbed.ends(3040, Ok(()));
    assert_eq!(testbed.wants(), "release; synced, held 40ms");
    assert_eq!(
        (testbed.sync.state(), testbed.sync.poll_timeout()),
        (StateSyncProgress::Synced, None)
    );
}

/// A copy that is finished after the hold does not count. A copy that is finished in time but reported too late does not count either,
/// because input may have passed before the report.
#[test]
fn what_is_finished_too_late_does_not_count() {
    for is_told in [false, true] {
        let mut testbed = StateSyncTestbed::begin();
        testbed.wants();
        testbed.ends(0, Ok(()));
        testbed.event(0, StateSyncEvent::Drained);
        testbed.wants();
        if is_told {
            testbed.ends(500, Ok(()));
        } else {
            testbed.sync.on_timeout(at(499), &mut testbed.actions);
            assert_eq!(testbed.wants(), "");
            testbed.sync.on_timeout(at(500), &mut testbed.actions);
        }
        let why = "the copying was not finished within the hold of 500ms";
        assert_eq!(testbed.wants(), format!("release; Abandon; not synced: {why}"));
        assert_eq!(testbed.sync.why(), Some(why));
    }
}

#[test]
fn what_an_earlier_run_says_late_does_not_count() {
    let mut testbed = StateSyncTestbed::begin();
    testbed.wants();
    let prepare = testbed.run;
    testbed.event(10, StateSyncEvent::Leave);
    assert_eq!(
        testbed.wants(),
        "release; Abandon; not synced: this node is no longer the wire, or the replica's server is dead"
    );
    testbed.event(20, StateSyncEvent::Begin);
    assert_eq!(testbed.wants(), "Prepare");
    testbed
        .sync
        .on_ended(at(30), (prepare, Ok(())), &mut testbed.actions);
    assert_eq!(testbed.sync.state(), StateSyncProgress::Preparing);
}

#[test]
fn it_is_tried_again_after_longer_and_longer_rests() {
    let mut testbed = StateSyncTestbed::begin();
    let (mut now, mut rests) = (0, Vec::new());
    for _ in 0..8 {
        testbed.wants();
        testbed.ends(now, Err("no".into()));
        assert_eq!(testbed.wants(), "release; Abandon; not synced: no");
        testbed.ends(now, Err("that neither".into()));
        assert_eq!(testbed.sync.why(), Some("no"));
        let due = testbed.sync.poll_timeout().expect("it rests").as_nanos() / 1_000_000;
        rests.push((due - now) / 1000);
        now = due;
        testbed.sync.on_timeout(at(now), &mut testbed.actions);
        assert_eq!(testbed.sync.state(), StateSyncProgress::Preparing);
    }
    assert_eq!(rests, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn a_connection_is_followed_if_nothing_of_it_was_released_before() {
    let [early, held, late] = [0, 1, 2].map(ConnectionId::first_of);
    for finishes in [true, false] {
        let mut testbed = StateSyncTestbed::begin();
        assert_eq!(testbed.sync.on_opened(early), Admission::Refused);
        testbed.wants();
        testbed.ends(0, Ok(()));
        assert_eq!(
            testbed.sync.on_opened(early),
            Admission::Refused,
            "its input may have been released before the hold"
        );
        testbed.wants();
        testbed.event(0, StateSyncEvent::Drained);
        testbed.wants();
        assert_eq!(testbed.sync.on_opened(held), Admission::Waits);
        let outcome = if finishes { Ok(()) } else { Err("no".into()) };
        let decided = testbed.ends(1, outcome);
        if finishes {
            assert_eq!((decided.followed, decided.refused), (vec![held], vec![]));
            assert_eq!(testbed.sync.on_opened(late), Admission::Followed);
        } else {
            assert_eq!((decided.followed, decided.refused), (vec![], vec![held]));
            assert_eq!(testbed.sync.on_opened(late), Admission::Refused);
        }
    }
}

#[test]
fn what_is_missed_counts_from_the_copy_on() {
    let mut testbed = StateSyncTestbed::begin();
    testbed.sync.on_missed(7);
    testbed.wants();
    testbed.ends(0, Ok(()));
    testbed.event(0, StateSyncEvent::Drained);
    testbed.wants();
    testbed.ends(1, Ok(()));
    assert_eq!(testbed.sync.missed(), 0, "the copy contains these bytes");
    testbed.sync.on_missed(7);
    testbed.sync.on_missed(1);
    assert_eq!(testbed.sync.missed(), 8);
}
