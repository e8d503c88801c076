//! Tests of what neighbours and clients see of a node's network.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use proto::Seq;
use proto::packet::{Flags, Segment, TcpOptions};
use socket2::SockRef;

use super::*;
use crate::raw::RawSender;
use crate::wire::{MARK_END, MARK_SPEAK};

const MOMENT: Duration = Duration::from_millis(300);

const SOON: Duration = Duration::from_secs(5);

fn interface(name: &str) -> Interface {
    Interface::find(name).unwrap().unwrap()
}

#[test]
fn only_the_backup_answers_for_the_vip() {
    let Some(world) = RouterLan::new("only_the_backup_answers_for_the_vip") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [for_backup, for_primary] = ["b", "p"].map(|name| dir.path().join(name));
    world.backup.run(|| drop(set_up(&backup_plan(), &for_backup)));
    world.primary.run(|| drop(set_up(&primary_plan(), &for_primary)));
    let backup = world.backup.run(|| interface("eth0").mac.unwrap());
    let primary = world.primary.run(|| interface("eth0").mac.unwrap());
    world.router.run(|| {
        let lan = interface("lan");
        for vip in ["10.0.0.100", "2001:db8::100"] {
            let vip = vip.parse().unwrap();
            assert_eq!(claimants(&lan, vip, MOMENT).unwrap(), [backup], "{vip}");
            assert_eq!(resolve(&lan, vip, SOON).unwrap(), Some(backup), "{vip}");
        }
        for address in ["10.0.0.3", "2001:db8::3"] {
            assert_eq!(
                resolve(&lan, address.parse().unwrap(), SOON).unwrap(),
                Some(primary)
            );
        }
        for nobody in ["10.0.0.77", "2001:db8::77"] {
            assert_eq!(resolve(&lan, nobody.parse().unwrap(), MOMENT).unwrap(), None);
        }
    });
    // The two nodes ask each other, as they do in the check before the VIP comes up.
    world.primary.run(|| {
        let vip = "10.0.0.100".parse().unwrap();
        assert_eq!(claimants(&interface("eth0"), vip, MOMENT).unwrap(), [backup]);
    });
    world.backup.run(|| {
        let vip = "2001:db8::100".parse().unwrap();
        assert_eq!(
            claimants(&interface("eth0"), vip, MOMENT).unwrap(),
            [],
            "a node does not count its own answer"
        );
    });
}

#[test]
fn two_claimants_are_both_found() {
    let Some(world) = RouterLan::new("two_claimants_are_both_found") else {
        return;
    };
    for node in [&world.backup, &world.primary] {
        node.ip("addr add 10.0.0.100/32 dev eth0");
        node.ip("addr add 2001:db8::100/128 dev eth0 nodad");
    }
    let mut both = [&world.backup, &world.primary].map(|node| node.run(|| interface("eth0").mac.unwrap()));
    both.sort();
    for vip in ["10.0.0.100", "2001:db8::100"] {
        let found = world
            .router
            .run(|| claimants(&interface("lan"), vip.parse().unwrap(), MOMENT).unwrap());
        assert_eq!(found, both, "{vip}");
    }
}

#[test]
fn an_announcement_moves_the_routers_entry() {
    let Some(world) = RouterLan::new("an_announcement_moves_the_routers_entry") else {
        return;
    };
    for vip in ["10.0.0.100", "2001:db8::100"] {
        let from = world.backup.run(|| interface("eth0").mac.unwrap()).to_string();
        let to = world.primary.run(|| interface("eth0").mac.unwrap()).to_string();
        world.router.ip(&format!(
            "neigh replace {vip} lladdr {from} dev lan nud reachable"
        ));
        world.primary.run(|| {
            Announcer::open(&interface("eth0"))
                .unwrap()
                .announce(vip.parse().unwrap())
                .unwrap()
        });
        let until = std::time::Instant::now() + SOON;
        while !world.router.ip(&format!("neigh show {vip}")).contains(&to) {
            assert!(std::time::Instant::now() < until, "{}", world.router.ip("neigh"));
        }
    }
}

