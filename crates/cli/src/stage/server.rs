//! What all connections of a stage share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use super::settings::StageSettings;

/// Room counts in units of this many bytes, because a semaphore counts with 32 bits.
pub const ROOM_UNIT: usize = 1024;

/// What all connections share.
pub struct StageServer {
    pub settings: StageSettings,
    /// Memory for long requests and replies, in [`ROOM_UNIT`]s.
    pub room: Arc<Semaphore>,
    pub places: Arc<Semaphore>,
    pub counts: StageCounts,
}

/// What has happened since the start.
#[derive(Default)]
pub struct StageCounts {
    pub accepted: AtomicU64,
    pub restored: AtomicU64,
    pub kept: AtomicU64,
    pub without_backup: AtomicU64,
    pub not_exported: AtomicU64,
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
