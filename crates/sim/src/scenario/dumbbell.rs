//! Bulk transfers over one bottleneck. Used to compare the simulator's speed with ns-2's.

use std::time::Duration;

use proto::Instant;
use serde::Deserialize;

use super::{FlowResult, InvalidScenario};
use crate::flow::FlowDirection;
use crate::flow::{FlowConfig, RtoConfig, TcpVariant, seconds};
use crate::link::LinkConfig;
use crate::net::{FlowNetwork, LinkEnd};

/// The scenario. The default is one flow of a million segments over 100 Mb/s, with a round trip of 44 ms and NewReno as in ns-2.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dumbbell {
    /// TCP at both ends.
    pub tcp: FlowConfig,
    /// Number of flows, each between hosts of its own.
    pub flows: u32,
    /// Full data segments per flow.
    pub segments: u64,
    /// Time between the starts of two flows, in seconds.
    #[serde(with = "seconds")]
    pub gap: Duration,
    /// Bits per second of the hosts' links.
    pub access_rate_bits_per_s: u64,
    /// Propagation delay of the hosts' links, in seconds.
    #[serde(with = "seconds")]
    pub access_delay: Duration,
    /// Bits per second of the bottleneck.
    pub rate_bits_per_s: u64,
    /// Propagation delay of the bottleneck, in seconds.
    #[serde(with = "seconds")]
    pub delay: Duration,
    /// Number of packets that may wait before the bottleneck.
    pub buffer_packets: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Default for Dumbbell {
    fn default() -> Self {
        let ns2 = FlowConfig::ns2(TcpVariant::NewReno);
        Self {
            tcp: FlowConfig {
                max_window: 64,
                rto: RtoConfig {
                    min: Duration::from_secs(1),
                    ..ns2.rto
                },
                ..ns2
            },
            flows: 1,
            segments: 1_000_000,
            gap: Duration::from_millis(10),
            access_rate_bits_per_s: 1_000_000_000,
            access_delay: Duration::from_millis(1),
            rate_bits_per_s: 100_000_000,
            delay: Duration::from_millis(20),
            buffer_packets: 499, // ns-2's limit of 500 counts the packet that is being sent
            seed: 1,
        }
    }
}

impl Dumbbell {
    /// Runs the scenario until all flows are complete.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run(&self) -> Result<Vec<FlowResult>, InvalidScenario> {
        let mut network = FlowNetwork::new(self.seed);
        let [r1, r2] = ["R1", "R2"].map(|name| network.add_switch(name));
        let bottleneck = LinkConfig {
            rate_bits_per_s: Some(self.rate_bits_per_s),
            delay: self.delay,
            queue_packets: Some(self.buffer_packets),
            ..LinkConfig::default()
        };
        let access = LinkConfig {
            rate_bits_per_s: Some(self.access_rate_bits_per_s),
            delay: self.access_delay,
            ..LinkConfig::default()
        };
        let there = network.add_link(LinkEnd::Switch(r2), &bottleneck)?;
        let back = network.add_link(LinkEnd::Switch(r1), &bottleneck)?;
        let mut flows = Vec::new();
        for _ in 0..self.flows {
            let uplinks = [
                network.add_link(LinkEnd::Switch(r1), &access)?,
                network.add_link(LinkEnd::Switch(r2), &access)?,
            ];
            let source = network.add_link(LinkEnd::Hosts, &access)?;
            let destination = network.add_link(LinkEnd::Hosts, &access)?;
            let flow = network.add_flow(&self.tcp, self.segments * u64::from(self.tcp.mss), uplinks)?;
            network.set_route(r1, flow, FlowDirection::Forward, there);
            network.set_route(r2, flow, FlowDirection::Forward, destination);
            network.set_route(r2, flow, FlowDirection::Backward, back);
            network.set_route(r1, flow, FlowDirection::Backward, source);
            flows.push(flow);
        }
        let mut at = Instant::ZERO;
        for flow in flows {
            network.run_until(at);
            network.start(flow);
            at += self.gap;
        }
        network.run_flows(Instant::from_nanos(u64::MAX));
        Ok(network
            .flows()
            .map(|flow| FlowResult::of(&network, flow))
            .collect())
    }
}
