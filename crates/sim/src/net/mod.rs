//! A network of links, switches and flows, built to simulate many packets per second of CPU time.
//!
//! ```text
//!   flow's sender ──▶ access link ──▶ switch ──▶ link ──▶ switch ──▶ access link ──▶ flow's receiver
//!                 ◀──             ◀──  (logic)   ◀──      (logic) ◀──             ◀──
//! ```
//!
//! [`crate::world`] is for machines that exchange bytes: any node, any packet, one event per packet, a trace of everything. This engine is
//! for the papers' figures, which need millions of packets and none of their bytes. A common engine would either slow the figures down with
//! bytes, or limit the machines to the few fields of a flow's packet. So the two engines share only [`crate::link`], which must behave
//! alike in both engines. Three choices make this engine fast:
//!
//! * A link returns packets in the order in which they were put into it; only late packets are overtaken. So packets on the way wait in
//!   a ring per link, and only the first is in the heap. The heap grows with the links and timers in use, not with the packets.
//! * A postponed timer keeps its entry in the heap. When this entry reaches the top, an entry with the later time replaces it.
//! * Packets are small and copied; nothing is allocated per packet.
//!
//! Events happen in the order of their time. If times are equal, packets arrive before timers expire. Of packets from two links, the packet
//! from the link with the lower rank comes first. A link's rank is drawn from the seed once, when the link is created. The rank models the
//! host's clock: no two clocks agree to the nanosecond, and a clock that is ahead stays ahead. These ranks affect the results. Behind one
//! bottleneck, packets of one size often arrive at the same time, and the second packet of such a tie is dropped if the queue is full. With
//! ranks, losses fall on few flows, much as in ns-2, where rounded floating point numbers break the ties. Two other rules were tried: the
//! links' order of creation, and a new draw for each tie. Both spread the losses over more flows, and the cluster of
//! [`crate::scenario::rate`] carried up to a tenth less than in ns-2 (docs/simulator.md). All random choices come from the seed.

mod event;
mod queue;
mod switch;

use std::any::Any;
use std::collections::VecDeque;

use proto::Instant;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::flow::{
    FlowConfig, FlowDirection, FlowId, FlowPacket, FlowReceiver, FlowSender, InvalidFlowConfig,
};
use crate::link::{InvalidLink, Link, LinkConfig, LinkVerdict};
pub use event::{EventPlace, Happening, TraceEvent};
use queue::{EventKey, EventKind, EventQueue};
use switch::Switch;
pub use switch::{LinkId, Logic, SwitchOutbox};

/// A switch of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(u32);

/// The end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// At the flows' senders and receivers.
    Hosts,
    /// At a switch.
    Switch(SwitchId),
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Bytes accepted: sent, being sent or waiting.
    pub bytes: u64,
    /// Packets accepted.
    pub packets: u64,
    /// Packets that found the queue full.
    pub overflows: u64,
    /// Packets lost by chance.
    pub lost: u64,
    /// Packets lost because the link was, or went, down.
    pub cut: u64,
}

/// Callback for every event.
type EventTracer = Box<dyn FnMut(&TraceEvent)>;

/// Links, switches, flows, and a heap of events.
pub struct FlowNetwork {
    now: Instant,
    queue: EventQueue,
    wires: Vec<NetLink>,
    switches: Vec<Switch>,
    flows: Vec<Flow>,
    unfinished: usize,
    /// Packets that a flow's end has just sent. The buffer is kept so that its memory is used again.
    sent: Vec<FlowPacket>,
    outbox: SwitchOutbox,
    trace: Option<EventTracer>,
    rng: Xoshiro256PlusPlus,
}

/// A link and the packets on it.
struct NetLink {
    link: Link,
    end: LinkEnd,
    rank: u64,
    /// Packets on the way, with their times of arrival. Each entry is 64 bytes long, as long as a cache line.
    on_the_way: VecDeque<(Instant, FlowPacket)>,
    /// The heap's entry for the first packet on the way.
    scheduled: EventKey,
    counts: LinkCounts,
}

struct Flow {
    sender: FlowSender,
    receiver: FlowReceiver,
    /// The first link of each direction.
    uplinks: [LinkId; 2],
    /// The heap's entries for the sender's and the receiver's timer.
    scheduled: [EventKey; 2],
}

