//! The server in whose process this library is: it is recorded, or plays back, or does neither any more.

use std::collections::VecDeque;
use std::ffi::{c_int, c_short};
use std::path::Path;

use proto::order::{CLOCKS, Outcome};

use crate::files::FilePart;
use crate::forked;
use crate::held::{HOLD_MAX, HeldOutput, SLOW_CLIENT};
use crate::link::{AgentLink, ChildRole, OrderRole};
use crate::playing::{PlayingServer, RecordEnded};
use crate::recording::RecordingServer;
use crate::sockets::{ConnectionScope, OrderedSockets, OrderedWatch, WaitingConnection};
use crate::system::{self, RawAddress};

/// Numbers of the clocks that have no number of their own.
pub const CLOCK_GETTIMEOFDAY: u8 = 14;
/// `time`.
pub const CLOCK_TIME: u8 = 15;

/// Clocks that count from the start of a machine, which differs between the two nodes.
const SINCE_BOOT: [c_int; 4] = [
    libc::CLOCK_MONOTONIC,
    libc::CLOCK_MONOTONIC_COARSE,
    libc::CLOCK_MONOTONIC_RAW,
    libc::CLOCK_BOOTTIME,
];

/// Longest wait in nanoseconds for a client to take the output before the end of a stream.
const SETTLE_MAX: u64 = 1_000_000_000;

enum OrderMode {
    Recording(Box<RecordingServer>),
    Playing(Box<PlayingServer>),
    Plain(Box<PlainServer>),
}

impl OrderMode {
    /// A child whose stream has `len` bytes.
    fn of_child(plan: ChildPlan, len: u64) -> Self {
        let ChildPlan { stream, link, role } = plan;
        match role {
            ChildRole::Record => Self::Recording(Box::new(RecordingServer::of_child(link, stream, len))),
            ChildRole::Play(on_divergence) => {
                Self::Playing(Box::new(PlayingServer::of_child(link, on_divergence)))
            }
        }
    }
}

/// A server without a record.
#[derive(Default)]
struct PlainServer {
    held: HeldOutput,
    /// Connections that were accepted during the playback, and that the server has not accepted yet.
    waiting: VecDeque<WaitingConnection>,
    /// Nanoseconds to add to a clock, so that it goes on from the value of the playback.
    offsets: [u64; CLOCKS],
}

/// A child that is about to be forked, with a stream of its own.
pub struct ChildPlan {
    stream: u32,
    link: AgentLink,
    role: ChildRole,
}

impl ChildPlan {
    /// The descriptor of the child's link.
    pub fn descriptor(&self) -> c_int {
        self.link.descriptor()
    }

    /// Moves the child's link to this descriptor, if that is possible, and leaves it to the programs that this process starts.
    pub fn move_link(&mut self, to: c_int) {
        self.link.move_to(to);
    }

    /// Leaves the child's link to a program, at a free descriptor from this one on.
    pub fn leave_link(&mut self, from: c_int) {
        self.link.leave(from);
    }

    /// The child's stream.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// What the child does with its stream.
    pub fn role(&self) -> ChildRole {
        self.role
    }
}

/// The server.
pub struct OrderedServer {
    sockets: OrderedSockets,
    mode: OrderMode,
    /// Streams from which the server reads random bytes.
    random_streams: Vec<usize>,
}

impl OrderedServer {
    /// A server that has made no call yet. `None`: it has no record.
    pub fn new(role: OrderRole) -> Option<Self> {
        let (scope, mode) = match role {
            OrderRole::Record(sink, service) => (
                service.map_or(ConnectionScope::All, ConnectionScope::To),
                OrderMode::Recording(Box::new(RecordingServer::new(sink))),
            ),
            OrderRole::Play(source, on_divergence) => {
                let scope = match source.descriptor() {
                    Some(_) => ConnectionScope::FromElsewhere,
                    None => ConnectionScope::All,
                };
                let playing = PlayingServer::new(source, on_divergence);
                (scope, OrderMode::Playing(Box::new(playing)))
            }
            OrderRole::None => return None,
        };
        Some(Self {
            sockets: OrderedSockets::new(scope),
            mode,
            random_streams: Vec::new(),
        })
    }

