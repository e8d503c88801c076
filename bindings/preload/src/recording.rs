//! The primary's half: calls are carried out and recorded. Output is held until the backup has what the output depends on.

use std::collections::VecDeque;
use std::ffi::{c_int, c_short};
use std::path::Path;

use proto::order::{CLOCKS, COARSE_CLOCKS, OrderEvent, OrderRecorder, Outcome, SERVER_STREAM, Source};

use crate::deferral::{Deferral, Deferred};
use crate::files::FilePart;
use crate::forked;
use crate::held::{HOLD_MAX, HeldOutput, SLOW_CLIENT};
use crate::link::{AgentLink, DATAGRAM_DATA, LINK_DATA, LinkLost, RecordSink};
use crate::look::ReceiptLook;
use crate::sockets::{OrderedSockets, WaitingConnection};
use crate::system::{self, PollTimeout, RawAddress};

/// Longest time without an event in the record, in nanoseconds. A server whose sockets are ready only for work that is not ordered must
/// still learn the time.
const QUIET_MAX: u64 = 100_000_000;

/// A server that is recorded.
pub struct RecordingServer {
    recorder: OrderRecorder,
    sink: RecordSink,
    held: HeldOutput,
    look: ReceiptLook,
    deferral: Deferral,
    /// The last values of the clocks, 0 if not read.
    clocks: [u64; CLOCKS],
    /// When the last event of a wait was recorded. 0: the server has not waited yet.
    last_ready: u64,
    /// Accepted connections that are not ordered. The server gets them in a round with others.
    local: VecDeque<WaitingConnection>,
    round: LocalRound,
    is_lost: bool,
    /// This process is a child, whose stream this is.
    child: Option<u32>,
}

/// Rounds of the event loop that serve sockets which are not ordered. Such a round has no ordered sockets, so a replica can have it at
/// another moment. Clocks stand still meanwhile. A server that does not wait (its timeout is 0) has work left for its connections, and would do
/// this work in the round. So such a round serves no other sockets.
#[derive(Default)]
pub struct LocalRound {
    /// This round is one.
    pub is_now: bool,
    /// The next round is one, if such sockets are ready.
    pub is_next: bool,
}

impl RecordingServer {
    /// Nothing is recorded yet.
    pub fn new(sink: RecordSink) -> Self {
        let mut recorder = OrderRecorder::default();
        if matches!(sink, RecordSink::File(_)) {
            recorder.alone();
        }
        Self {
            recorder,
            sink,
            held: HeldOutput::default(),
            look: ReceiptLook::default(),
            deferral: Deferral::default(),
            clocks: [0; CLOCKS],
            last_ready: 0,
            local: VecDeque::new(),
            round: LocalRound::default(),
            is_lost: false,
            child: None,
        }
    }

    /// A child whose `stream` has `len` bytes already.
    pub fn of_child(link: AgentLink, stream: u32, len: u64) -> Self {
        Self {
            recorder: OrderRecorder::resumed(len),
            child: Some(stream),
            ..Self::new(RecordSink::Agent(link))
        }
    }

    /// Records an event. A child waits until the backup has it: what the child or a program that it starts writes next may depend on it, and
    /// this library does not see all writes, for example those of the C library's streams.
    fn record(&mut self, event: &OrderEvent) {
        self.recorder.record(event);
        if self.child.is_some() {
            self.await_receipts();
        }
    }

    fn await_receipts(&mut self) {
        self.pass_on();
        while !self.is_lost && !self.recorder.may_write() {
            if let Some(link) = self.sink.descriptor() {
                let _ = system::poll(&mut [system::readable(link)], SLOW_CLIENT);
            }
            self.receive();
            self.pass_on();
        }
    }

    /// The server is about to fork. Connects the child to the agent at `agent`. `None`: the child is not recorded.
    pub fn fork(&mut self, agent: &Path) -> Option<(u32, AgentLink)> {
        if self.round.is_now {
            return None;
        }
        self.settle();
        let stream = system::random_number().max(1);
        let mut link = AgentLink::connect(agent)?;
        self.record(&OrderEvent::Forked { stream });
        self.pass_on();
        while !self.is_lost && !self.recorder.unsent().is_empty() {
            if let Some(own) = self.sink.descriptor() {
                system::wait_writable(own, SLOW_CLIENT);
            }
            self.pass_on();
        }
        link.introduce(stream, self.child.unwrap_or(SERVER_STREAM), self.recorder.len());
        Some((stream, link))
    }

