//! Tests that each rule notices a breach. A test builds the captures of one conversation packet by packet, with one
//! fault in them, or none.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use proto::Seq;
use proto::packet::{Flags, Segment, TcpOptions, Timestamps};
use tempfile::TempDir;

use super::survey::Entrance;
use super::verdict::WireSpan;
use super::*;

mod annexes;
mod captures;
mod commits;
mod rounds;
mod voices;

const SERVICE: &str = "10.2.0.100:80";

const CLIENT: &str = "10.1.0.2:40000";

const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0x10];

const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0x11];

const MAC_ROUTER: [u8; 6] = [2, 0, 0, 0, 2, 1];

/// Initial sequence numbers. The streams begin just below the wrap.
const CLIENT_ISN: u32 = 0xffff_fff0;

const SERVICE_ISN: u32 = 0xffff_ff00;

const START_NS: u64 = 1_700_000_000_000_000_000;

const MS: u64 = 1_000_000;

/// Travel time of a packet from one capture point to the next, in nanoseconds.
const HOP_NS: u64 = 1_000;

/// The way of one packet: each capture point that it passes, with the packet's Ethernet source and destination at that point.
type PacketRoute = &'static [(Point, [u8; 6], [u8; 6])];

const FROM_CLIENT: PacketRoute = &[
    (Point::Client, [0; 6], [0; 6]),
    (Point::Router, MAC_ROUTER, MAC_B),
    (Point::NodeB, MAC_ROUTER, MAC_B),
    (Point::NodeB, MAC_B, MAC_A),
    (Point::NodeA, MAC_B, MAC_A),
];

const FROM_PRIMARY: PacketRoute = &[
    (Point::NodeA, MAC_A, MAC_B),
    (Point::NodeB, MAC_A, MAC_B),
    (Point::NodeB, MAC_B, MAC_ROUTER),
    (Point::Router, MAC_B, MAC_ROUTER),
    (Point::Client, [0; 6], [0; 6]),
];

const FROM_SURVIVOR: PacketRoute = &[
    (Point::NodeB, MAC_B, MAC_ROUTER),
    (Point::Router, MAC_B, MAC_ROUTER),
    (Point::Client, [0; 6], [0; 6]),
];

const TO_SURVIVOR: PacketRoute = &[
    (Point::Client, [0; 6], [0; 6]),
    (Point::Router, MAC_ROUTER, MAC_B),
    (Point::NodeB, MAC_ROUTER, MAC_B),
];

const STRAIGHT_TO_PRIMARY: PacketRoute = &[
    (Point::Client, [0; 6], [0; 6]),
    (Point::Router, MAC_ROUTER, MAC_A),
    (Point::NodeA, MAC_ROUTER, MAC_A),
];

const PAST_THE_WIRE: PacketRoute = &[
    (Point::NodeA, MAC_A, MAC_ROUTER),
    (Point::Router, MAC_A, MAC_ROUTER),
    (Point::Client, [0; 6], [0; 6]),
];

/// A synthetic run under construction.
struct SyntheticRun {
    now_ns: u64,
    frames: Vec<(Point, u64, Vec<u8>)>,
    snap: usize,
    dropped: [u64; 4],
    v6: bool,
    /// The client's port.
    port: u16,
}

/// The variable parts of a segment. Offsets count from 0.
#[derive(Clone, Copy)]
struct Say {
    at: u64,
    data: &'static [u8],
    ack: u64,
    flags: Flags,
    time: Option<u32>,
    window: u16,
    scale: Option<u8>,
}

const SAY: Say = Say {
    at: 0,
    data: b"",
    ack: 0,
    flags: Flags::ACK,
    time: None,
    window: 500,
    scale: None,
};

