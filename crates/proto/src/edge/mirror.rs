//! The eBPF programs' knowledge of the cache: which sequence numbers of one flow the cache holds.
//!
//! The programs copy a packet only if it may change what the cache holds of its flow. So most packets of a failing string cost no copy. The
//! mirror does not learn that the cache dropped or forgot a connection. So higher packets of this connection are not copied until the packet
//! that was held is acknowledged or repeated, and the cache needs enough memory.
//!
//! The mirror does not know the newest entering packet ([`SecondPacket::Newest`]). So with `Newest`, all entering packets are copied while
//! the string is suspected, except with [`CachePolicy::Syn`].

use super::cache::{CachePolicy, SecondPacket};
use super::{EdgeDirection, EdgeSegment};
use crate::Seq;

/// The lowest waiting packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MirroredPacket {
    seq: Seq,
    end: Seq,
    syn: bool,
}

/// `struct edge_mirror` in `bpf/`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheMirror {
    held: Option<MirroredPacket>,
    highest: Option<Seq>,
    fin_end: Option<Seq>,
    fin_out: bool,
    /// The lowest waiting packet was acknowledged, and the next one is not known.
    is_deep: bool,
    /// It is not known what the cache holds of the flow, so any packet may change it.
    is_unsure: bool,
}

impl CacheMirror {
    /// Whether a packet may change what the cache holds of its flow. Updates the mirror.
    pub fn on_packet(
        &mut self,
        way: EdgeDirection,
        segment: &EdgeSegment,
        policy: CachePolicy,
        second: SecondPacket,
    ) -> bool {
        match way {
            EdgeDirection::Entering => self.on_entering(segment, policy),
            EdgeDirection::Leaving => self.on_leaving(segment, policy, second),
        }
    }

    const fn has_entry(&self) -> bool {
        self.held.is_some() || self.highest.is_some() || self.is_deep
    }

    fn on_entering(&mut self, segment: &EdgeSegment, policy: CachePolicy) -> bool {
        if segment.rst {
            *self = Self::default();
            return true;
        }
        if segment.numbers() == 0 || (policy == CachePolicy::Syn && !segment.syn) {
            return false;
        }
        // It is not known whether this SYN is the lowest waiting packet.
        self.is_unsure |= segment.syn && self.is_deep;
        if self.is_unsure {
            return true;
        }
        let is_held = |held: MirroredPacket| held.syn && held.seq == segment.seq;
        if segment.syn && !self.held.is_some_and(is_held) {
            *self = Self::default(); // another connection: the cache forgets the earlier one
        }
        let mut changes = false;
        if segment.fin && self.has_entry() {
            self.fin_end = Some(segment.end());
            changes = true;
        }
        if self.highest.is_some_and(|ack| ack.reaches(segment.end())) {
            return changes;
        }
        if self.is_deep {
            return true;
        }
        if let Some(held) = self.held {
            // A retransmission replaces the held packet, unless the retransmission is shorter.
            if held.seq == segment.seq && !segment.end().reaches(held.end) {
                return changes;
            }
            if !held.seq.reaches(segment.seq) {
                return policy == CachePolicy::All || changes;
            }
        }
        self.held = Some(MirroredPacket {
            seq: segment.seq,
            end: segment.end(),
            syn: segment.syn,
        });
        if segment.fin {
            self.fin_end = Some(segment.end());
        }
        true
    }

