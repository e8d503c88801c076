// SPDX-License-Identifier: GPL-2.0
/*
 * The wire and the guards.
 *
 *   wire   tc ingress of the service interface: on the backup, logs each packet of a service, then releases it.
 *   guard  tc egress of the same interface: drops segments of a VIP if this node has no right to speak for it.
 *   death  cgroup/sock_release: marks the sockets of dying processes, so that the guard can drop their FIN and RST.
 *   loopback, connect4, connect6: wire and guard of clients on this node itself (own.h).
 *
 * The connection table is in the agent, which reads the rings. The maps have only single facts about clients: see maps.h.
 */
#include <linux/pkt_cls.h>
#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "parse.h"
#include "local.h"
#include "log.h"
#include "cap.h"
#include "cut.h"
#include "known.h"
#include "own.h"
#include "release.h"
#include "returned.h"
#include "settings.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline __u32 gate_now(struct service_state *state) { return *(volatile __u32 *)&state->gate; }

/* Passes a segment to the local stack. A new connection takes over the segment's mark, and its SYN-ACK does so too (tcp_fwmark_accept). */
static __always_inline int pass_local(struct __sk_buff *skb, struct parsed *packet, _Bool is_new) {
	if (is_new)
		skb->mark = MARK_SPEAK;
	count(packet->service, REASON_PASSED_LOCAL);
	return TC_ACT_OK;
}

/* The connection's value of enum held. 0: the connection belongs to the primary. */
static __always_inline __u32 held_as(struct parsed *packet, struct service_state *state) {
	if (*(volatile __u32 *)&state->holds == HOLDS_NOTHING)
		return 0;
	struct client_key client = client_of(packet);
	__u32 *as = bpf_map_lookup_elem(&held, &client);
	return as ? *as : 0;
}

/* Whether the connection lives on an annex, whose segments the wire logs like the primary's. */
static __always_inline _Bool is_annexed(__u32 held_now) { return held_now & HELD_ANNEX; }

/* Whether a connection lives on the backup, or moves there, and this node, the primary, logs its segments. */
static __always_inline _Bool lives_there(__u32 held_now) { return held_now == HELD_LOGGED || held_now == HELD_FROZEN; }

/* Whether a connection is the primary's or an annex's, so that a wire passes it: on a wire. */
static __always_inline _Bool lives_behind(__u32 held_now) {
	return !held_now || held_now == HELD_FROZEN || held_now == HELD_LEFT || is_annexed(held_now);
}

/* The other node speaks on a connection that moves there, or the client begins another one. So this node's socket may not go on. */
static __always_inline void note_speech(struct parsed *packet, struct service_state *state) {
	if (held_as(packet, state) != HELD_FROZEN)
		return;
	struct client_key client = client_of(packet);
	__u32 left = gate_now(state) == GATE_PRIMARY ? HELD_LOGGED : HELD_LEFT;
	bpf_map_update_elem(&held, &client, &left, BPF_EXIST);
}

/* The MAC address of the annex on which the packet's connection lives. NULL: on the primary. */
static __noinline __u8 *annex_of(struct parsed *packet, struct service_state *state) {
	__u32 held_now = held_as(packet, state);
	if (!is_annexed(held_now))
		return NULL;
	__u32 place = packet->service * ANNEXES_MAX + (held_now & (ANNEXES_MAX - 1));
	struct annex *annex = bpf_map_lookup_elem(&annexes, &place);
	return annex ? annex->mac : NULL;
}

/* Whether a client's segment would change the primary's state, which is being copied. */
static __always_inline _Bool is_input_held(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	__u64 until = *(volatile __u64 *)&state->hold_until_ns;
	if (!until || packet->direction != DIRECTION_IN || bpf_ktime_get_ns() >= until)
		return 0;
	return has_payload_or_fin(skb, packet);
}

/*
 * Handles a client's segment during a takeover of its connection. If the local stack already has a socket for the segment, the segment goes
 * there, otherwise into the log. This program reserves a record first, then looks for the socket. The agent makes a socket ready first,
 * then reads the ring. So either the program sees the socket, or the agent sees the record.
 */
static __always_inline int take(struct __sk_buff *skb, struct parsed *packet) {
	enum local local = find_local(skb, packet);
	if (local)
		return pass_local(skb, packet, local == LOCAL_COOKIE);
	struct bpf_dynptr bytes;
	__u32 len = skb->len - L3;
	__u64 after = bpf_ringbuf_query(&ring, BPF_RB_PROD_POS);
	if (bpf_ringbuf_reserve_dynptr(&ring_overflow, reserved_len(len), 0, &bytes)) {
		bpf_ringbuf_discard_dynptr(&bytes, BPF_RB_NO_WAKEUP);
		return dropped(packet->service, REASON_RING_FULL);
	}
	publish_before_looking();
	local = find_local(skb, packet);
	if (local) {
		bpf_ringbuf_discard_dynptr(&bytes, BPF_RB_NO_WAKEUP);
		return pass_local(skb, packet, local == LOCAL_COOKIE);
	}
	if (fill(skb, packet, &bytes, len, after)) {
		bpf_ringbuf_discard_dynptr(&bytes, BPF_RB_NO_WAKEUP);
		return dropped(packet->service, REASON_LOG_FAILED);
	}
	bpf_ringbuf_submit_dynptr(&bytes, wakeup());
	return dropped(packet->service, REASON_HELD);
}

