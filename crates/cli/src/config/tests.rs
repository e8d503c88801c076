mod annexes;
mod peers;
mod services;

use std::net::IpAddr;
use std::time::Duration;

use proto::follower::RestartPolicy;
use proto::order::OnDivergence;
use proto::restart::http::Reexecute;

use super::*;

const SMALLEST: &str = r#"[node]
name = "alpha"

[peer]
name = "beta"
address = "10.0.0.3"

[[service]]
name = "web"
address = "10.0.0.100"
port = 80
interface = "eth0"
policy = "http"
primary = "beta"
"#;

const FULLEST: &str = r#"
[node]
name = "alpha"
state_dir = "/var/lib/steadfast"
agent_timeout_ms = 2_000

[peer]
name = "beta"
address = "10.0.0.3"
port = 7401
key_file = "/etc/steadfast/key"

[witness]
kind = "etcd"
endpoints = ["https://10.0.0.7:2379", "https://[2001:db8::7]:2379"]
ca = "/etc/steadfast/ca.pem"
cert = "/etc/steadfast/cert.pem"
key = "/etc/steadfast/key.pem"
user = "steadfast"
password = "secret"
cluster = "rack-7"
timeout_ms = 500

[detector]
heartbeat_ms = 10
missed = 3
lease_ms = 500

[log]
ring_mb = 128
syn_ring_kb = 2048
per_connection_mb = 16
total_mb = 512
at_limit = "spill"
spill_dir = "/var/spool/steadfast"
spill_mb = 4096

[metrics]
listen = "[::1]:9464"

[[service]]
name = "web"
address = "10.0.0.100"
port = 80
interface = "eth0"
policy = "http"
primary = "alpha"
application = "127.0.0.2:8080"
volatile_headers = ["Date", "X-Request-Id"]
reexecute = ["GET", "POST", "Idempotency-Key"]
cut_replies = "whole"
after_takeover = "close"
opaque = "replica"
crash_exit_codes = [3, 139]
commit = "prs"
claim_ping = ["10.0.0.1", "10.0.0.2"]
on_deposed = ["systemctl", "stop", "nginx"]

[service.health]
interval_ms = 200
timeout_ms = 100
failures = 2
send = "GET / HTTP/1.0\r\n\r\n"
expect = "HTTP/1."

[[service]]
name = "echo"
address = "2001:db8::100"
port = 7
interface = "eth0"
policy = "replica"
primary = "beta"
peer_address = "2001:db8::3"
state_sync = ["/usr/local/sbin/copy", "--all"]
state_sync_timeout_ms = 60_000
state_sync_hold_ms = 100
recorded_order = "/run/steadfast/order-echo.sock"
recorded_order_user = "daemon"
recorded_order_program = "/usr/bin/redis-server"
on_divergence = "trust-log"
"#;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("steadfast.toml"), text)
}

/// The problems in `text`, one per line.
fn wrong(text: &str) -> Vec<String> {
    let error = parse(text).expect_err("the text is wrong");
    error.to_string().lines().map(str::to_owned).collect()
}

/// The problems in [`SMALLEST`] when `new` replaces the line that begins with `old`.
fn with(old: &str, new: &str) -> Vec<String> {
    let changed: Vec<&str> = SMALLEST
        .lines()
        .map(|line| if line.starts_with(old) { new } else { line })
        .collect();
    assert_ne!(changed.join("\n"), SMALLEST.trim_end(), "{old:?} is there");
    wrong(&changed.join("\n"))
}

/// The problems in [`SMALLEST`] with `extra` at its end.
fn and(extra: &str) -> Vec<String> {
    wrong(&format!("{SMALLEST}{extra}"))
}

#[track_caller]
fn assert_one(problems: &[String], expected: &str) {
    assert_eq!(problems, [format!("steadfast.toml:{expected}")]);
}

