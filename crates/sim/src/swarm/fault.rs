//! Faults: how each is injected and mended.

use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use proto::action::Gate;
use serde::{Deserialize, Serialize};

use super::phase::PairPhase;
use crate::link::LinkConfig;
use crate::pair::arbiter::Outage;
use crate::pair::draw::Draw;
use crate::pair::{AnnexStation, SimPair, Station};
use crate::world::{CableId, NodeId};

/// A kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A node loses its power. The node boots when the fault ends.
    Crash,
    /// An agent is killed; a new agent starts when the fault ends.
    Agent,
    /// An agent stands still until the fault ends, like a process after SIGSTOP.
    Pause,
    /// A whole machine stands still.
    Freeze,
    /// A hypervisor pauses a machine. The machine and its clock stand still. In half of these faults, the hardware's
    /// cycle counter stands still, too. Otherwise the agent can notice the pause by this counter.
    Halt,
    /// An agent runs fifty times slower.
    Late,
    /// A node's clock runs at another speed, by at most 0.1 %, permanently.
    Drift,
    /// All cables of a node are cut, and the node sees that it has no carrier.
    Cut,
    /// The cables of a node's service interface are cut. In half of these faults, the node sees that it has no carrier. The agents still
    /// hear each other.
    Path,
    /// As `Path`, but in one direction only: either to the node or from the node.
    PathOneWay,
    /// A node does not reach clients and outside hosts; the nodes reach each other.
    Router,
    /// The two nodes do not hear each other; clients and outside hosts hear both nodes.
    Between,
    /// One direction of one cable is cut.
    OneWay,
    /// A cable loses a third of the packets.
    Loss,
    /// A third of the packets on a cable are late.
    Reorder,
    /// A third of the packets on a cable come twice.
    Duplicate,
    /// A worker of the application is killed, with some of the connections.
    Worker,
    /// The application is killed.
    Server,
    /// The arbiter does not answer one node or both. Without an arbiter, nothing happens.
    Arbiter,
    /// No failure: the operator orders a handover, so the nodes change roles.
    Handover,
    /// No failure: the operator orders that some connections move from the primary to its backup.
    Migrate,
    /// The operator drains a node, and takes it back in when the fault ends.
    Drain,
    /// A node's network refuses changes: addresses, routes and rules stay as they are.
    Network,
    /// No failure: the operator orders that some connections move: on the primary to an annex, on the wire from annexes to the primary or
    /// another annex. This fault and the next ones do nothing in runs without annexes.
    AnnexMove,
    /// An annex loses its power. It boots when the fault ends.
    AnnexCrash,
    /// The process of an annex is killed. A new one starts when the fault ends.
    AnnexAgent,
    /// The process of an annex stands still until the fault ends. Its kernel goes on.
    AnnexPause,
    /// The cable between an annex and one node is cut, or both of the annex's cables.
    AnnexCut,
    /// The processes of some connections on an annex are killed.
    AnnexWorker,
    /// The links of a node are reset, to and from annexes and the other node. It begins new ones.
    AnnexLink,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 30] = [
        Self::Crash,
        Self::Agent,
        Self::Pause,
        Self::Freeze,
        Self::Halt,
        Self::Late,
        Self::Drift,
        Self::Cut,
        Self::Between,
        Self::OneWay,
        Self::Loss,
        Self::Reorder,
        Self::Duplicate,
        Self::Worker,
        Self::Server,
        Self::Arbiter,
        Self::Handover,
        Self::Migrate,
        Self::Drain,
        Self::Path,
        Self::PathOneWay,
        Self::Router,
        Self::Network,
        Self::AnnexMove,
        Self::AnnexCrash,
        Self::AnnexAgent,
        Self::AnnexPause,
        Self::AnnexCut,
        Self::AnnexWorker,
        Self::AnnexLink,
    ];

    /// Number of kinds, from the first of `ALL` on, that may happen in any run. The faults of paths, `Network` and the faults of annexes are
    /// drawn separately.
    const ANYWHERE: usize = Self::ALL.len() - Self::PATHS.len() - 1 - Self::ANNEX.len();

    /// Faults of runs with annexes.
    pub const ANNEX: [Self; 7] = [
        Self::AnnexMove,
        Self::AnnexCrash,
        Self::AnnexAgent,
        Self::AnnexPause,
        Self::AnnexCut,
        Self::AnnexWorker,
        Self::AnnexLink,
    ];

    /// Faults of paths.
    pub const PATHS: [Self; 3] = [Self::Path, Self::PathOneWay, Self::Router];

    /// The kind's name, as in a scenario.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Agent => "agent",
            Self::Pause => "pause",
            Self::Freeze => "freeze",
            Self::Halt => "halt",
            Self::Late => "late",
            Self::Drift => "drift",
            Self::Cut => "cut",
            Self::Path => "path",
            Self::PathOneWay => "path-one-way",
            Self::Router => "router",
            Self::Between => "between",
            Self::OneWay => "one-way",
            Self::Loss => "loss",
            Self::Reorder => "reorder",
            Self::Duplicate => "duplicate",
            Self::Worker => "worker",
            Self::Server => "server",
            Self::Arbiter => "arbiter",
            Self::Handover => "handover",
            Self::Migrate => "migrate",
            Self::Drain => "drain",
            Self::Network => "network",
            Self::AnnexMove => "annex-move",
            Self::AnnexCrash => "annex-crash",
            Self::AnnexAgent => "annex-agent",
            Self::AnnexPause => "annex-pause",
            Self::AnnexCut => "annex-cut",
            Self::AnnexWorker => "annex-worker",
            Self::AnnexLink => "annex-link",
        }
    }
}

