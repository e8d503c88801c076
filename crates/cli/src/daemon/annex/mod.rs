//! Annexes: nodes outside of the pair that take connections of a service (docs/annex.md).
//!
//! [`links`] is the wire's side, [`host`] the side of a node that takes connections: an annex ([`crate::annex`]), or the primary, to which
//! connections move back.

pub(crate) mod host;
pub(crate) mod links;
pub(crate) mod lists;
pub(crate) mod message;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::Context;
use linux::wire::Wire;
use proto::action::ServiceIndex;
use proto::annex::{AnnexId, ServingNode};
use proto::annex_list::{AnnexUse, ListedAnnex};
use proto::hosting::Greeting;

use crate::arbiter::AnnexEntries;
use crate::config::{Config, SecretKey};
use host::AnnexCall;
use links::{AnnexLink, FromLink, LinkPlace};
use lists::{AnnexLists, guided_to_annexes};
use message::{AnnexRequest, WakeAgent};

/// A node that may take connections of a service.
struct KnownNode {
    service: ServiceIndex,
    node: ServingNode,
    name: String,
    /// Its number in the wire's maps. `None`: the primary.
    number: Option<u8>,
    link: AnnexLink,
}

/// The nodes that may take connections of this node's services, as this node knows them while it is the wire; and the calls of the other
/// node while that is the wire.
#[derive(Default)]
pub struct AnnexNodes {
    nodes: Vec<KnownNode>,
    lists: AnnexLists,
    starter: Option<LinkStarter>,
    events: Option<Receiver<FromLink>>,
    calls: Option<Receiver<AnnexCall>>,
    /// Where connections live.
    guests: BTreeMap<(ServiceIndex, SocketAddr), ServingNode>,
    /// Connections that the primary carries. Their annexes are told of them, so that they take this wire for theirs.
    carried: BTreeMap<(ServiceIndex, SocketAddr), ServingNode>,
}

/// How links are started.
struct LinkStarter {
    /// The VIP of each service, and this node's MAC address on the service's interface.
    services: Vec<(SocketAddr, [u8; 6])>,
    key: SecretKey,
    events: Sender<FromLink>,
    waker: WakeAgent,
}

impl LinkStarter {
    fn start(&self, service: ServiceIndex, node: ServingNode, to: SocketAddr) -> io::Result<AnnexLink> {
        let (vip, mac) = self.services[usize::from(service)];
        let place = LinkPlace {
            service,
            node,
            vip,
            mac,
        };
        let (key, events) = (self.key.clone(), self.events.clone());
        AnnexLink::start((place, to), key, events, self.waker.clone())
    }
}

impl AnnexNodes {
    /// Starts the links, if a service may have annexes.
    ///
    /// # Errors
    /// If the key or the file with the annexes' numbers cannot be read, or a thread or the listener cannot be started.
    pub fn open(config: &Config, wire: &Wire, macs: &[[u8; 6]], wake: &WakeAgent) -> anyhow::Result<Self> {
        if !config.services.iter().any(lists::has_annexes) {
            return Ok(Self::default());
        }
        let file = config.peer.key_file.as_deref();
        let key =
            SecretKey::read(file.context("annexes need [peer] key_file")?).map_err(anyhow::Error::msg)?;
        let (events, from_links) = channel();
        let vips = config
            .services
            .iter()
            .map(|service| (service.address, service.port).into());
        let mut known = Self {
            lists: AnnexLists::open(config, wire, &key)?,
            events: Some(from_links),
            starter: Some(LinkStarter {
                services: vips.zip(macs.iter().copied()).collect(),
                key: key.clone(),
                events,
                waker: wake.clone(),
            }),
            ..Self::default()
        };
        for (index, service) in (0..).zip(&config.services) {
            if lists::has_annexes(service) {
                let peer = SocketAddr::new(service.peer_address, config.peer.annex_port);
                known.add(index, ServingNode::Primary, (&config.peer.name, None), peer)?;
            }
        }
        known.follow_lists()?;
        let any: IpAddr = match config.peer.address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let port = config.peer.annex_port;
        let listener = TcpListener::bind((any, port))
            .with_context(|| format!("listening at TCP port {port} for connections that move back"))?;
        known.calls = Some(host::serve((listener, ServingNode::Primary), key, wake.clone())?);
        for (index, guided) in (0..).zip(guided_to_annexes(config, wire)?) {
            for (client, annex) in guided {
                known.note_guest(index, client, ServingNode::Annex(annex));
            }
        }
        Ok(known)
    }

