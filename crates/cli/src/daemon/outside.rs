//! Asking outside hosts through the services' interfaces whether clients could reach this node.
//!
//! Services that have the same interface and the same hosts share their questions: a gateway is asked as often for sixty services as
//! for one.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use linux::network;
use linux::probe::OutsideHosts;
use proto::action::ServiceIndex;
use proto::node::Node;

use crate::config::Config;

/// Questions of services that share their hosts count as one within this time.
const SHARED: Duration = Duration::from_millis(5);
/// Time between two looks for gateways while there are none.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The outside hosts of all services.
pub struct Outside {
    routes: Vec<Route>,
}

/// An interface, and the hosts that are asked through it.
struct Route {
    interface: String,
    is_v4: bool,
    /// As configured; none: the gateways.
    configured: Vec<IpAddr>,
    /// Not to be asked: for IPv6 `/proc` also lists the way through the peer's wire.
    peer: IpAddr,
    services: Vec<ServiceIndex>,
    /// `None`: nobody can be asked.
    hosts: Option<OutsideHosts>,
    looked: Option<Instant>,
    asked: Option<Instant>,
}

impl Outside {
    /// Nobody is asked yet.
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
                    hosts: None,
                    looked: None,
                    asked: None,
                }),
            }
        }
        Self { routes }
    }

    /// Asks on behalf of a service; `anew`: earlier questions do not count. The node is told if there is nobody to be asked.
    pub fn ask(&mut self, node: &mut Node, service: ServiceIndex, anew: bool) {
        if !self.asks(service, anew) {
            node.handle_no_outside(service);
        }
    }

    fn asks(&mut self, service: ServiceIndex, anew: bool) -> bool {
        let mut routes = self.routes.iter_mut();
        let Some(route) = routes.find(|route| route.services.contains(&service)) else {
            return false;
        };
        route.look_for_hosts();
        let Some(hosts) = &route.hosts else { return false };
        let is_just_asked = route.asked.is_some_and(|at| at.elapsed() < SHARED);
        if is_just_asked {
            return true;
        }
        if anew {
            hosts.forget();
        }
        route.asked = Some(Instant::now());
        if let Err(error) = hosts.ask() {
            tracing::trace!(%error, interface = route.interface, "outside hosts not asked"); // a cable that is out is no error
        }
        true
    }

    /// Tells the node which services' hosts have answered.
    pub fn look(&self, node: &mut Node) {
        for route in &self.routes {
            if route.hosts.as_ref().is_some_and(OutsideHosts::is_answered) {
                for &service in &route.services {
                    node.handle_outside(linux::clock::now(), service);
                }
            }
        }
    }
}

impl Route {
    fn look_for_hosts(&mut self) {
        if self.hosts.is_some() || self.looked.is_some_and(|at| at.elapsed() < LOOK_AGAIN) {
            return;
        }
        let is_first = self.looked.replace(Instant::now()).is_none();
        match self.open() {
            Ok(hosts) => self.hosts = hosts,
            Err(error) if is_first => {
                let interface = &self.interface;
                tracing::warn!(%error, interface, "outside hosts cannot be asked: a broken path is noticed late, or not at all");
            }
            Err(_) => {}
        }
    }

    fn open(&self) -> anyhow::Result<Option<OutsideHosts>> {
        let mut hosts = self.configured.clone();
        if hosts.is_empty() {
            hosts = network::gateways(&self.interface)?;
            hosts.retain(|host| *host != self.peer);
        }
        hosts.retain(|host| host.is_ipv4() == self.is_v4);
        if hosts.is_empty() {
            return Ok(None);
        }
        Ok(Some(OutsideHosts::through(&self.interface, &hosts)?))
    }
}
