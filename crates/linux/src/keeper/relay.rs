//! One connection's life in the keeper.
//!
//! ```text
//!                       ┌─ silent, finished ─────────────────────────────┐
//!  adopted ─┬─ idle ─ connecting ─ resuming ─ relaying ─ half-closed ─ draining ─ closed
//!           └─ replica ────────────┘      └────────┴──── failure ── delivering ── reset
//! ```
//!
//! A failure ends the connection with a reset. The reset waits until the client has acknowledged the output that was sent before the
//! failure. Otherwise the reset would make the kernel drop the unacknowledged output, for example the rest of an earlier reply.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use proto::connection::OutputEnd;
use proto::restart::catch_up::CatchUp;
use proto::restart::{http, replay, replica};
use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::channel::Blob;
use super::filter::{OutputFilter, RelayAbort};
use super::flow::{self, Outgoing};
use super::kept::{Keeper, KeptConnection};
use super::message::AdoptionPlan;
use super::sent::SentBefore;
use super::status::{ConnectionEnding, RelayState};
use crate::application::{UNSENT_MAX, bound_unsent};
use crate::repair::acknowledged_so_far;
use crate::transparent::connect_as;
use crate::wire::MARK_END;

/// Pause before the next attempt to connect to an application that refused the connection.
const RETRY: Duration = Duration::from_millis(20);

/// Interval at which the keeper checks whether the client of a failed connection has acknowledged all output. The kernel does not notify
/// the keeper of this.
const DELIVERY_POLL: Duration = Duration::from_millis(20);

/// A connection that the keeper owns.
pub(super) struct Relay {
    pub keeper: Rc<Keeper>,
    pub kept: Rc<KeptConnection>,
    pub client: TcpStream,
    pub replica: Option<TcpStream>,
    pub input: Blob,
    pub output: OutputEnd,
}

/// The application's end of a relayed connection.
struct ApplicationEnd<'a> {
    socket: &'a TcpStream,
    /// Whether the application answered a write with a RST. The kernel reports the error only once, so a later read finds an orderly end.
    was_reset: Cell<bool>,
}

impl ApplicationEnd<'_> {
    /// Notes why a write to the application failed.
    fn on_error(&self, error: &io::Error) {
        let is_reset = error.kind() == io::ErrorKind::ConnectionReset;
        self.was_reset.set(self.was_reset.get() || is_reset);
    }

    async fn finish(&self, outgoing: &mut Outgoing) -> Result<(), ()> {
        let outcome = outgoing.finish(self.socket).await;
        outcome.map_err(|error| self.on_error(&error))
    }
}

/// How the direction from the application to the client ended.
enum Down {
    /// The application closed its connection.
    Closed,
    /// The reply that ends the connection is complete.
    Finished,
}

impl Relay {
    /// Relays until the connection ends, in order or by a failure.
    pub async fn run(mut self: Box<Self>) {
        reset_on_close(&self.client); // undone below if the connection ends normally
        let mut stop = self.keeper.stop.subscribe();
        let outcome = tokio::select! {
            outcome = self.live_and_deliver() => outcome,
            _ = stop.wait_for(|&stopped| stopped) => Err(RelayAbort(ConnectionEnding::Stopped, String::new())),
        };
        let RelayAbort(ending, reason) = outcome
            .err()
            .unwrap_or(RelayAbort(ConnectionEnding::Closed, String::new()));
        if self.output == OutputEnd::FinAcknowledged {
            // The kernel does not know that the FIN was sent, and would send another one. In repair mode it sends none. This call fails
            // only if the process lacks the privilege.
            let _ = setsockopt(&self.client, sockopt::TcpRepair, &1);
        } else if ending.is_reset() {
            // The guard lets a RST with this mark through, even if this node may not speak. This call fails only if the process lacks
            // the privilege.
            let _ = SockRef::from(&self.client).set_mark(MARK_END);
        } else {
            close_in_order(&self.client);
        }
        let Self {
            keeper, kept, client, ..
        } = *self;
        drop(client);
        keeper.leave(&kept, ending, reason);
    }

    /// Runs the connection. After a failure, waits until the client has acknowledged the output that was sent to it.
    async fn live_and_deliver(&mut self) -> Result<(), RelayAbort> {
        let outcome = self.live().await;
        if outcome.as_ref().is_err_and(|abort| abort.0.is_reset()) {
            Box::pin(self.deliver()).await;
        }
        outcome
    }

