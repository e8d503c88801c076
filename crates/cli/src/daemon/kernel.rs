//! The agent's [`Kernel`] on Linux: the wire, the network, the relay, the peer and the arbiter. This kernel carries out single steps. The
//! crate `agent` puts them in order.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use agent::{Core, Kernel, LogReader, MessageToPeer, SyncRun, Written};
use anyhow::Context;
use linux::network::{Interface, Network, NetworkPart, SetUpTurn};
use linux::raw::RawSender;
use linux::repair::{Pool, RestoredSocket};
use linux::wire::{self, FilterWatch, Rings, Wire};
use proto::action::{Gate, OperatorReport, ServiceIndex};
use proto::annex::{AnnexId, ServingNode};
use proto::census::{CensusPage, PageQuery};
use proto::census::{ClientTerms, QUESTION_MAX};
use proto::connection::{Cap, Connection, Endpoint};
use proto::export::{ExportOutcome, PartReceipt};
use proto::node::Node;
use proto::role::Role;
use proto::service::ServiceInput;
use proto::spill::LogPart;
use proto::stream::{OnShelf, Shelf};
use proto::table::{ConnectionId, Direction};
use proto::takeover::HandedOver;

use super::annex::AnnexNodes;
use super::annex::host::HostedConnections;
use super::annex::message::AnnexRequest;
use super::census::Listing;
use super::claim::Claims;
use super::held::HeldClients;
use super::ordering::RecordedOrders;
use super::outside::OutsideProbes;
use super::peer::PeerLinks;
use super::pool::{self, pool_max};
use super::refusals::Refusals;
use super::relay::{Handover, HandoverContent, LiveSocket, LoggedContent, RelayedConnections, WakeLoop};
use super::replicas::{ReplicaKey, Replicas};
use super::servers::Servers;
use super::snapshots::WaitingExports;
use super::standing_down::StandingDown;
use super::state_sync::StateSyncs;
use crate::arbiter::{ArbiterClient, ArbiterQuestion};
use crate::config::Config;
use crate::keepers::Keepers;

/// Time between two warnings that packets passed unlogged because the log was full.
const GAP_EVERY: Duration = Duration::from_secs(1);

/// Everything that the node's actions change.
pub struct LinuxKernel {
    pub(super) rings: Rings,
    pub(super) peer: PeerLinks,
    pub(super) wire: Wire,
    pub(super) network: Network,
    pub(super) raw: RawSender,
    pub(super) services: Vec<ServiceResources>,
    /// Maximum number of sockets kept ready, per service.
    pub(super) pool_max: usize,
    pub(super) relay: RelayedConnections,
    pub(super) replicas: Replicas,
    pub(super) exports: WaitingExports,
    pub(super) ordering: RecordedOrders,
    pub(super) annexes: AnnexNodes,
    pub(super) claims: Claims,
    outside: OutsideProbes,
    servers: Servers,
    standing_down: StandingDown,
    state_syncs: StateSyncs,
    pub(super) arbiter: ArbiterClient,
    pub(super) filters: FilterWatch,
    /// Interfaces whose filters could not be attached again.
    pub(super) bare: Vec<u32>,
    /// Error of the last repair of the network, if that repair failed. The same error is logged once.
    pub(super) unmended: String,
    pub(super) verified: Instant,
    pub(super) refusals: Refusals,
    /// Time of the last warning that packets passed unlogged because the log was full.
    gap_told: Option<Instant>,
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
    /// Connections that move back to this primary.
    pub(super) hosted: HostedConnections,
    /// Clients whose windows are capped.
    pub(super) capped: HashSet<SocketAddr>,
}

