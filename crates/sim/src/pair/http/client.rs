//! The client's side of one connection.

use std::collections::VecDeque;
use std::time::Duration;

use proto::Instant;

use super::line::{take_head, take_line};
use super::upload::Sum;
use super::{Framing, HttpMethod, HttpRequest};
use crate::host::App;
use crate::pair::application::ReadPace;
use crate::tcp::TcpEndpoint;

/// A request and when it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRequest {
    /// The request.
    pub request: HttpRequest,
    /// Time between the reply to the previous request and the sending of this request.
    pub after: Duration,
    /// The request is sent directly after the previous request, without waiting for the previous request's reply.
    pub pipelined: bool,
}

/// Sends requests and checks every byte of the replies.
#[derive(Debug)]
pub struct HttpClient {
    planned: VecDeque<PlannedRequest>,
    /// The client ends its stream after the last request instead of after the last reply.
    half_closes: bool,
    pace: Option<ReadPace>,
    next_read: Instant,
    /// When the next request is sent, if nothing is unanswered.
    send_at: Option<Instant>,
    outgoing: VecDeque<u8>,
    /// A request's body that the server has not asked for yet.
    withheld: Option<Vec<u8>>,
    unanswered: VecDeque<HttpRequest>,
    /// Numbers of all requests that were sent.
    sent: Vec<u64>,
    received: Vec<u8>,
    reply: Option<IncomingReply>,
    is_over: bool,
    /// The pair has refused a request, and therefore also all later requests.
    was_refused: bool,
    /// The last request for which the server said `100 Continue`.
    was_told: Option<u64>,
    wrong: Option<String>,
    replies: usize,
}

/// A reply whose header is complete.
#[derive(Debug)]
struct IncomingReply {
    request: HttpRequest,
    /// Number of body bytes that came.
    at: u64,
    /// Number of bytes of the current chunk that are to come; `None` before a size line.
    chunk: Option<u64>,
}

impl HttpClient {
    /// A client that sends `planned`, and reads at `pace`.
    pub fn new(planned: Vec<PlannedRequest>, half_closes: bool, pace: Option<ReadPace>) -> Self {
        Self {
            planned: planned.into(),
            half_closes,
            pace,
            next_read: Instant::ZERO,
            send_at: None,
            outgoing: VecDeque::new(),
            withheld: None,
            unanswered: VecDeque::new(),
            sent: Vec::new(),
            received: Vec::new(),
            reply: None,
            is_over: false,
            was_refused: false,
            was_told: None,
            wrong: None,
            replies: 0,
        }
    }

    /// Whether every reply came as expected, and nothing else. After a refusal, no further replies are expected.
    pub fn is_complete(&self) -> bool {
        let nothing_left = self.planned.is_empty() && self.unanswered.is_empty() && self.reply.is_none();
        nothing_left && self.received.is_empty() && self.wrong.is_none()
    }

    /// The first thing that was unexpected, if any.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Number of complete replies.
    pub const fn replies(&self) -> usize {
        self.replies
    }

    /// Whether the pair has refused a request: one that it must not execute again, or one that kills the server that executes it again.
    pub const fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// Whether the pair may have to cut the reply to the oldest request that has no complete reply yet. The pair must do so if the request
    /// must not be executed again, or if the request kills the server that executes it again.
    pub fn may_be_cut(&self) -> bool {
        let open = self.reply.as_ref().map(|reply| &reply.request);
        open.into_iter()
            .chain(&self.unanswered)
            .next()
            .is_some_and(|request| !request.is_repeatable() || request.is_poison)
    }

    /// Whether the client has sent the request with this number.
    pub fn has_sent(&self, id: u64) -> bool {
        self.sent.contains(&id)
    }

    fn send(&mut self, now: Instant) {
        while let Some(next) = self.planned.front()
            && (self.unanswered.is_empty()
                && self.reply.is_none()
                && self.send_at.is_some_and(|at| now >= at)
                || next.pipelined)
            && !self.is_over
            && self.withheld.is_none()
        {
            self.outgoing.extend(next.request.head().bytes());
            match next.request.upload {
                Some(upload) if upload.expects => self.withheld = Some(upload.bytes()),
                Some(upload) => self.outgoing.extend(upload.bytes()),
                None => {}
            }
            self.sent.push(next.request.id);
            self.unanswered.push_back(next.request);
            self.planned.pop_front();
        }
    }

