//! Restart policy `replica` with commit mode `pr`: the log lacks the bytes of the primary's output, so the replica's output is kept until
//! the client has acknowledged it. Nothing can be compared but lengths.

use std::collections::VecDeque;

use super::replica::ReplicaResume;
use crate::Offset;

/// The replica's output that the client has not acknowledged.
///
/// ```text
///   acknowledged      position (end of the replica's output)
///  ──────┼═══════════════┼──────
///        │ kept          │
///  ──────┴───────────────┴─────┼
///                            sent (the primary has sent at least this much)
/// ```
#[derive(Debug, Default)]
pub struct KeptOutput {
    /// End of the output that the client is known to have. Earlier bytes are not kept.
    acknowledged: Offset,
    /// End of the replica's output.
    position: Offset,
    /// The bytes from `acknowledged` to `position`. Empty if the replica is behind `acknowledged`.
    bytes: VecDeque<u8>,
    /// End of the output that the primary has sent, as far as is known.
    sent: Offset,
    ended: bool,
    failed: Option<String>,
}

impl KeptOutput {
    /// The replica sent these bytes.
    pub fn on_replica(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        let known = self.acknowledged.since(self.position);
        let skip = usize::try_from(known).map_or(bytes.len(), |known| known.min(bytes.len()));
        self.bytes.extend(&bytes[skip..]);
        self.position += bytes.len() as u64;
    }

    /// The replica has ended its stream.
    pub const fn on_replica_end(&mut self) {
        self.ended = true;
    }

    /// The primary has sent output up to `end`.
    pub fn on_sent(&mut self, end: Offset) {
        self.sent = self.sent.max(end);
    }

    /// The client has acknowledged output up to `to`.
    pub fn release(&mut self, to: Offset) {
        let more = usize::try_from(to.since(self.acknowledged)).unwrap_or(usize::MAX);
        self.bytes.drain(..more.min(self.bytes.len()));
        if self.bytes.len() < self.bytes.capacity() / 4 {
            self.bytes.shrink_to_fit(); // a lag in the past costs no memory
        }
        self.acknowledged = self.acknowledged.max(to);
    }

    /// Why the replica cannot take over, now or later.
    ///
    /// # Errors
    /// The reason.
    pub fn protection(&self) -> Result<(), String> {
        if let Some(reason) = &self.failed {
            return Err(reason.clone());
        }
        if self.ended && self.position < self.sent {
            return Err(format!(
                "the replica ended its output {} bytes before the primary's",
                self.sent.since(self.position)
            ));
        }
        Ok(())
    }

    /// The replica has failed.
    pub fn fail(&mut self, reason: String) {
        self.bytes = VecDeque::new();
        self.failed.get_or_insert(reason);
    }

    /// Whether the replica has failed.
    pub const fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Number of bytes that the primary has sent and the replica has not.
    pub fn lag(&self) -> u64 {
        self.sent.since(self.position)
    }

    /// Number of bytes by which the replica is ahead of the primary.
    pub fn lead(&self) -> usize {
        usize::try_from(self.position.since(self.sent)).unwrap_or(usize::MAX)
    }

    /// Whether the replica is behind and may still catch up.
    pub fn is_behind(&self) -> bool {
        self.failed.is_none() && !self.ended && self.lag() > 0
    }

    /// Memory of the kept bytes.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// How the replica's output goes on, if the client's socket continues at `from`.
    ///
    /// # Errors
    /// As [`protection`](Self::protection), or the bytes from `from` on were released already.
    pub fn resume(&self, from: Offset) -> Result<ReplicaResume, String> {
        self.protection()?;
        if from < self.acknowledged {
            return Err("the client has acknowledged more than its socket was made with".to_owned());
        }
        if self.position < from {
            return Ok(ReplicaResume::Unseen {
                missing: from.since(self.position),
            });
        }
        let skip = usize::try_from(from.since(self.acknowledged)).expect("kept in memory");
        Ok(ReplicaResume::Ahead {
            to_send: self.bytes.iter().skip(skip).copied().collect(),
            ended: self.ended,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_kept_until_the_client_has_it() {
        let mut kept = KeptOutput::default();
        kept.on_replica(b"0123456789");
        kept.on_sent(Offset(6));
        kept.release(Offset(4));
        assert_eq!((kept.lead(), kept.lag()), (4, 0));
        let resume = |from| kept.resume(Offset(from));
        let ahead = |bytes: &[u8]| {
            Ok(ReplicaResume::Ahead {
                to_send: bytes.to_vec(),
                ended: false,
            })
        };
        assert_eq!(resume(4), ahead(b"456789"));
        assert_eq!(resume(7), ahead(b"789"));
        assert_eq!(resume(10), ahead(b""));
        assert_eq!(resume(12), Ok(ReplicaResume::Unseen { missing: 2 }));
        assert!(resume(3).is_err(), "released");
    }

    #[test]
    fn what_the_client_has_already_is_not_kept() {
        let mut kept = KeptOutput::default();
        kept.on_replica(b"01");
        kept.on_sent(Offset(5));
        kept.release(Offset(5));
        assert!(kept.is_behind());
        assert_eq!(kept.lag(), 3);
        kept.on_replica(b"2345");
        kept.on_replica(b"6");
        assert!(!kept.is_behind());
        let (to_send, ended) = (b"56".to_vec(), false);
        assert_eq!(
            kept.resume(Offset(5)),
            Ok(ReplicaResume::Ahead { to_send, ended })
        );
        kept.fail("it is gone".into());
        assert_eq!(kept.resume(Offset(5)), Err("it is gone".into()));
    }

    #[test]
    fn a_replica_that_ends_early_cannot_take_over() {
        let mut kept = KeptOutput::default();
        kept.on_replica(b"0123");
        kept.on_replica_end();
        kept.on_sent(Offset(4));
        assert_eq!(kept.protection(), Ok(()));
        kept.on_sent(Offset(5));
        assert!(kept.protection().is_err() && !kept.is_behind());
    }
}
