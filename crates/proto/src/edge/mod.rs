//! The edge of a cluster of forwarding nodes: local recovery of the connections whose string fails (HALR thesis, chapter 3).
//!
//! An edge switch sees its string fail before TCP does. From the second missed heartbeat on, the edge caches a few packets of
//! each connection ([`cache`]). When the connections have another string, the edge sends these packets again, so that the
//! connections go on at once and not only when their timers expire.
//!
//! ```text
//!            heartbeat
//!           ┌────────┐    missed 2           missed 3
//!           └▶ Well ─┴─────────────▶ Suspect ─────────▶ Failed
//!               ▲ ▲     heartbeat:      │                 │
//!               │ └── forget, go on ────┘                 │
//!               └──────────── completed: send again ──────┘
//! ```
//!
//! One [`LocalRecovery`] is for one string and one edge. The strings of an edge share one [`Cache`]. The caller knows which connections are
//! on the string and when the failover is complete. It then routes the packets that [`LocalRecovery::complete`] returns over the new string.
//! [`switch`] is such a caller.

pub mod cache;
pub mod datapath;
mod headers;
mod mirror;
pub mod phase;
mod segment;
mod segmentation;
pub mod slots;
pub mod switch;

use std::time::Duration;

use thiserror::Error;

use crate::Instant;
use crate::detector::{Detector, DetectorConfig};
use cache::{Cache, CacheConfig, CacheCounts, CachePolicy, SecondPacket};
pub use mirror::CacheMirror;
pub use segment::{EdgeDirection, EdgeSegment};
pub use segmentation::{cut, is_tcp_sum_wrong};

/// Number of duplicate acknowledgements in a row that make a sender retransmit at once (RFC 5681 §3.2).
pub const DUPLICATES: u32 = 3;

/// Settings of local recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Time between two heartbeats over the string.
    pub heartbeat: Duration,
    /// Number of missing heartbeats after which the string's failure is declared.
    pub missed: u32,
    /// Number of missing heartbeats after which caching begins. 0: caching is always on.
    pub caching_after: u32,
    /// For this long after the last heartbeat, leaving packets also count as signs of life, because a full queue may lose the heartbeats.
    pub traffic_timeout: Duration,
    /// Number of copies of the highest acknowledgement that are sent.
    pub ack_copies: u32,
    /// Policy and limits of the cache.
    pub cache: CacheConfig,
}

/// A field of a [`RecoveryConfig`] that is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidRecovery {
    /// `heartbeat` or `missed` is zero.
    #[error("{0} must be positive")]
    Zero(&'static str),
    /// Caching would begin only after the failure is declared.
    #[error("caching_after is {caching_after}, but must not exceed missed, which is {missed}")]
    Late {
        /// The configured value.
        caching_after: u32,
        /// Number of missing heartbeats after which the failure is declared.
        missed: u32,
    },
    /// Too few copies for a sender to infer a loss.
    #[error("ack_copies must be at least {DUPLICATES}, not {0}")]
    Copies(u32),
}

impl RecoveryConfig {
    /// Checks that all fields are valid.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self) -> Result<(), InvalidRecovery> {
        let missed = self.missed;
        for (field, zero) in [("heartbeat", self.heartbeat.is_zero()), ("missed", missed == 0)] {
            if zero {
                return Err(InvalidRecovery::Zero(field));
            }
        }
        if self.caching_after > missed {
            return Err(InvalidRecovery::Late {
                caching_after: self.caching_after,
                missed,
            });
        }
        if self.ack_copies < DUPLICATES {
            return Err(InvalidRecovery::Copies(self.ack_copies));
        }
        Ok(())
    }

    /// Length of the silence after which the failure is declared.
    pub fn patience(&self) -> Duration {
        self.heartbeat * self.missed
    }

    /// A detector that waits for `missed` missing heartbeats.
    fn detector(&self, missed: u32, now: Instant) -> Detector {
        let config = DetectorConfig {
            interval: self.heartbeat,
            missed,
            agent_timeout: self.traffic_timeout,
        };
        Detector::new(config, now)
    }
}

