//! The backup's half: puts the parts of snapshots together.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{ExportPlace, PartReceipt, STATE_MAX, SnapshotPart};
use crate::restart::snapshot::SnapshotStanding;

/// Number of snapshots of which only parts have come. More than the primary transfers at the same time.
const PARTIAL_MAX: usize = 16;

/// A snapshot that has arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivedSnapshot {
    /// Its number.
    pub number: u64,
    /// Where it holds.
    pub place: ExportPlace,
    /// The state.
    pub state: Arc<[u8]>,
}

/// Snapshots of which only parts have come.
#[derive(Debug, Default)]
pub struct SnapshotArrivals {
    /// The snapshot that got a part last is the last one.
    partial: Vec<PartialSnapshot>,
}

#[derive(Debug)]
struct PartialSnapshot {
    /// The part that came first of the snapshot, without its bytes.
    head: SnapshotPart,
    bytes: Vec<u8>,
}

impl SnapshotArrivals {
    /// Handles a part. Returns the snapshot if this part completes it.
    ///
    /// # Errors
    /// The answer to the part, if the snapshot is not complete, or cannot be.
    pub fn on_part(&mut self, part: SnapshotPart) -> Result<ArrivedSnapshot, PartReceipt> {
        let receipt = |arrived, standing| PartReceipt {
            number: part.number,
            client: part.client,
            arrived,
            standing,
        };
        if part.size > STATE_MAX || part.at.saturating_add(part.bytes.len()) > part.size {
            let why = SnapshotStanding::Unfit(format!("a state has at most {STATE_MAX} bytes"));
            return Err(receipt(0, Some(why)));
        }
        let known = self
            .partial
            .iter()
            .position(|partial| partial.head.client == part.client);
        let mut partial = match known.map(|at| self.partial.remove(at)) {
            Some(partial) if partial.is_of(&part) => partial,
            Some(partial) if partial.head.number > part.number => {
                self.partial.push(partial);
                let why = SnapshotStanding::Unfit("a later snapshot was exported".into());
                return Err(receipt(0, Some(why)));
            }
            Some(_) | None => PartialSnapshot::new(&part),
        };
        if part.at <= partial.bytes.len() {
            let known = partial.bytes.len() - part.at;
            partial.bytes.extend(part.bytes.iter().skip(known));
        }
        let arrived = partial.bytes.len();
        if arrived == part.size {
            return Ok(ArrivedSnapshot {
                number: part.number,
                place: part.place,
                state: partial.bytes.into(),
            });
        }
        if self.partial.len() == PARTIAL_MAX {
            self.partial.remove(0);
        }
        self.partial.push(partial);
        Err(receipt(arrived, None))
    }

    /// Forgets the parts of this client's snapshots: another node has the connection from now on.
    pub fn forget(&mut self, client: &SocketAddr) {
        self.partial.retain(|partial| partial.head.client != *client);
    }

    /// Forgets all parts: this node is not the wire any more.
    pub fn clear(&mut self) {
        self.partial.clear();
    }
}

impl PartialSnapshot {
    fn new(part: &SnapshotPart) -> Self {
        let head = SnapshotPart {
            bytes: Vec::new(),
            ..part.clone()
        };
        Self {
            head,
            bytes: Vec::new(),
        }
    }

    /// Whether `part` belongs to this snapshot.
    fn is_of(&self, part: &SnapshotPart) -> bool {
        let of = |part: &SnapshotPart| (part.number, part.place, part.size);
        of(&self.head) == of(part)
    }
}
