//! The witness gives each epoch to one node only, whatever fails.

use proto::standing::ArbiterVerdict::{self, Failed, Granted, Refused};

use crate::etcd::{Etcd, until};
use crate::node::ArbiterNode;
use crate::proxy::Proxy;

/// The verdict if the other node has this epoch.
const fn refused(epoch: u64) -> ArbiterVerdict {
    let is_own = false;
    Refused { epoch, is_own }
}

/// Repeats the question while the members elect a leader. The core (`proto`) repeats its questions in the same way.
fn patiently(node: &mut ArbiterNode, epoch: u64) -> ArbiterVerdict {
    let mut verdict = Failed;
    until("a verdict", || {
        verdict = node.take(epoch);
        verdict != Failed
    });
    verdict
}

#[test]
fn an_epoch_is_given_to_one_node() {
    let Some(etcd) = Etcd::start("an_epoch_is_given_to_one_node", 1, false) else {
        return;
    };
    let (mut a, mut b) = (
        ArbiterNode::open("a", &etcd.table()),
        ArbiterNode::open("b", &etcd.table()),
    );
    assert_eq!(a.take(5), Granted);
    assert_eq!(a.take(5), Granted, "the first answer may have been lost");
    assert_eq!(b.take(5), refused(5));
    assert_eq!(b.take(4), refused(5));
    assert_eq!(b.take(6), Granted);
    assert_eq!(a.take(5), refused(6), "epoch 5 is over; b has epoch 6");
    assert_eq!(
        b.take(0),
        Refused {
            epoch: 6,
            is_own: true
        },
        "the witness tells node b its epoch, which node b may have forgotten"
    );
    drop((a, b));
    let mut a = ArbiterNode::open("a", &etcd.table());
    assert_eq!(a.take(6), refused(6), "the witness remembers the owner");
}

#[test]
fn of_two_that_ask_at_the_same_time_one_wins() {
    let Some(etcd) = Etcd::start("of_two_that_ask_at_the_same_time_one_wins", 1, false) else {
        return;
    };
    let mut nodes = ["a", "b"].map(|name| ArbiterNode::open(name, &etcd.table()));
    let mut wins = [0; 2];
    for epoch in 1..=200 {
        for node in &mut nodes {
            node.ask(epoch);
        }
        let verdicts = nodes.each_mut().map(|node| node.answer());
        match verdicts {
            [(first, Granted), (second, Refused { epoch: last, .. })]
                if [first, second, last] == [epoch; 3] =>
            {
                wins[0] += 1;
            }
            [(first, Refused { epoch: last, .. }), (second, Granted)]
                if [first, second, last] == [epoch; 3] =>
            {
                wins[1] += 1;
            }
            other => panic!("epoch {epoch}: {other:?}"),
        }
    }
    eprintln!("a won {} times, b {} times", wins[0], wins[1]);
}

#[test]
fn a_lost_answer_is_read_back() {
    let Some(etcd) = Etcd::start("a_lost_answer_is_read_back", 1, false) else {
        return;
    };
    let mut b = ArbiterNode::open("b", &etcd.table());
    for epoch in 1..=20 {
        let proxy = Proxy::start(etcd.address(0), 1);
        let mut a = ArbiterNode::open("a", &etcd.table_at(&[proxy.address]));
        assert_eq!(a.take(epoch), Granted);
        assert_eq!(proxy.left(), 0, "the transaction was cut");
        assert_eq!(b.take(epoch), refused(epoch));
    }
}

