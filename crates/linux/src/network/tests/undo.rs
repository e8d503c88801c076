//! A daemon dies at any point: its changes to the network are undone, or the next daemon takes them over.

use super::*;

/// Leaves the journal and the network in the state that they have if a daemon is killed at the step with this index: after the step if
/// `done`, else just before it.
fn killed_at(index: usize, done: bool, plan: &NetworkPlan, journal: &Path) {
    let netlink = Netlink::open().unwrap();
    let steps = plan::steps(&netlink, plan).unwrap();
    let mut journal = Journal::create(journal, plan, steps.clone()).unwrap();
    for (at, step) in steps.iter().enumerate().take(index + 1) {
        journal.begin(at, step.find(&netlink).unwrap()).unwrap();
        if at < index || done {
            step.apply(&netlink).unwrap();
        }
    }
}

fn number_of_steps(plan: &NetworkPlan) -> usize {
    plan::steps(&Netlink::open().unwrap(), plan).unwrap().len()
}

#[test]
fn a_daemon_killed_at_any_step_is_undone() {
    let Some(world) = RouterLan::new("a_daemon_killed_at_any_step_is_undone") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    for (node, plan) in [(&world.backup, backup_plan()), (&world.primary, primary_plan())] {
        let before = node.dump();
        let steps = node.run(|| number_of_steps(&plan));
        assert!(steps >= 7, "{steps} steps");
        for (index, done) in (0..steps).flat_map(|index| [(index, false), (index, true)]) {
            node.run(|| killed_at(index, done, &plan, &journal));
            node.run(|| undo(&journal).unwrap());
            assert!(!journal.exists());
            assert_same(&before, &node.dump());
            node.run(|| undo(&journal).unwrap());
        }
    }
}

#[test]
fn a_daemon_killed_at_any_step_is_succeeded() {
    let Some(world) = RouterLan::new("a_daemon_killed_at_any_step_is_succeeded") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let (node, plan) = (&world.primary, primary_plan());
    let before = node.dump();
    node.run(|| drop(set_up(&plan, &journal)));
    let during = node.settled();
    node.run(|| undo(&journal).unwrap());
    for (index, done) in
        (0..node.run(|| number_of_steps(&plan))).flat_map(|index| [(index, false), (index, true)])
    {
        node.run(|| killed_at(index, done, &plan, &journal));
        node.run(|| drop(set_up(&plan, &journal)));
        // The kernel adds the route of an IPv6 address a moment after the address.
        assert_same_soon(&during, || node.dump());
        node.run(|| set_up(&plan, &journal).remove().unwrap());
        assert_same(&before, &node.dump());
    }
}

#[test]
fn a_daemon_killed_at_any_step_is_gone_on_with() {
    let Some(world) = RouterLan::new("a_daemon_killed_at_any_step_is_gone_on_with") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let (node, plan) = (&world.primary, primary_plan());
    node.run(|| drop(set_up(&plan, &journal)));
    let raised = node.settled();
    node.run(|| undo(&journal).unwrap());
    let adopt = || Network::adopt(&plan, &journal).unwrap();
    assert!(node.run(adopt).is_none(), "there is no journal");
    let steps = node.run(|| number_of_steps(&plan));
    for (index, done) in (0..steps).flat_map(|index| [(index, false), (index, true)]) {
        node.run(|| killed_at(index, done, &plan, &journal));
        let mut network = node.run(adopt).expect("the killed daemon left a journal");
        node.run(|| raise(&mut network, &plan).unwrap());
        assert_same_soon(&raised, || node.dump());
        node.run(|| network.remove().unwrap());
    }
}

