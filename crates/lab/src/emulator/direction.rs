//! One direction of the emulated way: frames in, the link's verdict, frames out when their time has come.

use std::cmp::{Ordering as Order, Reverse};
use std::collections::BinaryHeap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use linux::packet_socket::{FRAME_MAX, PacketSocket, on_the_wire};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl::set_timerslack;
use proto::Instant;
use serde::Serialize;
use sim::link::{Link, Verdict};

use crate::clock::monotonic;

/// Frames taken in before looking whether others are due.
const BATCH: usize = 64;
/// How long a thread sleeps at most, so that it notices that it shall end.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// What one direction did with the packets it got; a segment that is not cut yet counts as its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// Sent on.
    pub packets: u64,
    /// Sent on, in bytes on the cable.
    pub bytes: u64,
    /// Lost by chance, as asked for.
    pub lost: u64,
    /// Dropped because the queue before the limited rate was full.
    pub queue_full: u64,
    /// Frames that the emulator itself could not keep up with: not asked for.
    pub overrun: u64,
    /// By how much the latest frame came too late, in microseconds: the machine was busy with something else.
    pub late_us_max: u64,
}

/// One direction.
pub struct Direction {
    link: Link,
    from: Arc<PacketSocket>,
    to: Arc<PacketSocket>,
    flight: BinaryHeap<Reverse<Flight>>,
    taken: u64,
    /// Where a frame is received, so that each is kept in no more memory than it needs.
    arrival: Vec<u8>,
    spare: Vec<Vec<u8>>,
    passed: Passed,
}

/// A frame on its way, ordered by when it arrives.
struct Flight {
    at: Instant,
    /// Frames that arrive at the same time keep their order.
    number: u64,
    frame: Vec<u8>,
}

impl Direction {
    /// From one socket to the other, as `link` decides.
    pub fn new(link: Link, from: Arc<PacketSocket>, to: Arc<PacketSocket>) -> Self {
        Self {
            link,
            from,
            to,
            flight: BinaryHeap::new(),
            taken: 0,
            arrival: vec![0; FRAME_MAX],
            spare: Vec::new(),
            passed: Passed::default(),
        }
    }

    /// Carries frames until `stop`.
    ///
    /// # Errors
    /// What a socket says, other than that an interface is down.
    pub fn carry(mut self, stop: &AtomicBool) -> Result<Passed> {
        // The default, 50 µs, would be added to every delay.
        set_timerslack(1).context("PR_SET_TIMERSLACK")?;
        // A cable does not wait for a CPU.
        linux::process::take_precedence().context("raise the emulator's priority")?;
        while !stop.load(Ordering::Relaxed) {
            self.send_due()?;
            if !self.take_in()? {
                self.sleep()?;
            }
        }
        self.passed.overrun += u64::from(self.from.drops().context("count drops")?);
        Ok(self.passed)
    }

    fn send_due(&mut self) -> Result<()> {
        let now = monotonic();
        while let Some(Reverse(next)) = self.flight.peek()
            && next.at <= now
        {
            let Some(Reverse(Flight { at, frame, .. })) = self.flight.pop() else {
                break;
            };
            let late = now.since(at).as_micros() as u64;
            self.passed.late_us_max = self.passed.late_us_max.max(late);
            let wire = on_the_wire(&frame);
            if unless_down(self.to.send(&frame), true).context("send")? {
                self.passed.packets += wire.packets as u64;
                self.passed.bytes += wire.bytes as u64;
            } else {
                self.passed.overrun += 1;
            }
            self.spare.push(frame);
        }
        Ok(())
    }

    /// False if there was nothing to take.
    fn take_in(&mut self) -> Result<bool> {
        for count in 0..BATCH {
            let arrived = unless_down(self.from.receive(&mut self.arrival), None);
            let Some(length) = arrived.context("receive")? else {
                return Ok(count > 0);
            };
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.clear();
            frame.extend_from_slice(&self.arrival[..length]);
            self.decide(frame);
        }
        Ok(true)
    }

    fn decide(&mut self, frame: Vec<u8>) {
        let wire = on_the_wire(&frame);
        match self.link.offer(monotonic(), wire.bytes) {
            Verdict::Deliver { at, copy_at } => {
                if let Some(copy_at) = copy_at {
                    self.launch(copy_at, frame.clone());
                }
                self.launch(at, frame);
                return;
            }
            Verdict::Lost => self.passed.lost += wire.packets as u64,
            Verdict::QueueFull => self.passed.queue_full += wire.packets as u64,
            Verdict::Down => {}
        }
        self.spare.push(frame);
    }

    fn launch(&mut self, at: Instant, frame: Vec<u8>) {
        let number = self.taken;
        self.taken += 1;
        self.flight.push(Reverse(Flight { at, number, frame }));
    }

    /// Until a frame comes or is due.
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

/// An interface that is down passes nothing; that is no failure of the emulator.
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
