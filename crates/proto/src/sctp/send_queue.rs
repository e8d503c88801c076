//! The sender's data: messages that wait, and chunks that were sent and are not acknowledged (RFC 9260 §6.1, §6.2.1, §7.2.4).
//!
//! ```text
//!            cumulative TSN
//!                  │  sent: one entry per TSN                         │ messages: no TSN yet
//!   acknowledged   │ InFlight  GapAcked  Marked  GapAcked  InFlight   │ waiting  waiting …
//!                  │             ▲          │                         │
//!                  │             │          ├── three missing reports, or the destination's timer ran out
//!                  │             └──────────┴── a later SACK
//! ```
//!
//! The queue knows the receiver's window, but neither congestion windows nor timers. A SACK's meaning for each destination is a
//! [`PathChange`], which the association applies.

use std::collections::VecDeque;

use super::chunk::{DATA_HEADER, DataChunk, SackChunk, SctpChunk};
use super::config::{SctpConfig, counted};
use super::destination::PathId;
use super::message::SctpMessage;
use super::tsn::{Ssn, Tsn};
use crate::Instant;

/// Why a chunk is retransmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetransmitCause {
    /// The chunk has enough missing reports, or the receiver dropped it because it probed a closed window.
    Fast,
    /// The timer of its destination ran out.
    Timeout,
}

/// State of a sent chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkFate {
    InFlight,
    GapAcked,
    Marked(RetransmitCause),
}

/// Whether missing reports of a chunk count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportsCount {
    /// All count, because the chunk was sent only once.
    Always,
    /// A report counts if its SACK newly acknowledges a TSN after the TSN in this field. The field has the highest TSN that had been sent
    /// when the chunk was retransmitted.
    After(Tsn),
    /// None counts, because the chunk is not fast retransmitted again.
    Never,
}

/// A chunk that was sent.
#[derive(Clone, Debug)]
struct SentChunk {
    chunk: DataChunk,
    /// Bytes by which the chunk fills a window.
    bytes: u32,
    /// Its last destination.
    path: PathId,
    fate: ChunkFate,
    /// Missing reports since it was sent last.
    missing: u8,
    reports_count: ReportsCount,
    /// When it was sent, if it measures the round-trip time. A marked chunk stops measuring (Karn; RFC 9260 §6.3.1, C5).
    timed_at: Option<Instant>,
}

/// Bytes of the send buffer that a waiting message takes: its data and a header, so that many small messages are bounded, too.
pub(super) const fn waiting_bytes(data: usize) -> usize {
    data + DATA_HEADER
}

/// A SACK's meaning for one destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathChange {
    /// Bytes that are no longer in flight.
    pub landed: u32,
    /// Bytes that are in flight again: the receiver dropped them after it had acknowledged them in a gap report.
    pub dropped: u32,
    /// Bytes newly acknowledged.
    pub acked: u32,
    /// Number of chunks newly acknowledged, and of chunks marked for fast retransmission.
    pub counts: (u32, u32),
    /// A chunk that was sent last to this destination is newly acknowledged, so the destination answers. Chunks that a timeout has marked
    /// do not count: such a chunk may have arrived before the timeout.
    pub is_heard: bool,
    /// The lowest TSN in flight to this destination is acknowledged.
    pub is_lowest_acked: bool,
    /// When the chunk that measured the round-trip time was sent. `None` if that chunk is not acknowledged.
    pub measured: Option<Instant>,
    /// The measuring chunk is to be retransmitted, so another chunk must measure.
    pub lost_measure: bool,
    /// A chunk is marked for fast retransmission.
    pub has_fast: bool,
    /// With [`SctpConfig::counts_marked`]: bytes of the chunks that were marked when the SACK came. The check whether the congestion window
    /// may grow counts these bytes as in flight. 0 without `counts_marked`.
    pub marked_before: u32,
    /// Bytes of the largest newly acknowledged chunk that was sent last to this destination.
    pub largest: u32,
    /// While gap reports are read: a lower TSN than the present one is in flight to this destination.
    has_lower: bool,
}

