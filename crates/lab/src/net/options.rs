//! Options of the lab's network.

use crate::emulator::WanOptions;

/// Options of the lab's network.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopologyOptions {
    /// Put the namespace `wan` between client and router. A network emulator passes packets between the two interfaces of this namespace.
    pub wan: bool,
    /// Disable segments larger than the MTU (TSO/GSO) on all hosts, so that each captured packet is one packet on the cable.
    pub single_packets: bool,
    /// Connect the nodes by a second network.
    pub second_network: bool,
    /// Put each node behind a switch of its own. An uplink joins this switch to the router's switch.
    pub own_switches: bool,
}

impl TopologyOptions {
    /// The options that the network needs if the path to the client is `way`.
    pub fn of(way: WanOptions) -> Self {
        Self {
            wan: !way.is_direct(),
            single_packets: way.loses(),
            ..Self::default()
        }
    }
}
