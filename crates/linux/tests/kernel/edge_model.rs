//! The edge's eBPF programs and their model in `proto` do the same with the same packets: same verdicts, packets, copies and counters.

use std::net::IpAddr;

use proto::edge::CopiedPackets;
use proto::edge::cache::{CachePolicy, SecondPacket};
use proto::edge::datapath::{
    DataPath, DataPathCopy, DataPathPort, DataPathString, DataPathVerdict, DestinationSide,
};
use proto::edge::switch::StringSteering;
use steadfast_linux::clock;
use steadfast_linux::edge::{EdgeCopies, EdgeStringPort, EdgeWirePlan, Rehearsed, SLOTS, Side};

use crate::support::Random;
use crate::support::edge_on::{EdgeOn, edge_options, index_of, plan, port};
use crate::support::edge_packet::{ACK, FIN, HandMade, RST, SYN, TCP, UDP, scale};
use crate::support::frame::{
    DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, PADDING, fix_ipv4_header, with_extension,
};
use crate::support::lan::{LanHost, is_root};

const STRINGS: usize = 3;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The Ethernet addresses of a frame that enters a string: the node's address, and that of the string's port. They tell the string.
fn links(string: usize) -> ([u8; 6], [u8; 6]) {
    let number = u8::try_from(string).expect("few");
    ([2, 0, 0, 0, 2, number], [2, 0, 0, 0, 3, number])
}

/// The programs and the model, side by side.
struct Twins {
    host: LanHost,
    kernel: EdgeOn,
    model: DataPath,
    copies: EdgeCopies,
    /// Interfaces of the outside port and of the strings.
    interfaces: [u32; STRINGS + 1],
    caching_epoch: u32,
    modelled_copies: u64,
}

