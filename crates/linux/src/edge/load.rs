//! Loads the edge's programs with new maps or with an earlier agent's maps.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use libbpf_rs::{Object, OpenObject};
use proto::edge::CopiedPackets;

use super::abi::STRINGS_MAX;
use super::plan::{EdgeWireOptions, EdgeWirePlan};
use super::words::StateWords;
use super::{EdgeWire, pin_dir_of};
use crate::bpf::error::{WireError, WireStep};
use crate::bpf::layout;
use crate::bpf::object::{
    Aligned, load_over_pins, map_memory, mount_bpffs, netns_cookie, open, pin_maps, verified,
};
use crate::clock;

/// Hash of the layout of the maps. Pinned maps with another hash cannot be adopted.
const ABI: u64 = layout::hash_code(&[
    include_bytes!("../../../../bpf/edge_abi.h"),
    include_bytes!("../../../../bpf/edge_maps.h"),
]);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/edge.bpf.o")));

impl EdgeWire {
    /// Loads the programs and pins their maps for the edge named `name`. All strings are up, and all slots have the first string. Nothing
    /// is attached yet.
    ///
    /// # Errors
    /// Names the step that failed. [`WireError::Leftover`] if an earlier agent's pins are there.
    pub fn load(name: &str, plan: &EdgeWirePlan, options: &EdgeWireOptions) -> Result<Self, WireError> {
        mount_bpffs()?;
        let pin_dir = pin_dir_of(name);
        if pin_dir.exists() {
            return Err(WireError::Leftover(pin_dir));
        }
        let mut object = verified(|| open_sized(options))?;
        pin_maps(&mut object, &pin_dir)?;
        layout::stamp(&pin_dir, ABI)?;
        let words = StateWords::new(map_memory(&object, "state", StateWords::BYTES)?);
        let cookie = netns_cookie().step(|| "asking for the network namespace's cookie".into())?;
        words.netns_cookie().store(cookie, Ordering::SeqCst);
        Ok(Self::new(object, pin_dir, words, plan, options))
    }

    /// Adopts the maps that an earlier agent of the edge named `name` pinned. Returns `None` if there are no such maps. Adoption keeps the
    /// flows, the slots and the subnets. It also keeps each string's steering, generation, cap and kept values ([`EdgeWire::keep`]).
    /// Caching is off, because the packets in the earlier agent's cache are lost. The earlier agent's program runs until
    /// [`EdgeWire::attach`] replaces it. The caller must know that the earlier agent is dead.
    ///
    /// # Errors
    /// [`WireError::Unfit`] if the maps are of another version, of another network namespace, or for other `options` or another number
    /// of strings. The maps then stay as they are. Any other error names the step that failed.
    pub fn adopt(
        name: &str,
        plan: &EdgeWirePlan,
        options: &EdgeWireOptions,
    ) -> Result<Option<Self>, WireError> {
        let pin_dir = pin_dir_of(name);
        let Some(object) = load_over_pins(&pin_dir, ABI, || open_sized(options))? else {
            return Ok(None);
        };
        let unfit = |why: String| WireError::Unfit {
            pin_dir: pin_dir.clone(),
            why,
        };
        let words = StateWords::new(map_memory(&object, "state", StateWords::BYTES)?);
        let cookie = netns_cookie().step(|| "asking for the network namespace's cookie".into())?;
        if words.netns_cookie().load(Ordering::SeqCst) != cookie {
            return Err(unfit("it is of another network namespace".into()));
        }
        let strings = words.strings() as usize;
        if strings != plan.strings.len() {
            return Err(unfit(format!(
                "it has {strings} strings, not {}",
                plan.strings.len()
            )));
        }
        let wire = Self::new(object, pin_dir, words, plan, options);
        (0..strings).for_each(|string| wire.set_copies(string, CopiedPackets::None));
        wire.set_asleep(false);
        Ok(Some(wire))
    }

    fn new(
        object: Object,
        pin_dir: PathBuf,
        words: StateWords,
        plan: &EdgeWirePlan,
        options: &EdgeWireOptions,
    ) -> Self {
        assert!(plan.strings.len() <= STRINGS_MAX, "too many strings");
        words
            .agent_seen()
            .store(clock::now().as_nanos(), Ordering::SeqCst);
        words.set_plan(plan, options.agent_timeout);
        let strings = plan.strings.iter().map(|string| string.ifindex);
        let mut interfaces: Vec<u32> = strings.chain([plan.outside.ifindex]).collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        Self {
            object,
            pin_dir,
            words,
            interfaces,
        }
    }
}

/// Opens the programs without loading them, and sets the sizes of their maps from `options`.
fn open_sized(options: &EdgeWireOptions) -> Result<OpenObject, WireError> {
    let mut open = open(&OBJECT.0)?;
    for mut map in open.maps_mut() {
        let entries = match map.name().to_str() {
            Some("flows") => options.flows_max,
            Some("ring") => options.ring_bytes,
            _ => continue,
        };
        map.set_max_entries(entries)
            .step(|| "sizing the maps of the edge".into())?;
    }
    Ok(open)
}
