//! One TCP connection of a client: sends requests, compares the replies, and measures times.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;

use proto::Instant;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;

use super::progress::ConnectionProgress;
use super::replies::Replies;
use super::report::{ClientFailure, ConnectionPhase};
use super::requests::PreparedRequest;
use crate::clock::monotonic as now;

/// State that the connections of a process share.
pub struct SharedClientState {
    /// Buffer for arriving bytes while they are compared.
    buffer: RefCell<Box<[u8]>>,
    /// Number of connections whose workload has begun to transfer.
    pub flowing: Cell<usize>,
    /// Number of connections that ended before they transferred.
    pub never_flowed: Cell<usize>,
    /// Notified when `flowing` or `never_flowed` changes.
    pub flow_changed: Notify,
}

/// One connection. It exists before its handshake begins.
pub struct ClientConnection {
    shared: Rc<SharedClientState>,
    stream: RefCell<Option<Rc<TcpStream>>>,
    /// The replies that are due, and their received part.
    pub replies: RefCell<Replies>,
    /// Times at which bytes arrived, and the waits between them.
    pub progress: RefCell<ConnectionProgress>,
    phase: Cell<ConnectionPhase>,
    flows: Cell<bool>,
    /// The client's address, once connected.
    pub local: Cell<Option<SocketAddr>>,
    /// The client's addresses before it connected anew.
    pub earlier: RefCell<Vec<SocketAddr>>,
    /// When the handshake was complete.
    pub connected: Cell<Option<Instant>>,
    /// Notified after each receipt of bytes. A reply may then be complete, so that another request may be sent.
    room: Notify,
}

/// Size of the shared buffer in bytes. It exceeds what usually arrives between two reads, and fits into the CPU's cache.
const BUFFER_SIZE: usize = 128 << 10;
/// Congestion control of the client. It is fixed, because machines have different defaults, and published measurements must be comparable.
const CONGESTION_CONTROL: &[u8] = b"cubic";

impl SharedClientState {
    /// The shared state of a new process.
    pub fn new() -> Self {
        Self {
            buffer: RefCell::new(vec![0; BUFFER_SIZE].into()),
            flowing: Cell::new(0),
            never_flowed: Cell::new(0),
            flow_changed: Notify::new(),
        }
    }
}

impl ClientConnection {
    /// A connection that is not yet connected.
    pub fn new(shared: Rc<SharedClientState>, timeline_points: usize, hash: bool) -> Self {
        let mut replies = Replies::default();
        if hash {
            replies.start_hash();
        }
        Self {
            shared,
            stream: RefCell::new(None),
            replies: RefCell::new(replies),
            progress: RefCell::new(ConnectionProgress::new(timeline_points)),
            phase: Cell::new(ConnectionPhase::Connect),
            flows: Cell::new(false),
            local: Cell::new(None),
            earlier: RefCell::default(),
            connected: Cell::new(None),
            room: Notify::new(),
        }
    }

