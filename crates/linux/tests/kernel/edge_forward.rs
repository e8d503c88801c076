//! The edge's data path forwards real connections between network namespaces, through two edges and two nodes.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use proto::Instant;
use proto::edge::CopiedPackets;
use proto::edge::cache::CachePolicy;
use proto::edge::switch::{KeptString, StringSteering};
use proto::rate::capped_field;
use steadfast_linux::edge::{EdgeWire, Injector, is_edge_left_behind};
use steadfast_linux::wire::WireError;

use crate::support::edge_net::{EdgeNet, at};
use crate::support::edge_on::{EdgeOn, edge_options, index_of};
use crate::support::edge_packet::HandMade;
use crate::support::lan::Family;
use crate::support::socket::tcp_info;
use crate::support::{PATIENCE, assert_same_stream, eventually, stream};

/// Sends `len` bytes in both directions at the same time and checks that they arrive.
fn transfer((client, server): &(TcpStream, TcpStream), len: usize) {
    let streams = [stream(1, len), stream(2, len)];
    std::thread::scope(|scope| {
        for (mut from, mut to, bytes) in [(client, server, &streams[0]), (server, client, &streams[1])] {
            scope.spawn(move || from.write_all(bytes).expect("write"));
            scope.spawn(move || {
                let mut received = vec![0; bytes.len()];
                to.read_exact(&mut received).expect("read");
                assert_same_stream("received", &received, bytes);
            });
        }
    });
}

/// Packets that entered each string, and packets that left it.
fn packets(edge: &EdgeOn) -> [(u64, u64); 2] {
    [0, 1].map(|string| {
        let traffic = edge.traffic(string).expect("traffic");
        (traffic.entering_packets, traffic.leaving_packets)
    })
}

#[test]
fn connections_go_by_their_string_in_both_directions_and_stay_there() {
    let Some(net) = EdgeNet::new("connections_go_by_their_string") else {
        return;
    };
    let edges = [0, 1].map(|edge| net.edge_on(edge, None));
    for (family, port) in [(Family::V4, 80), (Family::V6, 81)] {
        edges.iter().for_each(|edge| edge.give_all_slots(0));
        let listener = net.server.listen(EdgeNet::server_at(family, port));
        let first = net.client.connect_pair(&listener);
        transfer(&first, 3_000_000);
        let before = edges.each_ref().map(packets);
        edges.iter().for_each(|edge| edge.give_all_slots(1));
        let second = net.client.connect_pair(&listener);
        transfer(&second, 3_000_000);
        let between = edges.each_ref().map(packets);
        transfer(&first, 3_000_000);
        let after = edges.each_ref().map(packets);
        for edge in [0, 1] {
            assert!(
                between[edge][1].0 > before[edge][1].0 + 100,
                "the second connection uses the second string"
            );
            assert!(between[edge][1].1 > before[edge][1].1 + 100);
            assert!(
                after[edge][0].0 > between[edge][0].0 + 100,
                "the first connection stays"
            );
            assert!(after[edge][0].1 > between[edge][0].1 + 100);
        }
        let traffic = edges[0].traffic(1).expect("traffic");
        assert_eq!((traffic.active >= 1, traffic.handshakes >= 1), (true, true));
        let mean_ns = traffic.handshake_ns / traffic.handshakes;
        assert!((1_000..1_000_000_000).contains(&mean_ns), "{mean_ns} ns");
    }
    for edge in &edges {
        for name in [
            "other_string",
            "moved",
            "malformed",
            "no_next_hop",
            "dropped_held",
        ] {
            assert_eq!(edge.counter(name), 0, "{name}");
        }
    }
}

