//! The simulated world itself: the order of events, cables, a node's power, and the trace.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::scenario::{MS, RoutedNetwork, at, client_address, exchange, server_address, wrapping};
use steadfast_sim::exchange::{Close, Exchange, SeededStream};
use steadfast_sim::host::{Host, HostConfig};
use steadfast_sim::link::LinkConfig;
use steadfast_sim::router::{Pass, Tap};
use steadfast_sim::tcp::{TcpConfig, TcpEndpoint};
use steadfast_sim::world::{NodeId, Port, World};

fn slow() -> LinkConfig {
    LinkConfig {
        delay: 10 * MS,
        ..LinkConfig::default()
    }
}

fn host(address: std::net::IpAddr) -> Box<Host> {
    let config = HostConfig {
        addresses: vec![address],
        tcp: TcpConfig::default(),
        initial: None,
    };
    Box::new(Host::new(config, 1))
}

/// A client with one connection to a server, and a tap between them. `judge` decides whether a packet passes the tap.
fn tapped(judge: impl FnMut(proto::Instant, Port, &[u8]) -> Pass + 'static) -> (World, [NodeId; 3]) {
    let mut world = World::new(1);
    world.record();
    let client = world.add("client", host(client_address()));
    let tap = world.add("tap", Box::new(Tap::new(judge)));
    let server = world.add("server", host(server_address()));
    world.connect(client, tap, &slow()).unwrap();
    world.connect(tap, server, &slow()).unwrap();
    let (ours, theirs) = exchange(10, 10, Close::AfterSending, Close::AfterSending);
    world.with(server, |host: &mut Host, _| {
        host.listen(80, move |_| Box::new(theirs.clone()));
    });
    let addresses = ((client_address(), 1000).into(), (server_address(), 80).into());
    world.with(client, |host: &mut Host, now| {
        host.connect(now, addresses.0, addresses.1, Box::new(ours));
    });
    (world, [client, tap, server])
}

fn app(world: &World, node: NodeId) -> &Exchange {
    let host: &Host = world.node(node);
    let (id, _) = host.endpoints().next().expect("an endpoint");
    host.app(id).expect("an exchange")
}

#[test]
fn what_happens_at_the_same_time_happens_in_the_order_in_which_it_was_made() {
    let mut world = World::new(1);
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..100 {
        let order = Rc::clone(&order);
        world.at(at(MS * (number % 3)), move |_| order.borrow_mut().push(number));
    }
    world.run_until(at(2 * MS));
    let mut expected: Vec<u32> = (0..100).collect();
    expected.sort_by_key(|number| number % 3); // a stable sort
    assert_eq!(*order.borrow(), expected);
}

#[test]
fn a_tap_sees_both_directions_and_decides() {
    let seen = Rc::new(RefCell::new([0, 0]));
    let counter = Rc::clone(&seen);
    let (mut world, [client, _, server]) = tapped(move |_, port, _| {
        counter.borrow_mut()[port.0] += 1;
        Pass::Forward
    });
    world.run_until(at(Duration::from_secs(1)));
    assert!(app(&world, client).is_complete() && app(&world, server).is_complete());
    assert!(seen.borrow().iter().all(|count| *count >= 2), "{seen:?}");
    let (mut world, [client, _, _]) = tapped(|now, _, _| {
        if now < at(Duration::from_secs(5)) {
            Pass::Drop
        } else {
            Pass::Forward
        }
    });
    world.run_until(at(Duration::from_secs(5)));
    assert_eq!(app(&world, client).received(), 0);
    world.run_until(at(Duration::from_secs(10)));
    assert!(app(&world, client).is_complete());
}

