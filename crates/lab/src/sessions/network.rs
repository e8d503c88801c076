//! A client's host and up to three servers' hosts at a switch. Each cable can have a delay.

use std::time::Duration;

use anyhow::Result;
use linux::netns::Netns;
use sim::link::LinkConfig;

use crate::emulator::Emulator;
use crate::net::{CableEnd, batch, cable};
use crate::teardown::{Resource, Teardown};

/// Addresses of the client's host and of the servers' hosts.
pub const HOSTS: [&str; 4] = ["10.3.0.1", "10.3.0.2", "10.3.0.3", "10.3.0.4"];
/// Names of these hosts.
const NAMES: [&str; 4] = ["client", "a", "b", "c"];

/// The network.
pub struct SessionsNetwork {
    /// The client's host, and the servers' hosts.
    pub hosts: Vec<Netns>,
    _emulators: Vec<Emulator>,
}

impl SessionsNetwork {
    /// Builds the network of `run`, with this number of servers. `rtt`: the round-trip time between any two hosts; zero: that of the cables. `far`: what this time is
    /// longer for server b.
    ///
    /// # Errors
    /// The step that failed.
    pub fn build(
        run: &str,
        servers: usize,
        (rtt, far): (Duration, Duration),
        teardown: &Teardown,
    ) -> Result<Self> {
        let hosts = NAMES[..=servers].iter();
        let names: Vec<_> = hosts.map(|name| format!("sf{run}-{name}")).collect();
        let switch = &format!("sf{run}-switch");
        let mut lines = Vec::new();
        for name in names.iter().chain([switch]) {
            teardown.will_create(&Resource::Namespace(name.clone()))?;
            lines.push(format!("netns add {name}"));
        }
        let mut at_switch = vec![
            "link add bridge type bridge".to_owned(),
            "link set bridge up".to_owned(),
        ];
        for (number, name) in names.iter().enumerate() {
            let port = format!("h{number}");
            lines.push(cable(CableEnd::new(name, "eth0"), CableEnd::new(switch, &port)));
            at_switch.push(format!("link set {port} up"));
            if (rtt + far).is_zero() {
                at_switch.push(format!("link set {port} master bridge"));
                continue;
            }
            // The emulator carries frames between `h` and `e`. The other end of `e` is a port of the bridge.
            let (outer, inner) = (format!("e{number}"), format!("i{number}"));
            lines.push(cable(
                CableEnd::new(switch, &outer),
                CableEnd::new(switch, &inner),
            ));
            at_switch.push(format!("link set {outer} up"));
            at_switch.push(format!("link set {inner} up"));
            at_switch.push(format!("link set {inner} master bridge"));
        }
        batch(None, &lines)?;
        batch(Some(switch), &at_switch)?;
        for (name, address) in names.iter().zip(HOSTS) {
            let lines = [
                "link set lo up",
                "link set eth0 up",
                &format!("addr add {address}/24 dev eth0"),
            ];
            batch(Some(name), &lines.map(str::to_owned))?;
        }
        let switch = Netns::open(switch)?;
        let emulators = if (rtt + far).is_zero() {
            Vec::new()
        } else {
            // Each way crosses two cables.
            let join = |number: usize| {
                let more = if number == 2 { far / 2 } else { Duration::ZERO };
                let link = LinkConfig {
                    delay: rtt / 4 + more,
                    ..LinkConfig::default()
                };
                let ends = [format!("h{number}"), format!("e{number}")];
                Emulator::join(&switch, [&ends[0], &ends[1]], [link.clone(), link], 1)
            };
            (0..names.len()).map(join).collect::<Result<_>>()?
        };
        Ok(Self {
            hosts: names
                .iter()
                .map(|name| Netns::open(name))
                .collect::<Result<_, _>>()?,
            _emulators: emulators,
        })
    }
}
