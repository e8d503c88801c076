//! The work of `bpf/steadfast.bpf.c` on a simulated node, except for the egress guard, which is `Machine::speak`. The
//! wire obeys the gate, logs each packet before it releases the packet, and limits windows to caps.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use proto::action::Gate;
use proto::connection::{Cap, WindowPromise};
use proto::packet::{Checksum, LOGGED_BIT, Segment};
use proto::table::Direction;

use super::commit::is_cut;
use super::defect::Defect;

/// A packet in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedPacket {
    /// When the packet was logged.
    pub at: Instant,
    pub direction: Direction,
    pub packet: Vec<u8>,
}

/// A bounded log that one reader empties from the front.
#[derive(Debug)]
struct SimRing {
    records: VecDeque<LoggedPacket>,
    bytes: usize,
    capacity: usize,
    /// Number of records that were ever read.
    read: u64,
}

/// A position in the log: for each ring, the number of records that had been added at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogEnd {
    connections: u64,
    opening: u64,
}

impl SimRing {
    const fn new(capacity: usize) -> Self {
        Self {
            records: VecDeque::new(),
            bytes: 0,
            capacity,
            read: 0,
        }
    }

    fn end(&self) -> u64 {
        self.read + self.records.len() as u64
    }

    /// Adds a record. Returns false if there is no room for it.
    fn push(&mut self, record: LoggedPacket) -> bool {
        let bytes = size_in_ring(&record);
        let fits = self.bytes + bytes <= self.capacity;
        if fits {
            self.bytes += bytes;
            self.records.push_back(record);
        }
        fits
    }

    fn pop_before(&mut self, end: u64) -> Option<LoggedPacket> {
        if self.read >= end {
            return None;
        }
        let record = self.records.pop_front()?;
        self.read += 1;
        self.bytes -= size_in_ring(&record);
        Some(record)
    }
}

/// Size of a record in the ring: the ring's header, the record's header and the packet, rounded up to 8 bytes.
fn size_in_ring(record: &LoggedPacket) -> usize {
    (8 + 16 + record.packet.len()).next_multiple_of(8)
}

/// Fate of a packet that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Logged, and sent on to the other side. A reversed connection's packet goes back to the backup.
    Released,
    /// Logged by the peer, as a reversed connection's packet, and sent on to the client.
    Passed,
    /// Goes to the local stack.
    Local,
    /// Sent on to the other side without being logged, because the log is full and the agent has been away for too long.
    Unlogged,
    /// A packet that reached the primary past the wire. It is sent to the wire. Or a packet that a reversed connection's wire, the primary,
    /// has to log first.
    Redirected,
    /// Logged, and sent to neither side.
    Held,
    /// A client's packet for this annex, of which this node, a primary, carries the connection.
    CarriedIn(usize),
    /// A packet of this annex, of which this node, a primary, carries the connection.
    CarriedOut(usize),
    /// Dropped.
    Dropped,
}

/// Sets or removes the mark of a packet that a reversed connection's wire has logged and sends back (`bpf/returned.h`).
pub(super) fn mark_returned(packet: &mut [u8], is_marked: bool) {
    if let Some(offset) = offset_byte(packet) {
        packet[offset] = packet[offset] & !LOGGED_BIT | if is_marked { LOGGED_BIT } else { 0 };
    }
}

/// Position of the byte with TCP's data offset and reserved bits. `None`: the packet is too short.
fn offset_byte(packet: &[u8]) -> Option<usize> {
    let tcp = match packet.first()? >> 4 {
        4 => usize::from(packet[0] & 15) * 4,
        _ => IPV6_HEADER,
    };
    let at = tcp + DATA_OFFSET;
    (at < packet.len()).then_some(at)
}

/// Length of an IPv6 header, in bytes.
const IPV6_HEADER: usize = 40;
/// Position of the data offset in a TCP header.
const DATA_OFFSET: usize = 12;

/// The side from which a packet comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireSide {
    Clients,
    Peer,
    /// The annex with this number.
    Annex(usize),
}

