//! Input and output of the measuring client.

use std::net::{IpAddr, SocketAddr};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The flows of one client process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowPlan {
    /// The server.
    pub server: SocketAddr,
    /// Time 0 of the plan, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// Time at which incomplete flows are stopped, in milliseconds after time 0.
    pub until_ms: u64,
    /// Whether flows may still be incomplete at `until_ms`. If not, a flow that is stopped has failed.
    pub may_stop: bool,
    /// The flows. If flow *i* is an upload, it transfers the pattern `seed + i`. All downloads transfer the pattern `seed`.
    pub flows: Vec<PlannedFlow>,
    /// Seed of the patterns.
    pub seed: u64,
}

/// One flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFlow {
    /// When the flow begins, in microseconds after time 0.
    pub at_us: u64,
    /// Direction of its data.
    pub direction: TransferDirection,
    /// Content bytes.
    pub bytes: u64,
    /// The client's address.
    pub source: IpAddr,
}

/// Direction of a flow's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferDirection {
    /// To the server, by HTTP PUT. Data enters the cluster at R1, as in the HALR thesis.
    #[default]
    Upload,
    /// To the client, by HTTP GET. Data enters the cluster at R2.
    Download,
}

/// The outcome of all flows, in the order of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowReport {
    /// The flows.
    pub flows: Vec<FlowOutcome>,
}

/// The outcome of one flow. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowOutcome {
    /// The client's address and port, once there is a socket.
    pub local: Option<SocketAddr>,
    /// When the flow began.
    pub arrived_ns: u64,
    /// When the handshake was complete.
    pub connected_ns: Option<u64>,
    /// When the flow was complete (with both FINs), failed or was stopped.
    pub ended_ns: u64,
    /// Content bytes that a download has received, or that an upload has written to the socket.
    pub bytes: u64,
    /// Why the flow failed.
    pub failure: Option<String>,
}

impl FlowPlan {
    /// The URL path that flow number `index` requests.
    pub fn path(&self, index: usize) -> String {
        let flow = &self.flows[index];
        match flow.direction {
            TransferDirection::Upload => format!("/uploads/flow-{}-{index}", self.seed),
            TransferDirection::Download => format!("/{}", pattern::file_name(self.seed, flow.bytes)),
        }
    }

    /// Seed of the content of flow number `index`.
    pub fn content(&self, index: usize) -> u64 {
        match self.flows[index].direction {
            TransferDirection::Upload => self.seed.wrapping_add(index as u64),
            TransferDirection::Download => self.seed,
        }
    }
}
