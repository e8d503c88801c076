//! A stream of 256 KB from servers that become slow after 32 KB of a connection (the paper's Figure 7).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::testbed::{SessionsSetting, SessionsTestbed};
use crate::teardown::Teardown;

/// Bytes of the stream.
pub const STREAM_BYTES: u64 = 256 << 10;
/// Time from one chunk of 1 KB to the next.
const INTERVAL: Duration = Duration::from_millis(20);

/// One stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamCell {
    /// Bytes of a snapshot. `None`: plain TCP to one server.
    pub snapshot_bytes: Option<u64>,
    /// Bytes of a connection after which a server is slow. `None`: never.
    pub fast_bytes: Option<u64>,
    /// Number of bad samples of the rate that cause a move.
    pub strikes: u32,
}

/// What the client got.
#[derive(Clone, Debug)]
pub struct StreamMeasured {
    /// Time since the request, and the bytes that the client had by then.
    pub arrivals: Vec<(Duration, u64)>,
    /// Number of moves.
    pub moves: usize,
}

impl StreamMeasured {
    /// Bytes per second until the last byte.
    pub fn rate(&self) -> f64 {
        let last = self.arrivals.last();
        last.map_or(f64::NAN, |(at, bytes)| *bytes as f64 / at.as_secs_f64())
    }
}

/// Measures one stream.
///
/// # Errors
/// The step that failed.
pub fn measure(
    cell: StreamCell,
    run: (&str, &Path),
    daemon: &Path,
    teardown: &Teardown,
) -> Result<StreamMeasured> {
    let mut application = ["stream_server.py", "-k", "1", "-s"].map(str::to_owned).to_vec();
    application.push(cell.snapshot_bytes.unwrap_or(0).to_string());
    if let Some(fast) = cell.fast_bytes {
        application.extend(["-d".to_owned(), fast.to_string()]);
    }
    let sample = INTERVAL.as_millis();
    let setting = SessionsSetting {
        servers: 2,
        rtt: Duration::ZERO,
        far: Duration::ZERO,
        service: format!(
            "transfer = \"lazy\"\npolicy = \"rate\"\nsample_ms = {sample}\nstrikes = {}\nhold_ms = {}",
            cell.strikes,
            4 * sample
        ),
        application,
    };
    let testbed = SessionsTestbed::start(run, daemon, &setting, teardown)?;
    let mut client = match cell.snapshot_bytes {
        Some(_) => testbed.connect()?,
        None => testbed.connect_plainly()?,
    };
    let begun = Instant::now();
    client.ask(STREAM_BYTES, INTERVAL)?;
    let (mut at, mut arrivals) = (0, Vec::new());
    while at < STREAM_BYTES {
        let count = client.read(at)?;
        ensure!(count > 0, "the stream ended after {at} bytes");
        at += count;
        arrivals.push((begun.elapsed(), at));
    }
    Ok(StreamMeasured {
        arrivals,
        moves: testbed.moves().len(),
    })
}
