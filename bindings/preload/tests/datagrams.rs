//! A recorded server offers its record to the backup's kernel, whose receipts release the output before the agent has the record.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use proto::order::DatagramSeal;
use proto::order::frames::{
    CHILD, DATAGRAMS, HEAD, HELLO, PART, RECEIPT, ROLE_RECORD, VERSION, frame, payload_len,
};

#[path = "support/library.rs"]
mod library;
#[path = "support/python.rs"]
mod python;

use python::PythonServer;

const SECRET: [u8; 16] = [7; 16];
const COOKIE: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(30);

/// Echoes. Closes all descriptors that it does not know whenever it is told to, and forks then. It and its child say how many sockets of the
/// library for datagrams they have.
const SERVER: &str = "
import os, select, socket, sys
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
connection = None
def sockets():
    return sum(960 <= int(fd) < 1000 for fd in os.listdir('/proc/self/fd'))
while True:
    for fd, _ in epoll.poll():
        if fd == listener.fileno():
            connection, _ = listener.accept()
            epoll.register(connection, select.EPOLLIN)
            continue
        text = connection.recv(10)
        if text == b'forks':
            os.closerange(connection.fileno() + 1, 1100)
            child = os.fork()
            if child == 0:
                connection.sendall(f'child {sockets()}.'.encode())
                os._exit(0)
            os.waitpid(child, 0)
            text = f'parent {sockets()}.'.encode()
        connection.sendall(text)
";

fn send(mut library: &UnixStream, kind: u8, payload: &[u8]) {
    library
        .write_all(&frame(kind, payload))
        .expect("the library takes it");
}

fn receive(mut library: &UnixStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; HEAD];
    library.read_exact(&mut head).ok()?;
    let mut payload = vec![0; payload_len(&head)];
    library.read_exact(&mut payload).ok()?;
    Some((head[0], payload))
}

/// Sends the frame with a socket's descriptor.
fn send_socket(library: &UnixStream, socket: &UdpSocket) {
    let frame = frame(DATAGRAMS, &[&COOKIE.to_le_bytes()[..], &SECRET].concat());
    let mut part = libc::iovec {
        iov_base: frame.as_ptr().cast_mut().cast(),
        iov_len: frame.len(),
    };
    let mut control = [0_u64; 3];
    // SAFETY: the message has one part and room for one descriptor, which is written behind its header.
    let sent = unsafe {
        let mut message = std::mem::zeroed::<libc::msghdr>();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
        libc::CMSG_DATA(header)
            .cast::<i32>()
            .write_unaligned(socket.as_raw_fd());
        libc::sendmsg(library.as_raw_fd(), &raw const message, 0)
    };
    assert_eq!(sent, frame.len() as isize);
}

/// The backup's kernel: answers each datagram, if it answers at all.
#[derive(Default)]
struct TestKernel {
    is_silent: AtomicBool,
    /// Bytes of the record that it has.
    have: AtomicU64,
}

impl TestKernel {
    /// Starts it. Returns a socket that is connected to it.
    fn start() -> (Arc<Self>, UdpSocket) {
        let kernel = Arc::<Self>::default();
        let backup = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let primary = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        primary
            .connect(backup.local_addr().expect("bound"))
            .expect("a route");
        let own = Arc::clone(&kernel);
        std::thread::spawn(move || {
            let seal = DatagramSeal::new(COOKIE, SECRET);
            let mut buffer = [0; 2000];
            while let Ok((count, from)) = backup.recv_from(&mut buffer) {
                if own.is_silent.load(Ordering::Relaxed) {
                    continue;
                }
                let at = u64::from_le_bytes(buffer[16..24].try_into().expect("8 bytes"));
                let bytes = &buffer[32..count];
                assert_eq!(seal.datagrams(at, bytes).next().expect("one"), buffer[..count]);
                let have = own.have.load(Ordering::Relaxed);
                assert!(at <= have, "a gap");
                let have = have.max(at + bytes.len() as u64);
                own.have.store(have, Ordering::Relaxed);
                backup.send_to(&seal.make_receipt(have), from).expect("sent");
            }
        });
        (kernel, primary)
    }
}

/// A recorded server with a client, and its agent, which gives no receipts.
struct DatagramTestbed {
    kernel: Arc<TestKernel>,
    server: PythonServer,
    client: TcpStream,
    library: UnixStream,
    /// Lengths of the parts that the agent gets.
    parts: mpsc::Receiver<usize>,
    /// Bytes of the record that the agent has.
    agent_has: u64,
    _directory: tempfile::TempDir,
}

