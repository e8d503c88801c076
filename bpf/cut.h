/* SPDX-License-Identifier: GPL-2.0 */
/* Copies of segments without their payload: commit mode `pr` (docs/commit-modes.md). */
#ifndef STEADFAST_CUT_H
#define STEADFAST_CUT_H

#include "abi.h"
#include "headers.h"
#include "kernel.h"
#include "parse.h"

/* Whether a segment from the primary is a copy without payload. */
static __always_inline _Bool is_cut(struct parsed *packet) {
	return packet->direction == DIRECTION_OUT && packet->tcp.res1 & CUT_BIT;
}

/* Sets the length in the IP header to that of the packet, which ends at `end`. */
static __always_inline int set_ip_length(struct __sk_buff *skb, struct parsed *packet, __u32 end) {
	__u32 at = L3 + (packet->ip.v6 ? offsetof(struct ipv6hdr, payload_len) : offsetof(struct iphdr, tot_len));
	__be16 before, after = bpf_htons(end - L3 - (packet->ip.v6 ? sizeof(struct ipv6hdr) : 0));
	if (load(skb, at, &before, sizeof(before)))
		return -1;
	if (!packet->ip.v6 && bpf_l3_csum_replace(skb, L3 + offsetof(struct iphdr, check), before, after, sizeof(after)))
		return -1;
	return bpf_skb_store_bytes(skb, at, &after, sizeof(after), 0);
}

/*
 * Cuts the payload off a copy for the wire, notes the payload's length in its place, and marks the copy. The IP length and checksum must
 * fit: otherwise bridges with netfilter drop the copy. Returns non-zero if the copy cannot be changed.
 */
static __noinline int cut(struct __sk_buff *skb, struct parsed *packet) {
	__u32 payload_at = packet->ip.l4 + packet->tcp.doff * 4;
	__u32 len = skb->len > payload_at ? skb->len - payload_at : 0, end = payload_at + (len ? sizeof(__be32) : 0);
	__be32 length = bpf_htonl(len);
	__u8 offset = packet->tcp.doff << 4 | packet->tcp.res1 | CUT_BIT;
	if (bpf_skb_change_tail(skb, end, 0) || set_ip_length(skb, packet, end))
		return -1;
	if (len && bpf_skb_store_bytes(skb, payload_at, &length, sizeof(length), 0))
		return -1;
	return bpf_skb_store_bytes(skb, packet->ip.l4 + 12, &offset, sizeof(offset), 0);
}

#endif
