//! A model of the edge's eBPF data path (`bpf/edge.bpf.c`): the same verdicts, the same packets, the same counters.
//!
//! A test of the crate `linux` gives the same packets to the model and to the programs in the kernel. The model has no clock, so it counts
//! no round-trip times and no activity. Its tables have no limits. It does not check the MTU.

mod packet;

use std::collections::{BTreeMap, HashMap};

use super::cache::{CachePolicy, SecondPacket};
use super::mirror::CacheMirror;
use super::switch::StringSteering;
use super::{EdgeDirection, EdgeSegment};
use crate::Seq;
use crate::rate::capped_field;
use packet::{DataPathKey, EdgePacket, PacketKind, is_ip_sum_wrong};

use super::slots::SLOTS;

/// Bytes of an Ethernet header. Traffic is counted with it.
const ETHERNET: u64 = 14;

/// The side of a destination, seen from the edge: `enum edge_side`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationSide {
    /// On the side of the outside port.
    Outside,
    /// Behind the cluster.
    Inside,
    /// This machine, or reached without the cluster.
    Local,
}

/// A string as the data path sees it.
#[derive(Clone, Copy, Debug)]
pub struct DataPathString {
    /// Treatment of the string's packets.
    pub steering: StringSteering,
    /// Increases when the string's flows are to leave the string. A flow that still has an earlier number moves to the string of its slot.
    pub generation: u32,
    /// Number of the current period of caching, as in `bpf/edge_abi.h`. 0: no packets are copied.
    pub caching_epoch: u32,
    /// Whether all entering packets are copied.
    pub copies_entering: bool,
    /// Most bytes that a leaving window may offer; 0: no limit.
    pub cap: u32,
    /// Whether the string has a next hop for IPv4 packets.
    pub has_v4: bool,
    /// Whether the string has a next hop for IPv6 packets.
    pub has_v6: bool,
}

/// A port of the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPathPort {
    /// The port away from the cluster.
    Outside,
    /// The port of a string.
    String(usize),
}

/// The data path's verdict on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataPathVerdict {
    /// The kernel's network stack gets the packet, unchanged.
    Stack,
    /// The packet is dropped.
    Dropped,
    /// This packet leaves by this port.
    Sent(DataPathPort, Vec<u8>),
}

/// A copy for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPathCopy {
    /// The string of the flow.
    pub string: usize,
    /// Direction in which the packet passed.
    pub way: EdgeDirection,
    /// Number of bytes of the packet that were copied.
    pub len: usize,
}

/// `struct edge_flow`.
#[derive(Clone, Copy, Debug, Default)]
struct DataPathFlow {
    generation: u32,
    slot: usize,
    string: usize,
    is_learned: bool,
    /// The end that sent the SYN, and the SYN's sequence number.
    opener: Option<(EdgeDirection, Seq)>,
    is_answered: bool,
    is_measuring: bool,
    is_uncapped: bool,
    near_scale: Option<u8>,
    far_scale: Option<u8>,
    caching_epoch: u32,
    mirror: CacheMirror,
}

/// Key of the packet that a fragment belongs to: source, destination, identification, protocol.
type FragmentKey = ([u8; 16], [u8; 16], u32, u8);

/// The data path of one edge.
#[derive(Clone, Debug)]
pub struct DataPath {
    /// The strings.
    pub strings: Vec<DataPathString>,
    /// The string of each slot.
    pub slots: Box<[u8; SLOTS]>,
    /// The subnets of destinations: address (IPv4 as `::ffff:a.b.c.d`), length of the prefix in bits, and side.
    pub subnets: Vec<(u128, u32, DestinationSide)>,
    /// The side of destinations in none of the subnets.
    pub default_side: DestinationSide,
    /// The packets that are copied.
    pub policy: Option<CachePolicy>,
    /// The cache's second packet.
    pub second: SecondPacket,
    /// Whether the agent has been away for longer than its timeout.
    pub is_agent_away: bool,
    counts: BTreeMap<&'static str, u64>,
    flows: HashMap<DataPathKey, DataPathFlow>,
    fragments: HashMap<FragmentKey, (usize, u32)>,
    copy: Option<DataPathCopy>,
}

impl DataPath {
    /// The data path of an edge without flows. All slots have the first string.
    pub fn new(
        strings: Vec<DataPathString>,
        default_side: DestinationSide,
        policy: Option<CachePolicy>,
    ) -> Self {
        Self {
            strings,
            slots: Box::new([0; SLOTS]),
            subnets: Vec::new(),
            default_side,
            policy,
            second: SecondPacket::default(),
            is_agent_away: false,
            counts: BTreeMap::new(),
            flows: HashMap::new(),
            fragments: HashMap::new(),
            copy: None,
        }
    }

