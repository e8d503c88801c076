//! Compares TCP_INFO of a restored socket with TCP_INFO of the old socket. docs/takeover.md says why some fields differ.

use std::collections::BTreeSet;

use libc::tcp_info;

use super::socket::fields_of;

/// Fields that may differ in every state of the connection. Each of them does differ in some connection at rest (no bytes in
/// flight).
pub const DIFFER: [&str; 24] = [
    // The restored socket's counters begin at zero.
    "tcpi_bytes_acked",
    "tcpi_bytes_received",
    "tcpi_bytes_sent",
    "tcpi_bytes_retrans",
    "tcpi_data_segs_in",
    "tcpi_data_segs_out",
    "tcpi_segs_in",
    "tcpi_segs_out",
    "tcpi_delivered",
    "tcpi_rcv_ooopack",
    "tcpi_total_retrans",
    "tcpi_total_rto",
    // The restored socket has not measured the path yet.
    "tcpi_rto",
    "tcpi_ato",
    "tcpi_rtt",
    "tcpi_rttvar",
    "tcpi_min_rtt",
    "tcpi_snd_ssthresh",
    "tcpi_pacing_rate",
    "tcpi_rcv_mss",
    // `tcpi_advmss` is the MSS that the restored socket's own SYN would have offered. The others depend on the size of the receive buffer.
    "tcpi_rcv_ssthresh",
    "tcpi_rcv_space",
    "tcpi_rcv_wnd",
    "tcpi_advmss",
];

/// Further fields that may differ in every state. Whether they do depends on the connection's history and on the time of the comparison.
pub const MAY_DIFFER: [&str; 12] = [
    "tcpi_snd_cwnd",
    "tcpi_delivery_rate",
    "tcpi_rcv_rtt",
    "tcpi_rehash",
    "tcpi_total_rto_recoveries",
    "tcpi_total_rto_time",
    "tcpi_busy_time",
    "tcpi_dsack_dups",
    "tcpi_reord_seen",
    "tcpi_last_data_sent",
    "tcpi_last_data_recv",
    "tcpi_last_ack_recv",
];

/// Fields that may differ after a FIN. A restored socket counts the client's FIN as received, but stays in ESTABLISHED. It sends the
/// server's FIN once more.
pub const ENDING: [&str; 1] = ["tcpi_state"];

/// Fields that may differ while bytes are in flight: unacknowledged bytes are sent again, the client's answers arrive meanwhile, and the
/// old socket's knowledge about single segments is lost.
pub const IN_FLIGHT: [&str; 12] = [
    "tcpi_unacked",
    "tcpi_notsent_bytes",
    "tcpi_snd_wnd",
    "tcpi_rwnd_limited",
    "tcpi_sndbuf_limited",
    "tcpi_ca_state",
    "tcpi_sacked",
    "tcpi_lost",
    "tcpi_retrans",
    "tcpi_retransmits",
    "tcpi_backoff",
    "tcpi_reordering",
];

/// The fields in which two sockets differ.
pub fn differences(old: &tcp_info, new: &tcp_info) -> BTreeSet<&'static str> {
    let pairs = fields_of(old).into_iter().zip(fields_of(new));
    let differ = pairs.filter(|((_, old), (_, new))| old != new);
    differ
        .map(|((name, old), (_, new))| {
            eprintln!("{name} {old} {new}");
            name
        })
        .collect()
}

/// Asserts that the two sockets differ only in fields that may always differ, and in the fields of `also`, which may differ in this state.
#[track_caller]
pub fn assert_continued(old: &tcp_info, new: &tcp_info, also: &[&[&str]]) {
    let mut differ = differences(old, new);
    differ.retain(|name| {
        ![&DIFFER[..], &MAY_DIFFER]
            .iter()
            .chain(also)
            .any(|may| may.contains(name))
    });
    assert_eq!(
        differ,
        BTreeSet::new(),
        "the restored socket differs in more than it may"
    );
}
