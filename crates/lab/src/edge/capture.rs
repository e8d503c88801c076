//! Captures at both ends of the flows.

use anyhow::{Context, Result};

use super::network::EdgeTopology;
use crate::capture::{CapturedInterface, Captures};
use crate::net::INTERFACE;
use crate::run::LabRun;
use judge::Point;

/// Starts captures at the clients and at the servers.
///
/// # Errors
/// If tcpdump does not start.
pub fn both_ends(network: &EdgeTopology, run: &LabRun<'_>, snap: u32) -> Result<Captures> {
    let places = [
        (Point::Client, &network.clients),
        (Point::Server, &network.servers),
    ]
    .map(|(point, namespace)| CapturedInterface {
        point,
        name: point.name().to_owned(),
        namespace,
        interface: INTERFACE,
    });
    Captures::start_at(&places, &run.directory, snap).context("capture")
}