impl NetLink {
    /// The heap's entry for a packet that arrives at the time `at`.
    const fn key(&self, number: u32, at: Instant) -> EventKey {
        EventKey::new(at.as_nanos(), EventKind::Link, self.rank, number)
    }
}

impl FlowNetwork {
    /// An empty network at [`Instant::ZERO`].
    pub fn new(seed: u64) -> Self {
        Self {
            now: Instant::ZERO,
            queue: EventQueue::default(),
            wires: Vec::new(),
            switches: Vec::new(),
            flows: Vec::new(),
            unfinished: 0,
            sent: Vec::new(),
            outbox: SwitchOutbox::default(),
            trace: None,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// Puts a switch without routes into the network. Traces show its name.
    pub fn add_switch(&mut self, name: &'static str) -> SwitchId {
        self.switches.push(Switch::new(name));
        SwitchId(number(self.switches.len() - 1))
    }

    /// Sets what a switch does with each packet.
    pub fn set_logic(&mut self, switch: SwitchId, logic: Box<dyn Logic>) {
        self.switches[switch.0 as usize].logic = Some(logic);
        self.settle_switch(switch);
    }

    /// The logic of a switch, if it is an `L`.
    pub fn logic<L: Logic>(&self, switch: SwitchId) -> Option<&L> {
        let logic: &dyn Any = self.switches[switch.0 as usize].logic.as_deref()?;
        logic.downcast_ref()
    }

    /// Adds a link that ends at `end`.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn add_link(&mut self, end: LinkEnd, config: &LinkConfig) -> Result<LinkId, InvalidLink> {
        let link = Link::new(config.clone(), self.rng.next_u64())?;
        self.wires.push(NetLink {
            link,
            end,
            rank: self.rng.next_u64(),
            on_the_way: VecDeque::new(),
            scheduled: EventKey::NEVER,
            counts: LinkCounts::default(),
        });
        Ok(LinkId(number(self.wires.len() - 1)))
    }

    /// Adds a flow of `bytes` bytes. `uplinks`: the link into which the sender sends, and the link into which the receiver sends. If the
    /// configuration does not say when the sender's clock ticks, the seed decides.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn add_flow(
        &mut self,
        config: &FlowConfig,
        bytes: u64,
        uplinks: [LinkId; 2],
    ) -> Result<FlowId, InvalidFlowConfig> {
        config.check()?;
        let mut config = *config;
        if config.rto.phase.is_none() {
            config.rto.phase = Some(config.rto.tick.mul_f64(self.rng.random::<f64>()));
        }
        self.unfinished += 1;
        let id = FlowId(number(self.flows.len()));
        self.flows.push(Flow {
            sender: FlowSender::new(id, &config, bytes),
            receiver: FlowReceiver::new(id, &config),
            uplinks,
            scheduled: [EventKey::NEVER; 2],
        });
        Ok(id)
    }

    /// From now on `switch` sends the flow's packets of this direction into `link`.
    pub fn set_route(&mut self, switch: SwitchId, flow: FlowId, direction: FlowDirection, link: LinkId) {
        self.switches[switch.0 as usize].set_route(flow, direction, link);
    }

    /// Connects or cuts a link. A cut loses the packets that wait and the packets on the way.
    pub fn set_up(&mut self, link: LinkId, up: bool) {
        let wire = &mut self.wires[link.0 as usize];
        wire.link.set_up(up);
        if !up {
            let (end, lost) = (wire.end, std::mem::take(&mut wire.on_the_way));
            wire.counts.cut += lost.len() as u64;
            wire.scheduled = EventKey::NEVER;
            for (_, packet) in lost {
                self.tell_received(end, packet, "cut");
            }
        }
    }

    /// Opens a flow's connection, now.
    pub fn start(&mut self, flow: FlowId) {
        self.flows[flow.0 as usize].sender.start(self.now, &mut self.sent);
        self.settle_sender(flow);
    }

    /// The time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Number of packets that wait on a link now, and their bytes, not counting the packet that is being sent.
    pub fn waiting(&mut self, link: LinkId) -> (usize, usize) {
        self.wires[link.0 as usize].link.waiting(self.now)
    }

    /// The counters of a link.
    pub fn link_counts(&self, link: LinkId) -> LinkCounts {
        self.wires[link.0 as usize].counts
    }