impl DatagramTestbed {
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("order.sock");
        let agent = UnixListener::bind(&socket).expect("a socket");
        let server = PythonServer::start(SERVER, &format!("agent:{}", socket.display()))?;
        let (library, _) = agent.accept().expect("the library comes");
        assert_eq!(receive(&library), Some((HELLO, vec![VERSION])));
        let service = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
        let service = [&service[..], &server.address.port().to_be_bytes()].concat();
        send(&library, ROLE_RECORD, &service);
        let (kernel, primary) = TestKernel::start();
        send_socket(&library, &primary);
        let (sender, parts) = mpsc::channel();
        let reader = library.try_clone().expect("a copy");
        std::thread::spawn(move || {
            while let Some((kind, payload)) = receive(&reader) {
                assert_eq!(kind, PART);
                sender.send(payload.len()).expect("the test waits");
            }
        });
        std::thread::spawn(move || agent.incoming().flatten().for_each(serve_child));
        let client = server.connect();
        client.set_read_timeout(Some(PATIENCE)).expect("set");
        Some(Self {
            kernel,
            server,
            client,
            library,
            parts,
            agent_has: 0,
            _directory: directory,
        })
    }

    /// The client sends this, and gets it back.
    fn echo(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).expect("sent");
        self.expect(text);
    }

    fn expect(&mut self, text: &str) {
        let mut reply = vec![0; text.len()];
        self.client.read_exact(&mut reply).expect("a reply");
        assert_eq!(String::from_utf8_lossy(&reply), text);
    }

    /// Takes parts until the agent has this much of the record.
    fn await_agent(&mut self, len: u64) {
        while self.agent_has < len {
            let part = self
                .parts
                .recv_timeout(PATIENCE)
                .expect("the agent gets the record");
            self.agent_has += part as u64;
        }
    }
}

impl Drop for DatagramTestbed {
    fn drop(&mut self) {
        let _ = self.server.process.kill();
        let _ = self.server.process.wait();
    }
}

/// Gives a child a receipt for each part.
fn serve_child(child: UnixStream) {
    let first = receive(&child).expect("a first frame");
    assert_eq!(first.0, CHILD);
    let mut have = 0_u64;
    while let Some((kind, payload)) = receive(&child) {
        if kind == PART {
            have += payload.len() as u64;
            send(&child, RECEIPT, &have.to_le_bytes());
        }
    }
}

#[test]
fn the_kernels_receipts_release_the_output_and_the_agent_gets_all_later() {
    let Some(mut testbed) = DatagramTestbed::new() else {
        return;
    };
    for round in 0..200 {
        testbed.echo(&format!("round {round:03}"));
    }
    let have = testbed.kernel.have.load(Ordering::Relaxed);
    assert!(have > 200 * 3, "{have} bytes");
    testbed.await_agent(have);
}

#[test]
fn without_answers_the_record_goes_over_the_agents() {
    let Some(mut testbed) = DatagramTestbed::new() else {
        return;
    };
    testbed.echo("first");
    testbed.kernel.is_silent.store(true, Ordering::Relaxed);
    testbed.client.write_all(b"lost").expect("sent");
    let begun = testbed.kernel.have.load(Ordering::Relaxed);
    testbed.await_agent(begun + 3); // the events of the reply
    while let Ok(part) = testbed.parts.recv_timeout(Duration::from_millis(300)) {
        testbed.agent_has += part as u64;
    }
    testbed.client.set_nonblocking(true).expect("set");
    testbed.client.peek(&mut [0]).expect_err("nothing has a receipt");
    testbed.client.set_nonblocking(false).expect("set");
    send(&testbed.library, RECEIPT, &testbed.agent_has.to_le_bytes());
    testbed.expect("lost");

    // The kernel knows what the agent has.
    testbed.kernel.have.store(testbed.agent_has, Ordering::Relaxed);
    testbed.kernel.is_silent.store(false, Ordering::Relaxed);
    testbed.echo("again");

    send(&testbed.library, DATAGRAMS, &[]);
    testbed.client.write_all(b"last").expect("sent");
    let begun = testbed.kernel.have.load(Ordering::Relaxed);
    testbed.await_agent(begun + 3);
    while let Ok(part) = testbed.parts.recv_timeout(Duration::from_millis(300)) {
        testbed.agent_has += part as u64;
    }
    assert_eq!(
        testbed.kernel.have.load(Ordering::Relaxed),
        begun,
        "no datagrams any more"
    );
    send(&testbed.library, RECEIPT, &testbed.agent_has.to_le_bytes());
    testbed.expect("last");
}

#[test]
fn the_socket_stays_open_in_the_server_and_not_in_its_child() {
    let Some(mut testbed) = DatagramTestbed::new() else {
        return;
    };
    testbed.echo("first");
    testbed.client.write_all(b"forks").expect("sent");
    testbed.expect("child 0.parent 1.");
    testbed.echo("last");
}
