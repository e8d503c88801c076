//! The clients of a run on the pair, from their first handshake to their report.

use std::time::Duration;

use anyhow::Result;
use proto::Instant;

use super::PairOptions;
use super::testbed::Testbed;
use super::work::Work;
use crate::client::{ClientOrder, ClientProcess, ClientReport};
use crate::run::LabRun;

/// Fixed part of the time limit for all connections to get their first byte.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Further part of this time limit for each connection.
const READY_LIMIT_EACH: Duration = Duration::from_millis(4);
/// Time beyond the plan's own deadline, for the clients to compute hashes and to report.
const REPORT_LIMIT: Duration = Duration::from_secs(60);

/// Sets up the testbed and lets the clients connect.
///
/// # Errors
/// Names the step that failed.
pub fn begin(options: &PairOptions, work: &Work, run: &LabRun<'_>) -> Result<(Testbed, ClientProcess)> {
    run.step("set up");
    let testbed = Testbed::set(options, work, run)?;
    run.step("connect");
    let mut client = ClientProcess::start_on(&testbed.network.client, &work.plan)?;
    client.wait_ready(READY_LIMIT + READY_LIMIT_EACH * options.connections)?;
    Ok((testbed, client))
}

/// Asks the clients for their longest wait that is in progress at `at` or begins within `window` after `at`.
///
/// # Errors
/// If the request cannot be sent to the clients.
pub fn measure(client: &mut ClientProcess, at: Instant, window: Duration) -> Result<()> {
    client.order(ClientOrder::Fault {
        at_ns: at.as_nanos(),
        window_ms: window.as_millis() as u64,
        clips: false,
    })
}

/// Lets the clients finish their work.
///
/// # Errors
/// If the clients do not report.
pub fn finish(mut client: ClientProcess, work: &Work) -> Result<ClientReport> {
    for order in [ClientOrder::Stop, ClientOrder::Wake] {
        client.order(order)?;
    }
    client.finish(Duration::from_millis(work.plan.deadline_ms) + REPORT_LIMIT)
}