#[test]
fn a_claim_and_the_right_to_speak_are_gone_on_with() {
    let Some(world) = RouterLan::new("a_claim_and_the_right_to_speak_are_gone_on_with") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let (node, plan) = (&world.primary, primary_plan());
    let vip = plan.services[0].address;
    node.run(|| {
        let mut network = set_up(&plan, &journal);
        network.set_speak(vip, true).unwrap();
        network.assume(vip.ip(), NetworkPart::Alone).unwrap();
    });
    let claimed = node.settled();
    let network = node.run(|| Network::adopt(&plan, &journal).unwrap().unwrap());
    assert_eq!(network.part(vip.ip()), Some(NetworkPart::Alone));
    assert_same(&claimed, &node.settled());
    node.command("nft flush ruleset");
    let mut network = network;
    node.run(|| network.repair().unwrap());
    assert!(network.voice.may_speak("steadfast_test-node", vip).unwrap());
}

#[test]
fn a_network_for_another_plan_is_not_gone_on_with() {
    let Some(world) = RouterLan::new("a_network_for_another_plan_is_not_gone_on_with") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = journal(dir.path());
    let node = &world.backup;
    node.run(|| drop(set_up(&backup_plan(), &path)));
    let there = node.settled();
    let other = plan(3, &["10.0.0.200:80"]);
    let error = node.run(|| Network::adopt(&other, &path).unwrap_err().to_string());
    assert!(
        error.ends_with("the journal belongs to another configuration; run `steadfast cleanup` first"),
        "{error}"
    );
    assert_same(&there, &node.dump());
}

#[test]
fn the_right_to_speak_survives_the_daemon() {
    let Some(world) = RouterLan::new("the_right_to_speak_survives_the_daemon") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let plan = backup_plan();
    world.backup.run(|| {
        set_up(&plan, &journal)
            .set_speak(plan.services[0].address, true)
            .unwrap();
        drop(set_up(&plan, &journal));
    });
    let speak = world
        .backup
        .command("nft list set inet steadfast_test-node speak4");
    assert!(speak.contains("10.0.0.100 . 80"), "{speak}");
}

#[test]
fn another_plan_begins_from_the_network_as_found() {
    let Some(world) = RouterLan::new("another_plan_begins_from_the_network_as_found") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let node = &world.backup;
    let before = node.dump();
    node.run(|| drop(set_up(&plan(3, &["10.0.0.200:80"]), &journal)));
    node.run(|| {
        assert_eq!(
            raised(&journal).unwrap(),
            ["10.0.0.200".parse::<IpAddr>().unwrap()]
        )
    });
    let network = node.run(|| {
        let network = set_up(&backup_plan(), &journal);
        assert_eq!(raised(&journal).unwrap().len(), 2);
        network.remove()
    });
    network.unwrap();
    assert_same(&before, &node.dump());
}

#[test]
fn what_others_changed_since_stays() {
    let Some(world) = RouterLan::new("what_others_changed_since_stays") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let node = &world.primary;
    node.run(|| drop(set_up(&primary_plan(), &journal)));
    node.command("sysctl -q -w net.ipv4.conf.eth0.arp_announce=1");
    node.ip("addr del 10.0.0.100/32 dev lo");
    node.ip("route flush table 5300");
    node.command("nft delete table inet steadfast_test-node");
    node.run(|| undo(&journal).unwrap());
    assert_eq!(
        node.run(|| sysctl::read("ipv4/conf/eth0/arp_announce").unwrap()),
        "1"
    );
    assert_eq!(
        node.run(|| sysctl::read("ipv4/conf/eth0/arp_ignore").unwrap()),
        "0"
    );
}

#[test]
fn an_interface_that_is_gone_has_nothing_to_undo() {
    let Some(world) = RouterLan::new("an_interface_that_is_gone_has_nothing_to_undo") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for (node, plan) in [(&world.backup, backup_plan()), (&world.primary, primary_plan())] {
        let journal = journal(dir.path());
        node.run(|| drop(set_up(&plan, &journal)));
        node.ip("link del eth0");
        node.run(|| undo(&journal).unwrap());
        assert!(!node.ip("rule").contains("lookup 53"));
    }
}

