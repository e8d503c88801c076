//! The judge's input (expectations) and its output (verdict).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, SocketAddr};

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;

use super::packet::CapturedSegment;
use crate::capture::Point;

/// The judge's expectations of the captures. Times are nanoseconds of the captures' clock.
#[derive(Clone, Debug)]
pub struct Expectations {
    /// The service: VIP and port.
    pub service: SocketAddr,
    /// Only connections from these addresses are judged. If the list is empty, all connections are judged.
    pub clients: Vec<IpAddr>,
    /// The nodes' Ethernet addresses: node a, node b.
    pub macs: [[u8; 6]; 2],
    /// The Ethernet addresses of the annexes. Annex k is node 2 + k. It speaks only through a wire.
    pub annexes: Vec<[u8; 6]>,
    /// The Ethernet address of the router's interface to the nodes.
    pub router_mac: [u8; 6],
    /// The service's promises; see [`CommitMode`].
    pub mode: CommitMode,
    /// The wires, in order of time. If empty, as without Steadfast, the service promises nothing.
    pub wires: Vec<WireSpan>,
    /// Times from which another node may begin to speak: faults and handovers, in order. Each time allows one change of the speaking node.
    pub role_changes_ns: Vec<u64>,
    /// Whether such a change concerns the whole service or single connections.
    pub speaking: Speaking,
    /// The end that may close connections first.
    pub closing: Closing,
    /// Whether clients may be slowed (`at_limit = "slow"`): the wire then changes windows, and repeats acknowledgements of the
    /// primary.
    pub may_slow: bool,
}

/// A commit mode (FT-TCP). It says which packets go through the wire, and so what the service promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CommitMode {
    /// Both directions through the wire.
    #[default]
    Prs,
    /// Input and SYN-ACKs through the wire, other output straight from the primary.
    Pr,
    /// As `Pr`, and packets for which the log has no room pass unlogged. So the wire need not have seen what is acknowledged or answered.
    Immediate,
}

/// A span of time in which one node is the wire: the node logs each packet before it releases the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireSpan {
    /// 0: node a, 1: node b.
    pub node: usize,
    /// Time from which output goes through the node.
    pub from_ns: u64,
    /// Time from which input goes through the node, too.
    pub hears_from_ns: u64,
    /// End of the span. `u64::MAX`: the span lasts to the end of the captures.
    pub until_ns: u64,
}

/// The unit for which one node speaks at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speaking {
    /// The service: one node speaks for all its connections.
    ForAll,
    /// Each connection: one node may continue some connections while the other node continues the rest.
    ForEachConnection,
}

/// The end that may send the first FIN of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Closing {
    /// The client. If the service sends its FIN first, the connection counts as lost.
    ClientFirst,
    /// Either end.
    Either,
}

/// The rules. See [the module](super) for their exact words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JudgeRule {
    /// No reset.
    NoReset,
    /// No FIN of the service before the client's FIN.
    NoEarlyFin,
    /// The service acknowledges only input that the wire has seen before.
    InputCommit,
    /// The service sends only output that the wire has seen before.
    OutputCommit,
    /// The service answers only SYNs that the wire has seen before.
    OpenCommit,
    /// Nothing goes past the wire.
    ThroughWire,
    /// One node speaks at a time.
    OneVoice,
    /// The byte at an offset never changes.
    SameContent,
    /// A stream has one initial sequence number, and its segments are near the bytes sent before.
    OneSequence,
    /// Acknowledged bytes are not asked for again.
    KeepsAcknowledged,
    /// Timestamps do not go back.
    KeepsTime,
    /// The window's right edge does not go back. A breach is only a note, because RFC 9293 §3.8.6 discourages it but allows it.
    KeepsWindow,
}

impl JudgeRule {
    /// Whether segments that overtake each other on their way can break the rule.
    pub(super) fn concerns_order(self) -> bool {
        matches!(
            self,
            Self::KeepsAcknowledged | Self::KeepsTime | Self::KeepsWindow
        )
    }
}

/// A breach of a rule, or something unusual.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The rule.
    pub rule: JudgeRule,
    /// The connection, by its client's address.
    pub client: SocketAddr,
    /// The capture point that shows the breach.
    pub point: Point,
    /// Time of the first breach.
    pub at_ns: u64,
    /// The packet in packetdrill's notation, with seconds since the captures began.
    pub packet: String,
    /// Text that describes the breach.
    pub what: String,
    /// Number of times this connection broke this rule at this point.
    pub times: u64,
}

/// A period in which a node spoke for the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reign {
    /// 0: node a, 1: node b.
    pub node: usize,
    /// Time of its first segment.
    pub from_ns: u64,
    /// Number of connections for which the node spoke after the other node had spoken.
    pub taken_over: u64,
}

/// Numbers of frames and segments in one capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The capture point.
    pub point: Point,
    /// Frames in the file.
    pub frames: u64,
    /// Frames that tcpdump reported as captured.
    pub frames_captured: u64,
    /// TCP segments of the service in the file.
    pub segments: u64,
    /// TCP segments that could not be read.
    pub unreadable: u64,
    /// Frames that the capture missed.
    pub dropped: u64,
}

/// How far contents were compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ContentsChecked {
    /// Bytes of the service seen again at the same offset and compared.
    pub compared: u64,
    /// Bytes of the service that the captures did not keep. Only the clients have compared these bytes.
    pub not_captured: u64,
}

