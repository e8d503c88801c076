//! Carries out the node's actions on the kernel.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use anyhow::Context;
use linux::network::{Interface, Network, NetworkPart};
use linux::raw::RawSender;
use linux::repair::Pool;
use linux::wire::{self, FilterWatch, Mode, Rings, Wire};
use proto::action::{Action, Gate, OperatorReport, ServiceAction, ServiceIndex};
use proto::census::{CensusPage, PageQuery};
use proto::learn::{ClientTerms, QUESTION_MAX};
use proto::node::Node;
use proto::role::Role;
use proto::service::ServiceInput;
use proto::table::ConnectionId;

use super::NodeLogReader;
use super::census::Listing;
use super::claim::Claims;
use super::failure::note;
use super::held::HeldClients;
use super::hook;
use super::outside::OutsideProbes;
use super::peer::PeerLinks;
use super::refusals::Refusals;
use super::relay::RelayedConnections;
use super::replicas::Replicas;
use super::restore::{Restoring, pool_max};
use super::servers::Servers;
use super::state_sync::{HookRun, StateSyncs};
use crate::arbiter::{ArbiterClient, ArbiterQuestion};
use crate::config::Config;
use crate::keepers::Keepers;

/// Everything that the node's actions change.
pub struct Executor {
    pub(super) wire: Wire,
    pub(super) network: Network,
    pub(super) raw: RawSender,
    pub(super) services: Vec<ServiceResources>,
    /// Maximum number of sockets kept ready, per service.
    pub(super) pool_max: usize,
    pub(super) restoring: HashMap<(ServiceIndex, ConnectionId), Restoring>,
    pub(super) relay: RelayedConnections,
    pub(super) replicas: Replicas,
    pub(super) claims: Claims,
    outside: OutsideProbes,
    servers: Servers,
    state_syncs: StateSyncs,
    arbiter: ArbiterClient,
    pub(super) filters: FilterWatch,
    /// Interfaces whose filters could not be attached again.
    pub(super) bare: Vec<u32>,
    /// Error of the last repair of the network, if that repair failed. The same error is logged once.
    pub(super) unmended: String,
    pub(super) verified: Instant,
    pub(super) refusals: Refusals,
}

pub(super) struct ServiceResources {
    pub(super) name: String,
    pub(super) vip: SocketAddr,
    pub(super) interface: Interface,
    pub(super) mac: [u8; 6],
    pub(super) pool: Pool,
    on_deposed: Vec<String>,
    listing: Listing,
    pub(super) held: HeldClients,
    /// Clients whose windows are capped.
    pub(super) capped: HashSet<SocketAddr>,
}

impl Executor {
    /// An executor for the set-up state.
    pub fn new(
        config: &Config,
        wire: Wire,
        network: Network,
        servers: Servers,
        state_syncs: StateSyncs,
        arbiter: ArbiterClient,
    ) -> anyhow::Result<Self> {
        let mut services = Vec::new();
        for service in &config.services {
            let interface = Interface::find(&service.interface)?
                .with_context(|| format!("interface {} is gone", service.interface))?;
            let vip = (service.address, service.port).into();
            services.push(ServiceResources {
                name: service.name.clone(),
                vip,
                mac: interface
                    .mac
                    .map(|mac| mac.0)
                    .with_context(|| format!("{} has no MAC address", interface.name))?,
                pool: Pool::new(vip),
                interface,
                on_deposed: service.on_deposed.clone(),
                listing: Listing::default(),
                held: HeldClients::default(),
                capped: HashSet::new(),
            });
        }
        let mut interfaces: Vec<u32> = services.iter().map(|service| service.interface.index).collect();
        interfaces.push(wire::LOOPBACK);
        let filters = FilterWatch::open(&interfaces)?;
        Ok(Self {
            pool_max: pool_max(services.len())?,
            wire,
            network,
            raw: RawSender::open().context("opening raw sockets")?,
            services,
            restoring: HashMap::new(),
            relay: RelayedConnections::new(config)?,
            replicas: Replicas::new(config)?,
            claims: Claims::new(config)?,
            outside: OutsideProbes::new(config),
            servers,
            state_syncs,
            arbiter,
            filters,
            bare: Vec::new(),
            unmended: String::new(),
            verified: Instant::now(),
            refusals: Refusals::default(),
        })
    }