#define NOT_REFUSED -1

/*
 * Returns the reason why this node does not log this segment and send it on now, or NOT_REFUSED. A single connection's gate is its entry in
 * `held`. For a reversed connection, the primary is the wire.
 */
static __always_inline int refusal(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	__u32 gate = gate_now(state), held_now = held_as(packet, state);
	if (!(gate == GATE_WIRE && lives_behind(held_now)) && !(gate == GATE_PRIMARY && lives_there(held_now)))
		return REASON_GATE_CLOSED;
	return is_input_held(skb, packet, state) ? REASON_INPUT_HELD : NOT_REFUSED;
}

/*
 * Logs a packet before it is released. The program publishes a record first, then looks at the gate (and at the hold). The agent closes a
 * gate first, then reads the ring. So either the program sees the closed gate, or the agent sees the record.
 */
#define LOG_INTO(ring_name, other_position)                                                                                            \
	static __always_inline int log_into_##ring_name(struct __sk_buff *skb, struct parsed *packet,                  \
							struct service_state *state) {                                 \
		struct bpf_dynptr bytes;                                                                               \
		__u32 len = skb->len - L3;                                                                             \
		__u64 after = other_position;                                                                          \
		if (bpf_ringbuf_reserve_dynptr(&ring_name, reserved_len(len), 0, &bytes)) {                            \
			bpf_ringbuf_discard_dynptr(&bytes, BPF_RB_NO_WAKEUP);                                          \
			return REASON_RING_FULL;                                                                       \
		}                                                                                                      \
		publish_before_looking();                                                                              \
		int refused = refusal(skb, packet, state);                                                             \
		if (refused != NOT_REFUSED) {                                                                          \
			bpf_ringbuf_discard_dynptr(&bytes, BPF_RB_NO_WAKEUP);                                          \
			return refused;                                                                                \
		}                                                                                                      \
		if (fill(skb, packet, &bytes, len, after)) {                                                           \
			bpf_ringbuf_discard_dynptr(&bytes, BPF_RB_NO_WAKEUP);                                          \
			return REASON_LOG_FAILED;                                                                      \
		}                                                                                                      \
		bpf_ringbuf_submit_dynptr(&bytes, wakeup());                                                           \
		return packet->direction == DIRECTION_IN ? REASON_LOGGED_IN : REASON_LOGGED_OUT;                       \
	}
LOG_INTO(ring, bpf_ringbuf_query(&ring_overflow, BPF_RB_PROD_POS))
LOG_INTO(ring_overflow, bpf_ringbuf_query(&ring, BPF_RB_PROD_POS))
LOG_INTO(ring_open, 0)

static __always_inline int log_segment(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (!is_known(skb, packet))
		return log_into_ring_open(skb, packet, state);
	int outcome = log_into_ring(skb, packet, state);
	return outcome == REASON_RING_FULL ? log_into_ring_overflow(skb, packet, state) : outcome;
}

/* Whether the connection of a packet's client is, or may be, being decided. */
static __always_inline _Bool is_undecided(struct parsed *packet) {
	struct client_key client = client_of(packet);
	__u32 bit = hash_of(&client) >> (64 - UNDECIDED_LOG2), word = bit / 64;
	volatile __u64 *bits = bpf_map_lookup_elem(&undecided, &word);
	return !bits || *bits >> bit % 64 & 1;
}

/*
 * Handles a SYN while the service is taken over. The listener must not contradict what was sent for a connection that is being decided. The
 * program reads the gate, `holds`, the bits of `undecided` and the sockets. The agent stores them in the opposite order (docs/wire.md, SYNs
 * during a takeover).
 */
static __always_inline int take_syn(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	full_barrier(); /* the caller has read the gate */
	_Bool is_told = *(volatile __u32 *)&state->holds == HOLDS_SOME;
	full_barrier();
	_Bool waits = !is_told || is_undecided(packet);
	full_barrier();
	if (waits && !find_local(skb, packet))
		return dropped(packet->service, REASON_SYN_WAITS);
	return pass_local(skb, packet, 1);
}

/* Handles a client's segment of a connection that was or is being taken over, while the rest of its service stays with the primary. */
static __noinline int take_held(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (!packet->tcp.syn)
		return take(skb, packet);
	__u32 held_now = held_as(packet, state);
	full_barrier(); /* the agent makes a socket ready before it stores HELD_DECIDED */
	if (find_local(skb, packet) == LOCAL_READY)
		return pass_local(skb, packet, 0);
	if (held_now != HELD_DECIDED && held_now != HELD_VIA_PEER)
		return dropped(packet->service, REASON_SYN_WAITS);
	/* The old connection is over. This SYN begins a new connection, which belongs to the primary. */
	struct client_key client = client_of(packet);
	bpf_map_delete_elem(&held, &client);
	int outcome = log_into_ring_open(skb, packet, state);
	count(packet->service, outcome);
	return outcome == REASON_LOGGED_IN ? release_to_primary(skb, packet, state) : TC_ACT_SHOT;
}

