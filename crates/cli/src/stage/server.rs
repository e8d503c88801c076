//! What all connections of a stage share.

use std::net::SocketAddr;
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
    pub ended: AtomicU64,
    pub restored: AtomicU64,
    pub kept: AtomicU64,
    pub without_backup: AtomicU64,
    pub not_exported: AtomicU64,
    /// Requests whose reply did not come from the application.
    pub unanswered: AtomicU64,
}

impl StageServer {
    /// What the metrics say.
    pub fn status(&self) -> StageStatus {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let StageCounts {
            accepted,
            ended,
            restored,
            kept,
            without_backup,
            not_exported,
            unanswered,
        } = &self.counts;
        StageStatus {
            application: self.settings.application,
            connections: of(accepted).saturating_sub(of(ended)),
            accepted: of(accepted),
            restored: of(restored),
            kept: of(kept),
            without_backup: of(without_backup),
            not_exported: of(not_exported),
            unanswered: of(unanswered),
        }
    }
}

/// The state of a stage, and what has happened since its start.
#[derive(Clone, Debug)]
pub struct StageStatus {
    /// The application's address.
    pub application: SocketAddr,
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that went on from a point that the other node had exported.
    pub restored: u64,
    /// Points that the backup keeps.
    pub kept: u64,
    /// Points for which there was no backup.
    pub without_backup: u64,
    /// Attempts to export a point that failed.
    pub not_exported: u64,
    /// Requests that the application did not answer.
    pub unanswered: u64,
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
