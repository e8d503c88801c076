/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Definitions that the edge's eBPF programs and user space share. The Rust side is crates/linux/src/edge/abi.rs; both sides assert the
 * sizes. Addresses and ports are in network byte order, everything else is native.
 */
#ifndef STEADFAST_EDGE_ABI_H
#define STEADFAST_EDGE_ABI_H

#include <linux/types.h>

#define EDGE_STRINGS_MAX 8
#define EDGE_SLOTS 1024

/* A flow is counted in the time bucket in which its last entering packet came. 16 buckets of 67 ms are a little more than one second. */
#define EDGE_BUCKETS 16
#define EDGE_BUCKET_SHIFT 26

/* The side of a subnet, seen from this edge. */
enum edge_side {
	EDGE_OUTSIDE = 0, /* on the same side as the outside port */
	EDGE_INSIDE = 1,  /* behind the cluster: packets to the subnet are steered into a string */
	EDGE_LOCAL = 2,   /* this machine, or reached without the cluster */
};

/* Treatment of packets that enter a string. Only the agent stores it. */
enum edge_steering {
	EDGE_UP = 0,
	EDGE_HELD = 1, /* the packets are dropped until the string's flows have another string */
	EDGE_DOWN = 2, /* the string's flows move to other strings */
};

/* The entering packets that are copied for the cache: proto::edge::cache::CachePolicy. */
enum edge_policy {
	EDGE_CACHE_NONE = 0,
	EDGE_CACHE_SYN = 1,
	EDGE_CACHE_LOWEST = 2,
	EDGE_CACHE_ALL = 3,
};

/* The second packet that the cache holds of a connection: proto::edge::cache::SecondPacket. */
enum edge_second {
	EDGE_SECOND_NEWEST = 0,
	EDGE_SECOND_ACKNOWLEDGEMENT = 1,
};

struct edge_port {
	__u32 ifindex;
	__u16 tag; /* 0: untagged frames; otherwise EDGE_TAGGED and a VLAN id */
	__u8 zero[2];
};

#define EDGE_TAGGED 0x1000
#define EDGE_VLAN_ID 0x0fff

struct edge_string {
	__u32 ifindex;
	__u32 was_up;           /* 1: both edges have heard the string; kept for a later agent */
	__be32 next_hop_v4;     /* 0: none */
	__u32 steering;         /* enum edge_steering */
	__u8 next_hop_v6[16];   /* zeros: none */
	__u32 generation;       /* a flow with another generation moves at its next entering packet */
	__u32 caching_epoch;    /* 0: no copies. Otherwise the number of the current period of caching, unique over all strings. */
	__u32 cap;              /* most bytes that the window in a leaving packet may offer; 0: no limit */
	__u32 copies_entering;  /* 1: while caching_epoch is not 0, all entering packets are copied, needed or not */
	__u64 epoch;            /* number of the string's last failure; kept for a later agent, as the next two */
	__u64 lost_ns;          /* when both edges last ceased to hear the string, CLOCK_MONOTONIC; 0: they always heard it */
	__u64 hold_ns;          /* how long they must hear it before it returns */
	/* Link-layer addresses. The agent stores each as one word: the six bytes of the address, a zero byte, a byte 1. 0: not known. */
	__u64 own_link;         /* of this port */
	__u64 link_v4;          /* of the IPv4 next hop */
	__u64 link_v6;          /* of the IPv6 next hop */
	__u64 buckets[EDGE_BUCKETS]; /* high half: number of the bucket; low half: flows that were last active in it */
};

/* The only element of the map `state`. */
struct edge_state {
	struct edge_port outside;
	__u32 strings;
	__u32 default_side;      /* enum edge_side, for destinations that are not in the map `subnets` */
	__u32 policy;            /* enum edge_policy */
	__u32 agent_asleep;      /* 1: the agent waits for a wake-up; 0: it polls, and no wake-up is sent */
	__u64 agent_seen_ns;     /* when the agent last stored that it is alive, CLOCK_MONOTONIC */
	__u64 agent_timeout_ns;  /* if agent_seen_ns is older than this, no packet is dropped and no window is capped */
	__u64 netns_cookie;      /* of the edge's network namespace */
	__u32 last_caching_epoch; /* the highest caching_epoch so far; used by the agent alone */
	__u32 second;            /* enum edge_second */
	__u64 zero;
	struct edge_string string[EDGE_STRINGS_MAX];
	__u8 slots[EDGE_SLOTS];  /* the string of each slot */
};

/* Key of the map `subnets`. */
struct edge_subnet {
	__u32 prefix; /* in bits, including the 96 bits that IPv4 addresses have in common */
	__u8 address[16]; /* IPv4 as ::ffff:a.b.c.d */
};

/* `near` is the end on the side of the outside port, `far` is the end behind the cluster. */
struct edge_flow_key {
	__u8 near[16];
	__u8 far[16];
	__be16 near_port;
	__be16 far_port;
	__u8 protocol;
	__u8 zero[3];
};

/*
 * The sequence numbers that the agent's cache holds of a flow: proto::edge::CacheMirror. From them, the programs know which packets may
 * change the cache, and copy those. A packet in the cache *waits* until it is acknowledged.
 */
struct edge_mirror {
	/*
	 * The string's caching_epoch when this mirror was stored. If the string's caching_epoch differs now, the cache holds nothing of the
	 * flow.
	 */
	__u32 caching_epoch;
	__u32 held_seq;      /* first sequence number of the lowest waiting packet */
	__u32 held_end;      /* sequence number after this packet */
	__u32 highest;       /* the highest acknowledgement number that the cache has seen */
	__u32 fin_end;       /* the sequence number after the FIN that entered */
	__u8 flags;          /* enum edge_mirror_flag */
	__u8 zero[3];
};

