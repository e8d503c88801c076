//! The HALR thesis' cluster (§7.2.1, Figure 11): flows arrive around a failover.
//!
//! ```text
//!   source ── access ── R1 ── N ── R2 ── access ── destination      `hosts` pairs of hosts, used in turn
//!                        └ cluster ┘                                both cluster links are down for `failover`
//! ```

use std::time::Duration;

use proto::Instant;
use proto::edge::RecoveryCounts;
use serde::Deserialize;

use super::edge::{Edge, EdgeRecovery, StringFailure};
use super::{FlowResult, InvalidScenario, MOST};
use crate::flow::{Departures, FlowConfig, RtoConfig, TcpVariant, seconds};
use crate::flow::{FlowDirection, FlowId};
use crate::link::LinkConfig;
use crate::net::{EventPlace, FlowNetwork, LinkEnd, LinkId, SwitchId, TraceEvent};

/// The scenario. The default has the times of §7.2.1, TCP as ns-2 had it, and a failover of 0.5 s; times are in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterScenario {
    /// TCP at both ends. If a scenario file has this table, the fields that are missing in it have the RFCs' values, not the thesis'.
    pub tcp: FlowConfig,
    /// Full data segments per flow.
    pub segments: u64,
    /// Number of pairs of hosts, which the flows use in turn.
    pub hosts: usize,
    /// Bits per second of the hosts' links.
    pub access_rate_bits_per_s: u64,
    /// Bits per second of the cluster's links.
    pub cluster_rate_bits_per_s: u64,
    /// Propagation delay between a source and R1.
    #[serde(with = "seconds")]
    pub source_delay: Duration,
    /// Propagation delay of each of the two cluster links.
    #[serde(with = "seconds")]
    pub cluster_delay: Duration,
    /// Propagation delay between R2 and a destination.
    #[serde(with = "seconds")]
    pub destination_delay: Duration,
    /// Probability that a data packet is lost on the first cluster link.
    pub loss: f64,
    /// When the cluster fails.
    #[serde(with = "seconds")]
    pub failover_at: Duration,
    /// Length of the failover; 0: nothing fails.
    #[serde(with = "seconds")]
    pub failover: Duration,
    /// Local recovery by R1 and R2. By default there is none.
    pub recovery: Option<EdgeRecovery>,
    /// The first flow's arrival.
    #[serde(with = "seconds")]
    pub first_arrival: Duration,
    /// Flows arrive before this time; by default until 2 s after the failover.
    #[serde(with = "seconds::optional")]
    pub last_arrival: Option<Duration>,
    /// Time between two arrivals.
    #[serde(with = "seconds")]
    pub gap: Duration,
    /// Phase of each flow's timer clock (`tcp.rto.phase`: the time from the clock's last tick to the start of the simulation), in the order
    /// of the flows' arrival. Flows beyond the list use `tcp.rto.phase` itself. With the phases that an ns-2 run has drawn, the results can
    /// be compared flow by flow.
    #[serde(skip)]
    pub phases: Vec<Duration>,
    /// Latest end of the run. The run ends earlier if all flows are complete.
    #[serde(with = "seconds")]
    pub end: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Default for ClusterScenario {
    fn default() -> Self {
        Self {
            tcp: thesis_tcp(TcpVariant::Reno),
            segments: 9, // the thesis counts the SYN: "10 segments"
            hosts: 60,
            access_rate_bits_per_s: 100_000_000,
            cluster_rate_bits_per_s: 10_000_000_000,
            source_delay: Duration::from_millis(46),
            cluster_delay: Duration::from_millis(1),
            destination_delay: Duration::from_millis(1),
            loss: 0.0,
            failover_at: Duration::from_secs(2),
            failover: Duration::from_millis(500),
            recovery: None,
            first_arrival: Duration::ZERO,
            last_arrival: None,
            gap: Duration::from_millis(20),
            phases: Vec::new(),
            end: Duration::from_secs(400),
            seed: 1,
        }
    }
}

