//! Carries out the edge's actions on Linux: the data path, packets that are sent again, the operator's command.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant as WallInstant};

use anyhow::Context;
use linux::edge::{
    EdgeCopies, EdgePort, EdgeStringPort, EdgeWire, EdgeWireOptions, EdgeWirePlan, Injector, Side,
};
use linux::network::{self, Interface};
use linux::raw::RawSender;
use proto::Instant;
use proto::edge::cache::SecondPacket;
use proto::edge::switch::{AdoptedString, EdgeAction, FlowKey, TrafficSample};
use proto::edge::{EdgeDirection, cut, is_tcp_sum_wrong};
use proto::packet::Checksum;

use crate::bounded::{self, CommandOutcome, LatePolicy};
use crate::config::{EdgeSettings, PortSettings};

/// How long the operator's command may take. A command that takes longer is killed and run again.
const COMMAND_MAX: Duration = Duration::from_secs(10);
/// Pause before a command that failed is run again.
const COMMAND_PAUSE: Duration = Duration::from_millis(500);
/// Time between two looks at this machine's own addresses, to which packets are not steered.
const ADDRESSES_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at the ports, from which someone may have removed the programs.
const ATTACHED_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at the link-layer addresses of the strings' nodes.
const LINKS_EVERY: Duration = Duration::from_millis(200);
/// Size of the ring of copies: a second of a full 100 Mbit/s string.
const RING_BYTES: u32 = 16 << 20;
const WARN_EVERY: Duration = Duration::from_secs(10);

/// File in the state directory that lists the edge's ports. If the file exists, commands treat the directory as an edge's state directory.
const PORTS_FILE: &str = "edge.json";

/// Whether the state directory is that of an edge.
pub fn is_edge(state_dir: &Path) -> bool {
    state_dir.join(PORTS_FILE).exists()
}

/// A string whose command has ended, and whether the command succeeded.
type EndedCommand = (usize, bool);

/// The data path, with its sockets, its settings and its counters.
pub(super) struct EdgeKernel {
    settings: EdgeSettings,
    wire: EdgeWire,
    copies: EdgeCopies,
    injectors: Vec<Injector>,
    /// The strings' interfaces.
    ports: Vec<Interface>,
    leaving: RawSender,
    /// Number of packets that had left each string at the last look.
    left: Vec<u64>,
    subnets: Vec<(IpAddr, u8, Side)>,
    /// Reports the commands that have ended, to `commands`.
    ended: Sender<EndedCommand>,
    commands: Receiver<EndedCommand>,
    wake: Box<dyn Fn() + Send + Sync>,
    addresses_at: WallInstant,
    links_at: WallInstant,
    attached_at: WallInstant,
    warned: BTreeMap<&'static str, WallInstant>,
    is_attached: bool,
    /// Bytes of the copies that were read.
    copied_bytes: u64,
    /// Number of copies whose TCP checksum was wrong.
    wrong_checksums: u64,
    /// Bytes that were sent again into each string.
    resent_entering_bytes: Vec<u64>,
    /// Bytes that were sent again to the outside.
    resent_leaving_bytes: u64,
}

/// The slot of a flow, as the data path computes it.
pub(super) fn flow_slot(key: &FlowKey) -> usize {
    const TCP: u8 = 6;
    proto::edge::slots::slot_of(key.near, key.far, TCP)
}

/// A port's interface.
fn interface(port: &PortSettings) -> anyhow::Result<Interface> {
    let found = Interface::find(&port.interface)?;
    found.with_context(|| format!("there is no interface {}", port.interface))
}

/// The index of a port's interface.
pub(super) fn port_index(port: &PortSettings) -> anyhow::Result<u32> {
    Ok(interface(port)?.index)
}