    /// Reads complete parts of `received`. An error says what is wrong.
    fn check(&mut self, now: Instant) -> Result<(), String> {
        loop {
            let Some(reply) = &mut self.reply else {
                let Some(head) = take_head(&mut self.received) else {
                    return Ok(());
                };
                let request = *self.unanswered.front().ok_or("a reply without a request")?;
                if head == "HTTP/1.1 100 Continue" {
                    self.on_continue(&request)?;
                    continue;
                }
                if head.starts_with("HTTP/1.1 503 ") {
                    return self.on_refusal(&request, &head);
                }
                self.unanswered.pop_front();
                if self.unanswered.is_empty() {
                    self.withheld = None; // the server has replied without asking for the body
                }
                check_head(&request, &head)?;
                let is_empty = request.method == HttpMethod::Head
                    || request.framing == Framing::Length && request.body.len == 0;
                self.reply = Some(IncomingReply {
                    request,
                    at: 0,
                    chunk: None,
                });
                if is_empty {
                    self.on_reply(now);
                }
                continue;
            };
            match reply.take(&mut self.received)? {
                ReplyProgress::All => self.on_reply(now),
                ReplyProgress::Some => {}
                ReplyProgress::Nothing => return Ok(()),
            }
        }
    }

    fn on_continue(&mut self, request: &HttpRequest) -> Result<(), String> {
        if !request.upload.is_some_and(|upload| upload.expects) {
            return Err("the client was told to continue, but had not asked".into());
        }
        if self.was_told.replace(request.id) == Some(request.id) {
            return Err("the client was told to continue twice".into());
        }
        self.outgoing.extend(self.withheld.take().unwrap_or_default());
        Ok(())
    }

    /// Handles the refusal of a request. The reply says `Connection: close`, which means that later requests are not answered either.
    fn on_refusal(&mut self, request: &HttpRequest, head: &str) -> Result<(), String> {
        let has = |line: &str| head.split("\r\n").any(|one| one == line);
        if !has("Connection: close") || !has("Content-Length: 0") || !has("Retry-After: 1") {
            return Err(format!("malformed: {head:?}"));
        }
        if request.is_repeatable() && !request.is_poison {
            return Err(format!("{request:?} was refused"));
        }
        self.was_refused = true;
        self.is_over = true;
        self.planned.clear();
        self.unanswered.clear();
        self.outgoing.clear();
        Ok(())
    }

    fn on_reply(&mut self, now: Instant) {
        let reply = self.reply.take().expect("just read");
        self.is_over |= reply.request.is_last();
        self.replies += 1;
        self.send_at = self.planned.front().map(|next| now + next.after);
    }

    fn on_end(&mut self, now: Instant) -> Result<(), String> {
        if let Some(IncomingReply { request, at, .. }) = &self.reply
            && request.framing == Framing::Close
            && *at == request.body.len
        {
            self.on_reply(now);
        }
        let missing = self.unanswered.len() + usize::from(self.reply.is_some());
        match missing {
            0 => Ok(()),
            _ => Err(format!("the stream ended with {missing} replies missing")),
        }
    }
}

enum ReplyProgress {
    /// The reply is complete.
    All,
    /// A part of the reply was taken. `received` may hold more.
    Some,
    /// Nothing was taken. More bytes must arrive first.
    Nothing,
}

