//! An annex of a run: a node outside of the pair that takes connections of the service (docs/annex.md).

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use linux::netns::{InterfaceControl, Netns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proto::Instant;

use super::PairOptions;
use super::fault::CrashFault;
use crate::clock::monotonic;
use crate::net::address::ANNEXES;
use crate::net::{ANNEX_NAMES, Topology};
use crate::node::{
    AnnexSetup, ExportSetup, PairSetup, PatternFiles, ServerProcess, leftovers_of_nodes, write_key,
};
use crate::process::{self, LoggedProcess};
use crate::run::LabRun;

/// TCP port at which an annex listens for the pair's nodes.
const PORT: u16 = 7402;
/// Number of worker processes, if the server has workers.
const WORKERS: u32 = 2;
/// Time limit for an annex's processes to end after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for an annex to stop. It waits for its wire for at most 5 s.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// An annex of a run.
#[derive(Debug)]
pub struct AnnexNode {
    /// Its name in the configuration of the pair.
    pub name: String,
    process: LoggedProcess,
    server: ServerProcess,
    /// The end of its cable at the switch.
    cable: InterfaceControl,
    node: Netns,
}

/// The annexes that run `run` needs, as the pair's nodes know them. Their sockets are in `directory`.
pub fn annex_setups(options: &PairOptions, run: &str, directory: &Path) -> Vec<AnnexSetup> {
    let used = ANNEX_NAMES.iter().zip(ANNEXES).take(options.annex_count());
    let setups = used.map(|(name, addresses)| AnnexSetup {
        name: format!("{name}-{run}"),
        address: SocketAddr::new(addresses.ip(options.lan.ipv6), PORT),
        snapshots: options.snapshot_socket(directory, name),
        health: (options.fault == CrashFault::HangAnnexServer).then(|| options.application().health()),
    });
    setups.collect()
}

impl AnnexNode {
    /// Connects annex number `index` of `pair` to the network, and starts its server and its daemon.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn start(
        (pair, index): (&PairSetup, usize),
        options: &PairOptions,
        content: &PatternFiles,
        network: &Topology,
        run: &LabRun<'_>,
    ) -> Result<Self> {
        let (setup, role) = (&pair.annexes[index], ANNEX_NAMES[index]);
        let node = network.add_host(&run.name, role, &ANNEXES[index], run.teardown)?;
        for leftover in leftovers_of_nodes(std::slice::from_ref(&setup.name)) {
            run.teardown.will_create(&leftover)?;
        }
        let application = options.application();
        let export = ExportSetup {
            snapshots: setup.snapshots.clone().unwrap_or_default(),
            program: pair.binaries[0].clone(),
            ipv6: options.lan.ipv6,
            ..ExportSetup::default()
        };
        let label = format!("{}-{role}", application.name());
        let server = ServerProcess::start_with(
            application,
            &node,
            &run.directory,
            &label,
            content,
            WORKERS,
            &export,
        )?;
        let configuration = configure(pair, setup, &run.directory)?;
        let mut command = node.command(&pair.binaries[0])?;
        command.arg("annex").arg("--config").arg(&configuration);
        let process = LoggedProcess::start(&format!("steadfast-{}", setup.name), command, &run.directory)?;
        Ok(Self {
            name: setup.name.clone(),
            process,
            server,
            cable: network.switch.cable(role)?,
            node,
        })
    }

    /// Turns off the annex's power: cuts its cable, then kills all its processes but `spared`. Returns the time just before the cut.
    ///
    /// # Errors
    /// If the cable cannot be cut or a process cannot be killed.
    pub fn power_off(&self, spared: &[Pid]) -> Result<Instant> {
        let moment = monotonic();
        self.cable.pull()?;
        let spare = |pid| spared.contains(&pid);
        process::kill_inside(&[self.node.inode()], spare, KILL_LIMIT)
            .context("kill the annex's processes")?;
        Ok(moment)
    }

    /// Sends a signal to all processes of the annex's server. Returns the time just before.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn signal_server(&self, signal: Signal) -> Result<Instant> {
        let moment = monotonic();
        self.server.signal(signal)?;
        Ok(moment)
    }

    /// Tells the annex's daemon to stop (SIGTERM), as a supervisor does. Returns the time just before.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn stop(&self) -> Result<Instant> {
        let moment = monotonic();
        kill(self.process.pid(), Signal::SIGTERM).with_context(|| format!("stop {}", self.name))?;
        Ok(moment)
    }

    /// Waits until the annex's daemon has stopped without a failure.
    ///
    /// # Errors
    /// If it does not stop in time, or reports a failure.
    pub fn wait_stopped(&mut self) -> Result<()> {
        let status = self.process.wait(STOP_LIMIT)?;
        let said = self.process.last_words();
        ensure!(
            status.success(),
            "{} did not stop cleanly: {status}; it said:{said}",
            self.name
        );
        Ok(())
    }
}

/// Writes the configuration of the annex `setup`, and the pair's key, to `directory`. Returns the configuration's file.
fn configure(pair: &PairSetup, setup: &AnnexSetup, directory: &Path) -> Result<PathBuf> {
    let key = pair.key(directory);
    write_key(&key, &pair.names[0])?;
    let file = directory.join(format!("{}.toml", setup.name));
    fs::write(&file, pair.annex_configuration(setup, &key)).with_context(|| file.display().to_string())?;
    Ok(file)
}