impl EdgeKernel {
    /// Loads the data path, or adopts that of an earlier agent. `wake` wakes the agent's loop.
    pub fn open(settings: &EdgeSettings, wake: Box<dyn Fn() + Send + Sync>) -> anyhow::Result<Self> {
        let ports: Vec<_> = settings.ports().map(|port| port.interface.clone()).collect();
        let file = settings.state_dir.join(PORTS_FILE);
        std::fs::write(&file, serde_json::to_vec(&ports)?)
            .with_context(|| format!("writing {}", file.display()))?;
        let plan = plan(settings)?;
        let options = EdgeWireOptions {
            flows_max: settings.max_connections,
            ring_bytes: RING_BYTES,
            agent_timeout: settings.agent_timeout,
        };
        let adopted = EdgeWire::adopt(&settings.name, &plan, &options)?;
        let is_adopted = adopted.is_some();
        let wire = match adopted {
            Some(wire) => wire,
            None => EdgeWire::load(&settings.name, &plan, &options)?,
        };
        if is_adopted {
            tracing::info!("adopted the flows of an earlier daemon");
        }
        let injectors = settings.strings.iter().map(|string| {
            let index = port_index(&string.port)?;
            Injector::open(index).context("opening a socket to send packets again")
        });
        let (ended, commands) = channel();
        let mut kernel = Self {
            copies: wire.copies()?,
            injectors: injectors.collect::<anyhow::Result<_>>()?,
            ports: settings
                .strings
                .iter()
                .map(|string| interface(&string.port))
                .collect::<anyhow::Result<_>>()?,
            leaving: RawSender::open().context("opening a raw socket")?,
            left: vec![0; settings.strings.len()],
            subnets: Vec::new(),
            ended,
            commands,
            wake,
            addresses_at: WallInstant::now(),
            links_at: WallInstant::now(),
            attached_at: WallInstant::now(),
            warned: BTreeMap::new(),
            is_attached: false,
            copied_bytes: 0,
            wrong_checksums: 0,
            resent_entering_bytes: vec![0; settings.strings.len()],
            resent_leaving_bytes: 0,
            settings: settings.clone(),
            wire,
        };
        kernel.set_subnets()?;
        Ok(kernel)
    }

    /// Attaches the data path to the ports.
    pub fn attach(&mut self) -> anyhow::Result<()> {
        self.wire.attach()?;
        self.is_attached = true;
        Ok(())
    }

    /// The strings as an earlier agent left them.
    pub fn adopted(&self) -> Vec<AdoptedString> {
        let adopted = |string| AdoptedString {
            kept: self.wire.kept(string),
            steering: self.wire.steering(string),
            cap: self.wire.cap(string),
        };
        (0..self.settings.strings.len()).map(adopted).collect()
    }

    /// Detaches and removes everything.
    pub fn tear_down(self, state_dir: &Path) -> anyhow::Result<()> {
        let removed = self.wire.remove().context("removing the data path");
        let file = state_dir.join(PORTS_FILE);
        std::fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        removed
    }

    /// Tells the data path that the agent is there. Checks from time to time whether the programs are still attached.
    pub fn check_in(&mut self, now: Instant) {
        self.wire.set_agent_seen(now.as_nanos());
        if self.addresses_at.elapsed() >= ADDRESSES_EVERY {
            self.addresses_at = WallInstant::now();
            if let Err(error) = self.set_subnets() {
                self.warn("the list of this machine's addresses may be old", &error);
            }
        }
        if self.links_at.elapsed() >= LINKS_EVERY {
            self.links_at = WallInstant::now();
            self.set_links();
        }
        if self.is_attached && self.attached_at.elapsed() >= ATTACHED_EVERY {
            self.attached_at = WallInstant::now();
            if !self.wire.is_attached() {
                tracing::warn!("somebody has removed the programs from a port; attaching them again");
                if let Err(error) = self.wire.attach() {
                    self.warn("packets are not steered until this succeeds", &error.into());
                }
            }
        }
    }

    /// Tells the data path the link-layer addresses of the strings' nodes, and makes the kernel verify them.
    fn set_links(&mut self) {
        for (index, string) in self.settings.strings.iter().enumerate() {
            let v4 = string.next_hop_v4.map(IpAddr::from);
            let v6 = string.next_hop_v6.map(IpAddr::from);
            for next_hop in v4.into_iter().chain(v6) {
                let injector = &self.injectors[index];
                // Without an answer, the last known address stays. It does no harm: the node is dead, or still has this address.
                if let Ok(Some(link)) = injector.link_address(next_hop) {
                    self.wire
                        .set_link(index, next_hop.is_ipv6(), injector.own(), link);
                }
            }
        }
    }

    /// Whether packets have left a string since the last look.
    pub fn has_left(&mut self, string: usize) -> bool {
        let left = self
            .wire
            .traffic(string)
            .map_or(0, |traffic| traffic.leaving_packets);
        std::mem::replace(&mut self.left[string], left) < left
    }

    /// Whether the cable at a string's port carries a signal.
    pub fn has_carrier(&self, string: usize) -> bool {
        self.ports[string].has_link()
    }

    fn announce(&self, string: usize) -> anyhow::Result<()> {
        let port = self.ports[string].index;
        let interfaces = network::interfaces()?;
        let of_port = interfaces.iter().filter(|interface| interface.index == port);
        for address in of_port.flat_map(|interface| &interface.addresses) {
            self.injectors[string].announce(*address)?;
        }
        Ok(())
    }

    fn set_subnets(&mut self) -> anyhow::Result<()> {
        let subnets = subnets(&self.settings)?;
        if subnets != self.subnets {
            self.wire.set_subnets(&subnets)?;
            self.subnets = subnets;
        }
        Ok(())
    }

