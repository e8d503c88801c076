//! The keepers of a node. The current keeper gets new connections. A keeper is retired if it is full, does not answer, or runs another
//! version of steadfast's program file than the agent. A retired keeper gets no new connections; it relays its old ones until they end.
//!
//! ```text
//!  keeper.sock       keeper.lock         serves
//!  keeper-PID.sock   keeper-PID.lock     retired; PID is the keeper's process number
//! ```
//!
//! To retire a keeper, the agent renames the keeper's files. A later agent finds all keepers by these names. A retired keeper ends by
//! itself when it has no connection left and no agent is connected to it. Each keeper removes its own files, even if they were renamed.
//!
//! If the current keeper has died or does not answer, a new keeper takes its place. The old keeper's connections count as lost.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use linux::keeper::{Adoption, KeeperClient, KeeperClientError, KeeperStatus, LoggedInput};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proto::Seq;
use proto::restart::prefix::{PrefixAnswer, PrefixAsk};

use crate::lock::{self, Lock};
use crate::program;

/// The current keeper's socket.
const SOCKET: &str = "keeper.sock";
/// The log of all keepers of the node.
const LOG: &str = "keeper.log";
/// Time limit for a new keeper to open its socket.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// Time for which a keeper may still hold its lock after its channel has failed. If it holds the lock for longer, it hangs.
const DIES_WITHIN: Duration = Duration::from_millis(200);
/// Time from SIGTERM to SIGKILL for a keeper that does not end.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Number of file descriptors that a keeper needs in addition to two per connection. They are for spilled input and for the keeper itself.
const DESCRIPTORS: usize = 500;

/// An agent's channels to the keepers of its node.
pub struct Keepers {
    state_dir: PathBuf,
    /// The keeper that gets new connections.
    current: KeeperClient,
    /// Maximum number of connections that a keeper can have.
    connections_max: u64,
    /// The current keeper's last status, without its list of live connections.
    told: KeeperStatus,
    /// Number of connections given to the current keeper since that status, by service.
    given: BTreeMap<String, u64>,
    /// The retired keepers; `None` until the first status request, or until the current keeper is full. The agent does
    /// not look for them at its start, so that no client waits for their answers.
    retired: Option<Vec<Retired>>,
    /// Sum of the last statuses of all keepers that this agent no longer uses: they have died, do not answer, or have no connections left.
    /// Includes the connections that no keeper took. Live connections in these statuses count as lost.
    past: KeeperStatus,
}

/// A keeper that gets no new connections.
struct Retired {
    pid: Pid,
    client: KeeperClient,
    /// The keeper's last status.
    told: KeeperStatus,
}

impl Keepers {
    /// Uses the existing keeper if it runs this program file; else retires it and starts a new one.
    ///
    /// # Errors
    /// If the old keeper cannot be retired, or no new one can be started.
    pub fn open(state_dir: &Path) -> anyhow::Result<Self> {
        let socket = state_dir.join(SOCKET);
        let current = match KeeperClient::connect(&socket) {
            Ok(client) => use_or_retire(state_dir, client)?,
            Err(_) => None,
        };
        let current = match current {
            Some(client) => client,
            None => start(state_dir)?,
        };
        Ok(Self {
            state_dir: state_dir.to_owned(),
            current,
            connections_max: connections_max().context("asking for the limit of open files")?,
            told: KeeperStatus::default(),
            given: BTreeMap::new(),
            retired: None,
            past: KeeperStatus::default(),
        })
    }

    /// Gives a connection to the current keeper, or to its replacement. See [`KeeperClient::adopt`].
    ///
    /// # Errors
    /// If no keeper can be reached or started. The connection is lost, and counted as lost.
    pub fn adopt(
        &mut self,
        adoption: &Adoption,
        client: BorrowedFd<'_>,
        replica: Option<BorrowedFd<'_>>,
        input: &LoggedInput<'_>,
    ) -> anyhow::Result<()> {
        if self.live() >= self.connections_max
            && let Err(error) = self.put_aside()
        {
            tracing::error!(
                error = format!("{error:#}"),
                "the keeper is full and cannot be replaced; it still gets all new connections"
            );
            self.connections_max = u64::MAX; // do not try again: clients wait during each attempt
        }
        let mut is_new = false;
        loop {
            match self.current.adopt(adoption, client, replica, input) {
                Ok(()) => {
                    *self.given.entry(adoption.service.clone()).or_default() += 1;
                    return Ok(());
                }
                Err(error @ KeeperClientError::Refused(_)) => {
                    // `adopt` returns each refusal only once, so the loop ends.
                    tracing::error!(%error, "an earlier connection is lost: the keeper refused it");
                }
                Err(error) => {
                    let replaced = if is_new {
                        Err(error.into())
                    } else {
                        self.replace(&error)
                    };
                    if let Err(error) = replaced {
                        self.past.add_unseen(&adoption.service, 1);
                        self.past = std::mem::take(&mut self.past).of_the_past();
                        return Err(error);
                    }
                    is_new = true;
                }
            }
        }
    }

