/* SPDX-License-Identifier: GPL-2.0 */
/* Reads from a frame what the edge needs to know: the flow, the kind of packet, and the packet's lengths. */
#ifndef STEADFAST_EDGE_PACKET_H
#define STEADFAST_EDGE_PACKET_H

#include "edge_abi.h"
#include "headers.h"

#define UDP_HEADER 8

enum kind {
	KIND_OTHER,    /* no ports: the addresses choose the string */
	KIND_TCP,      /* a whole TCP segment */
	KIND_PORTS,    /* UDP, or the first fragment of a UDP or TCP packet: has a flow, but no TCP state */
	KIND_FRAGMENT, /* another fragment */
	KIND_ERROR,    /* an ICMP error; the key is the key of the flow whose packet the error quotes */
};

struct packet {
	struct addresses ip;
	struct edge_flow_key key;
	struct tcphdr tcp;
	__u32 end;         /* offset of the first byte after the IP packet */
	__u32 payload;     /* bytes of TCP or UDP payload; 0 for a fragment */
	__u32 fragment_id; /* in network byte order */
	__u8 kind;
	__u8 direction;    /* enum edge_direction */
	__u8 hops;         /* TTL or hop limit */
	__u8 malformed;    /* 1: a transport header that cannot be read, or an IPv4 header whose checksum is wrong */
	__u8 unreachable;  /* 1: an ICMP error of an adjacent router that has no route to the TCP connection's endpoint */
};

struct ports {
	__be16 source, dest;
};

static __always_inline void set_ports(struct packet *p, __be16 source, __be16 dest) {
	p->key.near_port = p->direction == EDGE_ENTERING ? source : dest;
	p->key.far_port = p->direction == EDGE_ENTERING ? dest : source;
}

/* Sets the addresses in `p->key`, as for a packet from `source` to `destination` that passes in the direction `p->direction`. */
static __always_inline void set_addresses(struct packet *p, const __u8 *source, const __u8 *destination) {
	_Bool enters = p->direction == EDGE_ENTERING;
	__builtin_memcpy(p->key.near, enters ? source : destination, 16);
	__builtin_memcpy(p->key.far, enters ? destination : source, 16);
}

#define IP_WORDS 5
#define IP_OPTION_WORDS 10

/* Whether the checksum of the IPv4 header is wrong. A router must not forward such a packet (RFC 1812 section 5.2.2). */
__noinline int is_ip_sum_wrong(struct __sk_buff *skb, __u64 options) {
	__u32 words[IP_WORDS + IP_OPTION_WORDS] = {};
	__u64 sum = 0;
	if (load(skb, L3, words, IP_WORDS * 4))
		return 1;
	options &= 4 * 15;
	asm volatile("" : "+r"(options)); /* the verifier must see the bounds of this register */
	if (options && (options > IP_OPTION_WORDS * 4 || bpf_skb_load_bytes(skb, L3 + IP_WORDS * 4, words + IP_WORDS, options)))
		return 1;
	for (int i = 0; i < IP_WORDS; i++)
		sum += words[i];
	for (int i = IP_WORDS; options && i < IP_WORDS + IP_OPTION_WORDS; i++)
		sum += words[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum != 0xffff;
}

/* Reads the IP header. Returns -1 if the packet is not for the edge: the stack decides about it. */
static __always_inline int read_ip(struct __sk_buff *skb, struct packet *p) {
	__u8 first;
	__be16 len;
	if (load(skb, L3, &first, sizeof(first)))
		return -1;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (first >> 4 != 4 || parse_v4(skb, L3, &p->ip) || load(skb, L3 + offsetof(struct iphdr, tot_len), &len, sizeof(len)) ||
		    load(skb, L3 + offsetof(struct iphdr, ttl), &p->hops, sizeof(p->hops)))
			return -1;
		p->end = L3 + bpf_ntohs(len);
		p->malformed = is_ip_sum_wrong(skb, p->ip.l4 - L3 - IP_WORDS * 4);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (first >> 4 != 6 || parse_v6(skb, L3, &p->ip) ||
		    load(skb, L3 + offsetof(struct ipv6hdr, payload_len), &len, sizeof(len)) ||
		    load(skb, L3 + offsetof(struct ipv6hdr, hop_limit), &p->hops, sizeof(p->hops)))
			return -1;
		p->end = L3 + sizeof(struct ipv6hdr) + bpf_ntohs(len);
	} else {
		return -1;
	}
	if (!len && skb->gso_size) /* a GSO packet that is too long for the field */
		p->end = skb->len;
	return p->end > skb->len || p->end < p->ip.l4 ? -1 : 0;
}

/*
 * Reads a fragment's number, and the ports if it is the first fragment. parse_v6 stops at the fragment header, so `l4` is the offset of
 * that header.
 */
__noinline int read_fragment(struct __sk_buff *skb, struct packet *p) {
	struct {
		__u8 next, reserved;
		__be16 offset;
		__u32 id;
	} header = {};
	struct ports ports;
	if (!p)
		return -1;
	__u32 at = p->ip.l4;
	p->kind = KIND_FRAGMENT;
	if (p->ip.v6) {
		if (load(skb, at, &header, sizeof(header)))
			return -1;
		p->fragment_id = header.id;
		header.offset &= bpf_htons(0xfff8);
		at += sizeof(header);
	} else {
		__be16 id;
		if (load(skb, L3 + offsetof(struct iphdr, id), &id, sizeof(id)) ||
		    load(skb, L3 + offsetof(struct iphdr, frag_off), &header.offset, sizeof(header.offset)))
			return -1;
		p->fragment_id = id;
		header.offset &= bpf_htons(0x1fff);
	}
	_Bool has_ports = p->ip.protocol == IPPROTO_TCP || p->ip.protocol == IPPROTO_UDP;
	if (!header.offset && has_ports && !p->ip.obscure && at + sizeof(ports) <= p->end && !load(skb, at, &ports, sizeof(ports))) {
		p->kind = KIND_PORTS;
		set_ports(p, ports.source, ports.dest);
	}
	return 0;
}

