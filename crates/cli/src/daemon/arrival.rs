//! Tells the node on which services' interfaces the peer's datagrams arrive, and which services' interfaces have a link to the peer.

use std::net::IpAddr;

use agent::Core;
use proto::service::ServiceInput;

use super::kernel::LinuxKernel;
use super::peer::PeerLinks;

impl LinuxKernel {
    /// Tells the node that a datagram of the peer's agent came in by `interface`.
    pub fn note_arrival(&self, node: &mut Core, interface: u32) {
        for (index, service) in (0..).zip(&self.services) {
            if service.interface.index == interface {
                let at = linux::clock::now();
                node.handle(at, index, ServiceInput::HasLink(true));
                node.handle(at, index, ServiceInput::Sign { at });
            }
        }
    }

    /// Tells the node which services' interfaces have a link to the peer.
    pub fn look_for_links(&self, node: &mut Core, peer: &PeerLinks) {
        let Ok(addresses) = linux::network::addresses() else {
            return; // the next look comes soon
        };
        let here = peer.own_addresses();
        for (index, service) in (0..).zip(&self.services) {
            let is_here = |(name, address): &(String, IpAddr)| {
                *name == service.interface.name && here.contains(address)
            };
            if addresses.iter().any(is_here) {
                node.handle(linux::clock::now(), index, ServiceInput::HasLink(true));
            }
        }
    }
}
