//! One direction of the emulated path: receive frames, ask the link for a verdict, send frames when they are due.

use std::cmp::{Ordering as Order, Reverse};
use std::collections::BinaryHeap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use linux::packet_socket::{FRAME_MAX, OnTheWire, PacketSocket, on_the_wire};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl::set_timerslack;
use proto::Instant;
use serde::Serialize;
use sim::link::{InvalidLink, Link, LinkConfig, LinkVerdict};

use crate::clock::monotonic;

/// Maximum number of frames that are received before due frames are sent.
const BATCH: usize = 64;
/// Maximum sleep of a thread, so that it notices a request to end.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Counters of one direction. A segment that the kernel has not cut into packets yet (GSO) counts as the packets that
/// it will become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// Packets that were delivered.
    pub packets: u64,
    /// Delivered bytes, as they are on the cable.
    pub bytes: u64,
    /// Packets lost at random, as configured.
    pub lost: u64,
    /// Packets dropped because the queue before the limited rate was full.
    pub queue_full: u64,
    /// Frames dropped because the emulator was too slow. These losses are not intended.
    pub overrun: u64,
    /// Largest delay of a frame beyond its due time, in microseconds. A busy machine causes such delays.
    pub late_us_max: u64,
}

/// Length of a bin of [`QueueTrace`] and of [`LatenessTrace`].
const BIN: Duration = Duration::from_millis(10);

/// Returns the beginning of the bin that contains `now`, in nanoseconds.
fn beginning_of_bin(now: Instant) -> u64 {
    let length = BIN.as_nanos() as u64;
    now.as_nanos() / length * length
}

/// The queue of one direction over time. Empty if the link's rate is not limited, because nothing waits then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueTrace {
    /// Bins in which frames came, in order of time.
    pub bins: Vec<QueueBin>,
}

/// The queue and its traffic during one bin of 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueBin {
    /// Beginning of the bin, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Largest number of waiting frames.
    pub waiting_max: usize,
    /// Packets dropped because the queue was full.
    pub dropped: u64,
    /// Bytes that the link accepted, as they are on the cable.
    pub bytes: u64,
}

impl QueueTrace {
    /// The bin of `now`. Times never go back.
    fn bin(&mut self, now: Instant) -> &mut QueueBin {
        let at_ns = beginning_of_bin(now);
        if self.bins.last().is_none_or(|last| last.at_ns < at_ns) {
            self.bins.push(QueueBin {
                at_ns,
                ..QueueBin::default()
            });
        }
        self.bins.last_mut().expect("a bin was pushed")
    }

    /// The bins that begin between two times.
    pub fn between(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = &QueueBin> {
        let within = move |bin: &&QueueBin| (from_ns..to_ns).contains(&bin.at_ns);
        self.bins.iter().filter(within)
    }
}

/// When frames were sent later than they were due. A busy machine causes that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatenessTrace {
    /// For each bin in which a frame was due that was late by at least [`LATE`]: its beginning in nanoseconds of `CLOCK_MONOTONIC`, and the
    /// largest delay of such a frame, in microseconds. In order of time.
    bins: Vec<(u64, u64)>,
}

/// Smallest delay that [`LatenessTrace`] notes.
const LATE: Duration = Duration::from_micros(100);

impl LatenessTrace {
    /// Notes a frame that was sent later than it was due.
    fn note(&mut self, due: Instant, late: Duration) {
        if late < LATE {
            return;
        }
        let (at_ns, late_us) = (beginning_of_bin(due), late.as_micros() as u64);
        match self.bins.last_mut() {
            Some((last_ns, late_us_max)) if *last_ns == at_ns => *late_us_max = late_us.max(*late_us_max),
            _ => self.bins.push((at_ns, late_us)),
        }
    }

    /// The largest delay of a frame that was due in a bin that begins between two times.
    pub fn max_between(&self, from_ns: u64, to_ns: u64) -> Duration {
        let within = self
            .bins
            .iter()
            .filter(|(at_ns, _)| (from_ns..to_ns).contains(at_ns));
        Duration::from_micros(within.map(|(_, late_us)| *late_us).max().unwrap_or(0))
    }
}

