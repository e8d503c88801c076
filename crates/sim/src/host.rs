//! A machine with a TCP stack: listeners, endpoints, and the applications that use them.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use proto::packet::{Checksum, Segment};
use proto::{Instant, Seq};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::tcp::{EndpointState, Initial, TcpConfig, TcpEndpoint, reset_for};
use crate::world::{Output, Port, SimNode};

/// The application that uses one endpoint: a server's worker, or a client.
///
/// A closure `FnMut(Instant, &mut TcpEndpoint) -> Option<Instant>` is an `App`, too.
pub trait App: Any {
    /// Reads and writes as much as possible. Returns the time of the next call, if the application wants one. The host
    /// also calls this after each event of the endpoint.
    fn drive(&mut self, now: Instant, endpoint: &mut TcpEndpoint) -> Option<Instant>;
}

impl<F: FnMut(Instant, &mut TcpEndpoint) -> Option<Instant> + 'static> App for F {
    fn drive(&mut self, now: Instant, endpoint: &mut TcpEndpoint) -> Option<Instant> {
        self(now, endpoint)
    }
}

/// Identifies an endpoint of a host, also after the endpoint is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(u64);

/// Configuration of a host.
#[derive(Clone, Debug, Default)]
pub struct HostConfig {
    /// The addresses that the host answers for.
    pub addresses: Vec<IpAddr>,
    /// Configuration of the endpoints.
    pub tcp: TcpConfig,
    /// Initial sequence number and timestamp of each endpoint. `None` draws them from the seed.
    pub initial: Option<Initial>,
}

/// A machine with a TCP stack. [`Port`] 0 is its only network interface.
pub struct Host {
    config: HostConfig,
    rng: Xoshiro256PlusPlus,
    listeners: BTreeMap<u16, Listener>,
    sockets: BTreeMap<EndpointId, Socket>,
    /// The endpoints that segments can reach, by local and remote address.
    open: BTreeMap<(SocketAddr, SocketAddr), EndpointId>,
    next_id: u64,
    /// The endpoints that may have something to send.
    ready: VecDeque<EndpointId>,
    timers: BTreeSet<(Instant, EndpointId)>,
    /// Resets for segments that belong to no endpoint.
    strays: VecDeque<Vec<u8>>,
    malformed: u64,
}

type Listener = Box<dyn FnMut(SocketAddr) -> Box<dyn App>>;

struct Socket {
    endpoint: TcpEndpoint,
    app: Box<dyn App>,
    /// When the application wants to be driven.
    app_at: Option<Instant>,
    /// The endpoint's entry in `timers`.
    timer: Option<Instant>,
    is_ready: bool,
}

impl Host {
    /// A host without connections.
    ///
    /// # Panics
    /// If the endpoints' configuration is invalid ([`TcpConfig::check`]).
    pub fn new(config: HostConfig, seed: u64) -> Self {
        config
            .tcp
            .check()
            .expect("the caller has checked the configuration");
        Self {
            config,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            listeners: BTreeMap::new(),
            sockets: BTreeMap::new(),
            open: BTreeMap::new(),
            next_id: 0,
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            strays: VecDeque::new(),
            malformed: 0,
        }
    }

    /// Accepts connections to `port` at any address of the host. `accept` makes the application for a remote address.
    pub fn listen(&mut self, port: u16, accept: impl FnMut(SocketAddr) -> Box<dyn App> + 'static) {
        self.listeners.insert(port, Box::new(accept));
    }

    /// Stops accepting connections to `port`.
    pub fn unlisten(&mut self, port: u16) {
        self.listeners.remove(&port);
    }

    /// Opens a connection.
    ///
    /// # Panics
    /// If a connection with these addresses exists.
    pub fn connect(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        app: Box<dyn App>,
    ) -> EndpointId {
        let initial = self.initial();
        let endpoint = TcpEndpoint::connect(self.config.tcp.clone(), local, remote, initial);
        self.adopt(now, endpoint, app)
    }

    /// Takes over an endpoint that was made elsewhere, for example by [`TcpEndpoint::restore`].
    ///
    /// # Panics
    /// If a connection with these addresses exists.
    pub fn adopt(&mut self, now: Instant, endpoint: TcpEndpoint, app: Box<dyn App>) -> EndpointId {
        let id = EndpointId(self.next_id);
        self.next_id += 1;
        let before = self.open.insert((endpoint.local(), endpoint.remote()), id);
        assert_eq!(before, None, "the addresses are taken");
        self.sockets.insert(
            id,
            Socket {
                endpoint,
                app,
                app_at: None,
                timer: None,
                is_ready: false,
            },
        );
        self.drive(now, id);
        id
    }

