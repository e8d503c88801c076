//! Compares the tracker with an independent parser: both must find the same end of each reply in a server's output.

use steadfast_proto::restart::http::{HttpResume, Reexecute, Rules, Tracker};

use super::other::{self, KawaEnd, KawaMessage};

/// Feeds `requests` to a tracker. Returns the tracker, and for each request whether it is a HEAD. `None` if the last request is incomplete,
/// or if the tracker does not want the requests again.
pub fn asked(requests: &[u8]) -> Option<(Tracker, Vec<bool>)> {
    let mut tracker = Tracker::new(Rules {
        reexecute: Reexecute::ALL,
        ..Rules::default()
    });
    tracker.on_input(requests);
    let Ok(HttpResume::Again { requests: asked, .. }) = tracker.resume() else {
        return None;
    };
    let is_whole = tracker.is_asked_all(steadfast_proto::Offset(requests.len() as u64));
    is_whole.then(|| (tracker, asked.iter().map(|request| request.to_head).collect()))
}

/// Reads `stream` with Kawa, and skips interim replies. Returns the offset at which the first final reply begins, and that
/// reply.
pub fn final_reply(stream: &[u8], to_head: bool) -> (usize, KawaMessage) {
    let mut begin = 0;
    loop {
        let message = other::reply(&stream[begin..], to_head);
        match message.end {
            KawaEnd::At(length) if matches!(message.status, 100..200) && message.status != 101 => {
                begin += length
            }
            _ => return (begin, message),
        }
    }
}

#[test]
fn both_parsers_see_replies_end_at_the_same_places() {
    fuzz::target!("http_replies", |input| {
        let [requests, stream] = super::parts(input);
        let Some((mut tracker, to_head)) = asked(requests) else {
            return;
        };
        let mut ends = Vec::new();
        for (at, byte) in stream.iter().enumerate() {
            let before = tracker.unanswered();
            tracker.on_output(&[*byte]);
            if tracker.refusal().is_some() {
                break;
            }
            if tracker.unanswered() < before {
                ends.push(at + 1);
            }
        }
        let (mut at_once, _) = asked(requests).expect("as above");
        at_once.on_output(stream);
        assert_eq!(at_once.resume(), tracker.resume(), "pieces change the result");

        let mut begin = 0;
        for (at, &to_head) in to_head.iter().enumerate() {
            let (interim, reply) = final_reply(&stream[begin..], to_head);
            match (ends.get(at), reply.end) {
                (_, KawaEnd::Wrong) => return,
                _ if reply.status == 101 => return,
                (Some(&end), KawaEnd::At(length)) => {
                    assert_eq!(end, begin + interim + length, "reply {at} ends elsewhere");
                    begin = end;
                }
                (Some(end), KawaEnd::Open | KawaEnd::WithStream) => {
                    panic!("reply {at} ends at {end}, but kawa finds no end")
                }
                (None, KawaEnd::At(length)) => {
                    let is_over = tracker.refusal().is_some() || tracker.resume() == Ok(HttpResume::Finished);
                    assert!(
                        is_over,
                        "the tracker finds no end of reply {at}, but kawa finds one at {}",
                        begin + interim + length
                    );
                    return;
                }
                (None, KawaEnd::Open | KawaEnd::WithStream) => return,
            }
        }
    });
}
