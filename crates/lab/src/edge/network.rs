//! The network of a cluster between two edges.
//!
//! ```text
//!                            ┌─ cable-a ─ na ─┐
//!  clients ── (wan) ── r1 ───┤                ├── r2 ── (wan) ── servers     each name is a namespace `sf-RUN-NAME`
//!                            └─ cable-b ─ nb ─┘
//! ```
//!
//! With two edges at each side, there are two **lanes**: pairs of an R1 and an R2, each with strings of its own through the same nodes.
//! Outer routers `o1` and `o2`, and the nodes, spread the flows over the lanes (ECMP over addresses and ports).
//!
//! ```text
//!  clients ── (wan) ── o1 ──┬── r1  ──┬── na ──┬── r2  ──┬── o2 ── servers     r1 and r2 are lane 0, r1b and r2b are lane 1
//!                           └── r1b ──┴── nb ──┴── r2b ──┘
//! ```
//!
//! Only one namespace `wan` exists. It is beside the clients or beside the servers (see [`ClusterPlace`]). It contains an emulator, or a
//! bridge if the round-trip time is zero. The namespaces `cable-…` (lane 0) and `cableb-…` (lane 1) are the cables between R1 and the
//! nodes. A cable is a bridge. A cable of lane 0 is an emulator instead if the string's rate is limited. If a cable is pulled in its
//! namespace, the interfaces of R1 and of the node lose the carrier, but keep their addresses and routes.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use linux::netns::{InterfaceControl, Netns};
use serde::Serialize;
use sim::link::LinkConfig;

use super::address::{
    CLIENTS, ClusterAddress, OUTSIDE, SERVER, STRING_NAMES, TRANSLATED, client, edge_end, node_end,
    outer_end, router_end,
};
use crate::emulator::{Carried, Emulator};
use crate::net::congestion;
use crate::net::switch::bridge_commands;
use crate::net::{INTERFACE, batch, batch_ipv6, cable, set_up_host, set_up_router};
use crate::teardown::{Resource, Teardown};

/// Interfaces of a node and of an emulator's namespace: towards the clients, towards the servers.
pub const SIDES: [&str; 2] = ["left", "right"];

/// Largest number of edges at each side.
pub const LANES_MAX: usize = 2;
/// Suffixes of the names of a lane's interfaces and namespaces.
const LANE_SUFFIXES: [&str; LANES_MAX] = ["", "b"];

/// Place of the cluster between clients and servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterPlace {
    /// Next to the servers. The delay is between the clients and R1.
    #[default]
    NearServers,
    /// Next to the clients. The delay is between R2 and the servers.
    NearClients,
}

/// The part of a run's options that shapes the network.
#[derive(Clone, Debug)]
pub struct EdgeTopologyOptions {
    /// Number of nodes. Each one has a string of its own.
    pub nodes: usize,
    /// Number of edges at each side.
    pub lanes: usize,
    /// Place of the cluster between clients and servers.
    pub place: ClusterPlace,
    /// Round-trip time between clients and servers. Zero: `wan` is a bridge.
    pub rtt: Duration,
    /// Rate and queue of each string. Empty: strings are as fast as the machine.
    pub strings: Vec<StringRate>,
    /// Congestion control of clients and servers.
    pub congestion: String,
    /// Whether clients and servers send single packets (no TSO, no GSO).
    pub single_packets: bool,
}

/// Limits of a string between R1 and its node, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StringRate {
    /// Mbit/s.
    pub mbit: f64,
    /// Packets that may wait, besides the packet that is being sent.
    pub queue_packets: usize,
}

