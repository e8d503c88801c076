use std::sync::Arc;

use super::*;
use crate::Offset;
use crate::restart::replay::{RepetitionFilter, ReplayTracker};
use crate::spill::Spills;
use crate::spill::tests::TestDepot;
use crate::stream::StreamLog;

const BEGIN: (Seq, Seq) = (Seq(u32::MAX - 100), Seq(7));

fn client() -> SocketAddr {
    ([192, 0, 2, 9], 4000).into()
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at / 3) as u8).collect()
}

fn limits(connection: u64, all: u64) -> KeepLimits {
    KeepLimits {
        connection_bytes_max: connection,
        bytes_max: all,
    }
}

fn ask(input: u64, from: u64) -> PrefixAsk {
    PrefixAsk {
        client: client(),
        input: Offset(input).to_seq(BEGIN.0),
        from,
    }
}

/// The part of an answer.
fn part(kept: &KeptInput, input: u64, from: u64) -> PrefixPart {
    kept.answer(&ask(input, from), true).content.expect("it is kept")
}

/// A wire that learns the connection at input byte `.0` and output byte `.1`.
struct LearningWire {
    input: u64,
    first: (Seq, Seq),
    tracker: ReplayTracker,
}

impl LearningWire {
    fn at(input: u64, output: u64) -> Self {
        Self {
            input,
            first: (Offset(input).to_seq(BEGIN.0), Offset(output).to_seq(BEGIN.1)),
            tracker: ReplayTracker::learnt(),
        }
    }

    /// Asks until all input has come. Returns the output that the survivor had sent by then.
    fn fetch(&mut self, kept: &KeptInput) -> EarlierOutput {
        let joining = self.tracker.joining_mut().expect("not joined yet");
        for _ in 0..100 {
            let answer = kept.answer(&ask(self.input, joining.arrived()), true);
            for piece in answer.split() {
                let piece = piece.content.expect("it is kept");
                assert!(piece.bytes.len() <= PREFIX_PART_MAX);
                joining
                    .take(&piece, self.first.0, (u64::MAX, None))
                    .expect("it fits");
                if joining.is_complete() {
                    return piece.output.expect("nothing is repeated");
                }
            }
        }
        panic!("{} of {} bytes have come", joining.arrived(), self.input);
    }

    /// Joins the connection. Returns its input, or `None` if another place is necessary.
    fn join(&mut self, place: EarlierOutput) -> Option<StreamLog> {
        let joining = self.tracker.joining_mut().expect("not joined yet");
        let (joined, after) = joining.place(place, self.first.1)?;
        let input = joining.take_input();
        self.tracker.join(joined, &after);
        input
    }

    /// What passes to the client if an application says `said`.
    fn passes(&self, said: &[u8]) -> Result<Vec<u8>, String> {
        self.tracker.restarts()?;
        let mut filter = RepetitionFilter::new(self.tracker.repetition()).after(self.tracker.earlier());
        let mut to_client = Vec::new();
        for piece in said.chunks(1000) {
            filter
                .on_application(piece, &mut to_client)
                .map_err(|mismatch| mismatch.to_string())?;
        }
        Ok(to_client)
    }
}

#[test]
fn input_comes_whole_whatever_its_length() {
    for length in [0, 1, PREFIX_PART_MAX, PREFIX_WINDOW + 1, 500_000] {
        for spills in [None, Some(Spills::new(Box::new(TestDepot::default()), u64::MAX))] {
            let limit = if spills.is_some() { 70_000 } else { u64::MAX };
            let all = KeptInputs::new(limits(limit, u64::MAX), spills);
            let mut kept = KeptInput::new(Arc::clone(&all), BEGIN);
            let input = bytes(length);
            input.chunks(7000).for_each(|piece| kept.on_input(piece));
            assert!(all.memory() <= limit.saturating_add(32_768), "{}", all.memory());
            kept.on_output(b"hello");
            let mut wire = LearningWire::at(length as u64, 5);
            let place = wire.fetch(&kept);
            let log = wire.join(place).expect("the place is right");
            assert_eq!(log.start(), Offset(Offset::LEARNT.0 - length as u64));
            assert!(log.slices(log.start()..log.frontier()).flatten().eq(&input));
            assert_eq!(log.start().to_seq(log.first()), BEGIN.0);
            assert_eq!((all.live(), all.given_up()), (1, 0));
            drop(kept);
            assert_eq!((all.live(), all.memory()), (0, 0));
        }
    }
}

