//! An independent judge. It reads captures taken at the client, at the router's LAN side and at both nodes, and says
//! whether every rule was kept. It never asks the daemons.
//!
//! All captures are taken on one machine, so their times can be compared. Positions are 64-bit offsets in the streams.
//!
//! A switch may flood a frame to hosts other than its destination. The judge ignores the frame in the captures of such hosts.
//!
//! The wire may change. A returning node becomes the wire of output with the first segment that it forwards. It becomes the wire
//! of input with the first client packet that reaches it after that, and after 200 ms at the latest ([`Survey`]). A new wire need
//! not have seen packets that were shown, or that the other node received, before it became the wire.
//!
//! The rules, for each connection and every segment of the service, where *shown* means seen at the router or the client:
//!
//! * **no-reset**: the client neither gets nor sends a RST. RSTs are counted for each direction and are not in the list of
//!   violations. A RST is exempt after each end has acknowledged the other's FIN: any server answers a late segment with a RST, and
//!   nothing can be lost any more.
//! * **no-early-fin**: no FIN reaches the client before the client has sent its own FIN (checked only if clients must close first).
//! * **input-commit**: when an acknowledgement is shown, every byte (and the FIN) below it is earlier in the wire's capture.
//!   Not in mode `immediate`.
//! * **output-commit**: when data (or a FIN) is shown, every byte of it is earlier in the wire's capture. The bytes came from the
//!   primary, or the wire itself sent them. Mode `prs` only.
//! * **open-commit**: when a SYN-ACK is shown, the SYN is earlier in the wire's capture. Not in mode `immediate`.
//! * **through-wire**: while there is a wire, segments reach the router from the wire's Ethernet address (the modes `pr` and `immediate` require
//!   this only of SYN-ACKs). At any time, they come from the Ethernet address of one of the nodes.
//! * **one-voice**: the origin ([`voice`]) of the shown segments changes at most once for each expected role change, and not before that
//!   role change. So after the survivor's first own segment, no segment of the other node is shown. If only some connections change their
//!   node, the rule applies to each connection separately.
//! * **same-content**: the byte shown at an offset never differs from the byte that was shown there before. Only captured bytes are
//!   compared, and only the last [`CONTENTS_MAX`] bytes are remembered.
//! * **one-sequence**: there is one initial sequence number, and no segment is 2³⁰ or more away from the bytes sent so far.
//! * **keeps-acknowledged**: acknowledged bytes are not asked for again. An acknowledgement number is never lower than a number that
//!   the same capture showed at least [`Highest::OVERTAKING_NS`] earlier. (A lower number within that time belongs to a segment that was
//!   overtaken on its way.)
//! * **keeps-time**: timestamps do not go back, with the same tolerance for overtaken segments (RFC 7323 §5, PAWS: the client would drop
//!   segments whose timestamps go back).
//! * **keeps-window**: the window's right edge does not go back, with the same tolerance. A breach is only noted.
//!
//! Segments of the service may overtake each other on the way to the client. So the last three rules, which concern the order,
//! are checked at the router. They are checked at the client only if the router's capture is not whole.
//!
//! A capture that missed packets cannot prove that something is absent. The judge lists statements that need a whole
//! capture as unproven, and does not apply rules that would find false violations without one. Connections whose SYN was not
//! captured are exempt from the commit rules. Checksums are not verified, so a forged segment that every kernel drops
//! counts as seen.

mod capture;
mod connection;
mod merge;
mod origin;
pub mod packet;
pub mod pcap;
mod stream;
mod survey;
mod verdict;
mod voice;

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::ensure;

pub use self::capture::{Capture, Point};
pub use self::merge::for_each_segment;
pub use self::packet::CapturedSegment;
pub use self::stream::OffsetSet;
pub use self::survey::{NodeChange, Survey};
pub use self::verdict::{
    Closing, CommitMode, ContentsChecked, Evidence, Expectations, Finding, JudgeRule, JudgeVerdict, Speaking,
};

use self::connection::{Breach, JudgedConnection};
use self::merge::Merge;
#[cfg(doc)]
use self::stream::Highest;
use self::verdict::FindingSet;
use self::voice::{Improper, VoiceTracker};

/// Bytes of content remembered for all connections together.
const CONTENTS_MAX: usize = 256 << 20;
/// Bytes of content remembered for one connection: more than is ever in flight.
const CONTENTS_OF_ONE_MAX: usize = 8 << 20;

/// Judges `captures` of one run, at most one of each point.
///
/// # Errors
/// If there is no capture of the client or the router, if a file cannot be read, is cut off or garbled, if the clock was set while a file
/// was written, or if `expected` contradicts itself.
pub fn check(captures: &[Capture], expected: &Expectations) -> anyhow::Result<JudgeVerdict> {
    expected.check()?;
    let complete = Completeness::of(captures);
    ensure!(
        complete.has(Point::Client) || complete.has(Point::Router),
        "no capture of the client or the router: nothing to judge"
    );
    let mut merge = Merge::open(captures, expected.service)?;
    let mut judge = CaptureJudge {
        expected,
        resets_at: if complete.has(Point::Client) {
            Point::Client
        } else {
            Point::Router
        },
        complete,
        connections: HashMap::new(),
        voice: VoiceTracker::new(expected),
        findings: FindingSet::default(),
        notes: FindingSet::default(),
        resets: FindingSet::default(),
        totals: Totals::default(),
        began_ns: None,
    };
    while let Some((point, packet)) = merge.next_packet()? {
        judge.take(point, &packet);
    }
    Ok(judge.verdict(merge.evidence()))
}

