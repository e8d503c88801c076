//! The ordered sockets of a server: its listening sockets and the connections of its clients, with their numbers in the record.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::order::Source;
use rustc_hash::FxHashMap;

use crate::system::{self, RawAddress};

/// Descriptors from here on are not ordered.
pub const DESCRIPTORS_MAX: usize = 1 << 16;

/// Descriptors that are looked at for connections when a program starts.
const INHERITED_MAX: c_int = 256;

/// Whether a descriptor is ordered. Each thread reads this before each call; only the first thread, and a child, write it.
static ORDERED: [AtomicBool; DESCRIPTORS_MAX] = [const { AtomicBool::new(false) }; DESCRIPTORS_MAX];

/// Whether a descriptor is an ordered socket.
pub fn is_ordered(fd: c_int) -> bool {
    usize::try_from(fd)
        .ok()
        .and_then(|fd| ORDERED.get(fd))
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
}

fn set_ordered(fd: c_int, value: bool) {
    if let Some(flag) = usize::try_from(fd).ok().and_then(|fd| ORDERED.get(fd)) {
        flag.store(value, Ordering::Relaxed);
    }
}

/// How the server watches an ordered socket.
#[derive(Clone, Copy)]
pub struct OrderedWatch {
    /// The events that it waits for.
    pub events: u32,
    /// What epoll returns with them.
    pub data: u64,
}

impl OrderedWatch {
    /// As the kernel takes it.
    pub fn event(self) -> libc::epoll_event {
        libc::epoll_event {
            events: self.events,
            u64: self.data,
        }
    }
}

struct OrderedSocket {
    source: Source,
    watch: Option<OrderedWatch>,
}

/// Which connections are ordered.
#[derive(Clone, Copy)]
pub enum ConnectionScope {
    /// All.
    All,
    /// Those that clients opened to this address, which is the service's.
    To(SocketAddr),
    /// Those that do not come from this node itself: the agent's connections bear the addresses of clients.
    FromElsewhere,
}

/// A connection that the kernel has accepted and the server has not.
pub struct WaitingConnection {
    /// Its descriptor.
    pub fd: c_int,
    /// The client.
    pub address: RawAddress,
    /// The listening socket from which it was accepted.
    pub listener: c_int,
}

/// The ordered sockets of a server.
pub struct OrderedSockets {
    scope: ConnectionScope,
    by_descriptor: FxHashMap<c_int, OrderedSocket>,
    connections: FxHashMap<u32, c_int>,
    listeners: Vec<c_int>,
    by_data: FxHashMap<u64, c_int>,
    accepted: u32,
    epoll: Option<c_int>,
}

impl OrderedSockets {
    /// No sockets.
    pub fn new(scope: ConnectionScope) -> Self {
        Self {
            scope,
            by_descriptor: FxHashMap::default(),
            connections: FxHashMap::default(),
            listeners: Vec::new(),
            by_data: FxHashMap::default(),
            accepted: 0,
            epoll: None,
        }
    }

    /// The server listens on a socket.
    pub fn add_listener(&mut self, fd: c_int) {
        let is_internet = RawAddress::of_socket(fd).is_ok_and(|address| address.internet().is_some());
        if is_internet && !self.by_descriptor.contains_key(&fd) {
            let source = Source::Listener(self.listeners.len() as u32);
            self.listeners.push(fd);
            self.add(fd, source);
        }
    }

    /// The server has accepted an ordered connection. Returns its number.
    pub fn add_connection(&mut self, fd: c_int) -> u32 {
        let number = self.accepted;
        self.accepted += 1;
        self.connections.insert(number, fd);
        self.add(fd, Source::Connection(number));
        number
    }

    /// `copy` is a second descriptor of an ordered socket.
    pub fn add_copy(&mut self, fd: c_int, copy: c_int) {
        if let Some(socket) = self.by_descriptor.get(&fd) {
            self.add(copy, socket.source);
        }
    }

    /// This process is a child. An epoll instance is its parent's, so a child watches its sockets with one of its own.
    pub fn forget_watches(&mut self) {
        self.epoll = None;
        self.by_data.clear();
        self.by_descriptor
            .values_mut()
            .for_each(|socket| socket.watch = None);
    }

    /// Whether the server has ordered connections.
    pub fn has_connections(&self) -> bool {
        !self.connections.is_empty()
    }

    /// The descriptors of ordered sockets between these two, inclusive.
    pub fn between(&self, first: c_int, last: c_int) -> Vec<c_int> {
        let descriptors = self.by_descriptor.keys().copied();
        descriptors.filter(|fd| (first..=last).contains(fd)).collect()
    }

    /// The connections that a program has inherited: each client is a connection, in the order of descriptors.
    pub fn add_inherited(&mut self) {
        let mut clients: Vec<(SocketAddr, c_int)> = Vec::new();
        for fd in 0..INHERITED_MAX {
            let Some(client) = RawAddress::of_peer(fd)
                .ok()
                .and_then(|address| address.internet())
            else {
                continue;
            };
            match clients.iter().find(|(known, _)| *known == client) {
                Some(&(_, original)) => self.add_copy(original, fd),
                None => {
                    self.add_connection(fd);
                    clients.push((client, fd));
                }
            }
        }
    }

    fn add(&mut self, fd: c_int, source: Source) {
        self.by_descriptor
            .insert(fd, OrderedSocket { source, watch: None });
        set_ordered(fd, true);
    }

