//! Fuzz target for the peer's messages, in any order and with any numbers. A node must handle them without a panic.
//!
//! An input is a list of lines. A line is one message: the digit of its kind (docs/peer.md), then JSON. One heartbeat interval passes after
//! each line. A line that is not a message only lets this interval pass.

use std::time::Duration;

use steadfast_proto::Instant;
use steadfast_proto::action::{Action, Heartbeat, ServiceAction};
use steadfast_proto::census::CensusPage;
use steadfast_proto::census::ClientTerms;
use steadfast_proto::connection::AtLimit;
use steadfast_proto::detector::DetectorConfig;
use steadfast_proto::follower::RestartPolicy;
use steadfast_proto::node::{Node, NodeConfig};
use steadfast_proto::orphans::Orphans;
use steadfast_proto::restart::http::Rules;
use steadfast_proto::service::{ServiceConfig, ServiceInput};
use steadfast_proto::standing::{Arbiter, ArbiterVerdict};
use steadfast_proto::table::TableConfig;

/// Time between two heartbeats.
const BEAT: Duration = Duration::from_millis(20);
/// Maximum number of actions at one time: enough for a page of connections and all that depends on it.
const ACTIONS_MAX: usize = 10_000;

/// The configured backup of one service.
fn node(now: Instant) -> Node {
    let table = TableConfig {
        vip: ([10, 2, 0, 100], 80).into(),
        policy: RestartPolicy::Http,
        rules: Rules::default(),
        opaque: None,
        connection_bytes_max: 1000,
        bytes_max: 10_000,
        at_limit: AtLimit::Unprotect,
        sends_directly: false,
        is_immediate: false,
        keep_input: false,
        hash_seed: 1,
    };
    let config = NodeConfig {
        name: "a".to_owned(),
        incarnation: 9,
        without_peer: false,
        detector: DetectorConfig {
            interval: BEAT,
            missed: 4,
            agent_timeout: Duration::from_millis(500),
        },
        lease: Duration::from_millis(300),
        fence_delay: Duration::ZERO,
        arbiter: Arbiter::FailStop,
        services: vec![ServiceConfig {
            table,
            is_primary: false,
            mac: [0; 6],
            found: None,
            state_sync: None,
        }],
    };
    Node::new(config, now)
}

/// Carries out the node's actions immediately.
fn carry_out(node: &mut Node, now: Instant) {
    for _ in 0..ACTIONS_MAX {
        let Some(action) = node.poll_action() else {
            if node.handle_idle() {
                continue;
            }
            return;
        };
        let Some(Action::Service(service, action)) = node.admit(now, action) else {
            continue;
        };
        let input = match action {
            ServiceAction::Drain => ServiceInput::Drained,
            ServiceAction::Announce => ServiceInput::Reached,
            ServiceAction::Confirm { epoch } => ServiceInput::Verdict {
                epoch,
                verdict: ArbiterVerdict::Granted,
            },
            _ => continue,
        };
        node.handle(now, service, input);
    }
    panic!("the node's actions have no end");
}

fn hear(node: &mut Node, now: Instant, line: &[u8]) -> serde_json::Result<()> {
    let Some((kind, json)) = line.split_first() else {
        return Ok(());
    };
    match kind {
        b'1' => node.handle_heartbeat(now, serde_json::from_slice::<Heartbeat>(json)?),
        b'3' => node.handle(
            now,
            0,
            ServiceInput::Told(serde_json::from_slice::<Vec<ClientTerms>>(json)?),
        ),
        b'5' => node.handle(
            now,
            0,
            ServiceInput::Page(serde_json::from_slice::<CensusPage>(json)?),
        ),
        _ => {}
    }
    Ok(())
}

#[test]
fn a_node_survives_what_its_peer_says() {
    fuzz::target!("peer_words", |input| {
        let mut now = Instant::from_nanos(1_000_000_000);
        let mut node = node(now);
        for line in input.split(|byte| *byte == b'\n').take(100) {
            let _ = hear(&mut node, now, line);
            carry_out(&mut node, now);
            now += BEAT;
            node.handle_timeout(now);
            carry_out(&mut node, now);
        }
    });
}

#[test]
fn a_count_that_no_node_can_have_reached_is_not_read() {
    let read = |first: u64| {
        let json = format!(r#"{{"first":{first},"clients":[]}}"#);
        serde_json::from_str::<Orphans>(&json).is_ok()
    };
    assert!(read(u64::MAX / 2));
    assert!(!read(u64::MAX / 2 + 1));
}
