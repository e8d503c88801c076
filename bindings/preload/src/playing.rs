//! The backup's half: calls get the outcomes of the record. The connections are real, but the record decides when the server learns of
//! them, and how much it reads at a time.

use std::collections::VecDeque;
use std::ffi::{c_int, c_short};
use std::net::SocketAddr;

use proto::order::{
    CLOCKS, COARSE_CLOCKS, OnDivergence, OrderCall, OrderEvent, OrderPlayback, OrderStep, Outcome,
};

use crate::files::FilePart;
use crate::held::HeldOutput;
use crate::link::{AgentLink, RecordSource};
use crate::recording::LocalRound;
use crate::sockets::{OrderedSockets, WaitingConnection};
use crate::system;

/// Longest wait in milliseconds for a connection or for input that the record has. Both are in the backup's log before the primary's server
/// gets them, so a longer wait means that they never come.
const INPUT_MAX: u64 = 10_000;
/// Interval in nanoseconds at which the agent learns the counts.
const REPORT_EVERY: u64 = 1_000_000_000;
/// Interval in milliseconds at which a slow client is tried again.
const SLOW_CLIENT: c_int = 5;

/// A server that follows a record.
pub struct PlayingServer {
    playback: OrderPlayback,
    source: RecordSource,
    held: HeldOutput,
    /// Ordered connections that the record has not mentioned yet.
    waiting: Vec<(SocketAddr, WaitingConnection)>,
    /// Connections that are not ordered.
    local: VecDeque<WaitingConnection>,
    clocks: [u64; CLOCKS],
    round: LocalRound,
    /// When the counts were reported, and the divergences of that time.
    reported: (u64, u64),
    on_divergence: OnDivergence,
    /// The server waits for several sockets, or for input, before it accepts or reads.
    has_rounds: bool,
    /// This process is a child, whose stream this is.
    is_child: bool,
}

/// The record has ended, or the server has left it: it goes on as without a record.
pub struct RecordEnded;

/// What remains of a playback.
pub struct PlaybackRest {
    /// Output that the connections have not taken yet.
    pub held: HeldOutput,
    /// Connections that the server has not accepted yet.
    pub waiting: VecDeque<WaitingConnection>,
    /// The last values of the clocks, 0 if not read.
    pub clocks: [u64; CLOCKS],
    /// How the playback went, in words.
    pub summary: String,
}

impl PlayingServer {
    /// Nothing was played back yet.
    pub fn new(source: RecordSource, on_divergence: OnDivergence) -> Self {
        Self {
            playback: OrderPlayback::new(on_divergence),
            source,
            held: HeldOutput::default(),
            waiting: Vec::new(),
            local: VecDeque::new(),
            clocks: [0; CLOCKS],
            round: LocalRound::default(),
            reported: (0, 0),
            on_divergence,
            has_rounds: false,
            is_child: false,
        }
    }

    /// A child that follows its own stream.
    pub fn of_child(link: AgentLink, on_divergence: OnDivergence) -> Self {
        Self {
            is_child: true,
            ..Self::new(RecordSource::Agent(link), on_divergence)
        }
    }

    /// The link with the agent.
    pub fn link(&self) -> Option<c_int> {
        self.source.descriptor()
    }

    /// The policy after a divergence.
    pub fn on_divergence(&self) -> OnDivergence {
        self.on_divergence
    }

    /// The server is about to fork. Returns the child's stream. `None`: the child has none.
    pub fn fork(&mut self) -> Result<Option<u32>, RecordEnded> {
        if self.round.is_now {
            return Ok(None);
        }
        Ok(match self.step(OrderCall::Fork)? {
            Some(OrderEvent::Forked { stream }) => Some(stream),
            _ => None,
        })
    }

    /// This process is a child: the parent's output and connections are not its own. Returns the parent's link.
    pub fn forget(self) -> Option<c_int> {
        self.held.forget();
        let waiting = self.waiting.into_iter().map(|(_, connection)| connection);
        for connection in waiting.chain(self.local) {
            let _ = system::close(connection.fd);
        }
        self.source.descriptor()
    }

    /// Writes to a connection. A child does not hold output, because it may end at any time.
    fn write_out(&mut self, fd: c_int, bytes: &[u8]) {
        self.held.hold(fd, 0, &[bytes]);
        self.held.flush(u64::MAX);
        while self.is_child && self.held.bytes(fd) > 0 {
            system::wait_writable(fd, SLOW_CLIENT);
            self.held.flush(u64::MAX);
        }
    }

