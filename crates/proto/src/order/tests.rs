use std::collections::VecDeque;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;

fn any_event() -> impl Strategy<Value = OrderEvent> {
    let source = prop_oneof![
        any::<u32>().prop_map(Source::Listener),
        any::<u32>().prop_map(Source::Connection)
    ];
    let ready = prop::collection::vec((source, any::<u32>()), 0..5);
    let outcome = || prop_oneof![any::<u64>().prop_map(Ok), (0..4096_i32).prop_map(Err)];
    prop_oneof![
        (any::<u32>(), any::<SocketAddr>()).prop_map(|(listener, client)| OrderEvent::Accepted {
            listener,
            outcome: Ok(SocketAddr::new(client.ip(), client.port())),
        }),
        (any::<u32>(), 0..4096_i32).prop_map(|(listener, error)| OrderEvent::Accepted {
            listener,
            outcome: Err(error)
        }),
        ready.prop_map(|sources| OrderEvent::Ready(Ok(sources))),
        (0..4096_i32).prop_map(|error| OrderEvent::Ready(Err(error))),
        (any::<u32>(), outcome()).prop_map(|(connection, outcome)| OrderEvent::Read { connection, outcome }),
        (any::<u32>(), outcome())
            .prop_map(|(connection, outcome)| OrderEvent::Written { connection, outcome }),
        (any::<u32>(), outcome()).prop_map(|(connection, outcome)| OrderEvent::Asked { connection, outcome }),
        (0..CLOCKS as u8, any::<u64>()).prop_map(|(clock, nanos)| OrderEvent::Clock { clock, nanos }),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(OrderEvent::Random),
        any::<u32>().prop_map(OrderEvent::Pid),
        any::<u32>().prop_map(|stream| OrderEvent::Forked { stream }),
    ]
}

proptest! {
    #[test]
    fn a_record_is_read_as_it_was_written_however_it_is_cut(
        events in prop::collection::vec(any_event(), 0..30),
        cut in 1..20_usize,
    ) {
        let mut encoder = OrderEncoder::default();
        let mut record = Vec::new();
        for event in &events {
            encoder.encode(event, &mut record);
        }
        let mut decoder = OrderDecoder::default();
        let mut read = Vec::new();
        let mut waiting = Vec::new();
        for part in record.chunks(cut) {
            waiting.extend(part);
            let mut rest = &waiting[..];
            while let Some(event) = decoder.decode(&mut rest).expect("a record") {
                read.push(event);
            }
            waiting = rest.to_vec();
        }
        prop_assert!(waiting.is_empty());
        prop_assert_eq!(read, events);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut decoder = OrderDecoder::default();
        let mut rest = &bytes[..];
        while let Ok(Some(_)) = decoder.decode(&mut rest) {}
    }
}

fn record(events: &[OrderEvent]) -> Vec<u8> {
    let mut recorder = OrderRecorder::default();
    events.iter().for_each(|event| recorder.record(event));
    recorder.unsent().to_vec()
}

fn playback(policy: OnDivergence, events: &[OrderEvent]) -> OrderPlayback {
    let mut playback = OrderPlayback::new(policy);
    playback.feed(&record(events));
    playback
}

const READ: OrderCall = OrderCall::Read {
    connection: 0,
    size: 100,
};
const CLOCK: OrderCall = OrderCall::Clock { clock: 1 };

fn read(bytes: u64) -> OrderEvent {
    OrderEvent::Read {
        connection: 0,
        outcome: Ok(bytes),
    }
}

fn clock(nanos: u64) -> OrderEvent {
    OrderEvent::Clock { clock: 1, nanos }
}

fn ready() -> OrderEvent {
    OrderEvent::Ready(Ok(vec![(Source::Connection(0), 1)]))
}

