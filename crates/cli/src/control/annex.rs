//! The status of an annex, as the control socket gives it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use proto::follower::RestartPolicy;
use serde::{Deserialize, Serialize};

/// The status of an annex (docs/annex.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnexDaemonStatus {
    /// Its name.
    pub annex: String,
    /// Where the pair's nodes connect.
    pub listen: SocketAddr,
    /// How its registration stands. `None` without `[registry]`.
    #[serde(default)]
    pub registration: Option<RegistrationStatus>,
    /// Its services, in the order of the configuration.
    pub services: Vec<HostedServiceStatus>,
}

/// The registration of an annex in etcd (docs/registry.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationStatus {
    /// Its key.
    pub key: String,
    /// Where the pair's nodes reach the annex.
    pub address: SocketAddr,
    /// Whether the key was in order when it was last looked at.
    pub is_registered: bool,
    /// Time since the key was last known to be in order, in nanoseconds. `None`: never.
    pub kept_age_ns: Option<u64>,
    /// Why it is not in order.
    pub error: Option<String>,
}

/// A service of an annex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostedServiceStatus {
    /// Its name.
    pub name: String,
    /// The VIP.
    pub address: SocketAddr,
    /// How its application goes on with a connection that has moved here, by the annex's configuration.
    pub policy: RestartPolicy,
    /// The address of the node through which its packets pass. `None` before the first link.
    pub wire: Option<IpAddr>,
    /// Whether this node's link is there.
    pub is_linked: bool,
    /// This node is the primary, which carries the connections because its wire has failed.
    pub is_carried: bool,
    /// The highest epoch of a wire.
    pub epoch: u64,
    /// Connections that are here.
    pub connections: u64,
    /// Its application does not answer the probe of `[service.health]`, so the annex takes no connections.
    pub is_hung: bool,
    /// Event counters by name.
    pub counters: BTreeMap<String, u64>,
}
