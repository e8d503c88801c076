//! A destination: one address of the peer, with all that is known of the path to it (RFC 9260 §5.4, §6.3, §7, §8.2, §8.3).
//!
//! ```text
//!                  a HEARTBEAT ACK with the nonce
//!   unconfirmed ──────────────────────────────────▶ confirmed: `failover::quick` has its states
//!    no data is sent there
//! ```

use std::net::IpAddr;
use std::time::Duration;

use super::config::SctpConfig;
use super::congestion::PathWindow;
use super::failover::FailoverPolicy;
use super::failover::quality::{BUDGET, PathQuality};
use super::failover::quick::{Reach, ReachEvent};
use super::mtu::PathMtu;
use super::rto::PathRto;
use super::watch::WatchState;
use crate::Instant;
use crate::time::earlier;

/// Number of a destination: its place in the peer's list of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

impl PathId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A probe on the way.
#[derive(Clone, Copy, Debug)]
struct HeartbeatProbe {
    nonce: u64,
    sent_at: Instant,
    /// When it counts as lost.
    until: Instant,
    /// The probe only measures the path: its loss is no error.
    measures: bool,
}

/// Counters of a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestinationCounts {
    /// Bytes of SCTP packets that were sent to it.
    pub sent_bytes: u64,
    /// Bytes of SCTP packets from it that were accepted.
    pub received_bytes: u64,
    /// Packets with data.
    pub packets: u64,
    /// Chunks of new data.
    pub chunks: u64,
    /// Packets with retransmitted data.
    pub retransmissions: u64,
    /// Times that its retransmission timer ran out.
    pub timeouts: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// Heartbeats that were not answered in time, without those of the watch ([`HeartbeatWatch`](super::HeartbeatWatch)).
    pub lost_heartbeats: u64,
    /// Times that it failed.
    pub failures: u64,
}

/// An address of the peer.
#[derive(Clone, Debug)]
pub struct Destination {
    address: IpAddr,
    is_confirmed: bool,
    reach: Reach,
    /// Timeouts in a row.
    errors: u32,
    path_max_retrans: u32,
    /// PFMR (RFC 7829): with more timeouts in a row than this, the destination is potentially failed. `None`: it never is.
    doubtful_retrans: Option<u32>,
    pub(super) rto: PathRto,
    pub(super) window: PathWindow,
    pub(super) mtu: PathMtu,
    watch: Option<WatchState>,
    /// When the retransmission timer (T3-rtx) runs out.
    timer: Option<Instant>,
    /// A chunk on the way measures the round-trip time.
    pub(super) is_measuring: bool,
    probe: Option<HeartbeatProbe>,
    /// When the next heartbeat is due, if the destination is idle then.
    probes_at: Option<Instant>,
    /// Time without new data after which that heartbeat is sent.
    idle_time: Duration,
    /// When new data was sent last.
    used_at: Instant,
    pub(super) counts: DestinationCounts,
    pub(super) quality: PathQuality,
    /// Bytes that measuring probes may still use.
    credit: f64,
}

/// Bytes of a measuring heartbeat and its answer, with their IPv4 headers.
const PROBE_BYTES: f64 = 104.0;
/// Maximum of [`Destination::credit`], in bytes.
const CREDIT_MAX: f64 = 4.0 * PROBE_BYTES;

/// Result of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathTimeout {
    /// The destination has failed now.
    Failed,
    /// The destination has not failed yet, or it had failed before this timeout.
    Same,
}

impl Destination {
    /// A new destination. `threshold` is its slow start threshold if the configuration has none.
    pub(super) fn new(config: &SctpConfig, address: IpAddr, threshold: u32, now: Instant) -> Self {
        Self {
            address,
            is_confirmed: false,
            reach: Reach::Active,
            errors: 0,
            path_max_retrans: config.path_max_retrans,
            doubtful_retrans: match config.failover {
                FailoverPolicy::PotentiallyFailed { max_retrans } => Some(max_retrans),
                FailoverPolicy::Temporary { .. } | FailoverPolicy::Proposed | FailoverPolicy::Informed => {
                    None
                }
            },
            rto: PathRto::new(config),
            window: PathWindow::new(config, threshold, now),
            mtu: PathMtu::new(config),
            watch: config.watch.map(|watch| WatchState::new(watch, now)),
            timer: None,
            is_measuring: false,
            probe: None,
            probes_at: None,
            idle_time: Duration::ZERO,
            used_at: now,
            counts: DestinationCounts::default(),
            quality: PathQuality::default(),
            credit: 0.0,
        }
    }

