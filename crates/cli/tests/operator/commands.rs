//! The commands of an operator.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::lan::{CommandOutput, OperatorLan, POLL, copy_program, steadfast};
use linux::network::{self, Network, NetworkPart, NetworkPlan};
use steadfast::control::{
    ArbiterKind, Call, Connections, ControlServer, NodeStatus, PeerStatus, RestoredConnections, RingsStatus,
};
use steadfast::lock::{self, Lock};

/// Asserts that `check-config` and `run` refuse the usual configuration with `old` replaced by `new`: the exit code is 2, the errors are
/// `lines`, and the network is not changed.
#[track_caller]
fn assert_refused(lan: &OperatorLan, old: &str, new: &str, lines: &[&str]) {
    let file = lan.config(old, new);
    let before = lan.node.dump();
    for command in ["check-config", "run"] {
        let CommandOutput { code, output, errors } = lan.with_config(command, &file);
        let found: Vec<&str> = errors
            .lines()
            .filter(|line| !line.contains(": warning: "))
            .collect();
        assert_eq!(found, lines, "{command}");
        assert_eq!(code, 2, "{command}: {errors}");
        assert_eq!(output, "", "{command}");
    }
    assert_eq!(lan.node.dump(), before, "nothing is changed");
    assert!(!lan.state_dir().exists(), "nothing is written");
}

/// Adds gateways. They serve as outside hosts, so that `claim_ping` need not be configured.
fn add_gateways(lan: &OperatorLan) {
    lan.node.ip("route add default via 10.0.0.4 dev eth0");
    lan.node.ip("-6 route add default via fe80::1 dev eth0");
}

#[test]
fn a_good_configuration_is_all_right() {
    let Some(lan) = OperatorLan::new("a_good_configuration_is_all_right") else {
        return;
    };
    add_gateways(&lan);
    // The peer has the VIP and answers for it, which is allowed.
    lan.peer.ip("addr add 10.0.0.100/32 dev eth0");
    lan.peer.ip("addr add 2001:db8::100/128 dev eth0 nodad");
    let _listener = lan.node.run(|| TcpListener::bind("[::]:80").unwrap());
    let outcome = lan.with_config("check-config", &lan.config("", ""));
    assert_eq!(
        outcome.errors,
        "s.toml: node sf-test-node, 2 services: all right\n"
    );
    assert_eq!(outcome.code, 0);
}

#[test]
fn a_configuration_with_an_unknown_key_is_refused() {
    let Some(lan) = OperatorLan::new("a_configuration_with_an_unknown_key_is_refused") else {
        return;
    };
    assert_refused(
        &lan,
        "port = 80",
        "prot = 80",
        &[
            "s.toml:9: service[0].port: is missing; allowed: an integer from 1 to 65535",
            "s.toml:12: service[0].prot: unknown key; allowed here: name, address, port, interface, policy, peer, primary, \
             peer_address, application, staged_application, volatile_headers, reexecute, cut_replies, after_takeover, opaque, crash_exit_codes, commit, at_limit, keep_input, claim_ping, on_deposed, \
             state_sync, state_sync_timeout_ms, state_sync_hold_ms, recorded_order, recorded_order_user, \
             recorded_order_program, on_divergence, health, registered_annexes, annex",
        ],
    );
}

#[test]
fn interfaces_must_be_there_and_up() {
    let Some(lan) = OperatorLan::new("interfaces_must_be_there_and_up") else {
        return;
    };
    assert_refused(
        &lan,
        "\"eth0\"",
        "\"eth7\"",
        &["s.toml:13: service[0].interface: there is no interface \"eth7\"; allowed: eth0"],
    );
    lan.node.ip("link add spare type veth peer name other");
    assert_refused(
        &lan,
        "\"eth0\"",
        "\"spare\"",
        &["s.toml:13: service[0].interface: spare is down; allowed: an interface that is up"],
    );
}

