//! Servers in Python with the library.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::library;

const PYTHON: &str = "/usr/bin/python3";

/// A server that runs.
pub struct PythonServer {
    pub process: Child,
    pub address: SocketAddr,
}

#[allow(dead_code, reason = "not each test uses all of them")]
impl PythonServer {
    /// Starts `program`, which listens at the port in its first argument. `setting`: what the library does. `None`: there is no Python.
    pub fn start(program: &str, setting: &str) -> Option<Self> {
        Some(Self::start_at(program, Self::free_address()?, setting, &[]))
    }

    /// An address for a server. `None`: there is no Python.
    pub fn free_address() -> Option<SocketAddr> {
        if !Path::new(PYTHON).exists() {
            println!("skipped: no {PYTHON}");
            return None;
        }
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Some(free.local_addr().expect("bound"))
    }

    /// As [`start`](Self::start), at this address and with more arguments. An empty setting: without the library.
    pub fn start_at(program: &str, address: SocketAddr, setting: &str, more: &[&str]) -> Self {
        let mut command = Command::new(PYTHON);
        command
            .args(["-c", program, &address.port().to_string()])
            .args(more)
            .stderr(Stdio::piped());
        if !setting.is_empty() {
            command
                .env("LD_PRELOAD", library::path())
                .env("STEADFAST_ORDER", setting);
        }
        let process = command.spawn().expect("the server starts");
        Self { process, address }
    }

    /// Ends the server. Returns what it has said.
    pub fn end(mut self) -> String {
        self.process.kill().expect("it runs");
        let output = self.process.wait_with_output().expect("it has ended");
        String::from_utf8(output.stderr).expect("text")
    }

    /// Connects to the server when it listens.
    pub fn connect(&self) -> TcpStream {
        self.connect_at(self.address)
    }

    /// Connects to the server at one of its addresses when it listens.
    pub fn connect_at(&self, address: SocketAddr) -> TcpStream {
        let begun = Instant::now();
        loop {
            match TcpStream::connect(address) {
                Ok(client) => return client,
                Err(error) if begun.elapsed() > Duration::from_secs(30) => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}