    pub fn set_asleep(&self, asleep: bool) {
        self.wire.set_asleep(asleep);
    }

    pub fn copies_fd(&self) -> BorrowedFd<'_> {
        self.copies.as_fd()
    }

    pub fn copies_fill(&self) -> u64 {
        self.copies.fill()
    }

    /// Gives each copied packet, as it is on the cable, to `each`. A packet with a wrong TCP checksum is left out: its receiver will drop
    /// it, and in the cache it could take the place of the packet that the receiver needs. Returns the number of copies.
    pub fn read_copies(&mut self, max: usize, mut each: impl FnMut(usize, EdgeDirection, &[u8])) -> usize {
        let (copied_bytes, wrong) = (&mut self.copied_bytes, &mut self.wrong_checksums);
        self.copies.drain(max, |copy, packet| {
            *copied_bytes += packet.len() as u64;
            for segment in cut(packet, copy.gso_size, copy.checksum) {
                if copy.checksum != Checksum::Trusted && is_tcp_sum_wrong(&segment) {
                    *wrong += 1;
                } else {
                    each(usize::from(copy.string), copy.way, &segment);
                }
            }
        })
    }

    /// The commands that have ended, each with its string, and whether it succeeded.
    pub fn ended_commands(&self) -> Vec<EndedCommand> {
        self.commands.try_iter().collect()
    }

    /// The data path, for reading its counters.
    pub fn wire(&self) -> &EdgeWire {
        &self.wire
    }

    /// Bytes of the copies that were read.
    pub const fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Number of copies whose TCP checksum was wrong.
    pub const fn wrong_checksums(&self) -> u64 {
        self.wrong_checksums
    }

    /// Bytes that were sent again into `string`.
    pub fn resent_entering_bytes(&self, string: usize) -> u64 {
        self.resent_entering_bytes[string]
    }

    /// Bytes that were sent again to the outside.
    pub const fn resent_leaving_bytes(&self) -> u64 {
        self.resent_leaving_bytes
    }

    /// Carries out an action. Returns the measurement if the action asks for one.
    pub fn carry_out(&mut self, action: EdgeAction) -> Option<Vec<TrafficSample>> {
        match action {
            EdgeAction::SetSlots(slots) => self.wire.set_slots(&slots),
            EdgeAction::SetSteering(string, steering) => self.wire.set_steering(string, steering),
            EdgeAction::Keep(string, kept) => self.wire.keep(string, kept),
            EdgeAction::Move(string) => self.wire.bump_generation(string),
            EdgeAction::Sweep(string) => {
                if let Err(error) = self.wire.sweep(string) {
                    self.warn("idle flows move with their next packet only", &error.into());
                }
            }
            EdgeAction::SetCopies(string, copies) => self.wire.set_copies(string, copies),
            EdgeAction::SetCap(string, window) => self.wire.set_cap(string, window),
            EdgeAction::RunCommand(string) => self.run_command(string),
            EdgeAction::Measure => return Some(self.measure()),
            EdgeAction::Announce(string) => {
                if let Err(error) = self.announce(string) {
                    self.warn("a node learns this edge's addresses only when it asks", &error);
                }
            }
            EdgeAction::SendEntering(string, packet) => self.send_entering(string, &packet),
            EdgeAction::SendLeaving(packet, copies) => {
                for _ in 0..copies {
                    match self.leaving.send(&packet) {
                        Ok(_) => self.resent_leaving_bytes += packet.len() as u64,
                        Err(error) => self.warn("a cached packet was not sent", &error.into()),
                    }
                }
            }
            EdgeAction::Tell(string, phase, reason) => {
                let name = &self.settings.strings[string].name;
                tracing::info!(
                    string = name,
                    state = phase.name(),
                    ?reason,
                    "the string's state changed"
                );
            }
        }
        None
    }

    fn send_entering(&mut self, string: usize, packet: &[u8]) {
        let settings = &self.settings.strings[string];
        let next_hop = match packet.first().map(|first| first >> 4) {
            Some(4) => settings.next_hop_v4.map(IpAddr::from),
            _ => settings.next_hop_v6.map(IpAddr::from),
        };
        let sent = match next_hop {
            Some(next_hop) => self.injectors[string].send(packet, next_hop),
            None => Err(io::ErrorKind::HostUnreachable.into()),
        };
        match sent {
            Ok(_) => self.resent_entering_bytes[string] += packet.len() as u64,
            Err(error) => self.warn("a cached packet was not sent", &error.into()),
        }
    }

    /// One sample for each string. Empty if the data path cannot be read.
    fn measure(&mut self) -> Vec<TrafficSample> {
        let mut samples = Vec::new();
        for string in 0..self.settings.strings.len() {
            match self.wire.traffic(string) {
                Ok(traffic) => samples.push(TrafficSample {
                    entering_bytes: traffic.entering_bytes,
                    active: traffic.active,
                    handshakes: traffic.handshakes,
                    handshake_ns: traffic.handshake_ns,
                }),
                Err(error) => {
                    self.warn("the load of the strings is not known", &error.into());
                    return Vec::new();
                }
            }
        }
        samples
    }

    /// Runs the operator's command beside the agent. The string's name is in `STEADFAST_STRING`.
    fn run_command(&self, string: usize) {
        let (command, name) = (
            self.settings.failover_command.clone(),
            self.settings.strings[string].name.clone(),
        );
        let ended = self.ended.clone();
        let watch = move || {
            let environment = [("STEADFAST_STRING", name.as_str())];
            let succeeded = match bounded::run(&command, &environment, COMMAND_MAX, LatePolicy::Kill) {
                Ok(CommandOutcome::Ended { status, .. }) if status.success() => true,
                Ok(CommandOutcome::Ended { status, stderr }) => {
                    tracing::error!(string = name, %status, stderr, "failover.command failed; flows wait until it succeeds");
                    false
                }
                Ok(CommandOutcome::Late) => {
                    tracing::error!(
                        string = name,
                        "failover.command was killed after {COMMAND_MAX:?}; flows wait until it succeeds"
                    );
                    false
                }
                Err(error) => {
                    tracing::error!(string = name, %error, "failover.command cannot be run; flows wait until it succeeds");
                    false
                }
            };
            if !succeeded {
                std::thread::sleep(COMMAND_PAUSE);
            }
            let _ = ended.send((string, succeeded)); // fails when the agent is gone
        };
        if let Err(error) = std::thread::Builder::new().name("failover".into()).spawn(watch) {
            tracing::error!(%error, "failover.command cannot be run: no thread");
            let _ = self.ended.send((string, false));
        }
        (self.wake)();
    }

    fn warn(&mut self, consequence: &'static str, error: &anyhow::Error) {
        let last = self.warned.get(consequence);
        if last.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned.insert(consequence, WallInstant::now());
            tracing::warn!(error = format!("{error:#}"), "{consequence}");
        }
    }
}

