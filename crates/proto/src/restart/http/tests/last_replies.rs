//! Tests [`LastReply`]: this filter makes a reply the last one of its connection, and no request gets lost.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::conversations::{DATES, HttpConversation, all};
use super::*;
use crate::restart::http::last_reply::LastReply;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const LAST: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// Runs the exchanges of `conversation` one after another, in pieces of `step` bytes. Returns the filter, the bytes
/// that the client gets, and the number of input bytes that the application gets.
fn follow(conversation: &HttpConversation, step: usize) -> (LastReply, Vec<u8>, usize) {
    let (mut last, mut said, mut given) = (LastReply::default(), Vec::new(), 0);
    for exchange in &conversation.exchanges {
        for piece in exchange.request.as_bytes().chunks(step) {
            given += last.on_input(piece);
        }
        for piece in exchange.reply(DATES[0], 30).chunks(step) {
            last.on_output(piece, &mut said);
        }
    }
    (last, said, given)
}

/// The lines of a message's header, except those about the connection, and the bytes after the header.
fn parts(message: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut rest = message;
    let mut head = Vec::new();
    loop {
        let end = rest
            .iter()
            .position(|&byte| byte == b'\n')
            .expect("a whole header")
            + 1;
        let (line, after) = rest.split_at(end);
        rest = after;
        if line.trim_ascii().is_empty() {
            return (head, rest);
        }
        if !line.to_ascii_lowercase().starts_with(b"connection") {
            head.push(line);
        }
    }
}

#[test]
fn the_next_reply_of_every_framing_is_the_last_one() {
    for conversation in all() {
        for step in [1, 7, 1000] {
            let (last, said, given) = follow(&conversation, step);
            let whole = conversation.output(0, DATES[0], 30);
            let name = conversation.name;
            if name == "until close" {
                assert!(last.is_off() && said == whole, "{name}: its server closes");
                continue;
            }
            assert!(last.is_said(), "{name}");
            let asked = conversation.exchanges[0].request.len();
            assert_eq!(
                given, asked,
                "{name}: the application gets no input after the first request"
            );
            let reply = conversation.exchanges[0].reply(DATES[0], 30);
            if name == "interim" {
                let end = said.windows(4).position(|at| at == b"\r\n\r\n").expect("there") + 4;
                assert_eq!(
                    said[..end],
                    reply[..end],
                    "an interim reply does not announce the end of the connection"
                );
                assert_eq!(parts(&said[end..]), parts(&reply[end..]));
                continue;
            }
            assert_eq!(parts(&said), parts(&reply), "{name}");
            let text = String::from_utf8_lossy(&said);
            assert_eq!(text.matches("Connection: close\r\n").count(), 1, "{text}");
            assert!(!text.to_ascii_lowercase().contains("keep-alive"), "{text}");
        }
    }
}

#[test]
fn other_options_of_the_connection_stay() {
    let mut last = LastReply::default();
    last.on_input(GET);
    let mut said = Vec::new();
    let reply = b"HTTP/1.1 204 x\r\nconnection: Keep-Alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\nCONNECTION:x-other\r\n\r\n";
    last.on_output(reply, &mut said);
    assert_eq!(
        said.escape_ascii().to_string(),
        r"HTTP/1.1 204 x\r\nX-Hop: 1\r\nConnection: close, X-Hop, x-other\r\n\r\n"
    );
}