/// The node that the fault hits, chosen when the fault is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultTarget {
    /// The node whose application serves: the primary, or the node that speaks alone.
    Speaker,
    /// The other node: in a healthy pair, the wire.
    Other,
}

/// A planned fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFault {
    /// Phase for which the fault waits. The wait has a time limit.
    pub during: Option<PairPhase>,
    /// Microseconds until the fault is injected, counted from the end of the wait for `during`. Without `during`, they
    /// are counted from the injection of the previous fault.
    pub after_us: u64,
    /// Kind of failure.
    pub kind: FaultKind,
    /// Node that fails.
    pub target: FaultTarget,
    /// Length of the fault, in microseconds.
    pub length_us: u64,
    /// Random detail: which cable, which connections, which direction.
    pub detail: u64,
}

/// Repair that ends a fault.
#[derive(Clone, Debug)]
pub(super) enum Mend {
    Boot(NodeId),
    Carrier(NodeId),
    CutOff(NodeId),
    Cable(CableId),
    Link(CableId),
    Server(NodeId),
    Drain(NodeId),
    Network(NodeId),
    BootAnnex(NodeId),
}

impl PlannedFault {
    pub(super) const fn length(&self) -> Duration {
        Duration::from_micros(self.length_us)
    }

    /// Injects the fault. Returns the repairs that end the fault.
    pub(super) fn inject(&self, pair: &mut SimPair, connections: usize) -> Vec<Mend> {
        let id = self.target(pair);
        let now = pair.world.now();
        let until = now + self.length();
        match self.kind {
            FaultKind::Crash => {
                pair.lose_power(id);
                vec![Mend::Boot(id)]
            }
            FaultKind::Agent => with(pair, id, |station, now| station.kill_agent(now, until)),
            FaultKind::Pause => with(pair, id, |station, _| station.machine_mut().pause(until)),
            FaultKind::Freeze => with(pair, id, |station, _| station.machine_mut().freeze(until)),
            FaultKind::Halt => {
                let counter_goes_on = self.detail & 1 == 1;
                with(pair, id, |station, now| {
                    station.machine_mut().halt(now, until, counter_goes_on)
                })
            }
            FaultKind::Late => with(pair, id, |station, _| station.machine_mut().delay(until, 50)),
            FaultKind::Drift => {
                let drift = i32::try_from(self.detail % 2001).expect("small") - 1000;
                with(pair, id, |station, now| {
                    station.machine_mut().set_drift(now, drift)
                })
            }
            FaultKind::Cut => cut_off(pair, id),
            FaultKind::Path | FaultKind::PathOneWay | FaultKind::Router => self.break_path(pair, id),
            FaultKind::Between => cut(pair, &[pair.lan, pair.heartbeats]),
            FaultKind::OneWay => {
                let cable = self.cable(pair, id);
                let direction = usize::from(self.detail & 1 == 1);
                pair.world.set_link_up(cable, direction, false);
                vec![Mend::Cable(cable)]
            }
            FaultKind::Loss | FaultKind::Reorder | FaultKind::Duplicate => {
                let cable = self.cable(pair, id);
                let link = self.disturbed(pair.link_of(cable));
                pair.world.set_link(cable, &link).expect("probabilities");
                vec![Mend::Link(cable)]
            }
            FaultKind::Worker => self.kill_worker(pair, id, connections),
            FaultKind::Server => {
                with(pair, id, Station::kill_server);
                vec![Mend::Server(id)]
            }
            FaultKind::Arbiter => {
                self.fail_arbiter(pair, until);
                Vec::new()
            }
            FaultKind::Handover => with(pair, id, Station::order_handover),
            FaultKind::Migrate => self.order_migrate(pair, id, connections),
            FaultKind::Drain => {
                with(pair, id, Station::order_drain);
                vec![Mend::Drain(id)]
            }
            FaultKind::Network => {
                with(pair, id, |station, _| {
                    station.machine_mut().set_refuses_changes(true)
                });
                vec![Mend::Network(id)]
            }
            FaultKind::AnnexMove => self.order_move(pair, id, connections),
            FaultKind::AnnexCrash | FaultKind::AnnexAgent | FaultKind::AnnexPause | FaultKind::AnnexCut => {
                self.fail_annex(pair, until)
            }
            FaultKind::AnnexWorker => self.kill_annex_worker(pair, connections),
            FaultKind::AnnexLink => with(pair, id, |station, now| station.machine_mut().reset_links(now)),
        }
    }

