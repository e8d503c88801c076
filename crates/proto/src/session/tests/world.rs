//! A client, its proxy, three servers and their applications in simulated time. Links delay, stand still and break; servers crash.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::Instant;
use crate::restart::snapshot::Snapshot;
use crate::session::certificate::{CertificateKey, Challenge, SessionId};
use crate::session::client::{ClientAction, ClientSession, SessionReport};
use crate::session::frame::{ClientFrame, CooperatingServer, ServerFrame, SessionBundle, StateTransfer};
use crate::session::holding::HeldSnapshots;
use crate::session::server::{ServerAction, ServerSession, ServerSessionConfig, SessionLink};

pub const NAMES: [&str; 3] = ["a", "b", "c"];
const SESSION: SessionId = SessionId([5; 16]);
const LEASE: Duration = Duration::from_millis(400);
const CHALLENGE: Challenge = [3; 32];

/// A small generator of pseudo-random numbers (splitmix64).
pub struct SessionDice(pub u64);

impl SessionDice {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The deterministic application: each byte of input leads to three bytes of output, which depend on all input before.
#[derive(Clone, Default)]
pub struct Calculator {
    hash: u64,
    count: u64,
    read: u64,
    written: u64,
    unread: VecDeque<u8>,
    input_has_ended: bool,
    has_ended: bool,
}

impl Calculator {
    fn from_state(state: Option<&[u8]>) -> Self {
        let number = |at: usize, state: &[u8]| u64::from_be_bytes(state[at..at + 8].try_into().unwrap());
        state.map_or_else(Self::default, |state| Self {
            hash: number(0, state),
            count: number(8, state),
            ..Self::default()
        })
    }

    fn state(&self) -> Arc<[u8]> {
        [self.hash.to_be_bytes(), self.count.to_be_bytes()]
            .concat()
            .into()
    }

    fn answer(&mut self, byte: u8) -> [u8; 3] {
        self.hash = self.hash.wrapping_mul(31).wrapping_add(u64::from(byte) + 1);
        self.count += 1;
        let [.., x, y, z] = (self.hash ^ (self.hash >> 17)).to_be_bytes();
        [x, y, z]
    }

    /// From now on, the application is not deterministic.
    pub fn answer_differently(&mut self) {
        self.hash ^= 1;
    }

    /// The output for this input.
    pub fn all(input: &[u8]) -> Vec<u8> {
        let mut calculator = Self::default();
        let mut output: Vec<u8> = input.iter().flat_map(|byte| calculator.answer(*byte)).collect();
        output.extend(b"end");
        output
    }
}

#[derive(Default)]
pub struct SimServer {
    pub session: Option<ServerSession>,
    pub application: Option<Calculator>,
    held: Option<HeldSnapshots>,
    pub is_dead: bool,
    /// The application cannot be connected.
    pub refuses: bool,
}

struct SimLink {
    server: usize,
    to_server: VecDeque<(Instant, ClientFrame)>,
    to_client: VecDeque<(Instant, ServerFrame)>,
    /// Nothing is delivered before this time.
    stands_until: Instant,
    client_has: bool,
    server_has: bool,
}

enum Errand {
    Linked(u64, usize),
    Fetch {
        from: usize,
        to: usize,
        epoch: u64,
    },
    Fetched {
        to: usize,
        epoch: u64,
        bundle: Box<Result<SessionBundle, String>>,
    },
    Push {
        from: usize,
        to: usize,
        epoch: u64,
        snapshot: Snapshot,
        point: u64,
    },
    Kept {
        to: usize,
        epoch: u64,
        number: u64,
    },
    LinkLost {
        link: SessionLink,
        at_client: bool,
    },
}

pub struct SessionWorld {
    pub now: Instant,
    pub dice: SessionDice,
    key: CertificateKey,
    pub client: ClientSession,
    pub servers: [SimServer; 3],
    links: BTreeMap<SessionLink, SimLink>,
    next_link: SessionLink,
    errands: Vec<(Instant, Errand)>,
    pub input: Vec<u8>,
    given: usize,
    pub output: Vec<u8>,
    expected: Vec<u8>,
    /// Number of bytes of the output that were compared.
    compared: usize,
    untaken: usize,
    pub output_has_ended: bool,
    pub was_reset: bool,
    pub reports: Vec<SessionReport>,
    /// Number of inputs between two snapshots.
    pub interval: u64,
    /// Milliseconds from each host to each other one, if all are the same.
    pub one_way: Option<u64>,
    is_ending: bool,
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

const CONFIG: ServerSessionConfig = ServerSessionConfig {
    lease: LEASE,
    keep: Duration::from_secs(60),
};

impl SessionWorld {
    pub fn new(seed: u64, transfer: StateTransfer, length: usize) -> Self {
        let mut dice = SessionDice(seed);
        let input: Vec<u8> = (0..length)
            .map(|_| u8::try_from(dice.below(256)).unwrap())
            .collect();
        let mut world = Self {
            now: at(1),
            key: CertificateKey::new([1; 32]),
            client: ClientSession::open(at(1), 0, "sum", transfer, Duration::from_secs(30)),
            servers: Default::default(),
            links: BTreeMap::new(),
            next_link: 0,
            errands: Vec::new(),
            given: 0,
            output: Vec::new(),
            expected: Calculator::all(&input),
            compared: 0,
            input,
            untaken: 0,
            output_has_ended: false,
            was_reset: false,
            reports: Vec::new(),
            interval: 1 + dice.below(40),
            one_way: None,
            is_ending: true,
            dice,
        };
        for server in &mut world.servers {
            server.held = Some(HeldSnapshots::new(1 << 20));
        }
        world.link(0);
        world
    }

