/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the eBPF programs and user space share. The Rust side is crates/linux/src/wire/abi.rs; both sides assert the
 * sizes. Addresses and ports are in network byte order, everything else is native.
 */
#ifndef STEADFAST_ABI_H
#define STEADFAST_ABI_H

#include <linux/types.h>

#define SERVICES_MAX 64

/* What a node does with the packets of one service. Changing it is one store: the gate. */
enum mode {
	MODE_OFF = 0,      /* not ours: packets pass untouched */
	MODE_FORWARD = 1,  /* backup without a log: forwards only (the benchmark's baseline) */
	MODE_WIRE = 2,     /* backup: log, then release */
	MODE_TAKEOVER = 3, /* the gate is closed to the old primary; connections become local one by one */
	MODE_SOLE = 4,     /* every connection is local; the old primary stays mute */
	MODE_PRIMARY = 5,  /* the application is here; output must go through the peer's wire */
	MODE_MUTE = 6,     /* the peer speaks alone: nothing passes */
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
	__u32 mode;          /* enum mode, stored by the agent alone */
	__u32 ifindex;       /* the service interface */
	__u8 peer_mac[6];    /* the other node on that interface */
	__u8 own_mac[6];
	__be16 port;         /* of the service */
	__u8 zero[2];
	__u32 holds;         /* enum holds, stored by the agent alone */
	__u32 server_dead;   /* so many listeners' processes died: its kernel's RSTs are not speech; cleared by the agent */
	__u64 deaths;        /* sockets of this service released by dying processes */
	__u64 peer_seen_ns;  /* last packet of the service that the other node sent here, CLOCK_MONOTONIC */
	__u64 epoch;         /* of the mode; for the agent that goes on from here */
	__u64 unlogged;      /* packets that passed unlogged since the agent was away for too long, or were about to when a gate closed */
	__u64 until_ns;      /* the right to speak alone ends then, CLOCK_MONOTONIC; 0: it does not end */
	__u64 hold_until_ns; /* until then nothing that clients send gets to the primary, CLOCK_MONOTONIC */
	__u32 caps;          /* the map `caps` has something for this service; stored by the agent alone */
	__u32 consented;     /* the primary has taken this wire for its backup; for the agent that goes on from here */
	__u8 own_address[16]; /* this node's, which its own programs have as the service's clients; zeros: they are refused */
	__u32 own_mss;       /* bytes of a segment of theirs: it may have to leave this node */
	__u32 crash_codes[8]; /* bit n: of this service's processes, exit code n counts as a crash */
	__u32 doubted;       /* the other node may have gone on alone, and has not said that it did not; for the agent that goes on from here */
};

/* What the maps `held` and `undecided` have for a service. */
enum holds {
	HOLDS_NOTHING = 0, /* nothing */
	HOLDS_SOME = 1,    /* maybe something in `held`; in MODE_TAKEOVER, all clients whose connections are being decided in `undecided` */
	HOLDS_UNTOLD = 2,  /* maybe something in `held`; in MODE_TAKEOVER it is not known yet who is `undecided`, so new connections wait */
};

/* Binary logarithm of the bits in the map `undecided`: with ten thousand clients in it, 12 of 10,000 strangers seem to be, too. */
#define UNDECIDED_LOG2 23

/* Binary logarithm of the bits in each generation of the map `known`: with 100,000 clients, one stranger in 40 seems to be known. */
#define KNOWN_LOG2 22

/* A connection, by its client. */
struct client_key {
	__u8 address[16];
	__be16 port;
	__u16 service;
};

/* The value in `held`: a connection that is not the primary's any more. */
enum held {
	HELD_UNDECIDED = 1, /* being decided: its SYNs wait */
	HELD_DECIDED = 2,   /* local, as long as it lives */
};

/* How far a client may send, by struct client_key: the agent's word. */
struct cap {
	__u32 edge;  /* the first sequence number that it may not send */
	__u32 shift; /* of its window field */
};

/* What such a client was offered: the wire's word. The agent makes it before the cap and removes it after. */
struct promise {
	__u32 edge;
	__u32 certain; /* a segment has passed since: none before it offered more */
};

/* In the ring of deaths: a dying process has released this socket. */
struct death_record {
	struct client_key client; /* zeros if it was a listener */
	__u32 listener;
};