#[test]
fn output_is_compared_from_the_connections_start_wherever_the_log_begins() {
    let said = bytes(60_000);
    // The wire's log begins at `learnt`, the survivor has sent up to `place`, and the wire has logged up to `logged`.
    for (learnt, place, logged) in [
        (0, 0, 0),
        (10, 10, 40_000),
        (20_000, 40_000, 30_000),
        (20_000, 40_000, 40_000),
        (20_000, 30_000, 50_000),
        (50_000, 50_000, 50_000),
    ] {
        let all = KeptInputs::new(limits(u64::MAX, u64::MAX), None);
        let mut kept = KeptInput::new(all, BEGIN);
        kept.on_input(b"request");
        kept.on_output(&said[..place]);
        let mut wire = LearningWire::at(7, learnt as u64);
        let before = logged.min(learnt + 5000).min(place);
        wire.tracker.on_output(&said[learnt..before]);
        let place = wire.fetch(&kept);
        wire.tracker.on_output(&said[before..logged]);
        wire.join(place).expect("the place is in the log");
        let place = usize::try_from(place.bytes).expect("small");
        assert_eq!(
            wire.tracker.restarts().is_ok(),
            place <= logged,
            "{learnt} {place} {logged}"
        );
        let end = logged.max(place);
        wire.tracker.on_output(&said[logged..end]);
        assert_eq!(wire.passes(&said).expect("the same"), said[end..]);
        for wrong in [0, learnt, place.saturating_sub(1), end.saturating_sub(1)] {
            let mut other = said.clone();
            other[wrong] ^= 1;
            assert_eq!(wire.passes(&other).is_err(), wrong < end, "byte {wrong} of {end}");
        }
    }
}

#[test]
fn a_place_that_is_no_longer_in_the_log_is_asked_for_again() {
    let said = bytes(3 << 20);
    let all = KeptInputs::new(limits(u64::MAX, u64::MAX), None);
    let mut kept = KeptInput::new(all, BEGIN);
    kept.on_input(b"request");
    kept.on_output(&said[..1000]);
    let mut wire = LearningWire::at(7, 500);
    let place = wire.fetch(&kept);
    wire.tracker.on_output(&said[500..]);
    let joining = wire.tracker.joining().expect("not joined yet");
    assert!(joining.place(place, wire.first.1).is_none());
    assert!(joining.memory() < 2 << 20, "{}", joining.memory());
    kept.on_output(&said[1000..]);
    let place = wire.fetch(&kept);
    wire.join(place).expect("this place is new");
    assert_eq!(wire.passes(&said), Ok(Vec::new()));
}

/// The recent output is cut at its beginning.
#[test]
fn the_last_megabyte_of_output_is_kept_until_the_input_has_come() {
    let said: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7 + at / 1000) as u8).collect();
    let all = KeptInputs::new(limits(u64::MAX, u64::MAX), None);
    let mut kept = KeptInput::new(all, BEGIN);
    kept.on_input(b"request");
    kept.on_output(&said[..2_500_000]);
    let mut wire = LearningWire::at(7, 0);
    let place = wire.fetch(&kept);
    for piece in said.chunks(700_000) {
        wire.tracker.on_output(piece);
    }
    wire.join(place).expect("the place is in the last megabyte");
    assert_eq!(wire.passes(&said), Ok(Vec::new()));
    let mut other = said.clone();
    other[2_600_000] ^= 1;
    assert!(wire.passes(&other).is_err());
}

#[test]
fn at_a_limit_input_is_given_up_and_counted() {
    let full = Spills::new(Box::new(TestDepot::default()), 100_000);
    for (limits, spills) in [
        (limits(70_000, u64::MAX), None),
        (limits(u64::MAX, 70_000), None),
        (limits(70_000, u64::MAX), Some(full)),
    ] {
        let all = KeptInputs::new(limits, spills.clone());
        let mut kept = KeptInput::new(Arc::clone(&all), BEGIN);
        kept.on_input(&bytes(9_000));
        assert!(kept.is_whole());
        (0..40).for_each(|_| kept.on_input(&bytes(9_000)));
        assert!(!kept.is_whole());
        assert_eq!((all.live(), all.given_up(), all.memory()), (0, 1, 0));
        let refusal = kept.answer(&ask(9_000, 0), true).content;
        assert_eq!(
            refusal,
            Err("its input reached the limit of kept input".to_owned())
        );
        assert_eq!(spills.map_or(0, |spills| spills.bytes()), 0);
    }
}

#[test]
fn input_that_is_too_long_for_this_node_is_refused() {
    let all = KeptInputs::new(limits(u64::MAX, u64::MAX), None);
    let mut kept = KeptInput::new(all, BEGIN);
    kept.on_input(&bytes(200_000));
    let mut wire = LearningWire::at(200_000, 0);
    let joining = wire.tracker.joining_mut().expect("not joined yet");
    let first = wire.first.0;
    let mut outcome = Ok(());
    while outcome.is_ok() && !joining.is_complete() {
        outcome = joining.take(&part(&kept, 200_000, joining.arrived()), first, (100_000, None));
    }
    let reason = outcome.expect_err("100,000 bytes are the limit");
    assert_eq!(reason, "its earlier input is too long: the log reached its limit");
}