fn plan(settings: &EdgeSettings) -> anyhow::Result<EdgeWirePlan> {
    let strings = settings.strings.iter().map(|string| {
        Ok(EdgeStringPort {
            ifindex: port_index(&string.port)?,
            next_hop_v4: string.next_hop_v4,
            next_hop_v6: string.next_hop_v6,
        })
    });
    let default_side = if settings.inside_subnets.is_empty() {
        Side::Inside
    } else {
        Side::Outside
    };
    Ok(EdgeWirePlan {
        outside: EdgePort {
            ifindex: port_index(&settings.outside)?,
            vlan: settings.outside_vlan,
        },
        strings: strings.collect::<anyhow::Result<_>>()?,
        default_side,
        policy: settings.recovery.map(|cache| cache.policy),
        second: settings
            .recovery
            .map_or_else(SecondPacket::default, |cache| cache.second),
    })
}

/// Destinations whose side is not the default side, each with its side.
fn subnets(settings: &EdgeSettings) -> anyhow::Result<Vec<(IpAddr, u8, Side)>> {
    let mut subnets: Vec<_> = [
        (&settings.outside_subnets, Side::Outside),
        (&settings.inside_subnets, Side::Inside),
    ]
    .into_iter()
    .flat_map(|(list, side)| list.iter().map(move |one| (one.address, one.prefix, side)))
    .collect();
    for interface in network::interfaces()? {
        for address in interface.addresses {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            subnets.push((address, bits, Side::Local));
        }
    }
    subnets.sort_by_key(|(address, prefix, _)| (*address, *prefix));
    subnets.dedup_by_key(|(address, prefix, _)| (*address, *prefix));
    Ok(subnets)
}

/// Removes what a dead edge left: programs at the ports, pins, the list of ports.
///
/// # Errors
/// The step that failed.
pub fn leave_nothing(name: &str, state_dir: &Path) -> anyhow::Result<()> {
    let file = state_dir.join(PORTS_FILE);
    let ports: Vec<String> = match std::fs::read(&file) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
    };
    for port in ports {
        if let Some(interface) = Interface::find(&port)? {
            linux::edge::detach_edge(interface.index).with_context(|| format!("detaching from {port}"))?;
        }
    }
    linux::edge::remove_edge_pins(name).context("removing the eBPF pins")?;
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", file.display()))
        }
        _ => Ok(()),
    }
}
