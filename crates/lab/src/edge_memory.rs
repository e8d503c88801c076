//! `steadfast-lab halr-memory`: estimates how much memory the edges would have needed for a capture's connections (HALR thesis §3.4).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use proto::edge::EdgeSegment;
use proto::edge::cache::{Cache, CacheConfig, CachePolicy, SecondPacket};
use serde::Serialize;

use crate::run::{LabOutcome, WrongUse, conclude};
use judge::packet::CapturedSegment;
use judge::pcap::{PcapError, PcapReader};

/// Estimate from a capture how much memory the two edges of a cluster would need if they cached packets all the time.
///
/// The estimate assumes that both edges are where the capture was made: R1 towards the clients, R2 towards the servers.
#[derive(Clone, Debug, Args)]
pub struct EdgeMemoryOptions {
    /// A capture in the classic pcap format, of Ethernet.
    #[arg(value_name = "PCAP")]
    capture: PathBuf,
    /// Make a second estimate that includes only this many connections, those with the most bytes.
    #[arg(long, default_value_t = 100)]
    heaviest: usize,
    /// Forget a connection after this many seconds of silence.
    #[arg(long, default_value_t = 64, value_name = "SECONDS")]
    idle: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Counts of what the capture contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct CaptureCounts {
    packets: u64,
    /// Number of TCP packets.
    tcp: u64,
    /// TCP packets whose headers cannot be read.
    unreadable: u64,
    connections: usize,
    /// The part of the capture that was not read, and the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_read: Option<String>,
}

/// The peak of both edges' memory together, for one policy and one set of connections.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct EdgeMemoryPeak {
    policy: &'static str,
    /// "all" or "heaviest".
    connections: &'static str,
    peak_bytes: usize,
    peak_packets: usize,
    /// Number of connections in memory at the time of the peak, at the edge that held more of them.
    connections_at_peak: usize,
    /// Bytes at both edges together, divided by `connections_at_peak`.
    bytes_per_connection: f64,
}

#[derive(Clone, Debug, Serialize)]
struct EdgeMemoryReport {
    read: CaptureCounts,
    heaviest: usize,
    held: Vec<EdgeMemoryPeak>,
}

const POLICIES: [(CachePolicy, &str); 3] = [
    (CachePolicy::Syn, "syn"),
    (CachePolicy::Lowest, "lowest"),
    (CachePolicy::All, "all"),
];

const THESIS: &str = "The thesis' trace, AUCK-4 (NLANR, 2001), is not available. With one data packet and one ACK per \
connection, the thesis found in that trace: at most 792 Kbytes, on average 305 bytes per connection.";

/// Reads the capture and prints the estimate.
///
/// # Errors
/// [`WrongUse`] if the file is not a pcap file of Ethernet or ends too early. If it ends too early, the estimate for the part that was
/// read is printed first.
pub fn run(options: &EdgeMemoryOptions) -> Result<LabOutcome> {
    let report = estimate(
        &options.capture,
        options.heaviest,
        Duration::from_secs(options.idle),
    )?;
    let outcome = conclude(options.json, true, &report, || print(&report))?;
    match report.read.not_read {
        Some(not_read) => Err(WrongUse(not_read).into()),
        None => Ok(outcome),
    }
}

fn estimate(capture: &Path, heaviest: usize, idle: Duration) -> Result<EdgeMemoryReport> {
    let mut connections = CapturedConnections::default();
    let read = each_packet(capture, |packet, bytes| connections.count(packet, bytes))?;
    let heavy = connections.heaviest(heaviest);
    let mut memories = Vec::new();
    for (policy, name) in POLICIES {
        memories.push(EdgeMemories::new(policy, name, "all", None));
        memories.push(EdgeMemories::new(policy, name, "heaviest", Some(heavy.clone())));
    }
    let mut clock = IdleTracker::default();
    each_packet(capture, |packet, bytes| {
        let (key, from_client) = connections.find(packet);
        for silent in clock.seen(key, packet.at_ns, idle) {
            memories.iter_mut().for_each(|memory| memory.forget(silent));
        }
        for memory in &mut memories {
            memory.see(key, from_client, packet, bytes);
        }
    })?;
    Ok(EdgeMemoryReport {
        read: CaptureCounts {
            connections: connections.known.len(),
            ..read
        },
        heaviest,
        held: memories.into_iter().map(|memory| memory.held).collect(),
    })
}

