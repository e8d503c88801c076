//! Restart policy `replica`: a second application runs on the backup. Its output is compared with the primary's byte by byte,
//! then dropped. This is FT-TCP's hot backup, for servers that are deterministic per connection.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Offset;

#[cfg(test)]
mod tests;

/// Why a replica cannot take over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplicaReason {
    /// The two outputs differ.
    #[error("the replica's output differs from byte {at} on")]
    Differs {
        /// The first byte that differs, or that only one of the two outputs has because the other output has ended.
        at: Offset,
    },
    /// The primary was so far ahead that its surplus was given up.
    #[error("the replica is more than {bytes} bytes behind")]
    TooFarBehind {
        /// The bound that was exceeded.
        bytes: usize,
    },
    /// The replica has failed.
    #[error("{0}")]
    Failed(String),
}

/// Compares the primary's logged output of one connection with the replica's output. Either output may be ahead.
///
/// Only the surplus is kept: the bytes by which one output is ahead. The caller bounds the replica's surplus by not reading from the
/// replica while [`replica_surplus`](Self::replica_surplus) is large. The primary cannot be slowed, so its surplus is given up beyond
/// `bound`.
#[derive(Debug)]
pub struct Comparison {
    bound: usize,
    equal: Offset,
    ahead: Who,
    surplus: VecDeque<u8>,
    primary_ended: bool,
    replica_ended: bool,
    reason: Option<ReplicaReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Primary,
    Replica,
}

impl Comparison {
    /// Both outputs at their start. `bound`: maximum number of bytes that the replica may be behind.
    pub const fn new(bound: usize) -> Self {
        Self {
            bound,
            equal: Offset::ZERO,
            ahead: Who::Primary,
            surplus: VecDeque::new(),
            primary_ended: false,
            replica_ended: false,
            reason: None,
        }
    }

    /// The replica has failed. Replaces an earlier reason of another kind, and ends the comparison.
    pub fn fail(&mut self, reason: String) {
        if !self.has_failed() {
            self.reason = None;
            self.give_up(ReplicaReason::Failed(reason));
        }
    }

    /// Whether the replica has failed.
    pub fn has_failed(&self) -> bool {
        matches!(self.reason, Some(ReplicaReason::Failed(_)))
    }

    /// The next bytes of the primary's output, as logged.
    pub fn on_primary(&mut self, bytes: &[u8]) {
        self.on_bytes(Who::Primary, bytes);
        if self.ahead == Who::Primary && self.surplus.len() > self.bound {
            self.give_up(ReplicaReason::TooFarBehind { bytes: self.bound });
        }
    }

    /// The next bytes of the replica's output.
    pub fn on_replica(&mut self, bytes: &[u8]) {
        self.on_bytes(Who::Replica, bytes);
    }

    /// The primary has ended its stream after the bytes given so far.
    pub fn on_primary_end(&mut self) {
        self.primary_ended = true;
        self.check_ends();
    }

    /// The replica has ended its stream after the bytes given so far.
    pub fn on_replica_end(&mut self) {
        self.replica_ended = true;
        self.check_ends();
    }

    /// Number of bytes by which one side is ahead of the other.
    pub fn surplus(&self) -> usize {
        self.surplus.len()
    }

    /// Number of bytes by which the replica is ahead. The caller stops reading from the replica while this number is large.
    pub fn replica_surplus(&self) -> usize {
        if self.ahead == Who::Replica {
            self.surplus.len()
        } else {
            0
        }
    }

    /// Whether the replica is behind and may still catch up.
    pub fn is_behind(&self) -> bool {
        self.reason.is_none() && !self.replica_ended && self.ahead == Who::Primary && !self.surplus.is_empty()
    }

    /// Memory for the surplus in bytes.
    pub fn memory(&self) -> usize {
        self.surplus.capacity()
    }

    /// The offset up to which both outputs are known to be equal.
    pub const fn equal(&self) -> Offset {
        self.equal
    }

    /// Whether the replica could take over now.
    ///
    /// # Errors
    /// The reason why the replica cannot take over, now or later.
    pub fn protection(&self) -> Result<(), ReplicaReason> {
        self.reason.clone().map_or(Ok(()), Err)
    }

    /// How the replica's output goes on.
    ///
    /// # Errors
    /// As [`protection`](Self::protection).
    pub fn resume(&self) -> Result<ReplicaResume, ReplicaReason> {
        self.protection()?;
        let surplus = self.surplus.iter().copied().collect();
        Ok(match self.ahead {
            Who::Primary => ReplicaResume::Behind {
                said: surplus,
                ended: self.primary_ended,
            },
            Who::Replica => ReplicaResume::Ahead {
                to_send: surplus,
                ended: self.replica_ended,
            },
        })
    }

    fn on_bytes(&mut self, who: Who, bytes: &[u8]) {
        if self.reason.is_some() {
            return;
        }
        if self.ahead != who {
            let common = self.surplus.len().min(bytes.len());
            let same = common_prefix(&self.surplus, &bytes[..common]);
            self.equal += same as u64;
            if same < common {
                return self.give_up(ReplicaReason::Differs { at: self.equal });
            }
            self.surplus.drain(..common);
            if self.surplus.len() < self.surplus.capacity() / 4 {
                self.surplus.shrink_to_fit(); // a lag in the past costs no memory
            }
            if common < bytes.len() {
                self.ahead = who;
            }
            self.surplus.extend(&bytes[common..]);
        } else {
            self.surplus.extend(bytes);
        }
        self.check_ends();
    }

