//! Restart policy `replay`: at a takeover, an application that has not followed the connection gets the connection's input from the first
//! byte on. The application repeats the output. The part of the output that was logged is compared and dropped. This is FT-TCP's cold
//! backup, for servers that are deterministic per connection. Policy [`snapshot`](super::snapshot) uses the same filter.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::digest::Digest;
pub use super::prefix::EarlierOutput;
use super::prefix::{Joined, Joining};
use crate::Offset;

#[cfg(test)]
mod tests;

/// Follows the output of one connection, as the primary sends it.
#[derive(Debug)]
pub struct ReplayTracker {
    said: Digest,
    ended: bool,
    /// How the log's beginning relates to the connection's. `None`: the log has the connection's first bytes.
    learnt: Option<Box<LearntReplay>>,
}

/// A connection that was learnt in its middle, whose first bytes come from the other node ([`prefix`](super::prefix)).
#[derive(Debug)]
enum LearntReplay {
    Joining(Joining),
    Joined(Joined),
}

/// The output that a restarted application must repeat, and that the client must not get again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetition {
    /// Number of its first bytes that cannot be compared, because the log has no hash of them. Zero with policy `replay` and commit mode
    /// `prs`.
    pub unchecked: u64,
    /// Number of the bytes after those.
    pub bytes: u64,
    /// The hash of these bytes.
    pub hash: [u8; 16],
    /// The primary had ended its stream after this output.
    pub ended: bool,
}

/// The application did not repeat the output that the client has. The connection must be aborted, so that the client notices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RepetitionMismatch {
    /// A byte differs.
    #[error("the repeated output differs from the {bytes} bytes that were sent")]
    Differs {
        /// Number of bytes that were compared.
        bytes: u64,
    },
    /// The application ended its output first.
    #[error("the application ended its output {missing} bytes before the end of the sent output")]
    EndedEarly {
        /// Number of bytes that were sent and not repeated.
        missing: u64,
    },
}

impl ReplayTracker {
    /// A tracker at the start of the connection.
    pub fn new() -> Self {
        Self {
            said: Digest::new(),
            ended: false,
            learnt: None,
        }
    }

    /// The tracker of a connection that is learnt in its middle. It has no restart point until the other node has sent the input before
    /// that.
    pub fn learnt() -> Self {
        Self {
            learnt: Some(Box::new(LearntReplay::Joining(Joining::default()))),
            ..Self::new()
        }
    }

    /// The input that the other node has to send, until it has come.
    pub(crate) fn joining(&self) -> Option<&Joining> {
        match self.learnt.as_deref() {
            Some(LearntReplay::Joining(joining)) => Some(joining),
            Some(LearntReplay::Joined(_)) | None => None,
        }
    }

    /// As [`joining`](Self::joining), mutable.
    pub(crate) fn joining_mut(&mut self) -> Option<&mut Joining> {
        match self.learnt.as_deref_mut() {
            Some(LearntReplay::Joining(joining)) => Some(joining),
            Some(LearntReplay::Joined(_)) | None => None,
        }
    }

    /// From now on, the restart point is the connection's start. `after` is the logged output that follows what `joined` covers.
    pub(crate) fn join(&mut self, joined: Joined, after: &[u8]) {
        self.said = Digest::new();
        self.said.write(after);
        self.learnt = Some(Box::new(LearntReplay::Joined(joined)));
    }

    /// Whether an application can go on from the connection's start.
    ///
    /// # Errors
    /// Not yet, for this reason.
    pub fn restarts(&self) -> Result<(), String> {
        match self.learnt.as_deref() {
            None => Ok(()),
            Some(LearntReplay::Joined(joined)) if joined.unlogged == 0 => Ok(()),
            Some(LearntReplay::Joined(_)) => Err(
                "older than the wire; protected once the wire has seen the output that the other node sent"
                    .into(),
            ),
            Some(LearntReplay::Joining(_)) => {
                Err("older than the wire; protected once the other node has sent its earlier input".into())
            }
        }
    }

    /// The offsets in the logs of the connection's first input and output byte. While the other node's input is missing, the logs' first
    /// bytes.
    pub fn begins_at(&self) -> (Offset, Offset) {
        match self.learnt.as_deref() {
            None => (Offset::ZERO, Offset::ZERO),
            Some(LearntReplay::Joined(joined)) => joined.begins_at,
            Some(LearntReplay::Joining(_)) => (Offset::LEARNT, Offset::LEARNT),
        }
    }

    /// The output before [`repetition`](Self::repetition), if the log lacks its beginning.
    pub fn earlier(&self) -> Option<EarlierOutput> {
        match self.learnt.as_deref() {
            Some(LearntReplay::Joined(joined)) => Some(joined.earlier),
            Some(LearntReplay::Joining(_)) | None => None,
        }
    }

    /// Bytes of memory that wait for the other node's input.
    pub fn memory(&self) -> usize {
        self.joining().map_or(0, Joining::memory)
    }