    /// Waits until the client has acknowledged the output that the kernel has for it. Stops waiting if the client acknowledges nothing
    /// for the linger time.
    async fn deliver(&self) {
        let mut progress = None;
        let mut since = Instant::now();
        // An error means that nothing is known about the socket, so there is nothing to wait for.
        while let Ok(Some(acknowledged)) = acknowledged_so_far(&self.client) {
            if progress.replace(acknowledged) != Some(acknowledged) {
                since = Instant::now();
            } else if since.elapsed() >= self.keeper.options.linger {
                return;
            }
            sleep(DELIVERY_POLL).await;
        }
    }

    /// Runs the connection. The futures for later states are boxed when these states begin, so an idle connection takes no memory for them.
    async fn live(&mut self) -> Result<(), RelayAbort> {
        if self.output == OutputEnd::FinSent {
            shut_down(&self.client).map_err(client_lost)?;
        }
        let Some((mut filter, mut first)) = self.filter() else {
            return Box::pin(self.drain()).await;
        };
        filter.settle();
        if filter.is_finished() {
            return Box::pin(self.say_last(&filter, first)).await;
        }
        if self.exports_states() {
            bound_unsent(&self.client).map_err(client_lost)?;
        }
        // An application that gets the connection from its start may speak first.
        let begins = matches!(self.kept.adoption.plan, AdoptionPlan::Replay { .. });
        let application = match self.replica.take() {
            Some(replica) => replica,
            None if self.input.is_empty() && filter.awaits_reply() && !begins => {
                return Err(RelayAbort(
                    ConnectionEnding::Failed,
                    "the unanswered request is not in the log".into(),
                ));
            }
            None if !begins && !self.wait_for_input().await? => return Box::pin(self.drain()).await,
            None => match Box::pin(self.connect()).await {
                Ok(application) => application,
                Err(_) if filter.on_application_lost(http::RequestRefusal::Unreachable, &mut first) => {
                    return Box::pin(self.say_last(&filter, first)).await;
                }
                Err(cut) => return Err(cut),
            },
        };
        match Box::pin(self.relay(&application, filter, first)).await {
            Ok(Down::Closed) => Ok(()),
            Err(cut) => {
                if cut.0 == ConnectionEnding::ClientLost {
                    reset_on_close(&application);
                }
                Err(cut)
            }
            Ok(Down::Finished) => {
                drop(application);
                Box::pin(self.drain()).await
            }
        }
    }

    /// Returns the filter for the application's output, and the bytes that go to the client before that output. `None`: nothing may be sent
    /// to the client.
    fn filter(&self) -> Option<(OutputFilter, Vec<u8>)> {
        match &self.kept.adoption.plan {
            AdoptionPlan::Silent => None,
            AdoptionPlan::Http { .. } if self.output != OutputEnd::Open => None,
            AdoptionPlan::Http {
                resume,
                volatile,
                closes,
            } => {
                let (mut resumer, first) = http::HttpResumer::with_volatile(resume.clone(), volatile.clone());
                if *closes {
                    resumer.close_softly();
                }
                Some((OutputFilter::Http(Box::new(resumer)), first))
            }
            AdoptionPlan::Replica { resume } => {
                let (resumer, first) = replica::ReplicaResumer::new(resume.clone());
                Some((OutputFilter::Replica(resumer), first))
            }
            AdoptionPlan::Replay { resume, earlier, .. } => {
                let filter = replay::RepetitionFilter::new(resume.clone()).after(*earlier);
                Some((OutputFilter::Replay(Box::new(filter)), Vec::new()))
            }
        }
    }

    /// Waits for input for the application, at most for the idle time. Returns false if the client has closed without
    /// further input.
    async fn wait_for_input(&self) -> Result<bool, RelayAbort> {
        if !self.input.is_empty() || self.kept.adoption.input_ended {
            return Ok(!self.input.is_empty());
        }
        match timeout(self.keeper.options.idle, self.client.peek(&mut [0])).await {
            Ok(peeked) => Ok(peeked.map_err(client_lost)? > 0),
            Err(_) => Ok(true), // whether to wait longer is the application's decision
        }
    }

