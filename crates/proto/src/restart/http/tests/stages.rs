//! Stages on two nodes, with applications whose replies differ from execution to execution. The primary's power fails at any moment.

use std::sync::Arc;

use crate::Offset;
use crate::restart::http::{Reexecute, ReplyStage, StageAction, StageRules, StagedPoint};
use crate::restart::replay::RepetitionFilter;
use crate::restart::snapshot::{Snapshot, SnapshotStanding, SnapshotTracker};

/// Bytes of output between two moments at which the power may fail.
const STEP: usize = 1460;
const MEGABYTE: usize = 1 << 20;

/// Pseudorandom numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The body of a reply whose header names this seed.
fn body(seed: u64, length: usize) -> Vec<u8> {
    let mut numbers = Numbers(seed | 1);
    let words = std::iter::repeat_with(|| numbers.next().to_be_bytes());
    words.flatten().take(length).collect()
}

/// An application. It answers each request with a random body, or with the same body each time.
struct StagedApplication {
    numbers: Numbers,
    length: usize,
    is_random: bool,
    is_chunked: bool,
    asked: Vec<u8>,
    /// Headers of the requests that were executed.
    executed: Vec<String>,
}

impl StagedApplication {
    /// Takes input, and returns the replies to the requests that are complete.
    fn on_input(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.asked.extend_from_slice(bytes);
        let mut replies = Vec::new();
        while let Some(end) = self.asked.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(self.asked[..end + 4].to_vec()).expect("text");
            let length = head.split("Content-Length: ").nth(1).map_or(0, |rest| {
                rest.split("\r\n")
                    .next()
                    .expect("a line")
                    .parse()
                    .expect("a number")
            });
            if self.asked.len() < end + 4 + length {
                break;
            }
            self.asked.drain(..end + 4 + length);
            self.executed.push(head);
            replies.extend(self.reply());
        }
        replies
    }

    fn reply(&mut self) -> Vec<u8> {
        let date = self.numbers.next();
        let seed = if self.is_random { self.numbers.next() } else { 77 };
        let body = body(seed, self.length);
        let mut reply = format!("HTTP/1.1 200 OK\r\nDate: {date}\r\nX-Seed: {seed}\r\n").into_bytes();
        if self.is_chunked {
            reply.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            for piece in body.chunks(50_000) {
                reply.extend(format!("{:x}\r\n", piece.len()).into_bytes());
                reply.extend(piece);
                reply.extend(b"\r\n");
            }
            reply.extend(b"0\r\n\r\n");
        } else {
            reply.extend(format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes());
            reply.extend(body);
        }
        reply
    }
}

/// A test's case.
#[derive(Clone)]
struct StageCase {
    input: Vec<u8>,
    length: usize,
    limit: usize,
    is_random: bool,
    is_chunked: bool,
}

/// What a client got, and what the two applications executed.
#[derive(Default)]
struct StageOutcome {
    client: Vec<u8>,
    executed: [Vec<String>; 2],
    is_reset: bool,
    moments: u64,
}

/// A node: a stage and its application.
struct StageNode {
    stage: ReplyStage,
    application: StagedApplication,
    /// Bytes of the client's input that the stage has read.
    read: usize,
    /// Bytes of the application that the stage has not read.
    waiting: Vec<u8>,
}

impl StageNode {
    fn new(case: &StageCase, seed: u64, point: Option<StagedPoint>, read: usize) -> Self {
        let rules = StageRules {
            reexecute: Reexecute::IDEMPOTENT,
            limit: case.limit,
        };
        let application = StagedApplication {
            numbers: Numbers(seed),
            length: case.length,
            is_random: case.is_random,
            is_chunked: case.is_chunked,
            asked: Vec::new(),
            executed: Vec::new(),
        };
        let stage = match point {
            Some(point) => ReplyStage::restored(rules, point),
            None => ReplyStage::new(rules),
        };
        let waiting = Vec::new();
        Self {
            stage,
            application,
            read,
            waiting,
        }
    }

