//! Boots a node whose power was off. After the boot, the node does not yet have its complete network configuration.

use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result};
use linux::netns::Netns;

use super::testbed::Testbed;
use crate::net::address::{InterfaceAddresses, NODES, PREFIX_V4, PREFIX_V6};
use crate::net::{INTERFACE, ROUTER_LAN_INTERFACE, batch};
use crate::process;

/// Time for which the router's neighbour entry for the VIP is wrong.
const MISLED: Duration = Duration::from_millis(100);
/// Kernel settings below `/proc/sys/net` that a daemon may have changed, with their values after a boot.
const SETTINGS: [(&str, &str); 7] = [
    ("ipv4/conf/all/arp_ignore", "0"),
    ("ipv4/conf/all/arp_announce", "0"),
    ("ipv4/conf/eth0/arp_ignore", "0"),
    ("ipv4/conf/eth0/arp_announce", "0"),
    ("ipv4/tcp_fastopen", "1"),
    ("ipv4/tcp_fwmark_accept", "0"),
    ("ipv4/tcp_migrate_req", "0"),
];

/// Puts node `index`, whose power is off, into its state after a boot. The daemon's state is gone, and so are all sockets, packet filters,
/// additional routing rules and eBPF programs. The interfaces are up with the node's own addresses, without routes to other networks. The
/// server runs. The cable stays pulled.
///
/// # Errors
/// Names the step that failed.
pub fn boot(testbed: &mut Testbed, index: usize) -> Result<()> {
    let node = &testbed.network.nodes[index];
    forget(node, &["ss", "--kill", "--tcp", "--all"])?;
    forget(node, &["nft", "flush", "ruleset"])?;
    // The qdisc does not exist if the daemon had not yet attached its eBPF programs.
    let _ = forget(node, &["tc", "qdisc", "del", "dev", INTERFACE, "clsact"]);
    for command in commands(&testbed.network.interfaces(index)) {
        forget(node, &command.split(' ').collect::<Vec<_>>())?;
    }
    node.run(|| {
        SETTINGS
            .iter()
            .try_for_each(|(key, value)| fs::write(format!("/proc/sys/net/{key}"), value))
    })?
    .context("reset kernel settings")?;
    for path in testbed.pair.leftovers_of(index) {
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| path.display().to_string());
            }
            _ => {}
        }
    }
    testbed.start_server(index)
}

/// Completes the node's network configuration.
///
/// # Errors
/// The error message of `ip`.
pub fn configure(testbed: &Testbed, index: usize) -> Result<()> {
    Ok(testbed.network.configure(index)?)
}

/// Makes the router send the VIP's packets to node `index` for the time [`MISLED`]. Then the router resolves the VIP again.
///
/// # Errors
/// The error message of `ip`.
pub fn mislead_router(testbed: &Testbed, index: usize) -> Result<()> {
    let (vip, mac) = (testbed.pair.service.ip(), NODES[index].mac_text());
    let router = Some(testbed.network.router.name());
    let of_vip = format!("{vip} dev {ROUTER_LAN_INTERFACE}");
    batch(
        router,
        &[format!("neigh replace {of_vip} lladdr {mac} nud reachable")],
    )?;
    std::thread::sleep(MISLED);
    batch(router, &[format!("neigh del {of_vip}")])?;
    Ok(())
}

/// Commands that remove all addresses, rules and routes, and give the node's `interfaces` their own addresses again.
fn commands(interfaces: &[(&str, InterfaceAddresses)]) -> Vec<String> {
    let mut commands = Vec::new();
    for interface in interfaces.iter().map(|(interface, _)| interface).chain([&"lo"]) {
        commands.push(format!("ip link set dev {interface} down"));
        commands.push(format!("ip addr flush dev {interface}"));
    }
    commands.push("ip -4 rule flush".to_owned());
    commands.push("ip -6 rule flush".to_owned());
    for (family, name, priority) in [
        ("-4", "main", 32766),
        ("-4", "default", 32767),
        ("-6", "main", 32766),
    ] {
        commands.push(format!(
            "ip {family} rule add pref {priority} from all lookup {name}"
        ));
    }
    commands.push("ip link set dev lo up".to_owned());
    for (interface, endpoint) in interfaces {
        commands.push(format!("ip link set dev {interface} up"));
        commands.push(format!("ip addr add {}/{PREFIX_V4} dev {interface}", endpoint.v4));
        commands.push(format!(
            "ip addr add {}/{PREFIX_V6} dev {interface} nodad",
            endpoint.v6
        ));
    }
    commands
}

fn forget(node: &Netns, command: &[&str]) -> Result<()> {
    process::output(node.command(command[0])?.args(&command[1..]), &command.join(" "))?;
    Ok(())
}