/* Whether this node has the right to speak: its lease, or what the arbiter has granted, has not ended (docs/DESIGN.md, section 4). */
static __always_inline _Bool may_speak(struct service_state *state) {
	__u64 until = *(volatile __u64 *)&state->until_ns;
	return !until || bpf_ktime_get_ns() < until;
}

/* Whether a segment is a client's SYN. */
static __always_inline _Bool opens(struct parsed *packet) { return packet->direction == DIRECTION_IN && packet->tcp.syn; }

/*
 * Handles a segment of a reversed connection on the backup, where its socket is. A client's segment first goes to the primary. A segment that
 * comes back from the primary with its mark has been logged there: a client's goes to the socket, the socket's to the client. The guard
 * leads the socket's segments to the primary.
 */
static __always_inline int carry_reversed(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	_Bool is_logged = from_peer(skb, state) && is_returned(packet);
	if (packet->direction == DIRECTION_OUT && !is_logged)
		return dropped(packet->service, REASON_FOREIGN_VOICE);
	if (is_returned(packet) && mark_returned(skb, packet, 0)) /* a client must not set the mark */
		return TC_ACT_SHOT;
	/* If this node stood still for longer than its lease, the primary may have gone on with the connection meanwhile. */
	if (packet->direction == DIRECTION_OUT)
		return may_speak(state) ? release_to_client(skb, packet, state) : dropped(packet->service, REASON_EGRESS_EXPIRED);
	if (!is_logged)
		return release_to_peer(skb, state);
	int verdict = take_held(skb, packet, state);
	return verdict == TC_ACT_OK && same_address(packet->ip.source, state->own_address) ? deliver_here(skb) : verdict;
}

/* Whether the agent has been away for longer than its timeout. Then a full log must not stop the service. */
static __always_inline _Bool agent_is_away(void) {
	__u32 zero = 0;
	struct node_state *state = bpf_map_lookup_elem(&node, &zero);
	return state && bpf_ktime_get_ns() - *(volatile __u64 *)&state->agent_seen_ns > state->agent_timeout_ns;
}

/* Whether packets of a service pass unlogged while the rings are full. */
static __always_inline _Bool is_immediate(struct service_state *state) { return *(volatile __u16 *)&state->immediate; }

/*
 * Handles a segment for which no ring has room. The segment passes unlogged if the agent is away or the commit mode is `immediate`, and no
 * gate is closed to the segment. This program checks the gates twice. The first check keeps refused segments out of the count, because the
 * agent takes each counted segment for a gap in the log. The second check follows the counting, just as the gate is read after a record is published. So either this program
 * sees the closed gate, or the agent sees the count after it closed the gate.
 */
static __noinline int pass_unlogged(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	int refused = refusal(skb, packet, state);
	if (refused != NOT_REFUSED)
		return refused;
	if (!is_immediate(state) && !agent_is_away())
		return REASON_RING_FULL;
	count_before_looking(&state->unlogged);
	refused = refusal(skb, packet, state);
	return refused == NOT_REFUSED ? REASON_UNLOGGED : refused;
}

/*
 * Ends the handling of a copy without payload. The wire drops it, because its client has the whole segment. A copy that was not logged is no
 * gap in the log: what the copies say is a lower bound.
 */
static __always_inline int log_cut(struct parsed *packet, int outcome, __u32 len) {
	if (outcome == REASON_LOGGED_OUT)
		count_by(packet->service, REASON_LOGGED_BYTES_OUT, len);
	return dropped(packet->service, outcome);
}

/* Sends a client's segment to the node on which its connection lives. */
static __noinline int release_to_server(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	__u8 *mac = annex_of(packet, state);
	return mac ? release_to(skb, state, mac) : release_to_primary(skb, packet, state);
}

/* Whether a service's segment comes from the node on which its connection lives. */
static __noinline _Bool from_server(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	__u8 *mac = annex_of(packet, state);
	if (mac)
		return comes_from(skb, mac);
	if (!from_peer(skb, state))
		return 0;
	state->peer_seen_ns = bpf_ktime_get_ns();
	return 1;
}

/* Sends a logged segment on. The primary sends a reversed connection's segments back to the backup, in both directions. */
static __always_inline int release_logged(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (gate_now(state) == GATE_PRIMARY)
		return mark_returned(skb, packet, 1) ? TC_ACT_SHOT : release_to_peer(skb, state);
	if (packet->direction == DIRECTION_OUT)
		return withhold_if_any(skb, packet, state) ? TC_ACT_SHOT : release_to_client(skb, packet, state);
	return release_to_server(skb, packet, state);
}

