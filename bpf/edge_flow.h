/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The table of flows: which string a flow has, when it moves to another string, and in which bucket it is counted. A bucket counts a
 * string's flows whose last entering packet came in the same interval.
 */
#ifndef STEADFAST_EDGE_FLOW_H
#define STEADFAST_EDGE_FLOW_H

#include "edge_abi.h"
#include "edge_maps.h"
#include "edge_packet.h"

/* Reads a word that the agent may change at any time. */
#define NOW(field) (*(volatile typeof(field) *)&(field))

static __always_inline __u64 mixed(__u64 word) {
	word *= 0x9e3779b97f4a7c15ULL;
	return word ^ word >> 32;
}

static __always_inline __u64 end_hash(const __u8 *address, __be16 port) {
	__u64 words[2];
	__builtin_memcpy(words, address, sizeof(words));
	return mixed(mixed(words[0] ^ port) ^ words[1]);
}

/*
 * The slot of a flow. The slot is the same for both directions and at both edges. proto::edge::slot_of computes the same slot. The hash is
 * no secret: an attacker who chooses addresses can put all of their own flows into one slot.
 */
__noinline __u32 slot_of(struct edge_flow_key *key) {
	if (!key)
		return 0;
	__u64 sum = end_hash(key->near, key->near_port) + end_hash(key->far, key->far_port) + key->protocol;
	return mixed(mixed(sum)) & (EDGE_SLOTS - 1);
}

/*
 * Hides a number's bounds from the compiler. A compiler that knows the bounds would leave out a mask, but the verifier does not know the
 * bounds and needs the mask.
 */
static __always_inline __u64 opaque(__u64 number) {
	asm volatile("" : "+r"(number));
	return number;
}

/* A string's index within its bounds. */
static __always_inline __u64 bounded(__u64 index) { return opaque(index) & (EDGE_STRINGS_MAX - 1); }

static __always_inline __u32 slots_string(struct edge_state *state, __u32 slot) {
	return NOW(state->slots[opaque(slot) & (EDGE_SLOTS - 1)]);
}

static __always_inline struct edge_string *string_at(struct edge_state *state, __u32 index) { return &state->string[bounded(index)]; }

/* Whether the agent has been away for longer than its timeout. */
static __always_inline _Bool is_agent_away(struct edge_state *state) {
	__u64 now = bpf_ktime_get_coarse_ns(), seen = NOW(state->agent_seen_ns);
	return now > seen && now - seen > state->agent_timeout_ns;
}

/* How packets of a string are steered. Only the agent ends EDGE_HELD, so while the agent is away, EDGE_HELD counts as EDGE_DOWN. */
static __always_inline __u32 steering_of(struct edge_state *state, struct edge_string *string) {
	__u32 steering = NOW(string->steering);
	return steering == EDGE_HELD && is_agent_away(state) ? EDGE_DOWN : steering;
}

/* Adds a flow to the bucket `now` of a string. */
static __always_inline void enter_bucket(struct edge_string *string, __u32 now) {
	__u64 *bucket = &string->buckets[now & (EDGE_BUCKETS - 1)];
	__u64 was = NOW(*bucket);
	if (was >> 32 != now && __sync_val_compare_and_swap(bucket, was, (__u64)now << 32 | 1) == was)
		return;
	__sync_fetch_and_add(bucket, 1);
}

/* Takes a flow out of the bucket in which it is counted. */
static __always_inline void leave_bucket(struct edge_string *string, struct edge_flow *flow) {
	__u32 number = flow->bucket;
	__u64 *bucket = &string->buckets[number & (EDGE_BUCKETS - 1)];
	__u64 was = NOW(*bucket);
	if (number && was >> 32 == number && (__u32)was)
		__sync_fetch_and_add(bucket, -1);
	flow->bucket = 0;
}

/* Counts the flow in the current bucket, because a packet of the flow enters the string. */
static __always_inline void note_activity(struct edge_string *string, struct edge_flow *flow) {
	__u32 now = bpf_ktime_get_coarse_ns() >> EDGE_BUCKET_SHIFT;
	if (flow->bucket == now)
		return;
	leave_bucket(string, flow);
	enter_bucket(string, now);
	flow->bucket = now;
}

/* Gives the flow to a string. */
static __always_inline void give(struct edge_state *state, struct edge_flow *flow, __u32 string) {
	if (flow->string != string)
		leave_bucket(string_at(state, flow->string), flow);
	flow->string = string;
	flow->generation = NOW(string_at(state, string)->generation);
}