/// State of a connection that is no longer the primary's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldState {
    /// Moves here from a living node, or stays with it.
    Reserved,
    Undecided,
    Decided,
    /// Reversed: lives here, on the backup. Its segments pass the primary first.
    ViaPeer,
    /// Reversed: lives on the backup. This node, the primary, logs its segments.
    Logged,
    /// Moves to the other node, which has not spoken yet. This node's socket is silent, and may go on.
    Frozen,
    /// On the backup: was `Frozen` until the primary spoke. On the primary, it becomes `Logged`.
    Left,
    /// Lives on the annex with this number.
    Annex(usize),
    /// As `Reserved`, of a connection that lives on an annex.
    Leaving(usize),
}

impl HeldState {
    /// Whether a connection lives on the other node, moves here, or is being decided, on a node whose other connections are all local.
    const fn is_elsewhere(self) -> bool {
        match self {
            Self::Reserved | Self::Undecided | Self::Logged | Self::Frozen | Self::Leaving(_) => true,
            Self::Decided | Self::ViaPeer | Self::Annex(_) | Self::Left => false,
        }
    }

    /// Whether this node's socket is silent, because the connection moves to the other node.
    const fn is_silent(self) -> bool {
        matches!(self, Self::Frozen | Self::Left)
    }

    /// Whether a connection lives on the backup, or moves there, and this node, the primary, logs its segments.
    const fn lives_there(self) -> bool {
        matches!(self, Self::Logged | Self::Frozen)
    }
}

/// The wire of one service, with the state that the guard reads.
#[derive(Debug)]
pub(super) struct SimWire {
    vip: SocketAddr,
    gate: Gate,
    epoch: u64,
    /// Whether the agent has said which connections are being decided.
    is_told: bool,
    /// The clients whose connections are being decided, and the clients whose connections stay local.
    held: BTreeMap<SocketAddr, HeldState>,
    /// Clients whose connections were frozen when the other node spoke.
    spoken: Vec<SocketAddr>,
    /// The clients whose windows are limited by a cap.
    capped: BTreeMap<SocketAddr, (Cap, WindowPromise)>,
    connections: SimRing,
    opening: SimRing,
    /// When the agent last checked in.
    agent_seen: Instant,
    /// Time that the agent may stay away before a full ring lets packets pass unlogged.
    agent_timeout: Duration,
    /// Whether a full ring lets packets pass unlogged in any case.
    pub(super) is_immediate: bool,
    unlogged: u64,
    /// Until this time, no payload and no FIN of a client reaches the primary.
    hold_until: Option<Instant>,
    defect: Option<Defect>,
}

impl SimWire {
    /// A wire for the service at `vip`. Its gate is off; the rings hold `ring_bytes` and `opening_bytes`.
    pub const fn new(
        vip: SocketAddr,
        ring_bytes: usize,
        opening_bytes: usize,
        agent_timeout: Duration,
        defect: Option<Defect>,
    ) -> Self {
        Self {
            agent_seen: Instant::ZERO,
            agent_timeout,
            is_immediate: false,
            unlogged: 0,
            hold_until: None,
            defect,
            vip,
            gate: Gate::Off,
            epoch: 0,
            is_told: false,
            held: BTreeMap::new(),
            spoken: Vec::new(),
            capped: BTreeMap::new(),
            connections: SimRing::new(ring_bytes),
            opening: SimRing::new(opening_bytes),
        }
    }

    pub fn set_gate(&mut self, gate: Gate, epoch: u64) {
        self.epoch = epoch;
        if gate == self.gate {
            return;
        }
        let before = std::mem::replace(&mut self.gate, gate);
        self.is_told = false;
        if gate == Gate::Wire {
            self.held.clear();
        } else if before == Gate::Takeover {
            self.end_holds();
        }
    }

    /// Forgets all clients except those whose connections live on annexes.
    pub fn end_holds(&mut self) {
        let is_annexed = |held: &mut HeldState| matches!(held, HeldState::Annex(_) | HeldState::Leaving(_));
        self.held.retain(|_, held| is_annexed(held));
    }