/// Everything that one direction has carried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Carried {
    /// Counters of the whole time.
    pub passed: Passed,
    /// Delays that were not configured, over time.
    pub lateness: LatenessTrace,
    /// The queue over time.
    pub queue: QueueTrace,
}

/// One direction.
pub struct WanDirection {
    link: Link,
    from: Arc<PacketSocket>,
    to: Arc<PacketSocket>,
    flight: BinaryHeap<Reverse<Flight>>,
    taken: u64,
    /// Receive buffer. Frames are copied from here, so that a queued frame takes no more memory than its length.
    arrival: Vec<u8>,
    spare: Vec<Vec<u8>>,
    has_queue: bool,
    /// When the last frame came.
    came: Instant,
    carried: Carried,
}

/// A frame on its way, ordered by its arrival time.
struct Flight {
    at: Instant,
    /// Sequence number, so that frames with equal arrival times keep their order.
    number: u64,
    frame: Vec<u8>,
}

impl WanDirection {
    /// Carries frames from one socket to the other over a link with this configuration. Losses are drawn from `seed`.
    ///
    /// # Errors
    /// If `config` is invalid.
    pub fn new(
        config: LinkConfig,
        seed: u64,
        from: Arc<PacketSocket>,
        to: Arc<PacketSocket>,
    ) -> Result<Self, InvalidLink> {
        Ok(Self {
            has_queue: config.rate_bits_per_s.is_some(),
            came: Instant::ZERO,
            link: Link::new(config, seed)?,
            from,
            to,
            flight: BinaryHeap::new(),
            taken: 0,
            arrival: vec![0; FRAME_MAX],
            spare: Vec::new(),
            carried: Carried::default(),
        })
    }

    /// Carries frames until `stop`.
    ///
    /// # Errors
    /// If a socket fails. An interface that is down is no error.
    pub fn carry(mut self, stop: &AtomicBool) -> Result<Carried> {
        // The default timer slack of 50 µs would be added to every delay.
        set_timerslack(1).context("PR_SET_TIMERSLACK")?;
        // A real cable does not wait for a CPU.
        linux::process::take_precedence().context("raise the emulator's priority")?;
        while !stop.load(Ordering::Relaxed) {
            self.send_due()?;
            if !self.take_in()? {
                self.sleep()?;
            }
        }
        self.carried.passed.overrun += u64::from(self.from.drops().context("count drops")?);
        Ok(self.carried)
    }

    fn send_due(&mut self) -> Result<()> {
        let now = monotonic();
        while let Some(Reverse(next)) = self.flight.peek()
            && next.at <= now
        {
            let Some(Reverse(Flight { at, frame, .. })) = self.flight.pop() else {
                break;
            };
            let sent = monotonic(); // sending the earlier frames took time
            let late = sent.since(at);
            self.carried.lateness.note(at, late);
            let passed = &mut self.carried.passed;
            passed.late_us_max = passed.late_us_max.max(late.as_micros() as u64);
            let wire = on_the_wire(&frame);
            match unless_down(self.to.send(&frame).map(Some), None).context("send")? {
                Some(true) => {
                    passed.packets += wire.packets as u64;
                    passed.bytes += wire.bytes as u64;
                }
                Some(false) => passed.overrun += 1,
                None => {} // the cable is pulled, and the frame is lost
            }
            self.spare.push(frame);
        }
        Ok(())
    }

    /// Receives up to [`BATCH`] frames. Returns false if there was none.
    fn take_in(&mut self) -> Result<bool> {
        for count in 0..BATCH {
            let arrived = unless_down(self.from.receive_with_age(&mut self.arrival), None);
            let Some((length, age)) = arrived.context("receive")? else {
                return Ok(count > 0);
            };
            // A busy machine delays this thread, so subtract the time since the kernel received the frame. `max` keeps the times in order,
            // although different CPUs read the clock.
            self.came = self.came.max(monotonic() - age);
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.clear();
            frame.extend_from_slice(&self.arrival[..length]);
            self.decide(frame);
        }
        Ok(true)
    }

