//! The socket for the library in this node's server.

use std::fs::{self, Permissions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use linux::clock;
use proto::order::OnDivergence;
use proto::order::frames::{
    ALONE, COUNTS, END, HELLO, PART, REFUSED, ROLE_NONE, ROLE_PLAY, ROLE_RECORD, VERSION,
};
use proto::role::Role;

use super::frames::{receive, send};
use super::state::OrderedService;

/// How long a server waits for its role. Shorter than the library's time limit.
const ROLE_MAX: Duration = Duration::from_secs(8);
/// Bytes of the record in one frame to the library.
const PART_MAX: usize = 64 << 10;
/// Largest payload of a frame from a library that has a role: what the library has recorded since its last frame.
const PAYLOAD_MAX: usize = 64 << 20;
/// Largest payload of a library's first frame.
const FIRST_MAX: usize = 16;

/// Starts the thread that serves the library.
pub(super) fn serve(path: &Path, service: &Arc<OrderedService>) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let hidden = path.with_extension("new");
    match fs::remove_file(&hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(&hidden)?;
    // The server may run as any user. The first one gets the role.
    fs::set_permissions(&hidden, Permissions::from_mode(0o666))?;
    fs::rename(&hidden, path)?;
    let service = Arc::clone(service);
    std::thread::Builder::new().name("order".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let service = Arc::clone(&service);
            let attended = std::thread::Builder::new()
                .name("order-library".into())
                .spawn(move || attend(&service, &stream));
            if let Err(error) = attended {
                tracing::warn!(%error, "a server runs without recorded order");
            }
        }
    })?;
    Ok(())
}

/// Gives a server its role, and serves its library until the server ends.
fn attend(service: &OrderedService, stream: &UnixStream) {
    let greeted = stream.set_read_timeout(Some(ROLE_MAX));
    let served = match greeted.and_then(|()| receive(stream, FIRST_MAX)) {
        Ok((HELLO, version)) if version == [VERSION] => serve_role(service, stream),
        Ok(_) => Err(io::Error::other(
            "the library speaks another version of the protocol",
        )),
        Err(error) => Err(error),
    };
    match served {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            tracing::warn!(vip = %service.vip, %error, "a server's recorded order ends");
        }
        _ => tracing::info!(vip = %service.vip, "a server with recorded order has ended"),
    }
}

fn serve_role(service: &OrderedService, stream: &UnixStream) -> io::Result<()> {
    let plays = |role| matches!(role, Role::Backup | Role::Returning);
    let mut state = service.wait(ROLE_MAX, |state| {
        state.has_library || state.role.may_speak() || plays(state.role)
    });
    if state.has_library {
        drop(state);
        tracing::warn!(vip = %service.vip, "a server runs without recorded order: a record begins with its server");
        return send(stream, ROLE_NONE, &[]);
    }
    stream.set_read_timeout(None)?;
    state.has_library = true;
    if state.role.may_speak() {
        let ip = match service.vip.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut address = ip.octets().to_vec();
        address.extend(service.vip.port().to_be_bytes());
        send(stream, ROLE_RECORD, &address)?;
        send(stream, ALONE, &[])?;
        stream.set_write_timeout(Some(Duration::from_millis(100)))?;
        state.recorder = Some(stream.try_clone()?);
        drop(state);
        tracing::info!(vip = %service.vip, "the server's order is recorded");
        return record(service, stream);
    }
    if !plays(state.role) {
        state.has_library = false;
        drop(state);
        return send(stream, ROLE_NONE, &[]);
    }
    drop(state);
    let policy = u8::from(service.on_divergence == OnDivergence::TrustLog);
    send(stream, ROLE_PLAY, &[policy])?;
    tracing::info!(vip = %service.vip, "the server plays the record back");
    std::thread::scope(|scope| {
        scope.spawn(|| hear_counts(service, stream));
        play(service, stream)
    })
}

/// Takes the record from the library.
fn record(service: &OrderedService, stream: &UnixStream) -> io::Result<()> {
    let outcome = loop {
        match receive(stream, PAYLOAD_MAX) {
            Ok((PART, bytes)) => {
                let mut state = service.state();
                let now = clock::now();
                state.transfer.add(now, &bytes);
                state.send_parts(now);
            }
            Ok((REFUSED, reason)) => {
                let reason = String::from_utf8_lossy(&reason);
                break Err(io::Error::other(format!("refused: {reason}")));
            }
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    service.state().recorder = None;
    outcome
}

/// Gives the record to the library.
fn play(service: &OrderedService, stream: &UnixStream) -> io::Result<()> {
    let mut has_more = true;
    while has_more {
        let mut bytes = Vec::new();
        let mut state = service.wait(Duration::from_secs(1), |state| {
            bytes = state.arrivals.take();
            !bytes.is_empty() || state.has_ended()
        });
        has_more = !bytes.is_empty() || !state.has_ended();
        if let Some(reason) = state.refused.take_if(|_| !has_more) {
            tracing::warn!(vip = %service.vip, reason, "this node's server goes on without a record");
        }
        drop(state);
        for part in bytes.chunks(PART_MAX) {
            send(stream, PART, part)?;
        }
    }
    send(stream, END, &[])
}

fn hear_counts(service: &OrderedService, stream: &UnixStream) {
    while let Ok((kind, payload)) = receive(stream, PAYLOAD_MAX) {
        let number = |at: usize| {
            let bytes = payload.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        if kind == COUNTS
            && let (Some(played), Some(divergences)) = (number(0), number(8))
        {
            let mut state = service.state();
            (state.played, state.divergences) = (played, divergences);
            drop(state);
            if divergences > 0 {
                let first = String::from_utf8_lossy(&payload[16..]);
                tracing::warn!(vip = %service.vip, divergences, %first, "the replica's server diverges from the record");
            }
        }
    }
}