    /// Removes an endpoint and its application, and returns them. Sends nothing to the remote end.
    pub fn take(&mut self, id: EndpointId) -> Option<(TcpEndpoint, Box<dyn App>)> {
        let socket = self.sockets.remove(&id)?;
        self.open
            .remove(&(socket.endpoint.local(), socket.endpoint.remote()));
        if let Some(at) = socket.timer {
            self.timers.remove(&(at, id));
        }
        Some((socket.endpoint, socket.app))
    }

    /// The endpoint `id`, also after it is closed.
    pub fn endpoint(&self, id: EndpointId) -> Option<&TcpEndpoint> {
        self.sockets.get(&id).map(|socket| &socket.endpoint)
    }

    /// The application of the endpoint `id`, if it is a `T`.
    pub fn app<T: App>(&self, id: EndpointId) -> Option<&T> {
        let app: &dyn Any = self.sockets.get(&id)?.app.as_ref();
        app.downcast_ref()
    }

    /// The open endpoint between these addresses.
    pub fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<EndpointId> {
        self.open.get(&(local, remote)).copied()
    }

    /// All endpoints that were not taken, in the order in which they were made.
    pub fn endpoints(&self) -> impl Iterator<Item = (EndpointId, &TcpEndpoint)> {
        self.sockets.iter().map(|(id, socket)| (*id, &socket.endpoint))
    }

    /// Number of packets that were no valid TCP segments.
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Runs `f` on an endpoint and drives its application; `None` if there is no such endpoint.
    pub fn with<R>(
        &mut self,
        now: Instant,
        id: EndpointId,
        f: impl FnOnce(&mut TcpEndpoint) -> R,
    ) -> Option<R> {
        let result = f(&mut self.sockets.get_mut(&id)?.endpoint);
        self.drive(now, id);
        Some(result)
    }

    /// Lets the application read and write.
    fn drive(&mut self, now: Instant, id: EndpointId) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        socket.app_at = socket.app.drive(now, &mut socket.endpoint);
        if !std::mem::replace(&mut socket.is_ready, true) {
            self.ready.push_back(id);
        }
    }

    /// Schedules the next call of an endpoint that has nothing more to send. If the endpoint is closed, also removes it
    /// from `open`.
    fn rest(&mut self, id: EndpointId) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        socket.is_ready = false;
        let at = socket
            .endpoint
            .poll_timeout()
            .into_iter()
            .chain(socket.app_at)
            .min();
        if socket.timer != at {
            socket.timer.map(|before| self.timers.remove(&(before, id)));
            at.map(|at| self.timers.insert((at, id)));
            socket.timer = at;
        }
        if socket.endpoint.state() == EndpointState::Closed {
            let addresses = (socket.endpoint.local(), socket.endpoint.remote());
            if self.open.get(&addresses) == Some(&id) {
                self.open.remove(&addresses);
            }
        }
    }

    fn handle_segment(&mut self, now: Instant, segment: &Segment<'_>) {
        if let Some(id) = self.find(segment.destination, segment.source) {
            if let Some(socket) = self.sockets.get_mut(&id) {
                socket.endpoint.handle_segment(now, segment);
            }
            self.drive(now, id);
            return;
        }
        if !self.config.addresses.contains(&segment.destination.ip()) {
            return;
        }
        let initial = self.initial();
        let listener = self.listeners.get_mut(&segment.destination.port());
        let accepted = listener.and_then(|accept| {
            let endpoint = TcpEndpoint::accept(self.config.tcp.clone(), initial, segment, now)?;
            Some((endpoint, accept(segment.source)))
        });
        match accepted {
            Some((endpoint, app)) => {
                self.adopt(now, endpoint, app);
            }
            None => self.strays.extend(reset_for(segment).map(|reset| reset.emit())),
        }
    }

    fn initial(&mut self) -> Initial {
        let drawn = self.rng.next_u64();
        // The sequence number is the lower half of `drawn`; the timestamp is the upper half.
        self.config.initial.unwrap_or(Initial {
            seq: Seq(drawn as u32),
            timestamp: (drawn >> 32) as u32,
        })
    }
}

impl SimNode for Host {
    fn handle(&mut self, now: Instant, _: Port, packet: Vec<u8>) {
        match Segment::parse(&packet, Checksum::Unverified) {
            Ok(segment) => self.handle_segment(now, &segment),
            Err(_) => self.malformed += 1,
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(socket) = self.sockets.get_mut(&id) {
                socket.timer = None;
                socket.endpoint.handle_timeout(now);
            }
            self.drive(now, id);
        }
    }

    fn poll_output(&mut self, now: Instant) -> Option<Output> {
        while let Some(id) = self.ready.front().copied() {
            let socket = self.sockets.get_mut(&id);
            if let Some(packet) = socket.and_then(|socket| socket.endpoint.poll_transmit(now)) {
                return Some(Output::Transmit {
                    port: Port(0),
                    packet,
                });
            }
            self.ready.pop_front();
            self.rest(id);
        }
        let packet = self.strays.pop_front()?;
        Some(Output::Transmit {
            port: Port(0),
            packet,
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }
}