/// The network of one run.
pub struct EdgeTopology {
    /// The clients' host. It has [`CLIENTS`] addresses.
    pub clients: Netns,
    /// The servers' host.
    pub servers: Netns,
    /// R1 and R2 of each lane.
    pub lanes: Vec<[Netns; 2]>,
    /// The nodes, one per string.
    pub nodes: Vec<Netns>,
    /// The interfaces of each node.
    pub interfaces: Vec<Vec<InterfaceControl>>,
    /// For each lane: both ends of the cable between R1 and each node.
    pub cables: Vec<Vec<[InterfaceControl; 2]>>,
    wan: Netns,
    /// The outer routers, if there are several lanes.
    outer: Option<[Netns; 2]>,
    /// For each lane: the namespaces of the cables.
    boxes: Vec<Vec<Netns>>,
    options: EdgeTopologyOptions,
}

/// The emulators of a network. Dropping this value ends the emulators.
pub struct EdgeEmulators {
    wan: Emulator,
    strings: Vec<Emulator>,
}

/// The traffic that the emulators of a network carried.
pub struct EdgeCarried {
    /// From the clients, and to them.
    pub wan: [Carried; 2],
    /// On each string, from R1 to R2, and back.
    pub strings: Vec<[Carried; 2]>,
}

impl EdgeTopology {
    /// Builds the network of `run`. Every namespace is announced to `teardown` before it exists.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn build(run: &str, options: &EdgeTopologyOptions, teardown: &Teardown) -> Result<Self> {
        let add = |role: &str| -> Result<Netns> {
            let name = format!("sf-{run}-{role}");
            teardown.will_create(&Resource::Namespace(name.clone()))?;
            batch(None, &[format!("netns add {name}")])?;
            Ok(Netns::open(&name)?)
        };
        let names = &STRING_NAMES[..options.nodes];
        let all = |kind: &str| -> Result<Vec<_>> {
            names.iter().map(|name| add(&format!("{kind}{name}"))).collect()
        };
        let nodes = all("n")?;
        let suffixes = &LANE_SUFFIXES[..options.lanes];
        let edges =
            |suffix: &&str| -> Result<_> { Ok([add(&format!("r1{suffix}"))?, add(&format!("r2{suffix}"))?]) };
        let boxes = suffixes.iter().map(|suffix| all(&format!("cable{suffix}-")));
        let outer = (options.lanes > 1).then(|| -> Result<_> { Ok([add("o1")?, add("o2")?]) });
        let boxes = boxes.collect::<Result<_>>()?;
        let mut network = Self {
            clients: add("clients")?,
            servers: add("servers")?,
            lanes: suffixes.iter().map(edges).collect::<Result<_>>()?,
            wan: add("wan")?,
            outer: outer.transpose()?,
            interfaces: Vec::new(),
            cables: Vec::new(),
            nodes,
            boxes,
            options: options.clone(),
        };
        network.set_up()?;
        network.connect()?;
        let ends = |place: &Netns| -> Result<_> { Ok([place.cable(SIDES[0])?, place.cable(SIDES[1])?]) };
        let of_lane = |boxes: &Vec<Netns>| boxes.iter().map(ends).collect::<Result<_>>();
        network.cables = network.boxes.iter().map(of_lane).collect::<Result<_>>()?;
        let ports: Vec<_> = (0..options.lanes)
            .flat_map(|lane| [node_port(0, lane), node_port(1, lane)])
            .collect();
        let of_node = |node: &Netns| {
            ports
                .iter()
                .map(|port| Ok(node.cable(port)?))
                .collect::<Result<_>>()
        };
        network.interfaces = network.nodes.iter().map(of_node).collect::<Result<_>>()?;
        network.configure()?;
        Ok(network)
    }

    /// Starts the emulators of this network.
    ///
    /// # Errors
    /// If an emulator cannot be started.
    pub fn emulate(&self, seed: u64) -> Result<EdgeEmulators> {
        let way = LinkConfig {
            delay: self.options.rtt / 2,
            ..LinkConfig::default()
        };
        let wan = Emulator::join(&self.wan, SIDES, [way.clone(), way], seed).context("emulate the way")?;
        let string = |(cable, rate): (&Netns, &StringRate)| {
            let link = rate.link();
            Emulator::join(cable, SIDES, [link.clone(), link], seed).context("emulate a string")
        };
        let strings = self.boxes[0].iter().zip(&self.options.strings);
        Ok(EdgeEmulators {
            strings: strings.map(string).collect::<Result<_>>()?,
            wan,
        })
    }

    fn set_up(&self) -> Result<()> {
        for host in [&self.clients, &self.servers] {
            set_up_host(host)?;
        }
        for router in self.lanes.iter().flatten().chain(&self.nodes).chain(self.outer()) {
            set_up_router(router)?;
        }
        if let Some(outer) = &self.outer {
            self.nodes.iter().chain(outer).try_for_each(spread_flows)?;
        }
        for silent in self.boxes.iter().flatten().chain([&self.wan]) {
            silent.run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))??;
        }
        Ok(congestion::choose(
            &self.options.congestion,
            [&self.clients, &self.servers],
        )?)
    }

    fn outer(&self) -> impl Iterator<Item = &Netns> {
        self.outer.iter().flatten()
    }

    /// Connects all namespaces.
    fn connect(&self) -> Result<()> {
        let (clients, servers, wan) = (&self.clients, &self.servers, &self.wan);
        // The gateways of the clients and of the servers.
        let [near, far] = match &self.outer {
            Some([o1, o2]) => [o1, o2],
            None => [&self.lanes[0][0], &self.lanes[0][1]],
        };
        let mut cables = match self.options.place {
            ClusterPlace::NearServers => vec![
                cable((clients, INTERFACE), (wan, SIDES[0])),
                cable((wan, SIDES[1]), (near, INTERFACE)),
                cable((far, INTERFACE), (servers, INTERFACE)),
            ],
            ClusterPlace::NearClients => vec![
                cable((clients, INTERFACE), (near, INTERFACE)),
                cable((far, INTERFACE), (wan, SIDES[0])),
                cable((wan, SIDES[1]), (servers, INTERFACE)),
            ],
        };
        for (lane, edges) in self.lanes.iter().enumerate() {
            for (router, edge) in self.outer().zip(edges) {
                cables.push(cable((router, &router_port(lane)), (edge, INTERFACE)));
            }
            let [r1, r2] = edges;
            for (index, node) in self.nodes.iter().enumerate() {
                let (port, between) = (string_port(index), &self.boxes[lane][index]);
                cables.extend([
                    cable((r1, &port), (between, SIDES[0])),
                    cable((between, SIDES[1]), (node, &node_port(0, lane))),
                    cable((node, &node_port(1, lane)), (r2, &port)),
                ]);
            }
        }
        Ok(batch(None, &cables)?)
    }

    /// Gives addresses and routes to all hosts.
    fn configure(&self) -> Result<()> {
        let boxes = || self.boxes.iter().flatten();
        for silent in boxes().chain([&self.wan]) {
            on(
                silent,
                SIDES.map(|side| format!("link set dev {side} up")).to_vec(),
            )?;
        }
        let boxes = boxes().filter(|_| self.options.strings.is_empty());
        let wan = Some(&self.wan).filter(|_| self.options.rtt.is_zero());
        for between in boxes.chain(wan) {
            on(between, bridge_commands("cable", &SIDES))?;
        }
        let all: Vec<_> = (0..CLIENTS).map(client).collect();
        for (host, addresses, gateway) in [
            (&self.clients, &all[..], OUTSIDE[0]),
            (&self.servers, &[SERVER][..], OUTSIDE[1]),
        ] {
            let mut commands = interface(INTERFACE, addresses);
            if self.options.single_packets {
                commands.insert(0, format!("link set dev {INTERFACE} gso_max_segs 1"));
            }
            commands.extend(routes(&["default"; 2], gateway, ""));
            on(host, commands)?;
        }
        for (lane, edges) in self.lanes.iter().enumerate() {
            for (side, edge) in edges.iter().enumerate() {
                on(edge, self.edge_commands(side, lane))?;
            }
        }
        for (side, router) in self.outer().enumerate() {
            on(router, self.outer_commands(side))?;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            on(node, self.node_commands(index))?;
        }
        Ok(())
    }

    /// Networks on the far side of the cluster, seen from `side`.
    fn far_networks(side: usize) -> Vec<[String; 2]> {
        match side {
            0 => vec![SERVER.networks()],
            _ => vec![client(0).networks(), TRANSLATED.networks()],
        }
    }

    fn edge_commands(&self, side: usize, lane: usize) -> Vec<String> {
        let mut commands = Vec::new();
        if self.outer.is_some() {
            commands.extend(interface(INTERFACE, &[outer_end(side, lane)]));
            let near = [client(0), SERVER][side].networks();
            commands.extend(routes(&as_text(&near), router_end(side, lane), ""));
        } else {
            commands.extend(interface(INTERFACE, &[OUTSIDE[side]]));
        }
        for index in 0..self.nodes.len() {
            commands.extend(interface(&string_port(index), &[edge_end(index, side, lane)]));
            commands.extend(self.cut_before(&string_port(index)));
            let behind = edge_end(index, 1 - side, lane).networks();
            commands.extend(routes(&as_text(&behind), node_end(index, side, lane), ""));
        }
        for far in Self::far_networks(side) {
            commands.extend(routes(&as_text(&far), node_end(0, side, lane), ""));
        }
        commands
    }

    /// Makes the kernel cut large segments before they leave by `port`, because the queue of a string with a limited rate counts packets.
    fn cut_before(&self, port: &str) -> Option<String> {
        let is_limited = !self.options.strings.is_empty();
        is_limited.then(|| format!("link set dev {port} gso_max_segs 1"))
    }

    fn outer_commands(&self, side: usize) -> Vec<String> {
        let lanes = || 0..self.lanes.len();
        let mut commands = interface(INTERFACE, &[OUTSIDE[side]]);
        for lane in lanes() {
            commands.extend(interface(&router_port(lane), &[router_end(side, lane)]));
        }
        for far in Self::far_networks(side) {
            let hops: Vec<_> = lanes().map(|lane| outer_end(side, lane)).collect();
            commands.extend(spread(&as_text(&far), &hops));
        }
        commands
    }

    fn node_commands(&self, index: usize) -> Vec<String> {
        let mut commands = Vec::new();
        for (side, near) in [client(0), SERVER].into_iter().enumerate() {
            let lanes = || 0..self.lanes.len();
            for lane in lanes() {
                commands.extend(interface(&node_port(side, lane), &[node_end(index, side, lane)]));
                commands.extend(self.cut_before(&node_port(side, lane)));
            }
            let hops: Vec<_> = lanes().map(|lane| edge_end(index, side, lane)).collect();
            commands.extend(spread(&as_text(&near.networks()), &hops));
        }
        commands
    }

    /// Sets up routes for a cluster without edges. If `apart`, client address number k uses string k. Otherwise all client addresses use
    /// the first string.
    ///
    /// # Errors
    /// Names the `ip` command that failed.
    pub fn route_without_edge(&self, apart: bool) -> Result<()> {
        for group in 0..CLIENTS {
            for (side, edge) in self.lanes[0].iter().enumerate() {
                let direction = ["from", "to"][side];
                let table = TABLE + group;
                let [v4, v6] = [false, true].map(|ipv6| {
                    let address = client(group).ip(ipv6);
                    format!("rule add {direction} {address} lookup {table}")
                });
                let string = if apart { group } else { 0 };
                let way = routes(
                    &["default"; 2],
                    node_end(string, side, 0),
                    &format!(" table {table}"),
                );
                on(edge, [v4].into_iter().chain(way).collect())?;
                batch_ipv6(Some(edge.name()), &[v6])?;
            }
        }
        Ok(())
    }

    /// Routes client address number `group` over `string`, as an operator would without an edge.
    ///
    /// # Errors
    /// Names the `ip` command that failed.
    pub fn reroute(&self, group: usize, string: usize) -> Result<()> {
        for (side, edge) in self.lanes[0].iter().enumerate() {
            let table = format!(" table {}", TABLE + group);
            on(
                edge,
                routes(&["default"; 2], node_end(string, side, 0), &table).to_vec(),
            )?;
        }
        Ok(())
    }
}

