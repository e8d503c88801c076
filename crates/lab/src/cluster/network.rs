//! The network of a cluster: each service has a LAN of its own, with its two nodes on it.
//!
//! ```text
//!                        ┌─ lan0 ── node 0, node 1      service k: VIP 10.2.k.100, primary node k (.10),
//!  client ── router ─────┼─ lan1 ── node 1, node 2                 backup node k+1 (.11), router .1
//!  10.1.0.2              └─ lan2 ── node 2, node 0      (and behind the router the witnesses, 10.3.j.20)
//! ```

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use linux::netns::{InterfaceControl, Netns};

use crate::net::address::{CLIENT, InterfaceAddresses, PREFIX_V4, ROUTER_WAN};
use crate::net::switch::bridge_commands;
use crate::net::{CableEnd, INTERFACE, batch, cable, set_up_host, set_up_router};
use crate::teardown::{Resource, Teardown};

/// All namespaces, and the nodes' cables.
#[derive(Debug)]
pub struct ClusterNetwork {
    pub client: Netns,
    pub router: Netns,
    pub nodes: Vec<Netns>,
    pub witnesses: Vec<(Netns, InterfaceAddresses)>,
    /// For each node: the switch's ends of the node's two cables.
    cables: Vec<[InterfaceControl; 2]>,
    _switch: Netns,
}

/// Number of the routing table for service 0's LAN. The table for service k's LAN has number `TABLE` + k.
const TABLE: usize = 100;
/// Priority of the rules that select these tables. The daemons' own rules come first.
const PRIORITY: u32 = 6000;

/// The LAN of one service, with the addresses on it.
#[derive(Clone, Copy, Debug)]
pub struct ServiceLan {
    pub service: usize,
    pub vip: Ipv4Addr,
    /// The primary's interface, and the backup's.
    pub ends: [InterfaceAddresses; 2],
    pub router: InterfaceAddresses,
}

impl ServiceLan {
    /// The LAN of service number `service`.
    pub fn new(service: usize) -> Self {
        let number = service as u8;
        let end = |last: u8| InterfaceAddresses {
            v4: Ipv4Addr::new(10, 2, number, last),
            v6: CLIENT.v6,
            mac: [2, 0, 0, number + 1, 0, last],
        };
        Self {
            service,
            vip: Ipv4Addr::new(10, 2, number, 100),
            ends: [end(10), end(11)],
            router: end(1),
        }
    }

    /// The interface's name at the router and at both nodes.
    pub fn interface(&self) -> String {
        format!("lan{}", self.service)
    }

    /// Numbers of the service's nodes among `count` nodes: primary, backup.
    pub fn nodes(&self, count: usize) -> [usize; 2] {
        [self.service, (self.service + 1) % count]
    }
}

impl ClusterNetwork {
    /// Builds the network for `count` nodes, and for `witnesses` hosts on which witnesses will run. Every namespace is announced to
    /// `teardown` before it exists.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn build(run: &str, count: usize, witnesses: usize, teardown: &Teardown) -> Result<Self> {
        let add = |role: &str| -> Result<Netns> {
            let name = format!("sf-{run}-{role}");
            teardown.will_create(&Resource::Namespace(name.clone()))?;
            batch(None, &[format!("netns add {name}")])?;
            Ok(Netns::open(&name)?)
        };
        let (client, router, switch) = (add("client")?, add("router")?, add("switch")?);
        let nodes: Vec<_> = (0..count)
            .map(|node| add(&format!("n{node}")))
            .collect::<Result<_>>()?;
        for host in nodes.iter().chain([&client]) {
            set_up_host(host)?;
            batch(Some(host.name()), &["link set dev lo up".to_owned()])?;
        }
        set_up_router(&router)?;
        connect(&client, INTERFACE, &CLIENT, &router, "wan")?;
        own(&router, "wan", ROUTER_WAN.v4)?;
        own(&client, INTERFACE, CLIENT.v4)?;
        way_out(&client, ROUTER_WAN.v4)?;
        for segment in (0..count).map(ServiceLan::new) {
            lay(&segment, count, &nodes, &router, &switch)?;
        }
        let mut network = Self {
            cables: (0..count)
                .map(|node| cables(&switch, node, count))
                .collect::<Result<_>>()?,
            client,
            router,
            nodes,
            witnesses: Vec::new(),
            _switch: switch,
        };
        network.add_witnesses(witnesses, add)?;
        Ok(network)
    }

    /// Pulls both cables of `node`.
    ///
    /// # Errors
    /// If a cable cannot be pulled.
    pub fn pull(&self, node: usize) -> Result<()> {
        for cable in &self.cables[node] {
            cable.pull()?;
        }
        Ok(())
    }

    /// Connects `count` witness hosts to the router.
    fn add_witnesses(&mut self, count: usize, add: impl Fn(&str) -> Result<Netns>) -> Result<()> {
        for index in 0..count {
            let number = index as u8;
            let endpoint = InterfaceAddresses {
                v4: Ipv4Addr::new(10, 3, number, 20),
                v6: CLIENT.v6,
                mac: [2, 0, 0, 0x30, number, 20],
            };
            let host = add(&crate::witness::name(index))?;
            set_up_host(&host)?;
            let port = format!("wit{index}");
            connect(&host, INTERFACE, &endpoint, &self.router, &port)?;
            let gateway = Ipv4Addr::new(10, 3, number, 1);
            own(&self.router, &port, gateway)?;
            batch(Some(host.name()), &["link set dev lo up".to_owned()])?;
            own(&host, INTERFACE, endpoint.v4)?;
            way_out(&host, gateway)?;
            self.witnesses.push((host, endpoint));
        }
        Ok(())
    }
}

