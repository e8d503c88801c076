//! Sets the subnets. For a packet that has no flow yet, they determine the side of its destination.

use std::collections::BTreeMap;
use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags};

use super::EdgeWire;
use super::abi::{SUBNET_KEY, side_number, subnet_key};
use super::plan::Side;
use crate::bpf::error::{WireError, WireStep};

impl EdgeWire {
    /// Replaces all subnets and their sides with `subnets`. The longest prefix that contains an address decides. During the update, a
    /// subnet that is in both the old and the new set always has an entry.
    ///
    /// # Errors
    /// The kernel's error at a map update. A prefix that is longer than its address is `InvalidInput`.
    pub fn set_subnets(&self, subnets: &[(IpAddr, u8, Side)]) -> Result<(), WireError> {
        let mut wanted: BTreeMap<[u8; SUBNET_KEY], u32> = BTreeMap::new();
        for &(address, prefix, side) in subnets {
            let at = || format!("setting the side of {address}/{prefix}");
            let key = subnet_key(address, prefix)
                .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidInput))
                .step(at)?;
            wanted.insert(key, side_number(side));
        }
        let map = self.map("subnets");
        for (key, side) in &wanted {
            map.update(key, &side.to_ne_bytes(), MapFlags::ANY)
                .step(|| "adding a subnet".into())?;
        }
        let known: Vec<Vec<u8>> = map.keys().collect();
        for key in known.iter().filter(|key| !wanted.contains_key(key.as_slice())) {
            map.delete(key).step(|| "removing a subnet".into())?;
        }
        Ok(())
    }
}
