//! Connections that are being taken over. The map `held` says of single connections whether they are undecided or decided. The map
//! `undecided` has the clients whose SYNs wait while their whole service is taken over.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use memmap2::MmapOptions;
use proto::action::Gate;

use super::Wire;
use super::abi::{
    ANNEXES_MAX, ClientKey, HELD_ANNEX, HELD_DECIDED, HELD_FROZEN, HELD_LEAVING, HELD_LEFT, HELD_LOGGED,
    HELD_RESERVED, HELD_UNDECIDED, HELD_VIA_PEER,
};
use super::client_bits::Undecided;
use super::{WireError, WireStep};

/// `HOLDS_SOME` and `HOLDS_UNTOLD` of `bpf/abi.h`.
const HOLDS_SOME: u32 = 1;
const HOLDS_UNTOLD: u32 = 2;
/// Maximum number of clients in one system call.
const BATCH: usize = 4096;

/// Number of entries in `held` plus number of set bits in `undecided`, of the wire that is pinned in `pins`.
///
/// # Errors
/// If there is no such wire, or its maps cannot be read.
pub fn held_entries(pins: &Path) -> Result<usize, WireError> {
    let open = |name: &str| {
        let path = pins.join(name);
        MapHandle::from_pinned_path(&path).step(|| format!("opening {}", path.display()))
    };
    let undecided = open("undecided")?;
    let memory = MmapOptions::new()
        .len(Undecided::BYTES)
        .map_raw_read_only(undecided.as_fd().as_raw_fd())
        .step(|| "mapping undecided".into())?;
    let bits: u32 = Undecided::new(memory)
        .words()
        .iter()
        .map(|word| word.load(Ordering::Relaxed).count_ones())
        .sum();
    Ok(open("held")?.keys().count() + bits as usize)
}

impl Wire {
    /// Marks the connections of these clients as undecided (neither restored nor given up yet): their SYNs wait. At [`Gate::Wire`], no
    /// segment passes between these clients and the primary.
    ///
    /// # Errors
    /// The kernel's error; most likely there are too many clients. Some clients at the beginning of `clients` may be marked already. At
    /// [`Gate::Takeover`] there is no error.
    pub fn hold(&self, index: u16, clients: &[SocketAddr]) -> Result<(), WireError> {
        let told = if self.gate(index).0 == Gate::Takeover {
            self.undecided.add(index, clients);
            Ok(())
        } else {
            self.tell(index, clients, HELD_UNDECIDED)
        };
        self.set_holds(index, HOLDS_SOME);
        told
    }

