//! Maps that store clients as bits. The hash of a client's key selects the bit.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::MmapRaw;

use super::abi::{ClientKey, KNOWN_LOG2, UNDECIDED_LOG2};

/// Clients whose connections are not yet decided (restored or reset) while their whole service is taken over. The eBPF programs read them
/// as bits (`undecided` in `bpf/maps.h`). All bits are clear while no service has such clients.
pub(super) struct Undecided {
    memory: MmapRaw,
    /// The services that have such clients: one bit for each service.
    services: AtomicU64,
}

impl Undecided {
    pub(super) const BYTES: usize = 1 << (UNDECIDED_LOG2 - 3);

    pub(super) fn new(memory: MmapRaw) -> Self {
        Self {
            memory,
            services: AtomicU64::new(0),
        }
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        let words = self.memory.as_mut_ptr().cast::<u64>().cast::<AtomicU64>();
        // SAFETY: the mapping is `BYTES` long and page-aligned, and all writers store aligned `u64`s.
        unsafe { std::slice::from_raw_parts(words, Self::BYTES / size_of::<u64>()) }
    }

    pub(super) fn add(&self, index: u16, clients: &[SocketAddr]) {
        self.services.fetch_or(1 << index, Ordering::Relaxed);
        for &client in clients {
            let bit = ClientKey::new(client, index).undecided_bit();
            self.words()[bit / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
        }
    }

    /// Forgets the clients of a service. Services may share bits, so the bits are cleared only when no service has clients left. An eBPF
    /// program that sees cleared bits also sees what the agent did before: the sockets are ready, or the gate is no longer
    /// `Gate::Takeover`.
    pub(super) fn forget(&self, index: u16) {
        fence(Ordering::SeqCst);
        let before = self.services.fetch_and(!(1 << index), Ordering::Relaxed);
        if before == 1 << index {
            self.clear();
        }
    }

    pub(super) fn clear(&self) {
        self.words()
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// The map `known`: the bits of the known clients, in two generations (`bpf/known.h`).
pub(super) struct KnownMap(MmapRaw);

impl KnownMap {
    /// Size of both generations together, in bytes.
    pub(super) const BYTES: usize = 2 << (KNOWN_LOG2 - 3);

    pub(super) fn new(memory: MmapRaw) -> Self {
        Self(memory)
    }

    pub(super) fn generation(&self, number: u32) -> &[AtomicU64] {
        let words = self.0.as_mut_ptr().cast::<u64>().cast::<AtomicU64>();
        // SAFETY: the mapping is `BYTES` long and page-aligned, and all writers store aligned `u64`s.
        let both = unsafe { std::slice::from_raw_parts(words, Self::BYTES / size_of::<u64>()) };
        let (first, second) = both.split_at(both.len() / 2);
        if number & 1 == 0 { first } else { second }
    }
}