impl SyntheticRun {
    fn new() -> Self {
        Self {
            now_ns: START_NS,
            frames: Vec::new(),
            snap: 65_535,
            dropped: [0; 4],
            v6: false,
            port: 40_000,
        }
    }

    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let (service, client) = if self.v6 {
            ("[fd02::100]:80", "[fd01::2]:40000")
        } else {
            (SERVICE, CLIENT)
        };
        let mut client: SocketAddr = client.parse().unwrap();
        client.set_port(self.port);
        (service.parse().unwrap(), client)
    }

    /// Sends one packet on its `way`, from `now_ns` on. Then a millisecond passes.
    fn say(&mut self, toward_client: bool, way: PacketRoute, say: Say) {
        let (service, client) = self.addresses();
        let (own, other) = if toward_client {
            (SERVICE_ISN, CLIENT_ISN)
        } else {
            (CLIENT_ISN, SERVICE_ISN)
        };
        let seq = Seq(own) + u32::from(!say.flags.syn) + say.at as u32;
        let (source, destination) = if toward_client {
            (service, client)
        } else {
            (client, service)
        };
        let packet = Segment {
            source,
            destination,
            seq,
            ack: Seq(other) + 1 + say.ack as u32,
            flags: say.flags,
            window: say.window,
            options: TcpOptions {
                window_scale: say.scale,
                timestamps: Some(Timestamps {
                    value: say.time.unwrap_or((self.now_ns / MS) as u32),
                    echo: 0,
                }),
                ..TcpOptions::default()
            },
            payload: say.data,
        }
        .emit();
        for &(point, from, to) in way {
            let ether_type = if self.v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
            let frame = [&to[..], &from[..], &ether_type[..], &packet[..]].concat();
            self.frames.push((point, self.now_ns, frame));
            self.now_ns += HOP_NS;
        }
        self.now_ns += MS;
    }

    fn client(&mut self, say: Say) {
        self.say(false, FROM_CLIENT, say);
    }

    fn primary(&mut self, say: Say) {
        self.say(true, FROM_PRIMARY, say);
    }

    fn survivor(&mut self, say: Say) {
        self.say(true, FROM_SURVIVOR, say);
    }

    fn open(&mut self) {
        self.client(Say {
            flags: Flags::SYN,
            scale: Some(7),
            ..SAY
        });
        self.primary(Say {
            flags: Flags::SYN_ACK,
            scale: Some(7),
            ..SAY
        });
        self.client(SAY);
    }

    /// Sends the request `hello` straight to the primary: the wire does not see it.
    fn hello_past_the_wire(&mut self) {
        self.say(
            false,
            STRAIGHT_TO_PRIMARY,
            Say {
                data: b"hello",
                ..SAY
            },
        );
    }

    /// Sends the request `hello`, the first three bytes of the reply `wonderful`, and the client's acknowledgement of these bytes.
    fn exchange(&mut self) {
        self.client(Say {
            data: b"hello",
            ..SAY
        });
        self.primary(Say { ack: 5, ..SAY });
        self.primary(Say {
            data: b"won",
            ack: 5,
            ..SAY
        });
        self.client(Say { at: 5, ack: 3, ..SAY });
    }

    /// A node fails now, and 100 ms pass. Returns the time of the failure.
    fn fault(&mut self) -> u64 {
        let at = self.now_ns;
        self.now_ns += 100 * MS;
        at
    }

    fn expected(&self, fault: Option<u64>) -> Expectations {
        Expectations {
            service: self.addresses().0,
            clients: Vec::new(),
            macs: [MAC_A, MAC_B],
            annexes: Vec::new(),
            router_mac: MAC_ROUTER,
            mode: CommitMode::Prs,
            wires: vec![WireSpan {
                node: 1,
                from_ns: 0,
                hears_from_ns: 0,
                until_ns: u64::MAX,
            }],
            role_changes_ns: fault.into_iter().collect(),
            speaking: Speaking::ForAll,
            closing: Closing::ClientFirst,
            may_slow: false,
        }
    }

    fn write(&self, directory: &TempDir) -> Vec<Capture> {
        Point::ALL
            .into_iter()
            .map(|point| {
                let path = directory.path().join(point.name());
                let mut file = File::create(&path).unwrap();
                file.write_all(&pcap_header()).unwrap();
                let mut packets = 0;
                for (_, at_ns, frame) in self.frames.iter().filter(|(at, ..)| *at == point) {
                    file.write_all(&pcap_record(*at_ns, frame, self.snap)).unwrap();
                    packets += 1;
                }
                Capture {
                    point,
                    path,
                    packets,
                    dropped: self.dropped[point as usize],
                }
            })
            .collect()
    }

    fn judge(&self, expected: &Expectations) -> JudgeVerdict {
        let directory = TempDir::new().unwrap();
        check(&self.write(&directory), expected).unwrap()
    }

    /// The broken rules, without repetition.
    fn broken(&self, expected: &Expectations) -> Vec<JudgeRule> {
        let mut rules: Vec<_> = self
            .judge(expected)
            .violations
            .iter()
            .map(|one| one.rule)
            .collect();
        rules.sort();
        rules.dedup();
        rules
    }
}