/// The error of a connection from the router to `service`, where no process listens.
fn refusal(world: &RouterLan, service: SocketAddr) -> io::ErrorKind {
    world
        .router
        .run(|| TcpStream::connect_timeout(&service, MOMENT).unwrap_err().kind())
}

#[test]
fn a_neighbour_that_did_not_answer_is_asked_for_again_at_once() {
    let Some(world) = RouterLan::new("a_neighbour_that_did_not_answer_is_asked_for_again_at_once") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let backup = &world.backup;
    let network = backup.run(|| set_up(&backup_plan(), &journal(dir.path())));
    for (peer, local) in [("10.0.0.3", "10.0.0.2:0"), ("2001:db8::3", "[2001:db8::2]:0")] {
        let peer: IpAddr = peer.parse().unwrap();
        backup.ip(&format!("neigh flush to {peer}"));
        world.router.ip("link set port3 down");
        let socket = backup.run(|| std::net::UdpSocket::bind(local).unwrap());
        let send = || socket.send_to(b"?", (peer, 9)).unwrap();
        send();
        world.router.ip("link set port3 up");
        let entry = || backup.ip(&format!("neigh show {peer}"));
        assert!(entry().contains("INCOMPLETE"), "{}", entry());
        backup.run(|| network.ask_again_for(peer).unwrap());
        assert_eq!(entry(), "");
    }
    backup.run(|| network.remove().unwrap());
}

#[test]
fn without_the_right_to_speak_no_rst_leaves() {
    let Some(world) = RouterLan::new("without_the_right_to_speak_no_rst_leaves") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let plan = backup_plan();
    let journal = journal(dir.path());
    let network = world.backup.run(|| set_up(&plan, &journal));
    let set_speak = |service, may| world.backup.run(|| network.set_speak(service, may).unwrap());
    for service in [plan.services[0].address, plan.services[2].address] {
        assert_eq!(refusal(&world, service), io::ErrorKind::TimedOut);
        set_speak(service, true);
        set_speak(service, true);
        assert_eq!(refusal(&world, service), io::ErrorKind::ConnectionRefused);
        set_speak(service, false);
        set_speak(service, false);
        assert_eq!(refusal(&world, service), io::ErrorKind::TimedOut);
    }
    let table = world.backup.command("nft list table inet steadfast_test-node");
    let is_unused_drop =
        |line: &&str| line.contains("counter packets 0 ") && line.trim_end().ends_with("drop");
    assert_eq!(
        table.lines().filter(is_unused_drop).count(),
        1,
        "the rule for RSTs has dropped a packet, and the rule for other segments has not: {table}"
    );
    for other in ["10.0.0.100:81", "10.0.0.2:80"] {
        assert_eq!(
            refusal(&world, other.parse().unwrap()),
            io::ErrorKind::ConnectionRefused,
            "not guarded"
        );
    }
}

/// Runs `job` in this thread without the right to change nftables.
fn without_privilege<T>(job: impl FnOnce() -> T) -> T {
    let become_user = |user: libc::uid_t| {
        // SAFETY: takes numbers only. The raw call changes this thread alone; libc's function would change all threads of the tests.
        let code = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
        assert_eq!(code, 0, "{}", io::Error::last_os_error());
    };
    become_user(65534);
    let outcome = job();
    become_user(0);
    outcome
}

#[test]
fn a_withdrawal_that_failed_is_carried_out_by_the_next_one() {
    let Some(world) = RouterLan::new("a_withdrawal_that_failed_is_carried_out_by_the_next_one") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let plan = backup_plan();
    let service = plan.services[0].address;
    let network = world.backup.run(|| set_up(&plan, &journal(dir.path())));
    world.backup.run(|| {
        network.set_speak(service, true).unwrap();
        let error = without_privilege(|| network.set_speak(service, false).unwrap_err().to_string());
        assert!(error.contains("Operation not permitted"), "{error}");
    });
    assert_eq!(refusal(&world, service), io::ErrorKind::ConnectionRefused);
    world.backup.run(|| network.set_speak(service, false).unwrap());
    assert_eq!(refusal(&world, service), io::ErrorKind::TimedOut);
}

