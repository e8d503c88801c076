//! The fence runs the operator's command.

use std::fs;

use proto::standing::ArbiterVerdict::{Failed, Granted};

use crate::node::ArbiterNode;

fn fenced(script: &str, timeout_ms: u32) -> ArbiterNode {
    let table = format!("[fence]\ncommand = [\"sh\", \"-c\", {script:?}]\ntimeout_ms = {timeout_ms}\n");
    ArbiterNode::open("a", &table)
}

#[test]
fn the_command_is_told_whom_to_fence() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let names = "$STEADFAST_SERVICE $STEADFAST_PEER $STEADFAST_PEER_ADDRESS $STEADFAST_EPOCH";
    let mut node = fenced(&format!("echo {names} >{}", file.path().display()), 60_000);
    assert_eq!(node.take(7), Granted);
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "web b 192.0.2.3 7\n");
}

#[test]
fn a_command_that_fails_fences_nobody() {
    assert_eq!(fenced("echo no power switch >&2; exit 1", 60_000).take(7), Failed);
    assert_eq!(fenced("kill -9 $$", 60_000).take(7), Failed);
    assert_eq!(
        ArbiterNode::open("a", "[fence]\ncommand = [\"/nowhere\"]\n").take(7),
        Failed
    );
}

#[test]
fn a_command_that_hangs_is_killed_and_fences_nobody() {
    let mut node = fenced("sleep 1000 & sleep 1000; exit 0", 100);
    assert_eq!(node.take(7), Failed);
    assert_eq!(node.take(7), Failed, "the fence can be asked again");
}

#[test]
fn what_is_asked_already_is_not_asked_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut node = fenced(&format!("echo once >>{}; sleep 1", file.path().display()), 60_000);
    for _ in 0..3 {
        node.ask(7);
    }
    assert_eq!(node.answer(), (7, Granted));
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "once\n");
    assert!(node.arbiter.poll().is_none());
}

#[test]
fn without_either_who_is_silent_is_dead() {
    assert_eq!(ArbiterNode::open("a", "").take(7), Granted);
}
