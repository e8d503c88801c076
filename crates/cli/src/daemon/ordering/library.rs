//! The socket for the library in this node's server.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use linux::clock;
use proto::order::frames::{
    ALONE, CHILD, END, HELLO, PART, REFUSED, ROLE_NONE, ROLE_PLAY, ROLE_RECORD, VERSION,
};
use proto::order::{OnDivergence, SERVER_STREAM};

use super::access::{AccessRefusal, LibraryAccess};
use super::children;
use super::counts::hear_counts;
use super::frames::{await_frame, receive, send};
use super::state::{LibraryPart, OrderedService};

/// How long a server waits for its role. Shorter than the library's time limit.
const ROLE_MAX: Duration = Duration::from_secs(8);
/// How long a server waits for its predecessor's end to be noticed.
const PREDECESSOR_MAX: Duration = Duration::from_secs(1);
/// Interval at which a server's role is decided anew.
const ROLE_POLL: Duration = Duration::from_millis(20);
/// Bytes of the record in one frame to the library.
const PART_MAX: usize = 64 << 10;
/// Largest payload of a library's first frame.
const FIRST_MAX: usize = 32;

/// Starts the thread that serves the library.
pub(super) fn serve(path: &Path, access: LibraryAccess, service: &Arc<OrderedService>) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let hidden = path.with_extension("new");
    match fs::remove_file(&hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(&hidden)?;
    access.restrict(&hidden)?;
    let access = Arc::new(access);
    fs::rename(&hidden, path)?;
    let service = Arc::clone(service);
    std::thread::Builder::new().name("order".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (service, access) = (Arc::clone(&service), Arc::clone(&access));
            let attended = std::thread::Builder::new()
                .name("order-library".into())
                .spawn(move || attend(&service, &access, &stream));
            if let Err(error) = attended {
                tracing::warn!(%error, "a server runs without recorded order");
            }
        }
    })?;
    Ok(())
}

/// Gives a server its role, and serves its library until the server ends.
fn attend(service: &OrderedService, access: &LibraryAccess, stream: &UnixStream) {
    let greeted = stream.set_read_timeout(Some(ROLE_MAX));
    let served = match greeted.and_then(|()| receive(stream, FIRST_MAX)) {
        Ok((HELLO, version)) if version == [VERSION] => admit(service, access, stream),
        Ok((CHILD, payload)) if payload.first() == Some(&VERSION) => {
            children::serve(service, access, stream, &payload[1..])
        }
        Ok(_) => Err(io::Error::other(
            "the library speaks another version of the protocol",
        )),
        Err(error) => Err(error),
    };
    if let Err(error) = served
        && error.kind() != io::ErrorKind::UnexpectedEof
    {
        tracing::warn!(vip = %service.vip, %error, "a server's recorded order ends");
    }
}

/// Checks whether the process at the other end may have a role.
fn admit(service: &OrderedService, access: &LibraryAccess, stream: &UnixStream) -> io::Result<()> {
    let refusal = match access.admit(stream)? {
        Ok(process) => return serve_role(service, process, stream),
        Err(refusal) => refusal,
    };
    service.state().refused += 1;
    let vip = service.vip;
    match refusal {
        AccessRefusal::User(user) => tracing::warn!(
            %vip, %user, "a program gets no recorded order: it runs as another user than recorded_order_user"
        ),
        AccessRefusal::Program(program) => tracing::info!(
            %vip, program = %program.display(), "a program gets no recorded order: it is not recorded_order_program"
        ),
    }
    send(stream, ROLE_NONE, &[])
}