    fn on_leaving(&mut self, segment: &EdgeSegment, policy: CachePolicy, second: SecondPacket) -> bool {
        if segment.rst || (segment.syn && segment.ack.is_none()) {
            *self = Self::default();
            return true;
        }
        let Some(ack) = segment.ack else {
            return false;
        };
        if self.is_unsure {
            return true;
        }
        let releases = self.held.is_some_and(|held| ack.reaches(held.end));
        let had_entry = self.has_entry();
        if releases {
            self.held = None;
        }
        if policy == CachePolicy::Syn {
            return releases;
        }
        let mut changes = releases;
        if segment.fin && had_entry {
            self.fin_out = true;
            changes = true;
        }
        if self.fin_out && self.fin_end.is_some_and(|fin| ack.reaches(fin)) {
            *self = Self {
                // If `is_deep` is set, the cache may have forgotten the connection between the two FINs. Then the cache knows only one of
                // the FINs, and does not forget the connection now.
                is_unsure: self.is_deep && second == SecondPacket::Newest,
                ..Self::default()
            };
            return true;
        }
        self.is_deep |= releases && policy == CachePolicy::All;
        if second == SecondPacket::Newest {
            if !self.has_entry() {
                *self = Self::default();
            }
            return changes || self.is_deep;
        }
        let is_higher = self.highest.is_none_or(|highest| !highest.reaches(ack));
        if is_higher && (segment.numbers() == 0 || releases || self.highest.is_some()) {
            self.highest = Some(ack);
            changes = true;
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::cache::{Cache, CacheConfig};
    use super::*;

    type Step = (EdgeDirection, EdgeSegment);

    /// A random packet of a conversation with sequence numbers that wrap.
    fn step() -> impl Strategy<Value = Step> {
        let number = || (0..12_u32).prop_map(|number| Seq((u32::MAX - 499).wrapping_add(number * 100)));
        let flag = |weight| prop_oneof![20 => Just(false), weight => Just(true)];
        let len = prop_oneof![2 => Just(0), 4 => Just(100), 2 => Just(200), 1 => Just(300), 1 => Just(50)];
        let flags = (
            flag(3),
            flag(2),
            flag(1),
            prop_oneof![1 => Just(false), 8 => Just(true)],
        );
        (any::<bool>(), number(), number(), len, flags).prop_map(
            |(enters, seq, ack, len, (syn, fin, rst, has_ack))| {
                let segment = EdgeSegment {
                    seq,
                    len: if syn { 0 } else { len },
                    ack: has_ack.then_some(ack),
                    syn,
                    fin,
                    rst,
                };
                let way = if enters {
                    EdgeDirection::Entering
                } else {
                    EdgeDirection::Leaving
                };
                (way, segment)
            },
        )
    }

    fn feed(cache: &mut Cache<u32, usize>, (way, segment): &Step, number: usize) {
        match way {
            EdgeDirection::Entering => cache.on_entering(0, 1, segment, 140, false, || number),
            EdgeDirection::Leaving => {
                cache.on_leaving(0, 1, segment, 140, || number);
            }
        }
    }

    fn held(cache: &Cache<u32, usize>) -> (Vec<usize>, Option<usize>) {
        (
            cache.waiting(0, 1).copied().collect(),
            cache.second(0, 1).copied(),
        )
    }

    #[test]
    fn a_download_costs_one_copy_for_each_acknowledgement() {
        let data = |seq: u32| EdgeSegment {
            seq: Seq(seq),
            len: 100,
            ..EdgeSegment::default()
        };
        let ack = |number: u32| EdgeSegment {
            ack: Some(Seq(number)),
            ..EdgeSegment::default()
        };
        let mut mirror = CacheMirror::default();
        let mut is_copied = |way, segment| {
            mirror.on_packet(way, &segment, CachePolicy::Lowest, SecondPacket::Acknowledgement)
        };
        assert!(is_copied(EdgeDirection::Entering, data(1000)));
        assert!(!is_copied(EdgeDirection::Entering, data(1100)));
        assert!(!is_copied(EdgeDirection::Entering, ack(7)));
        assert!(is_copied(EdgeDirection::Leaving, ack(1100)));
        assert!(!is_copied(EdgeDirection::Leaving, ack(1100)));
        assert!(is_copied(EdgeDirection::Entering, data(1200)));
        assert!(is_copied(EdgeDirection::Entering, data(1100)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// A cache that gets only the packets that the mirror chooses holds the same as a cache that gets all packets.
        #[test]
        fn the_chosen_packets_are_enough(
            steps in prop::collection::vec(step(), 0..60),
            policy in prop_oneof![Just(CachePolicy::Syn), Just(CachePolicy::Lowest), Just(CachePolicy::All)],
            second in prop_oneof![Just(SecondPacket::Newest), Just(SecondPacket::Acknowledgement)],
        ) {
            let config = CacheConfig { policy, second, max_bytes: 1_000_000, max_packets: 10_000, max_connection_bytes: 1_000_000 };
            let (mut all, mut chosen) = (Cache::new(config, 1), Cache::new(config, 1));
            let mut mirror = CacheMirror::default();
            for (number, step) in steps.iter().enumerate() {
                feed(&mut all, step, number);
                if mirror.on_packet(step.0, &step.1, policy, second) {
                    feed(&mut chosen, step, number);
                }
                prop_assert_eq!(held(&chosen), held(&all), "after step {}: {:?}", number, step);
                prop_assert_eq!(chosen.connections(0), all.connections(0));
            }
        }
    }
}
