//! The edge's eBPF data path (`bpf/edge.bpf.c`): loads it, attaches it, tells it what to do, reads what it counts and copies.
//!
//! The filters stay attached while no agent runs, so packets are forwarded. All maps are pinned below [`EDGE_PIN_ROOT`], so the next agent
//! adopts the flows.

mod abi;
mod copies;
mod counters;
mod inject;
mod load;
mod neighbour;
mod plan;
mod rehearsal;
mod subnets;
mod words;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapHandle, Object, Program, TC_INGRESS};
use proto::edge::CopiedPackets;
use proto::edge::switch::{KeptString, StringSteering};

pub use abi::{SLOTS, STRINGS_MAX};
pub use copies::{EdgeCopies, EdgeCopy};
pub use counters::StringTraffic;
pub use inject::Injector;
pub use plan::{EdgePort, EdgeStringPort, EdgeWireOptions, EdgeWirePlan, Side};
pub use rehearsal::Rehearsed;

use crate::bpf::error::{WireError, WireStep};
use crate::bpf::hook;
use crate::bpf::object::{find, find_map};
use crate::bpf::ring::Ring;
use crate::bpf::run::run;
use abi::Swept;
use words::StateWords;

/// The directory of the edges' pinned maps. Each edge has a subdirectory.
pub const EDGE_PIN_ROOT: &str = "/sys/fs/bpf/steadfast-edge";

/// The handle of our tc filters. The wire's filters have another handle.
const HANDLE: u32 = 2;
/// Name of the program at the ports.
const PROGRAM: &str = "edge";

/// The loaded, attached and pinned programs with their maps.
pub struct EdgeWire {
    object: Object,
    pin_dir: PathBuf,
    words: StateWords,
    interfaces: Vec<u32>,
}

impl EdgeWire {
    fn map(&self, name: &str) -> MapHandle {
        find_map(&self.object, name).expect("the object was compiled with this map")
    }

