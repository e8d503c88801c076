//! The proxy on a client's host: `steadfast connect` (docs/connect.md).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use proto::Instant;
use proto::session::ClientPhase;
use proto::session::client::{ClientAction, ClientSession, SessionReport};
use proto::session::frame::CooperatingServer;
use proto::session::server::SessionLink;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::calls::ControlCalls;
use super::link::{LinkFrame, OpenLink};
use super::pool::SpareLinks;
use super::program::{ProgramCommand, ProgramEvent, carry, join};
use super::table::LinkTable;
use super::watch::SessionWatch;
use crate::config::{ConnectService, ConnectSettings};
use crate::control::{
    Call, ChosenClient, ConnectServiceStatus, ConnectStatus, MigrationStatus, Order, SessionStatus,
};

/// Time between two looks at the sessions' timers.
const TICK: Duration = Duration::from_millis(5);
/// Time for a plain connection.
const PLAIN_MAX: Duration = Duration::from_secs(10);
/// Number of reasons that are kept for the operator.
const REASONS_MAX: usize = 16;

/// A session and what belongs to it on this host.
struct ProxySession {
    machine: ClientSession,
    service: usize,
    client: SocketAddr,
    program: UnboundedSender<ProgramCommand>,
    wake: Rc<Notify>,
    watch: SessionWatch,
    /// The operator wants it to be at this server, until this time.
    ordered: Option<(String, Instant)>,
    /// Places in the service's list of the servers that have refused the new session.
    refusals: Vec<usize>,
}

/// What has happened to the sessions of a service.
#[derive(Default)]
struct ServiceCounts {
    opened: u64,
    plain: u64,
    refused: u64,
    lost: u64,
    moved: u64,
    stayed: u64,
    /// Bytes from client programs, and to them.
    sent: u64,
    received: u64,
    reasons: VecDeque<(SocketAddr, String)>,
}

struct SessionProxy {
    settings: ConnectSettings,
    pool: SpareLinks,
    sessions: BTreeMap<u64, ProxySession>,
    next_session: u64,
    links: LinkTable,
    counts: Vec<ServiceCounts>,
    /// The server that has opened the last session, for each service.
    preferred: Vec<usize>,
}

type SharedProxy = Rc<RefCell<SessionProxy>>;

/// Runs for ever.
///
/// # Errors
/// The step of the start that failed.
pub async fn run(settings: ConnectSettings, calls: ControlCalls) -> anyhow::Result<()> {
    let mut listeners = Vec::new();
    for service in &settings.services {
        let listener = TcpListener::bind(service.listen).await;
        listeners
            .push(listener.with_context(|| format!("listening at {} for {}", service.listen, service.name))?);
    }
    let count = settings.services.len();
    tracing::info!(
        proxy = settings.name,
        sealed = settings.key.is_some(),
        services = count,
        "ready"
    );
    let proxy = Rc::new(RefCell::new(SessionProxy {
        pool: SpareLinks::new(settings.key),
        sessions: BTreeMap::new(),
        next_session: 0,
        links: LinkTable::default(),
        counts: (0..count).map(|_| ServiceCounts::default()).collect(),
        preferred: vec![0; count],
        settings,
    }));
    for (service, listener) in listeners.into_iter().enumerate() {
        tokio::task::spawn_local(accept(Rc::clone(&proxy), service, listener));
    }
    tokio::select! {
        () = tick(&proxy) => {}
        () = calls.serve(|call| answer(&proxy, call)) => {}
    }
    Ok(())
}