impl Twins {
    fn new(test: &str, policy: Option<CachePolicy>, second: SecondPacket) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let host = LanHost::new(1);
        for name in ["out", "str0", "str1", "str2"] {
            host.ip(&format!(
                "link add {name} address 02:00:00:00:00:01 type veth peer name {name}p
                 link set {name} up
                 link set {name}p up"
            ));
        }
        // The last string has no next hop for IPv6.
        let strings = (0..STRINGS).map(|string| EdgeStringPort {
            ifindex: index_of(&host, &format!("str{string}")),
            next_hop_v4: Some([10, 9, u8::try_from(string).expect("few"), 1].into()),
            next_hop_v6: (string < 2).then(|| "fd09::1".parse().expect("an address")),
        });
        let kernel = EdgeOn::new(
            &host,
            &EdgeWirePlan {
                second,
                ..plan(port(&host, "out"), strings.collect(), policy)
            },
            &edge_options(),
        );
        for string in 0..STRINGS {
            let (node, own) = links(string);
            for is_v6 in [false, true] {
                kernel.set_link(string, is_v6, own, node);
            }
        }
        let modelled = (0..STRINGS).map(|string| DataPathString {
            steering: StringSteering::Up,
            generation: 0,
            caching_epoch: 0,
            copies_entering: false,
            cap: 0,
            has_v4: true,
            has_v6: string < 2,
        });
        let mut model = DataPath::new(modelled.collect(), DestinationSide::Outside, policy);
        model.second = second;
        let copies = kernel.copies().expect("copies");
        let interfaces = ["out", "str0", "str1", "str2"].map(|name| index_of(&host, name));
        let mut twins = Self {
            host,
            kernel,
            model,
            copies,
            interfaces,
            caching_epoch: 0,
            modelled_copies: 0,
        };
        twins.set_subnets(&[
            ("10.2.0.0", 16, Side::Inside),
            ("10.2.0.77", 32, Side::Local),
            ("fd02::", 16, Side::Inside),
            ("fd02::77", 128, Side::Local),
            ("224.0.0.0", 4, Side::Inside),
            ("ff00::", 8, Side::Inside),
        ]);
        let mut slots = [0; SLOTS];
        for (slot, string) in slots.iter_mut().enumerate() {
            *string = u8::try_from(slot % STRINGS).expect("few");
        }
        twins.set_slots(slots);
        Some(twins)
    }

    fn set_subnets(&mut self, subnets: &[(&str, u8, Side)]) {
        let parsed: Vec<(IpAddr, u8, Side)> = subnets
            .iter()
            .map(|(address, prefix, side)| (address.parse().expect("an address"), *prefix, *side))
            .collect();
        self.kernel.set_subnets(&parsed).expect("subnets");
        let modelled = parsed.iter().map(|(address, prefix, side)| {
            let (bits, prefix) = match address {
                IpAddr::V4(v4) => (v4.to_ipv6_mapped().to_bits(), u32::from(*prefix) + 96),
                IpAddr::V6(v6) => (v6.to_bits(), u32::from(*prefix)),
            };
            let side = match side {
                Side::Outside => DestinationSide::Outside,
                Side::Inside => DestinationSide::Inside,
                Side::Local => DestinationSide::Local,
            };
            (bits, prefix, side)
        });
        self.model.subnets = modelled.collect();
    }

    fn set_slots(&mut self, slots: [u8; SLOTS]) {
        self.kernel.set_slots(&slots);
        *self.model.slots = slots;
    }

    fn set_steering(&mut self, string: usize, steering: StringSteering) {
        self.model.strings[string].steering = steering;
        self.kernel.set_steering(string, steering);
    }

    fn bump_generation(&mut self, string: usize) {
        self.kernel.bump_generation(string);
        self.model.strings[string].generation += 1;
    }

    fn set_cap(&mut self, string: usize, cap: Option<u32>) {
        self.kernel.set_cap(string, cap);
        self.model.strings[string].cap = cap.unwrap_or(0);
    }

    fn set_copies(&mut self, string: usize, copies: CopiedPackets) {
        self.kernel.set_copies(string, copies);
        let one = &mut self.model.strings[string];
        one.copies_entering = copies == CopiedPackets::Entering;
        if copies == CopiedPackets::None {
            one.caching_epoch = 0;
        } else if !one.copies_entering || one.caching_epoch == 0 {
            self.caching_epoch += 1;
            one.caching_epoch = self.caching_epoch;
        }
    }

    fn set_agent_away(&mut self, away: bool) {
        let now = clock::now().as_nanos();
        let seen = if away {
            now.saturating_sub(7200 * 1_000_000_000)
        } else {
            now
        };
        // The clock starts at 0 with the machine. On a machine that started less than an hour ago, the agent cannot have been away for an
        // hour.
        let is_away = away && now - seen > 3600 * 1_000_000_000;
        self.kernel.set_agent_seen(seen);
        self.model.is_agent_away = is_away;
    }

    fn sweep(&mut self, string: usize) {
        assert_eq!(
            self.kernel.sweep(string).expect("sweep"),
            self.model.sweep(string)
        );
    }

    /// Gives a packet to the programs and to the model, and asserts that they do the same. Returns the model's verdict.
    #[track_caller]
    fn handle(&mut self, port: DataPathPort, packet: &[u8], gso_size: u16) -> DataPathVerdict {
        let (modelled, copy) = self.model.handle(port, packet, gso_size);
        let interface = match port {
            DataPathPort::Outside => self.interfaces[0],
            DataPathPort::String(string) => self.interfaces[1 + string],
        };
        // The kernel runs no program on a frame that is too short for its type.
        let is_v6 = packet.len() >= 40 && packet[0] >> 4 != 4;
        let ether_type: [u8; 2] = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
        let frame = [&MAC[..], &MAC, &ether_type, packet].concat();
        let at = || format!("{port:?}, gso {gso_size}: {packet:02x?}");
        let rehearsed = self
            .host
            .run(|| self.kernel.rehearse(interface, &frame, gso_size))
            .unwrap_or_else(|error| panic!("{error}: {}", at()));
        match (&rehearsed, &modelled) {
            (Rehearsed::Stack, DataPathVerdict::Stack) | (Rehearsed::Dropped, DataPathVerdict::Dropped) => {}
            (Rehearsed::Sent(sent), DataPathVerdict::Sent(port, expected)) => {
                // The kernel fills in the addresses of a frame to the outside only later.
                let (to, from) = match port {
                    DataPathPort::Outside => (MAC, MAC),
                    DataPathPort::String(string) => links(*string),
                };
                assert_eq!(sent[..12], [to, from].concat(), "not to {port:?}: {}", at());
                assert_eq!(sent[14..], expected[..], "{}", at());
            }
            _ => panic!("{rehearsed:?} is not {modelled:?}: {}", at()),
        }
        let passed = match &modelled {
            DataPathVerdict::Sent(_, sent) => with_window_of(packet, sent),
            _ => packet.to_vec(),
        };
        let mut copied = Vec::new();
        self.copies.drain(usize::MAX, |copy, bytes| {
            assert_eq!(
                (copy.gso_size, bytes),
                (gso_size, &passed[..bytes.len()]),
                "{}",
                at()
            );
            copied.push(DataPathCopy {
                string: copy.string.into(),
                way: copy.way,
                len: bytes.len(),
            });
        });
        self.modelled_copies += u64::from(copy.is_some());
        assert_eq!(copied, copy.into_iter().collect::<Vec<_>>(), "{}", at());
        modelled
    }

    #[track_caller]
    fn assert_equal_counts(&self) {
        for (name, count) in self.kernel.counters().expect("counters") {
            assert_eq!(count, self.model.count(name), "{name}");
        }
        let handshakes = |string| self.kernel.traffic(string).expect("traffic").handshakes;
        assert_eq!(
            (0..STRINGS).map(handshakes).sum::<u64>(),
            self.model.count("handshakes")
        );
        assert_eq!(self.kernel.flows().expect("flows"), self.model.flows() as u64);
    }
}

