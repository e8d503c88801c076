//! A request's body: sent by the client, read by the server.

use crate::exchange::SeededStream;

use super::line::take_line;

/// A request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBody {
    /// Contents of the body.
    pub body: SeededStream,
    /// The body is sent in chunks, instead of with a length.
    pub chunked: bool,
    /// The body is sent only after the server has asked for it (`Expect: 100-continue`).
    pub expects: bool,
}

/// Payload bytes in a chunk.
const CHUNK: u64 = 1000;

impl RequestBody {
    /// The header lines that announce the body, each with its line end.
    pub(super) fn lines(&self) -> String {
        let expect = if self.expects {
            "Expect: 100-continue\r\n"
        } else {
            ""
        };
        if self.chunked {
            format!("{expect}Transfer-Encoding: chunked\r\n")
        } else {
            format!("{expect}Content-Length: {}\r\n", self.body.len)
        }
    }

    /// The body as it is sent.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let all = self.body.bytes(0, usize::MAX);
        if !self.chunked {
            return all;
        }
        let mut sent = Vec::new();
        for chunk in all.chunks(usize::try_from(CHUNK).expect("small")) {
            sent.extend(format!("{:x}\r\n", chunk.len()).bytes());
            sent.extend_from_slice(chunk);
            sent.extend(b"\r\n");
        }
        sent.extend(b"0\r\n\r\n");
        sent
    }
}

/// Reads a body and keeps only its sum.
#[derive(Debug)]
pub(super) struct BodyReader {
    chunked: bool,
    /// Bytes that are still to come of the current chunk, or of a body without chunks. `None` before a chunk's size line.
    left: Option<u64>,
    is_last: bool,
    sum: Sum,
}

impl BodyReader {
    /// A reader of a body in chunks, or of `length` bytes.
    pub fn new(length: Option<u64>) -> Self {
        Self {
            chunked: length.is_none(),
            left: length,
            is_last: false,
            sum: Sum::default(),
        }
    }

    /// Reads complete parts of `received`. Returns the sum when the body is complete.
    pub fn take(&mut self, received: &mut Vec<u8>) -> Result<Option<Sum>, String> {
        loop {
            match &mut self.left {
                None => {
                    let Some(line) = take_line(received) else {
                        return Ok(None);
                    };
                    let size = u64::from_str_radix(&line, 16).map_err(|_| format!("chunk size {line:?}"))?;
                    self.is_last = size == 0;
                    self.left = Some(size);
                }
                Some(0) if self.chunked => match take_line(received).as_deref() {
                    None => return Ok(None),
                    Some("") if self.is_last => return Ok(Some(self.sum)),
                    Some("") => self.left = None,
                    Some(line) => return Err(format!("{line:?} after a chunk")),
                },
                Some(0) => return Ok(Some(self.sum)),
                Some(_) if received.is_empty() => return Ok(None),
                Some(left) => {
                    let count =
                        usize::try_from(*left).map_or(received.len(), |left| left.min(received.len()));
                    self.sum.add(&received[..count]);
                    received.drain(..count);
                    *left -= count as u64;
                }
            }
        }
    }
}

/// Number of bytes, and their FNV-1a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum(u64, u64);

impl Default for Sum {
    fn default() -> Self {
        Self(0, 0xcbf2_9ce4_8422_2325)
    }
}

impl Sum {
    /// The sum of a whole body.
    pub fn of(body: SeededStream) -> Self {
        let mut sum = Self::default();
        sum.add(&body.bytes(0, usize::MAX));
        sum
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0 += bytes.len() as u64;
        self.1 = bytes.iter().fold(self.1, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{:016x}", self.0, self.1)
    }
}