    /// Waits until the current keeper has taken or refused every connection that it was given.
    ///
    /// # Errors
    /// If the keeper does not answer, and no other one can be started.
    pub fn settle(&mut self) -> anyhow::Result<()> {
        while let Err(error) = self.current.settle() {
            match error {
                KeeperClientError::Refused(_) => tracing::error!(%error, "connection lost"),
                _ => return self.replace(&error),
            }
        }
        Ok(())
    }

    /// Number of connections that the current keeper has: those of its last status, and those that it was given since.
    fn live(&self) -> u64 {
        let told = self.told.services.values().map(|sums| sums.live);
        told.chain(self.given.values().copied()).sum()
    }

    /// Retires the current keeper, which is full, and starts another one.
    fn put_aside(&mut self) -> anyhow::Result<()> {
        self.settle()?;
        if self.live() < self.connections_max {
            return Ok(()); // the keeper did not answer, and `settle` replaced it
        }
        let pid = self.current.pid()?;
        // Look for retired keepers before `retire`. Afterwards the search would find the current keeper, too.
        let retired = self.retired.get_or_insert_with(|| find_retired(&self.state_dir));
        retire(&self.state_dir, pid)?;
        let next = start(&self.state_dir)?;
        let mut told = std::mem::take(&mut self.told);
        for (service, count) in std::mem::take(&mut self.given) {
            told.add_unseen(&service, count);
        }
        tracing::info!(%pid, connections = self.connections_max, "the full keeper is retired; a new keeper gets all new connections");
        retired.push(Retired {
            pid,
            client: std::mem::replace(&mut self.current, next),
            told,
        });
        Ok(())
    }

    /// Replaces the current keeper, which does not answer.
    fn replace(&mut self, error: &KeeperClientError) -> anyhow::Result<()> {
        let mut told = std::mem::take(&mut self.told);
        for (service, count) in std::mem::take(&mut self.given) {
            told.add_unseen(&service, count);
        }
        let connections: u64 = told.services.values().map(|sums| sums.live).sum();
        self.past.add(told.of_the_past());
        match self.hung()? {
            None => {
                tracing::error!(%error, connections, "the keeper has died; its connections are lost; starting a new keeper");
            }
            Some(pid) => {
                retire(&self.state_dir, pid)?;
                tracing::error!(%error, %pid, connections, "the keeper hangs; its connections count as lost; starting a new keeper");
            }
        }
        self.current = start(&self.state_dir)?;
        Ok(())
    }

