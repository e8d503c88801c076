//! Adopts the wire of an agent that died.
//!
//! The dead agent's maps are pinned: the rings with unread records, the gates, the counters. Its programs are still attached to the
//! interfaces and log into these maps. A later agent loads its own programs with the same maps, and replaces the old programs. The kernel
//! replaces a program atomically (`tc filter replace`, `BPF_LINK_UPDATE`): each packet meets the old program or the new program, and both
//! programs log into the same rings.

use std::net::IpAddr;
use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::abi::ServiceKey;
use super::{ABI, PIN_ROOT, Wire, WireOptions, WireService};
use crate::bpf::error::{WireError, WireStep};
use crate::bpf::object::{load_over_pins, netns_cookie};

impl Wire {
    /// Goes on with the wire that a dead agent of the node named `node` left behind. Returns `None` if there is no such wire.
    /// Unread records, the gates and the counters stay as they are. The dead agent's programs run until [`Wire::attach`] replaces
    /// them by this agent's. The caller must know that the agent is dead, because two readers of one ring would lose records.
    ///
    /// # Errors
    /// [`WireError::Unfit`] if the wire is of another version, of another network namespace, or for other `options` or
    /// `services` (in the order of their indices). Then the wire is left as it is. Any other error names the step that failed.
    pub fn adopt(
        node: &str,
        options: &WireOptions,
        services: &[WireService],
    ) -> Result<Option<Self>, WireError> {
        let Some(mut wire) = Self::over_pins(node, options, services)? else {
            return Ok(None);
        };
        for (index, service) in (0..).zip(services) {
            wire.remember_interface(service.ifindex);
            wire.set_crash_codes(index, &service.crash_exit_codes);
        }
        wire.set_agent_timeout(options.agent_timeout);
        wire.set_asleep(false);
        for (index, service) in (0_u16..).zip(services) {
            wire.set_caps(index, false);
            wire.set_own_client(index, service.own);
        }
        wire.forget_caps()?;
        wire.settle_for_the_dead(u16::try_from(services.len()).expect("few"))?;
        Ok(Some(wire))
    }

    /// Whether the node named `node` has a wire that [`Wire::adopt`] could go on with. The wire's agent may be alive or dead. Changes
    /// nothing.
    ///
    /// # Errors
    /// As [`Wire::adopt`].
    pub fn fits(node: &str, options: &WireOptions, services: &[WireService]) -> Result<bool, WireError> {
        Ok(Self::over_pins(node, options, services)?.is_some())
    }

    /// Loads our own programs with the pinned maps, without attaching the programs. Returns `None` if nothing is pinned.
    fn over_pins(
        node: &str,
        options: &WireOptions,
        services: &[WireService],
    ) -> Result<Option<Self>, WireError> {
        let pin_dir = Path::new(PIN_ROOT).join(node);
        let Some(object) = load_over_pins(&pin_dir, ABI, || Self::open(options))? else {
            return Ok(None);
        };
        let unfit = |why: String| WireError::Unfit {
            pin_dir: pin_dir.clone(),
            why,
        };
        let wire = Self::over(object, pin_dir.clone())?;
        wire.compare(services)?.map_err(unfit)?;
        Ok(Some(wire))
    }

    /// Checks that the pinned maps are for these services in this network namespace. The inner error says why they are not.
    fn compare(&self, services: &[WireService]) -> Result<Result<(), String>, WireError> {
        let cookie = netns_cookie().step(|| "asking for the network namespace's cookie".into())?;
        if self.netns_cookie() != cookie {
            return Ok(Err("it is of another network namespace".into()));
        }
        let map = self.map("services");
        let known = map.keys().count();
        if known != services.len() {
            return Ok(Err(format!("it serves {known} services, not {}", services.len())));
        }
        for (index, service) in (0_u16..).zip(services) {
            let (address, port) = (service.address, service.port);
            let state = self.state(index);
            let same = self.index_of(&map, address, port)? == Some(index.into())
                && (state.ifindex, state.own_mac) == (service.ifindex, service.own_mac);
            if !same {
                return Ok(Err(format!(
                    "its service {index} is not {address} port {port} on interface {}",
                    service.ifindex
                )));
            }
        }
        Ok(Ok(()))
    }

    fn index_of(&self, map: &MapHandle, address: IpAddr, port: u16) -> Result<Option<u32>, WireError> {
        let key = ServiceKey::new(address, port).to_bytes();
        let value = map
            .lookup(&key, MapFlags::ANY)
            .step(|| format!("looking for the service {address}:{port}"))?;
        Ok(value
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_ne_bytes))
    }
}
