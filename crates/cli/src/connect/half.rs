//! A server's half of sessions: `steadfast accept`, beside the application (docs/connect.md).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use linux::application::ApplicationProgress;
use proto::Instant;
use proto::session::certificate::{CertificateKey, SessionId};
use proto::session::frame::{AttachRequest, ClientFrame, CooperationFrame, ServerFrame, StateTransfer};
use proto::session::server::{ServerAction, ServerSession, ServerSessionConfig, SessionLink};
use proto::session::{HeldSnapshots, ServerPhase};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc::{Sender, UnboundedSender, channel, unbounded_channel};
use tokio::sync::{Notify, oneshot};

use super::calls::ControlCalls;
use super::cooperation::{fetch, push_all};
use super::exports::{self, ExportSocket, SessionDesk};
use super::link::{LinkFrame, LinkReader, LinkWriter, OpenLink};
use super::pool::SpareLinks;
use super::program::{ProgramCommand, ProgramEvent, carry};
use super::table::LinkTable;
use crate::config::AcceptSettings;
use crate::control::{AcceptServiceStatus, AcceptStatus, AcceptedSessionStatus, Call, Order};
use crate::daemon::snapshots::{self, request::Status};

/// Time between two looks at the sessions' timers.
const TICK: Duration = Duration::from_millis(10);
/// Time between two requests to the sessions to leave a server that is drained.
const SHED_EVERY: Duration = Duration::from_millis(500);
/// Bound on the bytes of snapshots of other servers' sessions.
const HELD_MAX: usize = 256 << 20;
/// Number of snapshots that wait until they are pushed to one server.
const QUEUE: usize = 64;
/// Number of connections to applications that are remembered after their sessions have moved.
const MOVED_MAX: usize = 4096;
/// Time for connecting to an application.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Reasons for a refusal.
const NO_SERVICE: &str = "there is no such service here";
const DRAINED: &str = "the server is being drained";

/// A session and what belongs to it on this host.
struct HalfSession {
    machine: ServerSession,
    service: usize,
    transfer: StateTransfer,
    /// The connection to the application.
    program: Option<UnboundedSender<ProgramCommand>>,
    /// Number of applications that were started for the session here. Events of an earlier one do not count.
    started: u64,
    /// The local port of this connection.
    port: u16,
    /// The state that the application imports.
    import: Option<Arc<[u8]>>,
    wake: Rc<Notify>,
    /// Calls of `export_state` that wait for the snapshot with this number.
    waiting: Vec<(u64, oneshot::Sender<Status>)>,
}

/// What has happened to the sessions of a service.
#[derive(Clone, Copy, Default)]
struct HalfCounts {
    /// Sessions that began here, that came from another server, that left, and that ended here.
    opened: u64,
    came: u64,
    left: u64,
    ended: u64,
    /// Applications that could not be connected.
    failed: u64,
    /// Bytes to applications, and from them.
    received: u64,
    sent: u64,
}

struct Half {
    settings: AcceptSettings,
    /// The sessions are to leave, and new ones are refused. They are asked again at this time.
    drain: Option<Instant>,
    counts: Vec<HalfCounts>,
    /// Links that were refused.
    refused: u64,
    key: CertificateKey,
    pool: SpareLinks,
    sessions: BTreeMap<SessionId, HalfSession>,
    held: HeldSnapshots,
    links: LinkTable,
    /// The session of each connection to an application, by its local port.
    ports: BTreeMap<u16, SessionId>,
    moved: VecDeque<(SocketAddr, u16)>,
    pushers: BTreeMap<String, Sender<CooperationFrame>>,
}

type SharedHalf = Rc<RefCell<Half>>;

