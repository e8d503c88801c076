//! Checks that the pair keeps the rules. The judge sees the packets at the client and at each node. It keeps its own records and
//! never asks the code under test (`proto`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use proto::packet::{Checksum, Segment};
use proto::role::Role;
use proto::table::Direction;
use proto::{Instant, Seq};

use super::commit::{SimCommit, is_cut};
use super::ledger::{Most, ObservedBytes, ObservedCopy, PacketSpeaker, SegmentOffsets};
use super::ownership::{CarriedCounts, Ownership, SpeakingPlace};

/// Maximum number of violations that are kept. Later violations are usually consequences of the first.
const VIOLATIONS_MAX: usize = 20;

/// Time after a connection has moved back in which its client's segments may reach the primary unlogged. They were on their way from the
/// backup, which did not log them as long as it had the connection. Until its next restart point, nobody protects the connection.
const RETURNS_FOR: Duration = Duration::from_secs(1);

/// Watches one service.
///
/// | rule | is broken when |
/// |---|---|
/// | input commit | an acknowledgement reaches the client for a byte that the backup has not logged |
/// | output commit | a byte reaches the client that no wire has logged and no node without a wire has sent |
/// | one stream | two different bytes are sent for one offset, or a stream has two different ends |
/// | open commit | a SYN-ACK reaches the client although no node has the SYN |
/// | one voice | both nodes speak alone in one epoch, a node speaks in an older epoch, or a connection moves twice in one epoch |
/// | no step back | the survivor's acknowledgement, right edge or timestamp is lower than one that was released |
/// | no leap | the survivor sends a segment whose number is beyond the known output |
/// | exact copy | a server's state changes while copied, or the copy has input of a connection that a replica follows |
/// | one owner | a segment of an annex's socket reaches the client after a later socket has spoken, or the other way round |
/// | no lost start | a node drops what a socket says first that the node has started after a move back |
/// | nothing asked twice | a restored connection acknowledges less than was logged before its socket was ready |
#[derive(Debug)]
pub struct Judge {
    pub(super) vip: SocketAddr,
    /// Commit mode of the service.
    pub(super) commit: SimCommit,
    /// The world's time.
    pub(super) now: Instant,
    /// The latest epoch in which a node spoke alone, and that node.
    pub(super) alone: Option<(u64, usize)>,
    /// The epoch in which each node may speak alone now.
    pub(super) alone_now: [Option<u64>; 2],
    /// For each node, the latest epoch in which it began to speak alone. Reset when the other node loses its power.
    pub(super) began: [Option<u64>; 2],
    /// Each time at which both nodes were found to have the right to speak.
    pub(super) splits: Vec<Instant>,
    /// The nodes without power.
    pub(super) is_off: [bool; 2],
    /// Each epoch in which a node may speak without a time limit (not only by a lease), with that node.
    pub(super) given: BTreeSet<(u64, usize)>,
    /// For each node, the latest epoch of `given` since the node last got power.
    pub(super) given_now: [Option<u64>; 2],
    /// For each node, whether its agent knows that the node is the wire, or has taken over since. Only such a node can continue
    /// connections from its log.
    pub(super) is_wire: [bool; 2],
    /// For each node, the time until which its machine stands still.
    still_until: [Instant; 2],
    /// Number of clients that have not completed their handshake.
    half_open: u64,
    pub(super) flows: BTreeMap<SocketAddr, WatchedConnection>,
    /// For each node, the copy of the peer's server state, if states are copied.
    pub(super) copies: [Option<ObservedCopy>; 2],
    violations: Vec<String>,
    /// When each violation happened.
    moments: Vec<Instant>,
    resets: Vec<(Instant, SocketAddr)>,
    /// Number of sockets that began to speak on annexes, and on the primary after a move back.
    pub(super) annexed: (usize, usize),
    /// Counts for connections that annexes had without a wire.
    pub(super) carried: CarriedCounts,
}

