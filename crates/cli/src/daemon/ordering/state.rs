//! The record of one service on this node, which its threads share.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::Instant;
use proto::action::ServiceIndex;
use proto::order::frames::{ALONE, RECEIPT};
use proto::order::{OnDivergence, OrderArrivals, OrderTransfer, RecordGap};
use proto::role::Role;

use super::frames;
use super::sealed::{OrderLinkWriter, PART};
use crate::config::SecretKey;

/// The counters of a service, with their names.
pub(super) type OrderCounters = [(&'static str, u64); 6];

/// A service with recorded order.
pub(super) struct OrderedService {
    pub index: ServiceIndex,
    pub vip: SocketAddr,
    /// The peer's address and port for the link.
    pub peer: SocketAddr,
    pub on_divergence: OnDivergence,
    pub key: Option<SecretKey>,
    state: Mutex<OrderState>,
    changed: Condvar,
}

/// The record of one service, its links, and this node's role.
pub(super) struct OrderState {
    pub role: Role,
    /// A library has had its role from this agent. A second server has no record, because a record begins with its server.
    pub has_library: bool,
    /// The library of the primary's server.
    pub recorder: Option<UnixStream>,
    pub transfer: OrderTransfer,
    link: Option<OrderLinkWriter>,
    /// Counts the links, so that a thread of an earlier link does not end a later one.
    links: u64,
    /// The backup's half.
    pub arrivals: OrderArrivals,
    /// The link from the primary.
    pub inbound: Option<TcpStream>,
    /// The primary has no record for this node's server, for this reason.
    pub refused: Option<String>,
    pub played: u64,
    pub divergences: u64,
    times_alone: u64,
}

impl OrderedService {
    pub fn new(
        index: ServiceIndex,
        (vip, peer): (SocketAddr, SocketAddr),
        on_divergence: OnDivergence,
        key: Option<SecretKey>,
    ) -> Self {
        let state = OrderState {
            role: Role::Joining,
            has_library: false,
            recorder: None,
            transfer: OrderTransfer::default(),
            link: None,
            links: 0,
            arrivals: OrderArrivals::default(),
            inbound: None,
            refused: None,
            played: 0,
            divergences: 0,
            times_alone: 0,
        };
        Self {
            index,
            vip,
            peer,
            on_divergence,
            key,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that wait for a change.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until `is_met`, at most for `limit`.
    pub fn wait(
        &self,
        limit: Duration,
        mut is_met: impl FnMut(&mut OrderState) -> bool,
    ) -> MutexGuard<'_, OrderState> {
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, |state| !is_met(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Tells the service's threads this node's role, and returns the counters. Called in each turn of the agent's loop, which must not wait
    /// here. `None`: a thread is busy with the record. Then the next turn tells.
    pub fn tell(&self, role: Role) -> Option<OrderCounters> {
        let mut state = self.state.try_lock().ok()?;
        if state.role != role {
            state.role = role;
            if role.may_speak()
                && let Some(inbound) = state.inbound.take()
            {
                let _ = inbound.shutdown(Shutdown::Both); // what has no receipt does not count
            }
            self.notify();
        }
        Some(state.counters())
    }
}

impl OrderState {
    pub fn counters(&self) -> OrderCounters {
        [
            ("order_recorded_bytes", self.transfer.len()),
            ("order_unconfirmed_bytes", self.transfer.unconfirmed()),
            ("order_times_alone", self.times_alone),
            ("order_arrived_bytes", self.arrivals.arrived()),
            ("order_played", self.played),
            ("order_divergences", self.divergences),
        ]
    }

    /// Whether this node takes the record from the primary.
    pub fn follows(&self) -> bool {
        matches!(self.role, Role::Backup | Role::Returning) && !self.has_ended()
    }

    /// Whether this node's server goes on without a record, as far as the record has not arrived.
    pub fn has_ended(&self) -> bool {
        self.role.may_speak() || self.refused.is_some() || self.arrivals.is_given_up()
    }

    /// A backup that has the record's first `have` bytes takes the record. Returns the link's number.
    pub fn link_up(
        &mut self,
        now: Instant,
        have: u64,
        link: OrderLinkWriter,
    ) -> Result<u64, (RecordGap, OrderLinkWriter)> {
        if let Err(gap) = self.transfer.link_up(now, have) {
            return Err((gap, link));
        }
        if let Some(old) = self.link.replace(link) {
            old.close();
        }
        self.links += 1;
        self.tell_receipt(have);
        self.send_parts(now);
        Ok(self.links)
    }

    pub fn link_down(&mut self, now: Instant, number: u64) {
        if self.links == number {
            self.end_link(now);
        }
    }

    fn end_link(&mut self, now: Instant) {
        self.transfer.link_down(now);
        if let Some(link) = self.link.take() {
            link.close();
        }
    }

    /// Sends over the link what has not been sent.
    pub fn send_parts(&mut self, now: Instant) {
        let Some(link) = &mut self.link else {
            return;
        };
        while let Some(part) = self.transfer.poll_part() {
            if let Err(error) = link.send(PART, &part) {
                tracing::debug!(%error, "the link for recorded order is broken");
                return self.end_link(now);
            }
        }
    }

    pub fn on_receipt(&mut self, now: Instant, arrived: u64) {
        if self.transfer.on_receipt(now, arrived) {
            self.tell_receipt(arrived);
        }
    }

    fn tell_receipt(&mut self, arrived: u64) {
        self.tell_library(RECEIPT, &arrived.to_le_bytes());
    }

    fn tell_library(&mut self, kind: u8, payload: &[u8]) {
        if let Some(library) = &self.recorder
            && let Err(error) = frames::send(library, kind, payload)
        {
            tracing::warn!(%error, "the recorded server does not take receipts");
        }
    }

    /// Ends the wait for receipts if there is no backup, or if the backup does not answer.
    pub fn watch(&mut self, now: Instant) {
        let has_backup = !self.role.may_speak() || self.role == Role::Primary;
        if self.recorder.is_some() && self.transfer.goes_alone(now, has_backup) {
            if has_backup {
                tracing::warn!("no receipt for the recorded order; clients do not wait for the backup now");
            }
            self.end_link(now);
            self.times_alone += 1;
            self.tell_library(ALONE, &[]);
        }
    }
}