    /// This process is a child: the parent's record, output and connections are not its own.
    pub fn forget(self) -> Option<c_int> {
        self.held.forget();
        for connection in self.local {
            let _ = system::close(connection.fd);
        }
        self.sink.forget()
    }

    /// Whether the record cannot go on.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether this process is a child.
    pub fn is_child(&self) -> bool {
        self.child.is_some()
    }

    /// The link with the agent, and the socket to the backup.
    pub fn links(&self) -> [Option<c_int>; 2] {
        [self.sink.descriptor(), self.sink.datagram_descriptor()]
    }

    /// Ends the record. Returns the output that is still held, and the connections that the server has not accepted yet.
    pub fn end(mut self, reason: &str) -> (HeldOutput, VecDeque<WaitingConnection>) {
        self.pass_on();
        self.sink.refuse(reason);
        self.sink.unwatch();
        (self.held, self.local)
    }

    /// Writes what the backup's receipts release, because clients wait for it, and sends the record.
    fn pass_on(&mut self) {
        self.flush();
        let sent = self.sink.send(&mut self.recorder);
        self.note(sent);
        self.deferral.end();
        if self.is_lost {
            self.flush();
        }
    }

    /// As [`pass_on`](Self::pass_on), but first offers the record to the backup's kernel. The agent gets it later if the kernel answers.
    fn pass_on_lazily(&mut self, now: u64) {
        self.flush();
        self.offer(now);
        if !self.defers(now) {
            self.pass_on();
        }
    }

    /// Offers the record to the backup's kernel, and writes what its receipts release.
    fn offer(&mut self, now: u64) {
        if self.awaits_receipt() && self.sink.offer(&mut self.recorder) {
            self.deferral.on_offer(now);
            self.flush();
        }
    }

    /// Whether the agent gets the record later.
    fn defers(&mut self, now: u64) -> bool {
        if !self.sink.may_defer() {
            return false;
        }
        let (unsent, awaits) = (self.recorder.unsent().len(), self.awaits_receipt());
        let deferred = self.deferral.decide(now, unsent, awaits);
        if deferred == Deferred::Unanswered {
            self.sink.distrust_datagrams();
        }
        deferred == Deferred::Yes
    }

    /// A time limit in milliseconds (negative: none) for a wait of the server, so that nothing is deferred for too long.
    fn limited(&self, limit: c_int, now: u64) -> c_int {
        let Some(due) = self.deferral.due(self.awaits_receipt()) else {
            return limit;
        };
        let left = due.saturating_sub(now).div_ceil(1_000_000) as c_int;
        if (0..left).contains(&limit) { limit } else { left }
    }

    fn flush(&mut self) {
        if !self.held.is_empty() {
            self.held.flush(self.recorder.released());
        }
    }

    fn receive(&mut self) {
        let received = self.sink.receive(&mut self.recorder);
        self.note(received);
    }

    fn note(&mut self, outcome: Result<(), LinkLost>) {
        if outcome.is_err() {
            self.is_lost = true;
            self.recorder.alone();
        }
    }

    /// Whether output is held until the backup has its causes.
    fn awaits_receipt(&self) -> bool {
        !self.is_lost && !self.held.is_empty() && !self.recorder.may_write()
    }

    /// Waits until the backup has what the held output depends on, and writes all of this output that the clients take. The server may sleep
    /// long after that, so nothing is deferred.
    pub fn settle(&mut self) {
        self.offer(system::nanos(libc::CLOCK_MONOTONIC));
        self.pass_on();
        while !self.held.is_empty() && !self.recorder.may_write() {
            let mut links = self.links().map(|link| system::readable(link.unwrap_or(-1)));
            let _ = system::poll(&mut links, SLOW_CLIENT);
            self.receive();
            self.sink.receive_datagrams(&mut self.recorder);
            self.pass_on();
        }
    }

