//! Configuration of a flow.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use super::packet::HEADER;
use super::seconds;

/// Number of duplicate acknowledgements that indicate a loss (RFC 5681 §3.2).
pub(super) const DUPLICATES: u32 = 3;

/// How a sender finds and repairs losses, and how a loss reduces its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TcpVariant {
    /// Fast retransmit, then slow start from one segment (Jacobson 1988).
    Tahoe,
    /// Fast retransmit and fast recovery (RFC 5681 §3.2).
    Reno,
    /// Stays in fast recovery until everything sent before it is acknowledged (RFC 6582).
    #[default]
    NewReno,
    /// Selective acknowledgements (RFC 2018) with an estimate of the bytes in flight (RFC 6675).
    Sack,
    /// Selective acknowledgements as ns-2's agent `Sack1` has them (Fall and Floyd 1996): any hole below a SACK block counts as lost, and
    /// the number of segments in flight is derived from the duplicate acknowledgements, not from the scoreboard.
    Sack1,
    /// Selective acknowledgements, loss detection by time, and a probe for a lost tail (RFC 8985), as in Linux.
    Rack,
}

/// How the window grows in congestion avoidance, and how much of it a loss leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Growth {
    /// One segment per round trip; a loss leaves half (RFC 5681).
    #[default]
    Reno,
    /// Along a cubic curve; a loss leaves 70 % (RFC 9438).
    Cubic,
}

/// How a connection is opened and closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowHandshake {
    /// SYN, SYN-ACK, ACK; FIN both ways.
    #[default]
    Full,
    /// A SYN, which is acknowledged like data; no close. ns-2's one-way agents with `syn_`.
    OneWay,
}

/// Differences between ns-2's agents and the RFCs. Each field names what ns-2 does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Departures {
    /// A loss halves the allowed window (`slowdown()`). The threshold is this half in whole segments. RFC 5681 equation 4 halves the data
    /// in flight.
    pub halve_window: bool,
    /// A repeated timeout of one segment lowers the slow start threshold again, to two segments. With
    /// RFC 5681 §3.1, the threshold stays.
    pub halve_again: bool,
    /// A lost SYN lowers the threshold to two segments; RFC 5681 §3.1 only reduces the initial window to one segment.
    pub halve_on_syn: bool,
    /// After a lost SYN, the backed-off timeout holds until a round trip is measured. RFC 6298 §5.7 sets 3 s instead.
    pub keep_syn_backoff: bool,
    /// NewReno sends at most two segments per acknowledgement while duplicates come in (`send_much(0, 0, 2)`).
    pub recovery_burst: bool,
    /// When NewReno leaves recovery, it keeps the window that the partial acknowledgements left (`exit_recovery_fix_` 0). RFC 6582
    /// §3.2 step 3 sets the window to the threshold.
    pub keep_deflated: bool,
    /// If the last received segment is repeated, the receiver delays the acknowledgement as if the segment were new (`DelAckSink`).
    /// RFC 5681 §4.2 acknowledges duplicates at once.
    pub delay_repeated: bool,
}

impl Departures {
    /// All departures of ns-2.
    pub const NS2: Self = Self {
        halve_window: true,
        halve_again: true,
        halve_on_syn: true,
        keep_syn_backoff: true,
        recovery_burst: true,
        keep_deflated: true,
        delay_repeated: true,
    };
}

