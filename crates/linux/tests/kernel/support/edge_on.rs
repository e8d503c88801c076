//! The edge's data path on a host. The data path is removed when the test ends, even if the test fails.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proto::edge::cache::{CachePolicy, SecondPacket};
use steadfast_linux::edge::{
    EdgePort, EdgeStringPort, EdgeWire, EdgeWireOptions, EdgeWirePlan, SLOTS, Side, remove_edge_pins,
};

use super::lan::LanHost;

/// Options for tests that do not depend on the sizes of the flow table and of the ring.
pub fn edge_options() -> EdgeWireOptions {
    EdgeWireOptions {
        flows_max: 20_000,
        ring_bytes: 16 << 20,
        agent_timeout: Duration::from_secs(3600),
    }
}

/// The index of an interface of this host.
pub fn index_of(host: &LanHost, interface: &str) -> u32 {
    host.run(|| {
        nix::net::if_::if_nametoindex(interface).unwrap_or_else(|error| panic!("{interface}: {error}"))
    })
}

/// A port without a VLAN tag.
pub fn port(host: &LanHost, interface: &str) -> EdgePort {
    EdgePort {
        ifindex: index_of(host, interface),
        vlan: None,
    }
}

/// A plan with these strings. A destination is outside the cluster, unless the test sets a subnet that contains it.
pub fn plan(outside: EdgePort, strings: Vec<EdgeStringPort>, policy: Option<CachePolicy>) -> EdgeWirePlan {
    EdgeWirePlan {
        outside,
        strings,
        default_side: Side::Outside,
        policy,
        second: SecondPacket::default(),
    }
}

/// A data path on a host.
pub struct EdgeOn {
    host: LanHost,
    name: String,
    wire: Option<EdgeWire>,
}

impl EdgeOn {
    /// Loads and attaches a data path.
    pub fn new(host: &LanHost, plan: &EdgeWirePlan, options: &EdgeWireOptions) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{count}", std::process::id());
        let mut on = Self {
            host: host.clone(),
            name,
            wire: None,
        };
        let wire = host.run(|| {
            let mut wire = EdgeWire::load(&on.name, plan, options).expect("load");
            wire.attach().expect("attach");
            assert!(wire.is_attached());
            wire
        });
        on.wire = Some(wire);
        on
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends the agent as a kill does, and lets a successor adopt its data path.
    pub fn succeeded(mut self, plan: &EdgeWirePlan, options: &EdgeWireOptions) -> Self {
        drop(self.wire.take());
        let wire = self.host.run(|| {
            let adopted = EdgeWire::adopt(&self.name, plan, options).expect("adopt");
            let mut wire = adopted.expect("it is there");
            wire.attach().expect("attach");
            wire
        });
        self.wire = Some(wire);
        self
    }

    /// Gives all slots to one string.
    pub fn give_all_slots(&self, string: u8) {
        self.set_slots(&[string; SLOTS]);
    }

    /// A counter of the programs.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.counters().expect("counters");
        let found = counters.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

impl Deref for EdgeOn {
    type Target = EdgeWire;

    fn deref(&self) -> &EdgeWire {
        self.wire.as_ref().expect("it is there until the end")
    }
}

impl Drop for EdgeOn {
    fn drop(&mut self) {
        let removed = match self.wire.take() {
            Some(wire) => self.host.run(|| wire.remove()),
            None => remove_edge_pins(&self.name),
        };
        if !std::thread::panicking() {
            removed.expect("remove");
        }
    }
}