    fn link(&mut self, server: usize) -> SessionLink {
        let number = self.next_link;
        self.next_link += 1;
        let link = SimLink {
            server,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            stands_until: self.now,
            client_has: true,
            server_has: true,
        };
        self.links.insert(number, link);
        number
    }

    /// Time for one way between two hosts: below `bound` milliseconds, unless it is fixed.
    fn delay(&mut self, bound: u64) -> Duration {
        let drawn = 1 + self.dice.below(bound);
        Duration::from_millis(self.one_way.unwrap_or(drawn))
    }

    fn later(&mut self, errand: Errand) {
        // A spare link is there already.
        let is_there = self.one_way.is_some() && matches!(errand, Errand::Linked(..));
        let delay = if is_there { Duration::ZERO } else { self.delay(10) };
        self.errands.push((self.now + delay, errand));
    }

    fn cooperating() -> Vec<CooperatingServer> {
        let server = |name: &&str| CooperatingServer {
            name: (*name).to_owned(),
            address: ([10, 0, 0, 1], 1).into(),
        };
        NAMES.iter().map(server).collect()
    }

    /// The server whose application runs. Two of them are a violation.
    pub fn owner(&self) -> Option<usize> {
        let runs = |server: &SimServer| server.application.is_some() && !server.is_dead;
        let running: Vec<_> = (0..3).filter(|at| runs(&self.servers[*at])).collect();
        assert!(
            running.len() <= 1,
            "two applications run: {running:?} at {:?}",
            self.now
        );
        running.first().copied()
    }

    /// One millisecond passes.
    pub fn tick(&mut self) {
        self.now += Duration::from_millis(1);
        self.timers();
        self.deliver();
        self.run_errands();
        for server in 0..3 {
            self.step_application(server);
        }
        self.step_client();
        self.owner();
    }

    fn timers(&mut self) {
        let now = self.now;
        if self.client.poll_timeout().is_some_and(|due| due <= now) {
            self.client.handle_timeout(now);
        }
        self.client_actions();
        for at in 0..3 {
            let server = &mut self.servers[at];
            if let (Some(session), false) = (&mut server.session, server.is_dead)
                && session.poll_timeout().is_some_and(|due| due <= now)
            {
                session.handle_timeout(now);
            }
            self.server_actions(at);
        }
    }

