/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copies of packets for the agent's cache (proto::edge::cache). A packet is copied if it may change what the cache holds of its flow. While
 * copies_entering is 1, all entering packets are copied. The flow's entry mirrors what the cache holds (struct edge_mirror). If a copy is
 * lost, the mirror stays as it was.
 */
#ifndef STEADFAST_EDGE_CACHE_H
#define STEADFAST_EDGE_CACHE_H

#include "copy.h"
#include "edge_abi.h"
#include "edge_flow.h"
#include "edge_maps.h"
#include "edge_packet.h"

/* The numbers and flags from which the mirror is updated: those of a packet, or of its first segment (copy_if_needed). */
struct segment {
	__u32 seq, ack;
	__u32 numbers; /* number of sequence numbers that the segment occupies */
	_Bool has_ack, syn, fin, rst;
};

/* Whether a sequence number is equal to `other` or comes after `other`. */
static __always_inline _Bool reaches(__u32 number, __u32 other) { return (__s32)(number - other) >= 0; }

/* Whether an entering segment may change the cache. Updates the mirror. proto::edge::CacheMirror::on_entering does the same. */
__noinline int mirror_entering(struct edge_mirror *mirror, struct segment *segment, __u32 policy) {
	if (!mirror || !segment)
		return 0;
	__u32 end = segment->seq + segment->numbers;
	_Bool changes = 0;
	if (segment->rst) {
		mirror->flags = 0;
		return 1;
	}
	if (!segment->numbers || (policy == EDGE_CACHE_SYN && !segment->syn))
		return 0;
	if (segment->syn && mirror->flags & MIRROR_DEEP)
		mirror->flags |= MIRROR_UNSURE; /* not known whether this SYN is the lowest waiting packet */
	if (mirror->flags & MIRROR_UNSURE)
		return 1;
	if (segment->syn && !(mirror->flags & MIRROR_HELD && mirror->flags & MIRROR_HELD_SYN && mirror->held_seq == segment->seq))
		mirror->flags = 0; /* another connection: the cache forgets the earlier one */
	if (segment->fin && mirror->flags & (MIRROR_HELD | MIRROR_HIGHEST | MIRROR_DEEP)) {
		mirror->fin_end = end;
		mirror->flags |= MIRROR_FIN_IN;
		changes = 1;
	}
	if (mirror->flags & MIRROR_HIGHEST && reaches(mirror->highest, end))
		return changes;
	if (mirror->flags & MIRROR_DEEP)
		return 1;
	if (mirror->flags & MIRROR_HELD) {
		/* A retransmission replaces the held packet, unless the retransmission is shorter. */
		if (mirror->held_seq == segment->seq && !reaches(end, mirror->held_end))
			return changes;
		if (!reaches(mirror->held_seq, segment->seq))
			return policy == EDGE_CACHE_ALL || changes;
	}
	mirror->held_seq = segment->seq;
	mirror->held_end = end;
	mirror->flags = (mirror->flags & ~MIRROR_HELD_SYN) | MIRROR_HELD | (segment->syn ? MIRROR_HELD_SYN : 0);
	if (segment->fin) {
		mirror->fin_end = end;
		mirror->flags |= MIRROR_FIN_IN;
	}
	return 1;
}

/* Whether a leaving segment may change the cache. Updates the mirror. proto::edge::CacheMirror::on_leaving does the same. */
__noinline int mirror_leaving(struct edge_mirror *mirror, struct segment *segment, __u32 policy, __u32 second) {
	if (!mirror || !segment)
		return 0;
	if (segment->rst || (segment->syn && !segment->has_ack)) {
		mirror->flags = 0;
		return 1;
	}
	if (!segment->has_ack)
		return 0;
	if (mirror->flags & MIRROR_UNSURE)
		return 1;
	_Bool releases = mirror->flags & MIRROR_HELD && reaches(segment->ack, mirror->held_end), changes = releases;
	if (releases)
		mirror->flags &= ~(MIRROR_HELD | MIRROR_HELD_SYN);
	if (policy == EDGE_CACHE_SYN)
		return releases;
	_Bool had_highest = mirror->flags & MIRROR_HIGHEST;
	if (segment->fin && (releases || mirror->flags & (MIRROR_HELD | MIRROR_HIGHEST | MIRROR_DEEP))) {
		mirror->flags |= MIRROR_FIN_OUT;
		changes = 1;
	}
	if (mirror->flags & MIRROR_FIN_OUT && mirror->flags & MIRROR_FIN_IN && reaches(segment->ack, mirror->fin_end)) {
		/*
		 * With MIRROR_DEEP, the cache may have forgotten the connection between the two FINs. Then the cache knows only one of the
		 * FINs, and does not forget the connection now.
		 */
		mirror->flags = mirror->flags & MIRROR_DEEP && second == EDGE_SECOND_NEWEST ? MIRROR_UNSURE : 0;
		return 1;
	}
	if (releases && policy == EDGE_CACHE_ALL)
		mirror->flags |= MIRROR_DEEP;
	if (second == EDGE_SECOND_NEWEST) {
		if (!(mirror->flags & (MIRROR_HELD | MIRROR_HIGHEST | MIRROR_DEEP)))
			mirror->flags = 0;
		return changes || mirror->flags & MIRROR_DEEP;
	}
	if ((!had_highest || !reaches(mirror->highest, segment->ack)) && (!segment->numbers || releases || had_highest)) {
		mirror->highest = segment->ack;
		mirror->flags |= MIRROR_HIGHEST;
		changes = 1;
	}
	return changes;
}