struct CaptureJudge<'a> {
    expected: &'a Expectations,
    complete: Completeness,
    /// The point where RSTs are counted.
    resets_at: Point,
    connections: HashMap<SocketAddr, JudgedConnection>,
    voice: VoiceTracker,
    findings: FindingSet,
    notes: FindingSet,
    resets: FindingSet,
    totals: Totals,
    began_ns: Option<u64>,
}

#[derive(Default)]
struct Totals {
    connections: u64,
    without_beginning: u64,
    resets_to_client: u64,
    resets_from_client: u64,
    compared: u64,
    not_captured: u64,
}

/// The capture points that have a capture, and those whose capture is whole.
#[derive(Clone, Copy, Debug)]
struct Completeness {
    there: [bool; 4],
    whole: [bool; 4],
}

impl CaptureJudge<'_> {
    fn take(&mut self, point: Point, packet: &CapturedSegment) {
        self.began_ns.get_or_insert(packet.at_ns);
        let toward_client = packet.source == self.expected.service;
        let client = if toward_client {
            packet.destination
        } else {
            packet.source
        };
        if !self.expected.is_judged(client.ip()) || !self.expected.concerns(point, packet) {
            return;
        }
        self.meet(client, packet, toward_client);
        let connection = self.connections.get_mut(&client).expect("just met");
        if let Some((number, wire)) = self.expected.wire_at(packet.at_ns) {
            connection.meet_wire(number, wire, packet.at_ns);
        }
        if packet.rst {
            self.take_reset(point, client, packet, toward_client);
            if toward_client {
                self.take_voice(point, client, packet);
            }
            return;
        }
        let located = connection.locate(packet, toward_client);
        let breaches = match (point, located) {
            // A client's segment with impossible numbers is not the service's fault.
            (_, Err(_)) if !toward_client => Vec::new(),
            (Point::NodeA | Point::NodeB, Err(_)) => Vec::new(),
            (_, Err(breach)) => vec![breach],
            (Point::NodeA | Point::NodeB, Ok(at)) => {
                let node = usize::from(point == Point::NodeB);
                connection.seen_by_node(node, packet, toward_client, at);
                Vec::new()
            }
            (_, Ok(at)) if !toward_client => {
                connection.client_spoke(point, packet, at);
                Vec::new()
            }
            (_, Ok(at)) => {
                let mut breaches = connection.service_spoke(point, packet, at);
                if point == Point::Client && self.complete.is_whole(Point::Router) {
                    breaches.retain(|&(rule, _)| !rule.concerns_order());
                }
                let share = CONTENTS_MAX / self.totals.connections.max(1) as usize;
                breaches.extend(connection.compare(packet, at, share.min(CONTENTS_OF_ONE_MAX)));
                if self.complete.wires_are_whole(self.expected) {
                    breaches.extend(connection.check_commits(packet, at, self.expected));
                }
                breaches
            }
        };
        for breach in breaches {
            self.report(point, client, packet, breach);
        }
        if toward_client {
            self.take_voice(point, client, packet);
        }
    }

    /// Adds the packet's connection if it is not known.
    fn meet(&mut self, client: SocketAddr, packet: &CapturedSegment, toward_client: bool) {
        let known = self.connections.get(&client);
        if known.is_some_and(|known| toward_client || !known.is_replaced_by(packet)) {
            return;
        }
        let connection = JudgedConnection::new(packet, toward_client);
        self.totals.connections += 1;
        self.totals.without_beginning += u64::from(!connection.has_beginning);
        if let Some(before) = self.connections.insert(client, connection) {
            self.totals.count_contents(&before);
        }
    }

    fn take_reset(
        &mut self,
        point: Point,
        client: SocketAddr,
        packet: &CapturedSegment,
        toward_client: bool,
    ) {
        let connection = self.connections.get_mut(&client).expect("just met");
        if point != self.resets_at || connection.is_over(point) {
            return;
        }
        let (count, what) = if toward_client {
            (&mut self.totals.resets_to_client, "the client was reset")
        } else {
            (&mut self.totals.resets_from_client, "the client reset")
        };
        *count += 1;
        self.report(point, client, packet, (JudgeRule::NoReset, what.into()));
    }

    fn take_voice(&mut self, point: Point, client: SocketAddr, packet: &CapturedSegment) {
        if !self.complete.nodes_and_router_are_whole() {
            return;
        }
        let name = |node: usize| ["node a", "node b", "annex c", "annex d"][node];
        let breach = match self.voice.judge(point, packet, self.expected) {
            None => return,
            Some(Improper::PastWire { node }) => {
                let what = format!("from {} past the wire", name(node));
                (JudgeRule::ThroughWire, what)
            }
            Some(Improper::SecondVoice { node, speaker }) => {
                let what = format!("from {} while {} spoke", name(node), name(speaker));
                (JudgeRule::OneVoice, what)
            }
            Some(Improper::Stranger) => (JudgeRule::ThroughWire, "from neither node".into()),
        };
        self.report(point, client, packet, breach);
    }

    fn report(&mut self, point: Point, client: SocketAddr, packet: &CapturedSegment, (rule, what): Breach) {
        let toward_client = packet.source == self.expected.service;
        let direction = if toward_client { '>' } else { '<' };
        let at = self.connections.get_mut(&client).and_then(|connection| {
            // Numbers as Wireshark counts them: the SYN is 0, the first byte 1.
            let at = connection.locate(packet, toward_client).ok()?;
            let first = if packet.syn { 0 } else { at.start + 1 };
            Some((first, at.ack.unwrap_or(0) + 1))
        });
        let (seq, ack) = at.unwrap_or((u64::from(packet.seq.0), u64::from(packet.ack.0)));
        let seconds = (packet.at_ns - self.began_ns.unwrap_or(packet.at_ns)) as f64 / 1e9;
        let list = match rule {
            JudgeRule::NoReset => &mut self.resets,
            JudgeRule::KeepsWindow => &mut self.notes,
            JudgeRule::NoEarlyFin if self.expected.closing == Closing::Either => return,
            _ => &mut self.findings,
        };
        list.add(Finding {
            rule,
            client,
            point,
            at_ns: packet.at_ns,
            packet: packet.notation(seconds, direction, seq, ack),
            what,
            times: 1,
        });
    }

    fn verdict(mut self, evidence: Vec<Evidence>) -> JudgeVerdict {
        for connection in self.connections.values() {
            self.totals.count_contents(connection);
        }
        let (violations, violations_more) = self.findings.into_list();
        JudgeVerdict {
            connections: self.totals.connections,
            connections_without_beginning: self.totals.without_beginning,
            connections_taken_over: self.voice.taken_over(),
            resets_to_client: self.totals.resets_to_client,
            resets_from_client: self.totals.resets_from_client,
            violations,
            violations_more,
            resets: self.resets.into_list().0,
            notes: self.notes.into_list().0,
            unproven: self.complete.unproven(self.expected, &evidence),
            contents: ContentsChecked {
                compared: self.totals.compared,
                not_captured: self.totals.not_captured,
            },
            reigns: self.voice.into_reigns(),
            evidence,
            began_ns: self.began_ns.unwrap_or(0),
        }
    }
}

