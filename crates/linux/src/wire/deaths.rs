//! Sockets that dying processes have released, as the program `death` reports them.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use super::abi::Death;

/// The ring of deaths. Its file descriptor is readable when the ring holds deaths.
pub struct Deaths {
    ring: RingBuffer<'static>,
    found: Rc<RefCell<Vec<Death>>>,
    map: MapHandle,
}

impl Deaths {
    pub(super) fn open(map: MapHandle) -> libbpf_rs::Result<Self> {
        let found = Rc::<RefCell<Vec<Death>>>::default();
        let into = Rc::clone(&found);
        let mut builder = RingBufferBuilder::new();
        builder.add(&map, move |bytes| {
            into.borrow_mut().extend(bytes.first_chunk().map(Death::read));
            0
        })?;
        let ring = builder.build()?;
        Ok(Self { ring, found, map })
    }

    /// The deaths since the last call.
    ///
    /// # Errors
    /// The error of libbpf.
    pub fn take(&self) -> libbpf_rs::Result<Vec<Death>> {
        self.ring.consume()?;
        Ok(self.found.take())
    }
}

impl AsFd for Deaths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