    /// The next action that concerns others than the application. `None`: nothing more happens.
    fn next(&mut self, input: &[u8]) -> Option<StageAction> {
        loop {
            match self.stage.poll_action() {
                Some(StageAction::ToApplication(bytes)) => {
                    let replies = self.application.on_input(&bytes);
                    self.waiting.extend(replies);
                }
                Some(StageAction::DropApplication) => self.waiting.clear(),
                Some(other) => return Some(other),
                None if self.stage.wants_application() && !self.waiting.is_empty() => {
                    let piece = self.waiting.len().min(20_000);
                    let piece: Vec<u8> = self.waiting.drain(..piece).collect();
                    self.stage.on_application(&piece);
                }
                None if self.stage.wants_client() && self.read < input.len() => {
                    let end = input.len().min(self.read + 37);
                    self.stage.on_client(&input[self.read..end]);
                    self.read = end;
                }
                None => return None,
            }
        }
    }
}

/// Plays a case. The primary's power fails at moment `cut`.
fn play(case: &StageCase, seed: u64, cut: u64) -> StageOutcome {
    let mut outcome = StageOutcome::default();
    let (mut log, mut points) = (SnapshotTracker::default(), Vec::new());
    let mut node = StageNode::new(case, seed, None, 0);
    let mut written = 0;
    let mut is_cut = false;
    let tick = |moments: &mut u64| {
        *moments += 1;
        *moments > cut
    };
    while !is_cut && let Some(action) = node.next(&case.input) {
        match action {
            StageAction::Export(point) | StageAction::Note(point) if tick(&mut outcome.moments) => {
                drop(point);
                is_cut = true;
            }
            StageAction::Export(ref point) | StageAction::Note(ref point) => {
                points.push(point.clone());
                let number = points.len() as u64;
                let snapshot = Snapshot {
                    number,
                    input: Offset(node.read as u64),
                    output: Offset(written),
                    state: Arc::from(&b""[..]),
                };
                let logged = Offset(case.input.len() as u64);
                assert_eq!(log.on_snapshot(snapshot, logged), SnapshotStanding::Kept);
                is_cut = tick(&mut outcome.moments);
                if matches!(action, StageAction::Export(_)) && !is_cut {
                    node.stage.on_exported();
                }
            }
            StageAction::ToClient(bytes) => {
                for piece in bytes.chunks(STEP) {
                    is_cut |= tick(&mut outcome.moments);
                    if is_cut {
                        break;
                    }
                    log.on_output(piece);
                    written += piece.len() as u64;
                    outcome.client.extend_from_slice(piece);
                }
            }
            StageAction::Close | StageAction::Reset => break,
            StageAction::ToApplication(_) | StageAction::DropApplication => {
                unreachable!("the node does that")
            }
        }
    }
    outcome.executed[0] = node.application.executed;
    if is_cut {
        let number = (1..=points.len() as u64).rev().find(|number| {
            // The restart point is the last one that was kept.
            log.standing(*number) == Some(SnapshotStanding::Kept)
        });
        let point = number.map(|number| points[number as usize - 1].clone());
        let node = StageNode::new(case, seed ^ 0xffff, point, log.restart_input().0 as usize);
        go_on(case, node, &log, &mut outcome);
    }
    outcome
}

/// The survivor. It has no backup.
fn go_on(case: &StageCase, mut node: StageNode, log: &SnapshotTracker, outcome: &mut StageOutcome) {
    let mut filter = RepetitionFilter::new(log.repetition());
    while let Some(action) = node.next(&case.input) {
        match action {
            StageAction::Export(_) => node.stage.on_exported(),
            StageAction::Note(_) => {}
            StageAction::ToClient(bytes) => {
                if filter.on_application(&bytes, &mut outcome.client).is_err() {
                    outcome.is_reset = true;
                    break;
                }
            }
            StageAction::Reset => {
                outcome.is_reset = true;
                break;
            }
            StageAction::Close => break,
            StageAction::ToApplication(_) | StageAction::DropApplication => {
                unreachable!("the node does that")
            }
        }
    }
    outcome.executed[1] = node.application.executed;
}

