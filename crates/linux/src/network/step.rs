//! One change of the network: how it is done, and how it is undone.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::guard::Guarded;
use super::netlink::{Netlink, Only, RouteTarget, RoutingRule};
use super::numbers::PRIORITY_FROM_VIP;
use super::part::NetworkPart;
use super::voice::SpeakerSets;
use super::{NetworkError, guard, sysctl};

/// One change. Doing and undoing it are idempotent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum NetworkStep {
    /// The nftables table that guards `services`. Without the right to speak, no segment of a service goes out. Packets that have not
    /// passed the wire do not come in.
    Guard { table: String, services: Vec<Guarded> },
    /// A value under `/proc/sys/net`.
    Sysctl { key: String, value: String },
    /// The route in a routing table of our own. All packets that use the table go this way.
    Route { table: u32, way: RouteTarget },
    /// A rule that chooses the routing table for some packets.
    Rule(RoutingRule),
    /// A VIP.
    Address { address: IpAddr, interface: String },
}

/// The loopback interface. Sockets can use an address on it, but the kernel does not answer ARP for the address (with the
/// `arp_ignore` that the plan requires).
pub(super) const LOOPBACK: &str = "lo";

/// Journal entry for an object that was there before the step. Undoing the step leaves the object in place.
const FOUND: &str = "there";

impl NetworkStep {
    /// Whether every part needs this step.
    pub(super) fn is_lasting(&self) -> bool {
        self.switched().is_none()
    }

    /// The VIP that this step puts up, if it puts one up.
    pub(super) fn vip(&self) -> Option<IpAddr> {
        match self {
            Self::Address { address, .. } => Some(*address),
            _ => None,
        }
    }

    /// The VIP that the step belongs to, if the step is done or undone when this node's part for this VIP changes. `None` for a step that
    /// every part needs.
    pub(super) fn switched(&self) -> Option<IpAddr> {
        match self {
            Self::Rule(rule) if rule.priority == PRIORITY_FROM_VIP => Some(rule.from),
            _ => self.vip(),
        }
    }

    /// Whether the step puts a VIP on an interface where neighbours can ask for it.
    pub(super) fn is_on_interface(&self) -> bool {
        matches!(self, Self::Address { interface, .. } if interface != LOOPBACK)
    }

    /// Whether the step's object disappears together with the interface `name`.
    pub(super) fn is_on(&self, name: &str) -> bool {
        match self {
            Self::Sysctl { key, .. } => key.split('/').any(|part| part == name),
            Self::Route {
                way: RouteTarget::Via { interface, .. },
                ..
            }
            | Self::Address { interface, .. } => interface == name,
            Self::Route {
                way: RouteTarget::Local { .. },
                ..
            }
            | Self::Guard { .. }
            | Self::Rule(_) => false,
        }
    }

    /// For a step that depends on the part ([`Self::switched`]): whether `part` needs it.
    pub(super) fn serves(&self, part: NetworkPart) -> bool {
        match self {
            Self::Address { .. } if self.is_on_interface() => {
                matches!(part, NetworkPart::Wire | NetworkPart::Alone)
            }
            Self::Address { .. } => matches!(part, NetworkPart::Behind | NetworkPart::Alone),
            _ => part == NetworkPart::Behind,
        }
    }

    /// Looks at what the step will change. Returns what [`Self::undo`] must restore or leave, if anything.
    ///
    /// # Errors
    /// If the guard, route or rule that the step makes is there already. Another program made it, so undoing the step would remove that
    /// program's object.
    pub(super) fn find(&self, netlink: &Netlink) -> Result<Option<String>, NetworkError> {
        let object = self.to_string();
        let there = match self {
            Self::Guard { table, .. } => guard::exists(table)?,
            Self::Sysctl { key, .. } => {
                return sysctl::read(key)
                    .map(Some)
                    .map_err(NetworkError::at("read", object));
            }
            Self::Route { table, way } => netlink
                .table_in_use(*table, way.is_ipv6())
                .map_err(NetworkError::at("look for", &object))?,
            Self::Rule(rule) => netlink
                .has_rule(rule)
                .map_err(NetworkError::at("look for", &object))?,
            // A VIP that is there already is no error, whoever put it there.
            Self::Address { address, interface } => {
                let there = netlink.has_address(*address, interface);
                return there
                    .map(|there| there.then(|| FOUND.to_owned()))
                    .map_err(NetworkError::at("look for", object));
            }
        };
        if there {
            return Err(NetworkError::new("add", object, not_ours()));
        }
        Ok(None)
    }