    fn decide(&mut self, frame: Vec<u8>) {
        let (now, wire) = (self.came, on_the_wire(&frame));
        let verdict = self.link.offer(now, wire.bytes);
        if self.has_queue {
            self.note(now, verdict, wire);
        }
        match verdict {
            LinkVerdict::Deliver { at, copy_at } => {
                if let Some(copy_at) = copy_at {
                    self.launch(copy_at, frame.clone());
                }
                self.launch(at, frame);
                return;
            }
            LinkVerdict::Lost => self.carried.passed.lost += wire.packets as u64,
            LinkVerdict::QueueFull => self.carried.passed.queue_full += wire.packets as u64,
            LinkVerdict::Down => {}
        }
        self.spare.push(frame);
    }

    /// Notes the state of the queue after a frame got `verdict`.
    fn note(&mut self, now: Instant, verdict: LinkVerdict, wire: OnTheWire) {
        let (waiting, _) = self.link.waiting(now);
        let bin = self.carried.queue.bin(now);
        bin.waiting_max = bin.waiting_max.max(waiting);
        match verdict {
            LinkVerdict::QueueFull => bin.dropped += wire.packets as u64,
            LinkVerdict::Deliver { .. } | LinkVerdict::Lost => bin.bytes += wire.bytes as u64,
            LinkVerdict::Down => {}
        }
    }

    fn launch(&mut self, at: Instant, frame: Vec<u8>) {
        let number = self.taken;
        self.taken += 1;
        self.flight.push(Reverse(Flight { at, number, frame }));
    }

    /// Sleeps until a frame arrives or is due.
    fn sleep(&self) -> Result<()> {
        let due = self.flight.peek().map(|Reverse(next)| next.at.since(monotonic()));
        let limit = due.map_or(SLEEP_MAX, |due| due.min(SLEEP_MAX));
        let mut events = [PollFd::new(self.from.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut events, Some(limit.into()), None) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(errno) => Err(errno).context("poll"),
        }
    }
}

/// Turns the error ENETDOWN into `nothing`: an interface that is down passes no frames, but that is no failure of the emulator.
fn unless_down<T>(result: std::io::Result<T>, nothing: T) -> std::io::Result<T> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NetworkDown => Ok(nothing),
        result => result,
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> Order {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for Flight {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_traced_in_bins() {
        let mut trace = QueueTrace::default();
        for (ms, waiting) in [(10, 1), (12, 5), (19, 2), (40, 3)] {
            let bin = trace.bin(Instant::from_nanos(ms * 1_000_000));
            bin.waiting_max = bin.waiting_max.max(waiting);
        }
        let seen: Vec<_> = trace
            .bins
            .iter()
            .map(|bin| (bin.at_ns, bin.waiting_max))
            .collect();
        assert_eq!(seen, [(10_000_000, 5), (40_000_000, 3)]);
        assert_eq!(trace.between(20_000_000, 50_000_000).count(), 1);
    }

    #[test]
    fn late_frames_are_traced_in_bins() {
        const MS: u64 = 1_000_000;
        let mut trace = LatenessTrace::default();
        for (at_ms, late_us) in [(10, 900), (15, 2_000), (19, 1_500), (40, 99), (50, 700)] {
            trace.note(Instant::from_nanos(at_ms * MS), Duration::from_micros(late_us));
        }
        assert_eq!(trace.bins, [(10 * MS, 2_000), (50 * MS, 700)]);
        let max_us = |from: u64, to: u64| trace.max_between(from * MS, to * MS).as_micros();
        assert_eq!([max_us(0, 60), max_us(11, 60), max_us(0, 10)], [2_000, 700, 0]);
    }

    #[test]
    fn frames_arrive_by_time_and_then_in_order() {
        let flight = |ms: u64, number| {
            Reverse(Flight {
                at: Instant::from_nanos(ms * 1_000_000),
                number,
                frame: Vec::new(),
            })
        };
        let mut heap = BinaryHeap::from([flight(2, 0), flight(1, 3), flight(1, 1), flight(1, 2)]);
        let order: Vec<_> = std::iter::from_fn(|| heap.pop().map(|Reverse(next)| next.number)).collect();
        assert_eq!(order, [1, 2, 3, 0]);
    }
}
