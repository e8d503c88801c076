//! Sets up the network that a node needs, and later restores the network as it was found.
//!
//! [`Network::prepare`] and [`Network::assume`] carry out a [`NetworkPlan`] step by step. Every step is written to a journal before it is
//! done. So [`Network::remove`] can restore the network as it was found. [`undo`] does the same after the daemon was killed. Dropping a
//! [`Network`] undoes nothing: if the daemon dies, forwarding goes on, and the next daemon continues from the same journal.
//!
//! | for | what | why |
//! |---|---|---|
//! | every node | nftables table `inet steadfast_<node>` | this node's own segments leave from a service's address only with the right to speak, or with `MARK_SPEAK` or `MARK_END`; a packet to the address that came by another interface than the service's is refused, because it did not pass the wire; Multipath TCP is refused |
//! | every node | `accept_local`, `rp_filter` of `lo` | segments from the wire to this node's own clients of a service come in by `lo` |
//! | every node | `arp_ignore`, `arp_announce` | sockets can use an address on `lo`, but ARP neither answers for it nor announces it |
//! | every node | rule for the application's replies, local route | the relay connects to the application from the clients' addresses, and the replies must stay on this node |
//! | every node | `tcp_fwmark_accept` | an accepted socket and its SYN-ACK take the mark of the SYN, which marks a relayed connection or a new connection during a takeover |
//! | [`NetworkPart::Wire`] | VIP on the service interface | the node answers ARP and ND for it, so clients' packets come here |
//! | [`NetworkPart::Behind`] | VIP on `lo` | sockets can use the VIP, but the node answers no ARP for it |
//! | [`NetworkPart::Behind`] | rule `from VIP`, route via the peer | every packet from the VIP, except ICMP, leaves through the wire |
//! | [`NetworkPart::Alone`] | VIP on the service interface and on `lo` | clients' packets come here, replies go straight to the clients |
//!
//! Everything works on the network namespace of the calling thread.

mod error;
mod gateways;
mod guard;
mod interface;
mod journal;
mod listeners;
pub(crate) mod message;
mod neighbour;
mod netlink;
mod numbers;
pub(crate) mod packet;
mod part;
mod plan;
pub mod sockets;
mod source;
mod step;
mod sysctl;
#[cfg(test)]
mod tests;
mod turn;
mod verify;
mod voice;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use error::{NetworkError, UndoError};
pub use gateways::gateways;
pub use guard::available as nftables_available;
pub use interface::{addresses, interfaces, route_to};
pub use listeners::listeners;
pub(crate) use neighbour::packet_socket;
pub use neighbour::{Announcer, Mac, claimants, resolve};
pub use netlink::Interface;
pub use numbers::{
    PRIORITY_DIRECT, PRIORITY_FROM_VIP, PRIORITY_REFUSAL, PRIORITY_RELAY, PROTOCOL, RELAY_MARK, TABLES,
};
pub use part::NetworkPart;
pub use plan::{NetworkPlan, NetworkService};
pub use source::{connect_anew, own_address};
pub use turn::SetUpTurn;

use journal::Journal;
use netlink::Netlink;
use step::NetworkStep;
use voice::SpeakerSets;

/// A node's network, set up.
#[derive(Debug)]
pub struct Network {
    netlink: Netlink,
    voice: SpeakerSets,
    /// The services that have been granted the right to speak.
    speakers: Mutex<Vec<SocketAddr>>,
    journal: Journal,
}

impl Network {
    /// Carries out the steps of `plan` that every part needs. Afterwards the guard is in place, and a VIP may come up once the wire is
    /// attached. If a dead daemon left a `journal` with the same plan, continues from it. If the dead daemon's plan differs, first undoes
    /// the steps of that daemon.
    ///
    /// # Errors
    /// The step that failed. The steps before it have been undone. A step that could not be undone is logged, and stays in the journal.
    pub fn prepare(plan: &NetworkPlan, journal: &Path) -> Result<Self, NetworkError> {
        let (netlink, voice) = (Netlink::open()?, SpeakerSets::open()?);
        let journal = match Journal::load(journal)? {
            Some(old) if old.plan() == plan => old,
            _ => {
                undo(journal)?;
                Journal::create(journal, plan, plan::steps(&netlink, plan)?)?
            }
        };
        let mut network = Self::of(netlink, voice, journal)?;
        let prepared = network
            .look_for_strangers()
            .and_then(|()| network.advance(NetworkStep::is_lasting));
        if let Err(error) = prepared {
            give_up(network.remove());
            return Err(error);
        }
        Ok(network)
    }

    /// Sets up this node's network for its part, for all services at `vip`. Adds what the new part needs before it removes
    /// the rest, so live connections lose nothing. Writes each step to the journal first, so that [`Network::remove`] and
    /// [`undo`] can undo it. Idempotent.
    ///
    /// # Errors
    /// The step that failed. The call can be repeated.
    pub fn assume(&mut self, vip: IpAddr, part: NetworkPart) -> Result<(), NetworkError> {
        self.advance(|step| step.switched() == Some(vip) && step.serves(part))?;
        let has_rest = self.is_begun(|step| step.switched() == Some(vip) && !step.serves(part));
        if has_rest {
            self.retreat(|step| step.switched() == Some(vip) && !step.serves(part))?;
        }
        Ok(())
    }

