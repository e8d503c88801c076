//! The routers behind an interface. For IPv4, `/proc` lists the routes of the main routing table. For IPv6, `/proc` lists the routes of all
//! tables. This program's own IPv6 route to the peer's wire is one of them, so the peer is found as a gateway too.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// RTF_UP and RTF_GATEWAY of `linux/route.h`.
const UP: u32 = 1;
const GATEWAY: u32 = 2;

/// The gateways of all routes through the interface named `interface`, of both families, each once.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn gateways(interface: &str) -> io::Result<Vec<IpAddr>> {
    let v4 = std::fs::read_to_string("/proc/thread-self/net/route")?;
    let v6 = match std::fs::read_to_string("/proc/thread-self/net/ipv6_route") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(), // a kernel without IPv6
        text => text?,
    };
    let mut found: Vec<IpAddr> = v4
        .lines()
        .filter_map(|line| of_v4(line, interface))
        .chain(v6.lines().filter_map(|line| of_v6(line, interface)))
        .collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// `eth0 00000000 0102020A 0003 …`: interface, destination, gateway in the machine's byte order, flags.
fn of_v4(line: &str, interface: &str) -> Option<IpAddr> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [name, _, gateway, flags, ..] = fields[..] else {
        return None;
    };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let gateway = u32::from_str_radix(gateway, 16).ok()?;
    let is_one = name == interface && flags & (UP | GATEWAY) == UP | GATEWAY;
    is_one.then(|| Ipv4Addr::from(gateway.to_ne_bytes()).into())
}

/// Destination, length, source, length, next hop, metric, references, uses, flags, interface.
fn of_v6(line: &str, interface: &str) -> Option<IpAddr> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, _, _, _, gateway, _, _, _, flags, name] = fields[..] else {
        return None;
    };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let gateway = Ipv6Addr::from(u128::from_str_radix(gateway, 16).ok()?);
    let is_one = name == interface && flags & (UP | GATEWAY) == UP | GATEWAY;
    is_one.then_some(gateway.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc() {
        let gateway = u32::from_ne_bytes([10, 2, 0, 1]);
        let line = format!("eth0\t00000000\t{gateway:08X}\t0003\t0\t0\t0\t00000000\t0\t0\t0");
        assert_eq!(of_v4(&line, "eth0"), Some("10.2.0.1".parse().unwrap()));
        assert_eq!(of_v4(&line, "eth1"), None);
        assert_eq!(of_v4(&line.replace("0003", "0001"), "eth0"), None);
        assert_eq!(of_v4("Iface\tDestination\tGateway \tFlags", "Iface"), None);
        let zero = "0".repeat(32);
        let line =
            |hop: &str| format!("{zero} 00 {zero} 00 {hop} 00000400 00000001 00000000 00000003     eth0");
        let global = line("20010db8000000000000000000000001");
        assert_eq!(of_v6(&global, "eth0"), Some("2001:db8::1".parse().unwrap()));
        let router = line("fe800000000000000000000000000001");
        assert_eq!(of_v6(&router, "eth0"), Some("fe80::1".parse().unwrap()));
        assert_eq!(of_v6(&router, "eth1"), None);
    }
}
