/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Decides which clients are known and which are strangers. A client becomes known when the primary sends it something that shows a
 * completed handshake: payload, a FIN, or two acknowledgements with different numbers. A single acknowledgement does not show it. Before
 * the handshake is complete, Linux answers segments outside the window with acknowledgements. All these acknowledgements have the
 * acknowledgement number of the SYN-ACK, and Linux does not limit their rate if the segments have payload (tcp_check_req,
 * tcp_oow_rate_limited). So the map `acknowledged` keeps the last acknowledgement number that was sent to each of the most recent
 * strangers.
 *
 * The map `known` has one bit for the hash of each known client's key, in two generations. The programs set bits in the younger generation.
 * Every few seconds the agent starts a new generation with the clients of all open connections and forgets the oldest
 * (crates/linux/src/wire/known.rs). Nothing here needs to be atomic, because a later segment of the primary sets a lost bit again: any
 * segment but a RST while the older generation has the bit, otherwise a segment that shows a completed handshake. Because of hash
 * collisions a few strangers seem to be known. The hash is not secret. A secret hash would not stop an attacker who can choose addresses:
 * this attacker becomes known anyway, by opening a connection.
 */
#ifndef STEADFAST_KNOWN_H
#define STEADFAST_KNOWN_H

#include "maps.h"
#include "parse.h"

/* Hash of a client's key. It is multiplicative (Knuth, TAOCP 3, 6.4), so use the high bits. */
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

/*
 * Whether a segment from the primary shows that the stranger's handshake is complete. Stores the acknowledgement number of a segment that
 * has neither payload nor FIN.
 */
static __noinline _Bool shows_handshake(struct __sk_buff *skb, struct parsed *packet) {
	if (!packet->tcp.syn && has_payload_or_fin(skb, packet))
		return 1;
	struct client_key client = client_of(packet);
	__u32 number = packet->tcp.ack_seq;
	__u32 *last = bpf_map_lookup_elem(&acknowledged, &client);
	if (last && *last == number)
		return 0;
	bpf_map_update_elem(&acknowledged, &client, &number, BPF_ANY);
	return last && !packet->tcp.syn; /* a SYN-ACK begins a new connection */
}

/* Whether the client of a segment is known. A segment from the primary can make the client known. A SYN always counts as a stranger's. */
static __always_inline _Bool is_known(struct __sk_buff *skb, struct parsed *packet) {
	_Bool is_word = packet->direction == DIRECTION_OUT && !packet->tcp.rst;
	if (packet->tcp.syn) {
		if (is_word)
			shows_handshake(skb, packet);
		return 0;
	}
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
	volatile __u64 *bits_before = bpf_map_lookup_elem(&known, &older);
	_Bool was_known = bits_before && *bits_before & mask;
	if (!is_word || (!was_known && !shows_handshake(skb, packet)))
		return was_known;
	*bits |= mask;
	return 1;
}

#endif
