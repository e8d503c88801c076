//! The side of a wire, or of a primary whose wire has failed: links to the nodes that may have connections of the service. As
//! `cli::daemon::annex` does it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use proto::annex::{AnnexId, ServingNode};
use proto::hosting::Greeting;

use super::link::{AnnexLinkEnd, LinkDatagram, LinkId, LinkWord};
use crate::world::{Output, Port};

/// Interval of signs of life.
const PING_EVERY: Duration = Duration::from_millis(50);
/// Pause before a node is called again.
const PAUSE: Duration = Duration::from_millis(200);
/// Time that a node has to answer the greeting.
const BEGIN_MAX: Duration = Duration::from_secs(1);

/// The annex with this number. The first one's number is 0.
pub(in crate::pair) fn annex_id(number: usize) -> AnnexId {
    AnnexId(u32::try_from(number).expect("few annexes") + 1)
}

/// The number of an annex.
pub(in crate::pair) const fn number_of(annex: AnnexId) -> usize {
    annex.0 as usize - 1
}

/// What a link says to the agent.
#[derive(Debug)]
pub(in crate::pair) enum SimLinkEvent {
    /// The node is there.
    Up {
        /// The clients whose connections it has.
        has: Vec<SocketAddr>,
        /// Of the primary: what it carries, and for which annexes.
        carries: Vec<(SocketAddr, AnnexId)>,
    },
    /// The node is not there any more.
    Down,
    /// An answer.
    Reply(LinkWord),
}

#[derive(Debug)]
enum CallPhase {
    /// No link before this time.
    Idle(Instant),
    /// The node has not answered the greeting, which was sent at this time.
    Greeting(AnnexLinkEnd, Instant),
    Up(AnnexLinkEnd),
}

#[derive(Debug)]
struct CalledNode {
    node: ServingNode,
    port: Port,
    phase: CallPhase,
    /// Whether the agent believes that the node is there. A wire calls an annex again before it says that the annex is not there any more.
    is_known: bool,
    /// Whether the greeting of the present link asks for connections.
    asks: bool,
    ping_at: Instant,
}

/// The links of one agent.
#[derive(Debug)]
pub(in crate::pair) struct CallerLinks {
    /// The caller's number.
    station: usize,
    /// Number of the agent, and of the links that it has begun.
    agent: u64,
    count: u64,
    greeting: Option<Greeting>,
    nodes: Vec<CalledNode>,
    /// Where connections live.
    guests: BTreeMap<SocketAddr, AnnexId>,
    /// Connections that the primary was asked to start, and of which it has not said that it has.
    unconfirmed: Vec<SocketAddr>,
    /// Connections that the primary carries. The annexes are to give them to this wire.
    carried: BTreeMap<SocketAddr, AnnexId>,
    events: VecDeque<(ServingNode, SimLinkEvent)>,
    closing: Vec<Output>,
}

impl CallerLinks {
    /// The links of an agent, which begins at `now`. `ports`: the nodes, and the ports to them.
    pub fn new(
        now: Instant,
        (station, agent): (usize, u64),
        ports: impl IntoIterator<Item = (ServingNode, Port)>,
        guests: impl IntoIterator<Item = (SocketAddr, AnnexId)>,
    ) -> Self {
        let nodes = ports.into_iter().map(|(node, port)| CalledNode {
            node,
            port,
            phase: CallPhase::Idle(now),
            is_known: false,
            asks: false,
            ping_at: now,
        });
        Self {
            station,
            agent,
            count: 0,
            greeting: None,
            nodes: nodes.collect(),
            guests: guests.into_iter().collect(),
            unconfirmed: Vec::new(),
            carried: BTreeMap::new(),
            events: VecDeque::new(),
            closing: Vec::new(),
        }
    }

    /// Sets what the next greetings say. `None`: there are to be no links. If only the number of the take-back or the epoch changes, the
    /// nodes are told.
    pub fn set_greeting(&mut self, now: Instant, greeting: Option<Greeting>) {
        if self.greeting == greeting {
            return;
        }
        let before = std::mem::replace(&mut self.greeting, greeting);
        match (before, greeting) {
            (Some(before), Some(greeting)) if before.asks == greeting.asks => {
                let nodes: Vec<_> = self.nodes.iter().map(|called| called.node).collect();
                for node in nodes {
                    self.send(node, LinkWord::TakeBack(greeting.take_back));
                }
            }
            _ => self.look(now),
        }
    }

