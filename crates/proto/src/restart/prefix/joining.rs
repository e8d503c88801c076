//! The wire's half for one connection: collects the first input, and finds the place from which the output is hashed here.

use std::collections::VecDeque;

use super::{EarlierOutput, PrefixPart};
use crate::spill::{LogFull, Spills};
use crate::stream::StreamLog;
use crate::{Offset, Seq};
use std::sync::Arc;

/// Largest number of logged output bytes that are kept until the input has come. If the survivor's place lies before them, the wire asks for
/// a new place.
const RECENT_MAX: usize = 1 << 20;

/// A connection whose first input is still on its way from the survivor.
#[derive(Debug)]
pub(crate) struct Joining {
    /// The first input, as far as it has come. It ends where the wire's log begins. `None` before the first part.
    input: Option<StreamLog>,
    /// As in [`PrefixPart`].
    begins_at: (Seq, Seq),
    /// The last logged output, from the first part on. It ends at `said`.
    recent: VecDeque<u8>,
    /// End of the logged output.
    said: Offset,
}

/// A connection whose first input has come.
#[derive(Debug)]
pub(crate) struct Joined {
    /// The offsets in the logs of the connection's first input and output byte.
    pub begins_at: (Offset, Offset),
    /// The output before the part that is hashed here.
    pub earlier: EarlierOutput,
    /// Number of bytes of `earlier` that are not logged yet.
    pub unlogged: u64,
}

impl Joined {
    /// Returns those of the next logged bytes that follow `earlier`.
    pub fn skip<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let count = usize::try_from(self.unlogged).map_or(bytes.len(), |count| count.min(bytes.len()));
        self.unlogged -= count as u64;
        &bytes[count..]
    }
}

/// How a connection goes on after an answer of the survivor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinStep {
    /// This many bytes have come. More bytes or a new place are missing.
    Wants(u64),
    /// The connection's log begins at its start now.
    Joined,
    /// The connection will not be joined, for this reason.
    Refused(String),
}

impl Default for Joining {
    fn default() -> Self {
        Self {
            input: None,
            begins_at: (Seq(0), Seq(0)),
            recent: VecDeque::new(),
            said: Offset::LEARNT,
        }
    }
}

impl Joining {
    pub fn memory(&self) -> usize {
        self.recent.capacity() + self.input.as_ref().map_or(0, StreamLog::memory)
    }

    /// The primary's next bytes, as logged.
    pub fn on_output(&mut self, bytes: &[u8]) {
        self.said += bytes.len() as u64;
        if self.input.is_none() {
            return; // the survivor has not chosen a place yet
        }
        let bytes = &bytes[bytes.len().saturating_sub(RECENT_MAX)..];
        let excess = (self.recent.len() + bytes.len()).saturating_sub(RECENT_MAX);
        self.recent.drain(..excess);
        self.recent.extend(bytes);
    }

    /// Number of input bytes that have come.
    pub fn arrived(&self) -> u64 {
        self.input
            .as_ref()
            .map_or(0, |input| input.frontier().since(input.start()))
    }

    /// Takes a part of the input. `first` is the sequence number at which the wire's log begins. The log may hold `limit` bytes in memory.
    /// Further bytes go to `spills`.
    ///
    /// # Errors
    /// Why the connection cannot be joined.
    pub fn take(
        &mut self,
        part: &PrefixPart,
        first: Seq,
        (limit, spills): (u64, Option<&Arc<Spills>>),
    ) -> Result<(), String> {
        if part.size > Offset::LEARNT.0 {
            return Err("its earlier input is longer than 4 GiB".into());
        }
        if (part.begins_at.0 + part.size as u32) != first {
            return Err("the other node's input does not reach this node's log".into());
        }
        let begin = Offset(Offset::LEARNT.0 - part.size);
        let input = self.input.get_or_insert_with(|| {
            self.begins_at = part.begins_at;
            StreamLog::before_learnt(begin, first)
        });
        if input.start() != begin || self.begins_at != part.begins_at {
            return Err("the other node relays another connection of this client".into());
        }
        let arrived = input.frontier().since(begin);
        let new = usize::try_from(arrived.saturating_sub(part.at)).unwrap_or(usize::MAX);
        if part.at > arrived || new >= part.bytes.len() {
            return Ok(()); // a copy, or a part before it was lost
        }
        let left = usize::try_from(part.size - arrived).unwrap_or(usize::MAX);
        let bytes = &part.bytes[new..];
        input.insert(input.frontier(), &bytes[..bytes.len().min(left)], None);
        hold(input, limit, spills).map_err(|full| format!("its earlier input is too long: {full}"))
    }

    /// Whether the whole input has come.
    pub fn is_complete(&self) -> bool {
        let is_whole = |input: &StreamLog| input.frontier() == Offset::LEARNT;
        self.input.as_ref().is_some_and(is_whole)
    }

    /// Where the output continues after `place`, the survivor's output so far, in a log that begins with the sequence number `first`. Returns
    /// also the logged bytes after that place. `None`: the bytes after that place are not kept here.
    pub fn place(&self, place: EarlierOutput, first: Seq) -> Option<(Joined, Vec<u8>)> {
        let before = Offset::from_seq(first, self.begins_at.1, Offset(place.bytes))?.0;
        let begin = Offset(Offset::LEARNT.0.checked_sub(before)?);
        let end = begin + place.bytes;
        let kept = self.said.since(end);
        let kept = usize::try_from(kept)
            .ok()
            .filter(|&kept| kept <= self.recent.len())?;
        if end < Offset::LEARNT {
            return None; // the log began after that place
        }
        let joined = Joined {
            begins_at: (Offset(Offset::LEARNT.0 - self.arrived()), begin),
            earlier: place,
            unlogged: end.since(self.said),
        };
        let after = self.recent.iter().skip(self.recent.len() - kept);
        Some((joined, after.copied().collect()))
    }

    /// The whole input, once it has come.
    pub fn take_input(&mut self) -> Option<StreamLog> {
        self.input.take_if(|input| input.frontier() == Offset::LEARNT)
    }
}

/// Brings `log` down to `limit` bytes of memory.
fn hold(log: &mut StreamLog, limit: u64, spills: Option<&Arc<Spills>>) -> Result<(), LogFull> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if log.memory() <= limit {
        return Ok(());
    }
    log.spill(spills.ok_or(LogFull::Memory)?, log.frontier(), limit / 2)?;
    if log.memory() > limit {
        return Err(LogFull::Memory);
    }
    Ok(())
}