fn pcap_header() -> Vec<u8> {
    [0xa1b2_3c4d, 0x0004_0002, 0, 0, 65_535, 1_u32]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

fn pcap_record(at_ns: u64, frame: &[u8], snap: usize) -> Vec<u8> {
    let kept = &frame[..frame.len().min(snap)];
    let words = [
        (at_ns / 1_000_000_000) as u32,
        (at_ns % 1_000_000_000) as u32,
        kept.len() as u32,
        frame.len() as u32,
    ];
    let mut record: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    record.extend(kept);
    record
}

/// A complete takeover that keeps every rule.
fn takeover(v6: bool) -> (SyntheticRun, Expectations) {
    let mut run = SyntheticRun::new();
    run.v6 = v6;
    run.open();
    run.exchange();
    // The wire logs and releases this segment. The router and the client never see it.
    run.say(
        true,
        &FROM_PRIMARY[..3],
        Say {
            at: 3,
            data: b"der",
            ack: 5,
            ..SAY
        },
    );
    // After the fault, the client sends input that the dead primary never acknowledged.
    let fault = run.fault();
    run.say(
        false,
        TO_SURVIVOR,
        Say {
            at: 5,
            data: b"again",
            ack: 3,
            ..SAY
        },
    );
    // The old primary's segment arrives at a closed gate, so neither the router nor the client sees it.
    run.say(
        true,
        &FROM_PRIMARY[..2],
        Say {
            at: 3,
            data: b"der",
            ack: 5,
            ..SAY
        },
    );
    run.survivor(Say {
        at: 3,
        data: b"derful",
        ack: 10,
        ..SAY
    });
    run.say(
        false,
        TO_SURVIVOR,
        Say {
            at: 10,
            ack: 9,
            flags: Flags::FIN_ACK,
            ..SAY
        },
    );
    run.survivor(Say {
        at: 9,
        ack: 11,
        flags: Flags::FIN_ACK,
        ..SAY
    });
    run.say(
        false,
        TO_SURVIVOR,
        Say {
            at: 11,
            ack: 10,
            ..SAY
        },
    );
    let expected = run.expected(Some(fault));
    (run, expected)
}

#[test]
fn a_clean_takeover_holds() {
    for v6 in [false, true] {
        let (run, expected) = takeover(v6);
        let verdict = run.judge(&expected);
        assert!(verdict.holds(), "{verdict:#?}");
        assert_eq!(
            (verdict.connections, verdict.connections_without_beginning),
            (1, 0)
        );
        assert_eq!(verdict.began_ns, START_NS);
        let nodes: Vec<_> = verdict.reigns.iter().map(|reign| reign.node).collect();
        assert_eq!(nodes, [0, 1]);
        // Each of the 3 + 6 bytes of the reply is seen twice, at the router and at the client. The second copy is compared with the first.
        assert_eq!(verdict.contents.compared, 9);
        assert_eq!(verdict.contents.not_captured, 0);
        assert!(
            verdict
                .evidence
                .iter()
                .all(|one| one.segments > 0 && one.unreadable == 0)
        );
    }
}

#[test]
fn resets_are_counted_for_each_direction() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    for _ in 0..2 {
        run.primary(Say {
            at: 3,
            flags: Flags::RST,
            ..SAY
        });
    }
    run.client(Say {
        at: 5,
        flags: Flags::RST,
        ..SAY
    });
    // The node's own capture sees this reset, but the guard drops it before it leaves the node.
    run.say(
        true,
        &FROM_PRIMARY[..1],
        Say {
            at: 3,
            flags: Flags::RST,
            ..SAY
        },
    );
    let verdict = run.judge(&run.expected(None));
    assert_eq!((verdict.resets_to_client, verdict.resets_from_client), (2, 1));
    assert_eq!(verdict.resets_seen(), 3);
    assert_eq!(verdict.violations, []);
    assert_eq!(
        (verdict.resets[0].rule, verdict.resets[0].times),
        (JudgeRule::NoReset, 3)
    );
}

