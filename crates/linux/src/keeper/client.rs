//! The agent's end of the channel to the keeper.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket, sockopt,
};
use nix::unistd::Pid;
use proto::Seq;
use proto::restart::prefix::{PrefixAnswer, PrefixAsk};
use socket2::SockRef;
use thiserror::Error;

use super::channel::{self, Room};
use super::input::LoggedInput;
use super::message::{Adoption, KeeperAnswer, KeeperRequest};
use super::status::{KeeperStatus, KnownStatus};

/// Timeout for an answer of the keeper. A keeper that needs longer hangs (SIGSTOP, for example) or is broken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Send buffer in bytes. It holds messages that the keeper has not read yet. They stay readable if the agent dies.
const UNREAD_BYTES: usize = 8 << 20;
/// Maximum number of adoptions without an answer. Their answers easily fit into the keeper's send buffer.
const DUE_MAX: usize = 64;

/// An error of a request to the keeper.
#[derive(Debug, Error)]
pub enum KeeperClientError {
    /// The channel failed.
    #[error("keeper: {step}: {source}")]
    Channel {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error, or the fault in the keeper's answer.
        source: io::Error,
    },
    /// The keeper refused the request, for this reason.
    #[error("keeper: refused: {0}")]
    Refused(String),
    /// The keeper's answer does not belong to this request.
    #[error("keeper: unexpected answer to {0}")]
    Unexpected(&'static str),
}

impl KeeperClientError {
    /// Whether the keeper's answer cannot be read. The reason is usually another version of the protocol. An agent cannot use such a
    /// keeper. Leave it running, because it still owns connections, and start another keeper.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Channel { source, .. } if source.kind() == io::ErrorKind::InvalidData)
    }
}

/// A connection to the keeper. Dropping it does not affect the sockets that the keeper owns.
#[derive(Debug)]
pub struct KeeperClient {
    socket: OwnedFd,
    /// Clients whose adoption the keeper has not answered yet, in order.
    due: VecDeque<SocketAddr>,
    room: Room,
    known: KnownStatus,
}

impl KeeperClient {
    /// Connects to the keeper that serves at `path`.
    ///
    /// # Errors
    /// If no keeper can be reached at `path`.
    pub fn connect(path: &Path) -> Result<Self, KeeperClientError> {
        let step = |step| {
            move |source: nix::Error| KeeperClientError::Channel {
                step,
                source: source.into(),
            }
        };
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket =
            socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(step("making a socket"))?;
        let address = UnixAddr::new(path).map_err(step("the control socket's path"))?;
        // `connect` waits while the keeper has not accepted earlier clients. The write timeout limits this wait too.
        let timeouts = SockRef::from(&socket);
        timeouts
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .and_then(|()| timeouts.set_write_timeout(Some(ANSWER_TIMEOUT)))
            .map_err(|source| KeeperClientError::Channel {
                step: "setting a timeout",
                source,
            })?;
        connect(socket.as_raw_fd(), &address).map_err(step("connecting"))?;
        // Fails without CAP_NET_ADMIN. Then the buffer is smaller, and `adopt` may have to wait.
        let _ = setsockopt(&socket, sockopt::SndBufForce, &UNREAD_BYTES);
        Ok(Self {
            socket,
            due: VecDeque::new(),
            room: Room::default(),
            known: KnownStatus::default(),
        })
    }

