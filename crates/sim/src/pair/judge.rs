//! Checks the pair's promises on packets: at the client, and where they enter and leave the backup. The judge keeps its own
//! records and never asks the core.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proto::packet::{Checksum, Segment};
use proto::role::Role;
use proto::table::Direction;
use proto::{Instant, Seq};

use super::books::{Known, Most, Place, Voice};

/// Number of violations that are kept. The first ones tell most.
const VIOLATIONS_MAX: usize = 20;

/// Watches one service.
///
/// | promise | is broken when |
/// |---|---|
/// | input commit | an acknowledgement reaches the client for a byte that the backup has not logged |
/// | output commit | a byte reaches the client that the backup has neither logged nor said |
/// | one stream | two different bytes are said for the same place, or two ends |
/// | open commit | a SYN-ACK reaches the client though no node has its SYN |
/// | one voice | two nodes speak alone in one epoch, one speaks in an epoch before another's, or a connection's voice goes back |
/// | no step back | the survivor's acknowledgement, right edge or timestamp is behind what was released |
/// | no leap | the survivor numbers a segment beyond the output that is known |
/// | nothing asked twice | a live connection's acknowledgement is behind what was logged before its socket was ready |
#[derive(Debug)]
pub struct Judge {
    vip: SocketAddr,
    /// The world's time.
    pub(super) now: Instant,
    /// The latest epoch in which a node spoke alone, and that node.
    pub(super) alone: Option<(u64, usize)>,
    /// The epoch in which each node may speak alone now.
    pub(super) alone_now: [Option<u64>; 2],
    /// The latest epoch in which each node began to speak alone, since the other node last lost its power.
    pub(super) began: [Option<u64>; 2],
    /// Each time at which both nodes came to have the right to speak.
    pub(super) splits: Vec<Instant>,
    /// The nodes without power.
    pub(super) is_off: [bool; 2],
    /// Epochs that nodes were given for good, not only lent.
    pub(super) given: BTreeSet<(u64, usize)>,
    /// The latest epoch that each node was given for good since it has had power.
    pub(super) given_now: [Option<u64>; 2],
    /// The nodes whose agents know that they are the wire, or have become the survivor since. Only such a node can go on from its log.
    is_wire: [bool; 2],
    /// Number of clients that have not completed their handshake.
    half_open: u64,
    pub(super) flows: BTreeMap<SocketAddr, Flow>,
    violations: Vec<String>,
    /// When each violation happened.
    moments: Vec<Instant>,
    resets: Vec<(Instant, SocketAddr)>,
}

/// One connection, from its SYN on.
#[derive(Debug)]
pub(super) struct Flow {
    input_first: Seq,
    /// Sequence number of the server's first byte. Known once the client has got a SYN-ACK.
    output_first: Option<Seq>,
    /// Window scale of the server.
    shift: u8,
    input: Known,
    /// The part of `input` whose segments were in timestamp order. An older segment may have been refused (RFC 7323 §5).
    input_in_time: Known,
    latest: Option<u32>,
    output: Known,
    /// How far each node's own stack has numbered the output, including what its guard kept back.
    numbered: [u64; 2],
    released: Most,
    spoken: Most,
    /// The voice that spoke last, and the node that had spoken before in the same epoch.
    pub(super) voice: Option<Voice>,
    pub(super) silenced: Option<usize>,
    /// Bytes that were logged when the connection's socket became ready.
    logged_before_ready: u64,
    /// The node on which the connection was last restored.
    live_at: Option<usize>,
    /// A node has the SYN.
    is_opened: bool,
    /// The client has answered the SYN-ACK.
    is_established: bool,
    /// The nodes that can continue the connection: by a log from its beginning on, or by a socket.
    logs: [bool; 2],
    sockets: [bool; 2],
    /// At some time no node could continue the connection.
    is_orphaned: bool,
    /// The process that served the connection has died.
    has_died: bool,
    /// When a node had to continue the connection, there was a gap in the known output.
    had_hole: bool,
    /// The epoch and the node that speaks alone by its lease.
    pub(super) lent: Option<(u64, usize)>,
    /// The words that a node said by its lease are lost.
    pub(super) was_lent_in_vain: bool,
    /// A node spoke by a lease that its clock had outlasted, while the other one spoke.
    pub(super) was_outlasted: bool,
}

