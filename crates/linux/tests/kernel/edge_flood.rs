//! A flood of SYNs from clients that do not exist, beside established connections, through real edges. The table of flows and the ring are
//! bounded, and the least recently used flow is evicted first.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};

use proto::edge::cache::CachePolicy;
use proto::edge::{CopiedPackets, cut, is_tcp_sum_wrong};
use steadfast_linux::edge::{EdgeWireOptions, Injector};

use crate::support::edge_net::{EdgeNet, at};
use crate::support::edge_on::{edge_options, index_of};
use crate::support::edge_packet::{HandMade, RST, SYN, TCP, scale};
use crate::support::eventually;
use crate::support::lan::Family;

/// Number of flows for which the table has room.
const FLOWS_MAX: u32 = 8192;
/// Number of SYNs between two exchanges of the connections in use.
const BURST: u32 = 500;
/// Number of SYNs that must reach the edge. A busy machine loses some SYNs of a burst before the edge, so the test sends more than this.
const FLOOD: u64 = 40_000;
const BURSTS_MAX: u32 = 800;
/// Number of connections in use.
const CONNECTIONS: u16 = 10;

/// The address and port of the flood's client `number`, in the network for benchmarks (RFC 2544 §C.2.2).
fn spoofed(number: u32) -> (IpAddr, u16) {
    let [.., high, low] = number.to_be_bytes();
    let port = 1024 + u16::try_from(number >> 16).expect("few");
    (IpAddr::from([198, 18, high, low]), port)
}

/// Returns an injector for the client's port, once the kernel knows the edge's link-layer address.
fn injector(net: &EdgeNet) -> Injector {
    net.client.run(|| {
        let injector = Injector::open(index_of(&net.client, "eth0")).expect("open");
        eventually("the edge answers", || {
            injector.link_address(at(Family::V4, 1, 2)).expect("an answer")
        });
        injector
    })
}

/// Sends packets to the first edge. The injector may ask the kernel for the edge's address, so this is done in the client's namespace.
fn send(net: &EdgeNet, injector: &Injector, packets: &[Vec<u8>]) {
    let send = |packet: &Vec<u8>| injector.send(packet, at(Family::V4, 1, 2));
    net.client
        .run(|| packets.iter().try_for_each(send))
        .expect("send");
}

/// Sends a byte from the client to the server, then from the server to the client.
fn exchange((client, server): &(TcpStream, TcpStream), byte: u8) {
    for (mut from, mut to) in [(client, server), (server, client)] {
        from.write_all(&[byte]).expect("write");
        let mut came = [0];
        to.read_exact(&mut came).expect("read");
        assert_eq!(came, [byte]);
    }
}

