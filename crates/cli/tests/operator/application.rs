//! An application that is not there when its turn comes.

use crate::daemon::pair;
use crate::keeper::listen;
use crate::lan::{Lan, Outcome, steadfast};

/// It was never started on the backup: no process died, and no wire counts that.
#[test]
fn a_backup_without_its_application_protects_nobody() {
    let Some(lan) = Lan::new("a_backup_without_its_application_protects_nobody") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = pair(&lan, dir.path(), "absent");
    let _serves = listen(&lan.node);
    let reason = "the application on the backup is dead: nobody listens";
    for node in [&one, &two] {
        node.wait_for(&[
            "\"mode\":\"simplex\"",
            &format!("\"simplex_reason\":\"{reason}\""),
        ]);
    }
    one.wait_for(&["\"application\":\"alive\",\"peer_application\":\"dead\""]);
    let order = |words: &[&str]| {
        let words = [words, &["--config", one.config.to_str().unwrap()]].concat();
        lan.node.run(|| Outcome::of(&mut steadfast(&words)))
    };
    let refused = order(&["handover", "web"]);
    assert_eq!(refused.code, 1, "{}", refused.errors);
    assert!(refused.errors.contains(reason), "{}", refused.errors);

    let would_go_on = listen(&lan.peer);
    for node in [&one, &two] {
        node.wait_for(&[
            "\"mode\":\"duplex\"",
            "\"application\":\"alive\",\"peer_application\":\"alive\"",
        ]);
    }
    // By the configuration, for its state is not in the usual place.
    let name = "sf-test-absent-one";
    let drained = order(&["drain", name]);
    assert_eq!(drained.code, 0, "{}", drained.errors);
    two.wait_for(&["\"state\":\"sole\""]);
    let other = order(&["drain", "sf-test-absent-two"]);
    assert_eq!(other.code, 2, "{}", other.errors);
    assert_eq!(order(&["drain", name, "--off"]).code, 0);
    two.wait_for(&["\"mode\":\"duplex\"", "\"role\":\"primary\""]);
    drop(would_go_on); // who serves is stopped: that is the operator's affair
    std::thread::sleep(std::time::Duration::from_millis(1500));
    two.wait_for(&["\"mode\":\"duplex\"", "\"application\":\"alive\""]);
}
