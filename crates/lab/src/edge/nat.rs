//! Nodes that keep state: they translate the clients' addresses, and refuse packets of connections that they do not know. conntrackd tells
//! each node the other node's connections. When a node fails, the edges' `[failover] command` commits the failed node's connections to the
//! other node's kernel. Without conntrackd, connections that move to the other node are lost.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use linux::netns::Netns;

use super::address::{TRANSLATED, client};
use super::fault::nft;
use super::network::{EdgeTopology, LANES_MAX, node_port};
use crate::net::{batch, cable};
use crate::process::LoggedProcess;

/// The interface of the link between the two nodes, and the nodes' addresses on that link.
const LINK: &str = "sync";
const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 8, 0, 1), Ipv4Addr::new(10, 8, 0, 2)];
const PORT: u16 = 3780;

/// Nodes that keep state, with conntrackd on both nodes or without it.
pub struct NodeStates {
    _daemons: Vec<LoggedProcess>,
    /// The command by which the second node takes over the first node's connections. Empty without conntrackd.
    pub takeover: Vec<String>,
}

impl NodeStates {
    /// Makes both nodes of `network` translate addresses. If the nodes should know each other's connections (`is_synchronized`), starts
    /// conntrackd on both. Its files are in `directory`.
    ///
    /// # Errors
    /// If a rule is refused or a daemon does not start.
    pub fn start(network: &EdgeTopology, directory: &Path, is_synchronized: bool) -> Result<Self> {
        let nodes = [&network.nodes[0], &network.nodes[1]];
        for node in nodes {
            translate(node)?;
        }
        if is_synchronized {
            synchronize(nodes, directory)
        } else {
            Ok(Self {
                _daemons: Vec::new(),
                takeover: Vec::new(),
            })
        }
    }
}

/// Connects both nodes and starts conntrackd on each.
fn synchronize([a, b]: [&Netns; 2], directory: &Path) -> Result<NodeStates> {
    let cable = cable((a, LINK), (b, LINK));
    batch(None, &[cable])?;
    for (index, node) in [a, b].into_iter().enumerate() {
        let own = [
            format!("addr add {}/24 dev {LINK}", ENDS[index]),
            format!("link set dev {LINK} up"),
        ];
        batch(Some(node.name()), &own)?;
    }
    let mut daemons = Vec::new();
    let mut configurations = Vec::new();
    for (index, node) in [a, b].into_iter().enumerate() {
        let file = directory.join(format!("conntrackd-{index}.conf"));
        fs::write(&file, configuration(index, directory)).with_context(|| file.display().to_string())?;
        let mut command = node.command("conntrackd")?;
        command.arg("-C").arg(&file);
        daemons.push(LoggedProcess::start(
            &format!("conntrackd-{index}"),
            command,
            directory,
        )?);
        configurations.push(file);
    }
    Ok(NodeStates {
        _daemons: daemons,
        takeover: takeover(b, &configurations[1]),
    })
}

/// Translates the clients' addresses. A packet from the middle of an unknown connection does not make the node track the connection, and is
/// dropped.
fn translate(node: &Netns) -> Result<()> {
    node.run(|| fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0"))??;
    let [v4, v6] = client(0).networks();
    let out: Vec<_> = (0..LANES_MAX).map(|lane| node_port(1, lane)).collect();
    let out = format!("{{ {} }}", out.join(", "));
    let families = [("ip", v4, TRANSLATED.ip(false)), ("ip6", v6, TRANSLATED.ip(true))];
    let mut rules = String::new();
    for (family, from, to) in families {
        rules += &format!(
            "table {family} translate {{ chain out {{ type nat hook postrouting priority 100\n\
             oifname {out} {family} saddr {from} snat to {to}\n}}\n}}\n"
        );
    }
    rules += "table inet known { chain forward { type filter hook forward priority 0\nct state invalid drop\n}\n}\n";
    nft(node, &rules)
}

fn configuration(index: usize, directory: &Path) -> String {
    let file = |kind: &str| directory.join(format!("conntrackd-{index}.{kind}"));
    let (own, other) = (ENDS[index], ENDS[1 - index]);
    format!(
        "Sync {{
    Mode FTFW {{
    }}
    UDP {{
        IPv4_address {own}
        IPv4_Destination_Address {other}
        Port {PORT}
        Interface {LINK}
        Checksum on
    }}
}}
General {{
    HashSize 32768
    HashLimit 131072
    LogFile {}
    LockFile {}
    UNIX {{
        Path {}
    }}
    NetlinkBufferSize 2097152
    NetlinkBufferSizeMaxGrowth 8388608
    Filter From Userspace {{
        Protocol Accept {{
            TCP
        }}
    }}
}}
",
        file("events").display(),
        file("lock").display(),
        file("sock").display(),
    )
}

/// Returns the command that commits the other node's connections, as conntrackd knows them, to the kernel of `node`.
fn takeover(node: &Netns, configuration: &Path) -> Vec<String> {
    let namespace: PathBuf = Netns::path_of(node.name());
    vec![
        "nsenter".to_owned(),
        format!("--net={}", namespace.display()),
        "conntrackd".to_owned(),
        "-C".to_owned(),
        configuration.display().to_string(),
        "-c".to_owned(),
    ]
}