/// The packet with the transport header of `sent`: a copy is made after the window was limited and before the hop limit is decremented.
fn with_window_of(packet: &[u8], sent: &[u8]) -> Vec<u8> {
    let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
    [&packet[..header], &sent[header..]].concat()
}

const OUTSIDE: DataPathPort = DataPathPort::Outside;

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A client outside and a server inside.
fn ends(v6: bool) -> (IpAddr, IpAddr) {
    if v6 {
        (address("fd01::5"), address("fd02::9"))
    } else {
        (address("10.1.0.5"), address("10.2.0.9"))
    }
}

fn request(v6: bool) -> HandMade {
    let (client, server) = ends(v6);
    HandMade::new(client, server, (40_000, 80))
}

fn reply(v6: bool) -> HandMade {
    let (client, server) = ends(v6);
    HandMade::new(server, client, (80, 40_000))
}

fn sent_to(verdict: &DataPathVerdict) -> Option<DataPathPort> {
    match verdict {
        DataPathVerdict::Sent(port, _) => Some(*port),
        _ => None,
    }
}

#[test]
fn a_connection_keeps_its_string_and_moves_when_the_string_fails() {
    let Some(mut twins) = Twins::new(
        "a_connection_keeps_its_string",
        Some(CachePolicy::Lowest),
        SecondPacket::Acknowledgement,
    ) else {
        return;
    };
    for v6 in [false, true] {
        twins.set_slots([0; SLOTS]);
        twins.set_steering(0, StringSteering::Up);
        let syn = HandMade {
            flags: SYN,
            options: scale(7),
            ..request(v6)
        };
        let first = twins.handle(OUTSIDE, &syn.tcp(), 0);
        assert_eq!(sent_to(&first), Some(DataPathPort::String(0)));
        let syn_ack = HandMade {
            flags: SYN | ACK,
            ack: 1001,
            options: scale(8),
            ..reply(v6)
        };
        assert_eq!(
            sent_to(&twins.handle(DataPathPort::String(0), &syn_ack.tcp(), 0)),
            Some(OUTSIDE)
        );
        twins.handle(OUTSIDE, &request(v6).tcp(), 0);
        twins.set_cap(0, Some(1 << 20));
        let capped = twins.handle(DataPathPort::String(0), &reply(v6).tcp(), 0);
        let DataPathVerdict::Sent(_, bytes) = capped else {
            panic!("it is sent")
        };
        let tcp = if v6 { 40 } else { 20 };
        assert_eq!(bytes[tcp + 14..tcp + 16], (1_u16 << 12).to_be_bytes());
        twins.set_slots([1; SLOTS]);
        let data = HandMade {
            payload: 100,
            ..request(v6)
        };
        let stays = twins.handle(OUTSIDE, &data.tcp(), 0);
        assert_eq!(sent_to(&stays), Some(DataPathPort::String(0)));
        twins.set_copies(0, CopiedPackets::Needed);
        twins.set_steering(0, StringSteering::Held);
        assert_eq!(twins.handle(OUTSIDE, &data.tcp(), 0), DataPathVerdict::Dropped);
        assert_eq!(twins.handle(OUTSIDE, &data.tcp(), 0), DataPathVerdict::Dropped);
        twins.bump_generation(0);
        twins.set_steering(0, StringSteering::Down);
        let moved = twins.handle(OUTSIDE, &data.tcp(), 0);
        assert_eq!(sent_to(&moved), Some(DataPathPort::String(1)));
        twins.set_cap(0, None);
        twins.set_copies(0, CopiedPackets::None);
    }
    let counts = [
        "moved",
        "capped",
        "copied",
        "dropped_held",
        "handshakes",
        "new_flows",
    ];
    assert_eq!(counts.map(|name| twins.model.count(name)), [2, 2, 4, 4, 2, 2]);
    twins.assert_equal_counts();
}

