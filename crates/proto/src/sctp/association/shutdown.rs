//! The orderly end (RFC 9260 §9.2).

use bytes::Bytes;

use super::{Association, AssociationEvent, CloseReason};
use crate::Instant;
use crate::sctp::cause::ErrorCause;
use crate::sctp::chunk::{SackChunk, SctpChunk};
use crate::sctp::destination::PathId;
use crate::sctp::state::{AssociationState, StateEvent};
use crate::sctp::tsn::Tsn;

/// Multiple of RTO.Max after which the shutdown is given up (T5-shutdown-guard).
const GUARD_RTOS: u32 = 5;

impl Association {
    /// Ends the association when everything has arrived. From now on, new messages are refused. Before the end of the handshake, the
    /// association is aborted instead.
    pub fn shutdown(&mut self, now: Instant) {
        if self.state.is_setup() {
            self.abort(Bytes::new());
            return;
        }
        self.state = self.state.after(StateEvent::Close);
        self.on_progress(now);
    }

    /// Sends the next chunk of a shutdown once all data is acknowledged.
    pub(super) fn on_progress(&mut self, now: Instant) {
        if !self.sender.is_empty() {
            return;
        }
        let before = self.state;
        self.state = self.state.after(StateEvent::Drained);
        if self.state == before {
            return;
        }
        let chunk = match self.state {
            AssociationState::ShutdownSent => SctpChunk::Shutdown(self.arrivals.cumulative()),
            _ => SctpChunk::ShutdownAck,
        };
        self.gives_up_at = Some(now + self.config.rto_max * GUARD_RTOS);
        self.repeat_from_now(now, chunk);
    }

    /// Called for each packet with data. If this end has sent its SHUTDOWN, it sends the SHUTDOWN again, beside the SACK.
    pub(super) fn repeat_shutdown_for_data(&mut self, now: Instant) {
        if self.state == AssociationState::ShutdownSent {
            self.arrivals.acknowledge();
            // The guard timer restarts, because the peer still makes progress.
            self.gives_up_at = Some(now + self.config.rto_max * GUARD_RTOS);
            self.repeat_from_now(now, SctpChunk::Shutdown(self.arrivals.cumulative()));
        }
    }

    pub(super) fn on_shutdown(&mut self, now: Instant, cumulative: Tsn) {
        let before = self.state;
        self.state = self.state.after(StateEvent::PeerShutdown);
        if self.state.is_setup() {
            self.counts.misplaced += 1;
            return;
        }
        if self.state != before {
            self.tell(AssociationEvent::PeerShutsDown);
        }
        if self.state == AssociationState::ShutdownReceived {
            // A SHUTDOWN acknowledges data, but reports no gaps: the gaps reported last still count.
            let window = self.sender.announced();
            let gaps = self.sender.gap_reports(cumulative);
            let sack = SackChunk {
                cumulative,
                window,
                gaps,
                duplicates: Vec::new(),
            };
            self.on_sack(now, &sack);
            // A SACK that overtook the SHUTDOWN may have acknowledged more.
            self.on_progress(now);
        } else if self.state == AssociationState::ShutdownAckSent {
            self.gives_up_at = Some(now + self.config.rto_max * GUARD_RTOS);
            self.repeat_from_now(now, SctpChunk::ShutdownAck);
        }
    }

    pub(super) fn on_shutdown_ack(&mut self, path: PathId) {
        let before = self.state;
        self.state = self.state.after(StateEvent::ShutdownAck);
        if self.state == before {
            self.counts.misplaced += 1;
            return;
        }
        self.reply(path, SctpChunk::ShutdownComplete { is_reflected: false });
        self.end(CloseReason::ShutDown);
    }

    /// An ABORT ends the association. If this end waits for SHUTDOWN COMPLETE and the ABORT is reflected, the peer has already forgotten
    /// the association: its SHUTDOWN COMPLETE was lost, and this is an orderly end.
    pub(super) fn on_abort(&mut self, is_reflected: bool, causes: Vec<ErrorCause>) {
        let is_over = is_reflected && self.state == AssociationState::ShutdownAckSent;
        self.end(if is_over {
            CloseReason::ShutDown
        } else {
            CloseReason::PeerAborted(causes)
        });
    }

    pub(super) fn on_shutdown_complete(&mut self) {
        let before = self.state;
        self.state = self.state.after(StateEvent::ShutdownComplete);
        if self.state == before {
            self.counts.misplaced += 1;
            return;
        }
        self.end(CloseReason::ShutDown);
    }
}