    /// Marks all connections as decided, because an agent that died cannot decide them any more.
    pub fn settle_for_the_dead(&mut self) {
        if self.gate == Gate::Primary {
            let reserved = self
                .held
                .values_mut()
                .filter(|held| **held == HeldState::Reserved);
            reserved.for_each(|held| *held = HeldState::Logged); // the backup still has them
        }
        self.held.retain(|_, held| *held != HeldState::Reserved); // the primary still has them
        for held in self.held.values_mut() {
            if let HeldState::Leaving(annex) = *held {
                *held = HeldState::Annex(annex);
            }
        }
        self.settle();
        self.is_told |= self.gate == Gate::Takeover;
    }

    /// The gate and its epoch, which the next agent finds.
    pub const fn gate(&self) -> (Gate, u64) {
        (self.gate, self.epoch)
    }

    /// Notes that the connections of `clients` are being decided.
    pub fn hold(&mut self, clients: &[SocketAddr]) {
        self.held
            .extend(clients.iter().map(|&client| (client, HeldState::Undecided)));
        self.is_told = true;
    }

    /// Notes that the connections of `clients` are to move here.
    pub fn reserve(&mut self, clients: &[SocketAddr]) {
        for &client in clients {
            let leaves = self.annex_of(client).map(HeldState::Leaving);
            self.held.insert(client, leaves.unwrap_or(HeldState::Reserved));
        }
    }

    /// From now on the packets of this client's connection go to this annex, or to the primary (`None`), and only this node's packets pass.
    pub fn guide(&mut self, client: SocketAddr, annex: Option<usize>) {
        match annex {
            Some(annex) => self.held.insert(client, HeldState::Annex(annex)),
            None => self.held.remove(&client),
        };
    }

    /// The annex on which this client's connection lives, even if it is to leave.
    pub fn annex_of(&self, client: SocketAddr) -> Option<usize> {
        match self.held.get(&client)? {
            HeldState::Annex(annex) | HeldState::Leaving(annex) => Some(*annex),
            HeldState::Reserved
            | HeldState::Undecided
            | HeldState::Decided
            | HeldState::ViaPeer
            | HeldState::Logged
            | HeldState::Frozen
            | HeldState::Left => None,
        }
    }

    /// The clients whose connections live on annexes, each with the annex's number.
    pub fn annexed(&self) -> Vec<(SocketAddr, usize)> {
        let clients = self.held.keys();
        clients
            .filter_map(|&client| Some((client, self.annex_of(client)?)))
            .collect()
    }

    /// Notes that this client's connection stays with the other node.
    pub fn give_back(&mut self, client: SocketAddr) {
        if self.gate == Gate::Primary {
            self.held.insert(client, HeldState::Logged);
        } else {
            self.held.remove(&client);
        }
    }

    /// Notes that the connections of `clients` move to the other node, and that this node logs them. Forgets the `ended` ones.
    pub fn freeze(&mut self, clients: &[SocketAddr], ended: &[SocketAddr]) {
        self.held.retain(|client, _| !ended.contains(client));
        self.held
            .extend(clients.iter().map(|&client| (client, HeldState::Frozen)));
    }

    /// Lets the frozen socket of this client's connection go on, if the backup has not spoken. Returns whether it goes on.
    pub fn thaw(&mut self, client: SocketAddr) -> bool {
        let is_frozen = self.held.get(&client) == Some(&HeldState::Frozen);
        if is_frozen && self.gate == Gate::Wire {
            self.held.insert(client, HeldState::ViaPeer);
        } else if is_frozen {
            self.held.remove(&client);
        }
        is_frozen
    }

    /// Whether a connection that has moved is this node's, if it has a socket.
    pub fn has_moved_here(&self, client: SocketAddr) -> bool {
        let held = self.held.get(&client);
        match self.gate {
            Gate::Wire => held == Some(&HeldState::ViaPeer),
            _ => !matches!(
                held,
                Some(HeldState::Logged | HeldState::Frozen | HeldState::Reserved)
            ),
        }
    }

    /// The clients on whose connections the other node has spoken since they were frozen here.
    pub fn left(&self) -> Vec<SocketAddr> {
        self.held_as(&[HeldState::Logged, HeldState::Left])
    }

