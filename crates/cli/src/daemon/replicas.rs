//! The replicas' connections to the local application (restart policy `replica`). The agent writes to them the input that the primary has
//! accepted. It reads their output and compares it with the primary's.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use agent::{Core, Written};
use anyhow::Context;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use proto::action::ServiceIndex;
use proto::service::ServiceInput;
use proto::spill::{InFile, LogPart};
use proto::table::ConnectionId;

use crate::config::Config;

/// Number of bytes by which a replica's output may be ahead of the primary's. Beyond it, the agent stops reading from the replica.
const AHEAD_MAX: usize = 1 << 20;
const EVENTS_MAX: usize = 64;
const READ_SIZE: usize = 256 * 1024;

pub type ReplicaKey = (ServiceIndex, ConnectionId);

/// The replicas of all services.
pub struct Replicas {
    epoll: Epoll,
    applications: Vec<SocketAddr>,
    by_key: HashMap<ReplicaKey, u64>,
    by_token: HashMap<u64, ReplicaConnection>,
    /// Tokens of the replicas that are too far ahead.
    paused: Vec<u64>,
    next_token: u64,
    buffer: Vec<u8>,
}

struct ReplicaConnection {
    key: ReplicaKey,
    stream: TcpStream,
    /// The replica takes no input for now.
    blocked: bool,
}

