//! A simulated annex: its stack and application, its gate, and its process, which does what `steadfast annex` does.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use proto::Instant;
use proto::census::ClientTerms;
use proto::export::Exports;
use proto::hosting::{Having, HostGreeting};
use proto::packet::{Checksum, Segment};

use super::hosted::{HostedSockets, StartedSocket};
use super::link::{LinkCall, LinkDatagram, LinkId, LinkServer, LinkWord, StartWord};
use crate::host::{EndpointId, Host, HostConfig};
use crate::pair::application::ApplicationFactory;
use crate::pair::census::open_at;
use crate::pair::clock::NodeClock;
use crate::pair::death::silence;
use crate::pair::defect::Defect;
use crate::pair::exports::SimExports;
use crate::pair::judge::Judge;
use crate::pair::relay::SimRelay;
use crate::tcp::{EndpointState, TcpEndpoint};
use crate::world::{Output, Port, SimNode};

/// Time between two looks for connections that have ended.
const TIDY_EVERY: Duration = Duration::from_secs(5);

/// Configuration of an annex.
#[derive(Clone)]
pub(in crate::pair) struct AnnexConfig {
    /// The annex's number. The first one's number is 0.
    pub number: usize,
    pub vip: SocketAddr,
    pub host: HostConfig,
    pub program: ApplicationFactory,
    /// Whether the application exports its states.
    pub exports: bool,
    /// Time that the process takes to answer a message.
    pub cost: Duration,
    /// Time by which the annex's clock is ahead of the world's time.
    pub ahead: Duration,
    pub defect: Option<Defect>,
}

/// An annex. Port 0 leads to the configured primary, port 1 to the configured backup.
pub struct AnnexStation {
    config: AnnexConfig,
    seed: u64,
    clock: NodeClock,
    judge: Rc<RefCell<Judge>>,
    stack: Host,
    hosted: HostedSockets,
    server: LinkServer,
    /// The station that has the only port through which packets pass.
    leads_to: Option<usize>,
    /// The link on which it says what it has lost.
    wire: Option<LinkId>,
    relayed: Vec<EndpointId>,
    /// Calls of applications that export their states.
    applications: SimExports,
    /// The states on their way to the wire.
    exports: Exports,
    /// Clients of connections whose process has died. The annex's process does not know it yet.
    deaths: Vec<SocketAddr>,
    /// Clients whose sockets have lost their process here. The guard drops the FINs and RSTs of these sockets.
    dying: BTreeSet<SocketAddr>,
    outputs: VecDeque<Output>,
    /// Packets of links that the process has not read.
    inbox: Vec<(Port, LinkDatagram)>,
    /// When the process answers the next message.
    due: Instant,
    tidy_at: Instant,
    paused_until: Instant,
    /// The process was killed. The next one starts at this time.
    starts_at: Option<Instant>,
}

impl AnnexStation {
    pub(in crate::pair) fn new(
        now: Instant,
        config: AnnexConfig,
        seed: u64,
        judge: Rc<RefCell<Judge>>,
    ) -> Self {
        let clock = NodeClock::new(config.ahead);
        let now = clock.read(now);
        Self {
            stack: Host::new(config.host.clone(), seed),
            config,
            seed,
            clock,
            judge,
            hosted: HostedSockets::default(),
            server: LinkServer::default(),
            leads_to: None,
            wire: None,
            relayed: Vec::new(),
            applications: SimExports::default(),
            exports: Exports::new(now),
            deaths: Vec::new(),
            dying: BTreeSet::new(),
            outputs: VecDeque::new(),
            inbox: Vec::new(),
            due: now,
            tidy_at: now + TIDY_EVERY,
            paused_until: now,
            starts_at: None,
        }
    }

    /// The annex has lost its power.
    pub(crate) fn lose_power(&self) {
        self.judge.borrow_mut().on_annex_lost(self.config.number, None);
    }

    /// Starts the annex again after a loss of power.
    pub(crate) fn boot(&mut self, now: Instant) {
        let seed = self.seed.wrapping_add(1);
        *self = Self::new(now, self.config.clone(), seed, Rc::clone(&self.judge));
    }

    /// Stops the process until `until`. Its kernel and its sockets go on.
    pub(crate) fn pause(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(self.clock.read(until));
    }

    /// Kills the process. The next one starts at `until`. Its kernel and its sockets go on until then.
    pub(crate) fn kill(&mut self, until: Instant) {
        let until = self.clock.read(until);
        self.outputs.extend(self.server.die());
        self.inbox.clear();
        self.applications.clear();
        self.hosted.drop_restoring(&mut self.stack);
        self.starts_at = Some(self.starts_at.map_or(until, |at| at.max(until)));
    }

