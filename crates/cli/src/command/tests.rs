use std::collections::BTreeSet;

use clap::CommandFactory;
use proto::role::Role as State;

use super::cli::NodeOption;
use super::error::CommandError;
use super::node::LocalNode;
use super::show::lease_text;
use super::*;
use crate::config::{Commit, NodeRole};
use crate::control::{
    ChannelPathStatus, ChannelStatus, ConnectionStatus, Connections, Lag, LeaseStatus, LinkStatus,
    NodeStatus, OrderActivity, PeerStatus, ProtectionStatus, RecordedOrderStatus, RestoredConnections,
    RestoredStatus, RingStatus, RingsStatus, ServiceMode, ServiceStatus, StateSince, StateSyncStatus,
    TakeoverStatus, samples,
};

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

/// A survivor, 12 s after it has taken over.
fn survivor() -> ServiceStatus {
    let sample = samples::service();
    ServiceStatus {
        role: NodeRole::Primary,
        mode: ServiceMode::Simplex,
        epoch: 2,
        log_bytes: 5_452_595,
        takeovers: vec![TakeoverStatus {
            declared_ns: 60_000_000_000,
            gate_closed_ns: 60_000_010_000,
            first_live_ns: Some(60_001_250_000),
            last_live_ns: None,
            connections: 21,
            restored: 20,
            reset: 1,
        }],
        counters: [
            ("logged".to_owned(), 12_345),
            ("never".to_owned(), 0),
            ("relayed_input_kept".to_owned(), 1),
        ]
        .into(),
        state: proto::role::Role::Sole,
        history: [
            (10, proto::role::Role::Backup, 1),
            (60, proto::role::Role::TakingOver, 2),
            (61, proto::role::Role::Sole, 2),
        ]
        .map(|(at_s, state, epoch)| StateSince {
            at_ns: at_s * 1_000_000_000,
            state,
            epoch,
        })
        .into(),
        simplex_reason: Some("this node serves alone".to_owned()),
        failure: Some("putting up 10.0.0.100: interface eth1 is gone".to_owned()),
        application: proto::action::ApplicationState::Hung,
        peer_application: Some(proto::action::ApplicationState::Dead),
        reasons: [("relayed; no backup".to_owned(), 1)].into(),
        relayed: 1,
        connections_complete: false,
        lag: Lag {
            unfollowed_bytes: 0,
            unacknowledged_bytes: 1500,
        },
        log_limit_bytes: 2 << 30,
        connection_log_limit_bytes: 64 << 20,
        spilled_bytes: 300 << 20,
        spill_limit_bytes: 8 << 30,
        slowed: 3,
        lease: LeaseStatus {
            configured_ns: 300_000_000,
            left_ns: Some(380_000_000),
            may_speak_ns: None,
        },
        state_sync: Some(StateSyncStatus {
            synced: false,
            state: "resting".to_owned(),
            error: Some("finish failed: exit status: 3: no".to_owned()),
            missed_bytes: 0,
        }),
        recorded_order: Some(RecordedOrderStatus {
            activity: OrderActivity::Off,
            reason: "the record has ended with the takeover".to_owned(),
            age_ns: 12_000_000_000,
        }),
        ..sample
    }
}

#[test]
fn the_channel_and_its_broken_paths_are_shown() {
    let path = |address: &str, usable| ChannelPathStatus {
        address: address.parse().unwrap(),
        usable,
    };
    let channel = |established, paths| ChannelStatus {
        established,
        overdue: false,
        associations: 1,
        paths,
        retransmissions: 0,
    };
    let shown = |channel| {
        let peer = PeerStatus {
            channel: Some(channel),
            ..samples::peer()
        };
        let status = NodeStatus {
            peer,
            ..samples::status()
        };
        let text = show::status_text(&status, 0);
        text.lines()
            .find(|line| line.starts_with("channel"))
            .map(str::to_owned)
    };
    let both = vec![path("10.0.0.3", true), path("10.1.0.3", false)];
    assert_eq!(
        shown(channel(true, both)).as_deref(),
        Some("channel: established, 2 paths; no answer from 10.1.0.3")
    );
    assert_eq!(
        shown(channel(false, vec![])).as_deref(),
        Some("channel: NOT ESTABLISHED, messages are datagrams")
    );
    let overdue = ChannelStatus {
        overdue: true,
        ..channel(false, vec![])
    };
    assert_eq!(
        shown(overdue).as_deref(),
        Some("channel: OVERDUE: the peer is heard, but does not answer; messages are datagrams")
    );
}

