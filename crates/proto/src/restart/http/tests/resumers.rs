//! Tests of what the client gets from a [`HttpResumer`], and what it must not get.

use proptest::prelude::*;

use super::conversations::{until_close, with_length};
use super::trackers::garbage;
use super::*;
use crate::restart::digest::Digest;

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// The output for the client if the log ends after `said` and the application sends `regenerated` and closes.
fn after(said: &str, regenerated: &str) -> Result<String, HttpMismatch> {
    let resume = tracker(GET, said.as_bytes(), 11).resume().expect("restartable");
    continued(resume, regenerated.as_bytes(), 6)
        .map(|to_client| String::from_utf8(to_client).expect("text"))
        .map_err(|(mismatch, _)| mismatch)
}

fn reply(fields: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}")
}

fn header_differs(logged: &str, regenerated: &str) -> Result<String, HttpMismatch> {
    Err(HttpMismatch::Header {
        logged: logged.into(),
        regenerated: regenerated.into(),
    })
}

#[test]
fn another_status_header_or_body_is_a_mismatch() {
    let said = reply("ETag: 1\r\nContent-Length: 4\r\n", "ab");
    let again = |fields, body| after(&said, &reply(fields, body));
    assert_eq!(again("ETag: 1\r\nContent-Length: 4\r\n", "abcd"), Ok("cd".into()));
    assert_eq!(
        again("ETag: 2\r\nContent-Length: 4\r\n", "abcd"),
        header_differs("ETag: 1", "ETag: 2")
    );
    assert_eq!(
        again("ETag: 1\r\nContent-Length: 5\r\n", "abcde"),
        header_differs("Content-Length: 4", "Content-Length: 5")
    );
    assert_eq!(
        again("Content-Length: 4\r\n", "abcd"),
        header_differs("ETag: 1", "Content-Length: 4")
    );
    assert_eq!(
        again("ETag: 1\r\nContent-Length: 4\r\nX: y\r\n", "abcd"),
        header_differs("", "X: y")
    );
    assert_eq!(
        again("ETag: 1\r\nContent-Length: 4\r\n", "aXcd"),
        Err(HttpMismatch::Body { bytes: 2 })
    );
    assert_eq!(
        again("ETag: 1\r\nContent-Length: 4\r\n", "abc"),
        Err(HttpMismatch::EndedEarly)
    );
    assert_eq!(
        after(&said, "HTTP/1.1 404 Not Found\r\n\r\n"),
        header_differs("HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found")
    );
    assert_eq!(
        after(&said, "SSH-2.0-x\r\n\r\n"),
        Err(HttpMismatch::Malformed(HttpFault::Syntax(
            httparse::Error::Version
        )))
    );
    assert_eq!(after(&said, ""), Err(HttpMismatch::EndedEarly));
}

#[test]
fn a_failed_filter_stays_failed() {
    let resume = tracker(GET, reply("Content-Length: 4\r\n", "ab").as_bytes(), 11)
        .resume()
        .unwrap();
    let (mut resumer, mut to_client) = HttpResumer::new(resume);
    let mismatch = resumer
        .on_application(b"garbage\r\n\r\n", &mut to_client)
        .unwrap_err();
    let good = reply("Content-Length: 4\r\n", "abcd");
    assert_eq!(
        resumer.on_application(good.as_bytes(), &mut to_client),
        Err(mismatch.clone())
    );
    assert_eq!(resumer.on_application_end(&mut to_client), Err(mismatch));
    assert!(to_client.is_empty() && !resumer.is_transparent() && !resumer.is_finished());
}

#[test]
fn volatile_fields_may_differ_be_missing_or_move() {
    let said = reply(
        "Date: a\r\nETag: 1\r\nSet-Cookie: s=1\r\nContent-Length: 4\r\n",
        "ab",
    );
    for fields in [
        "Date: b\r\nETag: 1\r\nSet-Cookie: s=2\r\nContent-Length: 4\r\n",
        "ETag: 1\r\nContent-Length: 4\r\n",
        "ETag: 1\r\nSet-Cookie: s=2\r\nSet-Cookie: t=3\r\nContent-Length: 4\r\nAge: 7\r\nDate: b\r\n",
    ] {
        assert_eq!(
            after(&said, &reply(fields, "abcd")).as_deref(),
            Ok("cd"),
            "{fields}"
        );
    }
}

