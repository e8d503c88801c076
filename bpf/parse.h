/* SPDX-License-Identifier: GPL-2.0 */
/* From a packet to "this service, this direction", for IPv4 and IPv6. */
#ifndef STEADFAST_PARSE_H
#define STEADFAST_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include "abi.h"
#include "kernel.h"
#include "maps.h"

#define L3 ETH_HLEN
#define EXTENSION_HEADERS_MAX 6
#define LINEAR_MAX 256 /* headers beyond this offset, in bytes, are read by bpf_skb_load_bytes */

/* linux/icmp.h would drag in the C library. */
#define ICMP_DEST_UNREACH 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_INFORMATIONAL 128

enum verdict {
	PARSE_OTHER,     /* not a packet of any service */
	PARSE_SEGMENT,   /* a TCP segment of a service */
	PARSE_ICMP,      /* an ICMP error about a segment that a service sent */
	PARSE_FRAGMENT,  /* a fragment of a packet to or from a VIP; the packet is TCP, or may be */
	PARSE_MALFORMED, /* no fragment, but to or from a VIP, and TCP or maybe TCP; its TCP header cannot be read */
};

struct addresses {
	__u8 source[16];
	__u8 destination[16];
	__u32 l4;      /* offset of the transport header */
	__u8 protocol;
	__u8 fragment; /* 1: a fragment of a larger packet */
	__u8 v6;
	__u8 obscure;  /* 1: no transport header found: too many extension headers, one is cut off, or one is in a fragment */
};

struct parsed {
	struct addresses ip;
	struct tcphdr tcp;
	__u32 service;
	__u8 direction;
};

/* Like bpf_skb_load_bytes, but without the call if the bytes are in the packet's linear part. Headers almost always are there. */
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

static __always_inline _Bool is_service_port(__be16 port) {
	__u32 word = port / 64;
	__u64 *bits = bpf_map_lookup_elem(&ports, &word);
	return bits && *bits >> port % 64 & 1;
}

static __always_inline __u32 *service_of(const __u8 *address, __be16 port) {
	if (!is_service_port(port))
		return NULL; /* most ports are clients' ports, and hashing is expensive */
	struct service_key key = {.port = port};
	__builtin_memcpy(key.address, address, 16);
	return bpf_map_lookup_elem(&services, &key);
}

/* The services at an address, one bit for each service. */
static __always_inline __u64 services_at(const __u8 *address) {
	struct vip vip;
	__builtin_memcpy(vip.address, address, 16);
	__u64 *services = bpf_map_lookup_elem(&vips, &vip);
	return services ? *services : 0;
}

/* An ICMP error quotes the packet that caused it. If a service sent that packet, `out` gets the service and its client. */
static __always_inline enum verdict parse_icmp(struct __sk_buff *skb, struct parsed *out) {
	struct addresses inner;
	struct {
		__be16 source, dest;
	} ports;
	__u8 type;
	int failed;
	if (load(skb, out->ip.l4, &type, 1))
		return PARSE_OTHER;
	if (out->ip.v6 ? type >= ICMPV6_INFORMATIONAL : type != ICMP_DEST_UNREACH && type != ICMP_TIME_EXCEEDED && type != ICMP_PARAMETERPROB)
		return PARSE_OTHER;
	if (out->ip.v6)
		failed = parse_v6(skb, out->ip.l4 + 8, &inner);
	else
		failed = parse_v4(skb, out->ip.l4 + 8, &inner);
	if (failed || inner.obscure || inner.protocol != IPPROTO_TCP || load(skb, inner.l4, &ports, sizeof(ports)))
		return PARSE_OTHER;
	__u32 *service = service_of(inner.source, ports.source);
	if (!service)
		return PARSE_OTHER;
	out->service = *service;
	out->direction = DIRECTION_OUT;
	__builtin_memcpy(out->ip.destination, inner.destination, sizeof(out->ip.destination));
	out->tcp.dest = ports.dest;
	return PARSE_ICMP;
}

static __always_inline enum verdict parse(struct __sk_buff *skb, struct parsed *out) {
	int failed;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		failed = parse_v4(skb, L3, &out->ip);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		failed = parse_v6(skb, L3, &out->ip);
	else
		return PARSE_OTHER;
	if (failed)
		return PARSE_OTHER; /* the addresses cannot be read; the stack drops the packet */
	if (!out->ip.obscure && (out->ip.protocol == IPPROTO_ICMP || out->ip.protocol == IPPROTO_ICMPV6))
		return out->ip.fragment ? PARSE_OTHER : parse_icmp(skb, out);
	if (!out->ip.obscure && out->ip.protocol != IPPROTO_TCP)
		return PARSE_OTHER;
	if (out->ip.obscure || out->ip.fragment || load(skb, out->ip.l4, &out->tcp, sizeof(out->tcp))) {
		if (!services_at(out->ip.destination) && !services_at(out->ip.source))
			return PARSE_OTHER;
		return out->ip.fragment ? PARSE_FRAGMENT : PARSE_MALFORMED;
	}
	out->direction = DIRECTION_IN;
	__u32 *service = service_of(out->ip.destination, out->tcp.dest);
	if (!service) {
		out->direction = DIRECTION_OUT;
		service = service_of(out->ip.source, out->tcp.source);
	}
	if (!service)
		return PARSE_OTHER;
	out->service = *service;
	return PARSE_SEGMENT;
}

/* Whether a segment other than a SYN has payload or a FIN. Frames may be padded, so the IP header gives the length. */
static __always_inline _Bool has_payload_or_fin(struct __sk_buff *skb, struct parsed *packet) {
	__be16 total;
	if (packet->tcp.fin || load(skb, L3 + (packet->ip.v6 ? 4 : 2), &total, sizeof(total)) || !total)
		return 1; /* length 0: the packet is too long for the field, so it has payload */
	__u32 end = L3 + bpf_ntohs(total) + (packet->ip.v6 ? sizeof(struct ipv6hdr) : 0);
	return end > packet->ip.l4 + packet->tcp.doff * 4;
}

static __always_inline struct client_key client_of(struct parsed *packet) {
	struct client_key client = {.service = packet->service};
	if (packet->direction == DIRECTION_IN) {
		__builtin_memcpy(client.address, packet->ip.source, 16);
		client.port = packet->tcp.source;
	} else {
		__builtin_memcpy(client.address, packet->ip.destination, 16);
		client.port = packet->tcp.dest;
	}
	return client;
}

#endif
