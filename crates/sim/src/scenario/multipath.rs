//! A bulk transfer between two multihomed hosts (paper: Caro, Amer, Stewart, section III.1).

use std::time::Duration;

use proto::Instant;
use proto::sctp::association::{Association, AssociationEvent};
use proto::sctp::failover::FailoverPolicy;
use proto::sctp::failover::temporary::DormantAction;
use proto::sctp::{SctpConfig, SctpMessage, UserData};
use serde::{Deserialize, Serialize};

use crate::flow::seconds;
use crate::multipath::{InvalidMultipath, MultipathNetwork, PathConfig};

/// The failover policy of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MultipathPolicy {
    /// [`FailoverPolicy::Temporary`] with Dormant LastDest.
    DormantLastDest,
    /// [`FailoverPolicy::Temporary`] with Dormant Primary.
    DormantPrimary,
    /// [`FailoverPolicy::Temporary`] with Dormant Hop.
    DormantHop,
    /// [`FailoverPolicy::Temporary`] with Dormant Hop as in ns-2 ([`DormantAction::HopOnce`]).
    DormantHopOnce,
    /// [`FailoverPolicy::Proposed`].
    Proposed,
    /// [`FailoverPolicy::PotentiallyFailed`] with PFMR = 0.
    PotentiallyFailed,
    /// [`FailoverPolicy::Informed`].
    Informed,
}

impl MultipathPolicy {
    /// Whether the policy has a change-over threshold (CPT).
    pub const fn has_change_over(self) -> bool {
        matches!(
            self,
            Self::DormantLastDest | Self::DormantPrimary | Self::DormantHop | Self::DormantHopOnce
        )
    }

    /// The policy's name in a figure.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DormantLastDest => "Dormant LastDest",
            Self::DormantPrimary => "Dormant Primary",
            Self::DormantHop => "Dormant Hop",
            Self::DormantHopOnce => "Dormant Hop (once)",
            Self::Proposed => "proposed (Figure 13)",
            Self::PotentiallyFailed => "potentially failed (RFC 7829)",
            Self::Informed => "informed",
        }
    }
}

/// The scenario. The default is the paper's: 80 MiB, two paths without loss, PMR = 5.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MultipathTransfer {
    /// Bytes to be transferred.
    pub bytes: u64,
    /// Bytes of each message: a full DATA chunk.
    pub message_bytes: u32,
    /// The paths. The first one is the primary.
    pub paths: Vec<PathConfig>,
    /// Path.Max.Retrans (PMR).
    pub path_max_retrans: u32,
    /// The failover policy.
    pub policy: MultipathPolicy,
    /// Change-over threshold (CPT) of the policies `Dormant…`. Without it no failover is permanent.
    pub change_over: Option<u32>,
    /// Receive buffer of both hosts, bytes.
    pub receive_buffer: u32,
    /// Number of packets with data after which an acknowledgement is sent at once.
    pub sack_every: u32,
    /// True: SCTP as in release 3.8 of ns-2's SCTP module (RFC 4960). False: as in release 3.6, which is closest to the SCTP of the paper.
    pub is_release_38: bool,
    /// Time at which the run ends, in seconds.
    #[serde(with = "seconds")]
    pub until: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Result of a transfer. Times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TransferResult {
    /// From the first INIT to the delivery of the last byte. `None` if the run ended before.
    pub from_init_s: Option<f64>,
    /// From the first DATA chunk to the delivery of the last byte. `None` if the run ended before.
    pub from_data_s: Option<f64>,
    /// Bytes delivered.
    pub delivered: u64,
    /// Failures of the primary destination that were declared. Without a cut, all these failures are spurious.
    pub failovers: u32,
    /// Failures of other destinations.
    pub alternate_failures: u32,
    /// Changes of the primary destination.
    pub promotions: u32,
    /// Retransmission timers that ran out.
    pub timeouts: u64,
    /// Packets with data that were retransmissions.
    pub retransmissions: u64,
    /// Packets with data.
    pub packets: u64,
    /// Heartbeats that the sender sent.
    pub heartbeats: u64,
}

impl Default for MultipathTransfer {
    fn default() -> Self {
        Self {
            bytes: 80 << 20,
            message_bytes: 1452,
            paths: vec![PathConfig::default(), PathConfig::default()],
            path_max_retrans: 5,
            policy: MultipathPolicy::DormantHopOnce,
            change_over: None,
            receive_buffer: 65_536,
            sack_every: 2,
            is_release_38: false,
            until: Duration::from_secs(40_000),
            seed: 1,
        }
    }
}