#[test]
fn a_cut_header_takes_from_the_regenerated_one_what_it_lacks() {
    let again = reply("Date: b\r\nETag: 1\r\nAge: 55\r\nContent-Length: 2\r\n", "ok");
    let rest = |said: &str| after(said, &again).expect("continued");
    assert_eq!(rest("HTTP/1.1 20"), again["HTTP/1.1 20".len()..]);
    assert_eq!(
        rest("HTTP/1.1 200 OK\r\nDate: a\r\nETag: 1\r\n"),
        "Age: 55\r\nContent-Length: 2\r\n\r\nok"
    );
    // The order of fields with different names has no meaning. So the missing lines are sent after the line that was cut.
    assert_eq!(
        rest("HTTP/1.1 200 OK\r\nETag: 1\r\nAge: 5"),
        "5\r\nDate: b\r\nContent-Length: 2\r\n\r\nok"
    );
    assert_eq!(
        rest("HTTP/1.1 200 OK\r\nETag: 1\r\nA"),
        "ge: 55\r\nDate: b\r\nContent-Length: 2\r\n\r\nok"
    );
    assert_eq!(
        rest("HTTP/1.1 200 OK\r\nAge: 1234"),
        "\r\nDate: b\r\nETag: 1\r\nContent-Length: 2\r\n\r\nok"
    );
    assert_eq!(
        rest("HTTP/1.1 200 OK\r\nAge: 1\r"),
        "\nDate: b\r\nETag: 1\r\nContent-Length: 2\r\n\r\nok"
    );
    assert_eq!(
        rest("HTTP/1.1 200 OK\r\nETag: 1\r\nContent-Length: 2\r\n\r"),
        "\nok"
    );
}

#[test]
fn a_cut_line_must_be_the_regenerated_one() {
    let again = reply("ETag: 1\r\nSet-Cookie: s=2\r\nContent-Length: 2\r\n", "ok");
    let cut = |fields: &str| after(&format!("HTTP/1.1 200 OK\r\n{fields}"), &again);
    assert_eq!(cut("ETag: 2"), header_differs("ETag: 2", "ETag: 1"));
    assert_eq!(
        cut("ETag: 1\r\nSet-Cookie: s"),
        Ok("=2\r\nContent-Length: 2\r\n\r\nok".into())
    );
    assert_eq!(
        cut("ETag: 1\r\nSet-Cookie: s=1"),
        header_differs("Set-Cookie: s=1", "Set-Cookie: s=2")
    );
    assert_eq!(cut("ETag: 1\r\n\r"), header_differs("", "Content-Length: 2"));
}

#[test]
fn chunks_that_were_promised_must_come() {
    let chunked = |body: &str| reply("Transfer-Encoding: chunked\r\n", body);
    let cut = |said: &str, again: &str| after(&chunked(said), &chunked(again));
    let four = "2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n";
    assert_eq!(cut("3\r\nab", four), Ok("c\r\n1\r\nd\r\n0\r\n\r\n".into()));
    assert_eq!(cut("4\r\nab", four), Ok("cd\r\n0\r\n\r\n".into()));
    assert_eq!(cut("5\r\nab", four), Err(HttpMismatch::BodyTooShort));
    assert_eq!(cut("2\r\nab\r\n3", four), Err(HttpMismatch::BodyTooShort));
    assert_eq!(
        cut("2\r\nab\r\n1\r", four),
        Ok("\nc\r\n1\r\nd\r\n0\r\n\r\n".into())
    );
    assert_eq!(cut("4\r\nabcd\r\n1", four), Err(HttpMismatch::BodyTooShort));
    assert_eq!(cut("5\r\nabcde", four), Err(HttpMismatch::BodyTooShort));
    assert_eq!(cut("2\r\nab\r\n0", four), Ok("2\r\ncd\r\n0\r\n\r\n".into()));
    assert_eq!(cut("2\r\nab\r\n0\r\n", four), Err(HttpMismatch::BodyTooLong));
    assert_eq!(cut("2\r\nab\r\n0\r", four), Err(HttpMismatch::BodyTooLong));
    assert_eq!(
        cut("2\r\nab\r\n0\r\n", "1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"),
        Err(HttpMismatch::BodyTooLong)
    );
    assert_eq!(cut("2\r\nab\r\n2;x", four), Err(HttpMismatch::ChunkExtension));
    assert_eq!(
        cut("4\r\nabcd\r\n0\r\nSum: 1", four),
        header_differs("Sum: 1", "")
    );
}

#[test]
fn interim_replies_are_repeated_or_dropped_but_never_mixed() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n";
    let last = reply("Content-Length: 2\r\n", "ok");
    let again = format!("{hints}{last}");
    assert_eq!(
        after("HTTP/1.1 10", &again),
        Ok(again["HTTP/1.1 10".len()..].into())
    );
    assert!(after("HTTP/1.1 103 Early Hints\r\nLink: b", &again).is_err());
    assert_eq!(after(hints, &last), Ok(last.clone()));
    assert_eq!(after(&last[..20], &again), Ok(last[20..].into()));
    assert_eq!(after(&last[..last.len() - 1], &again), Ok("k".into()));
}

