//! Tests of the decision table, and of the path's evidence.

use std::fmt::Write;

use super::*;

const CONFIG: DetectorConfig = DetectorConfig {
    interval: Duration::from_millis(20),
    missed: 4,
    agent_timeout: Duration::from_millis(500),
};

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// All pairs of this node's and the peer's reachability.
fn sides() -> impl Iterator<Item = (Reachability, Reachability)> {
    let own = Reachability::ALL.into_iter();
    own.flat_map(|own| Reachability::ALL.map(|peer| (own, peer)))
}

#[test]
fn the_whole_table() {
    let mut table = String::new();
    for meet in [true, false] {
        for (own, peer) in sides() {
            let meets = if meet { "meet" } else { "apart" };
            let step = step(Role::Backup, meet, own, peer);
            let Fitness {
                serves,
                begins,
                returns,
                ..
            } = fitness(meet, own, peer);
            let may = [(serves, "serve"), (begins, "begin"), (returns, "return")];
            let may: Vec<_> = may
                .iter()
                .filter_map(|(may, what)| may.then_some(*what))
                .collect();
            let may = if may.is_empty() {
                "-".to_owned()
            } else {
                may.join(", ")
            };
            let step = format!("{step:?}");
            writeln!(table, "{meets:5} own {own:9} peer {peer:9}: {step:8} {may}").unwrap();
        }
    }
    insta::assert_snapshot!(table, @r"
    meet  own unknown   peer unknown  : Stay     serve, return
    meet  own unknown   peer reached  : Stay     serve, return
    meet  own unknown   peer suspected: Stay     serve, return
    meet  own unknown   peer lost     : Stay     serve, begin, return
    meet  own reached   peer unknown  : Stay     serve, return
    meet  own reached   peer reached  : Stay     serve, return
    meet  own reached   peer suspected: Stay     serve, return
    meet  own reached   peer lost     : Stay     serve, begin, return
    meet  own suspected peer unknown  : Stay     serve, return
    meet  own suspected peer reached  : Stay     serve, return
    meet  own suspected peer suspected: Stay     serve, return
    meet  own suspected peer lost     : Stay     serve, begin, return
    meet  own lost      peer unknown  : GiveWay  -
    meet  own lost      peer reached  : GiveWay  -
    meet  own lost      peer suspected: Stay     -
    meet  own lost      peer lost     : Stay     serve, return
    apart own unknown   peer unknown  : TakeOver serve
    apart own unknown   peer reached  : GiveWay  serve
    apart own unknown   peer suspected: Stay     serve
    apart own unknown   peer lost     : TakeOver serve, begin
    apart own reached   peer unknown  : TakeOver serve
    apart own reached   peer reached  : TakeOver serve
    apart own reached   peer suspected: TakeOver serve
    apart own reached   peer lost     : TakeOver serve, begin
    apart own suspected peer unknown  : GiveWay  serve
    apart own suspected peer reached  : GiveWay  serve
    apart own suspected peer suspected: Stay     serve
    apart own suspected peer lost     : Stay     serve, begin
    apart own lost      peer unknown  : GiveWay  -
    apart own lost      peer reached  : GiveWay  -
    apart own lost      peer suspected: Stay     -
    apart own lost      peer lost     : Stay     serve
    ");
}

#[test]
fn only_a_backup_acts_by_itself() {
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Backup) {
        for meet in [true, false] {
            assert!(
                sides().all(|(own, peer)| step(role, meet, own, peer) == PathStep::Stay),
                "{role:?}"
            );
        }
    }
}

#[test]
fn nobody_goes_on_who_is_known_not_to_be_reached() {
    for meet in [true, false] {
        for (own, peer) in sides() {
            let step = step(Role::Backup, meet, own, peer);
            assert!(
                step != PathStep::TakeOver || matches!(own, Reachability::Reached | Reachability::Unknown)
            );
            assert!(
                step != PathStep::GiveWay || matches!(peer, Reachability::Reached | Reachability::Unknown)
            );
            let (ours, theirs) = (fitness(meet, own, peer), fitness(meet, peer, own));
            assert!(
                !(ours.begins && theirs.serves),
                "one node is to begin although the other may serve: {own:?} {peer:?}"
            );
            assert!(
                ours.serves || theirs.serves,
                "no node may serve: {own:?} {peer:?}"
            );
        }
    }
}

/// A path over which both nodes hear each other (they meet), and whose outside hosts answer. All evidence is from time 0.
fn path() -> ServicePath {
    let mut path = ServicePath::new(CONFIG, true, at(0));
    path.set_link(true);
    path.on_sign(at(0));
    path.on_answer(at(0), at(0));
    path.on_word(
        at(0),
        Some(PathWord {
            outside: Reachability::Reached,
            hears: Some(true),
        }),
    );
    path
}

