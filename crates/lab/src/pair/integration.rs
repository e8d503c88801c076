//! The return of a node that becomes the wire: its times, and its effect on the clients.

use std::time::Duration;

use anyhow::Result;
use etherparse::{LaxSlicedPacket, LinkSlice, TransportSlice};
use proto::Instant;
use serde::Serialize;

use super::testbed::Testbed;
use crate::client::{ClientOrder, ClientProcess};
use crate::clock::{ClockOffset, as_nanos, as_optional_nanos, monotonic, ms};
use crate::net::address::NODES;
use crate::node::{HEARTBEAT_PORT, ReportedStatus};
use judge::pcap::PcapReader;
use judge::{Capture, Point};
use judge::{NodeChange, Survey};

/// A node's return.
#[derive(Clone, Debug, Serialize)]
pub struct Integration {
    /// The node.
    pub node: usize,
    /// The time just before the node was connected again, or its agent was started again.
    #[serde(serialize_with = "as_nanos")]
    pub returned_at: Instant,
    /// When the node began to become the wire, as its agent reported. Before this time, the node boots. A booting node has no part in the
    /// service, but takes CPU time from the clients.
    #[serde(serialize_with = "as_optional_nanos")]
    pub begun_at: Option<Instant>,
    /// When the node had become the wire, as its agent reported.
    #[serde(serialize_with = "as_optional_nanos")]
    pub joined_at: Option<Instant>,
    /// When both nodes said that the service is duplex, or when the run gave up waiting for this.
    #[serde(serialize_with = "as_optional_nanos")]
    pub duplex_at: Option<Instant>,
    /// When the node's agent reported that every connection is protected, or when the run gave up waiting. `None` if the run did not wait.
    #[serde(serialize_with = "as_optional_nanos")]
    pub protected_at: Option<Instant>,
    /// When the other node got this node's first heartbeat, according to the capture.
    #[serde(serialize_with = "as_optional_nanos")]
    pub ready_at: Option<Instant>,
    /// When the router got the first segment that this node forwarded, according to the capture.
    #[serde(serialize_with = "as_optional_nanos")]
    pub forwards_at: Option<Instant>,
}

impl Integration {
    /// The return of `node` at `returned_at`.
    pub fn new(node: usize, returned_at: Instant) -> Self {
        Self {
            node,
            returned_at,
            begun_at: None,
            joined_at: None,
            duplex_at: None,
            protected_at: None,
            ready_at: None,
            forwards_at: None,
        }
    }

    /// Waits until both nodes say that the service is duplex. Adds to `problems` if they do not. A node whose path was lost more than once
    /// waits for up to `damping` longer (docs/paths.md, *Damping*).
    ///
    /// # Errors
    /// If the run is without Steadfast.
    pub fn wait_duplex(
        &mut self,
        testbed: &Testbed,
        damping: Duration,
        problems: &mut Vec<String>,
    ) -> Result<()> {
        for index in [self.node, 1 - self.node] {
            let what = "become duplex again";
            testbed.wait_longer_for(index, what, damping, ReportedStatus::is_duplex, problems)?;
        }
        self.duplex_at = Some(monotonic());
        if let Ok(status) = testbed.status(self.node) {
            let since = |state| status.became(state).filter(|at| *at >= self.returned_at);
            self.begun_at = since("returning");
            self.joined_at = since("backup");
        }
        Ok(())
    }

    /// Waits until the node's server has the state of the other node's server, if the run requires this. Adds to `problems` if this takes
    /// too long.
    ///
    /// # Errors
    /// If the run is without Steadfast.
    pub fn wait_synced(&self, testbed: &Testbed, problems: &mut Vec<String>) -> Result<()> {
        testbed.wait_for(
            self.node,
            "get the primary's state",
            ReportedStatus::is_synced,
            problems,
        )
    }

    /// Waits until the node, now the wire, says that it protects every connection.
    ///
    /// # Errors
    /// If the run is without Steadfast.
    pub fn wait_protected(&mut self, testbed: &Testbed, problems: &mut Vec<String>) -> Result<()> {
        testbed.wait_for(
            self.node,
            "protect every connection",
            ReportedStatus::protects_all,
            problems,
        )?;
        self.protected_at = Some(monotonic());
        Ok(())
    }

    /// Milliseconds from the return until every connection was protected, or, if the run did not wait for this, until the service was
    /// duplex. `None` if the run waited for neither.
    pub fn whole_after_ms(&self) -> Option<f64> {
        let whole = self.protected_at.or(self.duplex_at)?;
        Some(ms(self.returned_at.as_nanos(), whole.as_nanos()))
    }

