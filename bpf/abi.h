/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Definitions that the eBPF programs and user space share. The Rust side is crates/linux/src/wire/abi.rs; both sides assert the
 * sizes. Addresses and ports are in network byte order, everything else is native.
 */
#ifndef STEADFAST_ABI_H
#define STEADFAST_ABI_H

#include <linux/types.h>

#define SERVICES_MAX 64

/* The gate: what a node does with the packets of one service. The agent changes it by one store. */
enum gate {
	GATE_OFF = 0,      /* this node has no part in the service: packets pass untouched */
	GATE_WIRE = 1,     /* backup: log, then release */
	GATE_TAKEOVER = 2, /* the gate is closed to the old primary; connections become local one by one */
	GATE_SOLE = 3,     /* every connection is local; the old primary stays mute */
	GATE_PRIMARY = 4,  /* the application is here; output must go through the peer's wire */
	GATE_MUTE = 5,     /* the peer speaks alone: nothing passes */
};

enum direction {
	DIRECTION_IN = 0,  /* client to server */
	DIRECTION_OUT = 1, /* server to client */
};

struct service_key {
	__u8 address[16]; /* IPv4 as ::ffff:a.b.c.d */
	__be16 port;
	__u8 zero[2];
};

struct vip {
	__u8 address[16]; /* as in struct service_key */
};

struct service_state {
	__u32 gate;          /* enum gate, stored by the agent alone */
	__u32 ifindex;       /* the service interface */
	__u8 peer_mac[6];    /* the other node on that interface */
	__u8 own_mac[6];
	__be16 port;         /* of the service */
	__u16 immediate;     /* 1: packets pass unlogged while the rings are full (commit mode `immediate`); stored by the agent alone */
	__u32 holds;         /* enum holds, stored by the agent alone */
	/* Number of listeners whose process died. While it is not 0, this kernel's RSTs are dropped. Cleared by the agent. */
	__u32 server_dead;
	__u64 deaths;        /* number of this service's sockets that dying processes released */
	__u64 peer_seen_ns;  /* when the other node last sent a packet of the service here, CLOCK_MONOTONIC */
	__u64 epoch;         /* epoch of the gate, kept for a successor of the agent */
	/* Number of packets that were not logged because the rings were full. Each packet is counted before its gate is read, so the number
	   includes packets that a closed gate then dropped. */
	__u64 unlogged;
	__u64 until_ns;      /* end of the right to speak alone, CLOCK_MONOTONIC; 0: no end */
	__u64 hold_until_ns; /* until this time no payload and no FIN of a client reaches the primary, CLOCK_MONOTONIC; 0: no hold */
	__u32 caps;          /* 1: the map `caps` may have entries for this service; stored by the agent alone */
	__u32 consented;     /* 1: the primary accepted this wire as its backup; kept for a successor of the agent */
	__u8 own_address[16]; /* address from which this node's own programs use the service; zeros: their connections are refused */
	__u32 own_mss;       /* MSS in bytes of the connections of this node's own programs: segments must fit the service interface */
	__u32 crash_codes[8]; /* bit n is set if exit code n of this service's processes counts as a crash */
	/*
	 * Not 0: the other node may have gone on alone, and has not denied it yet. Bit 0: this node is the primary. Bits 1 to 31: lowest
	 * bits of the epoch. Kept for a successor of the agent.
	 */
	__u32 doubted;
	/*
	 * Commit modes `pr` and `immediate`: until this time, CLOCK_MONOTONIC, the primary sends segments straight to their clients, and only
	 * copies without payload to the wire. 0: everything goes through the wire. Stored by the agent alone.
	 */
	__u64 direct_until_ns;
};

/* Whether the programs must look at the maps `held` and `undecided` for a service. */
enum holds {
	HOLDS_NOTHING = 0, /* neither map has an entry */
	HOLDS_SOME = 1,    /* `held` may have entries; in GATE_TAKEOVER, `undecided` has all clients whose connections are being decided */
	HOLDS_UNTOLD = 2,  /* `held` may have entries; in GATE_TAKEOVER, `undecided` is not filled yet, so all SYNs wait */
};

/*
 * Binary logarithm of the number of bits in the map `undecided`. With 10,000 clients in the map, 12 of 10,000 other clients are false
 * positives.
 */
#define UNDECIDED_LOG2 23

/*
 * Binary logarithm of the number of bits in a generation of the map `known`. With 100,000 clients in the map, one stranger in 40 seems
 * known.
 */
