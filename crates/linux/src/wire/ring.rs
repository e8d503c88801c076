//! Reading a pinned eBPF ring buffer by polling.
//!
//! The layout is the kernel's (`kernel/bpf/ringbuf.c`): a consumer page that we write, a producer page and the data,
//! mapped twice in a row so that a record never wraps. The consumer position is advanced only after records were
//! handled, so a reader that dies loses nothing: its successor handles them again.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle};
use memmap2::{Mmap, MmapMut, MmapOptions};
use proto::stream::{OnShelf, Shelf};

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

    /// Up to where the records were handled.
    fn handled(&self) -> u64 {
        self.consumer().load(Ordering::Relaxed)
    }

    /// Bytes logged and not yet handled.
    pub fn fill(&self) -> u64 {
        self.end() - self.handled()
    }

    /// Hands the records before `end` to `reader`, at most `records_max` of them, and clears the ring of them batch by batch.
    /// Stops at one that is still being written, unless `wait` says to wait for it (a takeover does: the program that
    /// writes it will not take long). Returns how many were handled.
    pub fn drain(&self, end: u64, records_max: usize, wait: bool, reader: &mut impl Reader) -> usize {
        let mut handled = 0;
        loop {
            let batch = self.read(end, records_max - handled, wait, reader);
            reader.keep(self);
            self.consumer().store(batch.end, Ordering::SeqCst);
            handled += batch.records;
            if batch.records == 0 || handled == records_max {
                return handled;
            }
        }
    }

    fn read(&self, end: u64, records_max: usize, wait: bool, reader: &mut impl Reader) -> Batch {
        let begin = self.handled();
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
                let place = batch.end + HEADER + size_of::<Record>() as u64;
                reader.record(&record, packet, OnShelf { shelf: self, place });
                batch.records += 1;
            }
            batch.end += (u64::from(len) + HEADER + 7) & !7;
        }
        batch
    }
}

/// Who reads a ring.
pub trait Reader {
    /// A record, with the packet and its place: there it stays until after [`keep`](Self::keep).
    fn record(&mut self, record: &Record, packet: &[u8], source: OnShelf<'_>);

    /// The ring is about to be cleared of the records so far.
    fn keep(&mut self, shelf: &dyn Shelf);
}

/// One that needs nothing of a record afterwards.
impl<F: FnMut(&Record, &[u8])> Reader for F {
    fn record(&mut self, record: &Record, packet: &[u8], _: OnShelf<'_>) {
        self(record, packet);
    }

    fn keep(&mut self, _: &dyn Shelf) {}
}

/// Records that were read and lie in the ring still.
struct Batch {
    records: usize,
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

/// The ring of connections and that of SYNs, read in the order in which they depend on each other.
pub struct Rings {
    /// Segments of connections.
    pub connections: Ring,
    /// SYNs and SYN-ACKs.
    pub opening: Ring,
    /// The ends that are being read up to, while they are not reached.
    under_way: Option<Ends>,
}

#[derive(Clone, Copy)]
struct Ends {
    connections: u64,
    opening: u64,
}

impl Rings {
    pub(super) fn new(connections: Ring, opening: Ring) -> Self {
        Self {
            connections,
            opening,
            under_way: None,
        }
    }

    /// Hands what was logged up to now to `reader`, SYNs first: a connection's first segment was logged after its SYN, so
    /// by the time the end of the ring of connections has been read, its SYN is in the other ring. Of each ring at most
    /// `records_max`; the next call goes on to the same ends before it looks for new ones, so that a flood of SYNs keeps
    /// nobody from reading the connections. With `wait` the ends are always those of now, and records that are still being
    /// written are waited for. Returns how many were handled.
    pub fn drain(&mut self, records_max: usize, wait: bool, reader: &mut impl Reader) -> usize {
        let ends = self.under_way.filter(|_| !wait).unwrap_or_else(|| {
            let connections = self.connections.end();
            let opening = self.opening.end();
            Ends { connections, opening }
        });
        self.under_way = Some(ends);
        let mut handled = self.opening.drain(ends.opening, records_max, wait, reader);
        if self.opening.handled() < ends.opening {
            return handled; // the rest of them first
        }
        handled += self
            .connections
            .drain(ends.connections, records_max, wait, reader);
        if self.connections.handled() >= ends.connections {
            self.under_way = None;
        }
        handled
    }

    /// Bytes logged and not yet handled.
    pub fn fill(&self) -> u64 {
        self.connections.fill() + self.opening.fill()
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
