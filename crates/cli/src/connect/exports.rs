//! The socket at which a server's applications export and import their state for sessions. It speaks the protocol of the libraries in
//! `bindings/`, as the agent of a pair does.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use linux::application::{ApplicationProgress, ProgressError, progress};
use proto::export::STATE_MAX;
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

use crate::daemon::snapshots::request::{self, Answer, Operation, RequestAndConnection, Status};

/// Longest wait of an application's call. The libraries' contract says 30 s.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Pause after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// The sessions, as applications see them.
pub trait SessionDesk {
    /// An application exports its state. `Ok(None)`: nobody waits for the outcome, or no other host keeps the state.
    fn export(
        &self,
        at: &ApplicationProgress,
        state: Arc<[u8]>,
        waits: bool,
    ) -> Result<Option<oneshot::Receiver<Status>>, Status>;
    /// The state from which an application goes on. `None`: it begins.
    fn import(&self, at: &ApplicationProgress) -> Result<Option<Arc<[u8]>>, Status>;
    /// What has become of a connection to this application that has ended.
    fn ended(&self, application: SocketAddr) -> Status;
}

/// The socket's file. Dropping it removes the file.
pub struct ExportSocket(pub PathBuf);

impl Drop for ExportSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Serves applications.
pub async fn serve(listener: UnixListener, desk: Rc<dyn SessionDesk>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let desk = Rc::clone(&desk);
                tokio::task::spawn_local(async move {
                    if let Err(error) = attend(stream, &*desk).await {
                        tracing::debug!(%error, "an application's requests ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "an application that wants to export or import its state was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn attend(mut stream: UnixStream, desk: &dyn SessionDesk) -> io::Result<()> {
    while let Some(head) = request::read_head(&stream).await? {
        let answer = answer(&mut stream, desk, head).await?;
        let is_understood = answer.status != Status::Malformed;
        request::write(&mut stream, answer).await?;
        if !is_understood {
            break; // the position of the next request is unknown
        }
    }
    Ok(())
}

async fn answer(
    stream: &mut UnixStream,
    desk: &dyn SessionDesk,
    head: RequestAndConnection,
) -> io::Result<Answer> {
    let Some((operation, size, connection)) = head.parse() else {
        return Ok(Answer::of(Status::Malformed));
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut state = Vec::new();
    if let Operation::Export { .. } = operation {
        if size > STATE_MAX {
            let mut excess = stream.take(size as u64);
            tokio::io::copy(&mut excess, &mut tokio::io::sink()).await?; // the next request begins behind it
            return Ok(Answer::sized(Status::TooLarge, STATE_MAX));
        }
        state.resize(size, 0);
        stream.read_exact(&mut state).await?;
    }
    let at = match progress(&connection) {
        Ok(at) => at,
        Err(ProgressError::NotAConnection) => return Ok(Answer::of(Status::NotProtected)),
        Err(ProgressError::Restless) => return Ok(Answer::of(Status::TimedOut)),
        Err(ProgressError::Ended(local)) => return Ok(Answer::of(desk.ended(local))),
    };
    drop(connection);
    match operation {
        Operation::Import => Ok(match desk.import(&at) {
            Err(status) => Answer::of(status),
            Ok(None) => Answer::done(false),
            Ok(Some(state)) if state.len() > size => Answer::sized(Status::SmallBuffer, state.len()),
            Ok(Some(state)) => Answer::with_state(&state),
        }),
        Operation::Export { waits } => Ok(match desk.export(&at, state.into(), waits) {
            Err(status) => Answer::of(status),
            Ok(None) => Answer::done(!waits),
            Ok(Some(outcome)) => match tokio::time::timeout(WAIT_MAX, outcome).await {
                Ok(Ok(Status::Done)) => Answer::done(true),
                Ok(Ok(status)) => Answer::of(status),
                Ok(Err(_)) => Answer::of(Status::Ended),
                Err(_) => Answer::of(Status::TimedOut),
            },
        }),
    }
}
