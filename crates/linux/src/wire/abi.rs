//! The data that user space and the eBPF programs share: the Rust side of `bpf/abi.h`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use proto::action::Gate;

/// Maximum number of services of one node.
pub const SERVICES_MAX: usize = 64;

/// The number of a gate in `enum gate`.
pub(super) const fn gate_number(gate: Gate) -> u32 {
    match gate {
        Gate::Off => 0,
        Gate::Wire => 1,
        Gate::Takeover => 2,
        Gate::Sole => 3,
        Gate::Primary => 4,
        Gate::Mute => 5,
    }
}

/// The gate with this number.
pub(super) fn gate_of(number: u32) -> Option<Gate> {
    Gate::ALL.into_iter().find(|&gate| gate_number(gate) == number)
}

/// `struct service_key`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ServiceKey {
    address: [u8; 16],
    port: [u8; 2],
    zero: [u8; 2],
}

impl ServiceKey {
    pub(super) fn new(address: IpAddr, port: u16) -> Self {
        Self {
            address: mapped(address),
            port: port.to_be_bytes(),
            zero: [0; 2],
        }
    }

    pub(super) fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&self.address);
        bytes[16..18].copy_from_slice(&self.port);
        bytes[18..].copy_from_slice(&self.zero);
        bytes
    }
}

/// The form in which the eBPF programs compare addresses: an IPv4 address is `::ffff:a.b.c.d`.
pub(super) fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// `struct service_state`: one element of the mapped state array.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ServiceState {
    pub gate: u32,
    pub ifindex: u32,
    pub peer_mac: [u8; 6],
    pub own_mac: [u8; 6],
    pub port: [u8; 2],
    pub immediate: u16,
    pub holds: u32,
    pub server_dead: u32,
    pub deaths: u64,
    pub peer_seen_ns: u64,
    pub epoch: u64,
    pub unlogged: u64,
    pub until_ns: u64,
    pub hold_until_ns: u64,
    pub caps: u32,
    pub consented: u32,
    pub own_address: [u8; 16],
    pub own_mss: u32,
    pub crash_codes: [u32; 8],
    pub doubted: u32,
    pub direct_until_ns: u64,
}

/// Returns a bit set with one bit for each exit code in `codes`.
pub(super) fn crash_codes(codes: &[u8]) -> [u32; 8] {
    let mut words = [0_u32; 8];
    for &code in codes {
        words[usize::from(code / 32)] |= 1 << (code % 32);
    }
    words
}

/// `struct client_key`: identifies a connection by its client and its service.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ClientKey {
    address: [u8; 16],
    port: [u8; 2],
    service: u16,
}

impl ClientKey {
    pub(super) fn new(client: SocketAddr, service: u16) -> Self {
        Self {
            address: mapped(client.ip()),
            port: client.port().to_be_bytes(),
            service,
        }
    }

    pub(super) fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&self.address);
        bytes[16..18].copy_from_slice(&self.port);
        bytes[18..].copy_from_slice(&self.service.to_ne_bytes());
        bytes
    }

    /// The client in the bytes of a key.
    pub(super) fn client(key: &[u8]) -> Option<SocketAddr> {
        let address = Ipv6Addr::from(*key.first_chunk::<16>()?);
        let port = u16::from_be_bytes(*key.get(16..)?.first_chunk()?);
        Some((address.to_canonical(), port).into())
    }

    /// This client's bit in the map `undecided`. Other clients may share the bit. `is_undecided` in `bpf/` computes the same bit.
    pub(super) fn undecided_bit(self) -> usize {
        usize::try_from(self.hash() >> (64 - UNDECIDED_LOG2)).expect("a few bits")
    }

    /// This client's bit in each generation of the map `known`. Other clients may share the bit. `is_known` in `bpf/` computes the same
    /// bit.
    pub(super) fn known_bit(self) -> usize {
        usize::try_from(self.hash() >> (64 - KNOWN_LOG2)).expect("a few bits")
    }

    /// The same hash as that of `hash_of` in `bpf/`.
    fn hash(self) -> u64 {
        let mut bytes = [0; 24];
        bytes[..20].copy_from_slice(&self.to_bytes());
        bytes.chunks_exact(8).fold(0_u64, |hash, word| {
            let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^ hash >> 32
        })
    }
}

/// `UNDECIDED_LOG2`.
pub(super) const UNDECIDED_LOG2: u32 = 23;
/// `KNOWN_LOG2`.
pub(super) const KNOWN_LOG2: u32 = 22;

