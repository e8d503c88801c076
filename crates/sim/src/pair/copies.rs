//! The judge's rules on copied server states (docs/state-sync.md): a copy is exact, and a replica follows only connections whose input is
//! not part of the copy.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use proto::Instant;
use proto::action::StateSyncPhase;

use super::judge::Judge;
use super::ledger::ObservedCopy;
use super::state_sync::SimServerState;

impl Judge {
    /// From now on a copy of the peer's state may be in the node's `server`.
    pub(super) fn watch_server(&mut self, node: usize, server: &Rc<RefCell<SimServerState>>) {
        self.copies[node] = Some(ObservedCopy {
            server: Rc::clone(server),
            copied: None,
            finishing: None,
            covers_from: None,
            held_until: None,
            difference: None,
        });
    }

    /// A node's hook begins.
    pub(super) fn on_hook(&mut self, node: usize, phase: StateSyncPhase) {
        let now = self.now;
        if let Some(copy) = &mut self.copies[node] {
            copy.forget();
            copy.finishing = (phase == StateSyncPhase::Finish).then_some(now);
        }
    }

    /// A node's server has lost its state.
    pub(super) fn on_state_lost(&mut self, node: usize) {
        self.copies[node].iter_mut().for_each(ObservedCopy::forget);
    }

    /// A node's hook has copied the peer's state.
    pub(super) fn on_copied(&mut self, node: usize, state: &SimServerState) {
        if let Some(copy) = &mut self.copies[node] {
            copy.copied = Some(state.clone());
        }
    }

    /// Input is held on a node until `until`, or until the node's agent ends the hold.
    pub(super) fn on_hold(&mut self, node: usize, until: Instant) {
        if let Some(copy) = &mut self.copies[node] {
            copy.held_until = Some(until);
        }
    }

    /// Ends the holds whose time limit has come.
    pub(super) fn end_holds(&mut self) {
        for node in 0..self.copies.len() {
            let until = self.copies[node].as_ref().and_then(|copy| copy.held_until);
            if until.is_some_and(|until| until <= self.now) {
                self.on_hold_end(node);
            }
        }
    }

    /// Input is no longer held on a node.
    pub(super) fn on_hold_end(&mut self, node: usize) {
        let primary = self.copies[1 - node].as_ref();
        let primary = primary
            .map(|copy| copy.server.borrow().clone())
            .unwrap_or_default();
        let Some(copy) = &mut self.copies[node] else {
            return;
        };
        if copy.held_until.take().is_none() {
            return; // the hold has ended before, by its time limit
        }
        let Some(copied) = &copy.copied else { return };
        let differs = |(client, bytes): (&SocketAddr, &u64)| {
            let has = copied.get(client).copied().unwrap_or(0);
            (has != *bytes)
                .then(|| format!("{has} bytes of {client} were copied, {bytes} are in the primary"))
        };
        copy.difference = primary.iter().find_map(differs);
    }

    /// A node's agent considers the copy exact.
    pub(super) fn on_synced(&mut self, node: usize) {
        let Some(copy) = &mut self.copies[node] else {
            return;
        };
        copy.covers_from = copy.finishing;
        let wrong = match (&copy.copied, copy.difference.take()) {
            (None, _) => Some("nothing was copied".to_owned()),
            (Some(_), difference) => difference,
        };
        if let Some(what) = wrong {
            self.record(self.vip, &format!("exact copy: {what}"));
        }
    }

    /// A replica begins to follow a client's connection, from the connection's first byte on. If the node speaks alone
    /// and the connection has had no input, the copy does not matter: the node serves the connection like a new one.
    pub(super) fn on_replica(&mut self, node: usize, client: SocketAddr) {
        let Some(copy) = &self.copies[node] else { return };
        let has_input = self.flows.get(&client).is_some_and(|flow| flow.has_input());
        if self.alone_now[node].is_some() && !has_input {
            return;
        }
        let wrong = match &copy.copied {
            None => Some("a replica follows, although no state was copied".to_owned()),
            Some(copied) => copied
                .get(&client)
                .map(|bytes| format!("a replica follows, although the copy has {bytes} bytes of its input")),
        };
        if let Some(what) = wrong {
            self.record(client, &format!("exact copy: {what}"));
        }
    }

    /// Whether a replica on a node may follow a connection whose first packet after the SYN was logged at `heard`.
    pub(super) fn is_covered(copy: Option<&ObservedCopy>, heard: Option<Instant>) -> bool {
        copy.is_none_or(|copy| {
            copy.covers_from
                .is_some_and(|from| heard.is_none_or(|heard| heard >= from))
        })
    }
}