    /// Kills the processes of connections. No FIN and no RST of theirs leaves the annex.
    pub(crate) fn kill_worker(&mut self, now: Instant, clients: &[SocketAddr]) {
        let now = self.clock.read(now);
        for client in clients.iter().filter(|client| self.hosted.host.has(client)) {
            let socket = self.stack.find(self.config.vip, *client);
            if let Some((endpoint, _)) = socket.and_then(|id| self.stack.take(id)) {
                let nobody = Box::new(|_: Instant, _: &mut TcpEndpoint| None);
                let id = self.stack.adopt(now, endpoint, nobody);
                self.dying.insert(*client);
                self.stack.with(now, id, TcpEndpoint::shutdown);
                self.deaths.push(*client);
                let number = self.config.number;
                self.judge.borrow_mut().on_annex_lost(number, Some(*client));
            }
        }
        self.work(now);
    }

    /// Number of snapshots that the wire has kept for this annex, and of states that applications have imported, since its boot.
    pub fn snapshot_counts(&self) -> (u64, u64) {
        self.applications.counts()
    }

    /// Number of connections that live here.
    pub fn hosts(&self) -> usize {
        self.hosted.host.started()
    }

    /// A new process ends what an earlier one has left.
    fn start(&mut self, now: Instant) {
        self.starts_at = None;
        self.leads_to = None;
        self.end_all();
        self.hosted = HostedSockets::default();
        self.server = LinkServer::default();
        self.applications.clear();
        self.exports = Exports::new(now);
        self.deaths.clear();
        self.wire = None;
        self.due = now;
    }

    /// Whether the node has no socket for this segment. Its guard drops the RST with which the stack would answer.
    fn is_stray(&self, packet: &[u8]) -> bool {
        let segment = Segment::parse(packet, Checksum::Trusted);
        segment.is_ok_and(|segment| {
            let is_for_us = segment.destination == self.config.vip && !segment.flags.syn;
            is_for_us && self.stack.find(self.config.vip, segment.source).is_none()
        })
    }

