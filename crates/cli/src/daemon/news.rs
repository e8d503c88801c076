//! Logs the node's reports.

use proto::action::Report;
use proto::node::Node;

use super::carry_out::Executor;

impl Executor {
    /// Logs a report.
    pub(super) fn tell(&self, node: &Node, report: &Report) {
        match report {
            Report::Role {
                service,
                from,
                to,
                epoch,
            } => {
                tracing::info!(service = self.service_name(*service), ?from, ?to, epoch, "role");
            }
            Report::Failed { service, why } => tell_failure(self.service_name(*service), Some(why)),
            Report::Mended { service } => tell_failure(self.service_name(*service), None),
            Report::Doubted {
                service, is_primary, ..
            } => tell_doubt(self.service_name(*service), *is_primary),
            Report::Confirmed { service } => {
                let service = self.service_name(*service);
                let what = "the other node did not go on alone: this node goes on as before";
                tracing::info!(service, "{what}");
            }
            Report::TakenOver { service } => {
                let Some(taken) = node.takeovers(*service).last() else {
                    return;
                };
                let took = taken.first_live.map(|live| live.since(taken.declared));
                tracing::info!(
                    service = self.service_name(*service),
                    connections = taken.connections,
                    restored = taken.restored,
                    reset = taken.reset,
                    first_live = ?took,
                    all = ?taken.decided.since(taken.declared),
                    "taken over"
                );
            }
            Report::Unrestorable {
                service,
                client,
                reason,
            } => {
                tracing::warn!(service = self.service_name(*service), %client, reason, "connection lost");
            }
            Report::TwoVoices { service, epoch } => {
                tracing::error!(
                    service = self.service_name(*service),
                    epoch,
                    "BOTH NODES SPEAK for the service: they could not reach each other and both took it"
                );
            }
            Report::Contradiction { service, what } => {
                tracing::error!(
                    service = self.service_name(*service),
                    what,
                    "configurations contradict each other"
                );
            }
            Report::Synced { service, held } => {
                tracing::info!(
                    service = self.service_name(*service),
                    ?held,
                    "the replica's state is the primary's: new connections are protected"
                );
            }
            Report::NotSynced { service, why } => {
                tracing::warn!(
                    service = self.service_name(*service),
                    why,
                    "the replica's state is not the primary's: new connections are not protected"
                );
            }
        }
    }
}

/// Logs that a step in a service's network failed (`why`), or that all steps have succeeded again (`None`).
fn tell_failure(service: &str, why: Option<&str>) {
    match why {
        Some(why) => tracing::error!(
            service,
            why,
            "the service has failed on this node: it is mute here until this succeeds; others go on"
        ),
        None => tracing::info!(service, "the service's network is whole again on this node"),
    }
}

/// Logs a doubt: the other node may have gone on alone while this node's agent was absent, or after this node had left.
fn tell_doubt(service: &str, is_primary: bool) {
    let what = if is_primary {
        "the other node may have gone on alone; this node is mute until that one says that it did not"
    } else {
        "the other node may have gone on alone; until it says that it did not, none of its connections is taken over"
    };
    tracing::warn!(service, "{what}");
}
