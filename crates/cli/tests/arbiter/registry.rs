//! Annexes register in a real etcd, and a pair's node reads what they have stored.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use steadfast::config::{AnnexFile, SecretKey};
use steadfast::control::RegistrationStatus;
use steadfast::registry::entry::{EntryWish, FoundAnnexes};
use steadfast::registry::registrar::{Registrar, Registration};

use crate::etcd::{Etcd, until};
use crate::node::ArbiterNode;

/// A registered annex, and the file of its key.
struct TestAnnex {
    registration: Registration,
    key: SecretKey,
}

impl TestAnnex {
    /// Starts the annex `name` at this address. `etcd` is the table that says where it registers.
    fn start(name: &str, host: u8, etcd: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "ab".repeat(32)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut text = format!(
            "annex = \"{name}\"\nlisten = \"{}\"\nkey_file = {key:?}\n",
            at(host)
        );
        writeln!(text, "{}", etcd.replace("[witness]", "[registry]")).unwrap();
        text += "[[service]]\nname = \"web\"\naddress = \"192.0.2.100\"\nport = 80\ninterface = \"eth0\"\n";
        let file = AnnexFile::parse(Path::new("annex.toml"), &text).unwrap();
        let registry = file.registry.as_ref().unwrap();
        Self {
            registration: Registration::start(Registrar::new(&file, registry).unwrap()).unwrap(),
            key: file.key.clone(),
        }
    }

    fn status(&self) -> RegistrationStatus {
        self.registration.status()
    }

    fn wait_registered(&self) {
        until("the annex is registered", || self.status().is_registered);
    }

    fn wait_refused(&self, why: &str) {
        let is_refused = || self.status().error.is_some_and(|error| error.contains(why));
        until(why, is_refused);
    }
}

fn at(host: u8) -> SocketAddr {
    ([192, 0, 2, host], 7402).into()
}

/// The annexes that the node finds for its service.
fn found(node: &ArbiterNode, key: &SecretKey) -> Option<FoundAnnexes> {
    let wish = EntryWish {
        cluster: "steadfast".to_owned(),
        service: "web".to_owned(),
        vip: "192.0.2.100:80".parse().unwrap(),
        policy: proto::follower::RestartPolicy::Http,
        key: key.clone(),
    };
    Some(wish.find(&node.arbiter.annexes()?.values))
}

fn wait_found(node: &ArbiterNode, key: &SecretKey, expected: &[(&str, u8)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|&(name, host)| (name.to_owned(), at(host)))
        .collect();
    until(&format!("the node finds {expected:?}"), || {
        found(node, key).is_some_and(|found| found.annexes == expected && found.faults.is_empty())
    });
}

/// Does something in etcd, as an operator does.
fn operate<T>(
    etcd: &Etcd,
    work: impl AsyncFnOnce(etcd_client::Client) -> Result<T, etcd_client::Error>,
) -> T {
    let endpoint = etcd.address(0).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.unwrap().block_on(async {
        let client = etcd_client::Client::connect([endpoint], None).await?;
        work(client).await
    });
    done.unwrap()
}

/// Stores a value at a key, or deletes the key (`None`).
fn store(etcd: &Etcd, key: &str, value: Option<&str>) {
    operate(etcd, async |mut client| match value {
        Some(value) => client.put(key, value, None).await.map(drop),
        None => client.delete(key, None).await.map(drop),
    });
}

/// The etcd revision at which the key was created, if there is one.
fn created(etcd: &Etcd, key: &str) -> Option<i64> {
    let answer = operate(etcd, async |mut client| client.get(key, None).await);
    answer.kvs().first().map(etcd_client::KeyValue::create_revision)
}