#[test]
fn a_write_waits_until_the_backup_has_all_events_before_it() {
    let mut recorder = OrderRecorder::default();
    assert!(recorder.may_write(), "it depends on nothing");
    recorder.record(&read(10));
    assert!(!recorder.may_write(), "the event is here only");
    recorder.receipt(recorder.len());
    assert!(!recorder.may_write(), "a receipt for bytes that were never sent");
    recorder.sent(recorder.unsent().len());
    assert!(!recorder.may_write(), "the event is under way");
    recorder.receipt(recorder.len() - 1);
    assert!(!recorder.may_write(), "a part of the event is under way");
    recorder.receipt(recorder.len());
    assert!(recorder.may_write());
    recorder.receipt(0);
    assert!(recorder.may_write(), "an old receipt changes nothing");
    let before = recorder.len();
    recorder.record(&clock(5));
    assert!(!recorder.may_write(), "the next write depends on the clock");
    assert_eq!(recorder.released(), before, "an earlier write does not");
}

/// A child leaves its next event to the program that it starts, unless the event was played.
#[test]
fn an_event_that_only_a_surplus_clock_call_has_met_is_not_played() {
    let mut playback = playback(OnDivergence::Unprotect, &[clock(5), OrderEvent::Pid(7)]);
    assert_eq!(playback.step(CLOCK), Ok(OrderStep::Event(clock(5))));
    assert_eq!(playback.step(CLOCK), Ok(OrderStep::Repeat(5)));
    assert!(!playback.is_drained());
    assert_eq!(
        playback.step(OrderCall::Pid),
        Ok(OrderStep::Event(OrderEvent::Pid(7)))
    );
    assert!(playback.is_drained());
}

#[test]
fn a_write_does_not_wait_while_no_backup_takes_the_record() {
    let mut recorder = OrderRecorder::default();
    recorder.record(&read(10));
    recorder.sent(1);
    recorder.alone();
    assert!(recorder.may_write());
    recorder.receipt(1);
    assert!(!recorder.may_write(), "a backup takes the record again");
}

#[test]
fn the_backups_kernel_gives_receipts_before_the_agent_has_the_record() {
    let mut recorder = OrderRecorder::default();
    assert_eq!(recorder.offer(), None, "nothing is recorded");
    recorder.record(&read(10));
    let first = recorder.unsent().to_vec();
    assert!(
        !recorder.kernel_receipt(1),
        "a receipt for bytes that were never offered"
    );
    assert_eq!(recorder.offer(), Some((0, &first[..])));
    recorder.offered();
    assert_eq!(recorder.offer(), None, "all was offered");
    assert!(recorder.kernel_receipt(recorder.len()) && recorder.may_write());
    assert!(!recorder.kernel_receipt(recorder.len()), "again");

    let before = recorder.len();
    recorder.record(&clock(5));
    let second = recorder.unsent()[first.len()..].to_vec();
    assert_eq!(
        recorder.offer(),
        Some((before, &second[..])),
        "only what has no receipt"
    );
    recorder.offered();
    recorder.sent(recorder.unsent().len());
    assert!(recorder.unsent().is_empty() && !recorder.may_write());
    recorder.record(&clock(6));
    let (from, bytes) = recorder.offer().expect("an event is new");
    assert!(
        from == before && bytes.starts_with(&second),
        "the first offer may be lost"
    );
    recorder.receipt(recorder.len() - recorder.unsent().len() as u64);
    assert_eq!(
        recorder.offer().map(|(from, _)| from),
        Some(before + second.len() as u64)
    );
    recorder.offered();
    assert!(!recorder.may_write());
    assert!(recorder.kernel_receipt(recorder.len()) && recorder.may_write());
}

#[test]
fn only_the_agent_ends_the_time_alone() {
    let mut recorder = OrderRecorder::default();
    recorder.record(&read(10));
    recorder.alone();
    recorder.offered();
    assert!(recorder.kernel_receipt(1));
    assert!(recorder.may_write(), "the agent knows of no backup");
    recorder.sent(recorder.unsent().len());
    assert_eq!(recorder.offer(), None, "what the agent has is not kept");
    recorder.receipt(1);
    assert!(!recorder.may_write());
}

#[test]
fn a_long_record_without_receipts_goes_only_over_the_agents() {
    let mut recorder = OrderRecorder::default();
    let (mut offers, mut all) = (0, Vec::<u8>::new());
    for nanos in 0..10_000 {
        recorder.record(&clock(nanos << 40));
        offers += usize::from(recorder.offer().is_some());
        all.extend(recorder.unsent());
        recorder.sent(recorder.unsent().len());
    }
    assert!(offers > 100 && recorder.offer().is_none());
    assert_eq!(all.len() as u64, recorder.len());
    recorder.receipt(recorder.len());
    recorder.record(&clock(1));
    let (from, bytes) = recorder.offer().expect("the receipts have caught up");
    assert_eq!((from, bytes), (all.len() as u64, recorder.unsent()));
}

