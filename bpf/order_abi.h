/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The structures that the program of recorded order shares with the agent (crates/linux/src/order.rs) and, in its datagrams, with the library
 * of the primary's server (crates/proto/src/order/datagram.rs).
 */
#ifndef STEADFAST_ORDER_ABI_H
#define STEADFAST_ORDER_ABI_H

#include <linux/types.h>

#define ORDER_RECORD 0x31444653  /* kind of a datagram with bytes of the record */
#define ORDER_RECEIPT 0x31524653 /* kind of a receipt */
#define ORDER_BYTES_MAX 1280     /* bytes of the record in one datagram; a multiple of 8 */
#define ORDER_RING_BYTES (4 << 20)

/* Begins a datagram and is a receipt. All numbers are little-endian. */
struct order_head {
	__u32 kind;
	__u32 len;     /* bytes of the record; 0 in a receipt */
	__u64 cookie;  /* the link */
	__u64 number;  /* position of the first byte; in a receipt, bytes of the record that this node has */
	__u64 tag;
};

/* A link to the primary. The key of the map is its cookie. */
struct order_link {
	__u64 key[2]; /* of SipHash */
	__u64 have;   /* end of the datagrams that are in the ring; written by the program */
};

struct order_state {
	__u64 have;    /* bytes of the record that the agent has; written by the agent */
	__u64 refused; /* datagrams that were dropped without a receipt; written by the program */
	__be16 port;   /* UDP port of the datagrams; written by the agent */
	__u16 unused[3];
};

/* A record of the ring. Only `len` of its bytes follow the length. */
struct order_taken {
	__u64 cookie;
	__u64 from;
	__u64 len;
	union {
		__u8 bytes[ORDER_BYTES_MAX + 8];
		__u64 words[ORDER_BYTES_MAX / 8 + 1];
	};
};

#endif
