/* SPDX-License-Identifier: GPL-2.0 */
/* Copies a whole packet into a ring: linear or not, up to a 64 KB GSO packet. */
#ifndef STEADFAST_LOG_H
#define STEADFAST_LOG_H

#include "maps.h"
#include "parse.h"

#define CHUNK 1024
#define CHUNKS_MAX 66

/* Copy in 1 KB chunks even where the kernel has bpf_dynptr_copy (for tests of the fallback). */
const volatile _Bool chunks_only = 0;

struct reservation {
	struct bpf_dynptr bytes;
	__u32 len; /* bytes of the packet from its IP header on */
};

static __always_inline _Bool can_copy_dynptr(void) {
	return !chunks_only && bpf_ksym_exists(bpf_dynptr_copy) && bpf_ksym_exists(bpf_dynptr_from_skb);
}

/* For kernels without bpf_dynptr_copy. The record is rounded up to whole chunks. */
static __noinline int copy_chunks(struct __sk_buff *skb, struct bpf_dynptr *to, __u32 len) {
	__u32 at = 0;
	for (int i = 0; i < CHUNKS_MAX && at < len; i++, at += CHUNK) {
		__u8 *data = bpf_dynptr_data(to, sizeof(struct record) + at, CHUNK);
		__u64 left = len - at;
		if (!data)
			return -1;
		if (left >= CHUNK) {
			if (bpf_skb_load_bytes(skb, L3 + at, data, CHUNK))
				return -1;
			continue;
		}
		left &= CHUNK - 1;
		asm volatile("" : "+r"(left));
		if (left == 0 || left > CHUNK || bpf_skb_load_bytes(skb, L3 + at, data, left))
			return -1;
	}
	return at >= len ? 0 : -1;
}

static __always_inline __u8 record_flags(struct __sk_buff *skb) {
	if (!bpf_ksym_exists(bpf_cast_to_kern_ctx))
		return RECORD_CHECKSUM_UNKNOWN;
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	__u8 summed = BPF_CORE_READ_BITFIELD(kernel_skb, ip_summed);
	return summed == CHECKSUM_UNNECESSARY || summed == CHECKSUM_PARTIAL ? RECORD_CHECKSUM_TRUSTED : 0;
}

static __always_inline int fill(struct __sk_buff *skb, struct parsed *packet, struct bpf_dynptr *to, __u32 len,
				__u64 after) {
	struct record record = {
		.time_ns = bpf_ktime_get_ns(),
		.len = len,
		.service = packet->service,
		.direction = packet->direction,
		.flags = record_flags(skb),
		.after = after,
	};
	if (bpf_dynptr_write(to, 0, &record, sizeof(record), 0))
		return -1;
	if (can_copy_dynptr()) {
		struct bpf_dynptr from;
		if (bpf_dynptr_from_skb(skb, 0, &from))
			return -1;
		return bpf_dynptr_copy(to, sizeof(record), &from, L3, len);
	}
	return copy_chunks(skb, to, len);
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

static __always_inline __u32 reserved_len(__u32 len) {
	__u32 body = can_copy_dynptr() ? len : (len + CHUNK - 1) & ~(CHUNK - 1);
	return sizeof(struct record) + body;
}

#endif
