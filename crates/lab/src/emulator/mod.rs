//! A cable with a delay, a rate and a loss, such as the way between client and router. The simulator's [`Link`](sim::link::Link) decides
//! whether and when each frame is delivered.
//!
//! ```text
//!  client ── [client]  Direction: Link  [router] ── router       [..]: packet sockets in a namespace of their own
//!                ◀──── Direction: Link ────
//! ```
//!
//! **Segments.** The emulator carries frames as the hosts send them. A frame may be a TCP segment of up to 64 KB that is not cut into
//! packets yet, which makes several Gbit/s possible. The rate counts the bytes of the packets into which the segment would be cut. A random
//! loss would drop the whole segment, but a cable loses single packets. So if `--loss` is given, the hosts are told to send single packets.

mod direction;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use linux::netns::Netns;
use linux::packet_socket::PacketSocket;
use serde::Serialize;
use sim::link::LinkConfig;

use self::direction::WanDirection;
pub use self::direction::{Carried, Passed};
use crate::net::{WAN_CLIENT_INTERFACE, WAN_ROUTER_INTERFACE};

/// Properties of the way between client and router. Without any of them, client and router are plugged together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Args, Serialize)]
pub struct WanOptions {
    /// Round-trip time added between client and router, in milliseconds.
    #[arg(long = "rtt", value_name = "MS", value_parser = not_negative)]
    pub rtt_ms: Option<f64>,
    /// Rate in each direction, in Mbit/s; default: as fast as the machine is.
    #[arg(long = "rate", value_name = "MBIT", value_parser = positive)]
    pub rate_mbit: Option<f64>,
    /// Probability that a packet is lost, in percent, in each direction.
    #[arg(long = "loss", value_name = "PERCENT", value_parser = percent)]
    pub loss_percent: Option<f64>,
}

/// Minimum length, as time, of the queue of a link with a limited rate. If the round trip is longer, the queue is one round trip long.
const QUEUE_TIME_MIN: Duration = Duration::from_millis(50);
/// Minimum size of the queue of a link with a limited rate, in bytes: two of the largest segments. On a slow link, a smaller queue could
/// drop every segment.
const QUEUE_BYTES_MIN: usize = 128 << 10;

impl WanOptions {
    /// Whether client and router are plugged together, without an emulator.
    pub fn is_direct(&self) -> bool {
        *self == Self::default()
    }

    /// Whether packets are lost, so that the hosts must send single packets.
    pub fn loses(&self) -> bool {
        self.loss_percent.is_some_and(|percent| percent > 0.0)
    }

    /// The link's configuration for one direction.
    fn link(&self) -> LinkConfig {
        let rtt = Duration::from_secs_f64(self.rtt_ms.unwrap_or(0.0) / 1e3);
        let rate_bits_per_s = self.rate_mbit.map(|mbit| (mbit * 1e6).round() as u64);
        let queue = |rate: u64| {
            let seconds = rtt.max(QUEUE_TIME_MIN).as_secs_f64();
            QUEUE_BYTES_MIN.max((rate as f64 / 8.0 * seconds) as usize)
        };
        LinkConfig {
            rate_bits_per_s,
            delay: rtt / 2,
            queue_bytes: rate_bits_per_s.map(queue),
            loss: self.loss_percent.unwrap_or(0.0) / 100.0,
            ..LinkConfig::default()
        }
    }
}

fn number(text: &str, allowed: &str, fits: impl Fn(f64) -> bool) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if fits(number) => Ok(number),
        _ => Err(format!("expected {allowed}")),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, "a number from 0 to 60000", |ms| {
        (0.0..=60_000.0).contains(&ms)
    })
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, "a number from 0.001 to 1000000", |mbit| {
        (0.001..=1e6).contains(&mbit)
    })
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, "a number from 0 to 100", |percent| {
        (0.0..=100.0).contains(&percent)
    })
}

/// Two threads that carry packets, one per direction. Dropping this value ends them.
#[derive(Debug)]
pub struct Emulator {
    stop: Arc<AtomicBool>,
    directions: Vec<JoinHandle<Result<Carried>>>,
}

