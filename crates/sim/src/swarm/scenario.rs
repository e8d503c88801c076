//! A [`Scenario`] defines a run completely. It can be drawn from a seed, written and read as text, and simplified.

use std::time::Duration;

use proto::detector::DetectorConfig;
use proto::follower::RestartPolicy;
use serde::{Deserialize, Serialize};

use super::fault::{FAULTS_MIN, FaultKind, FaultTarget, PlannedFault, fault};
use super::phase::PairPhase;
use super::story;
use crate::link::LinkConfig;
use crate::pair::draw::Draw;
use crate::pair::{Costs, Defect, SimArbiterKind, SimCommit, SimPairConfig, SimStateSync};
use crate::tcp::TcpConfig;

/// One run. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Seed of all random choices within the run.
    pub seed: u64,
    /// The restart policy of the service, unless `opaque` is set.
    pub policy: RestartPolicy,
    /// The service has policy `http`, but its clients speak another protocol, and replicas follow the clients' connections. The field
    /// `policy` must then be [`RestartPolicy::Replica`], which selects programs that speak such a protocol.
    pub opaque: bool,
    /// Commit mode of the service.
    #[serde(default)]
    pub commit: SimCommit,
    /// Defect of the nodes, in tests.
    pub defect: Option<Defect>,
    /// Arbiter that decides when the nodes do not hear each other.
    pub arbiter: Option<SimArbiterKind>,
    /// Time that the arbiter takes to decide. A fence switches the other node off at the end of this time.
    pub arbiter_delay_us: u64,
    /// Time that the configured primary waits before it asks the fence to switch off a silent peer.
    #[serde(default)]
    pub fence_delay_us: u64,
    /// Lease: how long a wire may speak alone without asking the arbiter. If the lease is 0 and there is an arbiter, a wire must ask first.
    pub lease_us: u64,
    /// The cables.
    pub network: ScenarioNetwork,
    /// The nodes.
    pub nodes: ScenarioNodes,
    /// The clients' endpoints.
    pub client: ScenarioEndpoint,
    /// The servers' endpoints.
    pub server: ScenarioEndpoint,
    /// The clients' connections.
    pub connections: Vec<ScenarioConnection>,
    /// The faults, in order.
    pub faults: Vec<PlannedFault>,
    /// The agents also hear each other through the service's network.
    #[serde(default)]
    pub service_link: bool,
    /// An outside host answers the questions that nodes send from their own addresses.
    #[serde(default)]
    pub outside: bool,
    /// How the server's state is copied, if it is. Only with [`RestartPolicy::Replica`], and not with `opaque`.
    #[serde(default)]
    pub state_sync: Option<SimStateSync>,
    /// Number of annexes, at most two. They take connections only with [`RestartPolicy::Http`], [`RestartPolicy::Replay`] and
    /// [`RestartPolicy::Snapshot`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub annexes: usize,
}

/// Whether a scenario's file leaves a number out.
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The cables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioNetwork {
    /// One-way delay of the paths to the clients.
    pub path_delay_us: u64,
    /// Rate of these paths, in bits per second; 0: without a limit.
    pub path_rate: u64,
    /// One-way delay between the nodes.
    pub lan_delay_us: u64,
    /// Probability that the cable between the nodes loses a packet.
    #[serde(default)]
    pub lan_loss: f64,
    /// Probability that a packet on the paths to the clients is lost, with or without a fault.
    pub loss: f64,
    /// Probability that a packet on these paths is reordered.
    pub reorder: f64,
    /// Probability that a packet on these paths is duplicated.
    pub duplicate: f64,
}

/// The nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioNodes {
    /// Time between heartbeats.
    pub heartbeat_us: u64,
    /// Time that an agent rests before it reads the log.
    pub nap_us: u64,
    /// Slowness of agents, as a multiple of the measured costs.
    pub slowness: u32,
    /// Size of the log, in bytes.
    pub ring_bytes: usize,
    /// Longest time that a program takes to prepare a reply.
    pub think_us: u64,
    /// The backup's machine starts this much later.
    pub late_start_us: u64,
}

/// A TCP endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioEndpoint {
    /// Maximum segment size, in bytes.
    pub mss: u16,
    /// Window scale that the endpoint offers, if any.
    pub window_scale: Option<u8>,
    /// The endpoint offers SACK.
    pub sack: bool,
    /// The endpoint offers timestamps.
    pub timestamps: bool,
    /// Size of the send buffer, in bytes.
    pub send_buffer: usize,
    /// Size of the receive buffer, in bytes.
    pub receive_buffer: usize,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioConnection {
    /// When the client connects.
    pub at_us: u64,
    /// Seed of the client's requests.
    pub seed: u64,
    /// Number of requests.
    pub requests: u64,
    /// Largest size of a request's or a reply's body, in bytes.
    pub bytes_max: u64,
    /// The client ends its stream after the last request.
    pub half_closes: bool,
}

