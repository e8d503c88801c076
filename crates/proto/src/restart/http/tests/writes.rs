//! Requests that change state are executed again only if that is allowed. A connection gets at most one refusal. No reply contradicts
//! what the primary sent.

use proptest::prelude::*;

use super::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
const PUT: &[u8] = b"PUT /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody";
const POST: &[u8] = b"POST /b HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The filter for a connection with these logs, and the bytes that the client gets first.
fn resumer(input: &[u8], output: &[u8]) -> (HttpResumer, Vec<u8>) {
    HttpResumer::new(tracker(input, output, 7).resume().expect("it goes on"))
}

fn refused(resumer: &HttpResumer) -> Option<(&str, RequestRefusal)> {
    resumer.refusal().map(|(request, why)| (&*request.label, *why))
}

#[test]
fn a_client_that_was_told_to_continue_is_not_told_again() {
    for (said, passed) in [
        (b"".as_slice(), [CONTINUE, OK].concat()),
        (&CONTINUE[..12], [&CONTINUE[12..], OK].concat()),
        (CONTINUE, OK.to_vec()),
        (&[CONTINUE, &OK[..20]].concat(), OK[20..].to_vec()),
    ] {
        let (mut resumer, mut to_client) = resumer(PUT, said);
        let again = [CONTINUE, OK].concat();
        again
            .chunks(5)
            .for_each(|piece| resumer.on_application(piece, &mut to_client).unwrap());
        assert_eq!(
            to_client.escape_ascii().to_string(),
            passed.escape_ascii().to_string()
        );
        assert!(resumer.is_transparent());
    }
}

#[test]
fn a_server_need_not_say_continue_again() {
    let (mut resumer, mut to_client) = resumer(PUT, CONTINUE);
    resumer.on_application(OK, &mut to_client).unwrap();
    assert_eq!(to_client, OK);
}

#[test]
fn what_must_not_be_repeated_is_refused_in_its_place() {
    let (resumer_, first) = resumer(POST, b"");
    assert_eq!(first, REFUSAL);
    assert!(resumer_.is_finished());
    assert_eq!(
        refused(&resumer_),
        Some(("POST /b", RequestRefusal::NotRepeatable))
    );

    let input = [GET, PUT, POST, GET].concat();
    let (mut resumer, mut to_client) = resumer(&input, &OK[..9]);
    resumer
        .on_application(&[OK, CONTINUE, OK].concat(), &mut to_client)
        .unwrap();
    assert_eq!(to_client, [&OK[9..], CONTINUE, OK, REFUSAL].concat());
    assert!(resumer.is_finished());
    assert_eq!(
        refused(&resumer),
        Some(("POST /b", RequestRefusal::NotRepeatable))
    );
}

#[test]
fn a_refusal_is_a_reply_to_any_request() {
    for to_head in [false, true] {
        let reply = head::ReplyHead::parse(REFUSAL, to_head).unwrap();
        assert_eq!((reply.status, reply.persists, reply.body), (503, false, None));
    }
}

#[test]
fn a_request_that_fails_a_second_server_is_quarantined() {
    for lost in [true, false] {
        let fail = |resumer: &mut HttpResumer, to_client: &mut Vec<u8>| {
            if lost {
                resumer.on_application_lost(RequestRefusal::Quarantined, to_client)
            } else {
                resumer.on_application_end(to_client).is_ok()
            }
        };
        // Nothing of the reply was sent. An interim reply does not count, nor half a header that was not passed on.
        let (mut silent, mut to_client) = resumer(PUT, CONTINUE);
        silent.on_application(&OK[..9], &mut to_client).unwrap();
        assert!(fail(&mut silent, &mut to_client));
        assert_eq!(to_client, REFUSAL);
        assert_eq!(refused(&silent), Some(("PUT /a", RequestRefusal::Quarantined)));
        // A part of the reply was sent.
        let (mut cut, mut to_client) = resumer(PUT, &OK[..OK.len() - 1]);
        cut.on_application(&OK[..30], &mut to_client).unwrap();
        assert!(!fail(&mut cut, &mut to_client));
        assert!(to_client.is_empty() && !cut.is_finished());
        assert_eq!(refused(&cut), Some(("PUT /a", RequestRefusal::Quarantined)));
        // The second of two requests.
        let (mut second, mut to_client) = resumer(&[GET, PUT].concat(), b"");
        second.on_application(OK, &mut to_client).unwrap();
        assert!(fail(&mut second, &mut to_client));
        assert_eq!(to_client, [OK, REFUSAL].concat());
        assert_eq!(refused(&second), Some(("PUT /a", RequestRefusal::Quarantined)));
    }
    // A request that was answered by a change of protocol is done.
    let upgrade = b"GET /chat HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: chat\r\n\r\n";
    let (mut upgraded, mut to_client) = resumer(upgrade, b"");
    let switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\n\r\nhello";
    upgraded.on_application(switching, &mut to_client).unwrap();
    assert!(upgraded.is_over() && !upgraded.on_application_lost(RequestRefusal::Quarantined, &mut to_client));
    assert_eq!((refused(&upgraded), &to_client[..]), (None, &switching[..]));
    // If no request is executed again, none is quarantined.
    let (mut idle, mut to_client) = resumer(GET, OK);
    assert!(!idle.on_application_lost(RequestRefusal::Quarantined, &mut to_client));
    assert_eq!((refused(&idle), to_client.len()), (None, 0));
}

