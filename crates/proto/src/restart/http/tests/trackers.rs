//! Tests of what a [`Tracker`] knows at each moment.

use proptest::prelude::*;

use super::*;
use crate::spill::LogFull;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &[u8] = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn refused(input: &[u8], output: &[u8]) -> HttpReason {
    let tracker = tracker(input, output, 5);
    assert_eq!(
        tracker.restart_input(),
        Offset(input.len() as u64),
        "nothing needs to be kept"
    );
    assert_eq!(tracker.protection().err(), tracker.resume().err());
    tracker.resume().unwrap_err()
}

#[test]
fn the_restart_point_is_the_first_unanswered_request() {
    let mut tracker = Tracker::new(Rules::default());
    let get = GET.len() as u64;
    tracker.on_input(GET);
    tracker.on_input(GET);
    assert_eq!(tracker.restart_input(), Offset(0));
    tracker.on_output(&OK[..OK.len() - 1]);
    assert_eq!(tracker.restart_input(), Offset(0));
    tracker.on_output(&OK[OK.len() - 1..]);
    assert_eq!(tracker.restart_input(), Offset(get));
    tracker.on_output(OK);
    assert_eq!(tracker.restart_input(), Offset(2 * get));
    assert_eq!(tracker.resume(), Ok(HttpResume::Idle));
    tracker.on_input(&GET[..5]);
    assert_eq!(
        tracker.restart_input(),
        Offset(2 * get),
        "a request that has begun is needed from its start"
    );
    assert_eq!(tracker.resume(), Ok(HttpResume::Idle));
}

#[test]
fn blank_lines_between_requests_are_not_needed() {
    let tracker = tracker(&[GET, b"\r\n"].concat(), OK, 3);
    assert_eq!(tracker.restart_input(), Offset(GET.len() as u64 + 2));
}

#[test]
fn a_request_that_must_not_be_repeated_is_refused_or_cut_and_keeps_no_log() {
    let mut tracker = Tracker::new(Rules::default());
    tracker.on_input(GET);
    tracker.on_input(&POST[..20]);
    assert_eq!(
        tracker.protection(),
        Ok(()),
        "a request with an incomplete header cannot have been executed"
    );
    tracker.on_input(&POST[20..POST.len() - 1]);
    assert_eq!(tracker.protection(), Err(HttpReason::NotRepeatable(Method::Post)));
    assert_eq!(tracker.restart_input(), Offset(0), "the GET's reply is owed");
    let Ok(HttpResume::Again {
        requests, refused, ..
    }) = tracker.resume()
    else {
        panic!("{:?}", tracker.resume());
    };
    assert_eq!(requests.len(), 1);
    assert_eq!(&*refused.unwrap().label, "POST /");
    let feed = tracker.feed();
    assert_eq!(
        (feed.from, feed.until),
        (Offset(0), Some(Offset(GET.len() as u64)))
    );
    assert_eq!(feed.marks, [Offset(16)]);

    tracker.on_output(OK);
    assert_eq!(
        tracker.restart_input(),
        Offset((GET.len() + POST.len()) as u64 - 1),
        "an upload costs no log"
    );
    assert!(matches!(tracker.resume(), Ok(HttpResume::Refused(_))));
    tracker.on_input(&POST[POST.len() - 1..]);
    tracker.on_input(GET);
    assert_eq!(tracker.restart_input(), Offset((GET.len() + POST.len()) as u64));
    tracker.on_output(&OK[..1]);
    assert_eq!(tracker.resume(), Err(HttpReason::NotRepeatable(Method::Post)));
    tracker.on_output(&OK[1..]);
    assert_eq!(tracker.protection(), Ok(()));
    assert_eq!(tracker.restart_input(), Offset((GET.len() + POST.len()) as u64));
    assert!(matches!(tracker.resume(), Ok(HttpResume::Again { .. })));
}

