//! The times at which an endpoint wants to be called, indexed by reason.

use proto::Instant;

/// Why an endpoint wants to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Data in flight was not acknowledged, or the peer's window stays closed.
    Retransmit,
    /// A delayed acknowledgement has waited long enough for data that could carry it.
    DelayedAck,
    /// The 4-tuple is free again.
    TimeWait,
}

impl Timer {
    const COUNT: usize = Self::TimeWait as usize + 1;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Timers([Option<Instant>; Timer::COUNT]);

impl Timers {
    pub fn set(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize] = Some(at);
    }

    pub fn set_if_stopped(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize].get_or_insert(at);
    }

    pub fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }

    pub fn stop_all(&mut self) {
        *self = Self::default();
    }

    /// Whether `timer` has expired. An expired timer is stopped.
    pub fn expire(&mut self, timer: Timer, now: Instant) -> bool {
        self.0[timer as usize].take_if(|at| *at <= now).is_some()
    }

    pub fn next(&self) -> Option<Instant> {
        self.0.into_iter().flatten().min()
    }
}
