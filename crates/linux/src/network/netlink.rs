//! Route netlink as blocking calls: links, addresses, rules, routes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo,
};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use rtnetlink::packet_route::{AddressFamily, IpProtocol, RouteNetlinkMessage};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::numbers::PROTOCOL;
use super::{Mac, NetworkError};

/// RT_TABLE_COMPAT: the table's number does not fit the header and is in an attribute.
const TABLE_IN_ATTRIBUTE: u8 = 252;

/// Valid lifetime of an address that never expires.
const FOREVER: u32 = u32::MAX;

/// RT_TABLE_LOCAL.
const TABLE_LOCAL: u32 = 255;

/// Timeout for the kernel to accept packets to a new address. On an interface that is down, the kernel never accepts them.
const LOCAL_WITHIN: Duration = Duration::from_millis(100);
const LOCAL_POLL: Duration = Duration::from_micros(100);

/// A network interface of the calling thread's network namespace, as it was when asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its hardware address; `None` if it is not an Ethernet interface.
    pub mac: Option<Mac>,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Whether it is administratively up (IFF_UP).
    pub up: bool,
    /// Whether its cable carries a signal.
    pub carrier: bool,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// The target to which a route sends packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum RouteTarget {
    /// To a neighbour.
    Via { gateway: IpAddr, interface: String },
    /// To this machine: a route for IPv6 if `ipv6` is set, else for IPv4.
    Local { ipv6: bool },
}

/// A rule: packets that this machine sends from the address `from` are routed by `table`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoutingRule {
    pub(super) priority: u32,
    pub(super) from: IpAddr,
    /// If set, only packets of this kind.
    pub(super) only: Option<Only>,
    /// If set, only packets with this mark.
    pub(super) mark: Option<u32>,
    pub(super) table: u32,
}

/// The kind of packets that a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Only {
    /// TCP from this port.
    TcpFrom(u16),
    /// ICMP of the address' family.
    Icmp,
}

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Clone, Debug)]
pub(super) struct Netlink {
    runtime: Arc<Runtime>,
    handle: rtnetlink::Handle,
}

