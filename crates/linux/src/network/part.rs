//! Switches a node's network between its parts for a VIP while connections live.
//!
//! ```text
//!            Wire                                 Behind                              Alone
//!  in    client ─▶ [this] ─▶ peer        client ─▶ peer ─▶ [this]           client ─▶ [this]
//!  out   client ◀─ [this] ◀─ peer        client ◀─ peer ◀─ [this]           client ◀─ [this]
//!        VIP on the interface            VIP on lo, rule from VIP           VIP on lo and on the interface
//! ```
//!
//! No socket notices, since the VIP is always on some interface. `arp_ignore` and `arp_announce` stay as they are: the kernel answers for
//! an address on the interface, and not for an address on `lo`. An [`Announcer`](super::Announcer) tells the neighbours of a change;
//! [`OutsideHosts`](crate::probe::OutsideHosts) verify that they know.

use std::net::IpAddr;

use super::step::Step;
use super::{Error, Network};

/// What a node is in the path of a VIP's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Between the clients and the peer; or alone after that, with connections that were taken over.
    Wire,
    /// Behind the peer's wire.
    Behind,
    /// Without a peer.
    Alone,
}

impl Network {
    /// Sets up this node's network for its part, for all services at `vip`. Adds the new before it removes the old, so live connections
    /// lose nothing. Each step is in the journal first, so [`Network::remove`] and [`undo`](super::undo) know of it. Idempotent.
    ///
    /// # Errors
    /// The step that failed; it can be repeated.
    pub fn assume(&mut self, vip: IpAddr, part: Part) -> Result<(), Error> {
        self.advance(|step| step.switched() == Some(vip) && step.serves(part))?;
        let has_rest = self.is_begun(|step| step.switched() == Some(vip) && !step.serves(part));
        if has_rest {
            self.retreat(|step| step.switched() == Some(vip) && !step.serves(part))?;
        }
        Ok(())
    }

    /// The part that this node, or a daemon that died before it, has for `vip`; nothing if none, or if it was killed between two.
    pub fn part(&self, vip: IpAddr) -> Option<Part> {
        [Part::Wire, Part::Behind, Part::Alone].into_iter().find(|part| {
            let mut steps = self.journal.steps().iter().enumerate();
            steps.all(|(index, step)| {
                step.switched() != Some(vip) || step.serves(*part) == self.journal.begun(index)
            })
        })
    }

    /// Whether a step that `which` chooses was begun.
    pub(super) fn is_begun(&self, which: impl Fn(&Step) -> bool) -> bool {
        let mut steps = self.journal.steps().iter().enumerate();
        steps.any(|(index, step)| which(step) && self.journal.begun(index))
    }
}
