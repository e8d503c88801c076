//! Reading a pinned eBPF ring buffer by polling.
//!
//! The kernel defines the layout (`kernel/bpf/ringbuf.c`): a consumer page that we write, a producer page, and the data pages. The data
//! pages are mapped twice in a row so that a record never wraps. The consumer position is advanced only after records were handled. So no
//! record is lost if the reader dies: the next reader reads the unhandled records again.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle};
use memmap2::{Mmap, MmapMut, MmapOptions};

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: u64 = 8;

/// One ring, mapped.
pub struct Ring {
    map: MapHandle,
    consumer: MmapMut,
    producer_and_data: Mmap,
    page: usize,
    mask: u64,
}

impl Ring {
    /// Maps the ring.
    ///
    /// # Errors
    /// An error of `mmap(2)`.
    pub fn open(map: MapHandle) -> std::io::Result<Self> {
        let page = page_size();
        let size = map.max_entries() as usize;
        // SAFETY: the pages belong to the map, which `self` keeps open. The kernel writes the producer page and the data. So the producer
        // position and the records' headers are read by atomics, and data is read only below the producer position.
        let consumer = unsafe { MmapOptions::new().len(page).map_mut(map.as_fd().as_raw_fd())? };
        // SAFETY: as above.
        let producer_and_data = unsafe {
            MmapOptions::new()
                .offset(page as u64)
                .len(page + 2 * size)
                .map(map.as_fd().as_raw_fd())?
        };
        Ok(Self {
            map,
            consumer,
            producer_and_data,
            page,
            mask: size as u64 - 1,
        })
    }

    pub(crate) fn consumer(&self) -> &AtomicU64 {
        // SAFETY: the page is aligned, mapped for as long as `self`, and used atomically by both sides.
        unsafe { &*self.consumer.as_ptr().cast() }
    }

    fn producer(&self) -> &AtomicU64 {
        // SAFETY: as in `consumer`.
        unsafe { &*self.producer_and_data.as_ptr().cast() }
    }

    fn header(&self, position: u64) -> &AtomicU32 {
        // SAFETY: `position & mask` lies within the data pages and is a multiple of 8.
        unsafe {
            &*self
                .producer_and_data
                .as_ptr()
                .add(self.page + self.index(position))
                .cast()
        }
    }

    // The index of `position` in the data pages, less than the ring's size.
    fn index(&self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    /// The position up to which the kernel has reserved records.
    pub(crate) fn end(&self) -> u64 {
        self.producer().load(Ordering::Acquire)
    }

    /// The position up to which the records were handled.
    pub(crate) fn handled(&self) -> u64 {
        self.consumer().load(Ordering::Relaxed)
    }

    /// Bytes logged and not yet handled.
    pub(crate) fn fill(&self) -> u64 {
        self.end() - self.handled()
    }

    /// Moves `position` past discarded records, and returns the first other record. If that record is still being written, waits for it if
    /// `wait` is set, and otherwise returns [`NextRecord::Busy`].
    pub(crate) fn look(&self, position: &mut u64, end: u64, wait: bool) -> NextRecord {
        while *position < end {
            let header = self.header(*position).load(Ordering::Acquire);
            let len = header & !(BUSY | DISCARDED);
            let next = *position + ((u64::from(len) + HEADER + 7) & !7);
            if header & BUSY != 0 {
                if !wait {
                    return NextRecord::Busy;
                }
                std::hint::spin_loop();
            } else if header & DISCARDED != 0 {
                *position = next;
            } else {
                let at = *position + HEADER;
                return NextRecord::Record(RecordLocation { at, len, next });
            }
        }
        NextRecord::End
    }

    /// Size of the ring in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.mask + 1
    }

    pub(crate) fn data(&self, position: u64, len: usize) -> &[u8] {
        &self.producer_and_data[self.page + self.index(position)..][..len]
    }
}

/// Position and length of a record in its ring, and position of the next record's header.
#[derive(Clone, Copy)]
pub(crate) struct RecordLocation {
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) next: u64,
}

/// Result of [`Ring::look`].
pub(crate) enum NextRecord {
    Record(RecordLocation),
    Busy,
    End,
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

fn page_size() -> usize {
    // SAFETY: no memory is involved.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("a page has a size")
}