static __always_inline int log_and_release(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (packet->direction == DIRECTION_OUT && !from_server(skb, packet, state))
		return dropped(packet->service, REASON_FOREIGN_VOICE);
	__u32 len = skb->len - L3;
	if (packet->direction == DIRECTION_OUT || packet->tcp.syn)
		note_speech(packet, state);
	int outcome = log_segment(skb, packet, state);
	if (is_cut(packet))
		return log_cut(packet, outcome, len);
	if (outcome == REASON_RING_FULL)
		outcome = pass_unlogged(skb, packet, state);
	count(packet->service, outcome);
	switch (outcome) {
	case REASON_LOGGED_IN:
		count_by(packet->service, REASON_LOGGED_BYTES_IN, len);
		return release_logged(skb, packet, state);
	case REASON_LOGGED_OUT:
		count_by(packet->service, REASON_LOGGED_BYTES_OUT, len);
		return release_logged(skb, packet, state);
	case REASON_UNLOGGED:
		return release_logged(skb, packet, state);
	case REASON_GATE_CLOSED:
		if (packet->direction == DIRECTION_OUT)
			return TC_ACT_SHOT;
		if (gate_now(state) == GATE_WIRE)
			return take_held(skb, packet, state);
		return packet->tcp.syn ? take_syn(skb, packet, state) : take(skb, packet);
	default:
		return TC_ACT_SHOT;
	}
}

/* An ICMP error goes to the node that sent the quoted segment. */
static __always_inline int pass_icmp(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	__u32 held_now = held_as(packet, state);
	if (gate_now(state) != GATE_WIRE || !lives_behind(held_now))
		return TC_ACT_OK;
	int verdict = release_to_server(skb, packet, state);
	if (verdict != TC_ACT_SHOT)
		count(packet->service, REASON_ICMP_FORWARDED);
	return verdict;
}

/* Whether a connection lives on the other node, moves here, or is being decided, on a node whose other connections are all local. */
static __always_inline _Bool is_elsewhere(__u32 held_now) {
	return lives_there(held_now) || held_now == HELD_RESERVED || held_now == HELD_UNDECIDED;
}

/* Handles a client's segment of such a connection while this node takes the connection. */
static __noinline int take_reversed(struct __sk_buff *skb, struct parsed *packet) {
	if (packet->tcp.syn && !find_local(skb, packet))
		return dropped(packet->service, REASON_SYN_WAITS);
	return take(skb, packet);
}

/*
 * Handles a segment of a connection that lives on an annex, on a primary whose wire does not pass the annex's packets, because it is gone or is
 * a new one (docs/annex.md). A new wire logs the connection like the primary's.
 */
static __noinline int carry_annexed(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	static const __u8 none[6] = {};
	__u8 *mac = annex_of(packet, state);
	_Bool has_wire = gate_now(state) == GATE_PRIMARY;
	if (!mac || same_mac(mac, none))
		return TC_ACT_SHOT; /* this node has not asked the annex yet */
	if (comes_from(skb, mac) != (packet->direction == DIRECTION_OUT))
		return dropped(packet->service, REASON_FOREIGN_VOICE);
	if (packet->direction == DIRECTION_IN) {
		if (has_wire && !from_peer(skb, state))
			return lead_to_wire(skb, packet, state);
		count(packet->service, REASON_CARRIED_IN);
		return release_to(skb, state, mac);
	}
	if (!has_wire && !may_speak(state))
		return dropped(packet->service, REASON_EGRESS_EXPIRED);
	count(packet->service, REASON_CARRIED_OUT);
	return has_wire ? release_to_peer(skb, state) : release_to_client(skb, packet, state);
}

/* Whether this node, which is no wire, passes a segment for an annex. A client's SYN begins a connection of this node. */
static __always_inline _Bool is_carried(struct parsed *packet, struct service_state *state, __u32 gate) {
	if ((gate != GATE_PRIMARY && gate != GATE_SOLE) || !is_annexed(held_as(packet, state)))
		return 0;
	if (!opens(packet))
		return 1;
	struct client_key client = client_of(packet);
	bpf_map_delete_elem(&held, &client);
	return 0;
}

/*
 * Whether a client's segment from the wire belongs to a connection that has moved here from an annex, although this node's agent has not heard
 * it yet: its socket is here, made before the wire guided the segment here.
 */
static __noinline _Bool has_arrived(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (packet->direction != DIRECTION_IN || gate_now(state) != GATE_PRIMARY || !from_peer(skb, state))
		return 0;
	enum local local = find_socket(skb, packet);
	return local == LOCAL_READY || local == LOCAL_RESTORING;
}

/*
 * Handles a segment that the primary has sent back to the backup, as a reversed connection's wire, and that the backup has sent here again: the
 * backup does not have the connection any more. So the connection is an ordinary one of this primary from now on. If the primary has no socket
 * for it either, its stack answers with a RST. The agent learns it from the mark in its log.
 */
static __always_inline int take_home(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (find_socket(skb, packet) == LOCAL_READY) /* of before the move: the agent lets it go on, or destroys it */
		return dropped(packet->service, REASON_GATE_CLOSED);
	int outcome = log_segment(skb, packet, state);
	count(packet->service, outcome);
	if (outcome != REASON_LOGGED_IN || mark_returned(skb, packet, 0))
		return TC_ACT_SHOT;
	struct client_key client = client_of(packet);
	bpf_map_delete_elem(&held, &client);
	return same_address(packet->ip.source, state->own_address) ? deliver_here(skb) : TC_ACT_OK;
}