#define KNOWN_LOG2 22

/* Key of a connection: its client and its service. */
struct client_key {
	__u8 address[16];
	__be16 port;
	__u16 service;
};

/* Value in the map `held`, for a connection that no longer belongs to the primary (docs/migration.md). */
enum held {
	HELD_UNDECIDED = 1, /* being decided: its SYNs wait */
	HELD_DECIDED = 2,   /* local until the connection ends */
	HELD_RESERVED = 3,  /* to move here; the other node may still keep it */
	HELD_VIA_PEER = 4,  /* reversed, on the backup: local, but all its segments pass the primary first, which logs them */
	HELD_LOGGED = 5,    /* reversed, on the primary: lives on the backup; this node logs its segments and sends them on */
	HELD_FROZEN = 6,    /* moves to the other node, which has not spoken yet: this node's socket is silent, and may go on */
	HELD_LEFT = 7,      /* on the backup: was HELD_FROZEN until the primary spoke; on the primary, it becomes HELD_LOGGED */
	HELD_ANNEX = 0x100, /* lives on an annex, whose index is in the lowest byte; on the wire and the primary (docs/annex.md) */
	HELD_LEAVING = 0x200, /* as HELD_RESERVED, of a connection that lives on an annex, whose index is in the lowest byte */
};

/* Maximum number of annexes of a service. A power of two. */
#define ANNEXES_MAX 8

/* An annex on a service's interface. */
struct annex {
	__u8 mac[6];
	__u8 zero[2];
};

/* How far a slowed client may send. Key: struct client_key. Written by the agent. */
struct cap {
	__u32 edge;  /* the first sequence number that the client may not send */
	__u32 shift; /* scale of the window field in segments to the client */
};

/*
 * How far a slowed client was allowed to send so far. Updated by the wire. The agent adds a promise before the client's cap, and removes
 * the promise after the cap.
 */
struct promise {
	__u32 edge;
	__u32 certain; /* 1: a segment has passed since the promise was added, so `edge` covers all earlier offers */
};

/* Record in the ring of deaths: a dying process has released this socket. */
struct death_record {
	struct client_key client; /* zeros if it was a listener */
	__u32 listener;
};

struct node_state {
	__u32 agent_asleep;  /* 1: the agent waits for a wake-up; 0: it polls, and no wake-up is sent */
	__u32 known_generation; /* bit 0: number of the half of the map `known` that is the younger generation; stored by the agent alone */
	__u64 netns_cookie;  /* the node's network namespace; sockets of other namespaces are ignored */
	__u64 agent_seen_ns; /* when the agent last looked at the rings, CLOCK_MONOTONIC */
	__u64 agent_timeout_ns; /* when the agent has been away for longer than this, packets pass unlogged if the rings are full */
};

/* The only constants that user space sets before it loads the programs. */
struct settings {
	__u8 chunks_only; /* 1: copy in 1 KB chunks even where the kernel has bpf_dynptr_copy (for tests of the fallback) */
	__u8 is_annex;    /* 1: this node has connections for the wires of other nodes (docs/annex.md) */
};

/* Header of each record in the rings. The packet follows, from its IP header on. */
struct record {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u32 len;     /* bytes of packet that follow */
	__u16 service; /* index into the state array */
	__u8 direction;
	__u8 flags;
	__u64 after;   /* end of the other ring (`ring` or `ring_overflow`) before this record was reserved: read that ring up to there first */
};

#define RECORD_CHECKSUM_TRUSTED 1 /* hardware verified the checksum, or a sender on this machine left the checksum to hardware */
#define RECORD_CHECKSUM_UNKNOWN 2 /* this kernel does not say whether the checksum was left to hardware */
#define RECORD_CUT 4              /* a copy whose payload was cut off (CUT_BIT) */

/*
 * Marks a copy without payload in the TCP header: the first reserved bit, in the byte of the data offset. If the segment had payload, its
 * length in bytes stands in place of the payload (__be32). The TCP checksum of a copy is wrong.
 */
#define CUT_BIT 0x08
/*
 * Marks a segment of a reversed connection that the primary has logged and sends back to the backup: the second reserved bit of that byte.
 * The backup removes the mark. Without it, the backup could not tell such a segment from what the primary said before the connection moved.
 */
#define LOGGED_BIT 0x04

