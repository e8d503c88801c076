//! The entry of an annex in etcd: its form, its tag, and how a node of a pair reads it.
//!
//! The tag shows that the writer has the pair's key. A user of etcd without the key can delete an entry or store an old one again, but cannot
//! lead a node to another address.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use hmac::{Hmac, KeyInit, Mac};
use proto::follower::RestartPolicy;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::config::{AnnexFile, NAME, SecretKey, is_name};

/// The form of the entries. A reader refuses every other one.
const VERSION: u32 = 1;
/// The use of the tag. No other tag that is made with the same key can be used here.
const PURPOSE: &[u8] = b"steadfast annex entry";
/// Largest size of an entry in bytes. One with hundreds of services is smaller.
const VALUE_MAX: usize = 64 << 10;

/// The directory of the keys in `cluster`.
pub fn directory(cluster: &str) -> String {
    format!("/{cluster}/annexes/")
}

/// The entry of an annex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnnexEntry {
    version: u32,
    /// Where it listens for the pair's nodes.
    pub address: SocketAddr,
    /// Its services.
    pub services: Vec<RegisteredService>,
}

/// A service of an [`AnnexEntry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredService {
    /// Its name on the annex.
    pub name: String,
    /// The VIP.
    pub address: SocketAddr,
    /// How its application goes on with a connection that moves there.
    pub policy: RestartPolicy,
}

/// An entry as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct SignedEntry {
    #[serde(flatten)]
    entry: serde_json::Map<String, serde_json::Value>,
    /// HMAC-SHA256 over the cluster, the name and the entry, in hexadecimal digits.
    tag: String,
}

/// The part of an entry that all versions have.
#[derive(Deserialize)]
struct EntryVersion {
    version: u32,
}

impl AnnexEntry {
    /// The entry of the annex with this file. The pair's nodes reach it at `address`.
    pub fn of(file: &AnnexFile, address: SocketAddr) -> Self {
        let services = file.services.iter().map(|service| RegisteredService {
            name: service.name.clone(),
            address: service.vip,
            policy: service.policy,
        });
        Self {
            version: VERSION,
            address,
            services: services.collect(),
        }
    }

    /// The text to store for the annex `name` of `cluster`.
    pub fn sign(&self, key: &SecretKey, cluster: &str, name: &str) -> String {
        let serde_json::Value::Object(entry) = serde_json::to_value(self).expect("it has a JSON form") else {
            unreachable!("a struct is an object");
        };
        let tag = self.tag(key, (cluster, name)).finalize().into_bytes();
        let tag = tag.iter().fold(String::new(), |mut digits, byte| {
            write!(digits, "{byte:02x}").expect("a string takes all");
            digits
        });
        serde_json::to_string(&SignedEntry { entry, tag }).expect("it has a JSON form")
    }

