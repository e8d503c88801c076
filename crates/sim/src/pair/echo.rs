//! A server that is deterministic per connection, and a client that checks its replies. Each message uploads bytes and asks for a
//! download. The reply consists of the download and a hash of the upload. If the message asks for an echo, the inverted
//! upload comes first.
//!
//! ```text
//!  request   "M" │ flags │ upload: u32 │ download: u32 │ seed: u32 │ the upload
//!  reply     the upload, each byte inverted, if it is to be echoed │ the download │ FNV-1a 64 of the upload
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use proto::Instant;
use serde::{Deserialize, Serialize};

use super::application::{ReadPace, SimApplication};
use crate::exchange::SeededStream;
use crate::host::App;
use crate::tcp::TcpEndpoint;

const HEADER: usize = 14;
const FLAG_ECHO: u8 = 1;
const FLAG_LAST: u8 = 2;
const PIECE: usize = 4096;

/// One message of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EchoMessage {
    /// Bytes that the client sends.
    pub upload: u32,
    /// Bytes that the client gets, besides the echo.
    pub download: u32,
    /// Seed of the upload's and the download's bytes.
    pub seed: u32,
    /// Whether the reply contains the inverted upload.
    pub echo: bool,
    /// The server ends the connection after its reply.
    pub is_last: bool,
}

