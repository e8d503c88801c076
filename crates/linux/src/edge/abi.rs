//! The data that user space and the edge's eBPF programs share: the Rust side of `bpf/edge_abi.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proto::edge::cache::{CachePolicy, SecondPacket};

use proto::edge::switch::StringSteering;

use super::plan::{EdgePort, EdgeStringPort, EdgeWirePlan, Side};

/// Maximum number of strings.
pub const STRINGS_MAX: usize = 8;
/// Number of slots to which new flows are hashed.
pub const SLOTS: usize = 1024;

/// `EDGE_BUCKETS`.
pub(super) const BUCKETS: usize = 16;
/// `EDGE_BUCKET_SHIFT`.
pub(super) const BUCKET_SHIFT: u32 = 26;

/// `EDGE_TAGGED`.
const TAGGED: u16 = 0x1000;

/// `struct edge_port`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortState {
    pub ifindex: u32,
    pub tag: u16,
    pub zero: [u8; 2],
}

impl PortState {
    pub(super) fn new(port: EdgePort) -> Self {
        Self {
            ifindex: port.ifindex,
            tag: port.vlan.map_or(0, |id| TAGGED | id),
            zero: [0; 2],
        }
    }
}

/// `struct edge_string`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct StringMemory {
    pub ifindex: u32,
    pub was_up: u32,
    pub next_hop_v4: [u8; 4],
    pub steering: u32,
    pub next_hop_v6: [u8; 16],
    pub generation: u32,
    pub caching_epoch: u32,
    pub cap: u32,
    pub copies_entering: u32,
    pub epoch: u64,
    pub lost_ns: u64,
    pub hold_ns: u64,
    pub own_link: u64,
    pub link_v4: u64,
    pub link_v6: u64,
    pub buckets: [u64; BUCKETS],
}

/// A known link-layer address as a word of `struct edge_string`.
pub(super) fn link_word([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 1])
}

/// `struct edge_state`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EdgeState {
    pub outside: PortState,
    pub strings: u32,
    pub default_side: u32,
    pub policy: u32,
    pub agent_asleep: u32,
    pub agent_seen_ns: u64,
    pub agent_timeout_ns: u64,
    pub netns_cookie: u64,
    pub last_caching_epoch: u32,
    pub second: u32,
    pub zero: u64,
    pub string: [StringMemory; STRINGS_MAX],
    pub slots: [u8; SLOTS],
}

/// The number of a side in `enum edge_side`.
pub(super) const fn side_number(side: Side) -> u32 {
    match side {
        Side::Outside => 0,
        Side::Inside => 1,
        Side::Local => 2,
    }
}

/// The number of a string's steering in `enum edge_steering`.
pub(super) const fn steering_number(steering: StringSteering) -> u32 {
    match steering {
        StringSteering::Up => 0,
        StringSteering::Held => 1,
        StringSteering::Down => 2,
    }
}

/// The steering with this number in `enum edge_steering`.
pub(super) const fn steering_of(number: u32) -> StringSteering {
    match number {
        1 => StringSteering::Held,
        2 => StringSteering::Down,
        _ => StringSteering::Up,
    }
}

/// The number of a policy in `enum edge_policy`.
pub(super) const fn policy_number(policy: Option<CachePolicy>) -> u32 {
    match policy {
        None => 0,
        Some(CachePolicy::Syn) => 1,
        Some(CachePolicy::Lowest) => 2,
        Some(CachePolicy::All) => 3,
    }
}

/// The number of a second packet in `enum edge_second`.
pub(super) const fn second_number(second: SecondPacket) -> u32 {
    match second {
        SecondPacket::Newest => 0,
        SecondPacket::Acknowledgement => 1,
    }
}

/// The number of strings as the programs store it.
pub(super) fn strings_number(plan: &EdgeWirePlan) -> u32 {
    u32::try_from(plan.strings.len()).expect("at most STRINGS_MAX")
}

/// The next hops of a string as the programs store them.
pub(super) fn next_hops(string: &EdgeStringPort) -> ([u8; 4], [u8; 16]) {
    let v4 = string.next_hop_v4.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let v6 = string.next_hop_v6.unwrap_or(Ipv6Addr::UNSPECIFIED);
    (v4.octets(), v6.octets())
}

/// Length in bytes of a key of the map `subnets`, `struct edge_subnet`.
pub(super) const SUBNET_KEY: usize = 20;

/// Returns the key of a subnet, with the host bits of `address` cleared. `None` if the prefix is longer than the address.
pub(super) fn subnet_key(address: IpAddr, prefix: u8) -> Option<[u8; SUBNET_KEY]> {
    let (address, common, bits) = match address {
        IpAddr::V4(v4) => (v4.to_ipv6_mapped(), 96, 32),
        IpAddr::V6(v6) => (v6, 0, 128),
    };
    if prefix > bits {
        return None;
    }
    let prefix = common + u32::from(prefix);
    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
    let mut key = [0; SUBNET_KEY];
    key[..4].copy_from_slice(&prefix.to_ne_bytes());
    key[4..].copy_from_slice(&(address.to_bits() & mask).to_be_bytes());
    Some(key)
}

/// Names of the counters, in the order of `enum edge_count`.
pub(super) const COUNTERS: [&str; 16] = [
    "passed_to_stack",
    "new_flows",
    "moved",
    "dropped_held",
    "other_string",
    "capped",
    "uncapped_flows",
    "copied",
    "copy_lost",
    "malformed",
    "no_next_hop",
    "fragments",
    "icmp_errors",
    "ttl_expired",
    "too_big",
    "withheld",
];

/// Number of words of a `struct edge_traffic`.
pub(super) const TRAFFIC_WORDS: usize = 6;
/// Number of words of a `struct edge_counts`.
pub(super) const COUNT_WORDS: usize = COUNTERS.len() + STRINGS_MAX * TRAFFIC_WORDS;

/// Length in bytes of a `struct edge_record`.
pub(super) const RECORD_HEADER: usize = 24;

/// The result of a sweep, from a `struct edge_sweep`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Swept {
    pub moved: u64,
    pub flows: u64,
}

impl Swept {
    /// Length in bytes of a `struct edge_sweep`.
    pub(super) const LEN: usize = 24;

    /// Returns the argument of a sweep of `string`. If `string` is [`STRINGS_MAX`] or more, the sweep moves no flow and only counts the
    /// flows.
    pub(super) fn argument(string: usize) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&u32::try_from(string).expect("a small number").to_ne_bytes());
        bytes
    }

    pub(super) fn result(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Self {
            moved: word(8),
            flows: word(16),
        }
    }
}

// The C side asserts the same numbers.
const _: () = assert!(size_of::<PortState>() == 8);
const _: () = assert!(size_of::<StringMemory>() == 224);
const _: () = assert!(size_of::<EdgeState>() == 64 + 8 * 224 + 1024);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_has_no_host_bits() {
        let key = |address: &str, prefix| subnet_key(address.parse().expect("an address"), prefix);
        let v4 = key("10.1.2.3", 16).expect("a prefix");
        assert_eq!(v4[..4], 112_u32.to_ne_bytes());
        assert_eq!(v4[14..], [0xff, 0xff, 10, 1, 0, 0]);
        assert_eq!(
            key("10.1.2.3", 0).expect("a prefix")[14..],
            [0xff, 0xff, 0, 0, 0, 0]
        );
        assert_eq!(key("fd00::1", 0).expect("a prefix"), [0; SUBNET_KEY]);
        assert_eq!(key("fd00::1", 128).expect("a prefix")[19], 1);
        assert_eq!((key("10.0.0.0", 33), key("::", 129)), (None, None));
    }
}