#[test]
fn the_peer_must_answer() {
    let Some(lan) = OperatorLan::new("the_peer_must_answer") else {
        return;
    };
    lan.peer.ip("link set eth0 down");
    let sentence = |address| {
        format!(
            "no answer from {address} on eth0 within 1s; allowed: the address of a peer that is switched on; or start \
             with --without-peer: this node then serves alone the services of which it is the primary"
        )
    };
    let lines = [
        format!("s.toml:7: peer.address: {}", sentence("10.0.0.3")),
        format!("s.toml:24: service[1].peer_address: {}", sentence("2001:db8::3")),
    ];
    assert_refused(&lan, "", "", &lines.each_ref().map(String::as_str));
    let file = lan.config("", "");
    let outcome = lan.steadfast(&[
        "check-config",
        "--without-peer",
        "--config",
        file.to_str().unwrap(),
    ]);
    assert_eq!(outcome.code, 0, "{}", outcome.errors);
}

/// Linux would answer ARP requests for the peer's address on `eth0` even if another interface has the address.
#[test]
fn a_peer_that_is_not_on_the_services_interface_is_warned_of() {
    let Some(lan) = OperatorLan::new("a_peer_that_is_not_on_the_services_interface_is_warned_of") else {
        return;
    };
    lan.add_second();
    let file = lan.config("10.0.0.3", "10.1.0.3");
    let outcome = lan.steadfast(&["check-config", "--config", file.to_str().unwrap()]);
    let warning = "peer_address: warning: no route leads to 10.1.0.3 on eth0 without a gateway";
    assert_eq!(
        (outcome.code, outcome.errors.contains(warning)),
        (0, true),
        "{}",
        outcome.errors
    );
    let right = lan.config("", "");
    let outcome = lan.steadfast(&["check-config", "--config", right.to_str().unwrap()]);
    assert!(!outcome.errors.contains("no route leads"), "{}", outcome.errors);
}

#[test]
fn a_vip_that_another_machine_has_is_refused() {
    let Some(lan) = OperatorLan::new("a_vip_that_another_machine_has_is_refused") else {
        return;
    };
    lan.stranger.ip("link set eth0 address 02:00:00:00:00:99");
    lan.stranger.ip("addr add 10.0.0.100/32 dev eth0");
    lan.stranger.ip("addr add 2001:db8::100/128 dev eth0 nodad");
    let used = |address| {
        format!(
            "{address} is in use by another machine, 02:00:00:00:00:99 on eth0; allowed: an address that only the two \
             nodes have"
        )
    };
    let lines = [
        format!("s.toml:11: service[0].address: {}", used("10.0.0.100")),
        format!("s.toml:19: service[1].address: {}", used("2001:db8::100")),
    ];
    assert_refused(&lan, "", "", &lines.each_ref().map(String::as_str));
}