/// Reads the client's stream: the status of each reply. Each body must be the one of its header's seed.
fn statuses(mut stream: &[u8]) -> Vec<u16> {
    let mut found = Vec::new();
    while !stream.is_empty() {
        let end = stream
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a whole header")
            + 4;
        let head = std::str::from_utf8(&stream[..end]).expect("text");
        stream = &stream[end..];
        let field = |name: &str| {
            let value = head.split(name).nth(1)?.split("\r\n").next();
            value.map(str::to_owned)
        };
        let status = head[9..12].parse().expect("a status");
        let mut payload = Vec::new();
        if head.contains("chunked") {
            loop {
                let line = stream
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .expect("a size line");
                let size = std::str::from_utf8(&stream[..line]).expect("text").trim();
                let size = usize::from_str_radix(size, 16).expect("a size");
                payload.extend_from_slice(&stream[line + 1..line + 1 + size]);
                stream = &stream[line + 3 + size..];
                if size == 0 {
                    break;
                }
            }
        } else if status != 100 {
            let length: usize = field("Content-Length: ")
                .expect("a length")
                .parse()
                .expect("a number");
            payload.extend_from_slice(&stream[..length]);
            stream = &stream[length..];
        }
        if let Some(seed) = field("X-Seed: ") {
            let expected = body(seed.parse().expect("a number"), payload.len());
            assert!(payload == expected, "the body of two executions in one reply");
        }
        found.push(status);
    }
    found
}

fn case(input: &str) -> StageCase {
    StageCase {
        input: input.as_bytes().to_vec(),
        length: MEGABYTE,
        limit: 2 * MEGABYTE,
        is_random: true,
        is_chunked: false,
    }
}

const GET: &str = "GET /random HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST /once HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde";

/// CoRAL's claim: replies that are not deterministic survive a failure at any moment.
#[test]
fn a_random_megabyte_survives_a_cut_at_200_places() {
    for is_chunked in [false, true] {
        let case = StageCase {
            is_chunked,
            ..case(GET)
        };
        let moments = play(&case, 1, u64::MAX).moments;
        assert!(moments > (MEGABYTE / STEP) as u64);
        let mut numbers = Numbers(0x1234_5678);
        for run in 0..200 {
            let cut = numbers.next() % moments;
            let outcome = play(&case, run + 1, cut);
            assert!(!outcome.is_reset);
            assert_eq!(statuses(&outcome.client), [200]);
            // The request is executed again only if the reply was not exported.
            let executions = outcome.executed.iter().flatten().count();
            assert_eq!(executions, if cut == 0 { 2 } else { 1 });
        }
    }
}

/// Pipelined requests, one of which must not be executed twice, with a failure at each moment.
#[test]
fn every_moment_of_a_pipeline_is_survived() {
    let pipeline = [GET, POST, GET, POST, GET].concat();
    let case = StageCase {
        length: 20_000,
        ..case(&pipeline)
    };
    let moments = play(&case, 1, u64::MAX).moments;
    let (mut refused, mut whole) = (0, 0);
    for cut in 0..=moments {
        let outcome = play(&case, cut + 1, cut);
        assert!(!outcome.is_reset, "{cut}");
        let posts = outcome
            .executed
            .iter()
            .flatten()
            .filter(|head| head.starts_with("POST"));
        let statuses = statuses(&outcome.client);
        let (last, before) = statuses.split_last().expect("a reply");
        assert!(before.iter().all(|status| *status == 200), "{cut} {statuses:?}");
        if *last == 503 {
            refused += 1;
            // The last POST may have been executed, but not twice.
            let answered = before.iter().skip(1).step_by(2).count();
            assert!((answered..=answered + 1).contains(&posts.count()), "{cut}");
        } else {
            whole += 1;
            assert_eq!((statuses.len(), posts.count()), (5, 2), "{cut} {statuses:?}");
        }
    }
    // A refusal is the answer only between a POST's export and that of its reply.
    assert!(refused <= 2 * 2 && whole > 40, "{refused} {whole}");
}

/// Longer replies stream. They go on if the second execution gives the same bytes, whatever its date.
#[test]
fn a_reply_above_the_limit_goes_on_if_it_is_the_same() {
    let deterministic = StageCase {
        limit: 100_000,
        is_random: false,
        ..case(GET)
    };
    let random = StageCase {
        is_random: true,
        ..deterministic.clone()
    };
    let moments = play(&deterministic, 1, u64::MAX).moments;
    let mut resets = 0;
    for cut in (0..moments).step_by(5) {
        let outcome = play(&deterministic, cut + 1, cut);
        assert!(!outcome.is_reset, "{cut}");
        assert_eq!(statuses(&outcome.client), [200], "{cut}");
        let outcome = play(&random, cut + 1, cut);
        resets += u64::from(outcome.is_reset);
        if !outcome.is_reset {
            assert_eq!(statuses(&outcome.client), [200], "{cut}");
        }
    }
    assert!(
        resets > moments / 10,
        "a different body is no continuation: {resets}"
    );
}

