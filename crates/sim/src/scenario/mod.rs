//! The papers' networks. Each scenario turns a configuration into results.

pub mod cluster;
pub mod dumbbell;
pub mod edge;
pub mod multipath;
pub mod rate;
pub mod shared_paths;
pub mod timeouts;

use proto::Instant;
use proto::edge::InvalidRecovery;
use proto::rate::InvalidRate;
use thiserror::Error;

use crate::flow::FlowId;
use crate::flow::InvalidFlowConfig;
use crate::link::InvalidLink;
use crate::net::FlowNetwork;

/// Result of one flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowResult {
    /// When the flow's first SYN left.
    pub start: Instant,
    /// When everything was acknowledged, if that was before the run ended.
    pub end: Option<Instant>,
    /// Number of expired retransmission timers, the SYN's included.
    pub timeouts: u32,
    /// Number of expired retransmission timers of the SYN.
    pub syn_timeouts: u32,
    /// The slow start threshold at the end, in segments.
    pub threshold: f64,
    /// Number of repetitions among `segments`. A segment that is sent three times counts as two.
    pub retransmitted: u64,
    /// Number of segments sent, the SYN included.
    pub segments: u64,
}

impl FlowResult {
    /// Time from the first SYN to the last acknowledgement, in seconds.
    pub fn completion_s(&self) -> Option<f64> {
        self.end.map(|end| end.since(self.start).as_secs_f64())
    }

    fn of(network: &FlowNetwork, flow: FlowId) -> Self {
        let sender = network.sender(flow);
        let counts = sender.counts();
        Self {
            start: sender.started().unwrap_or_default(),
            end: sender.completed(),
            timeouts: counts.timeouts,
            syn_timeouts: counts.syn_timeouts,
            threshold: sender.slow_start_threshold(),
            retransmitted: counts.retransmitted,
            segments: counts.segments,
        }
    }
}

/// Largest number of hosts, flows or time steps of a scenario. Each host or flow has up to four links, and the simulator numbers links with
/// 24 bits.
const MOST: u32 = 1_000_000;

/// The invalid part of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum InvalidScenario {
    /// A link's field.
    #[error("link: {0}")]
    Link(#[from] InvalidLink),
    /// A flow's field.
    #[error("tcp.{0}")]
    Flow(#[from] InvalidFlowConfig),
    /// A field of the edges' local recovery.
    #[error("recovery.{0}")]
    Recovery(#[from] InvalidRecovery),
    /// A field of the edges' rate control.
    #[error("sharing.{0}")]
    Sharing(#[from] InvalidRate),
    /// A field is 0, but the scenario needs a positive number or duration.
    #[error("{0} must be positive")]
    Zero(&'static str),
    /// The field leads to more than [`MOST`] hosts, flows or time steps.
    #[error("{0}: more than {MOST} hosts, flows or time steps cannot be simulated")]
    Many(&'static str),
    /// A time is outside the run.
    #[error("{0} must be within the run")]
    Late(&'static str),
    /// The heartbeats need longer to notice the failure than the failover lasts.
    #[error("recovery.missed × recovery.heartbeat must not be longer than the failover")]
    Detection,
    /// A string works again before the failover ends, or after the run.
    #[error("repaired_at must be after the failover and within the run")]
    Repair,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proto::edge::cache::CachePolicy;

    use super::cluster::ClusterScenario;
    use super::dumbbell::Dumbbell;
    use super::edge::{EdgeRecovery, Sharing};
    use super::rate::RateScenario;
    use crate::flow::TcpVariant;

    #[test]
    fn what_is_not_said_is_as_by_default_and_what_is_unknown_is_refused() {
        let text = r#"{"failover": 3, "tcp": {"variant": "sack", "rto": {"min": 1.5, "phase": 0.0005}}}"#;
        let cluster: ClusterScenario = serde_json::from_str(text).unwrap();
        assert_eq!(cluster.failover, Duration::from_secs(3));
        assert_eq!(cluster.tcp.variant, TcpVariant::Sack);
        assert_eq!(cluster.tcp.rto.min, Duration::from_millis(1500));
        assert_eq!(cluster.tcp.rto.phase, Some(Duration::from_micros(500)));
        assert_eq!(cluster.hosts, ClusterScenario::default().hosts);
        assert_eq!(cluster.recovery, None);
        let text = r#"{"recovery": {"policy": "all", "heartbeat": 0.1}, "sharing": {"interval": 0.4}}"#;
        let rate: RateScenario = serde_json::from_str(text).unwrap();
        let recovery = rate.recovery.unwrap();
        assert_eq!((recovery.policy, recovery.missed), (CachePolicy::All, 3));
        assert_eq!(recovery.heartbeat, Duration::from_millis(100));
        assert_eq!(rate.sharing.unwrap().interval, Duration::from_millis(400));
        for (text, expected) in [
            (r#"{"colour": 1}"#, "unknown field `colour`"),
            (r#"{"tcp": {"rto": {"mini": 1}}}"#, "unknown field `mini`"),
            (r#"{"failover": -1}"#, "-1 is not a number of seconds"),
            (r#"{"recovery": {"policy": "most"}}"#, "unknown variant `most`"),
            (r#"{"recovery": {"colour": 1}}"#, "unknown field `colour`"),
        ] {
            let error = serde_json::from_str::<ClusterScenario>(text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(serde_json::from_str::<RateScenario>(r#"{"colour": 1}"#).is_err());
        assert!(serde_json::from_str::<Dumbbell>(r#"{"colour": 1}"#).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |change: fn(&mut ClusterScenario)| {
            let mut cluster = ClusterScenario::default();
            change(&mut cluster);
            cluster.run().unwrap_err().to_string()
        };
        assert!(refused(|cluster| cluster.gap = Duration::ZERO).starts_with("gap"));
        assert!(refused(|cluster| cluster.loss = -0.1).contains("loss must be a probability"));
        assert!(refused(|cluster| cluster.access_rate_bits_per_s = 0).contains("rate_bits_per_s"));
        assert!(refused(|cluster| cluster.failover_at = Duration::from_secs(500)).starts_with("failover"));
        assert!(refused(|cluster| cluster.tcp.mss = 0).starts_with("tcp.mss"));
        let recovers = |change: fn(&mut EdgeRecovery)| {
            let mut recovery = EdgeRecovery::default();
            change(&mut recovery);
            let cluster = ClusterScenario {
                recovery: Some(recovery),
                ..ClusterScenario::default()
            };
            cluster.run().unwrap_err().to_string()
        };
        assert!(recovers(|recovery| recovery.ack_copies = 1).starts_with("recovery.ack_copies"));
        assert!(recovers(|recovery| recovery.missed = 51).starts_with("recovery.missed"));
        let rate = RateScenario {
            flows: 0,
            ..RateScenario::default()
        };
        assert!(rate.run().unwrap_err().to_string().starts_with("flows"));
        let rate = RateScenario {
            repaired_at: Some(Duration::from_secs(7)),
            ..RateScenario::default()
        };
        let error = rate.run().unwrap_err().to_string();
        assert!(
            error.starts_with("repaired_at must be after the failover"),
            "{error}"
        );
        let rate = RateScenario {
            sharing: Some(Sharing {
                interval: Duration::from_millis(90),
                ..Sharing::default()
            }),
            ..RateScenario::default()
        };
        assert!(
            rate.run()
                .unwrap_err()
                .to_string()
                .starts_with("sharing.interval")
        );
    }
}