/// Calls `see` with each TCP packet and its length on the wire, up to the end of the readable part.
fn each_packet(
    capture: &Path,
    mut see: impl FnMut(&CapturedSegment, usize),
) -> Result<CaptureCounts, WrongUse> {
    let refused = |error: PcapError| WrongUse(format!("{error}; nothing was read"));
    let mut reader = PcapReader::open(capture).map_err(refused)?;
    let mut read = CaptureCounts::default();
    loop {
        let record = match reader.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(read),
            Err(error) => {
                read.not_read = Some(format!(
                    "{error}; the {} packets before it were read, nothing behind it",
                    read.packets
                ));
                return Ok(read);
            }
        };
        read.packets += 1;
        match CapturedSegment::read(&record) {
            Ok(Some(packet)) => {
                read.tcp += 1;
                see(&packet, record.original_len as usize);
            }
            Ok(None) => (),
            Err(_) => {
                read.tcp += 1;
                read.unreadable += 1;
            }
        }
    }
}

/// The capture's connections, numbered in the order of their first packets.
#[derive(Default)]
struct CapturedConnections {
    /// Key: both addresses, sorted. Value: number, the client's address, bytes.
    known: BTreeMap<[SocketAddr; 2], (u32, SocketAddr, u64)>,
}

impl CapturedConnections {
    fn ends(packet: &CapturedSegment) -> [SocketAddr; 2] {
        let mut ends = [packet.source, packet.destination];
        ends.sort();
        ends
    }

    /// Counts a packet. The client is the sender of the SYN or, if the capture lacks the SYN, the sender of the first packet.
    fn count(&mut self, packet: &CapturedSegment, bytes: usize) {
        let number = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        let client = if packet.syn && packet.has_ack {
            packet.destination
        } else {
            packet.source
        };
        let known = self
            .known
            .entry(Self::ends(packet))
            .or_insert((number, client, 0));
        known.2 += bytes as u64;
        if packet.syn && !packet.has_ack {
            known.1 = packet.source;
        }
    }

    /// The connection's number, and whether the client sent the packet. Every packet has been counted before.
    fn find(&self, packet: &CapturedSegment) -> (u32, bool) {
        let (number, client, _) = self.known[&Self::ends(packet)];
        (number, packet.source == client)
    }

    fn heaviest(&self, count: usize) -> BTreeSet<u32> {
        let mut by_bytes: Vec<_> = self
            .known
            .values()
            .map(|(number, _, bytes)| (*bytes, *number))
            .collect();
        by_bytes.sort_by_key(|(bytes, number)| (std::cmp::Reverse(*bytes), *number));
        by_bytes
            .into_iter()
            .take(count)
            .map(|(_, number)| number)
            .collect()
    }
}

/// When each connection was last seen.
#[derive(Default)]
struct IdleTracker {
    last: BTreeMap<u32, u64>,
    order: BTreeSet<(u64, u32)>,
}

impl IdleTracker {
    /// Notes a packet of connection `key`. Returns the connections that have been silent for longer than `idle`, and forgets them.
    fn seen(&mut self, key: u32, at_ns: u64, idle: Duration) -> Vec<u32> {
        if let Some(before) = self.last.insert(key, at_ns) {
            self.order.remove(&(before, key));
        }
        self.order.insert((at_ns, key));
        let idle = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let mut silent = Vec::new();
        while let Some((at, key)) = self
            .order
            .first()
            .copied()
            .filter(|(at, _)| at_ns.saturating_sub(*at) > idle)
        {
            self.order.remove(&(at, key));
            self.last.remove(&key);
            silent.push(key);
        }
        silent
    }
}