/// A request that must not be executed twice, with a reply above the limit.
#[test]
fn a_streamed_reply_that_has_left_is_not_owed_again() {
    let case = StageCase {
        limit: 100_000,
        ..case(POST)
    };
    let moments = play(&case, 1, u64::MAX).moments;
    let last = play(&case, 1, moments - 1);
    assert_eq!((last.is_reset, statuses(&last.client)), (false, vec![200]));
    let before = play(&case, 1, moments - 3);
    assert!(before.is_reset && before.executed.iter().flatten().count() == 1);
}

#[test]
fn a_client_that_waits_with_its_body_gets_one_continue() {
    let put = "PUT /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nabcde";
    let case = StageCase {
        length: 5000,
        ..case(put)
    };
    let moments = play(&case, 1, u64::MAX).moments;
    for cut in 0..=moments {
        let outcome = play(&case, cut + 1, cut);
        assert_eq!(statuses(&outcome.client), [100, 200], "{cut}");
        assert!(!outcome.is_reset);
    }
}

/// All that the stage does with these events.
fn actions(stage: &mut ReplyStage) -> Vec<StageAction> {
    std::iter::from_fn(|| stage.poll_action()).collect()
}

fn stage() -> ReplyStage {
    ReplyStage::new(StageRules {
        reexecute: Reexecute::IDEMPOTENT,
        limit: 1000,
    })
}

#[test]
fn no_byte_of_a_reply_leaves_before_its_export() {
    let mut stage = stage();
    stage.on_client(GET.as_bytes());
    assert_eq!(actions(&mut stage), [StageAction::ToApplication(GET.into())]);
    let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    stage.on_application(&reply[..40]);
    assert_eq!(actions(&mut stage), []);
    stage.on_application(&reply[40..]);
    let export = actions(&mut stage);
    assert!(
        matches!(export[..], [StageAction::Export(StagedPoint::Reply { .. })]),
        "{export:?}"
    );
    assert!(!stage.wants_client() && !stage.wants_application());
    stage.on_exported();
    assert_eq!(actions(&mut stage), [StageAction::ToClient(reply.to_vec())]);
    stage.on_client_end();
    assert_eq!(actions(&mut stage), [StageAction::Close]);
}

#[test]
fn an_application_that_dies_in_its_reply_leaves_a_refusal() {
    for begun in ["", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na"] {
        let mut stage = stage();
        stage.on_client(GET.as_bytes());
        stage.on_application(begun.as_bytes());
        stage.on_application_end(true);
        stage.on_exported();
        let done = actions(&mut stage);
        let refusal = StageAction::ToClient(super::super::REFUSAL.to_vec());
        assert!(done.ends_with(&[refusal, StageAction::Close]), "{done:?}");
    }
}

