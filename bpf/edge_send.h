/* SPDX-License-Identifier: GPL-2.0 */
/* Sends a packet out of another port, as a router does. */
#ifndef STEADFAST_EDGE_SEND_H
#define STEADFAST_EDGE_SEND_H

#include <linux/pkt_cls.h>
#include "edge_abi.h"
#include "edge_packet.h"

#define FAMILY_V4 2
#define FAMILY_V6 10
/* Each interface that carries IPv6 takes IP packets of this length, in bytes. Longer ones need a look at the interface's MTU. */
#define SMALL_PACKET 1280

/* The next hop in a string for the packet's family. Returns -1 if there is none. */
static __always_inline int next_hop(struct packet *p, struct edge_string *string, struct bpf_redir_neigh *to) {
	if (p->ip.v6) {
		__u64 high, low;
		__builtin_memcpy(&high, string->next_hop_v6, 8);
		__builtin_memcpy(&low, string->next_hop_v6 + 8, 8);
		to->nh_family = FAMILY_V6;
		__builtin_memcpy(to->ipv6_nh, string->next_hop_v6, sizeof(to->ipv6_nh));
		return high | low ? 0 : -1;
	}
	to->nh_family = FAMILY_V4;
	to->ipv4_nh = string->next_hop_v4;
	return to->ipv4_nh ? 0 : -1;
}

/* Whether a packet is longer than the MTU of the port. The stack fragments such a packet, or answers with an ICMP error. */
static __always_inline _Bool is_too_big(struct __sk_buff *skb, struct packet *p, __u32 ifindex) {
	__u32 mtu = 0;
	if (p->end <= L3 + SMALL_PACKET)
		return 0;
	return bpf_check_mtu(skb, ifindex, &mtu, 0, skb->gso_size ? BPF_MTU_CHK_SEGS : 0) > 0;
}

/* Decrements the TTL or hop limit. */
static __always_inline int take_hop(struct __sk_buff *skb, struct packet *p) {
	__u32 header = p->ip.v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if ((void *)(long)skb->data + L3 + header > (void *)(long)skb->data_end && bpf_skb_pull_data(skb, L3 + header))
		return -1;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (p->ip.v6) {
		struct ipv6hdr *ip = data + L3;
		if ((void *)(ip + 1) > end)
			return -1;
		ip->hop_limit--;
		/* The hop limit is the low byte of a 16-bit word. IPv6 has no header checksum, so skb->csum must follow the change. */
		bpf_csum_update(skb, (__u16)~bpf_htons(1));
		return 0;
	}
	struct iphdr *ip = data + L3;
	if ((void *)(ip + 1) > end)
		return -1;
	__u32 check = ip->check;
	check += bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
	return 0;
}

/* Replaces the frame's VLAN tag by another one; 0: none. */
static __noinline int retag(struct __sk_buff *skb, __u32 tag) {
	if (skb->vlan_present && bpf_skb_vlan_pop(skb))
		return -1;
	return tag ? bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), tag & EDGE_VLAN_ID) : 0;
}

/*
 * Sends the packet out of a port, with this VLAN tag. `to` is the next hop. If `to` is NULL, this machine's routes name the next hop. The
 * stack must not see the packet after this call, because its TTL has changed.
 */
static __always_inline int send_out(struct __sk_buff *skb, struct packet *p, __u32 ifindex, __u32 tag, struct bpf_redir_neigh *to) {
	if (take_hop(skb, p))
		return TC_ACT_SHOT;
	if ((skb->vlan_present || tag) && retag(skb, tag))
		return TC_ACT_SHOT;
	return bpf_redirect_neigh(ifindex, to, to ? sizeof(*to) : 0, 0);
}

/*
 * Sends the packet into a string. If the agent knows the next hop's link-layer address, the program writes the frame's header itself.
 * Otherwise the neighbour table would hold packets to a dead node for seconds, while it tries to resolve the node's address.
 */
static __always_inline int send_into(struct __sk_buff *skb, struct packet *p, struct edge_string *string, struct bpf_redir_neigh *to) {
	__u64 link = p->ip.v6 ? *(volatile __u64 *)&string->link_v6 : *(volatile __u64 *)&string->link_v4;
	__u8 bytes[8], macs[2 * ETH_ALEN];
	if (!link)
		return send_out(skb, p, string->ifindex, 0, to);
	if (take_hop(skb, p) || (skb->vlan_present && retag(skb, 0)))
		return TC_ACT_SHOT;
	__builtin_memcpy(bytes, &link, sizeof(bytes));
	__builtin_memcpy(macs, bytes, ETH_ALEN);
	__builtin_memcpy(bytes, &string->own_link, sizeof(bytes));
	__builtin_memcpy(macs + ETH_ALEN, bytes, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(string->ifindex, 0);
}

#endif