/// The only string of an edge: that of all connections of the capture.
const STRING: usize = 0;

/// Both edges' memories with one policy.
struct EdgeMemories {
    edges: [Cache<u32, ()>; 2],
    only: Option<BTreeSet<u32>>,
    held: EdgeMemoryPeak,
}

impl EdgeMemories {
    fn new(
        policy: CachePolicy,
        name: &'static str,
        connections: &'static str,
        only: Option<BTreeSet<u32>>,
    ) -> Self {
        let config = CacheConfig {
            policy,
            second: SecondPacket::Acknowledgement,
            max_bytes: usize::MAX,
            max_packets: usize::MAX,
            max_connection_bytes: usize::MAX,
        };
        let cache = || Cache::new(config, STRING + 1);
        Self {
            edges: [cache(), cache()],
            only,
            held: EdgeMemoryPeak {
                policy: name,
                connections,
                peak_bytes: 0,
                peak_packets: 0,
                connections_at_peak: 0,
                bytes_per_connection: 0.0,
            },
        }
    }

    fn see(&mut self, key: u32, from_client: bool, packet: &CapturedSegment, bytes: usize) {
        if self.only.as_ref().is_some_and(|only| !only.contains(&key)) {
            return;
        }
        let segment = EdgeSegment {
            seq: packet.seq,
            len: packet.payload_len,
            ack: packet.has_ack.then_some(packet.ack),
            syn: packet.syn,
            fin: packet.fin,
            rst: packet.rst,
        };
        let [towards_clients, towards_servers] = &mut self.edges;
        let (enters, leaves) = if from_client {
            (towards_clients, towards_servers)
        } else {
            (towards_servers, towards_clients)
        };
        enters.on_entering(STRING, key, &segment, bytes, false, || ());
        leaves.on_leaving(STRING, key, &segment, bytes, || ());
        self.note();
    }

    fn forget(&mut self, key: u32) {
        self.edges.iter_mut().for_each(|edge| edge.forget(STRING, key));
    }

    /// Updates the peak.
    fn note(&mut self) {
        let sum = |of: fn(&Cache<u32, ()>) -> usize| self.edges.iter().map(of).sum::<usize>();
        let bytes = sum(|edge| edge.counts(STRING).bytes);
        if bytes > self.held.peak_bytes {
            let connections = self
                .edges
                .iter()
                .map(|edge| edge.connections(STRING))
                .max()
                .unwrap_or(0);
            self.held.peak_packets = sum(|edge| edge.counts(STRING).packets);
            self.held.peak_bytes = bytes;
            self.held.connections_at_peak = connections;
            self.held.bytes_per_connection = bytes as f64 / connections.max(1) as f64;
        }
    }
}

fn print(report: &EdgeMemoryReport) {
    let CaptureCounts {
        packets,
        tcp,
        unreadable,
        connections,
        ..
    } = report.read;
    say!("{packets} packets, {tcp} of TCP ({unreadable} unreadable), {connections} connections");
    say!(
        "{:8} {:14} {:>12} {:>8} {:>12} {:>16}",
        "policy",
        "connections",
        "peak bytes",
        "packets",
        "connections",
        "bytes/connection"
    );
    for held in &report.held {
        let which = if held.connections == "all" {
            "all".to_owned()
        } else {
            format!("heaviest {}", report.heaviest)
        };
        say!(
            "{:8} {which:14} {:12} {:8} {:12} {:16.0}",
            held.policy,
            held.peak_bytes,
            held.peak_packets,
            held.connections_at_peak,
            held.bytes_per_connection
        );
    }
    say!("{THESIS}");
}

#[cfg(test)]
mod tests {
    use std::fs;

    use etherparse::PacketBuilder;