    /// The held output.
    pub fn held(&mut self) -> &mut HeldOutput {
        &mut self.held
    }

    /// Accepts a connection.
    pub fn accept(
        &mut self,
        sockets: &mut OrderedSockets,
        fd: c_int,
        flags: c_int,
    ) -> Outcome<(c_int, RawAddress)> {
        let Some(listener) = sockets.listener(fd) else {
            return system::accept(fd, flags);
        };
        let has_rounds = self.last_ready != 0;
        self.round.is_now &= has_rounds;
        if self.round.is_now {
            return self.take_local(fd, flags).ok_or(libc::EAGAIN);
        }
        if system::is_blocking(fd) && !system::is_readable(fd) {
            self.settle();
        }
        let mut accepted = system::accept(fd, flags);
        let outcome = loop {
            let (connection, address) = match accepted {
                Ok(found) => found,
                Err(error) => break Err(error),
            };
            if let Some(client) = sockets.takes(connection, &address) {
                sockets.add_connection(connection);
                accepted = Ok((connection, address));
                break Ok(client);
            }
            if !has_rounds {
                self.round.is_now = true; // until the server accepts again
                return Ok((connection, address));
            }
            self.local.push_back(WaitingConnection {
                fd: connection,
                address,
                listener: fd,
            });
            // The round goes on as on a replica, which has no such connection. A server whose listener blocks does not expect EAGAIN.
            accepted = if system::is_readable(fd) {
                system::accept(fd, flags)
            } else if system::is_blocking(fd) {
                self.settle();
                system::accept(fd, flags)
            } else {
                Err(libc::EAGAIN)
            };
        };
        self.record(&OrderEvent::Accepted { listener, outcome });
        accepted
    }

    fn take_local(&mut self, listener: c_int, flags: c_int) -> Option<(c_int, RawAddress)> {
        let place = self.local.iter().position(|one| one.listener == listener)?;
        let WaitingConnection { fd, address, .. } = self.local.remove(place)?;
        system::set_flags(fd, flags);
        Some((fd, address))
    }

