//! Recorded order between the nodes (docs/recorded-order.md): threads that take the record from the library in the primary's server, and
//! give it to the library in the backup's server.
//!
//! ```text
//!   primary                                                backup
//!   library ── record ──▶ thread ══ link (TCP) ══▶ thread ── record ──▶ library
//!           ◀─ receipts ──       ◀═══ receipts ════
//! ```
//!
//! These are threads of their own, because a client waits for a receipt and the agent's loop naps. The backup opens the link, to the port
//! of `[peer]`.

mod access;
mod children;
mod counts;
mod datagrams;
mod frames;
mod inspect;
mod kinds;
mod library;
mod link;
mod ring;
mod state;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use agent::Core;
use anyhow::Context;
use proto::action::ServiceIndex;
use proto::service::ServiceInput;

use crate::config::{Config, SecretKey};
use crate::control::{OrderActivity, RecordedOrderStatus};
use access::LibraryAccess;
use state::{OrderCounters, OrderStanding, OrderedService};

/// The services with recorded order.
#[derive(Default)]
pub struct RecordedOrders {
    services: Vec<ToldService>,
}

/// A service, with its counters and its standing as they were when its threads last left them to the agent's loop.
struct ToldService {
    service: Arc<OrderedService>,
    counters: OrderCounters,
    standing: OrderStanding,
    /// Whether the node was told that the replica's server has diverged from its record.
    has_diverged: bool,
}

impl RecordedOrders {
    /// Starts the threads of all services with recorded order.
    ///
    /// # Errors
    /// The step that failed.
    pub fn serve(config: &Config) -> anyhow::Result<Self> {
        let key = config.peer.key_file.as_deref().map(SecretKey::read).transpose();
        let key = key.map_err(anyhow::Error::msg).context("reading the key")?;
        let mut services = Vec::new();
        for (index, settings) in (0..).zip(&config.services) {
            let Some(order) = &settings.recorded_order else {
                continue;
            };
            let vip = SocketAddr::new(settings.address, settings.port);
            let peer = SocketAddr::new(settings.peer_address, config.peer.port);
            let addresses = (vip, settings.application, peer);
            let service = OrderedService::new(index, addresses, order.on_divergence, key.clone());
            let service = Arc::new(service);
            library::serve(&order.socket, LibraryAccess::new(order)?, &service)
                .with_context(|| format!("the socket for recorded order at {}", order.socket.display()))?;
            link::follow(&service)?;
            services.push(service);
        }
        if !services.is_empty() {
            let any: IpAddr = match config.peer.address {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let listener = TcpListener::bind((any, config.peer.port))
                .with_context(|| format!("listening at TCP port {} for recorded order", config.peer.port))?;
            link::serve(listener, services.clone())?;
        }
        let services = services.into_iter().map(|service| {
            let counters = service.state().counters();
            let standing = OrderStanding {
                activity: OrderActivity::Off,
                reason: String::new(),
                since: linux::clock::now(),
            };
            ToldService {
                service,
                counters,
                standing,
                has_diverged: false,
            }
        });
        Ok(Self {
            services: services.collect(),
        })
    }

    /// Tells the threads which roles the node has now, and the node which replicas have diverged.
    pub fn tell(&mut self, node: &mut Core) {
        for told in &mut self.services {
            let index = told.service.index;
            let role = node.service(index).role();
            let answer = told.service.tell(role, &mut told.counters, &mut told.standing);
            if let Some(has_diverged) = answer
                && has_diverged != told.has_diverged
            {
                told.has_diverged = has_diverged;
                let input = ServiceInput::ReplicaDiverged(has_diverged);
                node.handle(linux::clock::now(), index, input);
            }
        }
    }

    fn of(&self, index: ServiceIndex) -> Option<&ToldService> {
        self.services.iter().find(|told| told.service.index == index)
    }

    /// The counters of a service.
    pub fn counters(&self, index: ServiceIndex) -> impl Iterator<Item = (String, u64)> {
        let counters = self.of(index).map(|told| told.counters);
        let counters = counters.into_iter().flatten();
        counters.map(|(name, count)| (name.to_owned(), count))
    }

    /// What the record of a service does. `None`: the service has no recorded order.
    pub fn status(&self, index: ServiceIndex) -> Option<RecordedOrderStatus> {
        let OrderStanding {
            activity,
            reason,
            since,
        } = &self.of(index)?.standing;
        Some(RecordedOrderStatus {
            activity: *activity,
            reason: reason.clone(),
            age_ns: linux::clock::now().since(*since).as_nanos() as u64,
        })
    }
}
