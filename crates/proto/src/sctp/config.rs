//! Parameters of an endpoint (RFC 9260 §16). Some of them exist because the simulations of the failover paper (docs/sctp.md) differ from
//! the RFC.

use std::time::Duration;

use thiserror::Error;

use super::chunk::DATA_HEADER;
use super::failover::FailoverPolicy;
use super::failover::temporary::DormantAction;
use super::packet::COMMON_HEADER;
use super::tlv::padded;
use super::watch::HeartbeatWatch;

/// Destination of a retransmission. The failover paper uses the policy of Caro, Amer, Stewart, "Retransmission Policies for Multihomed
/// Transport Protocols".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetransmissionPolicy {
    /// Every retransmission goes to another destination than the chunk's last transmission, as in RFC 2960 §6.4. The paper compares this
    /// policy with its own.
    Alternate,
    /// A fast retransmission goes to the chunk's last destination. If that destination has failed, it goes to the destination of new data.
    /// A retransmission after a timeout goes to another destination (RFC 9260 §6.4).
    FastSame,
}

/// When the congestion window of an idle destination halves. Each RTO without new data halves it once, but not below the floor of the slow
/// start threshold ([`SctpConfig::threshold_floor`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleDecay {
    /// When the next new data is sent, if nothing is in flight. The slow start threshold becomes the old window (RFC 9260 §7.2.1).
    BeforeUse,
    /// By a timer, which new data starts again and a retransmission timeout stops. Other data may be in flight, and the slow start threshold
    /// stays, as in ns-2 and RFC 2960 §7.2.1. So a timeout finds a small window on an idle path, and leaves a low threshold.
    ByTimer,
}

/// Configuration of an endpoint and its associations. Windows and buffers are in bytes of DATA chunks with their headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SctpConfig {
    /// Largest IP packet, bytes.
    pub path_mtu: u32,
    /// Bytes of a packet in front of SCTP's common header: IP, and UDP if the packets are encapsulated (RFC 6951).
    pub lower_headers: u32,
    /// Receive buffer: the largest window that is announced.
    pub receive_buffer: u32,
    /// Send buffer: the bound on messages that are not acknowledged yet.
    pub send_buffer: u32,
    /// Number of streams that this end asks for.
    pub outbound_streams: u16,
    /// Number of streams that this end allows its peer.
    pub inbound_streams: u16,
    /// RTO.Initial.
    pub rto_initial: Duration,
    /// RTO.Min.
    pub rto_min: Duration,
    /// RTO.Max.
    pub rto_max: Duration,
    /// Path.Max.Retrans (PMR): a destination fails when more timeouts than this have followed each other.
    pub path_max_retrans: u32,
    /// Association.Max.Retrans: the association ends when more timeouts than this, over all destinations, have followed each other.
    pub association_max_retrans: u32,
    /// Max.Init.Retransmits.
    pub max_init_retransmits: u32,
    /// Packets begin with this size, and each path's MTU is searched from there up to `path_mtu` (RFC 8899). `None`: `path_mtu` is known to
    /// be right.
    pub base_mtu: Option<u32>,
    /// Maximum growth of the congestion window per acknowledgement in slow start, in full packets: L of RFC 9260 §7.2.1. Values above 1 are
    /// for networks in which one acknowledgement answers a batch of packets.
    pub slow_start_limit: u32,
    /// Congestion window at the beginning.
    pub initial_window: u32,
    /// Slow start threshold at the beginning. `None`: the peer's first window.
    pub initial_threshold: Option<u32>,
    /// Lowest slow start threshold after a loss, in full packets.
    pub threshold_floor: u32,
    /// Number of missing reports that mark a chunk for fast retransmission.
    pub missing_reports: u8,
    /// A chunk may be fast retransmitted again when chunks sent after its retransmission are acknowledged (Multiple Fast Retransmit).
    pub has_multiple_fast_retransmit: bool,
    /// A chunk that was retransmitted after a timeout may be fast retransmitted later, as in ns-2. Otherwise it is not (paper, Figure 8).
    pub fast_retransmits_after_timeout: bool,
    /// If a chunk that was sent after fast recovery began is lost, too, its destination's window halves again, and recovery lasts until
    /// what is in flight then is acknowledged, as in ns-2. Otherwise the window halves once per recovery (RFC 9260 §7.2.4).
    pub halves_again_in_recovery: bool,
    /// In fast recovery, a SACK that moves the cumulative TSN counts as a missing report of all chunks that it does not report (RFC 9260
    /// §7.2.4). Otherwise this SACK counts only for the chunks below the highest TSN that it newly acknowledges (as in RFC 2960).
    pub counts_all_in_recovery: bool,
    /// A SACK lets the congestion window grow only if the window is full. This check counts chunks that are marked for retransmission as in
    /// flight. RFC 9260 §2.3 does not count chunks that are classified as lost.
    pub counts_marked: bool,
    /// After a timeout, new data waits for the next SACK, as in ns-2. RFC 9260 §6.1 sends new data when no marked chunk waits.
    pub holds_new_after_timeout: bool,
    /// Max.Burst: maximum number of packets with data that are sent after one event.
    pub max_burst: u32,
    /// Longest delay of an acknowledgement.
    pub sack_delay: Duration,
    /// Number of packets with data after which an acknowledgement is sent at once.
    pub sack_every: u32,
    /// HB.interval. `None`: idle destinations are not probed.
    pub heartbeat_interval: Option<Duration>,
    /// Heartbeats that find failures fast. `None`: only timeouts find them.
    pub watch: Option<HeartbeatWatch>,
    /// How the congestion window of an idle destination decays.
    pub idle_decay: IdleDecay,
    /// Destination of retransmissions.
    pub retransmission: RetransmissionPolicy,
    /// Destination of new data when destinations fail.
    pub failover: FailoverPolicy,
    /// Valid.Cookie.Life. The keys that sign cookies change once in this time.
    pub cookie_life: Duration,
}

