//! Policy `snapshot`: the socket at which local applications export and import their state (docs/restart-snapshot.md).
//!
//! ```text
//!   application ── export ──▶ this thread ──▶ the agent's loop ── parts ──▶ the peer
//!               ── import ──▶ this thread ──▶ the keeper that relays the connection
//! ```
//!
//! One thread serves all applications. A request brings the descriptor of its connection. So an application can name only connections that
//! it has, whoever it runs as, and this thread reads from the kernel how far the application has used the connection.

mod request;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use proto::action::ServiceIndex;
use proto::export::ExportOutcome;
use proto::follower::RestartPolicy;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};

use crate::config::Config;
use crate::control::Asker;
use request::Status;

/// Maximum number of connections of applications. Others wait in the kernel's queue.
const CLIENTS_MAX: usize = 16_384;
/// Bytes of states that are being received at the same time. Further requests wait.
const RECEIVING_MAX: usize = 64 << 20;
/// Pause after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for the outcome of an export. Longer than the wait of `proto::export`, which then ends first.
const OUTCOME_MAX: Duration = Duration::from_secs(60);

/// The counters of calls by their outcome.
const OUTCOMES: [&str; 4] = [
    "snapshots_kept",
    "snapshots_not_kept",
    "snapshots_moved",
    "snapshots_timed_out",
];

/// A service with policy `snapshot`.
struct SnapshotService {
    index: ServiceIndex,
    vip: SocketAddr,
    application: SocketAddr,
}

/// What the requests of all applications share.
struct SnapshotServer {
    services: Vec<SnapshotService>,
    state_dir: PathBuf,
    asker: Asker,
    receiving: Semaphore,
    imported: ImportCounter,
}

/// The socket's file. Dropping it removes the file.
pub struct SnapshotSocket(PathBuf);

impl Drop for SnapshotSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Serves applications on a separate thread, if a service has policy `snapshot`.
///
/// # Errors
/// The step that failed.
pub fn serve(
    config: &Config,
    asker: &Asker,
    imported: ImportCounter,
) -> anyhow::Result<Option<SnapshotSocket>> {
    let services = (0..).zip(&config.services);
    let services = services.filter(|(_, service)| service.policy == RestartPolicy::Snapshot);
    let services: Vec<_> = services
        .map(|(index, service)| SnapshotService {
            index,
            vip: (service.address, service.port).into(),
            application: service.application,
        })
        .collect();
    if services.is_empty() {
        return Ok(None);
    }
    let server = Arc::new(SnapshotServer {
        services,
        state_dir: config.node.state_dir.clone(),
        asker: asker.clone(),
        receiving: Semaphore::new(RECEIVING_MAX),
        imported,
    });
    let path = &config.node.snapshot_socket;
    let failed = || format!("the socket for snapshots at {}", path.display());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .with_context(failed)?;
    let listener = {
        let _in_runtime = runtime.enter();
        open(path).with_context(failed)?
    };
    let socket = SnapshotSocket(path.clone());
    std::thread::Builder::new()
        .name("snapshots".into())
        .spawn(move || {
            if let Err(error) = linux::process::yield_precedence() {
                tracing::debug!(%error, "snapshots are served at the agent's priority");
            }
            runtime.block_on(accept(&listener, server));
        })
        .with_context(failed)?;
    Ok(Some(socket))
}

/// Opens the socket for every user: the descriptor in a request shows the right to make it. Replaces the socket of a dead agent.
fn open(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let hidden = path.with_extension("new");
    match fs::remove_file(&hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&hidden)?;
    fs::set_permissions(&hidden, Permissions::from_mode(0o666))?;
    fs::rename(&hidden, path)?;
    Ok(listener)
}

async fn accept(listener: &UnixListener, server: Arc<SnapshotServer>) {
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    if let Err(error) = server.attend(stream).await {
                        tracing::debug!(%error, "an application's requests for snapshots ended");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "an application that wants to export or import its state was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl SnapshotServer {
    /// Answers an application's requests until the application disconnects.
    async fn attend(&self, mut stream: UnixStream) -> io::Result<()> {
        while let Some(head) = request::read_head(&stream).await? {
            let answer = self.answer(&mut stream, head).await?;
            let is_understood = answer.status != Status::Malformed;
            request::write(&mut stream, answer).await?;
            if !is_understood {
                break; // the position of the next request is unknown
            }
        }
        Ok(())
    }

    /// The service and the client of a connection, if the service's policy is `snapshot`. `true`: the keeper relays the connection.
    fn find(&self, local: SocketAddr) -> Option<(&SnapshotService, bool)> {
        self.services.iter().find_map(|service| {
            let is_relayed = local == service.application;
            (is_relayed || local == service.vip).then_some((service, is_relayed))
        })
    }
}

/// The applications' calls that wait for their outcome, for the agent's loop.
#[derive(Default)]
pub struct WaitingExports {
    last: u64,
    waiting: BTreeMap<u64, oneshot::Sender<ExportOutcome>>,
    /// Number of calls that had an outcome, by service and outcome.
    outcomes: BTreeMap<(ServiceIndex, &'static str), u64>,
    imported: ImportCounter,
}

/// Counts the states that applications have imported, by service. Clones share the counts.
#[derive(Clone, Default)]
pub struct ImportCounter(Arc<Mutex<BTreeMap<ServiceIndex, u64>>>);

impl ImportCounter {
    fn count(&self, service: ServiceIndex) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(service).or_default() += 1;
    }

    fn of(&self, service: ServiceIndex) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&service).copied().unwrap_or(0)
    }
}

impl WaitingExports {
    /// Begins a call. With `reply`, somebody waits for its outcome. Returns its number.
    pub fn begin(&mut self, reply: Option<oneshot::Sender<ExportOutcome>>) -> u64 {
        self.last += 1;
        if let Some(reply) = reply {
            self.waiting.insert(self.last, reply);
        }
        self.last
    }

    /// The counter for the thread that serves applications.
    pub fn import_counter(&self) -> ImportCounter {
        self.imported.clone()
    }

    /// Number of calls of a service that had each outcome, and number of imports.
    pub fn counters(&self, service: ServiceIndex) -> impl Iterator<Item = (String, u64)> {
        let outcomes = OUTCOMES.into_iter().map(move |outcome| {
            let count = self.outcomes.get(&(service, outcome));
            (outcome.to_owned(), count.copied().unwrap_or(0))
        });
        let imported = ("snapshots_imported".to_owned(), self.imported.of(service));
        outcomes.chain([imported])
    }

    /// Tells the callers the outcome.
    pub fn finish(&mut self, service: ServiceIndex, calls: &[u64], outcome: &ExportOutcome) {
        let name = match outcome {
            ExportOutcome::Kept => OUTCOMES[0],
            ExportOutcome::NotKept(_) => OUTCOMES[1],
            ExportOutcome::Moved => OUTCOMES[2],
            ExportOutcome::TimedOut => OUTCOMES[3],
        };
        *self.outcomes.entry((service, name)).or_default() += calls.len() as u64;
        for call in calls {
            if let Some(reply) = self.waiting.remove(call) {
                let _ = reply.send(outcome.clone()); // fails only if the application has gone away
            }
        }
    }
}