#[test]
fn a_flow_that_left_first_follows_the_other_edge() {
    let Some(mut twins) = Twins::new("a_flow_that_left_first", None, SecondPacket::Newest) else {
        return;
    };
    twins.set_slots([0; SLOTS]);
    let entering = request(false).udp();
    let leaving = reply(false).udp();
    for string in [1, 2, 1] {
        twins.handle(DataPathPort::String(string), &leaving, 0);
        let verdict = twins.handle(OUTSIDE, &entering, 0);
        assert_eq!(sent_to(&verdict), Some(DataPathPort::String(string)));
    }
    twins.set_steering(2, StringSteering::Held);
    twins.handle(DataPathPort::String(2), &leaving, 0); // the other edge does not know yet that the string has failed
    let verdict = twins.handle(OUTSIDE, &entering, 0);
    assert_eq!(sent_to(&verdict), Some(DataPathPort::String(1)));
    twins.bump_generation(1);
    twins.sweep(1);
    let verdict = twins.handle(OUTSIDE, &entering, 0);
    assert_eq!(sent_to(&verdict), Some(DataPathPort::String(0)));
    twins.assert_equal_counts();
}

/// The packet as a fragment of the IP packet `id`. `offset` is the field with the flag "more fragments" in bit 13, as in IPv4.
fn as_fragment(packet: &[u8], id: u8, offset: u16) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        let [high, low] = (offset << 3 | offset >> 13 & 1).to_be_bytes();
        return with_extension(packet, FRAGMENT, &[0, high, low, 0, 0, 0, id]);
    }
    let mut fragment = packet.to_vec();
    fragment[4..6].copy_from_slice(&[0, id]);
    fragment[6..8].copy_from_slice(&offset.to_be_bytes());
    fix_ipv4_header(&mut fragment);
    fragment
}

const MORE_FRAGMENTS: u16 = 0x2000;