/// Builds the LAN of one service.
fn lay(segment: &ServiceLan, count: usize, nodes: &[Netns], router: &Netns, switch: &Netns) -> Result<()> {
    let lan = segment.interface();
    let uplink = format!("r{}", segment.service);
    connect(router, &lan, &segment.router, switch, &uplink)?;
    own(router, &lan, segment.router.v4)?;
    let mut ports = vec![uplink];
    for (end, node) in segment.ends.iter().zip(segment.nodes(count)) {
        let name = plug(node, segment.service);
        connect(&nodes[node], &lan, end, switch, &name)?;
        own(&nodes[node], &lan, end.v4)?;
        ports.push(name);
    }
    let ports: Vec<_> = ports.iter().map(String::as_str).collect();
    batch(Some(switch.name()), &bridge_commands(&lan, &ports))?;
    // A node is on two LANs. Packets with a source address of a LAN go through that LAN's router. Other packets go through the router of
    // the service of which the node is the primary.
    for node in segment.nodes(count) {
        by_source(&nodes[node], segment)?;
    }
    way_out(&nodes[segment.service], segment.router.v4).context("the node's way out")
}

/// The switch's port of `node` on the LAN of `service`.
fn plug(node: usize, service: usize) -> String {
    format!("n{node}s{service}")
}

fn cables(switch: &Netns, node: usize, count: usize) -> Result<[InterfaceControl; 2]> {
    let before = (node + count - 1) % count;
    Ok([
        switch.cable(&plug(node, node))?,
        switch.cable(&plug(node, before))?,
    ])
}

/// Adds a cable from `interface` of `host` to `port` of `other`. The interface gets the MAC of `endpoint`.
fn connect(
    host: &Netns,
    interface: &str,
    endpoint: &InterfaceAddresses,
    other: &Netns,
    port: &str,
) -> Result<()> {
    let near = CableEnd::from((host, interface)).with_mac(endpoint);
    let cable = cable(near, (other, port));
    Ok(batch(None, &[cable])?)
}

fn own(host: &Netns, interface: &str, address: Ipv4Addr) -> Result<()> {
    let commands = [
        format!("link set dev {interface} up"),
        format!("addr add {address}/{PREFIX_V4} dev {interface}"),
    ];
    Ok(batch(Some(host.name()), &commands)?)
}

/// Routes packets of `host` from an address of the LAN of `segment` through that LAN's router.
fn by_source(host: &Netns, segment: &ServiceLan) -> Result<()> {
    let (table, lan, router) = (TABLE + segment.service, segment.interface(), segment.router.v4);
    let [a, b, c, _] = router.octets();
    let network = Ipv4Addr::new(a, b, c, 0);
    let commands = [
        format!("route add default via {router} dev {lan} table {table}"),
        format!("rule add priority {PRIORITY} from {network}/{PREFIX_V4} lookup {table}"),
    ];
    Ok(batch(Some(host.name()), &commands)?)
}

fn way_out(host: &Netns, gateway: Ipv4Addr) -> Result<()> {
    Ok(batch(
        Some(host.name()),
        &[format!("route add default via {gateway}")],
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_primary_of_one_service_and_backup_of_the_one_before() {
        let pairs: Vec<_> = (0..3).map(|service| ServiceLan::new(service).nodes(3)).collect();
        assert_eq!(pairs, [[0, 1], [1, 2], [2, 0]]);
        assert_ne!(ServiceLan::new(0).ends[0].mac, ServiceLan::new(1).ends[0].mac);
    }
}
