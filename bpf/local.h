/* SPDX-License-Identifier: GPL-2.0 */
/* Looks up which socket this node's own TCP stack has for a client's segment. */
#ifndef STEADFAST_LOCAL_H
#define STEADFAST_LOCAL_H

#include "parse.h"

/* Kind of socket that the local stack has for a segment. */
enum local {
	LOCAL_NONE,      /* no socket, or only a listener */
	LOCAL_RESTORING, /* a socket that is still being restored */
	LOCAL_WAITING,   /* an old connection in TIME-WAIT */
	LOCAL_READY,     /* a socket that is ready for the segment */
	LOCAL_COOKIE,    /* a listener that answered the SYN with a SYN cookie and kept no state: this segment makes the connection */
};

/*
 * Whether a segment acknowledges a SYN cookie of this listener. The kernel answers no quickly if the listener has sent no cookies lately.
 */
static __always_inline _Bool brings_cookie(struct __sk_buff *skb, struct parsed *packet, struct bpf_sock *listener) {
	__u8 header[sizeof(struct ipv6hdr)] = {};
	__u32 len = packet->ip.v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if (!packet->tcp.ack || packet->tcp.syn || packet->tcp.rst)
		return 0;
	if (packet->ip.v6 ? load(skb, L3, header, sizeof(struct ipv6hdr)) : load(skb, L3, header, sizeof(struct iphdr)))
		return 0;
	return !bpf_tcp_check_syncookie(listener, header, len, &packet->tcp, sizeof(packet->tcp));
}

/*
 * The kind of socket that the local stack has for a segment. This function is not inlined. Otherwise its `tuple` and the `header` of
 * brings_cookie would stay on the caller's stack while the caller calls copy_chunks. A program may use only 512 bytes of stack along a
 * chain of calls.
 */
static __noinline enum local find_socket(struct __sk_buff *skb, struct parsed *packet) {
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *found;
	__u32 size;
	if (packet->ip.v6) {
		__builtin_memcpy(tuple.ipv6.saddr, packet->ip.source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, packet->ip.destination, 16);
		tuple.ipv6.sport = packet->tcp.source;
		tuple.ipv6.dport = packet->tcp.dest;
		size = sizeof(tuple.ipv6);
	} else {
		__builtin_memcpy(&tuple.ipv4.saddr, packet->ip.source + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, packet->ip.destination + 12, 4);
		tuple.ipv4.sport = packet->tcp.source;
		tuple.ipv4.dport = packet->tcp.dest;
		size = sizeof(tuple.ipv4);
	}
	found = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return LOCAL_NONE;
	enum local local = LOCAL_READY;
	if (found->state == BPF_TCP_LISTEN)
		local = brings_cookie(skb, packet, found) ? LOCAL_COOKIE : LOCAL_NONE;
	else if (found->state == BPF_TCP_TIME_WAIT)
		local = LOCAL_WAITING;
	struct bpf_sock *full = bpf_sk_fullsock(found);
	if (full && full->mark == MARK_RESTORING)
		local = LOCAL_RESTORING;
	bpf_sk_release(found);
	return local;
}

/* As find_socket, but a socket that is still being restored does not count. */
static __always_inline enum local find_local(struct __sk_buff *skb, struct parsed *packet) {
	enum local local = find_socket(skb, packet);
	return local == LOCAL_RESTORING ? LOCAL_NONE : local;
}

#endif