/// The judge's verdict.
#[derive(Clone, Debug, Serialize)]
pub struct JudgeVerdict {
    /// Connections seen.
    pub connections: u64,
    /// Connections whose beginning was not captured. The commit rules were not applied to them.
    pub connections_without_beginning: u64,
    /// Connections for which a node spoke after the other had spoken.
    pub connections_taken_over: u64,
    /// RSTs of the service that reached the client.
    pub resets_to_client: u64,
    /// RSTs of the client.
    pub resets_from_client: u64,
    /// Breaches of rules, in order of time; at most [`FINDINGS_MAX`].
    pub violations: Vec<Finding>,
    /// Number of violations that `violations` does not list.
    pub violations_more: u64,
    /// The RSTs.
    pub resets: Vec<Finding>,
    /// Unusual but allowed events.
    pub notes: Vec<Finding>,
    /// Claims that these captures cannot prove, with the reasons.
    pub unproven: Vec<String>,
    /// How far contents were compared.
    pub contents: ContentsChecked,
    /// The periods in which each node spoke.
    pub reigns: Vec<Reign>,
    /// The captures.
    pub evidence: Vec<Evidence>,
    /// The first packet's time.
    pub began_ns: u64,
}

/// Maximum number of findings of each kind that are kept.
pub const FINDINGS_MAX: usize = 1000;

impl JudgeVerdict {
    /// RSTs in either direction, as the client saw them.
    pub fn resets_seen(&self) -> u64 {
        self.resets_to_client + self.resets_from_client
    }

    /// Whether no rule was broken, no connection was reset, and the captures suffice to prove it.
    #[cfg(test)]
    pub fn holds(&self) -> bool {
        self.violations.is_empty() && self.resets_seen() == 0 && self.unproven.is_empty()
    }
}

impl Expectations {
    /// Checks that the expectations do not contradict themselves.
    ///
    /// # Errors
    /// Names the contradiction.
    pub fn check(&self) -> anyhow::Result<()> {
        for (i, wire) in self.wires.iter().enumerate() {
            ensure!(
                wire.node < 2,
                "wires[{i}].node = {}: only 0 and 1 exist",
                wire.node
            );
            ensure!(wire.from_ns < wire.until_ns, "wires[{i}] ends before it begins");
            ensure!(
                wire.from_ns <= wire.hears_from_ns,
                "wires[{i}] hears before it begins"
            );
            let overlaps = i > 0 && self.wires[i - 1].until_ns > wire.from_ns;
            ensure!(!overlaps, "wires[{i}] begins before the one before it ends");
        }
        ensure!(
            self.role_changes_ns.is_sorted(),
            "role_changes_ns is not in order of time"
        );
        let macs: Vec<_> = self.senders().collect();
        ensure!(
            macs.iter().enumerate().all(|(i, mac)| !macs[..i].contains(mac)),
            "two nodes have the same Ethernet address"
        );
        Ok(())
    }

    /// Whether connections from `client` are judged.
    pub fn is_judged(&self, client: IpAddr) -> bool {
        self.clients.is_empty() || self.clients.contains(&client)
    }

    /// The Ethernet addresses of all nodes that may make segments of the service, by their numbers.
    pub fn senders(&self) -> impl Iterator<Item = [u8; 6]> + '_ {
        self.macs.iter().chain(&self.annexes).copied()
    }

    /// Whether the host at `point` sent the frame or is its destination. A switch floods frames for which it knows no port.
    pub fn concerns(&self, point: Point, packet: &CapturedSegment) -> bool {
        let own = match point {
            Point::Client | Point::Server => return true,
            Point::Router => self.router_mac,
            Point::NodeA => self.macs[0],
            Point::NodeB => self.macs[1],
        };
        [packet.source_mac, packet.destination_mac].contains(&own)
    }

    /// The wire at `at_ns`, with its index in `wires`.
    pub fn wire_at(&self, at_ns: u64) -> Option<(usize, WireSpan)> {
        let reaches = |wire: &&WireSpan| (wire.from_ns..wire.until_ns).contains(&at_ns);
        self.wires
            .iter()
            .enumerate()
            .find(|(_, wire)| reaches(wire))
            .map(|(i, &wire)| (i, wire))
    }
}

/// Findings, one for each connection, rule and point.
#[derive(Debug, Default)]
pub struct FindingSet {
    /// By rule, client and point.
    found: BTreeMap<(JudgeRule, SocketAddr, usize), Finding>,
    more: u64,
}

impl FindingSet {
    /// Adds a finding.
    pub fn add(&mut self, finding: Finding) {
        let full = self.found.len() >= FINDINGS_MAX;
        match self
            .found
            .entry((finding.rule, finding.client, finding.point as usize))
        {
            Entry::Occupied(mut before) => before.get_mut().times += finding.times,
            Entry::Vacant(_) if full => self.more += 1,
            Entry::Vacant(place) => {
                place.insert(finding);
            }
        }
    }

    /// The findings in order of time, and the number of findings that were not kept.
    pub fn into_list(self) -> (Vec<Finding>, u64) {
        let mut list: Vec<_> = self.found.into_values().collect();
        list.sort_by_key(|finding| finding.at_ns);
        (list, self.more)
    }
}
