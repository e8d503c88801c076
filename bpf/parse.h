/* SPDX-License-Identifier: GPL-2.0 */
/* Finds the service and the direction of an IPv4 or IPv6 packet. */
#ifndef STEADFAST_PARSE_H
#define STEADFAST_PARSE_H

#include "abi.h"
#include "headers.h"
#include "kernel.h"
#include "maps.h"

enum verdict {
	PARSE_OTHER,     /* not a packet of any service */
	PARSE_SEGMENT,   /* a TCP segment of a service */
	PARSE_ICMP,      /* an ICMP error about a segment that a service sent */
	PARSE_FRAGMENT,  /* a fragment of a packet to or from a VIP; the packet is TCP, or may be */
	PARSE_MALFORMED, /* a whole packet to or from a VIP that is TCP, or may be; its TCP header cannot be read */
};

struct parsed {
	struct addresses ip;
	struct tcphdr tcp;
	__u32 service;
	__u8 direction;
};

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

/*
 * Parses the packet into `out` and returns an enum verdict. The verifier checks a global function only once, not again at each call, so an
 * agent starts faster. The verifier assumes all arguments that the types allow, including NULL.
 */
__noinline int parse(struct __sk_buff *skb, struct parsed *out) {
	int failed;
	if (!out)
		return PARSE_OTHER;
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