    /// Ends all sockets. Nothing is sent.
    fn end_all(&mut self) {
        self.hosted.drop_restoring(&mut self.stack);
        self.hosted.host.forget_all();
        let ids: Vec<_> = self.stack.endpoints().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| drop(self.stack.take(id)));
        self.relayed.clear();
        self.dying.clear();
        self.judge.borrow_mut().on_annex_lost(self.config.number, None);
    }

    /// Ends connections. Their RSTs reach no client, because they are not this node's any more.
    fn end(&mut self, now: Instant, clients: &[SocketAddr]) {
        for &client in clients {
            if let Some(id) = self.stack.find(self.config.vip, client) {
                self.stack.with(now, id, TcpEndpoint::abort);
            }
            let number = self.config.number;
            self.judge.borrow_mut().on_annex_dropped(number, client);
        }
    }

    /// Removes a client's socket whose process has died, and lets FINs and RSTs of the client's next one leave.
    fn drop_dying(&mut self, client: SocketAddr) {
        if self.dying.remove(&client)
            && let Some(id) = self.stack.find(self.config.vip, client)
        {
            self.stack.take(id);
        }
    }

    fn is(&self, defect: Defect) -> bool {
        self.config.defect == Some(defect)
    }

    fn runs(&self, now: Instant) -> bool {
        self.starts_at.is_none() && now >= self.paused_until
    }

    fn answer(&mut self, now: Instant, call: LinkCall) {
        let LinkCall { id, link, word } = call;
        let Some(word) = word else {
            return self.hosted.host.on_link_end(now, link);
        };
        let reply = match word {
            LinkWord::Hello(greeting) => self.greet(now, (id, link), &greeting),
            _ if !self.hosted.host.obeys(link) => return,
            LinkWord::TakeBack(number) => {
                self.hosted.host.on_take_back(number);
                None
            }
            LinkWord::Drop(client) => {
                self.hosted.drop_one(&mut self.stack, &client);
                self.drop_dying(client);
                if !self.is(Defect::KeepDropped) && self.hosted.host.forget(&client) {
                    self.end(now, &[client]);
                }
                Some(LinkWord::Dropped(client))
            }
            LinkWord::Ask(clients) => Some(LinkWord::Told(self.terms_of(clients))),
            LinkWord::Receipt(receipt) => {
                self.exports.on_receipt(now, &receipt);
                None
            }
            LinkWord::Restore {
                endpoint,
                output,
                now: then,
            } => {
                let client = endpoint.client;
                let tcp = &self.config.host.tcp;
                let made = self
                    .hosted
                    .restore(&mut self.stack, tcp, *endpoint, output, (now, then));
                if made.is_ok() {
                    let number = self.config.number;
                    self.judge.borrow_mut().on_made_at_annex(number, client);
                }
                let exported = self.exports.last_number();
                let restored = |client| LinkWord::Restored { client, exported };
                Some(answer_of(made, client, restored))
            }
            LinkWord::Start(word) => Some(self.let_speak(now, *word)),
            LinkWord::Lives { .. }
            | LinkWord::Ping
            | LinkWord::Welcome { .. }
            | LinkWord::Superseded
            | LinkWord::Restored { .. }
            | LinkWord::Refused { .. }
            | LinkWord::Dropped(_)
            | LinkWord::Live(_)
            | LinkWord::Told(_)
            | LinkWord::Part(_) => None,
        };
        if let Some(reply) = reply {
            self.server.reply(id, reply);
        }
    }

    /// Lets a socket speak. Returns the answer.
    fn let_speak(&mut self, now: Instant, mut word: StartWord) -> LinkWord {
        let (client, program) = (word.client, Rc::clone(&self.config.program));
        if self.is(Defect::ExportMisplaced)
            && let Some((input, _)) = &mut word.begins_at
        {
            *input = *input + 1;
        }
        let exports = self.config.exports.then_some(&self.applications);
        let started = self
            .hosted
            .start(&mut self.stack, now, word, exports, move || program(client));
        let live = started.map(|started| self.note_started(client, started));
        answer_of(live, client, LinkWord::Live)
    }

    fn note_started(&mut self, client: SocketAddr, started: StartedSocket) {
        self.relayed.push(started.socket);
        let number = self.config.number;
        self.judge.borrow_mut().on_annex_live(number, client);
        for packet in started.packets {
            self.speak(packet);
        }
    }

    /// A wire begins a link, or a primary whose wire has failed.
    fn greet(
        &mut self,
        now: Instant,
        (id, link): (LinkId, u64),
        greeting: &HostGreeting,
    ) -> Option<LinkWord> {
        if !self.is(Defect::ObeyUnknowing) {
            self.hosted.host.check(now, greeting).ok()?;
        }
        let is_carried = greeting.having == Having::Asked;
        if is_carried && self.is(Defect::ForgetTakeBack) {
            self.hosted.host.on_take_back(greeting.take_back);
        }
        let unknown = if !is_carried && self.is(Defect::KeepUnknown) {
            Vec::new()
        } else {
            self.hosted.take_list(&mut self.stack, greeting)
        };
        self.end(now, &unknown);
        while let Some(Output::Transmit { packet, .. }) = self.stack.poll_output(now) {
            self.speak(packet); // RSTs, which go to the node that passed packets before
        }
        self.leads_to = Some(id.caller);
        if let Some(before) = self.wire.replace(id) {
            self.server.reply(before, LinkWord::Superseded);
        }
        self.hosted.host.obey(link, greeting);
        Some(LinkWord::Welcome {
            has: self.hosted.host.clients(),
            carries: Vec::new(),
        })
    }

    /// The terms of these clients' connections, also of those that are being closed, as the kernel tells them.
    fn terms_of(&self, clients: Vec<SocketAddr>) -> Vec<ClientTerms> {
        use EndpointState::{Closed, SynReceived, SynSent, TimeWait};
        let is_open = |state| !matches!(state, Closed | SynSent | SynReceived | TimeWait);
        let open = open_at(&self.stack, self.config.vip, is_open);
        let mut terms: Vec<_> = clients
            .into_iter()
            .map(|client| (client, open.get(&client).copied()))
            .collect();
        if self.is(Defect::ForgetTerms) {
            let known = terms.iter_mut().filter_map(|(_, terms)| terms.as_mut());
            known.for_each(|terms| (terms.window_scale, terms.timestamps) = (None, false));
        }
        terms
    }

    /// Sends a packet of the local stack or of a raw socket.
    fn speak(&mut self, packet: Vec<u8>) {
        if let Some(port) = self.leads_to.map(Port) {
            self.outputs.push_back(Output::Transmit { port, packet });
        }
    }

    /// Forgets connections that have ended.
    fn tidy(&mut self, now: Instant) {
        self.tidy_at = now + TIDY_EVERY;
        let (stack, vip) = (&self.stack, self.config.vip);
        let gone = self
            .hosted
            .host
            .retain(|client| stack.find(vip, *client).is_some());
        let Some(wire) = self.wire.filter(|_| !gone.is_empty()) else {
            return;
        };
        if self.hosted.host.is_carried() {
            gone.into_iter()
                .for_each(|client| self.lose(client, "it has ended"));
        } else {
            let told = gone.into_iter().map(|client| (client, None)).collect();
            self.server.reply(wire, LinkWord::Told(told));
        }
    }

    /// Tells the wire that this node does not have a connection any more.
    fn lose(&mut self, client: SocketAddr, why: &str) {
        if let Some(wire) = self.wire {
            let reason = why.to_owned();
            self.server.reply(wire, LinkWord::Refused { client, reason });
        }
    }

    /// Tells the wire which connections have lost their process here.
    fn tell_deaths(&mut self) {
        for client in std::mem::take(&mut self.deaths) {
            if self.hosted.host.forget(&client) && !self.is(Defect::HideDeaths) {
                self.lose(client, "its process has died");
            }
        }
    }

    /// Takes the states that applications export, and sends the wire the parts that are due.
    fn send_snapshots(&mut self, now: Instant) {
        while let Some(call) = self.applications.take() {
            let number = (call.call, call.waits);
            self.exports
                .begin(now, number, call.client, call.place, call.state);
        }
        let parts = self.hosted.host.poll_parts(now, &mut self.exports);
        if let Some(wire) = self.wire {
            let parts = parts.into_iter().map(LinkWord::Part);
            parts.for_each(|part| self.server.reply(wire, part));
        }
        while let Some((_, outcome)) = self.exports.poll_outcome() {
            self.applications.finish(&outcome);
        }
    }

    fn remove_vanishing(&mut self) {
        let stack = &mut self.stack;
        self.relayed.retain(|&socket| {
            let vanishes = stack.app::<SimRelay>(socket).is_some_and(SimRelay::is_to_vanish);
            if vanishes {
                stack.take(socket);
            }
            !vanishes
        });
    }

    fn work(&mut self, now: Instant) {
        if self.starts_at.is_some_and(|at| now >= at) {
            self.start(now);
        }
        if !self.runs(now) {
            return;
        }
        for (port, datagram) in std::mem::take(&mut self.inbox) {
            self.server.on_datagram(now, port, datagram);
        }
        self.server.handle_timeout(now);
        while now >= self.due
            && let Some(call) = self.server.poll_call()
        {
            self.due = now + self.config.cost;
            self.answer(now, call);
        }
        self.tell_deaths();
        self.send_snapshots(now);
        if now >= self.tidy_at {
            self.tidy(now);
        }
        self.outputs.extend(self.server.outputs(now));
    }
}