/// Runs for ever.
///
/// # Errors
/// The step of the start that failed.
pub async fn run(settings: AcceptSettings, calls: ControlCalls) -> anyhow::Result<()> {
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("listening at {}", settings.listen))?;
    let socket = snapshots::open(&settings.snapshot_socket).with_context(|| {
        format!(
            "the socket for snapshots at {}",
            settings.snapshot_socket.display()
        )
    })?;
    let _file = ExportSocket(settings.snapshot_socket.clone());
    tracing::info!(server = settings.name, listen = %settings.listen, sealed = settings.key.is_some(), "ready");
    let half = Rc::new(RefCell::new(Half {
        drain: None,
        counts: vec![HalfCounts::default(); settings.services.len()],
        refused: 0,
        key: CertificateKey::new(settings.certificate_key),
        pool: SpareLinks::new(settings.key),
        sessions: BTreeMap::new(),
        held: HeldSnapshots::new(HELD_MAX),
        links: LinkTable::default(),
        ports: BTreeMap::new(),
        moved: VecDeque::new(),
        pushers: BTreeMap::new(),
        settings,
    }));
    start_pushers(&half);
    tokio::task::spawn_local(exports::serve(socket, Rc::new(HalfDesk(Rc::clone(&half)))));
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::task::spawn_local(attend(Rc::clone(&half), stream))),
                Err(error) => {
                    tracing::warn!(%error, "a proxy was not accepted");
                    tokio::time::sleep(TICK).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = tick(&half) => {}
        () = calls.serve(|call| answer(&half, call)) => {}
    }
    Ok(())
}

fn start_pushers(half: &SharedHalf) {
    let servers = half.borrow().settings.servers.clone();
    let own = half.borrow().settings.name.clone();
    for server in servers.into_iter().filter(|server| server.name != own) {
        let (sender, queue) = channel(QUEUE);
        let (pool, key) = (half.borrow().pool.clone(), half.borrow().key.clone());
        pool.fill(server.address);
        let told = Rc::clone(half);
        let kept = move |message: &CooperationFrame| {
            if let CooperationFrame::Push {
                session,
                epoch,
                snapshot,
                ..
            } = message
            {
                on_session(&told, *session, |session| {
                    if session.machine.own_epoch() == *epoch {
                        session.machine.on_kept(snapshot.number);
                    }
                });
            }
        };
        tokio::task::spawn_local(push_all(pool, server.address, key, queue, kept));
        half.borrow_mut().pushers.insert(server.name, sender);
    }
}

/// Looks at the timers for ever.
async fn tick(half: &SharedHalf) {
    loop {
        tokio::time::sleep(TICK).await;
        let now = linux::clock::now();
        let is_due = |session: &HalfSession| session.machine.poll_timeout().is_some_and(|due| due <= now);
        let due: Vec<_> = {
            let mut half = half.borrow_mut();
            let life = half.settings.certificate_life; // afterwards, the session cannot move any more
            half.held.expire(now - life);
            let due = half.sessions.iter().filter(|(_, session)| is_due(session));
            due.map(|(id, _)| *id).collect()
        };
        for id in due {
            on_session(half, id, |session| session.machine.handle_timeout(now));
        }
        if half.borrow().drain.is_some_and(|next| next <= now) {
            shed_all(half, now);
        }
    }
}

/// Asks all sessions to leave. One that is moving already, or cannot move now, is asked again.
fn shed_all(half: &SharedHalf, now: Instant) {
    half.borrow_mut().drain = Some(now + SHED_EVERY);
    let ids: Vec<_> = half.borrow().sessions.keys().copied().collect();
    for id in ids {
        on_session(half, id, |session| session.machine.shed());
    }
}

/// Serves one link.
async fn attend(half: SharedHalf, stream: TcpStream) {
    let mut challenge = [0; 32];
    if let Err(error) = linux::process::fill_random(&mut challenge) {
        tracing::error!(%error, "no random bytes for a challenge; a link is refused");
        return;
    }
    let key = half.borrow().settings.key;
    let link = match OpenLink::answer(stream, key.as_ref(), challenge).await {
        Ok(link) => link,
        Err(error) => {
            tracing::debug!(error = format!("{error:#}"), "a link is refused");
            return;
        }
    };
    let (mut reader, writer) = link.split();
    match reader.read().await {
        Ok(LinkFrame::Client(frame)) => serve_proxy(&half, (reader, writer), &challenge, frame).await,
        Ok(LinkFrame::Cooperation(CooperationFrame::Hello(proof)))
            if half.borrow().key.proves_server(&challenge, &proof) =>
        {
            if let Err(error) = serve_server(&half, reader, writer).await {
                tracing::debug!(error = format!("{error:#}"), "another server's link ended");
            }
        }
        Ok(_) => tracing::warn!("a link is refused: it begins with a message that gives no right"),
        Err(_) => {} // a spare link that was not needed
    }
}

