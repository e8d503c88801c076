//! What an SCTP sender does after a timeout, packet by packet (paper: Caro, Amer, Stewart, sections II and III.7). The paper's closed forms
//! describe these runs. No run has anything random.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use proto::Instant;
use proto::sctp::association::AssociationEvent;
use proto::sctp::chunk::SctpChunk;
use proto::sctp::failover::FailoverPolicy;
use proto::sctp::failover::temporary::DormantAction;
use proto::sctp::{PathId, SctpConfig, SctpMessage, Tsn, UserData};
use serde::Deserialize;

use crate::flow::seconds;
use crate::multipath::{InvalidMultipath, MultipathNetwork, PathConfig, PathCutTime, SctpDeparture};

/// Bytes of a full packet's chunk: the amount by which the packet fills a window.
const CHUNK_BYTES: u32 = 1468;
/// Bytes of data in a full packet.
const DATA_BYTES: u32 = 1452;
/// Round trip of a full packet on the paper's primary path, in seconds: 90 ms, the packet's time on the links, and the SACK's wait for a
/// second packet.
const ROUND_TRIP_S: f64 = 0.0945;

/// A scenario of the paper's Figure 8. Packet A leaves alone on the primary path, is lost and times out. More data waits.
///
/// ```text
///                              first packet to the primary    first packet to the alternate
///   scenario 1                 arrives                        arrives
///   scenario 2                 arrives                        is lost
///   scenario 3                 is lost                        arrives
///   scenario 4                 is lost                        is lost
/// ```
#[derive(Clone, Debug)]
pub struct TimeoutScenario {
    /// Path.Max.Retrans (PMR).
    pub path_max_retrans: u32,
    /// Whether the first packet after the timeout is lost on the primary path and on the alternate path.
    pub lost: [bool; 2],
    /// Delays of the core links.
    pub delays: [Duration; 2],
    /// Initial congestion window, in packets. The figure has 1.
    pub initial_window_packets: u32,
}

/// A packet that the sender sent after the timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketAfterTimeout {
    /// Time since the timeout.
    pub after: Duration,
    /// The path: 0 is the primary, 1 the alternate.
    pub path: usize,
    /// TSN of the packet's data minus A's. `None` for a heartbeat.
    pub number: Option<u32>,
}

impl TimeoutScenario {
    /// Number of the paper's scenario, from 1 to 4.
    pub fn number(&self) -> u32 {
        1 + 2 * u32::from(self.lost[0]) + u32::from(self.lost[1])
    }

    /// Plays the scenario. Returns what the sender sends in the three seconds after the timeout.
    ///
    /// # Errors
    /// If a field is invalid.
    pub fn run(&self) -> Result<Vec<PacketAfterTimeout>, InvalidMultipath> {
        let config = SctpConfig {
            path_max_retrans: self.path_max_retrans,
            heartbeat_interval: None,
            initial_window: CHUNK_BYTES * self.initial_window_packets,
            // In the figure, new data is sent together with A's retransmission. In ns-2, which gave the paper's numbers, new data waits for
            // a SACK after a timeout.
            holds_new_after_timeout: false,
            // In the figure, A waits for its second timeout. In ns-2, A would be fast retransmitted before.
            fast_retransmits_after_timeout: false,
            failover: FailoverPolicy::Temporary {
                dormant: DormantAction::Hop,
                change_over: None,
            },
            ..SctpConfig::paper()
        };
        let paths = self.delays.map(|delay| PathConfig {
            delay,
            ..PathConfig::default()
        });
        let mut network = MultipathNetwork::new([config; 2], &paths, 1)?;
        network.connect();
        let second = |number| Instant::ZERO + Duration::from_secs(number);
        run(&mut network, second(10), usize::MAX);
        run(&mut network, second(20), 0);
        let begun = network.now();
        let sent = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&sent);
        let (mut a, mut timed_out_at, mut to_lose) = (None::<Tsn>, None::<Instant>, self.lost);
        network.set_loss(move |departure| {
            let number = tsn(departure);
            if departure.host == 1 || number.is_none() && !is_heartbeat(departure) {
                return false;
            }
            let Some(first) = a else {
                a = number;
                return true;
            };
            let at = *timed_out_at.get_or_insert(departure.at);
            log.borrow_mut().push(PacketAfterTimeout {
                after: departure.at.since(at),
                path: departure.path,
                number: number.map(|tsn| tsn.distance_from(first).cast_unsigned()),
            });
            std::mem::take(&mut to_lose[departure.path])
        });
        use_host(&mut network, 0, 1);
        network.settle(0);
        run(&mut network, begun + Duration::from_secs(4), usize::MAX);
        Ok(sent.take())
    }
}