/// A request, whether it may be repeated, and its reply.
#[derive(Clone, Debug)]
struct GeneratedExchange {
    head: String,
    body: String,
    is_repeatable: bool,
    reply: String,
}

impl GeneratedExchange {
    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

fn exchange() -> impl Strategy<Value = GeneratedExchange> {
    let method = proptest::sample::select(vec!["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"]);
    (
        method,
        any::<bool>(),
        any::<bool>(),
        0..3_u8,
        0..30_usize,
        any::<bool>(),
    )
        .prop_map(|(method, has_key, is_expected, framing, size, is_chunked)| {
            let key = if has_key { "Idempotency-Key: k\r\n" } else { "" };
            let expect = if is_expected {
                "Expect: 100-continue\r\n"
            } else {
                ""
            };
            let payload = "x".repeat(size);
            let (length, body) = match framing {
                0 => (String::new(), String::new()),
                1 => (format!("Content-Length: {size}\r\n"), payload),
                _ => (
                    "Transfer-Encoding: chunked\r\n".into(),
                    format!("1\r\ny\r\n{:x}\r\n{payload}z\r\n0\r\n\r\n", size + 1),
                ),
            };
            let interim = if is_expected {
                "HTTP/1.1 100 Continue\r\n\r\n"
            } else {
                ""
            };
            let reply_body = match (method, is_chunked) {
                ("HEAD", _) => "Content-Length: 5\r\n\r\n",
                (_, true) => "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                (_, false) => "Content-Length: 3\r\n\r\nabc",
            };
            GeneratedExchange {
                head: format!("{method} / HTTP/1.1\r\nHost: a\r\n{key}{expect}{length}\r\n"),
                body,
                is_repeatable: has_key || !matches!(method, "POST" | "PATCH"),
                reply: format!("{interim}HTTP/1.1 200 OK\r\n{reply_body}"),
            }
        })
}

/// A connection whose primary died, with the input that the primary had received and the output that it had sent.
struct CutConnection<'a> {
    exchanges: &'a [GeneratedExchange],
    input: String,
    received: usize,
    said: String,
    /// Number of complete replies.
    answered: usize,
    /// Number of request headers that were received.
    begun: usize,
    /// The first request that must not be executed again.
    barred: Option<usize>,
}

impl<'a> CutConnection<'a> {
    /// The primary received `received` bytes and sent at most `said` bytes of the replies to whole requests.
    fn new(exchanges: &'a [GeneratedExchange], received: usize, said: usize) -> Self {
        let input: String = exchanges
            .iter()
            .flat_map(|one| [&*one.head, &*one.body])
            .collect();
        let has = |index: usize, length: usize| start(exchanges, index) + length <= received;
        let begun = (0..exchanges.len()).filter(|&index| has(index, exchanges[index].head.len()));
        let begun = begun.count();
        let whole = (0..begun)
            .filter(|&index| has(index, exchanges[index].len()))
            .count();
        let replies = said_by(&exchanges[..whole]);
        let said = replies[..said.min(replies.len())].to_owned();
        let is_answered = |&count: &usize| said_by(&exchanges[..count]).len() <= said.len();
        let answered = (0..=whole).take_while(is_answered).last().unwrap_or(0);
        let barred = (answered..begun).find(|&index| !exchanges[index].is_repeatable);
        Self {
            exchanges,
            input,
            received,
            said,
            answered,
            begun,
            barred,
        }
    }