/// TCP as in the thesis' configuration of ns-2 (Table I): window 64, initial window 1, delayed acknowledgements 100 ms, SYN timeout 3 s.
/// But the minimum timeout is 1 s, as §7.2.3 suggests, not Table I's 1.5 s (docs/figures.md).
pub fn thesis_tcp(variant: TcpVariant) -> FlowConfig {
    let ns2 = FlowConfig::ns2(variant);
    FlowConfig {
        initial_window: 1,
        max_window: 64,
        rto: RtoConfig {
            min: Duration::from_secs(1),
            max: Duration::from_secs(64),
            ..ns2.rto
        },
        departures: Departures::NS2,
        ..ns2
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterResult {
    /// The flows in the order of their arrival.
    pub flows: Vec<FlowResult>,
    /// Counters of R1's and R2's local recovery, if they recover flows.
    pub edges: Option<[RecoveryCounts; 2]>,
}

/// The switches and links of a built cluster.
struct ClusterParts {
    /// R1 and R2.
    switches: [SwitchId; 2],
    cluster: [LinkId; 4],
    acts: Vec<(Duration, ClusterStep)>,
}

#[derive(Clone, Copy)]
enum ClusterStep {
    Start(FlowId),
    SetUp(bool),
    Look,
}

impl ClusterScenario {
    /// Runs the scenario. Returns the flows in the order of their arrival.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run(&self) -> Result<Vec<FlowResult>, InvalidScenario> {
        Ok(self.run_counted()?.flows)
    }

    /// Runs the scenario. Also returns the counters of the edges' local recovery.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run_counted(&self) -> Result<ClusterResult, InvalidScenario> {
        self.run_watched(&[], |_| ())
    }

    /// Runs the scenario, and calls `look` with the network at each of `moments`, in the order of time.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run_watched(
        &self,
        moments: &[Duration],
        look: impl FnMut(&FlowNetwork),
    ) -> Result<ClusterResult, InvalidScenario> {
        self.check()?;
        self.run_in(FlowNetwork::new(self.seed), moments, look)
    }

    /// Runs the scenario, and tells `trace` of every event.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run_traced(
        &self,
        trace: impl FnMut(&TraceEvent) + 'static,
    ) -> Result<ClusterResult, InvalidScenario> {
        self.check()?;
        let mut network = FlowNetwork::new(self.seed);
        network.set_trace(trace);
        self.run_in(network, &[], |_| ())
    }

    fn run_in(
        &self,
        mut network: FlowNetwork,
        moments: &[Duration],
        mut look: impl FnMut(&FlowNetwork),
    ) -> Result<ClusterResult, InvalidScenario> {
        let ClusterParts {
            switches,
            cluster,
            mut acts,
        } = self.build(&mut network)?;
        if !self.failover.is_zero() {
            let (down, up) = (self.failover_at, self.failover_at + self.failover);
            acts.extend([(down, ClusterStep::SetUp(false)), (up, ClusterStep::SetUp(true))]);
        }
        acts.extend(moments.iter().map(|at| (*at, ClusterStep::Look)));
        acts.sort_by_key(|(at, _)| *at);
        for (at, act) in acts {
            network.run_until(Instant::ZERO + at);
            match act {
                ClusterStep::Start(flow) => network.start(flow),
                ClusterStep::SetUp(up) => {
                    network.note(EventPlace::Node("N"), if up { "up" } else { "down" });
                    cluster.iter().for_each(|link| network.set_up(*link, up));
                }
                ClusterStep::Look => look(&network),
            }
        }
        network.run_flows(Instant::ZERO + self.end);
        let counts = switches.map(|switch| network.logic(switch).and_then(Edge::counts));
        Ok(ClusterResult {
            flows: network
                .flows()
                .map(|flow| FlowResult::of(&network, flow))
                .collect(),
            edges: counts[0].zip(counts[1]).map(<[_; 2]>::from),
        })
    }

    /// Puts an [`Edge`] into each of R1 and R2, if there is a failover and local recovery.
    fn put_edges(&self, network: &mut FlowNetwork, switches: [SwitchId; 2]) -> Result<(), InvalidScenario> {
        let Some(recovery) = self.recovery.filter(|_| !self.failover.is_zero()) else {
            return Ok(());
        };
        let failure = StringFailure {
            at: Instant::ZERO + self.failover_at,
            over: Instant::ZERO + self.failover_at + self.failover,
            repaired: None,
            travel: self.cluster_delay * 2,
            hits: network.flows().map(|_| true).collect(),
        };
        for (switch, entering) in switches
            .into_iter()
            .zip([FlowDirection::Forward, FlowDirection::Backward])
        {
            let mut edge = Edge::new(entering, failure.clone());
            edge.recover(&recovery)?;
            network.set_logic(switch, Box::new(edge));
        }
        Ok(())
    }

    /// Number of flows that arrive.
    pub fn flows(&self) -> u64 {
        let time = self.last_arrival().saturating_sub(self.first_arrival);
        let flows = time.as_nanos().div_ceil(self.gap.as_nanos().max(1));
        u64::try_from(flows).unwrap_or(u64::MAX)
    }

    fn last_arrival(&self) -> Duration {
        const AFTERWARDS: Duration = Duration::from_secs(2);
        self.last_arrival
            .unwrap_or(self.failover_at + self.failover + AFTERWARDS)
    }

    /// Checks the configuration without running it.
    ///
    /// # Errors
    /// Names the first invalid field.
    pub fn check(&self) -> Result<(), InvalidScenario> {
        for (field, zero) in [
            ("segments", self.segments == 0),
            ("hosts", self.hosts == 0),
            ("gap", self.gap.is_zero()),
        ] {
            if zero {
                return Err(InvalidScenario::Zero(field));
            }
        }
        if self.hosts > MOST as usize {
            return Err(InvalidScenario::Many("hosts"));
        }
        let arriving = self.last_arrival().saturating_sub(self.first_arrival);
        if arriving.div_duration_f64(self.gap) > f64::from(MOST) {
            return Err(InvalidScenario::Many("gap"));
        }
        for (field, time) in [
            ("failover", self.failover_at + self.failover),
            ("last_arrival", self.last_arrival()),
        ] {
            if time > self.end {
                return Err(InvalidScenario::Late(field));
            }
        }
        match self.recovery {
            Some(recovery) if !self.failover.is_zero() => recovery.check(self.failover),
            _ => Ok(()),
        }
    }

    fn build(&self, network: &mut FlowNetwork) -> Result<ClusterParts, InvalidScenario> {
        let [r1, n, r2] = ["R1", "N", "R2"].map(|name| network.add_switch(name));
        let link = |rate, delay, loss| LinkConfig {
            rate_bits_per_s: Some(rate),
            delay,
            loss,
            ..LinkConfig::default()
        };
        let between = |loss| link(self.cluster_rate_bits_per_s, self.cluster_delay, loss);
        let mut lay = |from: f64, to: SwitchId| network.add_link(LinkEnd::Switch(to), &between(from));
        let cluster = [lay(self.loss, n)?, lay(0.0, r2)?, lay(0.0, n)?, lay(0.0, r1)?];
        let mut hosts = Vec::new();
        for _ in 0..self.hosts {
            let source = link(self.access_rate_bits_per_s, self.source_delay, 0.0);
            let destination = link(self.access_rate_bits_per_s, self.destination_delay, 0.0);
            hosts.push([
                network.add_link(LinkEnd::Switch(r1), &source)?,
                network.add_link(LinkEnd::Switch(r2), &destination)?,
                network.add_link(LinkEnd::Hosts, &source)?,
                network.add_link(LinkEnd::Hosts, &destination)?,
            ]);
        }
        let bytes = self.segments * u64::from(self.tcp.mss);
        let (mut acts, mut at) = (Vec::new(), self.first_arrival);
        while at < self.last_arrival() {
            let [up_source, up_destination, to_source, to_destination] = hosts[acts.len() % self.hosts];
            let mut tcp = self.tcp;
            tcp.rto.phase = self.phases.get(acts.len()).copied().or(tcp.rto.phase);
            let flow = network.add_flow(&tcp, bytes, [up_source, up_destination])?;
            let routes = [
                (r1, [cluster[0], to_source]),
                (n, [cluster[1], cluster[3]]),
                (r2, [to_destination, cluster[2]]),
            ];
            for (switch, [forward, backward]) in routes {
                network.set_route(switch, flow, FlowDirection::Forward, forward);
                network.set_route(switch, flow, FlowDirection::Backward, backward);
            }
            acts.push((at, ClusterStep::Start(flow)));
            at += self.gap;
        }
        let switches = [r1, r2];
        self.put_edges(network, switches)?;
        Ok(ClusterParts {
            switches,
            cluster,
            acts,
        })
    }
}