#[test]
fn the_smallest_file_has_the_documented_defaults() {
    let config = parse(SMALLEST).unwrap();
    assert_eq!(config.node.state_dir, Path::new("/run/steadfast/alpha"));
    assert_eq!(config.node.agent_timeout, Duration::from_secs(1));
    assert_eq!(config.peer.port, 7400);
    assert_eq!(config.detector.detection(), Duration::from_millis(80));
    let log = LogSettings {
        ring_bytes: 64 << 20,
        syn_ring_bytes: 1 << 20,
        per_connection_bytes: 64 << 20,
        total_bytes: 2 << 30,
        at_limit: AtLimitSetting::Unprotect,
        spill_dir: "/var/tmp".into(),
        spill_bytes: 8 << 30,
    };
    assert_eq!(config.log, log);
    assert_eq!(config.metrics, None);
    let web = ServiceSettings {
        name: "web".to_owned(),
        address: "10.0.0.100".parse().unwrap(),
        port: 80,
        interface: "eth0".to_owned(),
        policy: RestartPolicy::Http,
        role: NodeRole::Backup,
        peer_address: "10.0.0.3".parse().unwrap(),
        application: "127.0.0.1:80".parse().unwrap(),
        staged_application: None,
        volatile_headers: vec!["date".to_owned()],
        reexecute: Reexecute::IDEMPOTENT,
        cut_replies: CutReplies::Rest,
        after_takeover: AfterTakeover::Keep,
        opaque: OpaqueSetting::Unprotected,
        crash_exit_codes: Vec::new(),
        commit: Commit::Prs,
        at_limit: AtLimitSetting::Unprotect,
        keep_input: false,
        claim_ping: Vec::new(),
        on_deposed: Vec::new(),
        state_sync: None,
        recorded_order: None,
        health: None,
        annexes: Vec::new(),
        registered_annexes: false,
    };
    assert_eq!(config.services, [web]);
}

fn recorded_order() -> RecordedOrderSettings {
    RecordedOrderSettings {
        socket: "/run/steadfast/order-echo.sock".into(),
        user: Some("daemon".to_owned()),
        program: Some("/usr/bin/redis-server".into()),
        on_divergence: OnDivergence::TrustLog,
    }
}

#[test]
fn every_field_is_read() {
    let config = parse(FULLEST).unwrap();
    assert_eq!(config.node.state_dir, Path::new("/var/lib/steadfast"));
    assert_eq!(config.node.agent_timeout, Duration::from_secs(2));
    let listen = "[::1]:9464".parse().unwrap();
    assert_eq!(config.metrics, Some(MetricsSettings { listen }));
    assert_eq!(config.peer.port, 7401);
    assert_eq!(config.peer.key_file, Some("/etc/steadfast/key".into()));
    let witness = EtcdSettings {
        endpoints: vec![
            "https://10.0.0.7:2379".to_owned(),
            "https://[2001:db8::7]:2379".to_owned(),
        ],
        ca: Some("/etc/steadfast/ca.pem".into()),
        identity: Some(("/etc/steadfast/cert.pem".into(), "/etc/steadfast/key.pem".into())),
        user: Some(("steadfast".to_owned(), "secret".to_owned())),
        cluster: "rack-7".to_owned(),
        timeout: Duration::from_millis(500),
    };
    let shown = format!("{witness:?}");
    assert!(!shown.contains("secret"), "{shown}");
    assert_eq!(config.arbiter, ArbiterSettings::Witness(witness));
    assert_eq!(
        config.detector,
        DetectorSettings {
            heartbeat: Duration::from_millis(10),
            missed: 3,
            lease: Duration::from_millis(500),
        }
    );
    let log = LogSettings {
        ring_bytes: 128 << 20,
        syn_ring_bytes: 2 << 20,
        per_connection_bytes: 16 << 20,
        total_bytes: 512 << 20,
        at_limit: AtLimitSetting::Spill,
        spill_dir: "/var/spool/steadfast".into(),
        spill_bytes: 4 << 30,
    };
    assert_eq!(config.log, log);
    let [web, echo] = config.services.as_slice() else {
        panic!("{:?}", config.services)
    };
    assert_eq!(web.role, NodeRole::Primary);
    assert_eq!(web.application, "127.0.0.2:8080".parse().unwrap());
    assert_eq!(web.volatile_headers, ["date", "x-request-id"]);
    assert_eq!(
        Ok(web.reexecute),
        Reexecute::of(["POST", "GET", "Idempotency-Key"])
    );
    assert_eq!(web.cut_replies, CutReplies::Whole);
    assert_eq!(web.after_takeover, AfterTakeover::Close);
    assert_eq!(web.opaque, OpaqueSetting::Replica);
    assert_eq!(web.crash_exit_codes, [3, 139]);
    assert_eq!(
        (echo.policy, echo.role),
        (RestartPolicy::Replica, NodeRole::Backup)
    );
    assert_eq!(echo.peer_address, "2001:db8::3".parse::<IpAddr>().unwrap());
    assert_eq!(echo.application, "[::1]:7".parse().unwrap());
    assert_eq!(echo.volatile_headers, [""; 0]);
    let state_sync = StateSyncSettings {
        command: ["/usr/local/sbin/copy", "--all"].map(str::to_owned).into(),
        timeout: Duration::from_secs(60),
        hold: Duration::from_millis(100),
    };
    assert_eq!(echo.state_sync, Some(state_sync));
    assert_eq!(echo.recorded_order, Some(recorded_order()));
}

