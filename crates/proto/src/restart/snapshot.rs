//! Restart policy `snapshot` (Migratory TCP): the application exports its state for a connection, and after a takeover another application
//! imports this state. It then gets the input that followed the snapshot, and repeats the output that followed the snapshot. The part of
//! the output that was logged is compared and dropped, as with policy [`replay`](super::replay).
//!
//! A snapshot is bound to two offsets: how much input the application had read, and how much output it had written. It becomes the
//! connection's *restart point* once the log has all output before it, because the application would not repeat that output.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::digest::{BLOCK, Digest};
use super::replay::Repetition;
use crate::Offset;

/// Number of blocks whose hashes are kept: 256 blocks are 4 MiB of output.
const RECENT_MAX: usize = 256;
/// Number of snapshots that wait for output, and bytes of their states. At the limit, a new snapshot replaces the last one that waits. The
/// first one always stays, so that the restart point moves on.
const WAITING_MAX: usize = 64;
const WAITING_BYTES_MAX: usize = 1 << 20;

/// An application's state for one connection, and where it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its number. A later snapshot of the same node has a higher number.
    pub number: u64,
    /// End of the input that the application had read.
    pub input: Offset,
    /// End of the output that the application had written.
    pub output: Offset,
    /// The state itself. The protocol does not look into it.
    #[serde(with = "crate::whole")]
    pub state: Arc<[u8]>,
}

/// Where a snapshot stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotStanding {
    /// It is the restart point, or a later one is.
    Kept,
    /// It becomes the restart point as soon as the output before it is logged.
    Waits,
    /// It cannot become the restart point, for this reason. An earlier restart point may hold.
    Unfit(String),
    /// The connection is not protected, for this reason.
    Refused(String),
}

/// Follows the output of one connection, and has its restart point.
#[derive(Debug, Default)]
pub struct SnapshotTracker {
    /// The beginning of the logs: the connection's start, or [`Offset::LEARNT`].
    begin: Offset,
    /// The snapshot that is the restart point. `None`: the connection's start.
    point: Option<Snapshot>,
    waiting: VecDeque<Snapshot>,
    /// The output since the restart point, or since the first block after it.
    said: RecentDigest,
    ended: bool,
    reached: Option<u64>,
    /// Snapshots with this number or a lower one are from before the connection moved.
    before_move: u64,
}

impl SnapshotTracker {
    /// The tracker of a connection that is learnt in its middle. It has no restart point until the next snapshot.
    pub fn learnt() -> Self {
        Self {
            begin: Offset::LEARNT,
            said: RecentDigest::at(Offset::LEARNT),
            ..Self::default()
        }
    }

    /// Whether an application can go on from the restart point.
    ///
    /// # Errors
    /// There is none.
    pub fn restarts(&self) -> Result<(), String> {
        if self.begin == Offset::ZERO || self.point.is_some() {
            return Ok(());
        }
        Err("older than the wire, and followed; protected once its application exports its state".into())
    }

    /// The primary's next bytes, as logged.
    pub fn on_output(&mut self, mut bytes: &[u8]) {
        while let Some(next) = self.waiting.front() {
            let before = next.output.since(self.said.end());
            let Ok(before) = usize::try_from(before) else {
                break;
            };
            if before > bytes.len() {
                break;
            }
            let (old, new) = bytes.split_at(before);
            self.said.write(old);
            bytes = new;
            let reached = self.waiting.pop_front().expect("there is one");
            self.said = RecentDigest::at(reached.output);
            self.reached = Some(reached.number);
            self.point = Some(reached);
        }
        self.said.write(bytes);
    }

    /// The primary has ended its stream after the bytes given so far.
    pub const fn on_output_end(&mut self) {
        self.ended = true;
    }

    /// The primary's application has exported this snapshot. Input is logged up to `logged`.
    pub fn on_snapshot(&mut self, snapshot: Snapshot, logged: Offset) -> SnapshotStanding {
        if let Some(standing) = self.standing(snapshot.number) {
            return standing;
        }
        let last = self.waiting.back().or(self.point.as_ref());
        if last.is_some_and(|last| snapshot.input < last.input || snapshot.output < last.output) {
            return SnapshotStanding::Unfit("a later snapshot was exported before it".into());
        }
        if snapshot.input > logged {
            return SnapshotStanding::Unfit("the log lacks input that the application has read".into());
        }
        if snapshot.output > self.said.end() {
            self.wait_for_output(snapshot);
            return SnapshotStanding::Waits;
        }
        if !self.said.rebase(snapshot.output) {
            return SnapshotStanding::Unfit("it came after more than 4 MiB of later output".into());
        }
        self.waiting.clear(); // they come before this one
        self.point = Some(snapshot);
        SnapshotStanding::Kept
    }

    fn wait_for_output(&mut self, snapshot: Snapshot) {
        let bytes: usize = self.waiting.iter().map(|waiting| waiting.state.len()).sum();
        let is_full = self.waiting.len() == WAITING_MAX || bytes + snapshot.state.len() > WAITING_BYTES_MAX;
        if is_full && self.waiting.len() > 1 {
            self.waiting.pop_back();
        }
        self.waiting.push_back(snapshot);
    }

