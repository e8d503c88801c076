use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum ComparisonEvent {
    Primary(usize),
    Replica(usize),
}

fn events() -> impl Strategy<Value = Vec<ComparisonEvent>> {
    let event = prop_oneof![
        (0..9_usize).prop_map(ComparisonEvent::Primary),
        (0..9_usize).prop_map(ComparisonEvent::Replica)
    ];
    proptest::collection::vec(event, 0..60)
}

/// Feeds both streams piece by piece. Returns the number of bytes that were fed from each stream.
fn compare(
    comparison: &mut Comparison,
    primary: &[u8],
    replica: &[u8],
    events: &[ComparisonEvent],
) -> (usize, usize) {
    let (mut from_primary, mut from_replica) = (0, 0);
    for event in events {
        match *event {
            ComparisonEvent::Primary(count) => {
                let end = (from_primary + count).min(primary.len());
                comparison.on_primary(&primary[from_primary..end]);
                from_primary = end;
            }
            ComparisonEvent::Replica(count) => {
                let end = (from_replica + count).min(replica.len());
                comparison.on_replica(&replica[from_replica..end]);
                from_replica = end;
            }
        }
    }
    (from_primary, from_replica)
}

proptest! {
    /// For every position at which the primary dies, the client gets each byte exactly once.
    #[test]
    fn equal_streams_go_on_where_the_primary_stopped(stream in proptest::collection::vec(any::<u8>(), 0..200), events in events(), step in 1..9_usize) {
        let mut comparison = Comparison::new(1000);
        let (primary, replica) = compare(&mut comparison, &stream, &stream, &events);
        prop_assert_eq!(comparison.equal(), Offset(primary.min(replica) as u64));
        prop_assert_eq!(comparison.surplus(), primary.abs_diff(replica));
        prop_assert_eq!(comparison.replica_surplus(), replica.saturating_sub(primary));
        let (mut resumer, mut to_client) = ReplicaResumer::new(comparison.resume().unwrap());
        for bytes in stream[replica..].chunks(step) {
            resumer.on_application(bytes, &mut to_client).unwrap();
        }
        prop_assert_eq!(resumer.on_application_end(), Ok(()));
        prop_assert!(resumer.is_transparent());
        prop_assert_eq!(&to_client, &stream[primary..]);
    }

    #[test]
    fn the_first_difference_is_found_at_its_offset(stream in proptest::collection::vec(any::<u8>(), 1..200), at in any::<prop::sample::Index>(), xor in 1..=255_u8, events in events()) {
        let at = at.index(stream.len());
        let mut other = stream.clone();
        other[at] ^= xor;
        let mut comparison = Comparison::new(1000);
        let (primary, replica) = compare(&mut comparison, &stream, &other, &events);
        let found = primary.min(replica) > at;
        let reason = found.then_some(ReplicaReason::Differs { at: Offset(at as u64) });
        prop_assert_eq!(comparison.protection().err(), reason);
        if !found && primary > at {
            let (mut resumer, mut to_client) = ReplicaResumer::new(comparison.resume().unwrap());
            let missing = primary - at;
            prop_assert_eq!(resumer.on_application(&other[replica..], &mut to_client), Err(ReplicaMismatch::Differs { missing }));
            prop_assert!(to_client.is_empty());
        }
    }
}

#[test]
fn a_stream_that_ended_cannot_be_overtaken() {
    for end_first in [true, false] {
        let mut comparison = Comparison::new(10);
        comparison.on_primary(b"abc");
        comparison.on_replica(b"ab");
        if end_first {
            comparison.on_primary_end();
            assert_eq!(
                comparison.resume(),
                Ok(ReplicaResume::Behind {
                    said: b"c".to_vec(),
                    ended: true
                })
            );
            comparison.on_replica(b"cd");
        } else {
            comparison.on_replica(b"cd");
            assert_eq!(
                comparison.resume(),
                Ok(ReplicaResume::Ahead {
                    to_send: b"d".to_vec(),
                    ended: false
                })
            );
            comparison.on_primary_end();
        }
        assert_eq!(
            comparison.protection(),
            Err(ReplicaReason::Differs { at: Offset(3) })
        );
        assert_eq!(comparison.surplus(), 0);
    }
}

#[test]
fn an_output_that_ended_is_confirmed_and_not_continued() {
    let (mut resumer, first) = ReplicaResumer::new(ReplicaResume::Behind {
        said: b"abc".to_vec(),
        ended: true,
    });
    let mut to_client = Vec::new();
    assert!(first.is_empty() && !resumer.is_finished());
    assert_eq!(
        resumer.on_application_end(),
        Err(ReplicaMismatch::EndedEarly { missing: 3 })
    );
    resumer.on_application(b"abcd", &mut to_client).unwrap();
    assert!(to_client.is_empty() && resumer.is_finished() && !resumer.is_transparent());
}

#[test]
fn a_replica_too_far_behind_is_given_up() {
    let mut comparison = Comparison::new(4);
    comparison.on_primary(b"abcd");
    assert_eq!(comparison.protection(), Ok(()));
    comparison.on_primary(b"e");
    assert_eq!(
        comparison.protection(),
        Err(ReplicaReason::TooFarBehind { bytes: 4 })
    );
    comparison.on_replica(b"abcde");
    assert_eq!(
        (comparison.resume(), comparison.surplus()),
        (Err(ReplicaReason::TooFarBehind { bytes: 4 }), 0)
    );
}