    /// If one side has ended its stream, surplus of the other side is a difference.
    fn check_ends(&mut self) {
        let behind_ended = match self.ahead {
            Who::Primary => self.replica_ended,
            Who::Replica => self.primary_ended,
        };
        if behind_ended && !self.surplus.is_empty() {
            self.give_up(ReplicaReason::Differs { at: self.equal });
        }
    }

    fn give_up(&mut self, reason: ReplicaReason) {
        self.surplus = VecDeque::new();
        self.reason.get_or_insert(reason);
    }
}

/// How a replica's output goes on after a takeover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaResume {
    /// The replica has sent more than the primary: bytes that the client does not have.
    Ahead {
        /// Bytes to send to the client first.
        #[serde(with = "serde_bytes")]
        to_send: Vec<u8>,
        /// The replica has ended its stream after them.
        ended: bool,
    },
    /// The primary has sent more than the replica: bytes that the client already has.
    Behind {
        /// Bytes that the replica must still send and that the client must not get again.
        #[serde(with = "serde_bytes")]
        said: Vec<u8>,
        /// The output has ended after them.
        ended: bool,
    },
    /// The replica has sent less than the client has, and the log does not have the missing bytes (commit mode `pr`).
    Unseen {
        /// Number of bytes that the replica must still send and that the client must not get again.
        missing: u64,
    },
}

/// The replica's bytes differ from those that the client has. The connection must be aborted, so that the client
/// notices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplicaMismatch {
    /// A byte differs.
    #[error("the replica's output differs {missing} bytes before the end of the sent output")]
    Differs {
        /// Number of logged bytes that the replica did not confirm.
        missing: usize,
    },
    /// The replica ended its stream first.
    #[error("the replica ended its output {missing} bytes before the end of the sent output")]
    EndedEarly {
        /// Number of logged bytes that the replica did not confirm.
        missing: u64,
    },
}

/// The relay's filter: drops the bytes that the client already has. Bytes after those pass unchanged.
#[derive(Debug)]
pub struct ReplicaResumer {
    said: VecDeque<u8>,
    /// Number of bytes that are dropped without a comparison.
    unseen: u64,
    ended: bool,
}

impl ReplicaResumer {
    /// The filter, and the bytes to send to the client before any further output of the replica.
    pub fn new(resume: ReplicaResume) -> (Self, Vec<u8>) {
        match resume {
            ReplicaResume::Ahead { to_send, .. } => (
                Self {
                    said: VecDeque::new(),
                    unseen: 0,
                    ended: false,
                },
                to_send,
            ),
            ReplicaResume::Unseen { missing } => (
                Self {
                    said: VecDeque::new(),
                    unseen: missing,
                    ended: false,
                },
                Vec::new(),
            ),
            ReplicaResume::Behind { said, ended } => (
                Self {
                    said: said.into(),
                    unseen: 0,
                    ended,
                },
                Vec::new(),
            ),
        }
    }

    /// Whether bytes pass unchanged from now on.
    pub fn is_transparent(&self) -> bool {
        self.said.is_empty() && self.unseen == 0 && !self.ended
    }

    /// Number of bytes that the client has already and the replica has yet to send.
    pub fn missing(&self) -> u64 {
        self.said.len() as u64 + self.unseen
    }

    /// Whether the output has ended and all of it is confirmed.
    pub fn is_finished(&self) -> bool {
        self.said.is_empty() && self.ended
    }

    /// Takes the replica's next bytes. Appends to `to_client` those that the client must still get.
    ///
    /// # Errors
    /// The bytes differ from those that the client has.
    pub fn on_application(&mut self, bytes: &[u8], to_client: &mut Vec<u8>) -> Result<(), ReplicaMismatch> {
        let unseen = usize::try_from(self.unseen).map_or(bytes.len(), |unseen| unseen.min(bytes.len()));
        self.unseen -= unseen as u64;
        let bytes = &bytes[unseen..];
        let common = self.said.len().min(bytes.len());
        let same = common_prefix(&self.said, &bytes[..common]);
        self.said.drain(..same);
        if same < common {
            return Err(ReplicaMismatch::Differs {
                missing: self.said.len(),
            });
        }
        if !self.ended {
            to_client.extend_from_slice(&bytes[common..]);
        }
        Ok(())
    }

    /// The replica has ended its stream. If this call succeeds, the output to the client ends too.
    ///
    /// # Errors
    /// The client has more bytes than the replica sent.
    pub fn on_application_end(&mut self) -> Result<(), ReplicaMismatch> {
        match self.missing() {
            0 => Ok(()),
            missing => Err(ReplicaMismatch::EndedEarly { missing }),
        }
    }
}

/// Length of the common prefix in bytes. `bytes` is not longer than `kept`.
fn common_prefix(kept: &VecDeque<u8>, bytes: &[u8]) -> usize {
    let (front, back) = kept.as_slices();
    let (first, second) = bytes.split_at(front.len().min(bytes.len()));
    if front.starts_with(first) && back.starts_with(second) {
        return bytes.len();
    }
    kept.iter()
        .zip(bytes)
        .take_while(|(one, other)| one == other)
        .count()
}
