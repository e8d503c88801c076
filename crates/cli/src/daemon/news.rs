//! Logs the node's reports.

use proto::action::{OperatorReport, ServiceIndex};
use proto::node::Node;

use super::kernel::LinuxKernel;

impl LinuxKernel {
    /// Logs a report.
    pub(super) fn tell(&self, node: &Node, index: ServiceIndex, report: &OperatorReport) {
        let service = self.service_name(index);
        match report {
            OperatorReport::Role { from, to, epoch } => {
                tracing::info!(service, ?from, ?to, epoch, "role");
            }
            OperatorReport::Failed { why } => tell_failure(service, Some(why)),
            OperatorReport::Mended => tell_failure(service, None),
            OperatorReport::Doubted { is_primary, .. } => tell_doubt(service, *is_primary),
            OperatorReport::Confirmed => {
                let what = "the other node did not go on alone: this node goes on as before";
                tracing::info!(service, "{what}");
            }
            OperatorReport::TakenOver => {
                let Some(taken) = node.service(index).takeovers().last() else {
                    return;
                };
                let took = taken.first_live.map(|live| live.since(taken.declared));
                tracing::info!(
                    service,
                    connections = taken.connections,
                    restored = taken.restored,
                    reset = taken.reset,
                    first_live = ?took,
                    all = ?taken.decided.since(taken.declared),
                    "taken over"
                );
            }
            OperatorReport::Migrated { connections } => {
                tracing::info!(service, connections, "connections have moved here");
            }
            OperatorReport::LeftAnnex { connections, reason } => {
                tracing::warn!(
                    service,
                    connections,
                    reason,
                    "taking over connections that an annex had"
                );
            }
            OperatorReport::Unrestorable { client, reason } => {
                tracing::warn!(service, %client, reason, "connection lost");
            }
            OperatorReport::TwoVoices { epoch } => {
                tracing::error!(
                    service,
                    epoch,
                    "BOTH NODES SPEAK for the service: they could not reach each other and both took it"
                );
            }
            OperatorReport::Contradiction { what } => {
                tracing::error!(service, what, "configurations contradict each other");
            }
            OperatorReport::Synced { held } => {
                tracing::info!(
                    service,
                    ?held,
                    "the replica's state is the primary's: new connections are protected"
                );
            }
            OperatorReport::NotSynced { why } => {
                tracing::warn!(
                    service,
                    why,
                    "the replica's state is not the primary's: new connections are not protected"
                );
            }
        }
    }
}

/// Logs that a step of changing a service's network settings failed (`why`), or that all steps have succeeded again (`None`).
fn tell_failure(service: &str, why: Option<&str>) {
    match why {
        Some(why) => tracing::error!(
            why,
            "the service has failed on this node: it is mute here until the failed step succeeds; other services go on"
        ),
        None => tracing::info!(service, "the service's network is whole again on this node"),
    }
}

/// Logs a doubt: the other node may have gone on alone while this node's agent was absent, or after this node had left.
fn tell_doubt(service: &str, is_primary: bool) {
    let what = if is_primary {
        "the other node may have gone on alone; this node is mute until the other node denies it"
    } else {
        "the other node may have gone on alone; until the other node denies it, none of its connections is taken over"
    };
    tracing::warn!(service, "{what}");
}
