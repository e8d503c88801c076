//! Tests of orders that `steadfast migrate` refuses. `steadfast-lab crash --fault migrate` plays those that it carries out.

use crate::daemon::pair;
use crate::keeper::listen;
use crate::lan::{CommandOutput, OperatorLan, steadfast};

#[test]
fn an_order_that_makes_no_sense_is_refused_with_the_reason() {
    let Some(lan) = OperatorLan::new("an_order_that_makes_no_sense_is_refused_with_the_reason") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = pair(&lan, dir.path(), "migrate");
    let _serve = [listen(&lan.node), listen(&lan.peer)];
    for node in [&one, &two] {
        node.wait_for(&["\"mode\":\"duplex\""]);
    }
    let migrate = |config: &std::path::Path, words: &[&str]| {
        let words = [&["migrate"], words, &["--config", config.to_str().unwrap()]].concat();
        lan.node.run(|| CommandOutput::of(&mut steadfast(&words)))
    };
    let names = ["sf-test-migrate-one", "sf-test-migrate-two"];
    let refusals: [(_, &[&str], _, _); 6] = [
        (
            &one,
            &["web", "--to", "nobody"],
            2,
            "is sf-test-migrate-two, not nobody",
        ),
        (
            &one,
            &["nothing", "--to", names[1]],
            2,
            "node sf-test-migrate-one has no service nothing",
        ),
        (&one, &["web", "--to", names[1]], 1, "it has no connections here"),
        (
            &one,
            &["web", "--to", names[1], "--client", "10.1"],
            2,
            "expected an address, 192.0.2.1, or",
        ),
        (
            &two,
            &["web", "--to", names[0]],
            1,
            "this node is not its primary",
        ),
        (
            &one,
            &["web", "--to", names[1], "--within", "0"],
            2,
            "0 is not in 1..=3600",
        ),
    ];
    for verb in ["handover", "bypass"] {
        let words = [verb, "nothing", "--config", one.config.to_str().unwrap()];
        let refused = lan.node.run(|| CommandOutput::of(&mut steadfast(&words)));
        assert_eq!(refused.code, 2, "{verb}: {}", refused.errors);
        assert!(
            refused.errors.contains("has no service nothing"),
            "{}",
            refused.errors
        );
    }
    for (node, words, code, reason) in refusals {
        let refused = migrate(&node.config, words);
        assert_eq!(refused.code, code, "{words:?}: {}", refused.errors);
        assert!(refused.errors.contains(reason), "{words:?}: {}", refused.errors);
    }
}