/* Reads an ICMP message. An ICMP error belongs to the flow of the packet that it quotes. That packet went the other way. */
__noinline int read_icmp(struct __sk_buff *skb, struct packet *p) {
	struct addresses quoted = {};
	struct ports ports;
	struct {
		__u8 type, code;
	} head;
	if (!p || load(skb, p->ip.l4, &head, sizeof(head)))
		return 0;
	__u8 type = head.type;
	if (p->ip.v6 ? type >= ICMPV6_INFORMATIONAL : type != ICMP_DEST_UNREACH && type != ICMP_TIME_EXCEEDED && type != ICMP_PARAMETERPROB)
		return 0;
	if (p->ip.v6 ? parse_v6(skb, p->ip.l4 + 8, &quoted) : parse_v4(skb, p->ip.l4 + 8, &quoted))
		return 0;
	if (quoted.obscure || quoted.fragment || (quoted.protocol != IPPROTO_TCP && quoted.protocol != IPPROTO_UDP) ||
	    load(skb, quoted.l4, &ports, sizeof(ports)))
		return 0;
	p->kind = KIND_ERROR;
	set_addresses(p, quoted.destination, quoted.source);
	set_ports(p, ports.dest, ports.source);
	p->key.protocol = quoted.protocol;
	_Bool is_no_route = p->ip.v6 ? type == ICMPV6_DEST_UNREACH && (head.code == ICMPV6_NOROUTE || head.code == ICMPV6_ADDR_UNREACH)
				     : type == ICMP_DEST_UNREACH && (head.code == ICMP_NET_UNREACH || head.code == ICMP_HOST_UNREACH);
	/* Hosts and routers send with one of these TTLs. A packet that a router has forwarded has a lower TTL. */
	_Bool is_next = p->hops == 64 || p->hops == 128 || p->hops == 255;
	p->unreachable = quoted.protocol == IPPROTO_TCP && is_no_route && is_next;
	return 0;
}

static __always_inline void read_tcp(struct __sk_buff *skb, struct packet *p) {
	__u32 header;
	if (p->ip.l4 + sizeof(p->tcp) > p->end || load(skb, p->ip.l4, &p->tcp, sizeof(p->tcp)))
		goto malformed;
	header = p->tcp.doff * 4;
	if (header < sizeof(p->tcp) || p->ip.l4 + header > p->end)
		goto malformed;
	p->kind = KIND_TCP;
	p->payload = p->end - p->ip.l4 - header;
	set_ports(p, p->tcp.source, p->tcp.dest);
	return;
malformed:
	p->malformed = 1;
}

/* Reads a packet. Returns -1 if it is not for the edge. The function is global, so the verifier checks it only once. */
__noinline int read_packet(struct __sk_buff *skb, struct packet *p) {
	struct ports ports;
	if (!p || read_ip(skb, p) || p->malformed)
		return -1;
	set_addresses(p, p->ip.source, p->ip.destination);
	p->key.protocol = p->ip.protocol;
	if (p->ip.fragment)
		return read_fragment(skb, p);
	if (p->ip.obscure) {
		p->malformed = 1;
		return 0;
	}
	switch (p->ip.protocol) {
	case IPPROTO_TCP:
		read_tcp(skb, p);
		return 0;
	case IPPROTO_UDP:
		if (p->ip.l4 + sizeof(ports) > p->end || load(skb, p->ip.l4, &ports, sizeof(ports))) {
			p->malformed = 1;
			return 0;
		}
		p->kind = KIND_PORTS;
		set_ports(p, ports.source, ports.dest);
		if (p->ip.l4 + UDP_HEADER <= p->end)
			p->payload = p->end - p->ip.l4 - UDP_HEADER;
		return 0;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return read_icmp(skb, p);
	default:
		return 0;
	}
}

/*
 * Whether a router may forward a packet between these addresses: neither address is link-local, and the destination is unicast. Loopback
 * and unspecified destinations (127/8, 0/8, ::1, ::) are refused too. The stack decides about the other packets.
 */
static __always_inline _Bool is_routable(const struct addresses *ip) {
	const __u8 *to = ip->destination, *from = ip->source;
	if (ip->v6) {
		__u64 high, low;
		__builtin_memcpy(&high, to, 8);
		__builtin_memcpy(&low, to + 8, 8);
		_Bool is_link = to[0] == 0xfe && (to[1] & 0xc0) == 0x80;
		_Bool is_from_link = from[0] == 0xfe && (from[1] & 0xc0) == 0x80;
		_Bool is_special = !high && (!low || low == bpf_cpu_to_be64(1)); /* :: and ::1 */
		return to[0] != 0xff && !is_link && !is_from_link && !is_special;
	}
	_Bool is_link = to[12] == 169 && to[13] == 254, is_from_link = from[12] == 169 && from[13] == 254;
	return to[12] != 0 && to[12] != 127 && to[12] < 224 && !is_link && !is_from_link;
}

#endif
