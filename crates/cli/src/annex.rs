//! `steadfast annex`: takes live connections of services that other nodes protect (docs/annex.md).
//!
//! A pair's wire calls this node, gives it connections, and passes their packets to it. What this node sends on these connections goes through
//! the wire only. So an annex needs no role, no epoch and no lease: the wire says which node speaks.
//!
//! An annex that is started again begins anew. The wire has taken over what it had.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
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
use proto::hosting::Having;
use proto::restart::http::Volatile;

use crate::config::{AnnexFile, AnnexService};
use crate::daemon::annex::host::{self, AnnexCall, HostedConnections};
use crate::daemon::annex::message::{AnnexReply, AnnexRequest, WakeAgent, WireHello};
use crate::daemon::relay::{RelayService, RelayedConnections};
use crate::keepers::Keepers;
use crate::wakeup::Wakeup;

/// The longest sleep of the loop.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two looks for connections that have ended.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// Time that the wires have to take back all connections when the annex stops.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Sockets kept ready, per service.
const POOL: usize = 64;

/// A service, as the annex has it.
struct HostedService {
    settings: AnnexService,
    mac: [u8; 6],
    pool: Pool,
    hosted: HostedConnections,
    /// The network towards the wire at this address.
    network: Option<(IpAddr, Network)>,
    /// Answers go here.
    wire: Option<Sender<AnnexReply>>,
}

struct AnnexDaemon<'a> {
    file: &'a AnnexFile,
    wire: Wire,
    deaths: Deaths,
    relay: RelayedConnections,
    raw: RawSender,
    services: Vec<HostedService>,
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
    remove_leftovers(file)?;
    let mut annex = AnnexDaemon::set_up(file)?;
    let listener = TcpListener::bind(file.listen).with_context(|| format!("listening at {}", file.listen))?;
    let wake: WakeAgent = Arc::new(wakeup.waker());
    let calls = host::serve(listener, file.key.clone(), wake).context("starting a thread")?;
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
    annex.give_back(&calls, &wakeup);
    annex.tear_down()?;
    tracing::info!("stopped; the network is as it was found");
    Ok(())
}

/// The directory with the state of a service's network.
fn network_dir(file: &AnnexFile, service: &AnnexService) -> std::path::PathBuf {
    file.state_dir.join(&service.name)
}

/// The name of a service's nftables table.
fn instance(file: &AnnexFile, service: &AnnexService) -> String {
    format!("{}-{}", file.name, service.name)
}

fn options() -> WireOptions {
    WireOptions {
        ring_cached_bytes: 1 << 20, // an annex logs nothing
        ring_bytes: 1 << 20,
        ring_open_bytes: 1 << 20,
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
    fn set_up(file: &'a AnnexFile) -> anyhow::Result<Self> {
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
                network: None,
                wire: None,
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
        })
    }

    fn take_turn(&mut self, calls: &Receiver<AnnexCall>) {
        self.wire.set_agent_seen(linux::clock::now().as_nanos());
        for call in calls.try_iter() {
            self.answer(call);
        }
        self.tell_deaths();
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
            service.hosted.host.on_link_end(link);
            return;
        };
        let reply = match request {
            AnnexRequest::Hello(hello) => match self.greet(index, hello, (link, &replies)) {
                Ok(welcome) => Some(welcome),
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), %vip, "no connections are taken");
                    return; // the wire's link gets no answer, and ends
                }
            },
            _ if !service.hosted.host.obeys(link) => return, // its wire is not this node's wire any more
            AnnexRequest::TakeBack(number) => {
                service.hosted.host.on_take_back(number);
                None
            }
            AnnexRequest::Drop(client) => {
                let was_started = service.hosted.host.forget(&client);
                if was_started {
                    end(vip, &[client]);
                }
                let place = (index, &mut service.pool, &mut self.relay, &self.raw);
                service.hosted.handle(AnnexRequest::Drop(client), place)
            }
            request => service
                .hosted
                .handle(request, (index, &mut service.pool, &mut self.relay, &self.raw)),
        };
        if let Some(reply) = reply {
            let _ = replies.send(reply); // fails only if the link has ended
        }
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
        let host = &service.hosted.host;
        host.check(&hello.greeting)
            .map_err(|why| anyhow::anyhow!("{}: {why}", hello.address))?;
        let is_carried = matches!(hello.greeting.having, Having::Asked);
        let unknown = service.hosted.take_list(&hello.greeting);
        if !unknown.is_empty() {
            end(vip, &unknown);
        }
        if service
            .network
            .as_ref()
            .is_some_and(|(wire, _)| *wire != hello.address)
        {
            self.wire.set_gate(index, Gate::Mute);
            if !is_carried {
                network::sockets::destroy(vip)?;
                service.hosted.host.forget_all();
            }
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
                node: instance(self.file, &service.settings),
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
        service.wire = Some(replies.clone());
        service.hosted.host.obey(link, &hello.greeting);
        let (name, has) = (&service.settings.name, service.hosted.host.clients());
        if is_carried {
            let connections = has.len();
            tracing::warn!(service = name, primary = %hello.address, connections, "the primary carries what is here, because the wire has failed");
        } else {
            tracing::info!(service = name, wire = %hello.address, "a wire may give connections");
        }
        let mac = service.mac;
        Ok(AnnexReply::Welcome { mac, has })
    }

    /// Tells the wires which connections have lost their process here.
    fn tell_deaths(&mut self) {
        let deaths = self.deaths.take().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read the ring of deaths; a dead keeper may go unnoticed");
            Vec::new()
        });
        for death in deaths {
            let service = &mut self.services[usize::from(death.service)];
            if let Some(client) = death.client
                && service.hosted.host.forget(&client)
            {
                service.lose(client, "its process has died");
            }
        }
    }

    /// Forgets connections that have ended.
    fn tidy(&mut self) {
        for service in &mut self.services {
            match network::sockets::open_behind(service.settings.vip, None) {
                Ok(open) => {
                    let open: HashMap<_, _> = open.into_iter().collect();
                    let gone = service.hosted.host.retain(|client| open.contains_key(client));
                    // A wire notices it in its log.
                    for client in gone.into_iter().filter(|_| service.hosted.host.is_carried()) {
                        service.lose(client, "it has ended");
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot list connections"),
            }
        }
    }

    /// Asks the wires to take back all connections, and waits until they have.
    fn give_back(&mut self, calls: &Receiver<AnnexCall>, wakeup: &Wakeup) {
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