enum edge_mirror_flag {
	MIRROR_HELD = 1,      /* held_seq and held_end are valid */
	MIRROR_HELD_SYN = 2,  /* the held packet is a SYN */
	MIRROR_HIGHEST = 4,   /* highest is valid */
	MIRROR_FIN_IN = 8,    /* fin_end is valid */
	MIRROR_FIN_OUT = 16,  /* a FIN has left */
	MIRROR_DEEP = 32,     /* the lowest waiting packet was acknowledged, and the next one is not known */
	MIRROR_UNSURE = 64,   /* it is not known what the cache holds, so every packet may change the cache */
};

struct edge_flow {
	__u32 generation; /* the string's generation when the flow got the string */
	__u16 slot;
	__u8 string;
	__u8 flags;       /* enum edge_flow_flag */
	__u32 bucket;     /* number of the bucket in which the flow is counted; 0: in none */
	__u32 isn;        /* sequence number of the SYN, if EDGE_OPENED */
	__u64 syn_ns;     /* when the SYN passed; 0: the handshake is not measured */
	__u8 near_scale;  /* window scales, if both ends announced one */
	__u8 far_scale;
	__u8 zero[2];
	struct edge_mirror mirror;
	__u32 zero2;
};

enum edge_flow_flag {
	EDGE_LEARNED = 1,      /* a leaving packet began the flow: the flow follows its leaving packets to their string */
	EDGE_OPENED = 2,       /* the SYN was seen */
	EDGE_OPENER_FAR = 4,   /* the SYN was a leaving packet */
	EDGE_ANSWERED = 8,     /* the SYN-ACK was seen */
	EDGE_NEAR_SCALES = 16, /* the near end announced a window scale */
	EDGE_FAR_SCALES = 32,
	EDGE_UNCAPPED = 64,    /* counted in EDGE_UNCAPPED_FLOWS: its window cannot be capped, because a side's SYN was not seen */
};

/* Key of the map `fragments`: a packet whose first fragment was seen. */
struct edge_fragment_key {
	__u8 source[16];
	__u8 destination[16];
	__u32 id;
	__u8 protocol;
	__u8 zero[3];
};

struct edge_fragment {
	__u32 generation;
	__u32 string;
};

/* Counters. crates/linux/src/edge/abi.rs has their names. */
enum edge_count {
	EDGE_PASSED_TO_STACK = 0,
	EDGE_NEW_FLOWS,
	EDGE_MOVED,
	EDGE_DROPPED_HELD,
	EDGE_OTHER_STRING,
	EDGE_CAPPED,
	EDGE_UNCAPPED_FLOWS,
	EDGE_COPIED,
	EDGE_COPY_LOST,
	EDGE_MALFORMED,
	EDGE_NO_NEXT_HOP,
	EDGE_FRAGMENTS,
	EDGE_ICMP_ERRORS,
	EDGE_TTL_EXPIRED,
	EDGE_TOO_BIG,
	EDGE_WITHHELD, /* dropped ICMP errors of nodes that have lost their route; the edge will find another string */
	EDGE_COUNTS,
};

struct edge_traffic {
	__u64 entering_bytes;
	__u64 entering_packets;
	__u64 leaving_bytes;
	__u64 leaving_packets;
	__u64 handshakes;   /* number of measured handshakes */
	__u64 handshake_ns; /* sum of their times from SYN to first ACK */
};

/* The only element of the map `counts`, for each CPU. */
struct edge_counts {
	__u64 counters[EDGE_COUNTS];
	struct edge_traffic traffic[EDGE_STRINGS_MAX];
};

/* Header of each record in the ring. The packet follows, from its IP header on. */
struct edge_record {
	__u64 time_ns;   /* CLOCK_MONOTONIC */
	__u32 len;       /* bytes of packet that follow */
	__u32 whole_len; /* length of the whole packet in bytes */
	__u16 gso_size;  /* 0: one segment */
	__u8 string;
	__u8 direction;  /* enum edge_direction */
	__u8 flags;      /* RECORD_CHECKSUM_TRUSTED, RECORD_CHECKSUM_UNKNOWN */
	__u8 zero[3];
};

enum edge_direction {
	EDGE_ENTERING = 0,
	EDGE_LEAVING = 1,
};

/* Argument and result of the program `sweep`. */
struct edge_sweep {
	__u32 string; /* EDGE_STRINGS_MAX or more: move nothing, only count */
	__u32 zero;
	__u64 moved;
	__u64 flows;
};

#ifdef __bpf__
_Static_assert(sizeof(struct edge_port) == 8, "edge_port");
_Static_assert(sizeof(struct edge_string) == 224, "edge_string");
_Static_assert(sizeof(struct edge_state) == 64 + 8 * 224 + 1024, "edge_state");
_Static_assert(sizeof(struct edge_subnet) == 20, "edge_subnet");
_Static_assert(sizeof(struct edge_flow_key) == 40, "edge_flow_key");
_Static_assert(sizeof(struct edge_flow) == 56, "edge_flow");
_Static_assert(sizeof(struct edge_fragment_key) == 40, "edge_fragment_key");
_Static_assert(sizeof(struct edge_counts) == EDGE_COUNTS * 8 + 8 * 48, "edge_counts");
_Static_assert(sizeof(struct edge_record) == 24, "edge_record");
_Static_assert(sizeof(struct edge_sweep) == 24, "edge_sweep");
#endif

#endif