    /// The address.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether the destination is known to belong to the peer (RFC 9260 §5.4), and has not failed, not even potentially. Other destinations
    /// get new data only if none is usable.
    pub const fn is_usable(&self) -> bool {
        self.is_confirmed && matches!(self.reach, Reach::Active)
    }

    /// Whether the destination is known to belong to the peer.
    pub const fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// The state of the destination, as far as its timeouts tell.
    pub const fn reach(&self) -> Reach {
        self.reach
    }

    /// The measurements of its path. Only [`FailoverPolicy::Informed`] measures idle paths.
    pub const fn quality(&self) -> &PathQuality {
        &self.quality
    }

    /// Timeouts in a row.
    pub const fn errors(&self) -> u32 {
        self.errors
    }

    /// The retransmission timeout now.
    pub const fn rto(&self) -> Duration {
        self.rto.get()
    }

    /// The smoothed round-trip time, once it was measured.
    pub fn rtt(&self) -> Option<Duration> {
        self.rto.smoothed()
    }

    /// Its congestion window.
    pub const fn window(&self) -> &PathWindow {
        &self.window
    }

    /// The sizes of packets to it.
    pub const fn mtu(&self) -> &PathMtu {
        &self.mtu
    }

    /// Its counters.
    pub const fn counts(&self) -> DestinationCounts {
        self.counts
    }

    /// The destination is now known to belong to the peer.
    pub(super) const fn confirm(&mut self) {
        self.is_confirmed = true;
    }

    /// Something sent to the destination was acknowledged. Returns whether the destination had failed, potentially or entirely.
    pub(super) const fn on_heard(&mut self) -> bool {
        self.errors = 0;
        let had_failed = !matches!(self.reach, Reach::Active);
        self.reach = self.reach.after(ReachEvent::Answered);
        had_failed
    }

    /// Something sent to the destination was not acknowledged in time (RFC 9260 §8.2). The RTO backs off.
    pub(super) fn on_error(&mut self) -> PathTimeout {
        self.rto.on_timeout();
        self.errors = self.errors.saturating_add(1);
        let event = if self.errors > self.path_max_retrans {
            ReachEvent::Exceeded
        } else if self.doubtful_retrans.is_some_and(|most| self.errors > most) {
            ReachEvent::Doubtful
        } else {
            ReachEvent::Timeout
        };
        let before = self.reach;
        self.reach = before.after(event);
        if self.reach == Reach::Failed && before != Reach::Failed {
            self.counts.failures += 1;
            return PathTimeout::Failed;
        }
        PathTimeout::Same
    }

    /// Marks the destination as failed, whatever its number of errors. Call this only while the destination is usable.
    pub(super) fn fail(&mut self) -> PathTimeout {
        self.rto.on_timeout();
        self.errors = self.errors.max(self.path_max_retrans.saturating_add(1));
        let before = self.reach;
        self.reach = before.after(ReachEvent::Exceeded);
        self.counts.failures += u64::from(before != Reach::Failed);
        PathTimeout::Failed
    }

    /// Whether a heartbeat of the watch is due.
    pub(super) fn wants_watch(&self, now: Instant) -> bool {
        self.is_usable() && self.watch.as_ref().is_some_and(|watch| watch.is_due(now))
    }

    /// A heartbeat of the watch is sent.
    pub(super) fn on_watch_sent(&mut self, now: Instant, nonce: u64) {
        self.counts.heartbeats += 1;
        if let Some(watch) = &mut self.watch {
            watch.on_sent(now, nonce);
        }
    }

    /// A HEARTBEAT ACK with this nonce arrived. Returns the round-trip time if it answers a heartbeat of the watch.
    pub(super) fn on_watch_answered(&mut self, now: Instant, nonce: u64) -> Option<Duration> {
        let sent_at = self.watch.as_mut()?.on_answer(nonce)?;
        Some(now.since(sent_at))
    }

