//! The right to speak, given and taken by one message to the kernel: a takeover does not wait for a program to start.
//!
//! The message is a batch of nf_tables (`linux/netfilter/nfnetlink.h`, `linux/netfilter/nf_tables.h`) with one change
//! of one set element.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr};

use super::Error;

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWSETELEM: u16 = NFNL_SUBSYS_NFTABLES << 8 | 12;
const NFT_MSG_DELSETELEM: u16 = NFNL_SUBSYS_NFTABLES << 8 | 14;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;

const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_INET: u8 = 1;

const NLA_F_NESTED: u16 = 0x8000;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_DATA_VALUE: u16 = 1;

/// Who may speak: changes the sets `speak4` and `speak6` of a guard's table.
pub(super) struct Voice {
    socket: Socket,
}

impl std::fmt::Debug for Voice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Voice").finish_non_exhaustive()
    }
}

impl Voice {
    /// For the tables of the calling thread's network namespace.
    pub(super) fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind_auto()?;
            socket.connect(&NetlinkAddr::new(0, 0))?;
            // The kernel has answered when send(2) returns.
            socket.set_non_blocking(true)?;
            Ok(Self { socket })
        };
        open().map_err(Error::at("open", "nftables netlink"))
    }

    /// Lets RSTs of `service` pass the guard of `table`, or not. Once more is as good as once.
    pub(super) fn set(&self, table: &str, service: SocketAddr, may: bool) -> Result<(), Error> {
        let change = || {
            let (kind, flags) = if may {
                (NFT_MSG_NEWSETELEM, NLM_F_CREATE)
            } else {
                (NFT_MSG_DELSETELEM, 0)
            };
            let element = message(kind, NLM_F_ACK | flags, NFPROTO_INET, 0, &element(table, service));
            let batch = |kind| message(kind, 0, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, &[]);
            let request = [batch(NFNL_MSG_BATCH_BEGIN), element, batch(NFNL_MSG_BATCH_END)].concat();
            self.socket.send(&request, 0)?;
            let (answer, _) = self.socket.recv_from_full()?;
            outcome(&answer)
        };
        match change() {
            Err(error) if !may && error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(Error::at(
                "change",
                format!("who may speak in nftables {table}: {service}"),
            )),
        }
    }
}

/// An NLMSG_ERROR says how the request ended; 0 is well.
fn outcome(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).map(|two| u16::from_ne_bytes([two[0], two[1]]));
    match (kind, answer.get(16..20)) {
        (Some(NLMSG_ERROR), Some(code)) => match i32::from_ne_bytes(code.try_into().expect("4 bytes")) {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(-code)),
        },
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's answer is not understood",
        )),
    }
}

/// The attributes that name one element of one set.
fn element(table: &str, service: SocketAddr) -> Vec<u8> {
    // Of a concatenation each part begins at a multiple of 4 bytes.
    let (set, mut key) = match service.ip() {
        IpAddr::V4(v4) => ("speak4", v4.octets().to_vec()),
        IpAddr::V6(v6) => ("speak6", v6.octets().to_vec()),
    };
    key.extend(service.port().to_be_bytes());
    key.extend([0, 0]);
    let text = |name: &str| [name.as_bytes(), &[0]].concat();
    let nested = |kind, inner: &[u8]| attribute(NLA_F_NESTED | kind, inner);
    let key = nested(NFTA_SET_ELEM_KEY, &attribute(NFTA_DATA_VALUE, &key));
    [
        attribute(NFTA_SET_ELEM_LIST_TABLE, &text(table)),
        attribute(NFTA_SET_ELEM_LIST_SET, &text(set)),
        nested(NFTA_SET_ELEM_LIST_ELEMENTS, &nested(NFTA_LIST_ELEM, &key)),
    ]
    .concat()
}

/// `struct nlattr`: length, type, value, padding.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("names and keys are short");
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// `struct nlmsghdr`, `struct nfgenmsg`, attributes.
fn message(kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(20 + attributes.len()).expect("names and keys are short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]); // sequence number and port
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}
