//! The switches between the nodes and the router, and the faults at the switches.
//!
//! ```text
//!  router ── router [lan] a ── node a        router ── router [lan] a ── up-a [lan-a] node-a ── node a
//!                         b ── node b                             b ── up-b [lan-b] node-b ── node b
//!                                                  (each node behind a switch of its own)
//!  node a ── a2 [second] b2 ── node b        (the second network)
//! ```
//!
//! Each `[bridge]` is a switch, and the names beside it are its ports. All switches are in one namespace. [`lose`] drops frames by
//! forwarding rules in the switches, so the nodes' carriers stay up. Every frame between a node and the router passes the ports
//! of `lan` (`a`, `b` and `router`).

use anyhow::Result;
use linux::netns::{self, InterfaceControl, Netns};

use super::names::NODE_NAMES;
use super::options::TopologyOptions;
use crate::process;

/// The router's port.
pub const ROUTER: &str = "router";
/// The nodes' ports on the second network.
pub const SECOND_PORTS: [&str; 2] = ["a2", "b2"];

const LAN: &str = "lan";
const SECOND: &str = "second";
/// Each node's own switch: its name, the node's port, and the uplink's port.
const OWN: [[&str; 3]; 2] = [["lan-a", "node-a", "up-a"], ["lan-b", "node-b", "up-b"]];

/// The port of the cable that connects node `index` to the service's network.
pub fn port_of(index: usize, plan: TopologyOptions) -> &'static str {
    match plan.own_switches {
        true => OWN[index][1],
        false => NODE_NAMES[index],
    }
}

/// The ports to which the cables of node `index` are connected.
pub fn ports_of(index: usize, plan: TopologyOptions) -> Vec<&'static str> {
    let second = plan.second_network.then_some(SECOND_PORTS[index]);
    [port_of(index, plan)].into_iter().chain(second).collect()
}

/// Both ends of the uplink of node `index`'s own switch.
pub fn uplink(index: usize) -> [&'static str; 2] {
    [OWN[index][2], NODE_NAMES[index]]
}

/// `ip` commands that set up the switches. They run in the switches' namespace, after the ports were created.
pub fn commands(plan: TopologyOptions) -> Vec<String> {
    let mut bridges = vec![(LAN, vec![ROUTER, NODE_NAMES[0], NODE_NAMES[1]])];
    if plan.own_switches {
        bridges.extend(OWN.map(|[bridge, node, uplink]| (bridge, vec![node, uplink])));
    }
    if plan.second_network {
        bridges.push((SECOND, SECOND_PORTS.to_vec()));
    }
    bridges
        .into_iter()
        .flat_map(|(bridge, ports)| bridge_commands(bridge, &ports))
        .collect()
}

/// `ip` commands that create the switch `bridge` and connect its `ports`.
pub fn bridge_commands(bridge: &str, ports: &[&str]) -> Vec<String> {
    // Multicast snooping would drop neighbour solicitations until the bridge knows a querier.
    let options = "type bridge stp_state 0 forward_delay 0 mcast_snooping 0";
    let mut commands = vec![
        format!("link add name {bridge} {options}"),
        format!("link set dev {bridge} up"),
    ];
    for port in ports {
        commands.push(format!("link set dev {port} master {bridge}"));
        commands.push(format!("link set dev {port} up"));
    }
    commands
}

/// A node's cables, at their ends on the switches.
#[derive(Debug)]
pub struct Cables(Vec<InterfaceControl>);

impl Cables {
    /// The cables of node `index` at `switch`.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn of(switch: &Netns, index: usize, plan: TopologyOptions) -> Result<Self, netns::NetnsError> {
        let ports = ports_of(index, plan).into_iter();
        ports
            .map(|port| switch.cable(port))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The cable that the node's services use.
    pub fn service(&self) -> &InterfaceControl {
        &self.0[0]
    }