#[test]
fn a_request_that_met_the_end_of_a_used_connection_is_sent_again_if_it_may_be() {
    let put = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab";
    for request in [GET, put] {
        let mut stage = stage();
        stage.on_client(request.as_bytes());
        actions(&mut stage);
        assert!(stage.ask_again());
        let again = StageAction::ToApplication(super::super::staged::marked(request.as_bytes()));
        assert_eq!(actions(&mut stage), [StageAction::DropApplication, again]);
        stage.on_application(b"HTTP/1.1 200");
        assert!(!stage.ask_again(), "a reply has begun");
        assert!(stage.on_application_end(true));
    }
    let mut stage = stage();
    stage.on_client(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    actions(&mut stage);
    stage.on_exported();
    actions(&mut stage);
    assert!(!stage.ask_again(), "it may have been executed");
    assert_eq!(actions(&mut stage), []);
}

#[test]
fn a_reply_until_close_is_whole_when_the_application_ends() {
    let mut stage = stage();
    stage.on_client(GET.as_bytes());
    stage.on_application(b"HTTP/1.1 200 OK\r\n\r\nall of it");
    stage.on_application_end(true);
    stage.on_exported();
    let done = actions(&mut stage);
    let whole = StageAction::ToClient(b"HTTP/1.1 200 OK\r\n\r\nall of it".to_vec());
    assert!(done.ends_with(&[whole, StageAction::Close]), "{done:?}");
}

#[test]
fn what_is_no_request_gets_400_and_an_upgrade_is_not_continued() {
    for input in [
        "CONNECT a:1 HTTP/1.1\r\n\r\n",
        "\u{16}\u{3}\u{1}\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
    ] {
        let mut stage = stage();
        stage.on_client(input.as_bytes());
        let done = actions(&mut stage);
        assert!(
            matches!(&done[..], [StageAction::ToClient(reply), StageAction::Close] if reply.starts_with(b"HTTP/1.1 400")),
            "{input}: {done:?}"
        );
    }
    let mut upgraded = stage();
    upgraded.on_client(GET.as_bytes());
    upgraded.on_application(b"HTTP/1.1 101 Switching Protocols\r\n\r\nmore");
    upgraded.on_exported();
    upgraded.on_client(b"frame");
    let done = actions(&mut upgraded);
    assert!(
        done.ends_with(&[StageAction::ToApplication(b"frame".to_vec())]),
        "{done:?}"
    );
    let rules = StageRules {
        reexecute: Reexecute::SAFE,
        limit: 1000,
    };
    let mut restored = ReplyStage::restored(rules, StagedPoint::Upgraded);
    assert_eq!(actions(&mut restored), [StageAction::Reset]);
}

#[test]
fn points_are_read_as_they_were_written() {
    let request = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    let points = [
        StagedPoint::Executing,
        StagedPoint::Reply {
            bytes: vec![7; 70_000],
            closes: true,
            input: request.clone(),
        },
        StagedPoint::Told {
            head: b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
            request: Some(request),
            input: Vec::new(),
        },
        StagedPoint::Told {
            head: Vec::new(),
            request: None,
            input: vec![1],
        },
        StagedPoint::Idle { input: vec![2, 3] },
        StagedPoint::Upgraded,
    ];
    for point in points {
        let state = point.encode();
        assert_eq!(StagedPoint::decode(&state), Some(point));
        assert_eq!(StagedPoint::decode(&state[..state.len() - 1]), None);
        assert_eq!(StagedPoint::decode(&[&state[..], b"x"].concat()), None);
        assert_eq!(
            StagedPoint::decode(&[&[9], &state[1..]].concat()),
            None,
            "another version"
        );
    }
}

#[test]
fn a_stage_is_idle_between_requests_only() {
    let rules = StageRules {
        reexecute: Reexecute::IDEMPOTENT,
        limit: MEGABYTE,
    };
    let mut stage = ReplyStage::new(rules);
    assert!(stage.is_idle() && !stage.wants_reply());
    stage.on_client(b"GET / HTTP/1.1\r\n\r\n");
    assert!(!stage.is_idle() && stage.wants_reply());
    while stage.poll_action().is_some() {}
    stage.on_application(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n1234");
    assert!(!stage.is_idle());
    assert_eq!(stage.held_bytes(), 18 + 38 + 4);
    stage.on_application(b"5");
    assert!(
        !stage.is_idle() && !stage.wants_reply(),
        "the reply is being exported"
    );
    stage.on_exported();
    while stage.poll_action().is_some() {}
    assert!(stage.is_idle());
    stage.on_client(b"GE");
    assert!(!stage.is_idle(), "a request has begun");
}

#[test]
fn a_header_that_fills_the_input_is_refused() {
    let rules = StageRules {
        reexecute: Reexecute::IDEMPOTENT,
        limit: MEGABYTE,
    };
    let mut stage = ReplyStage::new(rules);
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(70_000));
    let mut rest = long.as_bytes();
    while stage.wants_client() && !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(4096));
        stage.on_client(piece);
        rest = after;
    }
    let Some(StageAction::ToClient(reply)) = stage.poll_action() else {
        panic!("no reply")
    };
    assert!(reply.starts_with(b"HTTP/1.1 400 "));
    assert_eq!(stage.poll_action(), Some(StageAction::Close));
}