/// Both edges drop the packets of one string, as they do while the string is failing. Then its flows move, and the string returns.
#[test]
fn flows_of_a_failed_string_move_and_a_returned_string_gets_new_ones_only() {
    let Some(net) = EdgeNet::new("flows_of_a_failed_string_move") else {
        return;
    };
    let edges = [0, 1].map(|edge| net.edge_on(edge, Some(CachePolicy::Lowest)));
    let listener = net.server.listen(EdgeNet::server_at(Family::V4, 80));
    let busy = net.client.connect_pair(&listener);
    let idle = net.client.connect_pair(&listener);
    transfer(&busy, 1000);
    transfer(&idle, 1000);
    for edge in &edges {
        edge.set_copies(0, CopiedPackets::Needed);
        edge.set_steering(0, StringSteering::Held);
    }
    (&busy.0).write_all(b"held").expect("write");
    eventually("a packet is dropped", || {
        (edges[0].counter("dropped_held") > 0).then_some(())
    });
    let mut copies = edges[0].copies().expect("copies");
    let mut copied = 0;
    eventually("it was copied", || {
        copied += copies.drain(usize::MAX, |copy, packet| {
            assert_eq!((copy.string, copy.whole_len as usize), (0, packet.len()));
            assert!(packet.ends_with(b"held"));
        });
        (copied > 0).then_some(())
    });
    assert_eq!(copied, 1, "a repetition changes nothing in the cache");
    for edge in &edges {
        edge.give_all_slots(1);
        edge.bump_generation(0);
        edge.set_steering(0, StringSteering::Down);
    }
    let mut held = [0; 4];
    (&busy.1)
        .read_exact(&mut held)
        .expect("it arrives by the other string");
    let swept: u64 = edges.iter().map(|edge| edge.sweep(0).expect("sweep")).sum();
    assert!(swept >= 2, "the idle connection at both edges: {swept}");
    assert_eq!(edges[0].sweep(0).expect("sweep"), 0);
    assert!(edges[0].counter("moved") >= 1);
    for edge in &edges {
        edge.set_steering(0, StringSteering::Up);
        edge.give_all_slots(0);
    }
    let before = packets(&edges[0]);
    transfer(&idle, 1000);
    transfer(&busy, 1000);
    assert_eq!(packets(&edges[0])[0], before[0], "moved flows do not return");
    let new = net.client.connect_pair(&listener);
    transfer(&new, 1000);
    assert!(
        packets(&edges[0])[0].0 > before[0].0,
        "a new connection uses the string that is back"
    );
    assert!(edges[0].flows().expect("flows") >= 3);
}

#[test]
fn a_cap_limits_what_the_client_may_send() {
    let Some(net) = EdgeNet::new("a_cap_limits_what_the_client_may_send") else {
        return;
    };
    let edges = [0, 1].map(|edge| net.edge_on(edge, None));
    let listener = net.server.listen(EdgeNet::server_at(Family::V4, 80));
    let uncapped = net.client.connect_pair(&listener);
    transfer(&uncapped, 100_000);
    assert!(tcp_info(&uncapped.0).tcpi_snd_wnd > 20_000);
    edges[0].set_cap(0, Some(20_000));
    transfer(&uncapped, 1_000_000);
    let info = tcp_info(&uncapped.0);
    let scale = info.tcpi_snd_rcv_wscale & 15; // the server's window scale
    let most = u32::from(capped_field(20_000, scale)) << scale;
    let window = info.tcpi_snd_wnd;
    assert!((1..=most).contains(&window), "{window} of {most}");
    assert!(edges[0].counter("capped") > 0 && edges[0].counter("uncapped_flows") == 0);
    edges[0].set_agent_seen(1);
    transfer(&uncapped, 1_000_000);
}

#[test]
fn clients_frames_may_have_a_tag() {
    let Some(net) = EdgeNet::tagged("clients_frames_may_have_a_tag", 7) else {
        return;
    };
    let edges = [0, 1].map(|edge| net.edge_on(edge, None));
    for (family, port) in [(Family::V4, 80), (Family::V6, 81)] {
        let before = edges.each_ref().map(packets);
        let listener = net.server.listen(EdgeNet::server_at(family, port));
        transfer(&net.client.connect_pair(&listener), 1_000_000);
        for (edge, before) in edges.iter().zip(before) {
            let (entering, leaving) = packets(edge)[0];
            assert!(
                entering > before[0].0 + 100 && leaving > before[0].1 + 100,
                "{family:?}: {entering} {leaving}, before {before:?}"
            );
            assert_eq!(edge.counter("other_string"), 0);
        }
    }
}

/// The MTU of a string is smaller than the MTU of the client's network. The stack tells the client the smaller MTU (ICMP).
#[test]
fn a_packet_that_is_too_long_for_a_string_goes_to_the_stack() {
    let Some(net) = EdgeNet::new("a_packet_that_is_too_long") else {
        return;
    };
    for edge in &net.edges {
        edge.ip("link set s0 mtu 1400");
    }
    net.nodes[0].ip("link set e0 mtu 1400\n link set e1 mtu 1400");
    let edges = [0, 1].map(|edge| net.edge_on(edge, None));
    for (family, port) in [(Family::V4, 80), (Family::V6, 81)] {
        let listener = net.server.listen(EdgeNet::server_at(family, port));
        transfer(&net.client.connect_pair(&listener), 1_000_000);
    }
    assert!(edges[0].counter("too_big") > 0);
}

