//! The unmodified servers: nginx and redis, each with a configuration and a directory of its own.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use linux::netns::Netns;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde::Serialize;

use crate::client::Protocol;
use crate::pattern;
use crate::process::Process;

const START_LIMIT: Duration = Duration::from_secs(10);
/// Descriptors that a server may have open; below the hard limit of small machines.
const FILES_MAX: u32 = 16_384;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Application {
    /// Serves files of pattern data.
    Nginx,
    /// Keeps what clients write.
    Redis,
}

impl Application {
    /// The program's name.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Redis => "redis-server",
        }
    }

    /// The port that it listens on.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::Nginx => 80,
            Self::Redis => 6379,
        }
    }

    /// What its clients speak.
    #[must_use]
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Nginx => Protocol::Http,
            Self::Redis => Protocol::Redis,
        }
    }
}

/// Files of pattern data, the same for the servers of both nodes.
#[derive(Debug)]
pub struct Content {
    directory: PathBuf,
}

impl Content {
    /// Makes `DIRECTORY/files` with one file for every `(seed, length)`.
    ///
    /// # Errors
    /// Names the file that cannot be written.
    pub fn generate(directory: &Path, files: &[(u64, u64)]) -> Result<Self> {
        let directory = directory.join("files");
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
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
pub struct Server {
    process: Process,
}

impl Server {
    /// Starts `application` in `node` and waits until it accepts connections. Its files are in `DIRECTORY/LABEL`.
    ///
    /// # Errors
    /// If it does not start or does not listen; quotes what it said.
    pub fn start(
        application: Application,
        node: &Netns,
        directory: &Path,
        label: &str,
        content: &Content,
    ) -> Result<Self> {
        let own = directory.join(label);
        fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        let mut command = node.command(application.program())?;
        match application {
            Application::Nginx => {
                let configuration = own.join("nginx.conf");
                fs::write(&configuration, nginx_configuration(&own, &content.directory))
                    .with_context(|| configuration.display().to_string())?;
                command
                    .arg("-p")
                    .arg(&own)
                    .arg("-c")
                    .arg(&configuration)
                    .args(["-e", "stderr"]);
            }
            Application::Redis => {
                command.args(redis_options(&own));
            }
        }
        let mut process = Process::start(label, command, directory)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, application.port()));
        let listens = |_: &Process| {
            let connect = node.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(100)));
            matches!(connect, Ok(Ok(_)))
        };
        process.wait_until("listen", START_LIMIT, listens)?;
        Ok(Self { process })
    }

    /// Sends `signal` to all its processes.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(self.process.signal(signal)?)
    }

    /// The process that leads it.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }
}

/// One worker, nothing written but errors; `?rate=N` in a request paces its reply in small pieces.
fn nginx_configuration(own: &Path, files: &Path) -> String {
    let (own, files) = (own.display(), files.display());
    let port = Application::Nginx.port();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {own}/{kind};\n"))
        .concat();
    format!(
        "daemon off;
user root;
worker_processes 1;
worker_rlimit_nofile {FILES_MAX};
pid {own}/nginx.pid;
error_log stderr warn;
events {{
    worker_connections {FILES_MAX};
}}
http {{
    access_log off;
    sendfile on;
    sendfile_max_chunk 256k;
    tcp_nopush on;
    default_type application/octet-stream;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
{temporary}    server {{
        listen 0.0.0.0:{port} backlog=4096;
        listen [::]:{port} ipv6only=on backlog=4096;
        root {files};
        if ($arg_rate) {{
            rewrite ^/(.*)$ /paced/$1 last;
        }}
        location /paced/ {{
            internal;
            alias {files}/;
            limit_rate $arg_rate;
            sendfile_max_chunk 16k;
        }}
    }}
}}
"
    )
}

/// In memory only, reachable from everywhere.
fn redis_options(own: &Path) -> Vec<String> {
    let options = [
        ("--port", Application::Redis.port().to_string()),
        ("--bind", "* -::*".to_owned()),
        ("--protected-mode", "no".to_owned()),
        ("--save", String::new()),
        ("--appendonly", "no".to_owned()),
        ("--dir", own.display().to_string()),
        ("--tcp-backlog", "4096".to_owned()),
        ("--maxclients", (FILES_MAX - 64).to_string()),
    ];
    options
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_the_clients_expect() {
        let directory = tempfile::tempdir().unwrap();
        let content = Content::generate(directory.path(), &[(7, 10_000), (7, 0)]).unwrap();
        let path = content.directory.join(pattern::file_name(7, 10_000));
        let bytes = fs::read(path).unwrap();
        assert_eq!(bytes.len(), 10_000);
        assert_eq!(pattern::check(7, 0, &bytes), Ok(()));
    }

    #[test]
    fn nginx_is_told_to_stay_in_its_directory() {
        let text = nginx_configuration(Path::new("/x/a"), Path::new("/x/files"));
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        assert!(text.contains("root /x/files;"));
        assert!(text.contains("fastcgi_temp_path /x/a/fastcgi;"));
    }
}
