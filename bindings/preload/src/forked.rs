//! Children of a recorded server. A child that `fork` or `vfork` makes while the server has connections of the service has a stream of its own
//! (`children`). The calls of other children are not recorded, so such a child that uses a connection of the service ends the recording. If
//! it only inherits the connections, it changes nothing.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::system;

/// Longest wait in milliseconds of a server that has forked, until it looks whether a child has used a connection.
pub const LOOK: c_int = 100;

/// In memory that a server shares with its children: whether a child has used a connection.
static USED: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());
/// In memory that the kernel wipes for each child, also for one that the C library does not know of: whether this process is the recorded
/// server.
static IS_SERVER: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());
/// Whether this process is a child of the recorded server that the C library knows of.
static IS_KNOWN_CHILD: AtomicBool = AtomicBool::new(false);
/// Whether this process has had a child that the C library knows of.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// Prepares the memory. Without it, children are not noticed.
pub fn prepare() {
    // The kernel's pages are zero, which is `false`.
    if let Some(memory) = system::share_memory(size_of::<AtomicBool>()) {
        USED.store(memory.cast(), Ordering::Relaxed);
    }
    if let Some(memory) = system::wiped_memory(size_of::<AtomicBool>()) {
        IS_SERVER.store(memory.cast(), Ordering::Relaxed);
        if let Some(flag) = flag(&IS_SERVER) {
            flag.store(true, Ordering::Relaxed);
        }
    }
}

/// The process has forked.
pub extern "C" fn in_parent() {
    HAS_FORKED.store(true, Ordering::Relaxed);
}

/// Says that this process is a child.
pub fn enter_child() {
    IS_KNOWN_CHILD.store(true, Ordering::Relaxed);
}

/// Says that this child has a stream of its own, as a server has.
pub fn enter_stream() {
    IS_KNOWN_CHILD.store(false, Ordering::Relaxed);
    HAS_FORKED.store(false, Ordering::Relaxed);
    if let Some(flag) = flag(&IS_SERVER) {
        flag.store(true, Ordering::Relaxed);
    }
}

/// Whether this process is a child of the recorded server.
pub fn is_child() -> bool {
    let is_wiped = || flag(&IS_SERVER).is_some_and(|flag| !flag.load(Ordering::Relaxed));
    IS_KNOWN_CHILD.load(Ordering::Relaxed) || is_wiped()
}

/// Whether this process has had a child that the C library knows of.
pub fn has_forked() -> bool {
    HAS_FORKED.load(Ordering::Relaxed)
}

/// Whether a child has used a connection of the service.
pub fn has_used() -> bool {
    flag(&USED).is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// This child uses an ordered socket.
pub fn use_socket() {
    if let Some(flag) = flag(&USED) {
        flag.store(true, Ordering::Relaxed);
    }
}

fn flag(at: &AtomicPtr<AtomicBool>) -> Option<&'static AtomicBool> {
    // SAFETY: the memory is never unmapped, and a page is large enough and aligned for the flag.
    unsafe { at.load(Ordering::Relaxed).as_ref() }
}
