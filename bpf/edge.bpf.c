// SPDX-License-Identifier: GPL-2.0
/*
 * The data path of an edge (docs/edge.md).
 *
 *   edge   tc ingress of each port: sends each packet that enters the cluster into a string, and forwards packets that leave the cluster.
 *   sweep  run by the agent: moves the idle flows of a string that has failed, and counts all flows.
 *
 * The steps for a packet: edge_packet.h reads it, edge_flow.h finds its string, edge_tcp.h follows its connection, edge_cache.h copies it
 * for the cache, edge_send.h sends it on.
 */
#include <linux/pkt_cls.h>
#include "edge_abi.h"
#include "edge_cache.h"
#include "edge_flow.h"
#include "edge_maps.h"
#include "edge_packet.h"
#include "edge_send.h"
#include "edge_tcp.h"

char LICENSE[] SEC("license") = "GPL";

#define PORT_OUTSIDE EDGE_STRINGS_MAX
#define PORT_NONE -1

static __always_inline int to_stack(struct edge_counts *counts, enum edge_count why) {
	counts->counters[why]++;
	return TC_ACT_OK;
}

/* The port at which a frame arrived: a string's index, PORT_OUTSIDE or PORT_NONE. Only frames at the outside port may have a VLAN tag. */
static __always_inline int port_of(struct __sk_buff *skb, struct edge_state *state) {
	__u32 ifindex = skb->ifindex, id = skb->vlan_present ? skb->vlan_tci & EDGE_VLAN_ID : 0;
	if (state->outside.ifindex == ifindex && state->outside.tag == (id ? EDGE_TAGGED | id : 0))
		return PORT_OUTSIDE;
	for (__u32 i = 0; i < EDGE_STRINGS_MAX && i < state->strings; i++)
		if (state->string[i].ifindex == ifindex && !id)
			return i;
	return PORT_NONE;
}

/*
 * Number of packets on the cable that this frame stands for. It is more than one for a GSO frame. Stores the sum of these packets' lengths,
 * headers included, in `bytes`.
 */
static __always_inline __u64 on_the_wire(struct __sk_buff *skb, struct packet *p, __u64 *bytes) {
	__u32 size = skb->gso_size, packets = skb->gso_segs;
	*bytes = skb->len;
	if (!size || p->payload <= size)
		return 1;
	if (!packets)
		packets = (p->payload + size - 1) / size;
	*bytes += (__u64)(packets - 1) * (p->end - p->payload);
	return packets;
}

static __always_inline _Bool is_handshake(struct packet *p, struct edge_flow *flow) {
	return p->kind == KIND_TCP && (p->tcp.syn || flow->syn_ns);
}

/* Counts a packet that is steered, if it is malformed, a fragment or an ICMP error. */
static __always_inline void count_kind(struct packet *p, struct edge_counts *counts) {
	if (p->malformed)
		counts->counters[EDGE_MALFORMED]++;
	if (p->ip.fragment)
		counts->counters[EDGE_FRAGMENTS]++;
	if (p->kind == KIND_ERROR)
		counts->counters[EDGE_ICMP_ERRORS]++;
}

static __always_inline _Bool has_flow(struct packet *p) { return p->kind == KIND_TCP || p->kind == KIND_PORTS; }

/* Handles a packet that arrived at the outside port. */
static __always_inline int enter(struct __sk_buff *skb, struct packet *p, struct edge_state *state, struct edge_counts *counts) {
	struct bpf_redir_neigh to = {};
	struct edge_flow *flow = has_flow(p) || p->kind == KIND_ERROR ? bpf_map_lookup_elem(&flows, &p->key) : NULL;
	if (!flow && (!is_routable(&p->ip) || side_of(state, p) != EDGE_INSIDE))
		return to_stack(counts, EDGE_PASSED_TO_STACK);
	if (p->hops <= 1)
		return to_stack(counts, EDGE_TTL_EXPIRED);
	if (has_flow(p) && (!flow || is_new_connection(p, flow)))
		flow = begin_flow(state, counts, p, 0);
	__u32 index = flow ? string_of(state, counts, flow) : string_without_flow(state, p);
	struct edge_string *string = string_at(state, index);
	if (p->ip.fragment | p->malformed | (p->kind == KIND_ERROR)) {
		count_kind(p, counts);
		if (p->ip.fragment && p->kind == KIND_PORTS)
			remember_fragment(state, p, index);
	}
	if (flow && has_flow(p)) {
		note_activity(string, flow);
		if (is_handshake(p, flow))
			note_handshake(skb, p, flow, counts, index);
		if (p->kind == KIND_TCP && NOW(string->caching_epoch))
			copy_if_needed(skb, p, state, counts, flow);
	}
	if (steering_of(state, string) == EDGE_HELD) {
		counts->counters[EDGE_DROPPED_HELD]++;
		return TC_ACT_SHOT;
	}
	if (next_hop(p, string, &to))
		return to_stack(counts, EDGE_NO_NEXT_HOP);
	if (is_too_big(skb, p, string->ifindex))
		return to_stack(counts, EDGE_TOO_BIG);
	struct edge_traffic *traffic = &counts->traffic[bounded(index)];
	__u64 bytes;
	traffic->entering_packets += on_the_wire(skb, p, &bytes);
	traffic->entering_bytes += bytes;
	return send_into(skb, p, string, &to);
}

