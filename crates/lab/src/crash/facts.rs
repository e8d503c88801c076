//! The facts of a run, from its clients, its daemons and the judge.

use std::collections::BTreeMap;
use std::time::{Duration, Instant as Deadline};

use anyhow::{Context, Result};
use proto::Instant;
use serde::Serialize;

use super::random::RandomReplies;
use crate::client::ClientReport;
use crate::clock::{ClockOffset, as_nanos, as_optional_nanos};
use crate::node::{AtLimitOption, ReportedConnection, ReportedTakeover};
use crate::pair::aftermath::Aftermath;
use crate::pair::expect::BACKUP;
use crate::pair::fault::CrashTarget;
use crate::pair::integration::Integration;
use crate::pair::judged::JudgedRun;
use crate::pair::testbed::Testbed;

/// Maximum wait before the fault until a log has reached its limit.
const LIMIT_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two reads of the status.
const LIMIT_POLL: Duration = Duration::from_millis(10);
/// Text in the reason of a connection that is unprotected because its log is full.
const AT_LIMIT: &str = "the log reached its limit";

/// Indices of the clients' measurements: the fault, the time before it, the event after it, and a node's return. With rounds, each round
/// has three measurements: the fault, the time before it, and the return.
pub const FAULT: usize = 0;
pub const BEFORE: usize = 1;
pub const AFTER: usize = 2;
pub const RETURN: usize = 3;

/// The results of a run.
#[derive(Serialize)]
pub struct RunFacts {
    /// The clients' measurements.
    pub client: ClientReport,
    /// Number of idle connections, if other connections are at work. The first connections are the idle ones.
    pub idle: usize,
    /// The node that the fault hit.
    pub target: CrashTarget,
    /// The events since the fault. With rounds, since the first fault.
    #[serde(flatten)]
    pub aftermath: Aftermath,
    /// The rounds, if the run has rounds.
    pub rounds: Vec<CrashRound>,
    /// What random replies show, if the server's replies are random.
    pub random: Option<RandomReplies>,
    /// The log just before the fault, if the run tests a log's limit.
    pub log: Option<LogAtFault>,
    /// Offset from the monotonic clock to the wall clock. The captures and the verdict have wall-clock times. All other fields have
    /// monotonic times.
    pub clock: ClockOffset,
    /// The captures, and the judge's verdict on them.
    #[serde(flatten)]
    pub judged: JudgedRun,
}

/// State of the wire's logs just before a fault.
#[derive(Clone, Debug, Serialize)]
pub struct LogAtFault {
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Bytes in files.
    pub spilled_bytes: u64,
    /// Connections whose clients are slowed.
    pub slowed: u64,
    /// Number of connections for each state of protection.
    pub connections: BTreeMap<String, u64>,
    /// Number of unprotected connections for each reason.
    pub reasons: BTreeMap<String, u64>,
    /// Number of times the status was read.
    pub reads: u64,
    /// Largest number of bytes in memory that one of these reads found.
    pub memory_bytes_max: u64,
}

impl LogAtFault {
    /// Waits until the status shows the `at_limit` action in progress, but at most for [`LIMIT_PATIENCE`]. One read of the status is not
    /// enough: the clients may run in step, so that at some moments no connection's log is at its limit.
    ///
    /// # Errors
    /// If the backup's agent does not answer.
    pub fn wait(testbed: &Testbed, at_limit: AtLimitOption) -> Result<Self> {
        let deadline = Deadline::now() + LIMIT_PATIENCE;
        let mut log = Self::of(testbed)?;
        while !log.shows(at_limit) && Deadline::now() < deadline {
            std::thread::sleep(LIMIT_POLL);
            let next = Self::of(testbed)?;
            log = Self {
                reads: log.reads + 1,
                memory_bytes_max: log.memory_bytes_max.max(next.memory_bytes),
                ..next
            };
        }
        Ok(log)
    }

    /// Whether the `at_limit` action was in progress.
    pub fn shows(&self, at_limit: AtLimitOption) -> bool {
        match at_limit {
            AtLimitOption::Spill => self.spilled_bytes > 0,
            AtLimitOption::Slow => self.slowed > 0,
            AtLimitOption::Unprotect => self.reasons.keys().any(|reason| reason.contains(AT_LIMIT)),
        }
    }

    fn of(testbed: &Testbed) -> Result<Self> {
        let status = testbed.status(BACKUP)?;
        let service = status
            .services
            .into_iter()
            .next()
            .context("there is no service")?;
        Ok(Self {
            memory_bytes: service.log_bytes,
            spilled_bytes: service.spilled_bytes,
            slowed: service.slowed,
            connections: service.connections,
            reasons: service.reasons,
            reads: 1,
            memory_bytes_max: service.log_bytes,
        })
    }
}

/// One round.
#[derive(Serialize)]
pub struct CrashRound {
    /// Index of the node that the fault hit.
    pub node: usize,
    /// Whether the node was the primary. If not, it was the wire.
    pub was_primary: bool,
    /// When the fault happened.
    #[serde(serialize_with = "as_nanos")]
    pub fault_at: Instant,
    /// With fault `migrate-annex`: when connections were ordered to move from one annex to another.
    #[serde(skip)]
    pub moved_on_at: Vec<Instant>,
    /// When connections were ordered to move back. With fault `migrate`: when the service was ordered to follow its connections.
    #[serde(serialize_with = "as_optional_nanos")]
    pub handed_over_at: Option<Instant>,
    /// The survivor's takeovers in this round.
    pub takeovers: Vec<ReportedTakeover>,
    /// The survivor's connections after the takeovers.
    pub taken_over: Vec<ReportedConnection>,
    /// With fault `migrate-back`: milliseconds from the order of each move until the new wire protected all connections.
    pub protected_ms: Vec<f64>,
    /// How the node came back.
    pub integration: Integration,
}
