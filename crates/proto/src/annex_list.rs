//! Which annexes a service has (docs/registry.md): those of the configuration, and those that have registered.
//!
//! ```text
//!  read ───▶ listed, registered ── not in a read ──▶ listed, gone ── no link and no connection for 60 s ──▶ forgotten
//!                    ▲                                    │
//!                    └───────────────── read ─────────────┘
//! ```
//!
//! The registry says only where an annex may be found. The link says whether it is there. So what the registry says ends no link and no
//! connection, and a registry that cannot be read changes nothing.
//!
//! Each annex has a number in the node's own kernel maps. The numbers outlive the agent, so the caller remembers them in a file. No number
//! goes to another annex while a connection may live at it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Instant;
use crate::annex::ANNEXES_MAX;
use crate::serving::AnnexId;

/// An annex that has left is forgotten when it has had neither a link nor a connection for this time. Longer than any move: a connection that
/// was released may still be on its way to an annex whose link has ended.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// A list that was read longer ago is stale. Three times the time between two reads, and one more second for a slow answer.
const STALE_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of problems that are kept of one read. Anybody who may write to the registry can cause one.
const PROBLEMS_MAX: usize = 16;

/// An annex, as a node remembers it for its next agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedAnnex {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its number in the maps of the node's kernel.
    pub number: u8,
}

/// An annex that a service has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedAnnex {
    /// Its name.
    pub name: String,
    /// Where this node connects.
    pub address: SocketAddr,
    /// Its number in the maps of the node's kernel.
    pub number: u8,
    /// Whether the configuration names it.
    pub is_configured: bool,
    /// Where it listens by its last entry in the registry. `None`: it has none.
    pub registered: Option<SocketAddr>,
    /// When it last had an entry, a link or a connection.
    used_at: Instant,
}

/// How the node uses an annex. The registry does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnexUse {
    /// Its link is there.
    pub is_linked: bool,
    /// The node's kernel or agent has connections at it.
    pub has_connections: bool,
}

/// Conditions for the annexes of a service.
#[derive(Clone, Debug)]
pub struct AnnexTerms {
    /// The pair's nodes, which no annex may be called.
    pub nodes: [String; 2],
    /// The address family of the VIP.
    pub is_ipv4: bool,
    /// Whether annexes may register.
    pub reads_registry: bool,
}

/// The annexes of a service.
#[derive(Clone, Debug)]
pub struct AnnexList {
    terms: AnnexTerms,
    annexes: Vec<ListedAnnex>,
    /// Why annexes of the configuration are not in the list.
    left_out: Vec<String>,
    /// The faults of entries in the last read.
    problems: Vec<String>,
    begun: Instant,
    read_at: Option<Instant>,
}

impl AnnexList {
    /// The list of an agent that starts at `now`. `has_connections` says whether the kernel has connections at a number.
    pub fn new(
        now: Instant,
        terms: AnnexTerms,
        configured: impl IntoIterator<Item = (String, SocketAddr)>,
        remembered: Vec<RememberedAnnex>,
        has_connections: impl Fn(u8) -> bool,
    ) -> Self {
        let mut configured: Vec<_> = configured.into_iter().collect();
        let mut list = Self {
            terms,
            annexes: Vec::new(),
            left_out: Vec::new(),
            problems: Vec::new(),
            begun: now,
            read_at: None,
        };
        for RememberedAnnex {
            name,
            address,
            number,
        } in remembered
        {
            let named = configured.iter().position(|(other, _)| *other == name);
            let address = named.map_or(address, |at| configured.remove(at).1);
            let is_configured = named.is_some();
            if is_configured || list.terms.reads_registry || has_connections(number) {
                list.annexes
                    .push(listed(now, (name, address), number, is_configured));
            }
        }
        for (name, address) in configured {
            match list.free_number().or_else(|| list.give_up_one(&has_connections)) {
                Some(number) => list.annexes.push(listed(now, (name, address), number, true)),
                None => list.left_out.push(format!(
                    "annex {name} of the configuration gets no connections: annexes that the configuration no longer has \
                     have connections, and a service has at most {ANNEXES_MAX} annexes"
                )),
            }
        }
        list
    }

    /// The annexes, in the order in which they came.
    pub fn annexes(&self) -> &[ListedAnnex] {
        &self.annexes
    }

    /// The annex with this number.
    pub fn at(&self, number: u8) -> Option<&ListedAnnex> {
        self.annexes.iter().find(|annex| annex.number == number)
    }

    /// The annexes, as the next agent must know them.
    pub fn remembered(&self) -> Vec<RememberedAnnex> {
        let remember = |annex: &ListedAnnex| RememberedAnnex {
            name: annex.name.clone(),
            address: annex.address,
            number: annex.number,
        };
        self.annexes.iter().map(remember).collect()
    }