impl Netlink {
    pub(super) fn open() -> Result<Self, NetworkError> {
        let open = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()?;
            let guard = runtime.enter();
            let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()?;
            runtime.spawn(connection);
            drop(guard);
            Ok(Self {
                runtime: Arc::new(runtime),
                handle,
            })
        };
        open().map_err(NetworkError::at("open", "route netlink"))
    }

    /// All network interfaces, without their addresses.
    pub(super) fn links(&self) -> io::Result<Vec<Interface>> {
        let answers = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        let link = |answer| match answer {
            RouteNetlinkMessage::NewLink(message) => interface(message),
            _ => None,
        };
        Ok(answers.into_iter().filter_map(link).collect())
    }

    /// All addresses with the indices of their interfaces.
    pub(super) fn addresses(&self) -> io::Result<Vec<(u32, IpAddr)>> {
        let answers = self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let address = |answer| match answer {
            RouteNetlinkMessage::NewAddress(message) => local_address(message),
            _ => None,
        };
        Ok(answers.into_iter().filter_map(address).collect())
    }

    /// Whether the interface has the address.
    pub(super) fn has_address(&self, address: IpAddr, interface: &str) -> io::Result<bool> {
        Ok(self.addresses()?.contains(&(self.index(interface)?, address)))
    }

    /// Adds the address to the interface, and waits until the kernel accepts packets to it. For IPv6, a kernel thread makes the local route
    /// shortly after the address was added. Without the wait, the kernel could send a neighbour solicitation from the address, drop the
    /// answer, and ask again only after a second.
    pub(super) fn add_address(&self, address: IpAddr, interface: &str) -> io::Result<()> {
        let message = self.address_message(address, interface)?;
        let index = message.header.index;
        self.change(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )?;
        let until = Instant::now() + LOCAL_WITHIN;
        while address.is_ipv6() && !self.takes(address, index)? && Instant::now() < until {
            std::thread::sleep(LOCAL_POLL);
        }
        Ok(())
    }

    /// Whether the kernel accepts packets to this address of the interface.
    pub(super) fn takes(&self, address: IpAddr, index: u32) -> io::Result<bool> {
        let destination = destination(address);
        let mut message = RouteMessage::default();
        message.header.address_family = family(address.is_ipv6());
        message.attributes = vec![RouteAttribute::Table(TABLE_LOCAL), RouteAttribute::Oif(index)];
        let answers = self.dump(RouteNetlinkMessage::GetRoute(message))?;
        Ok(answers.iter().any(|answer| {
            matches!(answer, RouteNetlinkMessage::NewRoute(route) if route.attributes.contains(&destination))
        }))
    }

    /// Index of the interface that packets to this address leave by, and whether their route has a gateway.
    pub(super) fn route_to(&self, address: IpAddr) -> io::Result<Option<(u32, bool)>> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address.is_ipv6());
        message.header.destination_prefix_length = host_prefix(address);
        message.attributes = vec![destination(address)];
        let answers = self.request(RouteNetlinkMessage::GetRoute(message), NLM_F_REQUEST)?;
        Ok(answers.iter().find_map(|answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else {
                return None;
            };
            let is_gateway = |attribute: &RouteAttribute| {
                matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_))
            };
            let out = route.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            });
            Some((out?, route.attributes.iter().any(is_gateway)))
        }))
    }

    pub(super) fn remove_address(&self, address: IpAddr, interface: &str) -> io::Result<()> {
        let message = self.address_message(address, interface)?;
        self.change(RouteNetlinkMessage::DelAddress(message), 0)
    }

    /// Whether there is a route in the table.
    pub(super) fn table_in_use(&self, table: u32, ipv6: bool) -> io::Result<bool> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(ipv6);
        message.attributes.push(RouteAttribute::Table(table));
        match self.dump(RouteNetlinkMessage::GetRoute(message)) {
            Ok(routes) => Ok(!routes.is_empty()),
            // A table does not exist before it gets its first route.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn add_route(&self, table: u32, way: &RouteTarget) -> io::Result<()> {
        let message = self.route_message(table, way)?;
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(super) fn remove_route(&self, table: u32, way: &RouteTarget) -> io::Result<()> {
        let message = self.route_message(table, way)?;
        self.change(RouteNetlinkMessage::DelRoute(message), 0)
    }

    /// Whether the kernel has a rule with the selectors, the priority and the table of `rule`. The routing protocol number of the kernel's
    /// rule may differ.
    pub(super) fn has_rule(&self, rule: &RoutingRule) -> io::Result<bool> {
        let ours = rule_message(rule);
        let same = |theirs: &RuleMessage| {
            theirs.header.src_len == ours.header.src_len
                && theirs.header.action == ours.header.action
                && ours.attributes.iter().all(|attribute| {
                    matches!(attribute, RuleAttribute::Protocol(_)) || theirs.attributes.contains(attribute)
                })
        };
        Ok(self.rules(rule.from.is_ipv6())?.iter().any(same))
    }

    /// Whether a rule leads to the table.
    pub(super) fn has_rule_to(&self, table: u32, ipv6: bool) -> io::Result<bool> {
        let attribute = RuleAttribute::Table(table);
        Ok(self
            .rules(ipv6)?
            .iter()
            .any(|rule| rule.attributes.contains(&attribute)))
    }

    pub(super) fn add_rule(&self, rule: &RoutingRule) -> io::Result<()> {
        self.change(
            RouteNetlinkMessage::NewRule(rule_message(rule)),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    pub(super) fn remove_rule(&self, rule: &RoutingRule) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelRule(rule_message(rule)), 0)
    }

    /// Deletes the neighbour entries of `address` that have no answer (incomplete or failed).
    pub(super) fn forget_unanswered(&self, address: IpAddr) -> io::Result<()> {
        let mut question = NeighbourMessage::default();
        question.header.family = family(address.is_ipv6());
        let unanswered = |message: &NeighbourMessage| {
            let waits = matches!(
                message.header.state,
                NeighbourState::Incomplete | NeighbourState::Failed
            );
            let is_its = |attribute: &NeighbourAttribute| match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address == *v4,
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address == *v6,
                _ => false,
            };
            waits && message.attributes.iter().any(is_its)
        };
        for answer in self.dump(RouteNetlinkMessage::GetNeighbour(question))? {
            if let RouteNetlinkMessage::NewNeighbour(message) = answer
                && unanswered(&message)
            {
                self.change(RouteNetlinkMessage::DelNeighbour(message), 0)?;
            }
        }
        Ok(())
    }

    fn rules(&self, ipv6: bool) -> io::Result<Vec<RuleMessage>> {
        let mut message = RuleMessage::default();
        message.header.family = family(ipv6);
        let answers = self.dump(RouteNetlinkMessage::GetRule(message))?;
        let rule = |answer| match answer {
            RouteNetlinkMessage::NewRule(message) => Some(message),
            _ => None,
        };
        Ok(answers.into_iter().filter_map(rule).collect())
    }

    fn index(&self, name: &str) -> io::Result<u32> {
        let found = self.links()?.into_iter().find(|link| link.name == name);
        found
            .map(|link| link.index)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    fn address_message(&self, address: IpAddr, interface: &str) -> io::Result<AddressMessage> {
        let mut message = AddressMessage::default();
        message.header.family = family(address.is_ipv6());
        message.header.prefix_len = host_prefix(address);
        message.header.index = self.index(interface)?;
        // The kernel must not choose the address as the source of other traffic. An IPv4 address on `lo` gets the host
        // scope. An IPv6 address gets the preferred lifetime 0 below, which makes it deprecated.
        if address.is_ipv4() && interface == "lo" {
            message.header.scope = AddressScope::Host;
        }
        let mut flags = AddressFlags::Noprefixroute;
        if address.is_ipv6() {
            // The peer has the same address, so duplicate address detection would reject it.
            flags |= AddressFlags::Nodad;
            let mut lifetime = CacheInfo::default();
            lifetime.ifa_valid = FOREVER;
            message.attributes.push(AddressAttribute::CacheInfo(lifetime));
        }
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        message.attributes.push(AddressAttribute::Flags(flags));
        Ok(message)
    }

    fn route_message(&self, table: u32, way: &RouteTarget) -> io::Result<RouteMessage> {
        let mut message = RouteMessage::default();
        let header = &mut message.header;
        header.address_family = family(way.is_ipv6());
        header.table = TABLE_IN_ATTRIBUTE;
        header.protocol = RouteProtocol::Other(PROTOCOL);
        message.attributes.push(RouteAttribute::Table(table));
        match way {
            RouteTarget::Via { gateway, interface } => {
                header.kind = RouteType::Unicast;
                header.scope = RouteScope::Universe;
                // The peer is a neighbour, whatever the other tables say.
                header.flags = RouteFlags::Onlink;
                message
                    .attributes
                    .push(RouteAttribute::Oif(self.index(interface)?));
                message.attributes.push(RouteAttribute::Gateway(match gateway {
                    IpAddr::V4(v4) => RouteAddress::Inet(*v4),
                    IpAddr::V6(v6) => RouteAddress::Inet6(*v6),
                }));
            }
            RouteTarget::Local { ipv6 } => {
                header.kind = RouteType::Local;
                header.scope = if *ipv6 {
                    RouteScope::Universe
                } else {
                    RouteScope::Host
                };
                message.attributes.push(RouteAttribute::Oif(self.index("lo")?));
            }
        }
        Ok(message)
    }

    /// Asks for a list. Fails if the kernel refuses.
    fn dump(&self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.request(message, NLM_F_REQUEST | NLM_F_DUMP)
    }

    /// Asks for a change.
    fn change(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.request(message, NLM_F_REQUEST | NLM_F_ACK | flags).map(drop)
    }

    fn request(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = flags;
        let mut handle = self.handle.clone();
        let mut answers = handle.request(request).map_err(io::Error::other)?;
        self.runtime.block_on(async {
            let mut found = Vec::new();
            while let Some(answer) = answers.next().await {
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => found.push(message),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    _ => {}
                }
            }
            Ok(found)
        })
    }
}