fn link(address: &str, heard_age_ns: Option<u64>) -> LinkStatus {
    LinkStatus {
        address: address.parse().unwrap(),
        heard_age_ns,
    }
}

const EMPTY_RING: RingStatus = RingStatus {
    fill_bytes: 0,
    size_bytes: 1 << 20,
};

#[test]
fn a_status_can_be_read_at_a_glance() {
    let status = NodeStatus {
        node: "alpha".to_owned(),
        peer: PeerStatus {
            alive: false,
            heartbeat_age_ns: Some(12_500_000_000),
            links: vec![link("10.0.0.3", Some(12_500_000_000)), link("10.1.0.3", None)],
            ..samples::peer()
        },
        services: vec![survivor()],
        rings: RingsStatus {
            connections: RingStatus {
                fill_bytes: 20 << 20,
                size_bytes: 80 << 20,
            },
            opening: EMPTY_RING,
        },
        ..samples::status()
    };
    let expected = "\
node alpha, peer beta at 10.0.0.3: SILENT, last heartbeat 12500.00 ms ago
links: 10.0.0.3 heard 12500.00 ms ago; 10.1.0.3 never heard
refused datagrams: a copy 4
witness: reachable, last answer 1500.00 ms ago; nodes: alpha, beta
witness: web: epoch 7 is beta's
rings: connections 20.0 MiB of 80.0 MiB (25 %), SYNs 0 B of 1.0 MiB (0 %)

SERVICE  ADDRESS        POLICY  ROLE  MODE     EPOCH  APPLICATION
web      10.0.0.100:80  http    sole  SIMPLEX      2  HUNG

SERVICE  PROTECTED  UNPROTECTED  AMBIGUOUS      LOG  UNREAD
web             20            1          0  5.1 MiB     0 B

web in detail
simplex        this node serves alone
FAILED         putting up 10.0.0.100: interface eth1 is gone
history        sole 11 s ago, before that taking over 12 s ago, before that
               backup 62 s ago
peer           primary; its application: DEAD
path           works (outside hosts from here: reached, from the peer: unknown;
               no link to the peer here)
log            5.1 MiB of 2.0 GiB; the largest log of one connection: 2.0 KiB of
               64.0 MiB
in files       300.0 MiB of 8.0 GiB
slowed         3 clients, whose logs are nearly full
lag            0 B not followed, 1.4 KiB of input not acknowledged by the
               primary
lease          the VIP may be claimed in 380.00 ms if the wire is silent (lease
               300.00 ms)
replica        its state is NOT the primary's (resting); finish failed: exit
               status: 3: no
order          OFF for 12 s: the record has ended with the takeover; begins when
               this node's server is started again with the library
moved          4 connections to the backup; the primary logs them
annex          gamma is there, 7 connections; at 10.0.0.4:7402, registered
ANNEXES        the list of registered annexes is STALE: it was last read 35 s
               ago; known annexes stay
ANNEXES        /steadfast/annexes/delta: is malformed
relayed        1 connection; the input of 1 is kept for the other node
not protected  perhaps more than shown: the primary has not told this node yet
               which clients are connected
not protected  1: relayed; no backup

takeovers of web
DECLARED  GATE CLOSED  FIRST LIVE  LAST LIVE  CONNECTIONS  RESTORED  RESET
12 s ago     +0.01 ms    +1.25 ms          -           21        20      1

counters of web
COUNTER             COUNT
logged              12345
relayed_input_kept      1
";
    assert_eq!(show::status_text(&status, 72_500_000_000), expected);
    assert!(expected.lines().all(|line| line.len() <= 80));
}