/* Counters of each service: one for each outcome of a packet with its reason, and two sums of bytes. wire/abi.rs has readable names. */
enum reason {
	REASON_LOGGED_IN = 0,
	REASON_LOGGED_OUT,
	REASON_LOGGED_BYTES_IN,
	REASON_LOGGED_BYTES_OUT,
	REASON_RING_FULL,         /* the rings have no room to log it; dropped, TCP repeats it */
	REASON_LOG_FAILED,        /* copying it into the ring failed; dropped */
	REASON_FRAGMENT,          /* a fragment, whose ports cannot be read; dropped */
	REASON_MALFORMED,         /* a packet whose TCP header cannot be read; dropped */
	REASON_FOREIGN_VOICE,     /* a segment from the VIP that the expected node did not send; dropped */
	REASON_GATE_CLOSED,       /* the old primary spoke after the gate was closed; dropped */
	REASON_HELD,              /* logged during a takeover because its connection was not local yet; not passed on */
	REASON_PASSED_LOCAL,      /* passed to the local stack */
	REASON_ICMP_FORWARDED,    /* an ICMP error about a segment of the primary; sent on to the primary */
	REASON_EGRESS_UNGUARDED,  /* a segment of the primary that would have bypassed the wire; dropped */
	REASON_EGRESS_MUTE,       /* this node is mute for the service; dropped */
	REASON_DEATH_FIN,         /* a FIN or RST of a dying process; dropped, or only the FIN removed from data */
	REASON_SYN_WAITS,         /* a SYN of a client whose connection is being decided; dropped, TCP repeats it */
	REASON_UNLOGGED,          /* passed without being logged: the rings are full, and the agent is away or the commit mode is `immediate` */
	REASON_EGRESS_EXPIRED,    /* the right to speak has ended; dropped */
	REASON_LED_TO_WIRE,       /* a client's segment that bypassed the wire and reached the primary; sent to the wire, to be logged */
	REASON_INPUT_HELD,        /* a client's input while the primary's state is copied; dropped, TCP repeats it */
	REASON_LOCAL_REFUSED,     /* a program on this node could not be treated like any other client; its connect(2) failed */
	REASON_CAME_BACK,         /* the peer has sent back this packet for the primary, so neither node is the primary; dropped */
	REASON_SENT_DIRECTLY,     /* a segment that the primary sent straight to its client; a copy without payload went to the wire */
	REASON_CARRIED_IN,        /* a client's segment that this node, which is no wire, sent to the annex that has the connection */
	REASON_CARRIED_OUT,       /* an annex's segment that this node sent on */
	REASON_COUNT,
};

/* skb->mark of packets that the wire releases: this node's egress guard lets them pass. */
#define MARK_RELEASED 0x5f000001
/* sk->mark of sockets that are being restored: they are not ready for packets yet. */
#define MARK_RESTORING 0x5f000002
/* sk->mark of sockets whose process is dying: the guard drops their FIN and RST. */
#define MARK_DYING 0x5f000003

/*
 * skb->mark and sk->mark of segments that the nft guard lets out although the node has no general right to speak. The guard still drops
 * RSTs.
 */
#define MARK_SPEAK 0x5f000004
/* As MARK_SPEAK, but for the deliberate RST of a connection that was decided: the guard lets this RST out. */
#define MARK_END 0x5f000005
/*
 * skb->mark of segments of clients on this node that the wire has let pass. nft refuses incoming segments that have neither this mark nor
 * MARK_SPEAK, because they did not come through the wire.
 */
#define MARK_LOCAL 0x5f000006
/* skb->mark of a segment that the primary's guard sends straight to its client. A rule routes these segments by the main table. */
#define MARK_DIRECT 0x5f000007
/* skb->mark of the copy of such a segment that goes to the wire. The guard cuts its payload off. */
#define MARK_CUT 0x5f000008

#ifdef __bpf__
_Static_assert(sizeof(struct service_key) == 20, "service_key");
_Static_assert(sizeof(struct vip) == 16, "vip");
_Static_assert(sizeof(struct service_state) == 152, "service_state");
_Static_assert(sizeof(struct client_key) == 20, "client_key");
_Static_assert(sizeof(struct cap) == 8, "cap");
_Static_assert(sizeof(struct promise) == 8, "promise");
_Static_assert(sizeof(struct death_record) == 24, "death_record");
_Static_assert(sizeof(struct node_state) == 32, "node_state");
_Static_assert(sizeof(struct record) == 24, "record");
_Static_assert(sizeof(struct annex) == 8, "annex");
#endif

#endif