#[test]
fn an_annex_is_found_while_it_is_registered() {
    let Some(etcd) = Etcd::start("an_annex_is_found_while_it_is_registered", 1, true) else {
        return;
    };
    let node = ArbiterNode::open("a", &etcd.table());
    let gamma = TestAnnex::start("gamma", 4, &etcd.table());
    let delta = TestAnnex::start("delta", 5, &etcd.table());
    let key = gamma.key.clone();
    wait_found(&node, &key, &[("delta", 5), ("gamma", 4)]);
    drop(delta);
    wait_found(&node, &key, &[("gamma", 4)]);
    let status = gamma.status();
    assert_eq!(
        (status.key.as_str(), status.address),
        ("/steadfast/annexes/gamma", at(4))
    );
}

#[test]
fn an_annex_takes_its_own_key_back_and_no_other() {
    let Some(etcd) = Etcd::start("an_annex_takes_its_own_key_back_and_no_other", 1, false) else {
        return;
    };
    let node = ArbiterNode::open("a", &etcd.table());
    let first = TestAnnex::start("gamma", 4, &etcd.table());
    first.wait_registered();
    let other = TestAnnex::start("gamma", 5, &etcd.table());
    other.wait_refused("another annex with this name is registered at 192.0.2.4:7402");
    wait_found(&node, &first.key, &[("gamma", 4)]);
    // As if the first process had been killed: its key is still there.
    let again = TestAnnex::start("gamma", 4, &etcd.table());
    again.wait_registered();
    first.wait_refused("another process with this annex's name and address has stored it");
    let key = first.key.clone();
    drop(first);
    assert!(again.status().is_registered);
    wait_found(&node, &key, &[("gamma", 4)]);
    drop(again);
    other.wait_registered();
    wait_found(&node, &key, &[("gamma", 5)]);
}

#[test]
fn a_lost_key_is_stored_again_and_a_malformed_one_is_named() {
    let Some(etcd) = Etcd::start(
        "a_lost_key_is_stored_again_and_a_malformed_one_is_named",
        1,
        false,
    ) else {
        return;
    };
    let node = ArbiterNode::open("a", &etcd.table());
    let gamma = TestAnnex::start("gamma", 4, &etcd.table());
    gamma.wait_registered();
    let first = created(&etcd, "/steadfast/annexes/gamma");
    assert!(first.is_some());
    store(&etcd, "/steadfast/annexes/gamma", None);
    until("the key is stored again", || {
        created(&etcd, "/steadfast/annexes/gamma") > first
    });
    wait_found(&node, &gamma.key, &[("gamma", 4)]);
    store(&etcd, "/steadfast/annexes/gamma", Some("{\"version\":7}"));
    let fault = "/steadfast/annexes/gamma: has version 7, but this node reads version 1";
    until("the node names the key", || {
        found(&node, &gamma.key).is_some_and(|found| found.faults == [fault])
    });
    gamma.wait_refused("its value has version 7");
    store(&etcd, "/steadfast/annexes/gamma", None);
    gamma.wait_registered();
    wait_found(&node, &gamma.key, &[("gamma", 4)]);
}

#[test]
fn what_is_known_stays_while_etcd_is_frozen() {
    let Some(etcd) = Etcd::start("what_is_known_stays_while_etcd_is_frozen", 1, false) else {
        return;
    };
    let node = ArbiterNode::open("a", &etcd.table());
    let gamma = TestAnnex::start("gamma", 4, &etcd.table());
    gamma.wait_registered();
    wait_found(&node, &gamma.key, &[("gamma", 4)]);
    let frozen = etcd.freeze(0);
    gamma.wait_refused("no answer within");
    assert!(gamma.status().kept_age_ns.is_some());
    let read_at = node.arbiter.annexes().unwrap().read_at;
    until("etcd does not answer the node", || {
        !node.arbiter.witness().unwrap().reachable
    });
    assert_eq!(
        found(&node, &gamma.key).unwrap().annexes.len(),
        1,
        "what is known stays"
    );
    assert_eq!(
        node.arbiter.annexes().unwrap().read_at,
        read_at,
        "and says its age"
    );
    drop(frozen);
    gamma.wait_registered();
    until("the node reads again", || {
        node.arbiter.annexes().unwrap().read_at > read_at
    });
    wait_found(&node, &gamma.key, &[("gamma", 4)]);
}
