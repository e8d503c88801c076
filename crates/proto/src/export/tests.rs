use std::collections::VecDeque;

use super::*;

fn client(number: u16) -> SocketAddr {
    ([10, 0, 0, 1], number).into()
}

fn place(input: u32, output: u32) -> ExportPlace {
    ExportPlace {
        input: Seq(input),
        output: Seq(output),
    }
}

fn state(length: usize) -> Arc<[u8]> {
    (0..length).map(|at| (at / 7 % 256) as u8).collect()
}

/// Both halves, and a network that loses a share of the messages.
struct TransferTestbed {
    exports: Exports,
    arrivals: SnapshotArrivals,
    now: Instant,
    random: u64,
    /// One message of this many is lost; zero: none.
    loss: u64,
    arrived: Vec<(SocketAddr, ArrivedSnapshot)>,
    /// The backup's decision about a complete snapshot.
    standing: SnapshotStanding,
    sent: usize,
}

impl TransferTestbed {
    fn new(loss: u64) -> Self {
        Self {
            exports: Exports::new(Instant::ZERO),
            arrivals: SnapshotArrivals::default(),
            now: Instant::ZERO,
            random: 1,
            loss,
            arrived: Vec::new(),
            standing: SnapshotStanding::Kept,
            sent: 0,
        }
    }

    fn is_lost(&mut self) -> bool {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.loss > 0 && (self.random >> 33).is_multiple_of(self.loss)
    }

    /// Lets time pass until there are `count` outcomes, for at most a minute.
    fn outcomes(&mut self, count: usize) -> Vec<(Vec<u64>, ExportOutcome)> {
        let mut outcomes = Vec::new();
        for _ in 0..60_000 {
            let mut receipts = VecDeque::new();
            while let Some(part) = self.exports.poll_part(self.now) {
                self.sent += 1;
                assert!(part.bytes.len() <= PART_MAX);
                if self.is_lost() {
                    continue;
                }
                let (client, number, size) = (part.client, part.number, part.size);
                let whole = PartReceipt {
                    number,
                    client,
                    arrived: size,
                    standing: Some(self.standing.clone()),
                };
                if self.arrived.iter().any(|(_, snapshot)| snapshot.number == number) {
                    receipts.push_back(whole);
                    continue;
                }
                receipts.push_back(match self.arrivals.on_part(part) {
                    Err(receipt) => receipt,
                    Ok(snapshot) => {
                        self.arrived.push((client, snapshot));
                        whole
                    }
                });
            }
            for receipt in receipts {
                if !self.is_lost() {
                    self.exports.on_receipt(self.now, &receipt);
                }
            }
            self.now += Duration::from_millis(1);
            if self.exports.poll_timeout().is_some_and(|due| self.now >= due) {
                self.exports.handle_timeout(self.now);
            }
            outcomes.extend(std::iter::from_fn(|| self.exports.poll_outcome()));
            if outcomes.len() >= count {
                break;
            }
        }
        outcomes
    }
}

#[test]
fn a_state_of_any_size_arrives_whole_also_with_loss() {
    for loss in [0, 2, 5] {
        for size in [0, 1, PART_MAX, PART_MAX + 1, 3 * WINDOW + 5, STATE_MAX / 16] {
            let mut transfer = TransferTestbed::new(loss);
            transfer
                .exports
                .begin(transfer.now, (7, true), client(1), place(3, 4), state(size));
            assert_eq!(
                transfer.outcomes(1),
                [(vec![7], ExportOutcome::Kept)],
                "{loss} {size}"
            );
            let (of, snapshot) = &transfer.arrived[0];
            assert_eq!((*of, snapshot.place), (client(1), place(3, 4)));
            assert_eq!(snapshot.state, state(size));
        }
    }
}

#[test]
fn nothing_is_sent_twice_without_loss() {
    let mut transfer = TransferTestbed::new(0);
    transfer.exports.begin(
        transfer.now,
        (1, true),
        client(1),
        place(0, 0),
        state(10 * PART_MAX),
    );
    transfer.outcomes(1);
    assert_eq!(transfer.sent, 10);
}

