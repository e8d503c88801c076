//! VLAN tags at the ports of an edge.

use crate::support::edge_net::{EdgeNet, at};
use crate::support::edge_on::{EdgeOn, edge_options, index_of};
use crate::support::edge_packet::HandMade;
use crate::support::eventually;
use crate::support::frame::FrameTap;
use crate::support::lan::{Family, LanHost};
use steadfast_linux::edge::Injector;

/// The tested tags, the outer one first. A frame with tag 0 belongs to no VLAN (IEEE 802.1Q: priority-tagged).
const TAGS: [&[u16]; 6] = [&[], &[0], &[7], &[8], &[7, 9], &[0, 7]];

fn mac(host: &LanHost, interface: &str) -> [u8; 6] {
    host.run(|| Injector::open(index_of(host, interface)).expect("open").own())
}

/// The tags in [`TAGS`] with which the edge steers a packet that arrives at its port `port` from the other end of the cable, `from`.
/// `steered` is the number of packets that were steered so far. A frame with the tags `known` is steered.
fn steered_tags(
    (edge, port): (&LanHost, &str),
    (from, interface): (&LanHost, &str),
    packet: &[u8],
    known: &[u16],
    steered: impl Fn() -> u64,
) -> Vec<&'static [u16]> {
    let tap = FrameTap::on(from, interface);
    let (to, own) = (mac(edge, port), mac(from, interface));
    let put = |tags: &[u16]| assert!(tap.offer_tagged(to, own, tags, packet), "no room");
    let is_steered = |tags: &&[u16]| {
        let before = steered();
        put(tags);
        let between = steered();
        put(known);
        eventually("the known frame is steered", || {
            (steered() > between).then_some(())
        });
        steered() - before == 2
    };
    TAGS.into_iter().filter(is_steered).collect()
}

#[test]
fn frames_are_steered_only_with_the_tag_of_their_port() {
    for (vlan, expected) in [(None, vec![TAGS[0], TAGS[1]]), (Some(7), vec![TAGS[2]])] {
        let Some(net) = EdgeNet::new("frames_are_steered_only_with_the_tag_of_their_port") else {
            return;
        };
        let mut plan = net.plan(0, None);
        plan.outside.vlan = vlan;
        let edge = EdgeOn::new(&net.edges[0], &plan, &edge_options());
        net.set_subnets(&edge, 0);
        for family in Family::BOTH {
            let (client, server) = (at(family, 1, 1), at(family, 2, 1));
            let request = HandMade::new(client, server, (4000, 9000)).udp();
            let entering = || edge.traffic(0).expect("traffic").entering_packets;
            let outside = (&net.edges[0], "out");
            let known = vlan.as_slice();
            let tags = steered_tags(outside, (&net.client, "eth0"), &request, known, entering);
            assert_eq!(tags, expected, "{vlan:?}, {family:?}");
            // A string's port has no tag, whatever the outside port has.
            let answer = HandMade::new(server, client, (9000, 4000)).udp();
            let leaving = || edge.traffic(0).expect("traffic").leaving_packets;
            let string = (&net.edges[0], "s0");
            let tags = steered_tags(string, (&net.nodes[0], "e0"), &answer, &[], leaving);
            assert_eq!(tags, TAGS[..2], "{vlan:?}, {family:?}");
        }
    }
}
