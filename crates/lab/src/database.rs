//! A PostgreSQL server of a lab run.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use linux::netns::Netns;

use crate::process::{LoggedProcess, output};

/// Debian's directory of PostgreSQL's versions, whose servers are not in PATH.
const POSTGRESQL: &str = "/usr/lib/postgresql";
/// Time limit for the server's start.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Says that PostgreSQL is missing, if it is.
pub fn missing() -> Vec<String> {
    let missing = || format!("{POSTGRESQL}/*/bin/postgres: missing; on Debian: apt-get install postgresql");
    programs().is_none().then(missing).into_iter().collect()
}

/// Makes a database in `directory`, and returns the command of its server. PostgreSQL does not run as root. The server listens on loopback;
/// with `networks` also at all other addresses of the host, for clients in these networks. The user is `lab`, the database `postgres`.
///
/// # Errors
/// If the database cannot be made.
pub fn server(host: &Netns, directory: &Path, port: u16, networks: &[&str]) -> Result<Command> {
    let programs = programs().context("PostgreSQL's programs")?;
    let data = directory.join("database");
    fs::create_dir_all(&data).with_context(|| data.display().to_string())?;
    let as_nobody = |mut command: Command, program: &str| {
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
        command.arg(programs.join(program)).arg("-D").arg(&data);
        command
    };
    let mut chown = Command::new("chown");
    output(chown.arg("nobody:nogroup").arg(&data), "chown")?;
    let mut init = as_nobody(Command::new("setpriv"), "initdb");
    init.args([
        "--no-sync",
        "--auth=trust",
        "--username=lab",
        "--encoding=UTF8",
        "--locale=C",
    ]);
    output(&mut init, "initdb")?;
    let access = data.join("pg_hba.conf");
    let trusted: String = networks
        .iter()
        .map(|network| format!("host all all {network} trust\n"))
        .collect();
    OpenOptions::new()
        .append(true)
        .open(&access)
        .and_then(|mut file| file.write_all(trusted.as_bytes()))
        .with_context(|| access.display().to_string())?;
    let addresses = if networks.is_empty() { "127.0.0.1" } else { "*" };
    let mut command = as_nobody(host.command("setpriv")?, "postgres");
    command.args(["-p", &port.to_string(), "-c"]);
    command.arg(format!("listen_addresses={addresses}"));
    // A killed server leaves its segments of POSIX shared memory behind.
    command.args(["-c", "dynamic_shared_memory_type=mmap"]);
    command.args(["-c", "unix_socket_directories=", "-c", "fsync=off"]);
    Ok(command)
}

/// Waits until the server takes clients. It listens earlier, and refuses clients while it starts.
///
/// # Errors
/// If the server ends, or is not ready in time.
pub fn wait_ready(server: &mut LoggedProcess) -> Result<()> {
    Ok(server.wait_until("be ready", READY_LIMIT, |server| {
        server.output().contains("ready to accept connections")
    })?)
}

/// The programs of the latest PostgreSQL that is installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(POSTGRESQL).ok()?.flatten();
    let programs = versions.map(|version| version.path().join("bin"));
    programs.filter(|bin| bin.join("postgres").exists()).max()
}
