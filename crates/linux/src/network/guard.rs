//! The second guard (nftables). While this node has no right to speak, the guard drops all segments that this node itself sends to other
//! hosts from a service's address.
//!
//! The guard is independent of the eBPF programs. If these programs have a bug or are absent (`tc filter del`), no client is reset, and no
//! client gets an answer that the primary does not know of. A kernel sends a RST of its own accord for every segment that meets no
//! socket, and a listener on the backup answers a SYN. Packets that the wire forwards do not pass through the table.
//!
//! A takeover speaks before the right is granted, since granting takes a message to the kernel. So the guard lets segments with
//! [`MARK_SPEAK`] pass: restored sockets have this mark, and new connections inherit it from their SYN, which the wire has marked. A RST
//! needs the right, or [`MARK_END`]. The node sets `MARK_END` on the deliberate RST of a connection whose takeover was decided. A wire that
//! took over some connections while the primary lives has no right either, so the RSTs of these connections need `MARK_END` too. The kernel
//! never sets this mark by itself.
//!
//! The table also guards the input. Packets that do not arrive on the service interface have not passed the wire: packets from a
//! container, from a network behind another interface, or from a program on this node whose segments no eBPF program on `lo` has seen.
//! No application may serve such packets, a replica least of all. So the table refuses them at once by ICMP (a RST is speech).
//!
//! The table also refuses Multipath TCP (RFC 8684): it removes the Multipath TCP option from every SYN that comes to a service, so both
//! ends fall back to plain TCP. The log of one path lacks bytes of a connection with several paths, and no kernel can restore such a
//! connection.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::NetworkError;
use super::voice::SpeakerSets;
use crate::wire::{MARK_END, MARK_LOCAL, MARK_SPEAK};

const PREFIX: &str = "steadfast_";

/// A service and the interface by which its clients' segments come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Guarded {
    pub(super) service: SocketAddr,
    pub(super) interface: String,
}

/// The table of `node`, in the family `inet`.
pub(super) fn table(node: &str) -> String {
    format!("{PREFIX}{node}")
}

/// Makes the table, in one transaction. In a new table, no service's address has the right to speak.
pub(super) fn create(table: &str, services: &[Guarded]) -> Result<(), NetworkError> {
    nft("create", table, &["-f", "-"], &ruleset(table, services)).map(drop)
}

/// Removes the table. A missing table is no error.
pub(super) fn remove(table: &str) -> Result<(), NetworkError> {
    let script = format!("add table inet {table}\ndelete table inet {table}\n");
    nft("remove", table, &["-f", "-"], &script).map(drop)
}

/// Whether the table is there.
pub(super) fn exists(table: &str) -> Result<bool, NetworkError> {
    Ok(nodes()?.iter().any(|node| self::table(node) == table))
}

/// Name of the counter of packets that were refused because they had not passed the wire.
pub(super) const REFUSED: &str = "refused";

/// Number of rules in a whole table.
const RULES: usize = 11;

/// Whether the table has all its rules and services, and `speakers` may speak. This check costs a few messages to the kernel.
pub(super) fn stands(
    voice: &SpeakerSets,
    table: &str,
    services: &[Guarded],
    speakers: &[SocketAddr],
) -> io::Result<bool> {
    let mut whole = voice.rules(table)? == RULES;
    for guarded in services {
        whole = whole && voice.is_guarded(table, guarded.service)?;
    }
    for speaker in speakers {
        whole = whole && voice.may_speak(table, *speaker)?;
    }
    Ok(whole)
}

/// The nodes that have a table.
pub(super) fn nodes() -> Result<Vec<String>, NetworkError> {
    let listing = nft("list", "tables", &["list", "tables", "inet"], "")?;
    let node = |line: &str| {
        line.trim()
            .strip_prefix("table inet ")?
            .strip_prefix(PREFIX)
            .map(str::to_owned)
    };
    Ok(listing.lines().filter_map(node).collect())
}

