//! `steadfast annex`: takes live connections of services that other nodes protect (docs/annex.md).
//!
//! A pair's wire calls this node, gives it connections, and passes their packets to it. What this node sends on these connections goes through
//! the wire only. So an annex needs no role, no epoch and no lease: the wire says which node speaks.
//!
//! An annex that is started again begins anew. The wire has taken over what it had.

mod status;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::Context;
use linux::network::{self, Interface, Network, NetworkPart, NetworkPlan, NetworkService, SetUpTurn};
use linux::raw::RawSender;
use linux::repair::Pool;
use linux::wire::{self, Deaths, Wire, WireOptions, WireService};
use proto::action::{Gate, ServiceIndex};
use proto::annex::{AnnexId, ServingNode};
use proto::export::Exports;
use proto::follower::RestartPolicy;
use proto::hosting::{Having, HostGreeting};
use proto::restart::http::Volatile;

use crate::config::{AnnexFile, AnnexService};
use crate::control::{Call, ControlServer, ExportRequest};
use crate::daemon::annex::host::{self, AnnexCall, HostPlace, HostedConnections};
use crate::daemon::annex::message::{AnnexReply, AnnexRequest, WakeAgent, WireHello};
use crate::daemon::health::HealthWatch;
use crate::daemon::relay::{RelayService, RelayedConnections};
use crate::daemon::servers::listeners_of;
use crate::daemon::snapshots::{self, SnapshotPlace, SnapshotService, WaitingExports};
use crate::keepers::Keepers;
use crate::registry::registrar::{Registrar, Registration};
use crate::wakeup::Wakeup;

/// The longest sleep of the loop.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two looks for connections that have ended.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// Time that the wires have to take back all connections when the annex stops.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Sockets kept ready, per service.
const POOL: usize = 64;
/// A file in the state directory of an annex, which shows what kind of daemon the directory belongs to.
const MARK: &str = "annex";
/// The reason to give up connections of an application that hangs, and to refuse others.
const HANGS: &str = "the application does not answer";

/// Whether the daemon with this state directory is an annex.
pub fn is_annex(state_dir: &Path) -> bool {
    state_dir.join(MARK).is_file()
}

/// The services for which the annex with this state directory has set up a network.
fn services_in(state_dir: &Path) -> Vec<String> {
    if !is_annex(state_dir) {
        return Vec::new();
    }
    let entries = std::fs::read_dir(state_dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| network::journal(&state_dir.join(name)).exists())
        .collect()
}

/// The names of the guards of the annex with this state directory.
pub fn guards(name: &str, state_dir: &Path) -> Vec<String> {
    let services = services_in(state_dir);
    services.iter().map(|service| guard(name, service)).collect()
}

/// Removes what only an annex leaves: the networks of its services, and its mark. The caller holds the lock, and removes the rest.
///
/// # Errors
/// The step that failed.
pub fn leave_nothing(name: &str, state_dir: &Path) -> anyhow::Result<()> {
    for service in services_in(state_dir) {
        let journal = network::journal(&state_dir.join(&service));
        let plan = network::begun(&journal)?;
        network::undo(&journal).with_context(|| format!("restoring the network of service {service}"))?;
        for of in plan.iter().flat_map(|plan| &plan.services) {
            if let Some(interface) = Interface::find(&of.interface)? {
                wire::detach(interface.index).with_context(|| format!("detaching from {}", of.interface))?;
            }
        }
        network::remove_guard(&guard(name, &service)).context("removing the guard")?;
        let _ = std::fs::remove_dir(state_dir.join(&service)); // fails if it has files that are not the annex's
    }
    match std::fs::remove_file(state_dir.join(MARK)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context("removing the annex's mark")
        }
        _ => Ok(()),
    }
}

