//! Options of the network.

use crate::emulator::WanOptions;

/// Options of the network.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopologyOptions {
    /// Put the namespace `wan` between client and router. An emulator joins its two interfaces.
    pub wan: bool,
    /// Let no host send segments larger than the MTU (no TSO/GSO), so that each captured packet is one packet on the cable.
    pub single_packets: bool,
    /// Connect the nodes by a second network.
    pub second_network: bool,
    /// Put each node behind a switch of its own, with an uplink to the router's.
    pub own_switches: bool,
}

impl TopologyOptions {
    /// The options that an emulated `way` needs.
    pub fn of(way: WanOptions) -> Self {
        Self {
            wan: !way.is_direct(),
            single_packets: way.loses(),
            ..Self::default()
        }
    }
}
