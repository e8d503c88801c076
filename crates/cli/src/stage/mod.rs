//! `steadfast stage`: a relay before an HTTP application that lets no byte of a reply leave before the whole reply is at the backup.
//! `proto::restart::http::ReplyStage` decides; docs/restart-staged.md describes it.

mod connection;
mod server;
mod settings;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
pub use server::StageStatus;
pub use settings::StageSettings;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::metrics;
use crate::stop::stopped;
use connection::StagedConnection;
use server::{ROOM_UNIT, StageCounts, StageServer, count};

/// Maximum number of calls to the agent at the same time. Each takes a thread, and a call that waits for the backup takes it until the
/// backup has answered. Further calls wait.
const CALLS_MAX: usize = 256;
/// An idle thread for calls ends after this time.
const CALLER_IDLE: Duration = Duration::from_secs(10);
/// Stack of such a thread, in bytes. A call needs little.
const CALLER_STACK: usize = 256 << 10;
/// Connections that may wait in the kernel's queue of a listener.
const BACKLOG: i32 = 4096;
/// Pause after a failure to accept, for example if there is no free descriptor.
const PAUSE: Duration = Duration::from_millis(100);
/// How much longer than `stop_s` the process waits, in case a connection is late.
const STOP_MARGIN: Duration = Duration::from_secs(1);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// The step of the start that failed.
pub fn run(settings: StageSettings) -> anyhow::Result<()> {
    if let Err(error) = linux::process::raise_file_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files; each connection needs two descriptors");
    }
    let path = settings.snapshot_socket.clone();
    if snapshots::use_agent(path).is_err() {
        anyhow::bail!("this process uses another agent already");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(CALLS_MAX)
        .thread_keep_alive(CALLER_IDLE)
        .thread_stack_size(CALLER_STACK)
        .build()
        .context("the runtime")?;
    let done = runtime.block_on(serve(settings));
    runtime.shutdown_background(); // a call that still waits for the agent does not delay the end
    done
}

async fn serve(settings: StageSettings) -> anyhow::Result<()> {
    let stop = stopped()?;
    let (stopping, _) = watch::channel(false);
    let stop_time = settings.stop_time;
    let places = Arc::new(Semaphore::new(settings.connections_max));
    let server = Arc::new(StageServer {
        room: Arc::new(Semaphore::new(settings.memory / ROOM_UNIT)),
        places: Arc::clone(&places),
        counts: StageCounts::default(),
        settings,
    });
    if let Some(listen) = server.settings.metrics {
        let server = Arc::clone(&server);
        metrics::serve(listen, move || Ok(metrics::stage_exposition(&server.status())))?;
    }
    let mut accepting = Vec::new();
    for &address in &server.settings.listen {
        let listener = listen(address).with_context(|| format!("listening at {address}"))?;
        let accept = accept(Arc::clone(&server), listener, stopping.clone());
        accepting.push(tokio::spawn(accept));
    }
    tracing::info!(application = %server.settings.application, listen = ?server.settings.listen, "ready");
    stop.await;
    for accept in &accepting {
        accept.abort(); // closes the listener
    }
    stopping.send_replace(true);
    let all = u32::try_from(server.settings.connections_max).expect("at most 2^20");
    let ended = tokio::time::timeout(stop_time + STOP_MARGIN, places.acquire_many(all)).await;
    let StageCounts {
        accepted,
        restored,
        kept,
        without_backup,
        not_exported,
        unanswered,
        ..
    } = &server.counts;
    tracing::info!(
        in_order = ended.is_ok(),
        ?accepted,
        ?restored,
        ?kept,
        ?without_backup,
        ?not_exported,
        ?unanswered,
        "stopped"
    );
    Ok(())
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?; // both families may have a listener at the same port
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn accept(server: Arc<StageServer>, listener: TcpListener, stopping: watch::Sender<bool>) {
    loop {
        let Ok(place) = Arc::clone(&server.places).acquire_owned().await else {
            return; // never closed
        };
        match listener.accept().await {
            Ok((client, address)) => {
                let (server, stopping) = (Arc::clone(&server), stopping.subscribe());
                tokio::spawn(async move {
                    serve_client(Arc::clone(&server), client, address, stopping).await;
                    count(&server.counts.ended);
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a client was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve_client(
    server: Arc<StageServer>,
    client: TcpStream,
    address: SocketAddr,
    stopping: watch::Receiver<bool>,
) {
    count(&server.counts.accepted);
    let _ = client.set_nodelay(true); // a slower connection is no failure
    match StagedConnection::begin(server, client, address, stopping).await {
        Ok(connection) => connection.run().await,
        Err(reason) => tracing::debug!(%address, %reason, "a client's connection is not served"),
    }
}
