/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Who is a client of the primary's, and not a stranger. A client is known once the primary has said something to it that neither opens
 * nor refuses a connection: it says that to nobody who has not completed a handshake.
 *
 * Known clients are bits of their keys' hashes, in two generations: what is noted is noted in the younger one, and the agent ends the older
 * one every few seconds, after it has noted all whose connections are open (crates/linux/src/wire/known.rs). A lost bit is noted
 * again with the primary's next word, so nothing here is atomic. A few strangers seem to be known; a secret hash would keep nobody
 * out who may choose his addresses: he could open a connection from one.
 */
#ifndef STEADFAST_KNOWN_H
#define STEADFAST_KNOWN_H

#include "maps.h"
#include "parse.h"

/* Of a client's key. It is multiplicative (Knuth, TAOCP 3, 6.4): the high bits are good. */
static __always_inline __u64 hash_of(struct client_key *client) {
	__u64 words[3] = {};
	__builtin_memcpy(words, client, sizeof(*client));
	__u64 hash = 0;
	for (int i = 0; i < 3; i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 32;
	}
	return hash;
}

/* Whether the client of a segment that is no SYN is known; the primary's word makes it so. */
static __always_inline _Bool is_known(struct parsed *packet) {
	__u32 zero = 0;
	struct node_state *state = bpf_map_lookup_elem(&node, &zero);
	if (!state)
		return 0;
	struct client_key client = client_of(packet);
	__u32 bit = hash_of(&client) >> (64 - KNOWN_LOG2);
	__u32 younger = (*(volatile __u32 *)&state->known_generation & 1) << (KNOWN_LOG2 - 6) | bit / 64;
	__u32 older = younger ^ 1 << (KNOWN_LOG2 - 6);
	__u64 mask = 1ULL << bit % 64;
	volatile __u64 *bits = bpf_map_lookup_elem(&known, &younger);
	if (!bits)
		return 0;
	if (*bits & mask)
		return 1;
	if (packet->direction == DIRECTION_OUT && !packet->tcp.rst) {
		*bits |= mask;
		return 1;
	}
	bits = bpf_map_lookup_elem(&known, &older);
	return bits && *bits & mask;
}

#endif