fn serve_role(service: &OrderedService, process: i32, stream: &UnixStream) -> io::Result<()> {
    let mut state = service.wait(PREDECESSOR_MAX, |state| state.server.is_none());
    if let Some(server) = state.server {
        state.refused += 1;
        drop(state);
        tracing::warn!(vip = %service.vip, process, server, "a second server runs without recorded order: another one has the role");
        return send(stream, ROLE_NONE, &[]);
    }
    drop(state);
    let asked = clock::now();
    let (mut state, part) = loop {
        // Time alone may settle the node's role.
        let mut state = service.wait(ROLE_POLL, |state| state.server.is_some());
        let is_late = state.server.is_some() || clock::now().since(asked) >= ROLE_MAX;
        if let Some(part) = state.part_now(clock::now()).filter(|_| state.server.is_none()) {
            break (state, part);
        }
        if is_late {
            state.reason = format!("this node was {} when its server started", state.role);
            drop(state);
            return send(stream, ROLE_NONE, &[]);
        }
    };
    stream.set_read_timeout(None)?;
    state.begin(process, part);
    let served = if part == LibraryPart::Records {
        drop(state);
        record(service, stream)
    } else {
        drop(state);
        service.notify();
        tracing::info!(vip = %service.vip, process, "the server plays the record back");
        let policy = u8::from(service.on_divergence == OnDivergence::TrustLog);
        send(stream, ROLE_PLAY, &[policy]).and_then(|()| {
            std::thread::scope(|scope| {
                scope.spawn(|| hear_counts(service, stream, true, || {}));
                play(service, stream)
            })
        })
    };
    service.state().forget_server();
    service.notify();
    tracing::info!(vip = %service.vip, process, "a server with recorded order has ended");
    served
}

/// Gives the library of the primary's server its role.
fn begin_recording(service: &OrderedService, stream: &UnixStream) -> io::Result<()> {
    let ip = match service.vip.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut address = ip.octets().to_vec();
    address.extend(service.vip.port().to_be_bytes());
    send(stream, ROLE_RECORD, &address)?;
    send(stream, ALONE, &[])?;
    stream.set_write_timeout(Some(Duration::from_millis(100)))?;
    let mut state = service.state();
    state.recorder = Some(stream.try_clone()?);
    state.offer_datagrams();
    drop(state);
    tracing::info!(vip = %service.vip, "the server's order is recorded");
    Ok(())
}

/// Takes the record from the library, until the server ends.
fn record(service: &OrderedService, stream: &UnixStream) -> io::Result<()> {
    let outcome = begin_recording(service, stream).and_then(|()| take_parts(service, stream));
    let mut state = service.state();
    if state.part == LibraryPart::Records {
        state.end_record(clock::now(), "the server has ended".to_owned());
    }
    outcome
}

fn take_parts(service: &OrderedService, stream: &UnixStream) -> io::Result<()> {
    loop {
        match await_frame(stream)? {
            (PART, bytes) => {
                service.state().add_part(clock::now(), SERVER_STREAM, &bytes);
            }
            (REFUSED, reason) => {
                let mut state = service.state();
                let reason = String::from_utf8_lossy(&reason).into_owned();
                let reason = state.ended.clone().unwrap_or(reason);
                tracing::warn!(vip = %service.vip, reason, "the server's order is not recorded any more");
                state.end_record(clock::now(), reason);
            }
            _ => {}
        }
    }
}

/// Gives the record to the library.
fn play(service: &OrderedService, stream: &UnixStream) -> io::Result<()> {
    let mut has_more = true;
    while has_more {
        let mut bytes = Vec::new();
        let mut state = service.wait(Duration::from_secs(1), |state| {
            if state.has_ended() {
                // The last receipts came from the kernel. Nothing that they release reaches a client any more.
                state.close_inbound();
                state.take_from_kernel();
            }
            bytes = state.arrivals.streams().take(SERVER_STREAM);
            if state.has_diverged {
                bytes.clear(); // the library does not read them any more
            }
            !bytes.is_empty() || state.has_ended()
        });
        has_more = !bytes.is_empty() || !state.has_ended();
        if !has_more {
            let reason = match &state.ended {
                Some(reason) => reason.clone(),
                None if state.role.may_speak() => "the record has ended with the takeover".to_owned(),
                None => "this node's server did not take the record".to_owned(),
            };
            tracing::warn!(vip = %service.vip, reason, "this node's server goes on without a record");
            (state.part, state.reason) = (LibraryPart::Finished, reason);
        }
        drop(state);
        for part in bytes.chunks(PART_MAX) {
            send(stream, PART, part)?;
        }
    }
    send(stream, END, &[])
}