    /// The annex that this fault concerns, if there are any.
    fn annex(&self, pair: &SimPair) -> Option<usize> {
        let count = pair.annexes.len() as u64;
        (count > 0).then(|| usize::try_from(self.detail / 8 % count).expect("small"))
    }

    fn order_move(&self, pair: &mut SimPair, id: NodeId, connections: usize) -> Vec<Mend> {
        let Some(annex) = self.annex(pair) else {
            return Vec::new();
        };
        let clients = self.some_clients(connections);
        let patience = Duration::from_millis(50 + self.detail % 2000);
        let goes_home =
            self.target == FaultTarget::Other && (pair.annexes.len() == 1 || self.detail & 1 == 1);
        let to = Some(annex).filter(|_| !goes_home);
        with(pair, id, |station, now| {
            station.order_migrate_to(now, clients, to, patience);
        })
    }

    fn fail_annex(&self, pair: &mut SimPair, until: Instant) -> Vec<Mend> {
        let Some(number) = self.annex(pair) else {
            return Vec::new();
        };
        let (id, cables) = pair.annexes[number];
        let is_on = pair.world.is_powered(id);
        match self.kind {
            FaultKind::AnnexCrash if is_on => {
                pair.world
                    .with(id, |annex: &mut AnnexStation, _| annex.lose_power());
                pair.world.power_off(id);
                vec![Mend::BootAnnex(id)]
            }
            FaultKind::AnnexAgent if is_on => {
                pair.world
                    .with(id, |annex: &mut AnnexStation, _| annex.kill(until));
                Vec::new()
            }
            FaultKind::AnnexPause if is_on => {
                pair.world
                    .with(id, |annex: &mut AnnexStation, _| annex.pause(until));
                Vec::new()
            }
            FaultKind::AnnexCut => match self.detail % 3 {
                0 => cut(pair, &cables),
                which => cut(pair, &[cables[usize::try_from(which - 1).expect("small")]]),
            },
            _ => Vec::new(),
        }
    }

    fn kill_annex_worker(&self, pair: &mut SimPair, connections: usize) -> Vec<Mend> {
        let annex = self.annex(pair).map(|number| pair.annexes[number].0);
        if let Some(id) = annex.filter(|id| pair.world.is_powered(*id)) {
            let clients = self.some_clients(connections);
            pair.world.with(id, |annex: &mut AnnexStation, now| {
                annex.kill_worker(now, &clients);
            });
        }
        Vec::new()
    }

    fn order_migrate(&self, pair: &mut SimPair, id: NodeId, connections: usize) -> Vec<Mend> {
        let clients = self.some_clients(connections);
        let patience = Duration::from_millis(50 + self.detail % 2000);
        with(pair, id, |station, now| {
            station.order_migrate(now, clients, patience);
        })
    }

    fn fail_arbiter(&self, pair: &SimPair, until: Instant) {
        if let Some(arbiter) = &pair.arbiter {
            let deaf_to = [None, Some(0), Some(1)][usize::try_from(self.detail % 3).expect("small")];
            let decides = (self.detail / 3).is_multiple_of(2);
            arbiter.borrow_mut().fail(deaf_to, Outage { until, decides });
        }
    }

    fn kill_worker(&self, pair: &mut SimPair, id: NodeId, connections: usize) -> Vec<Mend> {
        let clients = self.some_clients(connections);
        with(pair, id, |station, now| station.kill_worker(now, &clients))
    }

    /// Some of the clients.
    fn some_clients(&self, connections: usize) -> Vec<SocketAddr> {
        let mut draw = Draw::new(self.detail);
        (0..connections)
            .filter(|_| draw.chance(0.4))
            .map(SimPair::client_of)
            .collect()
    }

    fn break_path(&self, pair: &mut SimPair, id: NodeId) -> Vec<Mend> {
        let [path, lan, _] = pair.cables_of(id);
        let cables = if self.kind == FaultKind::Router {
            vec![path]
        } else {
            vec![path, lan]
        };
        let is_odd = self.detail & 1 == 1;
        let mut mends: Vec<_> = cables.iter().map(|cable| Mend::Cable(*cable)).collect();
        if self.kind == FaultKind::Path && is_odd {
            with(pair, id, |station, _| station.machine_mut().set_carrier(false));
            mends.push(Mend::Carrier(id));
        }
        for cable in cables {
            if self.kind == FaultKind::PathOneWay {
                let from = usize::from(pair.is_second_end(cable, id));
                let direction = if is_odd { from } else { 1 - from };
                pair.world.set_link_up(cable, direction, false);
            } else {
                pair.world.set_up(cable, false);
            }
        }
        mends
    }

