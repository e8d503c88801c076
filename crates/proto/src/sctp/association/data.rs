//! DATA and SACK (RFC 9260 §6, §7).

use super::{Association, CloseReason};
use crate::Instant;
use crate::sctp::arrivals::TsnArrival;
use crate::sctp::cause::ErrorCause;
use crate::sctp::chunk::{DataChunk, SackChunk};
use crate::sctp::destination::PathId;
use crate::sctp::reassembly::ChunkAdmission;

impl Association {
    pub(super) fn on_data(&mut self, path: PathId, chunk: DataChunk) {
        if !self.state.takes_data() {
            self.counts.misplaced += 1;
            return;
        }
        if chunk.data.is_empty() {
            let cause = ErrorCause::NoUserData(chunk.tsn);
            self.send_abort(cause.clone(), CloseReason::Violated(cause));
            return;
        }
        match self.arrivals.verdict(chunk.tsn) {
            TsnArrival::New => self.on_new_data(path, chunk),
            TsnArrival::Duplicate => {
                self.counts.duplicates += 1;
                self.arrivals.on_duplicate(chunk.tsn);
            }
            TsnArrival::TooFar => {
                self.counts.overflows += 1;
                self.arrivals.acknowledge();
            }
        }
    }

    fn on_new_data(&mut self, path: PathId, chunk: DataChunk) {
        if chunk.is_immediate {
            self.arrivals.acknowledge();
        }
        if chunk.stream >= self.buffer.streams() {
            // The TSN is acknowledged although the stream does not exist (RFC 9260 §6.5).
            self.arrivals.on_new(chunk.tsn);
            self.counts.misplaced += 1;
            self.report(path, ErrorCause::InvalidStream(chunk.stream));
            return;
        }
        let is_next = chunk.tsn == self.arrivals.cumulative().plus(1);
        match self.buffer.admits(&chunk, is_next) {
            ChunkAdmission::Room => {
                self.arrivals.on_new(chunk.tsn);
                self.buffer.accept(chunk);
            }
            ChunkAdmission::Full => {
                self.counts.overflows += 1;
                self.arrivals.acknowledge();
            }
            ChunkAdmission::Stuck => {
                let cause = ErrorCause::OutOfResource;
                self.send_abort(cause.clone(), CloseReason::Violated(cause));
            }
        }
    }

    /// All chunks of a packet with data were handled.
    pub(super) fn on_data_packet(&mut self, now: Instant, path: PathId) {
        // An unconfirmed address gets no reply except HEARTBEAT ACK (RFC 9260 §5.4).
        let is_confirmed = self.paths.get(path).is_confirmed();
        self.heard_on = if is_confirmed { path } else { self.paths.current() };
        self.arrivals.on_packet(now);
        self.repeat_shutdown_for_data(now);
    }

    pub(super) fn on_sack(&mut self, now: Instant, sack: &SackChunk) {
        if !self.state.sends_data() {
            self.counts.misplaced += 1;
            return;
        }
        let Some(outcome) = self.sender.on_sack(sack) else {
            self.counts.old_sacks += 1;
            return;
        };
        self.was_acknowledged = true;
        self.waits_for_sack = false;
        for path in self.paths.ids() {
            let change = self.sender.changes()[path.index()];
            let destination = self.paths.get_mut(path);
            if self.measures {
                let (arrived, lost) = change.counts;
                destination.quality.data.add(arrived + lost, lost);
            }
            destination.decay(now);
            let flight_before = destination.window.flight() + change.marked_before;
            // The same SACK may mark chunks that the receiver has dropped. Then `landed` counts these chunks, too.
            destination.window.on_sent(change.dropped);
            destination.window.on_landed(change.landed);
            if let Some(at) = change.measured {
                destination.rto.on_measured(now.since(at));
                destination.quality.on_acknowledged(now.since(at));
            }
            destination.is_measuring &= change.measured.is_none() && !change.lost_measure;
            if outcome.has_advanced && !outcome.is_recovering && change.acked > 0 {
                destination.window.on_acked(change.acked, flight_before);
            }
            if outcome.enters_recovery && change.has_fast {
                destination.window.on_fast_retransmission();
                self.retransmits_at_once = true;
            }
            // RFC 9260 §6.3.2: R2, R3, R4.
            if destination.window.flight() == 0 {
                destination.stop_timer();
            } else {
                destination.start_timer(now, change.is_lowest_acked);
            }
            if change.largest as usize > self.config.room(self.config.first_mtu()) {
                self.paths.get_mut(path).mtu.on_large_acknowledged();
            }
            if change.is_heard {
                self.on_heard(path);
            }
        }
        self.choose_primary();
        self.on_progress(now);
    }
}