    /// The counter with this name. The names are those of `EdgeWire::counters`. The number of measured handshakes is `handshakes`.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Number of flows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Moves the string's flows that have an earlier generation. Returns the number of moved flows.
    pub fn sweep(&mut self, string: usize) -> u64 {
        let mut moved = 0;
        for flow in self.flows.values_mut() {
            if flow.string == string && flow.generation != self.strings[string].generation {
                flow.string = self.slots[flow.slot].into();
                flow.generation = self.strings[flow.string].generation;
                moved += 1;
            }
        }
        moved
    }

    /// An IP packet comes in by a port. The packet is not yet cut into segments with `gso_size` bytes of payload each (0: the packet is one
    /// segment). Returns the verdict, and the copy that is made for the cache.
    pub fn handle(
        &mut self,
        port: DataPathPort,
        packet: &[u8],
        gso_size: u16,
    ) -> (DataPathVerdict, Option<DataPathCopy>) {
        self.copy = None;
        let way = match port {
            DataPathPort::Outside => EdgeDirection::Entering,
            DataPathPort::String(_) => EdgeDirection::Leaving,
        };
        if is_ip_sum_wrong(packet) {
            return (self.pass("malformed"), None);
        }
        let verdict = match (EdgePacket::read(packet, way, gso_size), port) {
            (None, _) => self.pass("passed_to_stack"),
            (Some(read), DataPathPort::Outside) => self.enter(&read, packet, gso_size),
            (Some(read), DataPathPort::String(from)) => self.leave(&read, packet, gso_size, from),
        };
        (verdict, self.copy)
    }

    fn add(&mut self, name: &'static str, amount: u64) {
        *self.counts.entry(name).or_default() += amount;
    }

    fn pass(&mut self, why: &'static str) -> DataPathVerdict {
        self.add(why, 1);
        DataPathVerdict::Stack
    }

    fn steering(&self, string: usize) -> StringSteering {
        match self.strings[string].steering {
            StringSteering::Held if self.is_agent_away => StringSteering::Down,
            steering => steering,
        }
    }

    fn side(&self, read: &EdgePacket) -> DestinationSide {
        let address = u128::from_be_bytes(read.ip.destination);
        let contains = |&&(subnet, prefix, _): &&(u128, u32, DestinationSide)| {
            (address ^ subnet)
                .checked_shr(128 - prefix)
                .is_none_or(|rest| rest == 0)
        };
        let longest = self
            .subnets
            .iter()
            .filter(contains)
            .max_by_key(|(_, prefix, _)| *prefix);
        longest.map_or(self.default_side, |(_, _, side)| *side)
    }

    /// Counts the packet's traffic: packets and bytes, as on the cable.
    fn count_traffic(
        &mut self,
        read: &EdgePacket,
        packet: &[u8],
        gso_size: u16,
        names: (&'static str, &'static str),
    ) {
        let (size, len) = (usize::from(gso_size), packet.len() as u64 + ETHERNET);
        let is_cut = size > 0 && read.payload > size;
        // Counts headers as payload on purpose: `EdgeWire::rehearse`, used by the test in the crate `linux`, computes the kernel's
        // `gso_segs` in this way.
        let packets = if is_cut {
            (packet.len() + 14).div_ceil(size) as u64
        } else {
            1
        };
        let headers = (read.end - read.payload) as u64 + ETHERNET;
        self.add(names.0, packets);
        self.add(names.1, len + (packets - 1) * headers);
    }

    fn count_kind(&mut self, read: &EdgePacket) {
        self.add("malformed", read.is_malformed.into());
        self.add("fragments", read.ip.is_fragment.into());
        self.add("icmp_errors", (read.kind == PacketKind::Error).into());
    }

