//! The time that a move takes, against the size of the snapshot (the paper's Figure 6).

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use proto::session::frame::StateTransfer;

use super::testbed::{SERVERS, SessionsSetting, SessionsTestbed};
use crate::teardown::Teardown;

/// Time between two snapshots of a small state.
const INTERVAL_MIN: Duration = Duration::from_millis(5);
/// Bytes of snapshots per second that the servers are asked to make at most.
const SNAPSHOT_BYTES_PER_S: f64 = 20e6;
/// Number of connections whose times give the round-trip time.
const ROUND_TRIPS: usize = 31;
/// Number of attempts per run after which the measurement is given up.
const ATTEMPTS: usize = 20;

/// One kind of move.
#[derive(Clone, Debug)]
pub struct MovesCell {
    /// The round-trip time between any two hosts; zero: that of the cables.
    pub rtt: Duration,
    /// What this time is longer for server b.
    pub far: Duration,
    /// Where the state is kept.
    pub transfer: StateTransfer,
    /// Bytes of a snapshot.
    pub snapshot_bytes: u64,
    /// Number of moves.
    pub runs: usize,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct MovesMeasured {
    /// The round-trip time between client and server: the shortest time for opening a TCP connection.
    pub round_trip: Duration,
    /// The time of each move.
    pub took: Vec<Duration>,
}

/// The name of a transfer in the configuration.
pub const fn name(transfer: StateTransfer) -> &'static str {
    match transfer {
        StateTransfer::Lazy => "lazy",
        StateTransfer::Eager => "eager",
        StateTransfer::Client => "client",
    }
}

/// Measures one kind of move. One session moves there and back while its server streams and exports snapshots.
///
/// # Errors
/// The step that failed.
pub fn measure(
    cell: &MovesCell,
    run: (&str, &Path),
    daemon: &Path,
    teardown: &Teardown,
) -> Result<MovesMeasured> {
    let pause = Duration::from_secs_f64(cell.snapshot_bytes as f64 / SNAPSHOT_BYTES_PER_S).max(INTERVAL_MIN);
    let setting = SessionsSetting {
        servers: 2,
        rtt: cell.rtt,
        far: cell.far,
        service: format!("transfer = \"{}\"", name(cell.transfer)),
        application: [
            "stream_server.py",
            "-k",
            "1",
            "-s",
            &cell.snapshot_bytes.to_string(),
        ]
        .map(str::to_owned)
        .into(),
    };
    let testbed = SessionsTestbed::start(run, daemon, &setting, teardown)?;
    let mut trips = (0..ROUND_TRIPS)
        .map(|_| testbed.round_trip())
        .collect::<Result<Vec<_>>>()?;
    trips.sort();
    let mut client = testbed.connect()?;
    client.ask(1 << 40, pause)?;
    let mut reader = client.another()?;
    let reading = std::thread::spawn(move || -> Result<()> {
        let mut at = 0;
        loop {
            match reader.read(at)? {
                0 => return Ok(()),
                count => at += count,
            }
        }
    });
    let mut took = Vec::new();
    let mut attempts = 0;
    while took.len() < cell.runs {
        // The new owner makes a snapshot, which must reach the other server and the proxy.
        std::thread::sleep(pause * 3 + (cell.rtt + cell.far) * 3 + INTERVAL_MIN);
        ensure!(!reading.is_finished(), "the client's stream has ended");
        attempts += 1;
        ensure!(attempts <= ATTEMPTS * cell.runs, "moves fail: {cell:?}");
        let to = SERVERS[attempts % 2];
        took.extend(testbed.migrate(to)?.took);
    }
    ensure!(!reading.is_finished(), "the client's stream has ended");
    client.close();
    drop(reading.join()); // the connection ends by a reset or by an end
    Ok(MovesMeasured {
        round_trip: trips[0],
        took,
    })
}