/// One connection, from its SYN on.
#[derive(Debug)]
pub(super) struct WatchedConnection {
    input_first: Seq,
    /// Sequence number of the server's first byte. Known once the client has got a SYN-ACK.
    output_first: Option<Seq>,
    /// What a node has sent directly before the client had a SYN-ACK.
    early: Vec<Vec<u8>>,
    /// Window scale of the server.
    pub(super) shift: u8,
    input: ObservedBytes,
    /// A wire has released input, or a node that speaks alone has taken some.
    has_passed_input: bool,
    /// The input without segments that a receiver may refuse as too old. Such a segment has an older timestamp than an earlier segment
    /// (RFC 7323 §5), or its acknowledgement is more than one window behind (RFC 5961 §5.2).
    input_in_time: ObservedBytes,
    /// The client's latest timestamp.
    latest: Option<u32>,
    /// The client's latest acknowledgement, and the largest value of its window field, unscaled.
    latest_ack: Option<Seq>,
    window_max: u16,
    output: ObservedBytes,
    /// For each node, the offset after the last output that its own stack has sent. Segments that the guard dropped count too.
    numbered: [u64; 2],
    pub(super) released: Most,
    spoken: Most,
    /// The node that spoke last, and its right to speak then.
    pub(super) voice: Option<PacketSpeaker>,
    /// The node that spoke before `voice` in the epoch of `voice`, if there is one. It must not speak again in this epoch.
    pub(super) silenced: Option<usize>,
    /// Bytes that were logged when the connection's socket became ready.
    logged_before_ready: u64,
    /// The node on which the connection was last restored.
    pub(super) live_at: Option<usize>,
    /// Whether a node has the SYN.
    is_opened: bool,
    /// Whether the client has answered the SYN-ACK.
    is_established: bool,
    /// For each node, whether it has a log of the connection from the beginning on.
    logs: [bool; 2],
    /// For each node, when it logged the client's first packet after the SYN.
    heard: [Option<Instant>; 2],
    /// For each node, whether it has a socket of the connection.
    sockets: [bool; 2],
    /// Whether at some time no node could continue the connection.
    is_orphaned: bool,
    /// Whether the connection's node once sent its segments through the other node. Then the log of the node that restores it next may lack
    /// segments that other logs have.
    was_reversed: bool,
    /// Until when the client's segments may reach the primary unlogged ([`RETURNS_FOR`]).
    returns_until: Instant,
    /// Sequence number of the output's first byte, as in the last SYN-ACK that a primary's stack has sent.
    offered: Option<Seq>,
    /// Value of `offered` at the moment when no node could continue the handshake any longer. This SYN-ACK may still reach the client.
    lost_offer: Option<Seq>,
    /// Whether the process that served the connection has died.
    has_died: bool,
    /// Whether the known output had a gap when a node had to continue the connection.
    had_hole: bool,
    /// The node that spoke alone by its lease, and the epoch.
    pub(super) lent: Option<(u64, usize)>,
    /// Whether a node whose right to speak was only a lease sent segments that the other node does not know. The other node may contradict
    /// these segments.
    pub(super) was_lent_in_vain: bool,
    /// Whether a node spoke after its lease was over, although the other node had the right to speak by then. The
    /// first node could not know this, because its clock had stood still.
    pub(super) was_outlasted: bool,
    /// The nodes that have had sockets of the connection, in a run with annexes.
    pub(super) ownership: Ownership,
}

impl WatchedConnection {
    fn new(input_first: Seq) -> Self {
        Self {
            input_first,
            output_first: None,
            early: Vec::new(),
            shift: 0,
            input: ObservedBytes::default(),
            has_passed_input: false,
            input_in_time: ObservedBytes::default(),
            latest: None,
            latest_ack: None,
            window_max: 0,
            output: ObservedBytes::default(),
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
            heard: [None; 2],
            sockets: [false; 2],
            is_orphaned: false,
            was_reversed: false,
            returns_until: Instant::ZERO,
            offered: None,
            lost_offer: None,
            has_died: false,
            had_hole: false,
            lent: None,
            was_lent_in_vain: false,
            was_outlasted: false,
            ownership: Ownership::default(),
        }
    }

