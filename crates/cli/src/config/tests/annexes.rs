//! Annexes: in a node's file, and their own file.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proto::follower::RestartPolicy;

use super::super::AnnexFile;
use super::{SMALLEST, and, parse, wrong};

const ANNEX: &str = "[[service.annex]]\nname = \"gamma\"\naddress = \"10.0.0.4:7402\"\n";

/// A node's file with a key and these annexes.
fn with_key(annexes: &str) -> String {
    let key = "address = \"10.0.0.3\"\nkey_file = \"/etc/steadfast/key\"";
    format!("{}{annexes}", SMALLEST.replacen("address = \"10.0.0.3\"", key, 1))
}

#[test]
fn annexes_are_read() {
    let config = parse(&with_key(&format!(
        "{ANNEX}{}",
        ANNEX.replace("gamma", "delta").replace("10.0.0.4", "10.0.0.5")
    )))
    .unwrap();
    assert_eq!(config.peer.annex_port, 7402);
    let annexes: Vec<_> = config.services[0]
        .annexes
        .iter()
        .map(|annex| (annex.name.as_str(), annex.address.to_string()))
        .collect();
    assert_eq!(
        annexes,
        [
            ("gamma", "10.0.0.4:7402".to_owned()),
            ("delta", "10.0.0.5:7402".to_owned())
        ]
    );
}

#[test]
fn annexes_need_what_they_need() {
    assert_eq!(
        and(ANNEX),
        [
            "steadfast.toml:4: peer.key_file: is missing, but a service has annexes, which accept orders over the network; \
             allowed: a key"
        ]
    );
    let cases = [
        (
            with_key(ANNEX).replace("\"http\"", "\"replica\""),
            "service[0].annex: annexes do not belong to policy = \"replica\"",
        ),
        (
            with_key(ANNEX).replace("\"http\"", "\"replay\"\ncommit = \"pr\""),
            "service[0].annex: annexes need commit = \"prs\"",
        ),
        (
            with_key(ANNEX) + "[detector]\nlease_ms = 0\n",
            "detector.lease_ms: is 0, but a service has annexes; allowed: 1 or more",
        ),
        (
            with_key(&ANNEX.replace("gamma", "beta")),
            "service[0].annex[0].name: is a node of the pair; allowed: another node",
        ),
        (
            with_key(&format!("{ANNEX}{ANNEX}")),
            "service[0].annex[1].name: \"gamma\" names another annex too, or has the same hash as its name",
        ),
        (
            with_key(&ANNEX.replace("10.0.0.4", "[2001:db8::4]")),
            "service[0].annex[0].address: is not of the VIP's address family",
        ),
        (
            with_key(&ANNEX.repeat(9)),
            "service[0].annex: there are 9; allowed: at most 8 tables",
        ),
        (
            with_key("annex = 3\n"),
            "service[0].annex: is of type integer; allowed: at most 8 tables",
        ),
        (
            with_key(&ANNEX.replace("address", "adress")),
            "service[0].annex[0].address: is missing; allowed: \"ADDRESS:PORT\" or \"[ADDRESS]:PORT\"",
        ),
    ];
    for (text, expected) in cases {
        let problems = wrong(&text);
        let ends = problems.iter().any(|problem| problem.ends_with(expected));
        assert!(ends, "{expected}\n{problems:?}");
    }
}

const OWN: &str = r#"annex = "gamma"
listen = "10.0.0.4:7402"
key_file = "KEY"

[[service]]
name = "web"
address = "10.0.0.100"
port = 80
interface = "eth0"
"#;

/// An annex's own file, with a key that can be read.
fn own(text: &str) -> Result<AnnexFile, String> {
    let mut key = tempfile::NamedTempFile::new().unwrap();
    key.write_all("ab".repeat(32).as_bytes()).unwrap();
    key.as_file()
        .set_permissions(std::fs::Permissions::from_mode(0o600))
        .unwrap();
    let text = text.replace("KEY", key.path().to_str().unwrap());
    AnnexFile::parse(Path::new("annex.toml"), &text).map_err(|error| error.to_string())
}

