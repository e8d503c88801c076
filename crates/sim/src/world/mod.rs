//! A deterministic discrete-event world: nodes, the cables between them, and one queue of events.
//!
//! Events happen in the order of their time; events of the same time happen in the order in which they were made. All random
//! choices come from one seed. So the same program with the same seed does the same, byte for byte, on every machine.

mod trace;

use std::any::Any;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use proto::Instant;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::link::{InvalidLink, Link, LinkConfig, LinkVerdict};
use trace::Trace;

/// A machine: packets and time in, packets out.
///
/// After `handle` or `handle_timeout` the world calls `poll_output` until it returns `None`, then `poll_timeout`.
pub trait SimNode: Any {
    /// A packet came in through `port`.
    fn handle(&mut self, now: Instant, port: Port, packet: Vec<u8>);

    /// The time that `poll_timeout` returned has come. Calls that come too early do nothing.
    fn handle_timeout(&mut self, now: Instant);

    /// The next output of the node.
    fn poll_output(&mut self, now: Instant) -> Option<Output>;

    /// When to call `handle_timeout`, unless something else happens before.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// Output of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Sends a packet. Without a cable in the port the packet is lost.
    Transmit {
        /// The port.
        port: Port,
        /// An IP packet.
        packet: Vec<u8>,
    },
    /// Writes a line into the trace.
    Note(String),
}

/// A node's port, into which a cable is plugged. A node's ports are numbered from 0 in the order of [`World::connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub usize);

/// A node of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize);

/// A cable of a world: two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CableId(usize);

/// Nodes, cables, and a queue of events.
pub struct World {
    now: Instant,
    events: BinaryHeap<WorldEvent>,
    /// Number of events that were ever made. Orders events of the same time.
    made: u64,
    /// Number of events at this instant, after the event that moved the clock to it.
    at_once: u32,
    nodes: Vec<NodeSlot>,
    cables: Vec<WorldCable>,
    trace: Trace,
    rng: Xoshiro256PlusPlus,
}

struct NodeSlot {
    name: String,
    node: Box<dyn SimNode>,
    powered: bool,
    plugs: Vec<Plug>,
    /// The earliest event that will call `handle_timeout`.
    wake_at: Option<Instant>,
}

/// One end of a cable, named by the link that leads away from it.
#[derive(Clone, Copy)]
struct Plug {
    cable: CableId,
    direction: usize,
}

struct WorldCable {
    links: [Link; 2],
    /// The far end of each link.
    far_ends: [(NodeId, Port); 2],
    /// Number of times the cable was cut. If it changes while a packet is on the way, the packet is lost.
    cuts: u32,
    /// Chooses packets that are lost by plan, not by chance.
    loses: Option<Choice>,
}

/// Chooses packets.
type Choice = Box<dyn FnMut(Instant, &[u8]) -> bool>;

struct WorldEvent {
    at: Instant,
    order: u64,
    action: WorldAction,
}

enum WorldAction {
    Arrive { plug: Plug, cuts: u32, packet: Vec<u8> },
    Wake(NodeId),
    Call(Box<dyn FnOnce(&mut World)>),
}

/// Maximum number of events at one instant: more than any scenario has. If there are more, some node asks for a call again and again
/// without end.
const EVENTS_AT_ONCE: u32 = 10_000_000;

