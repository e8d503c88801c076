// SPDX-License-Identifier: GPL-2.0
/*
 * Tells at which sequence numbers the two streams of a local TCP connection begin. No hook runs this program: an agent runs it with
 * BPF_PROG_TEST_RUN, on a frame that is a struct numbers_question. The program writes the answer into the frame.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* Offsets are those of crates/linux/src/application.rs. */
struct numbers_question {
	__u8 ethernet[14]; /* BPF_PROG_TEST_RUN wants a frame */
	__u8 is_ipv6;
	__u8 is_found;
	struct bpf_sock_tuple tuple; /* as in a segment that the other end sends */
	__u32 input; /* the answer: number of the input's first byte, in the machine's byte order */
	__u32 output;
} __attribute__((packed));

SEC("tc")
int stream_starts(struct __sk_buff *skb) {
	struct numbers_question *question = (void *)(long)skb->data;
	struct bpf_sock_tuple tuple;
	if ((void *)(question + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	__builtin_memcpy(&tuple, &question->tuple, sizeof(tuple));
	__u32 size = question->is_ipv6 ? sizeof(tuple.ipv6) : sizeof(tuple.ipv4);
	struct bpf_sock *socket = bpf_sk_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return TC_ACT_OK;
	struct bpf_tcp_sock *tcp = bpf_tcp_sock(socket);
	if (tcp) {
		/* Both differences stay the same while the connection lasts. */
		question->input = tcp->rcv_nxt - (__u32)tcp->bytes_received;
		question->output = tcp->snd_una - (__u32)tcp->bytes_acked;
		question->is_found = 1;
	}
	bpf_sk_release(socket);
	return TC_ACT_OK;
}