impl EchoMessage {
    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[0] = b'M';
        header[1] = u8::from(self.echo) * FLAG_ECHO + u8::from(self.is_last) * FLAG_LAST;
        for (field, value) in header[2..]
            .chunks_exact_mut(4)
            .zip([self.upload, self.download, self.seed])
        {
            field.copy_from_slice(&value.to_be_bytes());
        }
        header
    }

    /// `None` if `header` does not begin like a message's header.
    fn parse(header: &[u8; HEADER]) -> Option<Self> {
        let field = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
        (header[0] == b'M').then(|| Self {
            upload: field(2),
            download: field(6),
            seed: field(10),
            echo: header[1] & FLAG_ECHO != 0,
            is_last: header[1] & FLAG_LAST != 0,
        })
    }

    const fn upload(&self) -> SeededStream {
        SeededStream::new(self.seed as u64, self.upload as u64)
    }

    const fn download(&self) -> SeededStream {
        SeededStream::new(!(self.seed as u64), self.download as u64)
    }

    /// The whole reply.
    fn reply(&self) -> Vec<u8> {
        let upload = self.upload().bytes(0, usize::MAX);
        let mut reply: Vec<u8> = if self.echo {
            upload.iter().map(|byte| !byte).collect()
        } else {
            Vec::new()
        };
        reply.extend(self.download().bytes(0, usize::MAX));
        reply.extend(upload.iter().fold(FNV_START, fnv).to_be_bytes());
        reply
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

const fn fnv(hash: u64, byte: &u8) -> u64 {
    (hash ^ *byte as u64).wrapping_mul(0x0100_0000_01b3)
}

/// Answers messages. Two servers may take different times to think, but their output is the same.
#[derive(Debug)]
pub struct EchoServer {
    think: Duration,
    received: VecDeque<u8>,
    /// The message whose upload is coming, the number of bytes that are missing, and the hash of the bytes that came.
    message: Option<(EchoMessage, u32, u64)>,
    /// Output, and the earliest time for each piece.
    to_say: VecDeque<(Instant, EchoPiece)>,
    input_ended: bool,
    is_last: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum EchoPiece {
    Bytes(Vec<u8>),
    /// A stream from this position on.
    Stream(SeededStream, u64),
}

impl EchoServer {
    /// A server that thinks for `think` before each download.
    pub fn new(think: Duration) -> Self {
        Self {
            think,
            received: VecDeque::new(),
            message: None,
            to_say: VecDeque::new(),
            input_ended: false,
            is_last: false,
        }
    }

    /// Takes one header or piece of an upload. Returns false if more bytes must arrive first, or after the last message.
    fn step(&mut self, now: Instant) -> bool {
        let Some((message, missing, hash)) = &mut self.message else {
            if self.received.len() < HEADER || self.is_last {
                return false;
            }
            let header: Vec<u8> = self.received.drain(..HEADER).collect();
            let message = EchoMessage::parse(&header.try_into().expect("as long as a header"));
            match message {
                Some(message) => self.message = Some((message, message.upload, FNV_START)),
                None => self.is_last = true,
            }
            return true;
        };
        let count = self.received.len().min(*missing as usize);
        let upload: Vec<u8> = self.received.drain(..count).collect();
        *hash = upload.iter().fold(*hash, fnv);
        *missing -= u32::try_from(count).expect("at most what was missing");
        if message.echo && count > 0 {
            let echo = upload.iter().map(|byte| !byte).collect();
            self.to_say.push_back((now, EchoPiece::Bytes(echo)));
        }
        if *missing > 0 {
            return false;
        }
        let (message, hash) = (*message, *hash);
        self.message = None;
        self.is_last = message.is_last;
        self.to_say
            .push_back((now + self.think, EchoPiece::Stream(message.download(), 0)));
        self.to_say
            .push_back((now, EchoPiece::Bytes(hash.to_be_bytes().to_vec())));
        true
    }
}

impl SimApplication for EchoServer {
    fn on_input(&mut self, now: Instant, bytes: &[u8]) {
        self.received.extend(bytes);
        while self.step(now) {}
    }

    fn on_input_end(&mut self, _: Instant) {
        self.input_ended = true;
    }

    fn speak(&mut self, now: Instant, limit: usize, into: &mut Vec<u8>) {
        let end = into.len() + limit;
        while into.len() < end
            && let Some((_, piece)) = self.to_say.front_mut().filter(|(at, _)| *at <= now)
        {
            let room = end - into.len();
            let is_said = match piece {
                EchoPiece::Bytes(bytes) => {
                    into.extend(bytes.drain(..room.min(bytes.len())));
                    bytes.is_empty()
                }
                EchoPiece::Stream(stream, at) => {
                    let bytes = stream.bytes(*at, room.min(PIECE));
                    *at += bytes.len() as u64;
                    into.extend(bytes);
                    *at == stream.len
                }
            };
            if is_said {
                self.to_say.pop_front();
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.to_say.is_empty() && (self.is_last || self.input_ended)
    }

    fn wakes_at(&self) -> Option<Instant> {
        self.to_say.front().map(|(at, _)| *at)
    }

    fn export_state(&self) -> Option<Vec<u8>> {
        let state = EchoState {
            received: self.received.clone(),
            message: self.message,
            to_say: self.to_say.iter().map(|(_, piece)| piece.clone()).collect(),
            is_last: self.is_last,
        };
        serde_json::to_vec(&state).ok()
    }

    fn import_state(&mut self, now: Instant, state: &[u8]) {
        let state: EchoState = serde_json::from_slice(state).expect("a state of this program");
        self.received = state.received;
        self.message = state.message;
        self.to_say = state.to_say.into_iter().map(|piece| (now, piece)).collect();
        self.is_last = state.is_last;
    }
}

/// The state of an [`EchoServer`] between two reads. The end of the input is not part of it: a server that goes on is told of it again.
#[derive(Serialize, Deserialize)]
struct EchoState {
    received: VecDeque<u8>,
    message: Option<(EchoMessage, u32, u64)>,
    to_say: Vec<EchoPiece>,
    is_last: bool,
}

/// A message, and the delay between the reply to the previous message and this message.
pub type PlannedMessage = (EchoMessage, Duration);

/// Sends messages and checks every byte of the replies.
#[derive(Debug)]
pub struct EchoClient {
    planned: VecDeque<PlannedMessage>,
    /// Whether the client ends its stream after the last message instead of after the last reply.
    half_closes: bool,
    pace: Option<ReadPace>,
    next_read: Instant,
    send_at: Option<Instant>,
    outgoing: VecDeque<u8>,
    /// The bytes of the current reply that are still to come. `None`: no reply is expected.
    expected: Option<VecDeque<u8>>,
    wrong: Option<String>,
    received: u64,
}

impl EchoClient {
    /// A client that sends `planned`, and reads at `pace`.
    pub fn new(planned: Vec<PlannedMessage>, half_closes: bool, pace: Option<ReadPace>) -> Self {
        Self {
            planned: planned.into(),
            half_closes,
            pace,
            next_read: Instant::ZERO,
            send_at: None,
            outgoing: VecDeque::new(),
            expected: None,
            wrong: None,
            received: 0,
        }
    }

    /// Whether every reply came as expected, and nothing else.
    pub fn is_complete(&self) -> bool {
        self.planned.is_empty() && self.expected.is_none() && self.wrong.is_none()
    }

    /// The first thing that was unexpected, if any.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    fn check(&mut self, now: Instant, bytes: &[u8]) -> Result<(), String> {
        for byte in bytes {
            let expected = self.expected.as_mut().and_then(VecDeque::pop_front);
            if expected != Some(*byte) {
                return Err(format!(
                    "byte {} is {byte} instead of {expected:?}",
                    self.received
                ));
            }
            self.received += 1;
            if self.expected.as_ref().is_some_and(VecDeque::is_empty) {
                self.expected = None;
                self.send_at = self.planned.front().map(|(_, after)| now + *after);
            }
        }
        Ok(())
    }

    fn send(&mut self, now: Instant) {
        if self.send_at.is_none() {
            self.send_at = self.planned.front().map(|(_, after)| now + *after);
        }
        if self.expected.is_none()
            && self.send_at.is_some_and(|at| now >= at)
            && let Some((message, _)) = self.planned.pop_front()
        {
            self.outgoing.extend(message.header());
            self.outgoing.extend(message.upload().bytes(0, usize::MAX));
            self.expected = Some(message.reply().into());
        }
    }
}

impl App for EchoClient {
    fn drive(&mut self, now: Instant, endpoint: &mut TcpEndpoint) -> Option<Instant> {
        if self.wrong.is_some() {
            return None;
        }
        let bytes = ReadPace::read(self.pace, now, &mut self.next_read, endpoint);
        let mut checked = self.check(now, &bytes);
        if checked.is_ok() && endpoint.is_read_finished() && !self.is_complete() {
            checked = Err(format!("the stream ended after byte {}", self.received));
        }
        self.wrong = checked.err();
        self.send(now);
        let room = endpoint.writable();
        let outgoing: Vec<u8> = self.outgoing.drain(..room.min(self.outgoing.len())).collect();
        endpoint.write(&outgoing);
        let all_sent = self.planned.is_empty() && self.outgoing.is_empty();
        if all_sent && (self.half_closes || self.expected.is_none()) {
            endpoint.shutdown();
        }
        let waits = self.expected.is_none();
        let read_at = (endpoint.readable() > 0).then_some(self.next_read);
        self.send_at
            .filter(|_| waits)
            .into_iter()
            .chain(read_at)
            .filter(|at| *at > now)
            .min()
    }
}