#[test]
fn places_are_lines_of_the_file() {
    let config = parse(SMALLEST).unwrap();
    assert_eq!(config.places.line("peer.address"), 6);
    assert_eq!(config.places.line("service[0].interface"), 12);
    assert_eq!(
        config.places.line("service[0].application"),
        8,
        "a default has the line of its table"
    );
    assert_eq!(config.places.line("log.ring_mb"), 1);
    let problem = config.problem("service[0].interface", "is down");
    let error = ConfigError::new(Path::new("f"), vec![problem]);
    assert_eq!(error.to_string(), "f:12: service[0].interface: is down");
}

#[test]
fn questions_may_travel_in_an_association() {
    let chosen = |name: &str| format!("address = \"10.0.0.3\"\ntransport = {name:?}");
    let transport = |text: &str| parse(text).unwrap().peer.transport;
    assert_eq!(transport(SMALLEST), PeerTransport::Datagrams);
    for (name, expected) in [
        ("sctp", PeerTransport::Sctp),
        ("datagrams", PeerTransport::Datagrams),
    ] {
        let text = SMALLEST.replace("address = \"10.0.0.3\"", &chosen(name));
        assert_eq!(transport(&text), expected);
    }
    assert_one(
        &with("address = \"10.0.0.3", &chosen("tcp")),
        "7: peer.transport: is \"tcp\"; allowed: \"datagrams\" or \"sctp\"",
    );
}

#[test]
fn a_peer_may_have_several_addresses() {
    let links = SMALLEST.replace(
        "address = \"10.0.0.3\"",
        "addresses = [\"10.0.0.3\", \"10.1.0.3\"]",
    );
    let config = parse(&links).unwrap();
    let expected: [IpAddr; 2] = ["10.0.0.3", "10.1.0.3"].map(|address| address.parse().unwrap());
    assert_eq!(config.peer.addresses, expected);
    assert_eq!(config.peer.address, expected[0]);
    assert_eq!(config.services[0].peer_address, expected[0]);
    assert_eq!(parse(SMALLEST).unwrap().peer.addresses, expected[..1]);
    let both = "address = \"10.0.0.3\"\naddresses = [\"10.1.0.3\"]";
    assert_one(
        &with("address = \"10.0.0.3", both),
        "7: peer.addresses: cannot be together with address; allowed: one of the two",
    );
    for links in ["[]", "[\"10.0.0.3\", \"10.0.0.3\"]"] {
        assert_one(
            &with("address = \"10.0.0.3", &format!("addresses = {links}")),
            "6: peer.addresses: allowed: 1 to 8 addresses, each once",
        );
    }
    assert_one(
        &with(
            "address = \"10.0.0.3",
            "addresses = [\"10.0.0.3\", \"10.0.0.100\"]",
        ),
        "10: service[0].address: 10.0.0.100 is the peer's own address; allowed: a free address",
    );
}