/* Copies the first `len` bytes of the packet into the ring. */
__noinline int copy_to_ring(struct __sk_buff *skb, struct packet *p, struct edge_state *state, __u32 string, __u32 len) {
	if (!p || !state)
		return -1;
	struct edge_record record = {
		.time_ns = bpf_ktime_get_ns(),
		.len = len,
		.whole_len = p->end - L3,
		.gso_size = skb->gso_size,
		.string = string,
		.direction = p->direction,
		.flags = record_flags(skb),
	};
	struct bpf_dynptr bytes;
	if (bpf_ringbuf_reserve_dynptr(&ring, reserved_len(len), 0, &bytes) || bpf_dynptr_write(&bytes, 0, &record, sizeof(record), 0) ||
	    copy_packet(skb, &bytes, len)) {
		bpf_ringbuf_discard_dynptr(&bytes, BPF_RB_NO_WAKEUP);
		return -1;
	}
	bpf_ringbuf_submit_dynptr(&bytes, NOW(state->agent_asleep) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	return 0;
}

/*
 * Copies a packet if the cache needs it. Only the first segment of a leaving GSO packet is copied. Only the first segment of an entering
 * GSO packet is copied, too, unless the policy is EDGE_CACHE_ALL or copies_entering is 1. A FIN is in the last segment, so a copy of only
 * the first segment has none. Unless the policy is EDGE_CACHE_ALL, the mirror takes only the first segment into account, even if the whole
 * packet is copied.
 */
__noinline int copy_if_needed(struct __sk_buff *skb, struct packet *p, struct edge_state *state, struct edge_counts *counts,
			      struct edge_flow *flow) {
	if (!p || !state || !counts || !flow)
		return 0;
	struct edge_string *string = string_at(state, flow->string);
	__u32 policy = state->policy, epoch = NOW(string->caching_epoch), gso_size = skb->gso_size;
	if (policy == EDGE_CACHE_NONE || !epoch)
		return 0;
	_Bool is_cut = gso_size && p->payload > gso_size && (policy != EDGE_CACHE_ALL || p->direction == EDGE_LEAVING);
	__u32 payload = is_cut ? gso_size : p->payload;
	struct segment segment = {
		.seq = bpf_ntohl(p->tcp.seq),
		.ack = bpf_ntohl(p->tcp.ack_seq),
		.has_ack = p->tcp.ack,
		.syn = p->tcp.syn,
		.fin = p->tcp.fin && !is_cut,
		.rst = p->tcp.rst,
	};
	segment.numbers = payload + segment.syn + segment.fin;
	struct edge_mirror mirror = flow->mirror;
	if (mirror.caching_epoch != epoch)
		mirror = (struct edge_mirror){.caching_epoch = epoch};
	_Bool changes = p->direction == EDGE_ENTERING ? mirror_entering(&mirror, &segment, policy)
						       : mirror_leaving(&mirror, &segment, policy, state->second);
	if (p->direction == EDGE_ENTERING && NOW(string->copies_entering)) {
		changes = 1;
		payload = p->payload;
	}
	if (!changes)
		return 0;
	if (copy_to_ring(skb, p, state, flow->string, p->end - L3 - p->payload + payload)) {
		counts->counters[EDGE_COPY_LOST]++;
		return 0;
	}
	counts->counters[EDGE_COPIED]++;
	flow->mirror = mirror;
	return 0;
}

#endif
