//! The requirements for a node's network, and the steps that fulfil them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::guard::Guarded;
use super::netlink::{Netlink, Only, RouteTarget, RoutingRule};
use super::numbers::{
    PRIORITY_DIRECT, PRIORITY_FROM_VIP, PRIORITY_REFUSAL, PRIORITY_RELAY, RELAY_MARK, TABLES,
};
use super::step::{LOOPBACK, NetworkStep};
use super::{Interface, NetworkError, guard, sysctl};
use crate::wire::MARK_DIRECT;

/// The requirements for a node's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPlan {
    /// The node's name; it names the nftables table.
    pub node: String,
    /// The services.
    pub services: Vec<NetworkService>,
}

/// One service of a [`NetworkPlan`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkService {
    /// VIP and port.
    pub address: SocketAddr,
    /// The interface on which the VIP and the peer are.
    pub interface: String,
    /// The peer's address on the interface, of the VIP's family.
    pub peer: IpAddr,
    /// The address at which the local application listens, of the VIP's family.
    pub application: SocketAddr,
    /// The address at which the application behind a stage listens (docs/restart-staged.md). The stage connects to it from clients'
    /// addresses, as the keeper connects to `application`.
    #[serde(default)]
    pub staged_application: Option<SocketAddr>,
    /// The primary may send output straight to the clients (docs/commit-modes.md).
    #[serde(default)]
    pub sends_directly: bool,
}

/// The kernel's number of the main routing table (`linux/rtnetlink.h`).
const TABLE_MAIN: u32 = 254;

/// The steps of `plan`, in the order in which they are done: the guard first, the VIPs last.
pub(super) fn steps(netlink: &Netlink, plan: &NetworkPlan) -> Result<Vec<NetworkStep>, NetworkError> {
    let mut tables = Tables {
        netlink,
        left: TABLES,
        taken: HashMap::new(),
    };
    let mut steps = vec![NetworkStep::Guard {
        table: guard::table(&plan.node),
        services: plan.services.iter().map(guarded).collect(),
    }];
    steps.extend(no_data_in_a_syn()?);
    steps.extend(queues_outlive_their_listener()?);
    steps.extend(own_clients()?);
    for service in &plan.services {
        steps.extend(behind(&mut tables, service)?);
        for application in [service.application]
            .into_iter()
            .chain(service.staged_application)
        {
            steps.extend(relaying(&mut tables, application)?);
        }
    }
    for service in &plan.services {
        steps.extend(
            [LOOPBACK, &service.interface].map(|interface| NetworkStep::Address {
                address: service.address.ip(),
                interface: interface.to_owned(),
            }),
        );
    }
    Ok(without_repetition(steps))
}

fn guarded(service: &NetworkService) -> Guarded {
    Guarded {
        service: service.address,
        interface: service.interface.clone(),
    }
}

/// Programs on this node may be clients of a service. Segments to them come from the wire and enter this node by `lo`: makes `lo` accept
/// them. Both the source and the destination of such a segment are addresses of this node. `accept_local` allows such source addresses.
/// `rp_filter` must not be 1, because then the kernel requires that the route to the source goes through `lo`. With 2, the kernel requires
/// only that some route to the source exists. For both settings the kernel uses the larger one of the interface's value and the value of
/// `all`. IPv6 needs no such step.
fn own_clients() -> Result<Vec<NetworkStep>, NetworkError> {
    let mut steps = Vec::new();
    for (name, wanted, enough) in [("accept_local", 1, [1, 1]), ("rp_filter", 2, [0, 2])] {
        let key = format!("ipv4/conf/{LOOPBACK}/{name}");
        let now = read_number(&format!("ipv4/conf/all/{name}"))?.max(read_number(&key)?);
        if !enough.contains(&now) {
            let value = wanted.to_string();
            steps.push(NetworkStep::Sysctl { key, value });
        }
    }
    Ok(steps)
}

/// Refuses Fast Open (RFC 7413): data that a server takes from a SYN is in no log. The kernel has one switch for all listeners of the
/// namespace.
fn no_data_in_a_syn() -> Result<Option<NetworkStep>, NetworkError> {
    const TAKEN: u32 = 2;
    let key = "ipv4/tcp_fastopen";
    let now = read_number(key)?;
    Ok((now & TAKEN != 0).then(|| NetworkStep::Sysctl {
        key: key.to_owned(),
        value: (now & !TAKEN).to_string(),
    }))
}

/// Makes the kernel move the connections in a dead worker's accept queue to another worker on the same address (SO_REUSEPORT). Otherwise
/// the kernel resets them.
fn queues_outlive_their_listener() -> Result<Option<NetworkStep>, NetworkError> {
    let key = "ipv4/tcp_migrate_req";
    Ok((read_number(key)? == 0).then(|| NetworkStep::Sysctl {
        key: key.to_owned(),
        value: "1".to_owned(),
    }))
}