    /// The other node speaks on a connection that moves there, or the client begins another one.
    fn note_speech(&mut self, client: SocketAddr) {
        let left = if self.gate == Gate::Primary {
            HeldState::Logged
        } else {
            HeldState::Left
        };
        if let Some(held) = self
            .held
            .get_mut(&client)
            .filter(|held| **held == HeldState::Frozen)
        {
            *held = left;
            self.spoken.push(client);
        }
    }

    /// The clients on whose connections the other node has spoken since the last call, so that the frozen sockets cannot go on.
    pub fn take_spoken(&mut self) -> Vec<SocketAddr> {
        std::mem::take(&mut self.spoken)
    }

    /// The clients whose connections move to the other node, which has not spoken yet.
    pub fn frozen(&self) -> Vec<SocketAddr> {
        self.held_as(&[HeldState::Frozen])
    }

    /// Notes that the connections of `clients` live here, and that the primary logs them.
    pub fn reverse(&mut self, clients: &[SocketAddr]) {
        for client in clients {
            self.held
                .entry(*client)
                .and_modify(|held| *held = HeldState::ViaPeer);
        }
    }

    /// Notes that the connections of `clients` have moved away from this node.
    pub fn release(&mut self, clients: &[SocketAddr]) {
        if matches!(self.gate, Gate::Wire | Gate::Takeover) {
            self.held.retain(|client, _| !clients.contains(client));
        }
    }

    /// The clients whose connections are here although this node is the wire, or are being decided.
    pub fn held(&self) -> Vec<SocketAddr> {
        self.held_as(&[HeldState::Undecided, HeldState::Decided, HeldState::ViaPeer])
    }

    /// The clients whose connections are here, and whose segments pass the primary.
    pub fn reversed_here(&self) -> Vec<SocketAddr> {
        self.held_as(&[HeldState::ViaPeer])
    }

    /// The clients whose connections are on the backup, and whose segments this node logs.
    pub fn reversed_there(&self) -> Vec<SocketAddr> {
        self.held_as(&[HeldState::Logged, HeldState::Frozen])
    }

    fn held_as(&self, states: &[HeldState]) -> Vec<SocketAddr> {
        let held = self.held.iter().filter(|(_, held)| states.contains(held));
        held.map(|(&client, _)| client).collect()
    }

    /// Whether the segments of this client's connection, which lives here, pass the primary.
    pub fn is_via_peer(&self, client: SocketAddr) -> bool {
        self.gate == Gate::Wire && self.held.get(&client) == Some(&HeldState::ViaPeer)
    }

    /// Whether this client's connection lives on the other node, so that the local stack must not speak for it.
    pub fn is_elsewhere(&self, client: SocketAddr) -> bool {
        let held = self.held.get(&client);
        let is_elsewhere = matches!(
            held,
            Some(HeldState::Logged | HeldState::Reserved | HeldState::Annex(_))
        );
        is_elsewhere && self.gate != Gate::Wire
    }

    /// Whether this node's socket of the client's connection is silent, because the connection moves to the other node.
    pub fn is_silent(&self, client: SocketAddr) -> bool {
        self.held.get(&client).is_some_and(|held| held.is_silent())
    }

    /// Limits a client's window to `cap` from now on. With `None`, ends the limit.
    pub fn cap(&mut self, client: SocketAddr, cap: Option<Cap>) {
        match (cap, self.capped.get_mut(&client)) {
            (Some(cap), Some((known, _))) => *known = cap,
            (Some(cap), None) => drop(self.capped.insert(client, (cap, WindowPromise::new(&cap)))),
            (None, _) => drop(self.capped.remove(&client)),
        }
    }

    /// Forgets all caps, because a new agent knows none of them.
    pub fn forget_caps(&mut self) {
        self.capped.clear();
    }