    /// Marks the connections of these clients as decided: a connection that was restored here stays on this node until it ends, and the
    /// client's next connection is an ordinary one. At [`Gate::Takeover`], the whole service was taken over, and the wire instead forgets
    /// all undecided clients of the service. At other gates, all connections are local, and the wire forgets these clients.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn settle(&self, index: u16, clients: &[SocketAddr]) -> Result<(), WireError> {
        match self.gate(index).0 {
            Gate::Takeover => {}
            Gate::Wire => return self.tell(index, clients, HELD_DECIDED),
            Gate::Off | Gate::Sole | Gate::Primary | Gate::Mute => {
                return self.forget_clients(index, clients);
            }
        }
        self.undecided.forget(index);
        if self.has_told(index) {
            // Some clients were put into `held` before the whole service was taken over.
            self.delete_clients("held", index, clients)?;
        }
        Ok(())
    }

    /// Reserves the connections of these clients, which are to move here from a living node: nothing passes on them any more, until
    /// [`hold`](Self::hold) or [`give_back`](Self::give_back).
    ///
    /// # Errors
    /// The kernel's error. Then none of the connections is reserved.
    pub fn reserve(&self, index: u16, clients: &[SocketAddr]) -> Result<(), WireError> {
        self.set_holds(index, HOLDS_SOME);
        let (guests, others): (Vec<_>, Vec<_>) = clients
            .iter()
            .partition(|client| self.annex_of(index, **client).is_some());
        let leave = |client: &SocketAddr| {
            let annex = self.annex_of(index, *client).unwrap_or(0);
            self.tell(index, &[*client], HELD_LEAVING | u32::from(annex))
        };
        let told = self
            .tell(index, &others, HELD_RESERVED)
            .and_then(|()| guests.iter().try_for_each(leave));
        if told.is_err() {
            self.give_back(index, clients)?;
        }
        told
    }

    /// The connections of these clients, which were reserved, stay with the other node. What this node did with their segments before, it does
    /// again: the backup passes them to the primary, and the primary logs a reversed connection's segments.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn give_back(&self, index: u16, clients: &[SocketAddr]) -> Result<(), WireError> {
        match self.gate(index).0 {
            Gate::Primary => self.tell(index, clients, HELD_LOGGED),
            _ => self.forget_clients(index, clients),
        }
    }

    /// The connections of these clients are about to move to the other node: their sockets say nothing more. Logs the connections' segments, and
    /// sends them on, as the other node's wire.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn freeze(&self, index: u16, clients: &[SocketAddr]) -> Result<(), WireError> {
        self.set_holds(index, HOLDS_SOME);
        self.tell(index, clients, HELD_FROZEN)
    }

    /// The connection of `client`, which was frozen, does not move. If the other node has said nothing, the socket goes on. Returns whether it
    /// does.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn thaw(&self, index: u16, client: SocketAddr) -> Result<bool, WireError> {
        let key = ClientKey::new(client, index).to_bytes();
        let is_frozen = self.held_value(&key) == Some(HELD_FROZEN);
        match self.gate(index).0 {
            _ if !is_frozen => {}
            Gate::Wire => self.change_held(&key, HELD_VIA_PEER)?,
            _ => self.forget_clients(index, &[client])?,
        }
        Ok(is_frozen)
    }

    /// The connections of these clients have moved here: leads their segments through the primary, which logs them. Skips clients that have
    /// begun another connection since.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn reverse(&self, index: u16, clients: &[SocketAddr]) -> Result<(), WireError> {
        let mut clients = clients.iter();
        clients.try_for_each(|&client| {
            self.change_held(&ClientKey::new(client, index).to_bytes(), HELD_VIA_PEER)
        })
    }

    /// Makes an annex of a service known. `annex` is its index.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_annex(&self, index: u16, annex: u8, mac: [u8; 6]) -> Result<(), WireError> {
        let place = u32::from(index) * ANNEXES_MAX + u32::from(annex);
        let value = [&mac[..], &[0; 2]].concat();
        self.map("annexes")
            .update(&place.to_ne_bytes(), &value, MapFlags::ANY)
            .step(|| "telling the wire an annex's address".into())
    }

    /// From now on the packets of this client's connection go to this annex, or to the primary (`None`), and only this node's packets pass.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn guide(&self, index: u16, client: SocketAddr, annex: Option<u8>) -> Result<(), WireError> {
        match annex {
            None => self.forget_clients(index, &[client]),
            Some(annex) => {
                self.set_holds(index, HOLDS_SOME);
                self.tell(index, &[client], HELD_ANNEX | u32::from(annex))
            }
        }
    }

    /// The clients of a service whose connections are on annexes, each with the annex's index.
    pub fn annexed(&self, index: u16) -> Vec<(SocketAddr, u8)> {
        let clients = self.clients_in("held", index).into_iter();
        clients
            .filter_map(|client| Some((client, self.annex_of(index, client)?)))
            .collect()
    }

    /// The index of the annex that has the connection of `client`.
    fn annex_of(&self, index: u16, client: SocketAddr) -> Option<u8> {
        let value = self.held_value(&ClientKey::new(client, index).to_bytes())?;
        (value & (HELD_ANNEX | HELD_LEAVING) != 0).then(|| value.to_le_bytes()[0])
    }

    /// The clients of a service whose connections are here although this node is the wire, or are being decided.
    pub fn held(&self, index: u16) -> Vec<SocketAddr> {
        self.held_as(index, &[HELD_UNDECIDED, HELD_DECIDED, HELD_VIA_PEER])
    }

    /// The clients of a service whose connections are here, and whose segments pass the primary.
    pub fn reversed_here(&self, index: u16) -> Vec<SocketAddr> {
        self.held_as(index, &[HELD_VIA_PEER])
    }

    /// Whether a connection that has moved is this node's, if it has a socket: on the backup, its segments pass the primary; on the primary, they
    /// do not come from the backup.
    pub fn has_moved_here(&self, index: u16, client: SocketAddr) -> bool {
        let held = self.held_value(&ClientKey::new(client, index).to_bytes());
        match self.gate(index).0 {
            Gate::Wire => held == Some(HELD_VIA_PEER),
            _ => !matches!(held, Some(HELD_LOGGED | HELD_FROZEN | HELD_RESERVED)),
        }
    }

    /// The clients of a service on whose connections the other node has spoken since they were frozen here.
    pub fn left(&self, index: u16) -> Vec<SocketAddr> {
        self.held_as(index, &[HELD_LOGGED, HELD_LEFT])
    }

    /// The clients of a service whose connections move to the other node, which has not spoken yet.
    pub fn frozen(&self, index: u16) -> Vec<SocketAddr> {
        self.held_as(index, &[HELD_FROZEN])
    }

    /// The clients of a service whose connections are on the backup, and whose segments this node, the primary, logs.
    pub fn reversed_there(&self, index: u16) -> Vec<SocketAddr> {
        self.held_as(index, &[HELD_LOGGED, HELD_FROZEN])
    }

    fn held_as(&self, index: u16, values: &[u32]) -> Vec<SocketAddr> {
        let mut clients = self.clients_in("held", index);
        clients.retain(|&client| {
            let value = self.held_value(&ClientKey::new(client, index).to_bytes());
            value.is_some_and(|value| values.contains(&value))
        });
        clients
    }

    /// Changes an entry of the map `held`, if it is still there.
    fn change_held(&self, key: &[u8], value: u32) -> Result<(), WireError> {
        match self
            .map("held")
            .update(key, &value.to_ne_bytes(), MapFlags::EXIST)
        {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(error).step(|| "telling the wire what becomes of a held connection".into())
            }
            _ => Ok(()),
        }
    }

    fn held_value(&self, key: &[u8]) -> Option<u32> {
        let value = self.map("held").lookup(key, MapFlags::ANY).ok()??;
        Some(u32::from_ne_bytes(*value.first_chunk()?))
    }

    /// Forgets these clients: their segments go to the primary again.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn forget_clients(&self, index: u16, clients: &[SocketAddr]) -> Result<(), WireError> {
        self.delete_clients("held", index, clients)
    }

    /// This node gives the service up, and none of its connections is here or moves here any more. Forgets their clients, except those whose
    /// connections are on annexes. Otherwise a client's next SYN from the same port would wait for a decision that nobody makes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn end_holds(&self, index: u16) -> Result<(), WireError> {
        if !self.has_told(index) {
            return Ok(());
        }
        let mut clients = self.clients_in("held", index);
        clients.retain(|&client| self.annex_of(index, client).is_none());
        self.forget_clients(index, &clients)
    }

    /// Marks all connections as decided, except reversed ones. A dead agent left connections undecided, and nobody will decide them any more.
    /// Connections that it had only reserved are the other node's again.
    pub(super) fn settle_for_the_dead(&self, services: u16) -> Result<(), WireError> {
        self.undecided.clear();
        let map = self.map("held");
        let keys: Vec<_> = map.keys().collect();
        for key in keys {
            let index = key.last_chunk().map_or(0, |index| u16::from_ne_bytes(*index));
            let is_behind = self.gate(index).0 == Gate::Primary;
            match self.held_value(&key) {
                Some(HELD_RESERVED) if is_behind => self.change_held(&key, HELD_LOGGED)?,
                Some(HELD_RESERVED) => self.delete_key("held", &key)?,
                Some(HELD_UNDECIDED) if is_behind => self.delete_key("held", &key)?,
                Some(HELD_UNDECIDED) => self.change_held(&key, HELD_DECIDED)?,
                Some(value) if value & HELD_LEAVING != 0 => {
                    self.change_held(&key, value & !HELD_LEAVING | HELD_ANNEX)?;
                }
                _ => {}
            }
        }
        self.told.store(u64::MAX, Ordering::Relaxed);
        for index in (0..services).filter(|&index| self.gate(index).0 == Gate::Takeover) {
            self.set_holds(index, HOLDS_SOME);
        }
        Ok(())
    }

    /// Prepares the holds before a service's gate changes to `gate`. A node that becomes the wire forgets the held clients. In a takeover,
    /// all SYNs wait until [`hold`](Self::hold) has told the wire which clients are undecided.
    pub(super) fn begin_holds(&self, index: u16, gate: Gate) {
        match gate {
            Gate::Takeover => self.set_holds(index, HOLDS_UNTOLD),
            Gate::Wire if self.has_told(index) => {
                if let Err(error) = self.forget_held(index) {
                    tracing::error!(%error, "cannot forget held clients; they may be unable to open new connections");
                }
            }
            _ => {}
        }
    }

    /// Whether the map `held` may have entries of a service.
    fn has_told(&self, index: u16) -> bool {
        self.told.load(Ordering::Relaxed) & 1 << index != 0
    }

    fn forget_held(&self, index: u16) -> Result<(), WireError> {
        let of_service = |key: &Vec<u8>| key.ends_with(&index.to_ne_bytes());
        let keys: Vec<_> = self.map("held").keys().filter(of_service).collect();
        for key in keys {
            self.delete_key("held", &key)?;
        }
        self.told.fetch_and(!(1 << index), Ordering::Relaxed);
        Ok(())
    }

    fn set_holds(&self, index: u16, holds: u32) {
        // SAFETY: within the mapping, aligned; the programs read it as one word.
        let word = unsafe { AtomicU32::from_ptr(&raw mut (*self.state_pointer(index)).holds) };
        word.store(holds, Ordering::SeqCst);
    }

    fn tell(&self, index: u16, clients: &[SocketAddr], as_what: u32) -> Result<(), WireError> {
        let map = self.map("held");
        self.told.fetch_or(1 << index, Ordering::Relaxed);
        for batch in clients.chunks(BATCH) {
            let keys: Vec<u8> = batch
                .iter()
                .flat_map(|&client| ClientKey::new(client, index).to_bytes())
                .collect();
            let values = as_what.to_ne_bytes().repeat(batch.len());
            let count = u32::try_from(batch.len()).expect("small");
            map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
                .step(|| "telling the wire which connections are held".into())?;
        }
        Ok(())
    }
}