#[test]
fn an_annex_has_a_file_of_its_own() {
    let file = own(OWN).unwrap();
    assert_eq!(file.state_dir, Path::new("/run/steadfast/gamma"));
    assert_eq!(file.services[0].vip, "10.0.0.100:80".parse().unwrap());
    assert_eq!(file.services[0].application, "127.0.0.1:80".parse().unwrap());
    assert_eq!(file.services[0].policy, RestartPolicy::Http);
    assert_eq!(file.snapshot_socket, Path::new("/run/steadfast/snapshots.sock"));
    assert!(!format!("{file:?}").contains("abab"), "the key is not shown");
    let exporting = format!("{OWN}policy = \"snapshot\"\n");
    let exporting = own(&format!("snapshot_socket = \"/run/x.sock\"\n{exporting}")).unwrap();
    assert_eq!(exporting.services[0].policy, RestartPolicy::Snapshot);
    assert_eq!(exporting.snapshot_socket, Path::new("/run/x.sock"));
    let probed = own(&format!("{OWN}[service.health]\nfailures = 2\n")).unwrap();
    assert_eq!(
        probed.services[0].health.as_ref().map(|health| health.failures),
        Some(2)
    );
    assert_eq!(file.services[0].health, None);
    let problem = own(&format!("{OWN}[service.health]\nfailures = 0\n")).unwrap_err();
    assert!(problem.contains("service[0].health.failures"), "{problem}");
    let problem = own(&format!("{OWN}policy = \"replica\"\n")).unwrap_err();
    assert_eq!(
        problem,
        "annex.toml:10: service[0].policy: is \"replica\"; allowed: \"http\", \"replay\" or \"snapshot\""
    );

    let packaged = include_str!("../../../../../packaging/annex.toml");
    assert_eq!(
        own(&packaged.replace("/etc/steadfast/key", "KEY"))
            .unwrap()
            .services
            .len(),
        1
    );

    let again = &OWN[OWN.find("[[service]]").unwrap()..];
    let problem = own(&format!("{OWN}{again}")).unwrap_err();
    assert_eq!(
        problem,
        "annex.toml:10: service[1]: has the name, or the address and port, of an earlier service"
    );
    let problem = own(&OWN.replace("KEY", "/nonexistent")).unwrap_err();
    assert!(
        problem.starts_with("annex.toml:3: key_file: /nonexistent cannot be read"),
        "{problem}"
    );
    let problem = own(&OWN.replace("port = 80", "prot = 80")).unwrap_err();
    assert!(problem.contains("service[0].prot: unknown key"), "{problem}");
}

const WITNESS: &str = "[witness]\nkind = \"etcd\"\nendpoints = [\"http://10.0.0.9:2379\"]\n";
const REGISTERED: &str = "registered_annexes = true\n";

#[test]
fn annexes_may_register_where_there_is_an_etcd() {
    let config = parse(&with_key(&format!("{REGISTERED}{WITNESS}"))).unwrap();
    assert!(config.services[0].registered_annexes);
    assert!(config.services[0].annexes.is_empty());
    let both = parse(&with_key(&format!("{REGISTERED}{ANNEX}{WITNESS}"))).unwrap();
    assert_eq!(both.services[0].annexes.len(), 1);
    assert!(!parse(&with_key(WITNESS)).unwrap().services[0].registered_annexes);
    let cases = [
        (
            with_key(REGISTERED),
            "service[0].registered_annexes: needs [witness], the etcd cluster in which annexes register",
        ),
        (
            with_key(&format!("{REGISTERED}{WITNESS}")).replace("\"http\"", "\"replica\""),
            "service[0].registered_annexes: annexes do not belong to policy = \"replica\"",
        ),
        (
            with_key(&format!("{REGISTERED}[detector]\nlease_ms = 0\n{WITNESS}")),
            "detector.lease_ms: is 0, but a service has annexes; allowed: 1 or more",
        ),
        (
            with_key("registered_annexes = 1\n"),
            "service[0].registered_annexes: is of type integer; allowed: true or false",
        ),
    ];
    for (text, expected) in cases {
        let problems = wrong(&text);
        let ends = problems.iter().any(|problem| problem.ends_with(expected));
        assert!(ends, "{expected}\n{problems:?}");
    }
    let without_key = and(&format!("{REGISTERED}{WITNESS}"));
    assert!(
        without_key[0].contains("peer.key_file: is missing, but a service has annexes"),
        "{without_key:?}"
    );
}

#[test]
fn an_annex_says_where_it_registers() {
    let registry = WITNESS.replace("witness", "registry");
    let registering = format!("{OWN}{registry}");
    let settings = own(&registering).unwrap().registry.unwrap();
    assert_eq!(settings.etcd.cluster, "steadfast");
    assert_eq!(settings.address, "10.0.0.4:7402".parse().unwrap(), "as listen");
    assert_eq!(own(OWN).unwrap().registry, None);
    let elsewhere = format!("{registering}address = \"10.0.0.7:7403\"\n");
    let elsewhere = own(&elsewhere.replace("10.0.0.4:7402", "0.0.0.0:7402")).unwrap();
    assert_eq!(
        elsewhere.registry.unwrap().address,
        "10.0.0.7:7403".parse().unwrap()
    );
    let cases = [
        (
            registering.replace("10.0.0.4:7402", "0.0.0.0:7402"),
            "registry.address: is missing, but listen has no address that the pair's nodes could use",
        ),
        (
            format!("{registering}address = \"127.0.0.1:7402\"\n"),
            "registry.address: is \"127.0.0.1:7402\", which other machines cannot reach; allowed: \"ADDRESS:PORT\" or \
             \"[ADDRESS]:PORT\"",
        ),
        (
            registering.replace("endpoints", "endpoint"),
            "registry.endpoints: is missing; allowed: an array of 1 to 9 URLs, all \"https://HOST:PORT\" or all \
             \"http://HOST:PORT\"",
        ),
        (
            registering.replace("\"etcd\"", "\"zoo\""),
            "registry.kind: is \"zoo\"; allowed: \"etcd\"",
        ),
    ];
    for (text, expected) in cases {
        let problem = own(&text).unwrap_err();
        assert!(problem.contains(expected), "{expected}\n{problem}");
    }
}