    /// Whether annexes may register.
    pub const fn reads_registry(&self) -> bool {
        self.terms.reads_registry
    }

    /// The faults of the configuration and of entries in the registry.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.left_out.iter().chain(&self.problems).map(String::as_str)
    }

    /// Since when the list has not been read, if it is stale: the time of the last read, or of the agent's start.
    pub fn stale_since(&self, now: Instant) -> Option<Instant> {
        let since = self.read_at.unwrap_or(self.begun);
        let is_stale = self.terms.reads_registry && now.since(since) >= STALE_AFTER;
        is_stale.then_some(since)
    }

    /// When the registry was last read.
    pub const fn read_at(&self) -> Option<Instant> {
        self.read_at
    }

    /// The registry was read at `now`: `entries` are the names and addresses of the annexes that serve this service, and `faults` says what is
    /// wrong with other entries.
    pub fn handle_read(
        &mut self,
        now: Instant,
        entries: &[(String, SocketAddr)],
        faults: Vec<String>,
        use_of: impl Fn(&ListedAnnex) -> AnnexUse,
    ) {
        self.read_at = Some(now);
        self.problems = faults;
        let mut annexes = std::mem::take(&mut self.annexes);
        annexes.retain_mut(|annex| {
            let entry = entries.iter().find(|(name, _)| *name == annex.name);
            annex.registered = entry.map(|&(_, address)| address);
            let AnnexUse {
                is_linked,
                has_connections,
            } = use_of(annex);
            self.problems.extend(annex.follow(is_linked || has_connections));
            if annex.registered.is_some() || is_linked || has_connections {
                annex.used_at = now;
            }
            annex.is_configured || now.since(annex.used_at) < FORGET_AFTER
        });
        self.annexes = annexes;
        for (name, address) in entries {
            if self.annexes.iter().all(|annex| annex.name != *name)
                && let Err(problem) = self.add(now, name, *address)
            {
                self.problems.push(format!("annex {name}: {problem}"));
            }
        }
        self.problems.truncate(PROBLEMS_MAX);
    }

    /// Lists an annex that has registered.
    fn add(&mut self, now: Instant, name: &str, address: SocketAddr) -> Result<(), String> {
        if self.terms.nodes.iter().any(|node| node == name) {
            return Err("is a node of the pair; an annex needs a name of its own".to_owned());
        }
        if address.is_ipv4() != self.terms.is_ipv4 {
            return Err(format!("{address} is not of the VIP's address family"));
        }
        let id = AnnexId::of(name);
        if let Some(other) = self.annexes.iter().find(|annex| AnnexId::of(&annex.name) == id) {
            return Err(format!("has the same hash as {}; rename one of them", other.name));
        }
        let is_there = |annex: &&ListedAnnex| {
            annex.address == address && (annex.is_configured || annex.registered.is_some())
        };
        if let Some(other) = self.annexes.iter().find(is_there) {
            return Err(format!("is at {address}, as {}", other.name));
        }
        let number = self
            .free_number()
            .ok_or_else(|| format!("the service has {ANNEXES_MAX} annexes already"))?;
        let mut annex = listed(now, (name.to_owned(), address), number, false);
        annex.registered = Some(address);
        self.annexes.push(annex);
        Ok(())
    }

    fn free_number(&self) -> Option<u8> {
        let all = 0..u8::try_from(ANNEXES_MAX).expect("few");
        let mut free = all.filter(|&number| self.at(number).is_none());
        free.next()
    }

    /// Takes the number of an annex that is not in the configuration and has no connections.
    fn give_up_one(&mut self, has_connections: impl Fn(u8) -> bool) -> Option<u8> {
        let is_idle = |annex: &ListedAnnex| !annex.is_configured && !has_connections(annex.number);
        let at = self.annexes.iter().position(is_idle)?;
        Some(self.annexes.remove(at).number)
    }
}

fn listed(
    now: Instant,
    (name, address): (String, SocketAddr),
    number: u8,
    is_configured: bool,
) -> ListedAnnex {
    ListedAnnex {
        name,
        address,
        number,
        is_configured,
        registered: None,
        used_at: now,
    }
}