/// Smallest number of connections of a run.
pub const CONNECTIONS_MIN: u64 = 20;
/// The daemon's default lease.
const LEASE_US: u64 = 300_000;
/// Smallest log in which no packet need pass unlogged.
const RING_MIN: usize = 25_000;

impl Scenario {
    /// The run that a seed defines.
    pub fn draw(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let network = ScenarioNetwork::draw(&mut draw);
        let mut nodes = ScenarioNodes {
            heartbeat_us: draw.pick(&[10_000, 20_000, 20_000]),
            nap_us: draw.pick(&[500, 4_000]),
            slowness: draw.pick(&[1, 10, 50]),
            // A much smaller log could overflow for ever: the timers here have no jitter, so all clients may repeat their segments at the
            // same moment each time.
            ring_bytes: draw.pick(&[RING_MIN, 60_000, 1_000_000]),
            think_us: draw.pick(&[0, 1_000, 20_000]),
            late_start_us: draw.pick(&[0, 5_000, 60_000]),
        };
        let faults = faults(&mut draw, &mut nodes);
        let count = CONNECTIONS_MIN + draw.below(8);
        let connections = (0..count).map(|_| ScenarioConnection::draw(&mut draw)).collect();
        let mut scenario = Self {
            seed,
            policy: draw.pick(&[RestartPolicy::Http, RestartPolicy::Http, RestartPolicy::Replica]),
            opaque: false,
            commit: SimCommit::Prs,
            defect: None,
            arbiter: draw.pick(&[
                None,
                Some(SimArbiterKind::Witness),
                Some(SimArbiterKind::Witness),
                Some(SimArbiterKind::Fence),
            ]),
            arbiter_delay_us: draw.pick(&[1_000, 20_000, 150_000]),
            fence_delay_us: 0,
            lease_us: LEASE_US,
            network,
            nodes,
            client: ScenarioEndpoint::draw(&mut draw),
            server: ScenarioEndpoint::draw(&mut draw),
            connections,
            faults,
            service_link: false,
            outside: false,
            state_sync: None,
            annexes: 0,
        };
        if scenario.arbiter.is_some() && draw.chance(0.2) {
            scenario.lease_us = 0;
        }
        scenario.opaque = scenario.policy == RestartPolicy::Replica && draw.chance(0.4);
        scenario.draw_paths(&mut draw);
        scenario.draw_fence();
        scenario.draw_servers();
        scenario.draw_commit();
        if let Some(story) = story::of(seed) {
            scenario.faults = story.faults;
            if let Some(bytes_max) = story.bytes_max {
                (scenario.network.path_delay_us, scenario.network.path_rate) = (15_000, 20_000_000);
                for connection in &mut scenario.connections {
                    (connection.requests, connection.bytes_max) = (4, bytes_max);
                }
            }
            scenario.outside |= story.has_outside;
        }
        scenario.draw_network_faults();
        scenario.draw_annexes();
        scenario
    }

    /// In one run out of ten, there are annexes, connections move there and back, and annexes fail. These draws have a seed of their own, so
    /// that they do not change the draws of the other runs.
    fn draw_annexes(&mut self) {
        let mut draw = Draw::new(self.seed ^ 0xa44e_7e50_0000_5eed);
        if draw.chance(0.1) {
            self.add_annexes(&mut draw);
        }
    }

    /// The run of a seed with annexes.
    pub fn with_annexes(seed: u64) -> Self {
        let mut scenario = Self::draw(seed);
        if scenario.annexes == 0 {
            scenario.add_annexes(&mut Draw::new(seed ^ 0xa44e_7e50_0001_5eed));
        }
        scenario
    }

    fn add_annexes(&mut self, draw: &mut Draw) {
        self.annexes = draw.pick(&[1, 1, 2]);
        (self.opaque, self.state_sync, self.commit) = (false, None, SimCommit::Prs);
        self.nodes.ring_bytes = self.nodes.ring_bytes.max(RING_MIN); // a smaller one is for packets that pass unlogged
        self.policy = draw.pick(&[RestartPolicy::Http, RestartPolicy::Http, RestartPolicy::Replay]);
        self.lease_us = self.lease_us.max(LEASE_US);
        (self.faults, self.network.lan_loss) = (story::of_annexes(draw), 0.0);
        if draw.chance(0.5) {
            (self.network.path_delay_us, self.network.path_rate) = (15_000, 20_000_000);
            let bytes_max = draw.pick(&[8_000, 60_000, 100_000]);
            for connection in &mut self.connections {
                (connection.requests, connection.bytes_max) = (4, bytes_max);
            }
        }
        while (self.faults.len() as u64) < FAULTS_MIN {
            self.faults.push(story::one_more_beside_annexes(draw));
        }
        self.draw_states_and_workers();
    }