#[test]
fn the_rule_and_the_key_say_what_is_repeated() {
    let again = |reexecute, request: &str| {
        let mut tracker = Tracker::new(Rules {
            reexecute,
            ..Rules::default()
        });
        tracker.on_input(request.as_bytes());
        matches!(tracker.resume(), Ok(HttpResume::Again { .. }))
    };
    let put = "PUT / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo";
    let keyed = "POST / HTTP/1.1\r\nidempotency-key: \"8e03978e\"\r\nContent-Length: 4\r\n\r\nbo";
    assert!(again(Reexecute::IDEMPOTENT, put) && again(Reexecute::IDEMPOTENT, keyed));
    assert!(!again(Reexecute::SAFE, put) && !again(Reexecute::SAFE, keyed));
    assert!(again(Reexecute::ALL, "PATCH / HTTP/1.1\r\n\r\n"));
}

#[test]
fn an_upload_is_kept_from_its_start_until_the_log_is_full() {
    let put = b"PUT /big HTTP/1.1\r\nContent-Length: 9\r\n\r\nbody";
    let mut tracker = tracker(GET, OK, 9);
    assert!(
        !tracker.shed(LogFull::Memory),
        "no request is unanswered, so no input is kept"
    );
    tracker.on_input(put);
    let start = Offset(GET.len() as u64);
    assert_eq!(tracker.restart_input(), start);
    assert_eq!(tracker.feed().marks, [start + 19]);
    assert!(tracker.shed(LogFull::Memory));
    assert_eq!(tracker.restart_input(), start + put.len() as u64);
    assert_eq!(
        tracker.protection(),
        Err(HttpReason::NotKept(Method::Put, LogFull::Memory))
    );
    assert!(matches!(tracker.resume(), Ok(HttpResume::Refused(request)) if &*request.label == "PUT /big"));
    tracker.on_input(b" more");
    tracker.on_output(OK);
    assert_eq!(tracker.protection(), Ok(()));
}

#[test]
fn interim_replies_are_counted_and_belong_to_one_request() {
    let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 P\r\n\r\nHTTP/1.1 102 P\r\n\r\n";
    let mut tracker = tracker(GET, interim, 7);
    let said = |tracker: &Tracker| match tracker.resume() {
        Ok(HttpResume::Again { said, .. }) => said.interim,
        other => panic!("{other:?}"),
    };
    assert_eq!(said(&tracker), [(100, 1), (102, 2)]);
    tracker.on_output(OK);
    tracker.on_input(GET);
    assert_eq!(said(&tracker), []);
}

#[test]
fn a_request_answered_before_its_end_owes_nothing() {
    let mut tracker = tracker(
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        OK,
        4,
    );
    assert_eq!(tracker.protection(), Ok(()));
    assert_eq!(
        tracker.resume(),
        Ok(HttpResume::Finished),
        "no application needs the rest of the body"
    );
    tracker.on_input(b"cde\r\n0\r\n\r\n");
    assert_eq!(tracker.resume(), Ok(HttpResume::Idle));
}

#[test]
fn other_protocols_are_recognised() {
    let upgrade = b"GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(refused(b"\x16\x03\x01\x02\x00\x01", b""), HttpReason::Tls);
    assert_eq!(
        refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
        HttpReason::Http2
    );
    assert_eq!(refused(b"\x80\x2e", b""), HttpReason::NotHttp);
    assert_eq!(
        refused(b"CONNECT a:1 HTTP/1.1\r\n\r\nanything", b""),
        HttpReason::Tunnel
    );
    assert_eq!(refused(upgrade, switching), HttpReason::Upgraded);
    assert_eq!(refused(b"", b"220 mail ready\r\n"), HttpReason::UnexpectedReply);
    assert_eq!(refused(GET, &[OK, OK].concat()), HttpReason::UnexpectedReply);
    assert!(matches!(
        refused(b"EHLO example\r\n\r\n", b""),
        HttpReason::Request(HttpFault::Syntax(_))
    ));
    assert!(matches!(
        refused(GET, b"220 mail ready\r\n\r\n"),
        HttpReason::Reply(HttpFault::Syntax(_))
    ));
}