    fn target(&self, pair: &SimPair) -> NodeId {
        let rank = |id| match pair.world.node::<Station>(id).machine().gate().0 {
            _ if !pair.world.is_powered(id) => 4,
            Gate::Takeover | Gate::Sole => 0,
            Gate::Primary => 1,
            Gate::Off | Gate::Mute => 2,
            Gate::Wire => 3,
        };
        let (a, b) = (pair.primary, pair.backup);
        let (speaker, other) = if rank(b) < rank(a) { (b, a) } else { (a, b) };
        match self.target {
            FaultTarget::Speaker => speaker,
            FaultTarget::Other => other,
        }
    }

    fn cable(&self, pair: &SimPair, id: NodeId) -> CableId {
        pair.cables_of(id)[usize::try_from(self.detail / 2 % 3).expect("small")]
    }

    fn disturbed(&self, link: LinkConfig) -> LinkConfig {
        const SHARE: f64 = 0.33;
        match self.kind {
            FaultKind::Loss => LinkConfig { loss: SHARE, ..link },
            FaultKind::Reorder => LinkConfig {
                reorder: SHARE,
                reorder_delay: Duration::from_millis(1 + self.detail % 30),
                ..link
            },
            _ => LinkConfig {
                duplicate: SHARE,
                ..link
            },
        }
    }
}

/// Cuts all cables of a node. The node sees that it has no carrier.
fn cut_off(pair: &mut SimPair, id: NodeId) -> Vec<Mend> {
    with(pair, id, |station, _| {
        station.machine_mut().set_carrier(false);
        station.machine_mut().set_cut_off(true);
    });
    let side = pair.number_of(id);
    let to_annexes = pair.annexes.iter().map(|(_, cables)| cables[side]);
    let cables: Vec<_> = pair.cables_of(id).into_iter().chain(to_annexes).collect();
    let mut mends = cut(pair, &cables);
    mends.extend([Mend::Carrier(id), Mend::CutOff(id)]);
    mends
}

fn cut(pair: &mut SimPair, cables: &[CableId]) -> Vec<Mend> {
    cables.iter().for_each(|cable| pair.world.set_up(*cable, false));
    cables.iter().map(|cable| Mend::Cable(*cable)).collect()
}

/// Calls `f` on a node, if the node has power. Returns no repairs.
fn with(pair: &mut SimPair, id: NodeId, f: impl FnOnce(&mut Station, Instant)) -> Vec<Mend> {
    if pair.world.is_powered(id) {
        pair.world.with(id, f);
    }
    Vec::new()
}

impl Mend {
    pub(super) fn carry_out(&self, pair: &mut SimPair) {
        match *self {
            Self::Boot(id) if pair.world.is_powered(id) => {}
            Self::Boot(id) => pair.boot(id),
            Self::BootAnnex(id) if pair.world.is_powered(id) => {}
            Self::BootAnnex(id) => pair.world.power_on(id, AnnexStation::boot),
            Self::Carrier(id) => {
                with(pair, id, |station, _| station.machine_mut().set_carrier(true));
            }
            Self::CutOff(id) => {
                with(pair, id, |station, _| station.machine_mut().set_cut_off(false));
            }
            Self::Cable(cable) => pair.world.set_up(cable, true),
            Self::Link(cable) => {
                let link = pair.link_of(cable);
                pair.world.set_link(cable, &link).expect("a valid configuration");
            }
            Self::Server(id) => {
                with(pair, id, Station::start_server);
            }
            Self::Drain(id) => {
                with(pair, id, Station::order_return);
            }
            Self::Network(id) => {
                with(pair, id, |station, _| {
                    station.machine_mut().set_refuses_changes(false)
                });
            }
        }
    }
}

/// Smallest number of faults of a run.
pub const FAULTS_MIN: u64 = 3;

/// A fault of a random kind, except the faults of paths and `Network`.
pub(super) fn fault(draw: &mut Draw, during: Option<PairPhase>) -> PlannedFault {
    PlannedFault {
        during,
        after_us: draw.below(200_000),
        kind: draw.pick(&FaultKind::ALL[..FaultKind::ANYWHERE]),
        target: draw.pick(&[FaultTarget::Speaker, FaultTarget::Other]),
        length_us: draw.pick(&[20_000, 120_000, 400_000, 900_000]) + draw.below(100_000),
        detail: draw.below(1 << 32),
    }
}
