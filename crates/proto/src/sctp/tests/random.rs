//! Random networks, and random chunks from a peer that knows the tag.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::net::{DELAY, PORT, TestNet, address, millis};
use super::packets::{chunk, lone_chunk};
use crate::sctp::association::{AssociationEvent, CloseReason};
use crate::sctp::packet::SctpPacket;
use crate::sctp::{RetransmissionPolicy, SctpConfig, SctpMessage, UserData};

/// A generator that a seed determines (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % sides
    }
}

/// Makes the network lose, double and reorder packets by percentages. With `has_cuts`, also cuts each path now and then.
fn disturb(net: &mut TestNet, seed: u64, loss: u64, doubles: u64, late: u64, has_cuts: bool) {
    let mut dice = Dice(seed);
    net.set_fate(move |leaving| {
        // In each period of three seconds, each path is down with a probability of one in four. Two paths are never down at the same time.
        let period = leaving.at.as_nanos() / 3_000_000_000;
        let is_cut = has_cuts && Dice(seed ^ period).roll(4) == leaving.path as u64;
        let mut copies = Vec::new();
        if !is_cut && dice.roll(100) >= loss {
            let spread = if dice.roll(100) < late { dice.roll(200) } else { 0 };
            copies.push(DELAY + millis(spread));
            if dice.roll(100) < doubles {
                copies.push(DELAY + millis(dice.roll(300)));
            }
        }
        copies
    });
}

fn text(end: usize, number: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![end as u8];
    bytes.extend(number.to_be_bytes());
    bytes.resize(length.max(5), number as u8);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every message arrives once, ordered messages in the order of their stream, and both ends end the association. Unordered messages are
    /// compared after sorting.
    #[test]
    fn every_message_arrives_once_in_its_order(
        seed in any::<u64>(),
        loss in 0..20_u64,
        doubles in 0..10_u64,
        late in 0..30_u64,
        has_cuts in any::<bool>(),
        is_papers in any::<bool>(),
        pmr in 0..6_u32,
        messages in prop::collection::vec((0..2_usize, 0..4_u16, 1..6000_usize, any::<bool>()), 1..60),
    ) {
        let base = if is_papers { SctpConfig::paper() } else { SctpConfig::default() };
        let mut net = TestNet::new(SctpConfig {
            path_max_retrans: pmr,
            association_max_retrans: 60,
            max_init_retransmits: 60,
            rto_max: Duration::from_secs(20),
            retransmission: if seed % 2 == 0 { RetransmissionPolicy::Alternate } else { base.retransmission },
            receive_buffer: if seed % 3 == 0 { 16_000 } else { base.receive_buffer },
            ..base
        });
        disturb(&mut net, seed, loss, doubles, late, has_cuts);
        net.call(0);
        while net.events.iter().any(Vec::is_empty) {
            net.run(millis(100));
            prop_assert!(net.now.as_nanos() < 3_600_000_000_000);
        }
        let mut sent = BTreeMap::<(usize, u16, bool), Vec<Vec<u8>>>::new();
        for (number, (end, stream, length, is_unordered)) in (0..).zip(messages) {
            let bytes = text(end, number, length);
            let message = SctpMessage { stream, protocol: 0, is_unordered, data: UserData::from(bytes.clone()) };
            while net.at(end).send(message.clone()).is_err() {
                net.run(millis(100));
                prop_assert!(net.now.as_nanos() < 3_600_000_000_000);
            }
            net.settle();
            sent.entry((end, stream, is_unordered)).or_default().push(bytes);
        }
        // From here on no path is cut: a cut could swallow all repetitions of a SHUTDOWN ACK, and one end would give up.
        disturb(&mut net, seed, loss / 2, doubles, late, false);
        let now = net.now;
        net.at((seed % 2) as usize).shutdown(now);
        net.settle();
        prop_assert!(net.run_to_the_end(), "{:?}", net.events);
        let mut received = BTreeMap::<(usize, u16, bool), Vec<Vec<u8>>>::new();
        for end in 0..2 {
            for message in &net.received[end] {
                let UserData::Bytes(bytes) = &message.data else { panic!("bytes were sent") };
                let key = (1 - end, message.stream, message.is_unordered);
                received.entry(key).or_default().push(bytes.to_vec());
            }
        }
        for lists in [&mut sent, &mut received] {
            for ((_, _, is_unordered), list) in lists {
                if *is_unordered {
                    list.sort();
                }
            }
        }
        prop_assert_eq!(received, sent);
        for end in 0..2 {
            prop_assert_eq!(net.events[end].last(), Some(&AssociationEvent::Closed(CloseReason::ShutDown)));
        }
    }

    /// A peer that knows the tag may send anything: nothing panics, and the receiving end sends a bounded number of packets.
    #[test]
    fn any_chunks_are_survived(
        chunks in prop::collection::vec(prop_oneof![9 => chunk(), 1 => lone_chunk()], 1..40),
        ahead in prop::collection::vec(0..20_u32, 40),
    ) {
        let mut net = TestNet::connected(SctpConfig { receive_buffer: 3000, ..SctpConfig::default() });
        net.at(1).send(super::net::message(0, 1500)).expect("room");
        let names = net.at(1).names().0;
        let peer_tsn = net.at(0).names().0.local_tsn;
        for (mut chunk, ahead) in chunks.into_iter().zip(ahead) {
            use crate::sctp::chunk::SctpChunk::{Data, Sack, Shutdown};
            match &mut chunk {
                Data(data) => (data.tsn, data.stream) = (peer_tsn.plus(ahead), data.stream % 17),
                Sack(sack) => sack.cumulative = names.local_tsn.plus(ahead).minus(10),
                Shutdown(tsn) => *tsn = names.local_tsn.plus(ahead).minus(10),
                _ => {}
            }
            let packet = SctpPacket { source_port: PORT, destination_port: PORT, tag: names.local_tag, chunks: vec![chunk] };
            net.inject(1, address(0, 0), packet);
            net.run(millis(300));
        }
        net.run(Duration::from_secs(30));
        prop_assert!(net.log.len() < 1000, "{}", net.log.len());
    }
}