impl Flow {
    fn new(input_first: Seq) -> Self {
        Self {
            input_first,
            output_first: None,
            shift: 0,
            input: Known::default(),
            input_in_time: Known::default(),
            latest: None,
            output: Known::default(),
            numbered: [0; 2],
            released: Most::default(),
            spoken: Most::default(),
            voice: None,
            silenced: None,
            logged_before_ready: 0,
            live_at: None,
            is_opened: false,
            is_established: false,
            logs: [false; 2],
            sockets: [false; 2],
            is_orphaned: false,
            has_died: false,
            had_hole: false,
            lent: None,
            was_lent_in_vain: false,
            was_outlasted: false,
        }
    }

    /// Whether no segment of the client with a later timestamp was seen before this one.
    fn is_in_time(&mut self, segment: &Segment<'_>) -> bool {
        let Some(value) = segment.options.timestamps.map(|timestamps| timestamps.value) else {
            return true;
        };
        let latest = self.latest.get_or_insert(value);
        let is_in_time = value.wrapping_sub(*latest).cast_signed() >= 0;
        if is_in_time {
            *latest = value;
        }
        is_in_time
    }

    /// A node has to continue the connection: a restored socket may not be able to bridge a gap in what was logged.
    pub(super) const fn look_for_hole(&mut self) {
        self.had_hole |= self.output.has_hole();
    }

    /// The words that a node said by its lease are lost. From now on the other node may contradict them.
    pub(super) const fn lose_lent(&mut self) {
        self.lent = None;
        self.was_lent_in_vain = true;
    }

    /// Notes whether no node can continue the connection. Before a SYN-ACK nothing is lost: the client begins anew.
    fn look_for_holders(&mut self, is_wire: [bool; 2]) {
        let is_held = (0..2).any(|node| self.sockets[node] || self.logs[node] && is_wire[node]);
        self.is_orphaned |= !is_held && self.output_first.is_some();
    }

    /// A node's stack numbers a segment. If the segment leaps over unknown output, returns the end of the known output.
    fn number(&mut self, node: usize, place: Place, segment: &Segment<'_>) -> Option<u64> {
        let known = self.output.end().max(self.numbered[node]);
        let at = u64::try_from(place.at).unwrap_or(0);
        if at > known {
            return Some(known);
        }
        self.numbered[node] = known.max(at + u64::from(segment.seq_len()));
        None
    }

    /// Place of a segment of the server; `None` before the client has got a SYN-ACK.
    fn place(&self, segment: &Segment<'_>) -> Option<Place> {
        Some(Place {
            at: segment.seq.distance_from(self.output_first?).into(),
            acknowledges: segment.ack.distance_from(self.input_first).into(),
        })
    }
}

impl Judge {
    /// A judge of the service at `vip`.
    pub const fn new(vip: SocketAddr) -> Self {
        Self {
            vip,
            now: Instant::ZERO,
            alone: None,
            alone_now: [None; 2],
            began: [None; 2],
            splits: Vec::new(),
            is_off: [false; 2],
            given: BTreeSet::new(),
            given_now: [None; 2],
            is_wire: [false; 2],
            half_open: 0,
            flows: BTreeMap::new(),
            violations: Vec::new(),
            moments: Vec::new(),
            resets: Vec::new(),
        }
    }

    /// The violations, in the order in which they happened.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// The same, with the time of each.
    pub fn violations_with_times(&self) -> impl Iterator<Item = (Instant, &str)> {
        let lines = self.violations.iter().map(String::as_str);
        self.moments.iter().copied().zip(lines)
    }

    /// The resets that reached clients.
    pub fn resets(&self) -> &[(Instant, SocketAddr)] {
        &self.resets
    }

    /// Records a broken promise to a client, unless what the client was told before may be contradicted.
    pub(super) fn violation(&mut self, client: SocketAddr, what: &str) {
        let may_be = |flow: &Flow| flow.was_lent_in_vain || flow.was_outlasted;
        if !self.flows.get(&client).is_some_and(may_be) {
            self.record(client, what);
        }
    }