    /// Whether the watch has found that the destination does not answer.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.is_usable() && self.fails_at().is_some_and(|at| now >= at)
    }

    fn fails_at(&self) -> Option<Instant> {
        let usual = self.rto.usual().unwrap_or_else(|| self.rto.get());
        self.watch.as_ref()?.fails_at(usual)
    }

    /// The watch begins again.
    pub(super) fn restart_watch(&mut self, now: Instant) {
        if let Some(watch) = &mut self.watch {
            watch.restart(now);
        }
    }

    /// When the retransmission timer runs out.
    pub(super) const fn timer(&self) -> Option<Instant> {
        self.timer
    }

    /// Starts the retransmission timer (T3-rtx). A running timer is restarted only if `restarts`.
    pub(super) fn start_timer(&mut self, now: Instant, restarts: bool) {
        if restarts || self.timer.is_none() {
            self.timer = Some(now + self.rto.get());
        }
    }

    /// Stops the retransmission timer.
    pub(super) const fn stop_timer(&mut self) {
        self.timer = None;
    }

    /// The congestion window decays if the destination was idle.
    pub(super) fn decay(&mut self, now: Instant) {
        self.window.decay(now, self.rto.get());
    }

    /// New data is sent to it.
    pub(super) fn on_use(&mut self, now: Instant) {
        self.window.on_use(now, self.rto.get());
        self.used_at = now;
    }

    /// Schedules the next heartbeat: after `interval` and an RTO, plus or minus up to half of the RTO (RFC 9260 §8.3). With `None`, no
    /// heartbeat is due. `jitter` is a random number from the whole range of `u32`.
    pub(super) fn schedule_probe(&mut self, now: Instant, interval: Option<Duration>, jitter: u32) {
        let rto = self.rto.get();
        let jittered = rto / 2 + rto.mul_f64(f64::from(jitter) / f64::from(u32::MAX));
        self.idle_time = interval.unwrap_or_default() + jittered;
        self.probes_at = interval.map(|_| now + self.idle_time);
    }

    /// The next heartbeat is due at this time, whether the destination is idle or not.
    pub(super) const fn probe_from(&mut self, at: Instant) {
        self.idle_time = Duration::ZERO;
        self.probes_at = Some(at);
    }

    /// Postpones a heartbeat that is due, if new data was sent meanwhile: the acknowledgement of the data also shows whether the path
    /// works.
    pub(super) fn postpone_probe(&mut self, now: Instant) {
        if self.probes_at.is_some_and(|at| now >= at) {
            self.probes_at = Some(now.max(self.used_at + self.idle_time));
        }
    }

    /// The packet size that is to be probed now, if any. While the destination has errors, a lost probe would say nothing about the size.
    pub(super) fn next_size(&self) -> Option<u32> {
        let size = self.mtu.next_probe()?;
        (self.is_usable() && self.errors == 0).then_some(size)
    }

    /// Whether the time of the next heartbeat is set.
    pub(super) const fn has_probe_scheduled(&self) -> bool {
        self.probes_at.is_some()
    }

    /// Whether a heartbeat is to be sent: one is due, or the budget for measurements allows one.
    pub(super) fn wants_probe(&self, now: Instant) -> bool {
        let measures = self.credit >= PROBE_BYTES && self.is_confirmed;
        self.probe.is_none() && (self.is_probe_due(now) || measures)
    }

    fn is_probe_due(&self, now: Instant) -> bool {
        self.probes_at.is_some_and(|at| now >= at)
    }

    /// `bytes` bytes of data were sent to another destination. Probes that measure this destination may then use a fraction of this number
    /// of bytes.
    pub(super) fn earn(&mut self, bytes: u32) {
        self.credit = (self.credit + f64::from(bytes) * BUDGET).min(CREDIT_MAX);
    }

    /// A heartbeat with this nonce is sent.
    pub(super) fn on_probe_sent(&mut self, now: Instant, nonce: u64) {
        self.counts.heartbeats += 1;
        let measures = !self.is_probe_due(now);
        if measures {
            self.credit -= PROBE_BYTES;
        } else {
            self.probes_at = None;
        }
        self.probe = Some(HeartbeatProbe {
            nonce,
            sent_at: now,
            until: now + self.rto.get(),
            measures,
        });
    }

    /// A HEARTBEAT ACK with this nonce arrived. Returns the round-trip time if it answers the probe on the way.
    pub(super) fn on_probe_answered(&mut self, now: Instant, nonce: u64) -> Option<Duration> {
        let probe = self.probe.take_if(|probe| probe.nonce == nonce)?;
        self.quality.heartbeats.add(1, 0);
        Some(now.since(probe.sent_at))
    }

    /// Forgets the probe on the way if it is lost. Returns whether the loss counts as an error.
    pub(super) fn lose_probe(&mut self, now: Instant) -> bool {
        let Some(probe) = self.probe.take_if(|probe| now >= probe.until) else {
            return false;
        };
        self.counts.lost_heartbeats += 1;
        self.quality.heartbeats.add(1, 1);
        !probe.measures
    }

    /// The next time at which a timer of the destination is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let next = match self.probe {
            Some(probe) => Some(probe.until),
            None => self.probes_at,
        };
        let first = earlier(earlier(self.timer, next), self.mtu.due());
        match &self.watch {
            Some(watch) if self.is_usable() => {
                earlier(first, earlier(Some(watch.next_at()), self.fails_at()))
            }
            _ => first,
        }
    }
}
