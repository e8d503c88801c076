//! The wire (DESIGN.md §3): loading, attaching, pinning and controlling the eBPF programs of `bpf/`.
//!
//! Everything is pinned under `/sys/fs/bpf/steadfast/NODE`, so when the agent dies, packets are still logged and the gates stay as they
//! are. [`Wire::remove`] removes all of it.

mod abi;
mod adopt;
mod attach;
mod caps;
mod client_bits;
mod counters;
mod deaths;
mod dying;
mod held;
mod known;
mod ring;
mod watch;
mod words;

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, OpenObject};
use memmap2::MmapRaw;
use proto::action::Gate;
use proto::packet::Checksum;

pub use crate::bpf::error::WireError;
pub(crate) use crate::bpf::error::WireStep;
pub use crate::bpf::object::mount_bpffs;
pub use abi::{
    Death, MARK_DIRECT, MARK_DYING, MARK_END, MARK_LOCAL, MARK_RESTORING, MARK_SPEAK, REASONS, Record,
    SERVICES_MAX,
};
pub use attach::{LOOPBACK, detach, detach_loopback};
use client_bits::{KnownMap, Undecided};
pub use deaths::Deaths;
pub use dying::HiddenEnds;
pub use held::held_entries;
pub use ring::{RecordReader, RingLog, Rings};
pub use watch::FilterWatch;

use crate::bpf::checksum;
use crate::bpf::layout;
use crate::bpf::object::{self, Aligned, find_map, map_memory, netns_cookie, pin_maps, verified};
use crate::bpf::ring::Ring;
use abi::{NodeState, ServiceKey, ServiceState, mapped};

/// The directory of all pins.
pub const PIN_ROOT: &str = "/sys/fs/bpf/steadfast";

/// Hash of the layout of the maps. Programs and agents with another hash do not fit.
const ABI: u64 = layout::hash_code(&[
    include_bytes!("../../../../bpf/abi.h"),
    include_bytes!("../../../../bpf/maps.h"),
]);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/steadfast.bpf.o")));

/// Sizes and settings of a wire.
#[derive(Clone, Debug)]
pub struct WireOptions {
    /// Size in bytes of the ring of known connections, small enough for the CPUs' caches. A power of two and a multiple of the page size.
    pub ring_cached_bytes: u32,
    /// Size in bytes of the ring that is used when the cached ring is full. Same rules.
    pub ring_bytes: u32,
    /// Size in bytes of the ring of SYNs and strangers. Same rules.
    pub ring_open_bytes: u32,
    /// When the agent has been away for longer than this and the log is full, packets pass unlogged.
    pub agent_timeout: Duration,
    /// Copy packets in chunks even where `bpf_dynptr_copy` exists (to test the fallback).
    pub chunks_only: bool,
    /// This node is an annex: its stack answers no segment for which it has no socket.
    pub is_annex: bool,
}

impl Default for WireOptions {
    fn default() -> Self {
        Self {
            ring_cached_bytes: 16 << 20,
            ring_bytes: 64 << 20,
            ring_open_bytes: 1 << 20,
            agent_timeout: Duration::MAX,
            chunks_only: false,
            is_annex: false,
        }
    }
}

/// One service as the eBPF programs see it.
#[derive(Clone, Debug)]
pub struct WireService {
    /// The VIP.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The service interface.
    pub ifindex: u32,
    /// This node's MAC address on the service interface.
    pub own_mac: [u8; 6],
    /// Exit codes of the service's processes that count as a crash.
    pub crash_exit_codes: Vec<u8>,
    /// Where the application listens, if this node relays the service's connections to it. If the application's process dies, the clients of
    /// its connections do not hear of it, and the agent does, as with a process that serves the VIP.
    pub application: Option<SocketAddr>,
    /// How this node's own programs appear as clients of the service. `None`: their connections to the service are refused.
    pub own: Option<OwnClient>,
}

/// How programs on this node appear as clients of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnClient {
    /// Their source address: an address of this node on the service interface, of the VIP's family, that is not a VIP.
    pub address: IpAddr,
    /// Largest payload in bytes of a segment that fits the service interface.
    pub mss: u32,
}

/// The loaded, attached and pinned programs with their maps.
pub struct Wire {
    object: Object,
    pin_dir: PathBuf,
    states: MmapRaw,
    node: MmapRaw,
    undecided: Undecided,
    known: KnownMap,
    /// One bit for each service that may have entries in the map `held`.
    told: AtomicU64,
    interfaces: Vec<u32>,
}