    /// A program that a child of a server has started. It goes on with the child's stream. `None`: it has no connection, or the agent has
    /// ended.
    pub fn of_program(stream: u32, mut link: AgentLink, role: ChildRole) -> Option<Self> {
        let mut sockets = OrderedSockets::new(ConnectionScope::All);
        sockets.add_inherited();
        if !sockets.has_connections() {
            return None;
        }
        let len = match role {
            ChildRole::Record => link.resume()?,
            ChildRole::Play(_) => 0,
        };
        let mut server = Self {
            sockets,
            mode: OrderMode::of_child(ChildPlan { stream, link, role }, len),
            random_streams: Vec::new(),
        };
        server.pid();
        Some(server)
    }

    /// The server is about to fork. `None`: the child has no stream. Only a child that inherits a connection of the service has one.
    pub fn prepare_child(&mut self, agent: &Path) -> Option<ChildPlan> {
        if !self.sockets.has_connections() {
            return None;
        }
        if let OrderMode::Recording(recording) = &mut self.mode {
            let (stream, link) = recording.fork(agent)?;
            let role = ChildRole::Record;
            return Some(ChildPlan { stream, link, role });
        }
        let on_divergence = match &self.mode {
            OrderMode::Playing(playing) => playing.on_divergence(),
            _ => return None,
        };
        let stream = self.follow(|playing, _| playing.fork()).flatten()?;
        let mut link = AgentLink::connect(agent)?;
        link.introduce(stream, 0, 0);
        let role = ChildRole::Play(on_divergence);
        Some(ChildPlan { stream, link, role })
    }

    /// This process is the child that was prepared. Its link has its descriptor already.
    pub fn become_child(&mut self, plan: ChildPlan) {
        let own = plan.descriptor();
        let plain = OrderMode::Plain(Box::default());
        let parent = match std::mem::replace(&mut self.mode, plain) {
            OrderMode::Recording(recording) => recording.forget(),
            OrderMode::Playing(playing) => playing.forget(),
            OrderMode::Plain(_) => None,
        };
        if let Some(parent) = parent.filter(|&parent| parent != own) {
            let _ = system::close(parent);
        }
        self.sockets.forget_watches();
        system::own(own);
        self.mode = OrderMode::of_child(plan, 0);
        self.pid();
    }

    /// The link with the agent and the socket to the backup, if this process has them.
    pub fn links(&self) -> [Option<c_int>; 2] {
        match &self.mode {
            OrderMode::Recording(recording) => recording.links(),
            OrderMode::Playing(playing) => [playing.link(), None],
            OrderMode::Plain(_) => [None; 2],
        }
    }

    /// The server has copied the descriptor of an ordered socket.
    pub fn on_copy(&mut self, fd: c_int, copy: c_int) {
        let is_child = match &self.mode {
            OrderMode::Recording(recording) => recording.is_child(),
            OrderMode::Playing(_) | OrderMode::Plain(_) => true,
        };
        if !is_child {
            self.refuse("the server copies the descriptor of a connection");
        }
        self.sockets.add_copy(fd, copy);
    }

    /// The descriptors of ordered sockets between these two, inclusive.
    pub fn between(&self, first: c_int, last: c_int) -> Vec<c_int> {
        self.sockets.between(first, last)
    }

    /// Ends the recording of a process that cannot reach its agent any more.
    pub fn check_link(&mut self) {
        if matches!(&self.mode, OrderMode::Recording(recording) if recording.is_lost()) {
            self.refuse("this node's agent has ended, or refuses the record");
        }
    }

    /// Ends the recording of a server whose order cannot be recorded. A playback goes on.
    pub fn refuse(&mut self, reason: &str) {
        if !matches!(self.mode, OrderMode::Recording(_)) {
            return;
        }
        crate::say(&format!("recording has ended: {reason}"));
        let plain = OrderMode::Plain(Box::default());
        if let OrderMode::Recording(recording) = std::mem::replace(&mut self.mode, plain) {
            let (mut held, waiting) = recording.end(reason);
            held.flush(u64::MAX);
            self.mode = OrderMode::Plain(Box::new(PlainServer {
                held,
                waiting,
                ..PlainServer::default()
            }));
        }
    }