    fn deliver(&mut self) {
        let numbers: Vec<_> = self.links.keys().copied().collect();
        for number in numbers {
            for _ in 0..64 {
                let Some(link) = self.links.get_mut(&number) else {
                    break;
                };
                if self.now < link.stands_until {
                    break;
                }
                let server = link.server;
                let due = |queue: &VecDeque<(Instant, ClientFrame)>| {
                    queue.front().is_some_and(|(due, _)| *due <= self.now)
                };
                let to_server = due(&link.to_server).then(|| link.to_server.pop_front().unwrap().1);
                let is_due = link.to_client.front().is_some_and(|(due, _)| *due <= self.now);
                let to_client = is_due.then(|| link.to_client.pop_front().unwrap().1);
                let (client_has, server_has) = (link.client_has, link.server_has);
                if to_server.is_none() && to_client.is_none() {
                    break;
                }
                if let Some(frame) = to_server.filter(|_| server_has) {
                    self.serve(server, number, frame);
                }
                if let Some(frame) = to_client.filter(|_| client_has) {
                    self.client.handle_frame(self.now, number, frame);
                    self.client_actions();
                }
            }
        }
    }

    fn serve(&mut self, at: usize, link: SessionLink, frame: ClientFrame) {
        let now = self.now;
        let server = &mut self.servers[at];
        if server.is_dead {
            return;
        }
        match frame {
            ClientFrame::Open { service, transfer } => {
                let (certificate, secret) = self.key.issue(SESSION, &service, 1000);
                let opened = ServerFrame::Opened {
                    certificate,
                    secret,
                    servers: Self::cooperating(),
                    owner: NAMES[at].to_owned(),
                    lease_ms: u64::try_from(LEASE.as_millis()).unwrap(),
                };
                server.session = Some(ServerSession::open(now, CONFIG, transfer, link, opened));
            }
            ClientFrame::Attach(request) => {
                let right = (&CHALLENGE, request.epoch);
                let checked = self
                    .key
                    .check(&request.certificate, &request.proof, right, "sum", 1);
                assert_eq!(checked, Ok(()));
                let held = server
                    .held
                    .as_ref()
                    .and_then(|held| held.find(SESSION, request.point.number));
                let held = held.cloned();
                let session = server
                    .session
                    .get_or_insert_with(|| ServerSession::empty(now, CONFIG, request.transfer));
                session.handle_attach(now, link, request, held);
            }
            frame => {
                if let Some(session) = &mut server.session {
                    session.handle_frame(now, link, frame);
                }
            }
        }
        self.server_actions(at);
    }

    fn client_actions(&mut self) {
        while let Some(action) = self.client.poll_action() {
            match action {
                ClientAction::Connect { attempt, server } => {
                    let at = NAMES.iter().position(|name| *name == server.name).unwrap();
                    self.later(Errand::Linked(attempt, at));
                }
                ClientAction::Send(number, frame) => {
                    let due = self.now + self.delay(8);
                    if let Some(link) = self.links.get_mut(&number) {
                        let due = link.to_server.back().map_or(due, |(last, _)| due.max(*last));
                        link.to_server.push_back((due, frame));
                    }
                }
                ClientAction::CloseLink(link) => {
                    if let Some(link) = self.links.get_mut(&link) {
                        link.client_has = false;
                    }
                    self.errands.push((
                        self.now + Duration::from_millis(40),
                        Errand::LinkLost {
                            link,
                            at_client: false,
                        },
                    ));
                }
                ClientAction::ToClient(bytes) => {
                    self.untaken += bytes.len();
                    self.output.extend(bytes);
                }
                ClientAction::EndClient => self.output_has_ended = true,
                ClientAction::ResetClient => self.was_reset = true,
                ClientAction::Report(report) => self.reports.push(report),
                ClientAction::OpenElsewhere(why) => panic!("no server refuses a new session here: {why}"),
            }
        }
    }

