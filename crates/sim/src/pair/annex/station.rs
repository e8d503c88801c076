//! A simulated annex: its stack and application, its gate, and its process, which does what `steadfast annex` does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use proto::Instant;
use proto::hosting::{Having, HostGreeting};

use super::hosted::{HostedSockets, StartedSocket};
use super::link::{LinkCall, LinkDatagram, LinkId, LinkServer, LinkWord};
use crate::host::{EndpointId, Host, HostConfig};
use crate::pair::application::ApplicationFactory;
use crate::pair::clock::NodeClock;
use crate::pair::defect::Defect;
use crate::pair::judge::Judge;
use crate::pair::relay::SimRelay;
use crate::tcp::TcpEndpoint;
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
        self.hosted.drop_restoring(&mut self.stack);
        self.starts_at = Some(self.starts_at.map_or(until, |at| at.max(until)));
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
        self.due = now;
    }

    /// Ends all sockets. Nothing is sent.
    fn end_all(&mut self) {
        self.hosted.drop_restoring(&mut self.stack);
        self.hosted.host.forget_all();
        let ids: Vec<_> = self.stack.endpoints().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| drop(self.stack.take(id)));
        self.relayed.clear();
        self.judge.borrow_mut().on_annex_lost(self.config.number, None);
    }

    /// Ends connections. Their RSTs reach no client, because they are not this node's any more.
    fn end(&mut self, now: Instant, clients: &[SocketAddr]) {
        for &client in clients {
            if let Some(id) = self.stack.find(self.config.vip, client) {
                self.stack.with(now, id, TcpEndpoint::abort);
            }
            let number = self.config.number;
            self.judge.borrow_mut().on_annex_lost(number, Some(client));
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
                if !self.is(Defect::KeepDropped) && self.hosted.host.forget(&client) {
                    self.end(now, &[client]);
                }
                Some(LinkWord::Dropped(client))
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
                Some(answer_of(made, client, LinkWord::Restored))
            }
            LinkWord::Start(word) => {
                let (client, program) = (word.client, Rc::clone(&self.config.program));
                let started = self
                    .hosted
                    .start(&mut self.stack, now, *word, move || program(client));
                let live = started.map(|started| self.note_started(client, started));
                Some(answer_of(live, client, LinkWord::Live))
            }
            LinkWord::Lives { .. }
            | LinkWord::Ping
            | LinkWord::Welcome(_)
            | LinkWord::Restored(_)
            | LinkWord::Refused { .. }
            | LinkWord::Dropped(_)
            | LinkWord::Live(_) => None,
        };
        if let Some(reply) = reply {
            self.server.reply(id, reply);
        }
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
        self.hosted.host.check(now, greeting).ok()?;
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
        if self.leads_to.is_some_and(|before| before != id.caller) {
            self.leads_to = None;
            if !is_carried {
                self.end_all();
            }
        }
        self.leads_to = Some(id.caller);
        self.wire = Some(id);
        self.hosted.host.obey(link, greeting);
        Some(LinkWord::Welcome(self.hosted.host.clients()))
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
        let wire = self.wire.filter(|_| self.hosted.host.is_carried());
        for client in gone {
            if let Some(wire) = wire {
                let reason = "it has ended".to_owned();
                self.server.reply(wire, LinkWord::Refused { client, reason });
            }
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
            }
            self.work(now);
        } else if self.leads_to == Some(port.0) {
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
                    return Some(Output::Transmit { port, packet });
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
            let unread = (!self.inbox.is_empty()).then_some(self.paused_until);
            let links = self.server.poll_timeout().into_iter().chain(unread);
            let due = calls.into_iter().chain(links).chain([self.tidy_at]).min();
            due.map(|due| due.max(self.paused_until))
        };
        let due = self.stack.poll_timeout().into_iter().chain(process).min();
        due.map(|due| self.clock.when(due))
    }
}