#[test]
fn fragments_and_errors_take_the_string_of_their_flow() {
    let test = "fragments_and_errors_take_the_string_of_their_flow";
    let Some(mut twins) = Twins::new(test, None, SecondPacket::Newest) else {
        return;
    };
    for v6 in [false, true] {
        twins.set_slots([1; SLOTS]);
        twins.set_steering(1, StringSteering::Up);
        let (udp, tcp) = (request(v6).udp(), request(v6).tcp());
        for begins in [&udp, &tcp] {
            let verdict = twins.handle(OUTSIDE, begins, 0);
            assert_eq!(sent_to(&verdict), Some(DataPathPort::String(1)));
        }
        // From here on, only the flows know the string 1: addresses and slots lead to the string 0.
        twins.set_slots([0; SLOTS]);
        let mut string_of = |packet: &[u8]| sent_to(&twins.handle(OUTSIDE, packet, 0));
        let [flows, others] = [1, 0].map(|string| Some(DataPathPort::String(string)));
        for (id, whole) in [(1, &udp), (2, &tcp)] {
            assert_eq!(string_of(&as_fragment(whole, id, MORE_FRAGMENTS)), flows);
            assert_eq!(string_of(&as_fragment(whole, id, MORE_FRAGMENTS | 1)), flows);
            assert_eq!(string_of(&as_fragment(whole, id, 2)), flows, "the last fragment");
            assert_eq!(
                string_of(&as_fragment(whole, 9, 2)),
                others,
                "of an unknown packet"
            );
        }
        let router = HandMade {
            from: address(if v6 { "fd01::77" } else { "10.1.0.77" }),
            ..request(v6)
        };
        for quoted in [reply(v6).udp(), reply(v6).tcp()] {
            assert_eq!(string_of(&router.unreachable(1, &quoted)), flows);
        }
        let unknown = HandMade {
            ports: (80, 50_000),
            ..reply(v6)
        };
        assert_eq!(string_of(&router.unreachable(1, &unknown.tcp())), others);
        twins.bump_generation(1);
        twins.set_steering(1, StringSteering::Down);
        let late = twins.handle(OUTSIDE, &as_fragment(&udp, 1, 2), 0);
        assert_eq!(sent_to(&late), others, "the packet's string has failed");
        let error = twins.handle(OUTSIDE, &router.unreachable(1, &reply(v6).tcp()), 0);
        assert_eq!(sent_to(&error), others, "the flow moves");
    }
    assert_eq!(twins.model.count("fragments"), 18);
    assert_eq!(twins.model.count("icmp_errors"), 8);
    assert_eq!(twins.model.count("moved"), 2);
    twins.assert_equal_counts();
}

/// Packets of all kinds, also of kinds that nobody sends.
fn table() -> Vec<Vec<u8>> {
    let mut packets = fragments_and_extensions();
    for v6 in [false, true] {
        for made in [request(v6), reply(v6)] {
            packets.extend(transports(&made));
        }
    }
    let to_v4 = [
        "10.2.0.77",
        "10.3.0.1",
        "224.0.0.5",
        "255.255.255.255",
        "169.254.1.1",
        "127.0.0.1",
        "0.0.0.0",
    ];
    let to_v6 = ["fd02::77", "fd03::1", "ff02::5", "fe80::1", "::1", "::"];
    for to in to_v4.into_iter().chain(to_v6).map(address) {
        packets.push(
            HandMade {
                to,
                ..request(to.is_ipv6())
            }
            .tcp(),
        );
    }
    for from in ["fe80::7", "169.254.3.3"].map(address) {
        packets.push(
            HandMade {
                from,
                ..request(from.is_ipv6())
            }
            .tcp(),
        );
    }
    packets.extend([vec![0; 60], with_ip_options(&request(false).tcp())]);
    // A wrong checksum of the IP header, with options and without.
    for mut wrong in [request(false).tcp(), with_ip_options(&request(false).tcp())] {
        wrong[10] ^= 1;
        packets.push(wrong);
    }
    packets
}

/// Packets between the ends of `made` with all kinds of transport headers.
fn transports(made: &HandMade) -> Vec<Vec<u8>> {
    let with_hops = |hops| HandMade { hops, ..made.clone() };
    let mut packets = vec![
        made.tcp(),
        made.udp(),
        made.unreachable(1, &made.tcp()),
        made.unreachable(1, &made.udp()),
        made.icmp(vec![8, 0, 0, 0, 1, 2, 3, 4]),
        made.icmp(vec![128, 0, 0, 0, 1, 2, 3, 4]),
        made.ip(47, &[0; 8]), // GRE
        made.ip(TCP, &made.tcp()[..4]),
        made.ip(UDP, &[1, 2, 3]),
        with_hops(1).udp(),
        made.tcp()[..30].to_vec(),
        [made.tcp(), vec![0; 20]].concat(),
    ];
    packets.extend([0, 1, 2].map(|hops| with_hops(hops).tcp()));
    packets.extend([0x00, 0x40, 0x60, 0x80, 0xf0].map(|data_offset| {
        let mut odd = made.tcp();
        let at = odd.len() - 8;
        odd[at] = data_offset;
        odd
    }));
    packets
}