    /// Starts a link to a node.
    fn add(
        &mut self,
        service: ServiceIndex,
        node: ServingNode,
        (name, number): (&str, Option<u8>),
        to: SocketAddr,
    ) -> io::Result<()> {
        let Some(starter) = &self.starter else {
            return Ok(());
        };
        let link = starter.start(service, node, to)?;
        self.nodes.push(KnownNode {
            service,
            node,
            name: name.to_owned(),
            number,
            link,
        });
        self.name_guests(service, node);
        Ok(())
    }

    /// Starts the links to annexes that are new in the lists, ends those to annexes that are not there any more, and tells the others the
    /// addresses.
    fn follow_lists(&mut self) -> io::Result<()> {
        let lists: Vec<_> = self
            .lists
            .all()
            .map(|(service, list)| (service, list.annexes().to_vec()))
            .collect();
        self.nodes.retain(|known| {
            let mut own = lists.iter().filter(|(service, _)| *service == known.service);
            let has = |list: &[ListedAnnex]| list.iter().any(|annex| annex.name == known.name);
            known.node == ServingNode::Primary || own.any(|(_, list)| has(list))
        });
        for (service, list) in lists {
            for annex in list {
                let node = ServingNode::Annex(AnnexId::of(&annex.name));
                match self.node(service, node) {
                    Some(known) => known.link.set_address(annex.address),
                    None => self.add(service, node, (&annex.name, Some(annex.number)), annex.address)?,
                }
            }
        }
        Ok(())
    }

    /// Takes over what the registry has, if it was read again.
    pub fn take_entries(&mut self, entries: &Arc<AnnexEntries>, wire: &Wire) {
        let mut lists = std::mem::take(&mut self.lists);
        let may_have_changed = lists.take(entries, |service, annex| self.use_of(service, annex, wire));
        self.lists = lists;
        if may_have_changed && let Err(error) = self.follow_lists() {
            tracing::error!(%error, "an annex gets no link, and no connections");
        }
    }

    fn use_of(&self, service: ServiceIndex, annex: &ListedAnnex, wire: &Wire) -> AnnexUse {
        let node = ServingNode::Annex(AnnexId::of(&annex.name));
        let is_here =
            |((of, _), at): (&(ServiceIndex, SocketAddr), &ServingNode)| *of == service && *at == node;
        // Reads the kernel's map only if the answer matters.
        let in_kernel = || {
            wire.annexed(service)
                .iter()
                .any(|&(_, number)| number == annex.number)
        };
        AnnexUse {
            is_linked: self.node(service, node).is_some_and(|known| known.link.is_up()),
            has_connections: self.guests.iter().any(is_here)
                || self.carried.iter().any(is_here)
                || annex.registered.is_none() && !annex.is_configured && in_kernel(),
        }
    }

    /// The annexes of each service.
    pub const fn lists(&self) -> &AnnexLists {
        &self.lists
    }

    /// How this node greets the nodes that may have connections of a service. `None`: it is neither their wire nor a primary that asks them.
    pub fn set_greeting(&self, service: ServiceIndex, greeting: Option<&Greeting>) {
        for known in self.nodes.iter().filter(|known| known.service == service) {
            let is_asked = known.node != ServingNode::Primary;
            known
                .link
                .set_greeting(greeting.filter(|greeting| is_asked || !greeting.asks));
        }
    }

    /// Sets the connections for which the next greeting asks the primary.
    pub fn name_unconfirmed(&self, service: ServiceIndex, clients: Vec<SocketAddr>) {
        if let Some(known) = self.node(service, ServingNode::Primary) {
            known.link.set_guests(clients);
        }
    }

