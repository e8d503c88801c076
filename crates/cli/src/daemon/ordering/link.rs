//! The link for a record between the agents: a TCP connection that the backup opens.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use linux::clock;
use proto::order::{RecordId, RecordPosition};

use super::super::sealed::{BEGIN_MAX, SealedReader, begin};
use super::datagrams::DatagramPath;
use super::inspect::ServerInspection;
use super::kinds::{DATAGRAMS, ENDED, FOLLOWED, HAVE, MAGIC, NONE, PART, RECEIPT, REFUSED};
use super::ring;
use super::state::OrderedService;

/// Interval at which the primary checks whether the backup still answers.
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// Pause before the backup connects again.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts the thread that takes links of backups.
pub(super) fn serve(listener: TcpListener, services: Vec<Arc<OrderedService>>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("order-links".into())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                let services = services.clone();
                let served = std::thread::Builder::new()
                    .name("order-link".into())
                    .spawn(move || {
                        if let Err(error) = send_record(stream, &services) {
                            tracing::debug!(%error, "a link for recorded order has ended");
                        }
                    });
                if let Err(error) = served {
                    tracing::warn!(%error, "a link for recorded order is not served");
                }
            }
        })?;
    Ok(())
}

/// Serves a link of the backup.
fn send_record(stream: TcpStream, services: &[Arc<OrderedService>]) -> io::Result<()> {
    let key = services.first().and_then(|service| service.key.as_ref());
    let (mut reader, mut writer) = begin(stream, MAGIC, key, false)?;
    let (kind, payload) = reader.receive()?;
    let (position, vip) = position_of(&payload).ok_or(io::ErrorKind::InvalidData)?;
    let vip: Option<SocketAddr> = std::str::from_utf8(vip).ok().and_then(|vip| vip.parse().ok());
    let service = services.iter().find(|service| Some(service.vip) == vip);
    let Some(service) = service.filter(|_| kind == HAVE) else {
        return writer.send(REFUSED, b"no service with recorded order at this address");
    };
    reader.stream.get_ref().set_read_timeout(None)?;
    let mut state = service.state();
    if !state.role.may_speak() {
        return Ok(()); // the backup asks again
    }
    let number = match state.link_up(clock::now(), position, writer) {
        Ok(number) => number,
        Err((refusal, mut writer)) => {
            let kind = if refusal.is_final() { REFUSED } else { NONE };
            return writer.send(kind, refusal.to_string().as_bytes());
        }
    };
    drop(state);
    tracing::info!(vip = %service.vip, "the backup takes the record");
    let outcome = loop {
        match reader.receive() {
            Ok((RECEIPT, payload)) => match payload.first_chunk() {
                Some(arrived) => service
                    .state()
                    .on_receipt(clock::now(), u64::from_le_bytes(*arrived)),
                None => break Err(io::ErrorKind::InvalidData.into()),
            },
            Ok((DATAGRAMS, payload)) => {
                if let Err(error) = begin_datagrams(service, number, &reader, &payload) {
                    tracing::info!(%error, "the server sends no datagrams to the backup");
                }
            }
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    service.state().link_down(clock::now(), number);
    outcome
}

/// The backup's kernel takes datagrams of the link with this number.
fn begin_datagrams(
    service: &OrderedService,
    number: u64,
    reader: &SealedReader,
    payload: &[u8],
) -> io::Result<()> {
    let cookie = payload.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    let (secret, port) = (reader.secret(cookie), service.peer.port());
    let path = DatagramPath::open(u64::from_le_bytes(*cookie), secret, reader.stream.get_ref(), port)?;
    service.state().begin_datagrams(number, path);
    Ok(())
}

/// Starts the thread that takes the record while this node is the backup. On the primary, it watches the backup's receipts.
pub(super) fn follow(service: &Arc<OrderedService>) -> io::Result<()> {
    let service = Arc::clone(service);
    std::thread::Builder::new()
        .name("order-backup".into())
        .spawn(move || {
            let mut inspection = ServerInspection::default();
            loop {
                let mut state = service.wait(WATCH_EVERY, |state| state.follows());
                state.watch(clock::now());
                let follows = state.follows();
                drop(state);
                inspection.look(&service, clock::now());
                if follows {
                    ring::prepare(&service);
                }
                if follows && let Err(error) = take_record(&service) {
                    tracing::debug!(%error, peer = %service.peer, "no link for recorded order");
                    std::thread::sleep(PAUSE);
                }
                if follows {
                    service.state().close_inbound();
                }
            }
        })?;
    Ok(())
}

/// The position and the VIP in a frame of the kind [`HAVE`].
fn position_of(payload: &[u8]) -> Option<(RecordPosition, &[u8])> {
    let (record, rest) = payload.split_first_chunk()?;
    let (have, vip) = rest.split_first_chunk()?;
    let position = RecordPosition {
        record: NonZeroU64::new(u64::from_le_bytes(*record)).map(RecordId),
        have: u64::from_le_bytes(*have),
    };
    Some((position, vip))
}

/// Opens a link to the primary, and takes the record until the link or this node's server ends.
fn take_record(service: &OrderedService) -> io::Result<()> {
    let stream = TcpStream::connect_timeout(&service.peer, BEGIN_MAX)?;
    let inbound = stream.try_clone()?;
    let (mut reader, mut writer) = begin(stream, MAGIC, service.key.as_ref(), true)?;
    let (position, library) = {
        let state = service.state();
        (state.arrivals.position(), state.libraries)
    };
    let record = position.record.map_or(0, |record| record.0.get());
    let numbers = [record, position.have].map(u64::to_le_bytes).concat();
    writer.send(HAVE, &[&numbers[..], service.vip.to_string().as_bytes()].concat())?;
    let mut inbound = Some(inbound);
    loop {
        let (kind, payload) = reader.receive()?;
        let mut state = service.state();
        if state.role.may_speak() || state.libraries != library {
            return Ok(()); // the record has ended
        }
        match kind {
            FOLLOWED => {
                let number = payload.first_chunk().map(|number| u64::from_le_bytes(*number));
                let record = number
                    .and_then(NonZeroU64::new)
                    .ok_or(io::ErrorKind::InvalidData)?;
                if !state.arrivals.follow(RecordId(record)) {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                state.inbound = inbound.take();
                drop(state);
                let link = reader.stream.get_ref();
                link.set_read_timeout(None)?;
                let own = link.local_addr()?;
                if let Some(cookie) = ring::begin_link(service, own, |label| reader.secret(label)) {
                    writer.send(DATAGRAMS, &cookie.to_le_bytes())?;
                }
            }
            PART => {
                let arrived = state.add_arrivals(&payload);
                drop(state);
                if let Some(arrived) = arrived {
                    writer.send(RECEIPT, &arrived.to_le_bytes())?;
                }
                service.notify();
                if arrived.is_none() {
                    tracing::warn!(vip = %service.vip, "this node's server does not take the record; the record is given up");
                    return Ok(());
                }
            }
            NONE => {
                let reason = String::from_utf8_lossy(&payload);
                state.reason =
                    format!("the primary: {reason}; begins when the primary's server is started again");
                return Err(io::Error::other("the primary has no record now"));
            }
            REFUSED | ENDED => {
                state.ended = Some(format!("the primary: {}", String::from_utf8_lossy(&payload)));
                state.close_inbound();
                drop(state);
                service.notify();
                return Ok(());
            }
            _ => {}
        }
    }
}
