//! The server processes on the nodes. Each server has its own configuration and its own directory.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linux::netns::Netns;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::configuration;
use super::software::ServerSoftware;
use crate::net::address::ROUTER_LAN;
use crate::process::{self, LoggedProcess};

const ECHO: &str = include_str!("echo.py");
const STREAM: &str = include_str!("stream.py");
/// The program that inetd starts for each connection.
const TICK: &str = include_str!("tick.py");
/// The sample server with policy `snapshot`, and the modules that it uses.
const FILE_SERVER: &str = include_str!("../../../../bindings/python/examples/file_server.py");
const TCP_SERVER: &str = include_str!("../../../../bindings/python/examples/tcp_server.py");
const SNAPSHOTS: &str = include_str!("../../../../bindings/python/steadfast.py");
/// The PostgreSQL front-end, its module, its client and the check of its ledger.
const PG_FRONT_END: &str = include_str!("../../../../bindings/python/examples/pg_front_end.py");
const TRANSACTIONS: &str = include_str!("../../../../bindings/python/steadfast_pg.py");
pub const PG_CLIENT: &str = include_str!("../../../../bindings/python/examples/pg_client.py");
pub const PG_CHECK: &str = include_str!("../../../../bindings/python/examples/pg_check.py");
/// Port of the front-ends' database, which runs on the router.
pub const DATABASE_PORT: u16 = 5432;
/// The CGI script whose replies are random.
const RANDOM: &str = include_str!("random.py");
/// File beside that script in which each execution notes what it sends.
pub const SENT: &str = "sent";
const START_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a killed server to end.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Files with the contents that the crate `pattern` generates. The servers on both nodes serve the same files.
#[derive(Debug)]
pub struct PatternFiles {
    directory: PathBuf,
}

impl PatternFiles {
    /// Creates `DIRECTORY/files` with one file for each `(seed, length)`.
    ///
    /// # Errors
    /// If a file cannot be written. The error names the file.
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
    /// The application, if the server is a stage.
    behind: Option<LoggedProcess>,
}

/// How a server exports its state.
#[derive(Clone, Debug, Default)]
pub struct ExportSetup {
    /// The agent's socket. If the path is empty, the server exports nothing.
    pub snapshots: PathBuf,
    /// The program `steadfast`, for a stage.
    pub program: PathBuf,
    /// Whether the service's address is of IPv6.
    pub ipv6: bool,
    /// The agent's socket for recorded order, if the server's order is recorded. The server then starts only when the agent runs.
    pub order: Option<PathBuf>,
}

impl ServerProcess {
    /// Starts `application` in `node` and waits until it accepts connections. If this kind of server has workers, it gets `workers` of
    /// them. The server's own files are in `DIRECTORY/LABEL`.
    ///
    /// # Errors
    /// If the server does not start or does not listen. The error quotes the server's output.
    pub fn start(
        application: ServerSoftware,
        node: &Netns,
        directory: &Path,
        label: &str,
        content: &PatternFiles,
        workers: u32,
    ) -> Result<Self> {
        Self::start_with(
            application,
            node,
            directory,
            label,
            content,
            workers,
            &ExportSetup::default(),
        )
    }