#[test]
fn one_arbiter_at_most() {
    let before = |text: &str| parse(&format!("{text}{SMALLEST}"));
    for text in ["", "assume = \"fail-stop\"\n"] {
        assert_eq!(before(text).unwrap().arbiter, ArbiterSettings::FailStop);
    }
    let fence = "[fence]\ncommand = [\"ipmi-off\", \"beta\"]\n";
    let expected = FenceSettings {
        command: vec!["ipmi-off".to_owned(), "beta".to_owned()],
        timeout: Duration::from_secs(10),
        delay: Duration::ZERO,
    };
    assert_eq!(before(fence).unwrap().arbiter, ArbiterSettings::Fence(expected));
    let witness = "[witness]\nkind = \"etcd\"\nendpoints = [\"http://127.0.0.1:2379\"]\n";
    match before(witness).unwrap().arbiter {
        ArbiterSettings::Witness(EtcdSettings { cluster, timeout, .. }) => {
            assert_eq!((cluster.as_str(), timeout), ("steadfast", Duration::from_secs(1)));
        }
        other => panic!("{other:?}"),
    }
    let wrong = |text: &str| wrong(&format!("{text}{SMALLEST}"));
    let alone = "allowed: one of assume, [witness] and [fence]";
    assert_one(
        &wrong(&format!("assume = \"fail-stop\"\n{fence}")),
        &format!("2: fence: cannot be together with assume; {alone}"),
    );
    assert_one(
        &wrong(&format!("{witness}{fence}")),
        &format!("4: fence: cannot be together with witness; {alone}"),
    );
    assert_one(&wrong("assume = \"best\"\n"), "1: assume: allowed: \"fail-stop\"");
    assert_one(
        &wrong("[fence]\ncommand = []\n"),
        "2: fence.command: names no program; allowed: an array of a program and its arguments",
    );
}

#[test]
fn a_witness_is_whole() {
    let wrong = |keys: &str| wrong(&format!("[witness]\nkind = \"etcd\"\n{keys}{SMALLEST}"));
    let urls = "an array of 1 to 9 URLs, all \"https://HOST:PORT\" or all \"http://HOST:PORT\"";
    let one = "\"https://HOST:PORT\" or \"http://HOST:PORT\"";
    let cases = [
        ("", format!("1: witness.endpoints: is missing; allowed: {urls}")),
        (
            "endpoints = []\n",
            format!("3: witness.endpoints: has 0 URLs; allowed: {urls}"),
        ),
        (
            "endpoints = [\"http://a:1\", \"https://b:1\"]\n",
            format!("3: witness.endpoints: has 2 URLs; allowed: {urls}"),
        ),
        (
            "endpoints = [\"a:1\"]\n",
            format!("3: witness.endpoints: element 0 is \"a:1\"; allowed: {one}"),
        ),
        (
            "endpoints = [\"http://a\"]\n",
            format!("3: witness.endpoints: element 0 is \"http://a\"; allowed: {one}"),
        ),
        (
            "endpoints = [\"https://a:1\"]\n",
            "1: witness.ca: is missing; allowed: a PEM file, with https:// endpoints".to_owned(),
        ),
        (
            "endpoints = [\"http://a:1\"]\nca = \"/ca\"\n",
            "3: witness.endpoints: are http://, where ca and cert have no use; allowed: https:// endpoints with ca, or http:// without ca and cert".to_owned(),
        ),
        (
            "endpoints = [\"https://a:1\"]\nca = \"/ca\"\ncert = \"/cert\"\n",
            "1: witness.key: is missing; cert is of no use without it".to_owned(),
        ),
        (
            "endpoints = [\"http://a:1\"]\npassword = \"x\"\n",
            "1: witness.user: is missing; password is of no use without it".to_owned(),
        ),
        (
            "endpoints = [\"https://a:1\"]\nca = \"ca\"\n",
            "4: witness.ca: is \"ca\"; allowed: an absolute path".to_owned(),
        ),
    ];
    for (keys, expected) in cases {
        assert!(
            wrong(keys).contains(&format!("steadfast.toml:{expected}")),
            "{keys}\n{:?}",
            wrong(keys)
        );
    }
    assert_one(
        &super::tests::wrong(&format!(
            "[witness]\nkind = \"raft\"\nendpoints = [\"http://a:1\"]\n{SMALLEST}"
        )),
        "2: witness.kind: is \"raft\"; allowed: \"etcd\"",
    );
}