    /// Whether the application may export states, so that its unsent output delays its protection ([`UNSENT_MAX`]).
    fn exports_states(&self) -> bool {
        matches!(self.kept.adoption.plan, AdoptionPlan::Replay { .. })
    }

    async fn connect(&self) -> Result<TcpStream, RelayAbort> {
        self.kept.state.set(RelayState::Connecting);
        self.keeper.scratch.turns.begin(&self.kept.turn);
        let (limit, adoption) = (self.keeper.options.connect_timeout, &self.kept.adoption);
        let mut deadline = None;
        loop {
            let passed = self
                .keeper
                .doors
                .pass(adoption.client, adoption.application, limit);
            let entry = passed.await.map_err(|error| self.unreachable(&error))?;
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
            let error = match timeout_at(deadline, self.try_connect()).await {
                Ok(Ok(application)) => return Ok(application),
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            drop(entry);
            let again = error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() + RETRY < deadline;
            if !again {
                return Err(self.unreachable(&error));
            }
            sleep(RETRY).await;
        }
    }

    fn unreachable(&self, error: &io::Error) -> RelayAbort {
        let reason = format!("connecting to {}: {error}", self.kept.adoption.application);
        RelayAbort(ConnectionEnding::ApplicationUnreachable, reason)
    }

    async fn try_connect(&self) -> io::Result<TcpStream> {
        let adoption = &self.kept.adoption;
        if !self.keeper.options.transparent {
            let socket = match adoption.application {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            if self.exports_states() {
                socket.set_recv_buffer_size(UNSENT_MAX)?;
            }
            let application = socket.connect(adoption.application).await?;
            self.kept.from.set(Some(application.local_addr()?));
            return Ok(application);
        }
        let application = TcpStream::from_std(connect_as(adoption.client, adoption.application)?)?;
        if self.exports_states() {
            SockRef::from(&application).set_recv_buffer_size(UNSENT_MAX as usize)?;
        }
        // Noted before the application can ask for the connection's state.
        self.kept.from.set(Some(application.local_addr()?));
        application.writable().await?;
        application.take_error()?.map_or(Ok(application), Err)
    }

    async fn relay(
        &mut self,
        application: &TcpStream,
        filter: OutputFilter,
        first: Vec<u8>,
    ) -> Result<Down, RelayAbort> {
        let Self {
            keeper,
            kept,
            client,
            input,
            output,
            ..
        } = self;
        kept.state.set(if filter.awaits_reply() {
            RelayState::Resuming
        } else {
            RelayState::Relaying
        });
        let filter = RefCell::new(filter);
        let application = ApplicationEnd {
            socket: application,
            was_reset: Cell::new(false),
        };
        let mut up = pin!(upstream(keeper, kept, (client, input), &application, &filter));
        let mut down = pin!(downstream(
            keeper,
            kept,
            (client, output),
            &application,
            (&filter, first)
        ));
        tokio::select! {
            ended = &mut up => {
                ended?;
                kept.state.set(RelayState::HalfClosed);
                down.await
            }
            ended = &mut down => {
                let ended = ended?;
                kept.state.set(RelayState::HalfClosed);
                if matches!(ended, Down::Finished) {
                    return Ok(ended);
                }
                // The application may go on reading as long as the client sends something.
                loop {
                    let before = kept.to_application.get();
                    match Box::pin(timeout(keeper.options.linger, &mut up)).await {
                        Ok(outcome) => return outcome.map(|()| ended),
                        Err(_) if kept.to_application.get() == before => return Err(lingered()),
                        Err(_) => {}
                    }
                }
            }
        }
    }

    /// Sends `last`, the rest of the output, and drains the connection.
    async fn say_last(&mut self, filter: &OutputFilter, last: Vec<u8>) -> Result<(), RelayAbort> {
        note_refusal(&self.keeper, &self.kept, filter);
        self.kept.to_client.set(last.len() as u64);
        Outgoing::new(last)
            .finish(&self.client)
            .await
            .map_err(client_lost)?;
        self.drain().await
    }

    /// Ends the output, and drops everything that the client still sends.
    async fn drain(&mut self) -> Result<(), RelayAbort> {
        end_output(&self.client, &mut self.output)?;
        self.kept.state.set(RelayState::HalfClosed);
        if self.kept.adoption.input_ended {
            return Ok(());
        }
        loop {
            let read = flow::read(&self.client, &self.keeper.scratch, &self.kept.turn, |_| ());
            match timeout(self.keeper.options.linger, read).await {
                Ok(Ok(Some(()))) => {}
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(client_lost(error)),
                Err(_) => return Err(lingered()),
            }
        }
    }
}

/// Passes the logged input to the application, then the client's bytes, then the end of the client's stream. Returns early if the
/// application stops reading: `downstream` decides whether that is a failure.
async fn upstream(
    keeper: &Keeper,
    kept: &KeptConnection,
    (client, input): (&TcpStream, &mut Blob),
    application: &ApplicationEnd<'_>,
    filter: &RefCell<OutputFilter>,
) -> Result<(), RelayAbort> {
    let mut outgoing = Outgoing::default();
    let pass = |outgoing: &mut Outgoing, bytes: &[u8]| {
        let count = filter.borrow_mut().on_input(bytes);
        kept.to_application.set(kept.to_application.get() + count as u64);
        kept.prefix.on_input(&bytes[..count]);
        outgoing
            .start(application.socket, &bytes[..count])
            .map_err(|error| application.on_error(&error))
    };
    while !input.is_empty() {
        let started = {
            let mut scratch = keeper.scratch.bytes.borrow_mut();
            let count = input.read(&mut scratch).map_err(|error| {
                RelayAbort(
                    ConnectionEnding::Failed,
                    format!("reading the logged input: {error}"),
                )
            })?;
            pass(&mut outgoing, &scratch[..count])
        };
        if started.is_err() || application.finish(&mut outgoing).await.is_err() {
            return Ok(());
        }
    }
    if !kept.adoption.plan.takes_input() {
        // The end of the client's stream is not passed on either: an application may take it as a sign that the client has gone.
        return Ok(());
    }
    let mut has_ended = kept.adoption.input_ended;
    while !has_ended {
        let started = flow::read(client, &keeper.scratch, &kept.turn, |bytes| {
            pass(&mut outgoing, bytes)
        });
        match started.await.map_err(client_lost)? {
            None => has_ended = true,
            Some(Err(_)) => return Ok(()),
            Some(Ok(())) if application.finish(&mut outgoing).await.is_err() => return Ok(()),
            Some(Ok(())) => {}
        }
    }
    let _ = shut_down(application.socket); // fails if the application has closed already
    Ok(())
}

/// Passes `first` to the client, then the bytes of the application that the client does not have yet, then the end of the application's
/// stream.
async fn downstream(
    keeper: &Keeper,
    kept: &KeptConnection,
    (client, output): (&TcpStream, &mut OutputEnd),
    application: &ApplicationEnd<'_>,
    (filter, first): (&RefCell<OutputFilter>, Vec<u8>),
) -> Result<Down, RelayAbort> {
    let outcome = pass_down(keeper, kept, (client, output), application, (filter, first)).await;
    note_refusal(keeper, kept, &filter.borrow());
    outcome
}

/// Ends the wait for an application that does not catch up.
struct Patience {
    began: Instant,
    catch_up: CatchUp,
}

impl Patience {
    /// The application has yet to generate `missing` bytes that the client already has.
    fn new(missing: u64) -> Self {
        Self {
            began: Instant::now(),
            catch_up: CatchUp::new(proto::Instant::ZERO, missing),
        }
    }

    /// The application has yet to generate `missing` bytes. Returns this number.
    fn look(&mut self, missing: u64) -> u64 {
        let now = proto::Instant::ZERO + self.began.elapsed();
        self.catch_up.look(now, missing);
        missing
    }

    /// Waits for the application's next output.
    async fn wait<T>(&self, read: impl Future<Output = T>) -> Result<T, RelayAbort> {
        let Some(at) = self.catch_up.gives_up_at() else {
            return Ok(read.await);
        };
        let read = timeout_at(self.began + at.since(proto::Instant::ZERO), read).await;
        read.map_err(|_| RelayAbort(ConnectionEnding::NeverCaughtUp, self.catch_up.reason()))
    }
}

async fn pass_down(
    keeper: &Keeper,
    kept: &KeptConnection,
    (client, output): (&TcpStream, &mut OutputEnd),
    application: &ApplicationEnd<'_>,
    (filter, first): (&RefCell<OutputFilter>, Vec<u8>),
) -> Result<Down, RelayAbort> {
    let passed = |count: usize| {
        kept.to_client.set(kept.to_client.get() + count as u64);
        if count > 0 {
            keeper.scratch.turns.end(&kept.turn);
        }
    };
    passed(first.len());
    let mut outgoing = Outgoing::new(first);
    let mut sent_before = SentBefore::new(kept.adoption.sent_before);
    let mut patience = Patience::new(filter.borrow().missing() + sent_before.missing());
    loop {
        sent_before.take(client, outgoing.room()).map_err(client_lost)?;
        outgoing.finish(client).await.map_err(client_lost)?;
        if filter.borrow().is_finished() {
            end_output(client, output)?;
            return Ok(Down::Finished);
        }
        let may_speak = *output == OutputEnd::Open;
        let is_new = sent_before.missing() == 0;
        let missing = patience.look(filter.borrow().missing() + sent_before.missing());
        kept.prefix.set_missing(missing);
        let read = flow::read(application.socket, &keeper.scratch, &kept.turn, |bytes| {
            kept.prefix.on_output(bytes);
            let mut filter = filter.borrow_mut();
            if filter.is_transparent() && may_speak && is_new {
                passed(bytes.len());
                return outgoing.start(client, bytes).map_err(client_lost);
            }
            filter.on_application(bytes, outgoing.room())?;
            if !may_speak {
                outgoing.room().clear();
            }
            passed(outgoing.room().len());
            if !filter.awaits_reply() {
                kept.state.set(RelayState::Relaying);
            }
            filter.settle();
            Ok(())
        });
        let read = match patience.wait(read).await? {
            Ok(None) if application.was_reset.get() => Err(io::ErrorKind::ConnectionReset.into()),
            read => read,
        };
        match read {
            Ok(Some(outcome)) => outcome?,
            Ok(None) => {
                let mut filter = filter.borrow_mut();
                filter.on_application_end(outgoing.room())?;
                if may_speak {
                    sent_before.check_end()?;
                }
                if !filter.is_finished() {
                    end_output(client, output)?;
                    return Ok(Down::Closed);
                }
                passed(outgoing.room().len());
            }
            Err(error) => {
                if !filter
                    .borrow_mut()
                    .on_application_lost(http::RequestRefusal::Quarantined, outgoing.room())
                {
                    return Err(RelayAbort(ConnectionEnding::ApplicationLost, error.to_string()));
                }
                passed(outgoing.room().len());
            }
        }
    }
}

/// Counts and logs the refused request, if there is one. A request is refused if it must not be executed again, if the
/// application failed on it again, or if the application cannot be reached.
fn note_refusal(keeper: &Keeper, kept: &KeptConnection, filter: &OutputFilter) {
    if let OutputFilter::Http(resumer) = filter
        && let Some((request, why)) = resumer.refusal()
    {
        keeper.refuse(kept, request, *why);
    }
}

fn end_output(client: &TcpStream, output: &mut OutputEnd) -> Result<(), RelayAbort> {
    if *output == OutputEnd::Open {
        shut_down(client).map_err(client_lost)?;
        *output = OutputEnd::FinSent;
    }
    Ok(())
}

fn shut_down(socket: &TcpStream) -> io::Result<()> {
    SockRef::from(socket).shutdown(std::net::Shutdown::Write)
}

/// Makes the kernel send a RST when `socket` is closed. A FIN would make the output look complete.
fn reset_on_close(socket: &TcpStream) {
    if let Err(error) = SockRef::from(socket).set_linger(Some(Duration::ZERO)) {
        tracing::error!(%error, "cannot set SO_LINGER; if the connection fails, the client sees a normal end");
    }
}

fn close_in_order(socket: &TcpStream) {
    if let Err(error) = SockRef::from(socket).set_linger(None) {
        tracing::error!(%error, "cannot clear SO_LINGER; the client gets a RST although the connection ended normally");
    }
}

fn client_lost(error: io::Error) -> RelayAbort {
    RelayAbort(ConnectionEnding::ClientLost, error.to_string())
}

fn lingered() -> RelayAbort {
    RelayAbort(
        ConnectionEnding::Lingered,
        "the client was silent after the output had ended".into(),
    )
}
