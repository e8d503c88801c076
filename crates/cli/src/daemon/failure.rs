//! Handles services whose network could not be set up, and interfaces that were made anew (with another index, perhaps another MAC
//! address).

use agent::Core;
use anyhow::{Context, bail};
use linux::network::Interface;
use proto::action::ServiceIndex;
use proto::service::ServiceInput;

use super::kernel::LinuxKernel;

impl LinuxKernel {
    /// Fails if the service's interface is gone or was made anew.
    pub(super) fn look_for_interface(&self, index: ServiceIndex) -> anyhow::Result<()> {
        let interface = &self.services[usize::from(index)].interface;
        match interface.index_now() {
            Some(now) if now == interface.index => Ok(()),
            Some(_) => bail!("interface {} was made anew", interface.name),
            None => bail!("interface {} is gone", interface.name),
        }
    }

    /// Sets up interfaces that were made anew. Leaves out services that have a failed step, because that step is tried
    /// again anyway. If the MAC address changed, the peer's wire no longer recognizes this node, so the pair has to
    /// agree anew.
    pub(super) fn follow_interfaces(&mut self, node: &mut Core) {
        for index in 0..ServiceIndex::try_from(self.services.len()).expect("few") {
            let interface = &self.services[usize::from(index)].interface;
            let is_moved = interface.index_now().is_some_and(|now| now != interface.index);
            if !is_moved || node.service(index).failure().is_some() {
                continue;
            }
            let (name, mac) = (interface.name.clone(), self.services[usize::from(index)].mac);
            let now = linux::clock::now();
            match self.put_back(index) {
                Ok(found) if found == mac => {
                    tracing::warn!(
                        service = self.service_name(index),
                        interface = name,
                        "the interface was made anew; it is set up again"
                    );
                }
                Ok(_) if node.peer_is_alive(now) => {
                    let why = format!("interface {name} was made anew, with another MAC address");
                    node.handle(now, index, ServiceInput::Failed { why });
                }
                Ok(found) => node.handle(now, index, ServiceInput::Mended { mac: found }),
                Err(error) => tracing::error!(
                    service = self.service_name(index),
                    interface = name,
                    error = format!("{error:#}"),
                    "cannot set up an interface that was made anew; trying again"
                ),
            }
        }
    }

    /// If the service's interface was made anew or has another MAC address, attaches the wire's programs to the interface. In any case
    /// restores lost network state on the interface. Returns the interface's MAC address.
    pub(super) fn put_back(&mut self, index: ServiceIndex) -> anyhow::Result<[u8; 6]> {
        let service = &self.services[usize::from(index)];
        let name = service.interface.name.clone();
        let found = Interface::find(&name)?.with_context(|| format!("interface {name} is gone"))?;
        let mac = found
            .mac
            .map(|mac| mac.0)
            .with_context(|| format!("{name} has no MAC address"))?;
        let old = service.interface.index;
        if (old, service.mac) != (found.index, mac) {
            self.wire.move_service(index, found.index, mac)?;
            self.claims.move_to(index, &found)?;
            self.filters.replace(old, found.index);
            self.bare.retain(|interface| *interface != old);
            self.follow_own_address(index, &found);
            let service = &mut self.services[usize::from(index)];
            (service.interface, service.mac) = (found, mac);
        }
        self.network.repair_on(&name)?;
        Ok(mac)
    }
}