/// Answers may be lost. A question that is asked again may bring bytes that have come already.
#[test]
fn parts_may_be_missing_and_overlap() {
    let input = bytes(50_000);
    let all = KeptInputs::new(limits(u64::MAX, u64::MAX), None);
    let mut kept = KeptInput::new(all, BEGIN);
    kept.on_input(&input);
    let head = part(&kept, 50_000, 0);
    let cut = |from: usize, to: usize| PrefixPart {
        at: from as u64,
        bytes: input[from..to].to_vec(),
        ..head.clone()
    };
    let mut wire = LearningWire::at(50_000, 0);
    let first = wire.first.0;
    let joining = wire.tracker.joining_mut().expect("not joined yet");
    let mut take = |part: &PrefixPart| {
        joining.take(part, first, (u64::MAX, None)).expect("it fits");
        joining.arrived()
    };
    assert_eq!(take(&cut(0, 10_000)), 10_000);
    assert_eq!(take(&cut(10_001, 20_000)), 10_000, "a byte is missing");
    assert_eq!(take(&cut(2_000, 9_000)), 10_000, "a copy");
    assert_eq!(take(&cut(5_000, 20_000)), 20_000);
    let mut end = cut(20_000, 50_000);
    end.bytes.extend(b"bytes of the wire's log");
    assert_eq!(take(&end), 50_000);
    let place = head.output.expect("nothing is repeated");
    let log = wire.join(place).expect("the place is right");
    assert!(log.slices(log.start()..log.frontier()).flatten().eq(&input));
}

#[test]
fn an_answer_is_bounded_and_its_pieces_follow_each_other() {
    let input = bytes(500_000);
    let all = KeptInputs::new(limits(u64::MAX, u64::MAX), None);
    let mut kept = KeptInput::new(all, BEGIN);
    kept.on_input(&input);
    let pieces = kept.answer(&ask(500_000, 30_000), true).split();
    assert_eq!(pieces.len(), PREFIX_WINDOW / PREFIX_PART_MAX);
    let mut at = 30_000;
    for piece in pieces {
        let piece = piece.content.expect("it is kept");
        assert_eq!(
            (piece.at, piece.until),
            (at as u64, 30_000 + PREFIX_WINDOW as u64)
        );
        assert_eq!(piece.bytes, input[at..at + PREFIX_PART_MAX]);
        at += piece.bytes.len();
    }
}

#[test]
fn a_survivor_whose_application_repeats_output_has_no_place_yet() {
    let all = KeptInputs::new(limits(u64::MAX, u64::MAX), None);
    let mut kept = KeptInput::new(all, BEGIN);
    kept.on_output(b"repeated");
    let place = |is_new| {
        kept.answer(&ask(0, 0), is_new)
            .content
            .expect("it is kept")
            .output
    };
    assert_eq!(place(false), None);
    assert_eq!(place(true).map(|place| place.bytes), Some(8));
}

/// A client may have another connection from the same port, and its sequence numbers may be anything.
#[test]
fn parts_of_another_connection_are_refused() {
    let all = KeptInputs::new(limits(u64::MAX, u64::MAX), None);
    let mut kept = KeptInput::new(Arc::clone(&all), BEGIN);
    kept.on_input(&bytes(50_000));
    let mut wire = LearningWire::at(50_000, 0);
    let first = wire.first.0;
    let joining = wire.tracker.joining_mut().expect("not joined yet");
    let mut fits = |part: &PrefixPart| joining.take(part, first, (u64::MAX, None)).is_ok();
    let right = part(&kept, 50_000, 0);
    let elsewhere = PrefixPart {
        size: 49_999,
        ..right.clone()
    };
    assert!(!fits(&elsewhere));
    assert!(fits(&right) && fits(&right), "copies do no harm");
    let mut other = KeptInput::new(all, (BEGIN.0 + 1, BEGIN.1));
    other.on_input(&bytes(49_999));
    assert!(!fits(&part(&other, 50_000, 40_000)));
    let output = PrefixPart {
        begins_at: (BEGIN.0, BEGIN.1 + 1),
        ..right
    };
    assert!(!fits(&output));
    // A connection whose first byte comes after the wire's log.
    let later = KeptInput::new(
        KeptInputs::new(limits(1, 1), None),
        (Offset(50_001).to_seq(BEGIN.0), BEGIN.1),
    );
    assert!(later.answer(&ask(50_000, 0), true).content.is_err());
}