/// Linux answers a neighbour solicitation (IPv6) only on the interface that has the address, unlike an ARP request (IPv4). So the node must
/// ask on the interface that leads to the link's address.
#[test]
fn a_link_may_lie_beside_the_services_and_one_may_be_cut() {
    let Some(lan) = OperatorLan::new("a_link_may_lie_beside_the_services_and_one_may_be_cut") else {
        return;
    };
    lan.add_second();
    for (last, namespace) in [(2, &lan.node), (3, &lan.peer)] {
        namespace.ip(&format!("addr add fd01::{last}/64 dev eth1 nodad"));
    }
    let config = |links: &str| {
        let file = lan.config(
            "policy = \"http\"",
            "policy = \"http\"\npeer_address = \"10.0.0.3\"",
        );
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replacen("address = \"10.0.0.3\"", links, 1)).unwrap();
        file
    };
    let check = |links: &str| lan.with_config("check-config", &config(links));
    let silent = "no answer from fd01::4 on eth1 within 1s";

    let whole = check("addresses = [\"fd01::3\", \"10.0.0.3\"]");
    assert_eq!(
        (whole.code, whole.errors.contains("no answer")),
        (0, false),
        "{}",
        whole.errors
    );
    let one_is_cut = check("addresses = [\"fd01::4\", \"10.0.0.3\"]");
    let warning = format!("s.toml:7: peer.addresses: warning: {silent}: no heartbeats over this link");
    assert_eq!(one_is_cut.code, 0, "{}", one_is_cut.errors);
    assert!(one_is_cut.errors.contains(&warning), "{}", one_is_cut.errors);
    let cut = check("address = \"fd01::4\"");
    assert_eq!(cut.code, 2, "{}", cut.errors);
    assert!(
        cut.errors
            .contains(&format!("s.toml:7: peer.address: {silent}; allowed:")),
        "{}",
        cut.errors
    );
    let own = check("address = \"fd01::2\"");
    assert_eq!(own.code, 2, "{}", own.errors);
    let refusal = "s.toml:7: peer.address: fd01::2 is this node's own, on eth1; allowed: the peer's address";
    assert!(own.errors.contains(refusal), "{}", own.errors);
}

#[test]
fn addresses_must_fit_this_node() {
    let Some(lan) = OperatorLan::new("addresses_must_fit_this_node") else {
        return;
    };
    lan.node.ip("addr add 10.0.0.100/24 dev eth0");
    assert_refused(
        &lan,
        "primary = \"sf-test-peer\"",
        "primary = \"sf-test-peer\"\napplication = \"10.0.0.4:80\"",
        &[
            "s.toml:11: service[0].address: 10.0.0.100 is configured on eth0 already; allowed: an address that only \
             steadfast puts up",
            "s.toml:16: service[0].application: 10.0.0.4 is not an address of this node; allowed: one that is, or \
             loopback",
        ],
    );
    lan.node.ip("addr del 10.0.0.100/24 dev eth0");
    assert_refused(
        &lan,
        "peer_address = \"2001:db8::3\"",
        "peer_address = \"2001:db8::2\"",
        &[
            "s.toml:24: service[1].peer_address: 2001:db8::2 is this node's own, on eth0; allowed: the peer's address",
            "s.toml:24: service[1].peer_address: no answer from 2001:db8::2 on eth0 within 1s; allowed: the address of a \
             peer that is switched on; or start with --without-peer: this node then serves alone the services of \
             which it is the primary",
        ],
    );
}

#[test]
fn secrets_that_everybody_may_read_are_refused() {
    let Some(lan) = OperatorLan::new("secrets_that_everybody_may_read_are_refused") else {
        return;
    };
    let open = lan.file("open", &"5".repeat(64), 0o644);
    let short = lan.file("short", "55", 0o600);
    let key = lan.state_dir().with_file_name("key");
    for (file, what) in [
        (
            &open,
            "is open to everybody (mode 644); allowed: a file that only its owner and group can read",
        ),
        (
            &short,
            "does not hold a key; allowed: 64 hexadecimal digits, as openssl rand -hex 32 makes them",
        ),
    ] {
        let line = format!("s.toml:8: peer.key_file: {} {what}", file.display());
        assert_refused(&lan, key.to_str().unwrap(), file.to_str().unwrap(), &[&line]);
    }
}

#[test]
fn a_network_without_a_key_is_warned_of() {
    let Some(lan) = OperatorLan::new("a_network_without_a_key_is_warned_of") else {
        return;
    };
    let _listener = lan.node.run(|| TcpListener::bind("[::]:80").unwrap());
    let key = format!("key_file = {:?}\n", lan.state_dir().with_file_name("key"));
    let outcome = lan.with_config("check-config", &lan.config(&key, "\n"));
    let warning = "s.toml:5: peer.key_file: warning: is missing: whoever can write to the network between the nodes can \
                   speak as the peer\n";
    assert!(outcome.errors.starts_with(warning), "{}", outcome.errors);
    assert_eq!(outcome.code, 0);
}

