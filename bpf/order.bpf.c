// SPDX-License-Identifier: GPL-2.0
/*
 * Recorded order on the backup (docs/recorded-order.md, Datagrams): takes the record of the primary's server from datagrams into a ring, and
 * sends each datagram back as a receipt. So no process has to wake up before the primary's server may answer its client.
 *
 * The program changes and drops only datagrams of a link that it knows. It needs no pins: the agent holds the link by which the program is
 * attached, and the maps. If the agent ends, both are gone, and the primary's server waits for the receipts of the TCP link.
 */
#include <linux/udp.h>
#include <linux/pkt_cls.h>
#include "headers.h"
#include "order_abi.h"

#define LINKS_MAX 16
#define HOPS 64 /* TTL of receipts */
#define HAS_NO_FRAGMENTS 0x4000

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LINKS_MAX);
	__type(key, __u64);
	__type(value, struct order_link);
} order_links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct order_state);
} order_state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, ORDER_RING_BYTES);
} order_ring SEC(".maps");

/* Where a datagram's bytes are put together with their position, because they are too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct order_taken);
} order_scratch SEC(".maps");

struct sip {
	__u64 a, b, c, d;
};

static __always_inline __u64 rotate(__u64 word, int by) { return word << by | word >> (64 - by); }

static __always_inline void sip_round(struct sip *sip) {
	sip->a += sip->b;
	sip->c += sip->d;
	sip->b = rotate(sip->b, 13) ^ sip->a;
	sip->d = rotate(sip->d, 16) ^ sip->c;
	sip->a = rotate(sip->a, 32);
	sip->c += sip->b;
	sip->a += sip->d;
	sip->b = rotate(sip->b, 17) ^ sip->c;
	sip->d = rotate(sip->d, 21) ^ sip->a;
	sip->c = rotate(sip->c, 32);
}

static __always_inline void sip_take(struct sip *sip, __u64 word) {
	sip->d ^= word;
	sip_round(sip);
	sip_round(sip);
	sip->a ^= word;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define little32(number) (number)
#define little64(number) (number)
#else
#define little32(number) __builtin_bswap32(number)
#define little64(number) __builtin_bswap64(number)
#endif

/*
 * The tag of a head and of the bytes that follow it. The bytes are filled up with zeroes to a whole word. The verifier checks a global
 * function only once, and it forgets the states of the loop.
 */
__noinline __u64 order_tag(struct order_link *link, struct order_head *head, struct order_taken *taken) {
	if (!link || !head || !taken)
		return 0;
	struct sip sip = {
		.a = link->key[0] ^ 0x736f6d6570736575,
		.b = link->key[1] ^ 0x646f72616e646f6d,
		.c = link->key[0] ^ 0x6c7967656e657261,
		.d = link->key[1] ^ 0x7465646279746573,
	};
	__u32 len = little32(head->len), words = 3;
	sip_take(&sip, (__u64)little32(head->kind) | (__u64)len << 32);
	sip_take(&sip, little64(head->cookie));
	sip_take(&sip, little64(head->number));
	for (__u32 at = 0; at < ORDER_BYTES_MAX / 8; at++) {
		if (at * 8 >= len)
			break;
		sip_take(&sip, little64(taken->words[at]));
		words++;
	}
	sip_take(&sip, (__u64)words * 8 << 56);
	sip.c ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(&sip);
	return little64(sip.a ^ sip.b ^ sip.c ^ sip.d);
}

struct v4_reply {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp;
	struct order_head receipt;
} __attribute__((packed));

struct v6_reply {
	struct ethhdr ethernet;
	struct ipv6hdr ip;
	struct udphdr udp;
	struct order_head receipt;
} __attribute__((packed));

static __always_inline void swap_macs(struct ethhdr *ethernet) {
	__u8 mac[ETH_ALEN];
	__builtin_memcpy(mac, ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, ethernet->h_dest, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, mac, ETH_ALEN);
}

/* The receipt's UDP header. Its checksum is not set yet. */
static __always_inline struct udphdr turned(struct udphdr udp) {
	return (struct udphdr){
		.source = udp.dest,
		.dest = udp.source,
		.len = bpf_htons(sizeof(struct udphdr) + sizeof(struct order_head)),
	};
}