/// The retransmission timeout's bounds (RFC 6298).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RtoConfig {
    /// Initial timeout of the SYN, in seconds.
    #[serde(with = "seconds")]
    pub syn: Duration,
    /// Timeout of data before the first measured round trip, in seconds.
    #[serde(with = "seconds")]
    pub initial: Duration,
    /// Smallest timeout before backoff, in seconds.
    #[serde(with = "seconds")]
    pub min: Duration,
    /// Largest timeout, backoff included, in seconds.
    #[serde(with = "seconds")]
    pub max: Duration,
    /// Whether `min` is a lower bound of the time that is added to the smoothed round trip (Linux's `tcp_rto_min`). If not, `min` is the
    /// smallest timeout (RFC 6298 §2.4).
    pub min_above_round_trip: bool,
    /// Number of lost SYNs that do not double the timeout, unlike RFC 6298 §5.5 (Linux's `tcp_syn_linear_timeouts`).
    pub linear_syns: u32,
    /// Tick of the clock that measures round trips, in seconds: G of RFC 6298 §4 (ns-2's `tcpTick_`).
    #[serde(with = "seconds")]
    pub tick: Duration,
    /// Time from the clock's last tick to the start of the simulation, in seconds. Must be below one tick. By default the phase is drawn
    /// for each flow from the network's seed, as in ns-2 (`boot_time_`).
    #[serde(with = "seconds::optional")]
    pub phase: Option<Duration>,
}

impl Default for RtoConfig {
    /// RFC 6298 with a clock of 1 ms.
    fn default() -> Self {
        Self {
            syn: Duration::from_secs(1),
            initial: Duration::from_secs(1),
            min: Duration::from_secs(1),
            max: Duration::from_secs(60),
            min_above_round_trip: false,
            linear_syns: 0,
            tick: Duration::from_millis(1),
            phase: None,
        }
    }
}

/// Configuration of both ends of a flow. The default follows the RFCs.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowConfig {
    /// Loss recovery.
    pub variant: TcpVariant,
    /// Congestion avoidance.
    pub growth: Growth,
    /// Opening and closing.
    pub handshake: FlowHandshake,
    /// Bytes of data per segment.
    pub mss: u16,
    /// Congestion window after the handshake, in segments.
    pub initial_window: u32,
    /// Window that the receiver advertises, in segments: W_max.
    pub max_window: u32,
    /// Initial slow start threshold, in segments. `None`: as high as the advertised window.
    pub initial_threshold: Option<u32>,
    /// Whether the sender sends a new segment for each of the first two duplicate acknowledgements (RFC 3042).
    pub limited_transmit: bool,
    /// Time that an acknowledgement waits for a second segment, in seconds (RFC 5681 §4.2). With `None`, each
    /// segment is acknowledged at once.
    #[serde(with = "seconds::optional")]
    pub delayed_ack: Option<Duration>,
    /// Retransmission timeout.
    pub rto: RtoConfig,
    /// Departures from the RFCs that ns-2 makes.
    pub departures: Departures,
}

impl Default for FlowConfig {
    fn default() -> Self {
        Self {
            variant: TcpVariant::default(),
            growth: Growth::default(),
            handshake: FlowHandshake::default(),
            mss: 1460,
            initial_window: 3, // RFC 5681 §3.1 for this segment size
            max_window: 64,
            initial_threshold: None,
            limited_transmit: true,
            delayed_ack: Some(Duration::from_millis(100)),
            rto: RtoConfig::default(),
            departures: Departures::default(),
        }
    }
}