#[test]
fn of_two_that_lose_their_answers_one_wins() {
    let Some(etcd) = Etcd::start("of_two_that_lose_their_answers_one_wins", 1, false) else {
        return;
    };
    let mut cuts = 0;
    for epoch in 1..=30 {
        let proxies = ["a", "b"].map(|name| (name, Proxy::start(etcd.address(0), 1)));
        let mut nodes = proxies
            .each_ref()
            .map(|(name, proxy)| ArbiterNode::open(name, &etcd.table_at(&[proxy.address])));
        // Wait until both nodes have a connection, so that they are equally fast.
        for node in &nodes {
            until("a connection", || node.arbiter.witness().unwrap().reachable);
        }
        for node in &mut nodes {
            node.ask(epoch);
        }
        let verdicts = nodes.each_mut().map(|node| node.answer().1);
        let is_one = matches!(verdicts, [Granted, Refused { .. }] | [Refused { .. }, Granted]);
        assert!(is_one, "epoch {epoch}: {verdicts:?}");
        cuts += proxies.iter().filter(|(_, proxy)| proxy.left() == 0).count();
    }
    eprintln!("{cuts} transactions were cut in 30 rounds");
    assert!(cuts >= 30);
}

#[test]
fn a_member_may_be_gone_and_another_one_frozen_but_not_all() {
    let Some(mut etcd) = Etcd::start("a_member_may_be_gone_and_another_one_frozen_but_not_all", 3, true)
    else {
        return;
    };
    let (mut a, mut b) = (
        ArbiterNode::open("a", &etcd.table()),
        ArbiterNode::open("b", &etcd.table()),
    );
    assert_eq!(patiently(&mut a, 1), Granted);
    etcd.kill(0);
    assert_eq!(patiently(&mut b, 2), Granted);
    assert_eq!(patiently(&mut a, 2), refused(2));
    let frozen = etcd.freeze(1);
    assert_eq!(a.take(3), Failed, "one of three is no majority");
    drop(frozen);
    assert_eq!(patiently(&mut a, 3), Granted);
    etcd.kill(1);
    etcd.kill(2);
    assert_eq!((a.take(9), b.take(9)), (Failed, Failed));
    assert!(!a.arbiter.witness().unwrap().reachable);
}

#[test]
fn a_frozen_member_costs_time_but_not_the_answer() {
    let Some(etcd) = Etcd::start("a_frozen_member_costs_time_but_not_the_answer", 3, false) else {
        return;
    };
    let mut a = ArbiterNode::open("a", &etcd.table());
    for epoch in 1..=3 {
        let frozen = etcd.freeze(usize::try_from(epoch).unwrap() - 1);
        assert_eq!(patiently(&mut a, epoch), Granted);
        drop(frozen);
    }
}

#[test]
fn who_cannot_prove_to_be_etcd_is_not_believed() {
    let Some(etcd) = Etcd::start("who_cannot_prove_to_be_etcd_is_not_believed", 1, true) else {
        return;
    };
    let right = format!("{:?}", etcd.file("ca.pem"));
    let wrong = format!("{:?}", etcd.file("other.pem"));
    let table = etcd.table().replace("4000", "1000");
    assert_eq!(
        ArbiterNode::open("a", &table.replace(&right, &wrong)).take(1),
        Failed
    );
    let anonymous: Vec<&str> = table
        .lines()
        .filter(|line| !line.starts_with("cert") && !line.starts_with("key"))
        .collect();
    assert_eq!(
        ArbiterNode::open("a", &anonymous.join("\n")).take(1),
        Failed,
        "etcd asks for a client certificate"
    );
    assert_eq!(ArbiterNode::open("a", &table).take(1), Granted);
}

#[test]
fn who_is_there_and_who_has_what_is_shown() {
    let Some(etcd) = Etcd::start("who_is_there_and_who_has_what_is_shown", 1, false) else {
        return;
    };
    let mut a = ArbiterNode::open("a", &etcd.table());
    assert_eq!(a.take(3), Granted);
    let b = ArbiterNode::open("b", &etcd.table());
    let shown = |node: &ArbiterNode, done: &dyn Fn(&[String]) -> bool| {
        let status = || node.arbiter.witness().unwrap();
        until("the nodes are shown", || done(&status().nodes));
        status()
    };
    let status = shown(&b, &|nodes| nodes == ["a", "b"]);
    assert!(status.reachable && status.error.is_none() && status.answer_age_ns.is_some());
    let owner = &status.owners["web"];
    assert_eq!((owner.epoch, owner.owner.as_str()), (3, "a"));
    drop(b);
    shown(&a, &|nodes| nodes == ["a"]);
}
