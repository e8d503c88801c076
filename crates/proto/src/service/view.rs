//! A node's state for the operator: its roles, when it took them, and why a service is simplex.

use std::net::SocketAddr;

use super::{Service, Unfollowed};
use crate::Instant;
use crate::action::{ApplicationState, ServiceBeat};
use crate::claim::Claim;
use crate::connection::UnprotectedCause;
use crate::detector::Detector;
use crate::migration::MigrationBeat;
use crate::orphans::{Orphans, ServiceOrphans};
use crate::path::{PathWord, Reachability};
use crate::role::{Role, RoleSince};
use crate::state_sync::StateSync;
use crate::table::Table;
use crate::takeover::{TakeoverReport, TakeoverSums};

/// Why a service is simplex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Simplex {
    /// The two configurations contradict each other about the primary.
    Contradiction,
    /// The peer has not been heard of since the start.
    NotHeard,
    /// The peer is heard, but the roles are not agreed yet.
    NotAgreed,
    /// The peer is silent.
    PeerSilent,
    /// The peer is heard, but its role does not complement this node's.
    PeerIs(Role),
    /// The primary is gone; its connections are being decided.
    TakingOver,
    /// The backup is gone, and this node waits for the right to speak alone.
    Claiming,
    /// This node serves alone.
    Sole,
    /// The peer serves alone.
    Standby,
    /// A step for the service failed in this node's network.
    Failed,
    /// This node has no part in the service, by the operator's order.
    Left,
    /// The peer serves alone, and this node is about to be its wire.
    Returning,
    /// Both nodes do their part, but the backup's application does not serve.
    Server(ApplicationState),
    /// Both nodes do their part, but a path is broken.
    Path(PathFault),
}

/// A fault of a service's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathFault {
    /// The service's interface on this node has no carrier.
    NoCarrier,
    /// The nodes do not reach each other through the service's interfaces.
    Apart,
    /// This node does not reach outside hosts.
    Own,
    /// The peer does not reach outside hosts.
    Peer,
    /// Neither node reaches outside hosts.
    Both,
}

/// A service's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathView {
    /// The fault. `None` if no fault is known.
    pub fault: Option<PathFault>,
    /// This node's side.
    pub own: PathWord,
    /// The peer's side, as the peer last reported it.
    pub peer: PathWord,
    /// Whether the service's interface has a carrier.
    pub has_carrier: bool,
    /// Number of times that the path broke since the agent began.
    pub losses: u64,
}

impl std::fmt::Display for PathFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoCarrier => "the service's interface on this node has no carrier",
            Self::Apart => "the nodes do not reach each other through the service's interfaces",
            Self::Own => "this node does not reach outside hosts through the service's interface",
            Self::Peer => "the peer does not reach outside hosts through its service's interface",
            Self::Both => "neither node reaches outside hosts through the service's interface",
        })
    }
}

/// Why an operator's order is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderRefusal {
    /// The service is simplex, so the peer could not go on.
    Simplex(Simplex),
    /// Connections are being taken over at this moment.
    Busy,
    /// This node is not the service's primary.
    NotPrimary,
}

impl std::fmt::Display for OrderRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Simplex(why) => why.fmt(f),
            Self::Busy => f.write_str("connections are being taken over at this moment; try again"),
            Self::NotPrimary => f.write_str("this node is not its primary; give the order there"),
        }
    }
}

impl std::fmt::Display for Simplex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Contradiction => "the two nodes' configurations contradict each other",
            Self::NotHeard => "the peer has not been heard of since the start",
            Self::NotAgreed => "the roles are not agreed yet",
            Self::PeerSilent => "the peer is silent",
            Self::PeerIs(role) => return write!(f, "the peer is {role}"),
            Self::TakingOver => "the primary is gone; its connections are being taken over",
            Self::Claiming => "the backup is gone; this node claims the VIP",
            Self::Sole => "this node serves alone",
            Self::Standby => "the peer serves alone",
            Self::Failed => {
                "a network step for this service failed on this node; the step is tried again until it succeeds"
            }
            Self::Left => {
                "this node has no part in the service until `steadfast drain NODE --off` or `steadfast bypass SERVICE --off`"
            }
            Self::Returning => "this node is about to be the peer's wire",
            Self::Path(fault) => return fault.fmt(f),
            Self::Server(ApplicationState::Hung) => "the application on the backup is hung",
            Self::Server(_) => "the application on the backup is dead: nobody listens",
        })
    }
}

impl Service {
    /// The service's connections.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The service's virtual address and port.
    pub fn vip(&self) -> SocketAddr {
        self.table.config().vip
    }

    /// The role.
    pub fn role(&self) -> Role {
        self.standing.role()
    }

