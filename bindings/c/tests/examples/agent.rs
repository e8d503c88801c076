//! An agent that a test plays: it takes the library's requests, and answers as the test says.

use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

pub const EXPORT_AND_WAIT: u32 = 1;
pub const EXPORT: u32 = 2;
pub const IMPORT: u32 = 3;

/// A request of the library.
pub struct PlayedRequest {
    /// Number of the library's connection that the request came on.
    pub stream: usize,
    pub operation: u32,
    /// Size of the exported state, or of the buffer for the imported state, in bytes.
    pub size: usize,
    pub state: Vec<u8>,
    /// Bytes that the server has read from its connection, and written to it.
    pub input: usize,
    pub output: usize,
}

/// Status, flag, size and state.
pub type PlayedAnswer = (u32, u32, usize, Vec<u8>);

/// An agent's socket. The agent's threads run until the test ends.
pub struct PlayedAgent {
    directory: tempfile::TempDir,
}

impl PlayedAgent {
    pub fn new(answer: impl Fn(PlayedRequest) -> PlayedAnswer + Send + Sync + 'static) -> Self {
        Self::restarting(usize::MAX, answer)
    }

    /// An agent that closes each stream after this number of requests.
    pub fn restarting(
        requests: usize,
        answer: impl Fn(PlayedRequest) -> PlayedAnswer + Send + Sync + 'static,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(socket(directory.path())).expect("a socket");
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (stream, answer) = (stream.expect("a connection"), Arc::clone(&answer));
                thread::spawn(move || serve(stream, number, requests, &*answer));
            }
        });
        Self { directory }
    }

    pub fn path(&self) -> PathBuf {
        socket(self.directory.path())
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("snapshots.sock")
}

fn serve(
    mut stream: UnixStream,
    number: usize,
    requests: usize,
    answer: &dyn Fn(PlayedRequest) -> PlayedAnswer,
) {
    for _ in 0..requests {
        let Some(request) = receive(&mut stream, number) else {
            return;
        };
        let (status, flag, size, state) = answer(request);
        let header = [status.to_ne_bytes(), flag.to_ne_bytes()].concat();
        let bytes = [&header, &(size as u64).to_ne_bytes()[..], &state].concat();
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn receive(stream: &mut UnixStream, number: usize) -> Option<PlayedRequest> {
    let mut header = [0; 16];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut slices = [IoSliceMut::new(&mut header)];
    let received = recvmsg::<()>(
        stream.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )
    .ok()?;
    let Some(ControlMessageOwned::ScmRights(descriptors)) = received.cmsgs().ok()?.next() else {
        return None;
    };
    let bytes = received.bytes;
    // SAFETY: the kernel has just made this descriptor for us.
    let connection = unsafe { OwnedFd::from_raw_fd(descriptors[0]) };
    stream.read_exact(&mut header[bytes..]).ok()?;
    let [m0, m1, m2, m3, o0, o1, o2, o3, size @ ..] = header;
    assert_eq!(u32::from_ne_bytes([m0, m1, m2, m3]), 0x3153_4653);
    let operation = u32::from_ne_bytes([o0, o1, o2, o3]);
    let size = usize::try_from(u64::from_ne_bytes(size)).expect("64-bit");
    let mut state = vec![0; if operation == IMPORT { 0 } else { size }];
    stream.read_exact(&mut state).ok()?;
    let (input, output) = offsets(&connection).expect("a TCP connection");
    Some(PlayedRequest {
        stream: number,
        operation,
        size,
        state,
        input,
        output,
    })
}

/// Bytes that the owner of `connection` has read from it, and written to it. The owner waits, so only the client changes the counters.
fn offsets(connection: &OwnedFd) -> io::Result<(usize, usize)> {
    loop {
        let before = tcp_info(connection)?;
        let unread = queued(connection, libc::FIONREAD)?;
        let unacknowledged = queued(connection, libc::TIOCOUTQ)?;
        let after = tcp_info(connection)?;
        if before == after {
            return Ok((before.0 - unread, before.1 + unacknowledged));
        }
    }
}

/// Bytes that were received from the client, and bytes that the client has acknowledged.
fn tcp_info(connection: &OwnedFd) -> io::Result<(usize, usize)> {
    // SAFETY: all fields are integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = libc::socklen_t::try_from(size_of_val(&info)).expect("small");
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    let descriptor = connection.as_raw_fd();
    // SAFETY: the kernel writes at most `size` bytes, the size of `info`.
    let outcome =
        unsafe { libc::getsockopt(descriptor, level, option, (&raw mut info).cast(), &raw mut size) };
    match outcome {
        0 => Ok((info.tcpi_bytes_received as usize, info.tcpi_bytes_acked as usize)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn queued(connection: &OwnedFd, request: libc::Ioctl) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int.
    match unsafe { libc::ioctl(connection.as_raw_fd(), request, &raw mut bytes) } {
        0 => Ok(usize::try_from(bytes).expect("a number of bytes")),
        _ => Err(io::Error::last_os_error()),
    }
}