    /// When the node had become the wire, as far as this is known. No later event of the run changes the roles.
    pub fn settled_at(&self) -> Option<Instant> {
        self.joined_at.or(self.duplex_at)
    }

    /// Asks the clients for their longest wait during the integration. The integration begins when the node begins to become the wire. It
    /// ends when every connection is protected or, if the run did not wait for this, when the service is duplex.
    ///
    /// # Errors
    /// If the request cannot be sent to the clients.
    pub fn measure(&self, client: &mut ClientProcess) -> Result<()> {
        let at = self.begun_at.unwrap_or(self.returned_at);
        let whole = self.protected_at.or(self.duplex_at).unwrap_or(at);
        client.order(ClientOrder::Fault {
            at_ns: at.as_nanos(),
            window_ms: whole.since(at).as_millis() as u64,
            clips: true,
        })
    }

    /// The return as an event for the judge.
    pub fn change(&self, clock: ClockOffset) -> NodeChange {
        NodeChange::Returned {
            node: self.node,
            at_ns: clock.realtime_ns(self.returned_at),
        }
    }

    /// Finds `ready_at` and `forwards_at` in the captures.
    ///
    /// # Errors
    /// If a capture cannot be read.
    pub fn find(&mut self, survey: &Survey, captures: &[Capture], clock: ClockOffset) -> Result<()> {
        let returned_ns = clock.realtime_ns(self.returned_at);
        let forwards_ns = survey.forwards_from(self.node, returned_ns);
        self.forwards_at = forwards_ns.map(|at_ns| clock.monotonic(at_ns));
        let other = [Point::NodeB, Point::NodeA][self.node];
        if let Some(capture) = captures.iter().find(|capture| capture.point == other) {
            let ready_ns = first_heartbeat(capture, NODES[self.node].mac, returned_ns)?;
            self.ready_at = ready_ns.map(|at_ns| clock.monotonic(at_ns));
        }
        Ok(())
    }

    /// Milliseconds from the node's first heartbeat to its first forwarded segment.
    pub fn ms(&self) -> Option<f64> {
        let (ready, forwards) = (self.ready_at?, self.forwards_at?);
        Some(ms(ready.as_nanos(), forwards.as_nanos()))
    }
}

/// Time of the first captured heartbeat of the node with `mac`, from `from_ns` on.
fn first_heartbeat(capture: &Capture, mac: [u8; 6], from_ns: u64) -> Result<Option<u64>> {
    let mut reader = PcapReader::open(&capture.path)?;
    while let Some(record) = reader.next_record()? {
        if record.at_ns >= from_ns && is_heartbeat(record.frame, mac) {
            return Ok(Some(record.at_ns));
        }
    }
    Ok(None)
}

fn is_heartbeat(frame: &[u8], mac: [u8; 6]) -> bool {
    let Ok(sliced) = LaxSlicedPacket::from_ethernet(frame) else {
        return false;
    };
    let is_its_own = matches!(&sliced.link, Some(LinkSlice::Ethernet2(link)) if link.source() == mac);
    let is_for_peer = matches!(&sliced.transport, Some(TransportSlice::Udp(udp)) if udp.destination_port() == HEARTBEAT_PORT);
    is_its_own && is_for_peer
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;
    use judge::pcap;

    #[test]
    fn the_first_heartbeat_after_the_return_is_found() {
        let frame = |mac, port| {
            let mut frame = Vec::new();
            PacketBuilder::ethernet2(mac, [2; 6])
                .ipv4([10, 2, 0, 10], [10, 2, 0, 11], 64)
                .udp(port, port)
                .write(&mut frame, b"alive")
                .unwrap();
            frame
        };
        let own = NODES[0].mac;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node-b.pcap");
        let mut file = std::fs::File::create(&path).unwrap();
        pcap::write_header(&mut file).unwrap();
        for (at_ns, mac, port) in [
            (1, own, HEARTBEAT_PORT),
            (5, own, 53),
            (6, NODES[1].mac, HEARTBEAT_PORT),
            (7, own, HEARTBEAT_PORT),
            (8, own, HEARTBEAT_PORT),
        ] {
            pcap::write_record(&mut file, at_ns, &frame(mac, port)).unwrap();
        }
        let capture = Capture {
            point: Point::NodeB,
            path,
            packets: 5,
            dropped: 0,
        };
        assert_eq!(first_heartbeat(&capture, own, 2).unwrap(), Some(7));
        assert_eq!(first_heartbeat(&capture, own, 9).unwrap(), None);
    }
}
