//! A node comes back after its power was off, before its administrator's configuration is complete.

use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use linux::netns::Netns;

use super::stage::Stage;
use crate::net::address::{NODES, PREFIX_V4, PREFIX_V6, ROUTER_LAN};
use crate::net::{INTERFACE, ROUTER_LAN_INTERFACE, batch};

/// How long the router's neighbour entry for the VIP is wrong.
const MISLED: Duration = Duration::from_millis(100);
/// Kernel settings that a daemon may have changed, as a kernel starts with them: below `/proc/sys/net`.
const SETTINGS: [(&str, &str); 7] = [
    ("ipv4/conf/all/arp_ignore", "0"),
    ("ipv4/conf/all/arp_announce", "0"),
    ("ipv4/conf/eth0/arp_ignore", "0"),
    ("ipv4/conf/eth0/arp_announce", "0"),
    ("ipv4/tcp_fastopen", "1"),
    ("ipv4/tcp_fwmark_accept", "0"),
    ("ipv4/tcp_migrate_req", "0"),
];

/// Makes node `index`, whose power is off, what its kernel would be after a boot: no sockets, filters, rules, eBPF or
/// state of a daemon; interfaces up with the node's own addresses, no routes to elsewhere; the server running. The cable
/// is still pulled.
///
/// # Errors
/// Names the step that failed.
pub fn boot(stage: &mut Stage, index: usize) -> Result<()> {
    let node = &stage.network.nodes[index];
    forget(node, &["ss", "--kill", "--tcp", "--all"])?;
    forget(node, &["nft", "flush", "ruleset"])?;
    // It is not there if the daemon was not yet attached.
    let _ = run(node, &["tc", "qdisc", "del", "dev", INTERFACE, "clsact"])?;
    for command in commands(index) {
        forget(node, &command.split(' ').collect::<Vec<_>>())?;
    }
    node.run(|| {
        SETTINGS
            .iter()
            .try_for_each(|(key, value)| fs::write(format!("/proc/sys/net/{key}"), value))
    })?
    .context("reset kernel settings")?;
    for path in stage.pair.leftovers_of(index) {
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| path.display().to_string());
            }
            _ => {}
        }
    }
    stage.start_server(index)
}

/// The rest of the network configuration arrives.
///
/// # Errors
/// What `ip` says.
pub fn configure(stage: &Stage, index: usize) -> Result<()> {
    let node = &stage.network.nodes[index];
    let routes = [
        format!("route add default via {}", ROUTER_LAN.v4),
        format!("route add default via {}", ROUTER_LAN.v6),
    ];
    Ok(batch(Some(node.name()), &routes)?)
}

/// For a moment the router believes that the VIP is at node `index`; then it asks again.
///
/// # Errors
/// What `ip` says.
pub fn mislead_router(stage: &Stage, index: usize) -> Result<()> {
    let (vip, mac) = (stage.pair.service.ip(), NODES[index].mac_text());
    let router = Some(stage.network.router.name());
    let of_vip = format!("{vip} dev {ROUTER_LAN_INTERFACE}");
    batch(
        router,
        &[format!("neigh replace {of_vip} lladdr {mac} nud reachable")],
    )?;
    std::thread::sleep(MISLED);
    batch(router, &[format!("neigh del {of_vip}")])?;
    Ok(())
}

/// What takes away all addresses, rules and routes, and gives the node its own addresses again.
fn commands(index: usize) -> Vec<String> {
    let endpoint = &NODES[index];
    let mut commands = vec![
        format!("ip link set dev {INTERFACE} down"),
        "ip link set dev lo down".to_owned(),
        format!("ip addr flush dev {INTERFACE}"),
        "ip addr flush dev lo".to_owned(),
        "ip -4 rule flush".to_owned(),
        "ip -6 rule flush".to_owned(),
    ];
    for (family, name, priority) in [
        ("-4", "main", 32766),
        ("-4", "default", 32767),
        ("-6", "main", 32766),
    ] {
        commands.push(format!(
            "ip {family} rule add pref {priority} from all lookup {name}"
        ));
    }
    commands.extend([
        "ip link set dev lo up".to_owned(),
        format!("ip link set dev {INTERFACE} up"),
        format!("ip addr add {}/{PREFIX_V4} dev {INTERFACE}", endpoint.v4),
        format!("ip addr add {}/{PREFIX_V6} dev {INTERFACE} nodad", endpoint.v6),
    ]);
    commands
}

fn forget(node: &Netns, command: &[&str]) -> Result<()> {
    let said = run(node, command)?;
    ensure!(
        said.is_none(),
        "{}: {}",
        command.join(" "),
        said.unwrap_or_default()
    );
    Ok(())
}

/// Runs `command` in `node`; what it said if it failed.
fn run(node: &Netns, command: &[&str]) -> Result<Option<String>> {
    let output = node.command(command[0])?.args(&command[1..]).output();
    let output = output.with_context(|| format!("run {}", command[0]))?;
    let said = String::from_utf8_lossy(&output.stderr);
    Ok((!output.status.success()).then(|| said.trim().to_owned()))
}
