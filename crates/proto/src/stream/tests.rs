use super::chunks::CHUNK;
use super::*;
use crate::spill::gather;
use crate::spill::tests::TestDepot;
use proptest::prelude::*;

impl Shelf for Vec<u8> {
    fn bytes(&self, place: u64, len: usize) -> &[u8] {
        &self[at_index(place)..][..len]
    }
}

fn contents(log: &StreamLog) -> Vec<u8> {
    gather(log.parts(log.base()..log.frontier())).expect("memory can be read")
}

fn spills() -> Arc<Spills> {
    Spills::new(Box::new(TestDepot::default()), u64::MAX)
}

#[test]
fn a_hole_is_filled_and_conflicts_are_seen_on_both_sides_of_it() {
    let mut log = StreamLog::new(Seq(0));
    assert_eq!(log.insert(Offset(0), b"abc", None), Inserted::Stored);
    assert_eq!(log.insert(Offset(6), b"ghi", None), Inserted::Stored);
    assert_eq!(
        (log.frontier(), log.end(), log.has_holes()),
        (Offset(3), Offset(9), true)
    );
    assert_eq!(log.insert(Offset(1), b"bX", None), Inserted::Conflict);
    assert_eq!(log.insert(Offset(7), b"X", None), Inserted::Conflict);
    assert_eq!(log.insert(Offset(2), b"cdefg", None), Inserted::Stored);
    assert_eq!(contents(&log), b"abcdefghi");
    assert_eq!(log.insert(Offset(0), b"abcdefghi", None), Inserted::Known);
}

#[test]
fn released_bytes_are_neither_kept_nor_compared() {
    let mut log = StreamLog::new(Seq(0));
    log.insert(Offset(0), &[1; 100_000], None);
    log.release(Offset(99_990));
    assert!(log.memory() <= CHUNK, "{}", log.memory());
    assert_eq!(log.insert(Offset(0), &[9; 99_990], None), Inserted::Known);
    assert_eq!(log.insert(Offset(99_990), &[9], None), Inserted::Conflict);
    log.release(Offset(200_000));
    assert_eq!((log.base(), log.memory()), (Offset(100_000), 0));
    assert_eq!(log.insert(Offset(100_000), b"on", None), Inserted::Stored);
    assert_eq!(contents(&log), b"on");
}

#[test]
fn a_stream_has_one_end() {
    let mut log = StreamLog::new(Seq(0));
    log.insert(Offset(0), b"abc", None);
    assert!(!log.set_fin(Offset(2)));
    assert!(log.set_fin(Offset(5)));
    assert!(!log.set_fin(Offset(6)));
    assert!(!log.is_complete());
    assert_eq!(log.insert(Offset(3), b"def", None), Inserted::Conflict);
    assert_eq!(log.insert(Offset(3), b"de", None), Inserted::Stored);
    assert!(log.is_complete());
    assert_eq!(log.next_seq(), Seq(6));
}

#[test]
fn a_stream_that_is_given_up_is_followed_without_its_bytes() {
    let mut log = StreamLog::new(Seq(0));
    log.insert(Offset(0), b"abc", None);
    log.insert(Offset(100_000), b"klm", None);
    log.give_up();
    let places = |log: &StreamLog| (log.memory(), log.base().0, log.frontier().0, log.end().0);
    assert_eq!(places(&log), (0, 3, 3, 100_003));
    log.pass(Offset(200_000)..Offset(200_009));
    log.pass(Offset(100_001)..Offset(100_005));
    log.pass(Offset(0)..Offset(4));
    assert_eq!(places(&log), (0, 4, 4, 200_009));
    log.pass(Offset(3)..Offset(100_002));
    assert_eq!(places(&log), (0, 100_005, 100_005, 200_009));
    assert!(log.set_fin(Offset(200_009)));
    assert_eq!((log.end_seq(), log.is_complete()), (Seq(200_010), false));
    log.pass(Offset(100_005)..Offset(200_010)); // up to an acknowledgement that covers the FIN
    assert_eq!(places(&log), (0, 200_009, 200_009, 200_009));
    assert!(log.is_complete());
}

#[test]
fn a_stream_that_is_given_up_has_few_holes() {
    let mut log = StreamLog::new(Seq(0));
    log.give_up();
    for at in (1..1000).map(|hole| 2 * hole) {
        log.pass(Offset(at)..Offset(at + 1));
        assert!(log.holes() <= AHEAD_MAX);
        assert_eq!(log.end(), Offset(at + 1));
    }
}