    /// Attaches the program to all ports, in place of an earlier agent's program. Each packet is handled by the old or by the new program.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn attach(&mut self) -> Result<(), WireError> {
        for &interface in &self.interfaces {
            hook::attach(&self.object, PROGRAM, (interface, TC_INGRESS), HANDLE)?;
        }
        Ok(())
    }

    /// Whether this program is attached to all ports. Call this function in the edge's network namespace, after each message of a
    /// [`FilterWatch`](crate::wire::FilterWatch).
    pub fn is_attached(&self) -> bool {
        let ours = find(&self.object, PROGRAM);
        let ours = Program::id_from_fd(ours.as_fd()).ok();
        let attached = |&interface| hook::attached_id(&self.object, PROGRAM, interface, HANDLE);
        ours.is_some()
            && self
                .interfaces
                .iter()
                .all(|interface| attached(interface) == ours)
    }

    /// Sets what happens to packets that enter a string.
    pub fn set_steering(&self, string: usize, steering: StringSteering) {
        self.words.set_steering(string, steering);
    }

    /// The treatment of packets that enter a string.
    pub fn steering(&self, string: usize) -> StringSteering {
        self.words.steering(string)
    }

    /// Begins a new generation of a string's flows. Each flow of an earlier generation moves to the string of its slot when its next packet
    /// enters.
    pub fn bump_generation(&self, string: usize) {
        self.words.bump_generation(string);
    }

    /// Moves all flows of a string that are of an earlier generation, including idle flows. Returns the number of moved flows.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn sweep(&self, string: usize) -> Result<u64, WireError> {
        Ok(self.run_sweep(string)?.moved)
    }

    /// Number of flows in the table.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn flows(&self) -> Result<u64, WireError> {
        Ok(self.run_sweep(STRINGS_MAX)?.flows)
    }

    fn run_sweep(&self, string: usize) -> Result<Swept, WireError> {
        let mut argument = Swept::argument(string);
        run(&self.object, "sweep", &mut argument, None).step(|| "going through the table of flows".into())?;
        Ok(Swept::result(&argument))
    }

    /// Tells the programs two link-layer addresses: the address of a string's next hop (for one address family), and the address of the
    /// string's port. Until then the programs use the kernel's neighbour table.
    pub fn set_link(&self, string: usize, is_v6: bool, own: [u8; 6], next_hop: [u8; 6]) {
        self.words.set_link(string, is_v6, own, next_hop);
    }

    /// Gives each slot a string, for new flows and for flows that move.
    pub fn set_slots(&self, slots: &[u8; SLOTS]) {
        self.words.set_slots(slots);
    }

    /// Sets which packets of a string's flows are copied. [`CopiedPackets::Entering`] keeps the present cache, or begins one if there is
    /// none. [`CopiedPackets::Needed`] begins with an empty cache. [`CopiedPackets::None`] ends the copying.
    pub fn set_copies(&self, string: usize, copies: CopiedPackets) {
        self.words.set_copies(string, copies);
    }

    /// Limits the receive window in the leaving packets of a string's flows to `window` bytes. `None`: no limit.
    pub fn set_cap(&self, string: usize, window: Option<u32>) {
        self.words.set_cap(string, window);
    }

    /// The cap that [`set_cap`](Self::set_cap) set.
    pub fn cap(&self, string: usize) -> Option<u32> {
        self.words.cap(string)
    }

    /// Stores `kept`, a part of a string's state, for a successor of the agent.
    pub fn keep(&self, string: usize, kept: KeptString) {
        self.words.keep(string, kept);
    }

    /// The part of a string's state that [`keep`](Self::keep) stored last.
    pub fn kept(&self, string: usize) -> KeptString {
        self.words.kept(string)
    }

    /// Tells the programs that the agent is alive at `now_ns`, in nanoseconds of the monotonic clock.
    pub fn set_agent_seen(&self, now_ns: u64) {
        self.words.agent_seen().store(now_ns, Ordering::Relaxed);
    }

    /// Tells the programs whether the agent waits for a wake-up at the ring of copies (true) or polls it.
    pub fn set_asleep(&self, asleep: bool) {
        self.words
            .agent_asleep()
            .store(u32::from(asleep), Ordering::SeqCst);
    }

    /// The ring of copies. Open it once.
    ///
    /// # Errors
    /// The error of `mmap(2)`.
    pub fn copies(&self) -> Result<EdgeCopies, WireError> {
        let ring = Ring::open(self.map("ring")).step(|| "mapping the ring of copies".into())?;
        Ok(EdgeCopies::new(ring))
    }

    /// Detaches the program from all ports and removes the pins.
    ///
    /// # Errors
    /// Names the first step that failed. The other steps are tried all the same.
    pub fn remove(self) -> Result<(), WireError> {
        let mut outcome = Ok(());
        for &interface in &self.interfaces {
            outcome = outcome.and(detach_edge(interface));
        }
        outcome.and(remove_pin_dir(&self.pin_dir))
    }
}

/// The directory of an edge's pins.
fn pin_dir_of(name: &str) -> PathBuf {
    Path::new(EDGE_PIN_ROOT).join(name)
}

fn remove_pin_dir(pin_dir: &Path) -> Result<(), WireError> {
    if pin_dir.exists() {
        std::fs::remove_dir_all(pin_dir).step(|| format!("removing {}", pin_dir.display()))?;
    }
    let _ = std::fs::remove_dir(EDGE_PIN_ROOT); // fails while another edge's pins are there
    Ok(())
}

/// Removes all pins of the edge named `name`.
///
/// # Errors
/// The error of removing the directory.
pub fn remove_edge_pins(name: &str) -> Result<(), WireError> {
    remove_pin_dir(&pin_dir_of(name))
}

/// Detaches an edge's program from an interface. Removes the clsact qdisc if it has no other filters.
///
/// # Errors
/// The kernel's error. It is no error if the program or the interface is gone already.
pub fn detach_edge(ifindex: u32) -> Result<(), WireError> {
    hook::take_away(ifindex, &[TC_INGRESS], HANDLE)
}

/// Whether an agent of the edge named `name`, alive or dead, has pinned something.
pub fn is_edge_left_behind(name: &str) -> bool {
    pin_dir_of(name).exists()
}
