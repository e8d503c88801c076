//! Policy `snapshot`: the socket at which local applications export and import their state (docs/restart-snapshot.md).
//!
//! ```text
//!   application ── export ──▶ this thread ──▶ the agent's loop ── parts ──▶ the peer
//!               ── import ──▶ this thread ──▶ the keeper that relays the connection
//! ```
//!
//! One thread serves all applications. A request brings the descriptor of its connection. So an application can name only connections that
//! it has, whoever it runs as, and this thread reads from the kernel how far the application has used the connection.

pub(crate) mod request;
mod server;
#[cfg(test)]
mod tests;
mod waiting;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use linux::application::SequenceNumbers;
use linux::wire::HiddenEnds;
use proto::follower::RestartPolicy;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::control::Asker;
use crate::keepers;
pub use server::SnapshotService;
use server::{SnapshotServer, StreamStarts};
pub use waiting::{MovedConnections, WaitingExports};

/// Maximum number of connections of applications. Others wait in the kernel's queue.
const CLIENTS_MAX: usize = 16_384;
/// Bytes of states that are being received at the same time. Further requests wait.
const RECEIVING_MAX: usize = 64 << 20;
/// Pause after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// The socket's file. Dropping it removes the file.
pub struct SnapshotSocket(PathBuf);

impl Drop for SnapshotSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What applications may export and import: the services with policy `snapshot`, and where.
pub struct SnapshotPlace<'a> {
    pub services: Vec<SnapshotService>,
    /// The socket.
    pub socket: &'a Path,
    /// The directory of the keepers' sockets.
    pub state_dir: &'a Path,
    pub ends: HiddenEnds,
}

impl<'a> SnapshotPlace<'a> {
    /// The place of a node of a pair.
    pub fn of(config: &'a Config, ends: HiddenEnds) -> Self {
        let services = (0..).zip(&config.services);
        let services = services.filter(|(_, service)| service.policy == RestartPolicy::Snapshot);
        let services = services.map(|(index, service)| SnapshotService {
            index,
            vip: (service.address, service.port).into(),
            application: service.application,
        });
        Self {
            services: services.collect(),
            socket: &config.node.snapshot_socket,
            state_dir: &config.node.state_dir,
            ends,
        }
    }
}

/// Serves applications on a separate thread, if there are services for them.
///
/// # Errors
/// The step that failed.
pub fn serve(
    place: SnapshotPlace<'_>,
    asker: &Asker,
    waiting: &WaitingExports,
) -> anyhow::Result<Option<SnapshotSocket>> {
    if place.services.is_empty() {
        return Ok(None);
    }
    let numbers = SequenceNumbers::load().context("the program that looks up sequence numbers")?;
    let numbers = Mutex::new(numbers);
    let stream_starts: StreamStarts = Box::new(move |local, peer| {
        let numbers = numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.stream_starts(local, peer).map_err(io::Error::other)
    });
    let ends = place.ends;
    let keepers_at = place.state_dir.to_owned();
    let server = Arc::new(SnapshotServer {
        services: place.services,
        state_dir: place.state_dir.to_owned(),
        asker: asker.clone(),
        receiving: Semaphore::new(RECEIVING_MAX),
        imported: waiting.import_counter(),
        moved: waiting.moved(),
        set_hidden: Arc::new(move |service, client, is_hidden| match is_hidden {
            true => ends.hide(service, client),
            false => ends.show(service, client),
        }),
        stream_starts,
        relayed_starts: Arc::new(move |peer, application| {
            keepers::begin(&keepers_at, peer, application).map_err(io::Error::other)
        }),
    });
    let path = place.socket;
    let failed = || format!("the socket for snapshots at {}", path.display());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .with_context(failed)?;
    let listener = {
        let _in_runtime = runtime.enter();
        open(path).with_context(failed)?
    };
    let socket = SnapshotSocket(path.to_owned());
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
pub(crate) fn open(path: &Path) -> io::Result<UnixListener> {
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