    /// All flows.
    pub fn flows(&self) -> impl Iterator<Item = FlowId> + use<> {
        (0..self.flows.len()).map(|index| FlowId(number(index)))
    }

    /// A flow's sending end.
    pub fn sender(&self, flow: FlowId) -> &FlowSender {
        &self.flows[flow.0 as usize].sender
    }

    /// A flow's receiving end.
    pub fn receiver(&self, flow: FlowId) -> &FlowReceiver {
        &self.flows[flow.0 as usize].receiver
    }

    /// Runs all events before `until`, then sets the time to `until`. Actions that the caller takes next happen before
    /// all other events of that time.
    pub fn run_until(&mut self, until: Instant) {
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    /// Runs events until all flows are complete, or no event before `until` is left. Returns whether all are complete.
    pub fn run_flows(&mut self, until: Instant) -> bool {
        while self.unfinished > 0 && self.step(until) {}
        self.unfinished == 0
    }

    /// Runs the next event before `until`. Returns false if there is no such event.
    pub fn step(&mut self, until: Instant) -> bool {
        let Some(key) = self.queue.pop_before(until.as_nanos()) else {
            return false;
        };
        let number = key.number();
        match key.what() {
            EventKind::Link => self.on_link(number, key),
            EventKind::Sender => self.on_timer(FlowId(number), key, 0),
            EventKind::Receiver => self.on_timer(FlowId(number), key, 1),
            EventKind::Switch => self.on_switch_timer(SwitchId(number), key),
        }
        true
    }

    /// The first packet on a link arrives.
    fn on_link(&mut self, link: u32, key: EventKey) {
        let wire = &mut self.wires[link as usize];
        if wire.scheduled != key {
            return; // the link was cut, or an earlier entry took its place
        }
        let Some((_, packet)) = wire.on_the_way.pop_front() else {
            unreachable!("a link is in the heap with its first packet")
        };
        let end = wire.end;
        if let Some((next, _)) = wire.on_the_way.front() {
            wire.scheduled = wire.key(link, *next);
            self.queue.push(wire.scheduled);
        } else {
            wire.scheduled = EventKey::NEVER;
        }
        self.now = Instant::from_nanos(key.nanos());
        if self.trace.is_some() {
            self.tell_received(end, packet, "");
        }
        match end {
            LinkEnd::Hosts => self.deliver(packet),
            LinkEnd::Switch(switch) => self.forward(switch, packet),
        }
    }

    fn deliver(&mut self, packet: FlowPacket) {
        let Flow { sender, receiver, .. } = &mut self.flows[packet.flow.0 as usize];
        match packet.direction {
            FlowDirection::Forward => {
                receiver.handle(self.now, &packet, &mut self.sent);
                self.settle_receiver(packet.flow);
            }
            FlowDirection::Backward => {
                let before = sender.completed();
                sender.handle(self.now, &packet, &mut self.sent);
                self.unfinished -= usize::from(before != sender.completed());
                self.settle_sender(packet.flow);
            }
        }
    }

    fn on_timer(&mut self, id: FlowId, key: EventKey, end: usize) {
        let flow = &mut self.flows[id.0 as usize];
        if flow.scheduled[end] != key {
            return; // an earlier entry took its place
        }
        flow.scheduled[end] = EventKey::NEVER;
        self.now = Instant::from_nanos(key.nanos());
        if end == 0 {
            let before = flow.sender.counts().timeouts;
            flow.sender.handle_timeout(self.now, &mut self.sent);
            if flow.sender.counts().timeouts != before {
                self.note(EventPlace::Sender(id), "timeout");
            }
            self.settle_sender(id);
        } else {
            flow.receiver.handle_timeout(self.now, &mut self.sent);
            self.settle_receiver(id);
        }
    }

    fn settle_sender(&mut self, id: FlowId) {
        let wanted = self.flows[id.0 as usize].sender.poll_timeout();
        self.settle(id, 0, wanted);
    }

    fn settle_receiver(&mut self, id: FlowId) {
        let wanted = self.flows[id.0 as usize].receiver.poll_timeout();
        self.settle(id, 1, wanted);
    }

    /// Sends the packets that an end has just queued, and schedules the end's next call.
    fn settle(&mut self, id: FlowId, end: usize, wanted: Option<Instant>) {
        let flow = &mut self.flows[id.0 as usize];
        let uplink = flow.uplinks[end];
        if let Some(at) = wanted
            && at.as_nanos() < flow.scheduled[end].nanos()
        {
            let what = [EventKind::Sender, EventKind::Receiver][end];
            let key = EventKey::new(at.as_nanos(), what, 0, id.0);
            flow.scheduled[end] = key;
            self.queue.push(key);
        }
        for index in 0..self.sent.len() {
            let packet = self.sent[index];
            self.offer(uplink, packet, None);
        }
        self.sent.clear();
    }

    /// A packet leaves a switch, or its flow's end if `from` is `None`.
    fn offer(&mut self, link: LinkId, packet: FlowPacket, from: Option<SwitchId>) {
        let wire = &mut self.wires[link.0 as usize];
        let bytes = packet.wire_bytes();
        let verdict = wire.link.offer(self.now, bytes);
        match verdict {
            LinkVerdict::Deliver { at, copy_at } => {
                wire.counts.packets += 1;
                wire.counts.bytes += bytes as u64;
                self.put(link, at, packet);
                if let Some(at) = copy_at {
                    self.put(link, at, packet);
                }
            }
            LinkVerdict::Lost => wire.counts.lost += 1,
            LinkVerdict::QueueFull => wire.counts.overflows += 1,
            LinkVerdict::Down => wire.counts.cut += 1,
        }
        if self.trace.is_some() {
            self.tell_sent(from, packet, verdict.fate());
        }
    }

    /// Puts a packet on the way, behind the others. Only a packet that overtakes a late packet goes before it.
    fn put(&mut self, link: LinkId, at: Instant, packet: FlowPacket) {
        let wire = &mut self.wires[link.0 as usize];
        if wire.on_the_way.back().is_none_or(|(last, _)| *last <= at) {
            wire.on_the_way.push_back((at, packet));
        } else {
            let place = wire.on_the_way.partition_point(|(other, _)| *other <= at);
            wire.on_the_way.insert(place, (at, packet));
        }
        if at.as_nanos() < wire.scheduled.nanos() {
            wire.scheduled = wire.key(link.0, at);
            self.queue.push(wire.scheduled);
        }
    }

    fn forward(&mut self, id: SwitchId, packet: FlowPacket) {
        let switch = &mut self.switches[id.0 as usize];
        if let Some(logic) = &mut switch.logic {
            logic.handle(self.now, packet, &mut self.outbox);
            self.settle_switch(id);
        } else {
            self.route(id, packet);
        }
    }

    fn route(&mut self, id: SwitchId, packet: FlowPacket) {
        if let Some(link) = self.switches[id.0 as usize].route(packet.flow, packet.direction) {
            self.offer(link, packet, Some(id));
        }
    }

    fn on_switch_timer(&mut self, id: SwitchId, key: EventKey) {
        let switch = &mut self.switches[id.0 as usize];
        if switch.scheduled != key {
            return; // an earlier entry took its place
        }
        switch.scheduled = EventKey::NEVER;
        self.now = Instant::from_nanos(key.nanos());
        if let Some(logic) = &mut switch.logic {
            logic.handle_timeout(self.now, &mut self.outbox);
        }
        self.settle_switch(id);
    }

    fn settle_switch(&mut self, id: SwitchId) {
        for index in 0..self.outbox.packets.len() {
            let packet = self.outbox.packets[index];
            self.route(id, packet);
        }
        self.outbox.packets.clear();
        let switch = &mut self.switches[id.0 as usize];
        let wanted = switch.logic.as_ref().and_then(|logic| logic.poll_timeout());
        if let Some(at) = wanted.map(|at| at.max(self.now))
            && at.as_nanos() < switch.scheduled.nanos()
        {
            switch.scheduled = EventKey::new(at.as_nanos(), EventKind::Switch, 0, id.0);
            self.queue.push(switch.scheduled);
        }
    }
}

/// Converts an index to the type that the identifiers store.
fn number(index: usize) -> u32 {
    let number = u32::try_from(index)
        .ok()
        .filter(|number| *number < EventKey::NUMBERS);
    number.expect("at most 2²⁴ of anything")
}