    /// Tells the primary where connections live.
    pub fn tell_primary(&self, service: ServiceIndex) {
        let own = self.guests.iter().filter(|((of, _), _)| *of == service);
        let places = own.map(|((_, client), node)| (*client, node.annex())).collect();
        let is_all = true;
        let lives = AnnexRequest::Lives { places, is_all };
        self.send(service, ServingNode::Primary, lives);
    }

    /// The primary carries these connections: their annexes are to give them to this wire.
    pub fn expect(&mut self, service: ServiceIndex, carried: Vec<(SocketAddr, AnnexId)>) {
        self.carried.retain(|(of, _), _| *of != service);
        let carried = carried.into_iter();
        self.carried
            .extend(carried.map(|(client, annex)| ((service, client), ServingNode::Annex(annex))));
        let nodes: Vec<_> = self.annexes(service).map(|(_, annex)| annex).collect();
        for annex in nodes {
            self.name_guests(service, ServingNode::Annex(annex));
        }
    }

    /// The next event of a link.
    pub fn poll_link(&self) -> Option<FromLink> {
        self.events.as_ref()?.try_recv().ok()
    }

    /// The next call of the other node's wire.
    pub fn poll_call(&self) -> Option<AnnexCall> {
        self.calls.as_ref()?.try_recv().ok()
    }

    fn node(&self, service: ServiceIndex, node: ServingNode) -> Option<&KnownNode> {
        let is_meant = |known: &&KnownNode| known.service == service && known.node == node;
        self.nodes.iter().find(is_meant)
    }

    /// The node's number in the wire's maps.
    pub fn number(&self, service: ServiceIndex, node: ServingNode) -> Option<u8> {
        self.node(service, node)?.number
    }

    /// The name of a node.
    pub fn name(&self, service: ServiceIndex, node: ServingNode) -> &str {
        self.node(service, node).map_or("?", |known| &known.name)
    }

    /// The annexes of a service.
    pub fn annexes(&self, service: ServiceIndex) -> impl Iterator<Item = (&str, AnnexId)> {
        let of_service = self.nodes.iter().filter(move |known| known.service == service);
        of_service.filter_map(|known| match known.node {
            ServingNode::Annex(id) => Some((known.name.as_str(), id)),
            ServingNode::Primary => None,
        })
    }

    /// Sends a request to a node, if it is there.
    pub fn send(&self, service: ServiceIndex, node: ServingNode, request: AnnexRequest) {
        if let Some(known) = self.node(service, node) {
            known.link.send(request);
        }
    }

    /// The node is not to have the connection any more. A new link does not name it, so the node drops it then, if not before.
    pub fn forget_guest(&mut self, service: ServiceIndex, client: SocketAddr, node: ServingNode) {
        if self.guests.get(&(service, client)) == Some(&node) {
            self.guests.remove(&(service, client));
            self.name_guests(service, node);
        }
    }

    /// Sets what the next link to a node says that it has.
    fn name_guests(&self, service: ServiceIndex, node: ServingNode) {
        let both = self.guests.iter().chain(&self.carried);
        let own = both.filter(|((of, _), at)| *of == service && **at == node);
        if let Some(known) = self.node(service, node) {
            known
                .link
                .set_guests(own.map(|((_, client), _)| *client).collect());
        }
    }

    /// The connection lives on this node from now on.
    pub fn note_guest(&mut self, service: ServiceIndex, client: SocketAddr, node: ServingNode) {
        let (places, is_all) = (vec![(client, node.annex())], false);
        let lives = AnnexRequest::Lives { places, is_all };
        self.send(service, ServingNode::Primary, lives);
        let before = match node {
            ServingNode::Primary => self.guests.remove(&(service, client)),
            ServingNode::Annex(_) => self.guests.insert((service, client), node),
        };
        self.carried.remove(&(service, client));
        for changed in before.into_iter().chain([node]) {
            self.name_guests(service, changed);
        }
    }
}