    /// The number of the restart point, if it has changed since the last call.
    pub const fn take_reached(&mut self) -> Option<u64> {
        self.reached.take()
    }

    /// Where the snapshot with this number stands. `None`: it has not come.
    pub fn standing(&self, number: u64) -> Option<SnapshotStanding> {
        if number <= self.before_move {
            return Some(SnapshotStanding::Unfit(
                "it was exported before the connection moved".into(),
            ));
        }
        if self.point.as_ref().is_some_and(|point| number <= point.number) {
            return Some(SnapshotStanding::Kept);
        }
        let is_known = self.waiting.iter().any(|waiting| waiting.number >= number);
        is_known.then_some(SnapshotStanding::Waits)
    }

    /// Number of the restart point. 0: the connection's start.
    pub fn number(&self) -> u64 {
        self.point.as_ref().map_or(0, |point| point.number)
    }

    /// Completes a snapshot that came without its state.
    pub fn give_state(&mut self, number: u64, state: Arc<[u8]>) {
        let mut snapshots = self.point.iter_mut().chain(&mut self.waiting);
        if let Some(snapshot) = snapshots.find(|snapshot| snapshot.number == number) {
            snapshot.state = state;
        }
    }

    /// The connection has moved to a node that has exported snapshots up to the number `exported` before. That node goes on from the restart
    /// point, so the output for which snapshots wait may never come. Numbers of different nodes are not compared.
    pub(crate) fn on_moved(&mut self, exported: u64) {
        self.waiting.clear();
        self.reached = None;
        self.before_move = exported;
        if let Some(point) = &mut self.point {
            point.number = exported;
        }
    }

    /// Forgets the snapshots that wait for output.
    pub fn forget_waiting(&mut self) {
        self.waiting.clear();
    }

    /// End of the input that the restart point covers.
    pub fn restart_input(&self) -> Offset {
        self.point.as_ref().map_or(self.begin, |point| point.input)
    }

    /// End of the output that the restart point covers.
    pub fn restart_output(&self) -> Offset {
        self.point.as_ref().map_or(self.begin, |point| point.output)
    }

    /// The state of the restart point. `None`: the connection's start.
    pub fn state(&self) -> Option<&Arc<[u8]>> {
        self.point.as_ref().map(|point| &point.state)
    }

    /// The output that a restarted application must repeat.
    pub fn repetition(&self) -> Repetition {
        Repetition {
            unchecked: self.said.from.since(self.restart_output()),
            bytes: self.said.digest.bytes(),
            hash: self.said.digest.of_all(),
            ended: self.ended,
        }
    }

    /// Bytes of memory: the snapshots and the hashes.
    pub fn memory(&self) -> usize {
        let states = self
            .point
            .iter()
            .chain(&self.waiting)
            .map(|snapshot| snapshot.state.len());
        states.sum::<usize>() + size_of_val(&NO_HASH) * self.said.recent.len()
    }
}

/// A hash of the output from an offset on that can be begun anew at a later offset, if this offset lies in recent blocks.
#[derive(Debug)]
struct RecentDigest {
    from: Offset,
    digest: Digest,
    /// The hashes of the last whole blocks.
    recent: VecDeque<[u8; 16]>,
}

const NO_HASH: [u8; 16] = [0; 16];

impl Default for RecentDigest {
    fn default() -> Self {
        Self::at(Offset::ZERO)
    }
}

impl RecentDigest {
    fn at(from: Offset) -> Self {
        Self {
            from,
            digest: Digest::new(),
            recent: VecDeque::new(),
        }
    }

    /// The end of the output so far.
    fn end(&self) -> Offset {
        self.from + self.digest.bytes()
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let to_boundary = BLOCK - (self.digest.bytes() % BLOCK as u64) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(to_boundary));
            self.digest.write(now);
            bytes = later;
            if now.len() == to_boundary {
                if self.recent.len() == RECENT_MAX {
                    self.recent.pop_front();
                }
                self.recent.push_back(self.digest.last_block());
            }
        }
    }

    /// Begins the hash anew at the first block boundary at or after `point`, or at the end of the output if there is none. Returns false
    /// if the hashes from there on are not kept any more.
    fn rebase(&mut self, point: Offset) -> bool {
        let block = BLOCK as u64;
        let whole = self.digest.bytes() / block;
        let first = point.since(self.from).div_ceil(block); // the first block that lies after `point`
        if point == self.end() || first > whole {
            *self = Self::at(self.end());
            return true;
        }
        let kept = whole - first;
        let Some(passed) = (self.recent.len() as u64).checked_sub(kept) else {
            return false;
        };
        self.recent
            .drain(..usize::try_from(passed).expect("it is at most a length"));
        self.digest = self.digest.with_blocks(self.recent.iter());
        self.from += first * block;
        true
    }
}

#[cfg(test)]
mod tests;