#[test]
fn the_server_goes_on_alone_after_the_records_end() {
    let mut playback = playback(OnDivergence::Unprotect, &[read(10)]);
    assert_eq!(playback.step(READ), Ok(OrderStep::Event(read(10))));
    assert_eq!(playback.step(READ), Ok(OrderStep::Wait));
    let half_an_event = &record(&[read(1 << 20)])[..2];
    playback.feed(half_an_event);
    assert_eq!(playback.step(READ), Ok(OrderStep::Wait));
    playback.end();
    assert_eq!(playback.step(READ), Ok(OrderStep::Live));
    assert_eq!(playback.counts().divergences, 0);
}

#[test]
fn clock_calls_do_not_shift_the_order_of_other_calls() {
    let events = [clock(10), read(1), clock(20), clock(30), read(2)];
    let mut playback = playback(OnDivergence::Unprotect, &events);
    assert_eq!(playback.step(CLOCK), Ok(OrderStep::Event(clock(10))));
    assert_eq!(
        playback.step(CLOCK),
        Ok(OrderStep::Repeat(10)),
        "one call too many"
    );
    assert_eq!(playback.step(READ), Ok(OrderStep::Event(read(1))));
    assert_eq!(
        playback.step(READ),
        Ok(OrderStep::Event(read(2))),
        "two calls too few"
    );
    let counts = playback.counts();
    assert_eq!((counts.clocks_repeated, counts.clocks_skipped), (1, 2));
    assert_eq!(counts.divergences, 0);
}

/// A coarse clock's value comes with the wait. Nobody need read it, and who reads it often shifts nothing.
#[test]
fn coarse_clocks_move_on_with_the_waits() {
    let coarse = |nanos| OrderEvent::Clock {
        clock: COARSE_CLOCKS[1],
        nanos,
    };
    let events = [coarse(5), coarse(8), ready(), clock(3), read(4)];
    let mut playback = playback(OnDivergence::Unprotect, &events);
    let call = OrderCall::Clock {
        clock: COARSE_CLOCKS[1],
    };
    assert_eq!(
        playback.last(COARSE_CLOCKS[1]),
        None,
        "the first call has an event"
    );
    assert_eq!(playback.step(call), Ok(OrderStep::Event(coarse(5))));
    assert_eq!(playback.last(COARSE_CLOCKS[1]), Some(5));
    assert_eq!(playback.step(OrderCall::Ready), Ok(OrderStep::Event(ready())));
    assert_eq!(playback.last(COARSE_CLOCKS[1]), Some(8));
    assert_eq!(playback.counts().clocks_skipped, 0);
    let call = OrderCall::Clock { clock: 1 };
    assert_eq!(playback.step(call), Ok(OrderStep::Event(clock(3))));
}

#[test]
fn a_diverging_server_is_on_its_own_unless_the_log_is_trusted() {
    let events = [read(200), read(3), ready(), read(5), read(6), ready()];
    let mut alone = playback(OnDivergence::Unprotect, &events);
    assert_eq!(alone.step(READ), Ok(OrderStep::Live), "200 bytes do not fit");
    assert_eq!(alone.step(OrderCall::Ready), Ok(OrderStep::Live));
    assert_eq!(alone.counts().divergences, 1);
    assert_eq!(alone.first_divergence(), Some((READ, &read(200))));

    let mut trusting = playback(OnDivergence::TrustLog, &events);
    assert_eq!(trusting.step(READ), Ok(OrderStep::Diverged));
    assert_eq!(trusting.step(OrderCall::Ready), Ok(OrderStep::Event(ready())));
    assert_eq!(trusting.step(READ), Ok(OrderStep::Event(read(5))));
    let counts = trusting.counts();
    assert_eq!((counts.divergences, counts.skipped), (1, 2));
    assert_eq!(trusting.step(OrderCall::Ready), Ok(OrderStep::Event(ready())));
    let counts = trusting.counts();
    assert_eq!((counts.divergences, counts.skipped), (2, 3), "a read is missing");
}