    /// The part for `vip` that this daemon has set up, or that an earlier daemon had set up before it died. `None` if no part is set up, or
    /// if a daemon was killed while it changed the part.
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
    fn is_begun(&self, which: impl Fn(&NetworkStep) -> bool) -> bool {
        let mut steps = self.journal.steps().iter().enumerate();
        steps.any(|(index, step)| which(step) && self.journal.begun(index))
    }

    /// Fails if somebody else has put up a VIP here.
    fn look_for_strangers(&self) -> Result<(), NetworkError> {
        let there = self
            .netlink
            .addresses()
            .map_err(NetworkError::at("look for", "addresses"))?;
        for step in self.journal.steps() {
            let NetworkStep::Address { address, .. } = step else {
                continue;
            };
            let is_ours = self.is_begun(|step| step.switched() == Some(*address));
            if !is_ours && step.is_on_interface() && there.iter().any(|(_, found)| found == address) {
                return Err(NetworkError::new("add", step.to_string(), step::not_ours()));
            }
        }
        Ok(())
    }

    /// Continues with the network of a dead daemon, from its `journal`; `None` if there is no journal. The dead daemon's VIPs stay up, and
    /// the rights to speak that it granted stay. Unlike [`Network::prepare`], this function undoes nothing: neither the dead daemon's steps
    /// nor, after an error, its own steps.
    ///
    /// # Errors
    /// If the journal is of another plan; or the step that failed.
    pub fn adopt(plan: &NetworkPlan, journal: &Path) -> Result<Option<Self>, NetworkError> {
        let Some(old) = Journal::load(journal)? else {
            return Ok(None);
        };
        if old.plan() != plan {
            let answer = io::Error::other(
                "the journal belongs to another configuration; run `steadfast cleanup` first",
            );
            return Err(NetworkError::new("adopt", journal.display().to_string(), answer));
        }
        let mut network = Self::of(Netlink::open()?, SpeakerSets::open()?, old)?;
        network.advance(NetworkStep::is_lasting)?;
        network.again()?;
        Ok(Some(network))
    }

    fn of(netlink: Netlink, voice: SpeakerSets, journal: Journal) -> Result<Self, NetworkError> {
        let mut speakers = Vec::new();
        let table = guard::table(&journal.plan().node);
        for service in &journal.plan().services {
            let may = voice.may_speak(&table, service.address);
            if may.map_err(NetworkError::at("ask who may speak in", &table))? {
                speakers.push(service.address);
            }
        }
        Ok(Self {
            netlink,
            voice,
            speakers: Mutex::new(speakers),
            journal,
        })
    }

    /// Applies all begun steps once more.
    fn again(&self) -> Result<(), NetworkError> {
        let steps = self.journal.steps().iter().enumerate();
        let mut begun = steps.filter(|(index, _)| self.journal.begun(*index));
        begun.try_for_each(|(_, step)| step.apply(&self.netlink))
    }

    /// Takes down the VIPs and their rules. The steps that every part needs stay.
    ///
    /// # Errors
    /// All that could not be taken down.
    pub fn lower(&mut self) -> Result<(), UndoError> {
        self.retreat(|step| step.switched().is_some())
    }

    /// Takes down one VIP and its rule, for all services at that address. Everything else stays.
    ///
    /// # Errors
    /// If the VIP or its rule could not be taken down.
    pub fn lower_vip(&mut self, vip: IpAddr) -> Result<(), UndoError> {
        self.retreat(|step| step.switched() == Some(vip))
    }

    /// Grants or withdraws the right to speak. Without the right, only two kinds of this node's own segments leave from `service`: those
    /// with [`MARK_SPEAK`](crate::wire::MARK_SPEAK) except a RST, and those with [`MARK_END`](crate::wire::MARK_END). Forwarded packets
    /// are not affected. Granting takes microseconds. Withdrawing waits some 10 ms until no CPU uses the old set, unless nothing was
    /// granted.
    ///
    /// # Errors
    /// If nftables refuses.
    pub fn set_speak(&self, service: SocketAddr, may: bool) -> Result<(), NetworkError> {
        let table = guard::table(&self.journal.plan().node);
        let mut speakers = self.speakers.lock().unwrap_or_else(PoisonError::into_inner);
        let might = speakers.contains(&service);
        if !might && !may {
            return Ok(());
        }
        let outcome = self.voice.set(&table, service, may);
        speakers.retain(|speaker| *speaker != service);
        if may || outcome.is_err() {
            speakers.push(service); // after a failed withdrawal too, so that the next withdrawal is carried out
        }
        outcome
    }