/// A large state does not delay the small ones behind it.
#[test]
fn several_states_are_transferred_at_the_same_time() {
    let mut transfer = TransferTestbed::new(0);
    transfer
        .exports
        .begin(transfer.now, (1, true), client(1), place(0, 0), state(STATE_MAX));
    transfer
        .exports
        .begin(transfer.now, (2, true), client(2), place(0, 0), state(100));
    assert_eq!(transfer.outcomes(1), [(vec![2], ExportOutcome::Kept)]);
    assert_eq!(transfer.outcomes(1), [(vec![1], ExportOutcome::Kept)]);
}

#[test]
fn a_later_snapshot_answers_for_an_earlier_one() {
    let mut transfer = TransferTestbed::new(0);
    for call in 1..=3 {
        transfer.exports.begin(
            transfer.now,
            (call, true),
            client(1),
            place(u32::try_from(call).expect("small"), 0),
            state(10),
        );
    }
    assert_eq!(transfer.outcomes(1), [(vec![3, 2, 1], ExportOutcome::Kept)]);
    assert_eq!(transfer.arrived.len(), 1, "the first two were never sent");
    // Call 4 has been sent, but not answered, when call 5 begins. The backup's answer to call 5 also answers call 4.
    transfer
        .exports
        .begin(transfer.now, (4, true), client(1), place(9, 50), state(10));
    transfer.now += Duration::from_secs(1);
    while transfer.exports.poll_part(transfer.now).is_some() {}
    transfer
        .exports
        .begin(transfer.now, (5, true), client(1), place(9, 60), state(10));
    let mut answered: Vec<u64> = transfer
        .outcomes(2)
        .into_iter()
        .flat_map(|(calls, _)| calls)
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, [4, 5]);
}

/// The backup says by itself when a snapshot has waited long enough. If this message is lost, the primary asks.
#[test]
fn a_snapshot_that_waits_is_asked_about() {
    let mut transfer = TransferTestbed::new(0);
    transfer.standing = SnapshotStanding::Waits;
    transfer.exports.begin(
        transfer.now,
        (1, true),
        client(1),
        place(0, 9),
        state(PART_MAX * 3),
    );
    while let Some(part) = transfer.exports.poll_part(transfer.now) {
        if let Ok(snapshot) = transfer.arrivals.on_part(part) {
            let receipt = PartReceipt {
                number: snapshot.number,
                client: client(1),
                arrived: PART_MAX * 3,
                standing: Some(SnapshotStanding::Waits),
            };
            transfer.exports.on_receipt(transfer.now, &receipt);
        }
    }
    transfer.now += ASK_AGAIN;
    transfer.exports.handle_timeout(transfer.now);
    let question = transfer.exports.poll_part(transfer.now).expect("it asks");
    assert_eq!((question.at, question.bytes.len()), (PART_MAX * 3, 0));
    assert_eq!(transfer.exports.poll_part(transfer.now), None);
    assert_eq!(transfer.exports.poll_outcome(), None);
}

#[test]
fn a_wait_ends() {
    let mut transfer = TransferTestbed::new(1); // all messages are lost
    transfer
        .exports
        .begin(transfer.now, (1, true), client(1), place(0, 0), state(10));
    assert_eq!(transfer.outcomes(1), [(vec![1], ExportOutcome::TimedOut)]);
    assert!(transfer.now.since(Instant::ZERO) >= EXPORT_MAX);
    transfer
        .exports
        .begin(transfer.now, (2, true), client(1), place(0, 0), state(10));
    transfer.exports.finish_all(&ExportOutcome::Moved);
    assert_eq!(
        transfer.exports.poll_outcome(),
        Some((vec![2], ExportOutcome::Moved))
    );
    assert_eq!(transfer.exports.poll_timeout(), None);
}

#[test]
fn what_waits_is_bounded() {
    let mut exports = Exports::new(Instant::ZERO);
    let all = QUEUE_MAX / STATE_MAX;
    for call in 0..=all {
        let number = u16::try_from(call).expect("small");
        exports.begin(
            Instant::ZERO,
            (call as u64, true),
            client(number),
            place(0, 0),
            vec![0; STATE_MAX].into(),
        );
    }
    let (calls, outcome) = exports.poll_outcome().expect("one is too many");
    assert_eq!(calls, [all as u64]);
    assert_eq!(outcome, ExportOutcome::TimedOut);
    assert_eq!(exports.poll_outcome(), None);
}