/*
 * Writes the checksum of the receipt's UDP header at `at`. `pseudo` is the sum of the pseudo header and `body` that of the rest. If the
 * sender left the checksum to its network device, the field must have the sum of the pseudo header only, and bpf_l4_csum_replace adds
 * nothing else. It begins with -0, which changes no sum.
 */
static __always_inline int set_checksum(struct __sk_buff *skb, __u32 at, __s64 pseudo, __s64 body) {
	__u16 check = 0xffff;
	if (pseudo < 0 || body < 0 || bpf_skb_store_bytes(skb, at, &check, sizeof(check), 0) ||
	    bpf_l4_csum_replace(skb, at, 0, pseudo, BPF_F_PSEUDO_HDR) || bpf_l4_csum_replace(skb, at, 0, body, 0) ||
	    bpf_skb_load_bytes(skb, at, &check, sizeof(check)))
		return -1;
	if (check)
		return 0;
	check = 0xffff; /* 0 would mean that there is no checksum */
	return bpf_skb_store_bytes(skb, at, &check, sizeof(check), 0);
}

static __always_inline int turn_v4(struct __sk_buff *skb, struct order_head *receipt) {
	struct v4_reply reply;
	struct {
		__be32 addresses[2];
		__u8 zero, protocol;
		__be16 len;
	} pseudo = {.protocol = IPPROTO_UDP};
	if (bpf_skb_load_bytes(skb, 0, &reply, offsetof(struct v4_reply, receipt)) || bpf_skb_change_tail(skb, sizeof(reply), 0))
		return -1;
	reply.receipt = *receipt;
	swap_macs(&reply.ethernet);
	reply.udp = turned(reply.udp);
	pseudo.len = reply.udp.len;
	pseudo.addresses[0] = reply.ip.daddr;
	pseudo.addresses[1] = reply.ip.saddr;
	reply.ip.saddr = pseudo.addresses[0];
	reply.ip.daddr = pseudo.addresses[1];
	reply.ip.tot_len = bpf_htons(sizeof(reply) - L3);
	reply.ip.id = 0;
	reply.ip.frag_off = bpf_htons(HAS_NO_FRAGMENTS);
	reply.ip.ttl = HOPS;
	reply.ip.check = 0;
	struct iphdr ip = reply.ip;
	__s64 sum = bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0);
	if (sum < 0)
		return -1;
	sum = (sum & 0xffff) + (sum >> 16);
	reply.ip.check = ~((sum & 0xffff) + (sum >> 16));
	struct {
		struct udphdr udp;
		struct order_head receipt;
	} body = {reply.udp, *receipt};
	__s64 sum_of_body = bpf_csum_diff(NULL, 0, (__be32 *)&body, sizeof(body), 0);
	__s64 sum_of_pseudo = bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
	if (bpf_skb_store_bytes(skb, 0, &reply, sizeof(reply), 0))
		return -1;
	return set_checksum(skb, offsetof(struct v4_reply, udp.check), sum_of_pseudo, sum_of_body);
}

static __always_inline int turn_v6(struct __sk_buff *skb, struct order_head *receipt) {
	struct v6_reply reply;
	struct {
		struct in6_addr addresses[2];
		__be32 len;
		__u8 zero[3], protocol;
	} pseudo = {.protocol = IPPROTO_UDP};
	if (bpf_skb_load_bytes(skb, 0, &reply, offsetof(struct v6_reply, receipt)) || bpf_skb_change_tail(skb, sizeof(reply), 0))
		return -1;
	reply.receipt = *receipt;
	swap_macs(&reply.ethernet);
	reply.udp = turned(reply.udp);
	pseudo.len = bpf_htonl(bpf_ntohs(reply.udp.len));
	pseudo.addresses[0] = reply.ip.daddr;
	pseudo.addresses[1] = reply.ip.saddr;
	reply.ip.saddr = pseudo.addresses[0];
	reply.ip.daddr = pseudo.addresses[1];
	reply.ip.payload_len = reply.udp.len;
	reply.ip.hop_limit = HOPS;
	struct {
		struct udphdr udp;
		struct order_head receipt;
	} body = {reply.udp, *receipt};
	__s64 sum_of_body = bpf_csum_diff(NULL, 0, (__be32 *)&body, sizeof(body), 0);
	__s64 sum_of_pseudo = bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
	if (bpf_skb_store_bytes(skb, 0, &reply, sizeof(reply), 0))
		return -1;
	return set_checksum(skb, offsetof(struct v6_reply, udp.check), sum_of_pseudo, sum_of_body);
}