    /// The epoch of the role.
    pub fn epoch(&self) -> u64 {
        self.standing.epoch()
    }

    /// The role and its epoch.
    pub fn role_and_epoch(&self) -> (Role, u64) {
        (self.role(), self.epoch())
    }

    /// The last roles on this node, in order, up to the current role. Empty if the service still has the earlier agent's role.
    pub fn roles(&self) -> impl Iterator<Item = &RoleSince> {
        self.roles.iter()
    }

    /// The last takeovers, in order.
    pub fn takeovers(&self) -> &[TakeoverReport] {
        self.reports.last()
    }

    /// Sums over all takeovers.
    pub fn takeover_sums(&self) -> TakeoverSums {
        self.reports.sums()
    }

    /// Number of segments that are malformed or belong to no known connection.
    pub fn unfollowed(&self) -> Unfollowed {
        self.unfollowed
    }

    /// Number of connections for which the two nodes' parts are exchanged: their application is on the backup, and the primary logs them.
    pub fn reversed(&self) -> usize {
        self.reversed.len()
    }

    /// Whether connections live on this node although it is the backup, and the primary follows them.
    pub fn has_reversed_here(&self) -> bool {
        self.reversed.has_here()
    }

    /// Whether this client's connection is such a connection.
    pub fn is_reversed_here(&self, client: &SocketAddr) -> bool {
        self.reversed.is_here(client)
    }

    /// The peer's last report.
    pub fn peer_beat(&self) -> Option<&ServiceBeat> {
        self.peer.as_ref()
    }

    /// How far the primary's state is copied to the replica's server on this node. `None` if the operator has not configured a copy.
    pub fn state_sync(&self) -> Option<&StateSync> {
        self.sync.as_ref()
    }

    /// The state of the application on this node.
    pub fn server(&self) -> ApplicationState {
        self.server
    }

    /// The step that failed in this node's network and has not succeeded since.
    pub fn failure(&self) -> Option<&str> {
        self.failure.why()
    }

    /// When this node's right to speak ends, unless its peer or the arbiter prolongs it. Until its lease ends, a wire may speak for the
    /// connections that it has taken over. A survivor's right has no end once the arbiter has confirmed the right. `None` if the right has
    /// no end, or if the node neither speaks alone nor is the wire.
    pub fn right_ends_at(&self) -> Option<Instant> {
        self.standing.until()
    }

    /// Whether this node, as the wire, knows every connection, protected or not. Always true on a node that is not the wire.
    pub fn knows_all(&self) -> bool {
        self.role() != Role::Backup || self.table.is_census_complete()
    }

    /// Clients whose connections are older than the log of this node, and why these connections are not protected. Empty unless this node
    /// is the wire.
    pub fn older(&self, now: Instant) -> impl Iterator<Item = (SocketAddr, UnprotectedCause)> {
        let follows = self.follows();
        self.table.older(now).filter(move |_| follows)
    }

    /// Whether a change of role, a takeover or an adoption of orphans is under way. If the agent ended now, this work would be left half
    /// done.
    pub(crate) fn is_deciding(&self) -> bool {
        let is_turning = match self.role() {
            Role::Claiming | Role::Returning | Role::TakingOver => true,
            Role::Joining | Role::Primary | Role::Backup | Role::Sole | Role::Standby => false,
        };
        let has_orphans = self.orphans.has_waiting();
        is_turning || self.takeover.is_some() || has_orphans
    }

    /// Whether this node can stop now. If not, a stop would lose connections that a short wait may save. `is_alive`: the peer is alive.
    pub(crate) fn is_free(&self, is_alive: bool) -> bool {
        match self.role() {
            Role::Joining | Role::Returning | Role::Standby | Role::Sole => true,
            Role::Primary | Role::Claiming | Role::Backup => !is_alive,
            Role::TakingOver => false,
        }
    }

    /// The orphans on this node.
    pub(crate) fn orphans(&self) -> &ServiceOrphans {
        &self.orphans
    }

    /// The service's entry in this node's next heartbeat. `orphans`: the service's orphans that this heartbeat reports.
    /// `migration`: what the heartbeat says of the service's migrations.
    pub(crate) fn beat(&self, orphans: Orphans, migration: Option<MigrationBeat>) -> ServiceBeat {
        ServiceBeat {
            vip: self.vip(),
            role: self.role(),
            epoch: self.epoch(),
            configured_primary: self.config.is_primary,
            mac: self.config.mac,
            server: self.server,
            leaves: self.standing.says_that_it_leaves(),
            hands_over: self.leaving.hands_over,
            orphans,
            adopted: self.orphans.adopted(),
            migration,
            path: Some(self.path.last_word()),
            direct: self.standing.says_direct(),
            immediate: self.config.table.is_immediate,
            take_back: self.take_back(),
        }
    }

