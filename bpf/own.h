/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Programs on this node that are clients of its services.
 *
 *   connect4, connect6   cgroup: bind such a client to an address that only this node has. Otherwise the kernel would choose the VIP.
 *   loopback             tc egress of lo (loopback.h): the wire for these clients' segments, and the guard of the segments to them.
 *
 * The VIP is an address of this node, so the kernel sends such a client's segments by lo; only `loopback` makes them leave the node.
 * Segments that come back through the wire are redirected into lo. Otherwise the kernel would drop them: it accepts no packet from outside
 * if the source is one of its own addresses.
 */
#ifndef STEADFAST_OWN_H
#define STEADFAST_OWN_H

#include "maps.h"
#include "parse.h"

#define LOOPBACK_IFINDEX 1
#define AF_INET 2
#define SOCK_STREAM 1
#define TCP_MAXSEG 2
#define REFUSE 0 /* connect(2) returns EPERM */
#define ALLOW 1

static __always_inline _Bool same_address(const __u8 *a, const __u8 *b) {
	__u64 one[2], other[2];
	__builtin_memcpy(one, a, 16);
	__builtin_memcpy(other, b, 16);
	return one[0] == other[0] && one[1] == other[1];
}

/* Delivers a segment to a socket of this node, as if it had been sent on this node. */
static __always_inline int deliver_here(struct __sk_buff *skb) {
	__u8 macs[12] = {};
	if (bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0))
		return TC_ACT_SHOT;
	skb->mark = MARK_LOCAL;
	return bpf_redirect(LOOPBACK_IFINDEX, BPF_F_INGRESS);
}

/* Returns the service to which a socket of this network namespace is about to be connected; NULL: none of this node's services. */
static __always_inline struct service_state *connects_to(struct bpf_sock_addr *ctx, struct service_key *key, __u32 *index) {
	__u32 zero = 0;
	struct node_state *state = bpf_map_lookup_elem(&node, &zero);
	__u32 *service = service_of(key->address, key->port);
	if (!service || !state || bpf_get_netns_cookie(ctx) != state->netns_cookie)
		return NULL;
	*index = *service;
	struct service_state *found = bpf_map_lookup_elem(&states, service);
	return found && *(volatile __u32 *)&found->gate != GATE_OFF ? found : NULL;
}

/*
 * Allows a program's connection to a service, from this node's own address and with segments that fit the service interface (on lo they
 * could have 64 KB). Refuses a connection for which this is impossible. `bound` is the address that the program has bound, or zeros.
 */
static __always_inline int admit(struct bpf_sock_addr *ctx, struct service_state *state, __u32 index, const __u8 *bound,
				 struct sockaddr *own, int own_len) {
	static const __u8 none[16] = {}, none4[16] = {[10] = 0xff, [11] = 0xff};
	int mss = state->own_mss;
	_Bool is_bound = !same_address(bound, none) && !same_address(bound, none4);
	if (mss && (is_bound ? same_address(bound, state->own_address) : !bpf_bind(ctx, own, own_len)) &&
	    !bpf_setsockopt(ctx, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof(mss)))
		return ALLOW;
	count(index, REASON_LOCAL_REFUSED);
	return REFUSE;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx) {
	struct service_key key = {.port = ctx->user_port};
	__u32 index;
	map_v4(key.address, ctx->user_ip4);
	struct bpf_sock *sk = ctx->sk;
	if (!sk || ctx->type != SOCK_STREAM)
		return ALLOW;
	struct service_state *state = connects_to(ctx, &key, &index);
	if (!state)
		return ALLOW;
	__u8 bound[16];
	map_v4(bound, sk->src_ip4);
	struct sockaddr_in own = {.sin_family = AF_INET};
	__builtin_memcpy(&own.sin_addr, state->own_address + 12, 4);
	return admit(ctx, state, index, bound, (struct sockaddr *)&own, sizeof(own));
}

/* Runs also for an IPv6 socket that connects to an IPv4 address. */
SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx) {
	struct service_key key = {.port = ctx->user_port};
	__u32 index;
	__be32 to[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	__builtin_memcpy(key.address, to, sizeof(to));
	struct bpf_sock *sk = ctx->sk;
	if (!sk || ctx->type != SOCK_STREAM)
		return ALLOW;
	struct service_state *state = connects_to(ctx, &key, &index);
	if (!state)
		return ALLOW;
	__be32 bound[4] = {sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]};
	struct sockaddr_in6 own = {.sin6_family = AF_INET6};
	__builtin_memcpy(&own.sin6_addr, state->own_address, 16);
	return admit(ctx, state, index, (__u8 *)bound, (struct sockaddr *)&own, sizeof(own));
}

#endif