/* The string of a flow that has an entering packet. Moves the flow if this string has failed since the flow got it. */
static __always_inline __u32 string_of(struct edge_state *state, struct edge_counts *counts, struct edge_flow *flow) {
	struct edge_string *string = string_at(state, flow->string);
	if (flow->generation == NOW(string->generation) && steering_of(state, string) != EDGE_DOWN)
		return flow->string & (EDGE_STRINGS_MAX - 1);
	__u32 from = flow->string, generation = flow->generation;
	__u32 to = slots_string(state, flow->slot);
	give(state, flow, to);
	if (from != to || flow->generation != generation)
		counts->counters[EDGE_MOVED]++;
	return to;
}

/* Whether this packet is the SYN of a new connection, which replaces the flow's earlier connection. */
static __always_inline _Bool is_new_connection(struct packet *p, struct edge_flow *flow) {
	if (p->kind != KIND_TCP || !p->tcp.syn || p->tcp.ack || p->tcp.rst)
		return 0;
	__u8 same = p->direction == EDGE_LEAVING ? EDGE_OPENED | EDGE_OPENER_FAR : EDGE_OPENED;
	return (flow->flags & (EDGE_OPENED | EDGE_OPENER_FAR)) != same || flow->isn != bpf_ntohl(p->tcp.seq);
}

/*
 * Makes the entry of a flow, or resets the entry of the flow's earlier connection. A flow that begins with an entering packet gets the
 * string of its slot. A flow that begins with a leaving packet has the string `from`.
 */
static __noinline struct edge_flow *begin_flow(struct edge_state *state, struct edge_counts *counts, struct packet *p, __u32 from) {
	__u32 slot = slot_of(&p->key);
	_Bool learned = p->direction == EDGE_LEAVING;
	__u32 string = learned ? from & (EDGE_STRINGS_MAX - 1) : slots_string(state, slot);
	struct edge_flow *flow = bpf_map_lookup_elem(&flows, &p->key);
	counts->counters[EDGE_NEW_FLOWS]++;
	if (flow) {
		give(state, flow, string);
		flow->flags = learned ? EDGE_LEARNED : 0;
		flow->syn_ns = 0;
		return flow;
	}
	struct edge_flow fresh = {
		.generation = NOW(string_at(state, string)->generation),
		.slot = slot,
		.string = string,
		.flags = learned ? EDGE_LEARNED : 0,
	};
	bpf_map_update_elem(&flows, &p->key, &fresh, BPF_NOEXIST); /* if another CPU was faster, its entry is as good */
	return bpf_map_lookup_elem(&flows, &p->key);
}

/* Remembers the string of an IP packet. `p` is the packet's first fragment. */
__noinline int remember_fragment(struct edge_state *state, struct packet *p, __u32 string) {
	if (!state || !p)
		return -1;
	struct edge_fragment_key key = {.id = p->fragment_id, .protocol = p->ip.protocol};
	struct edge_fragment value = {.string = string, .generation = NOW(string_at(state, string)->generation)};
	__builtin_memcpy(key.source, p->ip.source, 16);
	__builtin_memcpy(key.destination, p->ip.destination, 16);
	return bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
}

/*
 * The string of a packet without a flow. A fragment follows its packet's first fragment. The string of any other packet follows from its
 * addresses.
 */
__noinline __u32 string_without_flow(struct edge_state *state, struct packet *p) {
	if (!state || !p)
		return 0;
	if (p->kind == KIND_FRAGMENT) {
		struct edge_fragment_key key = {.id = p->fragment_id, .protocol = p->ip.protocol};
		__builtin_memcpy(key.source, p->ip.source, 16);
		__builtin_memcpy(key.destination, p->ip.destination, 16);
		struct edge_fragment *first = bpf_map_lookup_elem(&fragments, &key);
		if (first) {
			struct edge_string *string = string_at(state, first->string);
			if (first->generation == NOW(string->generation) && steering_of(state, string) != EDGE_DOWN)
				return first->string & (EDGE_STRINGS_MAX - 1);
		}
	}
	return slots_string(state, slot_of(&p->key));
}

/* The side of the packet's destination. */
static __always_inline __u32 side_of(struct edge_state *state, struct packet *p) {
	struct edge_subnet key = {.prefix = 128};
	__builtin_memcpy(key.address, p->ip.destination, 16);
	__u32 *side = bpf_map_lookup_elem(&subnets, &key);
	return side ? *side : state->default_side;
}

#endif
