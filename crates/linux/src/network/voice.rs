//! Grants and withdraws the right to speak by one message to the kernel, so that a takeover need not wait until `nft` has started. Also
//! reads the guard's sets, counters and rules.
//!
//! The message that changes the right is a batch of nf_tables (`linux/netfilter/nfnetlink.h`, `linux/netfilter/nf_tables.h`) with one
//! change of one set element.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr};

use super::NetworkError;
use super::message::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLMSG_DONE, first, message, messages};

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_GETRULE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 7;
const NFT_MSG_NEWRULE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 6;
const NFT_MSG_NEWSETELEM: u16 = NFNL_SUBSYS_NFTABLES << 8 | 12;
const NFT_MSG_GETSETELEM: u16 = NFNL_SUBSYS_NFTABLES << 8 | 13;
const NFT_MSG_DELSETELEM: u16 = NFNL_SUBSYS_NFTABLES << 8 | 14;

const NFT_MSG_NEWOBJ: u16 = NFNL_SUBSYS_NFTABLES << 8 | 18;
const NFT_MSG_GETOBJ: u16 = NFNL_SUBSYS_NFTABLES << 8 | 19;

const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_INET: u8 = 1;

const NLA_F_NESTED: u16 = 0x8000;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_OBJ_TABLE: u16 = 1;
const NFTA_OBJ_NAME: u16 = 2;
const NFTA_OBJ_TYPE: u16 = 3;
const NFTA_OBJ_DATA: u16 = 4;
const NFTA_COUNTER_PACKETS: u16 = 2;
const NFT_OBJECT_COUNTER: u32 = 1;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_DATA_VALUE: u16 = 1;

/// Changes which services may speak: the sets `speak4` and `speak6` of a guard's table.
pub(super) struct SpeakerSets {
    socket: Socket,
}

impl std::fmt::Debug for SpeakerSets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpeakerSets").finish_non_exhaustive()
    }
}

impl SpeakerSets {
    /// Opens a netlink socket, for the guards' tables in the calling thread's network namespace.
    pub(super) fn open() -> Result<Self, NetworkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind_auto()?;
            socket.connect(&NetlinkAddr::new(0, 0))?;
            // When send(2) returns, the kernel has answered already, so a read need not wait.
            socket.set_non_blocking(true)?;
            Ok(Self { socket })
        };
        open().map_err(NetworkError::at("open", "nftables netlink"))
    }

    /// Grants or withdraws `service`'s right to speak in the guard `table`. Idempotent.
    pub(super) fn set(&self, table: &str, service: SocketAddr, may: bool) -> Result<(), NetworkError> {
        let change = || {
            let (kind, flags) = if may {
                (NFT_MSG_NEWSETELEM, NLM_F_CREATE)
            } else {
                (NFT_MSG_DELSETELEM, 0)
            };
            let element = request(
                kind,
                NLM_F_ACK | flags,
                NFPROTO_INET,
                0,
                &element(table, SPEAK, service),
            );
            let batch = |kind| request(kind, 0, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, &[]);
            let request = [batch(NFNL_MSG_BATCH_BEGIN), element, batch(NFNL_MSG_BATCH_END)].concat();
            self.socket.send(&request, 0)?;
            let (answer, _) = self.socket.recv_from_full()?;
            first(&answer)?.outcome()
        };
        match change() {
            Err(error) if !may && error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(NetworkError::at(
                "change",
                format!("the right to speak, in nftables table {table}: {service}"),
            )),
        }
    }
}

impl SpeakerSets {
    /// Whether `service` may speak.
    pub(super) fn may_speak(&self, table: &str, service: SocketAddr) -> io::Result<bool> {
        self.has(table, SPEAK, service)
    }

    /// Whether `service` is in the set of guarded services of `table`.
    pub(super) fn is_guarded(&self, table: &str, service: SocketAddr) -> io::Result<bool> {
        self.has(table, GUARDED, service)
    }

