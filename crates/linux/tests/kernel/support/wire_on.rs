//! The wire on a host. The wire is removed when the test ends, even if the test fails.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use proto::action::Gate;
use steadfast_linux::wire::{OwnClient, REASONS, Wire, WireOptions, WireService};

use super::eventually;
use super::lan::{Family, LanHost};

/// Options for tests that are not about the size of the rings.
pub fn options() -> WireOptions {
    WireOptions {
        ring_cached_bytes: 256 << 10, // so small that `ring_bytes` is used too
        ring_bytes: 16 << 20,
        ..WireOptions::default()
    }
}

/// The wire, serving both VIPs on a host's `eth0`.
pub struct WireOn {
    host: LanHost,
    name: String,
    wire: Option<Wire>,
}

/// Both services, on a host's `eth0`.
pub fn services(host: &LanHost) -> [WireService; 2] {
    let ifindex = host.run(|| nix::net::if_::if_nametoindex("eth0").expect("eth0"));
    Family::BOTH.map(|family| WireService {
        address: family.vip().ip(),
        port: family.vip().port(),
        ifindex,
        own_mac: host.mac(),
        crash_exit_codes: vec![family.crash_code()],
        application: None,
        own: Some(OwnClient {
            address: host.address(family),
            mss: 1400,
        }),
    })
}

/// The wire that a killed agent leaves behind. After [`succeeded`](Self::succeeded), it is removed when the test ends.
pub struct DeadWire {
    host: LanHost,
    name: String,
}

impl DeadWire {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The wire after a new agent has adopted it.
    pub fn succeeded(self, options: &WireOptions) -> WireOn {
        let services = services(&self.host);
        let wire = self.host.run(|| {
            let mut wire = Wire::adopt(&self.name, options, &services)
                .expect("adopt")
                .expect("it is there");
            assert_eq!(wire.attach().expect("attach"), None);
            wire
        });
        WireOn {
            host: self.host.clone(),
            name: self.name.clone(),
            wire: Some(wire),
        }
    }
}

impl WireOn {
    /// Attaches the wire, with both services at `gate`.
    pub fn new(host: &LanHost, peer: &LanHost, options: &WireOptions, gate: Gate) -> Self {
        Self::serving(&services(host), host, peer, options, gate)
    }

    /// As [`new`](Self::new), with these services. The first two, one per family, get `gate`. The gates of the others stay off.
    pub fn serving(
        services: &[WireService],
        host: &LanHost,
        peer: &LanHost,
        options: &WireOptions,
        gate: Gate,
    ) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{count}", std::process::id());
        let mut wire = Wire::load(&name, options).expect("load");
        host.run(|| {
            for (index, service) in (0..).zip(services) {
                wire.add_service(index, service).expect("add_service");
                wire.set_peer_mac(index, peer.mac());
            }
            assert_eq!(wire.attach().expect("attach"), None);
        });
        let on = Self {
            host: host.clone(),
            name,
            wire: Some(wire),
        };
        on.set_gates(gate);
        on
    }

    /// Ends the agent as a kill does: nothing is removed.
    pub fn die(mut self) -> DeadWire {
        drop(self.wire.take());
        DeadWire {
            host: self.host.clone(),
            name: self.name.clone(),
        }
    }

    /// The same wire after its agent has died and a new agent has adopted it.
    pub fn succeeded(self, options: &WireOptions) -> Self {
        self.die().succeeded(options)
    }

    /// Sets both services' gates.
    pub fn set_gates(&self, gate: Gate) {
        for family in Family::BOTH {
            self.set_gate(family.service(), gate);
        }
    }

    /// The counter called `reason`, one of [`REASONS`].
    pub fn counter(&self, family: Family, reason: &str) -> u64 {
        let index = REASONS
            .iter()
            .position(|&name| name == reason)
            .expect("a counter");
        self.counters(family.service()).expect("counters")[index]
    }

    /// Waits until a counter has reached `at_least`.
    #[track_caller]
    pub fn wait_for(&self, family: Family, reason: &str, at_least: u64) {
        eventually(reason, || {
            (self.counter(family, reason) >= at_least).then_some(())
        });
    }

    /// The non-zero counters of dropped packets.
    pub fn drops(&self, family: Family) -> Vec<(&'static str, u64)> {
        let counters = self.counters(family.service()).expect("counters");
        let drops = REASONS.into_iter().zip(counters);
        drops
            .filter(|&(name, count)| name.starts_with("dropped") && count > 0)
            .collect()
    }
}

impl Deref for WireOn {
    type Target = Wire;

    fn deref(&self) -> &Wire {
        self.wire.as_ref().expect("until it is dropped")
    }
}

impl Drop for WireOn {
    fn drop(&mut self) {
        let Some(wire) = self.wire.take() else { return };
        let removed = self.host.run(|| wire.remove());
        if !std::thread::panicking() {
            removed.expect("remove");
        }
    }
}
