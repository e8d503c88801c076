//! The counters of the eBPF programs.

use libbpf_rs::{MapCore, MapFlags};

use super::abi::{self, REASONS};
use super::{Wire, WireError, WireStep};

impl Wire {
    /// The counters of a service, in the order of [`REASONS`], summed over the CPUs.
    ///
    /// # Errors
    /// The kernel's error at the map look-up.
    pub fn counters(&self, index: u16) -> Result<[u64; REASONS.len()], WireError> {
        let map = self.map("counters");
        let mut sums = [0; REASONS.len()];
        for (reason, sum) in sums.iter_mut().enumerate() {
            let key = u32::try_from(usize::from(index) * REASONS.len() + reason).expect("small");
            let values = map
                .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
                .step(|| "reading the counters".into())?
                .unwrap_or_default();
            *sum = values
                .iter()
                .filter_map(|bytes| bytes.get(..8))
                .map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes")))
                .sum();
        }
        Ok(sums)
    }

    /// Number of times that a program on this node was refused a connection to a service.
    ///
    /// # Errors
    /// As [`Wire::counters`].
    pub fn refused_local_clients(&self, index: u16) -> Result<u64, WireError> {
        let counters = self.counters(index)?;
        Ok(counters[abi::REFUSED_LOCAL])
    }
}