async fn accept(proxy: SharedProxy, service: usize, listener: TcpListener) {
    let servers = proxy.borrow().settings.services[service].servers.clone();
    servers
        .into_iter()
        .for_each(|server| proxy.borrow().pool.fill(server));
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                tokio::task::spawn_local(serve(Rc::clone(&proxy), service, stream, client));
            }
            Err(error) => {
                tracing::warn!(%error, "a client program was not accepted");
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

/// Serves one client program: by a session, or by a plain connection if no server speaks the protocol.
async fn serve(proxy: SharedProxy, service: usize, stream: TcpStream, client: SocketAddr) {
    let (config, pool, preferred) = {
        let proxy = proxy.borrow();
        (
            proxy.settings.services[service].clone(),
            proxy.pool.clone(),
            proxy.preferred[service],
        )
    };
    let count = config.servers.len();
    for place in (0..count).map(|by| (preferred + by) % count) {
        let server = config.servers[place];
        match pool.take(server).await {
            Ok(link) => {
                proxy.borrow_mut().preferred[service] = place;
                return carry_session(proxy, (service, &config), (stream, client), (place, link)).await;
            }
            Err(error) => {
                tracing::info!(service = config.name, %server, error = format!("{error:#}"), "no session there");
            }
        }
    }
    let plain = match config.plain {
        Some(plain) => tokio::time::timeout(PLAIN_MAX, TcpStream::connect(plain)).await,
        None => Ok(Err(std::io::ErrorKind::ConnectionRefused.into())),
    };
    match plain {
        Ok(Ok(server)) => {
            proxy.borrow_mut().counts[service].plain += 1;
            let _ = (stream.set_nodelay(true), server.set_nodelay(true));
            if let Err(error) = join(stream, server).await {
                tracing::debug!(%error, "a plain connection has failed");
            }
        }
        Ok(Err(_)) | Err(_) => {
            proxy.borrow_mut().counts[service].refused += 1;
            tracing::warn!(service = config.name, %client, "a client program is refused: no server can be reached");
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
    }
}

async fn carry_session(
    proxy: SharedProxy,
    (service, config): (usize, &ConnectService),
    (stream, client): (TcpStream, SocketAddr),
    (place, link): (usize, OpenLink),
) {
    let now = linux::clock::now();
    let (program, commands) = unbounded_channel();
    let wake = Rc::new(Notify::new());
    let id = {
        let mut proxy = proxy.borrow_mut();
        proxy.next_session += 1;
        proxy.next_session
    };
    let watch = SessionWatch::new(now, config.policy, config.hysteresis);
    let number = add_link(&proxy, id, link, watch.needs_retransmissions());
    {
        let mut proxy = proxy.borrow_mut();
        let patience = proxy.settings.patience;
        let session = ProxySession {
            machine: ClientSession::open(now, number, &config.name, config.transfer, patience),
            service,
            client,
            program,
            wake: Rc::clone(&wake),
            watch,
            ordered: None,
            refusals: vec![place],
        };
        proxy.counts[service].opened += 1;
        proxy.sessions.insert(id, session);
    }
    on_session(&proxy, id, |_| {});
    let wants = || {
        let proxy = proxy.borrow();
        proxy
            .sessions
            .get(&id)
            .is_none_or(|session| session.machine.wants_input())
    };
    let on = |event: ProgramEvent<'_>| {
        let now = linux::clock::now();
        count(&mut proxy.borrow_mut().counts[service], &event);
        on_session(&proxy, id, |session| match event {
            ProgramEvent::Data(bytes) => {
                session.watch.on_input(now);
                session.machine.on_client_data(bytes);
            }
            ProgramEvent::End => session.machine.on_client_end(),
            ProgramEvent::Took(count) => session.machine.on_client_took(count),
            ProgramEvent::Gone => session.machine.on_client_reset(),
        });
    };
    carry(stream, commands, wake, wants, on).await;
}

fn count(counts: &mut ServiceCounts, event: &ProgramEvent<'_>) {
    match event {
        ProgramEvent::Data(bytes) => counts.sent += bytes.len() as u64,
        ProgramEvent::Took(count) => counts.received += *count as u64,
        ProgramEvent::End | ProgramEvent::Gone => {}
    }
}

/// Serves a link of a session. Returns its number.
fn add_link(proxy: &SharedProxy, session: u64, link: OpenLink, is_watched: bool) -> SessionLink {
    let mut reader = proxy.borrow_mut().links.add(link.split(), is_watched);
    let number = reader.number;
    let proxy = Rc::clone(proxy);
    tokio::task::spawn_local(async move {
        while let Some(LinkFrame::Server(frame)) = reader.next().await {
            let now = linux::clock::now();
            let mut left = None;
            on_session(&proxy, session, |session| {
                let before = session.machine.received();
                session.machine.handle_frame(now, number, frame);
                let count = session.machine.received().since(before);
                if count > 0 && session.watch.on_output(now, usize::try_from(count).unwrap_or(0)) {
                    left = leave_owner(session, now);
                }
            });
            if let Some(left) = left {
                move_group(&proxy, session, left, now);
            }
        }
        proxy.borrow_mut().links.remove(number);
        let now = linux::clock::now();
        on_session(&proxy, session, |session| {
            session.machine.on_link_lost(now, number)
        });
    });
    number
}

/// Looks at the timers for ever.
async fn tick(proxy: &SharedProxy) {
    loop {
        tokio::time::sleep(TICK).await;
        let now = linux::clock::now();
        let ids: Vec<_> = proxy.borrow().sessions.keys().copied().collect();
        for id in ids {
            let retransmissions = retransmissions(proxy, id);
            let mut left = None;
            on_session(proxy, id, |session| {
                if session.machine.poll_timeout().is_some_and(|due| due <= now) {
                    session.machine.handle_timeout(now);
                }
                if session.watch.on_time(now, retransmissions) {
                    left = leave_owner(session, now);
                }
                follow_order(session, now);
            });
            if let Some(left) = left {
                move_group(proxy, id, left, now);
            }
        }
    }
}

/// The policy says that the session's owner is bad. Returns the session's service and client if the session moves now. It may be moving
/// already.
fn leave_owner(session: &mut ProxySession, now: Instant) -> Option<(usize, SocketAddr)> {
    let ordered = session.machine.order_move(now, None);
    session.watch.on_failure(now); // the next attempt waits, whatever becomes of this one
    ordered.ok().map(|()| (session.service, session.client))
}

/// The other sessions of the client's host move too, if the service says so.
fn move_group(proxy: &SharedProxy, first: u64, (service, client): (usize, SocketAddr), now: Instant) {
    if !proxy.borrow().settings.services[service].group {
        return;
    }
    let is_of_group =
        |session: &ProxySession| session.service == service && session.client.ip() == client.ip();
    let others: Vec<_> = {
        let proxy = proxy.borrow();
        let others = proxy
            .sessions
            .iter()
            .filter(|(id, session)| **id != first && is_of_group(session));
        others.map(|(id, _)| *id).collect()
    };
    for id in others {
        on_session(proxy, id, |session| drop(session.machine.order_move(now, None)));
    }
}

fn retransmissions(proxy: &SharedProxy, id: u64) -> u32 {
    let proxy = proxy.borrow();
    let link = proxy.sessions.get(&id).and_then(|session| session.machine.link());
    link.and_then(|link| proxy.links.retransmissions(link))
        .unwrap_or(0)
}

/// An order of the operator holds until the session is where it is to be, or the time is over.
fn follow_order(session: &mut ProxySession, now: Instant) {
    let Some((to, until)) = &session.ordered else {
        return;
    };
    if session.machine.owner() == to || now >= *until {
        session.ordered = None;
    } else if session.machine.phase() == ClientPhase::Served {
        let _ = session.machine.order_move(now, Some(to)); // it is tried again
    }
}

/// Changes a session, and carries out what follows.
fn on_session(proxy: &SharedProxy, id: u64, change: impl FnOnce(&mut ProxySession)) {
    if let Some(session) = proxy.borrow_mut().sessions.get_mut(&id) {
        change(session);
    }
    loop {
        let next = {
            let mut proxy = proxy.borrow_mut();
            let Some(session) = proxy.sessions.get_mut(&id) else {
                return;
            };
            session.wake.notify_one();
            let next = session.machine.poll_action();
            if next.is_none() && session.machine.phase() == ClientPhase::Over {
                proxy.sessions.remove(&id);
            }
            next
        };
        match next {
            Some(action) => carry_out(proxy, id, action),
            None => return,
        }
    }
}

fn carry_out(shared: &SharedProxy, id: u64, action: ClientAction) {
    let mut proxy = shared.borrow_mut();
    let proxy = &mut *proxy;
    let Some(session) = proxy.sessions.get_mut(&id) else {
        return;
    };
    let to_program = |command| drop(session.program.send(command)); // fails if the program has gone
    match action {
        ClientAction::Send(link, frame) => proxy.links.send(link, LinkFrame::Client(frame)),
        ClientAction::CloseLink(link) => proxy.links.close(link),
        ClientAction::OpenElsewhere(why) => {
            let servers = &proxy.settings.services[session.service].servers;
            let place = (0..servers.len()).find(|place| !session.refusals.contains(place));
            tracing::info!(client = %session.client, reason = why, "a server refuses a new session");
            session.refusals.extend(place);
            let next = place.map(|place| servers[place]);
            let pool = proxy.pool.clone();
            tokio::task::spawn_local(open_elsewhere(Rc::clone(shared), pool, id, (next, why)));
        }
        ClientAction::ToClient(bytes) => to_program(ProgramCommand::Write(bytes)),
        ClientAction::EndClient => to_program(ProgramCommand::End),
        ClientAction::ResetClient => to_program(ProgramCommand::Abort),
        ClientAction::Connect { attempt, server } => {
            let pool = proxy.pool.clone();
            tokio::task::spawn_local(connect(Rc::clone(shared), pool, id, attempt, server));
        }
        ClientAction::Report(report) => {
            let now = linux::clock::now();
            note(&mut proxy.counts[session.service], session, now, report);
        }
    }
}

async fn connect(proxy: SharedProxy, pool: SpareLinks, id: u64, attempt: u64, server: CooperatingServer) {
    let link = pool.take(server.address).await;
    let now = linux::clock::now();
    match link {
        Ok(link) => {
            let challenge = link.challenge;
            let number = add_link(&proxy, id, link, needs_retransmissions(&proxy, id));
            on_session(&proxy, id, |session| {
                session.machine.on_linked(now, attempt, number, &challenge)
            });
        }
        Err(error) => {
            let why = format!("{error:#}");
            on_session(&proxy, id, |session| {
                session.machine.on_connect_failed(now, attempt, &why)
            });
        }
    }
}

/// Connects a new session to the next server of the list. `None`: all have refused it.
async fn open_elsewhere(
    proxy: SharedProxy,
    pool: SpareLinks,
    id: u64,
    (next, why): (Option<SocketAddr>, String),
) {
    let link = match next {
        Some(server) => pool.take(server).await,
        None => Err(anyhow::anyhow!("all servers refuse the session: {why}")),
    };
    let now = linux::clock::now();
    match link {
        Ok(link) => {
            let number = add_link(&proxy, id, link, needs_retransmissions(&proxy, id));
            on_session(&proxy, id, |session| session.machine.open_elsewhere(now, number));
        }
        Err(error) => on_session(&proxy, id, |session| {
            session.machine.on_refused_everywhere(&format!("{error:#}"));
        }),
    }
}

fn needs_retransmissions(proxy: &SharedProxy, id: u64) -> bool {
    let proxy = proxy.borrow();
    let session = proxy.sessions.get(&id);
    session.is_some_and(|session| session.watch.needs_retransmissions())
}

fn note(counts: &mut ServiceCounts, session: &mut ProxySession, now: Instant, report: SessionReport) {
    let client = session.client;
    match report {
        SessionReport::Moved { from, to, took } => {
            counts.moved += 1;
            session.watch.on_move(now);
            tracing::info!(%client, from, to, took_us = took.as_micros(), "a session has moved");
        }
        SessionReport::Failed(server, why) => {
            counts.stayed += 1;
            session.watch.on_failure(now);
            counts.reasons.truncate(REASONS_MAX - 1);
            counts.reasons.push_front((client, format!("{server}: {why}")));
            tracing::info!(%client, server, reason = why, "a session cannot move there now");
        }
        SessionReport::Shed => {
            tracing::info!(%client, "the server has too much to do; the session moves");
            let _ = session.machine.order_move(now, None); // it may be moving already
        }
        SessionReport::Lost(why) => {
            counts.lost += 1;
            tracing::warn!(%client, reason = why, "a session is lost, and its client program's connection is reset");
        }
    }
}

/// Answers the control socket.
fn answer(proxy: &SharedProxy, call: Call) {
    match call {
        Call::Connect(reply) => reply.send(status(&proxy.borrow())),
        Call::Order(
            Order::Migrate {
                service,
                to,
                client,
                within_ms,
            },
            reply,
        ) => {
            reply.send(order(
                proxy,
                &service,
                &to,
                client,
                Duration::from_millis(within_ms),
            ));
        }
        Call::Order(_, reply) => reply.send(Err("a proxy only moves sessions".to_owned())),
        _ => {} // dropped unanswered, and its sender gets an error
    }
}

fn order(
    proxy: &SharedProxy,
    service: &str,
    to: &str,
    client: Option<ChosenClient>,
    within: Duration,
) -> Result<(), String> {
    let now = linux::clock::now();
    let ids: Vec<_> = {
        let proxy = proxy.borrow();
        let index = proxy
            .settings
            .services
            .iter()
            .position(|known| known.name == service);
        let index = index.ok_or_else(|| format!("there is no service {service}"))?;
        let is_chosen = |session: &ProxySession| {
            session.service == index && client.is_none_or(|client| client.has(&session.client))
        };
        let chosen = proxy.sessions.iter().filter(|(_, session)| is_chosen(session));
        chosen.map(|(id, _)| *id).collect()
    };
    for id in ids {
        on_session(proxy, id, |session| {
            session.ordered = Some((to.to_owned(), now + within));
            follow_order(session, now);
        });
    }
    Ok(())
}

fn status(proxy: &SessionProxy) -> ConnectStatus {
    let services = proxy
        .settings
        .services
        .iter()
        .enumerate()
        .map(|(index, service)| {
            let counts = &proxy.counts[index];
            let sessions = proxy.sessions.values().filter(|session| session.service == index);
            let shown = |session: &ProxySession| SessionStatus {
                client: session.client,
                server: session.machine.owner().to_owned(),
                phase: format!("{:?}", session.machine.phase()).to_lowercase(),
                sent_bytes: session.machine.sent().0,
                received_bytes: session.machine.received().0,
            };
            ConnectServiceStatus {
                name: service.name.clone(),
                listen: service.listen,
                sessions: sessions.clone().map(shown).collect(),
                opened: counts.opened,
                plain: counts.plain,
                refused: counts.refused,
                lost: counts.lost,
                sent_bytes: counts.sent,
                received_bytes: counts.received,
                migrations: MigrationStatus {
                    pending: sessions.filter(|session| session.ordered.is_some()).count(),
                    moved: counts.moved,
                    stayed: counts.stayed,
                    reasons: counts.reasons.iter().cloned().collect(),
                },
            }
        });
    ConnectStatus {
        name: proxy.settings.name.clone(),
        sealed: proxy.settings.key.is_some(),
        services: services.collect(),
    }
}