/// Serves the link of a proxy, which belongs to one session.
async fn serve_proxy(
    half: &SharedHalf,
    link: (LinkReader, LinkWriter),
    challenge: &[u8; 32],
    first: ClientFrame,
) {
    let mut reader = half.borrow_mut().links.add(link, false);
    let number = reader.number;
    let session = match first {
        ClientFrame::Open { service, transfer } => open(half, number, &service, transfer),
        ClientFrame::Attach(request) => attach(half, number, challenge, request),
        _ => None,
    };
    if let Some(id) = session {
        while let Some(LinkFrame::Client(frame)) = reader.next().await {
            let now = linux::clock::now();
            on_session(half, id, |session| {
                session.machine.handle_frame(now, number, frame)
            });
        }
        on_session(half, id, |session| session.machine.on_link_lost(number));
    }
    half.borrow_mut().links.remove(number);
}

fn refuse(half: &SharedHalf, link: SessionLink, why: &str) {
    tracing::warn!(reason = why, "a session is refused");
    let mut half = half.borrow_mut();
    half.refused += 1;
    let frame = LinkFrame::Server(ServerFrame::Refused(why.to_owned()));
    half.links.send(link, frame);
}

fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl HalfCounts {
    fn on_phase(&mut self, before: ServerPhase, after: ServerPhase) {
        match (before.runs(), after.runs()) {
            (false, true) => self.came += 1,
            (true, false) if after == ServerPhase::Over => self.ended += 1,
            (true, false) => self.left += 1,
            (true, true) | (false, false) => {}
        }
    }

    fn on_event(&mut self, event: &ProgramEvent<'_>) {
        match event {
            ProgramEvent::Data(bytes) => self.sent += bytes.len() as u64,
            ProgramEvent::Took(count) => self.received += *count as u64,
            ProgramEvent::End | ProgramEvent::Gone => {}
        }
    }
}

impl Half {
    fn config(&self) -> ServerSessionConfig {
        ServerSessionConfig {
            lease: self.settings.lease,
            keep: self.settings.keep,
        }
    }

    fn service(&self, name: &str) -> Option<usize> {
        self.settings.services.iter().position(|(known, _)| known == name)
    }

    fn address_of(&self, server: &str) -> Option<SocketAddr> {
        let mut others = self
            .settings
            .servers
            .iter()
            .filter(|known| known.name != self.settings.name);
        others
            .find(|known| known.name == server)
            .map(|known| known.address)
    }

    /// Number of sessions that this server owns.
    fn live(&self) -> usize {
        let phases = self.sessions.values().map(|session| session.machine.phase());
        phases.filter(|phase| phase.runs()).count()
    }

    fn insert(&mut self, id: SessionId, machine: ServerSession, service: usize, transfer: StateTransfer) {
        let session = HalfSession {
            machine,
            service,
            transfer,
            program: None,
            started: 0,
            port: 0,
            import: None,
            wake: Rc::new(Notify::new()),
            waiting: Vec::new(),
        };
        self.sessions.insert(id, session);
    }
}