    /// Why a service is simplex. `None` if both nodes do their part.
    pub(crate) fn simplex(&self, peer: &Detector, now: Instant) -> Option<Simplex> {
        if self.failure.why().is_some() {
            return Some(Simplex::Failed);
        }
        let complement = match self.role() {
            Role::Joining if self.alarms.is_contradicted => return Some(Simplex::Contradiction),
            Role::Joining if !peer.has_heard() => return Some(Simplex::NotHeard),
            Role::Joining => return Some(Simplex::NotAgreed),
            Role::Claiming => return Some(Simplex::Claiming),
            Role::TakingOver => return Some(Simplex::TakingOver),
            Role::Sole => return Some(Simplex::Sole),
            Role::Standby if self.leaving.is_withdrawn => return Some(Simplex::Left),
            Role::Standby => return Some(Simplex::Standby),
            Role::Returning => return Some(Simplex::Returning),
            Role::Primary => Role::Backup,
            Role::Backup => Role::Primary,
        };
        if !peer.is_alive(now) {
            return Some(Simplex::PeerSilent);
        }
        let Some(beat) = &self.peer else {
            return Some(Simplex::NotAgreed);
        };
        let backups = match complement {
            Role::Backup => beat.server,
            _ => self.server,
        };
        match (beat.role == complement, backups) {
            (false, _) => Some(Simplex::PeerIs(beat.role)),
            (true, ApplicationState::Alive) => self.path(now).fault.map(Simplex::Path),
            (true, server) => Some(Simplex::Server(server)),
        }
    }

    /// The state of a service's path.
    pub fn path(&self, now: Instant) -> PathView {
        let path = &self.path;
        let (own, peer) = (path.word(now), path.peer());
        let fault = match (
            own.outside == Reachability::Lost,
            peer.outside == Reachability::Lost,
        ) {
            _ if !path.has_carrier() => Some(PathFault::NoCarrier),
            (true, true) => Some(PathFault::Both),
            (true, false) => Some(PathFault::Own),
            (false, true) => Some(PathFault::Peer),
            (false, false) => (!path.meets(now)).then_some(PathFault::Apart),
        };
        PathView {
            fault,
            own,
            peer,
            has_carrier: path.has_carrier(),
            losses: path.losses(),
        }
    }

    /// Why the nodes cannot swap roles for a service. `None` if they can.
    pub(crate) fn cannot_hand_over(&self, peer: &Detector, now: Instant) -> Option<OrderRefusal> {
        if let Some(why) = self.simplex(peer, now) {
            return Some(OrderRefusal::Simplex(why));
        }
        self.is_busy().then_some(OrderRefusal::Busy)
    }

    /// Why no node would serve if this node gave up its part in a service. `None` if the peer would serve, or if this node does not serve
    /// now.
    pub(crate) fn would_be_lost(&self, peer: &Detector, now: Instant) -> Option<OrderRefusal> {
        let serves = self.role().may_speak();
        self.cannot_hand_over(peer, now).filter(|_| serves)
    }

