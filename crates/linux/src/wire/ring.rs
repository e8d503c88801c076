//! Reading a pinned eBPF ring buffer by polling.
//!
//! The layout is the kernel's (`kernel/bpf/ringbuf.c`): a consumer page that we write, a producer page and the data,
//! mapped twice in a row so that a record never wraps. The consumer position is advanced only after records were
//! handled, so a reader that dies loses nothing: its successor handles them again.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle};
use memmap2::{Mmap, MmapMut, MmapOptions};
use proto::stream::Shelf;

use super::abi::Record;

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: u64 = 8;
/// So much is read before the ring is cleared of it: many round trips of a fast network, few of the CPU's caches.
const BATCH_BYTES: u64 = 2 << 20;

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
    /// What `mmap(2)` says.
    pub fn open(map: MapHandle) -> std::io::Result<Self> {
        let page = page_size();
        let size = map.max_entries() as usize;
        // SAFETY: the pages belong to the map, which `self` keeps open; the kernel writes the producer page and the
        // data, so they are read by atomics and only below the producer position.
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

    fn consumer(&self) -> &AtomicU64 {
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

    #[allow(clippy::cast_possible_truncation)] // below the ring's size
    fn index(&self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    /// Up to where the kernel has reserved records.
    pub fn end(&self) -> u64 {
        self.producer().load(Ordering::Acquire)
    }

    /// Bytes logged and not yet handled.
    pub fn fill(&self) -> u64 {
        self.end() - self.consumer().load(Ordering::Relaxed)
    }

    /// Hands the records before `end` to `handle`, until there were `records_max` of them or more than [`BATCH_BYTES`],
    /// each with the packet's place in the ring, where it stays until [`clear`](Self::clear). Stops at one that is still
    /// being written, unless `wait` says to wait for it (a takeover does: the program that writes it will not take long).
    pub fn read(
        &self,
        end: u64,
        records_max: usize,
        wait: bool,
        mut handle: impl FnMut(&Record, &[u8], u64),
    ) -> Batch {
        let begin = self.consumer().load(Ordering::Relaxed);
        let mut batch = Batch {
            records: 0,
            end: begin,
        };
        while batch.end < end && batch.records < records_max && batch.end - begin < BATCH_BYTES {
            let header = self.header(batch.end).load(Ordering::Acquire);
            if header & BUSY != 0 {
                if wait {
                    std::hint::spin_loop();
                    continue;
                }
                break;
            }
            let len = header & !DISCARDED;
            if header & DISCARDED == 0 {
                let (record, packet) = split(self.bytes(batch.end + HEADER, len as usize));
                handle(&record, packet, batch.end + HEADER + size_of::<Record>() as u64);
                batch.records += 1;
            }
            batch.end += (u64::from(len) + HEADER + 7) & !7;
        }
        batch
    }

    /// What was read is not needed any more.
    pub fn clear(&self, batch: Batch) {
        self.consumer().store(batch.end, Ordering::SeqCst);
    }
}

/// Records that were read and lie in the ring still.
#[derive(Clone, Copy, Debug)]
#[must_use = "they stay in the ring until it is cleared of them"]
pub struct Batch {
    /// How many.
    pub records: usize,
    end: u64,
}

impl Shelf for Ring {
    fn bytes(&self, place: u64, len: usize) -> &[u8] {
        &self.producer_and_data[self.page + self.index(place)..][..len]
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// Splits a record's header from its packet (which may be followed by padding).
fn split(body: &[u8]) -> (Record, &[u8]) {
    let (head, packet) = body.split_at(size_of::<Record>());
    let record = Record {
        time_ns: u64::from_ne_bytes(head[..8].try_into().expect("8 bytes")),
        len: u32::from_ne_bytes(head[8..12].try_into().expect("4 bytes")),
        service: u16::from_ne_bytes(head[12..14].try_into().expect("2 bytes")),
        direction: head[14],
        flags: head[15],
    };
    let len = record.len as usize;
    (record, &packet[..len])
}

fn page_size() -> usize {
    // SAFETY: no memory is involved.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("a page has a size")
}