/// A bulk transfer whose primary path is cut (section II).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailureDetection {
    /// Path.Max.Retrans (PMR).
    pub path_max_retrans: u32,
    /// Duration of the first timeout. Later timeouts take at most 60 s.
    #[serde(with = "seconds")]
    pub rto: Duration,
}

impl FailureDetection {
    /// Time from the cut to the declared failure. `None` if the sender declares none within 900 s.
    ///
    /// # Errors
    /// If a field is invalid.
    pub fn run(&self) -> Result<Option<Duration>, InvalidMultipath> {
        let cut = PathCutTime {
            from: Duration::from_secs(100),
            until: Duration::from_secs(100_000),
        };
        let paths = [
            PathConfig {
                cuts: vec![cut],
                ..PathConfig::default()
            },
            PathConfig::default(),
        ];
        let config = SctpConfig {
            path_max_retrans: self.path_max_retrans,
            rto_min: self.rto,
            rto_initial: self.rto,
            heartbeat_interval: None,
            // If the sender waited for a SACK before it sends new data, each delayed SACK would add to the detection.
            holds_new_after_timeout: false,
            ..SctpConfig::paper()
        };
        let mut network = MultipathNetwork::new([config; 2], &paths, 1)?;
        network.connect();
        let failed = AssociationEvent::PathFailed(PathId(0));
        while let Some(host) = network.step(Instant::ZERO + Duration::from_secs(1000)) {
            // Few packets are unacknowledged at any time, so that the last packet before the cut is answered.
            let unacknowledged = network
                .association(host)
                .map_or(0, |association| association.unacknowledged());
            use_host(&mut network, host, if unacknowledged < 3000 { 1 } else { 0 });
            network.settle(host);
            if let Some((at, _)) = network.events(0).iter().find(|(_, event)| *event == failed) {
                return Ok(Some(at.since(Instant::ZERO + cut.from)));
            }
        }
        Ok(None)
    }
}

/// A transfer without loss whose slow start ends at `threshold_packets` (Eq. 2 to 9).
#[derive(Clone, Copy, Debug)]
pub struct WindowGrowth {
    /// Slow start threshold, in packets.
    pub threshold_packets: u32,
    /// Receive buffer, in bytes. It must hold every window of the run.
    pub receive_buffer: u32,
}

impl WindowGrowth {
    /// Number of packets with data in each of the first 20 round trips.
    ///
    /// # Errors
    /// If a field is invalid.
    pub fn run(&self) -> Result<[u32; 20], InvalidMultipath> {
        let config = SctpConfig {
            initial_window: CHUNK_BYTES,
            initial_threshold: Some(self.threshold_packets * CHUNK_BYTES),
            receive_buffer: self.receive_buffer,
            send_buffer: 2 << 20,
            heartbeat_interval: None,
            // The equations do not model that a SACK waits for a second packet.
            sack_delay: Duration::from_millis(3),
            max_burst: 100,
            ..SctpConfig::paper()
        };
        let mut network = MultipathNetwork::new([config; 2], &[PathConfig::default()], 1)?;
        let times = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&times);
        network.set_loss(move |departure| {
            if departure.host == 0 && tsn(departure).is_some() {
                log.borrow_mut().push(departure.at);
            }
            false
        });
        network.connect();
        run(&mut network, Instant::ZERO + Duration::from_secs(4), usize::MAX);
        let times = times.take();
        let mut counts = [0; 20];
        for at in &times {
            let round = at.since(times[0]).as_secs_f64() / ROUND_TRIP_S;
            if let Some(count) = counts.get_mut(round as usize) {
                *count += 1;
            }
        }
        Ok(counts)
    }
}

/// The TSN of a packet's data.
fn tsn(departure: &SctpDeparture<'_>) -> Option<Tsn> {
    departure.packet.chunks.iter().find_map(|chunk| match chunk {
        SctpChunk::Data(data) => Some(data.tsn),
        _ => None,
    })
}

fn is_heartbeat(departure: &SctpDeparture<'_>) -> bool {
    matches!(departure.packet.chunks[0], SctpChunk::Heartbeat(_))
}

/// Reads what has arrived at `host`. If `host` is 0, sends at most `most` messages, as long as the send buffer has room.
fn use_host(network: &mut MultipathNetwork, host: usize, most: usize) {
    let Some(association) = network.association(host) else {
        return;
    };
    while association.receive().is_some() {}
    let message = SctpMessage {
        stream: 0,
        protocol: 0,
        is_unordered: false,
        data: UserData::Counted(DATA_BYTES),
    };
    let mut sent = 0;
    while host == 0 && sent < most && association.send(message.clone()).is_ok() {
        sent += 1;
    }
}

/// Runs to `until`. Host 0 sends at most `most` messages at a time.
fn run(network: &mut MultipathNetwork, until: Instant, most: usize) {
    while let Some(host) = network.step(until) {
        use_host(network, host, most);
        network.settle(host);
    }
}
