//! Sets up a node's network for its part in the path of a VIP, and changes the part while connections live.
//!
//! ```text
//!            Wire                                 Behind                              Alone
//!  in    client ─▶ [this] ─▶ peer        client ─▶ peer ─▶ [this]           client ─▶ [this]
//!  out   client ◀─ [this] ◀─ peer        client ◀─ peer ◀─ [this]           client ◀─ [this]
//!        VIP on the interface            VIP on lo, rule from VIP           VIP on lo and on the interface
//! ```
//!
//! Sockets do not notice a change, because the VIP is always on some interface. `arp_ignore` and `arp_announce` need not change: with
//! them, the kernel answers neighbours for an address on the interface, but not for an address on `lo`. An
//! [`Announcer`](super::Announcer) tells the neighbours of a change. [`OutsideHosts`](crate::probe::OutsideHosts) verify that the
//! neighbours have learned it.

use std::net::IpAddr;

use super::step::NetworkStep;
use super::{Network, NetworkError};

/// A node's part in the path of a VIP's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetworkPart {
    /// Between the clients and the peer. A node also keeps this part after it has taken over and is alone.
    Wire,
    /// Behind the peer's wire.
    Behind,
    /// Without a peer.
    Alone,
}

impl Network {
    /// Sets up this node's network for its part, for all services at `vip`. Adds what the new part needs before it removes
    /// the rest, so live connections lose nothing. Writes each step to the journal first, so that [`Network::remove`] and
    /// [`undo`](super::undo) can undo it. Idempotent.
    ///
    /// # Errors
    /// The step that failed; it can be repeated.
    pub fn assume(&mut self, vip: IpAddr, part: NetworkPart) -> Result<(), NetworkError> {
        self.advance(|step| step.switched() == Some(vip) && step.serves(part))?;
        let has_rest = self.is_begun(|step| step.switched() == Some(vip) && !step.serves(part));
        if has_rest {
            self.retreat(|step| step.switched() == Some(vip) && !step.serves(part))?;
        }
        Ok(())
    }

    /// The part for `vip` that this daemon, or an earlier one that died, has set up. `None` if there is none, or if a daemon was killed
    /// while it changed the part.
    pub fn part(&self, vip: IpAddr) -> Option<NetworkPart> {
        [NetworkPart::Wire, NetworkPart::Behind, NetworkPart::Alone]
            .into_iter()
            .find(|part| {
                let mut steps = self.journal.steps().iter().enumerate();
                steps.all(|(index, step)| {
                    step.switched() != Some(vip) || step.serves(*part) == self.journal.begun(index)
                })
            })
    }

    /// Whether a step for which `which` is true was begun.
    pub(super) fn is_begun(&self, which: impl Fn(&NetworkStep) -> bool) -> bool {
        let mut steps = self.journal.steps().iter().enumerate();
        steps.any(|(index, step)| which(step) && self.journal.begun(index))
    }
}