    /// Returns a packet from the VIP as the client gets it: with the window limited to the client's cap.
    pub fn withhold(&mut self, packet: Vec<u8>) -> Vec<u8> {
        let Ok(mut segment) = Segment::parse(&packet, Checksum::Trusted) else {
            return packet;
        };
        let client = segment.destination;
        if segment.flags.syn {
            self.capped.remove(&client); // the cap was for an earlier connection
        }
        let Some((cap, promise)) = self.capped.get_mut(&client) else {
            return packet;
        };
        let window = promise.pass(cap, segment.ack, segment.window);
        if window == segment.window {
            return packet;
        }
        segment.window = window;
        segment.emit()
    }

    /// Whether a packet is a bare acknowledgement to a client whose window is capped.
    pub fn is_update(&self, packet: &[u8]) -> bool {
        Segment::parse(packet, Checksum::Trusted)
            .is_ok_and(|segment| segment.seq_len() == 0 && self.capped.contains_key(&segment.destination))
    }

    /// Whether any connections are being decided.
    pub fn is_deciding(&self) -> bool {
        self.held.values().any(|held| *held == HeldState::Undecided)
    }

    /// Notes that the connections of all held clients are decided. On a node whose other connections are all local, they are like these.
    pub fn settle(&mut self) {
        if matches!(self.gate, Gate::Primary | Gate::Sole) {
            self.held.retain(|_, held| *held != HeldState::Undecided);
        }
        let undecided = self
            .held
            .values_mut()
            .filter(|held| **held == HeldState::Undecided);
        undecided.for_each(|held| *held = HeldState::Decided);
    }

    /// Holds back clients' input until `until`. With `None`, ends the hold.
    pub const fn hold_input(&mut self, until: Option<Instant>) {
        self.hold_until = until;
    }

    /// Notes that the agent runs.
    pub const fn check_in(&mut self, now: Instant) {
        self.agent_seen = now;
    }

    /// Returns the number of packets that passed unlogged while the agent was away, and resets this count.
    pub fn take_unlogged(&mut self) -> u64 {
        std::mem::take(&mut self.unlogged)
    }

    /// When the agent last checked in.
    pub const fn agent_seen(&self) -> Instant {
        self.agent_seen
    }

    pub fn is_empty(&self) -> bool {
        self.connections.records.is_empty() && self.opening.records.is_empty()
    }

    /// The current end of the log.
    pub fn end(&self) -> LogEnd {
        LogEnd {
            connections: self.connections.end(),
            opening: self.opening.end(),
        }
    }

    /// The next record before `end`, SYNs first.
    pub fn read(&mut self, end: LogEnd) -> Option<LoggedPacket> {
        self.opening
            .pop_before(end.opening)
            .or_else(|| self.connections.pop_before(end.connections))
    }

    /// Number of unread records before `end`.
    pub fn unread(&self, end: LogEnd) -> u64 {
        end.connections.saturating_sub(self.connections.read) + end.opening.saturating_sub(self.opening.read)
    }