#[test]
fn bad_parts_are_refused() {
    let part = |number, size, at, bytes: &[u8]| SnapshotPart {
        number,
        client: client(1),
        place: place(0, 0),
        size,
        at,
        bytes: bytes.to_vec(),
    };
    let refuses = |arrivals: &mut SnapshotArrivals, part| {
        let answer = arrivals.on_part(part);
        answer.is_err_and(|receipt| matches!(receipt.standing, Some(SnapshotStanding::Unfit(_))))
    };
    let mut arrivals = SnapshotArrivals::default();
    assert!(
        refuses(&mut arrivals, part(1, STATE_MAX + 1, 0, b"a")),
        "too long"
    );
    assert!(refuses(&mut arrivals, part(1, 3, 2, b"ab")), "beyond the end");
    assert!(refuses(&mut arrivals, part(1, usize::MAX, usize::MAX, b"ab")));
    assert!(
        arrivals
            .on_part(part(5, 3, 0, b"a"))
            .is_err_and(|receipt| receipt.arrived == 1)
    );
    assert!(
        refuses(&mut arrivals, part(4, 3, 0, b"xyz")),
        "of an earlier snapshot"
    );
    assert!(
        arrivals
            .on_part(part(5, 3, 2, b"c"))
            .is_err_and(|receipt| receipt.arrived == 1),
        "after a gap"
    );
    let whole = arrivals.on_part(part(5, 3, 0, b"abc")).expect("it is whole");
    assert_eq!(&*whole.state, b"abc");
}

#[test]
fn the_backup_keeps_a_bounded_number_of_parts() {
    let mut arrivals = SnapshotArrivals::default();
    for number in 0..1_000 {
        let part = SnapshotPart {
            number: 1,
            client: client(number),
            place: place(0, 0),
            size: 2,
            at: 0,
            bytes: vec![0],
        };
        assert!(arrivals.on_part(part).is_err());
    }
    assert!(format!("{arrivals:?}").matches("PartialSnapshot").count() <= 16);
}

/// The backup forgets parts if its agent is replaced. Then the whole state is sent again.
#[test]
fn parts_that_the_backup_has_lost_are_sent_again() {
    let mut transfer = TransferTestbed::new(0);
    transfer
        .exports
        .begin(transfer.now, (1, true), client(1), place(0, 0), state(3 * WINDOW));
    for _ in 0..6 {
        let part = transfer.exports.poll_part(transfer.now);
        let Some(part) = part else { break };
        let receipt = transfer.arrivals.on_part(part).expect_err("there is more");
        transfer.exports.on_receipt(transfer.now, &receipt);
    }
    transfer.arrivals = SnapshotArrivals::default();
    assert_eq!(transfer.outcomes(1), [(vec![1], ExportOutcome::Kept)]);
    assert_eq!(transfer.arrived[0].1.state, state(3 * WINDOW));
}

/// A connection with frequent exports has its turn.
#[test]
fn a_later_snapshot_keeps_the_place_of_the_earlier_one() {
    let mut exports = Exports::new(Instant::ZERO);
    for number in 1..=10 {
        exports.begin(
            Instant::ZERO,
            (number.into(), true),
            client(number),
            place(0, 0),
            state(9 * WINDOW),
        );
    }
    exports.begin(Instant::ZERO, (11, true), client(5), place(1, 0), state(1));
    while exports.poll_part(Instant::ZERO).is_some() {} // of the first four
    let receipt = PartReceipt {
        number: 1,
        client: client(1),
        arrived: 9 * WINDOW,
        standing: Some(SnapshotStanding::Kept),
    };
    exports.on_receipt(Instant::ZERO, &receipt);
    let next = exports.poll_part(Instant::ZERO).expect("another one may begin");
    assert_eq!((next.client, next.place), (client(5), place(1, 0)));
}

/// Nobody waits for the outcome of an export without waiting, so it is not kept while it waits at the backup for output.
#[test]
fn an_export_without_a_waiter_ends_when_it_has_arrived() {
    for waits in [true, false] {
        let mut exports = Exports::new(Instant::ZERO);
        exports.begin(Instant::ZERO, (1, waits), client(1), place(0, 9), state(3));
        let part = exports.poll_part(Instant::ZERO).expect("it is sent");
        let receipt = PartReceipt {
            number: part.number,
            client: part.client,
            arrived: 3,
            standing: Some(SnapshotStanding::Waits),
        };
        exports.on_receipt(Instant::ZERO, &receipt);
        assert_eq!(exports.poll_timeout().is_some(), waits);
    }
}
