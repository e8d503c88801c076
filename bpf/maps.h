/* SPDX-License-Identifier: GPL-2.0 */
/* The maps. User space pins all of them, so that the log, the counters and the gates outlive the agent. */
#ifndef STEADFAST_MAPS_H
#define STEADFAST_MAPS_H

#include "abi.h"
#include "kernel.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__type(key, struct service_key);
	__type(value, __u32);
} services SEC(".maps");

/* Where the applications of relayed connections listen, with their services. The relay connects to them from its clients' addresses. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__type(key, struct service_key);
	__type(value, __u32);
} applications SEC(".maps");

/* For each VIP, the set of its services: one bit for each. Looked up for packets whose port cannot be read. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__type(key, struct vip);
	__type(value, __u64);
} vips SEC(".maps");

/* The set of all services' ports: one bit for each port number in network byte order. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536 / 64);
	__type(key, __u32);
	__type(value, __u64);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICES_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct service_state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct node_state);
} node SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICES_MAX * REASON_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Ring of the segments of known clients (known.h). Small enough to stay in the CPUs' caches. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} ring SEC(".maps");

/*
 * Ring of known clients' segments for which `ring` has no room, because the agent is late. The agent must read a segment after all
 * records that were reserved before it in either ring. So each record contains the other ring's producer position, which was read before
 * the record was reserved.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 20);
} ring_overflow SEC(".maps");

/*
 * Ring of SYNs, SYN-ACKs, and segments of strangers: clients that are not known (known.h). A flood of them fills no other ring. A
 * connection's first segments are logged here, because its client is not known yet. The agent reads this ring before the other two, so it
 * reads these first segments before the connection's other segments.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ring_open SEC(".maps");

/*
 * Connections that were taken from the primary, or are being taken, while the rest of their service still belongs to the primary. The value
 * is an enum held. The entries are preallocated, because allocating thousands of them during a takeover would delay the agent.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
	__type(key, struct client_key);
	__type(value, __u32);
} held SEC(".maps");

/* The annexes. Key: the service's index times ANNEXES_MAX, plus the annex's index. Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICES_MAX *ANNEXES_MAX);
	__type(key, __u32);
	__type(value, struct annex);
} annexes SEC(".maps");

/*
 * Clients whose connections are not decided yet (restored or reset) while their whole service is taken over. The set has one bit for the
 * hash of each struct client_key. Because of hash collisions a few other clients seem to be in the set, too. The agent maps the bits into
 * its memory, so it adds clients without a system call.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << (UNDECIDED_LOG2 - 6));
	__type(key, __u32);
	__type(value, __u64);
} undecided SEC(".maps");

/* Clients that have completed a handshake: see known.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 << (KNOWN_LOG2 - 6));
	__type(key, __u32);
	__type(value, __u64);
} known SEC(".maps");

/* The acknowledgement number that the primary last sent to each stranger, in network byte order: see known.h. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 15);
	__type(key, struct client_key);
	__type(value, __u32);
} acknowledged SEC(".maps");

/* Caps of clients that are slowed because their logs grow. Looked up only while service_state.caps is 1. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct client_key);
	__type(value, struct cap);
} caps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct client_key);
	__type(value, struct promise);
} promises SEC(".maps");

/*
 * Connections whose process died on this node. The kernel has no socket for them and answers their clients with RSTs. The guard drops these
 * RSTs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct client_key);
	__type(value, __u32);
} dying SEC(".maps");

/* Ring of struct death_record: one record for each socket that a dying process released. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ring_deaths SEC(".maps");

static __always_inline void count_by(__u32 service, enum reason reason, __u64 amount) {
	__u32 key = service * REASON_COUNT + reason;
	__u64 *counter = bpf_map_lookup_elem(&counters, &key);
	if (counter)
		*counter += amount;
}

static __always_inline void count(__u32 service, enum reason reason) { count_by(service, reason, 1); }

#endif
