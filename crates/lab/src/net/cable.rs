//! Cables: pairs of virtual Ethernet ports, each end in its own namespace.

use std::sync::atomic::{AtomicU32, Ordering};

use linux::netns::Netns;

use super::address::InterfaceAddresses;

/// One end of a cable.
pub struct CableEnd<'a> {
    namespace: &'a str,
    port: &'a str,
    mac: Option<String>,
}

impl<'a> CableEnd<'a> {
    /// The port of this name in `namespace`, with a MAC address that the kernel chooses.
    pub const fn new(namespace: &'a str, port: &'a str) -> Self {
        let mac = None;
        Self { namespace, port, mac }
    }

    /// The same end, with the MAC address of `endpoint`.
    pub fn with_mac(self, endpoint: &InterfaceAddresses) -> Self {
        let mac = Some(endpoint.mac_text());
        Self { mac, ..self }
    }

    fn text(&self, index: u32) -> String {
        let Self { namespace, port, .. } = self;
        let address = self
            .mac
            .as_ref()
            .map_or_else(String::new, |mac| format!(" address {mac}"));
        format!("name {port}{address} index {index} netns {namespace}")
    }
}

impl<'a, P: AsRef<str> + ?Sized> From<(&'a Netns, &'a P)> for CableEnd<'a> {
    fn from((host, port): (&'a Netns, &'a P)) -> Self {
        Self::new(host.name(), port.as_ref())
    }
}

/// The command (without the leading `ip`) that makes a cable. The two ports get different interface indexes: if a port had the index of its
/// other end, the kernel would report a lost carrier up to a second late (docs/KERNEL.md).
pub fn cable<'a>(near: impl Into<CableEnd<'a>>, far: impl Into<CableEnd<'a>>) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    let index = NEXT.fetch_add(2, Ordering::Relaxed);
    let (near, far) = (near.into().text(index), far.into().text(index + 1));
    format!("link add {near} type veth peer {far}")
}