    /// The server has started a program that has no stream, although it inherits a connection.
    pub fn refuse_program(&mut self, reason: &str) {
        self.refuse(reason);
        let _ = self.follow(|playing, _| playing.cannot_follow(reason));
    }

    /// The record has ended: the server goes on without it.
    fn leave_record(&mut self, _: RecordEnded) {
        let plain = OrderMode::Plain(Box::default());
        let OrderMode::Playing(playing) = std::mem::replace(&mut self.mode, plain) else {
            return;
        };
        let rest = playing.end();
        crate::say(&rest.summary);
        let mut offsets = [0; CLOCKS];
        for clock in SINCE_BOOT {
            let last = rest.clocks[clock as usize];
            if last != 0 {
                offsets[clock as usize] = last.wrapping_sub(system::nanos(clock));
            }
        }
        self.mode = OrderMode::Plain(Box::new(PlainServer {
            held: rest.held,
            waiting: rest.waiting,
            offsets,
        }));
        self.sockets.watch_all();
    }

    /// Follows the record with `played`, or goes on without it.
    fn follow<T>(
        &mut self,
        played: impl FnOnce(&mut PlayingServer, &mut OrderedSockets) -> Result<T, RecordEnded>,
    ) -> Option<T> {
        let OrderMode::Playing(playing) = &mut self.mode else {
            return None;
        };
        match played(playing, &mut self.sockets) {
            Ok(outcome) => Some(outcome),
            Err(ended) => {
                self.leave_record(ended);
                None
            }
        }
    }

    /// The server listens on a socket.
    pub fn on_listen(&mut self, fd: c_int) {
        self.sockets.add_listener(fd);
    }

    /// Accepts a connection.
    pub fn accept(&mut self, fd: c_int, flags: c_int) -> Outcome<(c_int, RawAddress)> {
        if matches!(&self.mode, OrderMode::Recording(recording) if recording.is_child()) {
            self.refuse("a child of the server accepts connections");
        }
        let hand_over = |connection: WaitingConnection| {
            system::set_flags(connection.fd, flags);
            (connection.fd, connection.address)
        };
        if let Some(accepted) = self.follow(|playing, sockets| playing.accept(sockets, fd)) {
            return accepted.map(hand_over);
        }
        match &mut self.mode {
            OrderMode::Recording(recording) => recording.accept(&mut self.sockets, fd, flags),
            OrderMode::Plain(plain) => {
                let place = plain.waiting.iter().position(|one| one.listener == fd);
                match place.and_then(|place| plain.waiting.remove(place)) {
                    Some(connection) => Ok(hand_over(connection)),
                    None => system::accept(fd, flags),
                }
            }
            OrderMode::Playing(_) => Err(libc::EAGAIN),
        }
    }

