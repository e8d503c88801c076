//! The thread that empties the kernel's ring of datagrams, and the links whose datagrams the kernel takes.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proto::order::DatagramSeal;

use super::datagrams::KernelArrivals;
use super::state::OrderedService;

/// Time for which pieces of the record wait in the ring. The backup's server gets them together, because it costs the machine more to wake it for
/// each of them.
const BATCH: Duration = Duration::from_millis(4);

/// Loads the program, unless that was tried before. Starts the thread that empties its ring.
pub(super) fn prepare(service: &Arc<OrderedService>) {
    if std::mem::replace(&mut service.state().has_tried_datagrams, true) {
        return;
    }
    let prepared = KernelArrivals::load(service.peer.port()).and_then(|kernel| {
        let ring = kernel.descriptor()?;
        let of_thread = Arc::clone(service);
        std::thread::Builder::new()
            .name("order-ring".into())
            .spawn(move || empty_ring(&of_thread, &ring))?;
        Ok(kernel)
    });
    match prepared {
        Ok(kernel) => service.state().kernel = Some(kernel),
        Err(error) => {
            tracing::info!(%error, "the kernel takes no records; the primary's clients wait for this agent's receipts")
        }
    }
}

/// Empties the ring whenever it has pieces, a batch at a time.
fn empty_ring(service: &OrderedService, ring: &OwnedFd) {
    loop {
        let mut polled = [PollFd::new(ring.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return tracing::warn!(%error, "cannot wait for the kernel's records"),
        }
        std::thread::sleep(BATCH);
        if service.state().take_from_kernel() {
            service.notify();
        }
    }
}

/// Takes datagrams of the link that has come up at this address. Returns the link's cookie. `None`: the link goes without.
pub(super) fn begin_link(
    service: &OrderedService,
    own: SocketAddr,
    secret: impl FnOnce(&[u8]) -> [u8; 16],
) -> Option<u64> {
    let mut state = service.state();
    state.inbound.as_ref()?; // the link may have ended meanwhile
    state.take_from_kernel();
    let have = state.arrivals.streams().server_len();
    let kernel = state.kernel.as_mut()?;
    let cookie = linux::process::random_seed() as u64;
    let seal = DatagramSeal::new(cookie, secret(&cookie.to_le_bytes()));
    match kernel.open_link(&seal, own.ip().to_canonical(), have) {
        Ok(()) => Some(cookie),
        Err(error) => {
            tracing::info!(%error, vip = %service.vip, "the kernel takes no record from this link");
            None
        }
    }
}