    /// Connects to a keeper that has just been started: tries again until `patience` is over.
    ///
    /// # Errors
    /// If no keeper can be reached by then.
    pub fn connect_within(path: &Path, patience: Duration) -> Result<Self, KeeperClientError> {
        let deadline = Instant::now() + patience;
        loop {
            match Self::connect(path) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                outcome => return outcome,
            }
        }
    }

    /// The id of the keeper's process.
    ///
    /// # Errors
    /// If the kernel does not give the process id.
    pub fn pid(&self) -> Result<Pid, KeeperClientError> {
        let credentials = getsockopt(&self.socket, sockopt::PeerCredentials);
        credentials
            .map(|credentials| Pid::from_raw(credentials.pid()))
            .map_err(|errno| KeeperClientError::Channel {
                step: "asking for the keeper's process id",
                source: errno.into(),
            })
    }

    /// Gives a connection to the keeper. `client` is the connection's live socket. `replica` is the replica's socket, if `adoption.plan` is
    /// to continue a replica. `input` is the logged input that the application gets before the bytes from the socket. Once this function
    /// has returned, the keeper gets the connection even if the caller dies. The caller closes its own descriptors.
    /// [`settle`](Self::settle) tells whether the keeper took the connection.
    ///
    /// # Errors
    /// The connection was not sent. Either the channel failed, or the keeper refused an earlier connection. If it refused, only the earlier
    /// connection is lost: call again for this connection.
    pub fn adopt(
        &mut self,
        adoption: &Adoption,
        client: BorrowedFd<'_>,
        replica: Option<BorrowedFd<'_>>,
        input: &LoggedInput<'_>,
    ) -> Result<(), KeeperClientError> {
        if self.due.len() == DUE_MAX {
            self.answered()?;
        }
        let sockets: Vec<_> = [Some(client), replica].into_iter().flatten().collect();
        self.tell(&KeeperRequest::Adopt(Box::new(adoption)), &sockets, input)?;
        self.due.push_back(adoption.client);
        Ok(())
    }

    /// Waits until the keeper has answered all adoptions.
    ///
    /// # Errors
    /// The channel failed, or the keeper refused a connection. That connection is lost; call again for the others.
    pub fn settle(&mut self) -> Result<(), KeeperClientError> {
        while !self.due.is_empty() {
            self.answered()?;
        }
        Ok(())
    }

    /// Waits for the answer to the oldest unanswered adoption.
    fn answered(&mut self) -> Result<(), KeeperClientError> {
        let client = self.due.pop_front().expect("one is due");
        let answer = self.hear().inspect_err(|_| self.due.clear());
        match answer? {
            KeeperAnswer::Adopted => Ok(()),
            KeeperAnswer::Refused(reason) => Err(KeeperClientError::Refused(format!("{client}: {reason}"))),
            _ => Err(KeeperClientError::Unexpected("adopt")),
        }
    }

    /// The keeper's report on its connections, open and ended.
    ///
    /// # Errors
    /// The channel failed, or the keeper refused this request or gave another answer than expected. Or the keeper refused an earlier
    /// adoption; then this request was not sent.
    pub fn status(&mut self) -> Result<KeeperStatus, KeeperClientError> {
        let known = self.known.number();
        match self.ask(&KeeperRequest::Status { known }, &[], &LoggedInput::default())? {
            KeeperAnswer::Status(update) => Ok(self.known.take(update)),
            KeeperAnswer::Refused(reason) => Err(KeeperClientError::Refused(reason)),
            _ => Err(KeeperClientError::Unexpected("status")),
        }
    }

    /// The state that the application imports for the connection that comes from `peer`. `None`: this keeper has no such connection, or
    /// the connection began without a state.
    ///
    /// # Errors
    /// The channel failed, or the keeper refused this request or gave another answer than expected. Or the keeper refused an earlier
    /// adoption; then this request was not sent.
    pub fn import(
        &mut self,
        peer: SocketAddr,
        application: SocketAddr,
    ) -> Result<Option<Arc<[u8]>>, KeeperClientError> {
        match self.ask(
            &KeeperRequest::Import { peer, application },
            &[],
            &LoggedInput::default(),
        )? {
            KeeperAnswer::State(state) => Ok(state),
            KeeperAnswer::Refused(reason) => Err(KeeperClientError::Refused(reason)),
            _ => Err(KeeperClientError::Unexpected("import")),
        }
    }

    /// The sequence numbers in the client's streams at which the application began that has the connection from `peer`. `None`: this keeper
    /// has no such connection, or its application has not begun at a restart point.
    ///
    /// # Errors
    /// The channel failed.
    pub fn begin(
        &mut self,
        peer: SocketAddr,
        application: SocketAddr,
    ) -> Result<Option<(Seq, Seq)>, KeeperClientError> {
        match self.ask(
            &KeeperRequest::Begin { peer, application },
            &[],
            &LoggedInput::default(),
        )? {
            KeeperAnswer::Begin(begin) => Ok(begin),
            KeeperAnswer::Refused(reason) => Err(KeeperClientError::Refused(reason)),
            _ => Err(KeeperClientError::Unexpected("begin")),
        }
    }

    /// Kept input of a connection of `service`. `None`: this keeper has no such connection, or does not keep its input.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn prefix(
        &mut self,
        service: &str,
        ask: &PrefixAsk,
    ) -> Result<Option<PrefixAnswer>, KeeperClientError> {
        let (service, ask) = (service.to_owned(), *ask);
        let request = KeeperRequest::Prefix { service, ask };
        match self.ask(&request, &[], &LoggedInput::default())? {
            KeeperAnswer::Prefix(answer) => Ok(answer),
            KeeperAnswer::Refused(reason) => Err(KeeperClientError::Refused(reason)),
            _ => Err(KeeperClientError::Unexpected("prefix")),
        }
    }

    /// Ends the keeper, which resets its connections.
    ///
    /// # Errors
    /// The channel failed, or the keeper refused this request or gave another answer than expected. Or the keeper refused an earlier
    /// adoption; then this request was not sent.
    pub fn stop(mut self) -> Result<(), KeeperClientError> {
        match self.ask(&KeeperRequest::Stop, &[], &LoggedInput::default())? {
            KeeperAnswer::Stopping => Ok(()),
            KeeperAnswer::Refused(reason) => Err(KeeperClientError::Refused(reason)),
            _ => Err(KeeperClientError::Unexpected("stop")),
        }
    }

    fn ask(
        &mut self,
        request: &KeeperRequest<&Adoption>,
        sockets: &[BorrowedFd<'_>],
        input: &LoggedInput<'_>,
    ) -> Result<KeeperAnswer, KeeperClientError> {
        self.settle()?; // answers come in the order of questions
        self.tell(request, sockets, input)?;
        self.hear()
    }

    fn tell(
        &self,
        request: &KeeperRequest<&Adoption>,
        sockets: &[BorrowedFd<'_>],
        input: &LoggedInput<'_>,
    ) -> Result<(), KeeperClientError> {
        channel::send(self.socket.as_fd(), request, sockets, input).map_err(|source| {
            KeeperClientError::Channel {
                step: "asking",
                source,
            }
        })
    }

    fn hear(&mut self) -> Result<KeeperAnswer, KeeperClientError> {
        let step = |source| KeeperClientError::Channel {
            step: "waiting for an answer",
            source,
        };
        match channel::receive(self.socket.as_fd(), &mut self.room).map_err(step)? {
            Some(answer) => Ok(answer.message),
            None => Err(step(io::ErrorKind::ConnectionReset.into())),
        }
    }
}