    /// Reads from a connection, with flags of `recv`.
    pub fn read(&mut self, fd: c_int, buffer: &mut [u8], flags: c_int) -> Outcome<u64> {
        if let Some(outcome) = self.follow(|playing, sockets| playing.read(sockets, fd, buffer, flags)) {
            return outcome;
        }
        match &mut self.mode {
            OrderMode::Recording(recording) => recording.read(&self.sockets, fd, buffer, flags),
            // SAFETY: the slice is valid.
            _ => unsafe { system::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) },
        }
    }

    /// Writes to a connection.
    pub fn write(&mut self, fd: c_int, parts: &[&[u8]]) -> Outcome<u64> {
        if let Some(outcome) = self.follow(|playing, sockets| playing.write(sockets, fd, parts)) {
            return outcome;
        }
        match &mut self.mode {
            OrderMode::Recording(recording) => recording.write(&self.sockets, fd, parts),
            OrderMode::Plain(plain) => plain.write(fd, parts),
            OrderMode::Playing(_) => Err(libc::EAGAIN),
        }
    }

    /// Sends a part of a file to a connection.
    pub fn send_file(&mut self, fd: c_int, part: &mut FilePart<'_>) -> Outcome<u64> {
        if let Some(outcome) = self.follow(|playing, sockets| playing.send_file(sockets, fd, part)) {
            return outcome;
        }
        match &mut self.mode {
            OrderMode::Recording(recording) => recording.send_file(&self.sockets, fd, part),
            OrderMode::Plain(plain) => {
                plain.held.flush(u64::MAX);
                if plain.held.bytes(fd) == 0 {
                    return part.send(fd);
                }
                part.send_by(|bytes| plain.write(fd, &[bytes]))
            }
            OrderMode::Playing(_) => Err(libc::EAGAIN),
        }
    }

    /// Asks the kernel about a connection, by `ask`.
    pub fn ask(&mut self, fd: c_int, ask: impl FnOnce() -> Outcome<u64>) -> Outcome<u64> {
        if let Some(Some(outcome)) = self.follow(|playing, sockets| playing.ask(sockets, fd)) {
            return outcome;
        }
        let outcome = ask();
        if let OrderMode::Recording(recording) = &mut self.mode {
            recording.asked(&self.sockets, fd, outcome);
        }
        outcome
    }

    /// Whether this epoll instance has ordered sockets.
    pub fn is_watched_by(&self, epoll: c_int) -> bool {
        self.sockets.is_watched_by(epoll)
    }

    /// Writes the held output of a connection, and waits for the connection to take it. A client that does not read delays this call by
    /// [`SETTLE_MAX`] at most.
    pub fn settle(&mut self, fd: c_int) {
        if let OrderMode::Recording(recording) = &mut self.mode {
            recording.settle();
        }
        let held = match &mut self.mode {
            OrderMode::Recording(recording) => recording.held(),
            OrderMode::Playing(playing) => playing.held(),
            OrderMode::Plain(plain) => &mut plain.held,
        };
        let begun = system::nanos(libc::CLOCK_MONOTONIC);
        held.flush(u64::MAX);
        while held.bytes(fd) > 0 && system::nanos(libc::CLOCK_MONOTONIC) - begun < SETTLE_MAX {
            system::wait_writable(fd, 10);
            held.flush(u64::MAX);
        }
    }

    /// The server is about to close a socket.
    pub fn on_close(&mut self, fd: c_int) {
        let epoll = self.sockets.remove(fd);
        match &mut self.mode {
            OrderMode::Recording(recording) => recording.on_close(fd),
            OrderMode::Playing(playing) => return playing.on_close(fd), // the kernel's instance does not watch it
            OrderMode::Plain(plain) => plain.held.on_close(fd),
        }
        // A copy of the descriptor may stay open, so closing does not suffice.
        if let Some(epoll) = epoll {
            system::epoll_remove(epoll, fd);
        }
    }

    /// The server watches an ordered socket, or not any more. Returns whether the kernel's epoll instance is to do the same.
    pub fn on_watch(&mut self, epoll: c_int, fd: c_int, watch: Option<OrderedWatch>) -> bool {
        if let Err(reason) = self.sockets.watch(epoll, fd, watch) {
            self.refuse(reason);
        }
        !matches!(self.mode, OrderMode::Playing(_))
    }

    /// Waits until sockets are ready. `None`: this epoll instance has no ordered sockets.
    pub fn wait(
        &mut self,
        epoll: c_int,
        events: &mut [libc::epoll_event],
        timeout: c_int,
    ) -> Option<Outcome<usize>> {
        if !self.sockets.is_watched_by(epoll) {
            return None;
        }
        if let Some(outcome) = self.follow(|playing, sockets| playing.wait(sockets, epoll, events, timeout)) {
            return Some(outcome);
        }
        if let OrderMode::Recording(recording) = &mut self.mode {
            let outcome = recording.wait(&self.sockets, epoll, events, timeout);
            self.check_link();
            if forked::has_used() {
                self.refuse(crate::CHILD);
            }
            return Some(outcome);
        }
        let OrderMode::Plain(plain) = &mut self.mode else {
            return None;
        };
        Some(plain.wait(&self.sockets, epoll, events, timeout))
    }

    /// Waits until an ordered socket is ready, as `poll` does. Returns its events. `None`: the kernel has to be asked.
    pub fn wait_for_one(&mut self, fd: c_int, events: c_short, timeout: c_int) -> Option<Outcome<c_short>> {
        if let Some(outcome) = self.follow(|playing, sockets| playing.wait_for_one(sockets, fd, timeout)) {
            return Some(outcome);
        }
        let outcome = match &mut self.mode {
            OrderMode::Recording(recording) => recording.wait_for_one(&self.sockets, fd, events, timeout),
            OrderMode::Plain(plain) => {
                plain.held.flush(u64::MAX);
                let is_waiting = plain.waiting.iter().any(|one| one.listener == fd);
                return is_waiting.then_some(Ok(libc::POLLIN));
            }
            OrderMode::Playing(_) => return None,
        };
        self.check_link();
        if forked::has_used() {
            self.refuse(crate::CHILD);
        }
        Some(outcome)
    }

    /// The value of a clock. `now` reads it.
    pub fn clock(&mut self, clock: u8, now: impl Fn() -> u64) -> u64 {
        if let Some(nanos) = self.follow(|playing, _| playing.clock(clock, &now)) {
            return nanos;
        }
        match &mut self.mode {
            OrderMode::Recording(recording) => recording.clock(clock, now),
            OrderMode::Plain(plain) => now().wrapping_add(plain.offsets[usize::from(clock)]),
            OrderMode::Playing(_) => now(),
        }
    }

    /// Random bytes. `get` fills the buffer, and returns whether it could.
    pub fn random(&mut self, bytes: &mut [u8], get: impl FnOnce(&mut [u8]) -> bool) -> bool {
        if self.follow(|playing, _| playing.random(bytes)) == Some(true) {
            return true;
        }
        let has_got = get(bytes);
        if has_got && let OrderMode::Recording(recording) = &mut self.mode {
            recording.random(bytes);
        }
        has_got
    }

    /// The number of the server's process.
    pub fn pid(&mut self) -> u32 {
        if let Some(pid) = self.follow(|playing, _| playing.pid()) {
            return pid;
        }
        match &mut self.mode {
            OrderMode::Recording(recording) => recording.pid(),
            _ => system::getpid(),
        }
    }

    /// The server has opened a stream of random bytes.
    pub fn add_random_stream(&mut self, stream: usize) {
        self.random_streams.push(stream);
    }

    /// Whether the server reads random bytes from this stream.
    pub fn is_random_stream(&self, stream: usize) -> bool {
        self.random_streams.contains(&stream)
    }

    /// The server closes a stream.
    pub fn remove_random_stream(&mut self, stream: usize) {
        self.random_streams.retain(|&one| one != stream);
    }
}

