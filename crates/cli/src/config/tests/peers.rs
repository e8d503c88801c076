//! Nodes with several peers.

use std::path::Path;

use super::super::{NodeFile, NodeRole};

const TWO_PEERS: &str = r#"[node]
name = "alpha"
state_dir = "/run/alpha"

[[peer]]
name = "beta"
address = "10.0.0.2"

[[peer]]
name = "gamma"
address = "10.0.1.2"
port = 7401

[metrics]
listen = "127.0.0.1:9464"

[[service]]
name = "web"
peer = "gamma"
address = "10.0.1.100"
port = 80
interface = "eth1"
policy = "http"
primary = "gamma"

[[service]]
name = "mail"
peer = "beta"
address = "10.0.0.100"
port = 25
interface = "eth0"
policy = "http"
primary = "alpha"

[[service]]
name = "news"
peer = "gamma"
address = "10.0.1.101"
port = 119
interface = "eth1"
policy = "replica"
primary = "alpha"
"#;

fn parsed(text: &str) -> NodeFile {
    super::super::parse::config(Path::new("node.toml"), text).expect("it is right")
}

/// The problems in [`TWO_PEERS`] with `new` in the place of `old`.
fn with(old: &str, new: &str) -> Vec<String> {
    let changed = TWO_PEERS.replacen(old, new, 1);
    assert_ne!(changed, TWO_PEERS, "{old:?} is there");
    let error = super::super::parse::config(Path::new("node.toml"), &changed).expect_err("it is wrong");
    error.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn each_peer_has_its_services() {
    let node = parsed(TWO_PEERS);
    assert_eq!(node.name, "alpha");
    assert!(node.metrics.is_some());
    let [beta, gamma] = node.pairs.as_slice() else {
        panic!("two peers")
    };
    let names = |pair: &super::super::Config| -> Vec<_> {
        pair.services.iter().map(|service| service.name.clone()).collect()
    };
    assert_eq!(
        (names(beta), names(gamma)),
        (vec!["mail".to_owned()], vec!["web".to_owned(), "news".to_owned()])
    );
    assert_eq!(
        (beta.node.name.as_str(), beta.node.instance.as_str()),
        ("alpha", "alpha-beta")
    );
    assert_eq!(gamma.node.state_dir, Path::new("/run/alpha/peers/gamma"));
    assert_eq!((beta.peer.port, gamma.peer.port), (7400, 7401));
    assert_eq!(gamma.services[0].role, NodeRole::Backup);
    assert_eq!(gamma.services[0].peer_address, gamma.peer.address);
    assert!(beta.metrics.is_none(), "the supervisor serves them");
    // A problem that is found later names the line in the file.
    assert_eq!(beta.problem("service[0].name", "").line, 27);
    assert_eq!(gamma.problem("service[1].policy", "").line, 41);
    assert_eq!(gamma.problem("peer.port", "").line, 12);
    let fields = ["service[1].policy", "service[0]", "peer.port", "log.ring_mb"];
    let there = fields.map(|field| gamma.problem(field, "").field);
    assert_eq!(
        there,
        ["service[2].policy", "service[0]", "peer[1].port", "log.ring_mb"]
    );
}

#[test]
fn one_peer_may_be_in_an_array_too() {
    let one = TWO_PEERS
        .split("[[peer]]\nname = \"gamma\"")
        .next()
        .unwrap()
        .to_owned()
        + TWO_PEERS
            .split("\n\n")
            .find(|table| table.contains("\"mail\""))
            .unwrap();
    let node = parsed(&one);
    let pair = node.pair(Path::new("node.toml"), None).expect("the only one");
    assert_eq!(pair.node.instance, "alpha");
    assert!(!pair.node.has_several_peers());
    assert_eq!(pair.node.state_dir, Path::new("/run/alpha"));
}

#[test]
fn a_pair_of_several_is_named() {
    let of = |peer: Option<&str>| parsed(TWO_PEERS).pair(Path::new("node.toml"), peer);
    assert_eq!(of(Some("gamma")).unwrap().peer.name, "gamma");
    for peer in [None, Some("delta")] {
        let error = of(peer).unwrap_err().to_string();
        assert!(
            error.starts_with("node.toml:5: peer: ") && error.ends_with("allowed: beta, gamma"),
            "{error}"
        );
    }
}

#[test]
fn peers_that_contradict_each_other_are_problems() {
    let cases = [
        (
            "name = \"gamma\"",
            "name = \"beta\"",
            "node.toml:10: peer[1].name: \"beta\" is the name of peer[0] too; names must be unique",
        ),
        (
            "name = \"gamma\"",
            "name = \"alpha\"",
            "node.toml:10: peer[1].name: is \"alpha\", as [node] name; the two must differ",
        ),
        (
            "peer = \"beta\"\n",
            "",
            "node.toml:26: service[1].peer: is missing; allowed: \"beta\", \"gamma\"",
        ),
        (
            "peer = \"beta\"",
            "peer = \"delta\"",
            "node.toml:28: service[1].peer: is \"delta\"; allowed: \"beta\", \"gamma\"",
        ),
        (
            "peer = \"beta\"",
            "peer = \"gamma\"",
            "node.toml:6: peer[0].name: no service has this peer; allowed: a peer of one service or more",
        ),
        (
            "primary = \"alpha\"",
            "primary = \"gamma\"",
            "node.toml:33: service[1].primary: is \"gamma\"; allowed: \"alpha\" (this node) or \"beta\" (its peer)",
        ),
        (
            "10.0.1.101",
            "10.0.0.100",
            "node.toml:37: service[2].peer: differs from service[1], which has the same address; the two must agree",
        ),
    ];
    for (old, new, problem) in cases {
        let problems = with(old, new);
        assert!(
            problems.iter().any(|one| one == problem),
            "{problem}:\n{}",
            problems.join("\n")
        );
    }
    let long = "a-name-of-twenty-eight-chars";
    let problems = with("name = \"alpha\"", &format!("name = \"{long}\"")).join("\n");
    assert!(problems.contains("peer[0].name: is too long"), "{problems}");
}

#[test]
fn exporting_services_have_one_peer() {
    let exporting = TWO_PEERS.replace("policy = \"http\"", "policy = \"snapshot\"");
    let error = super::super::parse::config(Path::new("node.toml"), &exporting)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("service[1].peer: differs from service[0]; services with policy \"snapshot\" share"),
        "{error}"
    );
}
