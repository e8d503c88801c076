//! Each conversation, cut at each byte of its output.

use proptest::prelude::*;

use super::conversations::{DATES, HttpConversation, Payload, all, with_chunks, with_length};
use super::*;

/// Cuts `conversation` at `cut`, continues it, and returns the client's whole stream. The primary's reply has chunks of `chunks.0` bytes,
/// and the log is read in pieces of `steps.0` bytes. The survivor's application sends chunks of `chunks.1` bytes, in pieces of `steps.1`
/// bytes.
fn survive(
    conversation: &HttpConversation,
    cut: usize,
    steps: (usize, usize),
    chunks: (usize, usize),
) -> Result<Vec<u8>, HttpMismatch> {
    let said = conversation.output(0, DATES[0], chunks.0);
    let tracker = tracker(&conversation.input(), &said[..cut], steps.0);
    let restart = tracker.restart_input();
    let resume = tracker.resume().expect("only safe requests");
    let mut client = said[..cut].to_vec();
    let unanswered = (0..conversation.exchanges.len()).find(|&index| {
        let blank = conversation.exchanges[index].request.len()
            - conversation.exchanges[index].request.trim_start().len();
        Offset(conversation.start(index) + blank as u64) == restart
    });
    if let Some(first) = unanswered {
        let application = conversation.output(first, DATES[1], chunks.1);
        client.extend(continued(resume, &application, steps.1).map_err(|(mismatch, _)| mismatch)?);
    } else {
        assert!(
            matches!(resume, HttpResume::Idle | HttpResume::Finished),
            "{}: {cut}",
            conversation.name
        );
        assert_eq!(restart.0, conversation.input().len() as u64);
    }
    Ok(client)
}

/// The stream with each date replaced by `#` characters, so that dates do not matter in comparisons.
fn undated(stream: &[u8]) -> Vec<u8> {
    let mut undated = stream.to_vec();
    for at in 0..stream.len().saturating_sub(6) {
        if stream[at..].starts_with(b"Date: ") {
            let date = stream[at + 6..]
                .iter()
                .take_while(|byte| !byte.is_ascii_control());
            let end = at + 6 + date.count();
            undated[at + 6..end].fill(b'#');
        }
    }
    undated
}

#[test]
fn every_cut_is_continued_byte_for_byte() {
    for conversation in all() {
        let whole = conversation.output(0, DATES[0], 24);
        for cut in 0..=whole.len() {
            for steps in [(usize::MAX, usize::MAX), (1, 1), (7, 3)] {
                let client = survive(&conversation, cut, steps, (24, 24))
                    .unwrap_or_else(|mismatch| panic!("{}, cut at {cut}: {mismatch}", conversation.name));
                assert_eq!(
                    undated(&client).escape_ascii().to_string(),
                    undated(&whole).escape_ascii().to_string(),
                    "{}, cut at {cut}, {steps:?}",
                    conversation.name
                );
            }
        }
    }
}

#[test]
fn other_chunk_boundaries_give_the_same_payload() {
    for conversation in all() {
        let whole = conversation.output(0, DATES[0], 24);
        let has_extension = conversation.name.contains("extension");
        for cut in 0..=whole.len() {
            for chunk in [1, 5, 16, 23, 25, 31, 300] {
                match survive(&conversation, cut, (64, 9), (24, chunk)) {
                    Ok(client) => assert_eq!(
                        parse(&conversation, &client),
                        parse(&conversation, &whole),
                        "{}, cut at {cut}, chunks of {chunk}:\n{}",
                        conversation.name,
                        client.escape_ascii()
                    ),
                    Err(mismatch) => assert!(
                        has_extension && mismatch == HttpMismatch::ChunkExtension,
                        "{}, cut at {cut}, chunks of {chunk}: {mismatch}",
                        conversation.name
                    ),
                }
            }
        }
    }
}