#[test]
fn all_problems_are_listed_at_once_by_line() {
    let text = r#"[node]
name = "9lives"
colour = "red"

[peer]
name = "beta"
address = "nowhere"
port = 0

[detector]
missed = "often"

[log]
ring_mb = 100

[[service]]
name = "web"
policy = "best"

[statistics]
port = 1
"#;

    let expected = [
        r#"2: node.name: is "9lives"; allowed: 1 to 32 letters, digits, - and _, beginning with a letter"#,
        "3: node.colour: unknown key; allowed here: name, agent_timeout_ms, state_dir, snapshot_socket",
        r#"7: peer.address: is "nowhere"; allowed: an IPv4 or IPv6 unicast address, neither loopback nor link-local"#,
        "8: peer.port: is 0; allowed: an integer from 1 to 65535",
        "11: detector.missed: is of type string; allowed: an integer from 2 to 100",
        "14: log.ring_mb: is 100; allowed: a power of two from 1 to 1024",
        "16: service[0].address: is missing; allowed: an IPv4 or IPv6 unicast address, neither loopback nor link-local",
        "16: service[0].interface: is missing; allowed: the name of a network interface, 1 to 15 characters, not lo",
        "16: service[0].port: is missing; allowed: an integer from 1 to 65535",
        "16: service[0].primary: is missing; allowed: the name of this node or of its peer",
        r#"18: service[0].policy: is "best"; allowed: "http", "replica", "replay" or "snapshot""#,
        "20: statistics: unknown key; allowed here: assume, node, peer, witness, fence, detector, log, metrics, service",
    ];
    assert_eq!(wrong(text), expected.map(|line| format!("steadfast.toml:{line}")));
}

#[test]
fn metrics_are_for_this_host_unless_the_file_says_otherwise() {
    let text = |metrics: &str| format!("{SMALLEST}[metrics]\n{metrics}\n");
    for (metrics, listen) in [
        ("listen = \"127.0.0.1:9464\"", "127.0.0.1:9464"),
        ("listen = \"127.8.0.1:1\"\nremote = false", "127.8.0.1:1"),
        ("listen = \"0.0.0.0:9464\"\nremote = true", "0.0.0.0:9464"),
    ] {
        let listen = listen.parse().unwrap();
        assert_eq!(
            parse(&text(metrics)).unwrap().metrics,
            Some(MetricsSettings { listen })
        );
    }
    let allowed = "allowed: \"ADDRESS:PORT\" or \"[ADDRESS]:PORT\"";
    for (metrics, problem) in [
        ("", format!("15: metrics.listen: is missing; {allowed}")),
        ("listen = \"9464\"", format!("16: metrics.listen: is \"9464\"; {allowed}")),
        (
            "listen = \"[::1]:0\"",
            format!("16: metrics.listen: is \"[::1]:0\"; {allowed}"),
        ),
        (
            "listen = \"10.0.0.2:9464\"",
            "16: metrics.listen: 10.0.0.2:9464 can be reached from other hosts, and metrics are given to whoever asks; \
             allowed: a loopback address, such as 127.0.0.1:9464, or remote = true in the same table"
                .to_owned(),
        ),
        (
            "listen = \"[::1]:1\"\nremote = \"yes\"",
            "17: metrics.remote: is of type string; allowed: true or false".to_owned(),
        ),
        (
            "listen = \"[::1]:1\"\npath = \"/\"",
            "17: metrics.path: unknown key; allowed here: listen, remote".to_owned(),
        ),
    ] {
        assert_one(&wrong(&text(metrics)), &problem);
    }
}

#[test]
fn an_empty_file_lacks_its_tables() {
    let expected = [
        "node.name: is missing; allowed: 1 to 32 letters, digits, - and _, beginning with a letter",
        "peer.address: is missing; allowed: an IPv4 or IPv6 unicast address, neither loopback nor link-local",
        "peer.name: is missing; allowed: 1 to 32 letters, digits, - and _, beginning with a letter",
        "service: is missing; allowed: one table [[service]] or more",
    ];
    assert_eq!(
        wrong(""),
        expected.map(|line| format!("steadfast.toml:1: {line}"))
    );
}