/// A SACK's meaning for the association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SackOutcome {
    /// The cumulative TSN moved.
    pub has_advanced: bool,
    /// Fast recovery begins with this SACK, or begins again ([`SctpConfig::halves_again_in_recovery`]).
    pub enters_recovery: bool,
    /// Fast recovery was going on when the SACK came.
    pub was_recovering: bool,
    /// Fast recovery goes on after the SACK.
    pub is_recovering: bool,
}

/// Waiting messages and sent chunks.
#[derive(Debug)]
pub(super) struct SendQueue {
    messages: VecDeque<SctpMessage>,
    /// Bytes of the first message that were already sent.
    sent_of_first: usize,
    /// Bytes of the waiting messages that are not sent yet.
    waiting: usize,
    sent: VecDeque<SentChunk>,
    /// TSN of the first sent chunk: the cumulative TSN plus one.
    first: Tsn,
    ssns: Vec<Ssn>,
    /// Bytes in flight to all destinations.
    flight: u32,
    /// Bytes of all sent chunks that are not cumulatively acknowledged.
    held: u32,
    /// The receiver's window in its last SACK.
    announced: u32,
    marked: usize,
    gap_acked: usize,
    /// Fast recovery ends when this TSN is acknowledged (RFC 9260 §7.2.4).
    recovery_exit: Option<Tsn>,
    /// Per destination: the last SACK's meaning. The memory is reused.
    changes: Vec<PathChange>,
    /// Per sent chunk: how many gap reports cover it. The memory is reused.
    reports: Vec<i32>,
    fragment: usize,
    trigger: u8,
    has_multiple: bool,
    has_fast_after_timeout: bool,
    halves_again: bool,
    counts_all_in_recovery: bool,
    counts_marked: bool,
}

impl SendQueue {
    /// An empty queue. `window` is the receiver's first window.
    pub fn new(config: &SctpConfig, first: Tsn, streams: u16, window: u32, paths: usize) -> Self {
        Self {
            messages: VecDeque::new(),
            sent_of_first: 0,
            waiting: 0,
            sent: VecDeque::new(),
            first,
            ssns: vec![Ssn(0); usize::from(streams)],
            flight: 0,
            held: 0,
            announced: window,
            marked: 0,
            gap_acked: 0,
            recovery_exit: None,
            changes: vec![PathChange::default(); paths],
            reports: Vec::new(),
            fragment: config.fragment(),
            trigger: config.missing_reports,
            has_multiple: config.has_multiple_fast_retransmit,
            has_fast_after_timeout: config.fast_retransmits_after_timeout,
            halves_again: config.halves_again_in_recovery,
            counts_all_in_recovery: config.counts_all_in_recovery,
            counts_marked: config.counts_marked,
        }
    }

    /// Number of streams.
    pub fn streams(&self) -> usize {
        self.ssns.len()
    }

    /// Bytes that wait or are not acknowledged cumulatively, with a header for each message and for each chunk.
    pub fn bytes(&self) -> usize {
        self.waiting + self.messages.len() * DATA_HEADER + self.held as usize
    }

