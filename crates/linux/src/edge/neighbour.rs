//! Asks the kernel's neighbour table for a link-layer address.

use std::io;
use std::net::IpAddr;

use rtnetlink::sys::Socket;
use rtnetlink::sys::SocketAddr;
use rtnetlink::sys::protocols::NETLINK_ROUTE;

use crate::network::message::{NLM_F_ACK, NLM_F_CREATE, first, message};

// `linux/rtnetlink.h`, `linux/neighbour.h`.
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NTF_USE: u8 = 1;
/// States in which the kernel sends to the neighbour: reachable, stale, delay, probe, without ARP, permanent.
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

/// Length of a `struct ndmsg` in bytes.
const HEADER: usize = 12;

/// The link-layer address of `address` on an interface, if the kernel knows it. Also makes the kernel resolve or verify the link-layer
/// address. Otherwise the kernel would never notice that a neighbour was replaced, because packet sockets do not use the kernel's table.
/// Does not wait for the neighbour's answer.
///
/// # Errors
/// The kernel's error.
pub(super) fn link_address(ifindex: u32, address: IpAddr) -> io::Result<Option<[u8; 6]>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    let use_it = message(
        RTM_NEWNEIGH,
        NLM_F_ACK | NLM_F_CREATE,
        &body(ifindex, address, NTF_USE),
    );
    first(&exchange(&socket, &use_it)?)?.outcome()?;
    look_up(&socket, ifindex, address)
}

fn look_up(socket: &Socket, ifindex: u32, address: IpAddr) -> io::Result<Option<[u8; 6]>> {
    let request = message(RTM_GETNEIGH, 0, &body(ifindex, address, 0));
    known(&exchange(socket, &request)?)
}

fn exchange(socket: &Socket, request: &[u8]) -> io::Result<Vec<u8>> {
    socket.send_to(request, &SocketAddr::new(0, 0), 0)?;
    Ok(socket.recv_from_full()?.0)
}

/// A `struct ndmsg` with a destination.
fn body(ifindex: u32, address: IpAddr, flags: u8) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let mut body = vec![u8::try_from(family).expect("a small number"), 0, 0, 0];
    body.extend(ifindex.to_ne_bytes());
    body.extend([0, 0, flags, 0]);
    let length = u16::try_from(octets.len() + 4).expect("short");
    body.extend(length.to_ne_bytes());
    body.extend(NDA_DST.to_ne_bytes());
    body.extend(octets);
    body
}

/// The address in the kernel's answer to RTM_GETNEIGH. `None` if the kernel does not know it.
fn known(answer: &[u8]) -> io::Result<Option<[u8; 6]>> {
    let answer = first(answer)?;
    if answer.kind != RTM_NEWNEIGH {
        return match answer.outcome() {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            outcome => outcome.map(|()| None),
        };
    }
    if u16::from_ne_bytes(answer.bytes(8)) & VALID == 0 {
        return Ok(None);
    }
    let mut rest = answer.body.get(HEADER..).unwrap_or_default();
    while let Some(header) = rest.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = rest.get(4..length).unwrap_or_default();
        if u16::from_ne_bytes([header[2], header[3]]) == NDA_LLADDR {
            return Ok(value.try_into().ok());
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(state: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0, 7, 0, 0, 0];
        body.extend(state.to_ne_bytes());
        body.extend([0, 1]);
        for (kind, value) in attributes {
            body.extend(u16::try_from(value.len() + 4).expect("short").to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        message(RTM_NEWNEIGH, 0, &body)
    }

    #[test]
    fn the_link_layer_address_is_found_behind_other_attributes() {
        let mac = [2, 0, 0, 0, 0, 9];
        let attributes: [(u16, &[u8]); 2] = [(NDA_DST, &[10, 0, 0, 9]), (NDA_LLADDR, &mac)];
        assert_eq!(known(&answer(2, &attributes)).expect("an answer"), Some(mac));
        assert_eq!(
            known(&answer(1, &attributes)).expect("an answer"),
            None,
            "incomplete"
        );
        assert_eq!(known(&answer(2, &attributes[..1])).expect("an answer"), None);
        assert!(known(&[]).is_err());
    }
}