    /// In a quarter of the runs with annexes, the applications export their states. In some, a fault is replaced by the death of processes on
    /// an annex, or by a reset of links. These draws have a seed of their own, so that they do not change the run's other draws.
    fn draw_states_and_workers(&mut self) {
        let mut draw = Draw::new(self.seed ^ 0xa44e_7e50_0002_5eed);
        if draw.chance(0.25) {
            self.policy = RestartPolicy::Snapshot;
        }
        for kind in [FaultKind::AnnexWorker, FaultKind::AnnexLink] {
            if draw.chance(0.2) {
                let last = self.faults.len() as u64 - 1;
                let index = usize::try_from(1 + draw.below(last)).expect("few faults");
                self.faults[index].kind = kind; // the first one is a move
            }
        }
    }

    /// Draws how long a fence takes, and how long the primary waits before it asks the fence to switch off its peer. The wait is either
    /// zero or longer than the fence takes. These draws have a seed of their own, so that they do not change the run's other draws.
    fn draw_fence(&mut self) {
        if self.arbiter == Some(SimArbiterKind::Fence) {
            let mut draw = Draw::new(self.seed ^ 0xfe4c_e000_5eed);
            self.arbiter_delay_us = draw.pick(&[1_000, 20_000, 150_000, 600_000]);
            self.fence_delay_us = draw.pick(&[0, self.arbiter_delay_us + 500_000]);
        }
    }

    /// Changes runs with replicas that are not `opaque`. In half of these runs, the server's state is copied. In an eighth of these runs,
    /// the policy is `replay` instead: an application gets its input only at the takeover. In an eighth, the policy is `snapshot`. These draws
    /// have a seed of their own, so that they do not change the run's other draws.
    fn draw_servers(&mut self) {
        let mut draw = Draw::new(self.seed ^ 0x5e4e_57a7_e5ee_d000);
        if self.policy != RestartPolicy::Replica || self.opaque {
            return;
        }
        if draw.chance(0.5) {
            self.state_sync = Some(SimStateSync {
                hold_us: draw.pick(&[30_000, 100_000, 300_000]),
                prepare_us: draw.pick(&[1_000, 10_000, 100_000]),
                failures: draw.pick(&[0, 0, 0, 1, 2]),
            });
        } else if draw.chance(0.5) {
            self.policy = draw.pick(&[RestartPolicy::Replay, RestartPolicy::Snapshot]);
        }
    }

    /// In half of the runs that allow it, the primary sends output past the wire. In half of these runs, the cable between the nodes loses
    /// packets, and so copies of that output. In half of them, packets pass unlogged while the log is full, and most of these have a log that a
    /// few packets fill. These draws have a seed of their own, so that they do not change the run's other draws.
    fn draw_commit(&mut self) {
        let mut draw = Draw::new(self.seed ^ 0xc033_17d1_4ec7_0000);
        let can_repeat = matches!(self.policy, RestartPolicy::Replica | RestartPolicy::Replay);
        if can_repeat && !self.opaque && self.lease_us > 0 && draw.chance(0.5) {
            self.commit = SimCommit::Pr;
            self.network.lan_loss = draw.pick(&[0.0, 0.0, 0.01, 0.05]);
            if draw.chance(0.5) {
                self.commit = SimCommit::Immediate;
                self.nodes.ring_bytes = draw.pick(&[3_000, 8_000, self.nodes.ring_bytes]);
            }
        }
    }

    /// In some runs, a fault is replaced by a network that refuses changes. These draws have a seed of their own, so that they do not
    /// change the run's other draws.
    fn draw_network_faults(&mut self) {
        let mut draw = Draw::new(self.seed ^ 0x4e70_0c4a_a6e5_0000);
        if draw.chance(0.1) {
            let index = usize::try_from(draw.below(self.faults.len() as u64)).expect("few faults");
            self.faults[index].kind = FaultKind::Network;
        }
    }

    /// In half of the runs, nodes judge their paths, and some of the faults are path faults.
    fn draw_paths(&mut self, draw: &mut Draw) {
        self.outside = draw.chance(0.5);
        self.service_link = draw.chance(0.5);
        if !self.outside {
            return;
        }
        for fault in &mut self.faults {
            if draw.chance(0.3) {
                fault.kind = draw.pick(&FaultKind::PATHS);
            }
        }
    }

