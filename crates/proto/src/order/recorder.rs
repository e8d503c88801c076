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
    /// The part of the record that has not been sent.
    unsent: Vec<u8>,
    /// Bytes of the record that were sent.
    sent: u64,
    /// Bytes of the record that the backup has.
    arrived: u64,
    /// No backup takes the record, so writes do not wait.
    is_alone: bool,
}

impl OrderRecorder {
    /// The record of a program that goes on with a record of `len` bytes, which the backup has.
    #[must_use]
    pub fn resumed(len: u64) -> Self {
        Self {
            sent: len,
            arrived: len,
            ..Self::default()
        }
    }

    /// Adds an event to the record.
    pub fn record(&mut self, event: &OrderEvent) {
        self.encoder.encode(event, &mut self.unsent);
    }

    /// The part of the record that is to be sent now.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        &self.unsent
    }

    /// The first `count` bytes of [`Self::unsent`] were sent.
    pub fn sent(&mut self, count: usize) {
        self.unsent.drain(..count);
        self.sent += count as u64;
    }

    /// The backup has the record's first `arrived` bytes. A receipt that is older than another, or for bytes that were never sent, changes
    /// nothing. A receipt ends the time alone.
    pub fn receipt(&mut self, arrived: u64) {
        if arrived <= self.sent {
            self.arrived = self.arrived.max(arrived);
            self.is_alone = false;
        }
    }

    /// No backup takes the record now: writes do not wait.
    pub fn alone(&mut self) {
        self.is_alone = true;
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
        self.sent + self.unsent.len() as u64
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