fn answer_of(
    done: Result<(), String>,
    client: SocketAddr,
    well: impl FnOnce(SocketAddr) -> LinkWord,
) -> LinkWord {
    match done {
        Ok(()) => well(client),
        Err(reason) => LinkWord::Refused { client, reason },
    }
}

impl SimNode for AnnexStation {
    fn handle(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        self.judge.borrow_mut().look_at_clock(now);
        let now = self.clock.read(now);
        if let Some(datagram) = LinkDatagram::read(&packet) {
            if self.starts_at.is_none() {
                self.inbox.push((port, datagram));
            } else {
                self.outputs.extend(LinkServer::refuse(port, &datagram));
            }
            self.work(now);
        } else if self.leads_to == Some(port.0) && !self.is_stray(&packet) {
            self.stack.handle(now, Port(0), packet);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.judge.borrow_mut().look_at_clock(now);
        let now = self.clock.read(now);
        self.stack.handle_timeout(now);
        self.work(now);
    }

    fn poll_output(&mut self, now: Instant) -> Option<Output> {
        self.judge.borrow_mut().look_at_clock(now);
        let now = self.clock.read(now);
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        while let Some(output) = self.stack.poll_output(now) {
            match (output, self.leads_to.map(Port)) {
                (Output::Transmit { packet, .. }, Some(port)) => {
                    if let Some(packet) = silence(&self.dying, packet) {
                        return Some(Output::Transmit { port, packet });
                    }
                }
                (Output::Transmit { .. }, None) => {}
                (note @ Output::Note(_), _) => return Some(note),
            }
        }
        self.remove_vanishing();
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let process = if let Some(at) = self.starts_at {
            Some(at)
        } else {
            let calls = self.server.has_calls().then_some(self.due);
            let is_told = self.applications.has_calls() || !self.deaths.is_empty();
            let exports = is_told.then_some(self.paused_until);
            let exports = exports.into_iter().chain(self.exports.poll_timeout());
            let unread = (!self.inbox.is_empty()).then_some(self.paused_until);
            let links = self.server.poll_timeout().into_iter().chain(unread);
            let due = calls
                .into_iter()
                .chain(links)
                .chain(exports)
                .chain([self.tidy_at])
                .min();
            due.map(|due| due.max(self.paused_until))
        };
        let due = self.stack.poll_timeout().into_iter().chain(process).min();
        due.map(|due| self.clock.when(due))
    }
}