    fn enter(&mut self, read: &EdgePacket, packet: &[u8], gso_size: u16) -> DataPathVerdict {
        let looks_up = read.has_flow() || read.kind == PacketKind::Error;
        let known = looks_up && self.flows.contains_key(&read.key);
        if !known && (!read.is_routable() || self.side(read) != DestinationSide::Inside) {
            return self.pass("passed_to_stack");
        }
        if read.hops <= 1 {
            return self.pass("ttl_expired");
        }
        let segment = read.segment(packet);
        if read.has_flow() && (!known || self.is_new_connection(read, segment)) {
            let slot = read.key.slot();
            self.begin_flow(read, self.slots[slot].into());
        }
        let string = if known || read.has_flow() {
            self.string_of(&read.key)
        } else {
            self.string_without_flow(read)
        };
        self.count_kind(read);
        if read.ip.is_fragment && read.kind == PacketKind::Ports {
            let value = (string, self.strings[string].generation);
            self.fragments.insert(fragment_key(read), value);
        }
        if let Some(segment) = segment {
            self.note_handshake(read, packet, segment);
            self.copy_if_needed(read, segment, gso_size);
        }
        if self.steering(string) == StringSteering::Held {
            self.add("dropped_held", 1);
            return DataPathVerdict::Dropped;
        }
        let has_next_hop = if read.ip.is_v6 {
            self.strings[string].has_v6
        } else {
            self.strings[string].has_v4
        };
        if !has_next_hop {
            return self.pass("no_next_hop");
        }
        self.count_traffic(read, packet, gso_size, ("entering_packets", "entering_bytes"));
        let mut sent = packet.to_vec();
        read.take_hop(&mut sent);
        DataPathVerdict::Sent(DataPathPort::String(string), sent)
    }

    fn leave(&mut self, read: &EdgePacket, packet: &[u8], gso_size: u16, from: usize) -> DataPathVerdict {
        let known = read.has_flow() && self.flows.contains_key(&read.key);
        if !known && (!read.is_routable() || self.side(read) != DestinationSide::Outside) {
            return self.pass("passed_to_stack");
        }
        if read.hops <= 1 {
            return self.pass("ttl_expired");
        }
        self.count_kind(read);
        if read.is_unreachable && self.flows.contains_key(&read.key) {
            self.add("withheld", 1);
            return DataPathVerdict::Dropped;
        }
        let segment = read.segment(packet);
        if read.has_flow() {
            if !known || self.is_new_connection(read, segment) {
                self.begin_flow(read, from);
            } else {
                self.learn(&read.key, from);
            }
        }
        let mut sent = packet.to_vec();
        if let Some(segment) = segment {
            self.note_handshake(read, packet, segment);
            self.cap_window(read, segment, &mut sent);
            self.copy_if_needed(read, segment, gso_size);
        }
        self.count_traffic(read, packet, gso_size, ("leaving_packets", "leaving_bytes"));
        read.take_hop(&mut sent);
        DataPathVerdict::Sent(DataPathPort::Outside, sent)
    }

    fn flow(&mut self, key: &DataPathKey) -> &mut DataPathFlow {
        self.flows.get_mut(key).expect("the caller has looked it up")
    }

    /// Whether this packet is the SYN of a new connection, and not of the connection that the flow has so far.
    fn is_new_connection(&mut self, read: &EdgePacket, segment: Option<EdgeSegment>) -> bool {
        let opens = |segment: &EdgeSegment| segment.syn && segment.ack.is_none() && !segment.rst;
        let Some(syn) = segment.filter(opens) else {
            return false;
        };
        self.flow(&read.key).opener != Some((read.way, syn.seq))
    }

    fn begin_flow(&mut self, read: &EdgePacket, string: usize) {
        self.add("new_flows", 1);
        let fresh = DataPathFlow {
            slot: read.key.slot(),
            string,
            generation: self.strings[string].generation,
            is_learned: read.way == EdgeDirection::Leaving,
            ..DataPathFlow::default()
        };
        // The cache still holds packets of the earlier connection.
        let entry = self.flows.entry(read.key).or_insert(fresh);
        *entry = DataPathFlow {
            caching_epoch: entry.caching_epoch,
            mirror: entry.mirror,
            ..fresh
        };
    }

    /// Returns the string for an entering packet of a known flow. Moves the flow first if its string has failed.
    fn string_of(&mut self, key: &DataPathKey) -> usize {
        let DataPathFlow {
            string,
            generation,
            slot,
            ..
        } = self.flows[key];
        if generation == self.strings[string].generation && self.steering(string) != StringSteering::Down {
            return string;
        }
        let to = usize::from(self.slots[slot]);
        let new_generation = self.strings[to].generation;
        let flow = self.flow(key);
        (flow.string, flow.generation) = (to, new_generation);
        self.add("moved", ((string, generation) != (to, new_generation)).into());
        to
    }

