//! Carries out applications' requests.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use linux::application::{ApplicationProgress, ProgressError, bound_unsent, cookie, progress};
use linux::peer_process::PeerProcess;
use proto::Seq;
use proto::action::ServiceIndex;
use proto::export::{ExportOutcome, ExportPlace, STATE_MAX};
use proto::service::ExportCall;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

use super::request::{self, Answer, Operation, RequestAndConnection, Status};
use super::waiting::{ImportCounter, MovedConnections};
use crate::control::{Asker, ExportRequest};
use crate::keepers;

/// Longest wait for the outcome of an export. Longer than the wait of `proto::export`, which then ends first.
const OUTCOME_MAX: Duration = Duration::from_secs(60);

/// A service with policy `snapshot`.
pub struct SnapshotService {
    pub index: ServiceIndex,
    pub vip: SocketAddr,
    pub application: SocketAddr,
}

/// Looks up the sequence numbers of the first bytes of a local connection's input and output, by its own address and its peer's.
pub(super) type StreamStarts =
    Box<dyn Fn(SocketAddr, SocketAddr) -> io::Result<Option<(Seq, Seq)>> + Send + Sync>;

/// Looks up the sequence numbers at which the two streams of a client's relayed connection to an application began. It asks the keepers.
pub(super) type RelayedStarts =
    Arc<dyn Fn(SocketAddr, SocketAddr) -> io::Result<Option<(Seq, Seq)>> + Send + Sync>;

/// Hides a client's connection to a service from its end (`true`), or does so no longer.
pub(super) type SetHidden = Arc<dyn Fn(ServiceIndex, SocketAddr, bool) + Send + Sync>;

/// How long an application may take to send a state. Its room is taken meanwhile.
pub(super) const STATE_TIME: Duration = Duration::from_secs(10);

async fn within_limit<T>(receiving: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(STATE_TIME, receiving)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
}

/// What the requests of all applications share.
pub(super) struct SnapshotServer {
    pub services: Vec<SnapshotService>,
    pub state_dir: PathBuf,
    pub asker: Asker,
    /// Room for states that are being received.
    pub receiving: Semaphore,
    pub imported: ImportCounter,
    pub moved: MovedConnections,
    pub set_hidden: SetHidden,
    pub stream_starts: StreamStarts,
    pub relayed_starts: RelayedStarts,
}

/// Closes the descriptor of an application's connection. If the application has been killed meanwhile, this descriptor is the connection's
/// last one, so this process ends the connection. The kernel's program sees no death then, and the client would hear the end.
pub(super) struct LastClose {
    pub service: ServiceIndex,
    pub client: SocketAddr,
    pub process: Arc<PeerProcess>,
    pub set_hidden: SetHidden,
    pub asker: Asker,
}

impl LastClose {
    /// Closes `connection` while the end is hidden, and looks afterwards whether the application is ending. If it is not, it still had the
    /// connection, or has closed it itself. Then the kernel repeats the hidden FIN.
    pub fn close(self, connection: OwnedFd) {
        self.hide(true);
        drop(connection);
        if self.tell() {
            return;
        }
        self.hide(false);
        // A process that began to end after the first look may have been noted by the kernel's program before the line above.
        if self.process.is_ending() {
            self.hide(true);
            self.tell();
        }
    }

    fn hide(&self, is_hidden: bool) {
        (self.set_hidden)(self.service, self.client, is_hidden);
    }

    /// Tells the agent's loop of the death, if the application is ending.
    fn tell(&self) -> bool {
        let is_ending = self.process.is_ending();
        if is_ending {
            self.asker.died(self.service, self.client);
        }
        is_ending
    }
}

