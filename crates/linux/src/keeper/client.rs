//! The agent's end.

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

/// The keeper answers soon; if not, it is stopped or broken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Send buffer, in bytes, for messages that the keeper has not read yet. They survive the agent.
const UNREAD_BYTES: usize = 8 << 20;
/// Most adoptions without an answer. Their answers fit into the keeper's send buffer, with room to spare.
const DUE_MAX: usize = 64;

/// What went wrong with the keeper.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The channel failed.
    #[error("keeper: {step}: {source}")]
    Channel {
        /// What was to be done.
        step: &'static str,
        /// The kernel's answer, or what was wrong with the keeper's.
        source: io::Error,
    },
    /// The keeper does not want it.
    #[error("keeper: refused: {0}")]
    Refused(String),
    /// The keeper's answer is to another question.
    #[error("keeper: unexpected answer to {0}")]
    Unexpected(&'static str),
}

impl ClientError {
    /// The keeper is there, but its messages are of another version: it can be left alone only.
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
    /// There is none.
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
        // Without the right to more than the system's bound there is less room; then a hand-over may wait.
        let _ = setsockopt(&socket, sockopt::SndBufForce, &UNREAD_BYTES);
        Ok(Self {
            socket,
            due: VecDeque::new(),
            room: Room::default(),
        })
    }

    /// The same for a keeper that has just been started: tries for `patience`.
    ///
    /// # Errors
    /// There is still none.
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
    /// The kernel does not say which.
    pub fn pid(&self) -> Result<Pid, ClientError> {
        let credentials = getsockopt(&self.socket, sockopt::PeerCredentials);
        credentials
            .map(|credentials| Pid::from_raw(credentials.pid()))
            .map_err(|errno| ClientError::Channel {
                step: "asking for its process",
                source: errno.into(),
            })
    }

    /// Gives a connection to the keeper: `client`, its live socket; `replica`, the replica's socket if the plan has one;
    /// `input`, the logged bytes that the application is to get before what is read from the socket. Once this returns, the keeper will
    /// get the connection even if the caller dies; the caller closes its own descriptors. [`settle`](Self::settle) tells whether the
    /// keeper took it.
    ///
    /// # Errors
    /// It was not sent. Either the channel failed; or the keeper refused an earlier connection, which is lost: try again.
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

    /// Waits until the keeper has answered for all that was given to it.
    ///
    /// # Errors
    /// It refused one, which is lost; call again for the others. Or the channel failed.
    pub fn settle(&mut self) -> Result<(), ClientError> {
        while !self.due.is_empty() {
            self.answered()?;
        }
        Ok(())
    }

    /// Takes the answer for the first that is due.
    fn answered(&mut self) -> Result<(), ClientError> {
        let client = self.due.pop_front().expect("one is due");
        let answer = self.hear().inspect_err(|_| self.due.clear());
        match answer? {
            Answer::Adopted => Ok(()),
            Answer::Refused(reason) => Err(ClientError::Refused(format!("{client}: {reason}"))),
            Answer::Status(_) | Answer::Stopping => Err(ClientError::Unexpected("adopt")),
        }
    }

    /// What became of all connections.
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
