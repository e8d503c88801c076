/* SPDX-License-Identifier: GPL-2.0 */
/* Reads the window scales of a TCP connection, measures its round trip, and caps its windows. */
#ifndef STEADFAST_EDGE_TCP_H
#define STEADFAST_EDGE_TCP_H

#include "edge_abi.h"
#include "edge_flow.h"
#include "edge_packet.h"

#define OPTIONS_MAX 40
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SCALE 3
#define SCALE_MAX 14
#define NO_SCALE -1

/* The window scale in a SYN's options, which are the bytes from offset `at` to `end`. NO_SCALE if there is none. */
__noinline int window_scale(struct __sk_buff *skb, __u32 at, __u32 end) {
	for (int i = 0; i < OPTIONS_MAX && at < end; i++) {
		__u8 kind = 0, len = 0, scale = 0;
		if (bpf_skb_load_bytes(skb, at, &kind, sizeof(kind)) || kind == OPTION_END)
			break;
		if (kind == OPTION_NOP) {
			at++;
			continue;
		}
		if (at + 2 > end || bpf_skb_load_bytes(skb, at + 1, &len, sizeof(len)) || len < 2 || at + len > end)
			break;
		if (kind == OPTION_SCALE && len == 3) {
			if (bpf_skb_load_bytes(skb, at + 2, &scale, sizeof(scale)))
				break;
			return scale > SCALE_MAX ? SCALE_MAX : scale;
		}
		at += len;
	}
	return NO_SCALE;
}

static __always_inline void note_scale(struct __sk_buff *skb, struct packet *p, struct edge_flow *flow) {
	int scale = window_scale(skb, p->ip.l4 + sizeof(p->tcp), p->ip.l4 + p->tcp.doff * 4);
	if (p->direction == EDGE_ENTERING) {
		flow->near_scale = scale;
		flow->flags = (flow->flags & ~EDGE_NEAR_SCALES) | (scale == NO_SCALE ? 0 : EDGE_NEAR_SCALES);
	} else {
		flow->far_scale = scale;
		flow->flags = (flow->flags & ~EDGE_FAR_SCALES) | (scale == NO_SCALE ? 0 : EDGE_FAR_SCALES);
	}
}

/*
 * Handles a SYN, a SYN-ACK, or the first acknowledgement after them. A round trip is measured from the SYN to the opener's first
 * acknowledgement. If the SYN or the SYN-ACK was repeated, the acknowledgement may belong to either copy, so nothing is measured.
 */
__noinline int note_handshake(struct __sk_buff *skb, struct packet *p, struct edge_flow *flow, struct edge_counts *counts, __u32 string) {
	if (!p || !flow || !counts)
		return 0;
	_Bool is_opener = !(flow->flags & EDGE_OPENER_FAR) == (p->direction == EDGE_ENTERING);
	if (p->tcp.rst)
		return 0;
	if (p->tcp.syn && !p->tcp.ack) {
		if (flow->flags & EDGE_OPENED) {
			flow->syn_ns = 0;
			return 0;
		}
		flow->isn = bpf_ntohl(p->tcp.seq);
		flow->flags |= p->direction == EDGE_ENTERING ? EDGE_OPENED : EDGE_OPENED | EDGE_OPENER_FAR;
		flow->syn_ns = bpf_ktime_get_ns();
		note_scale(skb, p, flow);
	} else if (p->tcp.syn) {
		if (!(flow->flags & EDGE_OPENED) || is_opener || bpf_ntohl(p->tcp.ack_seq) != flow->isn + 1)
			return 0;
		if (flow->flags & EDGE_ANSWERED)
			flow->syn_ns = 0;
		flow->flags |= EDGE_ANSWERED;
		note_scale(skb, p, flow);
	} else if (flow->syn_ns && is_opener && p->tcp.ack && flow->flags & EDGE_ANSWERED) {
		struct edge_traffic *traffic = &counts->traffic[bounded(string)];
		traffic->handshakes++;
		traffic->handshake_ns += bpf_ktime_get_ns() - flow->syn_ns;
		flow->syn_ns = 0;
	}
	return 0;
}

/* Limits the window that a leaving segment offers, as proto::rate::capped_field does. Returns -1 if the packet cannot be changed. */
__noinline int cap_window(struct __sk_buff *skb, struct packet *p, struct edge_flow *flow, struct edge_counts *counts, __u32 cap) {
	if (!p || !flow || !counts)
		return -1;
	__u8 both = EDGE_NEAR_SCALES | EDGE_FAR_SCALES, seen = EDGE_OPENED | EDGE_ANSWERED;
	if ((flow->flags & seen) != seen) {
		if (!(flow->flags & EDGE_UNCAPPED))
			counts->counters[EDGE_UNCAPPED_FLOWS]++;
		flow->flags |= EDGE_UNCAPPED;
		return 0;
	}
	__u32 scale = (flow->flags & both) == both ? flow->far_scale & 15 : 0;
	__u64 most = ((__u64)cap + (1 << scale) - 1) >> scale;
	if (bpf_ntohs(p->tcp.window) <= most)
		return 0;
	__be16 after = bpf_htons(most);
	if (bpf_l4_csum_replace(skb, p->ip.l4 + offsetof(struct tcphdr, check), p->tcp.window, after, sizeof(after)) ||
	    bpf_skb_store_bytes(skb, p->ip.l4 + offsetof(struct tcphdr, window), &after, sizeof(after), 0))
		return -1;
	counts->counters[EDGE_CAPPED]++;
	return 0;
}

#endif
