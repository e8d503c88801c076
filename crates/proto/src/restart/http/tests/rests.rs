//! Tests of range requests: a reply that was cut far from its beginning is continued by a request for the rest of its body.

use proptest::prelude::*;

use super::*;
use crate::restart::http::rest::SAVES_MIN;

const GET: &str = "GET /film HTTP/1.1\r\nHost: a\r\n\r\n";
const FIELDS: &str =
    "Server: a\r\nDate: then\r\nContent-Type: video/mp4\r\nETag: \"5-e\"\r\nAccept-Ranges: bytes\r\n";
const LENGTH: usize = 200_000;
/// Number of body bytes that were sent before the cut. The range request asks again for at least the last 16 KiB of these bytes.
const CUT: usize = 150_000;

fn content() -> Vec<u8> {
    (0..LENGTH as u32)
        .map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect()
}

/// The tracker of a reply to `request` with the header fields `fields`, cut after `cut` bytes of its body.
fn cut(request: &str, fields: &str, cut: usize) -> Tracker {
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {LENGTH}\r\n\r\n");
    let said = [head.as_bytes(), &content()[..cut]].concat();
    tracker(request.as_bytes(), &said, 1448)
}

fn asked(tracker: &Tracker) -> String {
    String::from_utf8(tracker.feed().fields).expect("text")
}

/// The reply to a request for the content from `from` on.
fn partial(from: u64, fields: &str) -> Vec<u8> {
    let from = usize::try_from(from).expect("small");
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\n{fields}Content-Range: bytes {from}-{}/{LENGTH}\r\nContent-Length: {}\r\n\r\n",
        LENGTH - 1,
        LENGTH - from
    );
    [head.as_bytes(), &content()[from..]].concat()
}

/// Offset in the content from which `tracker` asks for the rest.
fn from(tracker: &Tracker) -> u64 {
    let Ok(HttpResume::Again { said, .. }) = tracker.resume() else {
        panic!("restartable");
    };
    said.rest.expect("the rest is asked for").from
}

#[test]
fn the_rest_is_asked_for_by_its_strong_validator_and_continues_the_reply() {
    let tracker = cut(GET, FIELDS, CUT);
    let from = from(&tracker);
    assert!((16_384..32_768).contains(&(CUT as u64 - from)), "{from}");
    assert_eq!(
        asked(&tracker),
        format!("Range: bytes={from}-\r\nIf-Range: \"5-e\"\r\n")
    );
    let again = partial(
        from,
        "Server: a\r\nDate: now\r\nContent-Type: video/mp4\r\nETag: \"5-e\"\r\nVia: b\r\n",
    );
    for step in [1, 1000, usize::MAX] {
        let rest = continued(tracker.resume().unwrap(), &again, step);
        assert!(rest == Ok(content()[CUT..].to_vec()), "in pieces of {step}");
    }
}

/// An application that does not support ranges, or whose content has changed, replies with the whole content.
#[test]
fn an_application_may_reply_with_the_whole() {
    let resume = cut(GET, FIELDS, CUT).resume().unwrap();
    let head = format!("HTTP/1.1 200 OK\r\n{FIELDS}Content-Length: {LENGTH}\r\n\r\n");
    let again = [head.as_bytes(), &content()].concat();
    assert!(continued(resume.clone(), &again, 1000) == Ok(content()[CUT..].to_vec()));
    let changed = again
        .iter()
        .enumerate()
        .map(|(at, byte)| byte ^ u8::from(at == head.len()));
    let changed: Vec<u8> = changed.collect();
    let (mismatch, passed) = continued(resume, &changed, 1000).unwrap_err();
    assert_eq!(mismatch, HttpMismatch::Body { bytes: CUT as u64 });
    assert!(passed.is_empty());
}

#[test]
fn what_does_not_identify_its_content_is_made_again() {
    let without = |line: &str| FIELDS.replace(line, "");
    for fields in [
        FIELDS.replace("\"5-e\"", "W/\"5-e\""),
        FIELDS.replace("\"5-e\"", "5-e"),
        FIELDS.replace("\"5-e\"", "\"5\"e\""),
        FIELDS.replace("Accept-Ranges: bytes", "Accept-Ranges: none"),
        without("ETag: \"5-e\"\r\n"),
        without("Accept-Ranges: bytes\r\n"),
        format!("{FIELDS}ETag: \"5-f\"\r\n"),
        format!("{FIELDS}Content-Encoding: gzip\r\n"),
        format!("{FIELDS}Content-Digest: sha-256=:AA==:\r\n"),
    ] {
        assert_eq!(asked(&cut(GET, &fields, CUT)), "", "{fields}");
    }
    let at_least = usize::try_from(SAVES_MIN).expect("small") + 16_384;
    assert_eq!(asked(&cut(GET, FIELDS, at_least - 1)), "", "little is saved");
    assert_ne!(asked(&cut(GET, FIELDS, at_least)), "");
    for request in [
        GET.replace("GET", "PUT"),
        GET.replace("HTTP/1.1", "HTTP/1.0\r\nConnection: keep-alive"),
        GET.replace("Host: a", "Host: a\r\nRange: bytes=0-"),
        GET.replace("Host: a", "Host: a\r\nIf-Range: \"x\""),
    ] {
        assert_eq!(asked(&cut(&request, FIELDS, CUT)), "", "{request}");
    }
    let mut whole = Tracker::new(Rules {
        ranges: false,
        ..Rules::default()
    });
    whole.on_input(GET.as_bytes());
    let said = format!("HTTP/1.1 200 OK\r\n{FIELDS}Content-Length: {LENGTH}\r\n\r\n");
    whole.on_output(&[said.as_bytes(), &content()[..CUT]].concat());
    assert_eq!(asked(&whole), "", "the operator has turned ranges off");
}

