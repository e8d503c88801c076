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
 * Sends a packet for the primary back to the peer, from which it came. The primary sends two kinds of such packets to the wire, so that the
 * wire logs them: a client's packet that reached the primary without passing the wire, and a packet of a program on the primary's node. If
 * both nodes took each other for the primary, they would send the packet to each other for ever. So the packet goes back with one hop left,
 * and a packet that comes from the peer with one hop left is dropped.
 */
static __noinline int return_to_peer(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	__u32 at = L3 + (packet->ip.v6 ? offsetof(struct ipv6hdr, hop_limit) : offsetof(struct iphdr, ttl));
	__u8 hops, last = 1;
	if (load(skb, at, &hops, sizeof(hops)))
		return TC_ACT_SHOT;
	if (hops <= last)
		return dropped(packet->service, REASON_CAME_BACK);
	if (!packet->ip.v6 && bpf_l3_csum_replace(skb, L3 + offsetof(struct iphdr, check), bpf_htons(hops << 8), bpf_htons(last << 8), 2))
		return TC_ACT_SHOT;
	if (bpf_skb_store_bytes(skb, at, &last, sizeof(last), 0))
		return TC_ACT_SHOT;
	return release_to_peer(skb, state);
}

/* Sends the packet to the primary. */
static __always_inline int release_to_primary(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	return from_peer(skb, state) ? return_to_peer(skb, packet, state) : release_to_peer(skb, state);
}

/* Sends the packet to the client, by this node's routes and neighbour table. A client that runs on this node gets the packet through lo. */
static __always_inline int release_to_client(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (same_address(packet->ip.destination, state->own_address))
		return deliver_here(skb);
	skb->mark = MARK_RELEASED;
	return bpf_redirect_neigh(state->ifindex, NULL, 0, 0);
}

#endif