impl Replicas {
    /// An empty set.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("making an epoll instance")?,
            applications: config
                .services
                .iter()
                .map(|service| service.application)
                .collect(),
            by_key: HashMap::new(),
            by_token: HashMap::new(),
            paused: Vec::new(),
            next_token: 0,
            buffer: vec![0; READ_SIZE],
        })
    }

    /// Readable when there is something to serve.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Opens a replica: connects to the application from the client's address.
    pub fn open(
        &mut self,
        service: ServiceIndex,
        id: ConnectionId,
        client: SocketAddr,
    ) -> Result<(), String> {
        self.close(service, id);
        let application = self.applications[usize::from(service)];
        let token = self.next_token;
        let opened = linux::transparent::connect_as(client, application).and_then(|stream| {
            self.epoll.add(&stream, event(token, true, true))?;
            Ok(stream)
        });
        let stream = opened.map_err(|error| format!("connecting the replica to {application}: {error}"))?;
        self.next_token += 1;
        let key = (service, id);
        self.by_key.insert(key, token);
        let blocked = true;
        self.by_token
            .insert(token, ReplicaConnection { key, stream, blocked });
        Ok(())
    }

    /// Writes input to a replica. If `ends`, the input ends there, so the stream is then shut down for writing. Returns `None` if there is
    /// no such replica, or if the replica takes no input now. In the second case, epoll reports when the replica takes input again.
    pub fn write<'a>(
        &mut self,
        service: ServiceIndex,
        id: ConnectionId,
        input: impl Iterator<Item = LogPart<'a>>,
        ends: bool,
    ) -> Option<Result<Written, String>> {
        let &token = self.by_key.get(&(service, id))?;
        let replica = self.by_token.get_mut(&token).expect("both maps hold it");
        if replica.blocked {
            return None; // epoll reports when the replica takes more
        }
        Some(match feed(&mut replica.stream, input, ends, &mut self.buffer) {
            Ok((written, complete)) => {
                replica.blocked = !complete;
                if !complete && !self.paused.contains(&token) {
                    self.watch(token, true, true);
                }
                Ok(written)
            }
            Err(error) => Err(format!("feeding the replica: {error}")),
        })
    }

    pub fn close(&mut self, service: ServiceIndex, id: ConnectionId) {
        drop(self.take(service, id));
    }

    pub fn close_all(&mut self, service: ServiceIndex) {
        let keys: Vec<ReplicaKey> = self
            .by_key
            .keys()
            .filter(|key| key.0 == service)
            .copied()
            .collect();
        for (service, id) in keys {
            self.close(service, id);
        }
    }

    /// Removes a replica and returns its connection. The relay uses the connection from then on.
    pub fn take(&mut self, service: ServiceIndex, id: ConnectionId) -> Option<TcpStream> {
        let token = self.by_key.remove(&(service, id))?;
        let replica = self.by_token.remove(&token)?;
        self.paused.retain(|&paused| paused != token);
        let _ = self.epoll.delete(&replica.stream); // an error is harmless: epoll forgets the stream when it is closed
        Some(replica.stream)
    }

    /// Reads the output of the replicas. Returns the replicas that take more input now.
    pub fn serve(&mut self, node: &mut Core) -> Vec<ReplicaKey> {
        let mut hungry = Vec::new();
        if self.by_token.is_empty() {
            return hungry;
        }
        self.unpause(node);
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            let token = event.data();
            if event
                .events()
                .intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR)
            {
                self.read(node, token);
            }
            if event.events().contains(EpollFlags::EPOLLOUT)
                && let Some(replica) = self.by_token.get_mut(&token)
            {
                replica.blocked = false;
                hungry.push(replica.key);
                let paused = self.paused.contains(&token);
                self.watch(token, !paused, false);
            }
        }
        hungry
    }

    fn read(&mut self, node: &mut Core, token: u64) {
        let Some(replica) = self.by_token.get_mut(&token) else {
            return;
        };
        let (service, id) = replica.key;
        match replica.stream.read(&mut self.buffer) {
            Ok(0) => {
                node.handle_replica_output(service, id, None);
                self.watch(token, false, false);
            }
            Ok(count) => {
                let ahead = node.handle_replica_output(service, id, Some(&self.buffer[..count]));
                if ahead > AHEAD_MAX {
                    let blocked = replica.blocked;
                    self.paused.push(token);
                    self.watch(token, false, blocked);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.fail(node, token, &format!("reading from the replica: {error}")),
        }
    }

    /// Reads again from paused replicas whose output is now at most half of [`AHEAD_MAX`] ahead of the primary's.
    fn unpause(&mut self, node: &mut Core) {
        for token in std::mem::take(&mut self.paused) {
            let Some(replica) = self.by_token.get(&token) else {
                continue;
            };
            let (service, id) = replica.key;
            if node.handle_replica_output(service, id, Some(&[])) > AHEAD_MAX / 2 {
                self.paused.push(token);
            } else {
                let blocked = replica.blocked;
                self.watch(token, true, blocked);
            }
        }
    }

    fn watch(&self, token: u64, readable: bool, writable: bool) {
        let Some(replica) = self.by_token.get(&token) else {
            return;
        };
        if let Err(error) = self
            .epoll
            .modify(&replica.stream, &mut event(token, readable, writable))
        {
            tracing::warn!(%error, "cannot watch a replica; its events are not noticed");
        }
    }

    fn fail(&mut self, node: &mut Core, token: u64, reason: &str) {
        let Some(replica) = self.by_token.get(&token) else {
            return;
        };
        let (service, id) = replica.key;
        node.handle(
            linux::clock::now(),
            service,
            ServiceInput::ReplicaFailed {
                connection: id,
                reason: reason.to_owned(),
            },
        );
        self.close(service, id);
    }
}

fn event(token: u64, readable: bool, writable: bool) -> EpollEvent {
    let mut flags = EpollFlags::empty();
    flags.set(EpollFlags::EPOLLIN, readable);
    flags.set(EpollFlags::EPOLLOUT, writable);
    EpollEvent::new(flags, token)
}

/// Writes input. If `ends`, shuts down the stream for writing after the last byte. Returns what was written, and whether all input was
/// written. Input that was spilled to a file is copied through `buffer`.
fn feed<'a>(
    stream: &mut TcpStream,
    input: impl Iterator<Item = LogPart<'a>>,
    ends: bool,
    buffer: &mut [u8],
) -> io::Result<(Written, bool)> {
    let mut bytes = 0;
    let mut is_all = true;
    for part in input {
        is_all = match part {
            LogPart::Memory(slice) => write(stream, slice, &mut bytes),
            LogPart::File(part) => write_from(stream, part, buffer, &mut bytes),
        }?;
        if !is_all {
            break;
        }
    }
    let is_ended = ends && is_all;
    if is_ended {
        stream.shutdown(Shutdown::Write)?;
    }
    Ok((Written { bytes, is_ended }, is_all))
}

/// Writes as many of `bytes` as the replica takes now. Returns whether the replica took all bytes.
fn write(stream: &mut TcpStream, mut bytes: &[u8], written: &mut u64) -> io::Result<bool> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => {
                *written += count as u64;
                bytes = &bytes[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn write_from(
    stream: &mut TcpStream,
    mut part: InFile<'_>,
    buffer: &mut [u8],
    written: &mut u64,
) -> io::Result<bool> {
    while part.len > 0 {
        let count = part.read(buffer)?;
        if !write(stream, &buffer[..count], written)? {
            return Ok(false);
        }
    }
    Ok(true)
}