    /// Tells the agent the counts once a second, and each new divergence.
    fn report(&mut self) {
        let counts = self.playback.counts();
        let now = system::nanos(libc::CLOCK_MONOTONIC);
        if now - self.reported.0 > REPORT_EVERY || counts.divergences > self.reported.1 {
            self.reported = (now, counts.divergences);
            let first = self.playback.first_divergence();
            self.source.report(
                counts,
                &first.map_or_else(String::new, |first| format!("{first:?}")),
            );
        }
    }

    /// The held output.
    pub fn held(&mut self) -> &mut HeldOutput {
        &mut self.held
    }

    /// Ends the playback.
    pub fn end(mut self) -> PlaybackRest {
        let counts = self.playback.counts();
        let first = self.playback.first_divergence();
        self.source.report(
            counts,
            &first.map_or_else(String::new, |first| format!("{first:?}")),
        );
        let mut summary = format!(
            "the record was left after {} events; {} divergences",
            counts.played, counts.divergences
        );
        if let Some((call, event)) = self.playback.first_divergence() {
            summary += &format!(", first: the server calls {call:?}, the record has {event:?}");
        }
        let waiting = self.local.into_iter();
        PlaybackRest {
            held: self.held,
            waiting: waiting
                .chain(self.waiting.into_iter().map(|(_, connection)| connection))
                .collect(),
            clocks: self.clocks,
            summary,
        }
    }

    /// How a call is answered. Waits for the record. `None`: as without a record, but only this call.
    fn step(&mut self, call: OrderCall) -> Result<Option<OrderEvent>, RecordEnded> {
        loop {
            if let Some(step) = self.step_now(call)? {
                return Ok(step);
            }
            self.receive_or_wait();
        }
    }

    /// As [`step`](Self::step), but returns `None` instead of waiting.
    fn step_now(&mut self, call: OrderCall) -> Result<Option<Option<OrderEvent>>, RecordEnded> {
        let step = self.playback.step(call);
        if self.playback.is_drained() {
            self.source.on_played();
        }
        match step {
            Ok(OrderStep::Wait) => Ok(None),
            Ok(OrderStep::Event(event)) => Ok(Some(Some(event))),
            Ok(OrderStep::Repeat(nanos)) => {
                let clock = match call {
                    OrderCall::Clock { clock } => clock,
                    _ => 0,
                };
                Ok(Some(Some(OrderEvent::Clock { clock, nanos })))
            }
            Ok(OrderStep::Diverged) => Ok(Some(None)),
            Ok(OrderStep::Live) => Err(RecordEnded),
            Err(error) => {
                crate::say(&error.to_string());
                Err(RecordEnded)
            }
        }
    }

    fn receive_or_wait(&mut self) {
        self.held.flush(u64::MAX);
        if let Some(link) = self.source.descriptor() {
            let limit = if self.held.is_blocked() { SLOW_CLIENT } else { -1 };
            let _ = system::poll(&mut [system::readable(link)], limit);
        }
        self.source.receive(&mut self.playback);
    }

    /// What the record says cannot be done, for this reason.
    pub fn cannot_follow(&mut self, reason: &str) -> Result<(), RecordEnded> {
        crate::say(reason);
        if self.playback.cannot_follow() {
            Ok(())
        } else {
            Err(RecordEnded)
        }
    }

    /// Accepts a connection.
    pub fn accept(
        &mut self,
        sockets: &mut OrderedSockets,
        fd: c_int,
    ) -> Result<Outcome<WaitingConnection>, RecordEnded> {
        self.round.is_now &= self.has_rounds;
        if self.round.is_now {
            return Ok(self.take_local(fd).ok_or(libc::EAGAIN));
        }
        let Some(listener) = sockets.listener(fd) else {
            return Ok(Err(libc::EINVAL));
        };
        let event = loop {
            if let Some(event) = self.step_now(OrderCall::Accept { listener })? {
                break event;
            }
            if !self.has_rounds
                && let Some(local) = self.take_local(fd)
            {
                self.round.is_now = true; // until the server accepts again
                return Ok(Ok(local));
            }
            self.await_record(sockets, -1, -1);
        };
        match event {
            Some(OrderEvent::Accepted {
                outcome: Ok(client), ..
            }) => {
                let Some(connection) = self.find(sockets, client) else {
                    self.cannot_follow(&format!("no connection of {client} has come"))?;
                    return Ok(Err(libc::EAGAIN)); // the server finds no connection
                };
                sockets.add_connection(connection.fd);
                Ok(Ok(connection))
            }
            Some(OrderEvent::Accepted {
                outcome: Err(error), ..
            }) => Ok(Err(error)),
            _ => Ok(Err(libc::EAGAIN)),
        }
    }

