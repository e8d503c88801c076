/* SPDX-License-Identifier: GPL-2.0 */
/* Segments between a service and programs on this node: see own.h. */
#ifndef STEADFAST_LOOPBACK_H
#define STEADFAST_LOOPBACK_H

/* Handles a segment from a program on this node to a service. */
static __always_inline int hear_own(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (!same_address(packet->ip.source, state->own_address))
		return TC_ACT_OK; /* without the mark nft refuses the segment, and the program gets an error */
	__u32 gate = gate_now(state);
	if (gate == GATE_MUTE && packet->tcp.syn)
		return TC_ACT_OK; /* as above: this node does not serve now */
	int verdict;
	if (gate != GATE_PRIMARY || is_logged_here(packet, state))
		verdict = carry(skb, packet, state, gate);
	else if (is_elsewhere(held_as(packet, state)))
		verdict = reach_reversed(skb, packet, state, 0);
	else
		verdict = release_to_peer(skb, state);
	if (verdict == TC_ACT_OK && skb->mark != MARK_SPEAK)
		skb->mark = MARK_LOCAL;
	return verdict;
}

/* Handles a segment from a service to a program on this node. On the primary, the segment goes through the peer's wire. */
static __always_inline int say_to_own(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (!same_address(packet->ip.destination, state->own_address))
		return TC_ACT_OK;
	__u32 gate = gate_now(state);
	int verdict = may_leave(skb, packet, state, gate);
	_Bool passes_peer = gate == GATE_PRIMARY || (gate == GATE_WIRE && held_as(packet, state) == HELD_VIA_PEER);
	return verdict == TC_ACT_OK && passes_peer ? release_to_peer(skb, state) : verdict;
}

SEC("tc")
int loopback(struct __sk_buff *skb) {
	struct parsed packet = {};
	if (parse(skb, &packet) != PARSE_SEGMENT)
		return TC_ACT_UNSPEC; /* other software may have programs on lo: let them process the packet */
	__u32 service = packet.service;
	struct service_state *state = bpf_map_lookup_elem(&states, &service);
	if (!state || gate_now(state) == GATE_OFF)
		return TC_ACT_UNSPEC;
	if (packet.direction == DIRECTION_IN)
		return hear_own(skb, &packet, state);
	return say_to_own(skb, &packet, state);
}

#endif