    fn server_actions(&mut self, at: usize) {
        loop {
            let server = &mut self.servers[at];
            let Some(session) = &mut server.session else {
                return;
            };
            let Some(action) = session.poll_action() else {
                return;
            };
            if server.is_dead {
                continue;
            }
            let epoch = session.own_epoch();
            match action {
                ServerAction::Send(number, frame) => {
                    let due = self.now + self.delay(8);
                    if let Some(link) = self.links.get_mut(&number) {
                        let due = link.to_client.back().map_or(due, |(last, _)| due.max(*last));
                        link.to_client.push_back((due, frame));
                    }
                }
                ServerAction::StartApplication(_) if server.refuses => session.on_start_failed(self.now),
                ServerAction::StartApplication(state) => {
                    assert!(server.application.is_none(), "it runs already");
                    server.application = Some(Calculator::from_state(state.as_deref()));
                }
                ServerAction::ToApplication(bytes) => {
                    if let Some(application) = &mut server.application {
                        application.unread.extend(bytes);
                    }
                }
                ServerAction::EndApplication => {
                    if let Some(application) = &mut server.application {
                        application.input_has_ended = true;
                    }
                }
                ServerAction::StopApplication => server.application = None,
                ServerAction::Push { snapshot, point } => {
                    for to in (0..3).filter(|to| *to != at) {
                        let snapshot = snapshot.clone();
                        self.later(Errand::Push {
                            from: at,
                            to,
                            epoch,
                            snapshot,
                            point,
                        });
                    }
                }
                ServerAction::Fetch { owner, epoch } => {
                    let from = NAMES.iter().position(|name| *name == owner).unwrap();
                    self.later(Errand::Fetch { from, to: at, epoch });
                }
                ServerAction::Kept(_) => {}
                ServerAction::Forget => {
                    server.session = None;
                    server.application = None;
                }
            }
        }
    }

    fn run_errands(&mut self) {
        let now = self.now;
        let (due, rest) = std::mem::take(&mut self.errands)
            .into_iter()
            .partition(|(due, _)| *due <= now);
        self.errands = rest;
        for (_, errand) in due {
            self.run_errand(errand);
        }
    }

    fn run_errand(&mut self, errand: Errand) {
        let now = self.now;
        match errand {
            Errand::Linked(attempt, server) if self.servers[server].is_dead => {
                self.client.on_connect_failed(now, attempt, "refused");
            }
            Errand::Linked(attempt, server) => {
                let link = self.link(server);
                self.client.on_linked(now, attempt, link, &CHALLENGE);
            }
            Errand::Fetch { from, to, epoch } => {
                let server = &mut self.servers[from];
                let session = server.session.as_mut().filter(|_| !server.is_dead && from != to);
                let bundle = session.map_or_else(|| Err("dead".into()), |one| one.handle_fetch(now, epoch));
                self.server_actions(from);
                self.later(Errand::Fetched {
                    to,
                    epoch,
                    bundle: Box::new(bundle),
                });
            }
            Errand::Fetched { to, epoch, bundle } => {
                if let Some(session) = &mut self.servers[to].session {
                    match *bundle {
                        Ok(bundle) => session.on_fetched(now, epoch, bundle),
                        Err(why) => session.on_fetch_failed(now, epoch, &why),
                    }
                }
                self.server_actions(to);
            }
            Errand::Push {
                from,
                to,
                epoch,
                snapshot,
                point,
            } => {
                let number = snapshot.number;
                let server = &mut self.servers[to];
                let held = server.held.as_mut().filter(|_| !server.is_dead);
                if held.is_some_and(|held| held.push(now, (SESSION, epoch), snapshot, point)) {
                    self.later(Errand::Kept {
                        to: from,
                        epoch,
                        number,
                    });
                }
            }
            Errand::Kept { to, epoch, number } => {
                let session = self.servers[to].session.as_mut();
                if let Some(session) = session.filter(|session| session.own_epoch() == epoch) {
                    session.on_kept(number);
                }
                self.server_actions(to);
            }
            Errand::LinkLost {
                link,
                at_client: true,
            } => self.client.on_link_lost(now, link),
            Errand::LinkLost {
                link,
                at_client: false,
            } => self.lose_at_server(link),
        }
        self.client_actions();
    }

    fn lose_at_server(&mut self, link: SessionLink) {
        if let Some(ended) = self.links.get_mut(&link) {
            ended.server_has = false;
            let server = ended.server;
            if let Some(session) = &mut self.servers[server].session {
                session.on_link_lost(link);
            }
        }
    }