/// The state of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringState {
    /// Heartbeats arrive.
    Well,
    /// Some heartbeats are missing: passing packets are cached.
    Suspect,
    /// The string has failed. Its connections get another string.
    Failed,
}

/// Events that change the state of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StringEvent {
    /// A heartbeat arrived.
    Heartbeat,
    /// Heartbeats are missing: [`RecoveryConfig::caching_after`].
    Late,
    /// More heartbeats are missing: [`RecoveryConfig::missed`].
    Silent,
    /// The connections have another string.
    Completed,
}

impl StringState {
    const fn after(self, event: StringEvent) -> Self {
        use StringEvent::{Completed, Heartbeat, Late, Silent};
        match (self, event) {
            (Self::Well, Heartbeat | Completed) => Self::Well,
            (Self::Well, Late) => Self::Suspect,
            (Self::Well, Silent) => Self::Failed,
            (Self::Suspect, Heartbeat) => Self::Well,
            (Self::Suspect, Late | Completed) => Self::Suspect,
            (Self::Suspect, Silent) => Self::Failed,
            // Once a failover has begun, a heartbeat does not stop it.
            (Self::Failed, Heartbeat | Late | Silent) => Self::Failed,
            (Self::Failed, Completed) => Self::Well,
        }
    }
}

/// The packets of a string's flows that the data path copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiedPackets {
    /// None.
    None,
    /// Packets that may change what the cache holds.
    Needed,
    /// All entering packets, and the leaving packets that may change what the cache holds.
    Entering,
}

/// A packet to send again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resend<K, P> {
    /// The packet's connection.
    pub key: K,
    /// The packet's direction.
    pub way: EdgeDirection,
    /// The packet.
    pub packet: P,
    /// How many copies to send.
    pub copies: u32,
}

/// Counts of what local recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryCounts {
    /// The cache's counts.
    pub cache: CacheCounts,
    /// Number of packets sent again into the cluster.
    pub resent_entering: u64,
    /// Number of packets sent again out of the cluster, counting each copy.
    pub resent_leaving: u64,
    /// Number of suspicions that a heartbeat ended.
    pub false_alarms: u64,
}

/// Local recovery at one edge for the connections of one string. The cache is that of all strings. `K` names a connection, `P` is a packet.
#[derive(Clone, Debug)]
pub struct LocalRecovery {
    config: RecoveryConfig,
    /// The string's number.
    string: usize,
    state: StringState,
    suspicion: Option<Detector>,
    failure: Detector,
    /// Whether the detectors have heard the string at all.
    heard: bool,
    counts: RecoveryCounts,
}

