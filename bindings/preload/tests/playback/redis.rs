//! A Redis server, unmodified, with or without the library.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io};

use crate::library;

/// How long a server may take to start, or to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server. It ends with this value.
pub struct RedisServer {
    child: Child,
    /// Where it listens for clients.
    pub address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RedisServer {
    /// Starts a server. With `order`, the library does what this setting says. `None`: Redis is not installed.
    pub fn start(order: Option<&str>) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = free.local_addr().expect("bound");
        drop(free);
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"])
            .args([
                "--save",
                "",
                "--enable-debug-command",
                "yes",
                "--protected-mode",
                "no",
            ])
            .args([
                "--unixsocket",
                "redis.sock",
                "--logfile",
                "redis.log",
                "--pidfile",
                "",
            ])
            .current_dir(&directory)
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.path().join("errors")).expect("a file"));
        if let Some(order) = order {
            command
                .env("LD_PRELOAD", library::path())
                .env("STEADFAST_ORDER", order);
        }
        let child = match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                println!("skipped: no redis-server");
                return None;
            }
            child => child.expect("redis-server starts"),
        };
        Some(Self {
            child,
            address,
            directory,
        })
    }

    /// A connection of the administrator, which no record has.
    pub fn administrator(&self) -> UnixStream {
        let begun = Instant::now();
        loop {
            match UnixStream::connect(self.directory.path().join("redis.sock")) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
                    return stream;
                }
                Err(error) if begun.elapsed() > PATIENCE => panic!("{error}\n{}", self.errors()),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// A digest of all data.
    pub fn digest(&self) -> String {
        let mut stream = self.administrator();
        stream.write_all(b"DEBUG DIGEST\r\n").expect("sent");
        let mut digest = [0; 43];
        if let Err(error) = stream.read_exact(&mut digest) {
            panic!("{error}\n{}", self.errors());
        }
        String::from_utf8(digest.to_vec()).expect("ASCII")
    }

    /// What the server and the library have written to the standard error.
    pub fn errors(&self) -> String {
        fs::read_to_string(self.directory.path().join("errors")).expect("text")
    }

    /// Connects as a client with this address.
    pub fn connect(&self, client: SocketAddr) -> TcpStream {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("set");
        socket.bind(&client.into()).expect("the address is free");
        socket.connect(&self.address.into()).expect("connected");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream.set_nodelay(true).expect("set");
        stream
    }
}
