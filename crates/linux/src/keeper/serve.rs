//! The keeper's process: its control socket, its agents, and its end.

use std::io;
use std::net::TcpStream as StdStream;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen, socket};
use socket2::SockRef;
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal as on_signal};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

use super::channel::{self, Received, Room};
use super::input::LoggedInput;
use super::kept::Keeper;
use super::message::{AdoptionPlan, KeeperAnswer, KeeperRequest};
use super::relay::Relay;
use super::{KeeperClient, KeeperOptions};
use crate::own_file::OwnFile;

/// Pause after a connection of an agent could not be accepted. The likely cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An error that prevents the keeper from running.
#[derive(Debug, Error)]
#[error("keeper: {step}: {source}")]
pub struct KeeperError {
    /// The step that failed.
    pub step: &'static str,
    /// The kernel's answer.
    pub source: io::Error,
}

fn at<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> KeeperError {
    move |source| KeeperError {
        step,
        source: source.into(),
    }
}

/// Serves until an agent or SIGTERM stops the keeper, or until it is unused. A stop resets the connections. The process leaves the session
/// of its parent. It ignores SIGHUP and SIGINT, which are meant for the parent.
///
/// # Errors
/// If a step of the start fails. The error names the step. For example, another keeper serves at the control socket's path.
pub fn run(options: KeeperOptions) -> Result<(), KeeperError> {
    detach()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(at("starting the runtime"))?;
    runtime.block_on(async {
        let mut terminate = on_signal(SignalKind::terminate()).map_err(at("catching SIGTERM"))?;
        serve(options, async move {
            let _ = terminate.recv().await;
        })
        .await
    })
}

fn detach() -> Result<(), KeeperError> {
    match nix::unistd::setsid() {
        Ok(_) | Err(Errno::EPERM) => {} // EPERM: this process leads a process group already
        Err(error) => return Err(at("setsid")(error)),
    }
    for ignored in [Signal::SIGHUP, Signal::SIGINT] {
        // SAFETY: ignoring a signal runs no code.
        unsafe { signal(ignored, SigHandler::SigIgn) }.map_err(at("ignoring a signal"))?;
    }
    // With the agent's scheduling priority, the keeper would take the CPU from the applications to which it relays.
    if let Err(error) = crate::process::yield_precedence() {
        tracing::debug!(%error, "cannot lower the scheduling priority; the keeper keeps its parent's priority");
    }
    crate::process::raise_file_limit().map_err(at("raising the limit of open files"))
}

/// Serves in this thread until `terminate` completes, an agent stops the keeper, or the keeper has been unused for its time limit.
pub(super) async fn serve(
    options: KeeperOptions,
    terminate: impl Future<Output = ()>,
) -> Result<(), KeeperError> {
    let (listener, file) = open(&options.socket)?;
    let keeper = Rc::new(Keeper::new(options));
    LocalSet::new()
        .run_until(async {
            tokio::select! {
                () = accept_agents(&keeper, &listener) => {}
                () = terminate => {
                    keeper.stop.send_replace(true);
                }
            }
            // An agent may have removed the control socket's file, or renamed it to make room for another keeper.
            if let Err(error) = file.remove() {
                tracing::warn!(%error, "cannot remove the control socket's file; it stays");
            }
            while !keeper.is_empty() {
                keeper.changed.notified().await;
            }
        })
        .await;
    Ok(())
}

/// Makes the control socket. Replaces an earlier control socket if no keeper serves it.
fn open(path: &Path) -> Result<(AsyncFd<OwnedFd>, OwnFile), KeeperError> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener =
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(at("making a socket"))?;
    let address = UnixAddr::new(path).map_err(at("the control socket's path"))?;
    let mut bound = bind(listener.as_raw_fd(), &address);
    if bound == Err(Errno::EADDRINUSE) && KeeperClient::connect(path).is_err() {
        std::fs::remove_file(path).map_err(at("removing a control socket that is not served"))?;
        bound = bind(listener.as_raw_fd(), &address);
    }
    bound.map_err(at("binding the control socket (another keeper may serve there)"))?;
    let file = OwnFile::at(path).map_err(at("looking at the control socket"))?;
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, owner_only).map_err(at("restricting the control socket"))?;
    listen(&listener, Backlog::new(16).expect("small")).map_err(at("listening"))?;
    let listener = watch(listener).map_err(at("watching the control socket"))?;
    Ok((listener, file))
}