    /// Simpler variants of the scenario, each with one peculiarity removed.
    pub(super) fn plain(&self) -> Vec<Self> {
        let quiet = ScenarioNetwork {
            path_delay_us: 1_000,
            path_rate: 0,
            lan_delay_us: 50,
            lan_loss: 0.0,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
        };
        let nodes = ScenarioNodes {
            heartbeat_us: 20_000,
            nap_us: 500,
            slowness: 1,
            ring_bytes: 1_000_000,
            think_us: 0,
            late_start_us: 0,
        };
        let with = |change: &dyn Fn(&mut Self)| {
            let mut other = self.clone();
            change(&mut other);
            other
        };
        vec![
            with(&|it| it.network = quiet.clone()),
            with(&|it| it.nodes = nodes.clone()),
            with(&|it| it.lease_us = LEASE_US),
            with(&|it| it.opaque = false),
            with(&|it| it.commit = SimCommit::Prs),
            with(&|it| it.commit = it.commit.min(SimCommit::Pr)),
            with(&|it| it.state_sync = None),
            with(&|it| it.annexes = it.annexes.min(1)),
            with(&|it| it.client = ScenarioEndpoint::plain()),
            with(&|it| it.server = ScenarioEndpoint::plain()),
            with(&|it| it.connections.iter_mut().for_each(|one| one.half_closes = false)),
            with(&|it| it.connections.iter_mut().for_each(|one| one.requests = 1)),
        ]
    }

    pub(super) fn pair_config(&self) -> SimPairConfig {
        let micros = Duration::from_micros;
        let path_delay = micros(self.network.path_delay_us);
        let path = LinkConfig {
            rate_bits_per_s: Some(self.network.path_rate).filter(|rate| *rate > 0),
            delay: path_delay,
            loss: self.network.loss,
            reorder: self.network.reorder,
            reorder_delay: path_delay * 2,
            duplicate: self.network.duplicate,
            ..LinkConfig::default()
        };
        let lan = LinkConfig {
            rate_bits_per_s: Some(1_000_000_000),
            delay: micros(self.network.lan_delay_us),
            loss: self.network.lan_loss,
            ..LinkConfig::default()
        };
        SimPairConfig {
            own_path: Some(path.clone()),
            path,
            lan,
            client_tcp: self.client.config(),
            server_tcp: self.server.config(),
            detector: DetectorConfig {
                interval: micros(self.nodes.heartbeat_us),
                missed: 4,
                agent_timeout: Duration::from_millis(500),
            },
            nap: micros(self.nodes.nap_us),
            costs: Costs::measured(self.nodes.slowness),
            ring_bytes: self.nodes.ring_bytes,
            think: micros(self.nodes.think_us),
            lease: micros(self.lease_us),
            arbiter: self.arbiter.map(|kind| (kind, micros(self.arbiter_delay_us))),
            fence_delay: micros(self.fence_delay_us),
            defect: self.defect,
            opaque: self.opaque,
            commit: self.commit,
            keep_input: self.policy == RestartPolicy::Replay && self.commit == SimCommit::Prs,
            service_link: self.service_link,
            outside: self.outside,
            state_sync: self.state_sync,
            annexes: self.annexes,
            ..SimPairConfig::quiet(self.seed, self.policy)
        }
    }
}

impl ScenarioNetwork {
    fn draw(draw: &mut Draw) -> Self {
        let now_and_then = |draw: &mut Draw, largest: f64| {
            if draw.chance(0.2) {
                largest * f64::from(u32::try_from(draw.below(100)).expect("small")) / 100.0
            } else {
                0.0
            }
        };
        Self {
            path_delay_us: draw.pick(&[100, 1_000, 5_000, 15_000]),
            path_rate: draw.pick(&[0, 20_000_000, 100_000_000]),
            lan_delay_us: draw.pick(&[20, 50, 300]),
            lan_loss: 0.0,
            loss: now_and_then(draw, 0.02),
            reorder: now_and_then(draw, 0.05),
            duplicate: now_and_then(draw, 0.03),
        }
    }
}

impl ScenarioEndpoint {
    fn draw(draw: &mut Draw) -> Self {
        Self {
            mss: draw.pick(&[1460, 1460, 536]),
            window_scale: draw.pick(&[None, Some(0), Some(7)]),
            sack: draw.chance(0.7),
            timestamps: draw.chance(0.7),
            send_buffer: draw.pick(&[4_000, 65_536]),
            receive_buffer: draw.pick(&[3_000, 65_535]),
        }
    }