fn fragments_and_extensions() -> Vec<Vec<u8>> {
    let (v4, v6) = (request(false), request(true));
    let mut packets = Vec::new();
    for flags in [[0x20, 0], [0x20, 3], [0, 3], [0x40, 0]] {
        for mut packet in [v4.udp(), v4.tcp()] {
            packet[6..8].copy_from_slice(&flags);
            fix_ipv4_header(&mut packet);
            packets.push(packet);
        }
        let fragment = [0, flags[1] << 3, flags[0] >> 5 & 1, 0, 0, 0, 9];
        packets.push(with_extension(&v6.udp(), FRAGMENT, &fragment));
    }
    packets.push(with_extension(&v6.tcp(), HOP_BY_HOP, &PADDING));
    let many = |packet: Vec<u8>, _| with_extension(&packet, DESTINATION_OPTIONS, &PADDING);
    packets.push((0..8).fold(v6.tcp(), many));
    packets
}

/// An IPv4 packet with four bytes of options.
fn with_ip_options(packet: &[u8]) -> Vec<u8> {
    let mut changed = [&packet[..20], &[1, 1, 1, 1], &packet[20..]].concat();
    changed[0] = 0x46;
    let total = u16::try_from(changed.len()).expect("short");
    changed[2..4].copy_from_slice(&total.to_be_bytes());
    fix_ipv4_header(&mut changed);
    changed
}

#[test]
fn packets_of_all_kinds_fare_alike() {
    for policy in [
        None,
        Some(CachePolicy::Syn),
        Some(CachePolicy::Lowest),
        Some(CachePolicy::All),
    ] {
        let Some(mut twins) = Twins::new("packets_of_all_kinds_fare_alike", policy, SecondPacket::Newest)
        else {
            return;
        };
        twins.set_copies(0, CopiedPackets::Needed);
        twins.set_copies(1, CopiedPackets::Needed);
        twins.set_cap(1, Some(1000));
        for port in [OUTSIDE, DataPathPort::String(0), DataPathPort::String(2)] {
            for packet in table() {
                twins.handle(port, &packet, 0);
            }
        }
        twins.assert_equal_counts();
    }
}

#[test]
fn a_node_that_has_no_way_is_not_believed() {
    let Some(mut twins) = Twins::new(
        "a_node_that_has_no_way_is_not_believed",
        None,
        SecondPacket::Newest,
    ) else {
        return;
    };
    twins.set_slots([0; SLOTS]);
    for v6 in [false, true] {
        let node = HandMade {
            from: address(if v6 { "fd09::1" } else { "10.9.0.1" }),
            to: request(v6).from,
            ..reply(v6)
        };
        let forwarded = HandMade {
            hops: 63,
            ..node.clone()
        };
        let (no_route, no_port) = if v6 { (3, 4) } else { (1, 3) };
        let quoted = request(v6).tcp();
        let mut leaves =
            |packet: &[u8]| twins.handle(DataPathPort::String(0), packet, 0) != DataPathVerdict::Dropped;
        assert!(leaves(&node.unreachable(no_route, &quoted)), "no such flow");
        assert_eq!(
            sent_to(&twins.handle(OUTSIDE, &quoted, 0)),
            Some(DataPathPort::String(0))
        );
        let mut leaves =
            |packet: &[u8]| twins.handle(DataPathPort::String(0), packet, 0) != DataPathVerdict::Dropped;
        assert!(!leaves(&node.unreachable(no_route, &quoted)));
        assert!(!leaves(&node.unreachable(0, &quoted)));
        assert!(
            leaves(&forwarded.unreachable(no_route, &quoted)),
            "of a router behind the node"
        );
        assert!(leaves(&node.unreachable(no_port, &quoted)));
        assert!(leaves(&node.unreachable(no_route, &request(v6).udp())));
    }
    assert_eq!(twins.model.count("withheld"), 4);
    twins.assert_equal_counts();
}