    /// This node's MAC addresses, by service.
    pub fn macs(&self) -> Vec<[u8; 6]> {
        self.services.iter().map(|service| service.mac).collect()
    }

    /// Finds or starts the keeper, which relays restored connections.
    pub fn start_keeper(&mut self, config: &Config) -> anyhow::Result<()> {
        self.relay.start(Keepers::open(&config.node.state_dir)?)
    }

    /// The relay, for reading its state.
    pub fn relay(&self) -> &RelayedConnections {
        &self.relay
    }

    /// The wire, for reading its state.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// A service's name.
    pub fn service_name(&self, service: ServiceIndex) -> &str {
        &self.services[usize::from(service)].name
    }

    /// The service at `vip`.
    pub fn service_at(&self, vip: SocketAddr) -> Option<ServiceIndex> {
        (0..)
            .zip(&self.services)
            .find_map(|(index, service)| (service.vip == vip).then_some(index))
    }

    /// The service at `vip`, if this node is its primary. Only a primary's kernel has all of the service's connections.
    fn served_at(&self, node: &Node, vip: SocketAddr) -> Option<ServiceIndex> {
        let is_primary = |service: &ServiceIndex| node.service(*service).role() == Role::Primary;
        self.service_at(vip).filter(is_primary)
    }

    /// Looks up what this node's kernel knows of the connections of `clients`, for the peer's wire.
    pub fn look_up(&self, node: &Node, vip: SocketAddr, clients: &[SocketAddr]) -> Option<Vec<ClientTerms>> {
        self.served_at(node, vip)?;
        let clients = &clients[..clients.len().min(QUESTION_MAX)];
        linux::network::sockets::terms(vip, clients)
            .inspect_err(|error| tracing::warn!(%error, "the peer cannot be told of older connections"))
            .ok()
    }

    /// A page of the connections that this node's kernel has, for the peer's wire.
    pub fn list(&mut self, node: &Node, vip: SocketAddr, query: PageQuery) -> Option<CensusPage> {
        let service = self.served_at(node, vip)?;
        self.services[usize::from(service)]
            .listing
            .page(vip, query)
            .inspect_err(|error| tracing::warn!(%error, "the peer cannot be told who is connected"))
            .ok()
    }

    /// Tells the wire whether a wake-up is needed.
    pub fn set_asleep(&self, asleep: bool) {
        self.wire.set_asleep(asleep);
    }