/// Reads the header lines (without dates) and the decoded body of each reply. This function shares no code with the parser under test.
fn parse(conversation: &HttpConversation, stream: &[u8]) -> Vec<(String, Vec<u8>)> {
    let stream = undated(stream);
    let mut stream = stream.as_slice();
    let mut messages = Vec::new();
    for exchange in &conversation.exchanges {
        let head_length = undated(&exchange.reply(DATES[0], 24)).len() - body_length(exchange, 24);
        let (head, rest) = stream.split_at(head_length);
        stream = rest;
        let body = match &exchange.body {
            Payload::None => Vec::new(),
            Payload::Plain(payload) => {
                let (body, rest) = stream.split_at(payload.len());
                stream = rest;
                body.to_vec()
            }
            Payload::Chunked { .. } => decode(&mut stream),
        };
        messages.push((head.escape_ascii().to_string(), body));
    }
    assert!(stream.is_empty(), "too much: {}", stream.escape_ascii());
    messages
}

fn body_length(exchange: &super::conversations::HttpExchange, chunk: usize) -> usize {
    let without_body = exchange.head.replace("DATE", DATES[0]).len();
    exchange.reply(DATES[0], chunk).len() - without_body
}

fn decode(stream: &mut &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let digits: String = line(stream).chars().take_while(char::is_ascii_hexdigit).collect();
        let size = usize::from_str_radix(&digits, 16).expect("a size");
        if size == 0 {
            break;
        }
        body.extend_from_slice(&stream[..size]);
        *stream = &stream[size..];
        assert_eq!(line(stream), "\r\n");
    }
    while line(stream) != "\r\n" {}
    body
}

fn line(stream: &mut &[u8]) -> String {
    let end = stream.iter().position(|&byte| byte == b'\n').expect("a line") + 1;
    let (line, rest) = stream.split_at(end);
    *stream = rest;
    String::from_utf8(line.to_vec()).expect("text")
}

proptest! {
    /// A byte that differs in the part that the client already has is detected before any byte is passed on.
    #[test]
    fn a_change_in_the_prefix_is_a_mismatch(chunks in any::<bool>(), cut in 0.01..1.0_f64, at in 0.0..1.0_f64, xor in 1..=255_u8, step in 1..50_usize) {
        let exchange = if chunks { with_chunks(|size| format!("{size:x}\r\n"), "\r\n") } else { with_length() };
        let said = exchange.reply(DATES[0], 24);
        let cut = (said.len() as f64 * cut) as usize;
        let resume = tracker(exchange.request.as_bytes(), &said[..cut], step).resume().unwrap();
        let mut application = exchange.reply(DATES[0], 24);
        let at = (cut as f64 * at) as usize;
        application[at] ^= xor;
        // Exceptions: a volatile header line may change, and chunk boundaries may change if the payload is the same.
        let line = said[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |feed| feed + 1);
        let is_volatile = said[line..].starts_with(b"Date") || said[line..].starts_with(b"Set-Cookie");
        let in_body = at >= exchange.head.replace("DATE", DATES[0]).len();
        match continued(resume, &application, step) {
            Err((_, passed)) => prop_assert!(passed.is_empty() || chunks && in_body),
            Ok(passed) => {
                let client = [&said[..cut], &passed].concat();
                prop_assert!(is_volatile || chunks && in_body || cut == 0, "{}", client.escape_ascii());
                if in_body && cut > 0 {
                    prop_assert_eq!(undated(&client), undated(&said));
                }
            }
        }
    }

    #[test]
    fn pieces_do_not_matter(index in 0..13_usize, cut in 0.0..=1.0_f64, log in 1..40_usize, application in 1..40_usize) {
        let conversation = &all()[index];
        let whole = conversation.output(0, DATES[0], 24);
        let cut = (whole.len() as f64 * cut) as usize;
        let client = survive(conversation, cut, (log, application), (24, 24)).unwrap();
        prop_assert_eq!(undated(&client), undated(&whole));
    }
}