impl Wire {
    /// Loads the programs and pins their maps for the node named `node`. Nothing is attached yet.
    ///
    /// # Errors
    /// Names the step that failed. Leftovers of an earlier run are not touched.
    pub fn load(node: &str, options: &WireOptions) -> Result<Self, WireError> {
        mount_bpffs()?;
        let pin_dir = Path::new(PIN_ROOT).join(node);
        if pin_dir.exists() {
            return Err(WireError::Leftover(pin_dir));
        }
        let mut object = verified(|| Self::open(options))?;
        pin_maps(&mut object, &pin_dir)?;
        layout::stamp(&pin_dir, ABI)?;
        let wire = Self::over(object, pin_dir)?;
        wire.set_agent_timeout(options.agent_timeout);
        Ok(wire)
    }

    /// Opens the programs without loading them, and sets the sizes of their rings.
    fn open(options: &WireOptions) -> Result<OpenObject, WireError> {
        let mut open = object::open(&OBJECT.0)?;
        for mut map in open.maps_mut() {
            let entries = match map.name().to_str() {
                Some("ring") => options.ring_cached_bytes,
                Some("ring_overflow") => options.ring_bytes,
                Some("ring_open") => options.ring_open_bytes,
                Some(name) if name.ends_with(".rodata") => {
                    if let Some(value) = map.initial_value_mut() {
                        // `struct settings`, which has the only constants.
                        value[0] = u8::from(options.chunks_only);
                        value[1] = u8::from(options.is_annex);
                    }
                    continue;
                }
                _ => continue,
            };
            map.set_max_entries(entries).step(|| "sizing the rings".into())?;
        }
        Ok(open)
    }

    fn over(object: Object, pin_dir: PathBuf) -> Result<Self, WireError> {
        let states = map_memory(&object, "states", size_of::<ServiceState>() * SERVICES_MAX)?;
        let node = map_memory(&object, "node", size_of::<NodeState>())?;
        let undecided = Undecided::new(map_memory(&object, "undecided", Undecided::BYTES)?);
        let known = KnownMap::new(map_memory(&object, "known", KnownMap::BYTES)?);
        Ok(Self {
            object,
            pin_dir,
            states,
            node,
            undecided,
            known,
            told: AtomicU64::new(0),
            interfaces: Vec::new(),
        })
    }

    fn map(&self, name: &str) -> MapHandle {
        find_map(&self.object, name).expect("the object was compiled with this map")
    }

    /// The two rings of known connections, and the ring of SYNs and strangers.
    ///
    /// # Errors
    /// The error of `mmap(2)`.
    pub fn rings(&self) -> Result<Rings, WireError> {
        let open = |name| Ring::open(self.map(name)).step(|| format!("mapping the ring {name}"));
        let connections = vec![open("ring")?, open("ring_overflow")?];
        Ok(Rings::new(connections, open("ring_open")?))
    }

    /// The sockets that dying processes release.
    ///
    /// # Errors
    /// The error of libbpf.
    pub fn deaths(&self) -> Result<Deaths, WireError> {
        Deaths::open(self.map("ring_deaths")).step(|| "mapping the ring of deaths".into())
    }

    /// Makes `service` known under `index`, with its gate [off](Gate::Off).
    ///
    /// # Errors
    /// The kernel's error at a map update.
    pub fn add_service(&mut self, index: u16, service: &WireService) -> Result<(), WireError> {
        let state = self.state_pointer(index);
        let value = ServiceState {
            gate: abi::gate_number(Gate::Off),
            ifindex: service.ifindex,
            peer_mac: [0; 6],
            own_mac: service.own_mac,
            port: service.port.to_be_bytes(),
            immediate: 0,
            holds: 0,
            server_dead: 0,
            deaths: 0,
            peer_seen_ns: 0,
            epoch: 0,
            unlogged: 0,
            until_ns: 0,
            hold_until_ns: 0,
            caps: 0,
            consented: 0,
            own_address: [0; 16],
            own_mss: 0,
            crash_codes: abi::crash_codes(&service.crash_exit_codes),
            doubted: 0,
            direct_until_ns: 0,
        };
        // SAFETY: `state_pointer` lies within the mapping; its gate is off, so no program reads the rest.
        unsafe { state.write_volatile(value) };
        self.set_own_client(index, service.own);
        let at = || format!("registering the service {}:{}", service.address, service.port);
        let key = ServiceKey::new(service.address, service.port).to_bytes();
        self.map("services")
            .update(&key, &u32::from(index).to_ne_bytes(), MapFlags::ANY)
            .step(at)?;
        if let Some(application) = service.application {
            let key = ServiceKey::new(application.ip(), application.port()).to_bytes();
            self.map("applications")
                .update(&key, &u32::from(index).to_ne_bytes(), MapFlags::ANY)
                .step(at)?;
        }
        set_bit(&self.map("vips"), &mapped(service.address), index).step(at)?;
        let port = service.port.to_be(); // as the programs read it from the packet
        set_bit(&self.map("ports"), &u32::from(port / 64).to_ne_bytes(), port % 64).step(at)?;
        self.remember_interface(service.ifindex);
        Ok(())
    }