    fn step_application(&mut self, at: usize) {
        let now = self.now;
        let most = self.dice.below(6);
        for _ in 0..most {
            let server = &mut self.servers[at];
            let (Some(session), Some(application)) = (&mut server.session, &mut server.application) else {
                return;
            };
            if server.is_dead || !session.wants_output() {
                return;
            }
            if let Some(byte) = application.unread.pop_front() {
                application.read += 1;
                let answer = application.answer(byte);
                application.written += 3;
                let progress = (application.read, application.written);
                let (state, count) = (application.state(), application.count);
                session.on_application_took(now, 1);
                // The export may come before the session has read the output.
                let exports = count.is_multiple_of(self.interval);
                if exports && count % 2 == 0 {
                    session.on_export(now, Arc::clone(&state), progress);
                }
                session.on_application_data(now, &answer);
                if exports && count % 2 == 1 {
                    session.on_export(now, state, progress);
                }
            } else if application.input_has_ended && !application.has_ended {
                application.has_ended = true;
                session.on_application_data(now, b"end");
                session.on_application_end(now);
            }
            self.server_actions(at);
        }
    }

    fn step_client(&mut self) {
        if self.given < self.input.len() && self.client.wants_input() {
            let count = usize::try_from(self.dice.below(5))
                .unwrap()
                .min(self.input.len() - self.given);
            let bytes = self.input[self.given..self.given + count].to_vec();
            self.given += count;
            self.client.on_client_data(&bytes);
        } else if self.given == self.input.len() && self.is_ending {
            self.is_ending = false;
            self.client.on_client_end();
        }
        let taken = usize::try_from(self.dice.below(20)).unwrap().min(self.untaken);
        if taken > 0 {
            self.untaken -= taken;
            self.client.on_client_took(taken);
        }
        self.client_actions();
    }

    /// A link breaks. The ends notice it after a while, or never.
    pub fn break_link(&mut self) {
        let Some(number) = self.next_link.checked_sub(1 + self.dice.below(2)) else {
            return;
        };
        let Some(link) = self.links.get_mut(&number) else {
            return;
        };
        link.stands_until = Instant::from_nanos(u64::MAX);
        for at_client in [true, false] {
            if self.dice.below(3) > 0 {
                let delay = Duration::from_millis(self.dice.below(300));
                self.errands.push((
                    self.now + delay,
                    Errand::LinkLost {
                        link: number,
                        at_client,
                    },
                ));
            }
        }
    }

    /// A link stands still for a while. What it carries arrives later.
    pub fn stop_link(&mut self) {
        let millis = self.dice.below(900);
        let back = 1 + self.dice.below(2);
        if let Some(link) = self
            .next_link
            .checked_sub(back)
            .and_then(|number| self.links.get_mut(&number))
        {
            link.stands_until = link.stands_until.max(self.now + Duration::from_millis(millis));
        }
    }

    /// A server fails with its application. Its links are closed, or stand still.
    pub fn crash(&mut self, at: usize) {
        let server = &mut self.servers[at];
        (server.session, server.application, server.is_dead) = (None, None, true);
        server.held = Some(HeldSnapshots::new(1 << 20));
        let is_silent = self.dice.below(2) == 0;
        let of_server = self.links.iter_mut().filter(|(_, link)| link.server == at);
        for (number, link) in of_server {
            link.stands_until = Instant::from_nanos(u64::MAX);
            link.server_has = false;
            if !is_silent {
                let errand = Errand::LinkLost {
                    link: *number,
                    at_client: true,
                };
                self.errands.push((self.now + Duration::from_millis(2), errand));
            }
        }
    }

    pub fn revive(&mut self, at: usize) {
        self.servers[at].is_dead = false;
    }

    /// Whether the client has all output.
    pub fn is_complete(&self) -> bool {
        self.output_has_ended && self.untaken == 0
    }

    #[track_caller]
    pub fn check_output(&mut self) {
        let (from, got) = (self.compared, self.output.len());
        let is_prefix = got <= self.expected.len() && self.output[from..] == self.expected[from..got];
        assert!(is_prefix, "other output, {got} bytes");
        assert!(
            !self.output_has_ended || got == self.expected.len(),
            "the end came after {got} bytes"
        );
        self.compared = got;
    }
}
