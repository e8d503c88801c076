//! The TCP connection of a local program: the client program at the proxy, or the application at a server.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;

/// Maximum number of bytes that one call reads.
const READ_MAX: usize = 64 << 10;

/// What the program's connection is to do. If the commands end, it ends when everything is written.
#[derive(Debug, PartialEq, Eq)]
pub enum ProgramCommand {
    /// Write these bytes.
    Write(Vec<u8>),
    /// End the direction to the program.
    End,
    /// Abort the connection.
    Abort,
}

/// What has happened to the program's connection.
#[derive(Debug, PartialEq, Eq)]
pub enum ProgramEvent<'a> {
    /// The program has written these bytes.
    Data(&'a [u8]),
    /// The program has ended its direction.
    End,
    /// The socket has taken this number of bytes.
    Took(usize),
    /// The connection has failed.
    Gone,
}

/// Serves the connection until both directions have ended, or the commands end. Reads while `wants` says so; after a change, `wake` must be
/// notified.
pub async fn carry(
    mut stream: TcpStream,
    mut commands: UnboundedReceiver<ProgramCommand>,
    wake: Rc<Notify>,
    wants: impl Fn() -> bool,
    on: impl Fn(ProgramEvent<'_>),
) {
    let _ = stream.set_nodelay(true);
    let mut buffer = vec![0; READ_MAX];
    let (mut pending, mut written): (Vec<u8>, usize) = (Vec::new(), 0);
    let (mut ends, mut was_ended, mut has_ended, mut is_closed) = (false, false, false, false);
    loop {
        let has_pending = written < pending.len();
        if !has_pending && (ends || is_closed) && !was_ended {
            was_ended = true;
            let _ = stream.shutdown().await; // fails if the program has closed its socket: then nobody needs the end
        }
        if !has_pending && (is_closed || (was_ended && has_ended)) {
            return;
        }
        let (mut reading, mut writing) = stream.split();
        let outcome = tokio::select! {
            command = commands.recv(), if !is_closed => {
                match command {
                    None => is_closed = true,
                    Some(ProgramCommand::End) => ends = true,
                    Some(ProgramCommand::Write(bytes)) => {
                        pending.drain(..written);
                        written = 0;
                        pending.extend(bytes);
                    }
                    Some(ProgramCommand::Abort) => return reset(&stream),
                }
                Ok(())
            }
            done = writing.write(&pending[written..]), if has_pending => done.map(|count| {
                written += count;
                on(ProgramEvent::Took(count));
            }),
            () = wake.notified() => Ok(()),
            done = reading.read(&mut buffer), if !has_ended && !is_closed && wants() => done.map(|count| {
                has_ended = count == 0;
                match count {
                    0 => on(ProgramEvent::End),
                    count => on(ProgramEvent::Data(&buffer[..count])),
                }
            }),
        };
        if outcome.is_err() {
            on(ProgramEvent::Gone);
            return reset(&stream);
        }
    }
}

fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Joins two connections until both directions have ended.
///
/// # Errors
/// If either connection fails. Both are reset then.
pub async fn join(mut one: TcpStream, mut other: TcpStream) -> io::Result<()> {
    let joined = tokio::io::copy_bidirectional(&mut one, &mut other).await;
    if joined.is_err() {
        reset(&one);
        reset(&other);
    }
    joined.map(|_| ())
}
