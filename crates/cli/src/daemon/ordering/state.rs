//! The record of one service on this node, which its threads share.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proto::action::ServiceIndex;
use proto::order::{OnDivergence, OrderArrivals, OrderTransfer, RecordGap};
use proto::role::Role;

use super::frames::{self, ALONE, RECEIPT};
use super::sealed::{OrderLinkWriter, PART};
use crate::config::SecretKey;

/// Longest time without a receipt. Then writes do not wait for the backup any more, until a link is up again.
const RECEIPT_MAX: Duration = Duration::from_secs(1);

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

/// What is known of a service's record.
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
    is_alone: bool,
    last_receipt: Instant,
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
            is_alone: true,
            last_receipt: Instant::now(),
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

    /// Called in each turn of the agent's loop, which must not wait here.
    pub fn tell(&self, role: Role) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        if state.role != role {
            state.role = role;
            if role.may_speak()
                && let Some(inbound) = state.inbound.take()
            {
                let _ = inbound.shutdown(Shutdown::Both); // what has no receipt does not count
            }
            self.notify();
        }
        state.watch();
    }

    pub fn counters(&self) -> [(&'static str, u64); 6] {
        let state = self.state();
        [
            ("order_recorded_bytes", state.transfer.len()),
            ("order_unconfirmed_bytes", state.transfer.unconfirmed()),
            ("order_times_alone", state.times_alone),
            ("order_arrived_bytes", state.arrivals.arrived()),
            ("order_played", state.played),
            ("order_divergences", state.divergences),
        ]
    }
}

impl OrderState {
    /// Whether this node's server goes on without a record, as far as the record has not arrived.
    pub fn has_ended(&self) -> bool {
        self.role.may_speak() || self.refused.is_some() || self.arrivals.is_given_up()
    }

    /// A backup that has the record's first `have` bytes takes the record. Returns the link's number.
    pub fn link_up(&mut self, have: u64, link: OrderLinkWriter) -> Result<u64, (RecordGap, OrderLinkWriter)> {
        if let Err(gap) = self.transfer.link_up(have) {
            return Err((gap, link));
        }
        if let Some(old) = self.link.replace(link) {
            old.close();
        }
        self.links += 1;
        self.is_alone = false;
        self.last_receipt = Instant::now();
        self.tell_receipt(have);
        self.send_parts();
        Ok(self.links)
    }

    pub fn link_down(&mut self, number: u64) {
        if self.links == number {
            self.end_link();
        }
    }

    fn end_link(&mut self) {
        self.transfer.link_down();
        if let Some(link) = self.link.take() {
            link.close();
        }
    }

    /// Sends over the link what has not been sent.
    pub fn send_parts(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        while let Some(part) = self.transfer.poll_part() {
            if let Err(error) = link.send(PART, &part) {
                tracing::debug!(%error, "the link for recorded order is broken");
                return self.end_link();
            }
        }
    }

    pub fn on_receipt(&mut self, arrived: u64) {
        if self.transfer.on_receipt(arrived) {
            self.last_receipt = Instant::now();
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
    fn watch(&mut self) {
        if self.transfer.unconfirmed() == 0 && self.link.is_some() {
            self.last_receipt = Instant::now();
        }
        let has_no_backup = self.role.may_speak() && self.role != Role::Primary;
        let is_overdue = self.last_receipt.elapsed() >= RECEIPT_MAX;
        if self.recorder.is_some() && !self.is_alone && (has_no_backup || is_overdue) {
            if !has_no_backup {
                tracing::warn!("no receipt for the recorded order; clients do not wait for the backup now");
            }
            self.end_link();
            self.is_alone = true;
            self.times_alone += 1;
            self.tell_library(ALONE, &[]);
        }
    }
}
