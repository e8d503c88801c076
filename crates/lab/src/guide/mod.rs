//! `steadfast-lab guide`: executes the steps of a guide exactly as they are written.

mod host;
mod network;
mod text;
mod topology;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use linux::netns::Netns;
use serde::Serialize;

use self::host::{SystemdHost, strict};
use self::network::GuideNetwork;
use self::text::{GuideAction, GuideStep};
use self::topology::{GuideHost, GuideTopology};
use crate::process::LoggedProcess;
use crate::run::{LabOutcome, WrongUse, conclude, in_memory, missing_programs, require_nothing};
use crate::teardown::Teardown;

/// Execute a guide exactly as it is written: run its commands on two hosts with systemd, and perform its manual steps.
///
/// The hosts see this machine's files. Their changes go into a layer above these files. The layer is removed when the run ends, so nothing
/// is installed or changed here. Commands on the hosts begin in the current directory, which must be a copy of this repository.
#[derive(Clone, Debug, Args)]
pub struct GuideOptions {
    /// The guide, in Markdown.
    #[arg(default_value = "docs/guide.md")]
    file: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Time that commands in the background get before the guide goes on.
const HEAD_START: Duration = Duration::from_secs(1);
/// Time limit for commands in the background.
const BACKGROUND_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize)]
struct GuideReport {
    ok: bool,
    /// Steps that were done as the guide says.
    steps_done: usize,
    steps: usize,
    /// The step that failed, and its output.
    failure: Option<String>,
}

/// Executes the guide and prints the result.
///
/// # Errors
/// [`WrongUse`] if the guide cannot be read. Another error if this machine lacks something, or the hosts cannot be made.
pub fn run(options: &GuideOptions) -> Result<LabOutcome> {
    let guide = options.file.display();
    let text =
        std::fs::read_to_string(&options.file).map_err(|error| WrongUse(format!("{guide}: {error}")))?;
    let (topology, steps) = text::steps(&text).map_err(|error| WrongUse(format!("{guide}: {error}")))?;
    check_machine()?;
    let teardown = Teardown::start()?;
    let done = play(topology, &steps, options, &teardown);
    teardown.finish()?;
    let (steps_done, failure) = done?;
    let report = GuideReport {
        ok: failure.is_none(),
        steps_done,
        steps: steps.len(),
        failure,
    };
    conclude(options.json, report.ok, &report, || match &report.failure {
        Some(failure) => say!("{failure}"),
        None => say!("all {} steps of {guide} do what it says", report.steps),
    })
}

fn check_machine() -> Result<()> {
    let mut missing = missing_programs([
        ("systemd-nspawn", "systemd-container"),
        ("/lib/systemd/systemd", "systemd"),
        ("nsenter", "util-linux"),
    ]);
    let systems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !systems.contains("\toverlay\n") {
        missing.push("overlay: the kernel lacks this file system".to_owned());
    }
    require_nothing(missing)
}

/// The network, the hosts with systemd, and the commands in the background.
struct GuideTestbed {
    network: GuideNetwork,
    machines: [SystemdHost; 2],
    directory: PathBuf,
    /// Commands in the background, by the index of their host.
    background: BTreeMap<usize, LoggedProcess>,
}

/// Carries out the steps in order until one fails. Returns the number of steps that succeeded, and the failure of the next step, if any.
fn play(
    topology: &GuideTopology,
    steps: &[GuideStep],
    options: &GuideOptions,
    teardown: &Teardown,
) -> Result<(usize, Option<String>)> {
    let run = std::process::id().to_string();
    let directory = in_memory(&run, teardown)?;
    let network = GuideNetwork::build(topology, &run, teardown).context("build the network")?;
    let boot = |index: usize| {
        let namespace = Netns::open(network.machines[index].name())?;
        SystemdHost::boot(topology.machines[index], namespace, &directory)
    };
    let machines = [boot(0)?, boot(1)?];
    let mut bed = GuideTestbed {
        network,
        machines,
        directory,
        background: BTreeMap::new(),
    };
    for (done, step) in steps.iter().enumerate() {
        if !options.json {
            eprintln!(
                "{}:{}: {}",
                options.file.display(),
                step.line,
                told(topology, &step.action)
            );
        }
        if let Err(error) = bed.act(&step.action) {
            let failure = format!(
                "{}:{}: {}: {error:#}",
                options.file.display(),
                step.line,
                told(topology, &step.action)
            );
            return Ok((done, Some(failure)));
        }
    }
    Ok((steps.len(), None))
}

fn told(topology: &GuideTopology, action: &GuideAction) -> String {
    let first = |commands: &str| commands.lines().next().unwrap_or_default().to_owned();
    match action {
        GuideAction::Run { host, commands } => format!("{}: {}", topology.name_of(*host), first(commands)),
        GuideAction::Start { other, commands } => {
            format!("{}: {} &", topology.others[*other], first(commands))
        }
        GuideAction::Wait { other } => format!("{}: wait", topology.others[*other]),
        GuideAction::Cable { cable, plugged } => {
            let way = if *plugged { "in" } else { "out" };
            format!("{}: cable {way}", topology.cables[*cable])
        }
        GuideAction::Copy { from, folder } => {
            let [from, to] = [*from, 1 - from].map(|index| topology.machines[index]);
            format!("{from}: copy {folder} to {to}")
        }
    }
}

impl GuideTestbed {
    fn act(&mut self, action: &GuideAction) -> Result<()> {
        match action {
            GuideAction::Run { host, commands } => self.run(*host, commands),
            GuideAction::Start { other, commands } => {
                let command = self.on_other(*other, commands)?;
                let process = LoggedProcess::start(&format!("background-{other}"), command, &self.directory)?;
                self.background.insert(*other, process);
                std::thread::sleep(HEAD_START);
                Ok(())
            }
            GuideAction::Wait { other } => {
                let mut process = self.background.remove(other).context("nothing was started")?;
                let status = process.wait(BACKGROUND_LIMIT)?;
                if !status.success() {
                    bail!("{status}{}", process.last_words());
                }
                Ok(())
            }
            GuideAction::Cable { cable, plugged } => self.network.move_cable(*cable, *plugged),
            GuideAction::Copy { from, folder } => {
                let [source, target] = [*from, 1 - from].map(|index| self.machines[index].path(folder));
                let mut command = Command::new("cp");
                checked(command.arg("-a").arg(source).arg(target))
            }
        }
    }

    fn run(&self, host: GuideHost, commands: &str) -> Result<()> {
        let mut command = match host {
            GuideHost::Machine(index) => self.machines[index].command(commands)?,
            GuideHost::Other(index) => self.on_other(index, commands)?,
        };
        checked(&mut command)
    }

    /// A command that runs shell commands on a host without systemd, in the run's folder.
    fn on_other(&self, other: usize, commands: &str) -> Result<Command> {
        let mut command = self.network.others[other].command("bash")?;
        command
            .current_dir(&self.directory)
            .args(["-c", &strict(commands)]);
        Ok(command)
    }
}

/// Runs the command and waits for its end.
///
/// # Errors
/// If the command fails. The error contains the command's output.
fn checked(command: &mut Command) -> Result<()> {
    let output = command.output().context("start the command")?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    bail!("{}\n{}", output.status, String::from_utf8_lossy(&said));
}