impl Totals {
    fn count_contents(&mut self, connection: &JudgedConnection) {
        self.compared += connection.compared();
        self.not_captured += connection.not_captured;
    }
}

impl Completeness {
    fn of(captures: &[Capture]) -> Self {
        let all = |condition: fn(&Capture) -> bool| {
            Point::ALL.map(|point| captures.iter().any(|one| one.point == point && condition(one)))
        };
        Self {
            there: all(|_| true),
            whole: all(|capture| capture.dropped == 0),
        }
    }

    fn has(self, point: Point) -> bool {
        self.there[point as usize]
    }

    fn is_whole(self, point: Point) -> bool {
        self.whole[point as usize]
    }

    fn wires_are_whole(self, expected: &Expectations) -> bool {
        expected.wires.iter().all(|wire| self.is_whole(NODES[wire.node]))
    }

    fn nodes_and_router_are_whole(self) -> bool {
        [Point::Router, Point::NodeA, Point::NodeB]
            .into_iter()
            .all(|point| self.is_whole(point))
    }

    fn unproven(self, expected: &Expectations, evidence: &[Evidence]) -> Vec<String> {
        let mut unproven = Vec::new();
        let points: Vec<_> = Point::ALL
            .into_iter()
            .filter(|&point| !self.is_whole(point))
            .map(|point| {
                let why = if self.has(point) {
                    "missed packets"
                } else {
                    "is not there"
                };
                format!("the capture at {} {why}", point.name())
            })
            .collect();
        if !points.is_empty() {
            unproven.push(format!("that nothing else happened: {}", points.join(", ")));
        }
        if !self.wires_are_whole(expected) {
            unproven.push("the commit rules: they need every packet of the wire".into());
        }
        if !self.nodes_and_router_are_whole() {
            unproven.push(
                "one-voice and through-wire: they need every packet of both nodes and the router".into(),
            );
        }
        for one in evidence {
            let place = one.point.name();
            if one.unreadable > 0 {
                let count = one.unreadable;
                unproven.push(format!(
                    "{count} TCP segments at {place} whose headers cannot be read"
                ));
            }
            if one.frames != one.frames_captured {
                let (there, captured) = (one.frames, one.frames_captured);
                unproven.push(format!(
                    "the file of {place} has {there} of the {captured} captured packets"
                ));
            }
        }
        unproven
    }
}

/// The points of node a and node b.
const NODES: [Point; 2] = [Point::NodeA, Point::NodeB];

#[cfg(test)]
mod tests;