    /// When this node, as a service's primary, may claim the VIP if the wire stays silent. The wire must be overdue by then, and its lease
    /// must have run out. `None` if this node may not claim the VIP, or has begun to claim it already.
    pub(crate) fn may_claim_at(&self, peer: &Detector) -> Option<Instant> {
        match self.role() {
            Role::Primary => {
                let overdue = peer.overdue_at();
                overdue.map(|at| self.standing.granted_until().map_or(at, |free| at.max(free)))
            }
            Role::Claiming if self.claim.as_ref().is_some_and(Claim::is_begun) => None,
            Role::Claiming => self.standing.granted_until(),
            Role::Joining
            | Role::Returning
            | Role::Backup
            | Role::TakingOver
            | Role::Sole
            | Role::Standby => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::action::{Action, Echo, Gate, Heartbeat, ServiceAction};
    use crate::node::Node;
    use crate::node::fixture::{at, beat, config};
    use crate::service::{InheritedService, ServiceInput};
    use crate::table::Direction;

    /// A primary. Its peer counts as silent after 80 ms, and the lease is 300 ms.
    fn node() -> Node {
        Node::new(config(true), at(0))
    }

    fn hear(node: &mut Node, millis: u64, (role, epoch): (Role, u64), configured_primary: bool) {
        let beat = beat(node.service(0).vip(), (role, epoch), configured_primary);
        let heartbeat = Heartbeat {
            node: "beta".to_owned(),
            incarnation: 1,
            sequence: millis,
            sent: 0,
            echo: Some(Echo {
                incarnation: node.config().incarnation,
                sent: at(millis).as_nanos(),
            }),
            services: vec![beat],
        };
        node.handle_heartbeat(at(millis), heartbeat);
    }

    #[test]
    fn a_simplex_service_says_why() {
        let mut node = node();
        assert_eq!(node.simplex(at(1), 0), Some(Simplex::NotHeard));
        hear(&mut node, 10, (Role::Joining, 0), true);
        assert_eq!(node.simplex(at(10), 0), Some(Simplex::Contradiction));

        let mut node = self::node();
        hear(&mut node, 10, (Role::Joining, 0), false);
        assert_eq!(node.simplex(at(10), 0), Some(Simplex::PeerIs(Role::Joining)));
        hear(&mut node, 15, (Role::Returning, 1), false);
        hear(&mut node, 20, (Role::Backup, 2), false);
        assert_eq!(node.simplex(at(20), 0), None);
        assert_eq!(node.last_heartbeat(), Some(at(20)));
        assert_eq!(node.simplex(at(100), 0), Some(Simplex::PeerSilent));
    }

    #[test]
    fn a_node_from_which_no_connection_can_move_says_why() {
        for (gate, refusal) in [
            (Gate::Sole, Some(OrderRefusal::Simplex(Simplex::Sole))),
            (Gate::Primary, Some(OrderRefusal::Simplex(Simplex::PeerSilent))),
            (Gate::Wire, Some(OrderRefusal::NotPrimary)),
        ] {
            let mut config = node().config().clone();
            config.services[0].found = Some(InheritedService::sample(gate, 2));
            let node = Node::new(config, at(0));
            assert_eq!(node.cannot_migrate(at(1), 0), refusal, "{gate:?}");
        }
    }

    #[test]
    fn the_wire_asks_about_connections_that_are_older() {
        use crate::packet::{Checksum, Flags, Segment, TcpOptions};
        let client: SocketAddr = "10.0.0.1:4000".parse().unwrap();
        for (gate, is_primary) in [(Gate::Primary, true), (Gate::Wire, false)] {
            let mut config = self::node().config().clone();
            config.services[0].found = Some(InheritedService::sample(gate, 2));
            let mut node = Node::new(config, at(0));
            let segment = Segment {
                source: node.service(0).vip(),
                destination: client,
                seq: crate::Seq(1),
                ack: crate::Seq(1),
                flags: Flags::ACK,
                window: 1000,
                options: TcpOptions::default(),
                payload: &[],
            };
            node.handle_packet(
                at(11),
                0,
                Direction::Out,
                &segment.emit(),
                Checksum::Unverified,
                None,
            );
            let asked = |node: &mut Node| {
                let actions = std::iter::from_fn(|| node.poll_action());
                let asked = actions.filter_map(|action| match action {
                    Action::Service(_, ServiceAction::Ask { clients, .. }) => Some(clients),
                    _ => None,
                });
                asked.collect::<Vec<_>>()
            };
            let expected = if is_primary { vec![] } else { vec![vec![client]] };
            assert_eq!(asked(&mut node), expected);
            node.handle_timeout(at(60));
            assert_eq!(
                asked(&mut node),
                [] as [Vec<SocketAddr>; 0],
                "it waits for the answer"
            );
            node.handle_timeout(at(61));
            assert_eq!(asked(&mut node), expected);
            node.handle(at(62), 0, ServiceInput::Told(vec![(client, None)]));
            node.handle_timeout(at(200));
            assert_eq!(asked(&mut node), [] as [Vec<SocketAddr>; 0], "it was answered");
            if !is_primary {
                let (_, cause) = node.service(0).older(at(200)).next().expect("it is shown");
                assert!(
                    cause.to_string().ends_with("it is not open on the primary"),
                    "{cause}"
                );
            }
        }
    }

    #[test]
    fn the_lease_runs_from_the_last_word_of_the_wire() {
        let mut node = node();
        assert_eq!(node.may_claim_at(0), None, "there is nothing to claim");
        hear(&mut node, 10, (Role::Joining, 0), false);
        hear(&mut node, 15, (Role::Returning, 1), false);
        hear(&mut node, 20, (Role::Backup, 2), false);
        let free = at(20) + Duration::from_millis(300) * 17 / 16;
        assert_eq!(node.may_claim_at(0), Some(free));
        for millis in (30..=100).step_by(10) {
            node.handle_timeout(at(millis));
        }
        assert_eq!(node.simplex(at(100), 0), Some(Simplex::Claiming));
        assert_eq!(node.may_claim_at(0), Some(free));
        node.handle_timeout(free);
        assert_eq!(node.may_claim_at(0), None, "it is being claimed");
    }
}