/// A field of an [`SctpConfig`] that is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidSctp {
    /// A field that is zero.
    #[error("{0} must be positive")]
    Zero(&'static str),
    /// A field below its least value.
    #[error("{field} must be at least {least}")]
    TooSmall {
        /// The field.
        field: &'static str,
        /// Its least value.
        least: u64,
    },
    /// A field above its greatest value.
    #[error("{field} must be at most {most}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// Its greatest value.
        most: u64,
    },
}

impl Default for SctpConfig {
    /// The values that RFC 9260 §16 recommends, with IPv4 over Ethernet.
    fn default() -> Self {
        Self {
            path_mtu: 1500,
            lower_headers: 20,
            receive_buffer: 128 << 10,
            send_buffer: 128 << 10,
            outbound_streams: 16,
            inbound_streams: 16,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_secs(1),
            rto_max: Duration::from_secs(60),
            path_max_retrans: 5,
            association_max_retrans: 10,
            max_init_retransmits: 8,
            base_mtu: None,
            slow_start_limit: 1,
            initial_window: 4404,
            initial_threshold: None,
            threshold_floor: 4,
            missing_reports: 3,
            has_multiple_fast_retransmit: false,
            fast_retransmits_after_timeout: false,
            halves_again_in_recovery: false,
            counts_all_in_recovery: true,
            counts_marked: false,
            holds_new_after_timeout: false,
            max_burst: 4,
            sack_delay: Duration::from_millis(200),
            sack_every: 2,
            heartbeat_interval: Some(Duration::from_secs(30)),
            watch: None,
            idle_decay: IdleDecay::BeforeUse,
            retransmission: RetransmissionPolicy::FastSame,
            failover: FailoverPolicy::Temporary {
                dormant: DormantAction::LastDest,
                change_over: None,
            },
            cookie_life: Duration::from_secs(60),
        }
    }
}

impl SctpConfig {
    /// The paper's simulations (section III.1), as release 3.6 of the University of Delaware's module ran them.
    pub fn paper() -> Self {
        Self {
            receive_buffer: 65_536,
            send_buffer: 131_072,
            rto_initial: Duration::from_secs(3),
            initial_window: 2 * 1468,
            initial_threshold: Some(65_536),
            threshold_floor: 2,
            missing_reports: 4,
            has_multiple_fast_retransmit: true,
            fast_retransmits_after_timeout: true,
            halves_again_in_recovery: true,
            counts_marked: true,
            holds_new_after_timeout: true,
            idle_decay: IdleDecay::ByTimer,
            retransmission: RetransmissionPolicy::FastSame,
            failover: FailoverPolicy::Temporary {
                dormant: DormantAction::HopOnce,
                change_over: None,
            },
            ..Self::default()
        }
    }

    /// For real networks: packets arrive and are acknowledged in batches, buffers are for some gigabits per second, and each path's MTU is
    /// searched. `lower_headers`: the longest headers of the addresses in use.
    pub fn wire(lower_headers: u32) -> Self {
        Self {
            lower_headers,
            base_mtu: Some(1280),
            slow_start_limit: 64,
            max_burst: 64,
            receive_buffer: 4 << 20,
            send_buffer: 4 << 20,
            initial_window: 10 * 1452,
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(10),
            sack_delay: Duration::from_millis(40),
            heartbeat_interval: Some(Duration::from_secs(5)),
            path_max_retrans: 0,
            association_max_retrans: 12,
            ..Self::default()
        }
    }