/* Handles a segment at any gate except GATE_OFF. At GATE_PRIMARY, the segment belongs to a reversed connection. */
static __always_inline int carry(struct __sk_buff *skb, struct parsed *packet, struct service_state *state, __u32 gate) {
	switch (gate) {
	case GATE_WIRE:
		if (held_as(packet, state) == HELD_VIA_PEER && !opens(packet))
			return carry_reversed(skb, packet, state);
		return log_and_release(skb, packet, state);
	case GATE_PRIMARY:
		if (packet->direction == DIRECTION_IN && is_returned(packet) && from_peer(skb, state))
			return take_home(skb, packet, state);
		return log_and_release(skb, packet, state);
	case GATE_TAKEOVER:
		if (packet->direction == DIRECTION_OUT)
			return dropped(packet->service, REASON_GATE_CLOSED);
		return packet->tcp.syn ? take_syn(skb, packet, state) : take(skb, packet);
	case GATE_SOLE:
		if (packet->direction == DIRECTION_OUT)
			return dropped(packet->service, REASON_GATE_CLOSED);
		return is_elsewhere(held_as(packet, state)) ? take_reversed(skb, packet) : TC_ACT_OK;
	default: /* GATE_MUTE */
		return dropped(packet->service, REASON_EGRESS_MUTE);
	}
}

/* Whether this primary logs a segment as the wire of a reversed connection. */
static __always_inline _Bool is_logged_here(struct parsed *packet, struct service_state *state) {
	return lives_there(held_as(packet, state)) && !opens(packet);
}

/*
 * Handles a segment that reaches the primary, of a connection that moves here from the backup, or a SYN of a reversed connection's client. A
 * SYN that the backup sends here begins a new connection, because the backup has no socket of the old one any more.
 */
static __always_inline int reach_reversed(struct __sk_buff *skb, struct parsed *packet, struct service_state *state, _Bool is_from_peer) {
	if (packet->direction == DIRECTION_OUT)
		return dropped(packet->service, REASON_GATE_CLOSED);
	if (!lives_there(held_as(packet, state)))
		return take_reversed(skb, packet);
	if (!is_from_peer)
		return release_to_peer(skb, state);
	if (find_socket(skb, packet) == LOCAL_READY) /* of before the move: the agent lets it go on, or destroys it */
		return dropped(packet->service, REASON_SYN_WAITS);
	struct client_key client = client_of(packet);
	log_into_ring_open(skb, packet, state); /* the agent forgets the old connection */
	bpf_map_delete_elem(&held, &client);
	return same_address(packet->ip.source, state->own_address) ? deliver_here(skb) : TC_ACT_OK;
}

/* Handles a segment that reaches the primary. */
static __always_inline int reach_primary(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	_Bool is_from_wire = from_peer(skb, state);
	if (is_from_wire)
		state->peer_seen_ns = bpf_ktime_get_ns();
	if (is_elsewhere(held_as(packet, state)))
		return reach_reversed(skb, packet, state, is_from_wire);
	if (packet->direction == DIRECTION_OUT) {
		if (is_from_wire && same_address(packet->ip.destination, state->own_address))
			return deliver_here(skb);
		return dropped(packet->service, REASON_FOREIGN_VOICE);
	}
	if (is_from_wire)
		return same_address(packet->ip.source, state->own_address) ? deliver_here(skb) : TC_ACT_OK;
	/*
	 * A neighbour that does not know the wire yet has sent this segment. The primary must not accept a segment that the wire has not
	 * logged.
	 */
	return lead_to_wire(skb, packet, state);
}

/* Whether a service lets an unreadable packet pass. The packet may belong to the service. `leaves`: the packet leaves this node. */
__noinline int lets_unread_pass(__u32 service, __u32 leaves) {
	struct service_state *state = bpf_map_lookup_elem(&states, &service);
	__u32 gate = state ? gate_now(state) : GATE_OFF;
	return gate == GATE_OFF || (leaves && (gate == GATE_SOLE || gate == GATE_TAKEOVER) && may_speak(state));
}

/*
 * Handles an unreadable packet to or from a VIP. The packet's service is unknown, so it passes only if every service at the VIP lets it
 * pass. Such a packet cannot be logged, so only a node that speaks alone may send it.
 */
static __noinline int pass_unread(__u64 services, enum verdict verdict, _Bool leaves) {
	for (__u32 i = 0; i < SERVICES_MAX && services; i++, services >>= 1) {
		if (services & 1 && !lets_unread_pass(i, leaves))
			return dropped(i, verdict == PARSE_FRAGMENT ? REASON_FRAGMENT : REASON_MALFORMED);
	}
	return TC_ACT_OK;
}

SEC("tc")
int wire(struct __sk_buff *skb) {
	struct parsed packet = {};
	if (skb->pkt_type != 0 /* PACKET_HOST: a switch has flooded a frame for another node, or it is a broadcast */)
		return TC_ACT_OK;
	enum verdict verdict = parse(skb, &packet);
	if (verdict == PARSE_OTHER)
		return TC_ACT_OK;
	if (verdict == PARSE_FRAGMENT || verdict == PARSE_MALFORMED)
		return pass_unread(services_at(packet.ip.destination) | services_at(packet.ip.source), verdict, 0);
	__u32 service = packet.service;
	struct service_state *state = bpf_map_lookup_elem(&states, &service);
	if (!state || gate_now(state) == GATE_OFF)
		return TC_ACT_OK;
	if (verdict == PARSE_ICMP)
		return pass_icmp(skb, &packet, state);
	__u32 gate = gate_now(state);
	if (is_carried(&packet, state, gate) && !has_arrived(skb, &packet, state))
		return carry_annexed(skb, &packet, state);
	if (gate == GATE_PRIMARY && !is_logged_here(&packet, state))
		return reach_primary(skb, &packet, state);
	return carry(skb, &packet, state, gate);
}