#[test]
fn a_reply_that_ends_with_the_connection_never_looks_complete_by_failure() {
    let exchange = until_close();
    let said = exchange.reply("a", 1);
    let resume = tracker(exchange.request.as_bytes(), &said[..said.len() - 9], 11)
        .resume()
        .unwrap();
    assert_eq!(
        continued(resume.clone(), &said, 5),
        Ok(said[said.len() - 9..].to_vec())
    );
    assert_eq!(
        continued(resume, &said[..said.len() - 10], 5),
        Err((HttpMismatch::BodyTooShort, Vec::new()))
    );
}

#[test]
fn a_client_that_was_told_close_gets_the_end() {
    let close = "Content-Length: 2\r\nConnection: close\r\n";
    let keep_alive = "Content-Length: 2\r\nConnection: keep-alive\r\n";
    let resume = tracker(GET, reply(close, "o").as_bytes(), 11).resume().unwrap();
    let (mut resumer, mut to_client) = HttpResumer::new(resume);
    let again = format!("{}{}", reply(keep_alive, "ok"), reply(keep_alive, "ok"));
    resumer.on_application(again.as_bytes(), &mut to_client).unwrap();
    assert_eq!(to_client, b"k");
    assert!(resumer.is_finished());
}

#[test]
fn bytes_pass_at_once_where_nothing_is_owed() {
    assert!(HttpResumer::new(HttpResume::Idle).0.is_transparent());
    assert!(HttpResumer::new(HttpResume::Finished).0.is_finished());
}

#[test]
fn a_list_of_volatile_fields_cannot_hold_what_frames_the_reply() {
    let list = |name: &str| {
        Volatile::try_from(std::collections::BTreeMap::from([(
            name.to_owned(),
            VolatileRule::Splice,
        )]))
    };
    assert_eq!(
        list("Content-Length"),
        Err(VolatileError("content-length".into()))
    );
    let resume = tracker(
        GET,
        reply("X-Node: 1\r\nContent-Length: 2\r\n", "o").as_bytes(),
        9,
    )
    .resume()
    .unwrap();
    let (mut resumer, mut to_client) = HttpResumer::with_volatile(resume, list("X-Node").unwrap());
    resumer
        .on_application(
            reply("X-Node: 2\r\nContent-Length: 2\r\n", "ok").as_bytes(),
            &mut to_client,
        )
        .unwrap();
    assert_eq!(to_client, b"k");
}

proptest! {
    #[test]
    fn a_mad_application_never_panics(cut in 0..160_usize, application in proptest::collection::vec(garbage(), 0..20)) {
        let exchange = with_length();
        let said = exchange.reply("a", 1);
        let resume = tracker(exchange.request.as_bytes(), &said[..cut.min(said.len() - 1)], 11).resume().unwrap();
        let (mut resumer, mut to_client) = HttpResumer::new(resume);
        for bytes in application {
            let _ = resumer.on_application(&bytes, &mut to_client);
        }
        let _ = resumer.on_application_end(&mut to_client);
    }

    #[test]
    fn any_resume_from_outside_is_taken(head in proptest::option::of(garbage()), bytes in 0..5_u64, position in 0..4_u8, line in garbage(), application in garbage(), (from, length) in any::<(u64, u64)>(), status in 0..2_usize) {
        let position = match position {
            0 => ChunkPosition::Data { left: bytes },
            1 => ChunkPosition::DataEnd { has_cr: true },
            2 => ChunkPosition::SizeLine(line),
            _ => ChunkPosition::Trailer(line),
        };
        let digest = Digest::new().of_all();
        let body = Some(BodyPrefix { bytes, digest, position: BodyPosition::Chunked(position) });
        let head = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), head.unwrap_or_default()].concat();
        let request = PendingRequest { label: "GET /".into(), to_head: false, persists: true };
        let etag = "\"e\"".into();
        let rest = Some(Rest { from: from % 3, length: length % 3, digest, etag });
        let said = ReplyPrefix { interim: Vec::new(), head, body, rest };
        let (mut resumer, _) = HttpResumer::new(HttpResume::Again { said, requests: vec![request], refused: None });
        let replies: [&[u8]; 2] = [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\nETag: \"e\"\r\nContent-Range: bytes 0-0/1\r\n\r\n",
        ];
        let _ = resumer.on_application(replies[status], &mut Vec::new());
        let _ = resumer.on_application(&application, &mut Vec::new());
    }
}
