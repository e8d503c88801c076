//! Memory of the packets that an edge caches (HALR thesis, 3.4).

/// Bytes for `flows` connections if one data packet and one ACK of each are cached. The packets' sizes are in bytes.
pub fn packet_and_ack_bytes(flows: f64, packet_bytes: f64, ack_bytes: f64) -> f64 {
    flows * (packet_bytes + ack_bytes)
}

/// Bytes if only the SYNs that arrive during the failover are cached.
pub fn syns_bytes(connections_per_s: f64, failover_s: f64, syn_bytes: f64) -> f64 {
    connections_per_s * failover_s * syn_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thesis, 3.4: 10,000 flows with packets of 1,514 and 64 bytes need 15.78 Mbytes.
    #[test]
    fn ten_thousand_flows_need_15_78_megabytes() {
        assert_eq!(packet_and_ack_bytes(10_000.0, 1_514.0, 64.0), 15.78e6);
    }

    /// Thesis, 3.4: 10,000 connections per second and a failover of 100 ms need about 64 Kbytes of SYNs.
    #[test]
    fn the_syns_of_100_ms_need_64_kilobytes() {
        assert!((syns_bytes(10_000.0, 0.1, 64.0) - 64e3).abs() < 1e-6);
    }
}