fn interface(message: LinkMessage) -> Option<Interface> {
    let mut interface = Interface {
        name: String::new(),
        index: message.header.index,
        mac: None,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        carrier: message.header.flags.contains(LinkFlags::LowerUp),
        addresses: Vec::new(),
    };
    let ethernet = message.header.link_layer_type == LinkLayerType::Ether;
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::Mtu(mtu) => interface.mtu = mtu,
            LinkAttribute::Address(address) if ethernet => interface.mac = address.try_into().ok().map(Mac),
            _ => {}
        }
    }
    (!interface.name.is_empty()).then_some(interface)
}

/// The interface's own address. On a point-to-point link, IFA_LOCAL is the interface's own address, and IFA_ADDRESS is the other end's
/// address.
fn local_address(message: AddressMessage) -> Option<(u32, IpAddr)> {
    let mut found = None;
    for attribute in message.attributes {
        match attribute {
            AddressAttribute::Local(address) => found = Some(address),
            AddressAttribute::Address(address) => found = found.or(Some(address)),
            _ => {}
        }
    }
    found.map(|address| (message.header.index, address))
}

fn rule_message(rule: &RoutingRule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.from.is_ipv6());
    message.header.src_len = host_prefix(rule.from);
    message.header.table = TABLE_IN_ATTRIBUTE;
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Table(rule.table),
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Source(rule.from),
        // For the kernel, packets that this machine sends come in on lo.
        RuleAttribute::Iifname("lo".to_owned()),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    let attributes = &mut message.attributes;
    match rule.only {
        None => {}
        Some(Only::TcpFrom(port)) => attributes.extend([
            RuleAttribute::IpProtocol(IpProtocol::Tcp),
            RuleAttribute::SourcePortRange(RulePortRange {
                start: port,
                end: port,
            }),
        ]),
        Some(Only::Icmp) if rule.from.is_ipv6() => {
            attributes.push(RuleAttribute::IpProtocol(IpProtocol::Other(libc::IPPROTO_ICMPV6)));
        }
        Some(Only::Icmp) => attributes.push(RuleAttribute::IpProtocol(IpProtocol::Icmp)),
    }
    if let Some(mark) = rule.mark {
        message.attributes.push(RuleAttribute::FwMark(mark));
        message.attributes.push(RuleAttribute::FwMask(u32::MAX));
    }
    message
}

fn family(ipv6: bool) -> AddressFamily {
    if ipv6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    }
}

fn destination(address: IpAddr) -> RouteAttribute {
    RouteAttribute::Destination(match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    })
}

fn host_prefix(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => u8::try_from(Ipv4Addr::BITS).expect("32"),
        IpAddr::V6(_) => u8::try_from(Ipv6Addr::BITS).expect("128"),
    }
}