fn open(half: &SharedHalf, link: u64, service: &str, transfer: StateTransfer) -> Option<SessionId> {
    let mut id = SessionId::default();
    if let Err(error) = linux::process::fill_random(&mut id.0) {
        tracing::error!(%error, "no random bytes for a session's name");
        return None;
    }
    let Some(index) = half.borrow().service(service) else {
        refuse(half, link, NO_SERVICE);
        return None;
    };
    if half.borrow().drain.is_some() {
        refuse(half, link, DRAINED);
        return None;
    }
    let now = linux::clock::now();
    {
        let mut half = half.borrow_mut();
        half.counts[index].opened += 1;
        let expires = seconds_now() + half.settings.certificate_life.as_secs();
        let (certificate, secret) = half.key.issue(id, service, expires);
        let opened = ServerFrame::Opened {
            certificate,
            secret,
            servers: half.settings.servers.clone(),
            owner: half.settings.name.clone(),
            lease_ms: u64::try_from(half.settings.lease.as_millis()).unwrap_or(u64::MAX),
        };
        let machine = ServerSession::open(now, half.config(), transfer, link, opened);
        half.insert(id, machine, index, transfer);
    }
    let live = half.borrow().live();
    let sheds = live > half.borrow().settings.shed_above;
    on_session(half, id, |session| {
        if sheds {
            session.machine.shed();
        }
    });
    Some(id)
}

fn attach(half: &SharedHalf, link: u64, challenge: &[u8; 32], request: AttachRequest) -> Option<SessionId> {
    let (now, certificate) = (linux::clock::now(), &request.certificate);
    let id = certificate.session;
    let service = certificate.service.clone();
    let checked = half.borrow().key.check(
        certificate,
        &request.proof,
        (challenge, request.epoch),
        &service,
        seconds_now(),
    );
    if let Err(error) = checked {
        refuse(half, link, &error.to_string());
        return None;
    }
    let Some(index) = half.borrow().service(&service) else {
        refuse(half, link, NO_SERVICE);
        return None;
    };
    let is_new = !half.borrow().sessions.contains_key(&id);
    if is_new && half.borrow().drain.is_some() {
        refuse(half, link, DRAINED);
        return None;
    }
    let held = {
        let mut half = half.borrow_mut();
        if is_new {
            let machine = ServerSession::empty(now, half.config(), request.transfer);
            half.insert(id, machine, index, request.transfer);
        }
        half.held.find(id, request.point.number).cloned()
    };
    on_session(half, id, |session| {
        session.machine.handle_attach(now, link, request, held)
    });
    Some(id)
}

/// Answers another server's questions.
async fn serve_server(
    half: &SharedHalf,
    mut reader: LinkReader,
    mut writer: LinkWriter,
) -> anyhow::Result<()> {
    loop {
        let LinkFrame::Cooperation(question) = reader.read().await? else {
            anyhow::bail!("a message of a proxy");
        };
        let now = linux::clock::now();
        let answer = match question {
            CooperationFrame::Fetch(id, epoch) => {
                let mut bundle = Err("the session is not known here".to_owned());
                on_session(half, id, |session| {
                    bundle = session.machine.handle_fetch(now, epoch)
                });
                CooperationFrame::Bundle(bundle.map(Box::new))
            }
            CooperationFrame::Push {
                session,
                epoch,
                snapshot,
                point,
            } => {
                let is_kept = half
                    .borrow_mut()
                    .held
                    .push(now, (session, epoch), snapshot, point);
                if is_kept {
                    CooperationFrame::Kept
                } else {
                    CooperationFrame::Bundle(Err("there is no room".to_owned()))
                }
            }
            CooperationFrame::Ended(session) => {
                half.borrow_mut().held.forget(session);
                CooperationFrame::Kept
            }
            CooperationFrame::Hello(_) | CooperationFrame::Bundle(_) | CooperationFrame::Kept => {
                anyhow::bail!("not a question");
            }
        };
        writer.write(&LinkFrame::Cooperation(answer)).await?;
    }
}

/// Changes a session, and carries out what follows.
fn on_session(half: &SharedHalf, id: SessionId, change: impl FnOnce(&mut HalfSession)) {
    {
        let half = &mut *half.borrow_mut();
        if let Some(session) = half.sessions.get_mut(&id) {
            let before = session.machine.phase();
            change(session);
            half.counts[session.service].on_phase(before, session.machine.phase());
        }
    }
    loop {
        let next = {
            let mut half = half.borrow_mut();
            let Some(session) = half.sessions.get_mut(&id) else {
                return;
            };
            session.wake.notify_one();
            session.machine.poll_action()
        };
        match next {
            Some(action) => carry_out(half, id, action),
            None => return,
        }
    }
}