impl SnapshotServer {
    /// Answers an application's requests until the application disconnects.
    pub async fn attend(&self, mut stream: UnixStream) -> io::Result<()> {
        let process = PeerProcess::of(stream.as_fd())
            .inspect_err(|error| tracing::debug!(%error, "the process of an application is not seen"));
        let process = process.ok().map(Arc::new);
        while let Some(head) = request::read_head(&stream).await? {
            let answer = self.answer(&mut stream, head, process.as_ref()).await?;
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

    /// Carries out a request.
    async fn answer(
        &self,
        stream: &mut UnixStream,
        head: RequestAndConnection,
        process: Option<&Arc<PeerProcess>>,
    ) -> io::Result<Answer> {
        let Some((operation, size, connection)) = head.parse() else {
            return Ok(Answer::of(Status::Malformed));
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        // The application does not use the connection during the call. So this can come before the state, which may take long: meanwhile this
        // process must not have the descriptor.
        let progress = self.progress(connection, process).await;
        match operation {
            Operation::Import => self.import(size, progress).await,
            Operation::Export { .. } if size > STATE_MAX => {
                let mut state = stream.take(size as u64);
                let mut nowhere = tokio::io::sink();
                within_limit(tokio::io::copy(&mut state, &mut nowhere)).await?; // the next request begins behind it
                Ok(Answer::sized(Status::TooLarge, STATE_MAX))
            }
            Operation::Export { waits } => {
                let room = u32::try_from(size).expect("at most STATE_MAX");
                let room = self
                    .receiving
                    .acquire_many(room)
                    .await
                    .map_err(io::Error::other)?;
                let mut state = vec![0; size];
                within_limit(stream.read_exact(&mut state)).await?;
                drop(room); // from here on the agent's loop bounds the states
                self.export(waits, state, progress).await
            }
        }
    }

    async fn export(
        &self,
        waits: bool,
        state: Vec<u8>,
        progress: Result<ApplicationProgress, Status>,
    ) -> io::Result<Answer> {
        let progress = match progress {
            Ok(progress) => progress,
            Err(status) => return Ok(Answer::of(status)),
        };
        let Some((service, is_relayed)) = self.find(progress.local) else {
            return Ok(Answer::of(Status::NotProtected));
        };
        let (index, application) = (service.index, service.application);
        let begins_at = if is_relayed {
            let (starts, peer) = (Arc::clone(&self.relayed_starts), progress.peer);
            let asked = tokio::task::spawn_blocking(move || starts(peer, application));
            asked.await.map_err(io::Error::other)??
        } else {
            (self.stream_starts)(progress.local, progress.peer)?
        };
        // Only at the end: the connection may move during this call.
        let unprotected = || match is_relayed && self.moved.has_left(index, progress.peer) {
            true => Answer::of(Status::Moved),
            false => Answer::done(false),
        };
        let Some((input, output)) = begins_at else {
            return Ok(unprotected()); // a local program's own connection to the application, or one that has just ended
        };
        // Sequence numbers count modulo 2³².
        let place = ExportPlace {
            input: input + progress.read as u32,
            output: output + progress.written as u32,
        };
        let call = ExportCall {
            call: 0, // the agent's loop numbers the calls
            waits,
            client: progress.peer,
            place,
            state: state.into(),
        };
        let request = ExportRequest { service: index, call };
        let outcome = tokio::time::timeout(OUTCOME_MAX, self.asker.export(request)).await;
        Ok(match outcome {
            Ok(Some(ExportOutcome::Kept)) => Answer::done(true),
            Ok(Some(ExportOutcome::NotKept(_))) => unprotected(),
            // This node has taken over single connections and does not serve the service: it has no backup for them.
            Ok(Some(ExportOutcome::Moved)) if is_relayed => unprotected(),
            Ok(Some(ExportOutcome::Moved)) => Answer::of(Status::Moved),
            Ok(Some(ExportOutcome::TimedOut)) | Err(_) => Answer::of(Status::TimedOut),
            Ok(None) => return Err(io::ErrorKind::ConnectionAborted.into()), // the agent stops: its successor is asked again
        })
    }

    /// How far the application has used its connection, or the answer if this is not known. From now on, it writes only a bounded amount ahead.
    ///
    /// Closes the descriptor, so that the application's own close, or its death, still ends the connection. On another thread: the
    /// application may have set SO_LINGER, with which the close may wait.
    async fn progress(
        &self,
        connection: OwnedFd,
        process: Option<&Arc<PeerProcess>>,
    ) -> Result<ApplicationProgress, Status> {
        let progress = progress(&connection).inspect(|_| {
            let _ = bound_unsent(&connection); // it fails only for a connection that has just ended
        });
        let has_moved = cookie(&connection).is_ok_and(|socket| self.moved.contains(socket));
        let closing = progress
            .as_ref()
            .ok()
            .zip(process)
            .and_then(|(progress, process)| {
                Some(LastClose {
                    service: self.find(progress.local)?.0.index,
                    client: progress.peer,
                    process: Arc::clone(process),
                    set_hidden: Arc::clone(&self.set_hidden),
                    asker: self.asker.clone(),
                })
            });
        drop(tokio::task::spawn_blocking(move || match closing {
            Some(closing) => closing.close(connection),
            None => drop(connection),
        }));
        match progress {
            Ok(progress) => Ok(progress),
            Err(_) if has_moved => Err(Status::Moved),
            Err(ProgressError::NotAConnection) => Err(Status::NotProtected),
            Err(ProgressError::Restless) => Err(Status::TimedOut),
            Err(ProgressError::Ended(local)) => match self.find(local) {
                Some((service, false)) if self.asker.has_moved(service.index).await => Err(Status::Moved),
                Some(_) => Err(Status::Ended),
                None => Err(Status::NotProtected),
            },
        }
    }

    async fn import(&self, room: usize, progress: Result<ApplicationProgress, Status>) -> io::Result<Answer> {
        let progress = match progress {
            Ok(progress) => progress,
            Err(status) => return Ok(Answer::of(status)),
        };
        let service = match self.find(progress.local) {
            None => return Ok(Answer::of(Status::NotProtected)),
            Some((_, false)) => return Ok(Answer::done(false)), // the client's own connection to this node
            Some((service, true)) => service.index,
        };
        let state_dir = self.state_dir.clone();
        let asked =
            tokio::task::spawn_blocking(move || keepers::import(&state_dir, progress.peer, progress.local));
        let state = asked.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
        Ok(match state {
            None => Answer::done(false),
            Some(state) if state.len() > room => Answer::sized(Status::SmallBuffer, state.len()),
            Some(state) => {
                self.imported.count(service);
                Answer::with_state(&state)
            }
        })
    }
}