    /// Connects to `server`. Connects anew if the connection has been [closed](Self::close).
    ///
    /// # Errors
    /// The reason why it could not connect.
    pub async fn connect(&self, server: SocketAddr) -> Result<(), ClientFailure> {
        let step = |name: &'static str| move |error: io::Error| ClientFailure::Io(format!("{name}: {error}"));
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, Some(Protocol::TCP))
            .map_err(step("socket"))?;
        socket.set_nonblocking(true).map_err(step("non-blocking"))?;
        socket
            .set_tcp_congestion(CONGESTION_CONTROL)
            .map_err(step("TCP_CONGESTION = cubic"))?;
        socket.set_tcp_nodelay(true).map_err(step("TCP_NODELAY"))?;
        let stream = TcpSocket::from_std_stream(socket.into())
            .connect(server)
            .await
            .map_err(|error| self.failure(&error))?;
        self.connected.set(Some(now()));
        self.earlier.borrow_mut().extend(self.local.take());
        self.local.set(stream.local_addr().ok());
        *self.stream.borrow_mut() = Some(Rc::new(stream));
        Ok(())
    }

    /// The connection's present phase.
    pub fn phase(&self) -> ConnectionPhase {
        self.phase.get()
    }

    /// Records that the connection's phase is now `phase`.
    pub fn enter(&self, phase: ConnectionPhase) {
        self.phase.set(phase);
    }

    /// Counts the connection as transferring, once.
    pub fn set_flowing(&self) {
        if !self.flows.replace(true) {
            self.shared.flowing.set(self.shared.flowing.get() + 1);
            self.shared.flow_changed.notify_one();
        }
    }

    /// Ends the connection and drops its socket.
    pub fn end(&self, now: Instant) {
        self.progress.borrow_mut().on_end(now);
        *self.stream.borrow_mut() = None;
        if !self.flows.get() {
            self.shared.never_flowed.set(self.shared.never_flowed.get() + 1);
            self.shared.flow_changed.notify_one();
        }
    }

    /// Sends `request` and notes the replies due. Does not wait for them.
    ///
    /// # Errors
    /// The reason why the request could not be sent.
    pub async fn send(&self, request: PreparedRequest) -> Result<(), ClientFailure> {
        self.progress.borrow_mut().on_asked(now());
        for reply in request.replies {
            self.replies.borrow_mut().expect(reply);
        }
        let stream = self.stream();
        let mut rest = &request.bytes[..];
        while !rest.is_empty() {
            match stream.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.writable().await.map_err(|error| self.failure(&error))?;
                }
                Err(error) => return Err(self.last_words(&stream).unwrap_or_else(|| self.failure(&error))),
            }
        }
        Ok(())
    }

    /// Returns a failure with the first wrong bytes that the server sent before the connection broke, if there are any. Such a failure
    /// explains more than the write error.
    fn last_words(&self, stream: &TcpStream) -> Option<ClientFailure> {
        let mut buffer = self.shared.buffer.borrow_mut();
        // Not `try_read`, because the event loop may not yet know that there are bytes to read.
        let socket = SockRef::from(stream);
        loop {
            match (&*socket).read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(count) => {
                    if let Err(wrong) = self.compare(&buffer[..count]) {
                        return Some(wrong);
                    }
                }
            }
        }
    }

    /// Waits for bytes and compares them with the replies that are due. The future may be dropped at any time without a loss of
    /// bytes.
    ///
    /// # Errors
    /// If the stream ends, or differs from the replies that are due.
    pub async fn receive(&self) -> Result<(), ClientFailure> {
        let stream = self.stream();
        loop {
            stream.readable().await.map_err(|error| self.failure(&error))?;
            match self.receive_now(&stream) {
                Ok(None) => {}
                Ok(Some(())) => {
                    // Without this call, a stream that always has more bytes to read would block the other connections.
                    tokio::task::yield_now().await;
                    return Ok(());
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Reads and compares the available bytes. `None` if there are none.
    fn receive_now(&self, stream: &TcpStream) -> Result<Option<()>, ClientFailure> {
        let mut buffer = self.shared.buffer.borrow_mut();
        match stream.try_read(&mut buffer) {
            Ok(0) => Err(ClientFailure::EndOfStream { due: self.due() }),
            Ok(count) => self.compare(&buffer[..count]).map(Some),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(self.failure(&error)),
        }
    }

    /// Sends `request` and waits until no reply is due.
    ///
    /// # Errors
    /// As [`Self::send`] and [`Self::receive`].
    pub async fn exchange(&self, request: PreparedRequest) -> Result<(), ClientFailure> {
        self.send(request).await?;
        while self.due() > 0 {
            self.receive().await?;
        }
        Ok(())
    }

    /// Sends the requests of `next` while fewer than `due_max` replies are due, until `next` returns `None`. Then waits until no reply is
    /// due.
    ///
    /// # Errors
    /// As [`Self::send`] and [`Self::receive`].
    pub async fn pipeline(
        &self,
        due_max: usize,
        mut next: impl AsyncFnMut() -> Option<PreparedRequest>,
    ) -> Result<(), ClientFailure> {
        let asking = async {
            while let Some(request) = next().await {
                while self.due() >= due_max {
                    self.room.notified().await;
                }
                self.send(request).await?;
            }
            while self.due() > 0 {
                self.room.notified().await;
            }
            Ok(())
        };
        tokio::select! {
            result = asking => result,
            failure = self.fails() => Err(failure),
        }
    }

    /// Receives until this fails. Returns the failure.
    pub async fn fails(&self) -> ClientFailure {
        loop {
            if let Err(failure) = self.receive().await {
                return failure;
            }
            self.room.notify_one();
        }
    }

    /// Sends a FIN and waits for the server's.
    ///
    /// # Errors
    /// If anything but a FIN arrives.
    pub async fn close(&self) -> Result<(), ClientFailure> {
        self.enter(ConnectionPhase::Close);
        SockRef::from(&*self.stream())
            .shutdown(Shutdown::Write)
            .map_err(|error| self.failure(&error))?;
        match self.fails().await {
            ClientFailure::EndOfStream { due: 0 } => Ok(()),
            failure => Err(failure),
        }
    }

    fn compare(&self, bytes: &[u8]) -> Result<(), ClientFailure> {
        let mut replies = self.replies.borrow_mut();
        replies.receive(bytes).map_err(ClientFailure::Wrong)?;
        let content = replies.bytes_received() + replies.bytes_confirmed();
        self.progress
            .borrow_mut()
            .on_progress(now(), content, replies.due() > 0);
        if self.phase() == ConnectionPhase::Flow {
            self.set_flowing();
        }
        Ok(())
    }

    fn due(&self) -> usize {
        self.replies.borrow().due()
    }

    fn stream(&self) -> Rc<TcpStream> {
        self.stream
            .borrow()
            .clone()
            .expect("a workload begins after the handshake")
    }

    fn failure(&self, error: &io::Error) -> ClientFailure {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => ClientFailure::Refused,
            // A RST in CLOSE_WAIT reads as EPIPE.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ClientFailure::Reset,
            io::ErrorKind::TimedOut => ClientFailure::Timeout { due: self.due() },
            _ => ClientFailure::Io(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;
    use crate::client::replies::{DueReply, Head};

    #[test]
    fn a_failed_write_tells_what_the_server_had_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = ClientConnection::new(Rc::new(SharedClientState::new()), 10, false);
        let reply = DueReply {
            head: Head::Exactly(b"+OK\r\n".to_vec()),
            content: None,
            tail: b"",
            confirms: 0,
        };
        let request = PreparedRequest {
            bytes: b"?".to_vec(),
            replies: vec![reply],
        };
        let conversation = async {
            connection.connect(listener.local_addr().unwrap()).await.unwrap();
            let (mut server, _) = listener.accept().unwrap();
            SockRef::from(&server).set_linger(Some(Duration::ZERO)).unwrap();
            server.write_all(b"-ERR out of memory\r\n").unwrap();
            drop(server);
            // The reset has arrived, but the event loop does not know it.
            let stream = connection.stream();
            let mut broken = [PollFd::new(stream.as_fd(), PollFlags::empty())];
            poll(&mut broken, PollTimeout::NONE).unwrap();
            connection.send(request).await
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let failure = runtime.block_on(conversation).unwrap_err();
        assert!(failure.to_string().contains("-ERR out of memory"), "{failure}");
    }
}