    /// Checks that all fields are valid.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self) -> Result<(), InvalidSctp> {
        self.check_positive()?;
        let packet = self
            .path_mtu
            .saturating_sub(self.lower_headers.saturating_add(COMMON_HEADER as u32));
        // RFC 9260 §3.3.2: a window of less than 1500 bytes is not allowed. A packet must have room for INIT ACK with its cookie.
        let least = [
            ("path_mtu", self.path_mtu, self.lower_headers.saturating_add(512)),
            (
                "base_mtu",
                self.base_mtu.unwrap_or(self.path_mtu),
                self.lower_headers.saturating_add(512),
            ),
            ("receive_buffer", self.receive_buffer, self.path_mtu.max(1500)),
            ("send_buffer", self.send_buffer, self.path_mtu),
            ("initial_window", self.initial_window, packet),
        ];
        for (field, value, least) in least {
            if value < least {
                let least = u64::from(least);
                return Err(InvalidSctp::TooSmall { field, least });
            }
        }
        let most = [
            ("path_mtu", u64::from(self.path_mtu), 65_535),
            (
                "base_mtu",
                u64::from(self.base_mtu.unwrap_or(0)),
                u64::from(self.path_mtu),
            ),
            ("slow_start_limit", u64::from(self.slow_start_limit), 1024),
            ("lower_headers", u64::from(self.lower_headers), 1024),
            ("threshold_floor", u64::from(self.threshold_floor), 1024),
            (
                "cookie_life in milliseconds",
                millis(self.cookie_life),
                86_400_000,
            ),
            ("receive_buffer", u64::from(self.receive_buffer), 1 << 30),
            ("send_buffer", u64::from(self.send_buffer), 1 << 30),
            ("sack_delay in milliseconds", millis(self.sack_delay), 500),
            (
                "rto_min in milliseconds",
                millis(self.rto_min),
                millis(self.rto_max),
            ),
            (
                "rto_initial in milliseconds",
                millis(self.rto_initial),
                millis(self.rto_max),
            ),
            ("rto_max in milliseconds", millis(self.rto_max), 3_600_000),
        ];
        match most.into_iter().find(|(_, value, most)| value > most) {
            Some((field, _, most)) => Err(InvalidSctp::TooLarge { field, most }),
            None => Ok(()),
        }
    }

    fn check_positive(&self) -> Result<(), InvalidSctp> {
        let positive = [
            ("outbound_streams", self.outbound_streams == 0),
            ("inbound_streams", self.inbound_streams == 0),
            ("rto_initial", self.rto_initial.is_zero()),
            ("rto_min", self.rto_min.is_zero()),
            ("threshold_floor", self.threshold_floor == 0),
            ("missing_reports", self.missing_reports == 0),
            ("max_burst", self.max_burst == 0),
            ("slow_start_limit", self.slow_start_limit == 0),
            ("sack_every", self.sack_every == 0),
            ("watch.missed", self.watch.is_some_and(|watch| watch.missed == 0)),
            (
                "watch.interval in milliseconds",
                self.watch.is_some_and(|watch| millis(watch.interval) == 0),
            ),
            ("cookie_life in milliseconds", millis(self.cookie_life) == 0),
        ];
        match positive.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((field, _)) => Err(InvalidSctp::Zero(field)),
            None => Ok(()),
        }
    }

    /// Room for chunks in a packet if the path's MTU is `path_mtu`, bytes.
    pub(super) const fn packet_room(&self) -> usize {
        self.room(self.path_mtu)
    }

    /// Room for chunks in an IP packet of `mtu` bytes.
    pub(super) const fn room(&self, mtu: u32) -> usize {
        (mtu - self.lower_headers) as usize / 4 * 4 - COMMON_HEADER
    }

    /// Size of packets before anything is known of their path.
    pub(super) const fn first_mtu(&self) -> u32 {
        match self.base_mtu {
            Some(base) => base,
            None => self.path_mtu,
        }
    }

    /// Bytes by which a full packet fills a window: the "MTU" of RFC 9260 §7.2. Windows do not count IP and common headers. If this number
    /// included them, each window would allow one packet more.
    pub(super) const fn full_packet(&self) -> u32 {
        self.packet_room() as u32
    }

    /// Most bytes of user data in a DATA chunk.
    pub(super) const fn fragment(&self) -> usize {
        self.packet_room() - DATA_HEADER
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Bytes by which a DATA chunk fills a window: header and data. The RFC counts data only. Headers count here, as in FreeBSD and ns-2, so
/// that the window also bounds the memory of many small chunks.
pub(super) const fn counted(data: usize) -> u32 {
    padded(DATA_HEADER + data) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_are_valid_and_a_full_chunk_has_1452_bytes() {
        assert_eq!(SctpConfig::default().check(), Ok(()));
        assert_eq!(SctpConfig::paper().check(), Ok(()));
        assert_eq!(SctpConfig::paper().fragment(), 1452);
    }

    #[test]
    fn an_invalid_field_is_named() {
        let config = SctpConfig {
            receive_buffer: 1000,
            ..SctpConfig::default()
        };
        assert_eq!(
            config.check().map_err(|error| error.to_string()),
            Err("receive_buffer must be at least 1500".to_owned())
        );
        let config = SctpConfig {
            sack_delay: Duration::from_secs(1),
            ..SctpConfig::default()
        };
        assert_eq!(
            config.check().map_err(|error| error.to_string()),
            Err("sack_delay in milliseconds must be at most 500".to_owned())
        );
    }
}