/// Makes this node not answer ARP for a VIP on `lo`, and sends all packets from the VIP, except ICMP, through the peer. Packets to
/// neighbours go through the peer too: a packet sent directly would not be in the log.
fn behind(tables: &mut Tables<'_>, service: &NetworkService) -> Result<Vec<NetworkStep>, NetworkError> {
    let mut steps = Vec::new();
    let interface = Interface::find(&service.interface)?;
    if interface.is_none() {
        let object = format!("interface {}", service.interface);
        return Err(NetworkError::new(
            "find",
            object,
            io::Error::other("no such interface"),
        ));
    }
    if service.address.is_ipv4() {
        // With arp_ignore 1, 2, 3 or 8, the kernel does not answer for an address on lo. 8 is not allowed, because then the kernel
        // does not answer for a claimed VIP either. 4 to 7 are reserved and have no effect.
        steps.extend(arp(&service.interface, "arp_ignore", "1", &["1", "2", "3"])?);
        steps.extend(arp(&service.interface, "arp_announce", "2", &["2"])?);
    }
    let way = RouteTarget::Via {
        gateway: service.peer,
        interface: service.interface.clone(),
    };
    let table = tables.take(&way)?;
    steps.push(NetworkStep::Route { table, way });
    // The guard answers a packet that did not pass the wire with an ICMP error. The error must not go through the peer, but back the way
    // the refused packet came.
    steps.push(NetworkStep::Rule(RoutingRule {
        priority: PRIORITY_REFUSAL,
        from: service.address.ip(),
        only: Some(Only::Icmp),
        mark: None,
        table: TABLE_MAIN,
    }));
    if service.sends_directly {
        steps.push(NetworkStep::Rule(RoutingRule {
            priority: PRIORITY_DIRECT,
            from: service.address.ip(),
            only: None,
            mark: Some(MARK_DIRECT),
            table: TABLE_MAIN,
        }));
    }
    steps.push(NetworkStep::Rule(RoutingRule {
        priority: PRIORITY_FROM_VIP,
        from: service.address.ip(),
        only: None,
        mark: None,
        table,
    }));
    Ok(steps)
}

/// The step that sets `key` to `value` on `interface`. `None` if the kernel already uses one of the values `enough`. The kernel uses the
/// larger one of the interface's own value and the value of `all`.
fn arp(
    interface: &str,
    key: &str,
    value: &str,
    enough: &[&str],
) -> Result<Option<NetworkStep>, NetworkError> {
    let all = read_number(&format!("ipv4/conf/all/{key}"))?;
    let own_key = format!("ipv4/conf/{interface}/{key}");
    let own = read_number(&own_key)?;
    let does = |number: u32| enough.contains(&number.to_string().as_str());
    if does(all.max(own)) {
        return Ok(None);
    }
    let wanted: u32 = value.parse().expect("a number");
    if !does(all.max(wanted)) {
        let what = format!(
            "it is {all} and overrules the interface's own; allowed: {}",
            enough.join(", ")
        );
        return Err(NetworkError::new(
            "use",
            format!("sysctl ipv4/conf/all/{key}"),
            io::Error::other(what),
        ));
    }
    Ok(Some(NetworkStep::Sysctl {
        key: own_key,
        value: value.to_owned(),
    }))
}

/// Keeps the application's replies to relayed connections on this machine, although they are addressed to clients.
fn relaying(tables: &mut Tables<'_>, application: SocketAddr) -> Result<Vec<NetworkStep>, NetworkError> {
    let way = RouteTarget::Local {
        ipv6: application.is_ipv6(),
    };
    let table = tables.take(&way)?;
    let mut steps = vec![NetworkStep::Route { table, way }];
    // An application at a loopback address has only local clients, so its rule needs no mark. An application at another address may
    // have other clients. There the mark distinguishes relayed connections: the keeper's SYN has the mark, and `tcp_fwmark_accept` makes an
    // accepted socket take the mark from the SYN. New clients during a takeover need this setting too, because the wire marks their SYNs.
    let mark = (!application.ip().is_loopback()).then_some(RELAY_MARK);
    let accept = "ipv4/tcp_fwmark_accept";
    if read_number(accept)? == 0 {
        steps.push(NetworkStep::Sysctl {
            key: accept.to_owned(),
            value: "1".to_owned(),
        });
    }
    steps.push(NetworkStep::Rule(RoutingRule {
        priority: PRIORITY_RELAY,
        from: application.ip(),
        only: Some(Only::TcpFrom(application.port())),
        mark,
        table,
    }));
    Ok(steps)
}

fn read_number(key: &str) -> Result<u32, NetworkError> {
    let read = || {
        sysctl::read(key)?
            .parse()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    };
    read().map_err(NetworkError::at("read", format!("sysctl {key}")))
}

/// Finds routing tables that are not in use, and remembers which table each [`RouteTarget`] has.
struct Tables<'a> {
    netlink: &'a Netlink,
    left: std::ops::RangeInclusive<u32>,
    taken: HashMap<RouteTarget, u32>,
}

impl Tables<'_> {
    /// The table for `way`.
    fn take(&mut self, way: &RouteTarget) -> Result<u32, NetworkError> {
        if let Some(table) = self.taken.get(way) {
            return Ok(*table);
        }
        let in_use = |table| -> io::Result<bool> {
            let mut in_use = false;
            for ipv6 in [false, true] {
                in_use |= self.netlink.table_in_use(table, ipv6)? || self.netlink.has_rule_to(table, ipv6)?;
            }
            Ok(in_use)
        };
        let name = || format!("routing table {} to {}", TABLES.start(), TABLES.end());
        for table in self.left.by_ref() {
            if !in_use(table).map_err(NetworkError::at("look for", name()))? {
                self.taken.insert(way.clone(), table);
                return Ok(table);
            }
        }
        Err(NetworkError::new(
            "take",
            name(),
            io::Error::other("all are in use"),
        ))
    }
}

/// Removes repeated steps. Services with the same address or the same peer have steps in common.
fn without_repetition(steps: Vec<NetworkStep>) -> Vec<NetworkStep> {
    let mut once = Vec::with_capacity(steps.len());
    for step in steps {
        if !once.contains(&step) {
            once.push(step);
        }
    }
    once
}