/// Number of the routing table for client address 0 in a cluster that has no edge. Client address k has the table `TABLE` + k.
const TABLE: usize = 100;

impl EdgeEmulators {
    /// Ends the emulators.
    ///
    /// # Errors
    /// If an emulator failed.
    pub fn finish(self) -> Result<EdgeCarried> {
        let strings = self.strings.into_iter().map(Emulator::finish_traced);
        Ok(EdgeCarried {
            wan: self.wan.finish_traced()?,
            strings: strings.collect::<Result<_>>()?,
        })
    }
}

impl StringRate {
    fn link(self) -> LinkConfig {
        LinkConfig {
            rate_bits_per_s: Some((self.mbit * 1e6).round() as u64),
            queue_packets: Some(self.queue_packets),
            ..LinkConfig::default()
        }
    }
}

/// The name of a node's port towards R1 (side 0) or R2 (side 1) of a lane.
pub fn node_port(side: usize, lane: usize) -> String {
    format!("{}{}", SIDES[side], LANE_SUFFIXES[lane])
}

/// The name of an outer router's port towards a lane.
fn router_port(lane: usize) -> String {
    format!("edge{lane}")
}

/// Makes a router spread flows over several routes by their addresses and ports, and use no route whose cable has no signal.
fn spread_flows(router: &Netns) -> Result<()> {
    const SETTINGS: [(&str, &str); 2] = [
        ("fib_multipath_hash_policy", "1"),
        ("conf/all/ignore_routes_with_linkdown", "1"),
    ];
    for family in ["ipv4", "ipv6"] {
        for (key, value) in SETTINGS {
            let file = format!("/proc/sys/net/{family}/{key}");
            router
                .run(|| std::fs::write(&file, value))?
                .with_context(|| file.clone())?;
        }
    }
    Ok(())
}