#[test]
fn a_flood_of_syns_takes_the_place_of_idle_flows_only() {
    let Some(net) = EdgeNet::new("a_flood_of_syns_takes_the_place_of_idle_flows_only") else {
        return;
    };
    let options = EdgeWireOptions {
        flows_max: FLOWS_MAX,
        ring_bytes: 256 << 10,
        ..edge_options()
    };
    let edges = [0, 1].map(|edge| net.edge_with(edge, Some(CachePolicy::Lowest), &options));
    let listener = net.server.listen(EdgeNet::server_at(Family::V4, 80));
    let idle = net.client.connect_pair(&listener);
    let used: Vec<_> = (0..CONNECTIONS)
        .map(|_| net.client.connect_pair(&listener))
        .collect();
    exchange(&idle, 0);
    // An evicted flow begins anew in the middle of its connection. The edge has then not seen the SYNs of both sides, so it cannot cap the
    // flow's windows.
    for string in 0..2 {
        edges[0].set_cap(string, Some(20_000));
        edges[0].set_copies(string, CopiedPackets::Needed);
    }
    let injector = injector(&net);
    let server = EdgeNet::server_at(Family::V4, 80).ip();
    let mut bursts = 0..BURSTS_MAX;
    while edges[0].counter("new_flows") < FLOOD {
        let burst = bursts.next().expect("most of the flood arrives");
        let syns: Vec<_> = (burst * BURST..(burst + 1) * BURST)
            .map(|number| {
                let (from, port) = spoofed(number);
                let syn = HandMade {
                    flags: SYN,
                    ack: 0,
                    seq: number,
                    options: scale(7),
                    ..HandMade::new(from, server, (port, 80))
                };
                syn.tcp()
            })
            .collect();
        send(&net, &injector, &syns);
        for pair in &used {
            exchange(pair, burst.to_be_bytes()[3]);
        }
    }
    let (new, flows) = (edges[0].counter("new_flows"), edges[0].flows().expect("flows"));
    assert!(flows <= FLOWS_MAX.into(), "{flows}");
    assert!(new - flows > FLOOD / 2, "the rest was evicted: {new} {flows}");
    // The ring has room for some thousand copies, and nobody reads it.
    let (copied, lost) = (edges[0].counter("copied"), edges[0].counter("copy_lost"));
    assert!(copied > 500 && copied * 64 < 256 << 10, "{copied}");
    assert!(lost > FLOOD / 2, "{lost}");
    assert_eq!(
        edges[0].counter("uncapped_flows"),
        0,
        "no flow in use was evicted"
    );
    exchange(&idle, 1);
    assert_eq!(edges[0].counter("uncapped_flows"), 1, "the idle flow was evicted");
    // The ring is read again, and copies come again.
    let mut copies = edges[0].copies().expect("copies");
    let drained = copies.drain(usize::MAX, |copy, packet| {
        assert_eq!(copy.whole_len as usize, packet.len());
    });
    assert!(drained as u64 >= copied, "{drained} of {copied}");
    let before = edges[0].counter("copied");
    exchange(&used[0], 2);
    assert!(edges[0].counter("copied") > before);
}

#[test]
fn malformed_and_forged_packets_disturb_nobody() {
    let Some(net) = EdgeNet::new("malformed_and_forged_packets_disturb_nobody") else {
        return;
    };
    let edges = [0, 1].map(|edge| net.edge_on(edge, Some(CachePolicy::Lowest)));
    let listener = net.server.listen(EdgeNet::server_at(Family::V4, 80));
    let pair = net.client.connect_pair(&listener);
    let near = pair.0.local_addr().expect("an address");
    exchange(&pair, 1);
    edges[0].set_copies(0, CopiedPackets::Entering);
    let injector = injector(&net);
    let made = HandMade::new(
        near.ip(),
        EdgeNet::server_at(Family::V4, 80).ip(),
        (near.port(), 80),
    );
    let flows = edges[0].flows().expect("flows");
    let no_header = made.ip(TCP, &[0; 10]);
    let mut long_header = made.tcp();
    long_header[32] = 0xf0; // the header would end behind the packet
    // A reset of the connection with a wrong checksum.
    let mut reset = HandMade {
        flags: RST,
        ..made.clone()
    }
    .tcp();
    reset[36] ^= 0xff;
    // A packet whose IP header has a wrong checksum. A router drops it.
    let mut broken = made.tcp();
    broken[10] ^= 0xff;
    send(&net, &injector, &[no_header, long_header, reset, broken]);
    exchange(&pair, 2);
    eventually("the packets have come", || {
        (edges[0].counter("malformed") >= 3).then_some(())
    });
    assert_eq!(edges[0].counter("malformed"), 3);
    assert_eq!(
        edges[0].flows().expect("flows"),
        flows,
        "none of them made a flow"
    );
    let mut copies = edges[0].copies().expect("copies");
    let mut resets = 0;
    copies.drain(usize::MAX, |copy, packet| {
        let is_reset = packet[33] & RST != 0;
        resets += usize::from(is_reset);
        let wrong = cut(packet, 0, copy.checksum)
            .iter()
            .any(|one| is_tcp_sum_wrong(one));
        assert_eq!(wrong, is_reset, "the agent caches everything but the reset");
    });
    assert_eq!(
        resets, 1,
        "the edge is a router, which verifies no checksum of TCP"
    );
    exchange(&pair, 3);
}