#[test]
fn a_length_that_two_ends_may_read_differently_is_refused() {
    let request = |fields: &str| refused(format!("GET / HTTP/1.1\r\n{fields}\r\n").as_bytes(), b"");
    let reply = |fields: &str| refused(GET, format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes());
    let both = "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(request(both), HttpReason::Request(HttpFault::AmbiguousLength));
    assert_eq!(
        request("Content-Length: 2\r\nContent-Length: 2\r\n"),
        HttpReason::Request(HttpFault::AmbiguousLength)
    );
    assert_eq!(
        request("Content-Length: +2\r\n"),
        HttpReason::Request(HttpFault::ContentLength)
    );
    assert_eq!(
        request("Content-Length: 18446744073709551616\r\n"),
        HttpReason::Request(HttpFault::ContentLength)
    );
    assert_eq!(
        request("Transfer-Encoding: gzip\r\n"),
        HttpReason::Request(HttpFault::TransferEncoding)
    );
    assert_eq!(reply(both), HttpReason::Reply(HttpFault::AmbiguousLength));
    let chunked = |body: &str| {
        refused(
            GET,
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}").as_bytes(),
        )
    };
    assert_eq!(chunked("no\r\n"), HttpReason::Reply(HttpFault::ChunkSize));
    assert_eq!(chunked("2\r\nabc\r\n"), HttpReason::Reply(HttpFault::ChunkEnd));
    assert_eq!(
        chunked("10000000000000000\r\n"),
        HttpReason::Reply(HttpFault::ChunkSize)
    );
}

/// Receivers disagree about where a line with a bare LF or a stray CR ends.
#[test]
fn a_boundary_that_two_ends_may_see_elsewhere_is_refused() {
    let request = |text: &str| refused(text.as_bytes(), b"");
    for bare in [
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "POST / HTTP/1.1\r\nX: y\nContent-Length: 5\r\n\r\nhello",
    ] {
        assert_eq!(
            request(bare),
            HttpReason::Request(HttpFault::BareLineFeed),
            "{bare}"
        );
    }
    let chunked = |body: &str| {
        request(&format!(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
        ))
    };
    for size in [
        "5\n",
        "5;a\n",
        "5;a\nb\r\n",
        "5;a\rb\r\n",
        "5\r \r\n",
        "5\x0c\r\n",
        "5;\0\r\n",
    ] {
        assert_eq!(
            chunked(size),
            HttpReason::Request(HttpFault::ChunkSize),
            "{size:?}"
        );
    }
    for trailer in ["0\r\n\n", "0\r\nX: y\n\n", "0\r\nX: y\n\r\n"] {
        assert_eq!(
            chunked(trailer),
            HttpReason::Request(HttpFault::BareLineFeed),
            "{trailer:?}"
        );
    }
    for trailer in [
        "0\r\nno field\r\n\r\n",
        "0\r\nX: y\r\n folded\r\n\r\n",
        "0\r\nX: \0\r\n\r\n",
    ] {
        let reason = chunked(trailer);
        assert!(
            matches!(reason, HttpReason::Request(HttpFault::Syntax(_))),
            "{trailer:?}: {reason}"
        );
    }
}

#[test]
fn any_other_transfer_coding_is_refused() {
    for codings in [
        "gzip, chunked",
        "chunked, chunked",
        "chunked,",
        "chunked\r\nTransfer-Encoding: chunked",
        "chunked\r\nTransfer-Encoding: identity",
        "identity\r\nTransfer-Encoding: chunked",
    ] {
        let fields = format!("Transfer-Encoding: {codings}\r\n\r\n");
        let reason = refused(format!("POST / HTTP/1.1\r\n{fields}").as_bytes(), b"");
        assert_eq!(
            reason,
            HttpReason::Request(HttpFault::TransferEncoding),
            "{codings}"
        );
        let reason = refused(GET, format!("HTTP/1.1 200 OK\r\n{fields}").as_bytes());
        assert_eq!(
            reason,
            HttpReason::Reply(HttpFault::TransferEncoding),
            "{codings}"
        );
    }
    let of_no_class = refused(GET, b"HTTP/1.1 099 ?\r\n\r\n");
    assert!(
        matches!(of_no_class, HttpReason::Reply(HttpFault::Syntax(_))),
        "{of_no_class}"
    );
}

#[test]
fn headers_and_pipelines_are_bounded() {
    let long = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; HEAD_MAX]].concat();
    assert_eq!(refused(&long, b""), HttpReason::Request(HttpFault::HeadTooLong));
    assert_eq!(
        refused(&GET.repeat(REQUESTS_MAX + 1), b""),
        HttpReason::TooManyRequests
    );
    assert!(tracker(&GET.repeat(REQUESTS_MAX), b"", 999).protection().is_ok());
}

