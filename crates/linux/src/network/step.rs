//! One change of the network: done, and undone.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::guard::Guarded;
use super::netlink::Netlink;
use super::voice::Voice;
use super::{Error, PRIORITY_FROM_VIP, Part, guard, sysctl};

/// One change. Doing and undoing it are idempotent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Step {
    /// The nftables table of `services`: without the right to speak nothing goes out, and nothing comes in past the wire.
    Guard { table: String, services: Vec<Guarded> },
    /// A value under `/proc/sys/net`.
    Sysctl { key: String, value: String },
    /// A route of a table of our own: everything goes this way.
    Route { table: u32, way: Way },
    /// A choice of such a table.
    Rule(Rule),
    /// A VIP.
    Address { address: IpAddr, interface: String },
}

/// The loopback interface. An address on it serves its sockets and is not answered for in ARP.
pub(super) const LOOPBACK: &str = "lo";

/// Journal entry for something that was there already: undoing the step leaves it.
const FOUND: &str = "there";

/// Where everything goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Way {
    /// To a neighbour.
    Via { gateway: IpAddr, interface: String },
    /// To this machine; IPv6 if set.
    Local { ipv6: bool },
}

/// Packets that this machine sends from `from` are routed by `table`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) priority: u32,
    pub(super) from: IpAddr,
    /// Only these.
    pub(super) only: Option<Only>,
    /// Only with this mark.
    pub(super) mark: Option<u32>,
    pub(super) table: u32,
}

/// What a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Only {
    /// TCP from this port.
    TcpFrom(u16),
    /// ICMP of the address' family.
    Icmp,
}

impl Step {
    /// Whether every part needs this.
    pub(super) fn is_lasting(&self) -> bool {
        self.switched().is_none()
    }

    /// The VIP that this puts up.
    pub(super) fn vip(&self) -> Option<IpAddr> {
        match self {
            Self::Address { address, .. } => Some(*address),
            _ => None,
        }
    }

    /// The VIP for which this is done or undone with this node's part.
    pub(super) fn switched(&self) -> Option<IpAddr> {
        match self {
            Self::Rule(rule) if rule.priority == PRIORITY_FROM_VIP => Some(rule.from),
            _ => self.vip(),
        }
    }

    /// Whether a VIP comes to where neighbours can ask for it.
    pub(super) fn is_on_interface(&self) -> bool {
        matches!(self, Self::Address { interface, .. } if interface != LOOPBACK)
    }

    /// Whether this is gone when this interface is.
    pub(super) fn is_on(&self, name: &str) -> bool {
        match self {
            Self::Sysctl { key, .. } => key.split('/').any(|part| part == name),
            Self::Route {
                way: Way::Via { interface, .. },
                ..
            }
            | Self::Address { interface, .. } => interface == name,
            Self::Route {
                way: Way::Local { .. },
                ..
            }
            | Self::Guard { .. }
            | Self::Rule(_) => false,
        }
    }

    /// Of what is switched: whether it belongs to `part`.
    pub(super) fn serves(&self, part: Part) -> bool {
        match self {
            Self::Address { .. } if self.is_on_interface() => matches!(part, Part::Wire | Part::Alone),
            Self::Address { .. } => matches!(part, Part::Behind | Part::Alone),
            _ => part == Part::Behind,
        }
    }

    /// What is there before the step is done, if it must be restored.
    ///
    /// # Errors
    /// If what the step makes is there already: it is not ours, so undoing would take away what was found.
    pub(super) fn find(&self, netlink: &Netlink) -> Result<Option<String>, Error> {
        let object = self.to_string();
        let there = match self {
            Self::Guard { table, .. } => guard::exists(table)?,
            Self::Sysctl { key, .. } => {
                return sysctl::read(key).map(Some).map_err(Error::at("read", object));
            }
            Self::Route { table, way } => netlink
                .table_in_use(*table, way.is_ipv6())
                .map_err(Error::at("look for", &object))?,
            Self::Rule(rule) => netlink.has_rule(rule).map_err(Error::at("look for", &object))?,
            // It does not matter who put it there, only that it is there.
            Self::Address { address, interface } => {
                let there = netlink.has_address(*address, interface);
                return there
                    .map(|there| there.then(|| FOUND.to_owned()))
                    .map_err(Error::at("look for", object));
            }
        };
        if there {
            return Err(Error::new("add", object, not_ours()));
        }
        Ok(None)
    }

    /// Whether what the step makes is there; of a guard, also whether these services may speak.
    pub(super) fn stands(
        &self,
        netlink: &Netlink,
        voice: &Voice,
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

    pub(super) fn apply(&self, netlink: &Netlink) -> Result<(), Error> {
        let done = match self {
            Self::Guard { table, services } => return guard::create(table, services),
            Self::Sysctl { key, value } => sysctl::write(key, value),
            Self::Route { table, way } => netlink.add_route(*table, way),
            Self::Rule(rule) => netlink.add_rule(rule),
            Self::Address { address, interface } => netlink.add_address(*address, interface),
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done.map_err(Error::at("add", self)),
        }
    }

    /// Undoes the step, whether it was done or only begun. `found` is what [`Self::find`] returned.
    pub(super) fn undo(&self, netlink: &Netlink, found: Option<&str>) -> Result<(), Error> {
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
            undone => undone.map_err(Error::at("remove", self)),
        }
    }
}

/// Of what is there already.
pub(super) fn not_ours() -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        "it is there already, and not by this node's steadfast",
    )
}

/// Restores a value, unless somebody else has changed it since; their value stays.
fn restore(key: &str, ours: &str, found: Option<&str>) -> io::Result<()> {
    let now = sysctl::read(key)?;
    match found {
        Some(found) if now == ours => sysctl::write(key, found),
        Some(found) if now != found => {
            tracing::warn!(key, now, ours, found, "changed by others: left as it is");
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

impl Way {
    pub(super) fn is_ipv6(&self) -> bool {
        match self {
            Self::Via { gateway, .. } => gateway.is_ipv6(),
            Self::Local { ipv6 } => *ipv6,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guard { table, .. } => write!(f, "nftables table inet {table}"),
            Self::Sysctl { key, value } => write!(f, "sysctl {key} = {value}"),
            Self::Route {
                table,
                way: Way::Via { gateway, interface },
            } => {
                write!(f, "route default via {gateway} on {interface} in table {table}")
            }
            Self::Route {
                table,
                way: Way::Local { ipv6 },
            } => {
                let family = if *ipv6 { "IPv6" } else { "IPv4" };
                write!(f, "{family} route local default in table {table}")
            }
            Self::Rule(Rule {
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
