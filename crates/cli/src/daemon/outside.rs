//! Asks outside hosts through the services' interfaces, to learn whether clients could reach this node.
//!
//! Services that have the same interface and the same hosts share their questions. So a gateway gets as many questions for sixty services
//! as for one. When a host answers, the node gets the time of the question. The node decides whether the answer counts for a service.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use agent::Core;
use linux::network;
use linux::probe::OutsideHosts;
use proto::Instant;
use proto::action::ServiceIndex;
use proto::service::ServiceInput;

use crate::config::Config;

/// Time within which several services share a question.
const SHARED: Duration = Duration::from_millis(5);
/// Shortest time between two searches for hosts to ask.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Silence of all gateways after which the routes are read again. Longer than the pauses of a router that limits the rate of its answers.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Number of questions whose times are remembered. They cover half a second, at one question every [`SHARED`].
const QUESTIONS_MAX: usize = 100;

/// The outside hosts of all services.
pub struct OutsideProbes {
    routes: Vec<Route>,
}

/// An interface, and the hosts that are asked through it.
struct Route {
    interface: String,
    is_v4: bool,
    /// The configured hosts. If there are none, the gateways are asked.
    configured: Vec<IpAddr>,
    /// The peer, which is not an outside host. For IPv6, `/proc` lists the peer as a gateway too, because of the route through its wire.
    peer: IpAddr,
    services: Vec<ServiceIndex>,
    /// When hosts were looked for last.
    looked: Option<Instant>,
    /// `None` if there is no host to ask.
    hosts: Option<Hosts>,
}

/// Hosts that are asked.
struct Hosts {
    sockets: OutsideHosts,
    addresses: Vec<IpAddr>,
    /// Index of the interface that the sockets are bound to.
    interface: u32,
    /// When a host last answered, or when the sockets were opened if no host has answered yet.
    heard: Instant,
    questions: Questions,
}

/// When the last questions were asked.
#[derive(Default)]
struct Questions {
    /// Number of questions asked so far.
    count: u32,
    /// The times of the last [`QUESTIONS_MAX`] questions.
    asked: VecDeque<Instant>,
}

impl Questions {
    /// Whether the last question is recent enough at `now` for a service to share it. Only questions asked at `since`
    /// or later count for this service.
    fn do_for(&self, now: Instant, since: Option<Instant>) -> bool {
        let does = |at: Instant| now.since(at) < SHARED && since.is_none_or(|since| at >= since);
        self.asked.back().copied().is_some_and(does)
    }

    fn on_asked(&mut self, now: Instant) {
        self.count = self.count.wrapping_add(1);
        self.asked.push_back(now);
        if self.asked.len() > QUESTIONS_MAX {
            self.asked.pop_front();
        }
    }

    /// When the question with this number, counted from 1, was asked. `None` if that is too long ago.
    fn asked_at(&self, number: u32) -> Option<Instant> {
        let age = usize::try_from(self.count.wrapping_sub(number)).ok()?;
        let newest = self.asked.len().checked_sub(1)?;
        self.asked.get(newest.checked_sub(age)?).copied()
    }
}

impl OutsideProbes {
    /// The outside hosts of all services. Asks none of them yet.
    pub fn new(config: &Config) -> Self {
        let mut routes: Vec<Route> = Vec::new();
        for (index, service) in (0..).zip(&config.services) {
            let is_v4 = service.address.is_ipv4();
            let is_same = |route: &&mut Route| {
                route.interface == service.interface
                    && route.is_v4 == is_v4
                    && route.configured == service.claim_ping
                    && route.peer == service.peer_address
            };
            match routes.iter_mut().find(is_same) {
                Some(route) => route.services.push(index),
                None => routes.push(Route {
                    interface: service.interface.clone(),
                    is_v4,
                    configured: service.claim_ping.clone(),
                    peer: service.peer_address,
                    services: vec![index],
                    looked: None,
                    hosts: None,
                }),
            }
        }
        Self { routes }
    }

    /// Asks on behalf of a service. A question from before `since` does not count. Returns false if there is no host to
    /// ask.
    pub fn ask(&mut self, service: ServiceIndex, since: Option<Instant>) -> bool {
        let mut routes = self.routes.iter_mut();
        let route = routes.find(|route| route.services.contains(&service));
        route.is_some_and(|route| route.ask(linux::clock::now(), since))
    }

    /// Tells the node which services' hosts have answered.
    pub fn look(&mut self, node: &mut Core) {
        for route in &mut self.routes {
            let Some(hosts) = &mut route.hosts else { continue };
            let now = linux::clock::now();
            let Some(asked) = hosts.answered(now) else {
                continue;
            };
            for &service in &route.services {
                node.handle(now, service, ServiceInput::Outside { asked });
            }
        }
    }
}

