//! Makes the status of a tunnel.

use linux::sctp::SctpWire;
use proto::sctp::association::{Association, AssociationCounts};
use proto::sctp::failover::quick::Reach;
use proto::sctp::{Destination, PathId};

use super::session::{SessionCounts, TunnelSession, role_name};
use super::settings::TunnelSettings;
use crate::control::{
    CounterStatus, TunnelAssociationStatus, TunnelPathStatus, TunnelServiceStatus, TunnelStatus,
};

/// Sums of the counters of all associations that have ended, and the number of refused clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct TunnelTotals {
    pub sessions: SessionCounts,
    pub associations: AssociationCounts,
    /// Associations that ended.
    pub ended: u64,
    /// Clients that were refused.
    pub refused_clients: u64,
}

impl TunnelTotals {
    /// Adds the counters of an association and its session, which end now.
    pub fn on_end(&mut self, session: SessionCounts, association: Option<AssociationCounts>) {
        self.ended += 1;
        self.add(session, association.unwrap_or_default());
    }

    fn add(&mut self, session: SessionCounts, association: AssociationCounts) {
        self.sessions += session;
        self.associations += association;
    }
}

/// The status of one end of the tunnel. Each of the `sessions` comes with its association.
pub fn status<'a>(
    settings: &TunnelSettings,
    wire: &SctpWire,
    totals: &TunnelTotals,
    sessions: impl Iterator<Item = (&'a TunnelSession, &'a Association)> + Clone,
) -> TunnelStatus {
    let mut all = *totals;
    for (session, association) in sessions.clone() {
        all.add(session.counts, association.counts());
    }
    let counts = all.sessions;
    let services = settings
        .services
        .iter()
        .map(|(name, address)| TunnelServiceStatus {
            name: name.clone(),
            address: *address,
        });
    TunnelStatus {
        name: settings.name.clone(),
        role: role_name(settings.role).to_owned(),
        sealed: settings.key.is_some(),
        services: services.collect(),
        associations: sessions.map(|(session, one)| association(session, one)).collect(),
        connections_limit: settings.connections.into(),
        opened: counts.opened,
        reset: counts.resets,
        refused: counts.refused + all.refused_clients,
        sent_bytes: counts.sent_bytes,
        received_bytes: counts.received_bytes,
        associations_ended: all.ended,
        counters: counters(wire, all.associations),
    }
}

fn association(session: &TunnelSession, association: &Association) -> TunnelAssociationStatus {
    let current = association.current();
    let paths = (0..).map(PathId).zip(association.destinations());
    TunnelAssociationStatus {
        ready: session.is_ready(),
        connections: session.open_connections() as u64,
        unacknowledged_bytes: association.unacknowledged() as u64,
        paths: paths
            .map(|(id, destination)| path(destination, id == current))
            .collect(),
    }
}

fn path(destination: &Destination, is_current: bool) -> TunnelPathStatus {
    let state = match destination.reach() {
        _ if !destination.is_confirmed() => "unconfirmed",
        Reach::Active => "active",
        Reach::PotentiallyFailed => "doubtful",
        Reach::Failed => "failed",
    };
    let counts = destination.counts();
    TunnelPathStatus {
        address: destination.address(),
        state: state.to_owned(),
        current: is_current,
        rtt_ms: destination.rtt().map(|rtt| rtt.as_secs_f64() * 1e3),
        rto_ms: destination.rto().as_secs_f64() * 1e3,
        window_bytes: destination.window().window().into(),
        mtu: destination.mtu().confirmed().into(),
        errors: destination.errors().into(),
        failures: counts.failures,
        timeouts: counts.timeouts,
        retransmissions: counts.retransmissions,
        lost_heartbeats: counts.lost_heartbeats,
        sent_bytes: counts.sent_bytes,
        received_bytes: counts.received_bytes,
    }
}

fn counters(wire: &SctpWire, associations: AssociationCounts) -> CounterStatus {
    let (sockets, endpoint) = (wire.counts(), wire.endpoint.counts());
    [
        ("malformed", sockets.malformed),
        ("unsent", sockets.unsent),
        ("received_packets", sockets.received),
        ("received_batches", sockets.received_batches),
        ("sent_packets", sockets.sent),
        ("sent_batches", sockets.batches),
        ("unbatched_sockets", sockets.unbatched),
        ("inits", endpoint.inits),
        ("refused_inits", endpoint.refused_inits),
        ("forged_cookies", endpoint.forged_cookies),
        ("stale_cookies", endpoint.stale_cookies),
        ("replayed_cookies", endpoint.replayed_cookies),
        ("unproven_cookies", endpoint.unproven_cookies),
        ("strays", endpoint.strays),
        ("dropped_answers", endpoint.dropped),
        ("forged", associations.forged),
        ("misplaced", associations.misplaced),
        ("duplicates", associations.duplicates),
        ("overflows", associations.overflows),
        ("old_sacks", associations.old_sacks),
        ("dropped_replies", associations.dropped),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .into()
}
