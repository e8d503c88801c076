//! Snapshots on their way from the primary to the backup: the eager transfer of Migratory TCP. Each service has one [`Exports`], the
//! primary's half, and one [`SnapshotArrivals`], the backup's half.
//!
//! ```text
//!   application ── state ──▶ Exports ── parts ────▶ SnapshotArrivals ──▶ the connection's restart point
//!               ◀─ outcome ─         ◀─ receipts ──
//! ```
//!
//! Parts and receipts may be lost, or come twice. A receipt says how much of the state has arrived without a gap. Without a receipt, the
//! primary sends again from there. A snapshot may have to wait at the backup for the output before it
//! ([`restart::snapshot`](crate::restart::snapshot)). The backup sends another receipt when it has waited long enough.

mod arrivals;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::arrivals::{ArrivedSnapshot, SnapshotArrivals};
use crate::restart::snapshot::SnapshotStanding;
use crate::seq::in_reach;
use crate::{Instant, Seq};

/// Largest state in bytes.
pub const STATE_MAX: usize = 16 << 20;
/// Largest number of state bytes in one part. A part fits into one datagram.
pub const PART_MAX: usize = 16 << 10;
/// Number of states that are transferred at the same time.
const ACTIVE_MAX: usize = 4;
/// Bytes of one state that may be sent without a receipt. Small enough for the receiver's socket buffer.
const WINDOW: usize = 4 * PART_MAX;
/// Time without a receipt after which parts are sent again.
const RESEND: Duration = Duration::from_millis(50);
/// Interval at which the primary asks about a snapshot that has arrived and waits at the backup.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Longest time from the application's call to its outcome.
const EXPORT_MAX: Duration = Duration::from_secs(30);
/// Bytes of all states that wait to be transferred.
const QUEUE_MAX: usize = 256 << 20;

/// Where in a connection's two streams a snapshot holds: the sequence numbers of the next byte that the application reads and of the next one
/// that it writes. They also tell the connection from another one with the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportPlace {
    /// In the input.
    pub input: Seq,
    /// In the output.
    pub output: Seq,
}

/// A part of a snapshot, for the backup.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPart {
    /// The snapshot's number.
    #[serde(deserialize_with = "in_reach")]
    pub number: u64,
    /// The client of its connection.
    pub client: SocketAddr,
    /// Where the snapshot holds.
    pub place: ExportPlace,
    /// Length of the whole state.
    pub size: usize,
    /// Where this part begins in the state.
    pub at: usize,
    /// The part itself.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for SnapshotPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (end, size) = (self.at + self.bytes.len(), self.size);
        write!(
            f,
            "bytes {}..{end} of {size} of snapshot {} of {}",
            self.at, self.number, self.client
        )
    }
}

/// The backup's answer to a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReceipt {
    /// The snapshot's number.
    pub number: u64,
    /// The client of its connection.
    pub client: SocketAddr,
    /// Bytes of the state that have arrived without a gap.
    pub arrived: usize,
    /// Where the snapshot stands, if it has arrived whole, or will not be taken.
    pub standing: Option<SnapshotStanding>,
}

/// The outcome of an application's call of `export_state`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportOutcome {
    /// The snapshot, or a later one of the same connection, is the restart point on the backup.
    Kept,
    /// No backup protects the connection now, for this reason.
    NotKept(String),
    /// This node does not serve the connection any more.
    Moved,
    /// The backup does not keep the snapshot: not in time, or not at all. An earlier restart point may hold.
    TimedOut,
}

/// A snapshot to be transferred.
#[derive(Debug)]
struct Export {
    client: SocketAddr,
    number: u64,
    place: ExportPlace,
    state: Arc<[u8]>,
    /// Whether an application waits for the outcome.
    has_waiter: bool,
    /// The calls that get the outcome. A later snapshot of the same connection answers the calls of an earlier one, too.
    calls: Vec<u64>,
    called: Instant,
    arrived: usize,
    next: usize,
    /// Whether the backup is to be asked where the snapshot stands.
    asks: bool,
    /// Whether the whole state has arrived, so that the backup's decision is all that is missing.
    waits: bool,
    again: Instant,
}

impl Export {
    /// The next part to send now.
    fn poll_part(&mut self, now: Instant) -> Option<SnapshotPart> {
        let size = self.state.len();
        let to = size.min(self.next + PART_MAX).min(self.arrived + WINDOW);
        if to == self.next && !self.asks {
            return None;
        }
        let bytes = self.state[self.next..to].to_vec();
        let at = std::mem::replace(&mut self.next, to);
        self.asks = false;
        self.again = self.again.max(now + if self.waits { ASK_AGAIN } else { RESEND });
        Some(SnapshotPart {
            number: self.number,
            client: self.client,
            place: self.place,
            size,
            at,
            bytes,
        })
    }
}

/// Snapshots that this node's application has exported and that have no outcome yet.
#[derive(Debug)]
pub struct Exports {
    last_number: u64,
    /// In the order of the calls. The first ones of those that have not arrived are being transferred.
    queue: VecDeque<Export>,
    finished: VecDeque<(Vec<u64>, ExportOutcome)>,
}

impl Exports {
    /// No snapshots. Numbers begin at the time `now`, so they are higher than those of an earlier agent of this node.
    pub fn new(now: Instant) -> Self {
        Self {
            last_number: now.as_nanos(),
            queue: VecDeque::new(),
            finished: VecDeque::new(),
        }
    }

    /// The number of the latest snapshot. Later ones have higher numbers.
    pub const fn last_number(&self) -> u64 {
        self.last_number
    }