/* Whether the process behind a segment's socket, or behind the relay that has the socket, is dying or dead. */
static __always_inline _Bool is_of_dying(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (skb->mark == MARK_DYING)
		return 1;
	if (!state->deaths || (skb->mark != MARK_SPEAK && skb->mark != MARK_END))
		return 0;
	struct client_key client = client_of(packet);
	return !!bpf_map_lookup_elem(&dying, &client);
}

/*
 * Drops the FIN or RST of a process that died. From a segment with data and a FIN, it removes the FIN and lets the data pass. Other
 * segments of the dying socket without data are dropped as well: their sequence numbers are behind the FIN. A client that got such a
 * segment would ignore the survivor, which continues the connection at a sequence number before the FIN.
 */
static __always_inline int silence_death(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	__u32 payload_at = packet->ip.l4 + packet->tcp.doff * 4;
	_Bool is_empty = skb->len <= payload_at;
	if (is_empty && is_of_dying(skb, packet, state))
		return dropped(packet->service, REASON_DEATH_FIN);
	if (!packet->tcp.syn && !packet->tcp.fin && !packet->tcp.rst)
		return TC_ACT_OK;
	if (packet->tcp.syn)
		return TC_ACT_OK;
	struct client_key client = client_of(packet);
	_Bool is_dying = skb->mark == MARK_DYING || bpf_map_lookup_elem(&dying, &client);
	if (packet->tcp.rst && (is_dying || state->server_dead))
		return dropped(packet->service, REASON_DEATH_FIN);
	if (!packet->tcp.fin || !is_dying)
		return TC_ACT_OK;
	count(packet->service, REASON_DEATH_FIN);
	if (is_empty)
		return TC_ACT_SHOT;
	__u32 at = packet->ip.l4 + 12; /* data offset and flags */
	__be16 before, after;
	if (bpf_skb_load_bytes(skb, at, &before, sizeof(before)))
		return TC_ACT_SHOT;
	after = before & ~bpf_htons(1);
	if (bpf_l4_csum_replace(skb, packet->ip.l4 + 16, before, after, sizeof(after)) ||
	    bpf_skb_store_bytes(skb, at, &after, sizeof(after), 0))
		return TC_ACT_SHOT;
	return TC_ACT_OK;
}

/*
 * Whether a segment is an annex's answer to a segment for which it has no socket. Its wire has the connection's log, so a RST would end what
 * the wire can continue. The RST of a connection's own socket has this socket.
 */
static __always_inline _Bool is_stray_reset(struct __sk_buff *skb, struct parsed *packet) {
	if (!settings.is_annex || !packet->tcp.rst)
		return 0;
	struct bpf_sock *socket = skb->sk;
	struct bpf_sock *full = socket ? bpf_sk_fullsock(socket) : NULL;
	return !full || !full->dst_port;
}

/* Whether this node's own stack may send this segment for the VIP now. The callers take care of the segment's route. */
static __always_inline int may_leave(struct __sk_buff *skb, struct parsed *packet, struct service_state *state, __u32 gate) {
	__u32 service = packet->service, held_now = held_as(packet, state);
	if (packet->tcp.syn) { /* a new connection of this client: forget that the process of an earlier connection died */
		struct client_key client = client_of(packet);
		bpf_map_delete_elem(&dying, &client);
	}
	if (gate != GATE_OFF && (held_now == HELD_FROZEN || held_now == HELD_LEFT))
		return dropped(service, REASON_EGRESS_MUTE);
	switch (gate) {
	case GATE_WIRE:
		if (!held_now) {
			if (is_update(skb, packet, state) && !withhold(skb, packet))
				return TC_ACT_OK;
			return dropped(service, REASON_EGRESS_MUTE);
		}
		if (held_now == HELD_VIA_PEER) /* the primary lets a reversed connection's segments pass, or not */
			return silence_death(skb, packet, state);
		return may_speak(state) ? TC_ACT_OK : dropped(service, REASON_EGRESS_EXPIRED);
	case GATE_MUTE:
		return dropped(service, REASON_EGRESS_MUTE);
	case GATE_PRIMARY:
		if (lives_there(held_now) || held_now == HELD_RESERVED || is_annexed(held_now))
			return dropped(service, REASON_EGRESS_MUTE);
		if (is_stray_reset(skb, packet))
			return dropped(service, REASON_EGRESS_MUTE);
		return silence_death(skb, packet, state);
	case GATE_TAKEOVER:
	case GATE_SOLE:
		if (gate == GATE_SOLE && (lives_there(held_now) || held_now == HELD_RESERVED || is_annexed(held_now)))
			return dropped(service, REASON_EGRESS_MUTE);
		return may_speak(state) ? TC_ACT_OK : dropped(service, REASON_EGRESS_EXPIRED);
	default: /* GATE_OFF */
		return TC_ACT_OK;
	}
}