    /// Whether everything was sent and acknowledged.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.sent.is_empty()
    }

    /// The cumulative TSN.
    pub const fn cumulative(&self) -> Tsn {
        self.first.minus(1)
    }

    /// Per destination: the last SACK's meaning.
    pub fn changes(&self) -> &[PathChange] {
        &self.changes
    }

    /// From now on new chunks have at most this many bytes of user data.
    pub const fn set_fragment(&mut self, bytes: usize) {
        self.fragment = bytes;
    }

    /// The TSN that the next new chunk gets.
    fn next(&self) -> Tsn {
        // A send buffer holds fewer than 2³¹ chunks.
        self.first.plus(self.sent.len() as u32)
    }

    /// Adds a message. The caller has checked its stream and the bound on the queue.
    pub fn push(&mut self, message: SctpMessage) {
        self.waiting += message.data.len();
        self.messages.push_back(message);
    }

    /// The messages of a queue that has sent nothing.
    pub fn into_messages(self) -> VecDeque<SctpMessage> {
        self.messages
    }

    /// Drops all messages that wait.
    pub fn forget_messages(&mut self) {
        self.messages.clear();
        (self.waiting, self.sent_of_first) = (0, 0);
    }

    /// The receiver's window in its last SACK.
    pub const fn announced(&self) -> u32 {
        self.announced
    }

    /// Returns the gap reports that belong to the cumulative TSN of a SHUTDOWN: the runs of chunks that are already acknowledged in gaps.
    /// The SHUTDOWN itself carries no gap reports.
    pub fn gap_reports(&self, cumulative: Tsn) -> Vec<(u16, u16)> {
        let skipped = usize::try_from(cumulative.distance_from(self.cumulative())).unwrap_or(0);
        let mut runs: Vec<(u16, u16)> = Vec::new();
        for (sent, ahead) in self.sent.iter().skip(skipped).zip(1..=u16::MAX) {
            match runs.last_mut() {
                _ if sent.fate != ChunkFate::GapAcked => {}
                Some((_, last)) if *last + 1 == ahead => *last = ahead,
                _ => runs.push((ahead, ahead)),
            }
        }
        runs
    }

    /// Bytes by which the next new chunk will fill a window. `None` if no data waits.
    pub fn next_new(&self) -> Option<u32> {
        let message = self.messages.front()?;
        Some(counted(
            (message.data.len() - self.sent_of_first).min(self.fragment),
        ))
    }

    /// Whether the receiver's window has room for a chunk of `bytes` (RFC 9260 §6.1 A). With nothing in flight, one chunk is always
    /// allowed: it probes a closed window.
    pub const fn fits_window(&self, bytes: u32) -> bool {
        self.flight == 0 || self.flight.saturating_add(bytes) <= self.announced
    }

    /// Whether a chunk in flight probes a window that is too small for it.
    pub const fn is_probing(&self) -> bool {
        self.flight > self.announced
    }

    /// Sends the next fragment to `path` if it fits into `room`, and subtracts its bytes from `room`.
    pub fn send_new(
        &mut self,
        path: PathId,
        room: &mut usize,
        timed_at: Option<Instant>,
    ) -> Option<DataChunk> {
        let message = self.messages.front()?;
        let (begin, whole) = (self.sent_of_first, message.data.len());
        let end = whole.min(begin + self.fragment);
        let bytes = counted(end - begin);
        *room = room.checked_sub(bytes as usize)?;
        let ssn = self
            .ssns
            .get(usize::from(message.stream))
            .copied()
            .unwrap_or_default();
        let tsn = self.next();
        let data = if begin == 0 && end == whole {
            message.data.clone()
        } else {
            message.data.slice(begin..end)
        };
        let chunk = DataChunk {
            tsn,
            stream: message.stream,
            ssn: if message.is_unordered { Ssn(0) } else { ssn },
            protocol: message.protocol,
            is_immediate: false,
            is_unordered: message.is_unordered,
            begins: begin == 0,
            ends: end == whole,
            data,
        };
        self.waiting -= end - begin;
        self.sent_of_first = end;
        if chunk.ends {
            self.sent_of_first = 0;
            if !chunk.is_unordered
                && let Some(next) = self.ssns.get_mut(usize::from(chunk.stream))
            {
                *next = next.next();
            }
            self.messages.pop_front();
        }
        self.flight += bytes;
        self.held += bytes;
        self.sent.push_back(SentChunk {
            chunk: chunk.clone(),
            bytes,
            path,
            fate: ChunkFate::InFlight,
            missing: 0,
            reports_count: ReportsCount::Always,
            timed_at,
        });
        Some(chunk)
    }

    /// Calls `choose` for each marked chunk in order, until `choose` returns a value. The arguments of `choose` are the cause of the
    /// retransmission and the chunk's last destination.
    pub fn find_marked<T>(&self, mut choose: impl FnMut(RetransmitCause, PathId) -> Option<T>) -> Option<T> {
        let marked = self.sent.iter().filter_map(|sent| match sent.fate {
            ChunkFate::Marked(cause) => Some((cause, sent.path)),
            ChunkFate::InFlight | ChunkFate::GapAcked => None,
        });
        // There is no need to look behind the last marked chunk.
        marked
            .take(self.marked)
            .find_map(|(cause, last)| choose(cause, last))
    }

    /// Puts the marked chunks for which `chosen` returns `path` into a packet, as many as fit into `room`. Returns the number of bytes that
    /// are in flight again, and whether the first outstanding chunk of the path is among these chunks (RFC 9260 §7.2.4, rule 4).
    pub fn retransmit(
        &mut self,
        path: PathId,
        room: &mut usize,
        out: &mut Vec<SctpChunk>,
        chosen: impl Fn(RetransmitCause, PathId) -> PathId,
    ) -> (u32, bool) {
        let highest = self.next().minus(1);
        let (mut bytes, mut is_lowest, mut is_behind) = (0, false, false);
        for sent in &mut self.sent {
            let ChunkFate::Marked(cause) = sent.fate else {
                is_behind |= sent.fate == ChunkFate::InFlight && sent.path == path;
                continue;
            };
            if chosen(cause, sent.path) != path {
                continue;
            }
            let Some(left) = room.checked_sub(sent.bytes as usize) else {
                break;
            };
            *room = left;
            is_lowest |= !is_behind;
            is_behind = true;
            sent.path = path;
            sent.fate = ChunkFate::InFlight;
            sent.missing = 0;
            sent.reports_count = match cause {
                RetransmitCause::Fast if self.has_multiple => ReportsCount::After(highest),
                RetransmitCause::Timeout if self.has_fast_after_timeout => sent.reports_count,
                RetransmitCause::Fast | RetransmitCause::Timeout => ReportsCount::Never,
            };
            bytes += sent.bytes;
            self.marked -= 1;
            out.push(SctpChunk::Data(sent.chunk.clone()));
            if self.marked == 0 {
                break;
            }
        }
        self.flight += bytes;
        (bytes, is_lowest)
    }

    /// The timer of `path` ran out: all its chunks in flight are marked (RFC 9260 §6.3.3 E3).
    pub fn on_timeout(&mut self, path: PathId) {
        for sent in &mut self.sent {
            if sent.path == path && sent.fate == ChunkFate::InFlight {
                sent.fate = ChunkFate::Marked(RetransmitCause::Timeout);
                sent.timed_at = None;
                self.marked += 1;
                self.flight -= sent.bytes;
            }
        }
    }

    /// Handles a SACK (RFC 9260 §6.2.1). `None` if the SACK is older than the last one, or acknowledges a TSN that was never sent.
    pub fn on_sack(&mut self, sack: &SackChunk) -> Option<SackOutcome> {
        let advance = sack.cumulative.distance_from(self.cumulative());
        let advance = usize::try_from(advance)
            .ok()
            .filter(|count| *count <= self.sent.len())?;
        self.changes.fill(PathChange::default());
        if self.counts_marked && self.marked > 0 {
            self.count_marked();
        }
        for _ in 0..advance {
            self.on_cumulative();
        }
        let mut outcome = SackOutcome {
            has_advanced: advance > 0,
            enters_recovery: false,
            was_recovering: self.recovery_exit.is_some(),
            is_recovering: false,
        };
        let was_probing = self.is_probing();
        self.announced = sack.window;
        if !sack.gaps.is_empty() || self.gap_acked > 0 {
            let highest = self.on_gaps(&sack.gaps);
            outcome.enters_recovery = self.count_missing(highest, outcome);
        }
        if was_probing && !self.is_probing() && self.flight > 0 {
            self.mark_probe();
        }
        if self
            .recovery_exit
            .is_some_and(|exit| !exit.is_after(self.cumulative()))
        {
            self.recovery_exit = None;
        }
        outcome.is_recovering = self.recovery_exit.is_some();
        Some(outcome)
    }

    /// Counts the marked chunks of each destination.
    fn count_marked(&mut self) {
        for sent in &self.sent {
            if matches!(sent.fate, ChunkFate::Marked(_)) {
                self.changes[sent.path.index()].marked_before += sent.bytes;
            }
        }
    }

    /// The receiver dropped the chunk that probed its closed window. The retransmission timer has backed off, so the chunk is marked at
    /// once.
    fn mark_probe(&mut self) {
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.fate == ChunkFate::InFlight) {
            sent.fate = ChunkFate::Marked(RetransmitCause::Fast);
            self.marked += 1;
            self.flight -= sent.bytes;
            let change = &mut self.changes[sent.path.index()];
            change.landed += sent.bytes;
            change.lost_measure |= sent.timed_at.take().is_some();
        }
    }

    /// The first sent chunk is acknowledged cumulatively.
    fn on_cumulative(&mut self) {
        let Some(sent) = self.sent.pop_front() else {
            return;
        };
        self.first = self.first.plus(1);
        self.held -= sent.bytes;
        let change = &mut self.changes[sent.path.index()];
        match sent.fate {
            ChunkFate::GapAcked => {
                self.gap_acked -= 1;
                return;
            }
            ChunkFate::Marked(_) => self.marked -= 1,
            ChunkFate::InFlight => {
                self.flight -= sent.bytes;
                change.landed += sent.bytes;
                change.is_lowest_acked = true;
            }
        }
        change.note_acked(&sent);
    }

    /// Notes which chunks are in the gap reports. Returns the index of the highest chunk that is newly acknowledged, and the index behind
    /// the highest reported chunk.
    fn on_gaps(&mut self, gaps: &[(u16, u16)]) -> (Option<usize>, usize) {
        let (mut newly, mut behind, mut reported) = (None, 0, 0);
        self.reports.clear();
        self.reports.resize(self.sent.len() + 1, 0);
        for (first, last) in gaps {
            // Offset 1 is the first sent chunk. A valid SACK never reports this chunk as received.
            let (first, last) = (usize::from(*first), usize::from(*last).min(self.sent.len()));
            if 0 < first && first <= last {
                self.reports[first - 1] += 1;
                self.reports[last] -= 1;
                behind = behind.max(last);
            }
        }
        for (index, sent) in self.sent.iter_mut().enumerate() {
            reported += self.reports[index];
            self.reports[index] = reported;
            let change = &mut self.changes[sent.path.index()];
            match (reported > 0, sent.fate) {
                (true, ChunkFate::GapAcked) | (false, ChunkFate::Marked(_)) => {}
                (false, ChunkFate::InFlight) => change.has_lower = true,
                (true, fate) => {
                    if fate == ChunkFate::InFlight {
                        self.flight -= sent.bytes;
                        change.landed += sent.bytes;
                        change.is_lowest_acked |= !change.has_lower;
                    } else {
                        self.marked -= 1;
                    }
                    change.note_acked(sent);
                    sent.fate = ChunkFate::GapAcked;
                    sent.missing = 0;
                    sent.timed_at = None;
                    self.gap_acked += 1;
                    newly = Some(index);
                }
                (false, ChunkFate::GapAcked) => {
                    // The receiver dropped a chunk that it had reported (RFC 9260 §6.2.1, iv).
                    sent.fate = ChunkFate::InFlight;
                    self.gap_acked -= 1;
                    self.flight += sent.bytes;
                    change.dropped += sent.bytes;
                }
            }
        }
        (newly, behind)
    }

    /// Counts the missing reports of a SACK and marks chunks that have enough of them (RFC 9260 §7.2.4). Returns whether fast recovery
    /// begins.
    fn count_missing(&mut self, (newly, behind): (Option<usize>, usize), outcome: SackOutcome) -> bool {
        // A SACK that moves the cumulative TSN in fast recovery counts for all chunks that it reports missing. Any other SACK counts only
        // for chunks below the highest newly acknowledged TSN.
        let counts_all = self.counts_all_in_recovery && outcome.was_recovering && outcome.has_advanced;
        let limit = if counts_all { behind } else { newly.unwrap_or(0) };
        let newly_acked = newly.map(|index| self.first.plus(index as u32));
        let mut enters = false;
        let last = self.next().minus(1);
        for (index, sent) in self.sent.iter_mut().take(limit).enumerate() {
            let counts = match sent.reports_count {
                ReportsCount::Always => true,
                ReportsCount::After(tsn) => newly_acked.is_some_and(|acked| acked.is_after(tsn)),
                ReportsCount::Never => false,
            };
            if sent.fate != ChunkFate::InFlight || self.reports[index] > 0 || !counts {
                continue;
            }
            sent.missing = sent.missing.saturating_add(1);
            if sent.missing < self.trigger {
                continue;
            }
            let change = &mut self.changes[sent.path.index()];
            sent.fate = ChunkFate::Marked(RetransmitCause::Fast);
            change.lost_measure |= sent.timed_at.take().is_some();
            change.landed += sent.bytes;
            change.has_fast = true;
            change.counts.1 += 1;
            self.flight -= sent.bytes;
            self.marked += 1;
            let is_after = |exit: Tsn| self.halves_again && sent.chunk.tsn.is_after(exit);
            if self.recovery_exit.is_none_or(is_after) {
                self.recovery_exit = Some(last);
                enters = true;
            }
        }
        enters
    }
}