/// A service, as the annex has it.
struct HostedService {
    settings: AnnexService,
    mac: [u8; 6],
    pool: Pool,
    hosted: HostedConnections,
    /// States that its application has exported.
    exports: Exports,
    /// The network towards the wire at this address.
    network: Option<(IpAddr, Network)>,
    /// Answers go here.
    wire: Option<Sender<AnnexReply>>,
    /// Clients whose connections the wire was asked to take over, because the application hangs.
    leaving: BTreeSet<SocketAddr>,
}

struct AnnexDaemon<'a> {
    file: &'a AnnexFile,
    wire: Wire,
    deaths: Deaths,
    relay: RelayedConnections,
    raw: RawSender,
    services: Vec<HostedService>,
    /// Calls of applications that export their state.
    waiting: WaitingExports,
    /// Its key in the registry.
    registration: Option<Registration>,
    health: HealthWatch,
}

/// What others want of an annex.
struct AnnexInbox {
    /// Wires, over their links.
    links: Receiver<AnnexCall>,
    /// Operators and applications.
    local: Receiver<Call>,
}

/// Runs the annex until SIGTERM or SIGINT. The caller holds the lock of the state directory. At the end, gives the connections back to their
/// wires, and restores the network as it was found.
///
/// # Errors
/// The step of the start or of the cleanup that failed.
pub fn run(file: &AnnexFile) -> anyhow::Result<()> {
    linux::process::raise_file_limit().context("raising the limit of open files")?;
    let wakeup = Wakeup::new().context("making the wake-up pipe")?;
    let stop = wakeup
        .on_signals(&[signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])
        .context("catching signals")?;
    let registry = file.registry.as_ref();
    let registrar = registry.map(|settings| Registrar::new(file, settings));
    let registrar = registrar.transpose().context("reading the files of [registry]")?;
    remove_leftovers(file)?;
    let probed = file.services.iter();
    let probed = probed.map(|it| (it.name.as_str(), it.application, it.health.as_ref()));
    let health = HealthWatch::start(probed, wakeup.waker())?;
    let mut annex = AnnexDaemon::set_up(file, health)?;
    let listener = TcpListener::bind(file.listen).with_context(|| format!("listening at {}", file.listen))?;
    let wake: WakeAgent = Arc::new(wakeup.waker());
    let own = ServingNode::Annex(AnnexId::of(&file.name));
    let links = host::serve((listener, own), file.key.clone(), wake).context("starting a thread")?;
    let (control, asker, local) = ControlServer::open(&file.state_dir, wakeup.waker())?;
    let calls = AnnexInbox { links, local };
    let snapshots = snapshots::serve(annex.snapshot_place(), &asker, &annex.waiting)?;
    std::fs::write(file.state_dir.join(MARK), "").context("marking the state directory")?;
    annex.registration = registrar.map(Registration::start).transpose()?;
    tracing::info!(annex = file.name, listen = %file.listen, "ready");
    let mut tidied = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        annex.take_turn(&calls);
        if tidied.elapsed() >= TIDY_EVERY {
            annex.tidy();
            tidied = Instant::now();
        }
        wakeup.wait(&[annex.deaths.as_fd()], LOOK);
        wakeup.clear();
    }
    if let Some(registration) = &mut annex.registration {
        registration.leave();
    }
    annex.give_back(&calls, &wakeup);
    drop((control, snapshots, annex.registration.take()));
    annex.tear_down()?;
    std::fs::remove_file(file.state_dir.join(MARK)).context("removing the mark of the state directory")?;
    tracing::info!("stopped; the network is as it was found");
    Ok(())
}

/// The directory with the state of a service's network.
fn network_dir(file: &AnnexFile, service: &AnnexService) -> std::path::PathBuf {
    file.state_dir.join(&service.name)
}

/// The name of a service's nftables table.
fn guard(annex: &str, service: &str) -> String {
    format!("{annex}-{service}")
}

fn options() -> WireOptions {
    WireOptions {
        ring_cached_bytes: 1 << 20, // an annex logs nothing
        ring_bytes: 1 << 20,
        ring_open_bytes: 1 << 20,
        is_annex: true,
        ..WireOptions::default()
    }
}