#[test]
fn text_that_is_not_toml_is_placed() {
    let problems = wrong("[node]\nname = alpha\n\n[peer\n");
    assert!(
        problems[0].starts_with("steadfast.toml:2: not TOML: "),
        "{problems:?}"
    );
    assert!(
        problems
            .last()
            .unwrap()
            .starts_with("steadfast.toml:4: not TOML: "),
        "{problems:?}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Config::load(Path::new("/nonexistent/s.toml"), None)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("/nonexistent/s.toml:1: the file cannot be read: No such file"),
        "{error}"
    );
}

#[test]
fn a_table_of_the_wrong_type_is_named() {
    let problems = wrong("node = 3\npeer = []\nservice = {}\n");
    assert_eq!(
        problems[0],
        "steadfast.toml:1: node: is of type integer; allowed: a table"
    );
    let peers = "steadfast.toml:2: peer: is empty; allowed: 1 to 16 tables [[peer]]";
    assert!(problems.contains(&peers.to_owned()), "{problems:?}");
    let peer = wrong("peer = 3\n");
    assert!(peer.contains(&"steadfast.toml:1: peer: is of type integer; allowed: a table".to_owned()));
    let service = "steadfast.toml:3: service: is of type table; allowed: one table [[service]] or more";
    assert!(problems.contains(&service.to_owned()), "{problems:?}");
    assert_one(
        &and("[log]\nring_mb = 6.4e1\n"),
        "16: log.ring_mb: is of type float; allowed: a power of two from 1 to 1024",
    );
}

#[test]
fn a_commit_mode_that_is_not_there_is_refused() {
    assert_one(
        &and("commit = \"immediately\"\n"),
        "15: service[0].commit: is \"immediately\"; allowed: \"prs\", \"pr\", \"immediate\"",
    );
}

#[test]
fn output_past_the_wire_needs_a_policy_a_lease_and_a_limit_that_allow_it() {
    for mode in [Commit::Pr, Commit::Immediate] {
        let name = mode.name();
        let with_policy = |policy: &str, extra: &str| {
            let text = SMALLEST.replace("policy = \"http\"", &format!("policy = {policy:?}"));
            assert!(text.contains(policy), "the policy was replaced");
            format!("{text}commit = {name:?}\n{extra}")
        };
        for policy in ["replica", "replay"] {
            let config = parse(&with_policy(policy, "")).expect("it is allowed");
            assert_eq!(config.services[0].commit, mode);
        }
        let refused = |text: &str, what: &str| {
            let problems = wrong(text);
            let what = format!("service[0].commit: {name:?} {what}");
            assert!(
                problems.iter().any(|problem| problem.contains(&what)),
                "{problems:?}"
            );
        };
        for policy in ["http", "snapshot"] {
            let what =
                format!("needs an application that generates the output again, but the policy is {policy}");
            refused(&with_policy(policy, ""), &what);
        }
        refused(
            &with_policy("replica", "[detector]\nlease_ms = 0\n"),
            "needs a lease",
        );
        refused(
            &with_policy("replay", "at_limit = \"slow\"\n"),
            "cannot slow clients",
        );
    }
}

fn second(fields: &str) -> Vec<String> {
    and(&format!(
        "\n[[service]]\ninterface = \"eth0\"\npolicy = \"http\"\nprimary = \"beta\"\n{fields}"
    ))
}

#[test]
fn a_state_directory_leaves_room_for_the_socket() {
    let long = format!("/{}", "x".repeat(100));
    let text = SMALLEST.replace("\"alpha\"", &format!("\"alpha\"\nstate_dir = {long:?}"));
    assert_one(
        &wrong(&text),
        &format!("3: node.state_dir: is {long:?}; allowed: an absolute path of at most 90 bytes"),
    );
    let relative = SMALLEST.replace("\"alpha\"", "\"alpha\"\nstate_dir = \"state\"");
    assert_one(
        &wrong(&relative),
        "3: node.state_dir: is \"state\"; allowed: an absolute path of at most 90 bytes",
    );
}

