/* SPDX-License-Identifier: GPL-2.0 */
/* Sends packets on: a client's packet to the primary, the primary's packet to the client. */
#ifndef STEADFAST_RELEASE_H
#define STEADFAST_RELEASE_H

#include "maps.h"
#include "own.h"
#include "parse.h"

static __always_inline int dropped(__u32 service, enum reason reason) {
	count(service, reason);
	return TC_ACT_SHOT;
}

static __always_inline _Bool same_mac(const __u8 *a, const __u8 *b) {
	__u8 difference = 0;
	for (int i = 0; i < ETH_ALEN; i++)
		difference |= a[i] ^ b[i];
	return !difference;
}

static __always_inline _Bool comes_from(struct __sk_buff *skb, const __u8 *mac) {
	__u8 source[6];
	if (load(skb, ETH_ALEN, source, sizeof(source)))
		return 0;
	return same_mac(source, mac);
}

static __always_inline _Bool from_peer(struct __sk_buff *skb, struct service_state *state) { return comes_from(skb, state->peer_mac); }

/* Sends the packet through the service interface: from this node's MAC address to `mac`. */
static __always_inline int release_to(struct __sk_buff *skb, struct service_state *state, const __u8 *mac) {
	__u8 macs[12];
	__builtin_memcpy(macs, mac, 6);
	__builtin_memcpy(macs + 6, state->own_mac, 6);
	if (bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0))
		return TC_ACT_SHOT;
	skb->mark = MARK_RELEASED;
	return bpf_redirect(state->ifindex, 0);
}

/* Sends the packet to the other node. */
static __always_inline int release_to_peer(struct __sk_buff *skb, struct service_state *state) {
	return release_to(skb, state, state->peer_mac);
}

/*
 * Hops that a packet has left if a node sends it to the wire, and if the wire then sends it on. Two nodes that take each other for the primary
 * would send a packet to and fro for ever, and so would a wire and a node that does not know yet that a connection has moved to it. With
 * these hops, a packet that has been led to the wire once is not led there again, and a wire does not return it twice.
 */
#define HOPS_LED 2
#define HOPS_RETURNED 1

/*
 * Sets the number of hops that a packet has left. Returns TC_ACT_OK, or another verdict if the packet must not go on: it has `hops` left or
 * fewer, or it cannot be changed.
 */
static __noinline int leave_hops(struct __sk_buff *skb, struct parsed *packet, __u8 hops) {
	__u32 at = L3 + (packet->ip.v6 ? offsetof(struct ipv6hdr, hop_limit) : offsetof(struct iphdr, ttl));
	__u8 before;
	if (load(skb, at, &before, sizeof(before)))
		return TC_ACT_SHOT;
	if (before <= hops)
		return dropped(packet->service, REASON_CAME_BACK);
	if (!packet->ip.v6 && bpf_l3_csum_replace(skb, L3 + offsetof(struct iphdr, check), bpf_htons(before << 8), bpf_htons(hops << 8), 2))
		return TC_ACT_SHOT;
	return bpf_skb_store_bytes(skb, at, &hops, sizeof(hops), 0) ? TC_ACT_SHOT : TC_ACT_OK;
}

/* Sends a client's packet that has not passed the wire to the wire, which logs it and sends it back. */
static __always_inline int lead_to_wire(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	int verdict = leave_hops(skb, packet, HOPS_LED);
	if (verdict != TC_ACT_OK)
		return verdict;
	count(packet->service, REASON_LED_TO_WIRE);
	return release_to_peer(skb, state);
}

/*
 * Sends the packet to the primary. A packet that comes from the primary is a client's packet that has not passed the wire before, or a packet
 * of a program on the primary's node.
 */
static __always_inline int release_to_primary(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	int verdict = from_peer(skb, state) ? leave_hops(skb, packet, HOPS_RETURNED) : TC_ACT_OK;
	return verdict == TC_ACT_OK ? release_to_peer(skb, state) : verdict;
}

/* Sends the packet to the client, by this node's routes and neighbour table. A client that runs on this node gets the packet through lo. */
static __always_inline int release_to_client(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (same_address(packet->ip.destination, state->own_address))
		return deliver_here(skb);
	skb->mark = MARK_RELEASED;
	return bpf_redirect_neigh(state->ifindex, NULL, 0, 0);
}

#endif