/// A random TCP packet between a few ends, from the client or to it.
fn random_segment(random: &mut Random, enters: bool) -> HandMade {
    let (clients, servers) = if random.below(3) == 0 {
        (["fd01::5", "fd01::6"], ["fd02::9", "fd02::8", "fd02::77"])
    } else {
        (["10.1.0.5", "10.1.0.6"], ["10.2.0.9", "10.2.0.8", "10.2.0.77"])
    };
    let (client, server) = (address(random.one_of(&clients)), address(random.one_of(&servers)));
    let port = random.one_of(&[40_000, 40_001, 40_002]);
    let (from, to, ports) = if enters {
        (client, server, (port, 80))
    } else {
        (server, client, (80, port))
    };
    let first = u32::MAX - 500;
    let number =
        |random: &mut Random| first.wrapping_add(u32::try_from(random.below(12)).expect("small") * 100);
    let flags = random.one_of(&[
        ACK,
        ACK,
        ACK,
        ACK,
        SYN,
        SYN | ACK,
        FIN | ACK,
        RST,
        RST | ACK,
        0,
        SYN | FIN,
        0xff,
    ]);
    let is_expected = flags & SYN != 0 && random.below(4) > 0;
    HandMade {
        hops: random.one_of(&[64, 64, 64, 64, 64, 2, 1, 255]),
        seq: if is_expected { first } else { number(random) },
        ack: if is_expected { first } else { number(random) }.wrapping_add(random.one_of(&[0, 1])),
        flags,
        window: u16::try_from(random.below(65_536)).expect("16 bits"),
        options: random_options(random),
        payload: random.one_of(&[0, 0, 100, 200, 300]),
        ..HandMade::new(from, to, ports)
    }
}

fn random_options(random: &mut Random) -> Vec<u8> {
    let shift = u8::try_from(random.below(16)).expect("small");
    match random.below(9) {
        0 => scale(shift),
        1 => vec![2, 4, 5, 180, 3, 3, shift, 0],
        2 => vec![3, 3],
        3 => vec![8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, shift],
        4 => vec![9, 0, 3, 3, shift],
        // Multipath TCP (RFC 8684) and experimental kinds (RFC 4727), which the edge skips by their lengths.
        5 => vec![30, 4, 0, 0x81, 3, 3, shift],
        6 => vec![253, 6, 1, 2, 3, 3, 254, 2, 3, 3, shift],
        7 => vec![
            254, 5, 3, 3, 14, 30, 12, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 3, shift,
        ],
        _ => vec![],
    }
}

fn random_packet(random: &mut Random) -> (DataPathPort, Vec<u8>, u16) {
    let enters = random.below(2) == 0;
    let made = random_segment(random, enters);
    let packet = match random.below(15) {
        0 => made.udp(),
        1 => made.unreachable(1, &made.tcp()),
        2 => random_fragment(random, &made.udp()),
        3 => random_fragment(random, &made.tcp()),
        4 => random_error(random, &made),
        5 => {
            let quoted = HandMade {
                from: made.to,
                to: made.from,
                ports: (made.ports.1, made.ports.0),
                ..made.clone()
            };
            made.unreachable(random.one_of(&[0, 1, 3, 4]), &quoted.tcp())
        }
        _ => made.tcp(),
    };
    let string = usize::try_from(random.below(STRINGS as u64)).expect("few");
    let port = if enters {
        OUTSIDE
    } else {
        DataPathPort::String(string)
    };
    let gso_size = random.one_of(&[0, 0, 0, 100]);
    (port, damaged(random, packet), gso_size)
}

/// A first, a middle or a last fragment of one of a few IP packets.
fn random_fragment(random: &mut Random, packet: &[u8]) -> Vec<u8> {
    let offset = random.one_of(&[MORE_FRAGMENTS, MORE_FRAGMENTS | 1, 2, 3]);
    as_fragment(packet, random.one_of(&[1, 2]), offset)
}

