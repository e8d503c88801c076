//! One client's connection through the stage: carries out what `ReplyStage` decides.

use std::future::pending;
use std::io;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use proto::restart::http::{ReplyStage, StageAction, StagedPoint};
use snapshots::{Kept, SnapshotError};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::server::{ROOM_UNIT, StageServer, count};
use super::settings::room;

/// Maximum number of bytes that one call reads.
const READ_MAX: usize = 64 << 10;
/// Bytes of a request and its reply that need no room.
const SHORT: usize = 64 << 10;
/// Attempts to export a point that the backup does not keep in time. The agent waits 30 s each time.
const ATTEMPTS: u32 = 2;

/// Why a connection is not served any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageEnding {
    /// The stage has written its last byte. The client's further bytes are taken for a while.
    InOrder,
    /// The client is told by a RST.
    Reset,
    /// Nothing is said: the client has left, or the other node serves it.
    Silent,
}

/// Bytes on their way to a socket.
#[derive(Default)]
struct UnsentBytes {
    bytes: Vec<u8>,
    sent: usize,
}

impl UnsentBytes {
    const fn left(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn push(&mut self, bytes: Vec<u8>) {
        if self.left() == 0 {
            *self = Self { bytes, sent: 0 };
        } else {
            self.bytes.extend(bytes);
        }
    }

    /// Writes what the socket takes now.
    fn write(&mut self, stream: &TcpStream) -> io::Result<()> {
        while self.left() > 0 {
            match stream.try_write(&self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        *self = Self::default();
        Ok(())
    }
}

/// What a connection waited for.
enum StageEvent {
    ClientReads,
    ClientWrites,
    ApplicationReads,
    ApplicationWrites,
    Late,
    Stopping,
}

/// One client's connection.
pub(super) struct StagedConnection {
    server: Arc<StageServer>,
    client: Arc<TcpStream>,
    address: SocketAddr,
    stage: ReplyStage,
    application: Option<TcpStream>,
    /// The connection to the application has brought a reply.
    has_replied: bool,
    /// The application has been given a part of the present request.
    is_asking: bool,
    to_client: UnsentBytes,
    to_application: UnsentBytes,
    /// An action that waits until everything before it is written to the client.
    next: Option<StageAction>,
    room: Option<OwnedSemaphorePermit>,
    stopping: watch::Receiver<bool>,
    /// Set at SIGTERM: when the connection ends at the latest.
    ends_at: Option<Instant>,
}

impl StagedConnection {
    /// Asks the agent whether the connection goes on from a point.
    ///
    /// # Errors
    /// Why the connection cannot be served. The client's connection is closed.
    pub async fn begin(
        server: Arc<StageServer>,
        client: TcpStream,
        address: SocketAddr,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, String> {
        let client = Arc::new(client);
        let asked = Arc::clone(&client);
        let imported = tokio::task::spawn_blocking(move || snapshots::import_state(&*asked)).await;
        let rules = server.settings.rules;
        let stage = match imported.map_err(|error| error.to_string())? {
            Ok(None) | Err(SnapshotError::NotProtected) => ReplyStage::new(rules),
            Ok(Some(state)) => {
                let Some(point) = StagedPoint::decode(&state) else {
                    tracing::error!(%address, "the state of a connection is from another version of the stage; it is reset");
                    reset(&client);
                    return Err("its state is from another version".to_owned());
                };
                count(&server.counts.restored);
                ReplyStage::restored(rules, point)
            }
            Err(error) => return Err(error.to_string()),
        };
        Ok(Self {
            server,
            client,
            address,
            stage,
            application: None,
            has_replied: false,
            is_asking: false,
            to_client: UnsentBytes::default(),
            to_application: UnsentBytes::default(),
            next: None,
            room: None,
            stopping,
            ends_at: None,
        })
    }

    /// Serves the connection until it ends.
    pub async fn run(mut self) {
        let ending = loop {
            if let Some(ending) = self.carry_out().await {
                break ending;
            }
            if let Some(ending) = self.next_event().await {
                break ending;
            }
        };
        self.drop_application();
        match ending {
            StageEnding::InOrder => self.linger().await,
            StageEnding::Reset => reset(&self.client),
            StageEnding::Silent => {}
        }
    }

    /// Carries out actions until one has to wait.
    async fn carry_out(&mut self) -> Option<StageEnding> {
        loop {
            let action = self.next.take().or_else(|| self.stage.poll_action())?;
            match action {
                StageAction::ToClient(bytes) => {
                    self.to_client.push(bytes);
                    if self.to_client.write(&self.client).is_err() {
                        return Some(StageEnding::Silent);
                    }
                }
                StageAction::ToApplication(bytes) => self.ask(bytes).await,
                StageAction::DropApplication => self.drop_application(),
                StageAction::Reset => return Some(StageEnding::Reset),
                StageAction::Export(_) | StageAction::Note(_) | StageAction::Close
                    if self.to_client.left() > 0 =>
                {
                    self.next = Some(action);
                    return None;
                }
                StageAction::Export(point) => {
                    if matches!(point, StagedPoint::Executing | StagedPoint::Reply { .. }) {
                        self.is_asking = false;
                    }
                    self.has_replied |=
                        matches!(point, StagedPoint::Reply { .. }) && self.application.is_some();
                    if let Some(ending) = self.export(point, true).await {
                        return Some(ending);
                    }
                    self.stage.on_exported();
                }
                StageAction::Note(point) => {
                    if let Some(ending) = self.export(point, false).await {
                        return Some(ending);
                    }
                }
                StageAction::Close => return Some(StageEnding::InOrder),
            }
        }
    }

    /// Exports a point. Returns how the connection ends, if it must not go on.
    async fn export(&self, point: StagedPoint, waits: bool) -> Option<StageEnding> {
        let state: Arc<[u8]> = point.encode().into();
        drop(point);
        for _ in 0..ATTEMPTS {
            let (client, state) = (Arc::clone(&self.client), Arc::clone(&state));
            let call = tokio::task::spawn_blocking(move || {
                if waits {
                    snapshots::export_state(&*client, &state)
                } else {
                    snapshots::export_state_without_waiting(&*client, &state).map(|()| Kept::ByBackup)
                }
            });
            let counts = &self.server.counts;
            match call.await {
                Ok(Ok(Kept::ByBackup)) => {
                    count(&counts.kept);
                    return None;
                }
                Ok(Ok(Kept::NoBackup) | Err(SnapshotError::NotProtected)) => {
                    count(&counts.without_backup);
                    return None;
                }
                Ok(Err(SnapshotError::Emigrated | SnapshotError::Closed)) => {
                    return Some(StageEnding::Silent);
                }
                Ok(Err(SnapshotError::TimedOut)) => {
                    count(&counts.not_exported);
                    tracing::warn!(client = %self.address, "the backup does not keep a reply in time");
                }
                Ok(Err(error)) => {
                    // There is no agent, so there is no backup for this connection.
                    count(&counts.not_exported);
                    tracing::warn!(client = %self.address, %error, "a reply is not exported; a failure now may cut it");
                    return None;
                }
                Err(error) => {
                    tracing::error!(client = %self.address, %error, "a connection ends because an export failed");
                    return Some(StageEnding::Reset);
                }
            }
        }
        tracing::warn!(client = %self.address, "a connection is reset: no reply may leave before the backup has it");
        Some(StageEnding::Reset)
    }

    /// Sends bytes to the application. Opens a connection to it if there is none.
    async fn ask(&mut self, bytes: Vec<u8>) {
        if !self.stage.wants_reply() {
            return; // the exchange has failed meanwhile
        }
        if !std::mem::replace(&mut self.is_asking, true) && self.application.as_ref().is_some_and(has_ended) {
            self.drop_application();
        }
        if self.application.is_none() {
            match timeout(self.server.settings.connect_time, self.connect()).await {
                Ok(Ok(stream)) => self.application = Some(stream),
                Ok(Err(error)) => return self.on_application_failed(&error),
                Err(late) => return self.on_application_failed(&late.into()),
            }
        }
        self.to_application.push(bytes);
        self.write_to_application();
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let settings = &self.server.settings;
        if !settings.has_client_address {
            return TcpStream::connect(settings.application).await;
        }
        let stream = linux::transparent::connect_as(self.address, settings.application)?;
        let stream = TcpStream::from_std(stream)?;
        stream.writable().await?;
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(stream),
        }
    }

    fn on_application_failed(&mut self, error: &io::Error) {
        tracing::warn!(client = %self.address, %error, "the application does not answer; the client gets a 503");
        self.on_application_end(false);
    }

    /// The application has ended its connection.
    fn on_connection_end(&mut self, is_orderly: bool) {
        if !(self.has_replied && self.stage.ask_again()) {
            self.on_application_end(is_orderly);
        }
    }

    /// There is no connection to the application any more.
    fn on_application_end(&mut self, is_orderly: bool) {
        self.drop_application();
        if self.stage.on_application_end(is_orderly) {
            count(&self.server.counts.unanswered);
        }
    }

    fn write_to_application(&mut self) {
        // If the application has closed its end, it may have replied before. Its reply is still to be read.
        if let Some(application) = &self.application
            && self.to_application.write(application).is_err()
        {
            self.to_application = UnsentBytes::default();
        }
    }

    /// Resets the connection to the application: its further bytes belong to no request.
    fn drop_application(&mut self) {
        if let Some(application) = self.application.take() {
            reset(&application);
        }
        self.has_replied = false;
        self.to_application = UnsentBytes::default();
    }

    /// Waits for something to happen, and tells the stage.
    async fn next_event(&mut self) -> Option<StageEnding> {
        if *self.stopping.borrow_and_update() && self.ends_at.is_none() {
            self.ends_at = Some(Instant::now() + self.server.settings.stop_time);
        }
        let is_idle = self.stage.is_idle() && self.next.is_none() && self.to_client.left() == 0;
        if self.ends_at.is_some() && is_idle {
            return Some(StageEnding::InOrder);
        }
        if !self.find_room().await {
            tracing::warn!(client = %self.address, "there was no memory for a long reply in time (memory_mb)");
            self.on_application_end(false);
            return None;
        }
        match self.wait().await {
            StageEvent::ClientReads => return self.read_client(),
            StageEvent::ClientWrites => {
                if self.to_client.write(&self.client).is_err() {
                    return Some(StageEnding::Silent);
                }
            }
            StageEvent::ApplicationReads => self.read_application(),
            StageEvent::ApplicationWrites => self.write_to_application(),
            StageEvent::Stopping => {}
            StageEvent::Late => return self.on_late(is_idle),
        }
        None
    }

    /// A long request or reply needs room in memory. Waits for it, and gives it back afterwards. Returns whether there is room.
    async fn find_room(&mut self) -> bool {
        let held = self.stage.held_bytes() + self.to_client.left() + self.to_application.left();
        if held <= SHORT {
            self.room = None;
        } else if self.room.is_none() {
            let units = room(self.server.settings.rules.limit as u64) / ROOM_UNIT as u64;
            let units = u32::try_from(units).expect("a reply has at most 16 MiB");
            let asked = Arc::clone(&self.server.room).acquire_many_owned(units);
            match timeout(self.server.settings.application_time, asked).await {
                Ok(Ok(permit)) => self.room = Some(permit),
                Ok(Err(_)) | Err(_) => return false,
            }
        }
        true
    }

    async fn wait(&mut self) -> StageEvent {
        let may_read = self.next.is_none();
        let reads_client = may_read && self.stage.wants_client() && self.to_application.left() == 0;
        let reads_application = may_read && self.stage.wants_application() && self.to_client.left() == 0;
        let late = Instant::now() + self.patience();
        let late = self.ends_at.map_or(late, |ends_at| late.min(ends_at));
        let application = self.application.as_ref();
        let readable = async {
            match application {
                Some(application) if reads_application => application.readable().await.is_ok(),
                _ => pending().await,
            }
        };
        let writable = async {
            match application {
                Some(application) if self.to_application.left() > 0 => application.writable().await.is_ok(),
                _ => pending().await,
            }
        };
        tokio::select! {
            _ = self.client.writable(), if self.to_client.left() > 0 => StageEvent::ClientWrites,
            _ = writable => StageEvent::ApplicationWrites,
            _ = readable => StageEvent::ApplicationReads,
            _ = self.client.readable(), if reads_client => StageEvent::ClientReads,
            _ = self.stopping.changed(), if self.ends_at.is_none() => StageEvent::Stopping,
            () = sleep_until(late) => StageEvent::Late,
        }
    }

    /// How long nothing may happen.
    fn patience(&self) -> Duration {
        let settings = &self.server.settings;
        if self.to_client.left() > 0 {
            settings.client_time
        } else if self.stage.wants_reply() {
            settings.application_time
        } else if self.stage.is_idle() {
            settings.idle
        } else {
            settings.client_time
        }
    }

    /// Nothing has happened for too long.
    fn on_late(&mut self, is_idle: bool) -> Option<StageEnding> {
        let is_stopping = self.ends_at.is_some_and(|ends_at| ends_at <= Instant::now());
        if is_idle {
            return Some(StageEnding::InOrder);
        }
        if is_stopping || self.to_client.left() > 0 || !self.stage.wants_reply() {
            return Some(StageEnding::Reset);
        }
        self.on_application_failed(&io::ErrorKind::TimedOut.into());
        None
    }

    fn read_client(&mut self) -> Option<StageEnding> {
        let mut bytes = Vec::with_capacity(READ_MAX);
        match self.client.try_read_buf(&mut bytes) {
            Ok(0) => self.stage.on_client_end(),
            Ok(_) => self.stage.on_client(&bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Some(StageEnding::Silent),
        }
        None
    }

    fn read_application(&mut self) {
        let Some(application) = &self.application else {
            return;
        };
        let mut bytes = Vec::with_capacity(READ_MAX);
        match application.try_read_buf(&mut bytes) {
            Ok(0) => self.on_connection_end(true),
            Ok(_) => self.stage.on_application(&bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.on_connection_end(false),
        }
    }

    /// Ends the output, and takes the client's bytes for a while. A close with bytes that nobody has read would be a RST, which may cost the
    /// client the last reply.
    async fn linger(self) {
        if SockRef::from(&*self.client).shutdown(Shutdown::Write).is_err() {
            return; // the client has left
        }
        let drain = async {
            let mut bytes = Vec::with_capacity(READ_MAX);
            while self.client.readable().await.is_ok() {
                bytes.clear();
                match self.client.try_read_buf(&mut bytes) {
                    Ok(0) => return,
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                    Ok(_) | Err(_) => {}
                }
            }
        };
        let _ = timeout(self.server.settings.linger, drain).await; // later bytes of the client are answered with a RST
    }
}

/// Whether the other end has closed. Asks the kernel, because the runtime learns it later.
fn has_ended(stream: &TcpStream) -> bool {
    match SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO)); // without it, the stream ends in order
}
