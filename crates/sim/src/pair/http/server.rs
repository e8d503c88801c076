//! The server's side of one connection.

use std::collections::VecDeque;
use std::time::Duration;

use proto::Instant;

use super::{Framing, Manner, Request, take_head};
use crate::exchange::Stream;
use crate::pair::application::Application;

/// Answers requests, one after the other.
#[derive(Debug)]
pub struct Server {
    manner: Manner,
    received: Vec<u8>,
    /// Each with the time before which it is not answered.
    requests: VecDeque<(Request, Instant)>,
    /// The body that is being said, and how much of it was.
    body: Option<(Request, u64)>,
    said: VecDeque<u8>,
    answered: u64,
    input_ended: bool,
    is_last: bool,
}

impl Server {
    /// A server with a manner of its own.
    pub fn new(manner: Manner) -> Self {
        Self {
            manner,
            received: Vec::new(),
            requests: VecDeque::new(),
            body: None,
            said: VecDeque::new(),
            answered: 0,
            input_ended: false,
            is_last: false,
        }
    }

    fn think(&self, request: &Request) -> Duration {
        self.manner
            .think
            .mul_f64(f64::from(draw(self.manner.seed, request.body.seed, 256)) / 256.0)
    }

    /// Says the next piece; false if there is nothing to be said now.
    fn say_more(&mut self, now: Instant) -> bool {
        if let Some((request, at)) = self.body.take() {
            self.say_body(request, at);
            return true;
        }
        let Some(&(request, _)) = self
            .requests
            .front()
            .filter(|(_, at)| *at <= now && !self.is_last)
        else {
            return false;
        };
        self.requests.pop_front();
        self.answered += 1;
        self.is_last = request.is_last();
        let date = format!(
            "Date: node {:016x} at {:012}",
            self.manner.seed,
            now.as_nanos() / 1_000_000
        );
        let lines = [vec!["HTTP/1.1 200 OK".to_owned(), date], request.reply_lines()].concat();
        self.said.extend(lines.join("\r\n").bytes());
        self.said.extend(super::HEAD_END);
        if !request.head_only {
            self.body = Some((request, 0));
        }
        true
    }

    fn say_body(&mut self, request: Request, at: u64) {
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

impl Application for Server {
    fn on_input(&mut self, now: Instant, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
        while let Some(head) = take_head(&mut self.received) {
            let Some(request) = Request::parse(&head) else {
                self.said
                    .extend(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
                self.is_last = true;
                return;
            };
            let at = now + self.think(&request);
            self.requests.push_back((request, at));
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
        silent && (self.is_last || self.input_ended && self.requests.is_empty())
    }

    fn wakes_at(&self) -> Option<Instant> {
        self.requests.front().map(|(_, at)| *at)
    }
}

/// A number below `choices`, known by its seed and salt.
fn draw(seed: u64, salt: u64, choices: u32) -> u32 {
    let stream = Stream::new(seed, 0);
    (u32::from(stream.byte(salt)) << 8 | u32::from(stream.byte(!salt))) % choices
}