/// An ICMP error or another ICMP message about a packet that went the other way. A router or the packet's receiver sends it.
fn random_error(random: &mut Random, made: &HandMade) -> Vec<u8> {
    let other_way = HandMade {
        from: made.to,
        to: made.from,
        ports: (made.ports.1, made.ports.0),
        ..made.clone()
    };
    let quoted = if random.below(3) == 0 {
        other_way.udp()
    } else {
        other_way.tcp()
    };
    let router = match (made.from.is_ipv6(), random.below(2)) {
        (_, 0) => made.from,
        (false, _) => address("10.1.0.77"),
        (true, _) => address("fd01::77"),
    };
    let kind = random.one_of(&[1, 2, 3, 3, 4, 5, 11, 12, 128]);
    let code = random.one_of(&[0, 1, 3, 4]);
    let quoted_len = random.one_of(&[quoted.len(), 48, 30, 24]).min(quoted.len());
    let message = [&[kind, code, 0, 0, 0, 0, 0, 0], &quoted[..quoted_len]].concat();
    HandMade {
        from: router,
        ..made.clone()
    }
    .icmp(message)
}

/// Sometimes changes a byte of the headers, or cuts the packet off.
fn damaged(random: &mut Random, mut packet: Vec<u8>) -> Vec<u8> {
    let len = packet.len() as u64;
    match random.below(25) {
        0 => packet.truncate(usize::try_from(random.below(len)).expect("short").max(20)),
        1 => {
            let at = usize::try_from(random.below(len.min(70))).expect("short");
            packet[at] = random.next().to_le_bytes()[0];
            if packet[0] == 0x45 && random.below(2) == 0 {
                fix_ipv4_header(&mut packet);
            }
        }
        2 => packet.extend([0; 6]),
        _ => {}
    }
    packet
}

/// Sometimes changes what the agent tells the data path.
fn random_order(random: &mut Random, twins: &mut Twins) {
    let string = usize::try_from(random.below(STRINGS as u64)).expect("few");
    match random.below(120) {
        0 => twins.set_steering(string, StringSteering::Held),
        1 => {
            twins.bump_generation(string);
            twins.set_steering(string, StringSteering::Down);
        }
        2..=4 => twins.set_steering(string, StringSteering::Up),
        5 => twins.set_copies(string, CopiedPackets::Needed),
        6 => twins.set_copies(
            string,
            random.one_of(&[CopiedPackets::None, CopiedPackets::Entering]),
        ),
        7 => twins.set_cap(
            string,
            Some(u32::try_from(random.below(1 << 16)).expect("small").max(1)),
        ),
        8 => twins.set_cap(string, None),
        9 => twins.sweep(string),
        10 => {
            let mut slots = [0; SLOTS];
            slots.fill_with(|| u8::try_from(random.below(STRINGS as u64)).expect("few"));
            twins.set_slots(slots);
        }
        11 => {
            let away = random.below(2) == 0;
            twins.set_agent_away(away);
        }
        _ => {}
    }
}

#[test]
fn random_packets_fare_alike() {
    for (seed, policy, second) in [
        (1, CachePolicy::Syn, SecondPacket::Newest),
        (2, CachePolicy::Lowest, SecondPacket::Acknowledgement),
        (3, CachePolicy::Lowest, SecondPacket::Newest),
        (4, CachePolicy::All, SecondPacket::Acknowledgement),
        (5, CachePolicy::All, SecondPacket::Newest),
    ] {
        let Some(mut twins) = Twins::new("random_packets_fare_alike", Some(policy), second) else {
            return;
        };
        let mut random = Random(seed);
        for _ in 0..12_000 {
            random_order(&mut random, &mut twins);
            let (port, packet, gso_size) = random_packet(&mut random);
            twins.handle(port, &packet, gso_size);
        }
        twins.assert_equal_counts();
        let seen = [
            "moved",
            "capped",
            "uncapped_flows",
            "copied",
            "dropped_held",
            "other_string",
            "no_next_hop",
        ];
        for name in seen {
            assert!(twins.model.count(name) > 0, "{name}");
        }
        assert_eq!(twins.modelled_copies, twins.model.count("copied"));
        for name in ["icmp_errors", "malformed", "fragments"] {
            assert!(twins.model.count(name) > 0, "{name}");
        }
    }
}