    /// Readable when a replica has output, or can take more input.
    pub fn replicas_fd(&self) -> BorrowedFd<'_> {
        self.replicas.fd()
    }

    /// Passes the replicas' output to the node.
    pub fn serve_replicas(&mut self, node: &mut Node) {
        self.replicas.serve(node);
    }

    /// The arbiter, for reading its state.
    pub fn arbiter(&self) -> &ArbiterClient {
        &self.arbiter
    }

    /// Tells the node the state of the applications, the answers of outside hosts and of the arbiter, and which hooks have ended.
    pub fn watch(&mut self, node: &mut Node) {
        while let Some((ArbiterQuestion { service, epoch }, verdict)) = self.arbiter.poll() {
            node.handle(
                linux::clock::now(),
                service,
                ServiceInput::Verdict { epoch, verdict },
            );
        }
        while let Some((service, run, outcome)) = self.state_syncs.poll() {
            node.handle(
                linux::clock::now(),
                service,
                ServiceInput::Synced { run, outcome },
            );
        }
        self.servers.watch(&self.wire, node);
        self.claims.look(linux::clock::now(), node);
        self.outside.look(node);
    }

    /// Readable when someone has changed filters.
    pub fn filters_fd(&self) -> BorrowedFd<'_> {
        self.filters.as_fd()
    }

    /// Readable when a process of an application has died.
    pub fn deaths_fd(&self) -> BorrowedFd<'_> {
        self.servers.fd()
    }

    /// Records that the agent is here, and tells the node about packets that passed unlogged while no agent was here. Returns whether a
    /// cable has been plugged in again. Call this only after all actions are carried out. Otherwise, if the agent dies before it has closed
    /// a gate, its successor does not see that no agent was here, and does not close the gate.
    pub fn check_in(&self, node: &mut Node, rings: &mut Rings) -> bool {
        let mut is_back = false;
        self.wire.set_agent_seen(node.ran().as_nanos());
        for index in 0..ServiceIndex::try_from(self.services.len()).expect("few") {
            let now = linux::clock::now();
            if node.wants_link(now) {
                let has_carrier = self.services[usize::from(index)].interface.has_link();
                is_back |= node.handle_carrier(now, index, has_carrier);
            }
            let seen = self.wire.peer_seen_ns(index);
            if seen > 0 {
                node.handle(
                    now,
                    index,
                    ServiceInput::Sign {
                        at: proto::Instant::from_nanos(seen),
                    },
                );
            }
            let packets = self.wire.take_unlogged(index);
            if packets > 0 {
                self.read_all(node, index, rings, packets);
            }
        }
        is_back
    }

    /// Reads the log to its end, then tells the node about the packets that passed unlogged. The log is read first because the logged
    /// packets came first.
    fn read_all(&self, node: &mut Node, index: ServiceIndex, rings: &mut Rings, unlogged: u64) {
        rings.drain(usize::MAX, true, &mut NodeLogReader(node));
        if unlogged > 0 {
            tracing::error!(
                service = self.service_name(index),
                packets = unlogged,
                "the log has a gap: the agent was away; connections are not protected until they begin anew"
            );
            node.handle(linux::clock::now(), index, ServiceInput::LogGap);
        }
    }

    fn transmit(&self, packet: &[u8]) {
        if let Err(error) = self.raw.send(packet) {
            tracing::warn!(%error, "packet not sent");
        }
    }

    /// Carries out one action. A failure concerns only the connection or the service of that action.
    pub fn carry_out(&mut self, action: Action, node: &mut Node, rings: &mut Rings, peer: &PeerLinks) {
        match action {
            Action::Service(service, action) => self.carry_out_for(service, action, node, rings, peer),
            Action::Send(heartbeat) => peer.send(&heartbeat),
            Action::Probe => peer.probe(),
        }
    }

    fn carry_out_for(
        &mut self,
        service: ServiceIndex,
        action: ServiceAction,
        node: &mut Node,
        rings: &mut Rings,
        peer: &PeerLinks,
    ) {
        match action {
            ServiceAction::Assume { gate, peer_mac } => {
                note(node, service, self.assume(service, gate, peer_mac));
            }
            ServiceAction::SetGate { gate, epoch, until } => {
                self.wire.set_epoch(service, epoch);
                self.wire.set_until(service, nanos_of(until));
                self.wire.set_mode(service, mode_of(gate));
            }
            ServiceAction::SetUntil { until } => self.wire.set_until(service, nanos_of(until)),
            ServiceAction::Confirm { epoch } => self.arbiter.confirm(ArbiterQuestion { service, epoch }),
            ServiceAction::Hold { clients } => self.hold(node, service, clients),
            ServiceAction::Settle => self.settle(service),
            ServiceAction::CapWindow { client, cap } => self.cap_window(service, client, cap),
            ServiceAction::Destroy { clients } => self.destroy(service, &clients),
            ServiceAction::TakeAddress => note(node, service, self.claims.begin(service, &mut self.network)),
            ServiceAction::Mend => self.mend_service(node, service),
            ServiceAction::Announce => self.claims.announce(service),
            ServiceAction::AskOutside { since } => self.outside.ask(node, service, since),
            ServiceAction::StandDown { is_deposed } => self.stand_down(service, is_deposed),
            ServiceAction::Drain => self.drain(node, service, rings),
            ServiceAction::Restore { connection } => self.restore(node, service, connection),
            ServiceAction::MakeReady { connection } => {
                self.step(node, service, connection, |restoring, _| {
                    restoring.socket.make_ready()
                });
            }
            ServiceAction::Activate { connection } => self.activate(node, service, connection),
            ServiceAction::HandOver { connection } => self.hand_over(node, service, connection),
            ServiceAction::AllowSpeech => self.set_speak(service, true),
            ServiceAction::Transmit(packet) => self.transmit(&packet),
            ServiceAction::Ask { clients } => peer.ask(self.services[usize::from(service)].vip, clients),
            ServiceAction::AskAll { query } => peer.ask_all(self.services[usize::from(service)].vip, query),
            ServiceAction::OpenReplica { connection, client } => {
                self.replicas.open(node, service, connection, client);
            }
            ServiceAction::FeedReplica { connection } => self.replicas.feed(node, service, connection),
            ServiceAction::CloseReplica { connection } => self.replicas.close(service, connection),
            ServiceAction::RunSync { phase, run, until } => self.state_syncs.run(HookRun {
                service,
                phase,
                number: run,
                until,
            }),
            ServiceAction::HoldInput { until } => self.hold_input(service, until),
            ServiceAction::Report(report) => self.hear(node, service, &report),
        }
    }

    fn drain(&self, node: &mut Node, service: ServiceIndex, rings: &mut Rings) {
        // The agent may have been away since the last check.
        let unlogged = self.wire.take_unlogged(service);
        self.read_all(node, service, rings, unlogged);
        node.handle(linux::clock::now(), service, ServiceInput::Drained);
    }

    /// Logs a report for the operator. Stores what the next agent must know of the report in the wire's pinned maps.
    fn hear(&self, node: &Node, service: ServiceIndex, report: &OperatorReport) {
        match *report {
            OperatorReport::Role { to, .. } => {
                self.wire.set_consented(service, to == Role::Backup);
                self.wire.set_doubted(service, None);
            }
            OperatorReport::Doubted { is_primary, epoch } => {
                self.wire.set_doubted(service, Some((is_primary, epoch)))
            }
            OperatorReport::Confirmed => self.wire.set_doubted(service, None),
            _ => {}
        }
        self.tell(node, service, report);
    }

    /// Sets up the network for `gate`. The gate itself is set later. Until then, a node whose gate was off is mute, and a node that speaks
    /// continues to speak.
    fn assume(&mut self, service: ServiceIndex, gate: Gate, peer_mac: [u8; 6]) -> anyhow::Result<()> {
        self.look_for_interface(service)?;
        if self.wire.gate(service).0 == Mode::Off {
            self.wire.set_mode(service, Mode::Mute);
        }
        self.wire.set_peer_mac(service, peer_mac);
        self.claims.end(service);
        let vip = self.services[usize::from(service)].vip.ip();
        if let Some(part) = part_behind(gate) {
            self.network
                .assume(vip, part)
                .with_context(|| format!("putting up {vip}"))?;
        }
        if gate == Gate::Primary {
            self.set_speak(service, true);
        }
        Ok(())
    }

    /// The peer is heard again. Makes the kernel resolve the peer's addresses at once, so that the peer also hears this node soon.
    pub fn ask_again_for(&self, peer: &[IpAddr]) {
        for address in peer {
            if let Err(error) = self.network.ask_again_for(*address) {
                tracing::debug!(%error, "the kernel will ask for the peer by itself");
            }
        }
    }

    fn hold_input(&self, service: ServiceIndex, until: Option<proto::Instant>) {
        let until = until.map_or(0, |until| until.as_nanos());
        self.wire.hold_input(service, until);
    }

    /// Ends the sockets of processes that died. The guard lets no RST of these sockets out. Afterwards no later agent needs to know about
    /// the sockets.
    fn destroy(&self, index: ServiceIndex, clients: &[SocketAddr]) {
        let vip = self.services[usize::from(index)].vip;
        match linux::network::sockets::destroy_dying(vip, clients) {
            Ok(sockets) => tracing::debug!(%vip, sockets, "sockets of dead processes ended silently"),
            Err(error) => tracing::error!(%error, %vip, "sockets of dead processes are left"),
        }
        self.forget_dying(index, clients);
    }

    fn forget_dying(&self, index: ServiceIndex, clients: &[SocketAddr]) {
        if let Err(error) = self.wire.forget_dying(index, clients) {
            tracing::warn!(%error, "the next agent will tell the peer again of connections that it took over");
        }
    }

    /// The peer speaks alone. The gate is closed, so the connections that end here send nothing.
    fn stand_down(&mut self, index: ServiceIndex, is_deposed: bool) {
        self.restoring.retain(|(service, _), _| *service != index);
        self.relay.drop_live(index);
        self.replicas.close_all(index);
        self.services[usize::from(index)].held = HeldClients::default(); // the next wire begins with no held clients
        let vip = self.services[usize::from(index)].vip;
        self.set_speak(index, false);
        match linux::network::sockets::destroy(vip) {
            Ok(0) => {}
            Ok(sockets) => tracing::info!(%vip, sockets, "deposed: connections ended silently"),
            Err(error) => tracing::error!(%error, %vip, "deposed, but connections are left; they are mute"),
        }
        self.forget_dying(index, &self.wire.dying(index));
        self.claims.end(index);
        if let Err(error) = self.network.lower_vip(vip.ip()) {
            tracing::error!(%error, %vip, "deposed, but the VIP is still here");
        }
        if is_deposed {
            let service = &self.services[usize::from(index)];
            hook::run(&service.name, &service.on_deposed);
        }
    }

    fn set_speak(&self, service: ServiceIndex, may: bool) {
        let vip = self.services[usize::from(service)].vip;
        if let Err(error) = self.network.set_speak(vip, may) {
            tracing::error!(%error, %vip, "the no-RST guard stays closed: lost connections will hang instead of ending");
        }
    }

    /// Restores the network as it was found. The gates close before the VIPs go.
    pub fn tear_down(mut self) -> anyhow::Result<()> {
        for index in 0..ServiceIndex::try_from(self.services.len()).expect("few") {
            self.wire.set_mode(index, Mode::Mute);
        }
        self.relay.stop();
        let lowered = self.network.lower();
        let wire = self.wire.remove();
        let network = self.network.remove();
        lowered
            .map_err(anyhow::Error::from)
            .and(wire.map_err(Into::into))
            .and(network.map_err(Into::into))
    }
}

/// The end of the right to speak, in nanoseconds, as the wire's programs read it. 0 means no end, so an end at time 0 becomes 1.
fn nanos_of(until: Option<proto::Instant>) -> u64 {
    until.map_or(0, |until| until.as_nanos().max(1))
}

fn mode_of(gate: Gate) -> Mode {
    match gate {
        Gate::Off => Mode::Off,
        Gate::Wire => Mode::Wire,
        Gate::Takeover => Mode::Takeover,
        Gate::Sole => Mode::Sole,
        Gate::Primary => Mode::Primary,
        Gate::Mute => Mode::Mute,
    }
}

/// The part of the network that a gate needs, if any.
pub fn part_behind(gate: Gate) -> Option<NetworkPart> {
    match gate {
        Gate::Off | Gate::Mute => None,
        Gate::Wire | Gate::Takeover => Some(NetworkPart::Wire),
        Gate::Primary => Some(NetworkPart::Behind),
        Gate::Sole => Some(NetworkPart::Alone),
    }
}
