//! Builds the network of one run.

use linux::netns::{InterfaceControl, Netns};

use super::address::{
    CLIENT, InterfaceAddresses, NODES, PREFIX_V4, PREFIX_V6, ROUTER_LAN, ROUTER_WAN, SECOND,
};
use super::cable::{CableEnd, cable};
use super::congestion::{self, CUBIC};
use super::ip::batch;
use super::kernel::{NetError, set_up_host, set_up_kernel, set_up_router};
use super::names::{
    INTERFACE, NODE_NAMES, ROUTER_LAN_INTERFACE, SECOND_INTERFACE, WAN_CLIENT_INTERFACE, WAN_ROUTER_INTERFACE,
};
use super::options::TopologyOptions;
use super::switch::{self, Cables};
use crate::teardown::{Resource, Teardown};

/// The network of one run.
#[derive(Debug)]
pub struct Topology {
    /// The clients' namespace.
    pub client: Netns,
    /// The emulator's namespace, if there is an emulator.
    pub wan: Option<Netns>,
    /// The router.
    pub router: Netns,
    /// The LAN's switch.
    pub switch: Netns,
    /// Node a and node b.
    pub nodes: [Netns; 2],
    /// The cables of node a and node b: the ends at the switch.
    pub cables: [Cables; 2],
    /// The uplinks of node a's and node b's own switches, if they exist: the ends at the router's switch.
    pub uplinks: Option<[InterfaceControl; 2]>,
    plan: TopologyOptions,
}

impl Topology {
    /// Builds the network of `run`. Every namespace is announced to `teardown` before it exists.
    ///
    /// # Errors
    /// Names the step that failed; what was built so far is removed by `teardown`.
    pub fn build(run: &str, plan: TopologyOptions, teardown: &Teardown) -> Result<Self, NetError> {
        let names = NamespaceNames::new(run, plan);
        for name in names.all() {
            teardown.will_create(&Resource::Namespace(name.to_owned()))?;
        }
        batch(
            None,
            &names
                .all()
                .map(|name| format!("netns add {name}"))
                .collect::<Vec<_>>(),
        )?;
        let open = |name: &str| Netns::open(name);
        let [a, b] = &names.nodes;
        let nodes = [open(a)?, open(b)?];
        let client = open(&names.client)?;
        let wan = names.wan.as_deref().map(open).transpose()?;
        let router = open(&names.router)?;
        let switch = open(&names.switch)?;

        for host in [&client, &nodes[0], &nodes[1]] {
            set_up_host(host)?;
        }
        set_up_router(&router)?;
        congestion::choose(CUBIC, [&client, &nodes[0], &nodes[1]])?;
        // These namespaces only forward frames. IPv6 is off, because their kernels' own router solicitations would clutter the
        // captures.
        for box_without_address in wan.iter().chain([&switch]) {
            set_up_kernel(box_without_address, &[("ipv6/conf/default/disable_ipv6", "1")])?;
        }

        batch(None, &names.cables())?;
        batch(Some(&names.client), &host_commands(&CLIENT, &ROUTER_WAN, plan))?;
        batch(Some(&names.router), &router_commands())?;
        batch(Some(&names.switch), &switch::commands(plan))?;
        for (index, name) in names.nodes.iter().enumerate() {
            batch(Some(name), &host_commands(&NODES[index], &ROUTER_LAN, plan))?;
            if plan.second_network {
                batch(Some(name), &interface_commands(SECOND_INTERFACE, &SECOND[index]))?;
            }
        }
        if let Some(wan) = &names.wan {
            let ends = [WAN_CLIENT_INTERFACE, WAN_ROUTER_INTERFACE];
            batch(Some(wan), &ends.map(|end| format!("link set dev {end} up")))?;
        }
        let uplinks = match plan.own_switches {
            true => Some([switch.cable(NODE_NAMES[0])?, switch.cable(NODE_NAMES[1])?]),
            false => None,
        };
        Ok(Self {
            cables: [Cables::of(&switch, 0, plan)?, Cables::of(&switch, 1, plan)?],
            uplinks,
            plan,
            client,
            wan,
            router,
            switch,
            nodes,
        })
    }

    /// The switch's ports to which the cables of node `index` are connected.
    pub fn ports(&self, index: usize) -> Vec<&'static str> {
        switch::ports_of(index, self.plan)
    }

    /// The interfaces of node `index` with their addresses. The service's interface comes first.
    pub fn interfaces(&self, index: usize) -> Vec<(&'static str, InterfaceAddresses)> {
        let second = self
            .plan
            .second_network
            .then_some((SECOND_INTERFACE, SECOND[index]));
        [(INTERFACE, NODES[index])].into_iter().chain(second).collect()
    }

    /// Restores the interfaces, addresses and default route of node `index`, as the administrator configured them.
    /// Does not change parts that still exist.
    ///
    /// # Errors
    /// Names the command that failed.
    pub fn configure(&self, index: usize) -> Result<(), NetError> {
        let mut commands = Vec::new();
        for (interface, endpoint) in self.interfaces(index) {
            commands.extend(interface_commands(interface, &endpoint));
        }
        commands.extend(way_out(&ROUTER_LAN));
        Ok(batch(Some(self.nodes[index].name()), &commands)?)
    }
}

