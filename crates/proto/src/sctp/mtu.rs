//! The search for the MTU of the path to one destination, without ICMP (RFC 8899; for SCTP: its §6.2).
//!
//! ```text
//!            the limits meet
//!   Searching ─────────────▶ Complete        confirmed: the size of packets now
//!       ▲                       │            limit: larger ones were not answered
//!       └── a while has passed, │
//!           or a black hole ────┘
//! ```
//!
//! A probe is a padded HEARTBEAT. A lost probe counts only if a small heartbeat is answered afterwards: then the probe's size was the
//! reason.

use std::time::Duration;

use super::config::SctpConfig;
use crate::Instant;
use crate::time::earlier;

/// Number of lost probes of one size that prove the size too large (MAX_PROBES).
const PROBES_MAX: u32 = 3;
/// Number of timeouts in a row that prove a black hole, if no large packet is acknowledged between them.
const TIMEOUTS_MAX: u32 = 2;
/// A complete search begins again after this time (PMTU_RAISE_TIMER).
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// Least time until a probe counts as lost (RFC 8899 §5.1.1).
const PROBE_MIN: Duration = Duration::from_secs(1);
/// The search is complete when fewer bytes than this are undecided.
const GRANULARITY: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct SizeProbe {
    size: u32,
    nonce: u64,
    until: Instant,
}

/// Sizes of IP packets to one destination, bytes.
#[derive(Clone, Debug)]
pub struct PathMtu {
    base: u32,
    most: u32,
    confirmed: u32,
    limit: u32,
    is_searching: bool,
    probe: Option<SizeProbe>,
    /// Lost probes of the size that is probed.
    lost: u32,
    /// A probe was lost, and nothing was heard since.
    is_doubtful: bool,
    raise_at: Option<Instant>,
    timeouts: u32,
    black_holes: u64,
}

impl PathMtu {
    pub(super) const fn new(config: &SctpConfig) -> Self {
        Self {
            base: config.first_mtu(),
            most: config.path_mtu,
            confirmed: config.first_mtu(),
            limit: config.path_mtu,
            is_searching: config.first_mtu() < config.path_mtu,
            probe: None,
            lost: 0,
            is_doubtful: false,
            raise_at: None,
            timeouts: 0,
            black_holes: 0,
        }
    }

    /// Largest IP packet that is sent to the destination, bytes.
    pub const fn confirmed(&self) -> u32 {
        self.confirmed
    }

    /// Number of black holes that were detected: the path lost all large packets.
    pub const fn black_holes(&self) -> u64 {
        self.black_holes
    }

    /// Whether the search goes on.
    pub const fn is_searching(&self) -> bool {
        self.is_searching
    }

    /// The packet size to be probed now. `None`: no probe is to be sent.
    pub(super) const fn next_probe(&self) -> Option<u32> {
        if !self.is_searching || self.probe.is_some() || self.is_doubtful {
            return None;
        }
        // The largest size first: most paths carry it.
        let is_untried = self.limit == self.most;
        let middle = self.confirmed + (self.limit - self.confirmed).div_ceil(2);
        Some(if is_untried {
            self.limit
        } else {
            middle.next_multiple_of(4)
        })
    }

    /// A probe of this size is sent.
    pub(super) fn on_probe_sent(&mut self, now: Instant, size: u32, nonce: u64, rto: Duration) {
        let until = now + rto.max(PROBE_MIN);
        self.probe = Some(SizeProbe { size, nonce, until });
    }

    /// A HEARTBEAT ACK with this nonce arrived. Returns whether it answers the probe.
    pub(super) fn on_answer(&mut self, now: Instant, nonce: u64) -> bool {
        let Some(probe) = self.probe.take_if(|probe| probe.nonce == nonce) else {
            return false;
        };
        self.confirmed = self.confirmed.max(probe.size);
        self.limit = self.limit.max(self.confirmed);
        (self.lost, self.timeouts) = (0, 0);
        self.conclude(now);
        true
    }

    /// Forgets the probe on the way if it is lost, and returns whether it is lost. After a loss, the caller sends a small heartbeat. If
    /// this heartbeat is answered, the size was the reason for the loss.
    pub(super) fn lose_probe(&mut self, now: Instant) -> bool {
        if self.raise_at.is_some_and(|at| now >= at) {
            self.search();
        }
        let is_lost = self.probe.take_if(|probe| now >= probe.until).is_some();
        self.is_doubtful |= is_lost;
        is_lost
    }

    /// A small packet was answered.
    pub(super) fn on_heard(&mut self, now: Instant) {
        if !std::mem::take(&mut self.is_doubtful) {
            return;
        }
        self.lost += 1;
        if self.lost >= PROBES_MAX
            && let Some(size) = self.next_probe()
        {
            self.exclude(now, size);
        }
    }