#[test]
fn a_cut_loses_what_is_on_the_way_and_what_comes_until_it_is_mended() {
    let mut world = World::new(1);
    world.record();
    let client = world.add("client", host(client_address()));
    let server = world.add("server", host(server_address()));
    let cable = world.connect(client, server, &slow()).unwrap();
    world.with(client, |host: &mut Host, now| {
        let addresses = ((client_address(), 1000).into(), (server_address(), 80).into());
        let (ours, _) = exchange(10, 10, Close::Never, Close::Never);
        host.connect(now, addresses.0, addresses.1, Box::new(ours))
    });
    world.at(at(5 * MS), move |world| world.set_up(cable, false));
    world.at(at(6 * MS), move |world| world.set_up(cable, true));
    world.at(at(500 * MS), move |world| world.set_up(cable, false));
    world.at(at(2_000 * MS), move |world| world.set_up(cable, true));
    world.run_until(at(Duration::from_secs(4)));
    let fates: Vec<&str> = world
        .trace()
        .lines()
        .filter(|line| line.contains(" S 0:0(0)"))
        .map(|line| line.rsplit_once(['>', ')']).unwrap().1)
        .collect();
    assert_eq!(fates, ["", " [cut]", " [down]", "", ""]);
}

#[test]
fn without_power_a_node_neither_hears_nor_speaks() {
    let (mut world, [_, _, server]) = tapped(|_, _, _| Pass::Forward);
    world.run_until(at(25 * MS));
    world.power_off(server);
    world.run_until(at(Duration::from_secs(100)));
    let after: Vec<&str> = world
        .trace()
        .lines()
        .skip_while(|line| !line.ends_with("server: power off"))
        .collect();
    assert!(
        after
            .iter()
            .any(|line| line.contains("server <") && line.ends_with("[off]"))
    );
    assert!(!after.iter().any(|line| line.contains("server >")));
}

#[test]
fn the_trace_reads_like_packetdrill() {
    let mut scenario = RoutedNetwork::new(1, &slow(), &TcpConfig::default(), Some(wrapping()));
    scenario.world.record();
    scenario.serve(|| |_: proto::Instant, _: &mut TcpEndpoint| None);
    scenario.connect(|_: proto::Instant, endpoint: &mut TcpEndpoint| {
        if endpoint.round_trip().is_none() {
            endpoint.write(b"hello");
        }
        None
    });
    scenario.world.run_until(at(100 * MS));
    let ours = scenario
        .world
        .trace()
        .lines()
        .filter(|line| line.contains(" client "));
    let lines = ours.collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!(lines, @r"
    0.000000 client > 10.1.0.2:40000 10.2.0.100:80 S 0:0(0) win 65535 <mss 1460,sackOK,TS val 4294967245 ecr 0,wscale 7>
    0.020081 client < 10.2.0.100:80 10.1.0.2:40000 S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK,TS val 4294967255 ecr 4294967245,wscale 7>
    0.020081 client > 10.1.0.2:40000 10.2.0.100:80 P. 1:6(5) ack 1 win 8192 <TS val 4294967265 ecr 4294967255>
    0.080163 client < 10.2.0.100:80 10.1.0.2:40000 . 1:1(0) ack 6 win 8191 <TS val 19 ecr 4294967265>
    ");
}

#[test]
fn an_exchange_notices_every_wrong_byte() {
    let stream = SeededStream::new(1, 1000);
    let check = |bytes: &[u8]| {
        let mut scenario = RoutedNetwork::new(1, &slow(), &TcpConfig::default(), None);
        let bytes = bytes.to_vec();
        let mut written = 0;
        scenario.serve(move || {
            let bytes = bytes.clone();
            move |_: proto::Instant, endpoint: &mut TcpEndpoint| {
                written += endpoint.write(&bytes[written..]);
                None
            }
        });
        scenario.connect(Exchange::new(SeededStream::new(2, 0), stream, Close::Never));
        scenario.world.run_until(at(Duration::from_secs(1)));
        let (_, app) = scenario.first::<Exchange>(scenario.client);
        (app.is_complete(), app.wrong_at())
    };
    let right = stream.bytes(0, 1000);
    assert_eq!(check(&right), (true, None));
    assert_eq!(check(&right[..999]), (false, None));
    let mut flipped = right.clone();
    flipped[500] ^= 1;
    assert_eq!(check(&flipped), (false, Some(500)));
    let mut longer = right.clone();
    longer.push(0);
    assert_eq!(check(&longer), (false, Some(1000)));
}