fn wire_services(file: &AnnexFile) -> anyhow::Result<Vec<WireService>> {
    let of = |service: &AnnexService| {
        let interface = Interface::find(&service.interface)?
            .with_context(|| format!("there is no interface {}", service.interface))?;
        let mac = interface.mac.map(|mac| mac.0);
        anyhow::Ok(WireService {
            address: service.vip.ip(),
            port: service.vip.port(),
            ifindex: interface.index,
            own_mac: mac.with_context(|| format!("interface {} has no MAC address", interface.name))?,
            crash_exit_codes: Vec::new(),
            application: Some(service.application),
            own: None,
        })
    };
    file.services.iter().map(of).collect()
}

/// Removes what a dead annex has left. Its sockets end without a word: their gate is closed first.
fn remove_leftovers(file: &AnnexFile) -> anyhow::Result<()> {
    if wire::is_left_behind(&file.name) {
        tracing::warn!("removing what an earlier annex has left; its connections are its wire's now");
        if let Some(wire) = Wire::adopt(&file.name, &options(), &wire_services(file)?)? {
            for (index, service) in (0..).zip(&file.services) {
                wire.set_gate(index, Gate::Mute);
                network::sockets::destroy(service.vip)?;
            }
            wire.remove()?;
        }
    }
    for service in &file.services {
        network::undo(&network::journal(&network_dir(file, service)))?;
    }
    Ok(())
}

impl<'a> AnnexDaemon<'a> {
    fn set_up(file: &'a AnnexFile, health: HealthWatch) -> anyhow::Result<Self> {
        let found = wire_services(file)?;
        let mut wire = Wire::load(&file.name, &options())?;
        let turn = SetUpTurn::take().context("waiting for other agents of this network namespace")?;
        let attached = (|| {
            for (index, service) in (0..).zip(&found) {
                wire.add_service(index, service)?;
            }
            wire.attach()
        })();
        drop(turn);
        match attached {
            Ok(left_out) => {
                if let Some(left_out) = left_out {
                    tracing::warn!("{left_out}");
                }
            }
            Err(error) => {
                wire.remove()?;
                return Err(error.into());
            }
        }
        let services = file
            .services
            .iter()
            .zip(&found)
            .map(|(service, found)| HostedService {
                settings: service.clone(),
                mac: found.own_mac,
                pool: Pool::new(service.vip),
                hosted: HostedConnections::default(),
                exports: Exports::new(linux::clock::now()),
                network: None,
                wire: None,
                leaving: BTreeSet::new(),
            });
        let relayed = file.services.iter().map(|service| RelayService {
            name: service.name.clone(),
            application: service.application,
            volatile: Volatile::default(),
            closes: false,
            keep: None,
        });
        let mut relay = RelayedConnections::of(relayed.collect());
        relay.start(Keepers::open(&file.state_dir)?)?;
        Ok(Self {
            file,
            deaths: wire.deaths()?,
            wire,
            relay,
            raw: RawSender::open().context("opening raw sockets")?,
            services: services.collect(),
            waiting: WaitingExports::default(),
            registration: None,
            health,
        })
    }