#[test]
fn holes_are_bounded() {
    let mut log = StreamLog::new(Seq(0));
    for at in (0..AHEAD_MAX as u64).map(|hole| Offset(2 * hole + 1)) {
        assert_eq!(log.insert(at, b"x", None), Inserted::Stored);
    }
    let at = Offset(2 * AHEAD_MAX as u64 + 1);
    assert_eq!(log.insert(at, b"x", None), Inserted::TooManyHoles);
}

#[test]
fn what_was_acknowledged_on_the_shelf_is_never_copied() {
    let shelf = vec![7; 100_000];
    let mut log = StreamLog::new(Seq(0));
    for at in (0..100_000).step_by(10_000) {
        let source = Some(OnShelf {
            shelf: &shelf,
            place: at,
        });
        assert_eq!(log.insert(Offset(at), &shelf[..10_000], source), Inserted::Stored);
    }
    assert_eq!((log.frontier(), log.memory()), (Offset(100_000), 0));
    log.release(Offset(95_000));
    log.keep(&shelf);
    assert_eq!(contents(&log), [7; 5000]);
    assert!(log.memory() <= CHUNK, "{}", log.memory());
}

#[test]
fn what_is_spilled_holds_no_memory_and_is_given_up_with_what_is_released() {
    let spills = spills();
    let mut log = StreamLog::new(Seq(0));
    let stream: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    log.insert(Offset(0), &stream, None);
    log.release(Offset(40_000));
    log.spill(&spills, Offset(150_000), 0).expect("memory");
    let spilled = 4 * CHUNK as u64 - 40_000;
    assert_eq!(
        (log.spilled(), spills.bytes()),
        (spilled, spilled),
        "whole chunks before 150,000"
    );
    assert!(log.memory() <= 200_000 - 3 * CHUNK, "{}", log.memory());
    assert_eq!(log.insert(Offset(200_000), b"more", None), Inserted::Stored);
    assert_eq!(contents(&log), [&stream[40_000..], b"more"].concat());
    let parts: Vec<_> = log.parts(Offset(131_000)..Offset(131_100)).collect();
    assert!(
        matches!(parts[..], [LogPart::File(_), LogPart::Memory(_)]),
        "{parts:?}"
    );
    assert_eq!(gather(parts).expect("memory"), stream[131_000..131_100]);
    assert_eq!(
        log.insert(Offset(130_000), &[255; 5], None),
        Inserted::Known,
        "not compared"
    );
    assert_eq!(log.insert(Offset(140_000), &[255; 5], None), Inserted::Conflict);
    log.release(Offset(131_072));
    assert_eq!((log.spilled(), spills.bytes()), (0, 0));
    assert_eq!(contents(&log), [&stream[131_072..], b"more"].concat());
}

proptest! {
    /// Overlapping pieces in any order give the stream, even if bytes are released and spilled in between.
    #[test]
    fn pieces_in_any_order_give_the_stream(
        pieces in prop::collection::vec((0_u64..90_000, 1_u64..20_000), 1..60),
        first: u32,
        shelf: bool,
        spilled_every in 1_usize..8,
        released_every in 2_usize..10,
    ) {
        let spills = spills();
        let stream: Vec<u8> = (0..120_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut log = StreamLog::new(Seq(first));
        let mut seen = vec![false; stream.len()];
        for (index, (start, len)) in pieces.into_iter().enumerate() {
            let range = start as usize..(start + len) as usize;
            let source = shelf.then_some(OnShelf { shelf: &stream, place: start });
            prop_assert_ne!(log.insert(Offset(start), &stream[range.clone()], source), Inserted::Conflict);
            seen[range].fill(true);
            let frontier = seen.iter().position(|seen| !seen).unwrap_or(seen.len());
            prop_assert_eq!(log.frontier(), Offset(frontier as u64));
            if index % released_every == 1 {
                log.release(Offset(frontier as u64 / 2));
            }
            if index % spilled_every == 0 {
                log.spill(&spills, Offset(frontier as u64 / 4 * 3), CHUNK).expect("memory");
                prop_assert_eq!(log.spilled(), spills.bytes());
            }
            if shelf && index % 4 < 3 {
                continue;
            }
            log.keep(&stream);
            prop_assert_eq!(contents(&log), &stream[log.base().0 as usize..frontier]);
        }
        log.keep(&stream);
        for (start, bytes) in log.ahead() {
            prop_assert_eq!(&bytes, &stream[start.0 as usize..start.0 as usize + bytes.len()]);
        }
    }
}