/// Accepts agents, and serves each agent in a task of its own, until the keeper is stopped or unused.
async fn accept_agents(keeper: &Rc<Keeper>, listener: &AsyncFd<OwnedFd>) {
    let mut stop = keeper.stop.subscribe();
    loop {
        let is_unused = keeper.is_empty() && keeper.agents.get() == 0;
        tokio::select! {
            agent = accept(listener) => match agent {
                Ok(agent) => {
                    keeper.agents.set(keeper.agents.get() + 1);
                    spawn_local(attend(keeper.clone(), agent));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of an agent; the keeper tries again");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            () = keeper.changed.notified() => {}
            () = sleep(keeper.options.unused), if is_unused => return,
            _ = stop.wait_for(|&stopped| stopped) => return,
        }
    }
}

async fn accept(listener: &AsyncFd<OwnedFd>) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let raw = listener
        .async_io(Interest::READABLE, |listener| {
            Ok(accept4(listener.as_raw_fd(), flags)?)
        })
        .await?;
    // SAFETY: the kernel has just made this descriptor for us.
    watch(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: as long as an OwnedFd lives, its descriptor stays open and does not change.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// Answers one agent until it disconnects. Requests that the agent sent before it disconnected are carried out too,
/// although nobody reads the answers.
async fn attend(keeper: Rc<Keeper>, agent: AsyncFd<OwnedFd>) {
    let mut room = Room::default();
    loop {
        let received = agent
            .async_io(Interest::READABLE, |agent| {
                channel::receive(agent.as_fd(), &mut room)
            })
            .await;
        let answer = match received {
            Ok(Some(request)) => on_request(&keeper, request),
            Ok(None) => break,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                KeeperAnswer::Refused(error.to_string())
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => continue, // reported once; then further requests can be read
            Err(_) => break,
        };
        if let Err(error) = say(&agent, &answer).await {
            // A long answer is sent in a memfd, which fails if the process has no free file descriptor. Without any answer, the agent would
            // conclude that the keeper hangs.
            let _ = say(&agent, &KeeperAnswer::Refused(error.to_string())).await;
        }
        if matches!(answer, KeeperAnswer::Stopping) {
            keeper.stop.send_replace(true);
        }
    }
    keeper.agents.set(keeper.agents.get() - 1);
    keeper.changed.notify_one();
}

async fn say(agent: &AsyncFd<OwnedFd>, answer: &KeeperAnswer) -> io::Result<()> {
    let send = |agent: &OwnedFd| channel::send(agent.as_fd(), answer, &[], &LoggedInput::default());
    agent.async_io(Interest::WRITABLE, send).await
}

fn on_request(keeper: &Rc<Keeper>, request: Received<KeeperRequest>) -> KeeperAnswer {
    match &request.message {
        KeeperRequest::Status { known } => KeeperAnswer::Status(keeper.report(*known)),
        KeeperRequest::Stop => KeeperAnswer::Stopping,
        KeeperRequest::Begin { peer, application } => {
            KeeperAnswer::Begin(keeper.begin_of(*peer, *application))
        }
        KeeperRequest::Prefix { service, ask } => KeeperAnswer::Prefix(keeper.prefix_of(service, ask)),
        KeeperRequest::Import { peer, application } => {
            KeeperAnswer::State(keeper.state_for(*peer, *application))
        }
        KeeperRequest::Adopt(_) => match adopt(keeper, request) {
            Ok(relay) => {
                spawn_local(Box::new(relay).run());
                KeeperAnswer::Adopted
            }
            Err(reason) => KeeperAnswer::Refused(reason),
        },
    }
}

fn adopt(keeper: &Rc<Keeper>, request: Received<KeeperRequest>) -> Result<Relay, String> {
    let KeeperRequest::Adopt(adoption) = request.message else {
        return Err("nothing to be adopted".into());
    };
    let wants_replica = matches!(adoption.plan, AdoptionPlan::Replica { .. });
    let mut sockets = request.descriptors.into_iter();
    let (client, replica) = match (sockets.next(), sockets.next(), wants_replica) {
        (Some(client), None, false) => (client, None),
        (Some(client), Some(replica), true) => (client, Some(replica)),
        _ => return Err("the sockets do not fit the plan".into()),
    };
    let taken = |socket| take(socket).map_err(|error| format!("taking a socket: {error}"));
    let (client, replica) = (taken(client)?, replica.map(taken).transpose()?);
    let (id, output) = (adoption.id, adoption.output);
    let kept = keeper
        .enter(*adoption)
        .ok_or_else(|| format!("there is a connection {id} already"))?;
    Ok(Relay {
        keeper: keeper.clone(),
        kept,
        client,
        replica,
        input: request.blob,
        output,
    })
}

fn take(socket: OwnedFd) -> io::Result<TcpStream> {
    let stream = StdStream::from(socket);
    stream.set_nonblocking(true)?;
    SockRef::from(&stream).set_keepalive(true)?; // so the kernel notices, though late, that the other end has vanished
    TcpStream::from_std(stream)
}
