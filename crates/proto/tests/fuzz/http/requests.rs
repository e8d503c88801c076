//! Compares the tracker with an independent parser: both must find the same end of each request in a client's input.

use steadfast_proto::Offset;
use steadfast_proto::restart::http::{HttpReason, Rules, Tracker};

use super::other::{self, KawaEnd};

/// Ends of the requests in `stream` as the tracker finds them, and the reason why the tracker stopped reading, if it did.
fn ends(stream: &[u8]) -> (Vec<usize>, Option<HttpReason>) {
    let mut tracker = Tracker::new(Rules::default());
    let mut ends = Vec::new();
    for (at, byte) in stream.iter().enumerate() {
        tracker.on_input(&[*byte]);
        let end = at + 1;
        if tracker.unanswered() > ends.len() && tracker.is_asked_all(Offset(end as u64)) {
            ends.push(end);
        }
    }
    let mut at_once = Tracker::new(Rules::default());
    at_once.on_input(stream);
    assert_eq!(at_once.resume(), tracker.resume(), "pieces change the result");
    assert_eq!(at_once.restart_input(), tracker.restart_input());
    (ends, tracker.refusal().cloned())
}

#[test]
fn both_parsers_see_requests_end_at_the_same_places() {
    fuzz::target!("http_requests", |stream| {
        let (ends, refusal) = ends(stream);
        let mut begin = 0;
        for at in 0..=ends.len() {
            begin += super::blank(&stream[begin..]);
            match (ends.get(at), other::request(&stream[begin..]).end) {
                (Some(&end), KawaEnd::At(length)) => {
                    assert_eq!(end, begin + length, "request {at} ends elsewhere");
                    begin = end;
                }
                (_, KawaEnd::Wrong) => return, // kawa does not read on, so nothing can be compared
                (Some(end), KawaEnd::Open | KawaEnd::WithStream) => {
                    panic!("request {at} ends at {end}, but kawa finds no end")
                }
                (None, KawaEnd::At(length)) if refusal.is_none() => {
                    panic!("request {at} has no end, but kawa ends it at {}", begin + length)
                }
                (None, _) => {}
            }
        }
    });
}