impl LocalRecovery {
    /// Local recovery for a string whose first heartbeat has not been heard yet. Until that heartbeat, nothing is suspected.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn new(config: RecoveryConfig, string: usize, now: Instant) -> Result<Self, InvalidRecovery> {
        config.check()?;
        let (suspicion, failure) = Self::detectors(&config, now);
        Ok(Self {
            config,
            string,
            state: StringState::Well,
            suspicion,
            failure,
            heard: false,
            counts: RecoveryCounts::default(),
        })
    }

    /// The state of the string.
    pub const fn state(&self) -> StringState {
        self.state
    }

    /// Counts of what was done so far.
    pub fn counts<K: Copy + Ord, P>(&self, cache: &Cache<K, P>) -> RecoveryCounts {
        RecoveryCounts {
            cache: cache.counts(self.string),
            ..self.counts
        }
    }

    /// A heartbeat came over the string.
    pub fn on_heartbeat<K: Copy + Ord, P>(&mut self, now: Instant, cache: &mut Cache<K, P>) {
        self.heard = true;
        self.failure.on_heartbeat(now);
        if let Some(suspicion) = &mut self.suspicion {
            suspicion.on_heartbeat(now);
        }
        if self.state == StringState::Suspect {
            self.counts.false_alarms += 1;
            cache.clear(self.string);
        }
        self.state = self.state.after(StringEvent::Heartbeat);
    }

    /// Packets have left the string since the last call.
    pub fn on_traffic(&mut self, now: Instant) {
        self.failure.on_traffic(now);
        if let Some(suspicion) = &mut self.suspicion {
            suspicion.on_traffic(now);
        }
    }

    /// Checks for missing heartbeats.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.state == StringState::Failed {
            return;
        }
        let late = self
            .suspicion
            .as_mut()
            .is_some_and(|suspicion| suspicion.is_silent(now));
        if late {
            self.state = self.state.after(StringEvent::Late);
        }
        if self.failure.is_silent(now) {
            self.state = self.state.after(StringEvent::Silent);
        }
    }

    /// The other edge has declared the failure of the string.
    pub fn on_declared(&mut self) {
        self.state = self.state.after(StringEvent::Silent);
    }

    /// Whether the string has failed, and its packets are still held.
    pub fn has_failed(&self) -> bool {
        self.state == StringState::Failed
    }

    /// The string works again at `now`, and the cached packets are not needed.
    pub fn restart<K: Copy + Ord, P>(&mut self, now: Instant, cache: &mut Cache<K, P>) {
        (self.suspicion, self.failure) = Self::detectors(&self.config, now);
        self.state = StringState::Well;
        cache.clear(self.string);
        self.on_heartbeat(now, cache);
    }

    /// When to check next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let failure = self.failure.poll_timeout();
        let next = match self.state {
            StringState::Well => self
                .suspicion
                .map_or(failure, |it| failure.min(it.poll_timeout())),
            StringState::Suspect => failure,
            StringState::Failed => return None,
        };
        self.heard.then_some(next)
    }

    /// Whether passing packets are cached now.
    pub fn is_caching(&self) -> bool {
        self.config.caching_after == 0 || self.state != StringState::Well
    }

    /// The packets that are to be copied while the string is suspected.
    pub const fn copies_when_suspected(&self) -> CopiedPackets {
        match (self.config.cache.policy, self.config.cache.second) {
            (CachePolicy::Syn, _) | (_, SecondPacket::Acknowledgement) => CopiedPackets::Needed,
            (CachePolicy::Lowest | CachePolicy::All, SecondPacket::Newest) => CopiedPackets::Entering,
        }
    }

    /// A packet of one of the string's connections passes. It is `bytes` long. If the cache keeps the packet, it calls `packet` for a copy.
    /// Returns whether the passing packet acknowledges a cached packet.
    pub fn on_packet<K: Copy + Ord, P>(
        &self,
        cache: &mut Cache<K, P>,
        key: K,
        way: EdgeDirection,
        segment: &EdgeSegment,
        bytes: usize,
        packet: impl FnOnce() -> P,
    ) -> bool {
        if !self.is_caching() {
            return false;
        }
        match way {
            EdgeDirection::Entering => {
                let is_suspected = self.state != StringState::Well;
                cache.on_entering(self.string, key, segment, bytes, is_suspected, packet);
                false
            }
            EdgeDirection::Leaving => cache.on_leaving(self.string, key, segment, bytes, packet),
        }
    }

    /// The connections have another string now. The first heartbeat of that string has not been heard yet. Returns the packets to send over
    /// the new string. There are none if the old string has not failed.
    pub fn complete<K: Copy + Ord, P>(
        &mut self,
        now: Instant,
        cache: &mut Cache<K, P>,
    ) -> impl Iterator<Item = Resend<K, P>> + use<K, P> {
        let failed = self.state == StringState::Failed;
        self.state = self.state.after(StringEvent::Completed);
        let copies = self.config.ack_copies;
        if failed {
            (self.suspicion, self.failure) = Self::detectors(&self.config, now);
            self.heard = false;
            let (packets, leaving) = (cache.counts(self.string).packets, cache.leaving(self.string));
            self.counts.resent_leaving += leaving as u64 * u64::from(copies);
            self.counts.resent_entering += (packets - leaving) as u64;
        }
        // The packets leave the cache one by one, so that there are never two copies of all of them in memory.
        let held = failed.then(|| cache.drain(self.string));
        held.into_iter().flatten().map(move |(key, way, packet)| Resend {
            key,
            way,
            packet,
            copies: if way == EdgeDirection::Leaving { copies } else { 1 },
        })
    }

    /// The detectors of the suspicion (none if caching is always on) and of the failure.
    fn detectors(config: &RecoveryConfig, now: Instant) -> (Option<Detector>, Detector) {
        let suspicion = (config.caching_after > 0).then(|| config.detector(config.caching_after, now));
        (suspicion, config.detector(config.missed, now))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::Seq;

    const CONFIG: RecoveryConfig = RecoveryConfig {
        heartbeat: Duration::from_millis(10),
        missed: 3,
        caching_after: 2,
        traffic_timeout: Duration::ZERO,
        ack_copies: 3,
        cache: CacheConfig {
            policy: CachePolicy::Lowest,
            second: SecondPacket::Acknowledgement,
            max_bytes: 10_000,
            max_packets: 100,
            max_connection_bytes: usize::MAX,
        },
    };

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Local recovery of the only string of an edge.
    struct OneString {
        recovery: LocalRecovery,
        cache: Cache<u32, &'static str>,
    }

    impl OneString {
        fn new(config: RecoveryConfig) -> Self {
            let mut one = Self {
                recovery: LocalRecovery::new(config, 0, at(0)).unwrap(),
                cache: Cache::new(config.cache, 1),
            };
            one.heartbeat(1);
            one
        }

        fn heartbeat(&mut self, millis: u64) {
            self.recovery.on_heartbeat(at(millis), &mut self.cache);
        }

        /// Runs all timers that expire up to `until`, in milliseconds.
        fn run(&mut self, until: u64) {
            while let Some(next) = self.recovery.poll_timeout().filter(|next| *next <= at(until)) {
                self.recovery.on_timeout(next);
            }
        }

        fn packet(&mut self, way: EdgeDirection, segment: &EdgeSegment, bytes: usize, name: &'static str) {
            self.recovery
                .on_packet(&mut self.cache, 1, way, segment, bytes, || name);
        }

        fn data(&mut self, name: &'static str) {
            let segment = EdgeSegment {
                seq: Seq(1),
                len: 100,
                ..EdgeSegment::default()
            };
            self.packet(EdgeDirection::Entering, &segment, 140, name);
        }

        fn complete(&mut self, millis: u64) -> Vec<Resend<u32, &'static str>> {
            self.recovery.complete(at(millis), &mut self.cache).collect()
        }

        fn state(&self) -> StringState {
            self.recovery.state()
        }

        fn counts(&self) -> RecoveryCounts {
            self.recovery.counts(&self.cache)
        }
    }

    #[test]
    fn the_whole_table() {
        use StringEvent::{Completed, Heartbeat, Late, Silent};
        use StringState::{Failed, Suspect, Well};
        let mut table = String::new();
        for state in [Well, Suspect, Failed] {
            for event in [Heartbeat, Late, Silent, Completed] {
                writeln!(table, "{state:?}, {event:?}: {:?}", state.after(event)).expect("text");
            }
        }
        insta::assert_snapshot!(table, @r"
        Well, Heartbeat: Well
        Well, Late: Suspect
        Well, Silent: Failed
        Well, Completed: Well
        Suspect, Heartbeat: Well
        Suspect, Late: Suspect
        Suspect, Silent: Failed
        Suspect, Completed: Suspect
        Failed, Heartbeat: Failed
        Failed, Late: Failed
        Failed, Silent: Failed
        Failed, Completed: Well
        ");
    }

    #[test]
    fn caching_begins_with_the_second_missing_heartbeat_and_the_third_is_the_failure() {
        let mut one = OneString::new(CONFIG);
        one.run(20);
        one.data("too early");
        assert_eq!((one.state(), one.cache.connections(0)), (StringState::Well, 0));
        one.run(21);
        assert_eq!(one.state(), StringState::Suspect);
        one.data("held");
        one.run(30);
        assert_eq!(one.state(), StringState::Suspect);
        one.run(31);
        assert_eq!(one.state(), StringState::Failed);
        assert_eq!(one.recovery.poll_timeout(), None);
        let resent = one.complete(100);
        assert_eq!(resent.len(), 1);
        assert_eq!((resent[0].packet, resent[0].copies), ("held", 1));
        assert_eq!(
            (one.state(), one.recovery.poll_timeout()),
            (StringState::Well, None)
        );
        assert_eq!(one.complete(101), []);
        assert_eq!(one.counts().resent_entering, 1);
    }

    #[test]
    fn a_heartbeat_ends_a_suspicion_but_not_a_failover() {
        let mut one = OneString::new(CONFIG);
        one.run(25);
        one.data("passed after all");
        one.heartbeat(26);
        assert_eq!((one.state(), one.cache.connections(0)), (StringState::Well, 0));
        assert_eq!(one.counts().false_alarms, 1);
        one.run(60);
        one.data("held");
        one.heartbeat(61);
        assert_eq!((one.state(), one.complete(70).len()), (StringState::Failed, 1));
    }

    #[test]
    fn only_a_cache_that_may_hold_the_newest_packet_needs_every_packet() {
        for (policy, second, expected) in [
            (CachePolicy::Lowest, SecondPacket::Newest, CopiedPackets::Entering),
            (CachePolicy::All, SecondPacket::Newest, CopiedPackets::Entering),
            (
                CachePolicy::Lowest,
                SecondPacket::Acknowledgement,
                CopiedPackets::Needed,
            ),
            (CachePolicy::Syn, SecondPacket::Newest, CopiedPackets::Needed),
        ] {
            let mut config = CONFIG;
            config.cache = CacheConfig {
                policy,
                second,
                ..CONFIG.cache
            };
            assert_eq!(OneString::new(config).recovery.copies_when_suspected(), expected);
        }
    }

    #[test]
    fn an_edge_that_was_paused_blames_nobody() {
        let mut one = OneString::new(CONFIG);
        one.recovery.on_timeout(at(5));
        one.recovery.on_timeout(at(5000));
        assert_eq!(one.state(), StringState::Well);
        one.run(5040);
        assert_eq!(one.state(), StringState::Failed);
    }

    #[test]
    fn caching_may_never_stop_and_acknowledgements_leave_three_times() {
        let mut one = OneString::new(RecoveryConfig {
            caching_after: 0,
            ..CONFIG
        });
        let ack = EdgeSegment {
            ack: Some(Seq(1)),
            ..EdgeSegment::default()
        };
        one.packet(EdgeDirection::Leaving, &ack, 40, "ack");
        one.data("data");
        one.run(40);
        let seen: Vec<_> = one
            .complete(50)
            .iter()
            .map(|resend| (resend.way, resend.packet, resend.copies))
            .collect();
        assert_eq!(
            seen,
            [
                (EdgeDirection::Leaving, "ack", 3),
                (EdgeDirection::Entering, "data", 1)
            ]
        );
        assert_eq!(one.counts().resent_leaving, 3);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |change: fn(&mut RecoveryConfig)| {
            let mut config = CONFIG;
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(refused(|config| config.heartbeat = Duration::ZERO).starts_with("heartbeat"));
        assert!(refused(|config| config.missed = 0).starts_with("missed"));
        assert!(refused(|config| config.caching_after = 4).starts_with("caching_after"));
        assert!(refused(|config| config.ack_copies = 2).starts_with("ack_copies"));
    }
}