impl PathChange {
    fn note_acked(&mut self, sent: &SentChunk) {
        self.acked += sent.bytes;
        self.largest = self.largest.max(sent.bytes);
        self.counts.0 += 1;
        self.is_heard |= sent.fate != ChunkFate::Marked(RetransmitCause::Timeout);
        self.measured = self.measured.or(sent.timed_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sctp::data::UserData;

    const FIRST: Tsn = Tsn(u32::MAX - 2);
    const PATH: PathId = PathId(0);

    /// A queue with ten sent chunks of 100 bytes.
    fn queue(config: &SctpConfig) -> SendQueue {
        let mut queue = SendQueue::new(config, FIRST, 1, 100_000, 2);
        for _ in 0..10 {
            push(&mut queue);
        }
        queue
    }

    /// Sends one more chunk of 100 bytes.
    fn push(queue: &mut SendQueue) {
        queue.push(SctpMessage {
            stream: 0,
            protocol: 0,
            is_unordered: false,
            data: UserData::Counted(100),
        });
        let timed_at = queue.sent.is_empty().then_some(Instant::ZERO);
        queue.send_new(PATH, &mut 1000, timed_at).expect("room");
    }

    /// The outcome of a SACK for `whole` chunks and for the runs behind them.
    fn sack(queue: &mut SendQueue, whole: u32, gaps: &[(u16, u16)]) -> SackOutcome {
        let sack = SackChunk {
            cumulative: FIRST.plus(whole).minus(1),
            window: 100_000,
            gaps: gaps.to_vec(),
            duplicates: Vec::new(),
        };
        queue.on_sack(&sack).expect("a valid SACK")
    }

    fn first_marked(queue: &SendQueue) -> Option<(RetransmitCause, PathId)> {
        queue.find_marked(|cause, last| Some((cause, last)))
    }

    fn retransmit(queue: &mut SendQueue) -> usize {
        let mut out = Vec::new();
        queue.retransmit(PATH, &mut 10_000, &mut out, |_, _| PATH);
        out.len()
    }

    #[test]
    fn the_third_report_marks_a_chunk_and_begins_recovery_once() {
        let mut queue = queue(&SctpConfig::default());
        assert!(!sack(&mut queue, 2, &[(2, 2)]).enters_recovery);
        assert!(!sack(&mut queue, 2, &[(2, 3)]).enters_recovery && queue.marked == 0);
        assert!(sack(&mut queue, 2, &[(2, 4)]).enters_recovery);
        let change = queue.changes()[0];
        assert_eq!(
            (change.landed, change.acked, change.has_fast),
            (2 * 116, 116, true)
        );
        assert_eq!(first_marked(&queue), Some((RetransmitCause::Fast, PATH)));
        assert_eq!(retransmit(&mut queue), 1);
        // A second hole in the same window is repaired in the same recovery.
        for last in 6..=8 {
            let outcome = sack(&mut queue, 2, &[(2, 4), (6, last)]);
            assert!(outcome.was_recovering && !outcome.enters_recovery);
        }
        assert_eq!(retransmit(&mut queue), 1);
        assert!(sack(&mut queue, 10, &[]).was_recovering);
        assert!(!sack(&mut queue, 10, &[]).was_recovering);
        assert!(queue.is_empty() && queue.flight == 0 && queue.held == 0);
    }

    #[test]
    fn reports_count_only_below_what_is_newly_acknowledged() {
        let mut queue = queue(&SctpConfig::default());
        for _ in 0..5 {
            sack(&mut queue, 0, &[(3, 3)]);
        }
        assert!(queue.marked == 0, "the same report again is no news");
        sack(&mut queue, 0, &[(2, 3)]);
        sack(&mut queue, 0, &[(2, 4)]);
        assert_eq!((queue.sent[0].missing, queue.sent[1].missing), (3, 0));
        assert!(queue.marked > 0);
    }

    /// RFC 9260 §7.2.4: in fast recovery a SACK that moves the cumulative TSN counts for all chunks that it reports missing.
    #[test]
    fn holes_near_the_end_are_fast_retransmitted_in_recovery() {
        let mut queue = queue(&SctpConfig::default());
        sack(&mut queue, 0, &[(2, 2), (4, 4)]);
        sack(&mut queue, 0, &[(2, 2), (4, 5)]);
        assert!(sack(&mut queue, 0, &[(2, 2), (4, 8)]).enters_recovery);
        sack(&mut queue, 0, &[(2, 2), (4, 8), (10, 10)]);
        assert_eq!((retransmit(&mut queue), queue.sent[8].missing), (2, 1));
        // Nothing is newly acknowledged in a gap, but both retransmissions arrive.
        sack(&mut queue, 2, &[(2, 6), (8, 8)]);
        assert_eq!((queue.sent[6].missing, queue.marked), (2, 0));
        sack(&mut queue, 8, &[(2, 2)]);
        assert_eq!(queue.sent[0].fate, ChunkFate::Marked(RetransmitCause::Fast));
    }

    #[test]
    fn a_retransmitted_chunk_measures_nothing() {
        let mut quick = queue(&SctpConfig::default());
        sack(&mut quick, 1, &[]);
        assert_eq!(quick.changes()[0].measured, Some(Instant::ZERO));
        let mut late = queue(&SctpConfig::default());
        for last in 2..=4 {
            sack(&mut late, 0, &[(2, last)]);
        }
        assert!(late.changes()[0].lost_measure);
        retransmit(&mut late);
        sack(&mut late, 1, &[]);
        assert_eq!(late.changes()[0].measured, None);
    }

    #[test]
    fn a_timeout_marks_the_chunks_of_its_destination_and_recovery_goes_on() {
        let mut queue = queue(&SctpConfig::default());
        for last in 2..=4 {
            sack(&mut queue, 0, &[(2, last)]);
        }
        retransmit(&mut queue);
        queue.on_timeout(PathId(1));
        assert!(queue.marked == 0);
        queue.on_timeout(PATH);
        assert_eq!((queue.marked, queue.flight), (7, 0));
        assert_eq!(first_marked(&queue), Some((RetransmitCause::Timeout, PATH)));
        assert_eq!(retransmit(&mut queue), 7);
        assert!(sack(&mut queue, 1, &[]).is_recovering);
        assert!(!sack(&mut queue, 10, &[]).is_recovering);
    }

    /// SACKs that report the second chunk up to the `last` one, but not the first chunk. Returns whether recovery begins.
    fn report_all(queue: &mut SendQueue, range: std::ops::RangeInclusive<u16>) -> bool {
        let mut begins = false;
        for last in range {
            begins |= sack(queue, 0, &[(2, last)]).enters_recovery;
        }
        begins
    }

    /// All chunks time out and are sent again. Then four SACKs report the first one missing.
    #[test]
    fn a_chunk_that_timed_out_is_fast_retransmitted_only_if_the_configuration_says_so() {
        for (config, marked) in [(SctpConfig::default(), 0), (SctpConfig::paper(), 1)] {
            let mut queue = queue(&config);
            queue.on_timeout(PATH);
            assert_eq!(retransmit(&mut queue), 10);
            assert_eq!(report_all(&mut queue, 2..=5), marked > 0);
            assert_eq!(queue.marked, marked);
            let cause = (marked > 0).then_some((RetransmitCause::Fast, PATH));
            assert_eq!(first_marked(&queue), cause);
        }
    }

    /// The first chunk and its retransmission are lost. The eleventh chunk is sent in recovery and is lost, too.
    #[test]
    fn a_loss_of_what_was_sent_in_recovery_begins_recovery_again_only_if_the_configuration_says_so() {
        for (config, again) in [(SctpConfig::default(), false), (SctpConfig::paper(), true)] {
            let mut queue = queue(&config);
            assert!(report_all(&mut queue, 2..=5));
            assert_eq!(retransmit(&mut queue), 1);
            for _ in 10..15 {
                push(&mut queue);
            }
            let mut enters = false;
            for last in 12..=15 {
                enters |= sack(&mut queue, 0, &[(2, 10), (12, last)]).enters_recovery;
            }
            assert_eq!(enters, again);
            // Recovery ends with what was in flight when it began last.
            assert_eq!(sack(&mut queue, 10, &[(2, 5)]).is_recovering, again);
            assert!(!sack(&mut queue, 15, &[]).is_recovering);
        }
    }

    /// RFC 9260 §6.2.1, iv: a receiver may drop what it acknowledged in a gap report.
    #[test]
    fn a_chunk_that_the_receiver_drops_is_in_flight_again() {
        let mut queue = queue(&SctpConfig::default());
        sack(&mut queue, 0, &[(5, 10)]);
        assert_eq!(queue.flight, 4 * 116);
        sack(&mut queue, 0, &[(5, 5)]);
        assert_eq!((queue.flight, queue.changes()[0].dropped), (9 * 116, 5 * 116));
    }

    #[test]
    fn the_lowest_chunk_in_flight_restarts_the_timer() {
        let mut queue = queue(&SctpConfig::default());
        sack(&mut queue, 0, &[(2, 3)]);
        assert!(!queue.changes()[0].is_lowest_acked);
        sack(&mut queue, 1, &[]);
        assert!(queue.changes()[0].is_lowest_acked);
    }

    #[test]
    fn a_shutdown_repeats_the_gap_reports() {
        let mut queue = queue(&SctpConfig::default());
        sack(&mut queue, 1, &[(2, 3), (5, 5)]);
        assert_eq!(queue.gap_reports(FIRST), [(2, 3), (5, 5)]);
        assert_eq!(queue.gap_reports(FIRST.plus(1)), [(1, 2), (4, 4)]);
    }
}
