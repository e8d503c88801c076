//! The clients that the wire knows. All other clients are strangers (`bpf/known.h`).
//!
//! The eBPF programs note known clients as bits, in the younger of two generations. From time to time the agent forgets the older
//! generation and begins a new one. So a client to which the primary sends nothing any more becomes a stranger, unless the agent knows a
//! connection of this client.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::MmapRaw;

use super::Wire;
use super::abi::{ClientKey, KNOWN_LOG2, NodeState};

/// The map `known`.
pub(super) struct KnownMap(MmapRaw);

impl KnownMap {
    /// Size of both generations together.
    pub(super) const BYTES: usize = 2 << (KNOWN_LOG2 - 3);

    pub(super) fn new(memory: MmapRaw) -> Self {
        Self(memory)
    }

    fn generation(&self, number: u32) -> &[AtomicU64] {
        let words = self.0.as_mut_ptr().cast::<u64>().cast::<AtomicU64>();
        // SAFETY: the mapping is `BYTES` long and page-aligned, and all writers store aligned `u64`s.
        let both = unsafe { std::slice::from_raw_parts(words, Self::BYTES / size_of::<u64>()) };
        let (first, second) = both.split_at(both.len() / 2);
        if number & 1 == 0 { first } else { second }
    }
}

impl Wire {
    /// Forgets the older generation of known clients and begins a new one with `clients`. These are the clients of open connections, each
    /// with its service's index. The generation that was the younger one until now stays.
    pub fn renew_known(&self, clients: impl Iterator<Item = (u16, SocketAddr)>) {
        // SAFETY: the field is inside the mapping and aligned, and the eBPF programs read it as one word.
        let word = unsafe {
            AtomicU32::from_ptr(&raw mut (*self.node.as_mut_ptr().cast::<NodeState>()).known_generation)
        };
        let next = word.load(Ordering::Relaxed).wrapping_add(1);
        let bits = self.known.generation(next);
        bits.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for (service, client) in clients {
            let bit = ClientKey::new(client, service).known_bit();
            bits[bit / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
        }
        word.store(next, Ordering::Release);
    }
}