fn carry_out(shared: &SharedHalf, id: SessionId, action: ServerAction) {
    let mut half = shared.borrow_mut();
    let half = &mut *half;
    let Some(session) = half.sessions.get_mut(&id) else {
        return;
    };
    let command = |session: &HalfSession, command| {
        if let Some(program) = &session.program {
            let _ = program.send(command); // fails if the connection has ended
        }
    };
    match action {
        ServerAction::Send(link, frame) => half.links.send(link, LinkFrame::Server(frame)),
        ServerAction::StartApplication(state) => {
            session.import = state;
            let (sender, commands) = unbounded_channel();
            session.program = Some(sender);
            session.started += 1;
            let application = half.settings.services[session.service].1;
            let start = Application {
                id,
                service: session.service,
                address: application,
                number: session.started,
            };
            tokio::task::spawn_local(start.run(Rc::clone(shared), commands, Rc::clone(&session.wake)));
        }
        ServerAction::ToApplication(bytes) => command(session, ProgramCommand::Write(bytes)),
        ServerAction::EndApplication => command(session, ProgramCommand::End),
        ServerAction::StopApplication => stop(half, id),
        ServerAction::Push { snapshot, point } => {
            let epoch = session.machine.own_epoch();
            for pusher in half.pushers.values() {
                let push = CooperationFrame::Push {
                    session: id,
                    epoch,
                    snapshot: snapshot.clone(),
                    point,
                };
                let _ = pusher.try_send(push); // if the queue is full, a later snapshot replaces this one
            }
        }
        ServerAction::Fetch { owner, epoch } => begin_fetch(shared, half, id, owner, epoch),
        ServerAction::Kept(number) => {
            let (kept, waiting) = session.waiting.drain(..).partition(|(waits, _)| *waits <= number);
            session.waiting = waiting;
            let kept: Vec<_> = kept;
            for (_, call) in kept {
                let _ = call.send(Status::Done);
            }
        }
        ServerAction::Forget => forget(half, id),
    }
}

/// Aborts the connection to the application. The application is told that the session has moved.
fn stop(half: &mut Half, id: SessionId) {
    let Some(session) = half.sessions.get_mut(&id) else {
        return;
    };
    if let Some(program) = session.program.take() {
        let _ = program.send(ProgramCommand::Abort); // fails if the connection has ended
    }
    for (_, call) in session.waiting.drain(..) {
        let _ = call.send(Status::Moved);
    }
    if half.moved.len() == MOVED_MAX {
        half.moved.pop_front();
    }
    half.moved
        .push_back((half.settings.services[session.service].1, session.port));
    half.ports.remove(&session.port);
}

/// Fetches a session's state from its owner, in the background.
fn begin_fetch(shared: &SharedHalf, half: &Half, id: SessionId, owner: String, epoch: u64) {
    let (pool, key) = (half.pool.clone(), half.key.clone());
    let address = half.address_of(&owner);
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move {
        let fetched = match address {
            Some(address) => fetch(&pool, address, &key, id, epoch).await,
            None => Err(anyhow::anyhow!(
                "the owner {owner} is no other cooperating server"
            )),
        };
        let now = linux::clock::now();
        on_session(&shared, id, |session| match fetched {
            Ok(bundle) => session.machine.on_fetched(now, epoch, bundle),
            Err(error) => session.machine.on_fetch_failed(now, epoch, &format!("{error:#}")),
        });
    });
}

fn forget(half: &mut Half, id: SessionId) {
    let Some(session) = half.sessions.remove(&id) else {
        return;
    };
    half.ports.remove(&session.port);
    // Without a link, another server owns the session. This server may hold the snapshots that the owner pushes.
    let has_ended = session.machine.link().is_some();
    if has_ended && session.transfer == StateTransfer::Eager {
        half.held.forget(id);
        for pusher in half.pushers.values() {
            let _ = pusher.try_send(CooperationFrame::Ended(id)); // if the queue is full, the snapshots expire
        }
    }
}