    /// The primary's next bytes, as logged.
    pub fn on_output(&mut self, bytes: &[u8]) {
        match self.learnt.as_deref_mut() {
            None => self.said.write(bytes),
            Some(LearntReplay::Joining(joining)) => joining.on_output(bytes),
            Some(LearntReplay::Joined(joined)) => self.said.write(joined.skip(bytes)),
        }
    }

    /// The primary has ended its stream after the bytes given so far.
    pub const fn on_output_end(&mut self) {
        self.ended = true;
    }

    /// The output that a restarted application must repeat, if the log does not have its bytes (commit mode `pr`) and the client's socket
    /// continues at `from`.
    pub fn unseen(from: Offset) -> Repetition {
        Repetition {
            unchecked: from.0,
            bytes: 0,
            hash: Digest::new().of_all(),
            ended: false,
        }
    }

    /// The output that a restarted application must repeat.
    pub fn repetition(&self) -> Repetition {
        Repetition {
            unchecked: 0,
            bytes: self.said.bytes(),
            hash: self.said.of_all(),
            ended: self.ended,
        }
    }
}

impl Default for ReplayTracker {
    fn default() -> Self {
        Self::new()
    }
}

/// The relay's filter: compares and drops the output that the client already has. Bytes after that output pass unchanged.
#[derive(Debug)]
pub struct RepetitionFilter {
    expected: Repetition,
    /// Output before `expected`, as long as the application has to repeat a part of it.
    earlier: Option<EarlierOutput>,
    /// Bytes of the unchecked part that the application has yet to repeat.
    unchecked: u64,
    repeated: Digest,
}

impl RepetitionFilter {
    /// A filter that has seen nothing of the repeated output.
    pub fn new(expected: Repetition) -> Self {
        Self {
            unchecked: expected.unchecked,
            expected,
            earlier: None,
            repeated: Digest::new(),
        }
    }

    /// The same filter, but the application must repeat `earlier` before all else.
    #[must_use]
    pub fn after(mut self, earlier: Option<EarlierOutput>) -> Self {
        self.earlier = earlier.filter(|earlier| earlier.bytes > 0);
        self
    }

    /// Whether bytes pass unchanged from now on.
    pub const fn is_transparent(&self) -> bool {
        self.missing() == 0 && !self.expected.ended
    }

    /// Takes the application's next bytes. Appends to `to_client` those that the client must still get.
    ///
    /// # Errors
    /// The repeated output differs from what the client has. The difference is found only when the whole output was repeated.
    pub fn on_application(
        &mut self,
        bytes: &[u8],
        to_client: &mut Vec<u8>,
    ) -> Result<(), RepetitionMismatch> {
        let bytes = self.on_earlier(bytes)?;
        let at_most = |bound: u64| bytes.len().min(usize::try_from(bound).unwrap_or(usize::MAX));
        let (repeated, new) = bytes.split_at(at_most(self.missing()));
        if !repeated.is_empty() {
            let (unchecked, checked) = repeated.split_at(at_most(self.unchecked).min(repeated.len()));
            self.unchecked -= unchecked.len() as u64;
            self.repeated.write(checked);
            if self.missing() == 0 && self.repeated.of_all() != self.expected.hash {
                let bytes = self.expected.bytes;
                return Err(RepetitionMismatch::Differs { bytes });
            }
        }
        if !self.expected.ended {
            to_client.extend_from_slice(new);
        }
        Ok(())
    }

    /// Compares the earlier output, and returns the bytes after it.
    fn on_earlier<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], RepetitionMismatch> {
        let Some(EarlierOutput { bytes: length, hash }) = self.earlier else {
            return Ok(bytes);
        };
        let left = usize::try_from(length - self.repeated.bytes()).unwrap_or(usize::MAX);
        let (earlier, rest) = bytes.split_at(left.min(bytes.len()));
        self.repeated.write(earlier);
        if self.repeated.bytes() == length {
            let is_same = self.repeated.of_all() == hash;
            (self.earlier, self.repeated) = (None, Digest::new());
            if !is_same {
                return Err(RepetitionMismatch::Differs { bytes: length });
            }
        }
        Ok(rest)
    }

    /// The application has ended its stream. If this call succeeds, the output to the client ends too.
    ///
    /// # Errors
    /// The client has more bytes than the application repeated.
    pub const fn on_application_end(&self) -> Result<(), RepetitionMismatch> {
        match self.missing() {
            0 => Ok(()),
            missing => Err(RepetitionMismatch::EndedEarly { missing }),
        }
    }

    /// Bytes that the application has yet to repeat.
    pub const fn missing(&self) -> u64 {
        let earlier = match self.earlier {
            Some(earlier) => earlier.bytes,
            None => 0,
        };
        earlier + self.unchecked + self.expected.bytes - self.repeated.bytes()
    }
}