/* Offset of the UDP header of a packet that may be a datagram with a record. 0: it is none. */
static __always_inline __u32 udp_of(struct __sk_buff *skb) {
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;
		if (load(skb, L3, &ip, sizeof(ip)) || ip.ihl != 5 || ip.protocol != IPPROTO_UDP || ip.frag_off & bpf_htons(0x3fff))
			return 0;
		return L3 + sizeof(struct iphdr);
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		__u8 next;
		if (load(skb, L3 + offsetof(struct ipv6hdr, nexthdr), &next, sizeof(next)) || next != IPPROTO_UDP)
			return 0;
		return L3 + sizeof(struct ipv6hdr);
	}
	return 0;
}

/* Takes the bytes into the ring. Returns how many bytes of the record this node has. 0: the datagram is refused. */
static __always_inline __u64 take(struct __sk_buff *skb, __u32 at, struct order_link *link, struct order_head *head,
				  struct order_state *state) {
	__u32 zero = 0, len = little32(head->len);
	__u64 from = little64(head->number);
	struct order_taken *taken = bpf_map_lookup_elem(&order_scratch, &zero);
	if (!taken || len < 1 || len > ORDER_BYTES_MAX)
		return 0;
	asm volatile("" : "+r"(len)); /* the compiler must not forget the limit, which the verifier needs */
	if (len < 1 || len > ORDER_BYTES_MAX || bpf_skb_load_bytes(skb, at, taken->bytes, len))
		return 0;
	__builtin_memset(taken->bytes + len, 0, 8);
	if (order_tag(link, head, taken) != head->tag)
		return 0;
	/* Both numbers grow. If a number is read before it grows, the datagram seems to leave a gap, and comes again. */
	__u64 taken_before = *(volatile __u64 *)&link->have, agent_has = *(volatile __u64 *)&state->have;
	__u64 have = taken_before > agent_has ? taken_before : agent_has;
	if (from > have)
		return 0;
	taken->cookie = head->cookie;
	taken->from = from;
	taken->len = len;
	if (bpf_ringbuf_output(&order_ring, taken, offsetof(struct order_taken, bytes) + len, 0))
		return 0;
	if (from + len > taken_before)
		*(volatile __u64 *)&link->have = from + len;
	return from + len > have ? from + len : have;
}

SEC("tcx/ingress")
int order(struct __sk_buff *skb) {
	struct udphdr udp;
	struct order_head head;
	__u32 zero = 0, at = udp_of(skb);
	if (!at || skb->pkt_type != 0 /* PACKET_HOST: for another node */ || load(skb, at, &udp, sizeof(udp)))
		return TC_ACT_UNSPEC;
	struct order_state *state = bpf_map_lookup_elem(&order_state, &zero);
	if (!state || udp.dest != state->port || load(skb, at + sizeof(udp), &head, sizeof(head)) || little32(head.kind) != ORDER_RECORD)
		return TC_ACT_UNSPEC;
	struct order_link *link = bpf_map_lookup_elem(&order_links, &head.cookie);
	if (!link)
		return TC_ACT_UNSPEC;
	__u64 have = 0;
	if (bpf_ntohs(udp.len) == sizeof(udp) + sizeof(head) + little32(head.len) && !skb->gso_size)
		have = take(skb, at + sizeof(udp) + sizeof(head), link, &head, state);
	struct order_head receipt = {
		.kind = little32(ORDER_RECEIPT),
		.cookie = head.cookie,
		.number = little64(have),
	};
	struct order_taken *taken = bpf_map_lookup_elem(&order_scratch, &zero);
	if (have && taken) {
		receipt.tag = order_tag(link, &receipt, taken);
		_Bool v6 = at == L3 + sizeof(struct ipv6hdr);
		if (!(v6 ? turn_v6(skb, &receipt) : turn_v4(skb, &receipt)))
			return bpf_redirect(skb->ifindex, 0);
	}
	__sync_fetch_and_add(&state->refused, 1);
	return TC_ACT_SHOT;
}