/// Lets a path run, with a heartbeat over another link every 20 ms. Returns the times at which the path asked the outside hosts.
fn run(path: &mut ServicePath, millis: std::ops::Range<u64>) -> Vec<u64> {
    let mut asked = Vec::new();
    for now in millis.step_by(10) {
        if now % 20 == 0 {
            path.on_heartbeat();
        }
        path.on_timeout(at(now), false);
        if path.asks(at(now)) {
            asked.push(now);
        }
    }
    asked
}

#[test]
fn silence_here_while_others_are_heard_parts_the_nodes() {
    let mut path = path();
    run(&mut path, 10..80);
    assert!(path.meets(at(70)));
    assert_eq!(
        path.outside(at(70)),
        Reachability::Suspected,
        "suspected once half of the detection time has passed"
    );
    run(&mut path, 80..90);
    assert!(!path.meets(at(80)));
    assert_eq!(path.word(at(80)).hears, Some(false));
    path.on_sign(at(85));
    assert!(path.meets(at(85)));
}

#[test]
fn silence_everywhere_is_not_the_paths() {
    let mut path = path();
    for now in (10..1000).step_by(10) {
        path.on_timeout(at(now), true);
    }
    assert!(path.meets(at(990)), "no other link is heard either");
}

#[test]
fn a_node_that_did_not_look_blames_nobody() {
    let mut path = path();
    run(&mut path, 10..40);
    for _ in 0..10 {
        path.on_heartbeat(); // these heartbeats waited in the socket
    }
    path.on_timeout(at(500), false);
    assert!(path.meets(at(500)));
}

#[test]
fn a_suspicion_asks_at_once_and_ends_with_an_answer_or_a_loss() {
    let mut path = path();
    let asked = run(&mut path, 10..300);
    assert_eq!(asked[..5], [10, 40, 60, 80, 100], "from half of the patience on");
    assert_eq!(path.outside(at(280)), Reachability::Suspected);
    assert_eq!(path.outside(at(290)), Reachability::Lost);
    path.on_answer(at(291), at(290));
    assert_eq!(path.outside(at(291)), Reachability::Reached);
}

#[test]
fn answers_to_questions_of_before_a_suspicion_prove_nothing() {
    let mut path = path();
    path.set_carrier(at(99), false);
    path.set_carrier(at(100), true);
    assert_eq!(path.distrusts(), Some(at(100)));
    path.on_answer(at(101), at(99));
    assert_eq!(path.outside(at(101)), Reachability::Suspected);
    path.on_answer(at(102), at(100));
    assert_eq!(path.outside(at(102)), Reachability::Reached);
    path.on_answer(at(340), at(98)); // a late answer does not make the proof younger
    path.on_timeout(at(352), false);
    assert_eq!(path.outside(at(352)), Reachability::Suspected);
}

#[test]
fn without_trouble_few_questions_are_asked() {
    let mut path = path();
    let mut asked = 0;
    for now in (10..10_000).step_by(10) {
        path.on_heartbeat();
        path.on_sign(at(now));
        path.on_timeout(at(now), false);
        if path.asks(at(now)) {
            asked += 1;
            path.on_answer(at(now + 1), at(now));
        }
        assert_eq!(path.outside(at(now + 1)), Reachability::Reached);
    }
    assert_eq!(asked, 50);
}

/// Lets a path whose nodes meet run until `end`. A client speaks in each millisecond for which `speaks` is true. Hosts answer a question
/// immediately if `answers` is true at that time. Returns the times of the questions.
fn run_with_clients(
    path: &mut ServicePath,
    end: u64,
    speaks: impl Fn(u64) -> bool,
    answers: impl Fn(u64) -> bool,
) -> Vec<u64> {
    let mut asked = Vec::new();
    for now in 1..end {
        if speaks(now) {
            path.on_client(at(now));
        }
        if now % 10 == 0 {
            path.on_heartbeat();
            path.on_sign(at(now));
            path.on_timeout(at(now), false);
            if path.asks(at(now)) {
                asked.push(now);
                if answers(now) {
                    path.on_answer(at(now), at(now));
                }
            }
        }
    }
    asked
}

