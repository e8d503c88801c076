//! The node's side of the control socket: a thread that hands requests to the run loop and writes the answers.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use proto::action::ServiceIndex;
use proto::export::ExportOutcome;
use proto::service::ExportCall;
use serde::Serialize;
use tokio::sync::oneshot;

use super::line::LineStream;
use super::{
    AcceptStatus, AnnexDaemonStatus, ConnectStatus, Connections, ControlRequest, EdgeStatus, NodeStatus,
    Order, Response, RestoredConnections, TunnelStatus, socket,
};

/// Timeout for a request and its answer on the socket.
const DEADLINE: Duration = Duration::from_secs(5);

/// How long the run loop may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pause after a failure to accept a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum length of a request, in bytes.
const REQUEST: usize = 4096;

/// A step of opening the control socket that failed.
#[derive(Debug, thiserror::Error)]
#[error("control socket {}: {step}: {source}", path.display())]
pub struct ControlServerError {
    path: PathBuf,
    step: &'static str,
    source: io::Error,
}

/// A question to the run loop, with the channel for its answer.
#[derive(Debug)]
pub enum Call {
    /// Asks for the node's status.
    Status(CallReply<NodeStatus>),
    /// Asks for the node's connections.
    Connections(CallReply<Connections>),
    /// Asks about the connections that the node has taken over.
    Restored(CallReply<RestoredConnections>),
    /// Asks for the status of an edge.
    Edge(CallReply<EdgeStatus>),
    /// Asks for the status of an annex.
    Annex(CallReply<AnnexDaemonStatus>),
    /// Asks for the status of a tunnel.
    Tunnel(CallReply<TunnelStatus>),
    /// Asks for the status of a proxy.
    Connect(CallReply<ConnectStatus>),
    /// Asks for the status of a server's half.
    Accept(CallReply<AcceptStatus>),
    /// Gives an order; an error says why it is refused.
    Order(Order, CallReply<Result<(), String>>),
    /// An application exports its state.
    Export(ExportRequest, oneshot::Sender<ExportOutcome>),
    /// Asks whether another node serves the connections that a service had on this node.
    HasMoved(ServiceIndex, oneshot::Sender<bool>),
    /// The process that had this client's connection to a service is dead.
    Died(ServiceIndex, SocketAddr),
}

/// An application's call of `export_state`.
#[derive(Debug)]
pub struct ExportRequest {
    /// The service.
    pub service: ServiceIndex,
    /// The call. The run loop numbers it. If the application does not wait for the outcome, the answer comes as soon as the run loop has the
    /// state.
    pub call: ExportCall,
}

/// Sending end of the channel for the answer to a [`Call`].
#[derive(Debug)]
pub struct CallReply<T>(SyncSender<T>);

impl<T> CallReply<T> {
    /// Answers. Never blocks; it is no error if the asker has gone away.
    pub fn send(self, answer: T) {
        let _ = self.0.try_send(answer);
    }
}

/// Puts questions to the run loop.
#[derive(Clone)]
pub struct Asker {
    calls: Sender<Call>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asker")
    }
}

impl Asker {
    /// The node's status.
    ///
    /// # Errors
    /// Why there is no answer, as a sentence: the node is stopping, or does not answer in time.
    pub fn status(&self) -> Result<NodeStatus, String> {
        self.ask(Call::Status)
    }

