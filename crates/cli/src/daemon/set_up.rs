//! Sets up the wire, the network and the other parts of an agent, either from nothing or by adopting the state that an earlier agent left.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, bail};
use linux::network::{self, Network, SetUpTurn};
use linux::spill::SpillDir;
use linux::wire::{Wire, WireOptions, WireService};
use proto::Instant;
use proto::action::{Gate, ServiceIndex};
use proto::annex::AnnexId;
use proto::connection::AtLimit;
use proto::detector::DetectorConfig;
use proto::follower::Opaque;
use proto::node::NodeConfig;
use proto::restart::http::Rules;
use proto::service::ServiceConfig;
use proto::spill::Spills;
use proto::table::TableConfig;

use super::annex::lists::guided_to_annexes;
use super::health::HealthWatch;
use super::kernel::{LinuxKernel, part_behind};
use super::own::first_own_client;
use super::peer::PeerLinks;
use super::servers::Servers;
use super::state_sync::StateSyncs;
use crate::arbiter::ArbiterClient;
use crate::config::{self, Commit, Config, CutReplies, NodeRole};
use crate::lock::{self, Lock};

/// Size in bytes of the ring that is used while the agent keeps up. A smaller ring fills too often. A larger ring does not fit the CPU's
/// caches.
const RING_CACHED_BYTES: u32 = 16 << 20;

/// The result of [`set_up`].
pub(super) struct SetUp {
    pub(super) kernel: LinuxKernel,
    /// The state that an earlier agent left. `None` if there was none.
    pub(super) found: Option<EarlierAgent>,
}

/// The state that an earlier agent left. That agent is dead or replaced.
pub(super) struct EarlierAgent {
    /// The state of each service, in the order of the configuration.
    pub(super) services: Vec<proto::service::InheritedService>,
    /// When that agent last checked in (`LinuxKernel::check_in`).
    pub(super) seen: Instant,
}

/// Adopts the state that an earlier agent left. If there is none, attaches the wire's programs and then sets up the nft guard. The VIPs
/// come up when the roles are agreed.
pub(super) fn set_up(
    config: &Config,
    wake: impl Fn() + Clone + Send + 'static,
    arbiter: ArbiterClient,
) -> anyhow::Result<SetUp> {
    let options = wire_options(config);
    let services = wire_services(config)?;
    let adopted = Wire::adopt(&config.node.instance, &options, &services)?;
    let found = adopted
        .as_ref()
        .map(|wire| earlier_agent(config, wire))
        .transpose()?;
    let (wire, network) = match (adopted, &found) {
        (Some(wire), Some(found)) => {
            close_doubted(config, &wire);
            go_on(config, wire, found)?
        }
        _ => begin(config, &options, &services)?,
    };
    let state_syncs = StateSyncs::start(config, wake.clone())?;
    let probed = config.services.iter();
    let probed = probed.map(|it| (it.name.as_str(), it.application, it.health.as_ref()));
    let servers = Servers::new(config, wire.deaths()?, HealthWatch::start(probed, wake)?);
    let peer = PeerLinks::open(config).context("opening the links to the peer")?;
    let kernel = LinuxKernel::new(config, wire, network, servers, state_syncs, arbiter, peer)?;
    Ok(SetUp { kernel, found })
}

/// Checks that a program with `config` could take the place of this node's running daemon. Changes nothing.
///
/// # Errors
/// If no daemon runs, or if its state cannot be adopted. The error says why.
pub fn could_go_on(config: &Config) -> anyhow::Result<()> {
    let node = &config.node;
    if Lock::holder(&node.state_dir, lock::DAEMON)?.is_none() {
        bail!(
            "no daemon runs for node {}, so there is none to replace",
            node.name
        );
    }
    if !Wire::fits(&node.instance, &wire_options(config), &wire_services(config)?)? {
        bail!("the running daemon's node is not called {}", node.name);
    }
    let journal = network::journal(&node.state_dir);
    if network::begun(&journal)?.as_ref() != Some(&plan(config)) {
        bail!(
            "services, their interfaces, peers or applications differ from the running daemon's; to change them, stop \
             the daemon"
        );
    }
    Ok(())
}

fn earlier_agent(config: &Config, wire: &Wire) -> anyhow::Result<EarlierAgent> {
    let annexed = (0..).zip(guided_to_annexes(config, wire)?);
    Ok(EarlierAgent {
        services: annexed
            .map(|(index, annexed)| found_of(config, wire, index, annexed))
            .collect(),
        seen: Instant::from_nanos(wire.agent_seen()),
    })
}

