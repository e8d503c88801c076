/* SPDX-License-Identifier: GPL-2.0 */
/* Reads the headers of IPv4 and IPv6 packets. Uses no map. */
#ifndef STEADFAST_HEADERS_H
#define STEADFAST_HEADERS_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include "kernel.h"

#define L3 ETH_HLEN
#define EXTENSION_HEADERS_MAX 6
#define LINEAR_MAX 256 /* headers beyond this offset, in bytes, are read by bpf_skb_load_bytes */

/* linux/icmp.h would drag in the C library. */
#define ICMP_DEST_UNREACH 3
#define ICMP_NET_UNREACH 0
#define ICMP_HOST_UNREACH 1
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_INFORMATIONAL 128
#define ICMPV6_DEST_UNREACH 1
#define ICMPV6_NOROUTE 0
#define ICMPV6_ADDR_UNREACH 3

struct addresses {
	__u8 source[16];
	__u8 destination[16];
	__u32 l4;      /* offset of the transport header; without meaning if `fragment` or `obscure` is 1 */
	__u8 protocol;
	__u8 fragment; /* 1: a fragment of a larger packet */
	__u8 v6;
	__u8 obscure;  /* 1: transport protocol unknown: too many extension headers, one is cut off, or one is in a fragment */
};

/* Like bpf_skb_load_bytes, but without the call if the bytes begin within LINEAR_MAX, in the packet's linear part.
   Headers almost always are there. */
static __always_inline int load(struct __sk_buff *skb, __u32 at, void *to, __u32 len) {
	if (at <= LINEAR_MAX) {
		void *from = (void *)(long)skb->data + at;
		if (from + len <= (void *)(long)skb->data_end) {
			__builtin_memcpy(to, from, len);
			return 0;
		}
	}
	return bpf_skb_load_bytes(skb, at, to, len);
}

static __always_inline void map_v4(__u8 *to, __be32 from) {
	__builtin_memset(to, 0, 10);
	to[10] = to[11] = 0xff;
	__builtin_memcpy(to + 12, &from, 4);
}

static __always_inline int parse_v4(struct __sk_buff *skb, __u32 at, struct addresses *out) {
	struct iphdr ip;
	if (load(skb, at, &ip, sizeof(ip)) || ip.ihl < 5)
		return -1;
	map_v4(out->source, ip.saddr);
	map_v4(out->destination, ip.daddr);
	out->protocol = ip.protocol;
	out->fragment = !!(ip.frag_off & bpf_htons(0x3fff));
	out->l4 = at + ip.ihl * 4;
	out->v6 = 0;
	out->obscure = 0;
	return 0;
}

static __always_inline _Bool is_extension(__u8 protocol) {
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_FRAGMENT || protocol == IPPROTO_DSTOPTS;
}

static __always_inline int parse_v6(struct __sk_buff *skb, __u32 at, struct addresses *out) {
	struct ipv6hdr ip;
	if (load(skb, at, &ip, sizeof(ip)))
		return -1;
	__builtin_memcpy(out->source, &ip.saddr, 16);
	__builtin_memcpy(out->destination, &ip.daddr, 16);
	out->protocol = ip.nexthdr;
	out->fragment = 0;
	out->l4 = at + sizeof(ip);
	out->v6 = 1;
	out->obscure = 1;
	for (int i = 0; i <= EXTENSION_HEADERS_MAX; i++) {
		struct {
			__u8 next, len;
			__be16 offset;
		} extension;
		if (!is_extension(out->protocol)) {
			out->obscure = 0;
			return 0;
		}
		if (load(skb, out->l4, &extension, sizeof(extension)))
			return 0;
		if (out->protocol == IPPROTO_FRAGMENT) {
			out->fragment = !!(extension.offset & bpf_htons(0xfff9));
			if (out->fragment) {
				out->protocol = extension.next;
				out->obscure = is_extension(extension.next);
				return 0;
			}
			out->l4 += 8;
		} else {
			out->l4 += (extension.len + 1) * 8;
		}
		out->protocol = extension.next;
	}
	return 0;
}

#endif