    /// The node's greeting, if there is to be a link to it. Only a wire calls the primary.
    fn greeting_to(greeting: Option<Greeting>, node: ServingNode) -> Option<Greeting> {
        greeting.filter(|greeting| node != ServingNode::Primary || !greeting.asks)
    }

    /// Sends a message to a node, if it is there.
    pub fn send(&mut self, node: ServingNode, word: LinkWord) {
        let called = self.nodes.iter_mut().find(|called| called.node == node);
        if let Some(CallPhase::Up(end)) = called.map(|called| &mut called.phase) {
            end.say(word);
        }
    }

    /// A connection lives on this node from now on.
    pub fn note_guest(&mut self, client: SocketAddr, node: ServingNode) {
        let (places, is_all) = (vec![(client, node.annex())], false);
        self.send(ServingNode::Primary, LinkWord::Lives { places, is_all });
        self.carried.remove(&client);
        match node {
            ServingNode::Primary => self.guests.remove(&client),
            ServingNode::Annex(annex) => self.guests.insert(client, annex),
        };
    }

    /// The node is not to have the connection any more. A new link does not name it.
    pub fn forget_guest(&mut self, client: SocketAddr, node: ServingNode) {
        if self.guests.get(&client).copied() == node.annex() {
            self.guests.remove(&client);
        }
    }

    /// The primary carries these connections: the next links name them, so that their annexes obey this wire.
    pub fn expect(&mut self, carried: Vec<(SocketAddr, AnnexId)>) {
        self.carried = carried.into_iter().collect();
    }

    /// Sets the connections for which the next greeting asks the primary.
    pub fn name_unconfirmed(&mut self, clients: Vec<SocketAddr>) {
        self.unconfirmed = clients;
    }

    /// Tells the primary where all connections live.
    pub fn tell_primary(&mut self) {
        let places = self.guests.iter().map(|(&client, &annex)| (client, Some(annex)));
        let (places, is_all) = (places.collect(), true);
        self.send(ServingNode::Primary, LinkWord::Lives { places, is_all });
    }

    /// A packet of a node.
    pub fn on_datagram(&mut self, now: Instant, datagram: LinkDatagram) {
        let is_meant = |called: &&mut CalledNode| match &called.phase {
            CallPhase::Idle(_) => false,
            CallPhase::Greeting(end, _) | CallPhase::Up(end) => end.id == datagram.link,
        };
        let Some(called) = self.nodes.iter_mut().find(is_meant) else {
            return;
        };
        if datagram.is_over() {
            let node = called.node;
            return self.end(now, node, true);
        }
        let node = called.node;
        let (CallPhase::Greeting(end, _) | CallPhase::Up(end)) = &mut called.phase else {
            return;
        };
        let mut is_superseded = false;
        for word in end.on_datagram(now, datagram) {
            let event = match word {
                LinkWord::Welcome { has, carries } => SimLinkEvent::Up { has, carries },
                LinkWord::Superseded => {
                    is_superseded = true;
                    continue;
                }
                word => SimLinkEvent::Reply(word),
            };
            self.events.push_back((node, event));
        }
        if let CallPhase::Greeting(..) = called.phase
            && let Some((_, SimLinkEvent::Up { .. })) = self.events.iter().rev().find(|(of, _)| *of == node)
            && let CallPhase::Greeting(end, _) = std::mem::replace(&mut called.phase, CallPhase::Idle(now))
        {
            called.phase = CallPhase::Up(end);
            called.is_known = true;
        }
        if is_superseded {
            self.end(now, node, false); // it obeys another node
        }
    }

    /// A node's link is over. `is_cut`: the node may be there nevertheless, so it is called again at once if it was there.
    fn end(&mut self, now: Instant, node: ServingNode, is_cut: bool) {
        let Some(called) = self.nodes.iter_mut().find(|called| called.node == node) else {
            return;
        };
        let port = called.port;
        let phase = std::mem::replace(&mut called.phase, CallPhase::Idle(now + PAUSE));
        if let CallPhase::Greeting(end, _) | CallPhase::Up(end) = &phase {
            let packet = end.over();
            self.closing.push(Output::Transmit { port, packet });
        }
        let is_up = matches!(phase, CallPhase::Up(_));
        if is_up && is_cut && !called.asks && node != ServingNode::Primary {
            called.phase = CallPhase::Idle(now);
        } else if std::mem::take(&mut called.is_known) {
            self.events.push_back((node, SimLinkEvent::Down));
        }
    }