    fn tag(&self, key: &SecretKey, (cluster, name): (&str, &str)) -> Hmac<Sha256> {
        let entry = serde_json::to_vec(self).expect("it has a JSON form");
        let mut mac = Hmac::<Sha256>::new_from_slice(key.bytes()).expect("any length is a key");
        for part in [PURPOSE, cluster.as_bytes(), name.as_bytes(), &entry] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

/// An entry that was read, and whose tag was not checked yet.
#[derive(Debug)]
pub struct ReadEntry {
    /// The entry itself.
    pub entry: AnnexEntry,
    tag: String,
}

impl ReadEntry {
    /// Reads what is stored under a key.
    ///
    /// # Errors
    /// Its fault.
    pub fn parse(value: &[u8]) -> Result<Self, String> {
        if value.len() > VALUE_MAX {
            return Err(format!("has {} bytes; allowed: at most {VALUE_MAX}", value.len()));
        }
        let malformed = |error: serde_json::Error| format!("is malformed: {error}");
        let EntryVersion { version } = serde_json::from_slice(value).map_err(malformed)?;
        if version != VERSION {
            return Err(format!(
                "has version {version}, but this node reads version {VERSION}"
            ));
        }
        let SignedEntry { entry, tag } = serde_json::from_slice(value).map_err(malformed)?;
        let entry: AnnexEntry = serde_json::from_value(entry.into()).map_err(malformed)?;
        let (ip, port) = (entry.address.ip(), entry.address.port());
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || port == 0 {
            return Err(format!(
                "has the address {}, at which no annex can be",
                entry.address
            ));
        }
        Ok(Self { entry, tag })
    }

    /// Whether the annex `name` of `cluster` with this key has written it.
    fn is_signed(&self, key: &SecretKey, place: (&str, &str)) -> bool {
        let digit = |at: usize| char::from(self.tag.as_bytes()[at]).to_digit(16);
        let byte = |at| Some(u8::try_from(digit(at)? << 4 | digit(at + 1)?).expect("two digits"));
        let tag: Option<Vec<u8>> = match self.tag.len() {
            64 => (0..64).step_by(2).map(byte).collect(),
            _ => None,
        };
        tag.is_some_and(|tag| self.entry.tag(key, place).verify_slice(&tag).is_ok())
    }
}

/// A service that wants annexes.
#[derive(Clone, Debug)]
pub struct EntryWish {
    /// The cluster.
    pub cluster: String,
    /// The service's name, for people.
    pub service: String,
    /// The VIP.
    pub vip: SocketAddr,
    /// The service's policy.
    pub policy: RestartPolicy,
    /// The pair's key.
    pub key: SecretKey,
}

/// The annexes of one service, as etcd has them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FoundAnnexes {
    /// Names and addresses.
    pub annexes: Vec<(String, SocketAddr)>,
    /// The faults of other entries. Each text begins with the key.
    pub faults: Vec<String>,
}

impl EntryWish {
    /// Finds the annexes of the service in `values`, which has what is stored for each annex by name.
    pub fn find(&self, values: &BTreeMap<String, Vec<u8>>) -> FoundAnnexes {
        let mut found = FoundAnnexes::default();
        for (name, value) in values {
            match self.judge(name, value) {
                Ok(Some(address)) => found.annexes.push((name.clone(), address)),
                Ok(None) => {}
                Err(fault) => {
                    let directory = directory(&self.cluster);
                    found
                        .faults
                        .push(format!("{directory}{}: {fault}", name.escape_debug()));
                }
            }
        }
        found
    }

