//! The lists of annexes of a node's services (`proto::annex_list`), and the file that remembers them for the next agent.
//!
//! The file is in the state directory of the agent, beside the pinned maps that have the annexes' numbers. Each node gives its own numbers,
//! because they mean something in its own kernel only: nodes tell each other names.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use linux::wire::Wire;
use proto::action::ServiceIndex;
use proto::annex::{ANNEXES_MAX, AnnexId};
use proto::annex_list::{AnnexList, AnnexTerms, AnnexUse, ListedAnnex, RememberedAnnex};

use crate::arbiter::AnnexEntries;
use crate::config::{ArbiterSettings, Config, SecretKey, ServiceSettings};
use crate::registry::entry::{EntryWish, FoundAnnexes};

/// The annexes of each service, by its VIP.
type RememberedAnnexes = BTreeMap<SocketAddr, Vec<RememberedAnnex>>;

fn file_in(state_dir: &Path) -> PathBuf {
    state_dir.join("annexes.json")
}

/// Removes what an agent remembers. The caller has removed the wire.
///
/// # Errors
/// If the file cannot be removed.
pub fn forget(state_dir: &Path) -> io::Result<()> {
    match fs::remove_file(file_in(state_dir)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads what the earlier agent has remembered.
fn remembered(state_dir: &Path) -> anyhow::Result<RememberedAnnexes> {
    let file = file_in(state_dir);
    let text = match fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RememberedAnnexes::new()),
        read => read.with_context(|| format!("reading {}", file.display()))?,
    };
    let services: RememberedAnnexes = serde_json::from_slice(&text)
        .ok()
        .filter(are_sound)
        .with_context(|| format!("{} is malformed; run `steadfast cleanup` first", file.display()))?;
    Ok(services)
}

/// Whether no two annexes of a service have the same number or the same name.
fn are_sound(services: &RememberedAnnexes) -> bool {
    services.values().all(|annexes| {
        let is_sound = |(at, annex): (usize, &RememberedAnnex)| {
            let is_same = |other: &RememberedAnnex| {
                other.number == annex.number || AnnexId::of(&other.name) == AnnexId::of(&annex.name)
            };
            usize::from(annex.number) < ANNEXES_MAX && !annexes[..at].iter().any(is_same)
        };
        annexes.iter().enumerate().all(is_sound)
    })
}

/// Remembers for the next agent. After a failure, the file is as it was.
fn remember(state_dir: &Path, services: &RememberedAnnexes) -> anyhow::Result<()> {
    let file = file_in(state_dir);
    let new = file.with_extension("new");
    let text = serde_json::to_vec(services).expect("it has a JSON form");
    fs::write(&new, text).with_context(|| format!("writing {}", new.display()))?;
    fs::rename(&new, &file).with_context(|| format!("replacing {}", file.display()))
}

/// Whether a service may have annexes.
pub fn has_annexes(service: &ServiceSettings) -> bool {
    !service.annexes.is_empty() || service.registered_annexes
}

fn vip(service: &ServiceSettings) -> SocketAddr {
    (service.address, service.port).into()
}

/// The lists of all services, for an agent that starts.
fn lists(config: &Config, wire: &Wire) -> anyhow::Result<Vec<AnnexList>> {
    let mut remembered = remembered(&config.node.state_dir)?;
    let list = |(index, service): (ServiceIndex, &ServiceSettings)| {
        let used: Vec<u8> = wire
            .annexed(index)
            .into_iter()
            .map(|(_, number)| number)
            .collect();
        let terms = AnnexTerms {
            nodes: [config.node.name.clone(), config.peer.name.clone()],
            is_ipv4: service.address.is_ipv4(),
            reads_registry: service.registered_annexes,
        };
        let configured = service
            .annexes
            .iter()
            .map(|annex| (annex.name.clone(), annex.address));
        let remembered = remembered.remove(&vip(service)).unwrap_or_default();
        AnnexList::new(linux::clock::now(), terms, configured, remembered, |number| {
            used.contains(&number)
        })
    };
    Ok((0..).zip(&config.services).map(list).collect())
}

/// The clients whose connections an earlier agent has guided to annexes, each with the annex, for each service.
///
/// # Errors
/// If the file with the annexes' numbers cannot be read.
pub fn guided_to_annexes(config: &Config, wire: &Wire) -> anyhow::Result<Vec<Vec<(SocketAddr, AnnexId)>>> {
    let guided = (0..).zip(lists(config, wire)?).map(|(index, list)| {
        let named = wire.annexed(index).into_iter().filter_map(|(client, number)| {
            let annex = list.at(number);
            if annex.is_none() {
                tracing::error!(%client, number, "nothing says which annex has this number; the connection is lost");
            }
            Some((client, AnnexId::of(&annex?.name)))
        });
        named.collect()
    });
    Ok(guided.collect())
}

/// The lists of a running agent.
#[derive(Default)]
pub struct AnnexLists {
    lists: Vec<AnnexList>,
    vips: Vec<SocketAddr>,
    /// Entries that services look for in the registry.
    wishes: Vec<Option<EntryWish>>,
    state_dir: PathBuf,
    /// The last entries that were taken over.
    taken: Option<Arc<AnnexEntries>>,
    /// Why the last change of a list was not made.
    error: Option<String>,
}