#[test]
fn what_has_no_end_of_its_own_passes_as_it_is() {
    let upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\0\0";
    for (input, output) in [
        (&b"CONNECT a:1 HTTP/1.1\r\n\r\nxyz"[..], OK),
        (GET, upgrade),
        (GET, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody"),
        (GET, b"* not HTTP\r\n\r\n"),
        (b"\x16\x03\x01", b"\x16\x03\x03"),
        (b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"),
    ] {
        for step in [1, 5, 1000] {
            let (mut last, mut said) = (LastReply::default(), Vec::new());
            let given: usize = input.chunks(step).map(|piece| last.on_input(piece)).sum();
            output
                .chunks(step)
                .for_each(|piece| last.on_output(piece, &mut said));
            assert_eq!(
                (given, &said[..]),
                (input.len(), output),
                "{}",
                output.escape_ascii()
            );
            assert_eq!(last.on_input(b"more"), 4);
        }
    }
}

/// The header of a cut reply has already told the client that the connection stays open.
#[test]
fn a_reply_that_is_continued_is_not_the_last_one() {
    let resume = tracker(GET, &OK[..OK.len() - 1], 9)
        .resume()
        .expect("restartable");
    let (mut resumer, mut to_client) = HttpResumer::new(resume);
    resumer.close_softly();
    assert_eq!(resumer.on_input(GET), GET.len());
    resumer.on_application(OK, &mut to_client).expect("the same");
    assert_eq!(to_client, b"k");
    assert!(!resumer.is_finished() && !resumer.is_transparent());
    to_client.clear();
    assert_eq!(resumer.on_input(GET), GET.len());
    resumer.on_application(OK, &mut to_client).expect("any");
    assert_eq!(
        to_client.escape_ascii().to_string(),
        LAST.escape_ascii().to_string()
    );
    assert!(resumer.is_finished());
    assert_eq!(resumer.on_input(GET), 0);
}

#[test]
fn a_body_whose_end_cannot_be_found_ends_visibly() {
    let (mut last, mut said) = (LastReply::default(), Vec::new());
    last.on_input(GET);
    last.on_output(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc?",
        &mut said,
    );
    assert!(
        last.is_said() && said.ends_with(b"3\r\nabc"),
        "{}",
        said.escape_ascii()
    );
}

/// Requests without and with a body, as bytes.
fn request() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(GET.to_vec()),
        (0_usize..40).prop_map(|len| {
            let head = format!("POST / HTTP/1.1\r\nContent-Length: {len}\r\n\r\n");
            [head.into_bytes(), vec![b'G'; len]].concat()
        }),
        Just(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".to_vec()),
    ]
}

proptest! {
    /// A client pipelines at will, and the server answers whole requests in pieces of any size. Each request that the server was
    /// given gets its reply, and only the last reply says that it is the last.
    #[test]
    fn nothing_that_was_given_is_left_unanswered(
        requests in prop::collection::vec(request(), 1..8),
        turns in prop::collection::vec((any::<bool>(), 1_usize..60), 1..200),
    ) {
        let input = requests.concat();
        let (mut last, mut said) = (LastReply::default(), Vec::new());
        let (mut sent, mut given) = (0, Vec::new());
        let mut owed: VecDeque<u8> = VecDeque::new();
        let (mut asked, mut answered) = (0, 0);
        for (client, count) in turns {
            if client {
                let piece = &input[sent..input.len().min(sent + count)];
                sent += piece.len();
                let taken = last.on_input(piece);
                given.extend_from_slice(&piece[..taken]);
                // The server answers each whole request that it has.
                let mut end = 0;
                let whole = requests.iter().take_while(|one| { end += one.len(); end <= given.len() }).count();
                for _ in asked..whole {
                    owed.extend(OK);
                }
                asked = whole;
            } else if !last.is_said() {
                let piece: Vec<u8> = owed.drain(..count.min(owed.len())).collect();
                last.on_output(&piece, &mut said);
            }
            prop_assert!(!last.is_off());
        }
        let mut rest = &said[..];
        while let Some(after) = rest.strip_prefix(OK) {
            (rest, answered) = (after, answered + 1);
        }
        if last.is_said() {
            prop_assert_eq!(rest, LAST);
            prop_assert_eq!(answered + 1, asked);
            let whole: usize = requests[..asked].iter().map(Vec::len).sum();
            prop_assert_eq!(given.len(), whole, "no part of another request was given");
            prop_assert!(owed.is_empty());
        } else if given.len() < sent {
            // The last reply has begun.
            prop_assert!(!rest.is_empty() && LAST.starts_with(rest), "input is withheld only after the last reply has begun");
            prop_assert_eq!(answered + 1, asked);
            let whole: usize = requests[..asked].iter().map(Vec::len).sum();
            prop_assert_eq!(given.len(), whole, "no part of another request was given");
        }
    }
}