    /// Handles an incoming packet. `is_returned`: the peer has logged it, as a reversed connection's wire. `is_local` tells whether the local stack has a socket that may take packets of a
    /// client's connection.
    pub fn on_packet(
        &mut self,
        now: Instant,
        side: WireSide,
        packet: &[u8],
        is_returned: bool,
        is_local: impl Fn(SocketAddr) -> bool,
    ) -> Fate {
        let Ok(segment) = Segment::parse(packet, Checksum::Trusted) else {
            return Fate::Dropped;
        };
        let direction = if segment.destination == self.vip {
            Direction::In
        } else if segment.source == self.vip {
            Direction::Out
        } else {
            return Fate::Local;
        };
        let client = match direction {
            Direction::In => segment.source,
            Direction::Out => segment.destination,
        };
        let opens = segment.flags.syn;
        if let Some(HeldState::Annex(annex)) = self.held.get(&client).copied() {
            match self.gate {
                Gate::Wire => return self.log_annexed(now, (side, annex), direction, opens, packet),
                Gate::Primary | Gate::Sole if opens => drop(self.held.remove(&client)),
                Gate::Primary | Gate::Sole => return self.carry_annexed((side, annex), direction),
                Gate::Off | Gate::Takeover | Gate::Mute => {}
            }
        }
        let held = self.held.get(&client).copied();
        match (self.gate, direction) {
            (Gate::Primary, _) if held.is_some_and(HeldState::is_elsewhere) => {
                let from = (side, is_returned);
                self.reach_reversed(now, from, (client, opens), direction, packet, is_local)
            }
            (Gate::Sole, Direction::In) if held.is_some_and(HeldState::is_elsewhere) => {
                self.take(now, client, opens, packet, is_local(client))
            }
            (Gate::Wire, Direction::Out) if held == Some(HeldState::ViaPeer) => {
                let is_logged = side == WireSide::Peer && is_returned;
                if is_logged { Fate::Passed } else { Fate::Dropped }
            }
            (Gate::Wire, Direction::In) if held == Some(HeldState::ViaPeer) && !opens => match side {
                WireSide::Peer if is_returned => self.take(now, client, opens, packet, is_local(client)),
                WireSide::Peer | WireSide::Clients => Fate::Redirected,
                WireSide::Annex(_) => Fate::Dropped,
            },
            (Gate::Primary, Direction::In) if side == WireSide::Clients => Fate::Redirected,
            (Gate::Off, _) | (Gate::Primary | Gate::Sole, Direction::In) => Fate::Local,
            (Gate::Mute, _) | (Gate::Primary | Gate::Takeover | Gate::Sole, Direction::Out) => Fate::Dropped,
            (Gate::Wire, _) if held.is_some_and(HeldState::is_silent) => {
                self.log_moving(now, side, (client, opens), direction, packet)
            }
            (Gate::Wire, Direction::Out) if side != WireSide::Peer || self.held.contains_key(&client) => {
                Fate::Dropped
            }
            (Gate::Takeover, Direction::In) => self.take(now, client, opens, packet, is_local(client)),
            (Gate::Wire, Direction::In) if self.held.contains_key(&client) => {
                let is_local = is_local(client);
                if opens && !is_local && !self.held[&client].is_elsewhere() {
                    self.held.remove(&client); // the old connection is over, and this SYN opens a new one
                    return self.log(now, direction, opens, packet, Fate::Released);
                }
                self.take(now, client, opens, packet, is_local)
            }
            (Gate::Wire, Direction::In)
                if self.hold_until.is_some_and(|until| now < until)
                    && (segment.flags.fin || !segment.payload.is_empty()) =>
            {
                Fate::Dropped
            }
            (Gate::Wire, _) => self.log(now, direction, opens, packet, Fate::Released),
        }
    }

    /// Handles a packet of a connection that moves back to the primary.
    fn log_moving(
        &mut self,
        now: Instant,
        side: WireSide,
        (client, opens): (SocketAddr, bool),
        direction: Direction,
        packet: &[u8],
    ) -> Fate {
        if direction == Direction::Out && side != WireSide::Peer {
            return Fate::Dropped;
        }
        if direction == Direction::Out || opens {
            self.note_speech(client);
        }
        self.log(now, direction, opens, packet, Fate::Released)
    }

    /// Handles a packet of a connection that lives on an annex, on its wire.
    fn log_annexed(
        &mut self,
        now: Instant,
        (side, annex): (WireSide, usize),
        direction: Direction,
        opens: bool,
        packet: &[u8],
    ) -> Fate {
        match (direction, side) {
            (Direction::Out, _) if side != WireSide::Annex(annex) => Fate::Dropped,
            (Direction::In, WireSide::Annex(_)) => Fate::Dropped,
            (Direction::In | Direction::Out, _) => self.log(now, direction, opens, packet, Fate::Released),
        }
    }

    /// Handles a packet of a connection that lives on an annex, on a primary whose wire does not pass the annex's packets
    /// (`carry_annexed` in `bpf/steadfast.bpf.c`).
    fn carry_annexed(&self, (side, annex): (WireSide, usize), direction: Direction) -> Fate {
        match (direction, side) {
            (Direction::Out, _) if side == WireSide::Annex(annex) => Fate::CarriedOut(annex),
            (Direction::Out, _) | (Direction::In, WireSide::Annex(_)) => Fate::Dropped,
            (Direction::In, WireSide::Clients) if self.gate == Gate::Primary => Fate::Redirected,
            (Direction::In, WireSide::Clients | WireSide::Peer) => Fate::CarriedIn(annex),
        }
    }

