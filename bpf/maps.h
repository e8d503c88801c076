/* SPDX-License-Identifier: GPL-2.0 */
/* The maps. User space pins them all, so that log, counters and gate outlive the agent. */
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

/* The services at each VIP, one bit for each: what cannot be read carries no port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES_MAX);
	__type(key, struct vip);
	__type(value, __u64);
} vips SEC(".maps");

/* A bit per port number, as it stands in the packet: whether any service has it. */
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

/* Segments of connections: small enough to stay in the CPUs' caches. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} ring SEC(".maps");

/*
 * Those for which it has no room, because the agent is late. A segment comes after all that was reserved before it came, in
 * either ring: whoever reserves in one looks first how far the other is.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 20);
} ring_overflow SEC(".maps");

/*
 * SYNs, SYN-ACKs, and segments of strangers (known.h): a flood of them fills this ring and nothing else. It is read before the others, so
 * what is in it before a connection is known is read before the rest of that connection.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ring_open SEC(".maps");

/*
 * Connections that are not the primary's any more, or will not be, though their service is: see enum held. Its memory is there from
 * the beginning: in a takeover of thousands making it would hold the agent up.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
	__type(key, struct client_key);
	__type(value, __u32);
} held SEC(".maps");

/*
 * Whose connections are being decided while their whole service is taken over: the bits of struct client_key's hash. That is a set
 * that has a few strangers, too, and telling ten thousand takes the agent no system call.
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

/* What the primary has acknowledged last to strangers, as in its segment: see known.h. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 15);
	__type(key, struct client_key);
	__type(value, __u32);
} acknowledged SEC(".maps");

/* Clients that are slowed, because their logs grow: looked up only while a service has any. */
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

/* Connections whose process died here, by struct client_key: a kernel that has no socket any more answers with a RST. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct client_key);
	__type(value, __u32);
} dying SEC(".maps");

/* Sockets that dying processes released: struct death_record. */
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
