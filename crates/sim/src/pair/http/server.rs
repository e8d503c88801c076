//! The server's side of one connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use proto::Instant;

use super::line::{HEAD_END, take_head};
use super::upload::{BodyReader, Sum};
use super::{Framing, HttpMethod, HttpRequest, Ledger, Manner, RequestBody};
use crate::exchange::SeededStream;
use crate::pair::application::SimApplication;

/// Answers requests, one after the other.
#[derive(Debug)]
pub struct HttpServer {
    manner: Manner,
    ledger: Rc<RefCell<Ledger>>,
    received: Vec<u8>,
    /// The request whose body is coming; the offset at which the reply's body begins, because the request may ask for a part; and the
    /// reader of the request's body.
    receiving: Option<(HttpRequest, u64, BodyReader)>,
    due: VecDeque<PendingOutput>,
    /// The request whose reply's body is being sent, and the offset of the next byte.
    body: Option<(HttpRequest, u64)>,
    said: VecDeque<u8>,
    answered: u64,
    input_ended: bool,
    is_last: bool,
}

/// A piece of output. Pieces are sent in the order of their requests.
#[derive(Debug)]
enum PendingOutput {
    Continue,
    Reply {
        request: HttpRequest,
        /// Offset at which the body begins.
        from: u64,
        sum: Sum,
        /// Earliest time of the reply.
        at: Instant,
    },
    /// The server's death: the first bytes of a reply or nothing, and then the end of the connection.
    Death(HttpRequest),
}

impl HttpServer {
    /// A server that serves in this manner and enters its executions into `ledger`.
    pub fn new(manner: Manner, ledger: Rc<RefCell<Ledger>>) -> Self {
        Self {
            manner,
            ledger,
            received: Vec::new(),
            receiving: None,
            due: VecDeque::new(),
            body: None,
            said: VecDeque::new(),
            answered: 0,
            input_ended: false,
            is_last: false,
        }
    }

    /// Reads complete parts of `received`. Returns an error for a bad request.
    fn read(&mut self, now: Instant) -> Result<(), String> {
        loop {
            if let Some((request, from, reading)) = &mut self.receiving {
                let Some(sum) = reading.take(&mut self.received)? else {
                    return Ok(());
                };
                let (request, from) = (*request, *from);
                self.receiving = None;
                let at = now + self.think(&request);
                self.due.push_back(PendingOutput::Reply {
                    request,
                    from,
                    sum,
                    at,
                });
            }
            let Some(head) = take_head(&mut self.received) else {
                return Ok(());
            };
            let request = HttpRequest::parse(&head).ok_or(head.clone())?;
            let is_marked = head.contains("\r\nSteadfast-Reexecuted: 1\r\n");
            self.execute(request, request.part(&head), is_marked);
        }
    }

    /// Begins to execute a request, as soon as its header is complete.
    fn execute(&mut self, request: HttpRequest, from: u64, is_marked: bool) {
        self.ledger
            .borrow_mut()
            .enter(request, from, self.manner.node, is_marked);
        if request.is_poison && is_marked {
            self.due.push_back(PendingOutput::Death(request));
        }
        let upload = request.upload;
        // A server may leave out `100 Continue` if a part of the body has arrived (RFC 9110 §10.1.1).
        let may_omit = !self.received.is_empty() && self.draws(&request, 2) == 0;
        if upload.is_some_and(|upload| upload.expects) && !may_omit {
            self.due.push_back(PendingOutput::Continue);
        }
        let length = match upload {
            Some(RequestBody { chunked: true, .. }) => None,
            Some(RequestBody { body, .. }) => Some(body.len),
            None => Some(0),
        };
        self.receiving = Some((request, from, BodyReader::new(length)));
    }

    fn draws(&self, request: &HttpRequest, choices: u32) -> u32 {
        draw(self.manner.seed, request.id, choices)
    }