/// The router fails at various times after its last answer. Until then, clients speak all the time.
#[test]
fn clients_that_fall_silent_make_this_node_ask_at_once() {
    let lost_after = |fails: u64, has_clients: bool| {
        let (mut path, works) = (path(), |now| now < fails);
        (fails..fails + 1000)
            .find(|&end| {
                path = self::path();
                run_with_clients(&mut path, end, |now| has_clients && works(now), works);
                path.outside(at(end)) == Reachability::Lost
            })
            .expect("it is lost")
            - fails
    };
    for fails in (200..400).step_by(23) {
        let with = lost_after(fails, true);
        assert!((250..=350).contains(&with), "{with} ms after {fails} ms");
    }
    let latest = (200..400).step_by(23).map(|fails| lost_after(fails, false)).max();
    assert!(
        latest > Some(450),
        "without clients a loss is noticed later: {latest:?}"
    );
}

#[test]
fn pauses_of_clients_are_no_suspicion_and_cost_few_questions() {
    for pause in [50, 90, 100, 150, 210, 1000] {
        let mut path = path();
        let asked = run_with_clients(&mut path, 10_000, |now| now % pause == 0, |_| true);
        assert!(
            asked.len() <= 100,
            "{} questions with a pause of {pause} ms",
            asked.len()
        );
        assert_eq!(path.distrusts(), None, "no suspicion with a pause of {pause} ms");
    }
}

#[test]
fn the_peers_trouble_makes_this_node_prove_itself_once() {
    let mut path = path();
    let word = |outside| {
        Some(PathWord {
            outside,
            hears: Some(true),
        })
    };
    path.on_word(at(100), word(Reachability::Suspected));
    assert_eq!(path.outside(at(100)), Reachability::Suspected);
    path.on_answer(at(101), at(100));
    for now in 102..130 {
        path.on_word(
            at(now),
            word(if now % 2 == 0 {
                Reachability::Reached
            } else {
                Reachability::Suspected
            }),
        );
        assert_eq!(
            path.outside(at(now)),
            Reachability::Reached,
            "the peer's repeated trouble begins no new suspicion"
        );
    }
}

/// The answer is fresh, but its question may be older than the peer's trouble.
#[test]
fn a_proof_is_as_old_as_its_question() {
    let mut path = path();
    let _ = path.asks(at(100));
    path.on_answer(at(299), at(100));
    let troubled = PathWord {
        outside: Reachability::Suspected,
        hears: Some(true),
    };
    path.on_word(at(300), Some(troubled));
    assert_eq!(path.outside(at(300)), Reachability::Suspected);
}

/// Heartbeats that are late again and again, on a bad network, do not hide that no host answers any more.
#[test]
fn trouble_upon_trouble_does_not_prolong_a_suspicion_for_ever() {
    let mut path = path();
    let word = |outside| PathWord {
        outside,
        hears: Some(true),
    };
    let lost = (100..).step_by(10).find(|&now| {
        let is_bad = now / 30 % 2 == 0;
        path.on_sign(at(now));
        path.on_word(
            at(now),
            Some(word(if is_bad {
                Reachability::Suspected
            } else {
                Reachability::Unknown
            })),
        );
        path.on_timeout(at(now), is_bad);
        let _ = path.asks(at(now));
        path.outside(at(now)) == Reachability::Lost || now > 2_000
    });
    assert!(lost.is_some_and(|lost| lost <= 1_000), "{lost:?}");
}

/// If the nodes reach each other, but neither reaches the outside hosts, then the hosts are gone and no path is broken.
#[test]
fn hosts_that_are_gone_for_both_do_not_make_a_node_unreached() {
    for meet in [true, false] {
        let mut path = path();
        let lost = PathWord {
            outside: Reachability::Lost,
            hears: Some(meet),
        };
        for now in (100..2_000).step_by(20) {
            path.on_sign(at(now));
            path.on_word(at(now), Some(lost));
            path.on_timeout(at(now), false);
            let _ = path.asks(at(now));
        }
        assert_eq!(path.outside(at(2_000)), Reachability::Lost);
        assert_eq!(path.is_reached(at(2_000)), meet);
        path.on_timeout(at(2_000), true); // the peer falls silent
        assert_eq!(path.is_reached(at(2_040)), meet);
        path.set_carrier(at(2_040), false);
        assert!(!path.is_reached(at(2_040)));
    }
}

#[test]
fn hosts_that_answer_the_peer_only_are_lost() {
    let mut path = ServicePath::new(CONFIG, false, at(0));
    path.asks(at(0));
    assert_eq!(
        path.outside(at(2000)),
        Reachability::Unknown,
        "perhaps the hosts answer nobody"
    );
    path.on_word(
        at(0),
        Some(PathWord {
            outside: Reachability::Reached,
            hears: None,
        }),
    );
    assert_eq!(path.outside(at(999)), Reachability::Unknown);
    assert_eq!(path.outside(at(1000)), Reachability::Lost);
    path.on_nobody();
    assert_eq!(
        path.outside(at(2000)),
        Reachability::Unknown,
        "there is nobody to be asked"
    );
}