    fn start(&self, index: usize) -> Offset {
        Offset(start(self.exchanges, index) as u64)
    }

    /// Returns the offset at which the header fields of a request begin.
    fn fields(&self, index: usize) -> Offset {
        let line = self.exchanges[index].head.find('\n').expect("a line") + 1;
        self.start(index) + line as u64
    }

    /// A new application gets the requests from the first unanswered one up to the first that must not be repeated. Exactly those requests
    /// that may have been executed before get the header line [`MARK`]. Returns the index of the first request that the application does
    /// not get.
    fn check_feed(&self, feed: &Feed, resume: &HttpResume) -> Result<usize, TestCaseError> {
        if matches!(resume, HttpResume::Refused(_)) {
            prop_assert_eq!(self.barred, Some(self.answered));
            return Ok(self.answered);
        }
        let end = self.barred.unwrap_or(self.exchanges.len());
        if end > self.answered {
            prop_assert_eq!(feed.from, self.start(self.answered));
        }
        prop_assert_eq!(feed.until, self.barred.map(|index| self.start(index)));
        let marks = (self.answered..end.min(self.begun)).map(|index| self.fields(index));
        prop_assert_eq!(&feed.marks, &marks.collect::<Vec<_>>());
        prop_assert_eq!(resume.takes_input(), self.barred.is_none());
        Ok(end)
    }

    /// The client gets each reply to an executed request once, and then perhaps a refusal.
    fn survive(&self, step: usize) -> Result<(), TestCaseError> {
        let tracker = tracker(
            &self.input.as_bytes()[..self.received],
            self.said.as_bytes(),
            step,
        );
        let resume = match tracker.resume() {
            Ok(resume) => resume,
            Err(reason) => {
                let complete = said_by(&self.exchanges[..self.answered]).len();
                prop_assert_eq!(self.barred, Some(self.answered), "{}", reason);
                prop_assert!(self.said.len() > complete, "{}", reason);
                return Ok(());
            }
        };
        let end = self.check_feed(&tracker.feed(), &resume)?;
        let (mut resumer, first) = HttpResumer::new(resume);
        let mut client = [self.said.as_bytes(), &first].concat();
        for one in &self.exchanges[self.answered..end] {
            for piece in one.reply.as_bytes().chunks(step) {
                let passed = resumer.on_application(piece, &mut client);
                prop_assert_eq!(passed, Ok(()));
            }
        }
        // An interim reply to the refused request may have been sent before.
        let mut due = said_by(&self.exchanges[..end]);
        if self.said.len() > due.len() {
            prop_assert!(self.said.ends_with("100 Continue\r\n\r\n"));
            due = self.said.clone();
        }
        let refusal = if self.barred.is_some() { REFUSAL } else { b"" };
        let due = [due.as_bytes(), refusal].concat();
        prop_assert_eq!(client.escape_ascii().to_string(), due.escape_ascii().to_string());
        prop_assert_eq!(resumer.is_finished(), self.barred.is_some());
        Ok(())
    }
}

fn start(exchanges: &[GeneratedExchange], index: usize) -> usize {
    exchanges[..index].iter().map(GeneratedExchange::len).sum()
}

fn said_by(exchanges: &[GeneratedExchange]) -> String {
    exchanges.iter().map(|one| &*one.reply).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Every request gets exactly one reply, or it gets a refusal and the connection ends. A request that must not be repeated is not
    /// repeated.
    #[test]
    fn any_pipeline_is_continued_or_ends_in_a_refusal(
        exchanges in proptest::collection::vec(exchange(), 1..5),
        received in 0.0..=1.0_f64,
        said in 0.0..=1.0_f64,
        step in 1..40_usize,
    ) {
        let total: usize = exchanges.iter().map(GeneratedExchange::len).sum();
        let replies: usize = exchanges.iter().map(|one| one.reply.len()).sum();
        CutConnection::new(&exchanges, (total as f64 * received) as usize, (replies as f64 * said) as usize).survive(step)?;
    }
}