    fn think(&self, request: &HttpRequest) -> Duration {
        self.manner
            .think
            .mul_f64(f64::from(draw(self.manner.seed, request.body.seed, 256)) / 256.0)
    }

    /// Queues the next piece of output. Returns false if no output is due now.
    fn say_more(&mut self, now: Instant) -> bool {
        if let Some((request, at)) = self.body.take() {
            self.say_body(request, at);
            return true;
        }
        if self.is_last {
            return false;
        }
        let (request, from, sum) = match self.due.front() {
            Some(PendingOutput::Continue) => {
                self.due.pop_front();
                self.said.extend(b"HTTP/1.1 100 Continue\r\n\r\n");
                return true;
            }
            Some(PendingOutput::Reply {
                request,
                from,
                sum,
                at,
            }) if *at <= now => (*request, *from, *sum),
            Some(PendingOutput::Death(request)) => {
                let said = "HTTP/1.1 200 OK\r\nDate";
                let length = self.draws(request, 3) * 10;
                self.said.extend(said.bytes().take(length as usize));
                self.is_last = true;
                return true;
            }
            Some(PendingOutput::Reply { .. }) | None => return false,
        };
        self.due.pop_front();
        self.answered += 1;
        self.is_last = request.is_last();
        let date = format!(
            "Date: node {:016x} at {:012}",
            self.manner.seed,
            now.as_nanos() / 1_000_000
        );
        let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
        let first = vec![format!("HTTP/1.1 {status}"), date];
        let lines = [first, request.reply_lines(from, sum)].concat();
        self.said.extend(lines.join("\r\n").bytes());
        self.said.extend(HEAD_END);
        if request.method != HttpMethod::Head {
            self.body = Some((request, from));
        }
        true
    }

    fn say_body(&mut self, request: HttpRequest, at: u64) {
        const PIECE: u64 = 4096;
        let left = request.body.len - at;
        if request.framing != Framing::Chunked {
            let bytes = request
                .body
                .bytes(at, usize::try_from(left.min(PIECE)).expect("small"));
            self.said.extend(&bytes);
            let at = at + bytes.len() as u64;
            self.body = (at < request.body.len).then_some((request, at));
            return;
        }
        let size = 1 + draw(
            self.manner.chunk_seed,
            at ^ request.body.seed,
            self.manner.chunk_max,
        );
        let bytes = request
            .body
            .bytes(at, usize::try_from(left.min(size.into())).expect("small"));
        self.said.extend(format!("{:x}\r\n", bytes.len()).bytes());
        self.said.extend(&bytes);
        self.said.extend(b"\r\n");
        if !bytes.is_empty() {
            self.body = Some((request, at + bytes.len() as u64));
        }
    }
}

impl SimApplication for HttpServer {
    fn on_input(&mut self, now: Instant, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
        if self.read(now).is_err() {
            self.said
                .extend(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
            self.is_last = true;
        }
    }

    fn on_input_end(&mut self, _: Instant) {
        self.input_ended = true;
    }

    fn speak(&mut self, now: Instant, limit: usize, into: &mut Vec<u8>) {
        while self.said.len() < limit && self.say_more(now) {}
        into.extend(self.said.drain(..limit.min(self.said.len())));
    }

    fn is_finished(&self) -> bool {
        let silent = self.said.is_empty() && self.body.is_none();
        silent && (self.is_last || self.input_ended && self.due.is_empty())
    }

    fn wakes_at(&self) -> Option<Instant> {
        match self.due.front()? {
            PendingOutput::Reply { at, .. } => Some(*at),
            PendingOutput::Continue | PendingOutput::Death(_) => None,
        }
    }
}

/// A number below `choices` that depends on nothing but the seed and the salt.
fn draw(seed: u64, salt: u64, choices: u32) -> u32 {
    let stream = SeededStream::new(seed, 0);
    (u32::from(stream.byte(salt)) << 8 | u32::from(stream.byte(!salt))) % choices
}