    /// What its applications may export and import.
    fn snapshot_place(&self) -> SnapshotPlace<'a> {
        let services = (0..).zip(&self.file.services);
        let services = services.filter(|(_, service)| service.policy == RestartPolicy::Snapshot);
        let services = services.map(|(index, service)| SnapshotService {
            index,
            vip: service.vip,
            application: service.application,
        });
        SnapshotPlace {
            services: services.collect(),
            socket: &self.file.snapshot_socket,
            state_dir: &self.file.state_dir,
            ends: self.wire.hidden_ends(),
        }
    }

    fn take_turn(&mut self, calls: &AnnexInbox) {
        self.wire.set_agent_seen(linux::clock::now().as_nanos());
        for call in calls.links.try_iter() {
            self.answer(call);
        }
        self.tell_deaths();
        self.leave_hung();
        for call in calls.local.try_iter() {
            self.answer_local(call);
        }
        self.send_snapshots();
        for service in self
            .services
            .iter_mut()
            .filter(|service| service.network.is_some())
        {
            if let Err(error) = service.pool.fill(POOL, POOL) {
                tracing::debug!(%error, "socket pool not filled");
            }
        }
    }

    fn answer_local(&mut self, call: Call) {
        match call {
            Call::Annex(reply) => reply.send(self.status()),
            Call::Export(ExportRequest { service, call }, reply) => {
                let number = (self.waiting.begin(call.waits, reply), call.waits);
                let exports = &mut self.services[usize::from(service)].exports;
                exports.begin(linux::clock::now(), number, call.client, call.place, call.state);
            }
            // An annex has relayed connections only. Those that have moved are known.
            Call::HasMoved(_, reply) => {
                let _ = reply.send(false); // fails only if the application has gone away
            }
            Call::Died(service, client) => self.tell_death(service, client),
            Call::Status(_)
            | Call::Connections(_)
            | Call::Restored(_)
            | Call::Order(..)
            | Call::Edge(_)
            | Call::Tunnel(_)
            | Call::Connect(_)
            | Call::Accept(_) => {} // the asker is told that there is no answer
        }
    }

    /// Sends the wires the parts of snapshots that are due, and tells applications the outcomes.
    fn send_snapshots(&mut self) {
        let now = linux::clock::now();
        for (index, service) in (0..).zip(&mut self.services) {
            service.send_snapshots(now);
            while let Some((calls, outcome)) = service.exports.poll_outcome() {
                self.waiting.finish(index, &calls, &outcome);
            }
        }
    }

    fn answer(&mut self, call: AnnexCall) {
        let AnnexCall {
            link,
            vip,
            request,
            replies,
        } = call;
        let found = (0..)
            .zip(&mut self.services)
            .find(|(_, service)| service.settings.vip == vip);
        let Some((index, service)) = found else {
            tracing::warn!(%vip, "a wire asks for a service that the configuration does not have");
            return;
        };
        let Some(request) = request else {
            service.hosted.host.on_link_end(linux::clock::now(), link);
            return;
        };
        if let AnnexRequest::Hello(hello) = &request
            && let Err(reason) = service.hosted.host.check(linux::clock::now(), &hello.greeting)
        {
            tracing::info!(reason, from = %hello.address, %vip, "a link is refused");
            return; // it gets no answer, and ends
        }
        let reply = match request {
            AnnexRequest::Hello(hello) => match self.greet(index, hello, (link, &replies)) {
                Ok(welcome) => Some(welcome),
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), %vip, "no connections are taken");
                    return;
                }
            },
            _ if !service.hosted.host.obeys(link) => return, // its wire is not this node's wire any more
            AnnexRequest::TakeBack(number) => {
                service.hosted.host.on_take_back(number);
                None
            }
            AnnexRequest::Ask(clients) => match network::sockets::terms(vip, &clients) {
                Ok(told) => Some(AnnexReply::Told(told.into_iter().map(Into::into).collect())),
                Err(error) => {
                    tracing::warn!(%error, "cannot look up connections; the wire asks again");
                    None
                }
            },
            AnnexRequest::Receipt(receipt) => {
                service.exports.on_receipt(linux::clock::now(), &receipt);
                None
            }
            request => self.host(index, request),
        };
        if let Some(reply) = reply {
            let _ = replies.send(reply); // fails only if the link has ended
        }
    }

    /// Carries out what a wire asks about one connection. Returns the answer.
    fn host(&mut self, index: ServiceIndex, request: AnnexRequest) -> Option<AnnexReply> {
        let service = &mut self.services[usize::from(index)];
        let (vip, application) = (service.settings.vip, service.settings.application);
        match &request {
            AnnexRequest::Restore { endpoint, .. } => {
                let client = endpoint.client;
                if listeners_of(application).is_empty() {
                    let reason = format!("no process listens at {application}");
                    return Some(AnnexReply::Refused { client, reason });
                }
                if self.health.is_hung(index) {
                    let reason = HANGS.to_owned();
                    return Some(AnnexReply::Refused { client, reason });
                }
                // The process of an earlier connection of this client may have died here.
                if let Err(error) = self.wire.forget_dying(index, &[client]) {
                    tracing::warn!(%error, %client, "the end of the client's connection may be hidden from it");
                }
            }
            AnnexRequest::Drop(client) if service.hosted.host.forget(client) => {
                self.waiting.moved().leave(index, &[*client]);
                end(vip, &[*client]);
            }
            _ => {}
        }
        let place = HostPlace {
            service: index,
            pool: &mut service.pool,
            relay: &mut self.relay,
            raw: &self.raw,
            moved: self.waiting.moved(),
            exported: service.exports.last_number(),
        };
        service.hosted.handle(request, place)
    }

    /// A wire begins a link, or a primary whose wire has failed. Sets up the network towards it, and ends the connections that it does not
    /// know. Returns the answer.
    fn greet(
        &mut self,
        index: ServiceIndex,
        hello: WireHello,
        (link, replies): (u64, &Sender<AnnexReply>),
    ) -> anyhow::Result<AnnexReply> {
        let service = &mut self.services[usize::from(index)];
        let vip = service.settings.vip;
        let is_carried = matches!(hello.greeting.having, Having::Asked);
        let unknown = service.hosted.take_list(&hello.greeting);
        if !unknown.is_empty() {
            self.waiting.moved().leave(index, &unknown);
            end(vip, &unknown);
        }
        if service
            .network
            .as_ref()
            .is_some_and(|(wire, _)| *wire != hello.address)
        {
            self.wire.set_gate(index, Gate::Mute);
            if let Some((_, network)) = service.network.take() {
                let _turn = SetUpTurn::take()?;
                network.remove()?;
            }
        }
        if service.network.is_none() {
            let _turn = SetUpTurn::take()?;
            self.wire.set_gate(index, Gate::Mute);
            let directory = network_dir(self.file, &service.settings);
            std::fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
            let plan = NetworkPlan {
                node: guard(&self.file.name, &service.settings.name),
                services: vec![NetworkService {
                    address: vip,
                    interface: service.settings.interface.clone(),
                    peer: hello.address,
                    application: service.settings.application,
                    staged_application: None,
                    sends_directly: false,
                }],
            };
            let mut network = Network::prepare(&plan, &network::journal(&directory))?;
            network.assume(vip.ip(), NetworkPart::Behind)?;
            network.set_speak(vip, true)?;
            service.network = Some((hello.address, network));
        }
        self.wire.set_peer_mac(index, hello.mac);
        self.wire.set_gate(index, Gate::Primary);
        service.obey(link, &hello.greeting, replies.clone());
        let (name, has) = (&service.settings.name, service.hosted.host.clients());
        if is_carried {
            let connections = has.len();
            tracing::warn!(service = name, primary = %hello.address, connections, "the primary carries what is here, because the wire has failed");
        } else {
            tracing::info!(service = name, wire = %hello.address, "a wire may give connections");
        }
        let mac = service.mac;
        Ok(AnnexReply::Welcome {
            mac,
            has,
            carries: Vec::new(),
        })
    }

    /// Tells the wires which connections have lost their process here: the keeper, or the application's.
    fn tell_deaths(&mut self) {
        let deaths = self.deaths.take().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read the ring of deaths; a dead keeper or application may go unnoticed");
            Vec::new()
        });
        for death in deaths {
            if let Some(client) = death.client {
                self.tell_death(death.service, client);
            }
        }
    }

    fn tell_death(&mut self, index: u16, client: SocketAddr) {
        let service = &mut self.services[usize::from(index)];
        if service.hosted.host.forget(&client) {
            self.waiting.moved().leave(index, &[client]); // the wire goes on with it
            service.lose(client, "its process has died");
            end(service.settings.vip, &[client]); // the keeper may live
        }
    }

    /// Asks the wire to take over the connections of an application that does not answer. The sockets stay until the wire says that nothing of
    /// them passes any more. A primary that carries them could not go on with them.
    fn leave_hung(&mut self) {
        for (index, service) in (0..).zip(&mut self.services) {
            service.leave_hung(self.health.is_hung(index));
        }
    }

    /// Forgets connections that have ended.
    fn tidy(&mut self) {
        for service in &mut self.services {
            match network::sockets::open_behind(service.settings.vip, None) {
                Ok(open) => {
                    let open: HashMap<_, _> = open.into_iter().collect();
                    let gone = service.hosted.host.retain(|client| open.contains_key(client));
                    service.tell_ended(gone);
                }
                Err(error) => tracing::warn!(%error, "cannot list connections"),
            }
        }
    }

    /// Asks the wires to take back all connections, and waits until they have.
    fn give_back(&mut self, calls: &AnnexInbox, wakeup: &Wakeup) {
        self.tidy();
        for service in &mut self.services {
            service.hosted.host.stop();
            for client in service.hosted.host.clients() {
                service.lose(client, "the annex stops");
            }
            if service.hosted.host.is_carried() {
                service.hosted.host.forget_all(); // nobody can take them
            }
        }
        let until = Instant::now() + STOP_MAX;
        while self
            .services
            .iter()
            .any(|service| service.hosted.host.started() > 0)
            && Instant::now() < until
        {
            self.take_turn(calls);
            wakeup.wait(&[], LOOK);
            wakeup.clear();
        }
    }

    fn tear_down(mut self) -> anyhow::Result<()> {
        for (index, service) in (0..).zip(&self.services) {
            self.wire.set_gate(index, Gate::Mute);
            network::sockets::destroy(service.settings.vip)?;
        }
        self.relay.stop();
        let turn = SetUpTurn::take(); // without it, the wire must go all the same
        let mut outcome = Ok(());
        for service in self.services {
            if let Some((_, network)) = service.network {
                outcome = outcome.and(network.remove().map_err(anyhow::Error::from));
            }
        }
        let wire = self.wire.remove();
        drop(turn);
        outcome.and(wire.map_err(Into::into))
    }
}

