/* SPDX-License-Identifier: GPL-2.0 */
/* The edge's maps. User space pins all of them, so that flows, steering and counters outlive the agent. */
#ifndef STEADFAST_EDGE_MAPS_H
#define STEADFAST_EDGE_MAPS_H

#include "edge_abi.h"
#include "kernel.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct edge_state);
} state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 20);
	__type(key, struct edge_flow_key);
	__type(value, struct edge_flow);
} flows SEC(".maps");

/* For each fragmented packet whose first fragment was seen: the string that it takes. Only the first fragment has the ports. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct edge_fragment_key);
	__type(value, struct edge_fragment);
} fragments SEC(".maps");

/* enum edge_side of destinations. Looked up only for packets that belong to no known flow. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct edge_subnet);
	__type(value, __u32);
} subnets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edge_counts);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} ring SEC(".maps");

#endif