#[test]
fn the_examples_other_choices_are_right_too() {
    let example = include_str!("../../steadfast.toml");
    for table in ["[witness]", "[fence]"] {
        let begin = example.find(&format!("# {table}")).unwrap();
        let lines = example[begin..].lines();
        let chosen: Vec<&str> = lines.map_while(|line| line.strip_prefix("# ")).collect();
        let text = format!("{}\n{SMALLEST}", chosen.join("\n"));
        assert_ne!(
            parse(&text).unwrap().arbiter,
            ArbiterSettings::FailStop,
            "{table}"
        );
    }
}

#[test]
fn the_example_shows_every_field_with_its_default() {
    let example = include_str!("../../steadfast.toml");
    let config = parse(example).unwrap();
    // A `#` that is not followed by a blank comments out a field.
    let field = |line: &str| {
        line.strip_prefix('#')
            .filter(|rest| !rest.starts_with(' '))
            .unwrap_or(line)
            .to_owned()
    };
    let spelled_out: Vec<String> = example.lines().map(field).collect();
    let explicit = parse(&spelled_out.join("\n")).unwrap();
    assert!(explicit.places != config.places);
    assert_eq!(
        Config {
            places: config.places.clone(),
            ..explicit
        },
        config
    );
}

/// Each key must be in its own table. Commented-out keys count, too.
#[test]
fn the_example_shows_every_key_that_is_known() {
    let example: Vec<&str> = include_str!("../../steadfast.toml").lines().collect();
    let bare = |line: &'static str| line.trim_start_matches(['#', ' ']);
    let headers = (0..example.len()).filter(|&at| bare(example[at]).starts_with('['));
    let headers: Vec<usize> = headers.chain([example.len()]).collect();
    for bounds in headers.windows(2) {
        let (head, table) = (bare(example[bounds[0]]), &example[bounds[0] + 1..bounds[1]]);
        let with = [&example[..bounds[0]], &[head, "no_such_key = 1"], table].concat();
        let problems = wrong(&with.join("\n")).join("\n");
        let (_, allowed) = problems.split_once("allowed here: ").expect(head);
        let allowed = allowed.lines().next().expect("keys");
        for key in allowed.split(", ") {
            let is_table = |&at: &usize| {
                let line = bare(example[at]);
                [
                    format!("[service.{key}]"),
                    format!("[[service.{key}]]"),
                    format!("[{key}]"),
                ]
                .iter()
                .any(|head| line.starts_with(head.as_str()))
            };
            let is_shown = table
                .iter()
                .any(|line| bare(line).starts_with(&format!("{key} = ")));
            assert!(
                is_shown || headers[..headers.len() - 1].iter().any(is_table),
                "{head} has no {key}"
            );
        }
    }
}

#[test]
fn what_is_packaged_is_fit() {
    for text in [
        include_str!("../../../../packaging/pair.toml"),
        include_str!("../../../../packaging/redis.toml"),
    ] {
        let config = parse(text).unwrap();
        assert_eq!(config.services.len(), 1);
    }
    let peers = include_str!("../../../../packaging/peers.toml");
    let node = super::parse::config(Path::new("peers.toml"), peers).unwrap();
    assert_eq!(node.pairs.len(), 2);
}

#[test]
fn a_line_of_garbage_is_one_problem() {
    let problems = parse("# \u{1d}\u{1d}\u{1d}\u{1d}").unwrap_err().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
}

/// A fuzz target (docs/fuzzing.md).
#[test]
fn any_text_is_a_configuration_or_an_error_that_names_places() {
    fuzz::target!("configurations", |input| {
        let Ok(text) = str::from_utf8(input) else { return };
        match Config::parse(Path::new("pair.toml"), text) {
            Ok(config) => {
                assert!(!config.services.is_empty());
                let again = Config::parse(Path::new("pair.toml"), text).expect("as before");
                assert_eq!(format!("{config:?}"), format!("{again:?}"));
            }
            Err(error) => {
                let lines = 1 + text.lines().count();
                assert!(
                    error
                        .problems
                        .iter()
                        .all(|problem| (1..=lines).contains(&problem.line)),
                    "{error}"
                );
                let shown = error.to_string();
                assert!(shown.len() <= 4096 + 16 * text.len(), "{shown}");
            }
        }
    });
}