impl HostedService {
    /// From now on this node obeys this link, which has begun with this greeting, and answers through `replies`.
    fn obey(&mut self, link: u64, greeting: &HostGreeting, replies: Sender<AnnexReply>) {
        if let Some(before) = self.wire.replace(replies) {
            let _ = before.send(AnnexReply::Superseded); // fails only if the link has ended
        }
        self.hosted.host.obey(link, greeting);
        self.leaving.clear(); // what an earlier link was to say may be lost
    }

    /// If the application hangs, asks the wire to take over each connection, once over each link.
    fn leave_hung(&mut self, is_hung: bool) {
        if !is_hung || self.hosted.host.is_carried() {
            self.leaving.clear();
            return;
        }
        let clients = BTreeSet::from_iter(self.hosted.host.clients());
        let new: Vec<_> = clients.difference(&self.leaving).copied().collect();
        if !new.is_empty() {
            let (name, connections) = (&self.settings.name, new.len());
            tracing::warn!(
                service = name,
                connections,
                "{HANGS}; the wire is asked to take over"
            );
        }
        new.into_iter().for_each(|client| self.lose(client, HANGS));
        self.leaving = clients;
    }

    /// Sends the wire the parts of snapshots that are due.
    fn send_snapshots(&mut self, now: proto::Instant) {
        let parts = self.hosted.host.poll_parts(now, &mut self.exports);
        let Some(wire) = &self.wire else { return };
        for part in parts {
            let _ = wire.send(AnnexReply::Part(part)); // fails only if the link has ended
        }
    }