impl LinuxKernel {
    /// Combines the parts that were set up.
    pub fn new(
        config: &Config,
        wire: Wire,
        network: Network,
        servers: Servers,
        state_syncs: StateSyncs,
        arbiter: ArbiterClient,
        peer: PeerLinks,
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
                hosted: HostedConnections::default(),
                capped: HashSet::new(),
            });
        }
        let mut interfaces: Vec<u32> = services.iter().map(|service| service.interface.index).collect();
        interfaces.push(wire::LOOPBACK);
        let filters = FilterWatch::open(&interfaces)?;
        Ok(Self {
            pool_max: pool_max(services.len())?,
            network,
            raw: RawSender::open().context("opening raw sockets")?,
            services,
            rings: wire.rings()?,
            peer,
            wire,
            relay: RelayedConnections::new(config),
            replicas: Replicas::new(config)?,
            exports: WaitingExports::default(),
            ordering: RecordedOrders::default(),
            annexes: AnnexNodes::default(),
            claims: Claims::new(config)?,
            outside: OutsideProbes::new(config),
            servers,
            standing_down: StandingDown::default(),
            state_syncs,
            arbiter,
            filters,
            bare: Vec::new(),
            unmended: String::new(),
            verified: Instant::now(),
            refusals: Refusals::default(),
            gap_told: None,
        })
    }

    /// Prepares sockets for connections that may have to be taken over.
    pub fn prepare_sockets(&mut self, node: &Node) {
        for (index, service) in (0..).zip(&mut self.services) {
            if let Err(error) = pool::fill(&mut service.pool, node.service(index), self.pool_max) {
                tracing::debug!(%error, service = service.name, "socket pool not filled; a takeover would be slower");
            }
        }
    }

    /// This node's MAC addresses, by service.
    pub fn macs(&self) -> Vec<[u8; 6]> {
        self.services.iter().map(|service| service.mac).collect()
    }

    /// Finds or starts the keeper, which relays restored connections. `wake` wakes the agent's loop when a keeper has answered.
    pub fn start_keeper(&mut self, config: &Config, wake: WakeLoop) -> anyhow::Result<()> {
        self.relay.set_wake(wake);
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

    /// Whether the keepers have taken or refused every connection that was handed over, no held connection is being decided, no connections
    /// are being ended, and no question to the arbiter is open.
    pub fn is_settled(&self) -> bool {
        if !self.standing_down.is_settled() {
            return false;
        }
        let is_held = |service: &ServiceResources| service.held.is_deciding();
        self.relay.is_settled() && !self.services.iter().any(is_held) && !self.arbiter().is_asked()
    }

    pub fn service_name(&self, service: ServiceIndex) -> &str {
        &self.services[usize::from(service)].name
    }

    /// The service at `vip`.
    pub fn service_at(&self, vip: SocketAddr) -> Option<ServiceIndex> {
        (0..)
            .zip(&self.services)
            .find_map(|(index, service)| (service.vip == vip).then_some(index))
    }

    /// The service at `vip`, if this node is its primary, or has connections that the primary follows.
    fn has_some_of(&self, node: &Node, vip: SocketAddr) -> Option<ServiceIndex> {
        let reversed = self
            .service_at(vip)
            .filter(|&service| node.service(service).has_reversed_here());
        self.served_at(node, vip).or(reversed)
    }

    /// The service at `vip`, if this node is its primary. Only a primary's kernel has all of the service's connections.
    fn served_at(&self, node: &Node, vip: SocketAddr) -> Option<ServiceIndex> {
        let is_primary = |service: &ServiceIndex| node.service(*service).role() == Role::Primary;
        self.service_at(vip).filter(is_primary)
    }

    /// Looks up what this node's kernel knows of the connections of `clients`, for the peer's wire.
    pub fn look_up(&self, node: &Node, vip: SocketAddr, clients: &[SocketAddr]) -> Option<Vec<ClientTerms>> {
        self.has_some_of(node, vip)?;
        let clients = &clients[..clients.len().min(QUESTION_MAX)];
        linux::network::sockets::terms(vip, clients)
            .inspect_err(|error| tracing::warn!(%error, "cannot look up older connections for the peer"))
            .ok()
    }

    /// A page of the connections that this node's kernel has, for the peer's wire.
    pub fn list(&mut self, node: &Node, vip: SocketAddr, query: PageQuery) -> Option<CensusPage> {
        let service = self.served_at(node, vip)?;
        self.services[usize::from(service)]
            .listing
            .page(vip, query)
            .inspect_err(|error| tracing::warn!(%error, "cannot list the connections for the peer"))
            .ok()
    }

    /// Sends the peer the input that the keepers have kept for it.
    pub fn tell_prefixes(&mut self) {
        let answers: Vec<_> = self.relay.prefixes().collect();
        for (service, answer) in answers {
            self.peer.tell_prefix(self.vip(service), answer);
        }
    }

    /// Tells the wire whether a wake-up is needed.
    pub fn set_asleep(&self, asleep: bool) {
        self.wire.set_asleep(asleep);
    }

    /// Readable when a replica has output, or can take more input.
    pub fn replicas_fd(&self) -> BorrowedFd<'_> {
        self.replicas.fd()
    }

    /// Passes the replicas' output to the node. Returns the replicas that take more input now.
    pub fn serve_replicas(&mut self, node: &mut Core) -> Vec<ReplicaKey> {
        self.replicas.serve(node)
    }

    /// The arbiter, for reading its state.
    pub fn arbiter(&self) -> &ArbiterClient {
        &self.arbiter
    }

    /// Tells the node the state of the applications, the answers of outside hosts and of the arbiter, and which hooks have ended.
    pub fn watch(&mut self, node: &mut Core) {
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
    /// cable has been plugged in again. Call this only after all actions are carried out. Otherwise an agent could
    /// check in and then die before it has closed a gate. Its successor would not see that no agent was here, and would
    /// leave the gate open.
    pub fn check_in(&mut self, node: &mut Core) -> bool {
        let mut is_back = false;
        self.wire.set_agent_seen(node.ran().as_nanos());
        for index in 0..ServiceIndex::try_from(self.services.len()).expect("few") {
            let now = self.now();
            if node.wants_link(now) {
                let has_carrier = self.services[usize::from(index)].interface.has_link();
                is_back |= node.handle_carrier(now, index, has_carrier);
            }
            let seen = self.wire.peer_seen_ns(index);
            if seen > 0 {
                let at = proto::Instant::from_nanos(seen);
                node.handle(now, index, ServiceInput::Sign { at });
            }
            agent::check_log(self, node, index);
        }
        is_back
    }

    /// Called when the peer is heard again. Makes the kernel resolve the peer's addresses at once, so that the peer also hears this node
    /// soon.
    pub fn ask_again_for(&self, peer: &[IpAddr]) {
        for address in peer {
            if let Err(error) = self.network.ask_again_for(*address) {
                tracing::debug!(%error, "the kernel will resolve the peer's address only later, by itself");
            }
        }
    }

    /// Sets up the network for `gate`.
    fn set_up_network(&mut self, service: ServiceIndex, gate: Gate, peer_mac: [u8; 6]) -> anyhow::Result<()> {
        self.look_for_interface(service)?;
        if self.wire.gate(service).0 == Gate::Off {
            self.wire.set_gate(service, Gate::Mute);
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

    fn vip(&self, service: ServiceIndex) -> SocketAddr {
        self.services[usize::from(service)].vip
    }

    fn forget_dying(&self, index: ServiceIndex, clients: &[SocketAddr]) {
        if let Err(error) = self.wire.forget_dying(index, clients) {
            tracing::warn!(%error, "cannot forget orphans; this node's next agent will report them to the peer again");
        }
    }

    fn set_speak(&self, service: ServiceIndex, may: bool) {
        let vip = self.services[usize::from(service)].vip;
        if let Err(error) = self.network.set_speak(vip, may) {
            tracing::error!(%error, %vip, "cannot switch the RST guard; if the guard stays closed, clients of lost connections may get no RST");
        }
    }

    /// Restores the network as it was found. The gates close before the VIPs go.
    pub fn tear_down(mut self) -> anyhow::Result<()> {
        for index in 0..ServiceIndex::try_from(self.services.len()).expect("few") {
            self.wire.set_gate(index, Gate::Mute);
            self.standing_down.wait(index); // without the wire, these connections would send something
        }
        self.relay.stop();
        let turn = SetUpTurn::take(); // without it, the wire must go all the same
        let lowered = self.network.lower();
        let wire = self.wire.remove();
        let network = self.network.remove();
        drop(turn);
        lowered
            .map_err(anyhow::Error::from)
            .and(wire.map_err(Into::into))
            .and(network.map_err(Into::into))
    }
}

/// The error with its causes, as one line for the operator.
fn why(error: anyhow::Error) -> String {
    format!("{error:#}")
}

impl Kernel for LinuxKernel {
    type Restored = RestoredSocket;
    type Live = LiveSocket;

    fn now(&self) -> proto::Instant {
        linux::clock::now()
    }

    fn assume(&mut self, service: ServiceIndex, gate: Gate, peer_mac: [u8; 6]) -> Result<(), String> {
        self.standing_down.wait(service);
        self.set_up_network(service, gate, peer_mac).map_err(why)
    }

    fn set_gate(&mut self, service: ServiceIndex, gate: Gate, epoch: u64, until: Option<proto::Instant>) {
        if gate != Gate::Mute {
            self.standing_down.wait(service);
        }
        self.wire.set_epoch(service, epoch);
        self.wire.set_until(service, nanos_of(until));
        self.wire.set_gate(service, gate);
    }

    fn set_until(&mut self, service: ServiceIndex, until: Option<proto::Instant>) {
        self.wire.set_until(service, nanos_of(until));
    }

    fn set_direct(&mut self, service: ServiceIndex, until: Option<proto::Instant>) {
        self.wire.set_direct_until(service, nanos_of(until));
    }

    fn pass_unlogged(&mut self, service: ServiceIndex, may: bool) {
        self.wire.set_immediate(service, may);
    }

    fn confirm(&mut self, service: ServiceIndex, epoch: u64) {
        self.arbiter.confirm(ArbiterQuestion { service, epoch });
    }

    fn hold(&mut self, service: ServiceIndex, clients: Vec<SocketAddr>) -> Vec<SocketAddr> {
        let resources = &mut self.services[usize::from(service)];
        let place = (service, resources.vip);
        resources.held.hold(&mut self.wire, place, clients)
    }

    fn reserve(&mut self, service: ServiceIndex, clients: &[SocketAddr]) -> Result<(), String> {
        self.wire
            .reserve(service, clients)
            .map_err(|error| error.to_string())
    }

    fn give_back(&mut self, service: ServiceIndex, client: SocketAddr) {
        if let Err(error) = self.wire.give_back(service, &[client]) {
            tracing::error!(%error, %client, "the client's packets do not reach the other node, which keeps its connection");
        }
    }

    fn freeze(&mut self, service: ServiceIndex, clients: &[SocketAddr], ended: &[SocketAddr]) {
        let told = self.wire.forget_clients(service, ended);
        if let Err(error) = told.and_then(|()| self.wire.freeze(service, clients)) {
            tracing::error!(%error, vip = %self.vip(service), "connections that move to the other node will not be protected");
        }
    }

    fn thaw(&mut self, service: ServiceIndex, clients: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut spoken = clients.to_vec();
        spoken.retain(|&client| match self.wire.thaw(service, client) {
            Ok(goes_on) => !goes_on,
            Err(error) => {
                tracing::error!(%error, %client, "a connection that could not move ends");
                true
            }
        });
        spoken
    }

    fn look_for(&mut self, service: ServiceIndex, client: SocketAddr) -> bool {
        let vip = self.vip(service);
        let is_open = match linux::network::sockets::terms(vip, &[client]) {
            Ok(found) => found.iter().any(|(_, terms)| terms.is_some()),
            Err(error) => {
                tracing::error!(%error, %client, "cannot look for the socket of a connection that has moved here");
                true // then the other node does not go on with it
            }
        };
        if is_open && self.wire.has_moved_here(service, client) {
            return true;
        }
        if let Err(error) = self.wire.give_back(service, &[client]) {
            tracing::error!(%error, %client, "packets of a connection that stays with the other node do not pass");
        }
        false
    }

    fn reverse(&mut self, service: ServiceIndex, clients: &[SocketAddr]) {
        self.services[usize::from(service)].held.note_reversed(clients);
        if let Err(error) = self.wire.reverse(service, clients) {
            tracing::error!(%error, vip = %self.vip(service), "connections that have moved here are not protected");
        }
    }

    /// The wire lets nothing of these sockets out.
    fn release(&mut self, service: ServiceIndex, clients: &[SocketAddr]) {
        let vip = self.services[usize::from(service)].vip;
        self.exports.moved().leave(service, clients);
        match linux::network::sockets::destroy_clients(vip, clients) {
            Ok(sockets) => {
                tracing::debug!(%vip, sockets = sockets.len(), "connections released to the other node");
                self.exports.moved().note(sockets);
            }
            Err(error) => {
                tracing::error!(%error, %vip, "cannot destroy the sockets of connections that have moved")
            }
        }
        self.forget_dying(service, clients);
        if matches!(self.wire.gate(service).0, Gate::Wire | Gate::Takeover)
            && let Err(error) = self.wire.forget_clients(service, clients)
        {
            tracing::error!(%error, %vip, "packets of connections that have moved back do not pass");
        }
    }

    fn settle(&mut self, service: ServiceIndex) {
        self.services[usize::from(service)]
            .held
            .settle(&mut self.wire, service);
    }

    /// Sets or removes a client's cap. The wire looks for caps only while there are any.
    fn cap_window(&mut self, service: ServiceIndex, client: SocketAddr, cap: Option<Cap>) {
        if let Err(error) = self.wire.cap_window(service, client, cap) {
            tracing::warn!(%error, %client, "the client is not slowed as it should be");
        }
        let capped = &mut self.services[usize::from(service)].capped;
        if cap.is_some() {
            capped.insert(client);
        } else {
            capped.remove(&client);
        }
        if capped.is_empty() {
            self.wire.set_caps(service, false);
        }
    }

    /// Ends the sockets of processes that died. The guard lets no RST of these sockets out. Afterwards no later agent needs to know about
    /// the sockets.
    fn destroy(&mut self, index: ServiceIndex, clients: &[SocketAddr]) {
        let vip = self.services[usize::from(index)].vip;
        match linux::network::sockets::destroy_dying(vip, clients) {
            Ok(sockets) => tracing::debug!(%vip, sockets, "sockets of dead processes ended silently"),
            Err(error) => tracing::error!(%error, %vip, "cannot end the sockets of dead processes"),
        }
        self.forget_dying(index, clients);
    }

    /// A client whose socket is gone is not led through the primary any more. So its next packet reaches the primary's stack, which may send a
    /// RST.
    fn show_ends(&mut self, index: ServiceIndex, clients: &[SocketAddr]) {
        let vip = self.services[usize::from(index)].vip;
        tracing::warn!(%vip, ?clients, "connections of dead processes end: the other node could not continue them");
        self.forget_dying(index, clients);
        let gone = linux::network::sockets::gone(vip, clients).map_err(|error| error.to_string());
        let forgotten = gone.and_then(|gone| {
            self.wire
                .forget_clients(index, &gone)
                .map_err(|error| error.to_string())
        });
        if let Err(error) = forgotten {
            tracing::error!(error, %vip, "clients of dead processes may not hear that their connections have ended");
        }
    }

    fn take_address(&mut self, service: ServiceIndex) -> Result<(), String> {
        self.claims.begin(service, &mut self.network).map_err(why)
    }

    fn mend(&mut self, service: ServiceIndex) -> Result<[u8; 6], String> {
        self.put_back(service).map_err(why)
    }

    fn announce(&mut self, service: ServiceIndex) {
        self.claims.announce(service);
    }

    fn ask_outside(&mut self, service: ServiceIndex, since: Option<proto::Instant>) -> bool {
        self.outside.ask(service, since)
    }

    /// The gate is closed, so the connections that end here send nothing.
    fn stand_down(&mut self, index: ServiceIndex, is_deposed: bool) {
        self.replicas.close_all(index);
        let service = &mut self.services[usize::from(index)];
        service.held = HeldClients::default();
        let vip = service.vip;
        if let Err(error) = self.wire.end_holds(index) {
            tracing::error!(%error, %vip, "clients whose connections were held may be unable to open new ones");
        }
        let deposed = is_deposed.then(|| (service.name.clone(), service.on_deposed.clone()));
        self.set_speak(index, false);
        self.standing_down.begin(index, vip, deposed);
        self.forget_dying(index, &self.wire.dying(index));
        self.claims.end(index);
        if let Err(error) = self.network.lower_vip(vip.ip()) {
            tracing::error!(%error, %vip, "stood down, but the VIP is still here");
        }
    }

    fn allow_speech(&mut self, service: ServiceIndex) {
        self.standing_down.wait(service);
        self.set_speak(service, true);
    }

    fn transmit(&mut self, packet: &[u8]) {
        if let Err(error) = self.raw.send(packet) {
            tracing::warn!(%error, "packet not sent");
        }
    }

    fn run_sync(&mut self, run: SyncRun) {
        self.state_syncs.run(run);
    }

    fn exported(&mut self, service: ServiceIndex, calls: &[u64], outcome: &ExportOutcome) {
        self.exports.finish(service, calls, outcome);
    }

    fn hold_input(&mut self, service: ServiceIndex, until: Option<proto::Instant>) {
        let until = until.map_or(0, |until| until.as_nanos());
        self.wire.hold_input(service, until);
    }

    /// Logs the report. Stores in the wire's pinned maps the part of the report that the next agent must know.
    fn report(&mut self, node: &Node, service: ServiceIndex, report: &OperatorReport) {
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

    fn say(&mut self, message: MessageToPeer) {
        match message {
            MessageToPeer::Heartbeat(heartbeat) => self.peer.send(&heartbeat),
            MessageToPeer::Ask { service, clients } => self.peer.ask(self.vip(service), clients),
            MessageToPeer::AskAll { service, query } => self.peer.ask_all(self.vip(service), query),
            MessageToPeer::Part { service, part } => self.peer.send_part(self.vip(service), part),
            MessageToPeer::Receipt { service, receipt } => self.peer.send_receipt(self.vip(service), receipt),
            MessageToPeer::AskPrefix { service, ask } => self.peer.ask_prefix(self.vip(service), ask),
        }
    }

    fn probe(&mut self) {
        self.peer.probe();
    }

    fn take_unlogged(&mut self, service: ServiceIndex) -> u64 {
        let packets = self.wire.take_unlogged(service);
        if packets > 0 && self.wire.is_immediate(service) {
            let is_new = self.gap_told.is_none_or(|at| at.elapsed() >= GAP_EVERY);
            if is_new {
                self.gap_told = Some(Instant::now());
                tracing::warn!(
                    service = self.service_name(service),
                    packets,
                    "the log was full, and packets passed unlogged (commit mode immediate); connections are not protected until they begin \
                     anew"
                );
            }
        } else if packets > 0 {
            tracing::error!(
                service = self.service_name(service),
                packets,
                "the log has a gap: the agent was away; connections are not protected until they begin anew"
            );
        }
        packets
    }

    fn read_all(&mut self, reader: &mut dyn LogReader) {
        self.rings.drain(usize::MAX, true, &mut RingReader(reader));
    }

    fn restore<'a>(
        &mut self,
        service: ServiceIndex,
        endpoint: &Endpoint,
        output: impl Iterator<Item = &'a [u8]>,
    ) -> Result<RestoredSocket, String> {
        let pool = &mut self.services[usize::from(service)].pool;
        RestoredSocket::new(pool, endpoint, output).map_err(|error| error.to_string())
    }

    fn make_ready(&mut self, socket: &RestoredSocket) -> Result<(), String> {
        socket.make_ready().map_err(|error| error.to_string())
    }

    fn feed<'a>(
        &mut self,
        socket: &RestoredSocket,
        _: &Endpoint,
        mut input: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        let fed = input.try_for_each(|slice| socket.feed(slice));
        fed.map_err(|error| error.to_string())
    }

    fn activate(
        &mut self,
        service: ServiceIndex,
        endpoint: &Endpoint,
        socket: RestoredSocket,
        is_quiet: bool,
    ) -> Result<LiveSocket, String> {
        let socket = socket.activate(is_quiet).map_err(|error| error.to_string())?;
        let number = self.relay.add_live(service, endpoint.client, self.now());
        Ok(LiveSocket { number, socket })
    }

    fn offered_window(&self, socket: &LiveSocket) -> u32 {
        linux::repair::offered_window(&socket.socket).unwrap_or(0)
    }

    fn drop_restored(&mut self, _: ServiceIndex, _: &Endpoint, _: RestoredSocket) {}

    fn drop_live(&mut self, _: ServiceIndex, _: &Endpoint, socket: LiveSocket) {
        self.relay.drop_taken(socket.number);
    }

    fn close_live(
        &mut self,
        service: ServiceIndex,
        id: ConnectionId,
        _: &Endpoint,
        socket: LiveSocket,
        _has_ended: bool,
    ) {
        self.replicas.close(service, id);
        self.relay.drop_taken(socket.number);
    }

    fn relay(
        &mut self,
        service: ServiceIndex,
        id: ConnectionId,
        endpoint: Endpoint,
        socket: LiveSocket,
        taken: HandedOver,
    ) {
        let replica = self.replicas.take(service, id);
        let HandedOver { connection, syn_ack } = taken;
        self.exports.moved().arrive(service, endpoint.client);
        self.relay.hand_over(Handover {
            id: socket.number,
            service,
            client: endpoint.client,
            socket: socket.socket,
            content: HandoverContent::Logged(Box::new(LoggedContent {
                connection,
                syn_ack,
                endpoint,
                replica,
            })),
        });
    }

    fn restore_at<'a>(
        &mut self,
        service: ServiceIndex,
        node: ServingNode,
        endpoint: &Endpoint,
        output: impl Iterator<Item = &'a [u8]>,
    ) {
        self.ask_to_restore(service, node, endpoint, output);
    }

    fn guide(&mut self, service: ServiceIndex, client: SocketAddr, node: ServingNode) {
        self.guide_to(service, client, node);
    }

    fn start_at<'a>(
        &mut self,
        service: ServiceIndex,
        node: ServingNode,
        endpoint: &Endpoint,
        connection: &Connection,
        late: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        self.ask_to_start(service, node, (endpoint, connection), late)
    }

    fn drop_at(&mut self, service: ServiceIndex, node: ServingNode, client: SocketAddr) {
        self.annexes.forget_guest(service, client, node);
        self.annexes.send(service, node, AnnexRequest::Drop(client));
    }

    fn ask_annex(&mut self, service: ServiceIndex, annex: AnnexId, clients: Vec<SocketAddr>) {
        let node = ServingNode::Annex(annex);
        self.annexes.send(service, node, AnnexRequest::Ask(clients));
    }

    fn answer_part(&mut self, service: ServiceIndex, annex: AnnexId, receipt: PartReceipt) {
        let node = ServingNode::Annex(annex);
        self.annexes.send(service, node, AnnexRequest::Receipt(receipt));
    }

    fn open_replica(
        &mut self,
        service: ServiceIndex,
        id: ConnectionId,
        client: SocketAddr,
    ) -> Result<(), String> {
        self.replicas.open(service, id, client)?;
        // Check after connecting: if the listeners are still the known ones, one of them has got the connection.
        if self.servers.has_restarted(service) {
            self.replicas.close(service, id);
            return Err("the replica's server was started again after its state had been copied".to_owned());
        }
        Ok(())
    }

    fn write_replica<'a>(
        &mut self,
        service: ServiceIndex,
        id: ConnectionId,
        input: impl Iterator<Item = LogPart<'a>>,
        ends: bool,
    ) -> Option<Result<Written, String>> {
        self.replicas.write(service, id, input, ends)
    }

    fn close_replica(&mut self, service: ServiceIndex, id: ConnectionId) {
        self.replicas.close(service, id);
    }
}

/// Passes the log's records to the agent.
pub(super) struct RingReader<'a>(pub(super) &'a mut dyn LogReader);

impl wire::RecordReader for RingReader<'_> {
    fn record(&mut self, record: &wire::Record, packet: &[u8], source: OnShelf<'_>) {
        let direction = if record.direction == 0 {
            Direction::In
        } else {
            Direction::Out
        };
        let time = proto::Instant::from_nanos(record.time_ns);
        let (service, checksum) = (record.service, wire::checksum_of(record));
        self.0
            .packet(time, service, direction, packet, checksum, Some(source));
    }

    fn keep(&mut self, shelf: &dyn Shelf) {
        self.0.keep(shelf);
    }
}

/// The end of the right to speak, in nanoseconds, as the wire's programs read it. 0 means no end, so an end at time 0 becomes 1.
fn nanos_of(until: Option<proto::Instant>) -> u64 {
    until.map_or(0, |until| until.as_nanos().max(1))
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