#[test]
fn a_fence_a_hook_and_a_witness_are_looked_for() {
    let Some(lan) = OperatorLan::new("a_fence_a_hook_and_a_witness_are_looked_for") else {
        return;
    };
    add_gateways(&lan);
    let _listener = lan.node.run(|| TcpListener::bind("[::]:80").unwrap());
    let with = |table: &str| lan.config("[node]", &format!("{table}[node]"));
    let outcome = lan.with_config(
        "check-config",
        &with("[fence]\ncommand = [\"no-such-fence\", \"off\"]\n"),
    );
    let problem = "s.toml:2: fence.command: there is no program no-such-fence\n";
    assert!(outcome.errors.ends_with(problem), "{}", outcome.errors);
    assert_eq!(outcome.code, 2);
    let hook = "policy = \"http\"\non_deposed = [\"no-such-hook\"]";
    let outcome = lan.with_config("check-config", &lan.config("policy = \"http\"", hook));
    let problem = "service[0].on_deposed: there is no program no-such-hook\n";
    assert!(outcome.errors.contains(problem), "{}", outcome.errors);
    assert_eq!(outcome.code, 2);

    let witness = |scheme: &str, more: &str| {
        with(&format!(
            "[witness]\nkind = \"etcd\"\nendpoints = [\"{scheme}://127.0.0.1:1\"]\ntimeout_ms = 50\n{more}"
        ))
    };
    let account = "user = \"steadfast\"\npassword = \"secret\"\n";
    let outcome = lan.with_config("check-config", &witness("http", account));
    let warning = "s.toml:6: witness.password: warning: is sent unencrypted to endpoints that are http://: ";
    assert!(outcome.errors.contains(warning), "{}", outcome.errors);
    let outcome = lan.with_config("check-config", &witness("http", ""));
    assert!(!outcome.errors.contains("witness.password"), "{}", outcome.errors);
    let warning = "s.toml:3: witness.endpoints: warning: http://127.0.0.1:1: ";
    assert!(outcome.errors.starts_with(warning), "{}", outcome.errors);
    assert_eq!(
        outcome.code, 0,
        "a node that already speaks does not need the witness: {}",
        outcome.errors
    );

    let key = lan.state_dir().with_file_name("key");
    let file = witness(
        "https",
        &format!("ca = {key:?}\ncert = \"/nowhere\"\nkey = {key:?}\n"),
    );
    let outcome = lan.with_config("check-config", &file);
    let lines: Vec<&str> = outcome.errors.lines().collect();
    for (line, begins) in [
        (
            0,
            format!(
                "s.toml:5: witness.ca: {} holds no certificate in PEM: ",
                key.display()
            ),
        ),
        (1, "s.toml:6: witness.cert: /nowhere cannot be read: ".to_owned()),
        (
            2,
            format!(
                "s.toml:7: witness.key: {} holds no private key in PEM: ",
                key.display()
            ),
        ),
    ] {
        assert!(lines[line].starts_with(&begins), "{begins}\n{}", outcome.errors);
    }
    assert_eq!((lines.len(), outcome.code), (3, 2));
}

