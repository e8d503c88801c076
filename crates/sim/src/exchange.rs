//! A test application. It sends bytes that the other side can check, and checks the bytes that it receives.

use proto::Instant;
use serde::{Deserialize, Serialize};

use crate::host::App;
use crate::tcp::TcpEndpoint;

/// One side of an exchange: sends a number of bytes, checks the bytes that come, and closes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    to_send: SeededStream,
    expected: SeededStream,
    close: Close,
    sent: u64,
    received: u64,
    wrong_at: Option<u64>,
    peer_finished: bool,
}

/// A stream of bytes. The seed and the position determine a byte's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeededStream {
    /// Streams with different seeds are different.
    pub seed: u64,
    /// Number of bytes.
    pub len: u64,
}

/// When a side ends its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// After its last byte.
    AfterSending,
    /// After its last byte, when the peer has ended its own stream.
    AfterPeer,
    /// Never.
    Never,
}

impl SeededStream {
    /// A stream of `len` bytes.
    pub const fn new(seed: u64, len: u64) -> Self {
        Self { seed, len }
    }

    /// The byte at `position`.
    pub const fn byte(self, position: u64) -> u8 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (position ^ self.seed.wrapping_mul(GOLDEN)).wrapping_mul(GOLDEN);
        (mixed ^ (mixed >> 29)).wrapping_mul(GOLDEN).to_be_bytes()[0]
    }

    /// The bytes from `from` on, at most `limit`.
    pub fn bytes(self, from: u64, limit: usize) -> Vec<u8> {
        let until = self.len.min(from.saturating_add(limit as u64));
        (from..until).map(|position| self.byte(position)).collect()
    }
}

impl Exchange {
    /// A side that sends `to_send` and expects `expected`.
    pub const fn new(to_send: SeededStream, expected: SeededStream, close: Close) -> Self {
        Self {
            to_send,
            expected,
            close,
            sent: 0,
            received: 0,
            wrong_at: None,
            peer_finished: false,
        }
    }

    /// Number of bytes that the endpoint has taken from this side.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of bytes that came.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Whether exactly the expected bytes came.
    pub fn is_complete(&self) -> bool {
        self.received == self.expected.len && self.wrong_at.is_none()
    }

    /// Position of the first byte that was wrong, or that came after the expected end.
    pub const fn wrong_at(&self) -> Option<u64> {
        self.wrong_at
    }

    fn check(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let expected = self.received < self.expected.len && self.expected.byte(self.received) == *byte;
            if !expected && self.wrong_at.is_none() {
                self.wrong_at = Some(self.received);
            }
            self.received += 1;
        }
    }
}

impl App for Exchange {
    fn drive(&mut self, _: Instant, endpoint: &mut TcpEndpoint) -> Option<Instant> {
        let mut bytes = Vec::new();
        endpoint.read(&mut bytes, usize::MAX);
        self.check(&bytes);
        self.peer_finished |= endpoint.is_read_finished();
        let room = endpoint.writable();
        if room > 0 && self.sent < self.to_send.len {
            self.sent += endpoint.write(&self.to_send.bytes(self.sent, room)) as u64;
        }
        let closes = match self.close {
            Close::AfterSending => true,
            Close::AfterPeer => self.peer_finished,
            Close::Never => false,
        };
        if closes && self.sent == self.to_send.len {
            endpoint.shutdown();
        }
        None
    }
}
