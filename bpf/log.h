/* SPDX-License-Identifier: GPL-2.0 */
/* Logs a whole packet in a ring. */
#ifndef STEADFAST_LOG_H
#define STEADFAST_LOG_H

#include "copy.h"
#include "cut.h"
#include "maps.h"
#include "parse.h"

struct reservation {
	struct bpf_dynptr bytes;
	__u32 len; /* bytes of the packet from its IP header on */
};

static __always_inline int fill(struct __sk_buff *skb, struct parsed *packet, struct bpf_dynptr *to, __u32 len,
				__u64 after) {
	struct record record = {
		.time_ns = bpf_ktime_get_ns(),
		.len = len,
		.service = packet->service,
		.direction = packet->direction,
		.flags = is_cut(packet) ? RECORD_CUT : record_flags(skb),
		.after = after,
	};
	if (bpf_dynptr_write(to, 0, &record, sizeof(record), 0))
		return -1;
	return copy_packet(skb, to, len);
}

/* Adds one to a word. An atomic operation that returns a value is a full barrier on every architecture. */
static __always_inline void count_before_looking(__u64 *word) {
	__u64 was = __sync_fetch_and_add(word, 1);
	asm volatile("" : : "r"(was) : "memory"); /* use the value: otherwise the compiler picks an instruction that is no barrier */
}

static __always_inline void full_barrier(void) {
	__u64 word = 0;
	asm volatile("" : : "r"(&word) : "memory"); /* makes the compiler assume that others see the word */
	count_before_looking(&word);
}

/*
 * Call after reserving a record, which stores the ring's new end, and before reading a gate or looking for a socket. Reserving takes and
 * releases a lock, but the lock does not order the store of the end before a later load. Without this barrier, the gate could be read
 * before the agent can see the record (docs/wire.md, The gate and the ring's end).
 */
static __always_inline void publish_before_looking(void) { full_barrier(); }

static __always_inline __u64 wakeup(void) {
	__u32 zero = 0;
	struct node_state *state = bpf_map_lookup_elem(&node, &zero);
	return state && *(volatile __u32 *)&state->agent_asleep ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

#endif
