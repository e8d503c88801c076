//! The properties of network interfaces.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

use super::NetworkError;
use super::netlink::{Interface, Netlink};

impl Interface {
    /// The interface called `name`; `None` if there is none.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn find(name: &str) -> Result<Option<Self>, NetworkError> {
        Ok(interfaces()?.into_iter().find(|interface| interface.name == name))
    }

    /// The index that the interface with the name `self.name` has now. It differs from `self.index` if the interface was deleted and
    /// created again. `None` if no interface has this name.
    pub fn index_now(&self) -> Option<u32> {
        nix::net::if_::if_nametoindex(self.name.as_str()).ok()
    }

    /// The interface's first address of the same family as `address`.
    pub fn address_like(&self, address: IpAddr) -> Option<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|own| own.is_ipv4() == address.is_ipv4())
    }

    /// Whether `address` is a neighbour on this interface: the route to `address` leads out of this interface, without a gateway.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn leads_to(&self, address: IpAddr) -> Result<bool, NetworkError> {
        Ok(route_to(address)? == Some((self.index, false)))
    }

    /// Whether the interface merges received packets in hardware (LRO). `None` if the driver does not say.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn large_receive_offload(&self) -> Result<Option<bool>, NetworkError> {
        match self.ethtool(ETHTOOL_GFLAGS) {
            Ok(flags) => Ok(Some(flags & ETH_FLAG_LRO != 0)),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(NetworkError::new("ask ethtool about", self.name.clone(), error)),
        }
    }

    /// Whether the interface is up and its cable carries a signal now. True if the driver does not say.
    pub fn has_link(&self) -> bool {
        match self.ethtool(ETHTOOL_GLINK) {
            Ok(link) => link != 0,
            Err(error) => error.raw_os_error() == Some(libc::EOPNOTSUPP),
        }
    }

    fn ethtool(&self, command: u32) -> io::Result<u32> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        ethtool(&socket, &self.name, command)
    }
}

/// The index of the interface through which packets to `address` leave, and whether the packets go to a gateway. `None` without a route.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn route_to(address: IpAddr) -> Result<Option<(u32, bool)>, NetworkError> {
    match Netlink::open()?.route_to(address) {
        Ok(route) => Ok(route),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
            Ok(None)
        }
        Err(error) => Err(NetworkError::at("find the route to", address)(error)),
    }
}

/// All interfaces with their addresses.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn interfaces() -> Result<Vec<Interface>, NetworkError> {
    list(&Netlink::open()?)
}

/// All interfaces with their addresses, over an open netlink socket.
pub(super) fn list(netlink: &Netlink) -> Result<Vec<Interface>, NetworkError> {
    let list = || {
        let mut interfaces = netlink.links()?;
        for (index, address) in netlink.addresses()? {
            if let Some(interface) = interfaces.iter_mut().find(|interface| interface.index == index) {
                interface.addresses.push(address);
            }
        }
        Ok(interfaces)
    };
    list().map_err(NetworkError::at("list", "network interfaces"))
}

/// All addresses of this machine, with their interfaces' names.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn addresses() -> Result<Vec<(String, IpAddr)>, NetworkError> {
    let of = |interface: Interface| {
        let Interface { name, addresses, .. } = interface;
        addresses.into_iter().map(move |address| (name.clone(), address))
    };
    Ok(interfaces()?.into_iter().flat_map(of).collect())
}

/// From `linux/sockios.h` and `linux/ethtool.h`.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETH_FLAG_LRO: u32 = 1 << 15;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Asks the driver of the interface `name` for a number. `command` selects the number.
fn ethtool(socket: &Socket, name: &str, command: u32) -> io::Result<u32> {
    // SAFETY: an ifreq of zeroes is valid: every member of its union is plain integers, addresses or a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte.cast_signed() as libc::c_char;
    }
    let mut value = EthtoolValue { command, data: 0 };
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: with a command that asks for a number, SIOCETHTOOL reads the name in `request` and writes `value.data`.
    // Both `request` and `value` live until after the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value.data)
}