    /// Whether the step's object is in place. For a guard, also whether the services `speakers` may speak.
    pub(super) fn stands(
        &self,
        netlink: &Netlink,
        voice: &SpeakerSets,
        speakers: &[SocketAddr],
    ) -> io::Result<bool> {
        match self {
            Self::Guard { table, services } => guard::stands(voice, table, services, speakers),
            Self::Sysctl { key, value } => Ok(sysctl::read(key)? == *value),
            Self::Route { table, way } => netlink.table_in_use(*table, way.is_ipv6()),
            Self::Rule(rule) => netlink.has_rule(rule),
            Self::Address { address, interface } => netlink.has_address(*address, interface),
        }
    }

    pub(super) fn apply(&self, netlink: &Netlink) -> Result<(), NetworkError> {
        let done = match self {
            Self::Guard { table, services } => return guard::create(table, services),
            Self::Sysctl { key, value } => sysctl::write(key, value),
            Self::Route { table, way } => netlink.add_route(*table, way),
            Self::Rule(rule) => netlink.add_rule(rule),
            Self::Address { address, interface } => netlink.add_address(*address, interface),
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done.map_err(NetworkError::at("add", self)),
        }
    }

    /// Undoes the step, whether it was done or only begun. `found` is what [`Self::find`] returned.
    pub(super) fn undo(&self, netlink: &Netlink, found: Option<&str>) -> Result<(), NetworkError> {
        let undone = match self {
            Self::Guard { table, .. } => return guard::remove(table),
            Self::Sysctl { key, value } => restore(key, value, found),
            Self::Route { table, way } => netlink.remove_route(*table, way),
            Self::Rule(rule) => netlink.remove_rule(rule),
            Self::Address { .. } if found == Some(FOUND) => Ok(()),
            Self::Address { address, interface } => netlink.remove_address(*address, interface),
        };
        match undone {
            Err(error) if is_gone(&error) => Ok(()),
            undone => undone.map_err(NetworkError::at("remove", self)),
        }
    }
}

/// The error for an object that is there already.
pub(super) fn not_ours() -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        "it already exists, and this node's steadfast did not create it",
    )
}

/// Restores the old value, unless another program has changed the value since. Then the other program's value stays.
fn restore(key: &str, ours: &str, found: Option<&str>) -> io::Result<()> {
    let now = sysctl::read(key)?;
    match found {
        Some(found) if now == ours => sysctl::write(key, found),
        Some(found) if now != found => {
            tracing::warn!(
                key,
                now,
                ours,
                found,
                "another program changed this sysctl; the new value is kept"
            );
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether an error of a removal says that the object is not there, or that its interface is gone.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::EADDRNOTAVAIL | libc::ENODEV | libc::ENXIO)
    )
}

impl RouteTarget {
    pub(super) fn is_ipv6(&self) -> bool {
        match self {
            Self::Via { gateway, .. } => gateway.is_ipv6(),
            Self::Local { ipv6 } => *ipv6,
        }
    }
}

impl fmt::Display for NetworkStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guard { table, .. } => write!(f, "nftables table inet {table}"),
            Self::Sysctl { key, value } => write!(f, "sysctl {key} = {value}"),
            Self::Route {
                table,
                way: RouteTarget::Via { gateway, interface },
            } => {
                write!(f, "route default via {gateway} on {interface} in table {table}")
            }
            Self::Route {
                table,
                way: RouteTarget::Local { ipv6 },
            } => {
                let family = if *ipv6 { "IPv6" } else { "IPv4" };
                write!(f, "{family} route local default in table {table}")
            }
            Self::Rule(RoutingRule {
                priority,
                from,
                only,
                mark,
                table,
            }) => {
                write!(f, "rule {priority}: from {from}")?;
                match only {
                    None => {}
                    Some(Only::TcpFrom(port)) => write!(f, " tcp port {port}")?,
                    Some(Only::Icmp) => write!(f, " icmp")?,
                }
                mark.map_or(Ok(()), |mark| write!(f, " mark {mark:#x}"))?;
                write!(f, " to table {table}")
            }
            Self::Address { address, interface } => {
                write!(f, "address {address} on {interface}")
            }
        }
    }
}