/// `HELD_UNDECIDED`.
pub(super) const HELD_UNDECIDED: u32 = 1;
/// `HELD_DECIDED`.
pub(super) const HELD_DECIDED: u32 = 2;
/// `HELD_RESERVED`.
pub(super) const HELD_RESERVED: u32 = 3;
/// `HELD_VIA_PEER`.
pub(super) const HELD_VIA_PEER: u32 = 4;
/// `HELD_LOGGED`.
pub(super) const HELD_LOGGED: u32 = 5;
/// `HELD_FROZEN`.
pub(super) const HELD_FROZEN: u32 = 6;
/// `HELD_LEFT`.
pub(super) const HELD_LEFT: u32 = 7;
/// `HELD_ANNEX`. The annex's index is in the lowest byte.
pub(super) const HELD_ANNEX: u32 = 0x100;
/// `HELD_LEAVING`. The annex's index is in the lowest byte.
pub(super) const HELD_LEAVING: u32 = 0x200;
/// `ANNEXES_MAX`.
pub(super) const ANNEXES_MAX: u32 = 8;

/// A `struct death_record`: a dying process has released a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Index of the service.
    pub service: u16,
    /// The client; `None` if the socket was a listener.
    pub client: Option<SocketAddr>,
}

impl Death {
    /// Size of a record in the ring, in bytes.
    pub(super) const SIZE: usize = 24;

    pub(super) fn read(bytes: &[u8; Self::SIZE]) -> Self {
        let address: [u8; 16] = bytes[..16].try_into().expect("16 bytes");
        let port = u16::from_be_bytes([bytes[16], bytes[17]]);
        let service = u16::from_ne_bytes([bytes[18], bytes[19]]);
        let listener = bytes[20..] != [0; 4];
        let client = SocketAddr::new(IpAddr::from(address).to_canonical(), port);
        Self {
            service,
            client: (!listener).then_some(client),
        }
    }
}

/// `struct node_state`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NodeState {
    pub agent_asleep: u32,
    pub known_generation: u32,
    pub netns_cookie: u64,
    pub agent_seen_ns: u64,
    pub agent_timeout_ns: u64,
}

/// `struct record`: stands before each packet in a ring.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// When the wire logged the packet: nanoseconds of the monotonic clock.
    pub time_ns: u64,
    /// Length of the packet, in bytes.
    pub len: u32,
    /// Index of the service.
    pub service: u16,
    /// 0: from the client, 1: from the server.
    pub direction: u8,
    /// Bit 0: the checksum need not be verified. Bit 1: the kernel does not say whether the checksum was left to hardware. Bit 2: the
    /// packet is a copy without payload.
    pub flags: u8,
    /// Position in the other ring of connections. The records before that position must be read first.
    pub after: u64,
}

/// `MARK_RESTORING`: a socket with this mark is not ready for packets yet.
pub const MARK_RESTORING: u32 = 0x5f00_0002;

/// `MARK_DYING`: the process of a socket with this mark is dying.
pub const MARK_DYING: u32 = 0x5f00_0003;

/// `MARK_SPEAK`: a segment of a restored socket, or a wake-up, that a takeover sends before the node has the general right to speak.
pub const MARK_SPEAK: u32 = 0x5f00_0004;

/// `MARK_END`: a RST that this node sends deliberately, because it has decided that the connection ends. The guard lets this RST out.
pub const MARK_END: u32 = 0x5f00_0005;

/// `MARK_LOCAL`: a segment of a client on this node that the wire has let pass.
pub const MARK_LOCAL: u32 = 0x5f00_0006;

/// `MARK_DIRECT`: a segment that the primary sends straight to its client.
pub const MARK_DIRECT: u32 = 0x5f00_0007;

/// Names of the counters, in the order of `enum reason`.
pub const REASONS: [&str; 26] = [
    "logged_in_packets",
    "logged_out_packets",
    "logged_in_bytes",
    "logged_out_bytes",
    "dropped_ring_full",
    "dropped_log_failed",
    "dropped_fragment",
    "dropped_malformed",
    "dropped_foreign_voice",
    "dropped_gate_closed",
    "held_in_takeover",
    "passed_local",
    "icmp_forwarded",
    "dropped_egress_unguarded",
    "dropped_egress_mute",
    "dropped_dying_process",
    "dropped_syn_waits",
    "passed_unlogged",
    "dropped_right_expired",
    "led_to_wire",
    "dropped_input_held",
    "refused_local_clients",
    "dropped_came_back",
    "sent_directly",
    "carried_in_packets",
    "carried_out_packets",
];

/// `REASON_LOCAL_REFUSED`.
pub(super) const REFUSED_LOCAL: usize = 21;

// The C side asserts the same numbers.
const _: () = assert!(size_of::<ServiceKey>() == 20);
const _: () = assert!(size_of::<ServiceState>() == 152);
const _: () = assert!(size_of::<ClientKey>() == 20);
const _: () = assert!(size_of::<NodeState>() == 32);
const _: () = assert!(size_of::<Record>() == 24);
