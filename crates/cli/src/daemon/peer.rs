//! Messages to and from the peer: one JSON object per UDP datagram.
//!
//! Heartbeats are sent by a thread of their own, in real time, so that neither a busy CPU nor a slow step of the agent (putting up an
//! address) makes a living node look dead. An agent that hangs stops them all the same: what it said last goes out again
//! only for so long.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use linux::probe::Prober;
use proto::action::Heartbeat;
use proto::learn::Told;
use serde::{Deserialize, Serialize};

use crate::config::Config;

/// Larger than any heartbeat of 64 services.
const DATAGRAM_MAX: usize = 32 * 1024;
/// Datagrams taken at a time: a flood of them must not keep the agent from its work.
const RECEIVE_MAX: usize = 64;

/// What nodes say to each other.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// A sign of life, with what the sender is doing.
    Heartbeat(Heartbeat),
    /// What does the receiver's kernel know of the connections of these clients?
    Ask(About<SocketAddr>),
    /// The answer.
    Told(About<Told>),
}

/// Something about connections of one service.
#[derive(Debug, Serialize, Deserialize)]
pub struct About<T> {
    /// The sender's name.
    node: String,
    /// The VIP and port.
    pub vip: SocketAddr,
    /// One for each connection.
    pub connections: Vec<T>,
}

impl Message {
    /// The sender's name.
    fn node(&self) -> &str {
        match self {
            Self::Heartbeat(heartbeat) => &heartbeat.node,
            Self::Ask(about) => &about.node,
            Self::Told(about) => &about.node,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a message has a JSON form")
    }
}

/// The heartbeat socket. It takes datagrams of the peer's address and port only.
pub struct Peer {
    /// `None` where the kernel allows no raw sockets.
    prober: Option<Prober>,
    socket: Arc<UdpSocket>,
    name: String,
    own_name: String,
    said: Arc<Said>,
}

/// What the agent said last.
#[derive(Default)]
struct Said {
    word: Mutex<Word>,
    changed: Condvar,
}

#[derive(Default)]
struct Word {
    bytes: Vec<u8>,
    at: Option<Instant>,
    /// The thread has not sent it yet.
    fresh: bool,
    over: bool,
}

impl Peer {
    /// Opens the socket and starts the thread.
    pub fn open(config: &Config) -> io::Result<Self> {
        let any: IpAddr = match config.peer.address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, config.peer.port))?;
        socket.connect(SocketAddr::new(config.peer.address, config.peer.port))?;
        socket.set_nonblocking(true)?;
        let (socket, said) = (Arc::new(socket), Arc::<Said>::default());
        let (rhythm, patience) = (config.detector.heartbeat, config.node.agent_timeout);
        let (theirs, heard) = (Arc::clone(&socket), Arc::clone(&said));
        std::thread::Builder::new()
            .name("heartbeat".into())
            .spawn(move || {
                if let Err(error) = linux::process::run_in_real_time() {
                    tracing::warn!(%error, "heartbeats at ordinary priority: false alarms are more likely");
                }
                heard.repeat(&theirs, rhythm, patience);
            })?;
        let prober = Prober::open(config.peer.address)
            .inspect_err(|error| tracing::warn!(%error, "no probes: false alarms are more likely"))
            .ok();
        Ok(Self {
            prober,
            socket,
            name: config.peer.name.clone(),
            own_name: config.node.name.clone(),
            said,
        })
    }

    /// Sends a heartbeat at once, and again in its rhythm.
    pub fn send(&self, heartbeat: Heartbeat) {
        let bytes = Message::Heartbeat(heartbeat).bytes();
        let mut word = self.said.word.lock().unwrap_or_else(PoisonError::into_inner);
        // A repetition will do, unless there is something new in it.
        word.fresh |= meaning(&word.bytes) != meaning(&bytes);
        word.bytes = bytes;
        word.at = Some(Instant::now());
        self.said.changed.notify_one();
    }

    /// Asks what the peer's kernel knows of the connections of `clients`.
    pub fn ask(&self, vip: SocketAddr, clients: Vec<SocketAddr>) {
        self.send_once(&Message::Ask(self.about(vip, clients)));
    }

    /// Answers such a question.
    pub fn tell(&self, vip: SocketAddr, told: Vec<Told>) {
        self.send_once(&Message::Told(self.about(vip, told)));
    }

    fn about<T>(&self, vip: SocketAddr, connections: Vec<T>) -> About<T> {
        About {
            node: self.own_name.clone(),
            vip,
            connections,
        }
    }

    fn send_once(&self, message: &Message) {
        if let Err(error) = self.socket.send(&message.bytes()) {
            tracing::trace!(%error, "message not sent"); // who waits for an answer asks again
        }
    }

    /// Asks the peer's kernel whether it is there.
    pub fn probe(&self) {
        if let Some(Err(error)) = self.prober.as_ref().map(Prober::ask) {
            tracing::trace!(%error, "probe not sent"); // a peer that is away is no error
        }
    }

    /// Whether the peer's kernel has answered.
    pub fn is_answered(&self) -> bool {
        self.prober.as_ref().is_some_and(Prober::is_answered)
    }

    /// The messages that have arrived.
    pub fn receive(&self) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut buffer = [0; DATAGRAM_MAX];
        // Each error that a UDP socket reports (the peer's port is closed) is taken once; then it goes on.
        for _ in 0..RECEIVE_MAX {
            match self.socket.recv(&mut buffer) {
                Ok(count) => match serde_json::from_slice::<Message>(&buffer[..count]) {
                    Ok(message) if message.node() == self.name => messages.push(message),
                    Ok(message) => {
                        tracing::warn!(from = message.node(), expected = self.name, "foreign message");
                    }
                    Err(error) => tracing::warn!(%error, "unreadable message"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
        messages
    }
}

/// A heartbeat without its sequence number.
fn meaning(bytes: &[u8]) -> Option<&[u8]> {
    let start = bytes
        .windows(SERVICES.len())
        .position(|window| window == SERVICES)?;
    Some(&bytes[start..])
}

const SERVICES: &[u8] = b"\"services\"";

impl Said {
    /// The thread: sends what was said last every `rhythm`, news at once; nothing when the last word is older than
    /// `patience`.
    fn repeat(&self, socket: &UdpSocket, rhythm: Duration, patience: Duration) {
        let mut due = Instant::now();
        let mut word = self.word.lock().unwrap_or_else(PoisonError::into_inner);
        while !word.over {
            let now = Instant::now();
            if word.fresh || now >= due {
                word.fresh = false;
                due = now + rhythm;
                if word.at.is_some_and(|at| now.duration_since(at) < patience)
                    && let Err(error) = socket.send(&word.bytes)
                {
                    tracing::trace!(%error, "heartbeat not sent"); // a peer that is away is no error
                }
            }
            let wait = due.saturating_duration_since(Instant::now());
            word = self
                .changed
                .wait_timeout(word, wait)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.said.word.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        self.said.changed.notify_one();
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