    /// Waits for more of the record, or for connections, or until `other` is readable, at most `limit` milliseconds. Takes what has come.
    fn await_record(&mut self, sockets: &OrderedSockets, other: c_int, limit: c_int) {
        self.held.flush(u64::MAX);
        let limit = if self.held.is_blocked() && limit < 0 {
            SLOW_CLIENT
        } else {
            limit
        };
        let link = self.source.descriptor().unwrap_or(-1);
        let mut descriptors = vec![system::readable(link), system::readable(other)];
        // The listeners of a child are its parent's.
        if !self.is_child {
            descriptors.extend(sockets.listeners().map(system::readable));
        }
        let _ = system::poll(&mut descriptors, limit);
        self.take_connections(sockets, &descriptors[2..]);
        let takes_more = !self.is_child || self.playback.is_drained();
        if takes_more && (link < 0 || descriptors[0].revents != 0) {
            self.source.receive(&mut self.playback);
        }
    }

    /// Waits until an ordered socket is ready in the record, as `poll` does. Returns its events.
    pub fn wait_for_one(
        &mut self,
        sockets: &OrderedSockets,
        fd: c_int,
        timeout: c_int,
    ) -> Result<Outcome<c_short>, RecordEnded> {
        self.has_rounds = true;
        self.report();
        loop {
            if let Some(step) = self.step_now(OrderCall::Ready)? {
                self.round.is_now = false;
                return Ok(match step {
                    Some(OrderEvent::Ready(Ok(sources))) => {
                        let source = sockets.source_of(fd);
                        let ready = sources.iter().find(|(ready, _)| Some(*ready) == source);
                        Ok(ready.map_or(0, |(_, events)| *events as c_short))
                    }
                    Some(OrderEvent::Ready(Err(error))) => Err(error),
                    _ => Ok(0),
                });
            }
            if timeout != 0 && self.local.iter().any(|one| one.listener == fd) {
                self.round.is_now = true;
                return Ok(Ok(libc::POLLIN));
            }
            self.await_record(sockets, -1, -1);
        }
    }

    fn take_local(&mut self, listener: c_int) -> Option<WaitingConnection> {
        let place = self.local.iter().position(|one| one.listener == listener)?;
        self.local.remove(place)
    }

    /// Waits until the client of the record has connected.
    fn find(&mut self, sockets: &OrderedSockets, client: SocketAddr) -> Option<WaitingConnection> {
        let begun = system::nanos(libc::CLOCK_MONOTONIC);
        loop {
            if let Some(place) = self.waiting.iter().position(|(address, _)| *address == client) {
                return Some(self.waiting.remove(place).1);
            }
            self.held.flush(u64::MAX);
            let mut listeners: Vec<_> = sockets.listeners().map(system::readable).collect();
            let _ = system::poll(&mut listeners, SLOW_CLIENT);
            self.take_connections(sockets, &listeners);
            if system::nanos(libc::CLOCK_MONOTONIC) - begun > INPUT_MAX * 1_000_000 {
                return None;
            }
        }
    }