#[test]
fn another_part_or_another_content_is_a_mismatch() {
    let tracker = cut(GET, FIELDS, CUT);
    let good = partial(from(&tracker), FIELDS);
    let good = good.as_slice();
    let text = |section: &[u8]| String::from_utf8_lossy(section).into_owned();
    let end = good.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let (head, body) = good.split_at(end);
    let range = text(head)
        .lines()
        .find(|line| line.starts_with("Content-Range"))
        .unwrap()
        .to_owned();
    for (one, other) in [
        (range.as_str(), "Content-Range: bytes 0-1/2"),
        (range.as_str(), "X: y"),
        (range.as_str(), &format!("{range}\r\n{range}")),
        ("ETag: \"5-e\"", "ETag: \"5-f\""),
        ("ETag: \"5-e\"", "ETag: W/\"5-e\""),
        ("ETag: \"5-e\"", "X: y"),
        ("video/mp4", "text/html"),
        ("Content-Length: ", "Content-Length: 1"),
        ("Content-Length: ", "X: "),
    ] {
        let changed = text(head).replace(one, other);
        assert_ne!(changed.as_bytes(), head, "{one}");
        let again = [changed.as_bytes(), body].concat();
        let (mismatch, passed) = continued(tracker.resume().unwrap(), &again, 1000).expect_err(other);
        assert!(passed.is_empty(), "{mismatch}");
    }
    // After only 5 bytes, the whole content is requested, so a partial reply is a mismatch.
    let little = cut(GET, FIELDS, 5).resume().unwrap();
    assert!(continued(little, good, 1000).is_err());
}

/// The second and the third request ask for the whole content. All three requests get the header line [`MARK`].
#[test]
fn only_the_first_request_is_changed() {
    let pipeline = GET.repeat(3);
    let tracker = cut(&pipeline, FIELDS, CUT);
    let feed = tracker.feed();
    assert_eq!((feed.marks.len(), feed.fields.is_empty()), (3, false));
    let mut log = crate::stream::StreamLog::new(crate::Seq(0));
    log.insert(Offset::ZERO, pipeline.as_bytes(), None);
    let fed = crate::spill::gather(feed.logged(&log, log.frontier())).unwrap();
    let fed = String::from_utf8(fed).unwrap();
    let line = "GET /film HTTP/1.1\r\n";
    let mark = "Steadfast-Reexecuted: 1\r\n";
    let first = format!("{line}{mark}{}Host: a\r\n\r\n", asked(&tracker));
    assert_eq!(fed, first + &format!("{line}{mark}Host: a\r\n\r\n").repeat(2));
    let whole = format!("HTTP/1.1 200 OK\r\n{FIELDS}Content-Length: 2\r\n\r\nok");
    let again = [partial(from(&tracker), FIELDS), whole.repeat(2).into()].concat();
    let expected = [&content()[CUT..], whole.repeat(2).as_bytes()].concat();
    assert!(continued(tracker.resume().unwrap(), &again, 1000) == Ok(expected));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// For every cut, the client gets exactly the missing bytes. The range request asks again for some of the sent bytes. If one of these
    /// bytes has changed, the change is detected.
    #[test]
    fn any_cut_is_continued_and_a_change_in_the_overlap_is_found(at in SAVES_MIN as usize + 32_768..LENGTH, change in 0.0..1.0_f64, xor in 1..=255_u8, step in 1..50_000_usize) {
        let tracker = cut(GET, FIELDS, at);
        let from = from(&tracker);
        let again = partial(from, FIELDS);
        prop_assert!(continued(tracker.resume().unwrap(), &again, step) == Ok(content()[at..].to_vec()));
        let overlap = at - usize::try_from(from).unwrap();
        let changed = again.len() - (LENGTH - usize::try_from(from).unwrap()) + (overlap as f64 * change) as usize;
        let mut again = again;
        again[changed] ^= xor;
        let (mismatch, passed) = continued(tracker.resume().unwrap(), &again, step).unwrap_err();
        prop_assert_eq!(mismatch, HttpMismatch::Body { bytes: overlap as u64 });
        prop_assert!(passed.is_empty());
    }
}
