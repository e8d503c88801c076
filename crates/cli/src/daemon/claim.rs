//! Announces VIPs to the neighbours. While a VIP is being claimed, also pings outside hosts with the VIP as the source address.

use std::net::{IpAddr, SocketAddr};

use agent::Core;
use anyhow::Context;
use linux::network::{self, Announcer, Interface, Network, NetworkPart};
use linux::probe::OutsideHosts;
use proto::action::ServiceIndex;
use proto::service::ServiceInput;

use crate::config::Config;

/// The claims of all services.
pub struct Claims {
    services: Vec<ServiceClaim>,
}

struct ServiceClaim {
    vip: SocketAddr,
    interface: Interface,
    /// The configured outside hosts; empty: the gateways.
    hosts: Vec<IpAddr>,
    /// The peer's address, which is not asked. For IPv6, `/proc` lists it among the gateways, because of the route through the peer's
    /// wire.
    peer: IpAddr,
    /// Kept open, because closing it takes 10 ms.
    announcer: Announcer,
    is_begun: bool,
    /// The hosts that are asked, and their sockets. `None` if there is no host to ask, and also before and after a claim.
    outside: Option<(Vec<IpAddr>, OutsideHosts)>,
}

impl Claims {
    /// Prepares claims for all services. No claim has begun yet.
    ///
    /// # Errors
    /// If an interface is gone.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let service = |service: &crate::config::ServiceSettings| {
            let interface = Interface::find(&service.interface)?
                .with_context(|| format!("interface {} is gone", service.interface))?;
            anyhow::Ok(ServiceClaim {
                vip: (service.address, service.port).into(),
                announcer: Announcer::open(&interface)?,
                interface,
                hosts: service.claim_ping.clone(),
                peer: service.peer_address,
                is_begun: false,
                outside: None,
            })
        };
        let services = config.services.iter().map(service).collect::<Result<_, _>>()?;
        Ok(Self { services })
    }

    /// Moves a service's claim to its interface after the interface was deleted and created again.
    ///
    /// # Errors
    /// If the interface is gone again.
    pub fn move_to(&mut self, index: ServiceIndex, interface: &Interface) -> anyhow::Result<()> {
        let service = &mut self.services[usize::from(index)];
        service.announcer = Announcer::open(interface)?;
        service.interface = interface.clone();
        if let Some((hosts, sockets)) = &mut service.outside {
            *sockets = OutsideHosts::open(service.vip.ip(), &interface.name, hosts)
                .context("opening sockets to ask outside hosts")?;
        }
        Ok(())
    }

    /// Begins a claim: brings the VIP to the service interface, and opens sockets to ask outside hosts.
    ///
    /// # Errors
    /// The step that failed.
    pub fn begin(&mut self, index: ServiceIndex, network: &mut Network) -> anyhow::Result<()> {
        let service = &mut self.services[usize::from(index)];
        let vip = service.vip.ip();
        network
            .assume(vip, NetworkPart::Alone)
            .with_context(|| format!("claiming {vip}"))?;
        let hosts = if service.hosts.is_empty() {
            let gateways = network::gateways(&service.interface.name).context("looking for gateways")?;
            gateways
                .into_iter()
                .filter(|host| *host != service.peer)
                .collect()
        } else {
            service.hosts.clone()
        };
        let of_family = hosts.iter().any(|host| host.is_ipv4() == vip.is_ipv4());
        let outside = match of_family {
            true => {
                let sockets = OutsideHosts::open(vip, &service.interface.name, &hosts)
                    .context("opening sockets to ask outside hosts")?;
                Some((hosts, sockets))
            }
            false => {
                tracing::warn!(
                    %vip,
                    "no outside host to ask (claim_ping); the claim counts as confirmed without an answer"
                );
                None
            }
        };
        service.outside = outside;
        service.is_begun = true;
        Ok(())
    }

    /// Announces the VIP. If it is claimed, also asks the outside hosts. Neighbours that miss the announcement find the
    /// VIP by a request of their own (ARP or ND) when their cache entry expires.
    pub fn announce(&mut self, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if let Err(error) = service.announcer.announce(service.vip.ip()) {
            tracing::debug!(%error, "the VIP is not announced"); // the node announces it again
        }
        if let Some(Err(error)) = service.outside.as_mut().map(|(_, sockets)| sockets.ask()) {
            tracing::debug!(%error, "no outside host can be asked"); // a link that is down is no error
        }
    }

    /// Tells the node which claims are confirmed: by an outside host's answer, or because there is no host to ask.
    pub fn look(&mut self, now: proto::Instant, node: &mut Core) {
        for (index, service) in (0..).zip(&mut self.services) {
            let outside = service.outside.as_mut();
            if service.is_begun && outside.is_none_or(|(_, sockets)| sockets.is_answered()) {
                node.handle(now, index, ServiceInput::Reached);
            }
        }
    }

    /// Ends a claim, because this node changes its part in the network or stands down.
    pub fn end(&mut self, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        (service.is_begun, service.outside) = (false, None);
    }
}