/// A connection to an application that is being made.
struct Application {
    id: SessionId,
    service: usize,
    address: SocketAddr,
    number: u64,
}

impl Application {
    async fn run(
        self,
        half: SharedHalf,
        commands: tokio::sync::mpsc::UnboundedReceiver<ProgramCommand>,
        wake: Rc<Notify>,
    ) {
        let (id, service, number) = (self.id, self.service, self.number);
        let is_current = |session: &HalfSession| session.started == number && session.program.is_some();
        let connected = tokio::time::timeout(CONNECT_MAX, self.connect(&half)).await;
        let stream = match connected.map_err(anyhow::Error::from).and_then(|done| done) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(application = %self.address, error = format!("{error:#}"), "the application cannot be connected");
                half.borrow_mut().counts[self.service].failed += 1;
                let now = linux::clock::now();
                return on_session(&half, id, |session| {
                    if is_current(session) {
                        session.machine.on_start_failed(now);
                    }
                });
            }
        };
        let wants = || {
            let half = half.borrow();
            let session = half.sessions.get(&id);
            session.is_none_or(|session| session.machine.wants_output())
        };
        let on = |event: ProgramEvent<'_>| {
            let now = linux::clock::now();
            half.borrow_mut().counts[service].on_event(&event);
            on_session(&half, id, |session| {
                if !is_current(session) {
                    return;
                }
                let machine = &mut session.machine;
                match event {
                    ProgramEvent::Data(bytes) => machine.on_application_data(now, bytes),
                    ProgramEvent::End => machine.on_application_end(now),
                    ProgramEvent::Took(count) => machine.on_application_took(now, count),
                    ProgramEvent::Gone => machine.on_application_gone(now),
                }
            });
        };
        carry(stream, commands, wake, wants, on).await;
    }

    /// Connects. The local port is known before, because the application may import its state at once.
    async fn connect(&self, half: &SharedHalf) -> anyhow::Result<TcpStream> {
        let (socket, any) = match self.address {
            SocketAddr::V4(_) => (TcpSocket::new_v4()?, "0.0.0.0:0"),
            SocketAddr::V6(_) => (TcpSocket::new_v6()?, "[::]:0"),
        };
        socket.bind(any.parse()?)?;
        let port = socket.local_addr()?.port();
        {
            let mut half = half.borrow_mut();
            half.moved.retain(|moved| *moved != (self.address, port));
            half.ports.insert(port, self.id);
            if let Some(session) = half.sessions.get_mut(&self.id) {
                session.port = port;
            }
        }
        Ok(socket.connect(self.address).await?)
    }
}

/// Answers the control socket and the metrics.
fn answer(half: &SharedHalf, call: Call) {
    match call {
        Call::Accept(reply) => reply.send(status(&half.borrow())),
        Call::Order(
            Order::Leave {
                service: None,
                leaves,
            },
            reply,
        ) => {
            tracing::info!(leaves, "the operator drains this server, or ends the drain");
            half.borrow_mut().drain = None;
            if leaves {
                shed_all(half, linux::clock::now());
            }
            reply.send(Ok(()));
        }
        Call::Order(_, reply) => reply.send(Err("a server of sessions can only be drained".to_owned())),
        _ => {} // dropped unanswered, and its sender gets an error
    }
}

