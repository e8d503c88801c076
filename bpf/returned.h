/* SPDX-License-Identifier: GPL-2.0 */
/* Segments of reversed connections that the primary has logged, and sends back to the backup (docs/migration.md). */
#ifndef STEADFAST_RETURNED_H
#define STEADFAST_RETURNED_H

#include "abi.h"
#include "headers.h"
#include "kernel.h"
#include "parse.h"

/* Whether the peer has logged a segment as the wire of its connection, and sent it back. */
static __always_inline _Bool is_returned(struct parsed *packet) { return packet->tcp.res1 & LOGGED_BIT; }

/* Sets or removes the mark of a returned segment. Returns non-zero if the segment cannot be changed. */
static __noinline int mark_returned(struct __sk_buff *skb, struct parsed *packet, _Bool is_marked) {
	__u32 at = packet->ip.l4 + 12; /* data offset and flags */
	__be16 before, after;
	if (bpf_skb_load_bytes(skb, at, &before, sizeof(before)))
		return -1;
	after = is_marked ? before | bpf_htons(LOGGED_BIT << 8) : before & ~bpf_htons(LOGGED_BIT << 8);
	if (bpf_l4_csum_replace(skb, packet->ip.l4 + 16, before, after, sizeof(after)))
		return -1;
	return bpf_skb_store_bytes(skb, at, &after, sizeof(after), 0);
}

#endif
