//! The clients that the wire knows. All other clients are strangers (`bpf/known.h`).
//!
//! The eBPF programs note known clients as bits, in the younger of two generations. From time to time the agent forgets the older
//! generation and begins a new one. So a client to which the primary sends nothing any more becomes a stranger, unless the agent knows a
//! connection of this client.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Wire;
use super::abi::{ClientKey, NodeState};

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