/*
 * The flow of a packet that came out of the string `from`, which the other edge has chosen. A learned flow (EDGE_LEARNED: a leaving packet
 * made its entry) moves to the string `from`, unless `from` has failed. In that case the other edge does not know of the failure yet, and
 * the flow keeps its string.
 */
static __always_inline struct edge_flow *flow_leaving(struct packet *p, struct edge_state *state, struct edge_counts *counts,
						      struct edge_flow *flow, __u32 from) {
	if (!flow || is_new_connection(p, flow))
		return begin_flow(state, counts, p, from);
	struct edge_string *string = string_at(state, from);
	if (flow->string == from && flow->generation == NOW(string->generation))
		return flow;
	if (!(flow->flags & EDGE_LEARNED))
		counts->counters[EDGE_OTHER_STRING] += flow->string != from;
	else if (NOW(string->steering) == EDGE_UP)
		give(state, flow, from);
	return flow;
}

/* Handles a packet that came out of the string `from`. */
static __always_inline int leave(struct __sk_buff *skb, struct packet *p, struct edge_state *state, struct edge_counts *counts, __u32 from) {
	struct edge_flow *flow = has_flow(p) ? bpf_map_lookup_elem(&flows, &p->key) : NULL;
	if (!flow && (!is_routable(&p->ip) || side_of(state, p) != EDGE_OUTSIDE))
		return to_stack(counts, EDGE_PASSED_TO_STACK);
	if (p->hops <= 1)
		return to_stack(counts, EDGE_TTL_EXPIRED);
	if (is_too_big(skb, p, state->outside.ifindex))
		return to_stack(counts, EDGE_TOO_BIG);
	if (p->ip.fragment | p->malformed | (p->kind == KIND_ERROR))
		count_kind(p, counts);
	/*
	 * A node of the string reports that it has no route any more. The host must not get this report: the edge will find another string,
	 * but a host in the middle of its handshake would give up.
	 */
	if (p->unreachable && bpf_map_lookup_elem(&flows, &p->key)) {
		counts->counters[EDGE_WITHHELD]++;
		return TC_ACT_SHOT;
	}
	if (has_flow(p))
		flow = flow_leaving(p, state, counts, flow, from);
	if (flow && p->kind == KIND_TCP) {
		struct edge_string *string = string_at(state, flow->string);
		__u32 cap = NOW(string->cap);
		if (is_handshake(p, flow))
			note_handshake(skb, p, flow, counts, flow->string);
		if (cap && p->tcp.ack && !p->tcp.syn && !p->tcp.rst && !is_agent_away(state) && cap_window(skb, p, flow, counts, cap))
			return TC_ACT_SHOT;
		if (NOW(string->caching_epoch))
			copy_if_needed(skb, p, state, counts, flow);
	}
	struct edge_traffic *traffic = &counts->traffic[bounded(from)];
	__u64 bytes;
	traffic->leaving_packets += on_the_wire(skb, p, &bytes);
	traffic->leaving_bytes += bytes;
	return send_out(skb, p, state->outside.ifindex, state->outside.tag, NULL);
}

SEC("tc")
int edge(struct __sk_buff *skb) {
	__u32 zero = 0;
	struct packet p = {};
	struct edge_state *edge_state = bpf_map_lookup_elem(&state, &zero);
	struct edge_counts *edge_counts = bpf_map_lookup_elem(&counts, &zero);
	if (!edge_state || !edge_counts || skb->pkt_type != 0 /* PACKET_HOST */)
		return TC_ACT_OK;
	int port = port_of(skb, edge_state);
	if (port == PORT_NONE)
		return TC_ACT_OK;
	p.direction = port == PORT_OUTSIDE ? EDGE_ENTERING : EDGE_LEAVING;
	if (read_packet(skb, &p)) /* the stack drops a packet whose IPv4 checksum is wrong */
		return to_stack(edge_counts, p.malformed ? EDGE_MALFORMED : EDGE_PASSED_TO_STACK);
	return port == PORT_OUTSIDE ? enter(skb, &p, edge_state, edge_counts) : leave(skb, &p, edge_state, edge_counts, port);
}

struct bpf_map;

/* Counts the flow. Moves the flow if it has the swept string, unless it got this string after the string's last failure. */
static long sweep_flow(struct bpf_map *map, struct edge_flow_key *key, struct edge_flow *flow, struct edge_sweep *swept) {
	__u32 zero = 0;
	struct edge_state *edge_state = bpf_map_lookup_elem(&state, &zero);
	if (!edge_state)
		return 1;
	swept->flows++;
	if (flow->string != swept->string || flow->generation == NOW(string_at(edge_state, flow->string)->generation))
		return 0;
	give(edge_state, flow, slots_string(edge_state, flow->slot));
	swept->moved++;
	return 0;
}

SEC("syscall")
int sweep(struct edge_sweep *arguments) {
	struct edge_sweep swept = {.string = arguments->string};
	bpf_for_each_map_elem(&flows, sweep_flow, &swept, 0);
	arguments->moved = swept.moved;
	arguments->flows = swept.flows;
	return 0;
}
