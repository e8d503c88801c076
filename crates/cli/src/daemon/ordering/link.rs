//! The link for a record between the agents: a TCP connection that the backup opens.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use linux::clock;

use super::sealed::{BEGIN_MAX, HAVE, PART, RECEIPT, REFUSED, begin};
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
    let (mut reader, mut writer) = begin(stream, key, false)?;
    let (kind, payload) = reader.receive()?;
    let (have, vip) = payload.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    let vip: Option<SocketAddr> = std::str::from_utf8(vip).ok().and_then(|vip| vip.parse().ok());
    let service = services.iter().find(|service| Some(service.vip) == vip);
    let Some(service) = service.filter(|_| kind == HAVE) else {
        return writer.send(REFUSED, b"no service with recorded order at this address");
    };
    reader.stream.get_ref().set_read_timeout(None)?;
    let mut state = service.state();
    if state.recorder.is_none() || !state.role.may_speak() {
        return Ok(()); // the backup asks again
    }
    let number = match state.link_up(clock::now(), u64::from_le_bytes(*have), writer) {
        Ok(number) => number,
        Err((gap, mut writer)) => return writer.send(REFUSED, gap.to_string().as_bytes()),
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
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    service.state().link_down(clock::now(), number);
    outcome
}

/// Starts the thread that takes the record while this node is the backup. On the primary, it watches the backup's receipts.
pub(super) fn follow(service: &Arc<OrderedService>) -> io::Result<()> {
    let service = Arc::clone(service);
    std::thread::Builder::new()
        .name("order-backup".into())
        .spawn(move || {
            loop {
                let mut state = service.wait(WATCH_EVERY, |state| state.follows());
                state.watch(clock::now());
                let follows = state.follows();
                drop(state);
                if follows && let Err(error) = take_record(&service) {
                    tracing::debug!(%error, peer = %service.peer, "no link for recorded order");
                    std::thread::sleep(PAUSE);
                }
            }
        })?;
    Ok(())
}

/// Opens a link to the primary, and takes the record until the link ends.
fn take_record(service: &OrderedService) -> io::Result<()> {
    let stream = TcpStream::connect_timeout(&service.peer, BEGIN_MAX)?;
    let inbound = stream.try_clone()?;
    let (mut reader, mut writer) = begin(stream, service.key.as_ref(), true)?;
    let have = {
        let mut state = service.state();
        state.inbound = Some(inbound);
        state.arrivals.arrived()
    };
    writer.send(
        HAVE,
        &[&have.to_le_bytes()[..], service.vip.to_string().as_bytes()].concat(),
    )?;
    reader.stream.get_ref().set_read_timeout(None)?;
    loop {
        let (kind, payload) = reader.receive()?;
        let mut state = service.state();
        if state.role.may_speak() {
            return Ok(()); // the record has ended
        }
        match kind {
            PART => {
                let arrived = state.arrivals.add(&payload);
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
            REFUSED => {
                state.refused = Some(String::from_utf8_lossy(&payload).into_owned());
                drop(state);
                service.notify();
                return Ok(());
            }
            _ => {}
        }
    }
}