    pub(super) fn record(&mut self, client: SocketAddr, what: &str) {
        let now = self.now;
        if self.violations.len() < VIOLATIONS_MAX {
            self.moments.push(now);
            let micros = now.as_nanos() / 1000;
            self.violations.push(format!(
                "{}.{:06} {client}: {what}",
                micros / 1_000_000,
                micros % 1_000_000
            ));
        }
    }

    /// Sets the judge's clock to the world's time.
    pub(super) const fn look_at_clock(&mut self, now: Instant) {
        self.now = now;
    }

    /// A client sends a packet.
    pub(super) fn on_sent(&mut self, now: Instant, packet: &[u8]) {
        self.now = now;
        let Some(segment) = self.parse(packet) else { return };
        if segment.flags.syn {
            let first = segment.seq + 1;
            let known = self.flows.get(&segment.source);
            if known.is_none_or(|flow| flow.input_first != first) {
                self.half_open += 1;
                self.flows.insert(segment.source, Flow::new(first));
            }
        } else if let Some(flow) = self.flows.get_mut(&segment.source)
            && !std::mem::replace(&mut flow.is_established, true)
        {
            self.half_open -= 1;
        }
    }

    /// A packet has reached a client.
    pub(super) fn on_delivered(&mut self, now: Instant, packet: &[u8]) {
        self.now = now;
        let Some(segment) = self.parse(packet) else { return };
        let client = segment.destination;
        if segment.flags.rst {
            self.resets.push((now, client));
            return;
        }
        let Some(flow) = self.flows.get_mut(&client) else {
            return;
        };
        if segment.flags.syn {
            if !flow.is_opened {
                self.violation(client, "open commit: a SYN-ACK for a SYN that no node has");
                return;
            }
            if flow.output_first.is_none() && segment.ack == flow.input_first {
                flow.output_first = Some(segment.seq + 1);
                flow.shift = segment.options.window_scale.unwrap_or(0);
                flow.look_for_holders(self.is_wire); // the SYN-ACK may have been long on its way
            }
            return;
        }
        let Some(place) = flow.place(&segment) else { return };
        let logged = flow.input.end();
        let is_committed = flow.output.has(place.at, segment.payload);
        if u64::try_from(place.acknowledges).is_ok_and(|acknowledges| acknowledges > logged) {
            let what = format!(
                "input commit: {} acknowledged, {logged} logged",
                place.acknowledges
            );
            self.violation(client, &what);
        }
        if !is_committed {
            self.violation(
                client,
                &format!("output commit: bytes at {} are not in the log", place.at),
            );
        }
    }

    /// The wire of a node has logged a packet.
    pub(super) fn on_logged(&mut self, node: usize, direction: Direction, packet: &[u8]) {
        if let Some(flow) = self.opening(direction, packet) {
            flow.is_opened = true;
            flow.logs[node] = true;
        }
        self.note(direction, packet);
    }

    /// The stack of a node that has the right to speak alone has taken a packet of a client, or a node that is no wire yet has passed it on.
    pub(super) fn on_taken(&mut self, direction: Direction, packet: &[u8]) {
        if let Some(flow) = self.opening(direction, packet) {
            flow.is_opened = true;
        }
        self.note(direction, packet);
    }