#[test]
fn a_listener_on_the_vip_only_is_refused() {
    let Some(lan) = OperatorLan::new("a_listener_on_the_vip_only_is_refused") else {
        return;
    };
    lan.node
        .run(|| std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").unwrap());
    let listen = |address: &str| lan.node.run(|| TcpListener::bind(address).unwrap());
    let only = listen("10.0.0.100:80");
    assert_refused(
        &lan,
        "",
        "",
        &[
            "s.toml:9: service[0].application: the application listens on 10.0.0.100:80 only, but relayed connections \
           go to 127.0.0.1:80; allowed: a listener there too, or one on all addresses",
        ],
    );
    let file = lan.config("", "");
    for (beside, code) in [("127.0.0.1:80", 0), ("127.0.0.2:80", 2)] {
        let _beside = listen(beside);
        let outcome = lan.with_config("check-config", &file);
        assert_eq!(outcome.code, code, "{beside}: {}", outcome.errors);
    }
    drop(only);
    let outcome = lan.with_config("check-config", &file);
    assert_eq!(outcome.code, 0);
    assert!(
        outcome
            .errors
            .starts_with("s.toml:9: service[0].application: warning: nothing listens on 127.0.0.1:80 yet\n"),
        "{}",
        outcome.errors
    );
    let _loopback = listen("127.0.0.1:80");
    let outcome = lan.with_config("check-config", &file);
    assert!(
        outcome
            .errors
            .contains("warning: nothing listens on 10.0.0.100:80 yet; new connections")
    );
}

#[test]
fn without_an_outside_host_it_says_so() {
    let Some(lan) = OperatorLan::new("without_an_outside_host_it_says_so") else {
        return;
    };
    let warning =
        "s.toml:9: service[0].claim_ping: warning: is missing, and no route through eth0 has a gateway";
    let warns = || {
        let outcome = lan.with_config("check-config", &lan.config("", ""));
        assert_eq!(outcome.code, 0, "{}", outcome.errors);
        outcome.errors.contains(warning)
    };
    assert!(warns());
    add_gateways(&lan);
    assert!(!warns());
    lan.node.ip("route del default");
    assert!(warns(), "the remaining gateway is of the other address family");
}

#[test]
fn without_root_it_says_so() {
    let Some(lan) = OperatorLan::new("without_root_it_says_so") else {
        return;
    };
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let file = dir.path().join("s.toml");
    std::fs::copy(lan.config("", ""), &file).unwrap();
    Command::new("chmod")
        .args(["-R", "a+rX"])
        .arg(dir.path())
        .status()
        .unwrap();
    let program = dir.path().join("steadfast");
    copy_program(&program);
    let mut command = Command::new(&program);
    command
        .args(["check-config", "--config"])
        .arg(&file)
        .uid(65_534)
        .gid(65_534);
    let outcome = CommandOutput::of(&mut command);
    let missing =
        "steadfast: cannot run here; missing: root: eBPF, packet sockets and the network's set-up need it\n";
    assert_eq!(outcome.errors, missing);
    assert_eq!(outcome.code, 3);
}

#[test]
fn wrong_use_is_told() {
    for arguments in [
        &["run"][..],
        &["status", "--node", "a", "--config", "b"],
        &["fly"],
        &["cleanup", "--all", "--node", "a"],
    ] {
        assert_eq!(
            CommandOutput::of(&mut steadfast(arguments)).code,
            2,
            "{arguments:?}"
        );
    }
    let help = CommandOutput::of(&mut steadfast(&["--help"]));
    assert_eq!(help.code, 0);
    for shown in [
        "run",
        "check-config",
        "status",
        "connections",
        "cleanup",
        "Exit codes",
    ] {
        assert!(help.output.contains(shown), "{shown}");
    }
    assert!(!help.output.contains("man "), "hidden");
    let unknown = CommandOutput::of(&mut steadfast(&["status", "--node", "sf-test-nobody"]));
    assert_eq!(unknown.code, 3);
    assert!(
        unknown
            .errors
            .contains("cannot reach steadfast at /run/steadfast/sf-test-nobody/control.sock")
    );
}

#[test]
fn a_second_daemon_is_refused() {
    let Some(lan) = OperatorLan::new("a_second_daemon_is_refused") else {
        return;
    };
    let _first = Lock::take(&lan.state_dir(), lock::DAEMON).unwrap();
    let outcome = lan.with_config("run", &lan.config("", ""));
    let own = std::process::id();
    let sentence =
        format!("steadfast: node sf-test-node is run by process {own} already; a node has one daemon\n");
    assert_eq!(outcome.errors, sentence);
    assert_eq!(outcome.code, 2);
}

#[test]
fn a_running_node_is_shown() {
    let Some(lan) = OperatorLan::new("a_running_node_is_shown") else {
        return;
    };
    std::fs::create_dir(lan.state_dir()).unwrap();
    let (server, _, calls) = ControlServer::open(&lan.state_dir(), || ()).unwrap();
    let peer = PeerStatus {
        name: "sf-test-peer".to_owned(),
        address: "10.0.0.3".parse().unwrap(),
        alive: true,
        heartbeat_age_ns: None,
        authenticated: false,
        links: Vec::new(),
        refused: BTreeMap::new(),
        channel: None,
    };
    let node = std::thread::spawn(move || {
        for call in calls {
            match call {
                Call::Status(reply) => {
                    reply.send(NodeStatus {
                        node: "sf-test-node".to_owned(),
                        peer: peer.clone(),
                        services: Vec::new(),
                        rings: RingsStatus::default(),
                        arbiter: ArbiterKind::FailStop,
                        witness: None,
                    });
                }
                Call::Connections(reply) => reply.send(Connections {
                    connections: Vec::new(),
                }),
                Call::Restored(reply) => reply.send(RestoredConnections {
                    connections: Vec::new(),
                }),
                Call::Order(_, reply) => reply.send(Err("not now".to_owned())),
                Call::Edge(_)
                | Call::Annex(_)
                | Call::Tunnel(_)
                | Call::Connect(_)
                | Call::Accept(_)
                | Call::Export(..)
                | Call::HasMoved(..)
                | Call::Died(..) => {}
            }
        }
    });
    let file = lan.config("", "");
    let ask = |command, json: &[&str]| {
        let arguments = [&[command, "--config", file.to_str().unwrap()], json].concat();
        let outcome = lan.steadfast(&arguments);
        assert_eq!((outcome.code, outcome.errors.as_str()), (0, ""));
        outcome.output
    };
    assert!(ask("status", &[]).starts_with(
        "node sf-test-node, peer sf-test-peer at 10.0.0.3: alive, no heartbeat yet, not\n    authenticated\n"
    ));
    let json = "{\"node\":\"sf-test-node\",\"peer\":{\"name\":\"sf-test-peer\",\"address\":\"10.0.0.3\",\"alive\":true,\
                \"heartbeat_age_ns\":null,\"authenticated\":false,\"links\":[],\"refused\":{}},\"services\":[],\"rings\":{\"connections\":{\"fill_bytes\":0,\"size_bytes\":0},\
                \"opening\":{\"fill_bytes\":0,\"size_bytes\":0}},\"arbiter\":\"fail-stop\",\"witness\":null}\n";
    assert_eq!(ask("status", &["--json"]), json);
    assert!(ask("connections", &[]).ends_with("\n0 connections\n"));
    assert_eq!(ask("connections", &["--json"]), "{\"connections\":[]}\n");
    drop(server);
    node.join().unwrap();
    assert_eq!(
        lan.with_config("status", &file).code,
        3,
        "the daemon is not running"
    );
}

/// Leaves the network as a killed daemon leaves it.
fn killed(lan: &OperatorLan) {
    std::fs::create_dir(lan.state_dir()).unwrap();
    let service = network::NetworkService {
        address: "10.0.0.100:80".parse().unwrap(),
        interface: "eth0".to_owned(),
        peer: "10.0.0.3".parse().unwrap(),
        application: "127.0.0.1:80".parse().unwrap(),
        staged_application: None,
        sends_directly: false,
    };
    let plan = NetworkPlan {
        node: "sf-test-node".to_owned(),
        services: vec![service],
    };
    let journal = network::journal(&lan.state_dir());
    lan.node.run(|| {
        let mut network = Network::prepare(&plan, &journal).unwrap();
        network
            .assume(plan.services[0].address.ip(), NetworkPart::Wire)
            .unwrap();
    });
}

#[test]
fn a_dead_node_is_cleaned_up_after() {
    let Some(lan) = OperatorLan::new("a_dead_node_is_cleaned_up_after") else {
        return;
    };
    let before = lan.node.dump();
    killed(&lan);
    assert_ne!(lan.node.dump(), before);
    // `cleanup` also ends a keeper that is left. Here `sleep` stands in for the keeper: flock(1) takes the lock, then executes `sleep`.
    let lock = lan.state_dir().join(lock::KEEPER);
    let mut keeper = Command::new("flock")
        .arg("--no-fork")
        .arg(&lock)
        .args(["sleep", "1000"])
        .spawn()
        .unwrap();
    while Lock::holder(&lan.state_dir(), lock::KEEPER).unwrap().is_none() {
        std::thread::sleep(POLL);
    }
    std::fs::write(&lock, format!("{}\n", keeper.id())).unwrap();

    let file = lan.config("", "");
    for _ in 0..2 {
        let outcome = lan.with_config("cleanup", &file);
        assert!(
            outcome
                .errors
                .ends_with("node sf-test-node: nothing is left of it\n"),
            "{}",
            outcome.errors
        );
        assert_eq!(outcome.code, 0);
        assert_eq!(lan.node.dump(), before);
        assert!(!lan.state_dir().exists());
    }
    assert!(!keeper.wait().unwrap().success(), "the keeper was killed");
}

#[test]
fn a_node_without_its_journal_is_cleaned_up_after_as_far_as_can_be() {
    let test = "a_node_without_its_journal_is_cleaned_up_after_as_far_as_can_be";
    let Some(lan) = OperatorLan::new(test) else { return };
    killed(&lan);
    std::fs::remove_dir_all(lan.state_dir()).unwrap();
    // `--node` finds the guard by the node's name. Without the state directory, it is unknown whether the node's agent lives.
    let during = lan.node.dump();
    let outcome = lan.steadfast(&["cleanup", "--node", "sf-test-node"]);
    assert_eq!(outcome.code, 2);
    assert!(outcome.errors.contains("it may be alive"), "{}", outcome.errors);
    assert_eq!(lan.node.dump(), during);
    let outcome = lan.with_config("cleanup", &lan.config("", ""));
    assert_eq!(
        (outcome.code, outcome.errors.as_str()),
        (0, "node sf-test-node: nothing is left of it\n")
    );
    assert!(!lan.node.dump().contains("steadfast_"));
}

#[test]
fn a_live_node_is_not_cleaned_up() {
    let Some(lan) = OperatorLan::new("a_live_node_is_not_cleaned_up") else {
        return;
    };
    killed(&lan);
    let during = lan.node.dump();
    let _daemon = Lock::take(&lan.state_dir(), lock::DAEMON).unwrap();
    let outcome = lan.with_config("cleanup", &lan.config("", ""));
    let sentence = format!(
        "steadfast: node sf-test-node is alive, process {}: stop it first\n",
        std::process::id()
    );
    assert_eq!((outcome.code, outcome.errors), (2, sentence));
    assert_eq!(lan.node.dump(), during);
    // The VIP that the node itself has set up is no reason to refuse its configuration.
    let outcome = lan.with_config("check-config", &lan.config("", ""));
    assert_eq!(outcome.code, 0, "{}", outcome.errors);
}

#[test]
fn the_manual_has_a_page_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man8");
    assert_eq!(
        CommandOutput::of(&mut steadfast(&["man", "--out", out.to_str().unwrap()])).code,
        0
    );
    for page in [
        "steadfast",
        "steadfast-run",
        "steadfast-check-config",
        "steadfast-status",
        "steadfast-cleanup",
    ] {
        let text = std::fs::read_to_string(out.join(format!("{page}.8"))).unwrap();
        assert!(
            text.contains(&format!(".TH {page} 8")) && text.contains(".SH NAME"),
            "{text}"
        );
    }
}