fn found_of(
    config: &Config,
    wire: &Wire,
    index: ServiceIndex,
    annexed: Vec<(SocketAddr, AnnexId)>,
) -> proto::service::InheritedService {
    let (gate, epoch) = wire.gate(index);
    proto::service::InheritedService {
        gate,
        epoch,
        is_consented: wire.is_consented(index),
        is_confirmed: wire.until(index) == 0,
        doubted: wire
            .doubted(index, epoch)
            .filter(|_| config.arbiter == config::ArbiterSettings::FailStop),
        seen: Instant::from_nanos(wire.agent_seen()),
        taken: wire.held(index),
        reversed_here: wire.reversed_here(index),
        reversed_there: wire.reversed_there(index),
        frozen: wire.frozen(index),
        moved: wire.left(index),
        annexed,
        orphans: wire.dying(index),
    }
}

/// Applies only under `fail-stop`. If no agent ran on this node for the agent timeout or longer, the backup may have gone on alone. Then
/// this function closes the gates of the services of which this node is the primary. The state machine ([`proto::node::Node`]) closes these
/// gates too, but this start may fail before the state machine runs, and may fail repeatedly.
fn close_doubted(config: &Config, wire: &Wire) {
    let away = linux::clock::now().since(Instant::from_nanos(wire.agent_seen()));
    if config.arbiter != config::ArbiterSettings::FailStop || away < config.node.agent_timeout {
        return;
    }
    for (index, service) in (0..).zip(&config.services) {
        let (gate, epoch) = wire.gate(index);
        if gate == Gate::Primary {
            tracing::warn!(
                service = service.name,
                ?away,
                "this node had no running agent for too long, so the backup may have gone on alone; the primary is mute for now"
            );
            wire.set_doubted(index, Some((true, epoch)));
            wire.set_gate(index, Gate::Mute);
        }
    }
}

/// Adopts the network that an earlier agent left. A failure undoes nothing: forwarding goes on, and the operator decides. This step does
/// not record that an agent runs. Otherwise a failed start would hide how long this node had no agent.
fn go_on(config: &Config, mut wire: Wire, found: &EarlierAgent) -> anyhow::Result<(Wire, Network)> {
    tracing::info!("adopting the state that an earlier agent left");
    if let Some(left_out) = wire.attach()? {
        tracing::warn!("{left_out}");
    }
    let journal = network::journal(&config.node.state_dir);
    let mut network = Network::adopt(&plan(config), &journal)?
        .with_context(|| format!("{} is missing; run `steadfast cleanup` first", journal.display()))?;
    // The earlier agent may have died after it changed the gate and before it changed the network. The gate decides.
    for (service, found) in config.services.iter().zip(&found.services) {
        let gate = if found.is_mute_primary() {
            Gate::Primary
        } else {
            found.gate
        };
        if let Some(part) = part_behind(gate) {
            network.assume(service.address, part)?;
        }
    }
    Ok((wire, network))
}

fn begin(
    config: &Config,
    options: &WireOptions,
    services: &[WireService],
) -> anyhow::Result<(Wire, Network)> {
    let mut wire = Wire::load(&config.node.instance, options)?;
    let _turn = SetUpTurn::take().context("waiting for other agents of this network namespace")?;
    let attached = (|| {
        for (index, service) in (0..).zip(services) {
            wire.add_service(index, service)?;
        }
        if let Some(left_out) = wire.attach()? {
            tracing::warn!("{left_out}");
        }
        anyhow::Ok(())
    })();
    let journal = network::journal(&config.node.state_dir);
    let network = attached.and_then(|()| Ok(Network::prepare(&plan(config), &journal)?));
    match network {
        Ok(network) => Ok((wire, network)),
        Err(error) => {
            if let Err(error) = wire.remove() {
                tracing::error!(%error, "cannot remove the wire; run `steadfast cleanup`");
            }
            Err(error)
        }
    }
}

fn wire_options(config: &Config) -> WireOptions {
    WireOptions {
        ring_cached_bytes: RING_CACHED_BYTES,
        ring_bytes: config.log.ring_bytes,
        ring_open_bytes: config.log.syn_ring_bytes,
        agent_timeout: config.node.agent_timeout,
        chunks_only: false,
        is_annex: false,
    }
}

