//! The slots: which string a new flow gets.
//!
//! A flow's hash selects one of 1024 slots. Each slot belongs to one usable string, chosen by weighted rendezvous hashing (Thaler and
//! Ravishankar 1998; weights as in draft-ietf-bess-weighted-hrw): if a string fails, only the slots of this string change. Both edges know
//! the strings by the same names, so they compute the same slots.

use std::hash::Hasher as _;
use std::net::{IpAddr, SocketAddr};

use twox_hash::XxHash64;

/// Number of slots.
pub const SLOTS: usize = 1024;

/// The slot of a flow: the same for both directions and at both edges. `slot_of` in `bpf/` computes the same slot.
pub fn slot_of(one: SocketAddr, other: SocketAddr, protocol: u8) -> usize {
    slot_of_ends(end_of(one), end_of(other), protocol)
}

/// An end of a flow as in a packet: its address (IPv4 as `::ffff:a.b.c.d`) and its port.
pub(super) type FlowEnd = ([u8; 16], [u8; 2]);

fn end_of(end: SocketAddr) -> FlowEnd {
    let address = match end.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    (address, end.port().to_be_bytes())
}

/// As [`slot_of`].
pub(super) fn slot_of_ends(one: FlowEnd, other: FlowEnd, protocol: u8) -> usize {
    let sum = end_hash(one)
        .wrapping_add(end_hash(other))
        .wrapping_add(protocol.into());
    usize::try_from(mixed(mixed(sum)) % SLOTS as u64).expect("a slot is a small number")
}

fn end_hash((address, port): FlowEnd) -> u64 {
    let word = |at: usize| u64::from_ne_bytes(address[at..at + 8].try_into().expect("eight bytes"));
    mixed(mixed(word(0) ^ u64::from(u16::from_ne_bytes(port))) ^ word(8))
}

const fn mixed(word: u64) -> u64 {
    let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ word >> 32
}

/// The properties of a string that decide which slots it gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotShare<'a> {
    /// The string's name, which both edges know.
    pub name: &'a str,
    /// The string's share of the flows in proportion to the other strings. 0: the string gets slots only if no usable string has a share.
    pub weight: f64,
    /// Whether flows may use the string.
    pub is_usable: bool,
}

/// The index of the string for each slot. If no string is usable, all count as usable.
pub fn slots(strings: &[SlotShare<'_>]) -> [u8; SLOTS] {
    let none = !strings.iter().any(|string| string.is_usable);
    let usable = |string: &SlotShare<'_>| none || string.is_usable;
    let some_share = strings.iter().any(|string| usable(string) && string.weight > 0.0);
    // Standby strings (weight 0) do not share the slots: the string with the first name gets all of them.
    let standby = strings
        .iter()
        .enumerate()
        .filter(|(_, string)| usable(string))
        .min_by_key(|(_, string)| string.name);
    let mut slots = [0; SLOTS];
    for (slot, place) in slots.iter_mut().enumerate() {
        let best = if some_share {
            strings
                .iter()
                .enumerate()
                .filter(|(_, string)| usable(string) && string.weight > 0.0)
                .max_by(|(_, a), (_, b)| score(a, slot).total_cmp(&score(b, slot)))
        } else {
            standby
        };
        *place = best.map_or(0, |(index, _)| index as u8);
    }
    slots
}

/// The string with the highest score gets the slot.
fn score(string: &SlotShare<'_>, slot: usize) -> f64 {
    let mut hasher = XxHash64::with_seed(slot as u64);
    hasher.write(string.name.as_bytes());
    let unit = ((hasher.finish() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -string.weight / unit.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(strings: &[SlotShare<'_>]) -> Vec<usize> {
        let slots = slots(strings);
        (0..strings.len())
            .map(|index| slots.iter().filter(|slot| usize::from(**slot) == index).count())
            .collect()
    }

    fn string(name: &str, weight: f64, is_usable: bool) -> SlotShare<'_> {
        SlotShare {
            name,
            weight,
            is_usable,
        }
    }

    #[test]
    fn each_string_gets_its_share() {
        let shares = counts(&[string("a", 1.0, true), string("b", 3.0, true)]);
        assert_eq!(shares.iter().sum::<usize>(), SLOTS);
        assert!((200..=310).contains(&shares[0]), "{shares:?}");
    }

    #[test]
    fn a_failure_moves_only_the_slots_of_the_string_that_fails() {
        let before = slots(&[
            string("a", 1.0, true),
            string("b", 1.0, true),
            string("c", 1.0, true),
        ]);
        let after = slots(&[
            string("a", 1.0, true),
            string("b", 1.0, false),
            string("c", 1.0, true),
        ]);
        for (old, new) in before.iter().zip(after) {
            assert!(*old == new || *old == 1);
            assert_ne!(new, 1);
        }
    }

    #[test]
    fn the_order_of_the_strings_does_not_matter() {
        let one = slots(&[string("a", 1.0, true), string("b", 2.0, true)]);
        let other = slots(&[string("b", 2.0, true), string("a", 1.0, true)]);
        assert!(one.iter().zip(other).all(|(one, other)| *one == 1 - other));
    }

    /// `slot_of` in `bpf/edge_flow.h` computes the same slots. Another test compares that function with [`slot_of_ends`] on packets.
    #[test]
    fn a_flow_has_one_slot_in_both_directions() {
        let (client, server) = ("10.1.0.2:40000".parse().unwrap(), "[fd00::1]:80".parse().unwrap());
        assert_eq!(slot_of(client, server, 6), slot_of(server, client, 6));
        let mut address = [0; 16];
        address[10..].copy_from_slice(&[0xff, 0xff, 10, 1, 0, 2]);
        let mut other = [0; 16];
        (other[0], other[15]) = (0xfd, 1);
        let ends = slot_of_ends((address, [0x9c, 0x40]), (other, [0, 80]), 6);
        assert_eq!(slot_of(client, server, 6), ends);
    }

    #[test]
    fn a_standby_string_gets_all_or_nothing() {
        assert_eq!(
            counts(&[string("a", 1.0, true), string("b", 0.0, true)]),
            [SLOTS, 0]
        );
        assert_eq!(
            counts(&[string("a", 1.0, false), string("b", 0.0, true)]),
            [0, SLOTS]
        );
        assert_eq!(
            counts(&[string("c", 0.0, true), string("b", 0.0, true)]),
            [0, SLOTS],
            "the first name"
        );
        assert_eq!(
            counts(&[string("a", 1.0, false), string("b", 0.0, false)]),
            [SLOTS, 0]
        );
    }
}
