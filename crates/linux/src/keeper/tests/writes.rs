//! Tests of requests that change something. The keeper gives the application the logged input, then the client's further input. The keeper
//! answers a refused request after it has answered all earlier requests. It does not give a request to an application a third time.

use std::io::Read;
use std::time::Duration;

use proto::restart::http::{MARK, REFUSAL};
use socket2::SockRef;

use super::lab::*;
use crate::keeper::{ConnectionEnding, KeeperServiceStatus};

const GET: &str = "GET / HTTP/1.1\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nContent-Length: 400000\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn sums(lab: &mut KeeperLab) -> KeeperServiceStatus {
    lab.status().services["web"].clone()
}

#[test]
fn an_upload_goes_on_where_the_log_ends() {
    let body = pattern(3_000_000);
    let (logged, live) = body.split_at(1_000_000);
    let head = format!("Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut lab = KeeperLab::new();
    let expected = body.clone();
    let (address, application) = application(move |mut stream| {
        let head = read_request(&mut stream);
        say(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n");
        assert!(read_exactly(&mut stream, expected.len()) == expected);
        say(&mut stream, OK);
        head
    });
    let connection = connection();
    let line = "PUT /a HTTP/1.1\r\n";
    let input = [line.as_bytes(), head.as_bytes(), logged].concat();
    let plan = http(&input, b"HTTP/1.1 100 Continue\r\n\r\n");
    let adoption = adoption(1, &connection, address, plan);
    let mut client = lab.adopt(
        adoption,
        connection,
        &[line.as_bytes(), MARK, head.as_bytes(), logged],
    );
    say(&mut client, live);
    assert_eq!(
        read_exactly(&mut client, OK.len()),
        OK.as_bytes(),
        "and no second 100"
    );
    let seen = application.join().unwrap();
    assert_eq!(seen.as_bytes(), [line.as_bytes(), MARK, head.as_bytes()].concat());
    drop(client);
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
}

#[test]
fn a_refused_upload_is_answered_while_it_is_still_sent() {
    let mut lab = KeeperLab::new();
    let connection = connection();
    let adoption = adoption(1, &connection, nobody(), http(POST.as_bytes(), b""));
    let mut client = lab.adopt(adoption, connection, &[]);
    say(&mut client, pattern(400_000));
    assert_eq!(read_to_end(&mut client).unwrap(), REFUSAL);
    drop(client);
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
    assert_eq!(sums(&mut lab).refused, 1);
}

/// The keeper gives up a refused client that is silent for `linger`. A client that goes on sending is not silent, even
/// if its whole upload takes longer.
#[test]
fn a_refused_upload_that_goes_on_is_not_reset() {
    // Longer than the pauses between the client's writes on a busy machine, but shorter than the whole upload.
    let mut lab = KeeperLab::with(|options| options.linger = Duration::from_millis(600));
    let connection = connection();
    let adoption = adoption(1, &connection, nobody(), http(POST.as_bytes(), b""));
    let mut client = lab.adopt(adoption, connection, &[]);
    for _ in 0..60 {
        say(&mut client, pattern(1_000));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(read_to_end(&mut client).unwrap(), REFUSAL);
    drop(client);
    assert_eq!(lab.ended(1).ending, ConnectionEnding::Closed);
}

#[test]
fn nothing_behind_a_refused_request_reaches_the_application() {
    let mut lab = KeeperLab::new();
    let (address, application) = application(move |mut stream| {
        let seen = read_request(&mut stream);
        say(&mut stream, OK);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        (seen, rest)
    });
    let connection = connection();
    let plan = http([GET, POST].concat().as_bytes(), b"");
    let adoption = adoption(1, &connection, address, plan);
    let mut client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
    say(&mut client, pattern(400_000));
    say(&mut client, GET);
    assert_eq!(
        read_to_end(&mut client).unwrap(),
        [OK.as_bytes(), REFUSAL].concat()
    );
    assert_eq!(application.join().unwrap(), (GET.to_owned(), Vec::new()));
    assert_eq!(sums(&mut lab).refused, 1);
}

#[test]
fn a_request_that_fails_the_application_again_is_quarantined() {
    for (said, reset) in [("", true), ("", false), (&OK[..30], true), (&OK[..30], false)] {
        let mut lab = KeeperLab::new();
        let (address, _application) = application(move |mut stream| {
            read_request(&mut stream);
            if reset {
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
        });
        let connection = connection();
        let plan = http(GET.as_bytes(), said.as_bytes());
        let adoption = adoption(1, &connection, address, plan);
        let mut client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
        let seen = read_to_end(&mut client);
        drop(client);
        let ending = lab.ended(1).ending;
        if said.is_empty() {
            assert_eq!(
                (seen.unwrap(), ending),
                (REFUSAL.to_vec(), ConnectionEnding::Closed)
            );
        } else {
            assert!(is_reset(&seen) && ending.is_reset(), "{seen:?}");
        }
        let sums = sums(&mut lab);
        assert_eq!((sums.quarantined, sums.refused), (1, 0));
    }
}