#[test]
fn long_names_and_addresses_fit_a_usual_terminal() {
    let mut status = samples::status();
    status.services = vec![samples::service()];
    let name = "a-service-with-a-name-of-32-byte";
    status.node = name.to_owned();
    status.peer.name = name.to_owned();
    let service = &mut status.services[0];
    service.name = name.to_owned();
    service.address = "2001:db8:1234:5678:9abc:def0:1234:5678".parse().unwrap();
    service.port = 65535;
    let text = show::status_text(&status, 72_500_000_000);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for words in [
        "SERVICE      a-service-with-a-name-of-32-byte\n",
        "ADDRESS      [2001:db8:1234:5678:9abc:def0:1234:5678]:65535\n",
    ] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_commit_mode_that_is_not_the_default_is_named() {
    let mut status = samples::status();
    for (commit, words) in [
        (
            Commit::Pr,
            "commit mode    pr: output goes straight to the clients\n",
        ),
        (Commit::Immediate, "commit mode    IMMEDIATE, for measuring"),
    ] {
        let service = samples::service();
        status.services = vec![ServiceStatus { commit, ..service }];
        assert!(show::status_text(&status, 0).contains(words), "{words}");
    }
    status.services = vec![samples::service()];
    assert!(!show::status_text(&status, 0).contains("commit mode"));
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
        spilled_bytes: 0,
        lag: Lag {
            unfollowed_bytes: 7,
            unacknowledged_bytes: 1024,
        },
    };
    let connections = Connections {
        connections: vec![
            connection("198.51.100.7:40000", ProtectionStatus::Protected, ""),
            connection(
                "[2001:db8::9]:5",
                ProtectionStatus::Unprotected,
                "older than the wire",
            ),
        ],
    };
    let expected = "\
SERVICE  CLIENT              PROTECTION    IN    OUT      LOG  UNFOLLOWED  UNACKED  REASON
web      198.51.100.7:40000  protected    120  70000  2.0 KiB         7 B  1.0 KiB
web      [2001:db8::9]:5     UNPROTECTED  120  70000  2.0 KiB         7 B  1.0 KiB  older than the wire

2 connections
";
    assert_eq!(show::connections_text(&connections), expected);
}

#[test]
fn what_became_of_those_that_were_taken_over_reads_well() {
    let restored = |client: &str, lives, reason: &str| RestoredStatus {
        service: "web".to_owned(),
        client: client.parse().unwrap(),
        live_ns: 5_000_000_000,
        lives,
        reason: reason.to_owned(),
    };
    let restored = RestoredConnections {
        connections: vec![
            restored("198.51.100.7:40000", true, ""),
            restored("[2001:db8::9]:5", false, "the application closed"),
        ],
    };
    let expected = "\
SERVICE  CLIENT              RESTORED  NOW      REASON
web      198.51.100.7:40000   7 s ago  relayed
web      [2001:db8::9]:5      7 s ago  ended    the application closed

2 connections
";
    assert_eq!(show::restored_text(&restored, 12_500_000_000), expected);
}

fn chosen(node: Option<&str>, there: &[&str]) -> Result<LocalNode, CommandError> {
    let option = NodeOption {
        peer: None,
        config: None,
        node: node.map(str::to_owned),
    };
    option.choose(|| there.iter().map(ToString::to_string).collect::<BTreeSet<_>>())
}

#[test]
fn the_only_node_need_not_be_named() {
    assert_eq!(
        chosen(None, &["alpha"]).unwrap(),
        LocalNode::usual("alpha".to_owned())
    );
    assert_eq!(
        chosen(Some("beta"), &["alpha"]).unwrap(),
        LocalNode::usual("beta".to_owned())
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

#[test]
fn a_node_of_several_peers_has_an_agent_for_each() {
    let root = tempfile::tempdir().unwrap();
    let node = LocalNode {
        name: "alpha".to_owned(),
        state_dir: root.path().join("alpha"),
    };
    assert_eq!(node.agents(), std::slice::from_ref(&node));
    for peer in ["gamma", "beta"] {
        std::fs::create_dir_all(node.state_dir.join("peers").join(peer)).unwrap();
    }
    let agents = node.agents();
    let names: Vec<_> = agents.iter().map(|agent| agent.name.as_str()).collect();
    assert_eq!(names, ["alpha-beta", "alpha-gamma"]);
    assert_eq!(agents[1].state_dir, node.state_dir.join("peers/gamma"));
}

#[test]
fn the_lease_is_told_as_what_the_node_may_do() {
    let text = |state, left_ns, may_speak_ns| {
        let lease = LeaseStatus {
            configured_ns: 300_000_000,
            left_ns,
            may_speak_ns,
        };
        lease_text(&lease, state).unwrap_or_default()
    };
    let said = [
        text(State::Primary, None, None),
        text(State::Primary, Some(20_000_000), None),
        text(State::Backup, None, Some(250_000_000)),
        text(State::Backup, None, Some(0)),
        text(State::Sole, None, Some(10_000)),
        text(State::Sole, None, Some(0)),
    ];
    let expected = [
        "",
        "the VIP may be claimed in 20.00 ms if the wire is silent (lease 300.00 ms)",
        "for 250.00 ms, a takeover may begin without asking the arbiter if nothing more is heard (lease 300.00 ms)",
        "over: a takeover has to ask the arbiter first",
        "this node may speak for 0.01 ms more without the arbiter's answer (lease 300.00 ms)",
        "over: silent until the arbiter answers",
    ];
    assert_eq!(said, expected);
}