/// The field of a [`FlowConfig`] that is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidFlowConfig {
    /// With 0, nothing would ever be sent, or time would stand still.
    #[error("{0} must be positive")]
    Zero(&'static str),
    /// The advertised window would not fit its field.
    #[error("max_window must be below 4 GiB, not {0} segments")]
    Window(u32),
    /// A segment would not fit an IP packet.
    #[error("mss must leave 40 bytes of an IP packet's 65,535 for headers")]
    Segment,
    /// The timeouts contradict each other.
    #[error("rto.{0} must be between rto.min and rto.max")]
    Rto(&'static str),
    /// The phase is not shorter than a tick.
    #[error("rto.phase must be below rto.tick")]
    Phase,
}

impl FlowConfig {
    /// A one-way agent of ns-2 2.35, whose windows count packets. Windows and timeouts are that release's defaults, and its clock has ticks
    /// of 10 ms. The segment size and the delayed acknowledgement are those of [`FlowConfig::default`].
    pub fn ns2(variant: TcpVariant) -> Self {
        Self {
            variant,
            handshake: FlowHandshake::OneWay,
            initial_window: 2, // windowInit_
            max_window: 20,    // window_
            rto: RtoConfig {
                syn: Duration::from_secs(3), // rtxcur_init_
                initial: Duration::from_secs(3),
                min: Duration::from_millis(200),
                max: Duration::from_secs(60),
                tick: Duration::from_millis(10),
                ..RtoConfig::default()
            },
            departures: Departures::NS2,
            ..Self::default()
        }
    }

    /// A host of today: CUBIC, selective acknowledgements, RACK and TLP, with the constants of Linux 6.5 and later.
    pub fn linux() -> Self {
        Self {
            variant: TcpVariant::Rack,
            growth: Growth::Cubic,
            initial_window: 10, // TCP_INIT_CWND
            max_window: 2_200,  // 3 MB, about the most that net.ipv4.tcp_wmem allows
            initial_threshold: Some(u32::MAX),
            delayed_ack: Some(Duration::from_millis(40)), // TCP_DELACK_MIN
            rto: RtoConfig {
                syn: Duration::from_secs(1), // TCP_TIMEOUT_INIT
                initial: Duration::from_secs(1),
                min: Duration::from_millis(200), // TCP_RTO_MIN
                max: Duration::from_secs(120),   // TCP_RTO_MAX
                min_above_round_trip: true,
                linear_syns: 4, // net.ipv4.tcp_syn_linear_timeouts
                ..RtoConfig::default()
            },
            ..Self::default()
        }
    }

    /// Checks whether a flow can have this configuration.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self) -> Result<(), InvalidFlowConfig> {
        let rto = &self.rto;
        let zero = [
            ("mss", self.mss == 0),
            ("initial_window", self.initial_window == 0),
            ("max_window", self.max_window == 0),
            ("initial_threshold", self.initial_threshold == Some(0)),
            ("delayed_ack", self.delayed_ack == Some(Duration::ZERO)),
            ("rto.min", rto.min.is_zero()),
            ("rto.tick", rto.tick.is_zero()),
        ];
        if let Some((field, _)) = zero.iter().find(|(_, zero)| *zero) {
            return Err(InvalidFlowConfig::Zero(field));
        }
        if self.max_window.checked_mul(u32::from(self.mss)).is_none() {
            return Err(InvalidFlowConfig::Window(self.max_window));
        }
        if u32::from(self.mss) + HEADER > u32::from(u16::MAX) {
            return Err(InvalidFlowConfig::Segment);
        }
        for (field, value) in [("syn", rto.syn), ("initial", rto.initial)] {
            if value < rto.min || value > rto.max {
                return Err(InvalidFlowConfig::Rto(field));
            }
        }
        if rto.phase.is_some_and(|phase| phase >= rto.tick) {
            return Err(InvalidFlowConfig::Phase);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_and_each_error_names_its_field() {
        assert_eq!(FlowConfig::default().check(), Ok(()));
        assert_eq!(FlowConfig::ns2(TcpVariant::Reno).check(), Ok(()));
        assert_eq!(FlowConfig::linux().check(), Ok(()));
        let refused = |change: fn(&mut FlowConfig)| {
            let mut config = FlowConfig::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(refused(|config| config.mss = 0).starts_with("mss"));
        assert!(refused(|config| config.initial_window = 0).starts_with("initial_window"));
        assert!(refused(|config| config.max_window = u32::MAX).starts_with("max_window"));
        assert!(refused(|config| config.initial_threshold = Some(0)).starts_with("initial_threshold"));
        assert!(refused(|config| config.delayed_ack = Some(Duration::ZERO)).starts_with("delayed_ack"));
        assert!(refused(|config| config.rto.syn = Duration::ZERO).starts_with("rto.syn"));
        assert!(refused(|config| config.rto.initial = Duration::from_secs(61)).starts_with("rto.initial"));
        assert!(refused(|config| config.rto.phase = Some(config.rto.tick)).starts_with("rto.phase"));
    }
}
