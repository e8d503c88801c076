use std::collections::BTreeSet;

use clap::CommandFactory;

use super::node::Node;
use super::*;
use crate::config::{Policy, Role};
use crate::control::{
    ConnectionCounts, ConnectionStatus, Connections, Mode, PeerStatus, Protection, ServiceStatus, Status,
    TakeoverReport,
};

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_status_can_be_read_at_a_glance() {
    let service = ServiceStatus {
        name: "web".to_owned(),
        address: "10.0.0.100".parse().unwrap(),
        port: 80,
        policy: Policy::Http,
        role: Role::Primary,
        mode: Mode::Simplex,
        epoch: 2,
        connections: ConnectionCounts {
            protected: 20,
            unprotected: 1,
            ambiguous: 0,
        },
        log_bytes: 5_452_595,
        ring_fill_bytes: 0,
        takeovers: vec![TakeoverReport {
            declared_ns: 60_000_000_000,
            gate_closed_ns: 60_000_010_000,
            first_live_ns: Some(60_001_250_000),
            last_live_ns: None,
            connections: 21,
            restored: 20,
            reset: 1,
            ended: 0,
        }],
        counters: [("logged".to_owned(), 12_345), ("never".to_owned(), 0)].into(),
    };
    let status = Status {
        node: "alpha".to_owned(),
        peer: PeerStatus {
            name: "beta".to_owned(),
            address: "10.0.0.3".parse().unwrap(),
            alive: false,
        },
        services: vec![service],
    };
    let expected = "\
node alpha, peer beta at 10.0.0.3: SILENT

SERVICE  ADDRESS        POLICY  ROLE     MODE     EPOCH  PROTECTED  UNPROTECTED  AMBIGUOUS      LOG  UNREAD
web      10.0.0.100:80  http    primary  SIMPLEX      2         20            1          0  5.1 MiB     0 B

takeovers of web
DECLARED  GATE CLOSED  FIRST LIVE  LAST LIVE  CONNECTIONS  RESTORED  RESET  ENDED
12 s ago     +0.01 ms    +1.25 ms          -           21        20      1      0

counters of web
COUNTER  COUNT
logged   12345
";
    assert_eq!(show::status_text(&status, 72_500_000_000), expected);
}

#[test]
fn connections_are_one_per_line() {
    let connection = |client: &str, protection, reason: &str| ConnectionStatus {
        service: "web".to_owned(),
        client: client.parse().unwrap(),
        protection,
        reason: reason.to_owned(),
        in_offset: 120,
        out_offset: 70_000,
        log_bytes: 2048,
        live_ns: (protection == Protection::Protected).then_some(1),
    };
    let connections = Connections {
        connections: vec![
            connection("198.51.100.7:40000", Protection::Protected, ""),
            connection("[2001:db8::9]:5", Protection::Unprotected, "older than this node"),
        ],
    };
    let expected = "\
SERVICE  CLIENT              PROTECTION    IN    OUT      LOG  RESTORED  REASON
web      198.51.100.7:40000  protected    120  70000  2.0 KiB  yes
web      [2001:db8::9]:5     UNPROTECTED  120  70000  2.0 KiB  -         older than this node

2 connections
";
    assert_eq!(show::connections_text(&connections), expected);
}

fn chosen(node: Option<&str>, there: &[&str]) -> Result<Node, Failure> {
    let option = NodeOption {
        config: None,
        node: node.map(str::to_owned),
    };
    option.choose(|| there.iter().map(ToString::to_string).collect::<BTreeSet<_>>())
}

#[test]
fn the_only_node_need_not_be_named() {
    assert_eq!(chosen(None, &["alpha"]).unwrap(), Node::usual("alpha".to_owned()));
    assert_eq!(
        chosen(Some("beta"), &["alpha"]).unwrap(),
        Node::usual("beta".to_owned())
    );
    let several = chosen(None, &["beta", "alpha"]).unwrap_err();
    assert_eq!(
        several.to_string(),
        "steadfast: say which node with --node NAME; there are alpha, beta"
    );
    assert_eq!(several.exit_code(), 2);
    assert_eq!(chosen(None, &[]).unwrap_err().exit_code(), 3);
    for odd in ["", "..", "a/b", "a b"] {
        assert_eq!(chosen(Some(odd), &[]).unwrap_err().exit_code(), 2, "{odd:?}");
    }
}