#[test]
fn a_record_that_cannot_be_followed_is_left() {
    let mut alone = playback(OnDivergence::Unprotect, &[read(1), read(2)]);
    assert_eq!(alone.step(READ), Ok(OrderStep::Event(read(1))));
    assert!(!alone.cannot_follow());
    assert_eq!(alone.step(READ), Ok(OrderStep::Live));
    alone.feed(&record(&[read(3)]));
    assert_eq!(
        alone.step(READ),
        Ok(OrderStep::Live),
        "it never returns to the record"
    );
    assert_eq!(alone.counts().divergences, 1);

    let mut trusting = playback(OnDivergence::TrustLog, &[read(1), ready()]);
    assert!(trusting.cannot_follow());
    assert_eq!(trusting.step(READ), Ok(OrderStep::Event(read(1))));
}

#[test]
fn bad_bytes_are_named_by_their_position() {
    let mut bytes = record(&[read(1)]);
    let at = bytes.len() as u64;
    bytes.push(0xff);
    let mut playback = OrderPlayback::new(OnDivergence::Unprotect);
    playback.feed(&bytes);
    assert_eq!(playback.step(READ), Ok(OrderStep::Event(read(1))));
    let what = "an unknown kind of event";
    assert_eq!(playback.step(READ), Err(BadRecord { at, what }));
}

/// A server whose state depends on the order in which it reads from its clients, and on the clock.
struct AppendingServer {
    state: Vec<u64>,
}

impl AppendingServer {
    /// One round: wait, read from each ready client, stamp. Returns false if the record has no more.
    fn round(&mut self, mut call: impl FnMut(OrderCall) -> Option<OrderEvent>) -> bool {
        let Some(OrderEvent::Ready(Ok(sources))) = call(OrderCall::Ready) else {
            return false;
        };
        for (source, _) in sources {
            let Source::Connection(connection) = source else {
                continue;
            };
            let size = 100;
            let Some(OrderEvent::Read {
                outcome: Ok(bytes), ..
            }) = call(OrderCall::Read { connection, size })
            else {
                return false;
            };
            self.state.extend([u64::from(connection), bytes]);
        }
        if let Some(OrderEvent::Clock { nanos, .. }) = call(CLOCK) {
            self.state.push(nanos);
        }
        true
    }
}

proptest! {
    /// The primary fails after any byte of the record. What the replica has done is then what the primary did first.
    #[test]
    fn a_replica_does_what_the_server_did(
        rounds in prop::collection::vec((prop::collection::vec((0..4_u32, 0..100_u64), 0..4), any::<u64>()), 1..10),
        kept in 0..1000_usize,
    ) {
        let mut recorder = OrderRecorder::default();
        let mut server = AppendingServer { state: Vec::new() };
        for (reads, now) in &rounds {
            let mut reads_left: VecDeque<_> = reads.iter().copied().collect();
            server.round(|call| {
                let event = match call {
                    OrderCall::Ready => OrderEvent::Ready(Ok(reads
                        .iter()
                        .map(|(connection, _)| (Source::Connection(*connection), 1))
                        .collect())),
                    OrderCall::Read { connection, .. } => OrderEvent::Read {
                        connection,
                        outcome: Ok(reads_left.pop_front().expect("it was ready").1),
                    },
                    _ => clock(*now),
                };
                recorder.record(&event);
                Some(event)
            });
        }
        let record = recorder.unsent();
        let mut playback = OrderPlayback::new(OnDivergence::Unprotect);
        playback.feed(&record[..kept.min(record.len())]);
        playback.end();
        let mut replica = AppendingServer { state: Vec::new() };
        while replica.round(|call| match playback.step(call).expect("a record") {
            OrderStep::Event(event) => Some(event),
            _ => None,
        }) {}
        prop_assert_eq!(playback.counts().divergences, 0);
        prop_assert!(server.state.starts_with(&replica.state));
        if kept >= record.len() {
            prop_assert_eq!(replica.state, server.state);
        }
    }
}