impl IncomingReply {
    fn take(&mut self, received: &mut Vec<u8>) -> Result<ReplyProgress, String> {
        let left = match (self.request.framing, self.chunk) {
            (Framing::Length, _) => self.request.body.len - self.at,
            (Framing::Close, _) => u64::MAX,
            (Framing::Chunked, Some(left)) => left,
            (Framing::Chunked, None) => return self.take_size(received),
        };
        if left == 0 {
            return take_line(received).map_or(Ok(ReplyProgress::Nothing), |line| {
                self.chunk = None;
                if line.is_empty() {
                    Ok(ReplyProgress::Some)
                } else {
                    Err("no line end after a chunk".into())
                }
            });
        }
        let count = received.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let expected = self.request.body.bytes(self.at, count);
        if received[..count] != expected {
            let same = expected
                .iter()
                .zip(received.iter())
                .take_while(|(one, other)| one == other)
                .count();
            return Err(format!(
                "body byte {} of {} is wrong",
                self.at + same as u64,
                self.request.body.len
            ));
        }
        received.drain(..count);
        self.at += count as u64;
        self.chunk = self.chunk.map(|left| left - count as u64);
        let is_all = self.request.framing == Framing::Length && self.at == self.request.body.len;
        Ok(match count {
            _ if is_all => ReplyProgress::All,
            0 => ReplyProgress::Nothing,
            _ => ReplyProgress::Some,
        })
    }

    fn take_size(&mut self, received: &mut Vec<u8>) -> Result<ReplyProgress, String> {
        // The last chunk has no data and no trailer: two line ends follow its size.
        if received.starts_with(b"0\r\n") {
            if received.len() < 5 {
                return Ok(ReplyProgress::Nothing);
            }
            if &received[3..5] != b"\r\n" || self.at != self.request.body.len {
                return Err(format!(
                    "the body ended after {} of {} bytes",
                    self.at, self.request.body.len
                ));
            }
            received.drain(..5);
            return Ok(ReplyProgress::All);
        }
        let Some(line) = take_line(received) else {
            return Ok(ReplyProgress::Nothing);
        };
        let size = u64::from_str_radix(&line, 16).map_err(|_| format!("chunk size {line:?}"))?;
        if size == 0 {
            return Err(format!("last chunk written as {line:?}"));
        }
        self.chunk = Some(size);
        Ok(ReplyProgress::Some)
    }
}

/// Checks a reply's header section: every line except `Date` must be as expected, and `Date` must have the form that the nodes use.
fn check_head(request: &HttpRequest, head: &str) -> Result<(), String> {
    let mut lines: Vec<&str> = head.split("\r\n").collect();
    let sum = request
        .upload
        .map_or_else(Sum::default, |upload| Sum::of(upload.body));
    let expected = [vec!["HTTP/1.1 200 OK".to_owned()], request.reply_lines(0, sum)].concat();
    let date = lines.iter().position(|line| line.starts_with("Date: node "));
    let date = date
        .map(|at| lines.remove(at))
        .ok_or_else(|| format!("no date in {head:?}"))?;
    if lines != expected || date.len() != "Date: node 0123456789abcdef at 012345678901".len() {
        return Err(format!("header {head:?} instead of {expected:?}"));
    }
    Ok(())
}

impl App for HttpClient {
    fn drive(&mut self, now: Instant, endpoint: &mut TcpEndpoint) -> Option<Instant> {
        if self.wrong.is_some() {
            return None;
        }
        let bytes = ReadPace::read(self.pace, now, &mut self.next_read, endpoint);
        self.received.extend_from_slice(&bytes);
        let mut checked = self.check(now);
        if checked.is_ok() && endpoint.is_read_finished() && !self.is_complete() {
            checked = self.on_end(now);
        }
        self.wrong = checked.err();
        if self.send_at.is_none() {
            self.send_at = self.planned.front().map(|first| now + first.after);
        }
        self.send(now);
        let room = endpoint.writable();
        let outgoing: Vec<u8> = self.outgoing.drain(..room.min(self.outgoing.len())).collect();
        endpoint.write(&outgoing);
        let all_sent = self.planned.is_empty() && self.outgoing.is_empty() && self.withheld.is_none();
        let may_close = self.half_closes || self.unanswered.is_empty() && self.reply.is_none();
        if all_sent && may_close || self.is_over {
            endpoint.shutdown();
        }
        let waits = !self.planned.is_empty() && self.unanswered.is_empty() && self.reply.is_none();
        let read_at = (endpoint.readable() > 0).then_some(self.next_read);
        self.send_at
            .filter(|_| waits)
            .into_iter()
            .chain(read_at)
            .filter(|at| *at > now)
            .min()
    }
}