    /// Makes the kernel ask for the neighbour `address` again at the next packet to it, if the neighbour has not answered. Without this
    /// call, the kernel asks for such a neighbour only once a second. So after a cable was plugged in again, the neighbour may be found up
    /// to a second late.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn ask_again_for(&self, address: IpAddr) -> Result<(), NetworkError> {
        let forgotten = self.netlink.forget_unanswered(address);
        forgotten.map_err(NetworkError::at("forget the neighbour", address))
    }

    /// All interfaces with their addresses. Uses the netlink socket that is already open.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn interfaces(&self) -> Result<Vec<Interface>, NetworkError> {
        interface::list(&self.netlink)
    }

    /// Number of packets to services that were refused because they had not passed the wire. Counted since the guard
    /// was put up.
    ///
    /// # Errors
    /// If nftables cannot be asked.
    pub fn refused(&self) -> Result<u64, NetworkError> {
        let table = guard::table(&self.journal.plan().node);
        let packets = self.voice.packets(&table, guard::REFUSED);
        packets.map_err(NetworkError::at("count the refused packets in", table))
    }

    fn speakers(&self) -> Vec<SocketAddr> {
        self.speakers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Restores the network as it was found.
    ///
    /// # Errors
    /// All that could not be restored; it stays in the journal for [`undo`].
    pub fn remove(mut self) -> Result<(), UndoError> {
        self.retreat(|_| true)?;
        Ok(self.journal.remove()?)
    }

    /// Does the steps that `which` chooses, in order. A step that a dead daemon has begun, according to the journal, is
    /// done again. Undoing the step still restores what the dead daemon found before the step.
    fn advance(&mut self, which: impl Fn(&NetworkStep) -> bool) -> Result<(), NetworkError> {
        for index in 0..self.journal.steps().len() {
            let step = self.journal.steps()[index].clone();
            if !which(&step) {
                continue;
            }
            if !self.journal.begun(index) {
                let found = step.find(&self.netlink)?;
                self.journal.begin(index, found)?;
            }
            tracing::debug!(%step, "network step");
            step.apply(&self.netlink)?;
        }
        Ok(())
    }

    /// Undoes the begun steps that `which` chooses, last first. If undoing one step fails, the other steps are still undone.
    fn retreat(&mut self, which: impl Fn(&NetworkStep) -> bool) -> Result<(), UndoError> {
        let mut failed = Vec::new();
        for (index, found) in self.journal.begun_last_first() {
            let step = &self.journal.steps()[index];
            if !which(step) {
                continue;
            }
            let undone = step.undo(&self.netlink, found.as_deref());
            failed.extend(undone.and_then(|()| self.journal.undone(index)).err());
        }
        UndoError::of(failed)
    }
}

/// Logs what could not be undone after a failure. The caller returns the failure itself.
fn give_up(undone: Result<(), UndoError>) {
    if let Err(error) = undone {
        tracing::error!(%error, "the network is not restored; the journal lists the remaining changes");
    }
}

/// Restores the network for a daemon that died and left `journal` behind: the network becomes as that daemon found it. Does nothing if
/// there is no journal, or if the machine has been rebooted since. Can be repeated.
///
/// # Errors
/// All that could not be restored. Or the error of a journal that cannot be read or belongs to another network
/// namespace.
pub fn undo(journal: &Path) -> Result<(), UndoError> {
    let Some(journal) = Journal::load(journal)? else {
        return Ok(());
    };
    Network::of(Netlink::open()?, SpeakerSets::open()?, journal)?.remove()
}

/// The VIPs that the daemon with `journal`, alive or dead, has put up.
///
/// # Errors
/// If the journal cannot be read or is of another network namespace.
pub fn raised(journal: &Path) -> Result<Vec<IpAddr>, NetworkError> {
    let Some(journal) = Journal::load(journal)? else {
        return Ok(Vec::new());
    };
    let begun = journal
        .steps()
        .iter()
        .enumerate()
        .filter(|(index, _)| journal.begun(*index));
    let mut vips: Vec<IpAddr> = begun.filter_map(|(_, step)| step.vip()).collect();
    vips.dedup();
    Ok(vips)
}

/// The plan that the daemon with `journal`, alive or dead, has begun to carry out. `None` if there is no journal.
///
/// # Errors
/// If the journal cannot be read or is of another network namespace.
pub fn begun(journal: &Path) -> Result<Option<NetworkPlan>, NetworkError> {
    Ok(Journal::load(journal)?.map(|journal| journal.plan().clone()))
}

/// The journal of the node with this state directory.
pub fn journal(state_dir: &Path) -> PathBuf {
    state_dir.join("network.journal")
}

/// Removes the guard of a node whose journal is lost. Does nothing if there is no guard.
///
/// # Errors
/// If nftables refuses.
pub fn remove_guard(node: &str) -> Result<(), NetworkError> {
    guard::remove(&guard::table(node))
}

/// The nodes that have a guard in this network namespace.
///
/// # Errors
/// If nftables cannot be asked.
pub fn guarded_nodes() -> Result<Vec<String>, NetworkError> {
    guard::nodes()
}
