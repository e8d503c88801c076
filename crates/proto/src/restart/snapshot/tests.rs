use super::*;
use crate::restart::replay::{RepetitionFilter, RepetitionMismatch};

/// The byte that the application writes at this offset.
fn byte(at: u64) -> u8 {
    (at / 3 % 251) as u8
}

fn output(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

fn snapshot(number: u64, input: u64, output: u64) -> Snapshot {
    Snapshot {
        number,
        input: Offset(input),
        output: Offset(output),
        state: output.to_string().into_bytes().into(),
    }
}

/// All input is logged.
const LOGGED: Offset = Offset(u64::MAX);

/// What reaches the client if a restarted application sends its output from the restart point on up to `end`, in pieces of `size` bytes.
fn passed(tracker: &SnapshotTracker, end: u64, size: usize) -> Result<Vec<u8>, RepetitionMismatch> {
    let from = tracker.point.as_ref().map_or(0, |point| point.output.0);
    let mut filter = RepetitionFilter::new(tracker.repetition());
    let mut to_client = Vec::new();
    for piece in output(from..end).chunks(size) {
        filter.on_application(piece, &mut to_client)?;
    }
    filter.on_application_end().map(|()| to_client)
}

/// The output is cut at `said`; the snapshot is of `at`; it arrives when `arrives` bytes are logged.
#[test]
fn the_client_gets_each_byte_once_whenever_a_snapshot_arrives() {
    let block = BLOCK as u64;
    let places = [0, 1, block - 1, block, block + 1, 2 * block + 7, 5 * block];
    for at in places {
        for arrives in places {
            for said in places.into_iter().filter(|said| *said >= arrives) {
                let mut tracker = SnapshotTracker::default();
                tracker.on_output(&output(0..arrives));
                let standing = tracker.on_snapshot(snapshot(1, 10, at), LOGGED);
                assert_eq!(standing == SnapshotStanding::Waits, at > arrives);
                tracker.on_output(&output(arrives..said));
                let is_kept = at <= said;
                assert_eq!(tracker.standing(1) == Some(SnapshotStanding::Kept), is_kept);
                assert_eq!(tracker.restart_input(), Offset(if is_kept { 10 } else { 0 }));
                for size in [1_000, 100_000] {
                    let end = said + 20_000;
                    assert_eq!(
                        passed(&tracker, end, size).expect("the same"),
                        output(said..end),
                        "{at} {arrives} {said}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_snapshot_that_comes_in_time_leaves_no_output_unchecked() {
    let mut tracker = SnapshotTracker::default();
    tracker.on_output(&output(0..50_000));
    assert_eq!(
        tracker.on_snapshot(snapshot(1, 5, 50_000), LOGGED),
        SnapshotStanding::Kept
    );
    assert_eq!(
        tracker.on_snapshot(snapshot(2, 5, 70_000), LOGGED),
        SnapshotStanding::Waits
    );
    tracker.on_output(&output(50_000..99_000));
    let repetition = tracker.repetition();
    assert_eq!((repetition.unchecked, repetition.bytes), (0, 29_000));
}

/// All output is compared but for the rest of the block in which the late snapshot lies.
#[test]
fn output_that_differs_is_noticed() {
    let block = BLOCK as u64;
    let mut tracker = SnapshotTracker::default();
    tracker.on_output(&output(0..5 * block + 100));
    assert_eq!(
        tracker.on_snapshot(snapshot(1, 5, block + 10), LOGGED),
        SnapshotStanding::Kept
    );
    let repetition = tracker.repetition();
    assert_eq!(
        (repetition.unchecked, repetition.bytes),
        (block - 10, 3 * block + 100)
    );
    for at in [2 * block, 3 * block + 1, 5 * block + 99] {
        let mut repeated = output(block + 10..5 * block + 200);
        repeated[(at - block - 10) as usize] ^= 1;
        let mut filter = RepetitionFilter::new(repetition.clone());
        let outcome = filter.on_application(&repeated, &mut Vec::new());
        assert!(matches!(outcome, Err(RepetitionMismatch::Differs { .. })), "{at}");
    }
}

#[test]
fn a_snapshot_that_cannot_be_the_restart_point_is_refused() {
    let refused = |standing| matches!(standing, SnapshotStanding::Unfit(_));
    let mut tracker = SnapshotTracker::default();
    tracker.on_output(&output(0..1_000));
    assert!(
        refused(tracker.on_snapshot(snapshot(1, 11, 0), Offset(10))),
        "the log lacks input"
    );
    assert_eq!(
        tracker.on_snapshot(snapshot(2, 10, 500), LOGGED),
        SnapshotStanding::Kept
    );
    assert!(
        refused(tracker.on_snapshot(snapshot(3, 9, 600), LOGGED)),
        "less input"
    );
    assert!(
        refused(tracker.on_snapshot(snapshot(3, 10, 499), LOGGED)),
        "less output"
    );
    assert_eq!(
        tracker.on_snapshot(snapshot(2, 10, 500), LOGGED),
        SnapshotStanding::Kept,
        "once more"
    );
    let much = (RECENT_MAX as u64 + 3) * BLOCK as u64;
    tracker.on_output(&output(1_000..much));
    assert!(
        refused(tracker.on_snapshot(snapshot(4, 10, 600), LOGGED)),
        "too late"
    );
    assert_eq!(tracker.restart_input(), Offset(10));
    assert!(passed(&tracker, much, 65_536).expect("the same").is_empty());
}

#[test]
fn memory_is_bounded() {
    let mut tracker = SnapshotTracker::default();
    for number in 1..1_000 {
        tracker.on_snapshot(snapshot(number, 0, 1_000_000 + number), LOGGED);
    }
    assert!(tracker.memory() < WAITING_MAX * 10);
    assert_eq!(
        tracker.waiting.back().map(|last| last.number),
        Some(999),
        "the latest counts most"
    );
    tracker.on_output(&output(0..20_000_000));
    assert_eq!(tracker.standing(999), Some(SnapshotStanding::Kept));
    assert!(tracker.memory() <= RECENT_MAX * 16 + 7);
}

/// The new node goes on from the restart point, and need not repeat the output for which a snapshot waits. The numbers of its snapshots have nothing
/// to do with those of the old node.
#[test]
fn after_a_move_only_later_snapshots_of_the_new_node_count() {
    let mut tracker = SnapshotTracker::default();
    tracker.on_output(&output(0..1_000));
    assert_eq!(
        tracker.on_snapshot(snapshot(800, 5, 1_000), LOGGED),
        SnapshotStanding::Kept
    );
    assert_eq!(
        tracker.on_snapshot(snapshot(801, 6, 3_000), LOGGED),
        SnapshotStanding::Waits
    );
    tracker.on_moved(20);
    tracker.on_output(&output(1_000..4_000));
    assert_eq!(
        tracker.restart_output(),
        Offset(1_000),
        "it does not wait any more"
    );
    assert_eq!(tracker.take_reached(), None);
    assert!(matches!(
        tracker.on_snapshot(snapshot(20, 6, 4_000), LOGGED),
        SnapshotStanding::Unfit(_)
    ));
    assert_eq!(
        tracker.on_snapshot(snapshot(21, 6, 4_000), LOGGED),
        SnapshotStanding::Kept
    );
    assert_eq!(tracker.restart_output(), Offset(4_000));
}