    /// The cable on the second network, if there is one. This network connects only the nodes.
    pub fn second(&self) -> Option<&InterfaceControl> {
        self.0.get(1)
    }

    /// Pulls all cables.
    ///
    /// # Errors
    /// If a cable cannot be pulled.
    pub fn pull(&self) -> Result<(), netns::NetnsError> {
        self.0.iter().try_for_each(InterfaceControl::pull)
    }

    /// Plugs in all cables.
    ///
    /// # Errors
    /// If a cable cannot be plugged in.
    pub fn plug(&self) -> Result<(), netns::NetnsError> {
        self.0.iter().try_for_each(InterfaceControl::plug)
    }
}

/// Frames that a switch drops, selected by the ports at which they arrive and leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The port at which the frames arrive. `None`: any port.
    pub from: Option<&'static str>,
    /// The port at which the frames leave. `None`: any port.
    pub to: Option<&'static str>,
}

impl Lost {
    /// Frames between two ports, in one direction.
    pub const fn between(from: &'static str, to: &'static str) -> Self {
        Self {
            from: Some(from),
            to: Some(to),
        }
    }

    /// All frames from `port`.
    pub const fn from(port: &'static str) -> Self {
        Self {
            from: Some(port),
            to: None,
        }
    }

    /// All frames to `port`.
    pub const fn to(port: &'static str) -> Self {
        Self {
            from: None,
            to: Some(port),
        }
    }

    fn rule(self, what: &str) -> String {
        let side = |key: &str, port: Option<&str>| {
            port.map_or_else(String::new, |port| format!("{key} \"{port}\" "))
        };
        let (from, to) = (side("iifname", self.from), side("oifname", self.to));
        format!("{from}{to}{what}drop\n")
    }
}

/// Makes the switches drop those frames of `lost` that match `what`, an nft expression that ends with a space. If `what` is empty, the
/// switches drop all frames of `lost`.
///
/// # Errors
/// If nft refuses.
pub fn lose(switch: &Netns, lost: &[Lost], what: &str) -> Result<()> {
    nft(switch, &losing(lost, what))
}

/// Lets the switches pass all frames again.
///
/// # Errors
/// If nft refuses.
pub fn pass(switch: &Netns) -> Result<()> {
    nft(switch, "delete table bridge cut\n")
}

fn losing(lost: &[Lost], what: &str) -> String {
    let rules: String = lost.iter().map(|lost| lost.rule(what)).collect();
    format!("table bridge cut {{ chain forward {{ type filter hook forward priority 0;\n{rules}}}\n}}\n")
}

/// Runs `commands` in the switches' namespace.
fn nft(switch: &Netns, commands: &str) -> Result<()> {
    process::output(switch.command("nft")?.arg(commands), &format!("nft {commands}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_direction_leaves_the_other_open() {
        let text = losing(&[Lost::between("a", "b")], "udp dport 7400 ");
        assert!(
            text.contains("\niifname \"a\" oifname \"b\" udp dport 7400 drop\n"),
            "{text}"
        );
        assert!(!text.contains("iifname \"b\""), "{text}");
        assert!(losing(&[Lost::to("a")], "").contains("\noifname \"a\" drop\n"));
    }

    #[test]
    fn what_is_between_nodes_and_router_is_there_with_and_without_switches_of_their_own() {
        for own_switches in [false, true] {
            let plan = TopologyOptions {
                own_switches,
                second_network: true,
                ..TopologyOptions::default()
            };
            let text = commands(plan).join("\n");
            for port in ["router", "a", "b"] {
                assert!(
                    text.contains(&format!("link set dev {port} master lan\n")),
                    "{text}"
                );
            }
            assert_eq!(text.contains("link set dev node-a master lan-a"), own_switches);
            assert!(text.contains("link set dev b2 master second"));
        }
        assert!(!commands(TopologyOptions::default()).join(" ").contains("second"));
    }
}