fn wire_services(config: &Config) -> anyhow::Result<Vec<WireService>> {
    let vips: Vec<IpAddr> = config.services.iter().map(|service| service.address).collect();
    let of = |service: &config::ServiceSettings| {
        let interface = network::Interface::find(&service.interface)?
            .with_context(|| format!("interface {} is gone", service.interface))?;
        let mac = interface.mac.map(|mac| mac.0);
        anyhow::Ok(WireService {
            address: service.address,
            port: service.port,
            ifindex: interface.index,
            own_mac: mac.with_context(|| format!("interface {} has no MAC address", interface.name))?,
            crash_exit_codes: service.crash_exit_codes.clone(),
            application: Some(service.application),
            own: first_own_client(service, &interface, &vips),
        })
    };
    config.services.iter().map(of).collect()
}

fn plan(config: &Config) -> network::NetworkPlan {
    let services = config
        .services
        .iter()
        .map(|service| network::NetworkService {
            address: (service.address, service.port).into(),
            interface: service.interface.clone(),
            peer: service.peer_address,
            application: service.application,
            staged_application: service.staged_application,
            sends_directly: service.commit.is_direct(),
        })
        .collect();
    network::NetworkPlan {
        node: config.node.instance.clone(),
        services,
    }
}

pub(super) fn node_config(
    config: &Config,
    without_peer: bool,
    kernel: &LinuxKernel,
    found: Option<&EarlierAgent>,
) -> NodeConfig {
    let services = config
        .services
        .iter()
        .zip(kernel.macs())
        .enumerate()
        .map(|(index, (service, mac))| ServiceConfig {
            table: TableConfig {
                vip: (service.address, service.port).into(),
                policy: service.policy,
                rules: Rules {
                    reexecute: service.reexecute,
                    ranges: service.cut_replies == CutReplies::Rest,
                },
                opaque: opaque(config, service),
                connection_bytes_max: config.log.per_connection_bytes,
                bytes_max: config.log.total_bytes,
                at_limit: at_limit(&config.log, service.at_limit),
                sends_directly: service.commit.is_direct(),
                is_immediate: service.commit == Commit::Immediate,
                keep_input: service.keep_input,
                hash_seed: linux::process::random_seed(),
            },
            is_primary: service.role == NodeRole::Primary,
            mac,
            found: found.map(|found| found.services[index].clone()),
            state_sync: service.state_sync.as_ref().map(|sync| sync.hold),
        })
        .collect();
    let detector = DetectorConfig {
        interval: config.detector.heartbeat,
        missed: config.detector.missed,
        agent_timeout: config.node.agent_timeout,
    };
    NodeConfig {
        name: config.node.name.clone(),
        incarnation: linux::process::random_seed() as u64,
        without_peer,
        detector,
        lease: config.detector.lease,
        arbiter: match config.arbiter {
            config::ArbiterSettings::FailStop => proto::standing::Arbiter::FailStop,
            config::ArbiterSettings::Fence(_) => proto::standing::Arbiter::Fence,
            config::ArbiterSettings::Witness(_) => proto::standing::Arbiter::Witness,
        },
        fence_delay: match &config.arbiter {
            config::ArbiterSettings::Fence(fence) => fence.delay,
            config::ArbiterSettings::FailStop | config::ArbiterSettings::Witness(_) => {
                std::time::Duration::ZERO
            }
        },
        services,
    }
}

/// Settings for following a service's connections that do not speak HTTP. `None` if they are not followed.
fn opaque(config: &Config, service: &config::ServiceSettings) -> Option<Arc<Opaque>> {
    (service.opaque == config::OpaqueSetting::Replica).then(|| {
        Arc::new(Opaque {
            bound: usize::try_from(config.log.per_connection_bytes).unwrap_or(usize::MAX),
            volatile: service.volatile(),
        })
    })
}

/// Treatment of a service's connections whose logs are full.
fn at_limit(log: &config::LogSettings, at_limit: config::AtLimitSetting) -> AtLimit {
    match at_limit {
        config::AtLimitSetting::Unprotect => AtLimit::Unprotect,
        config::AtLimitSetting::Spill => {
            let depot = Box::new(SpillDir(log.spill_dir.clone()));
            AtLimit::Spill(Spills::new(depot, log.spill_bytes))
        }
        config::AtLimitSetting::Slow => AtLimit::Slow,
    }
}