/// The name of the port of string `index` at both edges.
pub fn string_port(index: usize) -> String {
    format!("{}0", STRING_NAMES[index])
}

fn on(host: &Netns, commands: Vec<String>) -> Result<()> {
    Ok(batch(Some(host.name()), &commands)?)
}

fn interface(name: &str, addresses: &[ClusterAddress]) -> Vec<String> {
    let mut commands = vec!["link set dev lo up".to_owned(), format!("link set dev {name} up")];
    for address in addresses {
        commands.push(format!("addr add {}/24 dev {name}", address.v4()));
        commands.push(format!("addr add {}/64 dev {name} nodad", address.v6()));
    }
    commands
}

/// Routes to an IPv4 and an IPv6 destination.
fn routes(to: &[&str; 2], via: ClusterAddress, suffix: &str) -> [String; 2] {
    let [v4, v6] = to;
    [
        format!("route replace {v4} via {}{suffix}", via.v4()),
        format!("route replace {v6} via {}{suffix}", via.v6()),
    ]
}

/// Routes to an IPv4 and an IPv6 destination by any of the next hops.
fn spread(to: &[&str; 2], hops: &[ClusterAddress]) -> [String; 2] {
    let [v4, v6] = to;
    let by = |address: fn(&ClusterAddress) -> String| -> String {
        hops.iter()
            .map(|hop| format!(" nexthop via {}", address(hop)))
            .collect()
    };
    [
        format!("route replace {v4}{}", by(|hop| hop.v4().to_string())),
        format!("route replace {v6}{}", by(|hop| hop.v6().to_string())),
    ]
}

fn as_text(networks: &[String; 2]) -> [&str; 2] {
    [&networks[0], &networks[1]]
}
