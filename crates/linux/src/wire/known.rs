//! Which clients the wire takes for the primary's own, and not for strangers (`bpf/known.h`).
//!
//! The programs note them, in the younger of two generations of bits. The agent ends the older one now and then; so a client that
//! nobody talks to any more becomes a stranger, unless the agent knows of its connection.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::MmapRaw;

use super::Wire;
use super::abi::{ClientKey, KNOWN_LOG2, NodeState};

/// The map `known`.
pub(super) struct Known(MmapRaw);

impl Known {
    /// Of both generations.
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
    /// Ends the older generation of known clients and begins a new one with `clients`, those of open connections, each with its service's
    /// index. Clients that the programs noted in the previous generation stay known.
    pub fn renew_known(&self, clients: impl Iterator<Item = (u16, SocketAddr)>) {
        // SAFETY: within the mapping, aligned; the programs read it as one word.
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
