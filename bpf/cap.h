/* SPDX-License-Identifier: GPL-2.0 */
/* Slowed clients: the wire reduces the windows that the primary offers them (docs/limits.md). */
#ifndef STEADFAST_CAP_H
#define STEADFAST_CAP_H

#include "maps.h"
#include "parse.h"

static __always_inline __u32 further(__u32 a, __u32 b) { return (__s32)(a - b) > 0 ? a : b; }

/*
 * Reduces the window of a segment to a slowed client, so that the segment offers nothing beyond the client's cap. A window that the client
 * was already offered is never taken back: this is the promise to the client (struct promise). The agent adds a promise to the map
 * `promises` when it adds a cap. The first segment after that passes unchanged, because the wire does not know yet what was offered. The
 * right window edge of this segment covers all earlier offers, because the primary never moves the edge back. If the window field cannot
 * express the cap exactly, the window is rounded down, but never below the promise. WindowPromise::pass in
 * crates/proto/src/connection/cap.rs does the same.
 */
static __noinline int withhold(struct __sk_buff *skb, struct parsed *packet) {
	struct client_key client = client_of(packet);
	if (packet->tcp.syn) { /* the cap and the promise belong to the client's earlier connection */
		bpf_map_delete_elem(&caps, &client);
		bpf_map_delete_elem(&promises, &client);
		return 0;
	}
	struct cap *cap = bpf_map_lookup_elem(&caps, &client);
	struct promise *promise = bpf_map_lookup_elem(&promises, &client);
	if (!cap || !promise || !packet->tcp.ack || packet->tcp.rst)
		return 0;
	__u32 shift = cap->shift & 15, ack = bpf_ntohl(packet->tcp.ack_seq);
	__u32 window = bpf_ntohs(packet->tcp.window), promised = promise->edge;
	__u32 offered = ack + (window << shift), allowed = further(promised, cap->edge);
	if (!promise->certain || (__s32)(offered - allowed) <= 0) {
		promise->edge = further(promised, offered);
		promise->certain = 1;
		return 0;
	}
	__u32 least = (further(promised, ack) - ack + (1U << shift) - 1) >> shift;
	__u32 field = (further(allowed, ack) - ack) >> shift;
	if (field < least)
		field = least;
	if (field > window)
		field = window;
	promise->edge = further(promised, ack + (field << shift));
	__be16 after = bpf_htons(field);
	if (after == packet->tcp.window)
		return 0;
	if (bpf_l4_csum_replace(skb, packet->ip.l4 + 16, packet->tcp.window, after, sizeof(after)))
		return -1;
	return bpf_skb_store_bytes(skb, packet->ip.l4 + 14, &after, sizeof(after), 0);
}

static __always_inline int withhold_if_any(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	return *(volatile __u32 *)&state->caps ? withhold(skb, packet) : 0;
}

/*
 * Whether a segment is a window update that the agent sends in the primary's name: an empty segment with the agent's mark, to a client that
 * has a cap. The agent makes it from the primary's last numbers and the window that was withheld; this function does not check these
 * values. Like the nft guard, this function lets no RST of the agent pass.
 */
static __always_inline _Bool is_update(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (skb->mark != MARK_SPEAK || !*(volatile __u32 *)&state->caps)
		return 0;
	if (packet->tcp.syn || packet->tcp.fin || packet->tcp.rst || skb->len > packet->ip.l4 + packet->tcp.doff * 4)
		return 0;
	struct client_key client = client_of(packet);
	return bpf_map_lookup_elem(&caps, &client) != NULL;
}

#endif