impl MultipathTransfer {
    /// SCTP's parameters at both hosts.
    pub fn sctp(&self) -> SctpConfig {
        let change_over = self.change_over;
        let temporary = |dormant| FailoverPolicy::Temporary { dormant, change_over };
        let paper = SctpConfig {
            path_max_retrans: self.path_max_retrans,
            receive_buffer: self.receive_buffer,
            send_buffer: self.receive_buffer.saturating_mul(2),
            sack_every: self.sack_every,
            failover: match self.policy {
                MultipathPolicy::DormantLastDest => temporary(DormantAction::LastDest),
                MultipathPolicy::DormantPrimary => temporary(DormantAction::Primary),
                MultipathPolicy::DormantHop => temporary(DormantAction::Hop),
                MultipathPolicy::DormantHopOnce => temporary(DormantAction::HopOnce),
                MultipathPolicy::Proposed => FailoverPolicy::Proposed,
                MultipathPolicy::PotentiallyFailed => FailoverPolicy::PotentiallyFailed { max_retrans: 0 },
                MultipathPolicy::Informed => FailoverPolicy::Informed,
            },
            ..SctpConfig::paper()
        };
        if self.is_release_38 {
            return SctpConfig {
                threshold_floor: 4,
                missing_reports: 3,
                initial_window: 4380,
                ..paper
            };
        }
        paper
    }

    /// Runs the transfer.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run(&self) -> Result<TransferResult, InvalidMultipath> {
        let mut network = MultipathNetwork::new([self.sctp(); 2], &self.paths, self.seed)?;
        let mut left = self.bytes;
        let mut result = TransferResult::default();
        network.connect();
        let until = Instant::ZERO + self.until;
        let mut first_data = None;
        while let Some(host) = network.step(until) {
            if let Some(association) = network.association(host) {
                if host == 0 {
                    self.write(association, &mut left);
                } else {
                    result.delivered += read(association);
                }
            }
            let is_first = host == 0 && first_data.is_none();
            network.settle(host);
            if is_first
                && network
                    .association(0)
                    .is_some_and(|sender| sent_packets(sender) > 0)
            {
                first_data = Some(network.now());
            }
            if result.delivered == self.bytes {
                let now = network.now();
                result.from_init_s = Some(now.since(Instant::ZERO).as_secs_f64());
                result.from_data_s = first_data.map(|first| now.since(first).as_secs_f64());
                break;
            }
        }
        count(&mut network, &mut result);
        Ok(result)
    }

    /// Fills the send buffer.
    fn write(&self, association: &mut Association, left: &mut u64) {
        while *left > 0 {
            // The cast loses nothing: the minimum is at most `message_bytes`, a `u32`.
            let length = u64::from(self.message_bytes).min(*left) as u32;
            let message = SctpMessage {
                stream: 0,
                protocol: 0,
                is_unordered: false,
                data: UserData::Counted(length),
            };
            if association.send(message).is_err() {
                return;
            }
            *left -= u64::from(length);
        }
    }
}

/// Reads everything that has arrived. Returns the number of bytes.
fn read(association: &mut Association) -> u64 {
    let mut bytes = 0;
    while let Some(message) = association.receive() {
        bytes += message.data.len() as u64;
    }
    bytes
}

fn sent_packets(association: &Association) -> u64 {
    association
        .destinations()
        .iter()
        .map(|path| path.counts().packets)
        .sum()
}

/// Counts what happened at the sender.
fn count(network: &mut MultipathNetwork, result: &mut TransferResult) {
    let mut primary = 0;
    for (_, event) in network.events(0) {
        match event {
            AssociationEvent::PathFailed(path) if path.index() == primary => result.failovers += 1,
            AssociationEvent::PathFailed(_) => result.alternate_failures += 1,
            AssociationEvent::PrimaryChanged(path) => {
                primary = path.index();
                result.promotions += 1;
            }
            _ => {}
        }
    }
    for path in network
        .association(0)
        .iter()
        .flat_map(|sender| sender.destinations())
    {
        let counts = path.counts();
        result.timeouts += counts.timeouts;
        result.packets += counts.packets;
        result.retransmissions += counts.retransmissions;
        result.heartbeats += counts.heartbeats;
    }
}