#[test]
fn the_last_reply_finishes_the_connection() {
    let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    let asked = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
    let http_1_0 = b"GET / HTTP/1.0\r\n\r\n";
    assert_eq!(
        tracker(&GET.repeat(3), closing, 9).resume(),
        Ok(HttpResume::Finished)
    );
    assert_eq!(tracker(asked, OK, 9).resume(), Ok(HttpResume::Finished));
    assert_eq!(tracker(http_1_0, OK, 9).resume(), Ok(HttpResume::Finished));

    let mut half_closed = tracker(GET, OK, 9);
    half_closed.on_input_end();
    assert_eq!(
        half_closed.resume(),
        Ok(HttpResume::Finished),
        "no reply is owed and no request can come"
    );
    let mut owed = tracker(GET, b"HTTP", 9);
    owed.on_input_end();
    assert!(matches!(owed.resume(), Ok(HttpResume::Again { .. })));
    owed.on_output_end();
    assert_eq!(
        owed.resume(),
        Ok(HttpResume::Finished),
        "the server itself closed in the middle of the reply"
    );
}

#[test]
fn an_idle_connection_is_small() {
    assert!(size_of::<Tracker>() <= 256, "{}", size_of::<Tracker>());
    let mut tracker = tracker(&GET.repeat(8), &OK.repeat(8), 50);
    assert_eq!(tracker.resume(), Ok(HttpResume::Idle));
    assert!(tracker.memory() <= 128, "{}", tracker.memory());
    tracker.on_input(GET);
    tracker.on_output(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n");
    tracker.on_output(&[b'x'; 1_000_000]);
    assert!(tracker.memory() <= 1024, "{}", tracker.memory());
    tracker.on_output(&[b'x'; 1_000_000]);
    assert_eq!(tracker.resume(), Ok(HttpResume::Idle));
    assert!(tracker.memory() <= 128, "{}", tracker.memory());
}

#[test]
fn what_is_known_of_a_cut_reply() {
    let reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n1a;x";
    let Ok(HttpResume::Again {
        said: ReplyPrefix {
            head,
            body: Some(body),
            ..
        },
        ..
    }) = tracker(GET, reply, 9).resume()
    else {
        panic!("a reply is under way");
    };
    assert_eq!(head, reply[..47]);
    let hash = |bytes: &[u8]| twox_hash::XxHash3_128::oneshot(bytes).to_be_bytes();
    assert_eq!(body.digest, hash(&[[0; 16], hash(b"abcd")].concat()));
    assert_eq!(body.bytes, 4);
    assert_eq!(
        body.position,
        BodyPosition::Chunked(ChunkPosition::SizeLine(b"1a;x".to_vec()))
    );
}

proptest! {
    #[test]
    fn garbage_is_refused_and_never_panics(streams in proptest::collection::vec((any::<bool>(), garbage()), 0..20)) {
        let mut tracker = Tracker::new(Rules::default());
        let (mut given, mut restart) = (0, Offset::ZERO);
        for (is_input, bytes) in streams {
            if is_input {
                tracker.on_input(&bytes);
                given += bytes.len() as u64;
            } else {
                tracker.on_output(&bytes);
            }
            prop_assert!(restart <= tracker.restart_input() && tracker.restart_input() <= Offset(given));
            restart = tracker.restart_input();
            prop_assert!(tracker.resume().is_ok() || tracker.protection().is_err());
        }
    }
}

/// Bytes that resemble HTTP.
pub fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..8),
        Just(GET.to_vec()),
        Just(POST.to_vec()),
        Just(OK.to_vec()),
        proptest::sample::select(vec![
            "HEAD / HTTP/1.0\r\n",
            "GET / HTTP/1.1\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 103 E\r\n\r\n",
            "HTTP/1.0 204\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Content-Length: 3\r\n",
            "Date: x",
            "\r\n",
            "\r",
            "\n",
            "0\r\n",
            "3\r\nabc\r\n",
            "a",
            ";",
            " ",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    proptest::collection::vec(word, 0..8).prop_map(|words| words.concat())
}