impl ListedAnnex {
    /// Follows its entry to another address, if it may. `is_used`: it has a link or connections. Returns why it does not.
    fn follow(&mut self, is_used: bool) -> Option<String> {
        let entry = self.registered.filter(|entry| *entry != self.address)?;
        let (name, address) = (&self.name, self.address);
        if self.is_configured {
            return Some(format!(
                "annex {name}: is registered at {entry}; the address in the configuration, {address}, is used"
            ));
        }
        if is_used {
            return Some(format!(
                "annex {name}: is registered at {entry}; {address} is used while it has a link or connections"
            ));
        }
        self.address = entry;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: AnnexUse = AnnexUse {
        is_linked: false,
        has_connections: false,
    };
    const LINKED: AnnexUse = AnnexUse {
        is_linked: true,
        ..IDLE
    };

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// An annex at the address with this last number.
    fn entry(name: &str, host: u8) -> (String, SocketAddr) {
        (name.to_owned(), SocketAddr::from(([10, 0, 0, host], 7402)))
    }

    fn remembered(name: &str, host: u8, number: u8) -> RememberedAnnex {
        let (name, address) = entry(name, host);
        RememberedAnnex {
            name,
            address,
            number,
        }
    }

    fn terms() -> AnnexTerms {
        AnnexTerms {
            nodes: ["alpha", "beta"].map(str::to_owned),
            is_ipv4: true,
            reads_registry: true,
        }
    }

    fn empty() -> AnnexList {
        AnnexList::new(at(0), terms(), [], Vec::new(), |_| false)
    }

    fn read(list: &mut AnnexList, seconds: u64, entries: &[(String, SocketAddr)], of_all: AnnexUse) {
        list.handle_read(at(seconds), entries, Vec::new(), |_| of_all);
    }

    /// Name, last number of the address, and number of each annex.
    fn known(list: &AnnexList) -> Vec<(&str, String, u8)> {
        let each = list.annexes().iter();
        each.map(|annex| (annex.name.as_str(), annex.address.to_string(), annex.number))
            .collect()
    }

    fn problems(list: &AnnexList) -> Vec<&str> {
        list.problems().collect()
    }

    #[test]
    fn what_registers_is_listed_until_it_has_been_away_and_idle_for_long() {
        let mut list = empty();
        read(&mut list, 1, &[entry("gamma", 4), entry("delta", 5)], IDLE);
        let both = [
            ("gamma", "10.0.0.4:7402".to_owned(), 0),
            ("delta", "10.0.0.5:7402".to_owned(), 1),
        ];
        assert_eq!(known(&list), both);
        read(&mut list, 2, &[entry("delta", 5)], LINKED);
        assert_eq!(list.at(0).unwrap().registered, None);
        read(&mut list, 1000, &[entry("delta", 5)], LINKED);
        assert_eq!(known(&list), both, "a link keeps what has no entry");
        let has_connections = AnnexUse {
            has_connections: true,
            ..IDLE
        };
        read(&mut list, 2000, &[entry("delta", 5)], has_connections);
        read(&mut list, 2059, &[entry("delta", 5)], IDLE);
        assert_eq!(known(&list), both, "connections keep it, and a minute more");
        read(&mut list, 2060, &[entry("delta", 5)], IDLE);
        assert_eq!(known(&list), both[1..]);
    }

    #[test]
    fn a_number_stays_with_its_annex_over_a_return_and_over_agents() {
        let mut list = empty();
        read(&mut list, 1, &[entry("gamma", 4), entry("delta", 5)], IDLE);
        read(&mut list, 2, &[entry("delta", 5), entry("eta", 6)], IDLE);
        assert_eq!(list.at(0).unwrap().name, "gamma", "its number is not free yet");
        assert_eq!(list.at(2).unwrap().name, "eta");
        read(
            &mut list,
            30,
            &[entry("gamma", 4), entry("delta", 5), entry("eta", 6)],
            IDLE,
        );
        let again = AnnexList::new(at(40), terms(), [], list.remembered(), |_| false);
        assert_eq!(
            known(&again),
            known(&list),
            "the next agent knows them before it reads the registry"
        );
        let mut again = again;
        read(&mut again, 41, &[entry("eta", 6), entry("delta", 5)], IDLE);
        read(&mut again, 100, &[entry("eta", 6), entry("theta", 7)], IDLE);
        read(&mut again, 100, &[entry("iota", 8)], IDLE);
        let names: Vec<_> = (0..4)
            .map(|number| again.at(number).map(|it| it.name.as_str()))
            .collect();
        assert_eq!(names, [Some("theta"), Some("delta"), Some("eta"), Some("iota")]);
    }

    #[test]
    fn a_configured_annex_keeps_its_address_and_its_place() {
        let configured = [entry("gamma", 4)];
        let mut list = AnnexList::new(at(0), terms(), configured, Vec::new(), |_| false);
        read(&mut list, 1, &[entry("gamma", 9)], IDLE);
        assert_eq!(known(&list), [("gamma", "10.0.0.4:7402".to_owned(), 0)]);
        assert_eq!(
            problems(&list),
            [
                "annex gamma: is registered at 10.0.0.9:7402; the address in the configuration, 10.0.0.4:7402, is used"
            ]
        );
        read(&mut list, 2, &[entry("gamma", 4)], IDLE);
        assert!(
            problems(&list).is_empty(),
            "the configuration and the registry agree"
        );
        read(&mut list, 1000, &[], IDLE);
        assert_eq!(list.annexes().len(), 1, "the configuration alone is enough");
    }

    #[test]
    fn an_entry_moves_no_link_and_no_connection() {
        let mut list = empty();
        read(&mut list, 1, &[entry("gamma", 4)], IDLE);
        let has_connections = AnnexUse {
            has_connections: true,
            ..IDLE
        };
        for used in [LINKED, has_connections] {
            read(&mut list, 2, &[entry("gamma", 9)], used);
            assert_eq!(known(&list), [("gamma", "10.0.0.4:7402".to_owned(), 0)]);
            assert_eq!(
                problems(&list),
                [
                    "annex gamma: is registered at 10.0.0.9:7402; 10.0.0.4:7402 is used while it has a link or connections"
                ]
            );
        }
        read(&mut list, 3, &[entry("gamma", 9)], IDLE);
        assert_eq!(known(&list), [("gamma", "10.0.0.9:7402".to_owned(), 0)]);
        assert!(problems(&list).is_empty());
    }

    #[test]
    fn entries_that_cannot_be_used_are_named() {
        let mut list = empty();
        let many: Vec<_> = (0..9).map(|host| entry(&format!("g{host}"), 10 + host)).collect();
        read(&mut list, 1, &many, IDLE);
        assert_eq!(list.annexes().len(), ANNEXES_MAX);
        assert_eq!(problems(&list), ["annex g8: the service has 8 annexes already"]);
        let mut list = empty();
        let v6 = ("eta".to_owned(), "[2001:db8::4]:7402".parse().unwrap());
        read(
            &mut list,
            1,
            &[entry("beta", 4), v6, entry("gamma", 5), entry("delta", 5)],
            IDLE,
        );
        assert_eq!(known(&list), [("gamma", "10.0.0.5:7402".to_owned(), 0)]);
        assert_eq!(
            problems(&list),
            [
                "annex beta: is a node of the pair; an annex needs a name of its own",
                "annex eta: [2001:db8::4]:7402 is not of the VIP's address family",
                "annex delta: is at 10.0.0.5:7402, as gamma",
            ]
        );
        read(&mut list, 2, &[entry("delta", 5)], IDLE);
        assert_eq!(list.at(1).unwrap().name, "delta", "gamma has another name now");
        let mut list = empty();
        read(&mut list, 1, &[entry("liquid", 4), entry("costarring", 5)], IDLE);
        assert_eq!(
            problems(&list),
            ["annex costarring: has the same hash as liquid; rename one of them"]
        );
        let faults = (0..99).map(|fault| fault.to_string()).collect();
        list.handle_read(at(2), &[], faults, |_| IDLE);
        assert_eq!(problems(&list).len(), PROBLEMS_MAX);
    }

    #[test]
    fn the_configuration_comes_before_what_was_registered() {
        let eight: Vec<_> = (0..8)
            .map(|number| remembered(&format!("g{number}"), 10 + number, number))
            .collect();
        let list = AnnexList::new(at(0), terms(), [entry("eta", 4)], eight.clone(), |number| {
            number != 3
        });
        assert_eq!(list.at(3).unwrap().name, "eta");
        assert_eq!(list.annexes().len(), ANNEXES_MAX);
        let list = AnnexList::new(at(0), terms(), [entry("eta", 4)], eight, |_| true);
        assert!(
            list.annexes().iter().all(|annex| annex.name != "eta"),
            "every number has connections"
        );
        assert!(problems(&list)[0].starts_with("annex eta of the configuration gets no connections"));
    }

    #[test]
    fn without_a_registry_the_configuration_is_the_list_and_what_has_connections_stays() {
        let terms = AnnexTerms {
            reads_registry: false,
            ..terms()
        };
        let old = vec![
            remembered("gamma", 4, 0),
            remembered("delta", 5, 1),
            remembered("eta", 6, 2),
        ];
        let configured = [entry("theta", 7), entry("delta", 8)];
        let list = AnnexList::new(at(0), terms, configured, old, |number| number == 0);
        let expected = [
            ("gamma", "10.0.0.4:7402".to_owned(), 0),
            ("delta", "10.0.0.8:7402".to_owned(), 1),
            ("theta", "10.0.0.7:7402".to_owned(), 2),
        ];
        assert_eq!(known(&list), expected);
        assert_eq!(list.stale_since(at(1000)), None);
    }

    #[test]
    fn a_list_that_is_not_read_is_stale_and_stays() {
        let mut list = empty();
        assert_eq!(list.stale_since(at(9)), None);
        assert_eq!(list.stale_since(at(10)), Some(at(0)), "never read");
        read(&mut list, 11, &[entry("gamma", 4)], IDLE);
        assert_eq!(list.stale_since(at(20)), None);
        assert_eq!(list.stale_since(at(21)), Some(at(11)));
        assert_eq!(list.annexes().len(), 1);
    }
}