    /// A node has a socket of a client's connection, which is accepted or restored.
    pub(super) fn on_socket(&mut self, node: usize, client: SocketAddr) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.sockets[node] = true;
        }
    }

    /// A node's agent has changed its role, and knows of it.
    pub(super) const fn on_role(&mut self, node: usize, to: Role) {
        self.is_wire[node] = matches!(to, Role::Backup | Role::TakingOver | Role::Sole);
    }

    /// A node's log is gone, or has a gap.
    pub(super) fn on_log_lost(&mut self, node: usize) {
        for flow in self.flows.values_mut() {
            flow.logs[node] = false;
            flow.look_for_holders(self.is_wire);
        }
    }

    /// A node's sockets of these clients are gone.
    pub(super) fn on_sockets_lost(&mut self, node: usize, clients: &[SocketAddr]) {
        for client in clients {
            if let Some(flow) = self.flows.get_mut(client) {
                flow.sockets[node] = false;
                flow.look_for_holders(self.is_wire);
            }
        }
    }

    /// The process that served a client on a node has died.
    pub(super) fn on_process_lost(&mut self, node: usize, client: SocketAddr) {
        self.on_sockets_lost(node, &[client]);
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.has_died = true;
            flow.look_for_hole();
        }
    }

    /// The stack of a node has said something that its guard did not let out. The stack's numbers continue from there. Nobody has
    /// heard it, so the node that continues the connection may say something else.
    pub(super) fn on_muttered(&mut self, node: usize, packet: &[u8]) {
        let Some(segment) = self.parse(packet) else { return };
        if let Some(flow) = self.flows.get_mut(&segment.destination)
            && let Some(place) = flow.place(&segment)
        {
            flow.number(node, place, &segment);
        }
    }

    /// From now on a node speaks through the other node's wire, so its words may be lost before they are logged.
    pub(super) fn on_behind(&mut self, node: usize) {
        for flow in self.flows.values_mut() {
            flow.live_at = flow.live_at.filter(|at| *at != node);
        }
    }

    /// A node has lost its power.
    pub(crate) fn on_power_lost(&mut self, node: usize) {
        self.is_off[node] = true;
        (self.given_now[node], self.is_wire[node]) = (None, false);
        self.on_log_lost(node);
        let spoke = self.alone.is_some_and(|(_, who)| who == node);
        let is_lost = spoke && self.flows.values().any(|flow| flow.sockets[1 - node]);
        self.splits.extend(is_lost.then_some(self.now));
        self.alone_now[node] = None;
        self.began[1 - node] = None;
        if self.is_off[1 - node] {
            self.given.clear(); // nobody remembers these epochs
        }
        // Forgets the epoch in which the node spoke: a pair in which nobody remembers the epoch begins with a new one.
        self.alone = self.alone.filter(|(_, who)| *who != node);
        for flow in self.flows.values_mut() {
            flow.sockets[node] = false;
            flow.look_for_holders(self.is_wire);
            if flow.lent.is_some_and(|(_, who)| who == node) {
                flow.lose_lent();
            }
            flow.voice = flow.voice.filter(|voice| voice.node != node);
            flow.silenced = None;
        }
    }

    /// A node has its power again.
    pub(crate) fn on_power_back(&mut self, node: usize) {
        self.is_off[node] = false;
    }

    /// Whether at some time no node could continue a client's connection.
    pub fn is_orphaned(&self, client: SocketAddr) -> bool {
        self.flows.get(&client).is_some_and(|flow| flow.is_orphaned)
    }

    /// Whether a connection's program died and no node could continue the connection: its kernel may end the stream.
    pub fn died_alone(&self, client: SocketAddr) -> bool {
        self.flows
            .get(&client)
            .is_some_and(|flow| flow.has_died && flow.is_orphaned)
    }

    /// Whether the known output of a connection had a gap when a node had to continue the connection.
    pub fn had_hole(&self, client: SocketAddr) -> bool {
        self.flows.get(&client).is_some_and(|flow| flow.had_hole)
    }

    /// Whether a client waits for the end of a handshake.
    pub const fn has_handshakes(&self) -> bool {
        self.half_open > 0
    }

    /// The flow that a packet opens, if it is a client's SYN.
    fn opening(&mut self, direction: Direction, packet: &[u8]) -> Option<&mut Flow> {
        let segment = self.parse(packet)?;
        let opens = direction == Direction::In && segment.flags.syn;
        self.flows.get_mut(&segment.source).filter(|_| opens)
    }

    fn note(&mut self, direction: Direction, packet: &[u8]) {
        let Some(segment) = self.parse(packet) else { return };
        if segment.flags.syn || segment.flags.rst {
            return;
        }
        let client = match direction {
            Direction::In => segment.source,
            Direction::Out => segment.destination,
        };
        let Some(flow) = self.flows.get_mut(&client) else {
            return;
        };
        let noted = match direction {
            Direction::In => {
                let at = segment.seq.distance_from(flow.input_first).into();
                if flow.is_in_time(&segment) {
                    let _ = flow.input_in_time.note(at, segment.payload, segment.flags.fin); // the note below reports contradictions
                }
                flow.input.note(at, segment.payload, segment.flags.fin)
            }
            Direction::Out => match flow.place(&segment) {
                Some(Place { at, .. }) => flow.output.note(at, segment.payload, segment.flags.fin),
                None => return,
            },
        };
        if let Err(at) = noted {
            self.violation(
                client,
                &format!("one stream: {direction:?} contradicts itself at {at}"),
            );
        }
    }

    /// The wire has released a packet. `voice` is the primary's, if the primary sent the packet.
    pub(super) fn on_released(&mut self, voice: Voice, direction: Direction, packet: &[u8]) {
        if direction == Direction::In {
            return;
        }
        let Some(segment) = self.parse(packet) else { return };
        let client = segment.destination;
        self.on_voice(client, voice);
        let Some(flow) = self.flows.get_mut(&client) else {
            return;
        };
        let place = flow
            .place(&segment)
            .filter(|_| !segment.flags.syn && !segment.flags.rst);
        if let Some(place) = place {
            flow.released = flow.released.or(Most::of(&segment, place, flow.shift));
        }
    }

    /// A node itself says something, past any wire. `is_raw`: not through its stack.
    pub(super) fn on_spoken(&mut self, voice: Voice, packet: &[u8], is_raw: bool) {
        let Some(segment) = self.parse(packet) else { return };
        let client = segment.destination;
        self.on_voice(client, voice);
        let Some(flow) = self.flows.get_mut(&client) else {
            return;
        };
        if !voice.is_alone && !is_raw && flow.live_at != Some(voice.node) {
            return; // a primary beside its wire: no other node knows what it says
        }
        let Some(place) = flow
            .place(&segment)
            .filter(|_| !segment.flags.syn && !segment.flags.rst)
        else {
            return;
        };
        let said = Most::of(&segment, place, flow.shift);
        // A packet from outside the stack may come too late, behind what the stack said. The stack must keep what it promised.
        let before = if is_raw {
            flow.released
        } else {
            flow.released.or(flow.spoken)
        };
        let behind = before
            .is_more_than(said, flow.shift)
            .map(|what| format!("no step back: {what}"));
        let mut wrong: Vec<String> = behind.into_iter().collect();
        flow.spoken = flow.spoken.or(said);
        let leap = flow.number(voice.node, place, &segment);
        // Output of a socket that was never restored, if nobody logged it, is known to its own stack only.
        let is_restored = is_raw || flow.live_at == Some(voice.node);
        if let Some(known) = leap.filter(|_| is_restored) {
            wrong.push(format!(
                "no leap: a segment at {}, known is output up to {known}",
                place.at
            ));
        }
        if let Err(at) = flow.output.note(place.at, segment.payload, segment.flags.fin) {
            wrong.push(format!("one stream: the survivor says something else at {at}"));
        }
        let logged = i64::try_from(flow.logged_before_ready).expect("small");
        if flow.live_at == Some(voice.node) && place.acknowledges < logged {
            wrong.push(format!(
                "nothing asked twice: acknowledges {}, {logged} was logged",
                place.acknowledges
            ));
        }
        wrong.iter().for_each(|what| self.violation(client, what));
    }

    /// A client's packets go to its restored socket from now on.
    pub(super) fn on_ready(&mut self, client: SocketAddr) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.logged_before_ready = flow.input_in_time.contiguous as u64;
        }
    }

    /// A socket that was restored on a node speaks from now on.
    ///
    /// `lent`: the epoch, if the node speaks alone by its lease. Everything that the node has executed by then is lent, too.
    pub(super) fn on_live(&mut self, node: usize, client: SocketAddr, lent: Option<u64>) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.live_at = Some(node);
            flow.lent = lent.map(|epoch| (epoch, node)).or(flow.lent);
        }
    }

    fn parse<'a>(&self, packet: &'a [u8]) -> Option<Segment<'a>> {
        let segment = Segment::parse(packet, Checksum::Trusted).ok()?;
        (segment.source == self.vip || segment.destination == self.vip).then_some(segment)
    }
}
