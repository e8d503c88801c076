/* SPDX-License-Identifier: GPL-2.0 */
/* The few kernel types that the programs read, relocated by BTF (CO-RE), and the kfuncs that they call. */
#ifndef STEADFAST_KERNEL_H
#define STEADFAST_KERNEL_H

#include <linux/bpf.h>
#include <linux/in6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#define RELOCATED __attribute__((preserve_access_index))

struct task_struct {
	unsigned int flags;
	int exit_code;
} RELOCATED;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} RELOCATED;

struct sock {
	struct sock_common __sk_common;
} RELOCATED;

struct sk_buff {
	__u8 ip_summed : 2;
} RELOCATED;

#define AF_INET6 10
#define PF_EXITING 4
#define CHECKSUM_UNNECESSARY 1
#define CHECKSUM_PARTIAL 3

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *dynptr) __ksym __weak;
extern int bpf_dynptr_copy(struct bpf_dynptr *to, __u32 to_offset, struct bpf_dynptr *from, __u32 from_offset,
			   __u32 size) __ksym __weak;

#endif