/* Whether the primary may send a segment straight to its client now. */
static __always_inline _Bool may_go_directly(struct service_state *state) {
	__u64 until = *(volatile __u64 *)&state->direct_until_ns;
	return until && bpf_ktime_get_ns() < until;
}

/*
 * Commit mode `pr`: sends a segment of the primary straight to its client, and a copy without payload to the wire. The copy goes first. The
 * copy and the segment both come to this program again, which cuts the copy (MARK_CUT) and checks the segment's right to leave (MARK_DIRECT)
 * once more, because the segment may have waited for its neighbour's address. SYN, FIN and RST go through the wire, and so does the rest of
 * a dying process's output: for its connection, the wire may speak already.
 */
static __noinline int go_directly(struct __sk_buff *skb, struct parsed *packet, struct service_state *state) {
	if (packet->tcp.syn || packet->tcp.fin || packet->tcp.rst || skb->mark == MARK_DYING || !may_go_directly(state))
		return TC_ACT_OK;
	struct client_key client = client_of(packet);
	if (state->deaths && bpf_map_lookup_elem(&dying, &client))
		return TC_ACT_OK;
	__u32 mark = skb->mark;
	skb->mark = MARK_CUT;
	if (bpf_clone_redirect(skb, skb->ifindex, 0)) {
		skb->mark = mark;
		return TC_ACT_OK; /* no copy was sent: the segment itself goes to the wire */
	}
	skb->mark = MARK_DIRECT;
	count(packet->service, REASON_SENT_DIRECTLY);
	return bpf_redirect_neigh(state->ifindex, NULL, 0, 0);
}

SEC("tc")
int guard(struct __sk_buff *skb) {
	struct parsed packet = {};
	if (skb->mark == MARK_RELEASED)
		return TC_ACT_OK; /* the wire has just released this packet */
	enum verdict verdict = parse(skb, &packet);
	if (verdict == PARSE_OTHER || verdict == PARSE_ICMP)
		return TC_ACT_OK;
	if (verdict != PARSE_SEGMENT)
		return pass_unread(services_at(packet.ip.source), verdict, 1);
	__u32 service = packet.service;
	struct service_state *state = bpf_map_lookup_elem(&states, &service);
	__u8 destination[6];
	if (!state)
		return TC_ACT_OK;
	__u32 gate = gate_now(state);
	if (packet.direction != DIRECTION_OUT)
		return TC_ACT_OK;
	if (gate == GATE_PRIMARY && skb->mark == MARK_DIRECT)
		return may_go_directly(state) ? TC_ACT_OK : dropped(service, REASON_EGRESS_EXPIRED);
	if (gate == GATE_PRIMARY && load(skb, 0, destination, sizeof(destination)))
		return TC_ACT_SHOT;
	_Bool is_astray = gate == GATE_PRIMARY && !same_mac(destination, state->peer_mac);
	/* The kernel does not route the agent's own packets by their source, so they are led to the wire here. */
	if (is_astray && skb->mark != MARK_SPEAK && skb->mark != MARK_END)
		return dropped(service, REASON_EGRESS_UNGUARDED);
	if (is_astray && may_leave(skb, &packet, state, gate) != TC_ACT_OK)
		return TC_ACT_SHOT;
	if (is_astray)
		return release_to_peer(skb, state);
	if (gate == GATE_PRIMARY && skb->mark == MARK_CUT)
		return cut(skb, &packet) ? TC_ACT_SHOT : TC_ACT_OK;
	int leaves = may_leave(skb, &packet, state, gate);
	if (leaves == TC_ACT_OK && gate == GATE_WIRE && held_as(&packet, state) == HELD_VIA_PEER)
		return release_to_peer(skb, state);
	return leaves == TC_ACT_OK && gate == GATE_PRIMARY ? go_directly(skb, &packet, state) : leaves;
}

#include "loopback.h"

/* Whether a process died by a signal other than an orderly SIGTERM, SIGINT or SIGHUP. */
static __always_inline _Bool is_killed(int exit_code) {
	int signal = exit_code & 0x7f;
	return signal && signal != 15 && signal != 2 && signal != 1;
}

/* Stores the address that a socket is bound to, in the form of a service's key. Returns false if the socket is bound to all addresses. */
static __always_inline _Bool bound_to(struct sock *sk, __u8 *address) {
	struct sock_common *common = &sk->__sk_common;
	__be32 words[4] = {};
	if (common->skc_family == AF_INET6 && bpf_core_field_exists(common->skc_v6_rcv_saddr)) {
		words[0] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[0];
		words[1] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[1];
		words[2] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[2];
		words[3] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[3];
		__builtin_memcpy(address, words, 16);
		return words[0] | words[1] | words[2] | words[3];
	}
	map_v4(address, common->skc_rcv_saddr);
	return common->skc_rcv_saddr;
}

