//! Annexes: nodes outside of the pair that take connections of a service (docs/annex.md).
//!
//! [`links`] is the wire's side, [`host`] the side of a node that takes connections: an annex ([`crate::annex`]), or the primary, to which
//! connections move back.

pub(crate) mod host;
pub(crate) mod links;
pub(crate) mod message;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};

use anyhow::Context;
use linux::wire::Wire;
use proto::action::ServiceIndex;
use proto::annex::{AnnexId, ServingNode};
use proto::hosting::Greeting;

use crate::config::{Config, SecretKey, ServiceSettings};
use host::AnnexCall;
use links::{AnnexLink, FromLink, LinkPlace};
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
    events: Option<Receiver<FromLink>>,
    calls: Option<Receiver<AnnexCall>>,
    /// Where connections live.
    guests: BTreeMap<(ServiceIndex, SocketAddr), ServingNode>,
    /// Connections that the primary carries. Their annexes are told of them, so that they take this wire for theirs.
    carried: BTreeMap<(ServiceIndex, SocketAddr), ServingNode>,
}

/// The clients whose connections an earlier agent has guided to annexes, each with the annex.
pub fn guided_to_annexes(
    wire: &Wire,
    index: ServiceIndex,
    service: &ServiceSettings,
) -> Vec<(SocketAddr, AnnexId)> {
    let guests = wire.annexed(index).into_iter();
    let named = guests.filter_map(|(client, number)| {
        let annex = service.annexes.get(usize::from(number))?;
        Some((client, AnnexId::of(&annex.name)))
    });
    named.collect()
}

impl AnnexNodes {
    /// Starts the links, if a service has annexes.
    ///
    /// # Errors
    /// If the key cannot be read, or a thread or the listener cannot be started.
    pub fn open(config: &Config, wire: &Wire, macs: &[[u8; 6]], wake: &WakeAgent) -> anyhow::Result<Self> {
        let (events, from_links) = channel();
        let mut nodes = Vec::new();
        let mut key = None;
        for ((index, service), &mac) in (0..).zip(&config.services).zip(macs) {
            if service.annexes.is_empty() {
                continue;
            }
            let file = config
                .peer
                .key_file
                .as_deref()
                .context("annexes need [peer] key_file")?;
            let secret = SecretKey::read(file).map_err(anyhow::Error::msg)?;
            key = Some(secret.clone());
            let peer = SocketAddr::new(service.peer_address, config.peer.annex_port);
            let primary = (ServingNode::Primary, config.peer.name.clone(), None, peer);
            let annexes = (0..).zip(&service.annexes).map(|(number, annex)| {
                let node = ServingNode::Annex(AnnexId::of(&annex.name));
                (node, annex.name.clone(), Some(number), annex.address)
            });
            for (node, name, number, to) in std::iter::once(primary).chain(annexes) {
                let place = LinkPlace {
                    service: index,
                    node,
                    vip: (service.address, service.port).into(),
                    mac,
                    to,
                };
                let link = AnnexLink::start(place, secret.clone(), events.clone(), wake.clone())?;
                nodes.push(KnownNode {
                    service: index,
                    node,
                    name,
                    number,
                    link,
                });
            }
        }
        let mut known = Self {
            nodes,
            events: Some(from_links),
            ..Self::default()
        };
        let Some(key) = key else { return Ok(known) };
        let any: IpAddr = match config.peer.address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let port = config.peer.annex_port;
        let listener = TcpListener::bind((any, port))
            .with_context(|| format!("listening at TCP port {port} for connections that move back"))?;
        known.calls = Some(host::serve(listener, key, wake.clone())?);
        for (index, service) in (0..).zip(&config.services) {
            for (client, annex) in guided_to_annexes(wire, index, service) {
                known.note_guest(index, client, ServingNode::Annex(annex));
            }
        }
        Ok(known)
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