    fn string_without_flow(&self, read: &EdgePacket) -> usize {
        let first = self.fragments.get(&fragment_key(read));
        if let Some(&(string, generation)) = first.filter(|_| read.kind == PacketKind::Fragment)
            && generation == self.strings[string].generation
            && self.steering(string) != StringSteering::Down
        {
            return string;
        }
        self.slots[read.key.slot()].into()
    }

    /// A packet of a known flow leaves from the string `from`.
    fn learn(&mut self, key: &DataPathKey, from: usize) {
        let string = self.strings[from];
        let flow = self.flow(key);
        if (flow.string, flow.generation) == (from, string.generation) {
            return;
        }
        if !flow.is_learned {
            let is_other = flow.string != from;
            self.add("other_string", is_other.into());
        } else if string.steering == StringSteering::Up {
            (flow.string, flow.generation) = (from, string.generation);
        }
    }

    fn note_handshake(&mut self, read: &EdgePacket, packet: &[u8], segment: EdgeSegment) {
        let flow = self.flows.get_mut(&read.key).expect("it was just found or made");
        if segment.rst {
            return;
        }
        let is_opener = flow.opener.is_some_and(|(way, _)| way == read.way);
        match (segment.syn, segment.ack) {
            (true, None) if flow.opener.is_some() => flow.is_measuring = false,
            (true, None) => {
                flow.opener = Some((read.way, segment.seq));
                flow.is_measuring = true;
                flow.note_scale(read, packet);
            }
            (true, Some(ack)) => {
                let answers = flow.opener.is_some_and(|(_, isn)| ack == isn + 1);
                if is_opener || !answers {
                    return;
                }
                flow.is_measuring &= !flow.is_answered;
                flow.is_answered = true;
                flow.note_scale(read, packet);
            }
            (false, Some(_)) if flow.is_measuring && is_opener && flow.is_answered => {
                flow.is_measuring = false;
                self.add("handshakes", 1);
            }
            _ => {}
        }
    }

    fn cap_window(&mut self, read: &EdgePacket, segment: EdgeSegment, packet: &mut [u8]) {
        let flow = self.flows[&read.key];
        let cap = self.strings[flow.string].cap;
        if cap == 0 || segment.ack.is_none() || segment.syn || segment.rst || self.is_agent_away {
            return;
        }
        if flow.opener.is_none() || !flow.is_answered {
            self.add("uncapped_flows", (!flow.is_uncapped).into());
            self.flow(&read.key).is_uncapped = true;
            return;
        }
        let scale = flow.near_scale.and(flow.far_scale).unwrap_or(0);
        if read.limit_window(packet, capped_field(cap, scale)) {
            self.add("capped", 1);
        }
    }

    fn copy_if_needed(&mut self, read: &EdgePacket, segment: EdgeSegment, gso_size: u16) {
        let string = self.flows[&read.key].string;
        let epoch = self.strings[string].caching_epoch;
        let Some(policy) = self.policy.filter(|_| epoch != 0) else {
            return;
        };
        let copies_all = self.strings[string].copies_entering && read.way == EdgeDirection::Entering;
        let holds_whole = policy == CachePolicy::All && read.way == EdgeDirection::Entering;
        let size = usize::from(gso_size);
        let is_cut = size > 0 && read.payload > size && !holds_whole;
        let first = EdgeSegment {
            len: if is_cut { gso_size.into() } else { segment.len },
            fin: segment.fin && !is_cut,
            ..segment
        };
        let second = self.second;
        let flow = self.flow(&read.key);
        let mut mirror = if flow.caching_epoch == epoch {
            flow.mirror
        } else {
            CacheMirror::default()
        };
        if mirror.on_packet(read.way, &first, policy, second) || copies_all {
            (flow.caching_epoch, flow.mirror) = (epoch, mirror);
            let payload = if copies_all { segment.len } else { first.len };
            self.copy = Some(DataPathCopy {
                string,
                way: read.way,
                len: read.end - read.payload + payload as usize,
            });
            self.add("copied", 1);
        }
    }
}

impl DataPathFlow {
    fn note_scale(&mut self, read: &EdgePacket, packet: &[u8]) {
        let scale = read.window_scale(packet);
        match read.way {
            EdgeDirection::Entering => self.near_scale = scale,
            EdgeDirection::Leaving => self.far_scale = scale,
        }
    }
}

fn fragment_key(read: &EdgePacket) -> FragmentKey {
    (
        read.ip.source,
        read.ip.destination,
        read.fragment_id,
        read.ip.protocol,
    )
}