    /// Handles a packet that reaches the primary, of a connection that lives on the backup, or moves from there. A SYN that the backup sends
    /// here begins a new connection.
    fn reach_reversed(
        &mut self,
        now: Instant,
        (side, is_returned): (WireSide, bool),
        (client, opens): (SocketAddr, bool),
        direction: Direction,
        packet: &[u8],
        is_local: impl Fn(SocketAddr) -> bool,
    ) -> Fate {
        let held = self.held.get(&client).copied();
        let is_logged = held.is_some_and(HeldState::lives_there);
        match (direction, side) {
            (Direction::Out, WireSide::Peer) if is_logged => {
                self.note_speech(client);
                self.log(now, direction, opens, packet, Fate::Released)
            }
            (Direction::Out, _) => Fate::Dropped,
            (Direction::In, WireSide::Clients) if is_logged && opens => Fate::Redirected,
            // A socket of before the move: the agent lets it go on, or destroys it.
            (Direction::In, WireSide::Peer) if is_logged && (opens || is_returned) && is_local(client) => {
                Fate::Dropped
            }
            (Direction::In, WireSide::Peer) if is_logged && opens => {
                self.log(now, direction, opens, packet, Fate::Held); // the agent forgets the old connection
                self.held.remove(&client);
                Fate::Local
            }
            // The backup does not have the connection any more.
            (Direction::In, WireSide::Peer) if is_logged && is_returned => {
                let mut packet = packet.to_vec();
                mark_returned(&mut packet, true); // the agent learns it from the mark
                let fate = self.log(now, direction, opens, &packet, Fate::Local);
                if fate == Fate::Local {
                    self.held.remove(&client);
                }
                fate
            }
            (Direction::In, _) if is_logged => self.log(now, direction, opens, packet, Fate::Released),
            (Direction::In, _) => self.take(now, client, opens, packet, is_local(client)),
        }
    }

    /// Handles a client's packet while the client's connection is held.
    fn take(&mut self, now: Instant, client: SocketAddr, opens: bool, packet: &[u8], is_local: bool) -> Fate {
        if is_local {
            return Fate::Local;
        }
        if !opens {
            return self.log(now, Direction::In, false, packet, Fate::Held);
        }
        match self.held.get(&client) {
            // The local listener's SYN-ACK would contradict what the old primary has sent on the connection that is being decided.
            Some(
                HeldState::Undecided
                | HeldState::Reserved
                | HeldState::Logged
                | HeldState::Frozen
                | HeldState::Leaving(_),
            ) => Fate::Dropped,
            None if !self.is_told => Fate::Dropped,
            Some(HeldState::Decided | HeldState::ViaPeer | HeldState::Annex(_) | HeldState::Left) | None => {
                Fate::Local
            }
        }
    }

    fn log(&mut self, at: Instant, direction: Direction, opens: bool, packet: &[u8], fate: Fate) -> Fate {
        if self.defect == Some(Defect::ForgetSyn) && opens && fate == Fate::Released {
            return Fate::Unlogged;
        }
        let ring = if opens {
            &mut self.opening
        } else {
            &mut self.connections
        };
        if ring.push(LoggedPacket {
            at,
            direction,
            packet: packet.to_vec(),
        }) {
            return fate;
        }
        if is_cut(packet) {
            return Fate::Dropped; // what the copies say is a lower bound, so the log has no gap
        }
        let may_pass = self.is_immediate || at.since(self.agent_seen) > self.agent_timeout;
        if fate == Fate::Released && (may_pass || self.defect == Some(Defect::ReleaseUnlogged)) {
            self.unlogged += u64::from(may_pass);
            Fate::Unlogged
        } else {
            Fate::Dropped
        }
    }

    /// Whether a client's connection is being decided on this node or stays local to it. The primary has all other connections.
    pub fn holds(&self, client: SocketAddr) -> bool {
        self.held.contains_key(&client)
    }
}