/// A connection from the router to `service`; `None` if the router cannot connect.
fn connect(world: &RouterLan, service: SocketAddr) -> Option<TcpStream> {
    let connected = world
        .router
        .run(|| TcpStream::connect_timeout(&service, MOMENT).ok());
    connected.inspect(|stream| stream.set_read_timeout(Some(MOMENT)).unwrap())
}

/// Whether the client receives neither data nor an end of the stream for [`MOMENT`].
fn is_silent(mut client: &TcpStream) -> bool {
    loop {
        match client.read(&mut [0; 4]).map_err(|error| error.kind()) {
            Err(io::ErrorKind::Interrupted) => {} // this process was stopped for a while
            end => return end == Err(io::ErrorKind::WouldBlock),
        }
    }
}

#[test]
fn without_the_right_to_speak_no_listener_answers() {
    let Some(world) = RouterLan::new("without_the_right_to_speak_no_listener_answers") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let plan = backup_plan();
    let backup = &world.backup;
    let network = backup.run(|| set_up(&plan, &journal(dir.path())));
    for service in [plan.services[0].address, plan.services[2].address] {
        let listener = backup.run(|| TcpListener::bind(service).unwrap());
        assert!(connect(&world, service).is_none());
        let refused = backup.run(|| TcpStream::connect(service).unwrap_err());
        assert_eq!(
            refused.kind(),
            io::ErrorKind::ConnectionRefused,
            "no wire has let this connection pass"
        );

        backup.run(|| network.set_speak(service, true).unwrap());
        let mut client = connect(&world, service).expect("it may speak");
        let (mut server, _) = listener.accept().unwrap();
        backup.run(|| network.set_speak(service, false).unwrap());
        server.write_all(b"word").unwrap();
        assert!(is_silent(&client), "the right was withdrawn");
        let mark = |mark| SockRef::from(&server).set_mark(mark).unwrap();
        mark(MARK_SPEAK);
        server.write_all(b"word").unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        client.read_exact(&mut [0; 8]).expect("the mark lets data leave");
    }
}

#[test]
fn who_answers_a_marked_syn_may_speak_but_not_reset() {
    let Some(world) = RouterLan::new("who_answers_a_marked_syn_may_speak_but_not_reset") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let plan = backup_plan();
    let backup = &world.backup;
    let _network = backup.run(|| set_up(&plan, &journal(dir.path())));
    let services = [plan.services[0].address, plan.services[2].address];
    let listeners = services.map(|service| backup.run(|| TcpListener::bind(service).unwrap()));
    for service in services {
        assert!(connect(&world, service).is_none());
    }
    // Marks SYNs as the wire does during a takeover.
    backup.command("nft add table inet wire");
    backup.command("nft add chain inet wire in { type filter hook prerouting priority -300 ; }");
    backup.command(&format!(
        "nft add rule inet wire in tcp flags syn meta mark set {MARK_SPEAK}"
    ));
    for (service, listener) in services.into_iter().zip(&listeners) {
        let mut client = connect(&world, service).expect("the SYN was marked");
        client.set_read_timeout(Some(SOON)).unwrap();
        // The first accepted connection may come from a SYN of the failed attempt above.
        let (mut server, _) = std::iter::repeat_with(|| listener.accept().unwrap())
            .find(|(_, from)| *from == client.local_addr().unwrap())
            .unwrap();
        server.write_all(b"word").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        SockRef::from(&server).set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
        client.set_read_timeout(Some(MOMENT)).unwrap();
        assert!(is_silent(&client), "no RST");

        // A deliberate RST, with its own mark, leaves.
        let mut client = connect(&world, service).expect("the SYN was marked");
        client.set_read_timeout(Some(SOON)).unwrap();
        let (server, _) = std::iter::repeat_with(|| listener.accept().unwrap())
            .find(|(_, from)| *from == client.local_addr().unwrap())
            .unwrap();
        SockRef::from(&server).set_mark(MARK_END).unwrap();
        SockRef::from(&server).set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
        let end = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(io::ErrorKind::ConnectionReset));
    }
}