    /// Accepts all connections at the listeners that are ready.
    fn take_connections(&mut self, sockets: &OrderedSockets, listeners: &[libc::pollfd]) {
        for listener in listeners.iter().filter(|one| one.revents != 0) {
            let listener = listener.fd;
            while system::is_readable(listener)
                && let Ok((fd, address)) = system::accept(listener, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
            {
                let client = sockets.takes(fd, &address);
                let connection = WaitingConnection {
                    fd,
                    address,
                    listener,
                };
                match client {
                    Some(client) => self.waiting.push((client, connection)),
                    None => self.local.push_back(connection),
                }
            }
        }
    }

    /// Reads from a connection as much as the record says, with these flags.
    pub fn read(
        &mut self,
        sockets: &OrderedSockets,
        fd: c_int,
        buffer: &mut [u8],
        flags: c_int,
    ) -> Result<Outcome<u64>, RecordEnded> {
        let Some(connection) = sockets.connection(fd) else {
            return Ok(Err(libc::ENOTCONN));
        };
        let size = buffer.len() as u64;
        match self.step(OrderCall::Read { connection, size })? {
            Some(OrderEvent::Read {
                outcome: Ok(count), ..
            }) => {
                let count = count as usize;
                if let Err(reason) = self.read_exactly(fd, &mut buffer[..count], flags) {
                    self.cannot_follow(&format!("connection {connection}: {reason}"))?;
                    return Ok(Err(libc::ECONNRESET));
                }
                Ok(Ok(count as u64))
            }
            Some(OrderEvent::Read {
                outcome: Err(error), ..
            }) => Ok(Err(error)),
            _ => Ok(system::receive_now(fd, buffer, flags)),
        }
    }

    /// Fills the buffer, or peeks at or discards as many bytes. An empty one stands for the end of the input.
    fn read_exactly(&mut self, fd: c_int, buffer: &mut [u8], flags: c_int) -> Result<(), &'static str> {
        let begun = system::nanos(libc::CLOCK_MONOTONIC);
        let mut have = 0;
        loop {
            let received = if buffer.is_empty() {
                system::receive_now(fd, &mut [0], libc::MSG_PEEK)
            } else {
                system::receive_now(fd, &mut buffer[have..], flags)
            };
            match received {
                Ok(0) if buffer.is_empty() => return Ok(()),
                Ok(_) if buffer.is_empty() => return Err("there is input where the record has none"),
                Ok(0) => return Err("the input ends before the record's"),
                Ok(count) if have + count as usize == buffer.len() => return Ok(()),
                Ok(count) if flags & libc::MSG_PEEK == 0 => {
                    have += count as usize;
                    continue;
                }
                Ok(_) | Err(libc::EAGAIN | libc::EINTR) => {}
                Err(_) => return Err("the connection was reset before the record's input had come"),
            }
            self.held.flush(u64::MAX);
            // A socket of which a part was peeked at is readable, although the rest has not come.
            let awaited = if received.is_ok() { -1 } else { fd };
            let _ = system::poll(&mut [system::readable(awaited)], SLOW_CLIENT);
            if system::nanos(libc::CLOCK_MONOTONIC) - begun > INPUT_MAX * 1_000_000 {
                return Err("the record's input has not come");
            }
        }
    }

    /// Writes to a connection as much as the record says.
    pub fn write(
        &mut self,
        sockets: &OrderedSockets,
        fd: c_int,
        parts: &[&[u8]],
    ) -> Result<Outcome<u64>, RecordEnded> {
        let Some(connection) = sockets.connection(fd) else {
            return Ok(Err(libc::ENOTCONN));
        };
        let size = parts.iter().map(|part| part.len() as u64).sum();
        match self.step(OrderCall::Write { connection, size })? {
            Some(OrderEvent::Written {
                outcome: Ok(count), ..
            }) => {
                let bytes = parts.concat();
                self.write_out(fd, &bytes[..count as usize]);
                Ok(Ok(count))
            }
            Some(OrderEvent::Written {
                outcome: Err(error), ..
            }) => Ok(Err(error)),
            _ => Ok(system::send_parts(fd, parts)),
        }
    }

    /// Sends as much of a file to a connection as the record says.
    pub fn send_file(
        &mut self,
        sockets: &OrderedSockets,
        fd: c_int,
        part: &mut FilePart<'_>,
    ) -> Result<Outcome<u64>, RecordEnded> {
        let Some(connection) = sockets.connection(fd) else {
            return Ok(Err(libc::ENOTCONN));
        };
        let size = part.len() as u64;
        match self.step(OrderCall::Write { connection, size })? {
            Some(OrderEvent::Written {
                outcome: Ok(count), ..
            }) => {
                let Some(bytes) = part.take(count as usize) else {
                    self.cannot_follow(&format!("connection {connection}: the file has fewer bytes here"))?;
                    return Ok(Err(libc::EIO));
                };
                self.write_out(fd, &bytes);
                Ok(Ok(count))
            }
            Some(OrderEvent::Written {
                outcome: Err(error), ..
            }) => Ok(Err(error)),
            _ => Ok(part.send(fd)),
        }
    }