/// If a segment arrives after both FINs, the node has already forgotten the connection and answers with a RST.
#[test]
fn a_reset_after_the_end_takes_nothing_away() {
    let resets_with = |is_last_word_said: bool| {
        let mut run = SyntheticRun::new();
        run.open();
        run.exchange();
        let fin = Flags::FIN_ACK;
        run.client(Say {
            at: 5,
            ack: 3,
            flags: fin,
            ..SAY
        });
        run.primary(Say {
            at: 3,
            ack: 6,
            flags: fin,
            ..SAY
        });
        if is_last_word_said {
            run.client(Say { at: 6, ack: 4, ..SAY });
        }
        run.primary(Say {
            at: 4,
            flags: Flags::RST,
            ..SAY
        });
        run.judge(&run.expected(None)).resets_to_client
    };
    assert_eq!(resets_with(false), 1);
    assert_eq!(resets_with(true), 0);
}

#[test]
fn a_fin_before_the_clients_is_an_early_end() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    run.primary(Say {
        at: 3,
        ack: 5,
        flags: Flags::FIN_ACK,
        ..SAY
    });
    let mut expected = run.expected(None);
    assert_eq!(run.broken(&expected), [JudgeRule::NoEarlyFin]);
    expected.closing = Closing::Either;
    assert_eq!(run.broken(&expected), []);
}

#[test]
fn other_bytes_at_an_offset_are_noticed() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    let fault = run.fault();
    run.survivor(Say {
        at: 1,
        data: b"oNderful",
        ack: 5,
        ..SAY
    });
    let verdict = run.judge(&run.expected(Some(fault)));
    assert_eq!(verdict.violations[0].rule, JudgeRule::SameContent);
    assert_eq!(verdict.violations[0].what, "byte 2 was 0x6e before, now 0x4e");
}

#[test]
fn a_wild_sequence_number_and_a_second_beginning_are_noticed() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    let fault = run.fault();
    run.survivor(Say {
        at: 1 << 31,
        ack: 5,
        ..SAY
    });
    assert_eq!(run.broken(&run.expected(Some(fault))), [JudgeRule::OneSequence]);

    let mut run = SyntheticRun::new();
    run.open();
    let fault = run.fault();
    run.survivor(Say {
        at: 1000,
        flags: Flags::SYN_ACK,
        ..SAY
    });
    assert_eq!(run.broken(&run.expected(Some(fault))), [JudgeRule::OneSequence]);
}

#[test]
fn asking_again_for_acknowledged_bytes_is_noticed() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    let fault = run.fault();
    run.survivor(Say { at: 3, ack: 2, ..SAY });
    assert_eq!(
        run.broken(&run.expected(Some(fault))),
        [JudgeRule::KeepsAcknowledged]
    );
    // Within 20 ms, a lower acknowledgement only means that another segment overtook this one. That breaks no rule.
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    run.primary(Say { at: 3, ack: 2, ..SAY });
    assert_eq!(run.broken(&run.expected(None)), []);
}