    /// Tells the wire which connections have ended. It may have noticed it in its log.
    fn tell_ended(&self, gone: Vec<SocketAddr>) {
        if self.hosted.host.is_carried() {
            gone.into_iter()
                .for_each(|client| self.lose(client, "it has ended"));
        } else if let Some(wire) = self.wire.as_ref().filter(|_| !gone.is_empty()) {
            let told = gone.into_iter().map(|client| (client, None).into());
            let _ = wire.send(AnnexReply::Told(told.collect())); // fails only if the link has ended
        }
    }

    /// Tells the wire that this node does not have a connection any more.
    fn lose(&self, client: SocketAddr, why: &str) {
        if let Some(wire) = &self.wire {
            let reason = why.to_owned();
            let _ = wire.send(AnnexReply::Refused { client, reason }); // fails only if the link has ended
        }
    }
}

/// Ends connections without a word: their wire passes nothing of them any more.
fn end(vip: SocketAddr, clients: &[SocketAddr]) {
    if let Err(error) = network::sockets::destroy_clients(vip, clients) {
        tracing::error!(%error, %vip, "cannot end connections that are not this node's any more; they are mute");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use proto::carried::TakeBackNumber;

    use super::*;

    fn client(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    /// A service whose application hangs, with the connections of `clients`.
    fn hung(clients: &[SocketAddr]) -> HostedService {
        let vip = ([10, 0, 0, 100], 80).into();
        let mut service = HostedService {
            settings: AnnexService {
                name: "shop".to_owned(),
                vip,
                interface: "lan".to_owned(),
                policy: RestartPolicy::Http,
                application: ([127, 0, 0, 1], 8080).into(),
                health: None,
            },
            mac: [0; 6],
            pool: Pool::new(vip),
            hosted: HostedConnections::default(),
            exports: Exports::new(linux::clock::now()),
            network: None,
            wire: None,
            leaving: BTreeSet::new(),
        };
        for client in clients {
            service.hosted.host.on_started(*client);
        }
        service
    }

    /// A new link of a wire that knows of these clients. Returns what the annex says there.
    fn greet(service: &mut HostedService, link: u64, clients: &[SocketAddr]) -> Receiver<AnnexReply> {
        let (replies, said) = channel();
        let greeting = HostGreeting {
            epoch: 1,
            take_back: TakeBackNumber::default(),
            having: Having::Known(clients.to_vec()),
        };
        service.obey(link, &greeting, replies);
        said
    }

    /// The clients whose connections the wire is asked to take over.
    fn lost(said: &Receiver<AnnexReply>) -> Vec<SocketAddr> {
        let lost = |reply| match reply {
            AnnexReply::Refused { client, .. } => Some(client),
            _ => None,
        };
        said.try_iter().filter_map(lost).collect()
    }

    #[test]
    fn a_hung_applications_connections_are_named_once_over_each_link() {
        let clients = [client(1), client(2)];
        let mut service = hung(&clients);
        let first = greet(&mut service, 1, &clients);
        service.leave_hung(true);
        assert_eq!(lost(&first), clients);
        service.leave_hung(true);
        assert_eq!(lost(&first), [], "the wire was asked");
        // The link ends before the wire has read it.
        let second = greet(&mut service, 2, &clients);
        service.leave_hung(true);
        assert_eq!(
            lost(&second),
            clients,
            "the wire may not have got the first request"
        );
        assert_eq!(lost(&first), []);
    }

    #[test]
    fn connections_stay_when_the_application_answers_again() {
        let clients = [client(1)];
        let mut service = hung(&clients);
        let said = greet(&mut service, 1, &clients);
        service.leave_hung(false);
        assert_eq!(lost(&said), []);
        service.leave_hung(true);
        service.leave_hung(false);
        service.leave_hung(true);
        assert_eq!(lost(&said), [client(1), client(1)], "it hangs again");
    }
}
