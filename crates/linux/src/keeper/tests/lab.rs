//! Clients, applications and a keeper on loopback.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use proto::connection::OutputEnd;
use proto::restart::http::{HttpResume, Rules, Tracker, Volatile};
use tempfile::TempDir;

use crate::keeper::{Adoption, AdoptionPlan, EndedStatus, KeeperClient, KeeperOptions, KeeperStatus, serve};

/// Timeout for everything that these tests wait for. It expires only if something is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A keeper and an agent that talks to it.
pub struct KeeperLab {
    path: PathBuf,
    _directory: Option<TempDir>,
    pub agent: Option<KeeperClient>,
    thread: Option<JoinHandle<()>>,
}

/// Both ends of a connection. The keeper gets the server's end.
pub struct ConnectionEnds {
    pub client: TcpStream,
    pub restored: TcpStream,
}

impl KeeperLab {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut KeeperOptions)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start(&directory.path().join("keeper"), change, Some(directory))
    }

    /// A keeper that serves at `path`. The folder of `path` must outlive the keeper.
    pub fn at(path: &Path, change: impl FnOnce(&mut KeeperOptions)) -> Self {
        Self::start(path, change, None)
    }

    fn start(path: &Path, change: impl FnOnce(&mut KeeperOptions), directory: Option<TempDir>) -> Self {
        let mut options = KeeperOptions::new(path.to_owned());
        options.transparent = false;
        change(&mut options);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime
                .block_on(serve::serve(options, std::future::pending()))
                .unwrap();
        });
        let agent = Some(KeeperClient::connect_within(path, PATIENCE).unwrap());
        Self {
            path: path.to_owned(),
            _directory: directory,
            agent,
            thread: Some(thread),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    pub fn agent(&mut self) -> &mut KeeperClient {
        self.agent.as_mut().expect("connected")
    }

    pub fn status(&mut self) -> KeeperStatus {
        self.agent().status().unwrap()
    }

    /// Gives the connection's server end to the keeper. Returns the client's end.
    pub fn adopt(&mut self, adoption: Adoption, connection: ConnectionEnds, input: &[&[u8]]) -> TcpStream {
        self.agent()
            .adopt(&adoption, connection.restored.as_fd(), None, &input.into())
            .unwrap();
        connection.client
    }

    /// Waits until connection `id` has ended.
    pub fn ended(&mut self, id: u64) -> EndedStatus {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "connection {id} has not ended");
            if let Some(ended) = self.status().ended.into_iter().find(|ended| ended.id == id) {
                return ended;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the keeper to end by itself.
    pub fn join(&mut self) {
        self.thread.take().expect("runs").join().unwrap();
    }
}

impl Drop for KeeperLab {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let agent = self
                .agent
                .take()
                .or_else(|| KeeperClient::connect(&self.path()).ok());
            if agent.is_some_and(|agent| agent.stop().is_ok()) && !thread::panicking() {
                thread.join().unwrap();
            }
        }
    }
}

pub fn connection() -> ConnectionEnds {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    let (restored, _) = listener.accept().unwrap();
    ConnectionEnds { client, restored }
}

/// An application that serves one connection.
pub fn application<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        serve(stream)
    });
    (address, thread)
}

/// An address at which nobody listens.
pub fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub fn adoption(
    id: u64,
    connection: &ConnectionEnds,
    application: SocketAddr,
    plan: AdoptionPlan,
) -> Adoption {
    Adoption {
        id,
        service: "web".into(),
        client: connection.client.local_addr().unwrap(),
        vip: connection.client.peer_addr().unwrap(),
        application,
        plan,
        input_ended: false,
        output: OutputEnd::Open,
        sent_before: 0,
        keep: None,
        syn_ack: None,
    }
}

/// The plan for a connection with the logs `input` and `output`.
pub fn http(input: &[u8], output: &[u8]) -> AdoptionPlan {
    let mut tracker = Tracker::new(Rules::default());
    tracker.on_input(input);
    tracker.on_output(output);
    resuming(tracker.resume().unwrap())
}

pub fn idle() -> AdoptionPlan {
    resuming(HttpResume::Idle)
}

pub fn resuming(resume: HttpResume) -> AdoptionPlan {
    AdoptionPlan::Http {
        resume,
        volatile: Volatile::default(),
        closes: false,
    }
}

/// Bytes in which no 8-byte word occurs twice, so that misplaced bytes are found.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length.div_ceil(8) as u64)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .take(length)
        .collect()
}

pub fn read_exactly(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

pub fn read_to_end(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes)
}

pub fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.extend(read_exactly(stream, 1));
    }
    String::from_utf8(request).unwrap()
}

pub fn is_reset(outcome: &io::Result<Vec<u8>>) -> bool {
    outcome
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

pub fn say(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) {
    stream.write_all(bytes.as_ref()).unwrap();
}

pub fn end(stream: &TcpStream) {
    stream.shutdown(Shutdown::Write).unwrap();
}

/// A running nginx with the modules of Debian's package. Killed when dropped.
pub struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Nginx {
    /// Starts an nginx that serves `directory` at `address` and logs the requests to `access.log` in `directory`. `None` if nginx is not
    /// installed.
    pub fn start(directory: &Path, address: SocketAddr) -> Option<Self> {
        let own = directory.display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {own}/{kind};\n"))
            .concat();
        let text = format!(
            "daemon off; master_process off; pid {own}/pid; error_log stderr error;\nevents {{}}\nhttp {{ access_log {own}/access.log; \
             {temporary} server {{ listen {address}; root {own}; }} }}\n"
        );
        let file = directory.join("nginx.conf");
        fs::write(&file, text).unwrap();
        let started = ["nginx", "/usr/sbin/nginx"].into_iter().find_map(|program| {
            let mut command = Command::new(program);
            command
                .arg("-p")
                .arg(directory)
                .arg("-c")
                .arg(&file)
                .args(["-e", "stderr"]);
            command.stdin(Stdio::null()).spawn().ok()
        })?;
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(begun.elapsed() < PATIENCE, "nginx does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        Some(Self(started))
    }
}
