//! The unmodified servers, each with a configuration and a directory of its own.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use linux::netns::Netns;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde::Serialize;

use super::agent::HealthProbe;
use super::configuration;
use crate::client::Protocol;
use crate::pattern;
use crate::process::{self, LoggedProcess};

/// Debian's Python, for which Debian's packages are installed. PATH may contain others.
pub const DEBIAN_PYTHON: &str = "/usr/bin/python3";
/// A file of the package `python3-websockets`.
pub const WEBSOCKETS: &str = "/usr/lib/python3/dist-packages/websockets/__init__.py";
const ECHO: &str = include_str!("echo.py");
const START_LIMIT: Duration = Duration::from_secs(10);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerSoftware {
    /// nginx: serves files of pattern data; events, several workers.
    Nginx,
    /// Apache httpd: the same; processes and threads (the event module).
    Apache,
    /// lighttpd: the same; events, one process.
    Lighttpd,
    /// Python's http.server: the same; a thread for each connection.
    Python,
    /// redis: keeps what clients write; one process.
    Redis,
    /// Python's websockets: says back what it is told. The lab's own clients do not speak that.
    #[value(skip)]
    Websockets,
}

impl ServerSoftware {
    /// The server's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Apache => "apache2",
            Self::Lighttpd => "lighttpd",
            Self::Python => "python3",
            Self::Redis => "redis-server",
            Self::Websockets => "websockets",
        }
    }

    /// The server's program.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Nginx | Self::Apache | Self::Lighttpd | Self::Python | Self::Redis => self.name(),
            Self::Websockets => DEBIAN_PYTHON,
        }
    }

    /// The program in PATH or the file that the server needs, and the Debian package that contains it.
    #[must_use]
    pub fn needs(self) -> (&'static str, &'static str) {
        let package = match self {
            Self::Nginx => "nginx-light",
            Self::Apache => "apache2-bin",
            Self::Lighttpd | Self::Python | Self::Redis => self.program(),
            Self::Websockets => return (WEBSOCKETS, "python3-websockets"),
        };
        (self.program(), package)
    }

    /// The port on which the server listens.
    #[must_use]
    pub fn port(self) -> u16 {
        match self.protocol() {
            Protocol::Http => 80,
            Protocol::Redis => 6379,
        }
    }

    /// The protocol of the server's clients.
    #[must_use]
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Nginx | Self::Apache | Self::Lighttpd | Self::Python | Self::Websockets => Protocol::Http,
            Self::Redis => Protocol::Redis,
        }
    }

    /// Whether its clients change to another protocol.
    #[must_use]
    pub fn is_opaque(self) -> bool {
        self == Self::Websockets
    }

    /// A health probe that the server answers if it works.
    #[must_use]
    pub fn health(self) -> HealthProbe {
        match self.protocol() {
            Protocol::Http => HealthProbe {
                send: "GET / HTTP/1.0\r\n\r\n",
                expect: "HTTP/1.",
            },
            Protocol::Redis => HealthProbe {
                send: "PING\r\n",
                expect: "+PONG",
            },
        }
    }

    /// Whether its connections are spread over worker processes.
    #[must_use]
    pub fn has_workers(self) -> bool {
        matches!(self, Self::Nginx | Self::Apache)
    }

    /// The command that runs in the existing directory `own`, serves `files`, and has `workers` processes if the server has
    /// workers.
    fn command(self, node: &Netns, own: &Path, files: &Path, workers: u32) -> Result<Command> {
        let mut command = node.command(self.program())?;
        let text = match self {
            Self::Nginx => configuration::nginx(own, files, workers),
            Self::Apache => configuration::apache(own, files, workers),
            Self::Lighttpd => configuration::lighttpd(own, files),
            Self::Python | Self::Redis => String::new(),
            Self::Websockets => ECHO.to_owned(),
        };
        let file = own.join("server.conf");
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        match self {
            Self::Nginx => command
                .arg("-p")
                .arg(own)
                .arg("-c")
                .arg(file)
                .args(["-e", "stderr"]),
            Self::Apache => command.arg("-f").arg(file).arg("-DFOREGROUND"),
            Self::Lighttpd => command.arg("-D").arg("-f").arg(file),
            Self::Python => command.args(configuration::python(files)),
            Self::Redis => command.args(configuration::redis(own)),
            Self::Websockets => command.arg(file).arg(self.port().to_string()),
        };
        Ok(command)
    }
}

/// Files of pattern data, the same for the servers of both nodes.
#[derive(Debug)]
pub struct PatternFiles {
    directory: PathBuf,
}

impl PatternFiles {
    /// Creates `DIRECTORY/files` with one file for each `(seed, length)`.
    ///
    /// # Errors
    /// Names the file that cannot be written.
    pub fn generate(directory: &Path, files: &[(u64, u64)]) -> Result<Self> {
        let directory = directory.join("files");
        let uploads = directory.join("uploads");
        fs::create_dir_all(&uploads).with_context(|| uploads.display().to_string())?;
        for &(seed, length) in files {
            let path = directory.join(pattern::file_name(seed, length));
            let write = || -> std::io::Result<()> {
                let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
                pattern::write(seed, length, &mut file)?;
                file.flush()
            };
            write().with_context(|| format!("write {}", path.display()))?;
        }
        Ok(Self { directory })
    }
}

/// A running server.
#[derive(Debug)]
pub struct ServerProcess {
    process: LoggedProcess,
}

impl ServerProcess {
    /// Starts `application` in `node`, with `workers` processes if it has workers, and waits until it accepts connections. Its
    /// files are in `DIRECTORY/LABEL`.
    ///
    /// # Errors
    /// If the server does not start or does not listen. Quotes its output.
    pub fn start(
        application: ServerSoftware,
        node: &Netns,
        directory: &Path,
        label: &str,
        content: &PatternFiles,
        workers: u32,
    ) -> Result<Self> {
        let own = directory.join(label);
        fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        let command = application.command(node, &own, &content.directory, workers)?;
        let mut process = LoggedProcess::start(label, command, directory)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, application.port()));
        let listens = |_: &LoggedProcess| {
            let connect = node.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(100)));
            matches!(connect, Ok(Ok(_)))
        };
        process.wait_until("listen", START_LIMIT, listens)?;
        Ok(Self { process })
    }

    /// Sends `signal` to all processes of the server.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(self.process.signal(signal)?)
    }

    /// The server's leading process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// The worker processes: the children of the leading process.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn workers(&self) -> Result<Vec<Pid>> {
        process::children(self.pid()).context("the server's workers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_the_clients_expect() {
        let directory = tempfile::tempdir().unwrap();
        let content = PatternFiles::generate(directory.path(), &[(7, 10_000), (7, 0)]).unwrap();
        let path = content.directory.join(pattern::file_name(7, 10_000));
        let bytes = fs::read(path).unwrap();
        assert_eq!(bytes.len(), 10_000);
        assert_eq!(pattern::check(7, 0, &bytes), Ok(()));
    }
}