    /// Begins and ends links.
    fn look(&mut self, now: Instant) {
        let greeting = self.greeting;
        let is_over = |called: &CalledNode| {
            let goes_on =
                Self::greeting_to(greeting, called.node).is_some_and(|greeting| greeting.asks == called.asks);
            match &called.phase {
                CallPhase::Idle(_) => !goes_on && called.is_known,
                CallPhase::Greeting(_, begun) => !goes_on || now >= *begun + BEGIN_MAX,
                CallPhase::Up(end) => !goes_on || end.is_silent(now),
            }
        };
        let over = self.nodes.iter().filter(|called| is_over(called));
        let over: Vec<_> = over.map(|called| called.node).collect();
        over.into_iter().for_each(|node| self.end(now, node, false));
        for called in &mut self.nodes {
            let Some(greeting) = Self::greeting_to(greeting, called.node) else {
                continue;
            };
            match &mut called.phase {
                CallPhase::Idle(until) if now >= *until => {
                    self.count += 1;
                    let id = LinkId {
                        caller: self.station,
                        number: self.agent << 32 | self.count,
                    };
                    let own = self.guests.iter().chain(&self.carried);
                    let own = own.filter(|(_, annex)| called.node == ServingNode::Annex(**annex));
                    let own = own.map(|(&client, _)| client);
                    let own: Vec<_> = match called.node {
                        ServingNode::Primary => self.unconfirmed.clone(),
                        ServingNode::Annex(_) => own.collect(),
                    };
                    let mut end = AnnexLinkEnd::new(now, id, false);
                    end.say(LinkWord::Hello(greeting.to_host_of(&own)));
                    called.asks = greeting.asks;
                    called.phase = CallPhase::Greeting(end, now);
                }
                CallPhase::Up(end) if now >= called.ping_at => {
                    end.say(LinkWord::Ping);
                    called.ping_at = now + PING_EVERY;
                }
                CallPhase::Idle(_) | CallPhase::Greeting(..) | CallPhase::Up(_) => {}
            }
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.look(now);
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |called: &CalledNode| match &called.phase {
            CallPhase::Idle(until) => Self::greeting_to(self.greeting, called.node).map(|_| *until),
            CallPhase::Greeting(end, begun) => {
                let answered_by = *begun + BEGIN_MAX;
                Some(end.repeats_at().map_or(answered_by, |at| at.min(answered_by)))
            }
            CallPhase::Up(end) => Some(end.poll_timeout().min(called.ping_at)),
        };
        self.nodes.iter().filter_map(due).min()
    }

    /// The agent believes that a node has dropped a connection, for `Defect::LeaveUndropped`.
    pub fn forge_dropped(&mut self, client: SocketAddr, node: ServingNode) {
        let reply = SimLinkEvent::Reply(LinkWord::Dropped(client));
        self.events.push_back((node, reply));
    }

    /// The next event of a link.
    pub fn poll_event(&mut self) -> Option<(ServingNode, SimLinkEvent)> {
        self.events.pop_front()
    }

    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// All links end.
    pub fn reset(&mut self, now: Instant) {
        let has_link = |called: &&CalledNode| !matches!(called.phase, CallPhase::Idle(_));
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .filter(has_link)
            .map(|called| called.node)
            .collect();
        nodes.into_iter().for_each(|node| self.end(now, node, true));
    }

    /// The agent has died: its kernel closes all links.
    pub fn die(&mut self, now: Instant) -> Vec<Output> {
        self.reset(now);
        self.events.clear();
        self.nodes.clear();
        std::mem::take(&mut self.closing)
    }

    /// The packets that are to be sent now.
    pub fn outputs(&mut self, now: Instant) -> Vec<Output> {
        let mut outputs = std::mem::take(&mut self.closing);
        for called in &mut self.nodes {
            let port = called.port;
            let packet = match &mut called.phase {
                CallPhase::Idle(_) => None,
                CallPhase::Greeting(end, _) | CallPhase::Up(end) => end.poll_packet(now),
            };
            outputs.extend(packet.map(|packet| Output::Transmit { port, packet }));
        }
        outputs
    }
}