    /// Whether a byte of the client may have reached a server. A byte that a wire logs while its gate is closed reaches no server.
    pub(super) const fn has_input(&self) -> bool {
        self.has_passed_input
    }

    /// Whether a client ignores the segment's window, because the segment is a probe with an old number (RFC 9293 §3.10.7.4). The new socket
    /// of a connection that has moved announces all of its room in such a segment.
    pub(super) fn is_old(&self, segment: &Segment<'_>, place: SegmentOffsets) -> bool {
        let is_probe =
            segment.seq_len() == 0 && u64::try_from(place.at).is_ok_and(|at| at < self.output.end());
        self.ownership.is_used() && (is_probe || place.at < 0)
    }

    /// Whether each end has acknowledged the other's FIN. Then the client's packets go to the primary again, and a late segment of an earlier
    /// socket passes.
    fn is_complete(&self) -> bool {
        let acknowledged = self.latest_ack.zip(self.output_first);
        let acknowledged = acknowledged.map(|(ack, first)| i64::from(ack.distance_from(first)));
        let is_after = |fin: u64, acknowledged: i64| u64::try_from(acknowledged).is_ok_and(|end| end > fin);
        self.input.fin.is_some_and(|fin| self.released.acknowledged > fin)
            && self
                .output
                .fin
                .zip(acknowledged)
                .is_some_and(|(fin, end)| is_after(fin, end))
    }

    /// Whether the connection is complete, so that the client has acknowledged all that this late segment says.
    pub(super) fn is_over_for(&self, segment: &Segment<'_>) -> bool {
        let end = self
            .place(segment)
            .map(|says| says.at + i64::from(segment.seq_len()));
        let is_known = end.is_some_and(|end| u64::try_from(end).is_ok_and(|end| end <= self.output.end()));
        self.is_complete() && (is_known || segment.seq_len() == 0)
    }

    /// Whether this segment of the client is recent enough that a receiver must not refuse it as too old.
    fn is_in_time(&mut self, segment: &Segment<'_>) -> bool {
        self.has_no_later_timestamp(segment) & self.acknowledges_lately(segment)
    }

    /// Whether the segment acknowledges at most one window less than an earlier segment of the client.
    fn acknowledges_lately(&mut self, segment: &Segment<'_>) -> bool {
        self.window_max = self.window_max.max(segment.window);
        let latest = self.latest_ack.get_or_insert(segment.ack);
        let ahead = segment.ack.distance_from(*latest);
        if ahead > 0 {
            *latest = segment.ack;
        }
        i64::from(ahead) >= -i64::from(self.window_max)
    }

