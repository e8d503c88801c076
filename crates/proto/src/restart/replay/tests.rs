use super::*;

/// A tracker that has seen this output.
fn followed(pieces: &[&[u8]]) -> ReplayTracker {
    let mut tracker = ReplayTracker::new();
    pieces.iter().for_each(|piece| tracker.on_output(piece));
    tracker
}

/// The bytes that pass a filter that expects `said`, if the application sends `pieces`.
fn passed(said: &[u8], pieces: &[&[u8]]) -> Result<Vec<u8>, RepetitionMismatch> {
    let mut filter = RepetitionFilter::new(followed(&[said]).repetition());
    let mut to_client = Vec::new();
    for piece in pieces {
        filter.on_application(piece, &mut to_client)?;
    }
    filter.on_application_end().map(|()| to_client)
}

#[test]
fn repeated_output_is_dropped_however_it_is_cut() {
    let all: Vec<u8> = (0..100_000_u32).map(|at| (at / 3) as u8).collect();
    for said in [0, 1, 16_384, 16_385, 70_000, all.len()] {
        for size in [1, 1_000, 16_384, all.len()] {
            let pieces: Vec<&[u8]> = all.chunks(size).collect();
            assert_eq!(
                passed(&all[..said], &pieces).expect("the same"),
                all[said..],
                "{said} {size}"
            );
        }
    }
}

#[test]
fn a_byte_that_differs_is_noticed_before_a_new_byte_passes() {
    let all = vec![7; 40_000];
    let said = &all[..30_000];
    for at in [0, 16_384, 29_999] {
        let mut other = all.clone();
        other[at] = 8;
        let mut filter = RepetitionFilter::new(followed(&[said]).repetition());
        let mut to_client = Vec::new();
        let outcome = filter.on_application(&other, &mut to_client);
        assert_eq!(
            outcome,
            Err(RepetitionMismatch::Differs { bytes: 30_000 }),
            "{at}"
        );
        assert!(to_client.is_empty(), "{at}");
    }
}

#[test]
fn an_application_that_ends_early_is_noticed() {
    let early = Err(RepetitionMismatch::EndedEarly { missing: 2 });
    assert_eq!(passed(b"hello", &[b"hel"]), early);
    assert_eq!(passed(b"hello", &[b"hello"]), Ok(Vec::new()));
}

#[test]
fn nothing_passes_after_the_servers_end() {
    let mut tracker = followed(&[b"hel", b"lo"]);
    tracker.on_output_end();
    let mut filter = RepetitionFilter::new(tracker.repetition());
    let mut to_client = Vec::new();
    assert_eq!(filter.on_application(b"hello, world", &mut to_client), Ok(()));
    assert!(to_client.is_empty());
    assert!(!filter.is_transparent());
}