/* The client of a socket's connection, as a key of the map `dying` without the service. */
static __always_inline struct client_key other_end(struct sock *sk) {
	struct sock_common *common = &sk->__sk_common;
	struct client_key client = {.port = common->skc_dport};
	if (common->skc_family == AF_INET6 && bpf_core_field_exists(common->skc_v6_daddr)) {
		__be32 words[4];
		words[0] = common->skc_v6_daddr.in6_u.u6_addr32[0];
		words[1] = common->skc_v6_daddr.in6_u.u6_addr32[1];
		words[2] = common->skc_v6_daddr.in6_u.u6_addr32[2];
		words[3] = common->skc_v6_daddr.in6_u.u6_addr32[3];
		__builtin_memcpy(client.address, words, 16);
	} else {
		map_v4(client.address, common->skc_daddr);
	}
	return client;
}

/* Whether a client is a program on this node that connects to an application over lo. The relay connects from its clients' addresses. */
static __always_inline _Bool is_loopback(const struct client_key *client) {
	static const __u8 one[16] = {[15] = 1};
	__u8 first[16];
	map_v4(first, bpf_htonl(127 << 24 | client->address[13] << 16 | client->address[14] << 8 | client->address[15]));
	return same_address(client->address, first) || same_address(client->address, one);
}

/* A socket that an exiting process releases. */
struct released {
	struct client_key client; /* without the service; zeros for a listener */
	__u32 exit_code;
	__be16 port;
	_Bool listener;
	_Bool relayed; /* the application's end of a relayed connection */
};

/* Whether the agent must hear of this socket: its process belonged to this service, and died by a signal or a crash code. */
__noinline int is_death(struct released *socket, __u32 service) {
	struct service_state *state = bpf_map_lookup_elem(&states, &service);
	if (!socket || !state || (!socket->relayed && state->port != socket->port))
		return 0;
	__u32 code = socket->exit_code >> 8 & 0xff; /* 0 after a signal */
	if (!is_killed(socket->exit_code) && !(state->crash_codes[code / 32] >> code % 32 & 1))
		return 0;
	/* Without a wire, connections end in the ordinary way. But a returning peer must learn that no server listens here. */
	__u32 gate = gate_now(state);
	if (gate == GATE_WIRE && socket->relayed) {
		struct client_key client = socket->client;
		client.service = service;
		__u32 *how = bpf_map_lookup_elem(&held, &client);
		return how && *how == HELD_VIA_PEER; /* the primary is the wire of a reversed connection */
	}
	return gate == GATE_PRIMARY || (socket->listener && (gate == GATE_SOLE || gate == GATE_TAKEOVER));
}

/* Tells the agent of a death. Returns whether the connection's end is to be hidden from its client. */
__noinline int tell_death(struct released *socket, __u32 service) {
	struct service_state *state = bpf_map_lookup_elem(&states, &service);
	if (!socket || !state)
		return 0;
	struct death_record record = {.client = socket->client, .listener = socket->listener};
	record.client.service = service;
	__sync_fetch_and_add(&state->deaths, 1);
	if (socket->listener)
		__sync_fetch_and_add(&state->server_dead, 1);
	else
		bpf_map_update_elem(&dying, &record.client, &service, BPF_ANY);
	if (!bpf_ringbuf_output(&ring_deaths, &record, sizeof(record), BPF_RB_FORCE_WAKEUP) || socket->listener)
		return 1;
	/* The ring is full, so the agent does not hear of this death. An ordinary end is better than none. */
	bpf_map_delete_elem(&dying, &record.client);
	return 0;
}

SEC("cgroup/sock_release")
int death(struct bpf_sock *sk) {
	__u32 zero = 0;
	struct node_state *state = bpf_map_lookup_elem(&node, &zero);
	if (!state || (sk->protocol != IPPROTO_TCP && sk->protocol != IPPROTO_MPTCP) || bpf_get_netns_cookie(sk) != state->netns_cookie)
		return 1;
	struct task_struct *task = (void *)bpf_get_current_task_btf();
	if (!(task->flags & PF_EXITING) || !task->exit_code || !bpf_ksym_exists(bpf_cast_to_kern_ctx))
		return 1;
	struct sock *kernel_sk = bpf_cast_to_kern_ctx(sk);
	struct service_key key = {.port = bpf_htons(kernel_sk->__sk_common.skc_num)};
	struct released socket = {};
	socket.exit_code = task->exit_code;
	socket.port = key.port;
	socket.listener = kernel_sk->__sk_common.skc_state == BPF_TCP_LISTEN;
	if (!socket.listener)
		socket.client = other_end(kernel_sk);
	_Bool anywhere = !bound_to(kernel_sk, key.address);
	__u32 *owner = bpf_map_lookup_elem(&services, &key);
	if (!owner && !socket.listener && !is_loopback(&socket.client)) {
		owner = bpf_map_lookup_elem(&applications, &key);
		socket.relayed = !!owner;
	}
	for (__u32 i = 0; i < SERVICES_MAX; i++) {
		if ((!anywhere && (!owner || *owner != i)) || !is_death(&socket, i))
			continue;
		__u32 mark = sk->mark;
		if (!socket.relayed) /* the client hears the relay, not this socket */
			sk->mark = MARK_DYING; /* must precede the record: the agent then lists the listeners without this mark */
		if (!tell_death(&socket, i))
			sk->mark = mark;
	}
	return 1;
}
