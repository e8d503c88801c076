//! A primary that is alone takes its VIP over from a dead backup, and gives it back.
//!
//! ```text
//!             behind the wire                      claimed
//!  in    client ─▶ backup ─▶ primary         client ─▶ primary      VIP on lo    and on the service interface
//!  out   client ◀─ backup ◀─ primary         client ◀─ primary      rule from VIP      none: the main table
//! ```
//!
//! No socket notices: the VIP stays on `lo` all the time, and `arp_ignore` and `arp_announce` stay as they are. With the
//! address on its interface the kernel answers ARP and ND for it. The neighbours learn of it by an
//! [`Announcer`](super::Announcer), and [`OutsideHosts`](crate::probe::OutsideHosts) tell that they have.

use std::net::IpAddr;

use super::step::Step;
use super::{Error, Network};

impl Network {
    /// Makes `vip`, of which this node is primary, reachable without the backup, for all services at that address. It is in
    /// the journal first, so [`Network::remove`] and [`undo`](super::undo) know of it; a successor with the same plan stays
    /// claimed. Claiming once more does again what is missing.
    ///
    /// # Errors
    /// The step that failed: the claim is begun then, and can be repeated or taken back by [`Network::rejoin`]. If no
    /// service at `vip` has this node as its primary.
    pub fn claim(&mut self, vip: IpAddr) -> Result<(), Error> {
        let not_ours = || std::io::Error::other("this node is not its primary");
        let claims = |step: &Step| step.claims() == Some(vip);
        if !self.journal.steps().iter().any(claims) {
            return Err(Error::new("claim", vip.to_string(), not_ours()));
        }
        self.advance(claims)?;
        for step in self.leading_away(vip) {
            step.undo(&self.netlink, None)?;
        }
        Ok(())
    }

    /// Puts a claimed `vip` back as a primary behind a wire has it: all that it sends goes through the backup, and no
    /// neighbour's question is answered from here any more. Packets that still come are taken. Does nothing if it is not
    /// claimed. Call it before the backup announces the VIP: two that answer for it would confuse the neighbours.
    ///
    /// # Errors
    /// The step that failed; it can be repeated.
    pub fn rejoin(&mut self, vip: IpAddr) -> Result<(), Error> {
        if !self.is_claimed(vip) {
            return Ok(());
        }
        for step in self.leading_away(vip) {
            step.apply(&self.netlink)?;
        }
        Ok(self.retreat(|step| step.claims() == Some(vip))?)
    }

    /// Whether `vip` is claimed, by this daemon or by one that died before it.
    pub fn is_claimed(&self, vip: IpAddr) -> bool {
        let mut steps = self.journal.steps().iter().enumerate();
        steps.any(|(index, step)| step.claims() == Some(vip) && self.journal.begun(index))
    }

    /// Whether a claim stands against this step.
    pub(super) fn is_held_back(&self, step: &Step) -> bool {
        step.leads_away().is_some_and(|vip| self.is_claimed(vip))
    }

    /// Does what a daemon that died had begun to claim.
    pub(super) fn finish_claims(&mut self) -> Result<(), Error> {
        let vips = self.journal.steps().iter().filter_map(Step::claims);
        let begun: Vec<IpAddr> = vips.filter(|vip| self.is_claimed(*vip)).collect();
        begun.into_iter().try_for_each(|vip| self.claim(vip))
    }

    /// What leads packets of `vip` through the backup. It stays begun in the journal while the VIP is claimed: undoing it
    /// once more does no harm.
    fn leading_away(&self, vip: IpAddr) -> Vec<Step> {
        let steps = self.journal.steps().iter();
        steps
            .filter(|step| step.leads_away() == Some(vip))
            .cloned()
            .collect()
    }
}
