//! Commit latency with recorded order: the time from a datagram with a part of the record to the backup's receipt, both at the primary's
//! interface. FT-TCP's authors call it buffering latency (DSN 2003, section 5.3, Table 1).

use anyhow::{Result, bail};
use etherparse::{LaxSlicedPacket, TransportSlice};
use judge::pcap::PcapReader;
use judge::{Capture, Point};
use proto::order::{PassedDatagram, passed};

use super::testbed::BenchTestbed;
use crate::capture::{CapturedInterface, Captures, SNAP_DEFAULT};
use crate::net::INTERFACE;

/// Runs `work`, and returns the commit latencies of the record meanwhile, in microseconds. `directory` gets the capture.
///
/// # Errors
/// If `work` fails, or the capture cannot be made or read.
pub fn latencies(
    testbed: &BenchTestbed,
    directory: &std::path::Path,
    work: impl FnOnce() -> Result<()>,
) -> Result<Vec<f64>> {
    let place = CapturedInterface {
        point: Point::NodeA,
        name: "order".to_owned(),
        namespace: &testbed.network.nodes[0],
        interface: INTERFACE,
    };
    let captures = Captures::start_at(&[place], directory, SNAP_DEFAULT)?;
    work()?;
    let [capture] = &captures.stop()?[..] else {
        bail!("one capture was started")
    };
    read(capture)
}

fn read(capture: &Capture) -> Result<Vec<f64>> {
    let (mut waiting, mut latencies) = (Vec::new(), Vec::new());
    let mut reader = PcapReader::open(&capture.path)?;
    while let Some(record) = reader.next_record()? {
        let Ok(packet) = LaxSlicedPacket::from_ethernet(record.frame) else {
            continue;
        };
        let Some(TransportSlice::Udp(udp)) = &packet.transport else {
            continue;
        };
        match passed(udp.payload()) {
            Some(PassedDatagram::Record { until }) => waiting.push((until, record.at_ns)),
            Some(PassedDatagram::Receipt { have }) => waiting.retain(|&(until, since_ns)| {
                let is_confirmed = until <= have;
                if is_confirmed {
                    latencies.push(record.at_ns.saturating_sub(since_ns) as f64 / 1e3);
                }
                !is_confirmed
            }),
            None => {}
        }
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use judge::pcap;
    use proto::order::DatagramSeal;

    use super::*;

    #[test]
    fn each_part_of_a_record_waits_for_the_receipt_that_covers_it() {
        let seal = DatagramSeal::new(7, [1; 16]);
        let frame = |payload: &[u8]| {
            let mut frame = Vec::new();
            PacketBuilder::ethernet2([1; 6], [2; 6])
                .ipv4([10, 2, 0, 10], [10, 2, 0, 11], 64)
                .udp(1, 2)
                .write(&mut frame, payload)
                .unwrap();
            frame
        };
        let record = |from, bytes| frame(&seal.datagrams(from, bytes).next().unwrap());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("order.pcap");
        let mut file = std::fs::File::create(&path).unwrap();
        pcap::write_header(&mut file).unwrap();
        for (at_ns, frame) in [
            (1_000, record(0, b"four")),
            (2_000, frame(b"something else")),
            (3_000, record(4, b"six more")),
            (9_000, frame(&seal.make_receipt(4))),
            (9_500, frame(&seal.make_receipt(4))),
            (10_000, frame(&seal.make_receipt(12))),
            (11_000, record(12, b"no receipt")),
        ] {
            pcap::write_record(&mut file, at_ns, &frame).unwrap();
        }
        let capture = Capture {
            point: Point::NodeA,
            path,
            packets: 7,
            dropped: 0,
        };
        assert_eq!(read(&capture).unwrap(), [8.0, 7.0]);
    }
}