    /// The server closes a socket. Returns the epoll instance that watched it.
    pub fn remove(&mut self, fd: c_int) -> Option<c_int> {
        let socket = self.by_descriptor.remove(&fd)?;
        set_ordered(fd, false);
        match socket.source {
            Source::Connection(number) if self.connections.get(&number) == Some(&fd) => {
                let copy = self
                    .by_descriptor
                    .iter()
                    .find(|(_, other)| other.source == socket.source);
                match copy {
                    Some((&copy, _)) => self.connections.insert(number, copy),
                    None => self.connections.remove(&number),
                };
            }
            Source::Connection(_) => {}
            // The numbers of other listeners stay.
            Source::Listener(number) => self.listeners[number as usize] = -1,
        }
        let watch = socket.watch?;
        self.by_data.remove(&watch.data);
        self.epoll
    }

    /// Whether a connection between these addresses is ordered.
    pub fn takes(&self, fd: c_int, client: &RawAddress) -> Option<SocketAddr> {
        let client = client.internet()?;
        let own = RawAddress::of_socket(fd).ok()?.internet()?;
        let is_taken = fd < DESCRIPTORS_MAX as c_int
            && match self.scope {
                ConnectionScope::All => true,
                ConnectionScope::To(service) => own == service,
                ConnectionScope::FromElsewhere => !client.ip().is_loopback() && client.ip() != own.ip(),
            };
        is_taken.then_some(client)
    }

    /// The number of a connection.
    pub fn connection(&self, fd: c_int) -> Option<u32> {
        match self.by_descriptor.get(&fd)?.source {
            Source::Connection(number) => Some(number),
            Source::Listener(_) => None,
        }
    }

    /// The number of a listening socket.
    pub fn listener(&self, fd: c_int) -> Option<u32> {
        match self.by_descriptor.get(&fd)?.source {
            Source::Listener(number) => Some(number),
            Source::Connection(_) => None,
        }
    }

    /// The descriptors of the listening sockets.
    pub fn listeners(&self) -> impl Iterator<Item = c_int> {
        self.listeners.iter().copied().filter(|&fd| fd >= 0)
    }

    /// The server watches a socket, or not any more.
    ///
    /// # Errors
    /// The reason why the order of these events cannot be recorded.
    pub fn watch(
        &mut self,
        epoll: c_int,
        fd: c_int,
        watch: Option<OrderedWatch>,
    ) -> Result<(), &'static str> {
        let Some(socket) = self.by_descriptor.get_mut(&fd) else {
            return Ok(());
        };
        if *self.epoll.get_or_insert(epoll) != epoll {
            return Err("the server has several epoll instances");
        }
        if let Some(old) = std::mem::replace(&mut socket.watch, watch) {
            self.by_data.remove(&old.data);
        }
        let Some(watch) = watch else {
            return Ok(());
        };
        if watch.events & (libc::EPOLLET | libc::EPOLLONESHOT) as u32 != 0 {
            return Err("the server uses EPOLLET or EPOLLONESHOT");
        }
        match self.by_data.insert(watch.data, fd) {
            Some(other) if other != fd => Err("two sockets have the same epoll data"),
            _ => Ok(()),
        }
    }

    /// Whether this epoll instance watches ordered sockets.
    pub fn is_watched_by(&self, epoll: c_int) -> bool {
        self.epoll == Some(epoll)
    }

    /// The socket of an event, if it is ordered.
    pub fn source(&self, event: &libc::epoll_event) -> Option<Source> {
        let fd = self.by_data.get(&{ event.u64 })?;
        Some(self.by_descriptor.get(fd)?.source)
    }

    /// An ordered socket's number.
    pub fn source_of(&self, fd: c_int) -> Option<Source> {
        Some(self.by_descriptor.get(&fd)?.source)
    }

    /// How the server watches this socket.
    pub fn watch_of(&self, source: Source) -> Option<OrderedWatch> {
        let fd = match source {
            Source::Connection(number) => self.connections.get(&number)?,
            Source::Listener(number) => self.listeners.get(number as usize)?,
        };
        self.by_descriptor.get(fd)?.watch
    }

    /// Adds to the first `count` events those of the listeners from which `waiting` connections were accepted. Returns how many were added.
    pub fn add_waiting(
        &self,
        waiting: &VecDeque<WaitingConnection>,
        events: &mut [libc::epoll_event],
        count: usize,
    ) -> usize {
        let mut end = count;
        for connection in waiting {
            let watch = self
                .listener(connection.listener)
                .and_then(|listener| self.watch_of(Source::Listener(listener)));
            if let Some(watch) = watch
                && end < events.len()
                && !events[..end].iter().any(|event| { event.u64 } == watch.data)
            {
                events[end] = libc::epoll_event {
                    events: libc::EPOLLIN as u32,
                    ..watch.event()
                };
                end += 1;
            }
        }
        end - count
    }

    /// Adds all watched sockets to the kernel's epoll instance, which has had none of them until now.
    pub fn watch_all(&self) {
        let Some(epoll) = self.epoll else {
            return;
        };
        for (&fd, socket) in &self.by_descriptor {
            if let Some(watch) = socket.watch
                && let Err(error) = system::epoll_add(epoll, fd, watch.event())
            {
                crate::say(&format!("descriptor {fd} cannot be watched: error {error}"));
            }
        }
    }
}

/// Forgets that a descriptor is ordered, because the child of a fork closes it.
pub fn forget(fd: c_int) {
    set_ordered(fd, false);
}
