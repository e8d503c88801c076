//! The agent's end of the channel to the keeper.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket, sockopt,
};
use nix::unistd::Pid;
use socket2::SockRef;
use thiserror::Error;

use super::channel::{self, Room};
use super::input::Input;
use super::message::{Adoption, Answer, Request};
use super::status::Status;

/// Timeout for an answer of the keeper. A keeper that needs longer is stopped or broken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Send buffer in bytes. It holds messages that the keeper has not read yet. They stay readable if the agent dies.
const UNREAD_BYTES: usize = 8 << 20;
/// Maximum number of adoptions without an answer. Their answers easily fit into the keeper's send buffer.
const DUE_MAX: usize = 64;

/// What went wrong with the keeper.
#[derive(Debug, Error)]
pub enum ClientError {
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

impl ClientError {
    /// Whether the keeper's messages have another version. Such a keeper can only be left alone.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Channel { source, .. } if source.kind() == io::ErrorKind::InvalidData)
    }
}

/// A connection to the keeper. Dropping it changes nothing for what the keeper owns.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    /// Clients whose adoption the keeper has not answered yet, in order.
    due: VecDeque<SocketAddr>,
    room: Room,
}

impl Client {
    /// Connects to the keeper that serves at `path`.
    ///
    /// # Errors
    /// If no keeper can be reached at `path`.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let step = |step| {
            move |source: nix::Error| ClientError::Channel {
                step,
                source: source.into(),
            }
        };
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket =
            socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(step("making a socket"))?;
        let address = UnixAddr::new(path).map_err(step("its path"))?;
        connect(socket.as_raw_fd(), &address).map_err(step("connecting"))?;
        let timeouts = SockRef::from(&socket);
        timeouts
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .and_then(|()| timeouts.set_write_timeout(Some(ANSWER_TIMEOUT)))
            .map_err(|source| ClientError::Channel {
                step: "setting a timeout",
                source,
            })?;
        // Fails without CAP_NET_ADMIN. Then the buffer is smaller, and `adopt` may have to wait.
        let _ = setsockopt(&socket, sockopt::SndBufForce, &UNREAD_BYTES);
        Ok(Self {
            socket,
            due: VecDeque::new(),
            room: Room::default(),
        })
    }

    /// Connects to a keeper that has just been started: tries again until `patience` is over.
    ///
    /// # Errors
    /// If no keeper can be reached by then.
    pub fn connect_within(path: &Path, patience: Duration) -> Result<Self, ClientError> {
        let deadline = Instant::now() + patience;
        loop {
            match Self::connect(path) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                outcome => return outcome,
            }
        }
    }

    /// The keeper's process.
    ///
    /// # Errors
    /// If the kernel does not give the process id.
    pub fn pid(&self) -> Result<Pid, ClientError> {
        let credentials = getsockopt(&self.socket, sockopt::PeerCredentials);
        credentials
            .map(|credentials| Pid::from_raw(credentials.pid()))
            .map_err(|errno| ClientError::Channel {
                step: "asking for its process",
                source: errno.into(),
            })
    }

    /// Gives a connection to the keeper. `client` is its live socket, and `replica` is the replica's socket if the plan has one. `input`
    /// is the logged input that the application gets before the bytes from the socket. Once this returns, the keeper gets the connection
    /// even if the caller dies. The caller closes its own descriptors. [`settle`](Self::settle) tells whether the keeper took the
    /// connection.
    ///
    /// # Errors
    /// The connection was not sent, because the channel failed, or because the keeper refused an earlier connection. That earlier
    /// connection is lost; try this one again.
    pub fn adopt(
        &mut self,
        adoption: &Adoption,
        client: BorrowedFd<'_>,
        replica: Option<BorrowedFd<'_>>,
        input: &Input<'_>,
    ) -> Result<(), ClientError> {
        if self.due.len() == DUE_MAX {
            self.answered()?;
        }
        let sockets: Vec<_> = [Some(client), replica].into_iter().flatten().collect();
        self.tell(&Request::Adopt(Box::new(adoption)), &sockets, input)?;
        self.due.push_back(adoption.client);
        Ok(())
    }

    /// Waits until the keeper has answered all adoptions.
    ///
    /// # Errors
    /// The channel failed, or the keeper refused a connection. That connection is lost; call again for the others.
    pub fn settle(&mut self) -> Result<(), ClientError> {
        while !self.due.is_empty() {
            self.answered()?;
        }
        Ok(())
    }

    /// Waits for the answer to the oldest unanswered adoption.
    fn answered(&mut self) -> Result<(), ClientError> {
        let client = self.due.pop_front().expect("one is due");
        let answer = self.hear().inspect_err(|_| self.due.clear());
        match answer? {
            Answer::Adopted => Ok(()),
            Answer::Refused(reason) => Err(ClientError::Refused(format!("{client}: {reason}"))),
            Answer::Status(_) | Answer::Stopping => Err(ClientError::Unexpected("adopt")),
        }
    }

    /// The keeper's report on its connections, open and ended.
    ///
    /// # Errors
    /// The channel failed.
    pub fn status(&mut self) -> Result<Status, ClientError> {
        match self.ask(&Request::Status, &[], &Input::default())? {
            Answer::Status(status) => Ok(status),
            Answer::Refused(reason) => Err(ClientError::Refused(reason)),
            Answer::Adopted | Answer::Stopping => Err(ClientError::Unexpected("status")),
        }
    }

    /// Ends the keeper. Connections that it has are reset.
    ///
    /// # Errors
    /// The channel failed.
    pub fn stop(mut self) -> Result<(), ClientError> {
        match self.ask(&Request::Stop, &[], &Input::default())? {
            Answer::Stopping => Ok(()),
            Answer::Refused(reason) => Err(ClientError::Refused(reason)),
            Answer::Adopted | Answer::Status(_) => Err(ClientError::Unexpected("stop")),
        }
    }

    fn ask(
        &mut self,
        request: &Request<&Adoption>,
        sockets: &[BorrowedFd<'_>],
        input: &Input<'_>,
    ) -> Result<Answer, ClientError> {
        self.settle()?; // answers come in the order of questions
        self.tell(request, sockets, input)?;
        self.hear()
    }

    fn tell(
        &self,
        request: &Request<&Adoption>,
        sockets: &[BorrowedFd<'_>],
        input: &Input<'_>,
    ) -> Result<(), ClientError> {
        channel::send(self.socket.as_fd(), request, sockets, input).map_err(|source| ClientError::Channel {
            step: "asking",
            source,
        })
    }

    fn hear(&mut self) -> Result<Answer, ClientError> {
        let step = |source| ClientError::Channel {
            step: "waiting for an answer",
            source,
        };
        match channel::receive(self.socket.as_fd(), &mut self.room).map_err(step)? {
            Some(answer) => Ok(answer.message),
            None => Err(step(io::ErrorKind::ConnectionReset.into())),
        }
    }
}