struct node_state {
	__u32 agent_asleep;  /* the agent waits for a wake-up; else it polls and none is sent */
	__u32 known_generation; /* bit 0: which half of the map `known` is the younger generation; stored by the agent alone */
	__u64 netns_cookie;  /* processes of other network namespaces are not ours */
	__u64 agent_seen_ns; /* when the agent last looked at the rings, CLOCK_MONOTONIC */
	__u64 agent_timeout_ns; /* away for longer than this, it does not keep packets from passing */
};

/* Before each packet in the rings; the packet follows from its IP header on. */
struct record {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u32 len;     /* bytes of packet that follow */
	__u16 service; /* index into the state array */
	__u8 direction;
	__u8 flags;
	__u64 after;   /* what is in the other ring of connections before this position comes first */
};

#define RECORD_CHECKSUM_TRUSTED 1 /* verified by hardware or left to it by a sender on this machine */
#define RECORD_CHECKSUM_UNKNOWN 2 /* this kernel does not say whether it was left to hardware */

/* Why a packet went the way it did; one counter each, per service. Names for people: wire/abi.rs. */
enum reason {
	REASON_LOGGED_IN = 0,
	REASON_LOGGED_OUT,
	REASON_LOGGED_BYTES_IN,
	REASON_LOGGED_BYTES_OUT,
	REASON_RING_FULL,         /* could not be logged, so it was dropped; TCP repeats it */
	REASON_LOG_FAILED,        /* copying failed, so it was dropped */
	REASON_FRAGMENT,          /* fragments carry no ports; dropped */
	REASON_MALFORMED,         /* headers cut off; dropped */
	REASON_FOREIGN_VOICE,     /* spoke for the VIP, but is not the primary; dropped */
	REASON_GATE_CLOSED,       /* the old primary spoke after the gate was closed; dropped */
	REASON_HELD,              /* logged during a takeover, its connection was not local yet */
	REASON_PASSED_LOCAL,      /* went to the local stack */
	REASON_ICMP_FORWARDED,    /* an ICMP error that concerns the primary */
	REASON_EGRESS_UNGUARDED,  /* would have left the primary past the wire; dropped */
	REASON_EGRESS_MUTE,       /* this node has no part in the service now; dropped */
	REASON_DEATH_FIN,         /* FIN or RST of a dying process; dropped */
	REASON_SYN_WAITS,         /* a SYN of a client whose connection is being decided; dropped, it comes again */
	REASON_UNLOGGED,          /* passed without being logged: the log is full and the agent is away */
	REASON_EGRESS_EXPIRED,    /* the right to speak has ended; dropped */
	REASON_LED_TO_WIRE,       /* came past the wire: sent there, to be logged */
	REASON_INPUT_HELD,        /* the primary's state stands still while it is copied; dropped, TCP repeats it */
	REASON_LOCAL_REFUSED,     /* a program on this node would not have been a client like any other: its connect(2) failed */
	REASON_CAME_BACK,         /* has been sent to the peer before, which is no primary either; dropped */
	REASON_COUNT,
};

/* skb->mark of packets that the wire releases, so that this node's egress guard knows them. */
#define MARK_RELEASED 0x5f000001
/* sk->mark of sockets that are being restored: not ready for packets yet. */
#define MARK_RESTORING 0x5f000002
/* sk->mark of sockets whose process is dying: their FIN and RST are not speech. */
#define MARK_DYING 0x5f000003

/* skb->mark and sk->mark of what may leave while the node has no right to speak in general: the nft guard lets it. */
#define MARK_SPEAK 0x5f000004
/* The same of a RST, of a connection that was decided: it is said on purpose. */
#define MARK_END 0x5f000005
/* skb->mark of a segment of a client on this node that the wire has let pass: without it, nft refuses what did not come by wire. */
#define MARK_LOCAL 0x5f000006

#ifdef __bpf__
_Static_assert(sizeof(struct service_key) == 20, "service_key");
_Static_assert(sizeof(struct vip) == 16, "vip");
_Static_assert(sizeof(struct service_state) == 144, "service_state");
_Static_assert(sizeof(struct client_key) == 20, "client_key");
_Static_assert(sizeof(struct cap) == 8, "cap");
_Static_assert(sizeof(struct promise) == 8, "promise");
_Static_assert(sizeof(struct death_record) == 24, "death_record");
_Static_assert(sizeof(struct node_state) == 32, "node_state");
_Static_assert(sizeof(struct record) == 24, "record");
#endif

#endif
