//! Programs on this node as clients of its own services: their address, and their maximum segment size.

use std::net::IpAddr;

use linux::network::Interface;
use linux::wire::OwnClient;
use proto::action::ServiceIndex;

use super::kernel::LinuxKernel;
use crate::config;

/// Address and MSS of this node's programs as clients of a service at `vip`. The peer must be able to reach the address, so it is an
/// address of the service interface. Keeps the address `before` while the interface has it.
fn own_client(
    interface: &Interface,
    vip: IpAddr,
    vips: &[IpAddr],
    before: Option<IpAddr>,
) -> Option<OwnClient> {
    let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let is_own = |own: &IpAddr| own.is_ipv4() == vip.is_ipv4() && !vips.contains(own) && !is_link_local(own);
    let mut own = interface.addresses.iter().copied().filter(is_own);
    let address = before
        .filter(|before| interface.addresses.contains(before))
        .or_else(|| own.next())?;
    let headers = if vip.is_ipv4() { 40 } else { 60 };
    let mss = interface.mtu.saturating_sub(headers);
    Some(OwnClient { address, mss })
}

/// As [`own_client`], at the start of the agent. Logs if there is no address.
pub(super) fn first_own_client(
    service: &config::ServiceSettings,
    interface: &Interface,
    vips: &[IpAddr],
) -> Option<OwnClient> {
    let own = own_client(interface, service.address, vips, None);
    if own.is_none() {
        let (service, interface) = (&service.name, &interface.name);
        tracing::warn!(
            service,
            interface,
            "the interface has no address for clients on this node: their connections are refused"
        );
    }
    own
}

impl LinuxKernel {
    /// Applies changes of the service interfaces' addresses and MTUs to the clients on this node.
    pub(super) fn follow_own_addresses(&self) {
        let interfaces = match self.network.interfaces() {
            Ok(interfaces) => interfaces,
            Err(error) => {
                tracing::debug!(%error, "the service interfaces cannot be looked at");
                return;
            }
        };
        for (index, service) in (0..).zip(&self.services) {
            let name = &service.interface.name;
            if let Some(interface) = interfaces.iter().find(|interface| interface.name == *name) {
                self.follow_own_address(index, interface);
            }
        }
    }

    /// As [`Self::follow_own_addresses`], for one service. While the interface has no address, nothing changes.
    pub(super) fn follow_own_address(&self, index: ServiceIndex, interface: &Interface) {
        let vips: Vec<IpAddr> = self.services.iter().map(|service| service.vip.ip()).collect();
        let vip = self.services[usize::from(index)].vip.ip();
        let before = self.wire.own_client(index);
        let own = own_client(interface, vip, &vips, before.map(|own| own.address));
        if own.is_some() && own != before {
            let service = self.service_name(index);
            tracing::info!(
                service,
                ?own,
                "the address or the MSS of clients on this node has changed"
            );
            self.wire.set_own_client(index, own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(mtu: u32, addresses: &[&str]) -> Interface {
        Interface {
            name: "eth0".to_owned(),
            index: 2,
            mac: None,
            mtu,
            up: true,
            carrier: true,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn an_address_is_kept_while_it_is_there() {
        let vips: [IpAddr; 2] = ["10.0.0.100", "2001:db8::100"].map(|vip| vip.parse().unwrap());
        let own = |interface: &Interface, vip: usize, before: Option<&str>| {
            let before = before.map(|before| before.parse().unwrap());
            let own = own_client(interface, vips[vip], &vips, before)?;
            Some((own.address.to_string(), own.mss))
        };
        let found = |address: &str, mss| Some((address.to_owned(), mss));
        let all = [
            "10.0.0.100",
            "fe80::3",
            "2001:db8::100",
            "10.0.0.3",
            "10.0.0.4",
            "2001:db8::3",
        ];
        let whole = interface(1500, &all);
        assert_eq!(own(&whole, 0, None), found("10.0.0.3", 1460));
        assert_eq!(own(&whole, 0, Some("10.0.0.4")), found("10.0.0.4", 1460));
        assert_eq!(own(&whole, 0, Some("10.0.0.9")), found("10.0.0.3", 1460));
        assert_eq!(own(&whole, 1, None), found("2001:db8::3", 1440));
        let bare = interface(1400, &["10.0.0.100", "fe80::3"]);
        assert_eq!(own(&bare, 0, Some("10.0.0.3")), None);
        assert_eq!(own(&bare, 1, None), None);
    }
}
