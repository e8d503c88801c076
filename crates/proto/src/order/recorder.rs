//! The primary's half: the record, as much of it as the backup has, and what a write waits for.

use super::encoding::OrderEncoder;
use super::event::OrderEvent;

/// The record of one server.
///
/// A write depends on all events before it: the server may have derived the written bytes from any of them. So a write waits until the
/// backup has the whole record (commit mode `prs`). After a failure of the primary, no client has then seen a byte whose causes the
/// backup lacks.
#[derive(Debug, Default)]
pub struct OrderRecorder {
    encoder: OrderEncoder,
    /// The record from `base` on: what the agent has not got, and what the backup may lack.
    kept: Vec<u8>,
    base: u64,
    /// Bytes of the record that were sent to the agent.
    sent: u64,
    /// Bytes of the record that were offered to the backup's kernel.
    offered: u64,
    /// Bytes of the record that the backup has.
    arrived: u64,
    /// No backup takes the record, so writes do not wait.
    is_alone: bool,
}

/// Bytes without a receipt that are kept, and that are offered to the backup's kernel at once.
const KEPT_MAX: u64 = 8 << 10;

impl OrderRecorder {
    /// The record of a program that goes on with a record of `len` bytes, which the backup has.
    #[must_use]
    pub fn resumed(len: u64) -> Self {
        Self {
            base: len,
            sent: len,
            arrived: len,
            ..Self::default()
        }
    }

    /// Adds an event to the record.
    pub fn record(&mut self, event: &OrderEvent) {
        self.encoder.encode(event, &mut self.kept);
    }

    /// The part of the record that is to be sent to the agent now.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        &self.kept[(self.sent - self.base) as usize..]
    }

    /// The first `count` bytes of [`Self::unsent`] were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent += count as u64;
        self.forget();
    }

    /// The bytes for the backup's kernel now, which are all without a receipt, and the position of the first. `None`: all bytes were offered,
    /// or they are too many. Then they go only over the agents.
    #[must_use]
    pub fn offer(&self) -> Option<(u64, &[u8])> {
        let is_kept = self.arrived >= self.base && self.len() - self.arrived <= KEPT_MAX;
        let is_new = self.len() > self.offered.max(self.arrived);
        (is_kept && is_new).then(|| (self.arrived, &self.kept[(self.arrived - self.base) as usize..]))
    }

    /// The whole record was offered to the backup's kernel.
    pub fn offered(&mut self) {
        self.offered = self.len();
    }

    /// The agent's receipt: the backup has the record's first `arrived` bytes. A receipt that is older than another, or for bytes that were
    /// never sent, changes nothing. A receipt ends the time alone.
    pub fn receipt(&mut self, arrived: u64) {
        if arrived <= self.sent {
            self.arrived = self.arrived.max(arrived);
            self.is_alone = false;
            self.forget();
        }
    }

    /// The receipt of the backup's kernel. Only the agent knows when the time alone ends. Returns whether this is news.
    pub fn kernel_receipt(&mut self, arrived: u64) -> bool {
        let is_news = arrived > self.arrived && arrived <= self.offered;
        if is_news {
            self.arrived = arrived;
            self.forget();
        }
        is_news
    }

    /// Forgets what the agent has, unless the backup may lack it and its kernel can be offered it.
    fn forget(&mut self) {
        let needed = if self.is_alone { self.sent } else { self.arrived };
        let needed = needed.max(self.len().saturating_sub(KEPT_MAX)).min(self.sent);
        if needed > self.base {
            self.kept.drain(..(needed - self.base) as usize);
            self.base = needed;
        }
    }

    /// No backup takes the record now: writes do not wait.
    pub fn alone(&mut self) {
        self.is_alone = true;
        self.forget();
    }

    /// Whether the server may write to a client now.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.released() >= self.len()
    }

    /// Writes that depend on at most this many bytes of the record may reach their clients now. [`u64::MAX`]: all of them.
    #[must_use]
    pub fn released(&self) -> u64 {
        if self.is_alone { u64::MAX } else { self.arrived }
    }

    /// Length of the record in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.base + self.kept.len() as u64
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