/// Whether nft is installed and this kernel has what the table needs.
///
/// # Errors
/// If something is missing. The error names it.
pub fn available() -> Result<(), NetworkError> {
    let services = ["192.0.2.1:1".parse(), "[2001:db8::1]:1".parse()].map(|address| Guarded {
        service: address.expect("constant"),
        interface: "eth0".to_owned(),
    });
    let table = table("probe");
    nft("check", &table, &["-c", "-f", "-"], &ruleset(&table, &services)).map(drop)
}

fn ruleset(table: &str, services: &[Guarded]) -> String {
    let elements = |ipv4, element: fn(&Guarded) -> String| {
        let of_family = services
            .iter()
            .filter(|guarded| guarded.service.is_ipv4() == ipv4);
        let list: Vec<String> = of_family.map(element).collect();
        if list.is_empty() {
            String::new()
        } else {
            format!("elements = {{ {} }}", list.join(", "))
        }
    };
    let (guarded4, guarded6) = (elements(true, element), elements(false, element));
    let (ways4, ways6) = (elements(true, way), elements(false, way));
    let output = "type filter hook output priority mangle; policy accept;";
    let input = "type filter hook input priority mangle; policy accept;";
    let refusal = format!("meta mark != {{ {MARK_LOCAL}, {MARK_SPEAK} }} counter name {REFUSED} reject with");
    let fall_back = "tcp flags & syn == syn tcp option mptcp exists counter reset tcp option mptcp";
    // If a dead daemon left the table, the table's sets of speakers stay. The chains are flushed, so that no rule is there twice.
    format!(
        "add table inet {table}
        add chain inet {table} mute
        add chain inet {table} output {{ {output} }}
        add chain inet {table} input {{ {input} }}
        flush chain inet {table} mute
        flush chain inet {table} output
        flush chain inet {table} input
        table inet {table} {{
            set guarded4 {{ type ipv4_addr . inet_service; {guarded4} }}
            set guarded6 {{ type ipv6_addr . inet_service; {guarded6} }}
            set speak4 {{ type ipv4_addr . inet_service; }}
            set speak6 {{ type ipv6_addr . inet_service; }}
            counter {REFUSED} {{ }}
            set ways4 {{ type ipv4_addr . inet_service . ifname; {ways4} }}
            set ways6 {{ type ipv6_addr . inet_service . ifname; {ways6} }}
            chain mute {{
                oif lo accept
                meta mark {MARK_END} accept
                tcp flags & rst == rst counter drop
                meta mark {MARK_SPEAK} accept
                counter drop
            }}
            chain output {{
                ip saddr . tcp sport @guarded4 ip saddr . tcp sport != @speak4 jump mute
                ip6 saddr . tcp sport @guarded6 ip6 saddr . tcp sport != @speak6 jump mute
            }}
            chain input {{
                ip daddr . tcp dport @guarded4 ip daddr . tcp dport . iifname != @ways4 {refusal} icmp port-unreachable
                ip6 daddr . tcp dport @guarded6 ip6 daddr . tcp dport . iifname != @ways6 {refusal} icmpv6 port-unreachable
                ip daddr . tcp dport @guarded4 {fall_back}
                ip6 daddr . tcp dport @guarded6 {fall_back}
            }}
        }}
        "
    )
}

fn element(Guarded { service, .. }: &Guarded) -> String {
    format!("{} . {}", service.ip(), service.port())
}

fn way(guarded: &Guarded) -> String {
    format!("{} . \"{}\"", element(guarded), guarded.interface)
}

/// Runs nft and returns what it prints.
fn nft(step: &'static str, object: &str, arguments: &[&str], script: &str) -> Result<String, NetworkError> {
    let failed = |answer| NetworkError::new(step, format!("nftables {object}"), answer);
    let run = || {
        let mut child = Command::new("nft")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot run nft: {error}")))?;
        child
            .stdin
            .take()
            .expect("stdin is piped")
            .write_all(script.as_bytes())?;
        child.wait_with_output()
    };
    let output = run().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let answer = String::from_utf8_lossy(&output.stderr);
    let first = answer
        .lines()
        .next()
        .unwrap_or("nft failed and says nothing")
        .to_owned();
    Err(failed(io::Error::other(first)))
}