impl Route {
    /// Asks, unless a recent question can be shared. Returns whether there is a host to ask.
    fn ask(&mut self, now: Instant, since: Option<Instant>) -> bool {
        let index = nix::net::if_::if_nametoindex(self.interface.as_str()).ok();
        if self.looks(now, index) {
            self.look_for_hosts(now, index);
        }
        let Some(hosts) = &mut self.hosts else {
            return false;
        };
        if hosts.questions.do_for(now, since) {
            return true;
        }
        hosts.questions.on_asked(now);
        if let Err(error) = hosts.sockets.ask() {
            tracing::trace!(%error, interface = self.interface, "outside hosts not asked"); // expected while the cable is unplugged
        }
        true
    }

    /// Whether to look for hosts now. There are three reasons: no hosts are known, the interface's index has changed to `index`, or the
    /// gateways have been silent for long and may have been replaced.
    fn looks(&self, now: Instant, index: Option<u32>) -> bool {
        let is_time = self.looked.is_none_or(|at| now.since(at) >= LOOK_AGAIN);
        let is_stale = |hosts: &Hosts| {
            let is_silent = now.since(hosts.heard) >= SILENCE_MAX;
            index != Some(hosts.interface) || (self.configured.is_empty() && is_silent)
        };
        is_time && self.hosts.as_ref().is_none_or(is_stale)
    }

    fn look_for_hosts(&mut self, now: Instant, index: Option<u32>) {
        let is_first = self.looked.replace(now).is_none();
        let interface = &self.interface;
        match self.open(now, index) {
            Ok(Some(hosts)) => {
                if !is_first {
                    tracing::info!(interface, hosts = ?hosts.addresses, "outside hosts are asked through new sockets");
                }
                self.hosts = Some(hosts);
            }
            Ok(None) => {}
            Err(error) if is_first || self.hosts.is_some() => {
                tracing::warn!(%error, interface, "outside hosts cannot be asked: a broken path is noticed late, or not at all");
            }
            Err(_) => {}
        }
    }

    /// Opens sockets to the hosts. `None` if the current sockets should stay: they are right already, or no interface or no host was found.
    /// A gateway whose route is gone may come back with the cable.
    fn open(&self, now: Instant, index: Option<u32>) -> anyhow::Result<Option<Hosts>> {
        let mut addresses = self.configured.clone();
        if addresses.is_empty() {
            addresses = network::gateways(&self.interface)?;
            addresses.retain(|host| *host != self.peer);
        }
        addresses.retain(|host| host.is_ipv4() == self.is_v4);
        let is_asked = |hosts: &Hosts| hosts.addresses == addresses && Some(hosts.interface) == index;
        let Some(interface) = index else { return Ok(None) };
        if addresses.is_empty() || self.hosts.as_ref().is_some_and(is_asked) {
            return Ok(None);
        }
        Ok(Some(Hosts {
            sockets: OutsideHosts::through(&self.interface, &addresses)?,
            addresses,
            interface,
            heard: now,
            questions: Questions::default(),
        }))
    }
}

impl Hosts {
    /// The time of the newest question that was answered since the last call.
    fn answered(&mut self, now: Instant) -> Option<Instant> {
        let asked = self
            .sockets
            .answered()
            .and_then(|number| self.questions.asked_at(number))?;
        self.heard = now;
        Some(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_question_of_before_a_suspicion_is_not_shared() {
        let mut questions = Questions::default();
        assert!(!questions.do_for(at(100), None), "nothing was asked");
        questions.on_asked(at(100));
        assert!(questions.do_for(at(104), None));
        assert!(questions.do_for(at(104), Some(at(100))));
        assert!(
            !questions.do_for(at(104), Some(at(101))),
            "the suspicion is younger"
        );
        assert!(!questions.do_for(at(105), None), "the question is old");
    }

    #[test]
    fn the_time_of_a_question_is_known_for_a_while() {
        let mut questions = Questions::default();
        assert_eq!(questions.asked_at(0), None);
        assert_eq!(questions.asked_at(1), None);
        for number in 1..=150 {
            questions.on_asked(at(number));
        }
        assert_eq!(questions.asked_at(151), None);
        assert_eq!(questions.asked_at(150), Some(at(150)));
        assert_eq!(questions.asked_at(51), Some(at(51)));
        assert_eq!(questions.asked_at(50), None, "forgotten");
    }
}