impl Topology {
    /// Connects another host of `run` to the switch.
    ///
    /// # Errors
    /// Names the step that failed; what was built so far is removed by `teardown`.
    pub fn add_host(
        &self,
        run: &str,
        role: &str,
        endpoint: &InterfaceAddresses,
        teardown: &Teardown,
    ) -> Result<Netns, NetError> {
        let name = namespace(run, role);
        teardown.will_create(&Resource::Namespace(name.clone()))?;
        let switch = self.switch.name();
        let host_end = CableEnd::new(&name, INTERFACE).with_mac(endpoint);
        let commands = [
            format!("netns add {name}"),
            cable(host_end, CableEnd::new(switch, role)),
        ];
        batch(None, &commands)?;
        let host = Netns::open(&name)?;
        set_up_host(&host)?;
        congestion::choose(CUBIC, [&host])?;
        batch(
            Some(switch),
            &[
                format!("link set dev {role} master lan"),
                format!("link set dev {role} up"),
            ],
        )?;
        batch(Some(&name), &host_commands(endpoint, &ROUTER_LAN, self.plan))?;
        Ok(host)
    }
}

fn namespace(run: &str, role: &str) -> String {
    format!("sf-{run}-{role}")
}

/// The namespaces' names.
struct NamespaceNames {
    client: String,
    wan: Option<String>,
    router: String,
    switch: String,
    nodes: [String; 2],
    plan: TopologyOptions,
}

impl NamespaceNames {
    fn new(run: &str, plan: TopologyOptions) -> Self {
        let name = |role: &str| namespace(run, role);
        Self {
            client: name("client"),
            wan: plan.wan.then(|| name("wan")),
            router: name("router"),
            switch: name("switch"),
            nodes: NODE_NAMES.map(name),
            plan,
        }
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        [&self.client, &self.router, &self.switch]
            .into_iter()
            .chain(&self.wan)
            .chain(&self.nodes)
            .map(String::as_str)
    }

    fn at_switch<'a>(&'a self, port: &'a str) -> CableEnd<'a> {
        CableEnd::new(&self.switch, port)
    }

    /// The commands that create every cable with each end in its namespace.
    fn cables(&self) -> Vec<String> {
        let client = CableEnd::new(&self.client, INTERFACE).with_mac(&CLIENT);
        let router_wan = CableEnd::new(&self.router, "wan").with_mac(&ROUTER_WAN);
        let mut cables = match &self.wan {
            None => vec![cable(client, router_wan)],
            Some(wan) => vec![
                cable(client, CableEnd::new(wan, WAN_CLIENT_INTERFACE)),
                cable(CableEnd::new(wan, WAN_ROUTER_INTERFACE), router_wan),
            ],
        };
        let router_lan = CableEnd::new(&self.router, ROUTER_LAN_INTERFACE).with_mac(&ROUTER_LAN);
        cables.push(cable(router_lan, self.at_switch(switch::ROUTER)));
        for (index, namespace) in self.nodes.iter().enumerate() {
            let node = CableEnd::new(namespace, INTERFACE).with_mac(&NODES[index]);
            cables.push(cable(node, self.at_switch(switch::port_of(index, self.plan))));
            if self.plan.own_switches {
                let [near, far] = switch::uplink(index);
                cables.push(cable(self.at_switch(near), self.at_switch(far)));
            }
            if self.plan.second_network {
                let node = CableEnd::new(namespace, SECOND_INTERFACE).with_mac(&SECOND[index]);
                cables.push(cable(node, self.at_switch(switch::SECOND_PORTS[index])));
            }
        }
        cables
    }
}

/// `ip` commands that configure a host (client or node) from inside, with the default gateway `gateway`.
fn host_commands(
    host: &InterfaceAddresses,
    gateway: &InterfaceAddresses,
    plan: TopologyOptions,
) -> Vec<String> {
    let mut commands = vec!["link set dev lo up".to_owned()];
    if plan.single_packets {
        commands.push(format!("link set dev {INTERFACE} gso_max_segs 1"));
    }
    commands.extend(interface_commands(INTERFACE, host));
    commands.extend(way_out(gateway));
    commands
}

fn way_out(gateway: &InterfaceAddresses) -> [String; 2] {
    [
        format!("route replace default via {}", gateway.v4),
        format!("route replace default via {}", gateway.v6),
    ]
}

fn router_commands() -> Vec<String> {
    let mut commands = vec!["link set dev lo up".to_owned()];
    commands.extend(interface_commands("wan", &ROUTER_WAN));
    commands.extend(interface_commands(ROUTER_LAN_INTERFACE, &ROUTER_LAN));
    commands
}

fn interface_commands(interface: &str, endpoint: &InterfaceAddresses) -> [String; 3] {
    [
        format!("link set dev {interface} up"),
        format!("addr replace {}/{PREFIX_V4} dev {interface}", endpoint.v4),
        format!("addr replace {}/{PREFIX_V6} dev {interface} nodad", endpoint.v6),
    ]
}