    /// Whether no earlier segment of the client has a later timestamp than this segment.
    fn has_no_later_timestamp(&mut self, segment: &Segment<'_>) -> bool {
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

    /// Notes a gap in the known output when a node has to continue the connection. A restored socket may be unable to bridge the gap.
    pub(super) const fn look_for_hole(&mut self) {
        self.had_hole |= self.output.has_hole();
    }

    /// Notes that a node whose right to speak was only a lease has sent segments that the other node does not know. From now on the other
    /// node may contradict these segments.
    pub(super) const fn lose_lent(&mut self) {
        self.lent = None;
        self.was_lent_in_vain = true;
    }

    /// Whether a node of the pair can continue the connection.
    pub(super) fn is_held(&self, is_wire: [bool; 2], copies: &[Option<ObservedCopy>; 2]) -> bool {
        (0..2).any(|node| {
            let has_state = || Judge::is_covered(copies[node].as_ref(), self.heard[node]);
            self.sockets[node] || self.logs[node] && is_wire[node] && has_state()
        })
    }

    /// Notes if no node can continue the connection.
    pub(super) fn look_for_holders(
        &mut self,
        now: Instant,
        is_wire: [bool; 2],
        copies: &[Option<ObservedCopy>; 2],
    ) {
        let is_held = self.is_held(is_wire, copies);
        if !is_held && self.ownership.is_on_annex() {
            self.ownership.unprotected_at.get_or_insert(now);
        } else if !is_held {
            self.lose_holders();
        }
    }

    /// No node can continue the connection. If the client has no SYN-ACK yet, the connection counts as lost only if the SYN-ACK that the
    /// primary has already sent still reaches the client. Without this SYN-ACK, the client repeats its SYN.
    fn lose_holders(&mut self) {
        self.is_orphaned |= self.output_first.is_some();
        self.lost_offer = self.offered;
    }

    /// The client has got the SYN-ACK: notes the output that was sent while the SYN-ACK was on its way.
    fn note_early(&mut self) {
        for packet in std::mem::take(&mut self.early) {
            if let Ok(segment) = Segment::parse(&packet, Checksum::Trusted)
                && let Some(place) = self.place(&segment)
            {
                let _ = self.output.note(place.at, segment.payload, segment.flags.fin); // the client's own program compares the bytes
            }
        }
    }

    /// Notes the sequence numbers of a segment that a node's stack sends. If the segment begins beyond the known output, returns that
    /// output's end.
    fn number(&mut self, node: usize, place: SegmentOffsets, segment: &Segment<'_>) -> Option<u64> {
        let known = self.output.end().max(self.numbered[node]);
        let at = u64::try_from(place.at).unwrap_or(0);
        if at > known {
            return Some(known);
        }
        self.numbered[node] = known.max(at + u64::from(segment.seq_len()));
        None
    }

    /// Offsets of a segment from the server. `None` before the client has got a SYN-ACK.
    pub(super) fn place(&self, segment: &Segment<'_>) -> Option<SegmentOffsets> {
        Some(SegmentOffsets {
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
            commit: SimCommit::Prs,
            now: Instant::ZERO,
            alone: None,
            alone_now: [None; 2],
            began: [None; 2],
            splits: Vec::new(),
            is_off: [false; 2],
            given: BTreeSet::new(),
            given_now: [None; 2],
            is_wire: [false; 2],
            still_until: [Instant::ZERO; 2],
            half_open: 0,
            flows: BTreeMap::new(),
            copies: [None, None],
            violations: Vec::new(),
            moments: Vec::new(),
            resets: Vec::new(),
            annexed: (0, 0),
            carried: CarriedCounts {
                alone: 0,
                behind_wire: 0,
                handed_over: 0,
                protected_again: 0,
            },
        }
    }

    /// The violations, in the order in which they happened.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// The violations, each with its time.
    pub fn violations_with_times(&self) -> impl Iterator<Item = (Instant, &str)> {
        let lines = self.violations.iter().map(String::as_str);
        self.moments.iter().copied().zip(lines)
    }

    /// The resets that reached clients.
    pub fn resets(&self) -> &[(Instant, SocketAddr)] {
        &self.resets
    }

    /// Records a violation that concerns a client, unless the nodes may contradict what they sent to this client earlier.
    pub(super) fn violation(&mut self, client: SocketAddr, what: &str) {
        let may_be = |flow: &WatchedConnection| flow.was_lent_in_vain || flow.was_outlasted;
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
    pub(super) fn look_at_clock(&mut self, now: Instant) {
        self.now = now;
        self.end_holds();
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
                self.flows.insert(segment.source, WatchedConnection::new(first));
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
                flow.is_orphaned |= flow.lost_offer == flow.output_first;
                flow.shift = segment.options.window_scale.unwrap_or(0);
                flow.look_for_holders(self.now, self.is_wire, &self.copies); // a node may have been lost while the SYN-ACK was on its way
                flow.note_early();
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
        self.note_heard(node, direction, packet);
        if !is_cut(packet) {
            self.note(direction, packet);
        }
    }

    /// Notes when a node logged a client's first packet after the SYN.
    fn note_heard(&mut self, node: usize, direction: Direction, packet: &[u8]) {
        let now = self.now;
        if direction == Direction::In
            && let Some(segment) = self.parse(packet).filter(|segment| !segment.flags.syn)
            && let Some(flow) = self.flows.get_mut(&segment.source)
        {
            flow.heard[node].get_or_insert(now);
        }
    }

    /// A node's stack has taken a packet, or a node has passed a packet on without logging it.
    pub(super) fn on_taken(&mut self, direction: Direction, packet: &[u8]) {
        if let Some(flow) = self.opening(direction, packet) {
            flow.is_opened = true;
        }
        self.note(direction, packet);
        if direction == Direction::In {
            self.pass_input(packet);
        }
    }

    /// A packet of a client goes to a server.
    fn pass_input(&mut self, packet: &[u8]) {
        let Some(segment) = self.parse(packet) else { return };
        let has_input = !segment.payload.is_empty() || segment.flags.fin;
        if let Some(flow) = self.flows.get_mut(&segment.source) {
            flow.has_passed_input |= has_input;
        }
    }

    /// A primary's stack sends a packet, to the wire or directly to the client. If output may bypass the wire, no log has it, so all output
    /// that the primary has sent counts as known: the node that continues the connection must generate the same bytes.
    pub(super) fn on_offered(&mut self, packet: &[u8]) {
        if self.commit != SimCommit::Prs {
            self.note(Direction::Out, packet);
        }
        let Some(segment) = self.parse(packet).filter(|segment| segment.flags.syn) else {
            return;
        };
        if let Some(flow) = self.flows.get_mut(&segment.destination) {
            flow.offered = Some(segment.seq + 1);
        }
    }

    /// A node has a socket of a client's connection now, accepted or restored.
    pub(super) fn on_socket(&mut self, node: usize, client: SocketAddr) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.sockets[node] = true;
        }
    }

    /// A node's agent knows that the node's role is now `to`.
    pub(super) const fn on_role(&mut self, node: usize, to: Role) {
        self.is_wire[node] = matches!(to, Role::Backup | Role::TakingOver | Role::Sole);
    }

    /// A node's log is gone, or has a gap.
    pub(super) fn on_log_lost(&mut self, node: usize) {
        for flow in self.flows.values_mut() {
            flow.logs[node] = false;
            flow.look_for_holders(self.now, self.is_wire, &self.copies);
        }
    }

    /// A node's server is dead, so a client's replica cannot be opened there. No server that starts later gets the client's input from the
    /// connection's beginning.
    pub(super) fn on_replica_refused(&mut self, node: usize, client: SocketAddr) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.logs[node] = false;
            flow.look_for_holders(self.now, self.is_wire, &self.copies);
        }
    }

    /// A node's sockets of these clients are gone.
    pub(super) fn on_sockets_lost(&mut self, node: usize, clients: &[SocketAddr]) {
        for client in clients {
            if let Some(flow) = self.flows.get_mut(client) {
                flow.sockets[node] = false;
                if flow.voice.is_some_and(|voice| voice.node == node) {
                    flow.silenced = None; // the connection may move back to the other node
                }
                flow.look_for_holders(self.now, self.is_wire, &self.copies);
            }
        }
    }

    /// A node's machine stands still until `until`.
    pub(super) fn on_still(&mut self, node: usize, until: Instant) {
        self.still_until[node] = self.still_until[node].max(until);
    }

    /// A node ends its sockets because it does not know what happened while its agent was away. If the other machine stands still, that
    /// machine cannot say that it has not taken over, so the connections are lost (docs/roles.md, *A new agent*).
    pub(super) fn on_given_up(&mut self, node: usize) {
        if self.now >= self.still_until[1 - node] {
            return;
        }
        let held_here = self.flows.values_mut().filter(|flow| flow.sockets[node]);
        held_here.for_each(WatchedConnection::lose_holders);
    }

    /// The process that served a client on a node has died.
    pub(super) fn on_process_lost(&mut self, node: usize, client: SocketAddr) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.logs[node] = false; // a node has no log for a connection that its own application has
        }
        self.on_sockets_lost(node, &[client]);
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.has_died = true;
            flow.look_for_hole();
        }
    }

    /// A node's stack has sent a segment that the guard dropped. The sequence number of the stack's next segment is after this segment. But
    /// the segment has reached nobody, so the node that continues the connection may send something else.
    pub(super) fn on_muttered(&mut self, node: usize, packet: &[u8]) {
        let Some(segment) = self.parse(packet) else { return };
        if let Some(flow) = self.flows.get_mut(&segment.destination)
            && let Some(place) = flow.place(&segment)
        {
            flow.number(node, place, &segment);
        }
    }

    /// From now on a node sends the segments of these clients' connections through the other node, which logs them. So they are not in the
    /// node's own log.
    pub(super) fn on_reversed(&mut self, node: usize, clients: &[SocketAddr]) {
        for client in clients {
            if let Some(flow) = self.flows.get_mut(client) {
                flow.live_at = flow.live_at.filter(|at| *at != node);
                flow.logs[node] = false;
                flow.was_reversed = true;
                flow.look_for_holders(self.now, self.is_wire, &self.copies);
            }
        }
    }

    /// A client's packet has reached the stack of a primary, after the wire has passed it on.
    pub(super) fn on_passed(&mut self, packet: &[u8]) {
        let source = self.parse(packet).map(|segment| segment.source);
        let flow = source.and_then(|source| self.flows.get(&source));
        if flow.is_some_and(|flow| self.now < flow.returns_until) {
            self.note(Direction::In, packet);
        }
    }

    /// From now on a node sends through the other node's wire. The node's segments may be lost before they are logged.
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
        // The node has forgotten the epoch in which it spoke alone. If no node remembers this epoch, the pair's next epoch need not be
        // later.
        self.alone = self.alone.filter(|(_, who)| *who != node);
        for flow in self.flows.values_mut() {
            flow.sockets[node] = false;
            flow.look_for_holders(self.now, self.is_wire, &self.copies);
            // The other node may still have the old socket that this node's socket replaced. The old socket cannot continue the connection.
            let other = 1 - node;
            flow.is_orphaned |= flow.live_at == Some(node) && !(flow.logs[other] && self.is_wire[other]);
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

    /// Whether a connection's program died while no node could continue the connection. In this case the kernel may end the stream.
    pub fn died_alone(&self, client: SocketAddr) -> bool {
        self.flows
            .get(&client)
            .is_some_and(|flow| flow.has_died && flow.is_orphaned)
    }

    /// Whether a connection's known output had a gap when a node had to continue the connection.
    pub fn had_hole(&self, client: SocketAddr) -> bool {
        self.flows.get(&client).is_some_and(|flow| flow.had_hole)
    }

    /// Whether a client waits for the end of a handshake.
    pub const fn has_handshakes(&self) -> bool {
        self.half_open > 0
    }

    /// The record of the connection that a client's SYN opens. `None` for any other packet.
    fn opening(&mut self, direction: Direction, packet: &[u8]) -> Option<&mut WatchedConnection> {
        let segment = self.parse(packet)?;
        let opens = direction == Direction::In && segment.flags.syn;
        self.flows.get_mut(&segment.source).filter(|_| opens)
    }

    pub(super) fn note(&mut self, direction: Direction, packet: &[u8]) {
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
                    let _ = flow.input_in_time.note(at, segment.payload, segment.flags.fin); // the `note` below reports contradictions
                }
                flow.input.note(at, segment.payload, segment.flags.fin)
            }
            Direction::Out => match flow.place(&segment) {
                Some(SegmentOffsets { at, .. }) => flow.output.note(at, segment.payload, segment.flags.fin),
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

    /// The wire has released a packet. `voice` describes the primary; it is used only for packets to a client.
    pub(super) fn on_released(&mut self, voice: PacketSpeaker, direction: Direction, packet: &[u8]) {
        if direction == Direction::In {
            self.pass_input(packet);
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
            let mut said = Most::of(&segment, place, flow.shift);
            if flow.is_old(&segment, place) {
                said.right_edge = 0;
            }
            flow.released = flow.released.or(said);
        }
    }

    /// A node sends a packet to a client directly, not through a wire. `is_raw`: the packet does not come from the
    /// node's TCP stack.
    pub(super) fn on_spoken(&mut self, voice: PacketSpeaker, packet: &[u8], is_raw: bool) {
        let Some(segment) = self.parse(packet) else { return };
        let client = segment.destination;
        self.on_voice(client, voice);
        let Some(flow) = self.flows.get_mut(&client) else {
            return;
        };
        if !voice.is_alone && !is_raw && flow.live_at != Some(voice.node) {
            return; // a primary that bypasses its wire: no log contains this packet
        }
        if segment.flags.syn || segment.flags.rst {
            return;
        }
        let Some(place) = flow.place(&segment) else {
            flow.early.push(packet.to_vec());
            return;
        };
        let said = Most::of(&segment, place, flow.shift);
        // A raw packet may be sent after newer packets of the stack. So it is compared only with packets that a wire
        // released. A packet of the stack is compared with all packets that were sent directly, too.
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
        // A socket that was never restored may leap: its stack may have sent output that nobody logged.
        let is_restored = is_raw || flow.live_at == Some(voice.node);
        if let Some(known) = leap.filter(|_| is_restored) {
            wrong.push(format!(
                "no leap: a segment at {}, but the known output ends at {known}",
                place.at
            ));
        }
        if let Err(at) = flow.output.note(place.at, segment.payload, segment.flags.fin) {
            wrong.push(format!(
                "one stream: the survivor sent different bytes at offset {at}"
            ));
        }
        let logged = i64::try_from(flow.logged_before_ready).expect("small");
        if flow.live_at == Some(voice.node) && place.acknowledges < logged {
            wrong.push(format!(
                "nothing asked twice: acknowledges {}, but {logged} bytes were logged",
                place.acknowledges
            ));
        }
        wrong.iter().for_each(|what| self.violation(client, what));
    }

    /// From now on the restored socket of a client gets the client's packets.
    pub(super) fn on_ready(&mut self, node: usize, client: SocketAddr) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.ownership.on_socket(SpeakingPlace::Pair); // it may acknowledge from now on
            flow.ownership.on_application(node);
            // The next wire's log begins anew, and the restored socket has nothing of what is behind a hole: the client repeats it.
            flow.input_in_time.forget_behind_hole();
            let logged = flow.input_in_time.contiguous as u64;
            flow.logged_before_ready = if flow.was_reversed { 0 } else { logged };
            if flow.was_reversed {
                flow.returns_until = self.now + RETURNS_FOR;
            }
        }
    }

    /// From now on a socket that was restored on a node sends to its client.
    ///
    /// `lent`: the epoch, if the node speaks alone by its lease. Then everything that the node has executed so far depends on the lease,
    /// too.
    pub(super) fn on_live(&mut self, node: usize, client: SocketAddr, lent: Option<u64>) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.live_at = Some(node);
            self.carried.protected_again += usize::from(flow.ownership.unprotected_at.is_some());
            flow.ownership.on_socket(SpeakingPlace::Pair);
            flow.ownership.on_application(node);
            flow.lent = lent.map(|epoch| (epoch, node)).or(flow.lent);
        }
    }

    pub(super) fn parse<'a>(&self, packet: &'a [u8]) -> Option<Segment<'a>> {
        let segment = Segment::parse(packet, Checksum::Trusted).ok()?;
        (segment.source == self.vip || segment.destination == self.vip).then_some(segment)
    }
}
