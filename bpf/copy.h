/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copies a packet, linear or not, into a ring. The largest packet is a GSO packet of 64 KB. Uses no map. A record is a header of
 * RECORD_HEADER bytes and the packet from its IP header on.
 */
#ifndef STEADFAST_COPY_H
#define STEADFAST_COPY_H

#include "abi.h"
#include "headers.h"
#include "kernel.h"
#include "settings.h"

#define RECORD_HEADER sizeof(struct record)
#define CHUNK 1024
#define CHUNKS_MAX 66

static __always_inline _Bool can_copy_dynptr(void) {
	return !settings.chunks_only && bpf_ksym_exists(bpf_dynptr_copy) && bpf_ksym_exists(bpf_dynptr_from_skb);
}

/* For kernels without bpf_dynptr_copy. The record is rounded up to whole chunks. */
static __noinline int copy_chunks(struct __sk_buff *skb, struct bpf_dynptr *to, __u32 len) {
	__u32 at = 0;
	for (int i = 0; i < CHUNKS_MAX && at < len; i++, at += CHUNK) {
		__u8 *data = bpf_dynptr_data(to, RECORD_HEADER + at, CHUNK);
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

/* Copies the first `len` bytes of the packet into a record, after the record's header. */
static __always_inline int copy_packet(struct __sk_buff *skb, struct bpf_dynptr *to, __u32 len) {
	if (can_copy_dynptr()) {
		struct bpf_dynptr from;
		if (bpf_dynptr_from_skb(skb, 0, &from))
			return -1;
		return bpf_dynptr_copy(to, RECORD_HEADER, &from, L3, len);
	}
	return copy_chunks(skb, to, len);
}

/* Size of the record for a packet of `len` bytes. */
static __always_inline __u32 reserved_len(__u32 len) {
	__u32 body = can_copy_dynptr() ? len : (len + CHUNK - 1) & ~(CHUNK - 1);
	return RECORD_HEADER + body;
}

#endif
