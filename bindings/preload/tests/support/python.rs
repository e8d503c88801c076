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

impl PythonServer {
    /// Starts `program`, which listens at the port in its first argument. `setting`: what the library does. `None`: there is no Python.
    pub fn start(program: &str, setting: &str) -> Option<Self> {
        if !Path::new(PYTHON).exists() {
            println!("skipped: no {PYTHON}");
            return None;
        }
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("bound");
        drop(free);
        let process = Command::new(PYTHON)
            .args(["-c", program, &address.port().to_string()])
            .env("LD_PRELOAD", library::path())
            .env("STEADFAST_ORDER", setting)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        Some(Self { process, address })
    }

    /// Connects to the server when it listens.
    pub fn connect(&self) -> TcpStream {
        let begun = Instant::now();
        loop {
            match TcpStream::connect(self.address) {
                Ok(client) => return client,
                Err(error) if begun.elapsed() > Duration::from_secs(30) => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}
