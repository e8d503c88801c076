//! The children of a recorded server: each has a stream of its own, and a connection of its own to the agent. The parent opens the connection
//! before it forks, because the child may not reach the socket any more.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linux::clock;
use proto::order::StreamCause;
use proto::order::frames::{END, PART, REFUSED, RESUME, RESUMED};

use super::access::LibraryAccess;
use super::counts::hear_counts;
use super::frames::{await_frame, send};
use super::state::{LibraryPart, OrderedService};

/// Time limit for a child to take a receipt.
const SEND_MAX: Duration = Duration::from_millis(100);
/// Interval at which a child's stream is looked at, even if nothing is said to change.
const LOOK: Duration = Duration::from_secs(1);

/// The child's stream and its cause, from a frame without its version.
fn child_of(payload: &[u8]) -> Option<(u32, StreamCause)> {
    let (stream, rest) = payload.split_first_chunk()?;
    let (parent, rest) = rest.split_first_chunk()?;
    let cause = StreamCause {
        parent: u32::from_le_bytes(*parent),
        len: u64::from_le_bytes(*rest.first_chunk()?),
    };
    Some((u32::from_le_bytes(*stream), cause))
}

/// Serves the library of a child. If the child gets no stream, the connection ends, and the child's library says so.
pub(super) fn serve(
    service: &OrderedService,
    access: &LibraryAccess,
    stream: &UnixStream,
    payload: &[u8],
) -> io::Result<()> {
    let (child, cause) = child_of(payload).ok_or(io::ErrorKind::InvalidData)?;
    if !access.admits_child(stream)? {
        service.state().refused += 1;
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(None)?;
    let part = service.state().part;
    match part {
        LibraryPart::Records => record(service, stream, child, cause),
        LibraryPart::Plays | LibraryPart::Finished => play(service, stream, child),
        LibraryPart::None => Ok(()),
    }
}

/// Takes the child's stream, until the child ends.
fn record(service: &OrderedService, stream: &UnixStream, child: u32, cause: StreamCause) -> io::Result<()> {
    stream.set_write_timeout(Some(SEND_MAX))?;
    let library = {
        let mut state = service.state();
        if !state.begin_child(child, cause, stream.try_clone()?) {
            return Ok(());
        }
        state.libraries
    };
    loop {
        let received = await_frame(stream);
        let mut state = service.state();
        if state.libraries != library {
            return Ok(()); // its server has ended
        }
        match received {
            Ok((PART, bytes)) => state.add_part(clock::now(), child, &bytes),
            Ok((RESUME, _)) => {
                let len = state.stream_len(child).to_le_bytes();
                drop(state); // the child may not take it at once
                send(stream, RESUMED, &len)?;
            }
            Ok((REFUSED, reason)) => {
                let reason = String::from_utf8_lossy(&reason);
                tracing::warn!(vip = %service.vip, %reason, "the order of a server's child is not recorded any more");
                state.end_child(clock::now(), child);
            }
            Ok(_) => {}
            Err(error) => {
                state.end_child(clock::now(), child);
                return Err(error);
            }
        }
    }
}

/// Gives the child its stream, event by event, until the child or the stream ends.
fn play(service: &OrderedService, stream: &UnixStream, child: u32) -> io::Result<()> {
    let library = service.state().libraries;
    let is_gone = AtomicBool::new(false);
    let leave = || {
        is_gone.store(true, Ordering::Relaxed);
        let mut state = service.state();
        if state.libraries == library {
            state.arrivals.streams().leave(child);
        }
        drop(state);
        service.notify();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| hear_counts(service, stream, false, leave));
        loop {
            let mut event = None;
            let mut has_ended = false;
            drop(service.wait(LOOK, |state| {
                let is_own = state.libraries == library;
                let is_over = !is_own || state.has_ended();
                if is_own {
                    event = state.arrivals.streams().take_event(child);
                }
                has_ended = is_over || state.arrivals.streams().has_ended(child);
                event.is_some() || has_ended || is_gone.load(Ordering::Relaxed)
            }));
            if is_gone.load(Ordering::Relaxed) {
                return Ok(());
            }
            match event {
                Some(event) => send(stream, PART, &event)?,
                None if has_ended => return send(stream, END, &[]),
                None => {}
            }
        }
    })
}