    use super::*;

    /// A TCP packet in a record at `second`.
    fn record(
        second: u32,
        client: u16,
        from_client: bool,
        seq: u32,
        ack: Option<u32>,
        syn: bool,
        len: usize,
    ) -> Vec<u8> {
        let (from, to, ports) = if from_client {
            ([10, 0, 0, 1], [10, 0, 0, 2], (client, 80))
        } else {
            ([10, 0, 0, 2], [10, 0, 0, 1], (80, client))
        };
        let mut builder = PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4(from, to, 64)
            .tcp(ports.0, ports.1, seq, 1000);
        if let Some(ack) = ack {
            builder = builder.ack(ack);
        }
        if syn {
            builder = builder.syn();
        }
        let mut frame = Vec::new();
        builder.write(&mut frame, &vec![7; len]).unwrap();
        let len = u32::try_from(frame.len()).unwrap();
        let mut record: Vec<u8> = [second, 0, len, len]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        record.extend(frame);
        record
    }

    fn capture(records: &[Vec<u8>]) -> Vec<u8> {
        let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1];
        let mut file: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        records.iter().for_each(|record| file.extend(record));
        file
    }

    fn three() -> Vec<Vec<u8>> {
        vec![
            record(1, 1000, true, 99, None, true, 0),
            record(1, 1000, false, 499, Some(100), true, 0),
            record(1, 1000, true, 100, Some(500), false, 1000),
            record(1, 1000, true, 1100, Some(500), false, 1000),
            record(1, 2000, true, 100, Some(500), false, 10),
        ]
    }

    fn estimated(bytes: &[u8], heaviest: usize) -> EdgeMemoryReport {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("some.pcap");
        fs::write(&file, bytes).unwrap();
        estimate(&file, heaviest, Duration::from_secs(10)).unwrap()
    }

    fn peak(report: &EdgeMemoryReport, policy: &str, connections: &str) -> usize {
        let held = report
            .held
            .iter()
            .find(|held| held.policy == policy && held.connections == connections);
        held.unwrap().peak_bytes
    }

    #[test]
    fn all_holds_more_than_the_lowest_and_the_heaviest_less_than_all() {
        let report = estimated(&capture(&three()), 1);
        assert_eq!(
            (report.read.packets, report.read.tcp, report.read.connections),
            (5, 5, 2)
        );
        let (lowest, all) = (peak(&report, "lowest", "all"), peak(&report, "all", "all"));
        assert_eq!(all - lowest, 1054, "the second packet of the same connection");
        assert!(peak(&report, "lowest", "heaviest") < lowest);
        assert!(peak(&report, "syn", "all") < 200);
    }

    #[test]
    fn who_is_silent_is_forgotten() {
        let one = |second, client| record(second, client, true, 100, Some(500), false, 1000);
        let together = estimated(&capture(&[one(1, 1000), one(2, 2000)]), 9);
        let apart = estimated(&capture(&[one(1, 1000), one(20, 2000)]), 9);
        assert!(peak(&apart, "lowest", "all") < peak(&together, "lowest", "all"));
    }

    #[test]
    fn a_cut_file_is_told_with_what_was_read_and_another_link_is_refused() {
        let mut bytes = capture(&three());
        bytes.truncate(bytes.len() - 5);
        let report = estimated(&bytes, 1);
        assert_eq!(report.read.packets, 4);
        let not_read = report.read.not_read.unwrap();
        assert!(not_read.contains("cut off in the data of packet 4"), "{not_read}");
        assert!(not_read.ends_with("the 4 packets before it were read, nothing behind it"));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("some.pcap");
        bytes[20] = 113;
        fs::write(&file, &bytes).unwrap();
        let error = estimate(&file, 1, Duration::from_secs(1)).unwrap_err();
        assert!(
            error.is::<WrongUse>() && error.to_string().ends_with("nothing was read"),
            "{error}"
        );
    }
}