    fn plain() -> Self {
        let TcpConfig {
            mss,
            window_scale,
            sack,
            timestamps,
            send_buffer,
            receive_buffer,
            ..
        } = TcpConfig::default();
        Self {
            mss,
            window_scale,
            sack,
            timestamps,
            send_buffer,
            receive_buffer,
        }
    }

    fn config(&self) -> TcpConfig {
        TcpConfig {
            mss: self.mss,
            window_scale: self.window_scale,
            sack: self.sack,
            timestamps: self.timestamps,
            send_buffer: self.send_buffer,
            receive_buffer: self.receive_buffer,
            ..TcpConfig::default()
        }
    }
}

impl ScenarioConnection {
    fn draw(draw: &mut Draw) -> Self {
        let spread = if draw.chance(0.7) { 900_000 } else { 2_500_000 };
        Self {
            at_us: draw.below(spread),
            seed: draw.below(1 << 32),
            requests: 1 + draw.below(4),
            bytes_max: draw.pick(&[300, 2_000, 8_000]),
            half_closes: draw.chance(0.2),
        }
    }
}

/// A schedule that aims at one phase: faults that bring the pair into this phase, a fault during the phase, and further faults.
fn faults(draw: &mut Draw, nodes: &mut ScenarioNodes) -> Vec<PlannedFault> {
    const SHORT: [PairPhase; 4] = [
        PairPhase::Pairing,
        PairPhase::Detection,
        PairPhase::Takeover,
        PairPhase::Returning,
    ];
    let aim = if draw.chance(0.4) {
        draw.pick(&SHORT)
    } else {
        draw.pick(&PairPhase::ALL)
    };
    if matches!(aim, PairPhase::Takeover | PairPhase::Returning) {
        nodes.slowness = nodes.slowness.max(10); // with a faster agent, the phase would be too short
    }
    let mut faults = prelude(draw, aim);
    let mut aimed = fault(draw, Some(aim));
    aimed.after_us = draw.below(dwell_us(aim, nodes));
    faults.push(aimed);
    let count = FAULTS_MIN + draw.below(3);
    while (faults.len() as u64) < count {
        let is_double = draw.chance(0.3);
        let during = (!is_double && draw.chance(0.5)).then(|| draw.pick(&PairPhase::ALL));
        let mut another = fault(draw, during);
        if is_double {
            another.after_us = draw.below(5_000);
        }
        faults.push(another);
    }
    faults
}

/// Faults that bring the pair to a phase.
fn prelude(draw: &mut Draw, aim: PairPhase) -> Vec<PlannedFault> {
    let begin = |draw: &mut Draw, kinds: &[FaultKind], target| PlannedFault {
        kind: draw.pick(kinds),
        target,
        length_us: 150_000 + draw.below(400_000),
        after_us: draw.below(600_000),
        ..fault(draw, Some(PairPhase::Duplex))
    };
    match aim {
        PairPhase::Pairing | PairPhase::Handshake | PairPhase::Duplex => Vec::new(),
        PairPhase::Detection => {
            let kinds = [
                FaultKind::Crash,
                FaultKind::Freeze,
                FaultKind::Cut,
                FaultKind::Between,
            ];
            let target = draw.pick(&[FaultTarget::Speaker, FaultTarget::Other]);
            vec![begin(draw, &kinds, target)]
        }
        PairPhase::Takeover => vec![begin(
            draw,
            &[FaultKind::Crash, FaultKind::Crash, FaultKind::Server],
            FaultTarget::Speaker,
        )],
        PairPhase::Claiming => vec![begin(
            draw,
            &[FaultKind::Crash, FaultKind::Freeze],
            FaultTarget::Other,
        )],
        PairPhase::Simplex | PairPhase::Returning | PairPhase::DuplexAgain => {
            let target = draw.pick(&[FaultTarget::Speaker, FaultTarget::Other]);
            vec![begin(draw, &[FaultKind::Crash], target)]
        }
    }
}

/// Approximate length of a phase, in microseconds.
const fn dwell_us(phase: PairPhase, nodes: &ScenarioNodes) -> u64 {
    match phase {
        PairPhase::Pairing => nodes.late_start_us + 100,
        PairPhase::Handshake => 2_000,
        PairPhase::Duplex | PairPhase::Simplex | PairPhase::DuplexAgain => 150_000,
        PairPhase::Detection => 40_000,
        PairPhase::Takeover => 60 * nodes.slowness as u64,
        PairPhase::Claiming => 300_000,
        PairPhase::Returning => 20 * nodes.slowness as u64,
    }
}