#[test]
fn a_packet_is_injected_into_a_string() {
    let Some(net) = EdgeNet::new("a_packet_is_injected_into_a_string") else {
        return;
    };
    let edge = net.edge_on(1, None);
    for family in Family::BOTH {
        let to = EdgeNet::server_at(family, 9000);
        let socket = net.server.run(|| UdpSocket::bind(to)).expect("bind");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let made = HandMade {
            payload: 3,
            ..HandMade::new(at(family, 1, 1), to.ip(), (4000, 9000))
        };
        net.edges[0].run(|| {
            let injector = Injector::open(index_of(&net.edges[0], "s1")).expect("open");
            // The first question makes the kernel ask the neighbour.
            eventually("the neighbour answers", || {
                injector.link_address(at(family, 11, 1)).expect("an answer")
            });
            injector.send(&made.udp(), at(family, 11, 1)).expect("send");
            let nobody = injector
                .send(&made.udp(), at(family, 11, 77))
                .expect_err("nobody is there");
            assert_eq!(nobody.kind(), std::io::ErrorKind::HostUnreachable);
        });
        let mut received = [0; 10];
        let (len, from) = socket.recv_from(&mut received).expect("it arrives");
        assert_eq!((&received[..len], from.port()), (&[0, 1, 2][..], 4000));
    }
    assert_eq!(edge.traffic(1).expect("traffic").leaving_packets, 2);
}

#[test]
fn a_node_learns_the_addresses_that_an_edge_announces() {
    let Some(net) = EdgeNet::new("a_node_learns_the_addresses_that_an_edge_announces") else {
        return;
    };
    for family in Family::BOTH {
        let edge = at(family, 11, 2);
        let wrong = format!("neigh replace {edge} lladdr 02:00:00:00:00:77 dev e0 nud stale");
        net.nodes[1].ip(&wrong);
        let own = net.edges[0].run(|| {
            let injector = Injector::open(index_of(&net.edges[0], "s1")).expect("open");
            injector.announce(edge).expect("announce");
            injector.own()
        });
        // Nothing uses the entry, so the node's kernel does not verify it.
        let own = own.map(|byte| format!("{byte:02x}")).join(":");
        eventually("the node has the right address", || {
            let show = || Command::new("ip").args(["neigh", "show", "dev", "e0"]).output();
            let table = net.nodes[1].run(show).expect("ip");
            let table = String::from_utf8_lossy(&table.stdout).into_owned();
            let entry = table.lines().find(|line| line.starts_with(&format!("{edge} ")))?;
            entry.contains(&own).then_some(())
        });
    }
}

#[test]
fn a_successor_goes_on_with_the_flows() {
    let Some(net) = EdgeNet::new("a_successor_goes_on_with_the_flows") else {
        return;
    };
    let edges = [0, 1].map(|edge| net.edge_on(edge, None));
    let listener = net.server.listen(EdgeNet::server_at(Family::V4, 80));
    let pair = net.client.connect_pair(&listener);
    let [edge, other] = edges;
    let kept = KeptString {
        epoch: 17,
        was_up: true,
        last_loss: Some((Instant::from_nanos(5_000_000_007), Duration::from_secs(16))),
    };
    edge.keep(1, kept);
    edge.set_cap(0, Some(30_000));
    edge.set_steering(1, StringSteering::Down);
    let plan = net.plan(0, None);
    let name = edge.name().to_owned();
    let again = net.edges[0].run(|| EdgeWire::load(&name, &plan, &edge_options()).err());
    assert!(matches!(again, Some(WireError::Leftover(_))));
    let edge = std::thread::scope(|scope| {
        scope.spawn(|| transfer(&pair, 30_000_000));
        edge.succeeded(&plan, &edge_options())
    });
    assert!(net.edges[0].run(|| edge.is_attached()));
    assert_eq!((edge.kept(1), edge.steering(1)), (kept, StringSteering::Down));
    assert_eq!(
        (edge.kept(0), edge.steering(0)),
        (KeptString::default(), StringSteering::Up)
    );
    assert_eq!((edge.cap(0), edge.cap(1)), (Some(30_000), None));
    assert_eq!((edge.counter("new_flows"), edge.flows().expect("flows")), (1, 1));
    assert_eq!(other.counter("other_string"), 0);
    let mut fewer = plan.clone();
    fewer.strings.pop();
    let refused = net.edges[0].run(|| EdgeWire::adopt(&name, &fewer, &edge_options()).err());
    assert!(
        refused
            .expect("refused")
            .to_string()
            .contains("it has 2 strings, not 1")
    );
    net.edges[0].ip("link set out down\n link set out up");
    assert!(net.edges[0].run(|| edge.is_attached()));
    net.edges[0].run(|| {
        let output = std::process::Command::new("tc")
            .args(["qdisc", "del", "dev", "s1", "clsact"])
            .output();
        assert!(output.expect("tc runs").status.success());
    });
    assert!(!net.edges[0].run(|| edge.is_attached()));
    drop(edge);
    assert!(!is_edge_left_behind(&name));
}