    /// The current keeper's process, if it is still there after [`DIES_WITHIN`].
    fn hung(&self) -> anyhow::Result<Option<Pid>> {
        let until = Instant::now() + DIES_WITHIN;
        while let Some(pid) = holder(&self.state_dir, lock::KEEPER)? {
            if Instant::now() > until {
                return Ok(Some(pid));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }

    /// The status of all connections. The agent disconnects from a retired keeper without connections, so that this keeper ends.
    ///
    /// # Errors
    /// If the current keeper does not answer, and no other one can be started.
    pub fn status(&mut self) -> anyhow::Result<KeeperStatus> {
        let asked = self.current.status();
        let mut all = match asked {
            Err(error) if !matches!(error, KeeperClientError::Refused(_)) => {
                self.replace(&error)?;
                self.current.status()?
            }
            told => told?,
        };
        self.told = all.sums();
        self.given.clear();
        let past = &mut self.past;
        let retired = self.retired.get_or_insert_with(|| find_retired(&self.state_dir));
        retired.retain_mut(|keeper| match keeper.client.status() {
            Ok(told) if told.connections.is_empty() => {
                tracing::info!(pid = %keeper.pid, "a retired keeper has no connection left");
                past.add(told);
                false
            }
            Ok(told) => {
                keeper.told = told.clone();
                all.add(told);
                true
            }
            Err(error) => {
                let told = std::mem::take(&mut keeper.told);
                let connections = told.connections.len();
                tracing::error!(%error, pid = %keeper.pid, connections, "a retired keeper does not answer; its connections count as lost");
                past.add(told.of_the_past());
                false
            }
        });
        all.add(past.clone());
        Ok(all)
    }

    /// Kept input of a connection of `service`, from the keeper that relays it. `None`: none relays it, or its input is not kept. If a keeper
    /// does not answer, the next status request notices it.
    pub fn prefix(&mut self, service: &str, ask: &PrefixAsk) -> Option<PrefixAnswer> {
        let retired = self.retired.iter_mut().flatten().map(|keeper| &mut keeper.client);
        std::iter::once(&mut self.current).chain(retired).find_map(|keeper| {
            keeper.prefix(service, ask).unwrap_or_else(|error| {
                tracing::warn!(service, client = %ask.client, %error, "a keeper does not tell the input that it has kept");
                None
            })
        })
    }

    /// Ends all keepers; their connections are reset.
    ///
    /// # Errors
    /// If a keeper does not end.
    pub fn stop(self) -> anyhow::Result<()> {
        let retired = self.retired.into_iter().flatten().map(|keeper| keeper.client);
        for client in std::iter::once(self.current).chain(retired) {
            if let Err(error) = client.stop() {
                tracing::warn!(%error, "a keeper does not stop on request; sending a signal");
            }
        }
        end_all(&self.state_dir)
    }
}

/// Number of connections for which a keeper has file descriptors. A keeper has the same limit of open files as this process.
fn connections_max() -> io::Result<u64> {
    let room = linux::process::file_limit()?.saturating_sub(DESCRIPTORS) / 2;
    Ok(u64::try_from(room.max(1)).unwrap_or(u64::MAX))
}

/// Returns the keeper behind `client` if it runs this program file. Otherwise retires it and returns `None`.
fn use_or_retire(state_dir: &Path, client: KeeperClient) -> anyhow::Result<Option<KeeperClient>> {
    let pid = client.pid()?;
    if runs_this_program(pid) {
        tracing::info!(%pid, "using the keeper that an earlier agent started");
        return Ok(Some(client));
    }
    retire(state_dir, pid)?;
    tracing::info!(%pid, "the keeper runs another version of the program file and is retired; a new keeper gets all new connections");
    Ok(None)
}

/// Retires the keeper that runs as `pid`: renames its lock and its socket, so that a new keeper can use these names.
fn retire(state_dir: &Path, pid: Pid) -> anyhow::Result<()> {
    // Rename the lock first. An agent that does not find the socket may start a keeper, and that keeper needs the lock's name.
    let files = [
        (lock::KEEPER, format!("keeper-{pid}.lock")),
        (SOCKET, format!("keeper-{pid}.sock")),
    ];
    for (from, to) in files {
        match fs::rename(state_dir.join(from), state_dir.join(to)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("retiring the keeper: renaming {from}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether `pid` runs the same program file as this process. True if the files cannot be compared.
fn runs_this_program(pid: Pid) -> bool {
    let file =
        |process: &str| fs::metadata(format!("/proc/{process}/exe")).map(|file| (file.dev(), file.ino()));
    match (file(&pid.to_string()), file("self")) {
        (Ok(theirs), Ok(own)) => theirs == own,
        (Err(error), _) | (_, Err(error)) => {
            tracing::debug!(%error, %pid, "cannot compare the keeper's program file with this one; assuming that they are the same");
            true
        }
    }
}

/// The retired keepers that answer. Removes the files of dead keepers.
fn find_retired(state_dir: &Path) -> Vec<Retired> {
    let pids = retired_pids(state_dir).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot look for retired keepers; their connections are not shown");
        Vec::new()
    });
    let find = |pid| {
        find_one(state_dir, pid).unwrap_or_else(|error| {
            tracing::error!(error = format!("{error:#}"), %pid, "a retired keeper does not answer; its connections are not shown");
            None
        })
    };
    pids.into_iter().filter_map(find).collect()
}

fn find_one(state_dir: &Path, pid: Pid) -> anyhow::Result<Option<Retired>> {
    let [socket, lock] = ["sock", "lock"].map(|kind| format!("keeper-{pid}.{kind}"));
    let asked =
        KeeperClient::connect(&state_dir.join(&socket)).and_then(|mut client| Ok((client.status()?, client)));
    match asked {
        Ok((told, client)) => Ok(Some(Retired { pid, client, told })),
        Err(error) if error.is_other_version() => {
            tracing::warn!(%pid, "a retired keeper uses another version of the messages; its connections go on, but are not shown");
            Ok(None)
        }
        Err(_) if Lock::holder(state_dir, &lock)?.is_none() => {
            remove(state_dir, &[&socket, &lock])?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The state that the application imports for the connection that comes from `peer`, from the keeper that relays this connection. `None`: no
/// keeper relays it, or it began without a state.
///
/// # Errors
/// A keeper that does not answer may be the one that relays the connection.
pub fn import(
    state_dir: &Path,
    peer: SocketAddr,
    application: SocketAddr,
) -> anyhow::Result<Option<Arc<[u8]>>> {
    ask_all(state_dir, |keeper| keeper.import(peer, application))
}

/// The sequence numbers in the client's streams at which the application began that has the connection from `peer`. `None`: no keeper
/// relays this connection, or its application has not begun at a restart point.
///
/// # Errors
/// As [`import`].
pub fn begin(
    state_dir: &Path,
    peer: SocketAddr,
    application: SocketAddr,
) -> anyhow::Result<Option<(Seq, Seq)>> {
    ask_all(state_dir, |keeper| keeper.begin(peer, application))
}

/// The answer of the first keeper that has one, the current keeper first.
fn ask_all<T>(
    state_dir: &Path,
    ask: impl Fn(&mut KeeperClient) -> Result<Option<T>, KeeperClientError>,
) -> anyhow::Result<Option<T>> {
    let retired = retired_pids(state_dir).context("looking for retired keepers")?;
    let retired = retired
        .into_iter()
        .map(|pid| state_dir.join(format!("keeper-{pid}.sock")));
    let mut outcome = Ok(None);
    for socket in std::iter::once(state_dir.join(SOCKET)).chain(retired) {
        match KeeperClient::connect(&socket).and_then(|mut keeper| ask(&mut keeper)) {
            Ok(None) => {}
            Ok(answer) => return Ok(answer),
            Err(error) => outcome = Err(error.into()),
        }
    }
    outcome
}

/// The process numbers in the names of retired keepers' files.
fn retired_pids(state_dir: &Path) -> io::Result<Vec<Pid>> {
    let entries = match fs::read_dir(state_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut pids = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| {
            let (pid, kind) = name.strip_prefix("keeper-")?.split_once('.')?;
            matches!(kind, "sock" | "lock").then(|| pid.parse().ok())?
        });
        pids.extend(pid.map(Pid::from_raw));
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// Starts a keeper, and connects to it.
fn start(state_dir: &Path) -> anyhow::Result<KeeperClient> {
    let socket = state_dir.join(SOCKET);
    spawn(state_dir, &socket)?;
    KeeperClient::connect_within(&socket, START_PATIENCE).context("the new keeper does not answer")
}

/// Starts a keeper as a separate process. The process starts its own session, so it outlives the agent.
fn spawn(state_dir: &Path, socket: &Path) -> anyhow::Result<()> {
    let log = state_dir.join(LOG);
    // Appended, because a retired keeper may be writing to the same file.
    let log = File::options()
        .create(true)
        .append(true)
        .open(&log)
        .with_context(|| format!("opening {}", log.display()))?;
    let mut command = Command::new(program::path()?);
    command
        .arg("keeper")
        .arg("--socket")
        .arg(socket)
        .arg("--state-dir")
        .arg(state_dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut child = command.spawn().context("starting the keeper")?;
    // Reaps the keeper if it ends before the agent does.
    std::thread::spawn(move || child.wait());
    Ok(())
}

/// Ends all keepers of a node whose agent no longer uses them.
///
/// # Errors
/// If a keeper cannot be found or ended.
pub fn end_all(state_dir: &Path) -> anyhow::Result<()> {
    end(state_dir, lock::KEEPER)?;
    for pid in retired_pids(state_dir)? {
        end(state_dir, &format!("keeper-{pid}.lock"))?;
    }
    Ok(())
}

/// The process of the keeper that holds `lock`, if any.
fn holder(state_dir: &Path, lock: &str) -> anyhow::Result<Option<Pid>> {
    let Some(pid) = Lock::holder(state_dir, lock)? else {
        return Ok(None);
    };
    let number = pid
        .parse()
        .with_context(|| format!("the keeper's lock file contains {pid:?}, not a process number"))?;
    Ok(Some(Pid::from_raw(number)))
}

/// Ends the keeper that holds `lock`, if any: with SIGTERM, and after [`ENDS_WITHIN`] with SIGKILL.
fn end(state_dir: &Path, lock: &str) -> anyhow::Result<()> {
    let until = Instant::now() + ENDS_WITHIN;
    let mut signal = Signal::SIGTERM;
    while let Some(pid) = holder(state_dir, lock)? {
        match kill(pid, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => bail!("ending the keeper, process {pid}: {errno}"),
        }
        if Instant::now() > until {
            signal = Signal::SIGKILL;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Removes the files of all keepers. The keepers must have ended.
///
/// # Errors
/// If the kernel refuses.
pub fn remove_files(state_dir: &Path) -> anyhow::Result<()> {
    for pid in retired_pids(state_dir)? {
        remove(
            state_dir,
            &[&format!("keeper-{pid}.sock"), &format!("keeper-{pid}.lock")],
        )?;
    }
    remove(state_dir, &[SOCKET, lock::KEEPER, LOG])
}

fn remove(state_dir: &Path, names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        let file = state_dir.join(name);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", file.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
