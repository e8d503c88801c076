//! Merges several captures into one stream of the service's segments, in order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use anyhow::{Context, bail};

use super::packet::CapturedSegment;
use super::pcap::PcapReader;
use super::verdict::Evidence;
use crate::capture::{Capture, Point};

/// All captures of a run.
pub struct Merge {
    sources: Vec<CaptureSource>,
}

/// One capture. Its packets may be out of order, because two processors may have written them.
struct CaptureSource {
    reader: PcapReader,
    service: SocketAddr,
    evidence: Evidence,
    upcoming: BinaryHeap<Reverse<Upcoming>>,
    newest_ns: u64,
    ended: bool,
}

struct Upcoming {
    at_ns: u64,
    number: u64,
    packet: CapturedSegment,
}

/// Longest time in nanoseconds by which packets in a file are out of order. Longer than a packet waits between timestamping and
/// writing.
const DISORDER_NS: u64 = 20_000_000;

impl Merge {
    /// Opens `captures`, to read the segments from and to `service`.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn open(captures: &[Capture], service: SocketAddr) -> anyhow::Result<Self> {
        let open = |capture: &Capture| {
            Ok(CaptureSource {
                reader: PcapReader::open(&capture.path)?,
                service,
                evidence: Evidence {
                    point: capture.point,
                    frames: 0,
                    frames_captured: capture.packets,
                    segments: 0,
                    unreadable: 0,
                    dropped: capture.dropped,
                },
                upcoming: BinaryHeap::new(),
                newest_ns: 0,
                ended: false,
            })
        };
        let mut sources: Vec<_> = captures.iter().map(open).collect::<anyhow::Result<_>>()?;
        // At equal times, nodes come before the router, and the router before the client.
        sources.sort_by_key(|source| match source.evidence.point {
            Point::NodeA | Point::NodeB | Point::Server => 0,
            Point::Router => 1,
            Point::Client => 2,
        });
        Ok(Self { sources })
    }

    /// The next segment, and where it was seen.
    ///
    /// # Errors
    /// A file is cut off or garbled, or the wall clock was set back while the file was written.
    pub fn next_packet(&mut self) -> anyhow::Result<Option<(Point, CapturedSegment)>> {
        for source in &mut self.sources {
            source.read_ahead()?;
        }
        let next = self
            .sources
            .iter_mut()
            .filter(|source| !source.upcoming.is_empty())
            .min_by_key(|source| source.upcoming.peek().map(|Reverse(upcoming)| upcoming.at_ns));
        Ok(next.and_then(|source| {
            let Reverse(upcoming) = source.upcoming.pop()?;
            Some((source.evidence.point, upcoming.packet))
        }))
    }

    /// The evidence of each capture, as far as it was read.
    pub fn evidence(&self) -> Vec<Evidence> {
        self.sources.iter().map(|source| source.evidence).collect()
    }
}

impl CaptureSource {
    /// Reads ahead until no unread record can have an earlier time than the next packet.
    fn read_ahead(&mut self) -> anyhow::Result<()> {
        let settled = |source: &Self| {
            let next = source.upcoming.peek();
            next.is_some_and(|Reverse(next)| next.at_ns + DISORDER_NS < source.newest_ns)
        };
        while !self.ended && !settled(self) {
            let Some(record) = self.reader.next_record()? else {
                self.ended = true;
                break;
            };
            if record.at_ns + DISORDER_NS < self.newest_ns {
                let back_ms = (self.newest_ns - record.at_ns) / 1_000_000;
                let number = self.evidence.frames;
                bail!(
                    "{}: at packet {number} time goes back by {back_ms} ms; was the clock set?",
                    self.reader.path().display()
                );
            }
            self.newest_ns = self.newest_ns.max(record.at_ns);
            let number = self.evidence.frames;
            self.evidence.frames += 1;
            match CapturedSegment::read(&record) {
                Ok(Some(packet)) if [packet.source, packet.destination].contains(&self.service) => {
                    self.evidence.segments += 1;
                    self.upcoming.push(Reverse(Upcoming {
                        at_ns: packet.at_ns,
                        number,
                        packet,
                    }));
                }
                Ok(_) => {}
                Err(_) => self.evidence.unreadable += 1,
            }
        }
        Ok(())
    }
}

impl Ord for Upcoming {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

impl PartialOrd for Upcoming {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Upcoming {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Upcoming {}

/// Calls `take` with every segment of `service` in one capture, in order of time. The segments are used for drawing.
///
/// # Errors
/// As [`Merge::next_packet`].
pub fn for_each_segment(
    capture: &Capture,
    service: SocketAddr,
    mut take: impl FnMut(&CapturedSegment),
) -> anyhow::Result<()> {
    let mut merge = Merge::open(std::slice::from_ref(capture), service)
        .with_context(|| format!("the capture at {}", capture.point.name()))?;
    while let Some((_, packet)) = merge.next_packet()? {
        take(&packet);
    }
    Ok(())
}