impl PlainServer {
    fn write(&mut self, fd: c_int, parts: &[&[u8]]) -> Outcome<u64> {
        self.held.flush(u64::MAX);
        match self.held.bytes(fd) {
            0 => system::send_parts(fd, parts),
            HOLD_MAX.. => Err(libc::EAGAIN),
            _ => {
                self.held.hold(fd, 0, parts);
                Ok(parts.iter().map(|part| part.len() as u64).sum())
            }
        }
    }

    fn wait(
        &mut self,
        sockets: &OrderedSockets,
        epoll: c_int,
        events: &mut [libc::epoll_event],
        timeout: c_int,
    ) -> Outcome<usize> {
        self.held.flush(u64::MAX);
        let mut limit = timeout;
        if !self.held.is_empty() && !(0..SLOW_CLIENT).contains(&timeout) {
            limit = SLOW_CLIENT;
        }
        let waiting = self.waiting.front().and_then(|connection| {
            let listener = sockets.listener(connection.listener)?;
            sockets.watch_of(proto::order::Source::Listener(listener))
        });
        let Some(watch) = waiting else {
            return system::wait_for_events(epoll, events, limit);
        };
        let Some((first, rest)) = events.split_first_mut() else {
            return Err(libc::EINVAL);
        };
        *first = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            ..watch.event()
        };
        // The kernel may report the same listener again. The server then finds no further connection.
        let others = if rest.is_empty() {
            0
        } else {
            system::wait_for_events(epoll, rest, 0).unwrap_or(0)
        };
        Ok(1 + others)
    }
}