    /// As [`start`](Self::start), for a server that may export its state.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        application: ServerSoftware,
        node: &Netns,
        directory: &Path,
        label: &str,
        content: &PatternFiles,
        workers: u32,
        export: &ExportSetup,
    ) -> Result<Self> {
        let own = directory.join(label);
        fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        let mut command = command(application, node, &own, &content.directory, workers)?;
        command.env("STEADFAST_SNAPSHOTS", &export.snapshots);
        if let Some(socket) = &export.order {
            let library = export.program.with_file_name("libsteadfast_order.so");
            ensure!(library.exists(), "{} does not exist", library.display());
            command
                .env("LD_PRELOAD", library)
                .env("STEADFAST_ORDER", format!("agent:{}", socket.display()));
        }
        let Some(port) = application.staged_port() else {
            let mut process = LoggedProcess::start(label, command, directory)?;
            if export.order.is_some() {
                let behind = None;
                return Ok(Self { process, behind });
            }
            wait_listening(&mut process, node, application.port())?;
            let behind = None;
            return Ok(Self { process, behind });
        };
        let mut behind = LoggedProcess::start(&format!("behind-{label}"), command, directory)?;
        wait_listening(&mut behind, node, port)?;
        let file = own.join("stage.toml");
        let text = configuration::stage(application.port(), port, export.ipv6, &export.snapshots);
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        let mut command = node.command(&export.program)?;
        command.arg("stage").arg("--config").arg(file);
        let mut process = LoggedProcess::start(label, command, directory)?;
        wait_socket(&mut process, node, application.port(), export.ipv6)?;
        let behind = Some(behind);
        Ok(Self { process, behind })
    }

    /// Waits until the server listens.
    ///
    /// # Errors
    /// If the server has ended, or takes too long.
    pub fn wait_listening(&mut self, node: &Netns, port: u16) -> Result<()> {
        wait_listening(&mut self.process, node, port)
    }

    /// Lets the server's leading process, and all processes that it starts from now on, use only these CPUs.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn use_cpus(&self, cpus: std::ops::Range<usize>) -> Result<()> {
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.set(cpu)?;
        }
        sched_setaffinity(self.pid(), &set).context("choose the server's CPUs")
    }

    /// Sends `signal` to all processes of the application behind the stage.
    ///
    /// # Errors
    /// If the server is no stage, or if the kernel refuses.
    pub fn signal_behind(&self, signal: Signal) -> Result<()> {
        let behind = self.behind.as_ref().context("the server is no stage")?;
        Ok(behind.signal(signal)?)
    }

    /// Starts the application behind the stage again. Its own files are in `DIRECTORY/LABEL`, as before.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_behind(
        &mut self,
        application: ServerSoftware,
        node: &Netns,
        directory: &Path,
        label: &str,
        content: &PatternFiles,
    ) -> Result<()> {
        self.stop_behind();
        let port = application.staged_port().context("the server is no stage")?;
        let command = command(application, node, &directory.join(label), &content.directory, 1)?;
        let mut behind = LoggedProcess::start(&format!("behind-{label}-again"), command, directory)?;
        wait_listening(&mut behind, node, port)?;
        self.behind = Some(behind);
        Ok(())
    }

    /// Kills the application behind the stage, if it still runs, so that another one can listen.
    pub fn stop_behind(&mut self) {
        self.behind = None;
    }

    /// Sends `signal` to all processes of the server.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(self.process.signal(signal)?)
    }

    /// Kills all processes of the server, which is `application`, and waits until they do not listen any more. A large process takes a while to
    /// end, and keeps its port meanwhile.
    ///
    /// # Errors
    /// If the server takes too long.
    pub fn kill(&mut self, application: ServerSoftware, node: &Netns) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.process.wait(KILL_LIMIT)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, application.port()));
        let deadline = Instant::now() + KILL_LIMIT;
        while accepts(node, address) {
            ensure!(
                Instant::now() < deadline,
                "a killed server still listens at {address}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Sends SIGTERM to all processes of the server, and waits until the leading process has ended.
    ///
    /// # Errors
    /// If the server takes longer than `limit`.
    pub fn end(&mut self, limit: Duration) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        self.process.wait(limit)?;
        Ok(())
    }

    /// The server's leading process.
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

/// The text of the file `server.conf` of `application`: its configuration, or its program. Also writes the other files that the server needs to
/// `own`.
fn configuration_text(application: ServerSoftware, own: &Path, files: &Path, workers: u32) -> Result<String> {
    Ok(match application {
        ServerSoftware::Nginx => configuration::nginx(own, files, workers),
        ServerSoftware::Apache => configuration::apache(own, files, workers),
        ServerSoftware::Lighttpd => configuration::lighttpd(own, files),
        ServerSoftware::DigestLighttpd => {
            write_modules(own, &[("passwords", configuration::PASSWORDS)])?;
            configuration::lighttpd_digest(own, files)
        }
        ServerSoftware::Python | ServerSoftware::Redis => String::new(),
        ServerSoftware::Cgi | ServerSoftware::PlainCgi => {
            let script = own.join("random.cgi");
            fs::write(&script, RANDOM)
                .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
                .with_context(|| script.display().to_string())?;
            let port = application.staged_port().unwrap_or(application.port());
            configuration::cgi(own, port, application == ServerSoftware::PlainCgi)
        }
        ServerSoftware::Inetd => {
            write_modules(own, &[("tick.py", TICK)])?;
            configuration::inetd(own)
        }
        ServerSoftware::Samba => {
            for kind in configuration::SAMBA_DIRECTORIES {
                let directory = own.join(kind);
                fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
            }
            configuration::samba(own, files)
        }
        ServerSoftware::Vsftpd => {
            let empty = own.join("empty");
            fs::create_dir_all(&empty).with_context(|| empty.display().to_string())?;
            configuration::vsftpd(own, files)
        }
        ServerSoftware::FileServer => FILE_SERVER.to_owned(),
        ServerSoftware::PgFrontEnd | ServerSoftware::WrongPgFrontEnd => PG_FRONT_END.to_owned(),
        ServerSoftware::Websockets => ECHO.to_owned(),
        ServerSoftware::Stream | ServerSoftware::DivergingStream | ServerSoftware::VisiblyDivergingStream => {
            STREAM.to_owned()
        }
    })
}

/// The command that runs `application`. The server keeps its own files in the existing directory `own`, and serves the files in `files`. If
/// this kind of server has workers, it gets `workers` of them.
fn command(
    application: ServerSoftware,
    node: &Netns,
    own: &Path,
    files: &Path,
    workers: u32,
) -> Result<Command> {
    let mut command = node.command(application.program())?;
    let text = configuration_text(application, own, files, workers)?;
    let file = own.join("server.conf");
    fs::write(&file, text).with_context(|| file.display().to_string())?;
    match application {
        ServerSoftware::Nginx => command
            .arg("-p")
            .arg(own)
            .arg("-c")
            .arg(file)
            .args(["-e", "stderr"]),
        ServerSoftware::Apache => command.arg("-f").arg(file).arg("-DFOREGROUND"),
        ServerSoftware::Lighttpd
        | ServerSoftware::DigestLighttpd
        | ServerSoftware::Cgi
        | ServerSoftware::PlainCgi => command.arg("-D").arg("-f").arg(file),
        ServerSoftware::Inetd => command.arg("-i").arg(file),
        ServerSoftware::Vsftpd => command.arg(file),
        ServerSoftware::Samba => command
            .args(["-F", "--no-process-group", "--debug-stdout", "-s"])
            .arg(file),
        ServerSoftware::Python => command.args(configuration::python(files)),
        ServerSoftware::Redis => command.args(configuration::redis(own)),
        ServerSoftware::FileServer => {
            write_modules(own, &[("steadfast.py", SNAPSHOTS), ("tcp_server.py", TCP_SERVER)])?;
            command.env("PYTHONPATH", own).arg(file).arg(files);
            command.args(everywhere(application.port()))
        }
        ServerSoftware::PgFrontEnd | ServerSoftware::WrongPgFrontEnd => {
            let modules = [
                ("steadfast.py", SNAPSHOTS),
                ("steadfast_pg.py", TRANSACTIONS),
                ("tcp_server.py", TCP_SERVER),
                ("pg_front_end.py", PG_FRONT_END),
            ];
            write_modules(own, &modules)?;
            command.env("PYTHONPATH", own).arg(file);
            if application == ServerSoftware::WrongPgFrontEnd {
                command.arg("--wrong-order");
            }
            let database = ROUTER_LAN.ip(false);
            command.arg(format!(
                "host={database} port={DATABASE_PORT} user=lab dbname=postgres"
            ));
            command.args(everywhere(application.port()))
        }
        ServerSoftware::Websockets | ServerSoftware::Stream => {
            command.arg(file).arg(application.port().to_string())
        }
        ServerSoftware::DivergingStream | ServerSoftware::VisiblyDivergingStream => {
            let is_on_b = own.to_string_lossy().ends_with("-b");
            let is_visible = application == ServerSoftware::VisiblyDivergingStream;
            let how = if is_visible { "diverge-visibly" } else { "diverge" };
            command.arg(file).arg(application.port().to_string());
            command.args(is_on_b.then_some(how))
        }
    };
    Ok(command)
}

fn write_modules(directory: &Path, modules: &[(&str, &str)]) -> Result<()> {
    for (name, text) in modules {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// All addresses of both families, at `port`.
fn everywhere(port: u16) -> [String; 2] {
    [format!("0.0.0.0:{port}"), format!("[::]:{port}")]
}

/// Waits until `process` on `node` accepts connections at `port`.
///
/// # Errors
/// If the process ends, or does not listen in time.
pub fn wait_listening(process: &mut LoggedProcess, node: &Netns, port: u16) -> Result<()> {
    wait_socket(process, node, port, false)
}

fn wait_socket(process: &mut LoggedProcess, node: &Netns, port: u16, ipv6: bool) -> Result<()> {
    let loopback = if ipv6 {
        Ipv6Addr::LOCALHOST.into()
    } else {
        IpAddr::from(Ipv4Addr::LOCALHOST)
    };
    let address = SocketAddr::from((loopback, port));
    let listens = |_: &LoggedProcess| accepts(node, address);
    Ok(process.wait_until("listen", START_LIMIT, listens)?)
}

fn accepts(node: &Netns, address: SocketAddr) -> bool {
    let connect = node.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(100)));
    matches!(connect, Ok(Ok(_)))
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