    fn has(&self, table: &str, set: &str, service: SocketAddr) -> io::Result<bool> {
        let question = element(table, set, service);
        let question = request(NFT_MSG_GETSETELEM, 0, NFPROTO_INET, 0, &question);
        self.socket.send(&question, 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        let answer = first(&answer)?;
        if answer.kind == NFT_MSG_NEWSETELEM {
            return Ok(true);
        }
        match answer.outcome() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            outcome => outcome.map(|()| false),
        }
    }

    /// Number of packets that the counter `name` in `table` has counted.
    pub(super) fn packets(&self, table: &str, name: &str) -> io::Result<u64> {
        let question = [
            attribute(NFTA_OBJ_TABLE, &text(table)),
            attribute(NFTA_OBJ_NAME, &text(name)),
            attribute(NFTA_OBJ_TYPE, &NFT_OBJECT_COUNTER.to_be_bytes()),
        ]
        .concat();
        let question = request(NFT_MSG_GETOBJ, 0, NFPROTO_INET, 0, &question);
        self.socket.send(&question, 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        let answer = first(&answer)?;
        if answer.kind != NFT_MSG_NEWOBJ {
            answer.outcome()?;
        }
        let attributes = answer.body.get(size_of::<[u8; 4]>()..).unwrap_or_default();
        let packets = find(attributes, NFTA_OBJ_DATA).and_then(|data| find(data, NFTA_COUNTER_PACKETS));
        let packets = packets.and_then(|bytes| bytes.try_into().ok());
        packets
            .map(u64::from_be_bytes)
            .ok_or_else(|| io::Error::other("the kernel's answer has no packet count"))
    }

    /// Number of rules in `table`. 0 if the table does not exist.
    pub(super) fn rules(&self, table: &str) -> io::Result<usize> {
        let table = attribute(NFTA_RULE_TABLE, &text(table));
        let question = request(NFT_MSG_GETRULE, NLM_F_DUMP, NFPROTO_INET, 0, &table);
        self.socket.send(&question, 0)?;
        let mut rules = 0;
        loop {
            let (answers, _) = self.socket.recv_from_full()?;
            for answer in messages(&answers) {
                match answer.kind {
                    NFT_MSG_NEWRULE => rules += 1,
                    NLMSG_DONE => return Ok(rules),
                    _ => answer.outcome()?,
                }
            }
        }
    }
}

/// Prefixes of the names of a guard's sets. A `4` or `6` for the address family follows. The first set has
/// all services. The second set has the services that may speak.
const GUARDED: &str = "guarded";
const SPEAK: &str = "speak";

/// The attributes that name one element of one set.
fn element(table: &str, set: &str, service: SocketAddr) -> Vec<u8> {
    // In a concatenated key, each part begins at a multiple of 4 bytes.
    let (family, mut key) = match service.ip() {
        IpAddr::V4(v4) => ('4', v4.octets().to_vec()),
        IpAddr::V6(v6) => ('6', v6.octets().to_vec()),
    };
    key.extend(service.port().to_be_bytes());
    key.extend([0, 0]);
    let nested = |kind, inner: &[u8]| attribute(NLA_F_NESTED | kind, inner);
    let key = nested(NFTA_SET_ELEM_KEY, &attribute(NFTA_DATA_VALUE, &key));
    [
        attribute(NFTA_SET_ELEM_LIST_TABLE, &text(table)),
        attribute(NFTA_SET_ELEM_LIST_SET, &text(&format!("{set}{family}"))),
        nested(NFTA_SET_ELEM_LIST_ELEMENTS, &nested(NFTA_LIST_ELEM, &key)),
    ]
    .concat()
}

/// A string as the kernel expects it: with a zero byte at its end.
fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

/// `struct nlattr`: length, type, value, padding.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("names and keys are short");
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The value of the first attribute of this type.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (head, _) = attributes.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & !NLA_F_NESTED;
        let value = attributes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// `struct nlmsghdr`, `struct nfgenmsg`, attributes.
fn request(kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) -> Vec<u8> {
    let [high, low] = resource.to_be_bytes();
    message(kind, flags, &[&[family, 0, high, low], attributes].concat())
}