    /// Reads from a connection, with these flags.
    pub fn read(
        &mut self,
        sockets: &OrderedSockets,
        fd: c_int,
        buffer: &mut [u8],
        flags: c_int,
    ) -> Outcome<u64> {
        let mut outcome = system::receive_now(fd, buffer, flags);
        if outcome == Err(libc::EAGAIN) && flags & libc::MSG_DONTWAIT == 0 && system::is_blocking(fd) {
            self.settle();
            // SAFETY: the slice is valid.
            outcome = unsafe { system::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        }
        if let Some(connection) = sockets.connection(fd) {
            self.record(&OrderEvent::Read { connection, outcome });
        }
        outcome
    }

    /// Writes to a connection.
    pub fn write(&mut self, sockets: &OrderedSockets, fd: c_int, parts: &[&[u8]]) -> Outcome<u64> {
        let Some(connection) = sockets.connection(fd) else {
            return Err(libc::ENOTCONN);
        };
        let outcome = self.write_or_hold(fd, parts);
        self.record(&OrderEvent::Written { connection, outcome });
        outcome
    }

    fn write_or_hold(&mut self, fd: c_int, parts: &[&[u8]]) -> Outcome<u64> {
        if self.held.bytes(fd) >= HOLD_MAX {
            self.settle();
            while self.held.bytes(fd) > 0 && system::is_blocking(fd) {
                system::wait_writable(fd, -1);
                self.pass_on();
            }
            if self.held.bytes(fd) > 0 {
                return Err(libc::EAGAIN);
            }
        }
        if self.held.bytes(fd) == 0 && self.recorder.may_write() {
            return system::send_parts(fd, parts);
        }
        self.held.hold(fd, self.recorder.len(), parts);
        Ok(parts.iter().map(|part| part.len() as u64).sum())
    }

    /// Sends a part of a file to a connection.
    pub fn send_file(
        &mut self,
        sockets: &OrderedSockets,
        fd: c_int,
        part: &mut FilePart<'_>,
    ) -> Outcome<u64> {
        let Some(connection) = sockets.connection(fd) else {
            return Err(libc::ENOTCONN);
        };
        let outcome = if self.held.bytes(fd) == 0 && self.recorder.may_write() {
            part.send(fd)
        } else {
            part.send_by(|bytes| self.write_or_hold(fd, &[bytes]))
        };
        self.record(&OrderEvent::Written { connection, outcome });
        outcome
    }

    /// The server has asked the kernel about a connection.
    pub fn asked(&mut self, sockets: &OrderedSockets, fd: c_int, outcome: Outcome<u64>) {
        if let Some(connection) = sockets.connection(fd) {
            self.record(&OrderEvent::Asked { connection, outcome });
        }
    }

    /// The server closes a socket.
    pub fn on_close(&mut self, fd: c_int) {
        self.held.on_close(fd);
    }

    /// The value of a clock. `now` reads it.
    pub fn clock(&mut self, clock: u8, now: impl FnOnce() -> u64) -> u64 {
        let last = self.clocks[usize::from(clock)];
        if (self.round.is_now || COARSE_CLOCKS.contains(&clock)) && last != 0 {
            return last;
        }
        let nanos = now();
        if !self.round.is_now {
            self.clocks[usize::from(clock)] = nanos;
            self.record(&OrderEvent::Clock { clock, nanos });
        }
        nanos
    }

    /// The server has got random bytes.
    pub fn random(&mut self, bytes: &[u8]) {
        if !self.round.is_now {
            self.record(&OrderEvent::Random(bytes.to_vec()));
        }
    }

    /// The number of the server's process.
    pub fn pid(&mut self) -> u32 {
        let pid = system::getpid();
        if !self.round.is_now {
            self.record(&OrderEvent::Pid(pid));
        }
        pid
    }

    /// Waits until sockets are ready.
    pub fn wait(
        &mut self,
        sockets: &OrderedSockets,
        epoll: c_int,
        events: &mut [libc::epoll_event],
        timeout: c_int,
    ) -> Outcome<usize> {
        if self.child.is_none() {
            self.sink.watch(epoll);
        }
        let begun = system::nanos(libc::CLOCK_MONOTONIC);
        self.pass_on_lazily(begun);
        if self.awaits_receipt() {
            self.look.begin();
        }
        loop {
            let now = system::nanos(libc::CLOCK_MONOTONIC);
            self.pass_on_lazily(now);
            let waited = i32::try_from((now - begun) / 1_000_000).unwrap_or(i32::MAX);
            let mut left = if timeout < 0 {
                -1
            } else {
                timeout.saturating_sub(waited).max(0)
            };
            let is_last = left == 0;
            if self.held.is_blocked() && !(0..SLOW_CLIENT).contains(&left) {
                left = SLOW_CLIENT;
            }
            if forked::has_forked() && !(0..forked::LOOK).contains(&left) {
                left = forked::LOOK;
            }
            left = self.limited(left, now);
            if !self.local.is_empty() {
                left = 0;
            }
            let looks = left != 0 && self.awaits_receipt() && self.look.goes_on(now - begun);
            let count = match system::wait_for_events(epoll, events, if looks { 0 } else { left }) {
                Ok(0) if looks => {
                    std::thread::yield_now();
                    continue;
                }
                Ok(count) => count,
                Err(error) => {
                    self.begin_round(false, system::nanos(libc::CLOCK_MONOTONIC));
                    self.record_ready(Err(error));
                    return Err(error);
                }
            };
            let count = self.take_receipts(events, count);
            if self.held.is_blocked() {
                self.pass_on();
            }
            if count > 0 || is_last || self.is_lost || forked::has_used() || !self.local.is_empty() {
                let may_be_local = timeout != 0;
                return Ok(self.choose_round(sockets, events, count, may_be_local));
            }
        }
    }

    /// Waits until an ordered socket is ready, as `poll` does. Returns its events.
    pub fn wait_for_one(
        &mut self,
        sockets: &OrderedSockets,
        fd: c_int,
        events: c_short,
        timeout: c_int,
    ) -> Outcome<c_short> {
        let left = PollTimeout::new(timeout);
        loop {
            let now = system::nanos(libc::CLOCK_MONOTONIC);
            self.pass_on_lazily(now);
            if timeout != 0 && self.local.iter().any(|one| one.listener == fd) {
                self.begin_round(true, 0);
                return Ok(libc::POLLIN);
            }
            let limit = if self.held.is_blocked() {
                left.at_most(SLOW_CLIENT)
            } else if forked::has_forked() {
                left.at_most(forked::LOOK)
            } else {
                left.millis()
            };
            let [link, datagrams] = self.links().map(|link| system::readable(link.unwrap_or(-1)));
            let server = libc::pollfd {
                fd,
                events,
                revents: 0,
            };
            let mut all = [link, datagrams, server];
            let polled = system::poll(&mut all, self.limited(limit, now));
            if all[0].revents != 0 {
                self.receive();
            }
            if all[1].revents != 0 {
                self.sink.receive_datagrams(&mut self.recorder);
            }
            self.flush();
            let ready = all[2].revents;
            let is_over = ready != 0 || left.is_over() || self.is_lost || forked::has_used();
            if polled.is_ok() && !is_over {
                continue;
            }
            self.begin_round(false, system::nanos(libc::CLOCK_MONOTONIC));
            let source = sockets.source_of(fd).filter(|_| ready != 0);
            let sources = source.map(|source| (source, u32::from(ready.cast_unsigned())));
            let outcome = polled.map(|_| sources.into_iter().collect());
            self.record_ready(outcome);
            return polled.map(|_| ready);
        }
    }

    /// Handles receipts, and removes the events of the link and of the socket to the backup. Returns the number of events that remain.
    fn take_receipts(&mut self, events: &mut [libc::epoll_event], count: usize) -> usize {
        let mut kept = 0;
        for at in 0..count {
            let data = events[at].u64;
            match data {
                LINK_DATA => self.receive(),
                DATAGRAM_DATA => self.sink.receive_datagrams(&mut self.recorder),
                _ => {
                    events[kept] = events[at];
                    kept += 1;
                }
            }
        }
        if kept < count {
            if !self.awaits_receipt() {
                self.look.succeed();
            }
            self.pass_on_lazily(system::nanos(libc::CLOCK_MONOTONIC));
        }
        kept
    }

    /// Decides whether the server serves ordered sockets or others in this round, and records the ordered ones. Returns the number of events.
    fn choose_round(
        &mut self,
        sockets: &OrderedSockets,
        events: &mut [libc::epoll_event],
        count: usize,
        may_be_local: bool,
    ) -> usize {
        let now = system::nanos(libc::CLOCK_MONOTONIC);
        let ordered: Vec<_> = events[..count]
            .iter()
            .filter_map(|event| Some((sockets.source(event)?, event.events)))
            .collect();
        let has_local = may_be_local && (ordered.len() < count || !self.local.is_empty());
        let is_due = now.saturating_sub(self.last_ready) < QUIET_MAX;
        let is_local = has_local && (self.round.is_next || ordered.is_empty() && is_due);
        self.begin_round(is_local, now);
        self.round.is_next = has_local && !is_local;
        let mut kept = 0;
        for at in 0..count {
            if sockets.source(&events[at]).is_none() == is_local {
                events[kept] = events[at];
                kept += 1;
            }
        }
        if is_local {
            return kept + sockets.add_waiting(&self.local, events, kept);
        }
        self.record_ready(Ok(ordered));
        kept
    }

    /// Records that the server has waited. The coarse clocks that it reads have moved on.
    fn record_ready(&mut self, outcome: Outcome<Vec<(Source, u32)>>) {
        for clock in COARSE_CLOCKS {
            let last = &mut self.clocks[usize::from(clock)];
            let nanos = system::nanos(clock.into());
            if *last != 0 && std::mem::replace(last, nanos) != nanos {
                self.record(&OrderEvent::Clock { clock, nanos });
            }
        }
        self.record(&OrderEvent::Ready(outcome));
    }

    fn begin_round(&mut self, is_local: bool, now: u64) {
        self.round.is_now = is_local;
        if !is_local {
            self.last_ready = now;
        }
    }
}