    /// The kernel refuses packets of `size` bytes, because the first link's MTU is smaller.
    pub(super) fn on_too_large(&mut self, now: Instant, size: u32) {
        if size <= self.base {
            return;
        }
        if size <= self.confirmed {
            self.confirmed = self.base;
            self.is_searching = true;
        }
        self.probe.take_if(|probe| probe.size >= size);
        self.exclude(now, size);
    }

    /// The retransmission timer of the destination ran out. Returns whether the timeout shows a black hole (RFC 8899 §4.3).
    pub(super) const fn on_timeout(&mut self) -> bool {
        self.timeouts += 1;
        if self.timeouts < TIMEOUTS_MAX || self.confirmed == self.base {
            return false;
        }
        self.confirmed = self.base;
        self.black_holes += 1;
        self.search();
        true
    }

    /// A chunk that did not fit the first size was acknowledged.
    pub(super) const fn on_large_acknowledged(&mut self) {
        self.timeouts = 0;
    }

    /// The next time at which [`lose_probe`](Self::lose_probe) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        earlier(self.probe.map(|probe| probe.until), self.raise_at)
    }

    const fn search(&mut self) {
        self.limit = self.most;
        self.is_searching = self.confirmed < self.most;
        self.probe = None;
        self.lost = 0;
        self.raise_at = None;
        self.timeouts = 0;
    }

    fn exclude(&mut self, now: Instant, size: u32) {
        let below = (size - 1) / 4 * 4;
        self.limit = self.limit.min(below).max(self.confirmed);
        self.lost = 0;
        self.conclude(now);
    }

    fn conclude(&mut self, now: Instant) {
        if self.limit < self.confirmed + GRANULARITY {
            self.is_searching = false;
            self.raise_at = (self.confirmed + GRANULARITY <= self.most).then(|| now + RAISE_AFTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mtu(most: u32) -> PathMtu {
        PathMtu::new(&SctpConfig {
            path_mtu: most,
            base_mtu: Some(1280),
            ..SctpConfig::default()
        })
    }

    /// Searches on a path that carries packets of `real` bytes. Returns the number of probes.
    fn search(path: &mut PathMtu, real: u32) -> u32 {
        let (mut now, mut probes) = (Instant::ZERO, 0);
        while let Some(size) = path.next_probe() {
            probes += 1;
            path.on_probe_sent(now, size, u64::from(probes), Duration::ZERO);
            if size <= real {
                assert!(path.on_answer(now, u64::from(probes)));
            } else {
                now = path.due().expect("the probe's end");
                assert!(path.lose_probe(now));
                assert_eq!(path.next_probe(), None, "a heartbeat must be answered first");
                path.on_heard(now);
            }
        }
        probes
    }

    #[test]
    fn every_size_is_found() {
        for most in [1280, 1281, 1500, 9000, 65_535] {
            for real in (1280..=most.min(9100)).step_by(7) {
                let mut path = mtu(most);
                let probes = search(&mut path, real);
                assert!(path.confirmed() <= real, "{most} {real}: {path:?}");
                assert!(
                    path.confirmed() + GRANULARITY + 4 > real,
                    "{most} {real}: {path:?}"
                );
                assert!(probes < 60, "{most} {real}: {probes}");
            }
        }
    }

    #[test]
    fn the_usual_path_needs_one_probe() {
        let mut path = mtu(1500);
        assert_eq!(
            (search(&mut path, 1500), path.confirmed(), path.due()),
            (1, 1500, None)
        );
    }

    #[test]
    fn a_search_that_found_less_begins_again_later() {
        let mut path = mtu(1500);
        search(&mut path, 1400);
        let at = path.due().expect("the raise timer");
        assert!(!path.lose_probe(at) && path.is_searching());
        search(&mut path, 1500);
        assert_eq!(path.confirmed(), 1500);
    }

    #[test]
    fn two_timeouts_without_a_large_acknowledgement_are_a_black_hole() {
        let mut path = mtu(1500);
        search(&mut path, 1500);
        assert!(!path.on_timeout());
        path.on_large_acknowledged();
        assert!(!path.on_timeout() && path.on_timeout());
        assert_eq!((path.confirmed(), path.black_holes()), (1280, 1));
        search(&mut path, 1400);
        assert!((1390..=1400).contains(&path.confirmed()));
    }

    #[test]
    fn the_first_link_may_be_smaller() {
        let mut path = mtu(9000);
        let mut now = Instant::ZERO;
        let mut sizes = 0;
        while let Some(size) = path.next_probe() {
            (now, sizes) = (now + Duration::from_micros(1), sizes + 1);
            path.on_probe_sent(now, size, 1, Duration::ZERO);
            if size > 1500 {
                path.on_too_large(now, size);
            } else {
                path.on_answer(now, 1);
            }
        }
        assert!(
            (1490..=1500).contains(&path.confirmed()) && sizes < 20,
            "{path:?}"
        );
        path.on_too_large(now, path.confirmed());
        assert_eq!(path.confirmed(), 1280);
    }
}
