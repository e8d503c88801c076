//! The network of a guide: namespaces, cables, and the settings that the guide does not make itself.

use anyhow::{Context, Result};
use linux::netns::{InterfaceControl, Netns};

use super::topology::{EDGE, GuideTopology, PAIR, TUNNEL};
use crate::net::switch::{Cables, bridge_commands};
use crate::net::{Topology, TopologyOptions, batch, cable, set_up_host};
use crate::teardown::{Resource, Teardown};

/// The network of a guide that is being played.
pub struct GuideNetwork {
    /// The hosts with systemd, in the order of the topology.
    pub machines: [Netns; 2],
    /// All other hosts, in the order of the topology.
    pub others: Vec<Netns>,
    cables: Vec<GuideCable>,
    /// The namespaces that are not hosts of the topology: the cables, or a router and a switch.
    _boxes: Vec<Netns>,
}

/// A cable that can be pulled.
enum GuideCable {
    ToSwitch(Cables),
    Between([InterfaceControl; 2]),
}

impl GuideNetwork {
    /// Builds the network of a topology for `run`. Every namespace is announced to `teardown` before it exists.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn build(topology: &GuideTopology, run: &str, teardown: &Teardown) -> Result<Self> {
        if *topology == PAIR {
            pair(run, teardown)
        } else if *topology == EDGE {
            edge(run, teardown)
        } else {
            tunnel(run, teardown)
        }
    }

    /// Plugs in a cable, or pulls it.
    ///
    /// # Errors
    /// If an end of the cable cannot be changed.
    pub fn move_cable(&self, cable: usize, plugged: bool) -> Result<()> {
        match (&self.cables[cable], plugged) {
            (GuideCable::ToSwitch(cables), true) => cables.plug(),
            (GuideCable::ToSwitch(cables), false) => cables.pull(),
            (GuideCable::Between(ends), true) => ends.iter().try_for_each(InterfaceControl::plug),
            (GuideCable::Between(ends), false) => ends.iter().try_for_each(InterfaceControl::pull),
        }
        .context("move the cable")
    }
}

fn pair(run: &str, teardown: &Teardown) -> Result<GuideNetwork> {
    let network = Topology::build(run, TopologyOptions::default(), teardown)?;
    Ok(GuideNetwork {
        machines: network.nodes,
        others: vec![network.client],
        cables: network.cables.map(GuideCable::ToSwitch).into(),
        _boxes: vec![network.router, network.switch],
    })
}

/// ```text
///                       ┌─ eth1 ─ cable-a ─ eth0 ─ node-a ─ eth1 ─ eth1 ─┐
///  client ─ eth0 ─ r1 ──┤                                                ├── r2 ─ eth0 ─ server
///                       └─ eth2 ─ cable-b ─ eth0 ─ node-b ─ eth1 ─ eth2 ─┘
/// ```
///
/// Only client and server have addresses. A cable is a namespace with a bridge: when the cable is pulled, the interfaces at both ends lose
/// the carrier but keep their addresses.
fn edge(run: &str, teardown: &Teardown) -> Result<GuideNetwork> {
    let add = |role: &str| add_host(run, role, teardown);
    let all = |roles: &[&str]| roles.iter().map(|role| add(role)).collect::<Result<Vec<_>>>();
    let machines = [add(EDGE.machines[0])?, add(EDGE.machines[1])?];
    let others = all(EDGE.others)?;
    let boxes = all(&["cable-a", "cable-b"])?;
    let [r1, r2] = &machines;
    let mut commands = vec![
        cable((&others[0], "eth0"), (r1, "eth0")),
        cable((r2, "eth0"), (&others[1], "eth0")),
    ];
    for (index, between) in boxes.iter().enumerate() {
        let (node, port) = (&others[2 + index], format!("eth{}", 1 + index));
        commands.extend([
            cable((r1, &port), (between, ENDS[0])),
            cable((between, ENDS[1]), (node, "eth0")),
            cable((node, "eth1"), (r2, &port)),
        ]);
    }
    batch(None, &commands)?;
    for (host, net) in [(&others[0], 1), (&others[1], 2)] {
        let commands = [
            "link set dev eth0 up".to_owned(),
            format!("address add 10.{net}.0.2/24 dev eth0"),
            format!("route add default via 10.{net}.0.1"),
        ];
        batch(Some(host.name()), &commands)?;
    }
    Ok(GuideNetwork {
        cables: controls(&boxes)?,
        machines,
        others,
        _boxes: boxes,
    })
}

/// ```text
///                          ┌─ eth1 ─ link-1 ─ eth1 ─┐
///  client ─ eth0 ─ north ──┤                        ├── south
///                  (eth0)  └─ eth2 ─ link-2 ─ eth2 ─┘
/// ```
///
/// Only the client has an address.
fn tunnel(run: &str, teardown: &Teardown) -> Result<GuideNetwork> {
    let add = |role: &str| add_host(run, role, teardown);
    let machines = [add(TUNNEL.machines[0])?, add(TUNNEL.machines[1])?];
    let client = add(TUNNEL.others[0])?;
    let boxes = [add(TUNNEL.cables[0])?, add(TUNNEL.cables[1])?];
    let [north, south] = &machines;
    let mut commands = vec![cable((&client, "eth0"), (north, "eth0"))];
    for (index, between) in boxes.iter().enumerate() {
        let port = format!("eth{}", 1 + index);
        commands.extend([
            cable((north, &port), (between, ENDS[0])),
            cable((between, ENDS[1]), (south, &port)),
        ]);
    }
    batch(None, &commands)?;
    let commands = ["link set dev eth0 up", "address add 192.168.1.2/24 dev eth0"];
    batch(Some(client.name()), &commands.map(str::to_owned))?;
    Ok(GuideNetwork {
        cables: controls(&boxes)?,
        machines,
        others: vec![client],
        _boxes: boxes.into(),
    })
}

/// The two ports of a cable, in the cable's namespace.
const ENDS: [&str; 2] = ["left", "right"];

/// A host without addresses.
fn add_host(run: &str, role: &str, teardown: &Teardown) -> Result<Netns> {
    let name = format!("sf-{run}-{role}");
    teardown.will_create(&Resource::Namespace(name.clone()))?;
    batch(None, &[format!("netns add {name}")])?;
    let host = Netns::open(&name)?;
    set_up_host(&host)?;
    batch(Some(&name), &["link set dev lo up".to_owned()])?;
    Ok(host)
}

/// Turns each of the namespaces `boxes` into a cable, with a bridge between the namespace's two ports.
fn controls(boxes: &[Netns]) -> Result<Vec<GuideCable>> {
    let control = |between: &Netns| -> Result<_> {
        batch(Some(between.name()), &bridge_commands("cable", &ENDS))?;
        Ok(GuideCable::Between([
            between.cable(ENDS[0])?,
            between.cable(ENDS[1])?,
        ]))
    };
    boxes.iter().map(control).collect()
}