fn status(half: &Half) -> AcceptStatus {
    let services = half.settings.services.iter().zip(&half.counts);
    let services = services.map(|((name, application), counts)| AcceptServiceStatus {
        name: name.clone(),
        application: *application,
        opened: counts.opened,
        came: counts.came,
        left: counts.left,
        ended: counts.ended,
        failed: counts.failed,
        received_bytes: counts.received,
        sent_bytes: counts.sent,
    });
    let mut sessions: BTreeMap<_, _> = half
        .sessions
        .iter()
        .map(|(id, session)| (*id, session_status(half, *id, session)))
        .collect();
    for (id, epoch, sizes) in half.held.sessions() {
        let held = sessions.entry(id).or_insert_with(|| AcceptedSessionStatus {
            session: hexadecimal(id),
            state: "copy".to_owned(),
            epoch,
            ..AcceptedSessionStatus::default()
        });
        for size in sizes {
            held.snapshots += 1;
            held.snapshot_bytes += size as u64;
        }
    }
    AcceptStatus {
        name: half.settings.name.clone(),
        sealed: half.settings.key.is_some(),
        draining: half.drain.is_some(),
        refused: half.refused,
        services: services.collect(),
        sessions: sessions.into_values().collect(),
    }
}

fn session_status(half: &Half, id: SessionId, session: &HalfSession) -> AcceptedSessionStatus {
    let machine = &session.machine;
    let state = match machine.phase() {
        ServerPhase::Live => "owner",
        ServerPhase::Parked => "parked",
        ServerPhase::Prepared => "prepared",
        ServerPhase::Empty | ServerPhase::Over => "empty",
    };
    let holding = machine.holding();
    AcceptedSessionStatus {
        session: hexadecimal(id),
        service: Some(half.settings.services[session.service].0.clone()),
        proxy: machine.link().and_then(|link| half.links.peer(link)),
        state: state.to_owned(),
        epoch: machine.own_epoch(),
        snapshots: holding.snapshots as u64,
        snapshot_bytes: holding.snapshot_bytes as u64,
        log_bytes: holding.log_bytes as u64,
        received_bytes: holding.input.0,
        sent_bytes: holding.output.0,
    }
}

fn hexadecimal(id: SessionId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The sessions, as applications see them.
struct HalfDesk(SharedHalf);

impl HalfDesk {
    /// The session of an application's connection.
    fn find(&self, at: &ApplicationProgress) -> Result<SessionId, Status> {
        let half = self.0.borrow();
        let is_service = half
            .settings
            .services
            .iter()
            .any(|(_, address)| *address == at.local);
        if half.moved.contains(&(at.local, at.peer.port())) {
            return Err(Status::Moved);
        }
        match half.ports.get(&at.peer.port()) {
            Some(id) if is_service => Ok(*id),
            _ => Err(Status::NotProtected),
        }
    }
}

impl SessionDesk for HalfDesk {
    fn export(
        &self,
        at: &ApplicationProgress,
        state: Arc<[u8]>,
        waits: bool,
    ) -> Result<Option<oneshot::Receiver<Status>>, Status> {
        let id = self.find(at)?;
        let (now, mut outcome) = (linux::clock::now(), Err(Status::Moved));
        on_session(&self.0, id, |session| {
            if let Some(number) = session.machine.on_export(now, state, (at.read, at.written)) {
                let is_kept_elsewhere = session.transfer != StateTransfer::Lazy;
                outcome = Ok((waits && is_kept_elsewhere).then(|| {
                    let (call, outcome) = oneshot::channel();
                    session.waiting.push((number, call));
                    outcome
                }));
            }
        });
        outcome
    }

    fn import(&self, at: &ApplicationProgress) -> Result<Option<Arc<[u8]>>, Status> {
        let id = self.find(at)?;
        let half = self.0.borrow();
        let session = half.sessions.get(&id).ok_or(Status::Ended)?;
        match session.machine.phase() {
            ServerPhase::Live => Ok(session.import.clone()),
            ServerPhase::Empty | ServerPhase::Prepared | ServerPhase::Parked | ServerPhase::Over => {
                Err(Status::Moved)
            }
        }
    }

    fn ended(&self, application: SocketAddr) -> Status {
        let half = self.0.borrow();
        if half.moved.iter().any(|(moved, _)| *moved == application) {
            return Status::Moved;
        }
        let is_service = half
            .settings
            .services
            .iter()
            .any(|(_, address)| *address == application);
        if is_service {
            Status::Ended
        } else {
            Status::NotProtected
        }
    }
}
