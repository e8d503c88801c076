//! A flood with spoofed source addresses. It consists of SYNs whose handshakes are never completed, or of segments of connections that do
//! not exist.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use etherparse::{PacketBuilder, TcpOptionElement};
use linux::netns::Netns;
use linux::packet_socket::{PacketSocket, VIRTIO_HEADER};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::net::address::{CLIENT, ROUTER_WAN, VIP_V4};
use crate::net::{INTERFACE, batch};

/// The network of the spoofed source addresses (RFC 2544 reserves this network for benchmarks).
const SOURCES: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const SOURCES_PREFIX: u32 = 15;
/// Time between two bursts.
const PACE: Duration = Duration::from_micros(500);
/// Maximum time by which a segment may be sent late, in seconds. Later segments are skipped.
const LATE_MAX_S: f64 = 0.05;

/// Makes `router` drop packets to the spoofed addresses, as the Internet would.
///
/// # Errors
/// Names the `ip` command that failed.
pub fn swallow_answers(router: &Netns) -> Result<()> {
    let route = format!("route add blackhole {SOURCES}/{SOURCES_PREFIX}");
    Ok(batch(Some(router.name()), &[route])?)
}

/// The kind of segments in a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    /// SYNs.
    Syn,
    /// Acknowledgements that belong to no connection.
    Stray,
}

/// A flood that goes on until it is stopped.
pub struct Flood {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Result<f64>>,
}

impl Flood {
    /// Starts a thread that sends segments from `client`'s interface to `service`: `per_s` per second, or fewer if the machine is too slow.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub fn start(
        client: &Netns,
        service: SocketAddr,
        (kind, per_s): (FloodKind, u32),
        seed: u64,
    ) -> Result<Self> {
        let socket = client.run(|| PacketSocket::open(INTERFACE))??;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let send = move || send(&socket, service.port(), (kind, per_s), seed, &stopped);
        let thread = std::thread::Builder::new().name("flood".into());
        let sender = thread.spawn(send).context("start the flood")?;
        Ok(Self { stop, sender })
    }

    /// Ends the flood and returns how many segments it sent per second.
    ///
    /// # Errors
    /// If a segment could not be sent.
    pub fn stop(self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let outcome = self.sender.join();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn send(
    socket: &PacketSocket,
    port: u16,
    (kind, per_s): (FloodKind, u32),
    seed: u64,
    stop: &AtomicBool,
) -> Result<f64> {
    let mut chance = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut frame = Vec::new();
    let start = Instant::now();
    let (mut sent, mut skipped) = (0_u64, 0_u64);
    while !stop.load(Ordering::Relaxed) {
        let due = (start.elapsed().as_secs_f64() * f64::from(per_s)) as u64;
        let late = due.saturating_sub(sent + skipped);
        skipped += late.saturating_sub((f64::from(per_s) * LATE_MAX_S) as u64);
        while sent + skipped < due && !stop.load(Ordering::Relaxed) {
            segment(&mut chance, kind, port, &mut frame)?;
            if socket.send(&frame).context("send a segment of the flood")? {
                sent += 1;
            } else {
                skipped += 1;
            }
        }
        std::thread::sleep(PACE);
    }
    Ok(sent as f64 / start.elapsed().as_secs_f64())
}

/// Writes the next segment to `port` of the VIP into `frame`, behind a virtio header.
fn segment(chance: &mut impl RngExt, kind: FloodKind, port: u16, frame: &mut Vec<u8>) -> Result<()> {
    let host = chance.random_range(1..1_u32 << (32 - SOURCES_PREFIX));
    let source = Ipv4Addr::from(u32::from(SOURCES) | host);
    frame.clear();
    frame.resize(VIRTIO_HEADER, 0);
    let packet = PacketBuilder::ethernet2(CLIENT.mac, ROUTER_WAN.mac)
        .ipv4(source.octets(), VIP_V4.octets(), 64)
        .tcp(
            chance.random_range(1024..=u16::MAX),
            port,
            chance.random(),
            64_240,
        );
    match kind {
        FloodKind::Syn => packet.syn().options(&[
            TcpOptionElement::MaximumSegmentSize(1460),
            TcpOptionElement::SelectiveAcknowledgementPermitted,
            TcpOptionElement::WindowScale(7),
        ])?,
        FloodKind::Stray => packet.ack(chance.random()),
    }
    .write(frame, &[])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    #[test]
    fn each_segment_is_valid_and_from_somebody_else() {
        let mut chance = Xoshiro256PlusPlus::seed_from_u64(1);
        let (mut frame, mut sources) = (Vec::new(), std::collections::HashSet::new());
        for kind in [FloodKind::Syn, FloodKind::Stray].into_iter().cycle().take(100) {
            segment(&mut chance, kind, 80, &mut frame).unwrap();
            let packet = SlicedPacket::from_ethernet(&frame[VIRTIO_HEADER..]).unwrap();
            let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (packet.net, packet.transport)
            else {
                panic!("not TCP over IPv4")
            };
            let source = ip.header().source_addr();
            assert!(
                source.octets()[0] == 198 && [18, 19].contains(&source.octets()[1]),
                "{source}"
            );
            let flags = (tcp.syn(), tcp.ack(), tcp.destination_port());
            assert_eq!(flags, (kind == FloodKind::Syn, kind == FloodKind::Stray, 80));
            let header = tcp.to_header();
            assert_eq!(
                header.calc_checksum_ipv4(&ip.header().to_header(), &[]).unwrap(),
                tcp.checksum()
            );
            sources.insert((source, tcp.source_port()));
        }
        assert!(sources.len() > 95);
    }
}