    /// The application has exported a state. `call` identifies its call. `waits`: the application waits for the outcome.
    pub fn begin(
        &mut self,
        now: Instant,
        (call, waits): (u64, bool),
        client: SocketAddr,
        place: ExportPlace,
        state: Arc<[u8]>,
    ) {
        let queued: usize = self.queue.iter().map(|export| export.state.len()).sum();
        if queued + state.len() > QUEUE_MAX {
            return self.finished.push_back((vec![call], ExportOutcome::TimedOut)); // a takeover may go on from an earlier one
        }
        self.last_number += 1;
        let export = Export {
            client,
            number: self.last_number,
            place,
            state,
            has_waiter: waits,
            calls: vec![call],
            called: now,
            arrived: 0,
            next: 0,
            asks: true,
            waits: false,
            again: now,
        };
        // A snapshot that is not under way yet is superseded. The new one takes its place in the queue. At the end of the queue, a
        // connection with frequent exports might never have its turn.
        let is_superseded =
            |earlier: &&mut Export| earlier.client == client && earlier.next == 0 && earlier.asks;
        match self.queue.iter_mut().find(is_superseded) {
            Some(earlier) => {
                let superseded = std::mem::replace(earlier, export);
                earlier.has_waiter |= superseded.has_waiter;
                earlier.calls.extend(superseded.calls);
            }
            None => self.queue.push_back(export),
        }
    }

    /// The next part to send.
    pub fn poll_part(&mut self, now: Instant) -> Option<SnapshotPart> {
        self.poll_part_unless(now, |_| false)
    }

    /// As [`poll_part`](Self::poll_part), for connections for which `waits` does not hold.
    pub fn poll_part_unless(
        &mut self,
        now: Instant,
        waits: impl Fn(&SocketAddr) -> bool,
    ) -> Option<SnapshotPart> {
        let mut active = 0;
        for export in self.queue.iter_mut().filter(|export| !waits(&export.client)) {
            active += usize::from(!export.waits);
            if active > ACTIVE_MAX {
                return None;
            }
            if let Some(part) = export.poll_part(now) {
                return Some(part);
            }
        }
        None
    }

    /// Handles the backup's answer.
    pub fn on_receipt(&mut self, now: Instant, receipt: &PartReceipt) {
        let outcome = match &receipt.standing {
            Some(SnapshotStanding::Kept) => {
                // Earlier snapshots of this connection are no longer needed.
                let (client, number) = (receipt.client, receipt.number);
                let is_kept = |export: &Export| export.client == client && export.number <= number;
                return self.finish(is_kept, &ExportOutcome::Kept);
            }
            Some(SnapshotStanding::Refused(why)) => Some(ExportOutcome::NotKept(why.clone())),
            // A takeover would go on from an earlier restart point, so the application must not act as if there were no backup.
            Some(SnapshotStanding::Unfit(_)) => Some(ExportOutcome::TimedOut),
            Some(SnapshotStanding::Waits) | None => None,
        };
        let is_meant = |export: &Export| export.number == receipt.number && export.client == receipt.client;
        if let Some(outcome) = outcome {
            return self.finish(is_meant, &outcome);
        }
        let Some(export) = self.queue.iter_mut().find(|export| is_meant(export)) else {
            return;
        };
        let arrived = receipt.arrived.min(export.state.len());
        if arrived > export.arrived {
            export.next = export.next.max(arrived);
            export.again = now + RESEND;
        } else if arrived < export.arrived {
            export.next = arrived; // the backup has lost the parts, or this receipt was overtaken by a later one
        }
        export.arrived = arrived;
        if receipt.standing.is_some() {
            export.waits = true;
            export.again = now + ASK_AGAIN;
            if !export.has_waiter {
                self.finish(is_meant, &ExportOutcome::Kept); // the backup has it, and nobody waits for more
            }
        }
    }

    /// Ends the wait for all snapshots.
    pub fn finish_all(&mut self, outcome: &ExportOutcome) {
        self.finish(|_| true, outcome);
    }

    /// Ends the wait for the snapshots of all connections but those for which `stays` holds.
    pub fn finish_unless(&mut self, stays: impl Fn(&SocketAddr) -> bool, outcome: &ExportOutcome) {
        self.finish(|export| !stays(&export.client), outcome);
    }

    /// The connections of `clients` have moved to the other node.
    pub fn finish_moved(&mut self, clients: &[SocketAddr]) {
        self.finish(|export| clients.contains(&export.client), &ExportOutcome::Moved);
    }

    fn finish(&mut self, which: impl Fn(&Export) -> bool, outcome: &ExportOutcome) {
        let finished = &mut self.finished;
        self.queue.retain_mut(|export| {
            let is_finished = which(export);
            if is_finished {
                finished.push_back((std::mem::take(&mut export.calls), outcome.clone()));
            }
            !is_finished
        });
    }

    /// Sends again what has had no receipt for too long, and ends waits that are too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.finish(
            |export| now.since(export.called) >= EXPORT_MAX,
            &ExportOutcome::TimedOut,
        );
        for export in &mut self.queue {
            let is_begun = export.next > 0 || !export.asks;
            if is_begun && now >= export.again {
                export.next = export.arrived;
                export.asks = true;
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.queue.iter().map(|export| {
            let end = export.called + EXPORT_MAX;
            if export.asks { end } else { end.min(export.again) }
        });
        due.min()
    }

    /// The next calls that have an outcome.
    pub fn poll_outcome(&mut self) -> Option<(Vec<u64>, ExportOutcome)> {
        self.finished.pop_front()
    }
}
