//! Packet captures: tcpdump at the client, at the router's LAN side, at both nodes, and at the servers behind a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use judge::{Capture, Point};
use linux::netns::Netns;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::net::{INTERFACE, ROUTER_LAN_INTERFACE, Topology};
use crate::process::LoggedProcess;

/// Default snapshot length in bytes: all headers of IPv6 and TCP, and the beginning of the data.
pub const SNAP_DEFAULT: u32 = 256;
/// Size of tcpdump's kernel buffer, in KiB: 0.2 s of the fastest traffic that two cores can make.
const BUFFER_KIB: u32 = 64 << 10;
/// Time after which tcpdump has every packet that has passed the interface: the kernel delivers a partly filled block after one second.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(1100);
const START_LIMIT: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// An interface that is captured.
#[derive(Clone, Debug)]
pub struct CapturedInterface<'a> {
    /// The capture point to which the judge assigns this interface's packets.
    pub point: Point,
    /// The name of the capture's file, without the extension.
    pub name: String,
    /// The namespace of the interface.
    pub namespace: &'a Netns,
    /// The interface's name in that namespace.
    pub interface: &'a str,
}

/// Captures under way. Dropping them kills tcpdump, and the files may lack the end.
#[derive(Debug)]
pub struct Captures {
    running: Vec<(Point, PathBuf, LoggedProcess)>,
}

impl Captures {
    /// Starts captures at every point of `network`. Files are `DIRECTORY/POINT.pcap`; `snap` bytes of each packet are kept.
    ///
    /// # Errors
    /// As [`Self::start_at`].
    pub fn start(network: &Topology, directory: &Path, snap: u32) -> Result<Self> {
        let [a, b] = &network.nodes;
        let places = [
            (Point::Client, &network.client, INTERFACE),
            (Point::Router, &network.router, ROUTER_LAN_INTERFACE),
            (Point::NodeA, a, INTERFACE),
            (Point::NodeB, b, INTERFACE),
        ]
        .map(|(point, namespace, interface)| CapturedInterface {
            point,
            name: point.name().to_owned(),
            namespace,
            interface,
        });
        Self::start_at(&places, directory, snap)
    }

    /// Starts a capture at each of `places`, and waits until all captures have begun. Files are `DIRECTORY/NAME.pcap`.
    ///
    /// # Errors
    /// If tcpdump cannot be started or does not listen in time.
    pub fn start_at(places: &[CapturedInterface<'_>], directory: &Path, snap: u32) -> Result<Self> {
        let mut running = Vec::new();
        for place in places {
            let path = directory.join(format!("{}.pcap", place.name));
            let mut tcpdump = place.namespace.command("tcpdump")?;
            tcpdump
                .args(["-i", place.interface, "-w"])
                .arg(&path)
                .args(["-s", &snap.to_string(), "-B", &BUFFER_KIB.to_string()])
                .args(["--time-stamp-precision=nano", "-Z", "root"]);
            let label = format!("tcpdump-{}", place.name);
            running.push((
                place.point,
                path,
                LoggedProcess::start(&label, tcpdump, directory)?,
            ));
        }
        for (.., tcpdump) in &mut running {
            tcpdump.wait_until("listen", START_LIMIT, |tcpdump| {
                tcpdump.output().contains("listening on")
            })?;
        }
        Ok(Self { running })
    }

    /// The tcpdump processes. A simulated power failure of a node spares them.
    pub fn pids(&self) -> Vec<Pid> {
        self.running.iter().map(|(.., tcpdump)| tcpdump.pid()).collect()
    }

    /// Ends all captures once they contain everything that has passed until now.
    ///
    /// # Errors
    /// If a tcpdump has died or does not report how many packets it got.
    pub fn stop(self) -> Result<Vec<Capture>> {
        std::thread::sleep(BLOCK_TIMEOUT);
        for (.., tcpdump) in &self.running {
            tcpdump.signal(Signal::SIGINT)?;
        }
        self.running
            .into_iter()
            .map(|(point, path, mut tcpdump)| {
                let status = tcpdump.wait(STOP_LIMIT)?;
                let said = tcpdump.output();
                let count = |what| count(&said, what);
                let packets = count("packets captured").filter(|_| status.success());
                let (packets, dropped) = packets
                    .zip(count("packets dropped by kernel"))
                    .with_context(|| format!("{} ended with {status}: {said}", tcpdump.label()))?;
                Ok(Capture {
                    point,
                    path,
                    packets,
                    dropped,
                })
            })
            .collect()
    }
}

/// The number in front of `what` in tcpdump's last lines. For one packet, tcpdump prints "1 packet".
fn count(said: &str, what: &str) -> Option<u64> {
    let singular = what.replacen("packets", "packet", 1);
    said.lines().find_map(|line| {
        let number = line.strip_suffix(what).or_else(|| line.strip_suffix(&singular))?;
        number.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcpdump_is_understood() {
        let said = "tcpdump: listening on eth0, link-type EN10MB (Ethernet), snapshot length 256 bytes\n\
                    12 packets captured\n13 packets received by filter\n1 packet dropped by kernel\n";
        assert_eq!(count(said, "packets captured"), Some(12));
        assert_eq!(count(said, "packets dropped by kernel"), Some(1));
        assert_eq!(count("", "packets captured"), None);
    }
}