    /// The node's connections.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn connections(&self) -> Result<Connections, String> {
        self.ask(Call::Connections)
    }

    /// The connections that the node has taken over.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn restored(&self) -> Result<RestoredConnections, String> {
        self.ask(Call::Restored)
    }

    /// Gives the node an order. The node has begun to carry it out when this returns.
    ///
    /// # Errors
    /// As [`status`](Self::status), or why the order is refused.
    pub fn order(&self, order: Order) -> Result<(), String> {
        self.ask(|reply| Call::Order(order, reply))?
    }

    /// The status of an edge.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn edge(&self) -> Result<EdgeStatus, String> {
        self.ask(Call::Edge)
    }

    /// The status of an annex.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn annex(&self) -> Result<AnnexDaemonStatus, String> {
        self.ask(Call::Annex)
    }

    /// The status of a tunnel.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn tunnel(&self) -> Result<TunnelStatus, String> {
        self.ask(Call::Tunnel)
    }

    /// The status of a proxy.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn connect(&self) -> Result<ConnectStatus, String> {
        self.ask(Call::Connect)
    }

    /// The status of a server's half.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn accept(&self) -> Result<AcceptStatus, String> {
        self.ask(Call::Accept)
    }

    /// Exports an application's state. `None`: the node is stopping.
    pub async fn export(&self, request: ExportRequest) -> Option<ExportOutcome> {
        let (reply, outcome) = oneshot::channel();
        self.calls.send(Call::Export(request, reply)).ok()?;
        (self.wake)();
        outcome.await.ok()
    }

    /// Whether another node serves the connections that the service had on this node.
    pub async fn has_moved(&self, service: ServiceIndex) -> bool {
        let (reply, answer) = oneshot::channel();
        if self.calls.send(Call::HasMoved(service, reply)).is_err() {
            return false;
        }
        (self.wake)();
        answer.await.unwrap_or(false)
    }

    /// Tells the node that the process which had this client's connection is dead.
    pub fn died(&self, service: ServiceIndex, client: SocketAddr) {
        if self.calls.send(Call::Died(service, client)).is_ok() {
            (self.wake)();
        }
    }

    fn ask<T>(&self, call: impl FnOnce(CallReply<T>) -> Call) -> Result<T, String> {
        let (reply, answer) = sync_channel(1);
        let gone = || "the node is stopping".to_owned();
        self.calls.send(call(CallReply(reply))).map_err(|_| gone())?;
        (self.wake)();
        answer.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("the node did not answer within {PATIENCE:?}"),
            RecvTimeoutError::Disconnected => gone(),
        })
    }
}

/// The open control socket. Dropping it closes the socket and removes its file.
#[derive(Debug)]
pub struct ControlServer {
    path: PathBuf,
    listener: Arc<UnixListener>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Opens the control socket in `state_dir`. Replaces a socket that a dead node left behind. No living node can have left it,
    /// because the caller holds the node's lock. After each [`Call`] is sent to the receiver, the asker's thread runs `wake`, which can
    /// wake a run loop that sleeps in `poll`. The returned [`Asker`] sends to the same receiver.
    ///
    /// # Errors
    /// If the socket or the thread cannot be made.
    pub fn open(
        state_dir: &Path,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Self, Asker, Receiver<Call>), ControlServerError> {
        let path = socket(state_dir);
        let failed = |step| {
            let path = path.clone();
            move |source| ControlServerError { path, step, source }
        };
        // The socket has another name until its permissions let only root connect.
        let hidden = path.with_extension("sock.new");
        if let Err(error) = fs::remove_file(&hidden)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(failed("remove the old one")(error));
        }
        let listener = Arc::new(UnixListener::bind(&hidden).map_err(failed("bind"))?);
        fs::set_permissions(&hidden, Permissions::from_mode(0o600)).map_err(failed("set permissions"))?;
        fs::rename(&hidden, &path).map_err(failed("rename"))?;

        let (calls, receiver) = channel();
        let asker = Asker {
            calls,
            wake: Arc::new(wake),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (accepting, stopped, asks) = (Arc::clone(&listener), Arc::clone(&stop), asker.clone());
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept(&accepting, &stopped, &asks))
            .map_err(failed("start a thread"))?;
        Ok((
            Self {
                path,
                listener,
                stop,
                thread: Some(thread),
            },
            asker,
            receiver,
        ))
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // accept(2) returns at once when its socket is shut down.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, stop: &AtomicBool, asker: &Asker) {
    for stream in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                // Most likely there are no file descriptors left, so an immediate retry would not help.
                tracing::warn!(%error, "control request not accepted");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if let Err(error) = serve(stream, asker) {
            tracing::debug!(%error, "control request dropped");
        }
    }
}

