//! Multipath TCP (RFC 8684), with real sockets on both ends. The primary's network refuses Multipath TCP, so both ends fall back to plain
//! TCP. If a connection uses Multipath TCP nevertheless, the log notices that.

use std::net::{SocketAddr, TcpListener, TcpStream};

use proto::action::Gate;
use proto::connection::{Protection, UnprotectedCause};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use steadfast_linux::network::{Network, NetworkPart, NetworkPlan, NetworkService};

use crate::support::eventually;
use crate::support::lan::{Family, Lan, LanHost, accept, patient};
use crate::support::log::LogThread;
use crate::support::takeover::take_over;
use crate::support::talk::Talk;
use crate::support::wire_on::{WireOn, options};

/// IPPROTO_MPTCP
const MULTIPATH: i32 = 262;

fn socket(at: SocketAddr) -> Socket {
    Socket::new(
        Domain::for_address(at),
        Type::STREAM,
        Some(Protocol::from(MULTIPATH)),
    )
    .expect("CONFIG_MPTCP")
}

fn listen(host: &LanHost, at: SocketAddr) -> TcpListener {
    host.run(|| {
        let socket = socket(at);
        socket.bind(&at.into()).expect("bind");
        socket.listen(16).expect("listen");
        socket.into()
    })
}

fn connect(host: &LanHost, to: SocketAddr) -> TcpStream {
    let stream = host.run(|| {
        let socket = socket(to);
        socket
            .connect_timeout(&to.into(), crate::support::PATIENCE)
            .expect("connect");
        TcpStream::from(socket)
    });
    patient(&stream);
    stream
}

/// Whether an accepted socket uses Multipath TCP. A listener for Multipath TCP also accepts connections with plain TCP.
fn is_multipath(server: &TcpStream) -> bool {
    SockRef::from(server).protocol().expect("SO_PROTOCOL") == Some(Protocol::from(MULTIPATH))
}

/// The primary's network as its agent sets it up, with the right to speak.
struct AgentNetwork {
    host: LanHost,
    network: Option<Network>,
    _journal: tempfile::TempDir,
}

impl AgentNetwork {
    fn on(lan: &Lan) -> Self {
        let host = lan.primary.clone();
        host.ip("addr del 10.0.0.100/32 dev lo\n addr del fd00::100/128 dev lo");
        let service = |family: Family| NetworkService {
            address: family.vip(),
            interface: "eth0".to_owned(),
            peer: family.address(2),
            application: ([127, 0, 0, 1], 8080).into(),
            staged_application: None,
            sends_directly: false,
        };
        let plan = NetworkPlan {
            node: "multipath".to_owned(),
            services: Family::BOTH.map(service).to_vec(),
        };
        let journal = tempfile::tempdir().expect("a directory");
        let network = host.run(|| {
            let mut network = Network::prepare(&plan, &journal.path().join("journal")).expect("prepare");
            for family in Family::BOTH {
                network
                    .assume(family.vip().ip(), NetworkPart::Behind)
                    .expect("assume");
                network.set_speak(family.vip(), true).expect("set_speak");
            }
            network
        });
        host.wait_for_addresses();
        Self {
            host,
            network: Some(network),
            _journal: journal,
        }
    }
}

impl Drop for AgentNetwork {
    fn drop(&mut self) {
        let network = self.network.take().expect("until now");
        self.host.run(|| network.remove()).expect("remove");
    }
}

/// Both ends support Multipath TCP, as Go's listeners do by default. Their connection uses plain TCP and outlives the primary.
#[test]
fn both_ends_fall_back_and_go_on() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("both_ends_fall_back_and_go_on") else {
            return;
        };
        let _agent = AgentNetwork::on(&lan);
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let reading = LogThread::of(&wire);
        let listener = listen(&lan.primary, family.vip());
        let client = connect(&lan.client, family.vip());
        let server = accept(&listener);
        assert!(!is_multipath(&server));
        let mut talk = Talk::new();
        talk.exchange(&client, &server, 50_000);
        lan.power_off_primary();
        let address = client.local_addr().expect("connected");
        talk.client_writes(&client, 1000);
        let taken = take_over(&lan.backup, &wire, &reading, address, family);
        talk.carry_to_the_end(&client, &taken);
    }
}

/// If the Multipath TCP option was not removed from the SYN, the log states this as the reason why the connection is unprotected.
#[test]
fn a_connection_of_several_paths_is_not_protected() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("a_connection_of_several_paths_is_not_protected") else {
            return;
        };
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let reading = LogThread::of(&wire);
        let listener = listen(&lan.primary, family.vip());
        let client = connect(&lan.client, family.vip());
        let server = accept(&listener);
        assert!(is_multipath(&server));
        Talk::new().exchange(&client, &server, 50_000);
        let address = client.local_addr().expect("connected");
        let log = reading.now();
        let protection = log.connection(address).1.protection();
        assert_eq!(protection, Protection::Unprotected(UnprotectedCause::Multipath));
        // The server still serves, and a client of plain TCP is not affected.
        drop(log);
        let plain = lan.client.connect(family.vip());
        let server = accept(&listener);
        assert!(!is_multipath(&server));
        Talk::new().exchange(&plain, &server, 1000);
        reading
            .now()
            .assert_protected(plain.local_addr().expect("connected"));
    }
}

/// A counter of Multipath TCP, as in `nstat`.
fn counted(host: &LanHost, name: &str) -> u64 {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat").expect("statistics"));
    let lines = text.lines().filter(|line| line.starts_with("MPTcpExt:"));
    let lines: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
    let at = lines[0].iter().position(|field| *field == name).expect(name);
    lines[1][at].parse().expect("a number")
}

/// A connection that began before the agent keeps its paths, but cannot add new ones.
#[test]
fn a_path_is_not_joined() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("a_path_is_not_joined") else {
            return;
        };
        lan.primary.ip("mptcp limits set subflow 4");
        lan.client.ip("mptcp limits set subflow 4");
        let _wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let listener = listen(&lan.primary, family.vip());
        let client = connect(&lan.client, family.vip());
        let server = accept(&listener);
        assert!(is_multipath(&server));
        let mut talk = Talk::new();
        talk.exchange(&client, &server, 1000);
        let _agent = AgentNetwork::on(&lan);
        let second = family.address(11);
        let len = if family == Family::V4 { 24 } else { 64 };
        lan.client.ip(&format!("addr add {second}/{len} dev lan nodad"));
        lan.client.wait_for_addresses();
        lan.client
            .ip(&format!("mptcp endpoint add {second} dev lan subflow"));
        eventually("a path is offered", || {
            (counted(&lan.client, "MPJoinSynTx") > 0).then_some(())
        });
        eventually("it is refused", || {
            (counted(&lan.client, "MPRstTx") > 0).then_some(())
        });
        talk.exchange(&client, &server, 50_000);
        assert_eq!(counted(&lan.client, "MPJoinSynAckRx"), 0);
        assert_eq!(counted(&lan.primary, "MPJoinSynRx"), 0);
    }
}
