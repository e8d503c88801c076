//! The eBPF program of recorded order (`bpf/order.bpf.c`): on the backup, the kernel takes the record of the primary's server from
//! datagrams, and gives the receipts.
//!
//! Nothing is pinned: when the agent ends, the kernel detaches the program and frees its maps.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libbpf_rs::{AsRawLibbpf, Link, MapCore, MapFlags, MapHandle, Object, libbpf_sys};
use memmap2::MmapRaw;
use proto::order::DatagramSeal;

use crate::bpf::error::{WireError, WireStep};
use crate::bpf::object::{self, Aligned, find, find_map, map_memory, verified};
use crate::bpf::ring::{NextRecord, Ring};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/order.bpf.o")));
/// Name of the program.
const PROGRAM: &str = "order";
/// Size of `struct order_state` of `bpf/order_abi.h`.
const STATE_BYTES: usize = 24;
/// Offset of `bytes` in `struct order_taken` of `bpf/order_abi.h`.
const TAKEN_HEAD: usize = 24;

/// The loaded program with its maps.
pub struct OrderProgram {
    object: Object,
    /// Keeps the program attached.
    attached: Option<Link>,
    state: MmapRaw,
    ring: Ring,
}

/// A piece of the record, which the kernel has taken from a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenPiece<'a> {
    /// The link over which it has come.
    pub cookie: u64,
    /// Position of its first byte.
    pub from: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl OrderProgram {
    /// Loads the program for datagrams to this UDP port. It is not attached yet.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn load(port: u16) -> Result<Self, WireError> {
        let object = verified(|| object::open(&OBJECT.0))?;
        let state = map_memory(&object, "order_state", STATE_BYTES)?;
        // SAFETY: the port is within the mapping, and aligned. The program is not attached yet.
        unsafe {
            state
                .as_mut_ptr()
                .add(16)
                .cast::<u16>()
                .write_volatile(port.to_be())
        };
        let ring =
            Ring::open(map(&object, "order_ring")).step(|| "mapping the ring of recorded order".into())?;
        Ok(Self {
            object,
            attached: None,
            state,
            ring,
        })
    }

    /// Attaches the program to the ingress of this interface only.
    ///
    /// # Errors
    /// The kernel's error. Kernels before Linux 6.6 cannot attach it.
    pub fn attach(&mut self, interface: u32) -> Result<(), WireError> {
        self.attached = None;
        let step = || format!("attaching `{PROGRAM}` to interface {interface}");
        let index = interface.cast_signed();
        // SAFETY: the program is loaded, and without options the function uses its defaults.
        let link = unsafe {
            let program = find(&self.object, PROGRAM).as_libbpf_object();
            libbpf_sys::bpf_program__attach_tcx(program.as_ptr(), index, std::ptr::null())
        };
        let Some(link) = NonNull::new(link) else {
            return Err(io::Error::last_os_error()).step(step);
        };
        // SAFETY: libbpf has made the link, and nothing else has it.
        self.attached = Some(unsafe { Link::from_ptr(link) });
        Ok(())
    }

    /// A descriptor that is readable when the ring has a piece.
    ///
    /// # Errors
    /// If there are too many descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.ring.as_fd().try_clone_to_owned()
    }

    /// Takes datagrams of this link from now on. The agent has the first `have` bytes of the record.
    ///
    /// # Errors
    /// The kernel's error at the map update.
    pub fn open_link(&self, seal: &DatagramSeal, have: u64) -> Result<(), WireError> {
        self.set_have(have);
        let [low, high] = seal.key();
        let link = [low, high, 0].map(u64::to_ne_bytes).concat();
        map(&self.object, "order_links")
            .update(&seal.cookie().to_le_bytes(), &link, MapFlags::ANY)
            .step(|| "adding a link for recorded order".into())
    }

    /// Takes no more datagrams of this link. A datagram that another CPU works on meanwhile may still be taken.
    pub fn close_link(&self, cookie: u64) {
        let _ = map(&self.object, "order_links").delete(&cookie.to_le_bytes()); // fails only if it is not there
    }

    /// The agent has the first `have` bytes of the record.
    pub fn set_have(&self, have: u64) {
        self.word(0).store(have, Ordering::Release);
    }

    /// Number of datagrams that were dropped without a receipt.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.word(1).load(Ordering::Relaxed)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the first two words are in the mapping, aligned, and used atomically by both sides.
        unsafe { &*self.state.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Hands over all pieces that were taken before this call, in the order in which they were taken.
    pub fn drain(&self, mut each: impl FnMut(TakenPiece<'_>)) {
        // The end is read after all that the caller has done: if it has closed a gate, each piece whose receipt came before that is here.
        fence(Ordering::SeqCst);
        let end = self.ring.end();
        let mut position = self.ring.handled();
        while let NextRecord::Record(place) = self.ring.look(&mut position, end, true) {
            let (head, bytes) = self.ring.data(place.at, place.len as usize).split_at(TAKEN_HEAD);
            let word = |at: usize| head[at..at + 8].try_into().expect("8 bytes");
            each(TakenPiece {
                cookie: u64::from_le_bytes(word(0)),
                from: u64::from_ne_bytes(word(8)),
                bytes: &bytes[..u64::from_ne_bytes(word(16)) as usize],
            });
            position = place.next;
        }
        self.ring.consumer().store(position, Ordering::SeqCst);
    }
}

fn map(object: &Object, name: &str) -> MapHandle {
    find_map(object, name).expect("the object was compiled with this map")
}