impl AnnexLists {
    /// The lists with which an agent starts, whose links have this key.
    ///
    /// # Errors
    /// If the file with the annexes' numbers cannot be read or written.
    pub fn open(config: &Config, wire: &Wire, key: &SecretKey) -> anyhow::Result<Self> {
        let wish = |service: &ServiceSettings| match &config.arbiter {
            ArbiterSettings::Witness(etcd) if service.registered_annexes => Some(EntryWish {
                cluster: etcd.cluster.clone(),
                service: service.name.clone(),
                vip: vip(service),
                policy: service.policy,
                key: key.clone(),
            }),
            ArbiterSettings::Witness(_) | ArbiterSettings::Fence(_) | ArbiterSettings::FailStop => None,
        };
        let opened = Self {
            lists: lists(config, wire)?,
            vips: config.services.iter().map(vip).collect(),
            wishes: config.services.iter().map(wish).collect(),
            state_dir: config.node.state_dir.clone(),
            taken: None,
            error: None,
        };
        for problem in opened.lists.iter().flat_map(AnnexList::problems) {
            tracing::error!("{problem}");
        }
        remember(&opened.state_dir, &opened.remembered(&opened.lists))?;
        Ok(opened)
    }

    fn remembered(&self, lists: &[AnnexList]) -> RememberedAnnexes {
        let each = self.vips.iter().zip(lists);
        each.map(|(vip, list)| (*vip, list.remembered())).collect()
    }

    /// The list of a service. `None`: no service has annexes.
    pub fn of(&self, service: ServiceIndex) -> Option<&AnnexList> {
        self.lists.get(usize::from(service))
    }

    /// All lists.
    pub fn all(&self) -> impl Iterator<Item = (ServiceIndex, &AnnexList)> {
        (0..).zip(&self.lists)
    }

    /// Why the last change of a list was not made.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Takes over what was read, if it is new. Returns whether the lists may have changed.
    pub fn take(
        &mut self,
        entries: &Arc<AnnexEntries>,
        use_of: impl Fn(ServiceIndex, &ListedAnnex) -> AnnexUse,
    ) -> bool {
        if self
            .taken
            .as_ref()
            .is_some_and(|taken| Arc::ptr_eq(taken, entries))
        {
            return false;
        }
        self.taken = Some(Arc::clone(entries));
        let mut lists = self.lists.clone();
        for ((index, list), wish) in (0..).zip(&mut lists).zip(&self.wishes) {
            let Some(wish) = wish else { continue };
            let FoundAnnexes { annexes, faults } = wish.find(&entries.values);
            list.handle_read(entries.read_at, &annexes, faults, |annex| use_of(index, annex));
        }
        // The next agent must know the number of an annex before a connection goes there.
        let remembered = self.remembered(&lists);
        let is_kept = remembered == self.remembered(&self.lists);
        let outcome = if is_kept {
            Ok(())
        } else {
            remember(&self.state_dir, &remembered)
        };
        self.error = outcome.err().map(|error| format!("{error:#}"));
        if let Some(error) = &self.error {
            tracing::error!(
                error,
                "the list of annexes stays as it was, because it cannot be remembered"
            );
            return false;
        }
        for (before, now) in self.lists.iter().zip(&lists) {
            tell_changes(before, now);
        }
        self.lists = lists;
        true
    }
}

/// Logs what is new in a list.
fn tell_changes(before: &AnnexList, now: &AnnexList) {
    let of = |list: &AnnexList, name: &str| {
        let mut annexes = list.annexes().iter();
        annexes.find(|annex| annex.name == name).cloned()
    };
    for annex in now.annexes() {
        let entry = of(before, &annex.name).and_then(|before| before.registered);
        match annex.registered {
            Some(address) if entry != annex.registered => {
                tracing::info!(annex = annex.name, %address, "an annex is registered");
            }
            None if entry.is_some() => {
                tracing::warn!(
                    annex = annex.name,
                    "an annex is not registered any more; its link stays"
                );
            }
            Some(_) | None => {}
        }
    }
    for gone in before
        .annexes()
        .iter()
        .filter(|annex| of(now, &annex.name).is_none())
    {
        tracing::info!(annex = gone.name, "an annex that has left is forgotten");
    }
    let known: Vec<_> = before.problems().collect();
    for problem in now.problems().filter(|problem| !known.contains(problem)) {
        tracing::warn!(problem, "an entry of the registry of annexes is not followed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_read_back_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(remembered(folder.path()).unwrap(), RememberedAnnexes::new());
        let annex = |name: &str, number| RememberedAnnex {
            name: name.to_owned(),
            address: "10.0.0.4:7402".parse().unwrap(),
            number,
        };
        let services = |annexes: &[RememberedAnnex]| {
            RememberedAnnexes::from([("10.0.0.100:80".parse().unwrap(), annexes.to_vec())])
        };
        let sound = services(&[annex("gamma", 7), annex("delta", 0)]);
        remember(folder.path(), &sound).unwrap();
        assert_eq!(remembered(folder.path()).unwrap(), sound);
        for wrong in [
            &[annex("gamma", 8)][..],
            &[annex("gamma", 1), annex("delta", 1)],
            &[annex("gamma", 1), annex("gamma", 2)],
        ] {
            remember(folder.path(), &services(wrong)).unwrap();
            let error = remembered(folder.path()).unwrap_err().to_string();
            assert!(
                error.ends_with("annexes.json is malformed; run `steadfast cleanup` first"),
                "{error}"
            );
        }
        forget(folder.path()).unwrap();
        forget(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