/// Serves one client, one request.
fn serve(stream: UnixStream, asker: &Asker) -> io::Result<()> {
    let mut stream = LineStream::new(stream, DEADLINE);
    let line = stream.read(REQUEST)?;
    let response = match request_in(&line) {
        Ok(ControlRequest::Status) => answer(asker.status()),
        Ok(ControlRequest::Connections) => answer(asker.connections()),
        Ok(ControlRequest::Restored) => answer(asker.restored()),
        Ok(ControlRequest::Edge) => answer(asker.edge()),
        Ok(ControlRequest::Annex) => answer(asker.annex()),
        Ok(ControlRequest::Tunnel) => answer(asker.tunnel()),
        Ok(ControlRequest::Connect) => answer(asker.connect()),
        Ok(ControlRequest::Accept) => answer(asker.accept()),
        Ok(ControlRequest::Order(order)) => answer(asker.order(order)),
        Err(error) => to_line(&Response::<()>::Error(format!("not a request: {error}"))),
    };
    stream.write(response)
}

/// The request in a line, which must be a JSON object. Without this check, serde would accept an array, too.
fn request_in(line: &[u8]) -> serde_json::Result<ControlRequest> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line)?;
    serde_json::from_value(object.into())
}

/// The run loop's answer as a line.
fn answer<T: Serialize>(answer: Result<T, String>) -> Vec<u8> {
    to_line(&match answer {
        Ok(answer) => Response::Ok(answer),
        Err(error) => Response::Error(error),
    })
}

fn to_line<T: Serialize>(response: &Response<T>) -> Vec<u8> {
    serde_json::to_vec(response).expect("the answers have string keys only")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Mutex;

    use super::super::samples::status;
    use super::*;

    /// A run loop that answers at once, on the asker's thread.
    fn asker() -> Asker {
        let (calls, receiver) = channel();
        let receiver = Mutex::new(receiver);
        let wake = move || match receiver.lock().expect("one thread").recv().expect("the call") {
            Call::Status(reply) => reply.send(status()),
            Call::Connections(reply) => reply.send(Connections {
                connections: Vec::new(),
            }),
            Call::Restored(reply) => reply.send(RestoredConnections {
                connections: Vec::new(),
            }),
            Call::Order(_, reply) => reply.send(Ok(())),
            Call::Edge(_)
            | Call::Annex(_)
            | Call::Tunnel(_)
            | Call::Connect(_)
            | Call::Accept(_)
            | Call::Export(..)
            | Call::HasMoved(..)
            | Call::Died(..) => {}
        };
        Asker {
            calls,
            wake: Arc::new(wake),
        }
    }

    /// A fuzz target (docs/fuzzing.md).
    #[test]
    fn a_request_gets_one_line_or_nothing() {
        fuzz::target!("control_requests", |input| {
            let (mut client, served) = UnixStream::pair().expect("two sockets");
            client
                .write_all(&input[..input.len().min(2 * REQUEST)])
                .expect("room");
            client.shutdown(std::net::Shutdown::Write).expect("open");
            let outcome = serve(served, &asker());
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("text");
            let end = input
                .iter()
                .position(|byte| *byte == b'\n')
                .filter(|end| *end <= REQUEST);
            let Some(end) = end else {
                assert!(outcome.is_err() && answer.is_empty());
                return;
            };
            assert_eq!(answer.find('\n'), Some(answer.len() - 1), "one line");
            let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
            if answer.get("ok").is_some() {
                let request: serde_json::Value = serde_json::from_slice(&input[..end]).expect("JSON");
                let asked = request["request"].as_str().expect("what is asked for");
                assert!(["status", "connections", "restored", "order"].contains(&asked));
            } else {
                let error = answer["error"].as_str().expect("an error");
                assert!(error.len() <= 2 * REQUEST, "{error}");
            }
        });
    }
}
