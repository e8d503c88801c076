//! Adopts the wire of an agent that died.
//!
//! The dead agent's maps are pinned: the rings with unread records, the gates, the counters. Its programs are still attached to the
//! interfaces and log into these maps. A successor loads its own programs over the same maps and replaces the old ones. The kernel
//! does that atomically (`tc filter replace`, `BPF_LINK_UPDATE`): each packet meets the old program or the new one,
//! and both log into the same rings.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenObject};

use super::abi::ServiceKey;
use super::{PIN_ROOT, Wire, WireError, WireOptions, WireService, WireStep, attach, verified};

/// Name of a symbolic link beside the pinned maps. Its target is [`ABI`] in hexadecimal.
const ABI_LINK: &str = "abi";

/// Hash of the layout of the maps. Programs and agents with another hash do not fit.
const ABI: u64 = hash_code(&[
    include_bytes!("../../../../bpf/abi.h"),
    include_bytes!("../../../../bpf/maps.h"),
]);

/// Start of an FNV-1a hash (Fowler, Noll, Vo). The hash need not resist attackers.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

const fn hash_byte(sum: u64, byte: u8) -> u64 {
    (sum ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
}

/// Hash of a text.
pub(super) const fn hash(text: &[u8]) -> u64 {
    let (mut sum, mut at) = (FNV_OFFSET, 0);
    while at < text.len() {
        sum = hash_byte(sum, text[at]);
        at += 1;
    }
    sum
}

/// Hash of C sources without their comments and white space. The sources have no comment signs in strings.
const fn hash_code(sources: &[&[u8]]) -> u64 {
    let (mut sum, mut source) = (FNV_OFFSET, 0);
    while source < sources.len() {
        let (text, mut at) = (sources[source], 0);
        while at < text.len() {
            if is_at(text, at, *b"//") {
                while at < text.len() && text[at] != b'\n' {
                    at += 1;
                }
            } else if is_at(text, at, *b"/*") {
                at += 2;
                while at < text.len() && !is_at(text, at, *b"*/") {
                    at += 1;
                }
                at += 2;
            } else {
                if !text[at].is_ascii_whitespace() {
                    sum = hash_byte(sum, text[at]);
                }
                at += 1;
            }
        }
        source += 1;
    }
    sum
}

const fn is_at(text: &[u8], at: usize, sign: [u8; 2]) -> bool {
    at + 1 < text.len() && text[at] == sign[0] && text[at + 1] == sign[1]
}

/// Records in `pin_dir` the layout of the pinned maps. The last step of pinning.
pub(super) fn stamp(pin_dir: &Path) -> Result<(), WireError> {
    let link = pin_dir.join(ABI_LINK);
    std::os::unix::fs::symlink(format!("{ABI:016x}"), &link).step(|| format!("making {}", link.display()))
}

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

    /// Loads our own programs over the pinned maps, without attaching them. Returns `None` if nothing is pinned.
    fn over_pins(
        node: &str,
        options: &WireOptions,
        services: &[WireService],
    ) -> Result<Option<Self>, WireError> {
        let pin_dir = Path::new(PIN_ROOT).join(node);
        if !pin_dir.exists() {
            return Ok(None);
        }
        let unfit = |why: String| WireError::Unfit {
            pin_dir: pin_dir.clone(),
            why,
        };
        let layout = std::fs::read_link(pin_dir.join(ABI_LINK)).unwrap_or_default();
        if layout != Path::new(&format!("{ABI:016x}")) {
            return Err(unfit(
                "its version is another one, or it died while it started".into(),
            ));
        }
        let object = verified(|| {
            let mut open = Self::open(options)?;
            reuse_maps(&mut open, &pin_dir)?.map_err(unfit)?;
            Ok(open)
        })?;
        let wire = Self::over(object, pin_dir.clone())?;
        wire.compare(services)?.map_err(unfit)?;
        Ok(Some(wire))
    }

    /// Checks that the pinned maps are for these services in this network namespace. The inner error says why they are not.
    fn compare(&self, services: &[WireService]) -> Result<Result<(), String>, WireError> {
        let cookie = attach::netns_cookie().step(|| "asking for the network namespace's cookie".into())?;
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

/// Lets `open` use the pinned maps, or says why they do not fit.
fn reuse_maps(open: &mut OpenObject, pin_dir: &Path) -> Result<Result<(), String>, WireError> {
    for mut map in open.maps_mut() {
        let Some(name) = map
            .name()
            .to_str()
            .filter(|name| !name.contains('.'))
            .map(str::to_owned)
        else {
            continue; // .rodata is each object's own
        };
        let path = pin_dir.join(&name);
        if !path.exists() {
            return Ok(Err(format!("its map {name} is missing")));
        }
        let pinned = MapHandle::from_pinned_path(&path).step(|| format!("opening {}", path.display()))?;
        let theirs = (pinned.key_size(), pinned.value_size(), pinned.max_entries());
        let ours = (map.key_size(), map.value_size(), map.max_entries());
        if pinned.map_type() != map.map_type() || theirs != ours {
            let what = format!("its map {name} has {} entries or bytes, not {}", theirs.2, ours.2);
            return Ok(Err(what));
        }
        map.reuse_fd(pinned.as_fd())
            .step(|| format!("using the pinned map {name}"))?;
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::hash_code;

    #[test]
    fn only_code_counts_for_the_layout() {
        let code = hash_code(&[b"struct a { __u32 b; };"]);
        for same in [
            "struct a {\n\t__u32 b; // a comment\n};\n",
            "/* two\nlines */ struct a { __u32 b; /* inside */ };",
            "struct a { __u32 b; }; /* that never ends",
        ] {
            assert_eq!(hash_code(&[same.as_bytes()]), code, "{same}");
        }
        for other in ["struct a { __u64 b; };", "struct a { __u32 b; } / ;"] {
            assert_ne!(hash_code(&[other.as_bytes()]), code, "{other}");
        }
    }
}