#[test]
fn what_is_overtaken_behind_the_router_is_not_the_services_fault() {
    let old = Say { ack: 2, ..SAY };
    let mut run = SyntheticRun::new();
    run.open();
    run.client(Say {
        data: b"hello",
        ..SAY
    });
    run.say(true, &FROM_PRIMARY[..4], old);
    run.primary(Say { ack: 5, ..SAY });
    run.fault();
    run.say(true, &FROM_PRIMARY[4..], old);
    assert_eq!(run.broken(&run.expected(None)), []);
    // If the router's capture is not whole, the client's capture decides.
    run.dropped[Point::Router as usize] = 1;
    assert_eq!(run.broken(&run.expected(None)), [JudgeRule::KeepsAcknowledged]);
}

#[test]
fn a_keepalive_probe_before_any_data_is_no_other_sequence() {
    let mut run = SyntheticRun::new();
    run.open();
    let (service, client) = run.addresses();
    let probe = Segment {
        source: service,
        destination: client,
        seq: Seq(SERVICE_ISN),
        ack: Seq(CLIENT_ISN) + 1,
        flags: Flags::ACK,
        window: 500,
        options: TcpOptions::default(),
        payload: b"",
    };
    let frame = [&[0; 12][..], &[8, 0], &probe.emit()].concat();
    run.frames.push((Point::Client, run.now_ns, frame));
    assert_eq!(run.broken(&run.expected(None)), []);
}

#[test]
fn a_timestamp_that_goes_back_is_noticed_also_across_the_wrap() {
    for (before, after, breaks) in [
        (1000, 999, true),
        (1000, 1000, false),
        (u32::MAX, 3, false),
        (3, u32::MAX, true),
    ] {
        let mut run = SyntheticRun::new();
        let then = |time| Say {
            time: Some(time),
            ..SAY
        };
        run.client(Say {
            flags: Flags::SYN,
            ..SAY
        });
        run.primary(Say {
            flags: Flags::SYN_ACK,
            ..then(before)
        });
        let fault = run.fault();
        run.survivor(then(after));
        let broken = run.broken(&run.expected(Some(fault)));
        assert_eq!(
            broken == [JudgeRule::KeepsTime],
            breaks,
            "{before} {after}: {broken:?}"
        );
    }
}

#[test]
fn a_window_that_shrinks_is_noted() {
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    let fault = run.fault();
    run.survivor(Say {
        at: 3,
        ack: 5,
        window: 499,
        ..SAY
    });
    let verdict = run.judge(&run.expected(Some(fault)));
    assert!(verdict.holds());
    assert_eq!(verdict.notes[0].rule, JudgeRule::KeepsWindow);
    assert_eq!(verdict.notes[0].what, "the window's right edge went back by 128");
}

#[test]
fn a_port_used_again_is_another_connection() {
    let (mut run, expected) = takeover(false);
    let (service, client) = run.addresses();
    let syn = Segment {
        source: client,
        destination: service,
        seq: Seq(77),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 500,
        options: TcpOptions::default(),
        payload: b"",
    };
    let frame = [&[0; 12][..], &[8, 0], &syn.emit()].concat();
    run.frames.push((Point::Client, run.now_ns, frame));
    let verdict = run.judge(&expected);
    assert!(verdict.holds(), "{verdict:#?}");
    assert_eq!(verdict.connections, 2);
}

#[test]
fn other_clients_are_not_judged_if_only_some_are() {
    let (mut run, mut expected) = takeover(false);
    run.survivor(Say {
        at: 10,
        flags: Flags::RST,
        ..SAY
    });
    expected.clients = vec!["10.1.0.99".parse().unwrap()];
    let verdict = run.judge(&expected);
    assert_eq!((verdict.connections, verdict.resets_seen()), (0, 0));
}