impl World {
    /// An empty world at [`Instant::ZERO`]. `seed` is the seed of all its random choices.
    pub fn new(seed: u64) -> Self {
        Self {
            now: Instant::ZERO,
            events: BinaryHeap::new(),
            made: 0,
            at_once: 0,
            nodes: Vec::new(),
            cables: Vec::new(),
            trace: Trace::default(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// Starts the trace. From now on it gets a line for each packet that is sent or arrives, each change of a node's power, and each note.
    pub fn record(&mut self) {
        self.trace.start();
    }

    /// The trace so far. Times are seconds, sequence numbers are relative to the SYN, in packetdrill's notation:
    ///
    /// ```text
    /// 0.010000 client > 10.0.0.1:40000 10.0.0.2:80 S 0:0(0) win 65535 <mss 1460,sackOK,TS val 10 ecr 0,wscale 7>
    /// 0.015000 server < 10.0.0.1:40000 10.0.0.2:80 S 0:0(0) win 65535 <mss 1460,sackOK,TS val 10 ecr 0,wscale 7>
    /// 0.016000 client > 10.0.0.1:40000 10.0.0.2:80 . 1:1(0) ack 1 win 512 <TS val 16 ecr 3> [lost]
    /// ```
    pub fn trace(&self) -> &str {
        self.trace.text()
    }

    /// The time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// A number drawn from the world's seed. It can be the seed of a node.
    pub fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Puts a node into the world. The trace shows its name.
    pub fn add(&mut self, name: &str, node: Box<dyn SimNode>) -> NodeId {
        self.nodes.push(NodeSlot {
            name: name.to_owned(),
            node,
            powered: true,
            plugs: Vec::new(),
            wake_at: None,
        });
        let id = NodeId(self.nodes.len() - 1);
        self.settle(id);
        id
    }

    /// Connects the next free port of two nodes, the same link in both directions.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn connect(&mut self, a: NodeId, b: NodeId, link: &LinkConfig) -> Result<CableId, InvalidLink> {
        self.connect_asymmetric(a, b, link, link)
    }

    /// Connects the next free port of two nodes, with one link from `a` to `b` and another one back.
    ///
    /// # Errors
    /// If a configuration is invalid.
    pub fn connect_asymmetric(
        &mut self,
        a: NodeId,
        b: NodeId,
        there: &LinkConfig,
        back: &LinkConfig,
    ) -> Result<CableId, InvalidLink> {
        let links = [
            Link::new(there.clone(), self.random())?,
            Link::new(back.clone(), self.random())?,
        ];
        let cable = CableId(self.cables.len());
        let mut plug_in = |node: NodeId, direction| {
            let plugs = &mut self.nodes[node.0].plugs;
            plugs.push(Plug { cable, direction });
            (node, Port(plugs.len() - 1))
        };
        let (end_a, end_b) = (plug_in(a, 0), plug_in(b, 1));
        self.cables.push(WorldCable {
            links,
            far_ends: [end_b, end_a],
            cuts: 0,
            loses: None,
        });
        Ok(cable)
    }

    /// Connects or cuts a cable. Cutting loses what is on the way, in both directions.
    pub fn set_up(&mut self, cable: CableId, up: bool) {
        let cable = &mut self.cables[cable.0];
        cable.links.iter_mut().for_each(|link| link.set_up(up));
        cable.cuts += u32::from(!up);
    }

    /// Connects or cuts one of a cable's two links. The link in `direction` 0 leads away from the node that [`connect`](Self::connect)
    /// named first. Packets on the way arrive.
    pub fn set_link_up(&mut self, cable: CableId, direction: usize, up: bool) {
        self.cables[cable.0].links[direction].set_up(up);
    }

    /// Whether both links of a cable are connected.
    pub fn is_up(&self, cable: CableId) -> bool {
        self.cables[cable.0].links.iter().all(Link::is_up)
    }

    /// Changes the configuration of both links of a cable.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn set_link(&mut self, cable: CableId, link: &LinkConfig) -> Result<(), InvalidLink> {
        let mut links = self.cables[cable.0].links.iter_mut();
        links.try_for_each(|one| one.set_config(link.clone()))
    }

    /// From now on a cable also loses the packets that `choose` selects, in either direction.
    pub fn lose(&mut self, cable: CableId, choose: impl FnMut(Instant, &[u8]) -> bool + 'static) {
        self.cables[cable.0].loses = Some(Box::new(choose));
    }

    /// A node.
    ///
    /// # Panics
    /// If the node is not a `T`.
    pub fn node<T: SimNode>(&self, id: NodeId) -> &T {
        let machine = &self.nodes[id.0];
        let node: &dyn Any = machine.node.as_ref();
        node.downcast_ref()
            .unwrap_or_else(|| panic!("{} is another kind of node", machine.name))
    }

    /// Runs `f` on a node, now, and sends the packets that result.
    ///
    /// # Panics
    /// If the node is not a `T`.
    pub fn with<T: SimNode, R>(&mut self, id: NodeId, f: impl FnOnce(&mut T, Instant) -> R) -> R {
        let now = self.now;
        let machine = &mut self.nodes[id.0];
        let node: &mut dyn Any = machine.node.as_mut();
        let result = match node.downcast_mut() {
            Some(node) => f(node, now),
            None => panic!("{} is another kind of node", machine.name),
        };
        self.settle(id);
        result
    }

    /// Switches a node off: it neither receives nor sends. Packets that it has sent stay on their way.
    pub fn power_off(&mut self, id: NodeId) {
        let machine = &mut self.nodes[id.0];
        machine.powered = false;
        self.trace.note(self.now, &machine.name, "power off");
    }

    /// Switches a node on again, in its old state. `f` then brings the node into its new state.
    ///
    /// # Panics
    /// If the node is not a `T`.
    pub fn power_on<T: SimNode>(&mut self, id: NodeId, f: impl FnOnce(&mut T, Instant)) {
        self.nodes[id.0].powered = true;
        self.trace.note(self.now, &self.nodes[id.0].name, "power on");
        self.with(id, f);
    }

    /// Whether a node is switched on.
    pub fn is_powered(&self, id: NodeId) -> bool {
        self.nodes[id.0].powered
    }

    /// Runs `action` on the world at a later time.
    pub fn at(&mut self, at: Instant, action: impl FnOnce(&mut World) + 'static) {
        self.push(at, WorldAction::Call(Box::new(action)));
    }

    /// Runs all events up to and including `until`. Afterwards `now` is `until`.
    pub fn run_until(&mut self, until: Instant) {
        self.run_while(until, |_| true);
        self.now = self.now.max(until);
    }

    /// Runs events up to and including `until`, while `condition` holds. The condition is checked before each event.
    /// Returns true if the condition holds until no event up to `until` is left.
    pub fn run_while(&mut self, until: Instant, mut condition: impl FnMut(&World) -> bool) -> bool {
        loop {
            if !condition(self) {
                return false;
            }
            if self.events.peek().is_none_or(|event| event.at > until) {
                return true;
            }
            self.step();
        }
    }

    /// Runs the next event; false if no event is left.
    pub fn step(&mut self) -> bool {
        let Some(event) = self.events.pop() else {
            return false;
        };
        self.at_once = if event.at > self.now { 0 } else { self.at_once + 1 };
        assert!(
            self.at_once < EVENTS_AT_ONCE,
            "too many events at {:?}: a node asks to be called again and again",
            self.now
        );
        self.now = event.at;
        match event.action {
            WorldAction::Arrive { plug, cuts, packet } => self.arrive(plug, cuts, packet),
            WorldAction::Wake(id) => self.wake(id),
            WorldAction::Call(action) => action(self),
        }
        true
    }

    fn arrive(&mut self, plug: Plug, cuts: u32, packet: Vec<u8>) {
        let cable = &self.cables[plug.cable.0];
        let (id, port) = cable.far_ends[plug.direction];
        let machine = &mut self.nodes[id.0];
        let fate = if cable.cuts != cuts {
            "cut"
        } else if !machine.powered {
            "off"
        } else {
            ""
        };
        self.trace.packet(self.now, &machine.name, '<', &packet, fate);
        if fate.is_empty() {
            machine.node.handle(self.now, port, packet);
            self.settle(id);
        }
    }

    fn wake(&mut self, id: NodeId) {
        let machine = &mut self.nodes[id.0];
        if machine.wake_at != Some(self.now) {
            return; // an earlier wake-up took its place
        }
        machine.wake_at = None;
        if machine.powered && machine.node.poll_timeout().is_some_and(|at| at <= self.now) {
            machine.node.handle_timeout(self.now);
        }
        self.settle(id);
    }

    /// Carries out a node's outputs, and notes when the node wants to be called.
    fn settle(&mut self, id: NodeId) {
        while self.nodes[id.0].powered {
            match self.nodes[id.0].node.poll_output(self.now) {
                Some(Output::Transmit { port, packet }) => self.transmit(id, port, packet),
                Some(Output::Note(text)) => self.trace.note(self.now, &self.nodes[id.0].name, &text),
                None => break,
            }
        }
        let machine = &mut self.nodes[id.0];
        if !machine.powered {
            return;
        }
        if let Some(at) = machine.node.poll_timeout().map(|at| at.max(self.now))
            && machine.wake_at.is_none_or(|wake_at| at < wake_at)
        {
            machine.wake_at = Some(at);
            self.push(at, WorldAction::Wake(id));
        }
    }

    fn transmit(&mut self, id: NodeId, port: Port, packet: Vec<u8>) {
        let machine = &self.nodes[id.0];
        let Some(plug) = machine.plugs.get(port.0).copied() else {
            self.trace
                .packet(self.now, &machine.name, '>', &packet, "no cable");
            return;
        };
        let cable = &mut self.cables[plug.cable.0];
        let cuts = cable.cuts;
        let is_chosen = cable
            .loses
            .as_mut()
            .is_some_and(|choose| choose(self.now, &packet));
        let verdict = if is_chosen {
            LinkVerdict::Lost
        } else {
            cable.links[plug.direction].offer(self.now, packet.len())
        };
        self.trace
            .packet(self.now, &machine.name, '>', &packet, verdict.fate());
        if let LinkVerdict::Deliver { at, copy_at } = verdict {
            let copy = copy_at.map(|copy_at| (copy_at, packet.clone()));
            self.push(at, WorldAction::Arrive { plug, cuts, packet });
            if let Some((at, packet)) = copy {
                self.push(at, WorldAction::Arrive { plug, cuts, packet });
            }
        }
    }

    fn push(&mut self, at: Instant, action: WorldAction) {
        assert!(at >= self.now, "event at {at:?} is before now, {:?}", self.now);
        let order = self.made;
        self.made += 1;
        self.events.push(WorldEvent { at, order, action });
    }
}

impl Ord for WorldEvent {
    // The heap yields the greatest event first, so the earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for WorldEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for WorldEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for WorldEvent {}