    /// The address of the annex `name`. `None`: it does not serve this service.
    fn judge(&self, name: &str, value: &[u8]) -> Result<Option<SocketAddr>, String> {
        if !is_name(name) {
            return Err(format!("is no name of an annex; allowed: {NAME}"));
        }
        let read = ReadEntry::parse(value)?;
        let services = &read.entry.services;
        let Some(served) = services.iter().find(|service| service.address == self.vip) else {
            return match services.iter().find(|service| service.name == self.service) {
                Some(other) => Err(format!(
                    "serves {} at {}, but this node has it at {}",
                    self.service, other.address, self.vip
                )),
                None => Ok(None),
            };
        };
        if !read.is_signed(&self.key, (&self.cluster, name)) {
            return Err("has no valid tag: its writer does not have this pair's key".to_owned());
        }
        let exports = |policy| policy == RestartPolicy::Snapshot;
        if exports(served.policy) != exports(self.policy) {
            return Err(format!(
                "serves {} with policy {}, but this node has policy {}",
                self.service, served.policy, self.policy
            ));
        }
        Ok(Some(read.entry.address))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key(digits: &str) -> SecretKey {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(digits.repeat(32).as_bytes()).unwrap();
        let secret = std::fs::Permissions::from_mode(0o600);
        file.as_file().set_permissions(secret).unwrap();
        SecretKey::read(file.path()).unwrap()
    }

    fn entry() -> AnnexEntry {
        let service = |name: &str, address: &str| RegisteredService {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            policy: RestartPolicy::Http,
        };
        AnnexEntry {
            version: VERSION,
            address: "10.0.0.4:7402".parse().unwrap(),
            services: vec![service("web", "10.0.0.100:80"), service("mail", "10.0.0.101:25")],
        }
    }

    fn wish() -> EntryWish {
        EntryWish {
            cluster: "steadfast".to_owned(),
            service: "web".to_owned(),
            vip: "10.0.0.100:80".parse().unwrap(),
            policy: RestartPolicy::Replay,
            key: key("ab"),
        }
    }

    fn find(wish: &EntryWish, name: &str, value: &str) -> Result<Option<SocketAddr>, String> {
        wish.judge(name, value.as_bytes())
    }

    #[test]
    fn an_entry_is_found_by_its_service() {
        let text = entry().sign(&key("ab"), "steadfast", "gamma");
        assert!(text.starts_with(r#"{"address":"10.0.0.4:7402","#), "{text}");
        assert_eq!(find(&wish(), "gamma", &text), Ok(Some(entry().address)));
        let mut other = wish();
        (other.vip, other.service) = ("10.0.0.9:80".parse().unwrap(), "shop".to_owned());
        assert_eq!(
            find(&other, "gamma", &text),
            Ok(None),
            "another pair's annex is no fault"
        );
    }

    #[test]
    fn an_entry_is_its_annexs_alone() {
        let text = entry().sign(&key("ab"), "steadfast", "gamma");
        let refused = Err("has no valid tag: its writer does not have this pair's key".to_owned());
        assert_eq!(find(&wish(), "delta", &text), refused, "another annex's entry");
        assert_eq!(
            find(&wish(), "gamma", &text.replace("10.0.0.4", "10.0.0.9")),
            refused
        );
        assert_eq!(find(&wish(), "gamma", &text.replace(":25", ":26")), refused);
        let other_key = entry().sign(&key("cd"), "steadfast", "gamma");
        assert_eq!(find(&wish(), "gamma", &other_key), refused);
        let other_cluster = entry().sign(&key("ab"), "other", "gamma");
        assert_eq!(find(&wish(), "gamma", &other_cluster), refused);
        for tag in ["", "ab", &"zz".repeat(32), &"é".repeat(32)] {
            let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
            value["tag"] = tag.into();
            assert_eq!(find(&wish(), "gamma", &value.to_string()), refused, "{tag}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_entry_is_said() {
        let text = entry().sign(&key("ab"), "steadfast", "gamma");
        let fault = |text: &str| find(&wish(), "gamma", text).unwrap_err();
        assert!(fault("{").starts_with("is malformed: EOF"), "{}", fault("{"));
        assert!(fault("{}").contains("missing field `version`"));
        assert!(fault("[1]").starts_with("is malformed"));
        let version = text.replace("\"version\":1", "\"version\":2");
        assert_eq!(fault(&version), "has version 2, but this node reads version 1");
        let unknown = text.replace("\"version\"", "\"mood\":1,\"version\"");
        assert!(
            fault(&unknown).contains("unknown field `mood`"),
            "{}",
            fault(&unknown)
        );
        for address in ["0.0.0.0:7402", "127.0.0.1:7402", "10.0.0.4:0", "224.0.0.1:7402"] {
            let expected = format!("has the address {address}, at which no annex can be");
            assert_eq!(fault(&text.replace("10.0.0.4:7402", address)), expected);
        }
        assert_eq!(
            fault(&text.replace("10.0.0.100:80", "10.0.0.9:80")),
            "serves web at 10.0.0.9:80, but this node has it at 10.0.0.100:80"
        );
        let mut exporting = wish();
        exporting.policy = RestartPolicy::Snapshot;
        assert_eq!(
            find(&exporting, "gamma", &text).unwrap_err(),
            "serves web with policy http, but this node has policy snapshot"
        );
        let large = " ".repeat(VALUE_MAX) + &text;
        assert!(fault(&large).ends_with("allowed: at most 65536"));
    }

    #[test]
    fn a_fault_names_its_key_and_others_go_on() {
        let value = |name: &str| entry().sign(&key("ab"), "steadfast", name).into_bytes();
        let values = ["gamma", "a/b", "x\n"].map(|name| (name.to_owned(), value(name)));
        let found = wish().find(&values.into());
        assert_eq!(found.annexes, [("gamma".to_owned(), entry().address)]);
        let name =
            "is no name of an annex; allowed: 1 to 32 letters, digits, - and _, beginning with a letter";
        assert_eq!(
            found.faults,
            [
                format!("/steadfast/annexes/a/b: {name}"),
                format!("/steadfast/annexes/x\\n: {name}")
            ]
        );
    }

    /// A fuzz target (docs/fuzzing.md).
    #[test]
    fn any_bytes_are_an_entry_or_an_error() {
        fuzz::target!("annex_entries", |input| {
            if let Ok(read) = ReadEntry::parse(input) {
                let text = serde_json::to_vec(&read.entry).expect("it has a JSON form");
                let again: AnnexEntry = serde_json::from_slice(&text).expect("as before");
                assert_eq!(again, read.entry, "the tag is over what was written");
            }
        });
    }
}