#[test]
fn a_torn_last_line_was_not_begun() {
    let Some(world) = RouterLan::new("a_torn_last_line_was_not_begun") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = journal(dir.path());
    let node = &world.backup;
    let before = node.dump();
    node.run(|| killed_at(2, false, &backup_plan(), &path));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 5]).unwrap();
    node.run(|| {
        let journal = Journal::load(&path).unwrap().unwrap();
        assert!(journal.begun(1) && !journal.begun(2));
        drop(set_up(&backup_plan(), &path));
        undo(&path).unwrap();
    });
    assert_same(&before, &node.dump());
}

#[test]
fn a_journal_that_is_damaged_or_not_of_here_is_refused() {
    let Some(world) = RouterLan::new("a_journal_that_is_damaged_or_not_of_here_is_refused") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = journal(dir.path());
    let text = world.backup.run(|| {
        killed_at(1, false, &backup_plan(), &path);
        std::fs::read_to_string(&path).unwrap()
    });
    let error = world.primary.run(|| undo(&path).unwrap_err().to_string());
    assert!(
        error.contains("it is of another network namespace, net:["),
        "{error}"
    );
    for (damaged, line) in [
        (String::new(), "line 1 is damaged"),
        (
            text.replace("\"version\":3", "\"version\":4"),
            "line 1 is damaged: version 4 is unknown",
        ),
        (
            text.replace("\"begin\":0", "\"begin\":99"),
            "line 2 is damaged: there is no step 99",
        ),
        (text.replace("\"found\":null", "\"found\":7"), "line 2 is damaged"),
    ] {
        std::fs::write(&path, damaged).unwrap();
        let error = world.backup.run(|| undo(&path).unwrap_err().to_string());
        assert!(error.contains("network.journal: "), "{error}");
        assert!(error.contains(line), "{error}");
        assert!(path.exists(), "the damaged journal is kept for the operator");
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    // The machine may have lost its power while a line was on its way to the disk.
    for end in ["", "\0\0\0\0\n", "{\"beg"] {
        std::fs::write(&path, text.replace(boot.trim_end(), "before-that") + end).unwrap();
        world.primary.run(|| undo(&path).unwrap());
        assert!(!path.exists(), "a journal from before the last boot is removed");
    }
}

#[test]
fn the_file_says_what_was_begun_and_undone() {
    let Some(world) = RouterLan::new("the_file_says_what_was_begun_and_undone") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = journal(dir.path());
    world.backup.run(|| {
        killed_at(2, false, &backup_plan(), &path);
        let reread = || Journal::load(&path).unwrap().unwrap().begun_last_first();
        let mut journal = Journal::load(&path).unwrap().unwrap();
        assert_eq!(reread(), journal.begun_last_first());
        journal.undone(1).unwrap();
        assert_eq!(reread().iter().map(|&(step, _)| step).collect::<Vec<_>>(), [2, 0]);
        journal.begin(1, Some("again".to_owned())).unwrap();
        assert_eq!(reread()[0], (1, Some("again".to_owned())));

        let len = || std::fs::metadata(&path).unwrap().len();
        let before = len();
        for _ in 0..5000 {
            journal.undone(1).unwrap();
            journal.begin(1, None).unwrap();
        }
        assert!(len() - before < 200_000, "{} bytes more", len() - before);
        assert_eq!(reread(), journal.begun_last_first());
    });
}

/// An agent that is upgraded in place finds the journal of the earlier version.
#[test]
fn the_earlier_versions_journal_is_continued() {
    let Some(world) = RouterLan::new("the_earlier_versions_journal_is_continued") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = journal(dir.path());
    world.backup.run(|| {
        killed_at(2, false, &backup_plan(), &path);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"version\":3", "\"version\":2")).unwrap();
        let mut journal = Journal::load(&path).unwrap().unwrap();
        journal.undone(0).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"version\":3"), "{text}");
        let begun = Journal::load(&path).unwrap().unwrap().begun_last_first();
        assert_eq!(begun.iter().map(|&(step, _)| step).collect::<Vec<_>>(), [2, 1]);
        undo(&path).unwrap();
    });
}
