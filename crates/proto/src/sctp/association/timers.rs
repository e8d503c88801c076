//! Timers and heartbeats (RFC 9260 §5.4, §6.3.2, §6.3.3, §8).

use std::net::IpAddr;

use bytes::{Buf, Bytes};

use super::{Association, AssociationEvent, CloseReason};
use crate::Instant;
use crate::sctp::cause::ErrorCause;
use crate::sctp::destination::PathId;
use crate::sctp::state::AssociationState;
use crate::time::earlier;

impl Association {
    /// The next time at which [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.state == AssociationState::Closed {
            return None;
        }
        let mut first = earlier(self.gives_up_at, self.arrivals.due_at());
        if let Some(repeated) = &self.repeated {
            first = earlier(first, Some(repeated.at));
        }
        let probes = self.state.probes();
        for path in self.paths.all() {
            first = earlier(first, if probes { path.due() } else { path.timer() });
        }
        first
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for path in self.paths.ids() {
            if self.state == AssociationState::Closed {
                return;
            }
            if self.paths.get(path).timer().is_some_and(|at| now >= at) {
                self.on_retransmission_timeout(now, path);
            }
            if self.state.probes() && self.paths.get(path).is_silent(now) {
                self.on_silent_path(now, path);
            }
            self.paths.get_mut(path).postpone_probe(now);
            if self.paths.get_mut(path).mtu.lose_probe(now) {
                self.paths.get_mut(path).probe_from(now);
            }
            if self.state.probes() && self.paths.get_mut(path).lose_probe(now) {
                self.on_lost_probe(now, path);
            }
        }
        if self.repeated.as_ref().is_some_and(|repeated| now >= repeated.at) {
            self.repeat(now);
        }
        if self.gives_up_at.is_some_and(|at| now >= at) {
            let reason = Bytes::from_static(b"the shutdown takes too long");
            self.send_abort(ErrorCause::UserAbort(reason), CloseReason::Unreachable);
        }
        self.burst = self.config.max_burst;
    }

    /// T3-rtx of a destination ran out (RFC 9260 §6.3.3).
    fn on_retransmission_timeout(&mut self, now: Instant, path: PathId) {
        // A window probe that is answered proves that the peer lives (RFC 9260 §6.1 A).
        let is_answered_probe = self.sender.is_probing() && self.was_acknowledged;
        self.was_acknowledged = false;
        self.mark_all(now, path);
        self.waits_for_sack = true;
        let destination = self.paths.get_mut(path);
        destination.counts.timeouts += 1;
        destination.mtu.on_timeout();
        // At least one chunk is lost. The fate of the others is not known.
        destination.quality.data.add(1, 1);
        if is_answered_probe {
            destination.rto.on_timeout();
        } else {
            self.on_path_error(now, path, false);
        }
    }

    /// All chunks in flight to `path` are to be retransmitted.
    fn mark_all(&mut self, now: Instant, path: PathId) {
        self.sender.on_timeout(path);
        let destination = self.paths.get_mut(path);
        destination.decay(now);
        destination.stop_timer();
        destination.is_measuring = false;
        let flight = destination.window.flight();
        destination.window.on_landed(flight);
        destination.window.on_timeout();
        self.retransmits_at_once = true;
    }

    /// The watch has heard no answer of `path` for too long. If no other path is healthy, data stays on `path`.
    fn on_silent_path(&mut self, now: Instant, path: PathId) {
        self.paths.get_mut(path).restart_watch(now);
        if self.paths.has_other(path) {
            self.mark_all(now, path);
            self.on_silence(now, path);
        }
    }

    /// A heartbeat was not answered (RFC 9260 §8.3). A destination with errors is probed once per RTO, as in RFC 7829 §3.2: probes at
    /// HB.interval would delay its recovery.
    fn on_lost_probe(&mut self, now: Instant, path: PathId) {
        if self.paths.get(path).is_confirmed() {
            self.on_path_error(now, path, true);
        } else {
            // An address that never answered says nothing about the peer (RFC 9260 §5.4).
            self.paths.get_mut(path).on_error();
        }
        self.paths.get_mut(path).probe_from(now);
    }

    /// Moves to the best path for good, if the policy wants that and the measurements show one.
    pub(super) fn choose_primary(&mut self) {
        if self.measures && self.paths.promote_best() {
            self.tell(AssociationEvent::PrimaryChanged(self.paths.primary()));
        }
    }

    /// A HEARTBEAT ACK arrived. The nonce in it proves that this end has sent the heartbeat to that destination.
    pub(super) fn on_heartbeat_ack(&mut self, now: Instant, info: &Bytes) {
        let mut info = info.clone();
        let (Ok(index), Ok(nonce)) = (info.try_get_u8(), info.try_get_u64()) else {
            self.counts.misplaced += 1;
            return;
        };
        let answered = self.paths.all_mut().get_mut(usize::from(index));
        if answered.is_some_and(|path| path.mtu.on_answer(now, nonce)) {
            self.on_heard(PathId(index));
            return;
        }
        let answered = self.paths.all_mut().get_mut(usize::from(index));
        if let Some(rtt) = answered.and_then(|path| path.on_watch_answered(now, nonce)) {
            let path = self.paths.get_mut(PathId(index));
            path.rto.on_measured(rtt);
            path.mtu.on_heard(now);
            self.on_heard(PathId(index));
            return;
        }
        let answered = self.paths.all_mut().get_mut(usize::from(index));
        let Some(rtt) = answered.and_then(|path| path.on_probe_answered(now, nonce)) else {
            self.counts.misplaced += 1;
            return;
        };
        let path = PathId(index);
        self.paths.get_mut(path).rto.on_measured(rtt);
        self.paths.get_mut(path).mtu.on_heard(now);
        self.paths.get_mut(path).quality.on_answered(rtt);
        self.confirm(path);
        self.on_heard(path);
        if !self.paths.get(path).has_probe_scheduled() {
            self.schedule_probe(now, path);
        }
        self.choose_primary();
    }

    /// The kernel refuses packets of `size` bytes to `address`, because the first link's MTU is smaller.
    pub fn handle_too_large(&mut self, now: Instant, address: IpAddr, size: u32) {
        if let Some(path) = self.paths.find(address) {
            self.paths.get_mut(path).mtu.on_too_large(now, size);
        }
    }

    /// The next heartbeat to `path` is due after the interval.
    pub(super) fn schedule_probe(&mut self, now: Instant, path: PathId) {
        // The lower half of the random number.
        let jitter = self.secret.draw() as u32;
        let interval = self.config.heartbeat_interval;
        self.paths.get_mut(path).schedule_probe(now, interval, jitter);
    }
}