/// The agent's RSTs leave although its node has no general right to speak. If the guard dropped a RST, the sender would get an error.
#[test]
fn a_refusal_needs_no_right_to_speak() {
    let Some(world) = RouterLan::new("a_refusal_needs_no_right_to_speak") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let plan = backup_plan();
    let backup = &world.backup;
    let _network = backup.run(|| set_up(&plan, &journal(dir.path())));
    let raw = backup.run(|| RawSender::open().unwrap());
    for service in [plan.services[0].address, plan.services[2].address] {
        let router: IpAddr = if service.is_ipv4() { "10.0.0.1" } else { "fd00::1" }
            .parse()
            .unwrap();
        let reset = Segment {
            source: service,
            destination: (router, 9).into(),
            seq: Seq(1),
            ack: Seq(1),
            flags: Flags {
                rst: true,
                ..Flags::default()
            },
            window: 0,
            options: TcpOptions::default(),
            payload: &[],
        };
        raw.send(&reset.emit()).unwrap();
    }
}

#[test]
fn the_guard_stands_before_the_vip() {
    let Some(world) = RouterLan::new("the_guard_stands_before_the_vip") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    world
        .backup
        .run(|| drop(Network::prepare(&backup_plan(), &journal(dir.path())).unwrap()));
    assert!(!world.backup.ip("addr").contains("10.0.0.100"));
    world.backup.ip("addr add 10.0.0.100/32 dev eth0");
    assert_eq!(
        refusal(&world, "10.0.0.100:80".parse().unwrap()),
        io::ErrorKind::TimedOut
    );
}

#[test]
fn interfaces_are_described() {
    let Some(world) = RouterLan::new("interfaces_are_described") else {
        return;
    };
    world.backup.run(|| {
        nftables_available().unwrap();
        let eth0 = interface("eth0");
        assert!(eth0.up && eth0.carrier);
        assert_eq!(eth0.mtu, 1500);
        assert_eq!(eth0.large_receive_offload().unwrap(), Some(false));
        assert_eq!(
            eth0.address_like("192.0.2.1".parse().unwrap()),
            Some("10.0.0.2".parse().unwrap())
        );
        assert!(
            addresses()
                .unwrap()
                .contains(&("eth0".to_owned(), "2001:db8::2".parse().unwrap()))
        );
        assert_eq!(interface("lo").mac, None, "loopback has no neighbours");
        assert_eq!(Interface::find("eth7").unwrap(), None);
        let error = Announcer::open(&interface("lo")).unwrap_err();
        assert_eq!(error.to_string(), "use lo: it is not an Ethernet interface");
    });
    world.backup.ip("link set eth0 down");
    world.backup.run(|| assert!(!interface("eth0").up));
}

#[test]
fn the_right_to_speak_of_a_table_that_is_gone_is_an_error() {
    let Some(world) = RouterLan::new("the_right_to_speak_of_a_table_that_is_gone_is_an_error") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let service = backup_plan().services[0].address;
    let network = world.backup.run(|| set_up(&backup_plan(), &journal(dir.path())));
    world.backup.command("nft delete table inet steadfast_test-node");
    let error = world
        .backup
        .run(|| network.set_speak(service, true).unwrap_err().to_string());
    let expected = "change the right to speak, in nftables table steadfast_test-node: 10.0.0.100:80: No such file or directory";
    assert!(error.starts_with(expected), "{error}");
}