    /// The kernel's answer in the record. `None`: the kernel has to be asked.
    pub fn ask(&mut self, sockets: &OrderedSockets, fd: c_int) -> Result<Option<Outcome<u64>>, RecordEnded> {
        let Some(connection) = sockets.connection(fd) else {
            return Ok(None);
        };
        Ok(match self.step(OrderCall::Ask { connection })? {
            Some(OrderEvent::Asked { outcome, .. }) => Some(outcome),
            _ => None,
        })
    }

    /// The server closes a socket.
    pub fn on_close(&mut self, fd: c_int) {
        self.held.on_close(fd);
    }

    /// The value of a clock. `now` reads it.
    pub fn clock(&mut self, clock: u8, now: impl FnOnce() -> u64) -> Result<u64, RecordEnded> {
        if COARSE_CLOCKS.contains(&clock)
            && let Some(last) = self.playback.last(clock)
        {
            self.clocks[usize::from(clock)] = last;
            return Ok(last);
        }
        let last = self.clocks[usize::from(clock)];
        if self.round.is_now && last != 0 {
            return Ok(last);
        }
        let nanos = match self.step(OrderCall::Clock { clock })? {
            Some(OrderEvent::Clock { nanos, .. }) => nanos,
            _ => now(),
        };
        self.clocks[usize::from(clock)] = nanos;
        Ok(nanos)
    }

    /// Random bytes of the record. `false`: the caller has to get them elsewhere.
    pub fn random(&mut self, bytes: &mut [u8]) -> Result<bool, RecordEnded> {
        if self.round.is_now {
            return Ok(false);
        }
        let size = bytes.len();
        Ok(match self.step(OrderCall::Random { size })? {
            Some(OrderEvent::Random(recorded)) => {
                bytes.copy_from_slice(&recorded);
                true
            }
            _ => false,
        })
    }

    /// The number of the primary's process.
    pub fn pid(&mut self) -> Result<u32, RecordEnded> {
        if self.round.is_now {
            return Ok(system::getpid());
        }
        Ok(match self.step(OrderCall::Pid)? {
            Some(OrderEvent::Pid(pid)) => pid,
            _ => system::getpid(),
        })
    }

    /// Waits until sockets are ready in the record, or others are ready here.
    pub fn wait(
        &mut self,
        sockets: &OrderedSockets,
        epoll: c_int,
        events: &mut [libc::epoll_event],
        timeout: c_int,
    ) -> Result<Outcome<usize>, RecordEnded> {
        self.has_rounds = true;
        self.report();
        // The first look does not wait.
        let mut limit = 0;
        loop {
            // Others do not matter to a server that does not wait.
            let other = if timeout == 0 { -1 } else { epoll };
            self.await_record(sockets, other, limit);
            let may_be_local = timeout != 0 && (self.round.is_next || limit != 0);
            if may_be_local && let Some(count) = self.local_round(sockets, epoll, events) {
                return Ok(Ok(count));
            }
            self.round.is_next = true;
            if let Some(step) = self.step_now(OrderCall::Ready)? {
                self.round.is_now = false;
                return self.translate(sockets, step, events);
            }
            limit = -1;
        }
    }

    /// A round that serves sockets which are not ordered, if there are any.
    fn local_round(
        &mut self,
        sockets: &OrderedSockets,
        epoll: c_int,
        events: &mut [libc::epoll_event],
    ) -> Option<usize> {
        let mut count = system::wait_for_events(epoll, events, 0).unwrap_or(0);
        count += sockets.add_waiting(&self.local, events, count);
        if count == 0 {
            return None;
        }
        self.round = LocalRound {
            is_now: true,
            is_next: false,
        };
        Some(count)
    }

    fn translate(
        &mut self,
        sockets: &OrderedSockets,
        event: Option<OrderEvent>,
        events: &mut [libc::epoll_event],
    ) -> Result<Outcome<usize>, RecordEnded> {
        let sources = match event {
            Some(OrderEvent::Ready(Ok(sources))) => sources,
            Some(OrderEvent::Ready(Err(error))) => return Ok(Err(error)),
            _ => return Ok(Ok(0)),
        };
        let mut count = 0;
        for (source, ready) in sources {
            match sockets.watch_of(source) {
                Some(watch) if count < events.len() => {
                    events[count] = libc::epoll_event {
                        events: ready,
                        u64: watch.data,
                    };
                    count += 1;
                }
                _ => {
                    self.cannot_follow(&format!("the server does not watch {source:?}"))?;
                }
            }
        }
        Ok(Ok(count))
    }
}