    fn remember_interface(&mut self, ifindex: u32) {
        if !self.interfaces.contains(&ifindex) {
            self.interfaces.push(ifindex);
        }
    }

    /// Attaches the programs to the service interfaces and the loopback interface, in place of a dead agent's programs. Then attaches
    /// programs to the root cgroup. If the kernel does not allow that, returns a sentence that says what does not work.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn attach(&mut self) -> Result<Option<String>, WireError> {
        for &interface in &self.interfaces {
            attach::attach_interface(&self.object, interface)?;
        }
        attach::attach_loopback(&self.object, self.node_name())?;
        let cookie = netns_cookie().step(|| "asking for the network namespace's cookie".into())?;
        self.set_netns_cookie(cookie);
        for (program, without) in attach::OF_CGROUP {
            if let Err(error) = attach::attach_cgroup(&mut self.object, program, &self.pin_dir.join(program))
            {
                return Ok(Some(format!("{without}: {error}")));
            }
        }
        Ok(None)
    }

    fn node_name(&self) -> &str {
        let name = self.pin_dir.file_name().and_then(OsStr::to_str);
        name.expect("it was made from the name")
    }

    /// Attaches the programs again to a service interface from which someone may have removed them. Packets that passed meanwhile
    /// are in no log. Programs that are still attached are replaced without a gap.
    ///
    /// # Errors
    /// Names the step that failed: the interface may be gone.
    pub fn reattach(&self, interface: u32) -> Result<(), WireError> {
        if interface == LOOPBACK {
            return attach::attach_loopback(&self.object, self.node_name());
        }
        attach::attach_interface(&self.object, interface)
    }

    /// Moves a service to the new interface `ifindex` with the MAC address `own_mac`, after its old interface was replaced.
    ///
    /// # Errors
    /// Names the step that failed: the new interface may be gone, too.
    pub fn move_service(&mut self, index: u16, ifindex: u32, own_mac: [u8; 6]) -> Result<(), WireError> {
        attach::attach_interface(&self.object, ifindex)?;
        let old = self.state(index).ifindex;
        self.set_interface(index, ifindex, own_mac);
        let services = 0..u16::try_from(SERVICES_MAX).expect("few");
        let is_used = services
            .map(|index| self.state(index).ifindex)
            .any(|used| used == old);
        self.interfaces.retain(|interface| *interface != old || is_used);
        self.remember_interface(ifindex);
        Ok(())
    }

    /// Detaches the programs and removes the pins.
    ///
    /// # Errors
    /// Names the first step that failed. The other steps are tried all the same.
    pub fn remove(self) -> Result<(), WireError> {
        let mut outcome = Ok(());
        for &interface in &self.interfaces {
            outcome = outcome.and(detach(interface));
        }
        outcome = outcome.and(detach_loopback(self.node_name()));
        outcome.and(remove_pins(&self.pin_dir))
    }
}

/// Removes all pins of a node. Removing the pinned links detaches the programs of the root cgroup.
///
/// # Errors
/// The error of removing the directory.
pub fn remove_pins(pin_dir: &Path) -> Result<(), WireError> {
    if pin_dir.exists() {
        std::fs::remove_dir_all(pin_dir).step(|| format!("removing {}", pin_dir.display()))?;
    }
    let _ = std::fs::remove_dir(PIN_ROOT); // fails while another node's pins are there
    Ok(())
}

/// Whether an agent of the node named `node`, alive or dead, has pinned something.
pub fn is_left_behind(node: &str) -> bool {
    Path::new(PIN_ROOT).join(node).exists()
}

/// How far the checksum of a logged packet can be trusted.
pub fn checksum_of(record: &Record) -> Checksum {
    checksum::checksum_of(record.flags)
}

/// Sets a bit of the word that `map` has for `key`.
fn set_bit(map: &MapHandle, key: &[u8], bit: u16) -> libbpf_rs::Result<()> {
    let known = map.lookup(key, MapFlags::ANY)?;
    let known = known
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_ne_bytes);
    map.update(key, &(known | 1 << bit).to_ne_bytes(), MapFlags::ANY)
}