impl Emulator {
    /// Connects the two interfaces in the namespace `wan` as `way` describes. Losses are drawn from `seed`.
    ///
    /// # Errors
    /// If a packet socket or a thread cannot be created.
    pub fn start(wan: &Netns, way: WanOptions, seed: u64) -> Result<Self> {
        let link = way.link();
        Self::join(
            wan,
            [WAN_CLIENT_INTERFACE, WAN_ROUTER_INTERFACE],
            [link.clone(), link],
            seed,
        )
    }

    /// Connects two interfaces in `namespace`. The first link leads from the first interface to the second, and the second link leads
    /// back. Losses are drawn from `seed`.
    ///
    /// # Errors
    /// If a packet socket or a thread cannot be created.
    pub fn join(namespace: &Netns, interfaces: [&str; 2], links: [LinkConfig; 2], seed: u64) -> Result<Self> {
        let open = |interface| -> Result<_> {
            let socket = namespace.run(|| PacketSocket::open(interface))??;
            socket
                .note_arrivals()
                .context("cannot make the kernel record the arrival times of frames")?;
            Ok(Arc::new(socket))
        };
        let [left, right] = [open(interfaces[0])?, open(interfaces[1])?];
        let mut emulator = Self {
            stop: Arc::default(),
            directions: Vec::new(),
        };
        let [there, back] = links;
        let ways = [
            (interfaces[1], there, &left, &right, seed),
            // The two directions must not have the same random sequence.
            (interfaces[0], back, &right, &left, !seed),
        ];
        for (name, link, from, to, seed) in ways {
            let direction = WanDirection::new(link, seed, Arc::clone(from), Arc::clone(to))
                .context("cannot emulate such a link")?;
            let stop = Arc::clone(&emulator.stop);
            let carry = move || {
                let carried = direction.carry(&stop);
                if let Err(error) = &carried {
                    tracing::error!(
                        "one direction of the emulated cable failed; its packets are lost: {error:#}"
                    );
                }
                carried
            };
            let thread = Builder::new().name(format!("to {name}")).spawn(carry)?;
            emulator.directions.push(thread);
        }
        Ok(emulator)
    }

    /// Ends both threads and returns their counters: from the first interface to the second, then back.
    ///
    /// # Errors
    /// If a thread has failed.
    pub fn finish(self) -> Result<[Passed; 2]> {
        Ok(self.finish_traced()?.map(|carried| carried.passed))
    }

    /// As [`Self::finish`], with the queues over time.
    ///
    /// # Errors
    /// If a thread has failed.
    pub fn finish_traced(mut self) -> Result<[Carried; 2]> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = [Carried::default(), Carried::default()];
        for (slot, direction) in all.iter_mut().zip(self.directions.drain(..)) {
            *slot = direction
                .join()
                .map_err(|_| anyhow!("a thread of the emulator panicked"))??;
        }
        Ok(all)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_two_delays() {
        let way = WanOptions {
            rtt_ms: Some(20.0),
            rate_mbit: Some(100.0),
            loss_percent: Some(0.1),
        };
        let link = way.link();
        assert_eq!(link.delay, Duration::from_millis(10));
        assert_eq!(link.rate_bits_per_s, Some(100_000_000));
        // 50 ms at 100 Mbit/s.
        assert_eq!(link.queue_bytes, Some(625_000));
        assert!((link.loss - 0.001).abs() < 1e-12);
        assert!(way.loses() && !way.is_direct());
    }

    #[test]
    fn without_options_there_is_nothing_to_emulate() {
        assert!(WanOptions::default().is_direct());
        assert!(!WanOptions::default().loses());
    }

    #[test]
    fn what_is_no_way_is_refused() {
        assert!(percent("101").is_err() && percent("NaN").is_err() && percent("0.1").is_ok());
        assert!(positive("0").is_err() && positive("1000").is_ok());
        assert!(not_negative("-1").is_err() && not_negative("0").is_ok());
    }
}
